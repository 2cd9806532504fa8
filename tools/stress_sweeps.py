"""Sweeps that share a file of records and are killed again and again, until all runs are recorded.

Nothing may be lost, doubled, half written, or left behind.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from forks import Fork
from mixdim.cli import main as cli
from mixdim.runs.sweeps.records import Record
from sweep_runs import results, wait_for
from warm_sweeps import ready_forkserver, sweep_of_fork

AT_ONCE = 3  # sweeps that share a file
SEEDS = 10
RUNS = 6 * SEEDS
ORPHANS_END_WITHIN = 20.0  # seconds


class Place:
    """A folder with data, and the records of all runs as a sweep that nobody killed wrote them."""

    def __init__(self, folder):
        self.folder, self.temporary, self.log = folder, folder / "temporary", folder / "log"
        self.temporary.mkdir()
        (folder / "run.toml").write_text("batch-size = 200\nepochs = 1\n")
        data = str(folder / "data")
        generating = ["generate", "movielens-like", "--rows", "1000", "--scale", "0.0005", "--out", data]
        assert Fork(lambda: cli.run(generating), self.log).wait() == 0
        alone, began = folder / "alone.jsonl", time.monotonic()
        assert Fork(lambda: cli.run(self.sweep(alone)), self.log).wait() == 0
        self.seconds = (time.monotonic() - began) / RUNS  # of a run
        self.expected = results(read_lines(alone))
        assert len(self.expected) == RUNS

    def sweep(self, records):
        return [
            *("sweep", "--data", str(self.folder / "data"), "--model", "mf", "--jobs", "1"),
            *("--temperatures", "0,0.2,0.4", "--budgets", "1000,1500", "--seeds", str(SEEDS)),
            *("--config", str(self.folder / "run.toml"), "--records", str(records)),
        ]

    def problems(self, records):
        """What is wrong now that every sweep of a file has ended."""
        found = []
        lines = read_lines(records)
        keys = [line.key for line in lines]
        if doubled := len(keys) - len(set(keys)):
            found.append(f"{doubled} of {RUNS} runs doubled")
        if lost := len(self.expected.keys() - set(keys)):
            found.append(f"{lost} of {RUNS} runs lost")
        if failed := [line.error for line in lines if not line.finished]:
            found.append(f"{len(failed)} runs failed, one with: {failed[0]}")
        if not found and results(lines) != self.expected:
            found.append("results differ from those of a sweep left alone")
        if not records.read_bytes().endswith(b"\n"):
            found.append("the last line is torn")
        try:
            wait_for(lambda: not left_in(self.temporary), ORPHANS_END_WITHIN)
        except AssertionError:
            found.append(f"left behind: {', '.join(left_in(self.temporary))}")
        if hidden := [path.name for path in records.parent.glob(f".{records.name}*")]:
            found.append(f"left beside the records: {', '.join(hidden)}")
        return [f"{records.name}: {problem}" for problem in found]


def read_lines(records):
    """Every line as a record, also those that a later one replaces; a line that is none raises."""
    return [Record(**json.loads(line)) for line in records.read_text().splitlines()]


def left_in(temporary):
    return [path.name for path in temporary.glob("mixdim-*")]


def kill_warm_sweeps(folder, *, kills, seed, end):
    """Kill sweeps that start in milliseconds; half of the kills take the sweep's runs along.

    Each of several hosts keeps one sweep alive. A host has the forkserver that its sweeps would have to
    start for seconds, so that kills come while runs are made and recorded.
    """
    place, killed, rounds, problems = Place(folder), 0, 0, []
    while killed < kills and time.monotonic() < end:
        records = folder / f"records-{rounds}.jsonl"
        told = [folder / f"kills-{rounds}-{slot}" for slot in range(AT_ONCE)]
        hosts = [
            Fork(partial(_host, place, records, here, f"{seed}, {here.name}", end), place.log)
            for here in told
        ]
        if codes := [host.code for host in hosts if host.wait() != 0]:
            problems.append(f"{records.name}: sweeps ended with {codes}, see {place.log}")
        killed += sum(int(here.read_text()) for here in told)
        problems += place.problems(records)
        rounds += 1
    return killed, rounds * RUNS, problems


def _host(place, records, told, seed, end):
    """Keep one sweep alive, however often it is killed, until all runs are recorded."""
    chance = random.Random(seed)
    tempfile.tempdir = str(place.temporary)
    kills = 0
    while True:
        server = ready_forkserver()
        sweep = Fork(lambda: sweep_of_fork(place.sweep(records)), place.log)
        moment = chance.choice([chance.uniform(0, 1), chance.uniform(0, 8)]) * place.seconds
        if sweep.wait(moment if time.monotonic() < end else None) is not None:
            told.write_text(str(kills))
            return sweep.code
        runs = children_of(server) if chance.random() < 0.5 else []
        sweep.kill()
        for run in runs:
            try:
                os.kill(run, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it ended by itself
        kills += 1


def children_of(pid):
    """The processes that a process has started and that still live."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        if int(parent) == pid and state != "Z":
            found.append(int(path.parent.name))
    return found


def kill_cold_sweeps(folder, *, kills, seed, end):
    """Kill sweeps as users start them, alone or with their whole process group."""
    place, chance, killed = Place(folder), random.Random(seed), 0
    records = folder / "records.jsonl"
    command = [sys.executable, "-m", "mixdim", *place.sweep(records)]
    environment = {**os.environ, "TMPDIR": str(place.temporary)}
    problems = []
    with place.log.open("a") as log:

        def start():
            return subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )

        sweeps = [start(), start()]
        while killed < kills and time.monotonic() < end and all(s.poll() is None for s in sweeps):
            time.sleep(chance.uniform(0, 30) * place.seconds)
            sweep = sweeps.pop(0)
            if chance.random() < 0.5:
                os.killpg(sweep.pid, signal.SIGKILL)
            else:
                sweep.kill()
            sweep.wait()
            killed += 1
            sweeps.append(start())
        codes = [sweep.wait() for sweep in sweeps]
    if codes != [0, 0]:
        problems.append(f"the last sweeps ended with {codes}, see {place.log}")
    return killed, RUNS, problems + place.problems(records)
