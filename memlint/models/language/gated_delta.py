"""Qwen3-Next and Qwen3.5: most layers keep a state in place of attention, which a gated delta rule writes.

Shapes: B rows, S tokens, W hidden width, k heads of keys of d, v heads of values of e, C chunks of c tokens.
transformers has the rule in plain torch, and takes the kernels of flash-linear-attention where that is installed; which
of both a run has is ``GatedDelta.kernels``. Temporaries live as they do there, so statements are not merged.

Sources: ``transformers`` 5.23, ``models/{qwen3_next,qwen3_5}/modeling_*.py``; ``fla-core`` 0.6.0,
``ops/gated_delta_rule/chunk.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memlint.architectures.decoder import Decoder, GatedDelta
from memlint.meta import functional as F
from memlint.meta.amp import lower, to
from memlint.meta.autograd import no_grad, record, tracked
from memlint.meta.nn import Conv, Linear, Module, parameter
from memlint.meta.tensor import DType, Tensor, bool_, empty, empty_like, float32, int64
from memlint.models.language.attention import Attended, Attention
from memlint.models.language.decoder import LanguageModel, Layer
from memlint.models.language.experts import has_experts, mixture
from memlint.models.language.parts import RotaryTables, Tables, activation, norm, perceptron, position_numbers

CHUNK = 64  # tokens that one product writes
# Turns of the loop over chunks that are simulated one by one; of longer rows, some chunks make a turn together: what
# stays of them is the same, and what a turn lets go is larger by as much, still a share of 1 / TURNS of a whole row's.
# Of 2,048 tokens, 16 turns give a Qwen3.5-35B with LoRA 0.05 % less than 32 do, in a third of the time.
TURNS = 16

# ---------------------------------------------------------------------------------------------- operations of torch


def copied(x: Tensor, dtype: DType | None = None) -> Tensor:
    """Contiguous, in a dtype: a copy even of what is so already."""
    out = Tensor(x.shape, dtype or x.dtype)
    if tracked(x):
        before = x.dtype
        record(out, (x,), (), lambda g: (g if g.dtype is before else Tensor(g.shape, before),))
    return out


def packed(x: Tensor, dtype: DType) -> Tensor:
    """Contiguous, in a dtype: x itself where it is so."""
    return x if x.strides is None and x.dtype is dtype else copied(x, dtype)


def repeated(x: Tensor, times: int) -> Tensor:
    """(B, S, k, d) -> (B, S, k * times, d)."""
    spread = F.expand(F.unsqueeze(x, 3), *x.shape[:3], times, x.shape[3])
    return F.flatten(copied(spread), 2, 3)


def softplus(x: Tensor) -> Tensor:
    out = empty_like(x)
    if tracked(x):
        record(out, (x,), (x,), lambda g: (empty_like(g),))
    return out


def cumulated(x: Tensor) -> Tensor:
    """Sums up to each entry; the gradient is turned round, summed and turned back."""
    out = empty_like(x)
    if tracked(x):

        def backward(g: Tensor) -> tuple[Tensor]:
            turned = empty(g.shape, g.dtype)
            summed = empty(g.shape, g.dtype)
            del turned
            result = empty(g.shape, g.dtype)
            del summed
            return (result,)

        record(out, (x,), (), backward)
    return out


def column_major(x: Tensor) -> Tensor:
    """Fresh, its matrices transposed in memory."""
    out = Tensor((*x.shape[:-2], x.shape[-1], x.shape[-2]), x.dtype)
    return out.alias(x.shape, F.transpose(out, -1, -2).strides)


def solved(system: Tensor, right: Tensor) -> Tensor:
    """``torch.linalg.solve_triangular``: keeps the system and the solution."""
    out = column_major(right)
    if tracked(system, right):
        shape, dtype = system.shape, system.dtype  # a formula that named the system itself would keep it

        def backward(g: Tensor) -> tuple[Tensor, Tensor]:
            of_right = column_major(g)
            product = empty(shape, dtype)
            negated = empty(shape, dtype)
            del product
            of_system = empty(shape, dtype)
            del negated
            return of_system, of_right

        record(out, (system, right), (system, out), backward)
    return out


def written(base: Tensor, piece: Tensor) -> Tensor:
    """``base[:, :, i] = piece``: in place. Backward copies the gradient of all, and of the piece, each time."""
    out = base.alias(base.shape, base.strides)
    if tracked(base, piece):
        needed, dtype = base.requires_grad, piece.dtype
        shape = piece.shape

        def backward(g: Tensor) -> tuple[Tensor | None, Tensor]:
            result = empty_like(g)
            own = Tensor(shape, g.dtype)
            zeros = Tensor(shape, g.dtype) if needed else None
            own = to(own, dtype)
            del zeros
            return result if needed else None, own

        record(out, (base, piece), (), backward)
    return out


def convolved(x: Tensor, layer: Conv, function: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """``causal_conv1d_fn``: (B, channels, S), each channel over the tokens before."""
    dtype, weight = x.dtype, F.unsqueeze(F.squeeze(layer.weight, 1), 1)
    out = F.conv(to(x, weight.dtype), weight, layer.bias, 1, layer.padding, layer.groups)[:, :, : x.shape[2]]
    if function is not None:
        out = function(out)
    return to(out, dtype)


# --------------------------------------------------------------------------------------------------------- the rule


def normed(x: Tensor) -> Tensor:
    inverse = F.rsqrt(F.sum(x * x, -1, keepdim=True) + 1e-6)
    return x * inverse


def product(x: Tensor, y: Tensor) -> Tensor:
    """Of the matrices of several chunks, which are kept where they lie, as those of one would be."""
    y = lower(y)
    x = lower(x)
    out = Tensor((*x.shape[:-1], y.shape[-1]), x.dtype)
    if tracked(x, y):
        kinds = (x.shape, x.dtype), (y.shape, y.dtype)
        record(out, (x, y), (x, y), lambda g: [Tensor(*kind) for kind in kinds])
    return out


def turn(x: Tensor, each: int, now: int) -> Tensor:
    """The chunks of one turn: one, or ``now`` of them."""
    return F.select(x, 2) if each == 1 else F.narrow(x, 2, now)


def delta_rule(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """(B, S, k, d) twice, (B, S, v, e), (B, S, v) twice -> (B, S, v, e), in plain torch and fp32."""
    dtype = query.dtype
    batch, length, keys, _ = key.shape
    heads, width = value.shape[-2:]
    decay = g
    if keys != heads:
        query = repeated(query, heads // keys)
        key = repeated(key, heads // keys)
    query, key, value, beta, decay = (packed(x.transpose(1, 2), float32) for x in (query, key, value, beta, decay))
    query = normed(query)
    key = normed(key)
    query = query * 1.0
    missing = -length % CHUNK
    query, key, value = (F.pad(x, 0, 0, 0, missing) for x in (query, key, value))
    beta, decay = (F.pad(x, 0, missing) for x in (beta, decay))
    chunks = (length + missing) // CHUNK
    v_beta = value * beta.unsqueeze(-1)
    k_beta = key * beta.unsqueeze(-1)
    query, key, k_beta, v_beta = (
        x.reshape(batch, heads, chunks, CHUNK, x.shape[-1]) for x in (query, key, k_beta, v_beta)
    )
    decay = decay.reshape(batch, heads, chunks, CHUNK)
    mask = empty((CHUNK, CHUNK), bool_)
    summed = cumulated(decay)
    pairs = summed.unsqueeze(4) - summed.unsqueeze(3)
    pairs = F.masked_fill(pairs, mask)
    pairs = F.exp(pairs)
    system = F.matmul(k_beta, key.transpose(-1, -2)) * pairs
    within = F.matmul(query, key.transpose(-1, -2)) * pairs
    decayed = k_beta * F.exp(summed).unsqueeze(-1)
    values = solved(system, v_beta)
    keys_left = solved(system, decayed)
    each = -(-chunks // TURNS)
    state = empty((batch, heads, *((each,) if each > 1 else ()), key.shape[-1], width), float32)
    out = column_major(values)
    query = query * F.exp(summed).unsqueeze(-1)
    key = key * F.exp(summed[..., -1:] - summed).unsqueeze(-1)
    chunk_decay = F.exp(summed[..., -1])[..., None, None]
    multiply = F.matmul if each == 1 else product
    for start in range(0, chunks, each):
        now = min(each, chunks - start)
        state = state if now == each else F.narrow(state, 2, now)
        new = turn(values, each, now) - multiply(turn(keys_left, each, now), state)
        between = multiply(turn(query, each, now), state)
        out = written(out, between + multiply(turn(within, each, now), new))
        fading = turn(chunk_decay, each, now)
        state = state * fading + multiply(turn(key, each, now).transpose(-1, -2), new)
    out = out.reshape(batch, heads, chunks * CHUNK, width)
    out = out[:, :, :length]
    return packed(out.transpose(1, 2), dtype)


def kernel_rule(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """The same in the kernels of flash-linear-attention: one node, which keeps its operands in order, what norms them,
    sums of decays and the inverted systems; backward makes the states of all chunks again."""
    operands = [packed(x.detach(), x.dtype) for x in (query, key, value, g, beta)]
    batch, length, keys, width = key.shape
    heads, wide = value.shape[-2:]
    dtype, chunks = query.dtype, -(-length // CHUNK)
    shapes = {
        "query": (batch, length, keys, width),
        "key": (batch, length, heads, width),
        "value": (batch, length, heads, wide),
        "states": (batch, chunks, heads, width, wide),
        "decays": (batch, length, heads),
    }

    def made(name: str, like: DType = dtype) -> Tensor:
        return empty(shapes[name], like)

    normed_query, query_scale = made("query"), empty((batch, length, keys), float32)
    normed_key, key_scale = made("query"), empty((batch, length, keys), float32)
    summed = made("decays", float32)
    inverted = empty((batch, length, heads, CHUNK), dtype)
    fed = made("key"), made("value")
    states, new = made("states"), made("value")
    out = made("value")
    del fed, states, new
    if tracked(query, key, value, g, beta):
        kinds = [x.dtype for x in (query, key, value, g, beta)]

        def backward(_: Tensor) -> list[Tensor]:
            fed = made("key"), made("value")
            states, new = made("states"), made("value")
            local = made("value")
            state_gradients, values = made("states"), made("value")
            del local
            query_gradient, key_gradient = made("key"), made("key")
            decays, entered = empty((1, *shapes["decays"]), float32), made("key")
            if heads != keys:
                query_gradient = made("query")
                key_gradient = made("query")
            decays = made("decays", float32)
            key_again, value_gradient = made("key"), made("value")
            decays_again, steps = made("decays", float32), made("decays", kinds[4])
            if heads != keys:
                key_again = made("query")
            decays = made("decays", float32)
            del fed, states, new, state_gradients, values, entered, key_again, decays_again
            query_gradient = made("query")
            key_gradient = made("query")
            return [query_gradient, key_gradient, value_gradient, to(decays, kinds[3]), steps]

        kept = (normed_query, query_scale, normed_key, key_scale, operands[2], summed, operands[4], inverted)
        record(out, (query, key, value, g, beta), kept, backward)
    return out


# ---------------------------------------------------------------------------------------------------------- modules


class GatedNorm(Module):
    """A root-mean-square norm, multiplied by a gate in fp32."""

    def __init__(self, width: int) -> None:
        self.weight = parameter(width)

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        dtype = x.dtype
        x = to(x, float32)
        variance = F.mean(x**2, -1, keepdim=True)
        x = x * F.rsqrt(variance + 1e-6)
        x = self.weight * to(x, dtype)
        x = x * F.silu(to(gate, float32))
        return to(x, dtype)


class GatedDeltaNet(Module):
    """``joined``: two products, whose results are cut within heads (Qwen3-Next); else four of their own."""

    def __init__(self, config: Decoder, linear: GatedDelta) -> None:
        self.linear = linear
        self.keys, self.values = linear.key_heads * linear.key_dim, linear.value_heads * linear.value_dim
        channels = 2 * self.keys + self.values
        self.conv1d = Conv(channels, channels, (linear.kernel,), padding=linear.kernel - 1, bias=False, groups=channels)
        if linear.joined:
            self.in_proj_qkvz = Linear(config.width, channels + self.values, bias=False)
            self.in_proj_ba = Linear(config.width, 2 * linear.value_heads, bias=False)
        else:
            self.in_proj_qkv = Linear(config.width, channels, bias=False)
            self.in_proj_z = Linear(config.width, self.values, bias=False)
            self.in_proj_b = Linear(config.width, linear.value_heads, bias=False)
            self.in_proj_a = Linear(config.width, linear.value_heads, bias=False)
        self.dt_bias = parameter(linear.value_heads)
        self.A_log = parameter(linear.value_heads)
        self.norm = GatedNorm(linear.value_dim)
        self.out_proj = Linear(self.values, config.width, bias=False)
        self.function = activation(config.activation)

    def forward(self, x: Tensor, padding: Tensor | None) -> Tensor:
        if padding is not None:
            x = x * padding.unsqueeze(-1)
        batch, length, _ = x.shape
        linear = self.linear
        if linear.joined:
            both, gates = self.in_proj_qkvz(x), self.in_proj_ba(x)
            query, key, value, z, b, a = self.cut(both, gates)
            query, key, value = (part.reshape(batch, length, -1) for part in (query, key, value))
            mixed = F.cat((query, key, value), -1).transpose(1, 2)
        else:
            mixed = self.in_proj_qkv(x).transpose(1, 2)
            z = self.in_proj_z(x).reshape(batch, length, -1, linear.value_dim)
            b = self.in_proj_b(x)
            a = self.in_proj_a(x)
        mixed = convolved(mixed, self.conv1d, self.function).transpose(1, 2)
        query, key, value = F.split(mixed, (self.keys, self.keys, self.values), -1)
        query = query.reshape(batch, length, -1, linear.key_dim)
        key = key.reshape(batch, length, -1, linear.key_dim)
        value = value.reshape(batch, length, -1, linear.value_dim)
        beta = F.sigmoid(b)
        g = F.neg(F.exp(to(self.A_log, float32))) * softplus(to(a, float32) + self.dt_bias)
        out = (kernel_rule if linear.kernels else delta_rule)(query, key, value, g, beta)
        out = out.reshape(-1, linear.value_dim)
        z = z.reshape(-1, linear.value_dim)
        out = self.norm(out, z)
        out = out.reshape(batch, length, -1)
        projected: Tensor = self.out_proj(out)
        return projected

    def cut(self, both: Tensor, gates: Tensor) -> tuple[Tensor, ...]:
        linear = self.linear
        batch, length, _ = both.shape
        each = linear.value_heads // linear.key_heads
        by_head = both.view(batch, length, linear.key_heads, -1)
        sizes = (linear.key_dim, linear.key_dim, each * linear.value_dim, each * linear.value_dim)
        query, key, value, z = F.split(by_head, sizes, 3)
        b, a = F.split(gates.view(batch, length, linear.key_heads, 2 * each), (each, each), 3)
        value = value.reshape(batch, length, -1, linear.value_dim)
        z = z.reshape(batch, length, -1, linear.value_dim)
        b = b.reshape(batch, length, linear.value_heads)
        a = a.reshape(batch, length, linear.value_heads)
        return query, key, value, z, b, a


class GatedAttention(Attention):
    """Queries come with a gate, by which the result is multiplied."""

    def define(self, config: Decoder) -> None:
        super().define(config)
        self.q_proj = Linear(config.width, 2 * config.heads * config.head_dim, config.qkv_bias)

    def forward(self, x: Tensor, tables: Tables | None, mask: Tensor | None) -> Attended:
        assert self.rotate is not None
        assert tables is not None
        batch, length, _ = x.shape
        shape = (batch, length, -1, self.head_dim)
        query, gate = F.chunk(self.q_proj(x).view(batch, length, -1, 2 * self.head_dim), 2, -1)
        gate = gate.reshape(batch, length, -1)
        query = self.q_norm(query).transpose(1, 2)
        key = self.k_norm(self.k_proj(x).view(*shape)).transpose(1, 2)
        value = self.v_proj(x).view(*shape).transpose(1, 2)
        query, key = self.rotate(query, key, tables)
        output, weights = self.scores(query, key, value, mask)
        output = output.reshape(batch, length, -1).contiguous()
        output = output * F.sigmoid(gate)
        output = self.o_proj(output)  # type: ignore[attr-defined]
        return output, weights


class HybridLayer(Layer):
    def __init__(self, config: Decoder, kind: str, number: int) -> None:
        assert config.linear is not None
        recurs = number in config.linear.layers
        self.linear_attn = GatedDeltaNet(config, config.linear) if recurs else None
        self.self_attn: Any = None if recurs else GatedAttention(config, kind)
        self.mlp = mixture(config) if has_experts(config, number) else perceptron(config)
        self.input_layernorm = norm(config.norm, config.width)
        self.post_attention_layernorm = norm(config.norm, config.width)

    def forward(self, x: Tensor, tables: Tables | None, mask: Tensor | None) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        weights = None
        if self.linear_attn is not None:
            x = self.linear_attn(x, mask)
        else:
            x, weights = self.self_attn(x, tables, mask)
        x = residual + x
        residual = x
        x = self.post_attention_layernorm(x)
        x = self.mlp(x)
        x = residual + x
        del weights
        return x


class PlaceTables(RotaryTables):
    """Qwen3.5's: places in three dimensions, whose angles take turns; each row of the batch has its own."""

    def of_rows(self, rows: int, length: int, dtype: DType) -> Tables:
        with no_grad():
            places = empty((3, rows, length, 1), float32)
            angles = places * self.inv_freq
            del places
            cosine = F.cos(angles) * 1.0
            sine = F.sin(angles) * 1.0
            sine = self.taken(sine)
            cosine = self.taken(cosine)
            return to(cosine, dtype), to(sine, dtype)

    @staticmethod
    def taken(x: Tensor) -> Tensor:
        own = F.select(x, 0)
        return F.cat((own, own), -1)


class HybridModel(LanguageModel):
    def __init__(self, config: Decoder, kind: str = "sdpa", **options: Any) -> None:
        super().__init__(config, kind, **options)
        if config.linear is not None and not config.linear.joined:
            self.rotary_emb = PlaceTables(config.rotary_dim)

    def define_layer(self, config: Decoder, kind: str, number: int) -> Layer:
        return HybridLayer(config, kind, number)

    def hidden(self, given: Tensor) -> Tensor:
        recurs: Any = self.config.linear or self.config.convolution
        embedded = self.look(given)[0] if given.ndim == 2 else given
        if self.prompt is not None:
            embedded = F.cat((self.prompt(embedded.shape[0], embedded.dtype), embedded), 1)
        batch, length, _ = embedded.shape
        positions = position_numbers(1, length)
        mask, _ = self.masks(batch, length, embedded)
        padding = empty((batch, length), int64) if self.padded else None
        x = embedded
        assert self.rotary_emb is not None
        if isinstance(self.rotary_emb, PlaceTables):
            tables = self.rotary_emb.of_rows(batch, length, x.dtype)
        else:
            tables = self.rotary_emb(positions, x.dtype)
        for number, layer in enumerate(self.layers):
            recomputed = self.checkpointed > 0 and number % self.checkpointed == 0
            x = self.through(layer, recomputed, x, tables, padding if number in recurs.layers else mask)
        out: Tensor = self.norm(x)
        return out
