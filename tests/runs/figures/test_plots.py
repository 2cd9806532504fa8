import pytest

import mixdim
from mixdim.runs.figures.plots import save_figure, widths_figure


def test_the_widths_are_drawn_from_popular_to_rare_with_a_line_for_each_plan():
    rows = {"big": 1000, "small": 3, "middle": 40}
    plans = {f"{t}": mixdim.plan(rows, temperature=t, base_dim=64) for t in (0.0, 0.3)}
    axes = widths_figure(plans).axes[0]
    drawn = {line.get_label().split(":")[0]: list(line.get_ydata()) for line in axes.lines}
    assert drawn == {"0.0": [64, 64, 64], "0.3": [64, 32, 8]}
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["small (3)", "middle (40)", "big (1k)"]
    assert axes.get_yscale() == "log"


def test_width_0_is_drawn_below_1():
    plan = mixdim.plan([2, 90], temperature=1, base_dim=4, min_dim=0)
    axes = widths_figure({"x": plan}).axes[0]
    assert list(axes.lines[0].get_ydata()) == [4, 0]
    assert axes.get_yscale() == "symlog"
    assert axes.get_ylim()[0] < 0


def test_bands_are_numbered():
    plan = mixdim.plan([4], counts=[[9, 9, 3, 3]], bands=2, temperature=0.2, base_dim=8)
    labels = widths_figure({"x": plan}).axes[0].get_xticklabels()
    assert [label.get_text() for label in labels] == ["0 1/2 (2)", "0 2/2 (2)"]


@pytest.mark.parametrize("name", ["$price$", r"$\frac$", "US$ and A$", "$", "[/x]", "a_b^c", "\\$x$"])
def test_names_are_drawn_as_they_are_and_never_as_formulas(tmp_path, name):
    figure = widths_figure({"x": mixdim.plan({name: 3}, temperature=0, base_dim=2)})
    save_figure(figure, tmp_path / "widths.svg")
    (label,) = figure.axes[0].get_xticklabels()
    drawn, is_formula = label._preprocess_math(label.get_text())
    assert (drawn, is_formula) == (f"{name} (3)", False)


def test_many_blocks_are_drawn_without_names():
    figure = widths_figure({"x": mixdim.plan([10] * 300, temperature=0, base_dim=2)})
    assert len(figure.axes[0].lines[0].get_ydata()) == 300
    assert len(figure.axes[0].get_xticklabels()) < 40


def test_a_picture_of_another_kind_is_refused(tmp_path):
    figure = widths_figure({"x": mixdim.plan([3], temperature=0, base_dim=2)})
    with pytest.raises(ValueError, match=r"must end in \.png, \.svg, \.pdf"):
        save_figure(figure, tmp_path / "widths.bmp")
