"""What work costs, counted and not timed: the same figure on every machine, however busy it is.

No test asserts a time: ``benchmarks/cold_start.py`` measures times. A test counts the lines of Python that run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from unittest import mock

from memlint import work

# What a reader may run for a hostile file: about a second. Most take a thousandth of it.
MOST_LINES = 10_000_000


class Lines:
    """``ran``: lines of Python that ran within the block, a loop's line once for each turn."""

    def __init__(self) -> None:
        self.ran = 0


class _TooMany(BaseException):
    """No ``except Exception`` of the code under test may take it for an error of its own."""


@contextmanager
def counted_lines(most: int = sys.maxsize) -> Iterator[Lines]:
    """Count the lines of Python that run within the block. The first one beyond ``most`` ends it: AssertionError."""
    lines = Lines()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            lines.ran += 1
            if lines.ran > most:
                raise _TooMany
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    except _TooMany:
        raise AssertionError(f"more than {most:,} lines of Python ran") from None
    finally:
        sys.settrace(before)


def paid_for(function: Callable[[], object], doing: str) -> int:
    """The steps of work that a call pays for one thing."""
    paid = 0
    spend = work.Meter.spend

    def note(meter: work.Meter, steps: int, what: str) -> None:
        nonlocal paid
        paid += steps if what == doing else 0
        spend(meter, steps, what)

    with mock.patch.object(work.Meter, "spend", note), work.limited(work.INVOCATION_STEPS):
        function()
    return paid


def wait_until(holds: Callable[[], object], what: str) -> None:
    """Wait for another process. The bound is one against hanging, far beyond what a busy machine needs."""
    for _ in range(12_000):
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError(f"ten minutes went by without {what}")
