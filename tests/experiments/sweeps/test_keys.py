import json
import shutil
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import pytest

import mixdim
from mixdim.experiments.report.chart import chart_points
from mixdim.experiments.runs.config import RunConfig, config_of
from mixdim.experiments.sweeps import keys, sweep
from mixdim.experiments.sweeps.keys import FIRST_OPTIONS, LATER_OPTIONS, comparable, record_key
from mixdim.experiments.sweeps.records import read_records, replicates
from mixdim.experiments.sweeps.sweep import SweepRun, run_sweep
from mixdim.experiments.sweeps.table import sweep_table
from report_records import finished

REPOSITORY = Path(__file__).parents[3]
EARLIER = REPOSITORY / "tests" / "earlier_files"
CONFIG = RunConfig(data="d", model="mf", preset="cf", temperature=0.3, base_dim=8).effective("rating")


@pytest.mark.parametrize("name", [field.name for field in fields(RunConfig) if field.name != "plan"])
def test_the_key_depends_on_what_decides_the_result_and_on_nothing_else(name):
    other = replace(CONFIG, **{name: "something else"})
    same = record_key(other, "f") == record_key(CONFIG, "f")
    assert same == (name in ("data", "checkpoint_every", "tensorboard"))


def test_the_key_depends_on_the_data_and_on_the_budget_that_could_not_be_met():
    found = {
        record_key(CONFIG, "f"),
        record_key(CONFIG, "g"),
        *(record_key(CONFIG, "f", model_budget=budget) for budget in (1, 2)),
    }
    assert len(found) == 4
    assert {len(key) for key in found} == {32}


def test_a_plan_counts_by_its_content_not_by_its_place(tmp_path):
    one, same, other = (tmp_path / name for name in ("one", "same", "other"))
    for path, dim in ((one, 2), (same, 2), (other, 3)):
        mixdim.plan({"x": 5}, temperature=0, base_dim=dim).save(path)
    first, second, third = (
        record_key(replace(CONFIG, plan=str(path)), "f") for path in (one, same, other)
    )
    assert first == second != third
    other.write_text("{}")
    with pytest.raises(ValueError, match="other: not a plan"):
        record_key(replace(CONFIG, plan=str(other)), "f")


# Keys of earlier versions.


def earlier_runs(data):
    """What tests/earlier_files/README.md says that the records are of."""
    few = {"data": str(data / "ratings"), "preset": "paper-cf", "epochs": 2, "batch_size": 256}
    # The preset was not said then: it was the paper's, whatever the data.
    told = {"preset": "ctr", "temperature": 0.0, "base_dim": 2, "bottom": (4,), "top": (4,)}
    of_ncf = {"model": "ncf", "base_dim": 4, "hidden": (8, 4), "rounding": "integer"}
    of_plan = {"model": "mf", "plan": str(data / "mf" / "plan.json"), "biases": False, "lr": 0.02}
    return [
        *(
            SweepRun(RunConfig(model="mf", temperature=temperature, seed=seed, **few), 1_200)
            for seed in (0, 1)
            for temperature in (0.0, 0.3)
        ),
        SweepRun(RunConfig(temperature=0.3, **of_ncf, **few)),
        SweepRun(RunConfig(**of_plan, **few)),
        SweepRun(RunConfig(data=str(data / "clicks"), init="he_fan_out", batch_size=64, **told)),
    ]


@pytest.mark.filterwarnings("ignore::mixdim.FloorWarning")
def test_a_sweep_finds_the_records_of_an_earlier_version_finished_and_trains_nothing(
    tmp_path, monkeypatch
):
    data, file = shutil.copytree(EARLIER, tmp_path / "moved"), tmp_path / "moved" / "records.jsonl"
    before = file.read_bytes()
    monkeypatch.setattr(sweep, "Worker", None)  # who would train
    found = run_sweep(earlier_runs(data), file)
    assert [record.finished for record in found] == [True] * 7
    assert len({record.key for record in found}) == 7
    assert file.read_bytes() == before
    failed = run_sweep([SweepRun(replace(earlier_runs(data)[1].config, model=None), 10)], file)
    assert [json.loads(line)["key"] for line in file.read_text().splitlines()].count(failed[0].key) == 2


def test_a_preset_has_the_same_key_by_its_earlier_name():
    for earlier, now in (("ctr", "paper-ctr"), ("cf", "paper-cf")):
        one, other = replace(CONFIG, preset=earlier), replace(CONFIG, preset=now)
        assert record_key(one, "f") == record_key(other, "f")
        assert comparable(asdict(one)) == comparable(asdict(other))
    assert record_key(CONFIG, "f") != record_key(replace(CONFIG, preset="auto"), "f")


def test_every_option_has_its_place_in_the_key():
    """A new one goes into LATER_OPTIONS, with what runs did before: FIRST_OPTIONS is history."""
    assert {field.name for field in fields(RunConfig)} <= {*FIRST_OPTIONS, *LATER_OPTIONS}
    assert not {*FIRST_OPTIONS} & {*LATER_OPTIONS}
    assert len(FIRST_OPTIONS) == 26


@dataclass(frozen=True)
class NewerConfig(RunConfig):
    """The options of some later version."""

    dropout: float | None = None
    layers: tuple[int, ...] | None = None


@pytest.fixture
def newer(monkeypatch):
    monkeypatch.setitem(keys.LATER_OPTIONS, "dropout", 0.0)
    monkeypatch.setitem(keys.LATER_OPTIONS, "layers", (8, 4))
    return NewerConfig(**asdict(CONFIG))


def test_new_options_leave_the_keys_of_runs_that_do_as_before(newer):
    before = record_key(CONFIG, "f")
    as_before = [{}, {"dropout": 0.0}, {"layers": (8, 4)}, {"dropout": 0.0, "layers": (8, 4)}]
    assert {record_key(replace(newer, **said), "f") for said in as_before} == {before}
    otherwise = [{"dropout": 0.5}, {"layers": (8,)}, {"layers": ()}, {"dropout": 0.5, "layers": (8,)}]
    assert len({record_key(replace(newer, **said), "f") for said in otherwise} | {before}) == 5


def test_an_option_that_is_given_up_leaves_the_keys_of_runs_without_it():
    names = [field.name for field in fields(RunConfig) if field.name != "hidden"]
    without = dataclass(frozen=True)(
        type("Config", (), {"__annotations__": dict.fromkeys(names, object), **dict.fromkeys(names)})
    )
    fewer = without(**{name: getattr(CONFIG, name) for name in names})
    assert record_key(fewer, "f") == record_key(CONFIG, "f")


@pytest.mark.usefixtures("newer")
def test_records_from_before_an_option_are_compared_with_those_since():
    old = finished(0.75, seed=0, temperature=0.0)
    new = [finished(0.7, seed=seed, temperature=0.0, dropout=0.0, layers=None) for seed in (1, 2)]
    other = finished(0.6, seed=0, temperature=0.0, dropout=0.5, layers=[8, 4])
    assert [len(same) for same in replicates([old, *new, other])] == [3, 1]
    assert len(chart_points([old, *new, other])) == 2
    assert comparable(old.config) == {**comparable(new[0].config), "seed": 0}
    mixed = finished(0.5, seed=1, dropout=0.0, layers=[8, 4])
    assert "-0.2000" in sweep_table([old, *new, mixed])


def test_configs_of_records_are_compared_as_they_are_while_there_is_nothing_new():
    for record in read_records([EARLIER / "records.jsonl"]):
        options = {name: value for name, value in record.config.items() if name != "model_budget"}
        assert comparable(record.config) == record.config
        assert asdict(config_of(options)).keys() - LATER_OPTIONS.keys() == set(FIRST_OPTIONS)


def rule_of(path):
    """What made a plan of version 1, which did not say."""
    if "pooled" in path.name:
        temperature = json.loads(path.read_bytes())["temperature"]
        return {"rule": "pooled", "temperature": temperature, "bands": 2}
    if "lifted" in path.name:
        return {"rule": "lifted", "dim": mixdim.Plan.load(path).blocks[0].dim}
    return mixdim.Plan.load(path).made_by


@pytest.mark.parametrize(
    "path",
    [
        *(REPOSITORY / "results" / "plans").glob("*.json"),
        *(EARLIER / f"plan-{rule}.json" for rule in ("lifted", "pooled", "power-law")),
    ],
    ids=lambda path: path.name,
)
def test_a_run_with_a_plan_has_one_key_whichever_version_wrote_the_plan(path, tmp_path):
    """`mixdim reproduce` writes plans anew, and must find the runs that were made with the old ones."""
    again = tmp_path / "plan.json"
    replace(mixdim.Plan.load(path), made_by=rule_of(path)).save(again)
    assert json.loads(again.read_bytes())["version"] == 2
    keys = {
        record_key(RunConfig(plan=str(plan), preset="ctr").effective("binary"), "f00d")
        for plan in (path, again)
    }
    assert len(keys) == 1


def test_plans_that_differ_in_what_is_new_have_other_keys(tmp_path):
    counts = {"item": [1, 2, 9, 9]}
    plan = mixdim.plan({"item": 4}, counts=counts, bands=2, temperature=0.2, base_dim=4)
    others = [
        plan,
        replace(plan, named_orders=()),
        plan.with_storage("item", mixdim.Hashed(2, buckets=1)),
        plan.with_storage("item", mixdim.Hashed(2, buckets=2)),
    ]
    keys = set()
    for number, other in enumerate(others):
        path = tmp_path / f"{number}.json"
        other.save(path)
        keys.add(record_key(RunConfig(plan=str(path), preset="ctr").effective("binary"), "f00d"))
    assert len(keys) == len(others)
