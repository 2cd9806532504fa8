"""What names a run: a digest of all that decides its result. Knows nothing about files of records.

Keys that were written once stay what they are, also when options are added, so that no finished run is
made again. So a key hashes every option that there was when the first keys were written, and of those
that were added later the ones that make a run differ from all the runs before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mixdim.experiments.runs.config import RunConfig

# The options of mixdim 0.1: its keys hash all of them, also those that are None. Never to be changed.
FIRST_OPTIONS = (
    *("data", "model", "temperature", "base_dim", "budget", "bands", "rounding", "plan", "preset"),
    *("optimizer", "lr", "batch_size", "epochs", "patience", "evaluations_per_epoch"),
    *("checkpoint_every", "shuffle", "seed", "slice_by", "init", "bottom", "top", "hidden", "mean"),
    *("biases", "tensorboard"),
)
# Every option that was added since, and what runs did before there was such an option, whatever its
# default is by now: {"dropout": 0.0}. A new option of `RunConfig` needs a line here, which then stays.
LATER_OPTIONS: dict[str, Any] = {}
DECIDE_NOTHING = ("data", "checkpoint_every", "tensorboard")  # of the data, the fingerprint decides


def record_key(config: RunConfig, fingerprint: str, *, model_budget: int | None = None) -> str:
    """Name a run by what decides its result: an effective config and the fingerprint of the data.

    Where the data lies, how often to checkpoint and TensorBoard decide nothing; of a plan's file its
    content does. `model_budget` is for a budget that no base_dim meets, so that the config has none.

    >>> from dataclasses import replace
    >>> config = RunConfig(data="here", model="mf", temperature=0.3, base_dim=8).effective("rating")
    >>> record_key(config, "f00d")
    '4e9996e41ea0ecc518130345e7270ad3'
    >>> record_key(config, "f00d") == record_key(replace(config, data="there"), "f00d")
    True
    >>> record_key(config, "f00d") == record_key(replace(config, seed=1), "f00d")
    False
    """
    options = comparable(asdict(config))
    decisive = {**dict.fromkeys(FIRST_OPTIONS), **options, **dict.fromkeys(DECIDE_NOTHING)}
    if config.plan is not None:
        decisive["plan"] = hashlib.blake2b(Path(config.plan).read_bytes(), digest_size=16).hexdigest()
    if model_budget is not None:
        decisive["model_budget"] = model_budget
    page = canonical({"config": decisive, "data": fingerprint})
    return hashlib.blake2b(page.encode(), digest_size=16).hexdigest()


def comparable(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a config without those added later that say nothing new.

    A record from before an option was added has no value of it; a run of a model that does not have the
    option has None. Both did the same as a run that has the value from before.
    """
    nothing_new = {
        name
        for name, before in LATER_OPTIONS.items()
        if config.get(name) is None or canonical(config[name]) == canonical(before)
    }
    return {name: value for name, value in config.items() if name not in nothing_new}


def canonical(value: Any) -> str:
    """A value as JSON that is the same for equal values, whatever the order of their keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
