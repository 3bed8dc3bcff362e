"""Encoders: BERT and its kin, which are one program with switches, and ModernBERT.

Who reads them from a ``config.json`` is in ``huggingface_encoders``; models take what is here, and nothing else.
"""

from __future__ import annotations

from memlint.architectures.adapters import NOTHING, Adapters
from memlint.architectures.sizes import HEADS_SHARE_WIDTH, Agreement
from memlint.named_tuple import NamedTuple


class Encoder(NamedTuple):
    """Sizes, and the switches of the program.

    embedding_width    of the tables, where it is not ``width`` (ELECTRA, ALBERT)
    token_types        rows of the table of segments; 0 for none
    counted_positions  each row counts its own from what is padding
    layer              "bert", "distilbert", "albert" (one layer's weights serve many), "mpnet", "deberta"
    groups, inner      ALBERT: how many sets of weights there are, and layers in each
    buckets            MPNet: rows of the table of relative positions
    span, norms_distances, shares_keys
                       DeBERTa: half the rows of the table of distances, whether they pass through a norm, and whether
                       distances are projected as contents are
    convolution, conv_groups, conv_activation
                       DeBERTa-v2 XL: a convolution beside the first layer; tokens that it spans, 0 for none
    classifier         what classifies a row: "pooler", "tanh", "gelu" (a dense layer with that function), "relu",
                       "context" (DeBERTa's pooler)
    prediction_activation
                       between the last states and the logits over the vocabulary
    dropout, attention_dropout, classifier_dropout, row_dropout, span_dropout, pooler_dropout
                       of hidden states, of attention's probabilities, before logits of tokens, of a row and of spans,
                       and of what is pooled
    pools              without a head, the model pools its first token
    adapters           what PEFT knows of it
    """

    vocabulary: int
    width: int
    embedding_width: int
    layers: int
    heads: int
    intermediate: int
    positions: int
    token_types: int
    activation: str
    prediction_activation: str
    dropout: float
    attention_dropout: float
    classifier_dropout: float
    row_dropout: float
    span_dropout: float = 0.0
    tied: bool = True
    counted_positions: bool = False
    layer: str = "bert"
    groups: int = 0
    inner: int = 1
    buckets: int = 0
    span: int = 0
    norms_distances: bool = False
    shares_keys: bool = False
    convolution: int = 0
    conv_groups: int = 1
    conv_activation: str = "tanh"
    pooler_dropout: float = 0.0
    classifier: str = "pooler"
    pools: bool = False
    adapters: Adapters = NOTHING


class ModernBert(NamedTuple):
    """Sizes. ``window``: how far a token sees to each side in layers that have one; ``windowed``: which they are;
    ``averages``: rows are classified by the mean of their tokens; ``adapters``: what PEFT knows of it."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    intermediate: int
    window: int
    windowed: tuple[bool, ...]
    activation: str
    attention_dropout: float
    embedding_dropout: float
    mlp_dropout: float
    classifier_dropout: float
    attention_bias: bool
    mlp_bias: bool
    norm_bias: bool
    decoder_bias: bool
    classifier_bias: bool
    averages: bool
    adapters: Adapters = NOTHING


AGREEMENTS = (
    HEADS_SHARE_WIDTH,
    Agreement(
        lambda sizes: sizes.width % sizes.conv_groups == 0,
        "hidden_size {0.width:,} cannot be divided among conv_groups {0.conv_groups:,}",
    ),
)

MODERN_AGREEMENTS = (
    HEADS_SHARE_WIDTH,
    Agreement(
        lambda sizes: sizes.width // sizes.heads % 2 == 0,
        "of hidden_size {0.width:,} each of num_attention_heads {0.heads:,} has a number that is odd: no pairs",
    ),
)
