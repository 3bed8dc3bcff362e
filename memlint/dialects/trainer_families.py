"""What families around the Trainer of transformers share beside ``language_model``: preference training, and switches
of which only the name is known.

A function takes a spec with what the schema found in it, adds facts, and returns why there can be no estimate, or "".
``version`` is whose code says so (``ms-swift 4.6``).
"""

from __future__ import annotations

from math import gcd
from typing import Any

from memlint.dialects import companions, deepspeed, launchers
from memlint.dialects import language_model as lm
from memlint.dialects.accelerate import truth
from memlint.dialects.companions import Companion
from memlint.documents.node import Node
from memlint.facts.spec import ASSUMED, DEFAULT, Fact, Name, OnTop, TrainingSpec, named

PAIRS = ("dpo", "orpo", "cpo", "simpo", "reward")  # chosen and rejected go through the model together
WITH_REFERENCE = ("dpo", "kto")
PROMPT = 512  # tokens, where no file states them: as TRL cut them before 0.29
# What a family's method needs beside the model, where nothing says how large it is.
HELPERS = {
    **dict.fromkeys(("gkd", "gold"), "its teacher is not known"),
    "ppo": "its value and reward models are not known",
}


def otherwise(spec: TrainingSpec) -> str:
    """Keys that put in place of the usual way one that is not known: those with ``otherwise`` in the schema."""
    from memlint.dialects import registry

    for key in registry.dialect(spec.family).keys:
        why = key.annotation.get("otherwise", "")
        fact = spec.fact(key.annotation.get("fact", "")) if why else None
        usual: tuple[object, ...] = (None, False, "", "false", 0, [], key.annotation.get("default"))
        if fact is not None and fact.node is not None and fact.value not in usual:
            said = f"{fact.key} {fact.value}: {why}"
            return OnTop(said) if key.annotation.get("on_top") else said
    why = HELPERS.get(spec.get("method", ""), "")
    return OnTop(f"{spec['method'].upper()}: {why}") if why else ""


def method(spec: TrainingSpec, name: str, stated: Fact | None, version: str) -> None:
    """What is trained for, and how many sequences of a sample go through the model at once."""
    lm.put(spec, "method", name, stated, "" if stated is not None else version)
    if name in PAIRS:
        lm.put(spec, "sequences_per_sample", 2, spec.fact("method"), "a chosen and a rejected answer per sample")
    if name not in ("sft", "pretraining"):  # the loss asks for log-probabilities, so Liger's keeps the logits
        lm.put(spec, lm.HYPER + "liger.fused_linear_cross_entropy", False, spec.fact(lm.HYPER + "use_liger_kernel"))
        lm.put(spec, lm.HYPER + "liger.cross_entropy", True, spec.fact(lm.HYPER + "use_liger_kernel"))


def model_class(spec: TrainingSpec, task: str, version: str) -> str:
    """The class that the model is loaded as, by the family's word for the task."""
    origin = spec.fact("method") if spec.get("method") == "reward" else spec.fact(lm.HYPER + task)
    if spec.get("method") == "reward":
        lm.put(spec, "labels", 1, reason=f"{version}: a reward is one number")
    elif origin is None or origin.value in (None, "causal_lm"):
        return ""
    elif origin.value != "seq_cls":
        return f"{origin.key} {origin.value}: its head and its loss are not known"
    lm.put(spec, "model_class", "sequence_classification", origin)
    return ""


def whole_logits(spec: TrainingSpec, *switches: str) -> None:
    """Losses that need the logits, whatever Liger could do without. Call after :func:`language_model.kernels`."""
    for name in switches:
        fact = spec.fact(lm.HYPER + name)
        if fact is not None and truth(fact.value) and spec.get("loss") == "fused":
            lm.put(spec, "loss", "full", fact, "it needs the logits")


def reference(spec: TrainingSpec, version: str) -> None:
    """The policy without its adapters, or a copy of it in the dtype that it was loaded in. Call when that is known."""
    name = spec.get("method")
    beta = spec.fact(lm.HYPER + "beta")
    without = name == "grpo" and beta is not None and beta.value == 0
    if without or name not in (*WITH_REFERENCE, "grpo"):
        lm.put(spec, "reference_model", "none", beta if without else None, f"{name} needs none")
    elif spec.get("tuning", "full") != "full":
        lm.put(spec, "reference_model", "adapter_off", spec.fact("tuning"), "without its adapters it is the reference")
    else:
        lm.put(spec, "reference_model", "copy", spec.fact(lm.HYPER + "ref_model"), f"{version}: the model once more")
    loaded = lm.weights(spec, spec.fact(lm.HYPER + "dtype"))
    if spec.get("reference_model") == "copy" and loaded is not None:
        lm.put(spec, "reference_dtype", loaded.value, loaded)


def answers(spec: TrainingSpec, version: str) -> None:
    """A sample is a prompt and its answer, where the trainer generates; and what vLLM beside it takes of the card."""
    answer, prompt = spec.fact(lm.HYPER + "max_completion_length"), spec.fact("sequence_length")
    if answer is None or (prompt is None and lm.gap(spec, "max_length") is not None):
        return
    tokens = PROMPT if prompt is None else prompt.value
    reason = "a prompt and its answer" if prompt is not None else f"prompts of {PROMPT} tokens, which no file states"
    lm.put(spec, "sequence_length", tokens + answer.value, prompt or answer._replace(origin=ASSUMED), reason)
    lm.put(spec, "completion_length", answer.value, answer, f"{version}: max_completion_length")
    share = spec.fact(lm.HYPER + "vllm_gpu_memory_utilization")
    if lm.setting(spec, "vllm_mode") == "colocate" and not lm.setting(spec, "sleep_level") and share is not None:
        lm.put(spec, "engine_share", share.value, share)


def sequence_ranks(spec: TrainingSpec, version: str) -> str:
    """Devices that share each sequence by attention heads (Ulysses), as far as there are heads of keys and values; what
    is left of them would pass those around in a ring. The loss is the trainer's own, of the logits as they are."""
    stated = spec.fact(lm.HYPER + "sequence_parallel_size")
    config = lm.text_config(spec.get(lm.CONFIG) or {})
    if stated is None or stated.value == 1 or not config:
        return ""
    heads = config.get("num_key_value_heads") or config.get("num_attention_heads") or 1
    if gcd(heads, stated.value) != stated.value:
        return f"{stated.key} {stated.value} over {heads} heads of keys and values: a ring beside Ulysses is not known"
    if spec.get("row_output"):
        return OnTop(f"{stated.key} {stated.value}: rows whose parts are gathered are not known")
    lm.put(spec, "parallelism.ulysses", stated.value, stated, f"{version}: SequenceParallel")
    if spec.get("model_class", "causal_lm") == "causal_lm" and spec.get("method") in ("sft", "pretraining"):
        lm.put(spec, "loss", "outputs", stated, f"{version}: per_token_loss_func_sp")
        rows = spec.launch.environment.get("CELOSS_PARALLEL_SIZE") if spec.launch is not None else None
        if rows is not None and str(rows.value).isdigit():
            lm.put(spec, "loss_rows", int(str(rows.value)), reason="CELOSS_PARALLEL_SIZE")
    return ""


def reentrant(spec: TrainingSpec, value: bool, reason: str) -> None:
    """Which kind of checkpointing runs where no key says it."""
    stated = spec.fact("checkpointing_reentrant")
    if stated is None or stated.origin == DEFAULT:
        lm.put(spec, "checkpointing_reentrant", value, reason=reason)


def fsdp_preset(spec: TrainingSpec) -> str:
    """``fsdp`` is, names or stands for a file that holds both keys of transformers, ``fsdp`` and ``fsdp_config``; why
    that file is not known."""
    whole = spec.fact(lm.HYPER + "fsdp")
    if whole is None or whole.node is None or not whole.value:
        return ""
    tree = whole.node
    if isinstance(whole.value, str):
        document, why = companions.read(whole.value, whole.node.span.path)
        if document is None:
            return f"{whole.key} {whole.value}: {why}"
        tree = document.root
        lm.add(spec, Companion({}, (), {document.path: document.text, **document.sources}))
    for name in ("fsdp", "fsdp_config"):
        node = tree.get(name)
        value = "full_shard" if node is None and name == "fsdp" else None if node is None else node.plain()
        spec.facts[lm.HYPER + name] = whole._replace(name=lm.HYPER + name, value=value, node=node)
    return ""


def stands_for(spec: TrainingSpec, switch: Fact, name: str, value: Any) -> None:
    """A setting of the Trainer's that a switch of the family stands for; of a mapping, each value stands there."""
    assert switch.node is not None
    tree: Any = value
    if isinstance(value, dict):
        tree = {key: Node(inner, switch.node.span, switch.node.key_span, key) for key, inner in value.items()}
    node = Node(tree, switch.node.span, switch.node.key_span, switch.node.keys)
    spec.facts[lm.HYPER + name] = switch._replace(name=lm.HYPER + name, value=value, node=node)


def own_processes(spec: TrainingSpec, per_machine: str, machines: str) -> str:
    """A program that starts torchrun itself, by two variables of the environment. Without them it is one process, over
    whose devices ``device_map`` spreads the model: why that is not known."""
    if spec.launch is None or spec.launch.launchers:
        return ""
    processes = 1
    if per_machine in spec.launch.environment or machines in spec.launch.environment:
        counted = launchers.counted(spec.launch, per_machine, machines)
        spec.missing = (*spec.missing, *counted.missing)
        if counted.total is None:
            return ""
        lm.put(spec, "device_count", counted.total.value, counted.total)
        processes = counted.total.value
    seen = launchers.seen(spec.launch)
    if seen is None or seen.value <= processes:
        return ""
    return f"{seen.key}: {seen.value} devices for {processes} of its processes; a model spread over them is not known"


# ---------------------------------------------------------------------------------------------- loops of their own


def unless_stated(spec: TrainingSpec, name: Name, value: Any, reason: str) -> None:
    """A default that is not the same in all of a family's programs. A key whose value is not known has none."""
    if name not in spec and not any(item.fact == name for item in spec.missing):
        lm.put(spec, name, value, reason=reason)


def program(spec: TrainingSpec, otherwise: str = "") -> str:
    """The name of the program that a command starts: ``train_sft`` of ``openrlhf.cli.train_sft`` and of a path."""
    if spec.launch is None:
        return otherwise
    return spec.launch.called.removesuffix(".py").replace("/", ".").rpartition(".")[2]


def adapted(spec: TrainingSpec, version: str) -> str:
    """Adapters where ``use_peft`` or a rank above 0 says so, on weights in NF4 whose scales are quantised too where
    they are in 4 bits; why they are not known."""
    rank = spec.fact("lora.r")
    switch = spec.fact(lm.HYPER + "use_peft") or rank
    lm.put(spec, lm.HYPER + "use_peft", switch is not None and bool(switch.value), switch)
    lm.put(spec, "tuning", "full", switch)
    lm.put(spec, "quantization.kind", "nf4", reason=version)
    lm.put(spec, "quantization.double", True, reason=version)
    reason = lm.adapters(spec)
    lm.quantization(spec)
    return reason


def engine(spec: TrainingSpec, version: str) -> None:
    """DeepSpeed's engine as a loop of its own makes it: sizes that it leaves to DeepSpeed are DeepSpeed's, for no
    Trainer fills them in; the optimizer is DeepSpeed's, in one kernel. Call before :func:`micro_batches`."""
    for fact in deepspeed.defaults().values():
        if fact.name not in ("deepspeed_dtype", "parallelism.strategy"):
            unless_stated(spec, fact.name, fact.value, fact.reason)
    lm.put(spec, "parallelism.strategy", "zero", spec.fact("parallelism.zero_stage"), f"{version}: DeepSpeed's engine")
    lm.put(spec, "optimizer_library", "deepspeed", reason=version)
    lm.put(spec, "optimizer_implementation", "fused", reason=version)
    spec.missing = (*spec.missing, *launchers.processes(spec.launch).missing)
    lm.processes(spec)


def elsewhere(spec: TrainingSpec) -> None:
    """Keys beside DeepSpeed's config that send states to host memory. Call after :func:`language_model.parallelism`."""
    for place in ("optimizer", "parameters"):
        stated = spec.fact(lm.HYPER + f"offload_{place}")
        if stated is not None and stated.value and spec.get("parallelism.strategy") == "zero":
            lm.put(spec, named(f"parallelism.offload_{place}"), True, stated)


def micro_batches(spec: TrainingSpec, version: str) -> None:
    """Micro batches per step: what the samples of a step are of those that all devices take at once."""
    whole, devices = spec.fact("global_batch_size"), spec.get("device_count")
    if whole is None or devices is None or "gradient_accumulation_steps" in spec or not spec.get("micro_batch_size"):
        return
    shared = spec.get("parallelism.context", 1) * spec.get("parallelism.tensor", 1)
    steps = max(1, whole.value * shared // spec["micro_batch_size"] // devices)
    lm.put(spec, "gradient_accumulation_steps", steps, whole, version)
