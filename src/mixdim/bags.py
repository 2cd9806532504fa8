"""What a bag of ids is and how its vectors become one. Knows nothing about tables."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from mixdim.ids import require_integers

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
        counts = torch.bincount(self.numbers, minlength=self.batch_size * self.num_features)
        return counts.view(self.batch_size, self.num_features)

    def common_length(self) -> int:
        """How many values every bag has, if it is the same number; else say that it is not."""
        lengths = self.lengths()
        if lengths.numel() == 0:
            return 0
        shortest, longest = (int(bound) for bound in lengths.aminmax())
        if shortest != longest:
            raise ValueError(
                "pooling='concat' needs the same number of ids in every bag, "
                f"got bags of {shortest} to {longest} ids"
            )
        return longest


def check_pooling(pooling: str) -> None:
    """Say which poolings there are, if `pooling` is not one of them."""
    if pooling not in get_args(Pooling):
        raise ValueError(f"pooling must be one of {', '.join(get_args(Pooling))}, got {pooling!r}")


def read_bags(values: Tensor, offsets: Tensor, weights: Tensor | None, num_features: int) -> Bags:
    """Check and unroll bags given as values and feature-major offsets.

    Bag `feature * B + sample` holds `values[offsets[bag] : offsets[bag + 1]]`, as in TorchRec and
    FBGEMM.
    """
    require_integers(values, "values")
    require_integers(offsets, "offsets")
    if values.dim() != 1 or offsets.dim() != 1:
        raise ValueError(
            "values and offsets must have one dimension, "
            f"got shapes {tuple(values.shape)} and {tuple(offsets.shape)}"
        )
    num_bags = len(offsets) - 1
    if num_bags < 0 or num_bags % num_features:
        raise ValueError(
            f"offsets must have batch_size * {num_features} features + 1 entries, got {len(offsets)}"
        )
    lengths = offsets.diff()
    if int(offsets[0]) != 0 or int(offsets[-1]) != len(values) or bool((lengths < 0).any()):
        raise ValueError(
            f"offsets must rise from 0 to the number of values {len(values)} and never fall, "
            f"got {int(offsets[0])} to {int(offsets[-1])}"
        )
    if weights is not None:
        if not weights.is_floating_point():
            raise TypeError(f"weights must be floating point, got {weights.dtype}")
        if weights.shape != values.shape:
            raise ValueError(
                f"weights must have one entry for each of {len(values)} values, "
                f"got shape {tuple(weights.shape)}"
            )
    batch_size = num_bags // num_features
    bag = torch.arange(num_bags, device=values.device).repeat_interleave(lengths.to(values.device))
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
