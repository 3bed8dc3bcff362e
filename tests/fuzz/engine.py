"""A coverage-guided engine: inputs that reach new lines are kept and mutated further.

It needs nothing but Python, so it runs wherever the tests do, and the same seed finds the same. Where ``atheris`` is
installed, ``--engine atheris`` hands the same targets to libFuzzer.
"""

from __future__ import annotations

import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

LONGEST = 400  # bytes, and so choices, of one input
HANG_SECONDS = 20  # of CPU: twice what the meter lets a file take


class Hang(Exception):
    """An input that ran out of CPU time before the meter ran out of steps."""


class Finding(NamedTuple):
    """An input that broke a promise. ``where`` tells two findings apart: the error and the line that raised it."""

    data: bytes
    where: str
    trace: str


class Outcome(NamedTuple):
    runs: int
    kept: int
    reached: int
    lines: int
    findings: list[Finding]

    @property
    def share(self) -> float:
        return self.reached / self.lines if self.lines else 0.0


class Lines:
    """Which lines of some files were executed; and how many there are to execute."""

    def __init__(self, files: list[str]) -> None:
        self.files = set(files)
        self.reached: set[tuple[str, int]] = set()
        self.all = sum(len(_lines_of(path)) for path in files)

    def __enter__(self) -> None:
        self.before = sys.gettrace()  # coverage's, say, which goes on afterwards
        sys.settrace(self._call)

    def __exit__(self, *exception: object) -> None:
        sys.settrace(self.before)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename in self.files else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.reached.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line


def _lines_of(path: str) -> set[int]:
    """Lines within functions: those of the module itself run at import."""
    found: set[int] = set()
    stack = [compile(Path(path).read_text(encoding="utf-8"), path, "exec")]
    while stack:
        code = stack.pop()
        for constant in code.co_consts:
            if hasattr(constant, "co_code"):
                stack.append(constant)
                if constant.co_flags & 2:  # a function's, not a class's
                    found.update(line for _, _, line in constant.co_lines() if line and line != constant.co_firstlineno)
    return found


@contextmanager
def cpu_limit(seconds: int) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise Hang(f"more than {seconds} CPU seconds")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def broken_by(run: Callable[[bytes], None], data: bytes) -> Finding | None:
    """What an input breaks; None where every promise holds."""
    try:
        with cpu_limit(HANG_SECONDS):
            run(data)
    except Exception as error:  # whatever escapes is a finding
        places = traceback.extract_tb(error.__traceback__)
        inside = [place for place in places if "/memlint/" in place.filename] or list(places)
        said = "" if "/memlint/" in inside[-1].filename else f": {error}"[:120]
        where = f"{type(error).__name__} in {Path(inside[-1].filename).name}, {inside[-1].name}{said}"
        return Finding(data, where, "".join(traceback.format_exception(error)))
    return None


def fuzz(
    run: Callable[[bytes], None],
    files: list[str],
    seed: int,
    runs: int | None = None,
    seconds: float | None = None,
    corpus: list[bytes] | None = None,
) -> Outcome:
    """Run mutated inputs until so many runs, or seconds, are over."""
    chance = random.Random(seed)
    kept = [b"", *(corpus or [])]
    lines = Lines(files)
    findings: dict[str, Finding] = {}
    done = 0
    end = time.monotonic() + seconds if seconds is not None else None
    pending = list(kept)
    while (runs is None or done < runs) and (end is None or time.monotonic() < end):
        data = pending.pop() if pending else mutated(chance, kept)
        before = len(lines.reached)
        with lines:
            found = broken_by(run, data)
        done += 1
        if found is not None and found.where not in findings:
            findings[found.where] = minimised(run, found)
        if len(lines.reached) > before:
            kept.append(data)
    return Outcome(done, len(kept), len(lines.reached), lines.all, list(findings.values()))


def mutated(chance: random.Random, kept: list[bytes]) -> bytes:
    """A child of one or two inputs that were kept, the later ones the more often; or an input of its own."""
    if chance.random() < 0.15:
        return chance.randbytes(chance.randint(1, 80))
    data = bytearray(kept[int(len(kept) * chance.random() ** 0.5)])
    for _ in range(1 << chance.randint(0, 3)):
        at, to = sorted(chance.randint(0, len(data)) for _ in range(2))
        what = chance.randint(0, 5)
        if what == 0 and data:
            data[min(at, len(data) - 1)] = chance.randint(0, 255)
        elif what == 1:
            data[at:at] = chance.randbytes(chance.randint(1, 8))
        elif what == 2:
            del data[at : min(to, at + 16)]
        elif what == 3:
            data[at:at] = data[at : min(to, at + 32)]
        elif what == 4:
            other = chance.choice(kept)
            cut = chance.randint(0, len(other))
            data[at:to] = other[cut : cut + chance.randint(0, 64)]
        elif data:
            data[min(at, len(data) - 1)] ^= 1 << chance.randint(0, 7)
    return bytes(data[:LONGEST])


def minimised(run: Callable[[bytes], None], found: Finding) -> Finding:
    """The shortest input of those tried that breaks the same promise at the same place."""
    size = max(1, len(found.data) // 2)
    tries = 400
    while size and tries:
        at = 0
        while at < len(found.data) and tries:
            tries -= 1
            shorter = broken_by(run, found.data[:at] + found.data[at + size :])
            if shorter is not None and shorter.where == found.where:
                found = shorter
            else:
                at += size
        size //= 2
    return found
