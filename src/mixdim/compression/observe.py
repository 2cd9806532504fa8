"""How often a model asks for each row of its tables, seen while it runs. Changes nothing in it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mixdim._util.arguments import WrongTypeError
from mixdim._util.text import align
from mixdim.compression.exclusive import exclusive
from mixdim.compression.find import ModelTable, tables_of

Call = Callable[[nn.Module, Any], Any]
Loss = Callable[[Any, Any], Tensor]


class Observed(Mapping[str, np.ndarray]):
    """Counts of the rows of each table by its name, and of some the metric of the loss at its output.

    It prints as a table. `metrics` are (width, width) matrices by name, empty without a loss.
    """

    def __init__(
        self, counts: Mapping[str, np.ndarray], metrics: Mapping[str, Tensor], batches: int
    ) -> None:
        self._counts, self.metrics, self.batches = dict(counts), dict(metrics), batches

    def __getitem__(self, name: str) -> np.ndarray:
        return self._counts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)

    def __str__(self) -> str:
        lines = [["table", "rows", "lookups", "rows seen"]]
        for name, counts in self.items():
            seen = f"{np.count_nonzero(counts) / len(counts):.0%}"
            lines.append([name, f"{len(counts):,}", f"{counts.sum():,}", seen])
        return "\n".join([*align(lines), f"in {self.batches:,} batches"])

    __repr__ = __str__


@torch.inference_mode(False)  # in which there would be no gradients
def observe(
    model: nn.Module, batches: Iterable[Any], *, call: Call | None = None, loss: Loss | None = None
) -> Observed:
    """Run a model on batches and count how often it asks for each row of its embedding tables.

    A batch is what the model takes: a tuple or list is its arguments; a dict is its keyword arguments
    where `forward` has parameters of these names, otherwise the argument; all else is the argument. If
    batches hold more than that, such as targets, say how the model is called:
    `call=lambda model, batch: model(batch[0])`. For a progress bar, wrap the batches in one.

    The model is in evaluation mode meanwhile, without gradients, and then as it was, also after an
    error. Rows that stand for no id (`padding_idx`) are not counted. Lookups that do not call the table,
    but read its `weight`, are not seen: give `mixdim.compress` counts of your own for these.

    With `loss`, as `loss(output, batch)` of a batch, gradients are taken too: `metrics` of the result
    has for each table E[g g^T] of the gradient g at its vectors, which tells `mixdim.compress` which
    directions the loss can feel.

    >>> model = nn.Sequential(nn.Embedding(4, 2), nn.Linear(2, 1))
    >>> print(observe(model, [torch.tensor([3, 3, 0]), torch.tensor([3])]))
    table  rows  lookups  rows seen
    0         4        4        50%
    in 2 batches
    """
    tables = tables_of(model)
    if isinstance(batches, Tensor | Mapping | str) or not isinstance(batches, Iterable):
        raise WrongTypeError(
            f"batches must be an iterable of what the model takes, got {type(batches).__name__}: "
            "a single batch is [batch]"
        )
    seen = {table.name: _Seen(table, loss is not None) for table in tables}
    run, number = call or _caller(model), 0
    with exclusive(model), _as_found(model, seen.values()):
        for batch in batches:
            number += 1
            if loss is None:
                with torch.no_grad():
                    _run(run, model, batch)
                continue
            with torch.enable_grad():
                _differentiate(loss(_run(run, model, batch), batch), model)
    if not number:
        raise ValueError("batches must have at least one batch, got none")
    metrics = {name: table.metric() for name, table in seen.items() if loss and table.vectors}
    return Observed({name: table.counts.numpy() for name, table in seen.items()}, metrics, number)


class _Seen:
    """What was seen of one table."""

    def __init__(self, table: ModelTable, with_gradients: bool) -> None:
        self.module, self.with_gradients = table.module, with_gradients
        self.counts = torch.zeros(table.rows, dtype=torch.int64)
        self.squares = torch.zeros(table.width, table.width, dtype=torch.float64)
        self.vectors = 0

    def count(self, module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:
        """A forward hook: after the lookup, which has refused ids that are out of range."""
        ids = (args[0] if args else kwargs["input"]).detach().reshape(-1).to("cpu", torch.int64)
        if (padding := self.module.padding_idx) is not None:
            ids = ids[ids != padding]
        self.counts.scatter_add_(0, ids, torch.ones_like(ids))
        if self.with_gradients and output.requires_grad:
            output.register_hook(self.add_squares)

    def add_squares(self, gradient: Tensor) -> None:
        """Add g g^T of the gradients at vectors that were looked up: (..., width)."""
        rows = gradient.detach().reshape(-1, gradient.shape[-1]).to("cpu", torch.float64)
        self.squares += rows.t() @ rows
        self.vectors += len(rows)

    def metric(self) -> Tensor:
        """E[g g^T] of the gradient g at a row for each time that it is looked up."""
        # Of a bag of n rows, g is the gradient at the bag, or a part of it.
        share = self.vectors / max(int(self.counts.sum()), self.vectors, 1)
        part = {"mean": share**2, "max": share}.get(getattr(self.module, "mode", "sum"), 1.0)
        return self.squares * (part / self.vectors)


@contextmanager
def _as_found(model: nn.Module, seen: Iterable[_Seen]) -> Iterator[None]:
    """Put a model in evaluation mode with hooks on its tables; in the end all is as it was."""
    training = {module: module.training for module in model.modules()}
    hooks = []
    try:
        for table in seen:
            hooks.append(table.module.register_forward_hook(table.count, with_kwargs=True))
        model.eval()
        with _uncompiled():
            yield
    finally:
        for hook in hooks:
            hook.remove()
        for module, was_training in training.items():
            module.training = was_training


def _uncompiled() -> AbstractContextManager[None]:
    """Run what was compiled as it was before: compiled code leaves out hooks for gradients."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and it would take seconds to import
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


def _run(run: Call, model: nn.Module, batch: Any) -> Any:
    try:
        return run(model, batch)
    except TypeError as error:
        if run.__module__ != __name__:
            raise
        raise WrongTypeError(
            f"the model does not take a batch as it is ({error}): say how it is called, such as "
            "call=lambda model, batch: model(batch[0])"
        ) from error


def _caller(model: nn.Module) -> Call:
    """How a model takes batches, unless somebody says it."""
    names = set(inspect.signature(model.forward).parameters)

    def run(model: nn.Module, batch: Any) -> Any:
        if isinstance(batch, tuple | list):
            return model(*batch)
        if isinstance(batch, dict) and batch and batch.keys() <= names:
            return model(**batch)
        return model(batch)

    return run


def _differentiate(loss: Any, model: nn.Module) -> None:
    """Send gradients back through a graph; parameters keep those that they had."""
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise WrongTypeError("loss(output, batch) must return one number that depends on the tables")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    torch.autograd.grad(loss.sum(), trained, allow_unused=True)
