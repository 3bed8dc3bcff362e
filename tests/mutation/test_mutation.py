"""The mutation script judges rightly: what a test notices is killed, what none notices survives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.__main__ import TESTS, Equivalent, Figures, equivalents, known_as_equivalent, table
from tests.mutation.mutants import mutants
from tests.mutation.runner import path_of, sample

ROOT = Path(__file__).parents[2]

MODULE = '''\
"""A module."""


def within(size: int, low: int = 0) -> bool:
    """Whether a size is within bounds."""
    while size > 9:
        size -= 1
    return low <= size
'''
TEST = """\
import subprocess
import sys

from demo.sizes import within


def test_within() -> None:
    assert within(0)
    assert not within(1, 2)
    assert within(12, 9)
    assert not within(12, 10)


def test_in_a_process_of_its_own() -> None:
    code = "from demo.sizes import within; print(within(1))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "True\\n"
"""


def changes(source: str) -> list[tuple[str, str]]:
    return [(mutant.line, mutant.change) for mutant in mutants(source)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param("x = a < b\n", {"< -> <=", "< -> >="}, id="a comparison"),
        pytest.param("x = a not in b\n", {"not in -> in"}, id="a membership"),
        pytest.param("x = a + b * c\n", {"+ -> -", "* -> //"}, id="arithmetic"),
        pytest.param("x = a and b or c\n", {"and -> or", "or -> and"}, id="words between conditions"),
        pytest.param("x = not a\n", {"not a -> (a)"}, id="a negation"),
        pytest.param("x = 7\n", {"7 -> 8", "7 -> 6"}, id="a number"),
        pytest.param("x = True\n", {"True -> False"}, id="a switch"),
        pytest.param("x = min(a, b)\n", {"min -> max"}, id="the lesser of two"),
        pytest.param("f(a, key=b)\n", {"f(a, key=b) -> pass", "key=b -> "}, id="a call with a keyword"),
        pytest.param("if a:\n    x.y = b\n", {"a -> (not a)", "x.y = b -> pass"}, id="a condition"),
        pytest.param("x = [a for a in b if c]\n", {"c -> True"}, id="a filter"),
        pytest.param(
            "def f() -> bool:\n    return a\n", {"return a -> return True", "return a -> return False"}, id="a bool"
        ),
        pytest.param("def f():\n    return a\n", {"return a -> return None"}, id="a result"),
        pytest.param(
            "while a:\n    break\n", {"a -> (not a)", "break -> continue", "break -> pass"}, id="a loop's end"
        ),
        pytest.param('x = f"{a + 1:>4}"\n', {"+ -> -", "1 -> 2", "1 -> 0"}, id="within a text"),
        pytest.param('"""About 3."""\nfrom a import b\n', set(), id="nothing runs"),
        pytest.param("if TYPE_CHECKING:\n    x = 1\n", set(), id="nothing runs but for types"),
        pytest.param("def f(a: list[3]) -> None:\n    pass\n", set(), id="annotations"),
        pytest.param(
            "PRICE = 3\nwork.spend(PRICE + 2 * len(x), 'x')\n",
            {"work.spend(PRICE + 2 * len(x), 'x') -> pass"},
            id="a payment is made or not, and its price is left alone",
        ),
        pytest.param(
            "LIMIT = 3\nwork.spend(LIMIT, 'x')\nx = LIMIT\n",
            {"3 -> 4", "3 -> 2", "work.spend(LIMIT, 'x') -> pass"},
            id="a constant that is not only a price",
        ),
    ],
)
def test_mutants(source: str, expected: set[str]) -> None:
    if 'f"' in source:
        assert len(changes(source)) == len(expected)
        assert all(compile(mutant.applied(source), "", "exec") for mutant in mutants(source))
    else:
        assert {change for _, change in changes(source)} == expected


def test_a_mutant_is_one_change_at_its_place() -> None:
    [mutant] = [each for each in mutants(MODULE) if each.change == "<= -> <"]
    assert mutant.function == "within"
    assert mutant.applied(MODULE) == MODULE.replace("low <= size", "low < size")
    assert mutant.shown(MODULE) == "8: within\n  -    return low <= size\n  +    return low < size"


def test_places_are_counted_in_characters() -> None:
    source = 'x = "\u00e9\U0001f600" if a < b else 1  # \u00e9\n'
    assert 'x = "\u00e9\U0001f600" if a <= b else 1  # \u00e9\n' in [each.applied(source) for each in mutants(source)]


def test_equal_changes_of_a_line_are_told_apart() -> None:
    assert [change for _, change in changes("x = a + b + c\n")] == ["+ -> -", "+ -> - #2"]


def test_a_sample_is_the_same_for_the_same_seed() -> None:
    every = mutants(MODULE)
    assert sample(every, None, 1) == every
    assert sample(every, 5, 1) == sample(every, 5, 1) != sample(every, 5, 2)
    assert [each.start for each in sample(every, 5, 1)] == sorted(each.start for each in sample(every, 5, 1))


def test_the_script_judges_each_mutant(tmp_path: Path) -> None:
    """One run over all mutants of a small module: each verdict is known."""
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "__init__.py").touch()
    (tmp_path / "demo" / "sizes.py").write_text(MODULE)
    (tmp_path / "test_sizes.py").write_text(TEST)
    command = [
        sys.executable,
        "-c",
        RUN.format(root=str(ROOT)),
        "demo.sizes",
        "--tests",
        "test_sizes.py",
        "--spare",
        "1",
    ]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    survivors = [line[3:].strip() for line in found.stdout.splitlines() if line.startswith("  +")]
    assert survivors == ["def within(size: int, low: int = -1) -> bool:"], found.stdout + found.stderr
    [row] = [line.split() for line in found.stdout.splitlines() if line.startswith("demo.sizes")]
    assert row[1:] == ["13", "9", "3", "1", "0", "92%"], "three never end: the loop no longer counts down"
    assert found.returncode == 1
    assert not list((tmp_path / "demo" / "__pycache__").glob("sizes*")), "bytecode of a mutant would outlive it"


RUN = (
    "import sys; sys.path[:0] = [{root!r}, '.']; from tests.mutation.__main__ import main; sys.exit(main(sys.argv[1:]))"
)


def test_tests_that_fail_by_themselves_judge_nothing(tmp_path: Path) -> None:
    (tmp_path / "sizes_of.py").write_text("LIMIT = 3\n")
    (tmp_path / "test_it.py").write_text("import sizes_of\n\n\ndef test_it():\n    assert sizes_of.LIMIT == 4\n")
    command = [sys.executable, "-c", RUN.format(root=str(ROOT)), "sizes_of", "--tests", "test_it.py"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 2
    assert "the tests fail on sizes_of itself" in found.stderr


def test_the_table_adds_up_folders() -> None:
    rows = list(table([Figures("a.b", 8, 1, 1, 2), Figures("a.c", 1, 0, 0, 0), Figures("d.e", 0, 0, 0, 1)]))
    assert [row.split() for row in rows[1:]] == [
        ["a.b", "12", "8", "1", "1", "2", "90%"],
        ["a.c", "1", "1", "0", "0", "0", "100%"],
        ["d.e", "1", "0", "0", "0", "1", "100%"],
        ["a,", "2", "modules", "13", "9", "1", "1", "2", "91%"],
    ]


def test_every_module_and_test_of_the_table_is_there() -> None:
    for module, tests in TESTS.items():
        assert Path(path_of(module)).is_file()
        for test in tests:
            assert (ROOT / test).exists(), test


@pytest.mark.parametrize("entry", equivalents(), ids=lambda entry: f"{entry.module}, {entry.line}, {entry.mutation}")
def test_an_equivalent_mutant_is_one_of_its_module(entry: Equivalent) -> None:
    source = Path(path_of(entry.module)).read_text(encoding="utf-8")
    assert sum(known_as_equivalent([entry], entry.module, mutant) for mutant in mutants(source)) == 1
    assert entry.reason
