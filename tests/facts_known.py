"""What every test does beside its own: no fact is asked for, or set by a family, that the vocabulary does not have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest import mock

from memlint.dialects import base, registry
from memlint.facts import vocabulary
from memlint.facts.spec import TrainingSpec

OURS = frozenset(registry.known_families())  # families that a test makes up have words of their own


class UnknownFact(AssertionError):
    """A name that memlint/facts/vocabulary.py does not list: misspelt there or here."""


def hold(names: Iterable[str]) -> None:
    """Raises UnknownFact for the first name that is not in the vocabulary."""
    for name in names:
        if not vocabulary.known(name):
            raise UnknownFact(f"{name!r} is in neither the vocabulary nor a namespace of it")


def _asking(method: Any) -> Any:
    @wraps(method)
    def asked(self: TrainingSpec, name: str, *rest: Any) -> Any:
        if self.family in OURS:
            hold((name,))
        return method(self, name, *rest)

    return asked


def _stating(method: Any) -> Any:
    @wraps(method)
    def stated(*args: Any, **options: Any) -> TrainingSpec:
        spec: TrainingSpec = method(*args, **options)
        if spec.family in OURS:
            hold(spec.facts)
        return spec

    return stated


ASKED = ("__getitem__", "fact", "spelled", "tried", "take", "gap")
STATED = ("with_facts", "replaced")


@contextmanager
def held() -> Iterator[None]:
    """Every fact that is asked for, that a what-if changes, or that a family makes, is in the vocabulary."""
    asking: Any = {name: _asking(getattr(TrainingSpec, name)) for name in ASKED}
    stating: Any = {name: _stating(getattr(TrainingSpec, name)) for name in STATED}
    with (
        mock.patch.multiple(TrainingSpec, **asking, **stating),
        mock.patch.object(base.Dialect, "spec", _stating(base.Dialect.spec)),
    ):
        yield
