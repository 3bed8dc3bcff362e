"""The action's comment: posted, updated, or put where a fork's pull request may write. The step runs as bash runs it,
with a program in the place of GitHub's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

STEP = yaml.safe_load((Path(__file__).parents[2] / "action.yml").read_text(encoding="utf-8"))["runs"]["steps"][1]

GH = """#!/bin/sh
echo "$@" >> {said}
case "$*" in
  *--paginate*) {listing} ;;
  *) {writing} ;;
esac
"""
MEMLINT = """#!/bin/sh
echo "$@" >> {called}
for word; do case "$word" in markdown=*) {writing} "${{word#markdown=}}" ;; esac; done
exit {code}
"""


def played(
    tmp_path: Path, listing: str = ":", writing: str = ":", made: str = "echo hello >", code: int = 0
) -> dict[str, object]:
    """What the step called, said and left."""
    said, called, summary = tmp_path / "gh.txt", tmp_path / "memlint.txt", tmp_path / "summary.md"
    programs = {
        tmp_path / "bin" / "gh": GH.format(said=said, listing=listing, writing=writing),
        tmp_path / "memlint" / "bin" / "memlint": MEMLINT.format(called=called, writing=made, code=code),
    }
    for path, text in programs.items():
        path.parent.mkdir(parents=True)
        path.write_text(text)
        path.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(summary),
        "GITHUB_REPOSITORY": "some/where",
        "PULL_REQUEST": "7",
        "BASE": "abc",
        "INPUT_PATHS": "configs other",
        "INPUT_BUDGET": "16GB",
        "INPUT_CONFIG": "",
        "INPUT_ONLY_INCREASES": "true",
    }
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEP["run"]],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    return {
        "code": done.returncode,
        "output": done.stdout + done.stderr,
        "gh": said.read_text().splitlines() if said.exists() else [],
        "memlint": called.read_text().strip(),
        "summary": summary.read_text() if summary.exists() else "",
    }


def test_the_first_push_posts_a_comment(tmp_path: Path) -> None:
    found = played(tmp_path)
    comment = tmp_path / "memlint-comment.md"
    assert found["memlint"] == (
        f"diff --report markdown={comment} --budget 16GB --only-increases --path configs --path other abc...HEAD"
    )
    listed, written = found["gh"]  # type: ignore[misc]
    assert "--paginate repos/some/where/issues/7/comments" in listed
    assert written == f"api --method POST repos/some/where/issues/7/comments --field body=@{comment} --silent"
    assert (found["code"], found["summary"]) == (0, "")


@pytest.mark.parametrize(
    "listing", ["echo 41; echo 42", "seq 41 100000"], ids=["two comments", "more than a pipe holds"]
)
def test_the_next_push_updates_it(listing: str, tmp_path: Path) -> None:
    found = played(tmp_path, listing=listing)
    assert "--method PATCH repos/some/where/issues/comments/41 " in found["gh"][1]  # type: ignore[index]
    assert len(found["gh"]) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("refused", ["listing", "writing"])
def test_without_the_right_it_is_in_the_summary_and_says_so(refused: str, tmp_path: Path) -> None:
    found = played(tmp_path, **{refused: "exit 1"})  # type: ignore[arg-type]
    assert (found["code"], found["summary"]) == (0, "hello\n")
    assert "::notice title=memlint::no right to comment here" in str(found["output"])


@pytest.mark.parametrize("code", [1, 2])
def test_a_policy_that_fails_fails_the_step_and_is_told(code: int, tmp_path: Path) -> None:
    found = played(tmp_path, code=code)
    assert (found["code"], len(found["gh"])) == (code, 2)  # type: ignore[arg-type]


def test_without_a_comparison_nothing_is_posted(tmp_path: Path) -> None:
    found = played(tmp_path, made=":", code=2)
    assert (found["code"], found["gh"]) == (2, [])


def test_it_is_asked_for_and_only_on_pull_requests() -> None:
    assert "inputs.comment == 'true'" in STEP["if"]
    assert "github.event_name == 'pull_request'" in STEP["if"]
    assert "${{" not in STEP["run"]  # what an event carries reaches the shell by its environment alone
