"""Numbers that scripts have small programs count, held against a real shell."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from memlint.documents.load import load

HELD = "G=0,1,2,3\nA=512\nB=1024\n"
COUNTS = [
    "$(echo \"${G}\" | awk -F, '{print NF}')",
    "$(echo $G | awk -F',' '{print NF}')",
    "$(echo $G | awk -F ',' '{ print NF; }')",
    "$(echo $G | tr ',' '\\n' | wc -l)",
    "$(tr ',' '\\n' <<< $G | wc -l)",
    "$(echo $G | sed 's/,/\\n/g' | wc -l)",
    "$(echo $G | tr ',' ' ' | wc -w)",
    "`echo $G | tr ',' ' ' | wc -w`",
    "$(echo a b $A | wc -w)",
    "$(echo -n $G | tr -cd ',' | wc -c)",
    "$(($(echo $G | grep -o ',' | wc -l) + 1))",
    "$(echo $G | grep -o '[0-9]' | wc -l)",
    "$(awk -F, '{print NF}' <<< \"$G\")",
    "$(expr $A + $B + 1000)",
    "$(expr $B - $A - 12 / 5)",
    "$(expr $A \\* 2 / 3 % 100)",
    '$(echo "$A * $B" | bc)',
]


def count_of(text: str, tmp_path: Path) -> object:
    (tmp_path / "run.sh").write_text(f"{HELD}python train.py --count {text}\n", encoding="utf-8")
    (command,) = load(str(tmp_path / "run.sh")).commands
    node = command.options.get("count")
    assert node is not None
    return node.value


@pytest.mark.parametrize("text", COUNTS)
def test_a_count_is_what_bash_prints(text: str, tmp_path: Path) -> None:
    if "bc)" in text and shutil.which("bc") is None:
        assert count_of(text, tmp_path) == str(512 * 1024)
        return
    printed = subprocess.run(["bash", "-c", f"{HELD}echo {text}"], capture_output=True, text=True, check=True).stdout
    assert str(count_of(text, tmp_path)) == printed.strip()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("$(nvidia-smi -L | wc -l)", id="what a machine has"),
        pytest.param("$(echo $NOBODY | tr ',' '\\n' | wc -l)", id="a variable that nobody sets"),
        pytest.param('$(echo "scale=2; $A / 3" | bc)', id="a fraction"),
        pytest.param("$(expr $A / 0)", id="a division by nothing"),
        pytest.param("$(echo $G | awk -F, '{print $1}')", id="a field"),
        pytest.param("$(echo $G; echo $G | wc -w)", id="two commands"),
    ],
)
def test_other_outputs_of_commands_are_not_known(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"{HELD}python train.py --count {text}\n", encoding="utf-8")
    (command,) = load(str(tmp_path / "run.sh")).commands
    node = command.options.get("count")
    assert node is not None
    assert node.is_unresolved
