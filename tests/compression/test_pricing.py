from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mixdim.compression.pricing import RELATIVE_GAP, Cut, pick, smallest


@st.composite
def cuts_of_fields(draw):
    """Fields with cuts of few bands and widths: wider costs more and loses less."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    widths = draw(st.integers(2, 4))

    def cut():
        bands = rng.integers(1, 3)
        costs = np.cumsum(rng.integers(1, 30, (bands, widths)), axis=1)
        errors = np.cumsum(rng.exponential(1, (bands, widths)), axis=1)[:, ::-1].copy()
        errors[:, -1] = 0
        return Cut(costs, errors, int(rng.integers(0, 10)) if bands > 1 else 0)

    return [[cut() for _ in range(rng.integers(1, 4))] for _ in range(draw(st.integers(1, 3)))]


def all_choices(fields):
    """The bytes and the error of every choice of cuts and widths."""
    of_fields = []
    for cuts in fields:
        of_fields.append([
            (
                cut.held + sum(cut.costs[band, width] for band, width in enumerate(widths)),
                sum(cut.errors[band, width] for band, width in enumerate(widths)),
            )
            for cut in cuts
            for widths in product(range(cut.costs.shape[1]), repeat=len(cut.costs))
        ])  # fmt: skip
    return [tuple(map(sum, zip(*choice, strict=True))) for choice in product(*of_fields)]


def cost_of(fields, picked):
    chosen = [fields[i][cut] for i, cut in enumerate(picked.cuts)]
    return sum(
        cut.held + cut.costs[np.arange(len(widths)), widths].sum()
        for cut, widths in zip(chosen, picked.widths, strict=True)
    )


@settings(max_examples=60)
@given(cuts_of_fields(), st.floats(0, 1))
def test_a_choice_keeps_the_budget_and_is_the_best_of_all(fields, share):
    everything = all_choices(fields)
    least, most = smallest(fields), max(cost for cost, _ in everything)
    assert least == min(cost for cost, _ in everything)
    budget = int(least + share * (most - least))
    picked = pick(fields, budget)
    best = min(error for cost, error in everything if cost <= budget)
    assert cost_of(fields, picked) <= budget
    assert picked.bound <= best + 1e-9
    assert best - 1e-9 <= picked.error <= best * (1 + 2 * RELATIVE_GAP) + 1e-9


def test_all_the_budget_there_is_leaves_no_error():
    cut = Cut(np.array([[1, 5, 9]]), np.array([[4.0, 1.0, 0.0]]), 0)
    picked = pick([[cut], [cut]], budget=18)
    assert picked.error == 0
    assert [widths.tolist() for widths in picked.widths] == [[2], [2]]


def test_cuts_of_two_fields_are_changed_together_where_one_alone_does_not_help():
    def field(*cuts):
        return [Cut(np.array([costs]), np.array([errors]), 0) for costs, errors in cuts]

    one = field(([6, 9], [10.0, 2.0]), ([2, 5], [13.0, 6.0]))
    other = field(([6, 13], [5.0, 1.0]), ([5, 9], [7.0, 4.0]))
    picked = pick([one, other], budget=14)  # 9 + 5, which is better than 5 + 9 and 5 + 6
    assert (picked.cuts, picked.error) == ([0, 1], 9.0)
