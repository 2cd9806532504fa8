"""The training loop: steps, evaluations, checkpoints. Knows nothing about how a model is made.

The number of steps done is also the place in the data, so a run can stop anywhere and go on exactly.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn
from torch.autograd import backward

from mixdim._util.signals import StopRequests
from mixdim.tasks import task_of
from mixdim.training.account import Account
from mixdim.training.auto import auto_options
from mixdim.training.checkpoints import Checkpoints
from mixdim.training.clock import Clock
from mixdim.training.devices import device_of, to_device
from mixdim.training.evaluation import (
    Interrupted,
    Progress,
    check_output,
    evaluate,
    feature_to_slice_by,
)
from mixdim.training.fitted import Fitted, fitted_of
from mixdim.training.inputs import Batch, TrainingData, num_rows
from mixdim.training.journal import Journal
from mixdim.training.optimizers import NamedOptimizer
from mixdim.training.options import TrainingOptions
from mixdim.training.resumption import (
    BestWeights,
    TrainingState,
    load_everything,
    save_everything,
)
from mixdim.training.schedule import Schedule

log = logging.getLogger("mixdim.training")

SECONDS_BETWEEN_CHECKPOINTS = 300.0  # if not told otherwise


class Stopped(Exception):  # noqa: N818  # nothing went wrong
    """A signal stopped the run, after a checkpoint was written."""

    def __init__(self, signal_name: str, step: int, checkpoint: Path) -> None:
        self.signal_name, self.step, self.checkpoint = signal_name, step, checkpoint
        super().__init__(f"stopped by {signal_name} after step {step}; wrote {checkpoint}")


class DivergedError(FloatingPointError):
    """The loss or the weights are not finite any more."""


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
) -> Fitted:
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
    - `progress(stage, samples_done, samples_in_all, note)` is called after every step.

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
        options = _chosen(dataset, changes)
    options = replace(options, **changes)
    if resume and out is None:
        raise ValueError("resume needs out, the folder of the run to continue")
    run = _Run(model, dataset, options, None if out is None else Path(out), tensorboard, progress)
    with nullcontext() if out is None else run.checkpoints.alone():
        if out is not None and not resume and run.checkpoints.newest_path() is not None:
            raise FileExistsError(f"{out} holds a run already; resume=True continues it")
        run.begin(resume=resume)
        return run.finish()


def _chosen(data: TrainingData, changes: Mapping[str, Any]) -> TrainingOptions:
    """What is done if nobody says how to train, as far as the optimizer and rate that are said allow."""
    return auto_options(
        task_of(data.task).name,
        max(1, num_rows(data, "train")),
        untrained_unknown=getattr(data, "untrained_unknown", ()),
        optimizer=changes.get("optimizer", "amsgrad"),
        lr=changes.get("lr"),
    )


@dataclass
class _Run:
    """One call of `fit`."""

    model: nn.Module
    data: TrainingData
    options: TrainingOptions
    out: Path | None
    tensorboard: bool
    progress: Progress | None
    state: TrainingState = field(default_factory=TrainingState)

    def __post_init__(self) -> None:
        if num_rows(self.data, "train") == 0:
            raise ValueError("the training split is empty")
        self.slice_by = feature_to_slice_by(self.data, self.options.slice_by)
        self.task, self.device = task_of(self.data.task), device_of(self.model)
        self.optimizer = NamedOptimizer(
            self.options.optimizer,
            self.model,
            lr=self.options.lr,
            table_lr=self.options.table_lr,
            weight_decay=self.options.weight_decay,
        )
        self.schedule = Schedule(num_rows(self.data, "train"), self.options)
        self.saved_step: int | None = None
        self.saved_path: Path | None = None
        self.checkpoints = Checkpoints((self.out or Path()) / "checkpoint")
        self.best = BestWeights(None if self.out is None else self.checkpoints)
        if self.out is None:
            self.journal = Journal(None)
        else:
            self.out.mkdir(parents=True, exist_ok=True)
            folder = self.out / "tensorboard" if self.tensorboard else None
            self.journal = Journal(self.out / "metrics.jsonl", tensorboard=folder)

    def finish(self) -> Fitted:
        """Train to the end, measure, and leave the best weights in the model."""
        self.clock = Clock(self.state.seconds)
        self.account = Account(self.journal, self.schedule, self.clock, self.progress)
        if self.out is None:
            return self._to_the_end(lambda: False)
        with StopRequests() as stopped:
            try:
                return self._to_the_end(stopped)
            except Interrupted:
                assert stopped.name is not None
                raise Stopped(stopped.name, self.state.step, self.saved()) from None
            finally:
                self.journal.close()

    def _to_the_end(self, stopped: Callable[[], bool]) -> Fitted:
        self.model.train()
        with closing(self.schedule.batches(self.data, after=self.state.step)) as batches:
            while True:
                if self._evaluation_is_due():
                    self._evaluate(stopped)
                if self._is_finished():
                    break
                if stopped():
                    raise Interrupted
                if self._checkpoint_is_due():
                    self.saved()
                self._train(batches)
        if self.out is not None:
            self.saved()
        return self._measure_test(stopped)

    def _is_finished(self) -> bool:
        state, patience = self.state, self.options.patience
        return state.step >= self.schedule.total_steps or (
            patience is not None and state.stale >= patience
        )

    def _train(self, batches: Generator[Batch, None, None]) -> None:
        """Take one step, and tell of it."""
        start = time.perf_counter()
        batch = to_device(next(batches), self.device)
        loss = self.task.loss(check_output(self.model(batch), batch.target), batch.target)
        self.state.losses.append(loss.item())
        if not math.isfinite(self.state.losses[-1]):
            raise self._diverged(f"the loss is {self.state.losses[-1]}")
        backward([loss])
        try:
            self.optimizer.step()
        except FloatingPointError as error:
            raise self._diverged(str(error)) from None
        self.optimizer.zero_grad()
        self.state.step += 1
        self.account.tell(self.state, self.state.losses[-1])
        self.state.train_seconds += time.perf_counter() - start

    def _diverged(self, what: str) -> DivergedError:
        good = (
            "there is no checkpoint before it"
            if self.saved_path is None
            else f"the last good checkpoint is {self.saved_path}"
        )
        table_lr = self.options.table_lr
        of_tables = "" if table_lr is None else f", or table_lr than {table_lr:g},"
        return DivergedError(
            f"training diverged after step {self.state.step}: {what}; {good}. "
            f"A smaller lr than {self.options.lr:g}{of_tables} may help"
        )

    def _evaluation_is_due(self) -> bool:
        step = self.state.step
        return step > self.state.evaluated_step and self.schedule.evaluates_after(step)

    def _evaluate(self, stopped: Callable[[], bool]) -> None:
        """Measure the validation split; keep the weights if they are the best so far."""
        state, objective = self.state, self.task.objective
        metrics = self._measure("validation", stopped)
        epoch = self.schedule.epochs_after(state.step)
        is_best = state.take_evaluation(metrics, epoch=epoch, objective=objective)
        self.saved_step = None
        self.account.write(state, "validation", validation=metrics)
        log.info("step %d: validation %s %s", state.step, objective, metrics[objective])
        if is_best:
            if self.out is not None:
                self._check_weights()
            self.best.keep(self.model, state)

    def _measure(self, split: str, stopped: Callable[[], bool]) -> dict[str, Any]:
        try:
            return evaluate(
                self.model,
                self.data,
                split,
                batch_size=self.options.batch_size,
                slice_by=self.slice_by,
                progress=self.progress,
                stopped=stopped,
            )
        except FloatingPointError as error:
            raise self._diverged(str(error)) from None

    def _measure_test(self, stopped: Callable[[], bool]) -> Fitted:
        state = self.state
        assert state.best is not None
        last = best = self._measure("test", stopped)
        if state.best["step"] != state.step:
            self.best.load(self.model, state.best["step"])
            best = self._measure("test", stopped)
        fitted = fitted_of(state, self.schedule, self.clock, self.slice_by, best=best, last=last)
        self.account.write(state, "test", test=fitted.test)
        return fitted

    # What is kept, and taken up again.

    def _checkpoint_is_due(self) -> bool:
        if self.out is None or self.state.step == self.saved_step:
            return False
        if self.options.checkpoint_every is not None:
            return self.state.step % self.options.checkpoint_every == 0
        return self.clock.since_checkpoint() > SECONDS_BETWEEN_CHECKPOINTS

    def saved(self) -> Path:
        """Write a checkpoint of everything, unless that was done; returns where it is."""
        if self.saved_path is None or self.state.step != self.saved_step:
            self._check_weights()
            self.state.seconds, self.state.journal_length = self.clock.seconds(), self.journal.length
            everything = self.model, self.optimizer, self.state, self.options, self.data
            self.saved_path = save_everything(self.checkpoints, *everything)
            self.saved_step = self.state.step
            self.clock.checkpoint_written()
        return self.saved_path

    def _check_weights(self) -> None:
        """A checkpoint that is written can be relied on."""
        for name, parameter in self.model.named_parameters():
            if parameter.numel() and not all(map(math.isfinite, parameter.detach().aminmax())):
                raise self._diverged(f"parameter {name!r} is not finite")

    def begin(self, *, resume: bool) -> None:
        """Take up the newest whole checkpoint; without one, begin at the beginning."""
        found = self.checkpoints.newest() if resume else None
        if found is not None:
            self.state = load_everything(found, self.model, self.optimizer, self.options, self.data)
            self.saved_step, self.saved_path = found.step, found.path
            self.checkpoints.prune()  # a run killed while it removed old ones left one in part
        self.journal.rewind(self.state.journal_length, step=self.state.step)
