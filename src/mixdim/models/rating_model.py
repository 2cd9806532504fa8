"""What models of ratings share: the embeddings of users and items, and a mean. Knows no formula."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mixdim._util.arguments import real_number
from mixdim.models.samples import Samples, check_shape
from mixdim.models.tables import count_trained


class RatingModel(nn.Module):
    """A user's and an item's embedding, and a constant that is saved with the state, not trained."""

    mean: Tensor

    def __init__(
        self, user_embedding: nn.Module, item_embedding: nn.Module, *, mean: float | None
    ) -> None:
        super().__init__()
        self.user_embedding, self.item_embedding = user_embedding, item_embedding
        self.register_buffer("mean", torch.tensor(0.0 if mean is None else real_number(mean, "mean")))

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model that training changes."""
        return count_trained(self)

    @property
    def embedding_parameters(self) -> int:
        """Those of them in the embeddings: tables and projections, and nothing else."""
        return count_trained(self.user_embedding, self.item_embedding)


def user_and_item_ids(samples: Samples) -> tuple[Tensor, Tensor]:
    """The two columns of `samples.ids`: users, then items."""
    check_shape(samples.ids, "ids", 2, "user and item")
    user_ids, item_ids = samples.ids.unbind(1)
    return user_ids, item_ids
