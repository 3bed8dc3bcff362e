"""One config.json from the hub: asked of a server on this machine, and kept where checks look for it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from memlint.api import check as api_check
from memlint.cli.main import main
from memlint.data import download, hub
from memlint.data.download import NotFetched, add
from memlint.data.hub import Resolved, resolve

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "torch_dtype": "bfloat16",
}
TEXT = json.dumps(CONFIG)
RUN = """\
base_model: somebody/tiny
datasets: [{path: x, type: alpaca}]
sequence_len: 128
micro_batch_size: 1
bf16: true
"""

Answer = tuple[int, dict[str, str], bytes]


class Server(ThreadingHTTPServer):
    """Answers by path, and keeps (path, Authorization) of what it was asked."""

    def __init__(self, answers: Callable[[str], Answer]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = answers
        self.asked: list[tuple[str, str]] = []

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that leaves in the middle of a file is what some tests are about."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Authorization", "")))
        status, headers, content = self.server.answers(self.path)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Caches of its own, no token, and no way to the real hub."""
    for variable in ("HF_TOKEN", "HF_HUB_OFFLINE", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(variable.upper(), raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[str], Answer]], Server]]:
    servers: list[Server] = []

    def start(answers: Callable[[str], Answer]) -> Server:
        server = Server(answers)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


Serve = Callable[[Callable[[str], Answer]], Server]


def always(status: int = 200, content: str = TEXT, **headers: str) -> Callable[[str], Answer]:
    return lambda path: (status, {name.replace("_", "-"): value for name, value in headers.items()}, content.encode())


# -- what is fetched, and where it is kept


def test_what_was_added_describes_the_model_of_later_checks(serve: Serve, home: Path) -> None:
    (home / "run.yaml").write_text(RUN)
    (unknown,) = api_check("run.yaml", isolated=True).runs
    assert unknown.estimate is None
    server = serve(always(X_Repo_Commit="abc123"))
    result = CliRunner().invoke(main, ("models", "add", "somebody/tiny"))
    path = home / "cache" / "memlint" / "models" / "somebody--tiny" / "config.json"
    assert result.output == f"somebody/tiny at abc123: llama, kept in {path}\n"
    assert server.asked == [("/somebody/tiny/resolve/main/config.json", "")]
    assert json.loads(path.read_text()) == CONFIG
    assert resolve("Somebody/Tiny") == Resolved(CONFIG, "memlint models add")
    (known,) = api_check("run.yaml", isolated=True).runs
    assert known.estimate is not None
    assert len(server.asked) == 1, "a check asked the network"


def test_the_message_of_an_unknown_model_names_the_command_that_makes_it_known(serve: Serve, home: Path) -> None:
    (home / "run.yaml").write_text(RUN)
    (run,) = api_check("run.yaml", isolated=True).runs
    (message,) = [finding.message for finding in run.findings if finding.code == "MEM007"]
    command = message[message.index("`memlint models add") + 1 :].partition("`")[0].split()[1:]
    serve(always())
    assert CliRunner().invoke(main, command).exit_code == 0
    (run,) = api_check("run.yaml", isolated=True).runs
    assert run.estimate is not None


def test_what_was_added_goes_before_the_catalogue_and_is_listed(serve: Serve) -> None:
    serve(always())
    add("openai-community/gpt2")
    assert resolve("openai-community/gpt2") == Resolved(CONFIG, "memlint models add")
    add("somebody/tiny")
    listed = CliRunner().invoke(main, ("models", "somebody/tiny")).output.splitlines()
    assert listed[1].split() == ["somebody/tiny", "llama", "-", "-", "memlint", "models", "add"]


def test_a_revision_is_one_part_of_the_address(serve: Serve) -> None:
    server = serve(always())
    add("somebody/tiny", "refs/pr/7")
    assert server.asked == [("/somebody/tiny/resolve/refs%2Fpr%2F7/config.json", "")]


@pytest.mark.parametrize("name", ["", "a/b/c", "../x", "a/..", "a b", "/etc/passwd", "a/b?c", "https://x/y"])
def test_what_is_no_id_is_not_asked_for(name: str, serve: Serve) -> None:
    server = serve(always())
    with pytest.raises(NotFetched, match="is no id of a model"):
        add(name)
    assert server.asked == []


def test_offline_means_offline(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(always())
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(NotFetched, match="HF_HUB_OFFLINE is set"):
        add("somebody/tiny")
    assert server.asked == []


# -- what is refused, with nothing kept


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        pytest.param(
            always(401, "no"), "401: somebody/tiny is gated, private or not there, and HF_TOKEN is not set", id="401"
        ),
        pytest.param(always(404, "no"), "there is no somebody/tiny, no revision 'main' of it", id="404"),
        pytest.param(always(500, "no"), "the server answers 500", id="500"),
        pytest.param(always(content="<html>"), "not JSON", id="a page"),
        pytest.param(always(content="[]"), "holds a list", id="a list"),
        pytest.param(always(content="{}"), "names no model_type", id="no model"),
        pytest.param(always(content=" " * (hub.MAX_BYTES + 1)), "larger than 1 MiB", id="a file without end"),
        pytest.param(
            always(302, "", Location="file:///etc/passwd"), "the server answers 302", id="a file of this machine"
        ),
        pytest.param(always(302, "", Location="/again"), "", id="redirected without end"),
    ],
)
def test_what_is_no_config_is_not_kept(answers: Callable[[str], Answer], why: str, serve: Serve, home: Path) -> None:
    serve(answers)
    result = CliRunner().invoke(main, ("models", "add", "somebody/tiny"))
    assert result.exit_code == 2
    assert why in result.stderr
    assert not (home / "cache").exists()


def test_a_config_that_was_kept_outlives_a_failure(serve: Serve) -> None:
    serve(always())
    kept = Path(add("somebody/tiny").path)
    serve(always(content="{"))
    with pytest.raises(NotFetched):
        add("somebody/tiny")
    assert kept.read_text() == TEXT
    assert os.listdir(kept.parent) == ["config.json"]


def test_a_server_that_is_not_there_is_said_to_be_not_there() -> None:
    with pytest.raises(NotFetched, match="Connection refused"):
        add("somebody/tiny")


def test_a_server_that_falls_silent_is_left(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "SILENCE_SECONDS", 0.05)
    goes_on = threading.Event()

    def silent(path: str) -> Answer:
        goes_on.wait(10)
        return 200, {}, TEXT.encode()

    serve(silent)
    with pytest.raises(NotFetched, match="timed out"):
        add("somebody/tiny")
    goes_on.set()


def test_a_server_that_drips_is_left(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "TOTAL_SECONDS", -1.0)
    serve(always())
    with pytest.raises(NotFetched, match="not there within"):
        add("somebody/tiny")


@pytest.mark.parametrize("endpoint", ["file:///etc", "huggingface.co", "ftp://x", "https://"])
def test_an_endpoint_is_a_server(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(NotFetched, match="HF_ENDPOINT"):
        add("somebody/tiny")


def test_a_folder_that_cannot_be_written_is_said(serve: Serve, home: Path) -> None:
    serve(always())
    (home / "cache").write_text("a file where the folder should be")
    with pytest.raises(NotFetched, match="not written"):
        add("somebody/tiny")


# -- the token


def test_a_token_is_sent_to_the_hub_and_not_to_where_it_redirects(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    other = serve(always())
    first = serve(always(307, "", Location=f"{other.address}/elsewhere"))
    add("somebody/tiny")
    assert first.asked == [("/somebody/tiny/resolve/main/config.json", "Bearer hf_secret")]
    assert other.asked == [("/elsewhere", "")]


def test_a_token_follows_a_model_that_was_renamed(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    moved = "/somebody/small/resolve/main/config.json"
    server = serve(lambda path: (200, {}, TEXT.encode()) if path == moved else (307, {"Location": moved}, b""))
    add("somebody/tiny")
    assert [token for _, token in server.asked] == ["Bearer hf_secret", "Bearer hf_secret"]


def test_an_address_that_anybody_can_listen_to_is_not_gone_to_from_one_that_nobody_can() -> None:
    request = download.urllib.request.Request("https://huggingface.co/a")
    with pytest.raises(NotFetched, match="is redirected to http:"):
        download._Redirects().redirect_request(request, io.BytesIO(), 302, "", HTTPMessage(), "http://huggingface.co/a")


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        pytest.param("https://huggingface.co/a", True, id="the hub"),
        pytest.param("http://127.0.0.1:8000/a", True, id="this machine"),
        pytest.param("http://mirror.example/a", False, id="a mirror that anybody can listen to"),
    ],
)
def test_a_token_goes_where_nobody_listens(address: str, kept: bool) -> None:
    assert download._keeps_secrets(address) is kept


# -- what a check loads


def test_a_check_imports_no_network() -> None:
    asks = "from memlint.data import hub; hub.resolve('nobody/nothing')"
    script = f"import sys; {asks}; print('urllib.request' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# -- --model-config


def test_model_config_describes_the_model_whatever_the_config_calls_it(home: Path) -> None:
    (home / "tiny.json").write_text(TEXT)
    (home / "run.yaml").write_text(RUN)
    (home / "known.yaml").write_text(RUN.replace("somebody/tiny", "openai-community/gpt2"))
    (home / "nameless.yaml").write_text(RUN.replace("base_model: somebody/tiny\n", ""))
    counts = set()
    for name in ("run.yaml", "known.yaml", "nameless.yaml"):
        (run,) = api_check(name, isolated=True, model_config="tiny.json").runs
        assert run.estimate is not None, name
        counts.add(run.estimate.allocated_bytes)
    assert len(counts) == 1
    assert hub.stated() is None


@pytest.mark.parametrize(
    ("contents", "why"),
    [
        pytest.param(None, "No such file", id="a file that is not there"),
        pytest.param("{}", "names no model_type", id="what describes no model"),
    ],
)
def test_a_model_config_that_cannot_be_used_ends_the_program(contents: str | None, why: str, home: Path) -> None:
    if contents is not None:
        (home / "bad.json").write_text(contents)
    (home / "run.yaml").write_text(RUN)
    result = CliRunner().invoke(main, ("check", "run.yaml", "--isolated", "--model-config", "bad.json"))
    assert result.exit_code == 2
    assert why in result.stderr
    assert "--model-config" in result.stderr


def test_a_settings_file_of_the_tree_names_a_config_of_the_tree(home: Path) -> None:
    tree = home / "tree"
    (tree / ".git").mkdir(parents=True)
    (tree / "models").mkdir()
    (tree / "run.yaml").write_text(RUN)
    (home / "tiny.json").write_text(TEXT)
    (tree / "models" / "tiny.json").write_text(TEXT)
    (tree / "memlint.toml").write_text('model-config = "models/tiny.json"\n')
    (run,) = api_check("tree").runs
    assert run.estimate is not None
    (tree / "memlint.toml").write_text('model-config = "../tiny.json"\n')
    report = api_check("tree")
    assert not report.runs
    assert "which is not in the tree" in report.errors[0][1]
