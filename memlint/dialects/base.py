"""A dialect: one family's schema, and the optional Python half for what a schema cannot say.

The Python half is a module of this folder with any of these functions, found by name:

    recognise(document, root) -> bool   a condition beyond the signature
    FAMILY                              the steps to the facts that the schema cannot express (family.py)
    complete(spec) -> TrainingSpec      the same for a model that is no language model; architecture and model name
    spell(spec, fact, value) -> edits   or None for the generic spelling
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from memlint.dialects import programs, software
from memlint.dialects import schema as schemas
from memlint.dialects.schema import ANNOTATION, Key, Schema
from memlint.documents import arguments
from memlint.documents.node import Command, Document, Keys, Node, Span, Unresolved
from memlint.facts.derive import Derivation
from memlint.facts.spec import ASSUMED, DEFAULT, WRITTEN, Fact, Missing, OnTop, TrainingSpec, UnknownModel, named
from memlint.named_tuple import NamedTuple

_MAX_BASES = 16  # files that a config builds on

# What an annotation may say of a number beside the numbers of other facts, and how a message says the contrary.
RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "divides": lambda part, whole: whole % part == 0,
    "at_most": lambda one, other: one <= other,
    "less_than": lambda one, other: one < other,
}
_CONTRADICTS = {"divides": "does not divide", "at_most": "is more than", "less_than": "is not less than"}

# A tree that stands for itself: no text is behind it.
NO_DOCUMENT = Document("", "yaml", "", Node({}, Span("", 1, 1, 1, 1)))


class Match(NamedTuple):
    """A run that a dialect recognises. ``score`` counts what of the signature was found: the highest wins.

    options  the command's options where ``root`` is the file that one of them names
    """

    score: int
    document: Document
    root: Node
    launch: Command | None = None
    options: Node | None = None
    missing: tuple[Missing, ...] = ()


_STARTS = re.compile(r"^if __name__ == ['\"]__main__['\"]", re.MULTILINE)


class Dialect:
    def __init__(self, schema: Schema | str, module: Any = None) -> None:
        """``schema`` is the whole schema, or the name of a family, whose schema is then read when a file first needs
        more of it than its header; ``module`` stands in for the Python half that it names.

        Raises KeyError for a family that has no schema.
        """
        self._schema = None if isinstance(schema, str) else schema
        self.header: dict[str, Any] = schemas.header(schema) if isinstance(schema, str) else schema[ANNOTATION]
        self.family: str = self.header["family"]
        self._module = module
        self._keys: tuple[Key, ...] | None = None
        self._stated_keys: tuple[Key, ...] | None = None
        self._by_fact: dict[str, list[Key]] | None = None
        self._defaults: dict[tuple[tuple[str, ...], bool], Fact] = {}

    @property
    def schema(self) -> Schema:
        if self._schema is None:
            self._schema = schemas.load(self.family)
        return self._schema

    @property
    def module(self) -> Any:
        """The Python half, imported when the family is met; None where a schema says it all."""
        if self._module is not None:
            return self._module
        name, named = self.header.get("module"), self.header.get("trainer")
        if not name and isinstance(named, str):
            from memlint.trainers.table import steps_of

            name = steps_of(named)
        if name:
            self._module = __import__("memlint.dialects." + name, fromlist=[name])
        return self._module

    @property
    def complete(self) -> Callable[[TrainingSpec], TrainingSpec] | None:
        """What makes the other facts of those that the schema finds; None where a schema says it all."""
        made: Callable[[TrainingSpec], TrainingSpec] | None = getattr(self.module, "complete", None)
        return made or getattr(getattr(self.module, "FAMILY", None), "complete", None)

    @property
    def keys(self) -> tuple[Key, ...]:
        """The annotated keys, in the order of the schema."""
        if self._keys is None:
            self._keys = schemas.keys(self.schema)
        return self._keys

    @property
    def stated_keys(self) -> tuple[Key, ...]:
        """The keys that set a fact, or whose values are to be known whatever they mean."""
        if self._stated_keys is None:
            found = [key for key in self.keys if key.annotation.get("fact") or key.annotation.get("memory_relevant")]
            self._stated_keys = tuple(found)
        return self._stated_keys

    def keys_of(self, fact: str) -> Sequence[Key]:
        """The keys that set a fact, in the order of the schema."""
        if self._by_fact is None:
            self._by_fact = {}
            for key in self.stated_keys:
                self._by_fact.setdefault(key.annotation.get("fact", ""), []).append(key)
        return self._by_fact.get(fact, ())

    def key(self, fact: str) -> Key | None:
        """The first key that sets a fact."""
        return next(iter(self.keys_of(fact)), None)

    # -- recognising

    def match(self, document: Document, command: Command | None = None) -> Match | None:
        """The run that a document (or one command of a script) states in this family's keys, or None."""
        found = self._match_command(document, command) if command is not None else self._match_tree(document)
        if found is not None and self.module is not None and hasattr(self.module, "recognise"):
            if found.missing or self.module.recognise(found.document, found.root):
                return found
            return None
        return found

    def _match_tree(self, document: Document) -> Match | None:
        if document.format == "python" and _STARTS.search(document.text):
            return None  # a program, whose names are not keys: a config is imported and not run
        signature = self.header.get("signature", {})
        if signature.get("members") and document.format == "python":
            return next(iter(self.members(document)), None)
        if not signature.get("class"):
            score = signature_score(signature, document.root)
            return Match(score, document, document.root) if score else _match_text(signature, document)
        best: Match | None = None
        if isinstance(document.root.value, dict):
            for child in document.root.value.values():
                score = signature_score(signature, child) if child.is_mapping else 0
                if score and (best is None or score > best.score):
                    best = Match(score, document, child)
        return best or _match_text(signature, document)

    def members(self, document: Document) -> list[Match]:
        """The runs of a Python module whose functions each return one, in order; [] for any other file."""
        signature = self.header.get("signature", {})
        if not signature.get("members") or document.format != "python" or not isinstance(document.root.value, dict):
            return []
        children = [node for node in document.root.value.values() if node.is_mapping]
        scored = ((signature_score(signature, node), node) for node in children)
        return [Match(score, document, node) for score, node in scored if score]

    def _match_command(self, document: Document, command: Command) -> Match | None:
        signature = self.header.get("signature", {})
        program = signature.get("program", "")
        if program and not _is_called(program, command, 0):
            return None
        if "other" in signature and _is_called(signature["other"], command, 1):
            return None
        bonus = 1 if program else 0
        if "programs" in signature and _is_called(signature["programs"], command, 1):
            bonus = 2
        if "launcher" in signature:
            named_so = any(re.search(signature["launcher"], one.name) for one in command.launchers)
            return Match(0, document, command.options, command) if named_so else None
        if "trains" in signature:
            return Match(-1, document, command.options, command) if programs.says_it_trains(command) else None
        # A list of names is of programs that others share (train.py): their options decide, and cheaply.
        certain = bonus > 1 or (bonus and isinstance(program, str))
        if not certain and not (
            _may_match(signature, command) or self._names_python(command) or self._mirrored(document)
        ):
            return None
        options = self.options(command)
        for key in self.keys:
            if "companion" not in key.annotation or key.annotation.get("graft"):
                continue
            if len(key.path) != 1 and not self.header.get("dotted"):
                continue
            named = lookup(options, key)
            if named is None:
                named = command.environment.get(key.annotation.get("environment", ""))
            if named is None and self.header.get("overrides"):
                named = _word_of(command, key.path[0])
            if named is not None:
                return self._match_companion(document, command, options, named, bonus)
        gaps: tuple[Missing, ...] = ()
        primary = self._primary(document, options) if "primary" in self.header else None
        if primary is not None:
            found = self._match_companion(document, command, options, primary, bonus)
            if found is not None:
                return found
        if self.header.get("positional"):
            named = self._positional(command) or self._recipe(document, command)
            if named is not None:
                found = self._match_companion(document, command, options, named, bonus)
                if found is not None:
                    return found
                gaps = self._unread(document, named)
        if self.header.get("overrides"):
            options = _overlaid(options, self._overrides(command, options), document)
        score = signature_score(signature, options)
        if not score and bonus < 2 and not (program and not _has_keys(signature)):
            return None
        return Match(max(score, 1) + bonus, document, options, command, None, gaps)

    def _match_companion(
        self, document: Document, command: Command, options: Node, named: Node, bonus: int
    ) -> Match | None:
        from memlint.dialects import companions

        other: Document | None = None
        name = named.value if isinstance(named.value, str) else self._meant(document, named)
        if name:
            # A family's own name for the root of its repository, where its recipes lie.
            reference = name.removeprefix(self.header.get("root", ""))
            other, reason = companions.read(reference, document.path)
        else:
            reason = _unknown(named)
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
        words = self._overrides(command, options) if self.header.get("overrides") else []
        root = found.root
        if words and root is found.document.root:
            root = companions.unresolved(found.document)
        root = _overlaid(root, words, document)
        if words and root is not found.root:
            from memlint.documents import interpolation

            root = interpolation.resolve(root)  # what the file takes from a key has that key's new value
        other = found.document._replace(sources=sources)
        return Match(found.score + bonus, other, root, command, options)

    def _meant(self, document: Document, named: Node) -> str:
        """The file that a script of the library's own repository names by a variable that nobody follows: below the
        folder of its configs, or of the script's own name where a file that it sources says so; "" for any other."""
        own = self.header.get("own", {})
        ending = named.value.ending if isinstance(named.value, Unresolved) else ""
        if own and ending.startswith(f"/{own['configs']}/"):
            return ending[1:]
        return self._mirrored(document)

    def _mirrored(self, document: Document) -> str:
        own = self.header.get("own")
        if own is None or own["sourced"] not in document.text:
            return ""
        scripts, recipes = own["mirrored"]
        folder, name = os.path.split(os.path.realpath(document.path))
        if f"/{scripts}" not in folder:
            return ""
        mirrored = os.path.join(folder.replace(scripts, recipes), f"{os.path.splitext(name)[0]}.yaml")
        return os.path.relpath(mirrored, folder)

    def _primary(self, document: Document, options: Node) -> Node | None:
        """The file of a primary config that is not the library's own, as Hydra's two options name it: in the folder of
        the one, or beside the script where that folder is made by a command; None where there is none."""
        from memlint.dialects import companions

        named, folder = options.get("config-name"), options.get("config-path")
        if named is None or not isinstance(named.value, str):
            return None
        name = named.value.removesuffix(".yaml")
        if name in self.header["primary"]:
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

        reason = companions.read(named.value, document.path)[1] if isinstance(named.value, str) else _unknown(named)
        return (Missing(str(named.value), named.span, reason),) if reason else ()

    def _match_both(self, other: Document, options: Node, bonus: int) -> Match | None:
        """A file and options that fit the signature only together, or belong to a program of the family."""
        signature = self.header.get("signature", {})
        if signature.get("class") or not isinstance(other.root.value, dict) or not isinstance(options.value, dict):
            return None
        both = Node({**other.root.value, **options.value}, other.root.span)
        score = signature_score(signature, both)
        return Match(max(score, 1), other, other.root) if score or bonus > 1 else None

    def _positional(self, command: Command) -> Node | None:
        """The word of a command that names a file and belongs to no option: ``run_clm.py args.json``."""
        if self.header["positional"] == "python" and not self._names_python(command):
            return None
        suffixes = (".py",) if self.header["positional"] == "python" else _CONFIG_SUFFIXES
        if self.header["positional"] == "first":
            rest = arguments.before_options(command.words)
        else:
            _, rest = arguments.split(command.words, self._takes)
        return next((word for word in rest if _names_a_config(word.value, suffixes)), None)

    def _recipe(self, document: Document, command: Command) -> Node | None:
        """The config of the library's own that a command names without folder and suffix; a file of the repository
        where this is the library's."""
        from memlint.dialects import companions

        rest = arguments.before_options(command.words)
        if "recipes" not in self.header or len(rest) < 2 or not isinstance(rest[1].value, str):
            return None
        name = rest[1].value
        if not name.isidentifier():
            return None
        found = companions.below(self.header["recipes"], f"{name}.py", document.path)
        return Node(found or f"{name}.py", rest[1].span, None, "", rest[1].via)

    def _names_python(self, command: Command) -> bool:
        """Whether a command names a Python module that could be its config: ``train.py config/small.py``."""
        if self.header.get("positional") != "python":
            return False
        return any(_names_a_config(word.value, (".py",)) for word in command.words)

    def _overrides(self, command: Command, options: Node) -> list[Node]:
        """The words of a command that set keys; pairs of a key and its value (yacs) as ``KEY=value``."""
        _, rest = arguments.split(command.words, self._takes)
        if self.header["overrides"] != "pairs":
            return rest
        opts = child(options, ("opts",))
        if opts is not None and isinstance(opts.value, list):
            rest = [*rest, *opts.value]
        found: list[Node] = []
        at = 0
        while at + 1 < len(rest):
            key, value = rest[at].value, rest[at + 1]
            if isinstance(key, str) and key[:1].isupper() and key.replace(".", "_").isidentifier():
                if isinstance(value.value, str):
                    found.append(Node(f"{key}={value.value}", value.span, None, "", value.via))
                at += 1
            at += 1
        return found

    @cached_property
    def _spellings(self) -> dict[str, tuple[str, Schema, frozenset[str]]]:
        """Every spelling of a top-level key -> (the key, its schema, its types)."""
        by_name: dict[str, tuple[str, Schema, frozenset[str]]] = {}
        for name, value in schemas.properties(self.schema, self.schema).items():
            resolved = schemas.resolve(value, self.schema)
            kinds = schemas.types(resolved, self.schema)
            for spelling in (name, *resolved.get(ANNOTATION, {}).get("aliases", ())):
                by_name.setdefault(spelling, (name, resolved, kinds))
        return by_name

    def name_of(self, spelling: str) -> str:
        """The key that a spelling stands for."""
        return self._spellings.get(spelling, (spelling,))[0]

    @cached_property
    def _takes(self) -> Callable[[str], str]:
        """How many words an option takes, by its name."""
        by_name = self._spellings

        def takes(name: str) -> str:
            if name not in by_name:
                name = name.replace("-", "_")
            _, value, kinds = by_name.get(name, ("", {}, frozenset()))
            if value.get(ANNOTATION, {}).get("flag"):
                return arguments.SWITCH
            if "array" in kinds:
                return arguments.MANY
            if kinds and kinds <= {"boolean", "null"}:
                return arguments.BOOLEAN
            if name.startswith("no_") and "boolean" in by_name.get(name[3:], ("", {}, ()))[2]:
                return arguments.SWITCH
            return arguments.ONE

        if not self.header.get("dotted"):
            return takes
        inside = self._inside

        def takes_inside(name: str) -> str:
            _, value = inside.get(name.replace("-", "_"), ((), {}))
            if name in by_name or not value:
                return takes(name)
            kinds = schemas.types(value, self.schema)
            return arguments.BOOLEAN if kinds and kinds <= {"boolean", "null"} else arguments.ONE

        return takes_inside

    @cached_property
    def _inside(self) -> dict[str, tuple[tuple[str, ...], Schema]]:
        """Dotted names of the keys inside tables -> their paths and schemas."""
        found: dict[str, tuple[tuple[str, ...], Schema]] = {}

        def walk(schema: Schema, path: tuple[str, ...]) -> None:
            for name, value in schemas.properties(schema, self.schema).items():
                inner = schemas.resolve(value, self.schema)
                for spelling in (name, *inner.get(ANNOTATION, {}).get("aliases", ())):
                    found.setdefault(".".join((*path, spelling)), ((*path, spelling), inner))
                if len(path) < 6:
                    walk(inner, (*path, name))

        walk(self.schema, ())
        return found

    def options(self, command: Command) -> Node:
        """The options of a command, with the types that the schema gives them, as argparse would read them.

        ``--per-device`` is ``--per_device`` where the schema knows only the one.
        """
        by_name = self._spellings
        if command.words:
            values, _ = arguments.split(command.words, self._takes)
        else:
            values = dict(command.options.value) if isinstance(command.options.value, dict) else {}
        found: dict[str, Node] = {}
        inside = self._inside if self.header.get("dotted") else {}
        for written, node in values.items():
            name = written if written in by_name else written.replace("-", "_")
            positive = name[3:] if name.startswith("no_") else ""
            if name not in by_name and "boolean" in by_name.get(positive, ("", {}, ()))[2]:
                found[positive] = Node(False, node.span, node.key_span, positive, node.via)
            elif name in by_name:
                found[name] = typed(node, by_name[name][1], self.schema)
            elif name in inside:
                path, value = inside[name]
                _nest(found, path, typed(node, value, self.schema))
            else:
                found[written] = node
        return Node(found, command.options.span)

    # -- understanding

    def facts_of(self, root: Node) -> tuple[dict[str, Fact], list[Missing]]:
        """What a tree states in this family's keys, for the run that names it (a DeepSpeed config), and its gaps."""
        missing: list[Missing] = []
        return self._facts(Match(1, NO_DOCUMENT, root), root, missing), missing

    def spec(self, match: Match, run: str = "train") -> TrainingSpec:
        """The facts of a run that :meth:`match` found, each with where it came from."""
        missing = list(match.missing)
        document, root = self._extended(match.document, match.root, missing)
        incomplete = len(missing) > len(match.missing)
        document, root = self._graft(document, root, missing)
        root = self._worded(root)
        if match.options is not None:
            match = match._replace(options=self._worded(match.options))
        facts = self._facts(match, root, missing)
        if incomplete:  # what this file leaves out, the one that it builds on may state
            facts = {name: fact for name, fact in facts.items() if fact.origin != DEFAULT}
        self._family_facts(facts)
        software.state(facts, document.path)
        if match.launch is not None:
            _environment_facts(match.launch, facts, missing)

        def read(releases: Mapping[str, Fact]) -> TrainingSpec:
            spec = TrainingSpec(
                family=self.family,
                document=document,
                root=root,
                facts={**facts, **releases},
                architecture=self.header.get("architecture"),
                run=run,
                model_name=self.header.get("model_name", ""),
                missing=tuple(missing),
                launch=match.launch,
            )
            reasons = [one.reason for one in match.missing]
            if self.complete is not None and all(isinstance(reason, OnTop) for reason in reasons):
                spec = _derived(spec, _bounded(self.complete, reasons[0]) if reasons else self.complete)
            elif reasons:
                spec.architecture, spec.unknown_reason = None, reasons[0]
            return spec

        spec = read({})
        spec.under = read
        return spec

    def _facts(self, match: Match, root: Node, missing: list[Missing]) -> dict[str, Fact]:
        """What the keys say. A written key goes before a default; of several written ones the schema's first."""
        written: dict[str, Fact] = {}
        defaults: dict[str, Fact] = {}
        unknown: set[str] = set()  # facts that a key sets to what is not known: no default stands for them
        refused: set[str] = set()  # nor does a key that counts only where that one is absent
        seen: set[int] = set()  # unresolved nodes above several keys
        all_options = match.launch is not None and match.options is None
        for key in self.stated_keys:
            annotation = key.annotation
            name = annotation.get("fact", "")
            node = child(match.options, key.names) if len(key.path) == 1 else None
            if node is None and match.options is not None and self.header.get("dotted"):
                node = lookup(match.options, key)
            is_option = node is not None or all_options
            if node is None:
                node = lookup(root, key)
            if node is not None and node.value is None and self._is_absent(key):
                node = None
            if is_option and node is not None and node.value is False and annotation.get("flag"):
                node = None  # -o flag=false: a command has it by leaving it out
            if node is None:
                if "default" in annotation and name and name not in defaults:
                    defaults[name] = self._default(key, is_option)
                continue
            spelled = self._spelled(node, key, is_option)
            gap = next((part for part in node.walk() if part.is_unresolved), None)
            if gap is None and schemas.accepts(node, key.schema, self.schema):
                value = self._fact_value(node, key)
                if isinstance(value, dict) and not isinstance(node.value, dict):
                    node = _spread(value, node)
                fact = Fact(name, value, WRITTEN, spelled, node)
                if name not in refused:
                    written.setdefault(name, fact)
                continue
            unknown.add(name)
            if id(node) not in seen:
                seen.add(id(node))
                place = node.key_span or node.span
                if gap is not None:
                    named = _by_name(gap, name, spelled) if name.endswith("model") and gap is node else None
                    if named is not None:
                        written.setdefault(name, named)
                        continue
                    missing.append(Missing(spelled, place, _unknown(gap), name))
                else:
                    reason = f"{schemas.shown_value(node)} is {schemas.NOT_TAKEN}"
                    missing.append(Missing(spelled, place, reason, name, node))
                    refused.add(name)
        facts = {name: fact for name, fact in defaults.items() if name not in unknown}
        facts.update(written)
        facts.pop("", None)
        self._hold_together(facts, missing)
        return facts

    def _default(self, key: Key, is_option: bool) -> Fact:
        """The fact of a key that is left out."""
        if (key.path, is_option) not in self._defaults:
            name, value, reason = (key.annotation.get(entry, "") for entry in ("fact", "default", "default_of"))
            fact = Fact(name, value, DEFAULT, self._spelled(None, key, is_option), None, reason)
            self._defaults[key.path, is_option] = fact
        return self._defaults[key.path, is_option]

    def _worded(self, root: Node) -> Node:
        """The tree with words that stand for one that the schema knows (``torch.bfloat16``) in place of that one."""
        from memlint.dialects import words

        for key in self.keys:
            kind = key.annotation.get("words", "")
            node = lookup(root, key) if kind else None
            if node is None or not isinstance(node.value, str) or schemas.accepts(node, key.schema, self.schema):
                continue
            known = [word for word in key.schema.get("enum", ()) if isinstance(word, str)]
            found = words.meant(kind, node.value, known)
            if found is not None:
                root = _with(root, key, Node(found, node.span, node.key_span, node.key_path, node.via))
        return root

    def _fact_value(self, node: Node, key: Key) -> Any:
        """The fact's value for a node that its key takes; ``2.0`` is the integer 2 where the key takes integers."""
        value = fact_value(node.plain(), key.annotation)
        if isinstance(value, float) and value.is_integer() and "number" not in schemas.types(key.schema, self.schema):
            return int(value)
        return value

    def _hold_together(self, facts: dict[str, Fact], missing: list[Missing]) -> None:
        """Take out the facts whose written values contradict those of other keys."""
        for key in self.stated_keys:
            if RELATIONS.keys().isdisjoint(key.annotation):
                continue
            fact = facts.get(key.annotation.get("fact", ""))
            if fact is None or fact.node is None:
                continue
            for relation, holds in RELATIONS.items():
                others = (facts.get(name) for name in key.annotation.get(relation, ()))
                for other in others:
                    if other is None or not _is_size(fact.value) or not _is_size(other.value):
                        continue
                    if not holds(fact.value, other.value):
                        reason = f"{fact.value} {_CONTRADICTS[relation]} {other.label} {other.value}"
                        place = fact.node.key_span or fact.node.span
                        missing.append(Missing(fact.key, place, reason, fact.name, fact.node))
                        facts.pop(fact.name, None)

    def _spelled(self, node: Node | None, key: Key, is_option: bool) -> str:
        """A key as the family spells it, in a file or on a command line."""
        if is_option and len(key.path) > 1 and self.header.get("dotted"):
            return "--" + (node.key_path if node is not None and node.key_path else key.dotted)
        overridden = len(key.path) > 1 and "overrides" in self.header  # section.key=value, a word and no option
        return _spelled(node, key, is_option and not overridden)

    def _is_absent(self, key: Key) -> bool:
        """Whether an empty value of a key means the same as its absence."""
        if "null" in key.annotation.get("values", {}):
            return False
        return "default" in key.annotation or "null" not in schemas.types(key.schema, self.schema)

    def _family_facts(self, facts: dict[str, Fact]) -> None:
        """Facts that the family states as a whole: its framework, and what no key of it sets."""
        for name, entry in self.header.get("facts", {}).items():
            if name not in facts:
                facts[name] = Fact(name, entry["default"], DEFAULT, reason=entry.get("default_of", ""))
        framework = self.header.get("framework", "")
        if framework:
            title = self.header.get("title", self.family)
            if "framework" not in facts:
                facts["framework"] = Fact("framework", framework.split()[0], DEFAULT, reason=f"{title} runs on it")
            if "framework_version" not in facts and " " in framework:
                facts["framework_version"] = Fact(
                    "framework_version", framework, ASSUMED, reason="not stated in the config"
                )

    def _extended(self, document: Document, root: Node, missing: list[Missing]) -> tuple[Document, Node]:
        """The tree on top of those of the files that it builds on (``_BASE_: ../base.yaml``)."""
        key = self.header.get("extends", "")
        if not key or not root.is_mapping:
            return document, root
        from memlint.dialects import companions
        from memlint.documents.merge import merge

        seen: set[str] = set()
        layers: list[Node] = [root]
        queue = [(root, document.path)]
        sources = document.sources or {document.path: document.text}
        while queue:
            tree, beside = queue.pop()
            named = find(tree, key)
            if named is None or named.value in (None, ""):
                continue
            for one in reversed(named.value) if isinstance(named.value, list) else (named,):
                if one.value == "":  # yacs writes "no base" like this
                    continue
                other, reason = (None, _unknown(one))
                if isinstance(one.value, str):
                    other, reason = companions.read(one.value, beside)
                if other is None:
                    missing.append(Missing(key, one.key_span or one.span, reason))
                elif other.path not in seen and len(seen) < _MAX_BASES:
                    seen.add(other.path)
                    sources = {**sources, other.path: other.text, **other.sources}
                    layers.append(other.root)
                    queue.append((other.root, other.path))
        if len(layers) == 1 and not missing:
            return document, root
        for layer in layers[1:]:
            root = merge(layer, root)
        return document._replace(sources=sources), root

    def _graft(self, document: Document, root: Node, missing: list[Missing]) -> tuple[Document, Node]:
        """Put the trees of files that the config names (``deepspeed: ds.json``) in place of their names."""
        for key in self.keys:
            if not key.annotation.get("graft"):
                continue
            node = lookup(root, key)
            if node is None or not isinstance(node.value, str) or not node.value:
                continue
            from memlint.dialects import companions

            other, reason = companions.read(node.value, _path_of(node, document))
            if other is None:
                missing.append(Missing(node.key_path or key.dotted, node.key_span or node.span, reason))
                continue
            tree = Node(other.root.value, node.span, node.key_span, node.keys, (*node.via,))
            root = _with(root, key, tree)
            sources = document.sources or {document.path: document.text}
            document = document._replace(sources={**sources, other.path: other.text, **other.sources})
        return document, root


def _derived(spec: TrainingSpec, complete: Callable[[TrainingSpec], TrainingSpec]) -> TrainingSpec:
    """A run with what its family makes of the facts, which makes it again where one is tried with another value."""
    given = spec.replaced({})
    made = _completed(spec, complete)
    made.derivation = Derivation(given, complete, made.facts, asked=made.asked)
    return made


def _bounded(complete: Callable[[TrainingSpec], TrainingSpec], reason: str) -> Callable[[TrainingSpec], TrainingSpec]:
    """The same, of a run of which ``reason`` leaves a bound at most."""

    def made(spec: TrainingSpec) -> TrainingSpec:
        spec = complete(spec)
        spec.architecture_at_least = spec.architecture or spec.architecture_at_least
        spec.architecture, spec.architecture_on_devices, spec.unknown_reason = None, "", reason
        return spec

    return made


def _completed(spec: TrainingSpec, complete: Callable[[TrainingSpec], TrainingSpec]) -> TrainingSpec:
    """What the Python half makes of the facts, and no estimate where it asked for one that is written and not known.

    Whatever it put in the place of a value that its key does not take is no default of anybody's.
    """
    given = spec
    try:
        spec = complete(given)
        wanted = [item for item in (*given.wanted, *spec.wanted) if _is_open(spec, item)]
        if not wanted:
            return spec
        reason = wanted[0].message
    except UnknownModel as error:
        spec, reason = given, str(error)
    except KeyError as error:
        item = given.gap(named(str(error.args[0]))) if error.args else None
        if item is None:
            raise
        spec, reason = given, item.message
    if spec.architecture is not None or spec.architecture_on_devices or not spec.unknown_reason:
        spec.architecture, spec.architecture_on_devices, spec.unknown_reason = None, "", reason
        spec.architecture_at_least = ""
    return spec


def _is_open(spec: TrainingSpec, item: Missing) -> bool:
    """Whether no other key states the fact that a refused value was to set."""
    fact = spec.facts.get(item.fact)
    return fact is None or (fact.node is None and fact.origin in (DEFAULT, ASSUMED))


# ---------------------------------------------------------------------------------------------- small parts


# The first of these that is set counts in a CUDA build of torch.
_ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def _environment_facts(launch: Command, facts: dict[str, Fact], missing: list[Missing]) -> None:
    """What the environment of a launch sets for any family."""
    for variable in _ALLOCATOR_VARIABLES:
        node = launch.environment.get(variable)
        if node is None:
            continue
        if node.is_unresolved:
            missing.append(Missing(variable, node.key_span or node.span, _unknown(node)))
        else:
            facts["allocator_conf"] = Fact("allocator_conf", str(node.value), WRITTEN, variable, node)
        return


def child(node: Node | None, names: tuple[str, ...]) -> Node | None:
    """The first of these keys that a mapping has."""
    if node is None or not isinstance(node.value, dict):
        return None
    for name in names:
        found = node.value.get(name)
        if found is not None:
            return found
    return None


def lookup(root: Node, key: Key) -> Node | None:
    """The node at an annotated key; the unresolved node on the way to it, where there is one; or None."""
    if len(key.path) == 1 and isinstance(root.value, dict):
        return child(root, key.names)
    node = root
    for depth, part in enumerate(key.path):
        value = node.value
        if isinstance(value, dict):
            found = child(node, key.names if depth == len(key.path) - 1 else (part,))
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            found = value[int(part)]
        else:
            return None
        if found is None or found.is_unresolved:
            return found
        node = found
    return node


def _nest(tree: dict[str, Node], path: tuple[str, ...], node: Node) -> None:
    """Put a node into a tree of tables; what is there and no table gives way."""
    for part in path[:-1]:
        table = tree.get(part)
        if table is None or not isinstance(table.value, dict):
            table = tree[part] = Node({}, node.span, node.key_span, part, node.via)
        assert isinstance(table.value, dict)
        tree = table.value
    tree[path[-1]] = node


def find(root: Node, dotted: str) -> Node | None:
    """The node at a dotted key; keys that themselves hold dots (``--policy.type``) are tried first."""
    if isinstance(root.value, dict) and dotted in root.value:
        return root.value[dotted]
    head, dot, rest = dotted.partition(".")
    if not dot:
        return None if isinstance(root.value, dict) else root.get(dotted)
    inner = root.get(head)
    return find(inner, rest) if inner is not None else None


def signature_score(signature: dict[str, Any], root: Node) -> int:
    """How many keys of a signature a tree holds; 0 where it does not fit it, or the signature has no keys."""
    if not root.is_mapping:
        return 0
    wanted = signature.get("all", ())
    for key in wanted:
        if find(root, key) is None:
            return 0
    best = 0
    for choice in signature.get("any", ()):
        if isinstance(choice, str):
            best = best or int(find(root, choice) is not None)
        elif len(choice) > best and all(find(root, key) is not None for key in choice):
            best = len(choice)
    if signature.get("any") and not best:
        return 0
    if any(find(root, key) is not None for key in signature.get("none", ())):
        return 0
    return len(wanted) + best


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


_CONFIG_SUFFIXES = (".yaml", ".yml", ".json", ".toml")


def _names_a_config(value: Any, suffixes: tuple[str, ...] = _CONFIG_SUFFIXES) -> bool:
    return isinstance(value, str) and value.lower().endswith(suffixes)


def _overlaid(root: Node, words: list[Node], document: Document) -> Node:
    """The tree of a file with ``key=value`` words of the command that names it, each standing where it was written."""
    from memlint.documents.lines import bounds, line_starts, position
    from memlint.documents.overrides import OverrideError, parse_value, put, split_key

    for word in words:
        unknown = word.value if isinstance(word.value, Unresolved) else None
        whole = word.value if unknown is None else unknown.text.strip("\"'")
        key, equals, text = whole.partition("=") if isinstance(whole, str) else ("", "", "")
        parts = split_key(key.lstrip("+~"))
        if not equals or not parts or not all(part.replace("_", "a").replace("-", "a").isalnum() for part in parts):
            continue
        span = word.span
        source = document.sources.get(span.path, document.text)
        starts = line_starts(source, span.path)
        start, end = bounds(starts, span)
        at = source.find("=", start, end)
        if at >= 0 and not word.via:  # the value alone, so that an edit leaves the key in place
            written = source[at + 1 : end].rstrip("\"'")
            line, column = position(starts, at + 1)
            end_line, end_column = position(starts, at + 1 + len(written))
            span = Span(span.path, line, column, end_line, end_column)
        try:
            value = parse_value(text, str(whole), 1, 0) if unknown is None else Node(unknown._replace(text=text), span)
            root = put(root, parts, _standing(value, span, word), str(whole))
        except OverrideError:
            continue  # the program itself would refuse it
        leaf = root.get(".".join(parts))
        if leaf is not None and not leaf.is_mapping:
            leaf.key_span = word.span  # here it is stated, wherever the file has the key
    return root


def _standing(value: Node, span: Span, word: Node) -> Node:
    """A value with all its parts at one place."""
    inner = value.value
    if isinstance(inner, dict):
        inner = {name: _standing(part, span, word) for name, part in inner.items()}
    elif isinstance(inner, list):
        inner = [_standing(part, span, word) for part in inner]
    return Node(inner, span, word.span, value.keys, word.via)


def _is_called(names: str | list[str], command: Command, words: int) -> bool:
    """Whether a program is meant by a regular expression (with so many words after it), or by a name of a list.

    A name of a list is the last part of the program's path, without ``.py``, or a whole dotted module, and the plain
    words after it (``yolo detect train``); ``*`` at an end stands for anything.
    """
    if isinstance(names, str):
        return re.search(names, _called(command) if words else _program(command)) is not None
    program = _program(command)
    last = program.rsplit("/", 1)[-1].removesuffix(".py")
    spellings = [last, program]
    if words:
        for word in command.words[:2]:
            if not isinstance(word.value, str):
                break
            last = f"{last} {word.value}"
            spellings.append(last)
    return any(_fits(name, spelling) for name in names for spelling in spellings)


def _fits(name: str, spelling: str) -> bool:
    if name[:1] == "*":
        return name[1:-1] in spelling if name[-1:] == "*" else spelling.endswith(name[1:])
    return spelling.startswith(name[:-1]) if name[-1:] == "*" else spelling == name


def _called(command: Command) -> str:
    """The program of a command and the first word after it: ``trl sft``."""
    first = command.words[0].value if command.words else None
    return f"{_program(command)} {first}" if isinstance(first, str) else _program(command)


def _program(command: Command) -> str:
    """What a command names its program, as far as it is known; else what stands in its place (``$SCRIPT``)."""
    value = command.program.value
    return command.called or (value.text if isinstance(value, Unresolved) else "")


def _may_match(signature: dict[str, Any], command: Command) -> bool:
    """Whether the names of a command's options could fit a signature: decided without the family's schema."""
    options = command.options.value
    if not isinstance(options, dict):
        return False
    if any(name.startswith(("no_", "no-")) for name in options):
        return True
    if any(_names_a_config(word.value) for word in command.words):
        return True
    for word in command.words:  # --config=recipe.yaml
        if isinstance(word.value, dict) and any(_names_a_config(inner.value) for inner in word.value.values()):
            return True
    names = {name.replace("-", "_"): node for name, node in options.items()}
    return bool(signature_score(signature, Node({**options, **names}, command.options.span)))


def _has_keys(signature: dict[str, Any]) -> bool:
    return bool(signature.get("all") or signature.get("any") or signature.get("none"))


def file_text(value: Any) -> str:
    """A file's value as the ``values`` of an annotation name it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def fact_value(value: Any, annotation: dict[str, Any]) -> Any:
    """The fact's value for a value of the file; values that are not listed stand for themselves."""
    values = annotation.get("values")
    if not values or isinstance(value, (dict, list)):
        return value
    text = file_text(value)
    if text in values:
        return values[text]
    return values.get(text.lower(), value)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _spread(value: Any, node: Node) -> Node:
    """The tree that a word stands for (``deepspeed: zero2``), every value of which is written where the word is."""
    if isinstance(value, dict):
        value = {name: _spread(inner, Node(None, node.span, None, name, node.via)) for name, inner in value.items()}
    return Node(value, node.span, node.key_span, node.keys, node.via)


def _by_name(node: Node, name: str, key: str) -> Fact | None:
    """A model's folder of which only the last names are known (``$HOME/models/opt-125m``), where a model has the last:
    it is taken for a folder that is out of reach."""
    from memlint.data import models

    ending = node.value.ending if isinstance(node.value, Unresolved) else ""
    known = "/" in ending and models.named(ending) is not None
    return Fact(named(name), ending[ending.index("/") :], WRITTEN, key, node) if known else None


def _unknown(node: Node) -> str:
    return node.value.reason if isinstance(node.value, Unresolved) else "not a plain value"


def _spelled(node: Node | None, key: Key, is_option: bool) -> str:
    """A key as the family spells it: as it was written, else as the schema names it."""
    name = key.path[0] if is_option else key.path[-1]
    if node is not None and not node.is_unresolved and node.key_path:
        last = node.key_path if is_option else node.key_path.rsplit(".", 1)[-1]
        name = last if last in key.names else name
    if is_option:
        return ("--" if len(name) > 1 else "-") + name
    return ".".join((*key.path[:-1], name))


def _path_of(node: Node, document: Document) -> str:
    """The file that a value was written in; values from the command line belong to the document."""
    known = document.sources or {document.path: ""}
    return node.span.path if node.span.path in known else document.path


def _with(root: Node, key: Key, tree: Node) -> Node:
    """A copy of the tree with another node at a key."""

    def copy(node: Node, depth: int) -> Node:
        if depth == len(key.path) or not isinstance(node.value, dict):
            return tree
        names = key.names if depth == len(key.path) - 1 else (key.path[depth],)
        name = next(name for name in names if name in node.value)
        value = {**node.value, name: copy(node.value[name], depth + 1)}
        return Node(value, node.span, node.key_span, node.keys, node.via)

    return copy(root, 0)


# ---------------------------------------------------------------------------------------------- typed options

_TRUE = frozenset(("true", "yes", "on", "1"))
_FALSE = frozenset(("false", "no", "off", "0"))


def typed(node: Node, schema: Schema, root: Schema) -> Node:
    """An option's words with the types that the schema gives them; what does not fit stays text."""
    kinds = schemas.types(schema, root)
    value = node.value
    if isinstance(value, list) and "array" not in kinds:  # repeated: the last use stands
        return typed(arguments.placed(value[-1], node.keys, value[-1].key_span), schema, root)
    if isinstance(value, list):
        if len(value) == 1 and isinstance(value[0].value, str) and value[0].value[:1] == "[":
            return _literal_list(node, value[0])
        items = schema.get("items", {})
        prefix = schema.get("prefixItems", ())
        converted = [
            typed(item, schemas.resolve(prefix[at] if at < len(prefix) else items, root), root)
            for at, item in enumerate(value)
        ]
        return Node(converted, node.span, node.key_span, node.keys, node.via)
    if not isinstance(value, str):
        return node
    if "object" in kinds and value[:1] == "{":
        return _literal_object(node, value)
    return Node(_convert(value, kinds), node.span, node.key_span, node.keys, node.via)


def _literal_list(node: Node, word: Node) -> Node:
    """``--down_dims "[512,1024]"``: a list written as one word."""
    import json

    try:
        items = json.loads(str(word.value))
    except (ValueError, RecursionError):
        return node
    children = [
        Node(item, word.span, None, (node.keys, at), word.via)
        for at, item in enumerate(items)
        if not isinstance(item, (list, dict))
    ]
    return Node(children, word.span, node.key_span, node.keys, word.via)


def _literal_object(node: Node, text: str) -> Node:
    """``--fsdp_config '{"version": 2}'``: a mapping written as one word, every value of which stands there."""
    import json

    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return node

    def placed(value: Any, keys: Keys) -> Node:
        if isinstance(value, dict):
            value = {name: placed(inner, (keys, name)) for name, inner in value.items()}
        elif isinstance(value, list):
            value = [placed(inner, (keys, at)) for at, inner in enumerate(value)]
        return Node(value, node.span, node.key_span, keys, node.via)

    return placed(found, node.keys)


def _convert(text: str, kinds: frozenset[str]) -> Any:
    if "null" in kinds and text in ("None", "null"):
        return None
    if "boolean" in kinds:
        lower = text.lower()
        if lower in _TRUE and not (text == "1" and kinds & {"integer", "number"}):
            return True
        if lower in _FALSE and not (text == "0" and kinds & {"integer", "number"}):
            return False
    if "integer" in kinds:
        try:
            return int(text)
        except ValueError:
            pass
    if "number" in kinds:
        try:
            number = float(text)
        except ValueError:
            return text
        return number if number == number else text
    return text
