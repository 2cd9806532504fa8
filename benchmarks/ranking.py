"""How long recall@10 and ndcg@10 of a run take, and the most memory.

    python benchmarks/ranking.py RUN [--users 1000]

RUN is a folder that `mixdim train` made, of data with negatives. Without --users as many as the run has.
"""

import argparse
import resource
import time
from pathlib import Path

from mixdim.runs.run import Run
from mixdim.training.ranking import ranking_metrics


def main() -> None:
    """Load, then measure once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path)
    parser.add_argument("--users", type=int)
    options = parser.parse_args()
    run = Run.open(options.run)
    dataset = run.dataset()
    model = run.load(dataset).model
    sample = run.config.ranking_sample if options.users is None else options.users
    before, start, cpu = peak(), time.perf_counter(), time.process_time()
    found = ranking_metrics(model, dataset, sample=sample)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    print(found)
    print(f"{seconds:.1f} s, {cpu:.1f} s of CPU; peak memory {peak():.0f} MB, {before:.0f} MB before")


def peak() -> float:
    """The most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
