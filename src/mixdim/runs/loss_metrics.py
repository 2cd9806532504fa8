"""Which directions of its tables a run's loss can feel. Changes nothing in the run."""

from __future__ import annotations

import copy
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from mixdim.data import Dataset
from mixdim.layer.embedding_base import MixedEmbeddingBase
from mixdim.layer.interaction import dot_interaction
from mixdim.models import Model
from mixdim.tasks import task_of

SAMPLES, BATCH = 2**17, 2**12  # of the training split, to take gradients of


def loss_metrics(model: Model, dataset: Dataset) -> dict[str, Tensor]:
    """E[g g^T] of the loss's gradient g at the vectors of each feature, by its name.

    Of a bag, it is the gradient at its pooled vector.
    """
    felt = {id(layer): _Felt(layer) for layer in model.embedding_layers()}
    model = copy.deepcopy(model, dict(felt))  # what the memo has, is not copied but taken
    loss = task_of(dataset.task).loss
    for batch in islice(
        dataset.batches("train", batch_size=BATCH, shuffle=True), max(1, SAMPLES // BATCH)
    ):
        with torch.enable_grad():
            lost = loss(model(batch), batch.target)
        for layer in felt.values():
            layer.add_gradients(lost)
    return {name: metric for layer in felt.values() for name, metric in layer.metrics().items()}


class _Felt(nn.Module):
    """In the place of a layer: its vectors, and what gradients come back to them."""

    def __init__(self, layer: MixedEmbeddingBase) -> None:
        super().__init__()
        self.layer: Any = layer
        self.looked_up: list[Tensor] = []
        shape = (layer.num_features, layer.base_dim, layer.base_dim)
        self.squares = torch.zeros(shape, dtype=torch.float64)
        self.samples = 0

    def __getattr__(self, name: str) -> Any:
        """Whatever else a model asks its embeddings."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.layer, name)

    def forward(self, ids: Tensor) -> Tensor:
        """Look up."""
        return self._kept(self.layer(ids))

    def bags(self, values: Tensor, offsets: Tensor) -> Tensor:
        """Look up and pool."""
        return self._kept(self.layer.bags(values, offsets))

    def interact(self, dense: Tensor, ids: Tensor) -> Tensor:
        """Look up and interact, by way of the vectors."""
        return dot_interaction(dense, self(ids))

    def _kept(self, vectors: Tensor) -> Tensor:
        self.looked_up.append(vectors.detach().requires_grad_())
        return self.looked_up[-1]

    def add_gradients(self, lost: Tensor) -> None:
        """Add g g^T of the vectors that were looked up since the last time."""
        for gradient in torch.autograd.grad(lost, self.looked_up, retain_graph=True):
            rows = gradient.double().reshape(-1, *self.squares.shape[:2])  # (batch, feature, base_dim)
            self.squares += torch.einsum("bfi,bfj->fij", rows, rows)
            self.samples += len(rows)
        self.looked_up.clear()

    def metrics(self) -> dict[str, Tensor]:
        """By the names of the features: how much the loss feels each, too."""
        means = self.squares / max(self.samples, 1)
        return dict(zip(self.layer.plan, means, strict=True))
