import fcntl
import json
import threading
from dataclasses import asdict, replace
from multiprocessing import get_context

import pytest

from mixdim.runs.sweeps.frame import replicates
from mixdim.runs.sweeps.records import append_record, read_records
from report_records import finished


def record(key="a", *, finished_at="2026-11-16T02:00:00Z", **config):
    made = finished(**{"data": "d", "base_dim": 4, "model_budget": None, **config})
    return replace(made, key=key, finished_at=finished_at)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "records.jsonl"


def test_records_come_back_as_they_were_written(file):
    written = [record("a"), replace(record("b"), status="failed", error="ü", summary=None, curve=[])]
    for one in written:
        append_record(file, one)
    assert read_records([file]) == written
    assert [json.loads(line) for line in file.read_text().splitlines()] == list(map(asdict, written))


def test_the_newest_record_of_a_key_wins_in_whatever_order_files_are_named(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    append_record(old, record(finished_at="2026-11-16T02:00:00Z", base_dim=4))
    append_record(new, record(finished_at="2026-11-16T02:00:01Z", base_dim=8))
    for paths in ([old, new], [new, old]):
        assert [one.config["base_dim"] for one in read_records(paths)] == [8]
    append_record(new, record(finished_at="2026-11-16T02:00:01Z", base_dim=16))
    assert [one.config["base_dim"] for one in read_records([new, old])] == [16]


def test_no_files_hold_no_records_and_a_missing_one_is_an_error(file):
    assert read_records([]) == []
    file.touch()
    assert read_records([file]) == []
    with pytest.raises(FileNotFoundError):
        read_records([file.with_name("missing")])


@pytest.mark.parametrize("kept", [1, 30, -2])
def test_a_torn_last_line_is_skipped_with_a_warning_and_mended_by_the_next_append(file, kept):
    for key in "ab":
        append_record(file, record(key))
    first, second = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(first + second[:kept])
    with pytest.warns(UserWarning, match=r"records.jsonl: its last line, 2, is torn and was skipped"):
        assert [one.key for one in read_records([file])] == ["a"]
    append_record(file, record("c"))
    assert [one.key for one in read_records([file])] == ["a", "c"]


def test_a_whole_last_line_without_a_newline_is_kept(file):
    append_record(file, record("a"))
    file.write_bytes(file.read_bytes().rstrip(b"\n"))
    assert [one.key for one in read_records([file])] == ["a"]
    append_record(file, record("b"))
    assert [one.key for one in read_records([file])] == ["a", "b"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("{", "is no record: Expecting"),
        ("[]", "is no record: it must be an object, got []"),
        ({"status": "done"}, "status must be finished or failed, got 'done'"),
        ({"config": None}, "its config must be an object, got None"),
        ({"config": {}}, "it has no config.model"),
        ({"summary": None}, "it is finished and has no summary"),
        ({"curve": {}}, "its curve must be a list of objects, got {}"),
        ({"summary": {}}, "it has no summary.model"),
        ({"finished_at": 3}, "its finished_at must be text, got 3"),
        ('{"key": NaN}', "NaN is no number in JSON"),
        ("[" * 10**6, "it has too many objects within objects"),
        ({"key": "\ud800"}, "surrogates not allowed"),
        ("{}", "it has no key"),
    ],
)
def test_a_malformed_line_is_an_error_with_its_place(file, change, message):
    append_record(file, record("a"))
    line = change if isinstance(change, str) else json.dumps({**asdict(record("b")), **change})
    with file.open("a") as opened:
        opened.write(f"{line}\n")
    append_record(file, record("c"))
    with pytest.raises(ValueError, match=r"records.jsonl, line 2, ") as caught:
        read_records([file])
    assert message in str(caught.value)


def test_a_number_that_json_does_not_have_is_refused_before_anything_is_written(file):
    one = record()
    one.summary["test"]["best"]["mse"] = float("nan")
    with pytest.raises(ValueError, match="JSON"):
        append_record(file, one)
    assert not file.exists()


def test_an_append_waits_for_the_lock(file):
    append_record(file, record("a"))
    thread = threading.Thread(target=append_record, args=(file, record("b")))
    with file.open("rb") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        assert len(opened.read().splitlines()) == 1
    thread.join()
    assert [one.key for one in read_records([file])] == ["a", "b"]


def append_many(path, name, count):
    for number in range(count):
        append_record(path, record(f"{name}{number}", padding="x" * 20_000))


def test_processes_that_append_at_once_lose_and_mix_nothing(file):
    context = get_context("fork")
    processes = [context.Process(target=append_many, args=(file, name, 40)) for name in "abc"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    found = {one.key for one in read_records([file])}
    assert found == {f"{name}{number}" for name in "abc" for number in range(40)}


def test_replicates_differ_in_seed_and_data_only():
    found = replicates([
        record("a", seed=1, data="x"),
        record("b", seed=0, data="y"),
        record("c", seed=0, base_dim=8),
        replace(record("d", seed=2), status="failed"),
    ])  # fmt: skip
    assert [[one.key for one in group] for group in found] == [["b", "a"], ["c"]]


def test_within_a_model_budget_replicates_may_differ_in_base_dim():
    within = [record(f"{budget}", base_dim=budget, model_budget=9) for budget in (4, 5)]
    assert len(replicates(within)) == 1
    assert len(replicates([*within, record("c", model_budget=10)])) == 2
