"""What was found beside what the paper says, read from a folder of figures. Knows no runs."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PICTURES = {".svg": "image/svg+xml", ".png": "image/png"}  # the first is taken where there are both
TEXTS = ("id", "title", "paper_claim", "measured", "data")


@dataclass(frozen=True)
class Finding:
    """A figure or a claim: what the paper says, what was measured, on which data, and pictures of it."""

    id: str
    title: str
    paper_claim: str
    measured: str
    figure_paths: tuple[Path, ...]
    data: str


def read_findings(folder: Path) -> list[Finding]:
    """Read `findings.json` of a folder that `mixdim reproduce` wrote; pictures lie in that folder."""
    path = folder / "findings.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no figures: it has no findings.json")
    try:
        entries = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is malformed: {error}") from None
    if not isinstance(entries, list):
        raise ValueError(f"{path} must hold a list of findings, got {type(entries).__name__}")
    return [_finding(entry, folder, f"{path}, finding {n}") for n, entry in enumerate(entries, 1)]


def _finding(entry: object, folder: Path, place: str) -> Finding:
    if not isinstance(entry, dict):
        raise ValueError(f"{place} must be an object, got {type(entry).__name__}")
    for name in TEXTS:
        if not isinstance(entry.get(name), str):
            raise ValueError(f"{place}: {name} must be text, got {entry.get(name)!r}")
    names = entry.get("figures", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{place}: figures must be a list of file names, got {names!r}")
    return Finding(
        **{name: entry[name] for name in TEXTS}, figure_paths=tuple(folder / name for name in names)
    )


def pictures_to_show(paths: Sequence[Path]) -> list[Path]:
    """One file a picture: of two that differ in their ending alone, the one that stays sharp.

    >>> [str(path) for path in pictures_to_show([Path("a.png"), Path("a.svg"), Path("b.png")])]
    ['a.svg', 'b.png']
    """
    kinds = list(PICTURES)
    chosen: dict[Path, Path] = {}
    for path in paths:
        if path.suffix.lower() not in kinds:
            raise ValueError(f"a picture's name must end in {' or '.join(kinds)}, got {path}")
        rival = chosen.get(path.with_suffix(""))
        if rival is None or kinds.index(path.suffix.lower()) < kinds.index(rival.suffix.lower()):
            chosen[path.with_suffix("")] = path
    return list(chosen.values())


def as_data_address(path: Path) -> str:
    """The whole picture as an address, so that a page needs no other file.

    A picture behind an address cannot run scripts nor fetch anything, whatever its file holds.
    """
    return f"data:{PICTURES[path.suffix.lower()]};base64,{base64.b64encode(path.read_bytes()).decode()}"
