"""Family llamafactory: LLaMA-Factory's YAML, JSON and command lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import memlint
from memlint.dialects import objections, registry
from memlint.dialects.spelling import spell
from memlint.documents.load import load
from memlint.facts.spec import ASSUMED, DEFAULT, WRITTEN, TrainingSpec
from memlint.fixes.edits import apply_edits
from tests.dialects.language_models import line_of, run, runs, written
from tests.material import corpus_folder

HYPER = "hyperparameters."
MODEL = "model_name_or_path: Qwen/Qwen2.5-7B-Instruct\n"
SFT = MODEL + "stage: sft\ndo_train: true\nfinetuning_type: lora\ntemplate: qwen\ncutoff_len: 1024\nbf16: true\n"
FULL = SFT.replace("lora", "full")
OPTIONS = "--model_name_or_path Qwen/Qwen2.5-7B-Instruct --do_train --bf16"


# ------------------------------------------------------------------------------------------------ recognising


@pytest.mark.parametrize(
    ("path", "text", "families"),
    [
        pytest.param("a.yaml", SFT, ["llamafactory"], id="a training config"),
        pytest.param(
            "a.json",
            '{"finetuning_type": "lora", "stage": "sft", "do_train": true}',
            ["llamafactory"],
            id="JSON as well",
        ),
        pytest.param(
            "a.yaml",
            SFT + "per_device_train_batch_size: 1\nbeta: 0.1\n",
            ["llamafactory"],
            id="with the Trainer's keys",
        ),
        pytest.param("a.yaml", MODEL + "template: qwen\nfinetuning_type: lora\nexport_dir: out\n", [], id="a merge"),
        pytest.param("a.yaml", MODEL + "template: qwen\ninfer_backend: vllm\nfinetuning_type: lora\n", [], id="a chat"),
        pytest.param(
            "a.yaml",
            SFT.replace("do_train: true", "do_predict: true"),
            [],
            id="a config that predicts and does not train",
        ),
        pytest.param("a.yaml", SFT + "do_predict: true\n", ["llamafactory"], id="one that trains and then predicts"),
        pytest.param("a.yaml", "template: a\nlearning_rate: 1\n", [], id="a template and a learning rate say nothing"),
        pytest.param("a.sh", f"llamafactory-cli train --stage sft {OPTIONS}", ["llamafactory"], id="the program"),
        pytest.param("a.sh", "lmf train --do_train --stage sft", ["llamafactory"], id="its short name"),
        pytest.param("a.sh", "deepspeed src/train_bash.py --do_train", ["llamafactory"], id="its older script"),
        pytest.param(
            "a.sh",
            f"torchrun --nproc_per_node 2 src/train.py --stage sft --finetuning_type full {OPTIONS}",
            ["llamafactory"],
            id="a script by its options",
        ),
        pytest.param(
            "a.sh", "llamafactory-cli chat --finetuning_type lora --template a", [], id="a chat trains nothing"
        ),
        pytest.param("a.sh", "llamafactory-cli webui", [], id="nor does the web page"),
    ],
)
def test_recognition(path: str, text: str, families: list[str]) -> None:
    assert [spec.family for spec in runs(text + "\n", path)] == families


# ------------------------------------------------------------------------------------------------ defaults and keys


def test_what_is_not_written_is_llama_factory_s_default() -> None:
    spec = run(MODEL + "stage: sft\ndo_train: true\ntemplate: qwen\n")
    expected = {
        "micro_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "sequence_length": 2048,
        "tuning": "lora",
        "lora.r": 8,
        "lora.targets": "all-linear",
        "checkpointing": "full",
        "checkpointing_reentrant": True,
        "attention": "sdpa",
        "packing": False,
        "optimizer": "adamw",
        "autocast": False,
        "frozen_dtype": "bfloat16",
        "lora.dtype": "float32",
    }
    assert {name: spec[name] for name in expected} == expected
    assert {spec.facts[name].origin for name in expected} == {DEFAULT}
    for name in ("sequence_length", "lora.r", "checkpointing", "checkpointing_reentrant"):
        assert spec.facts[name].reason.startswith("LLaMA-Factory 0.9")
    assert (spec.architecture, spec.missing) == ("language_model", ())


@pytest.mark.parametrize(
    ("lines", "fact", "value"),
    [
        ("cutoff_len: 4096", "sequence_length", 4096),
        ("per_device_train_batch_size: 2", "micro_batch_size", 2),
        ("gradient_accumulation_steps: 8", "gradient_accumulation_steps", 8),
        ("disable_gradient_checkpointing: true", "checkpointing", "none"),
        ("disable_gradient_checkpointing: false", "checkpointing", "full"),
        ("use_reentrant_gc: false", "checkpointing_reentrant", False),
        ("use_unsloth_gc: true", "activation_offloading", True),
        ("flash_attn: fa2", "attention", "flash"),
        ("flash_attn: disabled", "attention", "eager"),
        ("flash_attn: sdpa", "attention", "sdpa"),
        ("flash_attn: auto", "attention", "sdpa"),
        ("packing: true", "packing", True),
        ("neat_packing: true", "packing", True),
        ("stage: pt", "method", "pretraining"),
        ("stage: dpo", "sequences_per_sample", 2),
        ("enable_liger_kernel: true", "loss", "fused"),
        ("enable_liger_kernel: true", "fused_kernels", ["rotary", "rms_norm", "swiglu", "linear_cross_entropy"]),
        ("finetuning_type: lora", "tuning", "lora"),
        ("finetuning_type: full", "tuning", "full"),
        ("finetuning_type: freeze", "tuning", "freeze"),
        ("finetuning_type: oft", "tuning", "oft"),
        ("lora_rank: 64", "lora.r", 64),
        ("lora_dropout: 0.1", "lora.dropout", 0.1),
        ("lora_target: q_proj,v_proj", "lora.targets", ["q_proj", "v_proj"]),
        ("lora_target: all", "lora.targets", "all-linear"),
        ("additional_target: embed_tokens,lm_head", "lora.modules_to_save", ["embed_tokens", "lm_head"]),
        ("use_dora: true", "tuning", "dora"),
        ("resize_vocab: true", "lora.modules_to_save", ["embed_tokens", "lm_head"]),
        ("quantization_bit: 4", "quantization.bits", 4),
        ("quantization_bit: 8", "quantization.kind", "int8"),
        ("upcast_layernorm: true", "float32_parts", ["norms"]),
        ("bf16: true", "compute_dtype", "bfloat16"),
        ("optim: adamw_bnb_8bit", "optimizer", "adamw_8bit"),
        ("use_muon: true", "optimizer", "muon"),
        ("use_adam_mini: true", "optimizer", "adam_mini"),
        ("dataloader_num_workers: 4", "workers", 4),
        ("train_from_scratch: true", "pretrained", False),
        ("model_name_or_path: Qwen/Qwen2.5-0.5B", "model", "Qwen/Qwen2.5-0.5B"),
    ],
    ids=lambda value: str(value),
)
def test_a_key_sets_its_fact_and_the_fact_points_at_it(lines: str, fact: str, value: Any) -> None:
    name = lines.partition(":")[0]
    spec = run(lines + "\n" + "".join(line + "\n" for line in SFT.splitlines() if not line.startswith(name + ":")))
    assert spec[fact] == value
    assert spec.facts[fact].origin == WRITTEN
    assert line_of(spec, fact) == lines
    assert spec.architecture == "language_model", spec.unknown_reason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            FULL,
            {"parameter_dtype": "float32", "frozen_dtype": "float32", "compute_dtype": "bfloat16", "autocast": True},
            id="what trains is cast to float32",
        ),
        pytest.param(
            FULL.replace("bf16", "pure_bf16"),
            {"parameter_dtype": "bfloat16", "compute_dtype": "bfloat16", "autocast": False},
            id="unless it stays in the checkpoint's dtype",
        ),
        pytest.param(
            SFT.replace("lora", "freeze") + "freeze_trainable_layers: 4\nfreeze_trainable_modules: mlp\n",
            {"parameter_dtype": "float32", "frozen_dtype": "bfloat16", "freeze.layers": 4, "freeze.modules": ["mlp"]},
            id="of frozen layers only what trains",
        ),
        pytest.param(FULL, {"lora.r": None, "freeze.layers": None, "oft.rank": None}, id="full tuning has no adapters"),
        pytest.param(
            SFT + "quantization_bit: 4\n",
            {"quantization.kind": "nf4", "quantization.double": True, "frozen_dtype": "bfloat16"},
            id="QLoRA",
        ),
        pytest.param(
            SFT + "quantization_bit: 4\ndouble_quantization: false\nquantization_type: fp4\n",
            {"quantization.kind": "fp4", "quantization.double": False},
            id="QLoRA in another code",
        ),
        pytest.param(
            SFT + "quantization_bit: 3\nquantization_method: hqq\n",
            {"quantization.bits": 3, "quantization.kind": "hqq", "quantization.double": None},
            id="another library quantises",
        ),
        pytest.param(
            SFT + "quantization_bit: 4\nquantization_method: bitsandbytes\n",
            {"quantization.bits": 4, "quantization.kind": "nf4"},
            id="bitsandbytes in the words of older releases",
        ),
        pytest.param(
            SFT.replace("sft", "pt"), {"method": "pretraining", "packing": True}, id="pre-training packs by itself"
        ),
        pytest.param(SFT.replace("sft", "pt") + "packing: false\n", {"packing": False}, id="unless it is told not to"),
        pytest.param(
            SFT.replace("sft", "dpo") + "enable_liger_kernel: true\n",
            {"fused_kernels": ["rotary", "rms_norm", "swiglu", "cross_entropy"], "loss": None},
            id="preference stages need logits, so Liger fuses less",
        ),
        pytest.param(
            SFT + "enable_liger_kernel: true\nuse_dft_loss: true\n", {"loss": "full"}, id="so does another loss"
        ),
        pytest.param(
            SFT.replace("sft", "dpo"),
            {"method": "dpo", "reference_model": "adapter_off", "packing": None, "lora.dropout": 0.0},
            id="DPO with adapters",
        ),
        pytest.param(
            FULL.replace("sft", "dpo"),
            {"reference_model": "copy", "reference_dtype": "bfloat16", "parameter_dtype": "float32"},
            id="DPO without has a copy in the checkpoint's dtype",
        ),
        pytest.param(
            FULL.replace("sft", "dpo") + "pref_loss: orpo\n",
            {"method": "orpo", "reference_model": "none", "sequences_per_sample": 2},
            id="ORPO needs no reference",
        ),
        pytest.param(
            SFT.replace("sft", "dpo") + "pref_loss: simpo\nlora_dropout: 0.1\n",
            {"method": "simpo", "lora.dropout": 0.0},
            id="SimPO's trainer is DPO's, which switches dropout off",
        ),
        pytest.param(SFT + "lora_dropout: 0.1\n", {"lora.dropout": 0.1}, id="fine-tuning leaves dropout on"),
        pytest.param(
            SFT.replace("Qwen/Qwen2.5-7B", "allenai/Olmo-3-7B") + "enable_liger_kernel: true\n",
            {"fused_kernels": None, "loss": None},
            id="kernels of Liger's that LLaMA-Factory does not ask for",
        ),
        pytest.param(
            SFT.replace("sft", "dpo") + "ref_model: Qwen/Qwen2.5-0.5B\nref_model_quantization_bit: 4\n",
            {
                "reference_model": "none",
                "helper_models": [{"model": "Qwen/Qwen2.5-0.5B", "dtype": "bfloat16", "bits": 4}],
            },
            id="another model is the reference",
        ),
        pytest.param(FULL + "use_asft_loss: true\n", {"reference_model": "copy"}, id="a loss that has a reference"),
        pytest.param(
            FULL + "use_galore: true\ngalore_rank: 128\ngalore_layerwise: true\noptim: adamw_8bit\n",
            {
                "optimizer": "galore_adamw_8bit",
                "optimizer_library": "galore_torch",
                "optimizer_rank": 128,
                "optimizer_targets": "inner-linear",
                "optimizer_in_backward": True,
            },
            id="GaLore",
        ),
        pytest.param(
            FULL + "use_apollo: true\napollo_target: q_proj,k_proj\n",
            {"optimizer": "apollo_adamw", "optimizer_rank": 16, "optimizer_targets": ["q_proj", "k_proj"]},
            id="APOLLO",
        ),
        pytest.param(
            SFT.replace("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-VL-7B-Instruct") + "image_max_pixels: 262144\n",
            {
                "model_class": "vision_language",
                "image_size": 512,
                "images_per_sample": 1,
                "frozen_parts": ["vision_tower", "projector"],
                "tower_checkpointing": "trained",
            },
            id="images of a stated size",
        ),
        pytest.param(
            SFT.replace("Qwen/Qwen2.5-7B-Instruct", "google/gemma-3-4b-it"),
            {"model_class": "vision_language", "image_size": 768},
            id="images of LLaMA-Factory's own size",
        ),
        pytest.param(
            SFT.replace("sft", "rm"),
            {"model_class": "value_head", "sequences_per_sample": 2, "reference_model": "none"},
            id="a reward model has a value for each token",
        ),
        pytest.param(
            SFT.replace("sft", "kto"),
            {"method": "kto", "sequences_per_sample": None, "reference_model": "adapter_off"},
            id="KTO asks a reference about single answers",
        ),
        pytest.param(
            SFT + "use_unsloth: true\nquantization_bit: 4\nper_device_train_batch_size: 2\n",
            {"loss": "in_forward", "activation_offloading": True, "quantization.double": True},
            id="Unsloth's kernels beside an adapter",
        ),
        pytest.param(
            FULL + "use_badam: true\n",
            {
                "optimizer": "adamw",
                "parameter_dtype": "bfloat16",
                "tuning": "freeze",
                "freeze.layers": -1,
                "master_weights": True,
            },
            id="BAdam trains one layer at a time, on copies in float32",
        ),
        pytest.param(
            SFT + "disable_gradient_checkpointing: true\ngradient_checkpointing: true\n",
            {"checkpointing": "full"},
            id="the Trainer's switch turns checkpointing on again",
        ),
        pytest.param(
            SFT + "gradient_checkpointing: true\ngradient_checkpointing_kwargs: {use_reentrant: false}\n",
            {"checkpointing_reentrant": False},
            id="and says how it runs",
        ),
        pytest.param(
            SFT + "val_size: 0.1\neval_strategy: steps\nper_device_eval_batch_size: 2\n",
            {"evaluation_batch_size": 2, "evaluation_sequence_length": 1024},
            id="evaluation",
        ),
        pytest.param(SFT, {"evaluation_batch_size": None}, id="no evaluation by default"),
        pytest.param(
            SFT + "deepspeed: {zero_optimization: {stage: 2}, bf16: {enabled: auto}}\n",
            {"parameter_dtype": "bfloat16", "master_weights": True, "parallelism.zero_stage": 2},
            id="DeepSpeed casts what LLaMA-Factory had cast",
        ),
    ],
)
def test_keys_together(text: str, expected: dict[str, Any]) -> None:
    spec = run(text)
    assert {name: spec.get(name) for name in expected} == expected
    assert "language_model" in (spec.architecture, spec.architecture_on_devices), spec.unknown_reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (SFT.replace("do_train: true\n", ""), "do_train is not true: the command trains nothing"),
        (SFT.replace("sft", "ppo"), "PPO: its value head"),
        (FULL + "use_badam: true\nbadam_mode: ratio\n", "badam_mode ratio: BAdam by a share"),
        (SFT + "use_badam: true\n", "use_badam beside finetuning_type lora"),
        (FULL + "use_unsloth: true\n", "use_unsloth: which of Unsloth's kernels"),
        (SFT + "fp8: true\n", "fp8: 8-bit"),
        (SFT + "mixture_of_depths: convert\n", "mixture_of_depths: which tokens"),
        (FULL + "quantization_bit: 4\n", "quantization_bit: quantised weights do not train"),
        (SFT + "adapter_name_or_path: saves/a,saves/b\n", "adapter_name_or_path saves/b: the adapter"),
        (SFT.replace(MODEL, ""), "model_name_or_path is not stated"),
        (SFT.replace("Qwen/Qwen2.5-7B-Instruct", "nobody/nothing"), "model_name_or_path nobody/nothing: not in"),
        (SFT + "deepspeed: nowhere.json\n", "deepspeed: no file nowhere.json"),
        (SFT + "use_distributed_optimizer: true\n", "use_distributed_optimizer: Megatron's own model"),
        (SFT + "pipeline_model_parallel_size: 1\n", "pipeline_model_parallel_size: Megatron's own model"),
        (SFT.replace("1024", "${LENGTH}"), "cutoff_len is not known"),
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
        ("stage: stf", "unknown-value", "sft"),
        ("finetuning_type: Lora", "unknown-value", "lora"),
        ("flash_attn: fa1", "unknown-value", "fa3"),
        ("lora_rank: '8'", "wrong-type", 8),
        ("quantization_bit: 7", "unknown-value", ""),
        ("cuttoff_len: 4096", "unknown-key", "cutoff_len"),
        ("disable_gradient_checkpointing: 'True'", "wrong-type", True),
    ],
)
def test_wrong_values_and_misspelt_keys_are_findings_on_their_line(line: str, kind: str, suggestion: Any) -> None:
    name = line.partition(":")[0]
    kept = [other for other in SFT.splitlines() if not other.startswith((name + ":", "cutoff_len"))]
    found = objections.violations(run("\n".join([*kept, line]) + "\n"))
    assert [one.kind for one in found] == [kind]
    assert found[0].node.span.line == len(kept) + 1
    if suggestion != "fa3":
        assert found[0].suggestion == suggestion


def test_gpt_oss_and_gemma_2_get_the_kernel_that_llama_factory_gives_them() -> None:
    oss = run(SFT.replace("Qwen/Qwen2.5-7B-Instruct", "openai/gpt-oss-20b") + "flash_attn: disabled\n")
    gemma = run(SFT.replace("Qwen/Qwen2.5-7B-Instruct", "google/gemma-2-2b"))
    assert (oss["attention"], oss.facts["attention"].origin) == ("flash", DEFAULT)
    assert (gemma["attention"], gemma.facts["attention"].origin) == ("flash", ASSUMED)
    stated = run(SFT.replace("Qwen/Qwen2.5-7B-Instruct", "google/gemma-2-2b") + "flash_attn: sdpa\n")
    assert stated["attention"] == "sdpa"


def test_of_a_vision_language_model_the_language_model_trains(tmp_path: Path) -> None:
    config = {"model_type": "some_vl", "vision_config": {}, "text_config": {"model_type": "qwen2", "vocab_size": 8}}
    root = written(
        tmp_path, {"vl/config.json": json.dumps(config), "a.yaml": SFT.replace("Qwen/Qwen2.5-7B-Instruct", "./vl")}
    )

    def at(lines: str) -> TrainingSpec:
        path = root / "b.yaml"
        path.write_text((root / "a.yaml").read_text() + lines)
        (spec,) = registry.specs(load(str(path)))
        return spec

    spec = at("")
    assert (spec["model_class"], spec["frozen_parts"]) == ("vision_language", ["vision_tower", "projector"])
    assert spec.facts["frozen_parts"].origin == DEFAULT
    assert at("freeze_vision_tower: false\n")["frozen_parts"] == ["projector"]
    pixels = at("image_max_pixels: 262144\nvideo_maxlen: 8\n")
    assert (pixels[HYPER + "image_max_pixels"], pixels[HYPER + "video_maxlen"]) == (262144, 8)
    assert spec[HYPER + "image_max_pixels"] == 768 * 768


def test_an_adapter_that_training_goes_on_with_states_its_rank(tmp_path: Path) -> None:
    adapter = {"r": 64, "target_modules": ["q_proj"], "use_dora": False, "lora_alpha": 128, "modules_to_save": None}
    root = written(
        tmp_path,
        {
            "saves/sft/adapter_config.json": json.dumps(adapter, indent=1),
            "dpo.yaml": SFT.replace("sft", "dpo") + "adapter_name_or_path: saves/sft\n",
            "new.yaml": SFT + "adapter_name_or_path: saves/sft\ncreate_new_adapter: true\n",
        },
    )
    (spec,) = registry.specs(load(str(root / "dpo.yaml")))
    assert (spec["lora.r"], spec["lora.targets"]) == (64, ["q_proj"])
    assert line_of(spec, "lora.r") == '"r": 64,'
    assert spec.architecture == "language_model", spec.unknown_reason
    (spec,) = registry.specs(load(str(root / "new.yaml")))
    assert (spec["lora.r"], spec["lora.targets"]) == (8, "all-linear")


@pytest.mark.parametrize(
    ("stored", "bits", "kind"),
    [
        pytest.param({"quant_method": "gptq", "bits": 4}, 4, "gptq", id="GPTQ"),
        pytest.param({"quant_method": "awq", "bits": 4}, 4, "awq", id="AWQ"),
        pytest.param(
            {"quant_method": "aqlm", "nbits_per_codebook": 16, "num_codebooks": 1, "in_group_size": 8},
            2,
            "aqlm",
            id="AQLM",
        ),
        pytest.param(
            {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 3}}}, 3, "hqq", id="HQQ"
        ),
        pytest.param(
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, 4, "nf4", id="NF4"
        ),
        pytest.param({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8, "int8", id="8 bits"),
        pytest.param({"quant_method": "fp8"}, None, None, id="8-bit floats are unpacked for training"),
    ],
)
def test_a_checkpoint_that_is_quantised_stays_so(
    stored: dict[str, Any], bits: int | None, kind: str | None, tmp_path: Path
) -> None:
    config = {"model_type": "qwen2", "hidden_size": 64, "quantization_config": stored, "dtype": "float16"}
    root = written(
        tmp_path, {"m/config.json": json.dumps(config), "a.yaml": SFT.replace("Qwen/Qwen2.5-7B-Instruct", "./m")}
    )
    (spec,) = registry.specs(load(str(root / "a.yaml")))
    assert (spec.get("quantization.bits"), spec.get("quantization.kind")) == (bits, kind)
    if bits is not None:
        assert line_of(spec, "quantization.bits") == "model_name_or_path: ./m"
        assert spec["frozen_dtype"] == "float16"


# ------------------------------------------------------------------------------------------------ launching

DEEPSPEED = '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}'


def test_a_command_a_config_and_a_deepspeed_file_are_one_run(tmp_path: Path) -> None:
    root = written(
        tmp_path,
        {
            "run.sh": "FORCE_TORCHRUN=1 NNODES=2 NPROC_PER_NODE=8 llamafactory-cli train conf/a.yaml \\\n"
            "  cutoff_len=512 per_device_train_batch_size=2\n",
            "conf/a.yaml": FULL + "deepspeed: examples/deepspeed/z3.json\n",
            "examples/deepspeed/z3.json": DEEPSPEED,
        },
    )
    (spec,) = registry.specs(load(str(root / "run.sh")))
    expected = {
        "micro_batch_size": 2,
        "sequence_length": 512,
        "device_count": 16,
        "parallelism.zero_stage": 3,
        "parameter_dtype": "bfloat16",
        "allocator_conf": "expandable_segments:True",
    }
    assert {name: spec.get(name) for name in expected} == expected
    assert sorted(Path(name).name for name in spec.document.sources) == ["a.yaml", "run.sh", "z3.json"]
    assert spec.architecture == "language_model", spec.unknown_reason
    edits = spell(spec, "sequence_length", 256)
    assert [(Path(edit.span.path).name, edit.text) for edit in edits] == [("run.sh", "256")]


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        pytest.param(
            "FORCE_TORCHRUN=1 NPROC_PER_NODE=4",
            {"device_count": 4, "parallelism.strategy": "ddp"},
            id="processes by a variable",
        ),
        pytest.param(
            "CUDA_VISIBLE_DEVICES=0,1",
            {"device_count": 2, "parallelism.strategy": "ddp", "allocator_conf": "expandable_segments:True"},
            id="one process for each visible device",
        ),
        pytest.param("CUDA_VISIBLE_DEVICES=0", {"device_count": 1, "allocator_conf": None}, id="one device"),
        pytest.param("OPTIM_TORCH=0 CUDA_VISIBLE_DEVICES=0,1", {"allocator_conf": None}, id="the allocator as it is"),
        pytest.param("", {"device_count": None, "parallelism.strategy": None}, id="nothing says how many"),
    ],
)
def test_llama_factory_starts_its_processes_itself(prefix: str, expected: dict[str, Any], tmp_path: Path) -> None:
    root = written(tmp_path, {"run.sh": f"{prefix} llamafactory-cli train a.yaml\n".lstrip(), "a.yaml": SFT})
    (spec,) = registry.specs(load(str(root / "run.sh")))
    assert {name: spec.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("file", "stage", "offloads"),
    [
        pytest.param("examples/deepspeed/ds_z2_config.json", 2, False, id="stage 2"),
        pytest.param("examples/deepspeed/ds_z3_config.json", 3, False, id="stage 3"),
        pytest.param(
            "/root/LLaMA-Factory/examples/deepspeed/ds_z3_offload_config.json", 3, True, id="by its whole path"
        ),
    ],
)
def test_a_file_that_llama_factory_ships_is_known_without_its_checkout(file: str, stage: int, offloads: bool) -> None:
    spec = run(SFT + f"deepspeed: {file}\n")
    assert spec["parallelism.zero_stage"] == stage
    assert spec["parallelism.offload_parameters"] is offloads
    assert spec.missing == ()


def test_a_file_that_is_there_goes_before_the_one_that_llama_factory_ships(tmp_path: Path) -> None:
    file = "examples/deepspeed/ds_z3_config.json"
    root = written(tmp_path, {"a.yaml": SFT + f"deepspeed: {file}\n", file: '{"zero_optimization": {"stage": 1}}'})
    (spec,) = registry.specs(load(str(root / "a.yaml")))
    assert spec["parallelism.zero_stage"] == 1


def test_accelerate_and_fsdp(tmp_path: Path) -> None:
    accelerate = (
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\nnum_machines: 1\n"
        "num_processes: 2\nfsdp_config:\n  fsdp_version: 2\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
    )
    root = written(
        tmp_path,
        {"run.sh": "accelerate launch --config_file f.yaml src/train.py a.yaml\n", "f.yaml": accelerate, "a.yaml": SFT},
    )
    (spec,) = registry.specs(load(str(root / "run.sh")))
    expected = {"device_count": 2, "parallelism.strategy": "fsdp2", "checkpointing_reentrant": False}
    assert {name: spec.get(name) for name in expected} == expected


def test_ray_starts_as_many_processes_as_the_config_says(tmp_path: Path) -> None:
    root = written(
        tmp_path, {"run.sh": "USE_RAY=1 llamafactory-cli train a.yaml\n", "a.yaml": SFT + "ray_num_workers: 4\n"}
    )
    (spec,) = registry.specs(load(str(root / "run.sh")))
    assert (spec["device_count"], spec["parallelism.strategy"]) == (4, "ddp")


def test_a_config_that_is_not_there_is_named(tmp_path: Path) -> None:
    root = written(tmp_path, {"run.sh": "llamafactory-cli train nowhere.yaml\n"})
    (spec,) = registry.specs(load(str(root / "run.sh")))
    assert (spec.family, spec.unknown_reason) == ("llamafactory", "no file nowhere.yaml in this repository")


# ------------------------------------------------------------------------------------------------ spelling


@pytest.mark.parametrize(
    ("fact", "value", "line"),
    [
        ("micro_batch_size", 4, "per_device_train_batch_size: 4"),
        ("gradient_accumulation_steps", 8, "gradient_accumulation_steps: 8"),
        ("sequence_length", 512, "cutoff_len: 512"),
        ("checkpointing", "none", "disable_gradient_checkpointing: true"),
        ("attention", "flash", "flash_attn: fa2"),
        ("attention", "eager", "flash_attn: disabled"),
        ("optimizer", "adamw_8bit", "optim: adamw_bnb_8bit"),
        ("loss", "fused", "enable_liger_kernel: true"),
        ("compute_dtype", "float16", "fp16: true"),
        ("packing", True, "packing: true"),
        ("parameter_dtype", "bfloat16", "pure_bf16: true"),
        ("lora.r", 4, None),
    ],
)
def test_a_fact_is_written_in_llama_factory_s_keys(fact: str, value: Any, line: str | None) -> None:
    edits = spell(run(FULL), fact, value)
    after = apply_edits(FULL, edits)
    if line is None:
        text = SFT
        after = apply_edits(text, spell(run(text), fact, value))
        assert "lora_rank: 4" in after.splitlines()
    else:
        assert line in after.splitlines()
    assert run(after)[fact] == value


def test_what_another_switch_says_is_left_alone() -> None:
    assert spell(run(FULL + "use_galore: true\n"), "optimizer", "adamw_8bit") == []
    assert spell(run(SFT), "parameter_dtype", "bfloat16") == []  # adapters are in float32 whatever is said
    assert spell(run(FULL.replace("sft", "dpo")), "loss", "fused") == []


def test_frozen_weights_are_quantised_in_llama_factory_s_key() -> None:
    after = apply_edits(SFT, spell(run(SFT), "quantization.bits", 4))
    assert "quantization_bit: 4" in after.splitlines()
    assert run(after)["quantization.kind"] == "nf4"


# ------------------------------------------------------------------------------------------------ real configs

NO_TRAINING = ("tokens_cfg.yaml",)  # a list of tokens


def test_real_configs_are_recognised_and_say_what_they_lack() -> None:
    folder = corpus_folder()
    families = {"fsdp2_config.yaml": "accelerate", "ds_z2_offload_config.json": "deepspeed"}
    for path in sorted((folder / "llamafactory").iterdir()):
        name = path.name.rsplit("__", 1)[-1]
        specs = registry.specs(load(str(path)))
        assert [spec.family for spec in specs] == ([] if name in NO_TRAINING else [families.get(name, "llamafactory")])
        for spec in specs:
            assert (spec.architecture is None) == bool(spec.unknown_reason), path


def test_no_other_real_config_is_claimed() -> None:
    folder = corpus_folder()
    claimed = [
        path.name
        for path in sorted(folder.rglob("*.*"))
        if path.parent.name not in ("llamafactory", "axolotl") and path.suffix in (".yaml", ".yml", ".json", ".sh")
        if any(spec.family == "llamafactory" for spec in registry.specs(load(str(path))))
    ]
    assert claimed == []


# -------------------------------------------------------------------------------------- ChatGLM-Efficient-Tuning

GLM = "python src/train_bash.py --stage sft --do_train --dataset ours --model_name_or_path THUDM/chatglm-6b"


@pytest.mark.parametrize(
    ("command", "facts"),
    [
        pytest.param(
            f"{GLM} --finetuning_type lora --fp16",
            {"sequence_length": 1024, "lora.r": 8, "lora.targets": ["query_key_value"], "lora.dropout": 0.1,
             "float32_parts": ["norms"], "checkpointing": "full", "compute_dtype": "float16"},
            id="its own defaults",
        ),
        pytest.param(f"{GLM} --max_source_length 256 --max_target_length 128", {"sequence_length": 384}, id="lengths"),
        pytest.param(f"{GLM} --max_target_length 128", {"sequence_length": 640}, id="one of them"),
        pytest.param(f"{GLM} --lora_target dense --lora_rank 4", {"lora.targets": ["dense"], "lora.r": 4}, id="stated"),
        pytest.param(f"{GLM} --quantization_bit 8", {"quantization.bits": 8}, id="eight bits"),
        pytest.param(f"{GLM} --template chatglm2 --cutoff_len 700", {"sequence_length": 700}, id="LLaMA-Factory's"),
    ],
)  # fmt: skip
def test_the_ancestor_that_trains_chatglm_has_defaults_of_its_own(command: str, facts: dict[str, Any]) -> None:
    spec = run(command + "\n", "a.sh")
    assert spec.family == "llamafactory"
    assert spec.architecture == "language_model", spec.unknown_reason
    assert {name: spec.get(name) for name in facts} == facts


@pytest.mark.parametrize("kind", ["p_tuning", "freeze"])
def test_what_the_ancestor_trains_otherwise_is_named(kind: str) -> None:
    spec = run(f"{GLM} --finetuning_type {kind}\n", "a.sh")
    assert spec.architecture is None
    assert f"finetuning_type {kind}" in spec.unknown_reason


def test_the_ancestor_is_written_no_key_that_it_has_not() -> None:
    spec = run(f"{GLM} --per_device_train_batch_size 4\n", "a.sh")
    assert spell(spec, "sequence_length", 512) == []
    assert spell(spec, "loss", "fused") == []
    assert spell(spec, "micro_batch_size", 2)


def test_a_length_of_the_ancestor_s_that_is_not_known_is_none() -> None:
    spec = run(f"{GLM} --max_source_length $LENGTH\n", "a.sh")
    assert spec.get("sequence_length") is None
    assert "--max_source_length" in [entry.key for entry in spec.missing]


def test_a_stage_of_the_copy_in_the_repository_is_no_wrong_value(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    config = tmp_path / "examples/own.yaml"
    config.parent.mkdir()
    config.write_text(
        "model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: ours-sft\ndo_train: true\nfinetuning_type: full\ndataset: d\n"
        "template: qwen\noutput_dir: o\nper_device_train_batch_size: 1\ncutoff_len: 64\n"
    )
    (run,) = memlint.check(str(config), isolated=True).runs
    assert "MEM008" in [finding.code for finding in run.findings]
    package = tmp_path / "src/llamafactory/hparams"
    package.mkdir(parents=True)
    (package / "finetuning_args.py").write_text('stage: Literal["sft", "ours-sft"] = field(default="sft")\n')
    (run,) = memlint.check(str(config), isolated=True).runs
    assert [finding.code for finding in run.findings] == ["MEM007"]
    assert "is of the copy of llamafactory in this repository" in run.findings[0].message
