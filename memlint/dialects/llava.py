"""LLaVA's training script, which joins a vision tower to a language model by code of its own.

A sample has one image (of zeros where the data have none), whose features stand among the embeddings of the words; the
whole is cut to ``model_max_length``. The tower is in 16 bits and runs without gradients. What trains is the language
model and the projector, or the projector alone.

Source: haotian-liu/LLaVA 1.2 ``llava/train/{train,train_mem,train_xformers}.py``, ``llava/model/llava_arch.py``,
``llava/model/multimodal_{encoder,projector}/builder.py``, ``pyproject.toml``; LLaVA-VL/LLaVA-NeXT 1.7, the same files.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.llava import joined
from memlint.architectures.sizes import Sizes
from memlint.dialects import language_model as lm
from memlint.dialects.accelerate import truth
from memlint.documents.node import Unresolved
from memlint.facts.spec import ASSUMED, DEFAULT, WRITTEN, Fact, Name, TrainingSpec, UnknownModel

TRAIN = "LLaVA 1.2: llava/train/train.py"
PROGRAMS = ("train", "train_mem", "train_xformers")
_RELEASE = "4.37.2"

# LLaVA's own checkpoints -> the language models that they were trained from.
_BACKBONES = {
    "liuhaotian/llava-v1.5-7b": "lmsys/vicuna-7b-v1.5",
    "liuhaotian/llava-v1.5-13b": "lmsys/vicuna-13b-v1.5",
}
# Keys that LLaVA-NeXT alone has.
_NEXT = ("mm_tunable_parts", "mm_vision_tower_lr", "unfreeze_mm_vision_tower", "mm_newline_position")
_NEXT_TRAIN = "LLaVA-NeXT 1.7: llava/train/train.py"
_NEXT_RELEASE = "4.40"
_NEXT_DEFAULTS: dict[Name, Any] = {"sequence_length": 4096, "checkpointing": "full", "attention": "flash"}
# ... and what of it is not known here.
_UNKNOWN = {
    "mm_resampler_type": "what LLaVA-NeXT puts between tower and projector",
    "mm_spatial_pool_stride": "what LLaVA-NeXT makes of features before they are words",
    "s2": "features of several scales",
}
# Keys without whose values nothing can be said.
_DECISIVE = (
    *("mm_projector_type", "mm_vision_select_layer", "mm_vision_select_feature", "image_aspect_ratio"),
    *("tune_mm_mlp_adapter", "freeze_mm_mlp_adapter", "freeze_backbone", "mm_tunable_parts"),
)
# mm_tunable_parts -> facts
_PARTS = {
    "mm_vision_tower": "vision_tower",
    "mm_mlp_adapter": "projector",
    "mm_language_model": "language_model",
    "mm_vision_resampler": "",  # which has no weights where mm_resampler_type is not set
}
# Towers -> whether LLaVA-NeXT alone has them
_TOWERS = {"clip": False, "siglip": True}
# Kinds of language models, where the script is LLaVA's own, and where it is LLaVA-NeXT's.
_KINDS = {False: ("llama",), True: ("llama", "qwen2", "mistral")}
# TrainingArguments and ModelArguments, where a command says nothing.
_DEFAULTS: dict[Name, Any] = {
    "lora.r": 64,
    "lora.alpha": 16,
    "lora.dropout": 0.05,
    "quantization.kind": "nf4",
    "quantization.double": True,
    lm.HYPER + "optim": "adamw_torch",
    lm.HYPER + "mm_projector_type": "linear",
    lm.HYPER + "mm_vision_select_layer": -1,
}
# find_all_linear_names of a LLaMA: all linear layers but the head and what makes features of images
_LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
_LLAMA_TOKENS = 32000


def is_program(called: str) -> bool:
    """Whether a program is one of LLaVA's."""
    parts = called.removesuffix(".py").replace("/", ".").split(".")
    return parts[-3:-1] == ["llava", "train"] and parts[-1] in PROGRAMS


def is_llava(spec: TrainingSpec) -> bool:
    """Whether the program is LLaVA's, with a tower."""
    tower = spec.fact(lm.HYPER + "vision_tower")
    seen = (tower is not None and bool(tower.value)) or lm.gap(spec, "vision_tower") is not None
    return seen and spec.launch is not None and is_program(spec.launch.called)


def _is_next(spec: TrainingSpec) -> bool:
    return any(_given(spec, name) for name in _NEXT)


def _train(spec: TrainingSpec) -> str:
    """Whose code it is."""
    return _NEXT_TRAIN if _is_next(spec) else TRAIN


def _given(spec: TrainingSpec, name: str) -> Any:
    """The value of a key that no fact stands for; None for what switches nothing on."""
    node = spec.root.get(name)
    return None if node is None or node.value in (False, "False", "false", "") else node.value


# What the script states of itself.
FACTS: tuple[Name, ...] = (*dict.fromkeys((*_DEFAULTS, *_NEXT_DEFAULTS, "lora.targets", lm.HYPER + "dtype")),)


def prepare(spec: TrainingSpec) -> None:
    """What the script does where its command says nothing."""
    for name, value in {**_DEFAULTS, **(_NEXT_DEFAULTS if _is_next(spec) else {})}.items():
        known = spec.fact(name)
        if known is None or (known.node is None and lm.gap(spec, known.key.lstrip("-")) is None):
            key = known.key if known is not None else ""
            spec.facts[name] = Fact(name, value, DEFAULT, key, reason=_train(spec))
    lm.put(spec, "lora.targets", list(_LINEARS), reason=f"{_train(spec)}: find_all_linear_names")
    if lm.switched(spec, "bf16"):
        lm.put(spec, lm.HYPER + "dtype", "bfloat16", spec.fact(lm.HYPER + "bf16"), _train(spec))


def release(spec: TrainingSpec) -> None:
    """Which transformers it asks for."""
    if spec.get("transformers_version") is None and spec.root.get("eval_strategy") is None:
        release, whose = (_NEXT_RELEASE, "LLaVA-NeXT 1.7") if _is_next(spec) else (_RELEASE, "LLaVA 1.2")
        lm.put(spec, "transformers_version", release, reason=f"{whose}: pyproject.toml")


def backbone(spec: TrainingSpec) -> None:
    """The language model of a checkpoint of LLaVA's own."""
    named = spec.fact("model")
    if named is not None and _is_own(named):
        lm.put(spec, "model", _BACKBONES[named.value], named, "its language model")


def attention(spec: TrainingSpec) -> None:
    """``train_mem`` asks for FlashAttention. ``train_xformers`` replaces LLaMA's plain attention, which transformers
    no longer takes since it has SDPA (4.36)."""
    stated = spec.fact("attention")
    if _is_next(spec):
        return
    program = spec.launch.called if spec.launch is not None else ""
    if stated is not None and stated.node is not None:
        return
    if "train_mem" in program:
        lm.put(spec, "attention", "flash", reason="LLaVA 1.2: llava/train/train_mem.py")
    elif "train_xformers" in program and not spec.does("transformers.sdpa_4.36"):
        lm.put(spec, "attention", "xformers", reason="LLaVA 1.1: llava/train/train_xformers.py")


def join(spec: TrainingSpec) -> str:
    """Tower, projector and language model as one model, and which of it trains; why it is not known."""
    tower, text = spec.fact(lm.HYPER + "vision_tower"), spec.get(lm.CONFIG)
    if tower is None or not isinstance(text, dict):
        return lm.not_stated(spec, "vision_tower")
    reason = _unknown(spec, text)
    if reason:
        return reason
    found, source = _tower(spec, tower)
    eyes = _eyes(spec, found) if found is not None else None
    if found is None or eyes is None:
        kinds = " and ".join(name for name, following in _TOWERS.items() if _is_next(spec) or not following)
        return f"{tower.key} {tower.value}: {source if found is None else f'of towers {kinds} are known'}"
    config = spec.fact(lm.CONFIG)
    try:
        made = joined(
            Sizes(text, config.reason if config is not None else ""), **eyes, projector_layers=_projector(spec)
        )
    except UnknownModel as error:
        return str(error)
    lm.put(spec, lm.LLAVA, made, config)
    tried = spec.tried("compute_dtype")
    half = "bfloat16" if (lm.switched(spec, "bf16") if tried is None else tried.value == "bfloat16") else "float16"
    lm.put(spec, "tower_dtype", half, reason=f"{_train(spec)}: bfloat16 where bf16 is set, else float16")
    if _is_next(spec):
        reason = "no file states how many images a sample has; where it has none, LLaVA-NeXT takes one of zeros"
        spec.facts["images_per_sample"] = Fact("images_per_sample", 1, ASSUMED, "--data_path", reason=reason)
    else:
        lm.put(spec, "images_per_sample", 1, reason=f"{TRAIN}: LazySupervisedDataset, zeros where a sample has none")
    _vocabulary(spec)
    _frozen(spec, tower)
    return ""


JOINED: tuple[Name, ...] = (lm.LLAVA, "tower_dtype", "images_per_sample", "vocabulary_size", "frozen_parts")


def _tower(spec: TrainingSpec, tower: Fact) -> tuple[dict[str, Any] | None, str]:
    """The config that the tower is named by, and where it was found, or why it was not."""
    return lm.resolved(spec, str(tower.value), spec.document.path)


def _unknown(spec: TrainingSpec, text: dict[str, Any]) -> str:
    """What of the command is not LLaVA's, or not known here."""
    for name in _DECISIVE:
        node = spec.root.get(name)
        if node is not None and isinstance(node.value, Unresolved):
            return f"--{name} is not known: {node.value.reason}"
    for name, what in _UNKNOWN.items():
        if _given(spec, name):
            return f"--{name}: {what} is not known"
    tunable = _tunable(spec)
    if tunable is not None and (not tunable or not all(part in _PARTS for part in tunable)):
        return f"--mm_tunable_parts {','.join(tunable)} is not known"
    if tunable is not None and lm.switched(spec, "use_peft"):
        return "--mm_tunable_parts beside --lora_enable is not known"
    shape = spec.fact(lm.HYPER + "image_aspect_ratio")
    if shape is not None and shape.value not in (None, "square", "pad"):
        return f"{shape.key} {shape.value}: how many tiles an image becomes depends on its size, which no file states"
    projector = spec.fact(lm.HYPER + "mm_projector_type")
    if projector is not None and not _projector(spec):
        return f"{projector.key} {projector.value} is not known"
    if _feature(spec) not in ("patch", "cls_patch"):
        return f"--mm_vision_select_feature {_feature(spec)} is not known"
    layer = spec.fact(lm.HYPER + "mm_vision_select_layer")
    if layer is not None and not isinstance(layer.value, int):
        return f"{layer.key} {layer.value} is not known"
    kinds = _KINDS[_is_next(spec)]
    if text.get("model_type") not in kinds:
        named = spec.fact("model")
        key = named.key if named is not None else "--model_name_or_path"
        whose = _train(spec).partition(":")[0]
        return f"{key}: of {whose} language models of type {', '.join(kinds)} are known, not {text.get('model_type')}"
    if lm.switched(spec, "tune_mm_mlp_adapter"):
        if lm.switched(spec, "use_peft"):
            return "--tune_mm_mlp_adapter beside --lora_enable is not known"
        if lm.setting(spec, "bits") in (4, 8):
            return "--tune_mm_mlp_adapter over quantised weights is not known"
    return ""


def _tunable(spec: TrainingSpec) -> list[str] | None:
    """``mm_tunable_parts``, which goes before every other switch; None where it is not set."""
    stated = _given(spec, "mm_tunable_parts")
    return lm.names_of(stated) if stated is not None else None


def _feature(spec: TrainingSpec) -> str:
    node = spec.root.get("mm_vision_select_feature")
    return str(node.value) if node is not None and node.value is not None else "patch"


def _projector(spec: TrainingSpec) -> int:
    """How many linear layers it has, with GELU between them; 0 where that is not known."""
    kind = str(lm.setting(spec, "mm_projector_type"))
    if kind == "linear":
        return 1
    depth = kind.removeprefix("mlp").removesuffix("x_gelu")
    return int(depth) if depth.isdigit() and kind == f"mlp{depth}x_gelu" else 0


def _on(spec: TrainingSpec, name: str, default: bool = False) -> bool:
    node = spec.root.get(name)
    return default if node is None or node.value is None else truth(node.value)


def _eyes(spec: TrainingSpec, found: dict[str, Any]) -> dict[str, Any] | None:
    """The tower, what is taken of it, and how it attends; None for one that is not known.

    LLaVA-NeXT takes SigLIP without its head and its last layer, and has attention of its own for it."""
    kind, vision = found.get("model_type"), found.get("vision_config")
    if kind not in _TOWERS or not isinstance(vision, dict) or (_TOWERS[kind] and not _is_next(spec)):
        return None
    if kind == "siglip":
        fewer = {**vision, "num_hidden_layers": vision["num_hidden_layers"] - 1}
        return {"seen": fewer, "layer": -1, "without_first": False, "tower_attention": "eager"}
    layer = lm.setting(spec, "mm_vision_select_layer")
    return {
        "seen": vision,
        "layer": -2 if layer is None else layer,
        "without_first": _feature(spec) != "cls_patch",
        "tower_attention": "sdpa" if spec.does("transformers.clip_has_sdpa") else "eager",
    }


def captions(spec: TrainingSpec) -> None:
    """With ``version plain`` a sample is an image and its caption (``preprocess_plain``), far below any limit."""
    version, limit, tower = spec.root.get("version"), spec.get("sequence_length"), spec.fact(lm.HYPER + "vision_tower")
    if lm.LLAVA not in spec or tower is None or version is None or version.value != "plain":
        return
    found = _tower(spec, tower)[0] or {}
    words = (found.get("text_config") or {}).get("max_position_embeddings")
    if not isinstance(limit, int) or not isinstance(words, int):
        return
    vision = found["vision_config"]
    patches = (vision["image_size"] // vision["patch_size"]) ** 2 + (_feature(spec) == "cls_patch")
    if patches + words < limit:
        reason = (
            f"--version plain: {patches} tokens of an image, and a caption no longer than the {words} that "
            f"{str(tower.value).rpartition('/')[2]} was made for, as no file states how long captions are"
        )
        spec.facts["sequence_length"] = Fact("sequence_length", patches + words, ASSUMED, reason=reason)


def _vocabulary(spec: TrainingSpec) -> None:
    """Tokens for the patches and both ends of an image, and v0's for padding. (``initialize_vision_tokenizer``)"""
    rows = spec.fact("vocabulary_size")
    if rows is None or rows.value != _LLAMA_TOKENS:
        return
    version = spec.root.get("version")
    padding = version is None or version.value == "v0"
    added = _on(spec, "mm_use_im_patch_token", True) + 2 * _on(spec, "mm_use_im_start_end") + padding
    if added:
        lm.put(spec, "vocabulary_size", _LLAMA_TOKENS + added, rows, f"{TRAIN}: {added} more tokens")


def _frozen(spec: TrainingSpec, tower: Fact) -> None:
    """``freeze_backbone`` leaves out the head, and ``mm_use_im_start_end`` the embeddings."""
    tunable, stated = _tunable(spec), spec.root.get("mm_tunable_parts")
    if tunable is not None:
        trained = {_PARTS[part] for part in tunable}
        parts = [part for part in ("vision_tower", "projector", "language_model") if part not in trained]
        spec.facts["frozen_parts"] = Fact("frozen_parts", parts, WRITTEN, "--mm_tunable_parts", stated, _NEXT_TRAIN)
        return
    parts = [] if _on(spec, "unfreeze_mm_vision_tower") else ["vision_tower"]
    alone, backbone = spec.fact(lm.HYPER + "tune_mm_mlp_adapter"), spec.fact(lm.HYPER + "freeze_backbone")
    origin: Fact = tower
    if alone is not None and truth(alone.value):
        origin = alone
        parts += ["layers", "head"] if _on(spec, "mm_use_im_start_end") else ["language_model"]
    elif backbone is not None and truth(backbone.value):
        origin = backbone
        parts += ["embeddings", "layers"]
    if _on(spec, "freeze_mm_mlp_adapter"):
        parts.append("projector")
    lm.put(spec, "frozen_parts", parts, origin, _train(spec))


def _is_own(named: Fact | None) -> bool:
    """Whether a checkpoint of LLaVA's own is written, which has a projector already."""
    return named is not None and named.written in _BACKBONES


def adapters(spec: TrainingSpec) -> None:
    """What trains beside them."""
    if spec.get("tuning", "full") != "full" and "projector" not in (spec.get("frozen_parts") or ()):
        lm.put(spec, "lora.unfrozen", ["multi_modal_projector"], reason=f"{TRAIN}: initialize_vision_modules")


def dtypes(spec: TrainingSpec) -> str:
    """The projector's dtype, and those around quantised weights, once the others are known."""
    if spec.get("master_weights"):
        return ""  # DeepSpeed's engine casts everything
    quantised = "quantization.bits" in spec
    if quantised and spec.get("compute_dtype") == "bfloat16":
        for name in ("lora.dtype", "parameter_dtype", "frozen_dtype"):
            lm.put(spec, name, "bfloat16", reason=TRAIN)
        lm.put(spec, "float32_parts", ["norms"], reason=TRAIN)
    elif quantised:
        lm.put(spec, "quantization.prepared", True, reason=f"{TRAIN}: prepare_model_for_kbit_training")
    if quantised:
        lm.put(spec, "projector_dtype", spec.get("compute_dtype"), reason=TRAIN)
    elif not _is_own(spec.fact("model")):
        lm.put(spec, "projector_dtype", "float32", reason=f"{TRAIN}: build_vision_projector, after the weights' load")
    return ""
