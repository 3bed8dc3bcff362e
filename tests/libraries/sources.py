"""What the rows of ``memlint.releases`` name in a library's own code, where that library is installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from pathlib import Path
from typing import NamedTuple

from memlint import releases

# "trl/trainer/sft_trainer.py, dpo_trainer.py: _compute_loss, shift_logits; huggingface/trl#5846"
_PLACE = re.compile(r"(?P<file>\w+(?:/[\w.]+)+\.(?:py|yaml))(?:, [\w./]+)*(?:: (?P<words>.+))?$")


class Place(NamedTuple):
    """A file of a package, by its path from the package's folder on, and the names that stand in it."""

    file: str
    words: tuple[str, ...]


def places(behaviour: str) -> list[Place]:
    found = (_PLACE.match(part.strip()) for part in releases.BEHAVIOURS[behaviour].source.split(";"))
    return [Place(m["file"], tuple(re.findall(r"[A-Za-z_]\w+", m["words"] or ""))) for m in found if m is not None]


def missing(library: str) -> list[str]:
    """What the installed release does not have of what rows name: files of all rows that stand in it, and the names of
    those that this release behaves as."""
    found = []
    for name, row in releases.BEHAVIOURS.items():
        if row.library != library:
            continue
        for place in places(name):
            package = place.file.partition("/")[0]
            if package != library:
                continue  # what another library's code says of this one's release
            spec = importlib.util.find_spec(package)
            assert spec is not None, package
            assert spec.origin is not None, package
            path = Path(spec.origin).parents[1] / place.file
            text = path.read_text(encoding="utf-8") if path.is_file() else ""
            wanted = place.words if releases.does(name, None) else ()
            found += [f"{name}: {place.file}"] if not text else []
            found += [f"{name}: {place.file}: {word}" for word in wanted if text and word not in text]
    return found


def hold(*libraries: str) -> None:
    """The installed release is the newest that the table knows, and has what its rows name."""
    for library in libraries:
        known = releases.LIBRARIES[library]
        installed = releases.series(importlib.metadata.version(known.distributions[0]))
        newest = releases.series(known.newest)
        assert installed is not None
        assert newest is not None
        assert installed[: len(newest)] == newest, f"{known.title} {installed}, and the newest known is {newest}"
        assert missing(library) == []
