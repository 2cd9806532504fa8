"""`mixdim.fit`: a model and its data, trained in one call. Knows no loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from mixdim.tasks import task_of
from mixdim.training.auto import auto_options
from mixdim.training.evaluation import Progress
from mixdim.training.inputs import TrainingData, num_rows
from mixdim.training.learner import LocalLearner
from mixdim.training.options import TrainingOptions
from mixdim.training.result import Result
from mixdim.training.trainer import Trainer


def fit(
    model: nn.Module,
    dataset: TrainingData,
    *,
    options: TrainingOptions | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    tensorboard: bool = False,
    progress: Progress | None = None,
    **changes: Any,
) -> Result:
    """Train a model on a prepared data set; at the end it holds the weights of the best validation.

    The model is any `nn.Module` that takes a batch (`batch.ids`, `batch.dense`, `batch.bags`) and
    returns one number per sample: a logit if `dataset.task` is "binary", a rating if it is "rating".
    Batches are moved to the device of its first parameter.

    - `options`: how to train; if not given, what `mixdim.training.auto_options` chooses for the task
      and the number of rows, with `unknown_dropout` for data that has features in
      `dataset.untrained_unknown`. Single options can be changed by name:
      `fit(model, dataset, epochs=3, weight_decay=0.1)`; see `TrainingOptions`.
    - `out`: folder for `metrics.jsonl` and `checkpoint/`. Without it nothing is written, and nothing
      can be resumed.
    - `resume`: continue what is in `out` (or start, if nothing is there yet).
    - `progress(stage, samples_done, samples_in_all, note)` is called after every step. The note of
      "training" also has `seconds_left`, for all epochs, evaluations and the test; None at first.

    >>> import tempfile, mixdim.data
    >>> from mixdim.lab.synthetic.generate import generate_movielens_like
    >>> from mixdim.models import MatrixFactorization
    >>> folder = tempfile.mkdtemp() + "/made"
    >>> meta = generate_movielens_like(folder, rows=2_000, scale=0.0005)
    >>> dataset = mixdim.data.open(folder)
    >>> plan = mixdim.plan(dataset, temperature=0.3, base_dim=8, bands=4)
    >>> users, items = (mixdim.MixedDimEmbedding(plan[name], sparse=True) for name in plan)
    >>> fitted = mixdim.fit(MatrixFactorization(users, items, mean=3.5), dataset, epochs=2)
    >>> fitted.epochs_run, sorted(fitted.test["best"]["slices"])
    (2, ['middle', 'popular', 'rare'])
    """
    if options is None:
        options = _chosen(model, dataset, changes)
    options = replace(options, **changes)
    if resume and out is None:
        raise ValueError("resume needs out, the folder of the run to continue")
    learner = LocalLearner(model, options)
    trainer = Trainer(learner, dataset, options, out=out, tensorboard=tensorboard, progress=progress)
    return trainer.run(resume=resume)


def _chosen(model: nn.Module, data: TrainingData, changes: Mapping[str, Any]) -> TrainingOptions:
    """The options where nobody gives any, for the given optimizer and learning rate."""
    return auto_options(
        task_of(data.task).name,
        max(1, num_rows(data, "train")),
        untrained_unknown=getattr(data, "untrained_unknown", ()),
        optimizer=changes.get("optimizer", "amsgrad"),
        lr=changes.get("lr"),
        shows_vectors=getattr(model, "shows_vectors", False),
    )
