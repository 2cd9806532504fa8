"""How often rows held out have values that training never saw, and what to do about it.

Knows nothing about models. All unknown values of a feature share one row; if no training row uses it,
a model has learned nothing there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mixdim._util.text import align, printable
from mixdim.data.folder import SPLITS, FeatureMeta, Meta, bag_file, chunks_of, read_counts

HELD_OUT = SPLITS[1:]
WORTH_A_WORD = 0.01  # a smaller share of a feature's lookups changes little
NAMED = 3  # features in the advice
SHOWN = 30  # features in the report; of more only those with the largest shares
SHOWN_OF_NEW = 6  # where the rows are new ones, such as those to predict
LARGE = 0.05  # share of a feature's lookups held out that is worth an advice
ENOUGH = 0.01  # share of a feature's training lookups that train the row for unknown values
MIN_COUNTS = (2, 3, 4, 5, 6, 8, 10)  # to be tried


def unknown_shares(
    folder: Path, meta: Meta, splits: Sequence[str] = HELD_OUT
) -> dict[str, dict[str, float | None]]:
    """Of each feature and split, the share of lookups of the row for unknown values.

    A share of no lookups at all is None.
    """
    shares: dict[str, dict[str, float | None]] = {feature.name: {} for feature in meta.features}
    single = [feature for feature in meta.features if not feature.bag]
    unknown_ids = np.array([feature.out_of_vocabulary for feature in single])
    for split in splits:
        start, stop = meta.splits[split]
        found = np.zeros(len(single), dtype=np.int64)
        if single:
            for ids in chunks_of(folder / "ids.npy", start, stop):  # (rows, single-valued features)
                found += (ids == unknown_ids).sum(axis=0)
        for feature, count in zip(single, found.tolist(), strict=True):
            shares[feature.name][split] = count / (stop - start) if stop > start else None
        for feature in meta.features:
            if feature.bag:
                is_unknown = np.arange(feature.rows) == feature.out_of_vocabulary
                shares[feature.name][split] = share_of(folder, meta, feature, split, is_unknown)
    return shares


def share_of(
    folder: Path, meta: Meta, feature: FeatureMeta, split: str, chosen: np.ndarray
) -> float | None:
    """The share of a feature's lookups in a split that are of ids chosen by a mask; None of nothing."""
    start, stop = meta.splits[split]
    if feature.bag:
        offsets = np.load(folder / bag_file(feature.name, "offsets"), mmap_mode="r", allow_pickle=False)
        first, last = int(offsets[start]), int(offsets[stop])
        parts = chunks_of(folder / bag_file(feature.name, "values"), first, last)
    else:
        first, last = start, stop
        column = [other.name for other in meta.features if not other.bag].index(feature.name)
        parts = (part[:, column] for part in chunks_of(folder / "ids.npy", first, last))
    found = sum(int(chosen[part].sum()) for part in parts)
    return found / (last - first) if last > first else None


def advice(lookups: Mapping[str, Mapping[str, Any]], *, prepared: bool) -> str | None:
    """Name the features that most often use rows that were never trained; None if it hardly matters.

    `lookups` has for each feature its shares in "validation" and "test", None of nothing, and in
    "trained" whether the row was; `prepared` is whether the data can be prepared in another way.

    >>> print(advice({"user": {"validation": None, "test": 0.342, "trained": False}}, prepared=True))
    unknown values: training never saw those of 34.2% of the lookups in test of user,
    and the row they share was never trained: mixdim train --unknown-dropout trains it on rare values,
    and so does mixdim prepare ... --min-count 2
    """
    split = "test" if any(found["test"] is not None for found in lookups.values()) else "validation"
    untrained = {name: found[split] or 0.0 for name, found in lookups.items() if not found["trained"]}
    worst = sorted(untrained.items(), key=lambda entry: -entry[1])
    worst = [(name, share) for name, share in worst if share >= WORTH_A_WORD]
    if not worst:
        return None
    (first, most), *others = worst
    named = [f"{most:.1%} of the lookups in {split} of {first}"]
    named += [f"{share:.1%} of {name}" for name, share in others[: NAMED - 1]]
    if len(worst) > NAMED:
        named.append(f"{WORTH_A_WORD:.0%} or more of {len(worst) - NAMED} others")
    also = ",\nand so does mixdim prepare ... --min-count 2" if prepared else ""
    return (
        f"unknown values: training never saw those of {', '.join(named)},\nand the row they share was "
        f"never trained: mixdim train --unknown-dropout trains it on rare values{also}"
    )


@dataclass(frozen=True)
class CutVocabulary:
    """What `--min-count` would make of a folder; shares are of one feature's lookups.

    `min_count` is None where none of those tried makes enough values unknown in training.
    """

    feature: str
    split: str
    unknown_now: float
    min_count: int | None = None
    unknown_then: float = 0.0
    training: float = 0.0  # lookups of the row for unknown values that would train it
    rows_now: int = 0  # of all features
    rows_then: int = 0

    def __str__(self) -> str:
        held_out, feature = self.split, printable(self.feature)
        share = (
            f"{self.unknown_now:.1%} of the lookups in {held_out} of {feature} use the row for "
            "unknown values,\nwhich no training row uses. "
        )
        if self.min_count is None:
            return (
                f"{share}--min-count would not help, as hardly a value is rare;\n"
                "mixdim train --unknown-dropout trains it a little"
            )
        return (
            f"{share}--min-count {self.min_count} would train it on {self.training:.1%} of the training "
            f"lookups,\nsend {self.unknown_then:.1%} of those in {held_out} there, and keep "
            f"{self.rows_then:,} of {self.rows_now:,} rows in all;\n"
            "mixdim train --unknown-dropout trains it too, and keeps all rows"
        )


def unknown_report(folder: Path, meta: Meta) -> list[str]:
    """The lines to print: shares by feature and, if one is large and untrained, what to do about it."""
    shares = unknown_shares(folder, meta)
    splits = [split for split in HELD_OUT if meta.splits[split][1] > meta.splits[split][0]]
    if not splits:
        return []
    if not any(share for found in shares.values() for share in found.values()):
        return [f"unknown values: none in {' and '.join(splits)}"]
    most = {name: max(share or 0.0 for share in found.values()) for name, found in shares.items()}
    names = list(shares)
    shown = SHOWN_OF_NEW if "vocabulary_of" in meta.options else SHOWN
    if len(names) > shown:
        names = sorted(names, key=lambda name: -most[name])[:shown]
    lines = [[name, *(_written(shares[name][split]) for split in splits)] for name in names]
    others = [share for name, share in most.items() if name not in {*names}]
    more = [f"and at most {max(others):.1%} of {len(others):,} other features"] if others else []
    table = align([["unknown values, share of lookups", *splits], *lines])
    cut = _cut_vocabulary(folder, meta, shares)
    return [*table, *more, *([] if cut is None else [str(cut)])]


def _cut_vocabulary(
    folder: Path, meta: Meta, shares: dict[str, dict[str, float | None]]
) -> CutVocabulary | None:
    """The least `--min-count` that trains the row that is used most, if that is often."""
    start, stop = meta.splits["test"]
    split = "test" if stop > start else "validation"
    place = max(range(len(meta.features)), key=lambda n: shares[meta.features[n].name][split] or 0.0)
    feature = meta.features[place]
    now, counts = shares[feature.name][split] or 0.0, read_counts(folder, meta, place)
    if "vocabulary_of" in meta.options or now < LARGE or counts[feature.out_of_vocabulary]:
        return None
    total, positives = max(int(counts.sum()), 1), read_counts(folder, meta, place, positives=True)
    for min_count in MIN_COUNTS:
        training = int(counts[positives < min_count].sum()) / total
        if training >= ENOUGH:
            break
    else:
        return CutVocabulary(feature.name, split, now)
    every_count = [read_counts(folder, meta, n, positives=True) for n in range(len(meta.features))]
    known = [
        np.delete(found, f.out_of_vocabulary) >= min_count
        for f, found in zip(meta.features, every_count, strict=True)
    ]
    rare = positives < min_count
    rare[feature.out_of_vocabulary] = True
    return CutVocabulary(
        feature.name,
        split,
        now,
        min_count,
        share_of(folder, meta, feature, split, rare) or 0.0,
        training,
        sum(f.rows for f in meta.features),
        sum(int(of_feature.sum()) + 1 for of_feature in known),
    )


def _written(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
