"""How often rows held out ask for values that training never saw, and what to do about it.

Knows nothing about models. All unknown values of a feature share one row; if no training row ever asked
for it, a model has learned nothing there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mixdim.data.arrays import chunks_of
from mixdim.data.folder import SPLITS, FeatureMeta, Meta, bag_file

HELD_OUT = SPLITS[1:]
WORTH_A_WORD = 0.01  # a smaller share of a feature's lookups changes little
NAMED = 3  # features in the advice


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
    """Say which features ask most for rows that were never trained; None if it hardly matters.

    `lookups` has for each feature its shares in "validation" and "test", None of nothing, and in
    "trained" whether the row was; `prepared` says whether the data can be prepared in another way.

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
