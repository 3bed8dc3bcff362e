"""Functions of a program's own and of its repository's modules: which one a call is of, and what that returns."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from memlint.documents.arithmetic import Unknown
from memlint.documents.node import Keys, Node, Span
from memlint.documents.programs.class_parsers import FILE
from memlint.documents.programs.options import Options, fired
from memlint.documents.programs.state import State
from memlint.documents.python import reader as python
from memlint.documents.python.scope import Returned, Scope, parameters
from memlint.documents.python.source import Stop
from memlint.named_tuple import NamedTuple

if TYPE_CHECKING:
    from memlint.documents import notebook

LINEAR = "listed-linear"  # the names of all linear layers that a program lists, as memlint.dialects.tuning has them

MAX_DEEP = 12  # that call one another

MAX_MODULES = 48  # of its repository that it draws in


class Function(NamedTuple):
    """A function, the module that has it, and the names that it sees."""

    module: Functions
    node: ast.FunctionDef | ast.Lambda
    scope: Scope

    @property
    def name(self) -> str:
        return self.node.name if isinstance(self.node, ast.FunctionDef) else "lambda"


class Functions(Options):
    """A module of a program, with what it has of other modules."""

    def __init__(
        self,
        project: python.Project,
        path: str,
        text: str,
        state: State,
        cells: notebook.Program | None = None,
        name: str = "__main__",
    ) -> None:
        super().__init__(project, path, text)
        self.cells = cells
        self.state = state
        self.name = name
        self.module = Scope("", None)
        self.drawn: dict[str, Function | Functions] = {}  # functions and modules of the repository that it imports
        self.making = ["the program"]  # calls describe what they make

    def span(self, node: Any) -> Span:
        return super().span(node) if self.cells is None else self.cells.span(*self.bounds(node))

    def run(self, tree: ast.Module) -> Node:
        self.module.names["__name__"] = Node(self.name, Span(self.path, 1, 1, 1, 1))
        self.block(tree.body, self.module, 0)
        return Node({}, Span(self.path, 1, 1, 1, 1))

    def walk(self, node: ast.AST) -> Iterator[ast.AST]:
        """A node and all below it. Raises OutOfWork."""
        for one in ast.walk(node):
            self.spend(3, "reading Python")
            yield one

    def imports(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        """What it imports is a name; of a module of its repository, what that makes of it."""
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            scope.names.pop(name, None)
            scope.other[name] = "imported"
            source = alias.name if isinstance(node, ast.Import) else "." * node.level + (node.module or "")
            self.state.imported[name] = source
            if isinstance(node, ast.Import):
                whole = self.imported_module(source) if alias.asname or "." not in source else None
                if whole is not None:
                    self.drawn[name] = whole
            else:
                self.draw(source, alias.name, name, scope)

    def draw(self, source: str, name: str, here: str, scope: Scope) -> None:
        """What ``from source import name as here`` gives, where the module is the repository's."""
        module = self.imported_module(source)
        names = [name]
        if module is not None and name == "*":
            names = [*module.module.names, *module.module.functions]
            self.spend(len(names), "following what a module imports")
        for one in names:
            target = one if name == "*" else here
            function = None if module is None else module.function(one)
            if function is not None:
                self.drawn[target] = function
            elif module is not None and one in module.module.names and one != "__name__":
                scope.other.pop(target, None)
                scope.names[target] = module.module.names[one]
            else:
                within = self.imported_module(f"{source}.{one}" if source.strip(".") else source + one)
                if within is not None:
                    self.drawn[target] = within

    def imported_module(self, source: str) -> Functions | None:
        """A module of the repository, followed from its first line to its last; None for any other one."""
        if self.state.unfollowed > MAX_MODULES:
            return None
        found = self.state.repository.module(source, self.path)
        if found is None:
            return None
        path, text = found
        known = self.state.modules.get(path)
        if known is None and len(self.state.modules) >= MAX_MODULES:
            self.state.unfollowed += 1
        elif known is None:
            tree = self.project.parse(path, text)
            if tree is None:
                return None
            self.project.sources[path] = text
            known = self.state.modules[path] = type(self)(self.project, path, text, self.state, name=source)
            with contextlib.suppress(Stop, RecursionError):
                known.run(tree)
        return known

    def function(self, name: str, scope: Scope | None = None) -> Function | None:
        """The function of that name; also one within a function, seen from ``scope``."""
        while scope is not None and scope is not self.module:
            if name in scope.functions:
                return Function(self, scope.functions[name], scope)
            scope = scope.parent
        own = self.module.functions.get(name)
        drawn = self.drawn.get(name)
        return Function(self, own, self.module) if own else drawn if isinstance(drawn, Function) else None

    def called(self, function: ast.expr, scope: Scope) -> Function | None:
        """The function of the repository that a call is of."""
        if isinstance(function, ast.Name):
            return self.function(function.id, scope)
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            module = self.drawn.get(function.value.id)
            return module.function(function.attr) if isinstance(module, Functions) else None
        return None

    def entered(self, found: Function, call: ast.Call | None, scope: Scope, keys: Keys, place: ast.Call) -> Node:
        """What a function of its own returns; one that ``fire`` starts is given the options. Raises Unknown."""
        function, calling = found.node, self.state.calling
        if function in calling or len(calling) >= MAX_DEEP or not self.state.calls_left:
            raise Unknown(f"calls {found.name}()")
        self.state.calls_left -= 1
        if isinstance(function, ast.FunctionDef) and self.lists_linear_layers(function):
            return Node([Node(LINEAR, self.span(place))], self.span(place), None, keys)
        inner = Scope("", found.scope)
        self.bound(found, call, scope, inner)
        calling.append(function)
        try:
            if isinstance(function, ast.Lambda):
                returned: Returned | None = Returned(found.module.value(function.body, "", inner, 0))
            else:
                returned = found.module.block(function.body, inner, 0)
        finally:
            calling.pop()
        if returned is None or returned.node is None:
            raise Unknown(f"calls {found.name}(), which returns nothing that is known")
        return self.moved(returned.node, keys, None, (self.span(place),))

    def bound(self, found: Function, call: ast.Call | None, scope: Scope, inner: Scope) -> None:
        """The parameters of a function that is called."""
        function = found.node
        given: dict[str, ast.expr] = {}
        if call is not None:
            for argument, expression in zip([*function.args.posonlyargs, *function.args.args], call.args):
                given[argument.arg] = expression
            given.update({keyword.arg: keyword.value for keyword in call.keywords if keyword.arg})
        for argument, default in parameters(function):
            name = argument.arg
            if call is None and name in self.state.options:
                inner.names[name] = fired(self.state.options[name])
            elif name in given:
                inner.names[name] = self.value(given[name], name, scope, 0)
            elif default is not None:
                inner.names[name] = found.module.value(default, name, found.scope, 0)
            else:
                inner.other[name] = f"an argument of {found.name}()"

    def filled_by_name(self, kind: ast.expr, node: ast.Call, keys: Keys, scope: Scope) -> Node:
        """What a parser returns that is given a class or function of the program's own. Raises Unknown."""
        started = self.function(kind.id) if isinstance(kind, ast.Name) else None
        self.state.parses = True
        if started is not None:
            self.state.fired = True
            return self.entered(started, None, scope, keys, node)
        made = self.value(kind, "", scope, 0)
        if FILE in self.state.options and not (isinstance(made.value, dict) and FILE in made.value):
            raise Unknown("reads its values from a file")
        if isinstance(made.value, list):
            return Node([self.filled(one, keys) for one in made.value], self.span(node), None, keys)
        self.state.fired = self.state.fired or (isinstance(made.value, dict) and not self.is_a_library_s(made))
        return self.filled(made, keys)

    def mapped(self, call: ast.Call, scope: Scope) -> None:
        """Follow the function that a dataset's ``map`` is given, of rows that are not known, for what it calls."""
        given = call.args[0] if call.args else next((one.value for one in call.keywords if one.arg == "function"), None)
        words = [
            ast.keyword(name.value, value)
            for one in call.keywords
            if one.arg == "fn_kwargs" and isinstance(one.value, ast.Dict)
            for name, value in zip(one.value.keys, one.value.values)
            if isinstance(name, ast.Constant) and isinstance(name.value, str)
        ]
        for one in call.keywords:
            if one.arg == "fn_kwargs" and isinstance(one.value, ast.Call) and self.source(one.value.func) == "dict":
                words += one.value.keywords
        first: list[ast.expr] = []
        if isinstance(given, ast.Call) and given.args and self.source(given.func).rpartition(".")[2] == "partial":
            first, words, given = given.args[1:], [*given.keywords, *words], given.args[0]
        found: Function | None = None
        if isinstance(given, ast.Lambda):
            found = Function(self, given, scope)
        elif isinstance(given, ast.Name):
            found = self.function(given.id, scope)
        if found is not None:
            with contextlib.suppress(Unknown):
                self.entered(found, ast.Call(call.func, first, words), scope, "", call)

    def lists_linear_layers(self, function: ast.FunctionDef) -> bool:
        """Whether a function returns the last names of a model's linear layers but its head's, as that of qlora.py does
        (artidoro/qlora 7f4e95a, find_all_linear_names), which programs copy."""
        if "named_modules" not in self.text:
            return False
        walks = kind = head = False
        for node in self.walk(function):
            if isinstance(node, ast.Attribute):
                walks = walks or node.attr == "named_modules"
                kind = kind or node.attr in ("Linear4bit", "Linear8bitLt", "Linear")
                head = head or (node.attr in ("remove", "discard") and "lm_head" in self.words_of(function))
        last = function.body[-1]
        return walks and kind and head and isinstance(last, ast.Return) and last.value is not None

    def words_of(self, function: ast.FunctionDef) -> set[str]:
        """The texts that a function has in it."""
        return {
            node.value for node in self.walk(function) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
