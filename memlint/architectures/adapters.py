"""What PEFT does to a model by the name of its type, where a config does not say.

Source: PEFT 0.21, ``peft/utils/constants.py`` (``TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING`` and its siblings
for IA3 and adaption prompts); for experts, ``peft/utils/transformers_weight_conversion.py``.
"""

from __future__ import annotations

from memlint.named_tuple import NamedTuple

_QV = ("q_proj", "v_proj")
_BERT = ("query", "value")
LORA_TARGETS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("llama", "llama4", "mistral", "mixtral", "stablelm", "gemma", "gemma2", "gemma3_text"), _QV),
    **dict.fromkeys(("qwen2", "qwen3", "opt", "gptj", "gpt_neo", "bart"), _QV),
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "electra", "layoutlm"), _BERT),
    **dict.fromkeys(("bloom", "gpt_neox", "chatglm", "falcon"), ("query_key_value",)),
    **dict.fromkeys(("gpt2", "gpt_bigcode"), ("c_attn",)),
    **dict.fromkeys(("t5", "mt5"), ("q", "v")),
    "codegen": ("qkv_proj",),
    "phi": ("q_proj", "v_proj", "fc1", "fc2"),
    "mpt": ("Wqkv",),
    "deberta": ("in_proj",),
    "deberta-v2": ("query_proj", "value_proj"),
}
# The last name of each is the feed-forward layer, which is scaled before and not behind.
_KV, _QVD = ("k_proj", "v_proj", "down_proj"), ("q_proj", "v_proj", "down_proj")
IA3_TARGETS: dict[str, tuple[str, ...]] = {
    "gpt2": ("c_attn", "mlp.c_proj"),
    "gpt_neox": ("query_key_value", "dense_4h_to_h"),
    "opt": ("q_proj", "k_proj", "fc2"),
    "phi": ("q_proj", "v_proj", "fc2"),
    **dict.fromkeys(("llama", "mistral"), _KV),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "qwen2", "qwen3"), _QVD),
}
PROMPTED = ("llama", "mistral")

# Which names of a model before transformers 5 now mean the gate, the upward and the downward part of the experts'
# common weights; none where experts lay together before, or PEFT has no other names for them.
_EXPERTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("minimax_m2", "mixtral"), ("w1", "w3", "w2")),
    **dict.fromkeys(("gpt_oss", "granitemoe", "granitemoehybrid", "granitemoeshared", "llama4_text", "phimoe"), ()),
    **dict.fromkeys(("lfm2_moe", "qwen3_5_moe_text", "qwen3_vl_moe_text"), ()),
}
_OTHER_EXPERTS = ("gate_proj", "up_proj", "down_proj")


class Adapters(NamedTuple):
    """What PEFT knows of a model.

    name          of the model's type, as a message says it
    lora, ia3     names of the modules that it adapts unless the config names some; () where it has none
    experts       (gate, up, down): what the parts of the experts' common weights are called; () for none
    prompts       it knows the model's attention, and so adaption prompts
    names         (its own, ours): parts of the model's names that are others in :mod:`memlint.models`
    """

    name: str = ""
    lora: tuple[str, ...] = ()
    ia3: tuple[str, ...] = ()
    experts: tuple[str, ...] = _OTHER_EXPERTS
    prompts: bool = False
    names: tuple[tuple[str, str], ...] = ()


NOTHING = Adapters()


def adapters_of(model_type: str) -> Adapters:
    """By the ``model_type`` of a ``config.json``."""
    return Adapters(
        model_type,
        LORA_TARGETS.get(model_type, ()),
        IA3_TARGETS.get(model_type, ()),
        _EXPERTS.get(model_type, _OTHER_EXPERTS),
        model_type in PROMPTED,
    )
