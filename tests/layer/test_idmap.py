"""From ids to rows: checks, bags, padding, maps."""

import pytest
import torch
from hypothesis import given

import mixdim
from mixdim import FeatureEmbeddings, MixedDimEmbedding
from small_layers import banded_plan, generator_of, seeds
from strategies import plans, random_ids


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
        ranked = MixedDimEmbedding(plan, ids={})
        ranked.load_state_dict({k: v for k, v in table.state_dict().items() if k != "ids.rank_of_id"})
        by_popularity = torch.from_numpy(plan.orders["item"]).long()
        assert torch.equal(table(by_popularity), ranked(torch.arange(10)))
        assert torch.equal(table.dense_weight()[by_popularity], ranked.dense_weight())
        assert by_popularity[:2].tolist() == [1, 3], "counts 40 and 20"

    @given(plans(), seeds)
    def test_the_order_of_the_plan_is_the_default(self, plan, seed):
        layer, told = (
            FeatureEmbeddings(plan, ids=order, generator=generator_of(seed))
            for order in (None, plan.orders)
        )
        assert torch.equal(layer.dense_weight(), told.dense_weight())
        for name, order in plan.orders.items():
            blocks = plan[name].blocks
            widest = max(block.dim for block in blocks)
            stored = torch.linalg.matrix_rank(layer.dense_weight(name)[order[: blocks[0].size].copy()])
            assert blocks[0].dim == widest, "the most popular ids are in the widest block"
            assert stored == min(widest or 1, blocks[0].size), "a shared row has rank 1"

    def test_some_features_may_have_an_order_and_padding_stays_padding(self):
        plan = banded_plan()
        layer = FeatureEmbeddings(plan, ids=plan.orders, padding_id=-1)
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

    def test_the_plan_of_a_layer_has_the_order_that_it_follows(self):
        plan = banded_plan()
        layer = FeatureEmbeddings(plan)
        assert layer.plan == plan
        assert layer.plan.nbytes() == sum(t.nbytes for t in (*layer.parameters(), *layer.buffers()))
        again = FeatureEmbeddings(layer.plan)
        again.load_state_dict(layer.state_dict())
        assert FeatureEmbeddings(plan, ids={}).plan.shuffled_orders == {}
        reverse = FeatureEmbeddings(plan, ids={"item": torch.arange(9, -1, -1)})
        assert reverse.plan.orders["item"].tolist() == list(range(9, -1, -1))

    def test_an_order_that_changes_nothing_is_not_held(self):
        plan = mixdim.plan([3], counts=[[5, 4, 3]], bands=2, temperature=0.1, base_dim=4)
        assert "ids.rank_of_id" not in MixedDimEmbedding(plan, ids=plan.orders["0"]).state_dict()

    def test_the_order_is_saved_with_the_state(self):
        plan = banded_plan()
        layer = FeatureEmbeddings(plan)
        with pytest.raises(RuntimeError, match="rank_of_id"):
            FeatureEmbeddings(plan, ids={}).load_state_dict(layer.state_dict())

    @pytest.mark.parametrize(
        "order", [[0, 1], [0] * 10, [-1, *range(9)], [10, *range(9)], [list(range(10))]]
    )
    def test_an_order_must_be_a_permutation(self, order):
        with pytest.raises(
            ValueError, match="order of feature 'item' must list each of its ids 0 to 9 once"
        ):
            MixedDimEmbedding(banded_plan()["item"], ids=order)

    def test_an_order_of_an_unknown_feature_is_refused(self):
        with pytest.raises(KeyError, match="unknown feature 'shop'"):
            FeatureEmbeddings(banded_plan(), ids={"shop": [0]})
        with pytest.raises(TypeError, match="order of feature 'item' must be integers"):
            FeatureEmbeddings(banded_plan(), ids={"item": [0.5] * 10})
