"""Branches of a script: which statements are followed where a condition holds, holds by default, or is not known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memlint import work
from memlint.documents.shell.assignments import Assignments
from memlint.documents.shell.conditions import DEFAULT_NO, DEFAULT_YES, NO, SUCCESS, YES
from memlint.documents.shell.variables import Variable
from memlint.documents.shell.words import Source

STATEMENT = 30  # steps to look at a statement


class Branches(Assignments):
    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.jump = ""  # exit, return, break or continue: what follows is not reached

    def statement(self, node: Any, source: Source) -> str:
        """Follow a statement; how it ends."""
        raise NotImplementedError

    def statements(self, node: Any, source: Source) -> str:
        status = SUCCESS
        work.spend(2 * node.child_count, "reading a script")
        for child in node.children:
            if self.jump:
                break
            if child.is_named or child.type == "ERROR":
                status = self.statement(child, source)
        return status

    def _sequence(self, nodes: Sequence[Any], source: Source) -> None:
        for node in nodes:
            if self.jump:
                return
            self.statement(node, source)

    def _follow(self, nodes: Sequence[Any], source: Source) -> Callable[[], object]:
        """A branch that runs these statements."""
        return lambda: self._sequence(nodes, source)

    def _apart(self, follow: Callable[[Any, Source], str], node: Any, source: Source) -> str:
        """In a shell of its own: what it sets, and whether it ends, is nothing to the script."""
        mark = self.environment.mark()
        status = follow(node, source)
        self.environment.undo(mark)
        self.jump = ""
        return status

    def _list(self, node: Any, source: Source) -> str:
        joined: list[tuple[str, Any]] = []  # from the last to the second: `a && b || c` is a list of a list and c
        while node.type == "list":
            work.spend(STATEMENT, "following a script")
            named = [child for child in node.children if child.is_named]
            operators = [child.type for child in node.children if child.type in ("&&", "||")]
            joined += reversed(list(zip(operators, named[1:])))
            if not named:
                return SUCCESS
            node = named[0]
        status = self.statement(node, source)
        for operator, right in reversed(joined):
            if self.jump:
                break
            status = self._then(status, operator, right, source)
        return status

    def _then(self, status: str, operator: str, right: Any, source: Source) -> str:
        """What stands behind ``&&`` or ``||``, after a command that ended so."""
        holds = operator == "&&"
        if status in (YES, NO):
            return self.statement(right, source) if (status == YES) == holds else status
        if status in (DEFAULT_YES, DEFAULT_NO):
            return self._alternative(right, source) if (status == DEFAULT_YES) == holds else status
        if status != SUCCESS:
            self._branches([self._follow([right], source), self._follow([], source)])
            return status
        if holds:
            return self.statement(right, source)
        self._aside(right, source)  # what happens when it fails
        return status

    def _alternative(self, node: Any, source: Source) -> str:
        """A branch that is taken by default; one that leaves the script is not the normal case."""
        mark = self.environment.mark()
        status = self.statement(node, source)
        if self.jump:
            self.jump = ""
            self.environment.undo(mark)
        else:
            self.environment.keep()
        return status

    def _aside(self, node: Any, source: Source) -> dict[str, Variable | None]:
        """Commands of a branch that normally is not taken. What it sets is forgotten, but returned."""
        mark, positional = self.environment.mark(), self.positional
        self.statement(node, source)
        self.jump, self.positional = "", positional
        return self.environment.undo(mark)

    def _branches(self, branches: Sequence[Callable[[], object]]) -> None:
        """Follow each branch from here, then keep what those that come back agree on."""
        ends: list[dict[str, Variable | None]] = []  # what each one sets
        jumps: list[str] = []
        for branch in branches:
            mark = self.environment.mark()
            self.jump = ""
            branch()
            end = self.environment.undo(mark)
            if self.jump:
                jumps.append(self.jump)
            else:
                ends.append(end)
        self.jump = "" if ends else jumps[0]
        for name in dict.fromkeys(name for end in ends for name in end):
            before = self.environment.get(name)
            values = [end.get(name, before) for end in ends]
            first = values[0]
            if all(value is None if first is None else value is not None and first.same(value) for value in values):
                self.environment.set(name, first)
            else:
                exported = any(value is not None and value.exported for value in values)
                self._unknown(name, "it depends on a condition", exported)

    def _if(self, node: Any, source: Source) -> str:
        clauses: list[tuple[list[Any], list[Any]]] = [([], [])]
        other: list[Any] | None = None
        in_body = False
        for child in node.children:
            if child.type == "then":
                in_body = True
            elif child.type == "elif_clause":
                condition: list[Any] = []
                body: list[Any] = []
                target = condition
                for inner in child.children:
                    if inner.type == "then":
                        target = body
                    elif inner.is_named or inner.type == "ERROR":
                        target.append(inner)
                clauses.append((condition, body))
            elif child.type == "else_clause":
                other = [inner for inner in child.children if inner.is_named]
            elif child.is_named or child.type == "ERROR":
                clauses[0][1 if in_body else 0].append(child)
        self._clauses(clauses, other or [], source)
        return SUCCESS

    def _clauses(self, clauses: list[tuple[list[Any], list[Any]]], other: list[Any], source: Source) -> None:
        if not clauses:
            self._sequence(other, source)
            return
        condition, body = clauses[0]
        status = SUCCESS
        for statement in condition:
            status = self.statement(statement, source)
        if status == YES:
            self._sequence(body, source)
        elif status == NO:
            self._clauses(clauses[1:], other, source)
        elif status in (DEFAULT_YES, DEFAULT_NO):
            mark = self.environment.mark()
            if status == DEFAULT_YES:
                self._sequence(body, source)
            else:
                self._clauses(clauses[1:], other, source)
            if self.jump == "exit":
                self.jump = ""
                self.environment.undo(mark)
                if status == DEFAULT_YES:
                    self._clauses(clauses[1:], other, source)
                else:
                    self._sequence(body, source)
            else:
                self.environment.keep()
        else:
            self._branches([self._follow(body, source), lambda: self._clauses(clauses[1:], other, source)])

    def _case(self, node: Any, source: Source) -> str:
        value = node.child_by_field_name("value")
        subject = self._plain(value, source) if value is not None else None
        bodies: list[list[Any]] = []
        catches_all = False
        for item in node.children:
            if item.type != "case_item":
                continue
            patterns = item.children_by_field_name("value")
            ids = {pattern.id for pattern in patterns}
            body = [child for child in item.children if child.is_named and child.id not in ids]
            texts = [source.of(pattern) for pattern in patterns]
            if subject is not None:
                answers = [self._matches(subject, [pattern], source) for pattern in patterns]
                if True in answers:
                    self._sequence(body, source)
                    return SUCCESS
                if None in answers:
                    subject = None
            if "*" in texts:
                catches_all = True
            bodies.append(body)
        if subject is not None:
            return SUCCESS
        if not catches_all:
            bodies.append([])
        self._branches([self._follow(body, source) for body in bodies])
        return SUCCESS
