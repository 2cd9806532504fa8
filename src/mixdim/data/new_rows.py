"""Rows of a raw file that shall only be predicted: targets may lack, and where they stood is remembered.

Knows nothing about formats.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mixdim.data.rejects import Rejects


@dataclass
class NewRows:
    """What a reader that is handed this says of the rows it kept, in their order."""

    has_target: bool = False  # whether the file has a target, if perhaps not in each row
    lines: list[np.ndarray] = field(default_factory=list)
    file: str = ""
    rejected: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def keep(self, file: str, lines: np.ndarray) -> None:
        """Remember the lines of rows that are kept."""
        self.file = file
        self.lines.append(lines)

    def finish(self, rejects: Rejects) -> None:
        """Remember the lines of the rows that were not."""
        self.rejected = np.concatenate([np.empty(0, np.int64), *rejects.lines[self.file]])

    @property
    def places(self) -> np.ndarray:
        """The place of each row kept among all of the file from 0, without header and blank lines."""
        kept = np.concatenate([np.empty(0, np.int64), *self.lines])
        return np.searchsorted(np.sort(np.concatenate([kept, self.rejected])), kept)
