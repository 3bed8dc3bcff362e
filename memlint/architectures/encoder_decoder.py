"""Encoder-decoders: BART and its kin, Whisper, and T5, whose attention is unlike theirs.

Who reads them from a ``config.json`` is in ``huggingface_encoder_decoders``; models take what is here, and nothing
else.
"""

from __future__ import annotations

from memlint.architectures.adapters import NOTHING, Adapters
from memlint.architectures.sizes import Agreement
from memlint.named_tuple import NamedTuple


class Stack(NamedTuple):
    """One half: its layers, heads, and the width between its two linear layers."""

    layers: int
    heads: int
    intermediate: int


class EncoderDecoder(NamedTuple):
    """Sizes, and the switches of the program.

    positions   of the input and of the output: rows of their tables
    placing     how positions are numbered and kept: "learned" (BART: two rows more), "frozen" (sinusoids that count as
                parameters), "buffer" (sinusoids of each row's own count, two rows more: M2M-100), "frames" (Whisper)
    norm_first  norms stand before the blocks, and one at the end
    norm_embedded  a norm stands behind the embeddings
    scaled      embeddings are multiplied by a constant, be it one
    logits_bias a row of numbers is added to the logits
    mel_bins    of a spectrogram, where the input is sound
    tied        the head is an embedding
    shared      both halves have one table (Marian may do without: then the head is the decoder's)
    decoder_vocabulary  rows of the decoder's own table; 0 where it has none
    adapters    what PEFT knows of it
    """

    vocabulary: int
    width: int
    encoder: Stack
    decoder: Stack
    positions: tuple[int, int]
    activation: str
    dropout: float
    attention_dropout: float
    activation_dropout: float
    placing: str = "learned"
    norm_first: bool = False
    norm_embedded: bool = False
    scaled: bool = True
    logits_bias: bool = True
    mel_bins: int = 0
    tied: bool = True
    shared: bool = True
    decoder_vocabulary: int = 0
    adapters: Adapters = NOTHING


class T5(NamedTuple):
    """Sizes, and the switches of the program.

    inner     width between the two linear layers of a perceptron
    buckets   rows of the table of relative positions
    gated     the perceptron has a gate
    tied      the head is the embedding
    scaled    the last states are multiplied by a constant
    adapters  what PEFT knows of it
    """

    vocabulary: int
    width: int
    inner: int
    heads: int
    head_dim: int
    encoder_layers: int
    decoder_layers: int
    buckets: int
    activation: str
    gated: bool
    dropout: float
    tied: bool
    scaled: bool
    adapters: Adapters = NOTHING


AGREEMENTS = (
    Agreement(
        lambda sizes: sizes.width % sizes.encoder.heads == sizes.width % sizes.decoder.heads == 0,
        "d_model {0.width:,} cannot be divided among encoder_attention_heads {0.encoder.heads:,} "
        "and decoder_attention_heads {0.decoder.heads:,}",
    ),
)
