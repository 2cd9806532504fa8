"""DCN v2: a cross network, then an MLP. Knows nothing about tables or training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

from mixdim._util.arguments import whole_number
from mixdim._util.options import opt
from mixdim.models.base import (
    ANY_FEATURES,
    MANY_ROWS,
    PANEL,
    Drawn,
    Facts,
    MakeLayer,
    register,
)
from mixdim.models.features import FeatureModel, mixed_layer, side_by_side, side_by_side_in_graph
from mixdim.models.first_order import FirstOrder
from mixdim.models.mlp import (
    Layers,
    layers_in_graph,
    linear,
    mlp,
    single_column,
    zero_last_layer,
)
from mixdim.models.samples import Samples
from mixdim.models.tables import look_up
from mixdim.planning.plan import Plan
from mixdim.storages.init import Init

if TYPE_CHECKING:
    from mixdim.serving.graph import Graph
    from mixdim.serving.lookup import Vectors


@register("dcn", takes=ANY_FEATURES, bands=1)
class DCN(FeatureModel):
    """The deep and cross network of Wang et al. 2021 (DCN v2), stacked: the MLP reads the crosses.

    x_0 = [vectors of all features, numbers], x_{l+1} = x_0 * (W_l x_l + b_l) + x_l, with * element by
    element, and logit = MLP(x_L). After L cross layers, features meet in products of up to L + 1.

    - `embeddings`: a `mixdim.FeatureEmbeddings`; or one module a feature, such as nn.Embedding, each
      from ids (batch,) to vectors (batch, base_dim). Only the first takes bags.
    - `num_dense`: numbers of a sample.
    - `cross_layers`: L.
    - `cross_rank`: with r > 0, W = U V^T with U, V of width r; whole matrices if it is 0, or so large
      that U and V would have no fewer numbers.
    - `hidden`: widths of the MLP's hidden layers.
    - `first_order`: a `FirstOrder` that is added.
    - `init`, `generator`: how weights are drawn, as in `mixdim.models.mlp`.

    >>> from types import SimpleNamespace
    >>> import mixdim
    >>> embeddings = mixdim.FeatureEmbeddings(mixdim.plan([900, 30], temperature=0.3, base_dim=16))
    >>> model = DCN(embeddings, num_dense=13)
    >>> ids = torch.tensor([[899, 29], [0, 0], [7, 1]])
    >>> model(SimpleNamespace(ids=ids, dense=torch.zeros(3, 13), bags={})).shape
    torch.Size([3])
    """

    @dataclass(frozen=True)
    class Options:
        """What `mixdim train --model dcn` can be told."""

        cross_layers: int = opt(3, "Layers of the cross network.", panel=PANEL, from_data=True)
        cross_rank: int = opt(
            64, "Rank of its matrices; 0 for whole matrices.", panel=PANEL, from_data=True
        )
        hidden: tuple[int, ...] = opt(
            (512, 256), "Hidden widths of the MLP.", panel=PANEL, from_data=True
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
        """Few rows do not feed wide layers."""
        if facts.train_rows >= MANY_ROWS:
            return cls.Options(first_order=True, from_baseline=True)
        return cls.Options(
            cross_layers=2, cross_rank=16, hidden=(64, 32), first_order=True, from_baseline=True
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
            cross_layers=options.cross_layers,
            cross_rank=options.cross_rank,
            hidden=options.hidden,
            first_order=FirstOrder.of(plan, facts, layer) if options.first_order else None,
            **drawn._asdict(),
        )

    def __init__(
        self,
        embeddings: nn.Module | Iterable[nn.Module],
        *,
        num_dense: int,
        cross_layers: int = 3,
        cross_rank: int = 64,
        hidden: Sequence[int] = (512, 256),
        first_order: FirstOrder | None = None,
        init: Init = "xavier",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(embeddings, num_dense=num_dense, first_order=first_order)
        number, drawn = whole_number(cross_layers, "cross_layers", at_least=0), Drawn(init, generator)
        rank = whole_number(cross_rank, "cross_rank", at_least=0)
        self.cross = nn.ModuleList(_cross_layer(self.width, rank, drawn) for _ in range(number))
        self.mlp = mlp((self.width, *hidden, 1), init=init, generator=generator)

    def score(self, numbers: Tensor, samples: Samples) -> Tensor:
        """The logit of the MLP: (batch,)."""
        first = side_by_side(look_up(self.embeddings, samples), numbers)  # (batch, width)
        crossed = first
        for layer in self.cross:
            crossed = first * layer(crossed) + crossed
        return self.mlp(crossed).squeeze(1)

    def start_with_zero(self) -> None:
        """Set the last layer to 0."""
        zero_last_layer(self.mlp)

    def score_in_graph(self, graph: Graph, numbers: str, found: Vectors) -> str:
        """`score` in an ONNX graph, of the vectors that were found."""
        width = self.width - self.num_dense
        crossed = first = side_by_side_in_graph(graph, found.in_order(graph), numbers, width)
        for layer in self.cross:
            step = layers_in_graph(graph, layer, crossed)
            crossed = graph.add("Add", graph.add("Mul", first, step), crossed)
        return single_column(graph, layers_in_graph(graph, self.mlp, crossed))


def _cross_layer(width: int, rank: int, drawn: Drawn) -> Layers:
    """X -> W x + b: a whole matrix, or U (V^T x) + b where that has fewer numbers."""
    if not 0 < 2 * rank < width:
        return Layers(linear(width, width, **drawn._asdict()))
    narrow = linear(width, rank, bias=False, **drawn._asdict())
    return Layers(narrow, linear(rank, width, **drawn._asdict()))
