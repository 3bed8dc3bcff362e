"""torch's names for the operations of :mod:`memlint.meta.ops`: ``F.linear``, and a tensor's methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memlint.meta.amp import to
from memlint.meta.ops.attention import (
    repeat_interleave,
    scaled_dot_product_attention,
)
from memlint.meta.ops.convolution import (
    adaptive_avg_pool,
    avg_pool,
    conv,
    conv_transpose,
    interpolate,
    max_pool,
    unfold,
)
from memlint.meta.ops.elementwise import (
    abs,
    add,
    add_,
    clamp,
    clone,
    cos,
    div,
    div_,
    dropout,
    exp,
    expm1,
    gelu,
    hardsigmoid,
    hardswish,
    hardtanh,
    masked_fill,
    masked_scatter,
    minimum,
    mish,
    mul,
    neg,
    pow,
    relu,
    rsqrt,
    rsub,
    sigmoid,
    silu,
    sin,
    sqrt,
    sub,
    tanh,
)
from memlint.meta.ops.kernels import kernel
from memlint.meta.ops.lookups import (
    embedding,
    gather,
    index,
    index_put_,
    index_select,
)
from memlint.meta.ops.losses import (
    cross_entropy,
    l1_loss,
    mse_loss,
    nll_loss,
)
from memlint.meta.ops.normalisation import (
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    rms_norm,
    rms_norm_composite,
    rms_norm_of,
)
from memlint.meta.ops.products import (
    addmm,
    baddbmm,
    bmm,
    grouped_mm,
    linear,
    matmul,
    mm,
)
from memlint.meta.ops.reductions import (
    log_softmax,
    max,
    mean,
    softmax,
    sum,
    topk,
    vector_norm,
)
from memlint.meta.ops.views import (
    assigned,
    cat,
    chunk,
    contiguous,
    expand,
    filled,
    flatten,
    narrow,
    pad,
    permute,
    repeat,
    reshape,
    select,
    select_index,
    split,
    squeeze,
    stack,
    transpose,
    unbind,
    unsqueeze,
    view,
)

METHODS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        add,
        add_,
        baddbmm,
        bmm,
        chunk,
        clone,
        contiguous,
        cos,
        div,
        exp,
        expand,
        flatten,
        gather,
        index_select,
        masked_fill,
        matmul,
        max,
        mean,
        mul,
        narrow,
        neg,
        permute,
        pow,
        repeat,
        reshape,
        rsqrt,
        rsub,
        select,
        select_index,
        sigmoid,
        sin,
        softmax,
        split,
        sqrt,
        squeeze,
        sub,
        sum,
        tanh,
        topk,
        transpose,
        unbind,
        unsqueeze,
        view,
        to,
    )
}
