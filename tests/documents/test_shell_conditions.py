"""Conditions of a script against a real bash; and those that nobody can tell, which choose no branch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.documents.test_shell_expansion import argv, needs_bash, run_in_bash

__all__ = ("run_in_bash",)  # the fixture

BEFORE = "A=abc\nE=\nN=3\nS='a b'\nP='a*'\n"

KNOWN = [
    # texts
    *('[ "$A" = abc ]', '[ "$A" = abd ]', '[ "$A" == abc ]', '[ "$A" != abc ]', '[ "$A" != abd ]', '[ "$S" = "a b" ]'),
    *('[ -z "$A" ]', '[ -z "$E" ]', '[ -n "$A" ]', '[ -n "$E" ]', '[ "$A" ]', '[ "$E" ]', "[[ $A ]]", "[[ $E ]]"),
    *('[ ! -z "$A" ]', '! [ -z "$A" ]', "[[ ! -n $A ]]", 'test "$A" = abc', "test -z abc"),
    # numbers
    *(f"[ $N {sign} {other} ]" for sign in ("-eq", "-ne", "-lt", "-le", "-gt", "-ge") for other in (2, 3, 4)),
    *("[[ $N -gt 2 ]]", "[[ $N -gt 3 ]]", "(( N > 2 ))", "(( N > 3 ))", "(( 0 ))", "(( N ))", "((N-3))"),
    # patterns
    *("[[ $A == a* ]]", "[[ $A == b* ]]", "[[ $A == *c ]]", "[[ $A == a?c ]]", "[[ $A == a?? ]]", "[[ $A == a?d ]]"),
    *("[[ $A == [a-c]bc ]]", "[[ $A == [!a]bc ]]", "[[ $A == [^a]bc ]]", "[[ $A == [^x]bc ]]", "[[ $A != a* ]]"),
    *(
        '[[ $A == "a*" ]]',
        '[[ $P == "a*" ]]',
        "[[ $P == 'a*' ]]",
        '[[ $A == "a"* ]]',
        '[[ $P == "a"* ]]',
        "[[ $A == $P ]]",
    ),
    *('[[ $A == "$P" ]]', '[[ $P == "$P" ]]', "[[ $A == a\\* ]]", "[[ $P == a\\* ]]", '[[ "a?c" == "a?"c ]]'),
    *('[[ "a[c" == "a["c ]]', '[[ abc == "a["* ]]', '[[ "a[x" == "a["* ]]', "[[ $A == abc ]]", "[[ $A = abd ]]"),
    *("[[ abc == ['!a']* ]]", "[[ '!bc' == ['!a']* ]]", "[[ xbc == ['!a']* ]]", "[[ xbc == ['^a']* ]]"),
    # several
    *(
        "[[ $A == abc && $N -eq 3 ]]",
        "[[ $A == abc && $N -eq 4 ]]",
        "[[ $A == abd || $N -eq 3 ]]",
        "[[ $A == x || -z $A ]]",
    ),
    *(
        "[[ ( $A == abc ) ]]",
        "[[ ! ( $A == abc || $N -eq 4 ) ]]",
        "[ $N -eq 3 ] && [ -z '' ]",
        "[ $N -eq 4 ] || [ -n x ]",
    ),
    # commands
    *("true", "false", ":", "! true", "! false", "true && false", "true || false", "false || true"),
]


def script(condition: str) -> str:
    return f"{BEFORE}if {condition}; then X=y; else X=n; fi\npython t.py --x $X\n"


@needs_bash
@pytest.mark.parametrize("condition", KNOWN)
def test_a_condition_holds_where_it_does_in_bash(condition: str, run_in_bash: Callable[[str], list[list[str]]]) -> None:
    assert [words[1:] for words in argv(script(condition))] == [words[1:] for words in run_in_bash(script(condition))]


def chosen(condition: str, before: str = BEFORE) -> str | None:
    [words] = argv(f"{before}if {condition}; then X=y; else X=n; fi\npython t.py --x $X\n")
    return words[-1]


@pytest.mark.parametrize(
    "condition",
    [
        *("[ -f x ]", "[ -d x ]", "[[ -e x ]]", "[ ! -f x ]", "[[ $A =~ a.c ]]", "[[ $A < b ]]"),
        *(
            "[[ $A == ?(a)bc ]]",
            "[[ $A == [[:alpha:]]bc ]]",
            "[[ $A == @(abc|d) ]]",
            "[[ $A == +(a)* ]]",
            "[[ $A == !(x) ]]",
        ),
        *('[ "$(date)" = x ]', "[[ $(date) == x ]]", "[ $(date) -eq 3 ]", "[[ $A == $(date) ]]", "[ $N -eq $(date) ]"),
        *("[ x -nt y ]", "grep -q x y", "[[ -v A ]]", "[[ -f x && -f y ]]", "[[ -f x || -z $A ]]", "(( RANDOM > 3 ))"),
        *("[ $N -eq x ]", "[ 1.5 -gt 1 ]"),
    ],
)
def test_a_condition_that_nobody_can_tell_chooses_nothing(condition: str) -> None:
    assert chosen(condition) is None


@pytest.mark.parametrize(
    ("condition", "branch"),
    [
        pytest.param("[[ -f x && $N -eq 4 ]]", "n", id="one that fails decides an and"),
        pytest.param("[[ $N -eq 4 && -f x ]]", "n", id="also in front"),
        pytest.param("[[ -f x || $N -eq 3 ]]", "y", id="one that holds decides an or"),
        pytest.param("[[ $N -eq 3 || -f x ]]", "y", id="also in front of it"),
    ],
)
def test_a_part_that_decides_makes_the_rest_known(condition: str, branch: str) -> None:
    assert chosen(condition) == branch


@pytest.mark.parametrize(
    ("condition", "branch"),
    [
        pytest.param('[ -z "$NOT_SET" ]', "y", id="a variable that the script does not set is empty by default"),
        pytest.param('[ -n "$NOT_SET" ]', "n", id="and is not full"),
        pytest.param('[ "$NOT_SET" ]', "n", id="by itself"),
        pytest.param('[ ! "$NOT_SET" ]', "y", id="denied"),
        pytest.param('[ "$NOT_SET" = "" ]', "y", id="compared with nothing"),
        pytest.param('[ "$NOT_SET" != "" ]', "n", id="told from nothing"),
        pytest.param('[ -z "$1" ]', "y", id="an argument is missing by default"),
        pytest.param('[[ -n "${1}" ]]', "n", id="in braces"),
        pytest.param('[ -z "${NOT_SET}" ]', "y", id="a variable in braces"),
        pytest.param('[ "$NOT_SET" = x ]', None, id="compared with something it may be anything"),
        pytest.param('[ -z "$0" ]', None, id="the script's own name"),
        pytest.param('[ -z "$NOT_SET$1" ]', None, id="two of them"),
        pytest.param('[ -z "x$(date)" ]', None, id="what a command says"),
    ],
)
def test_what_the_script_does_not_set(condition: str, branch: str | None) -> None:
    found = chosen(condition)
    assert found == branch


def test_an_argument_that_was_put_into_a_variable_is_missing_by_default_as_well() -> None:
    assert chosen('[ -z "$M" ]', "M=$1\n") == "y"
    assert chosen('[ -z "$M" ]', "M=$1$2\n") is None
    assert chosen('[ -z "$M" ]', "M=x$1\n") is None


def test_what_an_unknown_condition_assigns_is_not_known_any_more() -> None:
    [words] = argv("N=3\nif (( (N = RANDOM) > 3 )); then :; fi\npython t.py --n $N\n")
    assert words[-1] is None
