"""From plan to plan: what is copied, quantized and fitted, and an optimizer that goes on."""

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors.torch import save

import mixdim
from mixdim import FeatureEmbeddings, MixedDimEmbedding, Rows
from mixdim.layer.idmap import IdMap
from mixdim.storages.levels import NOISE
from small_layers import banded_plan, generator_of
from small_tables import best_error

COUNTS = {"day": [5, 3, 0], "item": [1, 40, 3, 20, 2, 2, 1, 0, 10, 1], "user": range(90)}


def bytes_of(layer):
    return save({name: tensor.contiguous() for name, tensor in layer.state_dict().items()})


def weighted_share(before, after, counts, metric=None):
    """Which share of the weighted squares is lost, from the two dense matrices."""
    before, after = (matrix.detach().double().numpy() for matrix in (before, after))
    metric = np.eye(before.shape[1]) if metric is None else metric
    lost, all_there = (
        np.asarray(counts, float) @ np.einsum("ij,jk,ik->i", rows, metric, rows)
        for rows in (before - after, before)
    )
    return lost / all_there


def random_metric(width, seed):
    """A metric, and what `replan` sees of it: a thousandth of its mean eigenvalue is added."""
    factor = np.random.default_rng(seed).normal(size=(width, width))
    metric = factor @ factor.T
    return metric, metric + 1e-3 * np.trace(metric) / width * np.eye(width)


class TestBlocks:
    """What becomes of each block."""

    def test_the_same_plan_is_a_copy_to_the_last_bit(self):
        layer = FeatureEmbeddings(banded_plan(), sparse=True, padding_id=-1, pooling="mean")
        found = mixdim.replan(layer, layer.plan)
        assert bytes_of(found.layer) == bytes_of(layer)
        assert found.error == dict.fromkeys(layer.plan, 0.0)
        assert (found.layer.sparse, found.layer.pooling, found.layer.padding_id) == (True, "mean", -1)
        found.layer.table_16.data.zero_()
        assert layer.table_16.any()  # its numbers are its own

    @pytest.mark.parametrize("bits", [8, 4])
    def test_fewer_bits_are_those_of_quantizing_and_better_by_counts_if_these_are_given(self, bits):
        layer = FeatureEmbeddings(banded_plan())
        plan, small = layer.plan.quantized(bits), layer.quantized(bits)
        assert bytes_of(mixdim.replan(layer, plan).layer) == bytes_of(small)
        found = mixdim.replan(layer, plan, counts=COUNTS)
        for name in layer.plan:
            unweighted = weighted_share(
                *(each.dense_weight(name) for each in (layer, small)), COUNTS[name]
            )
            assert found.error[name] < max(1.05 * unweighted, NOISE[bits])
            before, after = (each.dense_weight(name) for each in (layer, found.layer))
            share = weighted_share(before, after, COUNTS[name])
            assert found.error[name] == pytest.approx(share, rel=0.05)  # means are float16

    def test_blocks_that_stay_are_copied_and_others_are_fitted(self):
        layer = FeatureEmbeddings(banded_plan())
        plan = layer.plan.with_storage("item", Rows(3), band=0).with_storage("user", Rows(2))
        found = mixdim.replan(layer, plan, counts=COUNTS)
        assert torch.equal(found.layer.dense_weight("day"), layer.dense_weight("day"))
        first, *others = layer.layout.of_feature[1]
        order = torch.from_numpy(layer.plan.orders["item"])
        wide, narrow = (each.dense_weight("item")[order] for each in (layer, found.layer))
        assert torch.equal(narrow[first.size :], wide[first.size :])
        kept = [(move.feature, move.source is not None) for move in found.transfer.moves]
        assert kept == [("day", True), ("item", False), *[("item", True)] * len(others), ("user", False)]

    @pytest.mark.parametrize("with_metric", [False, True])
    @pytest.mark.parametrize("source", ["layer", "matrix", "matrix of packed ids"])
    def test_no_rows_of_the_widths_of_the_plan_come_nearer(self, source, with_metric):
        """The oracle is the SVD of each block's weighted rows, with ids in no order."""
        rng = np.random.default_rng(3)
        counts = rng.poisson(np.exp(rng.normal(1, 1.5, 200)))
        metric, seen = random_metric(8, 5) if with_metric else (None, None)
        plan = mixdim.plan({"x": 200}, counts={"x": counts}, bands=4, temperature=0, base_dim=8)
        for band, dim in enumerate([8, 5, 2, 0]):
            plan = plan.with_storage("x", Rows(dim), band=band)
        matrix = torch.tensor(rng.normal(size=(200, 8)), dtype=torch.float32)
        options, order = {"counts": counts, "metric": metric}, plan.orders["x"]
        if source == "layer":
            uniform = mixdim.plan({"x": 200}, temperature=0, base_dim=8)
            wide = MixedDimEmbedding(uniform)
            wide.table_8.data.copy_(matrix)
            found = mixdim.replan(wide, plan, ids=plan.orders, **options)
        elif source == "matrix":
            found = mixdim.replan(matrix, plan, **options)
        else:
            bands = np.empty(200, int)
            ends = np.cumsum([0, *(block.size for block in plan.blocks)])
            for band, (start, end) in enumerate(pairwise(ends)):
                bands[order[start:end]] = band
            ids = IdMap.packed({"x": 200}, {"x": [bands]})
            order = np.argsort(bands, kind="stable")
            found = mixdim.replan(matrix, plan, ids=ids, **options)
        least, start = 0.0, 0
        for block in plan.blocks:
            own = order[start : start + block.size]
            start += block.size
            if block.dim < 8:
                least += best_error(matrix[own].double().numpy(), counts[own], block.dim, seen)
        dense = found.layer.dense_weight()
        share = weighted_share(matrix, dense, counts, seen)
        assert found.error["x"] == pytest.approx(share, rel=1e-4)
        all_there = weighted_share(matrix, torch.zeros_like(dense), counts, seen)
        squares = counts @ np.einsum("ij,jk,ik->i", matrix, np.eye(8) if seen is None else seen, matrix)
        assert all_there == pytest.approx(1)
        assert share * squares == pytest.approx(least, rel=1e-4)

    def test_wider_blocks_hold_what_narrow_ones_held(self):
        layer = FeatureEmbeddings(banded_plan())
        wide = mixdim.plan({f.name: f.rows for f in layer.plan.features}, temperature=0, base_dim=16)
        found = mixdim.replan(layer, wide)
        for name in layer.plan:
            torch.testing.assert_close(found.layer.dense_weight(name), layer.dense_weight(name))
            assert found.error[name] < 1e-12

    def test_shared_rows_are_measured_as_they_are(self):
        layer = FeatureEmbeddings(banded_plan())
        plan = layer.plan.with_storage("user", mixdim.Hashed(4, buckets=9))
        found = mixdim.replan(layer, plan, counts=COUNTS)
        before, after = (each.dense_weight("user") for each in (layer, found.layer))
        share = weighted_share(before, after, COUNTS["user"])
        assert found.error["user"] == pytest.approx(share)
        assert 0.1 < share < 1

    def test_the_source_is_read_a_chunk_at_a_time(self, monkeypatch):
        layer, plan = FeatureEmbeddings(banded_plan()), banded_plan().with_storage("user", Rows(3))
        whole = mixdim.replan(layer, plan, counts=COUNTS)
        monkeypatch.setattr("mixdim.layer.sources.AT_ONCE", 16 * 64)
        parts = mixdim.replan(layer, plan, counts=COUNTS)
        for name in plan:
            torch.testing.assert_close(parts.layer.dense_weight(name), whole.layer.dense_weight(name))
            assert parts.error[name] == pytest.approx(whole.error[name])

    @pytest.mark.parametrize("kind", ["fitted", "fitted as codes", "quantized", "widened"])
    def test_it_takes_at_most_half_more_memory_than_source_and_result(self, kind):
        wide = mixdim.plan({"x": 200_000}, temperature=0, base_dim=64)
        narrow = wide.with_storage("x", Rows(8))
        source, plan = {
            "fitted": lambda: (torch.randn(200_000, 64), narrow),
            "fitted as codes": lambda: (torch.randn(200_000, 64), narrow.quantized(4)),
            "quantized": lambda: (MixedDimEmbedding(wide), wide.quantized(8)),
            "widened": lambda: (MixedDimEmbedding(narrow), wide),
        }[kind]()
        with torch.profiler.profile(profile_memory=True) as profiler:
            layer = mixdim.replan(source, plan, counts=torch.arange(200_000)).layer
        events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
        taken = np.cumsum([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())])
        assert taken.max() >= layer.nbytes
        assert source.nbytes + taken.max() <= 1.5 * (source.nbytes + layer.nbytes)


class TestRefused:
    """What cannot be a source, a plan or a weight."""

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"counts": {"x": [1, 2]}}, ValueError, r"counts of feature 'x' must be numbers of shape"),
            ({"counts": {"x": [-1] * 9}}, ValueError, "counts of feature 'x' must not be negative"),
            ({"counts": {"y": [1] * 9}}, ValueError, "unknown feature 'y'; the features are x"),
            (
                {"metric": np.eye(3)},
                ValueError,
                r"metric of feature 'x' must be numbers of shape \(4, 4\)",
            ),
            ({"metric": np.full((4, 4), np.nan)}, ValueError, "metric of feature 'x' must be finite"),
            ({"ids": IdMap.identity({"x": 8})}, ValueError, "ids must be of the plan's features"),
        ],
    )
    def test_weights_that_do_not_fit_are_named(self, options, error, message):
        plan = mixdim.plan({"x": 9}, temperature=0, base_dim=4).with_storage("x", Rows(2))
        with pytest.raises(error, match=message):
            mixdim.replan(torch.ones(9, 4), plan, **options)

    def test_a_source_must_have_the_features_of_the_plan(self):
        plan, layer = banded_plan(), FeatureEmbeddings(banded_plan())
        with pytest.raises(TypeError, match="must be a mixdim layer or a tensor, got list"):
            mixdim.replan([1.0], plan)
        with pytest.raises(TypeError, match=r"floating point, got torch\.int64"):
            mixdim.replan(torch.ones(9, 4).long(), mixdim.plan({"x": 9}, temperature=0, base_dim=4))
        with pytest.raises(ValueError, match="must have the features and the base_dim 16 of the source"):
            mixdim.replan(layer, banded_plan(base_dim=8))
        with pytest.raises(ValueError, match="plan of a matrix of shape"):
            mixdim.replan(torch.ones(9, 4), plan)
        with pytest.raises(TypeError, match="counts must be a mapping by feature name"):
            mixdim.replan(layer, plan, counts=[1, 2])

    def test_numbers_that_are_not_finite_are_named_by_row(self):
        plan = mixdim.plan({"x": 9}, temperature=0, base_dim=4).with_storage("x", Rows(2))
        matrix = torch.ones(9, 4)
        matrix[7, 2] = torch.nan
        with pytest.raises(
            ValueError, match="feature 'x' cannot be fitted: its numbers must be finite, row 7"
        ):
            mixdim.replan(matrix, plan)


def optimizers():
    return {
        "amsgrad": lambda p: mixdim.SparseAMSGrad(p, lr=0.1),
        "adam": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    }


def steps(layer, optimizer, seeds):
    """Train on a loss of each feature alone, so that one does not move another."""
    goal = torch.randn(16, generator=generator_of(99))
    for seed in seeds:
        rows = [feature.rows for feature in layer.plan.features]
        ids = torch.stack([torch.randint(n, (8,), generator=generator_of(seed)) for n in rows], dim=1)
        optimizer.zero_grad()
        ((layer(ids) - goal) ** 2).sum().backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("name", "sparse"),
    [("amsgrad", True), ("amsgrad", False), ("adam", False), ("sgd", True), ("sgd", False)],
)
class TestTransfer:
    """An optimizer that goes on with another layer."""

    def trained(self, name, sparse):
        layer = FeatureEmbeddings(banded_plan(), sparse=sparse, generator=generator_of(1))
        beside = torch.nn.Linear(2, 2)
        groups = [{"params": [*layer.parameters()], "lr": 0.05}, {"params": [*beside.parameters()]}]
        optimizer = optimizers()[name](groups)
        beside(torch.ones(2)).sum().backward()
        steps(layer, optimizer, range(3))
        return layer, optimizer, beside

    def test_the_same_plan_trains_on_to_the_same_bits(self, name, sparse):
        layer, optimizer, beside = self.trained(name, sparse)
        found = mixdim.replan(layer, layer.plan)
        other = copy.deepcopy((layer, optimizer))
        found.transfer.apply(optimizer)
        mine = {id(parameter) for parameter in [*found.layer.parameters(), *beside.parameters()]}
        assert {id(p) for group in optimizer.param_groups for p in group["params"]} == mine
        assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.1]
        steps(found.layer, optimizer, range(3, 6))
        # A deep copy of a layer and its optimizer has parameters of its own: put them together again.
        twin, twin_optimizer = other
        before = [p for group in twin_optimizer.param_groups[:1] for p in group["params"]]
        assert {id(p) for p in before} == {id(p) for p in twin.parameters()}
        steps(twin, twin_optimizer, range(3, 6))
        assert bytes_of(found.layer) == bytes_of(twin)

    def test_features_that_stay_train_on_as_if_nothing_had_happened(self, name, sparse):
        layer, optimizer, _ = self.trained(name, sparse)
        twin, twin_optimizer = copy.deepcopy((layer, optimizer))
        plan = layer.plan.with_storage("user", Rows(3)).with_storage("item", Rows(1), band=1)
        found = mixdim.replan(layer, plan)
        found.transfer.apply(optimizer)
        assert found.layer.layout.groups.keys() != layer.layout.groups.keys()
        steps(found.layer, optimizer, range(3, 6))
        steps(twin, twin_optimizer, range(3, 6))
        assert torch.equal(found.layer.dense_weight("day"), twin.dense_weight("day"))
        order, first = layer.plan.orders["item"], layer.layout.of_feature[1][0].size
        popular = torch.from_numpy(order[:first])
        one, other = (each.dense_weight("item")[popular] for each in (found.layer, twin))
        assert torch.equal(one, other)
        assert not torch.equal(found.layer.dense_weight("user"), twin.dense_weight("user"))

    def test_the_state_of_fitted_blocks_begins_at_zero(self, name, sparse):
        layer, optimizer, _ = self.trained(name, sparse)
        found = mixdim.replan(layer, layer.plan.with_storage("user", Rows(3)))
        found.transfer.apply(optimizer)
        table = found.layer.table_3
        of_numbers = {
            key: v for key, v in optimizer.state[table].items() if torch.is_tensor(v) and v.dim()
        }
        assert of_numbers
        assert not any(value.any() for value in of_numbers.values())

    def test_an_optimizer_of_something_else_is_refused(self, name, sparse):
        layer, _, beside = self.trained(name, sparse)
        found = mixdim.replan(layer, layer.plan)
        with pytest.raises(
            ValueError, match="must have the tables or the lift of the source, it has none"
        ):
            found.transfer.apply(optimizers()[name](beside.parameters()))
        with pytest.raises(ValueError, match="must have all tables of the source, it has table_16 only"):
            found.transfer.apply(optimizers()[name]([layer.table_16]))


def test_a_matrix_has_no_optimizer():
    plan = mixdim.plan({"x": 9}, temperature=0, base_dim=4)
    found = mixdim.replan(torch.ones(9, 4), plan)
    with pytest.raises(ValueError, match="the source was a matrix, so no optimizer has a state of it"):
        found.transfer.apply(torch.optim.SGD(found.layer.parameters()))
