"""How a command becomes the run of a family: programs, files without an option, options of either spelling."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memlint.dialects import registry
from memlint.dialects import schema as schemas
from memlint.dialects.base import Dialect
from memlint.dialects.spelling import spell
from memlint.documents.load import load
from memlint.facts.spec import TrainingSpec
from memlint.fixes.edits import apply_edits
from tests.dialects.language_models import written

GENERAL: dict[str, Any] = {
    "x-memlint": {
        "family": "m-general",
        "formats": ["yaml", "shell"],
        "signature": {"any": ["one_key", ["a_key", "b_key", "c_key"]], "programs": r"(^|/)mill( grind)$"},
        "positional": True,
        "overrides": True,
        "architecture": "test",
    },
    "type": "object",
    "properties": {
        "one_key": {"type": "integer", "x-memlint": {"fact": "one"}},
        "a_key": {"type": "integer", "x-memlint": {"fact": "a"}},
        "b_key": {"type": "boolean", "x-memlint": {"fact": "b"}},
        "c_key": {
            "type": ["object", "string"],
            "properties": {"inner": {"type": "integer", "x-memlint": {"fact": "inner"}}},
        },
        "config": {"type": "string", "x-memlint": {"companion": "yaml"}},
    },
}
SPECIAL = {
    "x-memlint": {
        "family": "m-special",
        "formats": ["yaml", "shell"],
        "signature": {"any": [["one_key", "d_key"]]},
        "refines": ["m-general"],
    },
    "type": "object",
    "properties": {"one_key": {"type": "integer", "x-memlint": {"fact": "one"}}},
}
FALLBACK = {
    "x-memlint": {"family": "m-launched", "formats": ["shell"], "signature": {"launcher": "^torchrun$"}},
    "type": "object",
}


@pytest.fixture(autouse=True)
def _families() -> Iterator[None]:
    before = dict(registry._dialects)
    for schema in (GENERAL, SPECIAL, FALLBACK):
        registry.register(Dialect(schema))
    yield
    registry._dialects.clear()
    registry._dialects.update(before)


def runs(folder: Path, command: str, **files: str) -> list[TrainingSpec]:
    root = written(folder, {"run.sh": command + "\n", **{name.replace("_", "."): text for name, text in files.items()}})
    return registry.specs(load(str(root / "run.sh")))


@pytest.mark.parametrize(
    ("command", "family"),
    [
        pytest.param("python x.py --one_key 1", "m-general", id="by an option"),
        pytest.param("python x.py --one-key 1", "m-general", id="by an option with hyphens"),
        pytest.param("python x.py --no_b_key --a_key 1 --c_key {}", "m-general", id="by a negated option among others"),
        pytest.param("python x.py --a_key 1 --b_key", None, id="not by a part of a choice"),
        pytest.param("python x.py --one_key 1 --d_key 2", "m-special", id="the refining family goes before"),
        pytest.param("torchrun x.py --else 1", "m-launched", id="a launcher alone, where nobody else is"),
        pytest.param("torchrun x.py --one_key 1", "m-general", id="not where somebody is"),
    ],
)
def test_which_family_a_command_is_of(command: str, family: str | None, tmp_path: Path) -> None:
    assert [spec.family for spec in runs(tmp_path, command)] == ([family] if family else [])


def test_options_are_read_by_either_spelling(tmp_path: Path) -> None:
    (spec,) = runs(tmp_path, "python x.py --one-key 7 --no-b-key --c-key '{\"inner\": 3}'")
    assert (spec["one"], spec["b"], spec["inner"]) == (7, False, 3)
    assert spec.facts["one"].key == "--one_key"


@pytest.mark.parametrize(
    "command",
    [
        "python x.py c.yaml",
        "python x.py --config c.yaml",
        "python x.py --config=c.yaml",
        "python x.py --other 1 c.yaml d",
    ],
    ids=["as a word", "as an option", "as an option with a sign", "among others"],
)
def test_the_config_that_a_command_names(command: str, tmp_path: Path) -> None:
    command = command.replace("--other 1 c.yaml d", "c.yaml --other 1")
    (spec,) = runs(tmp_path, command, c_yaml="one_key: 5\n")
    assert (spec.family, spec["one"], Path(spec.document.path).name) == ("m-general", 5, "c.yaml")


@pytest.mark.parametrize(
    ("files", "found"),
    [
        pytest.param({"src/run_it.py": "", "src/conf/c.yaml": "one_key: 5"}, "src/conf/c.yaml", id="where it is"),
        pytest.param(
            {"c.yaml": "", "src/run_it.py": "", "conf/c.yaml": "one_key: 5"}, "conf/c.yaml", id="beside first"
        ),
        pytest.param(
            {"a/run_it.py": "", "b/run_it.py": "", "a/conf/c.yaml": "one_key: 5"}, "", id="not where two have its name"
        ),
        pytest.param({"src/rerun_it.py": "", "src/conf/c.yaml": "one_key: 5"}, "", id="nor where another one is"),
        pytest.param({"src/run_it.py": ""}, "", id="nor where no such file is"),
    ],
)
def test_a_document_above_its_program_names_files_from_the_programs_folder(
    files: dict[str, str], found: str, tmp_path: Path
) -> None:
    """Who follows a README goes to where the program is first, whether it says so or not."""
    text = "```bash\npython run_it.py --config conf/c.yaml\n```\n"
    root = written(tmp_path, {"README.md": text, **files})
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    subprocess.run(["git", "add", "."], cwd=root, check=True)
    specs = registry.specs(load(str(root / "README.md")))
    assert [os.path.relpath(spec.document.path, root) for spec in specs if "one" in spec] == ([found] if found else [])


@pytest.mark.parametrize("family", ["hf-trainer", "trl", "llamafactory", "open-instruct"])
def test_a_further_value_of_an_option_is_no_config(family: str, tmp_path: Path) -> None:
    """These programs look for a config at sys.argv[1] (HfArgumentParser's users, LLaMA-Factory, OmegaConf's)."""
    dialect = registry.dialect(family)
    text = "python run.py --model_name_or_path gpt2 --learning_rate 1e-5 --data_path a.json b.json\n"
    root = written(tmp_path, {"run.sh": text, "b.json": '{"model_name_or_path": "other"}'})
    (command,) = load(str(root / "run.sh")).commands
    assert dialect._recogniser._positional(command) is None


def test_a_config_before_the_options_is_read(tmp_path: Path) -> None:
    """alignment-handbook's H4ArgumentParser: a file and options that go before what it says."""
    text = "python run_sft.py args.json --learning_rate 1e-5 --data_path a.json b.json\n"
    config = '{"model_name_or_path": "gpt2", "per_device_train_batch_size": 2, "output_dir": "out", "max_steps": 9}'
    (spec,) = registry.specs(load(str(written(tmp_path, {"run.sh": text, "args.json": config}) / "run.sh")))
    assert Path(spec.document.path).name == "args.json"
    assert not spec.missing


def test_a_named_file_of_another_kind_is_no_run(tmp_path: Path) -> None:
    assert runs(tmp_path, "python x.py c.yaml --z 1", c_yaml="nothing: 5\n") == []


def test_options_and_a_file_may_fit_only_together(tmp_path: Path) -> None:
    (spec,) = runs(tmp_path, "python x.py c.yaml --a_key 1 --b_key true", c_yaml="c_key: {inner: 2}\n")
    assert (spec["a"], spec["b"], spec["inner"]) == (1, True, 2)


def test_a_program_that_is_certain_needs_no_key(tmp_path: Path) -> None:
    registry.register(
        Dialect(
            {
                **GENERAL,
                "x-memlint": {
                    **GENERAL["x-memlint"],
                    "signature": {"any": ["one_key"], "programs": r"(^|/)trl grind$"},
                },
            }
        )
    )
    (spec,) = runs(tmp_path, "trl grind --a_key 3")
    assert (spec.family, spec["a"]) == ("m-general", 3)
    (gap,) = runs(tmp_path, "trl grind --config nowhere.yaml")
    assert gap.unknown_reason == "no file nowhere.yaml in this repository"


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ("one_key=9", {"one": 9}),
        ("c_key.inner=4", {"one": 5, "inner": 4}),
        ("one_key=9 one_key=10", {"one": 10}),
        ("'one_key=11'", {"one": 11}),
        ("one_key=", {"one": None}),
        ("+b_key=true", {"b": True}),
    ],
    ids=["a key", "a key below", "the last one", "in quotes", "no value", "a new key"],
)
def test_words_that_override_the_file(words: str, facts: dict[str, Any], tmp_path: Path) -> None:
    (spec,) = runs(tmp_path, f"python x.py c.yaml {words} --z 1", c_yaml="one_key: 5\nc_key: {inner: 2}\n")
    assert {name: spec.get(name) for name in facts} == facts


@pytest.mark.parametrize("word", ["one_key=9", "'one_key=9'"])
def test_a_fix_changes_the_word_that_overrides(word: str, tmp_path: Path) -> None:
    (spec,) = runs(tmp_path, f"python x.py c.yaml {word} --z 1", c_yaml="one_key: 5\n")
    edits = spell(spec, "one", 3)
    path = tmp_path / "run.sh"
    assert {Path(edit.span.path) for edit in edits} == {path}
    path.write_text(apply_edits(path.read_text(), edits))
    assert word.replace("9", "3") in path.read_text()
    (again,) = registry.specs(load(str(path)))
    assert again["one"] == 3


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    (spec,) = runs(tmp_path, "python x.py c.yaml --z 1", c_yaml="one_key: 5\n")
    assert spec["one"] == 5
    (spec,) = runs(tmp_path, "python x.py c.yaml --z 1", c_yaml="one_key: 55\n")
    assert spec["one"] == 55


@pytest.mark.parametrize(
    ("name", "command", "meant"),
    [
        pytest.param("train", "python tools/train.py --x 1", True, id="a program without its folder and suffix"),
        pytest.param("train", "python train_net.py --x 1", False, id="not a longer name"),
        pytest.param("train_*", "python train_net.py --x 1", True, id="the beginning of a name"),
        pytest.param("*net", "python train_net.py --x 1", True, id="the end of a name"),
        pytest.param("*video*", "python a_video_b.py --x 1", True, id="a part of a name"),
        pytest.param("a.cli.train_*", "python -m a.cli.train_sft --x 1", True, id="a module"),
        pytest.param("*tools/train.py", "python b/tools/train.py --x 1", True, id="the end of a path"),
        pytest.param("swift sft", "swift sft --x 1", True, id="a program and its first word"),
        pytest.param("swift sft", "swift infer --x 1", False, id="not with another word"),
        pytest.param("yolo detect train", "yolo detect train x=1", True, id="a program and two words"),
    ],
)
def test_programs_by_names(tmp_path: Path, name: str, command: str, meant: bool) -> None:
    """Names instead of a regular expression."""
    signature = {"programs": [name], "all": ["not_there"]}
    registry.register(Dialect({"x-memlint": {"family": "m-named", "formats": ["shell"], "signature": signature}}))
    assert ["m-named" for spec in runs(tmp_path, command) if spec.family == "m-named"] == ["m-named"] * meant


def test_every_schema_of_a_family_is_a_family() -> None:
    """Annotations come first in the file: what is not found there would be no family, without a word."""
    folder = schemas._folder()
    stated = set()
    for name in os.listdir(folder):
        if name.endswith(".schema.json"):
            content = json.loads(Path(folder, name).read_text(encoding="utf-8"))
            if content.get("x-memlint", {}).get("family"):
                stated.add(name.removesuffix(".schema.json"))
    assert stated == set(schemas.families())


def test_recognising_parses_no_other_family_s_schema() -> None:
    registry._dialects.clear()
    before = dict(schemas._schemas)
    schemas._schemas.clear()
    try:
        assert registry.specs(load("a.yaml", "model: {}\ntraining: {}\n")) == []
        assert registry.specs(load("a.sh", "python x.py --lr 1 --out y\n")) == []
        assert schemas._schemas == {}
    finally:
        schemas._schemas.update(before)
