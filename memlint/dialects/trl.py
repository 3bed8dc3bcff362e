"""Family trl: recipes and command lines of TRL's trainers."""

from __future__ import annotations

import re
from typing import Any, Final

from memlint import releases
from memlint.dialects import frameworks, known_scripts, registry, shardings
from memlint.dialects import language_model as lm
from memlint.dialects.accelerate import accelerate_facts, named_config, truth, unknown_sharing
from memlint.dialects.companions import Companion
from memlint.dialects.software import NOTEBOOK
from memlint.dialects.stated import tree as tree_of
from memlint.dialects.trees import find
from memlint.dialects.unread import own_way
from memlint.documents.node import Document, Edit, Node
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import ASSUMED, DEFAULT, WRITTEN, Fact, Missing, Name, OnTop, TrainingSpec
from memlint.releases.behaviour import Series
from memlint.releases.days import DAYS
from memlint.trainers.embedders import LIBRARIES
from memlint.trainers.table import ALWAYS, LOG_PROBABILITIES, NONE, TRAINERS, method_of

_VERSION = "TRL 1.16"
METHODS = tuple(method_of(name) for name in TRAINERS if name.startswith("trl."))
_BESIDE: Final = "transformers_version"
_CUDA = re.compile(r"cuda:(\d{1,6})")
_PROMPT = 512  # max_prompt_length, where TRL had one
_GENERATE = ("num_generations", "use_vllm", "generation_batch_size", "steps_per_generation")
# trl/accelerate_configs: name -> (distributed_type, further keys), each for 8 processes in bf16
_SHIPPED: dict[str, tuple[str, dict[str, Any]]] = {
    "single_gpu": ("NO", {}),
    "multi_gpu": ("MULTI_GPU", {}),
    "zero1": ("DEEPSPEED", {"deepspeed_config": {"zero_stage": 1}}),
    "zero2": ("DEEPSPEED", {"deepspeed_config": {"zero_stage": 2}}),
    "zero3": ("DEEPSPEED", {"deepspeed_config": {"zero_stage": 3}}),
    "fsdp1": ("FSDP", {"fsdp_config": {"fsdp_version": 1, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}}),
    "fsdp2": ("FSDP", {"fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}}),
}
# trl/kernels/chunked_logprob.py: the loss goes through the head in tiles of so many tokens and rows of the vocabulary.
LOSS_TILE = (4096, 32768)
_RELEASE: Final = "release.trl"


# Keys that only trainers of pairs have, of those whose method nothing else says.
PREFERENCES = ("beta", "precompute_ref_log_probs", "max_prompt_length")


def recognise(document: Document, root: Node) -> bool:
    """Programs of other families take the keys of TRL's trainers too. A file of the alignment handbook's older scripts
    is DPOTrainer's where it has a key of that (scripts/run_dpo.py before their recipes named a dataset_mixture)."""
    if root.get("dataset_mixer") is not None and all(root.get(key) is None for key in PREFERENCES):
        return False
    return not lm.is_of_another_family(document, root, (*lm.EXAMPLES, *LIBRARIES))


def _half(spec: TrainingSpec) -> None:
    """bf16, which TRL's configs have on."""
    mixed = spec.fact(lm.HYPER + "bf16")
    if (mixed is None or mixed.value is None) and not lm.switched(spec, "fp16"):
        key = "--bf16" if spec.launch is not None and spec.document.format == "shell" else "bf16"
        reason = f"{_VERSION}: bf16 unless fp16 is set"
        spec.facts[lm.HYPER + "bf16"] = Fact(lm.HYPER + "bf16", True, DEFAULT, key, reason=reason)


def _model_class(spec: TrainingSpec) -> None:
    """What the trainer of the method builds."""
    trained = spec.fact("method")
    found = lm.trainer(spec)
    if found.builds:
        lm.put(spec, "model_class", found.builds, trained)
        lm.put(spec, "labels", found.labels, reason=f"{_VERSION}: RewardTrainer")
        return
    lm.put(spec, "model_class", "causal_lm", reason=f"{_VERSION}: AutoModelForCausalLM")
    sees = lm.senses(spec.get(lm.CONFIG)) and trained is not None and trained.value in ("sft", "dpo")
    if sees or (trained is not None and trained.value == "sft" and trained.origin == ASSUMED):
        lm.class_by_type(spec)
        lm.assume_images(spec, tiles=True)
    elif lm.senses(spec.get(lm.CONFIG)):
        lm.class_by_type(spec)
        parts = ["vision_tower", "projector"]  # a bound has no more than surely trains
        lm.put(spec, "frozen_parts", parts, trained, "which parts train that see is not known")


def _attention(spec: TrainingSpec) -> None:
    """As the model is told to be built, or the trainer's ``model_init_kwargs`` say."""
    lm.attention(spec)
    inner = spec.fact(lm.HYPER + "init_attention")
    if inner is not None and inner.value:
        flash = "flash" in str(inner.value)
        lm.put(spec, "attention", "flash" if flash else str(inner.value), inner)


def _losses(spec: TrainingSpec) -> None:
    """The trainer's own way from the last hidden state to a loss, and Liger's."""
    _loss(spec, spec.get("method", ""))
    lm.kernels(spec)
    _own_head(spec)
    if spec.get("loss") != "chunked":
        spec.facts.pop("loss_tile", None)


def _adapters(spec: TrainingSpec) -> str:
    adapted = lm.adapters(spec)
    _dropout(spec, spec.get("method", ""))
    return adapted


def _precision(spec: TrainingSpec) -> str:
    _adapter_dtype(spec)
    return lm.precision(spec, lm.weights(spec, spec.fact(lm.HYPER + "init_dtype"), _dtype(spec)))


def _unknown(spec: TrainingSpec) -> str:
    if own := frameworks.other(spec) or own_way(spec):
        return own
    found, why = lm.trainer(spec), lm.trainer(spec).unknown
    if found is NONE and "method" in spec:
        return f"{spec['method']}: {spec.family} names no trainer of TRL's for it"
    said = f"{spec['method'].upper()}: {why}" if why else ""
    if not said and lm.senses(spec.get(lm.CONFIG)) and spec["method"] not in ("sft", "dpo"):
        said = f"{spec['method'].upper()} of a model that sees: what images take of its prompts is not known"
    return said if found.builds else OnTop(said)


def _method(spec: TrainingSpec) -> str:
    """Which trainer, by the program, by the keys, then by the folders that recipes stand in. Why that is not known."""
    stated = registry.dialect(spec.family).header.get("trainer", "")
    if isinstance(stated, str) and stated in TRAINERS:
        lm.put(spec, "method", method_of(stated), reason=TRAINERS[stated].title)
        return ""
    said = spec.fact("method")
    if said is not None and said.node is not None:  # a key of a family that is TRL inside says it
        return ""
    words: list[str] = []
    if spec.launch is not None:
        words = [spec.launch.called]
        words += [str(word.value) for word in spec.launch.words[:1] if isinstance(word.value, str)]
    for word in words:
        base = word.rsplit("/", 1)[-1].removesuffix(".py").rsplit(".", 1)[-1]
        named = _named(base.lower().replace("-", "_"))
        if named:
            lm.put(spec, "method", named, reason=f"{base} trains it")
            return ""
    for key in _GENERATE:
        fact = spec.fact(lm.HYPER + key)
        if fact is not None:
            lm.put(spec, "method", "grpo", fact, "a key of the trainers that generate")
            return ""
    tokens = "".join(c if c.isalnum() else " " for c in spec.document.path.lower()).split()
    named = _named("_".join(tokens[-8:]))
    if named:
        reason = "the config's path names it"
        spec.facts["method"] = Fact("method", named, ASSUMED, reason=reason)
        return ""
    for key in PREFERENCES:
        fact = spec.fact(lm.HYPER + key)
        if fact is not None and fact.node is not None:
            why = f"{fact.key} is a key of several of TRL's trainers, and no file says which one reads it"
            return OnTop(why)  # all of them train the policy
    spec.facts["method"] = Fact("method", "sft", ASSUMED, reason="no key of another trainer is there")
    return ""


def _named(words: str) -> str:
    """The method that words with underscores between them name; of ``online_dpo`` and ``dpo`` the longer one."""
    return max((method for method in METHODS if f"_{method}_" in f"_{words}_"), key=len, default="")


# Switches of peft/examples/sft/train.py that TRL's own scripts do not have, and the defaults beside them.
_EXAMPLE_KEYS = ("use_peft_lora", "use_4bit_quantization", "use_8bit_quantization", "use_nested_quant")
_EXAMPLE: dict[Name, Any] = {
    "lora.r": 64,
    "lora.alpha": 16,
    "lora.dropout": 0.1,
    "lora.targets": ["q_proj", "k_proj", "v_proj", "o_proj", "down_proj", "up_proj", "gate_proj"],
    "attention": "eager",
}


def _scripts(spec: TrainingSpec) -> None:
    """What scripts around TRL's trainers do beyond their keys."""
    known_scripts.firefly(spec)
    _peft_example(spec)


def _peft_example(spec: TrainingSpec) -> None:
    """PEFT's example script around SFTTrainer has defaults of its own for the model."""
    switches = [spec.fact(lm.HYPER + name) for name in ("use_peft", "load_in_4bit", "load_in_8bit")]
    switches.append(spec.fact("quantization.double"))
    if not any(one is not None and one.node is not None and one.label.lstrip("-") in _EXAMPLE_KEYS for one in switches):
        return
    for name, value in _EXAMPLE.items():
        stated = spec.fact(name)
        if stated is None or stated.node is None:
            key = "" if stated is None else stated.key
            spec.facts[name] = Fact(name, value, DEFAULT, key, reason="PEFT's examples/sft/train.py")
    template = find(spec.root, "chat_template_format")
    if template is not None and template.value in ("chatml", "zephyr"):  # these bring tokens of their own
        fact = Fact(lm.HYPER + "chat_template_format", template.value, WRITTEN, "--chat_template_format", template)
        lm.put(spec, "embeddings_resized", True, fact, "PEFT's examples/sft/utils.py")


def _dtype(spec: TrainingSpec) -> Fact | None:
    """TRL's scripts load float32 unless they are told otherwise. Under FSDP all tensors of a layer have the dtype that
    4-bit codes are stored in, so where only that is stated, it is that of the other weights too."""
    stated, storage = spec.fact(lm.HYPER + "dtype"), spec.fact(lm.HYPER + "quant_storage")
    if (stated is None or stated.node is None) and storage is not None and lm.dtype_of(storage.value):
        return storage
    return stated


# What a program says that hands SFTTrainer samples as they are (TRL 0.15 to 1.16: sft_trainer.py, preprocess_dataset):
# nobody cuts or packs them, but a collator of the program's own.
_AS_THEY_ARE = re.compile(r"skip_prepare_dataset[\"']?\s?[:=]\s?True")


def _are_as_they_are(spec: TrainingSpec) -> bool:
    """Whether samples are taken as they are, by the program that a command starts."""
    if spec.get("method") != "sft" or spec.launch is None:
        return False
    from memlint.dialects import own_code, scripts

    path = scripts.file_of(spec.launch, spec.document)
    made = own_code.module(path) if path is not None else None
    return made is not None and _AS_THEY_ARE.search(made.text) is not None


def _completions(spec: TrainingSpec) -> None:
    """A sample of those that generate is a prompt and its completion; one that is taken as it is has any length."""
    length = spec.fact("sequence_length")
    if length is not None and length.node is not None and _are_as_they_are(spec):
        why = "the program has skip_prepare_dataset: nothing cuts its samples, whose longest no file states"
        spec.facts["sequence_length"] = length._replace(value=None, reason=why)
    if not lm.trainer(spec).generates:
        return
    prompt, completion = spec.fact(lm.HYPER + "max_prompt_length"), spec.fact(lm.HYPER + "max_completion_length")
    spec.facts.pop("sequence_length", None)
    longest = 512 if completion is None or completion.value is None else completion.value
    if completion is None:
        lm.put(spec, lm.HYPER + "max_completion_length", longest, reason=f"{_VERSION}: GRPOConfig, RLOOConfig")
    if prompt is not None and prompt.value is not None:
        lm.put(spec, "sequence_length", prompt.value + longest, completion or prompt)
    elif prompt is not None:
        spec.facts["sequence_length"] = prompt._replace(name="sequence_length")  # null, which cuts nothing
    elif lm.gap(spec, "max_prompt_length") is None:
        reason = "prompts of 512 tokens, as which TRL cut them before 0.29; later ones take any length"
        length = Fact("sequence_length", _PROMPT + longest, ASSUMED, "max_prompt_length", reason=reason)
        spec.facts["sequence_length"] = length
    lm.put(spec, "completion_length", longest, spec.fact(lm.HYPER + "max_completion_length"))


def _engine(spec: TrainingSpec) -> None:
    """vLLM beside the training: on its card, as a server elsewhere, or on a device of its own."""
    if not lm.trainer(spec).generates or not lm.setting(spec, "use_vllm"):
        return
    if spec.does("trl.engine_has_a_device"):
        stated, usual = spec.root.get("vllm_device"), 0.9
        device = "auto" if stated is None else str(stated.value)
        rank = _CUDA.fullmatch(device)
        # auto is the one after those that train; where there is none, as for most notebooks, that one.
        alone = device == "auto" and spec.document.path.lower().endswith(NOTEBOOK)
        shares = alone or (rank is not None and int(rank[1]) < spec.get("device_count", 1))
    else:
        mode, usual = lm.setting(spec, "vllm_mode"), 0.3
        shares = spec.does("trl.engine_shares_the_card") if mode is None else mode == "colocate"
    if shares:
        share = spec.fact(lm.HYPER + "vllm_gpu_memory_utilization")
        reason = f"{_said(spec)}: GRPOConfig, RLOOConfig"
        lm.put(spec, "engine_share", usual if share is None else share.value, share, "" if share else reason)


def _generated(spec: TrainingSpec) -> None:
    """How many completions a device samples at once, where no engine does: those of all steps until it samples again
    (GRPOConfig.__post_init__)."""
    engine = spec.fact(lm.HYPER + "use_vllm")
    if not lm.trainer(spec).generates or (engine is not None and engine.value):
        return
    whole, several = spec.fact(lm.HYPER + "generation_batch_size"), spec.fact(lm.HYPER + "steps_per_generation")
    origin = whole
    if whole is not None and whole.value:
        rows = max(1, whole.value // spec.get("device_count", 1))
    else:
        origin = several if several is not None and several.value else spec.fact("gradient_accumulation_steps")
        rows = spec.get("micro_batch_size", 1) * (origin.value if origin is not None and origin.value else 1)
    lm.put(spec, "generated_rows", rows, origin, f"{_VERSION}: all completions between two generations, at once")


def _packing(spec: TrainingSpec) -> None:
    """Best-fit packing concatenates the samples of a batch. DPO has done without padding_free since its arguments lost
    max_prompt_length (dpo_trainer.py)."""
    method = spec.get("method", "")
    if method != "sft":
        spec.facts.pop("packing", None)
        flat = spec.fact("padding_free")
        if method == "dpo" and flat is not None and flat.value and lm.HYPER + "max_prompt_length" not in spec:
            lm.put(spec, "padding_free", False, flat, f"{_VERSION}: DPOTrainer pads, whatever padding_free says")
        return
    packing, strategy = spec.fact("packing"), spec.fact(lm.HYPER + "packing_strategy")
    if packing is not None and packing.value and _are_as_they_are(spec):
        lm.put(spec, "packing", False, packing, "samples that are not prepared are not packed")
        return
    if (
        packing is not None
        and packing.value
        and strategy is not None
        and str(strategy.value).startswith(("bfd", "ffd"))
    ):
        lm.put(spec, "padding_free", True, packing, f"{_VERSION}: {strategy.value} packing is padding-free")


def _dropout(spec: TrainingSpec, method: str) -> None:
    """The switch for it goes before what the trainer does by itself."""
    stated = spec.fact(lm.HYPER + "disable_dropout")
    if stated is None or stated.value is None:
        lm.undropped(spec, f"{_VERSION}: {method} switches dropout off")
    elif truth(stated.value) and "lora.dropout" in spec:
        lm.put(spec, "lora.dropout", 0.0, stated)


def _own_head(spec: TrainingSpec) -> None:
    """Liger's loss would replace the forward pass that has TRL's own head in it, so only its layers are taken; what
    smooths labels needs the logits (sft_trainer.py)."""
    smooth, fused = spec.fact(lm.HYPER + "label_smoothing"), spec.fact("fused_kernels")
    if "loss_tile" not in spec:
        return
    if smooth is not None and smooth.value and spec.get("method") == "sft":
        lm.put(spec, "loss", "full", smooth, "label smoothing needs the logits")
    elif fused is not None and spec.get("loss") == "fused":
        left = [name for name in fused.value if name != "linear_cross_entropy"]
        lm.put(spec, "fused_kernels", left, fused, f"{_VERSION}: Liger's layers, and TRL's own loss")
        lm.put(spec, "loss", "chunked", reason=f"{_VERSION}: add_fused_lm_head")


def _release(spec: TrainingSpec) -> None:
    """Which TRL runs, where no file pins one, and which transformers beside it: the last that take all keys that are
    written, as they were newest on one day; else the newest."""
    lm.release(spec)
    if _RELEASE in spec:
        return
    older, beside = _older_key(spec), spec.fact(_BESIDE)
    if older is not None:
        node, without = older
        key, last = node.key_path.rsplit(".", 1)[-1], f"{without[0]}.{without[1] - 1}"
        reason = f"{key} is of TRL before {without[0]}.{without[1]}"
        spec.facts[_RELEASE] = Fact(_RELEASE, last, ASSUMED, node.key_path, reason=reason)
        if beside is None:
            newest = releases.on("transformers", DAYS["trl"][without])
            reason = f"{reason}, and this was the newest then"
            spec.facts[_BESIDE] = Fact(_BESIDE, newest, ASSUMED, node.key_path, node, reason)
    else:
        reason = f"the newest that is known, {_VERSION}: no file pins another"
        spec.facts[_RELEASE] = Fact(_RELEASE, releases.LIBRARIES["trl"].newest, ASSUMED, "trl", reason=reason)


def _said(spec: TrainingSpec) -> str:
    """Which release a default is of, as a reason says it."""
    stated = spec.fact(_RELEASE)
    if stated is None or stated.value == releases.LIBRARIES["trl"].newest:
        return _VERSION
    return stated.reason or f"TRL {stated.value}"


# Keys that a trainer took once, and the first release that refuses or ignores them (trl/trainer/*_config.py and
# grpo_trainer.py, in the wheels of 0.8.6 to 1.16).
_OF_PREFERENCES = (
    *("max_prompt_length", "max_completion_length", "label_pad_token_id", "ref_model_init_kwargs"),
    "generate_during_eval",
)
_WITHOUT: dict[str, dict[str, Series]] = {
    "sft": dict.fromkeys(("chars_per_token", "dataset_batch_size", "num_of_sequences", "use_liger"), (0, 18)),
    "dpo": {
        "max_target_length": (0, 14),
        "use_liger_loss": (0, 28),
        **dict.fromkeys((*_OF_PREFERENCES, "rpo_alpha", "reference_free", "force_use_ref_model"), (0, 29)),
    },
    "kto": dict.fromkeys((*_OF_PREFERENCES, "use_liger_loss", "truncation_mode"), (0, 26)),
    "grpo": {
        "vllm_device": (0, 16),
        **dict.fromkeys(("vllm_dtype", "vllm_max_model_len"), (0, 18)),
        **dict.fromkeys(("max_prompt_length", "use_liger_loss"), (0, 28)),
    },
}
_LENGTHS = ("max_seq_length", "max_seq_len")  # max_length since 0.20


def _older_key(spec: TrainingSpec) -> tuple[Node, Series] | None:
    """Of the written keys that newer releases do not take, the one that went first, and the first release without it.
    Where the project asks for a release that has no such key, the key is another program's, and tells nothing."""
    least = releases.series((spec.get("oldest_releases") or {}).get("trl")) or ()
    found: list[tuple[Series, Node]] = []
    length = spec.fact("sequence_length")
    if length is not None and length.node is not None and length.label.lstrip("-").startswith(_LENGTHS):
        found.append(((0, 20), length.node))
    for name, without in _WITHOUT.get(spec.get("method", ""), {}).items():
        node = spec.root.get(name)
        if node is not None:
            found.append((without, node))
    taken = [(without, node) for without, node in found if least < without]
    without, node = min(taken, key=lambda pair: pair[0], default=((), None))
    return None if node is None else (node, without)


def _loss(spec: TrainingSpec, method: str) -> None:
    """SFT, DPO and those that generate score tokens through the head in tiles, and never hold the logits."""
    kind, older = spec.fact(lm.HYPER + "loss_type"), spec.fact(_RELEASE)
    found = lm.trainer(spec)
    whole = not (found.tiled and spec.does(found.tiled))
    if method == "sft" and kind is not None and not spec.does("trl.sft_loss_in_tiles"):
        whole = kind.value in ("nll", "dft") or (whole and kind.value != "chunked_nll")  # each has a name of its own
        older = kind
    if not whole:
        reason = f"{_said(spec)}: add_fused_lm_head"
        lm.put(spec, "loss", "chunked", reason=reason)
        lm.put(spec, "loss_tile", LOSS_TILE, reason=reason)
    elif method == "sft":
        lm.put(spec, "loss", "full", older, f"{_said(spec)}, which holds the logits")
    elif found.takes == LOG_PROBABILITIES:
        way = found.scores or _scored(spec, found.generates, method == "dpo")
        reason = f"{found.title}, which makes them itself" if found.scores else f"{_said(spec)}: selective_log_softmax"
        lm.put(spec, "log_probabilities", way, reason=reason)
        if found.generates and spec.get("completion_length") is not None:
            # and the token before them, whose logits are of the first one
            kept = spec.fact("completion_length")
            lm.put(spec, "logits_to_keep", spec["completion_length"] + 1, kept, f"{found.title}: logits_to_keep")
        if lm.takes_likelihood(spec, found):
            reason = f"{_said(spec)}: the likelihood of chosen answers is part of the loss"
            lm.put(spec, "likelihood_of_chosen", True, reason=reason)


def _scored(spec: TrainingSpec, generates: bool, is_dpo: bool) -> str:
    """How log-probabilities are taken of whole logits, by the names of memlint/models/language/log_probabilities.py."""
    if spec.does("trl.log_probabilities_in_a_kernel"):
        return "kernel"
    if not spec.does("trl.log_probabilities_row_by_row"):
        return "returned"
    if is_dpo:
        return _first(spec, {"trl.dpo_copies_logits": "copied", "trl.dpo_rolls_labels": "as_returned"}) or "rows"
    divided = {"trl.divides_logits_in_place": "divided_in_place", "trl.divides_logits": "divided"}
    return (generates and _first(spec, divided)) or "rows"


def _first(spec: TrainingSpec, ways: dict[str, str]) -> str:
    """That of the first behaviour which the run's release has; "" for none."""
    return next((way for behaviour, way in ways.items() if spec.does(behaviour)), "")


PREPARED_FACTS: tuple[Name, ...] = ("quantization.prepared", "quantization.prepared_and_back")


def _adapter_dtype(spec: TrainingSpec) -> None:
    """TRL moves the adapters of a quantised model to bfloat16 (sft_trainer.py, dpo_trainer.py)."""
    lm.prepared(spec)
    bits = spec.fact("quantization.bits")
    found = lm.trainer(spec)
    if bits is not None and found.prepared == ALWAYS:
        reason = f"{_VERSION}: prepare_model_for_kbit_training"
        lm.put(spec, "quantization.prepared", True, bits, reason)
    prepared = bits is not None and found.prepared not in ("", ALWAYS) and spec.does(found.prepared)
    if bits is not None and bits.value == 4:  # is_sharded_qlora: what devices share is left as it is
        prepared = prepared and not (
            spec.get("parallelism.strategy") in ("fsdp1", "fsdp2") or spec.get("parallelism.zero_stage") == 3
        )
    narrow = bits is not None and bits.value == 4 and lm.switched(spec, "bf16")
    if prepared and narrow:  # and what is not quantised goes back to bfloat16, but for norms
        reason = f"{_said(spec)}: prepare_model_for_kbit_training, peft_module_casting_to_bf16"
        lm.put(spec, "float32_parts", ["norms"], bits, reason)
        lm.put(spec, "quantization.prepared_and_back", True, bits, reason)
    elif prepared:
        lm.put(spec, "quantization.prepared", True, bits, f"{_said(spec)}: prepare_model_for_kbit_training")
    early = narrow and spec.does("trl.adapters_of_quantised_models_in_bfloat16_early")
    if bits is not None and spec.get("tuning") in ("lora", "dora") and (early or not prepared):
        lm.put(spec, "lora.dtype", "bfloat16", reason=f"{_said(spec)}: adapters of a quantised model are in bfloat16")


def _checkpointing(spec: TrainingSpec) -> None:
    """With adapters under ZeRO stage 3, TRL forces the reentrant kind."""
    stated = spec.fact("checkpointing")
    if stated is not None and stated.origin == DEFAULT and not spec.does("trl.checkpoints_by_default"):
        spec.facts["checkpointing"] = stated._replace(value="none", reason=f"{_said(spec)}, where it is off by default")
    lm.checkpointing(spec)
    adapted = spec.get("tuning", "full") != "full"
    if adapted and spec.get("parallelism.zero_stage") == 3 and spec.get("checkpointing") == "full":
        reason = f"{_VERSION}: adapters under ZeRO stage 3 need it"
        lm.put(spec, "checkpointing_reentrant", True, reason=reason)


def _reference(spec: TrainingSpec) -> None:
    """Which trainers hold a second copy of the weights."""
    method = spec.get("method", "")
    beta = spec.fact(lm.HYPER + "beta")
    early = spec.fact(lm.HYPER + "precompute_ref_log_probs")
    asked = lm.trainer(spec).reference
    if asked == "beta":
        default = 0.05 if method == "rloo" else 0.04 if spec.does("trl.grpo_asks_a_reference") else 0.0
        needed = bool(default if beta is None or beta.value is None else beta.value)
    else:
        needed = asked == ALWAYS
    if not needed:
        if method:
            lm.put(spec, "reference_model", "none", beta if asked == "beta" else None, f"{method} needs none")
        return
    if spec.get("tuning", "full") != "full":
        reason = "the model without its adapters is the reference"
        lm.put(spec, "reference_model", "adapter_off", spec.fact("tuning"), reason)
    elif early is not None and early.value:
        lm.put(spec, "reference_model", "precomputed", early)
    else:
        reason = f"{_VERSION}: a copy, in the dtype of the policy"
        spec.facts["reference_model"] = Fact("reference_model", "copy", DEFAULT, reason=reason)


def _mismatched(spec: TrainingSpec) -> None:
    """One of KTO's losses asks for no completions of other prompts (trl/trainer/kto_trainer.py: calculate_KL)."""
    kind = spec.fact(lm.HYPER + "loss_type")
    if spec.get("method") == "kto" and kind is not None and kind.value == "apo_zero_unpaired":
        lm.put(spec, "mismatched_completions", False, kind)


def _beside(spec: TrainingSpec) -> tuple[str, dict[str, Fact]]:
    return lm.stated_sharing(spec, _accelerate(spec))


def _accelerate(spec: TrainingSpec) -> Companion | None:
    """``--accelerate_config``: a file, or one of those that TRL ships."""
    named = spec.facts.pop(lm.HYPER + "accelerate_config", None)
    if named is None or named.node is None:
        return None
    if named.value in _SHIPPED:
        kind, inner = _SHIPPED[named.value]
        tree = {"distributed_type": kind, "num_processes": 8, "mixed_precision": "bf16", **inner}
        return accelerate_facts(tree_of(tree, named.node.span), spec.document.path)
    read, gap = named_config(named.node, named.node.span.path)
    tried = spec.tried(lm.SHARDING)
    if read is None and tried is not None:
        read = shardings.accelerate(tried.value, named.node.span), {}
    if read is None:
        missing: tuple[Missing, ...] = () if gap is None else (gap,)
        return Companion(unknown_sharing(named.node), missing)
    root, sources = read
    found = accelerate_facts(root, next(iter(sources), spec.document.path))
    return found._replace(sources={**sources, **found.sources})


FAMILY = lm.Family(
    stated=Graph(
        Step(lm.model, lm.MODEL_FACTS),
        Step(_method, ("method",)),
        Step(_release, (_RELEASE, _BESIDE)),
        Step(_half, (lm.HYPER + "bf16",)),
        Step(_scripts, (*dict.fromkeys((*_EXAMPLE, "embeddings_resized", *known_scripts.FIREFLY)),)),
    ),
    beside=_beside,
    follows=Graph(
        Step(lm.on_cpu),
        Step(_unknown),
        Step(_model_class, ("model_class", "labels", "images_per_sample", "most_images", "frozen_parts")),
        Step(lm.pairs, ("sequences_per_sample",)),
        Step(_completions, ("sequence_length", lm.HYPER + "max_completion_length", "completion_length")),
        Step(_attention, ("attention",)),
        Step(_packing, ("packing", "padding_free")),
        Step(lm.older_defaults, (lm.HYPER + "optim",)),
        Step(lm.optimizer, lm.OPTIMIZER_FACTS),
        Step(
            _losses,
            ("loss", "loss_tile", "fused_kernels", "log_probabilities", "likelihood_of_chosen", "logits_to_keep"),
        ),
        Step(lm.compiled, ("compile",)),
        Step(_adapters, lm.ADAPTER_FACTS),
        Step(lm.quantization, lm.QUANTIZATION_FACTS),
        Step(lm.processes, lm.PROCESS_FACTS),
        Step(_engine, ("engine_share",)),
        Step(_generated, ("generated_rows",)),
        Step(_precision, (*lm.PRECISION_FACTS, "float32_parts", *PREPARED_FACTS)),
        Step(_checkpointing, lm.CHECKPOINTING_FACTS),
        Step(_reference, ("reference_model",)),
        Step(_mismatched, ("mismatched_completions",)),
        Step(lm.evaluation, lm.EVALUATION_FACTS),
    ),
    told=("on_cpu", "model", "method", "adapters", "sharing", "precision", "unknown"),
)


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """TRL's scripts take ModelConfig beside the trainer's own arguments."""
    if fact == "loss":
        return []  # it is chunked as it is; Liger's is deprecated here
    return lm.spell(spec, fact, value, ("parameter_dtype", "attention", "sequence_length"))
