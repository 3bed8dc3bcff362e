"""A repository's own model is a stranger's code: following it costs a bounded amount of work, whatever it says."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from memlint import work
from memlint.models import UnknownModel
from memlint.models.own.program import model_of
from tests.dialects.test_nanogpt_forks import CONFIG, FORK, checked
from tests.differential.own_models import GPT

LEAST_BYTES = 2 << 30  # of addresses that following may take beside what the process has

MODEL = """\
import math
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        {line}
        self.head = nn.Linear(4, 4)

    def forward(self, x, y=None):
        return x
"""
PROGRAM = "from model import Model\nmodel = Model(None)\n"
LINES = [
    pytest.param("x = 'a'\n        for _ in range(60): x = x + x", id="text that doubles"),
    pytest.param("x = [0]\n        for _ in range(60): x = x + x", id="a list that doubles"),
    pytest.param("x = [0]\n        for _ in range(60): x += x", id="a list that doubles where it is"),
    pytest.param("x = [0]\n        for _ in range(60): x.extend(x)", id="a list that is extended by itself"),
    pytest.param("x = [0] * 100000 * 100000 * 100000", id="lists of lists"),
    pytest.param("x = 100000000000 * [0]", id="a list as often as a number says"),
    pytest.param("x = 10000000000 * 'a'", id="text as often as a number says"),
    pytest.param("x = 7\n        for _ in range(60): x = x * x", id="a number that squares itself"),
    pytest.param("x = 9 ** 60\n        for _ in range(9): x = x ** 60", id="towers of powers"),
    pytest.param("x = 1 << 100000000000", id="a shift"),
    pytest.param("x = list(range(10**12))", id="a list of a range"),
    pytest.param("x = sum(range(10**12))", id="a sum over a range"),
    pytest.param("x = max(range(10**12))", id="the largest of a range"),
    pytest.param("x = 10**13 in (range(10**12), range(10**13))[1]", id="what is in a range"),
    pytest.param("x = all(range(1, 10**12))", id="all of a range"),
    pytest.param("x = list(zip(range(10**12), range(10**12)))", id="pairs of ranges"),
    pytest.param("x = sorted(range(10**11))", id="a range that is sorted"),
    pytest.param("x = math.factorial(10**8)", id="a factorial"),
    pytest.param("x = math.comb(10**7, 10**6 * 5)", id="choices"),
    pytest.param("x = '{:>9999999999}'.format(1)", id="a format that is wide"),
    pytest.param("x = 'a'.ljust(9999999999)", id="text that is filled up"),
    pytest.param("x = 'a'.zfill(9999999999)", id="text that is filled with zeros"),
    pytest.param("x = 'a' * 99999\n        x = x.replace('a', x).replace('a', x)", id="text in place of each sign"),
    pytest.param("x = '%9999999999d' % 1", id="a format by a sign"),
    pytest.param("x = (1, 1)\n        for _ in range(60): x = (x, x)\n        y = {x: 1}", id="a key of tuples"),
    pytest.param("x = (1, 1)\n        for _ in range(60): x = (x, x)\n        y = f'{x}'", id="a text of tuples"),
    pytest.param(
        "x = [1]\n        y = [1]\n        for _ in range(60): x, y = [x, x], [y, y]\n        z = x == y",
        id="lists that are compared",
    ),
    pytest.param(
        "x = [1]\n        y = [1]\n        for _ in range(60): x, y = [x, x], [y, y]\n        z = x in [y]",
        id="a list that is looked for",
    ),
    pytest.param("x = torch.zeros(*[1] * 100000)\n        for _ in range(99): x = x + x", id="dimensions"),
    pytest.param(
        "x = torch.zeros(1)\n        for _ in range(9999): x = x.unsqueeze(0)\n        for _ in range(9999): x = x + x",
        id="dimensions one by one",
    ),
    pytest.param("x = torch.zeros(10**300, 10**300) * torch.zeros(10**300, 1)", id="sizes without bound"),
    pytest.param("x = torch.arange(0, 10**12, 10**-12)", id="a range of small steps"),
    pytest.param("self.x = nn.ModuleList([nn.Linear(1, 1) for _ in range(10**9)])", id="layers without end"),
    pytest.param(
        "self.x = nn.ModuleList([nn.ModuleList([nn.Linear(1, 1) for _ in range(9999)]) for _ in range(9999)])",
        id="layers of layers",
    ),
    pytest.param("f = lambda f: f(f)\n        f(f)", id="a function that calls itself"),
    pytest.param("x = {}\n        x['a'] = x\n        y = f'{x}'", id="what holds itself"),
    pytest.param("x = []\n        x.append(x)\n        y = x == x[0]", id="a list in itself"),
    pytest.param("x = type('A', (object,), {})()", id="a class that is made"),
    pytest.param("x = ''.__class__.__mro__[1].__subclasses__()", id="the classes of Python"),
    pytest.param("x = getattr(getattr('', '__class__'), '__mro__')", id="the classes of Python by name"),
    pytest.param("x = self.interpreter.sources", id="what follows it"),
]


@pytest.fixture
def little_memory() -> Iterator[None]:
    """An allocation without bound fails, and takes no other process with it."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + LEAST_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("line", LINES)
def test_what_a_model_computes_ends(line: str, little_memory: None) -> None:
    sources = {"__main__": PROGRAM, "model": MODEL.format(line=line)}
    with work.limited(work.FILE_STEPS // 4), pytest.raises((UnknownModel, work.OutOfWork)):
        model_of(sources, "__main__", {}, {})


def test_classes_that_stand_on_each_other_twice_are_ordered_once() -> None:
    classes = ["class A0(nn.Module):\n    pass\nclass B0(nn.Module):\n    pass\n"]
    classes += [
        f"class A{n}(A{n - 1}, B{n - 1}):\n    pass\nclass B{n}(A{n - 1}, B{n - 1}):\n    pass\n" for n in range(1, 60)
    ]
    text = "import torch.nn as nn\n" + "".join(classes) + "class Model(A59, B59):\n    def __init__(self, c):\n"
    text += "        super().__init__()\n        raise NotImplementedError\n"
    with work.limited(work.FILE_STEPS // 4), pytest.raises(UnknownModel, match="raises an error"):
        model_of({"__main__": PROGRAM, "model": text}, "__main__", {}, {})


def test_a_fork_that_computes_without_end_is_unknown_and_the_rest_goes_on(tmp_path: Path) -> None:
    model = GPT.replace("super().__init__()", "super().__init__()\n        x = sum(range(10**12))", 1)
    assert model != GPT
    run = checked(tmp_path, {"train.py": FORK, "model.py": model, "config/a.py": CONFIG}, "config/a.py")
    assert run.estimate is None
