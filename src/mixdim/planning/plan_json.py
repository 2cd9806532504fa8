"""A plan as JSON. Knows nothing about files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mixdim._util.arguments import whole_number
from mixdim.planning.feature import Block, Feature
from mixdim.storages import storage_from_json

if TYPE_CHECKING:
    from mixdim.planning.plan import Plan

FORMAT, VERSION = "mixdim.plan", 4


class Parts(NamedTuple):
    """What a document says of a plan."""

    base_dim: Any
    provenance: Any
    features: tuple[Feature, ...]
    orders: tuple[tuple[str, np.ndarray], ...]
    num_parameters: Any


def to_document(plan: Plan, orders: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """What JSON says of a plan, with these orders; numbers that follow from others are for readers."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "base_dim": plan.base_dim,
        "provenance": dict(plan.provenance),
        "temperature": plan.temperature,
        "num_parameters": plan.num_parameters,
        "features": [
            {
                "name": feature.name,
                "rows": feature.rows,
                "blocks": [
                    {
                        "start": block.start,
                        "size": block.size,
                        "storage": block.storage.to_json(),
                        "row_prob": block.row_prob,
                    }
                    for block in feature.blocks
                ],
                "requested_bands": feature.requested_bands,
            }
            for feature in plan.features
        ],
        "orders": {name: order.tolist() for name, order in orders.items()},
    }


def write(document: dict[str, Any]) -> str:
    """JSON with a line a number, except for orders, which have one each."""
    orders = {name: json.dumps(order) for name, order in document["orders"].items()}
    text = json.dumps({**document, "orders": dict.fromkeys(orders, "")}, indent=2)
    if not orders:
        return text + "\n"
    head, _, _ = text.rpartition('"orders": {')
    lines = ",\n".join(f"    {json.dumps(name)}: {order}" for name, order in orders.items())
    return f'{head}"orders": {{\n{lines}\n  }}\n}}\n'


def parse(text: str | bytes) -> dict[str, Any]:
    """Read the JSON of a plan of a version that is known."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:  # also text that is not UTF-8
        raise ValueError(f"not a plan: {error}") from None
    if not isinstance(document, dict):
        raise ValueError(f"not a plan: expected a JSON object, got {type(document).__name__}")
    if document.get("format") != FORMAT:
        raise ValueError(f'not a plan: its "format" must be {FORMAT!r}')
    if type(document.get("version")) is not int or document["version"] != VERSION:
        raise ValueError(
            f"it is a plan of version {document.get('version')!r}, and this mixdim reads version "
            f"{VERSION}: make the plan again"
        )
    return document


def parts_of(document: Mapping[str, Any], beside: Mapping[str, np.ndarray] | None = None) -> Parts:
    """What a document says of a plan; `beside` are the orders of the file that it names, if any."""
    if "orders_file" in document and beside is None:
        raise ValueError(
            f"the orders of this plan are in the file {document['orders_file']!r} beside its own: "
            "read it with mixdim.Plan.load(path)"
        )
    try:
        features = tuple(_feature(entry) for entry in _objects(document, "features"))
        orders = _orders(document, features, beside or {})
        parts = (document["base_dim"], document["provenance"], features, tuple(orders.items()))
        return Parts(*parts, document["num_parameters"])
    except KeyError as error:
        raise ValueError(f"malformed plan: {error.args[0]!r} is missing") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"malformed plan: {error}") from None


def _checked_order(given: Any, name: str, rows: Any) -> np.ndarray:
    """Refuse an order that is not each id once; returned as small as it can be."""
    order, rows = np.asarray(given), whole_number(rows, f"rows of feature {name!r}")
    if order.dtype.kind not in "iu" or order.shape != (rows,):
        raise ValueError(f"the order of feature {name!r} must list its {rows} ids")
    if order.min() < 0 or order.max() >= rows or (np.bincount(order, minlength=rows) != 1).any():
        raise ValueError(f"the order of feature {name!r} must list each of its ids once")
    return order.astype(np.int32 if rows <= np.iinfo(np.int32).max else np.int64)


def _objects(parent: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    entries = parent[key]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise TypeError(f"{key!r} must be a list of objects")
    return entries


def _feature(entry: dict[str, Any]) -> Feature:
    blocks = tuple(
        Block(block["start"], block["size"], storage_from_json(block["storage"]), block["row_prob"])
        for block in _objects(entry, "blocks")
    )
    return Feature(entry["name"], entry["rows"], blocks, entry["requested_bands"])


def _orders(
    document: Mapping[str, Any], features: tuple[Feature, ...], beside: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    given, rows = document["orders"], {feature.name: feature.rows for feature in features}
    if not isinstance(given, dict):
        raise TypeError("'orders' must be an object")
    for name in given:
        if name not in rows:
            raise ValueError(f"it has the order of {name!r}, which is none of its features")
    everything = {**given, **beside}
    return {name: _checked_order(order, name, rows[name]) for name, order in everything.items()}
