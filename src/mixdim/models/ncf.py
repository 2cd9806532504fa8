"""Neural collaborative filtering: a rating by an MLP. Knows nothing about tables or training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

from mixdim._util.options import opt
from mixdim.models.base import PAIRS, PANEL, Drawn, Facts, MakeLayer, register
from mixdim.models.mlp import layers_in_graph, mlp, single_column
from mixdim.models.pairs import PairModel, mixed_table, sides_of, user_and_item_ids
from mixdim.models.samples import Samples, Seen
from mixdim.models.tables import width
from mixdim.planning.plan import Plan
from mixdim.storages.init import Init

if TYPE_CHECKING:
    from mixdim.serving.graph import Graph
    from mixdim.serving.layer_graph import GraphInputs


@register("ncf", takes=PAIRS, bands=8)
class NeuralCollaborativeFiltering(PairModel):
    """The rating of a user and an item by an MLP that reads their vectors side by side (paper, Sec. 5).

    rating = MLP([u, v]) + mean, with LeakyReLU between the layers.

    - `user_embedding`, `item_embedding`: from ids (batch,) to vectors (batch, width): a
      `mixdim.MixedDimEmbedding`, an nn.Embedding, or another module that says its `embedding_dim`.
    - `hidden`: widths of the hidden layers.
    - `mean`: a constant, such as the mean of the ratings; it is saved with the state, not trained.
    - `init`, `generator`: how the MLP's weights are drawn, as in `mixdim.models.mlp`.

    >>> from types import SimpleNamespace
    >>> import mixdim
    >>> plan = mixdim.plan({"user": 100, "item": 80}, temperature=0.3, base_dim=8)
    >>> users, items = (mixdim.MixedDimEmbedding(plan[name]) for name in plan)
    >>> model = NeuralCollaborativeFiltering(users, items, mean=3.5)
    >>> model(SimpleNamespace(ids=torch.tensor([[99, 79], [0, 0]]))).shape
    torch.Size([2])
    """

    @dataclass(frozen=True)
    class Options:
        """What `mixdim train --model ncf` can be told."""

        hidden: tuple[int, ...] = opt((128, 128, 32), "Hidden widths of the MLP.", panel=PANEL)
        mean: bool = opt(True, "Add the mean target to every score.", panel=PANEL)

    @classmethod
    def build(
        cls, plan: Plan, facts: Facts, options: Options, drawn: Drawn, layer: MakeLayer | None = None
    ) -> Self:
        """Make the model of a plan; `layer` makes a side's embeddings, mixdim's own if not given."""
        users, items = sides_of(plan, drawn, layer or mixed_table)
        mean = facts.constant if options.mean else None
        return cls(users, items, hidden=options.hidden, mean=mean, **drawn._asdict())

    def __init__(
        self,
        user_embedding: nn.Module,
        item_embedding: nn.Module,
        *,
        hidden: Sequence[int] = (128, 128, 32),
        mean: float | None = None,
        init: Init = "xavier",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(user_embedding, item_embedding, mean=mean)
        sides = {"user_embedding": user_embedding, "item_embedding": item_embedding}
        both = sum(width(embedding, name) for name, embedding in sides.items())
        self.mlp = mlp((both, *hidden, 1), activation=nn.LeakyReLU, init=init, generator=generator)

    def forward(self, samples: Samples, seen: Seen | None = None) -> Tensor:
        """Return the rating of each sample: (batch,). Reads only `samples.ids`: users, then items."""
        both = torch.cat(self.look_up(user_and_item_ids(samples), seen), dim=1)
        return self.mlp(both).squeeze(1) + self.mean

    def to_graph(self, graph: Graph, inputs: GraphInputs) -> str:
        """Write the forward pass as ONNX operators; returns the name of the outputs, (batch,)."""
        vectors, _ = self.sides_in_graph(inputs)
        outputs = layers_in_graph(graph, self.mlp, graph.concat(vectors, axis=1))
        return graph.add("Add", single_column(graph, outputs), graph.weights(self.mean))
