"""Trees of a repository as they were, read without running anything that the repository names."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from memlint.revisions import Repository, RevisionError, extracted
from tests.comparison.conftest import LORA, SFT, Repo

Command = Callable[..., tuple[int, str]]


def files_of(folder: str) -> dict[str, bytes | str]:
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in Path(folder).rglob("*")
        if path.is_symlink() or path.is_file()
    }


def test_a_tree_is_what_git_archive_has(repo: Repo, tmp_path: Path) -> None:
    (repo.root / "configs" / "link.yml").symlink_to("lora.yml")
    commit = repo.commit({"deep/er/a b\té.yaml": "a: 1\r\nb: 2\n", "run.sh": "#!/bin/sh\n"})
    out = tmp_path / "archive"
    out.mkdir()
    archive = subprocess.run(["git", "archive", commit], cwd=repo.root, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(out)], input=archive, check=True)
    with extracted(Repository.of("."), commit) as folder:
        assert files_of(folder) == files_of(str(out))
        assert os.path.isdir(os.path.join(folder, ".git"))
    assert not os.path.exists(folder)


def test_nothing_that_a_repository_names_is_run(repo: Repo, run: Command, tmp_path: Path) -> None:
    """Each program of its settings, and each hook, leaves a trace; attributes ask for all of them."""
    trace = tmp_path / "trace"
    spy = tmp_path / "spy.sh"
    spy.write_text(f'#!/bin/sh\necho "$0 $@" >> {trace}\ncat\n')
    spy.chmod(0o755)
    for name in ("reference-transaction", "post-checkout", "fsmonitor-watchman", "post-index-change", "pre-commit"):
        hook = repo.root / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(spy.read_text())
        hook.chmod(0o755)
    commit = repo.commit({".gitattributes": "* filter=spy diff=spy export-subst ident\n", "a.yml": LORA})
    repo.write({"configs/lora.yml": LORA.replace("micro_batch_size: 8", "micro_batch_size: 4")})
    for key in [
        "core.fsmonitor",
        "core.pager",
        "core.editor",
        "core.sshCommand",
        "core.askPass",
        "core.alternateRefsCommand",
        "filter.spy.clean",
        "filter.spy.smudge",
        "filter.spy.process",
        "diff.spy.textconv",
        "diff.spy.command",
        "diff.external",
        "gpg.program",
        "pager.diff",
        "remote.origin.uploadpack",
        "credential.helper",
    ]:
        repo_config(repo, key, str(spy))
    repo_config(repo, "core.hooksPath", str(repo.root / ".git" / "hooks"))
    repo_config(repo, "remote.origin.url", f"ext::{spy}")
    repo_config(repo, "remote.origin.promisor", "true")
    trace.unlink(missing_ok=True)
    assert "1 of 3 runs changed" in run("diff", "HEAD")[1]
    assert "0 of 3 runs changed" in run("diff", f"{commit}..HEAD")[1]
    assert run("check", "--changed-since", "HEAD", "--exit-zero")[0] == 0
    assert not trace.exists(), trace.read_text()
    subprocess.run(["git", "status"], cwd=repo.root, capture_output=True)  # as careless as anybody
    assert trace.exists()


def repo_config(repo: Repo, key: str, value: str) -> None:
    with open(repo.root / ".git" / "config", "a", encoding="utf-8") as file:
        section, _, name = key.rpartition(".")
        head, _, rest = section.partition(".")
        title = f'{head} "{rest}"' if rest else head
        file.write(f"[{title}]\n\t{name} = {value}\n")


def test_a_missing_object_of_a_partial_clone_is_said_and_not_fetched(repo: Repo, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    spy = tmp_path / "spy.sh"
    spy.write_text(f"#!/bin/sh\necho called >> {trace}\n")
    spy.chmod(0o755)
    commit = repo.git("rev-parse", "HEAD")
    blob = repo.git("rev-parse", "HEAD:configs/lora.yml")
    (repo.root / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    repo_config(repo, "core.repositoryFormatVersion", "1")
    repo_config(repo, "extensions.partialClone", "origin")
    repo_config(repo, "remote.origin.url", f"ext::{spy}")
    repo_config(repo, "remote.origin.promisor", "true")
    repo_config(repo, "protocol.ext.allow", "always")
    with pytest.raises(RevisionError), extracted(Repository.of("."), commit):
        pass
    assert not trace.exists()


def tree_with(repo: Repo, name: str, content: str = "a: 1\n", mode: str = "100644") -> str:
    """A commit of a tree that git itself would not make, with one file."""
    blob = subprocess.run(
        ["git", "hash-object", "-w", "--stdin"],
        cwd=repo.root,
        input=content,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    entry = mode.encode() + b" " + name.encode() + b"\0" + bytes.fromhex(blob)
    tree = subprocess.run(
        ["git", "hash-object", "-w", "-t", "tree", "--literally", "--stdin"],
        cwd=repo.root,
        input=entry,
        capture_output=True,
        check=True,
    ).stdout.decode()
    return repo.git("commit-tree", tree.strip(), "-m", "x")


@pytest.mark.parametrize("name", ["../out.yaml", "..", ".git", ".GIT", "a\\..\\b.yaml", "c:x.yaml", "/abs.yaml"])
def test_no_file_leaves_its_folder(name: str, repo: Repo) -> None:
    commit = tree_with(repo, name)
    with extracted(Repository.of("."), commit) as folder:
        assert files_of(folder) == {}
        assert os.listdir(os.path.join(folder, ".git")) == []
        assert not os.path.exists(os.path.join(os.path.dirname(folder), "out.yaml"))


def test_no_file_is_written_through_a_link(repo: Repo, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (repo.root / "configs" / "sft.yaml").unlink()
    (repo.root / "out").symlink_to(outside)
    commit = repo.commit({"configs/lora.yml": LORA})
    with extracted(Repository.of("."), commit) as folder:
        assert os.path.islink(os.path.join(folder, "out"))
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("name", ["", "--help", "-x", "--output=x", "a\nb", "nosuch", "HEAD:configs", "x" * 300])
def test_what_is_no_commit_is_refused(name: str, repo: Repo) -> None:
    with pytest.raises(RevisionError):
        Repository.of(".").commit(name)


def test_histories_that_do_not_meet_are_said(repo: Repo, run: Command) -> None:
    repo.git("checkout", "-q", "--orphan", "other")
    repo.commit({"README.md": "# others\n"})
    code, said = run("diff", "main...other")
    assert code == 2
    assert "fetch-depth: 0" in said
    assert run("diff", "main..other")[0] == 0


def test_no_git_of_the_linted_tree_is_called(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = repo.root / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho fake\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join((str(fake.parent), ".", "bin", os.environ["PATH"])))
    assert len(Repository.of(".").commit("HEAD")) == 40
    monkeypatch.setenv("PATH", str(fake.parent))
    with pytest.raises(RevisionError, match="git is not installed"):
        Repository.of(".")


# -- check --changed-since


def changed(repo: Repo, since: str = "main") -> set[str]:
    repository = Repository.of(".")
    return {os.path.relpath(path, repo.root) for path in repository.changed_since(repository.commit(since))}


def test_changed_files_are_those_that_git_names(repo: Repo) -> None:
    repo.commit({"a.yml": "a: 1\r\n", "b.yml": "b: 1\n", "c.json": "{}"})
    assert changed(repo) == set()
    repo.write({"a.yml": "a: 2\n", "new.toml": "a = 1\n", "notes.bin": "x"})
    (repo.root / "c.json").unlink()
    assert changed(repo) == {"a.yml", "c.json", "new.toml"}


def test_only_runs_that_read_a_changed_file_are_checked(repo: Repo, run: Command) -> None:
    words = ("check", "--changed-since", "main", "--exit-zero", "-q", "--output-format", "concise")
    assert run(*words) == (0, "")
    repo.write({"configs/sft.yaml": SFT + "# x\n"})
    code, said = run(*words)
    assert code == 0
    assert {line.partition(":")[0] for line in said.splitlines()} == {"configs/sft.yaml"}


@pytest.mark.parametrize(
    ("name", "text", "checked"),
    [
        pytest.param("requirements.txt", "torch==2.4.0\n", {"lora.yml", "sft.yaml"}, id="pins above"),
        pytest.param("configs/memlint.toml", "preview = true\n", {"lora.yml", "sft.yaml"}, id="settings above"),
        pytest.param("other/requirements.txt", "torch==2.4.0\n", set(), id="pins elsewhere"),
        pytest.param("README.md", "# other\n", set(), id="nothing that a run reads"),
    ],
)
def test_what_a_run_is_made_of_counts(name: str, text: str, checked: set[str], repo: Repo, run: Command) -> None:
    repo.write({name: text})
    _, said = run("check", "--changed-since", "main", "--exit-zero", "-q", "--output-format", "concise")
    assert {line.partition(":")[0].partition("/")[2] for line in said.splitlines()} == checked


def test_a_companion_counts(repo: Repo, run: Command) -> None:
    stage = '{"zero_optimization": {"stage": %d}, "train_micro_batch_size_per_gpu": "auto"}'
    repo.commit({"configs/ds.json": stage % 2, "configs/sft.yaml": SFT + "deepspeed: configs/ds.json\n"})
    repo.write({"configs/ds.json": stage % 3})
    _, said = run("check", "--changed-since", "main", "--exit-zero", "-q", "--output-format", "json")
    assert '"path": "configs/sft.yaml"' in said
    assert '"path": "configs/lora.yml"' not in said


def test_a_revision_that_is_none_is_said(repo: Repo, run: Command) -> None:
    code, said = run("check", "--changed-since", "nosuch")
    assert code == 2
    assert "--changed-since: 'nosuch' is " in said
