"""From a name to a config.json: the catalogue, a folder, the local hub cache, and nothing else."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import try_to_load_from_cache
from hypothesis import given
from hypothesis import strategies as st

from memlint import files
from memlint.data import hub, models
from memlint.data.hub import Resolved, resolve

CONFIG = {"model_type": "llama", "hidden_size": 64}
ROOT = Path(__file__).parents[2]
REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, and a working directory of its own."""
    for variable in ("HF_HOME", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(hub, "added_folder", lambda: str(tmp_path / "added"))
    folder = tmp_path / "cache"
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return folder


def model(folder: Path, text: str = json.dumps(CONFIG)) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(text, encoding="utf-8")
    return folder


def cached(cache: Path, name: str, text: str = json.dumps(CONFIG), revision: str = REVISION) -> Path:
    """As huggingface_hub lays it out: a snapshot links to a blob."""
    folder = cache / ("models--" + name.replace("/", "--"))
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(revision)
    (folder / "blobs").mkdir()
    (folder / "blobs" / "b10b").write_text(text)
    snapshot = folder / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").symlink_to(folder / "blobs" / "b10b")
    return folder


# -- where it is looked for


def test_points_in_the_name_of_a_folder_may_be_modelscopes() -> None:
    found = models.named("/models/Qwen/Qwen2___5-Coder-1___5B/")
    known = models.find("Qwen/Qwen2.5-Coder-1.5B")
    assert found is not None
    assert known is not None
    assert found.config == known.config


@pytest.mark.parametrize("name", ["[Qwen/Qwen2.5-1.5B]", "<Qwen/Qwen2.5-1.5B>"])
def test_brackets_around_an_id_are_a_document_s_own(name: str) -> None:
    found = hub.resolve(name)
    assert found is not None
    assert found == hub.resolve("Qwen/Qwen2.5-1.5B")
    assert hub.resolve("[]") is None
    assert hub.resolve("<model>") is None


def test_the_catalogue_comes_first(tmp_path: Path) -> None:
    model(tmp_path / "here" / "gpt2")
    found = resolve("gpt2")
    assert found is not None
    assert found.source == "catalogue"
    known = models.find("gpt2")
    assert known is not None
    assert found.config == known.config


def test_a_folder_is_looked_for_beside_the_config_then_from_the_working_directory(tmp_path: Path) -> None:
    model(tmp_path / "here" / "mine", '{"model_type": "here"}')
    assert resolve("mine", "configs/train.yaml") == Resolved({"model_type": "here"}, "mine/config.json")
    model(tmp_path / "here" / "configs" / "mine", '{"model_type": "beside"}')
    path = os.path.join("configs", "mine", "config.json")
    assert resolve("mine", "configs/train.yaml") == Resolved({"model_type": "beside"}, path)
    assert resolve("./mine/", "configs") == Resolved({"model_type": "beside"}, path)


def test_a_folder_that_the_user_names_may_be_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model(tmp_path / "elsewhere")
    for name in (str(folder), os.path.join("..", "elsewhere")):
        found = resolve(name)
        assert found is not None
        assert found.config == CONFIG
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/elsewhere") == Resolved(CONFIG, str(folder / "config.json"))


@pytest.mark.parametrize("there", [True, False], ids=["a folder that is there", "and one that is not"])
def test_a_folder_that_a_config_names_lies_in_its_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    (tmp_path / "here" / ".git").mkdir()
    if there:
        model(tmp_path / "elsewhere")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (str(tmp_path / "elsewhere"), os.path.join("..", "elsewhere"), "~/elsewhere"):
        found = resolve(name, "train.yaml")
        assert found is not None
        assert found.config == {}
        assert "lies outside of this repository" in found.reason
        with files.named(["train.yaml"], [name]):
            found = resolve(name, "train.yaml")
        assert (found is not None and found.config == CONFIG) is there


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        pytest.param({"HF_HUB_CACHE": "a", "HF_HOME": "b"}, "a", id="HF_HUB_CACHE is the cache itself"),
        pytest.param({"HUGGINGFACE_HUB_CACHE": "c", "HF_HOME": "b"}, "c", id="so is its older name"),
        pytest.param({"HF_HOME": "b", "XDG_CACHE_HOME": "d"}, "b/hub", id="HF_HOME holds it"),
        pytest.param({"XDG_CACHE_HOME": "d"}, "d/huggingface/hub", id="the desktop's cache folder"),
        pytest.param({}, "~/.cache/huggingface/hub", id="none of them"),
    ],
)
def test_the_cache_is_where_the_hub_library_has_it(
    variables: dict[str, str], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_CACHE")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert hub.cache_folder() == os.path.expanduser(place)
    environment = {k: v for k, v in os.environ.items() if k in ("HOME", "PATH", *variables)}
    script = "from huggingface_hub.constants import HF_HUB_CACHE; print(HF_HUB_CACHE)"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert os.path.abspath(done.stdout.strip()) == os.path.abspath(hub.cache_folder())


@pytest.mark.parametrize("name", ["nobody/nothing", "nothing"])
def test_a_model_in_the_local_cache_is_found_as_the_hub_library_finds_it(cache: Path, name: str) -> None:
    assert resolve(name) is None
    cached(cache, name)
    assert resolve(name) == Resolved(CONFIG, "local hub cache")
    path = try_to_load_from_cache(name, "config.json", cache_dir=cache)
    assert isinstance(path, str)
    assert json.loads(Path(path).read_text()) == CONFIG


@pytest.mark.parametrize(
    "revision",
    [
        pytest.param("f" * 40, id="a revision that is not there"),
        pytest.param("../../../../here/mine", id="a path"),
        pytest.param("..", id="the folder above"),
        pytest.param("", id="nothing"),
    ],
)
def test_a_revision_leads_nowhere_but_to_its_snapshot(cache: Path, tmp_path: Path, revision: str) -> None:
    model(tmp_path / "here" / "mine")
    folder = cached(cache, "nobody/nothing", revision=revision)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    assert resolve("nobody/nothing") is None


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("", id="no name"),
        pytest.param("a\0b", id="a null character"),
        pytest.param("../..", id="folders above"),
        pytest.param("nobody/../nothing", id="a way up inside"),
        pytest.param("a/b/c", id="three parts"),
        pytest.param("nobody/", id="half a name"),
        pytest.param("x" * 5000, id="a name longer than a file name"),
    ],
)
def test_what_is_no_id_is_not_looked_up_in_the_cache(name: str, cache: Path) -> None:
    cached(cache, "nobody/nothing")
    (cache / "models--nobody--").mkdir()
    assert resolve(name) is None


@given(st.text(max_size=60))
def test_any_text_is_a_model_or_none(name: str) -> None:
    found = resolve(name)
    assert found is None or found.config or found.reason


# -- what is in it


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("", ":1: not JSON", id="empty"),
        pytest.param('{\n"model_type": llama}', ":2: not JSON", id="not JSON, with its line"),
        pytest.param("[1, 2]", ":1: holds a list where a model's settings should be", id="a list"),
        pytest.param("null", ":1: holds a NoneType where a model's settings should be", id="null"),
        pytest.param("{}", ": names no model_type", id="no model type"),
        pytest.param('{"model_type": 3}', ": names no model_type", id="a number for a model type"),
        pytest.param("[" * 200_000, ": nested too deeply", id="nested without end"),
        pytest.param('{"model_type": "x", "n": ' + "9" * 10_000 + "}", ": ", id="a number of ten thousand digits"),
        pytest.param(" " * (2**20 + 1), ": larger than 1 MiB", id="a mebibyte"),
    ],
)
def test_contents_that_cannot_be_used_are_a_reason(tmp_path: Path, cache: Path, text: str, reason: str) -> None:
    model(tmp_path / "here" / "mine", text)
    found = resolve("mine")
    assert found is not None
    assert found.config == {}
    assert found.source == "mine/config.json"
    assert found.reason.startswith("mine/config.json" + reason)
    cached(cache, "nobody/nothing", text)
    found = resolve("nobody/nothing")
    assert found is not None
    assert found.config == {}
    assert f"config.json{reason}" in found.reason


def test_bytes_that_are_no_text_are_a_reason(tmp_path: Path) -> None:
    (model(tmp_path / "here" / "mine") / "config.json").write_bytes(b'{"model_type": "\xff"}')
    found = resolve("mine")
    assert found is not None
    assert "utf-8" in found.reason


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    model(tmp_path / "here" / "mine", "\ufeff" + json.dumps(CONFIG))
    assert resolve("mine") == Resolved(CONFIG, "mine/config.json")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "here" / "mine").mkdir()
    os.mkfifo(tmp_path / "here" / "mine" / "config.json")
    assert resolve("mine") is None
    (tmp_path / "here" / "linked").mkdir()
    (tmp_path / "here" / "linked" / "config.json").symlink_to("config.json")
    assert resolve("linked") is None


# -- what it costs and never does


def test_an_unknown_name_is_explained() -> None:
    assert "'a/b' is not in the catalogue" in hub.unknown("a/b")
    assert "`memlint models add a/b` fetches its config.json" in hub.unknown("a/b")


@pytest.mark.parametrize(
    ("name", "command"),
    [
        pytest.param("nobody/nothing", True, id="an id"),
        pytest.param("/data/models/llama", False, id="a folder"),
        pytest.param("./llama", False, id="a folder beside the config"),
        pytest.param("outputs/run/final", False, id="what a run has left"),
        pytest.param("llama", False, id="a single word"),
    ],
)
def test_the_command_that_fetches_is_named_where_the_name_may_be_an_id(name: str, command: bool) -> None:
    assert ("memlint models add" in hub.ways_out(name)) is command
    assert "--model-config FILE" in hub.ways_out(name)


def test_a_model_that_no_reader_describes_is_named_by_its_type(cache: Path) -> None:
    found = resolve("ai21labs/Jamba-v0.1")
    assert found is not None
    assert found.reason == "it is of type jamba, whose layers memlint does not describe"
    cached(cache, "ai21labs/Jamba-v0.1")
    assert resolve("ai21labs/Jamba-v0.1") == Resolved(CONFIG, "local hub cache")


def test_a_size_that_the_catalogue_has_not_is_no_other_model_of_a_like_name(cache: Path) -> None:
    found = resolve("tiiuae/Falcon-H1-3B-Base")
    assert found is not None
    assert found.reason.startswith("it is of type falcon_h1, in a size that is not there: `memlint models add tiiuae/")
    cached(cache, "tiiuae/Falcon-H1-3B-Base")
    assert resolve("tiiuae/Falcon-H1-3B-Base") == Resolved(CONFIG, "local hub cache")


@pytest.mark.parametrize("home", ["relative", ""], ids=["a relative path", "nothing"])
def test_what_was_added_is_kept_outside_of_any_tree(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", home)
    assert hub.added_folder() == os.path.expanduser("~/.cache/memlint/models")


def test_the_network_is_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    assert resolve("nobody/nothing") is None


def test_nothing_is_imported_that_a_check_does_not_have() -> None:
    script = (
        "import sys, json, memlint.files\n"
        "before = set(sys.modules)\n"
        "from memlint.data import hub\n"
        "hub.resolve('nobody/nothing')\n"
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['memlint.data', 'memlint.data.hub', 'memlint.data.models']"


@pytest.mark.parametrize(
    ("folder", "model"),
    [
        pytest.param("./pretrained/vicuna-7b-v1.5", "lmsys/vicuna-7b-v1.5", id="a folder of a model's name"),
        pytest.param(
            "/mnt/models/meta-llama/Llama-2-7b-hf/", "meta-llama/Llama-2-7b-hf", id="outside of the repository"
        ),
        pytest.param("~/cache/qwen2.5-7b", "Qwen/Qwen2.5-7B", id="whatever its case"),
        pytest.param(
            "/root/.cache/huggingface/hub/models--Qwen--Qwen2.5-7B/snapshots/0123abc",
            "Qwen/Qwen2.5-7B",
            id="the cache's own folder",
        ),
        pytest.param("./out/my-vicuna-7b-v1.5-tuned", None, id="a name that only holds a model's"),
        pytest.param("./pretrained", None, id="a folder of no model's name"),
        pytest.param("./runs/t0", None, id="a name that is too short to mean a model"),
        pytest.param("/", None, id="no name at all"),
    ],
)
def test_a_folder_that_is_not_here_is_taken_for_the_model_whose_name_it_has(folder: str, model: str | None) -> None:
    found = hub.resolve(folder, "configs/run.yaml")
    known = None if model is None else models.find(model)
    if known is None:
        assert found is None or found.reason
    else:
        assert found is not None
        assert found.config == known.config
        assert found.source == f"{model}{hub.BY_NAME}"


def test_a_name_of_several_models_that_differ_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    models.find("gpt2")  # which reads the catalogue
    monkeypatch.setitem(models._models, "one/twins-1b", "openai-community/gpt2")
    known = models.find("gpt2")
    assert known is not None
    assert models.named("./twins-1b") == known._replace(name="one/twins-1b")
    monkeypatch.setitem(models._models, "two/twins-1b", "facebook/opt-125m")
    assert models.named("./twins-1b") is None


def test_the_folder_s_own_config_is_read_where_it_is_in_reach(tmp_path: Path) -> None:
    (tmp_path / "Llama-2-7b-hf").mkdir()
    (tmp_path / "Llama-2-7b-hf" / "config.json").write_text('{"model_type": "gpt2"}')
    found = hub.resolve("./Llama-2-7b-hf", str(tmp_path / "run.yaml"))
    assert found is not None
    assert found.config == {"model_type": "gpt2"}


def test_a_folder_s_model_is_called_as_the_folder_is() -> None:
    found = models.named("models/Qwen/Qwen2.5-7B-Instruct")
    assert found is not None
    assert found.name == "Qwen/Qwen2.5-7B-Instruct"  # and not Qwen/Qwen2-7B-Instruct, which has the same config
