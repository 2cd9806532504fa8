"""The paper's figures: records in, figure out."""

import dataclasses

import pytest

from mixdim.lab.figures import paper as paper_figures
from mixdim.lab.figures import paper_cf as paper_figures_cf
from mixdim.lab.figures.paper_layer import layer_figure, table_figure
from mixdim.planning.from_counts import plan
from paper_records import click_record, frontier, rating_record

WORDS = {"title": "A title", "caption": "On some data."}


def lines_of(axes):
    """By label: xs, means and the half-lengths of the error bars."""
    found = {}
    for container in axes.containers:
        line, _, (bars,) = container
        halves = [(top[1] - bottom[1]) / 2 for bottom, top in bars.get_segments()]
        found[container.get_label()] = (list(line.get_xdata()), list(line.get_ydata()), halves)
    return found


def texts_of(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_loss_against_parameters_has_a_line_a_temperature_with_deviations_over_seeds():
    figure = paper_figures.loss_against_parameters(frontier(seeds=(0, 1)), **WORDS)
    found = lines_of(figure.axes[0])
    assert list(found) == ["uniform", "temperature 0.3"]
    xs, means, halves = found["uniform"]
    assert xs == [2000, 4000, 8000]
    assert means == pytest.approx([0.605, 0.555, 0.505])
    assert halves == pytest.approx([0.01 / 2**0.5] * 3)
    assert figure.get_suptitle() == "A title"
    assert figure.get_supxlabel() == "On some data."
    assert figure.axes[0].get_xscale() == "log"


def test_one_seed_has_bars_of_no_length():
    figure = paper_figures.loss_against_parameters(frontier(seeds=(0,)), **WORDS)
    assert lines_of(figure.axes[0])["uniform"][2] == pytest.approx([0, 0, 0])


def test_lines_differ_in_colour_marker_and_style():
    figure = paper_figures.loss_against_parameters(frontier(), **WORDS)
    first, second = (container[0] for container in figure.axes[0].containers)
    assert first.get_color() != second.get_color()
    assert first.get_marker() != second.get_marker()
    assert first.get_linestyle() != second.get_linestyle()


def test_a_plan_made_by_hand_is_a_line_named_after_its_file():
    lifted = click_record(base_dim=16, parameters=2100, plan="/some/where/lifted-uniform.f00d.2100.json")
    figure = paper_figures.loss_against_parameters([*frontier(), lifted], **WORDS)
    assert list(lines_of(figure.axes[0])) == ["uniform", "temperature 0.3", "lifted uniform"]


@pytest.mark.parametrize(("bound", "shown"), [(0.38, True), (0.01, False)])
def test_the_best_possible_loss_is_drawn_unless_it_would_squeeze_the_lines(bound, shown):
    records = [
        dataclasses.replace(r, summary={**r.summary, "bayes_log_loss": {"test": bound}})
        for r in frontier()
    ]
    axes = paper_figures.loss_against_parameters(records, **WORDS).axes[0]
    assert any(f"{bound:.4f}" in text for text in texts_of(axes))
    assert (axes.get_ylim()[0] < bound) == shown


def test_loss_against_time_has_seconds_of_training_steps():
    figure = paper_figures.loss_against_time(frontier(), **WORDS)
    assert lines_of(figure.axes[0])["temperature 0.3"][0] == [1, 2, 4]


def test_learning_curves_start_with_uniform_and_show_the_mean_over_seeds():
    figure = paper_figures.learning_curves(frontier(), **WORDS)
    axes = figure.axes[0]
    labels = texts_of(axes)
    assert labels[0] == "uniform (width 2, 2k parameters)"
    assert labels[3] == "temperature 0.3 (2k parameters)"
    assert list(axes.lines[0].get_xdata()) == [0.1, 0.2]  # thousands: 10 and 20 steps of 10 samples
    assert list(axes.lines[0].get_ydata()) == pytest.approx([0.705, 0.655])
    assert len(axes.collections) == 6  # a shade of deviations each


def test_accuracy_is_in_percent():
    figure = paper_figures.accuracy_against_parameters(frontier(), **WORDS)
    assert lines_of(figure.axes[0])["uniform"][1] == pytest.approx([40, 45, 50])


def test_time_against_parameters_starts_at_zero():
    figure = paper_figures.time_against_parameters(frontier(), **WORDS)
    assert lines_of(figure.axes[0])["uniform"][1] == [2, 4, 8]
    assert figure.axes[0].get_ylim()[0] == 0


def test_initializations_are_lines():
    records = [
        click_record(init=init, loss=loss) for init, loss in (("xavier", 0.5), ("he_fan_out", 0.9))
    ]
    found = lines_of(paper_figures.initializations(records, **WORDS).axes[0])
    assert found["Xavier"][1] == [0.5]
    assert found["He fan out"][1] == [0.9]


def test_popular_and_rare_items_have_a_panel_each():
    records = [rating_record(temperature=t, popular=0.7 - t, rare=0.9 + t) for t in (0.0, 0.4)]
    popular, rare = paper_figures_cf.loss_by_popularity(records, **WORDS).axes
    assert lines_of(popular)["temperature 0.4"][1] == pytest.approx([0.3])
    assert lines_of(rare)["temperature 0.4"][1] == pytest.approx([1.3])


def test_generalisation_has_training_and_test_of_popular_and_rare():
    records = [rating_record(temperature=t, popular=0.7, rare=0.9) for t in (0.0, 0.4)]
    found = lines_of(paper_figures_cf.generalisation(records, **WORDS).axes[0])
    assert found["popular items, test"][:2] == ([0.0, 0.4], [0.7, 0.7])
    assert found["popular items, training"][1] == pytest.approx([0.6, 0.6])
    assert found["rare items, training"][1] == pytest.approx([0.8, 0.8])


def test_generalisation_without_training_thirds_has_one_line_of_all_items():
    found = lines_of(
        paper_figures_cf.generalisation([rating_record(train_slices=False)], **WORDS).axes[0]
    )
    assert list(found) == ["popular items, test", "rare items, test", "all items, training"]
    assert found["all items, training"][1] == pytest.approx([0.7])


def test_equipartitions_have_mixed_on_the_left_and_uniform_on_the_right():
    records = [
        rating_record(temperature=t, bands=k, loss=0.8 - t / 10 + k / 100)
        for t in (0.0, 0.4)
        for k in (2, 8)
    ]
    mixed, uniform = paper_figures_cf.equipartitions(records, **WORDS).axes
    assert lines_of(mixed)["budget 1,000"][:2] == ([2, 8], pytest.approx([0.78, 0.84]))
    assert lines_of(uniform)["budget 1,000"][1] == pytest.approx([0.82, 0.88])
    assert mixed.get_title() == "mixed (temperature 0.4)"


def test_a_failed_run_is_refused_by_name():
    failed = dataclasses.replace(click_record(), status="failed", summary=None, error="out of memory")
    with pytest.raises(ValueError, match="failed, so it has no summary: out of memory"):
        paper_figures.loss_against_parameters([failed], **WORDS)


def test_the_layer_has_a_table_for_each_block_and_a_projection_for_each_narrow_one():
    mixed = plan({"a": 10, "b": 40, "c": 160}, temperature=0.5, base_dim=8)
    uniform = plan({"a": 10, "b": 40, "c": 160}, temperature=0, base_dim=3)
    left, right = layer_figure({"uniform": uniform, "mixed": mixed}, caption="Four").axes
    assert [box.get_width() for box in left.patches] == [3, 3, 3]
    assert sorted(box.get_width() for box in right.patches) == [2, 4, 8, 8, 8]  # two of them projections
    assert sum(box.get_hatch() is not None for box in right.patches) == 2


def test_no_plans_make_no_picture():
    with pytest.raises(ValueError, match="plans must have at least one plan, got none"):
        layer_figure({}, caption="")


def test_a_table_has_its_cells():
    figure = table_figure(
        ("data set", "samples"), [("clicks", "40"), ("ratings", "27")], title="Table 1"
    )
    cells = figure.axes[0].tables[0].get_celld()
    assert cells[2, 0].get_text().get_text() == "ratings"
    assert len(cells) == 6
