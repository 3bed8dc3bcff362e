"""Training programs that are followed: what their calls make, with which values."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.documents import program
from memlint.documents.node import Node, Span, Unresolved

PLACE = Span("run.sh", 1, 1, 1, 1)
PARSER = """
from dataclasses import dataclass, field
import argparse, fire, transformers
@dataclass
class Own:
    rank: int = field(default=8)
    on: bool = False
@dataclass
class Args(transformers.TrainingArguments):
    optim: str = field(default="adamw_torch")
"""
ARGPARSE = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int, default=4)
parser.add_argument("--no-bias", action="store_true")
parser.add_argument("--other")
args = parser.parse_args()
Made(rank=args.rank, bias=args.no_bias, other=args.other)
"""


def made(text: str, **options: str) -> dict[str, Any]:
    """What the call of ``Made`` is given; ``?`` for what is not known."""
    given = {name: Node(value, PLACE, None, name) for name, value in options.items()}
    calls = [call.plain() for call in program.read("train.py", text, given).calls]
    (found,) = (call for call in calls if call["_target_"] == "Made")
    return {name: "?" if isinstance(value, Unresolved) else value for name, value in found.items() if name[0] != "_"}


@pytest.mark.parametrize(
    ("text", "options", "found"),
    [
        pytest.param("r = 4\nMade(rank=r * 2)", {}, {"rank": 8}, id="a name, and what is reckoned with it"),
        pytest.param("def f(r, a=2):\n  Made(rank=r, alpha=a)\nf(8)", {}, {"rank": 8, "alpha": 2}, id="a function"),
        pytest.param("def f():\n  return 8\nMade(rank=f())", {}, {"rank": 8}, id="what a function returns"),
        pytest.param(
            "Made(a='chat' in 'Qwen-Chat'.lower(), b='Qwen'.startswith('Q'), c='x'.endswith(('y', 'x')))",
            {},
            {"a": True, "b": True, "c": True},
            id="what methods of a word say",
        ),
        pytest.param(
            "def main():\n  Made(rank=1)\nif __name__ == '__main__':\n  main()", {}, {"rank": 1}, id="a main guard"
        ),
        pytest.param("if False:\n  Made(rank=1)\nelse:\n  Made(rank=2)", {}, {"rank": 2}, id="a known condition"),
        pytest.param(ARGPARSE, {}, {"rank": 4, "bias": False, "other": None}, id="argparse's defaults"),
        pytest.param(
            ARGPARSE, {"rank": "16", "no_bias": "true"}, {"rank": 16, "bias": True, "other": None}, id="its options"
        ),
        pytest.param(
            PARSER + "a, b = transformers.HfArgumentParser((Own, Args)).parse_args_into_dataclasses()\n"
            "Made(rank=a.rank, optim=b.optim, bf16=b.bf16)",
            {"rank": "32"},
            {"rank": 32, "optim": "adamw_torch", "bf16": None},
            id="dataclasses that a parser fills",
        ),
        pytest.param(
            PARSER + "a = transformers.HfArgumentParser(Own).parse_args_into_dataclasses()[0]\nMade(rank=a.rank)",
            {},
            {"rank": 8},
            id="the only one of them",
        ),
        pytest.param(
            PARSER + "def train(rank: int = 2, on=False):\n  Made(rank=rank)\nfire.Fire(train)",
            {"rank": "64"},
            {"rank": 64},
            id="a function that fire starts",
        ),
        pytest.param(
            PARSER + "if len(sys.argv) == 2:\n  a = 1\nelse:\n  a = transformers.HfArgumentParser(Own).parse()\n"
            "Made(rank=a.rank)",
            {},
            {"rank": 8},
            id="a command of more than one word",
        ),
        pytest.param("Made(rank=unknown())", {}, {"rank": {"_target_": "unknown"}}, id="what another call makes"),
        pytest.param(
            "import torch\nMade(dtype=getattr(torch, 'bfloat16'))", {}, {"dtype": "torch.bfloat16"}, id="a dtype"
        ),
        pytest.param("x = input()\nMade(rank=x.y)", {}, {"rank": "?"}, id="what only running tells"),
    ],
)
def test_what_a_program_makes(text: str, options: dict[str, str], found: dict[str, Any]) -> None:
    assert made(text, **options) == found


def test_a_trainer_of_its_own_is_the_librarys_that_it_is_of() -> None:
    (found,) = program.read("train.py", "class T(trl.SFTTrainer):\n  pass\nT(model=1)", {}).calls
    assert found.plain() == {"_target_": "SFTTrainer", "_class_": "T", "model": 1}


def test_what_a_call_makes_is_no_list_of_its_arguments() -> None:
    text = "words = load()\nif 'rank' in words:\n  Made(rank=8)\nelse:\n  Made(rank=4)"
    found = program.read("train.py", text, {})
    assert [call.plain()["_target_"] for call in found.calls] == ["load"]
    assert found.doubts == {"Made": 2}


def test_what_is_called_under_a_condition_that_is_not_known_is_a_doubt() -> None:
    found = program.read("train.py", "if has():\n  Made(1)\nOther()\n", {})
    assert [call.plain()["_target_"] for call in found.calls] == ["has", "Other"]
    assert found.doubts["Made"] == 1


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("def f():\n  f()\nf()", id="a function that calls itself"),
        pytest.param("def f(n):\n  g(n)\ndef g(n):\n  f(n)\nf(1)", id="two that call each other"),
        pytest.param("".join(f"def f{i}():\n  f{i + 1}()\n  f{i + 1}()\n" for i in range(40)) + "f0()", id="doubling"),
        pytest.param("x = " + "(" * 150 + "1" + ")" * 150, id="brackets"),
        pytest.param("def", id="no Python"),
        pytest.param("\0", id="no text"),
    ],
)
def test_any_program_is_followed_to_an_end(text: str) -> None:
    assert program.read("train.py", text, {}).document.text == text
