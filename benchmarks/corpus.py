"""`check` over every file of a folder of real configs: what is recognised, what is estimated, what is missing.

    python benchmarks/corpus.py FOLDER [--others FOLDER] [--json FILE] [--seconds 20] [--files] [--accept]

Each folder directly below FOLDER counts as one group (real configs are usually sorted by framework), and an INDEX.csv
with the columns ``file`` and ``family`` may name other groups. Every file goes through the same `check` as on the
command line, with no settings file, in one process; a file that takes longer than ``--seconds`` is reported as a hang.
Nothing that is read is run.

A file is *recognised* where at least one run was found in it; *estimated* where one of its runs has an estimate;
otherwise UNKNOWN, with the reason that `check` itself gives (rule MEM007).

At the end four figures are held against what is asked of them: crashes; of the groups in ``FAMILIES`` the files that
are recognised as one of theirs, and those of them that have an estimate or an UNKNOWN that names what the file does not
state; and of the files below ``--others``, which describe no training run (a folder of installed packages, say), those
that are claimed as one. With ``--accept`` a figure that fails is exit code 1.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

INDEX = "INDEX.csv"
NO_GROUP = "(top)"
SHOWN_REASONS = 3

# Groups of the language-model trainers -> the families that their files may be recognised as. A trainer's folder also
# holds configs of the launchers that it is started by.
_COMPANIONS = frozenset(("accelerate", "deepspeed"))
FAMILIES: dict[str, frozenset[str]] = {
    **{name: frozenset((name,)) | _COMPANIONS for name in ("axolotl", "llamafactory", "litgpt", "torchtune")},
    **{name: frozenset((name,)) for name in ("torchtitan", "megatron")},
    "hf_training_args": frozenset(("hf-trainer", "trl", "peft")) | _COMPANIONS,
    "trl": frozenset(("trl", "hf-trainer")) | _COMPANIONS,
    "deepspeed": frozenset(("hf-trainer", "megatron")) | _COMPANIONS,
    "accelerate": frozenset(("hf-trainer",)) | _COMPANIONS,
    "gpt_neox": frozenset(("gpt-neox",)),
    "llm_foundry": frozenset(("llm-foundry",)),
    "nanogpt": frozenset(("nanogpt", "llm-c", "rwkv", "litgpt", "hf-trainer")),
}
# Words of an UNKNOWN that names what the file leaves open; others say what memlint does not know.
NAMED = (
    *("is not stated", "are not stated", "names no model", "name no model", "no file ", "not in the catalogue"),
    *("is null", "in its file", "in that file", "is not set in the script", "is not known (", "belongs to the runs of"),
    *("composes its config as it starts", "is not known: no file", "it is read while the script runs"),
)
RECOGNISED_SHARE, NAMED_SHARE, CLAIMED_SHARE = 0.95, 0.75, 0.01
READ = frozenset((".yaml", ".yml", ".json", ".toml", ".sh", ".bash", ".slurm", ".sbatch", ".py"))


class Hang(Exception):
    """A check that took too long."""


class FileResult(NamedTuple):
    """One file.

    families   of its runs, each once
    facts      the largest number of facts of one of its runs
    reason     why there is no estimate, as the first run says it; "" where there is one
    trouble    what was not parsed, or could not be read
    crash      what raised, or a hang
    """

    path: str
    group: str
    families: tuple[str, ...]
    runs: int
    facts: int
    estimated: int
    reason: str
    trouble: str
    crash: str
    seconds: float

    @property
    def recognised(self) -> bool:
        return self.runs > 0


class Group(NamedTuple):
    """The sums over one group's files; ``reasons`` counts why files have no estimate, most frequent first."""

    name: str
    files: int
    recognised: int
    families: dict[str, int]
    facts: int
    estimated: int
    unknown: int
    reasons: dict[str, int]
    unparsed: int
    crashed: int
    seconds: float


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise Hang after so many seconds, where the system has alarms (not on Windows)."""
    if not hasattr(signal, "SIGALRM"):
        yield
        return

    def ring(*_: object) -> None:
        raise Hang(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def groups_of(folder: Path) -> dict[Path, str]:
    """File -> group: as the index says, else the folder below ``folder``."""
    stated: dict[str, str] = {}
    index = folder / INDEX
    if index.is_file():
        with index.open(newline="", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                if row.get("file") and row.get("family"):
                    stated[row["file"]] = row["family"]
    files: dict[Path, str] = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path == index:
            continue
        inside = path.relative_to(folder)
        files[path] = stated.get(inside.as_posix(), inside.parts[0] if len(inside.parts) > 1 else NO_GROUP)
    return files


def check_file(path: Path, group: str, seconds: float) -> FileResult:
    """One file through `check`. Whatever happens is in the result."""
    from memlint.check import check_paths
    from memlint.settings import Settings

    begin = time.perf_counter()
    try:
        with limited(seconds):
            report = check_paths([str(path)], Settings())
    except Exception as error:
        crash = f"{type(error).__name__}: {error}"
        return FileResult(str(path), group, (), 0, 0, 0, "", "", crash, time.perf_counter() - begin)
    took = time.perf_counter() - begin
    # A fenced step turns whatever raises in it, an alarm too, into MEM001: that is a crash all the same.
    crash = next((finding.message for finding in report.findings if finding.code == "MEM001"), "")
    runs = [run for run in report.runs if run.family]
    reasons = [finding.message for run in runs for finding in run.findings if finding.code == "MEM007"]
    estimated = sum(run.estimate is not None for run in runs)
    reason = ""
    if runs and not estimated:
        # A fragment is checked through the configs that compose it; what they lack is said where they are checked.
        others = sorted({Path(run.path).name for run in runs if Path(run.path).resolve() != path.resolve()})
        whose = f"it belongs to the runs of {', '.join(others)}" if others else "no reason given"
        reason = reasons[0] if reasons else whose
    trouble = next(
        (why for _, why in (*report.errors, *report.unparsed)),
        next((f.message for run in report.runs if not run.family for f in run.findings if f.code == "MEM003"), ""),
    )
    return FileResult(
        str(path),
        group,
        tuple(dict.fromkeys(run.family for run in runs)),
        len(runs),
        max((len(run.facts) for run in runs), default=0),
        estimated,
        reason,
        trouble,
        crash,
        took,
    )


def kind(reason: str) -> str:
    """A reason without what belongs to one file alone, the name of its model, and without the usual way out."""
    told = reason.removeprefix("no estimate: ").partition(": `memlint ")[0]
    return re.sub(r"^the model \S+ is made by", "the model is made by", told)


def summarise(results: list[FileResult]) -> list[Group]:
    """Groups in the order of their names."""
    groups = []
    for name in sorted({result.group for result in results}):
        mine = [result for result in results if result.group == name]
        groups.append(
            Group(
                name,
                len(mine),
                sum(result.recognised for result in mine),
                dict(Counter(family for result in mine for family in result.families).most_common()),
                sum(result.facts for result in mine),
                sum(result.estimated > 0 for result in mine),
                sum(result.recognised and not result.estimated for result in mine),
                dict(Counter(kind(result.reason) for result in mine if result.reason).most_common()),
                sum(bool(result.trouble) for result in mine),
                sum(bool(result.crash) for result in mine),
                sum(result.seconds for result in mine),
            )
        )
    return groups


class Figure(NamedTuple):
    """One thing that is asked of a corpus: so many of so many files; whether that is enough, None: not measured."""

    what: str
    count: int
    total: int
    limit: str
    passed: bool | None


def names_what_is_missing(reason: str) -> bool:
    told = kind(reason)
    return any(words in told for words in NAMED)


def figures(results: list[FileResult], others: list[FileResult] | None = None) -> list[Figure]:
    """The four that are asked of a corpus of real configs."""
    crashed = sum(bool(result.crash) for result in (*results, *(others or ())))
    mine = [result for result in results if result.group in FAMILIES]
    known = [result for result in mine if FAMILIES[result.group] & set(result.families)]
    told = [result for result in known if result.estimated or names_what_is_missing(result.reason)]
    checked = len(results) + len(others or ())
    found = [
        Figure("crashes, tracebacks and hangs", crashed, checked, "0", crashed == 0),
        _at_least("files of the trainers' families recognised as such", len(known), len(mine), RECOGNISED_SHARE),
        _at_least("of these with an estimate, or with what the file leaves open", len(told), len(known), NAMED_SHARE),
    ]
    claimed = sum(result.recognised for result in others or ())
    share = None if not others else claimed <= CLAIMED_SHARE * len(others)
    what = "files of no training run that are claimed as one"
    return [*found, Figure(what, claimed, len(others or ()), f"<= {CLAIMED_SHARE:.0%}", share)]


def _at_least(what: str, count: int, total: int, share: float) -> Figure:
    return Figure(what, count, total, f">= {share:.0%}", count >= share * total if total else None)


def figure_line(figure: Figure) -> str:
    word = {True: "pass", False: "FAIL", None: "not measured"}[figure.passed]
    share = f" = {figure.count / figure.total:.1%}" if figure.total else ""
    return f"{word}: {figure.what}: {figure.count} of {figure.total}{share} (asked: {figure.limit})"


def run_others(folder: Path, seconds: float = 20.0, most: int = 1000) -> list[FileResult]:
    """Files that describe no training run; of more than ``most``, evenly many of all."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix in READ and path.is_file())
    step = max(1, -(-len(paths) // most))
    return [check_file(path, "others", seconds) for path in paths[::step]]


def run(folder: Path, seconds: float = 20.0) -> list[FileResult]:
    return [check_file(path, group, seconds) for path, group in groups_of(folder).items()]


def as_json(results: list[FileResult]) -> dict[str, Any]:
    return {
        "groups": [group._asdict() for group in summarise(results)],
        "files": [result._asdict() for result in results],
    }


def as_text(results: list[FileResult], files: bool = False) -> str:
    groups = summarise(results)
    lines = [
        f"{'group':<18}{'files':>6}{'recognised':>12}{'facts':>7}{'estimated':>11}{'UNKNOWN':>9}"
        f"{'unparsed':>10}{'crashed':>9}{'seconds':>9}"
    ]

    def row(name: str, members: list[Group]) -> str:
        def total(field: str) -> int:
            return sum(getattr(group, field) for group in members)

        counts = [total(field) for field in ("files", "recognised", "facts", "estimated", "unknown", "unparsed")]
        return (
            f"{name:<18}{counts[0]:>6}{counts[1]:>12}{counts[2]:>7}{counts[3]:>11}{counts[4]:>9}{counts[5]:>10}"
            f"{total('crashed'):>9}{sum(group.seconds for group in members):>9.2f}"
        )

    for group in groups:
        lines.append(row(group.name, [group]))
        for reason, count in list(group.reasons.items())[:SHOWN_REASONS]:
            lines.append(f"    {count} x {reason}")
    lines.append(row("all", groups))
    for result in results:
        if result.crash:
            lines.append(f"crash: {result.path}: {result.crash}")
    if files:
        for result in results:
            what = "estimated" if result.estimated else result.reason or result.trouble or "not recognised"
            lines.append(f"{result.path}: {', '.join(result.families) or '-'}: {what}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Exit code 1 if a file crashed or hung, 2 without a folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, help="also write everything to this file")
    parser.add_argument("--seconds", type=float, default=20.0, help="longest that a file may take (20)")
    parser.add_argument("--files", action="store_true", help="also list every file")
    parser.add_argument("--others", type=Path, action="append", default=[], help="a folder of files that train nothing")
    parser.add_argument("--accept", action="store_true", help="exit code 1 where a figure fails")
    chosen = parser.parse_args(arguments)
    if not chosen.folder.is_dir():
        parser.error(f"{chosen.folder} is not a folder")
    results = run(chosen.folder, chosen.seconds)
    print(as_text(results, chosen.files))
    others = [result for one in chosen.others for result in run_others(one, chosen.seconds)]
    asked = figures(results, others)
    for figure in asked:
        print(figure_line(figure))
    for result in others:
        if result.recognised or result.crash:
            print(f"other: {result.path}: {result.crash or ', '.join(result.families)}")
    if chosen.json:
        chosen.json.write_text(json.dumps(as_json(results), indent=2) + "\n", encoding="utf-8")
    failed = chosen.accept and any(figure.passed is False for figure in asked)
    return 1 if failed or any(result.crash for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
