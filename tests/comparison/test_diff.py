"""What a change costs: laws of every comparison, what is compared with what, and what is said of it."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from memlint.comparison import as_json, causes, sides, text
from memlint.comparison.model import CHANGED, Change, Comparison, Figure, Side, paired
from memlint.comparison.policy import exit_code, judge
from memlint.reports.full import Style
from memlint.settings import Resolver
from tests.comparison.conftest import LORA, SFT, Repo

pytestmark = pytest.mark.usefixtures("answers_kept")

Command = Callable[..., tuple[int, str]]
PHASES = (Phase.explicit, Phase.generate)  # to shrink what takes half a second each time takes minutes
ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "schemas" / "diff.schema.json").read_text(encoding="utf-8"))

# Line of the example -> other values that it may have.
LINES = {
    "micro_batch_size: 8": ("1", "4"),
    "sequence_len: 2048": ("512", "4096"),
    "lora_r: 16": ("64",),
    "optimizer: paged_adamw_8bit": ("adamw_torch",),
    "gradient_checkpointing: true": ("false",),
    "bf16: true": ("false",),
    "learning_rate: 0.0002": ("0.1",),
}
EDITS = st.fixed_dictionaries({}, optional={line: st.sampled_from(values) for line, values in LINES.items()})


def edited(edits: dict[str, str]) -> str:
    made = LORA
    for line, value in edits.items():
        made = made.replace(line, f"{line.partition(':')[0]}: {value}")
    return made


def compared(before: str, after: str, **options: Any) -> Comparison:
    with ExitStack() as stack:
        return causes.compare(sides.find((before, after), (".",), Resolver({"gpu": "a100-80gb", **options}), stack))


def reversed_of(figure: int | None) -> int | None:
    return None if figure is None else -figure


# -- laws


@settings(max_examples=5, phases=PHASES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(one=EDITS, other=EDITS)
def test_exchanged_sides_change_every_sign_and_nothing_else(
    one: dict[str, str], other: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "a.yml").write_text(edited(one), encoding="utf-8")
    (tmp_path / "b.yml").write_text(edited(other), encoding="utf-8")
    (there,) = compared(str(tmp_path / "a.yml"), str(tmp_path / "b.yml")).changes
    (back,) = compared(str(tmp_path / "b.yml"), str(tmp_path / "a.yml")).changes
    assert there.kind == back.kind
    assert there.delta_bytes == reversed_of(back.delta_bytes)
    assert there.components == {name: -size for name, size in back.components.items()}
    assert [(cause.key, cause.before, cause.after, cause.size_bytes) for cause in there.causes] == [
        (cause.key, cause.after, cause.before, reversed_of(cause.size_bytes)) for cause in back.causes
    ]
    assert there.rest_bytes == -back.rest_bytes
    assert sum(cause.size_bytes or 0 for cause in there.causes) + there.rest_bytes == (there.delta_bytes or 0)
    assert sum(there.components.values()) == there.delta_bytes


@settings(max_examples=3, phases=PHASES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=EDITS)
def test_a_tree_differs_in_nothing_from_itself(edits: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "configs"
    folder.mkdir(exist_ok=True)
    (folder / "a.yml").write_text(edited(edits), encoding="utf-8")
    (folder / "b.yaml").write_text(SFT, encoding="utf-8")
    found = compared(str(folder), str(folder))
    assert found.different == []
    assert {change.kind for change in found.changes} == {"same"}


@pytest.mark.parametrize("line", LINES)
def test_one_key_alone_is_the_whole_cause(line: str, tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text(LORA, encoding="utf-8")
    (tmp_path / "b.yml").write_text(edited({line: LINES[line][0]}), encoding="utf-8")
    (change,) = compared(str(tmp_path / "a.yml"), str(tmp_path / "b.yml")).changes
    if change.kind == CHANGED:
        (cause,) = change.causes
        assert (cause.key, cause.size_bytes, change.rest_bytes) == (line.partition(":")[0], change.delta_bytes, 0)
    else:
        assert line.startswith("learning_rate")


def test_a_changed_model_is_a_cause(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text(LORA, encoding="utf-8")
    (tmp_path / "b.yml").write_text(LORA.replace("Meta-Llama-3.1-8B", "Llama-2-7b-hf"), encoding="utf-8")
    (change,) = compared(str(tmp_path / "a.yml"), str(tmp_path / "b.yml")).changes
    assert [(cause.key, cause.size_bytes) for cause in change.causes] == [("base_model", change.delta_bytes)]


# -- what is compared with what


def test_a_branch_is_compared_from_where_it_parted(repo: Repo, run: Command) -> None:
    repo.git("checkout", "-q", "-b", "feature")
    repo.commit({"configs/lora.yml": edited({"micro_batch_size: 8": "4"})})
    repo.git("checkout", "-q", "main")
    repo.commit({"configs/sft.yaml": SFT.replace("train_batch_size: 4", "train_batch_size: 1")})
    code, said = run("diff", "main...feature")
    assert code == 0
    assert "1 of 2 runs changed" in said
    assert "configs/lora.yml" in said
    assert "sft.yaml" not in said
    _, said = run("diff", "main..feature")
    assert "2 of 2 runs changed" in said


def test_the_working_tree_is_compared_with_where_it_parted(repo: Repo, run: Command) -> None:
    repo.git("checkout", "-q", "-b", "feature")
    repo.write({"configs/sft.yaml": SFT.replace("train_batch_size: 4", "train_batch_size: 1"), "configs/new.yml": LORA})
    (repo.root / "configs" / "lora.yml").unlink()
    code, said = run("diff", "main")
    assert code == 0
    assert "1 of 3 runs changed, 1 added, 1 removed" in said


def test_a_path_is_compared_with_what_it_was(repo: Repo, run: Command) -> None:
    repo.write({"configs/sft.yaml": SFT + "# x\n", "configs/lora.yml": edited({"micro_batch_size: 8": "4"})})
    _, said = run("diff", "HEAD", "configs/lora.yml")
    assert "1 of 1 run changed" in said
    _, said = run("diff", "HEAD", "configs/sft.yaml")
    assert "0 of 1 run changed" in said
    _, said = run("diff", "HEAD", "--path", "configs/sft.yaml")
    assert "0 of 1 run changed" in said


def test_a_subfolder_compares_itself(repo: Repo, run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    repo.commit({"other/lora.yml": LORA})
    repo.write({"other/lora.yml": edited({"micro_batch_size: 8": "4"})})
    monkeypatch.chdir(repo.root / "configs")
    assert "0 of 2 runs changed" in run("diff", "HEAD")[1]
    monkeypatch.chdir(repo.root / "other")
    assert "other/lora.yml" in run("diff", "HEAD")[1]


def test_saved_reports_are_sides(repo: Repo, run: Command, tmp_path: Path) -> None:
    old, new = str(tmp_path / "old.json"), str(tmp_path / "new.json")
    run("check", "configs", "--output-format", "json", "--output-file", old)
    repo.write({"configs/lora.yml": edited({"micro_batch_size: 8": "4"})})
    run("check", "configs", "--output-format", "json", "--output-file", new)
    for after in (new, "configs"):
        code, said = run("diff", old, after)
        assert code == 0
        assert "1 of 2 runs changed" in said
        assert "micro_batch_size 8 -> 4" in said
    assert run("diff", old, old)[1].startswith(f"{old} and {old}: 0 of 2 runs changed")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(("nosuch",), "neither a file or folder nor a revision", id="a name that is nothing"),
        pytest.param(("configs",), "is one side", id="one path"),
        pytest.param(("configs", "configs/sft.yaml"), "a folder is compared with a folder", id="a folder and a file"),
        pytest.param(("main..nosuch",), "neither a file or folder nor a revision", id="half a range"),
        pytest.param(("main", "nosuch"), "neither a file or folder nor a revision", id="a revision and nothing"),
        pytest.param(("main", "configs", "--max-increase", "x"), "is not a size", id="a limit that is none"),
        pytest.param(("main", "--path", ".."), "is in no git repository", id="a path outside"),
    ],
)
def test_what_cannot_be_compared_is_said(words: tuple[str, ...], said: str, repo: Repo, run: Command) -> None:
    code, output = run("diff", *words)
    assert code == 2
    assert said in output


def test_a_damaged_report_is_said(repo: Repo, run: Command) -> None:
    repo.write({"old.json": '{"version": 1, "tool": {"name": "memlint"}, "files": [{}]}'})
    assert run("diff", "old.json", "configs") == (2, "Error: old.json: the report is damaged\n")
    repo.write({"old.json": '{"version": 9, "tool": {"name": "memlint"}, "files": []}'})
    assert "memlint reads version 1" in run("diff", "old.json", "configs")[1]


def test_what_has_no_estimate_is_counted(repo: Repo, run: Command) -> None:
    repo.write({"configs/lora.yml": LORA.replace("NousResearch/Meta-Llama-3.1-8B", "nobody/nothing-7b")})
    code, said = run("diff", "HEAD")
    assert code == 0
    assert "1 without an estimate" in said
    assert "configs/lora.yml: had an estimate, and has none: " in said


def test_what_the_new_side_cannot_read_is_an_error(repo: Repo, run: Command) -> None:
    repo.write({"configs/memlint.toml": "nothing = 1\n"})
    code, said = run("diff", "HEAD")
    assert code == 2
    assert "unknown setting 'nothing'" in said


# -- policies


def policy(text_: str) -> dict[str, str]:
    return {"memlint.toml": 'gpu = "a100-80gb"\n' + text_}


GROWN = edited({"sequence_len: 2048": "4096"})
WAIVER = '[[waivers]]\npaths = ["{}"]\nowner = "@ana"\nreason = "new cards"\nuntil = {}\n'


@pytest.mark.parametrize(
    ("settings_", "code", "word"),
    [
        pytest.param("", 0, "", id="no policy"),
        pytest.param('[[policies]]\nincrease = "1GiB"', 1, "error: configs/lora.yml", id="too much"),
        pytest.param('[[policies]]\nincrease = "90GiB"', 0, "", id="not too much"),
        pytest.param(
            '[[policies]]\nincrease = "1GiB"\naction = "warn"', 0, "warning: configs/lora.yml", id="a warning"
        ),
        pytest.param("[[policies]]\nincrease-percent = 10", 1, "10 % is allowed", id="too much of it"),
        pytest.param("[[policies]]\nincrease-percent = 500", 0, "", id="not too much of it"),
        pytest.param('[[policies]]\nincrease = "1GiB"\nincrease-percent = 500', 0, "", id="one limit of two"),
        pytest.param('[[policies]]\nincrease = "1GiB"\npaths = ["other/"]', 0, "", id="other files"),
        pytest.param('[[policies]]\nincrease = "1GiB"\npaths = ["configs/"]', 1, "error", id="these files"),
        pytest.param('[[policies]]\nover-budget = "tight"', 1, "TIGHT: 78.0 GiB of 79.0 GiB", id="over its budget"),
        pytest.param('[[policies]]\nover-budget = "oom"', 0, "", id="not over its budget"),
        pytest.param(
            '[[policies]]\nincrease = "1GiB"\n' + WAIVER.format("configs/lora.yml", "2999-01-01"),
            0,
            "waived by @ana until 2999-01-01: new cards",
            id="waived",
        ),
        pytest.param(
            '[[policies]]\nincrease = "1GiB"\n' + WAIVER.format("configs/sft.yaml", "2999-01-01"),
            1,
            "error",
            id="no waiver",
        ),
        pytest.param(WAIVER.format("nothing", "2020-01-01"), 1, "@ana for nothing ended on 2020-01-01", id="expired"),
    ],
)
def test_a_policy_says_what_it_says(settings_: str, code: int, word: str, repo: Repo) -> None:
    repo.write(policy(settings_))
    in_force = Resolver().for_path(".")
    old = Figure("configs/lora.yml", "train", "axolotl", "m", 40 << 30, 39 << 30, 41 << 30, "FITS", 79 << 30)
    new = old._replace(device_bytes=78 << 30, high_bytes=80 << 30, verdict="TIGHT")
    key = ("configs/lora.yml", "train")
    found = Comparison(Side("a", {key: old}), Side("b", {key: new}), (Change(key, old, new),))
    verdicts = judge(found, in_force.policies, in_force.waivers, str(repo.root), datetime.date(2026, 11, 23))
    assert exit_code(verdicts, False) == code
    assert word in text.render(found, "x", verdicts, False, Style())
    assert any(verdict.action == "fail" for verdict in verdicts) == (code == 1)
    assert exit_code(verdicts, True) == 2
    back = found._replace(changes=(Change(key, new, old),))
    assert {
        verdict.change for verdict in judge(back, in_force.policies, (), str(repo.root), datetime.date.max)
    } == set()


@pytest.mark.parametrize(("day", "code"), [(30, 0), (31, 0), (32, 1)])
def test_a_waiver_holds_to_the_end_of_its_last_day(day: int, code: int, repo: Repo) -> None:
    repo.write(policy(WAIVER.format("nothing", "2027-03-31")))
    today = datetime.date(2027, 3, 1) + datetime.timedelta(days=day - 1)
    nothing = Comparison(Side("a", {}), Side("b", {}), ())
    assert exit_code(judge(nothing, (), Resolver().for_path(".").waivers, ".", today), False) == code


@pytest.mark.parametrize("sides_", ["main", "main...feature"])
def test_policies_are_those_of_the_new_side(sides_: str, repo: Repo, run: Command) -> None:
    repo.git("checkout", "-q", "-b", "feature")
    repo.commit({**policy('[[policies]]\nincrease = "1GiB"\npaths = ["configs/"]'), "configs/lora.yml": GROWN})
    code, said = run("diff", sides_)
    assert code == 1
    assert "error: configs/lora.yml" in said
    assert run("diff", sides_, "--exit-zero") == (0, said)


def test_a_lost_estimate_can_fail(repo: Repo, run: Command) -> None:
    repo.write(policy("[[policies]]\nno-estimate = true"))
    repo.write({"configs/lora.yml": LORA.replace("NousResearch/Meta-Llama-3.1-8B", "nobody/nothing-7b")})
    code, said = run("diff", "HEAD")
    assert code == 1
    assert "there is no estimate any more" in said


def test_limits_are_given_on_the_command_line_as_well(repo: Repo, run: Command) -> None:
    repo.write({"configs/lora.yml": GROWN})
    assert run("diff", "HEAD", "--max-increase", "1GiB")[0] == 1
    assert run("diff", "HEAD", "--max-increase", "5%")[0] == 1
    assert run("diff", "HEAD", "--max-increase", "0")[0] == 1
    assert run("diff", "HEAD", "--fail-on", "increase")[0] == 1
    assert run("diff", "HEAD", "--fail-on", "unknown", "--fail-on", "tight")[0] == 0  # it has an estimate, no budget
    assert run("diff", "HEAD", "--fail-on", "tight", "--budget", "8GB")[0] == 1
    assert run("diff", "HEAD", "--max-increase", "200GiB", "--max-increase", "900%")[0] == 0


def test_patterns_of_a_trusted_file_hold_for_a_revision(repo: Repo, run: Command) -> None:
    repo.commit({"ci.toml": '[[policies]]\nincrease = "1GiB"\npaths = ["configs/lora.yml"]\n'})
    repo.git("checkout", "-q", "-b", "feature")
    repo.commit({"configs/lora.yml": GROWN})
    assert run("diff", "main...feature", "--config", "ci.toml")[0] == 1
    assert run("diff", "main...feature")[0] == 0


# -- outputs


def test_every_format_says_the_same(repo: Repo, run: Command, tmp_path: Path) -> None:
    repo.write({"configs/lora.yml": GROWN, "configs/sft.yaml": SFT.replace("batch_size: 4", "batch_size: 1")})
    repo.write({"configs/broken.yml": LORA.replace("NousResearch/Meta-Llama-3.1-8B", "nobody/nothing-7b")})
    made = [f"{name}={tmp_path / name}" for name in ("json", "markdown", "text")]
    code, said = run("diff", "HEAD", *(word for report in made for word in ("--report", report)))
    assert code == 0
    assert (tmp_path / "text").read_text() == said
    data = json.loads((tmp_path / "json").read_text())
    Draft202012Validator.check_schema(SCHEMA)
    Draft202012Validator(SCHEMA).validate(data)
    assert data["summary"] == {"changed": 2, "added": 0, "removed": 0, "same": 0, "unknown": 1}
    comment = (tmp_path / "markdown").read_text()
    assert comment.startswith(text.MARKER + "\n")
    for run_ in data["runs"]:
        assert run_["path"] in said
        assert run_["path"] in comment
    assert comment.count("<details>") == comment.count("</details>") == 2


def test_only_increases_leaves_out_what_needs_less(repo: Repo, run: Command) -> None:
    repo.write({"configs/lora.yml": GROWN, "configs/sft.yaml": SFT.replace("batch_size: 4", "batch_size: 1")})
    _, said = run("diff", "HEAD", "--only-increases", "--output-format", "markdown")
    assert "lora.yml" in said
    assert "sft.yaml" not in said
    repo.write({"configs/lora.yml": LORA})
    _, said = run("diff", "HEAD", "--only-increases", "--output-format", "markdown")
    assert "No run needs more than before." in said


HOSTILE = "a|b`c`\n::error::x\n<details><script>@everyone ![x](http://x)\x1b[31m"


def hostile() -> Comparison:
    def side(size: int) -> Side:
        figure = Figure(HOSTILE, HOSTILE, "f", "m", size, size, size, "FITS", 1 << 30, {"activations": size})
        lost = figure._replace(device_bytes=None if size > 5 else 7, why=HOSTILE)
        return Side("x", {(HOSTILE, HOSTILE): figure, (HOSTILE, "b"): lost})

    changes = [
        change._replace(causes=(causes.Cause(HOSTILE, HOSTILE, 1, 7, HOSTILE, 3),))
        if change.kind == CHANGED
        else change
        for change in paired(side(1), side(1 << 20))
    ]
    return Comparison(side(1), side(1 << 20), tuple(changes))


def test_foreign_text_is_only_text() -> None:
    found = hostile()
    shown = text.render(found, HOSTILE, [], False, Style(actions=True))
    assert not any(line.lstrip().startswith("::") for line in shown.splitlines())
    assert "\x1b" not in shown
    comment = text.markdown(found, HOSTILE, [], False)
    assert "\x1b" not in comment
    lines = comment.splitlines()
    assert sum(line.startswith("<details>") for line in lines) == lines.count("</details>") == 2
    for line in lines:
        outside = "".join(line.split("`")[::2])  # what is in no code span
        assert "@everyone" not in outside
        assert "<script>" not in outside
        assert line.count("`") % 2 == 0
        if line.startswith("| `"):
            assert line.replace("\\|", "").count("|") == 6
    data = as_json.as_dict(found, HOSTILE, [])
    Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(data)))


def test_a_comment_is_never_too_long_for_github() -> None:
    def side(size: int) -> Side:
        figures = {(f"configs/{number}.yaml", "train"): number for number in range(2000)}
        return Side(
            "x",
            {
                key: Figure(key[0], "train", "f", "m", number * size, 0, 0, "FITS", None, {})
                for key, number in figures.items()
            },
        )

    found = Comparison(side(1), side(2), tuple(paired(side(1), side(2))))
    comment = text.markdown(found, "x", [], False)
    assert len(comment) < 65_536
    assert "more lines are left out" in comment


def test_a_change_of_nothing_has_no_sign() -> None:
    figure = Figure("a", "train", "f", "m", 5, 5, 5, "FITS", None, {"activations": 5})
    change = Change(("a", "train"), figure, figure)
    assert (change.kind, change.delta_bytes, change.components) == ("same", 0, {})


def test_python_starts_without_what_only_diff_needs() -> None:
    code = "import sys, memlint.cli.plain, memlint.check; print('memlint.comparison.sides' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "False\n"
