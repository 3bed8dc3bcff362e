"""Which keys changed a run's peak, each tried alone on both sides."""

from __future__ import annotations

from memlint import files, work
from memlint.checking.reading import stated_model
from memlint.comparison.model import CHANGED, Cause, Change, Comparison, Figure, Side, paired
from memlint.comparison.sides import Sides, Tree, Tried, side
from memlint.estimates import EqualRuns
from memlint.facts.spec import ASSUMED, DEFAULT, Fact, TrainingSpec, UnknownModel, named

MAX_CAUSES = 12  # keys of one run that are tried


def compare(sides: Sides) -> Comparison:
    """Read both sides, and ask of every run whose figures differ which keys did it. Raises SettingsError."""
    equal_runs = EqualRuns()
    before, after = side(sides.before, equal_runs), side(sides.after, equal_runs)
    changes = [_explained(change, sides) if change.kind == CHANGED else change for change in paired(before, after)]
    return Comparison(before, after, tuple(changes))


def _explained(change: Change, sides: Sides) -> Change:
    old = _tried(sides.before, change, change.before)
    new = _tried(sides.after, change, change.after)
    assert change.before is not None
    assert change.after is not None
    assert change.delta_bytes is not None
    if old is None or new is None:
        causes = _stated(change.before, change.after)
        return change._replace(causes=tuple(causes[:MAX_CAUSES]), more=max(0, len(causes) - MAX_CAUSES))
    keys = _keys(old.spec, new.spec)
    causes = []
    for key, names in list(keys.items())[:MAX_CAUSES]:
        effects = [
            _effect(new, old.spec, names, change.after, sides.after, 1),
            _effect(old, new.spec, names, change.before, sides.before, -1),
        ]
        known = [effect for effect in effects if effect is not None]
        size = None if len(known) < 2 else _half(sum(known))
        causes.append(_cause(key, names, change.before, change.after)._replace(size_bytes=size))
    causes = [cause for cause in causes if cause.size_bytes != 0]
    causes.sort(key=lambda cause: (-abs(cause.size_bytes or 0), cause.key))
    rest = change.delta_bytes - sum(cause.size_bytes or 0 for cause in causes)
    return change._replace(causes=tuple(causes), rest_bytes=rest, more=max(0, len(keys) - MAX_CAUSES))


def _half(size: int) -> int:
    """Half of it, cut towards zero: the same with either sign."""
    return size // 2 if size >= 0 else -(-size // 2)


def _tried(of: Tree | Side, change: Change, figure: Figure | None) -> Tried | None:
    if not isinstance(of, Tree) or figure is None:
        return None
    found = of.tried.get(change.key)
    if found is None and len(of.tried) == 1:  # two sides of one run each, which may have two names
        (found,) = of.tried.values()
    return found


def _keys(old: TrainingSpec, new: TrainingSpec) -> dict[str, list[str]]:
    """Key -> the facts that it states, where a side states it and they differ."""
    found: dict[str, list[str]] = {}
    written: set[str] = set()
    for name in dict.fromkeys((*old.facts, *new.facts)):
        one, other = old.facts.get(name), new.facts.get(name)
        if one is not None and other is not None and one.value == other.value:
            continue
        said = [fact for fact in (other, one) if fact is not None]
        stated = [fact for fact in said if _is_stated(fact)]
        key = min(fact.key for fact in stated or said) or name
        found.setdefault(key, []).append(name)
        if stated:
            written.add(key)
    return {key: found[key] for key in sorted(written)}


def _is_stated(fact: Fact) -> bool:
    return fact.node is not None or fact.origin not in (ASSUMED, DEFAULT)


def _effect(
    of: Tried, other: TrainingSpec, names: list[str], figure: Figure, tree: Tree | Side, sign: int
) -> int | None:
    """What a key does on one side: that side's peak, minus the peak with the other side's value."""
    changes = {named(name): other.facts[name].value for name in names if name in other.facts and name in of.spec.facts}
    if not changes or figure.device_bytes is None or not isinstance(tree, Tree):
        return None
    try:
        with work.limited(of.settings.file_steps), files.named(tree.paths), stated_model(of.settings):
            found = of.estimates.newest(of.spec.with_facts(changes))
    except (UnknownModel, work.OutOfWork, KeyError):
        return None
    return sign * (figure.device_bytes - found.device_bytes)


def _cause(key: str, names: list[str], before: Figure, after: Figure) -> Cause:
    """The first fact of a key that both sides have says what it was and is."""
    name = next((name for name in names if name in before.facts and name in after.facts), names[0])
    old, new = before.facts.get(name), after.facts.get(name)
    place = next((fact for fact in (new, old) if fact is not None and fact.line), None)
    return Cause(
        key,
        None if old is None else old.value,
        None if new is None else new.value,
        None,
        "" if place is None else place.path,
        0 if place is None else place.line,
    )


def _stated(before: Figure, after: Figure) -> list[Cause]:
    """The keys that differ, where a saved report is all that there is of a side: no what-if can be made of it."""
    old = {fact.key: fact for fact in before.facts.values()}
    new = {fact.key: fact for fact in after.facts.values()}
    found = []
    for key in dict.fromkeys((*new, *old)):
        one, other = old.get(key), new.get(key)
        if one is None or other is None or one.value == other.value:
            continue
        place = other if other.line else one
        found.append(Cause(key, one.value, other.value, None, place.path, place.line))
    return sorted(found, key=lambda cause: cause.key)
