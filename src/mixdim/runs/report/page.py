"""One page about all runs and figures, in one file. Lays out what it is told; measures nothing.

page.html is the frame, page.css its looks; the scripts draw the chart and sort the table.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from string import Template
from typing import Any

from mixdim._util.files import write_atomically
from mixdim.runs.baseline_report import baselines_in_words
from mixdim.runs.report.chart import chart_points
from mixdim.runs.report.findings import Finding, as_data_address, pictures_to_show
from mixdim.runs.report.rows import (
    data_names,
    in_order,
    label,
    rule_of,
    short_number,
    table_rows,
)
from mixdim.runs.sweeps.methods import method_of
from mixdim.runs.sweeps.records import Record

SCRIPTS = ("page.js", "looks.js", "axes.js", "chart.js", "filters.js", "table.js")  # in this order


def write_report(
    records: Iterable[Record],
    out: Path,
    findings: Sequence[Finding] = (),
    *,
    title: str = "mixdim report",
) -> None:
    """Write the page about these records and findings to the file `out`."""
    write_atomically(out, report_page(records, findings, title=title))


def report_page(
    records: Iterable[Record], findings: Sequence[Finding] = (), *, title: str = "mixdim report"
) -> str:
    """The page as HTML; equal for equal records, in whatever order they come.

    It holds its style, script and pictures, and forbids everything else: the policy in its head names
    the digests of the style and the script, so no other would run even if it got into the page.
    """
    records = in_order(records)
    if not records and not findings:
        raise ValueError("a report needs records or findings, got neither")
    style, script = _part("page.css"), "\n".join(map(_part, SCRIPTS))
    points = chart_points(records)
    return Template(_part("page.html")).substitute(
        title=escape(title),
        policy=f"default-src 'none'; img-src data:; "
        f"style-src {_digest(style)}; script-src {_digest(script)}",
        style=style,
        script=script,
        what_was_run=_what_was_run(records),
        chart_points=_inert_json(points),
        chart_labels=_inert_json({name: label(name) for point in points for name in point["metrics"]}),
        findings="\n".join(map(_finding, findings)) or "<p>No figures were given.</p>",
        runs=_runs_table(table_rows(records)),
        failures=_failures([record for record in records if record.status == "failed"]),
    )


def _what_was_run(records: Sequence[Record]) -> str:
    """One line a data set, then where and when."""
    finished = [record.summary for record in records if record.summary]
    names = data_names(records)
    lines = []
    for name in dict.fromkeys(names.values()):
        own = [record for record in records if names[record.key] == name]
        done = [record.summary for record in own if record.summary]
        lines.append([
            name,
            _listed(summary["data_fingerprint"][:8] for summary in done),
            _listed(record.config.get("model") for record in own),
            _listed(_number(record.config.get("temperature")) for record in own),
            _listed(method_of(record) for record in own if record.config.get("method")),
            _listed(record.config.get("seed") for record in own),
            str(len(done)),
            str(len(own) - len(done)),
            baselines_in_words(done),
        ])  # fmt: skip
    head = ["data", "fingerprint", "models", "temperatures", "methods", "seeds", "finished", "failed"]
    head, *lines = _without_empty_columns([[*head, "baselines on test"], *lines])
    dates = sorted(record.finished_at for record in records)
    machines = (
        f"{machine['processor']}, cores: {machine['cores']}, threads: {machine['threads']}, "
        f"Python {machine['python']}, torch {machine['torch']}"
        for machine in (summary["machine"] for summary in finished)
    )
    facts = {
        "Runs": f"{len(finished)} finished, {len(records) - len(finished)} failed",
        "When": " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "",
        "Machine": _listed(machines, "; "),
        "mixdim": _listed(summary["version"] for summary in finished),
    }
    listed = "".join(f"<div><dt>{k}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items() if v)
    heads = "".join(f'<th scope="col">{name}</th>' for name in head)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in lines
    )
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<dl class="facts">{listed}</dl>\n{_scrolling(table, "Data sets")}'


def _without_empty_columns(lines: Sequence[Sequence[str]]) -> list[list[str]]:
    """Lines without the columns that nothing stands in, below the first line.

    >>> _without_empty_columns([["temperatures", "methods"], ["0, 0.3", ""]])
    [['temperatures'], ['0, 0.3']]
    """
    used = [column for column in range(len(lines[0])) if any(line[column] for line in lines[1:])]
    return [[line[column] for column in used] for line in lines]


def _finding(finding: Finding) -> str:
    images = "".join(
        f'<img src="{as_data_address(path)}" alt="{escape(finding.title)} ({escape(path.stem)})">'
        for path in pictures_to_show(finding.figure_paths)
    )
    pictures = f'<div class="pictures" tabindex="0" role="region" aria-label="Pictures">{images}</div>'
    return (
        f'<article id="{escape(finding.id)}"><h3>{escape(finding.title)} '
        f'<span class="quiet">{escape(finding.id)}</span></h3>\n'
        f'<div class="claims"><div><h4>The paper</h4><p>{escape(finding.paper_claim)}</p></div>'
        f"<div><h4>Measured here</h4>{_paragraphs(finding.measured)}"
        f'<p class="quiet">{escape(finding.data)}</p></div></div>\n'
        f"{pictures if images else ''}</article>"
    )


def _paragraphs(text: str) -> str:
    r"""Lines as paragraphs, those that begin with a dash as lists.

    >>> _paragraphs("Sizes:\n- a < b\n- c")
    '<p>Sizes:</p><ul><li>a &lt; b</li><li>c</li></ul>'
    """
    parts = []
    for dashed, lines in groupby(text.splitlines(), key=lambda line: line.startswith("- ")):
        if dashed:
            items = "".join(f"<li>{escape(line.removeprefix('- '))}</li>" for line in lines)
            parts.append(f"<ul>{items}</ul>")
        else:
            parts += [f"<p>{escape(line)}</p>" for line in lines]
    return "".join(parts)


def _runs_table(rows: Sequence[dict[str, Any]]) -> str:
    """Cells carry their exact value for sorting and for the CSV, and show a short one."""
    if not rows:
        return "<p>No run has finished.</p>"
    heads = "".join(
        f'<th scope="col" data-column="{name}"><button type="button">{label(name)}</button></th>'
        for name in rows[0]
    )
    lines = "\n".join("<tr>" + "".join(map(_cell, row.values())) + "</tr>" for row in rows)
    table = f'<table id="runs-table"><thead><tr>{heads}</tr></thead>\n<tbody>{lines}</tbody></table>'
    return (
        '<p><button type="button" id="download">Download as CSV</button></p>\n'
        f"{_scrolling(table, 'Finished runs')}"
    )


def _cell(value: Any) -> str:
    if isinstance(value, int | float):
        return f'<td class="number" data-value="{value!r}">{short_number(value)}</td>'
    text = escape(value or "")
    return f'<td data-value="{text}">{text}</td>'


def _failures(failed: Sequence[Record]) -> str:
    if not failed:
        return "<p>No run failed.</p>"
    names = data_names(failed)
    options = ("model", "temperature", "method", "base_dim", "budget", "model_budget", "plan", "seed")
    items = []
    for record in failed:
        options_of_run = {**record.config, "plan": rule_of(record)}
        what = ", ".join(
            f"{name} {options_of_run[name]}" for name in options if options_of_run.get(name) is not None
        )
        items.append(
            f"<li><p>{escape(names[record.key])}: {escape(what)} "
            f'<span class="quiet">{escape(record.finished_at)}</span></p>'
            f"<pre>{escape(record.error or 'no message')}</pre></li>"
        )
    return f'<ul class="failures">{"".join(items)}</ul>'


def _scrolling(table: str, name: str) -> str:
    """A wide table scrolls by itself, also by keyboard; the page does not."""
    return f'<div class="scrolling" tabindex="0" role="region" aria-label="{name}">{table}</div>'


def _listed(values: Iterable[Any], separator: str = ", ") -> str:
    return separator.join(dict.fromkeys(str(value) for value in values if value not in (None, "")))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _inert_json(value: Any) -> str:
    r"""JSON for a <script> element that no text in it can close.

    >>> print(_inert_json("</script>"))
    "\u003c/script>"
    """
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _part(name: str) -> str:
    return (files("mixdim.runs.report") / name).read_text(encoding="utf-8")
