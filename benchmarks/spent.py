"""What share of their budgets recorded runs left unspent: by model, rounding and temperature or method.

Reads records, such as results/records.jsonl; trains nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mixdim._util.text import align
from mixdim.runs.sweeps.budgets import share_spent
from mixdim.runs.sweeps.methods import method_of
from mixdim.runs.sweeps.records import read_records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", nargs="+", type=Path)
    groups: dict[tuple[str, str, str], list[float]] = {}
    for record in read_records(parser.parse_args().records):
        spent = share_spent(record) if record.finished else None
        if spent is not None:
            rounding = record.config.get("rounding") or "-"
            groups.setdefault((record.config["model"], rounding, method_of(record)), []).append(
                1 - spent
            )
    lines = [["model", "rounding", "widths", "runs", "least unspent", "mean", "most"]]
    for names, shares in sorted(groups.items()):
        numbers = (min(shares), sum(shares) / len(shares), max(shares))
        lines.append([*names, f"{len(shares)}", *(f"{number:.1%}" for number in numbers)])
    print("\n".join(align(lines)))


if __name__ == "__main__":
    main()
