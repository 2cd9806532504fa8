"""How large a share must be seen for completion to succeed? Runs in, records out. Draws nothing.

One block of a matrix, by SGD and by alternating least squares; a tensor of interactions, by SGD.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mixdim._util.arguments import real_number, whole_number
from mixdim.lab.theory.factorization import Complete, complete_als, complete_sgd
from mixdim.lab.theory.matrices import flat_spectra, random_block_matrix
from mixdim.lab.theory.sampling import sample_entries
from mixdim.lab.theory.tensors import complete_tensor, interaction_tensor, sample_indices
from mixdim.lab.trials.records import Record

RECOVERED = 1e-3  # relative error below which something counts as recovered
MATRIX, TENSOR = "matrix", "tensor"
ENTRIES_AT_MOST = 10**7  # everything is dense here

Progress = Callable[..., None]  # shows stage, done, total
Attempt = Callable[["CompletionOptions", float, np.random.Generator], tuple[int, float]]


@dataclass(frozen=True)
class CompletionOptions:
    """What to run: every share and seed, a `size` x `size` matrix and a tensor of `features` sides."""

    size: int = 60
    rank: int = 3
    features: int = 3
    feature_size: int = 12
    tensor_rank: int = 2
    shares: tuple[float, ...] = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0)
    seeds: int = 5

    def check(self) -> None:
        """Refuse what cannot be run."""
        for name in ("size", "rank", "features", "feature_size", "tensor_rank", "seeds"):
            whole_number(getattr(self, name), name)
        if self.rank > self.size:
            raise ValueError(
                f"rank must be at most {self.size}, the size of the matrix, got {self.rank}"
            )
        for name, entries in (
            ("size", self.size**2),
            ("feature_size", self.feature_size**self.features),
        ):
            if entries > ENTRIES_AT_MOST:
                raise ValueError(
                    f"{name} must leave at most {ENTRIES_AT_MOST:,} entries, "
                    f"got {getattr(self, name)} with {entries:,}"
                )
        if not self.shares or len(set(self.shares)) < len(self.shares):
            raise ValueError(f"shares must be one or more, all different, got {list(self.shares)}")
        for share in self.shares:
            if not 0 < real_number(share, "shares") <= 1:
                raise ValueError(f"shares must be above 0 and at most 1, got {share:g}")

    def settings(self, kind: str) -> dict[str, Any]:
        """Sizes, rank, and the `unknowns`: with fewer entries seen, the truth cannot be determined.

        A matrix of rank r has r (rows + columns - r) unknowns. The factors of a tensor have r columns
        each, up to a rotation of all rows and to vectors that one feature adds and another takes away.
        """
        if kind == MATRIX:
            r, sizes = self.rank, [self.size, self.size]
            return {"sizes": sizes, "rank": r, "unknowns": r * (sum(sizes) - r)}
        r, sizes = self.tensor_rank, [self.feature_size] * self.features
        unknowns = r * sum(sizes) - r * (r - 1) // 2 - r * (self.features - 1)
        return {"sizes": sizes, "rank": r, "unknowns": unknowns}


def completion_records(options: CompletionOptions, progress: Progress) -> Iterator[Record]:
    """Yield one record for each share, seed and method: the relative `error` over *all* entries.

    Methods have the same truth and the same samples at the same seed. A tensor of which nothing is seen
    is guessed as 0.
    """
    options.check()
    methods: list[tuple[str, str, Attempt]] = [
        (MATRIX, "als", partial(_complete_matrix, complete=complete_als)),
        (MATRIX, "sgd", partial(_complete_matrix, complete=complete_sgd)),
        (TENSOR, "sgd", _complete_tensor),
    ]
    points = [(share, seed) for share in options.shares for seed in range(options.seeds)]
    for done, (share, seed) in enumerate(points):
        progress("completion", done, len(points), f"share {share:g}")
        for kind, method, attempt in methods:
            started = time.perf_counter()
            entries, error = attempt(options, share, np.random.default_rng(seed))
            yield {
                **{"kind": kind, "method": method, **options.settings(kind)},
                **{"share": share, "seed": seed, "entries": entries},
                **{"error": error, "recovered": error < RECOVERED},
                "seconds": round(time.perf_counter() - started, 4),
            }
    progress("completion", len(points), len(points), "")


def _complete_matrix(
    options: CompletionOptions, share: float, generator: np.random.Generator, *, complete: Complete
) -> tuple[int, float]:
    """How many entries were seen, and the relative error."""
    sides = [options.size], [options.size]
    matrix = random_block_matrix(*sides, flat_spectra([[options.rank]]), generator=generator)
    seen = sample_entries(share * matrix.size, [[1.0]], *sides, generator=generator)
    found = complete(matrix, seen, options.rank)
    return int(seen.sum()), _relative_error(found.left @ found.right.T, matrix)


def _complete_tensor(
    options: CompletionOptions, share: float, generator: np.random.Generator
) -> tuple[int, float]:
    """How many entries were seen, and the relative error."""
    sizes = [options.feature_size] * options.features
    truth = [generator.standard_normal((size, options.tensor_rank)) for size in sizes]
    tensor = interaction_tensor(truth)
    indices = sample_indices(sizes, share, generator=generator)
    if not len(indices):
        return 0, 1.0
    values = tensor[tuple(indices.T)]
    found = complete_tensor(indices, values, sizes, options.tensor_rank, generator=generator)
    return len(indices), _relative_error(interaction_tensor(found), tensor)


def _relative_error(estimate: np.ndarray, truth: np.ndarray) -> float:
    return float(np.linalg.norm(estimate - truth) / np.linalg.norm(truth))
