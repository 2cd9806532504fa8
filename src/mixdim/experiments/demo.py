"""The demo: what mixed dimensions do to the tables of Criteo Kaggle. Needs no data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from mixdim.budget import BYTES_PER_PARAMETER, format_bytes
from mixdim.data.planted import CRITEO_KAGGLE_ROWS
from mixdim.experiments.figures import save_figure, widths_figure
from mixdim.plan import Plan
from mixdim.plan_table import align
from mixdim.planning import plan

TEMPERATURES = (0.0, 0.2, 0.3, 0.4)
UNIFORM_DIM = 2  # the budget of the paper's Fig. 2a: as much as uniform width 2
RIVAL_DIM = 32  # the uniform width whose quality the paper matches within that budget

OWN_FEATURES = "mixdim plan --cardinalities user=6040,item=3706 --temperature 0.3 --budget 1MB"


def run_demo(out: Path, *, echo: Callable[[str], None]) -> None:
    """Plan at several temperatures within one budget, print the widths, draw them (Fig. 6)."""
    rows = sum(CRITEO_KAGGLE_ROWS.values())
    budget = UNIFORM_DIM * rows
    size = format_bytes(BYTES_PER_PARAMETER * budget)
    echo(f"The 26 categorical features of Criteo Kaggle have {rows:,} rows.")
    echo(f"The budget, that of uniform width {UNIFORM_DIM}, is {budget:,} parameters or {size}.")
    echo("For each temperature, the largest base_dim that fits, and the width of each feature:\n")
    plans = {t: plan(CRITEO_KAGGLE_ROWS, temperature=t, budget=budget) for t in TEMPERATURES}
    echo(_comparison(plans))
    out.mkdir(parents=True, exist_ok=True)
    figure = widths_figure(
        {f"temperature {t:g}": p for t, p in plans.items()},
        title=f"Criteo Kaggle within the budget of uniform width {UNIFORM_DIM} (the paper's Fig. 6)",
    )
    pictures = [out / "fig6.png", out / "fig6.svg"]
    for picture in pictures:
        save_figure(figure, picture)
    echo(f"\nThe picture (the paper's Fig. 6): {', '.join(str(picture) for picture in pictures)}")
    echo(f"For your own features: {OWN_FEATURES}")


def _comparison(plans: Mapping[float, Plan]) -> str:
    """One line a feature, one column a temperature."""
    first = next(iter(plans.values()))
    lines = [["feature", "rows", *(f"temp {t:g}" for t in plans)]]
    for number in sorted(range(first.num_features), key=lambda i: first.features[i].rows):
        feature = first.features[number]
        widths = [str(p.features[number].blocks[0].dim) for p in plans.values()]
        lines.append([feature.name, f"{feature.rows:,}", *widths])
    shares = [f"1/{p.compression(uniform_dim=RIVAL_DIM):.1f}" for p in plans.values()]
    lines += [
        ["base_dim", "", *(str(p.base_dim) for p in plans.values())],
        ["parameters", "", *(f"{p.num_parameters / 1e6:.1f}M" for p in plans.values())],
        [f"of uniform {RIVAL_DIM}", "", *shares],
    ]
    return "\n".join(align(lines))
