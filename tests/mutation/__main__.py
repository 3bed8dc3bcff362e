"""Mutate a module and run its tests on each mutant: which changes does no test notice?

    python -m tests.mutation memlint.fixes.levers --sample 40
    python -m tests.mutation --all --sample 40
    python -m tests.mutation memlint.fixes.edits --list

Survivors are listed as the lines that changed. Those that no test could tell from the module itself are named in
``equivalent.toml`` with the reason, and counted apart. The exit code is 1 where a survivor is left.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.mutation.mutants import Mutant, mutants
from tests.mutation.runner import KILLED, SPARE_SECONDS, SURVIVED, TIMEOUT, Runner, Unusable, path_of, sample

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent
EQUIVALENT = "equivalent"
SEED = 10

_SHELL = (
    "tests/documents/test_shell_arithmetic.py",
    "tests/documents/test_shell_conditions.py",
    "tests/documents/test_shell_words.py",
    "tests/documents/test_shell_expansion.py",
    "tests/documents/test_shell.py",
    "tests/documents/test_shell_scripts.py",
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
    "memlint.fixes.limits": ("tests/fixes/test_limits.py",),
    "memlint.fixes.search": ("tests/fixes/test_least_intrusive.py",),
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
    "memlint.tape.folded": ("tests/tape/test_folded.py", "tests/tape/test_folded_by_hand.py"),
    "memlint.tape.lengths": ("tests/tape/test_lengths.py", "tests/tape/test_lengths_in_turn.py"),
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
    "memlint.documents.shell.arithmetic": _SHELL,
    "memlint.documents.shell.braces": ("tests/documents/test_shell_braces.py", *_SHELL),
    "memlint.documents.shell.commands": (
        "tests/documents/test_shell_commands.py",
        *_SHELL,
        "tests/documents/test_slurm.py",
    ),
    "memlint.documents.shell.conditions": _SHELL,
    **{
        f"memlint.documents.shell.{part}": _SHELL
        for part in ("assignments", "branches", "builtins", "literals", "loops", "redirections")
    },
    "memlint.documents.shell.expansion": ("tests/documents/test_shell_values.py", *_SHELL),
    "memlint.documents.shell.script": _SHELL,
    "memlint.documents.shell.syntax": ("tests/documents/test_shell_syntax.py", "tests/documents/test_shell.py"),
    "memlint.documents.shell.syntax_words": ("tests/documents/test_shell_syntax.py", "tests/documents/test_shell.py"),
    "memlint.documents.shell.tree": ("tests/documents/test_shell_values.py", *_SHELL),
    "memlint.documents.shell.variables": ("tests/documents/test_shell_values.py", *_SHELL),
    "memlint.documents.shell.words": ("tests/documents/test_shell_pieces.py", *_SHELL),
    "memlint.suppress": ("tests/test_suppress.py", "tests/hostile/test_suppressions.py"),
    "memlint.setting_values": ("tests/test_settings.py", "tests/test_settings_bounds.py"),
    "memlint.settings": (
        "tests/test_settings.py",
        "tests/test_settings_bounds.py",
        "tests/test_settings_in_force.py",
        "tests/hostile/test_settings.py",
    ),
    "memlint.selection": ("tests/test_selection.py",),
    **{
        f"memlint.reports.{module}": tuple(f"tests/reports/test_{name}.py" for name in tests.split())
        for module, tests in {
            "concise": "full overview",
            "equal": "equal layout",
            "full": "full layout measured exact style",
            "github": "github github_bounds",
            "gitlab": "exact machine_formats",
            "json": "json measured",
            "json_lines": "exact machine_formats",
            "junit": "exact machine_formats",
            "markdown": "exact github github_bounds",
            "overview": "overview layout exact",
            "rdjson": "exact machine_formats",
            "report": "report layout",
            "sarif": "exact machine_formats",
            "style": "style layout verdict",
            "text": "text full github github_bounds exact",
            "verdict": "verdict measured overview exact",
        }.items()
    },
}


class Equivalent(NamedTuple):
    """A mutant that does what the module does: where it is, what it changes, and why nothing can tell."""

    module: str
    function: str
    line: str
    mutation: str
    reason: str


class Figures(NamedTuple):
    """How many of a module's mutants its tests noticed. What never ends is noticed, too."""

    module: str
    killed: int
    timeout: int
    survived: int
    equivalent: int

    @property
    def mutants(self) -> int:
        return self.killed + self.timeout + self.survived + self.equivalent

    @property
    def share(self) -> float:
        """Killed of those that are not equivalent."""
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


def judged(module: str, tests: Sequence[str], options: argparse.Namespace, known: Sequence[Equivalent]) -> Figures:
    """The figures of a sample of a module's mutants; each survivor is printed as it comes."""
    runner = Runner(module, tests, not options.quick, options.spare)
    drawn = [
        mutant
        for mutant in sample(mutants(runner.source), options.sample, options.seed)
        if mutant.compiles(runner.source)
    ]
    counts = dict.fromkeys((KILLED, TIMEOUT, SURVIVED, EQUIVALENT), 0)
    for at, mutant in enumerate(drawn, 1):
        verdict = EQUIVALENT if known_as_equivalent(known, module, mutant) else runner.judge(mutant)
        counts[verdict] += 1
        if verdict == SURVIVED:
            print(f"[{at}/{len(drawn)}] survived, {path_of(module)}:{mutant.shown(runner.source)}", flush=True)
    return Figures(module, *(counts[verdict] for verdict in (KILLED, TIMEOUT, SURVIVED, EQUIVALENT)))


def table(results: Sequence[Figures]) -> Iterator[str]:
    """A row for each module, and one for each folder of several."""
    yield f"{'module':40} {'mutants':>8} {'killed':>7} {'timeout':>8} {'survived':>9} {'equivalent':>11} {'share':>7}"
    folders: dict[str, list[Figures]] = {}
    for each in results:
        yield _row(each)
        folders.setdefault(each.module.rpartition(".")[0], []).append(each)
    for folder, inside in folders.items():
        if len(inside) > 1:
            sums = [sum(column) for column in zip(*(each[1:] for each in inside))]
            yield _row(Figures(f"{folder}, {len(inside)} modules", *sums))


def _row(each: Figures) -> str:
    counts = f"{each.mutants:8} {each.killed:7} {each.timeout:8} {each.survived:9} {each.equivalent:11}"
    return f"{each.module:40} {counts} {each.share:7.0%}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.mutation", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="such as memlint.fixes.levers")
    parser.add_argument("--all", action="store_true", help="every module that the table of tests names")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="in place of those that the table names")
    parser.add_argument("--sample", type=int, metavar="N", help="so many mutants of a module, drawn by the seed")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--list", action="store_true", help="the mutants, without judging them")
    parser.add_argument(
        "--spare",
        type=int,
        default=SPARE_SECONDS,
        metavar="SECONDS",
        help="of CPU that the tests of a mutant may take, beside five times what they take without one",
    )
    parser.add_argument("--record", metavar="FILE", help="add the figures to a file, a line of JSON for each module")
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
            result = judged(module, tests, options, equivalents())
        except Unusable as error:
            print(error, file=sys.stderr)
            return 2
        print(*table([result]), f"{time.perf_counter() - begin:.0f} s", sep="\n")
        if options.record:
            with open(options.record, "a", encoding="utf-8") as lines:
                lines.write(json.dumps(result._asdict()) + "\n")
        return 1 if result.survived else 0
    return 0


def _one_after_the_other(modules: Sequence[str], options: argparse.Namespace) -> int:
    """Each module in a process of its own: what one has imported ahead may import another."""
    worst = 0
    with tempfile.TemporaryDirectory() as folder:
        record = os.path.abspath(options.record or os.path.join(folder, "figures.jsonl"))
        for module in modules:
            command = [sys.executable, "-m", "tests.mutation", module, "--seed", str(options.seed), "--record", record]
            command += ["--sample", str(options.sample)] if options.sample is not None else []
            command += ["--tests", *options.tests] if options.tests else []
            command += ["--quick"] if options.quick else []
            command += ["--spare", str(options.spare)]
            worst = max(worst, subprocess.run(command, check=False).returncode)
        if os.path.exists(record):
            with open(record, encoding="utf-8") as lines:
                print(*table([Figures(**json.loads(line)) for line in lines]), sep="\n")
    return worst


if __name__ == "__main__":
    sys.exit(main())
