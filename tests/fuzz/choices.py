"""Bytes as a row of choices: what a coverage-guided engine mutates, and a grammar reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Reads one byte for each choice. Where the bytes have ended every choice is the first one, so that a grammar whose
    first choices are its plainest comes to an end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return max(0, len(self._data) - self._at)

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def number(self, most: int) -> int:
        """0 to ``most``."""
        return self.byte() % (most + 1)

    def pick(self, options: Sequence[T]) -> T:
        at = self.byte()
        if len(options) > 256:
            at = at * 256 + self.byte()
        return options[at % len(options)]

    def one_in(self, times: int) -> bool:
        """Rarely true, and never where the bytes have ended."""
        return self.byte() % times == times - 1

    def some(self, make: Callable[[], T], most: int) -> list[T]:
        return [make() for _ in range(self.number(most))]

    def text(self, alphabet: str, most: int) -> str:
        return "".join(self.pick(alphabet) for _ in range(self.number(most)))
