"""A tape as a course of events: which kind of storage comes and goes, repetitions written once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Union

from memlint.meta.tape import Tape
from memlint.named_tuple import NamedTuple

Kind = tuple[str, str, str, str]  # component, module, name, formula of the bytes


class Event(NamedTuple):
    """An allocation (``+``), a free of the newest but ``depth`` of its kind (``-``), or of the oldest (``<``)."""

    mark: str
    kind: Kind
    depth: str = "0"


class Loop(NamedTuple):
    """Words that come ``times`` times, a number or a formula."""

    times: str
    body: tuple[Word, ...]


Word = Union[Event, Loop]  # noqa: UP007
Course = tuple[tuple[str, tuple[Word, ...]], ...]  # (phase, words)


def course_of(tape: Tape, kinds: Sequence[Kind]) -> list[tuple[str, list[Word]]]:
    """The events of a tape by phase; ``kinds`` are those of its storages."""
    alive: dict[Kind, list[int]] = {}
    same: dict[Event, Event] = {}  # one object for equal events, which makes comparing them cheap
    starts = [at for at, _ in tape.marks] + [len(tape.events)]
    found: list[tuple[str, list[Word]]] = []
    for (begin, phase), end in zip(tape.marks, starts[1:]):
        words: list[Word] = []
        for event in ordered(tape.events[begin:end]):
            kind = kinds[event if event >= 0 else ~event]
            held = alive.setdefault(kind, [])
            if event >= 0:
                held.append(event)
                word = Event("+", kind)
            else:
                depth = len(held) - 1 - held.index(~event)
                oldest = depth and depth == len(held) - 1
                word = Event("<", kind) if oldest else Event("-", kind, str(depth))
                held.remove(~event)
            words.append(same.setdefault(word, word))
        found.append((phase, words))
    return found


def ordered(events: Sequence[int]) -> Iterator[int]:
    """The events with frees that follow each other newest first. What order they had means nothing: where autocast
    drops its cast weights, it is that of addresses."""
    frees: list[int] = []
    for event in events:
        if event < 0:
            frees.append(event)
            continue
        yield from sorted(frees)
        frees.clear()
        yield event
    yield from sorted(frees)


def starred(module: str) -> str:
    """A module path with stars for the numbers of repeated blocks, as breakdowns write it."""
    names = []
    for name in module.split("."):
        stem, _, number = name.rpartition("_")
        names.append("*" if name.isdigit() else f"{stem}_*" if stem and number.isdigit() else name)
    return ".".join(names)


def kinds_in(words: Iterable[Word]) -> Iterator[Kind]:
    """The kind of every event, in order."""
    for word in words:
        if isinstance(word, Loop):
            yield from kinds_in(word.body)
        else:
            yield word.kind


def spelled(words: Iterable[Word], places: Mapping[Kind, int]) -> Iterator[str]:
    """Words as :mod:`memlint.profiles.profile` reads them; ``places`` numbers the kinds."""
    for word in words:
        if isinstance(word, Loop):
            times = word.times.replace(" ", "")
            yield f"{times}x(" if times.isdigit() else f"({times})x("
            yield from spelled(word.body, places)
            yield ")"
        else:
            depth = word.depth.replace(" ", "")
            below = "" if depth == "0" else f".{depth}" if depth.isdigit() else f".({depth})"
            yield f"{word.mark}{places[word.kind]}{below}"


MIN_SAVED_WORDS = 6
MAX_PERIOD = 4096
CANDIDATES = 24


def fold(words: Sequence[Word]) -> list[Word]:
    """Write consecutive repetitions once: ``a b a b a b`` is three times ``a b``. Unrolled it is the same again."""
    following: dict[tuple[Word, ...], list[int]] = {}
    for at in range(len(words) - 2):
        following.setdefault(tuple(words[at : at + 3]), []).append(at)
    cursor = dict.fromkeys(following, 0)
    folded: list[Word] = []
    at = 0
    while at < len(words):
        best_period = best_times = 0
        key = tuple(words[at : at + 3])
        places = following.get(key, [])
        index = cursor.get(key, 0)
        while index < len(places) and places[index] <= at:
            index += 1
        cursor[key] = index
        for place in places[index : index + CANDIDATES]:
            period = place - at
            if period > MAX_PERIOD:
                break
            body = words[at : at + period]
            times = 1
            while words[at + times * period : at + (times + 1) * period] == body:
                times += 1
            if times > 1 and period * (times - 1) > best_period * max(0, best_times - 1):
                best_period, best_times = period, times
        if best_period * (best_times - 1) >= MIN_SAVED_WORDS:
            folded.append(Loop(str(best_times), tuple(fold(words[at : at + best_period]))))
            at += best_period * best_times
            continue
        word = words[at]
        folded.append(word._replace(body=tuple(fold(word.body))) if isinstance(word, Loop) else word)
        at += 1
    return folded
