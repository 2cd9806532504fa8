"""From the name of a figure to the figure, with runs that are made up and with runs that are made."""

import dataclasses
import json

import pytest
import torch

from mixdim import Plan
from mixdim.lab.paper.protocols import Generated, paper, smoke
from mixdim.lab.reproduce import reproduce as module
from mixdim.lab.reproduce.reproduce import FIGURES, reproduce, scale_of, targets_of
from mixdim.runs.models import build_model
from mixdim.runs.report.findings import read_findings
from paper_records import click_record, rating_record
from training_data import clicks, ratings

PAPER = [
    *("fig1", "fig2a", "fig2b", "fig2c", "fig3a", "fig3b", "fig3c", "fig3d", "fig3e", "fig3f", "fig4"),
    *("fig5", "fig6", "fig7", "fig8", "fig9", "table1"),
    *("claim-16x", "claim-half", "claim-2x-faster", "claim-feature-blocks"),
]


def tiny():
    """Smoke with data that takes no time to generate."""
    scale = smoke()
    made = {
        "binary": Generated("criteo-like", rows=2_000, scale=0.0002),
        "rating": Generated("movielens-like", rows=2_000, scale=0.0005),
    }
    return {name: dataclasses.replace(p, generated=made[p.task]) for name, p in scale.items()}


def parameters_of(config):
    """Parameters of the whole model of a config with a plan."""
    resolved = config.resolved_for("binary")
    with torch.device("meta"):
        model = build_model(resolved, Plan.load(config.plan), num_dense=13, mean=0.0)
    return sum(parameter.numel() for parameter in model.parameters())


def made_up(runs, records, **_):
    """A record for each run, without training: the hotter and the larger, the better."""
    found = []
    budgets = sorted(
        {run.model_budget for run in runs if run.config.model == "dlrm" and run.model_budget}
    )
    widths = {budget: 2 ** (place + 1) for place, budget in enumerate(budgets)}
    for run in runs:
        config, budget = run.config, run.model_budget
        size = budget or parameters_of(config)
        heat, seed = config.temperature or 0.0, config.seed
        loss = 0.7 - 0.1 * heat - size / 1e8 + 0.001 * seed
        if config.model == "dlrm":
            base_dim = widths[budget] if budget and heat == 0 else 16
            found.append(
                click_record(
                    temperature=heat,
                    base_dim=base_dim,
                    parameters=size,
                    seed=seed,
                    loss=loss,
                    plan=config.plan,
                    init=config.init or "xavier",
                )
            )
        else:
            record = rating_record(
                temperature=heat, parameters=size, seed=seed, loss=loss, bands=config.bands or 8
            )
            found.append(record)
    return found


@pytest.fixture
def few_pictures(monkeypatch):
    """Pictures that are laid out and counted, not painted: that takes most of the time."""

    def save(figure, path):
        drawn = [len(axes.lines) + len(axes.patches) + len(axes.tables) for axes in figure.axes]
        assert drawn
        assert all(drawn), f"{path.name} has an empty panel"
        path.write_text("drawn")

    monkeypatch.setattr(module, "save_figure", save)


def test_everything_of_the_paper_can_be_asked_for():
    assert list(FIGURES) == PAPER
    assert targets_of("all") == FIGURES
    assert list(targets_of("fig5")) == ["fig5"]
    assert list(targets_of("fig9", "fig2b", "fig9")) == ["fig9", "fig2b"]
    assert targets_of("fig9", "all") == FIGURES


def test_an_unknown_figure_or_scale_is_an_error_that_lists_the_known():
    with pytest.raises(ValueError, match=r"figure must be one of fig1, .*claim-16x.*, all; got 'fig10'"):
        targets_of("fig10")
    with pytest.raises(ValueError, match="scale must be one of smoke, small, paper, got 'huge'"):
        scale_of("huge")


def test_all_makes_every_figure_with_words_beside_it(tmp_path, few_pictures):
    made = reproduce("all", tiny(), tmp_path, sweep=made_up)
    assert [finding.id for finding in made.findings] == PAPER
    assert made.failed == ()
    for finding in made.findings:
        assert finding.figure_paths
        assert {path.suffix for path in finding.figure_paths} == {".png", ".svg"}
        assert all(path.read_text() == "drawn" for path in finding.figure_paths)
        words = (tmp_path / f"{finding.id}.txt").read_text()
        for part in (finding.title, finding.paper_claim, finding.measured, finding.data):
            assert part
            assert part in words
    about_clicks = next(finding for finding in made.findings if finding.id == "fig2b")
    assert "criteo-like" in about_clicks.data
    assert "train 1,714, validation 143, test 143" in about_clicks.data
    assert "2 seeds" in about_clicks.data


def test_findings_are_written_for_the_report_and_add_up(tmp_path, few_pictures):
    reproduce("fig6", tiny(), tmp_path, sweep=made_up)
    reproduce("fig1", tiny(), tmp_path, sweep=made_up)
    reproduce("fig6", tiny(), tmp_path, sweep=made_up)
    entries = json.loads((tmp_path / "findings.json").read_text())
    assert [finding.id for finding in read_findings(tmp_path)] == ["fig1", "fig6"]
    assert [entry["id"] for entry in entries] == ["fig1", "fig6"]
    assert set(entries[0]) == {"id", "title", "paper_claim", "measured", "data", "figures"}
    assert entries[0]["figures"] == ["fig1.png", "fig1.svg"]


def test_a_figure_whose_runs_failed_says_so_and_the_others_are_made(tmp_path, few_pictures):
    def failing(runs, records, **options):
        found = made_up(runs, records)
        return [
            dataclasses.replace(r, status="failed", summary=None, error="no memory")
            if r.config["init"] == "he_fan_out"
            else r
            for r in found
        ]

    made = reproduce("all", tiny(), tmp_path, sweep=failing)
    without = [finding for finding in made.findings if not finding.figure_paths]
    assert [finding.id for finding in without] == ["fig7"]
    assert without[0].measured == "Not measured: 6 of 12 runs failed, one with: no memory"
    assert len(made.failed) == 6
    assert not (tmp_path / "fig7.png").exists()


def test_only_the_data_that_is_needed_is_generated_and_only_once(tmp_path, few_pictures, monkeypatch):
    reproduce("fig3a", tiny(), tmp_path, sweep=made_up)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["movielens-like"]
    for name in module.MAKERS:
        monkeypatch.setitem(module.MAKERS, name, None)  # would be called, if it were made again
    reproduce("fig3d", tiny(), tmp_path, sweep=made_up)
    with pytest.raises(TypeError):
        reproduce("fig8", tiny(), tmp_path, sweep=made_up)


def test_given_folders_go_before_generated_ones(tmp_path, few_pictures):
    made = reproduce("table1", tiny(), tmp_path, data=[ratings().path, clicks().path])
    assert not (tmp_path / "data").exists()
    assert "1,000 samples" in made.findings[0].measured


def test_two_folders_with_one_task_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"--data must name one folder a task.*'rating'"):
        reproduce("table1", tiny(), tmp_path, data=[ratings().path, ratings().path])


def test_the_papers_scale_needs_the_papers_data(tmp_path):
    with pytest.raises(ValueError, match=r"give --data .* 'binary', such as .*mixdim prepare criteo"):
        reproduce("fig2b", paper(), tmp_path, sweep=made_up)


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(NotADirectoryError, match="must be a folder, but is a file"):
        reproduce("fig1", tiny(), tmp_path / "out")


def test_figures_share_trained_runs_through_the_records(tmp_path):
    scale = tiny()
    quick = dataclasses.replace(scale["mf"].config, epochs=1)
    scale["mf"] = dataclasses.replace(scale["mf"], config=quick, seeds=1, bands=(8,))
    records = tmp_path / "shared" / "runs.jsonl"
    records.parent.mkdir()
    made = reproduce("fig3c", scale, tmp_path / "a", records=records)
    assert made.failed == ()
    assert (tmp_path / "a" / "fig3c.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "a" / "fig3c.svg").read_text()
    trained = records.read_bytes()
    assert trained.count(b"\n") == 2  # uniform and mixed
    reproduce("fig5", scale, tmp_path / "b", records=records)  # with 8 bands, which mf has anyway
    assert records.read_bytes() == trained
