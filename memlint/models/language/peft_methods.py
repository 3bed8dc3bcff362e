"""Adapters of PEFT beyond LoRA's own family: most stand beside a linear layer, some in its place.

    VeRA       b * (B (d * (A x)))          A and B are random, and one pair serves every layer
    RandLoRA   B (A' x)                     A' = lambda * A * gamma: full rank from one random pair
    AdaLoRA    B ((E * A) x) / rank         and three statistics of importance per trained number
    DeLoRA     B (s * (A (w * x)))          s from the norms of A and B, w those of the weight
    GraLoRA    LoRA in k x k blocks, whose ranks are exchanged
    LoHa, LoKr, FourierFT                   x times a whole matrix that is made in each call
    OFT        base(R x), R block-diagonal; BOFT: R made whole; PSOFT: B (R - 1) A x
    LN tuning, trainable tokens             copies of norms, of rows of the embedding

Source: ``peft`` 0.21.2, ``tuners/<method>/layer.py`` and ``config.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isqrt
from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.facts.spec import TrainingSpec
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import no_grad, record, tracked
from memlint.meta.nn import Embedding, Linear, Module, buffer, parameter
from memlint.meta.tensor import DType, Tensor, bfloat16, empty, empty_like, float16, float32, int64
from memlint.models import UnknownModel
from memlint.models.language.adapters import copied, is_target, sizes_of
from memlint.models.language.decoder import LanguageModel, replace_linears
from memlint.models.language.prompts import with_prefixes, with_prompts
from memlint.models.language.quantisation import QUANTISED


def made(shape: Sequence[int], dtype: DType, inputs: Sequence[Tensor], saved: Sequence[Tensor]) -> Tensor:
    """The result of an operation that is one kernel: it keeps ``saved``, and gives each input its gradient."""
    out = Tensor(tuple(shape), dtype)
    if tracked(*inputs):
        kinds = [(x.shape, x.dtype) if x.requires_grad else None for x in inputs]
        record(out, inputs, saved, lambda g: [None if kind is None else Tensor(*kind) for kind in kinds])
    return out


class Beside(Module):
    """A linear layer with an adapter that is added to its result."""

    def __init__(self, base: Module) -> None:
        self.base_layer = base
        self.inputs, self.outputs = sizes_of(base)

    @property
    def weight(self) -> Tensor:
        return self.base_layer.weight  # type: ignore[attr-defined,no-any-return]

    @property
    def bias(self) -> Tensor | None:
        return self.base_layer.bias  # type: ignore[attr-defined,no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        result = self.base_layer(x)
        return to(result + self.added(x, result), result.dtype)

    def added(self, x: Tensor, result: Tensor) -> Tensor:
        raise NotImplementedError


class VeraLinear(Beside):
    def __init__(self, base: Module, rank: int, dropout: float, first: Tensor, second: Tensor) -> None:
        super().__init__(base)
        self.vera_A, self.vera_B, self.dropout = first, second, dropout
        self.vera_lambda_b, self.vera_lambda_d = parameter(self.outputs), parameter(rank)

    def added(self, x: Tensor, result: Tensor) -> Tensor:
        first = F.narrow(self.vera_A, 1, self.inputs)
        second = F.narrow(self.vera_B, 0, self.outputs)
        x = F.dropout(to(x, self.vera_lambda_d.dtype), self.dropout, self.training)
        return self.vera_lambda_b * F.linear(self.vera_lambda_d * F.linear(x, first), second)


class RandLinear(Beside):
    def __init__(self, base: Module, rank: int, dropout: float, first: Tensor, second: Tensor) -> None:
        super().__init__(base)
        self.narrow, self.wide = min(self.inputs, self.outputs), max(self.inputs, self.outputs)
        self.rank, self.bases, self.dropout = rank, -(-self.narrow // rank), dropout
        self.randlora_A, self.randlora_B = first, second
        self.randlora_lambda = parameter(rank, self.bases)
        self.randlora_gamma = parameter(self.bases, self.narrow)

    def scaled(self) -> Tensor:
        """(rank * bases, narrow side): ``UniqueBaseGrad`` keeps its inputs alone."""
        shape, dtype = (self.rank, self.bases, self.narrow), self.randlora_lambda.dtype
        partial = Tensor(shape, dtype)
        out = Tensor(shape, dtype)
        del partial
        weights = (self.randlora_lambda, self.randlora_gamma)
        if tracked(*weights):
            kinds = [(x.shape, x.dtype) for x in weights]

            def backward(g: Tensor) -> list[Tensor]:
                product = Tensor(shape, dtype)
                grads = [Tensor(*kind) for kind in kinds]
                del product
                return grads

            record(out, weights, (self.randlora_A, *weights), backward)
        return out.reshape(self.rank * self.bases, self.narrow)  # type: ignore[no-any-return]

    def added(self, x: Tensor, result: Tensor) -> Tensor:
        second = F.narrow(F.narrow(self.randlora_B, 0, self.wide), 1, self.bases)
        random = second.reshape(self.wide, self.bases * self.rank)
        scaled = self.scaled()
        x = F.dropout(to(x, scaled.dtype), self.dropout, self.training)
        if self.narrow == self.inputs:
            return F.linear(F.linear(x, scaled), random) * 1.0
        return F.linear(F.linear(x, random.transpose(0, 1)), scaled.transpose(0, 1)) * 1.0


class AdaLoraLinear(Beside):
    """``importance``: what the rank allocator keeps per trained number, from the first step to the last of them."""

    def __init__(self, base: Module, rank: int, dropout: float) -> None:
        super().__init__(base)
        self.lora_A, self.lora_E = parameter(rank, self.inputs), parameter(rank, 1)
        self.lora_B = parameter(self.outputs, rank)
        self.ranknum = parameter(1)
        self.ranknum.requires_grad = False
        self.dropout = dropout
        trained = (self.lora_A, self.lora_E, self.lora_B)
        self.importance = [Kept(tensor) for tensor in trained for _ in range(3)]

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.base_layer(x)
        x = F.dropout(to(x, self.lora_A.dtype), self.dropout, self.training)
        ranks = self.ranknum + 1e-5
        first = (self.lora_A * self.lora_E).transpose(0, 1)
        product = F.matmul(F.matmul(x, first), self.lora_B.transpose(0, 1)) * 1.0
        return F.add_(result, product / ranks)


class Kept(Module):
    """A statistic of a parameter."""

    def __init__(self, like: Tensor) -> None:
        self.values = buffer(*like.shape, dtype=like.dtype)


class DeloraLinear(Beside):
    def __init__(self, base: Module, rank: int, dropout: float) -> None:
        super().__init__(base)
        self.delora_A, self.delora_B = parameter(rank, self.inputs), parameter(self.outputs, rank)
        self.delora_lambda = parameter(1)
        self.delora_w_norm = buffer(self.inputs, dtype=self.delora_A.dtype)
        self.dropout = dropout

    def norm(self, x: Tensor, rank: int) -> Tensor:
        length = made((rank,), x.dtype, (x,), ())
        if tracked(x) and length.node is not None:
            length.node.saved = (x.storage, length.storage)
        return F.clamp(length)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.base_layer(x)
        rank = self.delora_A.shape[0]
        out = empty_like(result)
        h = F.linear(F.dropout(x, self.dropout, self.training) * self.delora_w_norm, self.delora_A)
        scaling = (self.delora_lambda / 1.0) / (self.norm(self.delora_A, rank) * self.norm(self.delora_B, rank))
        h = F.linear(h * scaling, self.delora_B)
        out = F.add_(out, h)
        return result + to(out, result.dtype)


class GraloraLinear(Beside):
    def __init__(self, base: Module, rank: int, dropout: float, blocks: int, hybrid: int) -> None:
        super().__init__(base)
        if self.inputs % blocks or self.outputs % blocks:
            raise UnknownModel(f"GraLoRA: {self.inputs} x {self.outputs} is not divisible into {blocks} blocks")
        self.rank, self.blocks, self.dropout = rank, blocks, dropout
        self.gralora_A = parameter(blocks, self.inputs // blocks, rank)
        self.gralora_B = parameter(blocks, rank, self.outputs // blocks)
        self.general_A = Linear(self.inputs, hybrid, bias=False) if hybrid else None
        self.general_B = Linear(hybrid, self.outputs, bias=False) if hybrid else None

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.base_layer(x)
        rows, length, _ = x.shape
        n, r = self.blocks, self.rank
        wide = F.dropout(to(x, self.gralora_A.dtype), self.dropout, self.training)
        first = per_block(wide.view(rows, length, n, -1), self.gralora_A)
        first = first.view(rows, length, n, n, r // n).permute(0, 1, 3, 2, 4).reshape(rows, length, n, r)
        second = per_block(first, self.gralora_B)
        del first
        out = second.reshape(rows, length, -1)
        del second
        result = F.add_(result, to(out, result.dtype) * 1.0)
        if self.general_A is not None and self.general_B is not None:
            wide = F.dropout(to(x, self.gralora_A.dtype), self.dropout, self.training)
            result = F.add_(result, to(self.general_B(self.general_A(wide)), result.dtype) * 1.0)
        return result


def per_block(x: Tensor, weight: Tensor) -> Tensor:
    """``einsum("blni,nir->blnr")``: (B, S, n, i) times (n, i, r), as a product of batches."""
    rows, length, blocks, _ = x.shape
    folded = x.permute(2, 0, 1, 3).reshape(blocks, rows * length, -1)
    out: Tensor = F.bmm(folded, weight).view(blocks, rows, length, -1).permute(1, 2, 0, 3)
    return out


class WholeLinear(Beside):
    """x times a matrix of the base layer's shape that each call makes anew, and keeps."""

    def delta(self) -> Tensor:
        raise NotImplementedError

    def added(self, x: Tensor, result: Tensor) -> Tensor:
        delta = self.delta()
        return F.linear(to(x, delta.dtype), delta)


class LohaLinear(WholeLinear):
    def __init__(self, base: Module, rank: int) -> None:
        super().__init__(base)
        self.hada_w1_a, self.hada_w1_b = parameter(self.outputs, rank), parameter(rank, self.inputs)
        self.hada_w2_a, self.hada_w2_b = parameter(self.outputs, rank), parameter(rank, self.inputs)

    def delta(self) -> Tensor:
        shape, dtype = (self.outputs, self.inputs), self.hada_w1_a.dtype
        first = Tensor(shape, dtype)
        second = Tensor(shape, dtype)
        product = Tensor(shape, dtype)
        del first, second
        out = Tensor(shape, dtype)
        del product
        weights = (self.hada_w1_a, self.hada_w1_b, self.hada_w2_a, self.hada_w2_b)
        if tracked(*weights):
            kinds = [(x.shape, x.dtype) for x in weights]

            def backward(g: Tensor) -> list[Tensor]:
                scaled = Tensor(shape, dtype)
                grads = []
                for number in (0, 2):
                    product = Tensor(shape, dtype)
                    product = Tensor(shape, dtype)  # while the first is still held
                    grads += [Tensor(*kinds[number]), Tensor(*kinds[number + 1])]
                    del product
                del scaled
                return grads

            record(out, weights, weights, backward)
        return out


def factors(size: int, factor: int) -> tuple[int, int]:
    """Two numbers whose product is ``size``, the smaller first, as near to ``factor`` as can be (-1: to its root)."""
    if factor > 0 and size % factor == 0:
        return factor, size // factor
    limit = size if factor == -1 else factor
    small, large = 1, size
    for candidate in range(2, isqrt(size) + 1):
        if size % candidate:
            continue
        if candidate > limit or candidate + size // candidate > small + large or small >= large:
            break
        small, large = candidate, size // candidate
    return (small, large) if small <= large else (large, small)


class LokrLinear(WholeLinear):
    def __init__(self, base: Module, rank: int, both: bool, factor: int) -> None:
        super().__init__(base)
        (m, n), (a, k) = factors(self.inputs, factor), factors(self.outputs, factor)
        self.small, self.large = (a, m), (k, n)
        split = both and rank < max(a, m) / 2
        self.lokr_w1 = None if split else parameter(a, m)
        self.lokr_w1_a = parameter(a, rank) if split else None
        self.lokr_w1_b = parameter(rank, m) if split else None
        whole = rank >= max(k, n) / 2
        self.lokr_w2 = parameter(k, n) if whole else None
        self.lokr_w2_a = None if whole else parameter(k, rank)
        self.lokr_w2_b = None if whole else parameter(rank, n)

    def delta(self) -> Tensor:
        first = self.lokr_w1 if self.lokr_w1 is not None else F.mm(self.lokr_w1_a, self.lokr_w1_b)  # type: ignore[arg-type]
        second = self.lokr_w2 if self.lokr_w2 is not None else F.mm(self.lokr_w2_a, self.lokr_w2_b)  # type: ignore[arg-type]
        (a, m), (k, n) = self.small, self.large
        product = first.view(a, 1, m, 1) * second.view(1, k, 1, n)
        out: Tensor = product.reshape(a * k, m * n)
        del product
        return out * 1.0


class FourierLinear(WholeLinear):
    def __init__(self, base: Module, frequencies: int) -> None:
        super().__init__(base)
        self.spectrum = parameter(frequencies)

    def delta(self) -> Tensor:
        shape = (self.outputs, self.inputs)
        places = empty((2, self.spectrum.shape[0]), int64)  # kept on the host, and copied in each call
        spectrum = to(self.spectrum, float32)
        dense = made(shape, float32, (spectrum,), (places,))
        wide = made((*shape, 2), float32, (dense,), ())
        del dense
        inverse = made((*shape, 2), float32, (wide,), ())
        del wide
        real = made(shape, float32, (inverse,), ())
        del inverse
        return to(real, self.spectrum.dtype)


def skew(vector: Tensor, blocks: tuple[int, ...], size: int) -> Tensor:
    """(..., size, size) from the numbers above the diagonal."""
    whole = made((*blocks, size, size), vector.dtype, (vector,), ())
    out: Tensor = whole - whole.transpose(-2, -1)
    return out


def cayley(q: Tensor, neumann: bool, terms: int) -> Tensor:
    """(I + Q)(I - Q)^-1, solved or by a series, whose powers are all kept."""
    if not neumann:
        one = empty(q.shape, float32)
        out = made(q.shape, q.dtype, (one + q, one - q), ())
        if out.node is not None:
            out.node.saved = (*(Tensor(q.shape, q.dtype).storage for _ in range(2)), out.storage)
        return out
    out = empty(q.shape, q.dtype)
    if terms > 1:
        out = F.add_(out, q)
        if terms > 2:
            power = square = F.matmul(q, q)
            out = F.add_(out, square)
            for _ in range(3, terms - 1):
                power = F.matmul(power, q)
                out = F.add_(out, power)
            out = F.add_(out, F.matmul(power, q))
    return out


class RotatedLinear(Module):
    """OFT: the input is rotated in blocks."""

    def __init__(self, base: Module, blocks: int, size: int, shared: bool, neumann: bool, terms: int) -> None:
        self.base_layer = base
        inputs, _ = sizes_of(base)
        if blocks == 0 and size != 0:
            size = nearest_divisor(inputs, size)
            blocks = inputs // size
        elif blocks != 0 and size == 0:
            blocks = nearest_divisor(inputs, blocks)
            size = inputs // blocks
        else:
            raise UnknownModel("OFT: one of r and oft_block_size is 0, and the other is not")
        if shared:
            raise UnknownModel("OFT: blocks that share one matrix are not known")
        self.blocks, self.size, self.neumann, self.terms = blocks, size, neumann, terms
        self.oft_R = parameter(blocks, size * (size - 1) // 2)
        self.rows = buffer(size * (size - 1) // 2, dtype=int64)
        self.cols = buffer(size * (size - 1) // 2, dtype=int64)

    @property
    def weight(self) -> Tensor:
        return self.base_layer.weight  # type: ignore[attr-defined,no-any-return]

    @property
    def bias(self) -> Tensor | None:
        return self.base_layer.bias  # type: ignore[attr-defined,no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        dtype, shape = x.dtype, x.shape
        x = to(x, self.oft_R.dtype)
        rotation = cayley(skew(self.oft_R, (self.blocks,), self.size), self.neumann, self.terms)
        turned = per_block(x.reshape(*shape[:-1], self.blocks, self.size), rotation)
        del rotation
        x = turned.reshape(*shape)
        del turned
        return self.base_layer(to(x, dtype))  # type: ignore[no-any-return]


def nearest_divisor(size: int, wanted: int) -> int:
    """The divisor of ``size`` that is nearest to ``wanted``; of two, the smaller (``adjust_oft_parameters``)."""
    small = [n for n in range(1, isqrt(size) + 1) if size % n == 0]
    return min((*small, *(size // n for n in small)), key=lambda n: (abs(n - wanted), n))


class ButterflyLinear(RotatedLinear):
    """BOFT without its CUDA extension, so with one factor: the rotation is made as a whole matrix.

    ``on_host``: the model was on the card when it was adapted, and nothing has moved it since. PEFT moves the
    parameters that it adds, and not the permutation, of which each call makes a copy on the card.
    """

    def __init__(self, base: Module, size: int, blocks: int, on_host: bool = False) -> None:
        self.base_layer = base
        self.inputs, self.outputs = sizes_of(base)
        if (size == 0) == (blocks == 0) or self.inputs % (size or blocks):
            raise UnknownModel("BOFT: one of block size and number is 0, and the other divides the inputs")
        size = size or self.inputs // blocks
        self.size, self.blocks = size, self.inputs // size
        self.boft_R = parameter(1, self.blocks, size, size)
        self.boft_s = parameter(self.outputs, 1)
        self.boft_P = None if on_host else buffer(1, self.inputs, self.inputs)

    def forward(self, x: Tensor) -> Tensor:
        width, dtype = self.inputs, x.dtype
        eye = empty((width, width), dtype)
        ones = empty((self.outputs, 1), dtype)
        blocks = self.boft_R.view(self.blocks, self.size, self.size)
        turned = (blocks - blocks.transpose(1, 2)) * 0.5
        rotation = cayley(turned, False, 0)
        whole = made((1, width, width), rotation.dtype, (rotation,), ())
        permutation = empty((1, width, width), dtype) if self.boft_P is None else to(self.boft_P, dtype)
        lowered = to(whole, dtype)
        product = F.bmm(lowered, permutation.permute(0, 2, 1))
        product = F.bmm(permutation, product)
        first = F.mm(product.view(width, width), eye)
        scale = self.boft_s * ones
        rotated = F.matmul(x, first)
        result: Tensor = self.base_layer(rotated)
        bias = self.bias
        if bias is not None:
            result = result - bias
        result = result * scale.view(self.outputs)
        if bias is not None:
            result = result + bias
        return to(result, dtype)


class PsoftLinear(Beside):
    """``A`` and ``B``: the largest singular vectors of the weight, in its dtype.

    By a full decomposition on a card, ``A`` is the first rows of all of them: cuSOLVER's V lies so that those rows are
    in one piece, and ``contiguous`` copies nothing (torch, ``BatchLinearAlgebra.cpp``: the strides of ``Vh``).
    """

    def __init__(self, base: Module, rank: int, dropout: float, options: dict[str, Any]) -> None:
        super().__init__(base)
        if not options["psoft_orth"] or options["cayley_neumann_eps"] is not None:
            raise UnknownModel("PSOFT: a matrix that is no rotation, or a bounded series, is not known")
        self.rank, self.dropout = rank, dropout
        self.neumann, self.terms = options["use_cayley_neumann"], options["num_cayley_neumann_terms"]
        self.psoft_R = parameter(rank * (rank - 1) // 2)
        self.rows = buffer(rank * (rank - 1) // 2, dtype=int64)
        self.cols = buffer(rank * (rank - 1) // 2, dtype=int64)
        self.vector_a = parameter(rank) if options["psoft_mag_a"] else None
        self.vector_b = parameter(rank) if options["psoft_mag_b"] else None
        whole = options.get("psoft_svd") == "full" and options.get("ab_svd_init", "psoft_init") == "psoft_init"
        self.vectors = buffer(min(self.inputs, self.outputs) if whole else rank, self.inputs)
        self.psoft_A = self.vectors[:rank]
        self.psoft_B = buffer(self.outputs, rank)

    def rotation(self) -> Tensor:
        q = skew(self.psoft_R, (), self.rank)
        dtype = q.dtype
        if not self.neumann and dtype in (float16, bfloat16):
            q = to(q, float32)
        out = cayley(q, self.neumann, self.terms)
        if self.vector_b is not None:
            out = self.vector_b.unsqueeze(1) * out
        if self.vector_a is not None:
            out = out * self.vector_a.unsqueeze(0)
        return to(out, dtype)

    def added(self, x: Tensor, result: Tensor) -> Tensor:
        x = F.dropout(to(x, self.psoft_A.dtype), self.dropout, self.training)
        first = F.matmul(x, self.psoft_A.transpose(0, 1))
        del x
        turned = F.matmul(first, to(self.rotation(), first.dtype).transpose(0, 1))
        return F.matmul(turned - first, self.psoft_B.transpose(0, 1)) * 1.0


class TokenEmbedding(Module):
    """Trainable tokens: each call copies the whole embedding to put the trained rows into it."""

    def __init__(self, base: Any, rows: int) -> None:
        self.base_layer = base
        self.rows = rows
        with no_grad():
            self.delta = parameter(rows, base.weight.shape[1])
        # get_merged_weights makes the places anew in each call, and so they are no buffer

    def merged(self) -> Tensor:
        base: Tensor = self.base_layer.weight
        places = empty((self.rows,), int64)
        delta = to(self.delta, base.dtype)
        return made(base.shape, base.dtype, (base, delta), (places,))

    @property
    def weight(self) -> Tensor:
        """What a tied head multiplies by is made once more."""
        return self.merged()

    def forward(self, index: Tensor) -> Tensor:
        return F.embedding(index, self.merged())


# -------------------------------------------------------------------------------------------------- which modules

# Methods that replace linear layers; the others have a function each.
LINEAR = frozenset(("adalora", "delora", "gralora", "loha", "lokr", "fourierft", "psoft", "vera", "randlora")) | {
    "oft_input",
    "boft",
}

Builder = Callable[[Module], Module]


def adapt(model: LanguageModel, spec: TrainingSpec, config: Decoder, method: str) -> None:
    """Put the adapter of a method into a frozen model. Within ``default_dtype`` of the adapter.

    Facts: ``lora.*``, ``adapter.options``. Raises UnknownModel for methods that are not known.
    """
    if method == "ln_tuning":
        return _norms(model, spec)
    if method == "adaption_prompt":
        return with_prompts(model, spec, config)
    if method == "prefix":
        return with_prefixes(model, spec, config)
    if method == "trainable_tokens":
        return _tokens(model, spec, config)
    options: dict[str, Any] = spec.get("adapter.options") or {}
    build = _builder(spec, method, options)
    targets: Any = spec.get("lora.targets")
    if targets is None:
        targets = config.adapters.lora
        if not targets:
            raise UnknownModel(f"PEFT has no default modules for {config.adapters.name}, and none are stated")
    every = targets == "all-linear" or list(targets) == ["all-linear"]
    saved = spec.get("lora.modules_to_save") or ()
    chosen: list[Module] = []

    def wanted(name: str, base: Module) -> bool:
        if name == "lm_head" if every else not is_target(name, targets):
            return False
        if is_target(name, [saved] if isinstance(saved, str) else list(saved)):
            return False
        if isinstance(base, QUANTISED) or not isinstance(base, Linear):
            raise UnknownModel(f"{method} over layers other than plain linear ones is not known")
        return True

    def collect(name: str, base: Module) -> Module | None:
        if wanted(name, base):
            chosen.append(base)
        return None

    replace_linears(model, collect)
    if not chosen:
        raise UnknownModel(f"no linear layer of {config.adapters.name} is called {', '.join(targets)}")
    make = build(chosen)
    replace_linears(model, lambda name, base: make(base) if wanted(name, base) else None)


def _builder(spec: TrainingSpec, method: str, options: dict[str, Any]) -> Callable[[list[Module]], Builder]:
    """From all layers that are adapted to what makes one of them."""
    if method not in LINEAR:
        raise UnknownModel(f"tuning of kind {method!r} is not known")
    rank, dropout = spec.get("lora.r"), float(spec.get("lora.dropout") or 0.0)
    if rank is None:
        raise UnknownModel(f"the rank of {method} is not known")
    if options.get("rank_dropout") or options.get("module_dropout"):
        raise UnknownModel(f"{method} with dropout is not known")
    simple: dict[str, Builder] = {
        "adalora": lambda base: AdaLoraLinear(base, rank, dropout),
        "delora": lambda base: DeloraLinear(base, rank, dropout),
        "gralora": lambda base: GraloraLinear(
            base, rank, dropout, options.get("gralora_k", 2), options.get("hybrid_r", 0)
        ),
        "loha": lambda base: LohaLinear(base, rank),
        "lokr": lambda base: LokrLinear(
            base, rank, options.get("decompose_both", False), options.get("decompose_factor", -1)
        ),
        "fourierft": lambda base: FourierLinear(base, rank),
        "psoft": lambda base: PsoftLinear(base, rank, dropout, options),
    }
    if method in simple:
        return lambda chosen: simple[method]
    if method == "vera":
        return lambda chosen: _vera(chosen, rank, dropout)
    if method == "randlora":
        return lambda chosen: _randlora(chosen, rank, dropout)
    if dropout or options.get("coft"):
        raise UnknownModel(f"{method} with dropout or a constraint is not known")
    if method == "oft_input":
        return lambda chosen: (
            lambda base: RotatedLinear(
                base,
                rank,
                options.get("oft_block_size", 32),
                options.get("block_share", False),
                options.get("use_cayley_neumann", True),
                options.get("num_cayley_neumann_terms", 5),
            )
        )
    return lambda chosen: (
        lambda base: ButterflyLinear(
            base, rank, options.get("boft_block_num", 0), options.get("permutation_on_host", False)
        )
    )


def _vera(chosen: list[Module], rank: int, dropout: float) -> Builder:
    sizes = [sizes_of(base) for base in chosen]
    first = buffer(rank, max(inputs for inputs, _ in sizes))
    second = buffer(max(outputs for _, outputs in sizes), rank)
    return lambda base: VeraLinear(base, rank, dropout, first, second)


def _randlora(chosen: list[Module], rank: int, dropout: float) -> Builder:
    """``_find_dim``: the largest of both sides over all layers."""
    sizes = [sizes_of(base) for base in chosen]
    narrow, wide = max(min(pair) for pair in sizes), max(max(pair) for pair in sizes)
    bases = -(-narrow // rank)
    first, second = buffer(rank, 1, narrow), buffer(wide, bases, rank)
    return lambda base: RandLinear(base, rank, dropout, first, second)


def _norms(model: LanguageModel, spec: TrainingSpec) -> None:
    """Copies of the norms train, in the dtype that they have."""
    targets: Any = spec.get("lora.targets") or ("input_layernorm", "post_attention_layernorm", "norm")
    kept = _copied_where(model, targets, "")
    if not kept:
        raise UnknownModel(f"no module is called {', '.join(targets)}")
    model.originals = [*model.originals, *kept]


def _copied_where(module: Module, targets: Any, path: str) -> list[Module]:
    """What copies were put in the place of."""
    kept: list[Module] = []
    for own, child in list(module.children()):
        full = f"{path}.{own}" if path else own
        if not is_target(full, targets):
            kept += _copied_where(child, targets, full)
        elif "." in own:
            raise UnknownModel(f"LN tuning of {full} is not known")
        else:
            kept.append(child)
            setattr(module, own, copied(child))
    return kept


def _tokens(model: LanguageModel, spec: TrainingSpec, config: Decoder) -> None:
    places = (spec.get("adapter.options") or {}).get("token_indices")
    if not places:
        raise UnknownModel("which tokens train is not known")
    targets: Any = spec.get("lora.targets") or ("embed_tokens",)
    if not is_target("embed_tokens", targets) or not isinstance(model.embed_tokens, Embedding):
        raise UnknownModel("trainable tokens of another module than the embedding are not known")
    model.embed_tokens = TokenEmbedding(model.embed_tokens, len(places))  # type: ignore[assignment]
