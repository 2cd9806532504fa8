import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

import mixdim
from mixdim.planning.budget import BudgetTooSmallError
from mixdim.planning.methods import METHODS, method_named, plan_by_method

WAYS = [*((name, 32) for name in METHODS), ("mixed", 8), ("octaves", 4), ("cut", 8), ("uniform", 8)]


def features(*counts, ids=1.0):
    named = {f"f{i}": np.array(c) for i, c in enumerate(counts)}
    return SimpleNamespace(
        cardinalities={name: len(c) for name, c in named.items()},
        counts=named,
        ids_per_sample=dict.fromkeys(named, ids),
    )


def planned(name, some, num_bytes, base_dim, bits=32):
    width = base_dim if method_named(name).has_width else None
    return plan_by_method(name, some, num_bytes, base_dim=width, bits=bits)


def written_bytes(plan):
    """What safetensors writes of a layer as it is served, without its header."""
    layer = mixdim.FeatureEmbeddings(plan.trainable()).quantized(plan.least_bits)
    assert layer.plan.features == plan.features
    page = save({key: value.contiguous() for key, value in layer.state_dict().items()})
    header = int.from_bytes(page[:8], "little")
    assert json.loads(page[8 : 8 + header])
    return len(page) - 8 - header


many_counts = st.lists(
    st.lists(st.integers(0, 40), min_size=1, max_size=30), min_size=1, max_size=4
).filter(lambda counts: all(map(any, counts)))


@pytest.mark.parametrize(("name", "bits"), WAYS)
@settings(max_examples=30, deadline=None)
@given(counts=many_counts, num_bytes=st.integers(4, 4000), base_dim=st.sampled_from([1, 2, 3, 8]))
def test_a_plan_costs_what_its_file_does_and_never_more_than_asked(
    name, bits, counts, num_bytes, base_dim
):
    some = features(*counts)
    try:
        plan = planned(name, some, num_bytes, base_dim, bits)
    except BudgetTooSmallError:
        return
    assert plan.nbytes() == written_bytes(plan) <= num_bytes
    assert plan.least_bits in (bits, 32)  # shared rows alone have 32
    assert {feature.name: feature.rows for feature in plan.features} == some.cardinalities
    assert mixdim.Plan.from_json(plan.to_json()) == plan


def cut_by_brute_force(counts, width, budget):
    """The least count that fits when rarer rows of a feature share one, and what it keeps and costs."""
    for least in range(max(map(max, counts)) + 2):
        kept = [sum(c >= least for c in own) for own in counts]
        cost = width * sum(k + (k < len(own)) for k, own in zip(kept, counts, strict=True))
        if cost <= budget:
            return least, kept, cost
    return None


@given(many_counts, st.sampled_from([1, 2, 4]), st.integers(1, 200))
def test_a_cut_keeps_what_is_asked_for_most_and_spends_what_is_left(counts, width, budget):
    counts = [sorted(own, reverse=True) for own in counts]  # ids are ranks: nothing else to pay
    best = cut_by_brute_force(counts, width, budget)
    if best is None:
        with pytest.raises(BudgetTooSmallError, match="a vector of"):
            planned("cut", features(*counts), 4 * budget, width)
        return
    least, kept, cost = best
    plan = planned("cut", features(*counts), 4 * budget, width)
    assert plan.provenance == {"rule": "cut", "least_count": least}
    found = [sum(block.size for block in feature.blocks if block.dim) for feature in plan.features]
    assert all(mine >= least_kept for mine, least_kept in zip(found, kept, strict=True))
    for own, mine, least_kept in zip(counts, found, kept, strict=True):
        assert all(count == least - 1 for count in own[least_kept:mine])
    left = (budget - cost) // width
    missing = sum(own.count(least - 1) for own in counts)
    assert sum(found) - sum(kept) == min(left, missing)


def test_large_features_are_hashed_and_small_ones_stay():
    some = features(range(100, 0, -1), [5, 3, 1])
    plan = planned("hashed", some, 4 * 4 * (20 + 3), 4)
    assert [block.storage for block in plan.blocks] == [mixdim.Hashed(4, 20, 1), mixdim.Rows(4)]
    double = planned("double-hashed", some, 4 * 4 * (20 + 3), 4)
    assert double.blocks[0].storage == mixdim.Hashed(4, 20, 2)


@given(st.integers(2, 3000), st.integers(2, 400))
def test_quotients_are_as_fine_as_the_budget_allows(rows, stored):
    fewest = min(b + -(-rows // b) for b in range(1, rows + 1))
    if stored < min(fewest, rows):
        with pytest.raises(BudgetTooSmallError):
            planned("quotient-remainder", features([1] * rows), 4 * stored, 1)
        return
    storage = planned("quotient-remainder", features([1] * rows), 4 * stored, 1).blocks[0].storage
    if stored >= rows:
        assert storage == mixdim.Rows(1)
    else:
        fitting = [b for b in range(2, rows + 1) if b + -(-rows // b) <= stored]
        assert storage == mixdim.QuotientRemainder(1, fitting[0])


def test_a_plan_in_few_bits_trains_as_much_as_fits_when_it_is_quantized():
    some = features(range(1000, 0, -1))
    plan = planned("cut", some, 1600, 4, bits=8)
    assert 1500 < plan.nbytes() <= 1600 < plan.trainable().nbytes()
    assert plan.trainable().provenance["rule"] == "cut"
    assert planned("cut", some, 1600, 4).nbytes() <= 1600
    with pytest.raises(BudgetTooSmallError, match="800 bytes in 8 bits are too few"):
        planned("uniform", some, 800, None, bits=8)
    with pytest.raises(ValueError, match=r"bits must be 1, 2, .*, got 7"):
        planned("cut", some, 1600, 4, bits=7)


@pytest.mark.parametrize(
    ("name", "base_dim", "message"),
    [
        ("magic", 4, "method must be one of uniform, mixed, .* got 'magic'"),
        ("int8:mixed", 4, r"\(bits are an option of their own\), got 'int8:mixed'"),
        ("uniform", 4, "method 'uniform' finds its own base_dim, got 4"),
        ("cut", 0, "base_dim must be at least 1, got 0"),
    ],
)
def test_other_methods_and_options_are_refused(name, base_dim, message):
    with pytest.raises(ValueError, match=message):
        plan_by_method(name, features([2, 1]), 100, base_dim=base_dim)


def test_a_layer_of_every_method_trains():
    some = features(range(60, 0, -1), [9, 4, 2, 1], ids=1.0)
    ids = torch.tensor([[0, 0], [59, 3], [30, 1]])
    for name in METHODS:
        layer = mixdim.FeatureEmbeddings(planned(name, some, 300, 2), sparse=True)
        layer(ids).sum().backward()
        assert all(parameter.grad is not None for parameter in layer.parameters()), name
