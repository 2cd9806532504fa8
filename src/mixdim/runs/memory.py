"""Does a run fit into this machine's memory, and if not, which would? Trains nothing."""

from __future__ import annotations

import math
import warnings

import torch

from mixdim.data import Dataset
from mixdim.planning.budget import format_bytes
from mixdim.planning.plan import Plan
from mixdim.runs.config import RunConfig
from mixdim.runs.models import build_model
from mixdim.runs.resolution import TEMPERATURE
from mixdim.training.memory import MemoryForecast, forecast_memory
from mixdim.training.optimizers import OPTIMIZERS

MOST_OF_MEMORY = 0.7  # of what is free: a run that takes more is warned of


class NotEnoughMemoryError(ValueError):
    """A run that would not fit into this machine's memory."""


class MemoryWarning(UserWarning):
    """A run takes most of this machine's memory."""


def forecast_of(config: RunConfig, plan: Plan, dataset: Dataset) -> MemoryForecast:
    """What training will need, found out with a model that has shapes and no weights."""
    assert config.optimizer is not None
    assert config.batch_size is not None
    with torch.device("meta"):
        model = build_model(config, plan, num_dense=dataset.num_dense, mean=0.0)
    return forecast_memory(
        model,
        optimizer=config.optimizer,
        batch_size=config.batch_size,
        num_ids=round(sum(dataset.ids_per_sample.get(name, 1.0) for name in plan)),
        num_dense=dataset.num_dense,
        train_rows=dataset.splits["train"][1],
        evaluation_rows=dataset.meta.num_rows - dataset.splits["train"][1],
        dropout_ids=plan.num_rows if config.unknown_dropout else 0,
        decay_by_time=config.decay_by == "time"
        and bool(config.weight_decay if config.table_decay is None else config.table_decay),
    )


def require_memory(config: RunConfig, plan: Plan, dataset: Dataset, *, available: int) -> MemoryForecast:
    """Forecast the memory; refuse what does not fit, and warn of what hardly does.

    Both say the numbers, and a budget that would do. `available` bytes are free.
    """
    forecast = forecast_of(config, plan, dataset)
    if forecast.total > available:
        smaller = _smaller(config, plan, forecast.total - available)
        advice = (
            f"{smaller} would fit"
            if smaller is not None
            else f"even width 1 for all {plan.num_rows:,} rows does not fit beside the rest: a smaller "
            "batch size, or an optimizer with less state, such as adagrad or sgd, may"
        )
        raise NotEnoughMemoryError(
            f"training needs about {forecast}, and this machine has {format_bytes(available)} free: "
            f"{advice}"
        )
    most = int(MOST_OF_MEMORY * available)
    if forecast.total > most:
        smaller = _smaller(config, plan, forecast.total - most)
        advice = "" if smaller is None else f"{smaller} would take less than {MOST_OF_MEMORY:.0%}, and "
        warnings.warn(
            f"training will take about {format_bytes(forecast.total)}, {forecast.share_of(available)}, "
            f"and may be killed if anything else needs memory: {advice}a smaller batch size, or an "
            "optimizer with less state, such as adagrad or sgd, takes less too",
            MemoryWarning,
            stacklevel=2,
        )
    return forecast


def _smaller(config: RunConfig, plan: Plan, over: int) -> str | None:
    """The options of a run whose tables take so many bytes less; None if no budget is that small."""
    assert config.optimizer is not None
    copies = 1 + OPTIMIZERS[config.optimizer].copies
    # What scales with the tables must shrink by what is over; the rest does not grow with fewer.
    budget = plan.num_parameters - math.ceil(1.05 * over / (4 * copies))
    instead = "" if config.base_dim is None else f" instead of --base-dim {config.base_dim}"
    instead = " instead of --plan" if config.plan is not None else instead
    temperature = TEMPERATURE if plan.temperature is None else plan.temperature
    options = f"--temperature {temperature:g} --budget {budget}{instead}"
    return options if budget >= plan.num_rows else None
