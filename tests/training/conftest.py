import pytest


@pytest.fixture(autouse=True)
def always_one_thread(one_thread):
    """As all models here are tiny."""
