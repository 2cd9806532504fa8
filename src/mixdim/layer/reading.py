"""Who is told which stored rows a lookup is about to read. Knows nothing about what it does then."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from torch import Tensor, nn

from mixdim.kernels.library import outside_of_graphs
from mixdim.layer.lookup import table_rows

if TYPE_CHECKING:
    from mixdim.layer.embedding_base import MixedEmbeddingBase

# A table with row-sparse gradients, and rows of it, some maybe several times.
Reader: TypeAlias = Callable[[nn.Parameter, Tensor], None]


def tell_ids(layer: MixedEmbeddingBase, ids: Tensor, offsets: Tensor | None = None) -> None:
    """Tell the layer's reader, if it has one, what ids are about to read: (B, F), or of bags (V,)."""
    if layer.reader is not None:
        rows = layer.ids(ids, layer.features_of(ids, offsets))
        _tell_rows(layer, rows if offsets is not None else rows.t())


def tell_rows(layer: MixedEmbeddingBase, rows: Tensor) -> None:
    """The same of rows of the layer, (F, B) or (V,), -1 for none."""
    if layer.reader is not None:
        _tell_rows(layer, rows)


@outside_of_graphs
def _tell_rows(layer: MixedEmbeddingBase, rows: Tensor) -> None:
    reader = layer.reader
    assert reader is not None
    for name, of_table in table_rows(layer.tables(), rows):
        reader(getattr(layer, name), of_table)
