"""How a block is stored, as a value: its JSON and its cost. Knows nothing about tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from mixdim._util.arguments import WrongTypeError, whole_number

if TYPE_CHECKING:
    from mixdim.storages.table import Table


FLOAT_BYTES = 4  # of a number in float32


class Cost(NamedTuple):
    """Trained parameters in tables and in projections, and bytes that are kept and not trained.

    `shared` are the parameters of arrays that all blocks of a group share: a plan counts each array
    once, a block does not count it.
    """

    table: int
    projection: int
    held_bytes: int = 0
    shared: int = 0

    @property
    def parameters(self) -> int:
        """All that training changes."""
        return self.table + self.projection + self.shared

    def __repr__(self) -> str:
        named = {name: number for name, number in self._asdict().items() if name != "shared" or number}
        return f"Cost({', '.join(f'{name}={number}' for name, number in named.items())})"


@dataclass(frozen=True)
class Storage(ABC):
    """How the rows of a block are stored: each as `dim` numbers, lifted to base_dim unless that is dim.

    A storage is a frozen dataclass; its fields are its JSON. `kind` names it there.
    """

    dim: int

    kind: ClassVar[str]
    least_dim: ClassVar[int] = 1
    not_in_json: ClassVar[frozenset[str]] = frozenset()  # fields that JSON has unless they are false

    def __post_init__(self) -> None:
        for field in fields(self):  # numpy's whole numbers become Python's: JSON knows no others
            at_least = self.least_dim if field.name == "dim" else 1
            number = whole_number(getattr(self, field.name), field.name, at_least=at_least)
            object.__setattr__(self, field.name, number)

    @property
    @abstractmethod
    def table_type(self) -> type[Table]:
        """What a layer makes of all blocks of one `group`."""

    @property
    @abstractmethod
    def group(self) -> str:
        """Blocks of one group share a table; parameters are named by it."""

    @abstractmethod
    def stored_rows(self, size: int) -> int:
        """How many stored rows a block of `size` rows is kept in."""

    @property
    def least_bits(self) -> int:
        """The bits of a number that is kept in the fewest."""
        return 32

    @property
    def is_quantized(self) -> bool:
        """Whether its numbers have fewer than 32 bits. They are held, made from what was trained."""
        return self.least_bits < 32

    @property
    def is_trained(self) -> bool:
        """Whether training changes its numbers."""
        return not self.is_quantized

    @property
    def has_own_rows(self) -> bool:
        """Whether each row of a block has numbers of its own."""
        return False

    @property
    def is_shardable(self) -> bool:
        """Whether TorchRec can hold it."""
        return False

    @property
    def order(self) -> tuple[bool, bool, int, str]:
        """Where its group stands among those of a layer."""
        return (True, self.dim > 0, -self.dim, self.group)

    def trainable(self) -> Storage:
        """The storage that is trained where this one is served: itself, but for fewer bits."""
        return self

    def quantized(self, bits: int) -> Storage:
        """The same in fewer bits a number; itself where it is not known how."""
        return self

    def width(self, base_dim: int) -> int:
        """How many numbers a stored row has."""
        return self.dim

    def is_lifted(self, base_dim: int) -> bool:
        """Whether a stored row is multiplied by a projection: at full width, it needs none."""
        return self.width(base_dim) < base_dim

    @property
    def shared_parameters(self) -> int:
        """Parameters of the array that all blocks of the group share, whatever their feature."""
        return 0

    @property
    def gradient_rows_per_id(self) -> int | None:
        """Rows of a row-sparse gradient for each id; None where equal rows are added up at once."""
        return None

    def cost(self, size: int, base_dim: int) -> Cost:
        """What a block of `size` rows costs."""
        return stored_cost(self.stored_rows(size), self.width(base_dim), base_dim)

    def describe(self, size: int) -> str:
        """How a block of `size` rows is stored, for a table's cell."""
        return str(self.dim)

    def to_json(self) -> dict[str, Any]:
        """The kind and the fields."""
        own = {name: v for name, v in asdict(self).items() if v or name not in self.not_in_json}
        return {"kind": self.kind, **own}


def stored_cost(rows: Any, dim: Any, base_dim: int) -> Any:
    """The cost of `rows` stored rows of `dim` numbers with their projection; arrays for many blocks.

    A block of full width needs no projection.

    >>> stored_cost(rows=100, dim=4, base_dim=16), stored_cost(rows=100, dim=16, base_dim=16)
    (Cost(table=400, projection=64, held_bytes=0), Cost(table=1600, projection=0, held_bytes=0))
    """
    return Cost(rows * dim, dim * base_dim * (dim < base_dim))


def check_storage(storage: object, name: str) -> None:
    """Refuse what is no storage."""
    if not isinstance(storage, Storage):
        raise WrongTypeError(f"{name} must be a mixdim.Rows or another storage, got {storage!r}")
