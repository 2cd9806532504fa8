"""Memory that is lent and comes back."""

import gc

import pytest
import torch

from mixdim.kernels import pool


@pytest.fixture(autouse=True)
def _empty_pool(monkeypatch):
    monkeypatch.setattr(pool, "_free", [])


def test_a_buffer_is_used_again_once_nobody_holds_it():
    first = pool.Borrowed(1000)
    second = pool.Borrowed(1000)
    assert first.address() != second.address()
    before = first.address()
    del first
    assert pool.Borrowed(900).address() == before


def test_the_smallest_buffer_that_fits_is_taken():
    large, small = pool.Borrowed(100_000), pool.Borrowed(1000)
    before = small.address()
    del large, small
    assert pool.Borrowed(500).address() == before


def test_no_more_buffers_are_kept_than_that():
    held = [pool.Borrowed(100) for _ in range(pool.MOST_KEPT + 3)]
    assert held
    del held
    assert len(pool._free) == pool.MOST_KEPT


def test_a_full_pool_of_small_buffers_makes_room_for_a_large_one():
    held = [pool.Borrowed(100) for _ in range(pool.MOST_KEPT)]
    assert held
    del held
    large = pool.Borrowed(5000)
    del large
    assert max(buffer.numel() for buffer in pool._free) >= 5000


@pytest.mark.parametrize("shape", [(3, 5), (0, 7), (2000, 1000)])
def test_a_tensor_of_the_pool_is_one_like_any_other(shape):
    tensor = pool.empty(*shape)
    assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == (shape, torch.float32, True)
    tensor.fill_(2.0)
    assert torch.equal(tensor.clone(), torch.full(shape, 2.0))


def test_a_large_tensor_gives_its_memory_back_only_when_no_view_is_left():
    tensor = pool.empty(2000, 1000)
    view, before = tensor[1:], tensor.data_ptr()
    del tensor
    gc.collect()
    assert before not in {buffer.data_ptr() for buffer in pool._free}
    view.fill_(1.0)
    del view
    gc.collect()
    assert before in {buffer.data_ptr() for buffer in pool._free}
