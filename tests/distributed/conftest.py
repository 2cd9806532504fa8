"""One process that has imported TorchRec, for all tests here."""

import pytest


@pytest.fixture(scope="session")
def ranks():
    from ranks import Ranks

    started = Ranks()
    yield started
    started.close()
