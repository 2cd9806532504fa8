"""What a plan must be for a layer to be built from it. Knows nothing about how plans are made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mixdim._util.arguments import WrongTypeError, unit_interval, whole_number
from mixdim.planning.feature import UnknownFeatureError, check_feature

if TYPE_CHECKING:
    from mixdim.planning.plan import Plan


def _check_rule(provenance: Any) -> None:
    """Refuse what does not name a rule, and arguments that JSON cannot hold or that are missing."""
    if not isinstance(provenance, Mapping) or not isinstance(provenance.get("rule"), str):
        raise WrongTypeError(f'provenance must be a mapping with a "rule", got {provenance!r}')
    try:
        json.dumps(dict(provenance), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"provenance must be values of JSON: {error}") from None
    if provenance["rule"] == "power_law" or provenance.get("temperature") is not None:
        unit_interval(provenance.get("temperature"), "temperature")
    if provenance["rule"] in ("by_hand", "quantized", "folded") and "was" in provenance:
        _check_rule(provenance["was"])


def check_plan(plan: Plan) -> None:
    """Refuse a plan that no layer can be built from."""
    base_dim = whole_number(plan.base_dim, "base_dim")
    _check_rule(plan.provenance)
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
