"""The files of ``files.csv``, drawn at random out of clones, before anybody labels them.

    python -m benchmarks.repositories.draw --seed 1 --clones FOLDER --commits clones.csv --out drawn.csv

A clone of OWNER/NAME lies under FOLDER as OWNER+NAME. Three of four files are drawn out of those whose text speaks of
training, and the fourth out of the rest: the words are ours and simple, so that memlint's own recognition decides
nothing. Kinds are then filled in by hand, from the file and what it names, without a look at what memlint says.
"""

from __future__ import annotations

import argparse
import csv
import random
import re
import sys
from collections.abc import Sequence
from pathlib import Path

COLUMNS = ("repository", "commit", "path", "kind", "trainer", "note")
SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".sh", ".slurm", ".sbatch", ".md", ".py")
MAX_BYTES = 200_000  # data sets are JSON too
CONFIG_MODULE = re.compile(r"(^|/)(configs?|recipes)/[^_][^/]*\.py$|(^|/)[^/]+/configs/.*/[^_/][^/]*\.py$")
TRAINS = re.compile(
    r"learning_rate|train_batch_size|micro_batch|torchrun|accelerate launch|deepspeed |finetune|fine_tune"
    r"|num_train_epochs|max_steps|train_iters|lora_r|optimizer:|\blr:|train\.py"
)
NO_CONFIG = re.compile(
    r"(^|/)(node_modules|third_party|\.git|ISSUE_TEMPLATE)/|(^|/)(package(-lock)?|tokenizer)\.json$"
    r"|(^|/)(\.pre-commit-config\.yaml|dependabot\.yml|(CODE_OF_CONDUCT|SECURITY|PULL_REQUEST_TEMPLATE)\.md)$"
)
PER_REPOSITORY = 16
SPEAKS, OF = 3, 4  # three of four files are drawn out of those that speak of training


def candidates(clone: Path) -> tuple[list[str], list[str]]:
    """(paths of files that speak of training, paths of the others), sorted."""
    speaks: list[str] = []
    rest: list[str] = []
    for path in sorted(clone.rglob("*")):
        name = path.relative_to(clone).as_posix()
        if path.suffix not in SUFFIXES or NO_CONFIG.search(name) or path.is_symlink() or not path.is_file():
            continue
        if path.suffix == ".py" and not CONFIG_MODULE.search(name):
            continue
        if path.stat().st_size > MAX_BYTES:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        (speaks if TRAINS.search(text) else rest).append(name)
    return speaks, rest


def drawn(speaks: Sequence[str], rest: Sequence[str], count: int, order: random.Random) -> list[str]:
    """``count`` paths, three quarters of them out of ``speaks``; where one list is short, the other fills up."""
    wanted = min(max(count * SPEAKS // OF, count - len(rest)), len(speaks))
    first = order.sample(list(speaks), wanted)
    second = order.sample(list(rest), min(count - wanted, len(rest)))
    return sorted(first + second)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.repositories.draw")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--clones", type=Path, required=True)
    parser.add_argument("--commits", type=Path, required=True, help="a CSV of repository,commit")
    parser.add_argument("--count", type=int, default=PER_REPOSITORY)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(arguments)
    with args.commits.open(encoding="utf-8", newline="") as file:
        commits = dict(csv.reader(file))
    with args.out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for repository in sorted(commits):
            order = random.Random(f"{args.seed} {repository}")
            clone = args.clones / repository.replace("/", "+")
            for path in drawn(*candidates(clone), args.count, order):
                writer.writerow((repository, commits[repository], path, "", "", ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
