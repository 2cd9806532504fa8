"""Raw rows to be predicted, as a prepared folder that exists only during the prediction.

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
from mixdim.data.folder import read_meta
from mixdim.data.public.criteo import prepare_criteo
from mixdim.data.public.movielens import prepare_movielens
from mixdim.data.table import prepare_table
from mixdim.data.typed_rows import (
    PredictionRows,
    Progress,
)
from mixdim.data.vocabulary import raw_format


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
    are taken, also those that the folder's `where` would leave out. `encoding` and `separator` of a
    table are those of the folder's files unless they are given. The temporary folder goes away at the
    end, also after errors, Ctrl-C and SIGTERM.
    """
    base, found = Path(vocabulary_of), PredictionRows()
    form = raw_format(base, read_meta(base))
    if form != "table" and (encoding or separator):
        raise ValueError(f"{base} is of {form}, and encoding and separator are those of tables")
    with signals_as_exceptions(), TemporaryDirectory(prefix="mixdim-") as scratch:
        out = Path(scratch) / "new"
        options: dict[str, Any] = {
            "vocabulary_of": base,
            "max_bad": max_bad,
            "progress": progress,
            "prediction": found,
        }
        if form == "movielens":
            prepare_movielens(raw, out, **options)
        elif form == "criteo":
            prepare_criteo([raw], out, **options)
        elif form == "table":
            prepare_table([raw], out, encoding=encoding, separator=separator, **options)
        else:
            raise ValueError(f"{base} was prepared from {form!r}, which is no raw format")
        yield RawRows(Dataset(out), found.places, found.has_target)
