"""Training loops of a program's own: what one turn does, operation by operation, with what only running makes.

The program is followed as any other (:mod:`memlint.documents.programs.program`). Where it comes to a loop that goes
backward, one turn of it is followed with a sample that is not known: each call, attribute, item and operation on what
is not known is a value with a number, and names are bound to these numbers as Python binds them. What a value is worth
is not said here: that is for who knows the libraries. Which names hold what, and until when, is Python's own rule: a
name lets go of a value when it is bound to another one, deleted, or when the function that has the name returns.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memlint.documents.arithmetic import Unknown
from memlint.documents.node import Keys, Node, Span
from memlint.documents.programs import program
from memlint.documents.programs.call_nodes import target_of, values_of
from memlint.documents.programs.functions import Function
from memlint.documents.programs.options import PARSED
from memlint.documents.programs.own_objects import Objects, State, method_of
from memlint.documents.programs.state import ALONE, Repository
from memlint.documents.programs.turn import (
    ATTRIBUTE,
    CALL,
    EITHER,
    FUNCTION,
    ITEM,
    METHOD,
    NUMBER,
    ON,
    OPERATION,
    PART,
    REBUILT,
    Bind,
    Branch,
    End,
    Entry,
    Inner,
    Leave,
    Loop,
    Loops,
    Make,
    Traced,
    number_of,
)
from memlint.documents.python.scope import Returned, Scope, targets
from memlint.documents.python.source import Reading, Stop
from memlint.documents.python.statements import STATEMENT

if TYPE_CHECKING:
    from memlint.documents import notebook

BACKWARD = "backward"  # the method, whosever it is, by which a loop is one that trains
_MAX_ENTRIES = 5_000  # of a turn
_VARIES = "another in each turn of a loop"
_HAS_CUDA = "torch.cuda.is_available"  # which an estimate is for
# Methods that return the object that they are given, or called of (accelerate 1.15: accelerator.py, unwrap_model; torch
# 2.13: nn/modules/module.py).
_OF_ITS_ARGUMENT = ("unwrap_model",)
_OF_ITSELF = ("to", "cuda", "train", "eval")
_HANDED_ON = ("collate_fn",)  # keywords by which a library is given a function that it calls


def read(
    path: str,
    text: str,
    options: Mapping[str, Node],
    cells: notebook.Program | None = None,
    repository: Repository = ALONE,
) -> Loops:
    """Follow a program that is started with these options, through its training loops. Raises OutOfWork."""
    state = State(options, repository)
    return Loops(program.follow(_Looped, state, path, text, cells), tuple(state.loops))


def does_something(path: str, text: str) -> bool:
    """Whether a module calls or repeats anything when it is imported: most of a library's only define. Raises
    OutOfWork."""
    tree = Reading().parse(path, text)
    waiting: list[ast.stmt] = [] if tree is None else list(tree.body)
    own = {node.name for node in waiting if isinstance(node, ast.FunctionDef)}
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith)):
            return True
        if isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await)):
            return True
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):  # of a logger, or of what trains
            function = node.value.func
            if isinstance(function, ast.Name) and function.id in own:
                return True
        if isinstance(node, ast.If):
            waiting += [*node.body, *node.orelse]
        elif isinstance(node, ast.Try):
            waiting += [*node.body, *node.orelse, *node.finalbody]
    return False


class _Looped(Objects):
    # ------------------------------------------------------------------------------------------ entries

    def note(self, entry: Entry, place: ast.AST | None = None) -> None:
        assert self.state.turn is not None
        self.spend(STATEMENT, "following a training loop")
        self.state.entries += 1
        if self.state.entries > _MAX_ENTRIES:
            raise Stop("a training loop that does too much", Span(self.path, 1, 1, 1, 1))
        self.state.turn.append(entry)

    def made(
        self,
        node: Any,
        kind: str,
        name: str,
        values: Sequence[int | None] = (),
        callee: Node | None = None,
        given: Sequence[Node] = (),
        named: Mapping[str, Node] | None = None,
        keys: Keys = "",
    ) -> Node:
        """A value of the turn."""
        self.state.numbers += 1
        within = tuple(self.state.within)
        place = self.span(node)
        where = f"line {place.line}"
        if self.name != "__main__":
            where = f"line {place.line} of {place.path.rpartition('/')[2]}"
        words = dict(named or {})
        made = Make(self.state.numbers, kind, name, callee, tuple(values), tuple(given), words, within, place, where)
        self.note(made)
        value = Traced("a value of the training loop", self.source(node)[:80])
        value.number = made.number
        return Node(value, self.span(node), None, keys)

    def scope_number(self, scope: Scope) -> int:
        for number, one in enumerate(self.state.scopes):
            if one is scope:
                return number
        self.state.scopes.append(scope)
        return len(self.state.scopes) - 1

    # ------------------------------------------------------------------------------------------ statements

    def statement(self, node: ast.stmt, scope: Scope, depth: int) -> Returned | None:
        before, self.state.called = self.state.called, {}
        try:
            return self.followed(node, scope, depth)
        finally:
            self.state.called = before

    def followed(self, node: ast.stmt, scope: Scope, depth: int) -> Returned | None:
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)) and node not in self.state.followed:
            if self.state.turn is None and self.trains(node):
                self.state.followed.add(node)
                self.training(node, scope, depth)
                return None
            if self.state.turn is not None:
                self.inner(node, scope, depth)
                return None
        if self.state.turn is None:
            if isinstance(node, ast.For):
                self.freezes(node, scope, depth)
            return super().statement(node, scope, depth)
        since = self.state.numbers + 1
        if isinstance(node, (ast.With, ast.AsyncWith)):
            returned = self.contexts(node, scope, depth)
        else:
            if isinstance(node, ast.Expr) and not isinstance(node.value, (ast.Call, ast.Constant)):
                self.value(node.value, "", scope, depth)
            returned = super().statement(node, scope, depth)
        if returned is None:  # what a function returns is its caller's
            self.note(End(since))
        return returned

    def trains(self, node: ast.AST) -> bool:
        """Whether a loop, or a function of the program's own that it calls, goes backward."""
        known = self.state.trained.get(node)
        if known is None:
            self.state.trained[node] = False  # while it is looked at: a function that calls itself
            known = self.state.trained[node] = any(self.goes_backward(one) for one in self.walk(node))
        return known

    def goes_backward(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            return False
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        is_method = isinstance(function, ast.Attribute)
        return (name == BACKWARD and is_method) or any(self.trains(body) for body in self.bodies(name, is_method))

    def bodies(self, name: str, is_method: bool) -> Iterator[ast.FunctionDef]:
        """Functions of the repository, or methods of its classes, of that name."""
        found = self.function(name)
        if found is not None and isinstance(found.node, ast.FunctionDef):
            yield found.node
        if is_method:
            for _, made in self.state.classes.values():
                method = method_of(made, name)
                if method is not None:
                    yield method

    def training(self, node: ast.For | ast.AsyncFor | ast.While, scope: Scope, depth: int) -> None:
        """One turn of a loop that goes backward."""
        if isinstance(node, ast.While):
            over = Node(None, self.span(node.test))
        else:
            over = self.value(node.iter, "", scope, depth + 1)
        self.forget(node.body, _VARIES, scope)
        self.state.turn, self.state.within = [], []
        try:
            self.turn(node, over, scope, depth)
        finally:
            entries, self.state.turn = self.state.turn, None
            self.state.loops.append(Loop(over, entries or [], node.lineno))
        self.forget([node], "set in a training loop", scope)

    def turn(self, node: ast.For | ast.AsyncFor | ast.While, over: Node, scope: Scope, depth: int) -> None:
        if not isinstance(node, ast.While):
            item = self.made(node.iter, ITEM, self.source(node.iter)[:80], (number_of(over),), over)
            known = over.value[0] if isinstance(over.value, list) and over.value else None
            self.bind(node.target, known or item, scope)
        self.block(node.body, scope, depth + 1)

    def inner(self, node: ast.For | ast.AsyncFor | ast.While, scope: Scope, depth: int) -> None:
        """A loop within the turn, where it trains as well; what another one does is not followed."""
        if not self.trains(node):
            self.forget([node], "set in a loop", scope)
            return
        over = Node(None, self.span(node)) if isinstance(node, ast.While) else self.value(node.iter, "", scope, depth)
        outer, self.state.turn = self.state.turn, None
        self.forget(node.body, _VARIES, scope)
        self.state.turn = []
        try:
            self.turn(node, over, scope, depth)
        finally:
            body, self.state.turn = self.state.turn, outer
        turns = len(over.value) if isinstance(over.value, list) else None
        self.note(Inner(node.lineno, body, turns))

    def contexts(self, node: ast.With | ast.AsyncWith, scope: Scope, depth: int) -> Returned | None:
        before = len(self.state.within)
        for item in node.items:
            context = self.context(item.context_expr, scope, depth + 1)
            if isinstance(item.optional_vars, ast.Name):
                self.bind(item.optional_vars, context, scope)
            self.state.within.append(context)
        try:
            return self.block(node.body, scope, depth + 1)
        finally:
            del self.state.within[before:]

    def context(self, node: ast.expr, scope: Scope, depth: int) -> Node:
        """What a ``with`` statement enters, as the call that makes it."""
        found = self.value(node, "", scope, depth)
        number = number_of(found)
        made = next((one for one in reversed(self.state.turn or []) if isinstance(one, Make)), None)
        if number is None or made is None or made.number != number:
            return found
        said: dict[str, Node] = {"_target_": Node(made.name, found.span), **made.named}
        said["_args_"] = Node(list(made.given), found.span)
        if made.callee is not None:
            said[ON] = made.callee
        return Node(said, found.span)

    def condition(self, node: ast.If, scope: Scope, depth: int) -> Returned | None:
        if self.state.turn is None:
            doubted = self.doubted(node, scope)
            returned = super().condition(node, scope, depth)
            for name, made in doubted.items():
                scope.other.pop(name, None)
                scope.names[name] = made
            return returned
        try:
            if any(isinstance(one, ast.Mod) for one in self.walk(node.test)):
                raise Unknown(_VARIES)
            test = self.known(node.test, scope)
        except Unknown:
            self.branches(node, scope, depth)
            return None
        return self.block(node.body if test else node.orelse, scope, depth + 1)

    def branches(self, node: ast.If, scope: Scope, depth: int) -> None:
        """Both ways from a condition that is not known. A name that both may bind is what the first one binds it to,
        where that way does not end the turn."""
        outer, ways = self.state.turn, []
        for body in (node.orelse, node.body):
            self.state.turn = []
            before = dict(scope.names), dict(scope.other)
            self.block(body, scope, depth + 1)
            if _leaves(body):
                scope.names, scope.other = before
            ways.append(self.state.turn)
        self.state.turn = outer
        modulo = (one for one in self.walk(node.test) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mod))
        first = next(modulo, None)
        divisor = None if first is None else self.value(first.right, "", scope, depth + 1)
        self.note(Branch(self.span(node).line, ways[1], ways[0], (_leaves(node.body), _leaves(node.orelse)), divisor))

    # ------------------------------------------------------------------------------------------ names

    def bind(self, target: ast.expr, node: Node, scope: Scope) -> None:
        number = number_of(node)
        if number is not None and isinstance(target, (ast.Tuple, ast.List)):
            for index, item in enumerate(target.elts):
                self.bind(item, self.made(item, PART, str(index), (number,)), scope)
            return
        if NUMBER in values_of(node) and isinstance(target, (ast.Tuple, ast.List)):
            for index, item in enumerate(target.elts):
                self.bind(item, self.part(node, index), scope)
            return
        if isinstance(target, ast.Attribute):
            self.set(target, node, scope)
        super().bind(target, node, scope)
        if self.state.turn is None or isinstance(target, (ast.Tuple, ast.List)):
            return
        name = self.source(target)
        at = scope
        if isinstance(target, ast.Subscript):
            name = self.source(target.value) + "[]"
        self.note(Bind(self.scope_number(at), name, number, self.span(target).line))

    def delete(self, target: ast.expr, scope: Scope) -> None:
        super().delete(target, scope)
        if self.state.turn is not None:
            for one in target.elts if isinstance(target, (ast.Tuple, ast.List)) else (target,):
                self.note(Bind(self.scope_number(scope), self.source(one), None, self.span(one).line))

    def augment(self, node: ast.AugAssign, scope: Scope) -> None:
        """``loss /= 4`` and ``total += loss``: the operation of the same name. What is counted is another number in
        each turn."""
        super().augment(node, scope)
        if self.state.turn is None:
            return
        made = self.locate(node.target, scope)
        if made is not None and not made.is_unresolved:
            super().bind(node.target, self.opaque(_VARIES, node), scope)

    def forget(self, body: Sequence[ast.stmt], reason: str, scope: Scope) -> None:
        """A method that is called of what the program made leaves the name as it is: ``scaler.update()``."""
        for target, statement in targets(body, self.spend):
            if isinstance(target, str):
                scope.names.pop(target, None)
                scope.other[target] = reason
                continue
            stays = isinstance(statement, ast.Call) or self.hands_back(target, statement)
            owner = self.locate(target, scope) if stays else None
            if owner is None or NUMBER not in values_of(owner):
                self.bind(target, self.opaque(reason, statement), scope)

    def hands_back(self, target: ast.expr, statement: ast.AST) -> bool:
        """Whether a name is set to the object that it has already: ``model = accelerator.unwrap_model(model)``."""
        made = statement.value if isinstance(statement, ast.Assign) else None
        if not isinstance(made, ast.Call) or not isinstance(made.func, ast.Attribute):
            return False
        if made.func.attr in _OF_ITS_ARGUMENT:
            return bool(made.args) and self.source(made.args[0]) == self.source(target)
        return made.func.attr in _OF_ITSELF and self.source(made.func.value) == self.source(target)

    # ------------------------------------------------------------------------------------------ expressions

    def composed(self, node: ast.expr, keys: Keys, scope: Scope, depth: int) -> Node:
        if self.state.turn is None:
            if isinstance(node, ast.IfExp):
                return self.either(node, keys, scope, depth)
            return super().composed(node, keys, scope, depth)
        if isinstance(node, ast.BinOp):
            sides = [self.value(side, "", scope, depth + 1) for side in (node.left, node.right)]
            numbers = [number_of(side) for side in sides]
            if any(number is not None for number in numbers):
                name = type(node.op).__name__
                return self.made(node, OPERATION, name, numbers, given=sides, keys=keys)
        elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not):
            number = number_of(self.value(node.operand, "", scope, depth + 1))
            if number is not None:
                return self.made(node, OPERATION, type(node.op).__name__, (number,), keys=keys)
        elif isinstance(node, (ast.DictComp, ast.ListComp, ast.GeneratorExp, ast.SetComp)):
            rebuilt = self.rebuilt(node, keys, scope, depth)
            if rebuilt is not None:
                return rebuilt
        elif isinstance(node, ast.IfExp):
            try:
                return super().composed(node, keys, scope, depth)
            except Unknown:
                both = [self.value(way, "", scope, depth + 1) for way in (node.body, node.orelse)]
                ways = [number_of(way) for way in both]
                if all(way is not None for way in ways):
                    return self.made(node, EITHER, "", ways, keys=keys)
                return self.one_of(both, node, keys)
        elif isinstance(node, (ast.Dict, ast.Tuple, ast.List)):
            made = super().composed(node, keys, scope, depth)
            numbers = [number_of(one) for one in _children(made)]
            if isinstance(node, ast.Dict) and any(number is not None for number in numbers):
                return self.made(node, REBUILT, "dict", numbers, named=values_of(made), keys=keys)
            return made
        return super().composed(node, keys, scope, depth)

    def rebuilt(self, node: Any, keys: Keys, scope: Scope, depth: int) -> Node | None:
        """What is made of each part of a value: a batch whose tensors are moved."""
        source = node.generators[0].iter
        if isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute) and source.func.attr == "items":
            source = source.func.value
        number = number_of(self.value(source, "", scope, depth + 1))
        if number is None:
            return None
        return self.made(node, REBUILT, self.source(node)[:80], (number,), keys=keys)

    def reference(self, node: ast.expr, keys: Keys, scope: Scope, depth: int) -> Node:
        if self.state.turn is None or not isinstance(node, (ast.Attribute, ast.Subscript)):
            return super().reference(node, keys, scope, depth)
        if self.locate(node, scope) is None:
            owner = self.value(node.value, "", scope, depth + 1)
            number = number_of(owner)
            if number is not None:
                kind = ATTRIBUTE if isinstance(node, ast.Attribute) else PART
                name = node.attr if isinstance(node, ast.Attribute) else self.index(node.slice, scope)
                return self.made(node, kind, name, (number,), keys=keys)
        return super().reference(node, keys, scope, depth)

    def index(self, node: ast.expr, scope: Scope) -> str:
        """An index as text: the key where it is a word that is known."""
        try:
            return str(self.known(node, scope))
        except Unknown:
            return "".join(self.source(node).split())

    def comparison(self, node: ast.Compare, scope: Scope, depth: int) -> bool:
        """What the program made, or a turn makes, is not None."""
        if len(node.ops) == 1 and isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            sides = [self.value(side, "", scope, depth) for side in (node.left, node.comparators[0])]
            there = [NUMBER in values_of(side) or number_of(side) is not None for side in sides]
            if any(there) and any(side.value is None for side in sides):
                return isinstance(node.ops[0], ast.IsNot)
        return super().comparison(node, scope, depth)

    # ------------------------------------------------------------------------------------------ calls

    def call_statement(self, node: ast.Call, scope: Scope) -> None:
        if self.state.turn is None or self.called(node.func, scope) is not None:
            super().call_statement(node, scope)
        else:
            self.value(node, "", scope, 0)

    def call(self, node: ast.Call, keys: Keys, scope: Scope, depth: int) -> Node:
        made = self.state.called.get((id(node), id(scope)))
        if made is not None and hasattr(node, "lineno"):
            return self.moved(made[0], keys, None, ())
        found = self.called_once(node, keys, scope, depth)
        self.state.called[id(node), id(scope)] = found, scope
        return found

    def called_once(self, node: ast.Call, keys: Keys, scope: Scope, depth: int) -> Node:
        function = node.func
        if isinstance(function, ast.Attribute) and self.source(function) == _HAS_CUDA:
            return Node(True, self.span(node), None, keys)
        method = self.method(function, scope, depth)
        if method is not None:
            return self.of_object(method, node, scope, keys)
        if isinstance(function, ast.Name):
            made = self.new(node, function.id, keys, scope, depth)
            if made is not None:
                return made
        if self.state.turn is not None and self.called(function, scope) is None:
            return self.operation_of(node, keys, scope, depth)
        if isinstance(function, ast.Attribute) and self.called(function, scope) is None:
            owner = self.value(function.value, "", scope, depth + 1)
            if target_of(owner) and NUMBER in values_of(owner):
                return self.on(owner, function, node, keys, scope, depth)
        elif isinstance(function, ast.Name) and function.id == "deepcopy":
            return self.description(node, keys, scope, depth)
        return super().call(node, keys, scope, depth)

    def on(self, owner: Node, function: ast.Attribute, node: ast.Call, keys: Keys, scope: Scope, depth: int) -> Node:
        """A method of what the program made, which says whose it is."""
        if function.attr in ("get", "pop", *PARSED):
            return super().call(node, keys, scope, depth)
        try:
            made = self.description(node, keys, scope, depth)
        except Unknown:
            made = Node({"_target_": Node(self.source(function), self.span(function))}, self.span(node), None, keys)
            self.numbered(made)
            self.state.made.append(made)
        values_of(made)[ON] = owner
        if function.attr in program.MAPS:
            self.mapped(node, scope)
        return made

    def description(self, node: ast.Call, keys: Keys, scope: Scope, depth: int) -> Node:
        made = super().description(node, keys, scope, depth)
        self.numbered(made)
        self.holds(made, node, scope)
        if target_of(made).rpartition(".")[2] == "partial" and node.args and isinstance(node.args[0], ast.Name):
            found = self.function(node.args[0].id, scope)
            if found is not None:
                with contextlib.suppress(Unknown):
                    self.entered(found, ast.Call(node.func, [], node.keywords), scope, "", node)
        for keyword in node.keywords:
            if keyword.arg in _HANDED_ON and isinstance(keyword.value, ast.Name):
                found = self.function(keyword.value.id, scope)
                if found is not None:
                    with contextlib.suppress(Unknown):
                        self.entered(found, ast.Call(node.func, [], []), scope, "", node)
        return made

    def operation_of(self, node: ast.Call, keys: Keys, scope: Scope, depth: int) -> Node:
        """A call within the turn, of what is not the program's own: a value where it is of values, or of what the
        program made."""
        function = node.func
        owner, callee, name = None, None, ""
        if isinstance(function, ast.Attribute):
            name = function.attr
            callee = self.locate(function, scope)
            if callee is None or NUMBER not in values_of(callee):
                callee = None
                owner = self.value(function.value, "", scope, depth + 1)
        elif isinstance(function, ast.Name):
            name, callee = function.id, scope.find(function.id)
            if callee is not None and NUMBER not in values_of(callee) and number_of(callee) is None:
                callee = None
        else:
            callee = self.value(function, "", scope, depth + 1)
        given = [self.value(one.value if isinstance(one, ast.Starred) else one, "", scope, depth) for one in node.args]
        named = {one.arg or "**": self.value(one.value, "", scope, depth + 1) for one in node.keywords}
        numbers = [number_of(one) for one in (*given, *named.values())]
        for one in given:
            numbers += [number_of(item) for item in _children(one) if one.is_list]
        if owner is not None and number_of(owner) is not None:
            return self.made(node, METHOD, name, (number_of(owner), *numbers), None, given, named, keys)
        if owner is not None and NUMBER in values_of(owner):
            return self.made(node, METHOD, name, (None, *numbers), owner, given, named, keys)
        if callee is not None and (NUMBER in values_of(callee) or number_of(callee) is not None):
            return self.made(node, CALL, name, (number_of(callee), *numbers), callee, given, named, keys)
        if any(number is not None for number in numbers):
            return self.made(node, FUNCTION, self.source(function), numbers, None, given, named, keys)
        if name == "next" and node.args and NUMBER in values_of(given[0]):
            return self.made(node, ITEM, "next", (None,), given[0], given, named, keys)
        if isinstance(function, ast.Attribute) and name in (
            "autocast",
            "no_grad",
            "inference_mode",
            "set_grad_enabled",
        ):
            return self.description(node, keys, scope, depth)
        try:
            return super().call(node, keys, scope, depth)
        except Unknown:
            return self.description(node, keys, scope, depth)

    def entered(
        self,
        found: Function,
        call: ast.Call | None,
        scope: Scope,
        keys: Keys,
        place: ast.Call,
    ) -> Node:
        before = len(self.state.scopes)
        try:
            return super().entered(found, call, scope, keys, place)
        except Unknown:
            if self.state.turn is None or call is None:
                raise
            given = [self.value(one, "", scope, 0) for one in call.args if not isinstance(one, ast.Starred)]
            named = {one.arg or "**": self.value(one.value, "", scope, 0) for one in call.keywords}
            numbers = [number_of(one) for one in (*given, *named.values())]
            if not any(number is not None for number in numbers):
                raise
            return self.made(place, FUNCTION, found.name, numbers, None, given, named, keys)
        finally:
            if self.state.turn is not None:
                for number in range(before, len(self.state.scopes)):
                    if self.state.scopes[number].parent is not None:
                        self.note(Leave(number))

    def bound(self, found: Function, call: ast.Call | None, scope: Scope, inner: Scope) -> None:
        super().bound(found, call, scope, inner)
        if self.state.turn is not None:
            scope_number = self.scope_number(inner)
            for name, node in inner.names.items():
                if number_of(node) is not None:
                    self.note(Bind(scope_number, name, number_of(node), found.node.lineno))

    def left_by(self, inner: Scope) -> None:
        if self.state.turn is not None:
            self.note(Leave(self.scope_number(inner)))


def _children(node: Node) -> list[Node]:
    value = node.value
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def _leaves(body: Sequence[ast.stmt]) -> bool:
    """Whether statements end the turn, or the program."""
    return bool(body) and isinstance(body[-1], (ast.Continue, ast.Break, ast.Raise, ast.Return))
