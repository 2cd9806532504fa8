"""What a run does where its config says nothing: presets, the paper's settings, what the data decides.

Knows nothing about flags and files of options.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from mixdim.data import Dataset
from mixdim.models import Facts, model_named
from mixdim.planning.budget import BYTES_PER_PARAMETER, is_in_bytes, parse_bytes
from mixdim.planning.methods import method_named
from mixdim.runs.config import RunConfig, run_options
from mixdim.runs.models import facts_of
from mixdim.runs.plans import plan_of
from mixdim.storages.rows import check_bits
from mixdim.tasks import TASKS, task_of
from mixdim.training.auto import auto_options
from mixdim.training.options import AUTO, TrainingOptions, check_preset, preset

WIDTHS = ("temperature", "base_dim", "budget", "method", "plan")
BASE_DIM, BITS = 16, 4  # if nothing is said of widths: bits cost least where ids carry the signal
WEIGHTS_SHARE = 0.25  # of a budget: first-order weights that take more are off unless they are wanted
TEMPERATURE = 0.3  # where the paper's Fig. 2 is at its best
MOST_BANDS = 1024  # of a feature
# A stronger one turns the vectors of ids that share rows off; one value was tried.
SHARED_ROWS_PENALTY = 0.4
# Of a run's options to train.
MAY_BE_MISSING = ("table_lr", "table_decay", "checkpoint_every", "slice_by")


def resolved_on(config: RunConfig, dataset: Dataset) -> RunConfig:
    """Fill in what a config does not give, for a data set; paths are absolute then."""
    start, stop = dataset.splits["train"]
    model = default_model(dataset) if config.model is None else config.model
    found = resolved_for(
        replace(config, model=model),
        dataset.task,
        dataset.untrained_unknown,
        train_rows=max(1, stop - start),
        num_ids=sum(map(len, dataset.counts.values())),
        features=tuple(dataset.feature_names),
    )
    plan = None if config.plan is None else str(Path(config.plan).resolve())
    found = replace(found, data=str(dataset.path.resolve()), plan=plan)
    is_chosen = config.table_decay is None and found.table_decay is not None
    if is_chosen and (gives_size(found) or found.plan is not None):
        found = replace(found, table_decay=decay_for_width(found, dataset))
    return found


def gives_size(config: RunConfig) -> bool:
    """Whether a config says how large embeddings are; its plan follows."""
    return config.base_dim is not None or config.budget is not None


def decay_for_width(config: RunConfig, dataset: Dataset) -> float:
    """The decay of tables that the preset means for a width of 16, for the mean width of a run's rows.

    Narrower vectors overfit less: see docs/training.md.
    """
    assert config.table_decay is not None
    plan = plan_of(config, dataset).trainable()
    return float(f"{config.table_decay * plan.table_parameters / plan.num_rows / BASE_DIM:.2g}")


def resolved_for(
    config: RunConfig,
    task: str,
    untrained_unknown: Collection[str] = (),
    *,
    train_rows: int | None = None,
    num_ids: int = 0,
    features: tuple[str, ...] = (),
) -> RunConfig:
    """Fill in what a config does not give: the preset, and the paper's settings.

    The preset "auto" chooses from the numbers of `train_rows` and ids, and from `untrained_unknown`, the
    features of the data whose row for unknown values no training row asks for.
    """
    name = task_of(task).default_model if config.model is None else config.model
    model, found = model_named(name), without_data(replace(config, model=name))
    if found.preset == AUTO:
        if train_rows is None:
            raise ValueError("preset auto chooses from the data: say how many train_rows it has")
        facts = Facts(features, train_rows=train_rows, num_ids=num_ids)
        own = dict(vars(model.auto(facts)))
        if "first_order" in own and not _can_afford_weights(config, num_ids):
            own["first_order"] = False
        if "vectors" in own and task_of(task).pace.by_time is None:
            own["vectors"] = False  # measured with clicks alone
        training = auto_options(
            task,
            train_rows,
            untrained_unknown=untrained_unknown,
            optimizer=str(found.optimizer),
            lr=config.lr,
            shows_vectors=model.shows_vectors,
            by_time=bool(own.get("vectors") and config.model_options.get("vectors", True)),
        )
        if training.penalty and config.method is not None and method_named(config.method).shares_rows:
            training = replace(training, penalty=SHARED_ROWS_PENALTY)
        if config.weight_decay is not None:
            training = replace(training, table_decay=None)  # it is that of all
        begins_wide = training.penalty or training.decay_by == "time"
        init = "aligned" if begins_wide else "xavier"
        found = found.merged_with(replace(_defaults_of(training, own), init=init))
    options = found.model_options
    contains = model.contains(task_of(task).baseline, model.Options(**options))
    if not options.get("from_baseline") or contains:
        return found
    if config.model_options.get("from_baseline"):
        tasks = [repr(one.name) for one in TASKS.values() if one.baseline in model.baselines]
        needs = [*model.baseline_needs, f"data with the task {' or '.join(tasks)}"]
        raise ValueError(f"from_baseline of model {name!r} needs {' and '.join(needs)}")
    return replace(found, model_options={**options, "from_baseline": False})


def gives_widths(config: RunConfig) -> bool:
    """Whether a config says anything of how wide vectors are."""
    return any(getattr(config, name) is not None for name in WIDTHS)


def default_model(dataset: Dataset) -> str:
    """The model of a data set if nobody says: that of its task, if it reads such features."""
    task = task_of(dataset.task)
    reads = model_named(task.default_model).takes.reads(facts_of(dataset))
    return task.default_model if reads else task.any_features_model


def without_data(config: RunConfig) -> RunConfig:
    """Fill in what a config does not give and no data decides."""
    if not gives_widths(config):
        bits = BITS if config.bits is None else config.bits
        config = replace(config, temperature=0.0, base_dim=BASE_DIM, bits=bits)
    model = None if config.model is None else model_named(config.model)
    _refuse_widths(config)
    decided = config.plan is not None or config.method is not None  # the widths
    if model is not None:
        own = vars(model.Options())
        for option in sorted(config.model_options.keys() - own.keys()):
            raise ValueError(f"{option} is no option of model {config.model!r}; it has {', '.join(own)}")
    if config.bits is not None:
        check_bits(config.bits)
    if isinstance(config.bands, int) and config.bands > MOST_BANDS:
        raise ValueError(
            f"bands of a run must be at most {MOST_BANDS:,}, got {config.bands}: "
            "each is a table of its own"
        )
    name = check_preset(AUTO if config.preset is None else config.preset)
    found = config.merged_with(
        RunConfig(
            temperature=None if decided else _temperature(config),
            rounding=None if decided else "power_of_two",
            min_dim=None if decided else 1,
            bands=None if decided or model is None else model.bands,
            bits=None if config.plan is not None else 32,  # a plan has its own
            preset=name,
            init=None if name == AUTO else "xavier",
            tensorboard=False,
        )
    )
    if name == AUTO:
        chosen = {name for name, option in run_options().items() if option.from_data}
        any_data = _defaults_of(
            auto_options("binary", 1), {} if model is None else dict(vars(model.Options()))
        )
        kept = {name: value for name, value in any_data.given().items() if name not in chosen}
        return found.merged_with(RunConfig.of(**kept))
    return found.merged_with(
        _defaults_of(preset(name), {} if model is None else dict(vars(model.Options())))
    )


def _can_afford_weights(config: RunConfig, num_ids: int) -> bool:
    """Whether first-order weights take at most a quarter of a budget in bytes.

    Methods are compared at many sizes: there all bytes are for vectors.
    """
    if config.method is not None:
        return False
    if config.budget is None or not is_in_bytes(config.budget):
        return True
    own = BYTES_PER_PARAMETER * num_ids
    return own <= WEIGHTS_SHARE * parse_bytes(config.budget)


def check_resolved(config: RunConfig) -> None:
    """Refuse what no run writes: an option is missing, or does not fit the others."""
    filled = without_data(config)
    training = (field.name for field in fields(TrainingOptions) if field.name not in MAY_BE_MISSING)
    needed = ["model", "init", "preset", *training]
    missing = [name for name in needed if getattr(config, name) is None]
    if config.model is not None:
        own = vars(model_named(config.model).Options())
        missing += [name for name in own if name not in config.model_options]
    if missing:
        raise ValueError(f"lacks {', '.join(missing)}: a run is started with a value of each")
    training_options(filled)


def training_options(config: RunConfig) -> TrainingOptions:
    """The part of a resolved config that `mixdim.fit` takes."""
    names = {field.name for field in fields(TrainingOptions)} - {"patience"}
    return TrainingOptions(
        **{name: getattr(config, name) for name in names}, patience=config.patience or None
    )


def _defaults_of(training: TrainingOptions, own: dict[str, Any]) -> RunConfig:
    """A config that says how to train, and a model's own options."""
    return RunConfig(**{**vars(training), "patience": training.patience or 0}, model_options=own)


def _temperature(config: RunConfig) -> float | None:
    """The temperature where one of base_dim and budget is given without it; both solve it."""
    return TEMPERATURE if (config.base_dim is None) != (config.budget is None) else None


def _refuse_widths(config: RunConfig) -> None:
    """Refuse options that a plan or a method decides."""
    if config.plan is None and config.method is None:
        return
    decided = ["temperature", "bands", "rounding", "min_dim"]
    by, why = "method", "a method chooses its widths"
    if config.plan is not None:
        by, why = "plan", "a plan has its widths"
        decided += ["base_dim", "budget", "method"]
    for option in decided:
        if getattr(config, option) is not None:
            raise ValueError(f"give {by} or {option}, not both: {why}")
    if config.plan is None and config.method is not None:
        if config.budget is None:
            raise ValueError("a method needs a budget in bytes, such as 4MB")
        method_named(config.method)
