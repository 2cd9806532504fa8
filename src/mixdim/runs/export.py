"""A run as a file to serve: the model, its vocabularies, and how good and fast it is. Trains nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import mixdim
from mixdim._util.files import follow_links, written_atomically
from mixdim.data import Batch, Dataset
from mixdim.data.folder import SPLITS
from mixdim.data.row_encoder import RowEncoder
from mixdim.models import Model
from mixdim.planning.budget import format_bytes
from mixdim.planning.plan import Plan
from mixdim.runs.predict import PredictBatch, outputs_of_file
from mixdim.serving.exporting import export
from mixdim.serving.onnx_file import files_of
from mixdim.serving.session import ServedModel, inputs_of
from mixdim.serving.timing import measure, threads
from mixdim.storages.rows import check_bits
from mixdim.tasks import task_of
from mixdim.training.evaluation import Outputs, Progress, outputs_of

if TYPE_CHECKING:
    from mixdim.runs.run import Run

UNKNOWN = ("clip", "refuse")
LOOKS = (1, 256)  # batches that an export is timed with


def export_run(
    run: Run,
    out: Path,
    dataset: Dataset,
    *,
    bits: int | None,
    format: str | None,
    unknown: str,
    weights: str,
    split: str,
    overwrite: bool,
    progress: Progress | None,
    echo: Callable[[str], None] | None,
) -> None:
    """Write a run's model for other runtimes, and its vocabularies beside it; `echo` gets lines."""
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    if unknown not in UNKNOWN:
        raise ValueError(f"unknown must be {' or '.join(UNKNOWN)}, got {unknown!r}")
    side, own = vocabulary_path(out), run.plan.least_bits
    for path in (out, side):
        if follow_links(path).exists() and not overwrite:
            raise FileExistsError(f"{path} exists already; --overwrite replaces it")
    if bits is not None and own < 32 and check_bits(bits) != own:
        raise ValueError(f"{run.path} is quantized to {own} bits already, so bits cannot be {bits}")
    loaded, features = run.load(dataset, weights), dataset.meta.features
    with written_atomically(side) as temporary:
        temporary.write_text(json.dumps(RowEncoder.of_folder(dataset.path).document()), encoding="utf-8")
        export(
            loaded.model,
            out,
            format=format,
            bits=32 if bits is None or not run.plan.is_trained else bits,
            task=dataset.task,
            bags=[feature.name for feature in features if feature.bag],
            unknown={f.name: f.out_of_vocabulary for f in features} if unknown == "clip" else None,
            overwrite=overwrite,
            about={
                "run": str(run.path),
                "step": loaded.step,
                "vocabulary_fingerprint": dataset.vocabulary_fingerprint,
                "mixdim": mixdim.__version__,
            },
        )
    if echo is None:
        return
    for line in _sizes(out, run.plan, bits or own):
        echo(line)
    format = format or out.suffix.removeprefix(".")
    predict = pt2_opener(out, dataset) if format == "pt2" else onnx_opener(out)
    if dataset.splits[split][1] > dataset.splits[split][0]:
        assert run.config.batch_size is not None
        size = min(run.config.batch_size, 4096)
        before, after = _losses(loaded.model, predict, dataset, split, size, progress)
        words = task_of(dataset.task).objective_words
        echo(f"{words} on {split}: {before:.6f} before, {after:.6f} after ({after - before:+.1e})")
    with threads(1):
        for number in LOOKS:
            timing = measure({"": partial(predict, batch_of(dataset, number))})[""]
            echo(f"batch of {number}: {timing} of one processor")


def _sizes(out: Path, plan: Plan, bits: int) -> Iterator[str]:
    """What was written, in bytes, and what of the plan was not quantized."""
    for path in (*files_of(out), vocabulary_path(out)):
        yield f"{path}: {format_bytes(path.stat().st_size)}"
    blocks = plan.quantized(bits).blocks
    kinds = {block.storage.kind for block in blocks if block.dim and block.storage.is_trained}
    if bits < 32 and kinds:
        yield f"not quantized: blocks stored as {', '.join(sorted(kinds))}"


def vocabulary_path(model: Path) -> Path:
    """The file beside a model that says which id a value has."""
    return model.with_name(f"{model.name}.vocabulary.json")


def onnx_opener(path: Path, *, threads: int = 1) -> PredictBatch:
    """Open an ONNX file that was just exported, to predict with."""
    served = ServedModel(path, threads=threads)
    return lambda batch: served.run(inputs_of(batch))


def pt2_opener(path: Path, dataset: Dataset) -> PredictBatch:
    """Open a .pt2 file that was just exported, to predict with."""
    program = torch.export.load(path).module()

    def predict(batch: Batch) -> Any:
        with torch.no_grad():
            return program(*tensors_of(batch, dataset)).numpy()

    return predict


def tensors_of(batch: Batch, dataset: Dataset) -> list[torch.Tensor]:
    """The inputs of a .pt2 file, in their order."""
    dense = [batch.dense] if dataset.num_dense else []
    bags = [tensor.to(torch.int64) for bag in batch.bags.values() for tensor in bag]
    return [batch.ids.to(torch.int64), *dense, *bags]


def batch_of(dataset: Dataset, size: int) -> Batch:
    """The first rows of a data set, again and again if there are fewer."""
    rows = torch.arange(size) % max(dataset.meta.num_rows, 1)
    return dataset.rows(rows.numpy())


def _losses(
    model: Model,
    predict: PredictBatch,
    dataset: Dataset,
    split: str,
    batch_size: int,
    progress: Progress | None,
) -> tuple[float, float]:
    """The objective on a split, of a run's model and of what was exported."""
    told: dict[str, Any] = {"batch_size": batch_size, "progress": progress}
    before = outputs_of(model, dataset, split, **told)
    after = outputs_of_file(predict, dataset, split, **told)
    task = task_of(dataset.task)
    loss = task.measure(before.outputs, before.targets)[task.objective]
    assert loss is not None
    return float(loss), loss_of_predictions(after, dataset.task)


def loss_of_predictions(found: Outputs, task_name: str) -> float:
    """The objective of a task, from probabilities or ratings."""
    task = task_of(task_name)
    outputs = task.output_of(torch.from_numpy(found.outputs)).numpy()
    loss = task.measure(outputs, found.targets)[task.objective]
    return float("nan") if loss is None else float(loss)
