"""Sweeps that share a file of records, at once or after a kill: nothing is lost or doubled."""

import os
import random
import re
import signal
import threading
import time
from contextlib import suppress
from dataclasses import replace
from multiprocessing import active_children, forkserver
from pathlib import Path

import pytest

from mixdim._util import locks
from mixdim.runs.sweeps.records import append_record, read_records
from mixdim.runs.sweeps.run_locks import RunLocks
from mixdim.runs.sweeps.sweep import SweepStopped, run_sweep
from mixdim.runs.sweeps.worker import remove_abandoned_folders
from sweep_runs import ALONE, endless, results, runs_of, wait_for
from training_data import ratings

pytestmark = ALONE


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The records of the runs that the script makes, from a sweep that nobody disturbed."""
    return run_sweep(runs_of(epochs=8), tmp_path_factory.mktemp("alone") / "records.jsonl")


def waits(note):
    return "under way in other sweeps" in note


def test_a_run_of_another_sweep_is_waited_for_and_not_made_again(file, alone):
    with RunLocks(file) as other:
        assert other.take(alone[0].key)

        def finish_it(stage, done, total, note):
            if waits(note) and not file.exists():
                append_record(file, alone[0])
                other.release(alone[0].key)

        assert run_sweep(runs_of(epochs=8)[:1], file, progress=finish_it) == alone[:1]
    assert len(file.read_text().splitlines()) == 1


def test_other_runs_are_made_meanwhile_and_that_of_a_dead_sweep_is_taken_over(file, alone):
    other = RunLocks(file)
    assert other.take(alone[0].key)
    notes, made = [], []

    def die(stage, done, total, note):
        notes.append((done, total, note))
        if waits(note):
            other.release(alone[0].key)

    run_sweep(runs_of(epochs=8), file, progress=die, on_record=lambda one: made.append(one.key))
    assert made == [one.key for one in (*alone[1:], alone[0])]
    assert (3, 4, "1 under way in other sweeps") in notes
    assert results(read_records([file])) == results(alone)


def test_a_failure_in_another_sweep_meanwhile_is_a_failure_here(file, alone):
    failure = replace(alone[0], status="failed", error="it diverged", summary=None, train=None, curve=[])
    append_record(file, replace(failure, error="an earlier sweep's: to be tried again"))
    with RunLocks(file) as other:
        assert other.take(failure.key)

        def fail_it(stage, done, total, note):
            if waits(note) and len(file.read_text().splitlines()) == 1:
                append_record(file, failure)
                other.release(failure.key)

        assert run_sweep(runs_of(epochs=8)[:1], file, progress=fail_it) == [failure]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_waiting(file, alone, number):
    def interrupt(stage, done, total, note):
        if waits(note):
            os.kill(os.getpid(), number)

    with RunLocks(file) as other:
        assert other.take(alone[0].key)
        with pytest.raises(SweepStopped, match=f"stopped by {number.name} after 0 of 1 runs"):
            run_sweep(runs_of(epochs=8)[:1], file, progress=interrupt)


def test_where_nothing_can_be_locked_finished_runs_are_still_found_and_others_refused(
    file, alone, monkeypatch
):
    append_record(file, alone[0])
    monkeypatch.setattr(locks, "fcntl", None)
    assert run_sweep(runs_of(epochs=8)[:1], file) == alone[:1]
    with pytest.raises(OSError, match="must be locked, which is not possible there: this system has no"):
        run_sweep(runs_of(epochs=8), file)
    with pytest.raises(OSError, match="must be locked"):
        append_record(file, alone[1])
    assert read_records([file]) == alone[:1]


def test_a_place_where_nothing_can_be_recorded_is_refused_before_a_run_is_made(file, tmp_path):
    os.mkfifo(file)
    with pytest.raises(ValueError, match=r"records must be a file, and .*records.jsonl is none"):
        run_sweep([endless()], file)
    with pytest.raises(FileNotFoundError, match=r"there is no directory .*nowhere"):
        run_sweep([endless()], tmp_path / "nowhere" / "records.jsonl")


def test_signals_to_the_whole_program_do_not_reach_the_runs(file, temporary):
    """As a terminal sends them; the sweep heeds them alone."""

    annoyed = []

    def annoy(stage, done, total, note):
        if not note.startswith("now "):
            return
        wait_for(lambda: list(temporary.glob("mixdim-sweep-*")))
        (worker,) = active_children()  # it stays until the sweep, which is here now, has its record
        for process in (worker.pid, parent_of(worker.pid)):
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
                os.kill(process, number)
                annoyed.append(number)

    (found,) = run_sweep(runs_of(epochs=8)[:1], file, progress=annoy)
    assert (found.error, len(annoyed)) == (None, 8)


def test_folders_that_killed_workers_left_are_removed_and_no_others(temporary):
    ours = {name: temporary / f"mixdim-sweep-{name}" for name in ("left", "held", "link")}
    (ours["left"] / "run").mkdir(parents=True)
    ours["held"].mkdir()
    (temporary / "another").mkdir()
    ours["link"].symlink_to(temporary / "another")
    handle = locks.lock_now(ours["held"], os.O_RDONLY)
    remove_abandoned_folders()
    assert set(temporary.iterdir()) == {ours["held"], ours["link"], temporary / "another"}
    os.close(handle)
    ours["link"].unlink()
    remove_abandoned_folders()


@pytest.fixture
def started(commands, tmp_path, file, temporary):
    """A sweep of the runs of `alone` in a process of its own, which has recorded the first."""
    (tmp_path / "run.toml").write_text("batch-size = 100\nepochs = 8\n")
    arguments = [
        *("sweep", "--data", ratings().path, "--records", file, "--jobs", 2, "--seeds", 2, "--model"),
        *("mf", "--temperatures", "0,0.3", "--budgets", 1500, "--rounding", "power_of_two"),
        *("--config", tmp_path / "run.toml"),
    ]
    process = commands.start(arguments, tmp_path / "log", temporary)
    wait_for(file.exists)
    return process


def parent_of(process):
    return int(re.search(r"PPid:\s(\d+)", Path(f"/proc/{process}/status").read_text())[1])


def processes_in(folder):
    """The processes that hold something of a folder open."""
    for handle in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # it ended
            if handle.readlink().is_relative_to(folder):
                yield int(handle.parts[2])


def test_a_sweep_killed_at_any_moment_and_restarted_ends_as_one_left_alone(
    started, file, alone, temporary
):
    moment = random.Random().uniform(0.0, 0.3)
    print(f"killed {moment:.3f} s after the first record")
    time.sleep(moment)
    started.send_signal(signal.SIGKILL)
    started.wait()
    wait_for(lambda: not list(temporary.iterdir()))  # its runs die with it
    survived = results(read_records([file]))
    assert survived.items() <= results(alone).items()
    assert results(run_sweep(runs_of(epochs=8), file)) == results(alone)
    assert len(file.read_text().splitlines()) == len(alone)


def test_two_sweeps_share_the_work_also_when_one_is_killed_with_all_its_runs(
    started, file, alone, temporary
):
    moment = random.Random().uniform(0.0, 0.3)
    print(f"killed {moment:.3f} s after the first record")

    def kill_with_all_its_runs():
        ours = {os.getpid(), forkserver._forkserver._forkserver_pid}
        started.send_signal(signal.SIGSTOP)  # or it would record how its runs end
        for process in processes_in(temporary):
            with suppress(ProcessLookupError, FileNotFoundError):
                if not ours & {process, parent_of(process)}:
                    os.kill(process, signal.SIGKILL)
        started.send_signal(signal.SIGKILL)

    killing = threading.Timer(moment, kill_with_all_its_runs)
    killing.start()  # nobody is left to tidy up but the other sweep, which is this process
    assert results(run_sweep(runs_of(epochs=8), file)) == results(alone)
    killing.join()
    assert started.wait() in (0, -signal.SIGKILL)
    wait_for(lambda: not {*processes_in(temporary)})
    remove_abandoned_folders()  # if the kill came when the other sweep had ended
    assert len(file.read_text().splitlines()) == len(alone)
    assert results(read_records([file])) == results(alone)
