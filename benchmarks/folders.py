"""CPU seconds, wall time and memory of `memlint check` over folders, as people have them.

    python -m benchmarks.folders [--card] [--only ranks]

`copies` are 200 configs of five families, of which 40 differ in what matters for memory; `ranks` are 100 LoRA configs
that differ in batch and rank. Each is checked without a cache of estimates, with the one that this wrote, and by two
processes. What the three print has to be the same.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "language_models"
# Of each: the key of its length of a sample, which makes eight runs of one.
COPIED = {
    "full_llamafactory.yaml": "cutoff_len",
    "lora_axolotl.yml": "sequence_len",
    "sft_trl.yaml": "max_length",
    "torchtitan_llama3_8b.toml": "seq_len",
    "torchtune_llama3_1b.yaml": "max_seq_len",
}
LENGTHS = tuple(range(512, 2560, 256))
COPIES = 5
BATCHES, RANKS = range(1, 11), (4, 8, 12, 16, 24, 32, 48, 64, 96, 128)


class Cost(NamedTuple):
    """cpu_s of all processes; wall_s; peak_bytes of the largest process."""

    cpu_s: float
    wall_s: float
    peak_bytes: int
    output: str


def copies() -> Iterator[tuple[str, str]]:
    for name, key in COPIED.items():
        text = (EXAMPLES / name).read_text(encoding="utf-8")
        stem, suffix = name.split(".")
        for length in LENGTHS:
            changed = re.sub(rf"(?m)^(\s*{key}\s*[:=]\s*)\d+", rf"\g<1>{length}", text)
            for number in range(COPIES):
                yield f"{stem}_{length}_{number}.{suffix}", f"{changed}# copy {number}\n"


def ranks() -> Iterator[tuple[str, str]]:
    text = (EXAMPLES / "lora_axolotl.yml").read_text(encoding="utf-8")
    for batch in BATCHES:
        for rank in RANKS:
            changed = re.sub(r"(?m)^(micro_batch_size: )\d+", rf"\g<1>{batch}", text)
            yield f"lora_{batch}_{rank}.yml", re.sub(r"(?m)^(lora_r: )\d+", rf"\g<1>{rank}", changed)


def check(folder: Path, cache: str, options: list[str]) -> Cost:
    command = [sys.executable, "-P", "-m", "memlint", "check", ".", "--isolated", *options]
    begin = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "MEMLINT_CACHE_DIR": cache},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    output = process.stdout.read()
    _, _, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - begin
    told = re.sub(r"\(\d+ ms\)", "", output)
    return Cost(usage.ru_utime + usage.ru_stime, wall_s, usage.ru_maxrss * 1024, told)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--card", action="store_true", help="with --gpu a100-80gb and its fixes")
    parser.add_argument("--only", choices=("copies", "ranks"))
    arguments = parser.parse_args()
    card = ["--gpu", "a100-80gb"] if arguments.card else []
    for name, made in (("copies", copies), ("ranks", ranks)):
        if arguments.only not in (None, name):
            continue
        with tempfile.TemporaryDirectory() as scratch:
            folder, cache = Path(scratch, "configs"), Path(scratch, "cache")
            folder.mkdir()
            for file, text in made():
                (folder / file).write_text(text, encoding="utf-8")
            costs = {"cold": check(folder, str(cache), card), "warm": check(folder, str(cache), card)}
            shutil.rmtree(cache, ignore_errors=True)
            costs["--jobs 2"] = check(folder, str(cache), [*card, "--jobs", "2"])
            costs["no cache"] = check(folder, "", card)
            for how, cost in costs.items():
                same = "" if cost.output == costs["cold"].output else ", ANOTHER OUTPUT"
                memory = f"{cost.peak_bytes / 2**20:.0f} MiB"
                print(f"{name:8} {how:9} {cost.cpu_s:6.2f} CPU s {cost.wall_s:6.2f} s {memory}{same}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
