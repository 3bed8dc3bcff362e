"""RWKV as RWKV-LM trains it: layers of time mixing and channel mixing under DeepSpeed, in bfloat16.

Shapes: B rows, T tokens, C channels, H heads of N. Sources: RWKV-LM, ``RWKV-v5/src/model.py`` (x052, x060) and
``RWKV-v7/train_temp/src/model.py`` (x070), ``cuda/wkv{5,6}_op.cpp``, ``cuda/wkv7_op.cpp``. Element by element
operations are counted one by one; TorchScript, which the programs turn on, may join some of them. Where layers are
recomputed (``--grad_cp 1``), that is one layer's difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from memlint.facts.spec import HYPER, TrainingSpec
from memlint.meta import autograd
from memlint.meta import functional as F
from memlint.meta.checkpoint import checkpoint
from memlint.meta.nn import Embedding, GroupNorm, LayerNorm, Linear, Module, parameter
from memlint.meta.tensor import DTYPES, Tensor, component, default_dtype, empty, empty_like, float32, int64
from memlint.models import UnknownModel
from memlint.models.language import sequence_length
from memlint.models.system import System
from memlint.named_tuple import NamedTuple

CHUNK = 16  # tokens between the states that x070's kernel keeps
VERSIONS = ("x052", "x060", "x070")
MIX_RANK, DECAY_RANK = 32, 64  # of x060's narrow products


class Sizes(NamedTuple):
    """``attention`` and ``perceptron`` are widths."""

    layers: int
    width: int
    attention: int
    perceptron: int
    head: int
    vocabulary: int


# ------------------------------------------------------------------------------------------------------ operations


def shifted(x: Tensor) -> Tensor:
    """(B, T, C), each token in the place of the next one (``nn.ZeroPad2d((0, 0, 1, -1))``)."""
    out = empty_like(x)
    if autograd.tracked(x):
        shape, dtype = x.shape, x.dtype
        autograd.record(out, (x,), (), lambda g: (Tensor(shape, dtype),))
    return out


def normalized(x: Tensor) -> Tensor:
    """``F.normalize`` over the last dimension: norms, no smaller than a bound, that x is divided by."""
    norms = empty((*x.shape[:-1], 1), x.dtype)
    bounded = F.clamp(norms)
    return F.div(x, bounded.expand(*x.shape))


def mixed_over_time(operands: tuple[Tensor, ...], kept: tuple[Tensor, ...], bonus: Tensor | None) -> Tensor:
    """The recurrence of a version, in its own CUDA kernel: keeps ``kept``, and makes a gradient of every operand; of
    the bonus of the current token, (H, N), one per row of the batch."""
    values = operands[2]
    out = empty_like(values)
    if autograd.tracked(*operands, bonus):
        kinds = [(x.shape, x.dtype) for x in operands]
        rows, width = values.shape[0], values.shape[-1]

        def backward(g: Tensor) -> list[Tensor | None]:
            found: list[Tensor | None] = [Tensor(*kind) for kind in kinds]
            if bonus is not None:
                per_row = empty((rows, width), values.dtype)
                found.append(Tensor(bonus.shape, bonus.dtype))
                del per_row
            return found

        autograd.record(out, operands if bonus is None else (*operands, bonus), kept, backward)
    return out


# ----------------------------------------------------------------------------------------------------- time mixing


def share(x: Tensor, change: Tensor, weight: Tensor) -> Tensor:
    """A token and the one before it, mixed by channel."""
    return x + change * weight


class TimeMixing5(Module):
    """x052: four mixtures, one decay per channel."""

    def __init__(self, sizes: Sizes, number: int) -> None:
        width, inner, self.heads = sizes.width, sizes.attention, sizes.attention // sizes.head
        self.time_mix = [parameter(width) for _ in range(4)]
        self.time_decay = parameter(self.heads, sizes.head)
        self.time_faaaa = parameter(self.heads, sizes.head)
        self.receptance, self.key, self.value, self.gate = (Linear(width, inner, False) for _ in range(4))
        self.output = Linear(inner, width, False)
        self.ln_x = GroupNorm(self.heads, inner)

    def forward(self, x: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor | None]:
        before = shifted(x)
        keys, values, queries, gates = (x * weight + before * (1 - weight) for weight in self.time_mix)
        r, k, v = self.receptance(queries), self.key(keys), self.value(values)
        g = F.silu(self.gate(gates))
        decays = empty((self.heads, r.shape[-1] // self.heads), float32), empty((self.heads,), float32)
        y = mixed_over_time((r, k, v), (r, k, v, *decays), self.time_faaaa)
        return self.output(self.normed(y / 8.0) * g), first

    def normed(self, x: Tensor) -> Tensor:
        out: Tensor = self.ln_x(x.view(-1, x.shape[-1])).view(*x.shape)
        return out


class TimeMixing6(TimeMixing5):
    """x060: what is mixed, and how it decays, depends on the token."""

    def __init__(self, sizes: Sizes, number: int) -> None:
        super().__init__(sizes, number)
        width, inner = sizes.width, sizes.attention
        self.time_mix = [parameter(width) for _ in range(6)]
        self.time_maa_w1, self.time_maa_w2 = parameter(width, 5 * MIX_RANK), parameter(5, MIX_RANK, width)
        self.time_decay = parameter(inner)
        self.time_decay_w1, self.time_decay_w2 = parameter(width, DECAY_RANK), parameter(DECAY_RANK, inner)

    def forward(self, x: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor | None]:
        batch, length, width = x.shape
        change = shifted(x) - x
        whole = share(x, change, self.time_mix[0])
        narrow = F.tanh(F.matmul(whole, self.time_maa_w1)).view(batch * length, 5, -1).transpose(0, 1)
        parts = F.unbind(F.bmm(narrow, self.time_maa_w2).view(5, batch, length, width), 0)
        del whole, narrow
        decays, keys, values, queries, gates = (
            share(x, change, weight + part) for weight, part in zip(self.time_mix[1:], parts)
        )
        r, k, v = self.receptance(queries), self.key(keys), self.value(values)
        g = F.silu(self.gate(gates))
        w = self.time_decay + F.matmul(F.tanh(F.matmul(decays, self.time_decay_w1)), self.time_decay_w2)
        y = mixed_over_time((r, k, v, w), (r, k, v, w), self.time_faaaa)
        return self.output(self.normed(y) * g), first


def rank(width: int, factor: float) -> int:
    """Of one of x070's narrow products: a multiple of 32 near so many times the width's root."""
    return max(32, round(factor * math.sqrt(width) / 32) * 32)


class TimeMixing7(TimeMixing5):
    """x070: a state that is corrected as it goes, and values that remember those of the first layer."""

    def __init__(self, sizes: Sizes, number: int) -> None:
        width, self.heads = sizes.width, sizes.attention // sizes.head
        self.time_mix = [parameter(width) for _ in range(6)]
        self.w = self.narrow(width, rank(width, 2.5))
        self.a = self.narrow(width, rank(width, 2.5))
        self.v = self.narrow(width, rank(width, 1.7)) if number else None
        inner = rank(width, 5.0)
        self.g1, self.g2 = parameter(width, inner), parameter(inner, width)
        self.k_k, self.k_a = parameter(width), parameter(width)
        self.r_k = parameter(self.heads, sizes.head)
        self.receptance, self.key, self.value, self.output = (Linear(width, width, False) for _ in range(4))
        self.ln_x = GroupNorm(self.heads, width)

    @staticmethod
    def narrow(width: int, inner: int) -> tuple[Tensor, Tensor, Tensor]:
        return parameter(width), parameter(width, inner), parameter(inner, width)

    def forward(self, x: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor | None]:
        batch, length, width = x.shape
        heads = (batch, length, self.heads, width // self.heads)
        change = shifted(x) - x
        queries, decays, keys, values, rates, gates = (share(x, change, weight) for weight in self.time_mix)
        r, k, v = self.receptance(queries), self.key(keys), self.value(values)
        w = self.w[0] + F.matmul(F.tanh(F.matmul(decays, self.w[1])), self.w[2])
        w = F.neg(F.silu(F.neg(w))) - 0.5  # softplus: one kernel that keeps its input, as silu is
        if self.v is None or first is None:
            first = v
        else:
            gate = F.sigmoid(self.v[0] + F.matmul(F.matmul(values, self.v[1]), self.v[2]))
            v = v + (first - v) * gate
        a = F.sigmoid(self.a[0] + F.matmul(F.matmul(rates, self.a[1]), self.a[2]))
        g = F.matmul(F.sigmoid(F.matmul(gates, self.g1)), self.g2)
        directions = normalized((k * self.k_k).view(*heads)).view(batch, length, width)
        k = k * (1 + (a - 1.0) * self.k_a)
        away, toward = F.neg(directions), directions * a
        states = empty((batch, self.heads, -(-length // CHUNK), heads[3], heads[3]), float32)
        corrections = empty(heads, float32)
        operands = (w, r, v, k, away, toward)
        y = mixed_over_time(operands, (*operands, states, corrections), None)
        del states, corrections, operands
        bonus = F.sum(r.view(*heads) * k.view(*heads) * self.r_k, -1, keepdim=True) * v.view(*heads)
        y = self.normed(y) + bonus.view(batch, length, width)
        return self.output(y * g), first


# -------------------------------------------------------------------------------------------------- channel mixing


class ChannelMixing(Module):
    """A perceptron with the square of relu; before x070 with a gate of its own."""

    def __init__(self, sizes: Sizes, version: str) -> None:
        self.version = version
        self.time_mix = [parameter(sizes.width) for _ in range(1 if version == "x070" else 2)]
        self.key = Linear(sizes.width, sizes.perceptron, False)
        self.value = Linear(sizes.perceptron, sizes.width, False)
        self.receptance = Linear(sizes.width, sizes.width, False) if version != "x070" else None

    def forward(self, x: Tensor) -> Tensor:
        before = shifted(x)
        if self.version == "x052":
            parts = [x * weight + before * (1 - weight) for weight in self.time_mix]
        else:
            change = before - x
            parts = [share(x, change, weight) for weight in self.time_mix]
        made: Tensor = self.value(F.pow(F.relu(self.key(parts[0])), 2))
        if self.receptance is None:
            return made
        return F.sigmoid(self.receptance(parts[1])) * made


MIXING: dict[str, Callable[[Sizes, int], Module]] = {"x052": TimeMixing5, "x060": TimeMixing6, "x070": TimeMixing7}


class Block(Module):
    def __init__(self, sizes: Sizes, version: str, number: int) -> None:
        self.ln0 = LayerNorm(sizes.width) if number == 0 else None
        self.ln1, self.ln2 = LayerNorm(sizes.width), LayerNorm(sizes.width)
        self.att = MIXING[version](sizes, number)
        self.ffn = ChannelMixing(sizes, version)

    def forward(self, x: Tensor, first: Tensor | None) -> tuple[Tensor, ...]:
        if self.ln0 is not None:
            x = self.ln0(x)
        mixed, first = self.att(self.ln1(x), first)
        x = x + mixed
        x = x + self.ffn(self.ln2(x))
        return (x,) if first is None else (x, first)


class Rwkv(Module):
    """Token numbers and labels (B, T) -> mean cross entropy, in the logits' own dtype."""

    def __init__(self, sizes: Sizes, version: str, checkpointed: bool) -> None:
        self.checkpointed = checkpointed
        self.emb = Embedding(sizes.vocabulary, sizes.width)
        self.blocks = [Block(sizes, version, number) for number in range(sizes.layers)]
        self.ln_out = LayerNorm(sizes.width)
        self.head = Linear(sizes.width, sizes.vocabulary, False)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x: Tensor = self.emb(tokens)
        first: Tensor | None = None
        for block in self.blocks:
            if self.checkpointed:
                made = checkpoint(block, x, first, use_reentrant=True)
            else:
                made = block(x, first)
            x, first = (made[0], made[1]) if len(made) > 1 else (made[0], None)
        del first
        x = self.ln_out(x)
        with component("logits"):
            logits = self.head(x)
            flat = logits.view(-1, logits.shape[-1])
            return pulled_to_zero(F.cross_entropy(flat, labels.view(-1)), logits)


def pulled_to_zero(loss: Tensor, logits: Tensor) -> Tensor:
    """``L2Wrap``: keeps the logits, and gives them a gradient of zeros but for the largest of each token."""
    out = Tensor(loss.shape, loss.dtype)
    if autograd.tracked(loss, logits):
        shape, dtype = logits.shape, logits.dtype

        def backward(g: Tensor) -> list[Tensor | None]:
            most, places = empty((*shape[:-1], 1), dtype), empty((*shape[:-1], 1), int64)
            made = Tensor(shape, dtype)
            del most, places
            return [g, made]

        autograd.record(out, (loss, logits), (logits,), backward)
    return out


# --------------------------------------------------------------------------------------------------------- the run


def build(spec: TrainingSpec) -> System:
    """The System of ``architecture = "rwkv"``. Raises UnknownModel for versions and sizes that are not known."""
    version = str(spec.get("model"))
    if version not in VERSIONS:
        raise UnknownModel(f"RWKV {version} is not known")
    sizes = sizes_of(spec, version)
    length, rows = sequence_length(spec), spec["micro_batch_size"]
    if version == "x070" and length % CHUNK:
        raise UnknownModel(f"x070 takes multiples of {CHUNK} tokens, not {length}")
    with default_dtype(DTYPES[spec["parameter_dtype"]]):
        model = Rwkv(sizes, version, spec.get("checkpointing") == "full")

    def loss(given: tuple[Tensor, Tensor]) -> Tensor:
        out: Tensor = model(*given)
        return out

    return System(
        model=model,
        batch=lambda: (empty((rows, length), int64), empty((rows, length), int64)),
        loss=loss,
        optimizer="adamw deepspeed",
        optimizer_options={"implementation": "fused"},
        accumulation=spec.get("gradient_accumulation_steps", 1),
    )


def sizes_of(spec: TrainingSpec, version: str) -> Sizes:
    def number(name: str) -> int:
        value = spec.get(HYPER + name)
        return value if isinstance(value, int) and value > 0 else 0

    width = number("n_embd")
    inner = 4 * width if version == "x070" else int(width * 3.5) // 32 * 32
    made = Sizes(
        number("n_layer"),
        width,
        number("dim_att") or width,
        number("dim_ffn") or inner,
        number("head_size") or 64,
        spec.get("vocabulary_size") or 0,
    )
    if not made.layers or not width or not made.vocabulary:
        raise UnknownModel("the layers, the width or the vocabulary are not stated")
    if made.layers > 10_000 or made.attention % made.head:
        raise UnknownModel(f"{made.layers:,} layers of {made.attention} channels in heads of {made.head} are not built")
    return made
