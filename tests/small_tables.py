"""Trained tables as tests make them: few rows, long-tailed counts, a falling spectrum."""

import numpy as np
import torch

from mixdim.layer.rank_code import rank_code_nbytes
from mixdim.planning.from_tables import choose
from mixdim.planning.trained_table import TrainedTable


def random_table(seed, rows=300, width=6, name="table", **options):
    """A table whose counts have a long tail and zeros, with ids in no order."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(np.exp(rng.normal(0.5, 1.5, rows)))
    weight = (rng.normal(size=(rows, width)) + rng.normal(size=width)) * 0.7 ** np.arange(width)
    weight = torch.tensor(weight @ np.linalg.qr(rng.normal(size=(width, width)))[0], dtype=torch.float32)
    return TrainedTable(name, weight, counts, **options)


def best_error(vectors, probs, dim, metric=None):
    """The least weighted squared distance of rank `dim`, by the SVD; of 0, that of the mean."""
    root = np.eye(vectors.shape[1]) if metric is None else np.linalg.cholesky(metric)
    seen = vectors @ root
    if dim == 0:
        away = seen - probs @ seen / probs.sum()
        return float(probs @ (away**2).sum(axis=1))
    return float((np.linalg.svd(np.sqrt(probs)[:, None] * seen, compute_uv=False)[dim:] ** 2).sum())


def measured_error(trained, table, metric=None):
    """The sum over rows of p (e - e')^T H (e - e'), from the dense matrices."""
    away = (trained.weight.double() - table.dense_weight().double()).detach().numpy()
    metric = np.eye(trained.width) if metric is None else metric
    return float(trained.row_probs @ np.einsum("ij,jk,ik->i", away, metric, away))


def chosen_for(tables, budget, **options):
    """The choice for tables whose ids are in no order, so that ranks of ids are part of the budget."""
    return choose(tables, budget, id_map_bytes=rank_code_nbytes, **options)
