"""One declaration of an option: what it says, and which values it takes."""

from dataclasses import dataclass, fields
from typing import Literal

import pytest

from mixdim._util.options import opt, options_of


@dataclass(frozen=True)
class Options:
    rate: float | None = opt(help="How fast.", panel="Speed", from_data=True)
    rows: int | Literal["all"] | None = opt()
    name: str = opt("x", metavar="<path>", decides=False)
    fast: bool | None = opt(absent=False)
    only: bool | None = opt(flags=("--only",))
    hidden: tuple[int, ...] = opt((8, 4))
    other: int = 3  # not an option


OPTIONS = options_of(Options)


def test_an_option_says_what_its_field_declares():
    assert list(OPTIONS) == [one.name for one in fields(Options)][:-1]
    rate, fast = OPTIONS["rate"], OPTIONS["fast"]
    assert (rate.kind, rate.help, rate.panel, rate.default, rate.from_data) == (
        *(float, "How fast.", "Speed", None, True),
    )
    assert (fast.absent, fast.decides, OPTIONS["name"].decides) == (False, True, False)
    assert [one.flags for one in OPTIONS.values()] == [
        *(("--rate",), ("--rows",), ("--name",), ("--fast", "--no-fast"), ("--only",), ("--hidden",))
    ]


@pytest.mark.parametrize(
    ("name", "value", "checked"),
    [
        ("rate", 1, 1.0),
        ("rows", "all", "all"),
        ("rows", 3, 3),
        ("fast", False, False),
        ("hidden", [4], (4,)),
        ("hidden", (), ()),
    ],
)
def test_a_value_of_its_kind_is_taken(name, value, checked):
    found = OPTIONS[name].check(value)
    assert (type(found), found) == (type(checked), checked)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rate", True, "rate must be a number, got True"),
        ("rows", "some", "rows must be a whole number or all, got 'some'"),
        ("rows", 2.0, "rows must be a whole number or all, got 2.0"),
        ("name", 3, "name must be text, got 3"),
        ("fast", 1, "fast must be true or false, got 1"),
        ("hidden", 4, "hidden must be a list of whole numbers, got 4"),
        ("hidden", [4, True], r"hidden must be a list of whole numbers, got \[4, True\]"),
        ("hidden", "4", "hidden must be a list of whole numbers, got '4'"),
    ],
)
def test_a_value_of_another_kind_is_refused(name, value, message):
    for error in (TypeError, ValueError):  # it is both
        with pytest.raises(error, match=f"^{message}$"):
            OPTIONS[name].check(value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("rate", 1e-4, ["--rate", "0.0001"]),
        ("rows", 5, ["--rows", "5"]),
        ("rows", "all", ["--rows", "all"]),
        ("fast", True, ["--fast"]),
        ("fast", False, ["--no-fast"]),
        ("only", False, []),
        ("hidden", (64, 32), ["--hidden", "64,32"]),
    ],
)
def test_flags_say_a_value_and_are_read_as_it(name, value, words):
    assert OPTIONS[name].arguments(value) == words
    if len(words) == 2 and name != "rate":  # typer reads numbers itself
        assert OPTIONS[name].parse(words[1]) == value


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("hidden", "8,x", "a list of whole numbers such as 64,32"),
        ("rows", "some", "a whole number or all"),
    ],
)
def test_a_flag_of_another_kind_is_refused(name, text, kind):
    with pytest.raises(ValueError, match=f"^--{name} must be {kind}, got '{text}'$"):
        OPTIONS[name].parse(text)
