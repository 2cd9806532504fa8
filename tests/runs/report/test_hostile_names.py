"""Names of data and features that try to get out: from a file, through runs, to pages and pictures."""

import json

import polars as pl
import pytest

from browser import CHROMIUM, NO_CHROMIUM, ask
from mixdim._util.text import printable
from mixdim.cli import main as cli
from mixdim.data import Dataset
from mixdim.lab.figures.paper import canvas
from mixdim.lab.figures.paper_layer import table_figure
from mixdim.planning.from_counts import plan
from mixdim.runs.config import RunConfig
from mixdim.runs.figures.plots import as_it_is, save_figure, short_name, widths_figure
from mixdim.runs.figures.popularity import popularity_figure
from mixdim.runs.report.page import report_page
from mixdim.runs.sweeps.sweep import RunRequest, run_sweep
from report_pages import HOSTILE

FEATURES = [HOSTILE, "[/x] [red] ü 'y' {0} %s", "two\nlines\tand \x1b[31m red", r"_$\frac{$ <!-- <b>"]
FOLDER = '<img src=x onerror=\'document.title="owned"\'>"&[x] *? $\\frac{$\nü'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Prepared data of 200 clicks, as a user makes it."""
    place = tmp_path_factory.mktemp("hostile")
    columns = {name: [f"v{row % (i + 3)}" for row in range(200)] for i, name in enumerate(FEATURES)}
    clicks = pl.DataFrame({"click": [row % 2 for row in range(200)], **columns})
    clicks.write_parquet(place / "in.parquet")
    told = ["--out", str(place / FOLDER), "--target", "click", "--categorical", ",".join(FEATURES)]
    assert cli.run(["prepare", "table", str(place / "in.parquet"), *told]) == 0
    return place / FOLDER


def test_data_in_a_folder_of_any_name_is_read(folder):
    dataset = Dataset(folder)
    assert list(dataset.cardinalities) == FEATURES
    assert [counts.sum() for counts in dataset.counts.values()] == [160] * len(FEATURES)


def test_a_terminal_shows_one_line_a_feature_and_obeys_none(folder, capsys):
    plan_it = ["plan", "--plan-from", str(folder), "--base-dim", "4", "--temperature", "0.3"]
    for command in (["inspect", str(folder)], plan_it):
        assert cli.run(command) == 0
        lines = capsys.readouterr().out.splitlines()
        for name in FEATURES:
            assert sum(line.startswith(f"{printable(name)} ") for line in lines) == 1
        assert not any(control in line for line in lines for control in "\x1b\t")


def test_pictures_show_names_as_they_are_and_no_mathematics(folder, tmp_path):
    dataset = Dataset(folder)
    popularity = popularity_figure(dataset.counts, f"Popularity: {folder.name}")
    told = [text.get_text() for text in popularity.axes[0].get_legend().get_texts()]
    for name in FEATURES:
        assert sum(text.startswith(f"{as_it_is(short_name(name))}: ") for text in told) == 1
    widths = widths_figure({"some": plan(dataset, temperature=0.3, base_dim=4)})
    table = table_figure(["data set", "a", "b", "c", "d"], [[folder.name, *"1234"]], title="Table 1")
    captioned, _ = canvas("Fig. 2", f"{folder.name} (3 seeds)")
    for number, figure in enumerate((popularity, widths, table, captioned)):
        save_figure(figure, tmp_path / f"{number}.png")  # mathematics that is none would raise


@pytest.fixture(scope="module")
def records(folder, tmp_path_factory):
    """A run sliced by each feature, and one whose error names them all."""
    told = {"data": str(folder), "model": "dlrm", "temperature": 0.3, "base_dim": 4, "epochs": 1}
    runs = [
        RunRequest(RunConfig.of(**told, bottom=(4,), top=(4,), slice_by=name))
        for name in (*FEATURES, "none")
    ]
    made = run_sweep(runs, tmp_path_factory.mktemp("records") / "records.jsonl")
    assert [record.finished for record in made] == [True, True, True, True, False]
    return made


@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
def test_a_page_about_runs_shows_every_name_and_runs_none(records, tmp_path, finding):
    found = ask(
        tmp_path,
        report_page(records, [finding], title=HOSTILE),
        """
        const texts = (what) => [...document.querySelectorAll(what)].map((node) => node.textContent);
        const found = {
          title: document.title, points, csv: csv(), errors: texts("pre"),
          elements: ["img", "script", "b"].map((name) => document.querySelectorAll(name).length),
          data: [texts("#what td")[0], texts("[name=data] option")[0], texts("#runs-table td")[0]],
          cells: texts("#runs-table td"), options: texts("[name=options] option"),
        };
        filters.elements.options.value = "all";
        filters.dispatchEvent(new Event("change"));
        found.labels = [...chart.querySelectorAll(".point")].map((mark) => mark.ariaLabel);
        found.hovered = [...chart.querySelectorAll(".point")].map((mark) => {
          mark.dispatchEvent(new Event("pointerenter"));
          return [...chart.querySelectorAll("#about dd")].map((node) => node.textContent);
        });
        return found;
        """,
    )
    assert found["title"] == HOSTILE
    assert found["elements"] == [1, 4, 0]  # the finding's picture; the page's scripts, and this one
    assert found["data"] == [printable(FOLDER)] * 3
    (error,) = found["errors"]
    for name in FEATURES:
        told = f"slice_by {printable(name)}"
        assert told in found["options"]
        assert told in found["cells"]
        assert sum(told in label for label in found["labels"]) == 1
        assert sum(told in texts for texts in found["hovered"]) == 1
        assert [point["options"] for point in found["points"]].count(told) == 1
        assert told.replace('"', '""') in found["csv"]
        assert json.dumps(name)[1:-1] in json.dumps(error) or repr(name)[1:-1] in error
