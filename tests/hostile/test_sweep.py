"""A sample of the number sweep (tests/hostile/sweep.py has the whole), and every case that ever failed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from memlint.check import check_text
from memlint.settings import Settings
from tests.hostile import sweep

SAMPLE = 24
# (file, a text in the line, the number, what it is set to) of cases that ended in a fault of memlint, in a hang, in
# negative bytes, in silence or in a reason that named another key.
FAILED = [
    ("gpt_neox/run.yml", "padded_vocab_size", "50304", "1000000000"),
    ("gpt_neox/run.yml", "reduce_bucket_size", "50000000", "1000000000000000000"),
    ("gpt_neox/run.yml", "checkpoint_num_layers", "1", "1000000000"),
    ("gpt_neox/run.yml", "num_gpus", "8", "null"),
    ("nemo/run.yaml", "num_nodes", "1", "3"),
    ("nemo/run.yaml", "micro_batch_size", "2", "7"),
    ("nemo/run.yaml", "max_position_embeddings", "512", "1000000000000000000"),
    ("nemo/run.yaml", "num_layers", "4", "1000000000"),
    ("nemo/run.yaml", "activations_checkpoint_num_layers", "1", "1000000000"),
    ("litgpt/run.yaml", "padding_multiple", "64", "1000000000"),
    ("megatron/run.sh", "GPUS=", "8", "1"),
    ("megatron/run.sh", "GPUS=", "8", "0.5"),
    ("megatron/run.sh", "TP=", "2", "3"),
    ("megatron/run.sh", "BATCH=", "4", "0.5"),
    ("megatron/run.sh", "--num-layers", "4", "1"),
    ("megatron/run.sh", "--hidden-size", "512", "3"),
    ("megatron/run.sh", "--ffn-hidden-size", "1536", "7"),
    ("megatron/run.sh", "--seq-length", "512", "7"),
    ("megatron/run.sh", "--make-vocab-size-divisible-by", "128", "1000000000"),
    ("megatron/run.sh", "--hidden-dropout", "0.0", "0.5"),
    ("megatron/run.sh", "--num-experts", "4", "1"),
    ("megatron/run.sh", "--expert-model-parallel-size", "2", "3"),
    ("nanogpt/train_small.py", "dropout", "0.1", "3"),
    ("rwkv/run.sh", "BSZ=", "4", "1000000000"),
    ("language_models/torchtitan_llama3_8b.toml", "data_parallel_shard_degree", "8", "-1"),
    ("language_models/torchtitan_llama3_8b.toml", "tensor_parallel_degree", "1", "3"),
    ("torchtitan/run.toml", "seq_len", "1024", "7"),
    ("torchtitan/run.toml", "context_parallel_degree", "1", "3"),
    ("torchtitan/run.toml", "pipeline_parallel_degree", "1", "7"),
    ("llm_c/run.sh", "--flash", "1", "7"),
    ("internvl/run.sh", "force_image_size", "448", "7"),
    ("internvl/run.sh", "use_llm_lora", "16", "0"),
    ("llava/run.sh", "mm_vision_select_layer", "-2", "1000000000"),
    ("llava/run.sh", "model_max_length", "512", "null"),
    ("hf_trainer/run.sh", "GPUS=", "2", "1000000000"),
    ("language_models/ds_zero2.json", "reduce_bucket_size", "500000000", "1000000000000000000"),
    ("language_models/fsdp_accelerate.yaml", "num_processes", "4", "null"),
    ("language_models/grpo_trl.yaml", "max_prompt_length", "512", "1000000000"),
    ("language_models/grpo_trl.yaml", "max_prompt_length", "512", "null"),
    ("dit3d/config.py", "INPUT_SHAPE", "16", "0"),
    ("dit3d/config.py", "INPUT_SHAPE", "64", "-1"),
    ("dit3d/config.py", "TEXT_MAX_LENGTH", "77", "1000000000"),
    ("litgpt/lora.yaml", "max_seq_length:", "256", "1"),
    ("torchtitan/run.toml", "tensor_parallel_degree", "2", "1000000000"),
    ("kohya/run.sh", "--resolution", "512", "7"),
    ("diffusers/run.sh", "--resolution", "512", "1"),
    ("openmmlab/det.py", "scales_per_octave=", "3", "-1"),
    ("openmmlab/seg.py", "crop_size = (", "128", "1000000000000000000"),
    ("dit3d/config.py", "INPUT_SHAPE[", "1", "7"),
    ("lag_mode/train_lag_mode.sh", "SAMPLE_SIZE=", "6", "1000000000"),
    ("lag_mode/train_lag_mode.sh", "BATCH_SIZE=", "32", "1000000000000000000"),
    ("lag_mode/train_lag_mode.sh", "--depth", "6", "1000000000"),
    ("stdiff/kitti_range_train_config.yaml", "num_observed_frames", "5", "1000000000"),
    ("stdiff/kitti_range_train_config.yaml", "layers_per_block", "2", "1000000000000000000"),
    ("stdiff/kitti_range_train_config.yaml", "attention_head_dim", "128", "7"),
    ("stdiff/kitti_range_train_config.yaml", "n_downs", "2", "1000000000"),
    ("video_llm/config.yaml", "tokens_per_frame", "64", "0"),
    ("video_llm/config.yaml", "tokens_per_frame", "64", "1000000000000000000"),
    ("video_llm/config.yaml", "max_frames", "100", "1000000000"),
    ("video_llm/config.yaml", "batch_size", "4", "1000000000"),
    ("video_llm/config_before.yaml", "max_seq_length", "8192", "3"),
]


def everything() -> list[sweep.Case]:
    return [case for folder, path in sweep.configs() for case in sweep.cases(folder, path)]


@pytest.fixture(scope="module")
def place() -> Iterator[sweep.Sweep]:
    with sweep.Sweep() as found:
        yield found


def named(path: str, text: str, number: str, value: str) -> sweep.Case:
    """The first number of so many digits behind a text, of an example or a sample."""
    folder = next(index for index, place in enumerate(sweep.FOLDERS) if (place / path).is_file())
    content = (sweep.FOLDERS[folder] / path).read_text(encoding="utf-8")
    at = content.index(number, content.index(text) + len(text))
    return next(case for case in sweep.cases(folder, path) if case.start == at and case.value == value)


# The seeds are ours to keep at nothing; time is the sweep's own to tell.
SEEDS = ("dit3d/", "lag_mode/", "stdiff/", "uni3d_dp/", "video_llm/")


@pytest.mark.parametrize(
    "case",
    [
        *(named(*one) for one in FAILED),
        *sweep.chosen([case for case in everything() if case.path.startswith(SEEDS)], SAMPLE),
    ],
    ids=lambda case: case.name,
)
def test_a_number_that_nobody_means_has_an_answer_or_a_place(place: sweep.Sweep, case: sweep.Case) -> None:
    assert not place.outcome(case).problems


TEXT = """\
model_name_or_path: HuggingFaceTB/SmolLM2-135M
dataset_name: ours
max_length: 256  # of a sample; per_device_train_batch_size is of a device
per_device_train_batch_size: 2
bf16: true
output_dir: out
"""
BATCH = "per_device_train_batch_size: 2"
WITHOUT_A_PLACE = [
    pytest.param(
        "output_dir: out\nlearning_rate: 0\n", "learning_rate", "nothing", id="a file that is no run any more"
    ),
    pytest.param(TEXT.replace(BATCH, f"{BATCH[:-1]}-1"), "bf16", "MEM007", id="a reason that names another line's key"),
    pytest.param(
        TEXT.replace(BATCH, f"{BATCH[:-1]}-1"), "max_length", "MEM007", id="a reason that only a comment names"
    ),
]


@pytest.mark.parametrize(("text", "key", "said"), WITHOUT_A_PLACE)
def test_silence_and_a_reason_elsewhere_are_failures(text: str, key: str, said: str) -> None:
    report = check_text("run.yaml", text, Settings())
    assert [run for run in report.runs if run.estimate is not None] == []
    line = text.count("\n", 0, text.index(key)) + 1
    (problem,) = sweep.judged(report, sweep.Case("run.yaml", 1, 0, 1, line, "0"), text)
    assert problem.startswith(f"no estimate, and what is said is elsewhere: {said}")


def test_a_reason_on_its_line_is_an_end_as_it_should_be() -> None:
    text = TEXT.replace(BATCH, f"{BATCH[:-1]}-1")
    report = check_text("run.yaml", text, Settings())
    assert sweep.judged(report, sweep.Case("run.yaml", 1, 0, 1, 4, "-1"), text) == ()


def test_what_a_case_takes_is_judged_too() -> None:
    assert sweep.Outcome((), sweep.CPU_SECONDS, sweep.MEGABYTES, True).expenses == ()
    assert sweep.Outcome((), 2.25, 600.0, True).expenses == ("took 2.2 CPU s", "took 600 MB")


def test_the_table_counts_each_number_once_and_names_the_worst() -> None:
    tally = sweep.Tally()
    for value, seconds in (("0", 0.5), ("7", 3.0)):
        tally.add(sweep.Case("run.yaml", 1, 8, 9, 1, value), sweep.Outcome((), seconds, 64.0, value == "0"))
    assert tally.row("a family").split() == ["a", "family", "1", "2", "1", "1", "3.00", "64"]


def test_ctrl_c_ends_a_long_sweep_with_the_table_so_far(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = iter([sweep.Outcome((), 0.5, 64.0, True)])

    def outcome(place: sweep.Sweep, case: sweep.Case) -> sweep.Outcome:
        for found in outcomes:
            return found
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep.Sweep, "outcome", outcome)
    assert sweep.main(["--family", "nanogpt", "--sample", "3"]) == 1
    printed = capsys.readouterr().out
    assert "nanogpt               1         1         1         0      0.50        64" in printed
    assert "interrupted: 2 cases are not tried" in printed


def test_each_format_has_its_own_spelling_of_what_is_no_number() -> None:
    for value in ("true", "x", "null", "nan"):
        for suffix in sweep.SUFFIXES:
            spelled = sweep.VALUES[value].get(suffix, value)
            assert spelled is None or spelled


def test_every_family_with_an_estimate_is_swept() -> None:
    from memlint.dialects import schema as schemas

    with sweep.Sweep() as place:
        found = {family for folder, path in sweep.configs() for family in place.families(folder, path)}
    beside = {"deepspeed", "accelerate"}  # of runs that name them
    assert found == {name for name in schemas.families() if "models" in schemas.header(name)} - beside
