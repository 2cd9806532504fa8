"""Options, parameters and gradients that it cannot work with are refused."""

import math

import pytest
import torch
from torch import nn

from mixdim.optim import SparseAMSGrad
from row_gradients import table_of


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lr": -0.1}, ValueError, r"lr must be at least 0, got -0\.1"),
        ({"lr": math.nan}, ValueError, "lr must be finite, got nan"),
        ({"lr": "fast"}, TypeError, "lr must be a number, got 'fast'"),
        ({"betas": (0.9, 1.0)}, ValueError, r"betas must be two .* \[0, 1\), got \(0\.9, 1\.0\)"),
        ({"betas": (-0.1, 0.9)}, ValueError, r"betas must be two .* got \(-0\.1, 0\.9\)"),
        ({"betas": (0.9,)}, ValueError, r"betas must be two .* got \(0\.9,\)"),
        ({"betas": (0.9, math.nan)}, ValueError, "betas must be finite, got nan"),
        ({"eps": -1e-8}, ValueError, "eps must be at least 0, got -1e-08"),
        ({"weight_decay": -0.1}, ValueError, r"weight_decay must be at least 0, got -0\.1"),
    ],
)
def test_options_are_checked_for_all_and_for_each_group(options, error, message):
    with pytest.raises(error, match=message):
        SparseAMSGrad([table_of(2, 2)], **options)
    optimizer = SparseAMSGrad([table_of(2, 2)])
    with pytest.raises(error, match=message):
        optimizer.add_param_group({"params": [table_of(2, 2)], **options})
    assert len(optimizer.param_groups) == 1


def test_complex_and_sparse_parameters_are_refused():
    wave = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(TypeError, match=r"parameter 'wave' must be real .* got torch\.complex64"):
        SparseAMSGrad([("wave", wave)])
    matrix = nn.Parameter(torch.eye(2).to_sparse())
    with pytest.raises(TypeError, match=r"parameter 0 of group 0 .* dense, .* torch\.sparse_coo"):
        SparseAMSGrad([matrix])


def test_a_gradient_sparse_in_two_dimensions_is_refused():
    idle, table = table_of(2, 2), table_of(2, 2)
    idle.grad = torch.ones(2, 2, dtype=torch.float64)
    table.grad = torch.eye(2, dtype=torch.float64).to_sparse()
    optimizer = SparseAMSGrad([("idle", idle), ("table", table)])
    with pytest.raises(
        ValueError, match=r"gradient of parameter 'table' .* got torch\.sparse_coo with sparse_dim 2"
    ):
        optimizer.step()
    assert torch.equal(idle, table_of(2, 2))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_a_gradient_of_another_sparse_layout_is_refused():
    """PyTorch 2.13 lets no such gradient through; a parameter of a class of its own might."""

    class Odd(nn.Parameter):
        grad = torch.eye(2).to_sparse_csr()

    with pytest.raises(ValueError, match=r"sparse_dim 1, got torch\.sparse_csr$"):
        SparseAMSGrad([Odd(torch.ones(2, 2))]).step()
