"""Definitions that the schemas of several families share: one file has them, and the others refer to it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import referencing

from memlint.dialects import objections, registry
from memlint.dialects import schema as schemas
from memlint.estimates import estimate_spec
from tests.dialects.language_models import run

FOLDER = Path(__file__).parent.parent.parent / "schemas"
FILES = sorted(path.name for path in FOLDER.glob("*.json"))


def text_of(name: str) -> Any:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def references(part: Any) -> Iterator[dict[str, Any]]:
    """The objects of a schema that refer into another file."""
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str) and not part["$ref"].startswith("#"):
            yield part
        for value in part.values():
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


TAKERS = [name for name in FILES if next(references(text_of(name)), None) is not None]


def test_some_schemas_share_definitions() -> None:
    assert {"trl.schema.json", "hf-trainer.schema.json", "llamafactory.schema.json"} <= set(TAKERS)


@pytest.mark.parametrize("name", TAKERS)
def test_beside_a_reference_stands_only_what_forbids_nothing(name: str) -> None:
    """Another validator holds a value against the definition and against what stands beside the reference."""
    for part in references(text_of(name)):
        assert set(part) - {"$ref"} <= schemas.BESIDE, part["$ref"]


@pytest.mark.parametrize("name", TAKERS)
def test_what_is_taken_from_another_file_refers_to_nothing_in_its_own(name: str) -> None:
    """``#/$defs/x`` would be looked up in the file that takes it."""
    for part in references(text_of(name)):
        assert '"$ref": "#' not in (FOLDER / part["$ref"].partition("#")[0]).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", TAKERS)
def test_a_loaded_schema_refers_to_no_other_file(name: str) -> None:
    assert list(references(schemas.load(name.removesuffix(".schema.json")))) == []


def test_a_use_says_its_own_default_and_keeps_what_the_definition_says() -> None:
    stated = schemas.load("trl")["properties"]["gradient_checkpointing"]
    shared = text_of("training_arguments.json")["$defs"]["gradient_checkpointing"]
    assert "default" not in shared["x-memlint"]
    assert stated["x-memlint"] == {**shared["x-memlint"], "default": "full", "default_of": "TRL 1.16"}
    assert stated["type"] == shared["type"]


def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **files: Any) -> None:
    """Other files in the place of the schemas."""
    for name, content in files.items():
        (tmp_path / f"{name}.schema.json").write_text(json.dumps(content))
    monkeypatch.setattr(schemas, "_place", str(tmp_path))
    monkeypatch.setattr(schemas, "_schemas", {})
    monkeypatch.setattr(schemas, "_files", {})


def test_a_whole_schema_can_be_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"allOf": [{"$ref": "one.schema.json"}], "properties": {"more": {"type": "integer"}}}
    folder(tmp_path, monkeypatch, one={"properties": {"size": {"type": "integer"}}}, two=own)
    found = schemas.load("two")
    assert set(schemas.properties(found, found)) == {"more", "size"}


@pytest.mark.parametrize("reference", ["nowhere.json#/$defs/size", "one.schema.json#/$defs/nothing"])
def test_a_reference_that_leads_nowhere_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str
) -> None:
    folder(tmp_path, monkeypatch, one={"$defs": {}}, two={"properties": {"size": {"$ref": reference}}})
    with pytest.raises(KeyError):
        schemas.load("two")


def test_each_file_is_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(schemas, "_schemas", {})
    monkeypatch.setattr(schemas, "_files", {})
    real = schemas._text

    def text(name: str) -> str:
        opened.append(name)
        return real(name)

    monkeypatch.setattr(schemas, "_text", text)
    for family in ("trl", "hf-trainer", "trl"):
        schemas.load(family)
    assert sorted(opened) == ["hf-trainer.schema.json", "training_arguments.json", "trl.schema.json"]


@pytest.mark.parametrize("family", [name.removesuffix(".schema.json") for name in TAKERS])
@pytest.mark.parametrize(
    ("config", "fits"),
    [
        pytest.param({"per_device_train_batch_size": 4, "bf16": True}, True, id="values of the right type"),
        pytest.param({"per_device_train_batch_size": 0}, False, id="a number below its bound"),
        pytest.param({"bf16": "yes"}, False, id="text for a switch"),
    ],
)
def test_another_validator_follows_the_references_as_well(family: str, config: dict[str, Any], fits: bool) -> None:
    def retrieve(uri: str) -> Any:
        return referencing.Resource.from_contents(text_of(uri.rsplit("/", 1)[-1]))

    registry: Any = referencing.Registry(retrieve=retrieve)  # type: ignore[call-arg]
    stated = {**text_of(f"{family}.schema.json"), "$id": f"https://example.org/{family}.schema.json"}
    validator: Any = jsonschema.Draft202012Validator(stated, registry=registry)
    assert validator.is_valid(config) is fits
    assert jsonschema.Draft202012Validator(schemas.load(family)).is_valid(config) is fits


# ------------------------------------------------------------------------------------------------ a family of one line


INSIDE = {
    "x-memlint": {
        "family": "ours",
        "title": "a trainer that is TRL inside",
        "formats": ["yaml"],
        "signature": {"all": ["ours_version"]},
        "refines": ["trl", "hf-trainer"],
        "module": "trl",
        "framework": "torch 2.13",
    },
    "allOf": [{"$ref": "trl.schema.json"}],
    "properties": {"ours_version": {"type": "integer"}},
}
CONFIG = """
model_name_or_path: HuggingFaceTB/SmolLM2-135M
dataset_name: trl-lib/Capybara
learning_rate: 2.0e-4
per_device_train_batch_size: 2
max_length: 512
use_peft: true
bf16: true
"""


def test_a_family_that_is_another_one_inside_is_a_schema_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(FOLDER, tmp_path / "schemas", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (tmp_path / "schemas" / "ours.schema.json").write_text(json.dumps(INSIDE))
    monkeypatch.setattr(schemas, "_place", str(tmp_path / "schemas"))
    for cache, empty in (("_schemas", {}), ("_files", {}), ("_headers", {}), ("_families", []), ("_by_format", {})):
        monkeypatch.setattr(schemas, cache, empty)
    monkeypatch.setattr(registry, "_dialects", {})
    theirs, ours = run(CONFIG), run(CONFIG + "ours_version: 1\n")
    assert (theirs.family, ours.family) == ("trl", "ours")
    assert estimate_spec(ours).device_bytes == estimate_spec(theirs).device_bytes
    assert [one.suggestion for one in objections.violations(run(CONFIG + "ours_version: 1\nlora_rnk: 4\n"))] == [
        "lora_rank"
    ]
