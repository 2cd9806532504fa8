"""What is kept of a run: one line of JSON a run, safe to append at once from many processes.

Knows nothing about how runs are made, or drawn.
"""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

from mixdim._util.locks import wait_for_lock
from mixdim.runs.config import canonical, comparable
from mixdim.runs.sweeps.objective import objective_of

STATUSES = ("finished", "failed")
SOLVED = {"base_dim", "budget"}  # from a budget of the whole model


@dataclass(frozen=True)
class Record:
    """One run: what was asked, and what came out.

    - `key`: see `RunConfig.key`; runs with one key are the same run.
    - `status`: "finished", or "failed" with the reason in `error`.
    - `config`: the options of the resolved `RunConfig`, and `model_budget`: the parameters of the whole
      model that were asked for, or None.
    - `summary`: what `summary.json` of the run says (docs/training.md); None if the run failed.
    - `curve`: the validations: `step`, `epoch`, `train_seconds`, `seconds`, `loss` and, of clicks,
      `accuracy`.
    - `train`: metrics and slices of the best weights on the first training rows; None if it failed.
    - `finished_at`: such as 2026-11-16T02:00:00Z.
    """

    key: str
    status: str
    error: str | None
    config: dict[str, Any]
    summary: dict[str, Any] | None
    curve: list[dict[str, Any]]
    train: dict[str, Any] | None
    finished_at: str

    @property
    def finished(self) -> bool:
        """Whether there are results."""
        return self.status == "finished"

    @property
    def loss_name(self) -> str:
        """The metric that a finished run made small: "log_loss" or "mse"."""
        assert self.summary is not None
        return objective_of([self.summary])


_KINDS: dict[str, tuple[type, ...]] = {
    **{"key": (str,), "status": (str,), "error": (str, type(None)), "config": (dict,)},
    **{"summary": (dict, type(None)), "curve": (list,), "train": (dict, type(None))},
    "finished_at": (str,),
}


def append_record(path: Path, record: Record) -> None:
    """Append one whole line, under a lock, after removing what a killed writer left of its line."""
    line = (json.dumps(asdict(record), allow_nan=False) + "\n").encode()
    with path.open("a+b", buffering=0) as file:
        wait_for_lock(file)
        _mend_tail(file)
        start = file.seek(0, os.SEEK_END)
        if file.write(line) != len(line):
            file.truncate(start)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(file.fileno())


def read_records(paths: Iterable[Path]) -> list[Record]:
    """Read the records of some files; of several with one key the newest wins.

    A last line without an end, which a killed writer leaves, is skipped with a warning.
    """
    found = [record for path in paths for record in _records_of(path)]
    return list({record.key: record for record in sorted(found, key=lambda r: r.finished_at)}.values())


def replicates(records: Iterable[Record]) -> list[list[Record]]:
    """Group finished records that differ in nothing but the seed, and the data drawn by it.

    Within a model budget what is solved may differ too, where each seed has its own split. Groups
    come in order of appearance, each in order of its seeds.
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        if record.finished:
            free = {"seed", "data"} | (SOLVED if record.config["model_budget"] else set())
            options = comparable(record.config)
            setting = {name: value for name, value in options.items() if name not in free}
            groups.setdefault(canonical(setting), []).append(record)
    return [sorted(group, key=lambda record: record.config["seed"]) for group in groups.values()]


def _records_of(path: Path) -> list[Record]:
    with path.open("rb") as file:
        with suppress(OSError):  # without locks we may see a torn line, as after a kill
            wait_for_lock(file, shared=True)  # nobody is in the middle of a line now
        lines = file.read().splitlines(keepends=True)
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(_record_of(line))
        except ValueError as error:
            if not line.endswith(b"\n"):
                warnings.warn(f"{path}: its last line, {number}, is torn and was skipped", stacklevel=3)
                continue
            raise ValueError(f"{path}, line {number}, is no record: {error}") from None
    return found


def _record_of(line: bytes) -> Record:
    entries = json.loads(line)
    if not isinstance(entries, dict):
        raise ValueError(f"it must be an object, got {type(entries).__name__}")
    names = [field.name for field in fields(Record)]
    for name in names:
        if name not in entries:
            raise ValueError(f"it has no {name}")
        if not isinstance(entries[name], _KINDS[name]):
            raise ValueError(f"its {name} is {entries[name]!r}")
    if entries["status"] not in STATUSES:
        raise ValueError(f"status must be {' or '.join(STATUSES)}, got {entries['status']!r}")
    if entries["status"] == "finished" and entries["summary"] is None:
        raise ValueError("it is finished and has no summary")
    if "model_budget" not in entries["config"]:
        raise ValueError("its config has no model_budget")
    return Record(**{name: entries[name] for name in names})


def _mend_tail(file: BinaryIO) -> None:
    """End a last line that has no end; cut it off if it is not whole."""
    file.seek(0)
    whole, newline, tail = file.read().rpartition(b"\n")
    if not tail:
        return
    try:
        json.loads(tail)
    except ValueError:
        file.truncate(len(whole) + len(newline))
    else:
        file.write(b"\n")
