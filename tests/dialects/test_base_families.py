"""From a document to the facts of a run: recognition, provenance, options, companions."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from memlint.dialects import acceptance, objections, registry
from memlint.dialects import schema as schemas
from memlint.dialects.base import Dialect
from memlint.documents.node import Document, Node
from memlint.facts.spec import ASSUMED, DEFAULT, OVERRIDE, WRITTEN, TrainingSpec
from tests.dialects import families

_installed = pytest.fixture(autouse=True)(families.installed)

YAML = """\
training:
  batch: 16
  rate: 1e-4
model:
  width: 128
  name: tiny
"""


# ------------------------------------------------------------------------------------------------ recognising


@pytest.mark.parametrize(
    ("text", "known"),
    [
        pytest.param("training: {batch: 1}\nmodel: {width: 1}", True, id="all keys and one of the choices"),
        pytest.param("training: {batch: 1}\nmodel: {depth: 1, name: x}", True, id="all keys of a choice"),
        pytest.param("training: {batch: 1}\nmodel: {depth: 1}", False, id="a part of a choice"),
        pytest.param("training: {batch: 1}", False, id="no choice"),
        pytest.param("model: {width: 1}", False, id="a key missing"),
        pytest.param("training: {batch: 1}\nmodel: {width: 1}\nnot_this_one: 1", False, id="a key that must not be"),
        pytest.param("- training", False, id="a list"),
        pytest.param("", False, id="an empty file"),
        pytest.param("training: {batch: }\nmodel: {width: 1}", True, id="an empty value is a key all the same"),
    ],
)
def test_signature(text: str, known: bool) -> None:
    assert [one.family for one in families.specs("a.yaml", text)] == (["test-tree"] if known else [])


def test_the_format_counts() -> None:
    assert families.specs("a.py", "training = dict(batch=1)\nmodel = dict(width=1)") == []
    assert families.spec("a.json", '{"training": {"batch": 1}, "model": {"width": 1}}').family == "test-tree"
    assert families.spec("a.toml", "[training]\nbatch = 1\n[model]\nwidth = 1\n").family == "test-tree"


def test_the_family_that_finds_more_of_its_signature_wins() -> None:
    narrow = {
        "x-memlint": {
            "family": "a-narrow",
            "formats": ["yaml"],
            "signature": {"all": ["training.batch", "model.width", "model.name"]},
        }
    }
    wide = {"x-memlint": {"family": "a-wide", "formats": ["yaml"], "signature": {"all": ["training"]}}}
    registry.register(Dialect(wide))
    assert families.spec("a.yaml", YAML).family == "test-tree"
    registry.register(Dialect(narrow))
    assert families.spec("a.yaml", YAML).family == "a-narrow"


def test_of_equal_matches_the_first_by_name_wins() -> None:
    for name in ("z-other", "b-other"):
        signature = {"all": ["training.batch", "model.width"]}
        registry.register(Dialect({"x-memlint": {"family": name, "formats": ["yaml"], "signature": signature}}))
    assert families.spec("a.yaml", YAML).family == "b-other"


def test_the_python_half_may_refuse_complete_and_name() -> None:
    def recognise(document: Document, root: Node) -> bool:
        return root.get("model.name") is not None

    def complete(spec: TrainingSpec) -> TrainingSpec:
        spec.model_name = "tiny model"
        return spec.with_facts(tokens=spec["hyperparameters.width"] * 2)

    registry.register(Dialect(families.TREE, SimpleNamespace(recognise=recognise, complete=complete)))
    spec = families.spec("a.yaml", YAML)
    assert (spec.model_name, spec["tokens"]) == ("tiny model", 256)
    assert families.specs("a.yaml", YAML.replace("name", "other")) == []


# ------------------------------------------------------------------------------------------------ facts


def test_a_written_value_is_a_fact_with_its_place() -> None:
    fact = families.spec("a.yaml", YAML).fact("micro_batch_size")
    assert fact is not None
    assert (fact.value, fact.origin, fact.key, fact.label) == (16, WRITTEN, "training.batch", "batch")
    assert fact.span is not None
    assert (fact.span.line, fact.span.column) == (2, 3)


def test_a_documented_default_is_a_fact_with_its_reason() -> None:
    fact = families.spec("a.yaml", YAML).fact("gradient_accumulation_steps")
    assert fact is not None
    assert (fact.value, fact.origin, fact.node) == (1, DEFAULT, None)
    assert (fact.key, fact.reason) == ("training.accumulate", "the test trainer's defaults")


def test_a_key_without_a_value_or_a_default_is_no_fact() -> None:
    assert "compute_dtype" not in families.spec("a.yaml", YAML)


def test_facts_of_the_family_as_a_whole() -> None:
    spec = families.spec("a.yaml", YAML)
    assert spec["optimizer"] == "adamw"
    assert (spec["framework"], spec["framework_version"]) == ("torch", "torch 2.13")
    version = spec.fact("framework_version")
    assert version is not None
    assert (version.origin, version.reason) == (ASSUMED, "not stated in the config")


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("remat: true", "full"),
        ("remat: false", "none"),
        ("remat: every_k", "every_k"),
        ("checkpoint: true", "full"),
        ("remat:", "none"),
    ],
    ids=[
        "a listed value",
        "another one",
        "an unlisted value stands for itself",
        "an alias",
        "an empty value is absent",
    ],
)
def test_values_of_the_file_become_values_of_the_fact(line: str, value: str) -> None:
    spec = families.spec("a.yaml", f"training:\n  batch: 1\n  {line}\nmodel: {{width: 1}}")
    assert spec["checkpointing"] == value


def test_items_of_a_tuple_are_facts() -> None:
    spec = families.spec("a.yaml", "training: {batch: 1}\nmodel: {width: 1, shape: [3, 224]}")
    assert (spec["channels"], spec["image_size"]) == (3, 224)
    fact = spec.fact("image_size")
    assert fact is not None
    assert fact.key == "model.shape.1"


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        pytest.param("training: {batch: '${oc.env:B}'}", "training.batch", "", id="an environment value"),
        pytest.param("training: {batch: many}", "training.batch", "not a value", id="a value of the wrong type"),
        pytest.param("training: {batch: 0}", "training.batch", "not a value", id="a value out of range"),
        pytest.param("training: {batch: 1, workers: '${oc.env:W}'}", "training.workers", "", id="a key without a fact"),
        pytest.param(
            "training: {batch: 1, accumulate: '${oc.env:W}'}", "training.accumulate", "", id="a key that has a default"
        ),
    ],
)
def test_a_value_that_is_not_known_is_missing_not_guessed(text: str, key: str, reason: str) -> None:
    spec = families.spec("a.yaml", text + "\nmodel: {width: 1}")
    (missing,) = spec.missing
    assert missing.key == key
    assert reason in missing.reason
    assert missing.reason
    assert missing.span.line == 1
    names = {"training.batch": "micro_batch_size", "training.accumulate": "gradient_accumulation_steps"}
    assert names.get(key, "nothing") not in spec


def test_an_unresolved_parent_is_missing_once() -> None:
    text = "training: {batch: 1}\nmodel: ${oc.env:MODEL}"
    registry.register(
        Dialect(
            {**families.TREE, "x-memlint": {**families.TREE["x-memlint"], "signature": {"all": ["training.batch"]}}}
        )
    )
    spec = families.spec("a.yaml", text)
    assert len(spec.missing) == 1
    assert "hyperparameters.width" not in spec


def test_interpolations_are_followed() -> None:
    text = "n: 8\ntraining:\n  batch: ${n}\nmodel: {width: 1}"
    fact = families.spec("a.yaml", text).fact("micro_batch_size")
    assert fact is not None
    assert fact.node is not None
    assert (fact.value, fact.node.span.line, fact.node.via[0].line) == (8, 1, 3)


def test_overrides_are_applied() -> None:
    spec = families.spec("a.yaml", YAML, "training.batch=4", "training.remat=true")
    assert (spec["micro_batch_size"], spec["checkpointing"]) == (4, "full")


def test_with_facts_leaves_the_original_alone() -> None:
    spec = families.spec("a.yaml", YAML)
    changed = spec.with_facts(micro_batch_size=2)
    assert (spec["micro_batch_size"], changed["micro_batch_size"]) == (16, 2)
    fact = changed.fact("micro_batch_size")
    assert fact is not None
    assert (fact.origin, fact.key) == (OVERRIDE, "training.batch")


def test_constants_of_a_class() -> None:
    text = "import torch\n\nclass Config:\n    BATCH = 8\n    WIDTH = BATCH * 4\n    SHAPE = (3, 64)\n\nOTHER = 1\n"
    spec = families.spec("config.py", text)
    assert (spec.family, spec["micro_batch_size"], spec["hyperparameters.width"]) == ("test-class", 8, 32)
    assert spec["image_size"] == 64
    fact = spec.fact("micro_batch_size")
    assert fact is not None
    assert (fact.key, fact.span and fact.span.line) == ("BATCH", 4)


# ------------------------------------------------------------------------------------------------ commands


def command(words: str, **facts: Any) -> TrainingSpec:
    return families.spec("run.sh", f"python main_toy.py {words}\n")


@pytest.mark.parametrize(
    ("words", "fact", "value"),
    [
        pytest.param("--batch 16", "micro_batch_size", 16, id="an integer"),
        pytest.param("--batch=16", "micro_batch_size", 16, id="with an equals sign"),
        pytest.param("--bs 16", "micro_batch_size", 16, id="an alias"),
        pytest.param("-b 16 --bs 1", "micro_batch_size", 1, id="the alias that the schema names first"),
        pytest.param("--batch 4 --batch 8", "micro_batch_size", 8, id="the last of several uses"),
        pytest.param("--batch 1 --rate 1e-4", "rate", 1e-4, id="a float in scientific notation"),
        pytest.param("--batch 1 --rate -1", "rate", -1.0, id="a negative number is a value"),
        pytest.param("--batch 1 --remat", "checkpointing", "full", id="a boolean option without a value"),
        pytest.param("--batch 1 --remat True", "checkpointing", "full", id="a boolean option with a value"),
        pytest.param("--batch 1 --remat false", "checkpointing", "none", id="a boolean option that is false"),
        pytest.param("--batch 1 --no_remat", "checkpointing", "none", id="a negated option"),
        pytest.param("--remat out.txt --batch 1", "checkpointing", "full", id="a word that is no boolean is no value"),
        pytest.param("--compile 3 --batch 1", "compile", True, id="a switch takes no value"),
        pytest.param("--batch 1 --dims 1 2 3 --width 8", "hyperparameters.dims", [1, 2, 3], id="several values"),
        pytest.param("--batch 1 --dims 7", "hyperparameters.dims", [7], id="one value of several"),
        pytest.param('--batch 1 --dims "[1, 2]"', "hyperparameters.dims", [1, 2], id="a list in one word"),
        pytest.param("--batch 1 --name 12", "source", "12", id="text that looks like a number"),
        pytest.param("--batch 1 --limit None", "limit", None, id="None where the schema allows null"),
        pytest.param("--batch 1", "hyperparameters.width", 64, id="a default"),
    ],
)
def test_options_have_the_types_of_the_schema(words: str, fact: str, value: object) -> None:
    spec = command(words)
    assert spec[fact] == value
    assert type(spec[fact]) is type(value)


def test_a_fact_of_an_option_is_spelled_as_it_was_written() -> None:
    assert command("--bs 16").facts["micro_batch_size"].key == "--bs"
    assert command("-b 16").facts["micro_batch_size"].key == "-b"
    assert command("--bs 16").facts["hyperparameters.width"].key == "--width"


def test_an_option_of_the_wrong_type_is_missing_and_a_violation() -> None:
    spec = command("--batch 1 --width wide")
    assert [gap.key for gap in spec.missing] == ["--width"]
    (violation,) = objections.validate(spec.root, families.SCRIPT)
    assert (violation.kind, violation.node.key_path) == (objections.WRONG_TYPE, "width")


def test_an_unknown_variable_is_missing() -> None:
    spec = families.spec("run.sh", "python main_toy.py --batch $B --width ${W:-32}")
    assert [(gap.key, gap.reason) for gap in spec.missing] == [("--batch", "B is not set in the script")]
    assert spec["hyperparameters.width"] == 32


def test_every_command_is_a_run() -> None:
    script = "python main_toy.py --batch 1\npython other.py --batch 2\npython main_toy.py --batch 3\n"
    found = families.specs("run.sh", script)
    assert [(spec.run, spec["micro_batch_size"]) for spec in found] == [("train", 1), ("train:2", 3)]
    assert found[1].launch is not None
    assert found[1].launch.span.line == 3


def test_a_loop_over_what_does_not_matter_is_one_run() -> None:
    script = "for S in 1 2 3; do python main_toy.py --batch 4 --seed $S; done\n"
    assert len(families.specs("run.sh", script)) == 1
    script = "for B in 1 2 3; do python main_toy.py --batch $B; done\n"
    assert [spec["micro_batch_size"] for spec in families.specs("run.sh", script)] == [1, 2, 3]


def test_launchers_and_environment_are_there() -> None:
    script = "export ALLOC=x\nCARDS=0,1 torchrun --nproc_per_node 2 main_toy.py --batch 4\n"
    spec = families.spec("run.sh", script)
    assert spec.launch is not None
    ((name, options),) = spec.launch.launchers
    assert (name, options.plain()) == ("torchrun", {"nproc_per_node": "2"})
    assert {key: node.value for key, node in spec.launch.environment.items()} == {"ALLOC": "x", "CARDS": "0,1"}


def test_overrides_of_options() -> None:
    spec = families.spec("run.sh", "python main_toy.py --batch 4\n", "batch=2", "--width=16")
    assert (spec["micro_batch_size"], spec["hyperparameters.width"]) == (2, 16)


# ------------------------------------------------------------------------------------------------ companions


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return str(path)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    return tmp_path / "repo"


def load(path: str) -> list[TrainingSpec]:
    from memlint.documents import load as loader

    return registry.specs(loader.load(path))


@pytest.mark.parametrize(
    ("script", "config"),
    [("run.sh", "c.yaml"), ("scripts/deep/run.sh", "configs/c.yaml"), ("scripts/run.sh", "scripts/c.yaml")],
    ids=["beside the script", "from the root of the repository", "in the script's folder"],
)
def test_the_file_that_an_option_names_is_the_config(repository: Path, script: str, config: str) -> None:
    named = config.split("/")[-1] if script.startswith("scripts/run") else config
    text = f"accelerate launch --num_processes 2 train_test.py --train_config {named} --mixed bf16\n"
    path = write(repository / script, text)
    write(repository / config, "b: 8\ndata:\n  batch: ${b}\n")
    (spec,) = load(path)
    assert (spec.family, spec["micro_batch_size"], spec["compute_dtype"]) == ("test-launch", 8, "bf16")
    fact = spec.fact("micro_batch_size")
    assert fact is not None
    assert fact.node is not None
    assert fact.node.span.path == spec.document.path
    assert spec.document.path.endswith(config)
    assert spec.document.sources[path].startswith("accelerate")
    assert spec.facts["compute_dtype"].key == "--mixed"
    assert spec.launch is not None
    assert spec.launch.launchers[0].name == "accelerate launch"


@pytest.mark.parametrize(
    "named",
    ["nowhere.yaml", "../outside.yaml", "{outside}", "$CONFIG", "a\\0b", "link.yaml"],
    ids=[
        "no such file",
        "a parent of the repository",
        "an absolute path",
        "an unknown name",
        "a NUL",
        "a link out of it",
    ],
)
def test_a_file_that_is_not_there_or_not_inside_is_missing(repository: Path, named: str) -> None:
    outside = write(repository.parent / "outside.yaml", "data:\n  batch: 1\n")
    (repository / "link.yaml").symlink_to(outside)
    named = named.replace("{outside}", outside)
    path = write(repository / "run.sh", f"python train_test.py --train_config {named}\n")
    (spec,) = load(path)
    (gap,) = spec.missing
    assert gap.key == "--train_config"
    assert spec.architecture is None
    assert spec.unknown_reason == gap.reason
    assert "micro_batch_size" not in spec


def test_a_companion_of_another_kind_is_no_run(repository: Path) -> None:
    path = write(repository / "run.sh", "python train_test.py --train_config c.yaml\n")
    write(repository / "c.yaml", "something: else\n")
    assert load(path) == []


def test_a_grafted_file_stands_in_place_of_its_name(repository: Path) -> None:
    path = write(repository / "c.yaml", "training: {batch: 1}\nmodel: {width: 1}\nzero: ds.json\n")
    write(repository / "ds.json", '{\n  "stage": 3\n}\n')
    (spec,) = load(path)
    fact = spec.fact("zero_stage")
    assert fact is not None
    assert fact.node is not None
    assert (fact.value, fact.key) == (3, "zero.stage")
    assert fact.node.span.path.endswith("ds.json")
    assert fact.node.span.line == 2
    assert any(name.endswith("ds.json") for name in spec.document.sources)


def test_a_grafted_file_that_is_not_there_is_missing(repository: Path) -> None:
    path = write(repository / "c.yaml", "training: {batch: 1}\nmodel: {width: 1}\nzero: ds.json\n")
    (spec,) = load(path)
    assert [gap.key for gap in spec.missing] == ["zero"]


# ------------------------------------------------------------------------------------------------ shipped schemas

FAMILIES = schemas.families()


def test_there_are_families() -> None:
    assert sorted(set(FAMILIES)) == FAMILIES
    assert "report" not in FAMILIES
    assert "settings" not in FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
def test_a_shipped_schema_is_well_formed(family: str) -> None:
    from jsonschema import Draft202012Validator

    schema = schemas.load(family)
    Draft202012Validator.check_schema(schema)
    header = schema["x-memlint"]
    assert schemas.header(family) == header, "the annotations of the family come first in the file"
    assert set(header) <= schemas.HEADER_NAMES
    assert set(header.get("signature", {})) <= schemas.SIGNATURE_NAMES
    assert header["formats"]
    assert acceptance.unsupported(schema) == set(), "the fast check knows every keyword"
    for key in schemas.keys(schema):
        assert set(key.annotation) <= schemas.PROPERTY_NAMES, key.dotted
        assert "default" not in key.annotation or key.annotation.get("default_of"), f"{key.dotted}: whose default?"
    registry.dialect(family)


def test_what_a_header_may_say_is_told_where_one_looks() -> None:
    told = schemas.__doc__ or ""
    names = schemas.HEADER_NAMES | schemas.SIGNATURE_NAMES | schemas.PROPERTY_NAMES
    assert [name for name in sorted(names) if not re.search(rf"(?m)^ +([\w, ]+, )?{name}\b|\b{name}:", told)] == []


def test_a_family_without_a_schema_is_an_error() -> None:
    with pytest.raises(KeyError):
        registry.dialect("no-such-family")
