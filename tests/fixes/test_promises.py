"""A fix keeps its promise: its edits alone, written into the files, give the peak that it says, and break nothing.

Held over configs of many families, checked without a budget, over it and close to it: the texts stay what their formats
read, no error comes with a fix, no other batch where the title says nothing of it, and fixes that are applied are not
offered again.
"""

from __future__ import annotations

import ast
import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import memlint
from memlint.documents.node import Edit
from memlint.fixes.edits import apply_edits
from memlint.plugin import ERROR, SAFE, Finding, Fix
from memlint.reports.report import Report, RunReport
from tests.material import corpus_folder

pytestmark = pytest.mark.usefixtures("answers_kept")

ROOT = Path(__file__).parents[2]
CASES = ROOT / "benchmarks" / "accuracy" / "cases"

# Families that no example and no case is of, and what files of them may look like.
WRITTEN = {
    "litgpt, a section that ends the file": (
        "scratch.yaml",
        {
            "scratch.yaml": "model_name: pythia-160m\ntokenizer_dir: checkpoints/EleutherAI/pythia-160m\ndevices: 2\n"
            "train:\n  global_batch_size: 64\n  max_tokens: 1000000\n"
        },
    ),
    "litgpt, one key that states two dtypes": (
        "full.yaml",
        {
            "full.yaml": "checkpoint_dir: checkpoints/meta-llama/Llama-3.2-1B\nprecision: 32-true  # all of it\n"
            "devices: 1\ndata:\n  class_path: litgpt.data.JSON\noptimizer: {class_path: torch.optim.AdamW}\n"
            "train:\n  global_batch_size: 32\n  micro_batch_size: 4\n  max_seq_length: 1024\n"
        },
    ),
    "axolotl, evaluation in batches of the training's size": (
        "axolotl.yml",
        {
            "axolotl.yml": "base_model: NousResearch/Llama-3.2-1B\nsequence_len: 2048\nmicro_batch_size: 4\n"
            "gradient_accumulation_steps: 2\nval_set_size: 0.1\nevals_per_epoch: 2\noptimizer: adamw_torch\n"
            "sdp_attention: true\nbf16: false\ndatasets:\n  - {path: x, type: alpaca}\noutput_dir: out\n"
        },
    ),
    "nanogpt, as many positions as tokens": (
        "small.py",
        {
            "small.py": "out_dir = 'out'\nbatch_size = 16\nblock_size = 512  # context\n"
            "gradient_accumulation_steps = 4 * 8\nn_layer = 4\nn_head = 4\nn_embd = 256\n"
        },
    ),
    "llama-factory, Windows line ends and none at the last line": (
        "sft.yaml",
        {
            "sft.yaml": "model_name_or_path: Qwen/Qwen2.5-0.5B # small\r\nstage: sft\r\ndo_train: true\r\n"
            "finetuning_type: lora\r\nlora_target: all\r\ndataset: 'x'\r\ntemplate: qwen\r\ncutoff_len: 2048\r\n"
            "per_device_train_batch_size: 4\r\nbf16: true\r\noutput_dir: out"
        },
    ),
    "transformers, sizes that DeepSpeed's config repeats": (
        "train.sh",
        {
            "train.sh": "#!/bin/bash\nMODEL=gpt2-medium\nBATCH=${BATCH:-8}\n"
            "deepspeed --num_gpus 4 run_clm.py --deepspeed ds.json --model_name_or_path $MODEL \\\n"
            "    --per_device_train_batch_size $BATCH --gradient_accumulation_steps 2 --bf16 \\\n"
            '    --block_size=1024 --output_dir out "$@"\n',
            "ds.json": '{"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2,\n'
            ' "train_batch_size": 64, "zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}\n',
        },
    ),
    "transformers, a model that Liger does not know": (
        "args.json",
        {
            "args.json": '{\n  "model_name_or_path": "gpt2-medium",\n  "output_dir": "out",\n  "block_size": 1024,\n'
            '  "per_device_train_batch_size": 16,\n  "do_train": true,\n  "fp16": false\n}'
        },
    ),
    "transformers, YAML in braces": (
        "flow.yaml",
        {
            "flow.yaml": "{\n  model_name_or_path: gpt2-medium,\n  block_size: 1024,\n"
            "  per_device_train_batch_size: 16,  # many\n  output_dir: out,\n}\n"
        },
    ),
    "transformers, two keys of one anchor before a block of text": (
        "anchor.yaml",
        {
            "anchor.yaml": "batch: &batch 16\nmodel_name_or_path: gpt2-medium\nblock_size: 1024\n"
            "per_device_train_batch_size: *batch\nper_device_eval_batch_size: *batch\neval_strategy: steps\n"
            "output_dir: out\nnotes: |\n  more: text\n\n# the end"
        },
    ),
    "transformers, options in an array": (
        "array.sh",
        {
            "array.sh": "options=(\n  --model_name_or_path gpt2-medium --block_size 1024 --output_dir out\n"
            '  --per_device_train_batch_size 16 # many\n)\npython run_clm.py "${options[@]}" 2>&1 | tee log.txt\n'
        },
    ),
    "megatron, options in a variable": (
        "pretrain.sh",
        {
            "pretrain.sh": '#!/bin/bash\nARGS="\n    --num-layers 24 --hidden-size 2048 --num-attention-heads 16\n'
            "    --seq-length 2048 --max-position-embeddings 2048\n    --micro-batch-size 4\n"
            "    --global-batch-size 512\n    --bf16\n    --attention-backend unfused\n    --vocab-size 32000\n"
            '    --tokenizer-type NullTokenizer\n"\n'
            "torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py $ARGS --tensor-model-parallel-size 2\n"
        },
    ),
    "gpt-neox, JSON with comments": (
        "neox.yml",
        {
            "neox.yml": '# small\n{\n  "num_layers": 24,\n  "hidden_size": 2048,\n  "num_attention_heads": 16,\n'
            '  "seq_length": 2048,\n  "max_position_embeddings": 2048,\n  "pos_emb": "rotary",\n'
            '  "train_micro_batch_size_per_gpu": 16,\n  "gradient_accumulation_steps": 2,\n'
            '  "optimizer": {"type": "Adam", "params": {"lr": 0.0002}},\n  "zero_optimization": {"stage": 1},\n'
            '  "fp16": {"enabled": true},\n  "num_gpus": 8,\n  "vocab_file": "data/20B_tokenizer.json",\n'
            '  "tokenizer_type": "HFTokenizer",\n}\n'
        },
    ),
    "torchtitan, tables that are not there": (
        "run.toml",
        {
            "run.toml": '[model]\nname = "llama3"\nflavor = "8B"\n\n[training]\nlocal_batch_size = 2\nseq_len = 4096\n'
            "steps = 10\n\n[parallelism]\ndata_parallel_shard_degree = 8"
        },
    ),
}

# One of each family, of counters and of formats; the others of a source differ in a setting or two.
SPREAD = (
    *("titan-01/run.toml", "titan-23/llama3/config_registry.py"),
    *("ttune-10/full_single_device.yaml",),
)

# A walk over real configs, where there are some: each of another family or format.
REAL = (
    "axolotl/axolotl-ai-cloud__axolotl__examples__phi__phi2-ft.yml",
    "litgpt/Lightning-AI__litgpt__config_hub__finetune__mistral-7b-v0.2__qlora.yaml",
    "nanogpt/karpathy__llm.c__scripts__run_gpt2_124M.sh",
    "trl/huggingface__alignment-handbook__recipes__pref_align_scan__dpo__config_openhermes.yaml",
)


# -- reading files as their own parsers do


class _AnyTag(yaml.SafeLoader):
    """YAML with tags that mean nothing here."""


_AnyTag.add_multi_constructor("", lambda loader, suffix, node: None)


def readable(path: Path, text: str) -> str:
    """What a format's own parser has against a text; "" for nothing."""
    try:
        if path.suffix in (".yaml", ".yml"):
            list(yaml.load_all(text, Loader=_AnyTag))
        elif path.suffix == ".json":
            json.loads(text)
        elif path.suffix == ".py":
            ast.parse(text)
        elif path.suffix == ".toml" and sys.version_info >= (3, 11):
            import tomllib

            tomllib.loads(text)
        elif path.suffix == ".sh" and shutil.which("bash"):
            told = subprocess.run(["bash", "-n"], input=text.encode(), capture_output=True, check=False)
            return told.stderr.decode() if told.returncode else ""
    except (ValueError, SyntaxError, yaml.YAMLError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


# -- trying a fix


def read(path: str) -> str:
    with open(path, encoding="utf-8", newline="") as lines:
        return lines.read()


def write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8", newline="") as lines:
        lines.write(text)


def applied(edits: tuple[Edit, ...]) -> tuple[dict[str, str], list[str]]:
    """(the original texts of the files that the edits have changed, what is wrong with the new ones)."""
    originals: dict[str, str] = {}
    wrong: list[str] = []
    for path in dict.fromkeys(edit.span.path for edit in edits):
        mine = [edit for edit in edits if edit.span.path == path]
        originals[path] = read(path)
        after = apply_edits(originals[path], mine)
        if after == originals[path]:
            wrong.append(f"{path} stays as it is")
        if after.endswith("\n") != originals[path].endswith("\n"):
            wrong.append(f"the end of {path} is another")
        if "\r\n" in originals[path] and after.count("\r\n") != after.count("\n"):
            wrong.append(f"{path} has line ends of two kinds")
        told = readable(Path(path), after)
        if told:
            wrong.append(f"{path} cannot be read: {told}")
        write(path, after)
    return originals, wrong


def the_run(report: Report, run: RunReport) -> RunReport:
    [found] = [entry for entry in report.runs if (entry.path, entry.run) == (run.path, run.run)]
    return found


def samples_per_step(run: RunReport) -> int | None:
    """Samples of one device between two steps of the optimizer, where both factors are known."""
    total = 1
    for name in ("micro_batch_size", "gradient_accumulation_steps"):
        fact = run.facts.get(name)
        if fact is None or not isinstance(fact.value, int):
            return None
        total *= fact.value
    return total


def broken(run: RunReport, finding: Finding, fix: Fix, after: RunReport) -> list[str]:
    """What a fix has not kept, of a run and the same run after it."""
    if after.estimate is None:
        return ["there is no estimate any more"]
    wrong = []
    if fix.device_bytes_after is not None and after.estimate.device_bytes != fix.device_bytes_after:
        wrong.append(f"it promised {fix.device_bytes_after:,} bytes, it is {after.estimate.device_bytes:,}")
    graver = {other.code for other in after.findings if other.severity == ERROR} - {
        other.code for other in run.findings if other.severity == ERROR
    }
    wrong += [f"it brings an error: {other.message}" for other in after.findings if other.code in graver]
    conflicts = {other.message for other in after.findings if other.code == "MEM801"}
    wrong += [f"it contradicts: {message}" for message in conflicts - {other.message for other in run.findings}]
    again = [other for other in after.findings if any(entry.edits == fix.edits for entry in other.fixes)]
    wrong += [f"it is offered again: {other.message}" for other in again]
    if "accum" in fix.title and finding.code != "MEM104" and samples_per_step(after) != samples_per_step(run):
        wrong.append(f"{samples_per_step(run)} samples per step are {samples_per_step(after)}")
    return wrong


def violations(path: Path, options: dict[str, Any]) -> tuple[int, list[str]]:
    """(how many fixes were tried one by one, what any of them has not kept)."""
    options = {"isolated": True, **options}
    report = memlint.check(str(path), **options)
    tried: set[tuple[Edit, ...]] = set()
    wrong: list[str] = []
    for run in report.runs:
        if run.estimate is None:
            continue
        offered = [(finding, fix) for finding in run.findings for fix in finding.fixes if fix.edits]
        for finding, fix in offered:
            if fix.edits in tried:
                continue
            tried.add(fix.edits)
            originals, found = applied(fix.edits)
            try:
                found += broken(run, finding, fix, the_run(memlint.check(str(path), **options), run))
            finally:
                for name, text in originals.items():
                    write(name, text)
            wrong += [f"{finding.code}, {fix.title}: {message}" for message in found]
        wrong += _together(path, options, run, [fix for _, fix in offered if fix.safety == SAFE])
    return len(tried), wrong


def _together(path: Path, options: dict[str, Any], run: RunReport, safe: list[Fix]) -> list[str]:
    """All safe fixes at once: none of them is offered again."""
    edits = tuple(dict.fromkeys(edit for fix in safe for edit in fix.edits))
    if not edits:
        return []
    originals, wrong = applied(edits)
    try:
        after = the_run(memlint.check(str(path), **options), run)
    finally:
        for name, text in originals.items():
            write(name, text)
    titles = {fix.title for finding in after.findings for fix in finding.fixes} & {fix.title for fix in safe}
    return [*wrong, *(f"safe, and offered again: {title}" for title in titles)]


def hold(path: Path, *contexts: dict[str, Any]) -> None:
    tried = 0
    for context in contexts:
        number, wrong = violations(path, context)
        assert not wrong, "\n".join([str(context), *wrong])
        tried += number
    assert tried > 0, "no fix was offered"


def budget(path: Path, share: float, gpu: str = "") -> dict[str, Any]:
    """A budget that is a share of the largest peak of a file's runs."""
    on: dict[str, Any] = {"gpu": gpu} if gpu else {}
    report = memlint.check(str(path), isolated=True, select=["MEM003"], **on)
    peak = max(run.estimate.device_bytes for run in report.runs if run.estimate is not None)
    return {**on, "budget": f"{int(share * peak) >> 20}MiB"}


# -- the law


@pytest.mark.parametrize("name", WRITTEN)
def test_fixes_of_families_that_no_example_is_of(name: str, tmp_path: Path) -> None:
    main, files = WRITTEN[name]
    (tmp_path / ".git").mkdir()
    for file, text in files.items():
        write(str(tmp_path / file), text)
    path = tmp_path / main
    gpu = "t4" if main.endswith((".json", ".py")) else ""  # which has no bfloat16
    hold(path, budget(path, 0.5, gpu))


@pytest.mark.parametrize("config", SPREAD)
def test_fixes_of_the_accuracy_cases(config: str, tmp_path: Path) -> None:
    case = config.partition("/")[0]
    with (CASES.parent / "cases.csv").open(newline="", encoding="utf-8") as lines:
        [gpu] = [row["gpu"] for row in csv.DictReader(lines) if row["id"] == case]
    shutil.copytree(CASES / case, tmp_path / "case")
    path = tmp_path / "case" / config.partition("/")[2]
    hold(path, budget(path, 0.6, gpu))


@pytest.mark.parametrize("name", REAL)
def test_fixes_of_real_configs(name: str, tmp_path: Path) -> None:
    folder = corpus_folder()
    path = tmp_path / Path(name).name
    shutil.copyfile(folder / name, path)
    hold(path, {}, budget(path, 0.8))
