"""Whether a kernel serves a call: the one place that knows. Knows no layers and no models.

A caller says what it wants and has plain PyTorch beside it, which is the specification. `dispatch`
returns what the first backend gives that takes the call, or None: then the plain code runs. `dispatch`
alone knows of switches, tracing and graphs; a backend alone knows devices and types. For another device,
add a class to BACKENDS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from mixdim import kernels
from mixdim.kernels.amsgrad import amsgrad, update_struct
from mixdim.kernels.decay import bring_up
from mixdim.kernels.decode import CodedTable, decode
from mixdim.kernels.forms import SplitForm
from mixdim.kernels.interaction import dot_interaction, lookup_interaction
from mixdim.kernels.library import COMPILED, switched_off
from mixdim.kernels.lookup import lookup, vectors
from mixdim.kernels.mlp import LinearLayer, is_large, is_simple_mlp, kernel_layers
from mixdim.kernels.scores import dot_scores
from mixdim.kernels.split import KeptWeights, split_interaction
from mixdim.kernels.structs import Codes, Lookup

Operation = Literal[
    "lookup",
    "interact",
    "lookup_interact",
    "scores",
    "decode",
    "mlp",
    "describe_step",
    "take_steps",
    "bring_up",
]


class LookupCall(NamedTuple):
    """Look up single ids or sum bags: -> (B, F, base_dim). `request` makes the arguments on demand."""

    request: Callable[[], Lookup]
    is_whole: bool  # whether the kernels are given all blocks of the layer
    has_codes: bool
    is_sparse: bool  # whether tables get row-sparse gradients
    checks_ids: bool  # whether the layer does: if not, an exported graph has PyTorch's operators


class InteractCall(NamedTuple):
    """The dot interaction of given vectors: (B, D), (B, F, D)."""

    dense: Tensor
    vectors: Tensor


class LookupInteractCall(NamedTuple):
    """Look up ids and let them interact; in the split form if there is one for this batch."""

    dense: Tensor
    request: Callable[[], Lookup]
    split: Callable[[], SplitForm | None]
    kept: Callable[[Lookup], KeptWeights | None]  # what is prepared of weights that do not change


class ScoresCall(NamedTuple):
    """Dot products of users and items; `gram` makes the products of their lifts."""

    request: Callable[[], tuple[Lookup, Lookup]]
    gram: Callable[[], Tensor]


class DecodeCall(NamedTuple):
    """Rows that are held as codes: (C, B) of C slots, or (V,)."""

    table: CodedTable
    rows: Tensor
    slots: slice | Tensor | int


class MlpCall(NamedTuple):
    """Linear layers with activations."""

    x: Tensor
    layers: Callable[[], Sequence[LinearLayer] | None]  # None: there is anything else among them


class StepCall(NamedTuple):
    """A step of the optimizer for one parameter, or for its `rows`."""

    parameter: Tensor
    rows: Tensor | None
    gradient: Tensor
    moments: Sequence[Tensor]
    options: dict[str, Any]


class BringUpCall(NamedTuple):
    """Rows of a table that is decayed by time."""

    weight: Tensor
    decayed_to: Tensor
    rows: Tensor
    now: float


class Backend:
    """A device's kernels: a method an operation, which returns None for a call that it does not take.

    A backend inherits those that it never takes. Steps are taken by the backend that described them.
    """

    def lookup(self, call: LookupCall) -> Tensor | None:
        """Look up or sum."""
        return None

    def interact(self, call: InteractCall) -> Tensor | None:
        """Let vectors interact."""
        return None

    def lookup_interact(self, call: LookupInteractCall) -> Tensor | None:
        """Look up and interact."""
        return None

    def scores(self, call: ScoresCall) -> Tensor | None:
        """Multiply users' and items' vectors."""
        return None

    def decode(self, call: DecodeCall) -> Tensor | None:
        """Take rows that are codes."""
        return None

    def mlp(self, call: MlpCall) -> Tensor | None:
        """Compute linear layers."""
        return None

    def describe_step(self, call: StepCall) -> tuple[float, ...] | None:
        """Describe an optimizer's step, for `take_steps`."""
        return None

    def take_steps(self, steps: list[tuple[float, ...]]) -> int | None:
        """Take them all: see `mixdim.kernels.amsgrad.amsgrad`."""
        return None

    def bring_up(self, call: BringUpCall) -> int | None:
        """Bring rows up to date."""


class CpuKernels(Backend):
    """The kernels that are compiled from C++: float32 on a CPU, and codes without gradients."""

    def lookup(self, call: LookupCall) -> Tensor | None:
        """Look up or sum; codes are read where nothing is to be trained."""
        request = call.request()
        if not _takes(request):
            return None
        if request.layer.codes is None:
            return lookup(request)
        if type(request.ids) is not Tensor:
            return None
        if torch.is_grad_enabled() and any(
            t is not None and t.requires_grad for t in request.parameters
        ):
            return None  # a row that a block shares may be trained beside codes
        return vectors(request)

    def interact(self, call: InteractCall) -> Tensor | None:
        """One kernel for the products of all pairs."""
        return dot_interaction(*call) if _are_floats(*call) else None

    def lookup_interact(self, call: LookupInteractCall) -> Tensor | None:
        """Fused, or in the split form."""
        request = call.request()
        if not _takes(request) or not _are_floats(call.dense):
            return None
        split = call.split()
        if split is None:
            return lookup_interaction(call.dense, request)
        return split_interaction(call.dense, request, split, call.kept(request))

    def scores(self, call: ScoresCall) -> Tensor | None:
        """Without the vectors of users and items."""
        sides = call.request()
        if not all(_takes(side) for side in sides):
            return None
        return dot_scores(*sides, call.gram())

    def decode(self, call: DecodeCall) -> Tensor | None:
        """Levels times steps."""
        tensors = (call.table.codes, call.table.steps, call.table.places, call.rows)
        if not all(type(tensor) is Tensor and tensor.is_cpu for tensor in tensors):
            return None
        if tuple(t.dtype for t in tensors) != (torch.uint8, torch.float16, torch.int64, torch.int64):
            return None
        return decode(*call)

    def mlp(self, call: MlpCall) -> Tensor | None:
        """Where packing weights pays."""
        layers = call.layers() if is_large(call.x) else None
        return kernel_layers(call.x, layers) if layers and is_simple_mlp(call.x, layers) else None

    def describe_step(self, call: StepCall) -> tuple[float, ...] | None:
        """Addresses and numbers."""
        parameter, rows, gradient, moments, options = call
        if not _are_floats(parameter, gradient, *moments, contiguous=True):
            return None
        return update_struct(parameter, rows, gradient, moments, **options)

    def take_steps(self, steps: list[tuple[float, ...]]) -> int | None:
        """One call for all parameters."""
        return amsgrad(steps)

    def bring_up(self, call: BringUpCall) -> int | None:
        """One pass over the rows."""
        is_known = call.rows.dtype is torch.int64 and call.rows.is_contiguous()
        floats = _are_floats(call.weight, call.decayed_to, contiguous=True)
        return bring_up(*call) if floats and is_known else None


BACKENDS: list[Backend] = [CpuKernels()] if COMPILED else []


def dispatch(operation: Operation, call: Any) -> Any:
    """What the first backend gives that takes the call; None if the plain code is to run."""
    if switched_off() or kernels.tracing():
        return None
    if torch.compiler.is_compiling() and not _fits_in_a_graph(operation, call):
        return None
    for backend in BACKENDS:
        found = getattr(backend, operation)(call)
        if found is not None:
            return found
    return None


def _fits_in_a_graph(operation: Operation, call: Any) -> bool:
    """Whether there is an operator for a call in a graph, which may be run without mixdim."""
    if operation == "interact":
        return not torch.compiler.is_exporting()
    if operation != "lookup" or not call.is_whole or call.has_codes:
        return False
    # PyTorch cannot trace a sparse gradient whose length depends on the ids.
    if call.is_sparse and torch.is_grad_enabled() and torch.compiler.is_dynamo_compiling():
        return False
    return call.checks_ids or not torch.compiler.is_exporting()


def _takes(request: Lookup) -> bool:
    """Whether ids and tensors of a lookup are as the kernels read them."""
    ids, _, row_weights, layer = request
    order = layer.rank_of_id
    return (
        ids.dtype in (torch.int32, torch.int64)
        and ids.is_cpu
        and _are_floats(*layer.tables, contiguous=True)
        and (layer.codes is None or _are_codes(layer.codes))
        and (layer.lift is None or _are_floats(layer.lift, contiguous=True))
        and (row_weights is None or not row_weights.requires_grad)
        and (order is None or order.dtype == torch.int32)
    )


def _are_floats(*tensors: Tensor, contiguous: bool = False) -> bool:
    return all(
        t.dtype is torch.float32 and t.is_cpu and (not contiguous or t.is_contiguous()) for t in tensors
    )


def _are_codes(codes: Codes) -> bool:
    types = (torch.uint8, torch.float16, torch.float16, torch.float32)
    return all(
        tensor is None or (tensor.dtype is dtype and tensor.is_cpu and tensor.is_contiguous())
        for tensor, dtype in zip(codes, types, strict=True)
    )
