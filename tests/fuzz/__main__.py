"""Fuzz memlint's ways in, for as long as there is time.

    python -m tests.fuzz                               # each target for a minute
    python -m tests.fuzz --target yaml --minutes 10 --seed 3
    python -m tests.fuzz --target yaml --engine atheris  # where atheris is installed

The search is guided by the lines of the target's own modules that an input reaches first. At the end it says how many
of them were. An input that breaks a promise is shortened and stored in tests/fuzz/regressions, which the tests replay.
The exit code is 1 where one was found.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.fuzz.engine import LONGEST, Finding, fuzz
from tests.fuzz.targets import TARGETS, Target

REGRESSIONS = Path(__file__).parent / "regressions"


def store(target: Target, finding: Finding) -> Path:
    """What went in, and what it broke. Not the bytes: they mean something else once a grammar has another word."""
    case = json.dumps({"where": finding.where, "case": target.make(finding.data)}, indent=1) + "\n"
    path = REGRESSIONS / f"{target.name}-{hashlib.sha256(case.encode()).hexdigest()[:8]}.json"
    REGRESSIONS.mkdir(exist_ok=True)
    path.write_text(case, encoding="utf-8")
    return path


def stored(path: Path) -> tuple[Target, Any]:
    """The target of a stored finding, and what goes in."""
    return TARGETS[path.stem.rpartition("-")[0]], json.loads(path.read_text(encoding="utf-8"))["case"]


def with_atheris(target: Target, minutes: float, seed: int) -> None:
    """libFuzzer over the same bytes: it ends the process, and says its coverage in edges."""
    import atheris

    for name in target.modules:
        for function in vars(importlib.import_module(name)).values():
            if callable(function) and getattr(function, "__module__", "") == name and hasattr(function, "__code__"):
                atheris.instrument_func(function)
    arguments = [sys.argv[0], f"-max_total_time={int(minutes * 60)}", f"-seed={seed or 1}", f"-max_len={LONGEST}"]
    atheris.Setup(arguments, target.run)
    atheris.Fuzz()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="one of several (default: all)")
    parser.add_argument("--minutes", type=float, default=1.0, help="for each target")
    parser.add_argument("--runs", type=int, help="in place of a time: the same runs for the same seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=("own", "atheris"), default="own")
    parser.add_argument("--dry", action="store_true", help="store nothing")
    options = parser.parse_args(arguments)
    found = 0
    for name in options.target or list(TARGETS):
        target = TARGETS[name]
        if options.engine == "atheris":
            with_atheris(target, options.minutes, options.seed)
        seconds = None if options.runs is not None else 60 * options.minutes
        outcome = fuzz(target.run, target.files, options.seed, options.runs, seconds)
        reached = (
            f"{outcome.reached:,} of {outcome.lines:,} lines of {len(target.modules)} modules ({outcome.share:.0%})"
        )
        print(f"{name:9} {outcome.runs:>8,} runs, {outcome.kept} inputs kept, {reached}", flush=True)
        for finding in outcome.findings:
            found += 1
            place = "" if options.dry else f", stored as {store(target, finding).name}"
            print(f"  {finding.where}{place}\n    {target.make(finding.data)!r}\n{finding.trace}", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
