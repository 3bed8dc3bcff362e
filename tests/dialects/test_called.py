"""Scripts that are called with arguments, and configs that documents show: the caller states the run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from memlint import check, files
from memlint.dialects import companions

TRAIN = (
    "torchrun --nproc_per_node 1 run_clm.py --model_name_or_path {} --per_device_train_batch_size {} --block_size 64"
)


def runs(tmp_path: Path, name: str, text: str, script: str) -> list[tuple[str, str, object]]:
    (tmp_path / "scripts").mkdir(exist_ok=True)
    (tmp_path / "scripts" / "train.sh").write_text(script + "\n", encoding="utf-8")
    (tmp_path / name).write_text(text + "\n", encoding="utf-8")
    return [
        (one.run, one.model_name, one.facts["micro_batch_size"].value if "micro_batch_size" in one.facts else None)
        for one in check(str(tmp_path / name), isolated=True).runs
    ]


@pytest.mark.parametrize(
    ("text", "script", "expected"),
    [
        pytest.param(
            'M=gpt2\nbash scripts/train.sh "$M" 3', TRAIN.format("$1", "${2}"), [("train", "gpt2", 3)], id="arguments"
        ),
        pytest.param(
            "for m in gpt2 gpt2-medium; do sbatch --nodes=1 scripts/train.sh $m; done",
            TRAIN.format("$1", "${2:-2}"),
            [("train", "gpt2", 2), ("train:2", "gpt2-medium", 2)],
            id="a loop of calls, and a default",
        ),
        pytest.param(
            "export B=5\nM=gpt2 ./scripts/train.sh", TRAIN.format("$M", "$B"), [("train", "gpt2", 5)], id="variables"
        ),
        pytest.param("B=5\nM=gpt2 ./scripts/train.sh", TRAIN.format("gpt2", "$B"), [], id="a variable of its own"),
        pytest.param("bash scripts/train.sh", TRAIN.format("gpt2", 1), [], id="a script that is a run by itself"),
        pytest.param("bash scripts/train.sh a b", TRAIN.format("gpt2", 1), [], id="arguments that nobody looks at"),
        pytest.param("bash ../train.sh gpt2", TRAIN.format("$1", 1), [], id="a script outside of the repository"),
        pytest.param(
            "bash scripts/train.sh gpt2",
            'bash scripts/train.sh "$1"\n' + TRAIN.format("$1", 1),
            [("train", "gpt2", 1)],
            id="a script that calls itself ends",
        ),
        pytest.param(
            "bash scripts/train.sh --model gpt2 --batch 4",
            'while [[ $# -gt 0 ]]; do case "$1" in --model) M="$2"; shift 2;; --batch) B="$2"; shift 2;; esac; done\n'
            + TRAIN.format("$M", "$B"),
            [("train", "gpt2", 4)],
            id="a loop over its options",
        ),
    ],
)
def test_a_script_with_arguments_is_its_callers_run(
    tmp_path: Path, text: str, script: str, expected: list[tuple[str, str, object]]
) -> None:
    assert runs(tmp_path, "all.sh", text, script) == expected


def test_a_document_that_calls_one_states_a_run_too(tmp_path: Path) -> None:
    found = runs(tmp_path, "README.md", "```bash\nbash scripts/train.sh gpt2 2\n```", TRAIN.format("$1", "$2"))
    assert found == [("train", "gpt2", 2)]
    walked = check(str(tmp_path), isolated=True).runs
    assert [Path(one.path).name for one in walked if one.estimate is not None] == ["train.sh", "README.md"]


def test_a_value_is_where_the_caller_wrote_it(tmp_path: Path) -> None:
    """TinyLLaVA_Factory: scripts/train/train_phi.sh hands all of a run to pretrain.sh."""
    runs(tmp_path, "all.sh", "MODEL=gpt2\nbash scripts/train.sh $MODEL many", TRAIN.format("$1", "$2"))
    (run,) = check(str(tmp_path / "all.sh"), isolated=True).runs
    (found,) = (one for one in run.findings if one.code == "MEM008")
    assert (Path(found.span.path).name, found.span.line) == ("all.sh", 2)


@pytest.mark.parametrize(
    ("copies", "stage"), [pytest.param(1, 3, id="the one of that name"), pytest.param(2, None, id="one of several")]
)
def test_a_file_below_a_folder_that_the_shell_finds(tmp_path: Path, copies: int, stage: int | None) -> None:
    """om-ai-lab/VLM-R1: run_scripts/run_grpo_rec.sh."""
    for copy in range(copies):
        (tmp_path / f"part{copy}" / "configs").mkdir(parents=True)
        text = '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}'
        (tmp_path / f"part{copy}" / "configs" / "zero3.json").write_text(text, encoding="utf-8")
    root = 'ROOT="$( cd "$( dirname "${BASH_SOURCE[0]}" )" && pwd )"\n'
    command = TRAIN.format("gpt2", 1).replace("node 1", "node 8") + " --deepspeed ${ROOT}/configs/zero3.json\n"
    (tmp_path / "run.sh").write_text(root + command, encoding="utf-8")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(["git", "-C", str(tmp_path), "add", "."], check=True)
    (found,) = check(str(tmp_path / "run.sh"), isolated=True).runs
    fact = found.facts.get("parallelism.zero_stage")
    assert (fact.value if fact is not None else None) == stage


SHOWN = """\
Train with `{name}`:

```yaml
model_name_or_path: gpt2
stage: sft
do_train: true
finetuning_type: full
per_device_train_batch_size: 3
cutoff_len: 64
dataset: a
```
"""
LAUNCH = "```bash\nCUDA_VISIBLE_DEVICES=0 llamafactory-cli train configs/gpt2.yaml\n```\n"


@pytest.mark.parametrize(
    ("text", "batches"),
    [
        pytest.param(SHOWN.format(name="gpt2.yaml") + LAUNCH, [3], id="the config that its command names"),
        pytest.param(SHOWN.format(name="other.yaml") + LAUNCH, [None], id="another file"),
        pytest.param(2 * SHOWN.format(name="gpt2.yaml") + LAUNCH, [None], id="two of that name"),
        pytest.param(SHOWN.format(name="gpt2.yaml"), [], id="no command"),
    ],
)
def test_a_config_that_a_document_shows_is_its_commands(tmp_path: Path, text: str, batches: list[int | None]) -> None:
    """OpenBMB/MiniCPM-V: docs/llamafactory_train_and_infer.md."""
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    found = check(str(tmp_path / "README.md"), isolated=True).runs
    assert [one.facts["micro_batch_size"].value if one.estimate else None for one in found] == batches
    for one in found:
        assert {Path(fact.path).name for fact in one.facts.values() if fact.line} <= {"README.md"}


@pytest.mark.parametrize(
    ("readme", "expected"),
    [
        pytest.param("- `$ scripts/train.sh gpt2 3`\n", [("train", "gpt2", 3)], id="an entry of a list"),
        pytest.param("```sh\nbash scripts/train.sh gpt2 3\n```\n", [("train", "gpt2", 3)], id="a block"),
        pytest.param(
            "- `$ scripts/train.sh gpt2 3`\n- `$ scripts/train.sh gpt2-medium 2`\n",
            [("train", "gpt2", 3), ("train:2", "gpt2-medium", 2)],
            id="two calls",
        ),
        pytest.param("- `$ scripts/train.sh $M 3`\n", [("train", "", None)], id="a model that is not known either"),
        pytest.param("- `$ elsewhere/train.sh gpt2 3`\n", [("train", "", None)], id="another script"),
        pytest.param("Run `scripts/train.sh`.\n", [("train", "", None)], id="no arguments"),
    ],
)
def test_a_script_that_asks_for_its_model_has_the_runs_that_a_document_calls_it_for(
    tmp_path: Path, readme: str, expected: list[tuple[str, str, object]]
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "README.md").write_text(readme, encoding="utf-8")
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "train.sh"
    script.write_text(TRAIN.format("$1", "$2") + "\n", encoding="utf-8")
    found = check(str(script), isolated=True).runs
    assert [(one.run, one.model_name) for one in found] == [(run, model) for run, model, _ in expected]
    if expected[0][1]:
        assert [one.facts["micro_batch_size"].value for one in found] == [batch for *_, batch in expected]


def test_where_a_file_lies_is_looked_up_once_a_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "model.py").write_text("x = 1\n", encoding="utf-8")
    looked: list[str] = []
    looked_for = companions._looked_for

    def counted(reference: str, beside: str) -> str | None:
        looked.append(reference)
        return looked_for(reference, beside)

    monkeypatch.setattr(companions, "_looked_for", counted)
    with files.named([str(tmp_path)]):
        for name in ("a.py", "b.py"):
            for reference in ("model.py", "gone.py"):
                found = companions.find(reference, str(tmp_path / "inner" / name))
                assert found == (str(tmp_path / "model.py") if reference == "model.py" else None)
        assert looked == ["model.py", "gone.py"]
    companions.find("model.py", str(tmp_path / "inner" / "a.py"))
    assert len(looked) == 3
