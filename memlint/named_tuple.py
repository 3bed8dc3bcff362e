"""``NamedTuple`` without the check of each annotation, which costs ten times as much as the class.

``typing.NamedTuple`` compiles every annotation of every field when the class is made: 0.4 ms a class, and a check
would make some eighty of them before it reads the first config. Type checkers see the original.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    from collections import namedtuple

    _ITS_OWN = frozenset(("__annotations__", "__dict__", "__module__", "__qualname__", "__weakref__", "__slots__"))

    class _Maker(type):
        def __new__(cls, name, bases, namespace):
            fields = namespace.get("__annotations__", {})
            defaults = [namespace[field] for field in fields if field in namespace]
            made = namedtuple(name, fields, defaults=defaults, module=namespace["__module__"])
            made.__annotations__ = fields
            made.__qualname__ = namespace.get("__qualname__", name)
            for key, value in namespace.items():
                if key not in _ITS_OWN and key not in fields:
                    setattr(made, key, value)
            return made

    class NamedTuple:
        """Base of classes with typed fields; see ``typing.NamedTuple``."""

        def __mro_entries__(self, bases):
            return (_BASE,)

    _BASE = type.__new__(_Maker, "_BASE", (), {})
    NamedTuple = NamedTuple()
