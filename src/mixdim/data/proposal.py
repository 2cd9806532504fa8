"""A table that nobody described yet: what its columns look like, and the command that prepares it.

Knows nothing about preparing; changes nothing. Guesses by some thousand rows, then reads all rows as the
command would, so that the command runs.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from mixdim.data.columns import exact_number
from mixdim.data.conditions import parse_condition
from mixdim.data.guesses import ITEM_WORDS, USER_WORDS, Guess, guess
from mixdim.data.lines import UTF16
from mixdim.data.rejects import BAD_ENCODING, Rejects
from mixdim.data.roles import EMPTY, Roles
from mixdim.data.sources import Source, check_sources
from mixdim.data.table_files import TextFormat, first_fields, header_of, named_twice, read_rows
from mixdim.tasks import TASKS

SAMPLE = 20_000  # rows to guess by
SAMPLE_FIELDS = 4_000_000  # and fields
LATIN_1 = "latin-1"
NEGATIVES = 4  # for each positive, where nothing looks like a target
GOES_WITH = 1.05  # values of a column for each value of another that it belongs to, at most
FEW_BAD = 0.01  # share of the rows that a column may spoil and still be used

Progress = Callable[[str, int, "int | None"], None]


@dataclass(frozen=True)
class Proposal:
    """What the columns of a table seem to be, and how to prepare it."""

    files: tuple[Path, ...]
    rows: int  # that the guesses are by
    columns: tuple[Guess, ...]
    form: TextFormat
    roles: Mapping[str, str] = field(default_factory=dict)  # of columns that are not as guessed
    reasons: Mapping[str, str] = field(default_factory=dict)  # for these
    where: str | None = None
    all_rows: int = 0  # that were read
    bad: Mapping[str, int] = field(default_factory=dict)  # malformed rows, by reason

    @property
    def target(self) -> Guess | None:
        """Labels called as a target, else ratings, else labels in the last, the first or any column."""
        usable = [column for column in self.columns if column.name not in self.roles]
        ends = (usable[-1], usable[0]) if usable else ()
        candidates = [
            *(c for c in usable if c.kind == "binary" and c.named),
            *(c for c in usable if c.kind == "rating"),
            *(c for c in ends if c.kind == "binary"),
            *(c for c in usable if c.kind == "binary"),
        ]
        return candidates[0] if candidates else None

    @property
    def user_and_item(self) -> tuple[Guess, Guess] | None:
        """Whose positives the rows are, and of what, where nothing looks like a target."""
        ids = [c for c in self.columns if c.kind == "categorical" and c.name not in self.roles]
        if self.target is not None or len(ids) < 2:
            return None
        by_size = sorted(ids, key=lambda column: -column.distinct)
        user = next((c for c in ids if c.is_called(USER_WORDS)), None)
        item = next((c for c in ids if c.is_called(ITEM_WORDS) and c is not user), None)
        if user is None:
            first, second = sorted(by_size[:2], key=ids.index)
            user = next(c for c in (first, second, *by_size) if c is not item)
        return user, item or next(c for c in by_size if c is not user)

    @property
    def split(self) -> Guess | None:
        """The column that says the split, else the first column of times."""
        usable = [column for column in self.columns if column.name not in self.roles]
        by_kind = {kind: [c for c in usable if c.kind == kind] for kind in ("split", "time")}
        return next(iter([*by_kind["split"], *by_kind["time"]]), None)

    def role(self, column: Guess) -> str:
        """What the command makes of a column."""
        if column.name in self.roles:
            return self.roles[column.name]
        if column is self.target:
            return "target"
        if column.kind in ("binary", "rating"):
            # A column called like a target would give the target away.
            return "leave out" if column.named else "categorical"
        if column.kind in ("time", "split") and column is not self.split:
            return "leave out"
        if column.kind == "bag" and ":" in column.name:
            return "leave out"
        return column.kind

    def why(self, column: Guess) -> str:
        """The reason of a column's role."""
        if column.name in self.reasons:
            return self.reasons[column.name]
        leaks = column.kind in ("binary", "rating") and self.role(column) == "leave out"
        return "called like the target" if leaks else column.why

    @property
    def split_option(self) -> str | None:
        """What `--split` says."""
        found = self.split
        if found is None:
            return None
        if found.kind == "split":
            return f"column:{found.name}"
        return f"time:{found.name}" + (f":{found.mark}" if found.mark else "")

    def names(self, *roles: str) -> list[str]:
        """The columns of some roles."""
        return [column.name for column in self.columns if self.role(column) in roles]

    @property
    def bags(self) -> dict[str, str]:
        """The columns of several ids, and the marks between these."""
        return {column.name: column.mark for column in self.columns if self.role(column) == "bag"}


def propose(
    raw: Sequence[Path], form: TextFormat | None = None, *, progress: Progress | None = None
) -> Proposal:
    """Look at rows of all files, guess, and read all rows until the guess holds."""
    form = form or TextFormat()
    sources = check_sources(raw, folders=True)
    if form.encoding == "utf-8" and not _is_utf8(sources[0]):
        form = replace(form, encoding=LATIN_1)
    if form.columns is None and not sources[0].is_parquet:
        form = replace(form, columns=_columns_without_header(sources[0], form))
    header = header_of(sources[0], form)
    frame, bad = _sample(sources, header, form, progress)
    if bad[BAD_ENCODING] and form.encoding == "utf-8":
        form = replace(form, encoding=LATIN_1)
        frame, _ = _sample(sources, header, form, progress)
    has_names = form.columns is None or form.columns[0] != _unnamed(1)[0]
    columns = tuple(guess(name, frame[name], has_name=has_names) for name in header)
    found = _without_leaks(Proposal(tuple(map(Path, raw)), frame.height, columns, form), frame)
    for _ in range(3 + len(columns)):
        found, is_settled = _checked(found, sources, header, progress)
        if is_settled:
            break
    return found


def _sample(
    sources: Sequence[Source], header: list[str], form: TextFormat, progress: Progress | None
) -> tuple[pl.DataFrame, Counter[str]]:
    """Rows to guess by: the first ones and others from everywhere; and what is wrong with rows."""
    rows = max(2, min(SAMPLE, SAMPLE_FIELDS // max(1, len(header))))
    rejects, read, every = Rejects(sys.maxsize), 0, 1
    first: list[pl.DataFrame] = []
    others: list[pl.DataFrame] = []
    for source in sources:
        for part in read_rows(source, header, form, rejects):
            part.frame.columns = header
            left = max(0, rows // 2 - read)
            first.append(part.frame.head(left))
            rest = part.frame.slice(left)
            others.append(rest.gather_every(every) if rest.height else rest)
            while sum(frame.height for frame in others) > rows - rows // 2:
                others = [frame.gather_every(2) for frame in others if frame.height > 1]
                every *= 2
            read += part.frame.height
            if progress is not None:
                progress("look", read, None)
    kept = [frame for frame in (*first, *others) if frame.height]
    if not kept:
        return pl.DataFrame({name: [] for name in header}), rejects.reasons
    try:
        return pl.concat(kept, how="vertical_relaxed"), rejects.reasons
    except pl.exceptions.PolarsError:
        kinds = {name: {str(frame.schema[name]) for frame in kept} for name in header}
        name = next(name for name, found in kinds.items() if len(found) > 1)
        raise ValueError(
            f"column {name!r} has other types in other files: {', '.join(sorted(kinds[name]))}"
        ) from None


def _without_leaks(found: Proposal, frame: pl.DataFrame) -> Proposal:
    """Without columns that tell the item: negatives would be copies with those of another item."""
    if found.user_and_item is None:
        return found
    user, item = found.user_and_item
    reasons = {}
    for column in found.columns:
        if column in (user, item) or found.role(column) not in ("categorical", "dense", "bag"):
            continue
        of_user, of_item = (_goes_with(frame, column.name, other.name) for other in (user, item))
        if of_item and not of_user:
            reasons[column.name] = f"goes with {item.name}"
        elif found.role(column) in ("dense", "bag") and not of_user:
            reasons[column.name] = f"may tell {item.name}"
    return replace(found, roles=dict.fromkeys(reasons, "leave out"), reasons=reasons)


def _goes_with(frame: pl.DataFrame, column: str, other: str) -> bool:
    pairs = frame.select(pl.struct(other, column).n_unique()).item()
    return pairs <= GOES_WITH * frame[other].n_unique()


def _checked(
    found: Proposal, sources: Sequence[Source], header: list[str], progress: Progress | None
) -> tuple[Proposal, bool]:
    """The proposal after all rows were read as it says, and whether it is settled."""
    features = found.names("categorical", "bag")
    target = found.target
    if not features or (target is None and found.user_and_item is None):
        return found, True
    roles = Roles(
        None if target is None else target.name,
        found.names("categorical"),
        found.names("dense"),
        found.bags,
        "rating" if target is not None and target.kind == "rating" else "binary",
        None if found.where is None else parse_condition(found.where, "where"),
        found.split_option or "random",
        header,
        by_rules=True,
    )
    rejects, kept = Rejects(sys.maxsize), 0
    for source in sources:
        for rows in read_rows(source, roles.columns, found.form, rejects):
            kept += roles.typed(rows, rejects).frame.height
            if progress is not None:
                progress("look", kept + rejects.total, None)
    return _adapted(found, roles, rejects, kept)


def _adapted(found: Proposal, roles: Roles, rejects: Rejects, kept: int) -> tuple[Proposal, bool]:
    read = kept + rejects.total + (rejects.left_out or 0)
    bad = rejects.reasons
    found = replace(found, all_rows=read, bad=dict(bad))
    if bad[BAD_ENCODING] and found.form.encoding == "utf-8":
        return replace(found, form=replace(found.form, encoding=LATIN_1)), False
    if bad[EMPTY] and found.target is not None:
        return replace(found, where=f"{column_in_condition(found.target.name)} is not null"), False
    spoils = {f"{name} is not a number": name for name in roles.dense}
    if found.split is not None:
        spoils[f"{found.split.name} is not a time"] = found.split.name
        spoils[f"{found.split.name} is not train, validation or test"] = found.split.name
    worse = {
        name: f"{count:,} rows: {reason}"
        for reason, name in spoils.items()
        if (count := bad[reason]) > FEW_BAD * read
    }
    wrong = TASKS[roles.task].wrong_target
    if found.target is not None and bad[wrong] * 2 > read:
        worse[found.target.name] = f"{bad[wrong]:,} rows: {wrong}"
    if not worse:
        return found, True
    return replace(
        found,
        roles={**found.roles, **dict.fromkeys(worse, "leave out")},
        reasons={**found.reasons, **worse},
    ), False


def column_in_condition(name: str) -> str:
    """A name as a condition takes it."""
    return name if name.isidentifier() else '"' + name.replace('"', '""') + '"'


def _is_utf8(source: Source) -> bool:
    if source.is_parquet:
        return True
    data = next(replace(source, sample=SAMPLE).blocks()).data
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.startswith(UTF16)  # which reading the header says
    return True


def _columns_without_header(source: Source, form: TextFormat) -> tuple[str, ...] | None:
    """Names for the columns if the first line is no header but looks like the others."""
    fields = first_fields(source, form)
    names = tuple(_unnamed(len(fields)))
    some = replace(source, sample=1000)
    read = read_rows(some, list(names), replace(form, columns=names), Rejects(sys.maxsize))
    parts = [part.frame for part in read]
    frame = pl.concat(parts)[1:] if parts else pl.DataFrame()
    if not frame.height:
        return None
    alike = 0
    for field_, column in zip(fields, frame.get_columns(), strict=True):
        values = column.drop_nulls()
        if _are_numbers(values):
            if not _are_numbers(pl.Series([field_])):
                return None  # a name over numbers
            alike += 1
        elif field_ in values:
            alike += 1
    return names if alike * 2 > len(fields) or (alike and named_twice(fields)) else None


def _are_numbers(values: pl.Series) -> bool:
    numbers = values.to_frame("0").select(exact_number(pl.col("0"), pl.String()))["0"]
    return len(values) > 0 and not numbers.null_count()


def _unnamed(count: int) -> list[str]:
    """Names of columns that have none."""
    return [f"c{number}" for number in range(1, count + 1)]
