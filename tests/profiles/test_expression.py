"""Formulas against Python's own arithmetic."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlint.profiles.expression import MAX_DEPTH, MAX_OPERATIONS, ExpressionError, parse

NAMES = ("B", "S", "H")
PYTHON = {"min": min, "max": max, "floor": math.floor, "ceil": math.ceil, "trunc": math.trunc}


def _formulas() -> st.SearchStrategy[str]:
    leaves = st.one_of(st.integers(0, 50).map(str), st.sampled_from(NAMES), st.sampled_from(("0.5", "1.25")))

    def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        pairs = st.tuples(inner, inner)
        operators = st.sampled_from(("+", "-", "*", "//", "%", "/", " - ", " * "))
        return st.one_of(
            st.tuples(pairs, operators).map(lambda x: f"{x[0][0]}{x[1]}{x[0][1]}"),
            inner.map(lambda x: f"({x})"),
            inner.map(lambda x: f"-({x})"),
            st.tuples(inner, st.integers(0, 3)).map(lambda x: f"({x[0]})**{x[1]}"),
            st.tuples(st.sampled_from(("min", "max")), pairs).map(lambda x: f"{x[0]}({x[1][0]}, {x[1][1]})"),
            st.tuples(st.sampled_from(("floor", "ceil", "trunc")), inner).map(lambda x: f"{x[0]}({x[1]})"),
        )

    return st.recursive(leaves, grow, max_leaves=12)


VALUES = st.fixed_dictionaries({name: st.integers(1, 100) for name in NAMES})


@given(_formulas(), VALUES)
def test_a_formula_is_worth_what_python_says(text: str, values: dict[str, int]) -> None:
    try:
        expected = eval(text, {"__builtins__": {}}, {**PYTHON, **values})  # the oracle; our own text
    except (ZeroDivisionError, OverflowError, ValueError):
        with pytest.raises(ExpressionError):
            parse(text).value(values)
        return
    try:
        found = parse(text).value(values)
    except ExpressionError as error:
        if "bits" not in str(error):
            raise
        return
    assert found == expected or (math.isnan(expected) and math.isnan(found))
    assert type(found) is type(expected)


@given(_formulas(), _formulas(), st.sampled_from(("==", "!=", "<", "<=", ">", ">=")), VALUES)
def test_a_guard_holds_where_python_says(left: str, right: str, operator: str, values: dict[str, int]) -> None:
    text = f"{left} {operator} {right}"
    joined = f"not {text} or ({text}) and B > 5"
    try:
        expected = eval(joined, {"__builtins__": {}}, {**PYTHON, **values})
        found = parse(joined).value(values)
    except (ExpressionError, ZeroDivisionError, OverflowError, ValueError):
        return
    assert bool(found) is bool(expected)


@given(_formulas(), VALUES)
def test_factors_multiply_to_the_whole(text: str, values: dict[str, int]) -> None:
    try:
        whole = parse(text).value(values)
        product = math.prod(parse(factor).value(values) for factor in parse(text).factors())
    except (ExpressionError, OverflowError):
        return
    assert product == pytest.approx(whole, nan_ok=True)


@given(st.text(alphabet="BS0123456789+-*/%()., <>=!andorminfloc_", max_size=40))
def test_any_text_is_a_formula_or_an_error_of_ours(text: str) -> None:
    with contextlib.suppress(ExpressionError):
        parse(text).value({"B": 2, "S": 3})


WRONG = {
    "a call of anything else": ("__import__(1)", "no function '__import__'"),
    "an attribute": ("B.bit_length", "'.' is not part of a formula"),
    "text in quotes": ("'x'", "is not part of a formula"),
    "an index": ("B[0]", "is not part of a formula"),
    "nothing": ("", "a number or a name is expected where 'the end' stands"),
    "an operator without its right side": ("B*", "where 'the end' stands"),
    "a bracket that is not closed": ("(B", "')' is expected"),
    "two numbers in a row": ("1 2", "'2' is not expected there"),
    "two comparisons in a row": ("1 < B < 3", "'<' is not expected there"),
    "a call with too many arguments": ("floor(1, 2)", "takes one argument"),
    "brackets without end": ("(" * 1000, "deep"),
    "signs without end": ("-" * 700 + "1", "deep"),
    "a sum without end": ("+".join("1" * 1000), f"more than {MAX_OPERATIONS} operations"),
    "a long text": ("1" * 30_000, "more than 20,000 characters"),
    "a digit of another script": ("٣", "is not part of a formula"),
}


@pytest.mark.parametrize(("text", "said"), WRONG.values(), ids=WRONG)
def test_what_is_no_formula_is_refused(text: str, said: str) -> None:
    with pytest.raises(ExpressionError, match=r".*") as caught:
        parse(text)
    assert said in str(caught.value)


WORTHLESS = {
    "a division by zero": "1//(B-2)",
    "a remainder by zero": "1%(B-2)",
    "a name without a value": "X",
    "a power that is too large": "B**1000",
    "a product that is too large": "*".join(["9999999999999999999"] * 20),
    "a tower of powers": "9**9**9**9",
    "a negative exponent": "B**(0-1)",
    "infinity as a whole number": "floor(1e308*10.0)",
}


@pytest.mark.parametrize("text", WORTHLESS.values(), ids=WORTHLESS)
def test_what_has_no_value_is_an_error(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse(text).value({"B": 2})


@pytest.mark.parametrize("text", ["0-1", "B/2", "B > 1", "0.5*B"])
def test_a_size_is_a_whole_number_of_at_least_0(text: str) -> None:
    with pytest.raises(ExpressionError, match="which is no size"):
        parse(text).size({"B": 2})


def test_powers_are_written_out_as_factors() -> None:
    assert parse("12*B*(H//16)**2").factors() == ["12", "B", "(H//16)", "(H//16)"]


def test_nesting_up_to_the_bound_is_fine() -> None:
    deep = "(" * (MAX_DEPTH - 1) + "B" + ")" * (MAX_DEPTH - 1)
    assert parse(deep).value({"B": 3}) == 3
