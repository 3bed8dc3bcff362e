"""What Megatron-LM and GPT-NeoX compute with functions of their own: products of split weights, fused kernels, losses.

Shapes and sources as in :mod:`memlint.models.language.megatron`.
"""

from __future__ import annotations

from typing import Any

from memlint.meta.autograd import record, tracked
from memlint.meta.nn import Linear, buffer
from memlint.meta.tensor import DType, Shape, Tensor, bool_, empty, empty_like, float32, int64, state, uint8
from memlint.named_tuple import NamedTuple


class Kernels(NamedTuple):
    """What is one kernel, and what is done in steps.

    norm, gate, rotary, softmax, dropout   one kernel each: RMSNorm; bias and activation; rotations; scale, mask and
             softmax; bias, dropout and sum
    flash    attention is one, too
    recomputes   parts of a layer that are made again in backward (``recompute_modules``): "core_attn" (arXiv
             2205.05198, section 5), "mlp", "moe", "moe_act", "layernorm", "mla_up_proj", "shared_experts"
    ranks    that share the tokens between layers (sequence parallelism)
    adds     products add gradients of their weights to the buffer of all of them (gradient accumulation fusion)
    experts, each   ranks that share the experts, and that share each of them
    float8   products in float8 (Transformer Engine): what they keep of their input is its copy in one byte. Weights
             have two such copies, by rows and by columns, unless they are nothing but these (``weights8``)
    loss_in_place   Transformer Engine's loss, which makes no copy of the logits
    loss_compiled   Megatron's own, through torch.compile
    capacity    rows that an expert takes at most, in shares of those of balanced routing; 0 for any number
    fills       experts take as many rows as they may, whatever is sent to them
    workspace_bytes  that each of Transformer Engine's streams gives cuBLAS; 0 for Megatron's own layers
    """

    norm: bool
    gate: bool
    rotary: bool
    softmax: bool
    dropout: bool
    flash: bool
    recomputes: frozenset[str]
    ranks: int
    adds: bool
    experts: int = 1
    each: int = 1
    float8: bool = False
    weights8: bool = False
    loss_in_place: bool = False
    loss_compiled: bool = False
    capacity: float = 0.0
    fills: bool = False
    workspace_bytes: int = 0

    def kept(self, x: Tensor) -> Tensor:
        """What a product keeps of its input."""
        return empty(x.shape, uint8) if self.float8 and x.requires_grad else x

    def copies(self, *shape: int) -> Tensor | None:
        """Of a weight in float8, which last from one step to the next (``get_weight_workspace``)."""
        return buffer(2, *shape, dtype=uint8) if self.float8 and not self.weights8 else None

    def weight_gradient(self, shape: Shape, dtype: DType) -> Tensor:
        """Of a product's weight: a tensor of its own, or a place in the buffer."""
        return Tensor(shape, dtype, state.bucket if self.adds else None)


# ------------------------------------------------------------------------------------------------------- products


def resized(shape: Shape, times: int) -> Shape:
    return (shape[0], shape[1] * times, *shape[2:])


def column_product(x: Tensor, weight: Tensor, bias: Tensor | None, kernels: Kernels) -> Tensor:
    """(B, S', W) -> (B, S, outputs): the weight's rows are shared, and tokens are gathered for the product.

    Keeps x: 2 S' B W bytes. Backward gathers it again beside the gradient (``LinearWithGradAccumulation...``).
    """
    ranks = kernels.ranks
    wide = resized(x.shape, ranks)
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

        kept = kernels.kept(x) if needs[1] else None
        record(out, (x, weight, bias), (kept, weight if needs[0] else None), backward)
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

        kept = kernels.kept(x) if needs[1] else None
        record(out, (x, weight), (kept, weight if needs[0] else None), backward)
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
        self.copies = kernels.copies(outputs, inputs)

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


def moved(x: Tensor, shape: Shape, *kept: Tensor) -> Tensor:
    """Rows in another order, or on other ranks; backward moves gradients back."""
    out = Tensor(shape, x.dtype)
    if tracked(x):
        own, dtype = x.shape, x.dtype
        record(out, (x,), kept, lambda g: (Tensor(own, dtype),))
    return out


def passed(x: Tensor, bias: Tensor | None, shape: Shape, kept: tuple[Tensor, ...]) -> Tensor:
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
    return passed(x, bias, (*x.shape[:-1], inner), kept)


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
    return passed(x, None, x.shape, ())


def cross_entropy_in_place(logits: Tensor, labels: Tensor) -> Tensor:
    """Transformer Engine's ``parallel_cross_entropy``: the gradient is written over the logits as they are read."""
    batch, length, _ = logits.shape
    out = empty((batch, length), float32)
    if tracked(logits):
        shape, dtype = logits.shape, logits.dtype
        cell: list[Any] = []
        record(out, (logits,), (logits,), lambda g: [Tensor(shape, dtype, cell.pop().saved[0])])
        cell.append(out.node)
    return out


def parallel_cross_entropy(logits: Tensor, labels: Tensor, compiled: bool = False) -> Tensor:
    """``vocab_parallel_cross_entropy``: logits (B, S, V / t) are copied to fp32 and turned into their softmax in place,
    which is kept, 4 S B V / t bytes; backward makes the gradient in that same memory, then rounds it.

    As ``fused_vocab_parallel_cross_entropy`` it goes through torch.compile, which writes to a copy of the softmax where
    the classes that are right are subtracted (``calculate_gradients``; the code that inductor of torch 2.13 makes).
    """
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
            copy = Tensor(shape, float32) if compiled else None
            made = kept if dtype is float32 else Tensor(shape, dtype)
            del copy
            return [made]

        record(out, (logits,), (wide, beyond, places), backward)
        cell.append(out.node)
    del most, predicted, sums
    return out
