"""What a finding says is true of the framework whose config it stands in, and is said once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import memlint
from memlint.fixes.edits import apply_edits
from memlint.plugin import Finding

pytestmark = pytest.mark.usefixtures("answers_kept")

GRPO = """\
model_name_or_path: Qwen/Qwen2.5-1.5B-Instruct
dtype: bfloat16
num_generations: 2
max_prompt_length: 64
max_completion_length: 64
per_device_train_batch_size: 2
gradient_checkpointing: true
beta: 0.04
use_vllm: true
vllm_mode: colocate
vllm_gpu_memory_utilization: 0.3
output_dir: out
"""
DPO = """\
base_model: NousResearch/Meta-Llama-3-8B-Instruct
rl: dpo
datasets: [{path: ours, type: chat_template.default}]
load_in_4bit: true
adapter: qlora
lora_r: 8
lora_target_linear: true
sequence_len: 2048
micro_batch_size: 3
bf16: true
gradient_checkpointing: true
flash_attention: true
"""
QLORA_FSDP = """\
base_model: meta-llama/Meta-Llama-3-8B
datasets: [{path: ours, type: alpaca}]
load_in_4bit: true
adapter: qlora
lora_r: 8
lora_target_linear: true
sequence_len: 64
micro_batch_size: 1
bf16: true
gradient_checkpointing: true
flash_attention: true
fsdp: [full_shard, auto_wrap]
fsdp_config:
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_state_dict_type: FULL_STATE_DICT
"""
MEGATRON = """\
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 \\
    --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 8 --global-batch-size 64 --bf16 \\
    --vocab-size 32000 --tokenizer-type NullTokenizer
"""
GLUE = """\
python run_glue.py --model_name_or_path google-bert/bert-base-cased --task_name mrpc --do_train \\
    --max_seq_length 128 --per_device_train_batch_size 32 --output_dir out
"""
QUOTED = """\
model_name_or_path: Qwen/Qwen2.5-0.5B
per_device_train_batch_size: "2"
max_length: 64
packing: true
output_dir: out
"""
REWARD = """\
python reward_modeling.py --model_name_or_path Qwen/Qwen2-0.5B-Instruct --dataset_name ours --output_dir out \\
    --per_device_train_batch_size 8 --gradient_checkpointing False --max_length 512
"""
WHOLE = """\
model_name_or_path: meta-llama/Llama-3.1-8B
per_device_train_batch_size: 1
max_length: 64
packing: true
output_dir: out
"""


def findings_of(folder: Path, path: str, text: str, code: str, **options: object) -> list[Finding]:
    (folder / ".git").mkdir()
    (folder / path).write_bytes(text.encode())
    report = memlint.check(str(folder / path), isolated=True, select=code.split(), **options)
    assert not report.crashed
    return [found for run in report.runs for found in run.findings]


@pytest.mark.parametrize(
    ("path", "text", "code", "options", "said"),
    [
        pytest.param(
            "a.yaml",
            GRPO,
            "MEM704",
            {"budget": "1GB"},
            "the reference of grpo: 2.88 GiB,",
            id="the engine beside a reference model is no copy of the weights",
        ),
        pytest.param(
            "a.yml",
            DPO,
            "MEM206",
            {"budget": "1GB"},
            "3 x 2 x 2048 tokens",
            id="a pair of answers is two rows of logits",
        ),
        pytest.param(
            "a.sh",
            REWARD,
            "MEM201",
            {"budget": "1GB"},
            "size 8 x 2 (a chosen and a rejected answer per sample) x --max_length 512 = 8,192 tokens",
            id="a factor that no key states says what it is",
        ),
        pytest.param(
            "a.yml",
            QLORA_FSDP,
            "MEM406",
            {"gpu": "h100-80gb x8", "host_budget": "1GB"},
            "at least 3.82 GiB of 4-bit weights",
            id="a checkpoint of quantised weights is gathered as they are held",
        ),
        pytest.param(
            "a.yml",
            QLORA_FSDP.replace("load_in_4bit: true\nadapter: qlora", "adapter: lora"),
            "MEM406",
            {"gpu": "h100-80gb x8", "host_budget": "1GB"},
            "GiB of bfloat16 weights",
            id="frozen weights are gathered in their own dtype",
        ),
        pytest.param(
            "zero3.json",
            '{"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": "auto",'
            ' "gradient_accumulation_steps": "8"}\n',
            "MEM008",
            {},
            'gradient_accumulation_steps is the text "8", not an integer or auto',
            id="a number in quotes where one word may stand",
        ),
        pytest.param(
            "dpo.yaml",
            "model_name_or_path: meta-llama/Llama-3.2-1B\ndtype: float32\nbeta: 0.1\nmax_length: 64\n"
            "dataset_name: a\nper_device_train_batch_size: 1\noutput_dir: out\nloss_type: sigmoid\n",
            "MEM303",
            {},
            "1.24 billion weights in fp32 take 4.6",
            id="the weights beside a reference model are counted once",
        ),
    ],
)
def test_a_message(path: str, text: str, code: str, options: dict[str, str], said: str, tmp_path: Path) -> None:
    [found] = findings_of(tmp_path, path, text, code, **options)
    assert said in found.message


def test_nothing_can_be_asked_before_training_about_what_is_written_during_it(tmp_path: Path) -> None:
    [found] = findings_of(tmp_path, "a.yaml", GRPO, "MEM704", budget="1GB")
    assert found.fixes == ()  # GRPOConfig has no precompute_ref_log_probs


def test_accumulation_that_no_key_states_is_said_to_follow(tmp_path: Path) -> None:
    [found] = findings_of(tmp_path, "a.sh", MEGATRON, "MEM201", budget="1GB")
    assert found.fixes[-1].title == "--micro-batch-size 8 -> 1 (accumulation 1 -> 8 follows)"


def test_a_line_is_not_related_to_itself(tmp_path: Path) -> None:
    [found] = findings_of(tmp_path, "a.sh", GLUE, "MEM301", budget="1GB")
    assert found.span.line == 2
    assert found.related == ()


def test_a_value_of_the_wrong_type_is_reported_once(tmp_path: Path) -> None:
    [found] = findings_of(tmp_path, "a.yaml", QUOTED, "MEM004 MEM008")
    assert (found.code, [fix.title for fix in found.fixes]) == ("MEM008", ['"2" -> 2'])


@pytest.mark.parametrize(
    ("code", "path", "text", "budget"),
    [
        pytest.param("MEM704", "a.yaml", GRPO, "1GB", id="a reference that the method needs"),
        pytest.param("MEM201", "a.sh", MEGATRON, "1GB", id="batch and length of a language model"),
    ],
)
def test_what_nothing_can_be_done_about_is_said_where_the_budget_is_short(
    code: str, path: str, text: str, budget: str, tmp_path: Path
) -> None:
    for folder, given, found in (("short", {"budget": budget}, 1), ("none", {}, 0), ("ample", {"budget": "2000GB"}, 0)):
        (tmp_path / folder).mkdir()
        assert len(findings_of(tmp_path / folder, path, text, code, **given)) == found, folder


@pytest.mark.parametrize("text", ["...", "<LENGTH>", "many"])
def test_a_place_to_be_filled_in_is_no_wrong_value(text: str, tmp_path: Path) -> None:
    found = findings_of(tmp_path, "a.yaml", WHOLE.replace("max_length: 64", f"max_length: '{text}'"), "MEM008")
    assert len(found) == (text == "many")


def test_one_device_that_is_an_assumption_makes_no_error(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "launched").mkdir()
    command = "trl sft --model_name_or_path meta-llama/Llama-3.1-8B --max_length 64 --output_dir out --dataset_name a\n"
    [bare] = findings_of(tmp_path / "bare", "a.yaml", WHOLE, "MEM101", gpu="a100-40gb")
    [launched] = findings_of(tmp_path / "launched", "a.sh", command, "MEM101", gpu="a100-40gb")
    assert (bare.severity, launched.severity) == ("warning", "error")


def test_the_card_of_a_hint_is_the_one_that_was_named(tmp_path: Path) -> None:
    [found] = findings_of(tmp_path, "a.yaml", WHOLE, "MEM101", gpu="a100-40gb")
    assert any('`--gpu "a100-40gb x8"`' in note for note in found.notes)


@pytest.mark.parametrize(
    ("path", "text", "after"),
    [
        pytest.param(
            "ds.json",
            '{"zero_optimisation": {"stage": 2}, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}}',
            '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}}',
            id="in the quotes of JSON",
        ),
        pytest.param(
            "a.sh",
            "python run_clm.py --model_name_or_path gpt2 --output_dir out --bf-16 --block_size 64\n",
            "python run_clm.py --model_name_or_path gpt2 --output_dir out --bf16 --block_size 64\n",
            id="after the dashes of an option",
        ),
        pytest.param(
            "a.yaml",
            WHOLE + "gradient_checkpoinitng: true\n",
            WHOLE + "gradient_checkpointing: true\n",
            id="as it is in YAML",
        ),
    ],
)
def test_a_misspelt_key_is_put_right_in_its_place(path: str, text: str, after: str, tmp_path: Path) -> None:
    [found] = findings_of(tmp_path, path, text, "MEM009")
    assert apply_edits(text, found.fixes[0].edits) == after


@pytest.mark.parametrize(
    ("program", "found"),
    [
        pytest.param("parser.add_argument('--gradient_checkpoiting')\n", 0, id="that its program names"),
        pytest.param("parser.add_argument('--gradient_checkpointing')\n", 1, id="that its program does not name"),
    ],
)
def test_an_option_is_no_misspelt_one(program: str, found: int, tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "run_clm.py").write_text(program, encoding="utf-8")
    text = "python run_clm.py --model_name_or_path gpt2 --output_dir out --block_size 64 --gradient_checkpoiting True\n"
    assert len(findings_of(tmp_path, "scripts/a.sh", text, "MEM009")) == found


def test_a_program_that_is_not_there_may_have_options_of_its_own(tmp_path: Path) -> None:
    text = "python -m training.run --model_name_or_path gpt2 --output_dir out --block_size 64 --bf-16\n"
    assert findings_of(tmp_path, "a.sh", text, "MEM009") == []


def test_values_that_are_not_known_are_notes_where_there_is_no_estimate(tmp_path: Path) -> None:
    text = "torchrun --nproc_per_node $(nvidia-smi -L | wc -l) run_clm.py --model_name_or_path $1 --output_dir out\n"
    [found] = findings_of(tmp_path, "a.sh", text, "MEM004 MEM007")
    assert found.code == "MEM007"
    assert any("--nproc_per_node (the output of a command)" in note for note in found.notes)


def test_who_knows_the_data_can_say_how_long_samples_are(tmp_path: Path) -> None:
    text = WHOLE.replace("max_length: 64\npacking: true\n", "dataloader_num_workers: 1\n")
    [found] = findings_of(tmp_path, "a.json", _as_json(text), "MEM007")
    assert found.notes == ("`-o max_seq_length=2048` tries a length",)
    report = memlint.check(str(tmp_path / "a.json"), isolated=True, override=["max_seq_length=2048"])
    assert report.runs[0].estimate is not None


def _as_json(text: str) -> str:
    pairs = (line.split(": ") for line in text.splitlines())
    return json.dumps({key: int(value) if value.isdigit() else value for key, value in pairs})


def test_a_batch_that_three_sizes_make_is_their_product(tmp_path: Path) -> None:
    written = {"train_batch_size": 100, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    (tmp_path / "ds.json").write_text(json.dumps({**written, "zero_optimization": {"stage": 2}}), encoding="utf-8")
    command = (
        "deepspeed --num_gpus 8 run_clm.py --model_name_or_path gpt2 --block_size 64 --output_dir out "
        "--deepspeed ds.json --per_device_train_batch_size 2 --gradient_accumulation_steps 4\n"
    )
    [found] = findings_of(tmp_path, "a.sh", command, "MEM404")
    assert found.fixes[0].title == "train_batch_size 100 -> 64"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_is_added_on_a_line_of_its_own_is_told_without_the_line_s_end(end: str, tmp_path: Path) -> None:
    [found] = findings_of(tmp_path, "a.sh", GLUE.replace("\n", end), "MEM301", budget="1GB")
    assert found.fixes[0].title == "add --bf16 True"
    after = apply_edits(GLUE.replace("\n", end), found.fixes[0].edits)
    assert after == (GLUE.rstrip("\n") + " \\\n    --bf16 True\n").replace("\n", end)
