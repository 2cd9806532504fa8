"""Write docs/options.md from the declarations of the options: `python tools/options_page.py`.

A test compares the page with what this makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from mixdim._util.options import Option, options_of
from mixdim.models import MODELS
from mixdim.runs.config import TRAINING, RunConfig, run_options
from mixdim.runs.model_options import MODEL_OPTIONS, PANEL
from mixdim.training.options import preset

PAGE = Path(__file__).parents[1] / "docs" / "options.md"
PRESETS = ("paper-ctr", "paper-cf")
HEAD = """# Options of a run

`python tools/options_page.py` makes this page from the declarations in the code; `mixdim train --help`
says the same. Every option is

- a flag of `mixdim train`: `--batch-size 64`, `--no-shuffle`, `--bottom 64,32`;
- a key of a TOML file for `--config`, with `_` or `-`: `batch_size = 64`, `shuffle = false`,
  `bottom = [64, 32]`;
- an argument of `RunConfig.of` in Python: `RunConfig.of(batch_size=64, shuffle=False, bottom=[64, 32])`;
- a key of the run's `config.toml`, and of its record in a sweep.

Flags override the file, and both override the preset. `mixdim train --data DATA --print-config`, with
any flags, prints all options of that run as TOML, filled in for its data, and trains nothing; without
`--data` it leaves out what depends on data. [training.md](training.md) describes what the options do,
and how the preset `auto` chooses from the data.
"""
KEYS = """## Which options name a run

A sweep finds a finished run by its key, a digest of the data and of the options that decide the result.
{nothing} decide nothing. These values count as if they were not given, so that runs recorded
before there was such an option are found: {absent}. Of `--plan` the content of the file counts.
"""

Column = Callable[[Option], str]


def page() -> str:
    """The page as Markdown."""
    declared = options_of(RunConfig)
    parts = [HEAD]
    for panel in dict.fromkeys(option.panel for option in declared.values()):
        some = [option for option in declared.values() if option.panel == panel]
        parts += [f"## {panel or 'Data'}\n", _table(some, _presets() if panel == TRAINING else {})]
        if panel == PANEL:
            parts += [_of_model(model) for model in MODEL_OPTIONS]
    return "\n".join([*parts, _keys()])


def _table(options: Iterable[Option], columns: dict[str, Column]) -> str:
    names = ["option", "value", *columns, "meaning"]
    lines = [names, ["---"] * len(names)]
    for option in options:
        flags = ", ".join(f"`{flag}`" for flag in option.flags)
        lines.append([flags, option.in_words, *(of(option) for of in columns.values()), option.help])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _of_model(model: str) -> str:
    """The heading and the table of a model's own options."""
    columns: dict[str, Column] = {
        "default": lambda option: option.text(option.default),
        "`auto`": lambda option: "from the data" if option.from_data else option.text(option.default),
    }
    reads = f"{MODELS[model].takes.words}; `--bands` is {MODELS[model].bands} if not given"
    table = _table(options_of(MODEL_OPTIONS[model]).values(), columns)
    return f"### {model}\n\nReads {reads}. The presets of the paper have the defaults.\n\n{table}"


def _presets() -> dict[str, Column]:
    """What presets say of how to train."""

    def value(option: Option, name: str) -> str:
        found = getattr(preset(name), option.name, None)
        return "0" if option.name == "patience" and found is None else _text(option, found)

    def auto(option: Option) -> str:
        if option.from_data:
            return "from the data"
        return value(option, PRESETS[0])  # shared by all presets

    others: dict[str, Column] = {
        f"`{name}`": lambda option, name=name: value(option, name) for name in PRESETS
    }
    return {"`auto`": auto, **others}


def _text(option: Option, value: object) -> str:
    return "" if value is None else option.text(value)


def _keys() -> str:
    """Which options name a run."""
    options = run_options().values()
    absent = {option.name: str(option.absent).lower() for option in options if option.absent is not None}
    return KEYS.format(
        nothing=", ".join(f"`{option.name}`" for option in options if not option.decides),
        absent=", ".join(f"`{name} = {value}`" for name, value in absent.items()),
    )


if __name__ == "__main__":
    PAGE.write_text(page())
