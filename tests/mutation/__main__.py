"""Mutate a module and run its tests on each mutant: which changes does no test notice?

    python -m tests.mutation memlint.fixes.levers --sample 40
    python -m tests.mutation --all --sample 40
    python -m tests.mutation memlint.fixes.edits --list

Survivors are listed as the lines that changed. Those that no test could tell from the module itself are named in
``equivalent.toml`` with the reason, and counted apart. The exit code is 1 where a survivor is left.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.mutation.mutants import Mutant, mutants
from tests.mutation.runner import KILLED, SURVIVED, TIMEOUT, Runner, Unusable, path_of, sample

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent
SEED = 10

_SHELL = (
    "tests/documents/test_shell_expansion.py",
    "tests/documents/test_shell.py",
    "tests/hostile/test_shell.py",
)

# module -> the tests that are to notice a change in it
TESTS: dict[str, tuple[str, ...]] = {
    "memlint.fixes.edits": ("tests/fixes/test_edits.py",),
    "memlint.fixes.levers": (
        "tests/fixes/test_each_lever.py",
        "tests/fixes/test_plan.py",
        "tests/fixes/test_levers.py",
    ),
    "memlint.tape.allocator": (
        "tests/tape/test_allocator.py",
        "tests/tape/test_allocator_endless.py",
        "tests/tape/test_streams.py",
    ),
    "memlint.tape.allocator_conf": ("tests/tape/test_allocator_conf.py", "tests/tape/test_allocator_conf_bounds.py"),
    "memlint.tape.breakdown": ("tests/tape/test_breakdown.py",),
    "memlint.tape.calibration": ("tests/tape/test_calibration.py",),
    "memlint.tape.estimate": ("tests/tape/test_estimate.py", "tests/tape/test_summary.py"),
    "memlint.tape.first_step": ("tests/tape/test_first_step.py",),
    "memlint.tape.folded": ("tests/tape/test_folded.py",),
    "memlint.tape.folded_allocator": ("tests/tape/test_folded.py",),
    "memlint.tape.overhead": ("tests/tape/test_overhead.py", "tests/tape/test_full_card.py"),
    "memlint.tape.phases": (
        "tests/tape/test_phases.py",
        "tests/tape/test_lower_bounds.py",
        "tests/tape/test_loading.py",
    ),
    "memlint.tape.summary": (
        "tests/tape/test_summary.py",
        "tests/tape/test_full_card.py",
        "tests/tape/test_first_step.py",
        "tests/tape/test_lower_bounds.py",
        "tests/tape/test_loading.py",
        "tests/tape/test_folded.py",
    ),
    "memlint.documents.shell_arithmetic": _SHELL,
    "memlint.documents.shell_commands": (*_SHELL, "tests/documents/test_slurm.py"),
    "memlint.documents.shell_conditions": _SHELL,
    "memlint.documents.shell_expansion": _SHELL,
    "memlint.documents.shell_script": _SHELL,
    "memlint.documents.shell_words": _SHELL,
    "memlint.suppress": ("tests/test_suppress.py", "tests/hostile/test_suppressions.py"),
    "memlint.settings": ("tests/test_settings.py", "tests/test_settings_bounds.py", "tests/hostile/test_settings.py"),
    "memlint.selection": ("tests/test_selection.py",),
    "memlint.reports.concise": ("tests/reports",),
    "memlint.reports.full": ("tests/reports",),
    "memlint.reports.github": ("tests/reports",),
    "memlint.reports.json": ("tests/reports",),
    "memlint.reports.report": ("tests/reports",),
    "memlint.reports.text": ("tests/reports",),
}


class Equivalent(NamedTuple):
    """A mutant that does what the module does: where it is, what it changes, and why nothing can tell."""

    module: str
    function: str
    line: str
    mutation: str
    reason: str


class Tally(NamedTuple):
    module: str
    killed: int
    timeout: int
    equivalent: int
    survivors: tuple[Mutant, ...]
    cpu_seconds: float

    @property
    def mutants(self) -> int:
        return self.killed + self.timeout + self.equivalent + len(self.survivors)

    @property
    def share(self) -> float:
        """Killed of those that are not equivalent; what never ends is noticed, too."""
        judged = self.mutants - self.equivalent
        return (self.killed + self.timeout) / judged if judged else 1.0


def equivalents(path: Path = FOLDER / "equivalent.toml") -> list[Equivalent]:
    with path.open("rb") as file:
        return [Equivalent(**entry) for entry in tomllib.load(file).get("equivalent", [])]


def known_as_equivalent(known: Sequence[Equivalent], module: str, mutant: Mutant) -> bool:
    return any(
        (entry.module, entry.function, entry.line, entry.mutation)
        == (module, mutant.function, mutant.line, mutant.change)
        for entry in known
    )


def tally(
    module: str, tests: Sequence[str], number: int | None, seed: int, thorough: bool, known: Sequence[Equivalent]
) -> Tally:
    """Judge a sample of a module's mutants, saying each as it comes."""
    runner = Runner(module, tests, thorough)
    drawn = sample(mutants(runner.source), number, seed)
    counts = dict.fromkeys((KILLED, TIMEOUT, "equivalent"), 0)
    survivors = []
    begin = sum(os.times()[:4])
    for at, mutant in enumerate(drawn, 1):
        verdict = "equivalent" if known_as_equivalent(known, module, mutant) else runner.judge(mutant)
        if verdict == SURVIVED:
            survivors.append(mutant)
            print(f"[{at}/{len(drawn)}] survived, {path_of(module)}:{mutant.shown(runner.source)}", flush=True)
        else:
            counts[verdict] += 1
    spent = sum(os.times()[:4]) - begin
    return Tally(module, counts[KILLED], counts[TIMEOUT], counts["equivalent"], tuple(survivors), spent)


def table(results: Sequence[Tally]) -> Iterator[str]:
    yield f"{'module':40} {'mutants':>8} {'killed':>7} {'timeout':>8} {'survived':>9} {'equivalent':>11} {'share':>7}"
    folders: dict[str, list[Tally]] = {}
    for each in results:
        yield _row(each.module, [each])
        folders.setdefault(each.module.rpartition(".")[0], []).append(each)
    for folder, inside in folders.items():
        if len(inside) > 1:
            yield _row(f"{folder}, {len(inside)} modules", inside)


def _row(name: str, parts: Sequence[Tally]) -> str:
    number, killed, timeout = (sum(getattr(each, word) for each in parts) for word in ("mutants", "killed", "timeout"))
    survived, equivalent = (sum(len(each.survivors) for each in parts), sum(each.equivalent for each in parts))
    judged = number - equivalent
    share = (killed + timeout) / judged if judged else 1.0
    return f"{name:40} {number:8} {killed:7} {timeout:8} {survived:9} {equivalent:11} {share:7.0%}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.mutation", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="such as memlint.fixes.levers")
    parser.add_argument("--all", action="store_true", help="every module that the table of tests names")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="in place of those that the table names")
    parser.add_argument("--sample", type=int, metavar="N", help="so many mutants of a module, drawn by the seed")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--list", action="store_true", help="the mutants, without judging them")
    parser.add_argument(
        "--quick", action="store_true", help="take the tracer's word for it which tests reach a changed line"
    )
    options = parser.parse_args(arguments)
    modules = list(TESTS) if options.all else options.modules
    if not modules:
        parser.error("name a module, or --all")
    if len(modules) > 1 and not options.list:
        return _one_after_the_other(modules, options)
    for module in modules:
        if options.list:
            source = Path(path_of(module)).read_text(encoding="utf-8")
            for mutant in sample(mutants(source), options.sample, options.seed):
                print(f"{path_of(module)}:{mutant.shown(source)}")
            continue
        tests = options.tests or TESTS.get(module)
        if not tests:
            parser.error(f"no tests are known for {module}: name them with --tests")
        begin = time.perf_counter()
        try:
            result = tally(module, tests, options.sample, options.seed, not options.quick, equivalents())
        except Unusable as error:
            print(error, file=sys.stderr)
            return 2
        print(*table([result]), sep="\n")
        print(f"{result.cpu_seconds:.0f} CPU s, {time.perf_counter() - begin:.0f} s")
        return 1 if result.survivors else 0
    return 0


def _one_after_the_other(modules: Sequence[str], options: argparse.Namespace) -> int:
    """Each module in a process of its own: what one has imported ahead may import another."""
    worst = 0
    for module in modules:
        command = [sys.executable, "-m", "tests.mutation", module, "--seed", str(options.seed)]
        command += ["--sample", str(options.sample)] if options.sample is not None else []
        command += ["--tests", *options.tests] if options.tests else []
        command += ["--quick"] if options.quick else []
        worst = max(worst, subprocess.run(command, check=False).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
