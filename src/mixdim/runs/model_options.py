"""The options of each model that a run can name. Knows nothing about how models are built.

An option of a model is one field of its dataclass: so it is a flag of `mixdim train`, a key of TOML
files and records, and a line of docs/options.md. Options of two models that share a name are one flag.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

from mixdim._util.options import Option, opt, options_of

PANEL = "Model"


@dataclass(frozen=True)
class DLRMOptions:
    """The options of DLRM."""

    bottom: tuple[int, ...] = opt(
        (512, 256, 64), "Hidden widths of the bottom MLP, which takes numbers.", from_data=True
    )
    top: tuple[int, ...] = opt((512, 256), "Hidden widths of the top MLP.", from_data=True)
    first_order: bool = opt(False, "Also a weight for each id and number.", absent=False, from_data=True)
    from_baseline: bool = opt(
        False,
        "First-order weights begin as those of the logistic regression, not with 0.",
        absent=False,
        from_data=True,
    )


@dataclass(frozen=True)
class MFOptions:
    """The options of matrix factorization."""

    mean: bool = opt(True, "Add the mean target to every score.")
    biases: bool = opt(True, "Also a number for each user and item.")
    from_baseline: bool = opt(
        False, "Biases begin as those of the baseline, not with 0.", absent=False, from_data=True
    )


@dataclass(frozen=True)
class NCFOptions:
    """The options of neural collaborative filtering."""

    hidden: tuple[int, ...] = opt((128, 128, 32), "Hidden widths of the MLP.")
    mean: bool = opt(True, "Add the mean target to every score.")


MODEL_OPTIONS: dict[str, type] = {"dlrm": DLRMOptions, "mf": MFOptions, "ncf": NCFOptions}


def model_options(model: str | None = None) -> Mapping[str, Option]:
    """The options of a model, or of all, by name; the help of each says which models have it."""
    known = MODEL_OPTIONS if model is None else {model: MODEL_OPTIONS[model]}
    return _joined(tuple(known.items()))


@cache
def _joined(models: tuple[tuple[str, type], ...]) -> Mapping[str, Option]:
    of_models: dict[str, dict[str, Option]] = {}
    for model, declaration in models:
        for name, option in options_of(declaration).items():
            of_models.setdefault(name, {})[model] = option
    return MappingProxyType({name: _one(name, options) for name, options in of_models.items()})


def _one(name: str, options: Mapping[str, Option]) -> Option:
    """The option of all models that have one of this name: it must be of one kind."""
    first = next(iter(options.values()))
    for model, option in options.items():
        if (option.kind, option.absent) != (first.kind, first.absent):
            raise TypeError(f"{name} of {model} must be {first.in_words}, as of {next(iter(options))}")
    models_of: dict[str, list[str]] = {}
    for model, option in options.items():
        default = "from the data" if option.from_data else option.text(option.default)
        text = f"{option.help.removesuffix('.')} (default: {default})."
        models_of.setdefault(text, []).append(model)
    return replace(
        first,
        help=" ".join(f"{', '.join(models)}: {text}" for text, models in models_of.items()),
        panel=first.panel or PANEL,
        from_data=any(option.from_data for option in options.values()),
    )
