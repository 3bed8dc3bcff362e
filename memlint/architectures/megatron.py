"""From sizes and switches in Megatron-LM's terms to the decoder that they describe.

Megatron-LM, Megatron-DeepSpeed, GPT-NeoX and NeMo state a decoder as options of one transformer layer, each of which
may be combined with every other. Source: Megatron-LM core 0.16, ``transformer/transformer_config.py`` and
``models/gpt/gpt_layer_specs.py``.

What they say of a model:

inner         width of the perceptron
vocabulary    rows, padded
length        rows of a table of learned positions
head_dim      0: the width is shared among the heads
positions     "learned", "rope", "alibi" or "none"
norm          "layer" or "rms"
biased        linear layers have biases; ``qkv_biased`` where only queries, keys and values have them, and
              ``perceptron_biased`` where the perceptron differs from attention
query_norm    of each head's queries and keys
parallel      attention and perceptron read the same residual stream, each through a norm of its own
embedding_norm    embedded tokens are normed (BLOOM)
latent        attention through a narrow vector
"""

from __future__ import annotations

from memlint.architectures.decoder import Decoder, Experts, Latent


def decoder(
    *,
    layers: int,
    width: int,
    heads: int,
    groups: int,
    inner: int,
    vocabulary: int,
    length: int,
    head_dim: int = 0,
    positions: str = "learned",
    rotary_share: float = 1.0,
    norm: str = "layer",
    gated: bool = False,
    activation: str = "gelu",
    biased: bool = True,
    qkv_biased: bool = False,
    perceptron_biased: bool | None = None,
    query_norm: bool = False,
    parallel: bool = False,
    embedding_norm: bool = False,
    tied: bool = True,
    attention_dropout: float = 0.0,
    hidden_dropout: float = 0.0,
    experts: Experts | None = None,
    latent: Latent | None = None,
) -> Decoder:
    """Every combination is one. Whether its sizes agree is for the caller to ask (``AGREEMENTS``)."""
    head_dim, rotary_dim = _of_a_head(head_dim or width // max(heads, 1), rotary_share, latent)
    rotary = "half" if rotary_dim == head_dim else "partial"
    return Decoder(
        vocabulary=vocabulary,
        width=width,
        layers=layers,
        heads=heads,
        key_value_heads=heads if latent is not None else groups,
        head_dim=head_dim,
        intermediate=inner,
        tied=tied,
        norm=norm,
        residual="parallel_two" if parallel else "pre",
        projection="separate" if latent is None else "latent",
        qkv_bias=biased or qkv_biased,
        output_bias=biased,
        query_norm="head" if query_norm else "none",
        rotary=rotary if positions == "rope" else "none",
        rotary_dim=rotary_dim,
        perceptron="gated" if gated else "fc1 fc2",
        perceptron_bias=biased if perceptron_biased is None else perceptron_biased,
        activation=activation,
        positions=length if positions == "learned" else 0,
        alibi=positions == "alibi",
        attention_dropout=attention_dropout,
        residual_dropout=hidden_dropout,
        embedding_dropout=hidden_dropout,
        embedding_norm=embedding_norm,
        experts=experts,
        latent=latent,
    )


def _of_a_head(head_dim: int, rotary_share: float, latent: Latent | None) -> tuple[int, int]:
    """Its numbers, and how many of them are rotated."""
    if latent is not None:
        return latent.plain_dim + latent.rotary_dim, latent.rotary_dim
    return head_dim, int(head_dim * rotary_share)
