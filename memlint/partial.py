"""What can be said of a run of which a size is not stated: its peak as a function of that size.

The sizes are those that configs leave to the data or to the launcher: how long a sample may be, and how many devices
share the model. Everything else is stated, so each row is an estimate as any other; nothing is interpolated.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import TYPE_CHECKING, Final

from memlint.facts.spec import Name, UnknownModel
from memlint.named_tuple import NamedTuple
from memlint.tape.estimate import FITS, Interval

if TYPE_CHECKING:
    from memlint.facts.spec import TrainingSpec
    from memlint.tape.estimate import Estimate

LENGTH: Final = "sequence_length"
DEVICES: Final = "device_count"

# What is tried of each, alone and where the other is open as well.
_LENGTHS, _FEWER_LENGTHS = (512, 2048, 8192, 32768), (2048, 8192)
_DEVICES = (1, 2, 4, 8)
_OPEN: tuple[tuple[Name, ...], ...] = ((DEVICES,), (LENGTH,), (LENGTH, DEVICES))

STEP = 256  # tokens: how finely the longest sample that fits is told
_UNITS = {LENGTH: "token", DEVICES: "device"}


class Row(NamedTuple):
    """The estimate where the open sizes, in the order of :attr:`Partial.names`, have these values."""

    sizes: tuple[int, ...]
    device_bytes: int
    device_interval: Interval
    verdict: str

    def named(self, names: tuple[Name, ...]) -> str:
        """``2,048 tokens and 8 devices``"""
        return " and ".join(
            f"{size:,} {_UNITS[name]}{'' if size == 1 else 's'}" for name, size in zip(names, self.sizes)
        )


class Partial(NamedTuple):
    """The peak as a function of what is open.

    names    facts that are open; ``keys``, how the config spells them
    most     the largest size that fits the budget, in steps of ``STEP`` tokens, of a length that alone is open: 0 where
             none does, None where there is no budget or all sizes fit
    """

    names: tuple[Name, ...]
    keys: tuple[str, ...]
    rows: tuple[Row, ...]
    most: int | None = None


def partial(spec: TrainingSpec, whole: Callable[[TrainingSpec], Estimate], budget_bytes: int | None) -> Partial | None:
    """The table of a run without an estimate; None where more than these sizes is unknown. Raises OutOfWork.

    whole  the estimate of a run, with all that its interval is made of: a verdict is about that
    """
    if spec.architecture is not None:
        return None
    names = next((names for names in _OPEN if _known(spec, names) is not None), None)
    if names is None:
        return None
    limit = _limit(spec)

    def row(*sizes: int) -> Row | None:
        tried = _known(spec, names, sizes)
        if tried is None:
            return None
        try:
            found = whole(tried)
        except UnknownModel:
            return None
        return Row(sizes, found.device_bytes, found.device_interval, found.verdict(budget_bytes))

    tried = {
        DEVICES: _DEVICES,
        LENGTH: _within(_LENGTHS if len(names) == 1 else _FEWER_LENGTHS, limit),
    }
    rows = tuple(found for sizes in product(*(tried[name] for name in names)) if (found := row(*sizes)) is not None)
    if not rows:
        return None
    most = _most(rows, row) if names == (LENGTH,) and budget_bytes is not None else None
    return Partial(names, tuple(_key(spec, name) for name in names), rows, most)


def _known(spec: TrainingSpec, names: tuple[Name, ...], sizes: tuple[int, ...] = ()) -> TrainingSpec | None:
    """The run with these sizes stated; None where something else is unknown as well."""
    values = dict(zip(names, sizes or (STEP,) * len(names)))
    if DEVICES in values:
        values["world_size"] = values[DEVICES]
    tried = spec.stating(values)
    if tried.architecture is None and DEVICES in values and tried.architecture_on_devices:
        tried.architecture = tried.architecture_on_devices
    return tried if tried.architecture is not None else None


def _limit(spec: TrainingSpec) -> int | None:
    from memlint.dialects.language_model import position_limit

    return position_limit(spec)


def _within(lengths: tuple[int, ...], limit: int | None) -> tuple[int, ...]:
    """No sample is longer than the model takes."""
    if limit is None or limit >= lengths[-1]:
        return lengths
    return (*(length for length in lengths if length < limit), limit)


def _most(rows: tuple[Row, ...], row: Callable[[int], Row | None]) -> int | None:
    """Where the verdict changes from FITS to another one, between two rows of which one fits."""
    if all(one.verdict == FITS for one in rows):
        return None
    low = max((one.sizes[0] for one in rows if one.verdict == FITS), default=0) // STEP
    high = -(-min(one.sizes[0] for one in rows if one.verdict != FITS) // STEP)
    while high - low > 1:
        middle = (low + high) // 2
        found = row(middle * STEP)
        if found is not None and found.verdict == FITS:
            low = middle
        else:
            high = middle
    return low * STEP


def _key(spec: TrainingSpec, name: Name) -> str:
    """How the config would state a size."""
    from memlint.dialects import registry

    written = spec.fact(name)
    if written is not None and written.key:
        return written.key
    if name == DEVICES:
        return "--gpu 'NAME xN'"
    key = registry.dialect(spec.family).key(name)
    return key.dotted if key is not None else name
