"""Whole scripts: which commands they run, with which words and which variables, against a real bash and in words."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from memlint.documents.node import Command, Document, Node, Unresolved
from memlint.documents.shell import reader as shell
from tests.documents.bash import BASH, needs_bash
from tests.effort import paid_for


def said(node: Node) -> str:
    """A value; where it is not known, the reason in angle brackets."""
    if isinstance(node.value, dict):
        return " ".join(f"{name}={said(inner)}" for name, inner in node.value.items())
    return f"<{node.value.reason}>" if isinstance(node.value, Unresolved) else str(node.value)


def line(command: Command) -> str:
    """The variables, the launchers with their options, the program and the words of a command."""
    parts = [f"{name}={said(node)}" for name, node in sorted(command.environment.items())]
    for launcher in command.launchers:
        assert isinstance(launcher.options.value, dict)
        options = ",".join(f"{name}={said(node)}" for name, node in launcher.options.value.items())
        parts.append(f"{launcher.name}({options})")
    return " ".join([*parts, said(command.program), *map(said, command.words)])


def read(script: str) -> Document:
    return shell.read("train.sh", script)


def lines(script: str) -> list[str]:
    document = read(script)
    assert document.faults == ()
    return [line(command) for command in document.commands]


# ------------------------------------------------------------------------------------------------ as in bash

# A python that notes its variables and its words.
_PROGRAM = """#!/bin/sh
said=
for name in A B C D E F SLURM_NNODES; do
  eval "[ -n \\"\\${$name+x}\\" ] && said=\\"\\$said\\$name=\\$$name \\""
done
for word; do said="$said$word "; done
printf '%s\\0' "${said% }" >> "$NOTED"
"""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where scripts run: with a python that only notes, and files to be sourced."""
    folder = tmp_path_factory.mktemp("bash")
    (folder / "python").write_text(_PROGRAM)
    (folder / "python").chmod(0o755)
    return folder


def in_bash(script: str, folder: Path) -> list[str]:
    assert BASH is not None
    noted = folder / "noted"
    noted.write_bytes(b"")
    environment = {"PATH": f"{folder}{os.pathsep}{os.defpath}", "NOTED": str(noted)}
    subprocess.run([BASH, "-c", script], env=environment, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL)
    return noted.read_text().split("\0")[:-1]


def shows(*names: str) -> str:
    """A command that shows variables; ``-`` for one that is not set."""
    return "python train.py " + " ".join(f'--{name} "${{{name}--}}"' for name in names)


FOLLOWED = {
    # variables
    "an exported variable": f"export A=1\nB=2\n{shows('A', 'B')}",
    "a variable that is exported later": f"A=1\nexport A\nA=2\n{shows('A')}",
    "several that are exported": f"export A=1 B C=3\nB=2\n{shows('A', 'B', 'C')}",
    "declare -x": f"declare -x A=1\ndeclare B=2\ntypeset -x C=3\n{shows('A', 'B', 'C')}",
    "a value with an x in it is not exported": f"declare A=x\n{shows('A')}",
    "declare with several switches": f"declare -i -r -x A=1\n{shows('A')}",
    "declare -gx": f"f() {{ declare -gx B=1; }}\nf\n{shows('A')}",
    "readonly is not exported": f"readonly A=1\n{shows('A')}",
    "export -n": f"export A=1 B=2\nexport -n A\n{shows('A', 'B')}",
    "export and unset": f"export A=1\nunset A\n{shows('A')}\nA=2\n{shows('A')}",
    "an array is not exported": "export A=(1 2)\npython train.py --a ${A[1]}",
    "an exported scalar stays exported": f"export A=1\nA+=2\n{shows('A')}\nB=1\nexport B\nB=2\n{shows('B')}",
    "set -a": f"A=0\nset -a\nB=1\nset +a\nC=2\n{shows('A', 'B', 'C')}",
    "set -o allexport": f"set -o allexport\nB=1\n{shows('B')}",
    "set -o of something else": f"set -o pipefail\nB=1\n{shows('B')}",
    "set -ea": f"set -ea\nB=1\n{shows('B')}",
    "set -e": f"set -e\nB=1\n{shows('B')}",
    "set --all is no option": f"set -- -a\nB=1\n{shows('B')} $1",
    "a variable in front of a command": f"A=1 B=2 {shows('C')}\n{shows('A')}",
    "in front of a command that is not python": f"A=1 true\n{shows('A')}",
    "a variable of a variable in front of a command": f"A=1\nB=$A {shows('A')}",
    "env": "env A=1 B=2 python train.py --a 1",
    "variables in front of env": "C=0 env A=1 python train.py --a 1",
    "an assignment that uses itself": f"A=1\nA=$A$A\nA=$A$A\n{shows('A')}",
    "an element in the middle": 'A=(a b c)\nA[1]=x\npython train.py "${A[@]}"',
    "an element that is added to": 'A=(a b)\nA[1]+=x\nA[0]+=y\npython train.py "${A[@]}"',
    "a scalar that gets an element": 'A=a\nA[1]=b\nA[1]+=c\npython train.py "${A[@]}"',
    "a new array by one element": 'A[0]=a\npython train.py "${A[@]}" $A',
    "an array in place of a scalar": 'A=a\nA=(b c)\npython train.py "${A[@]}" $A',
    "a scalar that becomes an array": 'A=a\nA+=(b c)\npython train.py "${A[@]}"',
    "an array that gets more": 'A=(a)\nA+=(b c)\nA+=(d)\npython train.py "${A[@]}" ${A[3]}',
    "an array where there was nothing": 'A+=(a b)\npython train.py "${A[@]}"',
    "a scalar where there is an array": 'A=(a b)\nA=x\npython train.py "${A[@]}"',
    "text added to an array": 'A=(a b)\nA+=x\npython train.py "${A[@]}"',
    "an array of arrays": 'A=(a "b c")\nB=("${A[@]}" d ${A[1]})\npython train.py "${B[@]}"',
    "keys": "declare -A A=([x]=1 ['y z']=2)\nA[w]=3\nA[x]+=0\npython train.py ${A[x]} \"${A['y z']}\" ${A[w]}",
    "a key in a variable": "declare -A A\nB=k\nA[$B]=1\npython train.py ${A[k]} ${A[$B]}",
    "keys among plain elements": "A=(a [3]=d b)\npython train.py ${A[0]} ${A[3]}",
    "an index that is computed": "A=(a b c)\nB=1\nA[B+1]=x\npython train.py ${A[2]} ${A[B]}",
    "a new array by a computed index": 'B=2\nA[B+1]=x\nA[$B]=y\npython train.py "${A[3]}" ${A[2]} ${A[$B+1]}',
    "an empty array by a computed index": 'B=2\nA=()\nA[B]=x\npython train.py "${A[2]}" ${A[B]} "${A[0]}"',
    "a key that could be computed": (
        'B=2\ndeclare -A A\nA[B]=x\nA[b-c]=y\npython train.py "${A[B]}" ${A[b-c]} "${A[2]}"'
    ),
    "keys that are declared": 'typeset -A A=([B]=x)\nB=2\nA[B]+=y\npython train.py "${A[B]}" "${A[$B]}"',
    "an empty value": f"A=\nB=''\n{shows('A', 'B')}",
    "local variables": f"A=1\nf() {{ local A=2 B=3; {shows('A', 'B')}; }}\nf\n{shows('A', 'B')}",
    "a local without a value": f"A=1\nf() {{ local A; A=2; {shows('A')}; }}\nf\n{shows('A')}",
    "a local of each call": f"f() {{ local A=$1; [ $1 = 2 ] || f 2; {shows('A')}; }}\nf 1\n{shows('A')}",
    "a local that is changed twice": f"A=0\nf() {{ local A=1; local A=2; A=3; }}\nf\n{shows('A')}",
    "declare in a function": f"A=1\nf() {{ declare A=2; typeset B=3; {shows('A', 'B')}; }}\nf\n{shows('A', 'B')}",
    "readonly in a function is global": f"f() {{ readonly A=2; }}\nf\n{shows('A')}",
    "export in a function is global": f"f() {{ export A=2; }}\nf\n{shows('A')}",
    "a variable that a function sets": f"f() {{ A=2; }}\nf\n{shows('A')}",
    "a word that is exported": 'B=A\nexport "$B=2" "C=3"\npython train.py --a $A --c $C',
    "let": "let A=1+2 B=A*2\npython train.py --a $A --b $B",
    "let of a sum in quotes": "let 'A = 3 + 4'\nB=1\npython train.py --b $B",
    # functions
    "a function and its arguments": 'f() { python train.py "$@" --n $#; }\nf a "b c"\nf',
    "arguments come back": 'set -- x y\nf() { python train.py $1; }\nf a\npython train.py "$@"',
    "a function that is defined again": "f() { python train.py 1; }\nf() { python train.py 2; }\nf",
    "a function with the word": "function f { python train.py $1; }\nfunction g() { python train.py $1; }\nf a\ng b",
    "a function in a function": "f() { g() { python train.py $1; }; g 1; }\nf\ng 2",
    "a function that returns": "f() { python train.py 1; return; python train.py 2; }\nf\npython train.py 3",
    "a function that exits": "f() { python train.py 1; exit; }\nf\npython train.py 3",
    "a function that is called many times": "f() { python train.py $1; }\n" + "".join(f"f {at}\n" for at in range(20)),
    "a function with a variable in front": f"f() {{ {shows('B')}; }}\nf\n",
    "a function's status": (
        "f() { false; }\ng() { true; }\nf && python train.py 1\ng && python train.py 2\nf || python train.py 3"
    ),
    "a name of a function in a variable": 'f() { python train.py "$@"; }\nA=f\n$A 1',
    "shift": (
        "f() { shift; python train.py $@; shift 2; python train.py $@; shift 9; python train.py $#; }\nf 1 2 3 4 5"
    ),
    "set --": "set -- a 'b c' d\npython train.py \"$2\" $# $1\nset -- \npython train.py $#",
    "set -e --": "set -e -- a b\npython train.py $@",
    # lists
    "and": "true && python train.py 1\nfalse && python train.py 2\npython train.py 3",
    "or": "true || python train.py 1\nfalse || python train.py 2",
    "and, then or": (
        "true && false || python train.py 1\nfalse && true || python train.py 2\ntrue && true || python train.py 3"
    ),
    "or, then and": (
        "true || false && python train.py 1\nfalse || false && python train.py 2\nfalse || true && python train.py 3"
    ),
    "a list that sets": f"false && A=1 || A=2\ntrue && B=1 || B=2\n{shows('A', 'B')}",
    "the end in a list": "python train.py 0\ntrue && exit && python train.py 1\npython train.py 2",
    "not": "! false && python train.py 1\n! true && python train.py 2\n! true || python train.py 3",
    "a colon": ": && python train.py 1\n: a b c\npython train.py 2",
    "commands on a line": "A=1; python train.py $A; A=2; python train.py $A",
    "in the background": "python train.py 1 & wait\npython train.py 2",
    # conditions
    "if": "if true; then python train.py 1; fi\nif false; then python train.py 2; fi",
    "else": (
        "if true; then python train.py 1; else python train.py 2; fi\n"
        "if false; then python train.py 3; else python train.py 4; fi"
    ),
    "elif": "".join(
        f"if [ {at} = 1 ]; then python train.py a; elif [ {at} = 2 ]; then python train.py b; "
        f"elif [ {at} = 3 ]; then python train.py c; else python train.py d; fi\n"
        for at in (1, 2, 3, 4)
    ),
    "elif without else": "if false; then python train.py 1; elif false; then python train.py 2; fi\npython train.py 3",
    "the last command decides": (
        "if false; true; then python train.py 1; fi\nif true; false; then python train.py 2; fi"
    ),
    "several commands in a body": "if true; then A=1; B=2; python train.py $A $B; else A=3; python train.py $A; fi",
    "several commands in an elif": "if false; then :; elif false; true; then A=1; python train.py $A; fi",
    "a body that ends the script": "if true; then python train.py 1; exit 0; python train.py 2; fi\npython train.py 3",
    "a body that does not": "if false; then exit; fi\npython train.py 3",
    "if in if": "if true; then if false; then python train.py 1; else python train.py 2; fi; python train.py 3; fi",
    # case
    "case": (
        "A=b\ncase $A in a) python train.py 1;; b) python train.py 2; B=3;; "
        "*) python train.py 4;; esac\npython train.py $B"
    ),
    "case of alternatives": "A=c\ncase $A in a|b) python train.py 1;; c|d) python train.py 2;; esac",
    "case of the second alternative": "A=d\ncase $A in a|b) python train.py 1;; c|d) python train.py 2;; esac",
    "case without a match": "A=z\ncase $A in a) python train.py 1;; esac\npython train.py 2",
    "case of everything": "A=z\ncase $A in a) python train.py 1;; *) python train.py 2;; esac",
    "case with parentheses": "A=b\ncase $A in (a) python train.py 1;; (b) python train.py 2;; esac",
    "case in quotes": 'A="b c"\ncase "$A" in "b c") python train.py 1;; *) python train.py 2;; esac',
    "case with an empty body": "A=a\ncase $A in a) ;; *) python train.py 1;; esac\npython train.py 2",
    "case that ends the script": (
        "A=a\ncase $A in a) python train.py 1; exit;; *) python train.py 2;; esac\npython train.py 3"
    ),
    # loops
    "for": "for A in 1 2 3; do python train.py $A; done\npython train.py $A",
    "for over quoted words": 'for A in "a b" \'c d\' e; do python train.py "$A"; done',
    "for over a variable": "B='x y'\nfor A in $B z; do python train.py $A; done",
    "for over nothing": "for A in; do python train.py $A; done\npython train.py 1",
    "for over an array": 'B=(x "y z")\nfor A in "${B[@]}"; do python train.py "$A"; done',
    "for over sixteen": "for A in {1..16}; do python train.py $A; done",
    "for with break": "for A in 1 2 3; do [ $A = 2 ] && break; python train.py $A; done\npython train.py $A",
    "for with continue": "for A in 1 2 3; do [ $A = 2 ] && continue; python train.py $A; done\npython train.py $A",
    "for with exit": "for A in 1 2 3; do python train.py $A; [ $A = 2 ] && exit; done\npython train.py end",
    "for with return": (
        "f() { for A in 1 2 3; do [ $A = 2 ] && return; python train.py $A; done; }\nf\npython train.py $A"
    ),
    "for over arguments": 'set -- a "b c"\nfor A; do python train.py "$A"; done',
    "for over arguments by name": 'set -- a "b c"\nfor A in "$@"; do python train.py "$A"; done',
    "for that adds up": "B=x C=0\nfor A in 1 2 3; do B+=$A; C=$((C + A)); done\npython train.py $B $C",
    # subshells, groups and pipelines
    "a subshell forgets": f"A=1\n(A=2; {shows('A')})\n{shows('A')}",
    "a subshell that ends": f"(exit; {shows('A')})\n{shows('A')}",
    "a group keeps": f"A=1\n{{ A=2; {shows('A')}; }}\n{shows('A')}",
    "a group that ends": f"{shows('B')}\n{{ exit; }}\n{shows('A')}",
    "a pipeline forgets": f"A=1 | true\nA=2 true | cat\n{shows('A')}",
    "a command in a pipeline": "echo | python train.py 1 | tee x\npython train.py 2 2>&1 | cat",
    "a group in a pipeline": "{ python train.py 1; python train.py 2; } | cat",
    "redirections": (
        "python train.py 1 > x 2>&1\npython train.py 2 < /dev/null >> x\n"
        "> x python train.py 3\npython train.py 4 &> x --a"
    ),
    "a redirection in the middle": "python train.py --a 1 > x --b 2 2> y --c 3",
    "a string that is fed": "python train.py --a 1 <<< 'b c' --d",
    "a heredoc that is fed": "python train.py --a 1 <<EOF --b\nx\nEOF\npython train.py 2",
    # text that is run
    "eval": "A='python train.py'\neval $A 1\neval \"$A\" 2\neval 'A=3; python train.py' '$A'\npython train.py $A",
    "eval of several words": "eval python 'train.py  1' '2'\neval 'B=4 ; ' 'C=5'\npython train.py $B $C",
    "eval that ends": "python train.py 0\neval exit\npython train.py 1",
    "eval of arguments": "set -- a b\neval 'python train.py $1 $#'\neval 'set -- c'\npython train.py $@",
    "bash -c": "A=1\nexport B=2\nbash -c 'python train.py $B ${A:-no}; B=3; exit'\npython train.py $B",
    "bash -c with switches": (
        "bash -e -c 'python train.py 1'\nbash -ec 'python train.py 2'\nsh -c 'python train.py 3' x y"
    ),
    "bash -c has no arguments": "set -- a\nbash -c 'python train.py ${1:-none}'\npython train.py $1",
    "bash -c does not know functions": "f() { python train.py $1; }\nf 1\nbash -c 'python train.py 2'",
    "bash with a heredoc": "A=1\nexport B=2\nbash <<EOF\npython train.py $A $B\nB=3\nexit\nEOF\npython train.py $B",
    "bash with a quoted heredoc": (
        "A=1\nexport B=2\nbash <<'EOF'\npython train.py ${A:-no} $B\nEOF\npython train.py $A"
    ),
    "bash -s with a heredoc": "bash -s <<EOF\npython train.py 1\nEOF",
    "cat into bash": "cat <<EOF | bash\npython train.py 1\nEOF\npython train.py 2",
    "cat into another program": "cat <<EOF | tee x\npython train.py 1\nEOF\npython train.py 2",
    "cat into a path": "cat <<EOF | /bin/bash -e\npython train.py 1\nEOF",
    "a heredoc into a file that is no script": "cat > notes.txt <<EOF\npython train.py 1\nEOF\npython train.py 2",
    "a heredoc into a variable": "read -r -d '' A <<EOF\n  --x 1\n  --y 2\nEOF\npython train.py $A",
    "a heredoc into a variable by one switch": "read -rd '' A <<'EOF'\n a  b \nEOF\npython train.py \"$A\"",
    "an empty heredoc as an array": "read -r -d '' A <<EOF\nEOF\npython train.py --a \"${A[@]}\" x",
    "a condition with a heredoc": "true && cat <<EOF\npython train.py 1\nEOF\npython train.py 2",
    # lines that the grammar joins
    "a pipeline of three, then a redirection": "a | b | c\npython train.py --b 2 2>&1 | cat",
    "a pipeline of three around a command": "true | python train.py 1 | tee x\npython train.py 2 2>&1 | cat",
    "a pipeline of three, then a line between": "a | b | c\n\necho x\npython train.py --b 2 > x\npython train.py 3",
    "a pipeline over three lines": "a |\n  b |\n  c -d\npython train.py --b \\\n 2 > x",
    "a pipeline over three continued lines": "a \\\n  | b \\\n  | c \\\n d\npython train.py --b 2 > x",
    "a redirection in a pipeline of three": "a | b | c 2> y\npython train.py --b 2 > x",
    "assignments in front of a line": "A=1 B=2\nC=3 D=4\npython train.py $A $B $C $D > x",
    # words
    "words behind redirections of a pipeline": "true | python train.py 1 > x --a\n! python train.py 2 2>&1 --b",
    "words behind a redirection in a list": "true && python train.py 1 > x --a",
    "words behind a redirection of a group": "{ python train.py 1; } > x",
    "words behind a heredoc": "python train.py 1 <<EOF --a 2\nx\nEOF\npython train.py 2",
    "a continued line": "python train.py --a \\\n 1 \\\n--b 2",
    "operators in words": "python train.py a==b c=~d x=y = b",
    "braces": "python train.py {a,b}{1..2} x{,y}",
}


@needs_bash
@pytest.mark.parametrize("script", FOLLOWED.values(), ids=FOLLOWED.keys())
def test_a_script_runs_what_it_runs_in_bash(script: str, folder: Path) -> None:
    expected = in_bash(script, folder)
    assert expected, "the example runs nothing"
    document = read(script)
    assert document.faults == ()
    assert [line(command._replace(launchers=())) for command in document.commands] == expected


# ------------------------------------------------------------------------------------------------ not in bash

# What bash would do depends on files, on the environment, or on arguments: what is said instead.
FOLLOWED_SO_FAR: dict[str, tuple[str, list[str]]] = {
    "branches that differ": (
        "if grep x y; then A=1; else A=2; fi\npython train.py $A",
        ["train.py <it depends on a condition>"],
    ),
    "branches that agree": (
        "if grep x y; then A=1; B=1; else A=1; B=2; fi\npython train.py $A $B",
        ["train.py 1 <it depends on a condition>"],
    ),
    "branches that agree in an array": (
        "if grep x y; then A=(1 2); else A=(1 2); fi\npython train.py ${A[1]}",
        ["train.py 2"],
    ),
    "branches that differ in an array": (
        "if grep x y; then A=(1 2); else A=(1 3); fi\npython train.py ${A[1]}",
        ["train.py <it depends on a condition>"],
    ),
    "an array in one branch, text in another": (
        "if grep x y; then A=(1 2); else A=1; fi\npython train.py ${A[0]}",
        ["train.py <it depends on a condition>"],
    ),
    "a branch that sets nothing": (
        "A=1\nif grep x y; then A=2; fi\npython train.py $A",
        ["train.py <it depends on a condition>"],
    ),
    "a branch that unsets": (
        "A=1\nif grep x y; then unset A; fi\npython train.py $A",
        ["train.py <it depends on a condition>"],
    ),
    "branches that both unset": (
        "A=1\nif grep x y; then unset A; else unset A; fi\npython train.py ${A:-none}",
        ["train.py none"],
    ),
    "branches that set what is unknown alike": (
        "if grep x y; then A=$X; else A=$X; fi\npython train.py $A",
        ["train.py <it depends on a condition>"],
    ),
    "branches that both run": (
        "if grep x y; then python train.py 1; else python train.py 2; fi\npython train.py 3",
        ["train.py 1", "train.py 2", "train.py 3"],
    ),
    "a branch that ends the script": ("A=1\nif grep x y; then A=2; exit; fi\npython train.py $A", ["train.py 1"]),
    "branches that all end it": ("if grep x y; then exit; else exit 1; fi\npython train.py 1", []),
    "branches that return and exit": (
        "f() { if grep x y; then return; else exit 1; fi; python train.py 1; }\nf\npython train.py 2",
        ["train.py 2"],
    ),
    "an elif that nobody can tell": (
        "if grep x y; then A=1; elif grep y z; then A=1; else A=2; fi\npython train.py $A",
        ["train.py <it depends on a condition>"],
    ),
    "an elif after one that nobody can tell": (
        "if grep x y; then A=1; elif true; then A=2; else python train.py no; fi\npython train.py $A",
        ["train.py <it depends on a condition>"],
    ),
    "exported in one branch": (
        "if grep x y; then export A=1; else A=2; fi\npython train.py $A",
        ["A=<it depends on a condition> train.py <it depends on a condition>"],
    ),
    "exported in no branch": ("if grep x y; then A=1; else A=2; fi\npython train.py 1", ["train.py 1"]),
    "a list that nobody can tell": (
        "[ -f x ] && A=1\n[ -f x ] || B=1\npython train.py $A $B",
        ["train.py <it depends on a condition> <it depends on a condition>"],
    ),
    "a list on both sides": ("[ -f x ] && A=1 || A=2\npython train.py $A", ["train.py <it depends on a condition>"]),
    "an and of one that fails and one that nobody can tell": (
        "false && grep x y && python train.py 1\npython train.py 2",
        ["train.py 2"],
    ),
    "a command succeeds": ("mkdir x && A=1\nmkdir x || B=1\npython train.py ${A-no} ${B-no}", ["train.py 1 no"]),
    "what happens when it fails is followed": (
        "mkdir x || python train.py 1\nmkdir x || { B=1; exit 1; }\npython train.py ${B-no}",
        ["train.py 1", "train.py no"],
    ),
    "a command that is not in a list": ("make || exit 1; python train.py 1", ["train.py 1"]),
    "a default by a condition": ('[ -z "$X" ] && X=1\npython train.py $X', ["train.py 1"]),
    "a default by the other one": ('[ -n "$X" ] || X=1\npython train.py $X', ["train.py 1"]),
    "no default by a condition": (
        '[ -n "$X" ] && A=1\n[ -z "$X" ] || B=1\npython train.py ${A-no} ${B-no}',
        ["train.py no no"],
    ),
    "a usage that ends the script": (
        '[ -z "$1" ] && { A=1; echo usage; exit 1; }\npython train.py $1 ${A-no}',
        ["train.py <argument 1 of the script> no"],
    ),
    "a usage by if": (
        'if [ -z "$1" ]; then A=1; exit 1; fi\npython train.py $1 ${A-no}',
        ["train.py <argument 1 of the script> no"],
    ),
    "a usage by if with else": ('if [ -z "$1" ]; then exit 1; else A=2; fi\npython train.py ${A-no}', ["train.py 2"]),
    "a usage by else": ('if [ -n "$1" ]; then A=2; else exit 1; fi\npython train.py ${A-no}', ["train.py 2"]),
    "a default by if": ('if [ -z "$X" ]; then X=1; else X=2; fi\npython train.py $X', ["train.py 1"]),
    "a default by the other if": ('if [ -n "$X" ]; then X=2; else X=1; fi\npython train.py $X', ["train.py 1"]),
    "a default by elif": (
        'if [ -n "$X" ]; then A=1; elif [ -z "$Y" ]; then A=2; else A=3; fi\npython train.py $A',
        ["train.py 2"],
    ),
    "a default that returns": (
        'f() { if [ -z "$X" ]; then python train.py 1; return; fi; python train.py 2; }\nf\npython train.py 3',
        ["train.py 1", "train.py 3"],
    ),
    "not": ('! [ -z "$X" ] && A=1\nif ! [ -n "$X" ]; then A=2; fi\npython train.py $A', ["train.py 2"]),
    "not of what nobody can tell": (
        "if ! grep x y; then A=1; fi\npython train.py ${A-no}",
        ["train.py <it depends on a condition>"],
    ),
    "case of an unknown": (
        "case $X in a) A=1;; b) A=1;; esac\npython train.py ${A-no}",
        ["train.py <it depends on a condition>"],
    ),
    "case of an unknown that covers everything": (
        "case $X in a) A=1;; *) A=1;; esac\npython train.py ${A-no}",
        ["train.py 1"],
    ),
    "case of an unknown, each branch": (
        (
            "case $X in a) python train.py 1;; b) python train.py 2; exit;; "
            "*) python train.py 3;; esac\npython train.py 4"
        ),
        ["train.py 1", "train.py 2", "train.py 3", "train.py 4"],
    ),
    "case with a pattern that nobody can tell": (
        "A=ab\ncase $A in x) B=0;; [[:alpha:]]*) B=1;; *) B=2;; esac\npython train.py $B",
        ["train.py <it depends on a condition>"],
    ),
    "case with an unknown pattern behind a match": (
        "A=ab\ncase $A in a*) B=0;; $X) B=1;; esac\npython train.py $B",
        ["train.py 0"],
    ),
    "case whose branches all end": ("case $X in a) exit;; *) return;; esac\npython train.py 1", []),
    "a loop over seventeen": (
        "for A in {1..17}; do python train.py $A; done\npython train.py $A",
        ["train.py <a loop over 17 values>", "train.py <a loop over 17 values>"],
    ),
    "a loop over an unknown": ("for A in $X; do python train.py $A; done", ["train.py <X is not set in the script>"]),
    "a loop over a listing": (
        "for A in $(ls) b; do python train.py $A; done",
        ["train.py <the output of a command>", "train.py b"],
    ),
    "a loop over arguments": (
        'for A; do python train.py $A; done\nfor B in "$@"; do python train.py $B; done',
        ["train.py <arguments of the script>", "train.py <the arguments of the script>"],
    ),
    "a loop that runs the same again": (
        "for A in 1 2 3; do python train.py x; python train.py $A; done",
        ["train.py x", "train.py 1", "train.py 2", "train.py 3"],
    ),
    "two loops that run the same": (
        "for A in 1 2; do python train.py x; done\nfor A in 1 2; do python train.py x; done",
        ["train.py x", "train.py x"],
    ),
    "a counting loop": (
        "A=1\nfor ((i = 0; i < 3; i++)); do A=$((A * 2)); B=1; python train.py $A $B $i; done\npython train.py $A $i",
        [
            "train.py <it changes in a loop> 1 <arithmetic assigns it>",
            "train.py <it changes in a loop> <arithmetic assigns it>",
        ],
    ),
    "a counting loop without a body": (
        "i=1\nfor ((i = 0; i < 3; i++)) { python train.py $i; }\npython train.py $i",
        ["train.py <arithmetic assigns it>", "train.py <arithmetic assigns it>"],
    ),
    "a while loop": (
        "A=1 C=1\nwhile grep x y; do A=$((A * 2)); C=1; B=1; python train.py $A $B $C; done\npython train.py $A $C",
        ["train.py <it changes in a loop> 1 1", "train.py <it changes in a loop> 1"],
    ),
    "a while loop that sets nothing": (
        "A=1\nwhile grep x y; do python train.py $A; done\npython train.py $A",
        ["train.py 1", "train.py 1"],
    ),
    "a while loop that ends the script": (
        "while true; do python train.py 1; break; done\nuntil grep x y; do exit; done\npython train.py 2",
        ["train.py 1", "train.py 2"],
    ),
    "a while loop that reads": (
        "while IFS=, read -r A B; do python train.py $A $B; done < x\npython train.py $A",
        ["train.py <it changes in a loop> <it changes in a loop>", "train.py <it changes in a loop>"],
    ),
    "an exported variable in a loop": (
        "export A=1\nwhile grep x y; do A=2; done\npython train.py 1",
        ["A=<it changes in a loop> train.py 1"],
    ),
    "an until loop": ("A=1\nuntil grep x y; do A=2; done\npython train.py $A", ["train.py <it changes in a loop>"]),
    "an option loop": (
        'A=1 B= C="x y"\nwhile [ $# -gt 0 ]; do case $1 in -a) A=$2;; -b) B=$2;; '
        "-d) D=$2; python train.py no;; esac; shift; done\npython train.py $A $B $C $D",
        ["train.py 1 <an argument of the script sets it> x y <an argument of the script sets it>"],
    ),
    "a default after an option loop": (
        'while [[ $# -gt 0 ]]; do case $1 in --m) M="$2"; shift 2;; *) break;; esac; done\n'
        'if [ -z "$M" ]; then M=a; fi\npython train.py $M',
        ["train.py a"],
    ),
    "a default in braces after an option loop": (
        'while [[ $# -gt 0 ]]; do case $1 in --m) M="$2";; esac; shift; done\npython train.py ${M:-a} $M',
        ["train.py a <an argument of the script sets it>"],
    ),
    "an option loop whose option is asked for": (
        'while [[ $# -gt 0 ]]; do case $1 in --m) M="$2";; esac; shift; done\n'
        'if [ -z "$M" ]; then echo usage; exit 1; fi\npython train.py $M',
        ["train.py <an argument of the script sets it>"],
    ),
    "an option loop by getopts": ("A=1\nwhile getopts a: O; do A=$OPTARG; done\npython train.py $A", ["train.py 1"]),
    "an option loop by ${#}": ("A=1\nwhile (( ${#} )); do A=$1; shift; done\npython train.py $A", ["train.py 1"]),
    "an option loop that unsets": ("A=1\nwhile [ $# -gt 0 ]; do unset A; done\npython train.py $A", ["train.py 1"]),
    "an option loop of an exported one": (
        "export A=\nwhile [ $# -gt 0 ]; do A=$1; done\npython train.py 1",
        ["A=<an argument of the script sets it> train.py 1"],
    ),
    "an element at an unknown place": (
        "A=(a b)\nA[$X]=c\npython train.py ${A[0]}",
        ["train.py <an element at an unknown index was set>"],
    ),
    "text added to an unknown": ("A+=b\npython train.py $A", ["train.py <A is not set in the script>"]),
    "text added to an unknown element": ("declare -A A\nA[x]+=b\npython train.py ${A[x]}", ["train.py b"]),
    "read": (
        "read A B\nread -p prompt C\npython train.py $A $B $C",
        [
            (
                "train.py <it is read while the script runs> <it is read while the script runs> "
                "<it is read while the script runs>"
            )
        ],
    ),
    "read from a heredoc of several names": (
        "read A B <<EOF\nx y\nEOF\npython train.py $A $B",
        ["train.py <it is read while the script runs> <it is read while the script runs>"],
    ),
    "read from a heredoc of one line": (
        "read A <<EOF\nx y\nEOF\npython train.py $A",
        ["train.py <it is read while the script runs>"],
    ),
    "mapfile": (
        "mapfile -t A < x\nreadarray B\npython train.py ${A[0]} $B",
        ["train.py <it is read while the script runs> <it is read while the script runs>"],
    ),
    "let of an unknown": ("let A=X+1 B=2\npython train.py $A $B", ["train.py <X is not set in the script> 2"]),
    "let that counts": (
        "A=1\nlet A++\nlet 'B += 2'\npython train.py $A $B",
        ["train.py <arithmetic assigns it> <arithmetic assigns it>"],
    ),
    "let of an unknown word": ("A=1\nlet A=$X\npython train.py $A", ["train.py <arithmetic assigns it>"]),
    "let of a variable that is not known": (
        "X=$Y\nlet A=X\npython train.py $A",
        ["train.py <Y is not set in the script>"],
    ),
    "declare without a value": (
        "declare A\ndeclare -a B\npython train.py ${A-no} ${B[0]-no}",
        ["train.py no <a part of an array>"],
    ),
    "an unknown export": ("export A=$X\npython train.py 1", ["A=<X is not set in the script> train.py 1"]),
    "export of an unknown word": (
        'export "$X"\nexport "A=$X"\npython train.py $A',
        ["A=<X is not set in the script> train.py <X is not set in the script>"],
    ),
    "what another script may set": ("A=1\nsource other.sh\n. ./other.sh\npython train.py $A", ["train.py 1"]),
    "shift by an unknown number": (
        "f() { shift $X; python train.py $1; }\nf a b",
        ["train.py <argument 1 of the script>"],
    ),
    "arguments of a script": (
        "python train.py $1 $2 ${3:-c}\nset -- a\npython train.py $1 ${2:-b}",
        ["train.py <argument 1 of the script> <argument 2 of the script> c", "train.py a b"],
    ),
    "test": (
        "test $X = a && A=1\ntest -f x && B=1\npython train.py $A $B",
        ["train.py <it depends on a condition> <it depends on a condition>"],
    ),
    "a function that nothing calls": (
        "f() { A=1; python train.py $A $1; }\npython train.py ${A-no}",
        ["train.py no", "train.py 1 <argument 1 of the script>"],
    ),
    "a function that nothing calls calls another": (
        "g() { python train.py g; }\nf() { g; python train.py f; }",
        ["train.py g", "train.py g", "train.py f"],
    ),
    "a function that nothing calls is called by one before it": (
        "f() { g; python train.py f; }\ng() { python train.py g; }",
        ["train.py g", "train.py f"],
    ),
    "functions that nothing calls and that end": ("f() { exit; }\ng() { python train.py g; }\nexit 0", ["train.py g"]),
    "a function that calls itself": (
        "f() { python train.py $1; f $(($1 + 1)); }\nf 1",
        [
            "train.py 1",
            "train.py 2",
            "train.py 3",
            "train.py 4",
            "train.py 5",
            "train.py 6",
            "train.py 7",
            "train.py 8",
            "train.py 9",
            "train.py 10",
            "train.py 11",
            "train.py 12",
        ],
    ),
    "text that runs itself": (
        'N=1\nE=\'python train.py $N; N=$((N + 1)); eval "$E"\'\neval "$E"',
        [
            "train.py 1",
            "train.py 2",
            "train.py 3",
            "train.py 4",
            "train.py 5",
            "train.py 6",
            "train.py 7",
            "train.py 8",
            "train.py 9",
            "train.py 10",
            "train.py 11",
            "train.py 12",
        ],
    ),
    "eval of an unknown": ('eval $X\neval "A=1 $X"\npython train.py ${A-no}', ["train.py no"]),
    "a script that is written": (
        "A=1\ncat > job.sh <<EOF\npython train.py $A ${B:-b}\nA=2\nexit\nEOF\npython train.py $A",
        ["train.py 1 b", "train.py 1"],
    ),
    "a script that is written by tee": (
        "tee run.slurm <<'EOF'\npython train.py $X\nEOF",
        ["train.py <X is not set in the script>"],
    ),
    "a script that is written last": (
        (
            "cat <<EOF > 'job.sbatch'\npython train.py 1\nEOF\ncat <<EOF >> job.bash\n"
            "python train.py 2\nEOF\ncat <<EOF > x.job\npython train.py 3\nEOF"
        ),
        ["train.py 1", "train.py 2", "train.py 3"],
    ),
    "a text that is written": (
        "cat <<EOF > config.yaml\npython train.py 1\nEOF\necho <<EOF > job.sh\npython train.py 1\nEOF",
        [],
    ),
    "a job from a heredoc": (
        "sbatch --nodes 2 <<EOF\npython train.py 1\nEOF\n/usr/bin/sbatch <<EOF\npython train.py 2\nEOF",
        ["train.py 1", "train.py 2"],
    ),
    "a job from a heredoc on another machine": (
        "ssh host bash -s <<EOF\npython train.py 1\nEOF\nqsub <<EOF\npython train.py 2\nEOF",
        ["train.py 1", "train.py 2"],
    ),
    "a shell that has its own text": ("bash -c 'python train.py 1' <<EOF\npython train.py 2\nEOF", ["train.py 1"]),
    "a shell in an unknown variable": ("$X <<EOF\npython train.py 2\nEOF\npython train.py 1", ["train.py 1"]),
    "heredocs into other shells": (
        "cat <<EOF | ssh host\npython train.py 1\nEOF\ncat <<EOF | grep bash\npython train.py 2\nEOF",
        ["train.py 1"],
    ),
    "tasks that are shells": (
        "srun -n 4 bash -c 'python train.py 1; python train.py 2'\n/usr/bin/srun --ntasks=2 sh -c 'python train.py 3'",
        ["srun(n=4) train.py 1", "srun(n=4) train.py 2", "srun(ntasks=2) train.py 3"],
    ),
    "a job that is wrapped": (
        "sbatch --wrap 'python train.py 1'\nsbatch -N 2 --wrap=\"python train.py 2\"",
        ["train.py 1", "train.py 2"],
    ),
    "a wrapped job within tasks": (
        "srun bash -c 'srun -n 2 bash -c \"python train.py 1\"'",
        ["srun() srun(n=2) train.py 1"],
    ),
    "what is exported is known to another shell": (
        "A=1\nexport B=2\nset -- x\nbash -c 'python train.py $A $B $1'",
        ["B=2 train.py <A is not set in the script> 2 <argument 1 of the script>"],
    ),
    "variables of the queue": (
        "#!/bin/sh\n#SBATCH --nodes=2\nSLURM_NNODES=$SLURM_NNODES bash -c 'python train.py $SLURM_NNODES'",
        ["SLURM_JOB_NUM_NODES=2 SLURM_NNODES=2 train.py 2"],
    ),
    "a fraction in arithmetic before a command": (
        "A=$((8 * 0.5))\npython train.py --b $A --c 1",
        ["train.py --b <0.5 is not an integer> --c 1"],
    ),
    "a fraction in arithmetic that counts": (
        "((A = 8 * .5))\npython train.py --b $A\nfor ((I=0; I < 1.5; I++)); do\n  python train.py --b 2\ndone",
        ["train.py --b <arithmetic assigns it>", "train.py --b 2"],
    ),
    "a fraction in a command within arithmetic": (
        "A=$(( $(echo '1.5 * 2' | bc | cut -d. -f1) * $((1 + 0.5)) ))\npython train.py --b 0.5 $A",
        ["train.py --b 0.5 <the output of a command>"],
    ),
    "a setting for one command": (
        "A=1 bash -c 'python train.py $A'\npython train.py ${A-no}",
        ["A=1 train.py 1", "train.py no"],
    ),
}


@pytest.mark.parametrize(("script", "expected"), FOLLOWED_SO_FAR.values(), ids=FOLLOWED_SO_FAR.keys())
def test_what_nobody_can_tell_ahead_is_said_to_be_unknown(script: str, expected: list[str]) -> None:
    assert lines(script) == expected


# ------------------------------------------------------------------------------------------------ variables


def at(node: Node) -> tuple[int, int, int, int]:
    span = node.span
    return span.line, span.column, span.end_line, span.end_column


def test_the_variables_of_a_script_are_named_and_stand_where_they_were_written() -> None:
    document = read("A=1\nB=(x 'y z')\nC=()\nD=$A\n")
    root = document.root.value
    assert isinstance(root, dict)
    assert document.root.plain() == {"A": "1", "B": ["x", "y z"], "C": [], "D": "1"}
    assert {name: (at(node), node.key_path) for name, node in root.items()} == {
        "A": ((1, 3, 1, 4), "A"),
        "B": ((2, 4, 2, 5), "B"),
        "C": ((1, 1, 1, 1), "C"),
        "D": ((1, 3, 1, 4), "D"),
    }
    elements = root["B"].value
    assert isinstance(elements, list)
    assert [(at(node), node.key_path) for node in elements] == [((2, 4, 2, 5), "B.0"), ((2, 6, 2, 11), "B.1")]


@pytest.mark.parametrize(
    ("script", "written"),
    [
        pytest.param("let A=1+2\npython train.py --b $A", "A=1+2", id="what let counts is where its word stands"),
        pytest.param("let 'A=1+2'\npython train.py --b $A", "A=1+2", id="or its word in quotes"),
        pytest.param(
            "read -d '' A <<E\n  x y\n\nE\npython train.py --b \"$A\"", "x y", id="a heredoc without its blanks"
        ),
        pytest.param('export "A=32"\npython train.py --b $A', "32", id="the value of a word that is exported"),
        pytest.param("A=(a [5]=32)\npython train.py --b ${A[5]}", "32", id="the value of a key"),
        pytest.param("declare -A A=([k]='32')\npython train.py --b ${A[k]}", "32", id="the value of a key in quotes"),
        pytest.param("A=(a b)\nA+=(32)\npython train.py --b ${A[2]}", "32", id="an element that came later"),
        pytest.param("eval 'python train.py' '--b 32'", "32", id="a word that is evaluated behind another"),
        pytest.param("srun bash -c 'python train.py --b 32'", "32", id="a word of another shell's text"),
        pytest.param("python train.py > log --b 32", "32", id="a word behind a redirection"),
        pytest.param("a | b | c\npython train.py --b 32 > log", "32", id="a line behind a pipeline"),
        pytest.param("#SBATCH --nodes=32\npython train.py --b $SLURM_NNODES", "32", id="a line of the queue"),
    ],
)
def test_a_value_stands_in_the_script(script: str, written: str) -> None:
    document = read(script)
    (command,) = document.commands
    node = command.options.get("b")
    assert node is not None
    line, column, end_line, end_column = at(node)
    assert line == end_line
    assert script.split("\n")[line - 1][column - 1 : end_column - 1].strip("'") == written


def test_a_variable_of_a_command_stands_where_it_was_written() -> None:
    (command,) = read("export A=1\nB=22 python train.py --b 1\n").commands
    found = {name: (at(node), node.key_path) for name, node in command.environment.items()}
    assert found == {"A": ((1, 10, 1, 11), "A"), "B": ((2, 3, 2, 5), "B")}
    assert command.span[1:] == (2, 1, 2, 27)


# ------------------------------------------------------------------------------------------------ bounds


def unfinished(script: str) -> list[str]:
    return [fault.message for fault in read(script).faults]


def test_a_script_is_followed_for_twenty_thousand_steps() -> None:
    assert unfinished("#\n" * 20_000) == []
    assert unfinished("#\n" * 20_001) == ["the rest of the script was not followed: it takes more than 20,000 steps"]


def test_an_array_has_four_thousand_elements_at_most() -> None:
    assert unfinished("A=(" + "x " * 4096 + ")") == []
    why = "the rest of the script was not followed: an array of more than 4,096 elements"
    assert unfinished("A=(" + "x " * 4097 + ")") == [why]


def test_a_script_has_four_thousand_training_commands_at_most() -> None:
    document = read("f() {\n" + "python train.py\n" * 64 + "}\n" + "f\n" * 65)
    assert len(document.commands) == 4096
    assert [fault.message.rpartition(": ")[2] for fault in document.faults] == [
        "it has more than 4,096 training commands"
    ]


# Each part of a script is paid for: what is in it, and for what.
PAID: dict[str, tuple[Callable[[int], str], str]] = {
    "variables": (lambda n: "".join(f"A{at}=1\n" for at in range(n)), "listing the variables of a script"),
    "lines": (lambda n: "x\n" * n, "reading a script"),
    "statements": (lambda n: "x\n" * n, "following a script"),
    "a list": (lambda n: "x" + " && x" * n, "following a script"),
    "a loop's runs": (
        lambda n: "for A in 1; do " + "python train.py $A;" * n + " done",
        "comparing the runs of a loop",
    ),
    "elements that are set": (lambda n: "A=(1)\n" + "A[0]=1\n" * n, "changing an array"),
    "the words of commands": (lambda n: "python train.py 1\n" * n, "reading the options of a command"),
    "the variables of commands": (lambda n: "A=1\n" + "python train.py 1\n" * n, "reading the variables of a command"),
    "syntax": (lambda n: "x\n" * n, "checking the syntax of a script"),
    "the tree": (lambda n: "x\n" * n, "parsing a script"),
    "pipelines": (lambda n: "a | b | c\n" * n, "looking for the ends of lines"),
    "branches": (lambda n: "(A=1)\n" * n, "leaving a branch of a script"),
    "shells": (lambda n: "A=1\n" + "bash -c x\n" * n, "starting a shell within a script"),
    "words": (lambda n: "x " * n, "expanding words"),
    "a word": (lambda n: "x " * n, "expanding a word"),
    "an array": (lambda n: "A=(" + "x " * n + ")\necho ${A[@]}", "expanding an array"),
    "expansions": (lambda n: "echo " + "$x" * n, "looking for expansions"),
    "patterns": (lambda n: "[[ x == x* ]]\n" * n, "matching a pattern"),
    "braces": (lambda n: "echo {a,b}\n" * n, "expanding braces"),
    "arithmetic": (lambda n: "if ((((1)))); then x; fi\n" * n, "looking for the end of arithmetic"),
}


@pytest.mark.parametrize(("script", "doing"), PAID.values(), ids=PAID.keys())
def test_twice_as_many_are_twice_as_dear(script: Callable[[int], str], doing: str) -> None:
    single, double = (paid_for(lambda n=n: read(script(n)), doing) for n in (20, 40))  # type: ignore[misc]
    assert double - single >= 20
