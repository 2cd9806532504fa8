"""What chose the widths of a recorded run, and what to call it. Knows nothing about its results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from mixdim._util.text import printable
from mixdim.planning.budget import width_of
from mixdim.planning.methods import METHODS
from mixdim.runs.sweeps.records import Record

UNIFORM = "uniform"
NAMES = {"lifted": "lifted uniform", "pooled": "pooled bands"}
OF_EMBEDDINGS = "embeddings:"
SAY_NOTHING = ("unknown", "by_hand")  # rules that only the name of the plan's file tells more about


def provenance(record: Record) -> Mapping[str, Any]:
    """The rule that chose the widths of a run, with its arguments: see `mixdim.Plan.provenance`.

    Records from before plans said so have a temperature, which of a run with a plan of its own may be
    untrue: there the name of the plan's file, "label.whatever.json" with - for blanks, tells the rule.
    """
    summary = record.summary or {}
    stated, planned = summary.get("provenance"), record.config.get("plan")
    if stated is not None and not (planned and stated["rule"] in SAY_NOTHING):
        return dict(stated)
    temperature = summary.get("temperature", record.config.get("temperature"))
    if planned is None:
        return {"rule": "power_law", "temperature": temperature}
    label = PurePath(planned).name.split(".")[0].replace("-", " ")
    # Lifted uniform tables said 0, and are no uniform ones.
    return {"rule": label, **({"temperature": temperature} if temperature else {})}


def temperature_of(record: Record) -> float | None:
    """The temperature of a run by the power law; None where a method or another rule chose widths."""
    if record.config.get("method"):
        return None
    rule = provenance(record)
    return rule["temperature"] if rule["rule"] == "power_law" else None


def bits_of(record: Record) -> int:
    """The bits of a number of a run's embeddings: of those that are served in the fewest."""
    bits: int | None = (record.summary or {}).get("bits") or record.config.get("bits")
    return bits or 32


def with_bits(name: str, bits: int) -> str:
    """What is called by a name when it is served in 32 bits, in so many.

    >>> with_bits("mixed", 8), with_bits("mixed", 32)
    ('mixed, 8 bits', 'mixed')
    """
    return name if bits == 32 else f"{name}, {bits} bits"


def place_among_methods(method: str, bits: int = 32) -> tuple[int, int, str]:
    """Sorts methods as they are always listed, those that quantize after all others.

    >>> sorted([("mixed", 8), ("robe", 32), ("my own", 32), ("mixed", 32)],
    ...        key=lambda one: place_among_methods(*one))
    [('mixed', 32), ('robe', 32), ('my own', 32), ('mixed', 8)]
    """
    known = list(METHODS)
    return -bits, known.index(method) if method in known else len(known), method


def method_of(record: Record) -> str:
    """What a run is called: "uniform", "temperature 0.3", "mixed, 8 bits"."""
    return with_bits(plain_method_of(record), bits_of(record))


def plain_method_of(record: Record) -> str:
    """The same without bits: a temperature, or the name of a method or rule."""
    if record.config.get("method"):
        return printable(record.config["method"])
    rule, temperature = provenance(record)["rule"], temperature_of(record)
    if temperature is not None:
        return UNIFORM if temperature == 0 else f"temperature {temperature:g}"
    if rule == "scaled_power_law":
        return f"scaled, temperature {provenance(record)['temperature']:g}"
    return NAMES.get(rule, printable(rule.replace("_", " ")))


def budget_name(config: Mapping[str, Any]) -> str:
    """The budget of a run: "32,768" of the whole model, "width:2" of embeddings.

    >>> budget_name({"model_budget": 32768, "budget": None}), budget_name({"model_budget": None})
    ('32,768', '-')
    >>> budget_name({"model_budget": None, "budget": "4MB"})
    'embeddings:4MB'
    """
    if config["model_budget"] is not None:
        return f"{config['model_budget']:,}"
    text: str | None = config.get("budget")
    if text is None:
        return "-"
    return text if width_of(text) else f"{OF_EMBEDDINGS}{text}"


def run_name(config: Mapping[str, Any]) -> str:
    """A run by the options that distinguish it from others of its sweep.

    >>> run_name({"model": "mf", "temperature": 0.3, "model_budget": 1000, "seed": 0})
    'mf, temperature 0.3, budget 1,000, seed 0'
    """
    bits = config.get("bits") or 32
    if config.get("method"):
        width = "" if config["base_dim"] is None else f" of width {config['base_dim']}"
        method = with_bits(f"{config['method']}{width}", bits)
        return f"{config['model']}, {method}, {config['budget']}, seed {config['seed']}"
    named = budget_name(config)
    budget = "" if named == "-" else f", budget {named}"
    temperature = "" if config["temperature"] is None else f", temperature {config['temperature']:g}"
    return f"{with_bits(config['model'] + temperature, bits)}{budget}, seed {config['seed']}"
