"""Pictures of the theory: what is drawn is what the records say."""

import numpy as np
import pytest

from mixdim.lab.figures.theory import allocation_figure, completion_figure, two_block_figure
from mixdim.lab.trials.allocation import AllocationOptions, allocation_records
from mixdim.lab.trials.completion import CompletionOptions, completion_records
from mixdim.lab.trials.records import having
from mixdim.lab.trials.two_block import TwoBlockOptions, two_block_records
from mixdim.runs.figures.plots import save_figure


def silent(*_):
    pass


@pytest.fixture(scope="module")
def two_block():
    options = TwoBlockOptions(size=14, rates=(0.45, 0.4, 0.38, 0.35), seeds=2)
    return list(two_block_records(options, silent))


def line(axes, label):
    (found,) = [drawn for drawn in axes.lines if drawn.get_label() == label]
    return np.asarray(found.get_xdata()), np.asarray(found.get_ydata())


def bars(axes, beginning):
    """The points of the error bars whose label begins so."""
    (found,) = [c for c in axes.containers if c.get_label().startswith(beginning)]
    return np.asarray(found.lines[0].get_xdata()), np.asarray(found.lines[0].get_ydata())


def test_the_needs_are_drawn_against_one_over_the_rate(two_block):
    needs = two_block_figure(two_block).get_axes()[0]
    x, y = bars(needs, "mixed")
    samples = [r["samples"] for r in having(two_block, kind="need", method="mixed", rate=0.45)]
    assert x[0] == pytest.approx(1 / 0.45)
    assert y[0] == pytest.approx(np.sqrt(np.prod(samples)))
    assert needs.get_xscale() == needs.get_yscale() == "log"


def test_the_first_the_middle_and_the_last_rate_have_a_curve_of_recovery(two_block):
    curves = two_block_figure(two_block).get_axes()[1:]
    assert [axes.get_title(loc="right") for axes in curves] == ["ε = 0.45", "ε = 0.38", "ε = 0.35"]
    x, y = line(curves[0], "mixed")
    samples = [r["samples"] for r in having(two_block, kind="need", method="mixed", rate=0.45)]
    assert list(x[1:-1]) == sorted(samples)
    assert list(y) == [0.0, 0.5, 1.0, 1.0]
    (bound,) = having(two_block, kind="bound", method="agnostic", rate=0.45)
    assert list(line(curves[0], "agnostic: bound")[1]) == bound["probability"]


def test_a_method_that_never_recovers_stays_at_zero(two_block):
    hopeless = [
        {**r, "samples": None} if r["kind"] == "need" and r["method"] == "agnostic" else r
        for r in two_block
    ]
    figure = two_block_figure(hopeless)
    assert (line(figure.get_axes()[1], "agnostic")[1] == 0).all()


def test_a_seed_that_never_recovers_keeps_the_curve_below_one(two_block):
    half = [{**r, "samples": None} if r["kind"] == "need" and r["seed"] == 0 else r for r in two_block]
    assert line(two_block_figure(half).get_axes()[1], "mixed")[1].max() == 0.5


def test_one_rate_is_enough_for_a_picture(two_block, tmp_path):
    one = having(two_block, rate=0.4)
    save_figure(two_block_figure(one), tmp_path / "one.svg")
    assert len(two_block_figure(one).get_axes()) == 2


def test_the_allocation_has_medians_above_and_their_ratios_below():
    options = AllocationOptions(
        row_sizes=(5, 40), col_sizes=(10,), decays=(0.5, 1.0), budgets=(0.1, 0.4), seeds=3
    )
    records = list(allocation_records(options, silent))
    panels = np.reshape(allocation_figure(records).get_axes(), (2, 2))
    here = having(records, decay=1.0, policy="temperature 0", budget_share=0.4)
    x, y = line(panels[0, 1], "temperature 0 (uniform)")
    assert (x[1], y[1]) == (0.4, np.median([r["error"] for r in here]))
    _, ratios = bars(panels[1, 1], "temperature 0 (")
    assert ratios[1] == np.median([r["over_optimum"] for r in here])
    assert len(panels[0, 0].lines) == 8


def test_the_completion_has_a_column_a_kind_and_the_limit_of_unknowns():
    options = CompletionOptions(
        size=10, rank=1, features=2, feature_size=5, tensor_rank=1, shares=(0.3, 1.0), seeds=2
    )
    records = list(completion_records(options, silent))
    panels = np.reshape(completion_figure(records).get_axes(), (2, 2))
    assert [axes.get_title() for axes in panels[0]] == [
        "matrix, 10 x 10, rank 1",
        "tensor, 5 x 5, rank 1",
    ]
    here = having(records, kind="matrix", method="sgd", share=0.3)
    assert line(panels[1, 0], "SGD")[1][0] == np.mean([r["recovered"] for r in here])
    assert line(panels[1, 0], "as many entries as unknowns")[0][0] == 19 / 100
