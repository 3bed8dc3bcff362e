"""InternVL's own training scripts, which join InternViT to a language model by code of their own.

An image becomes as many tiles as ``max_dynamic_patch`` allows, and a thumbnail; each tile's features stand among the
tokens of its sample, which are cut to ``max_seq_length``. A sample of text alone has one blank tile. The tower's blocks
are always recomputed, the decoder's unless ``--grad_checkpoint False``. Where rows are not grouped by length they are
padded to ``max_seq_length``; packed ones have at most ``max_packed_tokens`` and ``num_images_expected`` tiles.

Source: OpenGVLab/InternVL 2410d1d ``internvl_chat/internvl/train/{internvl_chat_finetune,internvl_chat_pretrain,
dataset,dataset_packed}.py``, ``internvl/patch/pad_data_collator.py``,
``internvl/model/internvl_chat/modeling_internvl_chat.py``, ``pyproject.toml``.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.internvl import InternVl, joined
from memlint.architectures.sizes import MOST_PARTS, MOST_ROWS, MOST_WIDTH, Sizes
from memlint.data import internvl as published
from memlint.data.hub import BY_NAME, CATALOGUE
from memlint.dialects import language_model as lm
from memlint.documents.node import Unresolved
from memlint.facts.spec import ASSUMED, DEFAULT, WRITTEN, Fact, Name, OnTop, TrainingSpec, UnknownModel
from memlint.named_tuple import NamedTuple

TRAIN = "InternVL 2410d1d: internvl_chat_finetune.py"
PROGRAMS = ("internvl_chat_finetune", "internvl_chat_pretrain")
_RELEASE = "4.37.2"


class Option(NamedTuple):
    """An option of the script's own: its default, and the least and the most that it may be, for a number."""

    default: Any
    least: float = 0
    most: float = 0

    def read(self, value: Any) -> Any:
        """The value as HfArgumentParser makes it; None for what is no such value."""
        if isinstance(self.default, bool):
            words = {"true": True, "yes": True, "t": True, "y": True, "1": True}
            words |= {"false": False, "no": False, "f": False, "n": False, "0": False}
            return words.get(str(value).lower())
        if isinstance(self.default, str):
            return str(value)
        try:
            number = type(self.default)(str(value))
        except (ValueError, OverflowError):
            return None
        return number if self.least <= number <= self.most else None


# ModelArguments and DataTrainingArguments: those by which memory goes.
OPTIONS = {
    "freeze_llm": Option(False),
    "freeze_backbone": Option(False),
    "freeze_mlp": Option(False),
    "unfreeze_vit_layers": Option(0, -MOST_PARTS, MOST_PARTS),
    "unfreeze_lm_head": Option(False),
    "vision_select_layer": Option(-1, -MOST_PARTS, MOST_PARTS),
    "use_backbone_lora": Option(0, 0, MOST_PARTS),
    "use_llm_lora": Option(0, 0, MOST_PARTS),
    "grad_checkpoint": Option(True),
    "drop_path_rate": Option(0.0, 0, 1),
    "ps_version": Option("v2"),
    "use_liger": Option(False),
    "force_image_size": Option(448, 1, MOST_WIDTH),
    "down_sample_ratio": Option(0.5, 1e-3, 1),
    "dynamic_image_size": Option(False),
    "use_thumbnail": Option(False),
    "min_dynamic_patch": Option(1, 1, MOST_PARTS),
    "max_dynamic_patch": Option(12, 1, MOST_PARTS),
    "use_packed_ds": Option(False),
    "max_packed_tokens": Option(8192, 1, MOST_ROWS),
    "num_images_expected": Option(40, 1, MOST_PARTS),
    "strict_mode": Option(True),
    "group_by_length": Option(False),
}
# What is not known where it is on: whether weights and their states are known all the same, and why.
_NOT_KNOWN: dict[str, tuple[bool, str]] = {
    "use_liger": (True, "Liger's kernels within InternVL's model are not known"),
    "use_backbone_lora": (
        False,
        "adapters in the tower get no gradient, as its blocks are recomputed by torch's older checkpoint behind "
        "embeddings that do not train; what such a run holds is not known",
    ),
    "unfreeze_vit_layers": (
        False,
        "blocks that train behind some that do not get no gradient from torch's older checkpoint; what such a run "
        "holds is not known",
    ),
}
# Of the scripts for InternVL 3.5 (internvl_chat_gpt_oss), which have the same name.
_NEWER = ("use_custom_flash_attn", "split_annotations")
_PIXEL_SHUFFLES = {"v1": False, "v2": True}
# The layers that wrap_llm_lora adapts, by the decoder's type and under the names that they have here.
_GATED = ["gate_proj", "down_proj", "up_proj"]
_LINEARS = {
    "internlm2": ["wqkv", "wo", *_GATED],
    "phi3": ["down_proj", "gate_up_proj", "o_proj", "qkv_proj"],
    "llama": ["q_proj", "k_proj", "v_proj", "o_proj", *_GATED],
    "qwen2": ["q_proj", "k_proj", "v_proj", "o_proj", *_GATED],
}
_DEFAULT_LENGTH = 8192


class Found(NamedTuple):
    """What a command trains.

    words, seen  the ``config.json`` of the decoder and of the tower
    rows         of the decoder's vocabulary
    origin       what names it
    source       where it was found
    whole        a checkpoint of all of it, which has a projector already
    counted      the number of rows is known, and not assumed
    """

    words: dict[str, Any]
    seen: dict[str, Any]
    rows: int
    origin: Fact
    source: str
    whole: bool
    counted: bool = True


def _script(called: str) -> str:
    return called.removesuffix(".py").replace("/", ".").rpartition(".")[2]


def is_own(called: str) -> bool:
    """Whether a program is called as InternVL's are, of which those that are not known are refused by their names."""
    return _script(called).startswith("internvl")


def is_internvl(spec: TrainingSpec) -> bool:
    """Whether the program is one of these scripts."""
    return spec.launch is not None and _script(spec.launch.called) in PROGRAMS


def value(spec: TrainingSpec, name: str) -> Any:
    """An option's value, or its default; what is none of its values is said by :func:`unknown`."""
    node, option = spec.root.get(name), OPTIONS[name]
    if node is None or node.value is None or isinstance(node.value, Unresolved):
        return option.default
    found = option.read(node.value)
    return option.default if found is None else found


def _fact(spec: TrainingSpec, name: str) -> Fact:
    """An option as what facts follow from."""
    node = spec.root.get(name)
    if node is None:
        return Fact("model", None, DEFAULT, reason=f"{TRAIN}: --{name}")
    return Fact("model", node.value, WRITTEN, f"--{name}", node)


# What the script states of itself.
FACTS: tuple[Name, ...] = (
    *("sequence_length", "checkpointing", "checkpointing_reentrant", "lora.r", "lora.alpha", "lora.dropout"),
    *(lm.HYPER + name for name in ("use_peft", "dtype")),
)


def prepare(spec: TrainingSpec) -> None:
    """What the script does, whatever transformers' own options say."""
    stated = spec.fact("sequence_length")
    if (stated is None or stated.value is None) and lm.gap(spec, "max_seq_length") is None:
        lm.put(spec, "sequence_length", _DEFAULT_LENGTH, reason=f"{TRAIN}: max_seq_length")
    recomputed = spec.fact("checkpointing")
    if recomputed is None or recomputed.node is None or recomputed.value == "none":
        kind = "full" if value(spec, "grad_checkpoint") else "none"
        lm.put(spec, "checkpointing", kind, _fact(spec, "grad_checkpoint"), f"{TRAIN}: grad_checkpoint")
    lm.put(spec, "checkpointing_reentrant", True, reason=f"{TRAIN}: torch.utils.checkpoint as it is")
    lm.put(spec, lm.HYPER + "dtype", "bfloat16", reason=f"{TRAIN}: torch_dtype of all that is loaded")
    rank = value(spec, "use_llm_lora")
    if rank:
        origin = _fact(spec, "use_llm_lora")
        lm.put(spec, lm.HYPER + "use_peft", True, origin)
        lm.put(spec, "lora.r", rank, origin)
        lm.put(spec, "lora.alpha", 2 * rank, reason=f"{TRAIN}: twice the rank")
        lm.put(spec, "lora.dropout", 0.05, reason="InternVL 2410d1d: wrap_llm_lora")


def release(spec: TrainingSpec) -> None:
    """Which transformers it asks for."""
    if spec.get("transformers_version") is None:
        lm.put(spec, "transformers_version", _RELEASE, reason="InternVL 2410d1d: internvl_chat/pyproject.toml")


def model(spec: TrainingSpec) -> str:
    """The decoder's config, and how many rows its vocabulary has."""
    found = found_of(spec)
    if isinstance(found, str):
        return found
    spec.model_name = str(found.origin.value or "").rstrip("/").rsplit("/", 1)[-1]
    lm.put(spec, lm.CONFIG, {**found.words, "vocab_size": found.rows}, found.origin, found.source)
    if found.source.endswith(BY_NAME):
        reason = "the folder has its name, and its own config.json is out of reach"
        named = found.source.removesuffix(BY_NAME)
        spec.facts["same_model_as"] = Fact("same_model_as", named, ASSUMED, reason=reason)
    if found.counted:
        lm.put(spec, "vocabulary_size", found.rows, found.origin, "with the tokens that the script adds")
    else:
        why = "the nine tokens that the script adds, beside as many as config.json states"
        spec.facts["vocabulary_size"] = Fact("vocabulary_size", found.rows, ASSUMED, reason=why)
    return ""


def found_of(spec: TrainingSpec) -> Found | str:
    """What the command names, or why that is not known."""
    named, given = spec.fact("model"), lm.stated_config()
    if given is not None:
        origin = named if named is not None else Fact("model", given.source, key="--model-config")
        return _of_config(origin, given.config, given.source)
    if named is not None and named.value:
        config, source = _resolved(spec, named)
        chat = published.chat(str(named.value))
        if config is not None and (config.get("model_type") == published.CHAT_TYPE or chat is None):
            return _of_config(named, config, source)
        if chat is None:
            return f"{named.key} {named.value}: {source}"
        where = CATALOGUE if str(named.value).lower() == f"opengvlab/{chat.name.lower()}" else f"{chat.name}{BY_NAME}"
        return Found(chat.words, chat.tower, chat.words["vocab_size"], named, where, True)
    return _of_parts(spec)


def _resolved(spec: TrainingSpec, fact: Fact) -> tuple[dict[str, Any] | None, str]:
    beside = fact.span.path if fact.span is not None else spec.document.path
    return lm.resolved(spec, str(fact.value), beside)


def _of_config(origin: Fact, config: dict[str, Any], source: str) -> Found | str:
    """A ``config.json`` that holds both parts."""
    words, seen = config.get("llm_config"), config.get("vision_config")
    kind = config.get("model_type")
    if kind != published.CHAT_TYPE or not isinstance(words, dict) or not isinstance(seen, dict):
        return f"{origin.key} {origin.value}: {source} is of type {kind}, which InternVL's script does not train"
    if config.get("use_llm_lora") or config.get("use_backbone_lora"):
        return f"{origin.key} {origin.value}: {source} has adapters already, over which others are not known"
    rows = words.get("vocab_size")
    if not isinstance(rows, int):
        return f"{origin.key} {origin.value}: {source} states no vocab_size of its llm_config"
    return Found({**words, "tie_word_embeddings": False}, seen, rows, origin, source, True)


def _of_parts(spec: TrainingSpec) -> Found | str:
    """``--llm_path`` and ``--vision_path``."""
    node, tower = spec.root.get("llm_path"), spec.fact(lm.HYPER + "vision_tower")
    if node is not None and isinstance(node.value, Unresolved):
        return f"--llm_path is not known: {node.value.reason}"
    if node is None or not isinstance(node.value, str) or not node.value:
        return lm.not_stated(spec, "model_name_or_path", *lm.spellings(spec, "model"))
    if tower is None or not tower.value:
        return lm.not_stated(spec, "vision_path")
    origin = Fact("model", node.value, WRITTEN, "--llm_path", node)
    words, source = _resolved(spec, origin)
    if words is None:
        return f"--llm_path {node.value}: {source}"
    seen = published.tower(str(tower.value))
    if seen is None:
        config, where = _resolved(spec, tower)
        if config is None:
            return f"{tower.key} {tower.value}: {where}"
        inner = config.get("vision_config")
        seen = inner if isinstance(inner, dict) else config
        if seen.get("model_type") != published.TOWER_TYPE:
            return f"{tower.key} {tower.value}: of towers InternViT is known, not {seen.get('model_type')}"
    rows, own = published.rows(words), words.get("vocab_size")
    if rows is None and not isinstance(own, int):
        return f"--llm_path {node.value}: {source} states no vocab_size"
    return Found(words, seen, rows or int(own or 0) + 9, origin, source, False, rows is not None)


def attention(spec: TrainingSpec) -> None:
    """FlashAttention, whatever is asked for."""
    lm.put(spec, "attention", "flash", reason=f"{TRAIN}: flash_attention_2")


JOINED: tuple[Name, ...] = (*(lm.LLAVA, "images_per_sample", "fewest_images", "most_images", "frozen_parts"),)


def join(spec: TrainingSpec) -> str:
    """Tower, projector and decoder as one model, which of it trains, and how many tiles there are."""
    found = found_of(spec)
    if isinstance(found, str):
        return ""  # said by the step that looks for the model
    reason = _unknown(spec, found)
    if reason:
        return reason
    try:
        made = joined(
            Sizes(found.words, found.source),
            Sizes(found.seen, found.source),
            tile=value(spec, "force_image_size"),
            drop_path=value(spec, "drop_path_rate"),
            shuffle=round(1 / value(spec, "down_sample_ratio")),
            swaps=_PIXEL_SHUFFLES[value(spec, "ps_version")],
            weighs=value(spec, "use_packed_ds"),
        )
    except UnknownModel as error:
        return str(error)
    lm.put(spec, lm.LLAVA, made, found.origin)
    _frozen(spec)
    tiles = _packed_tiles if value(spec, "use_packed_ds") else _tiles
    return tiles(spec, made) or _on_top(spec)


def _unknown(spec: TrainingSpec, found: Found) -> str:
    """What of the command is none of the script's, or not known here; the whole first."""
    for name, option in OPTIONS.items():
        node = spec.root.get(name)
        if node is not None and isinstance(node.value, Unresolved):
            return f"--{name} is not known: {node.value.reason}"
        if node is not None and node.value is not None and option.read(node.value) is None:
            return f"--{name} {node.value} is {_meant(option)}"
    for name in _NEWER:
        if spec.root.get(name) is not None:
            return f"--{name}: the code of InternVL 3.5, which has the same name, is not known"
    for name, (states_known, why) in _NOT_KNOWN.items():
        if value(spec, name) and not states_known:
            return f"--{name}: {why}"
    if value(spec, "vision_select_layer") != -1:
        return f"--vision_select_layer {value(spec, 'vision_select_layer')}: of another layer than the last"
    if value(spec, "ps_version") not in _PIXEL_SHUFFLES:
        return f"--ps_version {value(spec, 'ps_version')} is not known"
    if value(spec, "down_sample_ratio") != 1 / round(1 / value(spec, "down_sample_ratio")):
        return f"--down_sample_ratio {value(spec, 'down_sample_ratio')} is no whole number's part of one"
    if value(spec, "unfreeze_lm_head") and found.words.get("model_type") == "internlm2":
        return "--unfreeze_lm_head: InternLM2 has no lm_head, and the script fails"
    rows = spec.get("micro_batch_size")
    if value(spec, "use_packed_ds") and isinstance(rows, int) and rows > 1:
        return f"--per_device_train_batch_size {rows:,}: with --use_packed_ds attention takes one row at a time"
    if _all_frozen(spec):
        return "--freeze_llm, --freeze_mlp and --freeze_backbone without --use_llm_lora: nothing trains"
    return ""


def _meant(option: Option) -> str:
    if isinstance(option.default, bool):
        return "neither true nor false"
    kind = "a whole number" if isinstance(option.default, int) else "a number"
    return f"not {kind} from {option.least:,} to {option.most:,}"


def _on_top(spec: TrainingSpec) -> str:
    """What comes on top of weights and their states, and is not known."""
    for name, (states_known, why) in _NOT_KNOWN.items():
        if states_known and value(spec, name):
            return OnTop(f"--{name}: {why}")
    return ""


def _all_frozen(spec: TrainingSpec) -> bool:
    whole = all(value(spec, name) for name in ("freeze_llm", "freeze_mlp", "freeze_backbone"))
    return whole and not value(spec, "use_llm_lora")


# Options that leave a part out of training, and the part.
_PARTS = {"freeze_backbone": "vision_tower", "freeze_mlp": "projector", "freeze_llm": "language_model"}


def _frozen(spec: TrainingSpec) -> None:
    """``unfreeze_lm_head`` sets an attribute of the head's module, which no parameter heeds."""
    parts = [part for name, part in _PARTS.items() if value(spec, name)]
    first = next((name for name in _PARTS if value(spec, name)), "freeze_llm")
    lm.put(spec, "frozen_parts", parts, _fact(spec, first), f"{TRAIN}: _freeze_params")


def _tiles(spec: TrainingSpec, made: InternVl) -> str:
    """Tiles of the image of a sample, at most; of several images together as many as a sample has room for."""
    length = spec.get("sequence_length")
    if not isinstance(length, int):
        return ""
    room = (length - 1) // made.features  # and the token that ends an image, or the sample is not taken
    if room < 1:
        return f"--max_seq_length {length:,}: no sample has room for the {made.features:,} tokens of a tile"
    dynamic, least = value(spec, "dynamic_image_size"), value(spec, "min_dynamic_patch")
    tiles = value(spec, "max_dynamic_patch") if dynamic else 1
    if dynamic and least > tiles:
        return f"--min_dynamic_patch {least:,} is above --max_dynamic_patch {tiles:,}"
    tiles += bool(dynamic and tiles > 1 and value(spec, "use_thumbnail"))
    name = "max_dynamic_patch" if tiles <= room else "max_seq_length"
    reason = (
        f"an image in each sample, in as many tiles of {made.features:,} tokens as --{name} leaves room for; samples "
        f"without images have one blank tile, and those of several have at most {room:,}"
    )
    spec.facts["images_per_sample"] = Fact("images_per_sample", min(tiles, room), ASSUMED, reason=reason)
    lm.put(spec, "fewest_images", 1, reason=f"{TRAIN}: pure_text_get_item")
    if room > tiles:
        lm.put(spec, "most_images", room, reason=f"{TRAIN}: multi_modal_multi_image_get_item")
    return ""


def _packed_tiles(spec: TrainingSpec, made: InternVl) -> str:
    """Of a packed row, at most; in strict mode of each."""
    length, tiles = spec.get("sequence_length"), value(spec, "num_images_expected")
    if not isinstance(length, int):
        return ""
    if value(spec, "strict_mode"):
        reason = "InternVL 2410d1d: PackedDataset.pad_buffer"
        lm.put(spec, "images_per_sample", tiles, _fact(spec, "num_images_expected"), reason)
        return ""
    room = max(length // made.features, 1)
    name = "num_images_expected" if tiles <= room else "max_packed_tokens"
    reason = f"a packed row is full of tiles, of which it has as many as --{name} leaves room for"
    found = min(tiles, room)
    spec.facts["images_per_sample"] = Fact("images_per_sample", found, ASSUMED, reason=reason)
    lm.put(spec, "fewest_images", 1, reason=f"{TRAIN}: pure_text_get_item")
    return ""


def _packed_length(spec: TrainingSpec) -> None:
    """Rows of several samples, cut and filled up to ``max_packed_tokens`` in strict mode."""
    origin = _fact(spec, "max_packed_tokens")
    lm.put(spec, "sequence_length", value(spec, "max_packed_tokens"), origin, f"{TRAIN}: max_packed_tokens")
    if value(spec, "strict_mode"):
        lm.put(spec, "packing", True, _fact(spec, "strict_mode"), f"{TRAIN}: packed_collate_fn")
    else:
        lm.put(spec, "sequence_bound", True, origin, "a row ends where the next sample is too long for it")


def length(spec: TrainingSpec) -> None:
    """Rows are padded to the longest of their batch where they are grouped by length, else to ``max_seq_length``."""
    if value(spec, "use_packed_ds"):
        return _packed_length(spec)
    stated = spec.fact("sequence_length")
    if stated is None or stated.value is None:
        return
    if value(spec, "group_by_length"):
        lm.put(spec, "sequence_bound", True, stated, "samples are rarely as long")
    else:
        lm.put(spec, "packing", True, reason=f"{TRAIN}: rows are padded to max_seq_length")


def targets(spec: TrainingSpec) -> None:
    """Which layers LoRA adapts."""
    kind = str((spec.get(lm.CONFIG) or {}).get("model_type"))
    if value(spec, "use_llm_lora") and kind in _LINEARS:
        lm.put(spec, "lora.targets", list(_LINEARS[kind]), reason="InternVL 2410d1d: wrap_llm_lora")


def adapters(spec: TrainingSpec) -> None:
    """What trains in full beside an adapter."""
    frozen = spec.get("frozen_parts") or ()
    modules = {"projector": "multi_modal_projector", "vision_tower": "vision_tower"}
    beside = [module for part, module in modules.items() if part not in frozen]
    if spec.get("tuning", "full") != "full" and beside:
        lm.put(spec, "lora.unfrozen", beside, reason=f"{TRAIN}: _freeze_params")


def dtypes(spec: TrainingSpec) -> str:
    """The projector's dtype where it is made anew; and why a run fails whose pixels nothing casts."""
    if spec.get("master_weights"):
        return ""  # DeepSpeed's engine casts everything
    found = found_of(spec)
    if isinstance(found, Found) and not found.whole:
        lm.put(spec, "projector_dtype", "float32", reason="InternVL 2410d1d: InternVLChatModel.__init__")
    if not spec.get("autocast"):
        return "neither --bf16 nor --fp16: weights are in bfloat16 and pixels in float32, which no convolution takes"
    return ""
