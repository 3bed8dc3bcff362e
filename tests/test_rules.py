"""Every rule against its own examples: the invalid ones are found at the right place, the valid ones are left alone."""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path

import pytest

import memlint
from memlint import rules_registry
from memlint.check import check_paths
from memlint.plugin import Example, Finding, Rule
from memlint.settings import Settings
from memlint.units import parse_size
from tests.text import selected

pytestmark = pytest.mark.usefixtures("answers_kept")

EXAMPLES = Path(__file__).parent.parent / "examples"
HEADINGS = ("What it does", "Why it matters", "Example", "Use instead", "Fix safety", "References")
# Made by check itself, not by a rule's `check`: their tests are tests/test_check.py and tests/test_suppress.py.
ELSEWHERE = ("MEM001", "MEM002", "MEM005", "MEM011")
# Needs files beside the config: tests/profiles/test_recorded_runs.py.
ELSEWHERE += ("MEM010",)


def _rule(info: rules_registry.RuleInfo) -> type[Rule]:
    module = import_module(info.module)
    found = [
        item
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, Rule) and item.__module__ == info.module
    ]
    assert len(found) == 1, f"{info.module} must hold exactly one rule"
    return found[0]


RULES = [(info, _rule(info)) for info in rules_registry.built_in()]
CASES = [
    pytest.param(
        rule, example, fires, id=f"{rule.code} {'fires on' if fires else 'leaves alone'} {example.path} {number}"
    )
    for _, rule in RULES
    for fires, examples in ((True, rule.invalid), (False, rule.valid))
    for number, example in enumerate(examples)
]


def check_example(rule: type[Rule], example: Example, folder: Path) -> tuple[list[Finding], Path]:
    """Write the example into a folder of its own and check it with this rule alone."""
    if example.text:
        path = folder / example.path
        path.write_text(example.text, encoding="utf-8")
    else:
        source = EXAMPLES / example.path
        shutil.copytree(source.parent, folder / source.parent.name)
        path = folder / example.path
    text = path.read_text(encoding="utf-8")
    for old, new in example.replace:
        assert old in text, f"{example.path} does not hold {old!r}"
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    for name, old, new in example.files:
        beside = (path.parent / name).read_text(encoding="utf-8")
        assert old in beside, f"{name} does not hold {old!r}"
        (path.parent / name).write_text(beside.replace(old, new), encoding="utf-8")
    options = {
        "select": [rule.code],
        "preview": True,
        "isolated": True,
        "override": list(example.overrides),
    }
    if example.budget:
        options["budget"] = example.budget
    if example.gpu:
        options["gpu"] = example.gpu
    if example.host_budget:
        options["host_budget"] = example.host_budget
    report = memlint.check(str(path), **options)
    assert not report.crashed, [finding.message for finding in report.findings]
    return [finding for finding in report.findings if finding.code == rule.code], path


@pytest.mark.parametrize(("rule", "example", "fires"), CASES)
def test_example(rule: type[Rule], example: Example, fires: bool, tmp_path: Path) -> None:
    findings, _ = check_example(rule, example, tmp_path)
    if not fires:
        assert not findings, findings[0].message
        return
    assert findings, "nothing was found"
    if example.expect:
        assert selected(findings[0].span) == example.expect
    assert findings[0].severity == rule.severity or rule.code == "MEM201"


@pytest.mark.parametrize(("info", "rule"), RULES, ids=[info.code for info, _ in RULES])
def test_a_rule_is_what_its_file_says(info: rules_registry.RuleInfo, rule: type[Rule]) -> None:
    assert (rule.code, rule.name) == (info.code, info.name)
    assert rule.severity in ("error", "warning", "info")


@pytest.mark.parametrize(("info", "rule"), RULES, ids=[info.code for info, _ in RULES])
def test_a_rule_has_a_manual_page_and_examples(info: rules_registry.RuleInfo, rule: type[Rule]) -> None:
    page = rule.__doc__ or ""
    assert page.startswith(f"{rule.name}: ")
    assert [line.strip()[3:] for line in page.splitlines() if line.strip().startswith("## ")] == list(HEADINGS)
    if rule.code not in ELSEWHERE:
        assert rule.invalid, "a rule needs an example on which it fires"
        assert rule.valid, "a rule needs an example which it leaves alone"


MEGATRON = """\
torchrun --nproc_per_node 8 pretrain_gpt.py \\
    --num-layers 24 --hidden-size 2048 --num-attention-heads 16 \\
    --seq-length 2048 --max-position-embeddings 2048 \\
    --micro-batch-size 1 --global-batch-size 256 --bf16 \\
    --tokenizer-type GPT2BPETokenizer --vocab-size 50257 --lr 1e-4 --train-iters 100
"""


def findings_on(code: str, path: str, text: str, folder: Path, **options: str) -> list[Finding]:
    """What one rule finds on a text."""
    (folder / path).write_text(text, encoding="utf-8")
    report = memlint.check(str(folder / path), select=[code], preview=True, isolated=True, **options)
    assert not report.crashed
    return [finding for run in report.runs for finding in run.findings]


def test_replicated_states_of_megatron_are_sharded_by_its_own_option(tmp_path: Path) -> None:
    [finding] = findings_on("MEM402", "train.sh", MEGATRON, tmp_path)
    [fix] = finding.fixes
    assert fix.title == "add --use-distributed-optimizer"
    assert fix.saved_bytes is not None
    # fp32 master weights and both moments, of which seven of eight parts go elsewhere
    [run] = memlint.check(str(tmp_path / "train.sh"), isolated=True).runs
    assert run.estimate is not None
    assert fix.saved_bytes == pytest.approx(12 * run.estimate.parameters * 7 / 8, rel=0.15)


def test_megatron_has_no_buckets_of_ddp_and_no_other_optimizers(tmp_path: Path) -> None:
    assert findings_on("MEM401", "train.sh", MEGATRON, tmp_path) == []
    [finding] = findings_on("MEM304", "train.sh", MEGATRON, tmp_path, budget="1GB")
    assert finding.fixes == ()


@pytest.mark.parametrize(
    ("gpu", "dtype", "said"),
    [
        ("t4", "bf16", [("error", "bf16")]),
        ("t4", "fp16", []),
        ("a100-80gb", "fp16", [("warning", "fp16")]),
        ("a100-80gb", "bf16", []),
    ],
)
def test_dtypes_that_a_card_or_a_checkpoint_does_not_stand(
    gpu: str, dtype: str, said: list[tuple[str, str]], tmp_path: Path
) -> None:
    text = (EXAMPLES / "language_models/full_llamafactory.yaml").read_text(encoding="utf-8")
    findings = findings_on("MEM310", "sft.yaml", text.replace("bf16: true", f"{dtype}: true"), tmp_path, gpu=gpu)
    assert [(finding.severity, selected(finding.span)) for finding in findings] == said


def test_a_plan_takes_log_probabilities_of_the_reference_before_training(tmp_path: Path) -> None:
    text = (EXAMPLES / "language_models/dpo_trl.yaml").read_text(encoding="utf-8")
    (tmp_path / "requirements.txt").write_text("trl==1.16.0\n")  # older ones take more, with any plan
    [finding] = findings_on("MEM101", "dpo.yaml", text, tmp_path, budget="16GB")
    [fix] = finding.fixes
    assert fix.title.startswith("add precompute_ref_log_probs: true")
    assert fix.fits


def test_a_larger_batch_takes_its_accumulation_along_and_stops_where_that_ends(tmp_path: Path) -> None:
    text = (EXAMPLES / "language_models/dpo_trl.yaml").read_text(encoding="utf-8")
    [finding] = findings_on("MEM104", "dpo.yaml", text, tmp_path, budget="180GB")
    [fix] = finding.fixes
    assert fix.title == "per_device_train_batch_size 2 -> 16, gradient_accumulation_steps 8 -> 1"


def test_an_offloaded_optimizer_is_counted_once_per_rank_of_a_machine(tmp_path: Path) -> None:
    example = next(example for rule in RULES if rule[0].code == "MEM407" for example in rule[1].invalid)
    rule = next(rule for info, rule in RULES if info.code == "MEM407")
    [finding], path = check_example(rule, example, tmp_path)
    [run] = memlint.check(str(path), isolated=True).runs
    assert run.estimate is not None
    # DeepSpeed: fp32 weights, both moments, and gradients in 16 or 32 bits, over four ranks of one machine
    assert 12 <= 4 * run.estimate.host_bytes / run.estimate.parameters <= 16
    assert finding.size_bytes == 4 * run.estimate.host_bytes - parse_size(example.host_budget)


def test_next_to_no_gradients_on_the_card_are_no_finding_of_accumulation(tmp_path: Path) -> None:
    offloads = (
        '"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}, "overlap_comm": true'
    )
    (tmp_path / "z3.json").write_text(f'{{"zero_optimization": {{{offloads}}}, "bf16": {{"enabled": "auto"}}}}')
    (tmp_path / "run.yaml").write_text(
        "model_name_or_path: Qwen/Qwen2.5-7B\nstage: dpo\npref_loss: simpo\ndo_train: true\ndataset: x\n"
        "finetuning_type: full\ntemplate: qwen\ncutoff_len: 16384\nper_device_train_batch_size: 1\n"
        "gradient_accumulation_steps: 8\nbf16: true\ndeepspeed: z3.json\noutput_dir: out\n"
    )
    (run,) = check_paths([str(tmp_path / "run.yaml")], Settings(gpu="rtx4090x8")).runs
    assert run.verdict in ("OOM", "TIGHT")
    assert "MEM307" not in {finding.code for finding in run.findings}
