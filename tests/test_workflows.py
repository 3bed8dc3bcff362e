"""The workflows say what the project says: its lanes and Pythons, least rights, actions pinned by commit."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.libraries.__main__ import LIBRARIES

ROOT = Path(__file__).parent.parent
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((ROOT / ".github/workflows").glob("*.yml"))}
# YAML 1.1 takes the key `on` for a truth value.
ON = True


def steps(workflow: dict[Any, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS.values(), ids=WORKFLOWS)
def test_each_has_least_rights_bounded_time_and_pinned_actions(workflow: dict[Any, Any]) -> None:
    assert workflow["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] <= 120 for job in workflow["jobs"].values())
    for step in steps(workflow):
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"])
        if "actions/checkout" in step.get("uses", ""):
            assert step["with"] == {"persist-credentials": False}
        if "run" in step:
            # What an event carries (a branch's name) reaches a shell by its environment alone.
            assert not re.search(r"\$\{\{\s*(github|inputs)\.", step["run"])
            assert subprocess.run(["bash", "-n"], input=step["run"], text=True).returncode == 0


def test_pull_requests_are_tried_with_the_rights_of_a_reader() -> None:
    assert "pull_request" in WORKFLOWS["ci"][ON]
    assert not any("pull_request_target" in workflow[ON] for workflow in WORKFLOWS.values())


def test_ci_runs_the_readmes_command_on_every_python_that_is_claimed() -> None:
    claimed = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    quick = WORKFLOWS["ci"]["jobs"]["quick"]
    assert quick["strategy"]["matrix"]["python"] == claimed
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    command = re.search(r"bin/python (-m pytest .*)", readme.partition("<!-- tests -->")[2])
    assert command is not None
    assert quick["steps"][-1]["run"] == "python " + command.group(1)


def test_coverage_has_a_gate() -> None:
    measured, gate = (step["run"] for step in WORKFLOWS["ci"]["jobs"]["coverage"]["steps"][-2:])
    assert measured == WORKFLOWS["ci"]["jobs"]["quick"]["steps"][-1]["run"] + " --cov --cov-report="
    assert "--fail-under=90" in gate


def test_every_library_is_tried_every_week() -> None:
    workflow = WORKFLOWS["libraries"]
    assert workflow["jobs"]["library"]["strategy"]["matrix"]["library"] == list(LIBRARIES)
    assert "schedule" in workflow[ON]
    for name in LIBRARIES:
        assert (ROOT / "tests" / "libraries" / f"with_{name}.py").is_file()


def test_only_publishing_and_attesting_may_ask_for_an_identity() -> None:
    asking = {
        (name, job)
        for name, workflow in WORKFLOWS.items()
        for job, said in workflow["jobs"].items()
        if "id-token" in said.get("permissions", {})
    }
    assert asking == {("release", "attest"), ("release", "publish")}
