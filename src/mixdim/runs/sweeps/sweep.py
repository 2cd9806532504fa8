"""Many runs, recorded one by one: skip what is finished, go on after a failure, stop at any time.

Knows nothing about figures; one run is the business of worker.py.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch

from mixdim._util.arguments import whole_number
from mixdim._util.signals import StopRequests
from mixdim._util.text import Note
from mixdim.data import Dataset
from mixdim.planning.budget import parse_budget, width_of
from mixdim.planning.from_counts import FloorWarning
from mixdim.planning.plan import Plan
from mixdim.planning.sizing import largest_base_dim
from mixdim.runs.config import RunConfig
from mixdim.runs.models import build_model, check_fits
from mixdim.runs.plans import plan_of
from mixdim.runs.sweeps.forecast import Forecast
from mixdim.runs.sweeps.measure import SolvedRun, known_baselines
from mixdim.runs.sweeps.methods import OF_EMBEDDINGS, run_name
from mixdim.runs.sweeps.records import Record, append_record, read_records
from mixdim.runs.sweeps.run_locks import RunLocks
from mixdim.runs.sweeps.worker import Worker, get_ready, remove_abandoned_folders, some_done
from mixdim.training.evaluation import Progress

SECONDS_BETWEEN_LOOKS = 0.2  # how long a request to stop may wait


@dataclass(frozen=True)
class RunRequest:
    """A run that a sweep should make.

    With a `model_budget`, parameters of the whole model, the config says neither base_dim nor budget.
    """

    config: RunConfig
    model_budget: int | None = None


def within_budget(config: RunConfig, budget: str) -> RunRequest:
    """A run within a budget, as the flag of a sweep names it.

    "2^15", "1M" and "64MB" (in float32) count the whole model. "width:2", what uniform dimensions of
    width 2 have, and "embeddings:1M" or "embeddings:4MB" count embeddings alone, as in `mixdim train`.

    >>> within_budget(RunConfig(), "2^15").model_budget
    32768
    >>> [within_budget(RunConfig(), text).config.budget for text in ("width:2", "embeddings:4MB")]
    ['width:2', '4MB']
    """
    text, width = budget.strip(), width_of(budget)
    if width is not None:
        return RunRequest(replace(config, budget=f"width:{width}"))
    if text.startswith(OF_EMBEDDINGS):
        text = text.removeprefix(OF_EMBEDDINGS)
        parse_budget(text)  # says now what is wrong with it
        return RunRequest(replace(config, budget=text))
    return RunRequest(config, parse_budget(text))


class InfeasibleBudgetError(ValueError):
    """A budget below what the narrowest model has."""


class SweepStopped(Exception):  # noqa: N818  # nothing went wrong
    """A signal stopped the sweep; what was finished is in the records."""

    def __init__(self, signal_name: str, finished: int, total: int) -> None:
        self.signal_name = signal_name
        super().__init__(f"stopped by {signal_name} after {finished} of {total} runs")


def run_sweep(
    runs: Sequence[RunRequest],
    records: Path,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    on_record: Callable[[Record], None] | None = None,
    earlier: int = 0,
    later: int = 0,
) -> list[Record]:
    """Make every run that is not finished in the file `records`, and return the records of all.

    - `jobs`: runs at a time, each in a process of its own; they divide torch's threads.
    - `progress("runs", done, total, note)` is called once it is known which runs are finished, whenever
      a run begins or ends, and again and again while those that are left are under way elsewhere.
      The note also has `seconds_left`, by the time that similar runs took.
    - `on_record`: called with each record as soon as it is written, or found to be finished.
    - `earlier`, `later`: runs of the same work that were made before, or will be made after these; they
      count in progress, and in what a stop says.

    The records come in the order of the runs. A run that fails, also by a budget that no model meets,
    is recorded as failed, and made again by the next sweep. SIGINT and SIGTERM raise `SweepStopped`;
    the runs under way are thrown away. Sweeps may share a file at the same time, and then share the
    work: none makes a run that another has begun, but waits for its record, or for its death.
    """
    jobs = whole_number(jobs, "jobs")
    _check_place(records)
    solved_runs = _solve(runs)
    threads = max(1, torch.get_num_threads() // jobs)
    waiting = list({run.key: run for run in solved_runs}.values())
    configs, total = [run.config for run in waiting], earlier + len(waiting) + later
    working: dict[Worker, float] = {}  # and when it began
    before = _recorded(records)
    forecast = Forecast(before.values())

    def finished() -> int:
        return total - later - len(waiting) - len(working)

    def show(note: str = "") -> None:
        if progress is not None:
            now = time.monotonic()
            left = forecast.seconds_left(
                [run.config for run in waiting],
                [(worker.run.config, now - begun) for worker, begun in working.items()],
                jobs=jobs,
                later=later,
                like=configs,
            )
            progress("runs", finished(), total, Note(note, left))

    def tell(record: Record) -> None:
        if on_record is not None:
            on_record(record)
        show(record.error or "")

    def keep(record: Record) -> None:
        append_record(records, record)
        locks.release(record.key)
        tell(record)

    def begin(run: SolvedRun) -> None:
        """Make a run that is ours, unless another sweep has recorded it since this one began."""
        waiting.remove(run)
        recorded = _recorded(records)
        record = recorded.get(run.key)
        if record is not None and (record.finished or record != before.get(run.key)):
            locks.release(run.key)
            tell(record)
        elif run.error is not None:
            keep(run.record(error=run.error))
        else:
            known = known_baselines(recorded.values())
            worker = Worker(replace(run, known_baselines=known), threads=threads)
            working[worker] = time.monotonic()
            show(f"now {run_name({**run.config.to_dict(), 'model_budget': run.model_budget})}")

    with StopRequests(every=True) as stopped, RunLocks(records) as locks:
        for run in list(waiting):
            if (record := before.get(run.key)) is not None and record.finished:
                waiting.remove(run)
                if on_record is not None:
                    on_record(record)
        show()
        try:
            remove_abandoned_folders()
            if any(run.error is None for run in waiting):
                get_ready(stopped, seconds=SECONDS_BETWEEN_LOOKS)
            while waiting or working:
                if stopped.name is not None:
                    raise SweepStopped(stopped.name, finished(), total)
                for run in list(waiting):
                    if len(working) < jobs and not stopped() and locks.take(run.key):
                        begin(run)
                if waiting and len(working) < jobs and not stopped():
                    show(f"{len(waiting)} under way in other sweeps")
                for worker in some_done(list(working), seconds=SECONDS_BETWEEN_LOOKS):
                    record, begun = worker.finish(), working.pop(worker)
                    forecast.add(record, time.monotonic() - begun)
                    keep(record)
        finally:
            for worker in working:
                worker.stop()
            remove_abandoned_folders()
    found = {record.key: record for record in read_records([records])} if solved_runs else {}
    # Budgets so close that they allow the same base_dim share a run.
    return [
        replace(record, config={**record.config, "model_budget": run.model_budget})
        for run, record in ((run, found[run.key]) for run in solved_runs)
    ]


def config_within(config: RunConfig, dataset: Dataset, model_budget: int) -> RunConfig:
    """The resolved config with the largest base_dim whose whole model meets a budget.

    Everything that is trained counts: tables, projections, MLPs and biases. The error says the smallest
    feasible budget: that of width 1. Where rounding fills a budget, the config also says what the rest
    of the model leaves to the embeddings.
    """
    model_budget = whole_number(model_budget, "model_budget")
    for option in ("base_dim", "budget", "plan"):
        if getattr(config, option) is not None:
            raise ValueError(f"give model_budget or {option}, not both")
    fills = config.rounding == "fill"
    config = replace(config, base_dim=1, rounding="integer" if fills else config.rounding)
    config = config.resolved(dataset)
    check_fits(config, dataset)

    @cache
    def planned(base_dim: int) -> Plan:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FloorWarning)  # widths are only tried here
            return plan_of(replace(config, base_dim=base_dim), dataset).trainable()

    @cache
    def beside(base_dim: int) -> int:
        """Parameters that are not embeddings."""
        with torch.device("meta"):
            model = build_model(config, planned(base_dim), num_dense=dataset.num_dense, mean=0.0)
        return sum(p.numel() for p in model.parameters()) - planned(base_dim).num_parameters

    narrowest = planned(1)
    if model_budget < narrowest.num_parameters + beside(1):
        raise InfeasibleBudgetError(
            f"model_budget of {model_budget:,} parameters is too small: the smallest feasible is "
            f"{narrowest.num_parameters + beside(1):,}, one for each of {narrowest.num_rows:,} rows and "
            f"{beside(1):,} beside the embeddings"
        )
    sizes = np.array([block.size for block in narrowest.blocks])
    row_probs = np.array([block.row_prob for block in narrowest.blocks])

    def widest_beside(base_dim: int) -> int:
        """The largest base_dim of embeddings in what the rest of a model of some base_dim leaves."""
        left = model_budget - beside(base_dim)
        if left < narrowest.num_parameters:
            return 0
        rounding, temperature = config.rounding, config.temperature
        assert temperature is not None
        return largest_base_dim(
            sizes,
            row_probs,
            temperature=temperature,
            budget=left,
            rounding=rounding,  # type: ignore[arg-type]  # planned(1) checked it
        )

    # The rest of a model never shrinks as vectors widen, so what is left to embeddings never grows.
    low, high = 1, widest_beside(1) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if widest_beside(middle) >= middle else (low, middle)
    # A block that reaches full width sheds its projection, so a little below a fit there may be none.
    while planned(low).num_parameters + beside(low) > model_budget:
        low -= 1
    if fills:
        left = model_budget - beside(low)
        return replace(config, base_dim=low, rounding="fill", budget=str(left))
    return replace(config, base_dim=low)


def _solve(runs: Sequence[RunRequest]) -> list[SolvedRun]:
    """Solve and name the runs; what is wrong with all of them is found here, before the first starts."""
    opened = cache(Dataset)

    @cache
    def within(config: RunConfig, model_budget: int) -> RunConfig | InfeasibleBudgetError:
        assert config.data is not None
        try:
            return config_within(config, opened(config.data), model_budget)
        except InfeasibleBudgetError as error:
            return error

    solved_runs = []
    for run in runs:
        if run.config.data is None:
            raise ValueError("data is missing: every run of a sweep needs a prepared folder")
        dataset = opened(str(Path(run.config.data).resolve()))
        # The folder of the run is thrown away, and its curves with it.
        config = replace(run.config, data=str(dataset.path), tensorboard=False)
        config = config.resolved(dataset)
        if run.model_budget is None:
            solved_runs.append(SolvedRun(config, config.key(dataset.fingerprint)))
            continue
        solved = within(replace(config, seed=0), run.model_budget)  # the same for every seed
        if isinstance(solved, InfeasibleBudgetError):
            key = config.key(dataset.fingerprint, model_budget=run.model_budget)
            solved_runs.append(SolvedRun(config, key, run.model_budget, str(solved)))
        else:
            config = replace(solved, seed=config.seed)
            solved_runs.append(SolvedRun(config, config.key(dataset.fingerprint), run.model_budget))
    return solved_runs


def _recorded(records: Path) -> dict[str, Record]:
    """What is recorded by now, by key; a sweep that shares the file may have done it."""
    if not records.exists():
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a torn line is mended by the next append
        return {record.key: record for record in read_records([records])}


def _check_place(records: Path) -> None:
    """Say now what would otherwise be found out when the first run is recorded."""
    if records.exists() and not records.is_file():
        raise ValueError(f"records must be a file, and {records} is none")
    if not records.resolve().parent.is_dir():
        raise FileNotFoundError(f"cannot write {records}: there is no directory {records.parent}")
