"""What widths chosen from trained tables lose, in this checkout and in another.

    git worktree add /tmp/before HEAD~1
    python benchmarks/choosers.py RUN ... --other /tmp/before

RUN is a run of `mixdim train --temperature 0`; a synthetic set of tables is always there. Each checkout
chooses for the same tables at 1/4 to 1/64 of their bytes, by `mixdim.compress` (ids are shuffled, so the
ranks of ids are part of the budget) and by `mixdim.spectral_plan`. Errors are measured here, alike for
both: from dense matrices, and from singular values. The last line is the largest ratio of them.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn

import mixdim

FACTORS = (4, 8, 16, 32, 64)
Tables = dict[str, tuple[np.ndarray, np.ndarray]]  # by feature: vectors and counts
Line = tuple[str, float, int, float]  # which, the share of the energy that is lost, bytes, seconds


def synthetic() -> Tables:
    """Tables of a falling spectrum and of counts with a long tail, some rows never looked up."""
    rng, tables = np.random.default_rng(0), {}
    for name, rows, width, decay in (("a", 20_000, 32, 0.9), ("b", 3_000, 32, 0.6), ("c", 300, 8, 0.8)):
        vectors = rng.normal(size=(rows, width)) * decay ** np.arange(width)
        vectors = vectors @ np.linalg.qr(rng.normal(size=(width, width)))[0]
        tables[name] = vectors.astype(np.float32), rng.zipf(1.4, rows).clip(max=10**5) - 1
    return tables


def of_run(path: Path) -> Tables:
    """What a run learned, with ids in no order."""
    from mixdim.runs.models import tables_of
    from mixdim.runs.run import Run

    run, rng = Run.open(path), np.random.default_rng(0)
    dataset, tables = run.dataset(), {}
    for name, table in tables_of(run.model()).items():
        order = rng.permutation(len(table))
        tables[name] = table[order], np.asarray(dataset.counts[name])[order]
    return tables


def chosen(name: str, tables: Tables) -> list[Line]:
    """What this checkout makes of the tables."""
    lines = []
    for factor in FACTORS:
        ways: tuple[tuple[str, dict[str, object]], ...] = (
            ("compress", {}),
            ("compress, min_dim 1", {"min_dim": 1}),
            ("compress, 1 band", {"bands": 1}),
            ("compress, octaves", {"bands": "octaves"}),
            ("compress, 8 bits", _eight_bits()),
        )
        for label, options in ways:
            start = time.perf_counter()
            found = by_compress(tables, f"1/{factor}", options)
            if found is not None:
                lines.append((f"{name} 1/{factor} {label}", *found, time.perf_counter() - start))
        for bands in (1, 8):
            for rounding in ("power_of_two", "integer"):
                label, start = f"spectral_plan, {bands} bands, {rounding}", time.perf_counter()
                found = by_spectral_plan(tables, factor, bands, rounding)
                if found is not None:
                    lines.append((f"{name} 1/{factor} {label}", *found, time.perf_counter() - start))
    return lines


def _eight_bits() -> dict[str, object]:
    by_text = "quantise" in inspect.signature(mixdim.compress).parameters  # an earlier checkout
    return {"quantise": "int8"} if by_text else {"bits": 8}


def by_compress(tables: Tables, budget: str, options: dict[str, object]) -> tuple[float, int] | None:
    """The weighted squares that are lost of all tables, and bytes."""
    model = nn.ModuleDict({
        name: nn.Embedding.from_pretrained(torch.from_numpy(table.copy()), freeze=False)
        for name, (table, _) in tables.items()
    })  # fmt: skip
    counts = {name: seen for name, (_, seen) in tables.items()}
    try:
        result = mixdim.compress(model, counts, budget, echo=None, **options)  # type: ignore[arg-type]
    except ValueError:
        return None
    lost = whole = 0.0
    for name, (table, seen) in tables.items():
        dense = model[name].weight.detach().numpy()  # type: ignore[operator]
        lost += float(seen @ ((table.astype(np.float64) - dense) ** 2).sum(axis=1))
        whole += float(seen @ (table.astype(np.float64) ** 2).sum(axis=1))
    return lost / whole, result.bytes_after


def by_spectral_plan(tables: Tables, factor: int, bands: int, rounding: str) -> tuple[float, int] | None:
    """The squares that the best tables of a plan lose, and bytes."""
    vectors = {name: table for name, (table, _) in tables.items()}
    counts = {name: seen for name, (_, seen) in tables.items()}
    budget = sum(table.size for table in vectors.values()) // factor
    try:
        plan = mixdim.spectral_plan(
            vectors,
            counts=counts,
            bands=bands,
            budget=budget,
            rounding=rounding,  # type: ignore[arg-type]
        )
    except ValueError:
        return None
    lost = whole = 0.0
    for feature in plan.features:
        probs = counts[feature.name] / counts[feature.name].sum()
        weighted = np.sqrt(probs)[:, None] * vectors[feature.name]
        weighted = weighted[plan.orders.get(feature.name, np.arange(len(weighted)))]
        for block in feature.blocks:
            rows = weighted[block.start : block.start + block.size]
            squares = np.linalg.svd(rows, compute_uv=False) ** 2
            lost, whole = lost + squares[block.dim :].sum(), whole + squares.sum()
    return lost / whole, 4 * plan.num_parameters


def compare(tables: dict[str, Tables], other: Path) -> None:
    """Let both checkouts choose, each in a process of its own, and print what they found."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "tables.npz"
        arrays: dict[str, Any] = {}
        for name, of_name in tables.items():
            for feature, (table, counts) in of_name.items():
                arrays[f"{name}/{feature}/table"] = table
                arrays[f"{name}/{feature}/counts"] = counts
        np.savez(file, **arrays)
        both = []
        for source in (other / "src", Path(mixdim.__file__).parent.parent):
            environment = {**os.environ, "PYTHONPATH": str(source)}
            command = [sys.executable, __file__, "--tables", str(file)]
            both.append(json.loads(subprocess.check_output(command, env=environment)))
    ratios = []
    for before, after in zip(*both, strict=True):
        assert before[0] == after[0]
        ratio = after[1] / before[1] if before[1] > 1e-12 else float(after[1] > 1e-12) + 1
        ratios.append(ratio)
        same = "" if before[1:3] == after[1:3] else " *"
        print(
            f"{before[0]:52} lost {before[1]:.6f} {after[1]:.6f} ({ratio:.5f}), bytes {before[2]:,} "
            f"{after[2]:,}, {before[3]:.2f} s {after[3]:.2f} s{same}"
        )
    print(f"{len(ratios)} choices: errors at most {max(ratios):.5f} and at least {min(ratios):.5f}")


def main() -> None:
    """Read the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--other", type=Path, help="the other checkout")
    parser.add_argument("--tables", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.tables is None:
        compare(
            {**{run.name: of_run(run) for run in options.runs}, "synthetic": synthetic()}, options.other
        )
        return
    found: dict[str, Tables] = {}
    with np.load(options.tables) as arrays:
        for key in arrays:
            name, feature, kind = key.split("/")
            if kind == "table":
                pair = arrays[key], arrays[f"{name}/{feature}/counts"]
                found.setdefault(name, {})[feature] = pair
    print(json.dumps([line for name, tables in found.items() for line in chosen(name, tables)]))


if __name__ == "__main__":
    main()
