"""Records of the theory's experiments, as lines of JSON. Knows nothing about what was measured."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mixdim._util.files import write_atomically

Record = Mapping[str, Any]  # a measured point with its settings


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write one line a record, all at once; what the file held before is replaced."""
    write_atomically(path, "".join(json.dumps(record, allow_nan=False) + "\n" for record in records))


def read_records(path: Path) -> list[Record]:
    """Read what `write_records` wrote."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def having(records: Iterable[Record], **settings: Any) -> list[Record]:
    """The records with all these settings.

    >>> having([{"seed": 0, "error": 0.1}, {"seed": 1, "error": 0.2}], seed=1)
    [{'seed': 1, 'error': 0.2}]
    """
    return [
        record
        for record in records
        if all(record.get(name) == value for name, value in settings.items())
    ]


def settings_of(records: Sequence[Record], name: str) -> list[Any]:
    """Which values a setting takes, in order of appearance.

    >>> settings_of([{"rate": 0.3}, {"rate": 0.2}, {"rate": 0.3}], "rate")
    [0.3, 0.2]
    """
    return list(dict.fromkeys(record[name] for record in records if name in record))
