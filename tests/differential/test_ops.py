"""Every operation of ``memlint.meta.functional`` against torch's own run of it, to the byte.

What is compared: bytes alive after the forward pass, its peak, distinct bytes saved for backward, the peak of the
backward pass, and what is alive after it. torch runs over fake tensors with CUDA's semantics.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as T

from memlint.meta import functional as F
from memlint.meta import tensor as meta
from memlint.models.program_operations import OPERATIONS
from tests.differential.oracle import Operand, in_meta, in_torch


class Case(NamedTuple):
    """``covers`` names the function of memlint.meta.functional that the case is about.

    trains     the combinations of operands that need a gradient; () for: all, the first, all but the first, none
    autocast   whether it is also run under bfloat16 autocast
    in_place   the first operand is written to, so it cannot be a leaf that needs a gradient
    """

    name: str
    covers: str
    torch: Callable[..., Any]
    meta: Callable[..., Any]
    operands: tuple[Operand, ...]
    trains: tuple[tuple[int, ...], ...] = ()
    autocast: bool = True
    in_place: bool = False


def tensor(*shape: int, **facts: Any) -> Operand:
    return Operand(shape, **facts)


def transposed(*shape: int, **facts: Any) -> Operand:
    """Its last two dimensions lie in memory the other way round."""
    order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    return Operand(shape, order=order, **facts)


def sliced(*shape: int, **facts: Any) -> Operand:
    return Operand(shape, extra=3, **facts)


def heads(*shape: int, **facts: Any) -> Operand:
    """(batch, heads, tokens, width) that lies in memory as (batch, tokens, heads, width)."""
    return Operand(shape, order=(0, 2, 1, 3), **facts)


X = tensor(3, 5, 7)


def elementwise(name: str, function: Callable[..., Any], operation: Callable[..., Any]) -> Iterator[Case]:
    yield Case(name, name, function, operation, (X,))
    yield Case(f"{name} of a transposed tensor", name, function, operation, (transposed(3, 5, 7),))
    yield Case(f"{name} in bfloat16", name, function, operation, (X._replace(dtype="bfloat16"),), autocast=False)


def _halves_in_torch(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty(3, 5, 14)
    out[..., 0::2] = x
    out[..., 1::2] = y
    return out


def cases() -> Iterator[Case]:
    for name, function in {
        "relu": torch.relu,
        "gelu": T.gelu,
        "silu": T.silu,
        "mish": T.mish,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "exp": torch.exp,
        "log": torch.log,
        "expm1": torch.expm1,
        "sin": torch.sin,
        "cos": torch.cos,
        "neg": torch.neg,
        "rsqrt": torch.rsqrt,
        "sqrt": torch.sqrt,
        "clone": torch.clone,
        "abs": torch.abs,
    }.items():
        yield from elementwise(name, function, getattr(F, name))
    yield Case("relu in place", "relu", lambda x: torch.relu_(x), lambda x: F.relu(x, True), (X,), in_place=True)
    yield Case(
        "silu in place", "silu", lambda x: T.silu(x, inplace=True), lambda x: F.silu(x, True), (X,), in_place=True
    )
    for word, x in {"": X, " of a transposed tensor": transposed(3, 5, 7)}.items():
        yield Case(f"leaky_relu{word}", "leaky_relu", T.leaky_relu, F.leaky_relu, (x,))
        yield Case(
            f"leaky_relu in place{word}",
            "leaky_relu",
            partial(T.leaky_relu, inplace=True),
            lambda x: F.leaky_relu(x, True),
            (x,),
            in_place=True,
        )
    for name, function in {"hardswish": T.hardswish, "hardsigmoid": T.hardsigmoid, "hardtanh": T.hardtanh}.items():
        for word, x in {"": X, " of bfloat16": X._replace(dtype="bfloat16")}.items():
            yield Case(f"{name}{word}", name, function, getattr(F, name), (x,), autocast=False)
        yield Case(
            f"{name} in place",
            name,
            partial(function, inplace=True),
            partial(getattr(F, name), inplace=True),
            (X,),
            in_place=True,
        )
    yield Case(
        "every other entry",
        "select_index",
        lambda x: x[..., ::2].contiguous(),
        lambda x: F.contiguous(x[..., ::2]),
        (tensor(3, 5, 8),),
    )
    for word, parts in {"": (X, X), " of another dtype": (X, X._replace(dtype="bfloat16"))}.items():
        yield Case(
            f"an empty tensor that is filled by halves{word}",
            "assigned",
            _halves_in_torch,
            lambda x, y: F.assigned(F.assigned(meta.empty((3, 5, 14), meta.float32), x), y),
            parts,
            autocast=False,
        )
    yield Case("pow by two", "pow", lambda x: x.pow(2), lambda x: F.pow(x, 2), (X,))
    yield Case("square", "pow", torch.square, OPERATIONS["square"], (X,))
    yield Case("pow by three", "pow", lambda x: x.pow(3), lambda x: F.pow(x, 3), (X,))
    yield Case("pow by a half", "pow", lambda x: x.pow(0.5), lambda x: F.pow(x, 0.5), (X,))

    for word, x in {"": X, " of a transposed tensor": transposed(3, 5, 7), " of a slice": sliced(3, 5, 7)}.items():
        yield Case(f"to{word}", "to", lambda x: x.to(torch.bfloat16), lambda x: F.to(x, meta.bfloat16), (x,))
    yield Case(
        "to of a permuted slice, then a copy",
        "to",
        lambda x: x.to(torch.bfloat16).contiguous(),
        lambda x: F.contiguous(F.to(x, meta.bfloat16)),
        (Operand((3, 5, 7), order=(1, 0, 2), extra=3),),
    )
    same = (X, X)
    mixed = (X, X._replace(dtype="bfloat16"))
    for name in ("add", "sub", "mul", "div"):
        function, operation = getattr(torch, name), getattr(F, name)
        yield Case(f"{name} of two tensors", name, function, operation, same)
        yield Case(f"{name} with a row", name, function, operation, (X, tensor(7)))
        yield Case(f"{name} of a row with a tensor", name, function, operation, (tensor(7), X))
        yield Case(f"{name} with a column", name, function, operation, (X, tensor(3, 1, 7)))
        yield Case(f"{name} where both are broadcast", name, function, operation, (tensor(3, 1, 7), tensor(5, 1)))
        yield Case(f"{name} with a transposed tensor", name, function, operation, (X, transposed(3, 5, 7)))
        yield Case(
            f"{name} of a transposed tensor with a row", name, function, operation, (transposed(3, 5, 7), tensor(7))
        )
        yield Case(f"{name} of fp32 with bfloat16", name, function, operation, mixed, autocast=False)
        yield Case(f"{name} of bfloat16 with fp32", name, function, operation, mixed[::-1], autocast=False)
        yield Case(f"{name} with a scalar tensor", name, function, operation, (X, tensor()))
        yield Case(
            f"{name} with a number", name, lambda x, f=function: f(x, 2.0), lambda x, f=operation: f(x, 2.0), (X,)
        )
    yield Case("add in place", "add_", lambda x, y: x.add_(y), F.add_, same, in_place=True)
    yield Case("add in place of a row", "add_", lambda x, y: x.add_(y), F.add_, (X, tensor(7)), in_place=True)
    for word, y in {"": X, " by a scalar": tensor()}.items():  # of what does not train, as a model's buffer
        yield Case(
            f"multiply in place{word}",
            "mul_",
            lambda x, y: x.mul_(y.detach()),
            lambda x, y: F.mul_(x, y.detach()),
            (X, y),
            in_place=True,
        )
    yield Case("add in place of a number", "add_", lambda x: x.add_(1.0), lambda x: F.add_(x, 1.0), (X,), in_place=True)
    for word, y in {"": X, " by a column": tensor(3, 5, 1)}.items():
        yield Case(f"div in place{word}", "div_", lambda x, y: x.div_(y), F.div_, (X, y), in_place=True)
    yield Case("div in place by a number", "div_", lambda x: x.div_(3), lambda x: F.div_(x, 3), (X,), in_place=True)
    for word, x in {"": X, " of a slice": sliced(3, 5, 7)}.items():
        yield Case(f"clamp{word}", "clamp", lambda x: x.clamp(max=1.0), F.clamp, (x,))
        yield Case(
            f"clamp between two numbers{word}", "clamp", lambda x: x.clamp(-1.0, 1.0), lambda x: F.clamp(x, 2), (x,)
        )
    yield Case(
        "div in place by its own sum",
        "div_",
        lambda x: x.div_(x.sum(-1, keepdim=True)),
        lambda x: F.div_(x, F.sum(x, -1, keepdim=True)),
        (X,),
        in_place=True,
    )
    for word, operands in {
        "": (X, X, X),
        " of a row and two rows": (X, tensor(7), tensor(7)),
        " of rows and a tensor": (tensor(7), tensor(7), X),
        " of a transposed tensor": (transposed(3, 5, 7), X, transposed(3, 5, 7)),
        " of bfloat16": tuple(X._replace(dtype="bfloat16") for _ in range(3)),
        " of two dtypes under autocast": (X, X._replace(dtype="bfloat16"), X),
    }.items():
        yield Case(f"addcmul{word}", "addcmul", torch.addcmul, F.addcmul, operands)
    yield Case("a number minus a tensor", "rsub", lambda x: 1.0 - x, lambda x: F.rsub(x, 1.0), (X,))
    for word, y in {"tensors": X, "a tensor with a row": tensor(7)}.items():
        yield Case(f"minimum of {word}", "minimum", torch.minimum, F.minimum, (X, y))
    yield Case(
        "masked_fill with a mask of the same shape",
        "masked_fill",
        lambda x, m: x.masked_fill(m, 0.0),
        F.masked_fill,
        (X, X._replace(dtype="bool")),
        trains=((0,), ()),
    )
    yield Case(
        "masked_fill with a broadcast mask",
        "masked_fill",
        lambda x, m: x.masked_fill(m, 0.0),
        F.masked_fill,
        (X, tensor(5, 7, dtype="bool")),
        trains=((0,), ()),
    )
    for word, operands in {
        "": (X._replace(dtype="bool"), X, X),
        " of a column": (tensor(3, 1, 1, dtype="bool"), X, X),
        " of a tensor and a row": (X._replace(dtype="bool"), X, tensor(7)),
    }.items():
        yield Case(f"where{word}", "where", torch.where, F.where, operands, trains=((1, 2), (1,), (2,), ()))
    yield Case(
        "masked_scatter",
        "masked_scatter",
        lambda x, m, s: x.masked_scatter(m, s),
        F.masked_scatter,
        (X, tensor(3, 5, 1, dtype="bool"), tensor(4, 7)),
        trains=((0, 2), (0,), (2,), ()),
        autocast=False,
    )
    yield Case("dropout", "dropout", lambda x: T.dropout(x, 0.1), lambda x: F.dropout(x, 0.1), (X,))
    yield Case(
        "dropout in place",
        "dropout_",
        lambda x: T.dropout(x, 0.1, inplace=True),
        lambda x: F.dropout_(x, 0.1),
        (X,),
        in_place=True,
    )
    yield Case(
        "a weight of direction and length",
        "weight_norm",
        lambda v, g: torch._weight_norm(v, g, 2),
        F.weight_norm,
        (tensor(6, 4, 8), tensor(1, 1, 8)),
        autocast=False,
    )
    yield Case(
        "dropout of bfloat16",
        "dropout",
        lambda x: T.dropout(x, 0.1),
        lambda x: F.dropout(x, 0.1),
        (X._replace(dtype="bfloat16"),),
        autocast=False,
    )
    yield Case(
        "dropout of a transposed tensor",
        "dropout",
        lambda x: T.dropout(x, 0.1),
        lambda x: F.dropout(x, 0.1),
        (transposed(3, 5, 7),),
    )
    yield Case(
        "dropout in evaluation", "dropout", lambda x: T.dropout(x, 0.1, False), lambda x: F.dropout(x, 0.1, False), (X,)
    )
    yield Case(
        "dropout with probability zero", "dropout", lambda x: T.dropout(x, 0.0), lambda x: F.dropout(x, 0.0), (X,)
    )

    for name in ("sum", "mean"):
        function, operation = getattr(torch, name), getattr(F, name)
        yield Case(f"{name} over everything", name, function, operation, (X,))
        yield Case(
            f"{name} over the last dimension",
            name,
            lambda x, f=function: f(x, -1),
            lambda x, f=operation: f(x, -1),
            (X,),
        )
        yield Case(
            f"{name} over two dimensions, kept",
            name,
            lambda x, f=function: f(x, (0, 2), keepdim=True),
            lambda x, f=operation: f(x, (0, 2), keepdim=True),
            (X,),
        )
        yield Case(
            f"{name} of bfloat16",
            name,
            lambda x, f=function: f(x, -1),
            lambda x, f=operation: f(x, -1),
            (X._replace(dtype="bfloat16"),),
        )
    for word, x in {"": X, " of bfloat16": X._replace(dtype="bfloat16")}.items():
        yield Case(
            f"vector_norm{word}", "vector_norm",
            lambda x: torch.norm(x, p=2, dim=(1, 2), keepdim=True), lambda x: F.vector_norm(x, (1, 2), True), (x,),
        )  # fmt: skip
    yield Case("max over a dimension", "max", lambda x: torch.max(x, 1), lambda x: F.max(x, 1), (X,))
    yield Case(
        "max over a dimension, kept",
        "max",
        lambda x: torch.max(x, -1, keepdim=True),
        lambda x: F.max(x, -1, keepdim=True),
        (X,),
    )
    for word, x in {"": X, " of a transposed tensor": transposed(3, 5, 7)}.items():
        for keep in (False, True):
            yield Case(
                f"amax{word}{', kept' if keep else ''}",
                "amax",
                lambda x, keep=keep: x.amax(1, keepdim=keep),
                lambda x, keep=keep: F.amax(x, 1, keep),
                (x,),
            )
    yield Case("topk", "topk", lambda x: torch.topk(x, 2), lambda x: F.topk(x, 2), (X,))
    yield Case(
        "topk of a transposed tensor",
        "topk",
        lambda x: torch.topk(x, 2),
        lambda x: F.topk(x, 2),
        (transposed(3, 5, 7),),
    )

    for name in ("softmax", "log_softmax"):
        function, operation = getattr(torch, name), getattr(F, name)
        yield Case(name, name, lambda x, f=function: f(x, -1), lambda x, f=operation: f(x, -1), (X,))
        yield Case(
            f"{name} over an inner dimension", name, lambda x, f=function: f(x, 1), lambda x, f=operation: f(x, 1), (X,)
        )
        yield Case(
            f"{name} of a transposed tensor",
            name,
            lambda x, f=function: f(x, -1),
            lambda x, f=operation: f(x, -1),
            (transposed(3, 5, 7),),
        )
        for dtype in ("bfloat16", "float16"):
            yield Case(
                f"{name} of {dtype}",
                name,
                lambda x, f=function: f(x, -1),
                lambda x, f=operation: f(x, -1),
                (X._replace(dtype=dtype),),
            )
            yield Case(
                f"{name} of {dtype} into fp32",
                name,
                lambda x, f=function: f(x, -1, dtype=torch.float32),
                lambda x, f=operation: f(x, -1, meta.float32),
                (X._replace(dtype=dtype),),
            )

    yield from views()
    yield from lookups()
    yield from products()
    yield from attention()
    yield from normalisations()
    yield from convolutions()
    yield from losses()


def views() -> Iterator[Case]:
    yield Case("view", "view", lambda x: x.view(15, 7), lambda x: F.view(x, 15, 7), (X,))
    yield Case("view with an inferred dimension", "view", lambda x: x.view(-1, 7), lambda x: F.view(x, -1, 7), (X,))
    yield Case("reshape that is a view", "reshape", lambda x: x.reshape(3, 35), lambda x: F.reshape(x, 3, 35), (X,))
    yield Case(
        "reshape that must copy",
        "reshape",
        lambda x: x.reshape(3, 35),
        lambda x: F.reshape(x, 3, 35),
        (transposed(3, 5, 7),),
    )
    yield Case("flatten", "flatten", lambda x: x.flatten(1), lambda x: F.flatten(x, 1), (X,))
    yield Case(
        "flatten of a transposed tensor",
        "flatten",
        lambda x: x.flatten(1),
        lambda x: F.flatten(x, 1),
        (transposed(3, 5, 7),),
    )
    yield Case("contiguous of a contiguous tensor", "contiguous", lambda x: x.contiguous(), F.contiguous, (X,))
    yield Case(
        "contiguous of a transposed tensor",
        "contiguous",
        lambda x: x.contiguous(),
        F.contiguous,
        (transposed(3, 5, 7),),
    )
    yield Case("permute", "permute", lambda x: x.permute(2, 0, 1), lambda x: F.permute(x, 2, 0, 1), (X,))
    yield Case("transpose", "transpose", lambda x: x.transpose(0, 2), lambda x: F.transpose(x, 0, 2), (X,))
    yield Case(
        "transpose, then a copy",
        "transpose",
        lambda x: x.transpose(0, 2).contiguous(),
        lambda x: F.contiguous(F.transpose(x, 0, 2)),
        (X,),
    )
    yield Case("unsqueeze", "unsqueeze", lambda x: x.unsqueeze(1), lambda x: F.unsqueeze(x, 1), (X,))
    yield Case(
        "unsqueeze of a transposed tensor",
        "unsqueeze",
        lambda x: x.unsqueeze(-1),
        lambda x: F.unsqueeze(x, -1),
        (transposed(3, 5, 7),),
    )
    yield Case("squeeze", "squeeze", lambda x: x.squeeze(1), lambda x: F.squeeze(x, 1), (tensor(3, 1, 7),))
    yield Case("expand", "expand", lambda x: x.expand(3, 5, 7), lambda x: F.expand(x, 3, 5, 7), (tensor(3, 1, 7),))
    yield Case(
        "expand to a new dimension",
        "expand",
        lambda x: x.expand(2, -1, -1, -1),
        lambda x: F.expand(x, 2, -1, -1, -1),
        (X,),
    )
    yield Case(
        "expand, then a copy",
        "expand",
        lambda x: x.expand(3, 5, 7).contiguous(),
        lambda x: F.contiguous(F.expand(x, 3, 5, 7)),
        (tensor(3, 1, 7),),
    )
    yield Case("narrow", "narrow", lambda x: x.narrow(1, 1, 2), lambda x: F.narrow(x, 1, 2), (X,))
    yield Case(
        "narrow, then gelu", "narrow", lambda x: T.gelu(x.narrow(1, 1, 2)), lambda x: F.gelu(F.narrow(x, 1, 2)), (X,)
    )
    yield Case("select", "select", lambda x: x.select(1, 2), lambda x: F.select(x, 1), (X,))
    yield Case(
        "basic indexing with an int and a slice",
        "select_index",
        lambda x: x[:, 1, 2:],
        lambda x: F.select_index(x, (slice(None), 1, slice(2, None))),
        (X,),
    )
    yield Case(
        "basic indexing with None and dots",
        "select_index",
        lambda x: x[..., None, 1:3],
        lambda x: F.select_index(x, (..., None, slice(1, 3))),
        (X,),
    )
    yield Case(
        "split into unequal parts", "split", lambda x: x.split([2, 5], -1), lambda x: F.split(x, [2, 5], -1), (X,)
    )
    yield Case("split by size", "split", lambda x: x.split(2, 1), lambda x: F.split(x, 2, 1), (X,))
    yield Case(
        "split of which one part is used",
        "split",
        lambda x: x.split([2, 5], -1)[1].exp(),
        lambda x: F.exp(F.split(x, [2, 5], -1)[1]),
        (X,),
    )
    yield Case("chunk", "chunk", lambda x: x.chunk(2, -1), lambda x: F.chunk(x, 2, -1), (tensor(3, 5, 8),))
    yield Case(
        "chunk into a product",
        "chunk",
        lambda x: torch.mul(*x.chunk(2, -1)),
        lambda x: F.mul(*F.chunk(x, 2, -1)),
        (tensor(3, 5, 8),),
    )
    yield Case("unbind", "unbind", lambda x: x.unbind(0), lambda x: F.unbind(x, 0), (X,))
    yield Case(
        "unbind of which one part is used",
        "unbind",
        lambda x: x.unbind(0)[1].exp(),
        lambda x: F.exp(F.unbind(x, 0)[1]),
        (X,),
    )
    yield Case("cat", "cat", lambda x, y: torch.cat([x, y], 1), lambda x, y: F.cat([x, y], 1), (X, tensor(3, 2, 7)))
    yield Case(
        "cat of bfloat16 with fp32",
        "cat",
        lambda x, y: torch.cat([x, y], -1),
        lambda x, y: F.cat([x, y], -1),
        (X._replace(dtype="bfloat16"), X),
    )
    yield Case("cat of one tensor with itself", "cat", lambda x: torch.cat([x, x], 1), lambda x: F.cat([x, x], 1), (X,))
    yield Case("stack", "stack", lambda x, y: torch.stack([x, y], 1), lambda x, y: F.stack([x, y], 1), (X, X))
    yield Case(
        "stack along the last dimension",
        "stack",
        lambda x, y: torch.stack([x, y], -1),
        lambda x, y: F.stack([x, y], -1),
        (X, X),
    )
    yield Case("repeat", "repeat", lambda x: x.repeat(2, 1, 3), lambda x: F.repeat(x, 2, 1, 3), (X,))
    yield Case(
        "repeat to a new dimension", "repeat", lambda x: x.repeat(2, 1, 1, 1), lambda x: F.repeat(x, 2, 1, 1, 1), (X,)
    )
    for word, x in {"": X, " of a transposed tensor": transposed(3, 5, 7)}.items():
        yield Case(f"roll{word}", "roll", lambda x: x.roll(1, 1), F.roll, (x,))
        yield Case(
            f"roll along two dimensions{word}", "roll", lambda x: x.roll((1, 2), (0, 1)), lambda x: F.roll(x, 2), (x,)
        )
    yield Case("pad", "pad", lambda x: T.pad(x, (1, 2)), lambda x: F.pad(x, 1, 2), (X,))
    for word, x in {"": X, " of a transposed tensor": transposed(3, 5, 7)}.items():
        yield Case(f"pad by nothing{word}", "pad", lambda x: T.pad(x, [0] * 4), lambda x: F.pad(x, *[0] * 4), (x,))
    image = Operand((3, 4, 9, 8), order=(0, 2, 3, 1))
    for word, amounts in {"padded": (1, 2, 0, 3), "cut": (-1, -1)}.items():
        yield Case(
            f"a channels-last image that is {word}, then gelu",
            "pad",
            lambda x, a=amounts: T.conv2d(T.pad(T.gelu(x), a), torch.empty(6, 4, 3, 3)),
            lambda x, a=amounts: F.conv(F.pad(F.gelu(x), *a), meta.empty((6, 4, 3, 3), meta.float32)),
            (image,),
            autocast=False,
        )
    # Not of a channels-last image: fake kernels take it for one on the host, whose result is channels-last as well.
    yield Case(
        "reflection_pad",
        "reflection_pad",
        lambda x: T.gelu(T.pad(T.gelu(x), (1, 2, 0, 3), mode="reflect")),
        lambda x: F.gelu(F.reflection_pad(F.gelu(x), 1, 2, 0, 3)),
        (tensor(3, 4, 9, 8),),
    )
    yield Case("pad two dimensions", "pad", lambda x: T.pad(x, (1, 2, 0, 3)), lambda x: F.pad(x, 1, 2, 0, 3), (X,))


def filled(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    out = first.new_empty(*first.shape[:-1], first.shape[-1] + second.shape[-1])
    out[..., : first.shape[-1]].copy_(first)
    out[..., first.shape[-1] :].copy_(second)
    return out


def lookups() -> Iterator[Case]:
    yield Case("filled", "filled", filled, F.filled, (X, tensor(3, 5, 4)))
    yield Case("filled of slices", "filled", filled, F.filled, (sliced(3, 5, 7), transposed(3, 5, 4)))
    yield Case(
        "filled with one row for all",
        "filled",
        lambda x, y: filled(x, y.expand(3, -1, -1)),
        lambda x, y: F.filled(x, y.expand(3, -1, -1)),
        (X, tensor(1, 5, 4)),
    )
    tokens = tensor(4, 9, dtype="int64")
    table = tensor(11, 6)
    yield Case("embedding", "embedding", T.embedding, F.embedding, (tokens, table), trains=((1,), ()))
    yield Case(
        "embedding in bfloat16",
        "embedding",
        T.embedding,
        F.embedding,
        (tokens, table._replace(dtype="bfloat16")),
        trains=((1,), ()),
    )
    yield Case(
        "index_select",
        "index_select",
        lambda x, i: x.index_select(1, i),
        lambda x, i: F.index_select(x, 1, i),
        (X, tensor(2, dtype="int64")),
        trains=((0,), ()),
    )
    yield Case(
        "index by two tensors",
        "index",
        lambda x, i, j: x[i, j],
        F.index,
        (X, tensor(4, 1, dtype="int64"), tensor(2, dtype="int64")),
        trains=((0,), ()),
    )
    yield Case(
        "index of the last dimension by a tensor",
        "index",
        lambda x, i: x[:, :, i],
        lambda x, i: F.index(x, i, whole=2),
        (X, tensor(4, 6, dtype="int64")),
        trains=((0,), ()),
    )
    yield Case(
        "what is put at places that two tensors name",
        "index_put_",
        lambda x, v, i, j: x.clone().index_put_((i, j), v),
        lambda x, v, i, j: F.index_put_(F.clone(x), v, i, j),
        (X, tensor(4, 7), tensor(4, dtype="int64"), tensor(4, dtype="int64")),
        trains=((0, 1), (0,), (1,), ()),
    )
    yield Case(
        "gather",
        "gather",
        lambda x, i: x.gather(1, i),
        lambda x, i: F.gather(x, 1, i),
        (X, tensor(3, 2, 7, dtype="int64")),
        trains=((0,), ()),
    )


def products() -> Iterator[Case]:
    weight, bias = tensor(11, 7), tensor(11)
    for word, x in {
        "": X,
        " of a matrix": tensor(5, 7),
        " of a transposed tensor": transposed(3, 5, 7),
        " of a slice": sliced(3, 5, 7),
        " over four dimensions": tensor(2, 3, 5, 7),
    }.items():
        yield Case(f"linear{word}", "linear", T.linear, F.linear, (x, weight, bias))
        yield Case(f"linear without bias{word}", "linear", T.linear, F.linear, (x, weight))
    low = tuple(o._replace(dtype="bfloat16") for o in (X, weight, bias))
    yield Case("linear in bfloat16", "linear", T.linear, F.linear, low, autocast=False)
    yield Case("linear of bfloat16 under autocast", "linear", T.linear, F.linear, (low[0], weight, bias))
    yield Case(
        "linear twice with one weight",
        "linear",
        lambda x, w: T.linear(T.linear(x, w), w),
        lambda x, w: F.linear(F.linear(x, w), w),
        (X, tensor(7, 7)),
    )
    yield Case("bmm", "bmm", torch.bmm, F.bmm, (tensor(3, 5, 7), tensor(3, 7, 4)))
    yield Case("bmm with a transposed tensor", "bmm", torch.bmm, F.bmm, (tensor(3, 5, 7), transposed(3, 7, 4)))
    yield Case("bmm of a slice", "bmm", torch.bmm, F.bmm, (sliced(3, 5, 7), tensor(3, 7, 4)))
    for equation, x, y in (
        ("nhw,ixh->nixw", tensor(4, 5, 6), tensor(3, 7, 5)),
        ("nixw,jyw->nijxy", tensor(4, 3, 7, 6), tensor(2, 3, 6)),
        ("byhwc,hkc->byhwk", tensor(2, 3, 4, 5, 6), tensor(4, 7, 6)),
        ("bhwc,wkc->bhwk", tensor(2, 4, 5, 6), tensor(5, 7, 6)),
        ("ij,jk->ik", tensor(3, 4), tensor(4, 5)),
        ("bij,bjk->bik", transposed(2, 3, 4), tensor(2, 4, 5)),
    ):
        yield Case(
            f"einsum of {equation}",
            "einsum",
            partial(torch.einsum, equation),
            partial(F.einsum, equation),
            (x, y),
            trains=((0, 1), (0,), (1,), ()),
        )
    for dtype in ("float32", "bfloat16"):
        yield Case(
            f"baddbmm into an empty tensor in {dtype}",
            "baddbmm",
            lambda x, y: torch.baddbmm(torch.empty(3, 5, 4, dtype=x.dtype), x, y, beta=0.0),
            F.baddbmm,
            (tensor(3, 5, 7, dtype=dtype), tensor(3, 7, 4, dtype=dtype)),
            autocast=dtype == "bfloat16",
        )
    yield Case(
        "baddbmm into an empty tensor, scaled",
        "baddbmm",
        lambda x, y: torch.baddbmm(torch.empty(3, 5, 4), x, y, beta=0, alpha=0.5),
        lambda x, y: F.baddbmm(x, y, alpha=0.5),
        (tensor(3, 5, 7), tensor(3, 7, 4)),
        autocast=False,
    )
    for word, x, y in (
        ("matrices", tensor(5, 7), tensor(7, 4)),
        ("a matrix and a transposed one", tensor(5, 7), transposed(7, 4)),
        ("a transposed matrix and another", transposed(5, 7), tensor(7, 4)),
    ):
        yield Case(f"addmm of {word}", "addmm", torch.addmm, F.addmm, (tensor(4), x, y))
    low = tuple(o._replace(dtype="bfloat16") for o in (tensor(4), tensor(5, 7), tensor(7, 4)))
    yield Case("addmm in bfloat16", "addmm", torch.addmm, F.addmm, low, autocast=False)
    for word, y in (("", tensor(3, 8, 16)), (" by transposed matrices", transposed(3, 8, 16))):
        yield Case(
            f"grouped_mm{word}",
            "grouped_mm",
            lambda x, y, ends: T.grouped_mm(x, y, offs=ends),
            F.grouped_mm,
            (tensor(24, 8, dtype="bfloat16"), y._replace(dtype="bfloat16"), tensor(3, dtype="int32")),
            trains=((0, 1), (0,), (1,), ()),
            autocast=False,
        )
    for word, x, y in (
        ("matrices", tensor(5, 7), tensor(7, 4)),
        ("a matrix and a transposed one", tensor(5, 7), transposed(7, 4)),
        ("transposed matrices", transposed(5, 7), transposed(7, 4)),
    ):
        yield Case(f"mm of {word}", "mm", torch.mm, F.mm, (x, y))
    for word, x, y in (
        ("batches", tensor(2, 3, 5, 7), tensor(2, 3, 7, 4)),
        ("a batch and a matrix", X, tensor(7, 4)),
        ("a batch and a transposed matrix", X, transposed(7, 4)),
        ("a transposed batch and a matrix", transposed(3, 5, 7), tensor(7, 4)),
        ("attention scores", heads(2, 3, 5, 8), Operand((2, 3, 8, 6), order=(0, 3, 1, 2))),
        ("attention values", tensor(2, 3, 5, 6), heads(2, 3, 6, 8)),
        ("a broadcast batch", tensor(2, 3, 5, 7), tensor(1, 3, 7, 4)),
        ("matrices", tensor(5, 7), tensor(7, 4)),
        ("a broadcast matrix and a batch", tensor(1, 5, 7), tensor(3, 7, 4)),
        ("a batch and a broadcast matrix", tensor(3, 5, 7), tensor(1, 7, 4)),
        ("a matrix and a batch", tensor(5, 7), tensor(3, 7, 4)),
    ):
        yield Case(f"matmul of {word}", "matmul", torch.matmul, F.matmul, (x, y))


def attention() -> Iterator[Case]:
    def plain(q: Any, k: Any, v: Any) -> Any:
        return T.scaled_dot_product_attention(q, k, v)

    for word, q, k in (
        ("", tensor(2, 3, 40, 16), tensor(2, 3, 40, 16)),
        (" with heads split from tokens", heads(2, 3, 40, 16), heads(2, 3, 40, 16)),
        (" to fewer keys", heads(2, 3, 40, 16), heads(2, 3, 9, 16)),
        (" with wide heads", heads(2, 3, 40, 96), heads(2, 3, 40, 96)),
        (" with very wide heads", heads(2, 3, 40, 192), heads(2, 3, 40, 192)),
        (" over many tokens", heads(1, 2, 300, 64), heads(1, 2, 300, 64)),
        (" with a width that no kernel takes in fp32", heads(2, 3, 40, 18), heads(2, 3, 40, 18)),
        (" of one head", heads(2, 1, 40, 16), heads(2, 1, 40, 16)),
    ):
        for dtype in ("float32", "bfloat16", "float16"):
            operands = tuple(o._replace(dtype=dtype) for o in (q, k, k))
            yield Case(
                f"attention{word} in {dtype}",
                "scaled_dot_product_attention",
                plain,
                F.scaled_dot_product_attention,
                operands,
                autocast=dtype == "float32",
            )
    for word, option, meta_option in (
        ("with dropout", {"dropout_p": 0.1}, {"dropout": 0.1}),
        ("with a causal mask", {"is_causal": True}, {"causal": True}),
    ):
        for kernel, width in (("a fused kernel", 16), ("the formula", 18)):
            for dtype in ("float32", "bfloat16"):
                q = heads(2, 3, 40, width if dtype == "float32" else width + 240 * (width == 18), dtype=dtype)
                yield Case(
                    f"attention {word} by {kernel} in {dtype}",
                    "scaled_dot_product_attention",
                    lambda q, k, v, o=option: T.scaled_dot_product_attention(q, k, v, **o),
                    lambda q, k, v, o=meta_option: F.scaled_dot_product_attention(q, k, v, **o),
                    (q, q, q),
                    autocast=False,
                )
    for word, mask in {
        "a mask of yes and no": tensor(40, 48, dtype="bool"),
        "an odd mask of yes and no": tensor(40, 41, dtype="bool"),
        "a mask per batch entry": tensor(2, 1, 40, 48, dtype="bool"),
        "a mask of numbers": tensor(40, 48),
        "an odd mask of numbers": tensor(2, 1, 1, 41),
    }.items():
        for width in (16, 18):
            for dtype in ("float32", "bfloat16"):
                q, k = heads(2, 3, 40, width, dtype=dtype), heads(2, 3, mask.shape[-1], width, dtype=dtype)
                m = mask._replace(dtype=dtype) if mask.is_floating else mask
                learned = ((0, 1, 2, 3), (3,)) if word == "a mask of numbers" else ()
                yield Case(
                    f"attention with {word}, width {width}, in {dtype}",
                    "scaled_dot_product_attention",
                    lambda q, k, v, m: T.scaled_dot_product_attention(q, k, v, m),
                    F.scaled_dot_product_attention,
                    (q, k, k, m),
                    trains=((0, 1, 2), (0,), (1, 2), (), *learned),
                    autocast=False,
                )
    for kernel, dtype in (("the fused kernel", "bfloat16"), ("the formula", "float32")):
        q, k = heads(2, 4, 40, 16, dtype=dtype), heads(2, 1, 40, 16, dtype=dtype)
        yield Case(
            f"attention with one key for all heads, by the formula, in {dtype}",
            "scaled_dot_product_attention",
            T.scaled_dot_product_attention,
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, grouped=False),
            (q, k, k),
            trains=((0, 1, 2), (0,), ()),
            autocast=False,
        )
        q, k = heads(2, 6, 40, 16, dtype=dtype), heads(2, 2, 40, 16, dtype=dtype)
        yield Case(
            f"attention of grouped queries by {kernel}",
            "scaled_dot_product_attention",
            lambda q, k, v: T.scaled_dot_product_attention(q, k, v, enable_gqa=True),
            F.scaled_dot_product_attention,
            (q, k, k),
            autocast=False,
        )
    yield Case(
        "repeat_interleave of heads",
        "repeat_interleave",
        lambda x: x.repeat_interleave(3, -3),
        lambda x: F.repeat_interleave(x, 3),
        (heads(2, 2, 5, 4),),
    )


def normalisations() -> Iterator[Case]:
    def layer(x: Any, w: Any = None, b: Any = None) -> Any:
        return T.layer_norm(x, x.shape[-1:], w, b)

    scale = tensor(7)
    for word, x in {"": X, " of a transposed tensor": transposed(3, 5, 7)}.items():
        yield Case(f"layer_norm{word}", "layer_norm", layer, F.layer_norm, (x, scale, scale))
    yield Case("layer_norm without parameters", "layer_norm", layer, F.layer_norm, (X,))
    yield Case("layer_norm without a bias", "layer_norm", layer, F.layer_norm, (X, scale))
    yield Case(
        "layer_norm of bfloat16",
        "layer_norm",
        layer,
        F.layer_norm,
        tuple(o._replace(dtype="bfloat16") for o in (X, scale, scale)),
        autocast=False,
    )
    yield Case(
        "layer_norm of bfloat16 under autocast",
        "layer_norm",
        layer,
        F.layer_norm,
        (X._replace(dtype="bfloat16"), scale, scale),
    )

    def root_mean_square(x: Any, w: Any) -> Any:
        return T.rms_norm(x, x.shape[-1:], w)

    for word, x in {"": X, " of a transposed tensor": transposed(3, 5, 7)}.items():
        yield Case(f"rms_norm{word}", "rms_norm", root_mean_square, F.rms_norm, (x, scale), autocast=False)
    halves = (X._replace(dtype="bfloat16"), scale._replace(dtype="bfloat16"))
    yield Case("rms_norm of bfloat16", "rms_norm", root_mean_square, F.rms_norm, halves, autocast=False)
    for word, operands in {"": (X, scale), " of bfloat16": halves, " of two dtypes": (halves[0], scale)}.items():
        yield Case(f"rms_norm{word} under autocast", "rms_norm_of", root_mean_square, F.rms_norm_of("2.12"), operands)
    yield Case(
        "rms_norm without a weight", "rms_norm", lambda x: T.rms_norm(x, x.shape[-1:]), F.rms_norm, (X,), autocast=False
    )
    mixed = (X, halves[1])
    for name, function in {"rms_norm": F.rms_norm, "rms_norm_composite": F.rms_norm_composite}.items():
        yield Case(f"{name} with a narrower weight", name, root_mean_square, function, mixed, autocast=False)

    def rounded(x: Any, w: Any) -> Any:  # as torch 2.5 and 2.6 go about it
        wide = x.float()
        root = wide.pow(2).mean(-1, keepdim=True).add_(1e-5).rsqrt()
        result = (wide * root).type_as(x)
        return result * w

    def narrow(x: Any, w: Any) -> Any:  # as torch 2.4 does
        result = x * x.pow(2).mean(-1, keepdim=True).add_(1e-5).rsqrt()
        return result * w

    for release, older, widened in (("2.5", rounded, True), ("2.4", narrow, False)):
        written = partial(F.rms_norm_composite, widened=widened, rounded=True)
        name = f"rms_norm of bfloat16 in torch {release}"
        yield Case(name, "rms_norm_composite", older, written, halves, autocast=False)

    def group(x: Any, w: Any = None, b: Any = None) -> Any:
        return T.group_norm(x, 2, w, b)

    image, channels = tensor(3, 4, 5, 7), tensor(4)
    for word, x in {
        "": image,
        " of a sequence": tensor(3, 4, 9),
        " of a matrix": tensor(3, 4),
        " of a channels-last image": Operand((3, 4, 5, 7), order=(0, 2, 3, 1)),
    }.items():
        yield Case(
            f"group_norm{word}", "group_norm", group, lambda x, w, b: F.group_norm(x, 2, w, b), (x, channels, channels)
        )
    yield Case("group_norm without parameters", "group_norm", group, lambda x: F.group_norm(x, 2), (image,))
    yield Case(
        "group_norm of bfloat16",
        "group_norm",
        group,
        lambda x, w, b: F.group_norm(x, 2, w, b),
        tuple(o._replace(dtype="bfloat16") for o in (image, channels, channels)),
        autocast=False,
    )

    def batch(training: bool) -> Callable[..., Any]:
        def run(mean: Any, var: Any, x: Any, w: Any = None, b: Any = None) -> Any:
            return T.batch_norm(x, mean, var, w, b, training)

        return run

    def batch_meta(training: bool) -> Callable[..., Any]:
        return lambda mean, var, x, w, b: F.batch_norm(x, w, b, training)

    running = channels._replace(buffer=True)
    trains = ((2, 3, 4), (2,), (3, 4), ())
    for word, x in {
        "": image,
        " of a sequence": tensor(3, 4, 9),
        " of a transposed sequence": transposed(3, 4, 9),
        " of a channels-last image": Operand((3, 4, 5, 7), order=(0, 2, 3, 1)),
        " of rows": tensor(3, 4),
        " of bfloat16": image._replace(dtype="bfloat16"),
    }.items():
        yield Case(
            f"batch_norm{word}",
            "batch_norm",
            batch(True),
            batch_meta(True),
            (running, running, x, channels, channels),
            trains=trains,
        )
    yield Case(
        "batch_norm in evaluation",
        "batch_norm",
        batch(False),
        batch_meta(False),
        (running, running, image, channels, channels),
        trains=trains,
    )
    yield Case("instance_norm", "instance_norm", T.instance_norm, F.instance_norm, (image,))


def convolutions() -> Iterator[Case]:
    for word, x, weight, function in (
        ("conv1d", tensor(3, 4, 19), tensor(6, 4, 3), T.conv1d),
        ("conv2d", tensor(3, 4, 9, 8), tensor(6, 4, 3, 3), T.conv2d),
        ("conv3d", tensor(2, 4, 5, 9, 8), tensor(6, 4, 2, 3, 3), T.conv3d),
    ):
        for option in ({}, {"stride": 2, "padding": 1}):
            note = " with stride and padding" if option else ""
            yield Case(
                f"{word}{note}",
                "conv",
                lambda x, w, b, f=function, o=option: f(x, w, b, **o),
                lambda x, w, b, o=option: F.conv(x, w, b, **o),
                (x, weight, tensor(6)),
            )
        yield Case(f"{word} without bias", "conv", function, F.conv, (x, weight))
    for word, size, dilation in (("", 5, 1), (", dilated", 2, 2)):
        yield Case(
            f"conv2d that keeps the size{word}",
            "conv",
            lambda x, w, d=dilation: T.conv2d(x, w, padding="same", dilation=d),
            lambda x, w, d=dilation: OPERATIONS["conv2d"](x, w, padding="same", dilation=d),
            (tensor(3, 4, 9, 8), tensor(6, 4, size, size)),
        )
    yield Case("conv1d with kernel one", "conv", T.conv1d, F.conv, (tensor(3, 4, 19), tensor(6, 4, 1), tensor(6)))
    yield Case(
        "conv1d of a transposed tensor", "conv", T.conv1d, F.conv, (transposed(3, 4, 19), tensor(6, 4, 1), tensor(6))
    )
    yield Case(
        "conv2d of a permuted image", "conv", T.conv2d, F.conv, (transposed(3, 4, 9, 8), tensor(6, 4, 3, 3), tensor(6))
    )
    yield Case(
        "conv2d of a channels-last image",
        "conv",
        T.conv2d,
        F.conv,
        (Operand((3, 4, 9, 8), order=(0, 2, 3, 1)), tensor(6, 4, 3, 3), tensor(6)),
    )
    yield Case(
        "conv2d of a channels-last image that two others go on from",
        "conv",
        lambda x, w: (T.conv2d(y := T.conv2d(x, w), w), T.gelu(y.permute(0, 2, 3, 1))),
        lambda x, w: (F.conv(y := F.conv(x, w), w), F.gelu(F.permute(y, 0, 2, 3, 1))),
        (Operand((3, 4, 9, 8), order=(0, 2, 3, 1)), tensor(4, 4, 3, 3)),
    )
    yield Case(
        "conv2d of an image with one channel",
        "conv",
        T.conv2d,
        F.conv,
        (tensor(3, 1, 9, 8), tensor(6, 1, 3, 3), tensor(6)),
    )
    yield Case(
        "conv3d of a channels-last volume",
        "conv",
        T.conv3d,
        F.conv,
        (Operand((2, 4, 5, 9, 8), order=(0, 2, 3, 4, 1)), tensor(6, 4, 2, 3, 3), tensor(6)),
    )
    yield Case(
        "depthwise conv2d",
        "conv",
        lambda x, w: T.conv2d(x, w, groups=4),
        lambda x, w: F.conv(x, w, groups=4),
        (tensor(3, 4, 9, 8), tensor(4, 1, 3, 3)),
    )
    yield Case(
        "conv_transpose1d",
        "conv_transpose",
        lambda x, w, b: T.conv_transpose1d(x, w, b, 2, 1),
        lambda x, w, b: F.conv_transpose(x, w, b, 2, 1),
        (tensor(3, 4, 19), tensor(4, 6, 4), tensor(6)),
    )
    yield Case(
        "conv_transpose2d",
        "conv_transpose",
        T.conv_transpose2d,
        F.conv_transpose,
        (tensor(3, 4, 9, 8), tensor(4, 6, 3, 3), tensor(6)),
    )
    yield Case(
        "interpolate to the nearest",
        "interpolate",
        lambda x: T.interpolate(x, (10, 14)),
        lambda x: F.interpolate(x, 10, 14),
        (tensor(3, 4, 5, 7),),
    )
    yield Case(
        "interpolate bilinearly",
        "interpolate",
        lambda x: T.interpolate(x, (10, 14), mode="bilinear"),
        lambda x: F.interpolate(x, 10, 14),
        (tensor(3, 4, 5, 7),),
    )
    image = Operand((3, 4, 8, 10), order=(0, 2, 3, 1))
    for mode in ("nearest", "bilinear"):
        yield Case(
            f"interpolate a channels-last image, {mode}",
            "interpolate",
            lambda x, m=mode: T.interpolate(x, (10, 14), mode=m),
            lambda x: F.interpolate(x, 10, 14),
            (image,),
        )
    yield Case(
        "max_pool2d of a channels-last image",
        "max_pool",
        lambda x: T.max_pool2d(x, 2),
        lambda x: F.max_pool(x, 2),
        (image,),
    )
    yield Case("max_pool1d", "max_pool", lambda x: T.max_pool1d(x, 3), lambda x: F.max_pool(x, 3), (tensor(3, 4, 20),))
    yield Case(
        "max_pool2d with padding",
        "max_pool",
        lambda x: T.max_pool2d(x, 3, 2, 1),
        lambda x: F.max_pool(x, 3, 2, 1),
        (tensor(3, 4, 9, 8),),
    )
    for word, image in {
        "": tensor(3, 4, 9, 8),
        " of a channels-last image": Operand((3, 4, 9, 8), order=(0, 2, 3, 1)),
    }.items():
        yield Case(f"avg_pool2d{word}", "avg_pool", lambda x: T.avg_pool2d(x, 2), lambda x: F.avg_pool(x, 2), (image,))
    for word, x in {"": tensor(3, 4, 9), " of a transposed tensor": transposed(3, 4, 9)}.items():
        yield Case(
            f"avg_pool1d{word}",
            "avg_pool",
            lambda x: T.avg_pool1d(x, 2),
            partial(OPERATIONS["avg_pool1d"], kernel_size=2),
            (x,),
        )
    yield Case(
        "avg_pool2d with stride and padding",
        "avg_pool",
        lambda x: T.avg_pool2d(x, 3, 2, 1),
        lambda x: F.avg_pool(x, 3, 2, 1),
        (tensor(3, 4, 9, 8),),
    )
    for name in ("avg_pool", "max_pool"):
        function, operation = getattr(T, f"{name}2d"), getattr(F, name)
        for word, geometry in {"": (2, 2, 0), " and is padded": (3, 2, 1), " with a gap": (2, 3, 1)}.items():
            yield Case(
                f"{name}2d that rounds up{word}",
                name,
                lambda x, f=function, g=geometry: f(x, *g, ceil_mode=True),
                lambda x, f=operation, g=geometry: f(x, *g, ceil=True),
                (tensor(3, 4, 9, 8),),
            )
    for word, image in {
        "": tensor(3, 4, 9, 8),
        " of a channels-last image": Operand((3, 4, 9, 8), order=(0, 2, 3, 1)),
        " of bfloat16": tensor(3, 4, 9, 8)._replace(dtype="bfloat16"),
    }.items():
        for size in (1, 3):
            yield Case(
                f"adaptive_avg_pool2d to {size}{word}",
                "adaptive_avg_pool",
                partial(T.adaptive_avg_pool2d, output_size=size),
                partial(F.adaptive_avg_pool, size=size),
                (image,),
            )
        if not image.order:  # the kernel's own packed copy of a channels-last image is inside it, where no trace looks
            unfold = partial(T.unfold, kernel_size=2, stride=2)
            yield Case(f"unfold{word}", "unfold", unfold, lambda x: F.unfold(x, 3, 16, 16), (image,))
    yield Case(
        "dilated conv2d",
        "conv",
        lambda x, w: T.conv2d(x, w, None, 1, 2, 2),
        lambda x, w: F.conv(x, w, None, 1, 2, 1, 2),
        (tensor(3, 4, 9, 8), tensor(6, 4, 3, 3)),
    )
    yield Case(
        "max_pool2d", "max_pool", lambda x: T.max_pool2d(x, 2), lambda x: F.max_pool(x, 2), (tensor(3, 4, 9, 8),)
    )
    yield Case(
        "max_pool2d with stride",
        "max_pool",
        lambda x: T.max_pool2d(x, 3, 2),
        lambda x: F.max_pool(x, 3, 2),
        (tensor(3, 4, 9, 8),),
    )


def losses() -> Iterator[Case]:
    for name in ("mse_loss", "l1_loss"):
        function, operation = getattr(T, name), getattr(F, name)
        yield Case(name, name, function, operation, (X, X))
        yield Case(
            f"{name} of bfloat16",
            name,
            function,
            operation,
            (X._replace(dtype="bfloat16"), X._replace(dtype="bfloat16")),
        )
    yield Case(
        "mse_loss, not reduced",
        "mse_loss",
        lambda x, y: T.mse_loss(x, y, reduction="none"),
        lambda x, y: F.mse_loss(x, y, "none"),
        (X, X),
    )
    logits, targets = tensor(13, 11), tensor(13, dtype="int64")
    yield Case("nll_loss", "nll_loss", T.nll_loss, F.nll_loss, (logits, targets), trains=((0,), ()))
    yield Case("cross_entropy", "cross_entropy", T.cross_entropy, F.cross_entropy, (logits, targets), trains=((0,), ()))
    yield Case(
        "cross_entropy of bfloat16",
        "cross_entropy",
        T.cross_entropy,
        F.cross_entropy,
        (logits._replace(dtype="bfloat16"), targets),
        trains=((0,), ()),
    )


class Run(NamedTuple):
    case: Case
    trainable: tuple[bool, ...]
    hidden: bool
    autocast: str

    @property
    def sentence(self) -> str:
        numbers = [n for n, t in enumerate(self.trainable) if t]
        if not numbers:
            who = "nothing trains"
        elif len(numbers) == sum(o.is_floating and not o.buffer for o in self.case.operands):
            who = "everything trains"
        else:
            who = "operand " + " and ".join(str(n) for n in numbers) + " trains"
        where = ", inside a network" if self.hidden else ""
        return f"{self.case.name}, {self.autocast or 'no'} autocast, {who}{where}"


def runs() -> Iterator[Run]:
    for case in cases():
        floats = [n for n, o in enumerate(case.operands) if o.is_floating and not o.buffer]
        combinations = case.trains or tuple(dict.fromkeys((tuple(floats), (0,), tuple(floats[1:]), ())))
        for autocast in ("", "bfloat16") if case.autocast else ("",):
            dtypes = {case.operands[n].dtype for n in floats}
            if not autocast and len(dtypes) > 1 and "under autocast" in case.name:
                continue
            for trains in combinations:
                trainable = tuple(n in trains for n in range(len(case.operands)))
                for hidden in (False, True):
                    if hidden and not any(trainable):
                        continue
                    if case.in_place and trainable[0] and not hidden:
                        continue
                    yield Run(case, trainable, hidden, autocast)


RUNS = tuple(runs())


@pytest.mark.parametrize("run", RUNS, ids=[run.sentence for run in RUNS])
def test_memory_is_torchs_to_the_byte(run: Run) -> None:
    expected = in_torch(run.case.torch, run.case.operands, run.trainable, run.hidden, run.autocast)
    assert in_meta(run.case.meta, run.case.operands, run.trainable, run.hidden, run.autocast) == expected


def test_every_public_operation_has_a_case() -> None:
    public = {
        name
        for name, value in vars(F).items()
        if inspect.isfunction(value) and value.__module__.startswith("memlint.meta.ops") and not name.startswith("_")
    }
    assert public - {"kernel"} - {case.covers for case in cases()} == set()  # which decorates operations
