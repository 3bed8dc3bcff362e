"""How much work one file, and one invocation, may cost: counted in steps, shared by everything that does work.

A config comes from a stranger. A bound on nesting or on length does not bound the work behind it (sixteen short lines
of shell arithmetic can stand for 5^16 additions), so whatever repeats, copies, searches or simulates takes steps from
one meter, and the file whose steps are used up ends there: finding MEM011 says what was under way, and every other
file goes on.

A step stands for about a microsecond of work on one core of an ordinary machine, so limits read as time. They are
counted and not timed, so that a file ends at the same place on every machine, however busy it is.

    with work.limited(work.FILE_STEPS) as meter:
        ...
            work.spend(5, "expanding a variable")      # raises OutOfWork once the steps are used up
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# Of 390 published configs, each with a card, formulas and all of its fixes, the most expensive one takes 3.1 million (a
# fragment of three runs), the most expensive run 2.3 million. For them a step was 0.5 to 1.1 microseconds.
FILE_STEPS = 8_000_000
# A hundred files at their limit, or thousands of ordinary ones.
INVOCATION_STEPS = 600_000_000

# Prices, in steps.
NODE = 5  # a value of a document, with its place
KILOBYTE = 100  # of text that is taken apart
PART = 2  # what a sign of a program stands for that sets its parts apart: a line, an operator, a bracket
STORAGE = 6  # of a training step, from its birth to its death: modules, nodes of the graph, and the tape
SYMBOLIC_STORAGE = 20  # the same where sizes keep their formulas
SERVED = 1  # an allocation or a free that a simulated allocator serves


_SIGNS = "\n,.(=+-[{:*/<%&|^@;~"


def to_parse(text: str) -> int:
    """Steps that Python's parser takes for a text, by the signs in it: a KB of an ordinary module holds 80 and takes
    0.1 ms, one of nothing but one-letter statements 500 and 2 ms (CPython 3.11)."""
    return PART * sum(map(text.count, _SIGNS)) + (KILOBYTE * len(text) >> 10)


class OutOfWork(Exception):
    """The steps are used up. ``doing`` says what was under way, for a reader of the report."""

    def __init__(self, doing: str, steps: int) -> None:
        super().__init__(f"stopped after {steps:,} steps of work, {doing}")
        self.doing = doing
        self.steps = steps


class Meter:
    """Steps that are left. Once they are used up, every further step raises again: nothing can carry on by mistake.

    ran_out  whether they were used up, or those of a part of the work
    again    of those that are used, how many stand for work that this invocation had done before: a file ends at the
             same place whatever was checked before it, and who waits for all files does not wait for that work twice
    """

    __slots__ = ("again", "left", "limit", "ran_out")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.left = limit
        self.again = 0
        self.ran_out = False

    def spend(self, steps: int, doing: str) -> None:
        """Take steps before the work is done. Raises OutOfWork when there are not enough."""
        self.left -= steps
        if self.left < 0:
            raise OutOfWork(doing, self.limit)

    def spend_again(self, steps: int, doing: str) -> None:
        """``spend`` for what was done before."""
        self.again += steps
        self.spend(steps, doing)

    @property
    def used(self) -> int:
        return self.limit - self.left


# Outside of a check (the API's readers, a test of one function) the caller answers for what it asks.
_UNLIMITED = 1 << 62
_current: ContextVar[Meter | None] = ContextVar("memlint_work", default=None)


def meter() -> Meter:
    """The meter in force, for a loop that spends often; one without a limit where there is none."""
    return _current.get() or Meter(_UNLIMITED)


def spend(steps: int, doing: str) -> None:
    """Take steps from the meter in force. Raises OutOfWork when there are not enough."""
    current = _current.get()
    if current is not None:
        current.spend(steps, doing)


@contextmanager
def limited(steps: int, whole_file: bool = False) -> Iterator[Meter]:
    """A meter for a part of the work, at most as long as the one around it, which pays for it in the end; of a whole
    file it does not pay for what was done before."""
    outer = _current.get()
    own = Meter(steps if outer is None else max(0, min(steps, outer.left)))
    token = _current.set(own)
    try:
        yield own
    finally:
        _current.reset(token)
        own.ran_out = own.ran_out or own.left < 0
        if outer is not None:
            again = min(own.again, own.used, own.limit)
            outer.left -= min(own.used, own.limit) - (again if whole_file else 0)
            outer.again += 0 if whole_file else again
            outer.ran_out = outer.ran_out or own.ran_out
