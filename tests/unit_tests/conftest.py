"""Run operations with sync and async calls."""

import pytest

from tests.unit_tests.support import Drive, awaiting, blocking


@pytest.fixture
def drive(request: pytest.FixtureRequest) -> Drive:
    return awaiting if getattr(request, "param", "") == "awaiting" else blocking
