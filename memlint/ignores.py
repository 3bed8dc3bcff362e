"""Suppression comments written where findings are: ``check --add-ignore REASON``.

A comment goes to the end of a finding's line; where that is no place for one (a line that goes on, a text of several
lines), alone above the line, above the block or command that it is in, or, for the whole file, at its top. Each is
tried on the text before it is written: the config has to say the same as before, and the finding has to be hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from memlint.documents.lines import line_starts
from memlint.documents.load import load, quoting
from memlint.documents.node import Document
from memlint.named_tuple import NamedTuple
from memlint.plugin import Finding
from memlint.rules_registry import NEVER_HIDDEN, RuleInfo
from memlint.suppress import Directive, hides, scan


class Added(NamedTuple):
    """A text with comments, how many findings they hide, and those that none hides: (finding, why)."""

    text: str
    silenced: int
    left: list[tuple[Finding, str]]


class _Insertion(NamedTuple):
    """Text to be inserted at an offset of the original."""

    offset: int
    text: str


def add(path: str, text: str, findings: Iterable[Finding], reason: str, rules: Sequence[RuleInfo]) -> Added:
    """The text of one file with a comment for each of its findings."""
    document = load(path, text)
    todo: dict[int, list[Finding]] = {}
    left: list[tuple[Finding, str]] = []
    for finding in findings:
        why = _impossible(finding, document)
        if why:
            left.append((finding, why))
        else:
            todo.setdefault(finding.span.line, []).append(finding)
    writer = _Writer(path, text, document, reason, rules)
    written: list[_Insertion] = []
    alone: dict[int, list[Finding]] = {}
    for line, here in sorted(todo.items()):
        made = writer.at_the_end(line, here)
        if made is not None:
            written.append(made)
        else:
            alone.setdefault(writer.anchor(line), []).extend(here)
    whole: list[Finding] = []
    for anchor, here in sorted(alone.items()):
        made = writer.above(anchor, here)
        if made is not None:
            written.append(made)
        else:
            whole += here
    if whole:
        made = writer.at_the_top(whole)
        if made is not None:
            written.append(made)
        else:
            left += [(finding, "no place for a comment was found") for finding in whole]
    hidden = sum(len(here) for here in todo.values()) - (len(whole) if whole and made is None else 0)
    return Added(_with(text, written), hidden, left)


def _impossible(finding: Finding, document: Document) -> str:
    if finding.code in NEVER_HIDDEN:
        return "cannot be silenced"
    if quoting(document.path) is not None:
        return "a document is for its readers: per-file-ignores of the settings"
    if document.format == "json":
        return "JSON has no comments: per-file-ignores of the settings"
    if document.faults and finding.code == "MEM003":
        return "the file cannot be read"
    return ""


class _Writer:
    """Comments for one text."""

    def __init__(self, path: str, text: str, document: Document, reason: str, rules: Sequence[RuleInfo]) -> None:
        self.path = path
        self.text = text
        self.document = document
        self.reason = " ".join(reason.split())
        self.rules = rules
        self.starts = line_starts(text)
        self.meaning = _meaning(document)
        self.said = scan(path, text, rules).directives

    def at_the_end(self, line: int, findings: Sequence[Finding]) -> _Insertion | None:
        own = [one for one in self.said if one.form == "ignore" and one.first == line and one.comment is not None]
        own = [one for one in own if one.comment is not None and not one.comment.alone]
        if own:
            return self._checked(self._joined(own[0], findings), findings)
        begin, end = self._line(line)
        blank = "" if self.text[begin:end].endswith((" ", "\t")) else "  "
        return self._checked(_Insertion(end, blank + self._comment("ignore", findings)), findings)

    def _joined(self, directive: Directive, findings: Sequence[Finding]) -> _Insertion:
        """More codes in the brackets of a comment that is there already."""
        comment = directive.comment
        assert comment is not None
        offset = self.starts[comment.line - 1] + comment.column - 1 + comment.text.index("]")
        codes = [code for code in _codes(findings) if code not in directive.codes]
        return _Insertion(offset, "".join(f", {code}" for code in codes))

    def anchor(self, line: int) -> int:
        """The first line of the command that a line is in, or the line itself."""
        for command in self.document.commands:
            if command.span.path == self.path and command.span.line <= line <= command.span.end_line:
                return command.span.line
        return line

    def above(self, line: int, findings: Sequence[Finding]) -> _Insertion | None:
        """Alone above a line, or above one of the blocks that begin before it and reach over it, the nearest first."""
        for first in self._beginnings(line):
            begin, end = self._line(first)
            indent = self.text[begin:end][: len(self.text[begin:end]) - len(self.text[begin:end].lstrip())]
            made = _Insertion(begin, f"{indent}{self._comment('ignore', findings)}{self._line_break}")
            if self._checked(made, findings) is not None:
                return made
        return None

    def at_the_top(self, findings: Sequence[Finding]) -> _Insertion | None:
        """For the whole file, below a line that says which program runs it."""
        begin = self.starts[1] if self.text.startswith("#!") and len(self.starts) > 1 else 0
        comment = self._comment("file-ignore", findings)
        return self._checked(_Insertion(begin, f"{comment}{self._line_break}"), findings)

    @property
    def _line_break(self) -> str:
        return "\r\n" if "\r\n" in self.text else "\n"

    def _beginnings(self, line: int) -> Iterator[int]:
        yield line
        around = [node.span for node in self.document.root.walk() if node.keys and node.span.path == self.path]
        around += [node.key_span for node in self.document.root.walk() if node.key_span is not None]
        above = {span.line for span in around if span.line < line <= span.end_line and span.path == self.path}
        yield from sorted(above, reverse=True)

    def _line(self, number: int) -> tuple[int, int]:
        """Offsets of a line, without its end."""
        begin = self.starts[number - 1]
        end = self.starts[number] if number < len(self.starts) else len(self.text)
        return begin, begin + len(self.text[begin:end].rstrip("\r\n"))

    def _comment(self, form: str, findings: Sequence[Finding]) -> str:
        return f"# memlint: {form}[{', '.join(_codes(findings))}] {self.reason}"

    def _checked(self, made: _Insertion, findings: Sequence[Finding]) -> _Insertion | None:
        """The insertion, if the text with it says the same and hides the findings."""
        after = _with(self.text, [made])
        if _meaning(load(self.path, after)) != self.meaning:
            return None
        lower = made.text.count("\n")
        line = sum(start <= made.offset for start in self.starts)  # of the insertion
        directives = scan(self.path, after, self.rules).directives
        for finding in findings:
            span = finding.span
            by = lower if span.line >= line else 0
            moved = finding._replace(span=span._replace(line=span.line + by, end_line=span.end_line + by))
            if not any(hides(directive, moved) for directive in directives):
                return None
        return made


def _codes(findings: Iterable[Finding]) -> list[str]:
    return sorted({finding.code for finding in findings})


def _with(text: str, insertions: Iterable[_Insertion]) -> str:
    for made in sorted(insertions, key=lambda made: -made.offset):
        text = text[: made.offset] + made.text + text[made.offset :]
    return text


def _meaning(document: Document) -> Any:
    """What a config says, wherever it says it."""
    if document.format == "python":
        import ast

        try:
            return ast.dump(ast.parse(document.text))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
    words = [
        [word.plain() for word in (command.program, *command.arguments, *command.words)]
        + [command.options.plain(), {name: value.plain() for name, value in command.environment.items()}]
        for command in document.commands
    ]
    return [document.root.plain(), words, [fault.code for fault in document.faults]]
