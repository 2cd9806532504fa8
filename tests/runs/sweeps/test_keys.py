import json
from dataclasses import asdict, dataclass, fields, replace

import pytest

import mixdim
from mixdim.runs.config import RunConfig
from mixdim.runs.report.chart import chart_points
from mixdim.runs.sweeps import keys
from mixdim.runs.sweeps.frame import replicates
from mixdim.runs.sweeps.keys import comparable, record_key
from mixdim.runs.sweeps.tables import sweep_table
from report_records import finished

CONFIG = RunConfig(data="d", model="mf", preset="paper-cf", temperature=0.3, base_dim=8).effective(
    "rating"
)


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


@dataclass(frozen=True)
class NewerConfig(RunConfig):
    """The options of some later version."""

    dropout: float | None = None
    layers: tuple[int, ...] | None = None


@pytest.fixture
def newer(monkeypatch):
    monkeypatch.setitem(keys.ABSENT, "dropout", 0.0)
    monkeypatch.setitem(keys.ABSENT, "layers", (8, 4))
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


def test_a_run_with_a_plan_has_one_key_however_its_file_is_written(tmp_path):
    path, again = tmp_path / "plan.json", tmp_path / "again.json"
    plan = mixdim.plan({"x": 5, "y": 9}, temperature=0.3, base_dim=4)
    plan.save(path)
    again.write_text(json.dumps(json.loads(path.read_bytes())))
    config = RunConfig(preset="paper-ctr").effective("binary")
    first, second = (record_key(replace(config, plan=str(one)), "f00d") for one in (path, again))
    assert first == second


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
        keys.add(record_key(RunConfig(plan=str(path), preset="paper-ctr").effective("binary"), "f00d"))
    assert len(keys) == len(others)
