"""`mixdim.export`: a model as a file for other runtimes. Knows nothing about runs or data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from mixdim._util.arguments import whole_number
from mixdim._util.files import follow_links
from mixdim.layer.embedding_base import MixedEmbeddingBase
from mixdim.layer.quantizing import quantize
from mixdim.models import Model
from mixdim.serving.layer_graph import ExportOptions, feature_rows, graph_of
from mixdim.serving.onnx_file import LARGEST_FILE, write_onnx
from mixdim.serving.torch_file import write_pt2
from mixdim.storages.rows import check_bits
from mixdim.tasks import TASKS

FORMATS = ("onnx", "pt2")


def export(
    model: nn.Module,
    path: str | Path,
    *,
    format: str | None = None,
    bits: int = 32,
    task: str | None = None,
    bags: Sequence[str] = (),
    unknown: Mapping[str, int] | None = None,
    overwrite: bool = False,
    about: Mapping[str, Any] | None = None,
    largest: int = LARGEST_FILE,
) -> Path:
    """Write a model as a file that runs without mixdim: ids in, probabilities or ratings out.

    - `model`: one of `mixdim.models`, or a layer (vectors out).
    - `format`: "onnx", or "pt2" for `torch.export.load`; if not given, as the path ends.
    - `bits`: 1 to 8 quantizes the tables of mixdim layers first, as `mixdim.quantize` does; 32 leaves
      them as they are.
    - `task`: "binary" gives probabilities, "rating" outputs as they are; by the model if not given.
    - `bags`: features that come as bags: inputs `<feature>.values` (values,) and `<feature>.offsets`
      (batch + 1,), in the place of a column of `ids`.
    - `unknown`: for each feature the id that takes the place of ids which are not its rows. If not
      given, such an id is refused: the runtime raises an error.
    - `overwrite`: whether a file that is there may be replaced.
    - `about`: what the file shall say about itself, as JSON, beside what it says anyway.
    - `largest`: weights of more bytes are written into a file beside the model (ONNX only).

    Inputs: `ids` int64 (batch, features without bags), `dense` float32 (batch, numbers) if the model
    reads any. A batch has one sample or more. Nothing is left if it fails.
    """
    path = Path(path)
    format = format or path.suffix.removeprefix(".")
    if format not in FORMATS:
        raise ValueError(f"format must be {' or '.join(FORMATS)}, got {format!r}")
    bits = check_bits(bits)
    if task is not None and task not in TASKS:
        raise ValueError(f"task must be {' or '.join(TASKS)}, got {task!r}")
    if follow_links(path).exists() and not overwrite:
        raise FileExistsError(f"{path} exists already; overwrite=True replaces it")
    model = model if bits == 32 else quantize(model, bits)
    layers = [module for module in model.modules() if isinstance(module, MixedEmbeddingBase)]
    rows = feature_rows(model)
    _check_bags(model, rows, bags)
    _check_unknown(rows, unknown)
    options = ExportOptions(tuple(bags), unknown, task)
    about_file = {
        "format": "mixdim.served",
        "version": 1,
        "model": type(model).__name__,
        "task": task,
        "features": rows,
        "bags": list(bags),
        "bits": min((layer.plan.least_bits for layer in layers), default=32),
        "unknown": None if unknown is None else {name: int(unknown[name]) for name in rows},
        **(about or {}),
    }
    if format == "onnx":
        write_onnx(graph_of(model, options), path, about_file, largest=largest)
    else:
        write_pt2(model, options, path, about_file)
    return path


def _check_bags(model: nn.Module, rows: Mapping[str, int], bags: Sequence[str]) -> None:
    takes_bags = model.takes_bags if isinstance(model, Model) else isinstance(model, MixedEmbeddingBase)
    if bags and not takes_bags:
        raise ValueError(
            "bags need a layer, or a model of a mixdim.FeatureEmbeddings such as DLRM, got "
            f"{', '.join(bags)}"
        )
    for name in bags:
        if name not in rows:
            raise ValueError(f"bags must be features of the model ({', '.join(rows)}), got {name!r}")


def _check_unknown(rows: Mapping[str, int], unknown: Mapping[str, int] | None) -> None:
    if unknown is None:
        return
    for name, count in rows.items():
        if name not in unknown:
            raise ValueError(f"unknown must have an id for every feature, and has none for {name!r}")
        if not 0 <= whole_number(unknown[name], f"unknown id of feature {name!r}", at_least=0) < count:
            raise ValueError(
                f"unknown id of feature {name!r} must be a row in [0, {count}), got {unknown[name]}"
            )
