"""How a file is written so that nobody ever finds half of it, and what is no file is left in its place.

Knows nothing about what is written. Every output that a user names goes through here.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_LINKS = 40  # of a chain, as Linux has it


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Write a file under a temporary name, then rename it; until then the old one stays.

    A link stays, and what it leads to is written. Nothing can take the place of a pipe or of a device
    such as /dev/stdout: they are written to.
    """
    data = content.encode() if isinstance(content, str) else content
    target = follow_links(path)
    mode = target.stat().st_mode if target.exists() else None
    try:
        if (descriptor := _own_descriptor(target)) is not None:
            _write(os.dup(descriptor), data)
        elif mode is None or stat.S_ISREG(mode):
            _replace(target, data, mode)
        elif stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            _write(os.open(target, os.O_WRONLY), data)
        elif stat.S_ISDIR(mode):
            raise IsADirectoryError(f"cannot write {path}: it is a directory")
        else:
            raise OSError(f"cannot write {path}: it is neither a file nor a pipe")
    except OSError as error:
        if error.errno is None:  # one of the above
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None  # never the temporary name


@contextmanager
def written_atomically(path: str | Path) -> Iterator[Path]:
    """Yield a temporary name to write a file under; then it is renamed, or removed if that fails.

    For what is too large to be held as one piece, or is written by others.
    """
    target = follow_links(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no directory {target.parent}")
    if target.exists() and not target.is_file():
        raise OSError(f"cannot write {path}: it is not a file")
    temporary = target.with_name(f".{target.name[:40]}.{secrets.token_hex(8)}{target.suffix}")
    try:
        yield temporary
        sync(temporary)
        if target.exists():
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        temporary.replace(target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(temporary):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def becomes_a_file(path: str | Path) -> bool:
    """Whether there is a file of its own once this has been written, and no pipe or device."""
    target = follow_links(path)
    return _own_descriptor(target) is None and (target.is_file() or not target.exists())


def sync(path: Path) -> None:
    """Return when a file, or what a folder lists, is on the disk and survives a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: str | Path) -> None:
    """Make a folder, and those above it, unless it is there; of a link, the folder that it leads to."""
    folder = follow_links(path)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{path} must be a folder, but is a file")
    folder.mkdir(parents=True, exist_ok=True)


def follow_links(path: str | Path) -> Path:
    """The end of a chain of links, where there may be nothing yet; a path that is no link as it is."""
    end = Path(path)
    for _ in range(MAX_LINKS):
        if not end.is_symlink() or _own_descriptor(end) is not None:
            return end
        end = end.parent / end.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def _own_descriptor(path: Path) -> int | None:
    """The number of an open file of this process, such as 1 of /proc/self/fd/1.

    It looks like a link to a file, but to write there anew would be to write over what was printed.
    """
    is_own = path.name.isdecimal() and path.parent.resolve() == Path(f"/proc/{os.getpid()}/fd")
    return int(path.name) if is_own else None


def _replace(target: Path, data: bytes, mode: int | None) -> None:
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {target}: there is no directory {target.parent}")
    temporary = target.with_name(f".{target.name[:40]}.{secrets.token_hex(8)}")
    # The system applies the umask, which could be read only by changing it for all threads.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        _write(descriptor, data, sync=True)
        if mode is not None:
            temporary.chmod(stat.S_IMODE(mode))
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _write(descriptor: int, data: bytes, *, sync: bool = False) -> None:
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())
