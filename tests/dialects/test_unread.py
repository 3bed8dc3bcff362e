"""Keys that nobody reads although their names decide about memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint.check import check_paths
from memlint.dialects import registry
from memlint.dialects.unread import MOST, own_way, unread
from memlint.documents.load import load
from memlint.facts.spec import TrainingSpec
from memlint.settings import Settings

OWN = "deepspeed --module pkg.finetune --model_name_or_path gpt2 --max_length 512 --per_device_train_batch_size 4"


def run_of(folder: Path, text: str, name: str = "train.sh") -> TrainingSpec:
    (folder / name).write_text(text + "\n", encoding="utf-8")
    [spec] = registry.specs(load(str(folder / name)))
    return spec


@pytest.mark.parametrize(
    ("options", "names"),
    [
        pytest.param("--freeze_lm True", ["--freeze_lm"], id="what trains"),
        pytest.param("--freeze-lm", ["--freeze-lm"], id="with dashes, and without a value"),
        pytest.param(
            "--cpu_offload all --recompute_granularity full", ["--cpu_offload", "--recompute_granularity"], id="two"
        ),
        pytest.param("--freeze_lm False --offload none --tensor_parallel_size 1", [], id="what is off"),
        pytest.param("--offload_share 0.5", ["--offload_share"], id="a part"),
        pytest.param("--freeze_layers 0,1", ["--freeze_layers"], id="a list"),
        pytest.param("--freeze_layers -1 --offload_share 0.0", [], id="nothing, in numbers"),
        pytest.param("--no_freeze", [], id="what is switched off"),
        pytest.param("--gradient_checkpointing --bf16 True --deepspeed ds.json", [], id="what is read"),
        pytest.param("--train_datasets alpaca --epochs 3", [], id="what decides nothing"),
    ],
)
def test_options_of_a_program_of_somebodys_own(options: str, names: list[str], tmp_path: Path) -> None:
    assert [one.name for one in unread(run_of(tmp_path, f"{OWN} {options}"))] == names


def test_a_config_with_thousands_of_them_names_some(tmp_path: Path) -> None:
    config = "model_name_or_path: gpt2\nstage: sft\nfinetuning_type: full\ndo_train: true\ncutoff_len: 64\n"
    spec = run_of(tmp_path, config + "".join(f"freeze_{number}: true\n" for number in range(3000)), "run.yaml")
    assert len(unread(spec)) == MOST


@pytest.mark.parametrize(
    "option", ["--zero_stage 3", "--deepspeed_stage 2", "--pipeline_parallel_size 4", "--ds_file a.json"]
)
@pytest.mark.parametrize("keys", ["--max_length 512", "--block_size 512"], ids=["TRL's keys", "the Trainer's keys"])
def test_a_program_that_shares_the_run_itself_has_no_estimate(option: str, keys: str, tmp_path: Path) -> None:
    command = f"deepspeed train.py --model_name_or_path gpt2 {keys} --per_device_train_batch_size 4 --do_train"
    spec = run_of(tmp_path, f"{command} {option}")
    assert own_way(spec) == f"{option}: the program shares the run in a way of its own"
    assert spec.unknown_reason == own_way(spec)


def test_a_config_that_shares_the_run_in_a_way_of_its_own_has_no_estimate_either(tmp_path: Path) -> None:
    keys = "model_name_or_path: gpt2\ndataset_name: x\nper_device_train_batch_size: 4\nmax_length: 512\n"
    spec = run_of(tmp_path, keys + "zero_stage: 3", "run.yaml")
    assert spec.unknown_reason == "zero_stage 3: the program shares the run in a way of its own"


@pytest.mark.parametrize(
    "option",
    [
        "--freeze_lm True",
        "--unfrozen_modules deltas",
        "--trainable_layers 2",
        "--delta_type lora",
        "--spectrum_path a.yaml",
        "--train_type lora",
        "--ft_method ptuning",
        "--peft lora",
        "--lora_dim 16",
    ],
)
def test_a_program_that_chooses_what_trains_has_no_estimate(option: str, tmp_path: Path) -> None:
    """OpenDelta's `unfrozen_modules` beside adapters of its own: all of GPT-J was taken to train, and told OOM."""
    assert run_of(tmp_path, f"{OWN} {option}").unknown_reason == (
        f"{option}: the program chooses itself which part of the model trains"
    )


def test_a_value_that_is_not_known_is_shown_as_it_is_written(tmp_path: Path) -> None:
    [one] = unread(run_of(tmp_path, f'{OWN} --freeze_lm "$FREEZE"'))
    assert (one.name, one.value) == ("--freeze_lm", '"$FREEZE"')


def test_what_is_not_read_is_said_on_its_line_and_beside_the_figures(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(f"{OWN} \\\n  --freeze_embeds True\n", encoding="utf-8")
    report = check_paths([str(tmp_path / "train.sh")], Settings())
    [found] = [finding for finding in report.findings if finding.code == "MEM805"]
    assert (found.span.line, report.runs[0].estimate is not None) == (2, True)
    assert report.runs[0].estimate is not None
    assert ("--freeze_embeds", "True") in [(name, value) for name, value, _ in report.runs[0].estimate.assumptions]


def test_a_module_that_is_a_package_is_started_by_its_main(tmp_path: Path) -> None:
    from memlint.dialects import scripts

    (tmp_path / ".git").mkdir()
    (tmp_path / "pkg" / "finetune").mkdir(parents=True)
    (tmp_path / "pkg" / "finetune" / "__main__.py").write_text("main()\n", encoding="utf-8")
    (tmp_path / "train.sh").write_text(OWN + "\n", encoding="utf-8")
    document = load(str(tmp_path / "train.sh"))
    [command] = [one for one in document.commands if one.called]
    assert scripts.file_of(command, document) == str(tmp_path / "pkg" / "finetune" / "__main__.py")


@pytest.mark.parametrize(
    ("command", "parameters"),
    [
        pytest.param(
            "python ours.py --model_name_or_path openai-community/gpt2 --max_length 512 --unfrozen_modules deltas",
            124_439_808,
            id="a decoder",
        ),
        pytest.param(  # microsoft/LoRA at c4593f0: examples/NLU/*.sh
            "python run_glue.py --model_name_or_path FacebookAI/roberta-large --task_name mnli --do_train "
            "--max_seq_length 128 --apply_lora True",
            355_361_794,
            id="an encoder with adapters of the program's own",
        ),
        pytest.param(
            "python ours.py --model_name_or_path openai-community/gpt2 --max_length 512 --peft qlora", 0, id="packed"
        ),
    ],
)
def test_weights_are_a_bound_where_the_program_chooses_what_trains(
    command: str, parameters: int, tmp_path: Path
) -> None:
    (tmp_path / "train.sh").write_text(f"{command} --per_device_train_batch_size 4\n", encoding="utf-8")
    [run] = check_paths([str(tmp_path / "train.sh")], Settings()).runs
    assert run.estimate is None
    found = 0 if run.partial is None else max(row.device_bytes for row in run.partial.rows)
    assert 4 * parameters <= found <= 4.1 * parameters
