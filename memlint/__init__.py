"""memlint: predicts the peak GPU memory of a training config and points at the lines that cause it."""

from __future__ import annotations

import os as _os

__version__ = "0.1.0"

# In a bare clone (no install) the top-level `rules/` and `schemas/` are found beside the package.
_root = _os.path.dirname(_os.path.dirname(__file__))
if not _os.path.isdir(_os.path.join(__path__[0], "rules")) and _os.path.isfile(
    _os.path.join(_root, "rules", "__init__.py")
):
    __path__.append(_root)
