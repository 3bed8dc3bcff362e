"""Sizes that the code turns into plain numbers: a loop over time, one call per frame.

Of such a size a symbolic run says nothing, as there are only so many events as it has at that value. Three values say
more: what the courses of events have in common, which events come again for each step, and which numbers in the
formulas go with the size, as polynomials of at most the second degree. That is a guess; :mod:`memlint.measure.record`
holds it against runs at other values before it believes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import lcm
from typing import Any

import sympy
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod

from memlint.measure.courses import Course, Event, Kind, Loop, Word
from memlint.measure.symbolic import numbers, skeleton, with_numbers, written
from memlint.named_tuple import NamedTuple
from memlint.profiles.expression import Tree, parse

LOOKAHEAD = 8  # words that must agree behind what was put in
MAX_REACH = 4096
MAX_CANDIDATES = 200


class NotAlike(Exception):
    """The courses at several values do not follow from each other."""


class Sample(NamedTuple):
    """One symbolic run with the size fixed. ``formulas`` are all others: what is saved, parameters."""

    value: int
    course: Course
    formulas: tuple[str, ...]
    guards: tuple[str, ...]


class Line(NamedTuple):
    """``numbers[k]`` belongs to ``samples[k].value``: the polynomial through them, in ``name``."""

    name: str
    values: tuple[int, ...]

    def text(self, numbers: Sequence[int]) -> str:
        if len(set(numbers)) == 1:
            return str(numbers[0])
        points = list(zip(self.values, numbers))
        (x, a), (y, b) = points[:2]
        slope = Fraction(b - a, y - x)
        bend = Fraction(0)
        if len(points) > 2:
            z, c = points[2]
            bend = (Fraction(c - a, z - x) - slope) / (z - y)
        # a + slope (s - x) + bend (s - x)(s - y), over one denominator
        terms = [a - slope * x + bend * x * y, slope - bend * (x + y), bend]
        whole = 1
        for term in terms:
            whole = lcm(whole, term.denominator)
        parts = []
        for power, term in enumerate(terms):
            factors = [self.name] * power
            if term * whole != 1 or not factors:
                factors.insert(0, f"({int(term * whole)})" if term < 0 else str(int(term * whole)))
            if term:
                parts.append("*".join(factors))
        text = "+".join(parts)
        return f"(({text})//{whole})" if whole > 1 else f"({text})"


def generalized(name: str, samples: Sequence[Sample]) -> Sample:
    """One sample for all values of ``name``, from three at equal distances. Raises NotAlike."""
    values = tuple(sample.value for sample in samples)
    line = Line(name, values)
    phases = [phase for phase, _ in samples[0].course]
    if any([phase for phase, _ in sample.course] != phases for sample in samples):
        raise NotAlike("the phases differ")
    course = tuple(
        (phase, tuple(_words(line, [sample.course[at][1] for sample in samples]))) for at, phase in enumerate(phases)
    )
    formulas = tuple(_formula(line, texts) for texts in zip(*(sample.formulas for sample in samples)))
    return Sample(0, course, formulas, tuple(_guards(line, [sample.guards for sample in samples])))


# -- texts with numbers in them --------------------------------------------------------------------------------------


def _joined(line: Line, texts: Sequence[str]) -> str:
    """The text that is each of ``texts`` at its value; its numbers are formulas where they differ."""
    if len(set(texts)) == 1:
        return texts[0]
    if len(set(map(skeleton, texts))) > 1:
        raise NotAlike(f"{texts[0]} and {texts[-1]}")
    return with_numbers(texts[0], map(line.text, zip(*map(numbers, texts))))


def _formula(line: Line, texts: Sequence[str]) -> str:
    joined = _joined(line, texts)
    return joined if joined == texts[0] else tidied(joined)


def _guards(line: Line, lists: Sequence[Sequence[str]]) -> list[str]:
    """Conditions of all samples. What one of them alone says is kept as it is: better too many than too few."""
    found: dict[str, None] = {}
    by_skeleton: list[dict[str, list[str]]] = []
    for guards in lists:
        held: dict[str, list[str]] = {}
        for guard in guards:
            held.setdefault(skeleton(guard), []).append(guard)
        by_skeleton.append(held)
    for shape in dict.fromkeys(shape for held in by_skeleton for shape in held):
        groups = [held.get(shape, []) for held in by_skeleton]
        if len({len(group) for group in groups}) == 1:
            for texts in zip(*groups):
                found[_joined(line, texts)] = None
        else:
            found.update(dict.fromkeys(text for group in groups for text in group))
    return list(found)


_SYMPY: dict[str, Any] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": FloorDiv,
    "%": Mod,
    "**": lambda a, b: a**b,
    "min": Min,
    "max": Max,
    "negative": lambda a: -a,
}


def tidied(text: str) -> str:
    """A formula as :func:`memlint.measure.symbolic.written` would have it; itself where it is not plain arithmetic."""
    symbols: dict[str, Any] = {}

    def made(tree: Tree) -> Any:
        if tree[0] == "number":
            return sympy.Integer(tree[1])
        if tree[0] == "name":
            return symbols.setdefault(tree[1], sympy.Symbol(tree[1], integer=True, positive=True))
        return _SYMPY[tree[0]](*map(made, tree[1:]))

    try:
        expression = made(parse(text).tree)
    except (KeyError, ValueError, TypeError):
        return text
    names = {symbol: name for name, symbol in symbols.items()}
    forms = [expression]
    if expression.is_Add:
        forms.append(sympy.factor_terms(expression))
    texts = [_outermost(written(form, names)) for form in forms]
    return min(texts, key=len)


def _outermost(text: str) -> str:
    inside = text[1:-1]
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for character in inside:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return text
    return inside


# -- words -----------------------------------------------------------------------------------------------------------


class _Token(NamedTuple):
    """An event, or a bracket of a loop. ``shape`` is what tokens of two samples must share."""

    shape: tuple[str, ...]
    word: Event | str  # of an opening bracket, how often; of a closing one, ""


def _tokens(words: Iterable[Word], shapes: dict[Any, _Token]) -> list[_Token]:
    found: list[_Token] = []
    for word in words:
        if isinstance(word, Loop):
            found.append(_Token(("(", skeleton(word.times)), word.times))
            found += _tokens(word.body, shapes)
            found.append(_Token((")",), ""))
            continue
        token = shapes.get(word)
        if token is None:
            component, module, name, size = word.kind
            shape = (word.mark, component, module, name, skeleton(size), skeleton(word.depth))
            token = shapes[word] = _Token(shape, word)
        found.append(token)
    return found


class _Put(NamedTuple):
    """Place ``at`` of the first sample, where the others have the ``length`` words before it again."""

    at: int
    length: int


def _words(line: Line, phases: Sequence[Sequence[Word]]) -> list[Word]:
    shapes: dict[Any, _Token] = {}
    samples = [_tokens(words, shapes) for words in phases]
    first, second = samples[:2]
    puts = _differences(first, second)
    # Where each token of the first sample is in the others, and where each copy of what was put in begins.
    places: list[list[int]] = [[] for _ in first]
    copies: list[list[list[int]]] = [[] for _ in puts]
    for number, sample in enumerate(samples):
        at = 0
        waiting = list(enumerate(puts))
        for index in range(len(first) + 1):
            while waiting and waiting[0][1].at == index:
                which, put = waiting.pop(0)
                copies[which].append([at + turn * put.length for turn in range(number)])
                at += number * put.length
            if index < len(first):
                places[index].append(at)
                at += 1
        if at != len(sample):
            raise NotAlike(f"{len(sample)} events at {line.values[number]}, where {at} would follow")
    joined = [_token(line, [sample[at] for sample, at in zip(samples, found)]) for found in places]
    result: list[_Token] = []
    waiting = list(enumerate(puts))
    for index in range(len(first) + 1):
        while waiting and waiting[0][1].at == index:
            which, put = waiting.pop(0)
            before = range(index - put.length, index)
            for sample, begins, number in zip(samples, copies[which], range(len(samples))):
                model = [sample[places[at][number]] for at in before]
                if any(sample[begin : begin + put.length] != model for begin in begins):
                    raise NotAlike("steps of one loop that are not the same")
            times = f"({line.name}-{line.values[0]})//{line.values[1] - line.values[0]}"
            result += [_Token(("(",), tidied(times)), *(joined[at] for at in before), _Token((")",), "")]
        if index < len(first):
            result.append(joined[index])
    return _tree(result)


def _token(line: Line, tokens: Sequence[_Token]) -> _Token:
    if any(token.shape != tokens[0].shape for token in tokens):
        raise NotAlike("courses of events that do not fall into step")
    words = [token.word for token in tokens]
    if isinstance(words[0], str):
        return tokens[0]._replace(word=_formula(line, words))  # type: ignore[arg-type]
    component, module, name, _ = words[0].kind
    size = _formula(line, [word.kind[3] for word in words])  # type: ignore[union-attr]
    depth = _formula(line, [word.depth for word in words])  # type: ignore[union-attr]
    kind: Kind = (component, module, name, size)
    return _Token((words[0].mark,), Event(words[0].mark, kind, depth))


def _differences(first: list[_Token], second: list[_Token]) -> list[_Put]:
    """What the second sample has besides, each a repetition of what it has right before."""
    left = [token.shape for token in first]
    right = [token.shape for token in second]
    found: list[_Put] = []
    i = j = 0
    bound = 0  # in the second sample: the end of what was put in last
    while i < len(left) or j < len(right):
        if i < len(left) and j < len(right) and left[i] == right[j]:
            i, j = i + 1, j + 1
            continue
        put = _repetition(second, left, right, i, j, bound)
        if put is None:
            raise NotAlike(f"event {j} belongs to no repetition")
        back, length = put
        found.append(_Put(i - back, length))
        j += length
        bound = j - back
    return found


def _repetition(
    second: list[_Token], left: list[Any], right: list[Any], i: int, j: int, bound: int
) -> tuple[int, int] | None:
    """(how far back it begins, its length) of the repetition that explains why ``left[i]`` is not ``right[j]``."""
    anchor = left[i : i + LOOKAHEAD]
    best: tuple[int, int, int] | None = None
    tried = 0
    for length in range(1, len(right) - j + 1):
        if right[j + length : j + length + len(anchor)] != anchor:
            continue
        tried += 1
        if tried > MAX_CANDIDATES:
            break
        back = _back(second, right, j, length, bound)
        if back is None:
            continue
        reach = 0
        for one, other in zip(left[i : i + MAX_REACH], right[j + length : j + length + MAX_REACH]):
            if one != other:
                break
            reach += 1
        if best is None or reach > best[0]:
            best = (reach, back, length)
    return best[1:] if best is not None else None


def _back(second: list[_Token], right: list[Any], j: int, length: int, bound: int) -> int | None:
    """How far before ``j`` a stretch of ``length`` words ends that comes once more right after."""
    run = 0
    at = j - 1
    while at >= bound and at + length < len(right) and right[at] == right[at + length]:
        run = run + 1 if second[at].word == second[at + length].word else 0
        if run == length and _is_balanced(second[at : at + length]):
            return j - at - length
        if run == length:
            run -= 1  # another turn of the same loop may begin at a better place
        at -= 1
    return None


def _is_balanced(tokens: Sequence[_Token]) -> bool:
    depth = 0
    for token in tokens:
        mark = token.shape[0]
        depth += (mark == "(") - (mark == ")")
        if depth < 0:
            return False
    return depth == 0


def _tree(tokens: Sequence[_Token]) -> list[Word]:
    """Brackets as loops; what is before or behind a new loop and is its body once more goes into it."""
    levels: list[list[Word]] = [[]]
    opened: list[_Token] = []
    for token in tokens:
        if token.shape[0] == "(":
            opened.append(token)
            levels.append([])
        elif token.shape[0] == ")":
            body = tuple(levels.pop())
            times = str(opened.pop().word)
            held = levels[-1]
            turns = 0
            while len(held) >= len(body) and tuple(held[-len(body) :]) == body:
                del held[-len(body) :]
                turns += 1
            held.append(Loop(tidied(f"{times}+{turns}") if turns else times, body))
        else:
            assert isinstance(token.word, Event)
            levels[-1].append(token.word)
    return levels[0]
