import copy
import io
import json
import math
import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch
from both_paths import plain_path
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import mixdim
from loop_oracle import LoopEmbeddings
from mixdim import FeatureEmbeddings, MixedDimEmbedding
from strategies import plans, random_bags, random_ids

seeds = st.integers(0, 2**32 - 1)


def generator_of(seed):
    return torch.Generator().manual_seed(seed)


def twins(plan, seed, dtype=torch.float64, **options):
    """A layer and the loop over features, with the same weights, for ids that are ranks."""
    loop = LoopEmbeddings(plan, generator=generator_of(seed), dtype=dtype)
    layer = FeatureEmbeddings(plan, dtype=dtype, order={}, **options)
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


class TestAgainstTheLoop:
    @settings(max_examples=60)
    @given(plans(), st.integers(0, 5), seeds, st.booleans(), st.sampled_from([torch.int32, torch.int64]))
    def test_values_and_gradients_of_single_ids(self, plan, batch, seed, sparse, id_type):
        layer, loop = twins(plan, seed, sparse=sparse)
        ids = random_ids(plan, batch, generator_of(seed), id_type)
        vectors, expected = layer(ids), loop(ids)
        assert vectors.shape == (batch, plan.num_features, plan.base_dim)
        torch.testing.assert_close(vectors, expected)
        pull = torch.randn(vectors.shape, generator=generator_of(seed), dtype=torch.float64)
        (vectors * pull).sum().backward()
        if batch:
            (expected * pull).sum().backward()
        assert_same_gradients(layer, loop)

    @settings(max_examples=40)
    @given(plans(), st.integers(1, 5), seeds)
    def test_values_and_gradients_in_float32(self, plan, batch, seed):
        layer, loop = twins(plan, seed, dtype=torch.float32)
        ids = random_ids(plan, batch, generator_of(seed))
        layer(ids).square().sum().backward()
        loop(ids).square().sum().backward()
        torch.testing.assert_close(layer(ids), loop(ids))
        assert_same_gradients(layer, loop, rtol=1e-4, atol=1e-4)

    @settings(max_examples=80)
    @given(
        plans(),
        st.integers(0, 4),
        seeds,
        st.sampled_from(["sum", "weighted sum", "mean", "max", "product"]),
        st.booleans(),
    )
    def test_values_and_gradients_of_bags(self, plan, batch, seed, pooling, sparse):
        weighted = pooling == "weighted sum"
        layer, loop = twins(plan, seed, sparse=sparse, pooling="sum" if weighted else pooling)
        values, offsets, bags = random_bags(plan, batch, generator_of(seed))
        weights = torch.rand(len(values), dtype=torch.float64, generator=generator_of(seed))
        mine, theirs = (weights.clone().requires_grad_() for _ in range(2))
        pooled = layer.bags(values, offsets, mine if weighted else None)
        expected = loop_bags(loop, bags, batch, pooling, theirs.split([len(bag) for bag in bags]))
        assert pooled.shape == (batch, plan.num_features, plan.base_dim)
        torch.testing.assert_close(pooled, expected)
        pull = torch.randn(pooled.shape, generator=generator_of(seed), dtype=torch.float64)
        (pooled * pull).sum().backward()
        if expected.requires_grad:
            (expected * pull).sum().backward()
        assert_same_gradients(layer, loop)
        if weighted and len(values):
            torch.testing.assert_close(mine.grad, theirs.grad)

    @settings(max_examples=30)
    @given(plans(), st.integers(0, 4), st.integers(0, 3), seeds)
    def test_concat_puts_the_vectors_of_a_bag_side_by_side(self, plan, batch, length, seed):
        layer, loop = twins(plan, seed, pooling="concat")
        samples = torch.stack([random_ids(plan, batch, generator_of(seed + i)) for i in range(length)]) \
            if length else torch.zeros(0, batch, plan.num_features, dtype=torch.int64)  # fmt: skip
        values = samples.permute(2, 1, 0).reshape(-1)  # feature-major, then sample
        offsets = torch.arange(batch * plan.num_features + 1) * length
        found = layer.bags(values, offsets)
        expected = torch.cat([loop(ids) for ids in samples], dim=-1) if length else found
        assert found.shape == (batch, plan.num_features, (length if batch else 0) * plan.base_dim)
        if batch:
            torch.testing.assert_close(found, expected)

    @settings(max_examples=30)
    @given(plans(), seeds)
    def test_the_dense_weight_is_all_rows_looked_up(self, plan, seed):
        layer, loop = twins(plan, seed)
        rows = [
            loop.vector(f, rank)
            for f, feature in enumerate(plan.features)
            for rank in range(feature.rows)
        ]
        torch.testing.assert_close(layer.dense_weight(), torch.stack(rows))
        per_feature = torch.cat([layer.dense_weight(name) for name in plan])
        assert torch.equal(per_feature, layer.dense_weight())


def loop_bags(loop, bags, batch, pooling, weights):
    """Pool one bag after the other, as the definition says: (batch, features, base_dim)."""
    features = loop.plan.num_features
    out = torch.zeros(batch, features, loop.plan.base_dim, dtype=torch.float64)
    for number, (bag, bag_weights) in enumerate(zip(bags, weights, strict=True)):
        feature, sample = divmod(number, batch)
        if len(bag) == 0:
            out[sample, feature] = 1.0 if pooling == "product" else 0.0
            continue
        vectors = torch.stack([loop.vector(feature, int(i)) for i in bag])
        out[sample, feature] = {
            "sum": lambda v: v.sum(0),
            "weighted sum": lambda v, w=bag_weights: (v * w[:, None]).sum(0),
            "mean": lambda v: v.mean(0),
            "max": lambda v: v.amax(0),
            "product": lambda v: v.prod(0),
        }[pooling](vectors)
    return out


class TestParameters:
    @given(plans())
    def test_the_layer_has_as_many_parameters_as_the_plan_says(self, plan):
        layer = FeatureEmbeddings(plan)
        assert layer.num_parameters == plan.num_parameters
        assert sum(p.numel() for p in layer.parameters()) == plan.num_parameters

    def test_uniform_dims_need_no_projection(self):
        layer = FeatureEmbeddings(mixdim.plan([5, 50], temperature=0, base_dim=6))
        assert {name: tuple(p.shape) for name, p in layer.named_parameters()} == {"table_6": (55, 6)}

    def test_blocks_of_one_width_share_a_parameter(self):
        plan = mixdim.plan([2, 40, 60, 100], temperature=0.5, base_dim=8)
        assert [block.dim for block in plan.blocks] == [8, 2, 2, 1]
        shapes = {name: tuple(p.shape) for name, p in FeatureEmbeddings(plan).named_parameters()}
        assert shapes == {
            "table_8": (2, 8),
            "table_2": (100, 2),
            "table_1": (100, 1),
            "projection_2": (2, 2, 8),
            "projection_1": (1, 1, 8),
        }

    @pytest.mark.parametrize("init", ["xavier", "he_fan_in", "he_fan_out"])
    def test_each_block_is_drawn_like_torch_draws_its_matrix(self, init):
        plan = mixdim.plan([300, 10_000], temperature=0.4, base_dim=32)
        layer = FeatureEmbeddings(plan, init=init, generator=generator_of(0))
        narrow = plan.blocks[1].dim
        linear = torch.empty(32, narrow)  # nn.Linear(narrow, 32).weight
        drawn_like = {
            "xavier": nn.init.xavier_uniform_,
            "he_fan_in": lambda w: nn.init.kaiming_uniform_(w, mode="fan_in", nonlinearity="relu"),
            "he_fan_out": lambda w: nn.init.kaiming_uniform_(w, mode="fan_out", nonlinearity="relu"),
        }[init]
        for found, reference in [
            (layer.table_32, torch.empty(300, 32)),
            (getattr(layer, f"table_{narrow}"), torch.empty(10_000, narrow)),
            (getattr(layer, f"projection_{narrow}"), linear),
        ]:
            drawn_like(reference)
            assert found.abs().max().item() == pytest.approx(reference.abs().max().item(), rel=0.05)
            assert found.std().item() == pytest.approx(reference.std().item(), rel=0.15)
            assert abs(found.mean().item()) < found.std().item()

    def test_xavier_bounds_are_those_of_the_formula(self):
        layer = MixedDimEmbedding(mixdim.plan([10_000], temperature=0, base_dim=16))
        bound = math.sqrt(6 / (10_000 + 16))
        assert bound * 0.999 < layer.table_16.abs().max().item() <= bound

    def test_the_generator_decides_the_weights(self):
        first, again, other = (
            FeatureEmbeddings(banded_plan(), generator=generator_of(seed)).dense_weight()
            for seed in (1, 1, 2)
        )
        assert torch.equal(first, again)
        assert not torch.equal(first, other)

    def test_building_a_layer_allocates_its_tables_once(self):
        """In a process of its own: the peak grows by the tables, not by twice the tables."""
        script = """
import json, resource, torch, mixdim
plan = mixdim.plan([4_000_000, 1_000_000, 1000], temperature=0.2, base_dim=64)
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
mixdim.FeatureEmbeddings(mixdim.plan([10], temperature=0, base_dim=4))
before = peak()
layer = mixdim.FeatureEmbeddings(plan, sparse=True)
print(json.dumps([peak() - before, plan.nbytes()]))
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        grown, tables = json.loads(done.stdout)
        assert tables > 100e6
        assert grown < 1.2 * tables


class TestIds:
    @pytest.mark.parametrize("bad", [-1, 10, 2**40])
    def test_an_id_out_of_range_names_the_feature_the_id_and_the_rows(self, bad):
        layer = FeatureEmbeddings(banded_plan())
        with pytest.raises(IndexError, match=f"id {bad} of feature 'item' .* has 10 rows, ids 0 to 9"):
            layer(torch.tensor([[0, 0, 0], [1, bad, 3]]))
        with pytest.raises(IndexError, match=f"id {bad} of feature 'item' .* has 10 rows"):
            layer.bags(torch.tensor([0, bad, 1]), torch.tensor([0, 1, 2, 3]))
        with pytest.raises(IndexError, match=f"id {bad} of feature 'item' .* has 10 rows") as caught:
            MixedDimEmbedding(banded_plan()["item"])(torch.tensor(bad))
        assert isinstance(caught.value, ValueError), "so that the command line takes it for wrong data"

    def test_ids_are_checked_against_their_own_feature_in_a_shared_table(self):
        layer = FeatureEmbeddings(mixdim.plan([3, 5], temperature=0, base_dim=2))
        layer(torch.tensor([[2, 4]]))
        with pytest.raises(IndexError, match=r"id 3 of feature '0' .* \(1 more ids are out of range\)"):
            layer(torch.tensor([[3, 4], [0, 5]]))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64])
    def test_ids_must_be_integers(self, dtype):
        ids = torch.zeros(1, 3).to(dtype)
        with pytest.raises(TypeError, match=f"ids must be integers such as torch.int64, got {dtype}"):
            FeatureEmbeddings(banded_plan())(ids)
        with pytest.raises(TypeError, match="values must be integers"):
            FeatureEmbeddings(banded_plan()).bags(ids[0], torch.tensor([0, 1, 2, 3]))

    def test_ids_must_be_a_tensor(self):
        with pytest.raises(TypeError, match="ids must be a tensor of integers, got list"):
            MixedDimEmbedding(banded_plan()["item"])([1, 2])

    @pytest.mark.parametrize("shape", [(3,), (2, 4), (2, 2), (1, 2, 3)])
    def test_ids_must_have_one_column_a_feature(self, shape):
        with pytest.raises(ValueError, match=r"ids must have shape \(batch, 3 features\), got"):
            FeatureEmbeddings(banded_plan())(torch.zeros(shape, dtype=torch.int64))

    def test_unchecked_ids_give_the_same_vectors(self):
        layer = FeatureEmbeddings(banded_plan())
        ids = random_ids(layer.plan, 5, generator_of(0))
        expected = layer(ids)
        layer.check_ids = False
        assert torch.equal(layer(ids), expected)

    @pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3), (2, 0, 4)])
    def test_one_table_takes_ids_of_any_shape(self, shape):
        table = MixedDimEmbedding(banded_plan()["item"])
        ids = torch.randint(10, shape)
        assert table(ids).shape == (*shape, 16)
        torch.testing.assert_close(table(ids), table.dense_weight()[ids])


class TestBags:
    def layer(self, **options):
        return FeatureEmbeddings(mixdim.plan([3, 5], temperature=0, base_dim=2), **options)

    @pytest.mark.parametrize(
        ("values", "offsets", "message"),
        [
            ([0, 1], [0, 1], r"batch_size \* 2 features \+ 1 entries, got 2"),
            ([0, 1], [], "entries, got 0"),
            ([0, 1], [0, 1, 1], "rise from 0 to the number of values 2 and never fall, got 0 to 1"),
            ([0, 1], [1, 1, 2], "got 1 to 2"),
            ([0, 1], [0, 3, 2, 2, 2], "never fall"),
            ([[0, 1]], [0, 1, 2], r"one dimension, got shapes \(1, 2\) and \(3,\)"),
        ],
    )
    def test_malformed_bags_are_refused(self, values, offsets, message):
        with pytest.raises(ValueError, match=message):
            self.layer().bags(torch.tensor(values), torch.tensor(offsets, dtype=torch.int64))

    def test_weights_are_for_sums_only_one_each_and_floating(self):
        values, offsets = torch.tensor([0, 1]), torch.tensor([0, 1, 2])
        with pytest.raises(
            ValueError, match="weights need pooling='sum', this layer has pooling='mean'"
        ):
            self.layer(pooling="mean").bags(values, offsets, torch.ones(2))
        with pytest.raises(ValueError, match="one entry for each of 2 values, got shape"):
            self.layer().bags(values, offsets, torch.ones(3))
        with pytest.raises(TypeError, match=r"weights must be floating point, got torch\.int64"):
            self.layer().bags(values, offsets, torch.ones(2, dtype=torch.int64))

    def test_concat_needs_bags_of_one_length(self):
        with pytest.raises(ValueError, match="got bags of 1 to 2 ids"):
            self.layer(pooling="concat").bags(torch.tensor([0, 1, 2]), torch.tensor([0, 1, 3]))

    def test_bags_of_one_table_have_no_feature_axis(self):
        table = MixedDimEmbedding(banded_plan()["item"])
        pooled = table.bags(torch.tensor([0, 1, 9]), torch.tensor([0, 2, 2, 3]))
        weight = table.dense_weight()
        torch.testing.assert_close(
            pooled, torch.stack([weight[0] + weight[1], 0 * weight[0], weight[9]])
        )


class TestPadding:
    @pytest.mark.parametrize("padding_id", [-1, 1])
    @pytest.mark.parametrize("sparse", [False, True])
    def test_padding_gives_zeros_and_touches_no_row(self, padding_id, sparse):
        layer = FeatureEmbeddings(
            banded_plan(), padding_id=padding_id, sparse=sparse, dtype=torch.float64
        )
        plain = FeatureEmbeddings(banded_plan(), dtype=torch.float64)
        plain.load_state_dict(layer.state_dict())
        ids = torch.tensor([[0, padding_id, 80], [padding_id, 5, padding_id], [2, 2, 2]])
        vectors = layer(ids)
        is_padding = ids == padding_id
        assert (vectors[is_padding] == 0).all()
        torch.testing.assert_close(vectors[~is_padding], plain(ids.clamp(min=0))[~is_padding])
        vectors.sum().backward()
        if sparse:
            touched = sum(
                p.grad.coalesce().indices().shape[1] for n, p in layer.named_parameters() if "table" in n
            )
            assert touched == int((~is_padding).sum())

    def test_padding_does_not_count_in_a_bag(self):
        plan = mixdim.plan([4], temperature=0, base_dim=2)
        layer = FeatureEmbeddings(plan, padding_id=0, pooling="mean")
        weight = layer.dense_weight()
        assert (weight[0] == 0).all()
        pooled = layer.bags(torch.tensor([0, 1, 3, 0]), torch.tensor([0, 3, 4]))[:, 0]
        torch.testing.assert_close(pooled, torch.stack([(weight[1] + weight[3]) / 2, torch.zeros(2)]))

    def test_padding_is_left_out_of_a_max_but_keeps_its_place_in_concat(self):
        plan = mixdim.plan([4], temperature=0, base_dim=2)
        values, offsets = torch.tensor([-1, 2]), torch.tensor([0, 2])
        layer = FeatureEmbeddings(plan, padding_id=-1, pooling="max")
        torch.testing.assert_close(layer.bags(values, offsets)[0, 0], layer.dense_weight()[2])
        layer = FeatureEmbeddings(plan, padding_id=-1, pooling="concat")
        expected = torch.cat([torch.zeros(2), layer.dense_weight()[2]])
        torch.testing.assert_close(layer.bags(values, offsets)[0, 0], expected)

    def test_another_id_out_of_range_is_still_an_error(self):
        layer = MixedDimEmbedding(mixdim.plan([4], temperature=0, base_dim=2), padding_id=-1)
        with pytest.raises(IndexError, match="id -2"):
            layer(torch.tensor([-1, -2]))


class TestOrder:
    def test_the_most_popular_ids_get_the_widest_blocks(self):
        plan = banded_plan()["item"]
        table = MixedDimEmbedding(plan)
        ranked = MixedDimEmbedding(plan, order={})
        ranked.load_state_dict({k: v for k, v in table.state_dict().items() if k != "rank_of_id"})
        by_popularity = torch.from_numpy(plan.orders["item"]).long()
        assert torch.equal(table(by_popularity), ranked(torch.arange(10)))
        assert torch.equal(table.dense_weight()[by_popularity], ranked.dense_weight())
        assert by_popularity[:2].tolist() == [1, 3], "counts 40 and 20"

    @given(plans(), seeds)
    def test_the_order_of_the_plan_is_the_default(self, plan, seed):
        layer, told = (
            FeatureEmbeddings(plan, order=order, generator=generator_of(seed))
            for order in (None, plan.orders)
        )
        assert torch.equal(layer.dense_weight(), told.dense_weight())
        for name, order in plan.orders.items():
            blocks = plan[name].blocks
            widest = max(block.dim for block in blocks)
            stored = torch.linalg.matrix_rank(layer.dense_weight(name)[order[: blocks[0].size].copy()])
            assert blocks[0].dim == widest, "the most popular ids are in the widest block"
            assert stored == min(widest, blocks[0].size)

    def test_some_features_may_have_an_order_and_padding_stays_padding(self):
        plan = banded_plan()
        layer = FeatureEmbeddings(plan, order=plan.orders, padding_id=-1)
        ids = torch.tensor([[2, 9, 89], [-1, -1, 0], [0, 0, -1]])
        expected = torch.stack(
            [
                layer.dense_weight(name)[column.clamp(min=0)]
                for name, column in zip(plan, ids.t(), strict=True)
            ],
            1,
        )
        torch.testing.assert_close(layer(ids), expected * (ids >= 0)[:, :, None])
        values, offsets = torch.tensor([2, 9, 0, 89]), torch.tensor([0, 1, 3, 4])
        weight = layer.dense_weight("item")
        torch.testing.assert_close(layer.bags(values, offsets)[0, 1], weight[9] + weight[0])

    def test_an_order_that_changes_nothing_is_not_held(self):
        plan = mixdim.plan([3], counts=[[5, 4, 3]], bands=2, temperature=0.1, base_dim=4)
        assert "rank_of_id" not in MixedDimEmbedding(plan, order=plan.orders["0"]).state_dict()

    def test_the_order_is_saved_with_the_state(self):
        plan = banded_plan()
        layer = FeatureEmbeddings(plan)
        with pytest.raises(RuntimeError, match="rank_of_id"):
            FeatureEmbeddings(plan, order={}).load_state_dict(layer.state_dict())

    @pytest.mark.parametrize(
        "order", [[0, 1], [0] * 10, [-1, *range(9)], [10, *range(9)], [list(range(10))]]
    )
    def test_an_order_must_be_a_permutation(self, order):
        with pytest.raises(
            ValueError, match="order of feature 'item' must list each of its ids 0 to 9 once"
        ):
            MixedDimEmbedding(banded_plan()["item"], order=order)

    def test_an_order_of_an_unknown_feature_is_refused(self):
        with pytest.raises(KeyError, match="unknown feature 'shop'"):
            FeatureEmbeddings(banded_plan(), order={"shop": [0]})
        with pytest.raises(TypeError, match="order of feature 'item' must be integers"):
            FeatureEmbeddings(banded_plan(), order={"item": [0.5] * 10})


class TestAsAModule:
    def test_the_state_moves_to_another_layer(self):
        plan = banded_plan()
        layer, other = (FeatureEmbeddings(plan, order=plan.orders) for _ in range(2))
        file = io.BytesIO()
        torch.save(layer.state_dict(), file)
        file.seek(0)
        other.load_state_dict(torch.load(file, weights_only=True))
        assert torch.equal(other.dense_weight(), layer.dense_weight())

    def test_a_deep_copy_is_independent(self):
        plan = banded_plan()
        layer = FeatureEmbeddings(plan, order=plan.orders)
        before = layer.dense_weight().detach().clone()
        other = copy.deepcopy(layer)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
        assert torch.equal(layer.dense_weight(), before)
        assert (other(torch.zeros(1, 3, dtype=torch.int64)) == 0).all()

    def test_it_moves_to_another_dtype(self):
        layer = FeatureEmbeddings(banded_plan())
        ids = random_ids(layer.plan, 4, generator_of(0))
        single = layer(ids)
        double = layer.to(torch.float64)(ids)
        assert double.dtype == torch.float64
        torch.testing.assert_close(double, single.double())

    def test_a_replica_for_data_parallel_has_all_parameters(self):
        layer = FeatureEmbeddings(banded_plan())
        replica = layer._replicate_for_data_parallel()
        for name, parameter in layer.named_parameters():
            setattr(replica, name, parameter.detach().clone())
        ids = random_ids(layer.plan, 4, generator_of(0))
        assert torch.equal(replica(ids), layer(ids))

    def test_a_layer_made_without_memory_can_be_filled_later(self):
        plan = banded_plan()
        layer = FeatureEmbeddings(plan, device="meta")
        assert layer.num_parameters == plan.num_parameters
        layer = layer.to_empty(device="cpu")
        layer.reset_parameters(generator_of(3))
        assert torch.equal(
            layer.dense_weight(), FeatureEmbeddings(plan, generator=generator_of(3)).dense_weight()
        )

    @pytest.mark.parametrize("assign", [False, True])
    @pytest.mark.parametrize("meta_by", ["argument", "context"])
    def test_a_layer_made_without_memory_can_be_loaded(self, assign, meta_by):
        plan = banded_plan()
        trained = FeatureEmbeddings(plan, generator=generator_of(3), padding_id=-1)
        with torch.device("meta" if meta_by == "context" else "cpu"):
            device = None if meta_by == "context" else "meta"
            layer = FeatureEmbeddings(plan, padding_id=-1, device=device)
        if not assign:
            layer = layer.to_empty(device="cpu")
        layer.load_state_dict(trained.state_dict(), assign=assign)
        ids = random_ids(plan, 8, generator_of(0))
        ids[0] = -1
        values, offsets, _ = random_bags(plan, 8, generator_of(1))
        for path in (nullcontext, plain_path):
            with path():
                assert torch.equal(layer(ids), trained(ids))
                assert torch.equal(layer.bags(values, offsets), trained.bags(values, offsets))
                assert torch.equal(layer.dense_weight(), trained.dense_weight())

    def test_what_follows_from_the_plan_is_no_state(self):
        plan = banded_plan()
        layer = FeatureEmbeddings(plan)
        tables = {name for name, _ in layer.named_parameters()}
        assert set(layer.state_dict()) == {name for name, _ in layer.named_buffers()} | tables
        assert [name for name, _ in layer.named_buffers()] == ["rank_of_id"]

    def test_it_prints_what_it_is(self):
        text = repr(MixedDimEmbedding(mixdim.plan({"item": 5000}, temperature=0, base_dim=8)))
        assert (
            text == "MixedDimEmbedding(1 features, 5,000 rows, base_dim=8, widths 8, 40,000 parameters)"
        )

    def test_it_stands_in_for_nn_embedding(self):
        table = MixedDimEmbedding(banded_plan()["item"])
        assert (table.num_embeddings, table.embedding_dim) == (10, 16)

    def test_a_gradient_that_is_not_finite_names_the_feature(self):
        for layer in (lambda x: [x, copy.deepcopy(x)])(FeatureEmbeddings(banded_plan(), sparse=True)):
            optimizer = mixdim.SparseAMSGrad(layer.parameters())
            weight = layer.table_4.detach().clone()
            vectors = layer(torch.tensor([[1, 5, 33], [0, 0, 0]]))
            (vectors[0, 2] * float("nan")).sum().backward()
            with pytest.raises(FloatingPointError, match="row 33 of feature 'user'"):
                optimizer.step()
            assert torch.equal(layer.table_4, weight)

    def test_sparse_gradients_train_with_sparse_adam(self):
        layer = FeatureEmbeddings(banded_plan(), sparse=True, generator=generator_of(0))
        tables = [p for name, p in layer.named_parameters() if name.startswith("table")]
        projections = [p for name, p in layer.named_parameters() if name.startswith("projection")]
        optimizers = [torch.optim.SparseAdam(tables, lr=0.05), torch.optim.Adam(projections, lr=0.05)]
        ids = random_ids(layer.plan, 16, generator_of(1))
        losses = []
        for _ in range(30):
            loss = (layer(ids) - 1).square().mean()
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.2 * losses[0]


class TestBadArguments:
    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"pooling": "median"}, ValueError, "pooling must be one of sum, mean, .* got 'median'"),
            ({"init": "zeros"}, ValueError, "init must be one of xavier, .* got 'zeros'"),
            ({"padding_id": 1.5}, TypeError, "padding_id must be a whole number, got 1.5"),
        ],
    )
    def test_options_are_checked(self, options, error, message):
        with pytest.raises(error, match=message):
            FeatureEmbeddings(banded_plan(), **options)

    def test_a_plan_is_asked_for(self):
        with pytest.raises(TypeError, match=r"plan must be a mixdim\.Plan, got dict"):
            FeatureEmbeddings({"a": 3})

    def test_one_table_wants_the_plan_of_one_feature(self):
        with pytest.raises(ValueError, match=r"got 3 \(day, item, user\): pass plan\['day'\]"):
            MixedDimEmbedding(banded_plan())

    def test_an_unknown_feature_has_no_weight(self):
        with pytest.raises(KeyError, match="unknown feature 'shop'; the features are day, item, user"):
            FeatureEmbeddings(banded_plan()).dense_weight("shop")


class TestLoadBlocks:
    def loaded(self, plan, feature, seed=0):
        """A layer with given blocks in one feature, and those blocks."""
        draw = generator_of(seed)
        blocks = plan[feature].blocks
        tables = [torch.randn(b.size, b.dim, generator=draw, dtype=torch.float64) for b in blocks]
        projections = [
            None
            if b.dim == plan.base_dim
            else torch.randn(b.dim, plan.base_dim, generator=draw, dtype=torch.float64)
            for b in blocks
        ]
        layer = FeatureEmbeddings(plan, dtype=torch.float64, order=plan.orders)
        return layer, tables, projections

    @pytest.mark.parametrize("feature", ["day", "item", "user"])
    def test_a_feature_becomes_what_was_given_and_the_others_stay(self, feature):
        plan = banded_plan()
        layer, tables, projections = self.loaded(plan, feature)
        before = {name: layer.dense_weight(name).detach().clone() for name in plan}
        layer.load_blocks(feature, [table.numpy() for table in tables], projections)
        by_rank = torch.cat(
            [t if p is None else t @ p for t, p in zip(tables, projections, strict=True)]
        )
        expected = torch.empty_like(by_rank)
        order = plan.orders.get(feature)
        expected[torch.arange(len(by_rank)) if order is None else torch.as_tensor(order)] = by_rank
        torch.testing.assert_close(layer.dense_weight(feature).detach(), expected)
        for name in set(plan) - {feature}:
            assert torch.equal(layer.dense_weight(name), before[name])

    def test_what_does_not_fit_is_named_and_nothing_is_copied(self):
        plan = banded_plan()
        layer, tables, projections = self.loaded(plan, "item")
        before = layer.dense_weight().detach().clone()
        narrow = next(i for i, p in enumerate(projections) if p is not None)
        full = next(i for i, p in enumerate(projections) if p is None)
        with pytest.raises(ValueError, match=rf"tables\[{full}\] of feature 'item' must have shape"):
            layer.load_blocks(
                "item", [*tables[:full], tables[full][:, :-1], *tables[full + 1 :]], projections
            )
        with pytest.raises(ValueError, match=rf"projections\[{narrow}\] of feature 'item' .* got None"):
            layer.load_blocks("item", tables, [None] * len(tables))
        with pytest.raises(ValueError, match=rf"projections\[{full}\] of feature 'item' must be None"):
            layer.load_blocks("item", tables, [torch.eye(16) if p is None else p for p in projections])
        with pytest.raises(ValueError, match=f"has {len(tables)} blocks, got 0 tables"):
            layer.load_blocks("item", [], [])
        with pytest.raises(mixdim.UnknownFeatureError, match="unknown feature 'nobody'"):
            layer.load_blocks("nobody", tables, projections)
        assert torch.equal(layer.dense_weight(), before)
