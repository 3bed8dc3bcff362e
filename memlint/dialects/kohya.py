"""Family kohya: which of sd-scripts' training scripts a command starts, the files that it names, and what the script
does where neither says anything.

Source: ``kohya-ss/sd-scripts`` 48d368fa, ``library/train_util.py`` and ``library/config_util.py`` (options and their
defaults, ``read_config_from_file``, ``get_optimizer``), and the scripts.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.diffusion import pipeline
from memlint.architectures.sd_scripts import MODELS, SCRIPTS, Script, largest_bucket
from memlint.dialects import companions, key_facts, kohya_gui
from memlint.dialects import language_model as lm
from memlint.dialects.accelerate import truth
from memlint.documents.node import MAX_DIGITS, Document, Edit, Node, Unresolved, shown
from memlint.facts.spec import ASSUMED, DEFAULT, HYPER, Fact, Name, TrainingSpec

_SOURCE = "sd-scripts 48d368fa"
MAX_SIDE = 16_384  # pixels; beyond it nothing of this kind trains
MAX_RANK = 16_384
# Options that make another step -> what is not known of it. All others change nothing that takes memory, are facts of
# the schema, or are asked for below. With --highvram the allocator keeps its pages while latents are cached, and gives
# them back before the first step as it does without.
_OTHERWISE = {
    "mem_eff_attn": "attention in pieces, with a backward pass of its own",
    "diffusers_xformers": "attention that is not the UNet's",
    "fp8_base": "frozen weights in 8 bits",
    "fp8_base_unet": "frozen weights in 8 bits",
    "lowram": "models that are loaded on the card",
    "deepspeed": "DeepSpeed around these models",
    "torch_compile": "a compiled UNet",
    "dynamo_backend": "a compiled UNet",
    "cpu_offload_checkpointing": "activations in host memory, which this UNet has no switch for",
    "blocks_to_swap": "blocks that come to the card in turn",
    "fused_optimizer_groups": "optimizers of groups that step in the backward pass",
    "dim_from_weights": "ranks that a file of weights has",
    "block_lr": "learning rates of blocks, some of which may not train",
    "dataset_class": "a data set of one's own",
    "train_inpainting": "a UNet of nine channels",
    "controlnet_model_name_or_path": "a ControlNet beside the UNet",
}
# What ``--network_args`` may say without another kind of adapter; learning rates of LoRA+ are numbers alone, and a
# module that is left out of a step (``module_dropout``) takes nothing: most is taken where none is.
_NETWORK_ARGS = ("conv_dim", "conv_alpha", "loraplus_lr_ratio", "loraplus_unet_lr_ratio",
                 "loraplus_text_encoder_lr_ratio", "rank_dropout", "module_dropout")  # fmt: skip
# What ``--optimizer_args`` may say without other states.
_OPTIMIZER_ARGS = (
    *("weight_decay", "betas", "eps", "decouple", "use_bias_correction", "safeguard_warmup", "d0", "d_coef"),
    *("growth_rate", "scale_parameter", "relative_step", "warmup_init", "clip_threshold", "decay_rate", "log_every"),
)
# ``get_optimizer``: its names, in lower case -> ours, and whose.
_OPTIMIZERS = {
    "adamw": ("adamw", "torch"),
    "adamw8bit": ("adamw_8bit", "bitsandbytes"),
    "pagedadamw8bit": ("adamw_8bit", "bitsandbytes"),
    "pagedadamw": ("adamw", "bitsandbytes"),
    "pagedadamw32bit": ("adamw", "bitsandbytes"),
    "lion": ("lion", "lion_pytorch"),
    "lion8bit": ("lion_8bit", "bitsandbytes"),
    "pagedlion8bit": ("lion_8bit", "bitsandbytes"),
    "ademamix8bit": ("ademamix_8bit", "bitsandbytes"),
    "pagedademamix8bit": ("ademamix_8bit", "bitsandbytes"),
    "sgdnesterov": ("sgd", "torch"),
    "adafactor": ("adafactor", "transformers"),
    "prodigy": ("prodigy", "prodigyopt"),
    "dadaptadam": ("dadapt_adam", "dadaptation"),
    "adamwschedulefree": ("schedule_free_adamw", "schedulefree"),
}


# What a config says that no command starts: the module of the adapters -> the script that knows it.
_BY_MODULE = {
    "networks.lora_flux": "flux_train_network",
    "networks.oft_flux": "flux_train_network",
    "networks.lora_sd3": "sd3_train_network",
    "networks.lora_lumina": "lumina_train_network",
    "networks.lora_anima": "anima_train_network",
    "networks.lora_hunyuan_image": "hunyuan_image_train_network",
}
# ``model_train_type`` of Akegarasu/lora-scripts fdefba9 (mikazuki/app/api.py), whose GUI saves such files.
_BY_TYPE = {
    "sd-lora": "train_network",
    "sdxl-lora": "sdxl_train_network",
    "sd-dreambooth": "train_db",
    "sdxl-finetune": "sdxl_train",
    "sd3-lora": "sd3_train_network",
    "flux-lora": "flux_train_network",
}
# Files of weights as their makers published them -> the kind of model.
_FILES = {
    "sd_xl_base_1.0": "sdxl",
    "sd_xl_base_1.0_0.9vae": "sdxl",
    "sd_xl_base_0.9": "sdxl",
    "v1-5-pruned": "sd1",
    "v1-5-pruned-emaonly": "sd1",
    "sd-v1-4": "sd1",
    "sd-v1-4-full-ema": "sd1",
    "v2-1_768-ema-pruned": "sd2",
    "v2-1_768-nonema-pruned": "sd2",
    "v2-1_512-ema-pruned": "sd2",
    "768-v-ema": "sd2",
    "512-base-ema": "sd2",
}
# sdxl_train.py: of the UNet, CLIP ViT-L and CLIP ViT-bigG; a text encoder whose rate is 0 does not train.
RATES = ("learning_rate", "learning_rate_te1", "learning_rate_te2")
_EITHER = (
    "no command starts this file, and its model's name does not say whether that is train_network.py or "
    "sdxl_train_network.py: check the script that names it with --config_file"
)
_SCRIPT = "script of the preset"  # no option is called that
# Options of a GUI's preset that have the same name there: those that a fix may add.
_SAME_IN_PRESETS = ("micro_batch_size", "gradient_accumulation_steps", "checkpointing", "lora.r", "compute_dtype")


def recognise(document: Document, root: Node) -> bool:
    """A TOML may have its options in sections of any name, which the scripts take for one; no other file may."""
    from memlint.dialects import registry
    from memlint.dialects.signatures import signature_score

    if document.format not in ("toml", "json") or signature_score(registry.dialect("kohya").header["signature"], root):
        return True
    return document.format == "toml" and "network_module" in _flat(root)


def _flat(root: Node) -> dict[str, Node]:
    """A TOML's options, whatever section they stand in (``read_config_from_file``)."""
    flat: dict[str, Node] = {}
    for key, node in root.value.items() if isinstance(root.value, dict) else ():
        if isinstance(node.value, dict):
            flat.update(node.value)
        else:
            flat[key] = node
    return flat


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """A preset of the GUI has words of its own; elsewhere attention and 8 bits have options of their own."""
    from memlint.dialects import registry, spelling

    preset = kohya_gui.is_preset(spec.document, spec.root)
    way: dict[str, Any] | None = None
    if fact == "attention" and value == "sdpa":
        way = {"xformers": "sdpa"} if preset else {"sdpa": True}
    elif fact == "optimizer" and value == "adamw_8bit":
        way = {"optimizer": "AdamW8bit"} if preset else {"optimizer_type": "AdamW8bit"}
    if way is None:
        node = (known.node if (known := spec.fact(fact)) is not None else None) if preset else None
        added = spec.root.get("additional_parameters")
        if preset and (fact not in _SAME_IN_PRESETS if node is None else added is not None and node.span == added.span):
            return []
        return key_facts.spell(spec, fact, value)
    if not preset:
        return spelling.bundle(spec, registry.dialect("kohya"), fact, way)
    ((key, word),) = way.items()
    node = spec.root.get(key)
    return [] if node is None else spelling.put_right(spec, node, word)


def complete(spec: TrainingSpec) -> TrainingSpec:
    """Facts in the words of the vocabulary, and the script and model where both are known."""
    if spec.launch is not None or not kohya_gui.is_preset(spec.document, spec.root):
        return _complete(spec)
    own = spec.root
    _preset(spec)
    made = _complete(spec)
    made.root = own  # what a fix is written into
    return made


def _preset(spec: TrainingSpec) -> None:
    """A preset of the GUI as the options that it starts the script with: what it does not hand on states nothing."""
    from memlint.dialects import registry

    dialect, root = registry.dialect("kohya"), spec.root
    spec.root = kohya_gui.options(root)
    assert isinstance(spec.root.value, dict)
    spec.root.value[_SCRIPT] = Node(kohya_gui.script(root), root.span)
    facts, _ = dialect.facts_of(spec.root)
    for name in {key.annotation["fact"] for key in dialect.keys if "fact" in key.annotation}:
        own, fact = spec.fact(name), facts.get(name)
        if spec.tried(name):
            continue
        if fact is None:
            spec.facts.pop(name, None)
        elif fact.node is not None and fact.node.span == root.span:
            spec.facts[name] = Fact(name, fact.value, DEFAULT, fact.key, reason=kohya_gui.SOURCE)
        elif own is None or own.node is None or not _is_said_by(own, fact):
            spec.facts[name] = fact


def _is_said_by(own: Fact, fact: Fact) -> bool:
    """Whether a preset's own field says what the GUI hands on: it leaves out what is off."""
    assert own.node is not None
    return own.value == fact.value if fact.node is None else own.node.span == fact.node.span


def _complete(spec: TrainingSpec) -> TrainingSpec:
    reason = _config_file(spec)
    stated = str(_value(spec, "optimizer_type") or _value(spec, "optimizer") or "").lower()
    spec = key_facts.complete(spec)
    name = _program(spec)
    script = SCRIPTS.get(name)
    if script is None:
        if spec.launch is None and _value(spec, "network_module") == "networks.lora" and not name:
            spec.unknown_reason = _EITHER
        return spec
    spec.unknown_reason = reason or _unknown(spec, name, script) or _data(spec)
    if spec.unknown_reason:
        return spec
    kind = _kind(spec, script)
    if kind not in script.kinds:
        spec.unknown_reason = f"{name}.py is not for {MODELS[kind].title if kind in MODELS else kind}"
        return spec
    source = f"{_SOURCE}: {name}.py"
    spec.unknown_reason = _network(spec, script, source) or _optimizer(spec, stated, source)
    if spec.unknown_reason:
        return spec
    spec.architecture = "sd_scripts"
    _put(spec, HYPER + "script", name, source)
    _put(spec, HYPER + "kind", kind, source)
    _precision(spec, script, source)
    _texts(spec, name, script, source)
    _caches(spec, source)
    _attention(spec, source)
    if spec[HYPER + "train_text"] and spec.get(HYPER + "cache_text", False):
        spec.architecture = None
        spec.unknown_reason = f"--cache_text_encoder_outputs: {name}.py refuses it while text encoders train"
    return spec


def _program(spec: TrainingSpec) -> str:
    """The script's name, without folder and .py: of the command, or as the file says that nobody starts."""
    if spec.launch is None:
        return _named_by(spec)
    program = spec.launch.called
    return program.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".py")


def _named_by(spec: TrainingSpec) -> str:
    """The script that a preset of the GUI or a TOML is for; "" where several would take it."""
    if spec.document.format != "toml":
        return str(_value(spec, _SCRIPT) or "")
    stated = _BY_TYPE.get(str(_value(spec, "model_train_type"))) or _BY_MODULE.get(str(_value(spec, "network_module")))
    if stated or _value(spec, "network_module") is None:
        return stated or ""
    kind = _kind_of(str(spec.get("model", "")))
    known = {"sdxl": "sdxl_train_network", "sd1": "train_network", "sd2": "train_network"}
    return known.get(kind, "train_network" if _switched(spec, "v2") else "")


def _kind_of(model: str) -> str:
    """Of the hub's ids and of files as they were published; "" for any other."""
    found = pipeline(model)
    if found is not None:
        return found.kind
    file = model.replace("\\", "/").rsplit("/", 1)[-1]
    for ending in (".safetensors", ".ckpt"):
        file = file.removesuffix(ending)
    return _FILES.get(file, "")


def _put(spec: TrainingSpec, name: Name, value: object, reason: str, key: str = "") -> None:
    spec.facts[name] = Fact(name, value, DEFAULT, key, reason=reason)


def _value(spec: TrainingSpec, key: str) -> Any:
    node = spec.root.get(key)
    return None if node is None else node.value


def _switched(spec: TrainingSpec, key: str) -> bool:
    """Whether a switch is on, or an option has a value."""
    value = _value(spec, key)
    if value is None or value is False or value == "":
        return False
    return not isinstance(value, str) or value.lower() not in ("false", "no", "none", "0")


def _words(spec: TrainingSpec, key: str) -> list[str] | None:
    """The words of an option that takes several (``name=value``); None where one of them is not known."""
    value = _value(spec, key)
    items = value if isinstance(value, list) else [] if value in (None, True, "") else [spec.root.get(key)]
    texts = [item.value if isinstance(item, Node) else item for item in items]
    if any(isinstance(text, Unresolved) for text in texts):
        return None
    return [word for text in texts for word in str(text).split()]


# ---------------------------------------------------------------------------------------------- files that are named


def _config_file(spec: TrainingSpec) -> str:
    """``--config_file``: its sections are one, and the command line's options go before it. Why it cannot be read."""
    named = spec.root.get("config_file")
    if spec.launch is None:
        if spec.document.format == "toml":
            _flatten(spec)
        return ""
    if named is None:
        return ""
    if not isinstance(named.value, str):
        return "config_file is not known"
    path = named.value if named.value.endswith(".toml") else f"{named.value}.toml"
    document, reason = companions.read(path, spec.document.path)
    if document is None:
        return f"config_file: {reason}"
    _join(spec, Node(dict(_flat(document.root)), document.root.span), document.path, document.text)
    return ""


def _flatten(spec: TrainingSpec) -> None:
    """A TOML that no command starts: a section that is called like an option (``[optimizer]``) is none."""
    from memlint.dialects import registry

    assert isinstance(spec.root.value, dict)
    sections = {key for key, node in spec.root.value.items() if isinstance(node.value, dict)}
    if not sections:
        return
    dialect = registry.dialect("kohya")
    spec.root = Node(_flat(spec.root), spec.root.span)
    facts, missing = dialect.facts_of(spec.root)
    for name in {key.annotation["fact"] for key in dialect.keys if "fact" in key.annotation}:
        if spec.tried(name):
            continue
        if name in facts:
            spec.facts[name] = facts[name]
        else:
            spec.facts.pop(name, None)
    spec.missing = (*(item for item in spec.missing if item.key not in sections), *missing)


def _join(spec: TrainingSpec, tree: Node, path: str, text: str) -> None:
    """Put what a file says below what the command says."""
    from memlint.dialects import registry

    facts, missing = registry.dialect("kohya").facts_of(tree)
    for name, fact in facts.items():
        own = spec.facts.get(name)
        if fact.node is not None and (own is None or own.node is None):
            spec.facts[name] = fact
    spec.missing = (*spec.missing, *missing)
    if isinstance(tree.value, dict) and isinstance(spec.root.value, dict):
        spec.root = Node({**tree.value, **spec.root.value}, spec.root.span)
    sources = spec.document.sources or {spec.document.path: spec.document.text}
    spec.document = spec.document._replace(sources={**sources, path: text})


def _data(spec: TrainingSpec) -> str:
    """Batch and size of the images: of the command, or the largest of the data sets that a file lists."""
    if lm.gap(spec, "train_batch_size", "resolution", "dataset_config"):
        item = lm.gap(spec, "train_batch_size", "resolution", "dataset_config")
        assert item is not None
        return f"{item.key} is not known: {item.reason}"
    named = spec.root.get("dataset_config")
    if named is None or not named.value:
        size = _sides(spec.get("image_size"))
        if size is None:
            written = spec.root.get("resolution")
            if written is not None and written.value is not None:
                return f"{written.name or 'resolution'} {shown(written.plain())} is no width and height"
            return lm.not_stated(spec, "resolution")
        if not spec.tried("image_size"):
            lm.put(spec, "image_size", _bucket(spec, {}, size), spec.facts["image_size"])
        return ""
    if not isinstance(named.value, str):
        return "dataset_config is not known"
    document, reason = companions.read(named.value, spec.document.path)
    if document is None:
        return f"dataset_config: {reason}"
    return _data_sets(spec, document.root)


def _data_sets(spec: TrainingSpec, root: Node) -> str:
    listed, general = root.get("datasets"), root.get("general")
    shared = general.value if general is not None and isinstance(general.value, dict) else {}
    most: tuple[int, list[int], int] | None = None
    for item in listed.value if listed is not None and isinstance(listed.value, list) else ():
        own = item.value if isinstance(item.value, dict) else {}
        stated = {**shared, **own}
        size = _sides(stated["resolution"].plain() if "resolution" in stated else spec.get("image_size"))
        if size is None:
            return "dataset_config: a data set has no resolution that is known"
        batch = stated["batch_size"].value if "batch_size" in stated else spec.get("micro_batch_size", 1)
        if not isinstance(batch, int) or batch < 1:
            return "dataset_config: a data set has no batch_size that is known"
        sides = _bucket(spec, stated, size)
        pixels = batch * sides[0] * sides[1]
        if most is None or pixels > most[0]:
            most = pixels, sides, batch
    if most is None:
        return "dataset_config: no data set is listed"
    reason = f"{_SOURCE}: the largest of the data sets of dataset_config"
    if not spec.tried("image_size"):
        _put(spec, "image_size", most[1], reason)
    if not spec.tried("micro_batch_size"):
        _put(spec, "micro_batch_size", most[2], reason)
    return ""


def _sides(value: Any) -> tuple[int, int] | None:
    """Width and height: ``512``, ``[512, 768]``, ``"512,768"``."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, str):
        value = [part.strip() for part in value.strip("()[] ").split(",")]
    if isinstance(value, int):
        value = [value]
    if not isinstance(value, (list, tuple)) or len(value) not in (1, 2):
        return None
    numbers = [int(part) if str(part).isdecimal() and len(str(part)) < 6 else 0 for part in value]
    return (numbers[0], numbers[-1]) if all(0 < number <= MAX_SIDE for number in numbers) else None


def _bucket(spec: TrainingSpec, stated: dict[str, Node], size: tuple[int, int]) -> list[int]:
    """Images keep their own shape with ``enable_bucket``, and the bucket of most pixels decides."""

    def option(key: str, default: int) -> int:
        value = stated[key].value if key in stated else _value(spec, key)
        return int(str(value)) if str(value).isdecimal() and len(str(value)) < 6 else default

    buckets = truth(stated["enable_bucket"].value) if "enable_bucket" in stated else _switched(spec, "enable_bucket")
    if not buckets:
        return list(size)
    # verify_bucket_reso_steps: a multiple of 32 for SDXL, and of 64 for others
    steps = max(option("bucket_reso_steps", 64) // 32 * 32, 32)
    least = max(option("min_bucket_reso", 256), steps)
    return list(largest_bucket(size, least, option("max_bucket_reso", 1024), steps))


# ---------------------------------------------------------------------------------------------- what is not known


def _unknown(spec: TrainingSpec, name: str, script: Script) -> str:
    """Why there is no estimate; "" where there is one."""
    for key, what in _OTHERWISE.items():
        if _switched(spec, key):
            return f"--{key}: {what} is not known"
    module = str(_value(spec, "network_module") or "")
    if script.network and module != "networks.lora":
        return lm.not_stated(spec, "network_module") if not module else f"the adapters of {module} are not known"
    if name == "sdxl_train":
        rates = [node.value for key in RATES if (node := spec.root.get(key)) is not None]
        if any(isinstance(rate, Unresolved) for rate in rates):
            return "learning rates that say which models train are not known"
        if _is_zero(_value(spec, "learning_rate")):
            return "--learning_rate 0: a UNet that is left out of training is not known"
    if spec.get("compute_dtype") not in (None, "float32", "float16", "bfloat16"):
        return f"mixed_precision {spec.get('compute_dtype')} is not known"
    length = spec.get("sequence_length", 75)
    if length not in (75, 150, 225):
        return f"max_token_length {length} is none that these scripts take"
    return ""


def _is_zero(rate: Any) -> bool:
    return rate is not None and str(rate).replace(".", "").strip("0") == ""


def _kind(spec: TrainingSpec, script: Script) -> str:
    """Of the model: by the hub's id; else the script and ``--v2`` say its sizes, whatever the file is called."""
    found = pipeline(str(spec.get("model", "")))
    if found is not None:
        return found.kind
    if len(script.kinds) == 1:
        return script.kinds[0]
    return "sd2" if _switched(spec, "v2") else "sd1"


def _network(spec: TrainingSpec, script: Script, source: str) -> str:
    _put(spec, "tuning", "lora" if script.network else "full", source)
    if not script.network:
        for name in [name for name in spec.facts if name.startswith("lora.")]:
            del spec.facts[name]
        return ""
    if "lora.r" not in spec:
        _put(spec, "lora.r", 4, source, "network_dim")
    if spec["lora.r"] > MAX_RANK:  # LyCORIS takes 100000 for "in full", of whose adapters nothing is known
        return f"network_dim {spec['lora.r']:,}: adapters of such a rank are not known"
    words = _words(spec, "network_args")
    if words is None:
        return "network_args is not known"
    for word in words:
        key, _, value = word.partition("=")
        if key not in _NETWORK_ARGS:
            return f"network_args {key}: the adapters that it makes are not known"
        if key == "rank_dropout":
            _put(spec, HYPER + "rank_dropout", value.strip("0.") != "", source, "network_args")
        if key == "conv_dim":
            if not value.isdecimal() or len(value) > MAX_DIGITS or not 0 < int(value) <= MAX_RANK:
                return f"network_args conv_dim={shown(value)} is no rank"
            _put(spec, HYPER + "conv_rank", int(value), source, "network_args")
    return ""


def _optimizer(spec: TrainingSpec, stated: str, source: str) -> str:
    origin = spec.fact("optimizer")
    named = stated or ("adamw8bit" if _switched(spec, "use_8bit_adam") else "")
    named = named or ("lion" if _switched(spec, "use_lion_optimizer") else "adamw")
    if spec.tried("optimizer"):
        return ""
    if named not in _OPTIMIZERS:
        return f"the optimizer {named!r} is not known"
    words = _words(spec, "optimizer_args")
    if words is None:
        return "optimizer_args is not known"
    for word in words:
        key = word.partition("=")[0]
        if key not in _OPTIMIZER_ARGS and not (key == "momentum" and named == "sgdnesterov"):
            return f"optimizer_args {key}: the states that it makes are not known"
    name, library = _OPTIMIZERS[named]
    if origin is not None and origin.node is not None:
        lm.put(spec, "optimizer", name, origin)
    else:
        _put(spec, "optimizer", name, source, "optimizer_type")
    _put(spec, "optimizer_library", library, source)
    if library == "torch":
        _put(spec, "optimizer_implementation", "foreach", "torch.optim on CUDA")
    _put(spec, "optimizer_paged", named.startswith("paged"), source)
    if _switched(spec, "fused_backward_pass"):
        if named != "adafactor":
            return "--fused_backward_pass is for Adafactor alone"
        _put(spec, "optimizer_in_backward", True, source)
    return ""


# ---------------------------------------------------------------------------------------------- what is stated


def _precision(spec: TrainingSpec, script: Script, source: str) -> None:
    """The script's own option alone: it hands it to accelerate itself."""
    half = spec.get("compute_dtype") in lm.HALF
    full = half and any(_switched(spec, key) for key in script.full)
    _put(spec, HYPER + "full_16_bit", full, source)
    dtype = spec["compute_dtype"] if half and (full or script.network) else "float32"
    _put(spec, "parameter_dtype", dtype, source)


def _texts(spec: TrainingSpec, name: str, script: Script, source: str) -> None:
    """Whether text encoders train, and the UNet."""
    if script.text_on:
        trains = _switched(spec, script.text_on)
    elif script.network:
        trains = not _switched(spec, script.text_off)
    else:
        value = str(_value(spec, script.text_off) or "0")
        trains = not value.startswith("-")
    _put(spec, HYPER + "train_text", trains, source)
    if name == "sdxl_train" and trains:
        frozen = [text for key, text in zip(RATES[1:], MODELS["sdxl"].text) if _is_zero(_value(spec, key))]
        _put(spec, HYPER + "frozen_texts", frozen, source)
    _put(spec, HYPER + "train_unet", not _switched(spec, "network_train_text_encoder_only"), source)
    if "sequence_length" not in spec:
        _put(spec, "sequence_length", 75, source, "max_token_length")
    dropout = _value(spec, "network_dropout")
    if script.network and isinstance(dropout, (int, float)):
        _put(spec, "lora.dropout", float(dropout), source, "network_dropout")


def _caches(spec: TrainingSpec, source: str) -> None:
    """What is cached on the disk is cached (``verify_training_args``, ``verify_sdxl_training_args``)."""
    latents = _switched(spec, "cache_latents") or _switched(spec, "cache_latents_to_disk")
    _keep(spec, HYPER + "cache_latents", latents, source)
    if spec[HYPER + "kind"] == "sdxl":
        texts = _switched(spec, "cache_text_encoder_outputs") or _switched(spec, "cache_text_encoder_outputs_to_disk")
        _keep(spec, HYPER + "cache_text", texts, source)
    else:
        spec.facts.pop(HYPER + "cache_text", None)
    batch = spec.get(HYPER + "vae_batch_size")
    if not isinstance(batch, int) or batch < 1:
        number = int(batch) if isinstance(batch, str) and batch.isdecimal() and len(batch) < 10 else 1
        _put(spec, HYPER + "vae_batch_size", max(number, 1), source, "vae_batch_size")
    _keep(spec, HYPER + "no_half_vae", _switched(spec, "no_half_vae"), source)


def _keep(spec: TrainingSpec, name: Name, value: bool, source: str) -> None:
    """A switch's fact with its place, where it has one."""
    fact = spec.fact(name)
    if fact is None or fact.node is None:
        _put(spec, name, value, source)
    elif not spec.tried(name):
        spec.facts[name] = fact._replace(value=value)


def _attention(spec: TrainingSpec, source: str) -> None:
    """``replace_unet_modules``: xformers goes before SDPA, and without either the UNet multiplies matrices."""
    if spec.tried("attention"):
        return
    for key, kind in (("xformers", "xformers"), ("sdpa", "sdpa")):
        if _switched(spec, key):
            fact = spec.fact("attention")
            if fact is None or fact.node is None or fact.value != kind:
                spec.facts["attention"] = Fact("attention", kind, DEFAULT, key, reason=source)
            return
    spec.facts["attention"] = Fact("attention", "eager", ASSUMED, reason=f"{source}: neither --xformers nor --sdpa")
