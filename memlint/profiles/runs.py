"""A config and its profile -> the run that they describe together."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

from memlint import files
from memlint.documents.node import Document, Unresolved
from memlint.facts.spec import DEFAULT, WRITTEN, Fact, TrainingSpec, named
from memlint.named_tuple import NamedTuple
from memlint.profiles.profile import Dimension, Profile, ProfileError, find, load

FAMILY = "recorded"  # of configs that no other family knows: schemas/recorded.schema.json has no keys
ARCHITECTURE = "recorded"
PROFILE: Final = "profile"
MAX_SOURCE_BYTES = 4 * 1024 * 1024


class Stale(NamedTuple):
    """Something that is not as it was when the profile was recorded. ``fatal``: the recording is of another run."""

    what: str
    fatal: bool


def adopt(document: Document, spec: TrainingSpec | None = None) -> TrainingSpec | None:
    """The run of a config that has a profile; None where there is none.

    spec  what a family made of the config, where one knows it: it keeps its facts, and the profile brings the sizes
    """
    path = find(document.path)
    if path is None:
        return None
    shown = os.path.relpath(path) if not os.path.isabs(document.path) else path
    if spec is None:
        spec = TrainingSpec(FAMILY, document, document.root, {}, ARCHITECTURE)
    else:
        spec = spec.replaced({})
        spec.architecture = ARCHITECTURE
        spec.unknown_reason = ""
    spec.facts[PROFILE] = Fact(PROFILE, shown, DEFAULT, reason="found beside the config")
    try:
        profile = load(shown)
    except ProfileError as error:
        spec.unknown_reason = str(error)
        return spec
    spec.model_name = spec.model_name or profile.model
    for dimension in profile.dimensions:
        spec.facts[dimension.fact] = _fact(dimension, spec)
    fatal = [entry.what for entry in stale(spec, profile) if entry.fatal]
    if fatal:
        more = f" (and {len(fatal) - 1} more)" if len(fatal) > 1 else ""
        spec.unknown_reason = f"{shown} is of another run: {fatal[0]}{more}; memlint record makes a new one"
    return spec


def _fact(dimension: Dimension, spec: TrainingSpec) -> Fact:
    name = named(dimension.fact)
    node = spec.root.get(dimension.key) if dimension.key else None
    if node is None:
        known = spec.fact(name)
        if known is not None:
            return known
        return Fact(
            named(dimension.fact), dimension.recorded, DEFAULT, dimension.key, None, "the value that was recorded"
        )
    return Fact(name, node.plain(), WRITTEN, dimension.key, node)


def stale(spec: TrainingSpec, profile: Profile) -> Iterator[Stale]:
    """What has changed since the recording: settings that the model's code read, and the code itself."""
    for key, recorded in profile.settings.items():
        node = spec.root.get(key)
        now = None if node is None else plain(node.plain())
        if node is not None and isinstance(now, (dict, list)):
            now = "a section"
        if now != recorded or type(now) is not type(recorded):
            yield Stale(f"{key} was {recorded!r}, and is {now!r}", True)
    base = os.path.dirname(os.path.abspath(profile.path))
    root = files.repository_root(base)
    for name, recorded in profile.sources.items():
        path = os.path.join(base, name)
        found = digest(path) if files.inside(path, root) else None
        if found is None:
            yield Stale(f"{name} cannot be read", False)
        elif found != recorded:
            yield Stale(f"{name} has changed", False)


def plain(value: Any) -> Any:
    """A value as a recording sees it: of an unresolved one, its text."""
    return value.text if isinstance(value, Unresolved) else value


def digest(path: str) -> str | None:
    """sha256 of a source file whatever its line ends; None where it cannot be read, or is no file of that size."""
    import hashlib

    try:
        return hashlib.sha256(files.read(path, MAX_SOURCE_BYTES).replace(b"\r\n", b"\n")).hexdigest()
    except OSError:
        return None
