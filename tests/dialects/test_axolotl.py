"""Family axolotl: the YAML that axolotl train reads, and the commands that name it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memlint.dialects import objections, registry
from memlint.dialects.spelling import spell, spell_each
from memlint.documents.load import load
from memlint.estimates import estimate_spec
from memlint.facts.spec import DEFAULT, WRITTEN, Name
from memlint.fixes.edits import apply_edits
from memlint.models import record
from tests.dialects.language_models import line_of, run, runs, written
from tests.material import corpus_folder

HYPER = "hyperparameters."
BASE = """\
base_model: Qwen/Qwen2.5-7B
datasets:
  - path: somebody/answers
    type: alpaca
sequence_len: 1024
micro_batch_size: 2
learning_rate: 0.0002
"""
LORA = BASE + "adapter: lora\nlora_r: 16\nlora_alpha: 32\nlora_target_linear: true\n"
QLORA = LORA.replace("adapter: lora", "adapter: qlora") + "load_in_4bit: true\n"
FLASH = "attn_implementation: flash_attention_2\n"
LIGER = "plugins:\n  - axolotl.integrations.liger.LigerPlugin\n"
CUT = "plugins:\n  - axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin\n"


# ------------------------------------------------------------------------------------------------ recognising


@pytest.mark.parametrize(
    ("path", "text", "families"),
    [
        pytest.param("a.yaml", BASE, ["axolotl"], id="a training config"),
        pytest.param("a.yml", "base_model: x\nsample_packing: true\n", ["axolotl"], id="a model and packing"),
        pytest.param(
            "a.yaml", "micro_batch_size: 1\nsequence_len: 8\ndatasets: []\n", ["axolotl"], id="without a model"
        ),
        pytest.param(
            "a.yaml", "base_model: x\nmerge_method: ties\ndatasets: []\nadapter: a\n", [], id="a merge of models"
        ),
        pytest.param("a.yaml", "base_model: x\nlearning_rate: 1\n", [], id="a model and a learning rate say nothing"),
        pytest.param(
            "a.sh", "python finetune.py --base_model x --micro_batch_size 4", ["program"], id="another script's options"
        ),
        pytest.param(
            "info.json",
            '{"base_model": "x", "micro_batch_size": 1, "lora_r": 16, "max_seq_length": 512}',
            [],
            id="what another program writes beside its adapters",
        ),
        pytest.param(
            "a.json",
            '{"base_model": "x", "micro_batch_size": 1, "sequence_len": 512, "datasets": []}',
            ["axolotl"],
            id="a training config in JSON",
        ),
        pytest.param("a.sh", "axolotl train --base_model x --micro_batch_size 4", ["axolotl"], id="its own program"),
    ],
)
def test_recognition(path: str, text: str, families: list[str]) -> None:
    assert [spec.family for spec in runs(text + "\n", path)] == families


@pytest.mark.parametrize(
    ("command", "count"),
    [
        ("axolotl train conf.yaml", 1),
        ("accelerate launch -m axolotl.cli.train conf.yaml", 1),
        ("python -m axolotl.cli.train conf.yaml", 1),
        ("torchrun --nproc_per_node 2 -m axolotl.cli.train conf.yaml", 1),
        ("accelerate launch scripts/finetune.py conf.yaml", 1),
        ("axolotl preprocess conf.yaml", 0),
        ("python -m axolotl.cli.preprocess conf.yaml", 0),
        ("axolotl merge-lora conf.yaml", 0),
        ("axolotl inference conf.yaml --lora-model-dir out", 0),
        ("axolotl preprocess conf.yaml\naxolotl train conf.yaml", 1),
    ],
)
def test_only_commands_that_train_are_runs(command: str, count: int, tmp_path: Path) -> None:
    root = written(tmp_path, {"run.sh": command + "\n", "conf.yaml": BASE})
    specs = registry.specs(load(str(root / "run.sh")))
    assert [spec.family for spec in specs] == ["axolotl"] * count
    assert all(spec["sequence_length"] == 1024 for spec in specs)


# ------------------------------------------------------------------------------------------------ defaults and keys


def test_what_is_not_written_is_axolotl_s_default() -> None:
    spec = run("base_model: Qwen/Qwen2.5-7B\ndatasets: [{path: a}]\nlearning_rate: 0.1\n")
    expected = {
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "sequence_length": 512,
        "checkpointing": "none",
        "compute_dtype": "bfloat16",
        "parameter_dtype": "bfloat16",
        "autocast": True,
        "attention": "sdpa",
        "packing": False,
        "optimizer": "adamw",
        "optimizer_implementation": "fused",
        "tuning": "full",
        "method": "sft",
        "float32_parts": ["norms", "embeddings", "head"],
        "prefetch_factor": 256,
    }
    assert {name: spec[name] for name in expected} == expected
    assert {spec.facts[name].origin for name in expected} == {DEFAULT}
    for name in ("micro_batch_size", "sequence_length", "checkpointing", "parameter_dtype", "float32_parts"):
        assert spec.facts[name].reason.startswith("Axolotl 0.19"), name
    assert (spec.architecture, spec.missing) == ("language_model", ())
    assert "evaluation_batch_size" not in spec


@pytest.mark.parametrize(
    ("lines", "fact", "value"),
    [
        ("micro_batch_size: 4", "micro_batch_size", 4),
        ("gradient_accumulation_steps: 8", "gradient_accumulation_steps", 8),
        ("sequence_len: 4096", "sequence_length", 4096),
        ("sample_packing: true", "packing", True),
        ("pad_to_sequence_len: true", "packing", True),
        ("batch_flattening: true", "padding_free", True),
        ("gradient_checkpointing: true", "checkpointing", "full"),
        ("gradient_checkpointing: offload", "checkpointing", "full"),
        ("gradient_checkpointing: offload", "activation_offloading", True),
        ("gradient_checkpointing: false", "checkpointing", "none"),
        ("attn_implementation: flash_attention_2", "attention", "flash"),
        ("attn_implementation: eager", "attention", "eager"),
        ("attn_implementation: kernels-community/flash-attn3@v1", "attention", "flash"),
        ("flash_attention: true", "attention", "flash"),
        ("sdp_attention: true", "attention", "sdpa"),
        ("xformers_attention: true", "attention", "xformers"),
        ("eager_attention: true", "attention", "eager"),
        ("bf16: true", "compute_dtype", "bfloat16"),
        ("bf16: auto", "parameter_dtype", "bfloat16"),
        ("fp16: true", "compute_dtype", "float16"),
        ("fp16: true", "parameter_dtype", "float16"),
        ("optimizer: adamw_torch", "optimizer_implementation", "foreach"),
        ("optimizer: adamw_bnb_8bit", "optimizer", "adamw_8bit"),
        ("optimizer: paged_adamw_8bit", "optimizer_paged", True),
        ("optimizer: ao_adamw_8bit", "optimizer_library", "torchao"),
        ("optimizer: muon", "optimizer", "muon"),
        ("optimizer: adopt_adamw", "optimizer", "adopt"),
        ("optimizer: q_galore_adamw8bit", "optimizer", "q_galore_adamw_8bit"),
        ("optimizer: galore_adamw", "optimizer", "galore_adamw"),
        ("chunked_cross_entropy: true", "loss", "chunked"),
        ("torch_compile: auto", "compile", True),
        ("torch_empty_cache_steps: 4", "empty_cache_steps", 4),
        ("auto_find_batch_size: true", "auto_batch_size", True),
        ("dataloader_num_workers: 4", "workers", 4),
        ("reinit_weights: true", "pretrained", False),
        ("rl: dpo", "sequences_per_sample", 2),
        ("rl: kto", "method", "kto"),
        ("reward_model: true", "model_class", "sequence_classification"),
        ("base_model: Qwen/Qwen2.5-0.5B", "model", "Qwen/Qwen2.5-0.5B"),
    ],
    ids=lambda value: str(value),
)
def test_a_key_sets_its_fact_and_the_fact_points_at_it(lines: str, fact: str, value: Any) -> None:
    name = lines.partition(":")[0]
    spec = run(lines + "\n" + "".join(line + "\n" for line in BASE.splitlines() if not line.startswith(name + ":")))
    assert spec[fact] == value
    assert spec.facts[fact].origin == WRITTEN
    assert line_of(spec, fact) == lines
    assert spec.architecture == "language_model", spec.unknown_reason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            BASE + "sample_packing: true\n" + FLASH,
            {"packing": True, "padding_free": True},
            id="a packed batch is a row",
        ),
        pytest.param(
            BASE + "sample_packing: true\nattn_implementation: sdpa\n",
            {"packing": True, "padding_free": None},
            id="but rows of their own where the kernel does not know samples apart",
        ),
        pytest.param(
            BASE + "sample_packing: true\npad_to_sequence_len: false\n", {"packing": True}, id="packing fills rows"
        ),
        pytest.param(BASE + FLASH, {"float32_parts": None}, id="FlashAttention needs all in 16 bits"),
        pytest.param(
            BASE + "attn_implementation: eager\n" + CUT, {"float32_parts": None, "loss": "fused"}, id="so does CCE"
        ),
        pytest.param(LORA, {"float32_parts": None, "frozen_dtype": "bfloat16", "lora.dtype": "float32"}, id="LoRA"),
        pytest.param(
            LORA + "peft_autocast_adapter_dtype: false\n",
            {"lora.dtype": "bfloat16", "parameter_dtype": "bfloat16"},
            id="adapters in 16 bits",
        ),
        pytest.param(
            BASE + "bf16: false\n",
            {"parameter_dtype": "float32", "autocast": False, "float32_parts": None},
            id="neither half",
        ),
        pytest.param(
            BASE + "bf16:\n", {"parameter_dtype": "float32", "autocast": False}, id="an empty value is no auto"
        ),
        pytest.param(
            BASE + "bf16: auto\nfp16: true\n", {"compute_dtype": "float16", "autocast": True}, id="fp16 beside auto"
        ),
        pytest.param(
            BASE + "bf16: true\nfp16: true\n",
            {"compute_dtype": "bfloat16", "loss_scaling": None},
            id="bf16 beside fp16",
        ),
        pytest.param(BASE + "bf16: full\n", {"parameter_dtype": "bfloat16", "autocast": False}, id="without autocast"),
        pytest.param(
            LORA,
            {
                "tuning": "lora",
                "lora.targets": "all-linear",
                "lora.r": 16,
                "lora.dropout": 0.0,
                "fused_kernels": ["lora_mlp", "lora_qkv", "lora_o", "lora_embedding"],
            },
            id="adapters are fused by themselves",
        ),
        pytest.param(
            LORA.replace("Qwen/Qwen2.5-7B", "Qwen/Qwen3-30B-A3B"),
            {"lora.targets": ["q_proj", "k_proj", "v_proj", "o_proj"]},
            id="experts are no linear layers",
        ),
        pytest.param(LORA + "lora_mlp_kernel: false\n", {"fused_kernels": None}, id="unless a key says otherwise"),
        pytest.param(LORA + "lora_mlp_kernel: true\n", {"fused_kernels": ["lora_mlp"]}, id="or only some"),
        pytest.param(LORA + "rl: dpo\n", {"fused_kernels": None, "lora.dropout": 0.0}, id="or preferences train"),
        pytest.param(
            LORA + "rl: dpo\n",
            {"log_probabilities": "rows", "likelihood_of_chosen": None},
            id="pairs are scored row by row",
        ),
        pytest.param(
            LORA + "rl: orpo\n",
            {"log_probabilities": "rows", "likelihood_of_chosen": True},
            id="ORPO asks how likely what was chosen is",
        ),
        pytest.param(LORA + "rl: simpo\n", {"likelihood_of_chosen": True}, id="SimPO does, too"),
        pytest.param(LORA + "rl: simpo\ncpo_alpha: 0\n", {"likelihood_of_chosen": None}, id="unless it weighs nothing"),
        pytest.param(LORA + "lora_dropout: 0.1\nrl: kto\n", {"lora.dropout": 0.0}, id="KTO switches dropout off"),
        pytest.param(
            LORA + "lora_dropout: 0.1\nreward_model: true\n", {"lora.dropout": 0.0}, id="reward models switch it off"
        ),
        pytest.param(LORA + "lora_dropout: 0.1\n", {"lora.dropout": 0.1}, id="dropout of adapters that learn answers"),
        pytest.param(
            LORA + "trust_remote_code: true\n", {"fused_kernels": None}, id="or the model brings its own code"
        ),
        pytest.param(
            LORA.replace("lora_target_linear: true", "lora_target_modules: [q_proj, o_proj]"),
            {"lora.targets": ["q_proj", "o_proj"]},
            id="named targets",
        ),
        pytest.param(LORA + "peft_use_dora: true\n", {"tuning": "dora"}, id="DoRA"),
        pytest.param(
            LORA + "lora_modules_to_save: [embed_tokens, lm_head]\n",
            {"lora.modules_to_save": ["embed_tokens", "lm_head"]},
            id="modules that train in full",
        ),
        pytest.param(
            QLORA,
            {
                "quantization.bits": 4,
                "quantization.kind": "nf4",
                "quantization.double": True,
                "frozen_dtype": "bfloat16",
            },
            id="QLoRA",
        ),
        pytest.param(
            QLORA + "bnb_config_kwargs: {bnb_4bit_use_double_quant: false}\n", {"quantization.double": False}, id="once"
        ),
        pytest.param(
            LORA + "load_in_8bit: true\n",
            {"quantization.bits": 8, "quantization.kind": "int8", "fused_kernels": None},
            id="8 bits",
        ),
        pytest.param(
            BASE.replace("micro_batch_size: 2", "batch_size: 8\ngradient_accumulation_steps: 4"),
            {"micro_batch_size": 2},
            id="the micro batch of a whole one",
        ),
        pytest.param(BASE + "batch_size: 8\n", {"gradient_accumulation_steps": 4}, id="the steps of a whole one"),
        pytest.param(
            BASE + "gradient_checkpointing: true\n",
            {"checkpointing_reentrant": True},
            id="the reentrant kind by default",
        ),
        pytest.param(
            BASE + "gradient_checkpointing: true\nrl: orpo\n",
            {"checkpointing_reentrant": False},
            id="not for preferences",
        ),
        pytest.param(
            BASE + "gradient_checkpointing: true\ngradient_checkpointing_kwargs: {use_reentrant: false}\n",
            {"checkpointing_reentrant": False},
            id="nor where it is stated",
        ),
        pytest.param(
            BASE + "gradient_checkpointing: true\nselective_checkpointing: true\n",
            {"checkpointing": "selective", "checkpointing_reentrant": False},
            id="selective",
        ),
        pytest.param(
            BASE + "gradient_checkpointing: true\nactivation_offloading: legacy\n",
            {"checkpointing": "full", "activation_offloading": True},
            id="hidden states in host memory",
        ),
        pytest.param(
            BASE
            + "gradient_checkpointing: true\nactivation_offloading: true\n"
            + "gradient_checkpointing_kwargs: {use_reentrant: true}\n",
            {"checkpointing": "full", "checkpointing_reentrant": False},
            id="whole models that offload are wrapped by torch's own wrapper, not reentrant",
        ),
        pytest.param(
            LORA + "gradient_checkpointing: true\nactivation_offloading: hidden_states\n",
            {"checkpointing_reentrant": False},
            id="hidden states alone go to the host without the reentrant kind",
        ),
        pytest.param(
            LORA
            + "gradient_checkpointing: true\nactivation_offloading: hidden_states\n"
            + "gradient_checkpointing_kwargs: {use_reentrant: true}\n",
            {"checkpointing_reentrant": True},
            id="unless they are told to",
        ),
        pytest.param(
            LORA + "gradient_checkpointing: true\nactivation_offloading: true\n",
            {"checkpointing_reentrant": True},
            id="adapters that offload have the reentrant kind",
        ),
        pytest.param(
            BASE + "activation_offloading: true\n", {"activation_offloading": None}, id="only with checkpointing"
        ),
        pytest.param(
            BASE + LIGER + "liger_rms_norm: true\nliger_glu_activation: true\nliger_rope: false\n",
            {"fused_kernels": ["rms_norm", "swiglu"], "loss": None},
            id="Liger's kernels one by one",
        ),
        pytest.param(
            BASE + LIGER + "liger_fused_linear_cross_entropy: true\n",
            {"fused_kernels": ["linear_cross_entropy"], "loss": "fused"},
            id="Liger's loss",
        ),
        pytest.param(
            BASE + "liger_rms_norm: true\n", {"fused_kernels": None}, id="without its plugin Liger is not there"
        ),
        pytest.param(
            LORA + CUT,
            {
                "loss": "fused",
                "fused_kernels": ["lora_mlp", "lora_qkv", "lora_o", "lora_embedding", "cut_cross_entropy"],
            },
            id="cut cross entropy",
        ),
        pytest.param(BASE + CUT + "cut_cross_entropy: false\n", {"loss": None}, id="switched off beside its plugin"),
        pytest.param(BASE + "chunked_cross_entropy: true\n", {"loss_chunks": 8}, id="8 pieces"),
        pytest.param(
            BASE + "chunked_cross_entropy: true\nchunked_cross_entropy_num_chunks: 16\n", {"loss_chunks": 16}, id="16"
        ),
        pytest.param(BASE + "rl: dpo\n", {"method": "dpo", "reference_model": "copy", "loss": None}, id="DPO"),
        pytest.param(LORA + "rl: dpo\n", {"reference_model": "adapter_off"}, id="DPO with an adapter"),
        pytest.param(QLORA + "rl: dpo\n", {"lora.dtype": "bfloat16"}, id="TRL's adapters of a quantised model"),
        pytest.param(
            BASE + "rl: ipo\nprecompute_ref_log_probs: true\n", {"reference_model": "precomputed"}, id="computed before"
        ),
        pytest.param(BASE + "rl: dpo\ndpo_use_liger_kernel: true\n", {"loss": "fused"}, id="DPO by Liger"),
        pytest.param(BASE + "rl: simpo\n", {"reference_model": "none", "sequences_per_sample": 2}, id="SimPO"),
        pytest.param(BASE + "pretraining_dataset: [{path: a}]\n", {"method": "pretraining"}, id="pre-training"),
        pytest.param(
            BASE + "reward_model: true\n", {"method": "reward", "labels": 1, "packing": True}, id="a reward model"
        ),
        pytest.param(BASE + "evals_per_epoch: 4\n", {"evaluation_batch_size": None}, id="no data, no evaluation"),
        pytest.param(BASE + "val_set_size: 0.1\n", {"evaluation_batch_size": None}, id="no time, no evaluation"),
        pytest.param(
            BASE + "val_set_size: 0.1\nevals_per_epoch: 4\n",
            {"evaluation_batch_size": 2, "evaluation_sequence_length": 1024, "evaluation_accumulates": False},
            id="evaluation by the micro batch",
        ),
        pytest.param(
            BASE + "test_datasets: [{path: a}]\neval_steps: 10\neval_batch_size: 8\neval_sequence_len: 2048\n",
            {"evaluation_batch_size": 8, "evaluation_sequence_length": 2048},
            id="evaluation by its own sizes",
        ),
        pytest.param(
            BASE + "bf16: false\nbfloat16: true\n", {"parameter_dtype": "bfloat16", "autocast": True}, id="another name"
        ),
        pytest.param(
            LORA.replace("lora_target_linear: true", "lora_target_parameters: [mlp.experts.down_proj]"),
            {"lora.targets": [], "lora.parameters": ["mlp.experts.down_proj"], "tuning": "lora"},
            id="adapters of parameters",
        ),
        pytest.param(
            BASE + "unfrozen_parameters: ['^model.embed_tokens.weight$[:32000]', 'layers.2[0-9]+.mlp']\n",
            {"freeze.patterns": ["^model\\.embed_tokens\\.weight$", "layers\\.2[0-9]+\\.mlp"], "tuning": "full"},
            id="parameters by patterns",
        ),
        pytest.param(
            LORA.replace("Qwen/Qwen2.5-7B", "tiiuae/Falcon-H1-0.5B-Base") + "load_in_8bit: true\n",
            {"quantization.bits": 8, "quantization.skipped": ["out_proj"]},
            id="a layer that stays as it is",
        ),
        pytest.param(
            LORA + "load_in_8bit: true\nquantize_moe_experts: true\n",
            {"quantization.bits": 8, "quantization.experts": True},
            id="experts in few bits",
        ),
        pytest.param(
            BASE + FLASH + "gemma4_hybrid_attn_impl: true\n", {"attention": "flash_and_sdpa"}, id="SDPA for wide heads"
        ),
        pytest.param(
            BASE + FLASH + "gemma4_hybrid_attn_impl: true\nlarge_head_attention: auto\n",
            {"attention": "flash"},
            id="a kernel of its own for wide heads",
        ),
        pytest.param(BASE + "use_ray: true\nray_num_workers: 4\n", {"device_count": 4}, id="Ray's processes"),
    ],
)
def test_keys_together(text: str, expected: dict[str, Any]) -> None:
    spec = run(text)
    assert {name: spec.get(name) for name in expected} == expected
    assert spec.architecture == "language_model", spec.unknown_reason


def test_changes_of_the_model_s_config_are_in_it() -> None:
    config = run(BASE + "model_config:\n  num_hidden_layers: 2\n")[HYPER + "config"]
    assert (config["num_hidden_layers"], config["model_type"]) == (2, "qwen2")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BASE + "rl: grpo\n", "GRPO: what generation holds"),
        (BASE + "fp8: true\n", "fp8: 8-bit"),
        (BASE + "qat: {weight_dtype: int8}\n", "qat: the copies"),
        (BASE + "unfrozen_parameters: ['model.(l+)+.*']\n", "unfrozen_parameters model.(l+)+.*: a pattern that"),
        (BASE + "tiled_mlp: true\n", "tiled_mlp: an MLP"),
        (BASE + "plugins: [axolotl.integrations.spectrum.SpectrumPlugin]\n", "plugins: spectrum: which layers"),
        (BASE + "load_in_4bit: true\n", "load_in_4bit: quantised weights do not train"),
        (LORA + "load_in_4bit: true\n", "load_in_4bit beside adapter lora"),
        (
            LORA + "lora_target_parameters: [mlp.experts.down_proj]\nuse_sonicmoe: true\n",
            "lora_target_parameters beside use_sonicmoe: what its kernels keep",
        ),
        (LORA + "quantize_moe_experts: true\n", "quantize_moe_experts: Axolotl 0.19 asks for load_in_4bit"),
        (
            LORA + "load_in_8bit: true\nquantize_moe_experts: true\nuse_scattermoe: true\n",
            "use_scattermoe: which of the experts in few bits",
        ),
        (
            LORA + "load_in_8bit: true\nquantize_moe_experts: true\nfsdp_config: {fsdp_version: 2}\n",
            "quantize_moe_experts: what loading such experts leaves",
        ),
        (BASE + "adapter: llama-adapter\n", "adapter llama-adapter: adapters of this kind"),
        (LORA.replace("lora_r: 16\n", ""), "lora_r is not stated"),
        (
            LORA.replace("lora_target_linear: true\n", ""),
            "lora_target_modules is not stated, nor is lora_target_linear",
        ),
        (
            LORA.replace("lora_target_linear: true", "lora_target_modules: 'model.(l+)+.*'"),
            "lora_target_modules model.(l+)+.*: a pattern that may take for ever",
        ),
        (BASE.replace("base_model: Qwen/Qwen2.5-7B\n", ""), "base_model is not stated"),
        (BASE.replace("Qwen/Qwen2.5-7B", "nobody/nothing"), "base_model nobody/nothing: not in the catalogue"),
        (BASE + "deepspeed: own/zero3.json\n", "deepspeed: no file own/zero3.json"),
        (BASE.replace("1024", "${oc.env:LENGTH}"), "sequence_len is not known"),
    ],
    ids=lambda value: str(value).splitlines()[-1],
)
def test_unknown_says_what_is_not_stated(text: str, reason: str) -> None:
    spec = run(text)
    assert spec.unknown_reason.startswith(reason)
    assert spec.architecture is None


@pytest.mark.parametrize(
    ("line", "kind", "suggestion"),
    [
        ("micro_batch_size: two", "wrong-type", ""),
        ("sequence_len: '1024'", "wrong-type", 1024),
        ("gradient_checkpointing: offloaded", "unknown-value", "offload"),
        ("bf16: automatic", "unknown-value", "auto"),
        ("rl: dop", "unknown-value", "dpo"),
        ("sample_paking: true", "unknown-key", "sample_packing"),
        ("gradient_accumulation_step: 4", "unknown-key", "gradient_accumulation_steps"),
    ],
)
def test_wrong_values_and_misspelt_keys_are_findings_on_their_line(line: str, kind: str, suggestion: Any) -> None:
    name = line.partition(":")[0]
    kept = [other for other in BASE.splitlines() if not other.startswith(name + ":")]
    found = objections.violations(run("\n".join([*kept, line]) + "\n"))
    assert [(one.kind, one.suggestion) for one in found] == [(kind, suggestion)]
    assert found[0].node.span.line == len(kept) + 1


# ------------------------------------------------------------------------------------------------ sharing

FSDP = "fsdp:\n  - full_shard\n  - auto_wrap\nfsdp_config:\n  fsdp_offload_params: true\n"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(FSDP, {"parallelism.strategy": "fsdp1", "parallelism.cpu_offload": True}, id="the first version"),
        pytest.param(
            FSDP + "fsdp_version: 2\n", {"parallelism.strategy": "fsdp2", "parameter_dtype": "float32"}, id="the second"
        ),
        pytest.param(
            "fsdp_config:\n  fsdp_version: 2\n  transformer_layer_cls_to_wrap: Qwen2DecoderLayer\n"
            "  reshard_after_forward: false\n  state_dict_type: FULL_STATE_DICT\n",
            {
                "parallelism.strategy": "fsdp2",
                "parallelism.wrap": ["Qwen2DecoderLayer"],
                "parallelism.reshard_after_forward": False,
                "saves_full_weights": True,
            },
            id="settings alone turn it on",
        ),
        pytest.param(
            "fsdp_config:\n  auto_wrap_policy: SIZE_BASED_WRAP\n  min_num_params: 1000000\n",
            {"parallelism.strategy": "fsdp1", "parallelism.wrap_elements": 1000000},
            id="units by size",
        ),
        pytest.param(
            "fsdp_config:\n  fsdp_version: 2\n  activation_checkpointing: true\n",
            {"checkpointing": "full"},
            id="checkpointing by FSDP",
        ),
        pytest.param(
            "fsdp_version: 2\nfsdp_config: {reshard_after_forward: true}\nfp32_norms: true\n",
            {"float32_parts": ["norms"]},
            id="norms in float32",
        ),
        pytest.param(
            "tensor_parallel_size: 2\ncontext_parallel_size: 4\ndp_shard_size: 2\n",
            {"parallelism.tensor": 2, "parallelism.context": 4, "parallelism.shard": 2, "device_count": 16},
            id="degrees, which make all devices of the run",
        ),
        pytest.param("sequence_parallel_degree: 4\n", {"parallelism.context": 4}, id="an older name"),
        pytest.param(
            "deepspeed: deepspeed_configs/zero3_bf16_cpuoffload_all.json\n",
            {
                "parallelism.strategy": "zero",
                "parallelism.zero_stage": 3,
                "parallelism.offload_optimizer": True,
                "parallelism.offload_parameters": True,
                "parallelism.reduce_bucket_elements": 3584 * 3584,
                "parameter_dtype": "bfloat16",
                "master_weights": True,
            },
            id="a DeepSpeed file that Axolotl ships",
        ),
        pytest.param(
            "deepspeed: deepspeed_configs/zero1.json\n",
            {"parallelism.zero_stage": 1, "parallelism.offload_optimizer": False},
            id="another one",
        ),
        pytest.param(
            "deepspeed: {zero_optimization: {stage: 2}}\n",
            {"parallelism.zero_stage": 2},
            id="DeepSpeed's config itself",
        ),
    ],
)
def test_how_a_run_is_shared(lines: str, expected: dict[str, Any]) -> None:
    spec = run(BASE + lines)
    assert {name: spec.get(name) for name in expected} == expected
    assert "language_model" in (spec.architecture, spec.architecture_on_devices), spec.unknown_reason


def test_a_file_that_is_there_goes_before_the_one_that_axolotl_ships(tmp_path: Path) -> None:
    own = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
    text = BASE + "deepspeed: deepspeed_configs/zero3.json\n"
    root = written(tmp_path, {"a.yaml": text, "deepspeed_configs/zero3.json": json.dumps(own)})
    (spec,) = registry.specs(load(str(root / "a.yaml")))
    assert (spec["parallelism.zero_stage"], spec.missing) == (2, ())
    shipped = run(text)
    assert (shipped["parallelism.zero_stage"], shipped.missing) == (3, ())
    assert line_of(shipped, "parallelism.zero_stage") == "deepspeed: deepspeed_configs/zero3.json"
    assert shipped.facts["parallelism.zero_stage"].reason == "as Axolotl 0.19 ships deepspeed_configs/zero3.json"
    assert spell(shipped, "parallelism.zero_stage", 2) == []


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        pytest.param(
            "axolotl train a.yaml --deepspeed ds.json --micro-batch-size=1 --num-processes 4",
            {"parallelism.zero_stage": 2, "micro_batch_size": 1, "device_count": 4},
            id="options go before the file",
        ),
        pytest.param(
            "axolotl train a.yaml --launcher torchrun -- --nproc_per_node=2",
            {"device_count": 2, "parallelism.strategy": "ddp"},
            id="what is handed to the launcher",
        ),
        pytest.param(
            "accelerate launch --num_processes 8 -m axolotl.cli.train a.yaml --sequence_len 256",
            {"device_count": 8, "parallelism.strategy": "ddp", "sequence_length": 256},
            id="accelerate",
        ),
        pytest.param(
            "torchrun --nproc_per_node 4 -m axolotl.cli.train a.yaml",
            {"device_count": 4, "parallelism.strategy": "ddp"},
            id="torchrun",
        ),
        pytest.param("axolotl train a.yaml", {"device_count": None}, id="nothing says how many"),
    ],
)
def test_commands(command: str, expected: dict[str, Any], tmp_path: Path) -> None:
    files = {"run.sh": command + "\n", "a.yaml": BASE, "ds.json": '{"zero_optimization": {"stage": 2}}'}
    (spec,) = registry.specs(load(str(written(tmp_path, files) / "run.sh")))
    assert {name: spec.get(name) for name in expected} == expected


def test_a_config_that_is_not_there_is_named(tmp_path: Path) -> None:
    root = written(tmp_path, {"run.sh": "axolotl train nowhere.yaml\n"})
    (spec,) = registry.specs(load(str(root / "run.sh")))
    assert (spec.family, spec.unknown_reason) == ("axolotl", "no file nowhere.yaml in this repository")


# ------------------------------------------------------------------------------------------------ spelling


@pytest.mark.parametrize(
    ("text", "fact", "value", "line"),
    [
        (BASE, "micro_batch_size", 1, "micro_batch_size: 1"),
        (BASE, "gradient_accumulation_steps", 8, "gradient_accumulation_steps: 8"),
        (BASE, "sequence_length", 512, "sequence_len: 512"),
        (BASE, "checkpointing", "full", "gradient_checkpointing: true"),
        (BASE, "attention", "flash", "attn_implementation: flash_attention_2"),
        (BASE, "optimizer", "adamw_8bit", "optimizer: adamw_bnb_8bit"),
        (BASE, "optimizer", "adamw_4bit", "optimizer: ao_adamw_4bit"),
        (BASE, "optimizer_implementation", "foreach", "optimizer: adamw_torch"),
        (BASE, "loss", "chunked", "chunked_cross_entropy: true"),
        (BASE + LIGER, "loss", "fused", "liger_fused_linear_cross_entropy: true"),
        (BASE, "packing", True, "sample_packing: true"),
        (BASE, "compute_dtype", "float16", "fp16: true"),
        (BASE + "bf16: false\n", "compute_dtype", "bfloat16", "bf16: true"),
        (LORA, "quantization.bits", 4, "adapter: qlora"),
        (LORA, "quantization.bits", 8, "load_in_8bit: true"),
        (LORA, "lora.r", 8, "lora_r: 8"),
        (BASE + "gradient_checkpointing: true\n", "activation_offloading", True, "activation_offloading: true"),
        (BASE + "val_set_size: 0.1\neval_steps: 5\n", "evaluation_batch_size", 1, "eval_batch_size: 1"),
    ],
    ids=lambda value: str(value).splitlines()[-1],
)
def test_a_fact_is_written_in_axolotl_s_keys(text: str, fact: str, value: Any, line: str) -> None:
    after = apply_edits(text, spell(run(text), fact, value))
    assert line in after.splitlines()
    spec = run(after)
    assert spec[fact] == value
    assert spec.architecture == "language_model", spec.unknown_reason


def test_a_run_that_trains_all_weights_becomes_qlora_in_one_change() -> None:
    both: dict[Name, Any] = {"tuning": "lora", "quantization.bits": 4}
    [(names, edits)] = spell_each(run(BASE), both)
    assert set(names) == set(both)
    after = apply_edits(BASE, edits)
    assert [line for line in after.splitlines() if line.startswith("adapter")] == ["adapter: qlora"]
    spec = run(after)
    assert {name: spec[name] for name in both} == both
    assert spec.architecture == "language_model", spec.unknown_reason


def test_what_axolotl_has_no_key_for_is_left_alone() -> None:
    assert spell(run(BASE + "rl: dpo\n"), "packing", True) == []
    assert spell(run(BASE), "parameter_dtype", "float32") == []


# ------------------------------------------------------------------------------------------------ real configs


def test_real_configs_are_recognised_and_say_what_they_lack() -> None:
    folder = corpus_folder()
    files = [*(folder / "axolotl").iterdir(), *(folder / "misc_nasty").glob("axolotl*")]
    assert files
    for path in files:
        specs = registry.specs(load(str(path)))
        assert [spec.family for spec in specs] == ["axolotl"], path
        assert (specs[0].architecture is None) == bool(specs[0].unknown_reason), path


def test_no_other_real_config_is_claimed() -> None:
    folder = corpus_folder()
    claimed = [
        path.name
        for path in sorted(folder.rglob("*.*"))
        if path.parent.name != "axolotl" and not path.name.startswith("axolotl")
        if path.suffix in (".yaml", ".yml", ".sh")
        if any(spec.family == "axolotl" for spec in registry.specs(load(str(path))))
    ]
    assert claimed == []


@pytest.mark.parametrize(
    ("lines", "images", "size"),
    [
        pytest.param("", 0, None, id="text alone"),
        pytest.param("processor_type: AutoProcessor\n", 1, None, id="a processor reads images"),
        pytest.param("processor_type: AutoProcessor\nimage_size: 512\n", 1, 512, id="square ones"),
        pytest.param("processor_type: AutoProcessor\nimage_size: [512, 256]\n", 1, [512, 256], id="of two sides"),
    ],
)
def test_samples_have_images_where_there_is_a_processor(lines: str, images: int, size: Any) -> None:
    spec = run(BASE.replace("Qwen/Qwen2.5-7B", "google/gemma-3-4b-it") + lines)
    assert (spec["images_per_sample"], spec.get("image_size")) == (images, size)
    assert spec.architecture == "language_model", spec.unknown_reason


@pytest.mark.parametrize(
    ("lines", "targets"),
    [
        pytest.param("lora_target_modules: 'model.layers.[\\d]+.mlp.(up|down)_proj'", 2 * 28, id="two in every layer"),
        pytest.param("lora_target_modules: 'model.layers.(0|1).self_attn.q_proj'", 2, id="two layers"),
        pytest.param("lora_target_linear: true\nlora_target_modules: 'x.*'", 7 * 28, id="all linear layers go before"),
    ],
)
def test_a_pattern_means_modules_by_their_whole_names(lines: str, targets: int) -> None:
    spec = run(LORA.replace("lora_target_linear: true", lines))
    assert spec.architecture == "language_model", spec.unknown_reason
    made = record(spec)
    adapters = {label.module for label in made.tape.labels if label.module.endswith("lora_A")}
    assert len(adapters) == targets


@pytest.mark.parametrize("model", ["NousResearch/Llama-3.2-1B", "mistralai/Ministral-3-3B-Reasoning-2512"])
def test_cut_cross_entropy_makes_no_logits_in_evaluation_either(model: str) -> None:
    text = LORA.replace("Qwen/Qwen2.5-7B", model) + "val_set_size: 0.1\nevals_per_epoch: 4\n"
    whole, cut = run(text), run(text + CUT)
    assert (whole.get("evaluation_loss"), cut["evaluation_loss"]) == (None, "as_trained")
    peaks = [estimate_spec(spec, "").phases["evaluation"] for spec in (whole, cut)]
    logits = 2 * 2 * cut["sequence_length"] * cut["vocabulary_size"]
    assert peaks[0] - peaks[1] > logits


@pytest.mark.parametrize(("model", "there"), [("Qwen/Qwen3.5-2B", True), ("Qwen/Qwen2.5-7B", False)])
def test_the_kernels_of_the_gated_delta_rule_come_with_axolotl(model: str, there: bool) -> None:
    kernels = run(BASE.replace("Qwen/Qwen2.5-7B", model)).get("fused_kernels") or ()
    assert ("gated_delta_rule" in kernels) is there
