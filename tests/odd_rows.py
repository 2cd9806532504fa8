"""A table with every kind of column, each with gaps and values of its own in files of other seeds."""

import csv
import random

ROLES = {
    "target": "clicked",
    "categorical": ["city", "number", "share", "a, b"],
    "dense": ["income", "age", "same"],
    "bags": {"tags": "|"},
    "split": "time:day",
}


def odd_rows(seed, count):
    """Some rows, as texts by column."""
    rng = random.Random(seed)
    return [
        {
            "clicked": str(n % 2),
            "city": rng.choice(["Köln", "two\nlines", 'say "x"', " Rome ", "", f"new {seed}"]),
            "number": rng.choice(["7", "07", "8", "", str(2**70), str(seed)]),
            "share": rng.choice(["0.5", "0.50", "1e16", "nan", ""]),
            "a, b": rng.choice("xyz"),
            "income": rng.choice(["", "1e3", " 12 ", "7", f"{10 ** rng.randrange(6)}"]),
            "age": rng.choice(["", "31.25", "-4", "0"]),
            "same": "3",
            "tags": rng.choice(["", "a", "a|b", "b||c", f"{seed}|a", " a"]),
            "day": f"2026-01-{n % 28 + 1:02}",
            "note": rng.choice(["left out", ""]),
        }
        for n in range(count)
    ]


def write_rows(path, found):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(found[0]))
        writer.writeheader()
        writer.writerows(found)
    return path
