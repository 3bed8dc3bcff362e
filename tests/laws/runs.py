"""Small runs of the families that answer, made of sizes: an estimate of one takes milliseconds."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from memlint.check import check_paths
from memlint.dialects import registry
from memlint.documents import load
from memlint.documents.hydra import composition as hydra
from memlint.estimates import EqualRuns
from memlint.facts.spec import TrainingSpec
from memlint.models.templates import Templates
from memlint.reports.report import Report, RunReport
from memlint.settings import Resolver

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
STATED = os.environ.get("MEMLINT_LAWS", "")
FULL = bool(STATED)

law = settings(
    max_examples=2000 if STATED == "full" else int(STATED or 25),
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)

Files = dict[str, str]


class Sizes(NamedTuple):
    """Of a decoder and of its training. ``hidden`` is a multiple of 32: heads are 4, and a head whose size is no
    multiple of 8 is served by another kernel, which may take more than the kernel for a larger one."""

    layers: int = 2
    hidden: int = 64
    vocabulary: int = 256
    batch: int = 2
    length: int = 64
    accumulation: int = 1


class Family(NamedTuple):
    """How a run of these sizes is written in a family's own words: the file to check first."""

    name: str
    write: Callable[[Sizes], Files]


def model_config(sizes: Sizes) -> str:
    return json.dumps(
        {
            "model_type": "llama",
            "hidden_size": sizes.hidden,
            "intermediate_size": 2 * sizes.hidden,
            "num_hidden_layers": sizes.layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "vocab_size": sizes.vocabulary,
            "max_position_embeddings": 65536,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        }
    )


def as_yaml(entries: Mapping[str, Any]) -> str:
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in entries.items())


def as_options(entries: Mapping[str, Any]) -> str:
    return " \\\n    ".join(
        f"--{key} {str(value).lower() if isinstance(value, bool) else value}" for key, value in entries.items()
    )


def trl(sizes: Sizes) -> dict[str, Any]:
    return {
        "model_name_or_path": "./model",
        "max_length": sizes.length,
        "packing": True,
        "per_device_train_batch_size": sizes.batch,
        "gradient_accumulation_steps": sizes.accumulation,
        "output_dir": "out",
    }


def transformers(sizes: Sizes) -> dict[str, Any]:
    return {
        "model_name_or_path": "./model",
        "block_size": sizes.length,
        "per_device_train_batch_size": sizes.batch,
        "gradient_accumulation_steps": sizes.accumulation,
        "do_train": True,
        "output_dir": "out",
    }


def llamafactory(sizes: Sizes) -> dict[str, Any]:
    return {
        "model_name_or_path": "./model",
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "full",
        "template": "llama3",
        "dataset": "x",
        "cutoff_len": sizes.length,
        "per_device_train_batch_size": sizes.batch,
        "gradient_accumulation_steps": sizes.accumulation,
        "output_dir": "out",
    }


def axolotl(sizes: Sizes) -> dict[str, Any]:
    return {
        "base_model": "./model",
        "sequence_len": sizes.length,
        "micro_batch_size": sizes.batch,
        "gradient_accumulation_steps": sizes.accumulation,
        "optimizer": "adamw_torch",
        "bf16": True,
        "datasets": [{"path": "x", "type": "alpaca"}],
        "output_dir": "out",
    }


def nanogpt(sizes: Sizes) -> Files:
    return {
        "small.py": f"out_dir = 'out'\nbatch_size = {sizes.batch}\nblock_size = {sizes.length}\n"
        f"gradient_accumulation_steps = {sizes.accumulation}\n"
        f"n_layer = {sizes.layers}\nn_head = 4\nn_embd = {sizes.hidden}\n"
    }


def megatron(sizes: Sizes) -> Files:
    options = {
        "num-layers": sizes.layers,
        "hidden-size": sizes.hidden,
        "num-attention-heads": 4,
        "seq-length": sizes.length,
        "max-position-embeddings": 65536,
        "micro-batch-size": sizes.batch,
        "global-batch-size": sizes.batch * sizes.accumulation,
        "vocab-size": sizes.vocabulary,
        "tokenizer-type": "NullTokenizer",
    }
    return {
        "pretrain.sh": f"torchrun --nproc_per_node 1 --nnodes 1 pretrain_gpt.py --bf16 \\\n    {as_options(options)}\n"
    }


def gpt_neox(sizes: Sizes) -> Files:
    entries = {
        "num_layers": sizes.layers,
        "hidden_size": sizes.hidden,
        "num_attention_heads": 4,
        "seq_length": sizes.length,
        "max_position_embeddings": 65536,
        "train_micro_batch_size_per_gpu": sizes.batch,
        "gradient_accumulation_steps": sizes.accumulation,
        "pos_emb": "rotary",
        "pipe_parallel_size": 0,
        "model_parallel_size": 1,
        "optimizer": {"type": "Adam", "params": {"lr": 0.0006}},
        "zero_optimization": {"stage": 0},
        "fp16": {"enabled": True},
    }
    return {"neox.yml": as_yaml(entries)}


def _with_model(name: str, entries: Callable[[Sizes], dict[str, Any]]) -> Callable[[Sizes], Files]:
    def write(sizes: Sizes) -> Files:
        stated = entries(sizes)
        text = json.dumps(stated, indent=1) if name.endswith(".json") else as_yaml(stated)
        return {name: text, "model/config.json": model_config(sizes)}

    return write


FAMILIES = (
    Family("trl", _with_model("sft.yaml", trl)),
    Family("hf-trainer", _with_model("args.json", transformers)),
    Family("llamafactory", _with_model("sft.yaml", llamafactory)),
    Family("axolotl", _with_model("axolotl.yml", axolotl)),
    Family("nanogpt", nanogpt),
    Family("megatron", megatron),
    Family("gpt-neox", gpt_neox),
)

# -- checking


@functools.cache
def _folder() -> Path:
    """One for all examples: to make and remove a folder takes as long as to read a config."""
    folder = Path(tempfile.mkdtemp(prefix="memlint-laws-"))
    (folder / ".git").mkdir()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextmanager
def folder_of(files: Files) -> Iterator[Path]:
    folder = _folder()
    try:
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        yield folder
    finally:
        for name in files:
            (folder / name).unlink()


def checked(files: Files, known: EqualRuns | None = None, **options: Any) -> Report:
    """The report on the first of the files."""
    with folder_of(files) as folder:
        return check_at(folder / next(iter(files)), known, **options)


# Of thousands of examples most differ from an earlier one in sizes alone. They are recorded as those of a folder are:
# once with sizes that are followed (memlint.models.templates). The few of the quick lane are recorded one by one.
_templates = Templates(kinds=1000, most=100)


def templates() -> Templates | None:
    """For an example of its own."""
    _templates.begin()
    return _templates if FULL else None


def equal_runs() -> EqualRuns | None:
    """What was estimated for runs of the same facts, of which the quick lane has none."""
    return EqualRuns(_templates) if FULL else None


def check_at(path: Path, known: EqualRuns | None = None, **options: Any) -> Report:
    """``known``: what was estimated for runs of the same facts."""
    known = known or equal_runs()
    resolver = Resolver({key.replace("_", "-"): value for key, value in options.items()}, isolated=True)
    # Of thousands of examples each is one run, as the newest releases take it: the same run under older ones is asked
    # for in the few of the quick lane.
    with mock.patch("memlint.plausible.candidates", list_of_none) if FULL else contextlib.nullcontext():
        return check_paths([str(path)], resolver, equal_runs=known)


def list_of_none(_: TrainingSpec) -> list[Any]:
    return []


def run_of(files: Files, known: EqualRuns | None = None, **options: Any) -> RunReport:
    """The only run of the files, with an estimate."""
    report = checked(files, known, select=["MEM003", "MEM007", "MEM008"], **options)
    [run] = report.runs
    assert run.estimate is not None, report.findings
    return run


def same_runs(first: Files, *others: Files) -> None:
    """What is written in other words is the same run. Of thousands of examples the facts are compared, and a run of the
    same facts is not estimated again: that an estimate depends on nothing else is seen in the few of the quick lane."""
    known = equal_runs()
    one = run_of(first, known)
    for files in others:
        same_run(one, run_of(files, known))


def same_run(one: RunReport, other: RunReport) -> None:
    """The same estimate, to the byte, and the same facts."""
    assert one.estimate is not None
    assert other.estimate is not None
    assert one.estimate.components == other.estimate.components
    assert one.estimate[1:9] == other.estimate[1:9]
    values = [{name: fact.value for name, fact in run.facts.items()} for run in (one, other)]
    assert values[0] == values[1]


# -- whole configs, whose facts are changed as a what-if changes them

WHOLE = (
    *("uni3d_dp/uni3d+dp.yaml", "uni3d_dp/uni3d+dp_ultra_low.yaml", "video_llm/config.yaml", "dit3d/config.py"),
    *("stdiff/kitti_range_train_config.yaml", "lag_mode/train_lag_mode.sh", "lag_mode/train_lag_mode_ultra_low_mem.sh"),
)


@functools.cache
def specs() -> dict[str, TrainingSpec]:
    """A run of each family: the small ones of language models, and the examples whose models are their own."""
    found: dict[str, TrainingSpec] = {}
    for family in FAMILIES:
        with folder_of(family.write(Sizes())) as folder:
            found[family.name] = spec_at(folder / next(iter(family.write(Sizes()))))
    for name in WHOLE:
        found[name] = spec_at(EXAMPLES / name)
    return found


def spec_at(path: Path) -> TrainingSpec:
    document = load.load(str(path))
    if hydra.has_defaults(document):
        document = hydra.compose(document)
    return registry.specs(document)[0]


# Of the laws that are not about a model's sizes, some models hold as much as all: they are recorded once.
MODELS = ((1, 192, 640), (2, 32, 16), (2, 64, 256), (2, 160, 400), (3, 96, 96), (3, 128, 1024))
TRAININGS = st.builds(
    lambda model, batch, length, accumulation: Sizes(*model, batch, 8 * length, accumulation),
    st.sampled_from(MODELS),
    st.integers(1, 9),
    st.integers(1, 40),
    st.integers(1, 3),
)
SIZES = st.builds(
    Sizes,
    layers=st.integers(1, 3),
    hidden=st.integers(1, 6).map(lambda number: 32 * number),
    vocabulary=st.integers(1, 40).map(lambda number: 16 * number),
    batch=st.integers(1, 9),
    length=st.integers(1, 40).map(lambda number: 8 * number),
    accumulation=st.integers(1, 3),
)
