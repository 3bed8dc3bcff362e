"""Commands among other text: notebooks, makefiles, Dockerfiles, workflows, docstrings. Which are found, with which
values, and that each value stands where the reader finds it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlint.documents import remarks
from memlint.documents.load import load
from memlint.documents.node import Document, Node

COMMAND = "torchrun --nproc_per_node 8 train.py --lr 0.1"


def words(document: Document) -> Iterator[Node]:
    for command in document.commands:
        for word in (command.program, *command.words):
            yield from word.value.values() if isinstance(word.value, dict) else (word,)


def said(document: Document) -> list[str]:
    """The words of all commands; ``?`` for one that is not known."""
    return ["?" if word.is_unresolved else str(word.value) for word in words(document)]


def notebook(*lines: str, kind: str = "code") -> str:
    source = [line + "\n" for line in lines[:-1]] + list(lines[-1:])
    return json.dumps({"cells": [{"cell_type": kind, "metadata": {}, "source": source}], "nbformat": 4}, indent=1)


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        pytest.param("a.ipynb", notebook("!python train.py --lr 0.1"), "train.py --lr 0.1", id="a line of a notebook"),
        pytest.param(
            "a.ipynb",
            notebook("x = 1", "!python train.py \\", "  --lr 0.1", "y = 2"),
            "train.py --lr 0.1",
            id="a line of a notebook that goes on",
        ),
        pytest.param(
            "a.ipynb",
            notebook("%%bash", "cd a", "python train.py --lr 0.1"),
            "train.py --lr 0.1",
            id="a cell of a notebook that is bash",
        ),
        pytest.param(
            "a.ipynb",
            notebook('!python train.py --name "a b" --c 3'),
            "train.py --name a b --c 3",
            id="quotes, which JSON escapes",
        ),
        pytest.param(
            "a.ipynb",
            notebook("!python train.py --model {model_id} --c 3"),
            "train.py --model ? --c 3",
            id="a variable of Python's is not known",
        ),
        pytest.param("a.ipynb", notebook("!python train.py --lr 0.1", kind="markdown"), "", id="prose of a notebook"),
        pytest.param(
            "a.ipynb",
            notebook("!python train.py --a '", "!python b.py --c 1"),
            "b.py --c 1",
            id="a command that bash would refuse spoils no other",
        ),
        pytest.param("a.ipynb", "{", "", id="no notebook at all"),
        pytest.param("Makefile", "train:\n\tpython train.py --lr 0.1\n", "train.py --lr 0.1", id="a recipe"),
        pytest.param(
            "Makefile", "train:\n\t@-python train.py --lr 0.1 # so\n", "train.py --lr 0.1", id="a silent recipe"
        ),
        pytest.param(
            "Makefile",
            "N := 8\nFLAGS ?= --b 2\nt:\n\tpython t.py --a $(N) ${FLAGS}\n",
            "t.py --a 8 --b 2",
            id="variables of make",
        ),
        pytest.param(
            "Makefile",
            "FLAGS = --b 2\nFLAGS += --c $(D)\nD = 4\nt:\n\tpython t.py $(FLAGS)\n",
            "t.py --b 2 --c ?",
            id="a variable that is added to",
        ),
        pytest.param(
            "Makefile",
            "t:\n\tfor i in 1 2; do python t.py --a $$i --b 1; done\n",
            "t.py --a 1 --b 1 t.py --a 2 --b 1",
            id="a variable of the shell's",
        ),
        pytest.param(
            "Makefile",
            "ifdef X\nN = 8\nendif\nt:\n\tpython t.py --a $(N)\n",
            "t.py --a ?",
            id="what depends on a condition is not known",
        ),
        pytest.param(
            "Makefile",
            "N = $(shell nproc)\nt:\n\tpython t.py --a $(N) --b $@ --c $<\n",
            "t.py --a ? --b ? --c ?",
            id="nor what make works out",
        ),
        pytest.param("Makefile", "t:\n\tpython t.py \\\n\t  --a 1\n", "t.py --a 1", id="a recipe that goes on"),
        pytest.param(
            "justfile",
            "n := '8'\nt:\n    python t.py --a {{n}} --b {{ n + m }}\n",
            "t.py --a 8 --b ?",
            id="a recipe of just",
        ),
        pytest.param(
            "Dockerfile",
            "FROM x\nENV N=8\nCMD python t.py --a $N \\\n  --b 1\n",
            "t.py --a 8 --b 1",
            id="a command of an image",
        ),
        pytest.param(
            "Dockerfile", 'ENTRYPOINT ["python", "t.py", "--a", "1 2"]\n', "t.py --a 1 2", id="in its exec form"
        ),
        pytest.param(
            ".github/workflows/a.yml",
            "jobs:\n  a:\n    steps:\n      - run: python t.py --a ${{ matrix.a }} --b 1\n",
            "t.py --a ? --b 1",
            id="a step of a workflow",
        ),
        pytest.param(
            ".github/workflows/a.yml",
            "steps:\n- name: x\n  run: |\n    cd a\n    python t.py \\\n      --a 1\n- uses: b\n",
            "t.py --a 1",
            id="a step of several lines",
        ),
        pytest.param(
            ".github/workflows/a.yml",
            "steps:\n- run: >-\n    python t.py\n    --a 1\n",
            "t.py --a 1",
            id="a step whose lines are folded",
        ),
        pytest.param(
            ".gitlab-ci.yml",
            "job:\n  script:\n  - python t.py --a 1\n  - echo\n  after: 1\n",
            "t.py --a 1",
            id="a job of GitLab's",
        ),
        pytest.param(
            "job.yaml",
            "resources:\n  cloud: gcp\nsetup: |\n  python s.py --a 0\nrun: |\n  set -e\n  python t.py --a 1\n",
            "t.py --a 1",
            id="a job of SkyPilot's",
        ),
        pytest.param(
            "mcli.yaml",
            "command: |\n  cd a\n  python t.py --a 1\ncompute:\n  gpus: 8\n",
            "t.py --a 1",
            id="a job of mcli's",
        ),
        pytest.param(
            "beaker.yaml",
            "version: v2\ntasks:\n  - name: a\n    command: ['/bin/sh', '-c']\n    arguments: ['python t.py --a 1']\n",
            "t.py --a 1",
            id="a task of Beaker's",
        ),
        pytest.param(
            "beaker.yaml",
            "tasks:\n  - command: [\n      '/bin/sh', '-c'\n    ]\n"
            "    arguments: ['A=\"/b:$A\" python t.py\n      --a 1\n    ']\n"
            "    resources:\n      gpuCount: 4\n",
            "t.py --a 1",
            id="what its shell is told over several lines",
        ),
    ],
)
def test_commands_among_other_text(path: str, text: str, found: str) -> None:
    document = load(path, text)
    assert " ".join(said(document)) == found
    assert document.faults == ()


def test_a_task_whose_command_is_no_shell_is_no_job() -> None:
    text = "tasks:\n  - command: [python, t.py]\n    arguments: ['--a 1']\n"
    assert load("a.yaml", text).root.get("tasks") is not None


def test_a_yaml_that_takes_no_machines_is_no_job() -> None:
    assert load("a.yaml", "run: |\n  python t.py --a 1\n").root.get("run") is not None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param('"""Train.\n\n    ' + COMMAND + '\n"""\nimport a\n', "train.py --lr 0.1", id="in a docstring"),
        pytest.param('# Licence\n"""\n$ ' + COMMAND + '\n"""\n', "train.py --lr 0.1", id="behind a prompt"),
        pytest.param("'''python train.py --lr 0.1'''\n", "train.py --lr 0.1", id="on its only line"),
        pytest.param('"""\n```bash\nN=8\npython t.py --a $N\n```\n"""\n', "t.py --a 8", id="in a block of a docstring"),
        pytest.param("# python train.py \\\n#   --lr 0.1\n", "train.py --lr 0.1", id="in comments"),
        pytest.param("# a\n\n" * 3000 + "x = 1\n", "", id="not in a program with many comments"),
        pytest.param('"""python is a language."""\n', "", id="prose"),
        pytest.param("x = 1\n'''\npython t.py --a 1\n'''\n", "", id="a text that is no docstring"),
    ],
)
def test_commands_of_remarks(text: str, found: str) -> None:
    document = load("a.py", text)
    assert " ".join(said(remarks.read(document))) == found


PATHS = ["a.ipynb", "Makefile", "justfile", "Dockerfile", ".github/workflows/a.yml"]


LINES = [COMMAND, "\t" + COMMAND, "N = 8", "RUN python t.py --a $N", "\tpython t.py --a $$b $(N) --c 1"]
LINES += ["- run: python t.py --a 1", "  run: |", "    python t.py --b {{x}} --c 2", "ifdef N", "'", "\\"]


@pytest.mark.parametrize("path", PATHS)
@given(lines=st.lists(st.sampled_from(LINES)))
def test_a_value_stands_where_the_text_has_it(path: str, lines: list[str]) -> None:
    text = notebook(*("!" + line for line in lines)) if path.endswith("ipynb") else "\n".join(lines)
    for word in words(load(path, text)):
        span = word.span
        if word.is_unresolved or span.line != span.end_line:
            continue
        there = text.split("\n")[span.line - 1][span.column - 1 : span.end_column - 1]
        assert str(word.value) in there
