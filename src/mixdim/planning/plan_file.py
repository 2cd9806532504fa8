"""A plan as a file: JSON, and large orders of ids beside it. Knows nothing about what a plan means."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from mixdim._util.files import becomes_a_file, follow_links, write_atomically
from mixdim.planning.plan_json import Parts, parse, parts_of, to_document, write

if TYPE_CHECKING:
    from mixdim.planning.plan import Plan

MOST_IDS_IN_JSON = 10_000
ORDERS_FILE = re.compile(r"[^/\\\0]{1,200}\.orders-[0-9a-f]{16}\.safetensors")


def save_document(plan: Plan, orders: Mapping[str, np.ndarray], path: Path) -> None:
    """Write a plan's JSON; if its orders have many ids, these before it, into a file of their own.

    That file has the plan's name and its own checksum in its name: so it is nobody else's, and whenever
    writing ends, the JSON that is there has its orders. What is no file, such as a pipe, gets it all.
    """
    document = to_document(plan, orders)
    if not becomes_a_file(path):
        write_atomically(path, write(document))
        return
    place = follow_links(path)
    if sum(map(len, orders.values())) <= MOST_IDS_IN_JSON:
        write_atomically(path, write(document))
        _remove_orders(place, but=None)
        return
    numbers = {name: str(number) for number, name in enumerate(plan)}
    content = save({numbers[name]: np.ascontiguousarray(order) for name, order in orders.items()})
    checksum = _checksum(content)
    name = f"{_own_prefix(place)}{checksum[:16]}.safetensors"
    document |= {"orders": {}, "orders_file": name, "orders_checksum": checksum}
    write_atomically(place.with_name(name), content)
    write_atomically(path, write(document))
    _remove_orders(place, but=name)


def load_document(path: Path) -> Parts:
    """Read a plan's JSON, and the orders beside it."""
    document = parse(path.read_bytes())
    if "orders_file" not in document:
        return parts_of(document)
    name = document["orders_file"]
    if not isinstance(name, str) or not ORDERS_FILE.fullmatch(name):
        raise ValueError(f"malformed plan: orders_file must be a file beside it, got {name!r}")
    beside = follow_links(path).with_name(name)
    if not beside.is_file():
        raise ValueError(f"its orders of ids are missing: {beside} should be beside it")
    content = beside.read_bytes()
    if _checksum(content) != document.get("orders_checksum"):
        raise ValueError(f"{beside} is damaged, or belongs to another plan: its checksum is wrong")
    return parts_of(document, _read_orders(content, document, beside))


def _read_orders(content: bytes, document: Mapping[str, Any], beside: Path) -> dict[str, np.ndarray]:
    """By feature name, as whoever wrote the file says; `parts_of` checks them."""
    names = [feature.name for feature in parts_of(document, {}).features]
    try:
        orders = {names[int(number)]: order for number, order in load(content).items()}
    except (SafetensorError, ValueError, TypeError, KeyError, IndexError) as error:
        raise ValueError(f"{beside} is no file of orders: {error}") from None
    if not orders:
        raise ValueError(f"{beside} has no orders")
    return orders


def _own_prefix(path: Path) -> str:
    """How the names of the files of orders begin that are this plan's."""
    return f"{path.name[:180]}.orders-"


def _remove_orders(path: Path, *, but: str | None) -> None:
    """Remove the orders of the plans that were in this file before."""
    with suppress(OSError):
        for other in path.parent.iterdir():
            is_own = other.name.startswith(_own_prefix(path)) and ORDERS_FILE.fullmatch(other.name)
            if is_own and other.name != but:
                other.unlink()


def _checksum(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
