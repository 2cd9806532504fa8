"""A proposal as text: a table of at most 40 lines, notes, and the command to copy.

Knows nothing about files or guesses beyond what a proposal holds.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import translate
from glob import escape
from itertools import groupby
from pathlib import Path
from shlex import join, quote

from mixdim._util.text import align, printable
from mixdim.data.columns import RANGE, SIGNS
from mixdim.data.guesses import Guess
from mixdim.data.proposal import LATIN_1, NEGATIVES, Proposal, column_in_condition

LONGEST_EXAMPLE = 30  # characters
SINGLY = 30  # columns that are all listed one by one; of more, those that are alike share a line
LINES = 34  # of the table, at most
FEWEST = 3  # columns that a pattern or a range stands for
TRIED = 60  # patterns


@dataclass(frozen=True)
class Group:
    """Columns of one role, and what stands for them in an option."""

    item: str
    columns: tuple[str, ...]


def text_of(found: Proposal) -> str:
    """Everything that is printed."""
    groups = _groups(found)
    looked = f"{max(found.rows, found.all_rows):,} rows looked at"
    if found.all_rows > found.rows:
        looked += f", {found.rows:,} of them to guess"
    return "\n".join([
        f"{printable(str(found.files[0]))}: {len(found.columns):,} columns, {looked}",
        "",
        *_table(found, groups),
        "",
        *_notes(found),
        "Nothing was prepared. A guess to check, then to run:",
        "",
        f"  {command_of(found, groups)}",
    ])  # fmt: skip


def command_of(found: Proposal, groups: dict[str, list[Group]] | None = None) -> str:
    """The command that prepares the table, for a shell."""
    groups = groups or _groups(found)
    words = ["mixdim", "prepare", "table", *map(str, found.files), "--out", _out(found)]
    target, pair = found.target, found.user_and_item
    if pair is not None:
        user, item = pair
        words += ["--negatives", str(NEGATIVES), "--negatives-of", item.name]
        words += ["--negatives-for", user.name]
    else:
        words += ["--target", "COLUMN" if target is None else target.name]
    words += ["--task", "rating"] if target is not None and target.kind == "rating" else []
    words += ["--categorical", ",".join(group.item for group in groups["categorical"])]
    dense = [group.item for group in groups["dense"]]
    words += ["--dense", ",".join(dense)] if dense else []
    for name, mark in found.bags.items():
        words += ["--bag", f"{name}:{mark}"]
    words += ["--split", found.split_option] if found.split_option is not None else []
    words += ["--where", found.where] if found.where is not None else []
    words += ["--max-bad", str(sum(found.bad.values()))] if any(found.bad.values()) else []
    form = found.form
    words += ["--separator", form.separator] if form.separator is not None else []
    words += ["--encoding", form.encoding] if form.encoding != "utf-8" else []
    words += ["--columns", ",".join(form.columns)] if form.columns is not None else []
    return join(words)


def _out(found: Proposal) -> str:
    name = found.files[0].name.partition(".")[0] or "table"
    return f"{name}-prepared" if Path(name).exists() else name


def _table(found: Proposal, groups: dict[str, list[Group]]) -> list[str]:
    head = ["column", "looks like", "distinct", "missing", "example", "because"]
    by_name = {column.name: column for column in found.columns}
    place = {column.name: place for place, column in enumerate(found.columns)}
    listed = [(role, group) for role, of_role in groups.items() for group in of_role]
    if len(listed) > LINES:
        single = ("target", "time", "split", "bag")
        listed.sort(key=lambda entry: (entry[0] not in single, -len(entry[1].columns)))
    shown, rest = listed[:LINES], listed[LINES:]
    shown.sort(key=lambda entry: place[entry[1].columns[0]])
    lines = [
        _line(found, role, [by_name[name] for name in group.columns], group) for role, group in shown
    ]
    hidden = Counter(role for role, group in rest for _ in group.columns)
    others = ", ".join(f"{count:,} {role}" for role, count in hidden.items())
    return [
        *align([head, *lines]),
        *([f"and {sum(hidden.values()):,} others: {others}"] if others else []),
    ]


def _line(found: Proposal, role: str, columns: Sequence[Guess], group: Group) -> list[str]:
    first = columns[0]
    reasons = Counter(found.why(column) for column in columns)
    if len(columns) == 1:
        name, distinct, missing = first.name, f"{first.distinct:,}", f"{first.missing:.1%}"
    else:
        name = f"{group.item if _is_item(group) else first.name + ', ...'} ({len(columns):,})"
        counts, shares = ([c.distinct for c in columns], [c.missing for c in columns])
        distinct = _span(f"{min(counts):,}", f"{max(counts):,}")
        missing = _span(f"{min(shares):.1%}", f"{max(shares):.1%}")
    example = _cut(first.example)
    return [name, role, distinct, missing, example, reasons.most_common(1)[0][0]]


def _is_item(group: Group) -> bool:
    return RANGE in group.item or any(sign in group.item for sign in SIGNS)


def _span(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_EXAMPLE else f"{text[:LONGEST_EXAMPLE]}..."


def _notes(found: Proposal) -> list[str]:
    notes, target = [], found.target
    if target is None and found.user_and_item is not None:
        user, item = found.user_and_item
        notes += [
            "No column looks like a target. If rows are positives only, such as purchases, the command",
            f"draws negatives: other values of {item.name} for each {user.name}. Else give --target.",
        ]
    elif target is None:
        notes.append("No column looks like a target: put its name in the place of COLUMN.")
    elif target.kind == "rating":
        better = quote(f"{column_in_condition(target.name)} >= NUMBER")
        notes.append(f"For clicks instead of ratings: --target {better} without --task rating.")
        if target.example in ("0", "0.0"):
            rated = quote(f"{column_in_condition(target.name)} > 0")
            notes.append(f"0 is the most frequent rating; if it stands for none: --where {rated}.")
    if not found.names("categorical", "bag"):
        notes.append("No column looks categorical: name at least one.")
    if found.form.encoding == LATIN_1:
        notes.append("The text is not UTF-8; latin-1 reads it, if perhaps with other letters.")
    if found.form.columns is not None:
        notes.append("The first line is no header: --columns names the columns; better names help you.")
    if found.where is not None:
        notes.append(f"Some rows have no target: --where {quote(found.where)} leaves them out.")
    bad = {reason: count for reason, count in found.bad.items() if count}
    if bad:
        listed = ", ".join(f"{count:,} {reason}" for reason, count in bad.items())
        notes.append(f"Malformed rows, which --max-bad skips: {listed}.")
    return [*notes, ""] if notes else []


def _groups(found: Proposal) -> dict[str, list[Group]]:
    """The columns of each role, alike ones together if there are many."""
    of_role: dict[str, list[str]] = {"categorical": [], "dense": []}
    for column in found.columns:
        of_role.setdefault(found.role(column), []).append(column.name)
    if len(found.columns) <= SINGLY:
        return {role: [Group(_item(name), (name,)) for name in names] for role, names in of_role.items()}
    split = found.split
    taken = {*found.bags, *([split.name] if split else []), *(of_role.get("target", []))}
    free = [column.name for column in found.columns if column.name not in taken]
    role_of = {name: role for role, names in of_role.items() for name in names}
    grouped: dict[str, list[Group]] = {role: [] for role in of_role} | {
        role: _grouped(role, names, free, role_of)
        for role, names in of_role.items()
        if role in ("categorical", "dense")
    }
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for column in found.columns:
        if found.role(column) == "leave out":
            by_reason[found.why(column)].append(column.name)
    grouped["leave out"] = [Group("", tuple(names)) for names in by_reason.values()]
    for role in of_role:
        grouped[role] = grouped[role] or [Group(_item(name), (name,)) for name in of_role[role]]
    return grouped


def _grouped(
    role: str, names: Sequence[str], free: Sequence[str], role_of: dict[str, str]
) -> list[Group]:
    """Patterns and ranges that stand for columns of a role and for no others, the largest first."""
    candidates = [Group(item, tuple(columns)) for item, columns in _patterns(names, free)]
    for same, run in groupby(free, key=lambda name: role_of[name] == role):
        columns = tuple(run)
        ends = (columns[0], columns[-1])
        if same and len(columns) >= FEWEST and not any(_needs_pattern(name) for name in ends):
            candidates.append(Group(RANGE.join(ends), columns))
    wanted, left = set(names), set(names)
    usable = [group for group in candidates if wanted.issuperset(group.columns)]
    found = []
    while usable:
        best = max(usable, key=lambda group: (len(left.intersection(group.columns)), -len(group.item)))
        new = [name for name in best.columns if name in left]
        if len(new) < FEWEST:
            break
        found.append(Group(best.item, tuple(new)))
        left.difference_update(new)
    return [*found, *(Group(_item(name), (name,)) for name in names if name in left)]


def _patterns(names: Sequence[str], free: Collection[str]) -> list[tuple[str, list[str]]]:
    """Patterns that several names have in common, and the free columns that they match."""
    stems: defaultdict[str, int] = defaultdict(int)
    for name in names:
        safe = _item(name) if _needs_pattern(name) else escape(name)
        pieces = re.split(r"(?<=[_.\- ])|(?=[_.\- ])", safe)
        stems_of = {re.sub(r"\d+", "*", safe), f"{''.join(pieces[:2])}*", f"*{''.join(pieces[-2:])}"}
        for stem in stems_of:
            if "*" in stem:
                stems[stem] += 1
    common = sorted((s for s, count in stems.items() if count >= FEWEST), key=lambda s: -stems[s])
    found = []
    for stem in [*common[:TRIED], "*"]:
        matches = re.compile(translate(stem)).match
        found.append((stem, [name for name in free if matches(name)]))
    return found


def _needs_pattern(name: str) -> bool:
    return "," in name or name != name.strip() or RANGE in name


def _item(name: str) -> str:
    """A name as an option takes it: in a list with commas, a pattern if it has some itself."""
    if "," not in name and name == name.strip():
        return name
    return escape(name).replace(",", "?").replace(" ", "?")
