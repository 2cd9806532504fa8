"""Layers of several storages: what kernels and plain PyTorch find together is the dense matrix's."""

import pytest
import torch
from both_paths import plain_path
from hypothesis import given
from hypothesis import strategies as st

import mixdim
from mixdim import FeatureEmbeddings, kernels
from small_layers import generator_of, seeds
from strategies import random_bags, random_ids, stored_plans


def dense_gradients(layer):
    gradients = {}
    for name, parameter in layer.named_parameters():
        found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        gradients[name] = found.to_dense() if found.is_sparse else found
    layer.zero_grad()
    return gradients


def rows_of(layer, plan, ids):
    """The vectors of ids, taken from the dense matrices, with zeros for padding."""
    columns = [
        layer.dense_weight(name)[ids[:, i].clamp(min=0).to(torch.int64)] for i, name in enumerate(plan)
    ]
    return torch.stack(columns, 1) * (ids >= 0)[:, :, None]


@given(stored_plans(), st.integers(0, 5), seeds, st.booleans(), st.booleans())
def test_single_ids_and_their_gradients(plan, batch, seed, sparse, padded):
    generator = generator_of(seed)
    layer = FeatureEmbeddings(
        plan, sparse=sparse, padding_id=-1 if padded else None, generator=generator_of(seed)
    )
    ids = random_ids(plan, batch, generator)
    if padded:
        ids[torch.rand(ids.shape, generator=generator) < 0.3] = -1
    upstream = torch.randn(batch, plan.num_features, plan.base_dim, generator=generator)
    found = layer(ids)
    (found * upstream).sum().backward()
    gradients = dense_gradients(layer)
    with plain_path():
        torch.testing.assert_close(layer(ids), found, rtol=1e-4, atol=1e-5)
    expected = rows_of(layer, plan, ids)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    (expected * upstream).sum().backward()
    for name, gradient in dense_gradients(layer).items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-5, msg=name)


@given(stored_plans(), st.integers(0, 4), seeds, st.sampled_from(["sum", "mean"]), st.booleans())
def test_bags_and_their_gradients(plan, batch, seed, pooling, weighted):
    generator = generator_of(seed)
    layer = FeatureEmbeddings(plan, pooling=pooling, generator=generator_of(seed))
    values, offsets, _ = random_bags(plan, batch, generator)
    weights = torch.rand(len(values), generator=generator) if weighted and pooling == "sum" else None
    found = layer.bags(values, offsets, weights)
    found.square().sum().backward()
    gradients = dense_gradients(layer)
    with plain_path():
        plain = layer.bags(values, offsets, weights)
        torch.testing.assert_close(plain, found, rtol=1e-4, atol=1e-5)
        plain.square().sum().backward()
    for name, gradient in dense_gradients(layer).items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.skipif(not kernels.available(), reason="no kernels are compiled")
@pytest.mark.parametrize("bad", [-1, 9])
def test_an_id_out_of_range_is_named_before_any_kernel_sees_it(bad):
    plan = mixdim.plan({"a": 9, "b": 9}, temperature=0, base_dim=2)
    layer = FeatureEmbeddings(plan.with_storage("b", mixdim.Hashed(2, buckets=2)))
    ids = torch.tensor([[bad, 0]])
    with pytest.raises(IndexError, match=f"id {bad} of feature 'a' is out of range"):
        layer(ids)
