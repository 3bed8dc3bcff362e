"""The command that starts a config, found where people write it down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import memlint
from memlint.check import check_text
from memlint.dialects import launches
from memlint.reports.report import RunReport
from memlint.reports.verdict import why_unknown

CONFIG = """\
model_name_or_path: Qwen/Qwen2.5-0.5B
dataset_name: trl-lib/Capybara
max_length: 1024
per_device_train_batch_size: 2
gradient_checkpointing: true
bf16: true
learning_rate: 2.0e-5
output_dir: out
"""
ZERO3 = """\
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config:
  zero_stage: 3
num_processes: 8
"""
LAUNCH = "accelerate launch --config_file accelerate/zero3.yaml scripts/sft.py --config recipes/a/sft.yaml"


@pytest.fixture(autouse=True)
def _tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    put(tmp_path, {"recipes/a/sft.yaml": CONFIG, "accelerate/zero3.yaml": ZERO3})
    monkeypatch.chdir(tmp_path)


def put(root: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def check(path: str = "recipes/a/sft.yaml", **options: object) -> tuple[RunReport, ...]:
    return memlint.check(path, isolated=True, **options).runs


def peak(run: RunReport) -> int:
    assert run.estimate is not None
    return run.estimate.device_bytes


@pytest.mark.parametrize(
    ("where", "text", "line"),
    [
        pytest.param("README.md", f"# Run\n\n```bash\n{LAUNCH}\n```\n", 4, id="in the README of the repository"),
        pytest.param("scripts/a/run.sh", LAUNCH + "\n", 1, id="in a script in a folder of the same name"),
        pytest.param("recipes/a/README.md", f"```sh\n{LAUNCH}\n```\n", 2, id="in the README beside the config"),
        pytest.param("recipes/run.sh", f"#!/bin/sh\nset -e\n{LAUNCH}\n", 3, id="in a script above it"),
        pytest.param("scripts/run.slurm", f"#!/bin/bash\nsrun {LAUNCH}\n", 2, id="in the folder of scripts"),
        pytest.param("Makefile", f"train:\n\t{LAUNCH}\n", 2, id="in a recipe of a makefile"),
        pytest.param("Dockerfile", f"FROM x\nCMD {LAUNCH}\n", 2, id="in an image"),
        pytest.param(".github/workflows/a.yml", f"steps:\n- run: {LAUNCH}\n", 2, id="in a workflow"),
        pytest.param(
            "a.ipynb",
            json.dumps({"cells": [{"cell_type": "code", "source": [f"!{LAUNCH}"]}]}, indent=1),
            6,
            id="in a notebook",
        ),
        pytest.param("scripts/sft.py", f'"""Run it:\n\n{LAUNCH}\n"""\n', 3, id="in the docstring of a program"),
        pytest.param("recipes/a/sft.yaml", CONFIG + f"# Run it:\n#   {LAUNCH}\n", 10, id="in a comment of the config"),
    ],
)
def test_a_config_is_estimated_as_the_command_that_names_it_starts_it(
    tmp_path: Path, where: str, text: str, line: int
) -> None:
    (bare,) = check()
    assert bare.launch is None
    put(tmp_path, {where: text})
    (run,) = check()
    assert run.path == "recipes/a/sft.yaml"
    assert run.launch is not None
    assert (run.launch.path, run.launch.line) == (where, line)
    put(tmp_path, {"as_a_script.sh": LAUNCH + "\n"})
    (script,) = check("as_a_script.sh")
    assert peak(run) == peak(script) < peak(bare)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(LAUNCH.replace("recipes/a", "recipes/b"), id="of another file of that name"),
        pytest.param(f"echo {LAUNCH}", id="that is printed"),
        pytest.param("cat recipes/a/sft.yaml", id="that trains nothing"),
        pytest.param(LAUNCH.replace("scripts/sft.py", "eval.py"), id="that evaluates"),
    ],
)
def test_a_command_is_no_launch(tmp_path: Path, text: str) -> None:
    put(tmp_path, {"README.md": f"```bash\n{text}\n```\n", "recipes/b/sft.yaml": CONFIG})
    (run,) = check()
    assert run.launch is None


def test_commands_that_differ_are_runs_each(tmp_path: Path) -> None:
    more = f"{LAUNCH} --per_device_train_batch_size=8"
    put(tmp_path, {"README.md": f"```bash\n{LAUNCH}\n{LAUNCH} --seed=2\n{more}\n```\n"})
    first, second = check()
    assert (first.run, second.run) == ("train", "train:2")
    assert peak(first) < peak(second)


def test_a_config_reads_as_its_user_names_it_from_wherever_he_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, {"README.md": f"```bash\n{LAUNCH}\n```\n"})
    monkeypatch.chdir(tmp_path / "recipes/a")
    (run,) = check("sft.yaml", select=["MEM2", "MEM3"])
    assert run.launch is not None
    assert run.launch.path == "../../README.md"
    assert {finding.span.path for finding in run.findings} <= {"sft.yaml", "../../README.md"}


def test_a_fix_of_a_launched_config_keeps_its_promise(tmp_path: Path) -> None:
    text = CONFIG.replace("size: 2", "size: 64").replace("checkpointing: true", "checkpointing: false")
    put(tmp_path, {"README.md": f"```bash\n{LAUNCH}\n```\n", "recipes/a/sft.yaml": text})
    (run,) = check()
    tried = [fix for finding in run.findings for fix in finding.fixes]
    fixes = [fix for fix in tried if fix.edits and fix.device_bytes_after is not None]
    assert fixes
    for fix in fixes:
        lines = text.splitlines(keepends=True)
        for edit in sorted(fix.edits, key=lambda edit: (-edit.span.line, -edit.span.column)):
            assert edit.span.path == "recipes/a/sft.yaml"
            at = edit.span
            assert at.line == at.end_line
            line = lines[at.line - 1]
            lines[at.line - 1] = line[: at.column - 1] + edit.text + line[at.end_column - 1 :]
        put(tmp_path, {"recipes/a/sft.yaml": "".join(lines)})
        (after,) = check()
        assert peak(after) == fix.device_bytes_after


def test_the_report_names_the_command(tmp_path: Path) -> None:
    from memlint.reports import full
    from memlint.reports import json as as_json

    put(tmp_path, {"README.md": f"```bash\n{LAUNCH}\n```\n"})
    report = memlint.check("recipes/a/sft.yaml", isolated=True)
    assert "as README.md:2 starts it" in full.render(report)
    (run,) = json.loads(as_json.render(report))["files"]
    assert run["launch"] == {"path": "README.md", "line": 2}


def test_a_walk_reports_a_documents_command_with_the_config_that_it_names(tmp_path: Path) -> None:
    own = "python run_clm.py --do_train --model_name_or_path gpt2 --per_device_train_batch_size 1 --block_size 64"
    unknown = "python train.py --model_name_or_path <model> --per_device_train_batch_size 1 --learning_rate 0.1"
    put(tmp_path, {"README.md": f"```bash\n{LAUNCH}\n{own} --output_dir o\n{unknown} --output_dir o\n```\n"})
    runs = [(run.path, run.launch is not None) for run in check(".")]
    assert runs == [("recipes/a/sft.yaml", True), ("README.md", False)]


def test_each_run_of_a_walk_says_why_it_is_not_known_though_the_finding_is_reported_once(tmp_path: Path) -> None:
    put(tmp_path, {"recipes/a/sft.yaml": CONFIG.replace("Qwen/Qwen2.5-0.5B", "a/thing"), "more/run.sh": LAUNCH + "\n"})
    runs = memlint.check(".", isolated=True).runs
    assert {Path(run.path).name for run in runs} == {"sft.yaml", "run.sh"}
    assert all("model_name_or_path a/thing: not in the catalogue" in why_unknown(run) for run in runs)


def test_no_more_than_some_runs_of_a_config_are_looked_at(tmp_path: Path) -> None:
    from memlint.dialects import launches

    lines = "".join(f"{LAUNCH} --per_device_train_batch_size={size}\n" for size in range(1, 40))
    put(tmp_path, {"run.sh": lines})
    assert len(check()) == launches.MAX_RUNS


def test_what_an_editor_holds_is_what_is_launched(tmp_path: Path) -> None:
    put(tmp_path, {"README.md": f"```bash\n{LAUNCH}\n```\n"})
    (before,) = check()
    (run,) = check_text("recipes/a/sft.yaml", CONFIG.replace("size: 2", "size: 16")).runs
    assert run.launch is not None
    assert peak(run) > peak(before)


def test_a_command_that_says_nothing_else_leaves_the_run_as_it_is(tmp_path: Path) -> None:
    put(tmp_path, {"README.md": "```bash\ntrl sft recipes/a/sft.yaml\n```\n"})
    (run,) = check()
    assert run.launch is None


SFT = """\
from transformers import AutoModelForCausalLM
from trl import ModelConfig, SFTConfig, SFTTrainer, TrlParser
class OursTrainer(SFTTrainer):
    def compute_loss(self, model, inputs):
        return model(**inputs).logits.mean()
args, model_args = TrlParser((SFTConfig, ModelConfig)).parse_args_and_config()
{}Trainer(model=AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path), args=args)
"""


def test_a_config_that_no_command_names_is_run_as_those_beside_it(tmp_path: Path) -> None:
    from memlint.reports import full
    from memlint.reports import json as as_json

    program = SFT.format("SFT")
    put(tmp_path, {"README.md": f"```bash\n{LAUNCH}\n```\n", "scripts/sft.py": program, "recipes/a/other.yaml": CONFIG})
    (named,), report = check(), memlint.check("recipes/a/other.yaml", isolated=True)
    (run,) = report.runs
    assert (peak(run), run.launched_with) == (peak(named), "recipes/a/sft.yaml")
    assert "as README.md:2 starts recipes/a/sft.yaml beside it" in full.render(report)
    (told,) = json.loads(as_json.render(report))["files"]
    assert told["launch"] == {"path": "README.md", "line": 2, "with": "recipes/a/sft.yaml"}


@pytest.mark.parametrize(
    "commands",
    [
        pytest.param(f"{LAUNCH}\npython scripts/sft.py --config recipes/a/third.yaml --bf16 false\n", id="in two ways"),
        pytest.param(LAUNCH.replace("scripts/sft.py", "scripts/gone.py") + "\n", id="by a program that is not there"),
    ],
)
def test_a_config_beside_configs_that_are_run_otherwise_is_a_run_by_itself(tmp_path: Path, commands: str) -> None:
    put(tmp_path, {"run.sh": commands, "scripts/sft.py": SFT.format("SFT"), "recipes/a/other.yaml": CONFIG})
    put(tmp_path, {"recipes/a/third.yaml": CONFIG})
    (run,) = check("recipes/a/other.yaml")
    assert (run.launch, run.launched_with) == (None, "")


JOB = """\
#!/bin/bash
#SBATCH --gres=gpu:8
while [[ $# -gt 0 ]]; do
  case $1 in
    --model) MODEL="$2"; shift 2 ;;
    --task) TASK="$2"; shift 2 ;;
    --sharding) SHARDING="$2"; shift 2 ;;
  esac
done
CMD="scripts/$TASK.py --config recipes/$MODEL/$TASK.yaml"
LAUNCHER="accelerate launch --config_file accelerate/$SHARDING.yaml --num_processes $((SLURM_NNODES * 8))"
srun bash -c "$LAUNCHER $CMD"
"""


def test_a_config_whose_path_a_script_makes_of_its_arguments_is_run_as_a_document_calls_it(tmp_path: Path) -> None:
    put(tmp_path, {"README.md": f"```bash\n{LAUNCH}\n```\n"})
    (named,) = check()
    call = "sbatch --nodes=1 slurm/train.slurm --model a --task sft --sharding zero3"
    put(tmp_path, {"README.md": "# Ours\n", "slurm/train.slurm": JOB})
    put(tmp_path, {"recipes/README.md": f"```bash\n{call}\n```\n", "recipes/b/sft.yaml": CONFIG})
    (run,), (other,) = check(), check("recipes/b/sft.yaml")
    assert peak(run) == peak(named)
    assert run.launch is not None
    assert (run.launch.path, run.launch.line) == ("slurm/train.slurm", 12)
    assert other.launch is None


@pytest.mark.parametrize("argument", ["recipes/a/sft.yaml", "sft.yaml"])
def test_a_config_that_a_script_gets_as_an_argument_is_run_as_a_document_calls_it(
    tmp_path: Path, argument: str
) -> None:
    job = LAUNCH.replace("recipes/a/sft.yaml", "$1" if "/" in argument else "recipes/a/$1")
    put(tmp_path, {"train.sh": f"{job}\n", "README.md": f"```bash\nbash train.sh {argument}\n```\n"})
    (run,) = check()
    assert run.launch is not None
    assert run.launch.path == "train.sh"


def test_a_call_without_a_word_of_the_path_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, {"train.sh": f"{LAUNCH.replace('recipes/a', 'recipes/$2')}\n"})
    put(tmp_path, {"README.md": "```bash\nbash train.sh '' b 1\nbash train_other.sh a\n```\n"})
    followed = []
    monkeypatch.setattr(launches.called, "as_called", lambda call, *_: followed.append(call))
    (run,) = check()
    assert (run.launch, followed) == (None, [])


def test_the_command_that_submits_a_script_says_on_how_many_machines_it_runs(tmp_path: Path) -> None:
    one, two = "sbatch --nodes=1", "sbatch -N 2"
    peaks = []
    for command in (one, two):
        call = f"{command} slurm/train.slurm --model a --task sft --sharding zero3"
        put(tmp_path, {"recipes/README.md": f"```bash\n{call}\n```\n", "slurm/train.slurm": JOB})
        launches._texts.clear()
        launches._scripts.clear()
        (run,) = check()
        peaks.append(peak(run))
    assert peaks[0] > peaks[1]


def test_a_program_says_whose_run_it_is_though_its_command_says_nothing_else(tmp_path: Path) -> None:
    put(tmp_path, {"README.md": "```bash\npython scripts/sft.py --config recipes/a/sft.yaml\n```\n"})
    put(tmp_path, {"scripts/sft.py": SFT.format("Ours")})
    (run,) = check()
    assert run.estimate is None
    assert "OursTrainer has a loss of its own" in why_unknown(run)


def test_programs_are_looked_for_in_one_pass() -> None:
    """From each character on, a word of a million of them would be read a million times."""
    assert launches._PROGRAM.findall("a" * 1_000_000 + " b/c.py") == ["b/c.py"]
