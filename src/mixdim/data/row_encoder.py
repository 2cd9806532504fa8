"""Raw rows, such as those of a request, as what a model reads. Knows no model.

A row is as it is in the file that the data was prepared from: `mixdim predict --raw` types and encodes
the rows of a file by the same code. Vocabularies stay in memory; nothing is written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from mixdim._util.lazy import import_later
from mixdim.data.array_encoder import TypedEncoder
from mixdim.data.batches import Batch
from mixdim.data.columns import listed
from mixdim.data.dense_rules import LIMIT, DenseRule
from mixdim.data.folder import Meta, read_meta, vocabulary_file
from mixdim.data.lines import Rows
from mixdim.data.public.criteo import CATEGORICAL, DENSE, typed_fields
from mixdim.data.rejects import Rejects
from mixdim.data.roles import Roles
from mixdim.data.vocabulary import Vocabulary
from mixdim.tasks import TASKS

if TYPE_CHECKING:
    import torch

import_later(globals(), torch="torch")  # only batches need it

FORMAT, VERSION = "mixdim.vocabulary", 2
MARK = "|"  # between the values of a bag, where the data does not say
NO_COLUMN = "\0"  # the target of rows without one

RawRows = Sequence[Mapping[str, Any]] | pl.DataFrame


@dataclass(frozen=True)
class _Feature:
    """A feature: `mark` stands between the values of a bag; None: it has one value."""

    name: str
    mark: str | None
    vocabulary: Vocabulary


class RowEncoder:
    r"""Makes raw rows what a model reads, with the ids and dense rules of a prepared folder.

    Rows are dicts, or a polars frame, with the columns of the file that the folder was prepared from;
    of MovieLens and Criteo they are called as the features and numbers are. Columns that are not needed
    are passed over; one that is not there is missing, as an empty text is. A bag is a list, or a text
    with the mark of the file. A ValueError says which row is wrong.

    >>> import tempfile
    >>> from mixdim.data.table import prepare_table
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "t.csv").write_text("y,city,age\n" + "1,Rome,30\n0,Oslo,40\n" * 20)
    >>> named = {"target": "y", "categorical": ["city"], "dense": ["age"], "split": "position"}
    >>> meta = prepare_table([folder / "t.csv"], folder / "data", **named)
    >>> encoder = RowEncoder.of_folder(folder / "data")
    >>> encoder.columns
    ('city', 'age')
    >>> batch = encoder.encode([{"city": "Rome", "age": "35", "note": "new"}, {"city": ""}])
    >>> batch.ids.tolist(), batch.dense.tolist()
    ([[1], [2]], [[0.0], [0.0]])
    """

    def __init__(
        self,
        form: str | None,
        task: str,
        features: Sequence[_Feature],
        dense: Sequence[str],
        rules: Sequence[DenseRule] | None,
    ) -> None:
        self.form, self.task, self.features, self.dense = form, task, features, tuple(dense)
        self.rules = rules
        self.marks = {f.name: f.mark for f in features if f.mark is not None}
        names = [feature.name for feature in features]
        bags = {place for place, feature in enumerate(features) if feature.mark is not None}
        self.columns = tuple(dict.fromkeys([*names, *self.dense]))
        self.encoder = TypedEncoder([f.vocabulary for f in features], bags, len(self.dense), rules)
        self.roles = Roles(
            target=None if TASKS[task].labels else NO_COLUMN,
            categorical=names,
            dense=self.dense,
            bags=self.marks,
            task=task,
            where=None,
            split="test",
            header=self.columns,
            by_rules=rules is not None,
            is_new=True,
        )
        # Values are compared as texts, whatever type a request gives them.
        self.roles.types = dict.fromkeys(names, pl.String())

    @classmethod
    def of_folder(cls, folder: str | Path) -> RowEncoder:
        """Take ids and rules of a prepared folder."""
        folder = Path(folder)
        meta = read_meta(folder)
        marks = meta.options.get("bags") or {}
        features = [
            _Feature(
                feature.name,
                marks.get(feature.name, MARK) if feature.bag else None,
                Vocabulary.read(folder / vocabulary_file(number)),
            )
            for number, feature in enumerate(meta.features)
        ]
        return cls(_form(meta), meta.task, features, meta.dense_sources, meta.dense_rules)

    @classmethod
    def of_model(cls, model: str | Path) -> RowEncoder:
        """Take those that `mixdim export` wrote beside a model, into `<model>.vocabulary.json`."""
        path = Path(model).with_name(f"{Path(model).name}.vocabulary.json")
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if (document["format"], document["version"]) != (FORMAT, VERSION):
                raise ValueError(f"it must be {FORMAT} version {VERSION}")
            features = [
                _Feature(
                    entry["name"],
                    entry["mark"],
                    Vocabulary.of_values(entry["values"], entry["missing"], entry["unknown"]),
                )
                for entry in document["features"]
            ]
            rules = tuple(
                DenseRule(c["name"], c["log"], c["mean"], c["scale"], 0.5 if c["tells_missing"] else 0.0)
                for c in document["dense"]
            )
            names, limit = [rule.column for rule in rules], document["dense_limit"]
            return cls(
                document["raw"], document["task"], features, names, None if limit is None else rules
            )
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is malformed, export the model again: {error}") from None

    def document(self) -> dict[str, Any]:
        """What `of_model` reads, as JSON holds it: see docs/serving.md."""
        is_criteo, rules = self.form == "criteo", self.rules
        if rules is None:  # taken as they are; Criteo's recipe takes logarithms
            rules = [DenseRule(name, is_criteo, mean=0.0, scale=1.0, missing=0.0) for name in self.dense]
        return {
            "format": FORMAT,
            "version": VERSION,
            "task": self.task,
            "raw": self.form,
            "features": [
                {
                    "name": feature.name,
                    "kind": "hexadecimal" if is_criteo else "plain",  # how values are written in files
                    "bag": feature.mark is not None,
                    "mark": feature.mark,
                    "unknown": feature.vocabulary.out_of_vocabulary,
                    "missing": feature.vocabulary.missing,
                    "values": feature.vocabulary.table["value"].to_list(),  # by id
                }
                for feature in self.features
            ],
            "dense": [
                {
                    **{"name": rule.column, "log": rule.log, "mean": rule.mean, "scale": rule.scale},
                    "tells_missing": rule.tells_missing,
                }
                for rule in rules
            ],
            "dense_limit": None if self.rules is None else LIMIT,
        }

    def arrays(self, rows: RawRows) -> dict[str, np.ndarray]:
        """The inputs of an exported model, by name: ids, dense, and values and offsets of each bag."""
        typed = self._typed(rows)
        found = self.encoder.arrays(typed)
        inputs = {"ids": found["ids"].astype(np.int64)}
        inputs["dense"] = found.get("dense", np.empty((typed.height, 0))).astype(np.float32)
        for place in sorted(self.encoder.bags):
            values, lengths = self.encoder.bag(typed, place)
            name = self.features[place].name
            inputs[f"{name}.values"] = values.astype(np.int64)
            inputs[f"{name}.offsets"] = np.concatenate([[0], np.cumsum(lengths)])
        return inputs

    def encode(self, rows: RawRows) -> Batch:
        """The batch of some rows, whose targets are NaN."""
        inputs = {name: torch.from_numpy(array) for name, array in self.arrays(rows).items()}
        ids = inputs["ids"].to(torch.int32)
        bags = {
            name: (inputs[f"{name}.values"].to(torch.int32), inputs[f"{name}.offsets"])
            for name in self.marks
        }
        return Batch(ids, inputs["dense"], torch.full([len(ids)], torch.nan), bags)

    def _typed(self, rows: RawRows) -> pl.DataFrame:
        """Rows as typed ones; a ValueError names the first that is wrong."""
        frame = self._frame(rows)
        given, rejects = Rows("row", frame, np.arange(frame.height)), Rejects()
        if self.form == "criteo":
            typed = typed_fields(given, rejects, is_new=True)
        else:
            typed = self.roles.typed(given, rejects)
        if rejects.total:
            _, row, reason = rejects.places[0]
            raise ValueError(f"row {row}: {reason}")
        return typed.frame

    def _frame(self, rows: RawRows) -> pl.DataFrame:
        """The columns that are needed, in the order in which they are typed, null where not given."""
        if isinstance(rows, pl.DataFrame):
            self._check_columns(rows.columns, "the frame")
            columns = {name: rows[name] for name in self.columns if name in rows.columns}
        else:
            for number, row in enumerate(rows):
                self._check_columns(row, f"row {number}")
            columns = {
                name: self._series(name, [row.get(name) for row in rows]) for name in self.columns
            }
        nothing = pl.Series([None], dtype=pl.String).new_from_index(0, len(rows))
        if self.form != "criteo":
            wanted = [columns.get(name, nothing) for name in self.roles.columns]
        else:  # as fields of a line, the label first
            fields = [columns.get(name, nothing).cast(pl.String) for name in (*DENSE, *CATEGORICAL)]
            wanted = [nothing, *(field.set(field == "", None) for field in fields)]
        return pl.DataFrame([series.alias(str(place)) for place, series in enumerate(wanted)])

    def _check_columns(self, names: Any, what: str) -> None:
        if len(names) and not any(name in names for name in self.columns):
            raise ValueError(f"{what} has none of the columns {listed(self.columns)}")

    def _series(self, name: str, values: list[Any]) -> pl.Series:
        """A column of values of any types; texts if they are of several."""
        if name in self.marks:
            return pl.Series([_values_of(v, self.marks[name]) for v in values], dtype=pl.List(pl.String))
        kinds = {type(value) for value in values if value is not None}
        if len(kinds) == 1 and kinds <= {int, float, bool}:
            try:
                return pl.Series(values)
            except (OverflowError, TypeError, pl.exceptions.PolarsError):
                pass
        return pl.Series([_text(name, value) for value in values], dtype=pl.String)


def _form(meta: Meta) -> str | None:
    """What kind of raw files a folder was prepared from; None if from none."""
    found = meta.options.get("format")
    return found if isinstance(found, str) else None


def _values_of(value: Any, mark: str) -> list[str | None] | None:
    """The values of a bag."""
    if isinstance(value, list | tuple):
        return [_text("a value of a bag", one) for one in value]
    return None if value is None else _text("a bag", value).split(mark)


def _text(name: str, value: Any) -> Any:
    """A value as the text that a file would have, None if it is missing."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, dict | list | tuple | set):
        raise ValueError(f"{name!r} must be a string or a number, got {value!r}")
    try:
        return pl.Series([value]).cast(pl.String)[0]
    except (TypeError, pl.exceptions.PolarsError):
        raise ValueError(f"{name!r} must be a string or a number, got {value!r}") from None
