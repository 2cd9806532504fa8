"""The layer: a table for each feature, or one in the place of nn.Embedding.

Knows nothing about models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mixdim.kernels.backend import LookupInteractCall, dispatch
from mixdim.kernels.forms import Form, form_of
from mixdim.kernels.ids import require_integers
from mixdim.kernels.split import KeptWeights
from mixdim.kernels.structs import Lookup
from mixdim.layer.embedding_base import MixedEmbeddingBase
from mixdim.layer.idmap import IdMap
from mixdim.layer.interaction import check_interaction_shapes, dot_interaction
from mixdim.layer.kernel_view import KernelView
from mixdim.layer.paths import look_up, look_up_bags
from mixdim.planning.plan import Plan


class FeatureEmbeddings(MixedEmbeddingBase):
    """The vectors of all categorical features of a sample: a table for each feature (paper, Alg. 2).

    Takes the options of `MixedEmbeddingBase`.

    >>> import mixdim
    >>> layer = FeatureEmbeddings(mixdim.plan([1000, 20, 3], temperature=0.3, base_dim=16))
    >>> layer(torch.tensor([[999, 19, 2], [0, 0, 0]])).shape
    torch.Size([2, 3, 16])
    >>> layer(torch.tensor([[1000, 0, 0]]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    mixdim.kernels.ids.IdOutOfRangeError: id 1000 of feature '0' is out of range: ...rows, ...
    """

    _is_frozen = False
    _kept_weights: KeptWeights | None = None

    def forward(self, ids: Tensor) -> Tensor:
        """Look up one id for each sample and feature: (batch, feature) -> (batch, feature, base_dim)."""
        require_integers(ids, "ids")
        self._check_shape(ids)
        return look_up(self, ids)

    def bags(self, values: Tensor, offsets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Look up a bag of ids for each feature and sample and pool it: -> (batch, feature, base_dim).

        The bag of a feature and a sample is `values[offsets[i] : offsets[i + 1]]` with
        `i = feature * batch + sample`, as in TorchRec and FBGEMM; it may be empty. `weights`, one for
        each value, multiply the vectors before they are added. An empty bag gives zeros (ones for
        "product"); "concat" needs bags of one length and gives (batch, feature, length * base_dim).
        """
        return look_up_bags(self, values, offsets, weights)

    def interact(self, dense: Tensor, ids: Tensor) -> Tensor:
        """Return `mixdim.dot_interaction(dense, layer(ids))`: what DLRM's top MLP reads.

        (batch, base_dim), (batch, feature) -> (batch, base_dim + (feature + 1) * feature / 2). The fast
        path never stores the vectors of the features: see `interaction_form`.
        """
        require_integers(ids, "ids")
        self._check_shape(ids)
        check_interaction_shapes(dense.shape, (*ids.shape, self.base_dim))
        view = self.training_view
        if view is not None and view.is_whole:
            call = LookupInteractCall(
                dense,
                partial(self.kernel_lookup, view, ids),
                lambda: view.split_form if self.interaction_form(len(ids)) == "split" else None,
                partial(self._kept, view),
            )
            found = dispatch("lookup_interact", call)
            if found is not None:
                return found
        return dot_interaction(dense, look_up(self, ids))

    def _kept(self, view: KernelView, request: Lookup) -> KeptWeights | None:
        """What follows from weights alone, while these do not change."""
        if not self._is_frozen or torch.is_grad_enabled():
            return None
        if self._kept_weights is None or not self._kept_weights.is_of(request.layer):
            self._kept_weights = KeptWeights(request.layer, view.split_form)
        return self._kept_weights

    def interaction_form(self, batch_size: int) -> Form:
        """How the kernels of `interact` take a batch of this size: "fused" or "split".

        Both are exact; rounding differs. The choice follows from the plan and the batch size alone. The
        environment variable MIXDIM_INTERACTION forces one of them.
        """
        view = self.training_view
        return "fused" if view is None else form_of(view.split_form, batch_size)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Say that weights stay as they are: without gradients, what follows from them alone is kept.

        >>> import mixdim
        >>> layer = FeatureEmbeddings(mixdim.plan([900, 20], temperature=0.3, base_dim=128))
        >>> with torch.no_grad(), layer.frozen():
        ...     layer.interact(torch.zeros(2, 128), torch.tensor([[899, 19], [0, 0]])).shape
        torch.Size([2, 131])
        """
        self._is_frozen = True
        try:
            yield
        finally:
            self._is_frozen, self._kept_weights = False, None

    @property
    def feature_names(self) -> list[str]:
        """What the features are called, in their order."""
        return list(self.plan)

    def _check_shape(self, ids: Tensor) -> None:
        if ids.dim() != 2 or ids.shape[1] != self.plan.num_features:
            raise ValueError(
                f"ids must have shape (batch, {self.plan.num_features} features), got {tuple(ids.shape)}"
            )


class MixedDimEmbedding(MixedEmbeddingBase):
    """One table of mixed dimensions, in the place of an `nn.Embedding`.

    Takes the options of `MixedEmbeddingBase`; `ids` may be the permutation itself.

    >>> import mixdim
    >>> counts = {"item": [9, 5, 4, 1, 1, 1]}
    >>> plan = mixdim.plan({"item": 6}, counts=counts, bands=2, temperature=0.5, base_dim=4)
    >>> table = MixedDimEmbedding(plan)
    >>> table(torch.tensor([[0, 1, 5], [2, 2, 2]])).shape
    torch.Size([2, 3, 4])
    """

    def __init__(self, plan: Plan, *, ids: Any = None, **options: Any) -> None:
        if isinstance(plan, Plan) and plan.num_features != 1:
            names = ", ".join(plan)
            raise ValueError(
                f"MixedDimEmbedding takes the plan of one feature, got {plan.num_features} ({names}): "
                f"pass plan[{next(iter(plan))!r}]"
            )
        if ids is not None and not isinstance(ids, IdMap | Mapping):
            ids = {next(iter(plan)): ids}
        super().__init__(plan, ids=ids, **options)

    @property
    def num_embeddings(self) -> int:
        """Rows, by the name that nn.Embedding uses."""
        return self.plan.num_rows

    @property
    def embedding_dim(self) -> int:
        """Width of the vectors, by the name that nn.Embedding uses."""
        return self.base_dim

    def forward(self, ids: Tensor) -> Tensor:
        """Look up ids of any shape: (...) -> (..., base_dim)."""
        require_integers(ids, "ids")
        return look_up(self, ids.reshape(-1, 1)).view(*ids.shape, self.base_dim)

    def bags(self, values: Tensor, offsets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Look up and pool the bags `values[offsets[i] : offsets[i + 1]]`: -> (batch, base_dim).

        Weights, empty bags and "concat" are as in `FeatureEmbeddings.bags`.
        """
        return look_up_bags(self, values, offsets, weights).squeeze(1)
