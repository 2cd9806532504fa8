"""How many samples do two blocks need, one of them rare? Runs in, records out. Draws nothing.

The paper's example (Sec. 4.1): two blocks of `size` rows and the same `size` columns. The rare one gets
the share epsilon (`rate`) of the samples and has rank `rare_rank`; the popular one has rank 1 / epsilon.
The paper expects samples of order 1 / epsilon^2 if one rank serves the whole matrix (*agnostic*), and
1 / epsilon if each block is completed at its own (*mixed*).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mixdim._util.arguments import real_number, whole_number
from mixdim.lab.theory.assembly import assemble
from mixdim.lab.theory.factorization import Factors, complete_als, factor_blocks
from mixdim.lab.theory.matrices import flat_spectra, random_block_matrix
from mixdim.lab.theory.recovery import coverage_probability, two_block_orders
from mixdim.lab.theory.sampling import largest_sample_count, sample_entries
from mixdim.lab.trials.records import Record

METHODS = ("mixed", "agnostic")
RECOVERED = 1e-3  # relative error below which a matrix counts as recovered
RESOLUTION = 1.05  # how far, as a factor, a count may be above the smallest that recovers
TIMES_MORE = (1.5, 2.0)  # does it also recover from that many times the samples it needs?
BOUND_POINTS = 60
ROUNDS, FITS = 100, 1e-6  # least squares end there, or where the relative misfit is that small

Progress = Callable[..., None]  # shows stage, done, total


@dataclass(frozen=True)
class TwoBlock:
    """One matrix of two blocks: the settings that go into every record."""

    size: int
    rate: float
    popular_rank: int
    rare_rank: int

    @property
    def layout(self) -> dict[str, Any]:
        """Sizes and probabilities, as the functions of `mixdim.theory` call them."""
        return {
            "block_probs": [[1 - self.rate], [self.rate]],
            "row_sizes": [self.size, self.size],
            "col_sizes": [self.size],
        }

    @property
    def block_ranks(self) -> list[list[int]]:
        """The popular block stands above the rare one."""
        return [[self.popular_rank], [self.rare_rank]]

    @property
    def largest_samples(self) -> float:
        """With more, an entry of the popular block would have a probability above 1."""
        return largest_sample_count(**self.layout)

    def unknowns(self, method: str) -> float:
        """Samples with which there are as many equations as unknowns: fewer cannot be enough.

        A rows x columns matrix of rank r has r (rows + columns - r) unknowns.
        """
        whole = self.popular_rank + self.rare_rank
        if method == "agnostic":
            return whole * (3 * self.size - whole)
        popular, rare = (rank * (2 * self.size - rank) for (rank,) in self.block_ranks)
        return max(popular / (1 - self.rate), rare / self.rate)

    def bound(self, method: str, num_samples: float) -> float:
        """A bound on the probability of recovery: each row and column needs as many entries as the rank.

        For *mixed* that holds of each block on its own, so the less likely block is the bound.
        """
        if method == "agnostic":
            return coverage_probability(num_samples, self.popular_rank + self.rare_rank, **self.layout)
        return min(
            coverage_probability(
                min(num_samples * share, self.size**2), rank, [[1.0]], [self.size], [self.size]
            )
            for (share,), (rank,) in zip(self.layout["block_probs"], self.block_ranks, strict=True)
        )


@dataclass(frozen=True)
class TwoBlockOptions:
    """What to run: every rate with every seed."""

    size: int = 200
    rates: tuple[float, ...] = (0.3, 0.25, 0.2, 0.15, 0.12)
    rare_rank: int = 1
    seeds: int = 5

    def blocks(self) -> list[TwoBlock]:
        """One setting for each rate; refuses those that no number of samples could recover."""
        size, rare_rank = whole_number(self.size, "size"), whole_number(self.rare_rank, "rare_rank")
        whole_number(self.seeds, "seeds")
        if not self.rates or len(set(self.rates)) < len(self.rates):
            raise ValueError(f"rates must be one or more, all different, got {list(self.rates)}")
        return [_feasible(size, real_number(rate, "rates"), rare_rank) for rate in self.rates]


def two_block_records(options: TwoBlockOptions, progress: Progress) -> Iterator[Record]:
    """Yield, for every rate and method, what the theory says and what each seed needed.

    - `kind` "bound": the bound on the probability of recovery (`probability` at `samples`), the
      `half_covered` count where it reaches 1/2, and the paper's `order`, which has no constant.
    - `kind` "need": the fewest `samples` from which the seed's matrix was recovered, None if not
      even from `largest_samples`; and whether it was `recovered_from_more` (`TIMES_MORE`).
    """
    blocks = options.blocks()
    total, done = len(blocks) * len(METHODS) * options.seeds, 0
    for block in blocks:
        for method in METHODS:
            settings = {**asdict(block), "method": method, "largest_samples": block.largest_samples}
            yield {"kind": "bound", **settings, **_theory(block, method)}
            for seed in range(options.seeds):
                progress("two-block", done, total, f"rate {block.rate:g}, {method}")
                yield {"kind": "need", **settings, "seed": seed, **_need(block, method, seed)}
                done += 1
    progress("two-block", total, total, "")


def complete_twice(matrix: np.ndarray, seen: np.ndarray, rank: int) -> Factors:
    """Complete by alternating least squares, scaled and plain; return what fits the seen entries better.

    *Scaled*: each row is divided by the share of it that is seen. That changes no rank, but the start
    is then right on average for rows of different popularity, and rare rows count in the fit. Without
    it the agnostic method gets stuck far above the samples that its bound asks for, and mixed would
    look better than it is; within one block, plain does better. What fits is known without the truth.
    """
    shares = np.maximum(seen.mean(axis=1, keepdims=True), 1 / seen.shape[1])  # (rows, 1)
    found: list[tuple[float, Factors]] = []
    for scale in (1 / shares, np.ones_like(shares)):
        left, right = complete_als(matrix * scale, seen, rank, rounds=ROUNDS, tolerance=FITS)
        misfit = np.linalg.norm(np.where(seen, (left / scale) @ right.T - matrix, 0.0))
        found.append((float(misfit), Factors(left / scale, right)))
        if misfit <= 10 * FITS * np.linalg.norm(matrix * seen):  # plain could only do as well
            break
    return min(found, key=lambda attempt: attempt[0])[1]


def fewest(
    enough: Callable[[float], bool], low: float, high: float, resolution: float = RESOLUTION
) -> float | None:
    """Find the smallest count that is enough, by bisection of a ratio; None if `high` is not.

    The result is enough and at most `resolution` times a count that is not (or `low`).

    >>> round(fewest(lambda count: count >= 300, 10, 1000, resolution=1.001))
    300
    """
    if not enough(high):
        return None
    while high > resolution * low:
        middle = math.sqrt(low * high)
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


def _need(block: TwoBlock, method: str, seed: int) -> dict[str, Any]:
    matrix = random_block_matrix(
        *(block.layout["row_sizes"], block.layout["col_sizes"], flat_spectra(block.block_ranks)),
        generator=np.random.default_rng([seed, 0]),
    )

    def recovered(num_samples: float) -> bool:
        # The same random numbers for every count: more samples contain the fewer ones.
        again = np.random.default_rng([seed, 1])
        seen = sample_entries(num_samples, **block.layout, generator=again)
        error = np.linalg.norm(_completed(block, method, matrix, seen) - matrix)
        return bool(error < RECOVERED * np.linalg.norm(matrix))

    need = fewest(recovered, block.unknowns(method), block.largest_samples)
    more = [] if need is None else [need * factor for factor in TIMES_MORE]
    return {
        "samples": need,
        "recovered_from_more": [recovered(n) for n in more if n <= block.largest_samples],
    }


def _completed(block: TwoBlock, method: str, matrix: np.ndarray, seen: np.ndarray) -> np.ndarray:
    if method == "agnostic":
        left, right = complete_twice(matrix, seen, block.popular_rank + block.rare_rank)
        return left @ right.T
    sizes = block.layout["row_sizes"], block.layout["col_sizes"]
    rows, columns = assemble(
        factor_blocks(matrix, seen, *sizes, block.block_ranks, complete=complete_twice)
    )
    return rows.dense() @ columns.dense().T


def _theory(block: TwoBlock, method: str) -> dict[str, Any]:
    low, high = block.unknowns(method), block.largest_samples
    counts = np.geomspace(low, high, BOUND_POINTS).clip(max=high).tolist()
    orders = two_block_orders(block.rate, block.popular_rank, block.rare_rank, block.size)
    return {
        "samples": counts,
        "probability": [block.bound(method, count) for count in counts],
        "half_covered": fewest(lambda n: block.bound(method, n) >= 0.5, low, high, resolution=1.001),
        "order": orders._asdict()[method],
    }


def _feasible(size: int, rate: float, rare_rank: int) -> TwoBlock:
    if not 0 < rate < 0.5:
        raise ValueError(f"rates must be above 0 and below 0.5, got {rate:g}")
    block = TwoBlock(size, rate, popular_rank=round(1 / rate), rare_rank=rare_rank)
    ranks = block.popular_rank + rare_rank
    if ranks > size:
        raise ValueError(f"size must be at least {ranks}, the ranks at rate {rate:g}, got {size}")
    for method in METHODS:
        if block.unknowns(method) >= block.largest_samples:
            raise ValueError(
                f"size {size} is too small for rate {rate:g}: {method} completion needs more than "
                f"{block.unknowns(method):,.0f} samples, and {block.largest_samples:,.0f} can be drawn"
            )
    return block
