"""The prepared format: a folder of memory-mapped arrays with a page that describes it.

Knows nothing about where data comes from or how a model reads it.

    meta.json                 what is in the folder; written last
    ids.npy                   int32 (rows, single-valued features): ranks of popularity
    dense.npy                 float32 (rows, dense columns), if there are any
    target.npy                float32 (rows,)
    bags/<feature>.values.npy int32 (values,), and .offsets.npy int64 (rows + 1,), of multi-valued ones
    vocabulary/<n>.parquet    of feature n: id, value, kind, count (in the training split)

Rows are ordered by split: training, then validation, then test.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from mixdim.files import follow_links, write_atomically

FORMAT = "mixdim.data"
VERSION = 1
SPLITS = ("train", "validation", "test")
KINDS = ("value", "missing", "out_of_vocabulary")  # of a row of a vocabulary
SAMPLE = 1 << 20  # bytes of each of the pieces that a large file is fingerprinted by
PIECES = 64
UNFINISHED = ".partial-"  # in the name of a folder that is being written


@dataclass(frozen=True)
class FeatureMeta:
    """One categorical feature: its rows (ids 0 to rows - 1) and the row for values out of vocabulary.

    `source_values` counts the distinct values in all splits of the source, missing included.
    """

    name: str
    rows: int
    out_of_vocabulary: int
    source_values: int
    bag: bool = False


@dataclass(frozen=True)
class Meta:
    """What a prepared folder holds."""

    task: str  # "binary" or "rating"
    features: tuple[FeatureMeta, ...]
    dense: tuple[str, ...]
    splits: dict[str, tuple[int, int]]  # first row, and the row after the last
    source: dict[str, Any] = field(default_factory=dict)  # files, with sizes and fingerprints
    options: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, Any] = field(default_factory=dict)  # read, kept, rejected (by reason)
    truth: dict[str, Any] | None = None  # of generated data: how it was planted

    @property
    def num_rows(self) -> int:
        """Rows of all splits together."""
        return self.splits["test"][1]


class FolderWriter:
    """Writes a prepared folder under a temporary name and renames it when it is complete.

    Use it as a context manager and call `finish(meta)` last: without that, or after an error or a kill,
    the folder at `out` does not exist (or is the old one, with `overwrite`).
    """

    def __init__(self, out: str | Path, *, overwrite: bool = False) -> None:
        self.out = follow_links(out)
        if self.out.exists() and not overwrite:
            raise FileExistsError(f"{self.out} exists already; --overwrite replaces it")
        if self.out.exists() and not (self.out / "meta.json").is_file():
            raise FileExistsError(f"{self.out} exists and is no prepared folder, so it is not replaced")
        if not self.out.parent.is_dir():
            raise FileNotFoundError(f"cannot write {self.out}: there is no directory {self.out.parent}")

    def __enter__(self) -> Self:
        prefix = f".{self.out.name}{UNFINISHED}"
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=self.out.parent))
        (self.path / "vocabulary").mkdir()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if isinstance(error, OSError) and error.filename is None and error.errno is not None:
            # A full disk does not say what it was for.
            raise OSError(f"cannot write {self.out}: {os.strerror(error.errno)}") from None

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.memmap:
        """Make a memory-mapped array of known shape, such as `ids.npy`."""
        path = self.path / name
        path.parent.mkdir(exist_ok=True)
        return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)

    def finish(self, meta: Meta) -> None:
        """Describe the folder and put it in its place."""
        files = sorted(p for p in self.path.rglob("*") if p.is_file())
        document = {
            "format": FORMAT,
            "version": VERSION,
            **asdict(meta),
            "num_rows": meta.num_rows,
            "files": {
                str(path.relative_to(self.path)): {
                    "bytes": path.stat().st_size,
                    "fingerprint": fingerprint(path),
                }
                for path in files
            },
        }
        for path in files:
            _sync(path)
        write_atomically(self.path / "meta.json", json.dumps(document, indent=2) + "\n")
        self.path.chmod(0o755)
        if self.out.exists():
            old = self.path.with_name(self.path.name + "-old")
            self.out.rename(old)
            self.path.rename(self.out)
            shutil.rmtree(old)
        else:
            self.path.rename(self.out)


def fingerprint(path: Path) -> str:
    """A digest of a file's size and content; of a file above 64 MB, of 64 pieces spread over it."""
    size = path.stat().st_size
    digest = hashlib.blake2b(str(size).encode(), digest_size=16)
    whole = size <= SAMPLE * PIECES
    with path.open("rb") as file:
        starts = (
            range(0, size, SAMPLE)
            if whole
            else np.linspace(0, size - SAMPLE, PIECES).astype(int).tolist()
        )
        for start in starts:
            file.seek(start)
            digest.update(file.read(SAMPLE))
    return digest.hexdigest()


def read_meta(folder: str | Path) -> Meta:
    """Read and check `meta.json` and, against it, every file of the folder."""
    folder = Path(folder)
    page = folder / "meta.json"
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a prepared folder: there is no such directory")
    if folder.name.startswith(".") and UNFINISHED in folder.name:
        raise ValueError(
            f"{folder} is what an interrupted run left: remove it and prepare the data again"
        )
    if not page.is_file():
        raise ValueError(f"{folder} is not a prepared folder: it has no meta.json")
    with _naming(page):
        document = json.loads(page.read_text(encoding="utf-8"))
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError(f'its "format" must be {FORMAT!r}')
        if document.get("version") != VERSION:
            raise ValueError(f"this mixdim reads version {VERSION}, got {document.get('version')!r}")
        meta = Meta(
            task=document["task"],
            features=tuple(FeatureMeta(**feature) for feature in document["features"]),
            dense=tuple(document["dense"]),
            splits={name: tuple(document["splits"][name]) for name in SPLITS},
            source=document["source"],
            options=document["options"],
            rows=document["rows"],
            truth=document["truth"],
        )
        files = {
            name: (entry["bytes"], entry["fingerprint"]) for name, entry in document["files"].items()
        }
    for name, (size, digest) in files.items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{path} is missing: prepare the data again")
        if path.stat().st_size != size:
            raise ValueError(
                f"{path} has {path.stat().st_size:,} bytes instead of {size:,}: prepare the data again"
            )
        if fingerprint(path) != digest:
            raise ValueError(f"{path} was changed after it was prepared: prepare the data again")
    return meta


@contextmanager
def _naming(page: Path) -> Iterator[None]:
    try:
        yield
    except KeyError as error:
        raise ValueError(f"{page} is malformed: {error.args[0]!r} is missing") from None
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{page} is malformed: {error}") from None


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
