"""Operations driven with blocking calls and with awaited ones."""

import pytest

from tests.unit_tests.support import Drive, awaiting, blocking


@pytest.fixture(params=[blocking, awaiting])
def drive(request: pytest.FixtureRequest) -> Drive:
    driver: Drive = request.param
    return driver
