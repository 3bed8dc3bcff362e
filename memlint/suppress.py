"""Suppression comments: ``# memlint: ignore[MEM201] reason`` and its family.

ignore[CODES]       at the end of a line: findings on that line. Alone on a line: findings on what is written
                    next, the whole block or command.
file-ignore[CODES]  alone on a line anywhere: the whole file. In JSON: ``"//": "memlint: file-ignore[CODES]"``.
disable[CODES]      from here to ``enable[CODES]`` or to the end of the file.

CODES are codes, names or prefixes, with commas. There is no form that hides everything. A file is looked at
only when it contains ``memlint:``; comments are found by each format's own grammar, so text in a string is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from memlint.documents.node import Span
from memlint.named_tuple import NamedTuple
from memlint.plugin import SAFE, WARNING, Edit, Finding, Fix
from memlint.reports.text import source_lines
from memlint.rules_registry import NEVER_HIDDEN, RuleInfo, UnknownRule, require, specificity

MARK = "memlint:"
UNUSED = ("MEM002", "unused-suppression")
BAD = ("MEM005", "bad-suppression")
FORMS = ("ignore", "file-ignore", "disable", "enable")

# As text: compiled when a file has a comment of ours.
_DIRECTIVE = r"(?s)\s*([A-Za-z-]*)\s*(?:\[([^\]]*)\])?(.*)"
_IN_COMMENT = r"(?:#|//|^)\s*memlint:"


class Comment(NamedTuple):
    """A comment: its 1-based line, the column of its ``#``, its text, and whether it has the line to itself."""

    line: int
    column: int
    text: str
    alone: bool


class Directive(NamedTuple):
    """One suppression. It hides findings of ``codes`` that touch lines ``first`` to ``last``."""

    form: str
    codes: tuple[str, ...]
    reason: str
    first: int
    last: int
    span: Span
    comment: Comment | None


class Suppressions(NamedTuple):
    """The directives of one file. ``bad`` are findings about directives that are none."""

    path: str
    text: str
    directives: tuple[Directive, ...]
    bad: tuple[Finding, ...]


END = 1 << 30


# -- comments, by format -----------------------------------------------------------------------------


def _yaml_comments(text: str) -> Iterator[tuple[int, int]]:
    """(line, column), 0-based, of each ``#`` that starts a comment: what lies between YAML's tokens."""
    import yaml

    loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    lines = source_lines(text, "x.yaml")
    covered: list[tuple[int, int, int, int]] = []
    try:
        for token in yaml.scan(text, Loader=loader):
            start, end = token.start_mark, token.end_mark
            if getattr(token, "style", None) in ("|", ">"):
                covered.append((start.line + 1, 0, end.line, end.column))
            elif (start.line, start.column) != (end.line, end.column):
                covered.append((start.line, start.column, end.line, end.column))
    except yaml.YAMLError:
        pass  # what was read so far still counts; the fault itself is reported as MEM003
    for number, line in enumerate(lines):
        at = line.find("#")
        while at >= 0:
            inside = any(first <= (number, at) < last for first, last in _ranges(covered, number))
            if not inside and (at == 0 or line[at - 1] in " \t\ufeff"):
                yield number, at
                break
            at = line.find("#", at + 1)


def _ranges(
    covered: Sequence[tuple[int, int, int, int]], line: int
) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    for first_line, first_column, last_line, last_column in covered:
        if first_line <= line <= last_line:
            yield (first_line, first_column), (last_line, last_column)


def _toml_comments(text: str) -> Iterator[tuple[int, int]]:
    at, line, line_start = 0, 0, 0
    while at < len(text):
        character = text[at]
        if character == "\n":
            line, line_start = line + 1, at + 1
        elif character == "#":
            yield line, at - line_start
            at = text.find("\n", at)
            if at < 0:
                return
            continue
        elif character in "\"'":
            fence = character * 3 if text.startswith(character * 3, at) else character
            end = at + len(fence)
            while end < len(text) and not text.startswith(fence, end):
                if len(fence) == 1 and text[end] == "\n":
                    break  # an unclosed string ends with its line, so that one mistake hides no comment
                end += 2 if character == '"' and text[end] == "\\" else 1
            newlines = text.count("\n", at, end)
            if newlines:
                line, line_start = line + newlines, text.rfind("\n", at, end) + 1
            at = end + len(fence) if text.startswith(fence, end) else end
            continue
        at += 1


def _python_comments(text: str) -> Iterator[tuple[int, int]]:
    import io
    import tokenize

    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0] - 1, token.start[1]
    except (tokenize.TokenError, SyntaxError):
        return


def _shell_comments(text: str) -> Iterator[tuple[int, int]]:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    data = text.encode("utf-8", "surrogatepass")
    lines = data.split(b"\n")
    stack = [Parser(Language(tree_sitter_bash.language())).parse(data).root_node]
    while stack:
        node = stack.pop()
        if node.type == "comment":
            row, column = node.start_point
            yield row, len(lines[row][:column].decode("utf-8", "surrogatepass"))
        stack.extend(reversed(node.children))


_COMMENTS = {
    "yaml": _yaml_comments,
    "toml": _toml_comments,
    "python": _python_comments,
    "shell": _shell_comments,
}


def comments(text: str, kind: str) -> list[Comment]:
    """The comments of a text that mention memlint, in order. ``kind`` is a Document's format."""
    lines = source_lines(text, {"yaml": "x.yaml", "shell": "x.sh"}.get(kind, "x"))
    found = []
    for line, column in sorted(_COMMENTS[kind](text)) if kind in _COMMENTS else ():
        whole = lines[line]
        if MARK in whole[column:]:
            found.append(Comment(line + 1, column + 1, whole[column:], not whole[:column].strip(" \t\ufeff")))
    return found


# -- directives --------------------------------------------------------------------------------------


def scan(path: str, text: str, rules: Sequence[RuleInfo]) -> Suppressions:
    """The suppressions of one file. Never raises for anything that the file says."""
    if MARK not in text:
        return Suppressions(path, text, (), ())
    from memlint.documents.load import load

    document = load(path, text)
    directives: list[Directive] = []
    bad: list[Finding] = []
    blocks: dict[int, int] | None = None
    if document.format == "json":
        note = document.root.value.get("//") if isinstance(document.root.value, dict) else None
        for node in note.value if note is not None and isinstance(note.value, list) else (note,):
            if node is None or not isinstance(node.value, str) or not node.value.lstrip().startswith(MARK):
                continue
            said = _parse(node.value.lstrip()[len(MARK) :], node.span, rules)
            if isinstance(said, Finding):
                bad.append(said)
            elif said[0] != "file-ignore":
                bad.append(_bad(node.span, "JSON knows only the form file-ignore[CODES]"))
            else:
                directives.append(Directive("file-ignore", *said[1:], 1, END, node.span, None))
        return Suppressions(path, text, tuple(directives), tuple(bad))

    open_ranges: list[Directive] = []
    for comment in comments(text, document.format):
        match = re.search(_IN_COMMENT, comment.text)
        if match is None:
            continue
        start = comment.column + match.start()
        span = Span(path, comment.line, start, comment.line, comment.column + len(comment.text.rstrip()))
        said = _parse(comment.text[match.end() :], span, rules)
        if isinstance(said, Finding):
            bad.append(said)
            continue
        form, codes, reason = said
        own = comment._replace(
            column=start, text=comment.text[match.start() :], alone=comment.alone and match.start() == 0
        )
        first = last = comment.line
        if form == "ignore" and own.alone:
            if blocks is None:
                blocks = _blocks(path, document)
            first, last = _next_block(path, text, comment.line, blocks)
        elif form == "file-ignore":
            if not comment.alone:
                bad.append(_bad(span, "file-ignore stands alone on its line; after a value write ignore"))
                continue
            first, last = 1, END
        elif form == "disable":
            open_ranges.append(Directive(form, codes, reason, comment.line, END, span, own))
            continue
        elif form == "enable":
            closed = [entry for entry in open_ranges if set(entry.codes) & set(codes)]
            if not closed:
                bad.append(_bad(span, f"enable[{', '.join(codes)}] without a disable above it"))
            for entry in closed:
                open_ranges.remove(entry)
                ended = tuple(code for code in entry.codes if code in codes)
                directives.append(entry._replace(codes=ended, last=comment.line))
                if len(ended) < len(entry.codes):
                    rest = tuple(code for code in entry.codes if code not in codes)
                    open_ranges.append(entry._replace(codes=rest))
            continue
        directives.append(Directive(form, codes, reason, first, last, span, own))
    directives += open_ranges
    return Suppressions(path, text, tuple(sorted(directives, key=lambda d: d.span)), tuple(bad))


def _parse(said: str, span: Span, rules: Sequence[RuleInfo]) -> tuple[str, tuple[str, ...], str] | Finding:
    match = re.match(_DIRECTIVE, said)
    assert match is not None  # every part of the expression may be empty
    form, inside, reason = match.groups()
    if form not in FORMS:
        shown = form or said.strip()
        return _bad(span, f"{shown!r} is no suppression: write {', '.join(FORMS[:-1])} or {FORMS[-1]}")
    if inside is None:
        return _bad(span, f"{form} needs codes: write {form}[MEM201]; there is no form that hides everything")
    codes = tuple(code.strip() for code in inside.split(",") if code.strip())
    if not codes:
        return _bad(span, f"{form}[] names no code")
    for code in codes:
        if code.upper() == "ALL":
            return _bad(span, f"{form}[{code}]: there is no form that hides everything")
        try:
            require((code,), rules)
        except UnknownRule as error:
            return _bad(span, str(error))
    return form, codes, reason.strip()


def _bad(span: Span, message: str) -> Finding:
    return Finding(*BAD, WARNING, message, span, key=f"line {span.line}")


def _blocks(path: str, document: object) -> dict[int, int]:
    """First line -> last line of the largest thing that begins there."""
    from memlint.documents.node import Document

    assert isinstance(document, Document)
    blocks: dict[int, int] = {}
    spans = [(node.key_span or node.span, node.span) for node in document.root.walk() if node.key_path]
    spans += [(command.span, command.span) for command in document.commands]
    for begin, whole in spans:
        if begin.path == path == whole.path:
            blocks[begin.line] = max(blocks.get(begin.line, 0), whole.end_line)
    return blocks


def _next_block(path: str, text: str, line: int, blocks: dict[int, int]) -> tuple[int, int]:
    """The lines of what is written after a comment that stands alone, past further comments and blanks."""
    lines = source_lines(text, path)
    following = line + 1
    while following <= len(lines) and (
        not lines[following - 1].strip() or lines[following - 1].lstrip().startswith("#")
    ):
        following += 1
    return following, max(following, blocks.get(following, following))


# -- applying ----------------------------------------------------------------------------------------


def hides(directive: Directive, finding: Finding) -> bool:
    """Whether a directive covers a finding of the same file."""
    last = finding.span.end_line
    if finding.span.end_column == 1 and last > finding.span.line:
        last -= 1  # an end at the first column of a line takes nothing of that line
    if last < directive.first or finding.span.line > directive.last:
        return False
    return _selects(directive.codes, finding)


def _selects(codes: Sequence[str], finding: Finding) -> bool:
    info = RuleInfo(finding.code, finding.name, "")
    return any(specificity(code, info) for code in codes)


def unused(suppressions: Suppressions, used: set[tuple[Span, str]], judged: Sequence[RuleInfo]) -> list[Finding]:
    """Findings for codes that hid nothing. A code counts only if every rule it names is in ``judged``: a rule
    that is off or could not run says nothing about its suppressions. ``used`` holds (directive span, code)."""
    found = []
    known = {info.code for info in judged}
    for directive in suppressions.directives:
        idle = [
            code for code in directive.codes if (directive.span, code) not in used and _all_judged(code, known, judged)
        ]
        if idle:
            found.append(
                Finding(
                    *UNUSED,
                    WARNING,
                    f"{directive.form}[{', '.join(idle)}] hides nothing",
                    directive.span,
                    key=",".join(idle),
                    fixes=_removal(suppressions, directive, idle),
                )
            )
    return found


def _all_judged(code: str, known: set[str], judged: Sequence[RuleInfo]) -> bool:
    from memlint.rules_registry import built_in

    named = [info for info in (*built_in(), *judged) if specificity(code, info)]
    return bool(named) and all(info.code in known for info in named)


def _removal(suppressions: Suppressions, directive: Directive, idle: Sequence[str]) -> tuple[Fix, ...]:
    comment = directive.comment
    if comment is None or directive.form in ("disable", "enable"):
        return ()  # JSON text and ranges have more than one place to change
    path, line = suppressions.path, comment.line
    source = source_lines(suppressions.text, path)[line - 1]
    kept = [code for code in directive.codes if code not in idle]
    if kept:
        opened, closed = comment.text.index("["), comment.text.index("]")
        span = Span(path, line, comment.column + opened + 1, line, comment.column + closed)
        return (Fix(f"keep only {', '.join(kept)}", SAFE, (Edit(span, ", ".join(kept)),)),)
    before = source[: comment.column - 1]
    if before.strip():
        span = Span(path, line, len(before.rstrip()) + 1, line, len(source) + 1)
    else:
        span = Span(path, line, 1, line + 1, 1)
    return (Fix("remove the comment", SAFE, (Edit(span, ""),)),)


def apply(findings: Sequence[Finding], by_path: dict[str, Suppressions]) -> tuple[list[Finding], set[tuple[Span, str]]]:
    """The findings that no directive hides, and what was used. Internal errors are never hidden."""
    kept = []
    used: set[tuple[Span, str]] = set()
    for finding in findings:
        hidden = False
        here = by_path.get(finding.span.path)
        for directive in here.directives if here is not None and finding.code not in NEVER_HIDDEN else ():
            if hides(directive, finding):
                hidden = True
                used.update((directive.span, code) for code in directive.codes if _selects((code,), finding))
        if not hidden:
            kept.append(finding)
    return kept, used
