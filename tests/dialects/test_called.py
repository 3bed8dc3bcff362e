"""Scripts that scripts and documents call with arguments: the caller states the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint import check

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
    assert [Path(one.path).name for one in walked if one.estimate is not None] == ["README.md"]


def test_a_value_is_where_the_caller_wrote_it(tmp_path: Path) -> None:
    """TinyLLaVA_Factory: scripts/train/train_phi.sh hands all of a run to pretrain.sh."""
    runs(tmp_path, "all.sh", "MODEL=gpt2\nbash scripts/train.sh $MODEL many", TRAIN.format("$1", "$2"))
    (run,) = check(str(tmp_path / "all.sh"), isolated=True).runs
    (found,) = (one for one in run.findings if one.code == "MEM008")
    assert (Path(found.span.path).name, found.span.line) == ("all.sh", 2)
