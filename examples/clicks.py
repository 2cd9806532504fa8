"""Clicks for the examples: MovieLens 1M made binary, or drawn. Knows nothing about models."""

import zipfile

import numpy as np
import pandas as pd

NAMES = ("user", "movie")


def read_clicks(path: str | None, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids of users and movies (rows, 2), and whether there were 4 stars or more (rows,); shuffled."""
    draw = np.random.default_rng(0)
    if path is not None:
        with zipfile.ZipFile(path) as archive, archive.open("ml-1m/ratings.dat") as file:
            table = pd.read_csv(file, sep=":", usecols=[0, 2, 4], header=None).to_numpy()
        raw, liked = table[:, :2], table[:, 2] >= 4
    else:
        raw = draw.zipf(1.3, (rows, 2)) % 5000
        odds = draw.normal(size=(2, 5000))[[0, 1], raw].sum(axis=1)
        liked = draw.random(rows) < 1 / (1 + np.exp(-odds))
    ids = np.stack([np.unique(column, return_inverse=True)[1] for column in raw.T], axis=1)
    order = draw.permutation(len(ids))
    return ids[order], liked[order].astype(np.float32)
