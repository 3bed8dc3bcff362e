"""Functions that are declared to return a ``Config``: followed, and never run."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from memlint.documents.load import load
from memlint.documents.node import Document, Unresolved


def read(text: str) -> Document:
    return load("config_registry.py", textwrap.dedent(text))


@pytest.mark.parametrize(
    ("body", "value"),
    [
        pytest.param("return Trainer.Config(a=1)", {"_target_": "Trainer.Config", "a": 1}, id="keyword arguments"),
        pytest.param("return make('8B', b=2)", {"_target_": "make", "_args_": ["8B"], "b": 2}, id="and others"),
        pytest.param(
            "part = Part(n=3)\n    return Trainer.Config(part=part)",
            {"_target_": "Trainer.Config", "part": {"_target_": "Part", "n": 3}},
            id="a part with a name",
        ),
        pytest.param(
            "config = base()\n    config.n = 2 * 3\n    return config",
            {"_target_": "Trainer.Config", "n": 6, "part": {"_target_": "Part.Config"}},
            id="another function's config with a change",
        ),
        pytest.param(
            "config = base()\n    config.part.k = True\n    return config",
            {"_target_": "Trainer.Config", "n": 1, "part": {"_target_": "Part.Config", "k": True}},
            id="a change within",
        ),
    ],
)
def test_what_a_function_builds(body: str, value: Any) -> None:
    text = (
        "def base() -> Trainer.Config:\n    return Trainer.Config(n=1, part=Part.Config())\n\n\n"
        f"def ours() -> Trainer.Config:\n    {body}\n"
    )
    assert read(text).root.value["ours"].plain() == value  # type: ignore[index, call-overload, union-attr]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "def f(size) -> Trainer.Config:\n    return Trainer.Config(n=size)", id="it must be given something"
        ),
        pytest.param("def f():\n    return Trainer.Config(n=1)", id="it does not say what it returns"),
        pytest.param("@cached\ndef f() -> Trainer.Config:\n    return Trainer.Config(n=1)", id="it is decorated"),
        pytest.param("def f() -> Trainer.Config:\n    return f()", id="it calls itself"),
        pytest.param("def f() -> int:\n    return 1", id="it returns something else"),
    ],
)
def test_what_is_no_config_function(text: str) -> None:
    root = read(text).root
    assert root.get("f") is None or root.get("f").plain() is None  # type: ignore[union-attr]


def test_two_that_call_each_other_end() -> None:
    text = "def f() -> T.Config:\n    return T.Config(x=g())\n\n\ndef g() -> T.Config:\n    return T.Config(x=f())\n"
    node = read(text).root.get("f.x.x")
    assert node is not None
    assert isinstance(node.value, Unresolved)


def test_functions_of_the_module_are_not_called() -> None:
    text = "def size():\n    return 4\n\n\ndef f() -> T.Config:\n    return T.Config(n=size())\n"
    node = read(text).root.get("f.n")
    assert node is not None
    assert isinstance(node.value, Unresolved)
    assert node.value.reason == "calls size()"


def test_places_are_those_of_the_arguments() -> None:
    text = "def f() -> T.Config:\n    return T.Config(\n        n=16,\n    )\n"
    node = read(text).root.get("f.n")
    assert node is not None
    assert node.key_span is not None
    assert (node.key_span.line, node.key_span.column, node.span.column) == (3, 9, 11)


def test_a_change_stands_where_it_is_made() -> None:
    text = "def a() -> T.Config:\n    return T.Config(n=1)\n\n\n"
    text += "def b() -> T.Config:\n    c = a()\n    c.n = 2\n    return c\n"
    node = read(text).root.get("b.n")
    assert node is not None
    assert (node.value, node.span.line) == (2, 7)
