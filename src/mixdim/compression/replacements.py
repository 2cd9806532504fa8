"""Small tables in the place of nn.Embedding and nn.EmbeddingBag: what other code may do to these.

Know nothing about how widths were chosen. Other code asks `isinstance`, reads `weight`, and calls.
"""

from __future__ import annotations

from typing import Any, Literal, NoReturn

import torch
from torch import Tensor, nn

from mixdim.compression.computed_weight import REFUSAL, ComputedWeight
from mixdim.kernels.ids import require_integers
from mixdim.layer.embedding import MixedDimEmbedding
from mixdim.layer.paths import look_up_bags
from mixdim.planning.budget import format_bytes
from mixdim.planning.plan import Plan

ABOUT_BOTH = ("num_embeddings", "embedding_dim", "padding_idx", "sparse", "training")
ABOUT_BAGS = ("mode", "include_last_offset")


class _StandIn(nn.Module):
    """What both have in common."""

    is_compressed = True
    max_norm: float | None = None
    norm_type, scale_grad_by_freq = 2.0, False
    num_embeddings: int
    embedding_dim: int
    padding_idx: int | None
    table: MixedDimEmbedding
    empty_weight: Tensor

    def __init__(self, table: MixedDimEmbedding, dtype: torch.dtype, **options: Any) -> None:
        nn.Module.__init__(self)  # not nn.Embedding's, which would make a full weight
        for name, value in options.items():
            setattr(self, name, value)
        self.table = table
        # Moved and converted as a weight is: codes have types of their own.
        empty = torch.empty(0, dtype=dtype, device=table.indices.features.device)
        self.register_buffer("empty_weight", empty, persistent=False)

    @property
    def weight(self) -> Tensor:
        """The matrix that the table stands for: computed anew each time, differentiable, read only."""
        return self.table.dense_weight().to(self.dtype).as_subclass(ComputedWeight)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight":
            raise RuntimeError(REFUSAL)
        super().__setattr__(name, value)

    @property
    def plan(self) -> Plan:
        """How the blocks of the table are stored."""
        return self.table.plan

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept, the map of ids included."""
        return self.table.nbytes

    @property
    def device(self) -> torch.device:
        """Where the table is."""
        return self.empty_weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the vectors."""
        return self.empty_weight.dtype

    def reset_parameters(self) -> NoReturn:
        """Nothing is drawn anew: what was learned would be lost."""
        raise RuntimeError(REFUSAL)

    def extra_repr(self) -> str:
        """What `print(model)` shows."""
        full = self.num_embeddings * self.embedding_dim * self.dtype.itemsize
        widths = ", ".join(str(block.dim) for block in self.plan.blocks)
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return (
            f"{self.num_embeddings}, {self.embedding_dim}{padding}, widths {widths}, "
            f"{format_bytes(self.nbytes)} instead of {format_bytes(full)}"
        )


class CompressedEmbedding(_StandIn, nn.Embedding):  # type: ignore[override]  # weight is computed
    """In the place of an nn.Embedding: the same call, and a `weight` that can be read."""

    def forward(self, input: Tensor) -> Tensor:
        """Look up ids of any shape: (...) -> (..., embedding_dim)."""
        return self.table(input).to(self.dtype)


class CompressedEmbeddingBag(_StandIn, nn.EmbeddingBag):  # type: ignore[override]  # weight is computed
    """In the place of an nn.EmbeddingBag: the same call, and a `weight` that can be read."""

    mode: Literal["sum", "mean", "max"]
    include_last_offset: bool

    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """Look up and pool bags, as `torch.nn.functional.embedding_bag`: -> (bags, embedding_dim)."""
        if per_sample_weights is not None:
            if self.mode != "sum":
                raise ValueError(f"per_sample_weights are for mode 'sum' only, got mode {self.mode!r}")
            if per_sample_weights.shape != input.shape:
                raise ValueError(
                    f"per_sample_weights must have the shape of input, {tuple(input.shape)}, "
                    f"got {tuple(per_sample_weights.shape)}"
                )
            per_sample_weights = per_sample_weights.reshape(-1)
        if input.dim() == 2:
            if offsets is not None:
                raise ValueError("input of two dimensions has its bags in rows: offsets must be None")
            count, length = input.shape
            offsets = torch.arange(count + 1, device=input.device) * length
        elif input.dim() != 1 or offsets is None or offsets.dim() != 1:
            raise ValueError(
                "input must have two dimensions, or one with offsets of one dimension, "
                f"got {input.dim()} and {'no offsets' if offsets is None else tuple(offsets.shape)}"
            )
        elif not self.include_last_offset:
            offsets = torch.cat([offsets, offsets.new_tensor([len(input)])])
        require_integers(input, "input")
        found = look_up_bags(self.table, input.reshape(-1), offsets, per_sample_weights, self.mode)
        return found.squeeze(1).to(self.dtype)


def stand_in_for(
    module: nn.Embedding | nn.EmbeddingBag, table: MixedDimEmbedding
) -> CompressedEmbedding | CompressedEmbeddingBag:
    """What takes the place of a module, with its options, its mode and what others have set on it."""
    options = options_of(module)
    training = options.pop("training")
    kind = CompressedEmbeddingBag if isinstance(module, nn.EmbeddingBag) else CompressedEmbedding
    stand_in = kind(table, module.weight.dtype, **options).train(training)
    for name, value in vars(module).items():
        if not hasattr(stand_in, name):
            setattr(stand_in, name, value)
    return stand_in


def options_of(module: nn.Module) -> dict[str, Any]:
    """What a stand-in is told of the module in whose place it is; values of JSON."""
    names = (*ABOUT_BOTH, *(ABOUT_BAGS if isinstance(module, nn.EmbeddingBag) else ()))
    return {name: getattr(module, name) for name in names}
