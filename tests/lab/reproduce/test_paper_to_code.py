"""docs/paper_to_code.md names files and functions that exist, and every figure that can be made."""

import re
from pathlib import Path

from mixdim.lab.reproduce.targets import FIGURES

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "paper_to_code.md").read_text()
SOURCE = ROOT / "src" / "mixdim"


def test_every_file_it_names_exists():
    named = set(re.findall(r"`([\w/]+\.py)`", PAGE))
    assert named
    for name in named:
        assert (SOURCE / name).is_file(), name


def test_every_function_it_names_is_in_its_file():
    pairs = re.findall(r"`([\w/]+\.py)`: `(\w+)`", PAGE)
    assert pairs
    for name, function in pairs:
        assert re.search(rf"^(def|class) {function}\b", (SOURCE / name).read_text(), re.MULTILINE), (
            name,
            function,
        )


def test_every_figure_table_and_claim_has_its_command():
    for name in FIGURES:
        assert f"{name}`" in PAGE, name
