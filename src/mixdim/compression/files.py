"""A compressed model as one file, and back into a model as its code builds it. No pickle.

The file is safetensors: all tensors of the model's state; how its small tables are laid out, and a
checksum, are in its header.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from mixdim._util.files import write_atomically
from mixdim.compression.exclusive import exclusive
from mixdim.compression.find import ModelTable, put_in_place, tables_of
from mixdim.compression.replacements import options_of, stand_in_for
from mixdim.layer.embedding import MixedDimEmbedding
from mixdim.layer.embedding_base import empty_layer
from mixdim.layer.idmap import IdMap
from mixdim.layer.rank_code import RankCode
from mixdim.planning.plan import Plan

FORMAT, VERSION = "mixdim.compressed", 3
COMPARED = ("num_embeddings", "embedding_dim", "padding_idx", "mode", "include_last_offset")


class Saved(NamedTuple):
    """What a file says: its small tables by all their names, and the state of the whole model."""

    tables: list[dict[str, Any]]
    state: dict[str, Tensor]


def save_compressed(model: nn.Module, path: str | Path) -> None:
    """Write a compressed model to a file: its small tables, and all its other parameters and buffers.

    `mixdim.load_compressed` reads it into a model that the same code has built, not compressed.
    """
    tables = [table for table in tables_of(model) if getattr(table.module, "is_compressed", False)]
    if not tables:
        raise ValueError(
            "model must be compressed to be saved so: call mixdim.compress(model, ...) first"
        )
    tensors, same_as = {}, {}
    seen: dict[Any, str] = {}
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise ValueError(
                f"model must have tensors only in its state: {name} is {type(value).__name__}"
            )
        place = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        if value.numel() and place in seen:  # of a module that is registered twice
            same_as[name] = seen[place]
            continue
        seen[place] = name
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
    document = {
        "format": FORMAT,
        "version": VERSION,
        "tables": [_described(table) for table in tables],
        "same_as": same_as,
    }
    text = json.dumps(document)
    metadata = {"mixdim": text, "blake2b": _digest(text, tensors)}
    write_atomically(path, save(tensors, metadata=metadata))


@torch.inference_mode(False)  # what is made there could never be trained
def load_compressed(model: nn.Module, path: str | Path) -> None:
    """Read what `mixdim.save_compressed` wrote into a model as its code builds it, not compressed.

    Its tables are swapped for the small ones of the file, and all its parameters and buffers are set.
    Where the file does not fit the model, that is an error, and the model stays as it is.
    """
    found = {name: table for table in tables_of(model) for name in table.names}
    _check_has_values(model)
    saved = _read(Path(path))
    with exclusive(model):
        replacements: dict[str, nn.Module] = {}
        for described in saved.tables:
            stand_in = _rebuilt(described, found, saved.state, path)
            replacements |= dict.fromkeys(described["names"], stand_in)
        _check_fits(model, replacements, saved.state, path)
        for name, stand_in in replacements.items():
            put_in_place(model, name, stand_in)
        model.load_state_dict(saved.state)


def _check_has_values(model: nn.Module) -> None:
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor) and tensor.is_meta:
            raise ValueError(
                f"model must have values to be read into: {name} has none (device meta); build it on a "
                "device, or give it room with model.to_empty(device=...)"
            )


def _described(table: ModelTable) -> dict[str, Any]:
    small = table.module.table
    assert isinstance(small, MixedDimEmbedding)
    codes = [code.shape for code in small.ids.codes.values()]
    return {
        "names": list(table.names),
        "options": {
            name: value for name, value in options_of(table.module).items() if name != "training"
        },
        "plan": json.loads(small.plan.to_json()),
        "codes": codes[0] if codes else None,
    }


def _rebuilt(
    described: Mapping[str, Any],
    found: Mapping[str, ModelTable],
    state: Mapping[str, Tensor],
    path: str | Path,
) -> nn.Module:
    """A stand-in as it was saved, of zeros, for a table of the model that is like the one it was for.

    Memory is taken only for what the file really has.
    """
    name, options = described["names"][0], described["options"]
    if any(own not in found for own in described["names"]):
        missing = next(own for own in described["names"] if own not in found)
        raise ValueError(f"{path} has a table {missing!r}, the model has none of that name")
    table = found[name]
    module = table.module
    if getattr(module, "is_compressed", False):
        raise ValueError(f"the model's table {name!r} is compressed already: build the model anew")
    if set(table.names) != set(described["names"]):
        raise ValueError(
            f"{path} has one table for {', '.join(described['names'])}, the model's is for "
            f"{', '.join(table.names)}"
        )
    mine = options_of(module)
    for option in COMPARED:
        if options.get(option) != mine.get(option):
            raise ValueError(
                f"{path} has a table {name!r} with {option}={options.get(option)}, "
                f"the model's has {mine.get(option)}"
            )
    plan = _plan(described, module, name, path)
    options = {
        "padding_id": module.padding_idx,
        "sparse": module.sparse,
        "dtype": module.weight.dtype,
    }
    without_memory = MixedDimEmbedding(plan, ids=_ids(described, plan, path, "meta"), device="meta")
    for own, tensor in without_memory.state_dict(prefix=f"{name}.table.").items():
        there = tuple(state[own].shape) if own in state else None
        if there != tuple(tensor.shape):
            here = _shape_in_words(tuple(tensor.shape))
            raise ValueError(f"{path}: {own} is {_shape_in_words(there)}, by its plan it is {here}")
    device = module.weight.device
    ids = _ids(described, plan, path, "cpu")
    small = empty_layer(MixedDimEmbedding, plan, ids=ids, device=device, **options)
    small.requires_grad_(module.weight.requires_grad)
    return stand_in_for(module, small)


def _plan(described: Mapping[str, Any], module: Any, name: str, path: str | Path) -> Plan:
    """How a table was stored, if that is a table as large as the model's."""
    try:
        plan = Plan.from_json(json.dumps(described["plan"]))
    except ValueError as error:
        raise ValueError(f"{path} has a table {name!r} with a plan that is none: {error}") from None
    size = (plan.num_features, plan.num_rows, plan.base_dim)
    if size != (1, module.num_embeddings, module.embedding_dim):
        raise ValueError(
            f"{path} has a table {name!r} whose plan has {size[0]} features, {size[1]} rows and "
            f"base_dim {size[2]}, the model's has {module.num_embeddings} rows of width "
            f"{module.embedding_dim}"
        )
    return plan


def _ids(described: Mapping[str, Any], plan: Plan, path: str | Path, device: str) -> IdMap:
    """The way from ids to ranks, as room for its state."""
    rows, codes = {feature.name: feature.rows for feature in plan.features}, described["codes"]
    try:
        code = {} if codes is None else {next(iter(plan)): RankCode(codes, device=device)}
        return IdMap(rows, codes=code)
    except (TypeError, ValueError) as error:
        name = described["names"][0]
        raise ValueError(f"{path} has a malformed map of ids for table {name!r}: {error}") from None


def _check_fits(
    model: nn.Module,
    replacements: Mapping[str, nn.Module],
    state: Mapping[str, Tensor],
    path: str | Path,
) -> None:
    """Refuse a file whose state is not that of the model with stand-ins in place."""
    mine = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    for name, stand_in in replacements.items():
        mine.pop(f"{name}.weight")
        own = stand_in.state_dict(prefix=f"{name}.")
        mine |= {key: tuple(value.shape) for key, value in own.items()}
    theirs = {name: tuple(value.shape) for name, value in state.items()}
    for name in sorted(mine.keys() | theirs.keys()):
        if mine.get(name) != theirs.get(name):
            there, here = (_shape_in_words(shapes.get(name)) for shapes in (theirs, mine))
            raise ValueError(f"{path} is of another model: {name} is {there} there and {here} here")


def _shape_in_words(shape: tuple[int, ...] | None) -> str:
    return "not" if shape is None else f"of shape {shape}"


def _read(path: Path) -> Saved:
    """Read and check a file; whatever is wrong with it is one line."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file")
    try:
        with safe_open(path, framework="pt") as file:
            text, checksum = (file.metadata()[name] for name in ("mixdim", "blake2b"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dict
        document = json.loads(text)
        version, is_ours = document["version"], document["format"] == FORMAT
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(f"{path} is damaged, or no file that mixdim.save_compressed wrote") from None
    if not is_ours or version != VERSION:
        raise ValueError(
            f"{path}: this mixdim reads {FORMAT} version {VERSION}, got version {version!r}"
        )
    if checksum != _digest(text, tensors):
        raise ValueError(f"{path} is damaged: it does not match its checksum")
    try:
        same = {name: tensors[first] for name, first in document["same_as"].items()}
        tables = [_checked(entry) for entry in document["tables"]]
    except (KeyError, TypeError, AttributeError):
        raise ValueError(f"{path} does not describe its tables as mixdim.save_compressed does") from None
    return Saved(tables, {**tensors, **same})


def _checked(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The description of a table; a KeyError or a TypeError where it is malformed."""
    if not all(isinstance(name, str) for name in entry["names"]) or not entry["names"]:
        raise TypeError
    return {name: entry[name] for name in ("names", "options", "plan", "codes")}


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """A checksum of the descriptions of tables, of names and of numbers."""
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        digest.update(name.encode())
        if tensors[name].numel():
            digest.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
