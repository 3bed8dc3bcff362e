"""Nets of Ultralytics that a YAML of the repository describes: one that a run names, or one of the library's own names
in a repository that has the library's code.

Source: ultralytics 8.3.100 (``nn/tasks.py``: yaml_model_load, guess_model_scale).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from memlint.architectures.yolo import TASKS, Described, Scale, described, scale_of
from memlint.named_tuple import NamedTuple

_LETTER = re.compile(r"yolo(?:e-)?v?\d+([nsblmxtce])")
_ONE_LETTER = re.compile(r"(\d+)([nsblmx])(.+)?$")  # yolov8x -> yolov8
_SERIES = re.compile(r"yolov?(\d{1,2})")
_FOLDERS = "ultralytics/cfg/models", "ultralytics/models"  # of later releases, and of 8.0's


class Found(NamedTuple):
    """A net that a YAML describes, with its letter; or why it is not known, ``more`` where it is but for its head."""

    net: Described | None
    scale: Scale
    letter: str
    task: str
    reason: str
    more: str = ""


def of(stated: str, beside: str) -> Found | None:
    """The net that a run names, as a YAML of the repository has it; None where none does."""
    from memlint.dialects import companions

    path = next((one for one in _places(stated) if companions.find(one, beside) is not None), None)
    if path is None:
        return None
    document, reason = companions.read(path, beside)
    content: Any = None if document is None else document.root.plain()
    if not isinstance(content, dict):
        return _unknown(f"model {stated}: {reason or f'{path} describes no net'}")
    net, reason = described(path, content)
    stem = re.sub(r"\.(?:pt|ya?ml)$", "", os.path.basename(stated))
    letter = _LETTER.match(stem)
    scale, chosen = scale_of(content, "" if letter is None else letter[1])
    if net is None or scale is None:
        return _unknown(f"model {stated}: {reason or f'{path}: how deep and wide a net is, is not known'}")
    return Found(net, scale, chosen, TASKS[net.layers[-1].module], "", reason and f"model {stated}: {reason}")


def _unknown(reason: str) -> Found:
    return Found(None, Scale(1, 1), "", "", reason)


def _places(stated: str) -> Iterator[str]:
    """Where the file of a net may be: as it is named, and among those of the library, where its code is in the
    repository; under its whole name, and without the letter of its size."""
    folder, name = os.path.split(stated)
    stem, ending = os.path.splitext(name)
    names = [stem, _ONE_LETTER.sub(lambda found: found[1] + (found[3] or ""), stem)]
    if ending in (".yaml", ".yml"):
        yield from (os.path.join(folder, one + ending) for one in names)
    series = _SERIES.match(stem)
    if series is None or folder:
        return
    for one in names:
        for above in _FOLDERS:
            yield from (f"{above}/{below}/{one}.yaml" for below in (f"v{series[1]}", series[1]))
