"""A dialect: one family's schema, and the optional Python half for what a schema cannot say.

The Python half is a module of this folder with any of these functions, found by name:

    recognise(document, root) -> bool   a condition beyond the signature
    part(document, root) -> str         why a file that fits the signature is only a part of runs; "" for a run
    FAMILY                              the steps to the facts that the schema cannot express (family.py)
    complete(spec) -> TrainingSpec      the same for a model that is no language model; architecture and model name
    spell(spec, fact, value) -> edits   or None for the generic spelling
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memlint.dialects import acceptance, objections, software
from memlint.dialects import schema as schemas
from memlint.dialects.options import Options
from memlint.dialects.recognition import Match, Recogniser
from memlint.dialects.schema import ANNOTATION, Key, Schema
from memlint.dialects.signatures import first_keys
from memlint.dialects.trees import child, find, lookup, replaced, spread, why_unknown
from memlint.documents.node import Command, Document, Node, Span, Unresolved
from memlint.facts.derive import Derivation
from memlint.facts.spec import ASSUMED, DEFAULT, WRITTEN, Fact, Missing, OnTop, TrainingSpec, UnknownModel, named

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
        self.options = Options(lambda: self.schema, self.header)
        self._recogniser = Recogniser(self)
        self.first_keys = first_keys(self.header.get("signature", {}))
        if self.first_keys is not None and "extends" in self.header:
            self.first_keys |= {self.header["extends"]}

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
        return self._recogniser.match(document, command)

    def part(self, document: Document) -> str:
        """Why a document in this family's keys is only a part of other runs; "" for any other document."""
        return self._recogniser.part(document)

    def members(self, document: Document) -> list[Match]:
        """The runs of a Python module whose functions each return one, in order; [] for any other file."""
        return self._recogniser.members(document)

    # -- understanding

    def facts_of(self, root: Node) -> tuple[dict[str, Fact], list[Missing]]:
        """What a tree states in this family's keys, for the run that names it (a DeepSpeed config), and its gaps."""
        missing: list[Missing] = []
        return self._facts(Match(1, NO_DOCUMENT, root), root, missing), missing

    def spec(self, match: Match, run: str = "train") -> TrainingSpec:
        """The facts of a run that :meth:`match` found, each with where it came from."""
        missing = list(match.missing)
        document, root = self.extended(match.document, match.root, missing)
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
        beneath: dict[str, Fact] = {}  # of the program's own config
        defaults: dict[str, Fact] = {}
        unknown: set[str] = set()  # facts that a key sets to what is not known: no default stands for them
        refused: set[str] = set()  # nor does a key that counts only where that one is absent
        seen: set[int] = set()  # unresolved nodes above several keys
        all_options = match.launch is not None and match.options is None and not self.header.get("calls")
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
            if gap is None and acceptance.accepts(node, key.schema, self.schema):
                value = self._fact_value(node, key)
                if isinstance(value, dict) and not isinstance(node.value, dict):
                    node = spread(value, node)
                if node.span.path in match.beneath:
                    where = f"{node.span.path}:{node.span.line}"
                    beneath.setdefault(name, Fact(name, value, DEFAULT, spelled, None, where))
                elif name not in refused:
                    written.setdefault(name, Fact(name, value, WRITTEN, spelled, node))
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
                    missing.append(Missing(spelled, place, why_unknown(gap), name))
                elif isinstance(node.value, str) and software.copy_says(node.span.path, self.family, node.value):
                    reason = f"{objections.shown_value(node)} is of the copy of {self.family} in this repository"
                    missing.append(Missing(spelled, place, reason, name, ours=True))
                else:
                    reason = f"{objections.shown_value(node)} is {objections.NOT_TAKEN}"
                    missing.append(Missing(spelled, place, reason, name, node))
                    refused.add(name)
        facts = {name: fact for name, fact in {**defaults, **beneath}.items() if name not in unknown}
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
            if node is None or not isinstance(node.value, str) or acceptance.accepts(node, key.schema, self.schema):
                continue
            known = [word for word in key.schema.get("enum", ()) if isinstance(word, str)]
            found = words.meant(kind, node.value, known)
            if found is not None:
                root = replaced(root, key, Node(found, node.span, node.key_span, node.key_path, node.via))
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

    def extended(self, document: Document, root: Node, missing: list[Missing]) -> tuple[Document, Node]:
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
                other, reason = (None, why_unknown(one))
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
            root = replaced(root, key, tree)
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
            missing.append(Missing(variable, node.key_span or node.span, why_unknown(node)))
        else:
            facts["allocator_conf"] = Fact("allocator_conf", str(node.value), WRITTEN, variable, node)
        return


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


def _by_name(node: Node, name: str, key: str) -> Fact | None:
    """A model's folder of which only the last names are known (``$HOME/models/opt-125m``), where a model has the last:
    it is taken for a folder that is out of reach."""
    from memlint.data import models

    ending = node.value.ending if isinstance(node.value, Unresolved) else ""
    known = "/" in ending and models.named(ending) is not None
    return Fact(named(name), ending[ending.index("/") :], WRITTEN, key, node) if known else None


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
