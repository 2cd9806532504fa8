"""The cases of same_bits.py without training: layers, their gradients, fits and compression."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import mixdim
from same_bits_cases import Case
from same_bits_child import (
    Numbers,
    block_parts,
    dense_weights,
    gradients_of,
    plan_words,
    state_of,
    under,
)
from same_bits_names import quantized, rounding, rows, total_error

SIZES = {"shop": 30, "user": 900, "item": 2500}
BATCH = 700


def counts_of(sizes: dict[str, int], *, shuffled: bool = False) -> dict[str, np.ndarray]:
    """Counts that fall as 1/rank, of ids in that order or in another."""
    rng = np.random.default_rng(2)
    falling = {name: (1e5 / np.arange(1, n + 1)).astype(np.int64) for name, n in sizes.items()}
    return {name: rng.permutation(c) if shuffled else c for name, c in falling.items()}


def plans() -> dict[str, mixdim.Plan]:
    """Every storage, alone and beside others, whole and in bands."""
    cut: Any = {"counts": counts_of(SIZES), "bands": {"user": 3, "item": 5}}
    bands = mixdim.plan(SIZES, temperature=0.5, base_dim=16, **cut)
    beside = bands.with_storage("item", mixdim.Hashed(2, buckets=50))
    beside = beside.with_storage("user", mixdim.QuotientRemainder(4, buckets=9))
    beside = beside.with_storage("shop", mixdim.Robe(4, length=70)).with_storage("item", rows(0), band=3)
    whole = mixdim.plan(SIZES, temperature=0.3, base_dim=8)
    shared = whole.with_storage("item", mixdim.Robe(8, 300)).with_storage("user", mixdim.Robe(8, 300))
    return {
        "uniform": mixdim.plan(SIZES, temperature=0, base_dim=8),
        "whole": whole,
        "bands": bands,
        "octaves": mixdim.plan(
            SIZES,
            counts=counts_of(SIZES),
            bands="octaves",
            min_dim=0,
            temperature=0.5,
            base_dim=16,
            budget="20kB",
        ),
        "orders": mixdim.plan(
            SIZES, temperature=0.5, base_dim=16, counts=counts_of(SIZES, shuffled=True), bands=4
        ),
        "wide": mixdim.plan(SIZES, temperature=0.6, base_dim=256, counts=counts_of(SIZES), bands=3),
        "hashed": whole.with_storage("item", mixdim.Hashed(8, buckets=90, hashes=1)),
        "beside": beside,
        "robe": shared,
    }


def layer_of(plan: mixdim.Plan, seed: int = 1, **options: Any) -> mixdim.FeatureEmbeddings:
    """A layer of a plan, drawn from a seed."""
    generator = torch.Generator().manual_seed(seed)
    return mixdim.FeatureEmbeddings(plan, generator=generator, **options)


def draw(size: Sequence[int], seed: int) -> Tensor:
    """Normal numbers."""
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def ids_of(number: int, size: int, seed: int) -> Tensor:
    """Ids below a number, the low ones often."""
    uniform = torch.rand(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (number**uniform - 1).to(torch.int64).clamp(0, number - 1)


def columns(seed: int = 3) -> Tensor:
    """An id for each sample and feature: (batch, feature)."""
    return torch.stack([ids_of(n, BATCH, seed + i) for i, n in enumerate(SIZES.values())], 1)


def bags(shortest: int, longest: int, seed: int = 5) -> tuple[Tensor, Tensor]:
    """Bags of so many ids: values, offsets."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, longest + 1, (len(SIZES), BATCH), generator=generator)
    values = [ids_of(n, int(lengths[i].sum()), seed + i) for i, n in enumerate(SIZES.values())]
    return torch.cat(values), torch.cat([torch.zeros(1, dtype=torch.int64), lengths.flatten().cumsum(0)])


def outcome(layer: Any, output: Tensor, seed: int = 9) -> Numbers:
    """An output, and the gradients that fixed ones at it give."""
    layer.zero_grad()
    output.backward(draw(output.shape, seed).to(output.dtype))
    gradients = {f"gradient of {place}": values for place, values in gradients_of(layer).items()}
    return {"output": output.detach().numpy(), **gradients}


def layers(case: Case, work: Path, name: str) -> Numbers:
    """Everything a layer does, for every plan."""
    found: Numbers = {}
    for title, plan in plans().items():
        for quantity, place, values in _of_plan(plan):
            found |= {f"{quantity}/{title}, {place}, {part}": value for part, value in values.items()}
        found[f"plans/{title}"] = plan_words(plan)
    return {**found, **under("dot scores", _dot_scores())}


def _of_plan(plan: mixdim.Plan) -> Iterator[tuple[str, str, Numbers]]:
    layer = layer_of(plan)
    yield "weights", "drawn", {**dense_weights([layer]), **block_parts(layer, layer.parameters())}
    yield "dense weight gradients", "all", outcome(layer, layer.dense_weight())
    dense = draw((BATCH, plan.base_dim), 6).requires_grad_()
    for sparse in (False, True):
        layer, label = layer_of(plan, sparse=sparse), "sparse" if sparse else "dense"
        yield "lookup", label, outcome(layer, layer(columns()))
        yield "lookup", f"{label}, int32", outcome(layer, layer(columns().to(torch.int32)))
        for form in ("fused", "split"):
            os.environ["MIXDIM_INTERACTION"], dense.grad = form, None
            found = outcome(layer, layer.interact(dense, columns()))
            assert dense.grad is not None
            yield "interaction", f"{label}, {form}", {**found, "at dense": dense.grad.numpy()}
        del os.environ["MIXDIM_INTERACTION"]
    yield (
        "padding",
        "-1",
        outcome(
            padded := layer_of(plan, padding_id=-1),
            padded(columns().where(columns() % 3 > 0, -1)),
        ),
    )
    yield "padding", "0", outcome(padded := layer_of(plan, padding_id=0), padded(columns()))
    for pooling in ("sum", "mean", "max", "product", "concat"):
        layer = layer_of(plan, pooling=pooling, sparse=True, padding_id=2)
        values, offsets = bags(2, 2) if pooling == "concat" else bags(0, 4)
        yield "bags", pooling, outcome(layer, layer.bags(values, offsets))
        if pooling == "sum":
            weights = draw(values.shape, 8).abs()
            yield "bags", "weighted", outcome(layer, layer.bags(values, offsets, weights))
    double = layer_of(plan).double()
    yield "lookup", "float64", outcome(double, double(columns()))
    for bits in (8, 4):
        rounded = quantized(layer_of(plan), bits)
        values, offsets = bags(0, 4)
        with torch.no_grad():
            vectors = {"lookup": rounded(columns()), "bags": rounded.bags(values, offsets)}
        yield "rounded", f"{bits} bits", dense_weights([rounded])
        yield "rounded", f"{bits} bits", {place: found.numpy() for place, found in vectors.items()}
        yield "plans", f"{bits} bits", {"words": plan_words(rounded.plan)}
    # A norm of all gradients is a sum over parameters, whose order may be another.
    for quantity, decay, most in (("optimizer", 0.0, 0.0), ("decay", 0.1, 0.0), ("clipping", 0.0, 5.0)):
        layer = layer_of(plan, sparse=True)
        optimizer = mixdim.SparseAMSGrad(layer.parameters(), lr=0.01, weight_decay=decay)
        for step in range(3):
            layer(columns(seed=20 + step)).pow(2).sum().backward()
            if most:
                mixdim.clip_grad_norm_(layer.parameters(), most)
            optimizer.step()
            optimizer.zero_grad()
        yield quantity, "AMSGrad", {**dense_weights([layer]), **state_of(layer, optimizer.state)}


def _dot_scores() -> Numbers:
    found: Numbers = {}
    for title, plan in plans().items():
        users, items = (
            mixdim.MixedDimEmbedding(
                plan[name], sparse=True, generator=torch.Generator().manual_seed(seed)
            )
            for seed, name in enumerate(("user", "item"))
        )
        ids = columns()
        scores = mixdim.dot_scores(users, ids[:, 1], items, ids[:, 2])
        for place, values in outcome(users, scores).items():
            found[f"{title}, {place}"] = values
        for place, values in gradients_of(items).items():
            found[f"{title}, gradient of {place}"] = values
    return found


def fits(case: Case, work: Path, name: str) -> Numbers:
    """What is found from given tables: the nearest layer, the best widths, small models."""
    return {
        **under("fit_dense", _fitted()),
        **_spectral(),
        **_compressed(0),
        **_compressed(8),
        **_compressed(4),
    }


def _fitted() -> Numbers:
    found: Numbers = {}
    for title, plan in plans().items():
        for weighted in (False, True) if title not in ("robe", "wide") else ():
            layer = layer_of(plan)
            for feature, size in SIZES.items():
                counts = counts_of(SIZES)[feature] if weighted else None
                layer.fit_dense(feature, draw((size, plan.base_dim), size), counts)
            place = f"{title}{', weighted' if weighted else ''}"
            found |= {f"{place}, {part}": values for part, values in dense_weights([layer]).items()}
    return found


def _tables() -> dict[str, np.ndarray]:
    """Tables whose directions matter less and less."""
    falling = 0.8 ** torch.arange(24)
    return {name: (draw((n, 24), n) * falling).numpy() for name, n in SIZES.items()}


def _spectral() -> Numbers:
    """Plans of trained tables; another plan may be as good, so errors and bytes count."""
    found, tables, counts = {}, _tables(), counts_of(SIZES)
    whole = 4 * sum(table.size for table in tables.values())
    for share in (4, 6, 8, 12, 16):
        for label, options in (
            ("", {}),
            (", integer", {"rounding": "integer"}),
            (", bands", {"bands": 5}),
        ):
            budget, place = f"{whole // share}B", f"1/{share}{label}"
            plan = mixdim.spectral_plan(tables, budget=budget, counts=counts, **options)
            found[f"spectral errors/{place}"] = np.array(total_error(tables, plan, counts))
            found[f"spectral bytes/{place}"] = np.array(plan.nbytes())
            found[f"spectral plans/{place}"] = plan_words(plan)
    return found


class _Shop(nn.Module):
    """A small model of somebody else."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(900, 16)
        self.items = nn.Embedding(2500, 24, padding_idx=0)
        self.words = nn.EmbeddingBag(1200, 8, mode="mean")
        self.top = nn.Linear(48, 1)

    def forward(self, users: Tensor, items: Tensor, words: Tensor) -> Tensor:
        return self.top(torch.cat([self.users(users), self.items(items), self.words(words)], 1))


def _compressed(bits: int) -> Numbers:
    torch.manual_seed(5)
    model, mixed = _Shop(), np.random.default_rng(3)
    places = {n: torch.from_numpy(mixed.permutation(n)) for n in (900, 2500, 1200)}
    batches = [
        (
            places[900][ids_of(900, 400, seed)],
            places[2500][ids_of(2500, 400, seed + 1)],
            places[1200][ids_of(1200, 1600, seed + 2).view(400, 4)],
        )
        for seed in range(0, 60, 3)
    ]
    stats = mixdim.observe(model, batches, loss=lambda output, _: F.softplus(output).sum())
    options = rounding(mixdim.compress, bits)
    result = mixdim.compress(model, stats, "1/6", bands=5, echo=None, **options)
    kind = f"mixdim.compress, int{bits}" if bits else "mixdim.compress"
    found: Numbers = {f"{kind}/bytes": np.array([result.bytes_before, result.bytes_after])}
    with torch.no_grad():
        found[f"{kind}/answers"] = model(*batches[0]).numpy()
        found[f"{kind}/users"] = model.users(torch.arange(900)).numpy()
        found[f"{kind}/items"] = model.items(torch.arange(2500)).numpy()
        found[f"{kind}/words"] = model.words(torch.arange(1200)[:, None]).numpy()
    return found
