"""Raw files and generators in, one prepared memory-mapped folder out, and batches from it."""

from __future__ import annotations

from pathlib import Path

from mixdim.data.batches import Batch, BatchStream
from mixdim.data.dataset import Dataset
from mixdim.data.row_encoder import RowEncoder

__all__ = ["Batch", "BatchStream", "Dataset", "RowEncoder", "open"]


def open(path: str | Path) -> Dataset:
    """Open a prepared folder, having checked that its files are complete and unchanged."""
    return Dataset(path)
