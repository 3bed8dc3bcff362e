"""How far a measurement is, on a terminal: one line on standard error that the next one replaces.

Where standard error is no terminal there is nothing to see: what is piped or logged holds results alone.
"""

from __future__ import annotations

import os
import sys

ERASE = "\r\x1b[K"  # back to the first column, and the rest of the line away
COLUMNS = 80  # of a terminal that does not say


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

    def clear(self) -> None:
        if self._shown:
            self._write(ERASE)
            self._shown = False

    def _write(self, text: str) -> None:
        encoding = sys.stderr.encoding or "utf-8"
        sys.stderr.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stderr.flush()
