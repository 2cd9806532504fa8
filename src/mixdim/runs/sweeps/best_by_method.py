"""Which width of each method did best, by validation. Records in, records out; reads no data."""

from __future__ import annotations

from collections.abc import Iterable

from mixdim.runs.config import canonical, comparable
from mixdim.runs.sweeps.recommend import Measured
from mixdim.runs.sweeps.records import Record, replicates


def best_by_method(records: Iterable[Record]) -> list[tuple[Measured, int]]:
    """The best width of each method at each size by validation, and how many widths were tried.

    Of widths that were not measured with as many seeds as others of their method, none wins.
    """
    groups: dict[str, list[Measured]] = {}
    for group in replicates(record for record in records if record.config.get("method")):
        own = {"base_dim", "seed", "data"}
        options = comparable(group[0].config)
        setting = canonical({name: value for name, value in options.items() if name not in own})
        groups.setdefault(setting, []).append(Measured(tuple(group)))

    def rank(one: Measured) -> tuple[int, float]:
        loss = one.loss("validation")
        if loss is None:
            raise ValueError("the runs have no validation loss: the validation split is empty")
        return (-len(one.records), loss.mean)

    return [(min(group, key=rank), len(group)) for group in groups.values()]
