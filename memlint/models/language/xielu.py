"""Apertus' perceptron: two products, and between them xIELU, an activation with two learned numbers (arXiv:2411.13010).

    x > 0: a x x + b x        else: (expm1(min(x, eps)) - x) c + b x

transformers computes it in plain torch, and takes a kernel where the package for that is installed. Of the kernel no
more is taken here than it cannot do without: it keeps its input.

Source: ``transformers`` 5.23, ``activations.py`` (``XIELUActivation._xielu_python``),
``models/apertus/modeling_apertus.py`` (``ApertusMLP``).
"""

from __future__ import annotations

from memlint.meta import functional as F
from memlint.meta.amp import upper
from memlint.meta.autograd import record, tracked
from memlint.meta.nn import Linear, Module, buffer, parameter
from memlint.meta.tensor import Tensor, bool_, empty
from memlint.models.language.gated_delta import softplus


class Xielu(Module):
    def __init__(self, kernel: bool) -> None:
        self.kernel = kernel
        self.alpha_p = parameter(1)
        self.alpha_n = parameter(1)
        self.beta = buffer(dtype=self.alpha_p.dtype)
        self.eps = buffer(dtype=self.alpha_p.dtype)

    def forward(self, x: Tensor) -> Tensor:
        if self.kernel:
            return F.gelu(x)  # keeps its input, too
        above, below = softplus(upper(self.alpha_p)), self.beta + softplus(upper(self.alpha_n))
        positive = empty(x.shape, bool_)
        right = above * x * x + self.beta * x
        left = (F.expm1(F.minimum(x, self.eps)) - x) * below + self.beta * x
        return where(positive, right, left)


def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Of two tensors of one shape; keeps the condition."""
    wide = max(x.dtype, y.dtype, key=lambda dtype: dtype.itemsize)
    out = Tensor(x.shape, wide)
    if tracked(x, y):
        kinds = (x.requires_grad, x.dtype), (y.requires_grad, y.dtype)

        def backward(g: Tensor) -> list[Tensor | None]:
            return [Tensor(g.shape, dtype) if needed else None for needed, dtype in kinds]

        record(out, (x, y), (condition,), backward)
    return out


class XieluPerceptron(Module):
    def __init__(self, width: int, inner: int, kernel: bool) -> None:
        self.up_proj = Linear(width, inner, bias=False)
        self.down_proj = Linear(inner, width, bias=False)
        self.act_fn = Xielu(kernel)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(self.act_fn(self.up_proj(x)))
        return out
