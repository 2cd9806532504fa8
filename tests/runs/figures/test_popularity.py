import numpy as np
import pytest

from mixdim.runs.figures.plots import save_figure
from mixdim.runs.figures.popularity import popularity_figure


def lines_of(figure):
    (axes,) = figure.axes
    return {line.get_label(): line for line in axes.lines}


def test_queries_are_drawn_against_rank_on_logarithmic_axes():
    figure = popularity_figure({"item": np.array([2, 9, 0, 5]), "user": np.array([7])}, "MovieLens")
    lines = lines_of(figure)
    assert list(lines) == ["item: 4 rows, 1 without queries", "user: 1 row"]
    item, user = lines.values()
    assert (item.get_xdata().tolist(), item.get_ydata().tolist()) == ([1, 2, 3], [9, 5, 2])
    assert (user.get_xdata().tolist(), user.get_ydata().tolist()) == ([1], [7])
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale(), axes.get_title()) == ("log", "log", "MovieLens")


def test_six_features_are_all_drawn_and_can_be_told_apart_without_colour():
    lines = lines_of(popularity_figure({f"f{n}": np.arange(1, n + 2) for n in range(6)}, "six")).values()
    assert [line.get_label().split(":")[0] for line in lines] == ["f5", "f4", "f3", "f2", "f1", "f0"]
    assert len({line.get_marker() for line in lines}) == 6
    lightness = [np.dot(line.get_color()[:3], [0.299, 0.587, 0.114]) for line in lines]
    assert (np.diff(lightness) > 0.03).all()


def test_of_seven_features_the_five_with_most_rows_and_all_pooled_are_drawn():
    counts = {f"f{n}": np.full(n, 10 * n) for n in (3, 1, 7, 2, 6, 5, 4)}
    lines = lines_of(popularity_figure(counts, "seven"))
    assert list(lines) == [
        *(f"f{n}: {n} rows" for n in (7, 6, 5, 4, 3)),
        "all 7 features pooled: 28 rows",
    ]
    pooled = lines["all 7 features pooled: 28 rows"]
    everything = sorted((10 * n for n in range(1, 8) for _ in range(n)), reverse=True)
    assert pooled.get_xdata().tolist() == list(range(1, 29))
    assert pooled.get_ydata().tolist() == everything


def test_a_long_line_is_thinned_and_keeps_its_values_and_its_ends():
    counts = np.random.default_rng(0).zipf(1.5, 200_000)
    (line,) = lines_of(popularity_figure({"f": counts}, "long")).values()
    ranks = line.get_xdata()
    assert (ranks[0], ranks[-1]) == (1, 200_000)
    assert 100 < ranks.size <= 300
    assert (line.get_ydata() == np.sort(counts)[::-1][ranks - 1]).all()


@pytest.mark.parametrize("counts", [[0, 0], [], [1], [3, 3]])
def test_the_edges_can_be_drawn(tmp_path, counts):
    save_figure(popularity_figure({"f": np.array(counts, dtype=int)}, "edge"), tmp_path / "edge.png")
    assert (tmp_path / "edge.png").stat().st_size > 1000


def test_no_features_are_refused():
    with pytest.raises(ValueError, match="at least one feature, got none"):
        popularity_figure({}, "nothing")


def test_odd_names_are_in_the_legend_as_they_are(tmp_path):
    figure = popularity_figure({"_id": np.ones(3), r"$\frac$": np.ones(2)}, "data of US$ and A$")
    save_figure(figure, tmp_path / "popularity.svg")
    (axes,) = figure.axes
    texts = [*axes.get_legend().get_texts(), axes.title]
    drawn = [text._preprocess_math(text.get_text()) for text in texts]
    expected = ["_id: 3 rows", r"$\frac$: 2 rows", "data of US$ and A$"]
    assert drawn == [(text, False) for text in expected]
