"""Files beside the project that some tests read, found by an environment variable. CONTRIBUTING.md describes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def corpus_folder() -> Path:
    """Real configs from public repositories, a folder for each framework. Skips where ``MEMLINT_CORPUS`` is not set;
    a folder that is not there is a failure."""
    named = os.environ.get("MEMLINT_CORPUS")
    if not named:
        pytest.skip("MEMLINT_CORPUS is not set: a folder of real configs (CONTRIBUTING.md)")
    folder = Path(named).resolve()
    assert any(folder.glob("*/*")), f"MEMLINT_CORPUS: {folder} is no folder of folders of configs"
    return folder
