"""Write docs/facts.md and memlint/facts/names.py: the vocabulary of facts, for readers and for type checkers.

python docs/facts.py            rewrite both
python docs/facts.py --check    exit 1 where one is stale
"""

from __future__ import annotations

import sys
from pathlib import Path

from memlint.facts.vocabulary import ENTRIES, SECTIONS
from memlint.facts.vocabulary_entry import TYPES, Entry

ROOT = Path(__file__).resolve().parents[1]
HEAD = """\
# Facts

A `TrainingSpec` holds facts: the one vocabulary between the families that read configs and the models that estimate
them. A family says what a key means by naming a fact; a model reads facts and never a key.
`memlint/facts/vocabulary.py` is the vocabulary, and this page is made of it. Facts of a single family or architecture
are its own (`hyperparameters.*`): its schema says which there are, and of those only the ones that several families
share stand here.

Sizes are per device and per micro batch. Dtypes are torch's names (`float32`, `bfloat16`, `float16`). A fact that is
absent is not known; where a model can do without it, what it goes by is in the last column.

Releases come from what the project pins: a lock file, `requirements.txt`, `environment.yml`, `pyproject.toml`,
`setup.py` or a `Dockerfile` beside the config or above it (`memlint/dialects/software.py`).
"""
NAMES = '''\
"""The names of facts as types. `python docs/facts.py` makes this file of :mod:`memlint.facts.vocabulary`; only type
checkers read it."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from memlint.facts.spec import Own

'''


def page() -> str:
    lines = [HEAD]
    for title, entries in SECTIONS.items():
        lines += [f"## {title}", "", "| fact | type | meaning | where it is absent |", "|---|---|---|---|"]
        lines += [f"| `{entry.name}` | {_type(entry)} | {entry.meaning} | {entry.absent} |" for entry in entries]
        lines.append("")
    return "\n".join(lines)


def _type(entry: Entry) -> str:
    """``integer, tokens``."""
    kind = "" if entry.kind == "any" else entry.kind
    return ", ".join(part for part in (kind, entry.unit) if part)


def names() -> str:
    """The module of types: a ``Literal`` for each type of value, and the keyword arguments of ``with_facts``."""
    text = NAMES
    for kind in TYPES:
        members = [entry.name for entry in ENTRIES.values() if entry.kind == kind]
        text += f"{kind.capitalize()}Fact = Literal[\n" + "".join(f'    "{name}",\n' for name in members) + "]\n"
    text += "FactName = " + " | ".join(f"{kind.capitalize()}Fact" for kind in TYPES) + "\nName = FactName | Own\n\n"
    fields = "".join(f'        "{entry.name}": {TYPES[entry.kind]},\n' for entry in ENTRIES.values())
    return text + f'Facts = TypedDict(\n    "Facts",\n    {{\n{fields}    }},\n    total=False,\n)\n'


FILES = {ROOT / "docs" / "facts.md": page, ROOT / "memlint" / "facts" / "names.py": names}


def main() -> int:
    if "--check" in sys.argv[1:]:
        return int(any(path.read_text(encoding="utf-8") != made() for path, made in FILES.items()))
    for path, made in FILES.items():
        path.write_text(made(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
