"""The models that a run can name: options, data, and how each is built. Knows no training.

Here models and embeddings are joined. A new model is one entry of `MODELS`; its options are a dataclass
in model_options.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from mixdim._util.options import options_of
from mixdim.layer.embedding import FeatureEmbeddings, MixedDimEmbedding
from mixdim.models import DLRM, MatrixFactorization, NeuralCollaborativeFiltering, WithFirstOrder
from mixdim.planning.from_counts import plan as make_plan
from mixdim.planning.plan import Plan
from mixdim.runs.model_options import MODEL_OPTIONS

if TYPE_CHECKING:
    from mixdim.data import Dataset
    from mixdim.runs.config import RunConfig


class Given(NamedTuple):
    """What every model is built with, beside a plan and its own options."""

    num_dense: int
    mean: float  # the constant output with the least loss
    drawn: dict[str, Any]  # how weights are drawn: `init` and `generator`


@dataclass(frozen=True)
class RunModel:
    """A model that a run can name.

    - `build(plan, given, **options)`: make it.
    - `declaration`: the dataclass of its own options.
    - `auto(train_rows, num_ids)`: those of the options that the preset "auto" chooses otherwise.
    - `contains_baseline(task, options)`: whether some of its weights make it the baseline of the task.
    - `bands`: into how many a feature is cut if nothing is said. The paper: one block a feature for
      clicks, 8 to 16 bands for ratings.
    - `reads(dataset)`: whether it can; `takes` says in words what it can.
    """

    build: Callable[..., nn.Module]
    declaration: type
    bands: int
    reads: Callable[[Dataset], bool]
    takes: str
    auto: Callable[[int, int], Mapping[str, Any]] = lambda train_rows, num_ids: {}
    contains_baseline: Callable[[str, Mapping[str, Any]], bool] = lambda task, options: False

    @property
    def defaults(self) -> dict[str, Any]:
        """Its own options where nothing is given and nothing is chosen from the data."""
        return {name: option.default for name, option in options_of(self.declaration).items()}


def _dlrm(
    plan: Plan,
    given: Given,
    *,
    bottom: tuple[int, ...],
    top: tuple[int, ...],
    first_order: bool,
    from_baseline: bool,
) -> nn.Module:
    del from_baseline  # see beginning.py: it takes the data
    embeddings = FeatureEmbeddings(plan, sparse=True, **given.drawn)
    model = DLRM(embeddings, num_dense=given.num_dense, bottom=bottom, top=top, **given.drawn)
    if not first_order:
        return model
    sizes = {feature.name: feature.rows for feature in plan.features}
    width_1 = make_plan(sizes, temperature=0, base_dim=1)
    weights = FeatureEmbeddings(width_1, sparse=True, pooling="mean", **given.drawn)
    return WithFirstOrder(model, weights, num_dense=given.num_dense, constant=given.mean)


def _auto_dlrm(train_rows: int, num_ids: int) -> dict[str, Any]:
    """Few rows do not feed the paper's wide MLPs."""
    narrow = {"bottom": (64, 32), "top": (64, 32)} if train_rows < MANY_ROWS else {}
    return {**narrow, "first_order": True, "from_baseline": True}


def _mf(plan: Plan, given: Given, *, mean: bool, biases: bool, from_baseline: bool) -> nn.Module:
    del from_baseline  # see beginning.py: it takes the data
    users, items = _users_and_items(plan, given)
    return MatrixFactorization(users, items, mean=given.mean if mean else None, biases=biases)


def _auto_mf(train_rows: int, num_ids: int) -> dict[str, Any]:
    """Where ids are rare, steps from 0 do not get to their biases before the vectors overfit."""
    return {"from_baseline": train_rows < RATINGS_ENOUGH * num_ids}


def _ncf(plan: Plan, given: Given, *, hidden: tuple[int, ...], mean: bool) -> nn.Module:
    users, items = _users_and_items(plan, given)
    shift = given.mean if mean else None
    return NeuralCollaborativeFiltering(users, items, hidden=hidden, mean=shift, **given.drawn)


def _users_and_items(plan: Plan, given: Given) -> list[MixedDimEmbedding]:
    return [MixedDimEmbedding(plan[name], sparse=True, **given.drawn) for name in plan]


def _any_data(dataset: Dataset) -> bool:
    return True


def _pairs(dataset: Dataset) -> bool:
    return len(dataset.feature_names) == len(dataset.single_valued) == 2


MANY_ROWS = 10_000_000  # from here on, DLRM's MLPs are as wide as the paper's
RATINGS_ENOUGH = 50  # for an id, on average: with so many, MF learns better from 0
PAIRS = "two features of one id each, such as user and item"
MODELS = {
    "dlrm": RunModel(
        _dlrm,
        MODEL_OPTIONS["dlrm"],
        1,
        _any_data,
        "any features",
        _auto_dlrm,
        lambda task, options: task == "binary" and options["first_order"],
    ),
    "mf": RunModel(
        _mf,
        MODEL_OPTIONS["mf"],
        8,
        _pairs,
        PAIRS,
        _auto_mf,
        lambda task, options: task == "rating" and options["mean"] and options["biases"],
    ),
    "ncf": RunModel(_ncf, MODEL_OPTIONS["ncf"], 8, _pairs, PAIRS),
}


def model_named(name: str) -> RunModel:
    """Return the entry of a model."""
    if name not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {name!r}")
    return MODELS[name]


def build_model(config: RunConfig, plan: Plan, *, num_dense: int, mean: float) -> nn.Module:
    """Build the model of a resolved config, its weights drawn from the config's seed."""
    assert config.model is not None
    assert config.seed is not None
    model = model_named(config.model)
    on_meta = torch.get_default_device().type == "meta"  # nothing is drawn there
    generator = None if on_meta else torch.Generator().manual_seed(config.seed)
    given = Given(num_dense, mean, {"init": config.init, "generator": generator})
    return model.build(plan, given, **config.model_options)


def check_fits(config: RunConfig, dataset: Dataset) -> None:
    """Refuse a model that cannot read the data."""
    assert config.model is not None
    model = model_named(config.model)
    if not model.reads(dataset):
        others = [name for name, other in MODELS.items() if other.reads(dataset)]
        raise ValueError(
            f"model {config.model!r} takes {model.takes}; "
            f"{dataset.path} has {', '.join(dataset.feature_names)}: use --model {' or '.join(others)}"
        )
