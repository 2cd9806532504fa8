"""What names a run: a digest of all that decides its result. Knows nothing about files of records.

Keys that were written once stay what they are, also when options are added, so that no finished run is
made again. So a key hashes every option that there was when the first keys were written, and of those
that were added later the ones that make a run differ from all the runs before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mixdim.experiments.runs.config import RunConfig
from mixdim.planning.from_spectra import nearest_temperature
from mixdim.planning.plan import Plan
from mixdim.planning.plan_json import parse, to_document
from mixdim.storages import Narrow
from mixdim.training.options import ALIASES

# The options of mixdim 0.1: its keys hash all of them, also those that are None. Never to be changed.
FIRST_OPTIONS = (
    *("data", "model", "temperature", "base_dim", "budget", "bands", "rounding", "plan", "preset"),
    *("optimizer", "lr", "batch_size", "epochs", "patience", "evaluations_per_epoch"),
    *("checkpoint_every", "shuffle", "seed", "slice_by", "init", "bottom", "top", "hidden", "mean"),
    *("biases", "tensorboard"),
)
# Every option that was added since, and what runs did before there was such an option, whatever its
# default is by now: {"dropout": 0.0}. A new option of `RunConfig` needs a line here, which then stays.
LATER_OPTIONS: dict[str, Any] = {
    "unknown_dropout": False,
    "table_lr": None,
    "min_dim": 1,
    "method": None,
    "quantise": None,
    "weight_decay": 0.0,
    "first_order": False,
    "from_baseline": False,
    "distributed": None,
}
# The names that presets had in the first keys.
FIRST_PRESETS = {name: first for first, name in ALIASES.items()}
# What mixdim 0.1 stated as the temperature of a plan, by the rule that made it.
STATED_TEMPERATURE: dict[str, Callable[[Plan], float]] = {
    "power_law": lambda plan: plan.made_by["temperature"],
    "pooled": lambda plan: plan.made_by["temperature"],
    "lifted": lambda plan: 0.0,
    "spectral": nearest_temperature,
}
DECIDE_NOTHING = ("data", "checkpoint_every", "tensorboard")  # of the data, the fingerprint decides


def record_key(config: RunConfig, fingerprint: str, *, model_budget: int | None = None) -> str:
    """Name a run by what decides its result: an effective config and the fingerprint of the data.

    Where the data lies, how often to checkpoint and TensorBoard decide nothing; of a plan's file its
    content does. `model_budget` is for a budget that no base_dim meets, so that the config has none.

    >>> from dataclasses import replace
    >>> config = RunConfig(data="here", model="mf", preset="paper-cf", temperature=0.3, base_dim=8)
    >>> config = config.effective("rating")
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
        decisive["plan"] = _digest(_plan_as_keys_know_it(Path(config.plan)))
    if model_budget is not None:
        decisive["model_budget"] = model_budget
    return _digest(canonical({"config": decisive, "data": fingerprint}).encode())


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
    told = {name: value for name, value in config.items() if name not in nothing_new}
    return told if "preset" not in told else {**told, "preset": _first_name(told["preset"])}


def _first_name(preset: str | None) -> str | None:
    return preset if preset is None else FIRST_PRESETS.get(preset, preset)


def _plan_as_keys_know_it(path: Path) -> bytes:
    """The bytes of a plan as mixdim 0.1 wrote them, which its keys have, if it could write that plan."""
    plan, content = Plan.load(path), path.read_bytes()
    if parse(content)["version"] == 1:
        return content
    of_rule = STATED_TEMPERATURE.get(plan.made_by["rule"])
    is_narrow = all(isinstance(block.storage, Narrow) for block in plan.blocks)
    if of_rule is None or not is_narrow or plan.shuffled_orders:
        return plan.to_json().encode()
    document = to_document(plan, {})
    for feature in document["features"]:
        for block in feature["blocks"]:
            block["dim"] = block.pop("storage")["dim"]
            block["row_prob"] = block.pop("row_prob")  # which came last
    known = ("format", "version", "base_dim", "temperature", "num_parameters", "features")
    document |= {"version": 1, "temperature": of_rule(plan)}
    return (json.dumps({name: document[name] for name in known}, indent=2) + "\n").encode()


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def canonical(value: Any) -> str:
    """A value as JSON that is the same for equal values, whatever the order of their keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
