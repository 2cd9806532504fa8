"""Runs on positives with drawn negatives: how well they rank, in all places that say so."""

import json

import numpy as np
import polars as pl
import pytest
import torch

from commands import complaint, output
from mixdim.data import Dataset
from mixdim.data.table import prepare_table
from mixdim.models import MatrixFactorization
from mixdim.runs.config import RunConfig
from mixdim.runs.models import begin, build_model
from mixdim.runs.plans import plan_of
from mixdim.runs.report.rows import table_rows
from mixdim.runs.run import Run
from mixdim.runs.sweeps.measure import SolvedRun, train_and_measure
from mixdim.runs.sweeps.records import append_record, read_records
from mixdim.tasks import RANKING, task_of
from mixdim.training.first_order import fit_logistic

SMALL = {"base_dim": 4, "temperature": 0.0, "epochs": 1, "batch_size": 100}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bought")
    rng = np.random.default_rng(0)
    pairs = {"user": rng.integers(0, 30, 400), "item": (40 * rng.random(400) ** 2).astype(int)}
    pl.DataFrame(pairs).write_csv(folder / "buys.csv")
    told = {"categorical": ["user", "item"], "negatives": 2, "negatives_of": "item"}
    prepare_table([folder / "buys.csv"], folder / "data", **told)
    return folder / "data"


def ranking_of(metrics):
    return {name: metrics[name] for name in (*RANKING, "ranking")}


def test_a_run_says_how_well_it_ranks_and_of_what(capsys, tmp_path, data):
    run = tmp_path / "run"
    told = (item for name, value in SMALL.items() for item in (f"--{name.replace('_', '-')}", value))
    printed = output(capsys, "train", "--data", data, "--model", "mf", "--out", run, *told).out
    summary = json.loads((run / "summary.json").read_text())
    found = ranking_of(summary["test"]["best"])
    assert ranking_of(Run.open(run).evaluate()) == found
    assert ranking_of(Run.open(run).evaluate(split="validation")).items() <= (
        summary["validation"]["best"].items()
    )
    head, *rows = printed[printed.index("  rows") :].splitlines()
    assert head.split()[-2:] == ["recall@10", "ndcg@10"]
    assert rows[1].split()[-2:] == ["-", "-"]  # of popular items
    (of_test,) = (row for row in rows if row.startswith("test, best"))
    assert of_test.split()[-2:] == [f"{found[name]:.4f}" for name in RANKING]
    assert f"\nrecall@10, ndcg@10 of test: {found['ranking']}\n" in printed
    assert found["ranking"].startswith("all 40 items, ")
    table = output(capsys, "evaluate", run, "--data", data).out
    assert f"\nrecall@10, ndcg@10 of test: {found['ranking']}\n" in table


def test_users_are_sampled_for_other_models_and_records_and_reports_have_the_numbers(tmp_path, data):
    config = RunConfig.of(data=str(data), model="ncf", hidden=(4,), ranking_users=5, **SMALL)
    config = config.resolved(Dataset(data))
    key = config.key(Dataset(data).fingerprint)
    assert key == RunConfig.of(**config.to_dict() | {"ranking_users": 9}).key(Dataset(data).fingerprint)
    append_record(tmp_path / "r.jsonl", train_and_measure(SolvedRun(config, key), tmp_path / "run"))
    records = read_records([tmp_path / "r.jsonl"])
    found = records[0].summary["test"]["best"]
    assert ", 5 of " in found["ranking"]
    assert "ranking" not in records[0].summary["validation"]["best"]
    (row,) = table_rows(records)
    assert row["ranking"] == found["ranking"]
    assert (row["test_recall@10"], row["test_ndcg@10"]) == (found["recall@10"], found["ndcg@10"])
    assert "ranking" not in Run.open(tmp_path / "run").evaluate(ranking_users=0)


def test_what_is_not_ranked_says_why(capsys, tmp_path, data):
    told = ("train", "--data", data, "--base-dim", 4, "--out", tmp_path / "run", "--ranking-users", -1)
    assert "ranking_users must be at least 0, got -1" in complaint(capsys, *told)
    run = Run.create(tmp_path / "run", data=str(data), model="mf", **SMALL)
    run.train()
    prepare_table([data.parent / "buys.csv"], tmp_path / "new", vocabulary_of=data)
    found = run.evaluate(tmp_path / "new")
    assert (found["recall@10"], found["ndcg@10"]) == (None, None)
    assert found["ranking"] == ("not computed: the data has no training rows, whose items are left out")


def test_a_compressed_and_a_quantized_run_say_how_they_rank_as_they_are_served(tmp_path, data):
    run = Run.create(tmp_path / "run", data=str(data), model="mf", bits=4, **SMALL)
    summary = run.train()
    assert ranking_of(run.evaluate()) == ranking_of(summary["test"]["best"])
    assert "recall@10" not in summary["before_quantizing"]["test"]["best"]
    run = Run.create(tmp_path / "whole", data=str(data), model="mf", **SMALL)
    run.train()
    run.compress(tmp_path / "small", "1/2", bands=2)
    small = Run.open(tmp_path / "small")
    assert ranking_of(small.evaluate()) == ranking_of(small.summary["test"]["best"])


def test_factorization_of_positives_may_begin_as_the_logistic_regression(data):
    dataset = Dataset(data)
    config = RunConfig.of(data=str(data), model="mf", from_baseline=True, **SMALL).resolved(dataset)
    assert config.model_options["from_baseline"]
    constant = task_of("binary").constant_output(dataset.mean_target)
    model = build_model(config, plan_of(config, dataset), num_dense=0, mean=constant)
    for side in model.sides:
        for parameter in side.parameters():
            parameter.data.zero_()
    assert isinstance(model, MatrixFactorization)
    assert model.mean.item() == pytest.approx(constant)
    measured = begin(model, dataset, from_baseline=True)
    logistic = fit_logistic(dataset, constant)
    batch = dataset.rows(slice(*dataset.splits["test"]))
    torch.testing.assert_close(model(batch), logistic.model(batch))
    assert measured == logistic.measured
