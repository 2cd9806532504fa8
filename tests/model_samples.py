"""Samples, first weights and first-order weights to test models with."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn

import mixdim
from mixdim.models import FirstOrder

BASE_DIM = 8
MIXED, UNIFORM, PLAIN = "mixed", "uniform", "nn.Embedding"


class SomeSamples(NamedTuple):
    ids: Tensor
    dense: Tensor
    bags: Mapping = MappingProxyType({})


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def zipf_counts(rows):
    return [round(1000 / (rank + 1)) for rank in range(rows)]


def normal(model, seed=7, std=0.3):
    """Let no parameter be special, such as 0."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=std, generator=seeded(seed))
    return model


def first_order(rows, num_dense, *, sparse=False, constant=0.0):
    """Weights of these features, 0 at first."""
    plan = mixdim.plan(rows, temperature=0, base_dim=1)
    weights = mixdim.FeatureEmbeddings(plan, sparse=sparse, pooling="mean", generator=seeded(0))
    return FirstOrder(weights, num_dense=num_dense, constant=constant)
