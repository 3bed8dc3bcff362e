"""Sizes as people write them. ``GB`` and ``GiB`` both mean 2**30 bytes, as on a card's label."""

from __future__ import annotations

import re

KiB = 1024
MiB = 1024**2
GiB = 1024**3

_SIZE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]?)(i?b)?\s*", re.IGNORECASE)
_FACTOR = {"": 1, "k": KiB, "m": MiB, "g": GiB, "t": 1024**4}
_MAX_LETTERS = 40  # of a size; a longer text is none
_MAX_BYTES = 2**63  # what addresses of 64 bits reach, without a sign


def parse_size(text: str) -> int:
    """Bytes of ``16GB``, ``16GiB``, ``80g`` or ``16384MiB``. Raises ValueError with what would be accepted."""
    shown = repr(text) if len(text) <= _MAX_LETTERS else repr(text[:_MAX_LETTERS] + "...")
    match = _SIZE.fullmatch(text) if len(text) <= _MAX_LETTERS else None
    if match is None or (not match[2] and not match[3] and float(match[1]) < KiB):
        raise ValueError(f"{shown} is not a size: write it like 16GB, 16GiB, 80g or 16384MiB")
    size = int(float(match[1]) * _FACTOR[match[2].lower()])
    if size <= 0:
        raise ValueError(f"{shown} is not a size above zero")
    if size >= _MAX_BYTES:
        raise ValueError(f"{shown} is more memory than 64 bits can address")
    return size


def format_bytes(size: float) -> str:
    """``13.2 GiB``, ``150 MiB``, ``-1.50 GiB``: three significant digits, never more than needed."""
    for unit, name in ((1024**4, "TiB"), (GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        value = size / unit
        shown = abs(float(f"{value:.3g}"))  # as it is rounded: a byte less than 1 GiB is not 1,024 MiB
        if shown >= 1:
            digits = 0 if shown >= 100 else 1 if shown >= 10 else 2
            return f"{value:,.{digits}f} {name}"
    return f"{size:.0f} B"
