"""What models and rules ask of a run, some family states: a fact that nothing states is a branch that no run takes."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ASKING = ("memlint/models", "memlint/tape", "memlint/facts/layout.py", "memlint/estimates.py", "rules")
STATING = ("memlint/dialects", "memlint/trainers", "memlint/profiles", "memlint/fixes", "schemas")  # fixes: what-ifs

_ASKED = re.compile(r"\b(?:spec|run|facts)(?:\.(?:get|fact|value|stated))?[(\[]\"([\w.]+)\"")
_ONLY_ASKED = re.compile(r"\.(?:get|fact|value)\($")


def texts(places: tuple[str, ...]) -> list[str]:
    paths = [ROOT / place for place in places]
    files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*.*")))]
    return [file.read_text(encoding="utf-8") for file in files if file.suffix in (".py", ".json")]


def stated(name: str, text: str) -> bool:
    own = name.removeprefix("hyperparameters.")  # HYPER + "config"
    quoted = re.finditer(f'"{re.escape(name)}"' + (f'|HYPER \\+ "{re.escape(own)}"' if own != name else ""), text)
    return any(not _ONLY_ASKED.search(text[max(0, found.start() - 8) : found.start()]) for found in quoted)


def test_every_fact_that_a_model_or_a_rule_asks_for_is_stated_by_something() -> None:
    asked = {name for text in texts(ASKING) for name in _ASKED.findall(text)}
    assert len(asked) > 100
    stating = "\n".join(texts(STATING))
    assert [name for name in sorted(asked) if not stated(name, stating)] == []
