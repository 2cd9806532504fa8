"""The training loop: steps, evaluations, checkpoints; of one process, or of many that act as one.

Knows nothing about how a model is made or spread. The number of steps done is also the place in the
data, so a run can stop anywhere and go on exactly. In a group every process takes its share of each
batch and comes to the same decisions; process 0 writes the journal.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from mixdim._util.signals import StopRequests
from mixdim.tasks import task_of
from mixdim.training.checkpoint import Checkpoints
from mixdim.training.devices import to_device
from mixdim.training.evaluation import (
    Interrupted,
    Progress,
    check_output,
    evaluate,
    feature_to_slice_by,
)
from mixdim.training.forecast import Forecast
from mixdim.training.group import Group
from mixdim.training.inputs import Batch, TrainingData, num_rows
from mixdim.training.journal import Journal
from mixdim.training.learner import Learner
from mixdim.training.options import TrainingOptions
from mixdim.training.penalty import Penalty
from mixdim.training.progress_log import Clock, ProgressLog
from mixdim.training.result import Result, result_of
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


class Trainer:
    """One training run.

    - `learner`: the model and its optimizer: `LocalLearner(model, options)`, or what
      `mixdim.distributed.shard` returns. `options` must name the same optimizer and rates.
    - `out`, `progress`, `tensorboard`: as for `mixdim.fit`. In a group all must see the folder.
    - `group`: the processes that train together; see `mixdim.distributed.init`.
    - `measures_start`: whether the first weights may be the best too, as those of a baseline may.
    """

    def __init__(
        self,
        learner: Learner,
        data: TrainingData,
        options: TrainingOptions,
        *,
        out: str | Path | None = None,
        group: Group | None = None,
        progress: Progress | None = None,
        tensorboard: bool = False,
        measures_start: bool = False,
    ) -> None:
        if num_rows(data, "train") == 0:
            raise ValueError("the training split is empty")
        learner.rates.check(options)
        self.learner, self.data, self.options = learner, data, options
        self.out = None if out is None else Path(out)
        self.group = Group.alone() if group is None else group
        self.slice_by, self.task = feature_to_slice_by(data, options.slice_by), task_of(data.task)
        self.schedule, self.state = Schedule(num_rows(data, "train"), options), TrainingState()
        self.measures_start = measures_start
        self.penalty = self._penalty()
        self.checkpoints = Checkpoints((self.out or Path()) / "checkpoint", self.group)
        self.best = BestWeights(None if out is None else self.checkpoints)
        self.saved_step: int | None = None
        self.saved_path: Path | None = None
        self._unread: list[Tensor] = []  # losses since the last that was read
        self.last_loss: float | None = None
        self._reads_each_loss = learner.device is None or learner.device.type == "cpu"
        speaks = self.group.rank == 0
        self.journal = Journal(None)
        if self.out is not None and speaks:
            folder = self.out / "tensorboard" if tensorboard else None
            self.journal = Journal(self.out / "metrics.jsonl", tensorboard=folder)
        self.progress = progress if speaks else None
        self.clock = Clock()
        rows = [num_rows(data, split) for split in ("validation", "test")]
        self.forecast = Forecast(self.schedule, rows[0], rows[1])
        self.log = ProgressLog(self.journal, self.schedule, self.clock, self.forecast, self.progress)

    def _penalty(self) -> Penalty | None:
        """What is added to the loss of each rating, if the options say so."""
        strength, dropout = self.options.penalty, self.options.unknown_dropout
        if not strength:
            return None
        if self.task.penalized_pace is None:
            raise ValueError(f"penalty is for ratings, the task of the data is {self.task.name!r}")
        if not getattr(getattr(self.learner, "module", self.learner.model), "shows_vectors", False):
            raise ValueError(
                "penalty needs a model that tells what it looks up, as those of mixdim.models do: "
                "leave it out, or see mixdim.models.base.Model.shows_vectors"
            )
        return Penalty.of(self.data, strength, unknown_dropout=dropout)  # type: ignore[arg-type]

    def run(self, *, resume: bool = False) -> Result:
        """Train to the end, measure, and leave the best weights in the model.

        With `resume`, from the newest whole checkpoint in `out`, if there is one. A signal ends it with
        `Stopped`, after a checkpoint.
        """
        if resume and self.out is None:
            raise ValueError("resume needs out, the folder of the run to continue")
        if self.out is None:
            return self._to_the_end(lambda: False)
        with self._alone(resume=resume):
            self._begin(resume=resume)
            with StopRequests() as stopped:
                try:
                    return self._to_the_end(stopped)
                except Interrupted:
                    names = self.group.collect(stopped.name)
                    name = next(name for name in names if name is not None)
                    raise Stopped(name, self.state.step, self.saved()) from None
                finally:
                    self.journal.close()

    @contextmanager
    def _alone(self, *, resume: bool) -> Iterator[None]:
        """Keep others out of the folder, which must hold no run unless it is resumed."""
        with ExitStack() as held:

            def enter() -> None:
                if self.group.rank > 0:
                    return
                held.enter_context(self.checkpoints.alone())
                if not resume and self.checkpoints.newest_path() is not None:
                    raise FileExistsError(f"{self.out} holds a run already; resume=True continues it")

            self.group.together(enter, OSError)
            yield

    def _begin(self, *, resume: bool) -> None:
        """Take up the newest whole checkpoint; without one, begin at the beginning."""
        found = self.checkpoints.newest() if resume else None
        if found is not None:
            self.state = load_everything(found, self.learner, self.options, self.data)
            self.saved_step, self.saved_path = found.step, found.path
            self.group.barrier()  # all have read it
            self.checkpoints.prune()  # a run killed while it removed old ones left one in part
        self.journal.rewind(self.state.journal_length, step=self.state.step)

    def _to_the_end(self, stopped: Callable[[], bool]) -> Result:
        self.clock.start(self.state.seconds)
        self.learner.model.train()
        share = self.group.part
        with closing(self.schedule.batches(self.data, after=self.state.step, **share)) as batches:
            while True:
                if self._evaluation_is_due():
                    self._evaluate(stopped)
                if self._is_finished():
                    break
                stop, save = self.group.any(stopped(), self._checkpoint_is_due())
                if stop:
                    raise Interrupted
                if save:
                    self.saved()
                self.step(batches)
        if self.out is not None:
            self.saved()
        return self._measure_test(stopped)

    def _is_finished(self) -> bool:
        state, patience = self.state, self.options.patience
        return state.step >= self.schedule.total_steps or (
            patience is not None and state.stale >= patience
        )

    # A step.

    def step(self, batches: Generator[Batch, None, None]) -> None:
        """Take one step with the next batch, and report it."""
        start, state = time.perf_counter(), self.state
        self.learner.scale_rates(self.schedule.rate_factor(state.step))
        loss, penalty = self._loss(to_device(next(batches), self.learner.device))
        self._unread.append(self.group.sum(loss.detach()))
        if self._reads_each_loss:
            self._read_losses(state.step + 1)
        self.learner.backward(loss if penalty is None else loss + penalty)
        try:
            self.learner.step()
        except FloatingPointError as error:
            raise self._diverged(str(error)) from None
        self.learner.zero_grad()
        state.step += 1
        is_line = state.step % self.schedule.journal_every == 0
        if is_line:
            self._read_losses(state.step)
        self.log.step(state, self.last_loss)
        if is_line:
            self.log.losses(state)
        seconds = time.perf_counter() - start
        state.train_seconds += seconds
        samples_after = self.schedule.samples_after
        self.forecast.steps.add(samples_after(state.step) - samples_after(state.step - 1), seconds)

    def _loss(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Loss and penalty of this share of the batch; their means over all shares are the batch's."""
        seen = None if self.penalty is None else self.penalty.of_batch(batch.ids)
        output = check_output(self.learner.forward(batch, seen), batch.target)
        world, step = self.group.world, self.state.step
        if world == 1:
            return self.task.loss(output, batch.target), None if seen is None else seen.total.mean()
        weight: Tensor = batch.weight  # type: ignore[attr-defined]  # batches of shares have it
        counted = weight > 0
        here = int(counted.sum())
        if here == 0:
            return output.sum() * 0.0, None  # the other processes wait for its part in the backward pass
        samples = self.schedule.samples_after(step + 1) - self.schedule.samples_after(step)
        share = here * world / samples
        loss = self.task.loss(output[counted], batch.target[counted]) * share
        return loss, None if seen is None else seen.total[counted].mean() * share

    def _read_losses(self, step: int) -> None:
        """Read the losses of the steps up to this one, which waits for the device, and check them."""
        unread, self._unread = self._unread, []
        for number, loss in enumerate(unread):
            self.last_loss = loss.item() / self.group.world
            self.state.losses.append(self.last_loss)
            if not math.isfinite(self.last_loss):
                after = step - len(unread) + number
                raise self._diverged(f"the loss is {self.last_loss}", after)

    def _diverged(self, what: str, step: int | None = None) -> DivergedError:
        good = (
            "there is no checkpoint before it"
            if self.saved_path is None
            else f"the last good checkpoint is {self.saved_path}"
        )
        table_lr = self.options.table_lr
        of_tables = "" if table_lr is None else f", or table_lr than {table_lr:g},"
        return DivergedError(
            f"training diverged after step {self.state.step if step is None else step}: {what}; {good}. "
            f"A smaller lr than {self.options.lr:g}{of_tables} may help"
        )

    # Measuring.

    def _evaluation_is_due(self) -> bool:
        step = self.state.step
        if step == 0:
            return self.measures_start and self.state.best is None
        return step > self.state.evaluated_step and self.schedule.evaluates_after(step)

    def _evaluate(self, stopped: Callable[[], bool]) -> None:
        """Measure the validation split; keep the weights if they are the best so far."""
        start, state, objective = time.perf_counter(), self.state, self.task.objective
        metrics = self._measure("validation", stopped)
        epoch = self.schedule.epochs_after(state.step)
        is_best = state.take_evaluation(metrics, epoch=epoch, objective=objective)
        self.saved_step = None
        self.log.write(state, "validation", validation=metrics)
        log.info("step %d: validation %s %s", state.step, objective, metrics[objective])
        if is_best:
            if self.out is not None:
                self._check_weights()
            self.best.keep(self.learner, state)
        self.forecast.measuring.add(self.forecast.validation, time.perf_counter() - start)

    def _measure(self, split: str, stopped: Callable[[], bool]) -> dict[str, Any]:
        self.learner.settle()
        try:
            return evaluate(
                self.learner.model,
                self.data,
                split,
                batch_size=self.options.batch_size,
                slice_by=self.slice_by,
                progress=self.progress,
                stopped=stopped,
                group=self.group,
            )
        except FloatingPointError as error:
            raise self._diverged(str(error)) from None

    def _measure_test(self, stopped: Callable[[], bool]) -> Result:
        state = self.state
        assert state.best is not None
        last = best = self._measure("test", stopped)
        if state.best["step"] != state.step:
            self.best.load(self.learner, state.best["step"])
            best = self._measure("test", stopped)
        result = result_of(state, self.schedule, self.clock, self.slice_by, best=best, last=last)
        self.log.write(state, "test", test=result.test)
        return result

    # What is kept.

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
            self.saved_path = save_everything(
                self.checkpoints, self.learner, self.state, self.options, self.data
            )
            self.saved_step = self.state.step
            self.clock.checkpoint_written()
        return self.saved_path

    def _check_weights(self) -> None:
        """A checkpoint that is written can be relied on."""
        self._read_losses(self.state.step)
        for name in self.group.collect(self.learner.not_finite()):
            if name is not None:
                raise self._diverged(f"parameter {name!r} is not finite")
