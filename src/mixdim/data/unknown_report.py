"""What `prepare` says of values that training never saw: the shares of lookups, and what to do.

Knows nothing about models or raw files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mixdim._util.text import align, printable
from mixdim.data.arrays import read_counts
from mixdim.data.folder import Meta
from mixdim.data.unknown_values import HELD_OUT, share_of, unknown_shares

SHOWN = 30  # features; of more only those that ask most
LARGE = 0.05  # share of a feature's lookups held out that is worth an advice
ENOUGH = 0.01  # share of a feature's training lookups that train the row for unknown values
MIN_COUNTS = (2, 3, 4, 5, 6, 8, 10)  # to be tried


@dataclass(frozen=True)
class CutVocabulary:
    """What `--min-count` would make of a folder; shares are of one feature's lookups.

    A `min_count` of None says that none of those tried makes enough values unknown to training rows.
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
        asked = (
            f"{self.unknown_now:.1%} of the lookups in {held_out} of {feature} are of the row for "
            "unknown values,\nwhich no training row asks for. "
        )
        if self.min_count is None:
            return (
                f"{asked}--min-count would not help, as hardly a value is rare;\n"
                "mixdim train --unknown-dropout trains it a little"
            )
        return (
            f"{asked}--min-count {self.min_count} would train it on {self.training:.1%} of the training "
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
    if len(names) > SHOWN:
        names = sorted(names, key=lambda name: -most[name])[:SHOWN]
    lines = [[name, *(_written(shares[name][split]) for split in splits)] for name in names]
    others = [share for name, share in most.items() if name not in {*names}]
    more = [f"and at most {max(others):.1%} of {len(others):,} other features"] if others else []
    table = align([["unknown values, share of lookups", *splits], *lines])
    cut = _cut_vocabulary(folder, meta, shares)
    return [*table, *more, *([] if cut is None else [str(cut)])]


def _cut_vocabulary(
    folder: Path, meta: Meta, shares: dict[str, dict[str, float | None]]
) -> CutVocabulary | None:
    """The least `--min-count` that trains the row which is asked for most, if that is often."""
    start, stop = meta.splits["test"]
    split = "test" if stop > start else "validation"
    place = max(range(len(meta.features)), key=lambda n: shares[meta.features[n].name][split] or 0.0)
    feature = meta.features[place]
    now, counts = shares[feature.name][split] or 0.0, read_counts(folder, meta, place)
    if "vocabulary_of" in meta.options or now < LARGE or counts[feature.out_of_vocabulary]:
        return None
    total = max(int(counts.sum()), 1)
    for min_count in MIN_COUNTS:
        training = int(counts[counts < min_count].sum()) / total
        if training >= ENOUGH:
            break
    else:
        return CutVocabulary(feature.name, split, now)
    every_count = [
        counts if n == place else read_counts(folder, meta, n) for n in range(len(meta.features))
    ]
    known = [
        np.delete(found, f.out_of_vocabulary) >= min_count
        for f, found in zip(meta.features, every_count, strict=True)
    ]
    rare = counts < min_count
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
