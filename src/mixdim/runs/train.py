"""A training run: plan, build, train, come back to it. Knows nothing about what is in the loop."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mixdim._util.files import write_atomically
from mixdim._util.locks import alone_at_work
from mixdim.data import Dataset
from mixdim.models import Model
from mixdim.planning.budget import format_bytes, parse_bytes
from mixdim.planning.from_counts import plan as make_plan
from mixdim.planning.methods import plan_by_method
from mixdim.planning.plan import Plan
from mixdim.planning.table import rule_in_words
from mixdim.runs.beginning import begin
from mixdim.runs.config import RunConfig, read_config
from mixdim.runs.embeddings import check_servable, embedding_bytes, served
from mixdim.runs.folder import (
    CONFIG,
    PLAN,
    SUMMARY,
    TUNING,
    empty,
    make_run_folder,
    remove_unfinished,
)
from mixdim.runs.memory import require_memory
from mixdim.runs.models import build_model, check_fits, check_shares
from mixdim.runs.summary import read_curve, read_summary, summarize
from mixdim.runs.trained import WEIGHTS, TrainedRun, check_features, open_for
from mixdim.tasks import task_of
from mixdim.training import Learner, LocalLearner, Trainer, evaluate
from mixdim.training.auto import in_words
from mixdim.training.baselines import Baselines, baselines_of
from mixdim.training.evaluation import Progress, feature_to_slice_by
from mixdim.training.group import ALONE, Group
from mixdim.training.inputs import num_rows
from mixdim.training.memory import available_memory
from mixdim.training.options import AUTO, check_preset
from mixdim.training.resumption import MAY_CHANGE

GO_ON = "torchrun --nproc-per-node 2 -m mixdim train --distributed --resume --out"
NAMED = 3  # features in a line that says why

Echo = Callable[[str], None]


def train_run(
    config: RunConfig,
    out: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    echo: Echo = lambda line: None,
    known_baselines: Mapping[str, Baselines] | None = None,
    tuned: Mapping[str, Any] | None = None,
) -> TrainedRun:
    """Train as the config says, and keep everything in the folder `out`.

    - `known_baselines` were measured before, by the fingerprint of their data: they are not made again.
    - `tuned`: what was tried to find the config's weight decay; the summary tells of it.
    """
    if resume and overwrite:
        raise ValueError("give --resume or --overwrite, not both")
    saved, planned = out / CONFIG, out / PLAN
    if resume and saved.is_file():
        config = continued(config, read_config(saved), out)
    if config.distributed:
        raise ValueError(f"{out} is of many processes: go on with {GO_ON} {out}")
    if config.data is None:
        raise ValueError(f"{out} holds no run to resume" if resume else "data is missing: give --data")
    dataset = Dataset(config.data)
    task = task_of(dataset.task)
    config = config.resolved(dataset)
    check_fits(config, dataset)
    feature_to_slice_by(dataset, config.slice_by)  # now, before there is a folder
    options = config.training_options()
    plan = plan_of(config, dataset)
    trained = plan.trainable()
    if resume and planned.is_file() and Plan.load(planned) != plan:
        if config.plan is not None:
            raise ValueError(f"{out} was started with another plan than {config.plan} holds now")
        raise ValueError(f"{out} was started on other data than {dataset.path} holds now")
    if resume and (out / SUMMARY).is_file():
        summary = read_summary(out)
        if "compressed_from" in summary:
            raise ValueError(
                f"{out} was made by mixdim compress and is not trained on: its plan can be trained anew "
                f"with --plan {planned}"
            )
        if is_finished(summary, config):
            echo(f"{out} is finished already")
            return TrainedRun(summary, read_curve(out, task), lambda: open_for(out, dataset).model)
    available = available_memory()
    forecast = require_memory(config, trained, dataset, available=available)
    with begun(out, config, plan, resume=resume, overwrite=overwrite):
        if tuned is not None:
            write_atomically(out / TUNING, json.dumps(tuned, indent=2) + "\n")
        torch.manual_seed(options.seed)
        mean = task.constant_output(dataset.mean_target)
        model = build_model(config, trained, num_dense=dataset.num_dense, mean=mean)
        from_baseline = bool(config.model_options.get("from_baseline"))
        logistic = begin(model, dataset, from_baseline=from_baseline, progress=progress)
        for line in opening_lines(config, plan, model, dataset):
            echo(line)
        echo(f"memory: about {forecast}, {forecast.share_of(available)}")
        summary = trained_summary(
            LocalLearner(model, options),
            model,
            config,
            plan,
            dataset,
            out,
            resume=resume,
            progress=progress,
            baselines=(known_baselines or {}).get(dataset.fingerprint),
            logistic=logistic,
        )
        if (out / TUNING).is_file():  # also from before a resumption
            summary["tuning"] = json.loads((out / TUNING).read_bytes())
        if not plan.is_trained:
            model = served(model, plan)
            summary |= _measured_as_served(model, summary, out, dataset, progress)
        page = json.dumps(summary, indent=2) + "\n"
        write_atomically(out / SUMMARY, page)
        return TrainedRun(json.loads(page), read_curve(out, task), lambda: model)


@contextmanager
def begun(
    out: Path,
    config: RunConfig,
    plan: Plan,
    *,
    resume: bool,
    overwrite: bool,
    group: Group = ALONE,
) -> Iterator[None]:
    """Hold the folder of a run, with its config and plan written; process 0 does that for all."""
    with ExitStack() as held:

        def begin() -> None:
            if group.rank > 0:
                return
            make_run_folder(out, resume=resume, overwrite=overwrite)
            held.enter_context(alone_at_work(out))
            if not resume:
                empty(out)
            remove_unfinished(out)
            write_atomically(out / CONFIG, config.to_toml())
            plan.save(out / PLAN)

        group.together(begin, ValueError, OSError)
        yield


def trained_summary(
    learner: Learner,
    model: Model,
    config: RunConfig,
    plan: Plan,
    dataset: Dataset,
    out: Path,
    *,
    resume: bool,
    progress: Progress | None,
    group: Group = ALONE,
    baselines: Baselines | None = None,
    logistic: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Train, and put together what `summary.json` says; in a group all processes return it.

    - `model` is that of one process: only its shapes are read.
    - `baselines` of the data, if they are known; `logistic` is a part of them that is.
    """
    trainer = Trainer(
        learner,
        dataset,
        config.training_options(),
        out=out,
        group=group,
        progress=progress,
        tensorboard=bool(config.tensorboard),
    )
    result = trainer.run(resume=resume)

    def summary() -> dict[str, Any]:
        known = baselines or baselines_of(dataset, logistic=logistic, progress=progress)
        return summarize(config, plan, model, result, dataset, known)

    return group.first(summary)


def plan_of(config: RunConfig, dataset: Dataset) -> Plan:
    """The plan that a config asks for, of the features of a data set, as it is served."""
    bits = 32 if config.bits is None else config.bits
    if config.plan is not None:
        plan = Plan.load(config.plan)
        check_features(plan, dataset, f"the plan {config.plan}")
        if config.bits is not None and not plan.is_trained:
            raise ValueError(f"the plan {config.plan} is quantized already: leave out bits={bits}")
        check_servable(plan)
        return plan.quantized(bits)
    if config.method is not None:
        assert config.budget is not None
        num_bytes = parse_bytes(config.budget)
        plan = plan_by_method(config.method, dataset, num_bytes, base_dim=config.base_dim, bits=bits)
        check_shares(config, plan)
        return plan
    assert config.bands is not None
    assert config.min_dim is not None
    plan = make_plan(
        dataset,
        temperature=config.temperature,
        base_dim=config.base_dim,
        budget=config.budget,
        bands=config.bands,
        rounding=config.rounding,  # type: ignore[arg-type]  # plan() checks it and lists the choices
        min_dim=config.min_dim,
    )
    return plan.quantized(bits)


def _measured_as_served(
    model: Model, summary: dict[str, Any], out: Path, dataset: Dataset, progress: Progress | None
) -> dict[str, Any]:
    """What a summary says of quantized embeddings: of the best weights in `model`, and of the last."""
    steps = {which: summary["validation"][which]["step"] for which in WEIGHTS}
    of_step = {steps["best"]: model}
    if steps["last"] not in of_step:
        of_step[steps["last"]] = open_for(out, dataset, "last").model
    measured: dict[str, Any] = {"embedding_bytes": embedding_bytes(model)}
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


def is_finished(summary: Mapping[str, Any], config: RunConfig) -> bool:
    """Whether a run has come to the end that the config asks for."""
    return bool(summary["epochs"] == config.epochs and summary["patience"] == config.patience)


def continued(given: RunConfig, saved: RunConfig, out: Path) -> RunConfig:
    """The saved config of a run, with what may change; refuse what may not."""
    before_of = saved.to_dict()
    for name, value in given.given().items():
        before = before_of.get(name)
        now = str(Path(value).resolve()) if name in ("data", "plan") else value
        if name == "preset" and before is not None:
            now = check_preset(value)
        if now != before and name not in MAY_CHANGE:
            raise ValueError(f"{out} was started with {name}={before!r}, not {value!r}")
    return replace(given, data=None).merged_with(saved)


def _unknown_dropout_line(untrained: Sequence[str]) -> str:
    """Say that it is on and, if so, why it is the default."""
    line = "unknown dropout: ids become unknown with probability 1/(1 + count)"
    if not untrained:
        return line
    named = ", ".join(untrained[:NAMED])
    others = f" and {len(untrained) - NAMED} others" if len(untrained) > NAMED else ""
    return f"{line}, since no row to train on has an unknown {named}{others}"


def opening_lines(config: RunConfig, plan: Plan, model: Model, dataset: Dataset) -> list[str]:
    """What is trained and how, of a resolved config."""
    lines = [_model_line(config, plan, model)]
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
        f"({rule_in_words(plan.made_by)}, base_dim {plan.base_dim}, "
        f"{len(widths)} blocks of width {min(widths)} to {max(widths)})"
    )
    if model.first_order is not None:
        line += f", {model.first_order.num_weights:,} first-order weights, which no budget counts"
    return line
