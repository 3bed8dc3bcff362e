"""`check --fix` keeps its word: what it writes is read by the format's own parser, keeps each comment, gives the peak
that the last fix promised, and leaves nothing for a second run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import memlint
from memlint.cli.main import main
from memlint.fixing import Fixed, fix_paths, permission
from memlint.rules_registry import known
from memlint.settings import Resolver
from tests.fixes.test_promises import CASES, SPREAD, WRITTEN, read, readable, write
from tests.test_rules import EXAMPLES

pytestmark = pytest.mark.usefixtures("answers_kept")

_COMMENT = re.compile(r"(?:^|\s)(#[^\r\n]*)", re.MULTILINE)
# One of each system, format and family.
PLAIN = (
    "uni3d_dp/uni3d+dp_upstream_default.yaml",
    "language_models/full_llamafactory.yaml",
    "language_models/lora_axolotl.yml",
    "language_models/dpo_trl.yaml",
    "language_models/torchtitan_llama3_8b.toml",
    "dit3d/config_before.py",
    "lag_mode/train_lag_mode.sh",
)

HALF = 0.5  # of the peak: every lever is asked for


def shares(path: Path, share: float) -> str:
    """A budget that is a share of the largest peak of a file's runs."""
    report = memlint.check(str(path), isolated=True, select=["MEM003"])
    peaks = [run.estimate.device_bytes for run in report.runs if run.estimate is not None]
    return f"{int(share * max(peaks)) >> 20}MiB" if peaks else "8GiB"


def invoke(*arguments: str) -> Result:
    result = CliRunner().invoke(main, ["check", "--isolated", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def fixed(path: Path, budget: str, unsafe: bool = True, named: tuple[str, ...] = ()) -> Fixed:
    resolver = Resolver({"budget": budget}, "", True)
    return fix_paths([str(path)], resolver, permission(unsafe, ("ALL", *named) if named else (), (), known()))


def texts_below(folder: Path) -> dict[str, bytes]:
    """All files but what Python keeps of the examples' models once another test has imported them."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    return {str(path): path.read_bytes() for path in found}


def hold(path: Path, budget: str, *named: str) -> int:
    """Fix a file, look at all that came of it, and fix it once more. The number of fixes."""
    before = texts_below(path.parent)
    comments = {name: _COMMENT.findall(text.decode()) for name, text in before.items()}
    planned = fixed(path, budget, True, named)
    fixable = [f"--fixable={word}" for word in ("ALL", *named)] if named else []
    arguments = [str(path), "--budget", budget, "--unsafe-fixes", *fixable]
    told = invoke(*arguments, "--diff")
    assert texts_below(path.parent) == before, "--diff has written"
    assert told.exit_code == (1 if planned.texts else 0), told.output
    assert invoke(*arguments, "--fix-only").exit_code == 0
    after = texts_below(path.parent)
    assert {name for name in before if before[name] != after[name]} == {str(name) for name in planned.texts}
    assert set(after) == set(before), "files were left behind"
    for name, (_, text) in planned.texts.items():
        assert read(name).removeprefix("\ufeff") == text
        assert readable(Path(name), read(name)) == ""
        assert _COMMENT.findall(read(name)) == comments[name], "a comment was lost"
        was = before[name]
        assert after[name].endswith(b"\n") == was.endswith(b"\n")
        if b"\r\n" in was:
            assert after[name].count(b"\r\n") == after[name].count(b"\n")
    peaks = {(done.path, done.run): done.fix.device_bytes_after for done in planned.applied}
    again = memlint.check(str(path), isolated=True, budget=budget)
    known_runs = {(run.path, run.run): run for run in again.runs}
    for key, peak in peaks.items():
        estimate = known_runs[key].estimate
        assert peak is None or (estimate is not None and estimate.device_bytes == peak)
    assert invoke(*arguments, "--fix-only").exit_code == 0
    assert texts_below(path.parent) == after, "a second run has changed something"
    return len(planned.applied)


def placed(name: str, folder: Path) -> Path:
    start, files = WRITTEN[name]
    (folder / ".git").mkdir()
    for file, text in files.items():
        write(str(folder / file), text)
    return folder / start


@pytest.mark.parametrize("name", WRITTEN)
def test_families_of_many_formats(name: str, tmp_path: Path) -> None:
    path = placed(name, tmp_path)
    assert hold(path, shares(path, HALF), "MEM101", "MEM201") > 0


@pytest.mark.parametrize("config", PLAIN)
def test_examples(config: str, tmp_path: Path) -> None:
    shutil.copytree((EXAMPLES / config).parent, tmp_path / "config")
    (tmp_path / ".git").mkdir()
    path = tmp_path / "config" / Path(config).name
    hold(path, shares(path, HALF))


@pytest.mark.parametrize("config", SPREAD)
def test_cases_of_accuracy(config: str, tmp_path: Path) -> None:
    shutil.copytree((CASES / config).parent, tmp_path / "case")
    path = tmp_path / "case" / Path(config).name
    hold(path, shares(path, HALF))


WINDOWS = "llama-factory, Windows line ends and none at the last line"


def test_a_byte_order_mark_stays(tmp_path: Path) -> None:
    path = placed(WINDOWS, tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert hold(path, shares(path, HALF)) > 0
    assert path.read_bytes().startswith(b"\xef\xbb\xbfmodel_name")
