"""The modes of approvals."""

import pytest


@pytest.fixture(params=["batched", "per_call"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)
