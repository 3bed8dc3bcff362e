"""Family ms-swift: its command lines and files, by the code of ms-swift 4.6.0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.dialects import registry
from memlint.documents.load import load
from memlint.estimates import EqualRuns, estimate_spec
from memlint.facts.spec import ASSUMED, WRITTEN, TrainingSpec
from tests.dialects.language_models import line_of, run, runs, written
from tests.material import corpus_folder

MODEL = "--model Qwen/Qwen2.5-7B-Instruct --dataset ours --max_length 2048"
FILE = "model: Qwen/Qwen2.5-7B-Instruct\ntuner_type: lora\ndataset: ours\nmax_length: 2048\n"


def swift(options: str = "", before: str = "", command: str = "sft", model: str = MODEL) -> TrainingSpec:
    return run(f"{before} swift {command} {model} {options}\n", "run.sh")


# ------------------------------------------------------------------------------------------------ recognising


@pytest.mark.parametrize(
    ("path", "text", "families"),
    [
        pytest.param("a.sh", f"swift sft {MODEL}\n", ["ms-swift"], id="the program"),
        pytest.param("a.sh", f"torchrun --nproc_per_node 2 swift/cli/sft.py {MODEL}\n", ["ms-swift"], id="its script"),
        pytest.param("a.yaml", FILE, ["ms-swift"], id="a file"),
        pytest.param("a.sh", "swift infer --model x --max_length 10\n", [], id="inference"),
        pytest.param("a.sh", "swift build -c release\n", [], id="another swift"),
    ],
)
def test_what_is_recognised(path: str, text: str, families: list[str]) -> None:
    assert [spec.family for spec in runs(text, path)] == families


@pytest.mark.parametrize("words", ["sft.yaml", "--config sft.yaml"])
def test_a_command_takes_the_file_that_it_names(tmp_path: Path, words: str) -> None:
    root = written(tmp_path, {"run.sh": f"swift sft {words}\n", "sft.yaml": FILE + "lora_rank: 16\n"})
    (spec,) = registry.specs(load(str(root / "run.sh")))
    assert (spec.architecture, spec["lora.r"], line_of(spec, "lora.r")) == ("language_model", 16, "lora_rank: 16")


# ------------------------------------------------------------------------------------------------ defaults


def test_what_is_not_written_is_as_swift_has_it() -> None:
    spec = swift()
    assert spec.architecture == "language_model"
    assert {name: spec[name] for name in ("tuning", "lora.r", "lora.alpha", "lora.dropout", "lora.targets")} == {
        "tuning": "lora",
        "lora.r": 8,
        "lora.alpha": 32,
        "lora.dropout": 0.05,
        "lora.targets": "all-linear",
    }
    assert (spec["micro_batch_size"], spec["gradient_accumulation_steps"]) == (1, 16)
    assert (spec["checkpointing"], spec["checkpointing_reentrant"]) == ("full", True)
    assert (spec["frozen_dtype"], spec["compute_dtype"], spec["autocast"]) == ("bfloat16", "bfloat16", True)
    assert (spec["optimizer"], spec["optimizer_implementation"], spec["workers"]) == ("adamw", "fused", 1)
    assert spec.get("evaluation_batch_size") is None


@pytest.mark.parametrize(
    ("options", "before", "facts"),
    [
        pytest.param("--tuner_type full", "", {"tuning": "full", "parameter_dtype": "bfloat16"}, id="full"),
        pytest.param("--train_type full", "", {"tuning": "full"}, id="the key's name before release 4"),
        pytest.param("--torch_dtype float16", "", {"compute_dtype": "float16"}, id="fp16 by the weights' dtype"),
        pytest.param("--torch_dtype float32", "", {"compute_dtype": "float16"}, id="fp16 over weights in float32"),
        pytest.param("--torch_dtype float32 --bf16 true", "", {"frozen_dtype": "float32"}, id="both are written"),
        pytest.param(
            "--quant_method bnb --quant_bits 4",
            "",
            {"quantization.bits": 4, "quantization.kind": "nf4", "quantization.double": True},
            id="4 bits, whose scales are quantised too",
        ),
        pytest.param("--quant_bits 4", "", {"quantization.bits": None}, id="bits without a library"),
        pytest.param("--per_device_train_batch_size 3", "", {"gradient_accumulation_steps": 6}, id="16 samples a step"),
        pytest.param("", "NPROC_PER_NODE=4", {"gradient_accumulation_steps": 4, "device_count": 4}, id="4 devices"),
        pytest.param(
            "", "NPROC_PER_NODE=2", {"parallelism.strategy": "ddp", "checkpointing_reentrant": False}, id="plain DDP"
        ),
        pytest.param("", "NPROC_PER_NODE=2 NNODES=3", {"device_count": 6}, id="several machines"),
        pytest.param(
            "--deepspeed zero2",
            "NPROC_PER_NODE=2",
            {
                "parallelism.zero_stage": 2,
                "parallelism.reduce_bucket_elements": 200_000_000,
                "parallelism.overlap": False,
                "checkpointing_reentrant": True,
                "lora.dtype": "bfloat16",
            },
            id="a name of DeepSpeed's configs",
        ),
        pytest.param(
            "--deepspeed zero3_offload",
            "NPROC_PER_NODE=2",
            {
                "parallelism.zero_stage": 3,
                "parallelism.offload_optimizer": True,
                "parallelism.offload_parameters": True,
            },
            id="states in host memory",
        ),
        pytest.param(
            "--fsdp fsdp2",
            "NPROC_PER_NODE=2",
            {"parallelism.strategy": "fsdp2", "checkpointing": "full", "parallelism.reshard_after_forward": True},
            id="FSDP2 by its name",
        ),
        pytest.param(
            "--packing true --packing_length 4096", "", {"sequence_length": 4096}, id="rows of their own length"
        ),
        pytest.param("--packing true", "", {"padding_free": True}, id="packing is padding-free"),
        pytest.param("--attn_impl flash_attn", "", {"attention": "flash"}, id="flash attention"),
        pytest.param("--gradient_checkpointing false", "", {"checkpointing": "none"}, id="without checkpointing"),
        pytest.param("--split_dataset_ratio 0.1", "", {"evaluation_batch_size": 1}, id="data to evaluate"),
        pytest.param("--use_liger_kernel true", "", {"loss": "fused"}, id="Liger's loss"),
        pytest.param("--use_liger_kernel true --enable_dft_loss true", "", {"loss": "full"}, id="a loss of logits"),
        pytest.param(
            "--use_liger_kernel true --loss_scale last_round+hermes", "", {"loss": "full"}, id="weighted tokens"
        ),
        pytest.param(
            "--use_liger_kernel true --loss_scale ignore_empty_think", "", {"loss": "fused"}, id="or left out"
        ),
    ],
)
def test_switches(options: str, before: str, facts: dict[str, Any]) -> None:
    spec = swift(options, before)
    assert spec.architecture == "language_model", spec.unknown_reason
    assert {name: spec.get(name) for name in facts} == facts


def test_what_a_name_stands_for_points_at_the_name() -> None:
    spec = swift("--deepspeed zero2", "NPROC_PER_NODE=2")
    found = spec.fact("parallelism.zero_stage")
    assert found is not None
    assert found.origin == WRITTEN
    assert "--deepspeed zero2" in line_of(spec, "parallelism.zero_stage")


def test_a_file_of_fsdp_holds_both_keys(tmp_path: Path) -> None:
    text = '{"fsdp": "full_shard offload", "fsdp_config": {"fsdp_version": 1, "activation_checkpointing": true}}'
    command = f"NPROC_PER_NODE=2 swift sft {MODEL} --gradient_checkpointing false --fsdp mine.json\n"
    root = written(tmp_path, {"run.sh": command, "mine.json": text})
    (spec,) = registry.specs(load(str(root / "run.sh")))
    assert spec["parallelism.strategy"] == "fsdp1"
    assert spec["parallelism.cpu_offload"] is True
    assert spec["checkpointing"] == "full"


def test_an_empty_number_of_steps_is_its_absence() -> None:
    assert run(FILE + "gradient_accumulation_steps: null\n", "run.yaml")["gradient_accumulation_steps"] == 16


def test_a_file_states_its_processes() -> None:
    spec = run(FILE + "ENV:\n  NPROC_PER_NODE: 4\n", "run.yaml")
    assert (spec["device_count"], spec["parallelism.strategy"]) == (4, "ddp")


def test_linear_layers_of_a_mixture_are_those_of_attention() -> None:
    """Experts and routers are tensors in transformers 5, and find_all_linears asks for classes."""
    spec = swift(model="--model Qwen/Qwen3-30B-A3B --dataset ours --max_length 2048")
    assert spec["lora.targets"] == ["q_proj", "k_proj", "v_proj", "o_proj"]
    assert estimate_spec(spec).trainable_parameters == 48 * 8 * (2 * (2048 + 4096) + 2 * (2048 + 512))


@pytest.mark.parametrize(
    ("model", "options", "found"),
    [
        ("qwen/Qwen-7B-Chat", "DEFAULT", ["c_attn"]),
        ("ZhipuAI/chatglm3-6b", "AUTO", ["query_key_value"]),
        ("baichuan-inc/Baichuan2-7B-Chat", "DEFAULT o_proj", ["o_proj", "W_pack"]),
        ("LLM-Research/Meta-Llama-3-8B-Instruct", "q_proj", ["q_proj"]),
        ("qwen/Qwen-7B-Chat", "ALL", "all-linear"),
    ],
    ids=["Qwen", "ChatGLM, by the older word", "one beside it", "a name", "all"],
)
def test_default_targets_of_older_releases_go_by_the_model(model: str, options: str, found: object) -> None:
    spec = swift(
        f"--lora_target_modules {options}", model=f"--model_id_or_path {model} --dataset ours --max_length 512"
    )
    assert spec["lora.targets"] == found


def test_samples_of_any_length_are_as_long_as_the_model_takes() -> None:
    """The interval begins with the shortest one: what 17 GiB are stated for in examples/train/tuners/lora/train.sh."""
    spec = swift(model="--model Qwen/Qwen2.5-7B-Instruct --dataset ours")
    length = spec.fact("sequence_length")
    assert length is not None
    assert (length.value, length.origin, spec["sequence_bound"]) == (32768, ASSUMED, True)
    found = EqualRuns().estimates(spec, "", ()).own()
    assert found.device_interval[0] < 17.2 * 2**30 < found.device_bytes
    assert swift().get("sequence_bound") is None


@pytest.mark.parametrize(
    ("options", "before", "facts"),
    [
        pytest.param(
            "--sequence_parallel_size 4",
            "NPROC_PER_NODE=8",
            {"parallelism.ulysses": 4, "loss": "outputs", "loss_rows": None, "evaluation_loss": None},
            id="by heads of attention",
        ),
        pytest.param(
            "--sequence_parallel_size 4 --use_liger_kernel true --split_dataset_ratio 0.01",
            "NPROC_PER_NODE=8 CELOSS_PARALLEL_SIZE=2048",
            {"loss": "outputs", "loss_rows": 2048, "evaluation_loss": "as_trained"},
            id="with a loss in pieces, and not Liger's",
        ),
    ],
)
def test_sequences_are_shared(options: str, before: str, facts: dict[str, Any]) -> None:
    spec = swift(options, before)
    assert spec.architecture == "language_model", spec.unknown_reason
    assert {name: spec.get(name) for name in facts} == facts


def test_a_loss_in_pieces_holds_the_logits_and_their_gradient_in_one_place() -> None:
    """Under DeepSpeed logits stay in bf16: each takes 2 bytes in all, where a loss of all at once takes its scores and
    gradients as well."""
    options, before = "--sequence_parallel_size 2 --deepspeed zero3", "NPROC_PER_NODE=2"
    model = "--model Qwen/Qwen2.5-0.5B-Instruct --dataset ours --max_length 32768"

    def logits(variable: str) -> float:
        found = estimate_spec(swift(options, f"{before} {variable}", model=model))
        return sum(part.size_bytes for part in found.components if part.name == "logits") / (16384 * 151936)

    assert logits("CELOSS_PARALLEL_SIZE=1024") == pytest.approx(
        2 + 2 * 2 / 16, rel=0.01
    )  # scores and gradient of a piece
    assert logits("") == pytest.approx(6, rel=0.01)


# ------------------------------------------------------------------------------------------------ methods


@pytest.mark.parametrize(
    ("command", "options", "facts"),
    [
        pytest.param("pt", "", {"method": "pretraining", "sequences_per_sample": None}, id="pretraining"),
        pytest.param(
            "rlhf",
            "",
            {"method": "dpo", "sequences_per_sample": 2, "reference_model": "adapter_off", "lora.dropout": 0.05},
            id="DPO unless another is named, with dropout",
        ),
        pytest.param(
            "rlhf", "--tuner_type full", {"reference_model": "copy", "reference_dtype": "bfloat16"}, id="a copy"
        ),
        pytest.param(
            "rlhf",
            "--packing true",
            {"sequences_per_sample": 1, "sequence_length": 2048, "log_probabilities": "as_returned"},
            id="both answers of a pair within a packed row",
        ),
        pytest.param("rlhf", "--rlhf_type simpo", {"method": "cpo", "reference_model": "none"}, id="SimPO is CPO's"),
        pytest.param("rlhf", "--rlhf_type rm", {"model_class": "sequence_classification", "labels": 1}, id="rewards"),
        pytest.param(
            "rlhf",
            "--rlhf_type grpo --max_completion_length 1024",
            {"sequence_length": 3072, "completion_length": 1024},
            id="a prompt and its answer",
        ),
        pytest.param(
            "rlhf", "--rlhf_type grpo --use_vllm true --vllm_mode colocate", {"engine_share": 0.9}, id="vLLM's share"
        ),
        pytest.param(
            "rlhf",
            "--rlhf_type grpo --use_vllm true --vllm_mode colocate --sleep_level 1",
            {"engine_share": None},
            id="vLLM gives it back",
        ),
        pytest.param("rlhf", "--rlhf_type grpo --beta 0", {"reference_model": "none"}, id="GRPO without a reference"),
        pytest.param(
            "sft",
            "--task_type seq_cls --num_labels 3",
            {"model_class": "sequence_classification", "labels": 3},
            id="a classifier",
        ),
        pytest.param(
            "sft",
            "--task_type embedding --loss_type infonce",
            {"row_output": "vector", "row_loss": "contrast", "sequences_per_sample": 2, "model_class": "causal_lm"},
            id="embeddings",
        ),
        pytest.param(
            "sft",
            "--task_type reranker --loss_type pointwise_reranker",
            {"row_output": "score", "row_loss": "pairs", "sequences_per_sample": 8, "labels": 1},
            id="a score of each document",
        ),
        pytest.param(
            "sft",
            "--task_type generative_reranker --loss_type listwise_reranker --packing true",
            {"row_output": "choice", "row_loss": "group", "sequences_per_sample": 1},
            id="documents within a packed row",
        ),
    ],
)
def test_methods(command: str, options: str, facts: dict[str, Any]) -> None:
    spec = swift(options, command=command)
    assert spec.architecture == "language_model", spec.unknown_reason
    assert {name: spec.get(name) for name in facts} == facts


def test_a_query_has_as_many_documents_as_the_environment_lets_it_have() -> None:
    spec = swift("--task_type reranker --loss_type listwise_reranker", before="MAX_NEGATIVE_SAMPLES=3")
    assert spec["sequences_per_sample"] == 4


def test_a_model_that_sees_scores_rows_as_a_decoder_does() -> None:
    model = "--model Qwen/Qwen2.5-VL-3B-Instruct --dataset ours --max_length 2048"
    plain = estimate_spec(swift("--per_device_train_batch_size 8", model=model))
    found = estimate_spec(
        swift("--task_type seq_cls --num_labels 20 --per_device_train_batch_size 8", model=model),
    )
    assert found.device_bytes < plain.device_bytes  # it has no logits of a vocabulary
    assert swift("--task_type seq_cls --problem_type multi_label_classification", model=model)["row_loss"] == "labels"


def test_adapters_of_an_encoder_that_classifies() -> None:
    """Which is no decoder, and has no layers where a decoder has them."""
    found = estimate_spec(
        swift("--task_type seq_cls --num_labels 2 --target_modules all-linear", model="--model bert-base-chinese")
    )
    assert found.device_bytes


def test_prompts_of_unknown_length_are_an_assumption() -> None:
    spec = swift("--rlhf_type grpo", command="rlhf", model="--model Qwen/Qwen2.5-7B-Instruct --dataset ours")
    length = spec.fact("sequence_length")
    assert length is not None
    assert (length.value, length.origin) == (1024, ASSUMED)


# ------------------------------------------------------------------------------------------------ what is not known


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(f"CUDA_VISIBLE_DEVICES=0,1 swift sft {MODEL}", "2 devices for 1", id="one process, two devices"),
        pytest.param(
            f"CUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=2 swift sft {MODEL}", "4 devices for 2", id="two devices each"
        ),
        pytest.param(f"swift sft {MODEL} --tuner_type longlora", "--tuner_type longlora", id="other adapters"),
        pytest.param(f"swift sft {MODEL} --quant_method hqq --quant_bits 4", "quant_method hqq", id="another library"),
        pytest.param(f"swift sft {MODEL} --optimizer muon", "--optimizer muon", id="an optimizer of swift's own"),
        pytest.param(
            f"NPROC_PER_NODE=8 swift sft {MODEL} --sequence_parallel_size 8",
            "over 4 heads of keys and values",
            id="more devices share a sequence than it has heads",
        ),
        pytest.param(f"swift sft {MODEL} --task_type embedding", "loss_type", id="embeddings without a loss"),
        pytest.param(
            f"INFONCE_INCLUDE_QQ=true swift sft {MODEL} --task_type embedding --loss_type infonce",
            "INFONCE_INCLUDE_QQ",
            id="embeddings with more scores",
        ),
        pytest.param(f"swift sft {MODEL} --fsdp none.json", "--fsdp none.json: ", id="a file that is not there"),
        pytest.param(f"swift rlhf {MODEL} --rlhf_type gkd", "its teacher", id="a teacher"),
        pytest.param(f"swift rlhf {MODEL} --rlhf_type ppo", "value and reward models", id="PPO"),
        pytest.param("swift sft --model org/words-1b --max_length 10", "not in the catalogue", id="a model not known"),
        pytest.param(f'swift sft {MODEL} --lora_rank "$R"', "R is not set", id="a variable that is not set"),
    ],
)
def test_a_reason_names_what_is_not_known(text: str, reason: str) -> None:
    spec = run(text + "\n", "run.sh")
    assert spec.architecture is None
    assert reason in spec.unknown_reason


def test_a_usual_value_of_a_key_that_is_not_known_is_fine() -> None:
    assert swift("--sequence_parallel_size 1 --lisa_activated_layers 0").architecture == "language_model"


# ------------------------------------------------------------------------------------------------ the same as others


def test_the_step_is_that_of_the_trainer_with_the_same_settings() -> None:
    """Swift is the Trainer inside: the same run in TRL's keys has the same tape, but for TRL's own head."""
    ours = estimate_spec(swift("--use_liger_kernel true --lora_dropout 0 --attn_impl sdpa"))
    other = run(
        """
        model_name_or_path: Qwen/Qwen2.5-7B-Instruct
        stage: sft
        do_train: true
        finetuning_type: lora
        lora_target: all
        lora_rank: 8
        template: qwen
        cutoff_len: 2048
        bf16: true
        per_device_train_batch_size: 1
        gradient_accumulation_steps: 16
        enable_liger_kernel: true
        flash_attn: sdpa
        """
    )
    assert other.family == "llamafactory"
    assert ours.allocated_bytes == estimate_spec(other).allocated_bytes


def test_real_scripts_are_answered() -> None:
    """Of the scripts of a public repository, those with a known model get an estimate or a reason of their own."""
    found = []
    for path in sorted((corpus_folder() / "ms_swift").iterdir()):
        found += [spec for spec in registry.specs(load(str(path))) if spec.family == "ms-swift"]
    assert found
    assert all(spec.architecture or spec.architecture_on_devices or spec.unknown_reason for spec in found)


# ------------------------------------------------------------------------------------------------ images

SEES = "--model Qwen/Qwen2.5-VL-7B-Instruct --dataset ours --max_length 2048"


@pytest.mark.parametrize(
    ("before", "options", "side", "key"),
    [
        pytest.param("MAX_PIXELS=1003520", "", 1001, "MAX_PIXELS", id="a variable of qwen_vl_utils"),
        pytest.param("IMAGE_MAX_TOKEN_NUM=1024", "", 896, "IMAGE_MAX_TOKEN_NUM", id="one that counts features"),
        pytest.param("", "--max_pixels 1003520", 1001, "--max_pixels", id="swift's own option"),
        pytest.param("MAX_PIXELS=12845056", "", 1267, "--max_length", id="more than a sample may have"),
        pytest.param("", "", 1267, "--max_length", id="nothing but the length of a sample"),
    ],
)
def test_an_image_is_as_large_as_it_may_be(before: str, options: str, side: int, key: str) -> None:
    spec = swift(options, before, model=SEES)
    assert spec.architecture == "language_model", spec.unknown_reason
    assert (spec["image_size"], spec.facts["image_size"].key, spec["images_per_sample"]) == (side, key, 1)


@pytest.mark.parametrize(("before", "tiles"), [("", 13), ("MAX_NUM=4", 5)])
def test_an_image_of_internvl_is_as_many_tiles_as_it_may_be(before: str, tiles: int) -> None:
    """Of which no more are seen than a sample has room for: 256 features each."""
    model = (
        "--model OpenGVLab/InternVL3-8B-hf --dataset ours --max_length 4096 --lora_rank 8 --target_modules all-linear"
    )
    spec = swift("--freeze_vit true --freeze_aligner true --per_device_train_batch_size 1", before, model=model)
    assert spec.architecture == "language_model", spec.unknown_reason
    assert spec["images_per_sample"] == tiles
    assert estimate_spec(spec).device_bytes < 27 * 2**30


def test_a_file_states_the_variable_too() -> None:
    spec = run(FILE.replace("Qwen2.5-7B", "Qwen2.5-VL-7B") + "ENV: {MAX_PIXELS: 50176}\n", "sft.yaml")
    assert spec["image_size"] == 224


def test_the_larger_an_image_may_be_the_more_its_tower_takes() -> None:
    sizes = []
    for pixels in (200704, 802816):
        estimate = estimate_spec(swift("--freeze_vit false", f"MAX_PIXELS={pixels}", model=SEES))
        assert estimate is not None
        sizes.append(estimate.saved_bytes)
    assert sizes[0] < sizes[1]


def test_a_tower_is_recomputed_as_its_own_switch_says() -> None:
    assert swift(model=SEES).get("tower_checkpointing") is None
    kept = swift("--freeze_vit false --vit_gradient_checkpointing false", "MAX_PIXELS=200704", model=SEES)
    again = swift("--freeze_vit false", "MAX_PIXELS=200704", model=SEES)
    assert kept["tower_checkpointing"] == "none"
    sizes = [estimate_spec(spec).saved_bytes for spec in (again, kept)]
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize(
    ("options", "rank"), [pytest.param("", 12, id="its default"), pytest.param("--adalora_init_r 4", 4, id="stated")]
)
def test_adalora_has_a_rank_of_its_own(options: str, rank: int) -> None:
    spec = swift(f"--tuner_type adalora --lora_rank 64 {options}")
    assert (spec["tuning"], spec["lora.r"]) == ("adalora", rank)
    estimate = estimate_spec(spec)
    assert estimate is not None, spec.unknown_reason
    products = 28 * ((3584 + 3584) * 2 + (3584 + 512) * 2 + (3584 + 18944) * 3)
    assert estimate.trainable_parameters == rank * (products + 28 * 7)  # a number for each rank of each product beside
