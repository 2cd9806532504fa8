import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """The models here are tiny: on a busy machine threads wait for each other most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
