"""Fetching public data sets from their official hosts. Knows nothing about what is in the files."""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mixdim._util.files import follow_links, make_folder
from mixdim._util.locks import alone_at_work

CHUNK = 1 << 20  # bytes read at a time
TIMEOUT = 60.0  # seconds without a byte before a connection counts as dead
ATTEMPTS = 3  # a connection cut in the middle is taken up again so often in one call

GROUPLENS = "https://files.grouplens.org/datasets/movielens"
CRITEO = "https://go.criteo.net"

MOVIELENS_LICENCE = (
    "MovieLens data belongs to GroupLens, University of Minnesota: for research; commercial use or "
    "redistribution only with their permission; publications name it and cite F. Maxwell Harper and "
    "Joseph A. Konstan (2015), The MovieLens Datasets: History and Context, ACM Transactions on "
    "Interactive Intelligent Systems 5(4):19, https://doi.org/10.1145/2827872. "
    "The README in the archive is what counts."
)
CRITEO_LICENCE = (
    "Criteo Display Advertising Challenge data belongs to Criteo: under its Data Terms of Use, for "
    "non-commercial research; no redistribution of the data and no attempt to identify what was hashed. "
    "The license.txt in the archive is what counts."
)

Progress = Callable[[str, int, "int | None"], None]  # file, bytes so far, and of the whole where known

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PublicFile:
    """Where a data set is, and how its file is checked.

    `md5` is the publisher's checksum of a file that never changes. Without it, `md5_beside` says that
    the publisher keeps the current one next to the file, under its name and `.md5`.
    """

    base: str
    file: str
    licence: str
    md5: str | None = None
    md5_beside: bool = False


@dataclass(frozen=True)
class Download:
    """A file that is in its place: fetched by this call or not, its checksum compared or not."""

    path: Path
    fetched: bool
    checked: bool
    note: str  # how it was checked, or why it was not

    def __str__(self) -> str:
        return f"{self.path}: {'fetched' if self.fetched else 'was there already'}, {self.note}"


def _movielens(file: str, md5: str | None = None) -> PublicFile:
    return PublicFile(GROUPLENS, file, MOVIELENS_LICENCE, md5, md5_beside=md5 is None)


SOURCES = {
    "movielens-100k": _movielens("ml-100k.zip", "0e33842e24a9c977be4e0107933c0723"),
    "movielens-1m": _movielens("ml-1m.zip", "c4d9eecfca2ab87c1945afe126590906"),
    "movielens-10m": _movielens("ml-10m.zip", "ce571fd55effeba0271552578f2648bd"),
    "movielens-20m": _movielens("ml-20m.zip", "cd245b17a1ae2cc31bb14903e1204af3"),
    "movielens-25m": _movielens("ml-25m.zip", "6b51fb2759a8657d3bfcbfc42b592ada"),
    "movielens-latest": _movielens("ml-latest.zip"),  # these two change with every release
    "movielens-latest-small": _movielens("ml-latest-small.zip"),
    "criteo-kaggle": PublicFile(
        CRITEO, "criteo-research-kaggle-display-advertising-challenge-dataset.tar.gz", CRITEO_LICENCE
    ),
}
ADDRESSES = {name: f"{source.base}/{source.file}" for name, source in SOURCES.items()}


def licence_of(name: str) -> str:
    """The terms of a data set's publisher, in a few lines.

    >>> licence_of("criteo-kaggle").split(":")[0]
    'Criteo Display Advertising Challenge data belongs to Criteo'
    """
    return _source(name).licence


def download(
    name: str,
    directory: str | Path,
    *,
    progress: Progress | None = None,
    opener: urllib.request.OpenerDirector | None = None,
    base: str | None = None,
) -> Path:
    """Fetch a data set into a directory and return the path of its file; see `fetch`.

    A file whose checksum could not be compared is reported as a warning of this module's logger.
    """
    result = fetch(name, directory, progress=progress, opener=opener, base=base)
    if not result.checked:
        _log.warning("%s", result)
    return result.path


def fetch(
    name: str,
    directory: str | Path,
    *,
    progress: Progress | None = None,
    opener: urllib.request.OpenerDirector | None = None,
    base: str | None = None,
) -> Download:
    """Fetch a data set into a directory, unless it is there already, and say how it was checked.

    The bytes go to the file's name and `.part`, from which a later call goes on; the name itself appears
    when the checksum is right. `progress` is called with the file's name, the bytes so far and, where
    the host tells them, those of the whole file. `base` is the address of a mirror and `opener`
    how addresses are opened.
    """
    source = _source(name)
    opener = opener or urllib.request.build_opener()
    address = f"{base.rstrip('/')}/{source.file}" if base else ADDRESSES[name]
    directory = Path(directory)
    path = follow_links(directory / source.file)
    part = path.with_name(f"{path.name}.part")
    if path.exists():
        return _found(path, source, address, opener)
    with _by_hand(address, path):
        md5 = source.md5 or (_published_md5(opener, address) if source.md5_beside else None)
    with _naming(directory):
        make_folder(directory)
    with _filled_by_us_alone(part):
        with _by_hand(address, path):
            _fill(part, address, opener, progress or (lambda *_: None))
        if md5 is not None and (got := _md5(part)) != md5:
            part.unlink()
            raise ValueError(
                f"what came from {address} has the md5 {got} instead of {md5}: "
                "it was deleted, download it again"
            )
        part.replace(path)
    return Download(path, True, md5 is not None, _note(md5))


def _source(name: str) -> PublicFile:
    if name not in SOURCES:
        raise ValueError(f"the data set must be one of {', '.join(SOURCES)}, got {name!r}")
    return SOURCES[name]


def _note(md5: str | None) -> str:
    return "its md5 is right" if md5 else "not checked: its publisher gives no checksum"


def _found(
    path: Path, source: PublicFile, address: str, opener: urllib.request.OpenerDirector
) -> Download:
    """Check a file that is there already, perhaps put there by hand on a machine without a network."""
    if not path.is_file():
        raise IsADirectoryError(f"cannot write {path}: it is a directory")
    note = None
    md5 = source.md5
    if source.md5_beside:
        try:
            md5 = _published_md5(opener, address)
        except (OSError, http.client.HTTPException) as error:
            note = f"not checked: {address}.md5 cannot be read ({_reason(error)})"
    if md5 is not None and (got := _md5(path)) != md5:
        # It may be an older release that cannot be had again: never replaced unasked.
        raise ValueError(
            f"{path} is there already and has the md5 {got} instead of {md5}: it is damaged or another "
            "release; move it away or delete it to fetch this one"
        )
    return Download(path, False, md5 is not None, note or _note(md5))


def _published_md5(opener: urllib.request.OpenerDirector, address: str) -> str | None:
    """The checksum that the publisher keeps beside the file, or None if there is none."""
    try:
        with closing(opener.open(_request(f"{address}.md5"), timeout=TIMEOUT)) as response:
            text = response.read(4096).decode("latin-1")
    except urllib.error.HTTPError as error:
        with error:
            if error.code in (404, 410):
                return None
            raise
    found = re.findall(r"\b[0-9a-fA-F]{32}\b", text)
    if len(found) != 1:
        raise OSError(f"{address}.md5 holds no md5")
    return found[0].lower()


@contextmanager
def _filled_by_us_alone(part: Path) -> Iterator[None]:
    """Two downloads at once would mix their bytes, which without a checksum nobody would notice."""
    with _naming(part):
        part.touch()
    with alone_at_work(part):
        try:
            yield
        finally:
            if part.exists() and part.stat().st_size == 0:
                part.unlink()


class _CutError(Exception):
    """The connection ended before the file did."""


def _fill(part: Path, address: str, opener: urllib.request.OpenerDirector, progress: Progress) -> None:
    """Bring the partial file to its full length."""
    for _ in range(ATTEMPTS - 1):
        try:
            _fetch_rest(part, address, opener, progress)
        except _CutError as cut:
            _log.info("trying %s again: %s", address, cut)
        else:
            return
    _fetch_rest(part, address, opener, progress)


def _fetch_rest(
    part: Path, address: str, opener: urllib.request.OpenerDirector, progress: Progress
) -> None:
    have = part.stat().st_size
    try:
        response = opener.open(_request(address, first=have), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        with error:
            if error.code != 416 or not have:
                raise
        if _total_of_range(error.headers) in (None, have):
            return  # nothing is left to fetch
        os.truncate(part, 0)  # longer than the file: of another release, perhaps
        _fetch_rest(part, address, opener, progress)
        return
    with closing(response):
        if response.status == 206:
            _check_range(response.headers, have)
            total = _total_of_range(response.headers)
        else:  # the host sends the file from its beginning
            have = 0
            length = response.headers.get("Content-Length") or ""
            total = int(length) if length.isdigit() else None
        with _naming(part), part.open("r+b" if have else "wb") as file:
            file.seek(have)
            progress(part.stem, have, total)
            while chunk := _read(response, have, total):
                file.write(chunk)
                have += len(chunk)
                progress(part.stem, have, total)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and have != total:
        raise _CutError(_cut_after(have, total))


def _request(address: str, *, first: int = 0) -> urllib.request.Request:
    headers = {"User-Agent": "mixdim"}
    if first:
        headers["Range"] = f"bytes={first}-"
    return urllib.request.Request(address, headers=headers)


def _check_range(headers: Any, have: int) -> None:
    got = headers.get("Content-Range") or ""
    if not got.startswith(f"bytes {have}-"):
        raise OSError(f"requested the bytes from {have} on, got {got!r}")


def _total_of_range(headers: Any) -> int | None:
    """Bytes of the whole file, from an answer about a part of it: `bytes 5-9/10`, `bytes */10`."""
    found = re.search(r"/(\d+)$", headers.get("Content-Range") or "")
    return int(found[1]) if found else None


def _read(response: Any, have: int, total: int | None) -> bytes:
    try:
        return response.read(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise _CutError(f"{_cut_after(have, total)}: {_reason(error)}") from None


def _cut_after(have: int, total: int | None) -> str:
    of_all = "" if total is None else f" of {total:,}"
    return f"the connection ended after {have:,}{of_all} bytes, which are kept"


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


class _LocalError(OSError):
    """A trouble of this machine's disk, which fetching by hand does not cure."""


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _LocalError(f"cannot write {path}: {error.strerror or error}") from None


@contextmanager
def _by_hand(address: str, path: Path) -> Iterator[None]:
    try:
        yield
    except _LocalError:
        raise
    except (_CutError, OSError, http.client.HTTPException) as error:
        raise OSError(
            f"cannot fetch {address} ({_reason(error)}): "
            f"try again, or fetch it by hand and put it at {path}"
        ) from None


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
    if isinstance(reason, OSError) and reason.strerror:
        reason = reason.strerror
    return " ".join(str(reason).split()) or type(error).__name__
