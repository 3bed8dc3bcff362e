"""Runs that differ in sizes alone are recorded once: with sizes that are followed (:mod:`memlint.meta.sizes`).

A folder often holds a run with many lengths, batches and ranks, and a what-if often changes nothing else. The first of
such runs is recorded as it is. Where a second config has such a run, that is recorded with its sizes followed, which
takes twice as long, and from then on the program of that recording gives the sizes of all others that take the same
way. What a recording depends on is what it asked for: whole numbers that are facts may be others, and every other fact
has to be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from memlint import releases, work
from memlint.facts.spec import ASSUMED, DERIVED, Fact, TrainingSpec, UnknownModel, WatchedFacts
from memlint.meta.fold import Folded, fold
from memlint.meta.sizes import Program, Size, following
from memlint.meta.tape import Tape
from memlint.models import Recording

# A release that is stated and one that is assumed are told apart by who is asked about it.
_RELEASES = frozenset(library.fact for library in releases.LIBRARIES.values())


class Template:
    """A recording that serves other sizes: what was asked for, what was made, and the program of its sizes.

    numbers  the values that the tapes' sizes are, by the identity of the tape
    asked    behaviours of libraries that the recording asked about
    steps    of work that it took
    folded   where ``made`` is of a model with few layers and with one more, and the two differ by turns of loops
             whatever the sizes: the tape of one with ``more`` layers, with the numbers of values in place of bytes
    """

    def __init__(self, kind: Kind, program: Program, made: Any, asked: list[str], steps: int, more: int = 0) -> None:
        self.kind = kind
        self.program = program
        self.made = made
        self.asked = asked
        self.steps = steps
        self.more = more
        self.numbers = {id(tape): _numbers(program, tape.sizes) for tape in _tapes(made)}
        self.folded: Folded | None = None
        if more:
            short, longer = map(self._numbered, _tapes(made))
            self.folded = fold(short, longer, more)

    def of(self, spec: TrainingSpec) -> Any:
        """What a run of the same kind is recorded as; None where its sizes take another way."""
        values = self.program.run([dict.__getitem__(spec.facts, name).value for name in self.program.names])
        if values is None:
            return None
        self.kind.ask(spec)
        for behaviour in self.asked:
            spec.does(behaviour)
        found = self._with(values, self.made)
        return (*found, self._folded(values, *_tapes(found))) if self.more else found

    def _with(self, values: list[int], made: Any) -> Any:
        if type(made) is Size:
            return values[made.number] if made.program is self.program else made.value
        if type(made) is Tape:
            return self._tape(values, made)
        if isinstance(made, tuple):
            parts = [self._with(values, part) for part in made]
            return type(made)(*parts) if hasattr(made, "_fields") else tuple(parts)
        return made

    def _numbered(self, tape: Tape) -> Tape:
        """A tape with the numbers of its sizes in their place, and nothing that is added up."""
        found = self._tape([0] * self.program.count, tape)
        found.sizes = self.numbers[id(tape)]
        return found

    def _folded(self, values: list[int], short: Tape, longer: Tape) -> Folded | None:
        if self.folded is None:
            return None
        pieces = []
        for piece in self.folded.pieces:
            sizes = list(map(values.__getitem__, piece.sizes))
            signed = zip(piece.events, map(values.__getitem__, map(abs, piece.deltas)))
            pieces.append(piece._replace(sizes=sizes, deltas=[size if event >= 0 else -size for event, size in signed]))
        return Folded(pieces, short, longer, self.more)

    def _tape(self, values: list[int], tape: Tape) -> Tape:
        found = Tape()
        for name in Tape.__slots__:
            setattr(found, name, self._with(values, getattr(tape, name)))
        found.sizes = list(map(values.__getitem__, self.numbers[id(tape)]))
        return found


def _tapes(made: Any) -> list[Any]:
    """All tapes of a recording, or of several."""
    if not isinstance(made, tuple):
        return [made] if type(made) is Tape else []
    return [tape for part in made for tape in _tapes(part)]


def _numbers(program: Program, sizes: list[Any]) -> list[int]:
    """The numbers of the values that these are, plain ones as constants."""
    return [size.number if type(size) is Size and size.program is program else program.constant(size) for size in sizes]


class Kind:
    """Runs that are the same but for whole numbers: what one of them was asked for, and the templates of such runs."""

    def __init__(self, spec: TrainingSpec, asked: set[str], config: int) -> None:
        self.asked = asked
        self.config = config  # the number of the config that it was first seen in
        self.facts = {name: _said(name, dict.get(spec.facts, name)) for name in asked}
        self.templates: list[Template] = []
        self.followed = DERIVED not in asked

    def holds(self, spec: TrainingSpec) -> bool:
        facts = spec.facts
        return all(_alike(said, _said(name, dict.get(facts, name))) for name, said in self.facts.items())

    def ask(self, spec: TrainingSpec) -> None:
        """Who watches a run is told what a recording of it would ask for."""
        if isinstance(spec.facts, WatchedFacts):
            spec.facts.asked.update(self.asked)

    def narrow(self, spec: TrainingSpec, asked: set[str]) -> None:
        """These are facts as well of which what has to be the same is to be as in this run."""
        self.facts |= {name: _said(name, dict.get(spec.facts, name)) for name in asked - self.asked}
        self.asked |= asked
        self.followed = self.followed and DERIVED not in asked

    @property
    def sizes(self) -> list[str]:
        return [name for name, said in self.facts.items() if said is int]


def _said(name: str, fact: Fact | None) -> Any:
    """Of a fact, what has to be the same: of a whole number, that it is one."""
    if fact is None or type(fact.value) is int:
        return None if fact is None else int
    return fact.value if name not in _RELEASES else (fact.value, fact.origin == ASSUMED)


def _alike(one: Any, other: Any) -> bool:
    """Whether two values are the same down to their types, which ``==`` does not ask for."""
    return one is other or (type(one) is type(other) and repr(one) == repr(other))


class Templates:
    """The recordings of one invocation by the kind of their runs, the latest kinds first."""

    def __init__(self, kinds: int = 32, most: int = 8) -> None:
        """``kinds``: how many are kept. ``most``: templates of one kind, that do not serve each other; where there are
        as many, sizes decide too much."""
        self._kept = kinds
        self._most = most
        self._kinds: dict[Hashable, list[Kind]] = {}
        self._config = 0

    def begin(self) -> None:
        """What is asked from here on is about another config."""
        self._config += 1

    def shallow(
        self, what: Hashable, both: Callable[[TrainingSpec], tuple[Recording, Recording]], spec: TrainingSpec, more: int
    ) -> tuple[Recording, Recording, Folded | None]:
        """``both(spec)``: the recordings of a model with few layers and with one more; and the tape of one with
        ``more`` layers than the first, where that is known already."""
        made = self.record(what, both, spec, more)
        return made if len(made) == 3 else (*made, None)

    def record(self, what: Hashable, function: Callable[[TrainingSpec], Any], spec: TrainingSpec, more: int = 0) -> Any:
        """``function(spec)``: a Recording, or a number. ``what`` tells functions apart."""
        if spec.refuses:
            return function(spec)
        kinds = self._kinds.setdefault(what, [])
        kind = next((kind for kind in kinds if kind.holds(spec)), None)
        if kind is None:
            asked: set[str] = set()
            made = function(spec.watched(asked))
            kinds.insert(0, Kind(spec, asked, self._config))
            kinds[0].ask(spec)
            del kinds[self._kept :]
            return made
        for template in kind.templates:
            found = template.of(spec)
            if found is not None:
                work.spend(template.steps, "simulating a training step")
                return found
        seldom = kind.config == self._config or len(kind.templates) >= self._most
        if seldom or not kind.followed:
            return function(spec)
        return self._followed(kind, function, spec, more)

    def _followed(self, kind: Kind, function: Callable[[TrainingSpec], Any], spec: TrainingSpec, more: int) -> Any:
        asked: set[str] = set()
        copy = spec.watched(asked)
        copy.asked = {}
        left = work.meter().left
        try:
            with following() as program:
                for name in kind.sizes:
                    fact = dict.__getitem__(spec.facts, name)
                    copy.facts[name] = fact._replace(value=program.input(name, fact.value))
                made = function(copy)
                template = Template(kind, program, made, list(copy.asked), left - work.meter().left, more)
        except (UnknownModel, work.OutOfWork):
            for behaviour in copy.asked:
                spec.does(behaviour)
            raise
        except Exception:  # what cannot be followed is recorded as it is, and fails there if it has to
            kind.followed = False
            return function(spec)
        if asked <= kind.asked:
            kind.templates.append(template)
        else:  # other numbers, another way, which asks for more: that has to be the same in what is served from now on
            kind.narrow(spec, asked)
        return template.of(spec)
