"""The runs of a file's document, as they stand there and as commands near it start them."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from memlint import files
from memlint.documents.node import Document
from memlint.settings import FILE_NAMES, Allowance, Settings
from memlint.trust import is_within

if TYPE_CHECKING:
    from typing import Any

    from memlint.facts.spec import Name, TrainingSpec

# Families of files that name no model.
COMPANIONS = frozenset(("accelerate", "deepspeed"))

# Files that say something of every run below their folder, whether a run's facts stand in them or not.
_GOVERNING = frozenset((*FILE_NAMES, "pyproject.toml", "requirements.txt", "uv.lock", "poetry.lock", "Pipfile.lock"))


def specs_of(document: Document, settings: Settings) -> tuple[list[TrainingSpec], Document]:
    """The runs of a document, and the document after composition and overrides."""
    from memlint.dialects import registry

    overrides = settings.override
    root = document.root.value
    try:
        defaults = root.get("defaults") if isinstance(root, dict) else None
        if document.format == "yaml" and defaults is not None and defaults.is_list:
            from memlint.documents.hydra import composition as hydra

            document = hydra.compose(document, overrides=overrides)
            return registry.specs(document, ()), document
        if overrides and document.format != "shell":
            from memlint.documents.overrides import apply

            changed = document._replace(root=apply(document.root, overrides, document.path))
            return registry.specs(changed, (), of_a_program=overrides), changed
        return registry.specs(document, overrides), document
    except Exception as error:
        # A mistyped -o is the caller's mistake, whichever file it meets first.
        if overrides and type(error).__name__ == "OverrideError":
            raise settings.error("override", str(error)) from None
        raise


def remarked(document: Document, settings: Settings) -> tuple[list[TrainingSpec], Document]:
    """The runs that a program's docstring and comments tell a reader to start; none, and the program, else."""
    from memlint.dialects import registry
    from memlint.documents import remarks

    if remarks.PROGRAM.search(document.text) is None:
        return [], document
    told = remarks.read(document)
    specs = registry.specs(told, settings.override)
    return (specs, told) if specs else ([], document)


def launched(specs: list[TrainingSpec], document: Document, settings: Settings) -> list[TrainingSpec]:
    """The runs of a config as commands near it start them, where there are any and they say something more; those of a
    script that looks at its arguments as it is called, where that says which models they have."""
    if document.format == "shell" and not document.told and all(spec.unknown_reason for spec in specs):
        from memlint.dialects import called, launches

        found = launches.calls(document, settings.override) if specs and called.asks(document.text) else []
        return found if any("model" in spec or not spec.unknown_reason for spec in found) else specs
    if len(specs) != 1 or document.format == "shell" or not specs[0].family or specs[0].family in COMPANIONS:
        return specs
    from memlint.dialects import launches, registry

    overrides = [] if document.format == "yaml" and document.root.get("defaults") else settings.override
    found = launches.of(document, overrides)
    if len(found) == 1 and registry.identity(found[0]) == registry.identity(specs[0]):
        return specs
    return found or specs


def defaults_of(specs: list[TrainingSpec], document: Document) -> str:
    """The folder of the program whose defaults a config is; "" where it is a run."""
    from memlint.dialects import launches

    if len(specs) != 1 or not specs[0].family:
        return ""
    return launches.defaults_of(document, specs[0].family)


def recorded(document: Document, spec: TrainingSpec | None = None) -> list[TrainingSpec]:
    """The run of a config whose model only a profile knows."""
    from memlint.profiles.profile import find
    from memlint.profiles.runs import adopt

    if spec is None:
        if find(document.path) is None:
            return []
        from memlint.dialects.companions import prepared

        document = prepared(document)
    found = adopt(document, spec)
    return [] if found is None else [found]


def has_profile(path: str) -> bool:
    from memlint.profiles.profile import find

    return find(path) is not None


def no_family(document: Document) -> TrainingSpec:
    """Something for the text rules to look at where no family was recognised."""
    from memlint.facts.spec import TrainingSpec

    if not document.faults:
        from memlint.dialects.companions import prepared

        document = prepared(document)
    return TrainingSpec("", document, document.root, {}, None)


def with_devices(spec: TrainingSpec, allowed: Allowance) -> TrainingSpec:
    """``--gpu h100-80gb x8`` says how many cards there are, unless the config does, and to families that ask which."""
    if not allowed.gpu:
        return spec
    from memlint.data.catalogue import AMPERE, parse_gpu, says_how_many
    from memlint.dialects import schema as schemas

    card, count = parse_gpu(allowed.gpu)
    written = spec.fact("world_size")
    changes: dict[Name, Any] = {}
    if spec.family in schemas.families() and (asked := schemas.header(spec.family).get("card")):
        changes[asked] = card.capability
    elif spec.architecture == "language_model" and (
        0 < card.major < AMPERE or spec.get("implementation") == "megatron"
    ):
        changes["compute_capability"] = card.capability  # whose attention, or Transformer Engine, is another one
    if says_how_many(allowed.gpu) and (written is None or written.node is None):
        changes |= {"device_count": count, "world_size": count}
    if not changes:
        return spec
    spec = spec.with_facts(changes)
    if spec.architecture is None and spec.architecture_on_devices and "device_count" in changes:
        spec.architecture, spec.unknown_reason = spec.architecture_on_devices, ""
    return spec


def is_on_cpu(spec: TrainingSpec) -> bool:
    """Whether a run takes no card: by a switch, or by the name of its file where nothing else says what it runs on."""
    from memlint.dialects import programs

    if spec.unknown_reason.endswith("the run is not on a GPU") and "cpu" in spec.unknown_reason.partition(":")[0]:
        return True
    half = spec.get("compute_dtype") not in (None, "float32")
    return programs.is_named_after_the_cpu(spec.document.path) and not half and spec.get("device_count", 1) == 1


def reads_any(spec: TrainingSpec, document: Document, changed: Collection[str]) -> bool:
    """Whether a run is made of any of these files (real paths): the config, what it is composed of and what it names,
    where its releases are pinned, and settings and pins above it."""
    read = {document.path, *document.sources, spec.document.path, *spec.document.sources}
    read.update(fact.span.path for fact in spec.facts.values() if fact.span is not None)
    if any(os.path.realpath(path) in changed for path in read):
        return True
    folder = os.path.dirname(os.path.realpath(document.path))
    return any(os.path.basename(path) in _GOVERNING and is_within(folder, os.path.dirname(path)) for path in changed)


def stated_model(settings: Settings) -> AbstractContextManager[None]:
    """While it lasts, the file that the setting ``model-config`` names describes the model of every run."""
    path, key = settings.model_config, "model-config"
    if not path:
        return nullcontext()
    from memlint.data import hub

    if settings.in_tree and settings.origins.get(key) in settings.files:
        folder = os.path.dirname(os.path.abspath(settings.files[0]))
        if not files.inside(path, files.repository_root(folder)):
            raise settings.error(key, f"names {path!r}, which is not in the tree")
    found = hub.read_file(path, f"{hub.STATED} {path}")
    if found.reason:
        raise settings.error(key, found.reason)
    return hub.stating(found)
