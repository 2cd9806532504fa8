"""How good a model on many ranks is on a split. Knows nothing about training.

Each rank looks at its share of the rows; rank 0 has all outputs, measures, and tells the others.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from mixdim.distributed.joining import Group
from mixdim.distributed.sharded import Sharded
from mixdim.distributed.telling import broadcast_text
from mixdim.training.devices import to_device
from mixdim.training.evaluation import Outputs, Progress, check_finite, metrics_of
from mixdim.training.inputs import num_rows


def measure_together(
    sharded: Sharded,
    group: Group,
    data: Any,  # TrainingData whose batches have parts
    split: str,
    *,
    batch_size: int,
    slice_by: str | None,
    progress: Progress | None,
) -> dict[str, Any]:
    """What `mixdim.training.evaluate` says of a model that is not spread, on every rank."""
    outputs = _outputs(sharded, group, data, split, batch_size, progress)
    told: dict[str, Any] = {}
    if group.rank == 0:
        try:
            check_finite(outputs, split)
            told = metrics_of(_with_targets(outputs, data, split, batch_size, slice_by), data, slice_by)
        except FloatingPointError as error:
            told = {"wrong": str(error)}
    told = json.loads(broadcast_text(json.dumps(told)))
    if "wrong" in told:
        raise FloatingPointError(told["wrong"])
    return told


@torch.no_grad()
def _outputs(
    sharded: Sharded, group: Group, data: Any, split: str, batch_size: int, progress: Progress | None
) -> np.ndarray:
    """What the model says of each row; on rank 0 alone all of them: (rows,)."""
    rows, done = num_rows(data, split), 0
    found = np.empty(rows if group.rank == 0 else 0, np.float32)
    sharded.model.eval()
    for batch in data.batches(split, batch_size=batch_size, part=(group.rank, group.world)):
        output = sharded(to_device(batch, group.device)).contiguous()
        shares = [torch.empty_like(output) for _ in range(group.world)]
        dist.all_gather(shares, output)
        here = slice(done, min(done + batch_size, rows))  # after them are those that count for nothing
        if group.rank == 0:
            found[here] = torch.cat(shares)[: here.stop - here.start].numpy(force=True)
        done = here.stop
        if progress is not None:
            progress(f"measuring {split}", done, rows, "")
    sharded.model.train()
    return found


def _with_targets(
    outputs: np.ndarray, data: Any, split: str, batch_size: int, slice_by: str | None
) -> Outputs:
    """Put beside the outputs what was right, and the ids of one feature, a batch at a time."""
    targets, done = np.empty_like(outputs), 0
    column = None if slice_by is None else list(data.single_valued).index(slice_by)
    ids = None if column is None else np.empty(len(outputs), np.int64)
    for batch in data.batches(split, batch_size=batch_size):
        here = slice(done, done + len(batch.target))
        targets[here] = batch.target.numpy()
        if ids is not None:
            ids[here] = batch.ids[:, column].numpy()
        done = here.stop
    return Outputs(outputs, targets, ids)
