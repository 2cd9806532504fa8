"""DLRM: click-through rates from numbers and categories. Knows nothing about tables or training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

from mixdim._util.options import opt
from mixdim.layer.interaction import dot_interaction
from mixdim.models.base import (
    ANY_FEATURES,
    MANY_ROWS,
    PANEL,
    Drawn,
    Facts,
    MakeLayer,
    register,
)
from mixdim.models.features import FeatureModel, mixed_layer
from mixdim.models.first_order import FirstOrder
from mixdim.models.mlp import (
    draw_weights,
    layers_in_graph,
    mlp,
    modules_of,
    single_column,
    zero_last_layer,
)
from mixdim.models.samples import Samples
from mixdim.models.tables import interact, look_up
from mixdim.planning.plan import Plan
from mixdim.storages.init import Init

if TYPE_CHECKING:
    from mixdim.serving.graph import Graph
    from mixdim.serving.lookup import Vectors

FEW_FEATURES = 8  # up to here the preset "auto" lets the top MLP read vectors
FOLDED_WIDTH = 64  # of the top MLP's first layer in a graph; see `_first_of_top`


@register("dlrm", takes=ANY_FEATURES, bands=1)
class DLRM(FeatureModel):
    """The deep learning recommendation model of Naumov et al. 2019, the paper's model for CTR.

    A bottom MLP makes one vector of a sample's numbers; it meets the vectors of the categorical
    features in `mixdim.dot_interaction`; a top MLP makes that one logit.

    - `embeddings`: a `mixdim.FeatureEmbeddings`; or one module a feature, such as nn.Embedding, each
      from ids (batch,) to vectors (batch, base_dim). Only the first takes bags.
    - `num_dense`: numbers of a sample. If there are none, one learned vector, the same for all
      samples, takes the place of the bottom MLP's output.
    - `bottom`, `top`: widths of the hidden layers: num_dense-512-256-64-base_dim, with a ReLU after
      every layer, and 512-256-1. (The paper does not give them; these are its authors' later ones.)
    - `vectors`: whether the top MLP also reads the features' vectors, and not only their products. The
      paper's does not: of two features it sees one product.
    - `first_order`: a `FirstOrder` that is added.
    - `init`, `generator`: how the MLPs' weights are drawn, as in `mixdim.models.mlp`.

    >>> from types import SimpleNamespace
    >>> import mixdim
    >>> embeddings = mixdim.FeatureEmbeddings(mixdim.plan([900, 30], temperature=0.3, base_dim=16))
    >>> model = DLRM(embeddings, num_dense=13)
    >>> ids = torch.tensor([[899, 29], [0, 0], [7, 1]])
    >>> model(SimpleNamespace(ids=ids, dense=torch.zeros(3, 13), bags={})).shape
    torch.Size([3])
    """

    @dataclass(frozen=True)
    class Options:
        """What `mixdim train --model dlrm` can be told."""

        bottom: tuple[int, ...] = opt(
            (512, 256, 64), "Hidden widths of the MLP of numbers.", panel=PANEL, from_data=True
        )
        top: tuple[int, ...] = opt(
            (512, 256), "Hidden widths of the MLP above.", panel=PANEL, from_data=True
        )
        vectors: bool = opt(
            False,
            "Let the MLP above read vectors beside their dot products.",
            panel=PANEL,
            from_data=True,
            absent=False,
        )
        first_order: bool = opt(
            False, "Add a weight for each id and each number.", panel=PANEL, from_data=True, absent=False
        )
        from_baseline: bool = opt(
            False,
            "Begin as the baseline that the model contains.",
            panel=PANEL,
            from_data=True,
            absent=False,
        )

    @classmethod
    def auto(cls, facts: Facts) -> Options:
        """Few rows do not feed the paper's wide MLPs, and few features make few products."""
        few = 0 < len(facts.features) <= FEW_FEATURES
        if facts.train_rows >= MANY_ROWS:
            return cls.Options(vectors=few, first_order=True, from_baseline=True)
        return cls.Options(
            bottom=(64, 32), top=(64, 32), vectors=few, first_order=True, from_baseline=True
        )

    @classmethod
    def numbers_per_id(cls, options: Options) -> int:
        """Its first-order weight, if it has one."""
        return int(options.first_order)

    @classmethod
    def build(
        cls, plan: Plan, facts: Facts, options: Options, drawn: Drawn, layer: MakeLayer | None = None
    ) -> Self:
        """Make the model of a plan; `layer` makes its embeddings, mixdim's own if not given."""
        layer = layer or mixed_layer
        return cls(
            layer(plan, drawn),
            num_dense=facts.num_dense,
            bottom=options.bottom,
            top=options.top,
            vectors=options.vectors,
            first_order=FirstOrder.of(plan, facts, layer) if options.first_order else None,
            **drawn._asdict(),
        )

    def __init__(
        self,
        embeddings: nn.Module | Iterable[nn.Module],
        *,
        num_dense: int,
        bottom: Sequence[int] = (512, 256, 64),
        top: Sequence[int] = (512, 256),
        vectors: bool = False,
        first_order: FirstOrder | None = None,
        init: Init = "xavier",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(embeddings, num_dense=num_dense, first_order=first_order)
        base_dim, num_slots = self.embeddings.base_dim, self.embeddings.num_features + 1
        self.bottom: nn.Module
        if self.num_dense:
            widths = (self.num_dense, *bottom, base_dim)
            self.bottom = mlp(widths, init=init, generator=generator).append(nn.ReLU())
        else:
            self.bottom = LearnedVector(base_dim, init=init, generator=generator)
        self.vectors = vectors
        num_columns = base_dim + num_slots * (num_slots - 1) // 2
        if vectors:
            num_columns += self.embeddings.num_features * base_dim
        self.top = mlp((num_columns, *top, 1), init=init, generator=generator)

    def score(self, numbers: Tensor, samples: Samples) -> Tensor:
        """The logit of the top MLP: (batch,)."""
        dense = self.bottom(numbers)  # (batch, base_dim)
        if not self.vectors:
            return self.top(interact(dense, self.embeddings, samples)).squeeze(1)
        found = look_up(self.embeddings, samples)  # (batch, features, base_dim)
        columns = torch.cat([dot_interaction(dense, found), found.flatten(1)], dim=1)
        return self.top(columns).squeeze(1)

    def start_with_zero(self) -> None:
        """Set the last layer to 0."""
        zero_last_layer(self.top)

    def score_in_graph(self, graph: Graph, numbers: str, found: Vectors) -> str:
        """`score` in an ONNX graph, of the vectors that were found."""
        if isinstance(self.bottom, LearnedVector):
            dense = self.bottom.to_graph(graph, found.values[0])
        else:
            dense = layers_in_graph(graph, self.bottom, numbers)
        slot_of_dense = graph.add("Unsqueeze", dense, graph.constant([1]))
        slots = graph.concat([slot_of_dense, *found.values], axis=1)  # (batch, S, base_dim)
        products = graph.add("MatMul", slots, graph.add("Transpose", slots, perm=[0, 2, 1]))
        first, *others = modules_of(self.top)
        assert isinstance(first, nn.Linear)
        places = [0, *(1 + feature for feature in found.features)]
        flat = ""
        if self.vectors:
            width = self.embeddings.num_features * self.embeddings.base_dim
            flat = graph.reshape(found.in_order(graph), [-1, width])
        hidden = _first_of_top(graph, first, dense, products, places, flat)
        return single_column(graph, layers_in_graph(graph, others, hidden))


class LearnedVector(nn.Module):
    """One vector for every sample, whatever it is: (batch, 0) -> (batch, width)."""

    def __init__(self, width: int, *, init: Init, generator: torch.Generator | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, width))
        draw_weights(self.weight, init=init, generator=generator)

    def forward(self, nothing: Tensor) -> Tensor:
        """Repeat the vector for each row of `nothing`."""
        return self.weight.expand(nothing.shape[0], -1)  # not len(), which a graph would make a number

    def to_graph(self, graph: Graph, samples: str) -> str:
        """Repeat the vector for each of some samples (batch, ...)."""
        batch = graph.add("Slice", graph.add("Shape", samples), graph.constant([0]), graph.constant([1]))
        shape = graph.concat([batch, graph.constant([1])], axis=0)
        return graph.add("Expand", graph.weights(self.weight), shape)


def _first_of_top(
    graph: Graph, linear: nn.Linear, dense: str, products: str, places: Sequence[int], flat: str
) -> str:
    """The top MLP's first layer, from the dense vector and the products of all slots (batch, S, S).

    Its weights (out, D + pairs + vectors) read the pairs of slots (1, 0), (2, 0), (2, 1), ...; `places`
    says which slot each is now. `flat` are the vectors that it reads too, (batch, F * D), or "".
    If it is narrow, products that are no pair, or the other half, get weights of 0:
    to choose the pairs first takes longer than to multiply the others with 0.
    """
    num_slots = len(places)
    now = torch.tensor(places).argsort()  # where each slot is
    rows, columns = torch.tril_indices(num_slots, num_slots, offset=-1)
    chosen = now[rows] * num_slots + now[columns]
    values = graph.reshape(products, [0, num_slots**2])
    if linear.out_features > FOLDED_WIDTH:
        # Pair by pair for all samples at once: to choose within each sample takes longer.
        by_pair = graph.add("Transpose", values, perm=[1, 0])
        by_pair = graph.add("Gather", by_pair, graph.constant(chosen.numpy()), axis=0)
        pairs = graph.add("Transpose", by_pair, perm=[1, 0])
        values = graph.concat([dense, pairs, *([flat] if flat else [])], axis=1)
        return layers_in_graph(graph, [linear], values)
    others = linear.in_features - len(chosen)
    width = others // num_slots if flat else others  # of the dense vector, and of each of the others
    sizes = [width, len(chosen), others - width]
    of_dense, of_pairs, of_vectors = linear.weight.detach().t().split(sizes)
    of_pairs = of_pairs.new_zeros(num_slots**2, linear.out_features).index_copy(0, chosen, of_pairs)
    bias = [] if linear.bias is None else [graph.weights(linear.bias)]
    of_all = graph.add("Gemm", dense, graph.weights(of_dense), *bias)
    if flat:
        of_all = graph.add("Gemm", flat, graph.weights(of_vectors), of_all)
    return graph.add("Gemm", values, graph.weights(of_pairs), of_all)
