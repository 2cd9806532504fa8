"""An encoder that is slow and made of plain dictionaries, to compare prepared folders with."""

from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
needs_real_data = pytest.mark.skipif(not SHARED.is_dir(), reason=f"there is no {SHARED}")


def slow_vocabulary(training, min_count):
    """Rows (value, kind, count) in the order of their ids; None is the missing value."""
    counts = Counter(training)
    known = {value: count for value, count in counts.items() if count >= min_count}
    rare = sum(count for value, count in counts.items() if value not in known)
    rows = [(value, "missing" if value is None else "value", n) for value, n in known.items()]
    rows.append((None, "out_of_vocabulary", rare))
    kinds = ["value", "missing", "out_of_vocabulary"]
    return sorted(rows, key=lambda row: (-row[2], kinds.index(row[1]), *([row[0]] if row[0] else [])))


def slow_encode(values, vocabulary):
    ids = {row[0]: i for i, row in enumerate(vocabulary) if row[1] != "out_of_vocabulary"}
    other = [row[1] for row in vocabulary].index("out_of_vocabulary")
    return [ids.get(value, other) for value in values]


def check_feature(out, meta, index, values, ids, min_count=1):
    """Compare a feature's vocabulary and ids; `values` are in the order of the folder."""
    train = values[: len_train(meta, values)]
    flat = [v for row in train for v in row] if meta.features[index].bag else train
    expected = slow_vocabulary(flat, min_count)
    table = pl.read_parquet(out / "vocabulary" / f"{index}.parquet")
    assert table.columns == ["id", "value", "kind", "count"]
    assert table.schema["id"] == pl.Int32
    assert table.schema["count"] == pl.Int64
    assert table["id"].to_list() == list(range(len(expected)))
    assert table.select("value", "kind", "count").rows() == expected
    everything = [v for row in values for v in row] if meta.features[index].bag else values
    assert slow_encode(everything, expected) == list(ids)
    feature = meta.features[index]
    assert feature.rows == len(expected)
    assert feature.source_values == len(set(everything))
    assert expected[feature.out_of_vocabulary][1] == "out_of_vocabulary"


def len_train(meta, values):
    assert len(values) == meta.num_rows
    return meta.splits["train"][1]


def arrays(out):
    return {p.stem: np.load(p) for p in out.glob("*.npy")}
