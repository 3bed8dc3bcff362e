"""``defaults: parent.yaml``: files over their parents, beside what OmegaConf merges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from memlint.dialects.companions import prepared
from memlint.documents.load import load

FILES = {
    "base.yaml": "a: {x: 1, y: 2}\nb: ${a.x}\nc: {p: 1, q: [1, 2]}\n",
    "sub/middle.yaml": "defaults: ../base.yaml\na: {x: 3}\nd: ${mul:${a.x}, ${a.y}}\n",
    "sub/child.yaml": "defaults: middle.yaml\na: {y: null}\nc: {_override_: true, r: 5}\n",
    "sub/replacing.yaml": "defaults: middle.yaml\nc: {_override_: true, r: 5}\n",
    "sub/other.yaml": "defaults: ./middle.yaml\na: {y: 7}\n",
}


def in_omegaconf(path: Path) -> Any:
    own = OmegaConf.load(path)
    assert isinstance(own, DictConfig)
    if "defaults" not in own:
        return own
    parent = in_omegaconf(path.parent / own.pop("defaults"))
    for name in own:
        value = None if OmegaConf.is_interpolation(own, name) else own[name]
        if isinstance(value, DictConfig) and value.pop("_override_", False):
            parent.pop(name, None)
    return OmegaConf.merge(parent, own)


def written(folder: Path, files: dict[str, str]) -> None:
    (folder / ".git").mkdir()
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize("name", ["base.yaml", "sub/middle.yaml", "sub/other.yaml", "sub/replacing.yaml"])
def test_a_file_over_its_parents_is_what_omegaconf_makes_of_them(name: str, tmp_path: Path) -> None:
    written(tmp_path, FILES)
    OmegaConf.register_new_resolver("mul", lambda a, b: a * b, replace=True)
    document = prepared(load(str(tmp_path / name)))
    assert document.root.plain() == OmegaConf.to_container(in_omegaconf(tmp_path / name), resolve=True)


def test_a_mapping_may_take_its_parent_s_place(tmp_path: Path) -> None:
    written(tmp_path, FILES)
    document = prepared(load(str(tmp_path / "sub/child.yaml")))
    assert document.root.get("c").plain() == {"r": 5}  # type: ignore[union-attr]
    below = document.root.get("a.x")
    assert below is not None
    assert Path(below.span.path).name == "middle.yaml"
    assert {Path(path).name for path in document.sources} == {"base.yaml", "middle.yaml", "child.yaml"}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        pytest.param({"a.yaml": "defaults: b.yaml\n"}, "no file b.yaml", id="no such file"),
        pytest.param({"a.yaml": "defaults: ../../b.yaml\n"}, "no file", id="outside of the repository"),
        pytest.param({"a.yaml": "defaults: b.yaml\n", "b.yaml": "defaults: a.yaml\n"}, "itself", id="a circle"),
        pytest.param({"a.yaml": "defaults: b.yaml\n", "b.yaml": "defaults: [c]\n"}, "a list", id="a list above"),
    ],
)
def test_what_cannot_be_laid_under_it_is_said(files: dict[str, str], message: str, tmp_path: Path) -> None:
    written(tmp_path, {**files, "a.yaml": files["a.yaml"] + "x: 1\n"})
    (tmp_path.parent / "b.yaml").write_text("x: 2\n")
    document = prepared(load(str(tmp_path / "a.yaml")))
    (fault,) = document.faults
    assert fault.code == "MEM004"
    assert message in fault.message
    assert document.root.get("x") is not None
