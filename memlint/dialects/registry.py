"""Which family a document belongs to, and the runs that it states."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memlint.dialects import schema as schemas
from memlint.dialects.base import Dialect, Match
from memlint.dialects.companions import prepared
from memlint.dialects.spec import TrainingSpec
from memlint.documents.node import Command, Document

_dialects: dict[str, Dialect] = {}


def register(dialect: Dialect) -> None:
    """Add a family beyond those of ``schemas/``, or replace one."""
    _dialects[dialect.family] = dialect


def dialect(family: str) -> Dialect:
    """The dialect of a family. Raises KeyError for one that has no schema."""
    if family not in _dialects:
        _dialects[family] = Dialect(family)
    return _dialects[family]


def candidates(document_format: str) -> list[Dialect]:
    """The dialects that are written in a format, by name. Their headers are read, and no more of their schemas."""
    names = set(_dialects)
    names.update(name for name in schemas.families() if document_format in schemas.header(name).get("formats", ()))
    found = (dialect(name) for name in sorted(names))
    return [one for one in found if document_format in one.header.get("formats", ())]


def specs(document: Document, overrides: Sequence[str] = ()) -> list[TrainingSpec]:
    """The training runs that a document states; empty where no known family recognises it.

    A YAML document with a defaults list is composed by the caller, who then has used the overrides; any other
    document takes them here (``key=value``, in the keys of the file, or option names for a script). Raises
    ``documents.overrides.OverrideError`` for an override that makes no sense.
    """
    if document.format == "shell":
        return _script_specs(document, overrides)
    document = prepared(document)
    found = _best(document, None)
    if found is None:
        return []
    family, match = found
    several = family.members(document)
    if len(several) > 1:
        return [family.spec(_overridden(one, overrides), one.root.key_path) for one in several]
    return [family.spec(_overridden(match, overrides))]


def _best(document: Document, command: Command | None) -> tuple[Dialect, Match] | None:
    """The best match that no other one refines; of equal ones, the first family by name."""
    matches = [(one, one.match(document, command)) for one in candidates(document.format)]
    found = [(one, match) for one, match in matches if match is not None]
    refined = {family for one, _ in found for family in one.header.get("refines", ())}
    best: tuple[Dialect, Match] | None = None
    for one, match in found:
        if one.family not in refined and (best is None or match.score > best[1].score):
            best = (one, match)
    return best


def _overridden(match: Match, overrides: Sequence[str]) -> Match:
    if not overrides:
        return match
    from memlint.documents.overrides import apply, stated

    options = match.options
    if options is not None and match.launch is not None:  # which go before the file that one of them names
        there = [override for override in overrides if stated(options, override, match.launch.span.path)]
        options = apply(options, there, match.launch.span.path)
    return match._replace(root=apply(match.root, overrides, match.document.path), options=options)


def _script_specs(document: Document, overrides: Sequence[str]) -> list[TrainingSpec]:
    found: list[TrainingSpec] = []
    seen: set[tuple[object, ...]] = set()
    for command in document.commands:
        best = _best(document, command)
        if best is None:
            continue
        family, match = best
        name = "train" if not found else f"train:{len(found) + 1}"
        spec = family.spec(_overridden(match, overrides), name)
        # A loop that changes nothing that matters (a seed) is one run.
        identity = (command.span, spec.family, spec.architecture, _values(spec))
        if identity not in seen:
            seen.add(identity)
            found.append(spec)
    return found


def _values(spec: TrainingSpec) -> str:
    return repr([(name, spec[name]) for name in sorted(spec)])


def known_families() -> Iterable[str]:
    """Names of all families, those registered included."""
    return sorted({*schemas.families(), *_dialects})
