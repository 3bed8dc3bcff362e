"""Objects of a program's own classes: what their ``__init__`` gives them, and their methods, followed."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator, Mapping

from memlint.documents.arithmetic import Unknown
from memlint.documents.node import Keys, Node
from memlint.documents.programs import program
from memlint.documents.programs.call_nodes import target_of, values_of
from memlint.documents.programs.functions import MAX_DEEP, Function
from memlint.documents.programs.state import Repository
from memlint.documents.programs.state import State as ProgramState
from memlint.documents.programs.turn import (
    DOUBT,
    EITHER,
    FROZEN,
    HOLDS,
    INSTANCE,
    NUMBER,
    ON,
    PART_OF,
    SET,
    Entry,
    Loop,
)
from memlint.documents.python.scope import Returned, Scope, targets

_MODULES = ("Module", "PreTrainedModel")  # of torch, and of transformers
_LOADERS = ("from_pretrained", "from_config", "_from_config")
_ASKED = ("__getitem__", "__call__", "__iter__")  # methods of an object of the program's own that a library calls


class State(ProgramState):
    """loops: that were found; turn: the entries of the one that is followed, None outside of any; called: what calls of
    the statement that is followed have made, each of which is made once."""

    def __init__(self, options: Mapping[str, Node], repository: Repository) -> None:
        super().__init__(options, repository)
        self.loops: list[Loop] = []
        self.turn: list[Entry] | None = None
        self.within: list[Node] = []
        self.numbers = 0
        self.scopes: list[Scope] = []
        self.classes: dict[str, tuple[Objects, ast.ClassDef]] = {}
        self.followed: set[ast.AST] = set()
        self.trained: dict[ast.AST, bool] = {}  # whether a loop or a function goes backward
        self.entries = 0
        self.called: dict[tuple[int, int], tuple[Node, Scope]] = {}


class Objects(program.Followed):
    """A module whose classes are followed where they are called."""

    state: State

    def left_by(self, inner: Scope) -> None:
        """A function has returned: its names let go."""

    def numbered(self, made: Node) -> None:
        self.state.numbers += 1
        values_of(made)[NUMBER] = Node(self.state.numbers, made.span)

    def class_definition(self, node: ast.ClassDef, scope: Scope, depth: int) -> None:
        super().class_definition(node, scope, depth)
        self.state.classes[node.name] = (self, node)

    def new(self, node: ast.Call, name: str, keys: Keys, scope: Scope, depth: int) -> Node | None:
        """An object of a class of the program's own, with what its ``__init__`` gives it; None for any other call."""
        drawn = scope.find(name)
        if drawn is not None and target_of(drawn) in self.state.classes and is_a_class(drawn):
            name = target_of(drawn)  # ``cls`` of a class method
        module, made = self.state.classes.get(name, (None, None))
        if module is None or made is None or drawn is None or target_of(drawn) not in (name, ""):
            return None
        start = method_of(made, "__init__")
        base = self.state.bases_of.get(name, "")
        if start is None or base.endswith(("Trainer", "Module", "Model", "ForCausalLM", "Config", "Arguments")):
            return None
        instance = Node({}, self.span(node), None, keys)
        values_of(instance)["_target_"] = Node(name, self.span(node.func))
        values_of(instance)[INSTANCE] = Node(name, self.span(node.func))
        self.numbered(instance)
        with contextlib.suppress(Unknown):
            self.enter(module, start, instance, node, scope)
        for asked in _ASKED:
            method = method_of(made, asked)
            if method is not None:
                with contextlib.suppress(Unknown):
                    self.enter(module, method, instance, ast.Call(node.func, [], []), scope, node)
        return instance

    def holds(self, made: Node, node: ast.Call, scope: Scope) -> None:
        """What a module of a class of the program's own has made when it is there, or is given that was made before."""
        kind = values_of(made).get("_class_")
        module, own = self.state.classes.get(str(kind.value) if kind is not None else "", (None, None))
        start = method_of(own, "__init__") if own is not None else None
        if module is None or start is None or not target_of(made).endswith(_MODULES):
            return
        given = [one for one in _arguments(made) if NUMBER in values_of(one)]
        if not given and not self.loads(start):
            return
        before = len(self.state.made)
        with contextlib.suppress(Unknown):
            self.enter(module, start, Node({}, made.span), node, scope)
        values_of(made)[HOLDS] = Node([*given, *self.state.made[before:]], made.span)

    def loads(self, function: ast.FunctionDef) -> bool:
        """Whether a function loads a model: what makes its layers itself is not followed, however many they are."""
        return any(isinstance(one, ast.Attribute) and one.attr in _LOADERS for one in self.walk(function))

    def method(self, function: ast.expr, scope: Scope, depth: int) -> tuple[Objects, ast.FunctionDef, Node] | None:
        """The method of an object of the program's own that a call is of."""
        if not isinstance(function, ast.Attribute):
            return None
        owner = self.locate(function.value, scope)
        if owner is None and isinstance(function.value, ast.Call) and self.state.turn is None:
            owner = self.value(function.value, "", scope, depth + 1)
        if owner is not None and is_a_class(owner) and target_of(owner) in self.state.classes:
            module, made = self.state.classes[target_of(owner)]
            found = method_of(made, function.attr)
            return (module, found, owner) if found is not None and is_of_its_class(found) else None
        kind = values_of(owner).get(INSTANCE) if owner is not None else None
        if kind is None or owner is None:
            return None
        module, made = self.state.classes[str(kind.value)]
        found = method_of(made, function.attr)
        return None if found is None else (module, found, owner)

    def of_object(
        self, method: tuple[Objects, ast.FunctionDef, Node], node: ast.Call, scope: Scope, keys: Keys
    ) -> Node:
        module, function, owner = method
        returned = self.enter(module, function, owner, node, scope)
        if returned is None or returned.node is None:
            raise Unknown(f"calls {function.name}(), which returns nothing that is known")
        return self.moved(returned.node, keys, None, ())

    def enter(
        self,
        module: Objects,
        function: ast.FunctionDef,
        owner: Node,
        call: ast.Call,
        scope: Scope,
        place: ast.Call | None = None,
    ) -> Returned | None:
        """Follow a method; its first argument is the object itself."""
        calling = self.state.calling
        if function in calling or len(calling) >= MAX_DEEP or not self.state.calls_left:
            raise Unknown(f"calls {function.name}()")
        self.state.calls_left -= 1
        inner = Scope("", module.module)
        found = Function(module, function, module.module)
        static = any(isinstance(one, ast.Name) and one.id == "staticmethod" for one in function.decorator_list)
        arguments = [*function.args.posonlyargs, *function.args.args]
        own = "" if static or not arguments else arguments[0].arg
        shifted = (
            call
            if not own
            else ast.Call(call.func, [ast.Constant(None, lineno=1, col_offset=0), *call.args], call.keywords)
        )
        self.bound(found, shifted, scope, inner)
        if own:
            inner.names[own] = owner
        calling.append(function)
        try:
            return module.block(function.body, inner, 0)
        finally:
            calling.pop()
            self.left_by(inner)

    def freezes(self, node: ast.For, scope: Scope, depth: int) -> None:
        """A loop that sets ``requires_grad`` of parameters, which is not followed otherwise."""
        if not self.state.once(node):
            return
        for one in self.walk(node):
            value: ast.expr | None = None
            if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Attribute):
                value = one.value if one.targets[0].attr == "requires_grad" else None
            elif isinstance(one, ast.Call) and getattr(one.func, "attr", "") == "requires_grad_":
                value = one.args[0] if one.args else ast.Constant(True, lineno=one.lineno, col_offset=0)
            if value is None:
                continue
            span = self.span(one)
            set_to = value.value if isinstance(value, ast.Constant) else self.source(value)
            said = {"_target_": Node(FROZEN, span), "of": Node(self.source(node.iter), span)}
            said["value"] = Node(set_to if isinstance(set_to, (bool, str)) else None, span)
            self.state.made.append(Node(said, span))

    def doubted(self, node: ast.If, scope: Scope) -> dict[str, Node]:
        """What the program made and a condition that is not known may put something around, by its names."""
        try:
            self.known(node.test, scope)
        except Unknown:
            pass
        else:
            return {}
        found: dict[str, Node] = {}
        for target, _ in targets([*node.body, *node.orelse], self.spend):
            owner = scope.find(target.id) if isinstance(target, ast.Name) else None
            if isinstance(target, ast.Name) and owner is not None and NUMBER in values_of(owner):
                place = self.span(node.test)
                made = Node({"_target_": Node(DOUBT, place), ON: owner}, place)
                self.numbered(made)
                found[target.id] = made
        return found

    def part(self, node: Node, index: int) -> Node:
        """One of several things that a call makes together."""
        made = Node({PART_OF: Node(index, node.span), ON: node, "_target_": values_of(node)["_target_"]}, node.span)
        self.numbered(made)
        return made

    def set(self, target: ast.Attribute, node: Node, scope: Scope) -> None:
        """An attribute of what a call made is set, or one further down: ``model.config.use_cache = False``."""
        owner: ast.expr = target.value
        while isinstance(owner, (ast.Attribute, ast.Subscript)):
            owner = owner.value
        found = self.locate(target.value, scope) or self.locate(owner, scope)
        if found is None or NUMBER not in values_of(found) or INSTANCE in values_of(found):
            return
        span = self.span(target)
        said = Node({"_target_": Node(SET, span), ON: found, target.attr: node}, span)
        self.numbered(said)  # what is set after a loop changes nothing of it
        self.state.made.append(said)

    def either(self, node: ast.IfExp, keys: Keys, scope: Scope, depth: int) -> Node:
        """One of two things that calls make, by a condition that is not known: both are told."""
        try:
            return super().composed(node, keys, scope, depth)
        except Unknown:
            both = [self.value(way, "", scope, depth + 1) for way in (node.body, node.orelse)]
            return self.one_of(both, node, keys)

    def one_of(self, both: list[Node], node: ast.IfExp, keys: Keys) -> Node:
        if not all(NUMBER in values_of(one) for one in both):
            raise Unknown("one of two values, by a condition that is not known")
        made = Node(
            {"_target_": Node(EITHER, self.span(node)), "_args_": Node(both, self.span(node))},
            self.span(node),
            None,
            keys,
        )
        self.numbered(made)
        return made


def is_a_class(node: Node) -> bool:
    """Whether a name stands for a class, and not for what a call of one makes."""
    return node.is_mapping and NUMBER not in values_of(node) and "_class_" not in values_of(node)


def is_of_its_class(method: ast.FunctionDef) -> bool:
    return any(isinstance(one, ast.Name) and one.id == "classmethod" for one in method.decorator_list)


def _arguments(made: Node) -> Iterator[Node]:
    """What a call is given."""
    for name, value in values_of(made).items():
        if name == "_args_":
            yield from value.value if isinstance(value.value, list) else ()
        elif not name.startswith("_"):
            yield value


def method_of(made: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next((one for one in made.body if isinstance(one, ast.FunctionDef) and one.name == name), None)
