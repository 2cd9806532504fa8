"""Tables with row-sparse gradients for the optimizer, and copies of all that it keeps."""

import copy

import torch
from torch import nn

MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")


def generator_of(seed):
    return torch.Generator().manual_seed(seed)


def table_of(rows, width, seed=0, dtype=torch.float64):
    return nn.Parameter(torch.randn(rows, width, generator=generator_of(seed), dtype=dtype))


def row_sparse(rows, values, shape, coalesced=False):
    """A row-sparse gradient, as an embedding with sparse=True gives; rows may come twice."""
    rows = torch.as_tensor(rows, dtype=torch.int64).reshape(1, -1)
    gradient = torch.sparse_coo_tensor(rows, values, shape, check_invariants=True)
    return gradient.coalesce() if coalesced else gradient


def snapshot(optimizer):
    """Copies of all weights and states, to compare bit for bit."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    weights = [p.detach().clone() for p in parameters]
    return weights, copy.deepcopy([dict(optimizer.state.get(p, {})) for p in parameters])


def assert_unchanged(optimizer, before):
    weights, states = snapshot(optimizer)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(weights, before[0], strict=True))
    for mine, theirs in zip(states, before[1], strict=True):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(torch.as_tensor(mine[k]), torch.as_tensor(theirs[k])) for k in mine)
