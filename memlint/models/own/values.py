"""Numbers, texts and lists of a repository's own model: Python's own, at a cost that is bounded.

A stranger's code can make much of a few characters: a list that doubles, a power of powers, a range without end. Every
function here takes steps from the meter for what it goes through, and refuses what is longer or larger than any model
has. What is not here is not known: no method of Python's is reached by its name alone.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any

from memlint import work
from memlint.documents import arithmetic
from memlint.meta.nn import Module
from memlint.meta.tensor import DType, Tensor
from memlint.models import UnknownModel
from memlint.models.own.objects import Modules, OwnClass, OwnModule
from memlint.models.program_operations import OPERATIONS

MAX_ITEMS = 100_000  # of a list
MAX_DIMS = 32  # of a tensor
MAX_SIZE_BITS = 62  # of a size, as torch has it

_ITEM = 2  # steps for an item of a list
_SIGNS = 64  # signs of a text that take a step

Scalar = (bool, int, float, str, type(None))


def going(count: int) -> None:
    """So many items are gone through."""
    if count > MAX_ITEMS:
        raise UnknownModel("too many items")
    work.spend(_ITEM * count, "following a repository's own model")


def items(value: Any) -> list[Any]:
    """Of what Python's functions take for a sequence."""
    if isinstance(value, Modules):
        value = value.layers
    if isinstance(value, (list, tuple, range, dict, set, str)):
        going(length(value))
        return list(value)
    if hasattr(value, "__next__"):
        found: list[Any] = []
        for one in value:  # of a module's parts: as many as it has
            going(1)
            found.append(one)
        return found
    raise UnknownModel("what is gone through is no list")


def length(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.shape[0]
    if isinstance(value, Modules):
        return len(value.layers)
    if isinstance(value, range):
        return max(0, -(-(value.stop - value.start) // value.step))
    if isinstance(value, (list, tuple, dict, set, str)):
        return len(value)
    raise UnknownModel("the length of what has none")


def flat(value: Any) -> Any:
    """A value that is compared, ordered or kept by at a cost of its length: a scalar, or a row of them."""
    if isinstance(value, (list, tuple, range)):
        found = items(value)
        if all(isinstance(one, Scalar) for one in found):
            return value
    elif isinstance(value, (*Scalar, DType, Module, Tensor, Plain, OwnClass)):
        return value
    raise UnknownModel("what stands within each other is compared")


def text(value: Any) -> str:
    """A scalar as a text."""
    if not isinstance(value, (*Scalar, DType)):
        raise UnknownModel("a text of what is no number")
    return str(value.name if isinstance(value, DType) else value)


def key(value: Any) -> Any:
    """What a dict may keep a value by."""
    if isinstance(value, list):
        raise UnknownModel("a list is no key")
    return flat(value)


def item(owner: Any, which: Any) -> Any:
    """``owner[which]``"""
    if isinstance(owner, dict):
        return owner[key(which)]
    if not isinstance(owner, (list, tuple, str, range)):
        raise UnknownModel("an item of what has none")
    if isinstance(which, slice):
        going(length(owner))
    return owner[which]


# ---------------------------------------------------------------------------------------------- operators


def combined(kind: ast.operator, left: Any, right: Any) -> Any:
    """``left kind right`` of what are no tensors."""
    for one, other in ((left, right), (right, left)):
        if isinstance(one, (list, tuple)):
            return _of_lists(kind, one, other, one is left)
    if isinstance(left, str) and isinstance(kind, ast.Mod):
        return left  # a text that is shown
    if not isinstance(left, Scalar) or not isinstance(right, Scalar):
        raise UnknownModel(f"{type(kind).__name__} of what are no numbers")
    try:
        return arithmetic.binary(kind, left, right)
    except arithmetic.Unknown as error:
        raise UnknownModel(str(error)) from None


def _of_lists(kind: ast.operator, row: Any, other: Any, is_left: bool) -> Any:
    if isinstance(kind, ast.Mult) and isinstance(other, int):
        going(len(row) * max(other, 0))
        return row * other
    if isinstance(kind, ast.Add) and is_left and type(other) is type(row):
        going(len(row) + len(other))
        return row + other
    raise UnknownModel(f"{type(kind).__name__} of a list")


def turned(kind: ast.unaryop, value: Any) -> Any:
    if isinstance(kind, ast.Not):
        return not value
    if not isinstance(value, Scalar):
        raise UnknownModel(f"{type(kind).__name__} of what is no number")
    try:
        return arithmetic.unary(kind, value)
    except arithmetic.Unknown as error:
        raise UnknownModel(str(error)) from None


def compared(kind: ast.cmpop, left: Any, right: Any) -> bool:
    if isinstance(kind, (ast.Is, ast.IsNot)):
        return (left is right) is isinstance(kind, ast.Is)
    if isinstance(kind, (ast.In, ast.NotIn)):
        return _has(right, left) is isinstance(kind, ast.In)
    left, right = flat(left), flat(right)
    if isinstance(kind, (ast.Eq, ast.NotEq)):
        return bool(left == right) is isinstance(kind, ast.Eq)
    return bool(_ORDERS[type(kind)](left, right))


_ORDERS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: lambda one, other: one < other,
    ast.LtE: lambda one, other: one <= other,
    ast.Gt: lambda one, other: one > other,
    ast.GtE: lambda one, other: one >= other,
}


def _has(row: Any, value: Any) -> bool:
    if isinstance(row, str) and isinstance(value, str):
        going((len(row) + len(value)) // _SIGNS)
        return value in row
    if isinstance(row, (dict, set)):
        return key(value) in row
    return any(flat(one) == flat(value) for one in items(row))


# ---------------------------------------------------------------------------------------------- Python's functions


class Plain:
    """A type of Python's own, as a stranger's code may use it: to make a value, and to ask of which kind one is."""

    def __init__(self, kind: type, make: Callable[..., Any]) -> None:
        self.kind, self.make = kind, make

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.make(*args, **named)


def _number(kind: type[int] | type[float]) -> Callable[..., Any]:
    def make(value: Any = 0) -> Any:
        if not isinstance(value, Scalar) or (isinstance(value, str) and len(value) > _SIGNS):
            raise UnknownModel("a number of what is none")
        return kind(value)  # type: ignore[arg-type]

    return make


def _mapped(given: Any = (), **named: Any) -> dict[Any, Any]:
    pairs = [(one, given[one]) for one in items(given)] if isinstance(given, dict) else items(given)
    return {**{key(one): value for one, value in pairs}, **named}


def _range(*bounds: int) -> range:
    if not all(isinstance(one, int) for one in bounds):
        raise UnknownModel("a range of what are no whole numbers")
    made = range(*bounds)
    if length(made) > MAX_ITEMS:
        raise UnknownModel("too many items")
    return made


PLAIN: dict[str, Plain] = {
    "int": Plain(int, _number(int)),
    "float": Plain(float, _number(float)),
    "bool": Plain(bool, lambda value=False: bool(value)),
    "str": Plain(str, lambda value="": text(value)),
    "list": Plain(list, lambda value=(): items(value)),
    "tuple": Plain(tuple, lambda value=(): tuple(items(value))),
    "set": Plain(set, lambda value=(): {key(one) for one in items(value)}),
    "dict": Plain(dict, _mapped),
    "range": Plain(range, _range),
}


def kind_of(value: Any) -> Any:
    """``type(value)``, to be compared."""
    if isinstance(value, OwnModule):
        return value.kind
    found = next((one for one in PLAIN.values() if type(value) is one.kind), None)
    if found is None:
        raise UnknownModel("the type of what is not known")
    return found


def _sum(values: Any, start: Any = 0) -> Any:
    total = start
    for one in items(values):
        if isinstance(total, Tensor) or isinstance(one, Tensor):
            total = one if total == 0 and not isinstance(total, Tensor) else OPERATIONS["add"](total, one)
        else:
            total = combined(ast.Add(), total, one)
    return total


def _extreme(choose: Callable[..., Any]) -> Callable[..., Any]:
    def find(*values: Any) -> Any:
        return choose(flat(items(values[0]) if len(values) == 1 else list(values)))

    return find


def _paired(*rows: Any, strict: bool = False) -> list[Any]:
    return list(zip(*map(items, rows)))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "len": length,
    "min": _extreme(min),
    "max": _extreme(max),
    "sum": _sum,
    "abs": lambda value: abs(flat(value)),
    "round": lambda value, digits=None: round(flat(value), digits),
    "divmod": lambda one, other: (combined(ast.FloorDiv(), one, other), combined(ast.Mod(), one, other)),
    "enumerate": lambda row, start=0: list(enumerate(items(row), start)),
    "zip": _paired,
    "sorted": lambda row, reverse=False: sorted(flat(items(row)), reverse=bool(reverse)),
    "reversed": lambda row: items(row)[::-1],
    "all": lambda row: all(items(row)),
    "any": lambda row: any(items(row)),
    "type": kind_of,
    "slice": slice,
}

# ---------------------------------------------------------------------------------------------- methods


def _joined(between: str, parts: Any) -> str:
    found = items(parts)
    going(sum(map(len, found)) // _SIGNS + len(between) * len(found) // _SIGNS)
    return between.join(found)


def _extended(row: list[Any], more: Any) -> None:
    added = items(more)
    going(len(row) + len(added))
    row.extend(added)


def _appended(row: list[Any], value: Any) -> None:
    if len(row) >= MAX_ITEMS:
        raise UnknownModel("too many items")
    row.append(value)


def _inserted(row: list[Any], place: int, value: Any) -> None:
    going(len(row) + 1)
    row.insert(place, value)


def _reversed(row: list[Any]) -> None:
    going(len(row))
    row.reverse()


def _popped(owner: Any, *which: Any) -> Any:
    return owner.pop(*map(flat, which))


def _updated(owner: dict[Any, Any], given: Any = (), **named: Any) -> None:
    owner.update(_mapped(given, **named))


def _of_texts(name: str) -> Callable[..., Any]:
    """A method of a text that makes nothing that is longer."""
    method = getattr(str, name)

    def call(owner: str, *args: Any) -> Any:
        going(len(owner) // _SIGNS)
        return method(owner, *args)

    return call


METHODS: dict[type, dict[str, Callable[..., Any]]] = {
    str: {
        **{
            name: _of_texts(name)
            for name in (
                *("split", "rsplit", "partition", "rpartition", "startswith", "endswith", "lower", "upper", "strip"),
                *("lstrip", "rstrip", "isdigit", "removeprefix", "removesuffix", "find", "count"),
            )
        },
        "join": _joined,
    },
    list: {
        "append": _appended,
        "extend": _extended,
        "insert": _inserted,
        "pop": _popped,
        "copy": lambda row: items(row),
        "index": lambda row, value: flat(row).index(flat(value)),
        "reverse": _reversed,
    },
    tuple: {"index": lambda row, value: flat(row).index(flat(value))},
    dict: {
        "get": lambda owner, one, usual=None: owner.get(key(one), usual),
        "pop": _popped,
        "items": lambda owner: [(one, owner[one]) for one in items(owner)],
        "keys": lambda owner: items(owner),
        "values": lambda owner: [owner[one] for one in items(owner)],
        "update": _updated,
        "setdefault": lambda owner, one, usual=None: owner.setdefault(key(one), usual),
        "copy": lambda owner: _mapped(owner),
    },
    set: {"add": lambda owner, one: owner.add(key(one))},
}

# Of one number each, but for those that Python has for two.
MATHEMATICS: dict[str, Any] = {
    **{
        name: getattr(math, name)
        for name in (
            *("sqrt", "log", "log2", "log10", "log1p", "exp", "ceil", "floor", "cos", "sin", "tan", "tanh", "fabs"),
            *("pi", "e", "inf", "nan", "isqrt", "gcd", "isnan", "isinf", "isfinite", "erf", "atan", "hypot", "trunc"),
        )
    },
    "pow": lambda one, other: math.pow(one, other),
    "prod": lambda row: _product(items(row)),
}


def _product(row: list[Any]) -> Any:
    total: Any = 1
    for one in row:
        total = combined(ast.Mult(), total, one)
    return total


# ---------------------------------------------------------------------------------------------- tensors


def sized(given: Any) -> None:
    """Refuses arguments of torch's functions that no model has: rows of sizes without end, sizes beyond torch's."""
    for one in given:
        if isinstance(one, (list, tuple)):
            going(len(one))
            numbers = [part for part in one if isinstance(part, int)]
            if len(numbers) > MAX_DIMS:
                raise UnknownModel(f"more than {MAX_DIMS} dimensions")
        else:
            numbers = [one] if isinstance(one, int) else []
        if any(number.bit_length() > MAX_SIZE_BITS for number in numbers):
            raise UnknownModel("a size that is too large")


def dimensioned(found: Any) -> Any:
    """What an operation returns, unless it has more dimensions than torch's kernels take."""
    if isinstance(found, Tensor) and found.ndim > MAX_DIMS:
        raise UnknownModel(f"more than {MAX_DIMS} dimensions")
    return found
