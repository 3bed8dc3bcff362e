"""From a builder of torchtune's, and what it is given, to the decoder that it makes.

A model builder (``llama3_1_8b``) hands its sizes to a component builder (``llama3_1``), which a recipe may call itself.
Source: torchtune 0.6.1, ``models/*/_model_builders.py`` and ``models/*/_component_builders.py``; Qwen 3's are of its
repository after that (bd2a0fc).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.architectures.sizes import Sizes
from memlint.facts.spec import UnknownModel
from memlint.named_tuple import NamedTuple


class Component(NamedTuple):
    """What a component builder makes of its sizes.

    switches    of the decoder, where they differ from LLaMA's
    tied        its embedding is its head, unless ``tie_word_embeddings`` says otherwise where it ``asks`` for that
    scales      the perceptron's width follows from the model's where it is not given (``scale_hidden_dim_for_mlp``)
    asks_head   for ``head_dim``; else the width is shared among the heads
    window      of every other layer, from the first on; 0 for none
    """

    switches: Mapping[str, Any]
    tied: bool = False
    asks: bool = False
    scales: bool = False
    asks_head: bool = False
    window: int = 0


# Pairs of neighbours are rotated in fp32 (RotaryPositionalEmbeddings), halves of a head in Qwen's and Phi's own
# modules, of which Phi's cosine and sine stay in fp32.
_PAIRS: Mapping[str, Any] = {"rotary": "interleaved_wide"}
_GEMMA: Mapping[str, Any] = {**_PAIRS, "norm": "gemma", "activation": "gelu_pytorch_tanh", "scaled": True}
# As its model builders call it: without biases, with norms of queries and keys, which the component's defaults are not.
_QWEN3 = "qwen3 without biases"
COMPONENTS = {
    "llama2": Component(_PAIRS, scales=True),
    "llama3": Component(_PAIRS, scales=True),
    "llama3_1": Component(_PAIRS, scales=True),
    "llama3_2": Component(_PAIRS, tied=True, asks=True, scales=True),
    "mistral": Component(_PAIRS),
    "phi3": Component({"rotary": "half", "wide_tables": True}),
    "qwen2": Component({"rotary": "half", "qkv_bias": True}, asks=True),
    "gemma": Component(_GEMMA, tied=True, asks_head=True),
    "gemma2": Component(
        {**_GEMMA, "residual": "sandwich", "score_cap": True, "logit_cap": True}, True, asks_head=True, window=4096
    ),
    _QWEN3: Component({"rotary": "half", "query_norm": "head_after"}, asks=True, asks_head=True),
}

# Model builders -> component; vocab_size, num_layers, num_heads, num_kv_heads, embed_dim, intermediate_dim (0: not
# given), max_seq_len; head_dim, where it is given.
BUILDERS: dict[str, tuple[str, tuple[int, ...]]] = {
    "code_llama2_7b": ("llama2", (32_016, 32, 32, 32, 4096, 11_008, 16_384)),
    "code_llama2_13b": ("llama2", (32_016, 40, 40, 40, 5120, 13_824, 16_384)),
    "code_llama2_70b": ("llama2", (32_016, 80, 64, 8, 8192, 28_672, 16_384)),
    "gemma_2b": ("gemma", (256_000, 18, 8, 1, 2048, 16_384, 8192, 256)),
    "gemma_7b": ("gemma", (256_000, 28, 16, 16, 3072, 24_576, 8192, 256)),
    "gemma2_2b": ("gemma2", (256_000, 26, 8, 4, 2304, 9216, 8192, 256)),
    "gemma2_9b": ("gemma2", (256_000, 42, 16, 8, 3584, 14_336, 8192, 256)),
    "gemma2_27b": ("gemma2", (256_000, 46, 32, 16, 4608, 36_864, 8192, 128)),
    "llama2_7b": ("llama2", (32_000, 32, 32, 32, 4096, 0, 4096)),
    "llama2_13b": ("llama2", (32_000, 40, 40, 40, 5120, 13_824, 4096)),
    "llama2_70b": ("llama2", (32_000, 80, 64, 8, 8192, 28_672, 4096)),
    "llama3_8b": ("llama3", (128_256, 32, 32, 8, 4096, 14_336, 8192)),
    "llama3_70b": ("llama3", (128_256, 80, 64, 8, 8192, 28_672, 8192)),
    "llama3_1_8b": ("llama3_1", (128_256, 32, 32, 8, 4096, 14_336, 131_072)),
    "llama3_1_70b": ("llama3_1", (128_256, 80, 64, 8, 8192, 28_672, 131_072)),
    "llama3_3_70b": ("llama3_1", (128_256, 80, 64, 8, 8192, 28_672, 131_072)),
    "llama3_1_405b": ("llama3_1", (128_256, 126, 128, 8, 16_384, 53_248, 131_072)),
    "llama3_2_1b": ("llama3_2", (128_256, 16, 32, 8, 2048, 8192, 131_072)),
    "llama3_2_3b": ("llama3_2", (128_256, 28, 24, 8, 3072, 8192, 131_072)),
    "mistral_7b": ("mistral", (32_000, 32, 32, 8, 4096, 14_336, 32_768)),
    "phi3_mini": ("phi3", (32_064, 32, 32, 32, 3072, 8192, 4096)),
    "phi4_14b": ("phi3", (100_352, 40, 40, 10, 5120, 17_920, 16_384)),
    "qwen2_7b": ("qwen2", (152_064, 28, 28, 4, 3584, 18_944, 32_768)),
    "qwen2_0_5b": ("qwen2", (151_936, 24, 14, 2, 896, 4864, 32_768)),
    "qwen2_1_5b": ("qwen2", (151_936, 28, 12, 2, 1536, 8960, 32_768)),
    "qwen2_5_0_5b": ("qwen2", (151_936, 24, 14, 2, 896, 4864, 32_768)),
    "qwen2_5_1_5b_base": ("qwen2", (151_936, 28, 12, 2, 1536, 8960, 131_072)),
    "qwen2_5_1_5b_instruct": ("qwen2", (151_936, 28, 12, 2, 1536, 8960, 32_768)),
    "qwen2_5_3b": ("qwen2", (151_936, 36, 16, 2, 2048, 11_008, 32_768)),
    "qwen2_5_7b_base": ("qwen2", (152_064, 28, 28, 4, 3584, 18_944, 131_072)),
    "qwen2_5_7b_instruct": ("qwen2", (152_064, 28, 28, 4, 3584, 18_944, 32_768)),
    "qwen2_5_14b_base": ("qwen2", (152_064, 48, 40, 8, 5120, 13_824, 131_072)),
    "qwen2_5_14b_instruct": ("qwen2", (152_064, 48, 40, 8, 5120, 13_824, 32_768)),
    "qwen2_5_32b_base": ("qwen2", (152_064, 64, 40, 8, 5120, 27_648, 131_072)),
    "qwen2_5_32b_instruct": ("qwen2", (152_064, 64, 40, 8, 5120, 27_648, 32_768)),
    "qwen2_5_72b_base": ("qwen2", (152_064, 80, 64, 8, 8192, 29_568, 131_072)),
    "qwen2_5_72b_instruct": ("qwen2", (152_064, 80, 64, 8, 8192, 29_568, 32_768)),
    "qwen3_0_6b_base": (_QWEN3, (151_936, 28, 16, 8, 1024, 3072, 32_768, 128)),
    "qwen3_0_6b_instruct": (_QWEN3, (151_936, 28, 16, 8, 1024, 3072, 40_960, 128)),
    "qwen3_1_7b_base": (_QWEN3, (151_936, 28, 16, 8, 2048, 6144, 32_768, 128)),
    "qwen3_1_7b_instruct": (_QWEN3, (151_936, 28, 16, 8, 2048, 6144, 40_960, 128)),
    "qwen3_4b_base": (_QWEN3, (151_936, 36, 32, 8, 2560, 9728, 32_768, 128)),
    "qwen3_4b_instruct": (_QWEN3, (151_936, 36, 32, 8, 2560, 9728, 40_960, 128)),
    "qwen3_8b_base": (_QWEN3, (151_936, 36, 32, 8, 4096, 12_288, 32_768, 128)),
    "qwen3_8b_instruct": (_QWEN3, (151_936, 36, 32, 8, 4096, 12_288, 40_960, 128)),
    "qwen3_14b_base": (_QWEN3, (151_936, 40, 40, 8, 5120, 17_408, 32_768, 128)),
    "qwen3_14b_instruct": (_QWEN3, (151_936, 40, 40, 8, 5120, 17_408, 40_960, 128)),
    "qwen3_32b": (_QWEN3, (151_936, 64, 64, 8, 5120, 25_600, 40_960, 128)),
}
_ARGUMENTS = (
    *("vocab_size", "num_layers", "num_heads", "num_kv_heads", "embed_dim", "intermediate_dim", "max_seq_len"),
    "head_dim",
)
# Of Qwen's, those that say tie_word_embeddings=True.
_TIED = frozenset(
    (
        *("qwen2_0_5b", "qwen2_1_5b", "qwen2_5_0_5b", "qwen2_5_1_5b_base", "qwen2_5_1_5b_instruct", "qwen2_5_3b"),
        *("qwen3_0_6b_base", "qwen3_0_6b_instruct", "qwen3_1_7b_base", "qwen3_1_7b_instruct"),
        *("qwen3_4b_base", "qwen3_4b_instruct"),
    )
)


def decoder(name: str, given: Mapping[str, Any]) -> Decoder:
    """What the builder of this name makes of the arguments that a recipe gives it (None: not given).

    Raises UnknownModel for a builder that is not known, a size that it is not given, and one that cannot be. Whether
    its sizes agree is for the caller to ask (``checked``).
    """
    stated = {key: value for key, value in given.items() if value is not None}
    component = name
    if name in BUILDERS:
        component, sizes = BUILDERS[name]
        fixed: dict[str, Any] = {key: size for key, size in zip(_ARGUMENTS, sizes) if size}
        if component in ("qwen2", _QWEN3):
            fixed["tie_word_embeddings"] = name in _TIED
        elif "tie_word_embeddings" in stated:
            fixed["tie_word_embeddings"] = stated["tie_word_embeddings"]
        stated = fixed
    if component not in COMPONENTS:
        raise UnknownModel(f"{name} is no builder of torchtune's that is known")
    return _made(COMPONENTS[component], Sizes(stated, name))


def _made(component: Component, sizes: Sizes) -> Decoder:
    width, heads, layers = _size(sizes, "embed_dim"), _size(sizes, "num_heads"), _size(sizes, "num_layers")
    head_dim = _size(sizes, "head_dim") if component.asks_head else width // heads
    inner = sizes.get("intermediate_dim")
    if inner is None and component.scales:
        inner = -(-4 * int(2 * width / 3) // 256) * 256
    if width % heads:
        raise UnknownModel(f"embed_dim {width:,} is no multiple of num_heads {heads:,}")
    made = Decoder(
        vocabulary=_size(sizes, "vocab_size"),
        width=width,
        layers=layers,
        heads=heads,
        key_value_heads=sizes.get("num_kv_heads") or heads,
        head_dim=head_dim,
        intermediate=inner or _size(sizes, "intermediate_dim"),
        tied=bool(sizes.get("tie_word_embeddings", component.tied)) if component.asks else component.tied,
        rotary_dim=head_dim,
        context=sizes.get("max_seq_len") or 0,
        attention_dropout=sizes.get("attn_dropout") or 0.0,
        windows=tuple(component.window * (number % 2 == 0) for number in range(layers)) if component.window else (),
    )
    return made._replace(**component.switches)


def _size(sizes: Sizes, name: str) -> int:
    found = sizes.get(name)
    if found is None:
        raise UnknownModel(f"{sizes.source} is not given {name}")
    return int(found)
