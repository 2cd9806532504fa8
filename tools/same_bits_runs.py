"""The cases of same_bits.py that prepare data and train: commands, as a user gives them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

import mixdim
from same_bits_cases import PREPARE, Case
from same_bits_child import (
    Numbers,
    Watch,
    layers_of,
    plan_words,
    run_command,
    state_of,
    under,
    weights_of,
)
from same_bits_names import metrics_of_run, open_data, rounding, rounding_flags

CHILD = Path(__file__).with_name("same_bits_child.py")
MOST_SECONDS = 300  # of torchrun, whose ranks could wait for each other for ever
ANSWERS = 1024  # samples that an exported model is asked


def prepare(case: Case, work: Path, name: str) -> Numbers:
    """Prepare the raw files, for all other cases of this checkout too."""
    found: Numbers = {}
    (work / "data").mkdir()
    for folder, (raw, flags) in PREPARE.items():
        out = work / "data" / folder
        run_command(["prepare", "table", work / "raw" / raw, "--out", out, *flags.split()])
        data = open_data(out)
        for feature, counts in data.counts.items():
            found[f"counts/{folder} {feature}"] = counts
        for split in ("train", "validation", "test"):
            batch = next(data.batches(split, batch_size=10**6))
            found[f"ids/{folder} {split}"] = batch.ids.numpy()
            found[f"numbers/{folder} {split}"] = batch.dense.numpy()
            found[f"targets/{folder} {split}"] = batch.target.numpy()
            for feature, (values, offsets) in batch.bags.items():
                found[f"ids/{folder} {split} {feature}"] = values.numpy()
                found[f"ids/{folder} {split} {feature} offsets"] = offsets.numpy()
        shuffled = data.batches("train", batch_size=500, shuffle=True, seed=5, unknown_dropout=True)
        found[f"shuffled ids/{folder}"] = np.concatenate([batch.ids.numpy() for batch in shuffled])
    return found


def train(case: Case, work: Path, name: str, flags: tuple[str, ...] = ()) -> Numbers:
    """Train a run; returns all that is known of it."""
    out = work / "runs" / name
    with Watch() as watch:
        run_command([*train_command(case, work, out), *flags])
    return {**state_of(*watch.trained()), **_of_run(case, work, out)}


def train_command(case: Case, work: Path, out: Path) -> list[Any]:
    """The command that trains a case."""
    flags = rounding_flags("train", case.bits, case.flags.split())
    return ["train", "--data", work / "data" / case.data, "--out", out, *flags]


def train_orders(case: Case, work: Path, name: str) -> Numbers:
    """Train a saved plan of bands whose ids are in another order than that of their popularity."""
    data, rng = open_data(work / "data" / case.data), np.random.default_rng(11)
    plan = mixdim.plan(
        data.cardinalities,
        counts={feature: rng.permutation(counts) for feature, counts in data.counts.items()},
        ids_per_sample=data.ids_per_sample or None,
        bands=3,
        temperature=0.5,
        base_dim=16,
    )
    saved = work / f"{name}.json"
    plan.save(saved)
    return train(case, work, name, ("--plan", str(saved)))


def train_killed(case: Case, work: Path, name: str) -> Numbers:
    """Kill a run between two checkpoints, and go on with it."""
    arguments = list(map(str, train_command(case, work, work / "runs" / name)))
    child = [sys.executable, str(CHILD), "--die-after", "30", "--", *arguments]
    killed = subprocess.run(child, capture_output=True, text=True, check=False, timeout=MOST_SECONDS)
    if killed.returncode != -signal.SIGKILL:
        raise RuntimeError(f"the run was not killed ({killed.returncode}): {killed.stderr}")
    return train(case, work, name, ("--resume",))


def train_ranks(case: Case, work: Path, name: str) -> Numbers:
    """Train on two processes; then go on for an epoch, which takes up what TorchRec keeps of tables.

    What it keeps is not compared itself: the weights of the second epoch follow from it.
    """
    out = work / "runs" / name
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "mixdim"]
    command = [sys.executable, *torchrun, *map(str, train_command(case, work, out)), "--distributed"]
    for more in ([], ["--resume", "--epochs", "3"]):
        done = subprocess.run(
            [*command, *more], capture_output=True, text=True, check=False, timeout=MOST_SECONDS
        )
        if done.returncode:
            raise RuntimeError(f"torchrun failed ({done.returncode}):\n{done.stdout}{done.stderr}")
    return _of_run(case, work, out)


def train_compressed(case: Case, work: Path, name: str) -> Numbers:
    """Train, and make the run small."""
    large, small = work / "runs" / f"{name}-before", work / "runs" / name
    flags = case.flags.split()
    run_command(["train", "--data", work / "data" / case.data, "--out", large, *flags])
    rounded = rounding_flags("compress", case.bits, [])
    run_command(["compress", large, "--budget", "1/4", "--bands", "4", "--out", small, *rounded])
    return _of_run(case, work, small, is_trained=False)


def _of_run(case: Case, work: Path, out: Path, *, is_trained: bool = True) -> Numbers:
    """The weights, best and last, metrics, plan, and the answers of the exported model of a run."""
    found: Numbers = {}
    if is_trained:
        found |= {f"metrics/{place}": np.array(value) for place, value in metrics_of_run(out)}
    for which in ("best", "last") if is_trained else ("best",):
        with Watch() as watch:
            evaluated = run_command([
                *("evaluate", out, "--data", work / "data" / case.data, "--weights", which)
            ])  # fmt: skip
        printed = [float(number) for number in re.findall(r"\d+\.\d+", evaluated)]
        found[f"metrics/evaluate {which}"] = np.array(printed)
        for place, values in weights_of(watch.model).items():
            quantity, _, rest = place.partition("/")
            found[f"{quantity}/{which}, {rest}"] = values
        if which == "best":
            model = watch.model
    found |= {f"plan/{number}": plan_words(layer.plan) for number, layer in enumerate(layers_of(model))}
    found |= _answers(model, work / "data" / case.data, out, 0)
    return found if case.bits else {**found, **_answers(model, work / "data" / case.data, out, 8)}


def _answers(model: torch.nn.Module, folder: Path, out: Path, bits: int) -> Numbers:
    """What ONNX Runtime answers with the exported model, to fixed samples; `bits` round it first."""
    data, path = open_data(folder), out / f"exported-{bits}.onnx"
    bags = [name for name in data.cardinalities if name not in data.single_valued]
    mixdim.export(model, path, bags=bags, **rounding(mixdim.export, bits))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    batch = data.rows(slice(0, ANSWERS))
    inputs = {"ids": batch.ids.to(torch.int64).numpy(), "dense": batch.dense.numpy()}
    for feature, (values, offsets) in batch.bags.items():
        inputs[f"{feature}.values"] = values.to(torch.int64).numpy()
        inputs[f"{feature}.offsets"] = offsets.to(torch.int64).numpy()
    wanted = {entry.name: inputs[entry.name] for entry in session.get_inputs()}
    kind = f"onnx int{bits}" if bits else "onnx"
    answers = {str(number): values for number, values in enumerate(session.run(None, wanted))}
    return under(kind, answers)
