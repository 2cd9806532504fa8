"""One run of a sweep, in a process of its own: so memory is its own, and no crash takes others along.

Knows nothing about other runs, or where records are kept.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import forkserver, get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import torch

import mixdim
from mixdim._util.locks import lock_now
from mixdim.runs.sweeps.measure import SolvedRun, train_and_measure
from mixdim.runs.sweeps.records import Record

if TYPE_CHECKING:  # Windows has none
    from multiprocessing.context import ForkServerProcess

FOLDER_PREFIX = "mixdim-sweep-"
# A process forked from one that has torch already starts in milliseconds. An optimizer imports
# torch._dynamo when it is made, for more than a second.
PRELOAD = [__name__, "torch._dynamo"]
# What a terminal, or a service manager, sends to all processes of a program. Only the sweep heeds it.
TO_THE_WHOLE_PROGRAM = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")


class Worker:
    """A process that makes one run, in a temporary folder."""

    def __init__(self, run: SolvedRun, *, threads: int) -> None:
        self.run = run
        context = get_context("forkserver")
        _start_forkserver()
        # The worker makes it: were we killed between making it and starting a worker, it would stay.
        self.folder = str(Path(tempfile.gettempdir()) / f"{FOLDER_PREFIX}{uuid4().hex}")
        # Where Python keeps the forkserver's socket: ours to remove, unless we are somebody's child.
        leftovers = (self.folder, *([get_temp_dir()] if parent_process() is None else []))
        self.record_end, child_end = context.Pipe(duplex=False)
        self.process: ForkServerProcess = context.Process(
            target=_work, args=(run, self.folder, leftovers, threads, child_end), daemon=True
        )
        self.process.start()
        child_end.close()  # so that the child's death is the end of the pipe

    def finish(self) -> Record:
        """The record of the run, once `some_done` named the worker; its folder is removed."""
        try:
            record: Record = self.record_end.recv()
        except (EOFError, OSError):  # it died before, or while, it told
            self.process.join()
            code = self.process.exitcode or 0
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
            record = self.run.record(error=f"the process of the run {how}")
        # Before the worker, idle by now, is ended: should we be killed meanwhile, it does the rest.
        shutil.rmtree(self.folder, ignore_errors=True)
        self.stop()
        return record

    def stop(self) -> None:
        """End the process, whatever it does, and remove its folder."""
        self.process.kill()
        self.process.join()
        self.record_end.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def some_done(workers: list[Worker], *, seconds: float) -> list[Worker]:
    """The workers that are done, after waiting at most some seconds for the first of them."""
    ready = wait([worker.record_end for worker in workers], timeout=seconds)
    return [worker for worker in workers if worker.record_end in ready]


def get_ready(stopped: Callable[[], bool], *, seconds: float) -> None:
    """Wait until workers start in milliseconds, or until `stopped`, called every `seconds`, says so."""

    def start_one() -> None:
        with suppress(Exception):  # the first worker will tell
            _start_forkserver()
            idle = get_context("forkserver").Process(target=_do_nothing, daemon=True)
            idle.start()
            idle.join()

    # In a thread, since a start takes as long as importing torch, and cannot be called off.
    starting = threading.Thread(target=start_one, daemon=True)
    starting.start()
    while starting.is_alive() and not stopped():
        starting.join(seconds)
    # Python does not tell who it is. Left alone, it would go on importing when we are gone, and keep our
    # output open; the next start begins anew.
    server = getattr(forkserver._forkserver, "_forkserver_pid", None)
    if starting.is_alive() and server is not None:
        with suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)
        starting.join()


def remove_abandoned_folders() -> None:
    """Remove the folders of workers that were killed together with their sweep: nobody holds them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        with suppress(OSError):  # another user's, or gone by now
            handle = _lock_folder(folder)
            if handle is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(handle)


def _start_forkserver() -> None:
    """Start it, unless it runs, out of reach of signals: it passes the blocked ones on to all workers.

    Otherwise Ctrl-C ends it, or a worker, with a traceback before the first line of either can run.
    """
    get_context("forkserver").set_forkserver_preload(PRELOAD)
    resource_tracker.ensure_running()  # first: starting it unblocks signals
    before = _block_signals()
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _do_nothing() -> None:
    pass


def _block_signals() -> set[int]:
    return signal.pthread_sigmask(signal.SIG_BLOCK, [signal.Signals[n] for n in TO_THE_WHOLE_PROGRAM])


def _lock_folder(folder: Path) -> int | None:
    return lock_now(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _make_folder(folder: Path) -> None:
    """Make a folder and hold it for as long as this process lives."""
    while True:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        try:
            if _lock_folder(folder) is not None:
                return
        except FileNotFoundError:
            pass  # a sweep took it for abandoned in the moment before it was locked
        except OSError:
            return  # folders cannot be locked there, so nobody can take it for abandoned either


def _work(
    run: SolvedRun, folder: str, leftovers: Sequence[str], threads: int, record_end: Connection
) -> None:
    _block_signals()  # again: somebody else may have started the forkserver
    orphaned = threading.Thread(target=_die_with_the_sweep, args=leftovers, daemon=True)
    orphaned.start()
    _make_folder(Path(folder))
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore", mixdim.FloorWarning)  # part of what a sweep compares
    try:
        record = train_and_measure(run, Path(folder) / "run")
    except Exception as error:
        record = run.record(error=f"{type(error).__name__}: {error}")
    with suppress(BrokenPipeError):
        record_end.send(record)
    orphaned.join()  # the sweep stops us once it has the record; without a sweep the thread does


def _die_with_the_sweep(*leftovers: str) -> None:
    sweep = parent_process()
    assert sweep is not None
    sweep.join()
    # Becoming `rm` ends all threads first, so that nothing is written while the folder is removed.
    os.execvp("rm", ("rm", "-rf", "--", *leftovers))
