"""Attributes of what a repository's own model has: of its objects, of tensors, and of libraries."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

from memlint.meta import functional as F
from memlint.meta.nn import Module, buffer
from memlint.meta.tensor import Tensor, int64
from memlint.models import UnknownModel
from memlint.models.own import library, values
from memlint.models.own.objects import (
    Bound,
    Function,
    Instance,
    Modules,
    OwnClass,
    OwnModule,
    Scope,
    Strange,
    Super,
    kept_as,
)
from memlint.named_tuple import NamedTuple


class Library(NamedTuple):
    """A module of a library, by its dotted name."""

    dotted: str


def _size(x: Tensor, dim: int | None = None) -> Any:
    return x.shape if dim is None else x.shape[dim]


# Attributes of a tensor, and methods that are of it alone.
_OF_TENSORS: dict[str, Callable[[Tensor], Any]] = {
    "shape": lambda x: x.shape,
    "dtype": lambda x: x.dtype,
    "device": lambda x: library.DEVICE,
    "ndim": lambda x: x.ndim,
    "T": lambda x: F.transpose(x, 0, 1) if x.ndim == 2 else x,
    "mT": lambda x: F.transpose(x, -2, -1),
    "is_cuda": lambda x: True,
    "requires_grad": lambda x: x.requires_grad,
    "data": lambda x: x.detach(),
}
_METHODS: dict[str, Callable[..., Any]] = {
    **library.FUNCTIONS,
    "size": _size,
    "dim": lambda x: x.ndim,
    "numel": lambda x: x.numel,
    "nelement": lambda x: x.numel,
    "detach": lambda x: x.detach(),
    "t": lambda x: F.transpose(x, 0, 1),
    "cuda": lambda x, *args, **named: x,
    "long": lambda x: library.plain("a conversion", x, dtype=int64),
    "bool": lambda x: library.compared(x),
    "int": lambda x: library.plain("a conversion", x),
    "masked_fill_": lambda x, mask, value: F.masked_fill(x, mask),
    "mul_": lambda x, other: F.mul_(x, other),
    "new_zeros": lambda x, *sizes, **named: library.TABLES["torch"]["zeros"](*sizes, dtype=x.dtype),
    "new_ones": lambda x, *sizes, **named: library.TABLES["torch"]["ones"](*sizes, dtype=x.dtype),
    "normal_": lambda x, *args, **named: x,
    "uniform_": lambda x, *args, **named: x,
    "zero_": lambda x: x,
    "fill_": lambda x, value: x,
}
for _name in ("shape", "zeros", "ones", "empty", "randn", "rand", "full", "arange", "randint", "tensor"):
    _METHODS.pop(_name, None)
# Methods of modules that change no memory.
_PASSED = ("apply", "to", "cuda", "train", "requires_grad_", "half", "float", "bfloat16", "post_init", "init_weights")


class Attributes:
    """What an attribute of a value is."""

    def attribute(self: Any, owner: Any, name: str, node: ast.AST) -> Any:
        if isinstance(owner, Strange):
            raise self.strange(node, owner.why)
        if isinstance(owner, Library):
            return self.named(f"{owner.dotted}.{name}") if not owner.dotted.startswith(library.PASSED) else owner
        if isinstance(owner, Tensor):
            return self.of_tensor(owner, name, node)
        if isinstance(owner, Super):
            return self.of_super(owner, name, node)
        if isinstance(owner, Module):
            return self.of_module(owner, name, node)
        if isinstance(owner, Instance):
            if name in owner.values:
                return owner.values[name]
            return self.of_class(owner.kind, name, owner, node)
        if isinstance(owner, OwnClass):
            found = owner.find(name)
            return found if found is not None else Strange(f"{owner.name} has no {name}")
        method = values.METHODS.get(type(owner), {}).get(name)
        if method is not None:
            return Bound(method, owner)
        raise self.strange(node, f".{name} of such a value is not followed")

    def of_tensor(self: Any, owner: Tensor, name: str, node: ast.AST) -> Any:
        if name in _OF_TENSORS:
            return _OF_TENSORS[name](owner)
        function = _METHODS.get(name) or F.METHODS.get(name)
        if function is None:
            raise self.strange(node, f"a tensor's .{name} is not followed")
        return Bound(function, owner)

    def of_super(self: Any, owner: Super, name: str, node: ast.AST) -> Any:
        found = owner.owner.kind.find(name, owner.above)
        if found is not None:
            return Bound(found, owner.owner)
        if name == "__init__":
            return lambda *args, **named: None
        raise self.strange(node, f"super().{name} is not followed")

    def of_module(self: Any, owner: Module, name: str, node: ast.AST) -> Any:
        own = owner.__dict__
        kept = kept_as(name) if isinstance(owner, OwnModule) else name
        if kept in own:
            return own[kept]
        if isinstance(owner, Modules) and name in owner.names:
            return owner.layers[owner.names.index(name)]
        if name == "training":
            return owner.training
        if isinstance(owner, OwnModule):
            found = owner.kind.find(name)
            if found is not None:
                return self.of_class(owner.kind, name, owner, node)
        if name in _PASSED:
            return Bound(self.passed, owner)
        if name in _OF_MODULES:
            return Bound(_OF_MODULES[name], owner)
        if name == "forward":
            return owner.forward
        raise self.strange(node, f"a module's .{name} is not followed")

    def of_class(self: Any, kind: OwnClass, name: str, owner: Any, node: ast.AST) -> Any:
        found = kind.find(name)
        if found is None:
            raise self.strange(node, f"{kind.name} has no {name}")
        if not isinstance(found, Function):
            return found
        marks = [getattr(one, "id", getattr(one, "attr", "")) for one in getattr(found.node, "decorator_list", ())]
        if "staticmethod" in marks:
            return found
        if "property" in marks or "cached_property" in marks:
            return self.enter(found, [owner], {})
        return Bound(found, kind if "classmethod" in marks else owner)

    def set_attribute(self: Any, owner: Any, name: str, value: Any, node: ast.AST) -> None:
        if isinstance(owner, Instance):
            owner.values[name] = value
        elif isinstance(owner, OwnModule):
            setattr(owner, kept_as(name), value)
        elif isinstance(owner, Module):
            setattr(owner, name, value)
        elif not isinstance(owner, (Tensor, Function)):  # a mark on a parameter or a function
            raise self.strange(node, "an attribute of such a value is set")

    def above(self: Any, node: ast.Call, scope: Scope) -> Super:
        kind = scope.of_class()
        first = next(iter(scope.names.values()), None)
        if kind is None or not isinstance(first, (OwnModule, Instance)):
            raise self.strange(node, "super() outside of a method")
        return Super(first, kind)

    def passed(self: Any, *args: Any) -> Any:
        """Stands for methods that are passed over."""

    @property
    def builtins(self: Any) -> dict[str, Any]:
        return {
            **_BUILTINS,
            "isinstance": self.is_kind,
            "hasattr": self.has,
            "getattr": self.get,
            "setattr": lambda owner, name, value: self.set_attribute(owner, name, value, ast.Pass()),
        }

    def is_kind(self: Any, value: Any, kinds: Any) -> bool:
        for kind in kinds if isinstance(kinds, tuple) else (kinds,):
            kind = kind.kind if isinstance(kind, values.Plain) else kind
            if isinstance(kind, OwnClass):
                own = getattr(value, "kind", None)
                if isinstance(own, OwnClass) and own.is_kind_of(kind):
                    return True
            elif kind is library.MODULE:
                if isinstance(value, Module):
                    return True
            elif isinstance(kind, type):
                if isinstance(value, kind):
                    return True
            elif isinstance(kind, Strange):
                raise UnknownModel(kind.why)
        return False

    def has(self: Any, owner: Any, name: str) -> bool:
        try:
            return not isinstance(self.attribute(owner, name, ast.Pass()), Strange)
        except UnknownModel:
            return False

    def get(self: Any, owner: Any, name: str, *usual: Any) -> Any:
        return usual[0] if usual and not self.has(owner, name) else self.attribute(owner, name, ast.Pass())


def _registered(owner: Module, name: str, value: Any, persistent: bool = True) -> None:
    made = None if value is None else buffer(*value.shape, dtype=value.dtype)
    setattr(owner, kept_as(name) if isinstance(owner, OwnModule) else name, made)


def _appended(owner: Module, module: Module) -> None:
    assert isinstance(owner, Modules)
    owner.layers.append(module)


def _named(owner: Module) -> Iterator[tuple[str, Module]]:
    yield "", owner
    for name, child in owner.children():
        for inner, module in _named(child):
            yield f"{name}.{inner}".rstrip("."), module


_OF_MODULES: dict[str, Callable[..., Any]] = {
    "register_buffer": _registered,
    "register_parameter": lambda owner, name, value: setattr(owner, kept_as(name), value),
    "append": _appended,
    "add_module": lambda owner, name, module: setattr(owner, kept_as(name), module),
    "parameters": lambda owner: owner.parameters(),
    "named_parameters": lambda owner: list(owner.named_tensors()),
    "modules": lambda owner: owner.modules(),
    "named_modules": lambda owner: list(_named(owner)),
    "children": lambda owner: [module for _, module in owner.children()],
    "values": lambda owner: list(owner.layers),
    "keys": lambda owner: list(owner.names),
    "items": lambda owner: list(zip(owner.names, owner.layers)),
}
_BUILTINS: dict[str, Any] = {**values.PLAIN, **values.FUNCTIONS, "object": Strange("object")}
