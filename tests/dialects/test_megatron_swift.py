"""Family megatron-swift: its command lines, by the code of ms-swift 4.6 and mcore-bridge 1.6."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.estimates import EqualRuns, estimate_spec
from memlint.facts.spec import TrainingSpec
from memlint.models import UnknownModel
from tests.dialects.language_models import run

HYPER = "hyperparameters."


def started(
    options: str = "", model: str = "Qwen/Qwen2.5-7B", devices: str = "NPROC_PER_NODE=8", what: str = "sft"
) -> TrainingSpec:
    return run(f"{devices} megatron {what} --model {model} --max_length 8192 {options}\n", "run.sh")


@pytest.mark.parametrize("what", ["sft", "pt"])
def test_what_is_not_written_is_as_the_arguments_have_it(what: str) -> None:
    spec = started(what=what)
    assert spec.architecture == "language_model", spec.unknown_reason
    assert spec.family == "megatron-swift"
    assert (spec["micro_batch_size"], spec["global_batch_size"], spec["gradient_accumulation_steps"]) == (1, 16, 2)
    assert (spec["parameter_dtype"], spec["gradient_dtype"], spec["master_weights"]) == ("bfloat16", "float32", True)
    assert (spec["parallelism.strategy"], spec["parallelism.zero_stage"], spec["parallelism.shard"]) == ("zero", 1, 8)
    assert (spec["attention"], spec["checkpointing"]) == ("flash", "none")  # selective: what a kernel does not keep
    assert spec["fused_kernels"] == ["rms_norm", "swiglu", "cross_entropy"]
    assert spec["implementation"] == "megatron"


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        pytest.param(
            "--packing true", {"packing": True, "sequence_bound": None, "sequence_length": 8192}, id="full rows"
        ),
        pytest.param(
            "--packing true --packing_length 16384", {"sequence_length": 16384}, id="rows of a length of their own"
        ),
        pytest.param("--packing false", {"packing": None, "sequence_bound": True}, id="samples as they come"),
        pytest.param(
            "--tensor_model_parallel_size 4 --sequence_parallel true",
            {"parallelism.data": 2, "parallelism.tensor": 4, "parallelism.sequence": True},
            id="devices that share each layer",
        ),
        pytest.param("--use_distributed_optimizer false", {"parallelism.strategy": "ddp"}, id="undivided states"),
        pytest.param("--bf16 false --fp16 true", {"parameter_dtype": "float16"}, id="float16"),
        pytest.param("--torch_dtype float16", {"parameter_dtype": "float16"}, id="a dtype by its name"),
        pytest.param(
            "--recompute_granularity full --recompute_method uniform --recompute_num_layers 2",
            {"checkpointing": "full", "checkpointing_chunk": 2},
            id="two layers at once",
        ),
        pytest.param("--recompute_granularity none", {"checkpointing": "none"}, id="nothing is made again"),
        pytest.param(
            "--apply_rope_fusion true",
            {"fused_kernels": ["rms_norm", "swiglu", "rotary", "cross_entropy"]},
            id="rotations",
        ),
        pytest.param(
            "--bias_activation_fusion false --cross_entropy_loss_fusion false",
            {"fused_kernels": ["rms_norm"]},
            id="steps",
        ),
        pytest.param(
            "--pipeline_model_parallel_size 2 --decoder_first_pipeline_num_layers 12",
            {"parallelism.stage_layers": [12, 16]},
            id="stages that differ",
        ),
    ],
)
def test_options_are_facts(options: str, facts: dict[str, Any]) -> None:
    spec = started(options)
    assert spec.architecture == "language_model", spec.unknown_reason
    assert {name: spec.get(name) for name in facts} == facts


@pytest.mark.parametrize(
    ("options", "what", "facts"),
    [
        pytest.param(
            "",
            "rlhf",
            {"method": "dpo", "reference_model": "copy", "sequences_per_sample": 2},
            id="DPO unless another is named",
        ),
        pytest.param(
            "--rlhf_type dpo --tuner_type lora --packing true",
            "rlhf",
            {"method": "dpo", "reference_model": "adapter_off", "sequences_per_sample": 1},
            id="the model without its adapters",
        ),
        pytest.param(
            "--rlhf_type kto", "rlhf", {"sequences_per_sample": None, "mismatched_completions": True}, id="KTO"
        ),
        pytest.param(
            "--rlhf_type rm",
            "rlhf",
            {"row_output": "score", "row_loss": "preferred", "labels": 1, "reference_model": None},
            id="rewards",
        ),
        pytest.param(
            "--task_type generative_reranker --loss_type pointwise_reranker",
            "sft",
            {"row_output": "choice", "row_loss": "pairs", "sequences_per_sample": 8},
            id="which of two words",
        ),
        pytest.param(
            "--task_type seq_cls --num_labels 3", "sft", {"row_output": "score", "labels": 3}, id="a classifier"
        ),
    ],
)
def test_what_is_asked_of_the_model(options: str, what: str, facts: dict[str, Any]) -> None:
    spec = started(options, what=what)
    assert spec.architecture == "language_model", spec.unknown_reason
    assert {name: spec.get(name) for name in facts} == facts


def test_a_reference_is_a_second_model_in_sixteen_bits() -> None:
    small, shared = "Qwen/Qwen2.5-0.5B", "--tensor_model_parallel_size 2 --sequence_parallel true --micro_batch_size 2"
    plain = estimate_spec(started(shared, small))
    pairs = estimate_spec(started(shared, small, what="rlhf"))
    assert pairs.parameters == 2 * plain.parameters
    assert pairs.trainable_parameters == plain.trainable_parameters
    adapted, alone = (
        estimate_spec(started(f"--tuner_type lora {shared}", small, what=what)) for what in ("rlhf", "sft")
    )
    assert adapted.parameters == alone.parameters


SEES, TOWER = "Qwen/Qwen2.5-VL-7B-Instruct", 676_550_144  # 8,292,166,656 parameters but for the decoder's
WORDS = 8_292_166_656 - TOWER


def test_a_tower_stands_whole_and_frozen_in_front_of_shared_layers() -> None:
    shared = "--packing true --tensor_model_parallel_size 2 --sequence_parallel true"
    spec = run(
        f"MAX_PIXELS=1003520 NPROC_PER_NODE=8 megatron sft --model {SEES} --max_length 8192 {shared}\n", "run.sh"
    )
    assert spec.architecture == "language_model", spec.unknown_reason
    names = ("model_class", "frozen_parts", "images_per_sample", "image_size", "most_images")
    assert [spec[name] for name in names] == ["vision_language", ["vision_tower", "projector"], 1, 1001, 6]
    seen, blind = estimate_spec(spec), estimate_spec(spec.with_facts({"images_per_sample": 0}))
    assert seen.parameters == WORDS + TOWER
    assert seen.trainable_parameters == WORDS
    assert blind.parameters == seen.parameters
    alone = estimate_spec(started(shared, "Qwen/Qwen2.5-7B-Instruct"))
    weights = (estimate.component_bytes("parameters") for estimate in (seen, alone))
    assert next(weights) - next(weights) == pytest.approx(2 * TOWER, rel=1e-3)  # on each device the whole of it


def test_features_of_the_first_layers_are_added_among_megatron_s_own() -> None:
    spec = started("--packing true --tuner_type lora", "Qwen/Qwen3-VL-8B-Instruct")
    found = estimate_spec(spec)
    assert found.parameters - found.trainable_parameters == 8_767_123_696
    scores = estimate_spec(started("--packing true --task_type seq_cls --num_labels 3", "Qwen/Qwen3-VL-8B-Instruct"))
    assert scores.parameters == 8_767_123_696 - 151936 * 4096 + 3 * 4096


def test_short_samples_are_as_long_as_devices_share_them() -> None:
    """A row of one token cannot be shared: the interval begins with one that can. What 45 GiB are stated for in
    examples/megatron/rlhf/dpo/dense.sh."""
    shared = "--tensor_model_parallel_size 4 --sequence_parallel true --micro_batch_size 8 --global_batch_size 16"
    recomputed = "--recompute_granularity full --recompute_method uniform --recompute_num_layers 1"
    spec = started(f"{shared} {recomputed}", devices="NPROC_PER_NODE=4", what="rlhf")
    found = EqualRuns().estimates(spec, "", ()).own()
    assert found.device_interval[0] < 45 * 2**30 < found.device_bytes


def test_rows_have_no_logits() -> None:
    """But for choosing among two words, whose weights are rows of the head."""
    rows = "--packing true --tensor_model_parallel_size 2 --sequence_parallel true"
    plain = estimate_spec(started(rows, "Qwen/Qwen3-8B"))
    ranks = [
        estimate_spec(started(f"{rows} {more}", "Qwen/Qwen3-8B"))
        for more in (
            "--task_type embedding --loss_type infonce",
            "--task_type generative_reranker --loss_type listwise_reranker",
            "--task_type seq_cls --num_labels 5",
        )
    ]
    assert all(found.device_bytes < plain.device_bytes for found in ranks)
    head = 4096 * 151936
    assert plain.parameters - ranks[0].parameters == head
    assert plain.parameters == ranks[1].parameters
    assert plain.parameters - ranks[2].parameters == head - 5 * 4096


def test_rows_of_the_vocabulary_are_shared_evenly_and_not_padded_further() -> None:
    assert started("--tensor_model_parallel_size 2")["vocabulary_size"] == 152064
    assert started("--tensor_model_parallel_size 7", devices="NPROC_PER_NODE=7")["vocabulary_size"] == 152068


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        pytest.param("--tuner_type lora_llm", "--tuner_type lora_llm: what it makes of ", id="adapters beside a tower"),
        pytest.param("--tuner_type lora --modules_to_save lm_head", "--modules_to_save ", id="modules beside adapters"),
        pytest.param("--rlhf_type grpo", "--rlhf_type grpo: its losses over Megatron's model", id="samples"),
        pytest.param(
            "--rlhf_type dpo --pipeline_model_parallel_size 2", "--rlhf_type dpo in stages: ", id="pairs in stages"
        ),
        pytest.param("--task_type embedding", "loss_type", id="embeddings without a loss"),
        pytest.param("--mtp_num_layers 1", "--mtp_num_layers 1: ", id="layers for further tokens"),
        pytest.param("--optimizer muon", "--optimizer muon is not known", id="Muon"),
        pytest.param(
            "--tensor_model_parallel_size 3", "NPROC_PER_NODE 8: no multiple of 3", id="devices that do not fit"
        ),
        pytest.param(
            "--model Qwen/Qwen2.5-VL-7B-Instruct --freeze_vit false", "--freeze_vit false: ", id="a tower that trains"
        ),
        pytest.param(
            "--model Qwen/Qwen2.5-VL-7B-Instruct --pipeline_model_parallel_size 2",
            "--pipeline_model_parallel_size of a model that sees",
            id="a tower in front of stages",
        ),
        pytest.param("--model meta-llama/Llama-4-Scout-17B-16E", "a model that sees, whose tower ", id="another tower"),
    ],
)
def test_what_is_not_known_is_named(options: str, reason: str) -> None:
    spec = started(options)
    assert spec.architecture is None
    assert reason in spec.unknown_reason


@pytest.mark.parametrize(
    ("options", "model", "count"),
    [
        pytest.param(
            "--tensor_model_parallel_size 2",
            "Qwen/Qwen2.5-7B",
            28 * 8 * ((3584 + 4608) + (3584 + 3584) + (3584 + 37888) + (18944 + 3584)),
            id="products that devices share",
        ),
        pytest.param(
            "--expert_model_parallel_size 2",
            "Qwen/Qwen3-30B-A3B",
            48 * 8 * ((2048 + 5120) + (4096 + 2048) + 128 * ((2048 + 1536) + (768 + 2048))),
            id="each expert by itself",
        ),
        pytest.param(
            "--target_modules linear_qkv", "Qwen/Qwen2.5-7B", 28 * 8 * (3584 + 4608), id="modules by Megatron's names"
        ),
    ],
)
def test_adapters_stand_beside_megatron_s_own_products(options: str, model: str, count: int) -> None:
    spec = started(f"--tuner_type lora {options}", model)
    assert (spec["lora.dtype"], spec["frozen_dtype"]) == ("bfloat16", "bfloat16")
    estimate = estimate_spec(spec)
    assert estimate is not None, spec.unknown_reason
    assert estimate.trainable_parameters == count


def test_adapters_over_layers_that_megatron_s_code_is_not_known_for_are_named() -> None:
    """gpt-oss has sinks and windows: its layers stand as transformers computes them, which have no such products."""
    with pytest.raises(UnknownModel, match="LoRA over Megatron's layers with experts that are chosen as 'chosen'"):
        estimate_spec(started("--tuner_type lora --expert_model_parallel_size 2", "openai/gpt-oss-20b"))


def test_the_fused_loss_copies_its_softmax_on_the_way_back() -> None:
    peaks = [
        estimate_spec(
            started(f"--packing true --max_length 32768 --cross_entropy_loss_fusion {fused}", "Qwen/Qwen2.5-0.5B")
        )
        for fused in ("true", "false")
    ]
    assert all(peak is not None for peak in peaks)
    fused, plain = (peak.allocated_bytes for peak in peaks if peak is not None)
    assert fused - plain == pytest.approx(4 * 32768 * 151936, rel=0.35)  # in part of what forward had let go of


def test_states_in_host_memory_are_on_no_card_whether_or_not_devices_divide_them() -> None:
    offloads = "--optimizer_cpu_offload true --use_precision_aware_optimizer true"
    alone, shared = "NPROC_PER_NODE=4", "NPROC_PER_NODE=8"
    for devices, optimizer in ((alone, "true"), (shared, "true"), (alone, "false")):
        options = f"--tensor_model_parallel_size 4 --use_distributed_optimizer {optimizer} {offloads}"
        estimate = estimate_spec(started(options, devices=devices))
        assert estimate is not None
        assert "optimizer" not in {component.name for component in estimate.components}


def test_gradients_of_all_weights_are_kept_in_fp32_and_states_are_divided() -> None:
    spec = started("--packing true --tensor_model_parallel_size 4")
    estimate = estimate_spec(spec)
    assert estimate is not None
    parts = {component.name: component.size_bytes for component in estimate.components}
    assert parts["gradients"] == pytest.approx(2 * parts["parameters"], rel=0.01)
    assert parts["optimizer"] == pytest.approx(3 * parts["parameters"], rel=0.01)  # 12 bytes, over two devices
