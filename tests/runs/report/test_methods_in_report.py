"""Methods at equal bytes in the report: a line each, of the best widths, against bytes."""

import json
import re

import pytest

from browser import CHROMIUM, NO_CHROMIUM, ask
from method_records import by_method, comparison
from mixdim._util.text import printable
from mixdim.runs.report.chart import chart_points
from mixdim.runs.report.page import report_page
from mixdim.runs.report.rows import in_order, table_rows
from mixdim.runs.sweeps.methods import method_of
from report_pages import HOSTILE, Page, sweep
from report_records import failed, finished

in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)


def lines_of(points):
    """By method the bytes and losses of its points, which must be one line."""
    lines = {}
    for point in points:
        lines.setdefault((point["method"], point["series"]), []).append(
            (point["bytes"], round(point["metrics"]["test_log_loss"][0], 9))
        )
    assert len({method for method, _ in lines}) == len(lines)
    return {method: sorted(line) for (method, _), line in lines.items()}


# The points.


def test_a_method_is_a_line_of_losses_against_bytes():
    lines = lines_of(chart_points(comparison()))
    assert lines == {
        "uniform": [(392, 0.655), (792, 0.555), (3200, 0.505)],
        "mixed": [(392, 0.615), (792, 0.515)],
        "cut": [(392, 0.625), (792, 0.525)],
        "mixed, 8 bits": [(392, 0.61), (792, 0.51)],
    }
    assert list(lines) == ["uniform", "mixed", "cut", "mixed, 8 bits"]  # as they are always listed


def test_only_the_best_width_by_validation_is_a_point_and_says_how_many_were_tried():
    mixed = [point for point in chart_points(comparison()) if point["method"] == "mixed"]
    large = next(point for point in mixed if point["bytes"] == 792)
    assert ["base_dim", "4 (best of 3 by validation)"] in large["about"]
    assert ["base_dim", "4"] in next(point for point in mixed if point["bytes"] == 392)["about"]
    assert sum(row["method"] == "mixed" for row in table_rows(comparison())) == 6  # which has them all


def test_data_sets_have_winners_of_their_own():
    here = [by_method("cut", 0.5, asked=800, base_dim=2), by_method("cut", 0.6, asked=800, base_dim=4)]
    there = [
        by_method("cut", loss, asked=800, base_dim=dim, data="/x/other", fingerprint="cd" * 16)
        for dim, loss in ((2, 0.8), (4, 0.7))
    ]
    best = [(p["data"], p["metrics"]["test_log_loss"][0]) for p in chart_points([*here, *there])]
    assert best == [("clicks", 0.5), ("other", 0.7)]


def test_without_a_validation_split_all_widths_are_points():
    records = [by_method("cut", asked=800, base_dim=base_dim) for base_dim in (2, 4)]
    for record in records:
        record.summary["validation"] = {"best": {"log_loss": None}}
    assert len(chart_points(records)) == 2


def test_a_point_says_its_method_bytes_and_bits():
    about = {point["method"]: dict(point["about"]) for point in chart_points(comparison())}
    assert about["cut"]["method"] == "cut"
    assert about["cut"]["embedding bytes"] == "792 B, 32 bits a number"
    assert about["mixed, 8 bits"]["embedding bytes"] == "792 B, 8 bits a number"
    assert not {"temperature", "plan", "options"} & about["cut"].keys()


def test_names_of_methods_set_no_options_apart_and_bits_are_in_the_name():
    named = (("cut", 32), ("cut", 8), ("cut", 4), ("robe", 8))
    records = [by_method(method, asked=800, bits=bits) for method, bits in named]
    points = chart_points([*records, finished(temperature=0.3)])
    assert {point["options"] for point in points} == {""}
    assert [(point["plain_method"], point["bits"]) for point in points[:4]] == [
        *(("cut", 32), ("cut", 8), ("robe", 8)),
        ("cut", 4),
    ]
    apart = chart_points([*records, by_method("cut", asked=800, init="he_fan_out")])
    assert {point["options"] for point in apart} == {"init xavier", "init he_fan_out"}


def test_old_records_have_bytes_beside_new_ones_and_none_alone():
    old = finished(temperature=0.3)
    (point,) = chart_points([old])
    assert (point["bytes"], point["by_bytes"]) == (None, False)
    assert "embedding bytes" not in dict(point["about"])
    assert not {"method", "embedding_bytes"} & table_rows([old])[0].keys()
    both = chart_points([old, by_method("cut", asked=800)])
    assert [(p["bytes"], p["by_bytes"]) for p in both] == [(800, True), (4 * 31_000, False)]
    rows = table_rows([old, by_method("cut", asked=800)])
    assert [(row["method"], row["embedding_bytes"]) for row in rows] == [("cut", 800), (None, 124_000)]


def test_records_are_in_the_order_of_methods_then_sizes():
    told = [(method_of(r), r.config["budget"]) for r in in_order(comparison(seeds=1)[::-1])]
    assert list(dict.fromkeys(told)) == [
        *(("uniform", "400B"), ("uniform", "800B"), ("uniform", "3200B"), ("mixed", "400B")),
        *(("mixed", "800B"), ("cut", "400B"), ("cut", "800B")),
        *(("mixed, 8 bits", "400B"), ("mixed, 8 bits", "800B")),
    ]


# The page.


def text_of(page):
    return re.sub("<[^>]*>", " ", page)


def test_the_page_says_which_methods_were_run_and_which_failed():
    broken = failed("MemoryError", method="robe", budget="800B", temperature=None, model_budget=None)
    text = text_of(report_page([*comparison(), broken]))
    assert "uniform, mixed, cut, mixed, 8 bits" in text
    assert "model mf, method robe, base_dim 8, budget 800B, seed 0" in text
    assert "methods" not in Page(report_page(sweep())).texts["th"]


@in_a_browser
def test_a_reader_sees_lines_of_methods_against_bytes_and_may_choose_parameters(tmp_path):
    found = ask(
        tmp_path,
        report_page(comparison()),
        """
        const texts = () => [...chart.querySelectorAll("text")].map((text) => text.textContent);
        const count = (what) => chart.querySelectorAll(what).length;
        const { size } = filters.elements;
        const found = {
          size: [size.value, size.parentNode.hidden], bytes: texts(), lines: count("polyline"),
          points: count(".point"), empty: count(".point .empty"),
          legend: [...document.querySelectorAll("#methods label")].map((label) => label.textContent),
          looks: [...document.querySelectorAll("#methods svg")].map(
            (svg) => [svg.getAttribute("class"), svg.firstChild.outerHTML]),
        };
        const mark = [...chart.querySelectorAll(".point")].find((one) => one.ariaLabel.includes("cut"));
        mark.dispatchEvent(new Event("pointerenter"));
        found.about = document.getElementById("about").textContent;
        const clear = chart.querySelectorAll("[data-series]:not(.faded)");
        found.clear = [...clear].map((one) => one.localName);
        size.value = "parameters";
        size.dispatchEvent(new Event("change", { bubbles: true }));
        found.parameters = texts();
        return found;
        """,
    )
    assert found["size"] == ["bytes", False]
    assert (found["lines"], found["points"], found["empty"]) == (4, 9, 2)
    assert found["legend"] == ["uniform", "mixed", "cut", "mixed, 8 bits"]
    colors, markers = zip(*found["looks"], strict=True)
    assert len({*colors}) == 3  # mixed, 8 bits has mixed's
    assert len({*markers}) == 4
    assert {"bytes of embeddings (log scale)", "500 B", "2 kB"} <= {*found["bytes"]}
    assert "methodcut" in found["about"]
    assert found["clear"] == ["polyline", "g", "g"]
    assert {"parameters of the whole model (log scale)", "1.2k"} <= {*found["parameters"]}


@in_a_browser
def test_data_of_old_and_new_records_opens_with_the_axis_that_fits_it(tmp_path):
    found = ask(
        tmp_path,
        report_page([*sweep(), by_method("cut", asked=800, data="zoo", fingerprint="ee" * 16)]),
        """
        const { data, size } = filters.elements;
        const open = (name) => {
          data.value = name;
          data.dispatchEvent(new Event("change", { bubbles: true }));
          return size.value;
        };
        const found = [open("ml-1m"), open("zoo")];
        size.value = "parameters";
        size.dispatchEvent(new Event("change", { bubbles: true }));
        return [...found, open("ml-1m"), open("zoo")];
        """,
    )
    assert found == ["parameters", "bytes", "parameters", "parameters"]  # the last was chosen


@in_a_browser
def test_a_page_of_old_records_offers_no_choice_of_the_axis(tmp_path):
    found = ask(
        tmp_path,
        report_page(sweep()),
        "return [filters.elements.size.value, filters.elements.size.parentNode.hidden]",
    )
    assert found == ["parameters", True]


@in_a_browser
def test_twelve_methods_differ_in_their_markers_and_all_in_their_looks(tmp_path):
    names = [f"method {number}" for number in range(15)]
    found = ask(
        tmp_path,
        report_page([by_method(name, asked=800) for name in names]),
        "return methods.map((method) => [colorOf(method), marker(0, 0, method).getAttribute('d')])",
    )
    assert len({shape for _, shape in found[:12]}) == 12
    assert len({tuple(look) for look in found}) == 15


@in_a_browser
def test_a_hostile_method_is_shown_and_does_nothing(tmp_path):
    names = [HOSTILE, f"{HOSTILE}, 8 bits", "two\nlines \x1b[31m"]
    found = ask(
        tmp_path,
        report_page([*(by_method(name, asked=800) for name in names), failed(method=HOSTILE)]),
        """
        const texts = (what) => [...document.querySelectorAll(what)].map((node) => node.textContent);
        return {
          title: document.title, legend: texts("#methods label"), cells: texts("#runs-table td"),
          labels: [...chart.querySelectorAll(".point")].map((mark) => mark.ariaLabel),
          elements: ["img", "script"].map((name) => document.querySelectorAll(name).length),
        };
        """,
    )
    assert found["title"] == "mixdim report"
    assert found["elements"] == [0, 4]
    assert sorted(found["legend"]) == sorted(map(printable, names))
    for name in map(printable, names):
        assert name in found["cells"]
        assert any(f"method {name}," in label for label in found["labels"])
    assert json.dumps(found).count("\\u001b") == 0
