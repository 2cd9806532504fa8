"""Any table, text or Parquet, as typed rows: the caller names the role of each column.

Knows nothing about vocabularies or the prepared format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from mixdim._util.arguments import whole_number
from mixdim.data.columns import listed
from mixdim.data.conditions import columns_of, parse_condition
from mixdim.data.encode import encode_rows
from mixdim.data.folder import Meta
from mixdim.data.folder_writer import Spool
from mixdim.data.negatives import NegativeSampling
from mixdim.data.rejects import Rejects
from mixdim.data.roles import ADVICE, Roles
from mixdim.data.sources import Source, check_sources
from mixdim.data.splits import Split, all_test, at_random, by_column, by_position, by_time
from mixdim.data.table_files import TextFormat, header_of, read_rows
from mixdim.data.typed_rows import (
    SPLIT,
    TIME,
    PredictionRows,
    Progress,
    Schema,
)
from mixdim.data.vocabulary import BaseVocabulary

OF_COLUMNS = ("target", "categorical", "dense", "bags", "task")
NEGATIVES = ("negatives", "negatives_of", "negatives_for")
CONDITION = re.compile(r"[<>=!]|\bin\s*\(")  # in a target, unless it is a column


def prepare_table(
    raw: Sequence[Path],
    out: str | Path,
    *,
    target: str | None = None,
    negatives: int | None = None,
    negatives_of: str | None = None,
    negatives_for: Sequence[str] | None = None,
    categorical: Sequence[str] | None = None,
    dense: Sequence[str] | None = None,
    bags: Mapping[str, str] | None = None,
    separator: str | None = None,
    encoding: str | None = None,
    columns: Sequence[str] | None = None,
    task: str | None = None,
    where: str | None = None,
    split: str | None = None,
    seed: int = 0,
    min_count: int | None = None,
    dense_as_is: bool | None = None,
    vocabulary_of: str | Path | None = None,
    max_bad: int = 0,
    overwrite: bool = False,
    progress: Progress | None = None,
    prediction: PredictionRows | None = None,
) -> Meta:
    """Prepare tables: CSV and its relatives, plain or gzip, and Parquet; a folder stands for its files.

    `target` is a column, or a condition such as `"rating >= 8"` that makes labels. `where` is one
    too: only rows that meet it are taken (`mixdim.data.conditions` has the grammar). `categorical` and
    `dense` may have patterns such as `"C*"` and ranges such as `"C1..C9"`. Files without a header have
    their names in `columns`. `bags` maps a multi-valued column to the mark between its
    values. Without a `separator` the header shows it. The split is 80/10/10: `"random"` (seeded),
    `"position"`, or `"time:COLUMN"`, a column of times; or it is that of the file, `"column:COLUMN"`, a
    column of train, validation and test; if none is validation, a seeded tenth of train is. Dense
    columns are standardised by rules of the training split (`mixdim.data.dense_rules`), or with
    `dense_as_is` taken as they are, 0 where missing.

    Without `target` all rows are positives, and each gets so many `negatives` after the split: copies
    with another value of the column `negatives_of` (`mixdim.data.negatives`). A user, who has no pair
    of both, is who has the same values in the columns `negatives_for`: by default in the one other
    categorical column with most values.

    With `vocabulary_of`, an earlier folder, ids and dense rules are its own, and so are all options that
    are not given; those that say what a column means may not differ. Then all rows are in the test split
    unless `split` is given. `prediction` is for rows that are only predicted.
    """
    base = None if vocabulary_of is None else BaseVocabulary.open(vocabulary_of, "table")
    chosen: dict[str, Any] = {
        "target": target,
        "negatives": negatives,
        "negatives_of": negatives_of,
        "negatives_for": None if negatives_for is None else list(negatives_for),
        "categorical": categorical,
        "dense": dense,
        "bags": None if bags is None else dict(bags),
        "task": task,
        "separator": separator,
        "encoding": encoding,
        "columns": None if columns is None else list(columns),
        "where": where,
        "by_rules": None if dense_as_is is None else not dense_as_is,
    }
    chosen = _filled(chosen) if base is None else _filled_by(base, chosen)
    _check_target(chosen)
    where = None if prediction is not None else chosen["where"]
    split = split or ("random" if base is None else "test")
    if split == "test" and base is None:
        raise ValueError("split 'test' is for rows whose vocabulary is that of an earlier folder")
    target, names = chosen["target"], chosen["columns"]
    form = TextFormat(
        chosen["separator"],
        chosen["encoding"],
        None if names is None else tuple(names),
        tuple(_without_target(target, names or ())) if prediction is not None else (),
    )
    sources = check_sources(raw, folders=True)
    rejects = Rejects(max_bad, advice=ADVICE)
    header = header_of(sources[0], form)
    is_condition = target is not None and target not in header and CONDITION.search(target)
    roles = Roles(
        parse_condition(target, "target") if is_condition else target,
        chosen["categorical"],
        chosen["dense"],
        chosen["bags"],
        chosen["task"],
        None if where is None else parse_condition(where, "where"),
        split,
        header,
        by_rules=chosen["by_rules"],
        is_new=prediction is not None,
    )
    if prediction is not None:
        prediction.has_target = roles.has_target
        _check_needed(sources[0], roles.columns, header)

    def chunks() -> Iterator[pl.DataFrame]:
        for source in sources:
            for rows in read_rows(source, roles.columns, form, rejects):
                typed = roles.typed(rows, rejects)
                if prediction is not None:
                    prediction.keep(typed.name, typed.lines)
                yield typed.frame

    def split_of(spool: Spool) -> Split:
        if roles.time is not None:
            return by_time(spool.column(TIME))
        if roles.split_column is not None:
            return by_column(spool.column(SPLIT), seed)
        if split == "test":
            return all_test(spool.rows)
        return at_random(spool.rows, seed) if split == "random" else by_position(spool.rows)

    meta = encode_rows(
        out,
        Schema(roles.task, roles.features, tuple(roles.dense), frozenset(roles.bags), roles.by_rules),
        chunks(),
        split_of,
        rejects,
        min_count=min_count,
        overwrite=overwrite,
        progress=progress,
        source=lambda: [source.describe() for source in sources],
        options={
            "format": "table",
            "target": target,
            "categorical": list(roles.categorical),
            "dense": list(roles.dense),
            "bags": roles.bags,
            "separator": form.separator,
            "encoding": form.encoding,
            **({} if names is None else {"columns": names}),
            "split": split,
            "seed": seed,
            **({} if where is None else {"where": where}),
        },
        base=base,
        sampling=None if prediction is not None else _sampling(chosen, roles, seed),
    )
    if prediction is not None:
        prediction.finish(rejects)
    return meta


def _without_target(target: str | None, names: Sequence[str]) -> list[str]:
    """The columns of a file without a header if it lacks those that make the target."""
    made_of = [target]
    if target is not None and target not in names and CONDITION.search(target):
        made_of = [*columns_of(parse_condition(target, "target"))]
    return [name for name in names if name not in made_of]


def _check_needed(source: Source, columns: Sequence[str], header: Sequence[str]) -> None:
    """Raise if a file of rows to predict lacks columns, with all that it needs."""
    lacking = [name for name in columns if name not in {*header}]
    if lacking:
        raise ValueError(
            f"{source.name} has no column {listed([*map(repr, lacking)])}: a prediction needs "
            f"{listed(columns)}, and it has {listed(header)}"
        )


def _check_target(chosen: dict[str, Any]) -> None:
    """Raise unless there is a target, or else what draws negatives."""
    if chosen["categorical"] is None:
        raise ValueError("categorical must be given, unless vocabulary_of has it")
    drawing = {name: chosen[name] for name in NEGATIVES if chosen[name] is not None}
    if chosen["target"] is not None:
        if drawing:
            raise ValueError(f"{next(iter(drawing))} is for rows that are positives: leave target out")
        return
    if chosen["negatives"] is None and chosen["negatives_of"] is None:
        raise ValueError(
            "target must be given, unless vocabulary_of has it; if all rows are positives, "
            "negatives and negatives_of draw negatives instead"
        )
    for name in NEGATIVES[:2]:
        if chosen[name] is None:
            raise ValueError(f"without a target, {name} must be given too")
    whole_number(chosen["negatives"], "negatives")


def _sampling(chosen: dict[str, Any], roles: Roles, seed: int) -> NegativeSampling | None:
    if roles.target is not None:
        return None
    drawn, users = chosen["negatives_of"], chosen["negatives_for"] or ()
    for option, name in (("negatives_of", drawn), *(("negatives_for", name) for name in users)):
        if name not in roles.features or name in roles.bags:
            raise ValueError(f"{option} must name a categorical column, not {name!r}")
    if drawn in users:
        raise ValueError(f"negatives_for must name other columns than negatives_of, got {drawn!r}")
    places = tuple(roles.features.index(name) for name in users)
    return NegativeSampling(chosen["negatives"], roles.features.index(drawn), places, seed)


def _filled(chosen: dict[str, Any]) -> dict[str, Any]:
    """The options with their defaults."""
    usual = {"dense": (), "bags": {}, "task": "binary", "encoding": "utf-8", "by_rules": True}
    return chosen | {name: value for name, value in usual.items() if chosen[name] is None}


def _filled_by(base: BaseVocabulary, chosen: dict[str, Any]) -> dict[str, Any]:
    """The options with those of an earlier folder; what columns mean is as there."""
    its = {**base.meta.options, "task": base.meta.task}
    by_rules = base.meta.dense_rules is not None
    dense_as_is = None if chosen["by_rules"] is None else not chosen["by_rules"]
    if base.meta.dense:
        base.agreed("dense_as_is", dense_as_is, not by_rules)
    for name in ("target", "task", "bags", *NEGATIVES[1:]):
        base.agreed(name, chosen[name], its.get(name))
    names = (*OF_COLUMNS, *NEGATIVES, "separator", "encoding", "columns", "where")
    left = {name: its.get(name) for name in names if chosen[name] is None}
    return chosen | left | {"by_rules": by_rules}
