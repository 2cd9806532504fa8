"""What the theory's records say: fitted slopes, and tables to print. Measures and draws nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from mixdim._util.text import align
from mixdim.lab.trials.records import Record, having, settings_of


class Slope(NamedTuple):
    """y = exp(intercept) * x ** value, with the standard error of the exponent."""

    value: float
    error: float
    intercept: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ± {self.error:.2f}"


class Needs(NamedTuple):
    """What the seeds of one rate needed; None where a seed never recovered."""

    rate: float
    samples: list[float | None]

    @property
    def mean(self) -> float | None:
        """The geometric mean, if every seed recovered."""
        if None in self.samples:
            return None
        return float(np.exp(np.mean(np.log(np.array(self.samples, dtype=np.float64)))))


def fit_slope(x: Sequence[float], y: Sequence[float | None]) -> Slope | None:
    """Fit a power of x by least squares in logarithms; None below three points with a y.

    With two points the standard error would be 0, which says nothing.

    >>> str(fit_slope([1, 2, 4], [5, 20, 80]))
    '2.00 ± 0.00'
    """
    known = [(a, b) for a, b in zip(x, y, strict=True) if b is not None]
    if len(known) < 3:
        return None
    line = stats.linregress(*np.log(np.array(known)).T)
    return Slope(float(line.slope), float(line.stderr), float(line.intercept))


def needs_of(records: Sequence[Record], method: str) -> list[Needs]:
    """What each rate needed, in order of the records."""
    found = having(records, kind="need", method=method)
    return [
        Needs(rate, [record["samples"] for record in having(found, rate=rate)])
        for rate in settings_of(found, "rate")
    ]


def two_block_slopes(records: Sequence[Record]) -> dict[str, list[Slope | None]]:
    """Exponents of 1/epsilon for mixed, agnostic and their ratio: as found, half covered, as ordered."""
    mixed, agnostic = needs_of(records, "mixed"), needs_of(records, "agnostic")
    inverse = [1 / need.rate for need in mixed]

    def of_theory(method: str, name: str) -> list[float | None]:
        return [record[name] for record in having(records, kind="bound", method=method)]

    columns = [
        ([need.mean for need in mixed], [need.mean for need in agnostic]),
        (of_theory("mixed", "half_covered"), of_theory("agnostic", "half_covered")),
        (of_theory("mixed", "order"), of_theory("agnostic", "order")),
    ]
    return {
        "mixed": [fit_slope(inverse, few) for few, _ in columns],
        "agnostic": [fit_slope(inverse, many) for _, many in columns],
        "agnostic / mixed": [fit_slope(inverse, _ratios(many, few)) for few, many in columns],
    }


def two_block_table(records: Sequence[Record]) -> str:
    """The samples that each rate needed, where only mixed recovers, and the slopes."""
    lines = [["rate", "ranks", "mixed", "agnostic", "ratio", "only mixed recovers from"]]
    for few, many in zip(needs_of(records, "mixed"), needs_of(records, "agnostic"), strict=True):
        here = having(records, rate=few.rate)[0]
        ratio = _ratios([many.mean], [few.mean])[0]
        lines.append([
            *(f"{few.rate:g}", f"{here['popular_rank']} + {here['rare_rank']}"),
            *(_count(few.mean), _count(many.mean), "-" if ratio is None else f"{ratio:.2f}"),
            _only_mixed(few, many, here["largest_samples"]),
        ])  # fmt: skip
    slopes = two_block_slopes(records)
    paper = {"mixed": "1", "agnostic": "2", "agnostic / mixed": "1"}
    fits = [["exponent of 1/rate", "found", "half covered", "paper's order, these rates", "limit"]]
    for name, values in slopes.items():
        found, covered, order = ("-" if slope is None else str(slope) for slope in values)
        fits.append([name, found, covered, order, paper[name]])
    again = [flag for record in records for flag in record.get("recovered_from_more", [])]
    return "\n".join([
        "Samples that recover the matrix (geometric mean over seeds)",
        "",
        *align(lines),
        "",
        *align(fits),
        "",
        f"recovered from 1.5 and 2 times the samples too: {sum(again)} of {len(again)} trials",
    ])  # fmt: skip


def allocation_table(records: Sequence[Record]) -> str:
    """The error of every policy over the optimum's, the median over seeds, by decay and budget."""
    tables = []
    shares = settings_of(records, "budget_share")
    for decay in settings_of(records, "decay"):
        lines = [[f"decay {decay:g}, budget", *(f"{share:.0%}" for share in shares)]]
        for policy in settings_of(records, "policy"):
            medians = [
                _median(having(records, decay=decay, policy=policy, budget_share=share), "over_optimum")
                for share in shares
            ]
            lines.append([policy_label(policy), *(f"{median:.3f}" for median in medians)])
        tables.append("\n".join(align(lines)))
    head = "Popularity-weighted MSE over that of the optimum (median over seeds)"
    return "\n\n".join([head, *tables])


def completion_table(records: Sequence[Record]) -> str:
    """The share of seeds that recovered, the median error and the seconds, by method and share seen."""
    lines = [["", "seen", "entries / unknowns", "recovered", "median error", "seconds"]]
    for kind, method in dict.fromkeys((record["kind"], record["method"]) for record in records):
        for share in settings_of(records, "share"):
            here = having(records, kind=kind, method=method, share=share)
            lines.append([
                *(f"{kind}, {method}", f"{share:.0%}"),
                f"{_mean(here, 'entries') / here[0]['unknowns']:.2f}",
                f"{sum(record['recovered'] for record in here)} of {len(here)}",
                f"{_median(here, 'error'):.1e}",
                f"{_mean(here, 'seconds'):.3f}",
            ])  # fmt: skip
    return "\n".join(align(lines))


def policy_label(policy: str) -> str:
    """How a policy is shown.

    >>> policy_label("temperature 0")
    'temperature 0 (uniform)'
    """
    return f"{policy} (uniform)" if policy == "temperature 0" else policy


def _mean(records: Sequence[Record], name: str) -> float:
    return float(np.mean([record[name] for record in records]))


def _median(records: Sequence[Record], name: str) -> float:
    return float(np.median([record[name] for record in records]))


def _ratios(above: Sequence[float | None], below: Sequence[float | None]) -> list[float | None]:
    return [None if a is None or b is None else a / b for a, b in zip(above, below, strict=True)]


def _count(samples: float | None) -> str:
    return "not recovered" if samples is None else f"{samples:,.0f}"


def _only_mixed(mixed: Needs, agnostic: Needs, largest: float) -> str:
    """The counts from which mixed recovered with every seed and agnostic with none."""
    if None in mixed.samples:
        return "-"
    start = max(need for need in mixed.samples if need is not None)
    stop = min((need for need in agnostic.samples if need is not None), default=largest)
    return f"{start:,.0f} to {stop:,.0f}" if start < stop else "-"
