"""Every number of every config, set to values that nobody means: an answer or a finding that says where, and soon.

    python -m tests.hostile.sweep [--family F] [--full] [--sample N] [--only TEXT]

The configs are those of ``examples/`` and of ``tests/hostile/samples/``, a small one per family with an estimate. Each
number of each is set to each of ``VALUES`` in turn, in the spelling of the file's format, and the config is checked in
a forked child of its own, whose CPU seconds and peak of memory are judged as well. Without ``--full`` a sample of the
cases is tried, the same one every time; its size, or ``--full``, is for the caller to choose.
"""

from __future__ import annotations

import argparse
import gc
import os
import pickle
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "examples", Path(__file__).parent / "samples")
SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".py", ".sh")

CPU_SECONDS = 2.0
MEGABYTES = 512  # of the whole process, memlint's own modules included
# What costs more than this is a hang, however long it would take, and is not waited for. The bytes are beyond those of
# the process that forks: a test's own process may hold torch and what a thousand tests before it left there.
_MOST_SECONDS = 20
_MOST_BYTES = 4 * MEGABYTES * 2**20

# name -> how the formats spell it, where it is not the name itself; None where a format has no such value
VALUES: dict[str, dict[str, str | None]] = {
    **{number: {} for number in ("0", "-1", "1", "3", "7", "1000000000", "1000000000000000000", "0.5")},
    "true": {".py": "True"},
    "x": {".yaml": "x", ".yml": '"x"', ".json": '"x"', ".toml": '"x"', ".py": '"x"'},
    "null": {".py": "None", ".toml": None, ".sh": "None"},
    "nan": {".yaml": ".nan", ".yml": ".nan", ".json": "NaN", ".py": "float('nan')"},
}

_COMMENT = re.compile(r"(?:^|\s)#[^\n]*")
_NUMBER = re.compile(r"(?<![\w./$@-])(?<!\w-)-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w./%@-])")
_WORD = re.compile(r"[A-Za-z]\w{2,}")

# Files that are no runs themselves -> the run that reads them.
READ_BY = {
    "language_models/ds_zero2.json": "language_models/run_clm.sh",
    "language_models/fsdp_accelerate.yaml": "language_models/train_fsdp.sh",
    "stdiff/accelerate_config.yaml": "stdiff/train.sh",
    "llama_local/model/config.json": "llama_local/run.yaml",
}

# What says that a value cannot be used, and where.
_EXPLAINS = frozenset(("MEM003", "MEM004", "MEM006", "MEM007", "MEM008", "MEM009", "MEM011", "MEM602", "MEM801"))


class Case(NamedTuple):
    """One number of one file, and what it is set to."""

    path: str  # below its folder of FOLDERS
    folder: int
    start: int
    end: int
    line: int
    value: str

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line}:{self.start}={self.value}"


class Outcome(NamedTuple):
    """How a check ended: ``problems`` is empty where it ended as it should.

    ``seconds`` are of the CPU, without the system's and without starting Python (a quarter of a second);
    ``megabytes`` are the most that the process held.
    """

    problems: tuple[str, ...]
    seconds: float
    megabytes: float
    estimated: bool

    @property
    def expenses(self) -> tuple[str, ...]:
        """What is wrong with what it took."""
        beyond = [f"took {self.seconds:.1f} CPU s"] * (self.seconds > CPU_SECONDS)
        return (*beyond, *[f"took {self.megabytes:.0f} MB"] * (self.megabytes > MEGABYTES))


class Tally:
    """What became of the cases of a family."""

    def __init__(self) -> None:
        self.numbers: set[tuple[int, str, int]] = set()
        self.cases = self.estimates = self.failures = 0
        self.seconds = self.megabytes = 0.0

    def add(self, case: Case, outcome: Outcome) -> None:
        self.numbers.add((case.folder, case.path, case.start))
        self.cases += 1
        self.estimates += outcome.estimated
        self.failures += bool(outcome.problems or outcome.expenses)
        self.seconds = max(self.seconds, outcome.seconds)
        self.megabytes = max(self.megabytes, outcome.megabytes)

    def row(self, name: str) -> str:
        counts = (len(self.numbers), self.cases, self.estimates, self.failures)
        shown = " ".join(f"{count:9,}" for count in counts)
        return f"{name:13} {shown} {self.seconds:9.2f} {self.megabytes:9.0f}"


HEADINGS = ("numbers", "cases", "estimates", "failures", "worst s", "worst MB")


def configs() -> list[tuple[int, str]]:
    """(folder, path below it) of every config that is swept."""
    found = []
    for index, folder in enumerate(FOLDERS):
        for path in sorted(folder.rglob("*")):
            if path.suffix in SUFFIXES and path.name != "model.py":
                found.append((index, path.relative_to(folder).as_posix()))
    return found


def cases(folder: int, path: str) -> Iterator[Case]:
    """Every number of a file with every value."""
    text = (FOLDERS[folder] / path).read_text(encoding="utf-8")
    suffix = Path(path).suffix
    hidden = [match.span() for match in _COMMENT.finditer(text)] if suffix != ".json" else []
    for match in _NUMBER.finditer(text):
        if any(start <= match.start() < end for start, end in hidden):
            continue
        line = text.count("\n", 0, match.start()) + 1
        for value, spelled in VALUES.items():
            if spelled.get(suffix, value) is not None and match.group() != value:
                yield Case(path, folder, match.start(), match.end(), line, value)


def changed(case: Case) -> str:
    """The file's text with the number replaced."""
    text = (FOLDERS[case.folder] / case.path).read_text(encoding="utf-8")
    new = VALUES[case.value].get(Path(case.path).suffix, case.value)
    assert new is not None
    return text[: case.start] + new + text[case.end :]


def judged(report: Any, case: Case, text: str) -> tuple[str, ...]:
    """What is wrong with a report of the changed file."""
    problems = []
    for finding in report.findings:
        if finding.code == "MEM001":
            problems.append(f"MEM001 {finding.message} ({', '.join(finding.notes[:1])})")
    if not problems and (not report.runs or any(run.estimate is None for run in report.runs)):
        # What two runs have in common is said once. A comment names what it likes.
        names = _words(_COMMENT.sub("", text.splitlines()[case.line - 1]))
        said = [one for one in report.findings if one.code in _EXPLAINS]
        if not any(
            any(
                span.path.endswith(case.path) and span.line <= case.line <= span.end_line
                for span in (one.span, *(place for place, _ in one.related))
            )
            or names & _words(f"{one.key} {one.message}")
            for one in said
        ):
            told = "; ".join(f"{one.code} {one.message}" for one in said) or "nothing"
            problems.append(f"no estimate, and what is said is elsewhere: {told}")
    for run in report.runs:
        estimate = run.estimate
        if estimate is None:
            continue
        sizes = [part.size_bytes for part in estimate.components]
        sizes += [part.size_bytes for component in estimate.components for part in component.parts]
        if min(sizes, default=0) < 0 or estimate.device_interval.low_bytes < 0 or estimate.parameters < 0:
            problems.append("negative bytes")
        if sum(part.size_bytes for part in estimate.components) != estimate.device_bytes:
            problems.append("components do not add up")
    if report.errors or (report.crashed and not problems):
        problems.append(f"crashed: {report.errors}")
    return tuple(problems)


def _words(text: str) -> set[str]:
    """The names in a text, in one spelling: an option has dashes where a key has underscores."""
    return set(_WORD.findall(text.replace("-", "_")))


class Sweep:
    """A copy of the folders, in which one file at a time is another one."""

    def __init__(self) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="memlint-sweep-"))
        for index, folder in enumerate(FOLDERS):
            shutil.copytree(folder, self.place / str(index))
            (self.place / str(index) / ".git").mkdir()

    def __enter__(self) -> Sweep:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.place)

    def run(self, folder: int, path: str) -> Path:
        """The file that is checked: the run that reads another one, where that is none itself."""
        return self.place / str(folder) / READ_BY.get(path, path)

    def families(self, folder: int, path: str) -> tuple[str, ...]:
        """The families that the unchanged file belongs to, those that have estimates."""
        from memlint.dialects import schema as schemas

        report = _checked(self.run(folder, path), lint=False)
        found = dict.fromkeys(run.family for run in report.runs if run.family)
        return tuple(family for family in found if "models" in schemas.header(family))

    def outcome(self, case: Case) -> Outcome:
        """What a check of the changed file ends in, in a child that has so much time and memory and no more."""
        path = self.place / str(case.folder) / case.path
        before = path.read_text(encoding="utf-8")
        text = changed(case)
        path.write_text(text, encoding="utf-8")
        try:
            return _in_a_child(self.run(case.folder, case.path), case, text)
        finally:
            path.write_text(before, encoding="utf-8")


def _checked(path: Path, lint: bool = True) -> Any:
    """The report of ``memlint check``."""
    from memlint.check import check_paths
    from memlint.cli.plain import GARBAGE_THRESHOLD
    from memlint.settings import Settings

    gc.set_threshold(GARBAGE_THRESHOLD)
    return check_paths([str(path)], Settings(), lint=lint)


def _in_a_child(path: Path, case: Case, text: str) -> Outcome:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            _limit()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what a storage says that is not let go of in time
            report = _checked(path)
            told: Any = judged(report, case, text), any(run.estimate is not None for run in report.runs)
        except BaseException as error:
            told = (f"raised {type(error).__name__}: {error}"[:300],), False
        os.write(writing, pickle.dumps(told)[:60_000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        content = pipe.read()
    _, status, usage = os.wait4(child, 0)
    problems, estimated = pickle.loads(content) if content else ((f"ended by {_end(status)}",), False)
    return Outcome(problems, usage.ru_utime, usage.ru_maxrss / 1024, estimated)


def _end(status: int) -> str:
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "itself, without a word"


def _limit() -> None:
    # statm: the first number is the size of the address space, in pages (proc_pid_statm(5)).
    held = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + _MOST_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_SECONDS,) * 2)


def chosen(everything: Sequence[Case], count: int, seed: int = 10) -> list[Case]:
    """So many of the cases, the same ones for the same files."""
    return random.Random(seed).sample(list(everything), min(count, len(everything)))


def _swept(sweep: Sweep, everything: list[tuple[str, Case]], tallies: dict[str, Tally], whole: Tally) -> bool:
    """Try the cases and say which ones fail. False where Ctrl-C ends it early."""
    warm: set[Path] = set()
    try:
        for family, case in everything:
            if (run := sweep.run(case.folder, case.path)) not in warm:
                warm.add(run)
                _checked(run)  # what every check imports is imported once, before the forks
            outcome = sweep.outcome(case)
            tallies.setdefault(family, Tally()).add(case, outcome)
            whole.add(case, outcome)
            wrong = (*outcome.problems, *outcome.expenses)
            if wrong:
                print(f"{family:13} {case.name}: {'; '.join(wrong)}", flush=True)
    except KeyboardInterrupt:
        return False
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.sweep", description=__doc__.splitlines()[0])
    parser.add_argument("--family", help="only files of this family")
    parser.add_argument("--only", default="", help="only cases whose name (path:line:offset=value) has this text")
    parser.add_argument("--full", action="store_true", help="every case, not a sample")
    parser.add_argument("--sample", type=int, default=200, metavar="N", help="how many cases without --full")
    options = parser.parse_args(arguments)
    tallies: dict[str, Tally] = {}
    whole = Tally()
    begin = time.monotonic()
    with Sweep() as sweep:
        everything: list[tuple[str, Case]] = []
        for folder, path in configs():
            families = sweep.families(folder, path)
            if families and options.family in (None, *families):
                everything += [(families[0], case) for case in cases(folder, path) if options.only in case.name]
        if not options.full:
            wanted = set(chosen([case for _, case in everything], options.sample))
            everything = [entry for entry in everything if entry[1] in wanted]
        interrupted = not _swept(sweep, everything, tallies, whole)
    print(f"{'family':13} {' '.join(f'{heading:>9}' for heading in HEADINGS)}")
    for family, tally in sorted(tallies.items()):
        print(tally.row(family))
    print(whole.row(f"all {len(tallies)}"))
    print(f"{(time.monotonic() - begin) / 60:.0f} minutes")
    if interrupted:
        print(f"interrupted: {len(everything) - whole.cases:,} cases are not tried")
    return 1 if whole.failures or interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
