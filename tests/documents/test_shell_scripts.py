"""Whole scripts: which commands they run, with which words and which variables, against a real bash and in words."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from memlint.documents import shell
from memlint.documents.node import Command, Document, Node, Unresolved
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
    "a function's status": "f() { false; }\ng() { true; }\nf && python train.py 1\ng && python train.py 2\nf || python train.py 3",
    "a name of a function in a variable": 'f() { python train.py "$@"; }\nA=f\n$A 1',
    "shift": "f() { shift; python train.py $@; shift 2; python train.py $@; shift 9; python train.py $#; }\nf 1 2 3 4 5",
    "set --": "set -- a 'b c' d\npython train.py \"$2\" $# $1\nset -- \npython train.py $#",
    "set -e --": "set -e -- a b\npython train.py $@",
    # lists
    "and": "true && python train.py 1\nfalse && python train.py 2\npython train.py 3",
    "or": "true || python train.py 1\nfalse || python train.py 2",
    "and, then or": "true && false || python train.py 1\nfalse && true || python train.py 2\ntrue && true || python train.py 3",
    "or, then and": "true || false && python train.py 1\nfalse || false && python train.py 2\nfalse || true && python train.py 3",
    "a list that sets": f"false && A=1 || A=2\ntrue && B=1 || B=2\n{shows('A', 'B')}",
    "the end in a list": "python train.py 0\ntrue && exit && python train.py 1\npython train.py 2",
    "not": "! false && python train.py 1\n! true && python train.py 2\n! true || python train.py 3",
    "a colon": ": && python train.py 1\n: a b c\npython train.py 2",
    "commands on a line": "A=1; python train.py $A; A=2; python train.py $A",
    "in the background": "python train.py 1 & wait\npython train.py 2",
    # conditions
    "if": "if true; then python train.py 1; fi\nif false; then python train.py 2; fi",
    "else": "if true; then python train.py 1; else python train.py 2; fi\nif false; then python train.py 3; else python train.py 4; fi",
    "elif": "".join(
        f"if [ {at} = 1 ]; then python train.py a; elif [ {at} = 2 ]; then python train.py b; "
        f"elif [ {at} = 3 ]; then python train.py c; else python train.py d; fi\n"
        for at in (1, 2, 3, 4)
    ),
    "elif without else": "if false; then python train.py 1; elif false; then python train.py 2; fi\npython train.py 3",
    "the last command decides": "if false; true; then python train.py 1; fi\nif true; false; then python train.py 2; fi",
    "several commands in a body": "if true; then A=1; B=2; python train.py $A $B; else A=3; python train.py $A; fi",
    "several commands in an elif": "if false; then :; elif false; true; then A=1; python train.py $A; fi",
    "a body that ends the script": "if true; then python train.py 1; exit 0; python train.py 2; fi\npython train.py 3",
    "a body that does not": "if false; then exit; fi\npython train.py 3",
    "if in if": "if true; then if false; then python train.py 1; else python train.py 2; fi; python train.py 3; fi",
    # case
    "case": "A=b\ncase $A in a) python train.py 1;; b) python train.py 2; B=3;; *) python train.py 4;; esac\npython train.py $B",
    "case of alternatives": "A=c\ncase $A in a|b) python train.py 1;; c|d) python train.py 2;; esac",
    "case of the second alternative": "A=d\ncase $A in a|b) python train.py 1;; c|d) python train.py 2;; esac",
    "case without a match": "A=z\ncase $A in a) python train.py 1;; esac\npython train.py 2",
    "case of everything": "A=z\ncase $A in a) python train.py 1;; *) python train.py 2;; esac",
    "case with parentheses": "A=b\ncase $A in (a) python train.py 1;; (b) python train.py 2;; esac",
    "case in quotes": 'A="b c"\ncase "$A" in "b c") python train.py 1;; *) python train.py 2;; esac',
    "case with an empty body": "A=a\ncase $A in a) ;; *) python train.py 1;; esac\npython train.py 2",
    "case that ends the script": "A=a\ncase $A in a) python train.py 1; exit;; *) python train.py 2;; esac\npython train.py 3",
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
    "for with return": "f() { for A in 1 2 3; do [ $A = 2 ] && return; python train.py $A; done; }\nf\npython train.py $A",
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
    "redirections": "python train.py 1 > x 2>&1\npython train.py 2 < /dev/null >> x\n> x python train.py 3\npython train.py 4 &> x --a",
    "a redirection in the middle": "python train.py --a 1 > x --b 2 2> y --c 3",
    "a string that is fed": "python train.py --a 1 <<< 'b c' --d",
    "a heredoc that is fed": "python train.py --a 1 <<EOF --b\nx\nEOF\npython train.py 2",
    # text that is run
    "eval": "A='python train.py'\neval $A 1\neval \"$A\" 2\neval 'A=3; python train.py' '$A'\npython train.py $A",
    "eval of several words": "eval python 'train.py  1' '2'\neval 'B=4 ; ' 'C=5'\npython train.py $B $C",
    "eval that ends": "python train.py 0\neval exit\npython train.py 1",
    "eval of arguments": "set -- a b\neval 'python train.py $1 $#'\neval 'set -- c'\npython train.py $@",
    "bash -c": "A=1\nexport B=2\nbash -c 'python train.py $B ${A:-no}; B=3; exit'\npython train.py $B",
    "bash -c with switches": "bash -e -c 'python train.py 1'\nbash -ec 'python train.py 2'\nsh -c 'python train.py 3' x y",
    "bash -c has no arguments": "set -- a\nbash -c 'python train.py ${1:-none}'\npython train.py $1",
    "bash -c does not know functions": "f() { python train.py $1; }\nf 1\nbash -c 'python train.py 2'",
    "bash with a heredoc": "A=1\nexport B=2\nbash <<EOF\npython train.py $A $B\nB=3\nexit\nEOF\npython train.py $B",
    "bash with a quoted heredoc": "A=1\nexport B=2\nbash <<'EOF'\npython train.py ${A:-no} $B\nEOF\npython train.py $A",
    "bash -s with a heredoc": "bash -s <<EOF\npython train.py 1\nEOF",
    "cat into bash": "cat <<EOF | bash\npython train.py 1\nEOF\npython train.py 2",
    "cat into another program": "cat <<EOF | tee x\npython train.py 1\nEOF\npython train.py 2",
    "cat into a path": "cat <<EOF | /bin/bash -e\npython train.py 1\nEOF",
    "a heredoc into a file that is no script": "cat > notes.txt <<EOF\npython train.py 1\nEOF\npython train.py 2",
    "a heredoc into a variable": "read -r -d '' A <<EOF\n  --x 1\n  --y 2\nEOF\npython train.py $A",
    "a heredoc into a variable by one switch": "read -rd '' A <<'EOF'\n a  b \nEOF\npython train.py \"$A\"",
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
