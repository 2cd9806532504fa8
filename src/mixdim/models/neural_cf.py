"""Neural collaborative filtering: a rating by an MLP. Knows nothing about tables or training."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mixdim.arguments import real_number
from mixdim.mixed_tables import Init
from mixdim.models.mlp import mlp
from mixdim.models.samples import Samples, check_shape
from mixdim.models.tables import count_trained, width


class NeuralCollaborativeFiltering(nn.Module):
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

    mean: Tensor

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
        super().__init__()
        sides = {"user_embedding": user_embedding, "item_embedding": item_embedding}
        both = sum(width(embedding, name) for name, embedding in sides.items())
        self.user_embedding, self.item_embedding = user_embedding, item_embedding
        self.mlp = mlp((both, *hidden, 1), activation=nn.LeakyReLU, init=init, generator=generator)
        self.register_buffer("mean", torch.tensor(0.0 if mean is None else real_number(mean, "mean")))

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model that training changes."""
        return count_trained(self)

    @property
    def embedding_parameters(self) -> int:
        """Those of them in the embeddings: tables and projections."""
        return count_trained(self.user_embedding, self.item_embedding)

    def forward(self, samples: Samples) -> Tensor:
        """Return the rating of each sample: (batch,). Reads only `samples.ids`: users, then items."""
        check_shape(samples.ids, "ids", 2, "user and item")
        user_ids, item_ids = samples.ids.unbind(1)
        both = torch.cat([self.user_embedding(user_ids), self.item_embedding(item_ids)], dim=1)
        return self.mlp(both).squeeze(1) + self.mean
