"""Which family a document belongs to, and the runs that it states."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from memlint import work
from memlint.dialects import called, companions, objections, programs
from memlint.dialects import schema as schemas
from memlint.dialects.base import Dialect
from memlint.dialects.companions import prepared
from memlint.dialects.recognition import Match
from memlint.documents.node import Command, Document, Node, Span
from memlint.facts.spec import HYPER, Missing, TrainingSpec, named

if TYPE_CHECKING:
    from memlint.dialects.scripts import Script

# Prices, in steps: to hold a command, and each of its words, against what the families know.
COMMAND = 4000
OPTION = 45
WORD = 3  # to compare a word with those of other commands

# Options that say which parts a model has besides, and which of them train (--medusa_num_heads, --freeze_encoder).
_OF_PARTS = re.compile(
    r"(?:^|[_-])(?:heads?|layers?|freeze|frozen|unfreeze|tune|projector|tower|teacher|student|draft|experts?)(?:[_-]|$)"
)

_dialects: dict[str, Dialect] = {}


def register(dialect: Dialect) -> None:
    """Add a family beyond those of ``schemas/``, or replace one."""
    _dialects[dialect.family] = dialect


def dialect(family: str) -> Dialect:
    """The dialect of a family. Raises KeyError for one that has no schema."""
    if family not in _dialects:
        _dialects[family] = Dialect(family)
    return _dialects[family]


def candidates(document_format: str) -> list[Dialect]:
    """The dialects that are written in a format, by name. Their headers are read, and no more of their schemas."""
    found = map(dialect, sorted({*schemas.written_in(document_format), *_dialects}))
    return [one for one in found if document_format in one.header.get("formats", ())]


def likely(document: Document) -> list[Dialect]:
    """The candidates without those whose signatures have no key of a document's."""
    keys = document.root.value
    found = candidates(document.format)
    if not isinstance(keys, dict):
        return found
    firsts = ((one, one.first_keys) for one in found)
    return [one for one, first in firsts if first is None or not first.isdisjoint(keys)]


def specs(document: Document, overrides: Sequence[str] = (), *, of_a_program: Sequence[str] = ()) -> list[TrainingSpec]:
    """The training runs that a document states; empty where no known family recognises it.

    A YAML document with a defaults list is composed by the caller, who then has used the overrides; any other
    document takes them here (``key=value``, in the keys of the file, or option names for a script). A caller who has
    changed the document gives those again that are of a program, whose keys stand in no tree of it. Raises
    ``documents.overrides.OverrideError`` for an override that makes no sense.
    """
    if document.format == "shell":
        return _script_specs(document, overrides) or _by_itself(document, of_a_program or overrides)
    document = prepared(document)
    found = _best(document, None)
    if found is None:
        return _by_itself(document, of_a_program or overrides)
    family, match = found
    several = family.members(document)
    if len(several) > 1:
        return [family.spec(_overridden(one, overrides), one.root.key_path) for one in several]
    return [family.spec(_overridden(match, overrides))]


def part(document: Document) -> str:
    """Why a document is only a part of other runs, as the first family says in whose keys it is; "" where none does."""
    document = prepared(document)
    return next((why for one in likely(document) if (why := one.part(document))), "")


def _by_itself(document: Document, overrides: Sequence[str]) -> list[TrainingSpec]:
    """The run of a script or a notebook that makes a trainer, started without options."""
    if document.format != "python" and not document.path.lower().endswith(".ipynb"):
        return []
    from memlint.dialects import scripts

    script = scripts.read(document.path, document.text, {})
    if script is None:
        return []
    found = script.document._replace(told=document.format == "python")
    match = Match(1, found, script.root, missing=_gap(script))
    return [dialect(script.family).spec(_overridden(match, overrides))]


def _best(document: Document, command: Command | None) -> tuple[Dialect, Match] | None:
    """The best match that no other one refines; of equal ones, the first family by name."""
    among = candidates(document.format) if command is not None else likely(document)
    matches = [(one, one.match(document, command)) for one in among]
    found = [(one, match) for one, match in matches if match is not None]
    refined = {family for one, _ in found for family in one.header.get("refines", ())}
    best: tuple[Dialect, Match] | None = None
    for one, match in found:
        if one.family not in refined and (best is None or match.score > best[1].score):
            best = (one, match)
    return best


def _overridden(match: Match, overrides: Sequence[str]) -> Match:
    if not overrides:
        return match
    from memlint.documents.overrides import apply, stated

    options = match.options
    if options is not None and match.launch is not None:  # which go before the file that one of them names
        there = [override for override in overrides if stated(options, override, match.launch.span.path)]
        options = apply(options, there, match.launch.span.path)
    return match._replace(root=apply(match.root, overrides, match.document.path), options=options)


def _script_specs(document: Document, overrides: Sequence[str]) -> list[TrainingSpec]:
    """The runs that the commands of a script start. Commands that differ in nothing that matters for memory (a seed, an
    output folder) are one run."""
    found: dict[tuple[object, ...], TrainingSpec] = {}
    known: dict[str, TrainingSpec | None] = {}  # by the text of the command: the same words need no second look
    places: dict[str, dict[Span, None]] = {}  # where each run is started, by its name
    for script, command in _commands(document):
        work.spend(WORD * len(command.words), "comparing the commands of a script")
        text = text_of(command)
        if text not in known:
            name = "train" if not found else f"train:{len(found) + 1}"
            spec = started(script, command, overrides, name)
            known[text] = None if spec is None else found.setdefault(identity(spec), spec)
        run = known[text]
        if run is not None and script is document:
            places.setdefault(run.run, {})[command.span] = None
    for run in found.values():
        run.also = tuple(places.get(run.run, ()))[1:]
    return list(found.values())


def _commands(document: Document) -> Iterator[tuple[Document, Command]]:
    """The commands of a script, and those of the scripts that it calls, each with the script that it stands in."""
    yield from ((document, command) for command in document.commands)
    for script in called.documents(document) if document.calls else ():
        yield from ((script, command) for command in script.commands)


def started(document: Document, command: Command, overrides: Sequence[str], name: str) -> TrainingSpec | None:
    """The run that one command of a script starts; None where it trains nothing, or no known family recognises it."""
    work.spend(COMMAND + OPTION * len(command.words), "recognising the commands of a script")
    if not programs.trains(command):
        return None
    companions.starts(document)
    companions.settle(command, document)
    best = _best(document, command) or _by_its_program(document, command)
    if best is None:
        return None
    family, match = _with_its_script(*best, command)
    if _is_a_guess(family) and not _may_train(command, match.document):
        return None
    if family.family == PROGRAM and called.is_told_its_config(command):  # who calls the script states the run
        return None
    if programs.asks_for_else(command) and _asks_whether_to_train(command, document):
        return None
    match = match._replace(missing=(*match.missing, *_cut_short(command)))
    return family.spec(_overridden(match, overrides), name)


PROGRAM = "program"  # the family of programs that nobody describes


def _by_its_program(document: Document, command: Command) -> tuple[Dialect, Match] | None:
    """A command whose name and options say nothing, of a file of the repository that makes a trainer or has a loop, or
    is the entry to modules one of which goes backward."""
    from memlint.dialects import own_code, scripts

    if scripts.started(command, document, command.options) is None:
        path = scripts.file_of(command, document)
        if path is None or not programs.is_an_entry(command) or not own_code.goes_backward(path):
            return None
    return dialect(PROGRAM), Match(-1, document, command.options, command)


def _cut_short(command: Command) -> Iterator[Missing]:
    """A backslash with a blank behind it is a word that begins with a blank, and the command ends with the line: no
    program takes that word, and what stands on the next lines is not told to it."""
    for at, word in enumerate(command.words):
        said = word.value if isinstance(word.value, str) else ""
        rest = said.lstrip(" \t")
        if rest != said and (rest[:1] == "#" or (not rest and at == len(command.words) - 1)):
            reason = "a blank behind this backslash ends the command: its program is not told the lines below"
            yield Missing("\\", word.span, reason, ours=True)
            return


def _is_a_guess(family: Dialect) -> bool:
    """Whether a command is of a family by its launcher or its program's name alone."""
    signature = family.header.get("signature", {})
    return "trains" in signature or "launcher" in signature


_ASKS, _IF = re.compile(r"\bdo_train\b"), re.compile(r"\bif\b")


def _asks_whether_to_train(command: Command, document: Document) -> bool:
    """Whether a program of the repository trains only where it is told to (``if training_args.do_train``)."""
    from memlint.dialects import own_code, scripts

    path = scripts.file_of(command, document)
    found = own_code.module(path) if path is not None else None
    if found is None:
        return False
    lines = (line for line in found.text.split("\n") if "do_train" in line)
    return any((asked := _ASKS.search(line)) is not None and _IF.search(line, 0, asked.start()) for line in lines)


def _may_train(command: Command, document: Document) -> bool:
    from memlint.dialects import own_code, scripts

    if document.format == "shell" and not document.told and programs.is_named_after_an_evaluation(document.path):
        return False
    path = scripts.file_of(command, document)
    return path is None or own_code.may_train(path)


def _with_its_script(family: Dialect, match: Match, command: Command) -> tuple[Dialect, Match]:
    """What the script that a command starts says besides, where its keys are the command's.

    A command of no family whose script makes a trainer is of that trainer's.
    """
    own = family.header.get("script", False)
    if not own and "trains" not in family.header["signature"] and "launcher" not in family.header["signature"]:
        return family, match
    from memlint.dialects import scripts

    both = {**_children(match.root), **_children(match.options)}
    script = scripts.started(command, match.document, Node(both, match.root.span))
    if own:
        match = match._replace(missing=(*match.missing, *_own_options(command, match.document, both, family)))
    if script is None:
        return family, match
    family = dialect(script.family)
    if match.options is not None:
        match = match._replace(options=family.options.of(command))
    elif match.document.format == "shell":
        match = match._replace(root=family.options.of(command))
    if script.changed:
        match = _without(match, family, script.changed)
    # What the command says, or the config that it names, went into what the script makes; of options that the script
    # declares itself, nothing else did.
    if script.declares and _children(script.root):
        sources = {match.document.path: match.document.text, **match.document.sources, **script.document.sources}
        document = match.document._replace(sources=sources)
        root = Node(_children(script.root), match.root.span)
        return family, match._replace(document=document, root=root, missing=(*match.missing, *_gap(script)))
    stated = {family.options.name_of(name) for name in (*_children(match.root), *_children(match.options))}
    more = {name: node for name, node in _children(script.root).items() if family.options.name_of(name) not in stated}
    sources = {match.document.path: match.document.text, **match.document.sources, **script.document.sources}
    document, root = match.document._replace(sources=sources), Node({**more, **_children(match.root)}, match.root.span)
    missing = (*match.missing, *_gap(script))
    return family, match._replace(document=document, root=root, missing=missing)


def _without(match: Match, family: Dialect, changed: Collection[str]) -> Match:
    """A command, and the config that it names, without the options that its program sets otherwise."""
    names = {family.options.name_of(name) for name in changed}

    def left(node: Node) -> Node:
        if not isinstance(node.value, dict):
            return node
        kept = {name: child for name, child in node.value.items() if family.options.name_of(name) not in names}
        return Node(kept, node.span, node.key_span, node.keys, node.via)

    options = None if match.options is None else left(match.options)
    return match._replace(options=options, root=left(match.root))


def _own_options(
    command: Command, document: Document, options: Mapping[str, Node], family: Dialect
) -> Iterator[Missing]:
    """Options that the program of a command has of its own, a slip away from one of the family's that matters: what
    they do is the program's. So are options about a model's parts of a program that is not there."""
    from memlint.dialects import joined, own_code, scripts

    whole, known = Node(dict(options), command.span), schemas.load(family.family)
    near = [one for one in objections.misspelt(whole, known) if not _is_off(one.node)]
    parts = [name for name, node in options.items() if _OF_PARTS.search(name) is not None and not _is_off(node)]
    path = scripts.file_of(command, document) if near or parts else None
    if path is None:
        if command.called.endswith(".py") and not joined.describes(command.called):
            stated = {*known["properties"], *schemas.released(known)}
            for name in parts:
                if family.options.name_of(name) not in stated:
                    reason = f"{name} is an option of {command.called}'s own, which is not in this repository"
                    yield Missing(name, options[name].span, reason, ours=True)
        return
    words = own_code.words(path)
    for one in near:
        if one.node.name in words:
            reason = f"{one.node.name} is an option of {path}'s own: what it does is not known"
            yield Missing(one.node.name, one.node.span, reason, ours=True)


def _is_off(node: Node) -> bool:
    return node.value is None or str(node.value).lower() in ("false", "none", "no", "0")


def _gap(script: Script) -> tuple[Missing, ...]:
    """What keeps a run from being known, whatever else is."""
    place, reason = script.document.path, script.unknown
    return (Missing(place, script.root.span, reason, ours=not script.options),) if reason else ()


def _children(node: Node | None) -> dict[str, Node]:
    return node.value if node is not None and isinstance(node.value, dict) else {}


def text_of(command: Command) -> str:
    """What a command says, wherever it stands."""
    words = [word.plain() for word in (command.program, *command.words)]
    launchers = [(launcher.name, launcher.options.plain()) for launcher in command.launchers]
    return repr((words, launchers, {name: node.plain() for name, node in command.environment.items()}))


def identity(spec: TrainingSpec) -> tuple[object, ...]:
    """What makes a run: its model and its values, known or not. A copy of another model, wherever it lies, is that."""
    copied = "same_model_as" in spec
    values = repr([(name, _counted(name, spec[named(name)])) for name in sorted(spec) if name != "model" or not copied])
    missing = tuple((entry.key, entry.reason) for entry in spec.missing)
    name = "" if copied else spec.model_name
    return spec.family, spec.architecture, name, spec.unknown_reason, values, missing


# Weights of what is summed, and shares that are dropped: whether there is any decides about memory, and not how much.
_WEIGHTS = frozenset(
    (
        *("lora.alpha", "lora.dropout"),
        *(HYPER + name for name in ("beta", "entropy_coeff", "nll_loss_coef", "label_smoothing", "rpo_alpha")),
    )
)


def _counted(name: str, value: object) -> object:
    return bool(value) if name in _WEIGHTS and isinstance(value, (int, float)) else value


def known_families() -> Iterable[str]:
    """Names of all families, those registered included."""
    return sorted({*schemas.families(), *_dialects})
