"""What a plan must be for a layer to be built from it. Knows nothing about how plans are made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mixdim._util.arguments import WrongTypeError, unit_interval, whole_number
from mixdim.planning.feature import UnknownFeatureError, check_feature

if TYPE_CHECKING:
    from mixdim.planning.plan import Plan


def _check_rule(made_by: Any) -> None:
    """Refuse what does not name a rule, and arguments that JSON cannot hold or that are missing."""
    if not isinstance(made_by, Mapping) or not isinstance(made_by.get("rule"), str):
        raise WrongTypeError(f'made_by must be a mapping with a "rule", got {made_by!r}')
    try:
        json.dumps(dict(made_by), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"made_by must be values of JSON: {error}") from None
    if made_by["rule"] == "power_law" or made_by.get("temperature") is not None:
        unit_interval(made_by.get("temperature"), "temperature")
    if made_by["rule"] in ("by_hand", "quantized", "folded") and "was" in made_by:
        _check_rule(made_by["was"])


def check_plan(plan: Plan) -> None:
    """Refuse a plan that no layer can be built from."""
    base_dim = whole_number(plan.base_dim, "base_dim")
    _check_rule(plan.made_by)
    if not plan.features:
        raise ValueError("a plan needs at least one feature")
    seen: set[str] = set()
    for feature in plan.features:
        check_feature(feature, base_dim)
        if feature.name in seen:
            raise ValueError(f"feature {feature.name!r} is there twice")
        seen.add(feature.name)
    rows = {feature.name: feature.rows for feature in plan.features}
    for name, order in plan.named_orders:
        if name not in rows:
            raise UnknownFeatureError.among(name, rows)
        if order.shape != (rows[name],):
            raise ValueError(
                f"the order of feature {name!r} must list its {rows[name]} ids, got {len(order)}"
            )
