"""From a ``config.json`` whose model's code comes with the weights (``trust_remote_code``) to the decoder it describes.

transformers has no class for these types; what they compute is read from the repositories of their weights, or from
public copies of that code, which the modules of :mod:`memlint.models.language` name. Like the names of
``config.json``, those of its parts are each author's own: ``Adapters.names`` says which of them adapters may go by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memlint.architectures.adapters import Adapters, adapters_of
from memlint.architectures.decoder import AGREEMENTS, Decoder
from memlint.architectures.sizes import HEADS_SHARE_WIDTH, Sizes, agree
from memlint.facts.spec import UnknownModel


def _number(config: Mapping[str, Any], *names: str) -> int:
    for name in names:
        if config.get(name) is not None:
            return int(config[name])
    raise UnknownModel(f"config.json of model type {config.get('model_type')!r} states no {names[0]}")


def _adapters(model_type: str, names: dict[str, str]) -> Adapters:
    return adapters_of(model_type)._replace(names=tuple(names.items()))


def _qwen(config: Mapping[str, Any]) -> Decoder:
    """Qwen, Qwen-VL's decoder aside. Its first release wrote GPT-2's names and twice the perceptron's width."""
    width, heads = _number(config, "hidden_size", "n_embd"), _number(config, "num_attention_heads", "n_head")
    head_dim = config.get("kv_channels") or width // heads
    share = config.get("rotary_pct", 1.0)
    if share != 1.0 or head_dim * heads != width:
        raise UnknownModel("Qwen that rotates part of a head, or whose heads are no parts of its width, is not known")
    if config.get("visual"):
        raise UnknownModel("the image encoder beside the decoder of 'qwen' is not known")
    biased = not config.get("no_bias", True)
    return Decoder(
        vocabulary=_number(config, "vocab_size"),
        width=width,
        layers=_number(config, "num_hidden_layers", "n_layer"),
        heads=heads,
        key_value_heads=heads,
        head_dim=head_dim,
        intermediate=_number(config, "intermediate_size", "ffn_hidden_size") // 2,
        qkv_bias=True,
        output_bias=biased,
        output_name="c_proj",
        joined_name="c_attn",
        perceptron_bias=biased,
        embedding_dropout=config.get("emb_dropout_prob", config.get("embd_pdrop", 0.0)),
        rotary_dim=head_dim,
        context=config.get("seq_length", 0),
        code="qwen",
        adapters=_adapters("qwen", {"attn": "self_attn", "wte": "embed_tokens"}),
    )


# Baichuan 2 has twice the first one's vocabulary, and the models of 13B bias scores where those of 7B rotate.
_ROWS_OF_BAICHUAN2, _WIDTH_OF_13B = 100_000, 5120


def _baichuan(config: Mapping[str, Any]) -> Decoder:
    width, heads, rows = (
        _number(config, "hidden_size"),
        _number(config, "num_attention_heads"),
        _number(config, "vocab_size"),
    )
    second, biased = rows > _ROWS_OF_BAICHUAN2, width >= _WIDTH_OF_13B
    if (config.get("quantization_config") or {}).get("load_in_4bit") and "quant_method" not in config[
        "quantization_config"
    ]:
        raise UnknownModel("Baichuan 2 as its own code quantises it is not known")
    return Decoder(
        vocabulary=rows,
        width=width,
        layers=_number(config, "num_hidden_layers"),
        heads=heads,
        key_value_heads=heads,
        head_dim=width // heads,
        intermediate=_number(config, "intermediate_size"),
        activation=config.get("hidden_act", "silu"),
        joined_name="W_pack",
        rotary="none" if biased else "half",
        rotary_dim=0 if biased else width // heads,
        wide_tables=second and not biased,
        alibi=biased,
        context=_number(config, "model_max_length", "max_position_embeddings"),
        normed_head=second,
        code="baichuan",
        kernels=() if biased and not second else ("sdpa", "flash"),
        adapters=adapters_of("baichuan"),
    )


def _like_llama(config: Mapping[str, Any]) -> Decoder:
    """InternLM and MiniCPM, whose latent attention and mixtures (MiniCPM3, MiniCPM-MoE) are other types."""
    width, heads, kind = _number(config, "hidden_size"), _number(config, "num_attention_heads"), config["model_type"]
    if config.get("num_experts") or config.get("sparse_config"):
        raise UnknownModel(f"{kind} with experts or sparse attention is not known")
    small = kind == "minicpm"
    biased = not small and bool(config.get("bias", True))
    return Decoder(
        vocabulary=_number(config, "vocab_size"),
        width=width,
        layers=_number(config, "num_hidden_layers"),
        heads=heads,
        key_value_heads=config.get("num_key_value_heads") or heads,
        head_dim=width // heads,
        intermediate=_number(config, "intermediate_size"),
        tied=bool(config.get("tie_word_embeddings", small)),
        activation=config.get("hidden_act", "silu"),
        qkv_bias=biased,
        output_bias=biased,
        rotary_dim=width // heads,
        wide_tables=small,
        scaled=small,
        scaled_residual=small,
        context=_number(config, "max_position_embeddings"),
        code=kind,
        kernels=("sdpa", "flash") if small else (),
        adapters=adapters_of(kind),
    )


# The vocabulary tells GLM-4 from ChatGLM2 and 3, whose sizes have the same names.
_ROWS_OF_GLM4 = 1 << 17


def _first_chatglm(config: Mapping[str, Any]) -> Decoder:
    width, heads = _number(config, "hidden_size"), _number(config, "num_attention_heads")
    for name, known in (("position_encoding_2d", True), ("use_bias", True), ("pre_seq_len", None)):
        if config.get(name, known) != known:
            raise UnknownModel(f"the first ChatGLM with {name} {config[name]} is not known")
    return Decoder(
        vocabulary=_number(config, "vocab_size"),
        width=width,
        layers=_number(config, "num_layers", "num_hidden_layers"),
        heads=heads,
        key_value_heads=heads,
        head_dim=width // heads,
        intermediate=_number(config, "inner_hidden_size"),
        norm="layer",
        tied=bool(config.get("tie_word_embeddings", True)),
        qkv_bias=True,
        output_bias=True,
        output_name="dense",
        perceptron_bias=True,
        rotary_dim=width // heads // 2,
        context=_number(config, "max_sequence_length"),
        code="chatglm",
        kernels=(),
        adapters=_adapters("chatglm", {"attention": "self_attn", "word_embeddings": "embed_tokens"}),
    )


def _chatglm(config: Mapping[str, Any]) -> Decoder:
    if config.get("padded_vocab_size") is None:
        return _first_chatglm(config)
    refused = ("fp32_residual_connection", "apply_residual_connection_post_layernorm", "pre_seq_len")
    for name in refused:
        if config.get(name):
            raise UnknownModel(f"ChatGLM with {name} is not known")
    if not (config.get("rmsnorm", True) and config.get("multi_query_attention", True)):
        raise UnknownModel("ChatGLM without rmsnorm and multi_query_attention is not known")
    if config.get("vision_config"):
        raise UnknownModel("the image encoder beside the decoder of 'chatglm' is not known")
    width, heads = _number(config, "hidden_size"), _number(config, "num_attention_heads")
    head_dim = config.get("kv_channels") or width // heads
    rows, biased = _number(config, "padded_vocab_size"), bool(config.get("add_bias_linear", False))
    return Decoder(
        vocabulary=rows,
        width=width,
        layers=_number(config, "num_layers", "num_hidden_layers"),
        heads=heads,
        key_value_heads=_number(config, "multi_query_group_num"),
        head_dim=head_dim,
        intermediate=_number(config, "ffn_hidden_size"),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=biased or bool(config.get("add_qkv_bias", False)),
        output_bias=biased,
        output_name="dense",
        perceptron_bias=biased,
        residual_dropout=config.get("hidden_dropout", 0.0),
        rotary_dim=head_dim // 2,
        context=_number(config, "seq_length"),
        code="glm4_chat" if rows >= _ROWS_OF_GLM4 else "chatglm2",
        adapters=_adapters(
            "chatglm", {"self_attention": "self_attn", "word_embeddings": "embed_tokens", "output_layer": "lm_head"}
        ),
    )


_READERS: dict[str, Callable[[Mapping[str, Any]], Decoder]] = {
    "baichuan": _baichuan,
    "chatglm": _chatglm,
    "internlm": _like_llama,
    "minicpm": _like_llama,
    "qwen": _qwen,
}
REMOTE_TYPES = tuple(_READERS)

# Options by which scripts change the config.json that they have read: what the model is then is this reader's to say.
CHANGED_BY: dict[str, tuple[str, ...]] = {"chatglm": ("pre_seq_len",)}

# What the code of these makes its weights in, unless a dtype is stated ("": in what the config says, whichever release
# of transformers reads it), and where it does.
OWN_WEIGHTS: dict[str, tuple[str, str]] = {
    "chatglm": ("", "modeling_chatglm.py: modules are made in the config's torch_dtype"),
    "qwen": ("bfloat16", "modeling_qwen.py: QWenLMHeadModel casts itself"),
}


def remote_decoder(config: Mapping[str, Any]) -> Decoder:
    """Raises UnknownModel where a size is missing, is none, or does not agree with the others."""
    config = Sizes(config)
    made = _READERS[str(config.get("model_type"))](config)
    agree(made, (HEADS_SHARE_WIDTH, *AGREEMENTS))
    return made
