"""What a comparison says: runs on two sides, paired, and how they differ.

Everything here is antisymmetric: exchange the sides, and every figure changes its sign.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from memlint.named_tuple import NamedTuple
from memlint.reports.report import StatedFact

Key = tuple[str, str]  # of a run: its file, relative to its side, and its name

ADDED = "added"
REMOVED = "removed"
CHANGED = "changed"
SAME = "same"
UNKNOWN = "unknown"  # no estimate on a side where the run is


class Figure(NamedTuple):
    """One run of one side. Sizes are bytes of its fullest device.

    path          as the side's own reader would call it
    device_bytes  None where there is no estimate; ``why`` says why
    facts         of a saved report those behind formulas alone
    """

    path: str
    run: str
    family: str
    model: str
    device_bytes: int | None
    low_bytes: int = 0
    high_bytes: int = 0
    verdict: str = "UNKNOWN"
    budget_bytes: int | None = None
    components: Mapping[str, int] = {}
    facts: Mapping[str, StatedFact] = {}
    why: str = ""

    @property
    def figures(self) -> tuple[object, ...]:
        """What is compared."""
        sizes = self.device_bytes, self.low_bytes, self.high_bytes
        return (*sizes, self.verdict, {name: size for name, size in self.components.items() if size})


class Cause(NamedTuple):
    """A key that differs, and what it does to the peak.

    before, after  its value on either side; None where the side says nothing of it
    size_bytes     the mean of what it does alone to the one side and to the other; None where that cannot be tried
    path, line     where it is written: on the new side, else on the old one; line 0 where nowhere
    """

    key: str
    before: object
    after: object
    size_bytes: int | None = None
    path: str = ""
    line: int = 0


class Change(NamedTuple):
    """One run on both sides; None on the side where it is not.

    causes  the keys that differ, greatest effect first
    rest_bytes  what the causes together do beyond the sum of what each does alone, and what no key states
    more    causes that are left out
    """

    key: Key
    before: Figure | None
    after: Figure | None
    causes: tuple[Cause, ...] = ()
    rest_bytes: int = 0
    more: int = 0

    @property
    def kind(self) -> str:
        present = [side for side in (self.before, self.after) if side is not None]
        if any(side.device_bytes is None for side in present):
            return UNKNOWN
        if self.before is None or self.after is None:
            return ADDED if self.before is None else REMOVED
        return SAME if self.before.figures == self.after.figures else CHANGED

    @property
    def delta_bytes(self) -> int | None:
        """After minus before, where both have an estimate."""
        if self.before is None or self.after is None:
            return None
        if self.before.device_bytes is None or self.after.device_bytes is None:
            return None
        return self.after.device_bytes - self.before.device_bytes

    @property
    def components(self) -> dict[str, int]:
        """Component -> after minus before, where they differ; {} without two estimates."""
        if self.before is None or self.after is None or self.delta_bytes is None:
            return {}
        old, new = self.before.components, self.after.components
        found = {name: new.get(name, 0) - old.get(name, 0) for name in dict.fromkeys((*old, *new))}
        return {name: size for name, size in sorted(found.items(), key=lambda item: -abs(item[1])) if size}

    @property
    def newest(self) -> Figure:
        side = self.after or self.before
        assert side is not None
        return side

    @property
    def lost_estimate(self) -> bool:
        """Whether the change is what there is no estimate for."""
        known = self.before is not None and self.before.device_bytes is not None
        return known and self.after is not None and self.after.device_bytes is None


class Side(NamedTuple):
    """What is on one side. ``errors``: (path, why) of what could not be read."""

    name: str
    figures: Mapping[Key, Figure]
    errors: tuple[tuple[str, str], ...] = ()


class Comparison(NamedTuple):
    """Two sides, and every run of either, changed or not, by path and name."""

    before: Side
    after: Side
    changes: tuple[Change, ...]

    def of(self, *kinds: str) -> list[Change]:
        return [change for change in self.changes if change.kind in kinds]

    @property
    def different(self) -> list[Change]:
        """Runs with an estimate that are changed, added or removed: what grows most first."""
        return sorted(self.of(CHANGED, ADDED, REMOVED), key=_gravity)

    @property
    def increases(self) -> list[Change]:
        """Of these, runs that need more than they did, and runs that are new."""
        return [change for change in self.different if change.kind == ADDED or (change.delta_bytes or 0) > 0]


def _gravity(change: Change) -> tuple[int, int, Key]:
    order = (CHANGED, ADDED, REMOVED).index(change.kind)
    return order, -(change.delta_bytes or 0), change.key


def paired(before: Side, after: Side) -> list[Change]:
    """The runs of both sides by their keys. Two sides of one run each are one pair, whatever these are called."""
    old, new = dict(before.figures), dict(after.figures)
    if len(old) == len(new) == 1:
        (key,), (first,) = new, old
        return [Change(key, old[first], new[key])]
    return [Change(key, old.get(key), new.get(key)) for key in sorted({*old, *new})]


def numbered(figures: Iterable[tuple[Key, Figure]]) -> dict[Key, Figure]:
    """By key; of runs with one name in one file each further one is numbered."""
    found: dict[Key, Figure] = {}
    for (path, run), figure in figures:
        name, count = run, 1
        while (path, name) in found:
            count += 1
            name = f"{run} ({count})"
        found[path, name] = figure
    return found
