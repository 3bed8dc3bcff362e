"""From a ``config.json``, or its ``vision_config``, to the vision tower that it describes.

Source: ``transformers`` 5.23, ``models/{vit,deit,dinov2,clip,siglip,qwen2_vl,qwen2_5_vl,qwen3_vl,
qwen3_5}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memlint.architectures.adapters import adapters_of
from memlint.architectures.sizes import Sizes, agree
from memlint.architectures.vision import AGREEMENTS, PACKED_AGREEMENTS, PackedTower, Tower
from memlint.facts.spec import UnknownModel
from memlint.named_tuple import NamedTuple

# model_type -> switches that differ from the defaults of Tower, and defaults of its configuration class.
TOWERS: dict[str, dict[str, Any]] = {
    "vit": {},
    "deit": {"first": 2},
    "dinov2": {"layer_scale": True, "mask_token": True, "resized": True, "averaged": True},
    "clip_vision_model": {"table": True, "first_norm": True, "activation": "quick_gelu"},
    "siglip_vision_model": {"table": True, "first": 0, "activation": "gelu_pytorch_tanh"},
}
# Of these there is a class that classifies images.
CLASSIFIERS = ("vit", "deit", "dinov2")


def tower(config: Mapping[str, Any]) -> Tower:
    """From the contents of a ``config.json``. Raises UnknownModel where the model type, or a size, is not known."""
    sizes = Sizes(config)
    model_type = sizes.get("model_type")
    if not isinstance(model_type, str) or model_type not in TOWERS:
        raise UnknownModel(f"vision models of type {model_type!r} are not known")
    style = TOWERS[model_type]

    def pair(name: str) -> tuple[int, int]:
        found = sizes.get(name)
        return (found[0], found[-1]) if isinstance(found, (list, tuple)) else (sizes.number(name),) * 2

    width = sizes.number("hidden_size")
    ratio = sizes.get("mlp_ratio", 4)
    gated = model_type == "dinov2" and bool(sizes.get("use_swiglu_ffn", False))
    if model_type == "dinov2":
        inner = int(width * ratio)
        if gated:
            inner = (int(inner * 2 / 3) + 7) // 8 * 8
    else:
        inner = sizes.number("intermediate_size")
    dropout = sizes.get("attention_dropout" if style.get("table") else "attention_probs_dropout_prob") or 0.0
    switches = {name: switch for name, switch in style.items() if name != "activation"}
    made = Tower(
        adapters=adapters_of(model_type),
        width=width,
        layers=sizes.number("num_hidden_layers"),
        heads=sizes.number("num_attention_heads"),
        intermediate=inner,
        image=pair("image_size"),
        patch=pair("patch_size"),
        channels=sizes.get("num_channels", 3),
        activation=sizes.get("hidden_act") or style.get("activation", "gelu"),
        # the layers of the others do not drop what they add
        dropout=float(sizes.get("hidden_dropout_prob") or 0.0) if model_type in ("vit", "deit") else 0.0,
        attention_dropout=float(dropout),
        qkv_bias=bool(sizes.get("qkv_bias", True)),
        gated=gated,
        drop_path=float(sizes.get("drop_path_rate") or 0.0) if model_type == "dinov2" else 0.0,
        labels=sizes.get("num_labels") or 2,
        **switches,
    )
    agree(made, AGREEMENTS)
    return made


def intern_vit(config: Mapping[str, Any]) -> Tower | None:
    """From the ``vision_config`` of an InternVL; None where it is of the kind that norms queries and keys, or whose
    norms are RMS norms."""
    sizes = Sizes(config)
    if sizes.get("use_qk_norm", False) or sizes.get("norm_type", "layer_norm") != "layer_norm":
        return None
    if not sizes.get("use_mean_pooling", True) or not sizes.get("use_absolute_position_embeddings", True):
        return None

    def pair(name: str, default: int) -> tuple[int, int]:
        found = sizes.get(name, default)
        return (found[0], found[-1]) if isinstance(found, (list, tuple)) else (found, found)

    made = Tower(
        adapters=adapters_of("internvl_vision"),
        width=_number(sizes, "hidden_size", 1024),
        layers=_number(sizes, "num_hidden_layers", 24),
        heads=_number(sizes, "num_attention_heads", 16),
        intermediate=_number(sizes, "intermediate_size", 4096),
        image=pair("image_size", 448),
        patch=pair("patch_size", 14),
        channels=sizes.get("num_channels", 3),
        activation=sizes.get("hidden_act") or "gelu",
        dropout=float(sizes.get("hidden_dropout_prob") or 0.0),
        attention_dropout=float(sizes.get("attention_dropout") or 0.0),
        qkv_bias=bool(sizes.get("attention_bias", False)),
        layer_scale=True,
        mask_token=bool(sizes.get("use_mask_token", False)),
    )
    agree(made, AGREEMENTS)
    return made


class Packed(NamedTuple):
    """How one generation of Qwen's towers names its sizes, and what its program does.

    width, inner, out  names of the fields; without an ``inner`` the perceptron's width is a multiple, ``mlp_ratio``
    """

    width: str
    inner: str
    out: str
    activation: str
    patch: int = 14
    depth: int = 32
    gated: bool = False
    windowed: bool = False
    places: bool = False
    joined: bool = False


_NEWEST = Packed(
    "hidden_size", "intermediate_size", "out_hidden_size", "gelu_pytorch_tanh", patch=16, depth=27, places=True
)
_GLM = Packed(
    "hidden_size", "intermediate_size", "out_hidden_size", "silu", depth=24, gated=True, places=True, joined=True
)
# model_type of the whole -> its tower
PACKED = {
    "glm4v": _GLM,
    "glm46v": _GLM,
    "qwen2_vl": Packed("embed_dim", "", "hidden_size", "quick_gelu"),
    "qwen2_5_vl": Packed("hidden_size", "intermediate_size", "out_hidden_size", "silu", gated=True, windowed=True),
    "qwen3_vl": _NEWEST,
    "qwen3_vl_moe": _NEWEST,
    "qwen3_5": _NEWEST,
    "qwen3_5_moe": _NEWEST,
}


def packed_tower(config: Mapping[str, Any], kind: str) -> PackedTower:
    """From the ``vision_config`` of a model of type ``kind``, a key of ``PACKED``. Raises UnknownModel where a size is
    missing."""
    sizes, made_by = Sizes(config), PACKED[kind]
    width = _number(sizes, made_by.width)
    deep = sizes.get("deepstack_visual_indexes", (8, 16, 24)) if kind.startswith("qwen3_vl") else ()
    made = PackedTower(
        width=width,
        layers=_number(sizes, "depth", made_by.depth),
        heads=_number(sizes, "num_heads", 16),
        intermediate=_number(sizes, made_by.inner) if made_by.inner else width * _number(sizes, "mlp_ratio", 4),
        out=_number(sizes, made_by.out),
        patch=_number(sizes, "patch_size", made_by.patch),
        channels=sizes.get("in_channels", sizes.get("in_chans", 3)),
        temporal=_number(sizes, "temporal_patch_size", 2),
        merge=_number(sizes, "spatial_merge_size", 2),
        activation=sizes.get("hidden_act", made_by.activation),
        gated=made_by.gated,
        windowed=made_by.windowed,
        places=_number(sizes, "num_position_embeddings", 2304) if made_by.places else 0,
        deep=tuple(deep or ()),
    )
    if made_by.joined:
        made = made._replace(
            heads=_number(sizes, "num_heads", 12),
            places=(_number(sizes, "image_size", 336) // made.patch) ** 2,
            joined=made.intermediate,
            qkv_bias=bool(sizes.get("attention_bias", False)),
        )
    agree(made, PACKED_AGREEMENTS)
    return made


def _number(sizes: Sizes, name: str, default: int = 0) -> int:
    """A field of a ``vision_config``. Raises UnknownModel where it is missing."""
    found = sizes.get(name, default)
    if not isinstance(found, int) or found <= 0:
        raise UnknownModel(f"vision_config of config.json states no {name}")
    return found
