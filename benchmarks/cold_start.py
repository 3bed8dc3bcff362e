"""Whole-process time of `memlint check` beside yamllint on the same file, in pairs.

    python benchmarks/cold_start.py [--runs 15] [--all | --deep] [FILE]

Both run as fresh processes, in turn, with a warm file cache; the medians and the median of the pairwise ratios are
printed. yamllint is run as a program, as a peer: it is never imported. The time grows with the what-ifs behind the
fixes that a config is offered: `--all` goes through every YAML example, from none of them to a dozen. `--deep` is a
decoder of 126 layers with ZeRO-3 on 64 GPUs, as three trainers are told: one run that fits, and two that are too large,
with a fix each.
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

os.environ["MEMLINT_CACHE_DIR"] = ""  # what is timed is a first check

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "uni3d_dp" / "uni3d+dp_after.yaml"
DEEP = {
    ROOT / "benchmarks" / "deep" / "llama_405b.yaml": ("--budget", "80GB"),
    ROOT / "benchmarks" / "deep" / "axolotl_405b.yaml": ("--gpu", "h100-80gb x64"),
    ROOT / "benchmarks" / "deep" / "trl_405b.yaml": ("--gpu", "h100-80gb x64"),
}


def seconds(command: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - begin


def program(name: str) -> str:
    """A console script of this interpreter's environment, else of the path."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        hint = "pip install ." if name == "memlint" else f"pip install {name}"
        raise SystemExit(f"{name} is not installed here: {hint}")
    return found


def measure(path: Path, runs: int) -> dict[str, object]:
    ours = [program("memlint"), "check", str(path), *DEEP.get(path, ("--budget", "16GB"))]
    theirs = [program("yamllint"), str(path)]
    for command in (ours, theirs):  # warm the file cache and the byte code
        seconds(command)
    pairs = []
    for number in range(runs):
        pairs.append((seconds(ours), seconds(theirs)))
        if sys.stderr.isatty():
            print(f"\r{path.name} {number + 1}/{runs}", end="\r", file=sys.stderr)
    return {
        "file": os.path.relpath(path, ROOT),
        "runs": runs,
        "python": platform.python_version(),
        "memlint_ms": statistics.median(a for a, _ in pairs) * 1e3,
        "yamllint_ms": statistics.median(b for _, b in pairs) * 1e3,
        "ratio": statistics.median(a / b for a, b in pairs),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, default=EXAMPLE)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--all", action="store_true", help="every YAML example")
    parser.add_argument("--deep", action="store_true", help="a model of 126 layers")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    files = [*DEEP] if arguments.deep else [arguments.file.resolve()]
    if arguments.all:
        files = sorted((ROOT / "examples").glob("*/*.yaml"))
    found = [measure(path, arguments.runs) for path in files]
    if arguments.json:
        print(json.dumps(found, indent=1))
        return 0
    print(f"{arguments.runs} pairs, Python {platform.python_version()}; medians")
    print("memlint check  yamllint  ratio  file")
    for row in found:
        print(f"{row['memlint_ms']:10.1f} ms {row['yamllint_ms']:6.1f} ms {row['ratio']:6.2f}  {row['file']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
