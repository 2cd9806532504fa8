"""An earlier prepared folder, whose ids and dense rules new rows get. Knows no raw format."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mixdim.data.folder import Meta, read_meta, vocabulary_file
from mixdim.data.vocabulary import Vocabulary

Option = TypeVar("Option")


@dataclass(frozen=True)
class Earlier:
    """The folder, and what it says of itself."""

    folder: Path
    meta: Meta

    def agree(self, name: str, given: Option | None, its: Option) -> Option:
        """The folder's own choice, unless another is given, which is an error."""
        if given is not None and given != its:
            raise ValueError(f"{name} must be {its!r}, as in {self.folder}, got {given!r}")
        return its

    def check(
        self, task: str, features: Sequence[str], bags: AbstractSet[str], dense: Sequence[str]
    ) -> None:
        """Complain of new rows that hold other columns than the folder."""
        its = self.meta.features
        its_bags = {feature.name for feature in its if feature.bag}
        for what, found, wanted in (
            ("task", task, self.meta.task),
            ("features", list(features), [feature.name for feature in its]),
            ("bags", sorted(bags), sorted(its_bags)),
            ("dense columns", list(dense), list(self.meta.dense_sources)),
        ):
            if found != wanted:
                raise ValueError(
                    f"the new rows must have the {what} of {self.folder}, {wanted}, got {found}"
                )

    def copy_vocabularies(self, place: Path) -> list[Vocabulary]:
        """Read the vocabularies, and copy their files, byte for byte, into a folder being written."""
        found = []
        for number, feature in enumerate(self.meta.features):
            file = vocabulary_file(number)
            vocabulary = Vocabulary.read(self.folder / file)
            wanted = (feature.rows, feature.out_of_vocabulary)
            if (vocabulary.rows, vocabulary.out_of_vocabulary) != wanted:
                raise ValueError(
                    f"{self.folder / file} is not as meta.json says: prepare the data again"
                )
            shutil.copyfile(self.folder / file, place / file)
            found.append(vocabulary)
        return found


def open_earlier(folder: str | Path, form: str) -> Earlier:
    """Open an earlier folder, having checked that it is complete and of the same raw format."""
    meta = read_meta(folder)
    its = raw_format(Path(folder), meta)
    if its != form:
        raise ValueError(
            f"{folder} was prepared by `mixdim prepare {its}`, so new rows for it are too, "
            f"got `mixdim prepare {form}`"
        )
    return Earlier(Path(folder), meta)


def raw_format(folder: Path, meta: Meta) -> str:
    """What kind of raw files a folder was prepared from: criteo, movielens or table."""
    found: Any = meta.options.get("format")
    if not isinstance(found, str):
        raise ValueError(f"{folder} was not prepared from raw files, so there can be no new ones")
    return found
