"""Shell scripts: the training commands that they would run, with every value where it was written.

A real grammar (tree-sitter-bash) and an abstract evaluation of it: nothing is executed, no file is opened and the
environment is not read. What only running the script would tell is :class:`Unresolved`:

- a variable that the script does not set belongs to the environment; its default in ``${X:-4}`` is taken;
- where a condition is not known, both branches are followed, and a variable on which they disagree is unresolved;
- a loop over up to 16 known words is followed word by word; over more, or over unknown ones, once with its
  variable unresolved; an option loop over ``$#`` not at all (the script without arguments is what is read).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from memlint import work
from memlint.documents.lines import line_starts, position
from memlint.documents.node import Document, Fault, Node, Span
from memlint.documents.shell_expansion import Stop, parsed
from memlint.documents.shell_script import Script
from memlint.documents.shell_words import Source, text_of

# Words that the grammar takes for a command where bash does not.
_RESERVED = frozenset(("then", "else", "elif", "fi", "do", "done", "esac", "}"))
_OPENING = frozenset(("{", "do", "then", "else"))
_CLOSING = frozenset(("}", "done", "fi", "elif_clause", "else_clause"))
# Where statements stand in statements.
_STATEMENTS = frozenset(
    (
        *("program", "list", "pipeline", "compound_statement", "subshell", "do_group", "redirected_statement"),
        *("if_statement", "elif_clause", "else_clause", "for_statement", "c_style_for_statement", "while_statement"),
        *("case_statement", "case_item", "function_definition", "negated_command"),
    )
)

MAX_CHARACTERS = 2_000_000
# Of a file's work: what was found before a script ran out of it can still be estimated.
SCRIPT_STEPS = work.FILE_STEPS // 2
MAX_FAULTS = 50  # of syntax; bash ends at the first


def read(path: str, text: str) -> Document:
    """Read a script. Faults of its syntax are in ``faults`` (MEM003); what can be read of it is read all the same."""
    starts = line_starts(text, ".sh")
    root = Node({}, Span(path, 1, 1, 1, 1))
    if len(text) > MAX_CHARACTERS:
        fault = Fault("MEM003", f"a script of {len(text):,} characters is too long to read", Span(path, 1, 1, 1, 1))
        return Document(path, "shell", text, root, (fault,), (), {path: text})
    # A checkout on Windows: the line goes on where it does in the repository. As long as before, so places stay.
    tree, source = parsed(Source(path, starts, text.replace("\\\r\n", " \\\n")))
    faults = list(islice(_syntax_faults(tree.root_node, source), MAX_FAULTS))
    script = Script(source)
    variables: dict[str, Node] = {}
    try:
        with work.limited(SCRIPT_STEPS):
            script.submitted()
            script.statements(tree.root_node, source)
            script.uncalled_functions()
            variables = script.variables()
    except (Stop, work.OutOfWork) as stop:
        faults.append(_unfinished(path, str(stop)))
    except RecursionError:
        faults.append(_unfinished(path, "it is nested too deeply"))
    root = Node(variables, Span(path, 1, 1, 1, 1))
    return Document(path, "shell", text, root, tuple(faults), tuple(script.found), {path: text})


def _unfinished(path: str, why: str) -> Fault:
    return Fault("MEM011", f"the rest of the script was not followed: {why}", Span(path, 1, 1, 1, 1))


def _syntax_faults(root: Any, source: Source) -> Iterator[Fault]:
    end_of_text = len(source.text.rstrip("\r\n \t"))
    stack = [root]
    while stack:
        node = stack.pop()
        work.spend(3, "looking for faults of syntax")
        start, end = node.start_byte, node.end_byte
        if node.is_missing:
            yield Fault("MEM003", f"{node.type} is missing here", _first_line(source, start, end))
        elif node.type == "ERROR":
            text = source.text[start:end]
            if text.strip() in ("", "\\") and end >= end_of_text:
                continue  # a backslash at the end of the file, which bash accepts
            excerpt = _excerpt(text_of(source.slice(start, end)))
            yield Fault("MEM003", f"this is not shell syntax: {excerpt}", _first_line(source, start, end))
        elif node.type == "command":
            if node.has_error:
                stack.extend(reversed(node.children))
            first = node.children[0]
            name = source.text[first.start_byte : first.end_byte] if first.type == "command_name" else ""
            if name in _RESERVED:
                message = f"{name} has nothing to close or go on with here"
                yield Fault("MEM003", message, source.span(start, start + len(name)))
        elif node.has_error or node.type in _STATEMENTS:
            stack.extend(reversed(node.children))
            empty = None if node.has_error else _empty_body(node)
            if empty is not None:
                message = f"there is no command after {empty.type}"
                yield Fault("MEM003", message, source.span(empty.start_byte, empty.end_byte))


def _empty_body(node: Any) -> Any:
    """The word after which bash wants a command and finds none; None where that is not so."""
    opening = None
    for child in node.children:
        if child.type in _OPENING:
            opening = child
        elif opening is not None and child.type in _CLOSING:
            return opening
        elif child.is_named and child.type != "comment":
            opening = None
    return opening if node.type in ("elif_clause", "else_clause") else None


def _first_line(source: Source, start: int, end: int) -> Span:
    """The first line of a text; where it is empty, the place where it would be."""
    text = source.text[start:end]
    lead = len(text) - len(text.lstrip())
    if lead < len(text):
        stop = text.find("\n", lead)
        return source.span(start + lead, start + stop if stop >= 0 else end)
    line, column = position(source.starts, source.offset(start))
    return Span(source.path, line, column, line, column)


def _excerpt(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 40 else words[:37] + "..."
