"""Hand-made records of runs, for tests of what is made from records: no training."""

import hashlib

from mixdim.runs.sweeps.records import Record

MACHINE = {"processor": "x86_64", "cores": 2, "threads": 1, "python": "3.11.7", "torch": "2.13.0+cpu"}


def config(**changes):
    return {
        **{"data": "/somewhere/ml-1m", "model": "mf", "temperature": 0.3, "base_dim": 8, "budget": None},
        **{"bands": 8, "rounding": "power_of_two", "plan": None, "init": "xavier", "hidden": None},
        **{"seed": 0, "epochs": 3, "model_budget": 2**15, "tensorboard": False, **changes},
    }


def finished(loss=0.75, *, parameters=32_000, objective="mse", fingerprint="f00dcafe" * 4, **changes):
    """A finished run; `changes` are those of its config."""
    options = config(**changes)
    clicks = (
        {"accuracy": 1 - loss / 2, "auc": 0.9 - loss / 4} if objective == "log_loss" else {"mae": loss}
    )
    measured = {"step": 9, "epoch": 3.0, "rows": 100, objective: loss, **clicks}
    thirds = {name: {"rows": 33, objective: loss + more} for name, more in
              (("popular", -0.05), ("middle", 0.0), ("rare", 0.1))}  # fmt: skip
    best = {**measured, "slices": thirds}
    summary = {
        **{
            name: options[name]
            for name in ("model", "temperature", "base_dim", "bands", "rounding", "seed")
        },
        **{"num_parameters": parameters, "embedding_parameters": parameters - 1000, "seconds": 12.5},
        **{"samples_per_second": 54321.0, "peak_memory_bytes": 4 * 10**8, "data": options["data"]},
        "widths": {"user": [8, 4, 4], "item": [8, 2]},
        **{"validation": {"best": best, "last": best}, "test": {"best": best, "last": best}},
        **{"data_fingerprint": fingerprint, "version": "0.1.0", "machine": MACHINE},
    }
    return Record(
        **{"key": _key(options, fingerprint), "status": "finished", "error": None, "config": options},
        **{"summary": summary, "curve": [], "train": {**measured, objective: loss - 0.1}},
        finished_at=f"2026-11-16T02:00:{options['seed']:02}Z",
    )


def failed(error="ValueError: no such thing", **changes):
    options = config(**changes)
    return Record(
        **{"key": _key(options, "failed"), "status": "failed", "error": error, "config": options},
        **{"summary": None, "curve": [], "train": None, "finished_at": "2026-11-16T01:00:00Z"},
    )


def synthetic(record, bound):
    """The same run on generated data, where the least possible loss is known."""
    objective = next(name for name in ("mse", "log_loss") if name in record.summary["test"]["best"])
    record.summary[f"bayes_{objective}"] = {"train": 0.0, "validation": 0.0, "test": bound}
    return record


def _key(options, fingerprint):
    return hashlib.blake2b(
        f"{fingerprint} {sorted(options.items())}".encode(), digest_size=16
    ).hexdigest()
