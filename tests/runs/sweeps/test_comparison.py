import re
from dataclasses import replace

import pytest

from mixdim.runs.config import RunConfig
from mixdim.runs.plans import plan_of
from mixdim.runs.run import Run
from mixdim.runs.sweeps.comparison import bytes_of, comparison, run_comparison
from mixdim.runs.sweeps.frame import best_by_method, over_seeds, run_frame
from mixdim.runs.sweeps.recommend import recommend, train_command
from mixdim.runs.sweeps.tables import comparison_table
from report_records import finished
from training_data import clicks, ratings

TOLD = RunConfig(model="mf", epochs=1)
FOLDERS = ["/one"]


def recorded(loss, config, **more):
    """The record of a run that had this loss."""
    return finished(
        loss, **{**config.to_dict(), "model_budget": None, "bands": None, "rounding": None}, **more
    )


def measured(method, budget, base_dim, losses, **more):
    """Records of a method at a size, one a seed."""
    return [
        finished(loss, method=method, budget=budget, base_dim=base_dim, seed=seed, temperature=None,
                 model_budget=None, **more)
        for seed, loss in enumerate(losses)
    ]  # fmt: skip


def test_candidates_fit_and_spend_at_least_half_of_their_bytes():
    dataset = ratings()
    asked = comparison(TOLD, dataset, ["uniform", "cut", "octaves"], ["1/4", "1/8"], widths=(1, 2, 4, 8))
    rows = sum(dataset.cardinalities.values())
    assert asked.reference == replace(TOLD, method="uniform", bits=32, budget=f"{rows * 68}B", seed=0)
    assert plan_of(asked.reference.resolved(dataset), dataset).blocks[0].dim == 16
    for config in asked.candidates:
        plan, limit = plan_of(config.resolved(dataset), dataset), int(config.budget[:-1])
        assert limit // 2 <= plan.nbytes() + 4 * rows <= limit  # biases are paid first
    tried = [(config.method, config.budget, config.base_dim) for config in asked.candidates]
    quarter, eighth = f"{rows * 17}B", f"{rows * 17 // 2}B"
    assert [entry for entry in tried if entry[0] == "uniform"] == [
        ("uniform", quarter, None),
        ("uniform", eighth, None),
    ]
    # A cut of width 1 keeps all rows in a quarter of the quarter: no use of it.
    assert [entry[2] for entry in tried if entry[:2] == ("cut", quarter)] == [2, 4, 8]
    assert [entry[2] for entry in tried if entry[:2] == ("cut", eighth)] == [1, 2, 4, 8]


def test_what_no_width_makes_small_enough_is_said():
    told = replace(TOLD, model_options={"biases": False})
    asked = comparison(told, ratings(), ["uniform", "cut"], ["1/64"], bits=(32, 8), widths=(1,))
    assert [(one.method, one.bits) for one in asked.candidates] == [("cut", 32), ("cut", 8)]
    assert [line.partition(" (")[0] for line in asked.not_possible] == [
        "uniform is not possible in 1/64",
        "uniform, 8 bits is not possible in 1/64",
    ]
    assert all("the smallest feasible budget is" in line for line in asked.not_possible)


def test_what_has_no_rows_to_quantize_is_said():
    told = RunConfig(model="dlrm", epochs=1)
    asked = comparison(told, clicks(), ["robe", "cut"], ["1/8"], bits=(8, 4), widths=(2,))
    assert [(one.method, one.bits) for one in asked.candidates] == [("cut", 8), ("cut", 4)]
    assert [re.sub(r" \(.*\)", "", line) for line in asked.not_possible] == [
        f"robe, {bits} bits is not possible in 1/8: no row of it has numbers of its own to quantize"
        for bits in (8, 4)
    ]


def test_where_no_width_spends_half_the_one_that_spends_most_is_tried():
    asked = comparison(TOLD, ratings(), ["cut"], ["1/2"], widths=(1, 2))
    assert [config.base_dim for config in asked.candidates] == [2]


@pytest.mark.parametrize("size", ["0/8", "1/0", "-1/4", "a/b", "4", "much"])
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(ValueError, match=r"a size must be|a share of bytes"):
        bytes_of(size, 1000)


def test_the_best_width_by_validation_is_repeated_with_the_other_seeds():
    asked = comparison(TOLD, ratings(), ["cut"], ["1/8"], widths=(1, 2, 4))
    losses, made, totals = {None: 0.9, 1: 0.8, 2: 0.6, 4: 0.7}, [], []

    def sweep(runs, records, *, jobs, earlier=0, later=0):
        assert (records, jobs) == ("somewhere", 2)
        totals.append(earlier + len(runs) + later)
        made.append([(run.config.base_dim, run.config.seed, run.config.data) for run in runs])
        return [recorded(losses[run.config.base_dim], run.config) for run in runs]

    folders = ["/zero", "/one"]
    found = run_comparison(asked, folders, "somewhere", seeds=3, sweep=sweep, jobs=2)
    assert made[0] == [(width, 0, "/zero") for width in (None, 1, 2, 4)]
    assert made[1] == [(None, 1, "/one"), (2, 1, "/one"), (None, 2, "/zero"), (2, 2, "/zero")]
    assert len(found) == 8
    assert totals == [8, 8]  # one bar
    won = over_seeds(best_by_method(run_frame(found)))
    assert won["method"].to_list() == ["uniform", "cut"]
    assert [found[numbers[0]].config["base_dim"] for numbers in won["numbers"]] == [None, 2]
    assert won["tried"].to_list() == [1, 3]
    assert won["seeds"].to_list() == [3, 3]


@pytest.mark.parametrize(
    ("dataset", "model", "same", "words"),
    [
        (
            *(clicks, "dlrm", {"first_order": False, "from_baseline": False}),
            "with --no-first-order (the bytes that are compared are all for vectors), "
            "--no-from-baseline (it needs first_order)",
        ),
        (ratings, "mf", {"bands": 1}, "with --bands 1 (a method makes its own bands)"),
    ],
)
def test_the_reference_is_the_uniform_run_of_train_with_the_options_that_are_said(
    dataset, model, same, words, tmp_path
):
    told = RunConfig(data=str(dataset().path), model=model, epochs=1)
    asked = comparison(told, dataset(), ["uniform"], ["1/1"], reference_width=4)
    assert asked.differences == (
        f"the uniform reference is the run of mixdim train --temperature 0 --base-dim 4 {words}"
    )
    alone = RunConfig.of(**{**told.to_dict(), "temperature": 0.0, "base_dim": 4, **same})
    one, other = (
        Run.create(tmp_path / str(config.method), config).train()["test"]
        for config in (asked.reference, alone)
    )
    assert one == other
    own = {option: value for option, value in same.items() if option != "bands"}
    told = RunConfig.of(**{**told.to_dict(), **own})
    asked = comparison(told, dataset(), ["uniform"], ["1/1"], reference_width=4)
    assert (asked.differences is None) == (model == "dlrm")


def test_a_size_that_is_the_reference_is_run_once():
    asked = comparison(TOLD, ratings(), ["uniform"], ["1/1"])

    def sweep(runs, records, **counts):
        return [recorded(0.5, run.config) for run in runs]

    found = run_comparison(asked, FOLDERS, "somewhere", seeds=3, sweep=sweep)
    assert [record.config["seed"] for record in found] == [0, 1, 2]


def test_the_table_says_what_was_tried_and_how_far_from_the_reference():
    records = [
        *measured("uniform", "6400B", 16, [0.50, 0.52], parameters=1600),
        *measured("cut", "800B", 2, [0.70], parameters=200),
        *measured("cut", "800B", 4, [0.60, 0.60], parameters=200),
    ]
    lines = [line.split() for line in comparison_table(records).splitlines()]
    assert lines[1][:5] == ["6.4", "kB", "1/1", "uniform", "16"]
    assert lines[2][:5] == ["800", "B", "1/8", "cut", "4"]
    assert "0.6000" in lines[2]
    assert "+0.0900" in lines[2]
    assert lines[2][-3:-1] == ["2", "2"]  # two widths tried, two seeds
    assert comparison_table([]) == "no run is finished yet"


def test_recommendations_are_by_bytes_and_name_the_method():
    small = measured("cut", "800B", 4, [0.51, 0.51], bits=8, parameters=3000)
    for record in small:
        record.summary["embedding_bytes"] = 800
    records = [*measured("uniform", "6400B", 16, [0.50, 0.52], parameters=2600), *small]
    found = recommend(records, loss_within=0.01)
    assert found.chosen["method"] == "cut, 8 bits"
    assert found.uniform is not None
    assert found.uniform["num_bytes"] == 4 * 2600
    assert found.chosen["num_bytes"] == 800 + 4 * 1000
    assert recommend(records, budget=1300).chosen["method"] == "cut, 8 bits"
    with pytest.raises(ValueError, match=r"the smallest model takes 4.8 kB, as 1,200 do"):
        recommend(records, budget=1100)


def test_the_command_of_a_method_makes_the_same_run():
    dataset = clicks()
    told = RunConfig(data=str(dataset.path), model="dlrm", method="cut", base_dim=4, budget="9kB")
    plain = train_command(recorded(0.5, told.resolved(dataset), objective="log_loss"))
    assert "--bits" not in plain
    config = replace(told, bits=8).resolved(dataset)
    words = train_command(recorded(0.5, config, objective="log_loss"))
    assert "--method cut" in words
    assert "--bits 8" in words
    assert "--budget 9kB" in words
    assert "--base-dim 4" in words


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0.3}, "give method or temperature, not both"),
        ({"budget": None}, "a method needs a budget in bytes"),
        ({"plan": "p.json"}, "give plan or b"),
        ({"bits": 7}, "bits must be 1, 2, 3, 4, 5, 6, 8 or 32, got 7"),
        ({"method": "magic"}, "method must be one of"),
        ({"method": "int8:cut"}, r"\(bits are an option of their own\), got 'int8:cut'"),
    ],
)
def test_a_method_goes_with_bytes_and_a_width_alone(changes, message):
    told = RunConfig(data="d", model="dlrm", method="cut", base_dim=4, budget="9kB")
    with pytest.raises(ValueError, match=message):
        replace(told, **changes).resolved_for("binary")


def test_an_array_for_all_features_is_no_use_to_two_layers():
    dataset = ratings()
    told = RunConfig(data=str(dataset.path), model="mf", method="robe", base_dim=4, budget="2kB")
    with pytest.raises(ValueError, match="method 'robe' has one array for all features"):
        plan_of(told.resolved(dataset), dataset)
