"""A checkpoint of many ranks as files, read by one process: into a plain layer or model.

Knows nothing about TorchRec, nor about ranks. A checkpoint is a folder of safetensors, one file a rank,
in the form of PyTorch's distributed checkpoints, and `state.json`, which is written last. In it are

    model/NAME               what every rank has: MLPs, projections
    optimizer/NAME/KEY       the optimizer's state of these
    table/PATH.TABLE         stored rows, cut wherever ranks were: see folding.py
    sum/PATH.TABLE           their Adagrad sums
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from mixdim.distributed.quiet import quiet
from mixdim.distributed.tables import BlockTable, tables_of
from mixdim.layer.embedding import FeatureEmbeddings
from mixdim.layer.fill import fill
from mixdim.layer.layout import LaidBlock, Layout
from mixdim.layer.mixed_tables import MixedTables
from mixdim.layer.sources import Same, Vectors
from mixdim.planning.plan import Plan
from mixdim.training.checkpoints import CheckpointError

FORMAT, VERSION, STATE = "mixdim.distributed", 1, "state.json"
# Before the name of a checkpoint: one that is being written, and one that is being replaced by it.
PARTIAL, ASIDE = ".partial-", ".replaced-"


def set_aside(path: Path) -> Path:
    """Where a checkpoint waits until the one that replaces it is in its place."""
    return path.with_name(f"{ASIDE}{path.name}")


def placed(path: Path) -> Path:
    """Where a checkpoint is: a save that was killed while it replaced one has left that aside."""
    return path if path.exists() or not set_aside(path).exists() else set_aside(path)


@contextmanager
def said_of(path: Path) -> Iterator[None]:
    """Say in one line why a checkpoint cannot be written or read, where PyTorch has a page of each rank.

    Its own exception, which all ranks raise together, holds what each of them met.
    """
    try:
        yield
    except CheckpointException as error:
        failure = error.failures[min(error.failures)][0]
    except (OSError, SafetensorError) as error:
        failure = error
    else:
        return
    if isinstance(failure, OSError) and failure.errno is not None:
        raise OSError(failure.errno, failure.strerror, str(path))
    if isinstance(failure, RuntimeError):
        raise failure  # another rank was lost
    raise CheckpointError(f"checkpoint {path} is damaged: {failure}")


def read_state(path: Path) -> dict[str, Any]:
    """What `state.json` says, if it is that of a whole checkpoint."""
    path = placed(path)
    try:
        document = json.loads((path / STATE).read_bytes())
        known, version, files = document["format"] == FORMAT, document["version"], document["files"]
    except FileNotFoundError:
        raise CheckpointError(f"{path} is no checkpoint of many ranks: it has no {STATE}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CheckpointError(f"checkpoint {path} is damaged: {STATE} cannot be read") from None
    if not known or version != VERSION:
        raise CheckpointError(f"{path}: this mixdim reads {FORMAT} {VERSION}, got {version!r}")
    for name, size in files.items():
        file = path / name
        if not file.is_file() or file.stat().st_size != size:
            raise CheckpointError(f"checkpoint {path} is damaged: {name} is missing or cut short")
    return dict(document)


def shapes_in(path: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and type of every tensor in a checkpoint."""
    with said_of(path):
        found = _reader(path).read_metadata().state_dict_metadata
    return {
        name: (entry.size, entry.properties.dtype)
        for name, entry in found.items()
        if isinstance(entry, TensorStorageMetadata)
    }


def read_into(path: Path, tensors: Mapping[str, Any], *, alone: bool) -> None:
    """Read tensors in their place, each rank its own rows, having checked that they fit."""
    there = shapes_in(path)
    for name, tensor in tensors.items():
        with quiet():
            here = tuple(tensor.size())
        found = tuple(there[name][0]) if name in there else None
        if found != here:
            raise CheckpointError(
                f"{path} is of another model: {name!r} has shape {found} there and {here} here"
            )
    if tensors:
        with quiet(), said_of(path):
            load(dict(tensors), storage_reader=_reader(path), no_dist=alone)


def _reader(path: Path) -> HuggingFaceStorageReader:
    return HuggingFaceStorageReader(str(path))


def to_layer(path: str | Path, plan: Plan, **options: Any) -> FeatureEmbeddings:
    """The plain layer with the weights that a checkpoint of many ranks holds, to the last bit.

    `options` are those of `mixdim.FeatureEmbeddings`. One table is read after the other.
    """
    path = placed(Path(path))
    read_state(path)
    tables = tables_of(Layout.of(plan), list(plan))
    prefixes = {
        name.removeprefix("table/").rpartition(".")[0]
        for name in shapes_in(path)
        if name.startswith("table/")
    }
    if len(prefixes) != 1:
        raise CheckpointError(f"{path} must have the tables of one layer, got {len(prefixes)}")
    found = sum(name.startswith("table/") for name in shapes_in(path))
    if found != len(tables):
        raise CheckpointError(
            f"{path} is of another plan: it has {found} blocks there and {len(tables)} here"
        )
    layer = FeatureEmbeddings(plan, device="meta", **options)
    layer.to_empty(device="cpu")
    _fill_layer(path, layer, tables, prefixes.pop())
    return layer


def fill_model(path: Path, model: nn.Module) -> None:
    """Set a plain model to the weights that a checkpoint of many ranks holds of the same model."""
    path = placed(path)
    read_state(path)
    layers = {name: m for name, m in model.named_modules() if isinstance(m, MixedTables)}
    for name, layer in layers.items():
        _fill_layer(path, layer, tables_of(layer.layout, list(layer.plan)), name)
    inside = tuple(_dotted(name) for name in layers)
    rest = {f"model/{name}": t for name, t in model.state_dict().items() if not name.startswith(inside)}
    read_into(path, rest, alone=True)


@torch.no_grad()
def _fill_layer(path: Path, layer: MixedTables, tables: list[BlockTable], prefix: str) -> None:
    own: dict[str, Tensor] = {
        f"model/{_dotted(prefix)}{name}": tensor
        for name, tensor in layer.state_dict().items()
        if not name.startswith("table_")
    }
    read_into(path, own, alone=True)
    by_feature: dict[int, dict[int, BlockTable]] = {}
    for table in tables:
        first = layer.layout.of_feature[table.block.feature][0].start
        by_feature.setdefault(table.block.feature, {})[table.block.start - first] = table
    for feature, name in enumerate(layer.plan):
        fill(layer, name, _StoredBlocks(path, prefix, layer, by_feature[feature]))


@dataclass(frozen=True)
class _StoredBlocks:
    """The blocks of one feature in a checkpoint, one table read after the other; see `Source`."""

    path: Path
    prefix: str
    layer: MixedTables
    tables: Mapping[int, BlockTable]  # by the rank that each begins with

    def same(self, block: LaidBlock, start: int) -> Same:
        """The table as it was stored, and the lift, which the layer has already."""
        table = self.tables[start]
        stored = torch.empty(table.layout.shape)
        read_into(self.path, {f"table/{_dotted(self.prefix)}{table.name}": stored}, alone=True)
        parts = self.layer.tables().of_block(block).parts(block)
        return Same({**parts, "table": table.layout.take(stored)})

    def rows(self, block: LaidBlock, start: int) -> Vectors:
        """Never asked for."""
        raise AssertionError("blocks of a checkpoint are copied")


def _dotted(prefix: str) -> str:
    return f"{prefix}." if prefix else ""


def newest_step(folder: Path) -> Path | None:
    """The newest whole checkpoint to go on from in a run's folder of checkpoints, if there is any."""
    found = (*folder.glob("step-*"), *folder.glob(f"{ASIDE}step-*"))
    for name in sorted({path.name.removeprefix(ASIDE) for path in found}, reverse=True):
        try:
            read_state(folder / name)
        except CheckpointError:
            continue
        return folder / name
    return None


def remove_killed_saves(folder: Path) -> None:
    """Remove what killed saves have left in a run's folder of checkpoints, but no checkpoint."""
    for left in folder.glob(f"{PARTIAL}*"):
        shutil.rmtree(left)
    for left in folder.glob(f"{ASIDE}*"):
        if (folder / left.name.removeprefix(ASIDE)).exists():
            shutil.rmtree(left)
