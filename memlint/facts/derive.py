"""What a run's facts are made of, and what becomes of them where one has another value.

A family derives facts of those that its schema found. :class:`Derivation` remembers what was found, so that a what-if
is no list of what follows what, kept beside the code: the family derives again, with the tried facts held. Whatever
reads one of them comes out anew, and everything else as it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from memlint.facts.spec import Fact, Name, TrainingSpec, UnknownModel
from memlint.named_tuple import NamedTuple

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
        self._facts = facts if isinstance(facts, Pulled) else Held(facts, self.held)


class Derivation:
    """How the facts of a run came to be.

    given    the run as the schema found it
    tried    facts that have another value than the config gives them
    outcome  what the family made of both
    asked    behaviour of libraries that it asked about meanwhile (``TrainingSpec.asked``)
    made     the run that came of it where something was tried; None where it could not be made
    """

    made: TrainingSpec | None = None

    def __init__(
        self,
        given: TrainingSpec,
        complete: Complete,
        outcome: Mapping[str, Fact],
        tried: Mapping[str, Fact] = {},
        asked: Mapping[str, bool] = {},
    ) -> None:
        self.given = given
        self.complete = complete
        self.outcome = dict(outcome)
        self.asked = dict(asked)
        self.tried = tried

    def again(self, tried: Mapping[str, Fact]) -> Derivation:
        """The same with further facts tried."""
        tried = {**self.tried, **tried}
        trial = Trial.__new__(Trial)
        trial.__dict__.update({name: value for name, value in self.given.__dict__.items() if name != "facts"})
        trial.held, trial.wanted, trial.asked = tried, [], {}
        trial.facts = self.given.facts
        made: TrainingSpec | None = None
        outcome: Mapping[str, Fact] = self.outcome
        asked: Mapping[str, bool] = self.asked
        with contextlib.suppress(UnknownModel, KeyError):  # what it asks for is not known: nothing follows
            made = self.complete(trial)
            outcome, asked = made.facts, made.asked
        found = Derivation(self.given, self.complete, {**outcome, **tried}, tried, asked)
        found.made = made
        return found

    def changes(self, before: Derivation) -> tuple[dict[str, Fact], set[str]]:
        """(facts that have other values than they had before, names of those that are no more)."""
        old = before.outcome
        new = {name: fact for name, fact in self.outcome.items() if name not in old or old[name].value != fact.value}
        return new, {name for name in old if name not in self.outcome}


class Circle(Exception):
    """Steps that wait for each other; the message names them and the facts that they ask of each other."""


class Undeclared(Exception):
    """A step writes a fact that it does not say it gives: what reads that fact would not wait for it."""


class Step(NamedTuple):
    """Facts that are made together, of others.

    make    makes them of the facts that it reads; returns why there can be no estimate, or "" or None
    gives   their names. Of a fact that it gives itself it reads what is stated.
    rooms   namespaces (``parallelism.``) of which it gives every fact that no other step gives
    """

    make: Callable[[TrainingSpec], str | None]
    gives: tuple[Name, ...] = ()
    rooms: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.make.__name__.strip("_")


class Graph:
    """Steps in whatever order: one that reads a fact waits for the one that gives it.

    Raises ValueError where two give the same fact or the same namespace, or have the same name.
    """

    def __init__(self, *steps: Step) -> None:
        self.steps = steps
        self.given: dict[str, Step | None] = {}  # by the name of a fact; None where no step gives it
        self._rooms: dict[str, Step] = {}
        for step in steps:
            for name in step.gives:
                self._claim(self.given, name, step)
            for room in step.rooms:
                self._claim(self._rooms, room, step)
        if len({step.name for step in steps}) < len(steps):
            raise ValueError("two steps have the same name")

    @staticmethod
    def _claim(claimed: Any, name: str, step: Step) -> None:
        if name in claimed:
            raise ValueError(f"{claimed[name].name} and {step.name} both give {name}")
        claimed[name] = step

    def giver(self, name: str) -> Step | None:
        """The step that gives a fact; None where it is as it was stated."""
        if name not in self.given:
            found = (step for room, step in self._rooms.items() if name.startswith(room))
            self.given[name] = next(found, None)
        return self.given[name]

    def derive(self, spec: TrainingSpec, overruling: Mapping[str, Fact] = {}) -> Derived:
        """Make all facts of the steps. ``overruling`` facts are stated where that goes before what a step would make
        of keys. Raises Circle and Undeclared, which are mistakes in the steps.

        Facts that are stated keep their places, and new ones stand behind them by name, whatever order the steps took.
        """
        derived = Derived(self, spec, overruling)
        stated = spec.facts
        spec.facts = derived.facts
        try:
            for step in self.steps:
                derived.run(step)
        finally:
            made = derived.facts.plain()
            kept = {name: made.pop(name) for name in stated if name in made}
            spec.facts = {**kept, **{name: made[name] for name in sorted(made)}}
        return derived


class Derived:
    """One pass over a graph.

    reasons  step -> why there can be no estimate, where it says so
    done     the steps that have run, by their identity: a fact of these is there, or will not be
    """

    def __init__(self, graph: Graph, spec: TrainingSpec, overruling: Mapping[str, Fact]) -> None:
        self.graph = graph
        self.spec = spec
        self.stated = spec.facts
        self.done: set[int] = set()
        held = spec.facts.tried if isinstance(spec.facts, Held) else {}
        self.facts = Pulled(self, spec.facts, {**overruling, **held})
        self.reasons: dict[str, str] = {}
        self._running: list[tuple[Step, str]] = []  # with the fact that it was asked for

    @property
    def running(self) -> Step | None:
        return self._running[-1][0] if self._running else None

    def run(self, step: Step, asked: str = "") -> None:
        if id(step) in self.done:
            return
        waiting = [one for one, _ in self._running]
        if step in waiting:
            circle = [*self._running[waiting.index(step) :], (step, asked)]
            told = " -> ".join(f"{one.name} ({fact})" if at else one.name for at, (one, fact) in enumerate(circle))
            raise Circle(f"facts are made of each other: {told}")
        self._running.append((step, asked))
        try:
            reason = step.make(self.spec)
        finally:
            self._running.pop()
        self.done.add(id(step))
        if reason:
            self.reasons[step.name] = reason

    def ask(self, name: str) -> None:
        """Somebody reads a fact: whoever gives it comes first."""
        giver = self.graph.giver(name)
        if self._running and giver is not None and giver is not self._running[-1][0]:
            self.run(giver, name)

    def write(self, name: str) -> None:
        now = self.running
        if now is not None and self.graph.giver(name) is not now:
            raise Undeclared(f"{now.name} writes {name}, which it does not say it gives")

    def mine(self, names: Iterable[str]) -> list[str]:
        """Those that a step meets which goes through all facts: they are stated, or of the step itself."""
        now, giver = self.running, self.graph.giver
        return [name for name in names if now is None or giver(name) in (None, now)]


class Pulled(Held):
    """The facts as steps see them."""

    def __init__(self, derived: Derived, facts: Mapping[str, Fact], held: Mapping[str, Fact]) -> None:
        super().__init__(facts, held)
        self.derived = derived
        self._given, self._done = derived.graph.given, derived.done

    def stated(self, name: str) -> Fact | None:
        """A fact as it was before the steps."""
        return self.derived.stated.get(name)

    def plain(self) -> dict[str, Fact]:
        """All facts, of whichever step."""
        return dict(dict.items(self))

    # Facts are read some hundred times in a pass, and nearly all of them are there: of these, nobody is asked.

    def __getitem__(self, name: str) -> Fact:
        giver = self._given.get(name, self)
        if giver is not None and id(giver) not in self._done:
            self.derived.ask(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        giver = self._given.get(name, self)
        if giver is not None and id(giver) not in self._done:
            self.derived.ask(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        giver = self._given.get(str(name), self)
        if giver is not None and id(giver) not in self._done:
            self.derived.ask(str(name))
        return super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.derived.mine(dict.keys(self)))

    def keys(self) -> Any:
        return dict.fromkeys(self, True).keys()

    def items(self) -> Any:
        facts = self.plain()
        return {name: facts[name] for name in self}.items()

    def values(self) -> Any:
        return [fact for _, fact in self.items()]

    def __setitem__(self, name: str, fact: Fact) -> None:
        self.derived.write(name)
        super().__setitem__(name, fact)

    def __delitem__(self, name: str) -> None:
        self.derived.write(name)
        super().__delitem__(name)

    def pop(self, name: str, *default: Any) -> Any:
        self.derived.write(name)
        return super().pop(name, *default)
