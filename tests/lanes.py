"""Which tests the quick lane leaves to the full one, and why.

The quick lane is a cross-section that a newcomer runs in a few minutes: everything that changes often goes wrong there.
It runs all tests but those that a line of :data:`LEFT` names, and of those the first one of each kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

LANES = ("quick", "rest", "full")


class Left(NamedTuple):
    """``tests``: a pattern for the ids of tests that are left, from the start of the id on.

    ``kinds``: of each text that this pattern finds in their ids (its group, if it has one), the quick lane keeps the
    first test. Empty: it keeps none.
    """

    tests: str
    reason: str
    kinds: str = ""


LEFT = ()


def chosen(lane: str, ids: Iterable[str]) -> set[str]:
    """The tests of a lane. ``rest`` is what ``quick`` does not choose, so that none is in neither."""
    ids = list(ids)
    if lane == "full":
        return set(ids)
    seen: set[tuple[Left, str]] = set()
    quick = {name for name in ids if _is_quick(name, seen)}
    return quick if lane == "quick" else set(ids) - quick


def _is_quick(name: str, seen: set[tuple[Left, str]]) -> bool:
    left = next((left for left in LEFT if re.match(left.tests, name)), None)
    if left is None:
        return True
    found = re.search(left.kinds, name) if left.kinds else None
    if found is None:
        return False
    kind = (left, found.group(found.lastindex or 0))
    new = kind not in seen
    seen.add(kind)
    return new


def left_whole(path: Path, root: Path) -> bool:
    """Whether the quick lane runs nothing of a module: a line without ``kinds`` matches its very name."""
    name = path.relative_to(root).as_posix() if path.is_relative_to(root) else ""
    return any(not left.kinds and re.fullmatch(left.tests, name) for left in LEFT)
