"""Runs a module's tests on one mutant after the other: serially, each in a forked child.

The parent imports what takes long and does not know the module: pytest, hypothesis, other libraries, and the modules of
the package that do not import it. A child puts the mutant in the module's place and runs the tests that reach the
changed lines, the quickest first, until one fails; where none does, all others (``thorough``), as a cache or a child
process may hide from the tracer which test reaches what.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import json
import math
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from tests.mutation.mutants import Mutant
from tests.mutation.startup import sitecustomize

STARTUP = Path(sitecustomize.__file__).parent

KILLED = "killed"
SURVIVED = "survived"
TIMEOUT = "timeout"

# A mutant may slow its tests down. What takes so much longer than they take on the module itself never ends.
PATIENCE = 5
SPARE_SECONDS = 10
MEMORY_BYTES = 12 << 30  # of addresses, of which torch alone reserves some


class Unusable(Exception):
    """The tests cannot judge mutants: they fail on the module itself, or never import it."""


class Baseline(NamedTuple):
    """The tests on the module itself.

    reached    test -> lines of the module that it executes
    at_import  lines that are executed before any test
    seconds    test -> CPU seconds
    imported   modules that were imported in the end
    """

    reached: dict[str, frozenset[int]]
    at_import: frozenset[int]
    seconds: dict[str, float]
    imported: tuple[str, ...]


class _Watch:
    """A pytest plugin: which lines of one file each test executes, and how long it takes."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.lines: set[int] = set()
        self.reached: dict[str, list[int]] = {}
        self.seconds: dict[str, float] = {}
        self.at_import: list[int] = []

    def trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename != self.path:
            return None
        self.lines.add(frame.f_lineno)
        return self._line

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        self.lines.add(frame.f_lineno)
        return self._line

    def pytest_collection_finish(self) -> None:
        self.at_import = sorted(self.lines)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.lines = set()
        self.begin = time.process_time()
        sys.settrace(self.trace)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        sys.settrace(None)
        self.reached[nodeid] = sorted(self.lines)
        self.seconds[nodeid] = time.process_time() - self.begin


class _Choose:
    """A pytest plugin: only the tests of these names, in their order."""

    def __init__(self, names: list[str]) -> None:
        self.place = {name: at for at, name in enumerate(names)}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.place), key=lambda item: self.place[item.nodeid]
        )


class Runner:
    """Judges mutants of one module by some tests.

    Raises Unusable where the tests fail without any mutant.
    """

    def __init__(self, module: str, tests: Iterable[str], thorough: bool = True, spare: int = SPARE_SECONDS) -> None:
        self.module = module
        self.tests = [str(test) for test in tests]
        self.thorough = thorough
        self.spare = spare
        self.path = path_of(module)
        self.source = Path(self.path).read_text(encoding="utf-8")
        self._scratch = tempfile.mkdtemp(prefix="mutation-")
        _quiet_hypothesis()
        self.baseline = self._run_baseline()
        _import_ahead(self.baseline.imported, module)

    def _run_baseline(self) -> Baseline:
        def run() -> dict[str, Any]:
            watch = _Watch(self.path)
            self._put(self.source)
            sys.settrace(watch.trace)
            code = _pytest(self.tests, [watch])
            sys.settrace(None)
            return {
                "code": code,
                "reached": watch.reached,
                "at_import": watch.at_import,
                "seconds": watch.seconds,
                "imported": list(sys.modules),
            }

        result, output = self._forked(run, cpu_seconds=1800)
        if result is None or result["code"] != 0:
            raise Unusable(f"the tests fail on {self.module} itself:\n{output}")
        if not result["at_import"] and not any(result["reached"].values()):
            raise Unusable(f"the tests do not import {self.module}")
        return Baseline(
            {name: frozenset(lines) for name, lines in result["reached"].items()},
            frozenset(result["at_import"]),
            result["seconds"],
            tuple(result["imported"]),
        )

    def judge(self, mutant: Mutant) -> str:
        """KILLED, SURVIVED or TIMEOUT."""
        lines = range(mutant.first, mutant.last + 1)
        every = sorted(self.baseline.seconds, key=self.baseline.seconds.__getitem__)
        if not self.baseline.at_import.isdisjoint(lines):  # a constant, a default: every test may feel it
            return self._judged(mutant, every)
        near = [name for name in every if not self.baseline.reached[name].isdisjoint(lines)]
        verdict = self._judged(mutant, near) if near else SURVIVED
        if verdict == SURVIVED and self.thorough:
            # What is left out are whole tests, so those that have passed are asked again in their own order.
            verdict = self._judged(mutant, list(self.baseline.seconds))
        return verdict

    def _judged(self, mutant: Mutant, names: list[str]) -> str:
        def run() -> dict[str, Any]:
            swap = self._put(mutant.applied(self.source))
            code = _pytest(sorted({name.partition("::")[0] for name in names}), [_Choose(names)])
            return {"code": code, "loaded": swap.loaded}

        usual = sum(self.baseline.seconds[name] for name in names)
        result, output = self._forked(run, math.ceil(self.spare + PATIENCE * usual))
        if result is None:
            return TIMEOUT if output == TIMEOUT else KILLED
        if result["code"] == 0 and not result["loaded"]:
            raise Unusable(f"the tests did not import the mutant of {self.module}")
        if result["code"] not in (0, 1, 2, 3):  # passed, failed, not even collected
            raise Unusable(f"pytest ended with {result['code']}:\n{output}")
        return SURVIVED if result["code"] == 0 else KILLED

    def _put(self, text: str) -> sitecustomize.Mutated:
        """In a child: the module's source becomes this text, for it and for what it starts."""
        if self.module in sys.modules:
            raise Unusable(f"{self.module} is imported already")
        name = os.path.join(self._scratch, "mutant.py")
        Path(name).write_text(text, encoding="utf-8")
        os.environ.update(MUTANT_MODULE=self.module, MUTANT_SOURCE=name, MUTANT_PATH=self.path)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(STARTUP), os.environ.get("PYTHONPATH"))))
        return sitecustomize.install(self.module, name, self.path)

    def _forked(self, run: Callable[[], dict[str, Any]], cpu_seconds: int) -> tuple[dict[str, Any] | None, str]:
        """(what ``run`` returns in a child, or None where the child ended without a result; what was printed, or
        TIMEOUT)."""
        answer, printed = (os.path.join(self._scratch, name) for name in ("answer.json", "printed.txt"))
        Path(answer).unlink(missing_ok=True)
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.setsid()
                resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 5))
                resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                signal.alarm(60 + 20 * cpu_seconds)  # a wait that never ends takes no CPU
                sink = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(sink, 1)
                os.dup2(sink, 2)
                result = run()
                Path(answer).write_text(json.dumps(result), encoding="utf-8")
                status = 0
            except BaseException as error:
                print(repr(error))
            finally:
                sys.stdout.flush()
                os._exit(status)
        _, ended = os.waitpid(child, 0)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)  # what a test has left running
        if os.WIFSIGNALED(ended) and os.WTERMSIG(ended) in (signal.SIGXCPU, signal.SIGALRM, signal.SIGKILL):
            return None, TIMEOUT
        output = Path(printed).read_text(encoding="utf-8", errors="replace") if os.path.exists(printed) else ""
        try:
            return json.loads(Path(answer).read_text(encoding="utf-8")), output
        except (OSError, ValueError):
            return None, output


def path_of(module: str) -> str:
    """The file of a module, which is not imported for it."""
    parent, _, name = module.rpartition(".")
    folders = importlib.import_module(parent).__path__ if parent else sys.path
    for folder in folders:
        for candidate in (Path(folder) / f"{name}.py", Path(folder) / name / "__init__.py"):
            if candidate.is_file():
                return str(candidate.resolve())
    raise Unusable(f"no module {module}")


def _pytest(arguments: list[str], plugins: list[object]) -> int:
    import pytest

    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *arguments], plugins=plugins))


def _quiet_hypothesis() -> None:
    """The same examples each time, no search for smaller ones, and no complaint of a busy machine."""
    try:
        from hypothesis import HealthCheck, Phase, settings
    except ImportError:
        return
    settings.register_profile(
        "mutation",
        derandomize=True,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("mutation")


def _import_ahead(names: Iterable[str], module: str) -> None:
    """Import what the tests need besides the module and what imports it."""
    package = module.partition(".")[0]
    own = [name for name in names if name.partition(".")[0] == package]
    for name in names:
        top = name.partition(".")[0]
        its_tests = top in ("tests", "conftest", "__main__") or top.startswith("test_")
        if top == package or its_tests or name in sys.modules:
            continue
        if "." not in name or top in ("_pytest", "hypothesis"):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    knows = _who_imports(own, module)
    for name in own:
        if name not in knows:
            with contextlib.suppress(ImportError):  # a module that a test has made
                importlib.import_module(name)
    if module in sys.modules:
        raise Unusable(f"{module} was imported ahead of its mutants")


def _who_imports(names: list[str], module: str) -> set[str]:
    """The module and those of ``names`` that import it, directly or through others, wherever in their text."""
    imports = {name: _imported_by(name) for name in names}
    found = {module}
    while True:
        more = {name for name, wanted in imports.items() if name not in found and not found.isdisjoint(wanted)}
        if not more:
            return found
        found |= more


def _imported_by(name: str) -> set[str]:
    try:
        path = path_of(name)
        tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    except (Unusable, OSError, SyntaxError):
        return set()
    found: set[str] = set()
    package = name if path.endswith("__init__.py") else name.rpartition(".")[0]
    for node in tree.body and ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                outer = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
                base = f"{outer}.{base}".rstrip(".")
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return found


def sample(mutants: list[Mutant], number: int | None, seed: int) -> list[Mutant]:
    """So many of the mutants, drawn by a seed, in the order of their places; all of them for None."""
    if number is None or number >= len(mutants):
        return mutants
    chosen = random.Random(seed).sample(range(len(mutants)), number)
    return [mutants[at] for at in sorted(chosen)]
