"""What the switches of transformers' TrainingArguments mean: optimizer, kernels and loss, attention, compilation,
evaluation."""

from __future__ import annotations

from memlint.dialects.accelerate import truth
from memlint.dialects.stated import (
    CONFIG,
    LLAVA,
    PATCHED,
    TRANSFORMERS,
    model_type,
    names_of,
    put,
    setting,
    switched,
    text_config,
    trainer,
)
from memlint.facts.spec import ASSUMED, DEFAULT, HYPER, WRITTEN, Fact, Name, TrainingSpec
from memlint.trainers import liger, unsloth
from memlint.trainers.table import LOG_PROBABILITIES

# Names that transformers gives optimizers (training_args.OptimizerNames, trainer_optimizer.py)
#   -> optimizer, implementation, library, whether its states may move to host memory
OPTIMIZERS: dict[str, tuple[str, str, str, bool]] = {
    "adamw_torch": ("adamw", "foreach", "torch", False),
    "adamw_torch_fused": ("adamw", "fused", "torch", False),
    "adamw_hf": ("adamw", "loop", "transformers", False),  # before transformers 5
    "adamw_apex_fused": ("adamw", "fused", "apex", False),
    "adafactor": ("adafactor", "loop", "transformers", False),
    "sgd": ("sgd", "foreach", "torch", False),
    "adagrad": ("adagrad", "foreach", "torch", False),
    "rmsprop": ("rmsprop", "foreach", "torch", False),
    "adamw_torch_8bit": ("adamw_8bit", "", "torchao", False),
    "adamw_torch_4bit": ("adamw_4bit", "", "torchao", False),
    "adamw_bnb_8bit": ("adamw_8bit", "", "bitsandbytes", False),
    "adamw_8bit": ("adamw_8bit", "", "bitsandbytes", False),
    "lion_8bit": ("lion_8bit", "", "bitsandbytes", False),
    "lion_32bit": ("lion", "", "bitsandbytes", False),
    "ademamix": ("ademamix", "", "bitsandbytes", False),
    "ademamix_8bit": ("ademamix_8bit", "", "bitsandbytes", False),
    "rmsprop_bnb": ("rmsprop", "", "bitsandbytes", False),
    "rmsprop_bnb_32bit": ("rmsprop", "", "bitsandbytes", False),
    "rmsprop_bnb_8bit": ("rmsprop_8bit", "", "bitsandbytes", False),
    "paged_adamw_32bit": ("adamw", "", "bitsandbytes", True),
    "paged_adamw_8bit": ("adamw_8bit", "", "bitsandbytes", True),
    "paged_lion_32bit": ("lion", "", "bitsandbytes", True),
    "paged_lion_8bit": ("lion_8bit", "", "bitsandbytes", True),
    "paged_ademamix_32bit": ("ademamix", "", "bitsandbytes", True),
    "paged_ademamix_8bit": ("ademamix_8bit", "", "bitsandbytes", True),
    "galore_adamw": ("galore_adamw", "", "galore_torch", False),
    "galore_adamw_8bit": ("galore_adamw_8bit", "", "galore_torch", False),
    "galore_adafactor": ("galore_adafactor", "", "galore_torch", False),
    "apollo_adamw": ("apollo_adamw", "", "apollo_torch", False),
    "lomo": ("lomo", "", "lomo_optim", False),
    "adalomo": ("adalomo", "", "lomo_optim", False),
    "grokadamw": ("grokadamw", "", "grokadamw", False),
    "stable_adamw": ("stable_adamw", "", "optimi", False),
    "schedule_free_adamw": ("schedule_free_adamw", "", "schedulefree", False),
    "schedule_free_radam": ("schedule_free_radam", "", "schedulefree", False),
    "schedule_free_sgd": ("schedule_free_sgd", "", "schedulefree", False),
    "adamw_anyprecision": ("adamw_anyprecision", "", "torchdistx", False),
}

# What the functions below give, where a family takes them as the steps of a graph (memlint/facts/derive.py).
OPTIMIZER_FACTS: tuple[Name, ...] = (
    *("optimizer", "optimizer_implementation", "optimizer_library", "optimizer_paged", "optimizer_in_backward"),
    *("optimizer_rank", "optimizer_targets"),
)

EVALUATION_FACTS: tuple[Name, ...] = (
    *("evaluation_batch_size", "evaluation_sequence_length", "evaluation_accumulates", "evaluation_loss"),
)


def optimizer(spec: TrainingSpec, name: str = "optim") -> None:
    """transformers' name of an optimizer says which one, how it is written and whose it is."""
    stated = spec.fact(HYPER + name)
    if stated is None:
        return
    text = str(stated.value)
    layerwise = text.endswith("_layerwise")
    text = text.removesuffix("_layerwise")
    kind, implementation, library, paged = OPTIMIZERS.get(text, (text, "", text.split("_", 1)[0], False))
    put(spec, "optimizer", kind, stated)
    put(spec, "optimizer_library", library, stated)
    spec.facts.pop("optimizer_implementation", None)
    if implementation:
        put(spec, "optimizer_implementation", implementation, stated)
    if paged:
        put(spec, "optimizer_paged", True, stated)
    if spec["optimizer"] in ("lomo", "adalomo") or (layerwise and spec.tried("optimizer") is None):
        put(spec, "optimizer_in_backward", True, stated)
    if text.startswith(("galore", "apollo")):
        _projection(spec)


def _projection(spec: TrainingSpec) -> None:
    """The rank of projected gradients, and whose they are (trainer_optimizer._setup_low_rank_optimizer)."""
    rank = argument(spec, "rank")
    stated = spec.fact(HYPER + "optim_args")
    if rank is not None and rank.isdigit():
        put(spec, "optimizer_rank", int(rank), stated)
    else:
        put(spec, "optimizer_rank", 128, reason=f"{TRANSFORMERS}: GaLore's and APOLLO's")
    targets = spec.fact(HYPER + "optim_target_modules")
    if targets is not None and targets.value:
        names = names_of(targets.value) if targets.value is not True else ["all-linear"]
        every = names in (["all-linear"], ["all_linear"])
        put(spec, "optimizer_targets", "all-linear" if every else names, targets)


def argument(spec: TrainingSpec, name: str) -> str | None:
    """One of the arguments of an optimizer: ``optim_args`` is a mapping, or ``rank=128, scale=0.25``."""
    given = setting(spec, "optim_args")
    if isinstance(given, dict):
        return str(given[name]) if name in given else None
    for part in str(given or "").split(","):
        key, _, value = part.partition("=")
        if key.strip() == name:
            return value.strip()
    return None


def knows_liger(spec: TrainingSpec) -> bool:
    """Whether Liger has kernels for the model; also where its type is not known."""
    known = liger.ASKED.get(spec.family, liger.TYPES) & liger.TYPES
    return LLAVA not in spec and model_type(spec) in ("", *known)


def kernels(spec: TrainingSpec) -> None:
    """Liger's kernels, and the loss that they bring."""
    if not knows_liger(spec):
        return
    switch = spec.fact(HYPER + "use_liger_kernel")
    off = liger.OFF.get(model_type(spec), ())
    on = [name for key, name in liger.SWITCHES.items() if spec.get(HYPER + f"liger.{key}", key not in off)]
    if spec.get(HYPER + "liger.cross_entropy", "fused_linear_cross_entropy" in off):
        on.append("cross_entropy")
    if switch is None or not truth(switch.value):
        loss = spec.tried("loss")
        if loss is not None and loss.value == "fused":  # which is how the switch would be written
            put(spec, "fused_kernels", on, loss)
        return
    put(spec, "fused_kernels", on, switch)
    if "linear_cross_entropy" in on:
        put(spec, "loss", "fused", switch)


def attention(spec: TrainingSpec) -> None:
    """Older switches beside attn_implementation, and a null that means the default, which is what the release has for
    the model. Call after :func:`model`."""
    stated, switch = spec.fact("attention"), spec.fact(HYPER + "use_flash_attn")
    if switch is not None and truth(switch.value) and (stated is None or stated.node is None):
        put(spec, "attention", "flash", switch)
    elif stated is not None and isinstance(stated.value, str) and "flash-attn" in stated.value:
        put(spec, "attention", "flash", stated)
    elif stated is not None and stated.origin == DEFAULT and stated.value == "sdpa" and CONFIG in spec:
        if truth(spec.get(HYPER + "use_unsloth", False)) and model_type(spec) in unsloth.OWN_LAYERS:
            return  # its own layers take flash-attn, xFormers or SDPA under any release of transformers
        since = SDPA_SINCE.get(text_config(spec[CONFIG]).get("model_type", ""))
        has_it = since is None or spec.does(f"transformers.sdpa_{since}")
        if not (has_it and spec.does("torch.sdpa_is_taken")):
            reason = "transformers takes SDPA with torch 2.1.1 and later" if has_it else f"transformers before {since}"
            spec.facts["attention"] = stated._replace(value="eager", reason=reason)
            _patched(spec)


def _patched(spec: TrainingSpec) -> None:
    """The kernel that a program calls in a pass of its own, which it puts in the place of transformers' attention."""
    by_class = spec.root.get(PATCHED)
    kind = str(text_config(spec[CONFIG]).get("model_type", "")).replace("_", "")
    for name, kernel in (by_class.value if by_class is not None and isinstance(by_class.value, dict) else {}).items():
        if kernel.value and name.lower().removesuffix("attention") == kind:
            value = "flash" if kernel.value == "flash_attention_2" else kernel.value
            reason = f"the script puts a pass of its own in the place of {name}'s"
            spec.facts["attention"] = Fact("attention", value, WRITTEN, name, kernel, reason)


# What transformers had before its modules took SDPA (``_supports_sdpa``) -> the release since which they do.
SDPA_SINCE = {
    **dict.fromkeys(("llama", "falcon", "bart", "whisper", "gpt_bigcode"), "4.36"),
    **dict.fromkeys(("mistral", "mixtral"), "4.37"),
    **dict.fromkeys(("phi", "stablelm"), "4.39"),
    **dict.fromkeys(("bert", "vit"), "4.41"),
    **dict.fromkeys(("gpt2", "gpt_neox"), "4.42"),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "albert", "mbart", "phi3"), "4.45"),
    **dict.fromkeys(("opt", "distilbert"), "4.46"),
    "electra": "5.0",
}


def compiled(spec: TrainingSpec) -> None:
    """Naming a backend or a mode turns torch.compile on."""
    for name in ("torch_compile_backend", "torch_compile_mode"):
        stated = spec.fact(HYPER + name)
        if stated is not None and stated.value and not spec.get("compile"):
            put(spec, "compile", True, stated)


def evaluation(spec: TrainingSpec) -> None:
    """Whether the trainer evaluates, and what it keeps of it."""
    strategy = setting(spec, "eval_strategy")
    on = strategy not in (None, False, "no", "False", "false")
    if not (on or switched(spec, "do_eval") or switched(spec, "eval_on_start")):
        spec.facts.pop("evaluation_batch_size", None)
        return
    length = spec.fact("sequence_length")
    if length is not None:
        put(spec, "evaluation_sequence_length", length.value, length)
    found = trainer(spec)
    if found.takes == LOG_PROBABILITIES:
        put(spec, "evaluation_loss", "as_trained", reason=f"{found.title}: prediction_step takes the loss of training")
    for name, reason in (
        ("prediction_loss_only", ""),
        ("eval_accumulation_steps", ""),
    ):
        stated = spec.fact(HYPER + name)
        if stated is not None and stated.value not in (None, False):
            put(spec, "evaluation_accumulates", False, stated, reason)
            return
    metric, whole = spec.fact(HYPER + "metric_for_best_model"), spec.fact(HYPER + "batch_eval_metrics")
    if metric is not None and metric.value and str(metric.value).removeprefix("eval_") != "loss":
        put(spec, "evaluation_accumulates", not (whole is not None and truth(whole.value)), metric)
    if "evaluation_accumulates" not in spec:
        reason = "transformers 5: without compute_metrics only losses are kept, and a config cannot say there is one"
        spec.facts["evaluation_accumulates"] = Fact("evaluation_accumulates", False, ASSUMED, reason=reason)


def liger_in_evaluation(spec: TrainingSpec) -> None:
    """Where transformers' own switch brings Liger's loss and no metrics ask for logits, evaluation makes none either.
    Call after :func:`evaluation` and :func:`kernels`."""
    switch = spec.fact(HYPER + "use_liger_kernel")
    asked = "evaluation_batch_size" in spec and spec.get("loss") == "fused" and not spec.get("evaluation_accumulates")
    if asked and switch is not None and spec.does("transformers.evaluates_by_ligers_loss"):
        put(spec, "evaluation_loss", "as_trained", switch)
