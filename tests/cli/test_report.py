"""The command `report`, as a user types it."""

import json

from commands import complaint, output
from mixdim.runs.report.page import report_page
from mixdim.runs.sweeps.records import append_record
from report_records import failed, finished


def write(path, *records):
    for record in records:
        append_record(path, record)
    return path


def test_several_files_of_records_and_a_folder_of_figures_become_one_page(capsys, tmp_path):
    first = write(tmp_path / "a.jsonl", finished(), finished(seed=1))
    second, third = write(tmp_path / "b.jsonl", failed()), write(tmp_path / "c.jsonl", finished(seed=2))
    finding = {
        "id": "table1",
        "title": "Table 1",
        "paper_claim": "two sets",
        "measured": "two",
        "data": "-",
    }
    (tmp_path / "findings.json").write_text(json.dumps([finding]))
    out = tmp_path / "report.html"
    printed = output(
        capsys,
        "report",
        "--records",
        first,
        second,
        "--records",
        third,
        "--figures",
        tmp_path,
        "--out",
        out,
    ).out
    assert printed == f"{out}: 3 finished runs, 1 failed, 1 figures and claims\n"
    assert "two sets" in out.read_text()


def test_the_page_of_a_file_is_that_of_its_records(capsys, tmp_path):
    records = [finished(), failed()]
    (tmp_path / "link").symlink_to("page.html")
    output(capsys, "report", "--records", write(tmp_path / "a", *records), "--out", tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "page.html").read_text() == report_page(records)


def test_what_is_missing_is_said_in_one_line(capsys, tmp_path):
    there = write(tmp_path / "a.jsonl", finished())
    for arguments, message in (
        (("--records", tmp_path / "no.jsonl", "--out", tmp_path / "r.html"), "no.jsonl"),
        (("--records", there, "--out", tmp_path / "no" / "r.html"), "there is no directory"),
        (("--records", there, "--figures", tmp_path, "--out", tmp_path / "r.html"), "no findings.json"),
    ):
        assert message in complaint(capsys, "report", *arguments)
    assert not (tmp_path / "r.html").exists()
