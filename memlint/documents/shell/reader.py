"""Shell scripts: the training commands that they would run, with every value where it was written.

A real grammar (tree-sitter-bash) and an abstract evaluation of it: nothing is executed, no file is opened and the
environment is not read. What only running the script would tell is :class:`Unresolved`:

- a variable that the script does not set belongs to the environment; its default in ``${X:-4}`` is taken;
- where a condition is not known, both branches are followed, and a variable on which they disagree is unresolved;
- a loop over up to 16 known words is followed word by word; over more, or over unknown ones, once with its
  variable unresolved; an option loop over ``$#`` not at all (the script without arguments is what is read);
- a job of Slurm that is an array of up to 16 tasks is followed task by task.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain

from memlint import work
from memlint.documents import slurm
from memlint.documents.lines import line_starts, position
from memlint.documents.node import Call, Command, Document, Fault, Node, Span
from memlint.documents.shell import syntax as shell_syntax
from memlint.documents.shell.script import Script
from memlint.documents.shell.tree import parsed
from memlint.documents.shell.words import Source, Stop

MAX_CHARACTERS = 2_000_000
# Of a file's work: what was found before a script ran out of it can still be estimated.
SCRIPT_STEPS = work.FILE_STEPS // 2
# What somebody has to fill in before bash takes the script: DATA_PATH=<path and prefix>_text. The rest of it is read.
# Before an option (--data <DATA_PATH> --epochs 3) bash would take it, and write into a file of the option's name.
_TO_FILL_IN = re.compile(
    r"(^[ \t]*(?:export[ \t]+)?\w+=)(<[A-Za-z](?=[^<>|&;$ \n]* )[^<>|&;$\n]*>)"
    r"|([ \t=])(<[A-Za-z](?:[\w ./-]{0,80}[\w.-])?>)(?=[ \t]+(?:\\\n[ \t]*){0,3}--)",
    re.MULTILINE,
)


def read(path: str, text: str, call: Call | None = None) -> Document:
    """Read a script. Faults of its syntax are in ``faults`` (MEM003); what can be read of it is read all the same.

    call  of another script, which gives it its arguments and variables
    """
    starts = line_starts(text, ".sh")
    root = Node({}, Span(path, 1, 1, 1, 1))
    if len(text) > MAX_CHARACTERS:
        fault = Fault("MEM003", f"a script of {len(text):,} characters is too long to read", Span(path, 1, 1, 1, 1))
        return Document(path, "shell", text, root, (fault,), (), {path: text})
    # A checkout on Windows: the line goes on where it does in the repository. As long as before, so places stay.
    readable = _TO_FILL_IN.sub(_not_known, text.replace("\\\r\n", " \\\n"))
    tree, source = parsed(Source(path, starts, readable))
    faults = _syntax_faults(path, starts, readable)  # a template is whole once it is filled in
    scripts: list[Script] = []
    variables: dict[str, Node] = {}
    try:
        with work.limited(SCRIPT_STEPS):
            tasks: list[slurm.Setting | None] = [*slurm.tasks(text)]
            for task in tasks or [None]:
                script = Script(source)
                scripts.append(script)
                script.submitted(task, call)
                if call is not None:
                    script.given(call)
                script.statements(tree.root_node, source)
                script.uncalled_functions()
                variables = variables or script.variables()
    except (Stop, work.OutOfWork) as stop:
        faults.append(_unfinished(path, str(stop)))
    except RecursionError:
        faults.append(_unfinished(path, "it is nested too deeply"))
    root = Node(variables, Span(path, 1, 1, 1, 1))
    found = tuple(scripts[0].found) if len(scripts) == 1 else _of_tasks(script.found for script in scripts)
    calls = tuple(scripts[0].calls) if scripts else ()
    return Document(path, "shell", text, root, tuple(dict.fromkeys(faults)), found, {path: text}, calls=calls)


def _of_tasks(found: Iterable[list[Command]]) -> tuple[Command, ...]:
    """What the tasks of a job start, each once. What several of them start stands where the first one does."""
    commands: dict[tuple[object, ...], Command] = {}
    for command in chain.from_iterable(found):
        words = repr([word.plain() for word in (command.program, *command.words)])
        said = repr([(name, node.plain()) for name, node in command.environment.items() if name != slurm.TASK])
        commands.setdefault((command.span, words, said), command)
    return tuple(commands.values())


def _not_known(match: re.Match[str]) -> str:
    before, word = (match[1], match[2]) if match[1] is not None else (match[3], match[4])
    return before + "$" + "_" * (len(word) - 1)


def _syntax_faults(path: str, starts: list[int], text: str) -> list[Fault]:
    try:
        broken = shell_syntax.judge(text).broken
    except RecursionError:
        return [_unfinished(path, "it is nested too deeply")]
    return [] if broken is None else [Fault("MEM003", str(broken), _rest_of_line(path, starts, text, broken.at))]


def _unfinished(path: str, why: str) -> Fault:
    return Fault("MEM011", f"the rest of the script was not followed: {why}", Span(path, 1, 1, 1, 1))


def _rest_of_line(path: str, starts: list[int], text: str, at: int) -> Span:
    """From an offset to the end of its line; the end of a text is on its last line that says something."""
    at = min(at, max(len(text.rstrip()) - 1, 0))
    end = text.find("\n", at)
    length = len(text[at : end if end >= 0 else None].rstrip())
    return Span(path, *position(starts, at), *position(starts, at + length))
