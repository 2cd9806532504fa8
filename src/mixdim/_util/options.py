"""One declaration of an option: its default, help and place in a dataclass. Knows no command."""

from __future__ import annotations

from dataclasses import Field, field
from typing import Any

KEY = "option"


def opt(
    default: Any = None,
    help: str = "",
    *,
    panel: str = "",
    absent: Any = None,
    decides: bool = True,
    flags: tuple[str, ...] = (),
) -> Any:
    """A field of a frozen dataclass that is also a flag, a key in a TOML file and a line in the docs.

    - `help`: one sentence for `--help` and docs/options.md.
    - `panel`: the heading that it stands under there.
    - `absent`: what a run does that has no value of it; such a value does not count in the run's key.
    - `decides`: whether it decides the result of a run, and so belongs to its key.
    - `flags`: its flags, if they do not follow from its name.

    >>> from dataclasses import dataclass, fields
    >>> @dataclass(frozen=True)
    ... class Options:
    ...     hidden: tuple[int, ...] = opt((64, 32), "Widths of the hidden layers.")
    >>> Options().hidden, [about(one)["help"] for one in fields(Options)]
    ((64, 32), ['Widths of the hidden layers.'])
    """
    said = {"help": help, "panel": panel, "absent": absent, "decides": decides, "flags": flags}
    return field(default=default, metadata={KEY: said})


def about(one: Field[Any]) -> dict[str, Any]:
    """What a field that `opt` made says of itself."""
    return dict(one.metadata[KEY])
