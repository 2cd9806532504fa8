"""Flags of commands, made from the declared options of runs. Knows no command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from mixdim._util.options import Option
from mixdim.runs.config import run_options

METAVARS: dict[type, str] = {tuple: "<int,...>"}


def flag(name: str, help: str | None = None, *, panel: str | None = None) -> Any:
    """The flag of an option of runs, for a parameter of a command; help or panel may be its own."""
    return _flag(run_options()[name], help, panel)


def option(name: str) -> Option:
    """The option of this name: `parse` makes its value of what the flag says."""
    return run_options()[name]


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command all options of runs as flags; the values given come as its first argument, by name.

    In `--help` options without a panel come first, then the command's own, those in panels, and last
    what the command takes by keyword only.
    """
    options = run_options()
    _, *own = inspect.signature(command, eval_str=True).parameters.values()
    flags = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[_kind(one) | None, _flag(one)],
        )
        for name, one in options.items()
    ]
    first = [one for one in flags if not options[one.name].panel]
    last = [one for one in own if one.kind is inspect.Parameter.KEYWORD_ONLY]
    middle = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own if one not in last]

    @wraps(command)
    def with_given(**values: Any) -> None:
        told = {name: values.pop(name) for name in options}
        given = {name: options[name].parse(v) for name, v in told.items() if v is not None}
        command(given, **values)

    others = [one for one in flags if one not in first]
    with_given.__signature__ = inspect.Signature([*first, *middle, *others, *last])  # type: ignore[attr-defined]
    with_given.__annotations__ = {}
    return with_given


def _flag(one: Option, help: str | None = None, panel: str | None = None) -> Any:
    heading = one.panel if panel is None else panel
    return typer.Option(
        "/".join(one.flags),
        help=one.help if help is None else help,
        rich_help_panel=heading or None,
        metavar=one.metavar or METAVARS.get(one.kind),
    )


def _kind(one: Option) -> Any:
    """What Typer makes of the words of a flag; lists and numbers that may be words stay text."""
    return str if one.kind is tuple or one.words else one.kind
