"""What a walk says of commands in documents: estimates and tables are listed, the rest is counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from memlint.cli.main import main


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["check", *arguments])


def test_commands_of_documents_without_an_estimate_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = "torchrun --nproc_per_node {} run_clm.py --model_name_or_path {} --per_device_train_batch_size 1\n"
    (tmp_path / ".git").mkdir()
    (tmp_path / "README.md").write_text(f"```bash\n{command.format(1, '/path/to/model')}```\n", encoding="utf-8")
    (tmp_path / "docs.md").write_text(
        f"```bash\n{command.format('$GPUS', 'gpt2 --fsdp full_shard')}```\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    result = run(".")
    assert "  hf-trainer, gpt2\n  peak unknown without --gpu" in result.stdout  # an answer, if not one number
    assert "README.md" not in result.stdout
    assert result.stderr == "memlint: 1 command in documents without an estimate, not listed (-v lists them)\n"
    assert "memlint: README.md:2: not listed, no estimate: --model_name_or_path /path/to/model" in run(".", "-v").stderr
    assert "README.md" in run("README.md").stdout  # named, it is listed


def test_where_nothing_else_is_found_some_of_them_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = "torchrun run_clm.py --model_name_or_path /path/to/{} --per_device_train_batch_size 1\n"
    commands = "\n".join(command.format(model) for model in "abcde")
    (tmp_path / "README.md").write_text(f"```bash\n{commands}```\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    told = run(".").stderr.splitlines()
    assert [line.partition(": not listed, no estimate: ")[0] for line in told[:3]] == [
        "memlint: README.md:2",
        "memlint: README.md:4",
        "memlint: README.md:6",
    ]
    assert told[3:] == [
        "memlint: 2 more commands in documents without an estimate, not listed (-v lists them)",
        "memlint: no training run with an estimate in .",
    ]


@pytest.mark.parametrize(
    ("options", "listed"),
    [
        pytest.param("--model_name_or_path nobody/knows-this", True, id="a model of the hub that nobody knows"),
        pytest.param("--model_name_or_path gpt2 --train_group_size 8", True, id="a loss that nobody knows"),
        pytest.param(
            "--model_name_or_path gpt2 --train_group_size 8 --seed <a seed of yours>", True, id="and a blank besides"
        ),
        pytest.param("--model_name_or_path path/to/the/model", False, id="a path to fill in"),
        pytest.param("--model_name_or_path ...", False, id="three dots"),
        pytest.param("--model_name_or_path $MODEL", False, id="a variable that nobody sets"),
        pytest.param("--model_name_or_path gpt2 --deepspeed your.json", True, id="a file to be written has a range"),
        pytest.param("--model_name_or_path $MODEL --deepspeed your.json", False, id="a file to write, and no model"),
    ],
)
def test_commands_of_documents_that_memlint_does_not_know_are_listed(
    options: str, listed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands between such a command and an estimate is no word of its author's."""
    (tmp_path / ".git").mkdir()
    text = f"```bash\npython run_clm.py {options} --per_device_train_batch_size 1 --output_dir out\n```\n"
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    result = run(".")
    assert result.stdout.startswith("UNKNOWN README.md") is listed
    assert ("not listed" in result.stderr) is not listed


def test_an_option_whose_variable_is_empty_is_given_no_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "MODEL= # yours\npython run_clm.py --model_name_or_path $MODEL --per_device_train_batch_size 1\n"
    (tmp_path / "run.sh").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert "model_name_or_path is given no value" in run("run.sh").stdout


def test_what_a_programs_docstring_tells_is_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = "torchrun --nproc_per_node 1 sft.py --model_name_or_path {} --dataset_name a --max_length 512"
    program = "import a\n\nif __name__ == '__main__':\n    main()\n"
    (tmp_path / ".git").mkdir()
    (tmp_path / "sft.py").write_text(f'"""Train.\n\n    {command.format("gpt2")}\n"""\n{program}', encoding="utf-8")
    (tmp_path / "other.py").write_text(f'"""Train.\n\n    {command.format("/a/b")}\n"""\n{program}', encoding="utf-8")
    (tmp_path / "silent.py").write_text(program, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    result = run(".")
    assert result.stdout.startswith("NO BUDGET sft.py: peak ")
    assert "\n  trl, gpt2" in result.stdout
    assert "other.py" not in result.stdout
    assert "silent.py" not in result.stdout + result.stderr
    assert result.stderr == "memlint: 1 command in documents without an estimate, not listed (-v lists them)\n"


def test_a_walk_looks_into_makefiles_and_notebooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = "python sft.py --model_name_or_path gpt2 --dataset_name a --max_length 512"
    (tmp_path / ".git").mkdir()
    (tmp_path / "Makefile").write_text(f"train:\n\t{command}\n", encoding="utf-8")
    cells = [{"cell_type": "code", "source": ["!" + command.replace("gpt2", "distilgpt2")]}]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    result = run(".")
    assert [line.split()[-1] for line in result.stdout.splitlines()[1:3]] == ["Makefile", "a.ipynb"]
