"""`memlint plan` against `memlint check`: models, methods, trainers and shardings, each row beside its written config.

    python -m benchmarks.plan [--draw 300] [--seed 14] [--models NAME...] [--trainers NAME...] [--shardings NAME...]
        [--length 1024] [--gpu h200-141gb] [--devices 8] [--csv FILE]

Of the full product ``--draw`` combinations are drawn (0: all). Of each the row of a plan is made, its files are written
into a folder of their own and checked there, without a card and with one:

- equal: the check's estimate is the row's, and where the run fits the card, the check finds nothing, or of replicas
  what replicas cost;
- unequal: it is another, or none;
- findings: it is the same, and a config that fits is not clean, neither with one sample nor with as many as the card
  holds, which is what `memlint plan --write` writes;
- unplanned: the trainer has no such run, and says why;
- unknown: there is no estimate, and why.

The CPU time is that of all this in one process, without a cache on disk.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from memlint.check import check_paths
from memlint.data.catalogue import parse_gpu
from memlint.planning.rows import Planner
from memlint.planning.starters import DDP, METHODS, ONE, SHARDINGS, TRAINERS, Unplanned, Wanted, starter
from memlint.reports.report import RunReport
from memlint.settings import Resolver
from memlint.tape.estimate import FITS

EQUAL, UNEQUAL, FINDINGS, UNPLANNED, UNKNOWN = OUTCOMES = ("equal", "unequal", "findings", "unplanned", "unknown")

MODELS = (
    *("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-7B", "Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B", "meta-llama/Llama-3.2-1B"),
    *("NousResearch/Meta-Llama-3.1-8B", "meta-llama/Llama-2-7b-hf", "mistralai/Mistral-7B-v0.1", "google/gemma-2b"),
    *("google/gemma-2-9b", "google/gemma-3-1b-pt", "microsoft/phi-2", "microsoft/Phi-3-mini-4k-instruct"),
    *("EleutherAI/pythia-1.4b", "EleutherAI/gpt-neox-20b", "facebook/opt-1.3b", "bigscience/bloom-1b7"),
    *("tiiuae/falcon-7b", "gpt2", "HuggingFaceTB/SmolLM2-1.7B", "TinyLlama/TinyLlama-1.1B-Chat-v1.0"),
    *("deepseek-ai/deepseek-llm-7b-base", "01-ai/Yi-6B", "stabilityai/stablelm-2-1_6b", "bigcode/starcoder2-3b"),
    *("mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen3-30B-A3B", "allenai/OLMo-2-1124-7B"),
    *("ibm-granite/granite-3.1-2b-base", "CohereForAI/c4ai-command-r7b-12-2024"),
)
# torchtune builds by name: of the models above it has few, so these stand in their places.
OF_TORCHTUNE = (
    *("meta-llama/Llama-3.1-8B", "NousResearch/Meta-Llama-3.1-8B", "meta-llama/Llama-3.2-1B"),
    *("meta-llama/Llama-3.2-3B-Instruct", "Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-1.5B-Instruct", "Qwen/Qwen2.5-3B"),
    "Qwen/Qwen2.5-7B-Instruct",
)


# Found of replicas, as the rows of other shardings say as well: the copies that DDP makes.
COST_OF_REPLICAS = frozenset(("MEM401", "MEM402"))


def unclean(run: RunReport, wanted: Wanted) -> list[str]:
    """What is found of a config that fits and should be clean."""
    allowed = COST_OF_REPLICAS if wanted.sharding == DDP else ()
    return [finding.message for finding in run.findings if run.verdict == FITS and finding.code not in allowed]


class Outcome(NamedTuple):
    """What came of one combination; ``said``: of a reason, findings or sizes that differ."""

    trainer: str
    wanted: Wanted
    outcome: str
    said: str
    cpu_seconds: float


def written(folder: Path, trainer: str, wanted: Wanted, card: str = "") -> RunReport:
    """What `check` says of a starter in a new folder, which ends up there."""
    folder.mkdir(parents=True)
    (folder / ".git").mkdir()
    name = f"mine{TRAINERS[trainer].suffix}"
    for file, text in starter(trainer, wanted, name).items():
        (folder / file).write_text(text, encoding="utf-8")
    report = check_paths([str(folder / name)], Resolver({"gpu": card} if card else {}, isolated=True))
    if report.errors or report.skipped or len(report.runs) != 1:
        raise ValueError(f"{folder / name}: {len(report.runs)} runs, {report.errors or report.skipped}")
    return report.runs[0]


def outcome(trainer: str, wanted: Wanted, card: str) -> Outcome:
    begin = time.process_time()

    def ends(what: str, said: str = "") -> Outcome:
        return Outcome(trainer, wanted, what, said, time.process_time() - begin)

    try:
        starter(trainer, wanted, "mine")
    except Unplanned as error:
        return ends(UNPLANNED, str(error))
    (row,) = Planner(trainer).rows(wanted, ())
    with tempfile.TemporaryDirectory(prefix="memlint-") as folder:
        alone = written(Path(folder, "without"), trainer, wanted)
        on_card = written(Path(folder, "with"), trainer, wanted, card)
    if row.estimate is None and alone.estimate is None:
        return ends(UNKNOWN, row.why)
    if alone.estimate != row.estimate:
        sizes = [found and found.device_bytes for found in (row.estimate, alone.estimate)]
        return ends(UNEQUAL, f"a plan says {sizes[0]} and a check {sizes[1]} bytes")
    if not unclean(on_card, wanted):
        return ends(EQUAL)
    found = unclean_filled(trainer, wanted, card)
    return ends(FINDINGS, "; ".join(found)) if found else ends(EQUAL)


def unclean_filled(trainer: str, wanted: Wanted, card: str) -> list[str]:
    """What is found of the config that holds as many samples as the card."""
    (row,) = Planner(trainer).rows(wanted, [parse_gpu(card)[0]])
    filled = wanted._replace(micro_batch=row.batch or 1)
    with tempfile.TemporaryDirectory(prefix="memlint-") as folder:
        return unclean(written(Path(folder, "filled"), trainer, filled, card), filled)


def product(
    models: Sequence[str], trainers: Sequence[str], shardings: Sequence[str], length: int, devices: int
) -> list[tuple[str, Wanted]]:
    """All combinations; a trainer that builds models by their names has those that it has names for."""
    return [
        (trainer, Wanted(model, method, length, 1, 1 if how == ONE else devices, how))
        for trainer in trainers
        for model in (models or (OF_TORCHTUNE if trainer == "torchtune" else MODELS))
        for method in METHODS
        for how in shardings
    ]


def main(words: Sequence[str]) -> int:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", type=int, default=300)
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--models", nargs="+", default=())
    parser.add_argument("--trainers", nargs="+", choices=tuple(TRAINERS), default=tuple(TRAINERS))
    every_sharding = (ONE, *SHARDINGS)
    parser.add_argument("--shardings", nargs="+", choices=every_sharding, default=every_sharding)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--gpu", default="h200-141gb")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args(words)
    runs = product(given.models, given.trainers, given.shardings, given.length, given.devices)
    every = len(runs)
    if given.draw:
        runs = random.Random(given.seed).sample(runs, min(given.draw, every))
    found: list[Outcome] = []
    for trainer, wanted in runs:
        found.append(one := outcome(trainer, wanted, given.gpu))
        if one.outcome in (UNEQUAL, FINDINGS, UNKNOWN):
            print(trainer, wanted.model, wanted.method, wanted.sharding, one.outcome, one.said, flush=True)
    counts = Counter(one.outcome for one in found)
    print(f"{len(found)} of {every} combinations: {', '.join(f'{counts[name]} {name}' for name in OUTCOMES)}")
    for (what, said), count in Counter((one.outcome, one.said) for one in found if one.said).most_common():
        print(f"{count:6} {what}: {said}")
    print(f"{sum(one.cpu_seconds for one in found):.0f} CPU seconds")
    if given.csv:
        with open(given.csv, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("trainer", "model", "method", "sharding", "outcome", "said", "cpu_seconds"))
            for one in found:
                model, method, sharding = one.wanted.model, one.wanted.method, one.wanted.sharding
                writer.writerow((one.trainer, model, method, sharding, one.outcome, one.said, f"{one.cpu_seconds:.2f}"))
    return int(bool(counts[UNEQUAL] or counts[FINDINGS]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
