"""`mixdim train`, killed again and again and resumed until it is finished.

It must end with the bytes of a run that nobody killed.
"""

import json
import random
import time

from forks import Fork
from mixdim.cli import main as cli
from sweep_runs import timeless

# Steps, evaluations and checkpoints fall on different steps. Every optimizer keeps another state.
TRAINED = {
    "mf": ["--model", "mf", "--optimizer", "amsgrad"],
    "ncf": ["--model", "ncf", "--hidden", "8,4", "--optimizer", "adam"],
    "dlrm": ["--model", "dlrm", "--bottom", "8", "--top", "8", "--optimizer", "adagrad"],
}
OPTIONS = [
    *("--temperature", "0.3", "--base-dim", "8", "--batch-size", "60", "--epochs", "6"),
    *("--patience", "0", "--evaluations-per-epoch", "2", "--checkpoint-every", "4", "--resume"),
]
NOT_THE_SAME = {"journal_length"}  # bytes of a file with times in it


def kill_training(folder, *, kills, seed, end):
    """Kill at random moments, of all models by turns; returns kills, finished runs and problems."""
    chance, log, killed, runs, problems = random.Random(seed), folder / "log", 0, 0, []
    for kind, scale in (("movielens-like", "0.0005"), ("criteo-like", "0.00001")):
        words = ["generate", kind, "--rows", "1000", "--scale", scale, "--out", str(folder / kind)]
        assert Fork(lambda words=words: cli.run(words), log).wait() == 0
    expected, seconds = {}, {}
    for name in TRAINED:
        began = time.monotonic()
        assert Fork(lambda name=name: _train(folder, f"{name}-alone"), log).wait() == 0
        seconds[name] = time.monotonic() - began
        expected[name] = left_by(folder / f"{name}-alone")
    while killed < kills and time.monotonic() < end:
        for name in TRAINED:
            run = f"{name}-{runs}"
            while (life := Fork(lambda: _train(folder, run), log)).wait(  # noqa: B023
                chance.uniform(0.0, 0.8) * seconds[name] if time.monotonic() < end else None
            ) is None:
                life.kill()
                killed += 1
            if life.code != 0:
                problems.append(f"{run} ended with {life.code}, see {log}")
            else:
                found = differences(left_by(folder / run), expected[name])
                problems += [f"{run}: {difference}" for difference in found]
            runs += 1
    return killed, runs, problems


def _train(folder, run):
    name = run.partition("-")[0]
    data = folder / ("criteo-like" if name == "dlrm" else "movielens-like")
    words = ["train", "--data", str(data), *TRAINED[name], *OPTIONS]
    return cli.run([*words, "--out", str(folder / run)])


def left_by(run):
    """All files of a run: bytes, and of those that tell times what does not depend on them."""
    return {
        str(path.relative_to(run)): _content(path) for path in sorted(run.rglob("*")) if path.is_file()
    }


def _content(path):
    if path.suffix not in (".json", ".jsonl"):
        return path.read_bytes()
    documents = [json.loads(text) for text in _documents(path)]
    return [_without_lengths(timeless(document)) for document in documents]


def _documents(path):
    text = path.read_text()
    return text.splitlines() if path.suffix == ".jsonl" else [text]


def _without_lengths(document):
    """A checkpoint's own digest covers its times."""
    if "body" not in document:
        return document
    body = document["body"]
    state = {name: value for name, value in body["state"].items() if name not in NOT_THE_SAME}
    return {**body, "state": state}


def differences(found, expected):
    """What two runs do not have in common, in words."""
    missing = [f"{name} is missing" for name in expected.keys() - found.keys()]
    more = [f"{name} was left behind" for name in found.keys() - expected.keys()]
    other = [
        f"{name} differs" for name in expected.keys() & found.keys() if found[name] != expected[name]
    ]
    return missing + more + other
