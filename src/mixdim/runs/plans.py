"""The plan of a run: what a config asks for, and the data that has its features. Trains nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mixdim.data import Dataset
from mixdim.models import model_named
from mixdim.planning.budget import BudgetTooSmallError, format_bytes, is_in_bytes, parse_bytes
from mixdim.planning.from_counts import plan as make_plan
from mixdim.planning.methods import plan_by_method
from mixdim.planning.plan import Plan
from mixdim.runs.config import RunConfig
from mixdim.runs.models import check_shares


def plan_of(config: RunConfig, dataset: Dataset) -> Plan:
    """The plan that a config asks for, of the features of a data set, as it is served."""
    bits = 32 if config.bits is None else config.bits
    if config.plan is not None:
        plan = Plan.load(config.plan)
        check_features(plan, dataset, f"the plan {config.plan}")
        if config.bits is not None and not plan.is_trained:
            raise ValueError(f"the plan {config.plan} is quantized already: leave out bits={bits}")
        check_servable(plan)
        return plan.quantized(bits)
    if config.method is not None:
        assert config.budget is not None
        num_bytes = vector_bytes(config, dataset.cardinalities, parse_bytes(config.budget), bits)
        plan = plan_by_method(config.method, dataset, num_bytes, base_dim=config.base_dim, bits=bits)
        check_shares(config, plan)
        return plan
    if config.base_dim is None and config.budget is None:
        raise ValueError(
            "give base_dim, such as 16, or budget, such as 1MB: how large the embeddings shall be"
        )
    assert config.bands is not None
    assert config.min_dim is not None
    budget = config.budget
    if budget is not None and is_in_bytes(budget):  # a number of parameters is of vectors alone
        budget = f"{vector_bytes(config, dataset.cardinalities, parse_bytes(budget))}B"
    plan = make_plan(
        dataset,
        temperature=config.temperature,
        base_dim=config.base_dim,
        budget=budget,
        bands=config.bands,
        rounding=config.rounding,  # type: ignore[arg-type]  # plan() checks it and lists the choices
        min_dim=config.min_dim,
    )
    return plan.quantized(bits)


def number_bytes(config: RunConfig, rows: Mapping[str, int], bits: int = 32) -> int:
    """Bytes of first-order weights or biases: one number for each id, if the model has them."""
    assert config.model is not None
    model = model_named(config.model)
    numbers = model.numbers_per_id(model.Options(**config.model_options))
    if not numbers:
        return 0
    return make_plan(rows, temperature=0, base_dim=numbers).quantized(bits).nbytes()


def vector_bytes(config: RunConfig, rows: Mapping[str, int], num_bytes: int, bits: int = 32) -> int:
    """What a budget in bytes leaves for vectors: first-order weights and biases grow with ids too."""
    own = number_bytes(config, rows, bits)
    if own and own >= num_bytes:
        raise BudgetTooSmallError(
            f"budget of {format_bytes(num_bytes)} is too small: one number for each id, as first-order "
            f"weights and biases are, takes {format_bytes(own)} in {bits} bits"
            + ("; bits=8 takes a quarter" if bits == 32 else "")
        )
    return num_bytes - own


def check_servable(plan: Plan) -> None:
    """Refuse a plan whose blocks of rows have different numbers of bits."""
    if plan.trainable().quantized(plan.least_bits).features != plan.features:
        raise ValueError(
            f"a plan to train must have one number of bits for all rows, and has some in "
            f"{plan.least_bits} and some in more: plan.trainable().quantized({plan.least_bits}) has one"
        )


def check_features(plan: Plan, dataset: Dataset, owner: str) -> None:
    """Refuse data whose features are not those of a plan."""
    check_rows({feature.name: feature.rows for feature in plan.features}, dataset, owner)


def check_vocabulary(summary: Mapping[str, Any], dataset: Dataset, owner: Path) -> None:
    """Refuse data whose ids or numbers mean other values than those a finished run learned."""
    if summary.get("vocabulary_fingerprint") != dataset.vocabulary_fingerprint:
        raise ValueError(
            f"the ids of {dataset.path} come from another vocabulary than those {owner} was trained "
            "with, or its numbers from other dense rules, so they mean other values: "
            "mixdim prepare ... --vocabulary-of prepares rows with the same"
        )


def check_rows(planned: Mapping[str, int], dataset: Dataset, owner: str) -> None:
    """Refuse data whose features, or their rows, are others than those planned."""
    found = dataset.cardinalities
    if list(planned.items()) == list(found.items()):
        return
    different = [name for name in (*planned, *found) if planned.get(name) != found.get(name)]
    how = (
        f"{different[0]!r} has {found.get(different[0], 'no')} rows instead of "
        f"{planned.get(different[0], 'none')}"
        if different
        else "their order differs"
    )
    raise ValueError(f"{dataset.path} has other features than {owner}: {how}")
