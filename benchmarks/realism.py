"""Does synthetic data rank compression as real data does? A table of facts, and of test losses.

Without --data it generates both kinds of clicks: criteo-like, without and with --realistic. Of each
folder: how well single fields predict clicks (AUC on the test split of a field's smoothed click rates in
training), how many test lookups of the largest field training never saw, and DLRM's test log loss with
tables of width 16 and, as differences from it, with three plans of at most 1/8 of their bytes: width 2,
mixed widths, and every field above a cap hashed to so many rows. Real: what issue 15 quotes.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import mixdim
import mixdim.data
from mixdim._util.text import align
from mixdim.data.inspect import inspect
from mixdim.lab.synthetic.generate import generate_criteo_like, generate_realistic_clicks
from mixdim.runs.config import RunConfig
from mixdim.runs.run import Run
from mixdim.tasks.metrics import auc

WIDTH, SHARE = 16, 8
PRIOR_ROWS = 20  # a click rate is smoothed as if so many rows with the mean rate had been seen
PROTOCOL = RunConfig.of(
    model="dlrm",
    preset="clicks",
    bottom=(64,),
    top=(64, 32),
    lr=3e-3,
    batch_size=512,
    epochs=4,
    patience=1,
    evaluations_per_epoch=1,
)
REAL = {
    "best AUC of one field": ".65-.72",
    "unseen, largest field": "33-51%",
    "uniform 2": "+.00 (3 of 4)",
    "mixed": "+.00",
    "hashed": "+.02",
}


def single_field_aucs(dataset: mixdim.data.Dataset) -> dict[str, float]:
    """Of each field, the AUC on the test split of its smoothed click rates in training."""
    columns: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for split in ("train", "test"):
        batches = list(dataset.batches(split, batch_size=1 << 16))
        ids = np.concatenate([batch.ids.numpy() for batch in batches])
        columns[split] = ids, np.concatenate([batch.target.numpy() for batch in batches])
    (train, clicks), (test, wanted) = columns["train"], columns["test"]
    found = {}
    for n, (name, rows) in enumerate(dataset.cardinalities.items()):
        shown = np.bincount(train[:, n], minlength=rows)
        clicked = np.bincount(train[:, n], weights=clicks, minlength=rows)
        rates = (clicked + PRIOR_ROWS * clicks.mean()) / (shown + PRIOR_ROWS)
        found[name] = auc(rates[test[:, n]], wanted) or 0.5
    return found


def hashed_above_a_cap(uniform: mixdim.Plan, most_bytes: int) -> mixdim.Plan:
    """Every feature with more rows than a cap shares so many; the largest cap within the bytes."""

    def at(cap: int) -> mixdim.Plan:
        plan = uniform
        for feature in uniform.features:
            if feature.rows > cap:
                storage = mixdim.Hashed(uniform.base_dim, buckets=cap, hashes=1)
                plan = plan.with_storage(feature.name, storage)
        return plan

    least, most = 1, max(feature.rows for feature in uniform.features)
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if at(middle).nbytes() <= most_bytes else (least, middle - 1)
    return at(least)


def plans_of(dataset: mixdim.data.Dataset) -> dict[str, mixdim.Plan]:
    uniform = mixdim.plan(dataset, temperature=0, base_dim=WIDTH)
    most_bytes = uniform.nbytes() // SHARE
    return {
        f"uniform {WIDTH}": uniform,
        f"uniform {WIDTH // SHARE}": mixdim.plan(dataset, temperature=0, base_dim=WIDTH // SHARE),
        "mixed": mixdim.plan(dataset, temperature=0.3, budget=f"{most_bytes}B"),
        "hashed": hashed_above_a_cap(uniform, most_bytes),
    }


def test_loss(dataset: mixdim.data.Dataset, plan: mixdim.Plan, seed: int) -> float:
    with TemporaryDirectory() as folder:
        plan.save(Path(folder) / "plan.json")
        asked = RunConfig(data=str(dataset.path), plan=f"{folder}/plan.json", seed=seed)
        summary = Run.create(Path(folder) / "run", asked.merged_with(PROTOCOL)).train()
        return float(summary["test"]["best"]["log_loss"])


def facts_of(folder: Path, seeds: int) -> dict[str, str]:
    dataset = mixdim.data.open(folder)
    aucs = sorted(single_field_aucs(dataset).items(), key=lambda item: -item[1])
    largest = max(inspect(folder).features, key=lambda feature: feature.rows)
    facts = {
        "best AUC of one field": f"{aucs[0][1]:.3f} ({aucs[0][0]})",
        "second and third": ", ".join(f"{value:.3f} ({name})" for name, value in aucs[1:3]),
        "unseen, largest field": f"{largest.out_of_vocabulary_test:.1%} ({largest.name})",
    }
    reference: list[float] = []
    for name, plan in plans_of(dataset).items():
        losses = [test_loss(dataset, plan, seed) for seed in range(seeds)]
        reference = reference or losses
        facts[name] = _loss(losses, None if reference is losses else reference)
        print(f"{folder.name}: {name}, {plan.nbytes():,} bytes: {facts[name]}", flush=True)
    truth = dataset.meta.truth or {}
    if "realised_log_loss" in truth:
        facts["best possible"] = f"{truth['realised_log_loss']['test']:.4f}"
    facts["training rows, table rows"] = (
        f"{dataset.splits['train'][1]:,}, {sum(dataset.cardinalities.values()):,}"
    )
    return facts


def _loss(losses: Sequence[float], reference: Sequence[float] | None) -> str:
    """Mean and standard deviation over seeds: of losses, or of differences at the same seed."""
    shown = losses if reference is None else [a - b for a, b in zip(losses, reference, strict=True)]
    spread = statistics.stdev(shown) if len(shown) > 1 else 0.0
    return f"{statistics.mean(shown):{'' if reference is None else '+'}.4f} ±{spread:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, nargs="*", help="prepared folders of clicks, instead")
    parser.add_argument("--rows", type=int, default=300_000, help="rows to generate")
    parser.add_argument("--data-seed", type=int, default=0, help="of the generators")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each plan")
    options = parser.parse_args()
    makers: dict[str, Callable[..., object]] = {
        "old": generate_criteo_like,
        "realistic": generate_realistic_clicks,
    }
    with TemporaryDirectory() as place:
        folders = options.data or [Path(place) / name for name in makers]
        if not options.data:
            for folder in folders:
                makers[folder.name](folder, rows=options.rows, seed=options.data_seed)
        found = {folder.name: facts_of(folder, options.seeds) for folder in folders}
    names = list(dict.fromkeys(name for facts in found.values() for name in facts))
    lines = [["", "real (issue 15)", *found]]
    lines += [
        [name, REAL.get(name, ""), *(facts.get(name, "") for facts in found.values())] for name in names
    ]
    print("\n" + "\n".join(align(lines)))


if __name__ == "__main__":
    main()
