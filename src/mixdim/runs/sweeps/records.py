"""What is kept of a run: one line of JSON a run, safe to append at once from many processes.

What is read is checked here, so that all others can rely on it. Knows nothing about how runs are made.
"""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from mixdim._util.locks import wait_for_lock
from mixdim.planning.budget import parse_budget, parse_bytes
from mixdim.runs.config import RunConfig, run_options
from mixdim.runs.sweeps.objective import objective_of
from mixdim.tasks import RANKING


@dataclass(frozen=True)
class Record:
    """One run: its options, and its results.

    - `key`: see `RunConfig.key`; runs with one key are the same run.
    - `status`: "finished", or "failed" with the reason in `error`.
    - `config`: the options of the resolved `RunConfig`, and `model_budget`: the parameters of the whole
      model that were its budget, or None.
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


# What a line must hold.


class Kind(NamedTuple):
    """A kind of value: its name in an error, and the test for it."""

    name: str
    fits: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= (LARGEST_WHOLE if isinstance(value, int) else LARGEST_NUMBER)


def _is_whole(value: Any, at_least: int = 0) -> bool:
    return _is_number(value) and isinstance(value, int) and value >= at_least


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | str) or _is_number(value)


LARGEST_WHOLE, LARGEST_NUMBER = 2**53, 1e100  # what floats hold exactly; no loss comes near
LONGEST = 40  # characters of a wrong value in an error
STATUSES = ("finished", "failed")
TEXT = Kind("text", lambda value: isinstance(value, str))
NUMBER = Kind("a finite number", _is_number)
WHOLE = Kind("a whole number", lambda value: _is_whole(value, at_least=-LARGEST_WHOLE))
COUNT = Kind("a whole number of at least 0", _is_whole)
POSITIVE = Kind("a whole number of at least 1", lambda value: _is_whole(value, at_least=1))
LOSS = Kind("a finite number of at least 0", lambda value: _is_number(value) and value >= 0)
PLAIN = Kind("a finite number, text, true, false or null", _is_plain)
OPTION = Kind(
    "an option",
    lambda value: all(map(_is_plain, value)) if isinstance(value, list) else _is_plain(value),
)
WIDTHS = Kind(
    "a list of whole numbers", lambda value: isinstance(value, list) and all(map(_is_whole, value))
)
CURVE = Kind(
    "a list of objects",
    lambda value: isinstance(value, list) and all(isinstance(point, dict) for point in value),
)
BANDS = Kind("a whole number or text", lambda value: _is_whole(value) or isinstance(value, str))
STATUS = Kind(" or ".join(STATUSES), lambda value: value in STATUSES)
# By name; "*" is any other name; one that ends with ? may be missing or null.
Schema = Kind | Mapping[str, Any]
LOSSES = {"log_loss?": LOSS, "mse?": LOSS}
RECORD: Schema = {
    **{"key": TEXT, "status": STATUS, "error?": TEXT, "finished_at": TEXT, "curve": CURVE},
    "config": {
        **{"model": TEXT, "data": TEXT, "seed": WHOLE, "model_budget?": POSITIVE},
        **{"method?": TEXT, "budget?": TEXT, "*": OPTION},
    },
    **{"summary?": {}, "train?": LOSSES},
}
METRICS = {**LOSSES, **dict.fromkeys(("accuracy?", "auc?", "mae?"), NUMBER)}
OF_RANKING = {**{f"{name}?": NUMBER for name in RANKING}, "ranking?": TEXT}
RESULTS = {"best": {**METRICS, **OF_RANKING, "slices?": {"*": METRICS}}}
SUMMARY: Schema = {
    **dict.fromkeys(("model", "data_fingerprint", "version"), TEXT),
    **dict.fromkeys(("num_parameters", "base_dim"), POSITIVE),
    **dict.fromkeys(("embedding_parameters", "peak_memory_bytes"), COUNT),
    **dict.fromkeys(("seconds", "samples_per_second"), NUMBER),
    **dict.fromkeys(("bits?", "budget?", "embedding_bytes?", "model_bytes?"), POSITIVE),
    "bytes_by_part?": {"*": COUNT},
    **{"seed": WHOLE, "bands?": BANDS},
    **{"temperature?": NUMBER, "rounding?": TEXT, "provenance?": {"rule": TEXT, "temperature?": NUMBER}},
    **{"validation": RESULTS, "test": RESULTS, "widths?": {"*": WIDTHS}},
    "baselines?": {"*": {"validation": LOSSES, "test": LOSSES}},
    **{"bayes_log_loss?": {"test": NUMBER}, "bayes_mse?": {"test": NUMBER}},
    "machine": dict.fromkeys(("processor", "cores", "threads", "python", "torch"), PLAIN),
}


def _record_of(line: bytes) -> Record:
    try:
        entries = json.loads(line, parse_constant=_refuse_constant)
        if b"\\ud" in line.lower():
            json.dumps(entries, ensure_ascii=False).encode()  # fails for half a character
    except RecursionError:
        raise ValueError("it has too many objects within objects") from None
    names = [field.name for field in fields(Record)]
    for name in names if isinstance(entries, dict) else []:
        if name not in entries:
            raise ValueError(f"it has no {name}")
    _check(entries, RECORD, "")
    _check_config(entries["config"])
    if entries["status"] == "finished":
        if entries["summary"] is None:
            raise ValueError("it is finished and has no summary")
        _check_summary(entries["summary"], entries["config"])
    elif entries["summary"] is not None:
        raise ValueError("it failed and has a summary")
    return Record(**{name: entries[name] for name in names})


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number in JSON")


def _check(value: Any, schema: Schema, place: str) -> None:
    if isinstance(schema, Kind):
        if not schema.fits(value):
            raise ValueError(f"its {place} must be {schema.name}, got {_short(value)}")
        return
    if not isinstance(value, dict):
        what = f"its {place}" if place else "it"
        raise ValueError(f"{what} must be an object, got {_short(value)}")
    named = {name.removesuffix("?") for name in schema}
    for name, inner in schema.items():
        plain = name.removesuffix("?")
        for key in value.keys() - named if name == "*" else [plain]:
            where = f"{place}.{key}".removeprefix(".")
            if value.get(key) is not None or (key in value and plain == name):
                _check(value[key], inner, where)
            elif plain == name:
                raise ValueError(f"it has no {where}")


def _check_config(config: Mapping[str, Any]) -> None:
    """Check the options that runs have today; those of other versions need only be plain."""
    if "model_budget" not in config:
        raise ValueError("it has no config.model_budget")
    known = run_options()
    try:
        RunConfig.of(**{name: value for name, value in config.items() if name in known})
        if config.get("budget") is not None:
            parse_budget(config["budget"], num_rows=1)
        if config.get("method"):
            parse_bytes(config.get("budget") or "")
    except (TypeError, ValueError) as error:
        raise ValueError(f"its config: {error}") from None


def _check_summary(summary: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    _check(summary, SUMMARY, "summary")
    objective = objective_of([summary])
    if objective not in summary["validation"]["best"]:
        raise ValueError(f"it has no summary.validation.best.{objective}")
    if summary["embedding_parameters"] > summary["num_parameters"]:
        raise ValueError("its summary.embedding_parameters are more than its summary.num_parameters")
    provenance = summary.get("provenance") or {}
    if provenance.get("rule", "").endswith("power_law") and provenance.get("temperature") is None:
        raise ValueError("it has no summary.provenance.temperature")
    budget = config.get("budget") or "B"
    by_parameters = config["model_budget"] is None and not budget.lower().endswith("b")
    if by_parameters and summary.get("budget") is None:
        raise ValueError("it has no summary.budget")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
