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
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from memlint import work
from memlint.documents.node import Document, Node, Span, shown
from memlint.named_tuple import NamedTuple
from memlint.plugin import SAFE, WARNING, Edit, Finding, Fix
from memlint.reports.text import source_lines
from memlint.rules_registry import NEVER_HIDDEN, RuleInfo, UnknownRule, nearest, specificity

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

# Far above what anybody writes: what a text made to cost runs into.
MAX_SAID = 1_000  # suppressions of one file
MAX_CODES = 100  # of one of them
MAX_HINTS = 20  # proposals for codes that do not exist: each is a search through all of them

_TOO_MANY = f"more than {MAX_SAID:,} suppressions in one file: none from here on hides anything"
_TOKEN = 3  # steps per token of a text
_LOOKING = "looking for suppression comments"


# -- comments, by format -----------------------------------------------------------------------------


def _yaml_comments(text: str) -> Iterator[tuple[int, int]]:
    """(line, column), 0-based, of each ``#`` that starts a comment: what lies between YAML's tokens."""
    import yaml

    loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    lines = source_lines(text, "x.yaml")
    # Tokens with a "#" in them, in the order of the text; no two overlap.
    starts: list[tuple[int, int]] = []
    ends: list[tuple[int, int]] = []
    try:
        for token in yaml.scan(text, Loader=loader):
            work.spend(_TOKEN, _LOOKING)
            start, end = token.start_mark, token.end_mark
            if text.find("#", start.index, end.index) < 0:
                continue
            is_block = getattr(token, "style", None) in ("|", ">")
            starts.append((start.line + 1, 0) if is_block else (start.line, start.column))
            ends.append((end.line, end.column))
    except yaml.YAMLError:
        pass  # what was read so far still counts; the fault itself is reported as MEM003
    for number, line in enumerate(lines):
        at = line.find("#")
        while at >= 0:
            token_at = bisect_right(starts, (number, at)) - 1
            inside = token_at >= 0 and (number, at) < ends[token_at]
            if not inside and (at == 0 or line[at - 1] in " \t\ufeff"):
                yield number, at
                break
            at = line.find("#", at + 1)


def _toml_comments(text: str) -> Iterator[tuple[int, int]]:
    work.spend(2 * work.KILOBYTE * len(text) >> 10, _LOOKING)
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
            work.spend(_TOKEN, _LOOKING)
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
        work.spend(_TOKEN, _LOOKING)
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


def scan(path: str, text: str, rules: Sequence[RuleInfo], reasons: bool = False) -> Suppressions:
    """The suppressions of one file. Never raises for anything that the file says."""
    if MARK not in text:
        return Suppressions(path, text, (), ())
    from memlint.documents.load import load

    document = load(path, text)
    found = _Scan(path, _unknown(rules), reasons)
    if document.format == "json":
        found.notes(document.root)
    else:
        found.comments(document, text)
    return Suppressions(path, text, tuple(sorted(found.directives, key=lambda d: d.span)), tuple(found.bad))


class _Scan:
    """What one file says so far.

    open  ``disable`` without its ``enable`` yet
    """

    def __init__(self, path: str, unknown: Callable[[str], str], reasons: bool) -> None:
        self.path = path
        self.unknown = unknown
        self.reasons = reasons
        self.directives: list[Directive] = []
        self.bad: list[Finding] = []
        self.open: list[Directive] = []

    def said(self, words: str, span: Span) -> tuple[str, tuple[str, ...], str] | None:
        """(form, codes, reason) of the words behind a mark; None, and a finding, where they are none."""
        said = _parse(words, span, self.unknown, self.reasons)
        if isinstance(said, Finding):
            self.bad.append(said)
            return None
        return said

    def notes(self, root: Node) -> None:
        """JSON has no comments: the key ``//`` of the whole file stands in."""
        note = root.value.get("//") if isinstance(root.value, dict) else None
        if note is None:
            return
        for index, node in enumerate(note.value if isinstance(note.value, list) else [note]):
            if index == MAX_SAID:
                self.bad.append(_bad(node.span, _TOO_MANY))
                return
            if not isinstance(node.value, str) or not node.value.lstrip().startswith(MARK):
                continue
            said = self.said(node.value.lstrip()[len(MARK) :], node.span)
            if said is None:
                continue
            form, codes, reason = said
            if form == "file-ignore":
                self.directives.append(Directive(form, codes, reason, 1, END, node.span, None))
            else:
                self.bad.append(_bad(node.span, "JSON knows only the form file-ignore[CODES]"))

    def comments(self, document: Document, text: str) -> None:
        ends = _Ends(self.path, document, text)
        said_here = 0
        for comment in comments(text, document.format):
            match = re.search(_IN_COMMENT, comment.text)
            if match is None:
                continue
            said_here += 1
            if said_here > MAX_SAID:
                place = Span(self.path, comment.line, comment.column, comment.line, comment.column + 1)
                self.bad.append(_bad(place, _TOO_MANY))
                break
            start = comment.column + match.start()
            span = Span(self.path, comment.line, start, comment.line, comment.column + len(comment.text.rstrip()))
            said = self.said(comment.text[match.end() :], span)
            if said is None:
                continue
            own = comment._replace(
                column=start, text=comment.text[match.start() :], alone=comment.alone and match.start() == 0
            )
            self.take(Directive(*said, comment.line, comment.line, span, own), comment.alone, ends)
        self.directives += self.open

    def take(self, directive: Directive, alone: bool, ends: _Ends) -> None:
        """A directive that still reaches over its own line only. ``alone``: its comment has the line to itself."""
        form, line = directive.form, directive.first
        if form == "disable":
            self.open.append(directive._replace(last=END))
        elif form == "enable":
            self.close(directive)
        elif form == "file-ignore" and not alone:
            self.bad.append(_bad(directive.span, "file-ignore stands alone on its line; after a value write ignore"))
        elif form == "file-ignore":
            self.directives.append(directive._replace(first=1, last=END))
        elif directive.comment is not None and directive.comment.alone:
            first, last = ends.next_to(line)
            self.directives.append(directive._replace(first=first, last=last))
        else:
            self.directives.append(directive)

    def close(self, enable: Directive) -> None:
        codes = enable.codes
        closed = [entry for entry in self.open if set(entry.codes) & set(codes)]
        if not closed:
            self.bad.append(_bad(enable.span, f"enable[{', '.join(codes)}] without a disable above it"))
        for entry in closed:
            self.open.remove(entry)
            ended = tuple(code for code in entry.codes if code in codes)
            self.directives.append(entry._replace(codes=ended, last=enable.first))
            if len(ended) < len(entry.codes):
                rest = tuple(code for code in entry.codes if code not in codes)
                self.open.append(entry._replace(codes=rest))


class _Ends:
    """Where what is written below a comment begins and ends; found when a comment asks."""

    def __init__(self, path: str, document: Document, text: str) -> None:
        self.path = path
        self.document = document
        self.text = text
        self.blocks: dict[int, int] | None = None
        self.followers: list[int] = []

    def next_to(self, line: int) -> tuple[int, int]:
        """The lines of what is written next, past further comments and blanks."""
        if self.blocks is None:
            self.blocks = _blocks(self.path, self.document)
            self.followers = _followers(self.path, self.text)
        first = self.followers[line + 1]
        return first, max(first, self.blocks.get(first, first))


def _unknown(rules: Sequence[RuleInfo]) -> Callable[[str], str]:
    """What is wrong with a code, as a sentence; "" where nothing is. Each code is looked up once."""
    names = [text for info in rules for text in (info.code, info.name)]
    said: dict[str, str] = {}
    hints = iter(range(MAX_HINTS))

    def unknown(code: str) -> str:
        if code not in said:
            work.spend(len(rules), _LOOKING)
            said[code] = ""
            if not any(specificity(code, info) for info in rules):
                near = nearest(shown(code), names) if next(hints, None) is not None else ()
                said[code] = str(UnknownRule(shown(code), near))
        return said[code]

    return unknown


def _parse(
    said: str, span: Span, unknown: Callable[[str], str], reasons: bool
) -> tuple[str, tuple[str, ...], str] | Finding:
    match = re.match(_DIRECTIVE, said)
    assert match is not None  # every part of the expression may be empty
    form, inside, reason = match.groups()
    if form not in FORMS:
        written = form or said.strip()
        return _bad(span, f"{shown(written)!r} is no suppression: write {', '.join(FORMS[:-1])} or {FORMS[-1]}")
    if inside is None:
        return _bad(span, f"{form} needs codes: write {form}[MEM201]; there is no form that hides everything")
    codes = tuple(dict.fromkeys(code.strip() for code in inside.split(",") if code.strip()))
    if not codes:
        return _bad(span, f"{form}[] names no code")
    if len(codes) > MAX_CODES:
        return _bad(span, f"{form} names {len(codes):,} codes: a prefix stands for all that begin with it")
    for code in codes:
        if code.upper() == "ALL":
            return _bad(span, f"{form}[{code}]: there is no form that hides everything")
        if wrong := unknown(code):
            return _bad(span, wrong)
    if reasons and form != "enable" and not reason.strip():
        listed = ", ".join(codes)
        return _bad(
            span, f"{form}[{listed}] hides nothing without a reason, which the settings require: write it behind"
        )
    return form, codes, reason.strip()


def _bad(span: Span, message: str) -> Finding:
    return Finding(*BAD, WARNING, message, span, key=f"line {span.line}")


def _blocks(path: str, document: object) -> dict[int, int]:
    """First line -> last line of the largest thing that begins there."""
    from memlint.documents.node import Document

    assert isinstance(document, Document)
    blocks: dict[int, int] = {}
    spans = [(node.key_span or node.span, node.span) for node in document.root.walk() if node.keys]
    spans += [(command.span, command.span) for command in document.commands]
    for begin, whole in spans:
        if begin.path == path == whole.path:
            blocks[begin.line] = max(blocks.get(begin.line, 0), whole.end_line)
    return blocks


def _followers(path: str, text: str) -> list[int]:
    """For each line, from 0, the first one at or below it that is neither blank nor a comment alone."""
    lines = source_lines(text, path)
    followers = [len(lines) + 1] * (len(lines) + 2)
    for number in range(len(lines), 0, -1):
        line = lines[number - 1].lstrip()
        followers[number] = followers[number + 1] if not line or line.startswith("#") else number
    return followers


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
    codes = {code for directive in suppressions.directives for code in directive.codes}
    all_judged = {code for code in codes if _all_judged(code, known, judged)}
    lines = source_lines(suppressions.text, suppressions.path)
    for directive in suppressions.directives:
        idle = [code for code in directive.codes if (directive.span, code) not in used and code in all_judged]
        if idle:
            found.append(
                Finding(
                    *UNUSED,
                    WARNING,
                    f"{directive.form}[{', '.join(idle)}] hides nothing",
                    directive.span,
                    key=",".join(idle),
                    fixes=_removal(suppressions.path, lines, directive, idle),
                )
            )
    return found


def _all_judged(code: str, known: set[str], judged: Sequence[RuleInfo]) -> bool:
    from memlint.rules_registry import built_in

    named = [info for info in (*built_in(), *judged) if specificity(code, info)]
    return bool(named) and all(info.code in known for info in named)


def _removal(path: str, lines: Sequence[str], directive: Directive, idle: Sequence[str]) -> tuple[Fix, ...]:
    comment = directive.comment
    if comment is None or directive.form in ("disable", "enable"):
        return ()  # JSON text and ranges have more than one place to change
    line = comment.line
    source = lines[line - 1]
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
