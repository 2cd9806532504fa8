"""Kills by the hundred and random cases by the thousand: nothing lost, doubled, left behind or crashed.

    make stress                                             # about half an hour on two cores
    python tools/stress.py --sweep-kills 50 --training-kills 50 --cold-sweep-kills 5 --cases 500

Not part of `make test`. Every part ends at its counts or after --minutes, whatever comes first. The exit
code is 1 if anything went wrong; then the folder with logs and records is kept and named. To kill
hundreds of processes in minutes, most are forks of one that has imported torch already;
--cold-sweep-kills are of sweeps as users start them.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

TESTS = Path(__file__).parent.parent / "tests"  # its helpers make the data, plans and forks


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sweep-kills", type=int, default=300)
    parser.add_argument("--cold-sweep-kills", type=int, default=20)
    parser.add_argument("--training-kills", type=int, default=300)
    parser.add_argument("--cases", type=int, default=2_000, help="of each family")
    parser.add_argument("--minutes", type=float, default=15.0, help="at most, for each kind of kill")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    told = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"):
        os.environ[name] = "1"  # before torch is imported: a process with threads must not fork
    sys.path += [str(TESTS), str(TESTS / "data")]
    folder = Path(tempfile.mkdtemp(prefix="mixdim-stress-"))
    print(f"seed {told.seed}, in {folder}", flush=True)
    problems = _all_parts(told, folder)
    for problem in problems:
        print(f"WRONG: {problem}")
    if problems:
        print(f"{len(problems)} things went wrong; logs and records are in {folder}")
        return 1
    shutil.rmtree(folder)
    print("nothing was lost, doubled, left behind or crashed")
    return 0


def _all_parts(told, folder):
    import torch
    import torch._dynamo

    from stress_cases import FAMILIES, try_cases
    from stress_sweeps import kill_cold_sweeps, kill_warm_sweeps
    from stress_training import kill_training

    torch.set_num_threads(1)
    assert threading.active_count() == 1, "a process with threads must not fork"
    kinds = {
        "sweeps": (kill_warm_sweeps, told.sweep_kills, "runs recorded"),
        "cold sweeps": (kill_cold_sweeps, told.cold_sweep_kills, "runs recorded"),
        "training": (kill_training, told.training_kills, "runs finished"),
    }
    problems = []
    for name, (kill, kills, what) in kinds.items():
        if not kills:
            continue
        began, place = time.monotonic(), folder / name.replace(" ", "-")
        place.mkdir()
        end = began + 60 * told.minutes
        killed, done, found = kill(place, kills=kills, seed=told.seed, end=end)
        seconds = time.monotonic() - began
        print(f"{name}: {killed} kills, {done} {what}, {len(found)} wrong, {seconds:.0f} s", flush=True)
        problems += found
    for name in FAMILIES if told.cases else ():
        began = time.monotonic()
        tried, found = try_cases(name, folder, cases=told.cases, first_seed=told.seed)
        seconds = time.monotonic() - began
        print(f"{name}: {tried} cases, {len(found)} wrong, {seconds:.0f} s", flush=True)
        problems += found
    return problems


if __name__ == "__main__":
    raise SystemExit(main())
