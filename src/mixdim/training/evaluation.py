"""How good a model is on a split: all its outputs, then metrics. Knows nothing about training.

In a group each process takes its share of each batch; process 0 has all outputs, measures, and tells the
others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from mixdim.tasks import task_of
from mixdim.training.devices import device_of, to_device
from mixdim.training.group import ALONE, Group
from mixdim.training.inputs import TrainingData, num_rows
from mixdim.training.slices import measure_slices, thirds_of_popularity

# stage, samples done, samples in all, and a note such as the loss (see mixdim._util.text.Note)
Progress = Callable[[str, int, int, str], None]


class Interrupted(Exception):  # noqa: N818  # nothing went wrong
    """Somebody asked to stop."""


class Outputs(NamedTuple):
    """The outputs of a model for each row of a split, in its order."""

    outputs: np.ndarray  # float32 (rows,): logits or ratings
    targets: np.ndarray  # float32 (rows,)
    ids: np.ndarray | None  # (rows,) of one feature, or None


def feature_to_slice_by(data: TrainingData, wanted: str | None = None) -> str | None:
    """The feature whose popularity cuts metrics: the wanted one, "item", or the one with most rows."""
    names = list(data.single_valued)
    if wanted is not None:
        if wanted not in names:
            raise ValueError(
                f"slice_by must be a single-valued feature ({', '.join(names)}), got {wanted!r}"
            )
        return wanted
    if "item" in names or not names:
        return "item" if names else None
    return max(names, key=lambda name: len(data.counts[name]))


@runtime_checkable
class CanFreeze(Protocol):
    """A module that works faster if it knows that its weights do not change."""

    def frozen(self) -> AbstractContextManager[None]:
        """A context within which they do not."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode; layers may keep what follows from weights alone."""
    was_training = model.training
    model.eval()
    try:
        with ExitStack() as contexts:
            for module in model.modules():
                if isinstance(module, CanFreeze):
                    contexts.enter_context(module.frozen())
            yield
    finally:
        model.train(was_training)


@torch.no_grad()
def outputs_of(
    model: nn.Module,
    data: TrainingData,
    split: str,
    *,
    batch_size: int,
    with_ids_of: str | None = None,
    progress: Progress | None = None,
    stopped: Callable[[], bool] = lambda: False,
    group: Group = ALONE,
) -> Outputs:
    """Run a model over a split, in evaluation mode and on the device where it is.

    In a group of several processes, process 0 has all rows, and the others none.
    """
    rows, device, column = num_rows(data, split), device_of(model), None
    if with_ids_of is not None:
        column = list(data.single_valued).index(with_ids_of)
    kept, done = rows if group.rank == 0 else 0, 0
    outputs, targets = np.empty(kept, np.float32), np.empty(kept, np.float32)
    ids = None if column is None else np.empty(kept, np.int64)
    with evaluating(model):
        for batch in data.batches(split, batch_size=batch_size, **group.part):
            if group.any(stopped())[0]:
                raise Interrupted
            output = group.gather(check_output(model(to_device(batch, device)), batch.target))
            target = group.gather(batch.target)
            of_rows = None if column is None else group.gather(batch.ids[:, column])
            # Shares are of one size: after the last row of a batch are some that count for nothing.
            count = len(target) if group.world == 1 else min(batch_size, rows - done)
            here, done = slice(done, done + count), done + count
            if group.rank == 0:
                outputs[here] = output[:count].numpy(force=True)
                targets[here] = target[:count].numpy(force=True)
                if ids is not None and of_rows is not None:
                    ids[here] = of_rows[:count].numpy(force=True)
            if progress is not None:
                progress(f"measuring {split}", done, rows, "")
    group.together(lambda: check_finite(outputs, split), FloatingPointError)
    return Outputs(outputs, targets, ids)


def evaluate(
    model: nn.Module,
    data: TrainingData,
    split: str = "test",
    *,
    batch_size: int = 4096,
    slice_by: str | None = None,
    progress: Progress | None = None,
    stopped: Callable[[], bool] = lambda: False,
    group: Group = ALONE,
) -> dict[str, Any]:
    """Measure a model on a split: the metrics of its task, and the same in `slices`.

    These are the thirds of the popularity mass of a feature: "popular", "middle" and "rare".
    """
    feature = feature_to_slice_by(data, slice_by)
    found = outputs_of(
        model,
        data,
        split,
        batch_size=batch_size,
        with_ids_of=feature,
        progress=progress,
        stopped=stopped,
        group=group,
    )
    return group.first(lambda: metrics_of(found, data, feature), ValueError)


def metrics_of(found: Outputs, data: TrainingData, slice_by: str | None) -> dict[str, Any]:
    """The metrics of all rows of a split, and those of slices if there are ids to slice by."""
    task = task_of(data.task)
    result: dict[str, Any] = dict(task.measure(found.outputs, found.targets))
    if slice_by is not None and found.ids is not None:
        thirds = thirds_of_popularity(data.counts[slice_by])
        result["slices"] = measure_slices(task, found.outputs, found.targets, thirds[found.ids])
    return result


def check_finite(outputs: np.ndarray, split: str) -> None:
    """Refuse to measure what is no number."""
    wrong = len(outputs) - int(np.isfinite(outputs).sum())
    if wrong:
        raise FloatingPointError(
            f"{wrong:,} of {len(outputs):,} outputs on the {split} split are not finite"
        )


def check_output(output: Tensor, target: Tensor) -> Tensor:
    """Refuse an output that is not one number per sample: (batch, 1) would broadcast to a wrong loss."""
    if output.shape != target.shape:
        raise ValueError(
            f"the model must return one number per sample, shape {tuple(target.shape)}, "
            f"got {tuple(output.shape)}"
        )
    return output
