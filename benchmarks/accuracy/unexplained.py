"""How wide an interval has to be beyond what releases, the allocator and contexts explain.

    python -m benchmarks.accuracy.unexplained [--within 0.9]

Every published run is checked twice, without the shares of ``memlint/data/overhead.json`` and with large ones; an end
moves in proportion to them. Of all pairs of whole percents, printed is the narrowest with which that many of the runs
lie in their intervals: with the card that each ran on, and with none named (device figures, which hold a context of
that very card, among them).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import NamedTuple
from unittest import mock

from benchmarks.accuracy.runner import Case, check_case, load_cases
from memlint.tape import summary

LARGE = 0.5
MOST_PERCENT = 60


class Ends(NamedTuple):
    """Of one run's interval, in bytes: where it ends with no shares, and how far an end moves for a share of 1."""

    measured: int
    low: int
    high: int
    below: float
    above: float

    def holds(self, below: float, above: float) -> bool:
        return self.low - below * self.below <= self.measured <= self.high + above * self.above


def ends(cases: list[Case], with_cards: bool) -> Iterator[Ends]:
    for case in cases:
        asked = case if with_cards else case._replace(gpu="")
        found = []
        for share in (0.0, LARGE):
            with mock.patch.object(summary, "unexplained", lambda _, share=share: (share, share)):
                found.append(check_case(asked))
        none, large = found
        if none.low_bytes is None or none.high_bytes is None or large.low_bytes is None or large.high_bytes is None:
            continue
        below, above = none.low_bytes - large.low_bytes, large.high_bytes - none.high_bytes
        yield Ends(case.measured_bytes, none.low_bytes, none.high_bytes, below / LARGE, above / LARGE)


def narrowest(runs: list[Ends], within: float) -> tuple[int, int]:
    """(percent below, percent above) with the smallest sum; of equal sums the one that reaches higher."""
    found = [
        (below + above, -above, below)
        for below in range(MOST_PERCENT)
        for above in range(MOST_PERCENT)
        if sum(run.holds(below / 100, above / 100) for run in runs) >= within * len(runs)
    ]
    _, above, below = min(found)
    return below, -above


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--within", type=float, default=0.9)
    within = parser.parse_args().within
    cases = load_cases()
    for with_cards in (True, False):
        runs = list(ends(cases, with_cards))
        below, above = narrowest(runs, within)
        print(f"{'with' if with_cards else 'without'} cards: {len(runs)} runs, -{below} % +{above} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
