"""What a run's facts are made of, and what becomes of them where one has another value.

A family derives facts of those that its schema found. :class:`Derivation` remembers what was found, so that a what-if
is no list of what follows what, kept beside the code: the family derives again, with the tried facts held. Whatever
reads one of them comes out anew, and everything else as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from memlint.dialects.spec import Fact, TrainingSpec, UnknownModel

Complete = Callable[[TrainingSpec], TrainingSpec]


class Held(dict[str, Fact]):
    """Facts while they are derived again: those that are tried keep their value, whoever writes or removes them."""

    def __init__(self, facts: Mapping[str, Fact], tried: Mapping[str, Fact]) -> None:
        super().__init__({**facts, **tried})
        self.tried = tried

    def __setitem__(self, name: str, fact: Fact) -> None:
        if name not in self.tried:
            super().__setitem__(name, fact)

    def __delitem__(self, name: str) -> None:
        if name not in self.tried:
            super().__delitem__(name)

    def pop(self, name: str, *default: Any) -> Any:
        return super().__getitem__(name) if name in self.tried else super().pop(name, *default)

    def update(self, *entries: Any, **more: Fact) -> None:
        found: Iterable[tuple[str, Fact]] = dict(*entries, **more).items()
        for name, fact in found:
            self[name] = fact


class Trial(TrainingSpec):
    """A run whose facts are derived again. Those that are tried are held, also where a family puts new ones in place
    of all."""

    held: Mapping[str, Fact] = {}

    @property
    def facts(self) -> dict[str, Fact]:
        return self._facts

    @facts.setter
    def facts(self, facts: Mapping[str, Fact]) -> None:
        self._facts = Held(facts, self.held)


class Derivation:
    """How the facts of a run came to be.

    given    the run as the schema found it
    tried    facts that have another value than the config gives them
    outcome  what the family made of both
    """

    def __init__(
        self, given: TrainingSpec, complete: Complete, outcome: Mapping[str, Fact], tried: Mapping[str, Fact] = {}
    ) -> None:
        self.given = given
        self.complete = complete
        self.outcome = dict(outcome)
        self.tried = tried

    def again(self, tried: Mapping[str, Fact]) -> Derivation:
        """The same with further facts tried."""
        tried = {**self.tried, **tried}
        trial = Trial.__new__(Trial)
        trial.__dict__.update({name: value for name, value in self.given.__dict__.items() if name != "facts"})
        trial.held, trial.wanted = tried, []
        trial.facts = self.given.facts
        try:
            outcome: Mapping[str, Fact] = self.complete(trial).facts
        except (UnknownModel, KeyError):  # what it asks for is not known: nothing follows
            outcome = self.outcome
        return Derivation(self.given, self.complete, {**outcome, **tried}, tried)

    def changes(self, before: Derivation) -> tuple[dict[str, Fact], set[str]]:
        """(facts that have other values than they had before, names of those that are no more)."""
        old = before.outcome
        new = {name: fact for name, fact in self.outcome.items() if name not in old or old[name].value != fact.value}
        return new, {name for name in old if name not in self.outcome}
