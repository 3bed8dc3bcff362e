"""How text formats print: colours, what the terminal can draw, and how wide it is."""

from __future__ import annotations

from memlint.named_tuple import NamedTuple
from memlint.plugin import ERROR, INFO, WARNING
from memlint.tape.estimate import FITS, OOM, TIGHT, UNKNOWN

BOLD, DIM, RED, GREEN, YELLOW, BLUE, CYAN = 1, 2, 31, 32, 33, 34, 36
SEVERITY_COLOR = {ERROR: RED, WARNING: YELLOW, INFO: CYAN}
VERDICT_COLOR = {OOM: RED, TIGHT: YELLOW, FITS: GREEN, UNKNOWN: CYAN}


class Style(NamedTuple):
    """How to print: ``color`` sends ANSI colours, ``unicode`` draws with block characters, ``actions`` keeps
    every line from being a workflow command, ``verbose`` unfolds everything, ``quiet`` leaves verdicts and findings.
    ``columns`` is the width of the terminal, at which prose is wrapped and tables are cut; 0 where there is none."""

    color: bool = False
    unicode: bool = True
    actions: bool = False
    verbose: bool = False
    quiet: bool = False
    columns: int = 0

    def paint(self, text: str, *codes: int) -> str:
        return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m" if self.color and codes else text
