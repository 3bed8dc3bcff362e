"""memlint: predicts the peak GPU memory of a training config and points at the lines that cause it."""

# No `from __future__ import annotations`: it imports a module, and see below.
import os as _os
import sys as _sys

# `python -m memlint` puts the working folder first on the path, and looks for `memlint.__main__` through this file:
# what lies in a linted tree must not be taken for a module of Python's or of another package's.
if _sys.argv[:1] == ["-m"] and ("memlint" in _sys.orig_argv or "-mmemlint" in _sys.orig_argv):
    from memlint.trust import import_nothing_of as _import_nothing_of

    _import_nothing_of(_sys.argv[1:])

TYPE_CHECKING = False

__all__ = ("Options", "__version__", "check", "estimate", "fit")
__version__ = "0.1.0"

# In a bare clone (no install) the top-level `rules/` and `schemas/` are found beside the package.
_root = _os.path.dirname(_os.path.dirname(__file__))
if not _os.path.isdir(_os.path.join(__path__[0], "rules")) and _os.path.isfile(
    _os.path.join(_root, "rules", "__init__.py")
):
    __path__.append(_root)


if TYPE_CHECKING:
    from memlint.api import Options as Options
    from memlint.api import check as check
    from memlint.api import estimate as estimate
    from memlint.api import fit as fit
else:

    def __getattr__(name: str) -> object:
        # Loaded on first use: the version alone should cost nothing. `memlint.check` is the module of that name,
        # which can be called.
        if name not in __all__:
            raise AttributeError(f"module 'memlint' has no attribute {name!r}")
        from importlib import import_module

        return import_module("memlint.check") if name == "check" else getattr(import_module("memlint.api"), name)
