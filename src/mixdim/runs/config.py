"""What a training run was told: options from flags, a TOML file and presets. Trains nothing."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import tomli_w

from mixdim.models import Facts, model_named
from mixdim.planning.bands import OCTAVES
from mixdim.planning.methods import method_named
from mixdim.runs.models import OPTIONS_OF_MODELS, option_names, options_of
from mixdim.storages.rows import check_bits
from mixdim.tasks import TASKS, task_of
from mixdim.training.auto import auto_options
from mixdim.training.options import AUTO, TrainingOptions, check_preset, preset

if TYPE_CHECKING:
    from mixdim.data import Dataset

TEMPERATURE = 0.3  # where the paper's Fig. 2 is at its best
# What the preset "auto" chooses from the data.
CHOSEN_FROM_DATA = frozenset({
    *("lr", "table_lr", "batch_size", "epochs", "patience", "evaluations_per_epoch", "weight_decay"),
    *("unknown_dropout", "bottom", "top", "hidden", "cross_layers", "cross_rank"),
    *("first_order", "from_baseline"),
})  # fmt: skip


@dataclass(frozen=True)
class RunConfig:
    """The options of `mixdim train`; None is what was not said.

    `effective` fills in everything that was not said; what it returns is saved with the run.
    """

    data: str | None = None
    model: str | None = None
    temperature: float | None = None
    base_dim: int | None = None
    budget: str | None = None
    bands: int | str | None = None  # or "octaves"
    rounding: str | None = None
    min_dim: int | None = None
    method: str | None = None  # with a budget in bytes, in the place of all of these but base_dim
    bits: int | None = None  # of a number when served: 32, 8 or 4. It makes the plan; then ask that
    plan: str | None = None  # a file, in the place of all of these
    preset: str | None = None
    optimizer: str | None = None
    lr: float | None = None
    batch_size: int | None = None
    epochs: int | None = None
    patience: int | None = None  # 0 never stops early
    evaluations_per_epoch: int | None = None
    checkpoint_every: int | None = None
    shuffle: bool | None = None
    seed: int | None = None
    slice_by: str | None = None
    init: str | None = None
    bottom: tuple[int, ...] | None = None  # hidden widths of DLRM's two MLPs, and of others' one
    top: tuple[int, ...] | None = None
    hidden: tuple[int, ...] | None = None
    cross_layers: int | None = None  # DCN: of the cross network, and the rank of its matrices
    cross_rank: int | None = None
    first_order: bool | None = None  # DLRM, DCN: a weight for each id and number beside it
    mean: bool | None = None  # MF and NCF: whether the mean target is added to every score
    biases: bool | None = None  # MF: a number for each user and item
    from_baseline: bool | None = None  # biases or first-order weights begin as its
    tensorboard: bool | None = None
    table_lr: float | None = None  # of embeddings; not said, it is lr
    weight_decay: float | None = None
    unknown_dropout: bool | None = None  # whether ids of training rows become unknown by chance
    distributed: bool | None = None  # many processes, started by torchrun

    def over(self, other: RunConfig) -> RunConfig:
        """What this config says and, where it says nothing, what the other does."""
        return replace(other, **self.said())

    def said(self) -> dict[str, Any]:
        """The options that are not None."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def effective_for(self, dataset: Dataset) -> RunConfig:
        """Fill in what was not said, for a data set."""
        start, stop = dataset.splits["train"]
        num_ids = sum(map(len, dataset.counts.values()))
        train_rows = max(1, stop - start)
        return self.effective(
            dataset.task, dataset.untrained_unknown, train_rows=train_rows, num_ids=num_ids
        )

    def effective(
        self,
        task: str,
        untrained_unknown: Collection[str] = (),
        *,
        train_rows: int | None = None,
        num_ids: int = 0,
    ) -> RunConfig:
        """Fill in what was not said: the preset, and the paper's settings.

        The preset "auto" chooses from the numbers of `train_rows` and ids, and from `untrained_unknown`,
        the features of the data whose row for unknown values no training row asks for.
        """
        model_name = task_of(task).default_model if self.model is None else self.model
        model = model_named(model_name)
        widths: dict[str, Any] = {"bands": model.bands, "rounding": "power_of_two", "min_dim": 1}
        temperature = self.temperature
        if self.plan is not None or self.method is not None:
            self._refuse_widths()
            widths = {}
        elif temperature is None and (self.base_dim is None) != (self.budget is None):
            temperature = TEMPERATURE
        known = option_names(model)
        for option in sorted((OPTIONS_OF_MODELS - {*known}) & self.said().keys()):
            has = ", ".join(known)
            raise ValueError(f"{option} is no option of model {model_name!r}; it has {has}")
        if self.bits is not None:
            check_bits(self.bits)
        name = check_preset(AUTO if self.preset is None else self.preset)
        own = dict(vars(model.Options()))
        if name != AUTO:
            training = preset(name)
        elif train_rows is None:
            raise ValueError("preset auto chooses from the data: say how many train_rows it has")
        else:
            optimizer = self.optimizer or "amsgrad"
            training = auto_options(
                task,
                train_rows,
                untrained_unknown=untrained_unknown,
                optimizer=optimizer,
                lr=self.lr,
            )
            own = dict(vars(model.auto(Facts(train_rows=train_rows, num_ids=num_ids))))
            if self.method is not None and "first_order" in own:
                own |= {"first_order": False}  # methods are compared by the bytes of embeddings alone
        defaults = RunConfig(
            model=model_name,
            temperature=temperature,
            preset=name,
            optimizer=training.optimizer,
            lr=training.lr,
            table_lr=training.table_lr,
            batch_size=training.batch_size,
            epochs=training.epochs,
            patience=training.patience or 0,
            evaluations_per_epoch=training.evaluations_per_epoch,
            shuffle=training.shuffle,
            seed=training.seed,
            init="xavier",
            tensorboard=False,
            weight_decay=training.weight_decay,
            unknown_dropout=training.unknown_dropout,
            bits=None if self.plan is not None else 32,  # a plan has its own
            **widths,
            **own,
        )
        found = replace(self.over(defaults), preset=name)
        if not found.from_baseline or model.contains(task_of(task).baseline, options_of(found)):
            return found
        if self.from_baseline:
            tasks = [repr(one.name) for one in TASKS.values() if one.baseline == model.baseline]
            needs = [*model.baseline_needs, f"data with the task {' or '.join(tasks)}"]
            raise ValueError(f"from_baseline of model {model_name!r} needs {' and '.join(needs)}")
        return replace(found, from_baseline=False)

    def _refuse_widths(self) -> None:
        """Refuse options that a plan or a method decides."""
        decided = ["temperature", "bands", "rounding", "min_dim"]
        by, why = "method", "a method chooses its widths"
        if self.plan is not None:
            by, why = "plan", "a plan has its widths"
            decided += ["base_dim", "budget", "method"]
        for option in decided:
            if getattr(self, option) is not None:
                raise ValueError(f"give {by} or {option}, not both: {why}")
        if self.plan is not None or self.method is None:
            return
        if self.budget is None:
            raise ValueError("a method needs a budget in bytes, such as 4MB")
        method_named(self.method)

    def training_options(self) -> TrainingOptions:
        """The part of an effective config that `mixdim.fit` takes."""
        names = {field.name for field in fields(TrainingOptions)} - {"patience"}
        return TrainingOptions(
            **{name: getattr(self, name) for name in names}, patience=self.patience or None
        )

    def to_toml(self) -> str:
        """Write what was said as TOML."""
        said = self.said()
        return tomli_w.dumps({k: list(v) if isinstance(v, tuple) else v for k, v in said.items()})


def read_config(path: Path) -> RunConfig:
    """Read a TOML file of options, named as the flags of `mixdim train`, with - or _."""
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    try:
        return config_of({name.replace("-", "_"): value for name, value in entries.items()})
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def config_of(entries: Mapping[str, Any]) -> RunConfig:
    """Check names and kinds of options."""
    kinds = get_type_hints(RunConfig)
    known = ", ".join(kinds)
    values = {}
    for name, value in entries.items():
        if name not in kinds:
            raise ValueError(f"there is no option {name!r}; the options are {known}")
        values[name] = None if value is None else _as_kind(name, value, kinds[name])
    return RunConfig(**values)


def _as_kind(name: str, value: Any, kind: UnionType) -> Any:
    wanted = next(option for option in get_args(kind) if option is not type(None))
    if wanted is float and type(value) is int:
        return float(value)
    if name == "budget" and type(value) is int:
        return str(value)
    if name == "bands" and value == OCTAVES:
        return value
    if wanted in (str, int, float, bool):
        if type(value) is not wanted:
            raise TypeError(f"{name} must be {_in_words(wanted)}, got {value!r}")
        return value
    if not isinstance(value, list | tuple) or not all(type(width) is int for width in value):
        raise TypeError(f"{name} must be a list of whole numbers, got {value!r}")
    return tuple(value)


def _in_words(kind: type) -> str:
    return {str: "text", int: "a whole number", float: "a number", bool: "true or false"}[kind]
