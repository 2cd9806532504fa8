"""A model's tables swapped for small ones that start from what was learned: all of them or none.

Knows nothing about how widths are chosen, nor how a small table is laid out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mixdim._util.arguments import WrongTypeError, nonnegative_vector, whole_number
from mixdim.compression.exclusive import exclusive, untouched
from mixdim.compression.find import (
    ModelTable,
    by_any_name,
    owners_of,
    put_in_place,
    tables_of,
    why_not,
)
from mixdim.compression.observe import Observed
from mixdim.compression.references import RemovedTables, StaleReferences, check_movable, move
from mixdim.compression.replacements import (
    CompressedEmbedding,
    CompressedEmbeddingBag,
    stand_in_for,
)
from mixdim.compression.result import Compression, TableOutcome
from mixdim.layer.embedding import MixedDimEmbedding
from mixdim.layer.idmap import IdMap
from mixdim.layer.rank_code import rank_code_nbytes
from mixdim.layer.replan import replan
from mixdim.planning.budget import BudgetTooSmallError, parse_bytes
from mixdim.planning.from_tables import bits_to_offer, choose
from mixdim.planning.table_options import Choice
from mixdim.planning.trained_table import TrainedTable

SHARE = re.compile(r"\s*(\d+)\s*/\s*(\d+)\s*")
UNSEEN = "none of its rows was asked for (reading its weight is not counted)"
ROOM_ENOUGH = "the budget has room for it as it is"


class Made(NamedTuple):
    """What is to take the place of a table, and how much of it was kept."""

    table: ModelTable
    stand_in: CompressedEmbedding | CompressedEmbeddingBag
    kept_energy: float


@torch.inference_mode(False)  # what is made there could never be trained
def compress(
    model: nn.Module,
    stats: Mapping[str, Any],
    budget: str | int,
    *,
    bands: int = 8,
    min_dim: int = 0,
    bits: int | Literal["auto"] = "auto",
    fields: Mapping[str, Sequence[int]] | Sequence[int] | None = None,
    optimizers: Sequence[Optimizer] = (),
    echo: Callable[[str], None] | None = print,
) -> Compression:
    """Swap a model's embedding tables in place for small ones fitted to it.

    The model works at once, without training. Either all of it is done or, after an error, nothing.

    - `stats`: how often each row is asked for, by the name of its table: what `mixdim.observe` returned,
      or counts of your own. Tables without any are left as they are.
    - `budget`: "1/8" is a share of what the tables that can be compressed take now. Bytes, as "4MB" or a
      whole number, are for all tables of the model, those that are refused included at their full size.
    - `bands`: into how many bands of popularity a table is cut at most; 1 for small tables whose every
      row is scored.
    - `min_dim`: 0 lets all rows of a band share one row.
    - `bits`: "auto" chooses how many bits each direction of a band is kept in, 0 to 8. One number, 1 to
      8, is for all of them. The tables are then not to be trained: for that give 32, which keeps float32
      and chooses widths alone.
    - `fields`: the sizes of fields that share one table behind offsets, by the name of the table, or for
      the only table: each field is cut on its own.
    - `optimizers`: those that are to go on with the new parameters; their state of old tables is lost.
    - `echo` gets the table of what was done; None prints nothing.

    Nobody may use the model on another thread meanwhile: that is an error if it is seen.

    >>> import torch
    >>> model = nn.Sequential(nn.Embedding(1000, 16), nn.Linear(16, 1))
    >>> result = compress(model, {"0": range(1000)}, budget="1/8", echo=None)
    >>> result.bytes_before, result.bytes_after <= 64_000 / 8, model(torch.tensor([999])).shape
    (64000, True, torch.Size([1, 1]))
    """
    check_movable(optimizers)
    min_dim = whole_number(min_dim, "min_dim", at_least=0)
    options = {
        "bands": bands,
        "min_dim": min_dim,
        "bits": bits_to_offer(bits if isinstance(bits, str) else [bits]),
    }
    if bits == "auto" and min_dim > 1:
        raise ValueError(f"min_dim must be 0 or 1 with bits='auto', got {min_dim}")
    tables_of(model)  # refuses what is no model, before it is remembered as one
    with exclusive(model):
        outcomes, gone, found = _compress(model, stats, budget, fields, optimizers, options)
    # Here nothing of this module refers to old tables any more: who else does?
    elsewhere = tuple(gone.held_elsewhere(explained=found.tables))
    result = Compression(outcomes, (*found.stale, *elsewhere), found.optimizers, len(optimizers))
    if echo is not None:
        echo(str(result))
    return result


def _compress(
    model: nn.Module,
    stats: Mapping[str, Any],
    budget: str | int,
    fields: Mapping[str, Sequence[int]] | Sequence[int] | None,
    optimizers: Sequence[Optimizer],
    options: dict[str, Any],
) -> tuple[tuple[TableOutcome, ...], RemovedTables, StaleReferences]:
    tables = tables_of(model)
    counts, sizes = _counts(tables, stats), _fields(tables, fields)
    owners = owners_of(model)
    reasons = {table.name: why_not(table, owners) or _unseen(table, counts) for table in tables}
    refused = {name: reason for name, reason in reasons.items() if reason is not None}
    wanted = [table for table in tables if table.name not in refused]
    if not wanted:
        listed = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
        raise ValueError(f"no table of the model can be compressed: {listed}")
    metrics = stats.metrics if isinstance(stats, Observed) else {}
    with untouched(wanted):
        trained = [
            TrainedTable(
                table.name,
                table.module.weight.detach(),
                counts[table.name],
                fields=sizes.get(table.name, ()),
                metric=metrics.get(table.name),
                padding_id=table.module.padding_idx,
            )
            for table in wanted
        ]
        made = _make(wanted, trained, _share(budget, tables, wanted), options)
    outcomes = tuple(_outcome(table, made.get(table.name), refused) for table in tables)
    gone = RemovedTables({one.table.name: one.table.module for one in made.values()})
    found = gone.found_in(model, moved=optimizers)
    _swap(model, made.values(), optimizers)  # the last that can fail
    return outcomes, gone, found


def _make(
    wanted: Sequence[ModelTable], trained: Sequence[TrainedTable], share: Share, options: dict[str, Any]
) -> dict[str, Made]:
    """Choose and fit a small table for each, where that is smaller."""
    made, widest = {}, max(own.width for own in trained)
    try:
        chosen = choose(
            trained,
            share.available,
            bands=options["bands"],
            dims=range(options["min_dim"], widest + 1),
            bits=options["bits"],
            id_map_bytes=rank_code_nbytes,
        )
    except BudgetTooSmallError as error:
        if not share.kept or error.least is None:
            raise
        least = error.least + share.kept
        raise BudgetTooSmallError(
            f"budget of {share.requested:,} bytes is too small: the smallest for all tables is "
            f"{least:,} "
            f"bytes, {share.kept:,} of them for those that stay as they are"
        ) from None
    for table, own, choice in zip(wanted, trained, chosen, strict=True):
        if choice.nbytes < table.nbytes:
            small = small_table(own, choice, sparse=table.module.sparse)
            small.requires_grad_(table.module.weight.requires_grad)
            made[table.name] = Made(table, stand_in_for(table.module, small), choice.kept_energy)
    return made


def small_table(trained: TrainedTable, choice: Choice, *, sparse: bool = False) -> MixedDimEmbedding:
    """The layer that comes nearest to a trained table, stored as chosen; it takes the table's ids."""
    ids = IdMap.identity(rows := {trained.name: trained.rows})
    if choice.bands is not None:
        ids = IdMap.packed(rows, {trained.name: choice.bands})
    layer = replan(
        trained.weight,
        choice.plan,
        counts=trained.row_probs,
        metric=None if trained.metric is None else torch.from_numpy(trained.metric),
        ids=ids,
        padding_id=trained.padding_id,
        sparse=sparse,
    ).layer
    assert isinstance(layer, MixedDimEmbedding)
    return layer


def _swap(model: nn.Module, made: Iterable[Made], optimizers: Sequence[Optimizer]) -> None:
    """Put all stand-ins in place, wherever a table is registered; after an error, everything back."""
    done: list[tuple[str, nn.Module]] = []
    try:
        for table, stand_in, _ in made:
            for name in table.names:
                done.append((name, table.module))
                put_in_place(model, name, stand_in)
        for optimizer in optimizers:
            move(optimizer, {one.table.module.weight: [*one.stand_in.parameters()] for one in made})
    except BaseException:
        for name, module in done:
            put_in_place(model, name, module)
        raise


def _outcome(table: ModelTable, made: Made | None, refused: Mapping[str, str]) -> TableOutcome:
    facts = (table.name, table.rows, table.width, table.nbytes)
    if made is None:
        return TableOutcome(*facts, table.nbytes, refused=refused.get(table.name, ROOM_ENOUGH))
    return TableOutcome(
        *facts, made.stand_in.nbytes, plan=made.stand_in.plan, kept_energy=made.kept_energy
    )


def _counts(tables: list[ModelTable], stats: Any) -> dict[str, np.ndarray]:
    """Counts by the first name of their table; what stands for no id has none."""
    if not isinstance(stats, Mapping):
        raise WrongTypeError(
            "stats must be what mixdim.observe returned, or counts by the name of their table, "
            f"got {type(stats).__name__}"
        )
    rows, padding = {}, {}
    for table in tables:
        rows[table.name], padding[table.name] = table.rows, table.module.padding_idx
    counts = {}
    for name, given in by_any_name(tables, stats, "stats").items():
        if not rows[name]:
            continue
        values = _as_array(given) if isinstance(given, Tensor) else given
        vector = nonnegative_vector(values, f"counts of {name}")
        if len(vector) != rows[name]:
            raise ValueError(
                f"counts of {name} must have a number for each of its {rows[name]:,} rows, "
                f"got {len(vector):,}"
            )
        if padding[name] is not None:
            vector = vector.copy()
            vector[padding[name]] = 0
        counts[name] = vector
    return counts


def _as_array(values: Tensor) -> np.ndarray:
    # NumPy does not know bfloat16.
    return (values.double() if values.is_floating_point() else values).numpy(force=True)


def _unseen(table: ModelTable, counts: Mapping[str, np.ndarray]) -> str | None:
    if table.name not in counts:
        return "there are no counts for it"
    return None if counts[table.name].any() else UNSEEN


def _fields(tables: list[ModelTable], fields: Any) -> dict[str, tuple[int, ...]]:
    """The sizes of fields by the first name of their table."""
    if fields is None:
        return {}
    if not isinstance(fields, Mapping):
        if len(tables) > 1:
            raise ValueError(f"fields must be given by table: the model has {len(tables)} tables")
        fields = {tables[0].name: fields}
    rows, sizes = {table.name: table.rows for table in tables}, {}
    for name, given in by_any_name(tables, fields, "fields").items():
        if not isinstance(given, Iterable):
            raise WrongTypeError(f"fields of {name} must be sizes, such as [6040, 3706], got {given!r}")
        sizes[name] = tuple(whole_number(size, f"a field of {name}") for size in given)
        if sum(sizes[name]) != rows[name]:
            raise ValueError(
                f"fields of {name} must add up to its {rows[name]:,} rows, got {sum(sizes[name]):,}"
            )
    return sizes


class Share(NamedTuple):
    """Bytes that the tables to compress may take together, beside what is kept of the same budget."""

    available: int
    kept: int
    requested: int


def _share(budget: Any, tables: Sequence[ModelTable], wanted: Sequence[ModelTable]) -> Share:
    full = sum(table.nbytes for table in wanted)
    if (share := share_of(budget, full)) is not None:
        return Share(max(share, 1), 0, share)
    requested = parse_bytes(budget) if isinstance(budget, str) else whole_number(budget, "budget")
    kept = sum(table.nbytes for table in tables) - full
    return Share(max(requested - kept, 1), kept, requested)


def share_of(budget: Any, full: int) -> int | None:
    """The bytes that a share such as "1/8" allows of what something takes; None if it is none.

    >>> share_of("1/8", 64_000), share_of("4MB", 64_000)
    (8000, None)
    """
    if not isinstance(budget, str) or not {"/", "%"} & set(budget):
        return None
    found = SHARE.fullmatch(budget)
    if found is None:
        raise ValueError(f"budget must be bytes such as '4MB' or a share such as '1/8', got {budget!r}")
    part, whole = int(found[1]), int(found[2])
    if not 0 < part <= whole:
        raise ValueError(f"budget must be a share above 0 and at most 1, got {budget!r}")
    return full * part // whole
