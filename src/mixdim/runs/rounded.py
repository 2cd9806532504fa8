"""What becomes of a run's embeddings when they are trained: rounded, if the run says so. Trains nothing.

The folder of a run keeps the weights as they were trained; rounding them again gives the same numbers.
"""

from __future__ import annotations

from torch import nn

from mixdim.layer.mixed_tables import MixedTables
from mixdim.layer.quantizing import quantize
from mixdim.models import WithFirstOrder
from mixdim.planning.methods import ROUNDED


def check_rounding(name: str | None) -> None:
    """Refuse a way to round that there is not."""
    if name is not None and name not in ROUNDED:
        raise ValueError(f"quantize must be one of {', '.join(ROUNDED)}, got {name!r}")


def rounded(model: nn.Module, name: str | None) -> nn.Module:
    """A trained model as it is served: itself, or a copy whose embeddings are rounded."""
    return model if name is None else quantize(model, ROUNDED[name])


def embedding_layers(model: nn.Module) -> list[MixedTables]:
    """The layers of a model that its plan is of: first-order weights are not, nor are MF's biases."""
    model = model.deep if isinstance(model, WithFirstOrder) else model
    return [module for module in model.modules() if isinstance(module, MixedTables)]


def embedding_bytes(model: nn.Module) -> int:
    """Bytes of all that these layers store: tables, projections, scales, ranks of ids."""
    states = (layer.state_dict() for layer in embedding_layers(model))
    return sum(tensor.nbytes for state in states for tensor in state.values())
