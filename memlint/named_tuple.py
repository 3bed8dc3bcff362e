"""``NamedTuple`` whose classes cost little to make.

``typing.NamedTuple`` compiles every annotation of every field, and ``collections.namedtuple`` a constructor for every
class: half a millisecond together, and a check makes some seventy classes before it reads the first config. Here one
constructor is compiled per number of fields, and given their names. Type checkers see the original.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    from collections import _tuplegetter  # in C; Python's own, where there is none
    from types import FunctionType

    _SCOPE = {"_new": tuple.__new__, "__builtins__": {}}
    _constructors = {}  # number of fields -> code

    def _constructor(name, fields, defaults):
        code = _constructors.get(len(fields))
        if code is None:
            items = "".join([f"_{number}, " for number in range(len(fields))])
            code = _constructors[len(fields)] = eval(f"lambda _cls, {items}: _new(_cls, ({items}))", {}).__code__
        made = FunctionType(code.replace(co_varnames=("_cls", *fields)), _SCOPE, "__new__", defaults)
        made.__qualname__ = f"{name}.__new__"
        return made

    class _Record(tuple):
        """What all of them can do, as ``collections.namedtuple`` has it."""

        __slots__ = ()
        _fields = ()
        _field_defaults = {}  # noqa: RUF012  (never mutated)

        @classmethod
        def _make(cls, values):
            made = tuple.__new__(cls, values)
            if len(made) != len(cls._fields):
                raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
            return made

        def _replace(self, /, **changes):
            made = tuple.__new__(type(self), map(changes.pop, self._fields, self))
            if changes:
                raise ValueError(f"Got unexpected field names: {list(changes)!r}")
            return made

        __replace__ = _replace

        def _asdict(self):
            return dict(zip(self._fields, self))

        def __repr__(self):
            shown = ", ".join([f"{field}={value!r}" for field, value in zip(self._fields, self)])
            return f"{type(self).__name__}({shown})"

        def __getnewargs__(self):
            return tuple(self)

    class _Maker(type):
        def __new__(cls, name, bases, namespace):
            fields = tuple(namespace.get("__annotations__", ()))
            defaults = {field: namespace[field] for field in fields if field in namespace}
            if tuple(defaults) != fields[len(fields) - len(defaults) :]:
                raise TypeError(f"{name}: a field without a default follows one that has one")
            made = dict(namespace)
            for number, field in enumerate(fields):
                made[field] = _tuplegetter(number, None)
            made["__slots__"] = ()
            made["__new__"] = _constructor(namespace["__qualname__"], fields, tuple(defaults.values()))
            made["__match_args__"] = made["_fields"] = fields
            made["_field_defaults"] = defaults
            return type(name, (_Record,), made)

    class NamedTuple:
        """Base of classes with typed fields; see ``typing.NamedTuple``."""

        def __mro_entries__(self, bases):
            return (_BASE,)

    _BASE = type.__new__(_Maker, "_BASE", (), {})
    NamedTuple = NamedTuple()
