"""What models ask of the embeddings they are given: vectors of samples, widths, rows.

Knows nothing about how embeddings store vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from mixdim._util.arguments import whole_number
from mixdim.kernels import exporting
from mixdim.layer.embedding_base import MixedEmbeddingBase
from mixdim.layer.interaction import dot_interaction
from mixdim.layer.paths import look_up_by_feature
from mixdim.models.samples import Samples, check_bags, check_shape, join_bags
from mixdim.planning.from_counts import plan as make_plan
from mixdim.planning.plan import Plan


@runtime_checkable
class FeatureLayer(Protocol):
    """The embeddings of all features of a sample: a `mixdim.FeatureEmbeddings`, or the tables below."""

    @property
    def base_dim(self) -> int:
        """Width of every vector."""

    @property
    def num_features(self) -> int:
        """How many vectors a sample has."""

    def __call__(self, ids: Tensor) -> Tensor:
        """Look up single ids: (batch, features) -> (batch, features, base_dim)."""

    def interact(self, dense: Tensor, ids: Tensor) -> Tensor:
        """Look up and interact: (batch, base_dim), (batch, features) -> as `mixdim.dot_interaction`."""


@runtime_checkable
class BagLayer(FeatureLayer, Protocol):
    """One that takes bags of ids too."""

    @property
    def feature_names(self) -> Sequence[str]:
        """What the features are called, in their order."""

    def bags(self, values: Tensor, offsets: Tensor) -> Tensor:
        """Pool bags: (values,), (features * batch + 1,) -> (batch, features, base_dim)."""


class FeatureTables(nn.ModuleList):
    """One embedding a feature, such as `nn.Embedding`, as the layer of all features that DLRM calls.

    Each takes ids (batch,) and returns vectors (batch, base_dim).

    >>> tables = FeatureTables([nn.Embedding(1000, 4), nn.Embedding(20, 4)])
    >>> tables.interact(torch.ones(5, 4), torch.zeros(5, 2, dtype=torch.int64)).shape
    torch.Size([5, 7])
    """

    def __init__(self, tables: Iterable[nn.Module]) -> None:
        super().__init__(tables)
        if not len(self):
            raise ValueError("embeddings must have at least one feature, got none")
        self.base_dim = common_width({f"feature {n}": table for n, table in enumerate(self)})

    @property
    def num_features(self) -> int:
        """One for each module."""
        return len(self)

    def forward(self, ids: Tensor) -> Tensor:
        """Look up single ids: (batch, features) -> (batch, features, base_dim)."""
        check_shape(ids, "ids", len(self), "the features")
        vectors = [table(column) for table, column in zip(self, ids.unbind(1), strict=True)]
        return torch.stack(vectors, dim=1)

    def interact(self, dense: Tensor, ids: Tensor) -> Tensor:
        """Look up and interact: (batch, base_dim), (batch, features) -> as `mixdim.dot_interaction`."""
        return dot_interaction(dense, self(ids))


def look_up(embeddings: FeatureLayer, samples: Samples) -> Tensor:
    """The vectors of all features of samples: -> (batch, features, base_dim).

    With bags, columns of `samples.ids` are the features without bags, in the order of the plan.
    """
    if not samples.bags:
        return embeddings(samples.ids)
    if not isinstance(embeddings, BagLayer):
        raise TypeError(
            "bags need the embeddings of a mixdim.FeatureEmbeddings, this model has one module a "
            f"feature; got bags of {', '.join(samples.bags)}"
        )
    if exporting() and isinstance(embeddings, MixedEmbeddingBase):
        check_bags(samples.ids, samples.bags, embeddings.feature_names)
        return look_up_by_feature(embeddings, samples.ids, samples.bags)
    return embeddings.bags(*join_bags(samples.ids, samples.bags, embeddings.feature_names))


def interact(dense: Tensor, embeddings: FeatureLayer, samples: Samples) -> Tensor:
    """`mixdim.dot_interaction` of a dense vector and the features, on the fast path if there is one."""
    if samples.bags:
        return dot_interaction(dense, look_up(embeddings, samples))
    return embeddings.interact(dense, samples.ids)


def layer_of_all_features(embeddings: nn.Module | Iterable[nn.Module]) -> FeatureLayer:
    """What can look up all features of a sample, or else a layer of one module a feature."""
    if isinstance(embeddings, FeatureLayer):
        return embeddings
    if isinstance(embeddings, Iterable):
        return FeatureTables(embeddings)
    raise TypeError(
        "embeddings must be a mixdim.FeatureEmbeddings or a sequence of modules, one a feature, "
        f"got {type(embeddings).__name__}"
    )


def width(embedding: nn.Module, name: str) -> int:
    """How wide an embedding's vectors are: its `base_dim`, or `embedding_dim` as in nn.Embedding."""
    for attribute in ("base_dim", "embedding_dim"):
        if hasattr(embedding, attribute):
            return whole_number(getattr(embedding, attribute), f"{attribute} of {name}")
    raise TypeError(
        f"{name} must say how wide its vectors are, as its base_dim or embedding_dim; "
        f"{type(embedding).__name__} does not"
    )


def common_width(embeddings: Mapping[str, nn.Module]) -> int:
    """The width of the vectors of all these embeddings; an error if it is not one.

    >>> common_width({"user": nn.Embedding(9, 4), "item": nn.Embedding(7, 8)})
    Traceback (most recent call last):
    ValueError: all embeddings must have one width, got 4 for user and 8 for item
    """
    widths = {name: width(embedding, name) for name, embedding in embeddings.items()}
    (first, expected), *others = widths.items()
    for name, found in others:
        if found != expected:
            raise ValueError(
                f"all embeddings must have one width, got {expected} for {first} and {found} for {name}"
            )
    return expected


def number_plan(plan: Plan) -> Plan:
    """The plan of one number for each id: of first-order weights and of biases.

    >>> import mixdim
    >>> number_plan(mixdim.plan({"item": 80}, temperature=0, base_dim=16)).nbytes()
    320
    """
    rows = {feature.name: feature.rows for feature in plan.features}
    return make_plan(rows, temperature=0, base_dim=1)


def count_trained(*modules: nn.Module) -> int:
    """Parameters that training changes, each counted once even where modules share it.

    >>> table = nn.Embedding(9, 4)
    >>> count_trained(table, table)
    36
    """
    parameters = nn.ModuleList(modules).parameters()
    return sum(parameter.numel() for parameter in parameters if parameter.requires_grad)


def rows_of(module: nn.Module) -> dict[str, int]:
    """The rows of each feature of an embedding, by name.

    >>> rows_of(FeatureTables([nn.Embedding(1000, 4), nn.Embedding(20, 4)]))
    {'0': 1000, '1': 20}
    """
    if isinstance(module, MixedEmbeddingBase):
        return {feature.name: feature.rows for feature in module.plan.features}
    tables = module if isinstance(module, FeatureTables) else [module]
    return {str(number): len(plain_weight(table)) for number, table in enumerate(tables)}


def plain_weight(module: nn.Module) -> Tensor:
    """The matrix that an nn.Embedding looks up in; an error if it does more than that."""
    if type(module) is not nn.Embedding or module.max_norm is not None:
        raise ValueError(
            "an embedding to export must be a mixdim layer or an nn.Embedding without max_norm, "
            f"got {module}"
        )
    return module.weight
