"""Decoders as nanotron computes them: its Llama and its Qwen2, operation by operation.

Shapes: B rows, S tokens, S' those of this rank, W hidden width, h heads of d. Names live as they do there: the joined
product of queries, keys and values, and what is cut out of it, until attention is through.

Source: nanotron at 2411b02 of 2026-04 (``models/{llama,qwen}.py``, ``parallel/tensor_parallel/{functional,nn}.py``,
``nn/rotary.py``), and flash-attn 2.8, whose kernels it calls (``layers/rotary.py``, ``ops/triton/layer_norm.py``).
"""

from __future__ import annotations

from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.facts.spec import HYPER, TrainingSpec
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import record, tracked
from memlint.meta.nn import Linear, Module, buffer
from memlint.meta.tape import Label
from memlint.meta.tensor import DType, Storage, Tensor, bool_, component, empty, float32, int64, state
from memlint.models import UnknownModel
from memlint.models.language.decoder import LanguageModel, Layer
from memlint.models.language.parts import RootMeanSquare
from memlint.named_tuple import NamedTuple

QWEN = "nanotron qwen2"  # `implementation` of the second one
ASYNCHRONOUS, GATHERS_AGAIN = HYPER + "tp_linear_async_communication", HYPER + "tp_recompute_allgather"
Z_LOSS, PLAIN_NORMS = HYPER + "z_loss_enabled", HYPER + "unfused_norms"
TABLE_ROWS = HYPER + "rotary_table_rows"


class Room:
    """``MemoryBuffer``: memory for what is gathered, one piece by each name, which stays and grows when it is small."""

    def __init__(self) -> None:
        self.pieces: dict[str, Storage] = {}

    def take(self, name: str, elements: int, dtype: DType) -> None:
        size = elements * dtype.itemsize
        if name not in self.pieces or self.pieces[name].nbytes < size:
            saved, state.label = state.label, Label("communication", "", f"{name} buffer")
            self.pieces[name] = Storage(size, (size,), 1)
            state.label = saved


class Sharing(NamedTuple):
    """How ranks share a layer.

    ranks         that share its weights (``tp``)
    scatters      they share the tokens between layers as well (``tp_mode: REDUCE_SCATTER``)
    asynchronous  products are cut up to be computed while others are sent (``tp_linear_async_communication``)
    gathers_again what was gathered for a product is gathered again for its gradient (``tp_recompute_allgather``)
    """

    ranks: int
    scatters: bool
    asynchronous: bool
    gathers_again: bool
    room: Room

    @property
    def token_ranks(self) -> int:
        return self.ranks if self.scatters else 1


# ------------------------------------------------------------------------------------------------------- products


def _resized(x: Tensor, times: int, parts: int = 1) -> tuple[Any, ...]:
    """The shape with more or fewer tokens, which come first where rows have a dimension of their own."""
    return (x.shape[0] * times // parts, *x.shape[1:])


def column_product(x: Tensor, weight: Tensor, bias: Tensor | None, sharing: Sharing) -> Tensor:
    """(S', B, W) -> (S, B, outputs / ranks). Keeps x, or all tokens where they are not gathered again."""
    if sharing.token_ranks == 1:
        return F.linear(x, weight, bias)
    wide, again = _resized(x, sharing.ranks), sharing.gathers_again
    elements = x.numel * sharing.ranks
    everything: Tensor | None = None
    if again:
        sharing.room.take("allgather", elements, x.dtype)
    else:
        everything = empty(wide, x.dtype)
    out = Tensor((*wide[:-1], weight.shape[0]), x.dtype)
    if tracked(x, weight, bias):
        own, dtype, entries = x.shape, x.dtype, weight.shape
        biases = None if bias is None else bias.shape

        def backward(g: Tensor) -> list[Tensor | None]:
            if again:
                sharing.room.take("allgather", elements, dtype)
            partial = Tensor(wide, dtype)
            scattered, gradient = Tensor(own, dtype), Tensor(entries, dtype)
            del partial
            return [scattered, gradient, None if biases is None else Tensor(biases, dtype)]

        record(out, (x, weight, bias), (x if again else everything, weight), backward)
    return out


def row_product(x: Tensor, weight: Tensor, sharing: Sharing) -> Tensor:
    """(S, B, inputs / ranks) -> (S', B, W). Keeps x: where tokens come first and rows are several, attention's result
    lies otherwise, and a product that is torch's own keeps its copy of it."""
    if not sharing.asynchronous:
        out = F.linear(x, weight)
        return scattered(out, sharing.ranks) if sharing.token_ranks > 1 else out
    packed = F.contiguous(x.detach())
    wide = (*x.shape[:-1], weight.shape[0])
    out = Tensor(wide, x.dtype)
    del packed
    ranks = sharing.ranks
    if ranks > 1:
        sharing.room.take("allgather2", out.numel, x.dtype)  # of the backward pass of the step before
        out = Tensor(_resized(out, 1, ranks), x.dtype)
    if tracked(x, weight):
        dtype, shape, entries, lies = x.dtype, x.shape, weight.shape, x.strides is None

        def backward(g: Tensor) -> list[Tensor | None]:
            gradient = Tensor(shape, dtype)
            packed = None if lies else Tensor(shape, dtype)
            of_weight = Tensor(entries, dtype)
            del packed
            return [gradient, of_weight]

        record(out, (x, weight), (x, weight), backward)
    return out


def scattered(x: Tensor, ranks: int) -> Tensor:
    """Every rank keeps its share of the tokens' sums; backward gathers."""
    out = Tensor(_resized(x, 1, ranks), x.dtype)
    if tracked(x):
        shape, dtype = x.shape, x.dtype
        record(out, (x,), (), lambda g: (Tensor(shape, dtype),))
    return out


def masked(x: Tensor) -> Tensor:
    """Embedded tokens of other ranks' words, set to zero: keeps a byte per token."""
    mask = empty((*x.shape[:-1], 1), bool_)
    out = Tensor(x.shape, x.dtype)
    if tracked(x):
        shape, dtype = x.shape, x.dtype
        record(out, (x,), (mask,), lambda g: (Tensor(shape, dtype),))
    return out


class ColumnLinear(Linear):
    def __init__(self, inputs: int, outputs: int, bias: bool, sharing: Sharing) -> None:
        super().__init__(inputs, outputs, bias)
        self.sharing = sharing

    def forward(self, x: Tensor) -> Tensor:
        return column_product(x, self.weight, self.bias, self.sharing)


class RowLinear(ColumnLinear):
    def forward(self, x: Tensor) -> Tensor:
        return row_product(x, self.weight, self.sharing)


# ------------------------------------------------------------------------------------------------------ the layer


class KernelNorm(RootMeanSquare):
    """flash-attn's ``layer_norm_fn``: keeps its input and an fp32 number per token."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight)


def rotated(x: Tensor) -> Tensor:
    """``apply_rotary_emb``: a tensor of its own forward and backward; keeps the tables alone."""
    out = Tensor(x.shape, x.dtype)
    if tracked(x):
        shape, dtype = x.shape, x.dtype
        record(out, (x,), (), lambda g: (Tensor(shape, dtype),))
    return out


def attention(query: Tensor, *keys_and_values: Tensor) -> Tensor:
    """(B, S, h, d) queries; keys and values apart or in one tensor -> (B, S, h, d). flash-attn's kernels for rows of
    several lengths (``csrc/flash_attn/flash_api.cpp``, ``mha_varlen_fwd`` and ``_bwd``): keeps operands, result and an
    fp32 number per row; backward sums queries' gradients in fp32, and keys' and values' by head of the queries."""
    batch, length, heads, head_dim = query.shape
    out, sums = Tensor(query.shape, query.dtype), empty((heads, batch * length), float32)
    if tracked(query, *keys_and_values):
        kinds, dtype = [x.shape for x in (query, *keys_and_values)], query.dtype
        padded = batch * length + 128 * batch
        step = 32 if head_dim <= 128 else 64
        accumulated = (padded, heads, -(-head_dim // step) * step)
        grouped = keys_and_values[0].shape[-2] != heads
        expanded = (batch * length, heads, head_dim) if grouped else (0,)

        def backward(g: Tensor) -> list[Tensor | None]:
            gradients: list[Tensor | None] = [Tensor(shape, dtype) for shape in kinds]
            scratch = (
                Tensor((heads, padded), float32),
                Tensor(accumulated, float32),
                *(Tensor(expanded, dtype) for _ in range(2)),
            )
            del scratch
            return gradients

        record(out, (query, *keys_and_values), (query, *keys_and_values, out, sums), backward)
    return out


class Attention(Module):
    """(S', B, W) -> (S', B, W). Queries, keys and values are copied out of the joined product, and keys and values
    once more to lie beside each other, where keys are rotated in place."""

    def __init__(self, config: Decoder, sharing: Sharing, positions: int, table_rows: int = 0) -> None:
        self.heads, self.groups, self.head_dim = config.heads, config.key_value_heads, config.head_dim
        self.grouped = config.heads != config.key_value_heads
        made = (config.heads + 2 * config.key_value_heads) * config.head_dim
        self.qkv_proj = ColumnLinear(config.width, made, config.qkv_bias, sharing)
        self.o_proj = RowLinear(config.heads * config.head_dim, config.width, False, sharing)
        dtype = self.o_proj.weight.dtype
        # of each layer its own (FlashRotaryEmbedding._update_cos_sin_cache)
        self.cosine, self.sine = (buffer(positions, config.head_dim // 2, dtype=dtype) for _ in range(2))
        # Llama's RotaryEmbedding, which inference asks for: pairs of fp32 numbers
        self.freqs_cis = buffer(table_rows, config.head_dim // 2, 2) if table_rows else None

    def forward(self, x: Tensor, rows: int) -> Tensor:
        mixed = self.qkv_proj(x)
        length, batch, _ = mixed.shape
        if self.grouped:
            sizes = (self.heads * self.head_dim, *[self.groups * self.head_dim] * 2)
            query, key, value = F.split(mixed, sizes, -1)
            query = query.transpose(0, 1).contiguous().view(batch, length, self.heads, self.head_dim)
            key = key.transpose(0, 1).contiguous().view(batch, length, self.groups, self.head_dim)
            value = value.transpose(0, 1).contiguous().view(batch, length, self.groups, self.head_dim)
        else:
            apart = mixed.view(length, batch, 3, self.heads, self.head_dim).permute(2, 1, 0, 3, 4).contiguous()
            query, key, value = F.unbind(apart)
            del apart
        out: Tensor = self.attended(query, key, value)
        return out

    def attended(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        batch, length = query.shape[:2]
        both = F.stack((key, value))
        both = both.permute(1, 2, 0, 3, 4).contiguous()
        query = rotated(query)
        key, value = F.split(both, 1, 2)
        context = attention(query, key, value).view(batch, length, self.heads * self.head_dim)
        return self.o_proj(context.transpose(0, 1))  # type: ignore[no-any-return]


class PackedAttention(Attention):
    """(B S', W) -> (B S', W): Qwen2's. Queries, keys and values stay where their product is."""

    def forward(self, x: Tensor, rows: int) -> Tensor:
        mixed = self.qkv_proj(x)
        of_queries = self.heads * self.head_dim
        query = mixed[..., :of_queries]
        both = mixed[..., of_queries:]
        query = query.view(rows, -1, self.heads, self.head_dim)
        both = both.view(rows, -1, 2, self.groups, self.head_dim)
        context = attention(rotated(query), both)
        return self.o_proj(context.view(-1, of_queries))  # type: ignore[no-any-return]


class Perceptron(Module):
    def __init__(self, config: Decoder, sharing: Sharing) -> None:
        self.gate_up_proj = ColumnLinear(config.width, 2 * config.intermediate, False, sharing)
        self.down_proj = RowLinear(config.intermediate, config.width, False, sharing)

    def forward(self, x: Tensor) -> Tensor:
        merged = self.gate_up_proj(x)
        gate, up = F.split(merged, merged.shape[-1] // 2, -1)
        return self.down_proj(F.silu(gate) * up)  # type: ignore[no-any-return]


class NanotronLayer(Layer):
    """What attention returns has a name until the layer is done."""

    def __init__(
        self, config: Decoder, sharing: Sharing, positions: int, packed: bool, plain_norms: bool, table_rows: int
    ) -> None:
        # Qwen2's first norm is LlamaRMSNorm whatever `_fused_rms_norm` says: it is made twice.
        first = RootMeanSquare if packed else KernelNorm
        self.input_layernorm = first(config.width)
        self.self_attn = (PackedAttention if packed else Attention)(config, sharing, positions, table_rows)
        self.post_attention_layernorm = (RootMeanSquare if plain_norms else KernelNorm)(config.width)
        self.mlp = Perceptron(config, sharing)

    def forward(self, x: Tensor, rows: Any, mask: Tensor | None) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        attended = self.self_attn(x, rows)
        x = attended
        x = x + residual
        residual = x
        x = self.post_attention_layernorm(x)
        x = self.mlp(x)
        return x + residual


def sharded_cross_entropy(logits: Tensor, labels: Tensor, z_loss: bool) -> Tensor:
    """fp32 logits (S, B, V / ranks) -> (S, B): a softmax of their own memory, which is kept and where backward makes
    the gradient. With a z-loss the gradient is another three of it."""
    shape = logits.shape
    most, places = empty(shape[:-1], float32), empty(shape[:-1], int64)
    del places
    softmax = empty(shape, float32)
    beyond, places = empty(shape[:-1], bool_), empty(shape[:-1], int64)
    sums, predicted = empty(shape[:-1], float32), empty(shape[:-1], float32)
    out = empty(shape[:-1], float32)
    if tracked(logits):
        cell: list[Any] = []

        def backward(g: Tensor) -> list[Tensor | None]:
            kept = Tensor(shape, float32, cell.pop().saved[0])
            if not z_loss:
                return [kept]
            copied, scaled = Tensor(shape, float32), Tensor(shape, float32)
            whole = Tensor(shape, float32)
            del copied, scaled
            return [whole]

        record(out, (logits,), (softmax, beyond, places), backward)
        cell.append(out.node)
    del most, sums, predicted
    return out


class NanotronModel(LanguageModel):
    """Token numbers (B, S) and labels (B, S) -> mean cross entropy of the next token."""

    splits_tokens = True  # it gathers and scatters by itself (memlint.models.split)

    def __init__(
        self,
        config: Decoder,
        sharing: Sharing,
        positions: int,
        packed: bool,
        plain_norms: bool,
        z_loss: bool,
        table_rows: int = 0,
        **options: Any,
    ) -> None:
        self.sharing, self.positions, self.packed, self.table_rows = sharing, positions, packed, table_rows
        self.plain_norms, self.z_loss = plain_norms, z_loss
        super().__init__(config, "flash", **options)
        self.rotary_emb = None
        if self.lm_head is not None:
            self.lm_head = ColumnLinear(config.width, config.vocabulary, False, sharing)

    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return NanotronLayer(config, self.sharing, self.positions, self.packed, self.plain_norms, self.table_rows)

    def define_norm(self, config: Decoder) -> Module:
        return (RootMeanSquare if self.plain_norms else KernelNorm)(config.width)

    def embed(self, tokens: Tensor) -> Tensor:
        """(B, S) -> (S', B, W), or (B S', W)."""
        numbers = tokens.reshape(-1) if self.packed else tokens.transpose(0, 1)
        if self.sharing.ranks > 1:
            numbers = empty(numbers.shape, int64)  # of this rank's rows
        x: Tensor = self.embed_tokens(numbers)
        if self.sharing.ranks > 1:
            x = masked(x)
        return scattered(x, self.sharing.ranks) if self.sharing.token_ranks > 1 else x

    def hidden(self, given: Tensor) -> Tensor:
        """-> (S', B, W), or (B S', W), the last norm included."""
        rows = given.shape[0]
        if given.ndim == 2:
            x = self.embed(given)
        else:  # of the stage before
            shape = (given.shape[0] * given.shape[1],) if self.packed else (given.shape[1], given.shape[0])
            x = given.view(*shape, given.shape[2])
        if state.grad_enabled and self.checkpointed and not x.requires_grad:
            x.requires_grad_()
        for layer in self.layers:
            x = self.through(layer, self.checkpointed > 0, x, rows, None)
        out: Tensor = self.norm(x)
        return out

    def logits(self, x: Tensor) -> Tensor:
        if self.lm_head is None:
            return column_product(x, self.embed_tokens.weight, None, self.sharing)
        out: Tensor = self.lm_head(x)
        return out

    def forward(self, given: Tensor, labels: Tensor) -> Tensor:
        """Llama's model returns fp32 logits; Qwen2's loss makes copies in fp32, beside its caller's."""
        logits = self.returned(given)
        with component("logits"):
            if self.packed:
                found = self.of_copies(logits.view(*labels.shape, -1), labels)
            else:
                found = sharded_cross_entropy(logits, F.contiguous(labels.transpose(0, 1)), self.z_loss)
            mask = empty(found.shape, float32)
            return F.sum(found * mask) / 1.0

    def returned(self, given: Tensor) -> Tensor:
        x = self.hidden(given)
        with component("logits"):
            logits = self.logits(x)
            return logits if self.packed else to(logits, float32)

    def of_copies(self, logits: Tensor, labels: Tensor) -> Tensor:
        return sharded_cross_entropy(to(logits, float32), labels, self.z_loss)


def refused(config: Decoder) -> str:
    """What about a decoder is not known here, or ""."""
    plain = config.norm == "rms" and config.residual == "pre" and config.perceptron == "gated"
    if not plain or config.experts is not None or config.windows or config.output_bias or config.positions:
        return "a decoder that is neither nanotron's Llama nor its Qwen2"
    return ""


def model(spec: TrainingSpec, config: Decoder, _: str, options: dict[str, Any]) -> LanguageModel:
    """The decoder as ``implementation`` = nanotron computes it. Raises UnknownModel for what its code has not."""
    why = refused(config)
    if why or options["loss"] != "full":
        raise UnknownModel(why or f"the loss {options['loss']!r} is not known in nanotron's code")
    ranks = int(spec.get("parallelism.tensor") or 1)
    sharing = Sharing(
        ranks=ranks,
        scatters=bool(spec.get("parallelism.sequence", False)),
        asynchronous=bool(spec.get(ASYNCHRONOUS, False)),
        gathers_again=bool(spec.get(GATHERS_AGAIN, True)),
        room=Room(),
    )
    packed = spec.get("implementation") == QWEN
    plain, z_loss = bool(spec.get(PLAIN_NORMS, False)), bool(spec.get(Z_LOSS, False))
    options = {**options, "policy": None, "reentrant": True}
    rows = 0 if packed else int(spec.get(TABLE_ROWS) or 0)
    return NanotronModel(config, sharing, spec["sequence_length"], packed, plain, z_loss, rows, **options)
