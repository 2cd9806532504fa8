"""The report: one file, the numbers of the records, and inert text."""

import base64
import json
import re
from dataclasses import replace
from html import unescape
from statistics import mean, stdev

import pytest

from mixdim.runs.report.chart import chart_points
from mixdim.runs.report.findings import pictures_to_show, read_findings
from mixdim.runs.report.page import report_page, write_report
from mixdim.runs.report.rows import in_order, metrics_of, table_rows
from report_pages import HOSTILE, SQUARE, Page, sweep
from report_records import failed, finished

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


def test_bands_may_be_octaves():
    (point,) = chart_points([finished(bands="octaves")])
    assert ["bands", "octaves"] in point["about"]


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


def test_runs_of_a_given_plan_have_no_temperature_but_the_name_of_their_rule():
    options = {"temperature": None, "bands": None, "rounding": None, "plan": "/tmp/mine.json"}
    records = [finished(**options), finished()]
    records[0].summary["provenance"] = {"rule": "lifted", "dim": 2}
    assert [point["temperature"] for point in chart_points(records)] == [0.3, None]  # they come last
    assert ["plan", "lifted uniform"] in chart_points(records)[1]["about"]
    assert [row["plan"] for row in table_rows(records)] == [None, "lifted uniform"]
    assert [point["method"] for point in chart_points(records)] == ["0.3", "lifted uniform"]
    assert len({point["series"] for point in chart_points(records)}) == 2


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
