"""Training programs in Python: the calls by which one makes its model and its trainer, with their values.

The program is followed from its first line as it would run, with the options that it is given: values, conditions that
are known, functions of its own and of its repository's modules that it calls (``functions.py``), ``argparse``,
dataclasses that ``HfArgumentParser``, ``tyro`` and their kin fill, ``fire`` (``options.py``), and the JSON,
YAML and TOML that it reads. Nothing of it ever runs. A call of anything else is taken for what it makes: a mapping of
its keyword arguments with ``_target_``, what is called, and ``_args_``. Where a condition is not known, what stands
below it is not followed.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from string import Formatter
from typing import TYPE_CHECKING, Any

from memlint.documents.arithmetic import Unknown
from memlint.documents.node import Document, Keys, Node, Span, Unresolved
from memlint.documents.programs import class_parsers, patches
from memlint.documents.programs.call_nodes import TOKENIZERS, target_of, values_of
from memlint.documents.programs.functions import Functions
from memlint.documents.programs.options import GIVEN, PARSED
from memlint.documents.programs.state import ALONE, WORDS, Repository, State
from memlint.documents.python import reader as python
from memlint.documents.python.calls import FIELDS
from memlint.documents.python.expressions import MAX_TEXT, scalar
from memlint.documents.python.scope import SETS, Returned, Scope
from memlint.documents.python.source import Stop
from memlint.named_tuple import NamedTuple

if TYPE_CHECKING:
    from memlint.documents import notebook

# Methods of a word whose result is known where the word is.
_OF_WORDS: dict[str, Callable[..., str | bool]] = {
    "lower": str.lower,
    "upper": str.upper,
    "strip": str.strip,
    "startswith": str.startswith,
    "endswith": str.endswith,
}

# Functions that read a file, by whose they are.
_READERS = {
    **dict.fromkeys(("json", "tomllib", "tomli", "toml"), ("load", "loads")),
    "yaml": ("safe_load", "load", "full_load", "unsafe_load"),
    "OmegaConf": ("load",),
}

_SIGNATURES = ("inspect.signature", "signature")

MAPS = ("map", "with_transform", "set_transform")

_RELEASE = re.compile(r"(?:[\w.]*(?:parse|Version)\()?\w+\.__version__\)?")
_STATED = re.compile(r"(?:[\w.]*(?:parse|Version)\()?[\"'][\d.]+[\"']\)?")
_IDS = re.compile(r"\binput_ids\b\W*$")
_OPENED = ("open", "read", "read_text")  # of a path, or of a file: what is read is that file

MAX_TURNS = 100  # of a loop over a list that is known

MAX_ITEMS = 1000  # of a list that it makes of another one


class Program(NamedTuple):
    """What a program does, as far as it could be followed.

    calls     what it makes, in the order in which it does: mappings with ``_target_``
    imported  a name that it imports -> the module that it is from
    parses    whether it reads options
    declares  whether it declares them itself (argparse, fire, tyro): they mean what it makes of them
    doubts    what it calls under a condition that is not known -> the line of that
    document  its text; empty calls where it is no Python
    changed   fields of options that it sets once they are parsed
    """

    calls: tuple[Node, ...]
    imported: dict[str, str]
    parses: bool
    doubts: dict[str, int]
    document: Document
    declares: bool = False
    changed: frozenset[str] = frozenset()


def read(
    path: str,
    text: str,
    options: Mapping[str, Node],
    cells: notebook.Program | None = None,
    repository: Repository = ALONE,
) -> Program:
    """Follow a program that is started with these options; a notebook's, of its ``cells``. Raises OutOfWork."""
    return follow(Followed, State(options, repository), path, text, cells)


def follow(kind: type[Followed], state: State, path: str, text: str, cells: notebook.Program | None) -> Program:
    """Follow a program by a class of readers; what it finds beside the calls is in ``state``. Raises OutOfWork."""
    project = python.Project()
    project.sources[path] = text
    code = text if cells is None else cells.text
    tree = project.parse(path, code)
    if tree is not None:
        with contextlib.suppress(Stop, RecursionError):  # what was found before stands
            kind(project, path, code, state, cells).run(tree)
    document = Document(path, "python", text, Node({}, Span(path, 1, 1, 1, 1)), (), (), dict(project.sources))
    declares = bool(state.arguments) or state.fired
    changed = frozenset(state.changed)
    return Program(tuple(state.made), state.imported, state.parses, state.doubts, document, declares, changed)


class Followed(Functions):
    """One module of a program: what its statements do, and what its calls make."""

    def bind(self, target: ast.expr, node: Node, scope: Scope) -> None:
        if isinstance(target, ast.Attribute):
            owner = self.locate(target.value, scope)
            if owner is not None and GIVEN in values_of(owner) and target_of(owner):
                self.state.changed.add(target.attr)
        super().bind(target, node, scope)

    def statement(self, node: ast.stmt, scope: Scope, depth: int) -> Returned | None:
        if isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                if isinstance(item.optional_vars, ast.Name):
                    self.bind(item.optional_vars, self.value(item.context_expr, "", scope, depth + 1), scope)
            plain = [item for item in node.items if item.optional_vars and not isinstance(item.optional_vars, ast.Name)]
            for item in plain:
                assert item.optional_vars is not None
                self.bind(item.optional_vars, self.opaque("the value of a with statement", item), scope)
            return self.block(node.body, scope, depth + 1)
        if isinstance(node, (ast.Assign, ast.Return)):
            self.cuts(node, scope)
        if isinstance(node, ast.Assign):
            self.patched(node, scope)
        if isinstance(node, ast.For):
            if self.state.once(node) and any(isinstance(one, (ast.Break, ast.Continue)) for one in self.walk(node)):
                self.state.left.add(node)
            if node not in self.state.left:
                return self.loop(node, scope, depth)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and scope is not self.module:
            scope.other[node.name] = "a function within a function"
            if isinstance(node, ast.FunctionDef):
                scope.functions[node.name] = node
            return None
        return super().statement(node, scope, depth)

    def cuts(self, node: ast.Assign | ast.Return, scope: Scope) -> None:
        """Where a statement makes a sample's tokens, and cuts them: under their own name, or in what has them by it."""
        if node.value is None:
            return
        if isinstance(node, ast.Assign):
            self.cut(self.source(node.targets[0]), node.value, scope)
        if isinstance(node.value, ast.Dict):
            for name, value in zip(node.value.keys, node.value.values):
                if name is not None:
                    self.cut(self.source(name), value, scope)

    def cut(self, target: str, made: ast.expr, scope: Scope) -> None:
        """``input_ids = input_ids[:longest]``, or so of each of them or of their sum, cuts a sample as a tokenizer does
        that is told so."""
        given, of = made, target
        if isinstance(made, ast.ListComp) and len(made.generators) == 1:
            given, of = made.elt, self.source(made.generators[0].target)
        if not isinstance(given, ast.Subscript) or not isinstance(given.slice, ast.Slice) or given.slice.upper is None:
            return
        if given.slice.lower is not None or _IDS.search(target) is None:
            return
        if self.source(given.value) != of and not self.adds_tokens(given.value):
            return
        with contextlib.suppress(Unknown):
            longest = self.value(given.slice.upper, "max_length", scope, 0)
            if type(longest.value) is int and longest.value > 0:
                place = self.span(made)
                said = {"_target_": Node("tokenizer", place), "truncation": Node(True, place), "max_length": longest}
                self.state.made.append(Node(said, place))

    def adds_tokens(self, node: ast.expr) -> bool:
        """Whether an expression puts the tokens of several texts one behind the other."""
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
            return False
        return any(_IDS.search(self.source(part)) is not None for part in self.walk(node) if isinstance(part, ast.expr))

    def patched(self, node: ast.Assign, scope: Scope) -> None:
        """A function of its own in the place of a library's attention (:mod:`memlint.documents.programs.patches`)."""
        target = node.targets[0]
        if not isinstance(target, ast.Attribute) or target.attr != "forward":
            return
        name, own = patches.replaced(self.source(target)), self.called(node.value, scope)
        if name and own is not None:
            self.state.made.append(patches.made(name, patches.kernel(self.walk(own.node)), self.span(node)))

    def loop(self, node: ast.For, scope: Scope, depth: int) -> Returned | None:
        """A loop over a short list that is known is followed turn by turn."""
        try:
            items = self.value(node.iter, "", scope, depth + 1).value
        except Unknown:
            items = None
        pairs = self.pairs(node.iter, scope, depth + 1)
        if pairs is not None:
            items = pairs
        elif isinstance(items, dict) and "_target_" not in items:
            items = [Node(name, one.span) for name, one in items.items()]
        if not isinstance(items, list) or len(items) > MAX_TURNS:
            for inner in self.walk(node):
                if isinstance(inner, ast.Assign):
                    self.cuts(inner, scope)
            return super().statement(node, scope, depth)
        for item in items:
            self.bind(node.target, item, scope)
            returned = self.block(node.body, scope, depth + 1)
            if returned is not None:
                return returned
        return self.block(node.orelse, scope, depth + 1)

    def pairs(self, node: ast.expr, scope: Scope, depth: int) -> list[Node] | None:
        """The names and values of a mapping that is known, which ``.items()`` gives; None for anything else."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "items":
            return None
        try:
            owner = self.value(node.func.value, "", scope, depth)
        except Unknown:
            return None
        if not isinstance(owner.value, dict) or target_of(owner):
            return None
        return [Node([Node(name, one.span), one], one.span) for name, one in owner.value.items()]

    def condition(self, node: ast.If, scope: Scope, depth: int) -> Returned | None:
        """What depends on how many words a command has goes on as with several; the rest, as far as it is known."""
        if "sys.argv" in self.source(node.test) and node.orelse:
            return self.block(node.orelse, scope, depth + 1)
        try:
            test = self.known(node.test, scope)
        except Unknown:
            if self.fails(node.orelse, scope) or self.fails(node.body, scope):
                return self.block(node.body if self.fails(node.orelse, scope) else node.orelse, scope, depth + 1)
            if self.state.once(node):
                # if len(input_ids) > longest: input_ids = input_ids[:longest]
                long = "len(" in self.source(node.test)
                for inner in self.walk(node):
                    if isinstance(inner, ast.Assign) and long:
                        self.cuts(inner, scope)
                    if isinstance(inner, ast.Call):
                        name = self.source(inner.func).rpartition(".")[2]
                        self.state.doubts.setdefault(name, node.lineno)
            self.forget([*node.body, *node.orelse], f"set under a condition on line {node.lineno}", scope)
            return None
        return self.block(node.body if test else node.orelse, scope, depth + 1)

    def fails(self, body: Sequence[ast.stmt], scope: Scope) -> bool:
        """Whether statements surely end in an error: a program that trains has gone the other way."""
        last = body[-1] if body else None
        if isinstance(last, ast.If):
            try:
                return self.fails(last.body if self.known(last.test, scope) else last.orelse, scope)
            except Unknown:
                return self.fails(last.body, scope) and self.fails(last.orelse, scope)
        return isinstance(last, ast.Raise)

    def class_definition(self, node: ast.ClassDef, scope: Scope, depth: int) -> None:
        if node.bases:
            base = self.source(node.bases[0]).rpartition(".")[2]
            self.state.bases_of[node.name] = self.state.bases_of.get(base, base)
        super().class_definition(node, scope, depth)
        made = scope.names[node.name]
        if isinstance(made.value, dict):
            made.value["_target_"] = Node(node.name, made.span)

    def call_statement(self, node: ast.Call, scope: Scope) -> None:
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr == "add_argument":
            self.argument(node, scope)
        elif isinstance(function, ast.Name) and function.id == SETS and len(node.args) == 3:
            self.set_by_name(node, scope)
        elif isinstance(function, ast.Attribute) and function.attr == "update" and self.is_all_of_one(function.value):
            owner = self.locate(function.value.args[0], scope)  # type: ignore[attr-defined]
            if owner is not None and isinstance(owner.value, dict) and not target_of(owner):
                self.update(owner, node, scope)
        else:
            owner = self.locate(function.value, scope) if isinstance(function, ast.Attribute) else None
            if owner is not None and not target_of(owner):  # what is made is not changed by its methods, as a dict is
                super().call_statement(node, scope)
            self.value(node, "", scope, 0)

    def update(self, owner: Node, node: ast.Call, scope: Scope) -> None:
        """What a call makes is no mapping whose names are known."""
        given = [*node.args, *(one.value for one in node.keywords if one.arg is None)]
        if any(target_of(self.value(one, "", scope, 0)) for one in given):
            owner.value = self.unresolved("updated by what is only known when it runs", node)
        else:
            super().update(owner, node, scope)

    def set_by_name(self, call: ast.Call, scope: Scope) -> None:
        """``setattr(of, name, value)``; where the name is not known, nothing of it is any more."""
        of, name, value = call.args
        owner = self.locate(of, scope)
        if owner is None or not isinstance(owner.value, dict):
            return
        try:
            known = self.known(name, scope)
        except Unknown:
            known = None
        if isinstance(known, str):
            self.place(owner.value, known, (owner.keys, known), self.value(value, known, scope, 0), self.span(name))
        elif not target_of(owner):
            owner.value = self.unresolved("an attribute is set whose name is only known when it runs", of)

    @staticmethod
    def is_all_of_one(node: ast.expr) -> bool:
        """``vars(args)``: what an object has, as a mapping."""
        return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "vars" and len(node.args) == 1

    def of_text(self, method: ast.Attribute, call: ast.Call, scope: Scope, depth: int) -> Any:
        """What a method of a known text returns; None for anything else."""
        if method.attr == "format":
            return self.filled_in(method.value, call, scope, depth)
        if method.attr not in _OF_WORDS or call.keywords:
            return None
        word = self.value(method.value, "", scope, depth).value
        return self.of_word(word, method.attr, call.args, scope, depth) if isinstance(word, str) else None

    def call(self, node: ast.Call, keys: Keys, scope: Scope, depth: int) -> Node:
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if isinstance(function, ast.Attribute) and name in PARSED:
            parsed = self.parsed(node, function, keys, scope, depth)
            if parsed is not None:
                return parsed
        if isinstance(function, ast.Attribute):
            text = self.of_text(function, node, scope, depth)
            if text is not None:
                return Node(text, self.span(node), None, keys)
        if name == "getattr" and len(node.args) >= 2 and self.source(node.args[0]) == "torch":
            named = self.value(node.args[1], keys, scope, depth)
            return named if named.is_unresolved else Node(f"torch.{named.value}", named.span, None, keys, named.via)
        if name in ("Fire", "run") and node.args and isinstance(node.args[0], ast.Name):
            started = self.function(node.args[0].id)
            if started is not None:
                self.state.fired = name == "Fire"
                return self.entered(started, None, scope, keys, node)
        kind = class_parsers.class_of(node, self.source(function), self.state.imported)
        if kind is not None:
            return self.filled_by_name(kind, node, keys, scope)
        inner = scope.find(class_parsers.made_by_default(node)) if name in FIELDS else None
        if inner is not None and target_of(inner):  # a class of its own, with the values of its fields
            return self.moved(inner, keys, None, (self.span(node),))
        own = self.called(function, scope)
        if own is not None:
            return self.entered(own, node, scope, keys, node)
        read = self.file_read(node, scope, depth)
        if read is not None:
            return self.moved(read, keys, None, (self.span(node),))
        if isinstance(function, ast.Attribute) and name in ("get", "pop") and 1 <= len(node.args) <= 2:
            item = self.item(function.value, node.args, keys, scope, depth)
            if item is not None:
                return item
        if name in MAPS and isinstance(function, ast.Attribute):
            self.mapped(node, scope)
        if name == "cast" and len(node.args) == 2:  # typing.cast returns what it is given
            return self.value(node.args[1], keys, scope, depth)
        if name == "fields" and len(node.args) == 1:
            told = self.fields(node, keys, scope, depth)
            if told is not None:
                return told
        if name in ("vars", "asdict") and len(node.args) == 1:
            return self.value(node.args[0], keys, scope, depth)
        if name == "split" and isinstance(function, ast.Attribute) and not node.keywords:
            return self.split(function.value, node, keys, scope, depth)
        if isinstance(function, ast.Name) and self.other_name(name, scope):
            return self.description(node, keys, scope, depth)
        if isinstance(function, ast.Name) and name in self.state.bases_of and not self.is_data(name):
            return self.description(node, keys, scope, depth)
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Call):
            self.value(function.value, "", scope, depth)  # ``Trainer(...).train()``
        elif isinstance(function, ast.Name):
            made = scope.find(name)
            # A tokenizer, called; whichever it is, where a condition decides.
            is_one = made is not None and (target_of(made) or (made.is_unresolved and name in TOKENIZERS))
            if is_one and name not in self.state.bases_of:
                return self.description(node, keys, scope, depth)
        return super().call(node, keys, scope, depth)

    def description(self, node: ast.Call, keys: Keys, scope: Scope, depth: int) -> Node:
        """A call as what it makes; of a class of its own (``_class_``), as the library's class that it is of."""
        made = super().description(node, keys, scope, depth)
        assert isinstance(made.value, dict)
        target = target_of(made)
        first, dot, rest = target.partition(".")
        other = self.other_name(first, scope)
        if other:  # of ``Kind.from_pretrained`` too, where Kind stands for a class
            target = other + dot + rest
            made.value["_target_"] = Node(target, self.span(node.func))
        base = self.state.bases_of.get(target)
        if base is not None:
            made.value["_class_"] = made.value["_target_"]
            made.value["_target_"] = Node(base, self.span(node.func))
        made.span = self.span(node)
        self.state.made.append(made)
        return made

    def other_name(self, name: str, scope: Scope) -> str:
        """The name of the class that a name was set to (``Kind = OurTrainer``); "" for any other name."""
        made = scope.find(name) if name not in self.state.bases_of else None
        own = target_of(made) if made is not None and isinstance(made.value, dict) else ""
        imported = made.value.text if made is not None and isinstance(made.value, Unresolved) else ""
        is_a_class = own in self.state.bases_of and "_class_" not in values_of(made)
        return own or imported if is_a_class or imported in self.state.imported else ""

    def filled_in(self, owner: ast.expr, call: ast.Call, scope: Scope, depth: int) -> str | None:
        """What ``"a {} b".format(...)`` makes; None where the text is not known. Raises Unknown."""
        text = self.value(owner, "", scope, depth + 1).value
        if not isinstance(text, str) or len(text) > MAX_TEXT:
            return None
        given = [scalar(self.value(one, "", scope, depth + 1)) for one in call.args]
        named = {one.arg: scalar(self.value(one.value, "", scope, depth + 1)) for one in call.keywords if one.arg}
        made = ""
        try:
            for number, (literal, field, spec, _) in enumerate(Formatter().parse(text)):
                made += literal
                if field is not None:
                    if spec or not (field == "" or field.isdigit() or field.isidentifier()):
                        raise Unknown("a format that is not followed")
                    at = number if field == "" else int(field) if field.isdigit() else None
                    made += str(named[field] if at is None else given[at])
                if len(made) > MAX_TEXT:
                    raise Unknown(f"text of more than {MAX_TEXT:,} characters")
        except (ValueError, IndexError, KeyError) as error:
            raise Unknown(f"{error}") from None
        self.spend(len(made) >> 3, "putting text together")
        return made

    def of_word(self, word: str, name: str, given: Sequence[ast.expr], scope: Scope, depth: int) -> str | bool:
        """What a method of a word returns. Raises Unknown."""
        arguments: list[object] = []
        for expression in given:
            made = self.value(expression, "", scope, depth + 1).value
            arguments.append(tuple(item.value for item in made) if isinstance(made, list) else made)
        try:
            return _OF_WORDS[name](word, *arguments)
        except TypeError:
            raise Unknown(f"calls .{name}() with what is not known") from None

    def split(self, owner: ast.expr, call: ast.Call, keys: Keys, scope: Scope, depth: int) -> Node:
        """The parts of a word. Raises Unknown."""
        word = self.value(owner, "", scope, depth + 1).value
        apart = [self.known(argument, scope) for argument in call.args]
        if not isinstance(word, str) or len(word) > MAX_TEXT or not all(isinstance(one, str) for one in apart):
            raise Unknown("calls .split() with what is not known")
        parts = [word] if apart == [""] else word.split(str(apart[0])) if apart else word.split()
        place = self.span(call)
        self.project.nodes += len(parts)
        return Node([Node(part, place, None, (keys, at)) for at, part in enumerate(parts)], place, None, keys)

    def file_read(self, call: ast.Call, scope: Scope, depth: int) -> Node | None:
        """The tree of a file that a call reads; None for any other call, and where there is no such file."""
        function = call.func
        if not isinstance(function, ast.Attribute) or not call.args:
            return None
        if function.attr not in _READERS.get(self.source(function.value).rpartition(".")[2], ()):
            return None
        name = self.file_named(call.args[0], scope, depth)
        document = self.state.repository.document(name, self.path) if name else None
        if document is None:
            return None
        self.project.sources.update(document.sources or {document.path: document.text})
        return document.root

    def file_named(self, node: ast.expr, scope: Scope, depth: int) -> str:
        """The name of the file that an expression is: a path, what ``open`` makes of one, or what that reads."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _OPENED:
            return self.file_named(node.func.value, scope, depth + 1)
        return _path(self.value(node, "", scope, depth + 1))

    def comparison(self, node: ast.Compare, scope: Scope, depth: int) -> bool:
        """Of what a call makes it is not known what is in it; a function that is asked for its parameters is of a
        release that has them, and a library's release is newer than one that a program looks back to."""
        sides = self.source(node.left), self.source(node.comparators[0])
        if len(node.ops) == 1 and _RELEASE.fullmatch(sides[0]) and _STATED.fullmatch(sides[1]):
            return isinstance(node.ops[0], (ast.Gt, ast.GtE, ast.NotEq))
        for kind, item in zip(node.ops, node.comparators):
            made = target_of(self.value(item, "", scope, depth)) if isinstance(kind, (ast.In, ast.NotIn)) else ""
            if made in _SIGNATURES and len(node.ops) == 1:
                return isinstance(kind, ast.In)
            if made:
                raise Unknown("a comparison with what a call makes")
        return super().comparison(node, scope, depth)

    def reference(self, node: ast.expr, keys: Keys, scope: Scope, depth: int) -> Node:
        """A part of what a call returns, too: ``parser.parse_args_into_dataclasses()[0]``; a word of the command."""
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            word = self.word(node.slice.value) if self.source(node.value) == "sys.argv" else None
            if word is not None:
                return self.moved(word, keys, None, (self.span(node),))
        if isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.value, ast.Call):
            owner = self.value(node.value, "", scope, depth + 1)
            index = (
                node.slice.value if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) else None
            )
            if isinstance(owner.value, list) and isinstance(index, int) and -1 <= index < len(owner.value):
                return self.moved(owner.value[index], keys, None, (self.span(node),))
            if isinstance(node, ast.Attribute) and node.attr == "parameters" and target_of(owner) in _SIGNATURES:
                return owner
            if isinstance(owner.value, dict) and isinstance(node, ast.Attribute) and node.attr in owner.value:
                return self.moved(owner.value[node.attr], keys, None, (self.span(node),))
        found = super().reference(node, keys, scope, depth)
        if isinstance(node, ast.Attribute) and found.is_unresolved:
            owner = self.value(node.value, "", scope, depth + 1)
            if node.attr == "parameters" and target_of(owner) in _SIGNATURES:
                return owner
            if isinstance(owner.value, dict) and GIVEN in owner.value:  # an option of a library's that nobody gave
                return Node(None, self.span(node), None, keys)
        return found

    def word(self, at: object) -> Node | None:
        """``sys.argv[at]`` of the command that starts the program; None where there is no such word."""
        words = self.state.options.get(WORDS)
        listed = words.value if words is not None and isinstance(words.value, list) else []
        return listed[at - 1] if isinstance(at, int) and 0 < at <= len(listed) else None

    def locate(self, node: ast.expr, scope: Scope, depth: int = 0) -> Node | None:
        """What a module of the repository has, too, and all options as a mapping."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = self.drawn.get(node.value.id)
            if isinstance(module, Functions):
                return module.module.names.get(node.attr)
        if isinstance(node, ast.Attribute) and node.attr == "__dict__":
            return super().locate(node.value, scope, depth + 1)
        return super().locate(node, scope, depth)

    def composed(self, node: ast.expr, keys: Keys, scope: Scope, depth: int) -> Node:
        if isinstance(node, ast.ListComp) and len(node.generators) == 1:
            return self.comprehension(node, node.generators[0], keys, scope, depth)
        if isinstance(node, ast.DictComp) and len(node.generators) == 1:
            return self.filtered(node, node.generators[0], keys, scope, depth)
        return super().composed(node, keys, scope, depth)

    def comprehension(self, node: ast.ListComp, one: ast.comprehension, keys: Keys, scope: Scope, depth: int) -> Node:
        """A list that is made of another one. Raises Unknown."""
        items = self.value(one.iter, "", scope, depth + 1).value
        if not isinstance(items, list) or len(items) > MAX_ITEMS or not isinstance(one.target, ast.Name):
            raise Unknown("a list made of what is only known when it runs")
        found: list[Node] = []
        for item in items:
            inner = Scope("", scope)
            inner.names[one.target.id] = item
            if all(self.known(test, inner) for test in one.ifs):
                found.append(self.value(node.elt, (keys, len(found)), inner, depth + 1))
        return Node(found, self.span(node), None, keys)

    def filtered(self, node: ast.DictComp, one: ast.comprehension, keys: Keys, scope: Scope, depth: int) -> Node:
        """A mapping that is made of another one's items. Raises Unknown."""
        source, target = one.iter, one.target
        items: object = None
        if isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute) and source.func.attr == "items":
            items = self.value(source.func.value, "", scope, depth + 1).value
        if not isinstance(items, dict) or len(items) > MAX_ITEMS or not isinstance(target, ast.Tuple):
            raise Unknown("a mapping made of what is only known when it runs")
        found: dict[str, Node] = {}
        for name, value in items.items():
            inner = Scope("", scope)
            for bound, given in zip(target.elts, (Node(name, value.span), value)):
                if isinstance(bound, ast.Name):
                    inner.names[bound.id] = given
            if all(self.known(test, inner) for test in one.ifs):
                key = self.known(node.key, inner)
                found[str(key)] = self.value(node.value, (keys, str(key)), inner, depth + 1)
        return Node(found, self.span(node), None, keys)


def _path(node: Node) -> str:
    """The name of a file: a word, or what ``open`` or ``Path`` was made of; "" where that is not known."""
    if isinstance(node.value, str):
        return node.value
    given = node.value.get("_args_") if isinstance(node.value, dict) else None
    called = target_of(node).rpartition(".")[2]
    if given is None or not isinstance(given.value, list) or called not in ("open", "Path", "PurePath"):
        return ""
    parts = [_path(one) for one in given.value[: 1 if called == "open" else None]]
    return "/".join(parts) if all(parts) else ""
