"""Training programs in Python: the calls by which one makes its model and its trainer, with their values.

The program is followed from its first line as it would run, with the options that it is given: values, conditions that
are known, functions of its own that it calls, ``argparse``, dataclasses that ``HfArgumentParser`` and its kin fill, and
``fire``. Nothing of it ever runs. A call of anything else is taken for what it makes: a mapping of its keyword
arguments with ``_target_``, what is called, and ``_args_``. Where a condition is not known, what stands below it is not
followed.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memlint.documents import python
from memlint.documents.arithmetic import Unknown
from memlint.documents.node import Document, Keys, Node, Span, Unresolved
from memlint.named_tuple import NamedTuple

if TYPE_CHECKING:
    from memlint.documents import notebook

MAX_CALLS = 200  # of functions of its own
MAX_DEEP = 12  # that call one another

# Methods of parsers: of argparse's, and of those that fill dataclasses (transformers 5: hf_argparser.py; TRL 1.16:
# scripts/utils.py; and their kin), from the command or from the file that it names.
_FILLED = ("parse_args_into_dataclasses", "parse_args_and_config", "parse_yaml_file", "parse_yaml_and_args", "parse")
_PARSED = ("parse_args", "parse_known_args", "parse_json_file", "parse_dict", *_FILLED)
_GIVEN = "_given_"  # in a mapping of options: those that are not there were not given
# Methods of a word whose result is known where the word is.
_OF_WORDS: dict[str, Callable[..., str | bool]] = {
    "lower": str.lower,
    "upper": str.upper,
    "strip": str.strip,
    "startswith": str.startswith,
    "endswith": str.endswith,
}
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")


class Program(NamedTuple):
    """What a program does, as far as it could be followed.

    calls     what it makes, in the order in which it does: mappings with ``_target_``
    imported  a name that it imports -> the module that it is from
    parses    whether it reads options
    doubts    what it calls under a condition that is not known -> the line of that
    document  its text; empty calls where it is no Python
    """

    calls: tuple[Node, ...]
    imported: dict[str, str]
    parses: bool
    doubts: dict[str, int]
    document: Document


def read(path: str, text: str, options: Mapping[str, Node], cells: notebook.Program | None = None) -> Program:
    """Follow a program that is started with these options; a notebook's, of its ``cells``. Raises OutOfWork."""
    project = python._Project()
    project.sources[path] = text
    empty = Document(path, "python", text, Node({}, Span(path, 1, 1, 1, 1)), (), (), {path: text})
    code = text if cells is None else cells.text
    tree = project.parse(path, code)
    if tree is None:
        return Program((), {}, False, {}, empty)
    followed = _Followed(project, path, code, options, cells)
    with contextlib.suppress(python._Stop, RecursionError):  # what was found before stands
        followed.run(tree)
    return Program(
        tuple(followed.made),
        followed.imported,
        followed.parses,
        followed.doubts,
        empty._replace(sources=dict(project.sources)),
    )


class _Followed(python._Module):
    def __init__(
        self,
        project: python._Project,
        path: str,
        text: str,
        options: Mapping[str, Node],
        cells: notebook.Program | None = None,
    ) -> None:
        super().__init__(project, path, text)
        self.cells = cells
        self.options = {name: _typed(node) for name, node in options.items()}
        self.arguments: dict[str, Node] = {}  # that argparse is told of, with their defaults
        self.made: list[Node] = []
        self.imported: dict[str, str] = {}
        self.parses = False
        self.doubts: dict[str, int] = {}
        self.bases_of: dict[str, str] = {}  # classes of its own -> the first class that they are of
        self.module: python._Scope | None = None
        self.calling: list[str] = []
        self.calls_left = MAX_CALLS
        self.making = ["the program"]  # calls describe what they make

    def span(self, node: Any) -> Span:
        return super().span(node) if self.cells is None else self.cells.span(*self.bounds(node))

    def run(self, tree: ast.Module) -> Node:
        self.module = python._Scope("", None)
        self.module.names["__name__"] = Node("__main__", Span(self.path, 1, 1, 1, 1))
        self.block(tree.body, self.module, 0)
        return Node({}, Span(self.path, 1, 1, 1, 1))

    def imports(self, node: ast.Import | ast.ImportFrom, scope: python._Scope) -> None:
        """No other file is read: what it imports is a name."""
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            scope.names.pop(name, None)
            scope.other[name] = "imported"
            self.imported[name] = alias.name if isinstance(node, ast.Import) else "." * node.level + (node.module or "")

    def class_definition(self, node: ast.ClassDef, scope: python._Scope, depth: int) -> None:
        if node.bases:
            base = self.source(node.bases[0]).rpartition(".")[2]
            self.bases_of[node.name] = self.bases_of.get(base, base)
        super().class_definition(node, scope, depth)
        made = scope.names[node.name]
        if isinstance(made.value, dict):
            made.value["_target_"] = Node(node.name, made.span)

    def call_statement(self, node: ast.Call, scope: python._Scope) -> None:
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr == "add_argument":
            self.argument(node, scope)
        else:
            owner = self.locate(function.value, scope) if isinstance(function, ast.Attribute) else None
            if owner is not None and not _target(owner):  # what is made is not changed by its methods, as a dict is
                super().call_statement(node, scope)
            self.value(node, "", scope, 0)

    def argument(self, node: ast.Call, scope: python._Scope) -> None:
        """An option of argparse's, whose default counts where it is not given."""
        names = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        long = next((name for name in names if name.startswith("--")), names[0] if names else "")
        said = {keyword.arg: keyword.value for keyword in node.keywords}
        dest = said.get("dest")
        name = str(dest.value) if isinstance(dest, ast.Constant) else long.lstrip("-").replace("-", "_")
        action = said.get("action")
        if "default" in said:
            self.arguments[name] = self.value(said["default"], name, scope, 0)
        elif isinstance(action, ast.Constant) and action.value in ("store_true", "store_false"):
            self.arguments[name] = Node(action.value == "store_false", self.span(action), None, name)
        elif "required" not in said and long.startswith("--"):
            self.arguments[name] = Node(None, self.span(node), None, name)

    def call(self, node: ast.Call, keys: Keys, scope: python._Scope, depth: int) -> Node:
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if isinstance(function, ast.Attribute) and name in _PARSED:
            parsed = self.parsed(function, keys, scope, depth)
            if parsed is not None:
                return parsed
        if isinstance(function, ast.Attribute) and name in _OF_WORDS and not node.keywords:
            word = self.value(function.value, "", scope, depth)
            if isinstance(word.value, str):
                return Node(self.of_word(word.value, name, node.args, scope, depth), self.span(node), None, keys)
        if name == "getattr" and len(node.args) >= 2 and self.source(node.args[0]) == "torch":
            named = self.value(node.args[1], keys, scope, depth)
            return named if named.is_unresolved else Node(f"torch.{named.value}", named.span, None, keys, named.via)
        if name in ("Fire", "run") and node.args and isinstance(node.args[0], ast.Name):
            started = self.function(node.args[0].id)
            if started is not None:
                return self.entered(started, None, scope, keys, node)
        own = self.function(name) if isinstance(function, ast.Name) else None
        if own is not None:
            return self.entered(own, node, scope, keys, node)
        if isinstance(function, ast.Name) and name in self.bases_of and not self.is_data(name):
            return self.description(node, keys, scope, depth)
        return super().call(node, keys, scope, depth)

    def of_word(self, word: str, name: str, given: Sequence[ast.expr], scope: python._Scope, depth: int) -> str | bool:
        """What a method of a word returns. Raises Unknown."""
        arguments: list[object] = []
        for expression in given:
            made = self.value(expression, "", scope, depth + 1).value
            arguments.append(tuple(item.value for item in made) if isinstance(made, list) else made)
        try:
            return _OF_WORDS[name](word, *arguments)
        except TypeError:
            raise Unknown(f"calls .{name}() with what is not known") from None

    def comparison(self, node: ast.Compare, scope: python._Scope, depth: int) -> bool:
        """Of what a call makes it is not known what is in it."""
        for kind, item in zip(node.ops, node.comparators):
            if isinstance(kind, (ast.In, ast.NotIn)) and _target(self.value(item, "", scope, depth)):
                raise Unknown("a comparison with what a call makes")
        return super().comparison(node, scope, depth)

    def reference(self, node: ast.expr, keys: Keys, scope: python._Scope, depth: int) -> Node:
        """A part of what a call returns, too: ``parser.parse_args_into_dataclasses()[0]``."""
        if isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.value, ast.Call):
            owner = self.value(node.value, "", scope, depth + 1)
            index = (
                node.slice.value if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) else None
            )
            if isinstance(owner.value, list) and isinstance(index, int) and -1 <= index < len(owner.value):
                return self.moved(owner.value[index], keys, None, (self.span(node),))
            if isinstance(owner.value, dict) and isinstance(node, ast.Attribute) and node.attr in owner.value:
                return self.moved(owner.value[node.attr], keys, None, (self.span(node),))
        found = super().reference(node, keys, scope, depth)
        if isinstance(node, ast.Attribute) and found.is_unresolved:
            owner = self.value(node.value, "", scope, depth + 1)
            if isinstance(owner.value, dict) and _GIVEN in owner.value:  # an option of a library's that nobody gave
                return Node(None, self.span(node), None, keys)
        return found

    def condition(self, node: ast.If, scope: python._Scope, depth: int) -> python._Returned | None:
        """What depends on how many words a command has goes on as with several; the rest, as far as it is known."""
        if "sys.argv" in self.source(node.test) and node.orelse:
            return self.block(node.orelse, scope, depth + 1)
        try:
            test = self.known(node.test, scope)
        except Unknown:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Call):
                    name = self.source(inner.func).rpartition(".")[2]
                    self.doubts.setdefault(name, node.lineno)
            self.forget([*node.body, *node.orelse], f"set under a condition on line {node.lineno}", scope)
            return None
        return self.block(node.body if test else node.orelse, scope, depth + 1)

    def is_data(self, name: str) -> bool:
        """Whether a class of its own is one of values (a dataclass), and no trainer or model."""
        return not self.bases_of[name].endswith(("Trainer", "Model", "Module", "ForCausalLM"))

    def function(self, name: str) -> ast.FunctionDef | None:
        return None if self.module is None else self.module.functions.get(name)

    def entered(
        self, function: ast.FunctionDef, call: ast.Call | None, scope: python._Scope, keys: Keys, place: ast.Call
    ) -> Node:
        """What a function of its own returns; one that ``fire`` starts is given the options. Raises Unknown."""
        if function.name in self.calling or len(self.calling) >= MAX_DEEP or not self.calls_left:
            raise Unknown(f"calls {function.name}()")
        self.calls_left -= 1
        inner = python._Scope("", self.module)
        self.bound(function, call, scope, inner)
        self.calling.append(function.name)
        try:
            returned = self.block(function.body, inner, 0)
        finally:
            self.calling.pop()
        if returned is None or returned.node is None:
            raise Unknown(f"calls {function.name}(), which returns nothing that is known")
        return self.moved(returned.node, keys, None, (self.span(place),))

    def bound(
        self, function: ast.FunctionDef, call: ast.Call | None, scope: python._Scope, inner: python._Scope
    ) -> None:
        """The parameters of a function that is called."""
        arguments = [*function.args.posonlyargs, *function.args.args]
        defaults: list[ast.expr | None] = [None] * (len(arguments) - len(function.args.defaults))
        defaults.extend(function.args.defaults)
        given: dict[str, ast.expr] = {}
        if call is not None:
            for argument, expression in zip(arguments, call.args):
                given[argument.arg] = expression
            given.update({keyword.arg: keyword.value for keyword in call.keywords if keyword.arg})
        assert self.module is not None
        for argument, default in zip([*arguments, *function.args.kwonlyargs], [*defaults, *function.args.kw_defaults]):
            name = argument.arg
            if call is None and name in self.options:
                inner.names[name] = self.options[name]
            elif name in given:
                inner.names[name] = self.value(given[name], name, scope, 0)
            elif default is not None:
                inner.names[name] = self.value(default, name, self.module, 0)
            else:
                inner.other[name] = f"an argument of {function.name}()"

    def parsed(self, function: ast.Attribute, keys: Keys, scope: python._Scope, depth: int) -> Node | None:
        """What a parser of options returns; None for another object's method."""
        parser = self.value(function.value, "", scope, depth)
        if not _target(parser).endswith("Parser") or not isinstance(parser.value, dict):
            return None
        self.parses = True
        if function.attr in ("parse_args", "parse_known_args"):
            given = {**self.arguments, **self.options, _GIVEN: Node(True, parser.span)}
            values = Node(given, parser.span, None, keys)
            return values if function.attr == "parse_args" else Node([values, Node([], parser.span)], parser.span)
        named = parser.value.get("_args_")
        kinds = parser.value.get("dataclass_types")
        if named is not None and isinstance(named.value, list) and named.value:
            kinds = named.value[0]
        if kinds is None:
            return None
        classes = kinds.value if isinstance(kinds.value, list) else [kinds]
        filled = [self.filled(one, keys) for one in classes]
        if len(filled) == 1 and function.attr in ("parse", "parse_args_and_config"):
            return filled[0]
        return Node(filled, parser.span, None, keys)

    def filled(self, kind: Node, keys: Keys) -> Node:
        """A dataclass with the options in it; one of a library's has no more than these."""
        values = dict(kind.value) if isinstance(kind.value, dict) else {}
        name = kind.value.text if isinstance(kind.value, Unresolved) else _target(kind)
        base = self.bases_of.get(name, name).rpartition(".")[2]
        made = {**values, **self.options, "_target_": Node(base, kind.span), _GIVEN: Node(True, kind.span)}
        node = Node(made, kind.span, None, keys)
        self.made.append(node)
        return node

    def description(self, node: ast.Call, keys: Keys, scope: python._Scope, depth: int) -> Node:
        """A call as what it makes; of a class of its own (``_class_``), as the library's class that it is of."""
        made = super().description(node, keys, scope, depth)
        assert isinstance(made.value, dict)
        target = _target(made)
        base = self.bases_of.get(target)
        if base is not None:
            made.value["_class_"] = made.value["_target_"]
            made.value["_target_"] = Node(base, self.span(node.func))
        made.span = self.span(node)
        self.made.append(made)
        return made

    def statement(self, node: ast.stmt, scope: python._Scope, depth: int) -> python._Returned | None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and scope is not self.module:
            scope.other[node.name] = "a function within a function"
            return None
        return super().statement(node, scope, depth)

    def items(self, elements: Sequence[ast.expr], node: ast.expr, keys: Keys, scope: python._Scope, depth: int) -> Node:
        """Positional arguments of a call may be unpacked: the list is not known then, and the call is."""
        return super().items(elements, node, keys, scope, depth)


def _target(node: Node) -> str:
    target = node.value.get("_target_") if isinstance(node.value, dict) else None
    return str(target.value) if target is not None else ""


def _typed(node: Node) -> Node:
    """The value of an option as argparse's types would have it, which are not known: a number where it is one."""
    if not isinstance(node.value, str):
        return node
    word: object = node.value
    lower = node.value.lower()
    if lower in _TRUE or lower in _FALSE:
        word = lower in _TRUE
    else:
        try:
            word = int(node.value)
        except ValueError:
            try:
                word = float(node.value)
            except ValueError:
                return node
    return Node(word, node.span, node.key_span, node.keys, node.via)
