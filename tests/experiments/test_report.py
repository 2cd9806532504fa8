"""The report: one file, the numbers of the records, inert text, and a page that works in a browser."""

import base64
import csv
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import escape, unescape
from html.parser import HTMLParser
from statistics import mean, stdev

import pytest

from mixdim.experiments.findings import Finding, pictures_to_show, read_findings
from mixdim.experiments.report import report_page, write_report
from mixdim.experiments.report_chart import chart_points
from mixdim.experiments.report_runs import in_order, metrics_of, table_rows
from report_records import failed, finished, synthetic

HOSTILE = (
    """</script><script>document.title="owned"</script><img src=x onerror='document.title="owned"'>"&"""
)
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
SQUARE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>'
)


class Page(HTMLParser):
    """The elements of a page, and the text of each kind of element."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.texts, self.open = [], {}, []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.open.append(tag)
        self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        if self.open:
            self.texts[self.open[-1]][-1] += data

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def sweep():
    """Two data sets, two models, two temperatures, two sizes, three seeds; and a failure."""
    clicks = {
        "data": "clicks",
        "objective": "log_loss",
        "model": "dlrm",
        "bands": 1,
        "fingerprint": "ab" * 16,
    }
    return [
        *(
            synthetic(finished(0.5 - t / 10 + s / 100 - p / 1e6, seed=s, temperature=t, parameters=p,
                               base_dim=p // 1000, **clicks), 0.4)
            for t in (0.0, 0.3) for p in (10_000, 40_000) for s in (0, 1, 2)
        ),
        *(
            finished(0.9 - t / 10 + s / 100, model=m, seed=s, temperature=t)
            for m in ("mf", "ncf") for t in (0.0, 0.3) for s in (0, 1)
        ),
        failed("MemoryError: 9 GB\nare too much", model="ncf", base_dim=4096),
    ]  # fmt: skip


@pytest.fixture
def finding(tmp_path):
    (tmp_path / "fig2b.svg").write_text(SQUARE)
    (tmp_path / "fig2b.png").write_bytes(PIXEL)
    pictures = (tmp_path / "fig2b.png", tmp_path / "fig2b.svg")
    return Finding("fig2b", "Fig. 2b", "16 times fewer", "7.3 times fewer", pictures, "clicks, 3 seeds")


# The numbers.


def test_a_point_is_the_mean_and_the_deviation_over_seeds():
    losses = [0.8, 0.83, 0.7]
    (point,) = chart_points([finished(loss, seed=seed) for seed, loss in enumerate(losses)])
    assert point["metrics"]["test_mse"] == pytest.approx([mean(losses), stdev(losses)])
    assert point["parameters"] == 32_000
    assert ["seeds", "0, 1, 2"] in point["about"]
    assert ["base_dim", "8"] in point["about"]
    assert ["widths (blocks)", "8 (2), 4 (2), 2 (1)"] in point["about"]
    assert ["test MSE", "0.7767 ± 0.068"] in point["about"]


def test_one_seed_has_no_deviation():
    (point,) = chart_points([finished(0.8)])
    assert point["metrics"]["test_mse"] == [0.8, None]
    assert ["test MSE", "0.8"] in point["about"]


def test_only_seeds_are_averaged_and_only_sizes_share_a_line():
    runs = [finished(), finished(base_dim=16, parameters=64_000), finished(init="he_fan_out")]
    assert len(chart_points([*runs, finished(temperature=0.0), finished(fingerprint="0" * 32)])) == 5
    points = chart_points(runs)
    large = next(point for point in points if point["parameters"] == 64_000)
    small = next(p for p in points if p["parameters"] == 32_000 and p["options"] == "init xavier")
    other = next(point for point in points if point["options"] == "init he_fan_out")
    assert small["series"] == large["series"] != other["series"]


def test_options_of_another_model_set_nothing_apart():
    points = chart_points([finished(), finished(model="ncf", hidden=[64, 32])])
    assert [point["options"] for point in points] == ["", ""]


def test_data_of_one_name_but_two_fingerprints_are_two_data_sets():
    other = finished(fingerprint="87654321" * 4, data="/x/other")
    points = chart_points([finished(), finished(fingerprint="12345678" * 4), other])
    assert [p["data"] for p in points] == ["ml-1m (12345678)", "ml-1m (f00dcafe)", "other"]


def test_data_that_was_moved_between_runs_is_one_data_set_by_its_last_name():
    before, after = finished(0.5, seed=0, data="/old/ml"), finished(0.7, seed=1, data="/new/ml-1m")
    (point,) = chart_points([after, before])
    assert (point["data"], point["metrics"]["test_mse"][0]) == ("ml-1m", pytest.approx(0.6))


def test_runs_of_a_given_plan_have_no_temperature_but_the_name_of_the_plan():
    options = {"temperature": None, "bands": None, "rounding": None, "plan": "/tmp/lifted.json"}
    records = [finished(**options), finished()]
    records[0].summary["temperature"] = 0.0  # what the plan says of itself
    assert [point["temperature"] for point in chart_points(records)] == [0.3, None]  # they come last
    assert ["plan", "lifted.json"] in chart_points(records)[1]["about"]
    assert [row["plan"] for row in table_rows(records)] == [None, "lifted.json"]
    assert "given plan" in report_page(records)


def test_metrics_that_are_undefined_are_left_out():
    record = finished()
    record.summary["test"]["best"]["mae"] = None
    record.summary["test"]["best"]["slices"]["rare"]["mse"] = float("nan")
    assert list(metrics_of(record.summary)) == [
        "test_mse",
        "test_mse_popular",
        "test_mse_middle",
        "seconds",
    ]


def test_the_table_has_a_row_for_each_finished_run_and_the_same_columns_in_all():
    rows = table_rows(sweep())
    assert len(rows) == 20
    assert len({tuple(row) for row in rows}) == 1
    first = rows[0]
    assert (first["data"], first["temperature"], first["seed"]) == ("clicks", 0.0, 0)
    assert (first["test_log_loss"], first["test_mse"]) == (0.49, None)
    assert (first["train_log_loss"], first["best_possible_log_loss"]) == (pytest.approx(0.39), 0.4)
    assert "plan" not in first  # nobody has one


# The page.


def test_the_page_is_the_same_in_whatever_order_the_records_come():
    records = sweep()
    assert report_page(records) == report_page(records[::-1])
    assert in_order(records[::-1]) == in_order(records)


def test_the_page_asks_for_nothing_from_elsewhere(finding):
    page = report_page(sweep(), [finding])
    readable = re.sub(r"(sha256-|base64,)[\w+/=]+", "", page)  # there, // means nothing
    assert (
        re.findall(r"(?:https?:)?//\w[\w.]*", readable.replace("http://www.w3.org/2000/svg", "")) == []
    )
    parsed = Page(page)
    addresses = [a.get("src") or a.get("href") for _, a in parsed.tags if "src" in a or "href" in a]
    assert all(address.startswith(("#", "data:image/")) for address in addresses)
    assert parsed.all("link") == []


def test_the_page_says_what_was_run():
    text = unescape(re.sub("<[^>]*>", " ", report_page(sweep())))
    for fact in ("20 finished, 1 failed", "2026-11-16T01:00:00Z to 2026-11-16T02:00:02Z", "cores: 2",
                 "Python 3.11.7", "torch 2.13.0+cpu", "0.1.0", "f00dcafe", "mf, ncf", "0, 0.3",
                 "MemoryError: 9 GB\nare too much"):  # fmt: skip
        assert fact in text
    assert "/somewhere" not in text  # folders of the machine are nobody's business


def test_a_finding_shows_the_claim_beside_the_measurement_and_its_sharpest_picture(finding):
    page = report_page([], [finding])
    (image,) = Page(page).all("img")
    assert image["src"] == "data:image/svg+xml;base64," + base64.b64encode(SQUARE.encode()).decode()
    assert "Fig. 2b" in image["alt"]
    assert page.index("16 times fewer") < page.index("7.3 times fewer") < page.index("clicks, 3 seeds")


def test_text_of_records_and_findings_is_inert(finding):
    harmless, text = Page(report_page(sweep(), [finding])), HOSTILE.replace("/", "|")  # a folder's name
    hostile = finished(data=f"x/{text}", model=HOSTILE, init=HOSTILE, plan=text, seed=1)
    hostile.summary.update(version=HOSTILE, machine={**hostile.summary["machine"], "processor": HOSTILE})
    records = [
        *sweep(),
        replace(hostile, finished_at=HOSTILE, key=HOSTILE),
        failed(HOSTILE, model=HOSTILE),
    ]
    told = replace(
        finding, id=HOSTILE, title=HOSTILE, paper_claim=HOSTILE, measured=HOSTILE, data=HOSTILE
    )
    page = Page(report_page(records, [told], title=HOSTILE))
    assert len(page.all("script")) == 3
    assert len(page.all("img")) == 1
    assert {name for _, a in page.tags for name in a} == {name for _, a in harmless.tags for name in a}
    for tag in ("title", "h1", "h3", "pre"):
        assert HOSTILE in [text.strip() for text in page.texts[tag]]
    assert json.loads(page.texts["script"][0])  # still whole


def test_without_runs_the_page_says_so_and_without_anything_there_is_no_page(tmp_path, finding):
    assert "No run has finished." in report_page([failed()])
    assert "No run failed." in report_page([finished()])
    assert "0 finished, 0 failed" in report_page([], [finding])
    with pytest.raises(ValueError, match="records or findings, got neither"):
        write_report([], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


# Findings.


def test_findings_are_read_with_pictures_relative_to_their_folder(tmp_path, finding):
    entry = {name: getattr(finding, name) for name in ("id", "title", "paper_claim", "measured", "data")}
    write(tmp_path, [{**entry, "figures": ["fig2b.png", "fig2b.svg"]}, entry])
    assert read_findings(tmp_path) == [finding, replace(finding, figure_paths=())]


def write(folder, findings):
    (folder / "findings.json").write_text(json.dumps(findings))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[", "findings.json is malformed"),
        ("{}", "must hold a list of findings, got dict"),
        ("[3]", "finding 1 must be an object, got int"),
        ('[{"id": "fig1"}]', "finding 1: title must be text, got None"),
        (
            '[{"id": "", "title": "", "paper_claim": "", "measured": "", "data": "", "figures": "a"}]',
            "figures must be a list of file names, got 'a'",
        ),
    ],
)
def test_malformed_findings_are_refused_with_their_place(tmp_path, content, complaint):
    (tmp_path / "findings.json").write_text(content)
    with pytest.raises(ValueError, match=complaint):
        read_findings(tmp_path)


def test_a_folder_without_findings_and_a_picture_of_another_kind_are_refused(tmp_path, finding):
    with pytest.raises(FileNotFoundError, match=r"has no findings\.json"):
        read_findings(tmp_path)
    with pytest.raises(ValueError, match=r"must end in \.svg or \.png, got a\.pdf"):
        pictures_to_show([(tmp_path / "a.pdf").relative_to(tmp_path)])
    finding.figure_paths[1].unlink()
    with pytest.raises(FileNotFoundError):
        report_page([], [finding])


# In a browser.

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium to show the page")


def browse(tmp_path, page):
    """What the page is after its scripts ran, and what they said on the console."""
    (tmp_path / "report.html").write_text(page)
    done = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000"),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=2000", "--dump-dom"),
            *("--enable-logging=stderr", (tmp_path / "report.html").as_uri()),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def ask(tmp_path, page, script, *, width=1280):
    """Do something on the page as a reader would, and return what `script` returns.

    The page stands in a frame, since a window of chromium is never narrower than 500 pixels.
    """
    page = re.sub("<meta http-equiv[^>]*>", "", page)  # it would forbid the script
    asking = f"parent.document.body.append(JSON.stringify((() => {{{script}}})()))"
    page = page.replace("</body>", f"<script>{asking}</script></body>")
    frame = (
        f'<iframe style="border: 0; width: {width}px; height: 900px" srcdoc="{escape(page)}"></iframe>'
    )
    shown, complaints = browse(tmp_path, f"<!doctype html><body>{frame}")
    assert complaints == []
    return json.loads(unescape(re.search("</iframe>(.*)</body>", shown, re.DOTALL)[1]))


@in_a_browser
def test_in_a_browser_the_chart_has_its_points_and_the_table_its_rows(tmp_path, finding):
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


@in_a_browser
def test_in_a_browser_a_best_possible_loss_far_below_all_points_is_shown_on_request(tmp_path):
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


@in_a_browser
def test_in_a_browser_hostile_text_stays_text(tmp_path):
    hostile = finished(data=HOSTILE.replace("/", "|"), model=HOSTILE, init=HOSTILE)
    shown, complaints = browse(tmp_path, report_page([hostile, finished(), failed(HOSTILE)]))
    assert complaints == []
    assert "<title>mixdim report</title>" in shown
    assert "onerror" in shown


@in_a_browser
def test_in_a_browser_filters_keys_sorting_and_csv_work(tmp_path):
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
        filters.querySelector("[name=temperature]").click();
        found.oneTemperature = [...chart.querySelectorAll(".point")].map((mark) => mark.ariaLabel);
        filters.querySelectorAll("[name=temperature]")[1].click();
        found.none = chart.textContent;
        filters.querySelectorAll("[name=temperature]").forEach((box) => box.click());
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


@in_a_browser
def test_in_a_browser_a_narrow_page_does_not_scroll_sideways(tmp_path, finding):
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
