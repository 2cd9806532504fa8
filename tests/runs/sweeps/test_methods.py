from dataclasses import replace

import pytest

from mixdim.runs.sweeps.methods import (
    bits_of,
    method_of,
    plain_method_of,
    provenance,
    temperature_of,
)
from paper_records import click_record


def with_rule(rule, **options):
    record = click_record(**options)
    record.summary["provenance"] = rule
    return record


@pytest.mark.parametrize(
    ("record", "method", "temperature"),
    [
        (with_rule({"rule": "power_law", "temperature": 0.0}), "uniform", 0),
        (with_rule({"rule": "power_law", "temperature": 0.3}), "temperature 0.3", 0.3),
        # The rule of the plan counts, not the name of its file.
        (with_rule({"rule": "power_law", "temperature": 0.3}, plan="x.json"), "temperature 0.3", 0.3),
        (with_rule({"rule": "lifted", "dim": 2}, plan="any-name.json"), "lifted uniform", None),
        (with_rule({"rule": "pooled", "temperature": 0.3, "bands": 8}, plan="p"), "pooled bands", None),
        (with_rule({"rule": "spectral"}, plan="p.json"), "spectral", None),
        # Where the plan does not know its rule, its file's name is all there is.
        (with_rule({"rule": "unknown"}, plan="of-old.json"), "of old", None),
        (with_rule({"rule": "by_hand", "was": {}}, plan="hashed-tail.1.json"), "hashed tail", None),
    ],
)
def test_a_run_is_called_by_what_made_its_widths(record, method, temperature):
    assert (method_of(record), temperature_of(record)) == (method, temperature)


def test_a_run_that_is_quantized_is_called_by_its_bits_too():
    record = click_record(temperature=0.4)
    record.summary["bits"] = 8
    assert method_of(record) == "temperature 0.4, 8 bits"
    assert (plain_method_of(record), bits_of(record), temperature_of(record)) == (
        *("temperature 0.4", 8),
        0.4,
    )
    assert bits_of(replace(record, config={**record.config, "bits": 4}, summary=None)) == 4  # it failed
    assert (method_of(click_record()), bits_of(click_record())) == ("uniform", 32)


def test_records_from_before_plans_said_so_are_called_as_before():
    assert method_of(click_record()) == "uniform"
    assert method_of(click_record(temperature=0.4)) == "temperature 0.4"
    lifted = click_record(plan="results/plans/lifted-uniform.bbd0ec85.1025834.json")
    assert (method_of(lifted), provenance(lifted)) == ("lifted uniform", {"rule": "lifted uniform"})
    pooled = click_record(temperature=0.3, plan="pooled-bands.json")
    assert provenance(pooled) == {"rule": "pooled bands", "temperature": 0.3}
