"""Every estimate of a release, as a table that the next one is held against.

    python -m benchmarks.frozen write FILE [FOLDER ...]
    python -m benchmarks.frozen compare FILE OTHER [--all]

``write`` checks the examples, the cases of ``benchmarks/accuracy``, the families' samples in ``tests/hostile`` and
every FOLDER besides, each file as on the command line without a settings file, and writes what each run is: its family,
its figures in bytes with their intervals and components, or why there is no estimate. ``compare`` prints what changed
from FILE to OTHER: runs that lost their estimate, that won one, that changed by how much and in which component, by
family; its exit code is 1 where anything did. A redesign changes nothing; a mechanism changes what it says it does.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

FOLDERS = ("examples", "tests/hostile/samples")
SHOWN = 20  # changed runs of a family, unless all are asked for

Table = dict[str, dict[str, Any]]


# ---------------------------------------------------------------------------------------------- writing


def questions(folders: Iterable[Path]) -> Iterator[tuple[str, Path, str]]:
    """(name in the table, file or folder, card) of everything that is checked."""
    from benchmarks.accuracy import runner

    for folder in folders:
        yield folder.name, folder, ""
    for case in runner.load_cases():
        yield f"case {case.id}", runner.HERE / "cases" / case.id / case.config, case.gpu


def entry(run: Any) -> dict[str, Any]:
    """What a run is, in figures."""
    if run.estimate is None:
        said = [finding.message for finding in run.findings if finding.code in ("MEM001", "MEM007", "MEM011")]
        return {"family": run.family, "unknown": " | ".join(said)}
    estimate = run.estimate
    return {
        "family": run.family,
        "parameters": [estimate.parameters, estimate.trainable_parameters],
        "bytes": [estimate.allocated_bytes, estimate.reserved_bytes, estimate.device_bytes, estimate.saved_bytes],
        "intervals": [*estimate.allocated_interval, *estimate.reserved_interval, *estimate.device_interval],
        "phases": estimate.phases,
        "components": {component.name: component.size_bytes for component in estimate.components},
    }


def freeze(folders: Sequence[Path]) -> Table:
    """Run -> what it is. Progress goes to stderr."""
    from memlint.check import check_paths
    from memlint.settings import Resolver

    found: Table = {}
    for name, path, gpu in questions(folders):
        settings = Resolver({"gpu": gpu} if gpu else {}, isolated=True)
        report = check_paths([str(path)], settings)
        base = path if path.is_dir() else path.parent
        for run in report.runs:
            place = Path(run.path)
            place = place.relative_to(base) if place.is_relative_to(base) else place
            key = f"{name}: {place.as_posix()}" + (f" [{run.run}]" if run.run else "")
            found[key] = entry(run)
        print(f"\r{len(found):,} runs, {name:60.60}", end="", file=sys.stderr)
    print(file=sys.stderr)
    return found


# ---------------------------------------------------------------------------------------------- comparing


def change(before: dict[str, Any], after: dict[str, Any]) -> str:
    """What changed in a run's entry, in a line; "" for nothing."""
    if before == after:
        return ""
    if "unknown" in before or "unknown" in after:
        if "unknown" not in after:
            return f"won: {after['bytes'][2]:,} bytes (was: {before['unknown']})"
        if "unknown" not in before:
            return f"LOST: {after['unknown'] or 'no reason'}"
        return f"reason: {before['unknown']} -> {after['unknown']}"
    old, new = before["bytes"][2], after["bytes"][2]
    names = dict.fromkeys((*before["components"], *after["components"]))
    parts = {name: after["components"].get(name, 0) - before["components"].get(name, 0) for name in names}
    moved = ", ".join(f"{name} {size:+,}" for name, size in parts.items() if size)
    if not moved:
        moved = ", ".join(name for name in before if before[name] != after.get(name))
    return f"{old:,} -> {new:,} bytes ({(new - old) / old:+.2%}): {moved}"


def compare(before: Table, after: Table) -> dict[str, list[tuple[str, str]]]:
    """Family -> (run, what changed), of runs that changed, came or went."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name in dict.fromkeys((*before, *after)):
        one, other = before.get(name), after.get(name)
        if one is None or other is None:
            family, what = ((other or {}).get("family", ""), "new") if one is None else (one["family"], "GONE")
        else:
            family, what = other["family"] or one["family"], change(one, other)
        if what:
            found.setdefault(family or "none", []).append((name, what))
    return found


def show(changes: dict[str, list[tuple[str, str]]], runs: int, everything: bool) -> None:
    kinds = Counter(what.partition(":")[0] for entries in changes.values() for _, what in entries)
    for family, entries in sorted(changes.items()):
        print(f"{family}: {len(entries)}")
        for name, what in entries if everything else entries[:SHOWN]:
            print(f"  {name}\n      {what}")
        if not everything and len(entries) > SHOWN:
            print(f"  ... {len(entries) - SHOWN} more (--all)")
    named = {kind: kinds.pop(kind, 0) for kind in ("won", "LOST", "reason", "new", "GONE")}
    said = ", ".join(f"{number} {kind}" for kind, number in named.items() if number)
    print(f"{runs:,} runs: {sum(kinds.values())} changed" + (f", {said}" if said else ""))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    writes = commands.add_parser("write", help="check everything and write the table")
    writes.add_argument("file", type=Path)
    writes.add_argument("folders", nargs="*", type=Path, help="folders of configs besides those of the project")
    compares = commands.add_parser("compare", help="print what changed from one table to another")
    compares.add_argument("file", type=Path)
    compares.add_argument("other", type=Path)
    compares.add_argument("--all", action="store_true", help=f"every changed run, not {SHOWN} of each family")
    asked = parser.parse_args(arguments)
    if asked.command == "write":
        table = freeze([*(ROOT / folder for folder in FOLDERS), *(folder.resolve() for folder in asked.folders)])
        asked.file.write_text(json.dumps(table, indent=0, sort_keys=True) + "\n", encoding="utf-8")
        estimated = sum("unknown" not in one for one in table.values())
        print(f"{len(table):,} runs, {estimated:,} with an estimate")
        return 0
    before, after = (json.loads(path.read_text(encoding="utf-8")) for path in (asked.file, asked.other))
    changes = compare(before, after)
    show(changes, len(after), asked.all)
    return 1 if changes else 0


if __name__ == "__main__":
    sys.exit(main())
