from dataclasses import replace
from functools import reduce
from itertools import combinations_with_replacement, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mixdim import Rows, equal_mass_bands
from mixdim.layer.rank_code import rank_code_nbytes
from mixdim.planning.bands import candidate_cuts
from mixdim.planning.from_tables import choose
from mixdim.planning.trained_table import UNSEEN, TrainedTable
from mixdim.storages.levels import BITS, NOISE
from small_tables import best_error, chosen_for, random_table


def dims(choice):
    return [(block.size, block.dim) for block in choice.plan.blocks]


def bands_of(choice, table):
    """The ids of each band, field by field."""
    bands = table.fields if choice.bands is None else choice.bands
    edges, starts = [block.start for block in choice.plan.blocks], np.cumsum([0, *table.fields])
    ids = []
    for own, (a, b) in zip(bands, pairwise(starts), strict=True):
        if isinstance(own, np.ndarray):
            ids += [a + np.flatnonzero(own == band) for band in range(own.max() + 1)]
        else:  # ids are ranks
            ids += np.split(np.arange(a, b), [edge - a for edge in edges if a < edge < b])
    assert [len(own) for own in ids] == [block.size for block in choice.plan.blocks]
    return ids


def energies_of(vectors, probs, metric=None, *, mean=False):
    """The squared singular values of the weighted rows, without their mean if that is kept."""
    root = np.eye(vectors.shape[1]) if metric is None else np.linalg.cholesky(metric)
    if mean:
        vectors = vectors - np.average(vectors, axis=0, weights=probs)
    found = np.linalg.svd(np.sqrt(probs)[:, None] * vectors @ root, compute_uv=False) ** 2
    return np.concatenate([found, np.zeros(vectors.shape[1] - len(found))])


def error_of_rows(vectors, probs, storage, metric=None):
    """What a storage leaves of rows by the definition: directions that are dropped, noise of others."""
    if storage.bits == 32:
        return best_error(vectors, probs, storage.dim, metric)
    width = vectors.shape[1]
    if storage.dim >= width and isinstance(storage.bits, int) and not storage.mean:
        seen = np.ones(width) if metric is None else metric.diagonal()
        return NOISE[storage.bits] * (probs @ vectors**2 @ seen)
    energies = energies_of(vectors, probs, metric, mean=storage.mean)
    noise = np.array([NOISE[own] for own in storage.code.bits] + [1.0] * (width - storage.dim))
    return float(energies @ noise)


def error_of(choice, table, metric=None):
    """The least error of the bands and storages that were chosen."""
    vectors, probs = np.asarray(table.weight, dtype=np.float64), table.row_probs
    both = zip(bands_of(choice, table), choice.plan.blocks, strict=True)
    return sum(error_of_rows(vectors[ids], probs[ids], b.storage, metric) for ids, b in both)


def cost_of(size, storage, width):
    """Bytes of a block by the definition."""
    dim = storage.dim
    if dim == 0:
        return 4 * width
    if storage.bits == 32:
        return 4 * size * dim + (4 * dim * width if dim < width else 0)
    lift = (dim + storage.mean) * width if storage.is_lifted(width) else 0
    return size * -(-sum(storage.code.bits) // 8) + 2 * (dim + lift)


def all_storages(bits, width):
    """Every storage that may be chosen."""
    if bits != "auto":
        return [Rows(0), *(Rows(dim, own) for own in bits for dim in range(1, width + 1))]
    found = [Rows(0), *(Rows(dim) for dim in range(1, width + 1)), *(Rows(width, own) for own in BITS)]
    for mean in (False, True):
        for dim in range(1, width + 1 - mean):
            every = combinations_with_replacement(BITS[::-1], dim)
            found += [Rows(dim, own, mean) for own in every if dim < width or len(set(own)) > 1 or mean]
    return list(dict.fromkeys(found))


def brute_force(table, budget, bits):
    """The least error of all ways to cut into two bands or none, and of all storages."""
    vectors, probs, width = table.weight.double().numpy(), table.row_probs, table.width
    pieces, errors = candidate_cuts(table.counts, 2), []
    for cut in [(0,), *((0, start) for start in range(1, len(pieces.sizes)))]:
        band_of_id = pieces.band_of_id(cut)
        bands = [np.flatnonzero(band_of_id == band) for band in range(len(cut))]
        held = rank_code_nbytes(table.rows, len(cut), table.rows) if len(cut) > 1 else 0
        known = []
        for ids in bands:
            every = [
                (cost_of(len(ids), own, width), error_of_rows(vectors[ids], probs[ids], own))
                for own in all_storages(bits, width)
            ]
            known.append(np.array(every).T)
        costs, errors_of = (reduce(np.add.outer, [own[n] for own in known]) for n in range(2))
        fits = held + costs <= budget
        errors += [errors_of[fits].min()] if fits.any() else []
    return min(errors)


@settings(max_examples=40)
@given(st.integers(0, 1000), st.floats(0.05, 1), st.sampled_from([(32,), (8,), (32, 8, 4), "auto"]))
def test_cuts_widths_and_bits_are_as_good_as_trying_everything(seed, share, bits):
    table = random_table(seed, rows=60, width=3)
    budget = max(int(share * table.nbytes), 4 * table.width)
    choice = chosen_for([table], budget, bands=2, bits=bits)[0]
    best = brute_force(table, budget, bits)
    assert choice.nbytes <= budget
    assert choice.error == pytest.approx(error_of(choice, table), rel=1e-6, abs=1e-12)
    near = (1.02 if bits == "auto" else 1.003) * best + 1e-5 * choice.energy
    assert best * (1 - 1e-6) - 1e-9 <= choice.error <= near


@pytest.mark.parametrize("share", [4, 16, 64])
def test_no_other_storage_of_a_single_band_is_better(share):
    """Of all bits by direction there are, also those that were not tried."""
    tables = [
        random_table(1, rows=2000, width=4, name="a"),
        random_table(2, rows=500, width=4, name="b"),
    ]
    budget = sum(table.nbytes for table in tables) // share
    every = choose(tables, budget, bits="auto")
    left = budget - sum(choice.nbytes for choice in every)
    whole = sum(t.use * choice.error for t, choice in zip(tables, every, strict=True))
    assert 0 <= left <= 0.02 * budget
    for table, choice in zip(tables, every, strict=True):
        vectors, probs = table.weight.double().numpy(), table.row_probs
        for ids, block in zip(bands_of(choice, table), choice.plan.blocks, strict=True):
            cost = cost_of(len(ids), block.storage, 4)
            error = error_of_rows(vectors[ids], probs[ids], block.storage)
            for other in all_storages("auto", 4):
                if cost_of(len(ids), other, 4) <= cost + left:
                    saved = error - error_of_rows(vectors[ids], probs[ids], other)
                    assert table.use * saved <= 0.01 * whole


@pytest.mark.parametrize("bits", [(32,), (8,), (4,), (32, 8, 4), "auto"])
@pytest.mark.parametrize("fields", [(), (30, 170, 100)])
def test_all_tables_keep_one_budget_and_fields_are_cut_at_their_borders(fields, bits):
    tables = [
        random_table(1, name="a", fields=fields),
        random_table(2, name="b", rows=500, width=9),
        random_table(3, name="c", rows=7, width=4),
    ]
    whole = sum(table.nbytes for table in tables)
    for factor in (2, 5, 20):
        every = chosen_for(tables, whole // factor, bits=bits)
        assert sum(choice.nbytes for choice in every) <= whole // factor
        for table, choice in zip(tables, every, strict=True):
            blocks, ids = choice.plan.blocks, bands_of(choice, table)
            if bits != "auto":
                assert {block.storage.bits for block in blocks if block.dim} <= set(bits)
            assert list(choice.plan) == [table.name]
            borders = np.cumsum(table.fields)[:-1].tolist()
            assert {block.start for block in blocks} >= {0, *borders}
            assert sorted(np.concatenate(ids).tolist()) == list(range(table.rows))


def test_fewer_bits_are_offered_beside_others_to_lose_less():
    table = random_table(0, rows=2000, width=8)
    budget = table.nbytes // 8
    alone = {bits: chosen_for([table], budget, bits=[bits])[0] for bits in (32, 8)}
    offered = chosen_for([table], budget, bits=(32, 8, 4))[0]
    assert {block.storage.bits for block in offered.plan.blocks} <= {32, 8, 4}
    assert {block.storage.bits for block in offered.plan.blocks if block.dim} != {32}
    assert offered.error < alone[32].error


def test_a_free_base_dim_is_one_for_all_tables_and_given_bands_are_kept():
    tables = [random_table(1, name="a"), random_table(2, rows=500, width=9, name="b")]
    blocks = [
        equal_mass_bands(table.counts, number) for table, number in zip(tables, (3, 5), strict=True)
    ]
    budget, errors = sum(table.nbytes for table in tables) // 4, {}
    for bits in ((32,), (8,), (32, 8, 4)):
        every = choose(tables, budget, bands=blocks, bits=bits, base_dim="free")
        base_dim = max(block.dim for choice in every for block in choice.plan.blocks)
        assert {choice.plan.base_dim for choice in every} == {base_dim}
        assert sum(choice.nbytes for choice in every) <= budget
        for table, own, choice in zip(tables, blocks, every, strict=True):
            assert [block.size for block in choice.plan.blocks] == own.block_sizes.tolist()
            assert choice.plan.features[0].requested_bands == own.num_requested
            assert choice.error == pytest.approx(error_of(choice, table), rel=1e-6)
        errors[bits] = sum(t.use * choice.error for t, choice in zip(tables, every, strict=True))
    assert errors[32, 8, 4] <= errors[8,] < errors[32,]
    with pytest.raises(ValueError, match=r"bands must be of tables of \[300, 500\] rows, got blocks of"):
        choose(tables, budget, bands=blocks[:1])


def test_the_error_told_is_that_of_the_nearest_tables_in_the_metric():
    gradients = np.random.default_rng(5).normal(size=(4, 6))  # fewer than 6: a singular metric
    metric = gradients.T @ gradients
    seen = metric + 1e-3 * np.trace(metric) / 6 * np.eye(6)
    for options in ({}, {"fields": (100, 200)}, {"metric": torch.tensor(metric)}, {"metric": metric}):
        table, own = random_table(4, **options), seen if "metric" in options else np.eye(6)
        vectors = table.weight.double().numpy()
        energy = table.row_probs @ np.einsum("ij,jk,ik->i", vectors, own, vectors)
        for factor in (2, 4, 8, 16):
            choice = chosen_for([table], table.nbytes // factor)[0]
            assert choice.error == pytest.approx(error_of(choice, table, own), rel=1e-6)
            assert choice.error < choice.energy == pytest.approx(energy)
            assert choice.kept_energy == pytest.approx(1 - choice.error / energy)


def test_equal_popularity_and_one_band_are_the_plain_svd():
    weight = np.random.default_rng(0).normal(size=(50, 8))
    for counts in (None, np.zeros(50, np.int64), np.full(50, 7)):
        table = TrainedTable("x", weight, counts)
        choice = choose([table], 4 * (50 * 3 + 3 * 8), bands=1)[0]
        assert dims(choice) == [(50, 3)]
        assert choice.error == pytest.approx(best_error(weight, np.full(50, 1 / 50), 3))


def test_the_budget_of_the_tables_gives_them_back_and_less_never_loses_less():
    tables = [random_table(i, rows=100 * i, name=f"t{i}", width=4 + i) for i in range(1, 4)]
    whole, errors = sum(table.nbytes for table in tables), []
    for budget in np.linspace(0.01 * whole, whole, 25):
        every = chosen_for(tables, int(budget))
        both = zip(tables, every, strict=True)
        errors.append(sum(table.use * choice.error for table, choice in both))
    assert all(after <= 1.02 * before for before, after in pairwise(errors))
    assert errors[-1] == 0
    assert all(choice.bands is None and choice.kept_energy == 1 for choice in every)
    assert [dims(choice) for choice in every] == [[(table.rows, table.width)] for table in tables]


def test_least_widths_are_kept_and_a_tables_own_width_is_always_there():
    table = random_table(8)
    for choice in chosen_for([table], table.nbytes // 3, dims=range(1, 7)):
        assert min(block.dim for block in choice.plan.blocks) >= 1
    with pytest.raises(ValueError, match=r"smallest for this table is 1,224 bytes with min_dim 1"):
        chosen_for([table], 1000, dims=range(1, 7))
    wide = chosen_for([table, random_table(9, rows=5, width=2, name="b")], 10**5, dims=[4, 5])
    assert dims(wide[1]) == [(5, 2)]


def test_rows_never_looked_up_get_what_is_left():
    rng = np.random.default_rng(0)
    counts = rng.permutation(np.concatenate([np.full(50, 10), np.zeros(950, np.int64)]))
    table = TrainedTable("x", rng.normal(size=(1000, 8)), counts)
    choice = chosen_for([table], table.nbytes // 8, bands=2)[0]
    assert [b.dim for b in choice.plan.blocks] == [8, 0]
    assert choice.error == pytest.approx(UNSEEN * 8 * 0.95, rel=0.1)


def test_ids_in_order_of_popularity_need_no_ranks():
    table = random_table(3)
    order = np.argsort(-table.counts, kind="stable")
    ordered = TrainedTable("x", table.weight[torch.from_numpy(order)], table.counts[order])
    choice = chosen_for([ordered], ordered.nbytes // 8)[0]
    assert choice.bands is None
    assert len(choice.plan.blocks) > 1
    assert choice.error < chosen_for([table], table.nbytes // 8)[0].error


@pytest.mark.parametrize("seed", range(4))
def test_a_band_of_one_row_does_not_share_it(seed):
    """Width 0 would cost and keep the same, but for what is rounded on the way."""
    rng = np.random.default_rng(seed)
    tables = [
        TrainedTable(str(rows), rng.normal(size=(rows, 16)), -np.sort(-rng.zipf(1.5, rows)), lookups=1.0)
        for rows in (3, 7, 500)
    ]
    for budget in (8_000, 12_000, 18_000, 25_000):
        assert not any((1, 0) in dims(choice) for choice in choose(tables, budget))


def test_a_table_used_more_often_keeps_more():
    seldom, other = (random_table(3, name=name) for name in ("seldom", "often"))
    for often in (replace(other, counts=50 * other.counts), replace(other, lookups=50 * other.use)):
        of_seldom, of_often = chosen_for([seldom, often], (seldom.nbytes + often.nbytes) // 8)
        assert of_often.error < of_seldom.error
        assert of_often.nbytes > of_seldom.nbytes


def test_a_table_is_read_in_chunks_whatever_holds_it(monkeypatch):
    """Arrays, tensors that share memory with arrays, and types that NumPy does not know."""
    monkeypatch.setattr("mixdim.planning.trained_table.AT_ONCE", 6 * 64)  # several chunks
    table = random_table(0)
    exact = table.weight.double().numpy()
    for weight in (exact, exact.tolist(), table.weight.requires_grad_(), table.weight.bfloat16()):
        own = replace(table, weight=weight)
        vectors = np.asarray(own.weight.detach().double() if torch.is_tensor(weight) else weight)
        ids = np.random.default_rng(1).permutation(300)[:150]
        weighted = np.sqrt(own.row_probs[ids])[:, None] * vectors[ids]
        moments = own.moments(ids)
        np.testing.assert_allclose(moments.second, weighted.T @ weighted, rtol=1e-9)
        np.testing.assert_allclose(moments.first, own.row_probs[ids] @ vectors[ids], rtol=1e-9)
        expected = np.linalg.svd(weighted, compute_uv=False) ** 2
        np.testing.assert_allclose(moments.energies(), expected, rtol=1e-9)
        assert own.number_bytes == (weight.element_size() if torch.is_tensor(weight) else 4)


def test_fewer_rows_than_columns_leave_energies_of_zero():
    moments = TrainedTable("x", np.ones((1, 3))).moments(np.arange(1))
    assert moments.energies().tolist() == pytest.approx([3, 0, 0])
    assert (moments.energies()[1:] == 0).all()


def test_bad_input_is_refused_by_name():
    weight, counts = np.zeros((4, 2)), np.ones(4)
    for arguments, message in (
        ((weight, np.ones(3)), "counts of table 'x' must be one for each of 4 rows, got 3"),
        ((weight, [1, -1, 2, 3]), "counts of table 'x' must be finite and not negative, got -1"),
        ((weight, counts, (2, 3)), "fields of table 'x' must add up to its 4 rows, got 5"),
        ((torch.zeros(4, 2).long(), counts), r"table 'x' must be numbers of shape .* got torch.int64"),
        ((weight, counts, (), torch.eye(3)), r"metric of table 'x' must be a matrix of shape \(2, 2\)"),
        ((weight, counts, (), np.full((2, 2), np.nan)), "metric of table 'x' must be finite"),
    ):
        with pytest.raises(ValueError, match=message):
            TrainedTable("x", *arguments)
    for wrong in (np.nan, np.inf):
        broken = weight.copy()
        broken[2, 1] = wrong
        with pytest.raises(ValueError, match="weights of table 'x' must be finite, row 2 is not"):
            choose([TrainedTable("x", broken, [1, 2, 0, 3])], 100)
    with pytest.raises(ValueError, match="weights of table 'x' must be below 1e150"):
        choose([TrainedTable("x", np.full((4, 2), 1e200))], 100)
    table = random_table(0)
    for options, message in (
        ({"bands": 65}, "bands must be at most 64, got 65"),
        ({"bands": "many"}, "bands must be a whole number or 'octaves', got 'many'"),
        ({"bits": (7,)}, "bits must be .*, got 7"),
        ({"bits": "few"}, "bits must be 'auto' or numbers of bits, got 'few'"),
        ({"bits": "auto", "dims": [2, 4]}, "dims must begin with 0 or 1, got 2"),
        ({"bits": ()}, "bits must not be empty"),
        ({"dims": [-1]}, "dims must be at least 0, got -1"),
        ({"dims": [0], "base_dim": "free"}, "dims must be at least 1, got 0"),
        ({"budget": 9}, r"budget of 9 B \(9 bytes\) is too small: .* is 24 bytes"),
        ({"tables": []}, "tables must not be empty"),
    ):
        with pytest.raises(ValueError, match=message):
            choose(**{"tables": [table], "budget": 10_000, **options})
