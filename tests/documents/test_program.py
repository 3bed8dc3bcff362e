"""Training programs that are followed: what their calls make, with which values."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.dialects import tuning
from memlint.documents.load import load
from memlint.documents.node import Document, Node, Span, Unresolved
from memlint.documents.programs import program
from memlint.documents.programs.functions import LINEAR
from memlint.documents.programs.state import Repository

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


LISTS_LINEAR = """\
def find(model):
  names = set()
  for name, module in model.named_modules():
    if isinstance(module, bnb.nn.Linear4bit):
      names.add(name.split('.')[-1])
  if 'lm_head' in names:
    names.remove('lm_head')
  return list(names)
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
        pytest.param(
            "class Ours(Made):\n  pass\nif True:\n  Kind = Ours\nKind(rank=1)",
            {},
            {"rank": 1},
            id="a class by another name",
        ),
        pytest.param(
            "r = None\nif load():\n  r = 8\nelif r is None:\n  raise ValueError()\nMade(rank=r)",
            {},
            {"rank": 8},
            id="a way that ends in an error",
        ),
        pytest.param(
            "r = None\nif load():\n  r = 8\nelif r is not None:\n  raise ValueError()\nMade(rank=r)",
            {},
            {"rank": "?"},
            id="a way that does not",
        ),
        pytest.param(
            "import torch\nif torch.__version__ < '2.0':\n  r = 1\nelse:\n  r = 2\n"
            "q = 3 if version.parse(torch.__version__) >= version.parse('1.10') else 4\nMade(rank=r, other=q)",
            {},
            {"rank": 2, "other": 3},
            id="a release is newer than one that a program looks back to",
        ),
        pytest.param(
            "from typing import cast\nr = cast(int, 8)\nMade(rank=r)",
            {},
            {"rank": 8},
            id="a value of a type that it is cast to",
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
            PARSER + "parser = transformers.HfArgumentParser((Own, Args))\n"
            "a, b, rest = parser.parse_args_into_dataclasses(return_remaining_strings=True)\n"
            "Made(rank=a.rank, optim=b.optim, first=rest[0] if rest else 1)",
            {"rank": "32"},
            {"rank": 32, "optim": "adamw_torch", "first": 1},
            id="dataclasses that a parser fills, and the strings that are left",
        ),
        pytest.param(
            PARSER + "def train(rank: int = 2, on=False):\n  Made(rank=rank)\nfire.Fire(train)",
            {"rank": "64"},
            {"rank": 64},
            id="a function that fire starts",
        ),
        pytest.param(
            PARSER + "def train(rank=2, on=False):\n  Made(rank=rank)\nfire.Fire(train)",
            {"rank": "[q_proj,'v_proj']"},
            {"rank": ["q_proj", "v_proj"]},
            id="a list as fire reads it",
        ),
        pytest.param(
            PARSER + "import tyro\na = tyro.cli(Own)\nMade(rank=a.rank, on=a.on)",
            {"rank": "64"},
            {"rank": 64, "on": False},
            id="a class that tyro fills",
        ),
        pytest.param(
            PARSER
            + "from simple_parsing import parse\n@dataclass\nclass All:\n  own: Own = field(default_factory=Own)\n"
            "a = parse(config_class=All)\nMade(rank=a.own.rank, on=a.own.on, other=a.own.no)",
            {"own.rank": "64", "own.no": "3"},
            {"rank": 64, "on": False, "other": 3},
            id="a class with classes in it",
        ),
        pytest.param(
            PARSER
            + "from simple_parsing import parse\n@dataclass\nclass All:\n  own: Own = field(default_factory=Own)\n"
            "a = parse(All)\nMade(rank=a.own.rank)",
            {"rank": "64"},
            {"rank": 64},
            id="a field of a field by its own name",
        ),
        pytest.param(
            PARSER + "import draccus\nMade(rank=draccus.parse(Own).rank)",
            {"config_path": "own.yaml"},
            {"rank": "?"},
            id="values of a file that the command names",
        ),
        pytest.param(
            PARSER + "import pyrallis\nMade(rank=pyrallis.parse(config_class=Own, config_path='own.yaml').rank)",
            {},
            {"rank": "?"},
            id="values of a file that the program names",
        ),
        pytest.param(
            PARSER + "import tyro\n@dataclass\nclass All:\n  micro_batch: int = 1\n"
            "Made(rank=tyro.cli(All).micro_batch)",
            {"micro-batch": "2"},
            {"rank": 2},
            id="a hyphen for an underscore",
        ),
        pytest.param(
            PARSER + "import tyro\ndef train(rank: int = 2):\n  Made(rank=rank)\ntyro.cli(train)",
            {"rank": "64"},
            {"rank": 64},
            id="a function that tyro starts",
        ),
        pytest.param(
            PARSER + "from dataclasses import asdict\na = transformers.HfArgumentParser(Own).parse()\n"
            "b = asdict(a)\nMade(rank=b['rank'])",
            {"rank": "64"},
            {"rank": 64},
            id="a class of values as a mapping",
        ),
        pytest.param(
            PARSER + "import tyro\nMade(rank=tyro.cli(Own, default=load()).rank)",
            {"rank": "64"},
            {"rank": "?"},
            id="values that are an object's, which is not known",
        ),
        pytest.param(
            PARSER + "class Ours(transformers.HfArgumentParser):\n  def parse(self):\n    return self.own\n"
            "a, b = Ours((Own, Args)).parse()\nMade(rank=a.rank)",
            {"rank": 32},
            {"rank": 32},
            id="a parser of its own",
        ),
        pytest.param(
            PARSER + "if len(sys.argv) == 2:\n  a = 1\nelse:\n  a = transformers.HfArgumentParser(Own).parse()\n"
            "Made(rank=a.rank)",
            {},
            {"rank": 8},
            id="a command of more than one word",
        ),
        pytest.param(
            LISTS_LINEAR + "Made(rank=find(load()))", {}, {"rank": [LINEAR]}, id="the names of all linear layers"
        ),
        pytest.param(
            LISTS_LINEAR.replace("Linear4bit", "Conv2d") + "Made(rank=find(load()))",
            {},
            {"rank": "?"},
            id="the names of other layers",
        ),
        pytest.param(
            LISTS_LINEAR.replace("'lm_head'", "'embed'") + "Made(rank=find(load()))",
            {},
            {"rank": "?"},
            id="the head's, too",
        ),
        pytest.param(
            "a = [1]\nfor x in load():\n  if x:\n    a.append(x)\nMade(rank=a)",
            {},
            {"rank": "?"},
            id="a list that a loop changes whose turns are not known",
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


FILES = {
    "cfg.yaml": "model: {name: gpt2}\nrank: 8\n",
    "cfg.json": '{"rank": 16}',
    "cfg.toml": "rank = 4\n",
}
MODULES = {
    "own.settings": "RANK = 8\ndef rank(twice=False):\n  return RANK * (2 if twice else 1)\n",
    "own.making": "from own.settings import rank\ndef make(alpha):\n  return Made(rank=rank(), alpha=alpha)\n",
    "own": "from own.settings import rank\n",
    "parsing": "import argparse\ndef parsed():\n  p = argparse.ArgumentParser()\n"
    "  p.add_argument('--rank', default=2)\n  return p.parse_args()\n",
}


def document(name: str, beside: str) -> Document | None:
    return load(name, FILES[name]) if name in FILES else None


def module(source: str, beside: str) -> tuple[str, str] | None:
    return (f"{source.replace('.', '/')}.py", MODULES[source]) if source in MODULES else None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("with open('cfg.yaml') as f:\n  c = yaml.safe_load(f)\nMade(r=c['rank'])", 8, id="YAML"),
        pytest.param("with open('cfg.json') as f:\n  c = json.loads(f.read())\nMade(r=c['rank'])", 16, id="JSON"),
        pytest.param("c = json.load(open('cfg.json'))\nMade(r=c.get('rank', 1))", 16, id="a file opened in the call"),
        pytest.param("c = tomllib.loads(Path('cfg.toml').read_text())\nMade(r=c['rank'])", 4, id="a path's text"),
        pytest.param("c = OmegaConf.load('cfg.yaml')\nMade(r=c.rank)", 8, id="OmegaConf"),
        pytest.param("c = yaml.safe_load(open('cfg.yaml'))\nMade(r=c.get('none', 3))", 3, id="a default of get"),
        pytest.param("c = yaml.safe_load(open('none.yaml'))\nMade(r=c['rank'])", "?", id="a file that is not there"),
        pytest.param("from own.settings import RANK\nMade(r=RANK)", 8, id="a module's constant"),
        pytest.param("from own import settings\nMade(r=settings.rank(True))", 16, id="a module's function"),
        pytest.param("import own.settings as s\nMade(r=s.RANK)", 8, id="a module by another name"),
        pytest.param("from own import rank as f\nMade(r=f())", 8, id="what a package hands on"),
        pytest.param("from parsing import parsed\nMade(r=parsed().rank)", 2, id="a parser in a module"),
        pytest.param("a = 'q, v'\nMade(r=[x.strip() for x in a.split(',') if x])", ["q", "v"], id="a list made of one"),
        pytest.param(
            "import inspect\nhas = inspect.signature(Made.__init__).parameters\nd = dict(r=8, s=1)\n"
            "d = {k: v for k, v in d.items() if k in has}\nif 'r' in has:\n  Made(**d)",
            8,
            id="what a function's parameters are asked for is one",
        ),
        pytest.param(
            "d = {'q': 4, 'x': 5}\nMade(r={k: v for k, v in d.items() if v < 5})", {"q": 4}, id="part of a mapping"
        ),
        pytest.param("for n in [2, 3]:\n  a = n * 2\nMade(r=a)", 6, id="a loop over a list that is known"),
        pytest.param(
            "import argparse\nfrom dataclasses import dataclass, fields\n@dataclass\nclass Own:\n  rank: int = 8\n"
            "p = argparse.ArgumentParser()\nfor f in fields(Own):\n  p.add_argument(f'--{f.name}', default=f.default)\n"
            "args = Own(**vars(p.parse_args()))\nMade(r=args.rank)",
            8,
            id="options made of a dataclass's fields",
        ),
        pytest.param("def f():\n  def g(n):\n    Made(r=n)\n  g(8)\nf()", 8, id="a function within a function"),
        pytest.param("def f(x, n=4):\n  return Made(r=n)\nload().map(f)", 4, id="the function that a map is given"),
        pytest.param("def f(x, n):\n  Made(r=n)\nd.map(partial(f, n=5))", 5, id="a part of a function"),
        pytest.param("def f(x, n):\n  Made(r=n)\nd.map(f, fn_kwargs={'n': 6})", 6, id="its arguments apart"),
        pytest.param("d.map(lambda x: Made(r=7))", 7, id="a function without a name"),
    ],
)
def test_what_a_program_has_of_its_repository_is_followed(text: str, found: object) -> None:
    repository = Repository(document, module)
    calls = [call.plain() for call in program.read("train.py", text, {}, None, repository).calls]
    (made,) = (call for call in calls if call["_target_"] == "Made")
    assert ("?" if isinstance(made["r"], Unresolved) else made["r"]) == found


def test_a_call_in_a_module_is_one_of_the_program_s() -> None:
    text = "from own.making import make\nmake(alpha=2)\n"
    found = program.read("train.py", text, {}, None, Repository(document, module))
    (made,) = (call.plain() for call in found.calls)
    assert made == {"_target_": "Made", "rank": 8, "alpha": 2}
    assert set(found.document.sources) == {"train.py", "own/making.py", "own/settings.py"}


def test_modules_that_import_one_another_end() -> None:
    modules = {"a": "from b import B\nA = 1\n", "b": "from a import A\nB = 2\n"}
    repository = Repository(
        document, lambda source, beside: (f"{source}.py", modules[source]) if source in modules else None
    )
    (made,) = program.read("train.py", "import a\nMade(r=a.A)", {}, None, repository).calls
    assert made.plain()["r"] == 1


def test_what_stands_for_linear_layers_is_what_families_call_them() -> None:
    assert LINEAR == tuning.LISTED


FROM_A_FILE = """
import argparse, yaml
parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int, default=4)
parser.add_argument("--other", default=1)
def parse():
    args = parser.parse_args()
    with open("config.yaml") as file:
        config = yaml.safe_load(file)
    {}
    return args
args = parse()
Made(rank=args.rank, other=args.other)
"""


@pytest.mark.parametrize(
    "over",
    [
        pytest.param("for key, value in config.items():\n        setattr(args, key, value)", id="one by one"),
        pytest.param("for key in config:\n        setattr(args, key, config[key])", id="by its keys"),
        pytest.param("vars(args).update(config)", id="all at once"),
        pytest.param("args.__dict__.update(config)", id="all at once by __dict__"),
    ],
)
def test_a_file_may_set_over_what_options_say(over: str) -> None:
    def given(text: str | None) -> dict[str, Any]:
        document = None if text is None else load("config.yaml", text)
        repository = Repository(lambda name, beside: document, lambda name, beside: None)
        calls = program.read("train.py", FROM_A_FILE.format(over), {}, None, repository).calls
        (found,) = (call.plain() for call in calls if call.plain()["_target_"] == "Made")
        return {name: "?" if isinstance(one, Unresolved) else one for name, one in found.items() if name[0] != "_"}

    assert given("rank: 64") == {"rank": 64, "other": 1}
    assert given(None) == {"rank": "?", "other": "?"}  # and no default, which the file may have set over
