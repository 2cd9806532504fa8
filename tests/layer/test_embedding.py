"""The layer against a loop over features, and as a module among others."""

import copy
import io
from contextlib import nullcontext

import pytest
import torch
from both_paths import plain_path
from hypothesis import given, settings
from hypothesis import strategies as st

import mixdim
from mixdim import FeatureEmbeddings, MixedDimEmbedding
from small_layers import assert_same_gradients, banded_plan, generator_of, seeds, twins
from strategies import plans, random_bags, random_ids


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


class TestAsAModule:
    def test_the_state_moves_to_another_layer(self):
        plan = banded_plan()
        layer, other = (FeatureEmbeddings(plan, ids=plan.orders) for _ in range(2))
        file = io.BytesIO()
        torch.save(layer.state_dict(), file)
        file.seek(0)
        other.load_state_dict(torch.load(file, weights_only=True))
        assert torch.equal(other.dense_weight(), layer.dense_weight())

    def test_a_deep_copy_is_independent(self):
        plan = banded_plan()
        layer = FeatureEmbeddings(plan, ids=plan.orders)
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
        assert [name for name, _ in layer.named_buffers()] == ["ids.rank_of_id"]

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
        projections = [p for name, p in layer.named_parameters() if name == "lift"]
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
