"""The run that makes the model of another one says which shapes that has."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint import check
from memlint.dialects import predecessors
from tests.dialects.language_models import written

TUNED = """\
model_name_or_path: gpt2
dataset_name: ours
max_length: 64
per_device_train_batch_size: 1
output_dir: out/first
"""
ALIGNED = """\
model_name_or_path: {}
dataset_name: ours
beta: 0.1
max_length: 64
per_device_train_batch_size: 1
output_dir: out/second
"""
WRITER = (
    "accelerate launch sft.py --model_name_or_path gpt2 --max_seq_length 64 --dataset_name a --output_dir out/first\n"
)
OWN_WRITER = "accelerate launch train.py --model gpt2 --seq-length 64 --output-dir ./out/first\n"
STEPS = "".join(
    f"python train.py --model {one} --output-dir out/{other}\n"
    for one, other in zip(("gpt2", "out/a", "out/b", "out/c", "out/d"), "abcde")
)


@pytest.mark.parametrize(
    ("files", "model", "made"),
    [
        pytest.param({"sft.yaml": TUNED}, "out/first", "gpt2", id="a config beside it"),
        pytest.param({"sft.yaml": TUNED}, "./out/first/checkpoint-500", "gpt2", id="a checkpoint of it"),
        pytest.param({"sft/a.yaml": TUNED}, "out/first", "gpt2", id="a config of a folder beside it"),
        pytest.param({"go.sh": WRITER}, "out/first", "gpt2", id="a script"),
        pytest.param({"go.sh": OWN_WRITER}, "out/first", "gpt2", id="a program of its own"),
        pytest.param({"go.sh": STEPS}, "out/e", "gpt2", id="a script of several steps"),
        pytest.param(
            {"a.yaml": TUNED, "b.yaml": TUNED.replace("gpt2", "out/first").replace("out/first\n", "out/next\n", 2)},
            "out/next",
            "",
            id="a run of its own folder",
        ),
        pytest.param(
            {"a.yaml": TUNED, "b.yaml": TUNED.replace("out/first", "out/more").replace("gpt2", "out/first")},
            "out/more",
            "gpt2",
            id="a run after a run",
        ),
        pytest.param(
            {"a.yaml": TUNED, "b.yaml": TUNED.replace("gpt2", "gpt2-medium")}, "out/first", "", id="two that differ"
        ),
        pytest.param({"a.yaml": TUNED}, "out/other", "", id="another folder"),
        pytest.param({"a.yaml": TUNED.replace("out/first", "first")}, "first", "", id="a name that says nothing"),
        pytest.param({"a.yaml": TUNED.replace("out/first", "./first")}, "./first", "gpt2", id="a folder, by its dot"),
        pytest.param(
            {"a.yaml": TUNED + "hub_model_id: us/tuned\n"}, "us/tuned", "gpt2", id="what it pushes to the hub"
        ),
        pytest.param({}, "out/first", "", id="nobody writes it"),
    ],
)
def test_a_folder_has_the_shapes_of_what_the_run_starts_from_that_writes_it(
    tmp_path: Path, files: dict[str, str], model: str, made: str
) -> None:
    written(tmp_path, {f"recipes/{name}": text for name, text in files.items()})
    written(tmp_path, {"recipes/dpo/dpo.yaml" if "sft/a.yaml" in files else "recipes/dpo.yaml": ALIGNED.format(model)})
    (path,) = tmp_path.rglob("dpo.yaml")
    (run,) = check(str(path), isolated=True).runs
    assumed = {fact: (value, why) for fact, value, why in (run.estimate.assumptions if run.estimate else ())}
    assert assumed.get("same_model_as", ("", ""))[0] == made
    assert (run.estimate is not None) == bool(made)


def test_of_a_folder_of_such_runs_each_file_is_read_for_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = ALIGNED.format("path/to/model").replace("out/second\n", "out/")
    written(tmp_path, {f"run_{number:02}.yaml": f"{text}{number}\n" for number in range(12)})
    looked: list[str] = []
    read = predecessors._read
    monkeypatch.setattr(predecessors, "_read", lambda path: looked.append(path) or read(path))
    report = check(str(tmp_path), isolated=True)
    assert len(report.runs) == 12
    assert len(looked) == 12
