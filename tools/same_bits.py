"""Do two checkouts compute the same bits? The gate of every change that must not change a number.

    git worktree add /tmp/before HEAD~1
    python tools/same_bits.py --other /tmp/before
    python tools/same_bits.py --other /tmp/before --case dlrm-bands --case layers
    python tools/same_bits.py --list

Each checkout compiles its own kernels, prepares the same raw files, and does the same cases: tiny runs
of every model, storage, rounding and environment, and layers alone. Then every number is compared by its
bits, in a form that does not depend on how parameters are called or packed: dense weights by feature,
moments by feature, block and part. Both sides are run by this checkout's tools/, and no digest is kept
anywhere: another processor has other bits.

What must be known of names is in same_bits_names.py: where a name of mixdim changes, add the new one
there. A difference that is right is declared below, with its reason. Exit code 1: anything else differs.

Trained weights cannot be compared across the commit "Draw first weights by row", 82088d3: all first
weights are others there, and so is every number that follows from them. Compare on one side of it.

Plans of `spectral_plan` may differ where they are as good: at most 0.1 % more error, and no more bytes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from threading import Event

import numpy as np

from same_bits_cases import CASES, write_raw_files

# Differences that are right: "case: quantity" with * and ?, and the reason that the report gives.
DECLARED: dict[str, str] = {
    # Against commits before the layout had one lift: the norm adds up another number of tensors.
    "layers*: clipping": "one lift in the place of a projection a width",
    # Against commits before replan: sums over rows are of chunks.
    "fits: fit_dense": "rows are fitted a chunk at a time",
    # Against commits before one chooser.
    "dlrm-compressed: plan": "a block of one row is of base_dim, not of width 0: the same row",
}

TOOLS = Path(__file__).parent
MOST_CASES = 5  # of a process: so that several share the work
WORSE = 1.001  # an error of a plan that may be as good
HIDDEN = ("spectral plans",)  # only said: errors and bytes decide


@dataclass(frozen=True)
class Side:
    """A checkout, and the folder for what it makes."""

    name: str
    checkout: Path
    work: Path

    @property
    def out(self) -> Path:
        """Where its numbers are."""
        return self.work / "out"

    def environment(self, kernels: bool, threads: int) -> dict[str, str]:
        """What a process of this side is started with."""
        level = "avx2" if _has_avx2() else "generic"
        library = self.work / "kernels" / f"_mixdim_{level}.so"
        if kernels and not library.is_file():
            raise OSError(f"{self.checkout}: hatch_build.py made no {library.name}; is g++ there?")
        own = {name: value for name, value in os.environ.items() if not name.startswith("MIXDIM_")}
        return own | {
            "PYTHONPATH": str(self.checkout / "src"),
            "MIXDIM_KERNELS": str(library) if kernels else "off",
            "OMP_NUM_THREADS": str(threads),
            "OPENBLAS_NUM_THREADS": "1",
            "GOMP_SPINCOUNT": "1000",
            "PYTHONDONTWRITEBYTECODE": "1",
        }


def _has_avx2() -> bool:
    info = Path("/proc/cpuinfo")
    return info.is_file() and {"avx2", "fma"} <= set(info.read_text().split())


def difference(this: np.ndarray, other: np.ndarray) -> str | None:
    """Where two arrays differ first, in bits, and by how much at most; None if they do not.

    >>> difference(np.float32([1, 2]), np.float32([1, 2.5]))
    'at [1]: 2.0, other 2.5; 1 of 2 numbers, by at most 0.5'
    """
    if (this.dtype.kind != "U" and this.dtype != other.dtype) or this.shape != other.shape:
        return f"{this.dtype} of shape {this.shape}, other {other.dtype} of shape {other.shape}"
    bits = [_bits(this), _bits(other)]
    places = np.argwhere(bits[0] != bits[1])
    if not len(places):
        return None
    first = tuple(places[0].tolist())
    where = f"at {list(first)}: {this[first]}, other {other[first]}"
    where = f"{where}; {len(places):,} of {this.size:,} numbers"
    if this.dtype.kind not in "fiu":
        return where
    with np.errstate(invalid="ignore"):
        by = np.abs(this.astype(np.float64) - other.astype(np.float64))
    most = float(by.max())
    return f"{where}, " + (f"by at most {most:.3g}" if most else "only in the sign of zero")


def _bits(values: np.ndarray) -> np.ndarray:
    """Floats as whole numbers: so nan equals itself, and 0 is not -0."""
    return values.view(f"u{values.itemsize}") if values.dtype.kind == "f" else values


@dataclass(frozen=True)
class Line:
    """What is said of one quantity of a case."""

    case: str
    quantity: str
    verdict: str  # equal, as good, declared or DIFFERS
    about: str = ""


def compare(
    case: str, this: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]
) -> Iterator[Line]:
    """Compare the numbers of two sides, a line a quantity."""
    for quantity in dict.fromkeys(place.partition("/")[0] for place in (*this, *other)):
        places = [p for p in dict.fromkeys((*this, *other)) if p.partition("/")[0] == quantity]
        wrong = []
        for place in places:
            short = place.partition("/")[2]
            if place not in this or place not in other:
                wrong.append(f"{short} is only in {'this' if place in this else 'other'}")
            elif found := difference(this[place], other[place]):
                wrong.append(f"{short} {found}")
        count = sum(this[place].size for place in places if place in this)
        if not wrong:
            yield Line(case, quantity, "equal", f"{count:,} in {len(places)}")
            continue
        about = f"{len(wrong)} of {len(places)}: {wrong[0]}"
        reason = next(
            (why for name, why in DECLARED.items() if fnmatch(f"{case}: {quantity}", name)), None
        )
        if reason is not None:
            yield Line(case, quantity, "declared", f"{reason} ({about})")
        elif quantity in HIDDEN or _is_as_good(quantity, places, this, other):
            yield Line(case, quantity, "as good", about)
        else:
            yield Line(case, quantity, "DIFFERS", about)


def _is_as_good(
    quantity: str, places: list[str], this: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]
) -> bool:
    """Whether errors and bytes of plans are not above those of the other side."""
    if quantity not in ("spectral errors", "spectral bytes"):
        return False
    room = WORSE if quantity == "spectral errors" else 1.0
    return all(p in this and p in other and this[p] <= room * other[p] for p in places)


def prepare_side(side: Side) -> None:
    """Make the folders of a side, its kernels and its raw files."""
    side.out.mkdir(parents=True)
    command = [sys.executable, "hatch_build.py", str(side.work / "kernels")]
    built = subprocess.run(command, cwd=side.checkout, capture_output=True, text=True, check=False)
    if built.returncode:
        raise OSError(f"{side.checkout}: hatch_build.py failed:\n{built.stderr}")
    write_raw_files(side.work / "raw")


def do_cases(side: Side, names: list[str], stop: Event) -> None:
    """Do cases of one environment in a process of a side, and say which are done."""
    case = CASES[names[0]]
    command = [
        sys.executable,
        TOOLS / "same_bits_child.py",
        "--out",
        side.out,
        "--work",
        side.work,
        *names,
    ]
    log = side.work / f"{names[0]}.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            list(map(str, command)),
            env=side.environment(*case.environment),
            cwd=side.work,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as child,
    ):
        assert child.stdout is not None
        try:
            for line in child.stdout:
                print(f"{side.name:5}  {line.rstrip()} s", file=sys.stderr, flush=True)
                if stop.is_set():
                    break
        finally:
            child.kill()
    for name in names:
        if not (side.out / f"{name}.npz").is_file() and not (side.out / f"{name}.error").is_file():
            (side.out / f"{name}.error").write_text(f"the process ended\n{log.read_text()}")


def chunks(names: list[str]) -> Iterator[list[str]]:
    """Cases that share a process: of one environment, and not too many."""
    by_environment: dict[tuple[bool, int], list[str]] = {}
    for name in names:
        by_environment.setdefault(CASES[name].environment, []).append(name)
    for group in by_environment.values():
        number = -(-len(group) // MOST_CASES)
        yield from (group[first::number] for first in range(number))


def report(case: str, this: Side, other: Side) -> Iterator[Line]:
    """The lines of a case: what went wrong, or how its numbers compare."""
    failed = False
    for side in (this, other):
        error = side.out / f"{case}.error"
        if error.is_file():
            failed = True
            yield Line(case, "", "FAILED", f"{side.name}: {error.read_text().strip()}")
    if not failed:
        with np.load(this.out / f"{case}.npz") as mine, np.load(other.out / f"{case}.npz") as others:
            yield from compare(case, dict(mine), dict(others))


def run(names: list[str], sides: tuple[Side, Side], jobs: int) -> int:
    """Do all cases on both sides and print how they compare; returns the exit code."""
    start, stop = time.perf_counter(), Event()
    with ThreadPoolExecutor(jobs) as pool:
        try:
            list(pool.map(prepare_side, sides))
            list(pool.map(lambda side: do_cases(side, ["prepare"], stop), sides))
            work = [
                (side, some) for some in chunks([n for n in names if n != "prepare"]) for side in sides
            ]
            list(pool.map(lambda task: do_cases(task[0], task[1], stop), work))
        except BaseException:
            stop.set()
            raise
    lines = [line for name in names for line in report(name, *sides)]
    width = max(len(line.case) for line in lines), max(len(line.quantity) for line in lines)
    for line in lines:
        print(f"{line.case:{width[0]}}  {line.quantity:{width[1]}}  {line.verdict:8}  {line.about}")
    bad = sorted({line.case for line in lines if line.verdict in ("DIFFERS", "FAILED")})
    seconds = time.perf_counter() - start
    print(f"\n{len(names)} cases, {len(lines)} quantities in {seconds:.0f} s: ", end="")
    print(f"not the same: {', '.join(bad)}" if bad else "the same bits")
    return 1 if bad else 0


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--other", type=Path, help="the other checkout")
    parser.add_argument("--case", action="append", help="only this one; may be given several times")
    parser.add_argument("--list", action="store_true", help="print the cases and end")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once (default: 2)")
    parser.add_argument("--keep", type=Path, help="a new folder for all that is made, to look at it")
    options = parser.parse_args()
    if options.list:
        width = max(map(len, CASES))
        print("\n".join(f"{name:{width}}  {case.about}" for name, case in CASES.items()))
        return
    if options.other is None or not (options.other / "src" / "mixdim").is_dir():
        parser.error("--other must be a checkout of mixdim: git worktree add /tmp/before HEAD~1")
    if options.jobs < 1:
        parser.error(f"--jobs must be at least 1, got {options.jobs}")
    names = list(CASES) if options.case is None else list(dict.fromkeys(options.case))
    for name in names:
        if name not in CASES:
            parser.error(f"--case must be one of {', '.join(CASES)}, got {name!r}")
    if options.keep is not None and options.keep.exists():
        parser.error(f"--keep must be a new folder, {options.keep} is there")
    with tempfile.TemporaryDirectory(prefix="same-bits-") as made:
        work = Path(made) if options.keep is None else options.keep.resolve()
        sides = (
            Side("this", TOOLS.parent.resolve(), work / "this"),
            Side("other", options.other.resolve(), work / "other"),
        )
        sys.exit(run(names, sides, options.jobs))


if __name__ == "__main__":
    main()
