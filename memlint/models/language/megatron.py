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

from collections.abc import Sequence
from math import ceil
from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.facts.spec import HYPER, TrainingSpec
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import record, tracked
from memlint.meta.checkpoint import checkpoint
from memlint.meta.nn import LayerNorm, Linear, Module, buffer, parameter
from memlint.meta.tensor import Shape, Tensor, bool_, component, empty, float32, int64, state
from memlint.models import UnknownModel
from memlint.models.language.attention import repeat_heads
from memlint.models.language.decoder import LanguageModel, Layer
from memlint.models.language.experts import has_experts
from memlint.models.language.megatron_functions import (
    ColumnLinear,
    Kernels,
    RowLinear,
    SkippingLinear,
    batched_product,
    bias_activation,
    bias_dropout_add,
    column_product,
    cross_entropy_in_place,
    masked_softmax,
    parallel_cross_entropy,
    passed,
    resized,
    rotated,
)
from memlint.models.language.parts import RootMeanSquare, rotate_partially

# Products make gradients of their weights in tensors of their own (--no-gradient-accumulation-fusion).
NOT_ADDED = HYPER + "no_gradient_accumulation_fusion"


# ----------------------------------------------------------------------------------------------------- the layer


def own_norm(config: Decoder, width: int, kernels: Kernels) -> Module:
    """Keeps its input, 2 S' B W bytes, and one or two fp32 numbers per token."""
    if config.norm == "layer":
        return LayerNorm(width)
    return FusedRootMeanSquare(width) if kernels.norm else RootMeanSquare(width)


class FusedRootMeanSquare(RootMeanSquare):
    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight)


def uneven_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A fused kernel for values of another width than queries and keys (cuDNN's): keeps operands, result, and an fp32
    number per row; backward makes one more per row."""
    batch, heads, length, _ = query.shape
    out = Tensor((batch, length, heads, value.shape[-1]), query.dtype)
    sums = empty(query.shape[:-1], float32)
    if tracked(query, key, value):
        kinds = [(x.shape, x.dtype) for x in (query, key, value)]
        rows = query.shape[:-1]

        def backward(g: Tensor) -> list[Tensor | None]:
            delta = Tensor(rows, float32)
            gradients: list[Tensor | None] = [Tensor(*kind) for kind in kinds]
            del delta
            return gradients

        record(out, (query, key, value), (query, key, value, out, sums), backward)
    turned: Tensor = out.transpose(1, 2)
    return turned


class CoreAttention(Module):
    """(B, h, S, d) queries, (B, kv, S, d) keys and values -> (B, S, h d).

    Written out it keeps queries and keys (4 S B W bytes), the softmax (2 h S S B), the mask of its dropout (h S S B),
    its result (2 h S S B) and the values (2 S B W); a fused kernel keeps operands, result, and a number per row.
    """

    def __init__(self, config: Decoder, kernels: Kernels) -> None:
        self.dropout, self.kernels = config.attention_dropout, kernels
        self.groups = 1 if config.latent is not None else config.heads // config.key_value_heads

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        batch, _, length, _ = query.shape
        if self.kernels.flash and value.shape[-1] != query.shape[-1]:
            context = uneven_attention(query, key, value)
        elif self.kernels.flash:
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

    def __init__(self, config: Decoder, kernels: Kernels) -> None:
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
        if self.rotates and self.kernels.flash:
            # Rotated queries and keys lie otherwise than values do, which the kernels' wrappers then copy (Transformer
            # Engine: get_qkv_layout; flash_attention of GPT-NeoX): nothing needs the joined product any more.
            value = passed(value, None, value.shape, ())
        return self.projected(query, key, value)

    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor | None]:
        if "core_attn" in self.kernels.recomputes and not self.kernels.flash:
            context = checkpoint(self.core_attention, query, key, value, use_reentrant=True)
        else:
            context = self.core_attention(query, key, value)
        return self.linear_proj(context), self.linear_proj.bias


class LatentAttention(MegatronAttention):
    """(B, S', W) -> (B, S', W): keys and values from one narrow vector per token
    (``transformer/multi_latent_attention.py``). Each head's rotated part is joined to its plain one in a copy."""

    def __init__(self, config: Decoder, kernels: Kernels) -> None:
        latent = config.latent
        assert latent is not None
        self.kernels, self.latent, self.heads = kernels, latent, config.heads
        alone = kernels._replace(ranks=1)  # narrow products are not shared: each rank has all of their weights
        queries = config.heads * (latent.plain_dim + latent.rotary_dim)
        self.linear_q_down_proj: Linear | None = None
        self.q_layernorm: Module | None = None
        if latent.query_rank:
            self.linear_q_down_proj = ColumnLinear(config.width, latent.query_rank, False, alone)
            self.q_layernorm = own_norm(config, latent.query_rank, kernels)
        self.linear_q_up_proj = ColumnLinear(latent.query_rank or config.width, queries, False, kernels)
        narrow = latent.key_value_rank + latent.rotary_dim
        self.linear_kv_down_proj = ColumnLinear(config.width, narrow, False, alone)
        self.kv_layernorm = own_norm(config, latent.key_value_rank, kernels)
        made = config.heads * (latent.plain_dim + latent.value_dim)
        self.linear_kv_up_proj = ColumnLinear(latent.key_value_rank, made, False, kernels)
        self.linear_proj = RowLinear(config.heads * latent.value_dim, config.width, False, kernels)
        self.core_attention = CoreAttention(config, kernels)

    def forward(self, x: Tensor, tables: Any) -> tuple[Tensor, Tensor | None]:
        latent = self.latent
        narrow = x if self.linear_q_down_proj is None else self.linear_q_down_proj(x)
        joined = self.linear_kv_down_proj(x)
        compressed, turning = F.split(joined, (latent.key_value_rank, latent.rotary_dim), -1)
        del joined
        if "mla_up_proj" not in self.kernels.recomputes:
            return self.projected(*self.made(narrow, compressed, turning))
        # The products upward are made again, and nothing of them stays for attention: its result is kept all the same.
        context = checkpoint(self.attended, narrow, compressed, turning, use_reentrant=True)
        return self.linear_proj(context), self.linear_proj.bias

    def attended(self, narrow: Tensor, compressed: Tensor, turning: Tensor) -> Tensor:
        out: Tensor = self.core_attention(*self.made(narrow, compressed, turning))
        return out

    def made(self, narrow: Tensor, compressed: Tensor, turning: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (B, h, S, d) each."""
        latent, ranks = self.latent, self.kernels.ranks
        query = self.linear_q_up_proj(narrow if self.q_layernorm is None else self.q_layernorm(narrow))
        batch, length, _ = query.shape
        query = query.view(batch, length, self.heads, latent.plain_dim + latent.rotary_dim)
        query = rotated(query)  # its plain part is copied along
        made = self.linear_kv_up_proj(self.kv_layernorm(compressed))
        made = made.view(batch, length, self.heads, latent.plain_dim + latent.value_dim)
        plain, value = F.split(made, (latent.plain_dim, latent.value_dim), 3)
        del made
        if ranks > 1:
            turning = moved(turning, resized(turning.shape, ranks))
        key = passed(plain, None, query.shape, ())  # the same rotated part beside each head's plain one
        del turning
        if self.kernels.flash:
            value = passed(value, None, value.shape, ())  # as above: keys lie otherwise than values do
        return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)


class MegatronPerceptron(Module):
    """Keeps its input (2 S' B W bytes), that of the activation (8 S B W) and its result (8 S B W)."""

    def __init__(self, config: Decoder, kernels: Kernels) -> None:
        self.kernels = kernels
        self.gated = config.perceptron in ("gated", "gated_joined")
        made = 2 * config.intermediate if self.gated else config.intermediate
        self.squared = config.activation == "squared_relu"
        self.linear_fc1 = SkippingLinear(config.width, made, config.perceptron_bias, kernels)
        self.linear_fc2 = RowLinear(config.intermediate, config.width, config.perceptron_bias, kernels)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        x = self.linear_fc1(x)
        if self.kernels.gate and not self.squared:
            x = bias_activation(x, self.linear_fc1.bias, self.gated)
        else:
            if self.linear_fc1.bias is not None:
                x = x + self.linear_fc1.bias
            x = self.in_steps(x)
        return self.linear_fc2(x), self.linear_fc2.bias

    def in_steps(self, x: Tensor) -> Tensor:
        if self.squared:  # activations.py, jit_fuser: compiled, so one kernel that keeps what it is given
            return passed(x, None, x.shape, (x,))
        if not self.gated:
            return F.gelu(x)
        gate, up = F.chunk(x, 2, -1)
        return F.silu(gate) * up


class RoutedExperts(Module):
    """(rows, W), and a weight for each, in the order of their experts -> (rows, W)."""

    dispatches = True  # its weights are on fewer ranks than the others (memlint.models.parallel)

    def __init__(self, config: Decoder, kernels: Kernels) -> None:
        experts = config.experts
        assert experts is not None
        self.kernels, self.gated = kernels, config.perceptron in ("gated", "gated_joined")
        made = (2 if self.gated else 1) * experts.intermediate
        self.weight1 = parameter(experts.number, made, config.width)
        self.weight2 = parameter(experts.number, config.width, experts.intermediate)
        shapes = self.weight1.shape, self.weight2.shape
        self.copies1, self.copies2 = (kernels.copies(*shape) for shape in shapes)

    def forward(self, given: Tensor, weights: Tensor) -> Tensor:
        made = grouped_product(given, self.weight1, self.kernels)
        inner = made.shape[-1] // 2 if self.gated else made.shape[-1]
        again = "moe_act" in self.kernels.recomputes
        made = passed(made, weights, (made.shape[0], inner), (made, weights))
        return grouped_product(made, self.weight2, self.kernels, again)


class MegatronExperts(Module):
    """A mixture of experts: (B, S', W) -> (B, S', W), and no bias.

    Tokens are sorted by their experts, sent to the ranks of those, and sorted there; with balanced routing as many
    come as go. What is kept are T k rows of the experts' inputs (2 W bytes each), of the first product (4 I) and of
    the activation (2 I), T tokens' inputs of the router and their scores in fp32; where rows come from and go to
    without the rows themselves (``transformer/moe/{router,token_dispatcher,experts}.py``). A score weighs the
    activation, not the result.
    """

    def __init__(self, config: Decoder, kernels: Kernels) -> None:
        experts = config.experts
        assert experts is not None
        self.kernels, self.own, self.per_token = kernels, experts.number, experts.per_token
        self.number = experts.number * kernels.experts
        self.router = parameter(self.number, config.width)
        self.routed_experts = RoutedExperts(config, kernels)
        shared = config._replace(intermediate=experts.shared, perceptron_bias=False)
        self.shared = MegatronPerceptron(shared, kernels) if experts.shared else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        batch, length, width = x.shape
        flat = x.view(-1, width)
        scores = F.softmax(to(self.routed(flat), float32), -1)
        weights, numbers = F.topk(scores, self.per_token)
        place = empty(scores.shape, bool_)
        rows, each, sent = flat.shape[0] * self.per_token, self.kernels.each, self.kernels.experts > 1
        if self.kernels.capacity:
            weights = self.limited(weights)
            rows = self.number * self.capacity(flat.shape[0]) if self.kernels.fills else rows
        index = empty((rows,), int64)
        given = moved(flat, (rows, width), index)
        if sent:
            given = moved(given, given.shape)
        if each > 1:
            given = moved(given, (rows * each, width))
        if sent and self.own > 1:
            given = moved(given, given.shape)
        out = self.routed_experts(given, weights)
        del given
        if sent and self.own > 1:
            out = moved(out, out.shape)
        if each > 1:
            out = moved(out, (rows, width))
        if sent:
            out = moved(out, out.shape)
        out = moved(out, flat.shape, index)
        del place, numbers, scores
        out = out.view(batch, length, width)
        return (out if self.shared is None else out + self.common(x)), None

    def capacity(self, tokens: int) -> int:
        """Rows of an expert at most (``get_capacity``)."""
        return ceil(tokens * self.per_token / self.number * self.kernels.capacity)

    def limited(self, weights: Tensor) -> Tensor:
        """(T, k) -> the same without what is dropped, of a table of all experts: keeps a mask of it
        (``apply_router_token_dropping``)."""
        tokens = weights.shape[0]
        most, table = self.capacity(tokens), (tokens, self.number)
        if most <= tokens:
            likeliest, places = empty((most, self.number), float32), empty((most, self.number), int64)
            del likeliest
            zeros, chosen = empty(table, float32), empty(table, float32)
            del zeros, places
        else:
            chosen = empty(table, float32)
        within = empty(table, bool_)
        del chosen
        left = empty(table, bool_)
        del within
        whole = empty(table, float32)
        out = passed(weights, None, weights.shape, (left,))
        del whole
        return out

    def routed(self, flat: Tensor) -> Tensor:
        """(T, W) -> (T, experts). Keeps its input, unless that is the result of a norm that backward makes again."""
        again = "layernorm" in self.kernels.recomputes and self.shared is None
        weight, own, dtype = self.router, flat.shape, flat.dtype
        out = Tensor((own[0], self.number), dtype)
        if tracked(flat, weight):

            def backward(g: Tensor) -> list[Tensor | None]:
                made = Tensor(own, dtype) if again else None
                gradients: list[Tensor | None] = [Tensor(own, dtype), Tensor(weight.shape, dtype)]
                del made
                return gradients

            record(out, (flat, weight), (None if again else flat, weight), backward)
        return out

    def common(self, x: Tensor) -> Tensor:
        shared = self.shared
        assert shared is not None
        if "shared_experts" in self.kernels.recomputes:
            out: Tensor = checkpoint(lambda given: shared(given)[0], x, use_reentrant=True)
            return out
        fed: Tensor = shared(x)[0]
        return fed


def moved(x: Tensor, shape: Shape, *kept: Tensor) -> Tensor:
    """Rows in another order, or on other ranks; backward moves gradients back."""
    out = Tensor(shape, x.dtype)
    if tracked(x):
        own, dtype = x.shape, x.dtype
        record(out, (x,), kept, lambda g: (Tensor(own, dtype),))
    return out


def grouped_product(x: Tensor, weight: Tensor, kernels: Kernels, again: bool = False) -> Tensor:
    """(rows, inputs), (experts, outputs, inputs) -> (rows, outputs). Keeps x, unless backward makes it ``again``."""
    out = Tensor((x.shape[0], weight.shape[1]), x.dtype)
    if tracked(x, weight):
        own, dtype, entries = x.shape, x.dtype, weight.shape

        def backward(g: Tensor) -> list[Tensor | None]:
            made = Tensor(own, dtype) if again else None
            gradients: list[Tensor | None] = [Tensor(own, dtype), kernels.weight_gradient(entries, dtype)]
            del made
            return gradients

        record(out, (x, weight), (None if again else kernels.kept(x), weight), backward)
    return out


class MegatronLayer(Layer):
    """(B, S', W) -> (B, S', W)."""

    def __init__(self, config: Decoder, kernels: Kernels, number: int = 0) -> None:
        self.kernels, self.dropout = kernels, config.residual_dropout
        self.parallel = config.residual in ("parallel", "parallel_two")
        self.input_layernorm = own_norm(config, config.width, kernels)
        self.self_attn = (LatentAttention if config.latent is not None else MegatronAttention)(config, kernels)
        self.pre_mlp_layernorm = own_norm(config, config.width, kernels)
        self.mixed = has_experts(config, number)
        self.mlp = MegatronExperts(config, kernels) if self.mixed else MegatronPerceptron(config, kernels)
        self.recomputes_mlp = ("moe" if self.mixed else "mlp") in kernels.recomputes

    def forward(self, x: Tensor, tables: Any, mask: Tensor | None) -> Tensor:
        residual = x
        normed = self.input_layernorm(x)
        attended, bias = self.self_attn(normed, tables)
        if self.parallel:
            attended = self.added(attended, bias, None)
            fed, bias = self.fed(self.pre_mlp_layernorm(x))
            return residual + (self.added(fed, bias, None) + attended)
        x = self.added(attended, bias, residual)
        residual = x
        normed = self.pre_mlp_layernorm(x)
        fed, bias = self.fed(normed)
        return self.added(fed, bias, residual)

    def fed(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        if not self.recomputes_mlp:
            out: tuple[Tensor, Tensor | None] = self.mlp(x)
            return out
        made: Tensor = checkpoint(lambda given: self.mlp(given)[0], x, use_reentrant=True)
        return made, getattr(getattr(self.mlp, "linear_fc2", None), "bias", None)

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

    def __init__(
        self, config: Decoder, kernels: Kernels, first: int | None = None, chunk: int = 1, **options: Any
    ) -> None:
        self.kernels, self.first, self.chunk = kernels, first, chunk
        self.head_kernels = kernels._replace(float8=False)  # the head is none of Transformer Engine's modules
        super().__init__(config, "flash" if kernels.flash else "eager", **options)
        if self.rotary_emb is not None and kernels.rotary:
            self.rotary_emb = None
            self.frequencies = buffer(config.rotary_dim // 2)
        # BLOOM's: a norm of its own, and biases by distance that the product of queries and keys starts from.
        self.embedding_norm = own_norm(config, config.width, kernels) if config.embedding_norm else None
        if self.lm_head is not None:
            self.lm_head = ColumnLinear(config.width, config.vocabulary, config.head_bias, self.head_kernels)

    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return MegatronLayer(config, self.kernels, number)

    def define_norm(self, config: Decoder) -> Module:
        return own_norm(config, config.width, self.kernels)

    def hidden(self, given: Tensor) -> Tensor:
        """-> (B, S', W), the last norm included."""
        config, ranks = self.config, self.kernels.ranks
        x, seen = self.look(given) if given.ndim == 2 else (given, None)
        length = given.shape[1] if given.ndim == 2 else given.shape[1] * ranks
        positions = empty((x.shape[0], length), int64)
        if given.ndim == 2:
            if self.embed_positions is not None:
                x = x + self.embed_positions(positions)
            if self.image_batch is not None and x.shape[0] > 1:
                x = F.clone(x)  # tokens come first from here on (mm_gpt_model.py)
            if ranks > 1:
                x = scattered(x, ranks)
            if self.embedding_norm is not None:
                x = self.embedding_norm(x)
            x = F.dropout(x, config.embedding_dropout, self.training)
        if state.grad_enabled and not x.requires_grad:
            x.requires_grad_()  # of a frozen embedding (mcore_bridge, model/gpt_model.py)
        biases = empty((x.shape[0] * config.heads, 1, length), x.dtype) if config.alibi else None
        tables: Any = None
        if self.rotary_emb is not None:
            tables = self.rotary_emb(positions[:1], x.dtype)
        elif config.rotary != "none":
            tables = (empty((1, length, config.rotary_dim), float32),) * 2
        for number in range(0, len(self.layers), self.chunk):
            recomputed = self.checkpointed > 0 and (self.first is None or number < self.first)
            if self.chunk == 1:
                x = self.through(self.layers[number], recomputed, x, tables, None)
                if seen is not None and number < len(seen.deep):
                    from memlint.models.language import megatron_sight  # models that see do so alone

                    x = megatron_sight.added(x, seen.deep[number], ranks)
            else:
                several = self.layers[number : number + self.chunk]
                x = checkpoint(_Several(several), x, tables, None, use_reentrant=True)
        del biases
        out: Tensor = self.norm(x)
        return out

    def logits(self, x: Tensor) -> Tensor:
        if self.lm_head is None:
            return column_product(x, self.embed_tokens.weight, None, self.head_kernels)
        out: Tensor = self.lm_head(x)
        return out

    def token_losses(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """(B, S), (B, S) -> (B, S), in fp32."""
        x = self.hidden(tokens)
        with component("logits"):
            return self.losses_of(x, labels)

    def losses_of(self, x: Tensor, labels: Tensor) -> Tensor:
        logits = self.logits(x)
        del x
        if self.kernels.loss_in_place:
            return cross_entropy_in_place(logits, labels)
        return parallel_cross_entropy(logits, labels, self.kernels.loss_compiled)

    def cross_entropy(self, x: Tensor, labels: Tensor) -> Tensor:
        found = self.losses_of(x, labels)
        mask = empty(found.shape, float32)
        return F.sum(found * mask) / 1.0


class _Several:
    """Layers that are recomputed together."""

    def __init__(self, layers: Sequence[Module]) -> None:
        self.layers = layers

    def __call__(self, x: Tensor, tables: Any, mask: Tensor | None) -> Tensor:
        for layer in self.layers:
            x = layer(x, tables, mask)
        return x


def scattered(x: Tensor, ranks: int) -> Tensor:
    """Every rank keeps its share of the tokens."""
    shape, dtype = x.shape, x.dtype
    out = Tensor((shape[0], shape[1] // ranks, *shape[2:]), dtype)
    if tracked(x):
        record(out, (x,), (), lambda g: (Tensor(shape, dtype),))
    return out


# -------------------------------------------------------------------------------------------------- what is known


def refused(config: Decoder) -> str:
    """What about a decoder is not known here, or ""."""
    if config.experts is not None and (
        config.experts.shared_gate
        or config.experts.router in ("all", "chosen", "granite", "lfm2", "minimax", "sampled")
    ):
        return f"experts that are chosen as {config.experts.router!r}"
    if config.norm not in ("layer", "rms"):
        return f"norms {config.norm!r}"
    if config.residual not in ("pre", "parallel_two") or config.windows or config.scaled_query or config.hybrid:
        return f"layers with residuals {config.residual!r}, windows or states"
    if config.query_norm == "head_rotated" or config.rotary == "interleaved_tables":
        return f"norms of queries {config.query_norm!r} and rotation {config.rotary!r}"
    return ""


def model(spec: TrainingSpec, config: Decoder, _: str, options: dict[str, Any]) -> LanguageModel | None:
    """The decoder as ``implementation`` = megatron or neox computes it; None where :func:`refused` says why not. Raises
    UnknownModel for a loss that it does not have."""
    if refused(config):
        return None
    older = spec.get("implementation") == "neox"
    kind = spec.get("checkpointing")
    selective = kind == "selective"
    parts = spec.get("checkpointing_modules") or ("core_attn",)
    flash = spec.get("attention", "flash") != "eager"
    tensor = int(spec.get("parallelism.tensor") or 1)
    ranks = tensor if spec.get("parallelism.sequence", False) else 1
    adds = not older and spec.get("optimizer_library") == "megatron" and not spec.get(NOT_ADDED, False)
    fused = spec.get("fused_kernels") or ()
    kernels = Kernels(
        norm="rms_norm" in fused,
        gate="swiglu" in fused,
        rotary="rotary" in fused,
        softmax="softmax" in fused if older else not spec.get(HYPER + "no_softmax_fusion", False),
        dropout="dropout" in fused if older else not spec.get(HYPER + "no_dropout_fusion", False),
        flash=flash,
        recomputes=frozenset(parts if selective else ()),
        ranks=ranks,
        adds=bool(adds),
        experts=int(spec.get("parallelism.expert") or 1),
        each=int(spec.get("parallelism.expert_tensor") or 1) if config.experts is not None else 1,
        float8=bool(spec.get("float8", False)),
        weights8=spec.get("float8_weights", False),
        loss_in_place="cross_entropy_in_place" in fused,
        loss_compiled="cross_entropy" in fused,
        capacity=float(spec.get(HYPER + "moe_expert_capacity_factor") or 0),
        fills=bool(spec.get(HYPER + "moe_pad_expert_input_to_capacity", False)),
    )
    first = spec.get("checkpointing_layers") if kind == "blocks" else None
    chunk = int(spec.get("checkpointing_chunk") or 1) if kind == "full" else 1
    options = {
        **options,
        "policy": None,
        "reentrant": True,
        "checkpointed": 0 if selective else options["checkpointed"],
    }
    if options["loss"] != "full":
        raise UnknownModel(f"the loss {options['loss']!r} is not known in Megatron's code")
    return MegatronModel(config, kernels, first, chunk, **options)
