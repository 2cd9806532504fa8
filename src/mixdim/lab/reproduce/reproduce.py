"""From the name of a figure to the figure: data, runs, records, pictures, findings.

fig2b.png, .svg   the picture
fig2b.txt         its caption, what the paper says, what was measured
findings.json     the same of all figures made so far, for `mixdim report`
data/, records.jsonl, plans/
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mixdim._util.files import make_folder, write_atomically
from mixdim.data import Dataset
from mixdim.lab.paper.protocols import SCALES, Generated, Scale
from mixdim.lab.paper.study import Study
from mixdim.lab.reproduce.targets import FIGURES, Target
from mixdim.lab.reproduce.untrained_targets import Studies
from mixdim.lab.synthetic.generate import generate_criteo_like, generate_movielens_like
from mixdim.runs.figures.plots import save_figure
from mixdim.runs.report.findings import Finding, read_findings
from mixdim.runs.sweeps.records import Record
from mixdim.runs.sweeps.sweep import run_sweep
from mixdim.training.evaluation import Progress

FORMATS = (".png", ".svg")
MAKERS = {"criteo-like": generate_criteo_like, "movielens-like": generate_movielens_like}
HOW_TO_PREPARE = {
    "binary": "mixdim prepare criteo train.txt --out criteo",
    "rating": "mixdim prepare movielens ml-latest.zip --out ml-latest",
}
Generating = Callable[[str, int, int], None]
Sweep = Callable[..., list[Record]]


@dataclass(frozen=True)
class Reproduction:
    """What came of it."""

    findings: tuple[Finding, ...]
    failed: tuple[Record, ...]


def targets_of(*figures: str) -> dict[str, Target]:
    """The targets of some names, each once; all of them for "all"."""
    for figure in figures:
        if figure not in (*FIGURES, "all"):
            raise ValueError(f"figure must be one of {', '.join(FIGURES)}, all; got {figure!r}")
    return FIGURES if "all" in figures else {figure: FIGURES[figure] for figure in figures}


def scale_of(name: str) -> Scale:
    """The protocols of a scale."""
    if name not in SCALES:
        raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {name!r}")
    return SCALES[name]()


def reproduce(
    figures: str | Sequence[str],
    scale: Scale,
    out: Path,
    *,
    data: Sequence[Path] = (),
    records: Path | None = None,
    jobs: int = 1,
    generating: Generating | None = None,
    progress: Progress | None = None,
    sweep: Sweep = run_sweep,
) -> Reproduction:
    """Make a figure, a table or a claim, some of them, or "all", in the folder `out`.

    - `data`: prepared folders, one of clicks, one of ratings; what is missing is generated in `out`.
    - `records`: where runs are recorded; those that are there already are not made again.
    - `sweep`: what makes runs, as `run_sweep` does.
    """
    targets = targets_of(*([figures] if isinstance(figures, str) else figures))
    needed = dict.fromkeys(name for target in targets.values() for name in target.studies)
    datasets = _datasets([scale[name].task for name in needed], data)
    make_folder(out)
    records = records or out / "records.jsonl"
    studies = {
        name: Study(
            scale[name],
            datasets.get(scale[name].task) or _generated(scale, name, out / "data", generating),
            records.parent / "plans",
        )
        for name in needed
    }
    runs = {name: target.runs(studies) for name, target in targets.items()}
    # All at once, so that whoever watches sees how much there is to do.
    flat = [run for of_target in runs.values() for run in of_target]
    found = iter(sweep(flat, records, jobs=jobs, progress=progress) if flat else [])
    failed: dict[str, Record] = {}
    findings = []
    for name, target in targets.items():
        mine = [next(found) for _ in runs[name]]
        failed |= {record.key: record for record in mine if not record.finished}
        findings.append(_finding(name, target, studies, mine, out))
    _write_findings(out, findings)
    return Reproduction(tuple(findings), tuple(failed.values()))


def _finding(name: str, target: Target, studies: Studies, records: list[Record], out: Path) -> Finding:
    failed = [record for record in records if not record.finished]
    if failed:
        # A line with some of its points missing would be compared as if it were whole.
        measured = (
            f"Not measured: {len(failed)} of {len(records)} runs failed, one with: {failed[0].error}"
        )
        return Finding(name, target.title, target.paper_claim, measured, (), "")
    made = target.make(studies, records)
    paths = []
    for picture, figure in made.pictures.items():
        for ending in FORMATS:
            paths.append(out / f"{picture}{ending}")
            save_figure(figure, paths[-1])
    words = (
        f"{target.title}\n\n{made.caption}\n\nThe paper: {target.paper_claim}\n\nHere: {made.measured}\n"
    )
    write_atomically(out / f"{name}.txt", words)
    return Finding(name, target.title, target.paper_claim, made.measured, tuple(paths), made.caption)


def _write_findings(out: Path, findings: Sequence[Finding]) -> None:
    """Write these findings, and those that are there already, in the order of the paper."""
    before = read_findings(out) if (out / "findings.json").is_file() else []
    by_id = {finding.id: finding for finding in (*before, *findings)}
    entries = [
        {
            "id": name,
            "title": by_id[name].title,
            "paper_claim": by_id[name].paper_claim,
            "measured": by_id[name].measured,
            "data": by_id[name].data,
            "figures": [str(path.relative_to(out)) for path in by_id[name].figure_paths],
        }
        for name in FIGURES
        if name in by_id
    ]
    write_atomically(out / "findings.json", json.dumps(entries, indent=2) + "\n")


def _datasets(tasks: Sequence[str], folders: Sequence[Path]) -> dict[str, Dataset]:
    """The given folders by task, for the tasks that are needed."""
    found: dict[str, Dataset] = {}
    for folder in folders:
        dataset = Dataset(folder.resolve())
        if dataset.task in found:
            raise ValueError(
                f"--data must name one folder a task, got {found[dataset.task].path} and {folder}, both "
                f"with the task {dataset.task!r}"
            )
        found[dataset.task] = dataset
    return {task: dataset for task, dataset in found.items() if task in tasks}


def _generated(scale: Scale, name: str, folder: Path, generating: Generating | None) -> Dataset:
    """The synthetic data of a study, made unless it is there."""
    protocol = scale[name]
    wanted = protocol.generated
    if wanted is None:
        raise ValueError(
            f"this scale generates no data: give --data with a folder whose task is {protocol.task!r}, "
            f"such as from `{HOW_TO_PREPARE[protocol.task]}`"
        )
    path = (folder / wanted.name).resolve()
    if not _is_there(path, wanted):
        path.parent.mkdir(parents=True, exist_ok=True)
        MAKERS[wanted.name](
            path, rows=wanted.rows, scale=wanted.scale, overwrite=True, progress=generating
        )
    return Dataset(path)


def _is_there(path: Path, wanted: Generated) -> bool:
    if not (path / "meta.json").is_file():
        return False
    options = Dataset(path).meta.options
    return (options["rows"], options["scale"]) == (wanted.rows, wanted.scale)
