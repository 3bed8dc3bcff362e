"""The names that configs give classes by, as mmengine's registries have them: a dictionary with a ``type`` is a call of
the class, whose arguments are its other keys (mmengine 0.10, ``registry/build_functions.py``: build_from_cfg).

A class here takes the arguments of its namesake under their names, so that what it does not know is found by the
argument's name. Arguments that have no bearing on memory are taken and not looked at.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from memlint.documents.node import Unresolved
from memlint.meta.nn import Module
from memlint.models import UnknownModel

MODELS: dict[str, type[Module]] = {}

Class = TypeVar("Class", bound=type)

# What weights start from, which scope a class is looked for in first, and names for logs.
_UNREAD = frozenset(("type", "init_bias", "init_cfg", "pretrained", "pretrained_type", "_scope_"))


def register(*names: str) -> Callable[[Class], Class]:
    """Enter a class under its own name, and under others that it is known by as well."""

    def enter(cls: Class) -> Class:
        for name in names or (cls.__name__,):
            MODELS[name] = cls
        return cls

    return enter


def build(config: Any, place: str, scope: str = "", **given: Any) -> Any:
    """The module of a dictionary, which stands at ``place`` of the config. ``given``: what the caller says beside it.
    A class of the library ``scope``, or of the one that the dictionary names, goes before its namesakes of others.

    Raises UnknownModel, beginning with the key, for a class or an argument that is not known."""
    if not isinstance(config, Mapping) or not isinstance(config.get("type"), str):
        raise UnknownModel(f"{place}.type is not stated")
    name = config["type"].rpartition(".")[2]
    cls = class_of(config, scope)
    if cls is None:
        raise UnknownModel(f"{place}.type {name} is a class that memlint does not know")
    options = {key: value for key, value in config.items() if key not in _UNREAD}
    known = accepted(cls)
    for key, value in options.items():
        if key not in known:
            raise UnknownModel(f"{place}.{key} is an argument of {name} that memlint does not know")
        refuse_unresolved(value, f"{place}.{key}")
    kinds = kinds_of(cls)
    for key, value in options.items():
        if key not in COUNTED_FROM_THE_END | PLACED and _negative(value):
            raise UnknownModel(f"{place}.{key} is less than nothing: {value!r:.60}")
        if not any(_FITS[kind](value) for kind in kinds.get(key, ())) and kinds.get(key):
            raise UnknownModel(f"{place}.{key} is no {' or '.join(_NAMES[kind] for kind in kinds[key])}: {value!r:.60}")
    if "place" in known:
        given["place"] = place
    module = fitting(lambda: cls(**{**options, **given}), f"{place} ({', '.join((name, *options))})")
    if isinstance(module, Module):
        module.stated = f"{place} ({', '.join((name, *options))})"  # type: ignore[attr-defined]
    return module


# A name that a library's class has, and that of its authors, which programs have a copy of: arguments that the authors'
# alone takes, and what theirs is entered as.
AUTHORS = {
    "SwinTransformer": (frozenset(("ape", "embed_dim", "in_chans", "use_checkpoint")), "microsoft.SwinTransformer"),
    "ConvNeXt": (frozenset(("depths", "dims", "in_chans")), "facebook.ConvNeXt"),
}


def class_of(config: Mapping[str, Any], scope: str = "") -> type[Module] | None:
    """The class that a dictionary means; None for one that is not known."""
    library, _, name = str(config.get("type")).rpartition(".")
    theirs, other = AUTHORS.get(name, (frozenset(), ""))
    if not theirs.isdisjoint(config):
        return MODELS[other]
    return MODELS.get(f"{library or scope}.{name}", MODELS.get(name))


def fitting(work: Callable[[], Any], stated: str = "") -> Any:
    """Sizes of a config that do not fit together are its author's, not ours. Raises UnknownModel, which names the
    dictionary and its arguments: those of the innermost one that was under way, else ``stated``."""
    try:
        return work()
    except WRONG as error:
        trace = error.__traceback__
        while trace is not None:
            module = trace.tb_frame.f_locals.get("self")
            stated = (
                getattr(module, "stated", "") if isinstance(module, Module) and hasattr(module, "stated") else stated
            )
            trace = trace.tb_next
        what = stated or "model"
        raise UnknownModel(f"{what}: sizes that do not fit together: {type(error).__name__}: {error}") from None


# What comes of sizes that do not fit together.
WRONG = (
    *(TypeError, ValueError, IndexError, KeyError, AttributeError, ZeroDivisionError, AssertionError),
    *(OverflowError, StopIteration, RuntimeError),
)
# Arguments whose -1 means the last, or none.
COUNTED_FROM_THE_END = frozenset(("dropout_ratio", "frozen_stages", "end_level", "in_index", "out_indices"))
# Arguments that say where something is, how it is turned, or with -1 that all are meant.
PLACED = frozenset(("dir_offset", "fps_sample_range_lists", "num_points", "point_cloud_range"))
LARGEST = 10**6  # of a size of a layer: beyond, some number is no real one


def _negative(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_negative, value))
    return isinstance(value, (int, float)) and value < 0


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -1 <= value <= LARGEST


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def _each(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, (list, tuple)) and all(map(fits, value))


# An annotation -> whether a value is such, and what it is called.
_FITS: dict[str, Callable[[Any], bool]] = {
    "int": _whole,
    "float": _number,
    "bool": lambda value: isinstance(value, bool),
    "str": lambda value: isinstance(value, str),
    "None": lambda value: value is None,
    "Sequence[int]": _each(_whole),
    "Sequence[float]": _each(_number),
}
_NAMES = {
    "int": f"whole number up to {LARGEST:,}",
    "float": "number",
    "bool": "True or False",
    "str": "text",
    "None": "None",
    "Sequence[int]": "list of whole numbers",
    "Sequence[float]": "list of numbers",
}


def kinds_of(cls: type) -> dict[str, tuple[str, ...]]:
    """The kinds that an argument's value may be of, where all of them are told apart here."""
    found: dict[str, tuple[str, ...]] = {}
    for one in reversed(cls.__mro__):
        if "__init__" in one.__dict__:
            for name, annotation in getattr(one.__dict__["__init__"], "__annotations__", {}).items():
                kinds = tuple(str(annotation).split(" | "))
                if all(kind in _FITS for kind in kinds):
                    found[name] = kinds
    return found


def accepted(cls: type) -> set[str]:
    """The names of the arguments that a class takes, and those that it hands on to what it is made from."""
    names: set[str] = set()
    if cls.__name__ == "CascadeRoIHead":  # made of
        names |= accepted(MODELS["StandardRoIHead"])
    for one in cls.__mro__:
        if "__init__" not in one.__dict__:
            continue
        parameters = inspect.signature(one.__dict__["__init__"]).parameters.values()
        names |= {p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return names - {"self"}


def refuse_unresolved(value: Any, place: str) -> None:
    """Raises UnknownModel for a value, or one below it, that the config leaves open."""
    if isinstance(value, Unresolved):
        raise UnknownModel(f"{place} is not known: {value.reason}")
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in below:
        refuse_unresolved(one, f"{place}.{key}")
