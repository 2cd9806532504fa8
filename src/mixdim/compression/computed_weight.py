"""A weight that is computed from something smaller: to be read, never written into.

Knows nothing about tables. What is written into a computed tensor would be lost without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

SETTERS = {getattr(Tensor, name).__set__ for name in ("data", "requires_grad", "grad")}
_OPERATORS = ("add", "sub", "mul", "div", "truediv", "floordiv", "mod", "pow", "matmul")
_BITWISE = ("and", "or", "xor", "lshift", "rshift")
IN_PLACE = {"__setitem__", *(f"__i{name}__" for name in (*_OPERATORS, *_BITWISE))}
REFUSAL = (
    "the weight of a compressed table is computed: nothing can be written into it; its parameters are "
    "in module.parameters(), and module.requires_grad_(False) freezes them"
)


class ComputedWeight(Tensor):
    """A tensor whose memory, also by way of views, `data` and `numpy()`, cannot be written to.

    It can be read and differentiated as any other; results with memory of their own are plain tensors.

    >>> weight = torch.zeros(3, 2).as_subclass(ComputedWeight)
    >>> type(weight + 1) is Tensor, type(weight.t()) is Tensor
    (True, False)
    >>> weight[0].fill_(1.0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    RuntimeError: the weight of a compressed table is computed: nothing can be written into it; ...
    """

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Refuse to write; what shares memory with a computed weight stays one."""
        kwargs = kwargs or {}
        targets = args[0] if args else kwargs.get("tensor", kwargs.get("input"))
        if (writes(func) and _has_computed(targets)) or _has_computed(kwargs.get("out")):
            raise RuntimeError(REFUSAL)
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
            own = {_memory(value) for value in (*args, *kwargs.values()) if _has_computed(value)}
            return _guarded(result, own)


def writes(func: Callable[..., Any]) -> bool:
    """Whether a function of torch writes into its first argument, by its name."""
    name = getattr(func, "__name__", "")
    if name == "__set__":
        return func in SETTERS
    if name.startswith("__"):
        return name in IN_PLACE
    return name.endswith("_")


def _guarded(value: Any, own: set[int]) -> Any:
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    elif isinstance(value, Tensor) and _memory(value) in own:
        return value.as_subclass(ComputedWeight)
    elif type(value) in (list, tuple):  # not a torch.Size
        return type(value)(_guarded(one, own) for one in value)
    return value


def _has_computed(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(isinstance(one, ComputedWeight) for one in value)
    return isinstance(value, ComputedWeight)


def _memory(value: Any) -> int:
    if isinstance(value, list | tuple):
        value = next(one for one in value if isinstance(one, ComputedWeight))
    return value.untyped_storage().data_ptr()
