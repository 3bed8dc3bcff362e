"""Storages with sizes as formulas: what the tracker is when dimensions have names instead of values.

Named dimensions are PyTorch's symbolic integers, backed by the values of one real setting. Whatever the code or an
operator decides by comparing them becomes a guard: the recording holds where the guards hold.
"""

from __future__ import annotations

import re
import warnings
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import sympy
import torch
from torch import Tensor
from torch._dynamo.source import ConstantSource
from torch._prims_common import suggest_memory_format
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._sympy.functions import Max
from torch.utils._sympy.value_ranges import ValueRanges

from memlint.measure.cuda_kernels import convolution_format
from memlint.measure.cuda_semantics import CudaSemantics
from memlint.measure.tracker import StorageTracker
from memlint.meta.tape import Label
from memlint.profiles.profile import MAX_VALUE

aten = torch.ops.aten


class NotExpressible(Exception):
    """A size or guard that the language of profiles has no words for."""


class Dimensions:
    """Named dimensions of one recording: ``sizes`` holds each as PyTorch sees it (SymInt, or int where it is fixed).

    fixed   names of dimensions to leave as numbers; a dimension of 1 always is one, as sizes of 1 broadcast
    """

    def __init__(self, values: Mapping[str, int], fixed: Iterable[str] = ()) -> None:
        self.values = dict(values)
        # 0 and 1 are ordinary values: what depends on them says so in a guard.
        # Values of tensors stay unknown, as in a trace.
        self.environment = ShapeEnv(
            specialize_zero_one=False,
            duck_shape=False,
            allow_scalar_outputs=False,
            allow_dynamic_output_shape_ops=False,
        )
        self.mode = FakeTensorMode(shape_env=self.environment)
        self.sizes: dict[str, Any] = {}
        self._names: dict[Any, str] = {}
        self._texts: dict[Any, str] = {}
        for name, value in self.values.items():
            self.sizes[name] = value
            if value > 1 and name not in fixed:
                carrier = self.mode.from_tensor(
                    torch.empty(value, device="meta"),
                    symbolic_context=StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC]),
                    source=ConstantSource(name),
                    static_shapes=False,
                )
                size = self.sizes[name] = carrier.shape[0]
                # With a bound, PyTorch can tell that `x[:]` takes all of x, and makes no node for it, as ever.
                self.environment._update_var_to_range(size.node.expr, ValueRanges(1, MAX_VALUE))
                self._names[size.node.expr] = name

    def text(self, size: Any) -> str:
        """A size in the names of the dimensions, as simple as the guards so far allow."""
        if not isinstance(size, torch.SymInt):
            return str(int(size))
        expression = size.node.expr
        if expression not in self._texts:
            simpler = self._simplified(expression)
            forms = [simpler]
            if simpler.is_Add:  # the extent of a strided storage is a sum over its strides, yet often a product
                forms.append(sympy.expand(simpler))
                forms.append(sympy.factor_terms(forms[-1]))
            texts = [_bare(written(form, self._names)) for form in forms]
            self._texts[expression] = min(texts, key=len)
        return self._texts[expression]

    def _simplified(self, expression: Any) -> Any:
        """Sizes of strided storages come with ``Max(1, n)`` for every n that might be 0; most cannot be."""
        plain = {}
        for part in expression.atoms(Max):
            if len(part.args) == 2 and part.args[0] == 1:
                inside = part.args[1]
            elif len(part.args) == 2 and part.args[1] == 1:
                inside = part.args[0]
            else:
                continue
            if self.environment.bound_sympy(inside).lower >= 1:
                plain[part] = inside
        return expression.xreplace(plain)

    def guards(self) -> list[str]:
        """The conditions under which the recording holds: ranges of single dimensions, then what they do not imply."""
        found: dict[str, None] = {}
        for name, size in self.sizes.items():
            if isinstance(size, int):
                found[f"{name} == {size}"] = None
                continue
            bounds = self.environment.bound_sympy(size.node.expr)
            if bounds.is_singleton():
                found[f"{name} == {int(bounds.lower)}"] = None
                continue
            if bounds.lower > 1:
                found[f"{name} >= {int(bounds.lower)}"] = None
            if bounds.upper < MAX_VALUE:
                found[f"{name} <= {int(bounds.upper)}"] = None
        for guard in self.environment.guards:
            for part in guard.expr.args if isinstance(guard.expr, sympy.And) else (guard.expr,):
                if not self._is_implied(part):
                    found[_bare(written(self._simplified(part), self._names))] = None
        return list(found)

    def condition(self, guard: Any) -> str:
        """A guard in the names of the dimensions."""
        return _bare(written(self._simplified(guard), self._names))

    def _is_implied(self, condition: Any) -> bool:
        """Whether the ranges of the dimensions, and they alone, make a condition true."""
        try:
            bounds = self.environment.bound_sympy(condition)
        except Exception:  # not every expression has a range analysis
            return False
        return bool(bounds.is_singleton() and bounds.lower == sympy.true)


# -- formulas --------------------------------------------------------------------------------------------------------

_RELATIONS = {
    "Equality": "==",
    "Unequality": "!=",
    "StrictLessThan": "<",
    "LessThan": "<=",
    "StrictGreaterThan": ">",
    "GreaterThan": ">=",
}
_CALLS = {"Max": "max", "Min": "min", "FloorToInt": "floor", "CeilToInt": "ceil", "TruncToInt": "trunc"}
_CALLS |= {"floor": "floor", "ceiling": "ceil"}
_INFIX = {"FloorDiv": "//", "CleanDiv": "//", "Mod": "%", "PythonMod": "%", "IntTrueDiv": "/", "FloatTrueDiv": "/"}
_INFIX |= {"PowByNatural": "**", "Pow": "**", "FloatPow": "**"}


def written(expression: Any, names: Mapping[Any, str]) -> str:
    """A sympy expression of PyTorch's in the language of :mod:`memlint.profiles.expression`.

    Always the same text for the same expression: factors and terms are sorted. Raises NotExpressible.
    """
    kind = type(expression).__name__
    if expression in names:
        return names[expression]
    if expression.is_Integer:
        return str(int(expression)) if expression >= 0 else f"(-{-int(expression)})"
    if expression.is_Float:
        return repr(float(expression))
    if kind in ("BooleanTrue", "BooleanFalse"):
        return "1 == 1" if expression else "1 == 0"
    arguments = expression.args
    if expression.is_Add:
        numbers = [_bare(written(argument, names)) for argument in arguments if argument.is_Number]
        terms = [_bare(written(argument, names)) for argument in arguments if not argument.is_Number]
        terms.sort(key=lambda term: (term.startswith("-"), _order(term)))
        text = "".join(term if term.startswith("-") else f"+{term}" for term in [*terms, *numbers])
        return f"({text.removeprefix('+')})"
    if expression.is_Mul:
        return _product(expression, names)
    if kind == "ToFloat":
        return written(arguments[0], names)
    if kind in _CALLS:
        texts = sorted((_bare(written(argument, names)) for argument in arguments), key=_order)
        return f"{_CALLS[kind]}({', '.join(texts)})"
    if kind in _RELATIONS:
        left, right = (_bare(written(argument, names)) for argument in arguments)
        return f"({left} {_RELATIONS[kind]} {right})"
    if kind in ("And", "Or"):
        texts = sorted((written(argument, names) for argument in arguments), key=_order)
        return "(" + f" {kind.lower()} ".join(texts) + ")"
    if kind == "Not":
        return f"(not {written(arguments[0], names)})"
    if kind == "ModularIndexing":
        base, divisor, modulus = (_operand(written(argument, names)) for argument in arguments)
        return f"(({base}//{divisor})%{modulus})"
    if kind in _INFIX and len(arguments) == 2:
        if _INFIX[kind] == "**":
            if not (arguments[1].is_Integer and arguments[1] > 0):
                raise NotExpressible(str(expression))
            return f"{_operand(written(arguments[0], names))}**{int(arguments[1])}"
        left, right = (_operand(written(argument, names)) for argument in arguments)
        return f"({left}{_INFIX[kind]}{right})"
    raise NotExpressible(str(expression))


_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])", re.ASCII)


def skeleton(text: str) -> str:
    """A formula without its numbers: what it has in common with that of another size."""
    return _NUMBER.sub("#", text)


def numbers(text: str) -> list[int]:
    """The whole numbers of a formula, from left to right."""
    return [int(number) for number in _NUMBER.findall(text)]


def with_numbers(text: str, replacements: Iterable[str]) -> str:
    """A formula with other texts for its numbers."""
    left = iter(replacements)
    return _NUMBER.sub(lambda match: next(left), text)


def _order(text: str) -> tuple[str, int, str]:
    """Sorts formulas so that other numbers in them do not change places."""
    return skeleton(text), len(text), text


def _product(expression: Any, names: Mapping[Any, str]) -> str:
    coefficient, rest = expression.as_coeff_Mul()
    above: list[str] = []
    if coefficient.is_Rational:
        numerator, denominator = int(coefficient.p), int(coefficient.q)
    elif coefficient.is_Float:
        numerator = denominator = 1
        above.append(repr(float(coefficient)))
    else:
        raise NotExpressible(str(expression))
    for factor in sympy.Mul.make_args(rest):
        above.append(written(factor, names))
    above.sort(key=lambda text: (text.startswith("("), _order(text)))
    sign = "-" if numerator < 0 else ""
    if abs(numerator) != 1 or not above:
        above.insert(0, str(abs(numerator)))
    text = sign + "*".join(above)
    if denominator != 1:  # of sizes that are known to be divisible
        return f"({text}//{denominator})" if not sign else f"(-({text[1:]}//{denominator}))"
    return f"({text})" if sign else text


def _operand(text: str) -> str:
    """Brackets around all but names, numbers, calls, and what has brackets."""
    head, _, _ = text.partition("(")
    inside = text[len(head) :]
    called = (not head or head.isidentifier()) and inside != _bare(inside)
    return text if called or text.isidentifier() or text.replace(".", "").isdigit() else f"({text})"


def _bare(text: str) -> str:
    """Without the brackets around the whole."""
    if not text.startswith("("):
        return text
    depth = 0
    for index, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[1:-1] if index == len(text) - 1 else text
    return text


# -- the modes -------------------------------------------------------------------------------------------------------


class SymbolicTracker(StorageTracker):
    """Books storages with the formula of their size. Counts nothing: to compare formulas would be to guard them.

    sizes      bytes asked for, as PyTorch states them; the tape holds places in this list instead of sizes
    decided    guard -> the operator at which it came up
    """

    dimensions: Dimensions

    def __init__(self, granularity_bytes: int = 1) -> None:
        super().__init__(granularity_bytes)
        self.sizes: list[Any] = []
        self.decided: dict[str, str] = {}
        self._place: dict[Any, int] = {}

    def _raise_peak(self) -> None:
        pass

    def ran(self, func: Any) -> None:
        """An operator that another one stands in for."""

    def book_storage(self, storage: Any, label: Label | None = None) -> None:
        address = storage._cdata
        if address in self._elsewhere:
            return
        size = storage.nbytes()
        expression = size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)
        known = self._alive.get(address)
        if known is not None:
            if known.expression == expression:  # type: ignore[attr-defined]
                return
            label = label or self.tape.labels[known.index]
            self._end(address)
        if expression == 0:
            return
        if expression not in self._place:
            self._place[expression] = len(self.sizes)
            self.sizes.append(size)
        index = self.tape.allocate(self._place[expression], label or Label("activations", ""))
        reference = weakref.ref(storage, lambda _, address=address: self._end(address))  # type: ignore[misc]
        self._alive[address] = _Symbolic(index, size, expression, reference)  # type: ignore[assignment]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        guards = self.dimensions.environment.guards
        before = len(guards)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        for guard in guards[before:]:
            self.decided.setdefault(str(guard.expr), func._schema.name.partition("::")[2])
        return result


class _Symbolic:
    """A storage that is alive. To the tracker's sums it adds nothing, so that they stay numbers."""

    __slots__ = ("expression", "index", "reference", "size_bytes")
    rounded_bytes = 0

    def __init__(self, index: int, size_bytes: Any, expression: Any, reference: Any) -> None:
        self.index = index
        self.size_bytes = size_bytes
        self.expression = expression
        self.reference = reference


def _convolution(tracker: StorageTracker, func: Any, input: Tensor, weight: Tensor, bias: Any, *args: Any) -> Any:
    """As :mod:`memlint.measure.cuda_kernels` has it, without asking which of the CPU's kernels would run: the answer
    depends on sizes, and does not matter here."""
    stride, padding, dilation, transposed, output_padding, groups = args
    format = convolution_format(input, weight)
    copies = input.contiguous(memory_format=format), weight.contiguous(memory_format=format)
    shape = torch._meta_registrations.calc_conv_nd_return_shape(
        input, weight, stride, padding, dilation, transposed, groups, output_padding if transposed else None
    )
    with tracker.paused():
        out = torch.empty(shape, dtype=input.dtype, memory_format=format)
    tracker.book(out)
    del copies
    return out


def _convolution_backward(
    tracker: StorageTracker, func: Any, grad_out: Tensor, input: Tensor, weight: Tensor, bias_sizes: Any, *args: Any
) -> Any:
    format = convolution_format(input, weight)
    copies = tuple(x.contiguous(memory_format=format) for x in (grad_out, input, weight))
    wanted = args[-1]
    with tracker.paused():
        grads = (
            torch.empty(input.shape, dtype=input.dtype, memory_format=format) if wanted[0] else None,
            torch.empty(weight.shape, dtype=weight.dtype, memory_format=format) if wanted[1] else None,
            torch.empty(bias_sizes, dtype=grad_out.dtype) if wanted[2] else None,
        )
    for grad in grads:
        if grad is not None:
            tracker.book(grad)
    del copies
    return grads


def _upsampled(tracker: StorageTracker, func: Any, input: Tensor, output_size: Any, *args: Any) -> Tensor:
    """One new tensor in the input's memory format (the decomposition that would run for formulas cannot do them)."""
    return _made(tracker, func, (*input.shape[:2], *output_size), input)


def _upsampled_backward(
    tracker: StorageTracker, func: Any, grad_out: Tensor, output_size: Any, input_size: Any, *args: Any
) -> Tensor:
    return _made(tracker, func, input_size, grad_out)


def _made(tracker: StorageTracker, func: Any, shape: Any, like: Tensor) -> Tensor:
    with tracker.paused():
        out = torch.empty(shape, dtype=like.dtype, memory_format=suggest_memory_format(like))
    tracker.book(out, Label("activations", "", func._schema.name.partition("::")[2]))
    return out


def _padded(tracker: StorageTracker, func: Any, input: Tensor, amounts: Any, value: Any = 0) -> Tensor:
    """One new tensor (the operator's C++ wants plain numbers)."""
    shape = list(input.shape)
    for at in range(len(amounts) // 2):
        shape[-1 - at] = shape[-1 - at] + amounts[2 * at] + amounts[2 * at + 1]
    return _made(tracker, func, shape, input)


def _added_product(tracker: StorageTracker, func: Any, input: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """One new tensor, like the sum and the product that it stands for (so does this operator's C++)."""
    with tracker.paused():
        out: Tensor = input + first * second
    tracker.book(out, Label("activations", "", func._schema.name.partition("::")[2]))
    return out


KERNELS: dict[Any, Any] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.constant_pad_nd.default: _padded,
    aten.addcmul.default: _added_product,
}


def _scaled(size: Any, factor: float) -> Any:
    """``size * factor`` rounded down; without floats where that is the same."""
    if factor.is_integer():
        return size * int(factor)
    if factor > 0 and factor.as_integer_ratio()[0] == 1:
        return size // factor.as_integer_ratio()[1]
    return torch.sym_int(size * factor)


def _upsample(packet: Any, corners: bool) -> Any:
    """``upsample_*.vec`` of native/UpSample.h in symbolic arithmetic: its C++ would fix the sizes."""

    def kernel(input: Tensor, output_size: Any, *rest: Any) -> Tensor:
        factors = rest[-1]
        if output_size is None:
            sizes = [_scaled(size, factor) for size, factor in zip(input.shape[2:], factors)]
        else:
            sizes = list(output_size)
        scales = list(factors) if factors is not None else [None] * len(sizes)
        arguments = (rest[0], *scales) if corners else tuple(scales)
        result: Tensor = packet.default(input, sizes, *arguments)
        return result

    return kernel


_UPSAMPLINGS = {
    **{f"upsample_nearest{n}d": False for n in (1, 2, 3)},
    **{f"_upsample_nearest_exact{n}d": False for n in (1, 2, 3)},
    "upsample_linear1d": True,
    "upsample_bilinear2d": True,
    "upsample_trilinear3d": True,
    "upsample_bicubic2d": True,
}


for _name in _UPSAMPLINGS:
    KERNELS[getattr(aten, _name).default] = _upsampled
    KERNELS[getattr(aten, f"{_name}_backward").default] = _upsampled_backward


def _unsafe_chunk(input: Tensor, chunks: int, dim: int = 0) -> Any:
    """native/TensorShape.cpp, without asking for all sizes as numbers."""
    size = input.shape[dim]
    return torch.unsafe_split(input, (size + chunks - 1) // chunks, dim)


class SymbolicCudaSemantics(CudaSemantics):
    """CUDA's semantics where sizes are formulas."""

    _tracker: SymbolicTracker

    def __enter__(self) -> SymbolicCudaSemantics:
        super().__enter__()
        kernels = {f"{name}.vec": _upsample(getattr(aten, name), corners) for name, corners in _UPSAMPLINGS.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as in CudaSemantics
            for name, kernel in {**kernels, "unsafe_chunk": _unsafe_chunk}.items():
                self._library.impl(name, kernel, "CompositeImplicitAutograd", allow_override=True)
        return self

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kernel = KERNELS.get(func)
        if kernel is not None and not kwargs:
            self._tracker.ran(func)  # it will not be called itself
            return kernel(self._tracker, func, *args)
        return super().__torch_dispatch__(func, types, args, kwargs)
