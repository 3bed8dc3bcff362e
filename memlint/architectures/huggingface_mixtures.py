"""The mixtures of experts that a ``config.json`` describes.

Source: ``transformers`` 5.23, ``models/*/configuration_*.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memlint.architectures.decoder import Experts
from memlint.architectures.huggingface_styles import DENSE_FIRST
from memlint.architectures.sizes import number_of
from memlint.facts.spec import UnknownModel

# Every layer has experts, whose router alone differs.
_ALIKE = {"gpt_oss": "chosen", "minimax_m2": "minimax", "mixtral": "mixtral", "phimoe": "sampled"}


def _lfm2_experts(config: Mapping[str, Any]) -> Experts:
    if not config.get("use_expert_bias", True):
        raise UnknownModel("LFM2 with experts that are chosen without a bias is not known")
    return Experts(
        number_of(config, "num_experts"),
        number_of(config, "num_experts_per_tok"),
        number_of(config, "moe_intermediate_size"),
        router="lfm2",
        renormalised=bool(config.get("norm_topk_prob", True)),
        first=config.get("num_dense_layers", 2),
    )


# Mixtures of experts that were lists before transformers 5 (4.57.6, models/*/modeling_*.py; LFM2's in the first
# weeks of its code).
_APART = (
    *("deepseek_v2", "deepseek_v3", "glm4_moe", "lfm2_moe", "mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe"),
    "qwen3_next",
)


def experts_of(config: Mapping[str, Any], model_type: str) -> Experts | None:
    """None where no layer has any. Raises UnknownModel."""
    found = _mixture(config, model_type)
    return found if found is None or model_type not in _APART else found._replace(apart=True)


def _mixture(config: Mapping[str, Any], model_type: str) -> Experts | None:
    if model_type in _ALIKE:
        count, width = number_of(config, "num_local_experts"), number_of(config, "intermediate_size")
        router = _ALIKE[model_type]
        chosen = 2 if router == "sampled" else number_of(config, "num_experts_per_tok")
        return Experts(count, chosen, width, router=router, renormalised=router in ("mixtral", "minimax"))
    if model_type == "gemma4_text":
        if not config.get("enable_moe_block", False):
            return None
        count, chosen = number_of(config, "num_experts"), number_of(config, "top_k_experts")
        return Experts(count, chosen, number_of(config, "moe_intermediate_size"), router="gemma4")
    if model_type == "lfm2_moe":
        return _lfm2_experts(config)
    if model_type == "llama4_text":
        width, layers = number_of(config, "intermediate_size"), number_of(config, "num_hidden_layers")
        mixed = config.get("moe_layers")
        step = 1 if mixed is not None else config.get("interleave_moe_layer_step", 1)
        plain = () if mixed is None else tuple(number for number in range(layers) if number not in mixed)
        count, chosen = number_of(config, "num_local_experts"), config.get("num_experts_per_tok", 1)
        return Experts(count, chosen, width, router="all", shared=width, step=step, dense=plain)
    if model_type.startswith("granitemoe"):
        count = config.get("num_local_experts", 8)
        shared = config.get("shared_intermediate_size", 1024) if model_type != "granitemoe" else 0
        if not count:
            return None
        width = number_of(config, "intermediate_size")
        return Experts(count, config.get("num_experts_per_tok", 2), width, router="granite", shared=shared or 0)
    if model_type in ("deepseek_v2", "deepseek_v3", "glm4_moe", "glm4_moe_lite"):
        newer = model_type != "deepseek_v2"
        grouped = newer or config.get("topk_method") == "group_limited_greedy"
        width = number_of(config, "moe_intermediate_size")
        return Experts(
            number_of(config, "n_routed_experts"),
            number_of(config, "num_experts_per_tok"),
            width,
            router="sigmoid" if newer else "softmax",
            renormalised=newer and bool(config.get("norm_topk_prob", True)),
            shared=width * number_of(config, "n_shared_experts"),
            first=config.get("first_k_dense_replace", DENSE_FIRST.get(model_type, 0)),
            grouped=grouped,
        )
    if model_type in ("qwen2_moe", "qwen3_moe", "olmoe", "qwen3_next", "qwen3_5_moe_text", "qwen3_vl_moe_text"):
        gated = model_type not in ("qwen3_moe", "olmoe", "qwen3_vl_moe_text")
        count = config.get("num_experts") or number_of(config, "num_local_experts")
        inner = "intermediate_size" if model_type == "olmoe" else "moe_intermediate_size"
        return Experts(
            count,
            number_of(config, "num_experts_per_tok"),
            number_of(config, inner),
            router="qwen",
            renormalised=model_type in ("qwen3_5_moe_text", "qwen3_vl_moe_text")
            or bool(config.get("norm_topk_prob", model_type == "qwen3_next")),
            shared=number_of(config, "shared_expert_intermediate_size") if gated else 0,
            shared_gate=gated,
            step=config.get("decoder_sparse_step", 1),
            dense=tuple(config.get("mlp_only_layers") or ()),
        )
    return None
