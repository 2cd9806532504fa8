"""Interleaved timing: every contender once a round, so that a noisy machine is noisy for all.

Knows nothing about what is timed. Peak memory comes from a process of its own for each contender.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from mixdim import kernels
from mixdim._util.files import write_atomically
from mixdim._util.text import align

Inputs = TypeVar("Inputs")
Step = Callable[[], object]
MEMORY_STEPS = 3
MOST_OTHERS = 0.15  # cores that other processes may take meanwhile
STAT = Path("/proc/stat")  # this and the next two are there on Linux only
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Contest(Generic[Inputs]):
    """One table of figures. Each contender takes the inputs and returns its step.

    `make_inputs` and the contenders are pickled: functions of a module, or `partial` of them.
    """

    title: str
    make_inputs: Callable[[], Inputs]
    contenders: Mapping[str, Callable[[Inputs], Step]]
    rival: str


def arguments(description: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """Return a parser with what all benchmarks understand."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=_at_least_two, help=f"default {rounds}, or 3 with --quick")
    parser.add_argument("--quick", action="store_true", help="a look in seconds: less of everything")
    parser.add_argument("--no-memory", action="store_true", help="do not measure peak memory")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.set_defaults(usual_rounds=rounds)
    return parser


def run(contests: Iterable[Contest[Any]], options: argparse.Namespace) -> None:
    """Play the contests, print a table for each and, if asked, write them all as JSON."""
    machine = machine_facts()
    print(", ".join(f"{name} {fact}" for name, fact in machine.items()) + "\n")
    rounds = options.rounds or (3 if options.quick else options.usual_rounds)
    results = []
    for contest in contests:
        print(f"{contest.title}; {rounds} rounds", flush=True)
        peaks = {} if options.no_memory or not CLEAR.exists() else peak_memory(contest)
        rows, others = play(contest, rounds)
        rows = [{**row, "peak_mb": peaks.get(row["name"])} for row in rows]
        print("\n".join(align(table(rows, contest.rival))))
        if others > MOST_OTHERS:
            print(
                f"DO NOT USE: other processes took {others:.1f} cores, which slows some more than others"
            )
        print(flush=True)
        results.append({
            "title": contest.title,
            "rival": contest.rival,
            "rounds": rounds,
            "cores_of_others": others,
            "rows": rows,
        })  # fmt: skip
    if options.json is not None:
        document = {"machine": machine, "contests": results}
        write_atomically(options.json, json.dumps(document, indent=2) + "\n")


def machine_facts() -> dict[str, str | int | bool]:
    """What a reader needs to judge the figures."""
    return {
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count() or 0,
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "kernels": kernels.available(),
    }


def play(contest: Contest[Any], rounds: int) -> tuple[list[dict[str, Any]], float]:
    """Time one contest, all contenders alive; also return how many cores other processes took."""
    inputs = contest.make_inputs()
    steps = {name: build(inputs) for name, build in contest.contenders.items()}
    start, others = time.perf_counter(), cpu_seconds_of_others()
    rows = summary(measure(steps, rounds=rounds), rival=contest.rival)
    return rows, (cpu_seconds_of_others() - others) / (time.perf_counter() - start)


def cpu_seconds_of_others() -> float:
    """CPU time that the machine spent on other processes; on Linux, else 0."""
    if not STAT.exists():
        return 0.0
    user, nice, system, _idle, _wait, *interrupts = map(int, STAT.read_text().split()[1:9])
    busy = user + nice + system + sum(interrupts)
    return busy / os.sysconf("SC_CLK_TCK") - time.process_time()


def peak_memory(contest: Contest[Any]) -> dict[str, float]:
    """Peak memory of each contender in MB, each in a process of its own: a peak never falls."""
    return {name: in_new_process(peak_mb, contest, name) for name in contest.contenders}


def in_new_process(work: Callable[..., float], *arguments: object) -> float:
    """Run work in a process that was forked from one that has imported torch and done nothing else."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["mixdim"])
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        return executor.submit(work, *arguments).result()


def peak_mb(contest: Contest[Any], name: str) -> float:
    """Peak memory that a contender adds to this process: to build it and to take a few steps."""
    inputs = contest.make_inputs()
    CLEAR.write_text("5")  # the peak so far is forgotten: making the inputs does not count
    before = resident_peak_mb()
    step = contest.contenders[name](inputs)
    for _ in range(MEMORY_STEPS):
        step()
    return resident_peak_mb() - before


def resident_peak_mb() -> float:
    # Not ru_maxrss: Linux starts that at the peak of the process that started this one.
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6


def measure(steps: Mapping[str, Step], *, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each contender in each round, after one round that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if number:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def summary(seconds: Mapping[str, Sequence[float]], *, rival: str) -> list[dict[str, Any]]:
    """Median and quartiles of each, and how many times faster than the rival, round by round."""
    rows = []
    for name, times in seconds.items():
        low, median, high = statistics.quantiles(times, n=4, method="inclusive")
        ratios = [theirs / mine for theirs, mine in zip(seconds[rival], times, strict=True)]
        ratio_low, ratio, ratio_high = statistics.quantiles(ratios, n=4, method="inclusive")
        rows.append({
            "name": name,
            "median_ms": 1e3 * median,
            "quartile_low_ms": 1e3 * low,
            "quartile_high_ms": 1e3 * high,
            "times_faster": ratio,
            "times_faster_low": ratio_low,
            "times_faster_high": ratio_high,
        })  # fmt: skip
    return rows


def table(rows: Sequence[Mapping[str, Any]], rival: str) -> list[list[str]]:
    """The figures as cells."""
    head = ["", "median ms", "quartiles", f"times faster than {rival}", "quartiles", "peak MB"]
    return [head] + [
        [
            row["name"],
            f"{row['median_ms']:.2f}",
            f"{row['quartile_low_ms']:.2f}-{row['quartile_high_ms']:.2f}",
            f"{row['times_faster']:.2f}",
            f"{row['times_faster_low']:.2f}-{row['times_faster_high']:.2f}",
            "-" if row["peak_mb"] is None else f"{row['peak_mb']:,.0f}",
        ]
        for row in rows
    ]


def _at_least_two(text: str) -> int:
    number = int(text)
    if number < 2:
        raise argparse.ArgumentTypeError(f"quartiles need at least 2 rounds, got {number}")
    return number
