"""The report as a reader meets it: in Debian's chromium, without a window."""

import csv
from dataclasses import replace

import pytest

from browser import CHROMIUM, NO_CHROMIUM, ask, browse
from mixdim.runs.report.page import report_page
from mixdim.runs.report.rows import table_rows
from report_pages import HOSTILE, Page, sweep
from report_records import failed, finished, synthetic

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)


def test_the_chart_has_its_points_and_the_table_its_rows(tmp_path, finding):
    shown, complaints = browse(tmp_path, report_page(sweep(), [finding]))
    assert complaints == []
    page = Page(shown)
    classes = [attributes.get("class", "") for _, attributes in page.tags]
    assert (
        sum(name.startswith("point ") for name in classes) == 4
    )  # clicks come first: 2 x 2, over seeds
    assert sum(name == "bound" for name in classes) == 1
    labels = [a["aria-label"] for _, a in page.tags if a.get("class", "").startswith("point ")]
    assert any("temperature 0.3" in one and "test log loss 0.44 ± 0.01" in one for one in labels)
    assert shown.count("<tr>") == 1 + 2 + 1 + 20


def test_a_best_possible_loss_far_below_all_points_is_shown_on_request(tmp_path):
    records = [
        synthetic(finished(loss, parameters=1000 * width, base_dim=width), 0.55)
        for width, loss in ((1, 0.8), (2, 0.7))
    ]
    found = ask(
        tmp_path,
        report_page(records),
        """
        const bounds = () => chart.querySelectorAll(".bound").length, before = bounds();
        filters.elements.bound.click();
        return [before, bounds()];
        """,
    )
    assert found == [0, 1]


def test_hostile_text_stays_text(tmp_path):
    hostile = finished(data=HOSTILE.replace("/", "|"), model=HOSTILE, init=HOSTILE)
    shown, complaints = browse(tmp_path, report_page([hostile, finished(), failed(HOSTILE)]))
    assert complaints == []
    assert "<title>mixdim report</title>" in shown
    assert "onerror" in shown


def test_filters_keys_sorting_and_csv_work(tmp_path):
    found = ask(
        tmp_path,
        report_page(sweep()),
        """
        const count = (what) => chart.querySelectorAll(what).length;
        const choose = (name, value) => {
          filters.elements[name].value = value;
          filters.elements[name].dispatchEvent(new Event("change", { bubbles: true }));
        };
        const found = {};
        choose("metric", "test_accuracy");
        found.accuracy = [count(".point"), count(".bound")];
        choose("metric", "test_log_loss");
        found.boundBack = count(".bound");
        filters.elements.bound.click();
        found.boundGone = count(".bound");
        choose("data", "ml-1m");
        found.bothModels = [filters.elements.model.value, count(".point"), count("polyline")];
        choose("model", "ncf");
        found.oneModel = count(".point");
        filters.querySelector("[name=method]").click();
        found.oneTemperature = [...chart.querySelectorAll(".point")].map((mark) => mark.ariaLabel);
        filters.querySelectorAll("[name=method]")[1].click();
        found.none = chart.textContent;
        filters.querySelectorAll("[name=method]").forEach((box) => box.click());
        choose("data", "clicks");
        const first = chart.querySelector(".point[tabindex='0']");
        first.focus();
        found.hiddenAfterFocus = document.getElementById("about").hidden;
        first.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
        found.moved = document.activeElement !== first && document.activeElement.matches(".point");
        found.about = document.getElementById("about").textContent;
        document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
        found.hiddenAfterEscape = document.getElementById("about").hidden;
        const heads = [...table.querySelectorAll("th")].map((head) => head.dataset.column);
        const sorted = (name) => {
          const column = heads.indexOf(name);
          table.querySelectorAll("th button")[column].click();
          return [...table.tBodies[0].rows].map((row) => row.cells[column].dataset.value);
        };
        found.widths = sorted("base_dim");
        found.up = sorted("test_log_loss");
        found.down = sorted("test_log_loss");
        found.sort = [...table.querySelectorAll("th[aria-sort]")].map((head) => head.ariaSort);
        found.csv = csv();
        return found;
        """,
    )
    assert found["accuracy"] == [4, 0]  # the best possible loss is no accuracy
    assert (found["boundBack"], found["boundGone"]) == (1, 0)
    assert found["bothModels"] == ["all", 4, 4]
    assert found["oneModel"] == 2
    (label,) = found["oneTemperature"]
    assert "model ncf, temperature 0.3" in label
    assert found["none"] == "No run fits these filters."
    assert (found["hiddenAfterFocus"], found["moved"], found["hiddenAfterEscape"]) == (False, True, True)
    assert "base_dim10" in found["about"]
    losses = sorted(run.summary["test"]["best"]["log_loss"] for run in sweep()[:12])
    assert [float(value) for value in found["up"][:12]] == losses
    assert [float(value) for value in found["down"][:12]] == losses[::-1]
    assert set(found["up"][12:]) == set(found["down"][12:]) == {""}  # what is missing stays last
    assert found["widths"] == ["8"] * 8 + ["10"] * 6 + ["40"] * 6  # numbers, not their digits
    assert found["sort"] == ["descending"]
    assert rows_of_csv(found["csv"]) == in_text(table_rows(sweep()))


def rows_of_csv(text):
    return sorted(map(tuple, (line.values() for line in csv.DictReader(text.splitlines()))))


def in_text(rows):
    return sorted(tuple("" if value is None else str(value) for value in row.values()) for row in rows)


def test_a_narrow_page_does_not_scroll_sideways(tmp_path, finding):
    long = replace(finding, title="long" * 50, measured="https" * 50)
    page = report_page([*sweep(), failed("x" * 400)], [long], title="t" * 100)
    script = """
        chart.querySelector(".point").focus();
        const svg = chart.querySelector(":scope > svg").getBoundingClientRect();
        const about = document.getElementById("about").getBoundingClientRect();
        return [innerWidth, document.documentElement.scrollWidth, svg.width, about.top - svg.bottom];
    """
    inside, scrolled, chart, below = ask(tmp_path, page, script, width=360)
    assert scrolled <= inside == 360
    assert 250 < chart <= 360
    assert below >= 0
