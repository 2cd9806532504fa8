"""How a block is stored: one file a storage, with its value for plans and its table for layers.

A storage knows its JSON, its cost and how its rows become vectors, in PyTorch and in an ONNX graph that
it is handed, and nothing about ids, plans or models. A new one is a file here, a line in STORAGES, and a
class in tests/storages that inherits the contract (tests/storage_contract.py).
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from mixdim.storages.hashed import Hashed
from mixdim.storages.quotient_remainder import QuotientRemainder
from mixdim.storages.robe import Robe
from mixdim.storages.rows import Rows
from mixdim.storages.storage import Cost, Storage, check_storage

__all__ = [
    "STORAGES",
    "Cost",
    "Hashed",
    "QuotientRemainder",
    "Robe",
    "Rows",
    "Storage",
    "check_storage",
    "storage_from_json",
]

STORAGES: dict[str, type[Storage]] = {
    storage.kind: storage for storage in (Rows, Hashed, QuotientRemainder, Robe)
}


def storage_from_json(entry: Any) -> Storage:
    """Read a storage that `to_json` wrote; anything else is a ValueError or a TypeError that says why.

    >>> storage_from_json({"kind": "hashed", "dim": 4, "buckets": 100, "hashes": 1})
    Hashed(dim=4, buckets=100, hashes=1)
    """
    if not isinstance(entry, dict):
        raise TypeError(f"a storage must be an object, got {entry!r}")
    if entry.get("kind") not in STORAGES:
        known = ", ".join(map(repr, STORAGES))
        raise ValueError(f"this mixdim knows the storages {known}, got {entry.get('kind')!r}")
    storage = STORAGES[entry["kind"]]
    wanted, given = {field.name for field in fields(storage)}, entry.keys() - {"kind"}
    needed = wanted - storage.not_in_json
    if not needed <= given <= wanted:
        raise ValueError(
            f"a storage of kind {storage.kind!r} must have {', '.join(sorted(needed))}, "
            f"got {', '.join(sorted(given)) or 'nothing'}"
        )
    return storage(**{name: entry[name] for name in given})
