"""How far a measurement or a check is, on a terminal: one line on standard error that the next one replaces.

Where standard error is no terminal there is nothing to see: what is piped or logged holds results alone.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memlint.discover import Found

ERASE = "\r\x1b[K"  # back to the first column, and the rest of the line away
COLUMNS = 80  # of a terminal that does not say
FEW = 4  # files of which it is not said how many are checked
SHOWN_EVERY_SECONDS = 0.1


class Progress:
    """Call it with each line; ``clear`` it before anything else is written."""

    def __init__(self, quiet: bool = False) -> None:
        self.on = not quiet and sys.stderr.isatty()
        self.replacing = os.environ.get("TERM", "") not in ("", "dumb")
        self._shown = False

    def __call__(self, line: str) -> None:
        from memlint.reports.text import clean, shorten

        if not self.on:
            return
        text = clean(f"memlint: {line}")
        if not self.replacing:
            self._write(text + "\n")
            return
        try:
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or COLUMNS
        except (OSError, ValueError):
            columns = COLUMNS
        self._write(ERASE + shorten(text, columns - 1))
        self._shown = True

    def of_files(self) -> Callable[[int, Sequence[Found]], None]:
        """What a check is to tell how far it is through its files."""
        shown = 0.0

        def tell(done: int, files: Sequence[Found]) -> None:
            nonlocal shown
            if self.on and len(files) >= FEW and time.monotonic() >= shown + SHOWN_EVERY_SECONDS:
                shown = time.monotonic()
                self(f"{done} of {len(files)} files, {files[done].path}")

        return tell

    def clear(self) -> None:
        if self._shown:
            self._write(ERASE)
            self._shown = False

    def _write(self, text: str) -> None:
        encoding = sys.stderr.encoding or "utf-8"
        sys.stderr.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stderr.flush()
