"""The abstract evaluation of a script: its statements in order, functions, and the training commands that they reach.

A script is followed by one class, in layers: what words come to (``expansion.py``), conditions, assignments,
branches, loops, redirections, the shell's own commands (a module for each), and here what remains.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memlint import work
from memlint.documents import slurm
from memlint.documents.node import Call, Node, Span
from memlint.documents.shell import commands
from memlint.documents.shell.branches import STATEMENT
from memlint.documents.shell.builtins import BUILTINS, Builtins
from memlint.documents.shell.conditions import SUCCESS, negated
from memlint.documents.shell.redirections import MAX_DEPTH
from memlint.documents.shell.variables import Variable
from memlint.documents.shell.words import PIECE, Piece, Pieces, Source, Stop, argument, reason_of, text_of

WORD = 15  # steps to place a word of a training command

MAX_STEPS = 20_000  # statements evaluated in one script

MAX_COMMANDS = 4096  # training commands kept of one script

MAX_CALLS = 64  # of other scripts


class Script(Builtins):
    """One script. ``found`` are its training commands, ``calls`` the other scripts that it starts."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.functions: dict[str, tuple[Any, Source]] = {}
        self.called: set[str] = set()
        self.calls: list[Call] = []
        self.steps = 0

    def variables(self) -> dict[str, Node]:
        found: dict[str, Node] = {}
        for name, variable in self.environment.items():
            values = [variable.pieces] if variable.items is None else variable.items.values()
            work.spend(sum(PIECE * (1 + len(pieces)) for pieces in values), "listing the variables of a script")
            if variable.items is None:
                found[name] = self.source.node(variable.pieces, name)
            else:
                items = [self.source.node(item, f"{name}.{at}") for at, item in enumerate(variable.items.values())]
                span = items[0].span if items else Span(self.source.path, 1, 1, 1, 1)
                found[name] = Node(list(items), span, None, name)
        return found

    def uncalled_functions(self) -> None:
        """A function that is never called by name may be called in a way that is not seen: its commands count."""
        for name in list(self.functions):
            if name not in self.called and name in self.functions:
                self.jump = ""
                mark = self.environment.mark()
                self._call(name, None)
                self.environment.undo(mark)

    def submitted(self, task: slurm.Setting | None = None, call: Call | None = None) -> None:
        """The variables that Slurm sets for a script with ``#SBATCH`` lines, for one that a command submits with
        options of its own, or for one task of an array of it."""
        settings = slurm.settings(self.source.text, () if call is None else call.submission)
        for name, value, start, end in [*settings, *([task] if task is not None else [])]:
            said = Piece(value, start, end)
            if start < 0 and call is not None:
                said = said._replace(elsewhere=call.span)
            self.environment.set(name, Variable([said], None, True))

    def given(self, call: Call) -> None:
        """What another script hands to this one."""
        self.positional = [[argument(node)] for node in call.arguments]
        for name, node in call.environment.items():
            self.environment.set(name, Variable([argument(node)], None, True))

    def statement(self, node: Any, source: Source) -> str:
        self.steps += 1
        work.spend(STATEMENT, "following a script")
        if self.steps > MAX_STEPS:
            raise Stop(f"it takes more than {MAX_STEPS:,} steps")
        handler: Callable[[Script, Any, Source], str | None] | None = _HANDLERS.get(node.type)
        if handler is None:
            return SUCCESS
        return handler(self, node, source) or SUCCESS

    def _compound(self, node: Any, source: Source) -> str:
        if node.children and node.children[0].type == "((":
            return self._test(node, source)
        return self.statements(node, source)

    def _subshell(self, node: Any, source: Source) -> str:
        return self._apart(self.statements, node, source)

    def _pipeline(self, node: Any, source: Source) -> str:
        status = SUCCESS
        for child in node.children:
            if child.is_named:
                status = self._apart(self.statement, child, source)
        return status

    def _negated(self, node: Any, source: Source) -> str:
        return negated(self.statements(node, source))

    def _function(self, node: Any, source: Source) -> None:
        name = node.child_by_field_name("name")
        body = node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[source.of(name)] = (body, source)

    def _call(self, name: str, arguments: list[Pieces] | None) -> str:
        if self.depth >= MAX_DEPTH:
            return SUCCESS
        body, source = self.functions[name]
        self.called.add(name)
        kept, self.positional = self.positional, arguments
        self.depth += 1
        self.locals.append({})
        status = self.statement(body, source)
        for local, variable in self.locals.pop().items():
            self.environment.set(local, variable)
        self.depth -= 1
        self.positional = kept
        if self.jump == "return":
            self.jump = ""
        return status

    def _command(self, node: Any, source: Source) -> str:
        apart = _ended_by_a_comment(node)
        for child in apart:
            self._assign(child, source)
        assigned = [child for child in node.children[len(apart) :] if child.type == "variable_assignment"]
        words = self._words(node, source)
        if not words:
            for child in assigned:
                self._assign(child, source)
            return SUCCESS
        first = text_of(words[0]) if not reason_of(words[0]) else ""
        if first in self.functions:
            return self._call(first, words[1:])
        builtin = BUILTINS.get(first)
        if builtin is not None:
            return builtin(self, words, node, source) or SUCCESS
        mark = self.environment.mark()
        for child in assigned:
            self._assign(child, source, exported=True)
        self._training(words, node, source)
        self.environment.undo(mark)
        return SUCCESS

    def _training(self, words: list[Pieces], node: Any, source: Source) -> None:
        inner = commands.inner_script(words)
        if inner is not None:  # bash -c '...', sbatch --wrap "..."
            before = len(self.found)
            self._run_text(inner, source, exported_only=True)
            if text_of(words[0]).rpartition("/")[2] == "srun":  # it starts as many shells as there are tasks
                around = commands.launcher("srun", [source.word(pieces) for pieces in words])
                for at in range(before, len(self.found)):
                    one = self.found[at]
                    self.found[at] = one._replace(launchers=(around, *one.launchers))
            return
        environment: dict[str, Node] = {}
        span = source.span(node.start_byte, node.end_byte)
        work.spend(WORD * len(words), "reading the options of a command")
        nodes = [source.word(pieces) for pieces in words]
        command = commands.training_command(nodes, environment, span)
        if command is None:
            self._calls(words, source, span)
            return
        if len(self.found) >= MAX_COMMANDS:
            raise Stop(f"it has more than {MAX_COMMANDS:,} training commands")
        work.spend(len(self.environment.items()), "reading the variables of a command")
        for name, variable in self.environment.items():
            if variable.exported and variable.items is None and name not in environment:
                environment[name] = source.node(variable.pieces, name)
        self.found.append(command)

    def _calls(self, words: list[Pieces], source: Source, span: Span) -> None:
        """Another script that a command starts, and what that is given."""
        at = commands.called_script(words)
        if at is None or len(self.calls) >= MAX_CALLS:
            return
        given = [(name, variable) for name, variable in self.environment.items() if variable.exported]
        work.spend(PIECE * (len(words) + len(given)), "reading the arguments of a script")
        environment = {name: source.node(one.pieces, name) for name, one in given if one.items is None}
        arguments = tuple(source.node(pieces) for pieces in words[at + 1 :])
        submission = commands.submission([text_of(word) for word in words[:at]])
        self.calls.append(Call(text_of(words[at]), arguments, environment, span, submission))


def _ended_by_a_comment(node: Any) -> list[Any]:
    """Assignments before a command that are none of its: the comment after them runs to the end of its line, so that
    they are a statement, and a backslash before it does not join the lines. The grammar takes them together."""
    for at, child in enumerate(node.children):
        if child.type == "comment":
            return list(node.children[:at])
        if child.type != "variable_assignment":
            break
    return []


_HANDLERS: dict[str, Any] = {
    "command": Script._command,
    "variable_assignment": Script._assignment,
    "variable_assignments": Script._assignments,
    "declaration_command": Script._declaration,
    "unset_command": Script._unset,
    "redirected_statement": Script._redirected,
    "list": Script._list,
    "pipeline": Script._pipeline,
    "if_statement": Script._if,
    "case_statement": Script._case,
    "for_statement": Script._for,
    "c_style_for_statement": Script._counting_for,
    "while_statement": Script._while,
    "function_definition": Script._function,
    "compound_statement": Script._compound,
    "do_group": Script.statements,
    "subshell": Script._subshell,
    "negated_command": Script._negated,
    "test_command": Script._test,
    "ERROR": Script.statements,
    "program": Script.statements,
}
