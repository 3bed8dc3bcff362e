"""Puts a mutant in the place of its module, in a process of the tests and in every Python that it starts.

The source is compiled from the mutant's file at each import and nothing of it is cached, so no run can meet the
bytecode of another mutant. Python imports this file by itself where its folder is on ``PYTHONPATH``.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType


class Mutated(importlib.abc.InspectLoader):
    """Loads ``module`` from the text in ``source``, under the path of the file that it stands for."""

    def __init__(self, module: str, source: str, path: str) -> None:
        self.module = module
        self.source = source
        self.path = path
        self.loaded = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.module:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)  # type: ignore[arg-type]

    def get_source(self, fullname: str) -> str:
        with open(self.source, encoding="utf-8") as file:
            return file.read()

    def get_code(self, fullname: str) -> CodeType:
        self.loaded = True
        return compile(self.get_source(fullname), self.path, "exec", dont_inherit=True)


def install(module: str, source: str, path: str) -> Mutated:
    mutated = Mutated(module, source, path)
    sys.meta_path.insert(0, mutated)  # type: ignore[arg-type]
    return mutated


_stated = [os.environ.get(f"MUTANT_{word}", "") for word in ("MODULE", "SOURCE", "PATH")]
if all(_stated):
    install(*_stated)
