"""How long a run's model takes for an answer, eager and exported in several ways. Keeps no file."""

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
from mixdim.models import Model
from mixdim.planning.plan import Plan
from mixdim.runs.export import batch_of, onnx_opener
from mixdim.runs.predict import PredictBatch
from mixdim.runs.run import Run
from mixdim.serving.exporting import export
from mixdim.serving.layer_graph import ExportOptions
from mixdim.serving.timing import Timing, measure
from mixdim.serving.timing import threads as with_threads
from mixdim.serving.torch_file import TensorModel, to_trace
from mixdim.training.evaluation import evaluating

BATCHES = (1, 32, 256, 2048)
BITS = (32, 8, 4)  # exports that are compared
TORCH_ONNX, EAGER = "torch.onnx", "eager"


def bench(
    run: Run,
    *,
    data: Path | str | Dataset | None = None,
    batches: Sequence[int] = BATCHES,
    threads: int = 1,
    seconds: float = 1.0,
    echo: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Time answers of a run's model, eager and exported in several ways, and print tables."""
    for size in batches:
        whole_number(size, "batch")
    dataset = run.dataset(data)
    model = run.load(dataset).model
    with tempfile.TemporaryDirectory() as folder, ExitStack() as contexts:
        contexts.enter_context(with_threads(whole_number(threads, "threads")))
        contexts.enter_context(evaluating(model))
        contexts.enter_context(torch.inference_mode())
        contenders: dict[str, PredictBatch] = {EAGER: lambda batch: model(batch)}
        sizes: dict[str, int | None] = {EAGER: None}
        for name, write in _ways(model, run.plan, dataset).items():
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


def _ways(model: Model, plan: Plan, dataset: Dataset) -> dict[str, Callable[[Path], object]]:
    """How a model is exported, by name."""
    options = ExportOptions(
        bags=[feature.name for feature in dataset.meta.features if feature.bag],
        unknown={f.name: f.out_of_vocabulary for f in dataset.meta.features},
        task=dataset.task,
    )

    def own(path: Path, bits: int = 32) -> object:
        return export(
            model,
            path,
            bits=bits,
            task=options.task,
            bags=options.bags,
            unknown=options.unknown,
        )

    ways: dict[str, Callable[[Path], object]] = {
        TORCH_ONNX: lambda path: _by_torch(model, options, path)
    }
    if not plan.is_trained:
        return {**ways, f"{plan.least_bits} bits": own}
    return ways | {f"{bits} bits": partial(own, bits=bits) for bits in BITS}


def _by_torch(model: nn.Module, options: ExportOptions, path: Path) -> None:
    """PyTorch's own way from a model to ONNX."""
    with to_trace(model), _silence():
        wrapped = TensorModel(model, options).eval()
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


def _call(predict: PredictBatch, batch: Batch) -> Callable[[], object]:
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
