"""The model of a run: built from its config, started as its baseline, read back. Knows no formula.

The folder of a run keeps the weights that were trained; quantizing them again gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from mixdim.layer.quantizing import quantize
from mixdim.models import MODELS, Baseline, Drawn, Facts, Model, model_named
from mixdim.models.base import MakeLayer
from mixdim.planning.plan import Plan
from mixdim.tasks import task_of
from mixdim.training import Checkpoints, load_weights
from mixdim.training.checkpoint import CheckpointError
from mixdim.training.evaluation import Progress
from mixdim.training.first_order import LogisticRegression, fit_logistic, moments
from mixdim.training.group import ALONE, Group
from mixdim.training.random_effects import effects_of

if TYPE_CHECKING:
    from mixdim.data import Dataset
    from mixdim.runs.config import RunConfig

WEIGHTS = ("best", "last")


class Loaded(NamedTuple):
    """A run's model, and the step that its weights are of."""

    model: Model
    step: int


def facts_of(dataset: Dataset) -> Facts:
    """What models need to know of a data set."""
    start, stop = dataset.splits["train"]
    return Facts(
        features=tuple(dataset.feature_names),
        bags=frozenset(dataset.feature_names) - frozenset(dataset.single_valued),
        num_dense=dataset.num_dense,
        train_rows=max(1, stop - start),
        num_ids=sum(map(len, dataset.counts.values())),
    )


def options_of(config: RunConfig) -> Any:
    """The options of a resolved config's model."""
    assert config.model is not None
    return model_named(config.model).Options(**config.model_options)


def build_model(
    config: RunConfig, plan: Plan, *, num_dense: int, mean: float, layer: MakeLayer | None = None
) -> Model:
    """Build the model of a resolved config, its weights drawn from the config's seed.

    `mean` is the constant output with the least loss; `layer` makes embeddings of another kind.
    """
    assert config.model is not None
    assert config.seed is not None
    on_meta = torch.get_default_device().type == "meta"  # nothing is drawn there
    generator = None if on_meta else torch.Generator().manual_seed(config.seed)
    drawn = Drawn(config.init, generator)  # type: ignore[arg-type]  # the model checks it
    facts = Facts(num_dense=num_dense, constant=mean)
    others = {} if layer is None else {"layer": layer}
    return model_named(config.model).build(plan, facts, options_of(config), drawn, **others)


def begin(
    model: Model,
    dataset: Dataset,
    *,
    from_baseline: bool,
    progress: Progress | None = None,
) -> dict[str, Any] | None:
    """Set how numbers are standardized and, if the run wants it, the weights of the baseline.

    Returns what the logistic regression reaches, if there was one; where it diverges, weights stay at 0.
    """
    baseline, measured = fit_baseline(model, dataset, from_baseline=from_baseline, progress=progress)
    if baseline is not None:
        model.start_from(baseline)
    return measured


def fit_baseline(
    model: Model,
    dataset: Dataset,
    *,
    from_baseline: bool,
    progress: Progress | None = None,
    group: Group = ALONE,
) -> tuple[Baseline | None, dict[str, Any] | None]:
    """Set how numbers are standardized, and find the baseline and what it reaches.

    In a group, process 0 fits it, and others know the shapes of its weights of ids alone. So it needs no
    memory beside the tables if it is fitted before these are made. Models that many processes train have
    first-order weights.
    """
    first_order = model.first_order
    if first_order is not None:
        first_order.standardize_by(*moments(dataset))
    if not from_baseline:
        return None, None
    task = task_of(dataset.task)
    if first_order is None and task.baseline == "biases":
        biases = map(torch.from_numpy, effects_of(dataset).biases)
        return Baseline(dict(zip(dataset.single_valued, biases, strict=True))), None
    if first_order is None:
        constant = task.constant_output(dataset.mean_target)
        try:
            logistic, measured = fit_logistic(dataset, constant, progress=progress)
        except FloatingPointError:  # `baselines_of` says so
            return None, None
        return Baseline(logistic.of_ids(), shift=logistic.shift.detach()), measured
    fitted: list[LogisticRegression] = []

    def fit() -> dict[str, Any] | None:
        try:
            logistic, measured = fit_logistic(dataset, float(first_order.constant), progress=progress)
        except FloatingPointError:  # `baselines_of` says so
            return None
        fitted.append(logistic)
        return {
            "of_numbers": logistic.dense.tolist(),
            "shift": logistic.shift.item(),
            "measured": measured,
        }

    told = group.first(fit, ValueError, OSError)
    if told is None:
        return None, None
    of_ids = {n: torch.empty(len(found), 1, device="meta") for n, found in dataset.counts.items()}
    for logistic in fitted:  # others have the shapes alone
        of_ids = logistic.of_ids()
    of_numbers, shift = torch.tensor(told["of_numbers"]), torch.tensor(told["shift"])
    return Baseline(of_ids, of_numbers, shift), dict(told["measured"])


def read_model(
    path: Path, config: RunConfig, plan: Plan, weights: str = "best", *, num_dense: int
) -> Loaded:
    """Read a run's model back, with its "best" or "last" weights as they were trained."""
    if weights not in WEIGHTS:
        raise ValueError(f"weights must be {' or '.join(WEIGHTS)}, got {weights!r}")
    model = build_model(config, plan.trainable(), num_dense=num_dense, mean=0.0)  # mean: a weight too
    checkpoints = Checkpoints(path / "checkpoint")
    newest = checkpoints.newest()
    if weights == "best":
        best = None if newest is None else newest.state["best"]
        chosen = checkpoints.best(None if best is None else best["step"])
    elif newest is None:
        raise CheckpointError(f"{path} has no checkpoint yet")
    else:
        chosen = newest
    load_weights(model, chosen)
    return Loaded(model, chosen.step)


def as_served(model: Model, plan: Plan) -> Model:
    """A trained model as its plan serves it: itself, or a copy whose embeddings are quantized."""
    return model if plan.is_trained else quantize(model, plan.least_bits)


def bytes_by_part(model: Model) -> dict[str, int]:
    """Bytes of all that grows with ids: of the embeddings, and of what has a number for each id."""
    parts: dict[str, Sequence[nn.Module]] = {"embeddings": model.embedding_layers()}
    parts |= model.numbers_of_ids()
    return {name: sum(map(bytes_of, modules)) for name, modules in parts.items()}


def embedding_bytes(model: Model) -> int:
    """Bytes of all that grows with ids: tables, projections, codes, ranks, first-order weights, ..."""
    return sum(bytes_by_part(model).values())


def bytes_of(module: nn.Module) -> int:
    """Bytes of all that a model or a layer keeps."""
    return sum(tensor.nbytes for tensor in module.state_dict().values())


def tables_of(model: Model) -> dict[str, np.ndarray]:
    """The matrix that each feature's embedding stands for, by feature name: (rows, base_dim)."""
    return {
        name: layer.dense_weight(name).numpy(force=True)
        for layer in model.embedding_layers()
        for name in layer.plan
    }


def check_fits(config: RunConfig, dataset: Dataset) -> None:
    """Refuse a model that cannot read the data."""
    assert config.model is not None
    model, facts = model_named(config.model), facts_of(dataset)
    takes = model.takes
    penalized = [name for name, one in MODELS.items() if one.shows_vectors]
    if config.penalty and (config.model not in penalized or dataset.task != model.task):
        raise ValueError(
            f"--penalty is for ratings with --model {' or '.join(penalized)}, "
            f"got model {config.model!r} and the task {dataset.task!r}"
        )
    if not takes.reads(facts):
        others = [name for name, other in MODELS.items() if other.takes.reads(facts)]
        raise ValueError(
            f"model {config.model!r} takes {takes.words}; "
            f"{dataset.path} has {', '.join(dataset.feature_names)}: use --model {' or '.join(others)}"
        )


def check_shares(config: RunConfig, plan: Plan) -> None:
    """Refuse an array of all features for a model that has a layer for each."""
    assert config.model is not None
    if plan.cost.shared and not model_named(config.model).one_layer:
        others = [name for name, model in MODELS.items() if model.one_layer]
        raise ValueError(
            f"method {config.method!r} has one array for all features; use --model {' or '.join(others)}"
        )
