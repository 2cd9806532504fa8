"""The cases of same_bits.py and their raw data, as values. Imports neither mixdim nor torch."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

CLICK_ROWS, RATING_ROWS = 6000, 6000


@dataclass(frozen=True)
class Case:
    """One thing that both checkouts do in a process of the same environment.

    - `work`: the function of same_bits_runs.py or same_bits_layers.py that does it.
    - `flags`: of `mixdim train`; `data` is the prepared folder.
    - `bits`: how many bits the embeddings are rounded to once they are trained, 0 for none.
    """

    about: str
    work: str = "train"
    kernels: bool = True
    threads: int = 1
    data: str = "clicks"
    flags: str = ""
    bits: int = 0

    @property
    def environment(self) -> tuple[bool, int]:
        """Cases of one environment can share a process."""
        return self.kernels, self.threads


CLICKS = "--model dlrm --bottom 24 --top 32,16 --batch-size 256 --epochs 2 --seed 3 --slice-by user"
RATED = "--batch-size 256 --epochs 2 --seed 4"
BANDS = f"{CLICKS} --temperature 0.4 --base-dim 16 --bands 4"
OCTAVES = "--temperature 0.5 --base-dim 8 --bands octaves --min-dim 0"
MF = f"{RATED} --model mf --temperature 0.4 --base-dim 16 --bands 6"
NCF = f"{RATED} --model ncf --hidden 32,16 --temperature 0.4 --base-dim 12 --bands 5 --rounding integer"
UNKNOWN = (
    f"{CLICKS} --no-first-order --optimizer adagrad --temperature 0.3 --base-dim 8 --unknown-dropout"
)
RANKS = f"{CLICKS} --temperature 0.3 --base-dim 8 --bands 3"


def _method(name: str, budget: str = "24kB") -> str:
    return f"{CLICKS} --method {name} --budget {budget} --base-dim 8"


CASES = {
    "prepare": Case("raw CSV to prepared folders: ids, counts, numbers and batches", "prepare"),
    "dlrm-bands": Case("4 bands a feature", flags=BANDS),
    "dlrm-bands-plain": Case("without kernels", kernels=False, flags=BANDS),
    "dlrm-bands-2-threads": Case("on 2 threads", threads=2, flags=BANDS),
    "dlrm-wide": Case(
        "base_dim 256: the split interaction",
        flags=f"{CLICKS} --temperature 0.6 --base-dim 256 --bands 3 --no-first-order",
    ),
    "dlrm-octaves": Case("octaves, width 0", flags=f"{CLICKS} {OCTAVES}"),
    "dlrm-octaves-bags-plain": Case(
        "a bag, octaves, width 0, without kernels on 2 threads",
        kernels=False,
        threads=2,
        data="tags",
        flags=f"{CLICKS} {OCTAVES}",
    ),
    "dlrm-hashed": Case("hashed rows", flags=_method("hashed")),
    "dlrm-double-hashed-bags": Case("double-hashed, a bag", data="tags", flags=_method("double-hashed")),
    "dlrm-quotient-remainder": Case("quotients, remainders", flags=_method("quotient-remainder")),
    "dlrm-robe-bags": Case("one array, a bag", data="tags", flags=_method("robe")),
    "dlrm-cut": Case("one shared row for rare ids", flags=_method("cut")),
    "dlrm-int8": Case("mixed within a budget in int8", flags=_method("mixed", "9kB"), bits=8),
    "dlrm-orders": Case(
        "a saved plan whose ids are not ranks", "train_orders", flags=f"{CLICKS} --no-first-order"
    ),
    "dlrm-orders-bags-plain": Case(
        "the same with a bag, without kernels", "train_orders", False, data="tags", flags=CLICKS
    ),
    "dlrm-unknown-dropout": Case("unknown dropout, adagrad, a bag", data="tags", flags=UNKNOWN),
    "dlrm-resume": Case("killed, then resumed", "train_killed", flags=f"{BANDS} --checkpoint-every 4"),
    "dlrm-2-ranks": Case("torchrun, 2 ranks, a bag", "train_ranks", data="tags", flags=RANKS),
    "dlrm-compressed": Case("mixdim compress of a run", "train_compressed", flags=BANDS),
    "mf-bands": Case("6 bands, biases", data="ratings", flags=f"{MF} --biases"),
    "mf-int4": Case("rounded to 4 bits", data="ratings", flags=f"{MF} --weight-decay 0.1", bits=4),
    "mf-octaves-plain": Case(
        "octaves, width 0, adam, without kernels on 2 threads",
        kernels=False,
        threads=2,
        data="ratings",
        flags=f"{RATED} --model mf {OCTAVES} --optimizer adam --lr 0.01",
    ),
    "mf-compressed-int8": Case(
        "mixdim compress of a run, in int8", "train_compressed", data="ratings", flags=MF, bits=8
    ),
    "ncf-bands": Case("5 bands of any width", data="ratings", flags=NCF),
    "ncf-bands-plain": Case("without kernels", kernels=False, data="ratings", flags=NCF),
    "layers": Case("layers alone, no training", "layers"),
    "layers-plain": Case("without kernels", "layers", kernels=False),
    "layers-2-threads": Case("on 2 threads", "layers", threads=2),
    "layers-plain-2-threads": Case("without kernels on 2 threads", "layers", False, 2),
    "fits": Case("fit_dense, spectral_plan, mixdim.compress", "fits"),
}


def write_raw_files(folder: Path) -> None:
    """Write clicks.csv and ratings.csv, which every checkout prepares for itself."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(7)
    ids = {name: _popular(rng, rows, CLICK_ROWS) for name, rows in FIELDS.items()}
    numbers = rng.gamma(1.5, 2.0, size=(CLICK_ROWS, 3)).round(4)
    effects = {name: rng.normal(size=rows) for name, rows in FIELDS.items()}
    score = sum(effects[name][ids[name]] for name in FIELDS) + 0.3 * numbers[:, 0] - 2.0
    clicks = rng.random(CLICK_ROWS) < 1 / (1 + np.exp(-score))
    tags = [_popular(rng, 60, length) for length in rng.integers(0, 5, CLICK_ROWS)]
    missing = rng.random(numbers.shape) < 0.05
    with (folder / "clicks.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["click", *FIELDS, "tags", "price", "age", "seen"])
        for row in range(CLICK_ROWS):
            lines.writerow([
                int(clicks[row]),
                *(f"{name[0]}{ids[name][row]}" for name in FIELDS),
                "|".join(f"t{tag}" for tag in tags[row]),
                *("" if gone else n for n, gone in zip(numbers[row], missing[row], strict=True)),
            ])  # fmt: skip
    users, items = _popular(rng, 500, RATING_ROWS), _popular(rng, 300, RATING_ROWS)
    rated = 3.5 + rng.normal(size=500)[users] / 2 + rng.normal(size=300)[items] / 2
    stars = np.clip(np.round(2 * rated + rng.normal(size=RATING_ROWS)) / 2, 0.5, 5.0)
    with (folder / "ratings.csv").open("w", newline="") as file:
        csv.writer(file).writerows([
            ["user", "item", "rating"],
            *([f"u{u}", f"i{i}", s] for u, i, s in zip(users, items, stars, strict=True)),
        ])  # fmt: skip


FIELDS = {"site": 40, "user": 700, "ad": 300}  # of clicks.csv, and how many values each can have
PREPARE = {  # of each prepared folder: the raw file and the flags of `mixdim prepare table`
    "clicks": ("clicks.csv", "--target click --categorical site,user,ad --dense price,age,seen"),
    "tags": (
        "clicks.csv",
        "--target click --categorical site,user,tags --dense price,age --bag tags:| --min-count 2",
    ),
    "ratings": ("ratings.csv", "--target rating --task rating --categorical user,item"),
}


def _popular(rng: np.random.Generator, rows: int, size: int) -> np.ndarray:
    """Values below `rows` whose popularity falls as 1/rank."""
    return (rows ** rng.random(size)).astype(np.int64) - 1
