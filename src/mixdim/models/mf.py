"""Matrix factorisation: a rating is a dot product. Knows nothing about tables or training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

from mixdim._util.arguments import whole_number
from mixdim._util.options import opt
from mixdim.layer.embedding import MixedDimEmbedding
from mixdim.layer.embedding_base import MixedEmbeddingBase, empty_layer
from mixdim.layer.scores import dot_scores
from mixdim.models.base import PAIRS, PANEL, Baseline, Drawn, Facts, MakeLayer, register
from mixdim.models.pairs import PairModel, mixed_table, sides_of, user_and_item_ids
from mixdim.models.samples import Samples, Seen
from mixdim.models.tables import common_width, number_plan
from mixdim.planning.plan import Plan

if TYPE_CHECKING:
    from mixdim.serving.graph import Graph
    from mixdim.serving.layer_graph import GraphInputs


@register("mf", takes=PAIRS, bands=8)
class MatrixFactorization(PairModel):
    """The rating of a user and an item as the dot product of their vectors (paper, Sec. 5).

    rating = <u, v> + mean + b_user + b_item, the last three where they are on. Of clicks, or positives
    and negatives, it is a logit.

    - `user_embedding`, `item_embedding`: from ids (batch,) to vectors (batch, base_dim): a
      `mixdim.MixedDimEmbedding`, an nn.Embedding, or another module that says its `embedding_dim`.
    - `mean`: a constant, such as the mean of the ratings, or the logit of the share of clicks; it is
      saved with the state, not trained.
    - `biases`: whether each user and item has a number of its own, zero at first. (The paper does
      not say whether it had them.) The embeddings then must say their `num_embeddings`.

    >>> from types import SimpleNamespace
    >>> import mixdim
    >>> plan = mixdim.plan({"user": 100, "item": 80}, temperature=0.3, base_dim=8)
    >>> users, items = (mixdim.MixedDimEmbedding(plan[name]) for name in plan)
    >>> model = MatrixFactorization(users, items, mean=3.5, biases=True)
    >>> model(SimpleNamespace(ids=torch.tensor([[99, 79], [0, 0]]))).shape
    torch.Size([2])
    >>> model.num_parameters - model.embedding_parameters
    180
    """

    baselines = ("biases", "logistic")
    baseline_needs = ("mean", "biases")

    @dataclass(frozen=True)
    class Options:
        """What `mixdim train --model mf` can be told."""

        mean: bool = opt(True, "Add the mean target to every score.", panel=PANEL)
        biases: bool = opt(True, "Add a number for each user and item.", panel=PANEL)
        from_baseline: bool = opt(
            False,
            "Begin as the baseline that the model contains.",
            panel=PANEL,
            from_data=True,
            absent=False,
        )

    @classmethod
    def auto(cls, facts: Facts) -> Options:
        """Begin where the baseline ends: vectors have the rest to learn."""
        return cls.Options(from_baseline=True)

    @classmethod
    def numbers_per_id(cls, options: Options) -> int:
        """Its bias, if it has one."""
        return int(options.biases)

    @classmethod
    def build(
        cls, plan: Plan, facts: Facts, options: Options, drawn: Drawn, layer: MakeLayer | None = None
    ) -> Self:
        """Make the model of a plan; `layer` makes a side's embeddings, mixdim's own if not given."""
        users, items = sides_of(plan, drawn, layer or mixed_table)
        mean = facts.constant if options.mean else None
        return cls(users, items, mean=mean, biases=options.biases)

    def __init__(
        self,
        user_embedding: nn.Module,
        item_embedding: nn.Module,
        *,
        mean: float | None = None,
        biases: bool = False,
    ) -> None:
        super().__init__(user_embedding, item_embedding, mean=mean)
        common_width({"user_embedding": user_embedding, "item_embedding": item_embedding})
        sides = {"user": user_embedding, "item": item_embedding} if biases else {}
        self.biases = nn.ModuleDict({name: _zero_for_each_row(side) for name, side in sides.items()})

    @torch.no_grad()
    def start_from(self, baseline: Baseline) -> None:
        """Let the biases begin with those of a baseline, (users,) and (items,), instead of zero."""
        self.mean.add_(baseline.shift)
        for table, values in zip(self.biases.values(), baseline.of_ids.values(), strict=True):
            if isinstance(table, MixedDimEmbedding):
                table.fit_dense(next(iter(table.plan)), values.reshape(-1, 1))
            else:
                table.weight.copy_(values.reshape(-1, 1))  # type: ignore[operator]  # of nn.Embedding

    def numbers_of_ids(self) -> Mapping[str, Sequence[nn.Module]]:
        """The biases, if there are any."""
        return {"biases": [*self.biases.values()]} if self.biases else {}

    def embedding_layers(self) -> list[MixedEmbeddingBase]:
        """The layers that the plan is of: biases are not."""
        return [side for side in self.sides if isinstance(side, MixedEmbeddingBase)]

    def forward(self, samples: Samples, seen: Seen | None = None) -> Tensor:
        """Return the rating of each sample: (batch,). Reads only `samples.ids`: users, then items."""
        ids = user_and_item_ids(samples)
        if seen is None:
            ratings = dot_scores(self.user_embedding, ids[0], self.item_embedding, ids[1])
        else:
            users, items = self.look_up(ids, seen)
            ratings = (users * items).sum(1)
        ratings = ratings + self.mean
        for column, bias in enumerate(self.biases.values()):  # none, or both
            of_side = bias(ids[column]).squeeze(1)
            ratings = ratings + of_side
            if seen is not None:
                seen.biases(column, of_side)
        return ratings

    def pair_vectors(self, column: int, ids: Tensor) -> Tensor:
        """Vectors (ids, width) of users (0) or items (1): [u, b_user, 1] and [v, 1, b_item]."""
        vectors: Tensor = self.sides[column](ids)
        if not len(self.biases):
            return vectors
        bias = list(self.biases.values())[column](ids)  # (ids, 1)
        one = torch.ones_like(bias)
        return torch.cat([vectors, *((one, bias) if column else (bias, one))], dim=1)

    def to_graph(self, graph: Graph, inputs: GraphInputs) -> str:
        """Write the forward pass as ONNX operators; returns the name of the outputs, (batch,)."""
        vectors, columns = self.sides_in_graph(inputs)
        scores = graph.add("ReduceSum", graph.add("Mul", *vectors), graph.constant([-1]), keepdims=0)
        terms = [scores, graph.weights(self.mean)]
        for bias, column in zip(self.biases.values(), columns, strict=False):  # none, or both
            terms.append(graph.reshape(inputs.look_up_checked(bias, column), [-1]))
        return graph.add("Sum", *terms)


def _zero_for_each_row(embedding: nn.Module) -> nn.Module:
    """A number for each id, all zero, with gradients of the kind that the embedding has."""
    if isinstance(embedding, MixedDimEmbedding):
        return empty_layer(MixedDimEmbedding, number_plan(embedding.plan), sparse=embedding.sparse)
    if not hasattr(embedding, "num_embeddings"):
        raise TypeError(
            f"biases=True needs embeddings that say their num_embeddings; {type(embedding).__name__} "
            "does not"
        )
    zeros = torch.zeros(whole_number(embedding.num_embeddings, "num_embeddings"), 1)
    sparse = getattr(embedding, "sparse", False)
    return nn.Embedding.from_pretrained(zeros, freeze=False, sparse=sparse)
