"""A plain check without click: the same words, the same exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from memlint.cli.plain import understood

ROOT = Path(__file__).parents[2]
CONFIG = str(ROOT / "examples" / "uni3d_dp" / "uni3d+dp.yaml")
BY_CLICK = "import sys\nfrom memlint.cli.main import main\nmain(sys.argv[1:], prog_name='memlint')\n"
LAST = "import sys\nfrom memlint.cli.plain import main\ntry:\n    main()\nfinally:\n    print('click' in sys.modules)\n"


def said(arguments: list[str], cwd: Path, program: tuple[str, ...] = ("-m", "memlint")) -> tuple[int, str, str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *program, *arguments], cwd=cwd, capture_output=True, text=True, env=environment
    )
    kept = [line for line in done.stdout.splitlines() if " in 1 file" not in line and '"seconds"' not in line]
    return done.returncode, "\n".join(kept), done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["check", CONFIG, "--budget", "16GB"], id="a budget"),
        pytest.param(
            ["check", CONFIG, "--budget=1GB", "--isolated", "-o", "dataloader.batch_size=4"], id="an override"
        ),
        pytest.param(["check", CONFIG, "--gpu", "no such card"], id="a card that does not exist"),
        pytest.param(["check", CONFIG, "--output-format", "json", "-q"], id="JSON"),
        pytest.param(["check", CONFIG, "--color", "always", "--exit-zero", "-v"], id="colours"),
        pytest.param(["check", "missing.yaml"], id="a file that does not exist"),
        pytest.param(["check", CONFIG, "--bugdet", "16GB"], id="a misspelled option"),
    ],
)
def test_it_says_what_click_says(arguments: list[str], tmp_path: Path) -> None:
    assert said(arguments, tmp_path) == said(arguments, tmp_path, ("-c", BY_CLICK))


def test_a_plain_check_does_not_load_click(tmp_path: Path) -> None:
    code, text, _ = said(["check", CONFIG], tmp_path, ("-c", LAST))
    assert (code, text.splitlines()[-1]) == (0, "False")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param(["check"], ((".",), {}), id="this folder"),
        pytest.param(["check", "a", "b", "--gpu=t4"], (("a", "b"), {"gpu": "t4"}), id="an option with an equals sign"),
        pytest.param(["check", "-o", "a=1", "--override=b=2"], ((".",), {"override": ("a=1", "b=2")}), id="overrides"),
        pytest.param(
            ["check", "--budget", "1GB", "--budget", "2GB"], ((".",), {"budget": "2GB"}), id="the last one counts"
        ),
        pytest.param([], None, id="nothing"),
        pytest.param(["explain", "a"], None, id="another command"),
        pytest.param(["check", "--help"], None, id="help"),
        pytest.param(["check", "-"], None, id="standard input"),
        pytest.param(["check", "--", "-a"], None, id="the end of options"),
        pytest.param(["check", "--budget"], None, id="an option without its value"),
        pytest.param(["check", "--budget", "-1"], None, id="a value like an option"),
        pytest.param(["check", "--output-format", "xml"], None, id="a choice that is none"),
        pytest.param(["check", "--exit-zero=1"], None, id="a flag with a value"),
        pytest.param(["check", "-qv"], None, id="flags together"),
        pytest.param(["check", "--select", "MEM2"], None, id="an option that click takes apart"),
    ],
)
def test_only_what_is_beyond_doubt_is_understood(
    arguments: list[str], expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("_MEMLINT_COMPLETE", raising=False)
    monkeypatch.setattr(os, "name", "posix")
    assert understood(arguments) == expected


def test_completion_is_left_to_click(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_MEMLINT_COMPLETE", "bash_complete")
    assert understood(["check"]) is None


def test_it_ends_at_once_and_yet_others_are_told(tmp_path: Path) -> None:
    told = "import atexit\nfrom memlint.cli.plain import program\natexit.register(print, 'told')\nprogram()\n"
    code, text, error = said(["check", CONFIG, "--budget", "1GB"], tmp_path, ("-c", told))
    assert (code, text.splitlines()[-1], error) == (1, "told", "")
