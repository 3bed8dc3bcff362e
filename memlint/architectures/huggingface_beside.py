"""From a ``config.json`` to the weights of what lies beside a decoder that reads text alone: what sees, and what hears.

Source: ``transformers`` 5.23, ``models/{gemma4,gemma4_unified,idefics3,internvl,lfm2_vl,llama4,mistral3,pixtral,
qwen3_5,siglip2,smolvlm,voxtral}/modeling_*.py``; defaults are those of ``configuration_*.py``.
"""

from __future__ import annotations

from collections.abc import Callable

from memlint.architectures.sizes import Sizes
from memlint.architectures.vision_language import Beside
from memlint.facts.spec import UnknownModel


class _Parts:
    """What is met on the way through a class, by its dotted name."""

    def __init__(self) -> None:
        self.linears: list[tuple[str, int, int, bool]] = []
        self.tensors: list[tuple[str, tuple[int, ...]]] = []
        self.buffers: list[tuple[str, tuple[int, ...]]] = []

    def linear(self, name: str, inputs: int, outputs: int, bias: bool = True) -> None:
        self.linears.append((name, inputs, outputs, bias))

    def tensor(self, name: str, *shape: int) -> None:
        self.tensors.append((name, shape))

    def norm(self, name: str, width: int) -> None:
        """A layer norm."""
        self.tensor(f"{name}.weight", width)
        self.tensor(f"{name}.bias", width)

    def convolution(self, name: str, inputs: int, outputs: int, kernel: tuple[int, ...], bias: bool = True) -> None:
        self.tensor(f"{name}.weight", outputs, inputs, *kernel)
        if bias:
            self.tensor(f"{name}.bias", outputs)

    def bounded(self, name: str, inputs: int, outputs: int, bounds: bool) -> None:
        """A product within a module, which has bounds of what goes in and comes out (Gemma 4)."""
        self.linear(f"{name}.linear", inputs, outputs, bias=False)
        if bounds:
            self.buffers += [(f"{name}.{end}", ()) for end in ("input_min", "input_max", "output_min", "output_max")]

    def made(self) -> Beside:
        return Beside(tuple(self.linears), tuple(self.tensors), buffers=tuple(self.buffers))


def mistral3(sizes: Sizes) -> Beside:
    """A Pixtral tower, and the product that joins four patches."""
    seen, parts = _part(sizes, "vision_config"), _Parts()
    width, inner, side = _size(seen, "hidden_size", 1024), _size(seen, "intermediate_size", 4096), _patch(seen, 16)
    tower = "vision_tower"
    parts.convolution(f"{tower}.patch_conv", seen.get("num_channels", 3), width, side, bias=False)
    parts.tensor(f"{tower}.ln_pre.weight", width)
    for number in range(_size(seen, "num_hidden_layers", 24)):
        layer = f"{tower}.transformer.layers.{number}"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            parts.linear(f"{layer}.attention.{name}", width, width, bias=False)
        _gated(parts, f"{layer}.feed_forward", width, inner)
        parts.tensor(f"{layer}.attention_norm.weight", width)
        parts.tensor(f"{layer}.ffn_norm.weight", width)
    out, bias = _width(sizes), bool(sizes.get("multimodal_projector_bias", False))
    taken, projector = sizes.get("vision_feature_layer", -1), "multi_modal_projector"
    parts.tensor(f"{projector}.norm.weight", width)
    joined = width * _size(sizes, "spatial_merge_size", 2) ** 2
    parts.linear(f"{projector}.patch_merger.merging_layer", joined, width, bias=False)
    parts.linear(f"{projector}.linear_1", width * (len(taken) if isinstance(taken, (list, tuple)) else 1), out, bias)
    parts.linear(f"{projector}.linear_2", out, out, bias)
    return parts.made()


def internvl(sizes: Sizes) -> Beside:
    seen, parts = _part(sizes, "vision_config"), _Parts()
    width, inner = _size(seen, "hidden_size", 1024), _size(seen, "intermediate_size", 4096)
    bias, tower = bool(seen.get("attention_bias", False)), "vision_tower"
    image, patch = _pair(seen, "image_size", 448), _patch(seen, 14)
    parts.convolution(f"{tower}.embeddings.patch_embeddings.projection", seen.get("num_channels", 3), width, patch)
    parts.tensor(f"{tower}.embeddings.cls_token", 1, 1, width)
    if seen.get("use_mask_token", False):
        parts.tensor(f"{tower}.embeddings.mask_token", 1, 1, width)
    if seen.get("use_absolute_position_embeddings", True):
        patches = (image[0] // patch[0]) * (image[1] // patch[1])
        parts.tensor(f"{tower}.embeddings.position_embeddings", 1, patches + 1, width)
    plain = seen.get("norm_type", "layer_norm") == "layer_norm"
    for number in range(_size(seen, "num_hidden_layers", 24)):
        layer = f"{tower}.encoder.layer.{number}"
        for name in ("q_proj", "k_proj", "v_proj"):
            parts.linear(f"{layer}.attention.{name}", width, width, bias)
        parts.linear(f"{layer}.attention.projection_layer", width, width)
        if seen.get("use_qk_norm", False):
            parts.tensor(f"{layer}.attention.q_norm.weight", width)
            parts.tensor(f"{layer}.attention.k_norm.weight", width)
        _plain(parts, f"{layer}.mlp", width, inner)
        parts.tensor(f"{layer}.lambda_1", width)
        parts.tensor(f"{layer}.lambda_2", width)
        for norm in ("layernorm_before", "layernorm_after"):
            parts.norm(f"{layer}.{norm}", width) if plain else parts.tensor(f"{layer}.{norm}.weight", width)
    if not seen.get("use_mean_pooling", True):
        parts.norm(f"{tower}.layernorm", width)
    joined, out = width * int(1 / sizes.get("downsample_ratio", 0.5)) ** 2, _width(sizes)
    parts.norm("multi_modal_projector.layer_norm", joined)
    parts.linear("multi_modal_projector.linear_1", joined, out)
    parts.linear("multi_modal_projector.linear_2", out, out)
    return parts.made()


def idefics3(sizes: Sizes) -> Beside:
    """SmolVLM's, too."""
    seen, parts = _part(sizes, "vision_config"), _Parts()
    width, patch = _size(seen, "hidden_size", 1152), _patch(seen, 32)
    image = _pair(seen, "image_size", 224)
    parts.convolution("vision_model.embeddings.patch_embedding", seen.get("num_channels", 3), width, patch)
    places = (image[0] // patch[0]) * (image[1] // patch[1])
    parts.tensor("vision_model.embeddings.position_embedding.weight", places, width)
    _siglip_layers(parts, "vision_model", seen, width)
    joined = width * _size(sizes, "scale_factor", 2) ** 2
    parts.linear("connector.modality_projection.proj", joined, _width(sizes), bias=False)
    return parts.made()


def lfm2_vl(sizes: Sizes) -> Beside:
    """A SigLIP 2 tower, whose patches come through a product."""
    seen, parts = _part(sizes, "vision_config"), _Parts()
    if seen.get("model_type", "siglip2_vision_model") != "siglip2_vision_model":
        raise UnknownModel(f"vision models of type {seen.get('model_type')!r} are not known beside LFM2")
    width, patch, tower = _size(seen, "hidden_size", 768), _patch(seen, 16), "vision_tower"
    parts.linear(f"{tower}.embeddings.patch_embedding", seen.get("num_channels", 3) * patch[0] * patch[1], width)
    parts.tensor(f"{tower}.embeddings.position_embedding.weight", _size(seen, "num_patches", 256), width)
    _siglip_layers(parts, tower, seen, width)
    if seen.get("vision_use_head", True):
        parts.tensor(f"{tower}.head.probe", 1, 1, width)
        parts.tensor(f"{tower}.head.attention.in_proj_weight", 3 * width, width)
        parts.tensor(f"{tower}.head.attention.in_proj_bias", 3 * width)
        parts.linear(f"{tower}.head.attention.out_proj", width, width)
        parts.norm(f"{tower}.head.layernorm", width)
        _plain(parts, f"{tower}.head.mlp", width, _size(seen, "intermediate_size", 3072))
    joined = width * _size(sizes, "downsample_factor", 2) ** 2
    hidden, bias = _size(sizes, "projector_hidden_size", 2560), bool(sizes.get("projector_bias", True))
    if sizes.get("projector_use_layernorm", True):
        parts.norm("multi_modal_projector.layer_norm", joined)
    parts.linear("multi_modal_projector.linear_1", joined, hidden, bias)
    parts.linear("multi_modal_projector.linear_2", hidden, _width(sizes), bias)
    return parts.made()


def voxtral(sizes: Sizes) -> Beside:
    """Whisper's encoder, whose states are joined in fours."""
    heard, parts, tower = _part(sizes, "audio_config"), _Parts(), "audio_tower"
    width = _size(heard, "hidden_size", heard.get("d_model", 1280))
    inner = _size(heard, "intermediate_size", heard.get("encoder_ffn_dim", 5120))
    parts.convolution(f"{tower}.conv1", _size(heard, "num_mel_bins", 128), width, (3,))
    parts.convolution(f"{tower}.conv2", width, width, (3,))
    parts.tensor(f"{tower}.embed_positions.weight", _size(heard, "max_source_positions", 1500), width)
    for number in range(_size(heard, "num_hidden_layers", heard.get("encoder_layers", 32))):
        layer = f"{tower}.layers.{number}"
        for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
            parts.linear(f"{layer}.self_attn.{name}", width, width, name != "k_proj")
        parts.norm(f"{layer}.self_attn_layer_norm", width)
        parts.linear(f"{layer}.fc1", width, inner)
        parts.linear(f"{layer}.fc2", inner, width)
        parts.norm(f"{layer}.final_layer_norm", width)
    parts.norm(f"{tower}.layer_norm", width)
    parts.linear("multi_modal_projector.linear_1", inner, _width(sizes), bias=False)
    parts.linear("multi_modal_projector.linear_2", _width(sizes), _width(sizes), bias=False)
    return parts.made()._replace(fixed=(f"{tower}.embed_positions.weight",))


def qwen35(sizes: Sizes) -> Beside:
    seen, parts = _part(sizes, "vision_config"), _Parts()
    width, inner = _size(seen, "hidden_size"), _size(seen, "intermediate_size")
    side, tower = _size(seen, "patch_size"), "visual"
    kernel = (_size(seen, "temporal_patch_size"), side, side)
    parts.convolution(f"{tower}.patch_embed.proj", _size(seen, "in_channels"), width, kernel)
    parts.tensor(f"{tower}.pos_embed.weight", _size(seen, "num_position_embeddings"), width)
    for number in range(_size(seen, "depth")):
        block = f"{tower}.blocks.{number}"
        parts.norm(f"{block}.norm1", width)
        parts.norm(f"{block}.norm2", width)
        parts.linear(f"{block}.attn.qkv", width, 3 * width)
        parts.linear(f"{block}.attn.proj", width, width)
        parts.linear(f"{block}.mlp.linear_fc1", width, inner)
        parts.linear(f"{block}.mlp.linear_fc2", inner, width)
    joined = width * _size(seen, "spatial_merge_size") ** 2
    parts.norm(f"{tower}.merger.norm", width)
    parts.linear(f"{tower}.merger.linear_fc1", joined, joined)
    parts.linear(f"{tower}.merger.linear_fc2", joined, _size(seen, "out_hidden_size"))
    return parts.made()


def llama4(sizes: Sizes) -> Beside:
    seen, parts, tower = _part(sizes, "vision_config"), _Parts(), "vision_model"
    width, inner = _size(seen, "hidden_size"), _size(seen, "intermediate_size")
    image, side = _size(seen, "image_size"), _size(seen, "patch_size")
    made = _size(seen, "projector_output_dim")
    parts.linear(f"{tower}.patch_embedding.linear", _size(seen, "num_channels") * side * side, width, bias=False)
    parts.tensor(f"{tower}.class_embedding", width)
    parts.tensor(f"{tower}.positional_embedding_vlm", (image // side) ** 2 + 1, width)
    parts.norm(f"{tower}.layernorm_pre", width)
    parts.norm(f"{tower}.layernorm_post", width)
    for number in range(_size(seen, "num_hidden_layers")):
        layer = f"{tower}.model.layers.{number}"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            parts.linear(f"{layer}.self_attn.{name}", width, width)
        _plain(parts, f"{layer}.mlp", width, inner)
        parts.norm(f"{layer}.input_layernorm", width)
        parts.norm(f"{layer}.post_attention_layernorm", width)
    parts.linear(f"{tower}.vision_adapter.mlp.fc1", inner, _size(seen, "projector_input_dim"), bias=False)
    parts.linear(f"{tower}.vision_adapter.mlp.fc2", made, made, bias=False)
    parts.linear("multi_modal_projector.linear_1", _size(seen, "vision_output_dim"), _width(sizes), bias=False)
    return parts.made()


def gemma4(sizes: Sizes) -> Beside:
    """A tower of vision, and one of sound where the config has one; both may bound what its products take."""
    seen, heard, parts = _part(sizes, "vision_config"), sizes.get("audio_config"), _Parts()
    width, tower = _size(seen, "hidden_size", 768), "vision_tower"
    inner, head = _size(seen, "intermediate_size", 3072), _size(seen, "head_dim", 64)
    heads, keys = _size(seen, "num_attention_heads", 12), _size(seen, "num_key_value_heads", 12)
    bounded, patch = bool(seen.get("use_clipped_linears", False)), _size(seen, "patch_size", 16)
    parts.linear(f"{tower}.patch_embedder.input_proj", 3 * patch**2, width, bias=False)
    places = _size(seen, "position_embedding_size", 10_240)
    parts.tensor(f"{tower}.patch_embedder.position_embedding_table", 2, places, width)
    for number in range(_size(seen, "num_hidden_layers", 16)):
        layer = f"{tower}.encoder.layers.{number}"
        for name, outputs in (("q_proj", heads), ("k_proj", keys), ("v_proj", keys)):
            parts.bounded(f"{layer}.self_attn.{name}", width, outputs * head, bounded)
        parts.bounded(f"{layer}.self_attn.o_proj", heads * head, width, bounded)
        for name, inputs, outputs in (("gate", width, inner), ("up", width, inner), ("down", inner, width)):
            parts.bounded(f"{layer}.mlp.{name}_proj", inputs, outputs, bounded)
        parts.tensor(f"{layer}.self_attn.q_norm.weight", head)
        parts.tensor(f"{layer}.self_attn.k_norm.weight", head)
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            parts.tensor(f"{layer}.{name}_layernorm.weight", width)
    if seen.get("standardize", False):
        parts.buffers += [(f"{tower}.std_bias", (width,)), (f"{tower}.std_scale", (width,))]
    parts.linear("embed_vision.embedding_projection", width, _width(sizes), bias=False)
    if isinstance(heard, Sizes):
        _gemma4_ears(parts, heard)
        parts.linear("embed_audio.embedding_projection", _size(heard, "output_proj_dims", 1536), _width(sizes), False)
    return parts.made()


def _gemma4_ears(parts: _Parts, heard: Sizes) -> None:
    width, heads, tower = _size(heard, "hidden_size", 1024), _size(heard, "num_attention_heads", 8), "audio_tower"
    first, second = heard.get("subsampling_conv_channels", (128, 32))
    bounded = bool(heard.get("use_clipped_linears", True))
    entry = f"{tower}.subsample_conv_projection"
    for number, (inputs, outputs) in enumerate(((1, first), (first, second))):
        parts.convolution(f"{entry}.layer{number}.conv", inputs, outputs, (3, 3), bias=False)
        parts.tensor(f"{entry}.layer{number}.norm.weight", outputs)
    parts.linear(f"{entry}.input_proj_linear", first // 4 * second, width, bias=False)
    for number in range(_size(heard, "num_hidden_layers", 12)):
        layer = f"{tower}.layers.{number}"
        for half in ("feed_forward1", "feed_forward2"):
            parts.bounded(f"{layer}.{half}.ffw_layer_1", width, 4 * width, bounded)
            parts.bounded(f"{layer}.{half}.ffw_layer_2", 4 * width, width, bounded)
            parts.tensor(f"{layer}.{half}.pre_layer_norm.weight", width)
            parts.tensor(f"{layer}.{half}.post_layer_norm.weight", width)
        for name in ("q_proj", "k_proj", "v_proj", "post"):
            parts.bounded(f"{layer}.self_attn.{name}", width, width, bounded)
        parts.linear(f"{layer}.self_attn.relative_k_proj", width, width, bias=False)
        parts.tensor(f"{layer}.self_attn.per_dim_scale", width // heads)
        parts.bounded(f"{layer}.lconv1d.linear_start", width, 2 * width, bounded)
        parts.bounded(f"{layer}.lconv1d.linear_end", width, width, bounded)
        kernel = _size(heard, "conv_kernel_size", 5)
        parts.tensor(f"{layer}.lconv1d.depthwise_conv1d.weight", width, 1, kernel)
        parts.tensor(f"{layer}.lconv1d.pre_layer_norm.weight", width)
        parts.tensor(f"{layer}.lconv1d.conv_norm.weight", width)
        for name in ("norm_pre_attn", "norm_post_attn", "norm_out"):
            parts.tensor(f"{layer}.{name}.weight", width)
    parts.linear(f"{tower}.output_proj", width, _size(heard, "output_proj_dims", 1536))


def gemma4_unified(sizes: Sizes) -> Beside:
    """A product for patches and one for pieces of sound, in place of towers."""
    seen, heard, parts, embedder = _part(sizes, "vision_config"), sizes.get("audio_config"), _Parts(), "embed_vision"
    side = _size(seen, "patch_size", 16) * _size(seen, "pooling_kernel_size", 3)
    pixels, width = 3 * side**2, _size(seen, "mm_embed_dim", 3840)
    parts.norm(f"{embedder}.patch_ln1", pixels)
    parts.linear(f"{embedder}.patch_dense", pixels, width)
    parts.norm(f"{embedder}.patch_ln2", width)
    parts.tensor(f"{embedder}.pos_embedding", _size(seen, "mm_posemb_size", 1120), 2, width)
    parts.norm(f"{embedder}.pos_norm", width)
    projection = "multimodal_embedder.embedding_projection"
    parts.linear(f"{embedder}.{projection}", _size(seen, "output_proj_dims", 3840), _width(sizes), bias=False)
    if isinstance(heard, Sizes):
        parts.linear(
            "embed_audio.embedding_projection", _size(heard, "audio_embed_dim", 640), _width(sizes), bias=False
        )
    return parts.made()


# model_type -> what lies beside its decoder, where that reads text alone
BESIDE: dict[str, Callable[[Sizes], Beside]] = {
    "gemma4": gemma4,
    "gemma4_unified": gemma4_unified,
    "idefics3": idefics3,
    "internvl": internvl,
    "lfm2_vl": lfm2_vl,
    "llama4": llama4,
    "mistral3": mistral3,
    "qwen3_5": qwen35,
    "qwen3_5_moe": qwen35,
    "smolvlm": idefics3,
    "voxtral": voxtral,
}


def _siglip_layers(parts: _Parts, tower: str, seen: Sizes, width: int) -> None:
    inner = _size(seen, "intermediate_size", 3072)
    for number in range(_size(seen, "num_hidden_layers", 12)):
        layer = f"{tower}.encoder.layers.{number}"
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            parts.linear(f"{layer}.self_attn.{name}", width, width)
        parts.norm(f"{layer}.layer_norm1", width)
        _plain(parts, f"{layer}.mlp", width, inner)
        parts.norm(f"{layer}.layer_norm2", width)
    parts.norm(f"{tower}.post_layernorm", width)


def _plain(parts: _Parts, path: str, width: int, inner: int) -> None:
    parts.linear(f"{path}.fc1", width, inner)
    parts.linear(f"{path}.fc2", inner, width)


def _gated(parts: _Parts, path: str, width: int, inner: int) -> None:
    parts.linear(f"{path}.gate_proj", width, inner, bias=False)
    parts.linear(f"{path}.up_proj", width, inner, bias=False)
    parts.linear(f"{path}.down_proj", inner, width, bias=False)


def _part(sizes: Sizes, name: str) -> Sizes:
    found = sizes.get(name)
    if not isinstance(found, Sizes):
        raise UnknownModel(f"config.json states no {name}")
    return found


def _size(sizes: Sizes, name: str, default: int = 0) -> int:
    """A whole number above zero. Raises UnknownModel where it is missing and has no default."""
    found = sizes.get(name, default)
    if not isinstance(found, int) or found <= 0:
        raise UnknownModel(f"config.json states no {name} of what lies beside the decoder")
    return found


def _pair(sizes: Sizes, name: str, default: int) -> tuple[int, int]:
    found = sizes.get(name, default)
    return (found[0], found[-1]) if isinstance(found, (list, tuple)) else (found, found)


def _patch(sizes: Sizes, default: int) -> tuple[int, int]:
    return _pair(sizes, "patch_size", default)


def _width(sizes: Sizes) -> int:
    """Of the decoder."""
    return _size(_part(sizes, "text_config"), "hidden_size")
