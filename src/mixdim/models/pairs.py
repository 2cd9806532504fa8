"""What models of users and items share: two embeddings, and a mean. Knows no formula."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mixdim._util.arguments import real_number
from mixdim.layer.bags import Pooling
from mixdim.layer.embedding import MixedDimEmbedding
from mixdim.layer.embedding_base import empty_layer
from mixdim.models.base import Drawn, MakeLayer, Model
from mixdim.models.samples import Samples, Seen, check_shape
from mixdim.models.tables import count_trained, rows_of
from mixdim.planning.plan import Plan

if TYPE_CHECKING:
    from mixdim.serving.layer_graph import GraphInputs


def mixed_table(plan: Plan, drawn: Drawn | None, *, pooling: Pooling = "sum") -> MixedDimEmbedding:
    """The table of one feature that a model of a run has unless it is told otherwise."""
    if drawn is None:
        return empty_layer(MixedDimEmbedding, plan, sparse=True, pooling=pooling)
    return MixedDimEmbedding(plan, sparse=True, pooling=pooling, **drawn._asdict())


def sides_of(plan: Plan, drawn: Drawn, layer: MakeLayer) -> list[nn.Module]:
    """The embeddings of users and of items, by a plan of both."""
    return [layer(plan[name], drawn) for name in plan]


class PairModel(Model):
    """A user's and an item's embedding, and a constant that is saved with the state, not trained."""

    task = "rating"
    one_layer = False
    shows_vectors = True
    mean: Tensor

    def __init__(
        self, user_embedding: nn.Module, item_embedding: nn.Module, *, mean: float | None
    ) -> None:
        super().__init__()
        self.user_embedding, self.item_embedding = user_embedding, item_embedding
        self.register_buffer("mean", torch.tensor(0.0 if mean is None else real_number(mean, "mean")))

    @property
    def sides(self) -> tuple[nn.Module, nn.Module]:
        """The embeddings of users and of items."""
        return self.user_embedding, self.item_embedding

    @property
    def embedding_parameters(self) -> int:
        """Those of them in the embeddings: tables and projections, and nothing else."""
        return count_trained(*self.sides)

    def feature_rows(self) -> dict[str, int]:
        """The rows of users and of items, by name."""
        users, items = map(rows_of, self.sides)
        if users.keys() == items.keys():  # such as those of two nn.Embedding
            users, items = {"user": sum(users.values())}, {"item": sum(items.values())}
        return users | items

    def look_up(self, ids: tuple[Tensor, Tensor], seen: Seen | None) -> tuple[Tensor, Tensor]:
        """The vectors of users and of items: (batch,) twice -> (batch, width) twice."""
        users, items = self.user_embedding(ids[0]), self.item_embedding(ids[1])
        if seen is not None:
            seen.vectors(0, users)
            seen.vectors(1, items)
        return users, items

    def sides_in_graph(self, inputs: GraphInputs) -> tuple[list[str], list[str]]:
        """Vectors (batch, base_dim) of users and of items in an ONNX graph, and their ids (batch,)."""
        return inputs.look_up_columns(dict(zip(self.feature_rows(), self.sides, strict=True)))


def user_and_item_ids(samples: Samples) -> tuple[Tensor, Tensor]:
    """The two columns of `samples.ids`: users, then items."""
    check_shape(samples.ids, "ids", 2, "user and item")
    user_ids, item_ids = samples.ids.unbind(1)
    return user_ids, item_ids
