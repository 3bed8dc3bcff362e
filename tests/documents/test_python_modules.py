from __future__ import annotations

import ast
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memlint import files, work
from memlint.documents.load import load
from memlint.documents.node import Document, Node, Unresolved
from memlint.documents.python import reader as python
from memlint.documents.python.source import Reading
from tests.effort import MOST_LINES, counted_lines

from .conftest import check_paths, node_at, same, text_at


def read(text: str, path: str = "config.py") -> Document:
    return python.read(path, text)


CONFIG = '''\
import torch

class Config:
    """Settings."""
    NUM_FRAMES = 16
    IMAGE_SIZE: int = 64
    INPUT_SHAPE = (3, NUM_FRAMES, IMAGE_SIZE, IMAGE_SIZE)  # (C, F, H, W)
    BATCH_SIZE = 2 if NUM_FRAMES > 8 else 4
    NAME = f"run-{NUM_FRAMES}x{IMAGE_SIZE:04d}"
    DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    LR = 1e-4 * BATCH_SIZE

    @classmethod
    def describe(cls):
        cls.BATCH_SIZE = 99

Config.NUM_WORKERS = Config.BATCH_SIZE * 4
'''


def test_class_constants_are_a_mapping_under_the_name_of_the_class() -> None:
    document = read(CONFIG)
    assert document.faults == ()
    assert node_at(document, "Config.BATCH_SIZE").value == 2
    assert node_at(document, "Config.INPUT_SHAPE").plain() == [3, 16, 64, 64]
    assert node_at(document, "Config.NAME").value == "run-16x0064"
    assert node_at(document, "Config.LR").value == 2e-4
    assert node_at(document, "Config.NUM_WORKERS").value == 8
    assert text_at(document, node_at(document, "Config").key_span) == "Config"
    check_paths(document.root)


def test_an_update_by_what_only_runs_leaves_the_mapping_unknown() -> None:
    root = load("a.py", "import x\na = dict(b=1)\na.update(**x.more)\nc = 2\n").root
    changed = root.get("a")
    assert changed is not None
    assert isinstance(changed.value, Unresolved)
    assert root.get("c") is not None


def test_a_value_that_needs_running_is_unresolved_with_its_text_and_reason() -> None:
    value = node_at(read(CONFIG), "Config.DEVICE").value
    assert isinstance(value, Unresolved)
    assert value.text.startswith("torch.device(")
    assert "torch.device" in value.reason


def test_items_of_a_tuple_know_their_own_places() -> None:
    document = read(CONFIG)
    first, second = node_at(document, "Config.INPUT_SHAPE.0"), node_at(document, "Config.INPUT_SHAPE.1")
    assert text_at(document, first.span) == "3"
    assert (text_at(document, second.span), second.span.line) == ("16", 5)
    assert [(text_at(document, span), span.line) for span in second.via] == [("NUM_FRAMES", 7)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("a = 1\na = 2", {"a": 2}, id="the last assignment wins"),
        pytest.param("a = 2\na += 3\na *= 2", {"a": 10}, id="augmented assignment"),
        pytest.param("a, b = 1, 2\na, b = b, a", {"a": 2, "b": 1}, id="assignments of several names at once"),
        pytest.param(
            "(a, b), c = (1, 2), [3]\nd, e = c, a", {"a": 1, "b": 2, "c": [3], "d": [3], "e": 1}, id="nested targets"
        ),
        pytest.param("a = b = 4", {"a": 4, "b": 4}, id="chained assignment"),
        pytest.param(
            "a = dict(x=1, y=dict(z=2))\nb = a['y']['z'] + a['x']",
            {"a": {"x": 1, "y": {"z": 2}}, "b": 3},
            id="items of mappings",
        ),
        pytest.param(
            "a = {'x': 1, **dict(y=2)}\nb = dict(a, x=5)",
            {"a": {"x": 1, "y": 2}, "b": {"x": 5, "y": 2}},
            id="unpacked mappings",
        ),
        pytest.param(
            "a = [1, 2] + [3] * 2\nb = [*a, 9][1:-1]\nc = a[-1]",
            {"a": [1, 2, 3, 3], "b": [2, 3, 3], "c": 3},
            id="lists",
        ),
        pytest.param(
            "a = -2 ** 2\nb = 7 // 2\nc = 7 % 4\nd = 1 << 4\ne = not 0",
            {"a": -4, "b": 3, "c": 3, "d": 16, "e": True},
            id="arithmetic",
        ),
        pytest.param("a = 'x' 'y' + 'z'\nb = '-' * 3", {"a": "xyz", "b": "---"}, id="text"),
        pytest.param(
            "a = 3\nb = 'big' if a > 2 and a < 9 else 'small'\nc = 1 < a <= 3",
            {"a": 3, "b": "big", "c": True},
            id="conditions",
        ),
        pytest.param(
            "a = 'x'\nif a == 'x':\n  b = 1\nelse:\n  b = 2", {"a": "x", "b": 1}, id="a branch whose test is known"
        ),
        pytest.param("a = 1\nif __name__ == '__main__':\n  a = 2", {"a": 1}, id="what only a script does"),
        pytest.param(
            "a = dict(x=1)\na.update(y=2)\na['z'] = 3\na.update({'x': 4})",
            {"a": {"x": 4, "y": 2, "z": 3}},
            id="updates",
        ),
        pytest.param("a = []\na.append(1)\na.extend([2, 3])\na[0] = 7", {"a": [7, 2, 3]}, id="lists that grow"),
        pytest.param("a = 1\ndel a\nb = dict(x=1, y=2)\ndel b['x']", {"b": {"y": 2}}, id="deletions"),
        pytest.param(
            "a = max(2, int(7 / 2), round(2.6))\nb = len([1, 2])\nc = sum([1, 2, 3])\nd = list(range(0, 6, 2))",
            {"a": 3, "b": 2, "c": 6, "d": [0, 2, 4]},
            id="pure built-in functions",
        ),
        pytest.param(
            "from x import Conf\nclass A:\n  x = 1\n  y = 2\nclass B(A):\n  y = 3\nb = B(x=9)",
            {"A": {"x": 1, "y": 2}, "B": {"x": 1, "y": 3}, "b": {"x": 9, "y": 3}},
            id="classes that inherit, and instances",
        ),
        pytest.param(
            "@dataclass\nclass A:\n  x: int = 1\n  y: list = field(default_factory=lambda: [2])\n"
            "  z: int = field(default=3)\n  w: int",
            {"A": {"x": 1, "y": [2], "z": 3}},
            id="dataclass fields",
        ),
        pytest.param(
            "class A:\n  x = 1\n  class B:\n    y = 2\nz = A.B.y",
            {"A": {"x": 1, "B": {"y": 2}}, "z": 2},
            id="classes in classes",
        ),
        pytest.param("m = L(Net)(dim=4)\nm.dim = 8", {"m": {"_target_": "Net", "dim": 8}}, id="a lazy call"),
        pytest.param(
            "a = {1: 'x', (2, 3): 'y', None: 0}",
            {"a": {"1": "x", "(2, 3)": "y", "None": 0}},
            id="keys that are no text",
        ),
        pytest.param(
            "a = 3 if True else f()\nb = False and g()\nc = 2 or g()",
            {"a": 3, "b": False, "c": 2},
            id="what is never evaluated does not matter",
        ),
        pytest.param("with open('x') as f:\n  a = 1", {"f": Unresolved, "a": 1}, id="a with statement"),
        pytest.param(
            "try:\n  import x\n  a = 1\nexcept ImportError:\n  b = 2",
            {"a": 1, "b": Unresolved},
            id="an exception that may happen",
        ),
        pytest.param("a = 1\nfor i in range(3):\n  a = i", {"a": Unresolved, "i": Unresolved}, id="loops"),
        pytest.param("a = 1\nif unknown:\n  a = 2", {"a": Unresolved}, id="a condition that is not known"),
        pytest.param(
            "a = dict(x=1, y=2)\nif unknown:\n  a['x'] = 2",
            {"a": {"x": Unresolved, "y": 2}},
            id="an item that is set under a condition",
        ),
        pytest.param("a = dict(x=1)\nchange(a)", {"a": Unresolved}, id="a mapping that a function may change"),
        pytest.param("a = dict(x=1)\nprint(a)", {"a": {"x": 1}}, id="a mapping that is printed"),
        pytest.param("a = [1]\na.pop()", {"a": Unresolved}, id="a method that is not followed"),
        pytest.param(
            "a = [x for x in range(3)]\nb = lambda: 1\nc = ...\nd = b'x'\ne = 1j",
            dict.fromkeys("abcde", Unresolved),
            id="values that configs do not have",
        ),
        pytest.param(
            "a = os.environ.get('X', 4)\nb = a + 1\nc = [a, 2]",
            {"a": Unresolved, "b": Unresolved, "c": [Unresolved, 2]},
            id="the environment is never read",
        ),
        pytest.param(
            "a = 10 ** 10 ** 10\nb = 'x' * 10 ** 9\nc = [0] * 10 ** 9\nd = 1 << 10 ** 9\n"
            "e = f'{1:999999999d}'\nf = 1 / 0",
            dict.fromkeys("abcdef", Unresolved),
            id="results without bound, and without meaning",
        ),
        pytest.param("a = 5\nb = {{_base_.x}}", {"a": 5, "b": Unresolved}, id="a base value without a base"),
        pytest.param(
            "def get_config(size=4):\n  c = mlc.ConfigDict()\n  c.batch = size * 2\n"
            "  c.model = dict(depth=3)\n  c.model.depth += 1\n  return c",
            {"get_config": {"batch": 8, "model": {"depth": 4}}},
            id="what get_config() returns",
        ),
        pytest.param(
            "def get_config(arg):\n  c = ConfigDict()\n  c.x = arg\n  c.y = 1\n  return c",
            {"get_config": {"x": Unresolved, "y": 1}},
            id="an argument of get_config() is not known",
        ),
        pytest.param(
            "def dict(**k): return 1\na = dict(x=1)", {"a": Unresolved}, id="a function of the file's own called dict"
        ),
        pytest.param("a = 'é'; b = [1]  # ä", {"a": "é", "b": [1]}, id="characters of several bytes"),
    ],
)
def test_what_is_followed(text: str, expected: dict[str, Any]) -> None:
    document = read(text)
    assert document.faults == ()

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(child) for key, child in value.items()}
        if isinstance(value, list):
            return [plain(child) for child in value]
        return Unresolved if isinstance(value, Unresolved) else value

    assert same(plain(document.root.plain()), expected)
    check_paths(document.root)


def test_columns_count_code_points() -> None:
    document = read("ä = dict(é='漢', b=(1, 2))\n")
    assert text_at(document, node_at(document, "ä.b.1").span) == "2"
    assert text_at(document, node_at(document, "ä.b").key_span) == "b"
    assert text_at(document, node_at(document, "ä.é").span) == "'漢'"


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_all_line_breaks_are_python_s(newline: str) -> None:
    document = read(f"a = 1{newline}bb = (1,{newline}  22){newline}")
    node = node_at(document, "bb.1")
    assert (text_at(document, node.span), node.span.line) == ("22", 3)


def test_keys_of_calls_and_items_are_where_they_were_written() -> None:
    document = read("a = dict(xx=1)\na['yy'] = 2\na.zz = 3\n")
    assert [text_at(document, node_at(document, f"a.{k}").key_span) for k in ("xx", "yy", "zz")] == ["xx", "'yy'", "zz"]


def test_a_key_written_twice_in_a_dict_is_a_fault() -> None:
    (fault,) = read("a = {'x': 1,\n 'x': 2}").faults
    assert (fault.code, fault.span.line, fault.related[0].line) == ("MEM006", 2, 1)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param("a = 1\nb = (\n", 2, id="a bracket that is not closed"),
        pytest.param("a = 1\n  b = 2\n", 2, id="indentation"),
        pytest.param("print 'x'\n", 1, id="Python 2"),
        pytest.param("a = '\x00'\n", 1, id="a null character"),
    ],
)
def test_what_is_not_python_is_one_fault_with_its_line(text: str, line: int) -> None:
    document = read(text)
    (fault,) = document.faults
    assert (fault.code, fault.span.line) == ("MEM003", line)
    assert document.root.plain() == {}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a = " + "(" * 5_000 + ")" * 5_000, id="brackets"),
        pytest.param("a = " + "-" * 50_000 + "1", id="signs"),
        pytest.param("a = " + "+".join(["1"] * 20_000), id="a long sum"),
        pytest.param("a = x" + ".y" * 20_000, id="a long chain of attributes"),
        pytest.param("a = [1]\n" + "a = [a, a]\n" * 60, id="a list that doubles"),
        pytest.param("a = [1]\n" + "a = [a]\n" * 5_000, id="a list that deepens"),
        pytest.param("a = 'x'\n" + "a = a + a\n" * 200, id="text that doubles"),
        pytest.param("a = 3\n" + "a = a * a\n" * 200, id="a number that squares"),
        pytest.param("".join(" " * n + "if 1:\n" for n in range(95)) + " " * 95 + "a = 1", id="deep blocks"),
        pytest.param("a = {}\n" + "a = dict(x=a, y=a)\n" * 60, id="mappings that double"),
    ],
)
def test_hostile_text_ends_in_bounded_work(text: str) -> None:
    with counted_lines(most=MOST_LINES):
        document = read(text)
    document.root.plain()
    repr(document.root)


LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(max_size=5), below, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.from_regex(r"[a-z]{3,5}[0-9]", fullmatch=True), LITERALS, max_size=4))
@settings(max_examples=200, deadline=None)
def test_any_literals_come_back_and_every_span_selects_its_value(values: dict[str, Any]) -> None:
    document = read("".join(f"{name} = {value!r}\n" for name, value in values.items()))
    assert document.faults == ()
    assert same(document.root.plain(), values)
    for node in document.root.walk():
        if node.key_path:
            assert same(eval(text_at(document, node.span), {}), node.plain())


EXPRESSIONS = st.recursive(
    st.integers(-30, 30).map(str) | st.sampled_from(["0.5", "1e3", "True", "a", "b", "'x'", "'yz'"]),
    lambda below: (
        st.builds(
            lambda left, kind, right: f"({left} {kind} {right})",
            below,
            st.sampled_from(
                ["+", "-", "*", "/", "//", "%", "**", "<", ">=", "==", "!=", "and", "or", "<<", "|", "&", "^"]
            ),
            below,
        )
        | below.map(lambda x: f"(-{x})")
        | below.map(lambda x: f"(not {x})")
        | st.builds(lambda x, y, z: f"({x} if {y} else {z})", below, below, below)
        | below.map(lambda x: f"f'<{{{x}}}>'" if "'" not in x else x)
    ),
    max_leaves=7,
)


@given(EXPRESSIONS)
@settings(max_examples=600, deadline=None)
def test_expressions_come_to_what_python_makes_of_them_or_are_unresolved(text: str) -> None:
    import warnings

    value = node_at(read(f"a = 3\nb = 2.5\nc = {text}\n"), "c").plain()
    if isinstance(value, Unresolved):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = eval(text, {}, {"a": 3, "b": 2.5})
    assert same(value, expected)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


BASES = {
    "_base_/data.py": "size = 32\ntrain = dict(batch_size=size, sampler=dict(shuffle=True), dims=[1, 2])\n",
    "_base_/schedule.py": "_base_ = 'runtime.py'\noptim = dict(type='SGD', lr=0.1)\n",
    "_base_/runtime.py": "seed = 1\nhooks = dict(log=10)\n",
    "exp/run.py": (
        "_base_ = ['../_base_/data.py', '../_base_/schedule.py']\n"
        "train = dict(batch_size=8, dims=[3])\n"
        "optim = dict(_delete_=True, type='Adam')\n"
        "half = _base_.train.batch_size // 2\n"
        "seed = {{_base_.seed}}\n"
    ),
}


def test_base_configs_lie_under_the_file(tmp_path: Path) -> None:
    write(tmp_path, {**BASES, ".git/keep": ""})
    document = load(str(tmp_path / "exp/run.py"))
    assert document.faults == ()
    assert document.root.plain() == {
        "size": 32,
        "train": {"batch_size": 8, "sampler": {"shuffle": True}, "dims": [3]},
        "seed": 1,
        "hooks": {"log": 10},
        "optim": {"type": "Adam"},
        "half": 16,
    }
    shuffle = node_at(document, "train.sampler.shuffle")
    assert shuffle.span.path == str(tmp_path / "_base_/data.py")
    assert text_at(document, shuffle.span) == "True"
    assert len(document.sources) == 4
    check_paths(document.root)


@pytest.mark.parametrize(
    ("files", "code", "words"),
    [
        pytest.param({"a.py": "_base_ = 'b.py'"}, "MEM003", "cannot be read", id="a base that is not there"),
        pytest.param(
            {"a.py": "_base_ = 'b.py'", "b.py": "_base_ = 'a.py'"}, "MEM003", "based on this one", id="a circle"
        ),
        pytest.param({"a.py": "_base_ = 'mmdet::x.py'"}, "MEM004", "unknown", id="a base in a package"),
        pytest.param({"a.py": "_base_ = f()"}, "MEM004", "running", id="a base that is computed"),
        pytest.param({"a.py": "_base_ = 'b.bin'", "b.bin": "x"}, "MEM003", "no config", id="a base of another kind"),
        pytest.param({"a.py": "_base_ = '../../outside.py'"}, "MEM003", "outside", id="a base outside the repository"),
        pytest.param(
            {"a.py": "_base_ = 'b.py'", "b.py": "x = ("}, "MEM003", "not valid Python", id="a base that is no Python"
        ),
    ],
)
def test_bases_that_cannot_be_followed_are_faults(tmp_path: Path, files: dict[str, str], code: str, words: str) -> None:
    write(tmp_path, {**files, ".git/keep": ""})
    (fault,) = load(str(tmp_path / "a.py")).faults
    assert fault.code == code
    assert words in fault.message


def test_relative_imports_of_config_files_are_followed(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            ".git/keep": "",
            "common/model.py": "model = L(Net)(dim=8, net=dict(depth=4))\nother = 1\n",
            "run.py": "from .common.model import model\nfrom detectron2 import x\nmodel.net.depth = 24\n",
        },
    )
    document = load(str(tmp_path / "run.py"))
    assert document.root.plain() == {"model": {"_target_": "Net", "dim": 8, "net": {"depth": 24}}}
    assert node_at(document, "model.dim").span.path.endswith("model.py")


# A package, as others are: a module that many import, one that imports a config of YAML, two that import each other.
PACKAGE = {
    ".git/keep": "",
    "common/data.py": "from .size import width\ndata = dict(width=width, depth=2)\n",
    "common/size.py": "width = 8\n",
    "common/ring.py": "from .gnir import back\nround = 1\n",
    "common/gnir.py": "from .ring import round\nback = 2\n",
    "common/wrong.py": "x = (\n",
    "base.yaml": "lr: 0.5\n",
    "a.py": "from .common.data import data\nfrom .common.size import width\n_base_ = 'base.yaml'\n",
    "b.py": "from .common.size import width\nfrom .common.data import data\ndata.depth = 3\n",
    "c.py": "from .common.data import *\ndata.width = 1\n",
    "d.py": "_base_ = ['b.py', 'base.yaml']\nwidth = 9\n",
    "e.py": "from .common.ring import round\nfrom .common.data import data\n",
    "f.py": "from .common.gnir import back\nfrom .common.wrong import x\n",
    "g.py": "from .common.ring import round\nfrom .b import data, width\n",
}


@settings(max_examples=40, deadline=None)
@given(order=st.permutations([name for name in PACKAGE if name.endswith(".py")] * 2))
def test_what_others_have_drawn_in_is_read_once_and_is_the_same(
    order: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("package")
    write(folder, PACKAGE)
    alone = {}
    for name in set(order):
        with work.limited(work.FILE_STEPS) as meter:
            document = load(str(folder / name))
        alone[name] = document, meter.used
    followed: list[str] = []
    run = python.Module.run

    def counted(module: python.Module, tree: ast.Module) -> Node:
        followed.append(module.path)
        return run(module, tree)

    with files.named([str(folder)]), mock.patch.object(python.Module, "run", counted):
        for name in order:
            with work.limited(work.FILE_STEPS, whole_file=True) as meter:
                document = load(str(folder / name))
            expected, steps = alone[name]
            assert repr(document) == repr(expected)
            assert meter.used == steps
    # Each is itself in the order twice; what is wrong in a file is found with each that draws it in.
    for name in ("common/data.py", "common/size.py", "b.py"):
        assert followed.count(str(folder / name)) <= 2 + 1


def test_a_syntax_tree_is_made_once_and_charged_each_time(tmp_path: Path) -> None:
    text = "a = 1\nb = [a, 2]\n"
    with files.named([str(tmp_path)]), work.limited(work.FILE_STEPS) as meter:
        first = Reading().parse("a.py", text)
        once = meter.used
        assert Reading().parse("b.py", text) is first
        assert (meter.used, meter.again) == (2 * once, once)
        with files.edited({str(tmp_path / "a.py"): text}):
            assert Reading().parse("a.py", text) is not first
    assert Reading().parse("a.py", text) is not first


def test_what_others_have_drawn_in_is_read_again_where_a_text_is_edited(tmp_path: Path) -> None:
    write(tmp_path, PACKAGE)
    with files.named([str(tmp_path)]):
        assert load(str(tmp_path / "a.py")).root.plain()["width"] == 8
        with files.edited({str(tmp_path / "common" / "size.py"): "width = 16\n"}):
            assert load(str(tmp_path / "a.py")).root.plain()["width"] == 16
        assert load(str(tmp_path / "a.py")).root.plain()["width"] == 8


def test_every_real_file_reads_without_an_error(corpus: Path) -> None:
    paths = sorted(corpus.rglob("*.py"))
    assert len(paths) > 10
    for path in paths:
        document = load(str(path))
        check_paths(document.root)
        assert all(fault.code != "MEM003" or "base config" in fault.message for fault in document.faults)


def test_nothing_of_the_module_runs(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    read(f"import os\nopen({str(marker)!r}, 'w').write('x')\na = __import__('os').getpid()\nos.system('true')\n")
    assert not marker.exists()
