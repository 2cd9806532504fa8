"""How the values of options are written. Knows no command."""

from __future__ import annotations

from mixdim.planning.from_counts import OCTAVES


def parse_bands(text: str | None) -> int | str | None:
    """A number of bands, or "octaves".

    >>> parse_bands("8"), parse_bands("octaves")
    (8, 'octaves')
    """
    if text is None or text == OCTAVES:
        return text
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"--bands must be a number or {OCTAVES}, got {text!r}") from None


def parse_list(text: str, name: str) -> list[str]:
    """What stands between commas; an error if that is nothing.

    >>> parse_list("1/8, 4MB", "bytes")
    ['1/8', '4MB']
    """
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    if not entries:
        raise ValueError(f"--{name} must name at least one, got {text!r}")
    return entries
