"""What the families of language-model trainers share: from the name of a model and the switches of a trainer to the
facts that the model is built from (docs/facts.md).

A function here takes a spec with what the schema found in it, adds facts, and returns why there can be no estimate,
or "". ``finish`` puts the reasons together. The model's own config comes from the catalogue, a local folder or the
local hub cache, and never from the network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memlint import releases
from memlint.architectures.huggingface_remote import CHANGED_BY, OWN_WEIGHTS
from memlint.dialects.accelerate import truth
from memlint.dialects.deepspeed import AUTO
from memlint.dialects.family import Family, finish, tokens
from memlint.dialects.methods import pairs, takes_likelihood, undropped
from memlint.dialects.sharing import (
    PROCESS_FACTS,
    SHARDING,
    add,
    drop_what_no_strategy_reads,
    on_devices,
    parallelism,
    processes,
    stated_sharing,
)
from memlint.dialects.stated import (
    CONFIG,
    DECODER,
    HALF,
    LLAVA,
    TRANSFORMERS,
    dtype_of,
    gap,
    has_one_size,
    model_type,
    names_of,
    not_stated,
    put,
    setting,
    spellings,
    switched,
    text_config,
    trainer,
)
from memlint.dialects.trainer_spelling import spell, write
from memlint.dialects.trainer_switches import (
    EVALUATION_FACTS,
    OPTIMIZER_FACTS,
    OPTIMIZERS,
    argument,
    attention,
    compiled,
    evaluation,
    kernels,
    knows_liger,
    liger_in_evaluation,
    optimizer,
)
from memlint.dialects.tuning import (
    ADAPTER_FACTS,
    LISTED,
    QUANTIZATION_FACTS,
    adapters,
    prepared,
    quantization,
    stored_quantization,
)
from memlint.documents.node import Document, Node
from memlint.facts.spec import ASSUMED, DEFAULT, HYPER, OVERRIDE, Fact, Name, TrainingSpec, named

if TYPE_CHECKING:
    from memlint.data.hub import Resolved

# What a family of language-model trainers takes from here, whichever file it stands in.
__all__ = [
    "ADAPTER_FACTS",
    "CONFIG",
    "DECODER",
    "EVALUATION_FACTS",
    "HALF",
    "HYPER",
    "LISTED",
    "LLAVA",
    "OPTIMIZERS",
    "OPTIMIZER_FACTS",
    "PROCESS_FACTS",
    "QUANTIZATION_FACTS",
    "SHARDING",
    "TRANSFORMERS",
    "Family",
    "adapters",
    "add",
    "argument",
    "attention",
    "compiled",
    "drop_what_no_strategy_reads",
    "dtype_of",
    "evaluation",
    "finish",
    "gap",
    "has_one_size",
    "kernels",
    "knows_liger",
    "liger_in_evaluation",
    "model_type",
    "names_of",
    "not_stated",
    "on_devices",
    "optimizer",
    "pairs",
    "parallelism",
    "prepared",
    "processes",
    "put",
    "quantization",
    "setting",
    "spell",
    "spellings",
    "stated_config",
    "stated_sharing",
    "stored_quantization",
    "switched",
    "takes_likelihood",
    "text_config",
    "tokens",
    "trainer",
    "undropped",
    "write",
]

PRECISION_FACTS: tuple[Name, ...] = (
    *("parameter_dtype", "frozen_dtype", "lora.dtype", "compute_dtype", "autocast", "master_weights", "loss_scaling"),
    *("parallelism.reduce_dtype", "mixed_precision", "deepspeed_dtype", HYPER + "deepspeed_states_dtype"),
    "parallelism.reduces_last_only",
)
MODEL_FACTS: tuple[Name, ...] = (CONFIG, "vocabulary_size", "same_model_as")
CHECKPOINTING_FACTS: tuple[Name, ...] = ("checkpointing", "checkpointing_reentrant", "activation_offloading")

# Console programs whose options look like TrainingArguments, and are read by trainers of their own.
_PROGRAMS = ("llamafactory-cli", "axolotl", "swift", "tune", "litgpt", "openrlhf", "oumi", "xtuner", "autotrain")

# transformers' example scripts, some of whose options other trainers have, too (examples/pytorch).
EXAMPLES = (
    *("run_clm", "run_fim", "run_mlm", "run_plm", "run_glue", "run_classification", "run_xnli", "run_qa", "run_squad"),
    *("run_seq2seq_qa", "run_ner", "run_swag", "run_summarization", "run_translation", "run_image_classification"),
    *("run_mae", "run_mim", "run_speech_recognition_ctc", "run_speech_recognition_seq2seq", "run_audio_classification"),
    *("run_semantic_segmentation", "run_semantic_segmentation_no_trainer"),
)


def is_of_another_family(document: Document, root: Node, also: tuple[str, ...] = ()) -> bool:
    """Whether the command that a tree of options belongs to is the program of a family that states itself, or one of
    ``also``."""
    for command in document.commands:
        if command.options.span == root.span and command.called:
            program = command.called.rsplit("/", 1)[-1].partition(".")[0].removesuffix("_no_trainer")
            return program in _PROGRAMS or program in also
    return False


def resolve(name: str, beside: str) -> tuple[dict[str, Any] | None, str]:
    """(the model's config, where it was found) or (None, why not), for a hub id or a folder named in a file."""
    from memlint.data import hub

    found = hub.resolve(name, beside)
    if found is None:
        where = "not in the catalogue (`memlint models`), nor a folder with a config.json, nor in the hub cache"
        return None, f"{where}: {hub.ways_out(name)}"
    return (found.config, found.source) if not found.reason else (None, f"{found.source}: {found.reason}")


def resolved(spec: TrainingSpec, name: str, beside: str) -> tuple[dict[str, Any] | None, str]:
    """:func:`resolve`, once for a run and all that is tried with it."""
    if (name, beside) not in spec.resolved:
        spec.resolved[name, beside] = resolve(name, beside)
    config, source = spec.resolved[name, beside]
    return config, source


def _made_by_a_script(spec: TrainingSpec) -> str:
    """What is said besides where a model is not named, and a script of somebody's own may name it by another option."""
    script = "" if spec.launch is None else spec.launch.called
    if not script.endswith(".py") or gap(spec, *spellings(spec, "model")) is not None:
        return ""
    return f", and {script} makes its model in a way that is not followed"


def model(spec: TrainingSpec, key: str = "model_name_or_path") -> str:
    """The model's config by its name, and what follows from it."""
    fact, given = spec.fact("model"), stated_config()
    if fact is None or not isinstance(fact.value, str) or not fact.value:
        if given is None:
            return not_stated(spec, key, *spellings(spec, "model")) + _made_by_a_script(spec)
        fact = Fact("model", given.source, OVERRIDE, key)
    beside = fact.span.path if fact.span is not None else spec.document.path
    config, source = resolved(spec, fact.value, beside) if given is None else (given.config, given.source)
    spec.model_name = fact.value.strip("[]<>").rstrip("/").rsplit("/", 1)[-1] or fact.value
    if config is None:
        config, source = _made_by_another_run(spec, fact.value, beside) or (None, source)
    if config is None:
        return f"{fact.key} {fact.value}: {source}"
    for option in CHANGED_BY.get(str(config.get("model_type")), ()):
        given_too = spec.root.get(option)
        if given_too is not None and given_too.value:
            config = {**config, option: given_too.value}
    put(spec, CONFIG, config, fact, source)
    _take_for(spec, source)
    vocabulary = text_config(config).get("vocab_size")
    if isinstance(vocabulary, int):
        put(spec, "vocabulary_size", vocabulary, fact)
    return ""


def _made_by_another_run(spec: TrainingSpec, name: str, beside: str) -> tuple[dict[str, Any], str] | None:
    """(the config of the model from which a run of this repository starts that writes the folder, where that was)."""
    from memlint.dialects import predecessors

    places = dict.fromkeys((beside, spec.document.path))  # a script names the folder, and a config beside another
    made = next((found for path in places if (found := predecessors.origin(name, path)) is not None), None)
    config, source = resolved(spec, made[0], made[1]) if made is not None else (None, "")
    if made is None or config is None:
        return None
    reason = f"from which {made[1]} starts, which writes the folder"
    spec.facts["same_model_as"] = Fact("same_model_as", made[0], ASSUMED, reason=reason)
    return config, source


def _take_for(spec: TrainingSpec, source: str) -> None:
    """Say which model stands in for a folder that is out of reach."""
    from memlint.data.hub import BY_NAME

    if source.endswith(BY_NAME):
        reason = "the folder has its name, and its own config.json is out of reach"
        spec.facts["same_model_as"] = Fact("same_model_as", source.removesuffix(BY_NAME), ASSUMED, reason=reason)


def stated_config() -> Resolved | None:
    """What ``--model-config`` names."""
    from memlint.data import hub

    return hub.stated()


def on_cpu(spec: TrainingSpec) -> str:
    """Why no card holds the run: the Trainer's own switch, or accelerate's."""
    if switched(spec, "use_cpu"):
        return "use_cpu: the run is not on a GPU"
    for launcher in spec.launch.launchers if spec.launch is not None else ():
        told = launcher.options.get("cpu") if launcher.name.startswith("accelerate") else None
        if told is not None:
            return "--cpu: the run is not on a GPU"
    return ""


def position_limit(spec: TrainingSpec) -> int | None:
    """How many positions the model was made for; None where its config sets no limit."""
    described = spec.get(DECODER)
    if described is not None:
        return described.context or None
    config = text_config(spec.get(CONFIG) or {})
    for name in ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"):
        limit = config.get(name)
        if isinstance(limit, int) and limit > 0:
            return limit
    return None


def checkpointing(spec: TrainingSpec) -> None:
    """What the keyword arguments of checkpointing make of it."""
    stated = spec.fact("checkpointing")
    if stated is None or stated.value != "full":
        return
    _reentrant(spec, stated)
    every, selective = spec.fact("checkpointing_every"), spec.fact(HYPER + "checkpointing_selective")
    offload = spec.fact(HYPER + "checkpointing_offload")
    if selective is not None and truth(selective.value):
        put(spec, "checkpointing", "selective", selective)
    elif every is not None and every.value > 1:
        put(spec, "checkpointing", "every", every)
    if offload is not None and truth(offload.value):
        put(spec, "activation_offloading", True, offload)


def _reentrant(spec: TrainingSpec, stated: Fact) -> None:
    """The kind that gradient_checkpointing_enable takes where nothing says otherwise; a trainer of TRL's says it."""
    kind = spec.fact("checkpointing_reentrant")
    trainers = stated.label.lstrip("-").replace("-", "_") == "gradient_checkpointing"
    if kind is None or kind.origin != DEFAULT or not kind.reason.startswith("transformers") or not trainers:
        return
    said = spec.family == "trl" and spec.does("trl.checkpoints_without_reentry")
    if not said and spec.does("transformers.checkpoints_reentrantly"):
        release = spec.get("transformers_version")
        spec.facts[kind.name] = kind._replace(
            value=True, reason=f"transformers {release}: gradient_checkpointing_enable"
        )


def mixed_precision(spec: TrainingSpec) -> Fact | None:
    """The half that the trainer computes in (a fact with a dtype for its value); None for full precision.

    ``bf16`` and ``fp16`` go before what accelerate's config says.
    """
    tried = spec.tried("compute_dtype")
    if tried is not None:
        return tried if tried.value in HALF else None
    for name, dtype in (("fp16", "float16"), ("bf16", "bfloat16")):
        switch = spec.fact(HYPER + name)
        if switch is not None and truth(switch.value):
            return switch._replace(name="compute_dtype", value=dtype)
    launched_with = spec.fact("mixed_precision")
    if launched_with is not None and launched_with.value in HALF:
        return launched_with._replace(name="compute_dtype")
    return None


def weights(spec: TrainingSpec, *stated: Fact | None) -> Fact | None:
    """The dtype that the weights are loaded in: as stated, else the checkpoint's."""
    for fact in stated:
        if fact is None or fact.value is None:
            continue
        dtype = dtype_of(fact.value)
        if dtype:
            return fact._replace(name="parameter_dtype", value=dtype)
    config = spec.get(CONFIG)
    if config is None:
        return None
    kept = dtype_of(config.get("dtype") or config.get("torch_dtype") or text_config(config).get("dtype") or "float32")
    reason = f"{TRANSFORMERS}: from_pretrained keeps the checkpoint's dtype"
    own, where = OWN_WEIGHTS.get(text_config(config).get("model_type", ""), ("", reason))
    kept, reason = own or kept, where
    return Fact("parameter_dtype", kept or "float32", DEFAULT, "dtype", reason=reason)


# Keys that TrainingArguments no longer take -> the last release that did (transformers' migration guides).
_LAST_WITH = {
    "evaluation_strategy": "4.45",
    **dict.fromkeys(("per_gpu_train_batch_size", "per_gpu_eval_batch_size", "no_cuda", "overwrite_output_dir"), "4.57"),
    **dict.fromkeys(("warmup_ratio", "fp16_opt_level", "fp16_backend", "half_precision_backend"), "4.57"),
    **dict.fromkeys(("fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params", "sharded_ddp", "use_ipex"), "4.57"),
    **dict.fromkeys(("group_by_length", "save_safetensors", "logging_dir", "adafactor", "local_rank"), "4.57"),
}


def release(spec: TrainingSpec) -> None:
    """The release of transformers, where no file pins it: its last one with all keys that are written."""
    if spec.get("transformers_version") is not None:
        return
    found: tuple[tuple[int, ...], str, Node] | None = None
    for name, last in _LAST_WITH.items():
        node = spec.root.get(name) or spec.root.get(name.replace("_", "-"))
        numbers = tuple(int(part) for part in last.split("."))
        if node is not None and (found is None or numbers < found[0]):
            found = numbers, last, node
    if found is not None:
        _, last, node = found
        reason = f"{node.key_path.rsplit('.', 1)[-1]} is a key of transformers {last} and before"
        spec.facts["transformers_version"] = Fact("transformers_version", last, ASSUMED, node.key_path, node, reason)


def older_defaults(spec: TrainingSpec) -> None:
    """What the Trainer took before, where nothing is written."""
    name = spec.fact(HYPER + "optim")
    own = name is not None and "TrainingArguments" in name.reason  # and no script's
    if name is None or not own or name.node is not None:
        return
    fused = spec.does("transformers.optimizer_is_fused")
    if not (fused and spec.does("torch.fused_adamw_is_a_default")):
        older = "adamw_torch" if spec.does("transformers.optimizer_is_torchs") else "adamw_hf"
        whose = spec["framework_version"] if fused else f"transformers {spec['transformers_version']}"
        reason = f"{whose}: TrainingArguments"
        spec.facts[name.name] = name._replace(value=older, origin=DEFAULT, reason=reason)


def older_weights(spec: TrainingSpec, loaded: Fact | None) -> Fact | None:
    """Before transformers 5 weights were float32 unless a dtype was stated."""
    stated = spec.fact(HYPER + "dtype")
    if loaded is None or loaded.node is not None or spec.does("transformers.keeps_the_checkpoints_dtype"):
        return loaded
    if stated is not None and stated.node is not None and stated.value is not None:
        return loaded  # auto
    if text_config(spec.get(CONFIG) or {}).get("model_type") in OWN_WEIGHTS:
        return loaded
    reason = f"transformers {spec['transformers_version']}: from_pretrained makes float32 of any checkpoint"
    return loaded._replace(value="float32", reason=reason)


def precision(spec: TrainingSpec, loaded: Fact | None) -> str:
    """Dtypes of weights, gradients and products, from how the weights were loaded and how the run is distributed.

    autocast leaves weights alone; DeepSpeed casts the model and keeps a float32 copy in its optimizer; accelerate's
    FSDP keeps what trains in float32 and gathers it in 16 bits.
    """
    handed = spec.fact("mixed_precision")
    if handed is not None and handed.value not in (None, *HALF):
        return f"{handed.key} {handed.value} is not known"
    mixed = mixed_precision(spec)
    strategy = spec.get("parallelism.strategy", "none")
    adapted = spec.get("tuning", "full") != "full"
    deep = spec.facts.pop("deepspeed_dtype", None)
    spec.facts.pop("mixed_precision", None)
    if strategy == "zero" and _cast_by_deepspeed(spec, mixed, deep):
        return ""
    _accumulates(spec, strategy)
    if loaded is None:
        if mixed is not None:
            put(spec, "compute_dtype", mixed.value, mixed)
        return ""
    put(spec, "frozen_dtype", loaded.value, loaded)
    put(spec, "parameter_dtype", loaded.value, loaded)
    if adapted:
        if "lora.dtype" not in spec:
            wide = loaded.value not in HALF or "quantization.bits" in spec
            wide = wide or spec.does("peft.adapters_in_float32")
            reason = "autocast_adapter_dtype" if wide else "adapters have their weight's dtype"
            put(
                spec,
                "lora.dtype",
                "float32" if wide else loaded.value,
                reason=f"PEFT {_release_of(spec, 'peft')}: {reason}",
            )
        put(spec, "parameter_dtype", spec["lora.dtype"], spec.fact("lora.dtype"))
    if mixed is None:
        put(spec, "compute_dtype", loaded.value, loaded)
        put(spec, "autocast", False, reason="neither bf16 nor fp16")
        return ""
    _widened(spec, strategy)
    if strategy in ("fsdp1", "fsdp2"):
        put(spec, "parallelism.reduce_dtype", mixed.value, mixed)
    put(spec, "compute_dtype", mixed.value, mixed)
    put(spec, "autocast", True, mixed)
    if mixed.value == "float16":
        put(spec, "loss_scaling", "dynamic", mixed)
    return ""


def _accumulates(spec: TrainingSpec, strategy: str) -> None:
    """Between the micro-batches of a step the Trainer is in ``Accelerator.no_sync``: FSDP reduces nothing there, and
    gradients stay as large as the model, unless ``sync_each_batch`` is asked for (transformers/trainer.py)."""
    config = setting(spec, "accelerator_config")
    asked = config.get("gradient_accumulation_kwargs") if isinstance(config, dict) else None
    each = isinstance(asked, dict) and truth(asked.get("sync_each_batch"))
    if strategy not in ("fsdp1", "fsdp2") or each:
        return
    if strategy == "fsdp1" or spec.does("accelerate.fsdp2_reduces_the_last_micro_batch"):
        reason = f"accelerate {_release_of(spec, 'accelerate')}: Accelerator.no_sync"
        put(spec, "parallelism.reduces_last_only", True, reason=reason)


def _cast_by_deepspeed(spec: TrainingSpec, mixed: Fact | None, stated: Fact | None) -> bool:
    """Whether DeepSpeed casts the model to 16 bits, and the facts of that. What its config leaves out, the trainer's
    switch fills in (accelerate 1.15, DeepSpeedPlugin.set_mixed_precision)."""
    left_out = stated is None or stated.value == AUTO or stated.node is None
    half = mixed if left_out else stated if stated is not None and stated.value in HALF else None
    if half is None:
        if not left_out:
            put(spec, HYPER + "deepspeed_states_dtype", True, stated)
        return False
    name: Name
    for name in ("parameter_dtype", "frozen_dtype", "compute_dtype"):
        put(spec, name, half.value, half)
    put(spec, "master_weights", True, half)
    put(spec, "autocast", False, half)
    if spec.get("tuning", "full") != "full":
        put(spec, "lora.dtype", half.value, half)
    if half.value == "float16" and "loss_scaling" not in spec:
        put(spec, "loss_scaling", "dynamic", half)
    return True


def _widened(spec: TrainingSpec, strategy: str) -> None:
    """What accelerate makes of weights in 16 bits under FSDP with mixed precision."""
    said = f"accelerate {_release_of(spec, 'accelerate')}: under FSDP with mixed precision"
    quantised = "quantization.bits" in spec
    apart = strategy == "fsdp2" and spec.get("tuning", "full") != "full" and not quantised
    if apart and spec["frozen_dtype"] != "float32" and spec.does("accelerate.fsdp2_widens_frozen_weights"):
        put(spec, "frozen_dtype", "float32", reason=f"{said}, all weights are brought to float32")
    if strategy not in ("fsdp1", "fsdp2") or spec["parameter_dtype"] == "float32":
        return
    if strategy == "fsdp1":
        widens = spec.does("accelerate.fsdp1_trains_in_float32")
    else:  # models with weights in 4 bits are left as they are (fsdp2_prepare_model)
        widens = spec.get("quantization.bits") != 4 and not spec.does("accelerate.fsdp2_leaves_what_trains")
    if widens:
        reason = f"{said}, what trains is kept in float32"
        put(spec, "parameter_dtype", "float32", reason=reason)  # update_fsdp_plugin_peft wraps it apart from the rest


def _release_of(spec: TrainingSpec, library: str) -> str:
    known = releases.LIBRARIES[library]
    return str(spec.get(named(known.fact)) or known.newest)


# What only one class of transformers loads, by model type.
_CLASSES = {
    **dict.fromkeys(("t5", "mt5", "bart", "mbart", "pegasus", "marian", "m2m_100", "whisper"), "seq2seq_lm"),
    **dict.fromkeys(("vit", "deit", "dinov2"), "image_classification"),
    **dict.fromkeys(("deberta", "deberta-v2", "distilbert", "albert", "mpnet", "electra"), "sequence_classification"),
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "modernbert"), "sequence_classification"),
}


def senses(config: Any) -> bool:
    """Whether the contents of a ``config.json`` are of a model that sees or hears beside what it reads."""
    return isinstance(config, dict) and ("vision_config" in config or "audio_config" in config)


def class_by_type(spec: TrainingSpec) -> None:
    """Where no script says what is trained, a model that is no decoder does."""
    config = spec.get(CONFIG)
    if not isinstance(config, dict):
        return
    kind = "vision_language" if senses(config) else _CLASSES.get(config.get("model_type", ""), "")
    if kind:
        reason = f"no script says what is trained, and the model is of type {config.get('model_type')}"
        spec.facts["model_class"] = Fact("model_class", kind, ASSUMED, reason=reason)


# GotOcr2ImageProcessor: max_patches, and the whole beside them (transformers 5.23, models/got_ocr2)
MOST_TILES = 13


def assume_images(spec: TrainingSpec, origin: str = "", tiles: bool = False) -> None:
    """An image in each sample of a model that sees, which only the data say; the interval holds the run without any.
    ``origin``: the key that names the data. ``tiles``: the library's processor cuts it, where the model's does."""
    sees = "vision_config" in (spec.get(CONFIG) or {}) and spec.get("model_class") == "vision_language"
    if sees and "images_per_sample" not in spec:
        reason = "an image in each sample; the data may have none, or more"
        spec.facts["images_per_sample"] = Fact("images_per_sample", 1, ASSUMED, origin, reason=reason)
        if tiles and "downsample_ratio" in (spec.get(CONFIG) or {}):
            put(spec, "most_images", MOST_TILES, reason="transformers 5.23, GotOcr2ImageProcessor: of one image")
