"""What names a run: a digest of all that decides its result. Knows nothing about files of records.

A key hashes the options that differ from what runs did before there was such an option. So a new option
of `RunConfig` changes no key of runs that do not use it: it needs a line in ABSENT.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mixdim.planning.plan import Plan
from mixdim.runs.config import RunConfig

# What a run does that says nothing of an option, whatever the option's default is by now; None if it is
# not here.
ABSENT: dict[str, Any] = {
    "unknown_dropout": False,
    "min_dim": 1,
    "weight_decay": 0.0,
    "first_order": False,
    "from_baseline": False,
    "bits": 32,
}
DECIDE_NOTHING = ("data", "checkpoint_every", "tensorboard")  # of the data, the fingerprint decides


def record_key(config: RunConfig, fingerprint: str, *, model_budget: int | None = None) -> str:
    """Name a run by what decides its result: an effective config and the fingerprint of the data.

    Where the data lies, how often to checkpoint and TensorBoard decide nothing; of a plan's file its
    content does. `model_budget` is for a budget that no base_dim meets, so that the config has none.

    >>> from dataclasses import replace
    >>> config = RunConfig(data="here", model="mf", preset="paper-cf", temperature=0.3, base_dim=8)
    >>> config = config.effective("rating")
    >>> record_key(config, "f00d") == record_key(replace(config, data="there"), "f00d")
    True
    >>> record_key(config, "f00d") == record_key(replace(config, seed=1), "f00d")
    False
    """
    options = comparable(asdict(config))
    decisive = {name: value for name, value in options.items() if name not in DECIDE_NOTHING}
    if config.plan is not None:
        decisive["plan"] = _digest(Plan.load(Path(config.plan)).to_json())
    if model_budget is not None:
        decisive["model_budget"] = model_budget
    return _digest(canonical({"config": decisive, "data": fingerprint}))


def comparable(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a config that say something: those that are not as if they were absent.

    A record from before an option was added has no value of it; a run of a model that does not have the
    option has None. Both did the same as a run that has the value from before.
    """
    return {
        name: value
        for name, value in config.items()
        if value is not None and canonical(value) != canonical(ABSENT.get(name))
    }


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def canonical(value: Any) -> str:
    """A value as JSON that is the same for equal values, whatever the order of their keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
