"""From a config and a plan to a model: where models and embeddings are joined. Knows no training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mixdim.experiments.runs.config import RunConfig
from mixdim.layer.embedding import FeatureEmbeddings, MixedDimEmbedding
from mixdim.models import DLRM, MatrixFactorization, NeuralCollaborativeFiltering
from mixdim.planning.plan import Plan

if TYPE_CHECKING:
    from mixdim.data import Dataset


def build_model(config: RunConfig, plan: Plan, *, num_dense: int, mean: float) -> nn.Module:
    """Build the model of an effective config, its weights drawn from the config's seed."""
    assert config.seed is not None
    on_meta = torch.get_default_device().type == "meta"  # nothing is drawn there
    drawn: dict[str, Any] = {
        "init": config.init,
        "generator": None if on_meta else torch.Generator().manual_seed(config.seed),
    }
    if config.model == "dlrm":
        embeddings = FeatureEmbeddings(plan, sparse=True, **drawn)
        assert config.bottom is not None
        assert config.top is not None
        return DLRM(embeddings, num_dense=num_dense, bottom=config.bottom, top=config.top, **drawn)
    users, items = (MixedDimEmbedding(plan[name], sparse=True, **drawn) for name in plan)
    shift = mean if config.mean else None
    if config.model == "mf":
        return MatrixFactorization(users, items, mean=shift, biases=bool(config.biases))
    assert config.hidden is not None
    return NeuralCollaborativeFiltering(users, items, hidden=config.hidden, mean=shift, **drawn)


def check_fits(config: RunConfig, dataset: Dataset) -> None:
    """Refuse a model that cannot read the data."""
    if config.model != "dlrm" and (len(dataset.feature_names) != 2 or len(dataset.single_valued) != 2):
        raise ValueError(
            f"model {config.model!r} takes two features of one id each, such as user and item; "
            f"{dataset.path} has {', '.join(dataset.feature_names)}: use --model dlrm"
        )
