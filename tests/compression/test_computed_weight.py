"""A weight that is computed: read as any tensor, never written into."""

import numpy as np
import pytest
import torch
from torch import nn

from mixdim.compression.computed_weight import ComputedWeight


@pytest.fixture
def weight():
    return (torch.arange(12.0).view(4, 3).requires_grad_() * 2).as_subclass(ComputedWeight)


def set_item(weight):
    weight[1] = 0.0


def set_data(weight):
    weight.data = torch.zeros(4, 3)


def freeze(weight):
    weight.requires_grad = False


def add_in_place(weight):
    weight += 1


WRITES = {
    "an item": set_item,
    "its data": set_data,
    "whether it has a gradient": freeze,
    "an operator": add_in_place,
    "data.copy_": lambda weight: weight.data.copy_(torch.zeros(4, 3)),
    "detach().zero_": lambda weight: weight.detach().zero_(),
    "a row": lambda weight: weight[0].fill_(0.0),
    "a view of a view": lambda weight: weight.t()[:2].mul_(2),
    "one of its parts": lambda weight: weight.split(2)[1].zero_(),
    "nn.init": lambda weight: nn.init.normal_(weight),
    "nn.init of data": lambda weight: nn.init.xavier_uniform_(weight.data),
    "nn.init by keyword": lambda weight: nn.init.uniform_(tensor=weight),
    "out": lambda weight: torch.add(torch.ones(4, 3), 1, out=weight.detach()),
    "many at once": lambda weight: torch._foreach_mul_([weight.detach()], 2.0),
    "a parameter of its memory": lambda weight: nn.Parameter(weight),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_writing_into_it_raises_and_changes_nothing(weight, write, mode):
    before = weight.tolist()
    with mode(), pytest.raises(RuntimeError, match="weight of a compressed table is computed"):
        write(weight)
    assert weight.tolist() == before


def test_an_array_of_it_is_read_only(weight):
    for array in (weight.detach().numpy(), np.asarray(weight.detach()), weight.data.numpy()):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_it_is_read_and_differentiated_as_any_other():
    source = torch.randn(4, 3, requires_grad=True)
    weight, plain = (source * 2).as_subclass(ComputedWeight), source * 2
    scores = torch.ones(2, 3) @ weight.t() + nn.functional.embedding(torch.tensor([1, 1]), weight).sum()
    assert type(scores) is torch.Tensor
    expected = torch.ones(2, 3) @ plain.t() + plain[1].sum() * 2
    assert torch.allclose(scores, expected, atol=1e-6)
    (found,), (wanted,) = (torch.autograd.grad(s.square().sum(), source) for s in (scores, expected))
    assert torch.allclose(found, wanted, atol=1e-6)
    assert weight.shape == torch.Size([4, 3])
    assert isinstance(weight.shape, torch.Size)
    assert (weight.device, weight.dtype) == (torch.device("cpu"), torch.float32)
    assert repr(weight).startswith("ComputedWeight([[")


def test_what_has_memory_of_its_own_may_be_written_to(weight):
    for own in (weight.clone(), weight + 0, torch.zeros(4, 3).copy_(weight), weight.detach().clone()):
        assert type(own) is torch.Tensor
        own.detach().zero_()
