"""The embeddings of a run's model: its layers, their bytes, and how they are served. Trains nothing.

The folder of a run keeps the weights that were trained; quantizing them again gives the same numbers.
"""

from __future__ import annotations

from mixdim.layer.quantizing import quantize
from mixdim.models import Model
from mixdim.planning.plan import Plan


def served(model: Model, plan: Plan) -> Model:
    """A trained model as its plan serves it: itself, or a copy whose embeddings are quantized."""
    return model if plan.is_trained else quantize(model, plan.least_bits)


def check_servable(plan: Plan) -> None:
    """Refuse a plan whose blocks of rows are kept in different numbers of bits."""
    if plan.trainable().quantized(plan.least_bits).features != plan.features:
        raise ValueError(
            f"a plan to train must have one number of bits for all rows, and has some in "
            f"{plan.least_bits} and some in more: plan.trainable().quantized({plan.least_bits}) has one"
        )


def embedding_bytes(model: Model) -> int:
    """Bytes of all that layers of the plan hold: tables, projections, codes, scales, ranks of ids."""
    states = (layer.state_dict() for layer in model.embedding_layers())
    return sum(tensor.nbytes for state in states for tensor in state.values())
