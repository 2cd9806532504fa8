"""What same_bits.py must know of mixdim's names: this file alone follows when they change.

Each function takes the new name where there is one, else the old one. Everything else uses the command
line, and of the library only what stays: `mixdim.plan`, the two layers, `layer.dense_weight(name)`,
`layer.load_blocks`, `plan.features`, `block.size`, `block.start`, `block.storage`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import mixdim


def rows(dim: int, bits: int = 32) -> Any:
    """The storage of rows of their own: `Rows(4, bits=8)`, once `Quantised(4, 8)` and `Narrow(4)`."""
    new: Any = getattr(mixdim, "Rows", None)
    if new is not None:
        return new(dim, bits=bits)
    old: Any = mixdim
    return old.Narrow(dim) if bits == 32 else old.Quantised(dim, bits)


def stored_shape(block: Any, base_dim: int) -> tuple[int, ...]:
    """The shape of `tables[i]` that `layer.load_blocks` takes for this block.

    THE HOOK: where a storage says its shape in another way, or `load_blocks` is called in another way
    (`load_block` below), say it here.
    """
    storage = block.storage
    if storage.shared_parameters:
        return (storage.shared_parameters,)
    return storage.stored_rows(block.size), storage.width(base_dim)


def load_blocks(layer: Any, feature: str, tables: list[Any], projections: list[Any]) -> None:
    """Copy stored rows and projections (None at full width) into the blocks of a feature."""
    layer.load_blocks(feature, tables, projections)


def storage_words(storage: Any) -> str:
    """A storage in words that no renaming changes."""
    kind = type(storage).__name__
    if kind in ("Narrow", "Quantised", "Rows"):
        return f"rows of {storage.dim} numbers of {getattr(storage, 'bits', 32)} bits"
    known = ("dim", "buckets", "hashes", "length")
    return " ".join([kind, *(f"{n}={getattr(storage, n)}" for n in known if hasattr(storage, n))])


def quantized(model: Any, bits: int) -> Any:
    """A copy of a model or layer whose tables are rounded."""
    names: Any = mixdim
    function = names.quantize if hasattr(names, "quantize") else names.quantise
    return function(model, bits)


def rounding(function: Any, bits: int) -> dict[str, Any]:
    """The argument of a function that rounds tables: `bits=8`, once `quantise="int8"`; for none 32."""
    known = inspect.signature(function).parameters
    if "bits" in known:
        return {"bits": bits or 32}
    if not bits:
        return {}
    return {"quantize" if "quantize" in known else "quantise": f"int{bits}"}


def rounding_flags(command: str, bits: int, flags: list[str]) -> list[str]:
    """Flags of a command with those that round: `--bits 8`, once `--quantise int8`.

    Bytes of a budget are those of rounded tables: once, `--method int8:mixed` said so.
    """
    if not bits:
        return flags
    if "--bits" in _help(command):
        return [*flags, "--bits", str(bits)]
    if "--method" in flags:
        place = flags.index("--method") + 1
        return [*flags[:place], f"int{bits}:{flags[place]}", *flags[place + 1 :]]
    return [*flags, "--quantise", f"int{bits}"]


@cache
def _help(command: str) -> str:
    from same_bits_child import run_command

    return run_command([command, "--help"])


def metrics_of_run(folder: Path) -> Iterator[tuple[str, float]]:
    """What a run measured: losses and metrics of its summary and of its curve, and no times."""
    summary = json.loads((folder / "summary.json").read_bytes())
    for split in ("validation", "test"):
        yield from _numbers(summary[split], split)
    for number, line in enumerate((folder / "metrics.jsonl").read_text().splitlines()):
        yield from _numbers(json.loads(line), f"line {number}")


NO_METRIC = ("second", "time", "memory")


def _numbers(value: Any, place: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for name in sorted(value):
            if not any(word in name for word in NO_METRIC):
                yield from _numbers(value[name], f"{place} {name}")
    elif isinstance(value, int | float):
        yield place, float(value)


def open_data(folder: Path) -> Any:
    """A prepared folder."""
    import mixdim.data

    return mixdim.data.open(folder)


def total_error(tables: Any, plan: Any, counts: Any) -> float:
    """The share of the tables that no layer of a plan can hold, computed here for every version.

    Rows count by popularity. It is the same formula as mixdim's own, which may move.
    """
    import numpy as np

    whole = lost = 0.0
    for feature in plan.features:
        table, count = tables[feature.name], np.asarray(counts[feature.name], dtype=np.float64)
        order = plan.orders.get(feature.name, np.arange(len(table)))
        for block in feature.blocks:
            ids = order[block.start : block.start + block.size]
            weighted = np.sqrt(count[ids] / count.sum())[:, None] * table[ids]
            energies = np.linalg.svd(weighted, compute_uv=False) ** 2
            whole, lost = whole + energies.sum(), lost + energies[block.storage.dim :].sum()
    return float(lost / whole)
