"""Records that somebody edited: commands read them, or say in one line what is wrong and where."""

import copy
import json
from dataclasses import asdict

from hypothesis import given, settings
from hypothesis import strategies as st

from method_records import by_method
from mixdim.runs.report.page import report_page
from mixdim.runs.sweeps.recommend import recommend, select, train_command
from mixdim.runs.sweeps.records import read_records
from mixdim.runs.sweeps.tables import comparison_table, sweep_table
from report_records import finished, synthetic

DROPPED = object()
JUNK = [
    *(DROPPED, None, True, 0, -1, 2.5, 10**30, 1e200, float("nan"), float("inf"), "", "x" * 99),
    *([], [[]], ["x"], [-1], {}, {"x": None}, {"best": 3}, "width:2", "1e9B", "\ud800", "0B"),
]


def whole_records():
    """A run of each kind, with all that a record may hold."""
    of_method = by_method("cut", asked=800, bits=8)
    by_temperature = synthetic(finished(model_budget=None, budget="width:2"), 0.4)
    for record in (of_method, by_temperature):
        loss = {record.loss_name: 0.9}
        record.summary.update(
            provenance={"rule": "power_law", "temperature": 0.3},
            baselines={"constant": {"validation": loss, "test": loss}},
            budget=5000,
        )
    return [asdict(record) for record in (of_method, by_temperature, finished(seed=1))]


def paths_of(value, path=()):
    yield path
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from paths_of(inner, (*path, name))


def damaged(entries, path, junk):
    found = copy.deepcopy(entries)
    if not path:
        return junk
    inner = found
    for name in path[:-1]:
        inner = inner[name]
    if junk is DROPPED:
        del inner[path[-1]]
    else:
        inner[path[-1]] = junk
    return found


RECORDS = whole_records()
PLACES = [(number, path) for number, entries in enumerate(RECORDS) for path in paths_of(entries)]


def use(file):
    """All that reads records, on a file of them."""
    records = read_records([file])
    for table in (report_page, sweep_table, comparison_table):
        table(records)
    for model in ("mf", "dlrm"):
        found = select(records, model=model)
        for wish in ({"loss_within": 0.1}, {"budget": 2**40}):
            train_command(found[recommend(found, **wish).chosen["numbers"][0]])


def complaint_about(folder, place, junk):
    """The error about records of which one is damaged; None if all of them can be used."""
    number, path = place
    lines = [
        damaged(entries, path, junk) if n == number else entries for n, entries in enumerate(RECORDS)
    ]
    file = folder / "records.jsonl"
    file.write_text("".join(json.dumps(entries) + "\n" for entries in lines))
    try:
        use(file)
    except ValueError as error:
        return str(error)
    return None


def test_whole_records_can_be_used(tmp_path):
    assert complaint_about(tmp_path, (0, ("finished_at",)), "2026") is None


@settings(max_examples=60)
@given(place=st.sampled_from(PLACES), junk=st.sampled_from(JUNK))
def test_a_damaged_record_is_used_or_refused_in_one_line(tmp_path_factory, place, junk):
    if junk is DROPPED and not place[1]:
        return
    complaint = complaint_about(tmp_path_factory.getbasetemp(), place, junk)
    assert complaint is None or "\n" not in complaint
