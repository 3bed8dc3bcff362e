"""Scripts that ask for more work than they have characters: each ends, and the meter sees what it costs.

No test here asserts a time. Calls of functions are counted instead, which are the same on every machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memlint import work
from memlint.check import check_paths, check_text
from memlint.dialects import registry
from memlint.documents.shell import reader as shell
from memlint.documents.shell import tree as shell_tree
from memlint.estimates import Estimates
from memlint.reports.full import Style, headline

TRAIN = (
    "torchrun --nproc_per_node 4 run_clm.py --model_name_or_path Qwen/Qwen2.5-1.5B --dataset_name wikitext --do_train "
    "--block_size 512 --per_device_train_batch_size {} --bf16 true --optim adamw_torch --output_dir out/x\n"
)


def calls(function: Callable[[], object]) -> int:
    """How many functions are called, Python's and C's."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


# Scripts of n parts that cost n times a part.
LINEAR: dict[str, Callable[[int], str]] = {
    "assignments, then conditions that nobody can tell": lambda n: (
        "".join(f"A{at}={at}\n" for at in range(n)) + "if grep x y; then B=1; else B=2; fi\n" * n
    ),
    "assignments, then subshells": lambda n: "".join(f"A{at}={at}\n" for at in range(n)) + "(B=1)\n" * n,
    "assignments, then pipelines": lambda n: "".join(f"A{at}={at}\n" for at in range(n)) + "B=1 | c | d\n" * n,
    "assignments, then assignments in front of a command": lambda n: (
        "".join(f"A{at}={at}\n" for at in range(n)) + "B=1 make\n" * n
    ),
    "assignments, then defaults": lambda n: "".join(f"A{at}={at}\n" for at in range(n)) + '[ -z "$X" ] && B=1\n' * n,
    "assignments, then loops of unknown length": lambda n: (
        "".join(f"A{at}={at}\n" for at in range(n)) + "while read X; do B=$X; done\n" * n
    ),
    "a pipeline of many stages": lambda n: "a" + " | a" * n,
    "a list of many commands": lambda n: "a" + " && a" * n,
    "alternatives of many commands": lambda n: "a" + " || a" * n,
    "many commands on a line": lambda n: "a; " * n,
    "many dollar signs": lambda n: "A=" + "$" * n,
    "many expansions that are never closed": lambda n: "A=" + "${" * n,
    "many continued lines": lambda n: "python t.py " + "--b 1 \\\n" * n,
    "many options": lambda n: "python t.py " + " ".join(f"--a{at} {at}" for at in range(n)),
    "many patterns": lambda n: "case $X in " + "".join(f"a{at}) B=1;; " for at in range(n)) + "esac",
    "many heredocs": lambda n: "cat <<EOF\n$A\nEOF\n" * n,
    "many elements": lambda n: "A=(" + "x " * n + ")",
    "many assignments on many lines": lambda n: "A=1 B=2\n" * n,
    "the same command again and again": lambda n: "python t.py --b 1\n" * n,
    "variables made of variables": lambda n: "A0=1\n" + "".join(f"A{at}=$A{at - 1}\n" for at in range(1, n)),
    "Slurm's lines": lambda n: "#!/bin/sh\n" + "#SBATCH --nodes=2 --gres=gpu:4\n" * n,
}


@pytest.mark.parametrize("script", LINEAR.values(), ids=LINEAR.keys())
def test_twice_the_script_costs_twice_the_work(script: Callable[[int], str]) -> None:
    shell.read("train.sh", script(10))  # imports
    single, double = (calls(lambda n=n: shell.read("train.sh", script(n))) for n in (60, 120))  # type: ignore[misc]
    assert double < 2.5 * single


# Scripts whose cost has nothing to do with their length.
HOSTILE = {
    "loops within loops": "for A in {1..16}; do " * 8 + "python t.py --b $A; " + "done; " * 8,
    "fifty loops within loops": "for A in 1 2 3 4; do " * 50 + "B=$B$A;" + " done;" * 50,
    "functions that call each other": "f() { g; g; }\ng() { f; f; }\nf\n",
    "functions that call functions": "f0() { A=1; }\n"
    + "".join(f"f{at}() {{ f{at - 1}; f{at - 1}; f{at - 1}; f{at - 1}; }}\n" for at in range(1, 12))
    + "f11\n",
    "arguments that multiply": "f0() { A=$1; }\n"
    + "".join(f"f{at}() {{ f{at - 1} $@ $@ $@; f{at - 1} $@ $@; }}\n" for at in range(1, 12))
    + "f11 a b c\n",
    "eval of eval": "A='eval $A; eval $A'\neval $A\n",
    "doubling text": "A=xx\n" + "A=$A$A\n" * 200 + "python t.py --a $A\n",
    "doubling arrays": "A=(x)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 200 + 'python t.py --a "${A[@]}"\n',
    "text that grows": "A=$B$B$B$B\n" + "A=$A$A$A$A\n" * 500 + "python t.py --a $A\n",
    "a large brace expansion": "echo {1..999999999}\npython t.py --a {1..9999}{1..9999}\n",
    "nested braces": "python t.py --a " + "{a,b}" * 40 + "\n",
    "arithmetic of variables": "A0=1\n"
    + "".join(f"A{at}='{'+'.join([f'A{at - 1}'] * 200)}'\n" for at in range(1, 16))
    + "B=$((A15))\n",
    "deep parentheses": "echo $((" + "(" * 5000 + "1" + ")" * 5000 + "))\n",
    "deep substitutions": "echo " + "$(" * 3000 + "x" + ")" * 3000 + "\n",
    "deep subshells": "(" * 5000 + "x" + ")" * 5000 + "\n",
    "deep conditions": "if true; then " * 2000 + "x; " + "fi; " * 2000 + "\n",
    "many elifs": "if a; then b\n" + "elif a; then b\n" * 2000 + "fi\n",
    "a large power": "A=$((2 ** 62 ** 9))\nB=$((9999999999999999999999))\n",
    "many options": "python t.py " + "--b 1 " * 20000,
    "a long string of flags": 'F="' + "--b 1 " * 5000 + '"\npython t.py $F\n',
    "NUL and control characters": "A=\0\1\2\npython t.py --b \x1b[31m$A\n",
    "recursive defaults": "A=${A:-${A:-$A}}\npython t.py --b $A\n",
    "a script of many megabytes": "# x\n" * 1_000_000,
    "assignments that refer to each other": "A=$B\nB=$A\n" * 200 + "python t.py --b $((A + B))\n",
    "arithmetic that refers to itself": "A=A\nB=A+B\npython t.py --b $((A)) --c $((B))\n",
    "many elements that are set": "A=(" + "x " * 4000 + ")\n" + "A[1]=y\n" * 2000,
    "a pattern of many stars": "A=" + "a" * 3000 + "\n[[ $A == " + "*a" * 30 + "b ]] && B=1\n",
}


@pytest.fixture
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A twentieth of the work that scripts get: they end for the same reasons, and the tests end sooner. What the
    grammar cannot read costs less as well: where a text is cut within a thousand conditions, it is much."""
    monkeypatch.setattr(shell, "SCRIPT_STEPS", shell.SCRIPT_STEPS // 20)
    monkeypatch.setattr(shell_tree, "MISREAD_SHIFT", shell_tree.MISREAD_SHIFT + 5)


@pytest.mark.usefixtures("little_work")
@pytest.mark.parametrize("script", HOSTILE.values(), ids=HOSTILE.keys())
def test_the_meter_sees_what_a_script_costs(script: str) -> None:
    shell.read("train.sh", "A=1\n")  # imports

    def read() -> None:
        shell.read("train.sh", script)

    with work.limited(work.FILE_STEPS) as meter:
        count = calls(read)
    assert meter.used <= shell.SCRIPT_STEPS + len(script) * 10 + 100
    assert count <= 6 * meter.used + 10 * len(script) + 1000


@pytest.mark.parametrize(
    "script",
    [
        "#!/bin/sh\n#SBATCH --nodes={}\n",
        "f() {{ shift {}; python t.py --b $1; }}\nf 1 2\n",
        "python t.py --b ${{{}}} ${{{}:-4}}\n",
        "A=(1 2)\npython t.py --b ${{A[-{}]}} ${{A[{}]}}\n",
        "python t.py --b $(({})) $((2#{}))\n",
        "if [ 1 -eq {} ]; then A=1; fi\nfor I in {{1..{}}}; do python t.py --b $I; done\n",
    ],
    ids=["nodes", "shift", "argument", "index", "arithmetic", "range"],
)
@pytest.mark.parametrize(
    "number", ["9" * 5000, "\u00b2", "\u0663", "1_0", "0"], ids=["long", "raised", "Arabic", "_", "0"]
)
def test_what_looks_like_a_number_is_none_to_the_shell(script: str, number: str) -> None:
    shell.read("train.sh", script.format(number, number))


def test_shell_arithmetic_evaluates_a_variable_once() -> None:
    uses = 5
    script = "A0=1\n" + "".join(f"A{at}='{'+'.join([f'A{at - 1}'] * uses)}'\n" for at in range(1, 13))
    (command,) = shell.read("train.sh", script + "python t.py --b $((A12))\n").commands
    assert command.options.plain() == {"b": str(uses**12)}


@pytest.mark.usefixtures("little_work")
@pytest.mark.parametrize("name", ["fifty loops within loops", "arguments that multiply", "deep conditions"])
def test_a_script_that_was_not_followed_to_its_end_says_so(name: str) -> None:
    (fault,) = shell.read("train.sh", HOSTILE[name]).faults
    assert fault.code == "MEM011"
    assert fault.message.startswith("the rest of the script was not followed: ")


@pytest.mark.usefixtures("little_work")
def test_what_was_found_before_the_work_was_used_up_is_checked() -> None:
    report = check_text("train.sh", TRAIN.format(4) + HOSTILE["arguments that multiply"])
    (run,) = report.runs
    assert run.estimate is not None
    assert [finding.code for finding in run.findings].count("MEM011") == 1
    assert report.exit_code("error", False) == 1


@pytest.mark.usefixtures("little_work")
def test_a_script_that_runs_out_of_work_is_mentioned_in_a_walk(tmp_path: Path) -> None:
    (tmp_path / "loops.sh").write_text(HOSTILE["fifty loops within loops"])
    ((path, why),) = check_paths([str(tmp_path)]).unparsed
    assert path.endswith("loops.sh")
    assert "the rest of the script was not followed" in why


# ------------------------------------------------------------------------------------------- many commands


def test_equal_commands_are_one_run_that_says_where_it_starts_again() -> None:
    (run,) = check_text("train.sh", "#!/bin/sh\n" + TRAIN.format(4) * 300).runs
    assert run.run == "train"
    assert run.also_lines == tuple(range(3, 302))
    assert "the same run 300 times: also on lines 3, 4, 5, 6 and 295 more" in headline(run, Style())


def test_commands_that_differ_in_nothing_that_takes_memory_are_one_run() -> None:
    script = "".join(TRAIN.format(f"4 --seed {seed}") for seed in (1, 2)) + TRAIN.format(8)
    first, second = check_text("train.sh", script).runs
    assert (first.run, first.also_lines, first.facts["micro_batch_size"].value) == ("train", (2,), 4)
    assert (second.run, second.also_lines, second.facts["micro_batch_size"].value) == ("train:2", (), 8)
    assert "the same run 2 times: also on line 2" in headline(first, Style())
    assert "the same run" not in headline(second, Style())


def test_a_loop_over_seeds_is_one_run_that_starts_at_one_place() -> None:
    script = "for SEED in 1 2 3; do\n" + TRAIN.format("4 --seed $SEED") + "done\n"
    (run,) = check_text("train.sh", script).runs
    assert run.also_lines == ()


def test_eight_commands_that_differ_are_eight_runs() -> None:
    report = check_text("train.sh", "".join(TRAIN.format(size) for size in range(1, 9)))
    assert [run.facts["micro_batch_size"].value for run in report.runs] == list(range(1, 9))
    assert all(run.estimate is not None for run in report.runs)
    assert all(finding.code != "MEM011" for finding in report.findings)


def test_runs_that_were_affordable_stay_and_the_work_limit_is_one_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate = Estimates.own

    def dear(self: Estimates, *options: bool) -> Any:
        work.spend(work.FILE_STEPS * 28 // 100, "an expensive estimate")
        return estimate(self, *options)

    monkeypatch.setattr(Estimates, "own", dear)
    report = check_text("train.sh", "".join(TRAIN.format(size) for size in range(1, 41)))
    estimated = [run.facts["micro_batch_size"].value for run in report.runs if run.estimate is not None]
    assert estimated == [1, 2, 3]
    assert [finding.code for finding in report.findings].count("MEM011") == 1
    assert len(report.runs) == 4  # the one in which the work was used up says so


def test_the_price_of_many_commands_is_that_of_those_that_differ() -> None:
    def used(script: str) -> int:
        document = shell.read("train.sh", script)
        with work.limited(work.FILE_STEPS) as meter:
            registry.specs(document)
        return meter.used

    equal, different = TRAIN.format(4) * 40, "".join(TRAIN.format(size) for size in range(1, 41))
    assert used(different) > 10 * used(equal)


@pytest.mark.parametrize("part", ["A=>b\n", "A=<a ", "function <<E", ";;case ", "a=(\n"])
@pytest.mark.parametrize("long", [False, True])
def test_what_the_grammar_cannot_read_has_a_price(part: str, long: bool) -> None:
    """Its way back takes the square of what it could not read, whether bash takes that or not."""
    text = "echo a\n" * 4000 * long + part * (3000 if long else shell_tree.STRETCH // len(part))
    with work.limited(200_000), pytest.raises(work.OutOfWork, match="hardly a script"):
        shell_tree.parse(text)


def test_a_few_places_that_the_grammar_cannot_read_cost_next_to_nothing() -> None:
    def used(text: str) -> int:
        with work.limited(work.FILE_STEPS) as meter:
            shell_tree.parse(text)
        return meter.used

    assert used(TRAIN + "A=>b\n" * 40) < used(TRAIN + "A=bc\n" * 40) + 1000
    assert used("echo a\n" * 9000) == used("echo a\n" * 9000) < 60_000


def test_no_piece_of_a_long_pipeline_lacks_a_command() -> None:
    # The grammar's search for one takes forty times as long as reading the piece.
    pieces = list(shell_tree._stretches("a" + " | a" * 20_000))
    assert len(pieces) > 1
    assert [piece for piece in pieces if shell_tree.parse(piece).root_node.has_error] == []
