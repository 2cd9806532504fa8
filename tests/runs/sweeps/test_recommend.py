import re
from itertools import pairwise

import pytest

from method_records import by_method, comparison
from mixdim.cli.main import run
from mixdim.planning.budget import format_bytes
from mixdim.runs.config import RunConfig
from mixdim.runs.report.rows import table_rows
from mixdim.runs.sweeps.frame import over_seeds, run_frame
from mixdim.runs.sweeps.recommend import recommend, select, train_command
from mixdim.runs.sweeps.records import Record, append_record
from mixdim.runs.sweeps.tables import comparison_table, sweep_table


def record(temperature, parameters, validation, *, test=0.5, seed=0, data="/d", model="mf", loss="mse"):
    """A run with a given result."""
    task = {"mse": "rating", "log_loss": "binary"}[loss]
    preset = {"rating": "paper-cf", "binary": "paper-ctr"}[task]
    told = RunConfig(data=data, model=model, temperature=temperature, base_dim=4, seed=seed)
    config = told.merged_with(RunConfig(preset=preset)).resolved_for(task).to_dict()
    config["model_budget"] = parameters
    summary = {
        **{"temperature": temperature, "base_dim": 4, "num_parameters": parameters, "seconds": 2.0},
        "embedding_parameters": parameters - 10,
        "validation": {"best": {loss: validation}, "last": {loss: 0.0}},
        "test": {"best": {loss: test}, "last": {loss: 0.0}},
    }
    key = f"{data} {model} {temperature} {parameters} {seed}"
    return Record(key, "finished", None, config, summary, [], None, "2026-11-16T02:00:00Z")


def seeds(temperature, parameters, *validations, **more):
    return [
        record(temperature, parameters, loss, seed=seed, **more) for seed, loss in enumerate(validations)
    ]


RUNS = [
    *seeds(0.0, 100, 0.90, 0.92),
    *seeds(0.0, 400, 0.82, 0.80),
    *seeds(0.3, 100, 0.82, 0.82),
    *seeds(0.3, 200, 0.801, 0.803),
    *seeds(0.3, 800, 0.80, 0.80),
]


def chosen(found):
    return [None if one is None else (one["temperature"], one["parameters"]) for one in found]


@pytest.mark.parametrize(
    ("within", "expected"),
    [
        (0.0, [(0.3, 800), (0.3, 800), None]),
        (0.0024, [(0.3, 800), (0.3, 800), None]),
        (0.0026, [(0.3, 200), (0.3, 800), None]),
        (0.026, [(0.3, 100), (0.3, 800), (0.0, 400)]),
        (9.0, [(0.3, 100), (0.3, 800), (0.0, 400)]),
    ],
)
def test_the_cheapest_within_a_loss_is_chosen_by_mean_validation(within, expected):
    assert chosen(recommend(RUNS, loss_within=within)) == expected


@pytest.mark.parametrize(("budget", "expected"), [(100, 100), (399, 200), (799, 200), (800, 800)])
def test_the_lowest_loss_within_a_budget_is_chosen(budget, expected):
    assert recommend(RUNS, budget=budget).chosen["parameters"] == expected


def test_the_test_loss_never_decides():
    tempting = seeds(0.5, 50, 0.99, 0.99, test=0.0)
    assert recommend([*RUNS, *tempting], loss_within=0.0).chosen["temperature"] == 0.3


def test_uniform_is_recommended_where_it_is_best():
    found = recommend([*seeds(0.0, 100, 0.8), *seeds(0.3, 100, 0.9)], budget=100)
    assert found.chosen["temperature"] == 0
    assert found.uniform == found.chosen


def test_configurations_with_fewer_seeds_are_left_out_with_a_warning():
    lucky = record(0.4, 100, 0.1)
    with pytest.warns(UserWarning, match="1 of 6 configurations have fewer than 2 seeds"):
        assert recommend([*RUNS, lucky], budget=100).chosen["temperature"] == 0.3


def test_widths_that_a_sweep_tried_and_did_not_choose_are_no_surprise(recwarn):
    found = recommend(comparison(), loss_within=0.1)
    assert found.chosen["seeds"] == 2
    assert [str(warning.message) for warning in recwarn] == []
    unfinished = by_method("robe", asked=400), by_method("robe", asked=400, base_dim=8)
    with pytest.warns(UserWarning, match="2 of 11 configurations have fewer than 2 seeds"):
        recommend([*comparison(), *unfinished], loss_within=0.1)


@pytest.mark.parametrize(
    ("records", "wish", "message"),
    [
        (RUNS, {}, "give either loss_within or budget"),
        (RUNS, {"budget": 5, "loss_within": 0.1}, "give either loss_within or budget"),
        (RUNS, {"budget": 99}, "budget of 99 parameters is below all that was measured: .* takes 400 B"),
        (RUNS, {"loss_within": -0.1}, "loss_within must be at least 0, got -0.1"),
        (RUNS, {"loss_within": float("nan")}, "loss_within must be at least 0, got nan"),
        ([], {"budget": 5}, "there are no finished runs"),
        (seeds(0.0, 4, None), {"budget": 5}, "the validation split is empty"),
    ],
)
def test_a_wish_that_cannot_be_met_is_an_error(records, wish, message):
    with pytest.raises(ValueError, match=message):
        recommend(records, **wish)


def test_means_and_deviations_are_over_the_seeds():
    runs = [*seeds(0.0, 100, 0.8, 0.9, 1.0), *seeds(0.3, 100, 0.5), *seeds(0.4, 100, None)]
    measured = over_seeds(run_frame(runs)).select("validation", "validation_std").rows()
    assert measured == [pytest.approx((0.9, 0.1)), (0.5, None), (None, None)]


def test_records_of_several_models_or_data_sets_must_be_told_apart():
    both = [*RUNS, *seeds(0.0, 5, 0.7, model="ncf")]
    with pytest.raises(ValueError, match="several models, choose one: mf, ncf"):
        select(both)
    assert select(both, model="ncf") == both[-1:]
    with pytest.raises(ValueError, match="no runs of model 'dlrm': there are mf, ncf"):
        select(both, model="dlrm")
    both = [*RUNS, *seeds(0.0, 5, 0.7, data="/e/f")]
    with pytest.raises(ValueError, match="several data sets, choose one: /d, /e/f"):
        select(both)
    for name in ("/e/f", "f", "/e/../e/f"):
        assert select(both, data=[name]) == both[-1:]
    with pytest.raises(ValueError, match="no runs on /g: there are /d, /e/f"):
        select(both, data=["/g"])


def test_folders_that_each_seed_has_of_its_own_are_one_data_set():
    own = [record(0.0, 5, 0.7, seed=seed, data=f"/{seed}") for seed in range(3)]
    assert select(own) == own
    assert recommend(own, budget=5).chosen["numbers"] == [0, 1, 2]


def test_the_command_names_what_differs_from_the_defaults():
    one = record(0.3, 5, 0.7, data="/my data")
    assert train_command(one) == (
        "mixdim train --data '/my data' --model mf --temperature 0.3 --base-dim 4 "
        "--preset paper-cf --out run"
    )
    told = {"biases": False, "lr": 0.001, "seed": 2}
    one = record(0.3, 5, 0.7)
    one.config.update(told)
    assert " --model mf --no-biases --temperature " in train_command(one)
    assert train_command(one).endswith(" --preset paper-cf --lr 0.001 --seed 2 --out run")
    one.config.update(lr=0.0012345678)  # as exactly as it was
    assert "--lr 0.0012345678 " in train_command(one)
    one = record(0.0, 5, 0.7, loss="log_loss", model="dlrm")
    one.config.update(top=[8, 4])
    assert "--top 8,4" in train_command(one)


def test_the_command_says_what_was_chosen_from_the_data():
    """Chosen again, by another version or from more rows, it might be something else."""
    one = record(0.3, 5, 0.7)
    told = RunConfig(data="/d", model="mf", temperature=0.3, base_dim=4, seed=3)
    config = told.resolved_for("rating", train_rows=40_000)
    one.config.update(config.to_dict())
    words = train_command(one).split()
    assert "--preset" not in words
    given = dict(pairwise(words))
    assert (given["--batch-size"], given["--epochs"], given["--seed"]) == ("256", "20", "3")
    assert (given["--penalty"], given["--schedule"], given["--patience"]) == ("1.3", "linear", "16")
    assert given["--weight-decay"] == "0"
    assert "--no-unknown-dropout" in words


def test_the_command_says_whether_clicks_were_learnt_by_the_papers_preset():
    one = record(0.0, 5, 0.7, loss="log_loss", model="dlrm")
    assert train_command(one).endswith("--base-dim 4 --preset paper-ctr --out run")
    one.config.update(preset="clicks", unknown_dropout=True)
    assert train_command(one).endswith("--base-dim 4 --preset clicks --out run")
    one.config.update(unknown_dropout=False)
    assert train_command(one).endswith("--preset clicks --no-unknown-dropout --out run")


def test_the_command_can_be_run(capsys):
    assert run([*train_command(record(0.3, 5, 0.7, data="/nowhere")).split()[1:]]) == 2
    assert "/nowhere is not a prepared folder" in capsys.readouterr().err


def test_the_table_pairs_each_seed_with_the_uniform_run_of_its_budget():
    rows = [
        *(record(0.0, 100, 0.9, seed=seed, test=loss) for seed, loss in enumerate([0.5, 0.7])),
        *(record(0.3, 100, 0.9, seed=seed, test=loss) for seed, loss in enumerate([0.4, 0.5])),
        record(0.3, 200, 0.9, test=0.3),
    ]
    head, *lines = [line.split() for line in sweep_table(rows).splitlines()]
    assert head[:2] + head[5:7] == ["budget", "spent", "test", "mse"]
    assert lines == [
        ["100", "100.0%", "0", "4", "100", "0.6000", "0.1414", "2", "2"],
        ["100", "100.0%", "0.3", "4", "100", "0.4500", "0.0707", "-0.1500", "0.0707", "2", "2"],
        ["200", "100.0%", "0.3", "4", "200", "0.3000", "1", "2"],
    ]
    assert sweep_table([]) == "no run is finished yet"


def test_a_sweep_a_report_and_recommend_count_the_same_bytes(capsys, tmp_path):
    records, file = comparison(), tmp_path / "records.jsonl"
    for record in records:
        append_record(file, record)
    assert run(["recommend", "--records", str(file), "--loss-within", "10%"]) == 0
    recommended = re.search(r"recommended  +(.+?B  .+?B)  ", capsys.readouterr().out)[1]
    name, base_dim, parameters, *sizes = re.split("  +", recommended)
    lines = [re.split("  +", line.strip()) for line in comparison_table(records).splitlines()]
    here = {name: lines[0].index(name) for name in ("embeddings", "model")}
    assert sizes in [
        [line[place] for place in here.values()] for line in lines if line[2:4] == [name, base_dim]
    ]
    assert sizes in [
        [format_bytes(row["embedding_bytes"]), format_bytes(row["model_bytes"])]
        for row in table_rows(records)
        if (row["method"], f"{row['parameters']:,}") == (name, parameters)
    ]
