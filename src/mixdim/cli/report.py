"""The command `report`: one page from records and figures. Thin: the work is in mixdim.runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

REPORT_EXAMPLES = """Examples:

- `mixdim report --records runs.jsonl --out report.html`
- `mixdim report --records results/*.jsonl --figures results --out report.html`
"""


def report(
    records: Annotated[
        list[Path], typer.Option(help="A file of records; more may follow, or repeat the option.")
    ],
    out: Annotated[Path, typer.Option(help="The page to write, in one file.")],
    more_records: Annotated[
        list[Path] | None, typer.Argument(help="More files of records.", show_default=False)
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(help="A folder of `mixdim reproduce`: its figures are shown too."),
    ] = None,
) -> None:
    """Write one page about all runs: the frontier, figures and claims, the table of runs.

    The page is one file that works offline, in any browser.
    """
    from mixdim.runs.report.findings import read_findings
    from mixdim.runs.report.page import write_report
    from mixdim.runs.sweeps.records import read_records

    found = read_records([*records, *(more_records or [])])
    findings = [] if figures is None else read_findings(figures)
    write_report(found, out, findings)
    failed = sum(record.status == "failed" for record in found)
    runs = f"{len(found) - failed:,} finished runs, {failed:,} failed"
    typer.echo(f"{out}: {runs}, {len(findings):,} figures and claims")
