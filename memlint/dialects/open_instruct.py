"""Family open-instruct: the loops of ``finetune.py`` and ``dpo_tune_cache.py`` around accelerate, and the learners of
``grpo_fast.py`` on cards of Ray's.

A learner of GRPO's is a process with a card of its own: it trains the policy by DeepSpeed's engine and asks a reference
beside it. vLLM's engines have other cards, but where ``single_gpu_mode`` has both on one.
"""

from __future__ import annotations

from memlint.dialects import deepspeed, launchers
from memlint.dialects import language_model as lm
from memlint.dialects import trainer_families as families
from memlint.dialects.accelerate import truth
from memlint.facts.spec import ASSUMED, HYPER, Fact, OnTop, TrainingSpec

_VERSION = "open-instruct"
_METHODS = {"finetune": "sft", "dpo_tune_cache": "dpo", "dpo_tune": "dpo", "grpo_fast": "grpo"}
_TARGETS = ("q_proj", "o_proj", "v_proj", "k_proj", "gate_proj", "up_proj", "down_proj")
_OF_DPO = ("loss_type", "mixer_list", "num_epochs")  # SFT has num_train_epochs
_OF_GRPO = ("num_learners_per_node", "num_unique_prompts_rollout", "single_gpu_mode")


def complete(spec: TrainingSpec) -> TrainingSpec:
    """From open-instruct's options and files to the facts of a language model."""
    name = "dpo_tune" if any(spec.root.get(key) is not None for key in _OF_DPO) else "finetune"
    name = "grpo_fast" if any(spec.root.get(key) is not None for key in _OF_GRPO) else name
    name = families.program(spec, name)
    method = _METHODS.get(name, "")
    families.method(spec, method or name, None, f"{_VERSION}: {name}.py")
    if method == "grpo":
        return _learner(spec)
    found = "" if method else f"{name}: what stands beside the model that it trains is not known"
    found = found or lm.model(spec)
    if method == "dpo":
        families.unless_stated(spec, "sequence_length", 4096, f"{_VERSION}: TrainingConfig")
        lm.put(spec, "log_probabilities", "uncut", reason=f"{_VERSION}: calculate_per_token_logps")
        needed = lm.setting(spec, "loss_type") != "simpo"  # and is asked for all samples before training
        lm.put(spec, "reference_model", "precomputed" if needed else "none", spec.fact(lm.HYPER + "loss_type"))
    budget = spec.fact(lm.HYPER + "activation_memory_budget")
    if budget is not None and budget.value < 1:
        lm.put(spec, "checkpointing", "full", budget)
    lm.kernels(spec)
    paged = lm.switched(spec, "load_in_4bit") or lm.switched(spec, "paged")
    bits = "8bit" if lm.switched(spec, "use_8bit_optimizer") else "32bit"
    plain = "adamw_torch_fused" if lm.switched(spec, "fused_optimizer") else "adamw_torch"
    lm.put(spec, lm.HYPER + "optim", f"paged_adamw_{bits}" if paged else plain, reason=f"{_VERSION}: {name}.py")
    lm.optimizer(spec)
    lm.put(spec, "lora.targets", list(_TARGETS), reason=f"{_VERSION}: {name}.py")
    adapted = families.adapted(spec, f"{_VERSION}: {name}.py")
    if "quantization.bits" in spec:
        reason = f"{_VERSION}: prepare_model_for_kbit_training"
        lm.put(spec, "quantization.prepared", True, spec.fact("quantization.bits"), reason)
    shared = lm.parallelism(spec)
    _machines(spec)
    families.elsewhere(spec)
    lm.checkpointing(spec)
    if not lm.switched(spec, "use_liger_kernel"):  # AutoLigerKernelForCausalLM is told no dtype
        lm.put(spec, lm.HYPER + "dtype", "bfloat16", reason=f"{_VERSION}: {name}.py")
    dtyped = lm.precision(spec, lm.weights(spec, spec.fact(lm.HYPER + "dtype")))
    reasons = (found, families.otherwise(spec), adapted, shared, dtyped)
    return lm.finish(spec, reasons, {"sequence_length": "max_seq_length"})


def _machines(spec: TrainingSpec) -> None:
    """``mason.py --num_nodes``: it multiplies the processes that accelerate is told by it."""
    options = launchers.launcher(spec.launch, "mason.py")
    several = None if options is None else launchers.option(options, "num_nodes")
    count, name = spec.fact("device_count"), "mason.py: on each of its nodes"
    if several is not None and count is not None and str(several.value).isdigit():
        lm.put(spec, "device_count", count.value * int(str(several.value)), count, name)
        lm.put(spec, "world_size", spec["device_count"], count, name)


# ---------------------------------------------------------------------------------------------- GRPO's learners

_LEARNER = "open-instruct at e6c3044: grpo_fast.py"


def _learner(spec: TrainingSpec) -> TrainingSpec:
    """What a learner has on its card: it trains the whole model in bfloat16, and recomputes every layer, whatever the
    options of other programs say (``use_peft``, ``dtype``, ``gradient_checkpointing``)."""
    found = lm.model(spec)
    for name in [name for name in spec.facts if name.startswith("lora.")]:
        del spec.facts[name]
    lm.put(spec, "tuning", "full", reason=_LEARNER)
    lm.put(spec, "checkpointing", "full", reason=f"{_LEARNER}, gradient_checkpointing_enable")
    kind = spec.does("transformers.checkpoints_reentrantly")
    lm.put(spec, "checkpointing_reentrant", kind, reason="transformers: gradient_checkpointing_enable")
    if spec.get("attention") == "sdpa":
        lm.put(spec, "padding", True, spec.fact("attention"), "a mask tells the samples of a row apart")
    shared = _shared(spec)
    lm.put(spec, HYPER + "optim", "adamw_torch_fused" if lm.setting(spec, "fused_optimizer") else "adamw_torch")
    lm.optimizer(spec)
    lm.put(spec, HYPER + "bf16", True, reason=_LEARNER)
    lm.put(spec, HYPER + "dtype", "bfloat16", reason=_LEARNER)
    dtyped = lm.precision(spec, lm.weights(spec, spec.fact(HYPER + "dtype")))
    lm.put(spec, "gradient_dtype", "float32", reason="open-instruct: get_train_ds_config, grad_accum_dtype")
    beside = spec.fact(HYPER + "load_ref_policy")
    copied = beside is None or truth(beside.value)
    lm.put(spec, "reference_model", "copy" if copied else "none", beside, "" if beside else _LEARNER)
    lm.put(spec, "reference_dtype", "bfloat16", reason="open-instruct: load_ref_policy")
    packed, scored = _rows(spec), _scores(spec)
    _engine(spec)
    reasons = (shared, found, families.otherwise(spec), packed, dtyped, scored)
    return lm.finish(spec, reasons, {"sequence_length": "pack_length"})


def _shared(spec: TrainingSpec) -> str:
    """DeepSpeed's engine over all learners; why what it does is not known."""
    learners, zero = spec.fact(HYPER + "learners"), spec.fact("parallelism.zero_stage")
    spec.missing = tuple(one for one in spec.missing if one.fact not in ("device_count", "world_size"))
    if lm.gap(spec, "num_learners_per_node") is None:
        each = 1 if learners is None else learners.value
        count = sum(each) if isinstance(each, list) else each
        reason = "that learn; vLLM's engines have cards of their own"
        if lm.switched(spec, "colocated"):
            reason = "vLLM's engine is on the same one"
        lm.put(spec, "device_count", count, learners, reason)
        lm.put(spec, "world_size", count, learners)
    if lm.gap(spec, "deepspeed_stage") is not None:
        return lm.not_stated(spec, "deepspeed_stage", "deepspeed_stage")
    if zero is None or not zero.value:
        return "deepspeed_stage 0: DeepSpeed refuses weights in bfloat16 whose gradients are added in float32"
    for fact in deepspeed.defaults().values():
        if fact.name not in ("deepspeed_dtype", "parallelism.strategy"):
            families.unless_stated(spec, fact.name, fact.value, fact.reason)
    lm.put(spec, "parallelism.strategy", "zero", zero, f"{_LEARNER}: DeepSpeed's engine")
    if lm.switched(spec, "deepspeed_offload_optimizer"):
        return f"{_key(spec, 'deepspeed_offload_optimizer')}: DeepSpeed refuses torch's AdamW in host memory"
    return (_parameters(spec) if zero.value == 3 else "") or _sequences(spec)


def _parameters(spec: TrainingSpec) -> str:
    """What stage 3 has besides: a second partition, and all weights at once on their way to the engines."""
    stated, whole = spec.fact(HYPER + "deepspeed_zpg"), spec.fact(HYPER + "gather_whole_model")
    group = 8 if stated is None else stated.value
    lm.put(spec, "parallelism.secondary_shard", group, stated, _LEARNER)
    lm.put(spec, "engine_gets_whole_model", lm.switched(spec, "gather_whole_model"), whole)
    if lm.switched(spec, "deepspeed_offload_param"):
        lm.put(spec, "parallelism.offload_parameters", True, spec.fact(HYPER + "deepspeed_offload_param"))
    count = spec.get("device_count", 1)
    if count % min(group, count):  # deepspeed/utils/groups.py: _create_zero_param_parallel_group
        return f"{_key(spec, 'deepspeed_zpg')} {group} does not divide {count} learners: it is refused"
    return ""


def _key(spec: TrainingSpec, name: str) -> str:
    fact = spec.fact(HYPER + name)
    return name if fact is None else fact.key


def _sequences(spec: TrainingSpec) -> str:
    """Devices that share each row by attention heads (DeepSpeed's UlyssesSPAttentionHF)."""
    stated = spec.fact(HYPER + "sequence_parallel_size")
    if stated is None or stated.value == 1:
        return ""
    spec.facts[stated.name] = stated._replace(node=None)  # which is known here
    config, zero = lm.text_config(spec.get(lm.CONFIG) or {}), spec["parallelism.zero_stage"]
    if zero != 3:
        return f"{stated.key} {stated.value}: it is refused with deepspeed_stage {zero}"
    if spec.get("device_count", stated.value) % stated.value:
        return f"{stated.key} {stated.value} does not divide {spec['device_count']} learners"
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = config.get(name)
        if isinstance(heads, int) and heads % stated.value:
            return f"{stated.key} {stated.value}: how it shares {name} {heads} is not known"
    lm.put(spec, "parallelism.ulysses", stated.value, stated, f"{_LEARNER}: UlyssesSPAttentionHF")
    return ""


def _rows(spec: TrainingSpec) -> str:
    """Prompts and answers are packed to rows of so many tokens, of which an update takes as many as a rollout fills."""
    packed = spec.fact(HYPER + "pack_length")
    if spec.tried("sequence_length") is None and lm.gap(spec, "pack_length") is None:
        length = 512 if packed is None else packed.value
        lm.put(spec, "sequence_length", length, packed, "" if packed else "open-instruct: StreamingDataLoaderConfig")
        lm.put(spec, "sequence_bound", True, packed, "a row ends where the next sample is too long for it")
    each = sum(spec.get(HYPER + name) or 256 for name in ("max_prompt_length", "max_completion_length"))
    if spec.get("sequence_length") is None or "device_count" not in spec:
        return ""
    if packed is not None and each > packed.value and not lm.gap(spec, "max_prompt_token_length", "response_length"):
        return f"{packed.key} {packed.value:,} is less than a prompt and its answer, {each:,} tokens: it is refused"
    prompts, answers = spec.fact(HYPER + "num_prompts"), spec.get(HYPER + "num_generations") or 4
    ranks = max(1, spec["device_count"] // spec.get("parallelism.ulysses", 1))
    tokens = (spec.get(HYPER + "num_prompts") or 16) * answers * each
    passes = -(-tokens // (spec["sequence_length"] * spec["micro_batch_size"] * ranks))
    updates = spec.get(HYPER + "num_mini_batches") or 1
    reason = "a rollout of the longest samples"
    lm.put(spec, "gradient_accumulation_steps", max(1, -(-passes // updates)), prompts, reason)
    return ""


def _scores(spec: TrainingSpec) -> str:
    """Log-probabilities of whole logits, which a temperature divides."""
    environment = {} if spec.launch is None else spec.launch.environment
    switch = environment.get("TORCH_COMPILE_DISABLE")
    entropy = spec.fact(HYPER + "record_entropy")
    recorded, eager = entropy is not None and truth(entropy.value), switch is not None and truth(switch.value)
    way = "of_quotient_in_steps" if eager else "of_quotient_with_entropy" if recorded else "of_quotient"
    lm.put(spec, "log_probabilities", way, reason="open-instruct: grpo_utils.py, forward_for_logprobs")
    if recorded and eager:
        return OnTop(f"{_key(spec, 'record_entropy')} with TORCH_COMPILE_DISABLE: it is known with torch.compile alone")
    return ""


def _engine(spec: TrainingSpec) -> None:
    """vLLM on a learner's card keeps its share: its ``sleep`` is of level 0, which only pauses it."""
    share = spec.facts.pop("engine_share", None)
    if lm.switched(spec, "colocated"):
        lm.put(
            spec,
            "engine_share",
            0.9 if share is None else share.value,
            share,
            "" if share else "open-instruct: VLLMConfig",
        )
        lm.put(spec, "processes_per_device", 2, spec.fact(HYPER + "colocated"))
        return
    cards = (lm.setting(spec, "engines") or 1) * (lm.setting(spec, "engine_cards") or 1)
    why = f"the peak is a learner's: vLLM's engines have cards of their own, {cards:,}"
    spec.facts[HYPER + "predicted"] = Fact(HYPER + "predicted", "a learner", ASSUMED, "card", None, why)
