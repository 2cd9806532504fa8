"""Trained tables as tests make them: few rows, long-tailed counts, a falling spectrum."""

import numpy as np
import torch

from mixdim.compression.subject import Subject


def random_subject(seed, rows=300, width=6, name="table", **options):
    """A table whose counts have a long tail and zeros, with ids in no order."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(np.exp(rng.normal(0.5, 1.5, rows)))
    weight = (rng.normal(size=(rows, width)) + rng.normal(size=width)) * 0.7 ** np.arange(width)
    weight = torch.tensor(weight @ np.linalg.qr(rng.normal(size=(width, width)))[0], dtype=torch.float32)
    return Subject(name, weight, counts, **options)


def measured_error(subject, table, metric=None):
    """The sum over rows of p (e - e')^T H (e - e'), from the dense matrices."""
    away = (subject.weight.double() - table.dense_weight().double()).detach().numpy()
    metric = np.eye(subject.width) if metric is None else metric
    return float(subject.row_probs @ np.einsum("ij,jk,ik->i", away, metric, away))
