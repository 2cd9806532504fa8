import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import mixdim


def with_gradients(sparse, seed, scale):
    generator = torch.Generator().manual_seed(seed)
    plan = mixdim.plan([3, 40], temperature=0.3, base_dim=8)
    layer = mixdim.FeatureEmbeddings(plan, sparse=sparse, generator=generator)
    table = nn.Embedding(9, 2, sparse=sparse)
    ids = torch.stack([torch.randint(3, (6,), generator=generator) for _ in range(2)], 1)
    pull = scale * torch.randn(6, 2, 8, generator=generator)
    (layer(ids) * pull).sum().backward()
    (table(ids) * pull[..., :2]).sum().backward()  # not coalesced
    unused = nn.Parameter(torch.ones(3))
    return [*layer.parameters(), table.weight, unused]


@settings(max_examples=40)
@given(
    st.integers(0, 1000),
    st.sampled_from([1e-3, 1.0, 1e3]),
    st.sampled_from([1.0, 2.0, 3.5, math.inf]),
    st.sampled_from([0.1, 1.0, 100.0]),
)
def test_row_sparse_gradients_become_what_dense_ones_do(seed, scale, norm_type, max_norm):
    mine, theirs = (with_gradients(sparse, seed, scale) for sparse in (True, False))
    found = mixdim.clip_grad_norm_(mine, max_norm, norm_type)
    expected = torch.nn.utils.clip_grad_norm_(theirs, max_norm, norm_type)
    torch.testing.assert_close(found, expected)
    for parameter, dense in zip(mine, theirs, strict=True):
        if dense.grad is not None:
            torch.testing.assert_close(parameter.grad.to_dense(), dense.grad)


def test_one_tensor_or_none_may_be_given():
    parameter = nn.Parameter(torch.ones(4))
    assert mixdim.clip_grad_norm_(parameter, 1.0) == 0.0
    parameter.grad = torch.ones(4)
    assert mixdim.clip_grad_norm_(parameter, 1.0) == 2.0
    torch.testing.assert_close(parameter.grad, torch.full((4,), 0.5))


def test_a_norm_that_is_not_finite_raises_if_asked_and_changes_nothing():
    parameters = with_gradients(True, 0, math.inf)
    before = copy.deepcopy([p.grad for p in parameters if p.grad is not None])
    with pytest.raises(RuntimeError, match="non-finite"):
        mixdim.clip_grad_norm_(parameters, 1.0, error_if_nonfinite=True)
    after = [p.grad for p in parameters if p.grad is not None]
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one.to_dense(), other.to_dense(), equal_nan=True)


def test_clipped_gradients_step_as_dense_ones_do():
    weights = []
    for sparse in (True, False):
        parameters = with_gradients(sparse, 3, 100.0)
        mixdim.clip_grad_norm_(parameters, 0.5)
        mixdim.SparseAMSGrad(parameters, lr=0.1).step()
        weights.append([p.detach() for p in parameters[:-2]])
    for mine, theirs in zip(*weights, strict=True):
        torch.testing.assert_close(mine, theirs)
