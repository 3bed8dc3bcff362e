"""Findings drawn at random over clones of public repositories, to be judged as the repository's owner would.

    python -m benchmarks.findings.draw draw --seed 1 [--gpu CARD] [--new NAME ...] --out before.csv CLONE ...
    python -m benchmarks.findings.draw figures before.csv

``draw`` runs ``memlint check .`` at the root of each clone, without a settings file, and draws findings and fixes. The
repositories take turns, in an order of the seed, and each gives one of its own at random, until there are enough: one
with few findings gives all of them, and one with hundreds no more than any other. Equal findings of a folder (code,
key and message) count once. UNKNOWN (MEM007, MEM011) is no
finding here: ``benchmarks/repositories`` counts it. Repositories that nobody had looked at before the draw are named
with ``--new``.

A person then fills in the last two columns. A finding is ``useful`` (true, and its owner would want to know),
``noise`` (true, and the owner would not) or ``wrong``; a fix is ``taken`` or ``refused``. ``figures`` counts them.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

NOT_DRAWN = ("MEM007", "MEM011")
COLUMNS = ("kind", "class", "repository", "path", "line", "run", "code", "severity", "text", "judged", "why")
JUDGEMENTS = {"finding": ("useful", "noise", "wrong"), "fix": ("taken", "refused")}
NAMES = {"finding": "findings", "fix": "fixes"}
SECONDS = 600

Row = dict[str, str]


# ---------------------------------------------------------------------------------------------- drawing


def report(clone: Path, options: Sequence[str]) -> dict[str, Any]:
    """memlint's JSON report of a clone; one without files where it ends in an error."""
    command = [sys.executable, "-m", "memlint", "check", ".", "--isolated", "--output-format", "json", *options]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, timeout=SECONDS, check=False)
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        print(f"{clone.name}: {done.stderr.strip()[-200:]}", file=sys.stderr)
        return {"files": []}
    return found


def rows(repository: str, told: Mapping[str, Any], new: bool) -> tuple[list[Row], list[Row]]:
    """(findings, fixes) of a report, in its order."""
    findings: list[Row] = []
    fixes: list[Row] = []
    seen: set[tuple[str, ...]] = set()
    for file in told["files"]:
        for finding in file["findings"]:
            if finding["code"] in NOT_DRAWN:
                continue
            equal = (finding["path"].rpartition("/")[0], finding["code"], finding["key"], finding["message"])
            if equal in seen:
                continue
            seen.add(equal)
            row = dict.fromkeys(COLUMNS, "")
            row |= {"kind": "finding", "class": "new" if new else "seen", "repository": repository}
            row |= {"path": finding["path"], "line": str(finding["line"]), "run": file.get("run") or ""}
            row |= {"code": finding["code"], "severity": finding["severity"], "text": finding["message"]}
            findings.append(row)
            fixes += ({**row, "kind": "fix", "text": _fixed(fix)} for fix in finding["fixes"])
    return findings, fixes


def _fixed(fix: Mapping[str, Any]) -> str:
    after = fix.get("device_bytes_after")
    return fix["title"] if after is None else f"{fix['title']} (peak {after / 2**30:.1f} GiB)"


def in_turns(of_each: Mapping[str, Sequence[Row]], count: int, seed: int) -> list[Row]:
    """``count`` rows: repositories take turns, and each gives one of its own at random."""
    order = random.Random(seed)
    queues = {name: order.sample(list(of_each[name]), len(of_each[name])) for name in sorted(of_each)}
    names = order.sample(list(queues), len(queues))
    drawn: list[Row] = []
    while len(drawn) < count and any(queues.values()):
        for name in names:
            if queues[name] and len(drawn) < count:
                drawn.append(queues[name].pop())
    return drawn


def draw(
    reports: Mapping[str, Mapping[str, Any]], seed: int, findings: int, fixes: int, new: Iterable[str]
) -> list[Row]:
    """Findings and fixes of several repositories' reports, drawn with a seed."""
    fresh = set(new)
    both = {name: rows(name, told, name in fresh) for name, told in reports.items()}
    drawn = in_turns({name: pair[0] for name, pair in both.items()}, findings, seed)
    drawn += in_turns({name: pair[1] for name, pair in both.items()}, fixes, seed)
    return sorted(drawn, key=lambda row: (row["kind"], row["class"], row["repository"], row["code"], row["path"]))


# ---------------------------------------------------------------------------------------------- counting


def read(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, table: Iterable[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)


def figures(table: Sequence[Row]) -> list[str]:
    """A line for each class of repositories, and for the errors among the findings."""
    lines: list[str] = []
    for kind, judgements in JUDGEMENTS.items():
        of_kind = [row for row in table if row["kind"] == kind]
        groups = {"all": of_kind}
        groups |= {each: [row for row in of_kind if row["class"] == each] for each in ("seen", "new")}
        if kind == "finding":
            groups["error"] = [row for row in of_kind if row["severity"] == "error"]
        for name, group in groups.items():
            counted = Counter(row["judged"] for row in group)
            shares = (f"{word} {counted[word]} ({counted[word] / max(len(group), 1):.0%})" for word in judgements)
            lines.append(f"{NAMES[kind]}, {name}: {len(group)}: {', '.join(shares)}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.findings.draw", description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("clones", nargs="+", type=Path, metavar="CLONE")
    drawing.add_argument("--seed", type=int, required=True)
    drawing.add_argument("--findings", type=int, default=120)
    drawing.add_argument("--fixes", type=int, default=40)
    drawing.add_argument("--new", nargs="*", default=[], metavar="NAME", help="repositories that nobody had looked at")
    drawing.add_argument("--gpu", default="", help="the card that is named to memlint")
    drawing.add_argument("--out", type=Path, required=True)
    drawing.add_argument("--reports", type=Path, help="a folder of reports that are there already, NAME.json")
    counting = commands.add_parser("figures")
    counting.add_argument("table", type=Path)
    args = parser.parse_args(arguments)
    if args.command == "figures":
        print("\n".join(figures(read(args.table))))
        return 0
    options = ["--gpu", args.gpu] if args.gpu else []
    reports: dict[str, Any] = {}
    for clone in args.clones:
        kept = args.reports / f"{clone.name}.json" if args.reports else None
        have = kept is not None and kept.is_file()
        reports[clone.name] = json.loads(kept.read_text(encoding="utf-8")) if kept and have else report(clone, options)
    write(args.out, draw(reports, args.seed, args.findings, args.fixes, args.new))
    return 0


if __name__ == "__main__":
    sys.exit(main())
