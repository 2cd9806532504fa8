"""The kernel writes by addresses: it must never be called with state, or rows, that do not fit."""

import copy

import pytest
import torch
from torch import nn

import mixdim


def stepped(rows, *, sparse=True):
    table = nn.Embedding(rows, 4, sparse=sparse)
    optimizer = mixdim.SparseAMSGrad(table.named_parameters())
    table(torch.tensor([0, rows - 1])).sum().backward()
    optimizer.step()
    return table, optimizer


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("rows", [1_000, 1_200, 300_000])
def test_loading_it_is_refused_and_changes_nothing(rows, sparse):
    _, small = stepped(1_100, sparse=sparse)
    table, optimizer = stepped(rows, sparse=sparse)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=rf"'weight': exp_avg has shape \(1100, 4\), .* \({rows}, 4"):
        optimizer.load_state_dict(small.state_dict())
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for key, value in before["state"][0].items():
        assert torch.equal(torch.as_tensor(after["state"][0][key]), torch.as_tensor(value))
    table(torch.tensor([rows - 1])).sum().backward()
    optimizer.step()


def test_state_without_all_moments_is_of_another_optimizer():
    table, optimizer = stepped(5, sparse=False)
    adam = torch.optim.Adam(table.parameters())
    table.weight.grad = torch.ones_like(table.weight)
    adam.step()
    with pytest.raises(ValueError, match="has no max_exp_avg_sq: it is of another optimizer"):
        optimizer.load_state_dict(adam.state_dict())


@pytest.mark.parametrize("sparse", [False, True])
def test_a_table_whose_data_was_replaced_raises(sparse):
    table, optimizer = stepped(1_000, sparse=sparse)
    table.weight.data = torch.zeros(10, 4)
    table.weight.grad = None
    table(torch.tensor([3])).sum().backward()
    with pytest.raises(ValueError, match=r"exp_avg has shape \(1000, 4\), the parameter \(10, 4\)"):
        optimizer.step()
    optimizer.state.clear()
    optimizer.step()
    assert optimizer.state[table.weight]["exp_avg"].shape == (10, 4)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_gradient_of_the_table_before_raises(sparse):
    table, optimizer = stepped(1_000, sparse=sparse)
    optimizer.zero_grad()
    table(torch.tensor([999])).sum().backward()
    table.weight.data = torch.zeros(10, 4)
    optimizer.state.clear()
    with pytest.raises(
        ValueError, match=r"has shape \(1000, 4\), the parameter \(10, 4\): was its data"
    ):
        optimizer.step()


@pytest.mark.parametrize("rows", [[3, 10], [-1, 3], [2**40, 2**41], [4, 3], [3, 3]])
def test_rows_that_are_no_rows_of_the_table_raise_and_nothing_changes(rows):
    table, optimizer = stepped(10)
    before = table.weight.detach().clone()
    table.weight.grad = torch.sparse_coo_tensor(
        torch.tensor([rows]), torch.ones(2, 4), (10, 4), is_coalesced=True, check_invariants=False
    )
    with pytest.raises(IndexError, match="parameter 'weight' must name rows 0 to 9 in ascending order"):
        optimizer.step()
    assert torch.equal(table.weight, before)
