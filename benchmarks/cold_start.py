"""Whole-process time of `memlint check` beside yamllint on the same file, in pairs.

    python benchmarks/cold_start.py [--runs 15] [FILE]

Both run as fresh processes, in turn, with a warm file cache; the medians and the median of the pairwise ratios are
printed. yamllint is run as a program, as a peer: it is never imported.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "uni3d_dp" / "uni3d+dp.yaml"


def seconds(command: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - begin


def program(name: str) -> str:
    """A console script of this interpreter's environment, else of the path."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise SystemExit(f"{name} is not installed: pip install {name}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", default=str(EXAMPLE))
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    ours = [program("memlint"), "check", arguments.file, "--budget", "16GB"]
    theirs = [program("yamllint"), arguments.file]
    for command in (ours, theirs):  # warm the file cache and the byte code
        seconds(command)
    pairs = []
    for number in range(arguments.runs):
        pairs.append((seconds(ours), seconds(theirs)))
        if sys.stderr.isatty():
            print(f"\r{number + 1}/{arguments.runs}", end="", file=sys.stderr)
    figures = {
        "file": os.path.relpath(arguments.file, ROOT),
        "runs": arguments.runs,
        "python": platform.python_version(),
        "memlint_ms": statistics.median(a for a, _ in pairs) * 1e3,
        "yamllint_ms": statistics.median(b for _, b in pairs) * 1e3,
        "ratio": statistics.median(a / b for a, b in pairs),
    }
    if arguments.json:
        print(json.dumps(figures))
    else:
        print(
            f"{figures['file']}, {arguments.runs} pairs, Python {figures['python']}\n"
            f"  memlint check  {figures['memlint_ms']:6.1f} ms (median)\n"
            f"  yamllint       {figures['yamllint_ms']:6.1f} ms (median)\n"
            f"  ratio          {figures['ratio']:6.2f} (median of pairs)"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
