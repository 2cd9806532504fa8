"""How ranks write what they hold, and take it up again on any number of ranks. Knows no training loop.

Whole or not at all: a save that is killed leaves what was there before.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.optim import Optimizer

from mixdim._util.files import sync
from mixdim.distributed.quiet import quiet
from mixdim.distributed.sharded import Sharded
from mixdim.distributed.stored import (
    FORMAT,
    PARTIAL,
    STATE,
    VERSION,
    placed,
    read_into,
    read_state,
    said_of,
    set_aside,
    shapes_in,
)


def save(sharded: Sharded, path: str | Path, state: Mapping[str, Any] | None = None) -> None:
    """Write a checkpoint of all ranks into the folder `path`; every rank calls it.

    `state` is anything that JSON can hold, such as the number of steps done; rank 0's is kept. The
    folder must be one that all machines see.
    """
    path, rank = Path(path), dist.get_rank()
    unfinished = path.with_name(f"{PARTIAL}{path.name}")
    if rank == 0:
        shutil.rmtree(unfinished, ignore_errors=True)  # of a save that was killed
        unfinished.mkdir(parents=True)
    dist.barrier()
    tensors, numbers = _optimizer_state(sharded)
    try:
        with quiet(), said_of(path):
            state_dict_saver.save(
                {**_held(sharded), **tensors},
                storage_writer=HuggingFaceStorageWriter(str(unfinished), save_distributed=True),
            )
        if rank == 0:
            _finish(unfinished, path, {"optimizer": numbers, "state": dict(state or {})})
    finally:
        if rank == 0:
            shutil.rmtree(unfinished, ignore_errors=True)
    dist.barrier()


def _finish(unfinished: Path, path: Path, body: dict[str, Any]) -> None:
    """Write the page that makes it whole, and put it in its place."""
    files = {file.name: file.stat().st_size for file in unfinished.glob("*.safetensors")}
    page = {"format": FORMAT, "version": VERSION, "ranks": dist.get_world_size(), "files": files, **body}
    (unfinished / STATE).write_text(json.dumps(page, indent=2) + "\n")
    for file in (*unfinished.iterdir(), unfinished):
        sync(file)
    aside = set_aside(path)
    if path.exists():
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)  # where it is found if this is killed now
    unfinished.rename(path)
    sync(path.parent)
    shutil.rmtree(aside, ignore_errors=True)


def load(sharded: Sharded, path: str | Path) -> dict[str, Any]:
    """Take up a checkpoint, of any number of ranks and any sharding; returns the state kept with it.

    Every rank calls it, and reads the rows that it holds.
    """
    path = placed(Path(path))
    page = read_state(path)
    wanted: dict[str, Any] = _held(sharded)
    parameters, of_optimizer = sharded.dense_parameters(), {}
    for name, (shape, dtype) in shapes_in(path).items():
        if name.startswith("optimizer/"):
            of_optimizer[name] = torch.empty(shape, dtype=dtype)
    read_into(path, {**wanted, **of_optimizer}, alone=False)
    owners = dict(_owners(sharded))
    for name, value in [*of_optimizer.items(), *page["optimizer"].items()]:
        parameter, _, key = name.removeprefix("optimizer/").rpartition("/")
        if parameter not in owners:
            raise ValueError(f"{path} is of another model: it has the state of {parameter!r}")
        held = value
        if isinstance(value, Tensor) and key != "step":
            held = value.to(parameters[parameter].device)
        owners[parameter].state[parameters[parameter]][key] = held
    return dict(page["state"])


def _held(sharded: Sharded) -> dict[str, Any]:
    """The weights of everything and the sums of tables, by name."""
    held: dict[str, Any] = {f"model/{name}": t for name, t in sharded.dense_tensors().items()}
    for name, table in sharded.tables():
        held[f"table/{name}"] = table.weight
        if table.state is not None:
            held[f"sum/{name}"] = table.state
    return held


def _optimizer_state(sharded: Sharded) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The state of what every rank has, but tables: tensors and numbers, by name and key."""
    parameters: dict[str, nn.Parameter] = sharded.dense_parameters()
    tensors, numbers = {}, {}
    for name, part in _owners(sharded):
        for key, value in part.state.get(parameters[name], {}).items():
            place = f"optimizer/{name}/{key}"
            if isinstance(value, Tensor):
                tensors[place] = value
            else:
                numbers[place] = value
    return tensors, numbers


def _owners(sharded: Sharded) -> Iterator[tuple[str, Optimizer]]:
    """The optimizer of each parameter that every rank has."""
    names = {id(parameter): name for name, parameter in sharded.dense_parameters().items()}
    for part in sharded.parts:
        for group in part.param_groups:
            for parameter in group["params"]:
                yield names[id(parameter)], part
