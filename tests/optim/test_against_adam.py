"""With every row touched it is AMSGrad, as PyTorch's Adam does it, and AdamW with weight decay."""

import copy

import pytest
import torch
from torch import nn

from mixdim.optim import SparseAMSGrad
from row_gradients import MOMENTS, generator_of, row_sparse, table_of


@pytest.mark.parametrize("weight_decay", [0.0, 0.7])
@pytest.mark.parametrize("kind", ["dense", "coalesced", "uncoalesced", "by turns"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, {"rtol": 1e-5, "atol": 1e-6}), (torch.float64, {"rtol": 1e-12, "atol": 1e-13})],
)
def test_with_every_row_touched_it_is_amsgrad(kind, dtype, tolerance, weight_decay):
    mine, theirs = table_of(7, 3, dtype=dtype), table_of(7, 3, dtype=dtype)
    options = {"lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": weight_decay}
    optimizer = SparseAMSGrad([mine], **options)
    kind_of_adam = torch.optim.AdamW if weight_decay else torch.optim.Adam
    reference = kind_of_adam([theirs], amsgrad=True, **options)
    generator = generator_of(1)
    for number in range(200):
        # Gradients that shrink, so that the maximum of the second moment outlives the moment.
        theirs.grad = torch.randn(7, 3, generator=generator, dtype=dtype) * 0.97**number
        rows = torch.randperm(7, generator=generator)
        if kind == "dense" or (kind == "by turns" and number % 3 == 0):
            mine.grad = theirs.grad.clone()
        else:
            mine.grad = row_sparse(rows, theirs.grad[rows], (7, 3), coalesced=kind == "coalesced")
        optimizer.step()
        reference.step()
    torch.testing.assert_close(mine, theirs, **tolerance)
    for moment in MOMENTS:
        found, expected = optimizer.state[mine][moment], reference.state[theirs][moment]
        torch.testing.assert_close(found, expected, **tolerance)
    assert (optimizer.state[mine]["max_exp_avg_sq"] > optimizer.state[mine]["exp_avg_sq"]).any()


def test_tables_of_many_pieces_are_the_same(monkeypatch):
    monkeypatch.setattr("mixdim.optim.PIECE", 10)  # three rows of three numbers at a time
    test_with_every_row_touched_it_is_amsgrad("dense", torch.float64, {}, 0.7)
    test_with_every_row_touched_it_is_amsgrad("uncoalesced", torch.float64, {}, 0.7)


@pytest.mark.parametrize("shape", [(), (1,), (5,), (0, 3), (3, 0), (2, 3, 4)])
def test_dense_parameters_of_any_shape(shape):
    mine = nn.Parameter(torch.randn(shape, generator=generator_of(0)))
    theirs = nn.Parameter(mine.detach().clone())
    optimizer = SparseAMSGrad([mine], lr=0.1)
    reference = torch.optim.Adam([theirs], lr=0.1, amsgrad=True)
    for seed in range(5):
        mine.grad = torch.randn(shape, generator=generator_of(seed))
        theirs.grad = mine.grad.clone()
        optimizer.step()
        reference.step()
    torch.testing.assert_close(mine, theirs)


def test_a_transposed_parameter_is_updated_in_its_place():
    storage = torch.ones(3, 4)
    mine, theirs = nn.Parameter(storage.t()), nn.Parameter(torch.ones(4, 3))
    mine.grad = torch.randn(4, 3, generator=generator_of(0))
    theirs.grad = mine.grad.clone()
    SparseAMSGrad([mine]).step()
    torch.optim.Adam([theirs], amsgrad=True).step()
    torch.testing.assert_close(mine, theirs)


def test_it_goes_on_from_the_state_of_adam():
    mine, theirs = table_of(4, 2), table_of(4, 2)
    reference = torch.optim.Adam([theirs], lr=0.1, amsgrad=True)
    theirs.grad = table_of(4, 2, seed=1).detach()
    reference.step()
    optimizer = SparseAMSGrad([mine])
    optimizer.load_state_dict(copy.deepcopy(reference.state_dict()))  # torch would share it
    with torch.no_grad():
        mine.copy_(theirs)
    mine.grad = theirs.grad.to_sparse(1)
    optimizer.step()
    reference.step()
    torch.testing.assert_close(mine, theirs)
