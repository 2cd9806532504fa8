"""Budgets of recorded runs: what they are called, and how much of them was spent. Makes no runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mixdim.planning.budget import parse_bytes, width_of
from mixdim.runs.sweeps.methods import with_bits
from mixdim.runs.sweeps.recommend import embedding_bytes_of
from mixdim.runs.sweeps.records import Record

OF_EMBEDDINGS = "embeddings:"


def asked_budget(config: Mapping[str, Any]) -> str:
    """The budget of a recorded config in words: "32,768" of the whole model, "width:2" of embeddings.

    >>> asked_budget({"model_budget": 32768, "budget": None}), asked_budget({"model_budget": None})
    ('32,768', '-')
    >>> asked_budget({"model_budget": None, "budget": "4MB"})
    'embeddings:4MB'
    """
    if config["model_budget"] is not None:
        return f"{config['model_budget']:,}"
    text: str | None = config.get("budget")
    if text is None:
        return "-"
    return text if width_of(text) else f"{OF_EMBEDDINGS}{text}"


def share_spent(record: Record) -> float | None:
    """The share of its budget that a finished run has used; None of one that was asked for without."""
    summary, config = record.summary, record.config
    assert summary is not None
    if config["model_budget"] is not None:
        return float(summary["num_parameters"] / config["model_budget"])
    text = config.get("budget")
    if text is None:
        return None
    if text.lower().endswith("b"):
        return embedding_bytes_of(summary) / parse_bytes(text)
    return float(summary["embedding_parameters"] / summary["budget"])


def mean_share_spent(records: Sequence[Record]) -> float | None:
    """The same of runs that differ in their seeds, and so a little in their data."""
    shares = [share for share in map(share_spent, records) if share is not None]
    return sum(shares) / len(shares) if shares else None


def run_name(config: Mapping[str, Any]) -> str:
    """A run, in the words of the options that tell it from the others.

    >>> run_name({"model": "mf", "temperature": 0.3, "model_budget": 1000, "seed": 0})
    'mf, temperature 0.3, budget 1,000, seed 0'
    """
    bits = config.get("bits") or 32
    if config.get("method"):
        width = "" if config["base_dim"] is None else f" of width {config['base_dim']}"
        method = with_bits(f"{config['method']}{width}", bits)
        return f"{config['model']}, {method}, {config['budget']}, seed {config['seed']}"
    asked = asked_budget(config)
    budget = "" if asked == "-" else f", budget {asked}"
    temperature = "" if config["temperature"] is None else f", temperature {config['temperature']:g}"
    return f"{with_bits(config['model'] + temperature, bits)}{budget}, seed {config['seed']}"
