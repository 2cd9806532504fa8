"""A trained run made small: a new run folder whose tables are fitted to what the old ones learned.

Trains nothing. Ids of prepared data are ranks of popularity, so their places need no bytes.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from mixdim._util.files import follow_links, write_atomically
from mixdim._util.folders import partial_folder, put_in_place, tidy_up
from mixdim._util.locks import alone_at_work
from mixdim.compression.compress import share_of
from mixdim.data import Dataset
from mixdim.layer.fill import fill
from mixdim.layer.sources import MatrixSource
from mixdim.models import Model
from mixdim.planning.bands import Bands
from mixdim.planning.budget import parse_bytes
from mixdim.planning.from_tables import choose
from mixdim.planning.plan import Plan
from mixdim.planning.table_options import Choice
from mixdim.planning.trained_table import TrainedTable
from mixdim.runs.config import RunConfig
from mixdim.runs.folder import CONFIG, PLAN, SUMMARY, is_run
from mixdim.runs.loss_metrics import loss_metrics
from mixdim.runs.models import (
    as_served,
    build_model,
    bytes_of,
    embedding_bytes,
    tables_of,
)
from mixdim.runs.plans import vector_bytes
from mixdim.runs.summary import sizes_of
from mixdim.storages.rows import check_bits
from mixdim.training import Checkpoints, evaluate
from mixdim.training.evaluation import Progress
from mixdim.training.ranking import ranking_metrics

if TYPE_CHECKING:
    from mixdim.runs.run import Run

# What a plan says instead.
DECIDED_BY_PLAN = ("temperature", "base_dim", "budget", "bands", "rounding", "min_dim", "method", "bits")


@dataclass(frozen=True)
class CompressedRun:
    """What became of a run: its plan, and metrics and bytes before and after.

    `bytes_before` and `bytes_after` are of all that grows with ids, `model_bytes` of the whole model.
    First-order weights and MF's biases are not made narrower, but take fewer bits.
    """

    plan: Plan
    before: dict[str, Any]
    after: dict[str, Any]
    bytes_before: int
    bytes_after: int
    model_bytes: tuple[int, int]
    data: Path


def compress_run(
    run: Run,
    out: Path,
    dataset: Dataset,
    *,
    budget: str,
    bits: int = 32,
    bands: Bands = 8,
    by_loss: bool = True,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> CompressedRun:
    """Fit small tables to those of a run's best weights, and write them as a run of their own.

    `budget` is of all that grows with ids, its embeddings and first-order weights or biases: bytes such
    as "4MB", or a share such as "1/8" of what they take. With `by_loss`, directions count by how much
    the loss feels them, on rows to train on. With `bits` 8 or 4, rows are quantized too.
    """
    bits = check_bits(bits)
    if run.summary is None:  # which says by which vocabulary, and how, it was trained
        raise ValueError(f"{run.path} has not come to its end: mixdim train --resume --out {run.path}")
    place = follow_links(out)
    tidy_up(place)
    _check_free(out, run.path, overwrite=overwrite)
    learned = run.load(dataset, served=False)
    before = as_served(learned.model, run.plan)
    bytes_before = embedding_bytes(before)
    share = share_of(budget, bytes_before)
    num_bytes = vector_bytes(
        run.config, dataset.cardinalities, parse_bytes(budget) if share is None else share, bits
    )
    chosen = _choose(run.config, run.plan, learned.model, dataset, num_bytes, bands, bits, by_loss)
    provenance = {"rule": "compressed", "was": dict(run.plan.provenance)}
    features = tuple(choice.plan.features[0] for _, choice in chosen)
    plan = Plan(run.plan.base_dim, provenance, features)
    decided: dict[str, Any] = dict.fromkeys(DECIDED_BY_PLAN)
    config = replace(
        run.config,
        **decided,
        plan=str((out / PLAN).resolve()),
        data=str(dataset.path.resolve()),
    )
    model = _fitted(learned.model, config, plan, chosen, dataset)
    small = as_served(model, plan)
    measured = {
        split: _measure(small, config, dataset, split, progress) for split in ("validation", "test")
    }
    measured_before = _measure(before, config, dataset, "validation", progress)
    summary = _summary(run, learned.step, config, plan, small, dataset, measured)
    place.parent.mkdir(parents=True, exist_ok=True)
    with partial_folder(place) as folder:
        write_atomically(folder / CONFIG, config.to_toml())
        plan.save(folder / PLAN)
        _save_weights(folder, model, learned.step, measured["validation"])
        write_atomically(folder / SUMMARY, json.dumps(summary, indent=2) + "\n")
        with alone_at_work(place) if place.exists() else nullcontext():
            put_in_place(folder, place, replace=True)
    after, bytes_after = measured["validation"], embedding_bytes(small)
    model_bytes = bytes_of(before), bytes_of(small)
    return CompressedRun(
        plan, measured_before, after, bytes_before, bytes_after, model_bytes, dataset.path
    )


def _check_free(out: Path, path: Path, *, overwrite: bool) -> None:
    """Refuse a folder that may not be replaced, before there is any work."""
    if out.resolve() == path.resolve():
        raise ValueError(f"--out must be another folder than the run {path}")
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not is_run(out):
        raise FileExistsError(f"{out} exists and is no run, so nothing is written there")
    if not overwrite:
        raise FileExistsError(f"{out} exists already; --overwrite replaces it")


def _choose(
    config: RunConfig,
    plan: Plan,
    model: Model,
    dataset: Dataset,
    num_bytes: int,
    bands: Bands,
    bits: int,
    by_loss: bool,
) -> list[tuple[TrainedTable, Choice]]:
    """What was learned of each feature, and how to serve it."""
    tables, lookups = tables_of(model), _lookups_of(config, dataset)
    metrics = loss_metrics(model, dataset) if by_loss else {}
    trained = [
        TrainedTable(
            name, torch.from_numpy(tables[name]), dataset.counts[name], metric=metrics.get(name)
        )
        for name in plan
    ]
    chosen = choose(trained, num_bytes, bands=bands, bits=[bits])
    assert all(choice.bands is None for choice in chosen)  # since ids are ranks
    return [
        (replace(table, counts=lookups[table.name]), choice)
        for table, choice in zip(trained, chosen, strict=True)
    ]


def _fitted(
    old: Model,
    config: RunConfig,
    plan: Plan,
    chosen: list[tuple[TrainedTable, Choice]],
    dataset: Dataset,
) -> Model:
    """The run's model with other tables, not quantized, and all else as it learned it."""
    model = build_model(config, plan.trainable(), num_dense=dataset.num_dense, mean=0.0)
    of_tables = _table_keys(model)
    learned = old.state_dict()
    others = {name: learned[name] for name in model.state_dict() if name not in of_tables}
    model.load_state_dict(others, strict=False)
    by_name = {table.name: table for table, _ in chosen}
    for layer in model.embedding_layers():
        for number, name in enumerate(layer.plan):
            table = by_name[name]
            counts = torch.from_numpy(table.row_probs)
            source = MatrixSource(table.weight, layer.ids, number, counts)
            fill(layer, name, source, None if table.metric is None else torch.from_numpy(table.metric))
    return model


def _table_keys(model: Model) -> set[str]:
    layers = {id(layer) for layer in model.embedding_layers()}
    return {
        key
        for name, module in model.named_modules()
        if id(module) in layers
        for key in module.state_dict(prefix=f"{name}.")
    }


def _lookups_of(config: RunConfig, dataset: Dataset) -> dict[str, np.ndarray]:
    """How much each row counts: its lookups in training, those made unknown by dropout included.

    A row that was never looked up still counts a little, so that its band is not fitted to nothing.
    """
    lookups = {}
    for feature in dataset.meta.features:
        counts = dataset.counts[feature.name].astype(np.float64)
        if config.unknown_dropout:
            counts[feature.out_of_vocabulary] += (counts / (1 + counts)).sum()
        lookups[feature.name] = counts + 1e-6 * max(counts.mean(), 1e-6)
    return lookups


def _measure(
    model: nn.Module, config: RunConfig, dataset: Dataset, split: str, progress: Progress | None
) -> dict[str, Any]:
    assert config.batch_size is not None
    measured = evaluate(
        model,
        dataset,
        split,
        batch_size=config.batch_size,
        slice_by=config.slice_by,
        progress=progress,
    )
    if split == "test":
        sample = config.ranking_sample
        measured |= ranking_metrics(model, dataset, split, sample=sample, progress=progress)
    return measured


def _summary(
    run: Run,
    step: int,
    config: RunConfig,
    plan: Plan,
    model: Model,
    dataset: Dataset,
    measured: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    """What the old run's summary says, where it is still true, and what is new."""
    old = dict(run.summary or {})
    place = {"step": step, "epoch": old.get("validation", {}).get("best", {}).get("epoch")}
    if old.get("data_fingerprint") != dataset.fingerprint:  # other rows, by the same vocabulary
        old |= {"baselines": {}, "unknown_lookups": {}}
    layers = model.embedding_layers()
    empty = {name: None for name in DECIDED_BY_PLAN if name in old}
    return {
        **old,
        **empty,
        "plan": config.plan,
        "provenance": dict(plan.provenance),
        "base_dim": plan.base_dim,
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "embedding_parameters": sum(layer.num_parameters for layer in layers),
        **sizes_of(model),
        "bits": plan.least_bits,
        "widths": {feature.name: [block.dim for block in feature.blocks] for feature in plan.features},
        **{
            split: {which: {**metrics, **place} for which in ("best", "last")}
            for split, metrics in measured.items()
        },
        "data": config.data,
        "data_fingerprint": dataset.fingerprint,
        "compressed_from": str(run.path.resolve()),
    }


def _save_weights(folder: Path, model: nn.Module, step: int, metrics: dict[str, Any]) -> None:
    """Write the weights as the best and as the last of a run."""
    tensors = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
    checkpoints, best = Checkpoints(folder / "checkpoint"), {"step": step, **metrics}
    for kind in ("best", "step"):
        checkpoints.save(kind, step, tensors, {"best": best})
