"""Small layers, and the same as a loop over features."""

import torch
from hypothesis import strategies as st

import mixdim
from loop_oracle import LoopEmbeddings
from mixdim import FeatureEmbeddings

seeds = st.integers(0, 2**32 - 1)


def generator_of(seed):
    return torch.Generator().manual_seed(seed)


def twins(plan, seed, dtype=torch.float64, **options):
    """A layer and the loop over features, with the same weights, for ids that are ranks."""
    loop = LoopEmbeddings(plan, generator=generator_of(seed), dtype=dtype)
    layer = FeatureEmbeddings(plan, dtype=dtype, ids={}, **options)
    layer.load_state_dict(loop.packed())
    return layer, loop


def assert_same_gradients(layer, loop, **tolerance):
    expected = loop.gradients()
    found = {name: parameter.grad for name, parameter in layer.named_parameters()}
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        gradient = torch.zeros_like(expected[name]) if gradient is None else gradient
        gradient = gradient.to_dense() if gradient.is_sparse else gradient
        torch.testing.assert_close(gradient, expected[name], **tolerance)


def banded_plan(**options):
    """One wide whole feature, one banded feature with shuffled ids, one narrow whole feature."""
    counts = {"item": [1, 40, 3, 20, 2, 2, 1, 0, 10, 1]}
    defaults = {"temperature": 0.4, "base_dim": 16, "counts": counts, "bands": {"item": 4}}
    return mixdim.plan({"day": 3, "item": 10, "user": 90}, **{**defaults, **options})
