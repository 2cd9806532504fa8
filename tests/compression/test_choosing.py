from itertools import combinations, pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mixdim.compression.choosing import choose
from mixdim.compression.cutting import cut_field
from mixdim.compression.subject import NEVER_ASKED, Subject
from mixdim.compression.table import CompressedTable
from mixdim.layer.rank_code import rank_code_nbytes
from small_subjects import measured_error, random_subject


def dims(chosen):
    return [(block.size, block.dim) for block in chosen.plan.blocks]


def best_error(vectors, probs, dim):
    """The least weighted squared distance of rank `dim`, by the SVD; of 0, that of the mean."""
    if dim == 0:
        away = vectors - probs @ vectors / probs.sum()
        return float(probs @ (away**2).sum(axis=1))
    return float((np.linalg.svd(np.sqrt(probs)[:, None] * vectors, compute_uv=False)[dim:] ** 2).sum())


def brute_force(subject, budget):
    """The least error of all ways to cut into two bands or none, and of all widths."""
    vectors, probs = subject.weight.double().numpy(), subject.row_probs
    width, rows = subject.width, subject.rows
    pieces = cut_field(subject.counts, 0, 2)
    errors = []
    for cut in pieces.cuts:
        bands = pieces.band_of_id(cut)
        ids = [np.flatnonzero(bands == band) for band in range(len(cut))]
        held = rank_code_nbytes(rows, len(cut), of_rows=rows) if len(cut) > 1 else 0
        for widths in product(range(width + 1), repeat=len(cut)):
            cost = held + sum(
                4 * (len(own) * dim + dim * width * (dim < width) if dim else width)
                for own, dim in zip(ids, widths, strict=True)
            )
            if cost <= budget:
                parts = zip(ids, widths, strict=True)
                errors.append(sum(best_error(vectors[own], probs[own], dim) for own, dim in parts))
    return min(errors)


@settings(max_examples=25)
@given(st.integers(0, 1000), st.floats(0.05, 1))
def test_cuts_and_widths_are_as_good_as_trying_everything(seed, share):
    subject = random_subject(seed, rows=60, width=3)
    budget = int(share * subject.nbytes)
    chosen = choose([subject], budget, bands=2)[0]
    best = brute_force(subject, budget)
    assert chosen.nbytes <= budget
    assert best * (1 - 1e-6) - 1e-9 <= chosen.error <= 1.003 * best + 1e-9


@pytest.mark.parametrize("bits", [None, 8, 4])
@pytest.mark.parametrize("fields", [(), (30, 170, 100)])
def test_bytes_keep_the_budget_and_are_those_of_the_table(fields, bits):
    subjects = [
        random_subject(1, name="a", fields=fields),
        random_subject(2, name="b", rows=500, width=9),
        random_subject(3, name="c", rows=7, width=4),
    ]
    whole = sum(subject.nbytes for subject in subjects)
    for factor in (2, 5, 20):
        every = choose(subjects, whole // factor, bits=bits)
        assert sum(chosen.nbytes for chosen in every) <= whole // factor
        for subject, chosen in zip(subjects, every, strict=True):
            assert CompressedTable.fitted(subject, chosen).nbytes == chosen.nbytes
            kinds = {block.storage.bits for block in chosen.plan.blocks if block.dim}
            assert kinds <= {bits or 32}
            assert list(chosen.plan) == [subject.name]


def test_the_error_told_is_the_error_measured():
    generator = np.random.default_rng(5)
    gradients = generator.normal(size=(4, 6))  # fewer than 6: a singular metric
    metric = gradients.T @ gradients
    for options in ({}, {"fields": (100, 200)}, {"metric": torch.tensor(metric)}):
        subject = random_subject(4, **options)
        ridge = 1e-3 * np.trace(metric) / 6 * np.eye(6)
        seen = metric + ridge if "metric" in options else np.eye(6)
        for factor in (2, 4, 8, 16):
            chosen = choose([subject], subject.nbytes // factor)[0]
            table = CompressedTable.fitted(subject, chosen)
            assert chosen.error == pytest.approx(measured_error(subject, table, seen), rel=1e-4)
            vectors = subject.weight.double().numpy()
            energy = subject.row_probs @ np.einsum("ij,jk,ik->i", vectors, seen, vectors)
            assert chosen.error < chosen.energy == pytest.approx(energy)


def test_no_table_of_the_same_widths_is_nearer_in_the_metric():
    rng = np.random.default_rng(0)
    factor = rng.normal(size=(6, 6))
    subject = random_subject(0, metric=torch.tensor(factor @ factor.T))
    chosen = choose([subject], subject.nbytes // 6)[0]
    table = CompressedTable.fitted(subject, chosen)
    seen = subject.metric_root.root @ subject.metric_root.root
    least = measured_error(subject, table, seen.numpy())
    weights = torch.tensor(subject.row_probs, dtype=torch.float32)
    away = table.dense_weight() - subject.weight
    loss = (weights * ((away @ seen.float()) * away).sum(1)).sum()
    assert loss.item() == pytest.approx(least, rel=1e-4)
    loss.backward()  # where it is least, it is flat
    assert all(p.grad.abs().max() < 1e-4 * p.abs().max() for p in table.parameters())


def test_equal_popularity_and_one_band_are_the_plain_svd():
    weight = torch.randn(50, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for counts in (np.zeros(50, np.int64), np.full(50, 7)):
        subject = Subject("x", weight, counts)
        chosen = choose([subject], 8 * (50 * 3 + 3 * 8), bands=1)[0]
        assert dims(chosen) == [(50, 3)]
        u, s, v = torch.linalg.svd(weight, full_matrices=False)
        nearest = (u[:, :3] * s[:3]) @ v[:3]
        torch.testing.assert_close(CompressedTable.fitted(subject, chosen).dense_weight(), nearest)
        assert chosen.error == pytest.approx(float((s[3:] ** 2).sum()) / 50)


def test_the_budget_of_the_tables_gives_them_back():
    subjects = [random_subject(i, rows=40 * i, width=5 + i, name=f"t{i}") for i in range(1, 4)]
    for subject, chosen in zip(
        subjects, choose(subjects, sum(subject.nbytes for subject in subjects)), strict=True
    ):
        assert chosen.error == 0
        assert chosen.codes is None
        assert torch.equal(CompressedTable.fitted(subject, chosen).dense_weight(), subject.weight)


def test_more_bytes_never_lose_much_more():
    subjects = [random_subject(i, name=f"t{i}", width=4 + i) for i in range(3)]
    whole, often = sum(s.nbytes for s in subjects), [s.counts.sum() for s in subjects]
    errors = [
        sum(n * chosen.error for n, chosen in zip(often, choose(subjects, int(budget)), strict=True))
        for budget in np.linspace(0.01 * whole, whole, 25)
    ]
    assert all(after <= 1.02 * before for before, after in pairwise(errors))
    assert errors[-1] == 0


def test_a_width_of_zero_is_the_mean_by_popularity():
    subject = random_subject(7, rows=80, width=4)
    table = CompressedTable.fitted(subject, choose([subject], 16, bands=1)[0])
    mean = np.average(subject.weight.numpy(), axis=0, weights=subject.row_probs)
    np.testing.assert_allclose(table.dense_weight().detach(), np.tile(mean, (80, 1)), rtol=1e-5)


def test_least_widths_are_kept():
    subject = random_subject(8)
    for chosen in choose([subject], subject.nbytes // 3, min_dim=1):
        assert min(block.dim for block in chosen.plan.blocks) >= 1
    with pytest.raises(ValueError, match=r"smallest for this table is 1,224 bytes with min_dim 1"):
        choose([subject], 1000, min_dim=1)
    wide = choose([subject, random_subject(9, rows=5, width=2, name="b")], 10**5, min_dim=4)
    assert dims(wide[1]) == [(5, 2)]


def test_fields_are_cut_at_their_borders():
    fields = (30, 170, 100)
    subject = random_subject(1, fields=fields)
    for factor in (2, 8, 20):
        chosen = choose([subject], subject.nbytes // factor)[0]
        starts = {block.start for block in chosen.plan.blocks}
        assert {0, 30, 200} <= starts
        ids = chosen.codes.ids().numpy()
        for a, b in pairwise(np.cumsum([0, *fields])):
            assert sorted(ids[a:b]) == list(range(a, b))


def test_rows_never_asked_for_get_what_is_left():
    rng = np.random.default_rng(0)
    counts = rng.permutation(np.concatenate([np.full(50, 10), np.zeros(950, np.int64)]))
    subject = Subject("x", torch.tensor(rng.normal(size=(1000, 8)), dtype=torch.float32), counts)
    chosen = choose([subject], subject.nbytes // 8, bands=2)[0]
    assert [b.dim for b in chosen.plan.blocks] == [8, 0]
    assert chosen.error == pytest.approx(NEVER_ASKED * 8 * 0.95, rel=0.1)


def test_ids_in_order_of_popularity_need_no_ranks():
    subject = random_subject(3)
    order = np.argsort(-subject.counts, kind="stable")
    ordered = Subject("x", subject.weight[torch.from_numpy(order)], subject.counts[order])
    chosen = choose([ordered], ordered.nbytes // 8)[0]
    assert chosen.codes is None
    assert len(chosen.plan.blocks) > 1
    assert chosen.error < choose([subject], subject.nbytes // 8)[0].error


def test_a_table_asked_for_more_often_keeps_more():
    seldom, often = (random_subject(3, name=name) for name in ("seldom", "often"))
    often = Subject("often", often.weight, 50 * often.counts)
    budget = (seldom.nbytes + often.nbytes) // 8
    of_seldom, of_often = choose([seldom, often], budget)
    assert of_often.error < of_seldom.error
    assert of_often.nbytes > of_seldom.nbytes


def test_every_cut_is_of_ranges_of_popularity():
    counts = np.array([0, 5, 900, 3, 3, 0, 70, 1, 1, 8])
    for bands in (1, 2, 3, 8, "octaves"):
        pieces = cut_field(counts, 0, bands)
        assert len(set(pieces.cuts)) == len(pieces.cuts)
        for cut in pieces.cuts:
            band = pieces.band_of_id(cut)
            assert len(set(band)) == len(cut) <= (10 if bands == "octaves" else bands)
            assert all(
                counts[band == a].min() >= counts[band == b].max()
                for a, b in combinations(range(len(cut)), 2)
            )
    octaves = pieces.band_of_id(pieces.cuts[-1])
    assert octaves.tolist() == [6, 3, 0, 4, 4, 6, 1, 5, 5, 2]


def test_bad_input_is_refused_by_name():
    weight, counts = torch.zeros(4, 2), np.ones(4)
    subject = random_subject(0)
    with pytest.raises(ValueError, match="counts of table 'x' must be one for each of 4 rows, got 3"):
        Subject("x", weight, np.ones(3))
    with pytest.raises(ValueError, match="counts of table 'x' must be finite and not negative, got -1"):
        Subject("x", weight, np.array([1, -1, 2, 3]))
    with pytest.raises(ValueError, match="fields of table 'x' must add up to its 4 rows, got 5"):
        Subject("x", weight, counts, fields=(2, 3))
    with pytest.raises(ValueError, match="must be floating point of shape"):
        Subject("x", weight.long(), counts)
    with pytest.raises(ValueError, match=r"metric of table 'x' must be a tensor of shape \(2, 2\)"):
        Subject("x", weight, counts, metric=torch.eye(3))
    for wrong in (torch.nan, torch.inf):
        broken = weight.clone()
        broken[2, 1] = wrong
        with pytest.raises(ValueError, match="weights of table 'x' must be finite, row 2 is not"):
            choose([Subject("x", broken, np.array([1, 2, 0, 3]))], 100)
    with pytest.raises(ValueError, match=r"budget of 9 B \(9 bytes\) is too small: .* is 24 bytes"):
        choose([subject], 9)
    for wrong, message in (
        ({"bands": 65}, "bands must be at most 64, got 65"),
        ({"bands": "many"}, "bands must be a whole number or 'octaves', got 'many'"),
        ({"bits": 3}, "bits must be 32, 8 or 4, got 3"),
        ({"min_dim": -1}, "min_dim must be at least 0, got -1"),
    ):
        with pytest.raises(ValueError, match=message):
            choose([subject], 10_000, **wrong)
    with pytest.raises(ValueError, match="subjects must not be empty"):
        choose([], 100)
