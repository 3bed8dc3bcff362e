"""nanochat's decoder as its own trainer compiles it, and the share of Muon's and AdamW's states that a rank has.

Shapes: B rows, T tokens, C width, H heads of D, V rows of the vocabulary, padded to a multiple of 64. Sources:
karpathy/nanochat, ``nanochat/gpt.py`` and ``scripts/base_train.py`` at 3a5e0bc (2025-10), 63bb583 (2026-01) and
92d63d4 (2026-07); :class:`Sizes` has what differs. The model is one compiled graph with its loss. Here its layers are
compiled one by one, at whose borders that graph keeps the stream as well (``tests/differential/test_nanochat.py``).
"""

from __future__ import annotations

from memlint.facts.spec import HYPER, TrainingSpec
from memlint.meta import autograd, optim
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.compiled import Compiled
from memlint.meta.nn import Embedding, Module, buffer, parameter
from memlint.meta.ops.kernels import kernel
from memlint.meta.tensor import (
    DTYPES,
    Deferred,
    DType,
    Tensor,
    bfloat16,
    component,
    default_dtype,
    empty,
    float32,
    int64,
)
from memlint.models import UnknownModel
from memlint.models.language import sequence_length
from memlint.models.system import System
from memlint.named_tuple import NamedTuple

PADDED_TO = 64  # rows of the vocabulary (gpt.py: pad_vocab_size_to)
ROTATED = 10  # times as many rows of the rotary tables as a sample has tokens
GATE_CHANNELS, SMEAR_CHANNELS = 12, 24
MOST_LAYERS = 1_000
float8 = DType("float8", 1)


class Sizes(NamedTuple):
    """``features``: what releases of gpt.py have one after the other

    lambdas    numbers that scale the stream and the first embedding in front of each layer (2026-01-11)
    values     embeddings that every second layer adds to its values, by a gate (2026-01-17)
    smear      each token takes some of the one before it; half way, the stream is kept to be taken off (2026-03-14)
    padded     the vocabulary is padded (2025-12-09)
    """

    layers: int
    width: int
    heads: int
    vocabulary: int
    features: frozenset[str]
    float8: bool = False

    @property
    def rows(self) -> int:
        return -(-self.vocabulary // PADDED_TO) * PADDED_TO if "padded" in self.features else self.vocabulary

    def has_values(self, number: int) -> bool:
        return "values" in self.features and number % 2 == (self.layers - 1) % 2


class Linear(Module):
    """Weights in fp32, cast to what they are multiplied by: by autocast, or by the layer itself."""

    def __init__(self, inputs: int, outputs: int, float8: bool = False) -> None:
        self.weight = parameter(outputs, inputs, dtype=float32)
        whole = inputs % 16 == 0 and outputs % 16 == 0 and min(inputs, outputs) >= 128
        self.float8 = float8 and whole

    def forward(self, x: Tensor) -> Tensor:
        return products(x, self)[0]


def products(x: Tensor, *layers: Linear) -> list[Tensor]:
    """Of one operand, which a compiler takes to 8 bits once (``fx_graph_cse``)."""
    narrow = quantised(x) if any(layer.float8 for layer in layers) else x
    return [
        scaled_product(narrow, quantised(layer.weight), x.dtype)
        if layer.float8
        else F.linear(x, to(layer.weight, x.dtype))
        for layer in layers
    ]


def quantised(x: Tensor) -> Tensor:
    """In 8 bits, times one number (``fp8.py: _to_fp8``); the gradient is that of what it was made of."""
    out = Tensor(x.shape, float8)
    if autograd.tracked(x):
        shape, dtype = x.shape, x.dtype
        autograd.record(out, (x,), (), lambda g: (to(g, dtype) if g.shape == shape else Tensor(shape, dtype),))
    return out


@kernel
def scaled_product(x: Tensor, weight: Tensor, dtype: DType) -> Tensor:
    """``_Float8Matmul``: keeps both operands in 8 bits; backward, each is copied by columns, and the gradient is taken
    to 8 bits and copied by rows."""
    shape = (*x.shape[:-1], weight.shape[0])
    out = empty(shape, dtype)
    if autograd.tracked(x, weight):
        entering, own = x.shape, weight.shape

        def backward(g: Tensor) -> list[Tensor | None]:
            narrow = Tensor(shape, float8)
            columns = Tensor(own, float8)
            of_x = Tensor(entering, dtype)
            del columns
            rows, columns = Tensor(shape, float8), Tensor(entering, float8)
            of_weight = Tensor(own, dtype)
            del narrow, rows, columns
            return [of_x, of_weight]

        autograd.record(out, (x, weight), (x, weight), backward)
    return out


def norm(x: Tensor) -> Tensor:
    return F.rms_norm(x)


class Attention(Module):
    def __init__(self, sizes: Sizes, number: int) -> None:
        width, self.heads = sizes.width, sizes.heads
        self.c_q, self.c_k, self.c_v = (Linear(width, width, sizes.float8) for _ in range(3))
        self.c_proj = Linear(width, width, sizes.float8)
        self.ve_gate = Linear(GATE_CHANNELS, self.heads) if sizes.has_values(number) else None

    def forward(self, x: Tensor, value: Tensor | None, tables: tuple[Tensor, Tensor]) -> Tensor:
        batch, length, width = x.shape
        heads = (batch, length, self.heads, width // self.heads)
        q, k, v = (made.view(*heads) for made in products(x, self.c_q, self.c_k, self.c_v))
        if value is not None and self.ve_gate is not None:
            gate = F.sigmoid(self.ve_gate(x[..., :GATE_CHANNELS])) * 2.0
            v = v + gate.unsqueeze(-1) * value.view(*heads)
        q, k = (norm(turned(one, tables)) for one in (q, k))
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal=True)
        y = y.transpose(1, 2).contiguous().view(batch, length, width)
        return self.c_proj(y)  # type: ignore[no-any-return]


def turned(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    cosine, sine = tables
    return F.cat((first * cosine + second * sine, first * F.neg(sine) + second * cosine), 3)


class Perceptron(Module):
    """The square of relu."""

    def __init__(self, sizes: Sizes) -> None:
        self.c_fc = Linear(sizes.width, 4 * sizes.width, sizes.float8)
        self.c_proj = Linear(4 * sizes.width, sizes.width, sizes.float8)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.pow(F.relu(self.c_fc(x)), 2))  # type: ignore[no-any-return]


class Layer(Module):
    def __init__(self, sizes: Sizes, number: int) -> None:
        self.attn, self.mlp = Attention(sizes, number), Perceptron(sizes)
        self.first_stays = "smear" in sizes.features

    def forward(
        self,
        x: Tensor,
        first: Tensor,
        scale: Tensor | None,
        of_first: Tensor | None,
        value: Tensor | None,
        tables: tuple[Tensor, Tensor],
    ) -> Tensor:
        if scale is not None and of_first is not None:
            scaled = x * scale
            x = scaled + first * of_first
            # The sum is made once more where the first embedding is in memory to the end; where that would have to be
            # made again itself, the partitioner keeps the sum.
            if self.first_stays and type(x.storage) is Deferred:
                x.storage.sources = (scaled.storage,)
        x = x + self.attn(norm(x), value, tables)
        return x + self.mlp(norm(x))  # type: ignore[no-any-return]


class Nanochat(Module):
    """Token numbers and targets (B, T) -> mean cross entropy, in fp32, of logits that are bounded."""

    def __init__(self, sizes: Sizes, length: int, dtype: DType, compile: bool) -> None:
        self.sizes, self.dtype, self.compile = sizes, dtype, compile
        features, head = sizes.features, sizes.width // sizes.heads
        self.wte = table(sizes.rows, sizes.width, dtype)
        self.h = [Layer(sizes, number) for number in range(sizes.layers)]
        self.lm_head = Linear(sizes.width, sizes.rows, sizes.float8)
        self.resid_lambdas = parameter(sizes.layers) if "lambdas" in features else None
        self.x0_lambdas = parameter(sizes.layers) if "lambdas" in features else None
        self.smear_gate = Linear(SMEAR_CHANNELS, 1) if "smear" in features else None
        self.smear_lambda = parameter(1) if "smear" in features else None
        self.backout_lambda = parameter(1) if "smear" in features else None
        self.value_embeds = [
            table(sizes.rows, sizes.width, dtype) for number in range(sizes.layers) if sizes.has_values(number)
        ]
        self.cos, self.sin = (buffer(1, ROTATED * length, 1, head // 2, dtype=dtype) for _ in range(2))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        length = tokens.shape[1]
        tables = self.cos[:, :length], self.sin[:, :length]
        x = first = self.made(self.entered)(self.wte(tokens))
        values, half, kept = iter(self.value_embeds), self.sizes.layers // 2, None
        for number, layer in enumerate(self.h):
            scale = None if self.resid_lambdas is None else self.resid_lambdas[number]
            of_first = None if self.x0_lambdas is None else self.x0_lambdas[number]
            value = next(values)(tokens) if self.sizes.has_values(number) else None
            x = self.made(layer)(x, first, scale, of_first, value, tables)
            if number == half and self.backout_lambda is not None:
                kept = x
        if kept is not None:
            x = self.made(self.without)(x, kept)
        del first, value
        with component("logits"):
            return self.made(self.loss)(x, targets)  # type: ignore[no-any-return]

    def made(self, function: object) -> Compiled:
        return Compiled(function) if self.compile else function  # type: ignore[arg-type, return-value]

    def entered(self, x: Tensor) -> Tensor:
        x = norm(x)
        if self.smear_gate is None or self.smear_lambda is None:
            return x
        gate = F.sigmoid(self.smear_gate(x[:, 1:, :SMEAR_CHANNELS])) * to(self.smear_lambda, x.dtype)
        return F.cat((x[:, :1], x[:, 1:] + gate * x[:, :-1]), 1)

    def without(self, x: Tensor, kept: Tensor) -> Tensor:
        assert self.backout_lambda is not None
        return x - to(self.backout_lambda, x.dtype) * kept

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        logits = self.lm_head(norm(x))
        if self.sizes.rows != self.sizes.vocabulary:
            logits = logits[..., : self.sizes.vocabulary]
        logits = F.tanh(to(logits, float32) / 15.0) * 15.0
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.view(-1))


def table(rows: int, width: int, dtype: DType) -> Embedding:
    """In what is computed in, but for float16, whose gradients could not be scaled back (``init_weights``)."""
    with default_dtype(bfloat16 if dtype is bfloat16 else float32):
        return Embedding(rows, width)


# --------------------------------------------------------------------------------------------------------- the run


def uncompiled(spec: TrainingSpec) -> TrainingSpec:
    """The same run where the compiler fuses nothing."""
    return spec.replaced({"compile": False})


def build(spec: TrainingSpec) -> System:
    """The System of ``architecture = "nanochat"``. Raises UnknownModel for sizes that cannot be."""
    sizes = sizes_of(spec)
    length, rows = sequence_length(spec), spec["micro_batch_size"]
    model = Nanochat(sizes, length, DTYPES[spec["compute_dtype"]], bool(spec.get("compile", False)))

    def loss(given: tuple[Tensor, Tensor]) -> Tensor:
        out: Tensor = model(*given)
        return out

    def batch() -> tuple[Tensor, Tensor]:
        both = empty((2, rows, length), int64)  # one buffer, of which inputs and targets are halves
        return both[0], both[1]

    return System(
        model=model,
        batch=batch,
        loss=loss,
        optimizer=optim.known("nanochat_muon"),
        optimizer_options={
            "matrices": [weight for layer in model.h for weight in layer.parameters()],
            "ranks": int(spec.get("world_size") or 1),
            "stacked": bool(spec.get(HYPER + "stacked", True)),
        },
        accumulation=spec.get("gradient_accumulation_steps", 1),
    )


def sizes_of(spec: TrainingSpec) -> Sizes:
    layers, width, head = (spec.get(HYPER + name) or 0 for name in ("depth", "width", "head_width"))
    vocabulary = spec.get("vocabulary_size") or 0
    if not layers or not width or not vocabulary:
        raise UnknownModel("the depth, the width or the vocabulary are not stated")
    if layers > MOST_LAYERS:
        raise UnknownModel(f"depth {layers:,}: so many layers are not built")
    heads = width // head if head and width % head == 0 else 0
    if not heads or head % 2:
        raise UnknownModel(f"a width of {width:,} is not divided into heads of {head:,}")
    features = frozenset(spec.get(HYPER + "features") or ())
    return Sizes(layers, width, heads, vocabulary, features, bool(spec.get(HYPER + "fp8", False)))
