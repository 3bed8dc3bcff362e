"""Family llamafactory: the arguments of LLaMA-Factory's training command."""

from __future__ import annotations

from typing import Any

from memlint.dialects import companions, glm_tuning, known_scripts, launchers, shipped
from memlint.dialects import language_model as lm
from memlint.dialects.accelerate import truth
from memlint.documents.node import Document, Edit, Node
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import ASSUMED, DEFAULT, WRITTEN, Fact, Name, OnTop, TrainingSpec
from memlint.trainers import liger
from memlint.trainers.table import ALWAYS

_VERSION = "LLaMA-Factory 0.9"
_METHODS = {"pt": "pretraining", "sft": "sft", "rm": "reward", "ppo": "ppo", "dpo": "dpo", "kto": "kto"}
# Switches that put another way of training in place of the Trainer's or the model's own.
_OTHERWISE = {
    "use_kt": "what KTransformers leaves on the card is not known",
    "use_hyper_parallel": "how HyperParallel shares the model is not known",
    "mixture_of_depths": "which tokens pass a layer by is not known",
    "use_llama_pro": "which blocks the model was expanded by is not known",
    "fp8": "8-bit matrix products are not known",
}
_ON_TOP = ("mixture_of_depths", "fp8")  # of what is stated
# train/trainer_utils.py: the optimizers of its own -> (the fact, the library); GaLore's and APOLLO's depend on optim.
_OWN_OPTIMIZERS = {"use_adam_mini": ("adam_mini", "adam_mini")}
_PROJECTED = {"galore": "galore_torch", "apollo": "apollo_torch"}
# LLaMA-Factory 0.9.6.dev0, hparams/megatron_bridge_args.py: without one of the two switches hparams/parser.py refuses
# them.
_MEGATRON_SWITCHES = ("USE_MCA", "USE_MEGATRON_BRIDGE")
_MEGATRON_KEYS = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size"),
    *("context_parallel_size", "virtual_pipeline_model_parallel_size", "use_distributed_optimizer"),
    *("overlap_param_gather", "overlap_grad_reduce", "recompute_granularity", "bias_activation_fusion"),
    *("apply_rope_fusion", "masked_softmax_fusion", "moe_grouped_gemm", "moe_token_dispatcher_type"),
)


def recognise(document: Document, root: Node) -> bool:
    """The same arguments also predict and evaluate: such a command trains only where it says so."""
    entries = root.value if isinstance(root.value, dict) else {}
    trains = entries.get("do_train")
    if trains is not None and (trains.is_unresolved or truth(trains.value)):
        return True
    return not any(name in entries and truth(entries[name].value) for name in ("do_predict", "do_eval"))


def _method(spec: TrainingSpec) -> str:
    """What is trained for; why nothing is."""
    stage, trains = spec.fact(lm.HYPER + "stage"), spec.fact(lm.HYPER + "do_train")
    if stage is None:
        return lm.not_stated(spec, "stage")
    method = _METHODS.get(str(stage.value), str(stage.value))
    loss = spec.fact(lm.HYPER + "pref_loss")
    if method == "dpo" and loss is not None and loss.value in ("orpo", "simpo"):
        method, stage = str(loss.value), loss
    lm.put(spec, "method", method, stage)
    return "" if trains is None or truth(trains.value) else "do_train is not true: the command trains nothing"


def _trained(spec: TrainingSpec) -> str:
    return str(spec.get("method", ""))


def _unknown(spec: TrainingSpec) -> str:
    why = lm.trainer(spec).unknown
    return OnTop(f"{_trained(spec).upper()}: {why}") if why else ""


def _otherwise(spec: TrainingSpec) -> str:
    ancestor = glm_tuning.gap(spec)
    if ancestor:
        return ancestor
    for name, why in _OTHERWISE.items():
        fact = spec.fact(lm.HYPER + name)
        if fact is not None and fact.value and fact.value != "false":
            said = f"{fact.key}: {why}"
            return OnTop(said) if name in _ON_TOP else said
    return _megatron(spec)


def _megatron(spec: TrainingSpec) -> str:
    environment = spec.launch.environment if spec.launch is not None else {}
    on = [name for name in _MEGATRON_SWITCHES if name in environment and truth(environment[name].value)]
    keys = [name for name in _MEGATRON_KEYS if spec.root.get(name) is not None]
    return f"{(on or keys)[0]}: Megatron's own model and arguments" if on or keys else ""


def _unsloth(spec: TrainingSpec) -> str:
    """Unsloth's kernels in place of the model's are known for adapters alone."""
    switch = spec.fact(lm.HYPER + "use_unsloth")
    if switch is None or not truth(switch.value) or _by_unsloth(spec) is not None:
        return ""
    return f"{switch.key}: which of Unsloth's kernels stand in for the model's is not known"


def _by_unsloth(spec: TrainingSpec) -> Fact | None:
    """What says that Unsloth's kernels run, where they are known."""
    switch = spec.fact(lm.HYPER + "use_unsloth")
    known = spec.get("tuning") == "lora" and _trained(spec) in ("sft", "pretraining", "dpo")
    return switch if switch is not None and truth(switch.value) and known else None


def _model_class(spec: TrainingSpec) -> None:
    parts(spec, _VERSION)
    if spec.get("model_class") == "vision_language":
        reason = f"{_VERSION}: get_custom_gradient_checkpointing_func"
        lm.put(spec, "tower_checkpointing", "trained", reason=reason)
    built = lm.trainer(spec).builds
    if built:
        lm.put(spec, "model_class", built, spec.fact("method"), f"{_VERSION}: a head of one value per token")


def parts(spec: TrainingSpec, version: str) -> None:
    """A vision-language model, and which of its parts train."""
    config = spec.get(lm.CONFIG)
    if not lm.senses(config):
        spec.facts["model_class"] = Fact("model_class", "causal_lm", DEFAULT, reason="what the model's config says")
        return
    lm.put(spec, "model_class", "vision_language", spec.fact(lm.CONFIG))
    switches = (
        ("vision_tower", "freeze_vision_tower"),
        ("projector", "freeze_multi_modal_projector"),
        ("language_model", "freeze_language_model"),
    )
    frozen = [(part, spec.facts[lm.HYPER + key]) for part, key in switches if lm.switched(spec, key)]
    written = [fact for _, fact in frozen if fact.origin == WRITTEN]
    origin = written[0] if written else None
    reason = "" if written else f"{version}: only the language model trains"
    lm.put(spec, "frozen_parts", [part for part, _ in frozen], origin, reason)
    _images(spec)


def _images(spec: TrainingSpec) -> None:
    """How large images are made, and how many a sample has, which only the data say."""
    pixels = spec.fact(lm.HYPER + "image_max_pixels")
    numbers = [part.strip() for part in str(pixels.value).split("*")] if pixels is not None else []
    if pixels is not None and numbers and all(number.isdigit() for number in numbers):
        count = 1
        for number in numbers:
            count *= int(number)
        lm.put(spec, "image_size", int(count**0.5), pixels)
    lm.assume_images(spec, "dataset")


def _attention(spec: TrainingSpec) -> None:
    """Models that LLaMA-Factory gives another kernel than the one stated (model_utils/attention.py)."""
    config, stated = spec.get(lm.CONFIG), spec.fact("attention")
    kind = lm.text_config(config).get("model_type", "") if isinstance(config, dict) else ""
    automatic = stated is None or stated.node is None or stated.node.value in (None, "auto")
    if kind == "gpt_oss":
        reason = f"{_VERSION}: GPT-OSS runs on FlashAttention 3, whatever flash_attn says"
        lm.put(spec, "attention", "flash", reason=reason)
    elif kind == "gemma2" and automatic:
        reason = f"{_VERSION}: Gemma 2 runs on FlashAttention 2 where that is installed"
        spec.facts["attention"] = Fact("attention", "flash", ASSUMED, "flash_attn", reason=reason)


def _packing(spec: TrainingSpec) -> None:
    """Pre-training packs unless it is told otherwise; neat packing is packing. Preference pairs are never packed."""
    method = _trained(spec)
    neat, stated = spec.fact(lm.HYPER + "neat_packing"), spec.fact("packing")
    if method not in ("sft", "pretraining"):
        spec.facts.pop("packing", None)
    elif neat is not None and truth(neat.value):
        lm.put(spec, "packing", True, neat)
    elif (stated is None or stated.value is None) and lm.gap(spec, "packing") is None:
        reason = f"{_VERSION}: packing is on in pre-training, and off elsewhere"
        lm.put(spec, "packing", method == "pretraining", reason=reason)


def _kernels(spec: TrainingSpec) -> None:
    """Liger's linear cross entropy only where the stage needs no logits (model_utils/liger_kernel.py)."""
    switch = spec.fact(lm.HYPER + "use_liger_kernel")
    if switch is not None and not _knows_liger(spec):
        lm.put(spec, switch.name, False, switch, f"{_VERSION}: it asks for none of Liger's kernels for this model")
    losses = [name for name in ("use_dft_loss", "use_asft_loss", "use_eaft_loss") if lm.switched(spec, name)]
    if _trained(spec) not in ("sft", "pretraining"):
        lm.put(spec, lm.HYPER + "liger.fused_linear_cross_entropy", False, switch)
        lm.put(spec, lm.HYPER + "liger.cross_entropy", True, switch)
    lm.kernels(spec)
    smooth = spec.fact(lm.HYPER + "label_smoothing")
    origin = spec.fact(lm.HYPER + losses[0]) if losses else smooth if smooth is not None and smooth.value else None
    if origin is not None and spec.get("loss") == "fused":
        lm.put(spec, "loss", "full", origin, "it needs the logits")
    unsloth = _by_unsloth(spec)
    if unsloth is not None:
        known_scripts.unsloth_kernels(spec, unsloth)


_LIGER = tuple(
    lm.HYPER + name for name in ("use_liger_kernel", "liger.fused_linear_cross_entropy", "liger.cross_entropy")
)


def _knows_liger(spec: TrainingSpec) -> bool:
    """Whether it asks for Liger's kernels; also where the type of the model is not known."""
    return (spec.get(lm.CONFIG) or {}).get("model_type") in (None, *liger.ASKED["llamafactory"])


def _optimizer(spec: TrainingSpec) -> None:
    """Switches that put another optimizer in place of ``optim``'s, in the order in which they are asked. BAdam works
    on the one that ``optim`` names."""
    lm.optimizer(spec)
    for name, library in _PROJECTED.items():
        switch = spec.fact(lm.HYPER + f"use_{name}")
        if switch is None or not truth(switch.value):
            continue
        base = spec.get("optimizer", "adamw")
        _replace_optimizer(spec, f"{name}_{base}", library, switch)
        fact: Name
        for fact, key in (("optimizer_rank", "rank"), ("optimizer_targets", "target")):
            inner = spec.fact(lm.HYPER + f"{name}_{key}")
            if inner is not None:
                value = inner.value if key == "rank" else lm.names_of(inner.value)
                lm.put(spec, fact, "inner-linear" if value == ["all"] else value, inner)
        layerwise = spec.fact(lm.HYPER + f"{name}_layerwise")
        if layerwise is not None and truth(layerwise.value):
            lm.put(spec, "optimizer_in_backward", True, layerwise)
        return
    for key, (kind, library) in _OWN_OPTIMIZERS.items():
        switch = spec.fact(lm.HYPER + key)
        if switch is not None and truth(switch.value):
            _replace_optimizer(spec, kind, library, switch)
            return
    muon = spec.fact(lm.HYPER + "use_muon")
    if muon is not None and truth(muon.value):
        _replace_optimizer(spec, "muon", "llamafactory", muon)


def _replace_optimizer(spec: TrainingSpec, kind: str, library: str, switch: Fact) -> None:
    lm.put(spec, "optimizer", kind, switch)
    lm.put(spec, "optimizer_library", library, switch)
    for name in ("optimizer_implementation", "optimizer_paged"):
        spec.facts.pop(name, None)


# ---------------------------------------------------------------------------------------------- what trains

_OF_TUNING = {"lora": ("lora",), "freeze": ("freeze",), "oft": ("oft",)}


def _adapters(spec: TrainingSpec) -> str:
    """What trains. The trainers of preferences switch dropout off (train/dpo/trainer.py, train/kto/trainer.py)."""
    why = _tuning(spec) or _blocks(spec)
    lm.undropped(spec, f"{_VERSION}: preference training switches dropout off")
    return why


def _tuning(spec: TrainingSpec) -> str:
    """Which weights train: adapters, some layers, or all."""
    stated = spec.fact(lm.HYPER + "finetuning_type")
    if stated is None:
        return lm.not_stated(spec, "finetuning_type")
    kind = str(stated.value)
    for name in list(spec.facts):
        if kind not in _OF_TUNING.get(name.partition(".")[0], (kind,)):
            del spec.facts[name]
    if kind == "full":
        lm.put(spec, "tuning", "full", stated)
    elif kind == "lora":
        return _lora(spec, stated)
    elif kind in ("freeze", "oft"):
        lm.put(spec, "tuning", kind, stated)
        modules: Name
        for modules in ("freeze.modules", "freeze.extra_modules", "oft.targets"):
            fact = spec.fact(modules)
            if fact is not None and fact.value:
                names = lm.names_of(fact.value)
                every = modules == "oft.targets" and names == ["all"]
                lm.put(spec, modules, "all-linear" if every else names, fact)
    return ""


def _blocks(spec: TrainingSpec) -> str:
    """BAdam: one layer trains at a time, on copies in float32. The first one needs the most, as gradients come to it
    through all others (badam/block_optim.py; embeddings and head never train)."""
    switch, mode = spec.fact(lm.HYPER + "use_badam"), spec.fact(lm.HYPER + "badam_mode")
    if switch is None or not truth(switch.value) or "galore" in spec.get("optimizer", ""):
        return ""
    if mode is not None and mode.value == "ratio":
        return f"{mode.key} ratio: BAdam by a share of each matrix is not known"
    if spec.get("tuning") != "full":
        return f"{switch.key} beside finetuning_type {spec.get('tuning')}: BAdam over them is not known"
    which, first = spec.fact(lm.HYPER + "badam_switch_mode"), spec.fact(lm.HYPER + "badam_start_block")
    if which is not None and which.value == "fixed" and first is not None and first.value:
        return f"{first.key} {first.value}: BAdam that stays with one layer other than the first is not known"
    lm.put(spec, "tuning", "freeze", switch, "BAdam: one layer at a time")
    lm.put(spec, "freeze.layers", -1, switch, "BAdam: the first layer needs the most")
    lm.put(spec, "freeze.modules", "all", switch)
    return ""


def _lora(spec: TrainingSpec, stated: Fact) -> str:
    lm.put(spec, lm.HYPER + "use_peft", True, stated)
    resized = [
        name
        for name in ("resize_vocab", "add_tokens", "add_special_tokens", "new_special_tokens_config")
        if lm.setting(spec, name)
    ]
    saved = spec.fact("lora.modules_to_save")
    if resized and (saved is None or not saved.value):
        origin = spec.fact(lm.HYPER + resized[0])
        lm.put(spec, "lora.modules_to_save", ["embed_tokens", "lm_head"], origin, "added tokens train")
    why = _resumed(spec)
    return lm.adapters(spec) or why


def _resumed(spec: TrainingSpec) -> str:
    """An adapter that training goes on with states rank and targets itself; why they are not known."""
    named, new = spec.fact(lm.HYPER + "adapter"), spec.fact(lm.HYPER + "create_new_adapter")
    if named is None or not named.value or (new is not None and truth(new.value)):
        return ""
    folder = lm.names_of(named.value)[-1]
    beside = named.span.path if named.span is not None else spec.document.path
    document, _ = companions.read(folder.rstrip("/") + "/adapter_config.json", beside)
    if document is None:
        return f"{named.key} {folder}: the adapter that training goes on with is not there to state its rank"
    sources = spec.document.sources or {spec.document.path: spec.document.text}
    spec.document = spec.document._replace(sources={**sources, document.path: document.text})
    fact: Name
    for key, fact in (
        ("r", "lora.r"),
        ("lora_alpha", "lora.alpha"),
        ("lora_dropout", "lora.dropout"),
        ("target_modules", "lora.targets"),
        ("modules_to_save", "lora.modules_to_save"),
        ("use_dora", lm.HYPER + "use_dora"),
    ):
        node = document.root.get(key)
        if node is not None and not node.is_unresolved:
            spec.facts[fact] = Fact(fact, node.plain(), WRITTEN, key, node)
    return ""


def _quantization(spec: TrainingSpec) -> str:
    why, unsloth = _quantized(spec), _by_unsloth(spec)
    if unsloth is not None:
        known_scripts.unsloth_quantizes(spec, unsloth)
    return why


def _quantized(spec: TrainingSpec) -> str:
    """bitsandbytes, another library, or a checkpoint that is quantised already and stays so."""
    bits, method = spec.fact(lm.HYPER + "bits"), lm.setting(spec, "quantization_method")
    stored = lm.stored_quantization(spec)
    if stored or bits is None or bits.value is None or method == "bnb":
        if not stored:
            lm.quantization(spec)
        elif spec.get("quantization.kind") not in ("nf4", "fp4"):
            spec.facts.pop("quantization.double", None)
        origin = spec.fact("quantization.bits")
        if origin is not None and spec.get("tuning") not in ("lora", "dora", "oft"):
            return f"{origin.key}: quantised weights do not train, and {_VERSION} refuses to train them"
        return ""
    lm.put(spec, "quantization.bits", bits.value, bits)
    lm.put(spec, "quantization.kind", method, spec.fact(lm.HYPER + "quantization_method"))
    spec.facts.pop("quantization.double", None)
    return ""


# ---------------------------------------------------------------------------------------------- how it runs


def _processes(spec: TrainingSpec) -> None:
    """``llamafactory-cli train`` starts torchrun itself, by variables of the environment (launcher.py), and then has
    the allocator grow its segments. Ray starts as many processes as the config says."""
    if spec.launch is None:
        return
    environment = spec.launch.environment
    if "USE_RAY" in environment and truth(environment["USE_RAY"].value):
        count = spec.fact(lm.HYPER + "ray_num_workers")
        lm.put(spec, "device_count", 1 if count is None else count.value, count, "" if count else f"{_VERSION}: 1")
        return
    first = spec.launch.words[0].value if spec.launch.words else ""
    if first != "train" or spec.launch.launchers:
        return
    found = launchers.counted(spec.launch, "NPROC_PER_NODE", "NNODES")
    spec.missing = (*spec.missing, *found.missing)
    if found.total is not None:
        lm.put(spec, "device_count", found.total.value, found.total)
    forced = "FORCE_TORCHRUN" in environment and truth(environment["FORCE_TORCHRUN"].value)
    kept = "OPTIM_TORCH" in environment and not truth(environment["OPTIM_TORCH"].value)
    if (forced or spec.get("device_count", 1) > 1) and not kept:
        reason = f"{_VERSION}: launcher.py sets it where it starts torchrun"
        lm.put(spec, "allocator_conf", "expandable_segments:True", reason=reason)


def _shipped(spec: TrainingSpec) -> None:
    shipped.settle(spec, shipped.LLAMA_FACTORY, _VERSION)


def _checkpointing(spec: TrainingSpec) -> None:
    """It is on unless it is switched off; the Trainer's own switch turns it on again (model_utils/checkpointing.py)."""
    trainer, inner = spec.fact(lm.HYPER + "gradient_checkpointing"), spec.fact(lm.HYPER + "use_reentrant")
    if trainer is not None and truth(trainer.value):
        if spec.get("checkpointing") != "full":
            lm.put(spec, "checkpointing", "full", trainer)
        if inner is not None and inner.value is not None:
            lm.put(spec, "checkpointing_reentrant", truth(inner.value), inner)
    elif spec.get("parallelism.strategy") == "fsdp2":
        reason = f"{_VERSION}: not the reentrant kind under FSDP2"
        lm.put(spec, "checkpointing_reentrant", False, reason=reason)
    offload = spec.fact(lm.HYPER + "use_unsloth_gc")
    if offload is not None and truth(offload.value) and spec.get("checkpointing") == "full":
        lm.put(spec, "activation_offloading", True, offload)
    unsloth = _by_unsloth(spec)
    if unsloth is not None:
        known_scripts.unsloth_offloads(spec, unsloth)


def _precision(spec: TrainingSpec) -> str:
    """What trains is cast to float32 unless ``pure_bf16`` keeps it (model/adapter.py). DeepSpeed casts as it likes."""
    kept = next((name for name in ("pure_bf16", "use_badam") if lm.switched(spec, name)), "")
    blocks, tuned = spec.fact(lm.HYPER + "use_badam"), spec.fact("tuning")
    if blocks is not None and tuned is not None and tuned.key == blocks.key:
        lm.put(spec, "master_weights", True, blocks, "BAdam: the layer that trains has a copy in float32")
    tuning = spec.get("tuning", "full")
    checkpoint = lm.weights(spec)
    reason = f"{_VERSION}: what trains is cast to float32"
    cast = Fact("parameter_dtype", "float32", DEFAULT, "pure_bf16", reason=reason)
    why = lm.precision(spec, cast if tuning == "full" and not kept and checkpoint is not None else checkpoint)
    if tuning == "full":
        tried = spec.tried("parameter_dtype")
        if tried is not None:
            lm.put(spec, "frozen_dtype", tried.value, tried)
    if tuning == "freeze":
        spec.facts.pop("lora.dtype", None)
        if spec.get("parallelism.strategy") != "zero" and checkpoint is not None:
            spec.facts["parameter_dtype"] = checkpoint if kept else cast
    norms = spec.fact(lm.HYPER + "upcast_layernorm")
    if norms is not None and truth(norms.value) and spec.get("parallelism.strategy") != "zero":
        lm.put(spec, "float32_parts", ["norms"], norms)
    return why


def _reference(spec: TrainingSpec) -> None:
    """The model without its LoRA adapters, a copy in the checkpoint's dtype, or another model."""
    method, asft = _trained(spec), spec.fact(lm.HYPER + "use_asft_loss")
    needed = lm.trainer(spec).reference == ALWAYS or (method == "sft" and asft is not None and truth(asft.value))
    if not needed:
        if method:
            lm.put(spec, "reference_model", "none", reason=f"{method} needs none")
        return
    other, bits = spec.fact(lm.HYPER + "ref_model"), spec.fact(lm.HYPER + "ref_model_bits")
    dtype = lm.weights(spec)
    if other is not None and other.value:
        lm.put(spec, "reference_model", "none", other, "another model is the reference")
        helper = {"model": other.value, "dtype": dtype.value if dtype is not None else "bfloat16"}
        if bits is not None and bits.value:
            helper["bits"] = bits.value
        lm.put(spec, "helper_models", [helper], other)
    elif spec.get("tuning") in ("lora", "dora"):
        lm.put(spec, "reference_model", "adapter_off", spec.fact("tuning"), "without its adapters it is the reference")
    else:
        reason = f"{_VERSION}: a copy, in the checkpoint's dtype"
        lm.put(spec, "reference_model", "copy", reason=reason)
        if dtype is not None:
            lm.put(spec, "reference_dtype", dtype.value, reason=reason)


FAMILY = lm.Family(
    stated=Graph(
        Step(_method, ("method",)),
        Step(lm.model, lm.MODEL_FACTS),
        Step(glm_tuning.prepare, glm_tuning.FACTS),
        Step(_processes, ("device_count", "allocator_conf")),
        Step(_shipped, (lm.HYPER + "deepspeed",)),
    ),
    follows=Graph(
        Step(lm.on_cpu),
        Step(_otherwise),
        Step(_unknown),
        Step(_model_class, ("model_class", "frozen_parts", "image_size", "images_per_sample", "tower_checkpointing")),
        Step(lm.pairs, ("sequences_per_sample",)),
        Step(_attention, ("attention",)),
        Step(_packing, ("packing",)),
        Step(lm.older_defaults, (lm.HYPER + "optim",)),
        Step(_optimizer, lm.OPTIMIZER_FACTS),
        Step(_kernels, ("loss", "loss_chunks", "fused_kernels", *_LIGER)),
        Step(lm.compiled, ("compile",)),
        Step(_adapters, (*lm.ADAPTER_FACTS, lm.HYPER + "use_peft", lm.HYPER + "use_dora"), ("freeze.", "oft.")),
        Step(_quantization, lm.QUANTIZATION_FACTS),
        Step(_unsloth),
        Step(lm.processes, lm.PROCESS_FACTS),
        Step(_checkpointing, lm.CHECKPOINTING_FACTS),
        Step(_precision, (*lm.PRECISION_FACTS, "float32_parts")),
        Step(_reference, ("reference_model", "reference_dtype", "helper_models")),
        Step(lm.evaluation, lm.EVALUATION_FACTS),
    ),
    told=(
        *("on_cpu", "method", "model", "otherwise", "adapters", "unsloth", "quantization", "sharing", "precision"),
        "unknown",
    ),
    keys={"sequence_length": "cutoff_len"},
)


# ---------------------------------------------------------------------------------------------- spelling


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """LLaMA-Factory's own keys where they are not the Trainer's."""
    own = (*(f"use_{name}" for name in _PROJECTED), "use_badam", *_OWN_OPTIMIZERS, "use_muon")
    if not glm_tuning.may_spell(spec, fact):
        return []
    if fact in ("optimizer", "optimizer_implementation") and any(lm.switched(spec, name) for name in own):
        return []  # another switch names it
    if fact == "parameter_dtype":
        checkpoint = lm.weights(spec)
        if spec.get("tuning", "full") not in ("full", "freeze") or checkpoint is None:
            return []
        if spec.get("parallelism.strategy", "none") not in ("none", "ddp"):
            return []
        names = {checkpoint.value: True, "float32": False}
        return lm.write(spec, lm.HYPER + "pure_bf16", names[value]) if value in names else []
    if fact == "frozen_dtype":
        return []
    if fact == "quantization.bits" and "quantization.bits" not in spec:
        if spec.get("tuning") not in ("lora", "dora"):
            return []
        return lm.write(spec, lm.HYPER + "bits", value)
    if fact == "loss" and (spec.get("method") not in ("sft", "pretraining") or not _knows_liger(spec)):
        return []
    return lm.spell(spec, fact, value, ("attention", "sequence_length"))
