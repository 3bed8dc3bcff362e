"""Scripts that find out where they lie: bash prints the absolute path of the folder that memlint calls ``.``."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from memlint.documents.load import load
from memlint.documents.node import Document

FOLDERS = {
    'D=$(cd "$(dirname "$0")" && pwd)': ".",
    "D=$(cd $(dirname $0); pwd)": ".",
    'D="$( cd "$( dirname "${BASH_SOURCE[0]}" )" >/dev/null 2>&1 && pwd )"': ".",
    'D=$(cd "$(dirname "${BASH_SOURCE[0]:-$0}")/.." && pwd -P)': "..",
    'D=$(dirname "$0")': ".",
    'D=$(dirname "$(readlink -f "$0")")': ".",
    'D=$(dirname "$(dirname "$(realpath "$0")")")': "..",
    'D=$(realpath "$(dirname "$0")/../configs")': "../configs",
    'D="$(cd "${BASH_SOURCE%/*}" && pwd)"': ".",
    'S=$(cd "$(dirname "$0")" && pwd)\nD=$(dirname "$S")': "..",
    'S=$(dirname "$0")\nD=$(cd "${S}/.." &> /dev/null && builtin pwd)': "..",
    "D=`dirname $0`": ".",
}
UNKNOWN = (
    "D=$(pwd)",
    "D=$(git rev-parse --show-toplevel)",
    'D=$(cd "$HOME/$(dirname "$0")" && pwd)',
    'D=$(cd "$(dirname "$0")/$1" && pwd)',
    'D=$(dirname "$(which python)")',
    'D=$(cd "$(dirname "$0")" && ls)',
    "D=$(dirname $UNSET)",
)


def read(folder: Path, lines: str, rest: str) -> Document:
    path = folder / "repository" / "scripts" / "run.sh"
    path.parent.mkdir(parents=True, exist_ok=True)
    (folder / "repository" / ".git").mkdir(exist_ok=True)
    (folder / "repository" / "configs").mkdir(exist_ok=True)
    path.write_text(f"{lines}\n{rest}\n", encoding="utf-8")
    return load(str(path))


@pytest.mark.parametrize(("lines", "folder"), FOLDERS.items(), ids=FOLDERS)
def test_the_folder_of_a_script_is_the_one_that_bash_finds(lines: str, folder: str, tmp_path: Path) -> None:
    (command,) = read(tmp_path, lines, 'python train.py --folder "$D"').commands
    node = command.options.get("folder")
    assert node is not None
    assert node.value == folder
    script = tmp_path / "repository" / "scripts" / "run.sh"
    script.write_text(f'{lines}\nprintf %s "$D"\n', encoding="utf-8")
    printed = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert os.path.realpath(tmp_path / printed) == os.path.realpath(script.parent / folder)


@pytest.mark.parametrize("lines", UNKNOWN)
def test_what_is_no_folder_of_the_script_s_is_not_known(lines: str, tmp_path: Path) -> None:
    (command,) = read(tmp_path, lines, 'python train.py --folder "$D"').commands
    node = command.options.get("folder")
    assert node is not None
    assert node.is_unresolved
