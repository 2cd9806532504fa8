"""What a bag of ids is and how its vectors become one. Knows nothing about tables."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from mixdim.kernels.ids import check_offsets, require_integers

Pooling = Literal["sum", "mean", "max", "product", "concat"]


class Bags(NamedTuple):
    """Ids with the feature and the sample that each belongs to, sorted by feature, then sample."""

    values: Tensor  # (V,)
    features: Tensor  # (V,)
    samples: Tensor  # (V,)
    weights: Tensor | None  # (V,)
    num_features: int
    batch_size: int

    def where(self, keep: Tensor) -> Bags:
        """The bags with only the values where `keep` is true: (V,) bool."""
        here = keep.nonzero().squeeze(1)
        return self._replace(
            values=self.values[here],
            features=self.features[here],
            samples=self.samples[here],
            weights=None if self.weights is None else self.weights[here],
        )

    @property
    def numbers(self) -> Tensor:
        """The number of the bag that each value is in, sample by sample: (V,) in [0, B * F)."""
        return self.samples * self.num_features + self.features

    def lengths(self) -> Tensor:
        """How many values each bag has: (B, F)."""
        counts = self.values.new_zeros(self.batch_size * self.num_features)
        counts = counts.index_add(0, self.numbers, torch.ones_like(self.values))
        return counts.view(self.batch_size, self.num_features)


def check_pooling(pooling: str) -> None:
    """Say which poolings there are, if `pooling` is not one of them."""
    if pooling not in get_args(Pooling):
        raise ValueError(f"pooling must be one of {', '.join(get_args(Pooling))}, got {pooling!r}")


def check_bags(values: Tensor, offsets: Tensor, weights: Tensor | None, num_features: int) -> None:
    """Refuse bags of the wrong types or shapes, whatever their numbers are."""
    require_integers(values, "values")
    require_integers(offsets, "offsets")
    if values.dim() != 1 or offsets.dim() != 1:
        raise ValueError(
            "values and offsets must have one dimension, "
            f"got shapes {tuple(values.shape)} and {tuple(offsets.shape)}"
        )
    if offsets.shape[0] < 1 or (offsets.shape[0] - 1) % num_features:
        raise ValueError(
            f"offsets must have batch_size * {num_features} features + 1 entries, got {len(offsets)}"
        )
    if weights is not None:
        if not weights.is_floating_point():
            raise TypeError(f"weights must be floating point, got {weights.dtype}")
        if weights.shape != values.shape:
            raise ValueError(
                f"weights must have one entry for each of {len(values)} values, "
                f"got shape {tuple(weights.shape)}"
            )


@torch.library.custom_op("mixdim::checked_offsets", mutates_args=())
def checked_offsets(offsets: Tensor, num_values: int, one_length: bool) -> Tensor:
    """Check offsets and return them as int64: as an operator, so that it also runs inside a graph."""
    check_offsets(offsets, num_values, one_length=one_length)
    return offsets.to(torch.int64, copy=True)


@checked_offsets.register_fake
def _(offsets: Tensor, num_values: int, one_length: bool) -> Tensor:
    return torch.empty_like(offsets, dtype=torch.int64)


def unroll_bags(values: Tensor, offsets: Tensor, weights: Tensor | None, num_features: int) -> Bags:
    """Say of each value which bag it is in.

    Bag `feature * B + sample` holds `values[offsets[bag] : offsets[bag + 1]]`, as in TorchRec and
    FBGEMM.
    """
    num_bags, num_values = offsets.shape[0] - 1, values.shape[0]
    lengths = offsets.diff().to(values.device)
    bags = torch.arange(num_bags, device=values.device)
    bag = bags.repeat_interleave(lengths, output_size=num_values)
    batch_size = num_bags // num_features
    size = max(batch_size, 1)
    return Bags(values, bag // size, bag % size, weights, num_features, batch_size)


def reduce_bags(bags: Bags, vectors: Tensor, pooling: Literal["max", "product"]) -> Tensor:
    """Take the largest, or the product, of each bag's vectors: (V, base_dim) -> (B, F, base_dim).

    An empty bag gives zeros for max, as nn.EmbeddingBag does, and ones for the product.
    """
    neutral = 0.0 if pooling == "max" else 1.0
    start = vectors.new_full((bags.batch_size * bags.num_features, vectors.shape[1]), neutral)
    pooled = start.scatter_reduce(
        0,
        bags.numbers[:, None].expand_as(vectors),
        vectors,
        reduce="amax" if pooling == "max" else "prod",
        include_self=pooling == "product",
    )
    return pooled.view(bags.batch_size, bags.num_features, vectors.shape[1])
