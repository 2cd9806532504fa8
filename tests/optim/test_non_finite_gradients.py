"""A gradient that is not finite is named, and changes nothing."""

import math

import pytest
import torch
from torch import nn

from mixdim.optim import SparseAMSGrad
from row_gradients import assert_unchanged, row_sparse, snapshot, table_of


def stepped_model(named=True):
    """A layer after one step, so that there is state to protect, with finite gradients."""
    model = nn.ModuleDict({"table": nn.Embedding(20, 3, sparse=True), "top": nn.Linear(3, 1)})
    optimizer = SparseAMSGrad(model.named_parameters() if named else model.parameters())
    model["top"](model["table"](torch.tensor([1, 17, 17]))).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("coalesced", [False, True])
def test_in_a_row_it_is_named_and_nothing_changes(bad, coalesced):
    model, optimizer = stepped_model()
    values = torch.tensor([[0.0, 1.0, 2.0], [0.0, bad, 0.0]])
    model["table"].weight.grad = row_sparse([1, 17], values, (20, 3), coalesced)
    before = snapshot(optimizer)
    message = r"^gradient of parameter 'table\.weight' is not finite at row 17$"
    with pytest.raises(FloatingPointError, match=message):
        optimizer.step()
    assert_unchanged(optimizer, before)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_in_the_last_dense_parameter_it_stops_the_tables_too(bad):
    model, optimizer = stepped_model()
    model["top"].bias.grad.fill_(bad)
    before = snapshot(optimizer)
    with pytest.raises(FloatingPointError, match=r"gradient of parameter 'top\.bias' is not finite"):
        optimizer.step()
    assert_unchanged(optimizer, before)


def test_at_the_first_step_no_state_is_left_behind():
    tables = [table_of(3, 2), table_of(3, 2)]
    optimizer = SparseAMSGrad(tables)
    tables[0].grad, tables[1].grad = (torch.full((3, 2), x).double() for x in (1.0, math.nan))
    with pytest.raises(FloatingPointError):
        optimizer.step()
    assert len(optimizer.state) == 0


def test_a_parameter_without_a_name_is_named_by_its_place():
    model, optimizer = stepped_model(named=False)
    model["top"].weight.grad[0, 2] = math.nan
    message = r"gradient of parameter 1 of group 0 with shape \(1, 3\) is not finite at row 0"
    with pytest.raises(FloatingPointError, match=message):
        optimizer.step()


def test_a_scalar_is_named_too():
    scale = nn.Parameter(torch.tensor(1.0))
    scale.grad = torch.tensor(math.inf)
    with pytest.raises(FloatingPointError, match=r"parameter 'scale' is not finite"):
        SparseAMSGrad([("scale", scale)]).step()


@pytest.mark.parametrize("sparse", [False, True])
def test_the_parameter_may_say_what_its_rows_are(sparse):
    table = table_of(20, 2)
    table.describe_row = lambda row: f"feature 'user', row {row - 3}"
    gradient = torch.zeros(20, 2, dtype=torch.float64)
    gradient[11, 1] = math.nan
    table.grad = row_sparse([11], gradient[[11]], (20, 2)) if sparse else gradient
    with pytest.raises(
        FloatingPointError, match="parameter 'table' is not finite at feature 'user', row 8"
    ):
        SparseAMSGrad([("table", table)]).step()


def test_large_gradients_whose_sum_is_not_finite_are_fine():
    table = table_of(4, 2, dtype=torch.float32)
    table.grad = torch.full((4, 2), 3e38)
    SparseAMSGrad([table]).step()
    assert table.isfinite().all()


def test_duplicates_that_add_up_to_infinity_are_found():
    table = table_of(4, 2, dtype=torch.float32)
    table.grad = row_sparse([3, 3], torch.full((2, 2), 3e38), (4, 2))
    with pytest.raises(FloatingPointError, match="at row 3"):
        SparseAMSGrad([table]).step()
