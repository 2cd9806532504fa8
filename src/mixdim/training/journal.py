"""The lines that a run writes about itself, and takes back when it is resumed from before them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Journal:
    """A file of JSON lines and, if wanted, a TensorBoard folder. Without a path it is silent."""

    def __init__(self, path: Path | None, *, tensorboard: Path | None = None) -> None:
        self.path, self._tensorboard_folder = path, tensorboard
        self._tensorboard: Any = None

    @property
    def length(self) -> int:
        """Bytes written so far: what `rewind` takes."""
        return self.path.stat().st_size if self.path is not None and self.path.exists() else 0

    def rewind(self, length: int, *, step: int) -> None:
        """Forget the lines after the first `length` bytes, written by steps after `step`."""
        if self.path is not None and self.path.exists():
            os.truncate(self.path, min(length, self.length))
        if self._tensorboard_folder is not None:
            self._open_tensorboard(purge_step=step + 1)

    def write(self, record: dict[str, Any]) -> None:
        """Append one record; numbers in it are drawn over `record["step"]`."""
        if self.path is not None:
            try:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")  # one write: a whole line, or at a kill a part
            except OSError as error:  # a full disk does not say what it was for
                reason = error.strerror or error
                raise OSError(f"cannot write {self.path}: {reason}") from None
        if self._tensorboard_folder is not None:
            if self._tensorboard is None:
                self._open_tensorboard(purge_step=None)
            for name, number in _numbers(record):
                self._tensorboard.add_scalar(name, number, record["step"])

    def close(self) -> None:
        """Write out what TensorBoard holds back."""
        if self._tensorboard is not None:
            self._tensorboard.close()
            self._tensorboard = None

    def _open_tensorboard(self, purge_step: int | None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ModuleNotFoundError(
                "TensorBoard is not installed: pip install 'mixdim[tensorboard]'", name="tensorboard"
            ) from None
        self._tensorboard = SummaryWriter(self._tensorboard_folder, purge_step=purge_step)


def _numbers(record: dict[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    """The numbers of a record with the path to each, such as validation/slices/rare/mse."""
    found: list[tuple[str, float]] = []
    for key, value in record.items():
        if isinstance(value, dict):
            found += _numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and key not in ("step", "epoch"):
            found.append((f"{prefix}{key}", float(value)))
    return found
