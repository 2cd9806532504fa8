"""The options of a training run: each is declared here once, as a field. Trains nothing.

A field makes a flag of `mixdim train`, a key of TOML files and records, a part of the run's key and a
line of docs/options.md. The options of models are in model_options.py, and what a run does where its
config says nothing in resolution.py.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mixdim._util.lazy import import_later
from mixdim._util.options import Option, opt, options_of
from mixdim.planning.plan import OPTIMIZER_NAMES, Plan
from mixdim.runs.model_options import MODEL_OPTIONS, declarations, model_options

if TYPE_CHECKING:
    import tomli_w

    from mixdim.data import Dataset
    from mixdim.runs import resolution
    from mixdim.training.options import TrainingOptions

import_later(globals(), tomli_w="tomli_w", resolution="mixdim.runs.resolution")  # the latter has torch

MODEL, WIDTHS, TRAINING = "Model", "Widths", "Training (defaults: the preset)"
OF_MODEL = "model_options"
RANKING_USERS = 1000


@dataclass(frozen=True)
class RunConfig:
    """The options of `mixdim train`; None is what was not given. `of` takes those of models by name too.

    >>> config = RunConfig.of(model="dlrm", base_dim=16, bottom=[64, 32])
    >>> config.given()
    {'model': 'dlrm', 'bottom': (64, 32), 'base_dim': 16}
    >>> config.merged_with(RunConfig(base_dim=8, lr=0.1)).base_dim
    16
    """

    data: str | None = opt(help="A prepared folder.", metavar="<path>", decides=False)
    model: str | None = opt(
        help=f"One of {', '.join(MODEL_OPTIONS)}; if not given, dlrm for clicks, and for ratings "
        "mf of two features, deepfm of others.",
        panel=MODEL,
    )
    model_options: Mapping[str, Any] = field(default_factory=dict)  # those of the model's own
    init: str | None = opt(
        help="How weights are drawn: xavier, he_fan_in or he_fan_out; or aligned, with projections that "
        "begin as parts of the identity.",
        panel=MODEL,
        from_data=True,
    )
    temperature: float | None = opt(
        help="0 gives every row one width, 1 widths in proportion to popularity; 0.3 if only one of "
        "--base-dim and --budget is given.",
        panel=WIDTHS,
    )
    base_dim: int | None = opt(help="Width of the most popular block.", panel=WIDTHS)
    budget: str | None = opt(
        help="Of the embeddings: parameters (2000000, 2M, 2^21), float32 bytes (64MB), or width:2, what "
        "uniform width 2 has.",
        panel=WIDTHS,
    )
    bands: int | Literal["octaves"] | None = opt(
        help="Bands of equal popularity a feature, or octaves of counts; the model's own number if not "
        "given.",
        panel=WIDTHS,
    )
    rounding: str | None = opt(
        help="Of widths: power_of_two, integer or fill; power_of_two if not given.", panel=WIDTHS
    )
    min_dim: int | None = opt(help="1, or 0: the rarest blocks share one row.", panel=WIDTHS, absent=1)
    method: str | None = opt(
        help="Instead of a temperature, with a budget in bytes: cut, octaves, robe, ...", panel=WIDTHS
    )
    bits: int | None = opt(
        help="Bits of a number when served: 1 to 6 or 8 quantize after training; 32 if not given.",
        panel=WIDTHS,
        absent=32,
    )
    plan: str | None = opt(help="A saved plan, instead of all these.", panel=WIDTHS, metavar="<path>")
    preset: str | None = opt(
        help="auto, chosen from the data, or paper-ctr, paper-cf: the paper's; auto if not given.",
        panel=TRAINING,
    )
    optimizer: str | None = opt(help=f"One of {', '.join(OPTIMIZER_NAMES)}.", panel=TRAINING)
    lr: float | None = opt(help="Learning rate of all but tables.", panel=TRAINING, from_data=True)
    table_lr: float | None = opt(
        help="Learning rate of tables of embeddings; --lr if the preset has one rate for all.",
        panel=TRAINING,
        from_data=True,
    )
    weight_decay: float | None = opt(
        help="Decoupled weight decay; 0 disables it.", panel=TRAINING, absent=0.0, from_data=True
    )
    table_decay: float | None = opt(
        help="Weight decay of tables of embeddings; --weight-decay if not given.",
        panel=TRAINING,
        from_data=True,
    )
    decay_by: str | None = opt(
        help="Of tables, decay all rows at every step (time), or the rows of the batch (request).",
        panel=TRAINING,
        absent="request",
        from_data=True,
    )
    schedule: str | None = opt(
        help="How learning rates change: constant, or to 0 over all epochs: linear or cosine.",
        panel=TRAINING,
        absent="constant",
        from_data=True,
    )
    penalty: float | None = opt(
        help="Strength of a penalty on what ratings look up, in their loss; 0 disables it.",
        panel=TRAINING,
        absent=0.0,
        from_data=True,
    )
    batch_size: int | None = opt(help="Samples a step.", panel=TRAINING, from_data=True)
    epochs: int | None = opt(help="Most passes over the training rows.", panel=TRAINING, from_data=True)
    patience: int | None = opt(
        help="Evaluations without improvement before training stops; 0 never stops early.",
        panel=TRAINING,
        from_data=True,
    )
    evaluations_per_epoch: int | None = opt(
        help="How often the validation split is measured.", panel=TRAINING, from_data=True
    )
    checkpoint_every: int | None = opt(
        help="Steps between checkpoints; every 5 minutes if not given.", panel=TRAINING, decides=False
    )
    shuffle: bool | None = opt(help="Shuffle rows every epoch.", panel=TRAINING)
    unknown_dropout: bool | None = opt(
        help="Ids become unknown with probability 1/(1 + count), to train that row.",
        panel=TRAINING,
        absent=False,
        from_data=True,
    )
    seed: int | None = opt(help="Decides everything that is random; 0 if not given.", panel=TRAINING)
    slice_by: str | None = opt(
        help="Feature whose popularity cuts the metrics into thirds; if not given, item or the one with "
        "most rows.",
        panel=TRAINING,
    )
    ranking_users: int | None = opt(
        help="recall@10 and ndcg@10, for data with negatives: of so many users where the output of the "
        "model is no dot product; 1000 if not given, 0 skips them there.",
        panel=TRAINING,
        decides=False,
    )
    distributed: bool | None = opt(
        help="Train on all processes that torchrun started.", panel=TRAINING, flags=("--distributed",)
    )
    tensorboard: bool | None = opt(
        help="Also write curves to the run's folder tensorboard.", panel=TRAINING, decides=False
    )

    def __post_init__(self) -> None:
        given = {name: value for name, value in self.model_options.items() if value is not None}
        object.__setattr__(self, OF_MODEL, given)

    def __hash__(self) -> int:
        return hash(frozenset(self.given().items()))

    @classmethod
    def of(cls, **options: Any) -> RunConfig:
        """A config of options by name, those of models too; names and kinds are checked."""
        known, values = run_options(), {}
        for name, value in options.items():
            if name not in known:
                raise ValueError(f"there is no option {name!r}; the options are {', '.join(known)}")
            if name == "budget" and type(value) is int:
                value = str(value)
            values[name] = None if value is None else known[name].check(value)
        own = {name: values.pop(name) for name in model_options() if name in values}
        return cls(**values, model_options=own)

    def given(self) -> dict[str, Any]:
        """The options that are not None, by name, those of the model too."""
        return {name: value for name, value in self.to_dict().items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """All options of runs and those that are given of models, by name: as records hold them."""
        found: dict[str, Any] = {}
        for name in (one.name for one in fields(self)):
            found |= self.model_options if name == OF_MODEL else {name: getattr(self, name)}
        return found

    def merged_with(self, other: RunConfig) -> RunConfig:
        """What this config gives and, where it gives nothing, what the other does."""
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name != OF_MODEL}
        given = {name: value for name, value in own.items() if value is not None}
        return replace(other, **given, model_options={**other.model_options, **self.model_options})

    def resolved(self, dataset: Dataset) -> RunConfig:
        """Fill in what is not given, for a data set; paths are absolute then."""
        return resolution.resolved_on(self, dataset)

    def resolved_for(
        self,
        task: str,
        untrained_unknown: Collection[str] = (),
        *,
        train_rows: int | None = None,
        num_ids: int = 0,
        features: tuple[str, ...] = (),
    ) -> RunConfig:
        """Fill in what is not given, for data of a task and size: see `resolution.resolved_for`."""
        return resolution.resolved_for(
            self,
            task,
            untrained_unknown,
            train_rows=train_rows,
            num_ids=num_ids,
            features=features,
        )

    def training_options(self) -> TrainingOptions:
        """The part of a resolved config that `mixdim.fit` takes."""
        return resolution.training_options(self)

    @property
    def ranking_sample(self) -> int:
        """How many users are ranked for where the output of the model is no dot product."""
        return RANKING_USERS if self.ranking_users is None else self.ranking_users

    def key(self, fingerprint: str, *, model_budget: int | None = None) -> str:
        """Name the run by what decides its result: a resolved config and the fingerprint of the data.

        Options count that differ from what runs did before there were such options, so a new option
        changes no key of runs that do not use it. Of a plan's file its content counts. `model_budget` is
        for a budget that no base_dim meets, so that the config has none.

        >>> config = RunConfig(data="here", model="mf", preset="paper-cf", base_dim=8)
        >>> config = config.resolved_for("rating")
        >>> config.key("f00d") == replace(config, data="there").key("f00d")
        True
        >>> config.key("f00d") == replace(config, seed=1).key("f00d")
        False
        """
        known = run_options()
        options = comparable(self.to_dict())
        decisive = {name: value for name, value in options.items() if known[name].decides}
        if self.plan is not None:
            decisive["plan"] = _digest(Plan.load(Path(self.plan)).to_json())
        if model_budget is not None:
            decisive["model_budget"] = model_budget
        return _digest(canonical({"config": decisive, "data": fingerprint}))

    def to_toml(self, *, comments: bool = False) -> str:
        """Write what is given as TOML; with `comments` all options of its model, with their help."""
        if not comments:
            return "".join(f"{_toml(name, value)}\n" for name, value in self.given().items())
        lines = ["# Options of `mixdim train --config FILE`; those in comments are not given.", ""]
        panel, values = None, self.to_dict()
        model = self.model if self.model in declarations() else None
        if not self.model_options.keys() <= model_options(model).keys():
            model = None  # such a config is refused once it is resolved
        for name, option in run_options(model).items():
            if option.panel not in ("", panel):
                panel = option.panel
                lines += [f"# {panel}", ""]
            lines.append(f"# {option.help}")
            value = values.get(name)
            lines += [f"# {name} =" if value is None else _toml(name, value), ""]
        return "\n".join(lines)


def run_options(model: str | None = None) -> dict[str, Option]:
    """The options of runs of a model, or of all, by name and in the order of `--help`."""
    found: dict[str, Option] = {}
    declared = options_of(RunConfig)
    for one in fields(RunConfig):
        found |= model_options(model) if one.name == OF_MODEL else {one.name: declared[one.name]}
    return found


def read_config(path: Path) -> RunConfig:
    """Read a TOML file of options, named as the flags of `mixdim train`, with - or _."""
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    try:
        return RunConfig.of(**{name.replace("-", "_"): value for name, value in entries.items()})
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def comparable(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a recorded config that say something: those that are not as if they were absent.

    A record from before an option was added has no value of it; a run of a model that does not have the
    option has none either. Both did the same as a run that has the value from before.
    """
    known = run_options()
    absent = {name: option.absent for name, option in known.items()}
    return {
        name: value
        for name, value in config.items()
        if value is not None and canonical(value) != canonical(absent.get(name))
    }


def canonical(value: Any) -> str:
    """A value as JSON that is the same for equal values, whatever the order of their keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _toml(name: str, value: Any) -> str:
    if isinstance(value, tuple):
        return f"{name} = {list(value)}"  # in one line
    return tomli_w.dumps({name: value}).rstrip("\n")


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
