"""Blocks that are hit often are lifted once for all their hits: the same vectors, at a lower cost."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from both_paths import assert_same_results, plain_path, threads
from hypothesis import given, settings
from hypothesis import strategies as st

import mixdim
from mixdim.kernels.library import call
from mixdim.kernels.structs import LayerStructs
from strategies import drawn_layer, examples, quiet_plan

TOUCH, MOST_FLOATS, MANY_SAMPLES, STEP = 3, 2**21, 1024, 8  # of lifted.h
CLOSE = {"rtol": 1e-4, "atol": 1e-4}  # of sums of thousands of terms around 1


def lifted_blocks(layer, ids, offsets=None):
    """Of each block: whether the kernel lifts it for these ids."""
    structs = LayerStructs(layer.kernel_lookup(layer.training_view, ids, offsets))
    lifts = np.full(len(layer.plan.blocks), -1)
    structs.raise_if_wrong(call("mixdim_lifts", structs.layer, structs.ids, lifts))
    return [bool(one) for one in lifts]


def expected_blocks(layer, bags):
    """The same by the rule; bags[feature][sample] are lists of ids."""
    plan, base_dim, batch = layer.plan, layer.base_dim, len(bags[0])
    step = STEP if batch >= MANY_SAMPLES else 1
    saved, first_block = {}, 0
    for feature, mine in zip(plan.features, bags, strict=True):
        order = plan.orders.get(feature.name) if layer.ids.rank_of_id is not None else None
        rank_of = {int(i): rank for rank, i in enumerate(order if order is not None else [])}
        starts = [block.start for block in feature.blocks]
        hits = [
            [np.searchsorted(starts, rank_of.get(i, i), side="right") - 1 for i in bag]
            for bag in ([i for i in bag if i != layer.padding_id] for bag in mine[::step])
        ]
        for number, block in enumerate(feature.blocks):
            values = step * sum(bag.count(number) for bag in hits)
            filled = step * sum(number in bag for bag in hits)
            gain = filled * block.dim - values * TOUCH - block.size * (block.dim + TOUCH)
            if block.dim < base_dim and gain > 0:
                saved[first_block + number] = (gain / block.size, block.size * base_dim)
        first_block += len(feature.blocks)
    room = min(MOST_FLOATS, batch * plan.num_features * base_dim // 16)
    lifted = [False] * len(plan.blocks)
    for number, (_, size) in sorted(saved.items(), key=lambda item: -item[1][0]):
        lifted[number] = size <= room
        room -= size * lifted[number]
    return lifted


@st.composite
def layers(draw):
    """A feature of few rows, one of many, and one between; cut into bands or whole."""
    rows = {
        "few": draw(st.integers(1, 8)),
        "some": draw(st.integers(10, 60)),
        "many": draw(st.integers(200, 2000)),
    }
    falling = {name: 1e6 / np.arange(1, n + 1) for name, n in rows.items()}
    plan = quiet_plan(
        rows,
        counts={name: np.roll(counts, 3) for name, counts in falling.items()},
        bands={name: draw(st.integers(1, 4)) for name in rows},
        temperature=draw(st.sampled_from([0.1, 0.2, 0.4, 0.8])),
        base_dim=draw(st.one_of(st.integers(1, 100), st.sampled_from([16, 32, 64]))),
        rounding=draw(st.sampled_from(["integer", "power_of_two"])),
    )
    return drawn_layer(draw, plan)


BATCHES = st.sampled_from([1, 2, 47, 200, 400, 1023, 1024, 1100])


def popular_ids(layer, rows, count, generator):
    """Ids whose popularity falls, by the order of the layer's plan or another; some are padding."""
    ids = (rows ** torch.rand(count, generator=generator, dtype=torch.float64) - 1).to(torch.int64)
    if layer.padding_id is not None:
        ids[torch.rand(count, generator=generator) < 0.1] = layer.padding_id
    return ids


def single_ids(layer, batch, seed):
    generator = torch.Generator().manual_seed(seed)
    columns = [popular_ids(layer, f.rows, batch, generator) for f in layer.plan.features]
    return torch.stack(columns, dim=1), generator


def some_bags(layer, batch, longest, seed):
    generator = torch.Generator().manual_seed(seed)
    num_bags = batch * layer.plan.num_features
    lengths = torch.randint(longest + 1, (num_bags,), generator=generator)
    counts = lengths.view(-1, batch).sum(dim=1).tolist()
    features = zip(layer.plan.features, counts, strict=True)
    values = torch.cat([popular_ids(layer, f.rows, count, generator) for f, count in features])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return values, offsets, generator


def test_single_ids_have_the_vectors_of_their_dense_rows_whether_lifted_or_not():
    seen = set()

    @settings(max_examples=examples(100))
    @given(layers(), BATCHES, st.integers(0, 1000), st.booleans())
    def check(layer, batch, seed, wide_ids):
        ids, generator = single_ids(layer, batch, seed)
        ids = ids if wide_ids else ids.to(torch.int32)
        lifted = lifted_blocks(layer, ids)
        assert lifted == expected_blocks(layer, [[[i] for i in column] for column in ids.t().tolist()])
        seen.update(lifted)
        pull = torch.randn(ids.numel() * layer.base_dim, generator=generator) / batch**0.5
        assert_same_results(lambda: layer(ids), list(layer.parameters()), pull, **CLOSE)
        for name, column, found in zip(layer.plan, ids.t().long(), layer(ids).unbind(1), strict=True):
            dense = layer.dense_weight(name)[column.clamp(min=0)]
            if layer.padding_id is not None:
                dense = dense.where(column[:, None] != layer.padding_id, 0.0)
            torch.testing.assert_close(found, dense, **CLOSE)

    check()
    assert seen == {False, True}


@settings(max_examples=examples(50))
@given(layers(), st.integers(0, 1000))
def test_lifted_vectors_have_the_bits_of_those_that_are_looked_up_alone(layer, seed):
    ids, _ = single_ids(layer, 400, seed)
    together = layer(ids)
    for sample in range(0, 400, 7):
        alone = ids[sample : sample + 1]
        assert not any(lifted_blocks(layer, alone))
        assert torch.equal(layer(alone), together[sample : sample + 1])


def test_bags_have_the_sums_of_plain_pytorch_whether_lifted_or_not():
    seen = set()

    @settings(max_examples=examples(100))
    @given(layers(), BATCHES, st.sampled_from([1, 2, 6]), st.integers(0, 1000), st.booleans())
    def check(layer, batch, longest, seed, weighted):
        values, offsets, generator = some_bags(layer, batch, longest, seed)
        lifted = lifted_blocks(layer, values, offsets)
        ends = offsets.tolist()
        lists = [values[a:b].tolist() for a, b in pairwise(ends)]
        bags = [lists[f * batch : (f + 1) * batch] for f in range(layer.plan.num_features)]
        assert lifted == expected_blocks(layer, bags)
        seen.update(lifted)
        weights = torch.randn(len(values), generator=generator) if weighted else None
        pull = torch.randn((len(offsets) - 1) * layer.base_dim, generator=generator) / batch**0.5
        parameters = list(layer.parameters())
        assert_same_results(lambda: layer.bags(values, offsets, weights), parameters, pull, **CLOSE)

    check()
    assert seen == {False, True}


def three_features(**options):
    """Twenty rows of 16 dimensions, and two thousand of 2, beside four of full width."""
    plan = mixdim.plan({"few": 4, "some": 20, "many": 2000}, temperature=0.4, base_dim=32)
    assert [block.dim for block in plan.blocks] == [32, 16, 2]
    return mixdim.FeatureEmbeddings(plan, **options)


def cycling_ids(batch, *rows):
    return torch.stack([torch.arange(batch) % n for n in rows], dim=1)


class TestTheChoice:
    def test_few_rows_with_many_hits_are_lifted_and_many_rows_are_not(self):
        assert lifted_blocks(three_features(), cycling_ids(500, 4, 20, 2000)) == [False, True, False]

    def test_as_many_rows_as_hits_are_not(self):
        assert not any(lifted_blocks(three_features(), cycling_ids(20, 4, 20, 2000)))

    def test_padding_is_no_hit(self):
        layer = three_features(padding_id=-1)
        ids = cycling_ids(500, 4, 20, 2000)
        ids[20:, 1] = -1
        assert not any(lifted_blocks(layer, ids))

    def test_long_bags_are_added_up_before_they_are_lifted(self):
        """A projection for each bag of twenty, or an addition of D floats for each of its values."""
        layer, batch = three_features(), 480
        for length, lifts in ((1, True), (20, False)):
            values = cycling_ids(batch * length, 4, 20, 2000).t().reshape(-1)
            offsets = torch.arange(0, len(values) + 1, length)
            assert lifted_blocks(layer, values, offsets) == [False, lifts, False]

    def test_lifted_vectors_take_a_sixteenth_of_the_output_at_most(self):
        plan = mixdim.plan({"few": 4, "some": 200}, temperature=0.2, base_dim=64)
        layer = mixdim.FeatureEmbeddings(plan)
        for batch in (1599, 1600):
            assert lifted_blocks(layer, cycling_ids(batch, 4, 200)) == [False, batch == 1600]

    def test_the_number_of_threads_decides_nothing(self):
        layer, ids = three_features(), cycling_ids(3000, 4, 20, 2000)
        for count in (1, 2):
            with threads(count):
                assert lifted_blocks(layer, ids) == [False, True, False]


class TestEdges:
    @pytest.mark.parametrize("bad", [-1, 20, 2**31, -(2**40)])
    def test_a_bad_id_of_a_lifted_block_is_the_error_of_plain_pytorch(self, bad):
        layer, ids = three_features(), cycling_ids(500, 4, 20, 2000)
        ids[70, 1] = ids[333, 1] = bad
        values, offsets = ids.t().reshape(-1), torch.arange(1501)
        for lookup in (lambda: layer(ids), lambda: layer.bags(values, offsets)):
            with pytest.raises(IndexError) as by_kernel:
                lookup()
            with plain_path(), pytest.raises(IndexError) as by_pytorch:
                lookup()
            assert str(by_kernel.value) == str(by_pytorch.value)
            assert f"id {bad} of feature 'some'" in str(by_kernel.value)

    def test_an_order_that_was_damaged_is_an_error(self):
        layer = three_features(ids={"some": list(range(19, -1, -1))})
        ids = cycling_ids(500, 4, 20, 2000)
        assert lifted_blocks(layer, ids)[1]
        layer.ids.rank_of_id[7] = 10**6
        with pytest.raises(IndexError, match="rank_of_id"):
            layer(ids)

    def test_empty_batches_have_nothing_to_lift(self):
        layer = three_features()
        empty = torch.zeros(0, 3, dtype=torch.int64)
        assert layer(empty).shape == (0, 3, 32)
        assert layer.bags(empty.view(-1), torch.zeros(1, dtype=torch.int64)).shape == (0, 3, 32)
        bags = layer.bags(empty.view(-1), torch.zeros(3001, dtype=torch.int64))
        assert torch.equal(bags, torch.zeros(1000, 3, 32))

    def test_every_call_lifts_the_weights_of_its_time(self):
        """The memory of lifted vectors is kept from call to call; what is in it is not."""
        layer, other = three_features(), three_features()
        ids = cycling_ids(500, 4, 20, 2000)
        for _ in range(2):
            for mine in (layer, other):
                with torch.no_grad():
                    for parameter in mine.parameters():
                        parameter.mul_(-1.5)
                expected = mine.dense_weight("some")[ids[:, 1]]
                torch.testing.assert_close(mine(ids)[:, 1], expected, **CLOSE)
