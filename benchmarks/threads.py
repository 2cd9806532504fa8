"""What threads cost `mixdim train`: CPU seconds and wall seconds, alone and beside a competing load.

A small matrix factorisation and a small DLRM on synthetic data, with 1 and 2 threads and several lengths
of the time that an idle thread of OpenMP spins before it sleeps (GOMP_SPINCOUNT; 300000 is what libgomp
does by itself, 0 is OMP_WAIT_POLICY=passive). The settings take turns. CPU seconds of a command of which
nothing is left but its start are subtracted. The weights are compared: they must be the same bits.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from interleaved import cpu_seconds_of_others, machine_facts
from mixdim._util.text import align
from mixdim.lab.synthetic.generate import generate_criteo_like, generate_movielens_like

SPINS = (300_000, 10_000, 1_000, 0)
ROWS, SCALE = {"mf": 200_000, "dlrm": 20_000}, {"mf": 0.05, "dlrm": 0.001}
COMMON = ("--temperature", "0.3", "--base-dim", "16", "--patience", "0")
COMMANDS = {
    "mf": (*COMMON, "--model", "mf", "--epochs", "4", "--batch-size", "4096"),
    "dlrm": (*COMMON, "--model", "dlrm", "--epochs", "1", "--batch-size", "512"),
}
BUSY = "while True: pass"


def train(name: str, data: Path, out: Path, environment: Mapping[str, str]) -> tuple[float, float]:
    """CPU seconds (user and system) and wall seconds of one command."""
    command = [sys.executable, "-m", "mixdim", "train"]
    start = time.perf_counter()
    child = subprocess.Popen(
        [*command, *COMMANDS[name], "--data", str(data), "--out", str(out)],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"mixdim train exited with {child.returncode}")
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - start


def start_alone() -> float:
    """CPU seconds of importing what the command imports, which no setting of threads changes."""
    child = subprocess.Popen([sys.executable, "-m", "mixdim", "doctor"], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep some processes busy meanwhile; an error if one of them ended before."""
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
        if any(process.poll() is not None for process in busy):
            raise SystemExit("a process of the competing load ended early: these figures are invalid")
    finally:
        for process in busy:
            process.kill()
            process.wait()


def weights_of(run: Path) -> str:
    (best,) = run.glob("checkpoint/best-*/tensors.safetensors")
    return hashlib.blake2b(best.read_bytes(), digest_size=8).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--load", type=int, default=os.cpu_count() or 1, help="busy processes")
    parser.add_argument("--models", nargs="*", choices=tuple(COMMANDS), default=tuple(COMMANDS))
    parser.add_argument("--alone-only", action="store_true", help="leave the competing load out")
    options = parser.parse_args()
    print(", ".join(f"{name} {fact}" for name, fact in machine_facts().items()) + "\n", flush=True)
    settings = [(1, SPINS[0]), *((2, spins) for spins in SPINS)]
    with TemporaryDirectory() as folder:
        data = {name: Path(folder) / f"data-{name}" for name in options.models}
        if "mf" in data:
            generate_movielens_like(data["mf"], rows=ROWS["mf"], scale=SCALE["mf"])
        if "dlrm" in data:
            generate_criteo_like(data["dlrm"], rows=ROWS["dlrm"], scale=SCALE["dlrm"])
        starting = statistics.median(start_alone() for _ in range(3))
        print(f"the start of a command, subtracted below: {starting:.1f} CPU s", flush=True)
        for name in options.models:
            for busy in (0,) if options.alone_only else (0, options.load):
                found: dict[tuple[int, int], list[tuple[float, float]]] = {s: [] for s in settings}
                bits = set()
                with load(busy):
                    begun, before = time.perf_counter(), cpu_seconds_of_others()
                    for number in range(options.rounds):
                        for threads, spins in settings:
                            out = Path(folder) / f"{name}-{busy}-{number}-{threads}-{spins}"
                            told = {"OMP_NUM_THREADS": f"{threads}", "GOMP_SPINCOUNT": f"{spins}"}
                            found[threads, spins].append(train(name, data[name], out, told))
                            bits.add(weights_of(out))
                    wall = time.perf_counter() - begun
                    cores = (cpu_seconds_of_others() - before) / wall
                mine = sum(cpu for runs in found.values() for cpu, _ in runs) / wall
                print(
                    f"\n{name}, {busy} busy processes of ours, {cores - mine:.1f} cores taken by others "
                    f"in all; weights of all settings: {'the same bits' if len(bits) == 1 else bits}"
                )
                lines = [["threads", "spins", "CPU s, median", "least", "wall s, median", "least"]]
                for (threads, spins), runs in found.items():
                    cpus, walls = [cpu - starting for cpu, _ in runs], [wall for _, wall in runs]
                    numbers = (statistics.median(cpus), min(cpus), statistics.median(walls), min(walls))
                    lines.append([f"{threads}", f"{spins:,}", *(f"{number:.1f}" for number in numbers)])
                print("\n".join(align(lines)), flush=True)


if __name__ == "__main__":
    main()
