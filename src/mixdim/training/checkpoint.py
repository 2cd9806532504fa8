"""Where a run's state is kept on disk: whole or not at all, checked, without pickle.

Knows nothing about what is in a state. One process writes a checkpoint or many do, and any number reads
it. A checkpoint is a folder:

    step-00000500/rank-00000.safetensors    what process 0 holds of weights, optimizer and random state
    step-00000500/rank-00001.safetensors    the rows that process 1 holds, if there is one
    step-00000500/state.json                where each tensor is, everything else, and all checksums
    best-00000400/...                       the same, of the best weights so far alone

A folder that is being written is called `.partial-NAME`, and `.replaced-NAME` is one that is about to be
replaced by it: a reader takes it where there is no other.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from mixdim._util.files import sync
from mixdim._util.locks import alone_at_work
from mixdim.training.group import ALONE, Group
from mixdim.training.packed_rows import PackedRows
from mixdim.training.shards import (
    DTYPES,
    Held,
    Shard,
    StoredTensor,
    TensorFile,
    shards_of,
    write_tensors,
)

log = logging.getLogger("mixdim.training")

FORMAT, VERSION, STATE = "mixdim.checkpoint", 2, "state.json"
T = TypeVar("T")
KEPT = 2  # newest checkpoints; should the newest be damaged, the one before it is there
PARTIAL, REPLACED = ".partial-", ".replaced-"


class CheckpointError(ValueError):
    """A checkpoint that is damaged or does not belong to this run."""


class OtherVersionError(CheckpointError):
    """A checkpoint of a format that this mixdim does not read."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What was saved at some step, checked and not yet read: `tensors` reads each when it is needed."""

    path: Path
    step: int
    state: dict[str, Any]
    files: tuple[str, ...]
    places: Mapping[str, Any]

    @cached_property
    def tensors(self) -> dict[str, StoredTensor]:
        """The tensors by name."""
        files = [TensorFile(self.path / name) for name in self.files]
        dtypes = {name: dtype for dtype, name in DTYPES.items()}
        found = {}
        for name, of_tensor in self.places.items():
            shards = []
            for place in of_tensor["shards"]:
                told = dict(place)
                file, stored_as = files[told.pop("rank")], told.pop("name", name)
                if "packed" in told:
                    told["packed"] = PackedRows(*told["packed"])
                shards.append(file.shard(stored_as, **told))
            shape = tuple(of_tensor["shape"])
            found[name] = StoredTensor(shape, dtypes[of_tensor["dtype"]], shards)
        return found


def write_checkpoint(
    path: Path,
    tensors: Mapping[str, Held],
    state: Mapping[str, Any],
    *,
    step: int = 0,
    group: Group = ALONE,
) -> None:
    """Write a checkpoint into the folder `path`; until it is complete nobody sees any of it.

    Every process of the group calls it, with what it holds: rows that several hold are written by the
    first of them, and the state is that of process 0.
    """
    partial = path.with_name(f"{PARTIAL}{path.name}")
    mine = {
        json.dumps([name, place]): shard
        for name, held in tensors.items()
        for place, shard in ((_place(shard), shard) for shard in shards_of(held))
        if shard.tensor.numel() or 0 in shard.shape  # others hold the rows
    }
    owners: dict[str, int] = {}
    for rank, offered in enumerate(group.collect(list(mine))):
        for text in offered:
            owners.setdefault(text, rank)
    of_files: list[dict[str, str]] = [{} for _ in range(group.world)]  # by the name in the file
    for text, rank in owners.items():
        name, number = json.loads(text)[0], len(of_files[rank])
        of_files[rank][name if name not in of_files[rank] else f"{name}#{number}"] = text

    def attempt(work: Callable[[], T]) -> T:
        try:
            return work()
        except OSError as error:  # a full disk does not say what it was for
            reason = error.strerror or error
            raise OSError(f"cannot write the checkpoint {path}: {reason}") from None

    own = {name: mine[text].tensor for name, text in of_files[group.rank].items()}
    file = partial / file_of(group.rank)
    try:
        group.first(lambda: attempt(lambda: _make_anew(partial)), OSError)
        digest = group.together(lambda: attempt(lambda: write_tensors(file, own)), OSError)
        files = {file_of(rank): of_file for rank, of_file in enumerate(group.collect(digest))}
        body = {"step": step, "state": dict(state), "files": files, "tensors": _index(of_files)}
        group.first(lambda: attempt(lambda: _commit(partial, path, body)), OSError)
    finally:
        if group.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)


def file_of(rank: int) -> str:
    """The name of the file that a process writes."""
    return f"rank-{rank:05d}.safetensors"


def _place(shard: Shard) -> dict[str, Any]:
    """Where a shard is in its tensor, without what is the rule."""
    place: dict[str, Any] = {"shape": list(shard.shape), "dtype": DTYPES.get(shard.tensor.dtype)}
    if shard.first_row:
        place["first_row"] = shard.first_row
    if shard.packed is not None:
        place["packed"] = [shard.packed.size, shard.packed.dim, shard.packed.quantum]
        place["first_stored"] = shard.first_stored
    return place


def _index(of_files: list[dict[str, str]]) -> dict[str, Any]:
    """Where the shards of each tensor are."""
    index: dict[str, Any] = {}
    for rank, stored in enumerate(of_files):
        for stored_as, text in stored.items():
            name, place = json.loads(text)
            whole = {"shape": place.pop("shape"), "dtype": place.pop("dtype"), "shards": []}
            shards = index.setdefault(name, whole)["shards"]
            shards.append({"rank": rank, **({} if stored_as == name else {"name": stored_as}), **place})
    return index


def _make_anew(folder: Path) -> None:
    """Make an empty folder, with the permissions of any new one; remove what a killed save left."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _commit(partial: Path, path: Path, body: dict[str, Any]) -> None:
    """Write the page that makes a checkpoint whole, and put it in its place."""
    document = {"format": FORMAT, "version": VERSION, "blake2b": _digest_of(body), "body": body}
    (partial / STATE).write_text(json.dumps(document, indent=2) + "\n")
    sync(partial / STATE)
    sync(partial)
    replaced = replaced_path(path)
    if path.exists():  # the same step again, after a resume from before it
        shutil.rmtree(replaced, ignore_errors=True)
        path.rename(replaced)  # where it is found if this is killed now
    partial.rename(path)
    sync(path.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def replaced_path(path: Path) -> Path:
    """Where a checkpoint waits until the one that replaces it is in its place."""
    return path.with_name(f"{REPLACED}{path.name}")


def committed_path(path: Path) -> Path:
    """Where a checkpoint is: a save that was killed while it replaced one has left that aside."""
    aside = replaced_path(path)
    return path if path.exists() or not aside.exists() else aside


def open_checkpoint(path: str | Path, group: Group = ALONE) -> Checkpoint:
    """Check a checkpoint against its checksums; processes share the work, and raise the same error."""
    place = committed_path(Path(path))

    def check() -> dict[str, Any]:
        body = _read_state(place)
        for name, digest in list(body["files"].items())[group.rank :: group.world]:
            file = place / name
            if not file.is_file():
                raise CheckpointError(f"checkpoint {place} is damaged: {name} is missing")
            if _digest_of_file(file) != digest:
                raise CheckpointError(
                    f"checkpoint {place} is damaged: {name} does not match its checksum"
                )
        return body

    body = group.together(check, CheckpointError)
    return Checkpoint(place, body["step"], body["state"], tuple(body["files"]), body["tensors"])


def _read_state(path: Path) -> dict[str, Any]:
    """What `state.json` holds, if it is that of a whole checkpoint."""
    try:
        document = json.loads((path / STATE).read_bytes())
        kind, version = document["format"], document["version"]
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint {path} is damaged: {STATE} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise CheckpointError(f"checkpoint {path} is damaged: {STATE} cannot be read") from None
    if (kind, version) != (FORMAT, VERSION) and str(kind).startswith("mixdim."):
        raise OtherVersionError(
            f"checkpoint {path} was written by another version of mixdim ({kind} {version}): this one "
            f"reads {FORMAT} {VERSION} only, so train the run again"
        )
    body = document.get("body")
    if kind != FORMAT or document.get("blake2b") != _digest_of(body):
        raise CheckpointError(f"checkpoint {path} is damaged: {STATE} does not match its checksum")
    return dict(body)


class Checkpoints:
    """The checkpoints of one run, in a folder of their own."""

    def __init__(self, folder: str | Path, group: Group = ALONE) -> None:
        self.folder, self.group = Path(folder), group

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Make sure that no other process writes checkpoints here: two would undo each other's."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with alone_at_work(self.folder):
            yield

    def save(self, kind: str, step: int, tensors: Mapping[str, Held], state: Mapping[str, Any]) -> Path:
        """Write a checkpoint of kind "step" or "best"; every process of the group calls it."""
        if self.group.rank == 0:
            self._remove_killed_saves()
        target = self.folder / f"{kind}-{step:08d}"
        write_checkpoint(target, tensors, state, step=step, group=self.group)
        return target

    def prune(self, best_step: int | None = None) -> None:
        """Keep the newest checkpoints, and of the best ones those they name and `best_step`."""
        if self.group.rank > 0:
            return
        steps = self._paths("step")
        wanted = {best_step, *(_best_step_of(path) for path in steps[-KEPT:])}
        old = [path for path in self._paths("best") if _step_of(path) not in wanted]
        for path in (*steps[:-KEPT], *old):
            shutil.rmtree(replaced_path(path), ignore_errors=True)
            shutil.rmtree(path, ignore_errors=True)

    def newest(self) -> Checkpoint | None:
        """Open the newest checkpoint that is whole; None if there is none at all.

        A damaged one is reported and the one before it taken. If all are damaged, that is an error.
        """
        problems = []
        for name in self.group.broadcast([path.name for path in reversed(self._paths("step"))]):
            try:
                return open_checkpoint(self.folder / name, self.group)
            except OtherVersionError:
                raise
            except CheckpointError as error:
                problems.append(str(error))
                if self.group.rank == 0:
                    log.warning("%s; trying the checkpoint before it", error)
        if problems:
            raise CheckpointError(f"no checkpoint in {self.folder} is whole: {'; '.join(problems)}")
        return None

    def newest_path(self) -> Path | None:
        """Where the newest checkpoint is, unread."""
        return next(map(committed_path, reversed(self._paths("step"))), None)

    def best(self, step: int | None = None) -> Checkpoint:
        """Open the best weights, those of `step` or the newest."""
        if step is not None:
            return open_checkpoint(self.folder / f"best-{step:08d}", self.group)
        paths = self._paths("best")
        if not paths:
            raise CheckpointError(
                f"{self.folder} has no weights yet: the run was not evaluated before it ended"
            )
        return open_checkpoint(paths[-1], self.group)

    def _paths(self, kind: str) -> list[Path]:
        """The checkpoints of a kind, oldest first, also those that wait to be replaced."""
        pattern = f"{kind}-{'[0-9]' * 8}"
        found = [*self.folder.glob(pattern), *self.folder.glob(f"{REPLACED}{pattern}")]
        names = {path.name.removeprefix(REPLACED) for path in found if path.is_dir()}
        return [self.folder / name for name in sorted(names)]

    def _remove_killed_saves(self) -> None:
        """Remove what a run left that was killed while it wrote, but no checkpoint."""
        for left in self.folder.glob(f"{PARTIAL}*"):
            shutil.rmtree(left, ignore_errors=True)
        for left in self.folder.glob(f"{REPLACED}*"):
            if (self.folder / left.name.removeprefix(REPLACED)).exists():
                shutil.rmtree(left, ignore_errors=True)


def _digest_of(body: Any) -> str:
    return hashlib.blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=16).hexdigest()


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _step_of(path: Path) -> int:
    return int(path.name.partition("-")[2])


def _best_step_of(path: Path) -> int | None:
    """The step of the best weights that a checkpoint names."""
    try:
        body = json.loads((committed_path(path) / STATE).read_bytes())["body"]
        best = body["state"].get("best")
        return None if best is None else int(best["step"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
