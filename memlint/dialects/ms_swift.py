"""Family ms-swift: the Trainer of transformers behind ``swift sft``, ``swift pt`` and ``swift rlhf``."""

from __future__ import annotations

from math import ceil

from memlint.dialects import known_scripts, llamafactory
from memlint.dialects import language_model as lm
from memlint.dialects import trainer_families as families
from memlint.facts.spec import ASSUMED, Fact, TrainingSpec

_VERSION = "ms-swift 4.6"
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
# Models all of whose layers are mixtures: transformers 5 keeps experts and routers as tensors, which are no Linear.
_EXPERTS_ARE_TENSORS = ("qwen3_moe", "mixtral")
# loss_scale/config: weights of tokens that are not 0 or 1, which no loss of the model's own takes
_WEIGHTS = frozenset(("agentflan", "alpha_umi", "hermes", "qwen", "react"))
_METHODS = {"pt": "pretraining", "rm": "reward", "simpo": "cpo"}


def complete(spec: TrainingSpec) -> TrainingSpec:
    """From swift's arguments to the facts of a language model."""
    words = [] if spec.launch is None else [spec.launch.program, *spec.launch.words[:1]]
    called = " ".join(str(word.value) for word in words).removesuffix(".py")
    stated = None if called.endswith(("sft", "pt")) else spec.fact(lm.HYPER + "rlhf_type")
    name = str(stated.value) if stated is not None else next((n for n in ("rlhf", "pt") if called.endswith(n)), "sft")
    families.method(spec, _METHODS.get(name, name.replace("rlhf", "dpo")), stated, f"{_VERSION}: RLHFArguments")
    found = f"{called}: Megatron-SWIFT's own model and arguments are not known" if called.startswith("megatron") else ""
    found = found or lm.model(spec, "model")
    llamafactory.parts(spec, _VERSION)
    task = families.model_class(spec, "task_type", _VERSION)
    _length(spec)
    lm.attention(spec)
    lm.older_defaults(spec)
    lm.optimizer(spec)
    lm.kernels(spec)
    ranks = families.sequence_ranks(spec, _VERSION)
    if spec["method"] == "dpo":
        lm.put(spec, "log_probabilities", "as_returned", reason=f"{_VERSION}: get_per_token_logps")
    scale = spec.fact(lm.HYPER + "loss_scale")
    weighted = scale is not None and bool(_WEIGHTS & set(str(scale.value).split("+")))
    lm.put(spec, lm.HYPER + "weighted_tokens", weighted, scale)
    families.whole_logits(spec, "weighted_tokens", "enable_dft_loss", "enable_channel_loss", "label_smoothing")
    lm.compiled(spec)
    kind, library = spec.fact(lm.HYPER + "tuner_type"), lm.setting(spec, "quant_method")
    lm.put(spec, lm.HYPER + "use_peft", kind is not None and kind.value == "lora", kind)
    every, config = spec.fact("lora.targets"), lm.text_config(spec.get(lm.CONFIG) or {})
    if every is not None and every.value == ["all-linear"] and config.get("model_type") in _EXPERTS_ARE_TENSORS:
        lm.put(spec, "lora.targets", list(_ATTENTION), every, f"{_VERSION}: find_all_linears")
    lm.put(spec, "tuning", "full", kind)
    adapted = lm.adapters(spec)
    if kind is not None and kind.value not in ("lora", "full"):
        adapted = f"{kind.key} {kind.value}: its adapters are not known"
    if library != "bnb":  # other libraries' checkpoints are quantised already, and quant_bits says nothing of them
        spec.facts.pop(lm.HYPER + "bits", None)
        adapted = adapted or (f"quant_method {library}: its frozen weights are not known" if library else "")
    lm.quantization(spec)
    shared = (
        families.fsdp_preset(spec) or families.own_processes(spec, "NPROC_PER_NODE", "NNODES") or lm.parallelism(spec)
    )
    if "gradient_accumulation_steps" not in spec and "micro_batch_size" in spec:
        steps = ceil(16 / spec["micro_batch_size"] / spec.get("device_count", 1))
        lm.put(spec, "gradient_accumulation_steps", steps, reason=f"{_VERSION}: 16 samples per optimizer step")
    lm.checkpointing(spec)
    families.reentrant(spec, spec.get("parallelism.strategy") != "ddp", f"{_VERSION}: SwiftMixin")
    loaded = lm.weights(spec, spec.fact(lm.HYPER + "dtype"))
    for switch, dtypes in (("fp16", ("float16", "float32")), ("bf16", ("bfloat16",))):
        if lm.setting(spec, switch) is None and loaded is not None:
            lm.put(spec, lm.HYPER + switch, loaded.value in dtypes, loaded, f"{_VERSION}: by the dtype of the weights")
    dtyped = lm.precision(spec, loaded)
    families.reference(spec, _VERSION)
    if lm.setting(spec, "tuner_backend") == "unsloth":
        known_scripts.unsloth(spec, spec.facts[lm.HYPER + "tuner_backend"])
    evaluated = any(lm.setting(spec, name) for name in ("val_dataset", "eval_dataset", "split_dataset_ratio"))
    when = (lm.setting(spec, "eval_strategy") or "steps") if evaluated else "no"
    lm.put(spec, lm.HYPER + "eval_strategy", when, reason=f"{_VERSION}: where there are data to evaluate")
    lm.evaluation(spec)
    lm.liger_in_evaluation(spec)
    if spec.get("loss") == "outputs" and "evaluation_batch_size" in spec:
        lm.put(spec, "evaluation_loss", "as_trained", spec.fact("loss"))
    keys = {"sequence_length": "max_length"}
    return lm.finish(spec, (families.otherwise(spec), ranks, shared, found, task, adapted, dtyped), keys)


def _length(spec: TrainingSpec) -> None:
    """As long as a sample may be, which is as long as the model takes where nothing says it. Packed rows have
    packing_length, both answers of a pair among it; of generating trainers max_length is that of the prompt."""
    packing, length, limit = spec.fact("packing"), spec.fact(lm.HYPER + "packing_length"), lm.position_limit(spec)
    packed = packing is not None and bool(packing.value)
    if packed:
        lm.put(spec, "padding_free", True, packing, f"{_VERSION}: packing is padding-free")
        if length is not None:
            lm.put(spec, "sequence_length", length.value, length)
        if "sequences_per_sample" in spec:
            lm.put(spec, "sequences_per_sample", 1, packing, f"{_VERSION}: packing.py counts both answers of a pair")
    if spec.get("method") == "grpo":
        families.answers(spec, _VERSION)
    elif "sequence_length" not in spec and limit is not None and lm.gap(spec, "max_length") is None:
        reason = f"{_VERSION}: without max_length a sample may be as long as the model takes; most data are shorter"
        spec.facts["sequence_length"] = Fact("sequence_length", limit, ASSUMED, "max_length", reason=reason)
        lm.put(spec, "sequence_bound", True, reason=reason)
