"""Run the same code on the kernels and on plain PyTorch."""

import os
from contextlib import contextmanager

import pytest
import torch

from mixdim import kernels
from mixdim.kernels import backend


@contextmanager
def plain_path():
    """Plain PyTorch instead of the kernels."""
    before = os.environ.get("MIXDIM_KERNELS")
    os.environ["MIXDIM_KERNELS"] = "off"
    try:
        yield
    finally:
        if before is None:
            del os.environ["MIXDIM_KERNELS"]
        else:
            os.environ["MIXDIM_KERNELS"] = before


class _Recording:
    """A backend that notes which calls another one takes."""

    def __init__(self, backend, taken):
        self.backend, self.taken = backend, taken

    def __getattr__(self, operation):
        def run(call):
            found = getattr(self.backend, operation)(call)
            if found is not None:
                self.taken.append(operation)
            return found

        return run


@contextmanager
def kernel_calls():
    """The operations that kernels serve meanwhile."""
    before, taken = list(backend.BACKENDS), []
    backend.BACKENDS[:] = [_Recording(one, taken) for one in before]
    try:
        yield taken
    finally:
        backend.BACKENDS[:] = before


def is_served(function):
    """Whether the kernels serve the lookups of a function, all of each."""
    with kernel_calls() as taken:
        function()
    return bool(taken)


@contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def gradients_of(function, parameters, pull):
    """The value of a function, and the gradients of its product with `pull`, zeros for none."""
    value = function()
    for parameter in parameters:
        parameter.grad = None
    if value.requires_grad:
        (value * pull[: value.numel()].view_as(value)).sum().backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    return value.detach(), gradients


def assert_same_results(function, parameters, pull, **tolerance):
    """The kernels give what the plain path gives, and the same bits with 1 and 2 threads."""
    assert kernels.available(), kernels.reason()  # otherwise this compares a path with itself
    results = []
    for count in (1, 2):
        with threads(count):
            results.append(gradients_of(function, parameters, pull))
    with plain_path():
        expected_value, expected = gradients_of(function, parameters, pull)
    (value, gradients), (again, gradients_again) = results
    assert torch.equal(value, again)
    torch.testing.assert_close(value, expected_value, **tolerance)
    for mine, other, theirs in zip(gradients, gradients_again, expected, strict=True):
        assert torch.equal(mine.to_dense(), other.to_dense())
        torch.testing.assert_close(mine.to_dense(), theirs.to_dense(), **tolerance)


BAD_IDS = [-1, 10, 2**31, 2**40, -(2**63)]


def assert_same_error(layer, bad):
    """A bad id of "item", second of three features, with 10 rows, is the same error on both paths."""
    ids = torch.zeros(100, 3, dtype=torch.int64)
    ids[70, 1] = ids[80, 1] = bad
    values, offsets = torch.tensor([0, 1, bad, 5]), torch.tensor([0, 1, 3, 4])
    for call in (lambda: layer(ids), lambda: layer.bags(values, offsets)):
        with pytest.raises(IndexError) as by_kernel:
            call()
        with plain_path(), pytest.raises(IndexError) as by_pytorch:
            call()
        assert str(by_kernel.value) == str(by_pytorch.value)
        assert f"id {bad} of feature 'item'" in str(by_kernel.value)
