"""Where a run's state is kept on disk: whole or not at all, checked, without pickle.

Knows nothing about what is in a state. A checkpoint is a folder:

    step-00000500/tensors.safetensors    weights, optimizer, random state
    step-00000500/state.json             everything else; and the checksum of both files
    best-00000400/...                    the same, of the best weights so far alone
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mixdim._util.files import sync
from mixdim._util.locks import alone_at_work

log = logging.getLogger("mixdim.training")

FORMAT, VERSION = "mixdim.checkpoint", 1
TENSORS, STATE = "tensors.safetensors", "state.json"
KEPT = 2  # newest checkpoints; should the newest be damaged, the one before it is there
PARTIAL = ".partial-"


class CheckpointError(ValueError):
    """A checkpoint that is damaged or does not belong to this run."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What was saved at some step."""

    path: Path
    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run, in a folder of their own."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Make sure that no other process writes checkpoints here: two would undo each other's."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with alone_at_work(self.folder):
            yield

    def save(
        self, kind: str, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]
    ) -> Path:
        """Write a checkpoint of kind "step" or "best"; until it is complete nobody sees any of it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.glob(f"{PARTIAL}*"):  # of a run that was killed while it wrote
            shutil.rmtree(left, ignore_errors=True)
        target = self.folder / f"{kind}-{step:08d}"
        unfinished = self.folder / f"{PARTIAL}{secrets.token_hex(8)}"
        unfinished.mkdir()  # with the permissions of any new folder, unlike those of tempfile
        replaced = unfinished.with_suffix(".replaced")
        try:
            save_file(_separate(tensors), unfinished / TENSORS)
            body = {"step": step, "tensors_blake2b": _digest_of_file(unfinished / TENSORS), **state}
            document = {"format": FORMAT, "version": VERSION, "blake2b": _digest_of(body), "body": body}
            (unfinished / STATE).write_text(json.dumps(document, indent=2) + "\n")
            # safetensors makes its file readable for nobody else, whatever the umask.
            (unfinished / TENSORS).chmod(stat.S_IMODE((unfinished / STATE).stat().st_mode))
            for path in (unfinished / TENSORS, unfinished / STATE, unfinished):
                sync(path)
            if target.exists():  # the same step again, after a resume from before it
                target.rename(replaced)  # so that it is whole or gone, never half deleted
            unfinished.rename(target)
            sync(self.folder)
            shutil.rmtree(replaced, ignore_errors=True)
        except (OSError, SafetensorError) as error:
            raise OSError(f"cannot write the checkpoint {target}: {_reason(error)}") from None
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return target

    def prune(self, best_step: int | None = None) -> None:
        """Keep the newest checkpoints, and of the best ones those they speak of and `best_step`."""
        steps = self._paths("step")
        for path in steps[:-KEPT]:
            shutil.rmtree(path, ignore_errors=True)
        wanted = {best_step, *(_best_step_of(path) for path in steps[-KEPT:])}
        for path in self._paths("best"):
            if _step_of(path) not in wanted:
                shutil.rmtree(path, ignore_errors=True)

    def newest(self) -> Checkpoint | None:
        """Read the newest checkpoint that is whole; None if there is none at all.

        A damaged one is reported and the one before it taken. If all are damaged, that is an error.
        """
        problems = []
        for path in reversed(self._paths("step")):
            try:
                return read_checkpoint(path)
            except CheckpointError as error:
                problems.append(str(error))
                log.warning("%s; trying the checkpoint before it", error)
        if problems:
            raise CheckpointError(f"no checkpoint in {self.folder} is whole: {'; '.join(problems)}")
        return None

    def newest_path(self) -> Path | None:
        """Where the newest checkpoint is, unread."""
        return next(reversed(self._paths("step")), None)

    def best(self, step: int | None = None) -> Checkpoint:
        """Read the best weights, those of `step` or the newest."""
        if step is not None:
            return read_checkpoint(self.folder / f"best-{step:08d}")
        paths = self._paths("best")
        if not paths:
            raise CheckpointError(
                f"{self.folder} has no weights yet: the run was not evaluated before it ended"
            )
        return read_checkpoint(paths[-1])

    def _paths(self, kind: str) -> list[Path]:
        return sorted(path for path in self.folder.glob(f"{kind}-{'[0-9]' * 8}") if path.is_dir())


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint and check it against its checksums."""
    try:
        document = json.loads((path / STATE).read_bytes())
        body = document["body"]
        whole = document["format"] == FORMAT and document["blake2b"] == _digest_of(body)
        version = document["version"]
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint {path} is damaged: {STATE} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise CheckpointError(f"checkpoint {path} is damaged: {STATE} cannot be read") from None
    if not whole:
        raise CheckpointError(f"checkpoint {path} is damaged: {STATE} does not match its checksum")
    if version != VERSION:
        raise CheckpointError(f"checkpoint {path}: this mixdim reads version {VERSION}, got {version!r}")
    tensors = path / TENSORS
    if not tensors.is_file():
        raise CheckpointError(f"checkpoint {path} is damaged: {TENSORS} is missing")
    if _digest_of_file(tensors) != body["tensors_blake2b"]:
        raise CheckpointError(f"checkpoint {path} is damaged: {TENSORS} does not match its checksum")
    return Checkpoint(path, body["step"], load_file(tensors), body)


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, contiguous, and none sharing memory with another, which the format refuses."""
    separate: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().contiguous()
        if tensor.numel() and tensor.untyped_storage().data_ptr() in seen:
            tensor = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
        separate[name] = tensor
    return separate


def _digest_of(body: Any) -> str:
    return hashlib.blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=16).hexdigest()


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _step_of(path: Path) -> int:
    return int(path.name.partition("-")[2])


def _best_step_of(path: Path) -> int | None:
    """The step of the best weights that a checkpoint speaks of."""
    try:
        best = json.loads((path / STATE).read_bytes())["body"].get("best")
        return None if best is None else int(best["step"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _reason(error: Exception) -> str:
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
