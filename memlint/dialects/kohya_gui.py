"""The presets that kohya_ss' GUI saves, in the options of the script that it starts with them.

Each tab of the GUI saves its fields, and makes a TOML of options of them when it starts one of sd-scripts' scripts. A
field that a preset leaves out is as the GUI opens it.

Source: ``bmaltais/kohya_ss`` 45088f04, ``kohya_gui``: ``lora_gui.py``, ``dreambooth_gui.py``, ``finetune_gui.py``
(``train_model``), ``common_gui.py`` (``update_my_data``, ``run_cmd_advanced_training``), ``class_*.py`` (what fields
are when the GUI opens).
"""

from __future__ import annotations

from typing import Any

from memlint.documents.node import Document, Node, Unresolved

SOURCE = "kohya_ss 45088f04: kohya_gui"

# What the GUI opens with, where that takes memory.
_OPENED: dict[str, Any] = {
    "xformers": "xformers",
    "max_resolution": "512,512",
    "enable_bucket": True,
    "min_bucket_reso": 256,
    "max_bucket_reso": 2048,
    "bucket_reso_steps": 64,
    "cache_latents": True,
    "mixed_precision": "fp16",
    "max_token_length": 75,
    "train_batch_size": 1,
}
_OPENED_LORA: dict[str, Any] = {"LoRA_type": "Standard", "network_dim": 8, "conv_dim": 1, "conv_alpha": 1}
_RATE = 0.0001  # text_encoder_lr and unet_lr, and those of the text encoders of other tabs are as small

# What a tab calls an option of the script otherwise; the rest has the option's own name.
_RENAMED = {
    "max_resolution": "resolution",
    "optimizer": "optimizer_type",
    "lora_network_weights": "network_weights",
}
# Fields that go to the script in another form, or for some models alone.
_TAKEN = frozenset(
    (
        *("xformers", "sdpa", "LoRA_type", "conv_dim", "conv_alpha", "unet_lr", "text_encoder_lr", "rank_dropout"),
        *("module_dropout", "sdxl_cache_text_encoder_outputs", "sdxl_no_half_vae", "no_half_vae", "network_args"),
        *("cache_text_encoder_outputs", "cache_text_encoder_outputs_to_disk", "network_module", "lowvram", "lowram"),
        *("network_train_unet_only", "network_train_text_encoder_only", "additional_parameters", "train_text_encoder"),
        *("blocks_to_swap", "cpu_offload_checkpointing", "config_file", "model_type", "fp8_base_unet", "use_8bit_adam"),
        *("learning_rate_te1", "learning_rate_te2", "extra_accelerate_launch_args", "deepspeed", "torch_compile"),
    )
)
# A switch of the model -> what the tabs' scripts are called for it, in the order in which they ask: adapters,
# DreamBooth, fine-tuning.
_MODELS = (
    ("sdxl", "sdxl_train_network", "sdxl_train", "sdxl_train"),
    ("flux1_checkbox", "flux_train_network", "flux_train", "flux_train"),
    ("sd3_checkbox", "sd3_train_network", "sd3_train", "sd3_train"),
    ("hunyuan_image_checkbox", "hunyuan_image_train_network", "", ""),
    ("anima_checkbox", "anima_train_network", "", "anima_train"),
    ("lumina_checkbox", "lumina_train_network", "", "lumina_train"),
)
_STABLE = ("train_network", "train_db", "fine_tune")
_TABS = ("adapters", "dreambooth", "finetuning")
_MODULES = {
    "Standard": "networks.lora",
    "Kohya LoCon": "networks.lora",
    "LoRA-FA": "networks.lora_fa",
    "Kohya DyLoRA": "networks.dylora",
    "Kohya LoHa": "networks.loha",
    "Kohya LoKr": "networks.lokr",
    "Flux1": "networks.lora_flux",
    "Flux1 OFT": "networks.oft_flux",
    "Lumina": "networks.lora_lumina",
    "Anima": "networks.lora_anima",
    "HunyuanImage-2.1": "networks.lora_hunyuan_image",
}
# Fields of the tab for adapters that are words of ``--network_args`` where they have a value.
_WORDS = (
    *("down_lr_weight", "mid_lr_weight", "up_lr_weight", "block_lr_zero_threshold", "block_dims", "block_alphas"),
    *("conv_block_dims", "conv_block_alphas", "rank_dropout", "module_dropout"),
)
_RATIOS = ("loraplus_lr_ratio", "loraplus_unet_lr_ratio", "loraplus_text_encoder_lr_ratio")


def is_preset(document: Document, root: Node) -> bool:
    """Whether a file is one that the GUI saves: ``max_resolution`` and ``LoRA_type`` are no options of the scripts."""
    return document.format == "json" and (root.get("max_resolution") or root.get("LoRA_type")) is not None


def _value(root: Node, key: str) -> Any:
    node = root.get(key)
    return None if node is None or node.value == "" else node.value


def _is_on(root: Node, *keys: str) -> bool:
    return any(_value(root, key) not in (None, False, 0, "False", "false") for key in keys)


def tab(root: Node) -> str:
    """Which tab saved a preset: it has fields that no other has. "" for textual inversion and what is not known."""
    if root.get("num_vectors_per_token") is not None:
        return ""
    if root.get("network_dim") is not None or root.get("LoRA_type") is not None:
        return "adapters"
    if root.get("image_folder") is not None or root.get("dataset_repeats") is not None:
        return "finetuning"
    return "dreambooth"


def script(root: Node) -> str:
    """The script that the GUI starts; "" where no row says it."""
    found = tab(root)
    if not found:
        return "sdxl_train_textual_inversion" if _is_on(root, "sdxl", "sdxl_checkbox") else "train_textual_inversion"
    at = _TABS.index(found)
    for switch, *names in _MODELS:
        if _is_on(root, *((switch, "sdxl_checkbox") if switch == "sdxl" else (switch,))):
            return names[at]
    return _STABLE[at]


def options(root: Node) -> Node:
    """A preset's fields as options of the script: nodes keep their places, and what the GUI adds has the root's."""
    assert isinstance(root.value, dict)
    found, sdxl = tab(root), _is_on(root, "sdxl", "sdxl_checkbox")
    made: dict[str, Node] = {}

    def put(key: str, value: Any, *origins: str) -> None:
        node = next((node for name in origins if (node := root.get(name)) is not None), root)
        made[key] = Node(value, node.span, node.key_span, key, node.via)

    for key, value in _OPENED.items():
        if root.get(key) is None and key not in _TAKEN:
            put(_RENAMED.get(key, key), value)
    for key, node in root.value.items():
        if key not in _TAKEN and node.value not in ("", None, False):
            made[_RENAMED.get(key, key)] = node
    attention = _opened(root, "xformers")
    attention = (
        {True: "xformers", False: "none"}.get(attention, attention) if isinstance(attention, bool) else attention
    )
    if attention in ("xformers", "sdpa"):
        put(str(attention), True, "xformers")
    elif isinstance(attention, Unresolved):
        put("xformers", attention, "xformers")
    if "optimizer_type" not in made:  # update_my_data
        put("optimizer_type", "AdamW8bit" if _is_on(root, "use_8bit_adam") else "AdamW", "use_8bit_adam")
    if (words := _value(root, "optimizer_args")) is not None:
        put("optimizer_args", words.replace('"', "") if isinstance(words, str) else words, "optimizer_args")
    for key in ("sdxl", "flux1", "sd3"):
        field = f"{key}_cache_text_encoder_outputs"
        if (sdxl if key == "sdxl" else _is_on(root, f"{key}_checkbox")) and _is_on(root, field):
            put("cache_text_encoder_outputs", True, field)
    if sdxl and _is_on(root, "sdxl_no_half_vae"):
        put("no_half_vae", True, "sdxl_no_half_vae")
    if _is_on(root, "train_inpainting"):
        for key in ("cache_latents", "cache_latents_to_disk"):
            made.pop(key, None)
    if found == "adapters":
        _adapters(root, put, made)
    else:
        _rates(root, put, found, sdxl)
    if found == "finetuning":
        put("enable_bucket", True)
    for key, node in additional(root).items():
        made[key] = node
    return Node(made, root.span)


def _opened(root: Node, key: str) -> Any:
    """A field's value, or what the GUI opens with where the preset has none (``open_configuration``)."""
    node = root.get(key)
    return node.value if node is not None and node.value is not None else {**_OPENED, **_OPENED_LORA}.get(key)


def _adapters(root: Node, put: Any, made: dict[str, Node]) -> None:
    kind = str(_opened(root, "LoRA_type"))
    module = _MODULES.get(kind, "lycoris.kohya")
    if module == "networks.lora" and _is_on(root, "sd3_checkbox"):
        module = "networks.lora_sd3"
    put("network_module", module, "LoRA_type")
    if root.get("network_dim") is None:
        put("network_dim", _OPENED_LORA["network_dim"])
    words = [f"{key}={_value(root, key)}" for key in (*_WORDS, *_RATIOS) if _is_more(root, key)]
    if kind == "Kohya LoCon":
        words[:0] = [f"conv_dim={_opened(root, 'conv_dim')}", f"conv_alpha={_opened(root, 'conv_alpha')}"]
    put("network_args", " ".join(words), "conv_dim")
    text, unet = _rate(root, "text_encoder_lr"), _rate(root, "unet_lr")
    if text == 0 and unet != 0:
        put("network_train_unet_only", True, "text_encoder_lr")
    if text != 0 and unet == 0:
        put("network_train_text_encoder_only", True, "unet_lr")


def _is_more(root: Node, key: str) -> bool:
    return _value(root, key) not in (None, False, 0, "0")


def _rates(root: Node, put: Any, found: str, sdxl: bool) -> None:
    """Text encoders train where their rates say so; fine-tuning has a switch of its own."""
    first, second = _rate(root, "learning_rate_te1"), _rate(root, "learning_rate_te2")
    if found == "finetuning":
        node = root.get("train_text_encoder")
        trains = True if node is None else _is_on(root, "train_text_encoder")
    else:
        trains = sdxl and (first > 0 or second > 0)
    if trains:
        put("train_text_encoder", True, "train_text_encoder")
        for key, rate in (("learning_rate_te1", first), ("learning_rate_te2", second)) if sdxl else ():
            put(key, rate, key)
    if (
        root.get("learning_rate") is not None
    ):  # these tabs hand on a 0, which the one for adapters takes for what is off
        put("learning_rate", _rate(root, "learning_rate"), "learning_rate")


def _rate(root: Node, key: str) -> float:
    """A learning rate (``update_my_data``: what is no number is 0)."""
    node = root.get(key)
    if node is None or node.value is None:
        return _RATE
    try:
        return float(str(node.value))
    except ValueError:
        return 0.0


def additional(root: Node) -> dict[str, Node]:
    """The options that a preset adds to the command, which go before its fields."""
    node = root.get("additional_parameters")
    if node is None or not isinstance(node.value, str):
        return {}
    words: dict[str, list[str]] = {}
    last = ""
    for word in node.value.replace('"', "").split():
        if word.startswith("--"):
            last, equals, value = word[2:].partition("=")
            words[last] = [value] if equals else []
        elif last:
            words[last].append(word)
    found: dict[str, Node] = {}
    for key, values in words.items():
        text = " ".join(values)
        found[key] = Node(
            int(text) if text.isdecimal() and len(text) < 10 else text or True, node.span, node.key_span, key, node.via
        )
    return found
