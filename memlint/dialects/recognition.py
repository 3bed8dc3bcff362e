"""Whether a document, or a command of a script, states a run in a family's keys."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from memlint.dialects import programs
from memlint.dialects.signatures import (
    CONFIG_SUFFIXES,
    assigned_score,
    has_keys,
    is_called,
    may_match,
    names_a_config,
    signature_score,
)
from memlint.dialects.trees import find, lookup, overlaid, why_unknown
from memlint.documents import arguments
from memlint.documents.node import Command, Document, Node, Unresolved
from memlint.facts.spec import Missing
from memlint.named_tuple import NamedTuple

if TYPE_CHECKING:
    from typing import Any

    from memlint.dialects.base import Dialect


class Match(NamedTuple):
    """A run that a dialect recognises. ``score`` counts what of the signature was found: the highest wins.

    options  the command's options where ``root`` is the file that one of them names
    beneath  files whose values are the program's own defaults, and nobody's choice
    """

    score: int
    document: Document
    root: Node
    launch: Command | None = None
    options: Node | None = None
    missing: tuple[Missing, ...] = ()
    beneath: frozenset[str] = frozenset()


_STARTS = re.compile(
    r"^if __name__ == ['\"]__main__['\"]|\.backward\(|\.parse_args\(|^[\w.]+\.(?:fit|train)\(", re.MULTILINE
)


class Recogniser:
    """By a family's header; its schema and its Python half are only asked for what the header leaves open."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._header = dialect.header
        self._options = dialect.options

    def match(self, document: Document, command: Command | None = None) -> Match | None:
        """The run that a document (or one command of a script) states in this family's keys, or None."""
        found = self._match_command(document, command) if command is not None else self._match_tree(document)
        if found is not None and (module := self._dialect.module) is not None and hasattr(module, "recognise"):
            if found.missing or module.recognise(found.document, found.root):
                return found
            return None
        return found

    def part(self, document: Document) -> str:
        """Why a document in this family's keys is only a part of other runs; "" for any other document."""
        if "module" not in self._header or (found := self._match_tree(document)) is None:
            return ""
        told = getattr(self._dialect.module, "part", None)
        return "" if told is None else str(told(found.document, found.root))

    def _match_tree(self, document: Document) -> Match | None:
        if document.format == "python" and _STARTS.search(document.text):
            return None  # a program, whose names are not keys: a config is imported and not run
        signature = self._header.get("signature", {})
        if signature.get("members") and document.format == "python":
            return next(iter(self.members(document)), None)
        if not signature.get("class"):
            score = signature_score(signature, document.root) or self._score_of_bases(document)
            return Match(score, document, document.root) if score else _match_text(signature, document)
        best: Match | None = None
        if isinstance(document.root.value, dict):
            for child in document.root.value.values():
                score = signature_score(signature, child) if child.is_mapping else 0
                if score and (best is None or score > best.score):
                    best = Match(score, document, child)
        return best or _match_text(signature, document)

    def _score_of_bases(self, document: Document) -> int:
        """Of a file whose own keys tell nothing, such as its base alone: with the keys of its bases."""
        key = self._header.get("extends", "")
        if not key or find(document.root, key) is None:
            return 0
        _, whole = self._dialect.extended(document, document.root, [])
        return signature_score(self._header.get("signature", {}), whole)

    def members(self, document: Document) -> list[Match]:
        """The runs of a Python module whose functions each return one, in order; [] for any other file."""
        signature = self._header.get("signature", {})
        if not signature.get("members") or document.format != "python" or not isinstance(document.root.value, dict):
            return []
        children = [node for node in document.root.value.values() if node.is_mapping]
        scored = ((signature_score(signature, node), node) for node in children)
        return [Match(score, document, node) for score, node in scored if score]

    def _match_command(self, document: Document, command: Command) -> Match | None:
        signature = self._header.get("signature", {})
        program = signature.get("program", "")
        if program and not is_called(program, command, 0):
            return None
        if "other" in signature and is_called(signature["other"], command, 1):
            return None
        bonus = 1 if program else 0
        if "programs" in signature and is_called(signature["programs"], command, 1):
            bonus = 2
        if "launcher" in signature:
            named_so = any(re.search(signature["launcher"], one.name) for one in command.launchers)
            return Match(0, document, command.options, command) if named_so else None
        if "trains" in signature:
            return Match(-1, document, command.options, command) if programs.says_it_trains(command) else None
        # A list of names is of programs that others share (train.py): their options decide, and cheaply.
        certain = bonus > 1 or (bonus and isinstance(program, str))
        assigned = assigned_score(signature, command, lambda: self._dialect.schema["properties"])
        if not certain and not (
            assigned
            or may_match(signature, command)
            or self._names_python(command)
            or self._mirrored(document)
            or self._assigns(command)
        ):
            return None
        options = self._options.of(command)
        for key in self._dialect.keys:
            if "companion" not in key.annotation or key.annotation.get("graft"):
                continue
            if len(key.path) != 1 and not self._header.get("dotted"):
                continue
            named = lookup(options, key)
            if named is None:
                named = command.environment.get(key.annotation.get("environment", ""))
            if named is None and self._header.get("overrides"):
                named = _word_of(command, key.path[0])
            if named is not None:
                return self._match_companion(document, command, options, named, bonus)
        gaps: tuple[Missing, ...] = ()
        primary = self._primary(document, options, command) if "primary" in self._header else None
        if primary is not None:
            found = self._match_companion(document, command, options, primary, bonus)
            if found is not None:
                return found
        if self._header.get("positional"):
            named = self._positional(command) or self._recipe(document, command)
            if named is not None:
                found = self._match_companion(document, command, options, named, bonus)
                # A config that is not there says nothing of whose program it is that others' are called like.
                if found is not None and (certain or found.document is not document):
                    return found
                gaps = self._unread(document, named)
        if self._header.get("overrides"):
            options = overlaid(options, self._options.overrides(command, options), document)
        score = signature_score(signature, options) or assigned
        if not score and bonus < 2 and not (program and not has_keys(signature)):
            return None
        found = Match(max(score, 1) + bonus, document, options, command, None, gaps)
        return self._on_its_defaults(found, command) if "main" in self._header else found

    def _assigns(self, command: Command) -> bool:
        """Whether a command sets one of the first keys of the signature, or what is below one, by a word of its own."""
        first = self._dialect.first_keys
        if "main" not in self._header or first is None or "=" in command.called:
            return False
        return any(_key_of(word).split(".")[0] in first for word in command.words)

    def _on_its_defaults(self, found: Match, command: Command) -> Match:
        """A run of words on top of the config that its program has of its own, where that is in the repository."""
        from memlint.dialects import hydra_words

        words = self._options.overrides(command, command.options)
        own = hydra_words.own_config(command, found.document, words)
        if own is None or not signature_score(self._header.get("signature", {}), own.document.root):
            return found
        beneath = frozenset({own.document.path, *own.document.sources} - {found.document.path})
        root = hydra_words.laid(_both(own.document.root, command.options), words, found.document, beneath)
        sources = {**own.document.sources, found.document.path: found.document.text, **found.document.sources}
        document = found.document._replace(sources=sources)
        return found._replace(document=document, root=root, beneath=beneath)

    def _match_companion(
        self, document: Document, command: Command, options: Node, named: Node, bonus: int
    ) -> Match | None:
        from memlint.dialects import companions

        other: Document | None = None
        name = named.value if isinstance(named.value, str) else self._meant(document, named)
        if name:
            # A family's own name for the root of its repository, where its recipes lie.
            reference = name.removeprefix(self._header.get("root", ""))
            other, reason = companions.read(reference, document.path)
        else:
            reason = why_unknown(named)
        if other is None:
            if not bonus:  # nothing but an option's name speaks for the family
                return None
            key = "--" + named.key_path if named.key_path else str(named.value)
            gap = Missing(key, named.key_span or named.span, reason)
            return Match(bonus, document, options, command, None, (gap,))
        found = self._match_tree(other) or self._match_both(other, options, bonus)
        if found is None:
            return None
        sources = {document.path: document.text, **document.sources, other.path: other.text, **other.sources}
        words = self._options.overrides(command, options) if self._header.get("overrides") else []
        if "folders" in self._header:
            from memlint.dialects import hydra_words

            made = hydra_words.compose(found.document, words, document)
            sources = {**sources, **made.document.sources}
            other = made.document._replace(sources=sources)
            return Match(found.score + bonus, other, other.root, command, options, made.missing)
        root = found.root
        if words and root is found.document.root:
            root = companions.unresolved(found.document)
        root = overlaid(root, words, document)
        if words and root is not found.root:
            from memlint.documents import interpolation

            root = interpolation.resolve(root)  # what the file takes from a key has that key's new value
        other = found.document._replace(sources=sources)
        return Match(found.score + bonus, other, root, command, options)

    def _meant(self, document: Document, named: Node) -> str:
        """The file that a script of the library's own repository names by a variable that nobody follows: below the
        folder of its configs, or of the script's own name where a file that it sources says so; "" for any other."""
        own = self._header.get("own", {})
        ending = named.value.ending if isinstance(named.value, Unresolved) else ""
        if own and ending.startswith(f"/{own['configs']}/"):
            return ending[1:]
        return self._mirrored(document)

    def _mirrored(self, document: Document) -> str:
        own = self._header.get("own")
        if own is None or own["sourced"] not in document.text:
            return ""
        scripts, recipes = own["mirrored"]
        folder, name = os.path.split(os.path.realpath(document.path))
        if f"/{scripts}" not in folder:
            return ""
        mirrored = os.path.join(folder.replace(scripts, recipes), f"{os.path.splitext(name)[0]}.yaml")
        return os.path.relpath(mirrored, folder)

    def _primary(self, document: Document, options: Node, command: Command) -> Node | None:
        """The file of a primary config that is not the library's own, as Hydra's two options name it: in the folder of
        the one, or beside the script where that folder is made by a command; None where there is none."""
        from memlint.dialects import companions

        named, folder = options.get("config-name"), options.get("config-path")
        if named is None or not isinstance(named.value, str):
            return None
        if "folders" in self._header:
            from memlint.dialects import hydra_words

            stated = [one.value for one in (folder, options.get("config-dir")) if one is not None]
            own = hydra_words.folder_of(command.called, document.path)
            places = [
                *(one for one in stated if isinstance(one, str)),
                *([own] if own else []),
                *self._header["folders"],
            ]
            path = hydra_words.place(named.value, places, document.path)
            return Node(path, named.span, named.key_span, named.keys, named.via) if path else None
        name = named.value.removesuffix(".yaml")
        if name in self._header["primary"]:
            return None
        places = [folder.value] if folder is not None and isinstance(folder.value, str) else ["config", "."]
        for place in places:
            path = f"{place}/{name}.yaml"
            if companions.read(path, document.path)[0] is not None:
                return Node(path, named.span, named.key_span, named.keys, named.via)
        return None

    def _unread(self, document: Document, named: Node) -> tuple[Missing, ...]:
        """A file that a command names beside options, and that cannot be read: what it sets is not known."""
        from memlint.dialects import companions

        reason = companions.read(named.value, document.path)[1] if isinstance(named.value, str) else why_unknown(named)
        return (Missing(str(named.value), named.span, reason),) if reason else ()

    def _match_both(self, other: Document, options: Node, bonus: int) -> Match | None:
        """A file and options that fit the signature only together, or belong to a program of the family."""
        signature = self._header.get("signature", {})
        if signature.get("class") or not isinstance(other.root.value, dict) or not isinstance(options.value, dict):
            return None
        both = Node({**other.root.value, **options.value}, other.root.span)
        score = signature_score(signature, both)
        return Match(max(score, 1), other, other.root) if score or bonus > 1 else None

    def _positional(self, command: Command) -> Node | None:
        """The word of a command that names a file and belongs to no option: ``run_clm.py args.json``."""
        if self._header["positional"] == "python" and not self._names_python(command):
            return None
        suffixes = (".py",) if self._header["positional"] == "python" else CONFIG_SUFFIXES
        if self._header["positional"] == "first":
            rest = arguments.before_options(command.words)
        else:
            _, rest = arguments.split(command.words, self._options.takes)
        return next((word for word in rest if names_a_config(word.value, suffixes)), None)

    def _recipe(self, document: Document, command: Command) -> Node | None:
        """The config of the library's own that a command names without folder and suffix; a file of the repository
        where this is the library's."""
        from memlint.dialects import companions

        rest = arguments.before_options(command.words)
        if "recipes" not in self._header or len(rest) < 2 or not isinstance(rest[1].value, str):
            return None
        name = rest[1].value
        if not name.isidentifier():
            return None
        found = companions.below(self._header["recipes"], f"{name}.py", document.path)
        return Node(found or f"{name}.py", rest[1].span, None, "", rest[1].via)

    def _names_python(self, command: Command) -> bool:
        """Whether a command names a Python module that could be its config: ``train.py config/small.py``."""
        if self._header.get("positional") != "python":
            return False
        return any(names_a_config(word.value, (".py",)) for word in command.words)


def _key_of(word: Node) -> str:
    """What a word of a command sets: ``optim.lr`` of ``+optim.lr=1``; all of any other word."""
    text = word.value.text.strip("\"'") if isinstance(word.value, Unresolved) else word.value
    return text.lstrip("+").partition("=")[0] if isinstance(text, str) else ""


def _both(tree: Node, options: Node) -> Node:
    over = options.value if isinstance(options.value, dict) else {}
    return Node({**tree.value, **over}, options.span) if isinstance(tree.value, dict) else tree


def _word_of(command: Command, name: str) -> Node | None:
    """What a word of a command gives a key: ``config=examples/config.yaml``."""
    for word in command.words:
        if isinstance(word.value, str) and word.value.startswith(f"{name}="):
            return Node(word.value[len(name) + 1 :], word.span, None, name, word.via)
    return None


def _match_text(signature: dict[str, Any], document: Document) -> Match | None:
    """A file whose keys are all in the files that it builds on, by words of its text."""
    words = signature.get("text")
    if not words or not document.root.is_mapping or not any(word in document.text for word in words):
        return None
    if any(find(document.root, key) is not None for key in signature.get("none", ())):
        return None
    return Match(1, document, document.root)
