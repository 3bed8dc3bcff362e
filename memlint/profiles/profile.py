"""The profile: one training step of a model, recorded once, small enough to review in a pull request.

It lives beside the config that it was recorded for (``train.yaml.memlint.json``) or, so that configs stay alone, in
``.memlint/profiles/`` of the config's folder or one above it, under the config's path from there
(``.memlint/profiles/configs/train.yaml.memlint.json``). ``schemas/profile.schema.json`` describes it to other readers.

The step is written as *kinds* (storages of one origin, with one formula) and *regimes* (a course of events, and when
it is the right one). Events are words: ``+7`` allocates a storage of kind 7, ``-7`` frees the newest one alive of that
kind, ``-7.2`` the one two before it, ``<7`` the oldest, ``12x( ... )`` repeats. So a stack of equal layers is one layer
and a number. Where the code loops over a size, the number is a formula: ``(S-1)x( ... )``, and so may be a depth:
``-7.(S-2)``. What occurs in several places is a block of its own, and ``@3`` stands for the words of block 3.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memlint import files, work
from memlint.meta.tape import COMPONENTS
from memlint.named_tuple import NamedTuple
from memlint.profiles import reading
from memlint.profiles.expression import Expression, ExpressionError, parse, shown
from memlint.profiles.reading import FileError, Wrong, expect, text_of, texts, value_of
from memlint.trust import is_within

VERSION = 1
SUFFIX = ".memlint.json"
FOLDER = os.path.join(".memlint", "profiles")
MAX_FORMULAS = 20_000  # in one profile: a bound on the time that reading takes
MAX_EVENTS = 2_000_000  # of one step, and of words in one profile
MAX_NESTING = 8
MAX_VALUE = 2**20  # of a dimension: a product of three stays a number of PyTorch's

# Not a size of the model: micro-batches of a step. Traced as one and as two; the third is like the second.
ACCUMULATION = "gradient_accumulation_steps"


class ProfileError(FileError):
    """A profile that cannot be used."""


class Dimension(NamedTuple):
    """A named size of the recording. ``key`` is where the config states it ("" where it does not), ``recorded`` the
    value it had."""

    name: str
    fact: str
    key: str
    recorded: int


class Kind(NamedTuple):
    """Storages of one origin: whose they are (as in :class:`memlint.meta.tape.Label`), and their bytes."""

    component: str
    module: str
    name: str
    size: Expression


class Regime(NamedTuple):
    """A course of events. It holds wherever every guard of one of the lists in ``when`` is true.

    tape   (phase, events as words), in order; blocks are put in
    saved  bytes that autograd holds at the end of the last forward
    """

    when: tuple[tuple[Expression, ...], ...]
    tape: tuple[tuple[str, str], ...]
    saved: Expression


class Profile(NamedTuple):
    """A recorded training step.

    path        the file it was read from
    model       what was recorded: the class of the model
    made_with   versions, by program
    settings    values of the config that the recorded code read, by dotted key, dimensions left out
    training    facts that the recording was made with (optimizer, compute_dtype, ...), by name
    sources     sha256 of the model's source files, by path from the profile
    parameters, trainable_parameters   how many there are
    uses        "matmul", "convolution": which library workspaces the run needs
    checked     settings at which the formulas were compared with a fresh trace
    """

    path: str
    model: str
    made_with: dict[str, str]
    dimensions: tuple[Dimension, ...]
    settings: dict[str, Any]
    training: dict[str, Any]
    sources: dict[str, str]
    parameters: Expression
    trainable_parameters: Expression
    uses: tuple[str, ...]
    kinds: tuple[Kind, ...]
    regimes: tuple[Regime, ...]
    checked: tuple[dict[str, int], ...] = ()

    def dimension(self, fact: str) -> Dimension | None:
        return next((one for one in self.dimensions if one.fact == fact), None)

    def recorded(self) -> dict[str, int]:
        """The values that the dimensions had when it was recorded."""
        return {dimension.name: dimension.recorded for dimension in self.dimensions}


# -- finding ---------------------------------------------------------------------------------------------------------


def places(config: str) -> Iterator[str]:
    """Where a config's profile may be, the nearest first, as far as its repository reaches."""
    absolute = os.path.abspath(config)
    yield absolute + SUFFIX
    folder = os.path.dirname(absolute)
    root = files.repository_root(folder)
    real = folder if is_within(folder, root) else os.path.realpath(folder)
    levels = real[len(root) :].count(os.sep)
    for _ in range(levels + 1):
        if os.path.isdir(os.path.join(folder, FOLDER)):
            yield os.path.join(folder, FOLDER, absolute[len(folder) :].lstrip(os.sep) + SUFFIX)
        folder = os.path.dirname(folder)


def find(config: str) -> str | None:
    """The profile of a config file, or None."""
    root = files.repository_root(os.path.dirname(os.path.abspath(config)))
    for path in places(config):
        if os.path.isfile(path) and files.inside(path, root):
            return path
    return None


# -- reading ---------------------------------------------------------------------------------------------------------

_cache: dict[str, tuple[tuple[int, int], Profile]] = {}


def load(path: str) -> Profile:
    """A profile from its file; a file that has not changed is not read again. Raises ProfileError."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise ProfileError(path, f"cannot be read: {error}") from None
    stamp = (status.st_mtime_ns, status.st_size)
    if path not in _cache or _cache[path][0] != stamp:
        _cache[path] = (stamp, loads(text_of(path, ProfileError), path))
    return _cache[path][1]


def loads(text: str, path: str = "<profile>") -> Profile:
    """A profile from its text. Raises ProfileError, with the line where that is known."""
    return reading.loads(text, path, lambda tree: _read(tree, path), ProfileError, "the profile")


def _read(tree: Any, path: str) -> Profile:
    expect(tree, dict, "an object")
    version = tree.get("version")
    if version != VERSION:
        raise Wrong(f"is {version!r}; this memlint reads version {VERSION}: record it again", "version")
    dimensions = tuple(
        _dimension(name, value) for name, value in value_of(tree, "dimensions", dict, "an object").items()
    )
    formulas = _Formulas(frozenset(dimension.name for dimension in dimensions))
    labels = [_label(row, at) for at, row in enumerate(value_of(tree, "labels", list, "a list"))]
    kinds = tuple(_kind(row, at, labels, formulas) for at, row in enumerate(value_of(tree, "kinds", list, "a list")))
    words = _Words(formulas, len(kinds), tree.get("blocks", []))
    regimes = tuple(
        _regime(entry, at, formulas, words) for at, entry in enumerate(value_of(tree, "regimes", list, "a list"))
    )
    if not regimes:
        raise Wrong("is empty", "regimes")
    parameters = value_of(tree, "parameters", dict, "an object")
    return Profile(
        path=path,
        model=value_of(tree, "model", str, "text"),
        made_with=texts(tree, "made_with"),
        dimensions=dimensions,
        settings=value_of(tree, "settings", dict, "an object"),
        training=value_of(tree, "training", dict, "an object"),
        sources=texts(tree, "sources"),
        parameters=formulas.read(parameters.get("all"), "parameters", "all"),
        trainable_parameters=formulas.read(parameters.get("trained"), "parameters", "trained"),
        uses=tuple(_strings(tree.get("uses", []), "uses")),
        kinds=kinds,
        regimes=regimes,
        checked=tuple(
            _setting(entry, at) for at, entry in enumerate(expect(tree.get("checked", []), list, "a list", "checked"))
        ),
    )


def _strings(value: Any, *keys: str | int) -> list[str]:
    expect(value, list, "a list of texts", *keys)
    for at, item in enumerate(value):
        expect(item, str, "text", *keys, at)
    found: list[str] = value
    return found


def _setting(entry: Any, at: int) -> dict[str, int]:
    expect(entry, dict, "an object", "checked", at)
    for name, value in entry.items():
        expect(value, int, "a whole number", "checked", at, name)
    found: dict[str, int] = entry
    return found


def _dimension(name: str, value: Any) -> Dimension:
    at = ("dimensions", name)
    if not name.isidentifier() or not name.isascii():
        raise Wrong("is not a name", *at)
    expect(value, dict, "an object", *at)
    for field in ("fact", "key"):
        expect(value.get(field), str, "text", *at, field)
    recorded = expect(value.get("recorded"), int, "a whole number", *at, "recorded")
    if recorded < 1:
        raise Wrong("is less than 1", *at, "recorded")
    if recorded > MAX_VALUE:
        raise Wrong(f"is more than {MAX_VALUE}", *at, "recorded")
    return Dimension(name, value["fact"], value["key"], recorded)


class _Formulas:
    """Reads formulas in the names of a profile's dimensions, each text once."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names
        self.known: dict[str, Expression] = {}

    def read(self, text: Any, *keys: str | int) -> Expression:
        if isinstance(text, int) and not isinstance(text, bool):
            text = str(text)
        expect(text, str, "a formula", *keys)
        found = self.known.get(text)
        if found is None:
            if len(self.known) >= MAX_FORMULAS:
                raise Wrong(f"more than {MAX_FORMULAS:,} formulas", *keys)
            work.spend(5 + 2 * len(text), "reading a profile")
            try:
                found = parse(text)
            except ExpressionError as error:
                raise Wrong(str(error), *keys) from None
            unknown = sorted(found.names - self.names)
            if unknown:
                raise Wrong(f"{unknown[0]!r} is no dimension of this profile", *keys)
            self.known[text] = found
        return found


def _label(row: Any, at: int) -> tuple[str, str, str]:
    expect(row, list, "a list", "labels", at)
    if len(row) != 3:
        raise Wrong("component, module and name are expected", "labels", at)
    for field in range(3):
        expect(row[field], str, "text", "labels", at, field)
    if row[0] not in COMPONENTS:
        raise Wrong(f"there is no component {row[0]!r}", "labels", at, 0)
    return row[0], row[1], row[2]


def _kind(row: Any, at: int, labels: Sequence[tuple[str, str, str]], formulas: _Formulas) -> Kind:
    expect(row, list, "a list", "kinds", at)
    if len(row) != 2:
        raise Wrong("a label's number and a formula are expected", "kinds", at)
    number = expect(row[0], int, "a label's number", "kinds", at, 0)
    if not 0 <= number < len(labels):
        raise Wrong(f"there is no label {number}", "kinds", at, 0)
    component, module, name = labels[number]
    return Kind(component, module, name, formulas.read(row[1], "kinds", at, 1))


def _regime(entry: Any, at: int, formulas: _Formulas, words: _Words) -> Regime:
    expect(entry, dict, "an object", "regimes", at)
    when = []
    for number, guards in enumerate(expect(entry.get("when"), list, "a list", "regimes", at, "when")):
        place = ("regimes", at, "when", number)
        texts = _strings(guards, *place)
        when.append(tuple(formulas.read(text, *place, index) for index, text in enumerate(texts)))
    tape = []
    for number, part in enumerate(expect(entry.get("tape"), list, "a list", "regimes", at, "tape")):
        place = ("regimes", at, "tape", number)
        expect(part, dict, "an object", *place)
        phase = expect(part.get("phase"), str, "text", *place, "phase")
        tape.append((phase, words.read(part.get("events"), *place, "events")))
    return Regime(tuple(when), tuple(tape), formulas.read(entry.get("saved"), "regimes", at, "saved"))


# -- events ----------------------------------------------------------------------------------------------------------

# Words as most profiles have all of theirs. What does not look like this is read word by word.
_USUAL = re.compile(r"(?:(?:[-+<]\d{1,6}|-\d{1,6}\.\d{1,6}|@\d{1,6}|\d{1,6}x\(|\))(?: |$))*", re.ASCII)
_KINDS = re.compile(r"(?:^| )[-+<](\d+)", re.ASCII)

# ("+", kind, 0), ("-", kind, depth), ("<", kind, 0), ("(", 0, times), (")", 0, 0)
Step = tuple[str, int, int]


class _Words:
    """Reads events: blocks first, then what refers to them."""

    def __init__(self, formulas: _Formulas, kinds: int, blocks: Any) -> None:
        self.formulas = formulas
        self.kinds = kinds
        self.blocks: list[str] = []
        self.left = MAX_EVENTS
        expect(blocks, list, "a list", "blocks")
        for at, lines in enumerate(blocks):
            self.blocks.append(self.read(lines, "blocks", at))

    def read(self, lines: Any, *keys: str | int) -> str:
        """The words of some lines, with blocks put in."""
        # One blank between two words, however they are written: their number is counted by it.
        text = " ".join(" ".join(_strings(lines, *keys)).split())
        work.spend(len(text) // 4, "reading a profile")
        try:
            self._check(text)
            if "@" in text:
                work.spend(text.count("@"), "reading a profile")
                text = " ".join([self._block(word) if word[0] == "@" else word for word in text.split()])
            self.left -= text.count(" ") + 1
            if self.left < 0:
                raise ValueError(f"more than {MAX_EVENTS:,} events")
        except ValueError as error:
            raise Wrong(str(error), *keys) from None
        return text

    def _block(self, word: str) -> str:
        number = _natural(word[1:], word)
        if number >= len(self.blocks):
            raise ValueError(f"there is no block {number} before this")
        block = self.blocks[number]
        # Blocks of blocks of blocks: what would be too long is not written out first.
        self.left -= block.count(" ") + 1
        if self.left < 0:
            raise ValueError(f"more than {MAX_EVENTS:,} events")
        return block

    def _check(self, text: str) -> None:
        if not _USUAL.fullmatch(text):
            names: set[str] = set()
            for word in set(text.split()):
                if word[0] != "@":
                    names |= _word(word).names
            unknown = sorted(names - self.formulas.names)
            if unknown:
                raise ValueError(f"{unknown[0]!r} is no dimension of this profile")
        largest = max(map(int, _KINDS.findall(text)), default=-1)
        if largest >= self.kinds:
            raise ValueError(f"there is no kind {largest}")
        depth = 0
        for word in text.split() if "(" in text or ")" in text else ():
            if word == ")":
                depth -= 1
                if depth < 0:
                    raise ValueError("')' without '('")
            elif word[-2:] == "x(":
                depth += 1
                if depth > MAX_NESTING:
                    raise ValueError(f"repetitions nested more than {MAX_NESTING} deep")
        if depth:
            raise ValueError("'(' without ')'")


class _Word(NamedTuple):
    """``number`` is a depth, or how often."""

    mark: str
    kind: int
    number: int | Expression

    @property
    def names(self) -> frozenset[str]:
        return frozenset() if isinstance(self.number, int) else self.number.names


def _word(word: str) -> _Word:
    """One event. Raises ValueError for anything else."""
    if word == ")":
        return _Word(")", 0, 0)
    if word.endswith("x("):
        return _Word("(", 0, _number(word[:-2], word))
    mark, body = word[0], word[1:]
    if mark in "+<":
        return _Word(mark, _natural(body, word), 0)
    if mark != "-":
        raise ValueError(f"{shown(word, 40)} is no event")
    kind, dot, depth = body.partition(".")
    return _Word("-", _natural(kind, word), _number(depth, word) if dot else 0)


def _natural(text: str, word: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ValueError(f"{shown(word, 40)} is no event")
    return int(text)


def _number(text: str, word: str) -> int | Expression:
    if text[:1].isdigit() and text.isdigit():
        return _natural(text, word)
    try:
        return parse(text)
    except ExpressionError as error:
        raise ValueError(f"{shown(word, 40)} is no event: {error}") from None


def names_of(words: str) -> frozenset[str]:
    """The dimensions that decide how often something happens, or which storage is meant."""
    found: frozenset[str] = frozenset()
    if not _USUAL.fullmatch(words):
        for word in set(words.split()):
            found |= _word(word).names
    return found


def steps(words: str, values: Mapping[str, int]) -> Iterator[Step]:
    """Events with numbers for formulas. Raises ValueError."""
    known: dict[str, Step] = {}
    for word in words.split():
        step = known.get(word)
        if step is None:
            mark, kind, number = _word(word)
            if not isinstance(number, int):
                try:
                    number = number.size(values)
                except ExpressionError as error:
                    raise ValueError(f"{shown(word, 40)}: {error}") from None
            step = known[word] = (mark, kind, number)
        yield step


def unroll(words: str, values: Mapping[str, int] | None = None) -> list[Step]:
    """Every allocation and free, repetitions written out. Raises ValueError.

    values  by dimension, where formulas say how often something repeats
    """
    work.spend(words.count(" "), "writing out a recorded step")
    levels: list[list[Step]] = [[]]
    times: list[int] = []
    for step in steps(words, values or {}):
        if step[0] == "(":
            levels.append([])
            times.append(step[2])
        elif step[0] == ")":
            body = levels.pop()
            count = times.pop()
            if len(body) * count + len(levels[-1]) > MAX_EVENTS:
                raise ValueError(f"more than {MAX_EVENTS:,} events")
            work.spend((len(body) * count) // 64, "writing out a recorded step")
            levels[-1].extend(body * count if body else ())
        else:
            levels[-1].append(step)
    return levels[0]


# -- writing ---------------------------------------------------------------------------------------------------------

_LINE = 110


def dumps(profile: Profile) -> str:
    """The profile as text: one fact to a line, the same for the same recording."""
    from memlint.profiles.blocks import factored

    labels: dict[tuple[str, str, str], int] = {}
    kinds = [
        [labels.setdefault((kind.component, kind.module, kind.name), len(labels)), kind.size.text]
        for kind in profile.kinds
    ]
    texts = {words: words.split() for regime in profile.regimes for _, words in regime.tape}
    blocks, short = factored(list(texts.values()))
    events = {text: _wrapped(words) for text, words in zip(texts, short)}
    regimes = [
        {
            "when": [[guard.text for guard in guards] for guards in regime.when],
            "saved": regime.saved.text,
            "tape": [{"phase": phase, "events": events[words]} for phase, words in regime.tape],
        }
        for regime in profile.regimes
    ]
    tree = {
        "version": VERSION,
        "model": profile.model,
        "made_with": dict(sorted(profile.made_with.items())),
        "dimensions": {
            one.name: {"fact": one.fact, "key": one.key, "recorded": one.recorded} for one in profile.dimensions
        },
        "parameters": {"all": profile.parameters.text, "trained": profile.trainable_parameters.text},
        "settings": dict(sorted(profile.settings.items())),
        "training": dict(sorted(profile.training.items())),
        "sources": dict(sorted(profile.sources.items())),
        "uses": sorted(profile.uses),
        "checked": list(profile.checked),
        "labels": [list(label) for label in labels],
        "kinds": kinds,
        "blocks": [_wrapped(block) for block in blocks],
        "regimes": regimes,
    }
    return "".join(_written(tree, 0)) + "\n"


def _wrapped(words: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(word) < _LINE - 12:
            lines[-1] += " " + word
        else:
            lines.append(word)
    return lines


def _written(value: Any, indent: int) -> str:
    """JSON with short containers on one line."""
    flat = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (dict, list)) or not value or (indent and len(flat) + indent <= _LINE and _shallow(value)):
        return flat
    inner = " " * (indent + 1)
    if isinstance(value, dict):
        rows = [f"{json.dumps(key, ensure_ascii=False)}: {_written(item, indent + 1)}" for key, item in value.items()]
        return "{\n" + ",\n".join(inner + row for row in rows) + "\n" + " " * indent + "}"
    rows = [_written(item, indent + 1) for item in value]
    return "[\n" + ",\n".join(inner + row for row in rows) + "\n" + " " * indent + "]"


def _shallow(value: Any) -> bool:
    inside = value.values() if isinstance(value, dict) else value
    return not any(isinstance(item, (dict, list)) for item in inside)
