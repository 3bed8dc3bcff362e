"""The keys of frameworks, as they are read out of their code and written beside the schemas."""

from __future__ import annotations

import ast
import json
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from benchmarks import keys
from memlint.dialects import objections
from memlint.dialects import schema as schemas
from tests.dialects.test_base_schema import tree

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in keys.EXTRACTS.glob("*.json"))
ANSWERING = [name for name in NAMES if "models" in schemas.header(keys.FRAMEWORKS[name].family)]


def read(name: str) -> Any:
    return json.loads((keys.SCHEMAS / f"{keys.FRAMEWORKS[name].family}.keys.json").read_text(encoding="utf-8"))


# ------------------------------------------------------------------------------------------------ what is recorded


@pytest.mark.parametrize("name", NAMES)
def test_the_file_of_keys_is_what_its_extract_gives(name: str) -> None:
    path = keys.SCHEMAS / f"{keys.FRAMEWORKS[name].family}.keys.json"
    assert path.read_text(encoding="utf-8") == keys.written(name), "python -m benchmarks.keys write"


@pytest.mark.parametrize("name", NAMES)
def test_the_file_of_keys_is_a_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(read(name))
    for stated in read(name)["properties"].values():
        if "default" in stated and "type" in stated and stated["default"] is not None:
            assert jsonschema.Draft202012Validator(stated).is_valid(stated["default"]), stated


# Where our default is not the dataclass's own, as code behind it replaces that one.
REPLACED = {
    ("ms-swift", "dataloader_num_workers"): "None: TrainArgumentsMixin.__post_init__ makes it 1",
    ("ms-swift", "attn_impl"): "None: what from_pretrained chooses",
    ("trl", "attn_implementation"): "None: what from_pretrained chooses",
}


@pytest.mark.parametrize("name", ANSWERING)
def test_defaults_of_a_schema_are_those_of_the_release(name: str) -> None:
    family = keys.FRAMEWORKS[name].family
    root, stated = schemas.load(family), read(name)["properties"]
    for key, ours in schemas.properties(root, root).items():
        if "default" in ours and "default" in stated.get(key, {}) and (name, key) not in REPLACED:
            assert ours["default"] == stated[key]["default"], key


@pytest.mark.parametrize("name", ANSWERING)
def test_no_key_of_the_release_is_called_a_misspelling(name: str) -> None:
    root = schemas.load(keys.FRAMEWORKS[name].family)
    for key, stated in read(name)["properties"].items():
        value = stated.get("default")
        found = [one.kind for one in objections.validate(tree({key: value}), root)]
        assert objections.UNKNOWN_KEY not in found, key


def test_a_key_of_the_release_may_look_like_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``lora_rnk`` would, if the release had such a key; today's keys are words of their own."""
    root = schemas.load("trl")
    config = tree({"lora_rnk": 8})
    assert [one.suggestion for one in objections.validate(config, root)] == ["lora_rank"]
    assert objections.validate(tree({"local_rank": -1}), root) == []
    real = schemas._read

    def with_another(name: str) -> schemas.Schema:
        found = real(name)
        return {**found, "properties": {**found["properties"], "lora_rnk": {}}} if "keys" in name else found

    monkeypatch.setattr(schemas, "_read", with_another)
    assert objections.validate(config, root) == []


def test_an_ordinary_config_does_not_open_the_file_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    real = schemas._read

    def reading(name: str) -> schemas.Schema:
        opened.append(name)
        return real(name)

    root = schemas.load("trl")
    monkeypatch.setattr(schemas, "_read", reading)
    assert objections.validate(tree({"per_device_train_batch_size": 4, "output_dir": "out"}), root) == []
    assert opened == []


# ------------------------------------------------------------------------------------------------ reading code


CODE = '''
    from dataclasses import dataclass, field
    from typing import ClassVar, Literal, Optional, Union
    from other import Base as Inherited, Config as Far

    @dataclass
    class Own(Inherited):
        """Text that stays where it is."""
        kept: ClassVar[int] = 1
        _hidden: int = 0
        rank: int = 8
        rate: float | None = None
        names: list[str] = field(default_factory=list, metadata={"help": "words"})
        targets: list[str] = field(default_factory=lambda: ["all"])
        mode: Literal["one", "two", None] = None
        either: Optional[Union[dict, str]] = None
        size: int = field(default=4)
        needed: str
        computed: int = other()
        strange: Something = None

    @dataclass
    class Config(Far):
        rank: int = 16

    class Base:
        rank: int = 1
        inherited: "bool" = True
'''


def wheel(folder: Path, name: str, **files: str) -> Path:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(f"{name}/{file}.py", textwrap.dedent(text))
    return path


def extracted(folder: Path, framework: keys.Framework, *archives: Path) -> Any:
    return keys.extract(framework, list(archives))["keys"]


def test_fields_of_dataclasses(tmp_path: Path) -> None:
    framework = keys.Framework("x", "x", ("Own",))
    found = extracted(tmp_path, framework, wheel(tmp_path, "one", code=CODE))["Own"]
    assert found == {
        "rank": {"type": ["integer"], "default": 8},
        "rate": {"type": ["number", "null"], "default": None},
        "names": {"type": ["array"], "default": []},
        "targets": {"type": ["array"], "default": ["all"]},
        "mode": {"type": ["string", "null"], "enum": ["one", "two", None], "default": None},
        "either": {"type": ["string", "object", "null"], "default": None},
        "size": {"type": ["integer"], "default": 4},
        "needed": {"type": ["string"]},
        "computed": {"type": ["integer"], "made": "other()"},
        "strange": {"default": None},
        "inherited": {"type": ["boolean"], "default": True},
    }


def test_a_base_of_the_same_name_is_in_another_archive(tmp_path: Path) -> None:
    far = wheel(tmp_path, "two", code="class Config:\n    rank: int = 2\n    length: int = 3\n")
    framework = keys.Framework("x", "x", ("Config",))
    found = extracted(tmp_path, framework, wheel(tmp_path, "one", code=CODE), far)["Config"]
    assert {name: stated["default"] for name, stated in found.items()} == {"rank": 16, "length": 3}


def test_options_of_argparse() -> None:
    code = """
    parser.add_argument("--rank", "-r", type=int, default=8)
    parser.add_argument("--rate", type=float, default=None)
    parser.add_argument("--on", action="store_true")
    parser.add_argument("--names", nargs="*", default=["q"])
    parser.add_argument("--mode", choices=["one", "two"], default="one")
    parser.add_argument("positional")
    """
    assert keys.options(ast.parse(textwrap.dedent(code))) == {
        "rank": {"type": ["integer"], "default": 8},
        "rate": {"type": ["number", "null"], "default": None},
        "on": {"type": ["boolean"], "default": False},
        "names": {"type": ["array"], "default": ["q"]},
        "mode": {"type": ["string"], "enum": ["one", "two"], "default": "one"},
    }


def test_of_a_key_of_several_classes_stays_what_they_agree_on() -> None:
    groups = {
        "A": {"rate": {"type": ["number"], "default": 1.0}, "length": {"type": ["integer"], "default": 4}},
        "B": {"rate": {"type": ["number", "null"], "default": 2.0}, "length": {"type": ["integer"], "default": 4}},
    }
    found = keys.keys(keys.Framework("x", "x"), {"release": "x 1", "keys": groups}, frozenset(("length",)))
    assert found["properties"] == {
        "length": {"type": ["integer"], "default": 4, "$comment": "A, B"},
        "rate": {"type": ["number", "null"], "$comment": "A, B; not annotated"},
    }
