"""Where a run's config and data meet the models that there are. Knows no formula and no training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mixdim.models import MODELS, Drawn, Facts, Model, model_named
from mixdim.models.base import MakeLayer
from mixdim.planning.plan import Plan

if TYPE_CHECKING:
    from mixdim.data import Dataset
    from mixdim.runs.config import RunConfig


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


def check_fits(config: RunConfig, dataset: Dataset) -> None:
    """Refuse a model that cannot read the data."""
    assert config.model is not None
    takes, facts = model_named(config.model).takes, facts_of(dataset)
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
