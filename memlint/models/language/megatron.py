"""Decoders as Megatron-LM computes them: its transformer layer, operation by operation.

Shapes: B rows, S tokens, S' those of this rank, W hidden width, h heads of d. A layer keeps for its backward pass what
arXiv 2205.05198 (Korthikanti et al., section 4) adds up to ``S B W (34 + 5 h S / W)`` bytes in 16 bits: each operation
here says which of those it keeps. With ranks that share a layer's tokens, only their own share is kept, and gathered
again.

Sources: Megatron-LM core 0.16 (``transformer/{transformer_layer,attention,mlp,dot_product_attention}.py``,
``tensor_parallel/{layers,cross_entropy,random}.py``, ``fusions/``); GPT-NeoX 2.0 (``megatron/model/``), whose layer is
that of an older Megatron-LM.
"""

from __future__ import annotations

from typing import Any

from memlint.dialects.spec import TrainingSpec
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import record, tracked
from memlint.meta.checkpoint import checkpoint
from memlint.meta.nn import LayerNorm, Linear, Module, buffer
from memlint.meta.tensor import DType, Shape, Tensor, bool_, empty, empty_like, float32, int64, state
from memlint.models import UnknownModel
from memlint.models.language.attention import repeat_heads
from memlint.models.language.decoder import LanguageModel, Layer
from memlint.models.language.hyperparameters import Hyperparameters
from memlint.models.language.parts import RootMeanSquare, rotate_partially
from memlint.named_tuple import NamedTuple


class Kernels(NamedTuple):
    """What is one kernel, and what is done in steps.

    norm, gate, rotary, softmax, dropout   one kernel each: RMSNorm; bias and activation; rotations; scale, mask and
             softmax; bias, dropout and sum
    flash    attention is one, too
    recomputes_scores   selective recomputation: scores are made again in backward (arXiv 2205.05198, section 5)
    ranks    that share the tokens between layers (sequence parallelism)
    adds     products add gradients of their weights to the buffer of all of them (gradient accumulation fusion)
    """

    norm: bool
    gate: bool
    rotary: bool
    softmax: bool
    dropout: bool
    flash: bool
    recomputes_scores: bool
    ranks: int
    adds: bool

    def weight_gradient(self, shape: Shape, dtype: DType) -> Tensor:
        """Of a product's weight: a tensor of its own, or a place in the buffer."""
        return Tensor(shape, dtype, state.bucket if self.adds else None)


# ------------------------------------------------------------------------------------------------------- products


def _resized(shape: Shape, times: int) -> Shape:
    return (shape[0], shape[1] * times, *shape[2:])


def column_product(x: Tensor, weight: Tensor, bias: Tensor | None, kernels: Kernels) -> Tensor:
    """(B, S', W) -> (B, S, outputs): the weight's rows are shared, and tokens are gathered for the product.

    Keeps x: 2 S' B W bytes. Backward gathers it again beside the gradient (``LinearWithGradAccumulation...``).
    """
    ranks = kernels.ranks
    wide = _resized(x.shape, ranks)
    everything = empty(wide, x.dtype) if ranks > 1 else None
    out = Tensor((*wide[:-1], weight.shape[0]), x.dtype)
    del everything
    if tracked(x, weight, bias):
        own, dtype, entries = x.shape, x.dtype, weight.shape
        needs = x.requires_grad, weight.requires_grad, bias is not None and bias.requires_grad
        biases = None if bias is None else bias.shape

        def backward(g: Tensor) -> list[Tensor | None]:
            everything = Tensor(wide, dtype) if ranks > 1 and needs[1] else None
            gx = Tensor(wide, dtype) if needs[0] else None
            if ranks > 1 and gx is not None:
                gx = Tensor(own, dtype)
            gw = kernels.weight_gradient(entries, dtype) if needs[1] else None
            del everything
            return [gx, gw, Tensor(biases, dtype) if needs[2] and biases is not None else None]

        record(out, (x, weight, bias), (x if needs[1] else None, weight if needs[0] else None), backward)
    return out


def row_product(x: Tensor, weight: Tensor, kernels: Kernels) -> Tensor:
    """(B, S, inputs) -> (B, S', W): partial sums are reduced, and scattered over the tokens. Keeps x."""
    whole = Tensor((*x.shape[:-1], weight.shape[0]), x.dtype)
    out, ranks = whole, kernels.ranks
    if ranks > 1:
        out = Tensor((whole.shape[0], whole.shape[1] // ranks, whole.shape[2]), x.dtype)
    wide = whole.shape
    del whole
    if tracked(x, weight):
        own, dtype, entries = x.shape, x.dtype, weight.shape
        needs = x.requires_grad, weight.requires_grad

        def backward(g: Tensor) -> list[Tensor | None]:
            everything = Tensor(wide, dtype) if ranks > 1 else None
            gx = Tensor(own, dtype) if needs[0] else None
            gw = kernels.weight_gradient(entries, dtype) if needs[1] else None
            del everything
            return [gx, gw]

        record(out, (x, weight), (x if needs[1] else None, weight if needs[0] else None), backward)
    return out


def batched_product(x: Tensor, y: Tensor) -> Tensor:
    """(B, h, n, k) @ (B, h, k, m). Tokens come first in Megatron's tensors, so none has to be copied for it."""
    out = Tensor((*x.shape[:-1], y.shape[-1]), x.dtype)
    if tracked(x, y):
        a, b, dtype = x.shape, y.shape, x.dtype
        record(out, (x, y), (x, y), lambda g: (Tensor(a, dtype), Tensor(b, dtype)))
    return out


class ColumnLinear(Linear):
    def __init__(self, inputs: int, outputs: int, bias: bool, kernels: Kernels) -> None:
        super().__init__(inputs, outputs, bias)
        self.kernels = kernels

    def forward(self, x: Tensor) -> Tensor:
        return column_product(x, self.weight, self.bias, self.kernels)


class SkippingLinear(ColumnLinear):
    """Its bias is added by what follows (``skip_bias_add``)."""

    def forward(self, x: Tensor) -> Tensor:
        return column_product(x, self.weight, None, self.kernels)


class RowLinear(ColumnLinear):
    def forward(self, x: Tensor) -> Tensor:
        return row_product(x, self.weight, self.kernels)


# ------------------------------------------------------------------------------------------------- fused functions


def _pass(x: Tensor, bias: Tensor | None, shape: Shape, kept: tuple[Tensor, ...]) -> Tensor:
    """One kernel forward, and one backward that gives gradients of x and of a bias."""
    out = Tensor(shape, x.dtype)
    if tracked(x, bias):
        own, dtype = x.shape, x.dtype
        biases = None if bias is None or not bias.requires_grad else (bias.shape, bias.dtype)

        def backward(g: Tensor) -> list[Tensor | None]:
            gx = Tensor(own, dtype)
            return [gx, None if biases is None else Tensor(*biases)]

        record(out, (x, bias), kept, backward)
    return out


def bias_activation(x: Tensor, bias: Tensor | None, gated: bool) -> Tensor:
    """``bias_gelu_impl``, ``bias_swiglu_impl``: keeps what it is given, from which backward computes again what else
    it needs. 8 S B W bytes for a width of 4 W."""
    inner = x.shape[-1] // 2 if gated else x.shape[-1]
    kept = (x,) if bias is None else (x, bias)
    return _pass(x, bias, (*x.shape[:-1], inner), kept)


def bias_dropout_add(x: Tensor, bias: Tensor | None, residual: Tensor, probability: float) -> Tensor:
    """``bias_dropout_add_fused_train``: keeps the dropout's mask alone, S B W bytes."""
    mask = empty(x.shape, bool_) if probability else None
    out = Tensor(residual.shape, residual.dtype)
    if tracked(x, bias, residual):
        own, dtype = x.shape, x.dtype
        biases = None if bias is None or not bias.requires_grad else (bias.shape, bias.dtype)

        def backward(g: Tensor) -> list[Tensor | None]:
            gx = Tensor(own, dtype) if probability else g
            return [gx, None if biases is None else Tensor(*biases), g]

        record(out, (x, bias, residual), (mask,), backward)
    return out


def masked_softmax(x: Tensor) -> Tensor:
    """``scaled_upper_triang_masked_softmax``: keeps its result, 2 h S S B bytes; backward writes over the gradient."""
    out = empty_like(x)
    if tracked(x):
        record(out, (x,), (out,), lambda g: (g,))
    return out


def rotated(x: Tensor) -> Tensor:
    """``apply_rotary_pos_emb`` in one kernel: keeps nothing but the table."""
    return _pass(x, None, x.shape, ())


def parallel_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """``vocab_parallel_cross_entropy``: logits (B, S, V / t) are copied to fp32 and turned into their softmax in place,
    which is kept, 4 S B V / t bytes; backward makes the gradient in that same memory, then rounds it."""
    batch, length, _ = logits.shape
    wide = empty(logits.shape, float32) if logits.dtype is not float32 else logits
    tokens = batch * length
    most = empty((batch, length), float32)
    beyond, places = empty((batch, length), bool_), empty((tokens,), int64)
    predicted, sums = empty((batch, length), float32), empty((batch, length), float32)
    out = empty((batch, length), float32)
    if tracked(logits):
        shape, dtype = logits.shape, logits.dtype
        cell: list[Any] = []

        def backward(g: Tensor) -> list[Tensor | None]:
            kept = Tensor(shape, float32, cell.pop().saved[0])
            return [kept if dtype is float32 else Tensor(shape, dtype)]

        record(out, (logits,), (wide, beyond, places), backward)
        cell.append(out.node)
    del most, predicted, sums
    return out


# ----------------------------------------------------------------------------------------------------- the layer


def own_norm(config: Hyperparameters, width: int, kernels: Kernels) -> Module:
    """Keeps its input, 2 S' B W bytes, and one or two fp32 numbers per token."""
    if config.norm == "layer":
        return LayerNorm(width)
    return FusedRootMeanSquare(width) if kernels.norm else RootMeanSquare(width)


class FusedRootMeanSquare(RootMeanSquare):
    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight)


class CoreAttention(Module):
    """(B, h, S, d) queries, (B, kv, S, d) keys and values -> (B, S, h d).

    Written out it keeps queries and keys (4 S B W bytes), the softmax (2 h S S B), the mask of its dropout (h S S B),
    its result (2 h S S B) and the values (2 S B W); a fused kernel keeps operands, result, and a number per row.
    """

    def __init__(self, config: Hyperparameters, kernels: Kernels) -> None:
        self.dropout, self.kernels = config.attention_dropout, kernels
        self.groups = config.heads // config.key_value_heads

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        batch, _, length, _ = query.shape
        if self.kernels.flash:
            context = F.scaled_dot_product_attention(query, key, value, backend="flash", dropout=self.dropout)
        else:
            key, value = repeat_heads(key, self.groups), repeat_heads(value, self.groups)
            context = self.by_scores(query, key, value)
        out: Tensor = context.transpose(1, 2).contiguous().view(batch, length, -1)
        return out

    def by_scores(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = batched_product(query, key.transpose(2, 3))
        if self.kernels.softmax:
            weights = masked_softmax(scores)
        else:
            weights = to(F.softmax(scores, -1, float32), query.dtype)
        weights = F.dropout(weights, self.dropout, self.training)
        context = batched_product(weights, value)
        del scores
        return context


class MegatronAttention(Module):
    """(B, S', W) -> (B, S', W), and the bias that is yet to be added."""

    def __init__(self, config: Hyperparameters, kernels: Kernels) -> None:
        self.kernels, self.head_dim = kernels, config.head_dim
        self.heads, self.groups = config.heads, config.key_value_heads
        self.rotates, self.rotary_dim = config.rotary != "none", config.rotary_dim
        made = (config.heads + 2 * config.key_value_heads) * config.head_dim
        self.linear_proj = RowLinear(config.heads * config.head_dim, config.width, config.output_bias, kernels)
        self.linear_qkv = ColumnLinear(config.width, made, config.qkv_bias, kernels)
        normed = config.query_norm != "none"
        self.q_layernorm = own_norm(config, config.head_dim, kernels) if normed else None
        self.k_layernorm = own_norm(config, config.head_dim, kernels) if normed else None
        self.core_attention = CoreAttention(config, kernels)

    def forward(self, x: Tensor, tables: Any) -> tuple[Tensor, Tensor | None]:
        mixed = self.linear_qkv(x)
        batch, length, _ = mixed.shape
        each = self.heads // self.groups
        mixed = mixed.view(batch, length, self.groups, -1)
        query, key, value = F.split(mixed, (each * self.head_dim, self.head_dim, self.head_dim), 3)
        query = query.reshape(batch, length, -1, self.head_dim)
        del mixed
        if self.q_layernorm is not None and self.k_layernorm is not None:
            query, key = self.q_layernorm(query), self.k_layernorm(key)
        if self.rotates and self.kernels.rotary:
            query, key = rotated(query), rotated(key)
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        if self.rotates and not self.kernels.rotary:
            query, key = rotate_partially(query, key, tables)
        if self.kernels.recomputes_scores and not self.kernels.flash:
            context = checkpoint(self.core_attention, query, key, value, use_reentrant=True)
        else:
            context = self.core_attention(query, key, value)
        return self.linear_proj(context), self.linear_proj.bias


class MegatronPerceptron(Module):
    """Keeps its input (2 S' B W bytes), that of the activation (8 S B W) and its result (8 S B W)."""

    def __init__(self, config: Hyperparameters, kernels: Kernels) -> None:
        self.kernels = kernels
        self.gated = config.perceptron in ("gated", "gated_joined")
        made = 2 * config.intermediate if self.gated else config.intermediate
        self.linear_fc1 = SkippingLinear(config.width, made, config.perceptron_bias, kernels)
        self.linear_fc2 = RowLinear(config.intermediate, config.width, config.perceptron_bias, kernels)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        x = self.linear_fc1(x)
        if self.kernels.gate:
            x = bias_activation(x, self.linear_fc1.bias, self.gated)
        else:
            if self.linear_fc1.bias is not None:
                x = x + self.linear_fc1.bias
            x = self.in_steps(x)
        return self.linear_fc2(x), self.linear_fc2.bias

    def in_steps(self, x: Tensor) -> Tensor:
        if not self.gated:
            return F.gelu(x)
        gate, up = F.chunk(x, 2, -1)
        return F.silu(gate) * up


class MegatronLayer(Layer):
    """(B, S', W) -> (B, S', W)."""

    def __init__(self, config: Hyperparameters, kernels: Kernels) -> None:
        self.kernels, self.dropout = kernels, config.residual_dropout
        self.parallel = config.residual in ("parallel", "parallel_two")
        self.input_layernorm = own_norm(config, config.width, kernels)
        self.self_attn = MegatronAttention(config, kernels)
        self.pre_mlp_layernorm = own_norm(config, config.width, kernels)
        self.mlp = MegatronPerceptron(config, kernels)

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Tensor:
        residual = x
        normed = self.input_layernorm(x)
        attended, bias = self.self_attn(normed, tables)
        if self.parallel:
            attended = self.added(attended, bias, None)
            fed, bias = self.mlp(self.pre_mlp_layernorm(x))
            return residual + (self.added(fed, bias, None) + attended)
        x = self.added(attended, bias, residual)
        residual = x
        normed = self.pre_mlp_layernorm(x)
        fed, bias = self.mlp(normed)
        return self.added(fed, bias, residual)

    def added(self, x: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:  # type: ignore[override]
        dropout = self.dropout if self.training else 0.0
        if self.kernels.dropout and residual is not None:
            return bias_dropout_add(x, bias, residual, dropout)
        if bias is not None:
            x = x + bias
        x = F.dropout(x, dropout)
        return x if residual is None else residual + x


class MegatronModel(LanguageModel):
    """Token numbers (B, S) and labels (B, S) -> mean cross entropy of the next token."""

    splits_tokens = True  # it gathers and scatters by itself (memlint.models.split)

    def __init__(self, config: Hyperparameters, kernels: Kernels, **options: Any) -> None:
        self.kernels = kernels
        super().__init__(config, "flash" if kernels.flash else "eager", **options)
        if self.rotary_emb is not None and kernels.rotary:
            self.rotary_emb = None
            self.frequencies = buffer(config.rotary_dim // 2)
        # BLOOM's: a norm of its own, and biases by distance that the product of queries and keys starts from.
        self.embedding_norm = own_norm(config, config.width, kernels) if config.alibi else None
        if self.lm_head is not None:
            self.lm_head = ColumnLinear(config.width, config.vocabulary, config.head_bias, kernels)

    def define_layer(self, config: Hyperparameters, kind: str, number: int) -> Layer:
        return MegatronLayer(config, self.kernels)

    def define_norm(self, config: Hyperparameters) -> Module:
        return own_norm(config, config.width, self.kernels)

    def hidden(self, given: Tensor) -> Tensor:
        """-> (B, S', W), the last norm included."""
        config, ranks = self.config, self.kernels.ranks
        x = self.embed(given) if given.ndim == 2 else given
        length = given.shape[1] if given.ndim == 2 else given.shape[1] * ranks
        positions = empty((x.shape[0], length), int64)
        if given.ndim == 2:
            if self.embed_positions is not None:
                x = x + self.embed_positions(positions)
            if ranks > 1:
                x = scattered(x, ranks)
            if self.embedding_norm is not None:
                x = self.embedding_norm(x)
            x = F.dropout(x, config.embedding_dropout, self.training)
        biases = empty((x.shape[0] * config.heads, 1, length), x.dtype) if config.alibi else None
        tables: Any = None
        if self.rotary_emb is not None:
            tables = self.rotary_emb(positions[:1], x.dtype)
        elif config.rotary != "none":
            tables = (empty((1, length, config.rotary_dim), float32),) * 2
        for number, layer in enumerate(self.layers):
            recomputed = self.checkpointed > 0 and number % self.checkpointed == 0
            x = self.through(layer, recomputed, x, tables, None)
        del biases
        out: Tensor = self.norm(x)
        return out

    def logits(self, x: Tensor) -> Tensor:
        if self.lm_head is None:
            return column_product(x, self.embed_tokens.weight, None, self.kernels)
        out: Tensor = self.lm_head(x)
        return out

    def cross_entropy(self, x: Tensor, labels: Tensor) -> Tensor:
        logits = self.logits(x)
        found = parallel_cross_entropy(logits, labels)
        mask = empty(found.shape, float32)
        return F.sum(found * mask) / 1.0


def scattered(x: Tensor, ranks: int) -> Tensor:
    """Every rank keeps its share of the tokens."""
    shape, dtype = x.shape, x.dtype
    out = Tensor((shape[0], shape[1] // ranks, *shape[2:]), dtype)
    if tracked(x):
        record(out, (x,), (), lambda g: (Tensor(shape, dtype),))
    return out


# -------------------------------------------------------------------------------------------------- what is known


def refused(config: Hyperparameters) -> str:
    """What about a decoder is not known here, or ""."""
    if config.experts is not None:
        return "experts"
    if config.norm not in ("layer", "rms"):
        return f"norms of {config.model_type}"
    if config.residual not in ("pre", "parallel_two") or config.windows or config.latent is not None:
        return f"layers of {config.model_type}"
    if config.alibi and config.model_type != "bloom":
        return "ALiBi"
    return ""


def model(spec: TrainingSpec, config: Hyperparameters, options: dict[str, Any]) -> LanguageModel:
    """The decoder as ``implementation`` = megatron or neox computes it, where :func:`refused` says nothing. Raises
    UnknownModel for a loss that it does not have."""
    older = spec.get("implementation") == "neox"
    selective = spec.get("checkpointing") == "selective"
    flash = spec.get("attention", "flash") != "eager"
    tensor = int(spec.get("parallelism.tensor") or 1)
    ranks = tensor if spec.get("parallelism.sequence", False) else 1
    adds = not older and spec.get("optimizer_library") == "megatron" and spec.get("gradient_dtype") == "float32"
    fused = spec.get("fused_kernels") or ()
    kernels = Kernels(
        norm="rms_norm" in fused,
        gate="swiglu" in fused,
        rotary="rotary" in fused,
        softmax=not older or "softmax" in fused,
        dropout=not older or "dropout" in fused,
        flash=flash,
        recomputes_scores=selective,
        ranks=ranks,
        adds=bool(adds),
    )
    options = {
        **options,
        "policy": None,
        "reentrant": True,
        "checkpointed": 0 if selective else options["checkpointed"],
    }
    if options["loss"] != "full":
        raise UnknownModel(f"the loss {options['loss']!r} is not known in Megatron's code")
    return MegatronModel(config, kernels, **options)
