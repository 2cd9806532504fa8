"""The table that stands in for a trained one: ids to ranks, ranks to vectors. Knows no models."""

from __future__ import annotations

import copy
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from mixdim.compression.choosing import Chosen
from mixdim.compression.subject import MetricRoot, Moments, Subject
from mixdim.kernels.ids import require_integers
from mixdim.layer.embedding import MixedDimEmbedding
from mixdim.layer.idmap import checked_ids
from mixdim.layer.paths import look_up_bags
from mixdim.layer.rank_code import RankCode, Shape
from mixdim.planning.plan import Plan
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

    >>> subject = Subject("item", torch.randn(100, 8), np.arange(100))
    >>> from mixdim.compression.choosing import choose
    >>> table = CompressedTable.fitted(subject, choose([subject], budget=1000)[0])
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
            ids={},
            padding_id=None if padding_id is None else PADDING,
            sparse=sparse,
            dtype=dtype,
            device="meta",  # nothing is drawn there
        )
        self.embedding.to_empty(device=device)
        with torch.no_grad():
            for tensor in self.embedding.state_dict().values():
                tensor.zero_()
        # Moved and converted as a weight is: quantized tables have types of their own.
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
        ids = checked_ids(ids, features[0], num_rows, self.padding_id, layer.ids.names)
        if self.codes is None:
            return ids
        if self.padding_id is None:
            return self.codes(ids)
        return self.codes(ids.clamp(min=0)).where(ids >= 0, PADDING)

    @classmethod
    @torch.no_grad()
    def fitted(cls, subject: Subject, chosen: Chosen, *, sparse: bool = False) -> Self:
        """The table that comes nearest to a trained one, as chosen: the weighted SVD, band by band."""
        table = cls(
            chosen.plan,
            codes=copy.deepcopy(chosen.codes),
            padding_id=subject.padding_id,
            sparse=sparse,
            dtype=subject.weight.dtype,
            device=subject.weight.device,
        )
        ids = np.arange(subject.rows) if chosen.codes is None else chosen.codes.ids().numpy()
        tables = table.embedding.tables()
        for block in table.embedding.layout.blocks:
            _fill(tables.of_block(block), block, subject, ids[block.start : block.end])
        return table


def _fill(table: Table, block: StoredBlock, subject: Subject, ids: np.ndarray) -> None:
    """Set a block to the nearest vectors of its width: main directions, the mean, or all as it is."""
    dim, directions = block.storage.dim, None
    if dim < subject.width:
        moments = subject.moments(ids)
        if dim == 0:
            table.fill_rows(block, 0, (moments.first / (moments.mass or 1.0))[None])
            return
        directions, projection = _directions(moments, subject.metric_root, dim)
        table.parts(block)["projection"].copy_(projection)
    for here, vectors in subject.read(ids):
        table.fill_rows(block, here.start, vectors if directions is None else vectors @ directions)


def _directions(moments: Moments, root: MetricRoot | None, dim: int) -> tuple[Tensor, Tensor]:
    """What turns vectors into stored rows, (D, dim), and these into vectors, (dim, D)."""
    _, vectors = torch.linalg.eigh(moments.seen_by(root).second)  # rising
    main = vectors[:, -dim:].flip(1)
    if root is None:
        return main, main.t()
    return root.root @ main, main.t() @ root.inverse
