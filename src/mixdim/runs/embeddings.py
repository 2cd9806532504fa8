"""The embeddings of a run's model: its layers, their bytes, and how they are served. Trains nothing.

The folder of a run keeps the weights that were trained; quantizing them again gives the same numbers.
"""

from __future__ import annotations

from torch import nn

from mixdim.layer.mixed_tables import MixedTables
from mixdim.layer.quantizing import quantize
from mixdim.models import WithFirstOrder
from mixdim.planning.plan import Plan


def served(model: nn.Module, plan: Plan) -> nn.Module:
    """A trained model as its plan serves it: itself, or a copy whose embeddings are quantized."""
    return model if plan.is_trained else quantize(model, plan.least_bits)


def check_servable(plan: Plan) -> None:
    """Refuse a plan whose blocks of rows are kept in different numbers of bits."""
    if plan.trainable().quantized(plan.least_bits).features != plan.features:
        raise ValueError(
            f"a plan to train must have one number of bits for all rows, and has some in "
            f"{plan.least_bits} and some in more: plan.trainable().quantized({plan.least_bits}) has one"
        )


def embedding_layers(model: nn.Module) -> list[MixedTables]:
    """The layers of a model that its plan is of: first-order weights are not, nor are MF's biases."""
    model = model.deep if isinstance(model, WithFirstOrder) else model
    return [module for module in model.modules() if isinstance(module, MixedTables)]


def embedding_bytes(model: nn.Module) -> int:
    """Bytes of all that these layers hold: tables, projections, codes, scales, ranks of ids."""
    states = (layer.state_dict() for layer in embedding_layers(model))
    return sum(tensor.nbytes for state in states for tensor in state.values())
