"""How the tests of language-model families read a config."""

from __future__ import annotations

import textwrap
from pathlib import Path

from memlint.dialects import registry
from memlint.documents.load import load
from memlint.facts.spec import TrainingSpec


def runs(text: str, path: str = "config.yaml") -> list[TrainingSpec]:
    """The runs of a text."""
    return registry.specs(load(path, textwrap.dedent(text)))


def run(text: str, path: str = "config.yaml") -> TrainingSpec:
    """The only run of a text."""
    (found,) = runs(text, path)
    return found


def written(folder: Path, files: dict[str, str]) -> Path:
    """A repository with these files, and its root."""
    (folder / ".git").mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    return folder


def line_of(spec: TrainingSpec, fact: str) -> str:
    """The line that a fact points at, without its comment."""
    found = spec.fact(fact)
    assert found is not None
    assert found.span is not None
    text = spec.document.sources.get(found.span.path, spec.document.text)
    return text.splitlines()[found.span.line - 1].split(" #")[0].strip()
