"""Conditions of a script against a real bash; and those that nobody can tell, which choose no branch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.documents.bash import words
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


# ------------------------------------------------------------------------------------- branches and lists alike

_BEFORE = "A=abc\nE=\nN=3\nS='a b'\nP='a*'\nset -- one two\n"
_FORMS = ("if {}; then X=y; else X=n; fi", "X=n; {} && X=y", "X=y; {} || X=n")
HOLDS_OR_NOT = (
    *(
        "[[ -n '' ]]",
        "[ -n ]",
        "[ a ]",
        "[ '' ]",
        "[ ! a ]",
    ),
    *(
        "[ ! '' ]",
        "[ ! ! a ]",
        "[[ ! ! a ]]",
        '[ "$1" ]',
        '[ "$3" ]',
    ),
    *(
        '[ -z "$3" ]',
        "[ -z $3 ]",
        '[ -n "$1" ]',
        "[ $# -eq 2 ]",
        '[ "$#" -lt 2 ]',
    ),
    *(
        "(( $# == 2 ))",
        "[[ $# -gt 2 ]]",
        '[ "$1" = one ]',
        "[[ ( $N -eq 3 ) && ( $N -ne 4 ) ]]",
        "[[ ! $N -eq 3 || $N -ne 3 ]]",
    ),
    *(
        "[[ $N -eq 3 && $A == abc && -n $S ]]",
        "[[ $N -eq 4 || $A == x || -n $E ]]",
        "[[ $N -eq N ]]",
        "[[ N -eq 3 ]]",
        "[ 03 -eq 3 ]",
    ),
    *(
        "[[ 010 -eq 8 ]]",
        "[ 010 -eq 8 ]",
        "[ ' 3' -eq 3 ]",
        "[ +3 -eq 3 ]",
        "[ -3 -lt 0 ]",
    ),
    *(
        "[[ 1+2 -eq 3 ]]",
        "[[ '' -eq 0 ]]",
        "[[ 0x3 -eq 3 ]]",
        "[ $A == a* ]",
        "[ 'a*' == a* ]",
    ),
    *(
        "[[ $S == a\\ b ]]",
        "[[ $S == 'a b' ]]",
        "[[ $S == a' 'b ]]",
        "[[ $S == a* ]]",
        "[[ $S == *' 'b ]]",
    ),
    *(
        "[[ $S == *\\ * ]]",
        "[[ a+b == a+b ]]",
        "[[ a@b == a@b ]]",
        "[[ a\\*b == a\\*b ]]",
        "[[ 'a\\b' == 'a\\b' ]]",
    ),
    *(
        "[[ '[x]' == '[x]' ]]",
        "[[ x == '[x]' ]]",
        "[[ x == [x] ]]",
        "[[ '?' == '?' ]]",
        "[[ x == '?' ]]",
    ),
    *(
        "[[ xy == '?'y ]]",
        "[[ '?y' == '?'y* ]]",
        "[[ 'xy' == '?'y* ]]",
        "[[ '*y' == '*'y* ]]",
        "[[ ay == '*'y* ]]",
    ),
    *(
        "[[ a-b == a-* ]]",
        "[[ a.b == a.* ]]",
        "[[ a.b == a?b ]]",
        "[[ ab == a?b ]]",
        "[[ A == a ]]",
    ),
    *(
        "[[ abc = a*c ]]",
        "[[ abc != a*c ]]",
        "[[ $E == '' ]]",
        '[[ $E == "" ]]',
        "[[ $E != '' ]]",
    ),
    *(
        "[[ $A == '' ]]",
        "[ \"$E\" = '' ]",
        "[[ $E == * ]]",
        "[[ $E == ? ]]",
        "[[ abc == [^x]* ]]",
    ),
    *(
        "[[ abc == [^a]* ]]",
        "[[ abc == [a-b]* ]]",
        "[[ abc == [b-c]* ]]",
        "((N))",
        "((N-3))",
    ),
    *(
        "((N==3))",
        "(( N != 3 ))",
        "(( N >= 3 && N < 4 ))",
        "((0))",
        "(( 1 ))",
    ),
    *(
        "(( (N) ))",
        "((!N))",
        "(($N))",
        "test a = a",
        "test a == b",
    ),
    *(
        "test a != a",
        "test a != b",
        "test -n ''",
        "test -n a",
        "test -z ''",
    ),
    *(
        'test "$1" = one',
        "true",
        "false",
        ":",
        "! true",
    ),
    *(
        "! false",
        ": || false",
        "true | false",
        "(true)",
        "(false)",
    ),
    *(
        "{ true; }",
        "{ false; }",
        "! (false)",
        "true && ! false",
        "exit 3 | true",
    ),
)
NOT_TOLD = (
    *("[ -f x ]", "[[ -e x ]]", "[ ! -f x ]", "[[ $A =~ a.c ]]", "[[ $A < b ]]", "[[ $A == [[:alpha:]]bc ]]"),
    *('[ "$(date)" = x ]', '[ x = "$(date)" ]', '[ "$(date)" != "" ]', "[[ $(date) == x ]]", "[[ x == $(date) ]]"),
    *(
        "[[ $A == @(abc|d) ]]",
        "[ $(date) -eq 3 ]",
        "[ 3 -eq $(date) ]",
        "[ $N -eq x ]",
        "[ x -eq $N ]",
        "[[ $Q -eq 3 ]]",
    ),
    *(
        "[[ 3 -eq $Q ]]",
        "[[ 3 -eq Q ]]",
        "[[ 1/0 -eq 3 ]]",
        "[ x -nt y ]",
        "[[ -v A ]]",
        "[ -z $(date) ]",
        "[ $(date) ]",
    ),
    *("[[ -f x && -f y ]]", "[[ -f x || $A == x ]]", "[[ ( -f x ) ]]", "(( RANDOM > 3 ))", "(( Q ))", "[ ! $(date) ]"),
    *('[ "$Q" = x ]', '[ x = "$Q" ]', "[[ $A == $Q* ]]", "test $(date) = x", "test -f x", "test -z $(date)"),
    *(
        "[ ]",
        "[ $N -eq 3 -a $N -ne 4 ]",
        "[ $N -eq 3 -o $N -eq 4 ]",
        "[ ! $N -eq 3 ]",
        "[ 1_0 -eq 10 ]",
    ),
    *(
        "[ '' -eq 0 ]",
        "[ 3.0 -eq 3 ]",
        "[ 0x3 -eq 3 ]",
        "[[ ] == []] ]]",
        "[[ a == [!]] ]]",
    ),
    *(
        "(( ${#A} == 3 ))",
        "test abc",
        "test ''",
        "test",
        "test ! a",
    ),
    *(
        "test 3 -eq 3",
        "test -z",
        "test a = a -a b = b",
    ),
)


@needs_bash
@pytest.mark.parametrize("form", _FORMS, ids=["an if", "an and", "an or"])
def test_each_condition_holds_where_it_does_in_bash(form: str) -> None:
    scripts = [_BEFORE + form.format(condition) for condition in HOLDS_OR_NOT]
    found = [argv(f"{script}\npython t.py --x $X\n")[-1][-1] for script in scripts]
    expected = [word for (word,) in words([f"$({script}\necho $X)" for script in scripts])]
    assert [*zip(HOLDS_OR_NOT, found)] == [*zip(HOLDS_OR_NOT, expected)]


@pytest.mark.parametrize("form", _FORMS, ids=["an if", "an and", "an or"])
@pytest.mark.parametrize("condition", NOT_TOLD)
def test_a_condition_that_is_not_told_leaves_it_open(condition: str, form: str) -> None:
    assert argv(f"{_BEFORE}{form.format(condition)}\npython t.py --x $X\n")[-1][-1] is None


@pytest.mark.parametrize(
    ("condition", "default"),
    [
        pytest.param('[ -z "$X" ]', True, id="a variable that is not set"),
        pytest.param('[ -z "${X:-}" ]', True, id="with an empty default"),
        pytest.param('[ -z "${X-}" ]', True, id="with an empty default where it is not set"),
        pytest.param('[ -z "${X+}" ]', True, id="with an empty alternative"),
        pytest.param('[ -z "${X:+x}" ]', True, id="with an alternative"),
        pytest.param("[ -z ${X} ]", True, id="in braces alone"),
        pytest.param("[[ -z $1 ]]", True, id="an argument"),
        pytest.param('[ -n "$1" ]', False, id="an argument that is not there"),
        pytest.param('! [ -n "$X" ]', True, id="denied outside"),
        pytest.param('[ ! -n "$X" ]', True, id="denied inside"),
        pytest.param('[[ ! ( -n "$X" ) ]]', True, id="denied around parentheses"),
        pytest.param("[[ -z $X && -z $Y ]]", True, id="both"),
        pytest.param("[[ -n $X || -n $Y ]]", False, id="neither"),
        pytest.param("[[ -n $X || -z $Y ]]", None, id="one of two defaults"),
        pytest.param("[[ -z $X && -f x ]]", None, id="and what nobody can tell"),
        pytest.param('[ "$X" == "" ]', True, id="compared with nothing"),
        pytest.param("[[ $X != '' ]]", False, id="told from nothing"),
        pytest.param('[ "$X" = "$X" ]', None, id="compared with itself"),
        pytest.param('[ "$0" = "" ]', None, id="the name of the script"),
        pytest.param('[ -z "x$X" ]', None, id="with text in front of it"),
        pytest.param('[ -z "$(x)" ]', None, id="the output of a command"),
        pytest.param('[ -z "$@" ]', None, id="all arguments"),
        pytest.param('[ -z "$RANDOM$X" ]', None, id="two variables"),
    ],
)
def test_what_holds_by_default(condition: str, default: bool | None) -> None:
    """What is set where it holds by default, beside a branch that ends the script: only then the other one counts."""
    [both] = argv(f"if {condition}; then A=y; else A=n; fi\npython t.py --x $A\n")
    assert both[-1] == {True: "y", False: "n", None: None}[default]
    [ended] = argv(f"if {condition}; then A=y; exit; else A=n; fi\npython t.py --x $A\n")
    assert ended[-1] == "n"


def test_an_argument_that_a_function_got_is_no_default() -> None:
    assert chosen('[ -z "$1" ]', "set -- a\n") == "n"
    assert chosen('[ -z "$2" ]', "set -- a\n") == "y"
    assert chosen('[ -z "$2" ]', "set -- a $Y\n") is None
    assert chosen('[ -z "$A" ]', "A=$Y\n") is None
    assert chosen('[ -z "$A" ]', "A=(a b)\n") == "n"


def test_what_arithmetic_of_a_condition_may_have_assigned_is_not_known() -> None:
    [found] = argv("A=1 B=1 C=1\n(( (A = X) > B + C ))\npython t.py --x $A $B $C\n")
    assert found[2:] == [None, "1", "1"]


SUCCEED = [
    *("A=1", "export A=1", "declare A=1", "unset A", "readonly Q=1", ": > out", "python other.py"),
    *("while false; do :; done", "for i in 1; do :; done", "set -e", "shopt -s extglob", "cd ."),
]
HERE = ["read X <<END", "bash <<END", "cat > s.txt <<END", "tee t.txt <<END"]


@pytest.mark.parametrize("command", [*SUCCEED, *HERE])
def test_what_comes_where_a_command_succeeds_is_the_normal_case(command: str) -> None:
    text = ":\nEND\n" if command in HERE else ""
    assert argv(f"{command} && C=6\n{text}python t.py --c ${{C:-2}}\n")[-1] == ["t.py", "--c", "6"]


@pytest.mark.parametrize("command", [*SUCCEED, *HERE])
def test_what_comes_where_a_command_fails_is_not_the_normal_case(command: str) -> None:
    text = ":\nEND\n" if command in HERE else ""
    assert argv(f"{command} || B=5\n{text}python t.py --b ${{B:-1}}\n")[-1] == ["t.py", "--b", "1"]
