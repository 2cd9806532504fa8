"""Typed rows in, a prepared folder out: rows wait on disk, values are counted, then encoded.

Knows nothing about raw formats. Memory holds one chunk of rows and the vocabularies, never all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mixdim.data.array_encoder import ArrayEncoder
from mixdim.data.dense_rules import DenseMoments, dense_names
from mixdim.data.folder import FeatureMeta, Meta, vocabulary_file
from mixdim.data.folder_writer import FolderWriter, Spool
from mixdim.data.negatives import POWER, Negatives, NegativeSampling, draw_negatives
from mixdim.data.rejects import Rejects
from mixdim.data.splits import Split, bounds_of, take_rows
from mixdim.data.typed_rows import Progress, Schema, dense_column, feature_column
from mixdim.data.vocabulary import POSITIVES, BaseVocabulary, ValueCounts, Vocabulary

Repeats = Callable[
    [int, int, int], np.ndarray
]  # rows that positives of a split make, from first to last


def encode_rows(
    out: str | Path,
    schema: Schema,
    chunks: Iterable[pl.DataFrame],
    split_of: Callable[[Spool], Split],
    rejects: Rejects,
    *,
    min_count: int | None,
    overwrite: bool,
    progress: Progress | None,
    source: Callable[[], list[dict[str, Any]]],
    options: dict[str, Any],
    base: BaseVocabulary | None = None,
    sampling: NegativeSampling | None = None,
) -> Meta:
    """Write the prepared folder of typed rows; `split_of` is called once all rows are known.

    Ids and dense rules are those of a `base` folder, or come from the training split. With `sampling`
    the rows are positives, and negatives are drawn for them.
    """
    if base is not None:
        base.check(schema.task, schema.features, schema.bags, schema.dense)
        min_count = base.agreed("min_count", min_count, base.meta.options.get("min_count", 1))
        options = {**options, "vocabulary_of": str(base.folder)}
    min_count = 1 if min_count is None else min_count
    if min_count < 1:
        raise ValueError(f"min_count must be >= 1, got {min_count}")
    report = progress or (lambda stage, done, total: None)
    out = Path(out)
    with FolderWriter(out, overwrite=overwrite) as writer:
        spool = Spool(writer.path / "spool")
        _read(chunks, spool, rejects, report)
        split = split_of(spool) if spool.rows else Split((0, 0, 0))
        if not split.sizes[0] and (base is None or not spool.rows):
            kept = f", {rejects.left_out:,} others left out by where" if rejects.left_out else ""
            where = "at all" if base is not None else "in the training split"
            raise ValueError(f"no rows {where}: {spool.rows:,} rows of {_names(source)}{kept}")
        counts, bag_sizes, moments = _count(schema, spool, split, report)
        totals = [count.total() for count in counts]
        source_values = [total.height for total in totals]
        negatives = None
        if sampling is not None:
            negatives = _draw(writer.path, schema, spool, split, sampling, totals, base)
            totals, bag_sizes = _with_negatives(schema, spool, split, negatives, totals, bag_sizes)
        if base is None:
            vocabularies = [Vocabulary.counted(total, min_count=min_count) for total in totals]
            for index, vocabulary in enumerate(vocabularies):
                vocabulary.write(writer.path / vocabulary_file(index))
            rules = moments.rules() if schema.by_rules and schema.dense else None
        else:
            vocabularies, rules = base.copy_to(writer.path), base.meta.dense_rules
        del counts, totals
        encoder = ArrayEncoder(writer, schema, split, vocabularies, bag_sizes, rules, negatives)
        encoder.run(spool, report)
        meta = Meta(
            task=schema.task,
            features=tuple(
                FeatureMeta(name, v.rows, v.out_of_vocabulary, distinct, name in schema.bags)
                for name, v, distinct in zip(schema.features, vocabularies, source_values, strict=True)
            ),
            dense=schema.dense if rules is None else dense_names(rules),
            splits=bounds_of(encoder.sizes),
            source={"files": source()},
            options={
                **options,
                **({} if negatives is None else _described(schema, negatives.sampling)),
                **({"validation_drawn": True} if split.validation_drawn else {}),
                "min_count": min_count,
                "max_bad": rejects.max_bad,
            },
            rows={
                "read": spool.rows + rejects.total + (rejects.left_out or 0),
                "kept": spool.rows,
                "rejected": dict(sorted(rejects.reasons.items())),
                **({} if rejects.left_out is None else {"left_out": rejects.left_out}),
                **({} if negatives is None else {"negatives": sum(encoder.sizes) - spool.rows}),
            },
            dense_rules=rules,
        )
        writer.finish(meta)
        return meta


def _read(chunks: Iterable[pl.DataFrame], spool: Spool, rejects: Rejects, report: Progress) -> None:
    kept = well_formed = 0
    for chunk in chunks:
        kept += chunk.height
        well_formed = kept + (rejects.left_out or 0)
        report("read", well_formed + rejects.total, None)
        if not rejects.too_many:
            if chunk.height:
                spool.add(chunk)
        elif rejects.total > well_formed:
            break  # most rows are malformed: this is another format, and the rest says nothing new
    rejects.check(well_formed + rejects.total)


def _count(
    schema: Schema, spool: Spool, split: Split, report: Progress, repeats: Repeats | None = None
) -> tuple[list[ValueCounts], dict[int, list[int]], DenseMoments]:
    """Count values of each feature and in the bags of each split; sum up dense columns in training."""
    seen = [0, 0, 0]
    moments = DenseMoments(schema.dense)
    dense = [dense_column(index) for index in range(len(schema.dense))]
    counts = [ValueCounts() for _ in schema.features]
    bag_sizes = {i: [0, 0, 0] for i, name in enumerate(schema.features) if name in schema.bags}
    for start, chunk in spool.chunks():
        for number, rows in enumerate(split.members(start, start + chunk.height)):
            part = take_rows(chunk, rows)
            if not part.height:
                continue
            if repeats is not None:
                seen[number] += part.height
                times = repeats(number, seen[number] - part.height, seen[number])
                part = part[np.repeat(np.arange(part.height), times)]
            for index in range(len(schema.features)):
                values = part[feature_column(index)]
                if index in bag_sizes:
                    values = values.explode(empty_as_null=False, keep_nulls=False)
                    bag_sizes[index][number] += len(values)
                counts[index].add(values, training=number == 0)
            if number == 0 and schema.by_rules and dense:
                moments.add(part.select(dense).to_numpy())
        report("count", start + chunk.height, spool.rows)
    return counts, bag_sizes, moments


def _draw(
    folder: Path,
    schema: Schema,
    spool: Spool,
    split: Split,
    sampling: NegativeSampling,
    totals: Sequence[pl.DataFrame],
    base: BaseVocabulary | None,
) -> Negatives:
    """Draw negatives for all rows; without users given, the other feature with most values has them."""
    if not sampling.users:
        single = [i for i, name in enumerate(schema.features) if name not in schema.bags]
        others = [index for index in single if index != sampling.of]
        if not others:
            raise ValueError("negatives need a second categorical column: whose positive a row is")
        users = (max(others, key=lambda index: (totals[index].height, -index)),)
        sampling = replace(sampling, users=users)
    values = Vocabulary.counted(totals[sampling.of]) if base is None else base.vocabulary(sampling.of)
    known_users = [Vocabulary.counted(totals[i].with_columns(count=1)) for i in sampling.users]
    columns = [feature_column(index) for index in (sampling.of, *sampling.users)]
    chunks = ((start, chunk.get_columns()) for start, chunk in spool.chunks(columns))
    return draw_negatives(folder, chunks, split, sampling, values, known_users)


def _with_negatives(
    schema: Schema,
    spool: Spool,
    split: Split,
    negatives: Negatives,
    totals: Sequence[pl.DataFrame],
    bag_sizes: dict[int, list[int]],
) -> tuple[list[pl.DataFrame], dict[int, list[int]]]:
    """Counts of values, with those of positives beside them, and sizes of bags, all with negatives."""
    each = 1 + negatives.sampling.per_positive
    positives = [total.sort("value", nulls_last=True) for total in totals]
    counts = [total["count"] * each for total in positives]
    sizes = {index: [each * size for size in found] for index, found in bag_sizes.items()}
    if negatives.lack_some:
        found, sizes, _ = _count(schema, spool, split, lambda *_: None, negatives.repeats)
        counts = [count.total().sort("value", nulls_last=True)["count"] for count in found]
    drawn = negatives.counts_of(positives[negatives.sampling.of]["value"])
    counts[negatives.sampling.of] = positives[negatives.sampling.of]["count"] + drawn
    both = zip(positives, counts, strict=True)
    return [
        total.rename({"count": POSITIVES}).with_columns(count.alias("count")) for total, count in both
    ], sizes


def _described(schema: Schema, sampling: NegativeSampling) -> dict[str, Any]:
    """What `meta.json` has about negatives."""
    return {
        "negatives": sampling.per_positive,
        "negatives_of": schema.features[sampling.of],
        "negatives_for": [schema.features[index] for index in sampling.users],
        "negatives_power": POWER,
    }


def _names(source: Callable[[], list[dict[str, Any]]]) -> str:
    return ", ".join(file["name"] for file in source())
