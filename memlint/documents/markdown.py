"""Markdown: the training commands that its code blocks tell a reader to run.

A document is read as the shell script that its blocks of shell make, with every other character blank, so that a
command stands in the script where it stands in the document. A block whose syntax bash would refuse (output, a listing
of something else) is none, and what is wrong with it is not said: a document is not a program.

Blocks are found by the rules of CommonMark 0.31.2, section 4.5 (https://spec.commonmark.org/0.31.2/#fenced-code-blocks),
with any indentation, as a block may stand in a list. A block that is only indented (section 4.4) is looked at where one
of its lines starts a program: a list's second paragraph is indented as well.
"""

from __future__ import annotations

import re

from memlint import work
from memlint.documents import quoted
from memlint.documents.lines import lines_of
from memlint.documents.node import Document

# Names of languages (the first word behind the fence) that stand for a shell, as GitHub's Linguist spells them; a block
# without one is a shell's if it can be.
LANGUAGES = frozenset(("", "bash", "sh", "shell", "zsh", "ksh", "shell-script", "shellscript"))
# Names that authors give such a block, and Linguist knows no language by.
ALSO = frozenset(("commandline", "command-line", "cmdline"))
SESSIONS = frozenset(("console", "bash-session", "shell-session", "sh-session", "shellsession", "terminal"))

# Blocks that authors give this name (for its colours, or for want of another), and that hold commands, which no Python
# could begin with.
_MISNAMED = frozenset(("python", "py", "text", "txt", "plain", "plaintext", "none", "code", "cmd", "powershell", "cli"))
_NEARLY = ("bash", "shell")  # ``bashs``
_COMMAND = re.compile(
    r"[ \t]*(?:[A-Z_]+=\S+ +)*(?:python3?|torchrun|accelerate launch|deepspeed|swift) +[\w./-]*[A-Za-z]"
)

# Directives of Sphinx whose argument is the language: ```{code-block} bash
_DIRECTIVES = frozenset(("code-block", "code", "sourcecode"))
# What a reader fills in (<path to the model>, {number of GPUs}); a shell would take it for redirections and words.
_TO_FILL_IN = re.compile(r"<[A-Za-z](?:[^<>|&;$\n]*[^<>|&;$\s])?>|(?<!\$)\{[A-Za-z]\w*[,;:]?(?: [\w.-]+[,;:]?)* \w+\}")

_INDENTED = re.compile(r"(?: {4}|\t)[ \t]*\S")
_FENCE = re.compile(r"[ \t>]*(`{3,}|~{3,})[ \t]*([^\n`]*)\n?$")
# An entry of a list that is nothing but a command with a prompt: - `$ scripts/train.sh gpt2`
_ENTRY = re.compile(r"([ \t>]*(?:[-*+]|\d{1,9}[.)])[ \t]+`\$ )([^`]+)`[ \t]*\r?\n?$")
_PROMPT = re.compile(r"[ \t]*(?:\([\w .-]*\) ?)?[$%#>] (?=\S)")
# What a training command cannot do without: a document without it is none of ours, and is not parsed.
_LAUNCHES = re.compile(r"\bpython|\btorchrun|\baccelerate\b|\bdeepspeed\b|\.py\b|train|tune\b")


# A word that bash would take for the name of a command, ``[Output]``, and the grammar for a test that never ends: all
# blocks behind it would be its condition. A listing of something else, where nothing is started.
_IN_BRACKETS = re.compile(r"^[ \t]*\[(?![\[\s])", re.MULTILINE)


def read(path: str, text: str) -> Document:
    """The commands of a document's shell blocks. ``text`` of the result is the document's own, its faults none."""
    script = blocks(text) if _LAUNCHES.search(text) else ""
    return quoted.read(path, text, script, told=True)


def blocks(text: str) -> str:
    """The shell blocks of a document, in their places; every other character is a space. Raises OutOfWork."""
    work.spend(len(text) // quoted.CHARACTERS_PER_STEP, "looking for commands in a document")
    lines = lines_of(text, keepends=True)
    shown = [False] * len(lines)
    at = 0
    while at < len(lines):
        opened = _FENCE.match(lines[at].replace("\r", ""))
        at += 1
        if opened is None:
            at = max(at, _indented(lines, at - 1, shown))
            if (entry := _ENTRY.match(lines[at - 1])) is not None:
                line = quoted.substituted(entry[2], _TO_FILL_IN)
                if quoted.is_shell(line):
                    ending = lines[at - 1][len(lines[at - 1].rstrip("\r\n")) :]
                    lines[at - 1], shown[at - 1] = " " * entry.end(1) + line + ending, True
            continue
        fence = opened[1]
        begin = end = at
        while end < len(lines) and not _closes(lines[end], fence):
            end += 1
        at = end + 1
        language = _language(opened[2])
        if language in SESSIONS:
            _session(lines, begin, end)
        elif language not in (LANGUAGES | ALSO) and not (_may_be_misnamed(language) and _starts(lines, begin, end)):
            continue
        else:
            _prompts(lines, begin, end)
        for index in range(begin, end):
            lines[index] = quoted.substituted(lines[index], _TO_FILL_IN)
        block = "".join(lines[begin:end])
        work.spend(quoted.BLOCK + len(block) // quoted.CHARACTERS_PER_STEP, "looking for commands in a document")
        if _IN_BRACKETS.search(block) and not _LAUNCHES.search(block):
            continue
        if quoted.is_shell(block):
            shown[begin:end] = [True] * (end - begin)
    return "".join(line if kept else quoted.blank(line) for line, kept in zip(lines, shown))


_TREES = frozenset(("yaml", "yml"))
MENTIONED = 8  # lines before a block in which a document says which file it shows


def shown(text: str, name: str) -> str:
    """The block of YAML that a document shows as a file of this name, in its place, every other character blank; "" for
    none, and for several. The name stands in the block's first line or in those before it. Raises OutOfWork."""
    work.spend(len(text) // quoted.CHARACTERS_PER_STEP, "looking for a config in a document")
    lines = lines_of(text, keepends=True)
    found: list[tuple[int, int]] = []
    at = last = 0
    while at < len(lines):
        opened = _FENCE.match(lines[at].replace("\r", ""))
        at += 1
        if opened is None:
            continue
        begin = end = at
        while end < len(lines) and not _closes(lines[end], opened[1]):
            end += 1
        told = "".join(lines[max(last, begin - 1 - MENTIONED) : begin + 1])
        if _language(opened[2]) in _TREES and name in told:
            found.append((begin, end))
        at = last = end + 1
    if len(found) != 1:
        return ""
    begin, end = found[0]
    return "".join(line if begin <= at < end else quoted.blank(line) for at, line in enumerate(lines))


def _indented(lines: list[str], begin: int, shown: list[bool]) -> int:
    """Show an indented block that begins here and starts a program; where it ends, ``begin`` for none. Raises
    OutOfWork."""
    if not _INDENTED.match(lines[begin]) or (begin and lines[begin - 1].strip()):
        return begin
    end = begin + 1
    while end < len(lines) and (_INDENTED.match(lines[end]) or not lines[end].strip()):
        if _FENCE.match(lines[end].replace("\r", "")):  # a block of its own, in a list
            break
        end += 1
    if not _starts(lines, begin, end):
        return end
    lines[begin:end] = [quoted.substituted(line, _TO_FILL_IN) for line in lines[begin:end]]
    block = "".join(lines[begin:end])
    work.spend(quoted.BLOCK + len(block) // quoted.CHARACTERS_PER_STEP, "looking for commands in a document")
    if quoted.is_shell(block):
        shown[begin:end] = [True] * (end - begin)
    return end


def _may_be_misnamed(language: str) -> bool:
    return language in _MISNAMED or language.startswith(_NEARLY)


def _starts(lines: list[str], begin: int, end: int) -> bool:
    """Whether some line starts a program."""
    return any(_COMMAND.match(line) for line in lines[begin:end])


def _language(said: str) -> str:
    """The language that stands behind a fence, as Markdown or as Sphinx has it; "" where none does."""
    words = said.strip().lower().split()
    while words and words[0].strip("{}") in _DIRECTIVES:
        words = words[1:]
    return words[0].strip("{}.").split(",")[0] if words else ""


def _closes(line: str, fence: str) -> bool:
    bare = line.strip(" \t\r\n>")
    return len(bare) >= len(fence) and not bare.strip(fence[0])


def _prompts(lines: list[str], begin: int, end: int) -> None:
    """Take the prompts away in front of commands. ``# `` is a comment in a script, and a prompt in a session only."""
    for at in range(begin, end):
        prompt = _PROMPT.match(lines[at])
        if prompt is not None and not prompt[0].strip().endswith(("#", ">")):
            lines[at] = " " * prompt.end() + lines[at][prompt.end() :]


def _session(lines: list[str], begin: int, end: int) -> None:
    """Of a session, what is typed: lines with a prompt, and those that they go on in."""
    goes_on = False
    for at in range(begin, end):
        prompt = _PROMPT.match(lines[at])
        if prompt is None and not goes_on:
            lines[at] = quoted.blank(lines[at])
            continue
        if prompt is not None and not goes_on:
            lines[at] = " " * prompt.end() + lines[at][prompt.end() :]
        goes_on = lines[at].rstrip("\r\n").endswith("\\")
