import pytest

from mixdim.runs.figures.frontier import frontier_figure
from mixdim.runs.figures.plots import save_figure
from mixdim.runs.sweeps.objective import best_possible, objective_of


def run(temperature, parameters, loss, *, metric="mse", last=9.0, bayes=0.5):
    """A summary with what the figure reads, and losses that it must not read."""
    known = {} if bayes is None else {f"bayes_{metric}": {"train": 0.1, "test": bayes}}
    return {
        "temperature": temperature,
        "num_parameters": parameters,
        "embedding_parameters": 1,
        "validation": {"best": {metric: 7.0}, "last": {metric: 8.0}},
        "test": {"best": {"rows": 3, metric: loss}, "last": {metric: last}},
        **known,
    }


RUNS = [
    run(0.3, 400, 0.6),
    run(0.0, 100, 0.9),
    run(0.0, 400, 0.7),
    run(0.3, 90, 0.8),
    run(0.3, 200, 0.7),
]


def lines_of(axes):
    return {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()
    }


def test_each_temperature_is_a_line_of_test_losses_in_order_of_parameters():
    (axes,) = frontier_figure({"ratings": RUNS}).axes
    assert lines_of(axes) == {
        "temperature 0 (uniform)": ([100, 400], [0.9, 0.7]),
        "temperature 0.3": ([90, 200, 400], [0.8, 0.7, 0.6]),
        "best possible: 0.5000": ([0, 1], [0.5, 0.5]),
    }
    assert axes.get_lines()[-1].get_linestyle() == "--"
    assert (axes.get_xscale(), axes.get_title()) == ("log", "ratings")
    assert axes.get_ylabel() == "test mean squared error"


def test_lines_can_be_told_apart_without_colour():
    (axes,) = frontier_figure({"ratings": RUNS}).axes
    uniform, mixed, _ = axes.get_lines()
    assert uniform.get_marker() != mixed.get_marker()


def test_each_data_set_has_a_panel_with_its_own_loss(tmp_path):
    clicks = [run(0.2, 10, 0.5, metric="log_loss", bayes=0.4)]
    figure = frontier_figure({"ratings": RUNS, "clicks": clicks}, "both")
    ratings, of_clicks = figure.axes
    assert (ratings.get_ylabel(), of_clicks.get_ylabel()) == ("test mean squared error", "test log loss")
    assert list(lines_of(of_clicks)) == ["temperature 0.2", "best possible: 0.4000"]
    assert figure.get_suptitle() == "both"
    save_figure(figure, tmp_path / "frontier.png")  # one point on logarithmic axes can be drawn
    assert (tmp_path / "frontier.png").stat().st_size > 1000


def test_real_data_has_no_dashed_line():
    (axes,) = frontier_figure({"real": [run(0.3, 10, 0.5, bayes=None)]}).axes
    assert list(lines_of(axes)) == ["temperature 0.3"]
    assert best_possible(run(0.3, 10, 0.5, bayes=None)) is None


def test_losses_of_two_kinds_do_not_share_a_panel():
    with pytest.raises(ValueError, match="got log_loss, mse in 2 runs"):
        objective_of([run(0, 1, 0.5), run(0, 1, 0.5, metric="log_loss")])
    with pytest.raises(ValueError, match="got none in 0 runs"):
        frontier_figure({"nothing": []})


def test_no_panels_are_refused():
    with pytest.raises(ValueError, match="at least one panel, got none"):
        frontier_figure({})
