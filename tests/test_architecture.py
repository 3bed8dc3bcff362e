"""The line of the house: imports only point to the left."""

from __future__ import annotations

import ast
import os
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# From left to right. A module may import from its own room and from rooms before it.
ROOMS = (
    (
        "memlint.units",
        "memlint.releases",
        "memlint.work",
        "memlint.trust",
        "memlint.named_tuple",
        "memlint.files",
        "memlint.globs",
        "memlint.tracked",
        "memlint.data",
    ),
    ("memlint.documents",),
    ("memlint.schemas", "memlint.facts"),
    ("memlint.architectures",),
    ("memlint.trainers",),
    ("memlint.dialects",),
    ("memlint.meta",),
    ("memlint.profiles",),
    ("memlint.models",),
    ("memlint.tape",),
    ("memlint.plausible", "memlint.cache", "memlint.upper_ends", "memlint.estimates", "memlint.partial"),
    ("memlint.plugin",),
    ("memlint.fixes",),
    ("memlint.rules",),
    ("memlint.rules_registry", "memlint.setting_values", "memlint.settings", "memlint.discover", "memlint.suppress"),
    ("memlint.revisions",),
    ("memlint.selection",),
    ("memlint.reports",),
    ("memlint.baseline", "memlint.ignores"),
    ("memlint.checking",),
    ("memlint.check",),
    ("memlint.comparison", "memlint.planning", "memlint.api"),
    ("memlint.fixing",),
    ("memlint.cli", "memlint.__main__"),
)
# Named where a lower room may look up: each with its reason.
ALLOWED = {
    # The package's front door loads the API on first use.
    ("memlint", "memlint.api"),
    # The module that can be called: `memlint.check` is it, and the function of the API.
    ("memlint.check", "memlint.api"),
    # The house's own rules for comments make findings, and check hands the report on.
    ("memlint.suppress", "memlint.reports"),
}
HEAVY = ("torch", "jax", "omegaconf", "hydra", "rich", "jsonschema", "tree_sitter", "tree_sitter_bash", "numpy")


def _modules() -> list[tuple[str, Path]]:
    found = []
    for folder, package in (("memlint", "memlint"), ("rules", "memlint.rules"), ("schemas", "memlint.schemas")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            name = ".".join((package, *(part for part in parts if part != "__init__")))
            found.append((name, path))
    return found


MODULES = _modules()


def _room(module: str) -> int | None:
    best = None
    length = 0
    for number, names in enumerate(ROOMS):
        for name in names:
            if (module == name or module.startswith(name + ".")) and len(name) > length:
                best, length = number, len(name)
    return best


@cache
def _imports(path: Path, module: str, top_level: bool = False) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = tree.body if top_level else list(ast.walk(tree))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    found = set()
    for node in nodes:
        if id(node) in typing_only and top_level:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names if node.module.startswith("memlint"))
        elif isinstance(node, ast.ImportFrom) and node.level:
            found.add(module.rpartition(".")[0])
    return frozenset(found)


def _measures(module: str) -> bool:
    """The folder that imports torch and jax, and what every room may be asked from."""
    return module.startswith("memlint.measure")


def test_imports_point_to_the_left() -> None:
    wrong = []
    for module, path in MODULES:
        own = _room(module)
        if module == "memlint" or _measures(module):
            continue
        assert own is not None, f"{module} is in no room: name it in ROOMS"
        for imported in sorted(_imports(path, module)):
            room = _room(imported) if imported.startswith("memlint.") else None
            allowed = any(module.startswith(a) and imported.startswith(b) for a, b in ALLOWED)
            if room is not None and room > own and not allowed:
                wrong.append(f"{module} reaches to the right: {imported}")
    assert wrong == []


def test_only_the_measuring_folder_imports_torch_or_jax() -> None:
    assert _heads({"torch", "jax"}, top_level=False) == []


def test_heavy_libraries_are_imported_late() -> None:
    assert _heads(set(HEAVY), top_level=True) == []


def _heads(unwanted: set[str], top_level: bool) -> list[str]:
    """Which modules import which of these libraries."""
    return [
        f"{module} imports {head}"
        for module, path in MODULES
        if not _measures(module)
        for head in sorted({name.split(".")[0] for name in _imports(path, module, top_level)} & unwanted)
    ]


def _mentions(word: str, room: str) -> list[str]:
    """The modules of a room in whose text a word occurs, comments included."""
    return [module for module, path in MODULES if module.startswith(room) and word in path.read_text(encoding="utf-8")]


def test_models_take_descriptions_and_know_no_names_of_transformers() -> None:
    assert _mentions("model_type", "memlint.models") == []
    assert _mentions("model_type", "memlint.architectures") != []


def test_what_would_be_found_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above can fail: a module of the first room that imports from the last one, and torch."""
    path = tmp_path / "wrong.py"
    path.write_text("import torch\nfrom memlint.cli import main\n", encoding="utf-8")
    monkeypatch.setattr(sys.modules[__name__], "MODULES", [("memlint.units", path)])
    for test in (
        test_imports_point_to_the_left,
        test_only_the_measuring_folder_imports_torch_or_jax,
        test_heavy_libraries_are_imported_late,
    ):
        with pytest.raises(AssertionError, match=r"memlint\.units"):
            test()


def test_only_front_ends_reach_for_the_measuring_folder() -> None:
    for module, path in MODULES:
        if module.startswith(("memlint.measure", "memlint.cli")):
            continue
        found = {name for name in _imports(path, module) if name.startswith("memlint.measure")}
        # The parent's half of the child process, which imports no torch: check hands its errors on.
        allowed = (
            {"memlint.measure.child", "memlint.measure.child.MeasureError"}
            if module == "memlint.checking.judging"
            else set()
        )
        assert found <= allowed, f"{module} imports {sorted(found)}"


def test_rules_do_not_know_each_other() -> None:
    for module, path in MODULES:
        if module.startswith("memlint.rules."):
            assert not any(name.startswith("memlint.rules") for name in _imports(path, module)), module


def test_every_package_is_in_the_packaging_map() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for folder, _, files in os.walk(ROOT / "memlint"):
        if "__init__.py" in files:
            name = ".".join(Path(folder).relative_to(ROOT).parts)
            assert f'"{name}"' in text, f"{name} would be missing from the wheel"
