"""DLRM: click-through rates from numbers and categories. Knows nothing about tables or training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from mixdim._util.arguments import whole_number
from mixdim.layer.interaction import dot_interaction
from mixdim.models.mlp import draw_weights, mlp
from mixdim.models.samples import Samples, check_shape, join_bags
from mixdim.models.tables import BagLayer, FeatureLayer, count_trained, layer_of_all_features
from mixdim.storages.init import Init


class DLRM(nn.Module):
    """The deep learning recommendation model of Naumov et al. 2019, the paper's model for CTR.

    A bottom MLP makes one vector of a sample's numbers; it meets the vectors of the categorical
    features in `mixdim.dot_interaction`; a top MLP makes that one logit.

    - `embeddings`: a `mixdim.FeatureEmbeddings`; or one module a feature, such as nn.Embedding, each
      from ids (batch,) to vectors (batch, base_dim). Only the first takes bags.
    - `num_dense`: numbers of a sample. If there are none, one learned vector, the same for all
      samples, takes the place of the bottom MLP's output.
    - `bottom`, `top`: widths of the hidden layers: num_dense-512-256-64-base_dim, with a ReLU after
      every layer, and 512-256-1. (The paper does not give them; these are its authors' later ones.)
    - `init`, `generator`: how the MLPs' weights are drawn, as in `mixdim.models.mlp`.

    >>> from types import SimpleNamespace
    >>> import mixdim
    >>> embeddings = mixdim.FeatureEmbeddings(mixdim.plan([900, 30], temperature=0.3, base_dim=16))
    >>> model = DLRM(embeddings, num_dense=13)
    >>> ids = torch.tensor([[899, 29], [0, 0], [7, 1]])
    >>> model(SimpleNamespace(ids=ids, dense=torch.zeros(3, 13), bags={})).shape
    torch.Size([3])
    """

    def __init__(
        self,
        embeddings: nn.Module | Iterable[nn.Module],
        *,
        num_dense: int,
        bottom: Sequence[int] = (512, 256, 64),
        top: Sequence[int] = (512, 256),
        init: Init = "xavier",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.num_dense = whole_number(num_dense, "num_dense", at_least=0)
        self.embeddings: FeatureLayer = layer_of_all_features(embeddings)
        base_dim, num_slots = self.embeddings.base_dim, self.embeddings.num_features + 1
        self.bottom: nn.Module
        if self.num_dense:
            widths = (self.num_dense, *bottom, base_dim)
            self.bottom = mlp(widths, init=init, generator=generator).append(nn.ReLU())
        else:
            self.bottom = LearnedVector(base_dim, init=init, generator=generator)
        num_columns = base_dim + num_slots * (num_slots - 1) // 2
        self.top = mlp((num_columns, *top, 1), init=init, generator=generator)

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model that training changes."""
        return count_trained(self)

    @property
    def embedding_parameters(self) -> int:
        """Those of them in the embeddings: tables and projections."""
        return count_trained(self.get_submodule("embeddings"))

    @torch.no_grad()
    def start_with_zero(self) -> None:
        """Let every logit begin with 0, by the weights of the last layer: for what is added to it."""
        for weight in self.top[-1].parameters():
            weight.zero_()

    def forward(self, samples: Samples) -> Tensor:
        """Return the logit of each sample: (batch,).

        With bags, columns of `samples.ids` are the features without bags, in the order of the plan.
        """
        check_shape(samples.dense, "dense", self.num_dense, "the numbers of a sample")
        dense = self.bottom(samples.dense)  # (batch, base_dim)
        return self.top(self._interact(dense, samples)).squeeze(1)

    def _interact(self, dense: Tensor, samples: Samples) -> Tensor:
        """Let the features' vectors meet the dense one: -> (batch, columns of the top MLP)."""
        if not samples.bags:
            return self.embeddings.interact(dense, samples.ids)
        if not isinstance(self.embeddings, BagLayer):
            raise TypeError(
                "bags need the embeddings of a mixdim.FeatureEmbeddings, this model has one module a "
                f"feature; got bags of {', '.join(samples.bags)}"
            )
        bags = join_bags(samples.ids, samples.bags, self.embeddings.feature_names)
        return dot_interaction(dense, self.embeddings.bags(*bags))


class LearnedVector(nn.Module):
    """One vector for every sample, whatever it is: (batch, 0) -> (batch, width)."""

    def __init__(self, width: int, *, init: Init, generator: torch.Generator | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, width))
        draw_weights(self.weight, init=init, generator=generator)

    def forward(self, nothing: Tensor) -> Tensor:
        """Repeat the vector for each row of `nothing`."""
        return self.weight.expand(len(nothing), -1)
