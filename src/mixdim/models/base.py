"""What every model is, and all that there are, by name. Knows no formula, no data and no training.

A model is one file: its module, its options, what the preset "auto" chooses of them, how it is built,
its forward pass, the same as an ONNX graph, and how it begins as its baseline. `register` names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from mixdim.layer.bags import Pooling
from mixdim.layer.embedding_base import MixedEmbeddingBase
from mixdim.models.samples import Samples
from mixdim.models.tables import count_trained
from mixdim.planning.plan import Plan
from mixdim.storages.init import Init

if TYPE_CHECKING:
    from mixdim.models.first_order import FirstOrder
    from mixdim.serving.graph import Graph
    from mixdim.serving.layer_graph import GraphInputs

PANEL = "Model"  # where `--help` lists the options of models
MANY_ROWS = 10_000_000  # from here on, the preset "auto" takes wide MLPs


@dataclass(frozen=True)
class Facts:
    """What a model needs to know of data, as plain values; what is not known keeps its default.

    - `features`: their names in order; `bags`: those with several ids a sample.
    - `num_dense`: numbers of a sample.
    - `constant`: the output with the least loss if it is the same for all samples: a mean or a logit.
    - `train_rows`, `num_ids`: how much there is to learn from, and the rows of all features together.
    """

    features: tuple[str, ...] = ()
    bags: frozenset[str] = frozenset()
    num_dense: int = 0
    constant: float = 0.0
    train_rows: int = 0
    num_ids: int = 0


class Drawn(NamedTuple):
    """How first weights are drawn."""

    init: Init = "xavier"
    generator: torch.Generator | None = None


class Baseline(NamedTuple):
    """The weights of a simple model: output = constant + shift + those of ids + those of numbers.

    - `of_ids`: by feature, a weight for each id, (ids,) or (ids, 1).
    - `of_numbers`: a weight for each standardized number.
    """

    of_ids: Mapping[str, Tensor]
    of_numbers: Tensor = torch.zeros(0)
    shift: Tensor = torch.zeros(())


class MakeLayer(Protocol):
    """How a model gets an embedding layer of a plan; one that is not drawn holds zeros."""

    def __call__(self, plan: Plan, drawn: Drawn | None, *, pooling: Pooling = "sum") -> nn.Module:
        """Make it."""


@dataclass(frozen=True)
class Takes:
    """Which data a model reads, in words and as a test."""

    words: str
    reads: Callable[[Facts], bool] = field(repr=False)


ANY_FEATURES = Takes("any features", lambda facts: True)
PAIRS = Takes(
    "two features of one id each, such as user and item",
    lambda facts: len(facts.features) == 2 and not facts.bags,
)


class Model(nn.Module):
    """A model of samples that a run can name: a batch to one number a sample.

    - `task`: what its outputs mean if nobody says: "binary" (logits) or "rating".
    - `one_layer`: whether one layer has all features, so that they can share an array.
    - `baselines`: the simple models that it contains, with these options on (`baseline_needs`).
    - `shows_vectors`: whether `forward` tells what it looks up, which a penalty needs.
    - `first_order`: its first-order weights, if it has any.
    """

    name: ClassVar[str]
    takes: ClassVar[Takes]
    bands: ClassVar[int]
    task: ClassVar[str] = "binary"
    one_layer: ClassVar[bool] = True
    baselines: ClassVar[tuple[str, ...]] = ()
    baseline_needs: ClassVar[tuple[str, ...]] = ()
    shows_vectors: ClassVar[bool] = False
    num_dense: int = 0
    first_order: FirstOrder | None

    def __init__(self) -> None:
        super().__init__()
        self.first_order = None

    @dataclass(frozen=True)
    class Options:
        """The options of a run that are this model's own, made by `opt`.

        The run itself reads `from_baseline`, if there is one: it then calls `start_from`.
        """

    @classmethod
    def auto(cls, facts: Facts) -> Any:
        """The options that the preset "auto" chooses for such data."""
        return cls.Options()

    @classmethod
    def build(
        cls, plan: Plan, facts: Facts, options: Any, drawn: Drawn, layer: MakeLayer | None = None
    ) -> Self:
        """Make the model of a plan; `layer` makes its embeddings, mixdim's own if not given."""
        raise NotImplementedError

    @classmethod
    def contains(cls, baseline: str, options: Any) -> bool:
        """Whether some weights of the model with these options make it that baseline."""
        return baseline in cls.baselines and all(getattr(options, name) for name in cls.baseline_needs)

    @classmethod
    def numbers_per_id(cls, options: Any) -> int:
        """Numbers that the model keeps for each id beside its vectors: 0, or 1 (`number_plan`)."""
        return 0

    def start_from(self, baseline: Baseline) -> None:
        """Let the model begin as the baseline that it contains, with the same outputs."""
        raise ValueError(f"{type(self).__name__} does not contain a baseline to begin as")

    def forward(self, samples: Samples) -> Tensor:
        """Return one number of each sample: (batch,).

        Of a model that shows its vectors, `forward(samples, seen)` tells them to a `Seen`.
        """
        raise NotImplementedError

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model that training changes."""
        return count_trained(self)

    @property
    def embedding_parameters(self) -> int:
        """Those of them in the embeddings: tables and projections."""
        return count_trained(*self.embedding_layers())

    def embedding_layers(self) -> list[MixedEmbeddingBase]:
        """The layers that the plan is of: first-order weights are not, nor are biases."""
        others = set() if self.first_order is None else set(self.first_order.modules())
        return [m for m in self.modules() if isinstance(m, MixedEmbeddingBase) and m not in others]

    def numbers_of_ids(self) -> Mapping[str, Sequence[nn.Module]]:
        """What grows with ids beside `embedding_layers`, in words: first-order weights, biases."""
        return (
            {}
            if self.first_order is None
            else {"first-order weights": [self.first_order.get_submodule("weights")]}
        )

    def feature_rows(self) -> dict[str, int]:
        """The rows of each feature that the model reads, by name and in order."""
        raise ValueError(f"{type(self).__name__} does not say which features it reads")

    @property
    def takes_bags(self) -> bool:
        """Whether a feature may have several ids a sample."""
        return False

    def pair_vectors(self, column: int, ids: Tensor) -> Tensor | None:
        """Vectors (ids, width) of ids of the first or second column of a pair of ids: 0 or 1.

        output = <a vector of one, a vector of the other> + a constant. None if it is no such product.
        """
        return None

    def to_graph(self, graph: Graph, inputs: GraphInputs) -> str:
        """Write the forward pass as ONNX operators; returns the name of the outputs, (batch,)."""
        raise ValueError(f"{type(self).__name__} has no to_graph, so only format pt2 can hold it")


AnyModel = TypeVar("AnyModel", bound=type[Model])
MODELS: dict[str, type[Model]] = {}


def register(name: str, *, takes: Takes, bands: int) -> Callable[[AnyModel], AnyModel]:
    """Give a model the name that a run takes it by.

    - `takes`: which data it reads.
    - `bands`: into how many a feature is cut if nothing is said. The paper: one block a feature for
      clicks, 8 to 16 bands for ratings.
    """

    def add(model: AnyModel) -> AnyModel:
        model.name, model.takes, model.bands = name, takes, bands
        MODELS[name] = model
        return model

    return add


def model_named(name: str) -> type[Model]:
    """Return a model's class.

    >>> model_named("gbdt")
    Traceback (most recent call last):
    ValueError: model must be one of dcn, deepfm, dlrm, mf, ncf, got 'gbdt'
    """
    if name not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {name!r}")
    return MODELS[name]
