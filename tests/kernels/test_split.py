"""The split form of lookup and interaction: exact, with memory of its own, and prepared once."""

import gc

import numpy as np
import pytest
import torch
from both_paths import gradients_of, threads
from hypothesis import given, settings
from hypothesis import strategies as st

import mixdim
from mixdim.kernels import pool
from mixdim.kernels import split as split_module
from strategies import examples, feature_arguments, quiet_plan, random_ids

# Of the largest number of a tensor: sums of up to 600 products of float32 numbers, taken in two orders.
BOUND = 3e-5


@pytest.fixture(autouse=True)
def _force_split(monkeypatch):
    monkeypatch.setenv("MIXDIM_INTERACTION", "split")


def columns_of(plan):
    return plan.base_dim + (plan.num_features + 1) * plan.num_features // 2


def make_case(plan, batch, seed, *, padding=True, dtype=torch.int64, **options):
    """A layer, ids of which some repeat and some are padding, dense vectors, and what to pull at."""
    generator = torch.Generator().manual_seed(seed)
    options = {"padding_id": -1 if padding else None, "sparse": seed % 2 == 0, **options}
    layer = mixdim.FeatureEmbeddings(plan, generator=generator, **options)
    ids = random_ids(plan, batch, generator, dtype)
    if padding:
        ids[torch.rand(ids.shape, generator=generator) < 0.1] = -1
    dense = torch.randn(batch, plan.base_dim, generator=generator).requires_grad_()
    return layer, ids, dense, torch.randn(batch * columns_of(plan), generator=generator)


def results_of(layer, ids, dense, pull):
    value, gradients = gradients_of(
        lambda: layer.interact(dense, ids), [dense, *layer.parameters()], pull
    )
    return [value, *(gradient.to_dense() for gradient in gradients)]


def expected_of(layer, ids, dense, pull):
    """The same in float64 by the plain path."""
    exact = mixdim.FeatureEmbeddings(layer.plan, padding_id=layer.padding_id, dtype=torch.float64)
    exact.load_state_dict(layer.state_dict())
    return results_of(exact, ids, dense.detach().double().requires_grad_(), pull.double())


def assert_near(found, expected):
    for mine, theirs in zip(found, expected, strict=True):
        scale = float(theirs.abs().max()) if theirs.numel() else 0.0
        torch.testing.assert_close(mine.double(), theirs, rtol=0, atol=BOUND * scale + 1e-9)


@settings(max_examples=examples(80))
@given(
    feature_arguments(most_features=7, most_rows=60),
    st.sampled_from([0.0, 0.2, 0.5, 1.0]),
    st.integers(1, 100),
    st.sampled_from([0, 1, 15, 16, 49, 300]),
    st.integers(0, 1000),
)
def test_it_is_exact_and_the_same_with_any_number_of_threads(rows, temperature, base_dim, batch, seed):
    plan = quiet_plan(**rows, temperature=temperature, base_dim=base_dim)
    case = make_case(plan, batch, seed)
    found = []
    for count in (1, 2, 3):
        with threads(count):
            found.append(results_of(*case))
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))
    assert_near(found[0], expected_of(*case))


@settings(max_examples=examples(15))
@given(
    st.lists(st.sampled_from([1, 2, 3, 9, 40, 300, 2000]), min_size=1, max_size=9),
    st.lists(st.integers(1, 600), min_size=9, max_size=9),
    st.integers(1, 600),
    st.sampled_from([1, 33, 130]),
    st.integers(0, 1000),
)
def test_it_is_exact_at_any_width(rows, widths, base_dim, batch, seed):
    plan = quiet_plan(rows, temperature=0, base_dim=base_dim)
    for name, width in zip(plan, widths, strict=False):
        plan = plan.with_storage(name, mixdim.Rows(min(width, base_dim)))
    case = make_case(plan, batch, seed, padding=False)
    assert_near(results_of(*case), expected_of(*case))


def wide_plan():
    """One-hot features, wide and narrow ones, and one in bands whose ids are shuffled."""
    counts = {"item": np.random.default_rng(0).integers(0, 400, 500)}
    rows = {"day": 3, "hour": 24, "area": 100, "site": 300, "item": 500, "user": 20_000}
    return quiet_plan(rows, counts=counts, bands={"item": 4}, temperature=0.4, base_dim=100)


def test_a_plan_with_everything_is_exact():
    case = make_case(wide_plan(), 700, 0)
    form = case[0].training_view.split_form
    assert 0 < form.num_one_hot < form.num_features  # one-hot and narrow features,
    assert 0 < form.z_columns < form.columns - form.narrow  # some lifted and some not,
    assert (form.elements[0] > 0).all()  # elements of every size
    assert_near(results_of(*case), expected_of(*case))


def test_of_many_rows_those_of_two_vectors_are_not_lifted_and_exact():
    plan = quiet_plan([10_000, 100, 10_000], temperature=0, base_dim=200)
    for name, width in zip(plan, (13, 13, 17), strict=True):
        plan = plan.with_storage(name, mixdim.Rows(width))
    case = make_case(plan, 300, 0)
    assert list(case[0].training_view.split_form.is_lifted) == [False, True, True]
    assert_near(results_of(*case), expected_of(*case))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_ids_and_dense_vectors_may_lie_anyhow_in_memory(dtype):
    layer, ids, dense, pull = make_case(wide_plan(), 40, 1, dtype=dtype)
    expected = results_of(layer, ids, dense, pull)
    turned = ids.t().contiguous().t()
    wide = dense.detach().t().contiguous().t().requires_grad_()
    for mine, theirs in zip(results_of(layer, turned, wide, pull), expected, strict=True):
        assert torch.equal(mine, theirs)


def test_a_row_that_does_not_occur_takes_no_part_whatever_is_in_it():
    layer, ids, dense, pull = make_case(wide_plan(), 50, 0, padding=False)
    ids[:, 0], ids[:, 1] = 1, 5  # of the one-hot features
    expected = results_of(layer, ids, dense, pull)
    touched = [gradient != 0 for gradient in expected[2:]]
    with torch.no_grad():
        for parameter, used in zip(layer.parameters(), touched, strict=True):
            if parameter.dim() == 2:  # a table
                parameter[~used.any(1)] = float("nan")
    found = results_of(layer, ids, dense, pull)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))


def test_only_touched_rows_are_in_a_sparse_gradient():
    layer, ids, dense, pull = make_case(wide_plan(), 30, 0, sparse=True)
    results_of(layer, ids, dense, pull)
    for name, parameter in layer.named_parameters():
        if name.startswith("table"):
            assert parameter.grad.is_sparse
    touched = sum(p.grad._nnz() for n, p in layer.named_parameters() if n.startswith("table"))
    assert touched == sum(len(set(column.tolist()) - {-1}) for column in ids.t())


def test_several_lookups_may_wait_for_their_gradients():
    """What a forward pass prepared stays its own, whatever comes before its backward pass."""
    layer, ids, dense, pull = make_case(wide_plan(), 64, 0)
    alone = [results_of(layer, rows, dense, pull) for rows in (ids, ids.flip(0))]
    outs = [layer.interact(dense, rows) for rows in (ids, ids.flip(0))]
    for number in (1, 0):
        layer.zero_grad()
        dense.grad = None
        for _ in range(2):  # and a gradient may be taken twice
            outs[number].backward(pull.view_as(outs[number]), retain_graph=True)
        found = [p.grad.to_dense() for p in (dense, *layer.parameters())]
        for mine, theirs in zip(found, alone[number][1:], strict=True):
            torch.testing.assert_close(mine, 2 * theirs)


def test_wrong_ids_raise_as_everywhere():
    layer, ids, dense, _ = make_case(wide_plan(), 3, 0)
    ids[1, 3] = 300
    with pytest.raises(IndexError, match="id 300 of feature 'site' is out of range"):
        layer.interact(dense, ids)


def test_what_changed_between_forward_and_backward_raises():
    layer, ids, dense, _ = make_case(wide_plan(), 3, 0)
    for changed in (ids, layer.table_100, layer.lift):
        out = layer.interact(dense, ids).sum()
        with torch.no_grad():
            changed.fill_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.backward()


def test_ids_changed_behind_the_back_of_autograd_do_not_matter():
    """The backward pass does not read them again."""
    layer, ids, dense, pull = make_case(wide_plan(), 20, 0)
    expected = results_of(layer, ids, dense, pull)
    layer.zero_grad()
    dense.grad = None
    out = layer.interact(dense, ids)
    ids.data.fill_(10**6)
    out.backward(pull.view_as(out))
    assert torch.equal(dense.grad, expected[1])


@pytest.mark.parametrize("name", ["table_100", "lift"])
def test_weights_whose_data_was_replaced_raise(name):
    layer, ids, dense, _ = make_case(wide_plan(), 3, 0)
    out = layer.interact(dense, ids).sum()
    weight = getattr(layer, name)
    weight.data = weight.data[:0].clone()
    with pytest.raises(RuntimeError, match="was its data replaced"):
        out.backward()
    with pytest.raises(RuntimeError, match="was its data replaced"):
        layer.interact(dense, ids)


def test_dense_vectors_whose_data_was_replaced_raise():
    layer, ids, dense, _ = make_case(wide_plan(), 3, 0)
    out = layer.interact(dense, ids).sum()
    dense.data = torch.ones(1, 1)
    with pytest.raises(RuntimeError, match=r"dense has shape \(1, 1\) where \(3, 100\) is needed"):
        out.backward()


def test_memory_is_used_again_and_does_not_pile_up(monkeypatch):
    monkeypatch.setattr(pool, "_free", [])  # what other tests left may fit or not
    layer, ids, dense, pull = make_case(wide_plan(), 64, 0)
    for _ in range(3):
        results_of(layer, ids, dense, pull)
    gc.collect()
    before = {buffer.data_ptr() for buffer in pool._free}
    for _ in range(5):
        results_of(layer, ids, dense, pull)
    assert {buffer.data_ptr() for buffer in pool._free} == before
    assert len(before) <= pool.MOST_KEPT


class Calls:
    """How often each kernel is called."""

    def __init__(self, monkeypatch):
        self.names = []

        def call(name, *arguments, original=split_module.call):
            self.names.append(name)
            return original(name, *arguments)

        monkeypatch.setattr(split_module, "call", call)

    def count(self, name):
        return self.names.count(f"mixdim_split_{name}")


def test_without_gradients_weights_are_prepared_once_while_they_do_not_change(monkeypatch):
    layer, ids, dense, _ = make_case(wide_plan(), 64, 0)
    calls = Calls(monkeypatch)
    with torch.no_grad():
        expected = [layer.interact(dense, rows) for rows in (ids, ids.flip(0))]
        assert calls.count("weights") == 2
        with layer.frozen():
            found = [layer.interact(dense, rows) for rows in (ids, ids.flip(0))]
            assert calls.count("weights") == 3
            layer.table_100.mul_(2)  # who changes them all the same gets what is right
            assert_near(
                [layer.interact(dense, ids)], [expected_of(layer, ids, dense, dense.view(-1))[0]]
            )
            assert calls.count("weights") == 4
        assert layer._kept_weights is None
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_rows_that_are_too_many_to_keep_are_prepared_batch_by_batch(monkeypatch):
    layer, ids, dense, _ = make_case(wide_plan(), 64, 0)
    with torch.no_grad():
        expected = layer.interact(dense, ids)
        monkeypatch.setattr(split_module, "MOST_KEPT", 100_000)
        with layer.frozen():
            found = layer.interact(dense, ids)
            kept = layer._kept_weights.prepared.blocks["has_all_rows"]
            assert 0 < kept.sum() < len(kept)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_gradients_are_right_within_a_context_of_frozen_weights():
    case = make_case(wide_plan(), 30, 0)
    expected = results_of(*case)
    with case[0].frozen():
        found = results_of(*case)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))
