"""Raw rows to be predicted, as a prepared folder that is there only for a while.

Knows nothing about models or about how the formats are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from mixdim._util.signals import signals_as_exceptions
from mixdim.data.dataset import Dataset
from mixdim.data.earlier import raw_format
from mixdim.data.encoding import Progress
from mixdim.data.folder import read_meta
from mixdim.data.new_rows import NewRows
from mixdim.data.prepare import prepare_criteo, prepare_movielens, prepare_table


@dataclass(frozen=True)
class RawRows:
    """The rows as a data set, all in the test split, and where each stood in its file."""

    dataset: Dataset
    places: np.ndarray  # int64: from 0, header and blank lines not counted, malformed rows counted
    has_target: bool  # else all are NaN


@contextmanager
def opened_raw(
    raw: Path,
    vocabulary_of: Path,
    *,
    max_bad: int = 0,
    encoding: str | None = None,
    separator: str | None = None,
    progress: Progress | None = None,
) -> Iterator[RawRows]:
    """Open a raw file with the ids and dense rules of a prepared folder.

    The file is of the format that the folder was prepared from; it may lack the target, and all its rows
    are taken, whatever the folder's `where` says. Of a table, `encoding` and `separator` are those of
    the folder's files unless they are given. What is written meanwhile goes away at the end, also after
    errors, Ctrl-C and SIGTERM.
    """
    earlier, new = Path(vocabulary_of), NewRows()
    form = raw_format(earlier, read_meta(earlier))
    if form != "table" and (encoding or separator):
        raise ValueError(f"{earlier} is of {form}, and encoding and separator are those of tables")
    with signals_as_exceptions(), TemporaryDirectory(prefix="mixdim-") as scratch:
        out = Path(scratch) / "new"
        asked: dict[str, Any] = {
            "vocabulary_of": earlier,
            "max_bad": max_bad,
            "progress": progress,
            "new_rows": new,
        }
        if form == "movielens":
            prepare_movielens(raw, out, **asked)
        elif form == "criteo":
            prepare_criteo([raw], out, **asked)
        elif form == "table":
            prepare_table([raw], out, encoding=encoding, separator=separator, **asked)
        else:
            raise ValueError(f"{earlier} was prepared from {form!r}, which is no raw format")
        yield RawRows(Dataset(out), new.places, new.has_target)
