"""The training loop of many ranks that act as one. Knows nothing about how a model is made.

Every rank takes its share of each batch and comes to the same decisions; rank 0 writes and measures.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from mixdim._util.signals import StopRequests
from mixdim.distributed.checkpoints import load, save
from mixdim.distributed.joining import Group
from mixdim.distributed.measuring import measure_together
from mixdim.distributed.quiet import quiet
from mixdim.distributed.sharded import Sharded
from mixdim.distributed.stored import newest_step
from mixdim.distributed.telling import any_says, broadcast_text, summed
from mixdim.tasks import task_of
from mixdim.training.account import Account
from mixdim.training.checkpoints import KEPT, CheckpointError
from mixdim.training.clock import Clock
from mixdim.training.devices import to_device
from mixdim.training.evaluation import Progress, check_output, feature_to_slice_by
from mixdim.training.fitted import Fitted, fitted_of
from mixdim.training.inputs import Batch, TrainingData, num_rows
from mixdim.training.journal import Journal
from mixdim.training.loop import SECONDS_BETWEEN_CHECKPOINTS, DivergedError, Stopped
from mixdim.training.options import TrainingOptions
from mixdim.training.resumption import MAY_CHANGE, TrainingState
from mixdim.training.schedule import Schedule


def fit_together(
    sharded: Sharded,
    group: Group,
    data: TrainingData,
    options: TrainingOptions,
    out: Path,
    *,
    resume: bool = False,
    progress: Progress | None = None,
) -> Fitted:
    """Train a model that is spread over ranks, as `mixdim.fit` trains one that is not.

    At the end it holds the weights of the best validation. Checkpoints are in `out/checkpoint`, which
    all ranks must see.
    """
    if num_rows(data, "train") == 0:
        raise ValueError("the training split is empty")
    run = Together(sharded, group, data, options, out, progress if group.rank == 0 else None)
    if resume:
        run.take_up()
    run.journal.rewind(run.state.journal_length, step=run.state.step)
    with StopRequests() as stopped:
        return run.to_the_end(stopped)


@dataclass
class Together:
    """One training run, as one of its ranks sees it."""

    sharded: Sharded
    group: Group
    data: Any  # TrainingData whose batches have parts
    options: TrainingOptions
    out: Path
    progress: Progress | None
    state: TrainingState = field(default_factory=TrainingState)

    def __post_init__(self) -> None:
        self.task = task_of(self.data.task)
        self.slice_by = feature_to_slice_by(self.data, self.options.slice_by)
        self.schedule = Schedule(num_rows(self.data, "train"), self.options)
        self.part = (self.group.rank, self.group.world)
        self.journal = Journal(self.out / "metrics.jsonl" if self.group.rank == 0 else None)
        self.folder = self.out / "checkpoint"
        self._start_clock()

    def _start_clock(self) -> None:
        self.clock = Clock(self.state.seconds)
        self.account = Account(self.journal, self.schedule, self.clock, self.progress)

    def to_the_end(self, stopped: Callable[[], bool]) -> Fitted:
        """Train, measure, and leave the best weights in the model."""
        self._start_clock()
        state, total = self.state, self.schedule.total_steps
        self.sharded.model.train()
        parted = Parted(self.data, self.part)
        with closing(self.schedule.batches(parted, after=state.step)) as batches:
            while True:
                step = state.step
                if step > state.evaluated_step and self.schedule.evaluates_after(step):
                    self._evaluate()
                patience = self.options.patience
                if step >= total or (patience is not None and state.stale >= patience):
                    break
                stop, save_now = any_says(stopped(), self._checkpoint_is_due())
                if stop:
                    name = getattr(stopped, "name", None) or "a signal to another rank"
                    raise Stopped(name, step, self._save("step"))
                if save_now:
                    self._save("step")
                self.train(next(batches))
        self._save("step")
        return self._measured()

    def train(self, batch: Batch) -> float:
        """Take one step; returns the mean loss of all ranks' samples."""
        start, step = time.perf_counter(), self.state.step
        samples = self.schedule.samples_after(step + 1) - self.schedule.samples_after(step)
        self.sharded.zero_grad()
        output = check_output(self.sharded(to_device(batch, self.group.device)), batch.target)
        loss = self._share_of_loss(output, batch, samples)
        mean = summed(loss) / self.group.world
        if not math.isfinite(mean):
            raise self._diverged(f"the loss is {mean}")
        with quiet():
            loss.backward()
        self.sharded.step()
        self.state.losses.append(mean)
        self.state.step += 1
        self.account.tell(self.state, mean)
        self.state.train_seconds += time.perf_counter() - start
        return mean

    def _share_of_loss(self, output: Tensor, batch: Any, samples: int) -> Tensor:
        """The sum over the samples that count, times ranks / samples: gradients are averaged."""
        counted = batch.weight.to(output.device) > 0
        here = int(counted.sum())
        if here == 0:
            return output.sum() * 0.0  # the other ranks wait for its part in the backward pass
        target = batch.target.to(output.device)
        mean = self.task.loss(output[counted], target[counted])
        return mean * (here * self.group.world / samples)

    def _diverged(self, what: str) -> DivergedError:
        return DivergedError(
            f"training diverged after step {self.state.step}: {what}. "
            f"A smaller lr than {self.options.lr:g} may help"
        )

    # Measuring.

    def _evaluate(self) -> None:
        metrics = self._measure("validation")
        epoch = self.schedule.epochs_after(self.state.step)
        is_best = self.state.take_evaluation(metrics, epoch=epoch, objective=self.task.objective)
        self.account.write(self.state, "validation", validation=metrics)
        if is_best:
            self._save("best")

    def _measure(self, split: str) -> dict[str, Any]:
        try:
            return measure_together(
                self.sharded,
                self.group,
                self.data,
                split,
                batch_size=self.options.batch_size,
                slice_by=self.slice_by,
                progress=self.progress,
            )
        except FloatingPointError as error:
            raise self._diverged(str(error)) from None

    def _measured(self) -> Fitted:
        state = self.state
        assert state.best is not None
        last = best = self._measure("test")
        if state.best["step"] != state.step:
            load(self.sharded, self.folder / f"best-{state.best['step']:08d}")
            best = self._measure("test")
        fitted = fitted_of(state, self.schedule, self.clock, self.slice_by, best=best, last=last)
        self.account.write(state, "test", test=fitted.test)
        return fitted

    # What is kept, and taken up again.

    def _checkpoint_is_due(self) -> bool:
        every = self.options.checkpoint_every
        if every is not None:
            return self.state.step > 0 and self.state.step % every == 0
        return self.clock.since_checkpoint() > SECONDS_BETWEEN_CHECKPOINTS

    def _save(self, kind: str) -> Path:
        self._check_weights()
        self.state.seconds, self.state.journal_length = self.clock.seconds(), self.journal.length
        path = self.folder / f"{kind}-{self.state.step:08d}"
        told = {**asdict(self.state), "options": asdict(self.options), "data": self.data.fingerprint}
        save(self.sharded, path, told)
        if self.group.rank == 0:
            self._prune()
        if kind == "step":
            self.clock.checkpoint_written()
        return path

    def _check_weights(self) -> None:
        """A checkpoint that is written can be relied on."""
        held: list[Tensor] = [*self.sharded.dense_parameters().values()]
        held += [rows for _, table in self.sharded.tables() for _, rows in table.parts]
        wrong = any(t.numel() and not all(map(math.isfinite, t.detach().aminmax())) for t in held)
        if any_says(wrong)[0]:
            raise self._diverged("weights are not finite")

    def _prune(self) -> None:
        """Keep the newest checkpoints, and the best weights."""
        steps = sorted(self.folder.glob("step-*"))
        best = None if self.state.best is None else f"best-{self.state.best['step']:08d}"
        old = [path for path in self.folder.glob("best-*") if path.name != best]
        for path in (*steps[:-KEPT], *old):
            shutil.rmtree(path, ignore_errors=True)

    def take_up(self) -> None:
        """Go on from the newest whole checkpoint, if there is one."""
        told = newest_step(self.folder)
        name = broadcast_text("" if told is None else told.name)
        if not name:
            return
        kept = load(self.sharded, self.folder / name)
        _check_same(self.folder / name, kept, self.options, self.data.fingerprint)
        self.state = TrainingState(**{key: kept[key] for key in asdict(TrainingState())})


class Parted:
    """Data of which a rank takes its share."""

    def __init__(self, data: Any, part: tuple[int, int]) -> None:
        self.data, self.part = data, part

    def __getattr__(self, name: str) -> Any:
        return getattr(self.data, name)

    def batches(self, split: str, **order: Any) -> Any:
        """The shares of the batches."""
        return self.data.batches(split, **order, part=self.part)


def _check_same(path: Path, kept: Mapping[str, Any], options: TrainingOptions, fingerprint: str) -> None:
    """Refuse to continue a run as another one."""
    for name, now in asdict(options).items():
        if name not in MAY_CHANGE and kept["options"].get(name) != now:
            before = kept["options"].get(name)
            raise CheckpointError(f"{path} is of a run with {name}={before!r}, not {now!r}")
    if kept["data"] != fingerprint:
        raise CheckpointError(f"{path} is of a run on other data than this")
