"""The prepared format: a folder of memory-mapped arrays, and `meta.json`, which describes it.

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
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mixdim._util.arguments import whole_number
from mixdim._util.folders import PARTIAL, brought_back
from mixdim.data.dense_rules import DenseRule, dense_names
from mixdim.tasks import TASKS

try:
    import resource
except ImportError:  # not on Windows, which has no such limit
    resource = None  # type: ignore[assignment]

FORMAT = "mixdim.data"
VERSION = 1
SPLITS = ("train", "validation", "test")
KINDS = ("value", "missing", "out_of_vocabulary")  # of a row of a vocabulary
SAMPLE = 1 << 20  # bytes of each of the pieces that a large file is fingerprinted by
PIECES = 64
ENOUGH_FILES = 128  # a process may always open so many files
CHUNK = 1 << 22  # numbers of an array that are looked at together


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

    def __post_init__(self) -> None:
        _require_text(self.name, "the name of a feature")
        whole_number(self.rows, f"rows of feature {self.name!r}")
        unknown, last = f"out_of_vocabulary of feature {self.name!r}", self.rows - 1
        if whole_number(self.out_of_vocabulary, unknown, at_least=0) > last:
            raise ValueError(
                f"{unknown} must be one of its rows 0 to {last}, got {self.out_of_vocabulary}"
            )
        whole_number(self.source_values, f"source_values of feature {self.name!r}", at_least=0)
        if not isinstance(self.bag, bool):
            raise TypeError(f"bag of feature {self.name!r} must be true or false, got {self.bag!r}")
        if self.bag and ("/" in self.name or "\0" in self.name):
            raise ValueError(f"bag {self.name!r} cannot be a file name")


@dataclass(frozen=True)
class Meta:
    """What a prepared folder holds; one that contradicts itself cannot be made."""

    task: str  # one of mixdim.tasks
    features: tuple[FeatureMeta, ...]
    dense: tuple[str, ...]
    splits: dict[str, tuple[int, int]]  # first row, and the row after the last
    source: dict[str, Any] = field(default_factory=dict)  # files, with sizes and fingerprints
    options: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, Any] = field(default_factory=dict)  # read, kept, rejected (by reason)
    truth: dict[str, Any] | None = None  # of generated data: how it was planted
    dense_rules: tuple[DenseRule, ...] | None = None  # None: dense columns are as their source has them

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise ValueError(f"task must be {' or '.join(map(repr, TASKS))}, got {self.task!r}")
        for name in self.dense:
            _require_text(name, "the name of a dense column")
        for names in ([feature.name for feature in self.features], self.dense):
            twice = [name for name, times in Counter(names).items() if times > 1]
            if twice:
                raise ValueError(f"column {twice[0]!r} is there twice")
        if self.dense_rules is not None and dense_names(self.dense_rules) != self.dense:
            raise ValueError(f"its dense rules are of other columns than {', '.join(self.dense)}")
        _check_splits(self.splits)

    @property
    def num_rows(self) -> int:
        """Rows of all splits together."""
        return self.splits["test"][1]

    @property
    def dense_sources(self) -> tuple[str, ...]:
        """The columns of the source that the dense columns come from."""
        return self.dense if self.dense_rules is None else tuple(r.column for r in self.dense_rules)

    @property
    def files(self) -> list[str]:
        """The files that the folder has beside its page."""
        bags = [bag_file(f.name, part) for f in self.features if f.bag for part in ("values", "offsets")]
        dense = ["dense.npy"] if self.dense else []
        vocabularies = [vocabulary_file(number) for number in range(len(self.features))]
        return ["ids.npy", "target.npy", *dense, *bags, *vocabularies]


def bag_file(feature: str, part: str) -> str:
    """Where the "values" or "offsets" of a multi-valued feature are."""
    return f"bags/{feature}.{part}.npy"


def vocabulary_file(number: int) -> str:
    """Where the vocabulary of a feature is, given its place among the features."""
    return f"vocabulary/{number}.parquet"


def _require_text(value: Any, name: str) -> None:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{name} must be text, got {value!r}")


def _check_splits(splits: Mapping[str, tuple[int, int]]) -> None:
    """Each split must begin where the one before it ended, the first at row 0."""
    begin = 0
    for name in SPLITS:
        bounds = splits[name]
        if len(bounds) != 2:
            raise ValueError(
                f"split {name!r} must be its first row and the row after its last, got {bounds}"
            )
        start, stop = (whole_number(row, f"a row of split {name!r}", at_least=0) for row in bounds)
        if start != begin:
            raise ValueError(
                f"split {name!r} must begin at row {begin:,}, where those before it end, got {start:,}"
            )
        if stop < start:
            raise ValueError(f"split {name!r} ends at row {stop:,}, before it begins at {start:,}")
        begin = stop


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
    folder = brought_back(folder)
    page = folder / "meta.json"
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a prepared folder: there is no such directory")
    if folder.name.startswith(".") and PARTIAL in folder.name:
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
            dense_rules=_rules(document.get("dense_rules")),
        )
        if document["num_rows"] != meta.num_rows:
            raise ValueError(f"its splits end at row {meta.num_rows:,} of {document['num_rows']:,}")
        files = {
            name: (entry["bytes"], entry["fingerprint"]) for name, entry in document["files"].items()
        }
        unlisted = [name for name in meta.files if name not in files]
        if unlisted:
            raise ValueError(f'its "files" lack {unlisted[0]}')
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


def _rules(entries: list[dict[str, Any]] | None) -> tuple[DenseRule, ...] | None:
    return None if entries is None else tuple(DenseRule(**entry) for entry in entries)


@contextmanager
def _naming(page: Path) -> Iterator[None]:
    try:
        yield
    except KeyError as error:
        raise ValueError(f"{page} is malformed: {error.args[0]!r} is missing") from None
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{page} is malformed: {error}") from None


@dataclass(frozen=True, eq=False)
class Arrays:
    """What a folder holds beside its vocabularies; an array is read when it is used."""

    ids: np.ndarray  # int32 (rows, single-valued features)
    target: np.ndarray  # float32 (rows,)
    dense: np.ndarray | None  # float32 (rows, dense columns)
    bags: dict[str, tuple[np.ndarray, np.ndarray]]  # int32 (values,) and int64 (rows + 1,), by feature


def map_arrays(folder: Path, meta: Meta) -> Arrays:
    """Map the arrays; raise if one is not as `meta.json` describes it.

    Only shapes, types and the ends of bags are checked: the layer refuses a wrong id when it looks it
    up.
    """
    rows, num_dense = meta.num_rows, len(meta.dense)
    _allow_files(2 * sum(feature.bag for feature in meta.features))
    single_valued = sum(not feature.bag for feature in meta.features)
    return Arrays(
        ids=_mapped(folder / "ids.npy", np.int32, (rows, single_valued)),
        target=_mapped(folder / "target.npy", np.float32, (rows,)),
        dense=_mapped(folder / "dense.npy", np.float32, (rows, num_dense)) if num_dense else None,
        bags={f.name: _mapped_bags(folder, f.name, rows) for f in meta.features if f.bag},
    )


def _allow_files(count: int) -> None:
    """Let so many files be mapped at once, each of which takes a file descriptor."""
    if count < ENOUGH_FILES or resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = soft + count if hard == resource.RLIM_INFINITY else min(soft + count, hard)
    if wanted < count + ENOUGH_FILES:
        raise OSError(
            f"the folder maps {count:,} files of bags, and the system lets a process open {hard:,}: "
            "see ulimit -n"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def read_counts(folder: Path, meta: Meta, number: int, *, positives: bool = False) -> np.ndarray:
    """How often each id of a feature, given by its place, occurs in the training split: int64.

    With `positives`, without the negatives that were drawn, if there are any.
    """
    path, feature = folder / vocabulary_file(number), meta.features[number]
    column = "positives" if positives and "negatives" in meta.rows else "count"
    try:
        counts = pl.read_parquet(path, columns=[column], glob=False).to_series().to_numpy()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ValueError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None
    if len(counts) != feature.rows:
        raise ValueError(
            f"{path} has {len(counts):,} values, and feature {feature.name!r} has {feature.rows:,} rows"
        )
    return counts


def chunks_of(path: Path, start: int, stop: int) -> Iterator[np.ndarray]:
    """Views of the rows of an array from `start` to `stop`, one after the other.

    Each is mapped anew, so that the pages of the ones before do not add up.
    """
    shape = np.load(path, mmap_mode="r", allow_pickle=False).shape
    rows = max(1, CHUNK // max(1, int(np.prod(shape[1:]))))
    for first in range(start, stop, rows):
        yield np.load(path, mmap_mode="r", allow_pickle=False)[first : min(first + rows, stop)]


def _mapped_bags(folder: Path, name: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    offsets = _mapped(folder / bag_file(name, "offsets"), np.int64, (rows + 1,))
    values = _mapped(folder / bag_file(name, "values"), np.int32)
    if (int(offsets[0]), int(offsets[-1])) != (0, len(values)):
        raise ValueError(
            f"{folder / bag_file(name, 'offsets')} must rise from 0 to the {len(values):,} values there "
            f"are, got {offsets[0]:,} to {offsets[-1]:,}"
        )
    return values, offsets


def _mapped(path: Path, dtype: Any, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """An array of this type and shape; if that is not known, a vector."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    shape = (array.size,) if shape is None else shape
    if array.shape != shape:
        raise ValueError(f"{path} has shape {array.shape} instead of {shape}")
    if array.dtype != dtype:
        raise ValueError(f"{path} holds {array.dtype} instead of {np.dtype(dtype)}")
    # A plain view of the mapped memory: indexing a memmap costs a wrapper each time.
    return array.view(np.ndarray)
