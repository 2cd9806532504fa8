"""What share of equal budgets each rounding leaves unspent. Plans only; trains nothing.

For each prepared folder: embeddings within the budgets of uniform widths 2, 4, 8 and 16 at temperatures
0.2, 0.3, 0.4 and 0.6, with 8 bands for ratings and 1 for clicks, as `mixdim sweep` has.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from statistics import fmean

import mixdim
from mixdim._util.text import align
from mixdim.data import Dataset

WIDTHS, TEMPERATURES = (2, 4, 8, 16), (0.2, 0.3, 0.4, 0.6)


def unspent(dataset: Dataset, rounding: str, width: int, temperature: float) -> float:
    plan = mixdim.plan(
        dataset,
        temperature=temperature,
        budget=f"width:{width}",
        bands=8 if dataset.task == "rating" else 1,
        rounding=rounding,  # type: ignore[arg-type]  # plan() checks it
    )
    return 1 - plan.num_parameters / (width * plan.num_rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    warnings.simplefilter("ignore", mixdim.FloorWarning)
    lines = [["data", "rounding", "mean", "most"]]
    for folder in parser.parse_args().folders:
        for rounding in ("power_of_two", "integer", "fill"):
            shares = [unspent(Dataset(folder), rounding, w, t) for w in WIDTHS for t in TEMPERATURES]
            lines.append([folder.name, rounding, f"{fmean(shares):.1%}", f"{max(shares):.1%}"])
    print("\n".join(align(lines)))


if __name__ == "__main__":
    main()
