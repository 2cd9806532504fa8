"""What an exported model costs: bytes, loss before and after, time of an answer. Writes what it reports.

Knows nothing about how a model becomes a file.
"""

from __future__ import annotations

import io
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mixdim._util.arguments import whole_number
from mixdim._util.text import align
from mixdim.data import Batch, Dataset
from mixdim.data.folder import SPLITS
from mixdim.planning.budget import format_bytes
from mixdim.runs.exported import (
    Predict,
    export_run,
    losses,
    open_to_export,
    vocabulary_path,
)
from mixdim.runs.trained import OpenedRun
from mixdim.serving.exporting import export
from mixdim.serving.models import Asked
from mixdim.serving.onnx_file import files_of
from mixdim.serving.session import ServedModel, inputs_of
from mixdim.serving.timing import Timing, measure
from mixdim.serving.torch_file import TensorModel, to_trace
from mixdim.training.evaluation import Progress, evaluating
from mixdim.training.tasks import task_of

LOOKS = (1, 256)  # batches that an export is timed with
BATCHES = (1, 32, 256, 2048)
BITS = (32, 8, 4)  # exports that are compared
TORCH_ONNX, EAGER = "torch.onnx", "eager"


def export_and_measure(
    run: Path,
    out: Path,
    *,
    split: str = "test",
    progress: Progress | None = None,
    echo: Callable[[str], None],
    **options: Any,
) -> None:
    """Export a run, see `export_run`, and say what came out, line by line."""
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    opened, dataset = export_run(run, out, **options)
    for path in (*files_of(out), vocabulary_path(out)):
        echo(f"{path}: {format_bytes(path.stat().st_size)}")
    bits = options.get("bits") or opened.plan.least_bits
    blocks = opened.plan.quantized(bits).blocks
    kinds = {block.storage.kind for block in blocks if block.dim and block.storage.is_trained}
    if bits < 32 and kinds:
        echo(f"not quantized: blocks stored as {', '.join(sorted(kinds))}")
    format = options.get("format") or out.suffix.removeprefix(".")
    predict = pt2_opener(out, dataset) if format == "pt2" else onnx_opener(out)
    if dataset.splits[split][1] > dataset.splits[split][0]:
        before, after = losses(opened, dataset, predict, split, progress)
        words = task_of(dataset.task).objective_words
        echo(f"{words} on {split}: {before:.6f} before, {after:.6f} after ({after - before:+.1e})")
    with _threads(1):
        for size in LOOKS:
            batch = batch_of(dataset, size)
            timing = measure({out.name: _call(predict, batch)})[out.name]
            echo(f"batch of {size}: {timing} of one processor")


def onnx_opener(path: Path, *, threads: int = 1) -> Predict:
    """Open an ONNX file that was just exported, to predict with."""
    served = ServedModel(path, threads=threads)
    return lambda batch: served.run(inputs_of(batch))


def pt2_opener(path: Path, dataset: Dataset) -> Predict:
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


def bench(
    run: Path,
    *,
    data: Path | None = None,
    batches: Sequence[int] = BATCHES,
    threads: int = 1,
    seconds: float = 1.0,
    echo: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Time answers of a run's model, eager and exported in several ways, and print tables."""
    for size in batches:
        whole_number(size, "batch")
    opened, dataset = open_to_export(run, data)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as contexts:
        contexts.enter_context(_threads(whole_number(threads, "threads")))
        contexts.enter_context(evaluating(opened.model))
        contexts.enter_context(torch.inference_mode())
        contenders: dict[str, Predict] = {EAGER: lambda batch: opened.model(batch)}
        sizes: dict[str, int | None] = {EAGER: None}
        for name, write in _ways(opened, dataset).items():
            path = Path(folder) / f"{name}.onnx"
            try:
                write(path)
            except Exception as error:  # the converter's own, and it knows not every model
                if name != TORCH_ONNX:
                    raise
                echo(f"{name}: not exported: {str(error).splitlines()[0]}")
                continue
            contenders[name] = onnx_opener(path, threads=threads)
            sizes[name] = sum(file.stat().st_size for file in Path(folder).glob(f"{name}.onnx*"))
        results = []
        for size in batches:
            batch = batch_of(dataset, size)
            calls = {name: _call(predict, batch) for name, predict in contenders.items()}
            found = measure(calls, threads=threads, seconds=seconds)
            results += [
                {"batch": size, "name": name, "bytes": sizes[name], **timing._asdict()}
                for name, timing in found.items()
            ]
            echo("\n".join(_table(size, found, sizes)) + "\n")
    return results


def _ways(opened: OpenedRun, dataset: Dataset) -> dict[str, Callable[[Path], object]]:
    """How a model is exported, by name."""
    asked = Asked(
        bags=[feature.name for feature in dataset.meta.features if feature.bag],
        unknown={f.name: f.out_of_vocabulary for f in dataset.meta.features},
        task=dataset.task,
    )

    def own(path: Path, bits: int = 32) -> object:
        return export(
            opened.model,
            path,
            bits=bits,
            task=asked.task,
            bags=asked.bags,
            unknown=asked.unknown,
        )

    ways: dict[str, Callable[[Path], object]] = {
        TORCH_ONNX: lambda path: _by_torch(opened.model, asked, path)
    }
    if not opened.plan.is_trained:
        return {**ways, f"{opened.plan.least_bits} bits": own}
    return ways | {f"{bits} bits": partial(own, bits=bits) for bits in BITS}


def _by_torch(model: nn.Module, asked: Asked, path: Path) -> None:
    """PyTorch's own way from a model to ONNX."""
    with to_trace(model), _silence():
        wrapped = TensorModel(model, asked).eval()
        inputs, shapes = wrapped.example()
        torch.onnx.export(
            wrapped,
            inputs,
            path,
            input_names=wrapped.input_names,
            dynamic_shapes=(shapes,),
            dynamo=True,
            verbose=False,
        )


def _call(predict: Predict, batch: Batch) -> Callable[[], object]:
    return lambda: predict(batch)


def _table(size: int, found: dict[str, Timing], sizes: dict[str, int | None]) -> list[str]:
    lines = [[f"batch of {size}", "ms", "quartiles", f"of {EAGER}", "bytes"]]
    for name, timing in found.items():
        held = sizes[name]
        lines.append([
            name,
            f"{timing.median:.3f}",
            f"{timing.low:.3f} to {timing.high:.3f}",
            f"{timing.median / found[EAGER].median:.2f}",
            "-" if held is None else f"{held:,}",
        ])  # fmt: skip
    return align(lines)


@contextmanager
def _silence() -> Iterator[None]:
    """While it is entered, nobody prints, warns or logs: the converter does all of it."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """While it is entered, PyTorch works with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
