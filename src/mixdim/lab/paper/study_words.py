"""Data, splits and seeds of a study in words, for captions. Knows nothing about figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mixdim.data import Dataset
from mixdim.lab.paper.curves import seed_of
from mixdim.lab.paper.study import Study
from mixdim.runs.sweeps.records import Record


def describe(dataset: Dataset) -> str:
    """A data set and its split in words."""
    options, generator = dataset.meta.options, dataset.meta.source.get("generator")
    made = f"synthetic {generator}, cardinalities x {options['scale']:g}" if generator else "real"
    how = options.get("split", "by position")
    sizes = ", ".join(f"{name} {stop - start:,}" for name, (start, stop) in dataset.splits.items())
    categories = sum(dataset.cardinalities.values())
    return f"{dataset.path.name} ({made}; {categories:,} categories; split {how}: {sizes})"


def caption_of(study: Study, records: Sequence[Record]) -> str:
    """Data, split, model, seeds, and what the bars are."""
    seeds = sorted({seed_of(record) for record in records})
    bars = "bars and bands: one standard deviation over seeds" if len(seeds) > 1 else "one seed: no bars"
    return (
        f"{study.protocol.config.model} on {describe(study.dataset)}; weights that were best "
        f"in validation; {len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'}, {bars}."
    )


def models_by_data(studies: Iterable[Study]) -> list[tuple[Dataset, list[str]]]:
    """Each data set with the models that are trained on it."""
    found: dict[str, tuple[Dataset, list[str]]] = {}
    for study in studies:
        _, models = found.setdefault(study.dataset.fingerprint, (study.dataset, []))
        models.append(str(study.protocol.config.model).upper())
    return list(found.values())
