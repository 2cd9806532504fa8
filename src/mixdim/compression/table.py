"""The table that stands in for a trained one: ids to ranks, ranks to vectors. Knows no models."""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from mixdim.compression.rank_code import RankCode, Shape, rank_code_nbytes
from mixdim.layer.embedding import MixedDimEmbedding
from mixdim.layer.ids import checked_ids, require_integers
from mixdim.layer.paths import look_up_bags
from mixdim.planning.plan import Plan
from mixdim.planning.table_options import Choice
from mixdim.planning.trained_table import MetricRoot, Moments, TrainedTable
from mixdim.storages.table import StoredBlock, Table

PADDING = -1  # among ranks


class CompressedTable(nn.Module):
    """A table of mixed dimensions over somebody's own ids: a `MixedDimEmbedding` behind rank codes.

    Made with `CompressedTable.fitted`; from a plan and the shape of its codes, it is zeros to load state
    into. It can be trained, unless it is quantized.

    - `codes`: a `RankCode`, its `shape`, or None where ids are ranks already.
    - `padding_id`: an id that gives zeros, takes no gradient and does not count in a bag.
    - `sparse`: tables get row-sparse gradients.
    - `dtype`: of the vectors, also where the table is quantized; it changes as that of a weight would.

    >>> from mixdim.planning.from_tables import choose
    >>> trained = TrainedTable("item", torch.randn(100, 8), np.arange(100))
    >>> table = CompressedTable.fitted(trained, choose([trained], 1000, id_map_bytes=id_map_bytes)[0])
    >>> table(torch.tensor([[3, 99]])).shape, table.nbytes <= 1000
    (torch.Size([1, 2, 8]), True)
    """

    codes: RankCode | None
    empty_weight: Tensor

    def __init__(
        self,
        plan: Plan,
        *,
        codes: RankCode | Shape | None = None,
        padding_id: int | None = None,
        sparse: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if codes is not None and not isinstance(codes, RankCode):
            codes = RankCode(codes)
        if codes is not None and codes.num_rows != plan.num_rows:
            raise ValueError(f"codes must be of {plan.num_rows} ids as the plan, got {codes.num_rows}")
        device = torch.get_default_device() if device is None else torch.device(device)
        self.padding_id = padding_id
        self.codes = None if codes is None else codes.to(device)
        self.embedding = MixedDimEmbedding(
            plan,
            order={},
            padding_id=None if padding_id is None else PADDING,
            sparse=sparse,
            dtype=dtype,
            device="meta",  # nothing is drawn there
        )
        self.embedding.to_empty(device=device)
        with torch.no_grad():
            for tensor in self.embedding.state_dict().values():
                tensor.zero_()
        # Moved and converted as a weight is: rounded tables have types of their own.
        self.register_buffer(
            "empty_weight", torch.empty(0, dtype=dtype, device=device), persistent=False
        )

    @property
    def plan(self) -> Plan:
        """How it is stored; ids of the plan are ranks."""
        return self.embedding.plan

    @property
    def num_embeddings(self) -> int:
        """Rows, by the name that nn.Embedding uses."""
        return self.embedding.num_embeddings

    @property
    def embedding_dim(self) -> int:
        """Width of the vectors, by the name that nn.Embedding uses."""
        return self.embedding.base_dim

    @property
    def device(self) -> torch.device:
        """Where the table is."""
        return self.empty_weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the vectors."""
        return self.empty_weight.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept: what a file of its state has beside the header."""
        return sum(tensor.nbytes for tensor in self.state_dict().values())

    def forward(self, ids: Tensor) -> Tensor:
        """Look up ids of any shape: (...) -> (..., embedding_dim)."""
        require_integers(ids, "ids")
        return self.embedding(self.ranks(ids)).to(self.dtype)

    def bags(
        self,
        values: Tensor,
        offsets: Tensor,
        weights: Tensor | None = None,
        mode: Literal["sum", "mean", "max"] = "sum",
    ) -> Tensor:
        """Look up and pool the bags `values[offsets[i] : offsets[i + 1]]`: -> (bags, embedding_dim).

        `offsets` has the end of the last bag too. `weights`, one a value, are for "sum".
        """
        require_integers(values, "values")
        ranks = self.ranks(values)
        found = look_up_bags(self.embedding, ranks, offsets, weights, pooling=mode)
        return found.squeeze(1).to(self.dtype)

    def dense_weight(self) -> Tensor:
        """The matrix that the table stands for, one row an id: (rows, embedding_dim), differentiable."""
        weight = self.embedding.dense_weight().to(self.dtype)
        if self.codes is not None:
            weight = weight[self.codes.ranks()]
        if self.padding_id is None:
            return weight
        ids = torch.arange(len(weight), device=weight.device)
        return weight.masked_fill((ids == self.padding_id)[:, None], 0.0)

    def ranks(self, ids: Tensor) -> Tensor:
        """Check ids and turn them into ranks, -1 where they are padding."""
        layer = self.embedding
        if self.codes is None and self.padding_id is None:
            return ids  # which the layer checks
        features, num_rows = layer.indices.features, layer.indices.num_rows
        ids = checked_ids(ids, features[0], num_rows, self.padding_id, layer.routing.names)
        if self.codes is None:
            return ids
        if self.padding_id is None:
            return self.codes(ids)
        return self.codes(ids.clamp(min=0)).where(ids >= 0, PADDING)

    @classmethod
    @torch.no_grad()
    def fitted(cls, trained: TrainedTable, choice: Choice, *, sparse: bool = False) -> Self:
        """The table that comes nearest to a trained one, as chosen: the weighted SVD, band by band."""
        codes = None if choice.bands is None else RankCode.of(choice.bands)
        table = cls(
            choice.plan,
            codes=codes,
            padding_id=trained.padding_id,
            sparse=sparse,
            dtype=trained.weight.dtype,
            device=trained.weight.device,
        )
        ids = np.arange(trained.rows) if codes is None else codes.ids().numpy()
        tables = table.embedding.tables()
        for block in table.embedding.packing.blocks:
            _fill(tables.of_block(block), block, trained, ids[block.start : block.end])
        return table


def id_map_bytes(rows: int, bands: int, of_rows: int) -> int:
    """What `choose` counts for the ranks of the ids of a field."""
    return rank_code_nbytes(rows, bands, of_rows=of_rows)


def _fill(table: Table, block: StoredBlock, trained: TrainedTable, ids: np.ndarray) -> None:
    """Set a block to the nearest vectors of its width: main directions, the mean, or all as it is."""
    dim, directions = block.storage.dim, None
    if dim < trained.width:
        moments = trained.moments(ids)
        if dim == 0:
            mean = moments.first / (moments.mass or 1.0)
            table.fill_rows(block, 0, torch.from_numpy(mean)[None])
            return
        directions, projection = _directions(moments, trained.metric_root, dim)
        table.parts(block)["projection"].copy_(torch.from_numpy(projection))
    for here, vectors in trained.read(ids):
        narrow = vectors if directions is None else vectors @ directions
        table.fill_rows(block, here.start, torch.from_numpy(narrow))


def _directions(moments: Moments, root: MetricRoot | None, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """What turns vectors into stored rows, (D, dim), and these into vectors, (dim, D)."""
    _, vectors = np.linalg.eigh(moments.seen_by(root).second)  # rising
    main = vectors[:, -dim:][:, ::-1]
    if root is None:
        return main, main.T.copy()
    return root.root @ main, main.T @ root.inverse
