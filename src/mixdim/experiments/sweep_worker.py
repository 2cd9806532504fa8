"""One run of a sweep, in a process of its own: so memory is its own, and no crash takes others along.

Knows nothing about records, or other runs.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import warnings
from contextlib import suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from uuid import uuid4

import torch

import mixdim
from mixdim.experiments.measured_run import Outcome, train_and_measure
from mixdim.experiments.run_config import RunConfig


class Worker:
    """A process that trains one config, in a temporary folder."""

    def __init__(self, config: RunConfig, *, threads: int) -> None:
        context = get_context("forkserver")
        # A process forked from one that has torch already starts in milliseconds. An optimizer imports
        # torch._dynamo when it is made, for more than a second.
        context.set_forkserver_preload([__name__, "torch._dynamo"])
        # The worker makes it: were we killed between making it and starting a worker, it would stay.
        self.folder = str(Path(tempfile.gettempdir()) / f"mixdim-sweep-{uuid4().hex}")
        self.outcome_end, child_end = context.Pipe(duplex=False)
        self.process: ForkServerProcess = context.Process(
            target=_work, args=(config, self.folder, threads, child_end), daemon=True
        )
        self.process.start()
        child_end.close()  # so that the child's death is the end of the pipe

    def finish(self) -> Outcome:
        """What came out, once `some_done` said that the worker is done; the folder is removed."""
        try:
            outcome: Outcome = self.outcome_end.recv()
        except EOFError:
            self.process.join()
            code = self.process.exitcode or 0
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
            outcome = Outcome(error=f"the process of the run {how}")
        # Before the worker, idle by now, is ended: should we be killed meanwhile, it does the rest.
        shutil.rmtree(self.folder, ignore_errors=True)
        self.stop()
        return outcome

    def stop(self) -> None:
        """End the process, whatever it does, and remove its folder."""
        self.process.kill()
        self.process.join()
        self.outcome_end.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def some_done(workers: list[Worker], *, seconds: float) -> list[Worker]:
    """The workers that are done, after waiting at most some seconds for the first of them."""
    ready = wait([worker.outcome_end for worker in workers], timeout=seconds)
    return [worker for worker in workers if worker.outcome_end in ready]


def _work(config: RunConfig, folder: str, threads: int, outcome_end: Connection) -> None:
    orphaned = threading.Thread(target=_die_with_the_sweep, args=(folder,), daemon=True)
    orphaned.start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the sweep too, which then stops us
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore", mixdim.FloorWarning)  # part of what a sweep compares
    try:
        outcome = train_and_measure(config, Path(folder) / "run")
    except Exception as error:
        outcome = Outcome(error=f"{type(error).__name__}: {error}")
    with suppress(BrokenPipeError):
        outcome_end.send(outcome)
    orphaned.join()  # the sweep stops us once it has the outcome; without a sweep the thread does


def _die_with_the_sweep(folder: str) -> None:
    sweep = parent_process()
    assert sweep is not None
    sweep.join()
    # Becoming `rm` ends all threads first, so that nothing is written while the folder is removed.
    os.execvp("rm", ("rm", "-rf", "--", folder))
