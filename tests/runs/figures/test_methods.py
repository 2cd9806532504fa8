"""The picture of methods at equal bytes: its numbers are those of the records."""

from statistics import mean, stdev

import matplotlib.colors
import pytest

from method_records import by_method, comparison
from mixdim.runs.figures.methods import methods_figure
from mixdim.runs.figures.plots import as_it_is, save_figure, short_name
from report_pages import HOSTILE
from report_records import finished, synthetic

REFERENCE = "uniform of width 16: 0.5050"


def lines_of(axes):
    found = {line.get_label(): line for line in axes.get_lines()}
    return {name: line for name, line in found.items() if not name.startswith("_nolegend_")}  # no bars


def points_of(line):
    places, losses = line.get_xdata(), line.get_ydata()
    return [(int(place), round(float(loss), 9)) for place, loss in zip(places, losses, strict=True)]


def test_each_method_is_a_line_of_the_best_widths_in_order_of_bytes():
    (axes,) = methods_figure(comparison()).axes
    lines = lines_of(axes)
    assert list(lines) == ["uniform", "mixed", "cut", "mixed, 8 bits", REFERENCE]
    assert points_of(lines["uniform"]) == [(392, 0.655), (792, 0.555), (3200, 0.505)]
    assert points_of(lines["mixed"]) == [(392, 0.615), (792, 0.515)]
    assert points_of(lines["mixed, 8 bits"]) == [(392, 0.61), (792, 0.51)]
    assert (axes.get_xscale(), axes.get_ylabel()) == ("log", "test log loss")


def test_the_reference_is_a_dashed_line_and_bytes_are_shares_of_it():
    (axes,) = methods_figure(comparison()).axes
    level = lines_of(axes)[REFERENCE]
    assert list(level.get_ydata()) == pytest.approx([0.505, 0.505])
    assert level.get_linestyle() == "--"
    ticks = [label.get_text() for label in axes.get_xticklabels()]
    assert ticks == ["3.2 kB\nreference", "1.6 kB\n1/2", "800 B\n1/4", "400 B\n1/8"]
    assert list(axes.get_xticks()) == [3200, 1600, 800, 400]


def test_bars_are_the_deviation_over_seeds_and_one_seed_has_none():
    (axes,) = methods_figure(comparison(seeds=3)).axes
    bars = sorted(tuple(bar.get_segments()[0][:, 1]) for bar in axes.collections)
    by_place = {}
    for record in comparison(seeds=3):
        if record.config["base_dim"] in (4, 16):  # the best of the widths
            place = record.config["method"], record.config["bits"], record.config["budget"]
            by_place.setdefault(place, []).append(record.summary["test"]["best"]["log_loss"])
    expected = []
    for losses in by_place.values():
        expected.append((mean(losses) - stdev(losses), mean(losses) + stdev(losses)))
    assert bars == [pytest.approx(bar) for bar in sorted(expected)]
    (alone,) = methods_figure(comparison(seeds=1)).axes
    assert list(alone.collections) == []


def test_lines_can_be_told_apart_without_colour_and_quantized_ones_belong_to_their_method():
    (axes,) = methods_figure(comparison()).axes
    lines = lines_of(axes)
    mixed, quantized = lines["mixed"], lines["mixed, 8 bits"]
    assert len({lines[name].get_marker() for name in ("uniform", "mixed", "cut")}) == 3
    assert (mixed.get_marker(), mixed.get_color()) == (quantized.get_marker(), quantized.get_color())
    assert matplotlib.colors.to_hex(quantized.get_markerfacecolor()) == "#ffffff"
    assert mixed.get_linestyle() != quantized.get_linestyle()


def test_twelve_methods_have_twelve_markers_and_a_legend_beside_the_lines(tmp_path):
    figure = methods_figure([by_method(f"method {n}", asked=800) for n in range(12)])
    (axes,) = figure.axes
    assert len({line.get_marker() for line in lines_of(axes).values()}) == 12
    save_figure(figure, tmp_path / "many.png")
    (legend,) = figure.legends
    assert legend.get_window_extent().x0 >= axes.get_window_extent().x1


def test_without_uniform_runs_there_are_bytes_alone(tmp_path):
    figure = methods_figure([by_method("cut", asked=asked) for asked in (4000, 64_000)])
    (axes,) = figure.axes
    assert list(lines_of(axes)) == ["cut"]
    assert axes.get_xlabel() == "bytes of embeddings (log scale)"
    save_figure(figure, tmp_path / "bytes.svg")
    assert any(label.get_text().endswith(" kB") for label in axes.get_xticklabels())


def test_many_halvings_do_not_crowd_the_axis():
    far = [by_method("uniform", asked=2**30), by_method("cut", asked=2**12)]
    (axes,) = methods_figure(far).axes
    shares = [label.get_text().split("\n")[1] for label in axes.get_xticklabels()]
    assert shares[:3] == ["reference", "1/8", "1/64"]
    assert len(shares) <= 9


def test_the_best_possible_loss_is_drawn_where_it_is_near():
    for bound, is_near in ((0.45, True), (0.1, False)):
        (axes,) = methods_figure([synthetic(record, bound) for record in comparison()]).axes
        assert (f"best possible: {bound:.4f}" in lines_of(axes)) == is_near


def test_names_are_shown_as_they_are_and_no_mathematics(tmp_path):
    names = [HOSTILE, r"_$\frac{$ <b>", "two\nlines \x1b[31m"]
    figure = methods_figure([by_method(name, asked=800) for name in names])
    told = {text.get_text() for text in figure.legends[0].get_texts()}
    assert told == {as_it_is(short_name(name)) for name in names}
    save_figure(figure, tmp_path / "hostile.png")  # mathematics that is none would raise


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ValueError, match="no run of a method is finished"):
        methods_figure([finished()])
    other = by_method("cut", asked=800, data="/x/other", fingerprint="cd" * 16)
    with pytest.raises(ValueError, match="several data sets"):
        methods_figure([*comparison(), other])
