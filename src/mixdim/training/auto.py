"""How to train if nobody says: chosen from the task and the size of the data. Knows nothing else.

What differs by task is its `Pace`. The rule was found by validation losses of MovieLens 1M, a sample of
Criteo and generated ratings; docs/training.md has what it reaches, benchmarks/defaults.py measures it
again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from mixdim._util.arguments import whole_number
from mixdim.tasks import task_of
from mixdim.training.options import TrainingOptions

STEPS_AN_EPOCH = 100  # at least, as long as batches are not the smallest
BATCH_SIZES = 32, 4096  # the smallest and the largest
LR = 1e-3  # of all but embeddings: an MLP takes smaller steps than a table whose rows come rarely
WEIGHT_DECAY = 0.3
EVALUATIONS_PER_EPOCH = 4


def auto_options(
    task: str,
    train_rows: int,
    *,
    untrained_unknown: Collection[str] = (),
    optimizer: str = "amsgrad",
    lr: float | None = None,
    shows_vectors: bool = False,
    by_time: bool = False,
) -> TrainingOptions:
    """Choose how to train on so many rows.

    - `untrained_unknown`: features of the data whose row for unknown values no training row asks for;
      if there are any, ids become unknown by chance.
    - `optimizer`: weight decay was measured with AMSGrad, so others go without unless told.
    - `lr`: the learning rate of all but tables, if one is given.
    - `shows_vectors`: whether the model tells what it looks up, so that its loss can have a penalty.
    - `by_time`: whether the model reads the vectors of few features. With the task's `Pace.by_time`, all
      rows of tables decay in each step, and rates fall to 0 over fixed epochs.

    >>> small, large = auto_options("binary", 40_000), auto_options("binary", 40_000_000)
    >>> (small.batch_size, small.epochs), (large.batch_size, large.epochs)
    ((256, 20), (4096, 1))
    """
    rows, of_task = whole_number(train_rows, "train_rows"), task_of(task)
    pace = (of_task.penalized_pace if shows_vectors else None) or of_task.pace
    fits = lr is None or lr * WEIGHT_DECAY < 1  # with more, weights would change sign
    decays = optimizer == "amsgrad" and fits and not pace.penalty
    chosen = TrainingOptions(
        optimizer,
        lr=LR if lr is None else lr,
        table_lr=pace.table_lr(rows),
        batch_size=batch_size_for(rows),
        epochs=max(pace.least_epochs, min(pace.most_epochs, pace.most_samples // rows)),
        patience=pace.patient_epochs * EVALUATIONS_PER_EPOCH,
        evaluations_per_epoch=EVALUATIONS_PER_EPOCH,
        weight_decay=WEIGHT_DECAY if decays else 0.0,
        schedule=pace.schedule,
        penalty=pace.penalty,
        unknown_dropout=bool(untrained_unknown),
    )
    if not by_time or pace.by_time is None or optimizer != "amsgrad":
        return chosen
    return replace(
        chosen,
        epochs=max(1, min(pace.by_time.epochs, pace.by_time.most_samples // rows)),
        patience=None,
        evaluations_per_epoch=1,
        schedule="linear",
        decay_by="time",
        table_lr=pace.by_time.table_lr,
        table_decay=pace.by_time.table_decay,
    )


def batch_size_for(rows: int) -> int:
    """The largest power of two that leaves 100 steps an epoch, from 32 to 4096.

    >>> batch_size_for(1_000), batch_size_for(40_000), batch_size_for(800_000)
    (32, 256, 4096)
    """
    least, most = BATCH_SIZES
    power = 1 << (max(1, rows // STEPS_AN_EPOCH).bit_length() - 1)
    return min(most, max(least, power))


def in_words(options: TrainingOptions, train_rows: int) -> str:
    """What is done and why, in one line.

    >>> in_words(auto_options("binary", 40_000), 40_000)  # doctest: +ELLIPSIS
    'batches of 256, so 40,000 rows give 157 steps an epoch; at most 20 epochs, stopped after 8 ...'
    """
    steps = -(-train_rows // options.batch_size)
    stop = (
        "never stopped early"
        if options.patience is None
        else f"stopped after {options.patience} evaluations ({options.evaluations_per_epoch} an epoch) "
        "without improvement"
    )
    held_back = f"weight decay {options.weight_decay:g}"
    if options.table_decay is not None:
        held_back += f", of tables {options.table_decay:g}"
    if options.penalty:
        held_back = f"penalty {options.penalty:g} on what is looked up" + (
            f", {held_back}" if options.weight_decay else ""
        )
    falls = "" if options.schedule == "constant" else f"; learning rates fall to 0 ({options.schedule})"
    epochs = f"{options.epochs} epoch" + ("s" if options.epochs > 1 else "")
    return (
        f"batches of {options.batch_size:,}, so {train_rows:,} rows give {steps:,} steps an epoch; "
        f"at most {epochs}, {stop}, best weights kept; {held_back}{falls}"
    )
