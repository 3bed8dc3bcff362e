"""What goes to the measuring process and what comes back, as plain data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from memlint.documents.node import Unresolved
from memlint.tape.estimate import Component, Estimate, Interval, Part

if TYPE_CHECKING:
    from memlint.facts.spec import TrainingSpec
    from memlint.settings import Allowance, Settings

TRACE = "trace"
PROBE = "probe"


def request_for(
    kind: str, spec: TrainingSpec, settings: Settings, allowed: Allowance, **options: Any
) -> dict[str, Any]:
    """One run as a request.

    config   the composed config; an unresolved value is the text that the file has for it
    facts    value by name; ``keys`` how the config spells them; ``assumed`` (key, value, reason)
    settings the ``[probe]`` table; ``folders`` are searched for its modules: the settings file's, the config's, ours
    """
    from memlint.facts.spec import ASSUMED

    folders = [os.path.dirname(os.path.abspath(path)) for path in (*settings.files, spec.document.path)]
    return {
        "kind": kind,
        "path": spec.document.path,
        "run": spec.run,
        "config": plain(spec.root.plain()),
        "facts": {name: plain(fact.value) for name, fact in spec.facts.items()},
        "keys": {name: fact.key or name for name, fact in spec.facts.items()},
        "assumed": [
            [fact.key or name, str(fact.value), fact.reason]
            for name, fact in spec.facts.items()
            if fact.origin == ASSUMED
        ],
        "settings": dict(settings.probe),
        "settings_file": settings.origins.get("probe", ""),
        "folders": list(dict.fromkeys((*folders, os.getcwd()))),
        "gpu": allowed.gpu,
        **options,
    }


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, Unresolved):
        return value.text
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return int(value)
    return float(value) if isinstance(value, float) else str(value)


def estimate_from(data: Sequence[Any]) -> Estimate:
    """An Estimate that JSON has turned into lists."""
    estimate = Estimate(*data)
    return estimate._replace(
        components=tuple(
            Component(
                name,
                size,
                tuple(Part(p[0], p[1], p[2], tuple((symbol, fact) for symbol, fact in p[3]), p[4]) for p in parts),
            )
            for name, size, parts in estimate.components
        ),
        allocated_interval=Interval(*estimate.allocated_interval),
        reserved_interval=Interval(*estimate.reserved_interval),
        device_interval=Interval(*estimate.device_interval),
        assumptions=tuple((fact, value, reason) for fact, value, reason in estimate.assumptions),
        modules=tuple((path, count, trained) for path, count, trained in estimate.modules),
    )
