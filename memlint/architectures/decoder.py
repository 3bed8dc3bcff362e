"""A decoder-only language model: its sizes, and the switches of the program that computes it.

Most decoders are one program with switches. Who reads them from what (a ``config.json``, a trainer's own options) is
in the modules beside; models take what is here, and nothing else.
"""

from __future__ import annotations

from memlint.architectures.adapters import NOTHING, Adapters
from memlint.architectures.sizes import KINDS, Agreement, agree, check
from memlint.named_tuple import NamedTuple


class Experts(NamedTuple):
    """A mixture of experts in place of a perceptron.

    shared            width of the expert that every token visits; 0 for none
    shared_gate       the shared expert's result is weighted by a gate (Qwen2-MoE)
    router            how scores are made: "mixtral" (softmax of fp32 logits), "qwen" (softmax into fp32, rounded back),
                      "chosen" (GPT-OSS: biased logits, and a softmax over the chosen ones), "softmax" (DeepSeek-V2) and
                      "sigmoid" (DeepSeek-V3, GLM-4.5), both from fp32 logits, then scaled; "granite" (a softmax over
                      the chosen ones of fp32 logits), "all" (each is asked about every token: Llama 4), "sampled" (two
                      are drawn: Phi-3.5-MoE), "minimax" (sigmoids of logits in fp32, without groups or a scale:
                      MiniMax-M2), "lfm2" (sigmoids in the logits' own type, scaled), "gemma4" (of normed tokens, the
                      chosen ones scaled by a weight of each expert)
    grouped           experts form groups, of which only some are looked at
    renormalised      the chosen scores are divided by their sum
    first             layers before this one have a plain perceptron
    step              every step-th layer has experts, the others a plain perceptron
    dense             layers that have a plain perceptron whatever ``step`` says
    apart             each is a perceptron of linear layers before transformers 5, and a part of one tensor since
    """

    number: int
    per_token: int
    intermediate: int
    router: str = "mixtral"
    renormalised: bool = True
    shared: int = 0
    shared_gate: bool = False
    first: int = 0
    step: int = 1
    dense: tuple[int, ...] = ()
    grouped: bool = False
    apart: bool = False

    def stand_in(self, number: int) -> bool:
        """Whether the layer of this number has experts in place of a perceptron."""
        return number not in self.dense and number >= self.first and (number + 1) % self.step == 0


class Latent(NamedTuple):
    """Multi-head latent attention (DeepSeek): keys and values are made from one narrow vector per token.

    query_rank  0 where queries are projected directly
    complex     pairs are rotated as complex numbers in fp32 (DeepSeek-V2)
    """

    query_rank: int
    key_value_rank: int
    plain_dim: int
    rotary_dim: int
    value_dim: int
    complex: bool


class GatedDelta(NamedTuple):
    """Layers that keep a state in place of attention (Qwen3-Next, Qwen3.5).

    layers   their numbers
    kernel   tokens that the convolution before it spans
    joined   queries, keys, values and gates come from two products (Qwen3-Next)
    kernels  flash-linear-attention is installed
    """

    layers: tuple[int, ...]
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    joined: bool
    kernels: bool = False


class ShortConvolution(NamedTuple):
    """Layers that convolve in place of attention (LFM2): their numbers, and the tokens that they span."""

    layers: tuple[int, ...]
    kernel: int
    bias: bool


class StateSpace(NamedTuple):
    """Mamba's second kind of layer: each head keeps a state that fades, which its tokens are written into.

    width    of all heads together
    state    numbers that a head keeps for each of its own
    groups   heads of one share what writes and reads the state
    kernel   tokens that the convolution before it spans
    chunk    tokens that one product writes
    normed   the result is normed: "" (not at all), "before" its gate, "after" it, "together" (after it, all groups
             scaled at once: Granite)
    scaled   what enters, and each number of its projection, is multiplied by a constant (Falcon-H1)
    layers   those that have it in place of attention; () where each has both
    """

    heads: int
    width: int
    state: int
    groups: int
    kernel: int
    chunk: int
    convolution_bias: bool = True
    input_bias: bool = False
    output_bias: bool = False
    normed: str = ""
    scaled: bool = False
    layers: tuple[int, ...] = ()


class UnequalLayers(NamedTuple):
    """How layers differ from each other in their sizes (Gemma 4).

    head_dim, key_value_heads  of layers without a window
    keys_as_values    these have no product for values, which are the keys before their norm
    reusing           so many last layers attend to the keys and values of the last layer of their kind before them
    wider             these have perceptrons twice as wide
    input_width       of what each layer is given of the tokens besides the stream; 0 for nothing
    input_vocabulary  tokens that have such an input
    """

    head_dim: int
    key_value_heads: int
    keys_as_values: bool = False
    reusing: int = 0
    wider: bool = False
    input_width: int = 0
    input_vocabulary: int = 0


class Decoder(NamedTuple):
    """Sizes, and the switches of the program.

    norm          "rms" (LLaMA: rounded, then scaled), "rms_wide" (OLMo2: scaled, then rounded), "gemma" (scaled by
                  ``1 + weight`` in fp32), "layer", "layer_weight" (without a bias), "layer_no_bias" (Cohere's own),
                  "layer_plus" (by ``1 + weight``, in autocast's dtype: Nemotron),
                  "plain" (no parameters: OLMo), "rms_weight_wide" (scaled by a weight in fp32, then rounded, the root
                  a power: Gemma 4)
    lowered_norm  autocast does not widen it: it is made in 16 bits (llm-foundry)
    residual      "pre" (norm, block, add), "post" (block, norm, add), "sandwich" (a norm before and one after),
                  "parallel" (attention and perceptron read the same norm), "parallel_two" (each has its own),
                  "flat" ("pre", tokens of all rows in one dimension: OPT), "flat_post" (the same, norms behind blocks)
    projection    "separate" q, k and v; "scaled" (the same, queries times a constant: OPT); "joined" (one product,
                  sliced: Phi3), "by_head" (one product, cut within heads: NeoX), "thirds" (one product, cut in
                  three: GPT-2), "one_key" (one product, keys and values of a single head: GPT-BigCode), "by_group"
                  (one product, cut within groups of heads: InternLM2, whose code comes with its weights)
    rotary        "half" (LLaMA), "partial" (the rest is put behind: NeoX, Phi, StableLM), "interleaved" (GLM),
                  "interleaved_once" (the same, from tables that are: GLM-4.1V),
                  "interleaved_wide" (in fp32: Cohere, torchtune), "interleaved_tables" (the same, from tables in
                  halves: ERNIE), "halves" (tables for half a head: GPT-OSS), "complex" (pairs of neighbours in fp32 as
                  complex numbers: DeepSeek-V2, torchtitan), "even_odd" (such pairs, put into halves: DeepSeek-V3),
                  "kernel" (flash-attn's, of the halves of a head: llm-foundry), "none"
    rotary_dim    numbers of a head that are rotated
    query_norm    "none", "head" (Qwen3), "head_together" (the same, once all three are there: GLM-4.5), "head_wide"
                  (Cohere: with weights for every head), "head_after" (Gemma3: with tokens and heads swapped), "whole"
                  (OLMo2), "head_each" (one norm for every head: StableLM), "head_rotated" (what is rotated already:
                  Hunyuan)
    perceptron    "gated" (gate_proj, up_proj, down_proj), "gated_joined" (Phi3), "gated_halves" (the same, its gate
                  first: Granite), "xielu" (Apertus), or names of two layers
    windows       per layer: the attention window, 0 for none; () where no layer has one
    positions     rows of a table of learned positions; 0 for none
    counted_positions                each row counts its own from the mask of padding (OPT)
    both_masks    masks with and without a window are made, whether or not some layer takes them
    sinks         one more score per row and head (GPT-OSS)
    scaled        token embeddings are multiplied by a constant
    scaled_residual, scaled_logits   as Granite's and Cohere's
    score_cap, logit_cap             scores and logits pass through a tanh (Gemma2)
    wide_tables   cosine and sine stay in fp32, and what they rotated is rounded back (OLMo)
    local_tables  sliding layers rotate by a table of their own (Gemma3)
    unrotated     layers that do not rotate (SmolLM3)
    context       tokens that it was made for, and so rows of tables that are made once for every place there may be
                  (GPT-J, GPT-Neo, MPT, torchtune); 0 where nothing says
    scaled_query  queries grow with their place once they are rotated (Ministral 3)
    alibi         scores are biased by distance
    clipped       queries, keys and values are bounded (MPT, OLMo)
    grouped       each group of heads has a key and a value of its own in the joined product (Falcon)
    final_norm    what the layers return is normed
    embedding_width   of tokens before a product brings them to ``width``, and of what the head gets; 0 for none (OPT)
    normed_head   rows of the head are divided by their norms in each step (Baichuan 2)
    embedding_norm    embedded tokens are normed (BLOOM)
    code          whose code computes the layers, where it is more than switches: "common", "bloom", "codegen",
                  "falcon", "falcon_h1", "gemma4", "gpt_neo", "gptj", "llama4", "mpt"; of models that bring it along:
                  "baichuan", "chatglm", "chatglm2", "glm4_chat", "internlm", "minicpm", "qwen"
    kernels       ways to compute attention that this code has, besides writing the scores out
    residual_last          of parallel residuals, the stream is added to the sum of both (Phi)
    named_attention        what attention returns has a name until the layer is done (StableLM)
    plain_softmax          of scores as they are, not of fp32 copies (GPT-2)
    rotates_in_line        in the function that attends, whose locals hold the halves (Phi, StableLM)
    joined_name            of the product that makes queries, keys and values
    scales_in_embedding    the module of the embedding multiplies by itself (Gemma)
    unread_mask   rows of a square of which tokens see which, that is made and not looked at (GPT-BigCode); 0 for none
    adapters      what PEFT knows of it
    """

    vocabulary: int
    width: int
    layers: int
    heads: int
    key_value_heads: int
    head_dim: int
    intermediate: int
    tied: bool = False
    norm: str = "rms"
    lowered_norm: bool = False
    residual: str = "pre"
    projection: str = "separate"
    qkv_bias: bool = False
    output_bias: bool = False
    output_name: str = "o_proj"
    query_norm: str = "none"
    rotary: str = "half"
    rotary_dim: int = 0
    perceptron: str = "gated"
    perceptron_bias: bool = False
    activation: str = "silu"
    conv1d: bool = False
    windows: tuple[int, ...] = ()
    positions: int = 0
    counted_positions: bool = False
    both_masks: bool = False
    sinks: bool = False
    scaled: bool = False
    scaled_residual: bool = False
    scaled_logits: bool = False
    score_cap: bool = False
    logit_cap: bool = False
    wide_tables: bool = False
    local_tables: bool = False
    unrotated: tuple[int, ...] = ()
    context: int = 0
    scaled_query: bool = False
    alibi: bool = False
    clipped: bool = False
    grouped: bool = False
    final_norm: bool = True
    embedding_width: int = 0
    attention_dropout: float = 0.0
    residual_dropout: float = 0.0
    embedding_dropout: float = 0.0
    head_bias: bool = False
    normed_head: bool = False
    embedding_norm: bool = False
    code: str = "common"
    kernels: tuple[str, ...] = ("sdpa", "flash")
    residual_last: bool = False
    named_attention: bool = False
    plain_softmax: bool = False
    rotates_in_line: bool = False
    joined_name: str = "query_key_value"
    scales_in_embedding: bool = False
    unread_mask: int = 0
    adapters: Adapters = NOTHING
    experts: Experts | None = None
    latent: Latent | None = None
    linear: GatedDelta | None = None
    convolution: ShortConvolution | None = None
    space: StateSpace | None = None
    unequal: UnequalLayers | None = None

    def reuses(self, number: int) -> bool:
        """Whether this layer attends to keys and values of an earlier one."""
        return self.unequal is not None and number >= self.layers - self.unequal.reusing

    def stores(self, number: int) -> bool:
        """Whether later layers attend to this one's keys and values: of its kind the last that has its own."""
        if self.unequal is None or not self.unequal.reusing or self.reuses(number):
            return False
        own = [n for n in range(self.layers - self.unequal.reusing) if self.window(n) == self.window(number)]
        return number == own[-1]

    def window(self, number: int) -> int:
        """The attention window of this layer; 0 for none."""
        return self.windows[number] if self.windows else 0

    @property
    def hybrid(self) -> bool:
        """Whether some layers do something else than to attend."""
        return self.linear is not None or self.convolution is not None


# Values of ``code``: layers of their own in transformers, unlike the common ones (memlint.models.language.codes).
OWN_LAYERS = ("bloom", "codegen", "falcon", "gpt_neo", "gptj", "mpt")

# Values of ``code``: models whose code comes with their weights (memlint.models.language.remote).
REMOTE = ("baichuan", "chatglm", "chatglm2", "glm4_chat", "internlm", "minicpm", "qwen")

# Code that rotates by itself (``rotary`` is "none").
_ROTATES_ITSELF = ("codegen", "falcon", "gptj")


def _rotates(sizes: Decoder) -> bool:
    return sizes.rotary != "none" or (sizes.code in _ROTATES_ITSELF and not sizes.alibi)


AGREEMENTS = (
    Agreement(
        lambda sizes: sizes.head_dim > 0,
        "hidden_size {0.width:,} leaves nothing to each of num_attention_heads {0.heads:,}",
    ),
    Agreement(
        lambda sizes: sizes.heads % sizes.key_value_heads == 0,
        "num_attention_heads {0.heads:,} is no multiple of num_key_value_heads {0.key_value_heads:,}",
    ),
    Agreement(
        lambda sizes: not _rotates(sizes) or (sizes.rotary_dim % 2 == 0 and sizes.rotary_dim <= sizes.head_dim),
        "of head_dim {0.head_dim:,}, {0.rotary_dim:,} numbers cannot be rotated in pairs",
    ),
    Agreement(
        lambda sizes: sizes.experts is None or sizes.experts.per_token <= sizes.experts.number,
        "num_experts_per_tok {0.experts.per_token:,} is more than num_experts {0.experts.number:,}",
    ),
    Agreement(
        lambda sizes: sizes.linear is None or sizes.linear.value_heads % sizes.linear.key_heads == 0,
        "{0.linear.value_heads:,} heads of values cannot share {0.linear.key_heads:,} heads of keys",
    ),
    Agreement(
        lambda sizes: sizes.space is None or sizes.space.width % sizes.space.heads == 0,
        "mamba_d_ssm {0.space.width:,} is no multiple of mamba_n_heads {0.space.heads:,}",
    ),
    Agreement(
        lambda sizes: sizes.space is None or sizes.space.heads % sizes.space.groups == 0,
        "mamba_n_heads {0.space.heads:,} is no multiple of mamba_n_groups {0.space.groups:,}",
    ),
)

# Sizes -> what a ``config.json`` calls them, and so what they may be.
_SIZES = {
    "vocabulary": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "key_value_heads": "num_key_value_heads",
    "intermediate": "intermediate_size",
    "attention_dropout": "attention_dropout",
    "residual_dropout": "hidden_dropout",
}
_OF_EXPERTS = {"number": "num_experts", "per_token": "num_experts_per_tok", "intermediate": "moe_intermediate_size"}
_OF_LATENT = {
    "query_rank": "q_lora_rank",
    "key_value_rank": "kv_lora_rank",
    "plain_dim": "qk_nope_head_dim",
    "rotary_dim": "qk_rope_head_dim",
    "value_dim": "v_head_dim",
}


def checked(decoder: Decoder, source: str) -> Decoder:
    """The decoder itself. Raises UnknownModel for a size that cannot be, or that does not agree with the others;
    ``source`` says in the message where they are from."""
    for part, names in ((decoder, _SIZES), (decoder.experts, _OF_EXPERTS), (decoder.latent, _OF_LATENT)):
        if part is not None:
            for field, name in names.items():
                check(f"{source}: {name}", getattr(part, field), KINDS[name])
    if decoder.positions:
        check(f"{source}: max_position_embeddings", decoder.positions, KINDS["max_position_embeddings"])
    agree(decoder, AGREEMENTS)  # a head's size may be made of the others
    check(f"{source}: head_dim", decoder.head_dim, KINDS["head_dim"])
    return decoder
