"""From sizes and switches in Megatron-LM's terms to the decoder that they describe.

Megatron-LM, Megatron-DeepSpeed, GPT-NeoX and NeMo state a decoder as options of one transformer layer, each of which
may be combined with every other. Source: Megatron-LM core 0.16, ``transformer/transformer_config.py`` and
``models/gpt/gpt_layer_specs.py``.
"""

from __future__ import annotations

from memlint.architectures.decoder import Decoder, Experts, Latent
from memlint.named_tuple import NamedTuple


class Options(NamedTuple):
    """What a trainer descended from Megatron-LM says of its model.

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
    experts       per layer, of width ``expert_inner``; 0 for a plain perceptron
    plain         layers that have a plain perceptron all the same
    shared        width of the expert that every token visits
    latent        attention through a narrow vector
    """

    layers: int
    width: int
    heads: int
    groups: int
    inner: int
    vocabulary: int
    length: int
    head_dim: int = 0
    positions: str = "learned"
    rotary_share: float = 1.0
    norm: str = "layer"
    gated: bool = False
    activation: str = "gelu"
    biased: bool = True
    qkv_biased: bool = False
    perceptron_biased: bool | None = None
    query_norm: bool = False
    parallel: bool = False
    embedding_norm: bool = False
    tied: bool = True
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    experts: int = 0
    experts_per_token: int = 2
    expert_inner: int = 0
    plain: tuple[int, ...] = ()
    shared: int = 0
    latent: Latent | None = None


def decoder(options: Options) -> Decoder:
    """Every combination is one. Whether its sizes agree is for the caller to ask (``AGREEMENTS``)."""
    latent = options.latent
    head_dim = options.head_dim or options.width // max(options.heads, 1)
    rotary_dim = int(head_dim * options.rotary_share)
    if latent is not None:
        head_dim, rotary_dim = latent.plain_dim + latent.rotary_dim, latent.rotary_dim
    rotary = "none"
    if options.positions == "rope":
        rotary = "half" if rotary_dim == head_dim else "partial"
    biased = options.biased
    experts = None
    if options.experts:
        inner = options.expert_inner or options.inner
        experts = Experts(options.experts, options.experts_per_token, inner, shared=options.shared, dense=options.plain)
    return Decoder(
        vocabulary=options.vocabulary,
        width=options.width,
        layers=options.layers,
        heads=options.heads,
        key_value_heads=options.heads if latent is not None else options.groups,
        head_dim=head_dim,
        intermediate=options.inner,
        tied=options.tied,
        norm=options.norm,
        residual="parallel_two" if options.parallel else "pre",
        projection="separate" if latent is None else "latent",
        qkv_bias=biased or options.qkv_biased,
        output_bias=biased,
        query_norm="head" if options.query_norm else "none",
        rotary=rotary,
        rotary_dim=rotary_dim,
        perceptron="gated" if options.gated else "fc1 fc2",
        perceptron_bias=biased if options.perceptron_biased is None else options.perceptron_biased,
        activation=options.activation,
        positions=options.length if options.positions == "learned" else 0,
        alibi=options.positions == "alibi",
        attention_dropout=options.attention_dropout,
        residual_dropout=options.hidden_dropout,
        embedding_dropout=options.hidden_dropout,
        embedding_norm=options.embedding_norm,
        experts=experts,
        latent=latent,
    )
