"""Loops of a script: turn by turn over words that are known, else once, with what they assign unknown."""

from __future__ import annotations

import re
from typing import Any

from memlint import work
from memlint.documents.node import Command
from memlint.documents.shell.branches import Branches
from memlint.documents.shell.conditions import SUCCESS
from memlint.documents.shell.expansion import OPTION
from memlint.documents.shell.words import Piece, Pieces, Source, fields, text_of

MAX_ITERATIONS = 16  # of one loop

MAX_OPTIONS = 64  # of one call, that a loop takes

# What a loop over the script's own arguments looks at before each turn: how many are left, or the first of them.
_ARGUMENTS_LEFT = re.compile(r"\$(?:#|1|\{(?:#|1(?![0-9])))|\bgetopts\b")

_ALL_ARGUMENTS = (["arguments of the script"], ["the arguments of the script"])

_ENDLESS = re.compile(r"\s*while\s+(?:true|:)\s*(?:;|\n)")

_TAKES_FIRST = re.compile(r"\bcase\s+\"?\$\{?1\b")


class Loops(Branches):
    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.found: list[Command] = []  # training commands, in the order in which they would run

    def _for(self, node: Any, source: Source) -> str:
        variable = node.child_by_field_name("variable")
        body = node.child_by_field_name("body")
        if variable is None or body is None:
            return SUCCESS
        name = source.of(variable)
        values: list[Pieces] = []
        listed = node.children_by_field_name("value")
        values.extend(fields(self.word_list(listed, source)))
        has_list = any(source.of(child) == "in" for child in node.children[2:])
        if not has_list:
            if self.positional is None:
                values = [[Piece("$@", reason="arguments of the script")]]
            else:
                values = list(self.positional)
        if len(values) > MAX_ITERATIONS:
            unknown = Piece("$" + name, reason=f"a loop over {len(values)} values")
            values = [[unknown]]
        before = len(self.found)
        if [piece.reason for value in values for piece in value] in _ALL_ARGUMENTS:
            self._set(name, values[0])
            self._aside(body, source)
            if len(self.found) == before:  # it starts nothing: what it reads are options
                self._option_loop(body, source)
                return SUCCESS
            del self.found[before:]
        for value in values:
            self._set(name, value)
            self.statement(body, source)
            if self.jump in ("break", "continue"):
                ends = self.jump == "break"
                self.jump = ""
                if ends:
                    break
            if self.jump:
                break
        self._forget_repeated(before)
        return SUCCESS

    def _forget_repeated(self, before: int) -> None:
        """Iterations that run the same command again are one run."""
        seen: set[str] = set()
        kept: list[Command] = []
        for command in self.found[before:]:
            work.spend(2 * len(command.words), "comparing the runs of a loop")
            words = repr([word.plain() for word in command.words])
            key = repr((command.span, command.program.value, words))
            if key not in seen:
                seen.add(key)
                kept.append(command)
        self.found[before:] = kept

    def _counting_for(self, node: Any, source: Source) -> str:
        """``for ((i = 0; i < n; i++))``: once, with what it assigns unresolved."""
        body = node.child_by_field_name("body")
        header_end = body.start_byte if body is not None else node.end_byte
        self._unset_assigned(source.text[node.start_byte : header_end])
        if body is not None:
            self._loop_once(body, source)
        return SUCCESS

    def _while(self, node: Any, source: Source) -> str:
        body = node.child_by_field_name("body")
        condition = source.text[node.start_byte : body.start_byte if body is not None else node.end_byte]
        if body is None:
            return SUCCESS
        if "((" in condition:
            self._unset_assigned(condition)
        inner = source.of(body)
        takes_first = _ENDLESS.match(condition) and _TAKES_FIRST.search(inner)
        left = takes_first or _ARGUMENTS_LEFT.search(condition)
        if not self.positional and left:
            self._option_loop(body, source)
        elif self.positional and left and self._take_options(body, source):
            return SUCCESS
        else:
            self._loop_once(body, source, condition)
        return SUCCESS

    def _option_loop(self, body: Any, source: Source) -> None:
        """A loop over the script's own arguments: without any, the values before it stand. One that is empty
        before it waits for its argument."""
        count = len(self.found)
        after = self._aside(body, source)
        del self.found[count:]
        for name, variable in after.items():
            old = self.environment.get(name)
            if variable is None:
                continue
            if old is None or (old.items is None and not text_of(old.pieces) and not old.same(variable)):
                self._unknown(name, OPTION, old is not None and old.exported)

    def _take_options(self, body: Any, source: Source) -> bool:
        """A loop over arguments that are known, as long as each turn takes one away. Whether there was such a turn."""
        turned = False
        for _ in range(MAX_OPTIONS):
            left = len(self.positional or ())
            if not left:
                break
            self.statement(body, source)
            jump = self.jump
            if jump in ("break", "continue"):
                self.jump = ""
            if jump not in ("", "continue"):
                return True
            if len(self.positional or ()) >= left:
                break
            turned = True
        return turned

    def _loop_once(self, body: Any, source: Source, condition: str = "") -> None:
        """A loop of unknown length: what it assigns is not known in it, nor after it."""
        count = len(self.found)
        changed: list[str] = []
        for name, variable in self._aside(body, source).items():
            before = self.environment.get(name)
            if variable is not None and (before is None or not before.same(variable)):
                changed.append(name)
        if "read " in condition:
            changed += [word for word in condition.replace(";", " ").split() if word.isidentifier()]
        if not changed:
            return
        for name in changed:
            before = self.environment.get(name)
            self._unknown(name, "it changes in a loop", before is not None and before.exported)
        del self.found[count:]  # again, now with those values unknown
        self._aside(body, source)
