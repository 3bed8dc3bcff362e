"""Shell scripts: which commands train, through which launchers, and where each value stands."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memlint.documents import load
from memlint.documents.node import Document, Node
from memlint.documents.shell import reader as shell

BASH = shutil.which("bash")


def read(script: str) -> Document:
    return shell.read("train.sh", script)


def text_at(document: Document, node: Node) -> str:
    """The text of a node's span."""
    span = node.span
    lines = document.text.split("\n")[span.line - 1 : span.end_line]
    lines[-1] = lines[-1][: span.end_column - 1]
    lines[0] = lines[0][span.column - 1 :]
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------ commands


@pytest.mark.parametrize(
    ("script", "program", "launchers"),
    [
        pytest.param("python train.py --b 1", "train.py", [], id="python"),
        pytest.param("python3.11 -u train.py --b 1", "train.py", [], id="a version and a switch of python"),
        pytest.param("/venv/bin/python -X dev -W ignore train.py --b 1", "train.py", [], id="python's own options"),
        pytest.param("$PYTHON train.py --b 1", "train.py", [], id="python in an unknown variable"),
        pytest.param("python -m pkg.train --b 1", "pkg.train", [], id="a module"),
        pytest.param("./train.py --b 1", "./train.py", [], id="a script that is executable"),
        pytest.param(
            "torchrun --nproc_per_node=8 --nnodes 2 train.py --b 1",
            "train.py",
            [("torchrun", {"nproc_per_node": "8", "nnodes": "2"})],
            id="torchrun",
        ),
        pytest.param(
            "torchrun --standalone --nproc_per_node 8 -m pkg.train --b 1",
            "pkg.train",
            [("torchrun", {"standalone": True, "nproc_per_node": "8"})],
            id="torchrun with a module",
        ),
        pytest.param(
            "python -m torch.distributed.launch --nproc_per_node=8 --use_env train.py --b 1",
            "train.py",
            [("torchrun", {"nproc_per_node": "8", "use_env": True})],
            id="torch.distributed.launch",
        ),
        pytest.param(
            "python -m torch.distributed.run --nproc_per_node $N train.py --b 1",
            "train.py",
            [("torchrun", {"nproc_per_node": None})],
            id="torch.distributed.run",
        ),
        pytest.param(
            "accelerate launch --config_file a.yaml --multi_gpu train.py --b 1",
            "train.py",
            [("accelerate launch", {"config_file": "a.yaml", "multi_gpu": True})],
            id="accelerate launch",
        ),
        pytest.param(
            "accelerate launch train.py --b 1", "train.py", [("accelerate launch", {})], id="accelerate without options"
        ),
        pytest.param(
            "accelerate launch --num_processes 2 -m pkg.train --b 1",
            "pkg.train",
            [("accelerate launch", {"num_processes": "2"})],
            id="accelerate with a module",
        ),
        pytest.param(
            "deepspeed --num_gpus 8 --master_port=1 train.py --deepspeed ds.json --b 1",
            "train.py",
            [("deepspeed", {"num_gpus": "8", "master_port": "1"})],
            id="deepspeed",
        ),
        pytest.param(
            "deepspeed --include localhost:0,1 --module pkg.train --b 1",
            "pkg.train",
            [("deepspeed", {"include": "localhost:0,1"})],
            id="deepspeed with a module",
        ),
        pytest.param(
            "srun --nodes=2 --gpus-per-node 8 torchrun --nproc_per_node 8 train.py --b 1",
            "train.py",
            [("srun", {"nodes": "2", "gpus-per-node": "8"}), ("torchrun", {"nproc_per_node": "8"})],
            id="srun around torchrun",
        ),
        pytest.param(
            "srun -l --ntasks 1 env A=1 python train.py --b 1",
            "train.py",
            [("srun", {"l": True, "ntasks": "1"}), ("env", {})],
            id="srun around env",
        ),
        pytest.param("nohup python train.py --b 1 &", "train.py", [("nohup", {})], id="nohup in the background"),
        pytest.param("time python train.py --b 1", "train.py", [("time", {})], id="time"),
        pytest.param("exec python train.py --b 1", "train.py", [("exec", {})], id="exec"),
        pytest.param("CUDA_VISIBLE_DEVICES=0 python train.py --b 1", "train.py", [], id="an assignment in front"),
        pytest.param("poetry run python train.py --b 1", "train.py", [("poetry", {})], id="poetry run"),
        pytest.param("uv run train.py --b 1", "train.py", [("uv", {})], id="uv run"),
        pytest.param(
            "conda run -n env --no-capture-output python train.py --b 1",
            "train.py",
            [("conda", {"n": "env", "no-capture-output": True})],
            id="conda run",
        ),
        pytest.param(
            "docker run --gpus all image python train.py --b 1",
            "train.py",
            [("docker", {"gpus": "all"})],
            id="docker run",
        ),
        pytest.param(
            "ray job submit --address http://x -- python3 -m pkg.train --b 1",
            "pkg.train",
            [("ray", {"address": "http://x"})],
            id="ray job submit",
        ),
        pytest.param(
            "python mason.py --gpus 8 -- accelerate launch train.py --b 1",
            "train.py",
            [("mason.py", {"gpus": "8"}), ("accelerate launch", {})],
            id="a launcher script with a command after --",
        ),
        pytest.param("bash -c 'python train.py --b 1'", "train.py", [], id="bash -c"),
        pytest.param('srun bash -c "python train.py --b 1"', "train.py", [("srun", {})], id="srun bash -c"),
        pytest.param('sbatch --wrap="python train.py --b 1"', "train.py", [], id="sbatch --wrap"),
        pytest.param(
            "sbatch <<EOF\n#!/bin/bash\npython train.py --b 1\nEOF", "train.py", [], id="sbatch with a heredoc"
        ),
        pytest.param(
            "cat > job.sh <<EOF\npython train.py --b 1\nEOF\nsbatch job.sh",
            "train.py",
            [],
            id="a heredoc that is a script",
        ),
        pytest.param("cat <<EOF | bash\npython train.py --b 1\nEOF", "train.py", [], id="a heredoc piped to bash"),
        pytest.param("run() {\n  python train.py --b 1\n}", "train.py", [], id="a function that nothing calls by name"),
        pytest.param("axolotl train x.yml --b 1", "axolotl", [], id="a trainer with a command of its own"),
        pytest.param(
            "mpirun -np 8 ./train_gpt2 -b 1", "./train_gpt2", [("mpirun", {"np": "8"})], id="a compiled trainer"
        ),
        pytest.param("python train.py b=1", "train.py", [], id="Hydra overrides"),
        pytest.param("(cd src && python train.py --b 1)", "train.py", [], id="in a subshell"),
        pytest.param("if [ -f x ]; then\n python train.py --b 1\nfi", "train.py", [], id="in a branch"),
    ],
)
def test_training_command(script: str, program: str, launchers: list[tuple[str, dict[str, object]]]) -> None:
    (command,) = read(script).commands
    assert command.program.value == program
    found = [
        (one.name, {name: node.value if not node.is_unresolved else None for name, node in one.options.value.items()})  # type: ignore[union-attr]
        for one in command.launchers
    ]
    assert found == launchers
    values = command.options.plain()
    assert values.get("b", "1") == "1"
    assert "b" in values or [word.value for word in command.arguments] == ["b=1"]


@pytest.mark.parametrize(
    "script",
    [
        "pip install -r requirements.txt",
        "python -c 'print(1)' --x",
        "python - <<EOF\nprint(1)\nEOF",
        "python",
        "python setup.py",
        "echo python train.py --b 1",
        "# python train.py --b 1",
        "ls -la; grep -r x . ; mkdir -p out",
        "exit 0\npython train.py --b 1",
        "accelerate config --x",
        "cat <<EOF\npython train.py --b 1\nEOF",
        "A='python train.py --b 1'",
        "false && python train.py --b 1",
        "",
        "#!/bin/bash\n",
    ],
)
def test_what_does_not_train(script: str) -> None:
    assert read(script).commands == ()


def test_options_and_arguments() -> None:
    (command,) = read(
        "python train.py sft --a 1 --b=2 --c --d-e x -f 3 --g 1 --g 2 --h= --no_x +k=v '~z' --l a b -- rest\n"
    ).commands
    assert command.options.plain() == {
        "a": "1",
        "b": "2",
        "c": True,
        "d-e": "x",
        "f": "3",
        "g": ["1", "2"],
        "h": "",
        "no_x": "+k=v",
        "l": "a",
    }
    assert [word.value for word in command.arguments] == ["sft", "~z", "b", "rest"]


def test_environment_is_what_the_command_sees() -> None:
    script = (
        "A=1\nexport B=2 C=3\nC=4\nunset B\nD=5 python train.py --x 1\nset -a\nE=6\nenv F=7 python train.py --x 2\n"
    )
    first, second = read(script).commands
    assert {name: node.value for name, node in first.environment.items()} == {"C": "4", "D": "5"}
    assert {name: node.value for name, node in second.environment.items()} == {"C": "4", "E": "6", "F": "7"}


@pytest.mark.parametrize(
    ("script", "seen"),
    [
        pytest.param("A=1 \\\nB=2 \\\npython t.py --b 1", {"A": "1", "B": "2"}, id="lines that are joined"),
        pytest.param("A=1 \\\nB=2 \\\n# C=3 \\\npython t.py --b 1", {}, id="a comment ends what is before it"),
        pytest.param("A=1 \\\n# C=3 \\\npython t.py --b 1", {}, id="after one of them"),
        pytest.param("export A=0\nA=1 \\\nB=2 \\\n# C=3\npython t.py --b 1", {"A": "1"}, id="one is exported already"),
    ],
)
def test_a_comment_between_assignments_and_a_command_parts_them(script: str, seen: dict[str, str]) -> None:
    (command,) = read(script).commands
    assert {name: node.value for name, node in command.environment.items()} == seen
    if BASH is not None:
        asked = script.replace("python t.py --b 1", "env")
        done = subprocess.run(
            [BASH, "-c", asked], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}, timeout=60
        )
        lines = done.stdout.splitlines()
        assert {name: value for name, _, value in (line.partition("=") for line in lines) if name in "ABC"} == seen


def test_root_is_the_variables_with_their_last_value() -> None:
    document = read("A=1\nA=2\nF=(x 'y z')\nfor S in 1 2; do :; done\nH=$HOME\n")
    plain = document.root.plain()
    assert (plain["A"], plain["F"], plain["S"]) == ("2", ["x", "y z"], "2")
    home = document.root.get("H")
    assert home is not None
    assert home.is_unresolved
    assert document.format == "shell"
    assert document.sources == {"train.sh": document.text}


def test_a_shell_script_is_loaded_by_its_name_or_its_first_line() -> None:
    assert load.load("a.sh", "python train.py --b 1").commands
    assert load.load("job", "#!/usr/bin/env bash\npython train.py --b 1").commands


# ------------------------------------------------------------------------------------------------ spans


@pytest.mark.parametrize(
    ("script", "written", "uses"),
    [
        pytest.param("python t.py --b 32", "32", [], id="in the command"),
        pytest.param("python t.py --b=32", "32", [], id="behind an equals sign"),
        pytest.param("python t.py --b '32'", "'32'", [], id="with its quotes"),
        pytest.param("B=32\npython t.py --b $B", "32", ["$B"], id="in an assignment"),
        pytest.param('B="32"\npython t.py --b "${B}"', '"32"', ['"${B}"'], id="in quotes, used in quotes"),
        pytest.param("A=32\nB=$A\npython t.py --b=$B", "32", ["$B", "$A"], id="through two variables"),
        pytest.param("python t.py --b ${B:-32}", "32", ["${B:-32}"], id="in a default"),
        pytest.param("A=32\npython t.py --b ${B:-$A}", "32", ["${B:-$A}", "$A"], id="in a variable of a default"),
        pytest.param('F=(--a 1 --b 32)\npython t.py "${F[@]}"', "32", ['"${F[@]}"'], id="in an array"),
        pytest.param('F="--a 1 --b 32"\npython t.py $F', "32", ["$F"], id="in a string of flags"),
        pytest.param(
            'B=32\nF="--a 1 --b $B --c"\npython t.py $F', "32", ["$F", "$B"], id="in a variable of a string of flags"
        ),
        pytest.param("B=$((4 * 8))\npython t.py --b $B", "$((4 * 8))", ["$B"], id="in an expression"),
        pytest.param("A=3\npython t.py --b ${A}2", "${A}2", [], id="put together in the command"),
        pytest.param("A=3\nB=${A}2\npython t.py --b $B", "${A}2", ["$B"], id="put together in an assignment"),
        pytest.param("for B in 32; do python t.py --b $B; done", "32", ["$B"], id="in a loop"),
        pytest.param("f() { python t.py --b $1; }\nf 32", "32", ["$1"], id="in the call of a function"),
        pytest.param("eval 'python t.py --b 32'", "32", [], id="in a string that is evaluated"),
        pytest.param("C='python t.py --b 32'\neval $C", "32", ["$C"], id="in a variable that is evaluated"),
        pytest.param("export B=32\nbash -c 'python t.py --b $B'", "32", ["$B"], id="in the environment of bash -c"),
        pytest.param("sbatch <<EOF\npython t.py --b 32\nEOF", "32", [], id="in a heredoc"),
        pytest.param("B=32\nsbatch <<EOF\npython t.py --b $B\nEOF", "32", ["$B"], id="in a variable of a heredoc"),
        pytest.param(
            "export B=32\nsbatch <<'EOF'\npython t.py --b $B\nEOF", "32", ["$B"], id="in a variable of a quoted heredoc"
        ),
        pytest.param("N=ü\npython t.py --n é$N --b 32", "32", [], id="after characters of several bytes"),
        pytest.param("python t.py \\\n  --a 1 \\\n  --b 32", "32", [], id="on a continued line"),
        pytest.param("P='python t.py'\n$P --b 32", "32", [], id="after a program in a variable"),
    ],
)
def test_a_value_stands_where_it_was_written(script: str, written: str, uses: list[str]) -> None:
    document = read(script)
    (command,) = document.commands
    node = command.options.get("b")
    assert node is not None
    assert node.value == "32"
    assert text_at(document, node) == written
    assert [text_at(document, Node(None, span)) for span in node.via] == uses
    assert node.key_span is not None
    assert text_at(document, Node(None, node.key_span)) == "--b"


def test_a_flag_and_a_program_stand_where_they_are() -> None:
    document = read("F=--flag\npython -m pkg.train --b 1 $F --c\n")
    (command,) = document.commands
    assert text_at(document, command.program) == "pkg.train"
    flag = command.options.get("flag")
    assert flag is not None
    assert (text_at(document, flag), flag.value, flag.span.line) == ("--flag", True, 1)
    assert (command.span.line, command.span.column) == (2, 1)


def test_lines_may_end_in_any_way() -> None:
    document = read("A=1\r\npython t.py --b $A\r\n")
    assert document.commands


def test_a_line_goes_on_after_a_backslash_however_it_ends() -> None:
    document = read("python t.py \\\r\n  --b 1 \\\r\n  --c 2\r\n")
    [command] = document.commands
    options = {name: (node.value, node.span.line, node.span.column) for name, node in command.options.value.items()}
    assert options == {"b": ("1", 2, 7), "c": ("2", 3, 7)}


# ------------------------------------------------------------------------------------------------ faults


def test_what_somebody_has_to_fill_in_is_no_fault_and_the_script_is_read() -> None:
    document = read(
        "DATA=<Specify path and prefix>_text\nexport OUT=<a path>\nN=8\ntorchrun --nproc_per_node $N a.py --x $DATA"
    )
    (command,) = document.commands
    assert document.faults == ()
    data, devices = command.options.get("x"), command.launchers[0].options.get("nproc_per_node")
    assert data is not None
    assert not isinstance(data.value, str)
    assert devices is not None
    assert devices.value == "8"


@pytest.mark.parametrize(
    ("behind", "read_as"),
    [
        pytest.param("--data <DATA_PATH> --b 2", {"data": None, "b": "2"}, id="an option behind it is one"),
        pytest.param("--data=<your data set> \\\n  --b 2", {"data": None, "b": "2"}, id="on the next line as well"),
        pytest.param("--b 2 <in.txt >out.txt", {"b": "2"}, id="where files are meant they are no words"),
        pytest.param("--b 2 <in> out.txt", {"b": "2"}, id="however they are written"),
    ],
)
def test_what_somebody_has_to_fill_in_takes_no_option_with_it(behind: str, read_as: dict[str, str | None]) -> None:
    (command,) = read(f"python t.py {behind}\n").commands
    told = {name: node.value if isinstance(node.value, str) else None for name, node in command.options.value.items()}
    assert told == read_as


BROKEN = {
    "an open quote": 'echo "abc\npython t.py --b 1\n',
    "an open single quote": "python t.py --b 'x\n",
    "if without fi": "if true; then\n  python t.py --b 1\n",
    "for without done": "for a in 1 2; do\n  python t.py --b 1\n",
    "case without esac": "case $A in\n  a) B=1;;\n",
    "an open parenthesis": "A=(1 2\npython t.py --b 1\n",
    "a stray fi": "python t.py --b 1\nfi\n",
    "a stray parenthesis": "python t.py --b 1 )\n",
    "an open expansion": "python t.py --b ${A\n",
    "an open substitution": "A=$(nproc\n",
    "a placeholder in angle brackets": "python t.py --b <BATCH>\n",
    "a function without a body": "f() \n",
    "then without if": "then echo\n",
}


@pytest.mark.skipif(BASH is None, reason="the oracle is a real bash")
@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN.keys())
def test_a_fault_of_syntax_has_a_line(script: str) -> None:
    assert BASH is not None
    assert subprocess.run([BASH, "-n", "-c", script], capture_output=True).returncode != 0
    faults = read(script).faults
    assert faults
    assert {fault.code for fault in faults} == {"MEM003"}
    for fault in faults:
        assert 1 <= fault.span.line <= script.count("\n") + 1
        assert fault.message


def test_what_is_before_a_fault_is_read_all_the_same() -> None:
    document = read("python t.py --b 1\nif true; then\n")
    assert document.faults
    assert [command.options.plain() for command in document.commands] == [{"b": "1"}]


FINE = {
    "a continuation at the end of the file": "python t.py --b 1 \\\n",
    "a continuation at the very end": "python t.py --b 1 \\",
    "a blank after a backslash": "python t.py --b 1 \\ \n  --c 2\n",
    "a heredoc": "cat <<EOF\n'\"(\nEOF\n",
    "an apostrophe in a comment": "# don't\npython t.py --b 1\n",
    "processes and tests": "diff <(ls a) <(ls b)\n[[ $A =~ ^[0-9]+$ ]] && echo\n",
    "a function": "function f { echo; }\ng () ( echo )\n",
    "select and until": "until false; do echo; done\n",
    "several assignments, then a loop": "A=1 B=2\nA+=0\nfor X in 0; do echo; done\n",
    "a name in the middle of a word": "A=$B/c/$D-e\nA=$1-$2\necho $A/$B.c\n",
}


@pytest.mark.skipif(BASH is None, reason="the oracle is a real bash")
@pytest.mark.parametrize("script", FINE.values(), ids=FINE.keys())
def test_what_bash_accepts_is_no_fault(script: str) -> None:
    assert BASH is not None
    assert subprocess.run([BASH, "-n", "-c", script], capture_output=True).returncode == 0
    assert read(script).faults == ()


# ------------------------------------------------------------------------------------------------ laws

_FRAGMENTS = (
    *("$", "{", "}", "(", ")", '"', "'", "`", "\\", "\n", " ", "=", "A", "B=1", ":-", "[@]", "<<EOF", "EOF", "if "),
    *("then ", "fi", "for ", "in ", "do ", "done", "case ", "esac", ";;", "|", "&", ";", "#", "python t.py ", "--b "),
    *("+=", "$((", "))", "eval ", "export ", "é", "\t", "*", "[[", "]]", "\r", "<(", ">", "f() {", "bash -c ", "$1"),
    *("$@", "-z ", "!", "read -d '' A <<", "cat ", "A=(", "local ", "${A", "while ", "let ", "shift", "set -- "),
)
_pieces = st.lists(st.sampled_from(_FRAGMENTS), max_size=30).map("".join)


@settings(max_examples=300, deadline=None)
@given(script=st.one_of(_pieces, st.text(max_size=60)))
def test_no_text_is_an_exception(script: str) -> None:
    document = read(script)
    for command in document.commands:
        for node in (command.program, *command.words):
            assert node.span.line >= 1
            assert node.span[1:3] <= node.span[3:5]


@pytest.mark.skipif(BASH is None, reason="the oracle is a real bash")
@settings(max_examples=120, deadline=None)
@given(
    lines=st.lists(
        st.sampled_from(
            [
                "python t.py --b $B",
                "A=1 B=2",
                "F=(--a 1 --b 2)",
                'for X in a "b c"; do',
                "done",
                "if [ $A = 1 ]; then",
                "else",
                "fi",
                'export C="$A/$B-x"',
                "case $A in 1) B=2;; *) B=3;; esac",
                "f() {",
                "}",
                "# it's a comment",
                "cat <<EOF",
                "EOF",
                "A=$((A + 1))",
                '[[ -z "$A" ]] && A=${1:-8}',
                "while read -r L; do",
            ]
        ),
        max_size=8,
    )
)
def test_syntax_faults_agree_with_bash(lines: list[str]) -> None:
    assert BASH is not None
    script = "\n".join(lines) + "\n"
    heredoc = "EOF" in script or "cat <<" in script
    wrong = subprocess.run([BASH, "-n", "-c", script], capture_output=True).returncode != 0
    if not heredoc:  # bash only warns of a heredoc that never ends
        assert bool(read(script).faults) == wrong
