"""Standard output and error of a command, whoever reads them. Knows nothing about what is printed."""

from __future__ import annotations

import io
import sys
from typing import Any, TextIO


class _Output(io.FileIO):
    """What the reader of a pipe does not wait for is dropped: `mixdim --help | head -1` is no error."""

    def __init__(self, descriptor: int, title: str) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.title, self.lost = title, False

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        if self.lost or not size:
            return size
        try:
            return super().write(data)
        except BrokenPipeError:
            self.lost = True
            return size
        except OSError as error:  # a full disk is an error, but only once: Python tries again at its end
            self.lost = True
            raise OSError(error.errno, error.strerror, self.title) from None


def outlive_readers() -> None:
    """Let this process go on when the reader of its output leaves, or cannot show a character."""
    for name, title in (("stdout", "standard output"), ("stderr", "standard error")):
        stream: TextIO | None = getattr(sys, name)
        if stream is not None and not stream.isatty():
            setattr(sys, name, outliving(stream, title))


def outliving(stream: TextIO, title: str) -> TextIO:
    """The same output, of which this process can lose the reader; the title names it in an error."""
    raw = _Output(stream.fileno(), title)
    buffered = not isinstance(stream.buffer, io.RawIOBase)  # as it is with python -u
    return io.TextIOWrapper(
        io.BufferedWriter(raw) if buffered else raw,
        encoding=stream.encoding,
        errors="backslashreplace" if stream.errors == "strict" else stream.errors,
        line_buffering=getattr(stream, "line_buffering", False),
        write_through=not buffered,
    )
