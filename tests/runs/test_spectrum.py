"""Plans from the spectra of a trained run."""

import json

import numpy as np
import pytest

import mixdim
from mixdim.cli.main import run
from mixdim.runs.config import RunConfig
from mixdim.runs.run import Run
from mixdim.runs.spectrum import plans_from_run
from small_runs import trained
from training_data import clicks, ratings


def uniform(model, data, out):
    config = RunConfig(data=str(data.path), model=model, temperature=0.0, base_dim=6, epochs=1)
    trained(config, out)
    return out


@pytest.fixture(scope="module")
def ratings_run(tmp_path_factory):
    return uniform("mf", ratings(), tmp_path_factory.mktemp("spectrum") / "run")


def test_both_plans_keep_within_the_budget_and_the_spectral_one_loses_less(ratings_run):
    budget = 5 * sum(ratings().cardinalities.values())
    found = plans_from_run(ratings_run, budget=str(budget))
    assert max(found.spectral.num_parameters, found.power_law.num_parameters) <= budget
    assert found.spectral_error <= found.power_law_error
    assert found.power_law == mixdim.plan(ratings(), temperature=0.3, budget=budget, bands=8)
    text = str(found)
    assert f"{found.spectral_error:.2%}" in text
    assert f"{found.power_law.num_parameters:,}" in text


@pytest.mark.parametrize("model", ["mf", "dlrm"])
def test_it_is_the_spectral_plan_of_the_best_weights(model, tmp_path):
    data = ratings() if model == "mf" else clicks()
    path = uniform(model, data, tmp_path / "run")
    budget = 5 * sum(data.cardinalities.values())
    trained = Run.open(path).model()
    layers = (
        [trained.embeddings] if model == "dlrm" else [trained.user_embedding, trained.item_embedding]
    )
    weights = {name: layer.table_6 for layer in layers for name in layer.plan}
    if model == "dlrm":  # the features lie one below the other in the one table of width 6
        starts = np.cumsum([0, *data.cardinalities.values()])
        weights = {
            name: trained.embeddings.table_6[starts[i] : starts[i + 1]]
            for i, name in enumerate(data.cardinalities)
        }
    expected = mixdim.spectral_plan(
        weights, budget=budget, counts=data.counts, bands=8 if model == "mf" else 1
    )
    assert plans_from_run(path, budget=str(budget)).spectral == expected


def test_a_mixed_run_is_told_to_show_too_little(tmp_path):
    config = RunConfig(data=str(ratings().path), temperature=0.2, base_dim=8, epochs=1)
    trained(config, tmp_path / "run")
    assert "A uniform run (--temperature 0) can" in str(plans_from_run(tmp_path / "run", budget="2k"))


def test_on_the_command_line_it_is_shown_saved_drawn_and_trained(ratings_run, tmp_path, capsys):
    saved, drawn = tmp_path / "plan.json", tmp_path / "widths.png"
    command = ["plan", "--widths-from", str(ratings_run), "--budget", "3k", "--save", str(saved)]
    assert run([*command, "--plot", str(drawn)]) == 0
    printed = capsys.readouterr().out
    assert "power law  spectrum" in " ".join(printed.split(" ")).replace("    ", "  ")
    plan = mixdim.Plan.from_json(saved.read_text())
    assert str(plan) in printed
    assert drawn.stat().st_size > 5_000
    assert run([*command, "--json"]) == 0
    assert capsys.readouterr().out == saved.read_text()

    out = tmp_path / "again"
    data = str(ratings().path)
    assert run(["train", "--data", data, "--plan", str(saved), "--epochs", "1", "--out", str(out)]) == 0
    assert mixdim.Plan.from_json((out / "plan.json").read_text()) == plan
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["embedding_parameters"], summary["budget"]) == (plan.num_parameters, None)
    assert run(["train", "--resume", "--out", str(out)]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "--widths-from", "RUN"], "--widths-from takes --budget"),
        (["plan", "--widths-from", "RUN", "--budget", "9k", "--bits", "8"], "--widths-from takes"),
        (["plan", "--widths-from", "RUN", "--budget", "9"], "the smallest feasible budget"),
        (
            ["plan", "--widths-from", "/nowhere", "--budget", "9k"],
            "/nowhere is not a run: it has no",
        ),
        (["train", "--data", "DATA", "--plan", "PLAN", "--budget", "9k"], "give plan or budget"),
        (["train", "--data", "DATA", "--plan", "/nowhere"], "/nowhere: No such file"),
        (["train", "--data", "CLICKS", "--plan", "PLAN"], "has other features than the plan"),
    ],
)
def test_bad_input_is_one_line(ratings_run, tmp_path, capsys, arguments, message):
    names = {
        "RUN": ratings_run,
        "DATA": ratings().path,
        "CLICKS": clicks().path,
        "PLAN": ratings_run / "plan.json",
    }
    arguments = [str(names.get(argument, argument)) for argument in arguments]
    if arguments[0] == "train":
        arguments += ["--out", str(tmp_path / "run")]
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "run").exists()
