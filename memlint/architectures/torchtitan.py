"""From the name of a flavor of torchtitan's to the decoder that it is.

Sources: torchtitan 0.1.0 to 0.2.2, ``models/*/__init__.py`` (``llama3_args`` and its like) and
``models/*/model/args.py``; 0.3, ``models/*/__init__.py``, where each flavor is a function. No width or depth of a
flavor has changed from one to the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memlint.architectures.decoder import Decoder, Experts, Latent
from memlint.facts.spec import UnknownModel

# dim, n_layers, n_heads, n_kv_heads, ffn_dim_multiplier, multiple_of; 1B and 3B, whose heads are tied, since 0.3
_LLAMA3: dict[str, tuple[int, int, int, int, float, int]] = {
    "debugmodel": (256, 6, 16, 16, 1.0, 256),
    "1B": (2048, 16, 32, 8, 1.5, 1024),
    "3B": (3072, 28, 24, 8, 1.0, 1024),
    "8B": (4096, 32, 32, 8, 1.3, 1024),
    "70B": (8192, 80, 64, 8, 1.3, 4096),
    "405B": (16_384, 126, 128, 8, 1.2, 4096),
}
# dim, n_layers, n_heads, n_kv_heads, hidden_dim, max_seq_len, whether the head is tied; experts and their width
_QWEN3: dict[str, tuple[int, int, int, int, int, int, bool, int, int]] = {
    "debugmodel": (256, 8, 16, 8, 3072, 4096, True, 0, 0),
    "0.6B": (1024, 28, 16, 8, 3072, 40_960, True, 0, 0),
    "1.7B": (2048, 28, 16, 8, 6144, 40_960, True, 0, 0),
    "4B": (2560, 36, 32, 8, 9728, 40_960, True, 0, 0),
    "8B": (4096, 36, 32, 8, 12_288, 40_960, False, 0, 0),
    "14B": (5120, 40, 40, 8, 17_408, 40_960, False, 0, 0),
    "32B": (5120, 64, 64, 8, 25_600, 40_960, False, 0, 0),
    "30B-A3B": (2048, 48, 32, 4, 6144, 262_144, False, 128, 768),
    "235B-A22B": (4096, 94, 64, 4, 12_288, 40_960, False, 128, 1536),
    "debugmodel_moe": (256, 8, 16, 8, 3072, 4096, False, 64, 768),
}
# vocab_size, dim, n_layers, n_dense_layers, n_heads, inter_dim, moe_inter_dim, q_lora_rank; then num_experts, top_k,
# num_shared_experts, score_func, route_norm, whether groups of experts are limited
_DEEPSEEK: dict[str, tuple[tuple[int, ...], tuple[int, int, int, str, bool, bool]]] = {
    "debugmodel": ((2048, 256, 6, 1, 16, 1024, 256, 0), (8, 3, 2, "softmax", False, False)),
    "16B": ((102_400, 2048, 27, 1, 16, 10_944, 1408, 0), (64, 6, 2, "softmax", False, False)),
    "236B": ((102_400, 5120, 60, 1, 128, 12_288, 1536, 1536), (160, 6, 2, "softmax", False, True)),
    "671B": ((129_280, 7168, 61, 3, 128, 18_432, 2048, 1536), (256, 8, 1, "sigmoid", True, True)),
}
# dim, n_layers, experts
_GPT_OSS = {"debugmodel": (256, 4, 8), "20b": (2880, 24, 32), "120b": (2880, 36, 128)}


def _llama3(flavor: str) -> Decoder:
    width, layers, heads, keys, multiplier, multiple = _LLAMA3[flavor]
    sizes = {"dim": width, "n_layers": layers, "n_heads": heads, "n_kv_heads": keys}
    rows = 2048 if flavor == "debugmodel" else 128_256
    made = llama({**sizes, "ffn_dim_multiplier": multiplier, "multiple_of": multiple}, rows)
    return made._replace(tied=flavor in ("1B", "3B"))


# torchtitan 0.1, models/llama/model.py: ModelArgs, and what of it decides no size.
_ARGUMENTS: dict[str, float | None] = {
    **{"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": None, "vocab_size": -1},
    **{"multiple_of": 256, "ffn_dim_multiplier": None},
}
_NO_SIZES = (
    *("norm_eps", "rope_theta", "rope_scaling_args", "max_batch_size", "max_seq_len", "depth_init", "norm_type"),
    *("eos_id", "use_flex_attn", "attn_mask_type", "attn_type"),
)
ROWS = {"llama2": 32_000, "llama3": 128_256}  # of the tokenizers of these models, which set vocab_size


def llama(sizes: Mapping[str, Any], rows: int) -> Decoder:
    """The decoder of a ``ModelArgs`` with these keyword arguments. Raises UnknownModel."""
    odd = next((name for name in sizes if name not in _ARGUMENTS and name not in _NO_SIZES), "")
    if odd:
        raise UnknownModel(f"ModelArgs has {odd}, which torchtitan's has not")
    given = {name: sizes.get(name, usual) for name, usual in _ARGUMENTS.items()}
    kinds = {"ffn_dim_multiplier": (int, float)}
    if any(value is not None and type(value) not in kinds.get(name, (int,)) for name, value in given.items()):
        raise UnknownModel("sizes of ModelArgs that are no numbers")
    width, heads, multiple = given["dim"], given["n_heads"], given["multiple_of"]
    if min(width, heads, multiple, given["n_layers"]) <= 0 or width % heads:
        raise UnknownModel(f"dim {width} is no multiple of n_heads {heads}")
    inner = int(2 * 4 * width / 3)
    if given["ffn_dim_multiplier"] is not None:
        inner = int(given["ffn_dim_multiplier"] * inner)
    return Decoder(
        vocabulary=given["vocab_size"] if given["vocab_size"] > 0 else rows,
        width=width,
        layers=given["n_layers"],
        heads=heads,
        key_value_heads=given["n_kv_heads"] or heads,
        head_dim=width // heads,
        intermediate=-(-inner // multiple) * multiple,
        rotary="complex",
        rotary_dim=width // heads,
        context=131_072,
    )


def _qwen3(flavor: str) -> Decoder:
    width, layers, heads, keys, inner, context, tied, experts, each = _QWEN3[flavor]
    return Decoder(
        vocabulary=2048 if flavor.startswith("debugmodel") else 151_936,
        width=width,
        layers=layers,
        heads=heads,
        key_value_heads=keys,
        head_dim=128,
        intermediate=inner,
        tied=tied,
        query_norm="head",
        rotary_dim=128,
        context=context,
        experts=Experts(experts, 8, each, router="qwen") if experts else None,
    )


def _deepseek(flavor: str) -> Decoder:
    (rows, width, layers, dense, heads, inner, each, query), routing = _DEEPSEEK[flavor]
    number, chosen, shared, scores, renormalised, grouped = routing
    latent = Latent(query, 512, 128, 64, 128, complex=True)
    return Decoder(
        vocabulary=rows,
        width=width,
        layers=layers,
        heads=heads,
        key_value_heads=heads,
        head_dim=latent.plain_dim + latent.rotary_dim,
        intermediate=inner,
        projection="latent",
        rotary="complex",
        rotary_dim=latent.rotary_dim,
        context=16_384,
        latent=latent,
        experts=Experts(number, chosen, each, scores, renormalised, shared=shared * each, first=dense, grouped=grouped),
    )


def _gpt_oss(flavor: str) -> Decoder:
    width, layers, experts = _GPT_OSS[flavor]
    return Decoder(
        vocabulary=201_088,
        width=width,
        layers=layers,
        heads=64,
        key_value_heads=8,
        head_dim=64,
        intermediate=2880,
        norm="rms_wide",
        rotary="halves",
        rotary_dim=64,
        qkv_bias=True,
        output_bias=True,
        windows=tuple(128 * (number % 2 == 0) for number in range(layers)),
        both_masks=True,
        sinks=True,
        context=131_072,
        experts=Experts(experts, 4, 2880, router="chosen", renormalised=False),
    )


_MODELS: dict[str, tuple[dict[str, Any], Callable[[str], Decoder]]] = {
    "llama3": (_LLAMA3, _llama3),
    "qwen3": (_QWEN3, _qwen3),
    "deepseek_v3": (_DEEPSEEK, _deepseek),
    "gpt_oss": (_GPT_OSS, _gpt_oss),
}
NAMES = tuple(_MODELS)
# Endings of flavors that differ in nothing but the kernel of their attention.
KERNELS = ("_flex_attn", "_varlen_attn", "_flex", "_varlen")


def is_shipped(model: str, flavor: str, sizes: Mapping[str, Any]) -> bool:
    """Whether a repository's own flavor has the width, layers and heads of the one that torchtitan ships."""
    known = _LLAMA3.get(flavor) if model == "llama3" else None
    return known is not None and known[:3] == tuple(sizes.get(name) for name in ("dim", "n_layers", "n_heads"))


def decoder(model: str, flavor: str) -> Decoder:
    """``model`` is a folder of models, "llama3"; ``flavor`` may end in a kernel's name. Raises UnknownModel."""
    flavors, made = _MODELS.get(model, ({}, _llama3))
    for ending in KERNELS:
        flavor = flavor.removesuffix(ending)
    if flavor not in flavors:
        raise UnknownModel(f"no flavor of {model} whose sizes are known")
    return made(flavor)
