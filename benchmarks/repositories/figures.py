"""What memlint says of the files of ``files.csv``, held against what they are.

    python -m benchmarks.repositories.figures --clones FOLDER [--sample second] [--reports FOLDER] [--only NAME ...]
        [--docs FILE]

A clone of OWNER/NAME lies under FOLDER as OWNER+NAME, at the commit of the table. ``memlint check .`` runs at the root
of each, without a settings file, as its owner would start it; ``--reports`` keeps the reports, and takes those that
are there. A file is found where a run is reported for it, or where its command is named as the launch of one. A file
with several runs counts once: as the share of them that has an answer.

``training`` is what memlint is for. ``NEITHER`` are files of which both answers are right: a template, where somebody
has to fill in what decides the run, and a text that only says which script to start. A run that is reported for any
other file is a false claim.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.findings.draw import report as checked
from memlint.checking.reading import COMPANIONS

FOLDER = Path(__file__).parent
TABLE = FOLDER / "files.csv"
FIRST_SIGHT = FOLDER / "first_sight.csv"  # what --list said before anything was mended for these files
# Files and what was said of them at first sight, by the name of the sample. All but the first are of repositories
# that nothing had been developed beside, and that of vision is of models that are no language models.
SAMPLES = {
    "first": (TABLE, FIRST_SIGHT),
    **{
        name: (FOLDER / f"{name}.csv", FOLDER / f"{name}_first_sight.csv")
        for name in ("second", "third", "fourth", "fifth", "vision")
    },
}
SUBJECTS = {"vision": "people who train models of images, video, sound and robots"}
LANGUAGE = "language-model trainers and their users"

KINDS = {
    "training": "a training run, or a text with the command of one",
    "cpu": "a training that takes no GPU",
    "evaluation": "an evaluation, or its settings",
    "inference": "generation, serving, a demo",
    "data": "data, data's preparation, results",
    "conversion": "weights into other weights",
    "deployment": "CI, images, environments, jobs of a cluster",
    "companion": "a launcher's settings (DeepSpeed, accelerate), which a run names",
    "fragment": "a part of a config that others compose, or a sweep over one",
    "library": "code of the project",
    "documentation": "a text without a command that trains",
    "template": "a run once somebody has filled in what decides it: the model, its size",
    "pointer": "a text that says which script of the repository to start",
}
NEITHER = ("template", "pointer")
TEXTS = (".md", ".mdx")
GOALS = {"answer": 0.75, "estimate": 0.50, "false": 0.01, "missed": 0.10}

ESTIMATE, PARTIAL, UNKNOWN = "estimate", "partial", "unknown"
NO_ESTIMATE = ("MEM007", "MEM011")  # what says why


class Row(NamedTuple):
    """A labelled file. ``trainer``: whose loop; ``note``: what is unusual."""

    repository: str
    commit: str
    path: str
    kind: str
    trainer: str
    note: str


class Answer(NamedTuple):
    """What memlint says of a file: the state of each of its runs, and why those that are UNKNOWN are."""

    row: Row
    states: tuple[str, ...]
    reasons: tuple[str, ...]

    @property
    def found(self) -> bool:
        return bool(self.states)

    def share(self, *states: str) -> float:
        return sum(state in states for state in self.states) / max(len(self.states), 1)


class Figures(NamedTuple):
    """Counts and shares of a set of files; None where there is nothing to take a share of.

    estimated, answered   of training files, by the share of their runs; answered: an estimate or a partial answer
    missed                training files without a run
    false                 other files with one; ``claims``: files with a run, but those of NEITHER
    """

    files: int
    training: int
    estimated: float | None
    answered: float | None
    missed: int
    others: int
    false: int
    claims: int

    @property
    def missed_share(self) -> float | None:
        return self.missed / self.training if self.training else None

    @property
    def false_share(self) -> float | None:
        return self.false / self.claims if self.claims else None


# ---------------------------------------------------------------------------------------------- reading


def rows(path: Path = TABLE) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return [Row(**row) for row in csv.DictReader(file)]


def answers(labelled: Iterable[Row], told: Mapping[str, Any]) -> list[Answer]:
    """What a report of one repository says of its files."""
    runs: dict[str, list[dict[str, Any]]] = {}
    said: dict[str, str] = {}  # by the file that a finding is in: two runs of one config say it once
    for run in told["files"]:
        if run["family"] is None:
            continue  # a file that could not be read: a finding, and no run
        if run["family"] in COMPANIONS and run["estimate"] is None and run["path"].endswith((".json", ".yaml", ".yml")):
            continue  # a launcher's settings with something wrong in them: the report says that they are no run
        launch = run.get("launch", run)  # of a config that a command names, and not one beside it
        for path in {run["path"], run["path"] if "with" in launch else launch["path"]}:
            runs.setdefault(path, []).append(run)
        for finding in run["findings"]:
            if finding["code"] in NO_ESTIMATE:
                said.setdefault(finding["path"], finding["message"])
    return [
        Answer(
            row,
            tuple(state(run) for run in runs.get(row.path, ())),
            tuple(why(run, said) for run in runs.get(row.path, ()) if state(run) == UNKNOWN),
        )
        for row in labelled
    ]


def write(found: Iterable[Answer], path: Path) -> None:
    """A line for each file: its runs by their state, and why those that are UNKNOWN are."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("repository", "path", ESTIMATE, PARTIAL, UNKNOWN, "reasons"))
        for answer in found:
            counted = [answer.states.count(each) for each in (ESTIMATE, PARTIAL, UNKNOWN)]
            reasons = " / ".join(dict.fromkeys(answer.reasons))
            writer.writerow((answer.row.repository, answer.row.path, *counted, reasons))


def read(path: Path, labelled: Iterable[Row]) -> list[Answer]:
    """What :func:`write` wrote, for the files that are labelled."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = {(line["repository"], line["path"]): line for line in csv.DictReader(file)}
    found = []
    for row in labelled:
        line = lines[row.repository, row.path]
        states = tuple(each for each in (ESTIMATE, PARTIAL, UNKNOWN) for _ in range(int(line[each])))
        found.append(Answer(row, states, tuple(filter(None, line["reasons"].split(" / ")))))
    return found


def state(run: Mapping[str, Any]) -> str:
    if run["estimate"] is not None:
        return ESTIMATE
    return PARTIAL if run.get("partial") else UNKNOWN


def why(run: Mapping[str, Any], said: Mapping[str, str]) -> str:
    """Why a run has no estimate, in its own words or in those of another run of its file; "" where nothing says it."""
    own = [finding["message"] for finding in run["findings"] if finding["code"] in NO_ESTIMATE]
    others = [finding["message"] for finding in run["findings"]]
    return str((own or [said.get(run["path"], "")])[0] or (others or [""])[0]).removeprefix("no estimate: ")


_NAMES = re.compile(
    r"[\"'`][^\"'`]*[\"'`]"  # quoted
    r"|(?<![\w-])[\w.~$<{-]*[/$][^\s,;:]*"  # paths, ids of models, variables
    r"|\b\w+(?:[.-]\w*\d\w*)+\b|\b\d[\d,.]*\b"  # names with a number, numbers
)


def cause(reason: str) -> str:
    """A reason without the names and numbers that only one run has."""
    return _NAMES.sub("_", reason.split(";")[0]).strip()


# ---------------------------------------------------------------------------------------------- counting


def figures(of: Sequence[Answer]) -> Figures:
    training = [answer for answer in of if answer.row.kind == "training"]
    others = [answer for answer in of if answer.row.kind not in ("training", *NEITHER)]
    false = sum(answer.found for answer in others)
    return Figures(
        files=len(of),
        training=len(training),
        estimated=mean([answer.share(ESTIMATE) for answer in training]),
        answered=mean([answer.share(ESTIMATE, PARTIAL) for answer in training]),
        missed=sum(not answer.found for answer in training),
        others=len(others),
        false=false,
        claims=false + sum(answer.found for answer in training),
    )


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def by_repository(of: Iterable[Answer]) -> dict[str, list[Answer]]:
    groups: dict[str, list[Answer]] = {}
    for answer in of:
        groups.setdefault(answer.row.repository, []).append(answer)
    return groups


# ---------------------------------------------------------------------------------------------- the page


INTRODUCTION = """\
# Public repositories

{files} files of {repositories} public repositories of {subject}, drawn at random
(`benchmarks/repositories/draw.py`) and labelled by hand before memlint was asked (`benchmarks/repositories/files.csv`).
`memlint check .` ran at the root of each clone. The page is written by
`python -m benchmarks.repositories.figures --clones FOLDER --docs docs/repositories.md`; nothing in it is by hand.

A training file is *estimated* where its run has a peak, and *answered* where it has a peak or a partial answer (a table
over what is not stated); of several runs in a file, each counts its share. It is *missed* where no run is reported.
A *false claim* is a run that is reported for a file that trains nothing: its share is of all files with a run.
Templates and texts that only name a script are counted in neither. *First sight* is what memlint said of the same files
before anything was mended for them, and stands for good.
"""


def percent(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.1f} %" if 0 < value < 0.1 else f"{100 * value:.0f} %"


def page(found: Sequence[Answer], first: Sequence[Answer], subject: str = LANGUAGE) -> str:
    groups = by_repository(found)
    each = {name: figures(group) for name, group in groups.items()}
    pooled = figures(found)
    parts = [INTRODUCTION.format(files=len(found), repositories=len(groups), subject=subject), "## Result\n"]
    texts = [answer for answer in found if answer.row.path.endswith(TEXTS)]
    parts.append(
        _table(
            ("", "goal", "first sight", "of all files", "each repository equally", "configs and scripts", "Markdown"),
            [
                (name, goal, *(percent(one) for one in values))
                for name, goal, values in _summary((figures(first), pooled), each, found, texts)
            ],
        )
    )
    parts.append(
        f"Of {pooled.others} files that train nothing, {pooled.false} have a run; of {pooled.training} that train, "
        f"{pooled.missed} have none.\n"
    )
    parts.append("## By repository\n")
    lines = [_line(name, one) for name, one in each.items()]
    head = ("repository", "files", "training", "estimated", "answered", "missed", "train nothing", "false claims")
    parts.append(_table(head, [*lines, _line("**all**", pooled)]))
    parts.append("## By trainer\n")
    trainers = sorted({answer.row.trainer for answer in found if answer.row.kind == "training"})
    of_trainers = {
        name: figures([answer for answer in found if answer.row.trainer == name and answer.row.kind == "training"])
        for name in trainers
    }
    head = ("trainer", "training", "estimated", "answered", "missed")
    parts.append(
        _table(
            head,
            [
                (name, str(one.training), percent(one.estimated), percent(one.answered), str(one.missed))
                for name, one in sorted(of_trainers.items(), key=lambda item: -item[1].training)
            ],
        )
    )
    parts.append("## Why there is no estimate\n\nTraining files, most frequent first; names and numbers are `_`.\n")
    counted = Counter(
        one
        for answer in found
        if answer.row.kind == "training"
        for one in sorted({cause(reason) for reason in answer.reasons})
    )
    parts.append(_table(("files", "reason"), [(str(count), said) for said, count in counted.most_common()], right=0))
    parts.append("## Missed\n")
    parts.append(_listed(answer for answer in found if answer.row.kind == "training" and not answer.found))
    parts.append("## False claims\n")
    nothing = ("training", *NEITHER)
    parts.append(_listed(answer for answer in found if answer.row.kind not in nothing and answer.found))
    return "\n".join(parts)


def _summary(
    pooled: Sequence[Figures], each: Mapping[str, Figures], found: Sequence[Answer], texts: Sequence[Answer]
) -> list[tuple[str, str, list[float | None]]]:
    told = figures(texts)
    configs = figures([answer for answer in found if not answer.row.path.endswith(TEXTS)])

    def over(take: Any) -> list[float | None]:
        known = [value for value in map(take, each.values()) if value is not None]
        return [*map(take, pooled), mean(known), take(configs), take(told)]

    return [
        ("an estimate", f"at least {percent(GOALS['estimate'])}", over(lambda one: one.estimated)),
        ("an estimate or a partial answer", f"at least {percent(GOALS['answer'])}", over(lambda one: one.answered)),
        ("missed", f"at most {percent(GOALS['missed'])}", over(lambda one: one.missed_share)),
        ("false claims", f"at most {percent(GOALS['false'])}", over(lambda one: one.false_share)),
    ]


def _line(name: str, one: Figures) -> tuple[str, ...]:
    shares = (percent(one.estimated), percent(one.answered))
    return (name, str(one.files), str(one.training), *shares, str(one.missed), str(one.others), str(one.false))


def _listed(of: Iterable[Answer]) -> str:
    lines = [
        f"- {answer.row.repository} `{answer.row.path}`: {answer.row.kind}"
        + "".join(f", {said}" for said in (answer.row.trainer, answer.row.note) if said)
        for answer in of
    ]
    return "\n".join(lines or ["None."]) + "\n"


def _table(head: Sequence[str], lines: Iterable[Sequence[str]], right: int = 1) -> str:
    rule = ["---" if index < right else "--:" for index in range(len(head))]
    if right == 0:
        rule = ["--:", *["---"] * (len(head) - 1)]
    cells = [head, rule, *([cell.replace("|", "\\|") for cell in line] for line in lines)]
    return "\n".join("| " + " | ".join(line) + " |" for line in cells) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.repositories.figures")
    parser.add_argument("--clones", type=Path, required=True)
    parser.add_argument("--sample", choices=sorted(SAMPLES), default="first")
    parser.add_argument("--reports", type=Path, help="a folder that keeps the JSON reports, OWNER+NAME.json")
    parser.add_argument("--only", nargs="*", default=[], metavar="OWNER/NAME")
    parser.add_argument("--docs", type=Path, help="the page to write; without it, it is printed")
    parser.add_argument("--note", default="", help="a sentence for the page: how this run was not the one that it says")
    parser.add_argument("--list", type=Path, help="a CSV of what memlint says of each file")
    args = parser.parse_args(arguments)
    table, first_sight = SAMPLES[args.sample]
    labelled = [row for row in rows(table) if not args.only or row.repository in args.only]
    found: list[Answer] = []
    for repository in dict.fromkeys(row.repository for row in labelled):
        name = repository.replace("/", "+")
        kept = args.reports / f"{name}.json" if args.reports else None
        if kept is not None and kept.is_file():
            told = json.loads(kept.read_text(encoding="utf-8"))
        else:
            told = checked(args.clones / name, [])
            if "version" not in told:
                parser.error(f"no report of {repository}")
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps(told), encoding="utf-8")
        found += answers([row for row in labelled if row.repository == repository], told)
    if args.list:
        write(found, args.list)
    text = page(found, read(first_sight, labelled), SUBJECTS.get(args.sample, LANGUAGE))
    if args.sample != "first":
        text = text.replace("# Public repositories\n", f"# Public repositories: the {args.sample} sample\n", 1)
        text = text.replace("--clones FOLDER", f"--sample {args.sample} --clones FOLDER")
        text = text.replace("docs/repositories.md", f"docs/repositories-{args.sample}.md")
        text = text.replace("repositories/files.csv", f"repositories/{table.name}")
    if args.note:
        text = text.replace("## Result\n", f"{args.note}\n\n## Result\n", 1)
    if args.docs:
        args.docs.write_text(text, encoding="utf-8")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
