import json
import shutil
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from mixdim.cli import main as cli
from mixdim.data import Dataset
from mixdim.lab import demo
from mixdim.lab.demo import (
    DEMO_SETS,
    DemoSet,
    DemoStopped,
    beside_results,
    mixed_against_uniform,
    results_table,
    run_demo,
)
from mixdim.runs.config import RunConfig, run_options
from mixdim.runs.sweeps.records import read_records
from mixdim.training import Stopped

SMALL = (
    DemoSet(
        "criteo-like",
        rows=3_000,
        scale=0.00002,
        config=RunConfig.of(model="dlrm", bottom=(8,), top=(8,), batch_size=512, epochs=1),
        uniform_dims=(4, 8),
    ),
    DemoSet(
        "movielens-like",
        rows=2_000,
        scale=0.0005,
        config=RunConfig(model="mf", epochs=3, bands=2),
        uniform_dims=(4, 8),
    ),
)


@contextmanager
def no_bars():
    yield lambda *shown: None


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A small demo: its folder, what it printed, what it showed of its progress, its summaries."""
    out = tmp_path_factory.mktemp("demo") / "new"
    lines, shown = [], []

    @contextmanager
    def bars():
        yield lambda *step: shown.append(step)

    summaries = run_demo(out, echo=lines.append, progress=bars, demo_sets=SMALL)
    return out, "\n".join(lines), shown, summaries


def test_the_widths_of_criteo_kaggle_are_planned_and_drawn(finished):
    out, text, _, _ = finished
    assert "33,762,577 rows" in text
    base_dims = next(line for line in text.splitlines() if line.startswith("base_dim"))
    assert base_dims.split() == ["base_dim", "2", "28", "128", "578"]
    assert {"fig6.png", "fig6.svg", "frontier.png", "frontier.svg"} < {p.name for p in out.iterdir()}


def test_every_temperature_is_trained_within_every_budget_in_a_folder_of_its_own(finished):
    out, _, _, summaries = finished
    for demo_set in SMALL:
        rows = sum(Dataset(out / "data" / demo_set.name).cardinalities.values())
        runs = [run for run in summaries if run["model"] == demo_set.config.model]
        asked = [(run["temperature"], run["budget"]) for run in runs]
        assert asked == [(0.0, 4 * rows), (0.3, 4 * rows), (0.0, 8 * rows), (0.3, 8 * rows)]
        assert all(run["embedding_parameters"] <= run["budget"] for run in runs)
        assert [run["embedding_parameters"] for run in runs[::2]] == [4 * rows, 8 * rows]
    saved = [json.loads(path.read_text()) for path in out.glob("runs/*/summary.json")]
    assert sorted(saved, key=repr) == sorted(json.loads(json.dumps(summaries)), key=repr)


def test_the_results_say_losses_parameters_and_the_distance_to_the_best_possible(finished):
    _, text, _, summaries = finished
    for run, metric in ((summaries[1], "log_loss"), (summaries[-1], "mse")):
        loss = run["test"]["best"][metric]
        cells = [
            "0.3",
            str(run["base_dim"]),
            f"{run['embedding_parameters']:,}",
            f"{run['num_parameters']:,}",
            f"{loss:.4f}",
            *([f"{run['test']['best']['accuracy']:.4f}"] if metric == "log_loss" else []),
            f"{loss - run[f'bayes_{metric}']['test']:.4f}",
            f"{run['seconds']:.1f}",
        ]
        assert cells in [line.split() for line in text.splitlines()]
    assert "synthetic data, one seed" in text
    assert text.index("above best") < text.index("mixdim prepare table clicks.csv")


def test_the_demo_ends_with_a_report_of_its_records_and_figures(finished):
    out, text, _, summaries = finished
    assert text.splitlines()[-1].endswith(str(out / "report.html"))
    assert [record.summary for record in read_records([out / "records.jsonl"])] == summaries
    page = (out / "report.html").read_text()
    assert page.count('src="data:image/svg+xml') == 2
    assert "8 finished, 0 failed" in page
    for run in summaries:
        assert f"{run['num_parameters']:,}" in page


def test_progress_is_shown_and_each_run_ends_with_its_test_loss(finished):
    _, _, shown, summaries = finished
    stages = list(dict.fromkeys(step[0] for step in shown))
    bars_of_runs = [stage for stage in stages if stage.startswith("temp ")]
    assert len(bars_of_runs) == len(summaries) == 8
    assert stages[:2] == ["counting", "writing"]
    for name, run in zip(bars_of_runs, summaries, strict=True):
        loss = run["test"]["best"]["log_loss" if run["model"] == "dlrm" else "mse"]
        first, *_, (_, done, total, note) = [step for step in shown if step[0] == name]
        assert first[3].startswith("epoch 1/")
        assert done == total > 0
        assert note.endswith(f" {loss:.4f}")


def test_the_documentation_names_every_key_of_a_summary_and_of_its_journal(finished):
    out, _, _, summaries = finished
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    records = [
        json.loads(line)
        for path in out.glob("runs/*/metrics.jsonl")
        for line in path.read_text().splitlines()
    ]
    for key in {key for document in [*summaries, *records] for key in keys_of(document)}:
        assert f"`{key}`" in page or key in run_options(), key  # docs/options.md has the options


def keys_of(document):
    """The keys of a JSON object and of those inside it; names of splits and features are not ours."""
    for key, value in document.items():
        yield key
        if isinstance(value, dict) and not key.startswith(("bayes_", "widths", "unknown_")):
            yield from keys_of(value)


def test_a_second_demo_replaces_the_first(finished, tmp_path):
    first, _, _, before = finished
    shutil.copytree(first, tmp_path, dirs_exist_ok=True)
    only_ratings = [replace(SMALL[1], uniform_dims=(4,))]
    after = run_demo(tmp_path, echo=lambda line: None, progress=no_bars, demo_sets=only_ratings)
    assert [run["test"] for run in after] == [run["test"] for run in before[4:6]]
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == 2


def test_a_stopped_run_stops_the_demo(tmp_path, monkeypatch):
    def stopped(*arguments, **options):
        raise Stopped("SIGINT", 3, tmp_path)

    monkeypatch.setattr(demo, "train_and_measure", stopped)
    with pytest.raises(DemoStopped, match="stopped by SIGINT; the same command begins anew"):
        run_demo(tmp_path, echo=lambda line: None, progress=no_bars, demo_sets=SMALL[1:])


@pytest.mark.parametrize(("signal_name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_the_command_says_in_a_line_what_stopped_it(tmp_path, monkeypatch, capsys, signal_name, code):
    def stopped(*arguments, **options):
        raise DemoStopped(signal_name)

    monkeypatch.setattr(demo, "run_demo", stopped)
    assert cli.run(["demo", "--out", str(tmp_path)]) == code
    assert capsys.readouterr().err == f"stopped by {signal_name}; the same command begins anew\n"


def test_the_difference_is_told_whichever_way_it_goes():
    runs = [
        {"temperature": t, "budget": budget, "test": {"best": {"mse": mse}}}
        for t, budget, mse in ((0.0, 1000, 0.5), (0.3, 1000, 0.45), (0.0, 2000, 0.4), (0.3, 2000, 0.42))
    ]
    assert mixed_against_uniform(runs) == (
        "mixed minus uniform, test mse: -0.0500 within 1,000, +0.0200 within 2,000"
    )


def test_baselines_unknown_values_and_the_smallest_run_near_the_best_are_told():
    runs = [
        {
            "temperature": t,
            "base_dim": base_dim,
            "embedding_parameters": parameters,
            "validation": {"best": {"mse": mse}},
            "test": {"best": {"mse": mse}},
            "baselines": {"constant": {"test": {"mse": 1.2}}, "biases": {"test": {"mse": 0.82}}},
            "unknown_lookups": {"user": {"test": 0.25}, "item": {"test": 0.5}},
        }
        for t, base_dim, parameters, mse in (
            (0.0, 4, 100, 0.6),
            (0.3, 8, 300, 0.502),
            (0.0, 16, 900, 0.5),
        )
    ]
    assert beside_results(runs).splitlines() == [
        "baselines, test mse: constant 1.2000, biases 0.8200",
        "unknown values, share of a feature's lookups in test: at most 50.00%, in item",
        "recommended, the fewest in embeddings within 1% of the best in validation: "
        "temperature 0.3, base_dim 8",
    ]
    known = [{**run, "unknown_lookups": {}} for run in runs]
    assert beside_results(known).splitlines()[1].endswith("in test: none")


def test_without_a_known_truth_the_distance_to_the_best_is_left_out(finished):
    _, _, _, summaries = finished
    real = {key: value for key, value in summaries[-1].items() if key != "bayes_mse"}
    real["test"] = {"best": real["test"]["best"]}  # the last weights are not asked for
    assert results_table([real]).splitlines()[1].split()[-2] == "-"


def test_the_real_demo_trains_clicks_and_ratings_uniform_and_mixed():
    assert [(s.name, s.config.model) for s in DEMO_SETS] == [
        ("criteo-like", "dlrm"),
        ("movielens-like", "mf"),
    ]
    for demo_set in DEMO_SETS:
        assert 0.0 in demo_set.temperatures
        assert len(demo_set.temperatures) > 1
