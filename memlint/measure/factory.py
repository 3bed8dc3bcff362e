"""What to instantiate for a config: its model, a batch, and the loss of the two.

The sources are in :mod:`memlint.measure.factories`, one module each. Factories get the composed config as a plain
dict, a new one at every call; an unresolved value is the text that the file has for it. This module runs the user's
code: only the measuring process imports it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from memlint.measure.child import MeasureError
from memlint.measure.factories import beside, diffusers, hydra, settings, timm, transformers
from memlint.measure.factories.base import Workload, default_loss, said, user_line

__all__ = ["Workload", "default_loss", "said", "user_line", "workload"]

SOURCES = (settings, beside, hydra, timm, diffusers, transformers)


def workload(request: dict[str, Any]) -> Workload:
    """Import what a request names. Raises MeasureError that says what is missing and what to write."""
    for folder in reversed(request["folders"]):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    for source in SOURCES:
        found: Workload | None = source.find(request)
        if found is not None:
            return found
    folder = os.path.dirname(os.path.abspath(request["path"]))
    raise MeasureError(
        "nothing says how to build the model: write [probe] model, batch and step in memlint.toml (each "
        f'"package.module:function"), or put a model.py with {", ".join(beside.FUNCTIONS)} into {folder}'
    )
