"""Operations that a compiler leaves to libraries, or to kernels of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from memlint.meta.tensor import Deferred, Storage, Tensor, state, stored

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def kernel(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The same, as a kernel that no compiler fuses with others: it reads its operands from memory and writes there."""

    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if not state.fusing:
            return function(*args, **kwargs)
        for x in args:
            if isinstance(x, Tensor):
                _pass(x.storage)
                stored(x)
        state.fusing = False
        try:
            return function(*args, **kwargs)
        finally:
            state.fusing = True

    run.__name__, run.__doc__ = function.__name__, function.__doc__
    return run


def _pass(storage: Storage) -> None:
    """A kernel reads this: it comes after all of which this is made."""
    if type(storage) is Deferred:
        for source in storage.sources:
            if not getattr(source, "passed", False):
                source.passed = True
                _pass(source)
