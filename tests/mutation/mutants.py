"""Mutants of a module's source: one small change each, as a person might slip.

A change replaces a piece of the text and leaves the rest as it is, so a mutant is shown as the line that it changes.
Whether it makes sense is not asked: one that does not compile is left out when it is drawn, every other one counts.

Prices are left alone: how many steps of work something costs (the arguments of ``spend``, and a module's constants that
stand nowhere else) is measured by benchmarks, in seconds. That it is paid at all is for the tests: a call of ``spend``
that is left out is a mutant like any other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
EXTREMES = {"min": "max", "max": "min"}


class Mutant(NamedTuple):
    """One change: ``source[start:end]`` becomes ``text``.

    function   the innermost function or class around it, dotted; "" at module level
    first, last  lines of the statement that is changed (of a compound one, of its head)
    line       the changed line as it was, stripped
    change     what became what, in one line; the second of two alike on a line ends in ``#2``
    """

    function: str
    first: int
    last: int
    line: str
    change: str
    start: int
    end: int
    text: str

    def applied(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]

    def compiles(self, source: str) -> bool:
        try:
            compile(self.applied(source), "mutant", "exec", dont_inherit=True)
        except SyntaxError:
            return False
        return True

    def shown(self, source: str) -> str:
        """The changed lines, before and after, as a diff has them."""
        begin = source.rfind("\n", 0, self.start) + 1
        stop = source.find("\n", self.end)
        stop = len(source) if stop < 0 else stop
        number = source.count("\n", 0, begin) + 1
        old = source[begin:stop]
        new = source[begin : self.start] + self.text + source[self.end : stop]
        lines = [f"{number}: {self.function}", *(f"  -{line}" for line in old.split("\n"))]
        return "\n".join([*lines, *(f"  +{line}" for line in new.split("\n"))])


class _Change(NamedTuple):
    start: int
    end: int
    text: str


class _Source:
    """Offsets in characters: the parser counts columns in bytes."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines = text.split("\n")  # as the parser counts: a form feed is no line end
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)

    def _offset(self, line: int, column: int) -> int:
        before = self._lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(before)

    def start(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        return self._offset(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._offset(node.end_lineno, node.end_col_offset)

    def of(self, node: ast.expr | ast.stmt | ast.keyword) -> str:
        return self.text[self.start(node) : self.end(node)]


def mutants(text: str) -> list[Mutant]:
    """All mutants of a module's source, in the order of their places."""
    source = _Source(text)
    found: list[tuple[str, int, int, _Change]] = []
    tree = ast.parse(text)
    prices = _prices(tree)
    body = [each for each in tree.body if not (isinstance(each, ast.Assign) and _names(each.targets) & prices)]
    _visit_body(source, body, "", [], found)
    places = sorted(set(found), key=lambda each: (each[3].start, each[3].end, each[3].text))
    results: list[Mutant] = []
    seen: dict[tuple[str, str, str], int] = {}
    for function, first, last, change in places:
        line = text[text.rfind("\n", 0, change.start) + 1 :].partition("\n")[0].strip()
        said = f"{_short(text[change.start : change.end])} -> {_short(change.text)}"
        seen[function, line, said] = again = seen.get((function, line, said), 0) + 1
        said += f" #{again}" if again > 1 else ""
        results.append(Mutant(function, first, last, line, said, *change))
    return results


def _is_payment(node: ast.AST) -> bool:
    """``work.spend(steps, doing)``."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "spend"


def _prices(tree: ast.Module) -> set[str]:
    """Names that are used in payments alone."""
    used = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    paid = [
        name.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _is_payment(node)
        for argument in node.args
        for name in ast.walk(argument)
        if isinstance(name, ast.Name)
    ]
    return {name for name in paid if paid.count(name) == used.count(name)}


def _names(targets: list[ast.expr]) -> set[str]:
    return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}


def _short(text: str) -> str:
    return " ".join(text.split())


# -- statements

_Found = list[tuple[str, int, int, _Change]]


def _visit_body(source: _Source, body: list[ast.stmt], function: str, around: list[ast.AST], found: _Found) -> None:
    for statement in body:
        _visit_statement(source, statement, function, around, found)


def _visit_statement(source: _Source, statement: ast.stmt, function: str, around: list[ast.AST], found: _Found) -> None:
    inner = function
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        inner = f"{function}.{statement.name}" if function else statement.name
        around = [*around, statement]
    elif _is_for_types(statement) or _is_docstring(statement) or isinstance(statement, (ast.Import, ast.ImportFrom)):
        return
    bodies = [part for name in ("body", "orelse", "finalbody") for part in getattr(statement, name, [])]
    handlers = getattr(statement, "handlers", [])
    cases = getattr(statement, "cases", [])
    last = statement.end_lineno or statement.lineno
    if bodies or cases:
        first_inside = min(part.lineno for part in (*bodies, *(case.body[0] for case in cases)))
        last = max(statement.lineno, first_inside - 1)
    first = min([statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", []))])
    for change in _of_statement(source, statement, around):
        found.append((inner, first, last, change))
    for expression in _expressions(statement):
        for change in _of_expression(source, expression):
            found.append((inner, first, last, change))
    for part in bodies:
        _visit_statement(source, part, inner, around, found)
    for each in (*handlers, *cases):
        _visit_body(source, each.body, inner, around, found)


def _is_for_types(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """What a statement itself evaluates when it runs: without its annotations, and without the statements in it."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield from statement.args.defaults
        yield from (each for each in statement.args.kw_defaults if each is not None)
        yield from statement.decorator_list
        return
    if isinstance(statement, ast.AnnAssign):
        if statement.value is not None:
            yield statement.value
        return
    for name, value in ast.iter_fields(statement):
        if name == "type_params":
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.expr):
                yield each
            elif isinstance(each, ast.withitem):
                yield each.context_expr
            elif isinstance(each, ast.match_case) and each.guard is not None:
                yield each.guard


def _of_statement(source: _Source, statement: ast.stmt, around: list[ast.AST]) -> Iterator[_Change]:
    whole = source.start(statement), source.end(statement)
    if isinstance(statement, ast.Return):
        for value in _other_results(statement, around):
            yield _Change(*whole, f"return {value}")
    elif isinstance(statement, (ast.Continue, ast.Break)):
        yield _Change(*whole, "break" if isinstance(statement, ast.Continue) else "continue")
        yield _Change(*whole, "pass")
    elif isinstance(statement, (ast.AugAssign, ast.Raise, ast.Delete)) or _is_droppable(statement, around):
        yield _Change(*whole, "pass")
    elif isinstance(statement, (ast.If, ast.While)) and isinstance(
        statement.test, (ast.Name, ast.Call, ast.Attribute, ast.Subscript)
    ):
        yield _negated(source, statement.test)


def _is_droppable(statement: ast.stmt, around: list[ast.AST]) -> bool:
    """A call, or an assignment that something else stands in for: without the only one of a name nothing runs."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, (ast.Call, ast.Await))
    if isinstance(statement, ast.AnnAssign):
        targets: list[ast.expr] = [statement.target] if statement.value is not None else []
    elif isinstance(statement, ast.Assign):
        targets = statement.targets
    else:
        return False
    bound: list[str] = []
    functions = [each for each in around if not isinstance(each, ast.ClassDef)]
    if functions:
        function = functions[-1]
        assert isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        every = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        bound = [each.arg for each in every]
        bound += [
            each.id for each in ast.walk(function) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        ]
    return bool(targets) and all(
        isinstance(target, (ast.Attribute, ast.Subscript))
        or (isinstance(target, ast.Name) and bound.count(target.id) > 1)
        for target in targets
    )


def _other_results(statement: ast.Return, around: list[ast.AST]) -> tuple[str, ...]:
    value = statement.value
    if value is None or (isinstance(value, ast.Constant) and (value.value is None or isinstance(value.value, bool))):
        return ()  # True and False become each other as constants
    function = around[-1] if around else None
    returns = getattr(function, "returns", None)
    return ("True", "False") if returns is not None and ast.unparse(returns) == "bool" else ("None",)


# -- expressions


def _of_expression(source: _Source, root: ast.expr) -> Iterator[_Change]:
    stack: list[ast.AST] = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.JoinedStr):
            yield from _of_text(source, node)
            continue
        if _is_payment(node):
            continue
        if isinstance(node, ast.expr):
            yield from _of_node(source, node)
        stack += list(ast.iter_child_nodes(node))


def _of_text(source: _Source, text: ast.JoinedStr) -> Iterator[_Change]:
    """Places within an f-string are not known to every parser: it is written anew, with one part changed."""
    for part in text.values:
        if not isinstance(part, ast.FormattedValue):
            continue
        expression = part.value
        words = _Source(ast.unparse(expression))
        try:
            again = ast.parse(words.text, mode="eval").body
        except SyntaxError:
            continue
        for start, end, new in _of_expression(words, again):
            try:
                part.value = ast.parse(words.text[:start] + new + words.text[end:], mode="eval").body
                yield _Change(source.start(text), source.end(text), ast.unparse(text))
            except (SyntaxError, ValueError):  # two kinds of quotes are not enough
                continue
            finally:
                part.value = expression


def _of_node(source: _Source, node: ast.expr) -> Iterator[_Change]:
    whole = source.start(node), source.end(node)
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        for left, right, operator in zip(sides, sides[1:], node.ops):
            old, others = COMPARISONS[type(operator)]
            for new in others:
                yield from _between(source, left, right, old, new)
    elif isinstance(node, ast.BoolOp):
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:]):
            yield from _between(source, left, right, old, new)
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        old, new = ARITHMETIC[type(node.op)]
        yield from _between(source, node.left, node.right, old, new)
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.UAdd):
        yield _Change(*whole, f"({source.of(node.operand)})")
    elif isinstance(node, ast.Constant):
        for text in _other_constants(node.value):
            yield _Change(*whole, text)
    elif isinstance(node, ast.IfExp) and isinstance(node.test, (ast.Name, ast.Call, ast.Attribute, ast.Subscript)):
        yield _negated(source, node.test)
    elif isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
        for generator in node.generators:
            for test in generator.ifs:
                yield _Change(source.start(test), source.end(test), "True")
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id in EXTREMES:
            yield _Change(source.start(node.func), source.end(node.func), EXTREMES[node.func.id])
        for keyword in node.keywords:
            yield from _without(source, keyword)


def _other_constants(value: object) -> tuple[str, ...]:
    if isinstance(value, bool):
        return (str(not value),)
    if isinstance(value, int):
        return (str(value + 1), str(value - 1))
    return (repr(value + 1),) if isinstance(value, float) else ()


def _between(source: _Source, left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[_Change]:
    """The operator stands between its two sides, beside brackets and line ends."""
    start, end = source.end(left), source.start(right)
    at = source.text[start:end].find(old)
    if at >= 0 and "#" not in source.text[start:end]:
        yield _Change(start + at, start + at + len(old), new)


def _negated(source: _Source, test: ast.expr) -> _Change:
    return _Change(source.start(test), source.end(test), f"(not {source.of(test)})")


def _without(source: _Source, keyword: ast.keyword) -> Iterator[_Change]:
    start, end = source.start(keyword), source.end(keyword)
    rest = source.text[end:]
    if keyword.arg is not None and rest.lstrip().startswith(","):
        yield _Change(start, end + rest.index(",") + 1, "")
    elif keyword.arg is not None:
        yield _Change(start, end, "")
