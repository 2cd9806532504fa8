"""A plan as a file: JSON, and large orders of ids beside it. Knows nothing about what a plan means."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from mixdim.files import follow_links, write_atomically
from mixdim.planning.plan_json import Parts, check_order, parse, parts_of, to_document, write

if TYPE_CHECKING:
    from mixdim.planning.plan import Plan

MOST_IDS_IN_JSON = 10_000


def save_document(plan: Plan, orders: Mapping[str, np.ndarray], path: Path) -> None:
    """Write a plan's JSON; if its orders have many ids, these before it, into a file of their own.

    That file's name has its checksum: so whenever writing ends, the JSON that is there has its orders.
    """
    path = follow_links(path)
    before = _orders_file(path)
    document = to_document(plan, orders)
    if sum(map(len, orders.values())) > MOST_IDS_IN_JSON:
        content = save({name: np.ascontiguousarray(order) for name, order in orders.items()})
        checksum = _checksum(content)
        name = f"{path.stem}.orders-{checksum[:16]}.safetensors"
        document |= {"orders": {}, "orders_file": name, "orders_checksum": checksum}
        write_atomically(path.with_name(name), content)
    write_atomically(path, write(document))
    if before is not None and before != document.get("orders_file"):
        with suppress(OSError):
            path.with_name(before).unlink()


def load_document(path: Path) -> Parts:
    """Read a plan's JSON, and the orders beside it."""
    document = parse(path.read_bytes())
    if "orders_file" not in document:
        return parts_of(document)
    name = document["orders_file"]
    if not isinstance(name, str) or Path(name).name != name:
        raise ValueError(f"malformed plan: orders_file must be a file beside it, got {name!r}")
    beside = follow_links(path).with_name(name)
    if not beside.is_file():
        raise ValueError(f"its orders of ids are missing: {beside} should be beside it")
    content = beside.read_bytes()
    if _checksum(content) != document.get("orders_checksum"):
        raise ValueError(f"{beside} is damaged, or belongs to another plan: its checksum is wrong")
    try:
        orders = load(content)
    except SafetensorError as error:
        raise ValueError(f"{beside} is damaged: {error}") from None
    rows = {feature.name: feature.rows for feature in parts_of(document, {}).features}
    for feature in orders:
        if feature not in rows:
            raise ValueError(f"{beside} has the order of {feature!r}, which is none of its features")
    return parts_of(document, {n: check_order(order, n, rows[n]) for n, order in orders.items()})


def _checksum(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _orders_file(path: Path) -> str | None:
    """The name of the file of orders that a plan's file names, if there is such a plan now."""
    try:
        name = parse(path.read_bytes()).get("orders_file") if path.is_file() else None
    except (OSError, ValueError):
        return None
    return name if isinstance(name, str) and Path(name).name == name else None
