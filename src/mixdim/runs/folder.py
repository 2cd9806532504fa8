"""The folder of a run: what is in it, and what may be written there. Knows nothing about training.

config.toml      every option
plan.json        how blocks are stored; large orders of ids lie beside it
metrics.jsonl    losses and validations as they came
checkpoint/      the newest two states, and the best weights
tuning.json      what was tried before, if its penalty or weight decay was searched for
summary.json     how it ended
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from mixdim._util.files import make_folder, write_atomically
from mixdim._util.folders import tidy_up
from mixdim._util.locks import alone_at_work
from mixdim.planning.plan import Plan
from mixdim.runs.config import RunConfig, read_config
from mixdim.runs.resolution import check_resolved
from mixdim.training.group import Group

CONFIG, PLAN, JOURNAL, SUMMARY = "config.toml", "plan.json", "metrics.jsonl", "summary.json"
TUNING = "tuning.json"


@contextmanager
def begun(
    out: Path, config: RunConfig, plan: Plan, *, resume: bool, overwrite: bool, group: Group
) -> Iterator[None]:
    """Hold the folder of a run, with its config and plan written; process 0 does that for all."""
    with ExitStack() as held:

        def begin() -> None:
            if group.rank > 0:
                return
            check_folder(out, resume=resume, overwrite=overwrite)
            make_folder(out)
            held.enter_context(alone_at_work(out))
            if not resume:
                empty(out)
            remove_unfinished(out)
            write_atomically(out / CONFIG, config.to_toml())
            plan.save(out / PLAN)

        group.barrier()  # the others may still read what is there
        group.together(begin, ValueError, OSError)
        yield


def check_folder(out: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that holds what may not be continued or replaced."""
    tidy_up(out)
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"{out} is not a folder")
    # A run killed at its very beginning leaves an unfinished config.
    held = [path for path in out.glob("*") if not path.name.startswith(f".{CONFIG}.")]
    if held and not (resume or overwrite):
        raise FileExistsError(f"{out} exists already; --resume continues it, --overwrite replaces it")
    if held and not is_run(out):
        raise FileExistsError(f"{out} exists and is no run, so nothing is written there")


def empty(folder: Path) -> None:
    """Remove everything in a folder; the folder itself stays, and so do its lock and a link to it."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def remove_unfinished(out: Path) -> None:
    """Remove what is left of files that a run was writing when it was killed."""
    for name in (CONFIG, PLAN, TUNING, SUMMARY):
        for left in out.glob(f".{name}.*"):
            left.unlink(missing_ok=True)


def saved_config(path: Path) -> RunConfig:
    """Read the config of a run, which has every option; somebody may have edited it."""
    config = read_config(path / CONFIG)
    try:
        check_resolved(config)
    except ValueError as error:
        raise ValueError(f"{path / CONFIG}: {error}") from None
    return config


def is_run(path: Path) -> bool:
    """Whether a folder holds a run of mixdim: other programs have a config.toml too."""
    try:
        return read_config(path / CONFIG).model is not None
    except (OSError, ValueError):
        return False
