"""How a folder comes into being: whole, or not at all; it may take the place of another.

Knows nothing about what is in it. A folder is written as `.NAME.partial-HEX` beside its place; the one
that it replaces is called `.NAME.partial-HEX-old` between two renames. A kill may leave both: an old
folder without a successor gets its name back from the next command that writes or reads NAME, and the
next that writes it removes the rest.
"""

from __future__ import annotations

import errno
import logging
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from glob import escape
from pathlib import Path

from mixdim._util.files import follow_links
from mixdim._util.locks import at_work
from mixdim._util.signals import signals_as_exceptions

log = logging.getLogger("mixdim.files")

PARTIAL = ".partial-"  # in the name of a folder that is being written
OLD = "-old"  # ends the name of a folder that is being replaced


@contextmanager
def partial_folder(out: Path) -> Iterator[Path]:
    """Make a folder beside `out` to write into, locked; whatever ends the block, it is gone after it.

    `put_in_place` is the last thing to do with it. An error, Ctrl-C or SIGTERM before that leaves what
    was at `out`.
    """
    with signals_as_exceptions(), ExitStack() as begun:
        yield _claim(out, begun)


def put_in_place(path: Path, out: Path, *, replace: bool) -> None:
    """Rename a partial folder; with `replace`, the folder that is there goes at the end of the block."""
    if replace and out.exists():
        out.rename(_old(path))  # which comes back after an error
    try:
        path.rename(out)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise FileExistsError(
            f"{out} was made by somebody else meanwhile; --overwrite replaces it"
        ) from None


def tidy_up(out: str | Path) -> None:
    """Remove what killed writers of a folder left; what they were about to replace comes back."""
    _settle(follow_links(out), _remove)


def brought_back(path: str | Path) -> Path:
    """The path of a folder that is read; it is there again if a killed command was replacing it."""
    if not (out := follow_links(path)).exists():
        _settle(out, _bring_back)
    return Path(path)


def _settle(out: Path, what: Callable[[Path, Path], None]) -> None:
    """Do something about each partial folder that a killed writer of `out` left."""
    left = list(out.parent.glob(f"{escape(f'.{out.name}{PARTIAL}')}*"))
    for path in sorted({path.with_name(path.name.removesuffix(OLD)) for path in left}):
        with suppress(OSError), at_work(path if path.exists() else _old(path)) as nobody_else:
            if nobody_else:
                log.info("an interrupted command left %s", path)
                what(path, out)


def _claim(out: Path, begun: ExitStack) -> Path:
    """Make and lock the folder; until `begun` ends it is locked, and then it is gone."""
    while True:
        path = out.with_name(f".{out.name}{PARTIAL}{secrets.token_hex(8)}")
        begun.callback(_remove, path, out)
        path.mkdir()  # with the permissions of any new folder, unlike those of tempfile
        # Until it is locked, another writer may take it for what a kill left, and remove it.
        with suppress(FileNotFoundError):
            if begun.enter_context(at_work(path)) is not False and path.exists():
                return path


def _remove(path: Path, out: Path) -> None:
    """Remove a partial folder; if it was just taking the place of another, that comes back."""
    _bring_back(path, out)
    for left in (path, _old(path)):
        shutil.rmtree(left, ignore_errors=True)


def _bring_back(path: Path, out: Path) -> None:
    """Give the folder that a partial one was about to replace its name again."""
    if _old(path).exists() and not out.exists():
        _old(path).rename(out)


def _old(path: Path) -> Path:
    """Where the folder waits that a partial one replaces."""
    return path.with_name(path.name + OLD)
