"""Every family that answers has fixes that are applied and a plan that is: the laws of test_applied and of test_search,
each with a small config of the families that those have none of."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import memlint
from memlint import files, fixing
from memlint.check import check_paths
from memlint.dialects import registry
from memlint.dialects import schema as schemas
from memlint.fixes import search
from memlint.plugin import Run
from memlint.settings import Resolver
from memlint.tape.estimate import FITS
from tests.fixes import test_applied, test_search
from tests.fixes.families import HELD, SHIPPED, SMALL, UNWRITTEN
from tests.fixes.test_applied import _COMMENT, PLAIN, fixed, shares
from tests.fixes.test_promises import WRITTEN, read, readable, write
from tests.test_proven_families import FOLLOWED
from tests.test_rules import EXAMPLES

pytestmark = pytest.mark.usefixtures("answers_kept")

# Rules whose fixes lower a peak at the cost of speed, numerics or what is optimised.
NAMED = ("MEM101", "MEM102", "MEM201", "MEM202", "MEM206", "MEM301", "MEM304", "MEM306")


def placed(family: str, folder: Path) -> Path:
    """The family's config in a repository of its own."""
    (folder / ".git").mkdir()
    if family in SHIPPED:
        shutil.copy(EXAMPLES / SHIPPED[family], folder)
        return folder / Path(SHIPPED[family]).name
    for file, text in SMALL[family].files.items():
        write(str(folder / file), text)
    return folder / SMALL[family].start


def share(path: Path, family: str) -> str:
    """The budget of a family's config, which has to be of it."""
    report = memlint.check(str(path), isolated=True, select=["MEM003"])
    assert {run.family for run in report.runs} == {family}
    peak = max(run.estimate.device_bytes for run in report.runs if run.estimate is not None)
    return f"{int(SMALL[family].fits * peak if family in SMALL else 0.7 * peak) >> 20}MiB"


def parts(folder: Path) -> dict[str, list[str]]:
    """The comments of each file, each of which its own format has to be able to read."""
    found = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    assert not [told for path in found if (told := readable(path, read(str(path))))]
    return {str(path): _COMMENT.findall(read(str(path))) for path in found}


def test_no_family_that_answers_is_absent() -> None:
    answering = {name for name in schemas.families() if "models" in schemas.header(name)}
    assert answering - FOLLOWED == {*SMALL, *SHIPPED, *HELD, *UNWRITTEN}
    assert {*HELD.values()} <= {*WRITTEN, *PLAIN}


@pytest.mark.parametrize("family", UNWRITTEN)
def test_no_fix_is_written_into_a_program(family: str) -> None:
    path = EXAMPLES.parent / "tests/hostile/samples" / UNWRITTEN[family] / "run.sh"
    report = memlint.check(str(path), budget="100MiB", isolated=True)
    assert {run.family for run in report.runs} == {family}
    assert all(run.verdict == "OOM" for run in report.runs)
    assert [fix.title for finding in report.findings for fix in finding.fixes if fix.edits] == []


@pytest.mark.parametrize("family", HELD)
def test_what_holds_a_family_is_of_it(family: str, tmp_path: Path) -> None:
    name = HELD[family]
    path = test_applied.placed(name, tmp_path) if name in WRITTEN else EXAMPLES / name
    assert {run.family for run in memlint.check(str(path), isolated=True, select=["MEM003"]).runs} == {family}


def spelled(path: Path, fact: str, value: object) -> list[str]:
    """The texts of the edits that give a fact a value, without line breaks."""
    found: list[str] = []

    def look(run: Run) -> None:
        found.extend(" ".join(edit.text.replace("\\\n", " ").split()) for edit in run.edits({fact: value}))  # type: ignore[misc]

    check_paths([str(path)], Resolver({"select": ["MEM003"]}, "", True), details=False, look=look)
    return found


# Options that take no value are written without one: argparse's ``store_true`` refuses ``--option True``.
SPELLED = [
    ("diffusers", "checkpointing", "full", ["--gradient_checkpointing"]),
    ("diffusers", "optimizer", "adamw_8bit", ["--use_8bit_adam"]),
    ("diffusers", "tuning", "lora", []),  # another script does that
    ("diffusers", "optimizer", "adafactor", []),
    ("finetrainers", "optimizer", "adamw_8bit", ["--use_8bit"]),
    ("kohya", "checkpointing", "full", ["--gradient_checkpointing"]),
    ("kohya", "attention", "sdpa", ["--sdpa"]),
    ("kohya", "optimizer", "adamw_8bit", ["--optimizer_type AdamW8bit"]),
    ("megatron-swift", "checkpointing", "full", [
        "--recompute_granularity full", "--recompute_method uniform", "--recompute_num_layers 1",
    ]),
    ("ms-swift", "quantization.bits", 4, ["--quant_method bnb", "--quant_bits 4"]),
    ("ms-swift", "parallelism.zero_stage", 3, ["--deepspeed zero3"]),
    ("openmmlab", "gradient_accumulation_steps", 4, [
        "optimizer_config = {'type': 'GradientCumulativeOptimizerHook', 'cumulative_iters': 4}",
    ]),
    ("openmmlab", "checkpointing", "full", ["with_cp=True"] ),
    ("openrlhf", "checkpointing", "full", ["--model.gradient_checkpointing_enable"]),
    ("openrlhf", "tuning", "lora", ["--ds.lora.rank 16"]),
    ("timm", "checkpointing", "full", ["--grad-checkpointing"]),
    ("timm", "compute_dtype", "bfloat16", ["--amp", "--amp-dtype bfloat16"]),
    ("verl", "tuning", "lora", ["model.lora_rank=16", "model.lora_alpha=32"]),
]  # fmt: skip


@pytest.mark.parametrize(("family", "fact", "value", "texts"), SPELLED)
def test_a_change_is_written_as_the_library_reads_it(
    family: str, fact: str, value: object, texts: list[str], tmp_path: Path
) -> None:
    found = spelled(placed(family, tmp_path), fact, value)
    assert [text.strip(", ") for text in found] == texts


FLAT = """deepspeed --num_gpus 2 --module openrlhf.cli.train_sft --pretrain HuggingFaceTB/SmolLM2-135M --dataset ours \\
  --max_len 512 --train_batch_size 16 --micro_train_batch_size 8 --zero_stage 2 --bf16
"""


@pytest.mark.parametrize(
    ("fact", "value", "texts"),
    [
        ("checkpointing", "full", ["--gradient_checkpointing"]),
        ("tuning", "lora", ["--lora_rank 16"]),
        ("attention", "flash", ["--flash_attn"]),
        ("attention", "sdpa", []),
    ],
)
def test_flat_options_get_flat_ones(fact: str, value: object, texts: list[str], tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(FLAT)
    assert spelled(path, fact, value) == texts


ADAPTED = ["autotrain", "llamafactory-v1", "ms-swift", "open-instruct", "openrlhf", "oumi", "verl"]


@pytest.mark.parametrize("family", ADAPTED)
def test_adapters_are_written_as_they_are_read(family: str, tmp_path: Path) -> None:
    path = placed(family, tmp_path)
    read_so: list[tuple[object, object]] = []

    def look(run: Run) -> None:
        for lever in search._adapters(run):
            spec = run.read_again(run.edits(lever.changes))
            assert spec is not None
            read_so.append((spec.get("tuning"), spec.get("quantization.bits")))

    check_paths([str(path)], Resolver({"select": ["MEM003"]}, "", True), details=False, look=look)
    # autotrain's adapters stand beside 4 bits where nothing is said; verl quantises nothing
    first = ("lora", 4) if family == "autotrain" else ("lora", None)
    assert read_so == ([first] if family == "verl" else [first, ("lora", 4)])


@pytest.mark.parametrize("family", ["diffusers", "finetrainers", "kohya", "megatron", "openrlhf", "timm"])
def test_switches_of_argparse_take_no_value(family: str) -> None:
    dialect = registry.dialect(family)
    assert [
        key.dotted
        for key in dialect.keys
        if schemas.types(key.schema, dialect.schema) == {"boolean"} and not key.annotation.get("flag")
    ] == []


def test_a_preset_stands_in_the_place_of_another_and_of_no_file(tmp_path: Path) -> None:
    path = placed("ms-swift", tmp_path)
    text = path.read_text()
    path.write_text(text.replace("--tuner_type", "--deepspeed zero2 --tuner_type"))
    assert spelled(path, "parallelism.zero_stage", 3) == ["zero3"]
    path.write_text(text.replace("--tuner_type", "--deepspeed ds.json --tuner_type"))
    write(str(tmp_path / "ds.json"), '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}\n')
    assert spelled(path, "parallelism.zero_stage", 3) == ["3"]


def test_accumulation_that_mmcv_s_hook_does_is_read(tmp_path: Path) -> None:
    path = placed("openmmlab", tmp_path)
    hook = "optimizer_config = dict(type='GradientCumulativeOptimizerHook', cumulative_iters=4)\n"
    path.write_text(path.read_text() + hook)
    [run] = memlint.check(str(path), isolated=True, select=["MEM003"]).runs
    assert run.facts["gradient_accumulation_steps"].value == 4
    assert spelled(path, "gradient_accumulation_steps", 8) == ["8"]


def test_fp16_of_mmcv_makes_a_hook_of_its_own(tmp_path: Path) -> None:
    path = placed("openmmlab", tmp_path)
    path.write_text(path.read_text() + "fp16 = dict(loss_scale=512.0)\n")
    assert spelled(path, "gradient_accumulation_steps", 8) == []


@pytest.mark.parametrize("family", [*SMALL, *SHIPPED])
def test_fixes_keep_their_word(family: str, tmp_path: Path) -> None:
    path = placed(family, tmp_path)
    budget, before = share(path, family), parts(tmp_path)
    done = fixed(path, budget, True, NAMED)
    assert done.applied, "no fix was applied"
    for name, (_, text) in done.texts.items():
        write(name, text)
    assert parts(tmp_path) == before, "a comment was lost"
    [now] = memlint.check(str(path), isolated=True, budget=budget).runs
    promised = next(one.fix.device_bytes_after for one in reversed(done.applied) if one.fix.device_bytes_after)
    assert now.estimate is not None
    assert now.estimate.device_bytes == promised
    assert not fixed(path, budget, True, NAMED).texts, "a second run changes something"


@pytest.mark.parametrize("family", [*SMALL, *SHIPPED])
def test_a_plan_is_what_a_check_of_it_says(family: str, tmp_path: Path) -> None:
    path = placed(family, tmp_path)
    budget, before = share(path, family), parts(tmp_path)
    allowed = search.Allowed(batch=family in SMALL and SMALL[family].batch)
    run, plan = test_search.planned(path, budget, allowed)
    assert plan.fits
    assert plan.steps
    resolver = Resolver({"budget": budget, "select": ["MEM003"], "work-limit": 200}, "", True)
    texts = fixing.planned(str(path), resolver, run, plan)
    assert not isinstance(texts, str), texts
    for name, (_, text) in texts.items():
        write(name, text)
    assert parts(tmp_path) == before, "a comment was lost"
    [now] = memlint.check(str(path), isolated=True, budget=budget, select=["MEM003"]).runs
    assert now.estimate is not None
    assert (now.verdict, now.estimate.device_interval) == (FITS, plan.estimate.device_interval)
    assert not test_search.planned(path, budget, allowed)[1].steps, "a second plan changes something"


def test_fixes_in_two_files_are_promised_with_each_other(tmp_path: Path) -> None:
    path = placed("openmmlab", tmp_path)
    text = path.read_text()
    data = text.index("data = dict")
    write(str(tmp_path / "model.py"), text[:data])
    write(str(tmp_path / "data.py"), text[data:])
    write(str(path), '_base_ = ["./model.py", "./data.py"]\n')
    done = fixed(path, shares(path, 0.7), True, NAMED)
    assert {Path(name).name for name in done.texts} == {"model.py", "data.py"}
    assert not done.refused


def test_what_a_config_has_of_a_section_is_added_to_it_and_not_to_what_it_is_based_on(tmp_path: Path) -> None:
    path = placed("openmmlab", tmp_path)
    write(str(tmp_path / "base.py"), path.read_text())
    write(str(path), '_base_ = "./base.py"\nmodel = dict(backbone=dict(depth=34))\n')
    found: list[str] = []

    def look(run: Run) -> None:
        found.extend(Path(edit.span.path).name for edit in run.edits({"checkpointing": "full"}))

    check_paths([str(path)], Resolver({"select": ["MEM003"]}, "", True), details=False, look=look)
    assert found == ["seg.py"]


def test_a_fix_that_is_tried_stands_on_those_that_are_kept(tmp_path: Path) -> None:
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    for path in (one, other):
        path.write_text("old")
    with files.edited({str(one): "kept", str(other): "kept"}):
        with files.edited({str(other): "tried"}):
            assert (files.read(str(one), 10), files.read(str(other), 10)) == (b"kept", b"tried")
        assert files.read(str(other), 10) == b"kept"
