"""What records say: made-up records whose right answer is known."""

import json

import numpy as np
import pytest

from mixdim.lab.trials.findings import (
    allocation_table,
    completion_table,
    fit_slope,
    needs_of,
    two_block_slopes,
    two_block_table,
)
from mixdim.lab.trials.records import read_records, write_records


def two_block(mixed=lambda rate: 100 / rate, agnostic=lambda rate: 50 / rate**2, rates=(0.4, 0.2, 0.1)):
    """Records of two seeds, one a tenth below and one a tenth above the given law."""
    records = []
    for rate in rates:
        for method, law in (("mixed", mixed), ("agnostic", agnostic)):
            settings = {"rate": rate, "method": method, "size": 9, "rare_rank": 1}
            settings |= {"popular_rank": round(1 / rate), "largest_samples": 9000.0}
            bound = {"samples": [1.0, 9000.0], "probability": [0.0, 1.0]}
            order = rate**-1.5 if method == "mixed" else rate**-2.5
            records.append(
                {"kind": "bound", **settings, **bound, "half_covered": 1 / rate, "order": order}
            )
            for seed, factor in enumerate((1 / 1.1, 1.1)):
                samples = law(rate)
                need = None if samples is None else samples * factor
                more = {"recovered_from_more": [] if need is None else [True, seed == 0]}
                records.append({"kind": "need", **settings, "seed": seed, "samples": need, **more})
    return records


def test_slopes_are_those_of_the_law_that_made_the_records():
    slopes = two_block_slopes(two_block())
    assert [round(s.value, 9) for s in slopes["mixed"]] == [1.0, 1.0, 1.5]
    assert [round(s.value, 9) for s in slopes["agnostic"]] == [2.0, 1.0, 2.5]
    assert [round(s.value, 9) for s in slopes["agnostic / mixed"]] == [1.0, 0.0, 1.0]


def test_the_standard_error_is_that_of_least_squares():
    generator = np.random.default_rng(0)
    x = np.array([1.0, 2.0, 3.0, 5.0, 8.0])
    y = 3 * x**1.5 * np.exp(0.1 * generator.standard_normal(5))
    design = np.stack([np.ones(5), np.log(x)], axis=1)
    solution, (residual,), _, _ = np.linalg.lstsq(design, np.log(y), rcond=None)
    error = np.sqrt(residual / 3 * np.linalg.inv(design.T @ design)[1, 1])
    assert fit_slope(x, y) == pytest.approx((solution[1], error, solution[0]))


def test_two_points_have_no_slope_and_missing_ones_do_not_count():
    assert fit_slope([1, 2], [1, 2]) is None
    assert fit_slope([1, 2, 3], [1, None, 2]) is None
    assert fit_slope([1, 2, 3, 4], [2, None, 6, 8]).value == pytest.approx(1.0)


def test_the_mean_need_is_geometric_and_absent_if_a_seed_never_recovered():
    assert needs_of(two_block(), "mixed")[0].mean == pytest.approx(250)
    missing = two_block(agnostic=lambda rate: None if rate == 0.1 else 50 / rate**2)
    assert [need.mean is None for need in needs_of(missing, "agnostic")] == [False, False, True]


def test_the_two_block_table_says_where_only_mixed_recovers():
    lines = two_block_table(two_block()).splitlines()
    last = next(line for line in lines if line.startswith("0.1 "))
    assert last.split() == ["0.1", "10", "+", "1", "1,000", "5,000", "5.00", "1,100", "to", "4,545"]
    first = next(line for line in lines if line.startswith("0.4 "))
    assert first.split()[-3:] == ["275", "to", "284"]
    assert "recovered from 1.5 and 2 times the samples too: 18 of 24 trials" in lines[-1]
    assert any(line.startswith("agnostic") and "2.00 ± 0.00" in line for line in lines)


def test_the_two_block_table_survives_what_never_recovers_and_too_few_rates():
    text = two_block_table(two_block(agnostic=lambda rate: None, rates=(0.4,)))
    row = next(line for line in text.splitlines() if line.startswith("0.4 "))
    assert "not recovered" in row
    assert row.endswith("275 to 9,000")
    assert next(line for line in text.splitlines() if line.startswith("mixed")).split() == [
        *("mixed", "-", "-", "-", "1")
    ]
    assert two_block_table(two_block(mixed=lambda rate: None)).splitlines()[3].endswith("-")


def test_the_allocation_table_has_medians_over_seeds():
    records = [
        {"decay": 0.8, "policy": p, "budget_share": 0.1, "seed": s, "over_optimum": value}
        for p, values in (("optimum", (1, 1, 1)), ("temperature 0", (1.5, 9.0, 2.0)))
        for s, value in enumerate(values)
    ]
    lines = allocation_table(records).splitlines()
    assert lines[2].split() == ["decay", "0.8,", "budget", "10%"]
    assert lines[4].split() == ["temperature", "0", "(uniform)", "2.000"]


def test_the_completion_table_counts_what_recovered():
    records = [
        {"kind": "matrix", "method": "als", "share": 0.5, "seed": seed, "entries": 20, "unknowns": 10,
         "recovered": seed > 0, "error": 10.0 ** -seed, "seconds": 0.5}
        for seed in range(3)
    ]  # fmt: skip
    line = completion_table(records).splitlines()[1]
    assert line.split() == ["matrix,", "als", "50%", "2.00", "2", "of", "3", "1.0e-01", "0.500"]


def test_records_come_back_as_written_and_a_rerun_replaces_them(tmp_path):
    file = tmp_path / "two-block.jsonl"
    write_records(file, two_block())
    assert read_records(file) == two_block()
    write_records(file, [{"seed": 0}])
    assert [json.loads(line) for line in file.read_text().splitlines()] == [{"seed": 0}]


def test_a_record_that_is_no_json_leaves_the_old_file(tmp_path):
    file = tmp_path / "records.jsonl"
    write_records(file, [{"seed": 0}])
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_records(file, [{"error": float("nan")}])
    assert read_records(file) == [{"seed": 0}]
