"""Which embedding tables a model has, and why some of them cannot be compressed. Changes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.jit import ScriptModule

from mixdim._util.arguments import WrongTypeError

FORWARDS = (nn.Embedding.forward, nn.EmbeddingBag.forward)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

HOOKS_OF_WEIGHT = ("_backward_hooks", "_post_accumulate_grad_hooks")


@dataclass(frozen=True, eq=False)
class ModelTable:
    """An nn.Embedding or nn.EmbeddingBag of a model; all names that it goes by there."""

    names: tuple[str, ...]
    module: nn.Embedding | nn.EmbeddingBag

    @property
    def name(self) -> str:
        """The first of its names; a model that is a table itself is called "embedding"."""
        return self.names[0] or "embedding"

    @property
    def rows(self) -> int:
        """How many ids it has."""
        return self.module.num_embeddings

    @property
    def width(self) -> int:
        """How many numbers a vector has."""
        return self.module.embedding_dim

    @property
    def nbytes(self) -> int:
        """Bytes of its weight, or of the small table that is in its place already."""
        return sum(tensor.nbytes for tensor in self.module.state_dict().values())


def tables_of(model: Any) -> list[ModelTable]:
    """All tables of a model, each once, also where a module is registered in several places.

    >>> shared = nn.Embedding(9, 4)
    >>> [table.names for table in tables_of(nn.ModuleDict({"query": shared, "item": shared}))]
    [('query', 'item')]
    """
    if not isinstance(model, nn.Module):
        raise WrongTypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise WrongTypeError("model must be the module itself: give model.module, then wrap it anew")
    if isinstance(model, ScriptModule):
        raise WrongTypeError("model must be in Python, not TorchScript: give the one it was made from")
    names: dict[nn.Embedding | nn.EmbeddingBag, list[str]] = defaultdict(list)
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            names[module].append(name)
    if not names:
        raise ValueError(
            f"model must have an nn.Embedding or nn.EmbeddingBag, {type(model).__name__} has none"
        )
    return [ModelTable(tuple(own), module) for module, own in names.items()]


def by_any_name(tables: list[ModelTable], given: Mapping[str, Any], what: str) -> dict[str, Any]:
    """What is given for tables, by their first names; an unknown name is an error that lists them."""
    known = {name or table.name: table.name for table in tables for name in table.names}
    for name in given:
        if name not in known:
            raise ValueError(f"{what} has no table {name!r} to be for; the tables are {_few(known)}")
    return {known[name]: value for name, value in given.items()}


def why_not(table: ModelTable, owners: Mapping[int, list[str]]) -> str | None:
    """Why a table cannot be compressed, whatever its counts are; None if it can.

    `owners` are the names of all parameters and buffers of the model by their memory: `owners_of`.
    """
    module, kind = table.module, type(table.module).__name__
    if getattr(module, "is_compressed", False):
        return "it is compressed already"
    if type(module).forward not in FORWARDS or "forward" in vars(module):
        return f"it is a {kind} with a forward of its own"
    if "weight" not in module._parameters or module.weight is None:
        return "its weight is computed from other parameters (a parametrization)"
    if own_names := _added_to(module):
        return f"it is a {kind} with {', '.join(own_names)} of its own"
    weight, own = module.weight, {f"{name}.weight".lstrip(".") for name in table.names}
    others = [name for name in owners[memory_of(weight)] if name not in own]
    padding = module.padding_idx
    has_padding_row = padding is not None and isinstance(module, nn.Embedding) and not weight.is_meta
    reasons = {
        "it is the model itself, so nothing holds it that could hold another": "" in table.names,
        f"its weight is also {', '.join(others)}": bool(others),
        "its weight has no values yet (device meta), as one that is still to be sharded": weight.is_meta,
        f"its weight is {weight.dtype}, not floating point": not weight.is_floating_point(),
        "max_norm changes its rows at every lookup": module.max_norm is not None,
        "scale_grad_by_freq needs a gradient for each row": module.scale_grad_by_freq,
        "it has hooks, which would not come along": _has_hooks(module),
        "the row of its padding_idx is not zero": has_padding_row and bool(weight[padding].any()),
        "it is empty": not weight.numel(),
        "it has width 1, so there is nothing to make narrower": table.width == 1,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _added_to(module: nn.Embedding | nn.EmbeddingBag) -> list[str]:
    """What a subclass has that the class of PyTorch has not, and that other code may ask for."""
    base = nn.EmbeddingBag if isinstance(module, nn.EmbeddingBag) else nn.Embedding
    names = [name for name in dir(type(module)) if not name.startswith("_") and not hasattr(base, name)]
    tensors = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
    return names + [name for name in tensors if name != "weight"]


def _has_hooks(module: nn.Embedding | nn.EmbeddingBag) -> bool:
    of_weight = (getattr(module.weight, name, None) for name in HOOKS_OF_WEIGHT)
    return any(getattr(module, name) for name in HOOKS) or any(of_weight)


def owners_of(model: nn.Module) -> dict[int, list[str]]:
    """The names of all parameters and buffers by where their memory begins: tied ones are together."""
    owners: dict[int, list[str]] = defaultdict(list)
    for named in (model.named_parameters, model.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            owners[memory_of(tensor)].append(name)
    return owners


def memory_of(tensor: Tensor) -> int:
    """Where the memory begins that a tensor is a view of; of one without memory, what it is."""
    if tensor.is_meta or tensor.is_sparse or not tensor.numel():
        return id(tensor)
    return tensor.untyped_storage().data_ptr()


def put_in_place(model: nn.Module, name: str, module: nn.Module) -> None:
    """Register a module under a name that another one has."""
    parent, _, own = name.rpartition(".")
    model.get_submodule(parent)._modules[own] = module


def _few(names: Any, most: int = 8) -> str:
    names = list(names)
    others = f" and {len(names) - most} others" if len(names) > most else ""
    return ", ".join(names[:most]) + others
