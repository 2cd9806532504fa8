"""What this repository says it measured is what its records and findings say."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from commands import output
from mixdim.lab.paper import captions, claims
from mixdim.lab.paper.protocols import small
from mixdim.lab.reproduce.targets import FIGURES
from mixdim.runs.config import RunConfig, read_config
from mixdim.runs.report.findings import read_findings
from mixdim.runs.sweeps.frame import replicates
from mixdim.runs.sweeps.recommend import train_command
from mixdim.runs.sweeps.records import read_records
from mixdim.runs.sweeps.tables import comparison_table

REPOSITORY = Path(__file__).parents[2]
RESULTS = REPOSITORY / "results"


@pytest.fixture(scope="module")
def records():
    return read_records(sorted(RESULTS.glob("*.jsonl")))


def test_every_figure_table_and_claim_was_made():
    findings = read_findings(RESULTS)
    assert [finding.id for finding in findings] == list(FIGURES)
    for finding in findings:
        assert finding.figure_paths
        assert all(path.is_file() for path in finding.figure_paths)
        assert not finding.measured.startswith("Not measured")


def test_every_setting_was_run_with_all_seeds_and_none_failed(records):
    assert all(record.finished for record in records)
    assert {record.config["model"] for record in records} == {"dlrm", "mf", "ncf"}
    fewest = min(protocol.seeds for protocol in small().values())
    assert fewest >= 3
    assert all(len(same) >= fewest for same in replicates(records))


def test_the_same_settings_would_find_every_record_finished(records):
    for record in records:
        options = {name: value for name, value in record.config.items() if name != "model_budget"}
        config = RunConfig.of(**options)
        if config.plan is not None:
            config = replace(config, plan=str(REPOSITORY / config.plan))
        assert config.key(record.summary["data_fingerprint"]) == record.key


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("*.jsonl")), ids=lambda path: path.name)
def test_the_command_of_a_recorded_run_has_its_key(path, capsys, monkeypatch, tmp_path):
    """The data is not here, but all that a command and its defaults say of a run decides its key."""
    monkeypatch.chdir(REPOSITORY)
    of_its_kind = {}
    for record in read_records([path]):
        config = record.config
        of_its_kind.setdefault((config["model"], config.get("method"), config["plan"] is None), record)
    for record in of_its_kind.values():
        _, command, _, _, *words, _, _ = shlex.split(train_command(record))
        toml = output(capsys, command, *words, "--print-config").out
        (tmp_path / "run.toml").write_text(toml)
        config = read_config(tmp_path / "run.toml")
        assert config.key(record.summary["data_fingerprint"]) == record.key


def test_findings_are_what_the_code_of_today_says_of_the_records(records):
    found = {finding.id: finding.measured for finding in read_findings(RESULTS)}
    by_model = {
        name: [r for r in records if r.config["model"] == name and r.config["plan"] is None]
        for name in ("dlrm", "ncf")
    }
    ncf, clicks = by_model["ncf"], [r for r in by_model["dlrm"] if r.config["init"] == "xavier"]
    starts = [r for r in by_model["dlrm"] if r.config["temperature"] == 0]
    assert found["fig3d"] == (f"{claims.fewer_parameters(ncf)}\n{captions.winners(ncf, 'mse')}")
    assert found["fig3e"] == captions.by_popularity(ncf)
    assert found["fig7"] == captions.he_against_xavier(starts)
    assert found["claim-2x-faster"] == found["fig2c"] == claims.faster(clicks)
    assert found["claim-half"] == claims.half_the_parameters(clicks)
    assert found["fig8"].endswith(claims.fewer_parameters(clicks, at_equal_accuracy=True))


def test_the_tables_of_methods_are_those_of_their_records():
    found = sorted((RESULTS / "methods").glob("*.jsonl"))
    assert len(found) >= 2
    for path in found:
        records = read_records([path])
        assert all(record.finished for record in records)
        assert comparison_table(records) in path.with_suffix(".txt").read_text()
        for record in records:
            options = {name: value for name, value in record.config.items() if name != "model_budget"}
            assert RunConfig.of(**options).key(record.summary["data_fingerprint"]) == record.key


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("README.md", ["*.txt", "methods/*.txt"]),
        ("results/README.md", ["*.txt"]),
        ("results/methods/README.md", ["methods/*.txt"]),
    ],
)
def test_losses_and_ratios_on_the_pages_are_in_what_was_printed(page, printed):
    said = "\n".join(path.read_text() for pattern in printed for path in RESULTS.glob(pattern))
    text = (REPOSITORY / page).read_text()
    for number in set(re.findall(r"(?<![\d.])0\.\d{4}(?!\d)", text)):
        assert number in said, number
    for ratio in set(re.findall(r"(?<![\d.\-])\d+(?:\.\d+)?x\b", text)):
        assert re.search(rf"(?<![\d.]){re.escape(ratio)}", said), ratio
