"""Lookups in a table larger than the cache: in 32 bits, against fewer. No training.

One feature, ids drawn uniformly (nothing is in the cache) or by Zipf's law, 65,536 ids a lookup.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle

import numpy as np
import torch
from torch import Tensor

import mixdim
from interleaved import Contest, Step, arguments, run
from mixdim.kernels.library import SWITCH
from mixdim.layer.embedding_base import empty_layer
from mixdim.storages.levels import BITS
from training import zipf_ids

NUM_BATCHES, BATCH = 8, 65_536
RIVAL = "32 bits, kernels"
MIXED = [8, 6, 5, 4, 3, 2, 1]  # bits of directions


def make_batches(rows: int, zipf: bool) -> list[Tensor]:
    rng = np.random.default_rng(0)
    if zipf:
        return [zipf_ids([rows], BATCH, rng)[:, 0].long() for _ in range(NUM_BATCHES)]
    return [torch.from_numpy(rng.integers(rows, size=BATCH)) for _ in range(NUM_BATCHES)]


def lookup(plan: mixdim.Plan, storage: mixdim.Rows, plain: bool, batches: list[Tensor]) -> Step:
    layer = empty_layer(mixdim.MixedDimEmbedding, plan.with_storage("item", storage))
    for tensor in layer.state_dict().values():  # any numbers do
        tensor.random_(64) if tensor.dtype == torch.uint8 else tensor.normal_()
    turns = cycle(batches)

    def step() -> object:
        with torch.inference_mode():
            return layer(next(turns))

    def plain_step() -> object:
        with _without_kernels():
            return step()

    return plain_step if plain else step


@contextmanager
def _without_kernels() -> Iterator[None]:
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "off"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SWITCH]
        else:
            os.environ[SWITCH] = before


def main() -> None:
    parser = arguments(__doc__, rounds=25)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--base-dim", type=int, help="with a projection to this; --width if not given")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="also 8 bits without kernels")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    base_dim = options.base_dim or options.width
    plan = mixdim.plan({"item": options.rows}, temperature=0, base_dim=base_dim)
    width = options.width
    falling = tuple(sorted((MIXED * width)[:width], reverse=True))
    contenders = {RIVAL: partial(lookup, plan, mixdim.Rows(width), False)}
    contenders |= {
        f"{bits} bits, kernels": partial(lookup, plan, mixdim.Rows(width, bits), False) for bits in BITS
    }
    contenders["8 to 1 bits, lifted"] = partial(lookup, plan, mixdim.Rows(width, falling), False)
    if options.plain:
        contenders["8 bits, plain PyTorch"] = partial(lookup, plan, mixdim.Rows(width, 8), True)
    title = f"{options.rows:,} rows x {options.width} to {base_dim}, {BATCH:,} ids"
    contests = [
        Contest(f"{title}, {law}", partial(make_batches, options.rows, law == "Zipf"), contenders, RIVAL)
        for law in ("uniform", "Zipf")
    ]
    run(contests, options)


if __name__ == "__main__":
    main()
