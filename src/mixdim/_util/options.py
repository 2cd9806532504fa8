"""One declaration of an option: its kind, default, help and place in a dataclass. Knows no command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from mixdim._util.arguments import WrongTypeError

KEY = "option"
KINDS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "a list of whole numbers",
}


def opt(
    default: Any = None,
    help: str = "",
    *,
    panel: str = "",
    absent: Any = None,
    decides: bool = True,
    from_data: bool = False,
    metavar: str = "",
    flags: tuple[str, ...] = (),
) -> Any:
    """A field of a frozen dataclass that is also a flag, a key in a TOML file and a line in the docs.

    - `help`: one sentence for `--help` and docs/options.md.
    - `panel`: the heading that it stands under there.
    - `absent`: what a run does that has no value of it; such a value does not count in the run's key.
    - `decides`: whether it decides the result of a run, and so belongs to its key.
    - `from_data`: whether the preset "auto" chooses it from the data.
    - `metavar`: the kind of its value in `--help`, if the annotation does not say it.
    - `flags`: its flags, if they do not follow from its name.

    >>> @dataclass(frozen=True)
    ... class Options:
    ...     hidden: tuple[int, ...] = opt((64, 32), "Widths of the hidden layers.")
    >>> Options().hidden, options_of(Options)["hidden"].flag
    ((64, 32), '--hidden')
    """
    declared = {
        **{"help": help, "panel": panel, "absent": absent, "decides": decides},
        **{"from_data": from_data, "metavar": metavar, "flags": flags},
    }
    return field(default=default, metadata={KEY: declared})


@dataclass(frozen=True)
class Option:
    """An option as its field declares it; `words` are texts that it may be beside its kind."""

    name: str
    kind: type
    words: tuple[str, ...]
    default: Any
    help: str
    panel: str
    absent: Any
    decides: bool
    from_data: bool
    metavar: str
    flags: tuple[str, ...]

    @property
    def flag(self) -> str:
        """Its flag in a command; that of "yes" if it is one of two."""
        return self.flags[0]

    @property
    def in_words(self) -> str:
        """What its value must be."""
        return " or ".join((KINDS[self.kind], *self.words))

    def check(self, value: Any) -> Any:
        """Return the value as the option holds it; refuse one of another kind."""
        if self.kind is float and type(value) is int:
            return float(value)
        if self.kind is tuple and isinstance(value, list | tuple):
            if all(type(number) is int for number in value):
                return tuple(value)
        elif type(value) is self.kind or (isinstance(value, str) and value in self.words):
            return value
        raise WrongTypeError(f"{self.name} must be {self.in_words}, got {value!r}")

    def parse(self, text: Any) -> Any:
        """Return the value that a flag says; text for lists and for numbers that may be words."""
        if not isinstance(text, str) or self.kind is str or text in self.words:
            return text
        try:
            if self.kind is tuple:
                return tuple(int(number) for number in text.split(",") if number.strip())
            return self.kind(text)
        except ValueError:
            example = " such as 64,32" if self.kind is tuple else ""
            raise ValueError(f"{self.flag} must be {self.in_words}{example}, got {text!r}") from None

    def arguments(self, value: Any) -> list[str]:
        """Return what a command line says for the value."""
        if self.kind is bool:
            return [self.flag] if value else list(self.flags[1:])
        return [self.flag, self.text(value)]

    def text(self, value: Any) -> str:
        """Return the value as a flag says it."""
        if self.kind is bool:
            return "yes" if value else "no"
        if self.kind is tuple:
            return ",".join(map(str, value))
        return _exact(value) if isinstance(value, float) else str(value)


@cache
def options_of(declaration: type) -> Mapping[str, Option]:
    """The options of a dataclass, by name: of its fields, those that `opt` made."""
    hints = get_type_hints(declaration)
    return MappingProxyType({
        one.name: _option(one.name, hints[one.name], one.default, one.metadata[KEY])
        for one in fields(declaration)
        if KEY in one.metadata
    })  # fmt: skip


def _option(name: str, hint: Any, default: Any, declared: Mapping[str, Any]) -> Option:
    kinds = [hint] if get_origin(hint) is tuple else get_args(hint) or (hint,)
    words = tuple(word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind))
    (kind,) = {
        get_origin(kind) or kind
        for kind in kinds
        if kind is not type(None) and get_origin(kind) is not Literal
    }
    flag = name.replace("_", "-")
    flags = declared["flags"] or ((f"--{flag}", f"--no-{flag}") if kind is bool else (f"--{flag}",))
    return Option(name, kind, words, default, **{**declared, "flags": flags})


def _exact(number: float) -> str:
    """The shortest text that is read as the same number.

    >>> _exact(0.3), _exact(1 / 3), _exact(1.0)
    ('0.3', '0.3333333333333333', '1')
    """
    short = f"{number:g}"
    return short if float(short) == number else repr(number)
