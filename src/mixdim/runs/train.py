"""How a run is trained, on one process or many: from its config to its summary. Knows no loop."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mixdim._util.arguments import whole_number
from mixdim._util.files import write_atomically
from mixdim.data import Dataset
from mixdim.models import Model
from mixdim.planning.budget import format_bytes
from mixdim.planning.plan import Plan
from mixdim.planning.table import rule_in_words
from mixdim.runs.config import RunConfig
from mixdim.runs.distributed import check_shardable, for_ranks, line_about_ranks, shardable, sharded
from mixdim.runs.folder import PLAN, SUMMARY, TUNING
from mixdim.runs.memory import require_memory
from mixdim.runs.models import (
    as_served,
    begin,
    build_model,
    check_fits,
    fit_baseline,
    read_model,
)
from mixdim.runs.plans import plan_of
from mixdim.runs.resolution import BASE_DIM, BITS, gives_widths
from mixdim.runs.summary import sizes_of, summarize
from mixdim.tasks import task_of
from mixdim.training import Learner, LocalLearner, Trainer, evaluate
from mixdim.training.auto import in_words
from mixdim.training.baselines import Baselines, baselines_of
from mixdim.training.evaluation import Progress, feature_to_slice_by
from mixdim.training.group import ALONE, Group
from mixdim.training.inputs import num_rows
from mixdim.training.memory import available_memory
from mixdim.training.options import AUTO, check_preset
from mixdim.training.ranking import not_computed, ranking_metrics
from mixdim.training.resumption import MAY_CHANGE

NAMED = 3  # features in a line that says why

Echo = Callable[[str], None]
Summary = dict[str, Any]


class Planned(NamedTuple):
    """What a run is: all its options, its data, and the plan that it serves."""

    config: RunConfig
    dataset: Dataset
    plan: Plan
    lines: tuple[str, ...] = ()  # what was chosen because nothing was said


class Start(NamedTuple):
    """What training starts with; on many processes, `model` has only the shapes of the whole."""

    learner: Learner
    model: Model
    lines: list[str]
    logistic: dict[str, Any] | None = None  # the part of the baselines that was measured on the way


def planned(config: RunConfig) -> Planned:
    """Fill in what a config does not give, from its data; refuse what cannot be trained."""
    if config.data is None:
        raise ValueError("data is missing: give --data")
    dataset = Dataset(config.data)
    if config.distributed:
        config = for_ranks(config, dataset)
    lines = () if gives_widths(config) else (_line_about_widths(config.bits),)
    config = config.resolved(dataset)
    check_fits(config, dataset)
    feature_to_slice_by(dataset, config.slice_by)
    whole_number(config.ranking_sample, "ranking_users", at_least=0)
    config.training_options()
    plan = plan_of(config, dataset)
    if config.distributed:
        check_shardable(plan)
    return Planned(config, dataset, plan, lines)


def planned_again(
    out: Path, config: RunConfig, plan: Plan, summary: Mapping[str, Any] | None
) -> Planned:
    """The run in a folder, to go on with; refuse one whose plan or data are others than before."""
    found = planned(config)
    if found.plan != plan and config.plan is not None:
        raise ValueError(f"{out} was started with another plan than {config.plan} holds now")
    if found.plan != plan:
        raise ValueError(f"{out} was started on other data than {found.dataset.path} holds now")
    if summary is not None and "compressed_from" in summary:
        raise ValueError(
            f"{out} was made by mixdim compress and is not trained on: its plan can be trained anew "
            f"with --plan {out / PLAN}"
        )
    return found


def continued(given: RunConfig, saved: RunConfig, out: Path) -> RunConfig:
    """The saved config of a run, with what may change; refuse what may not.

    One process may go on with a run of many, and the other way round.
    """
    before_of = saved.to_dict()
    for name, value in given.given().items():
        before = before_of.get(name)
        now = str(Path(value).resolve()) if name in ("data", "plan") else value
        if name == "preset" and before is not None:
            now = check_preset(value)
        if now != before and name not in {*MAY_CHANGE, "distributed"}:
            raise ValueError(f"{out} was started with {name}={before!r}, not {value!r}")
    merged = replace(given, data=None).merged_with(saved)
    return replace(merged, distributed=given.distributed)


def check_group(out: Path, config: RunConfig, group: Group) -> None:
    """Refuse to train with one process what is to be of many, and the other way round."""
    if group is ALONE and config.distributed:
        raise ValueError(
            f"{out} has the option distributed: train(group=...) takes the group of "
            "mixdim.distributed.init()"
        )
    if group is not ALONE and not config.distributed:
        raise ValueError(f"{out} is of one process: many need the option distributed")


def is_finished(summary: Mapping[str, Any], config: RunConfig) -> bool:
    """Whether a run has come to the end that the config asks for."""
    return bool(summary["epochs"] == config.epochs and summary["patience"] == config.patience)


def train(
    out: Path,
    run: Planned,
    *,
    resume: bool,
    group: Group,
    progress: Progress | None,
    echo: Echo | None,
    notes: Sequence[str],
    known_baselines: Mapping[str, Baselines],
    tuned: Mapping[str, Any] | None,
) -> tuple[Summary, Model | None]:
    """Train in a folder that is held; returns the summary and, on one process, the model as served."""
    config, dataset, plan, _ = run
    if tuned is not None and group.rank == 0:
        write_atomically(out / TUNING, json.dumps(tuned, indent=2) + "\n")
    start = _sharded_start(run, group, progress) if config.distributed else _start(run, progress)
    if echo is not None and group.rank == 0:
        for line in (*_opening_lines(run, start.model), *start.lines, *notes):
            echo(line)
    trainer = Trainer(
        start.learner,
        dataset,
        config.training_options(),
        out=out,
        group=group,
        progress=progress,
        tensorboard=bool(config.tensorboard),
        measures_start=_from_baseline(config),
    )
    result = trainer.run(resume=resume)
    known = known_baselines.get(dataset.fingerprint)

    def summarized() -> Summary:
        found = known or baselines_of(dataset, logistic=start.logistic, progress=progress)
        return summarize(config, plan, start.model, result, dataset, found)

    summary, model = group.first(summarized), None
    if config.distributed:
        summary["ranks"] = group.world
        if dataset.pairing is not None:
            summary["test"]["best"] |= not_computed("many processes do not; mixdim evaluate does")
    else:
        model = as_served(start.model, plan)
        if not plan.is_trained:
            summary |= _measured_as_served(model, summary, out, run, progress)
        for split, sample in (("validation", 0), ("test", config.ranking_sample)):
            ranked = ranking_metrics(model, dataset, split, sample=sample, progress=progress)
            summary[split]["best"] = {**summary[split]["best"], **ranked}
    if (out / TUNING).is_file():  # also from before a resumption
        summary["tuning"] = json.loads((out / TUNING).read_bytes())
    page = json.dumps(summary, indent=2) + "\n"
    if group.rank == 0:
        write_atomically(out / SUMMARY, page)
    group.barrier()  # nobody leaves before it is written
    return json.loads(page), model


def _start(run: Planned, progress: Progress | None) -> Start:
    """The model of one process, with its first weights."""
    config, dataset, plan, _ = run
    options = config.training_options()
    torch.manual_seed(options.seed)
    mean = task_of(dataset.task).constant_output(dataset.mean_target)
    model = build_model(config, plan.trainable(), num_dense=dataset.num_dense, mean=mean)
    logistic = begin(model, dataset, from_baseline=_from_baseline(config), progress=progress)
    return Start(LocalLearner(model, options), model, [], logistic)


def _sharded_start(run: Planned, group: Group, progress: Progress | None) -> Start:
    """The model spread over all processes."""
    config, dataset, plan, _ = run
    with torch.device("meta"):
        shapes = build_model(config, plan, num_dense=dataset.num_dense, mean=0.0)
    model = shardable(config, plan, dataset)
    baseline, measured = fit_baseline(
        model, dataset, from_baseline=_from_baseline(config), progress=progress, group=group
    )
    learner = sharded(model, config)
    if baseline is not None:
        learner.module.start_from(baseline)
    return Start(learner, shapes, [line_about_ranks(config, plan, group.world)], measured)


def _from_baseline(config: RunConfig) -> bool:
    return bool(config.model_options.get("from_baseline"))


def _measured_as_served(
    model: Model, summary: Summary, out: Path, run: Planned, progress: Progress | None
) -> Summary:
    """What a summary says of quantized embeddings: of the best weights in `model`, and of the last."""
    config, dataset, plan, _ = run
    steps = {which: summary["validation"][which]["step"] for which in ("best", "last")}
    of_step = {steps["best"]: model}
    if steps["last"] not in of_step:
        last = read_model(out, config, plan, "last", num_dense=dataset.num_dense)
        of_step[steps["last"]] = as_served(last.model, plan)
    measured: dict[str, Any] = sizes_of(model)
    for split in ("validation", "test"):
        metrics = {
            step: evaluate(
                one,
                dataset,
                split,
                batch_size=summary["batch_size"],
                slice_by=summary["slice_feature"],
                progress=progress,
            )
            for step, one in of_step.items()
        }
        measured[split] = {
            which: {**summary[split][which], **metrics[step]} for which, step in steps.items()
        }
    before = {split: summary[split] for split in ("validation", "test")}
    return {**measured, "before_quantizing": before}


# The lines at the beginning.


def _opening_lines(run: Planned, model: Model) -> list[str]:
    """What is trained and how."""
    config, dataset, plan, _ = run
    lines = [*run.lines, _model_line(config, plan, model)]
    if not plan.is_trained:
        served_bytes = format_bytes(plan.nbytes())
        lines.append(f"once trained, embeddings are quantized to {plan.least_bits} bits: {served_bytes}")
    if config.preset == AUTO:
        begins = "; begins as its baseline" if config.model_options.get("from_baseline") else ""
        chosen = in_words(config.training_options(), num_rows(dataset, "train"))
        lines.append(f"preset auto: {chosen}{begins}")
    if config.unknown_dropout:
        lines.append(_unknown_dropout_line(dataset.untrained_unknown))
    return lines


def _model_line(config: RunConfig, plan: Plan, model: Model) -> str:
    plan = plan.trainable()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    widths = [block.dim for block in plan.blocks]
    line = (
        f"{config.model}: {parameters:,} parameters, {plan.num_parameters:,} of them embeddings "
        f"({rule_in_words(plan.provenance)}, base_dim {plan.base_dim}, "
        f"{len(widths)} blocks of width {min(widths)} to {max(widths)})"
    )
    if model.first_order is not None:
        line += f", and {model.first_order.num_weights:,} first-order weights"
    return line


def _line_about_widths(bits: int | None) -> str:
    """What widths a run has that gives none."""
    bits = BITS if bits is None else bits
    served = "" if bits == 32 else f" and served in {bits} bits, about 1/{32 / bits:.2g} of their bytes"
    return (
        f"no widths were given: all vectors are {BASE_DIM} wide{served}; --budget, --base-dim or "
        "--method choose otherwise"
    )


def _unknown_dropout_line(untrained: Sequence[str]) -> str:
    """Say that it is on and, if so, why it is the default."""
    line = "unknown dropout: ids become unknown with probability 1/(1 + count)"
    if not untrained:
        return line
    named = ", ".join(untrained[:NAMED])
    others = f" and {len(untrained) - NAMED} others" if len(untrained) > NAMED else ""
    return f"{line}, since no row to train on has an unknown {named}{others}"


def memory_line(run: Planned) -> str:
    """What the run will need; refuses one that does not fit."""
    available = available_memory()
    forecast = require_memory(run.config, run.plan.trainable(), run.dataset, available=available)
    return f"memory: about {forecast}, {forecast.share_of(available)}"
