"""A finding stands on exactly the key or the value that it talks about, whatever way the value came."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import memlint
from memlint.plugin import Example, Finding, Rule
from memlint.reports.report import Report
from tests.test_rules import CASES, EXAMPLES, check_example
from tests.text import selected

pytestmark = pytest.mark.usefixtures("answers_kept")

CONFIGS = sorted(
    str(path.relative_to(EXAMPLES))
    for pattern in ("*/*.yaml", "*/*.yml", "*/*.toml", "*/config*.py", "*/*.sh")
    for path in EXAMPLES.glob(pattern)
    if path.name != "accelerate_config.yaml"
)

# Findings about a run as a whole, in a file that has no single place for it, stand before its first key.
WHOLE_RUN = ("MEM007", "MEM304", "MEM308", "MEM705")
# Findings about text that is not (yet) keys and values have tests of their own beside the readers.
ABOUT_TEXT = ("MEM002", "MEM003", "MEM005")
# Findings about a value stand on the value.
ABOUT_VALUES = ("MEM008", "MEM602")

_ASSIGNMENT = {
    "yaml": re.compile(r"""\s*(?:- )?(?P<key>"[^"]*"|[^\s:#]+)\s*:(?:\s+(?P<value>"[^"]*"|.*?))?\s*(?:\s#.*)?"""),
    "json": re.compile(r"""[\s{,]*(?P<key>"[^"]*")\s*:.*"""),
    "toml": re.compile(r"""\s*(?P<key>[^\s=]+)\s*=\s*(?P<value>.*?)\s*(?:\s#.*)?"""),
    "py": re.compile(r"""\s*(?P<key>\w+)\s*=\s*(?P<value>.*?)\s*(?:\s#.*)?"""),
}


def pieces(line: str, suffix: str) -> Iterator[tuple[int, str]]:
    """(column, text) of everything on a line that a finding may select: read by plain rules, not by our parsers."""
    if suffix == "json":
        for match in re.finditer(r'"[^"]*"|[^\s:,{}\[\]]+', line):
            yield match.start() + 1, match.group()
        return
    if suffix == "sh":
        for match in re.finditer(r"[^\s=\"'()]+", line):
            yield match.start() + 1, match.group()
        return
    match = _ASSIGNMENT["yaml" if suffix == "yml" else suffix].fullmatch(line)
    if match is None:
        return
    for name in ("key", "value"):
        if match.groupdict().get(name):
            yield match.start(name) + 1, match[name]
    if match.groupdict().get("value"):
        for element in re.finditer(r"[^\s,()\[\]]+", match["value"]):
            yield match.start("value") + element.start() + 1, element.group()


def line_of(finding: Finding) -> str:
    return Path(finding.span.path).read_text(encoding="utf-8").splitlines()[finding.span.line - 1]


def assert_exact(finding: Finding) -> None:
    span, text = finding.span, selected(finding.span)
    about = f"{finding.code} on {finding.key!r} selects {text!r}"
    if finding.code in ABOUT_TEXT:
        return
    assert span.line == span.end_line, about
    if not text:
        assert finding.code in WHOLE_RUN, about
        return
    assert (span.column, text) in pieces(line_of(finding), span.path.rpartition(".")[2]), about
    bare = text.strip("\"'").lstrip("-")
    if finding.code in ABOUT_VALUES:
        return
    parts = finding.key.lstrip("-").split(".")
    if bare == parts[-1]:
        return
    if parts[-1].isdigit():  # an element of a list, which has no name
        return
    if span.path.endswith(".sh"):  # no such option: the program
        assert "--" + parts[-1] not in line_of(finding), about
        assert bare.endswith(".py"), about
        return
    if finding.code == "MEM006" or (finding.code == "MEM308" and not finding.key):
        return
    # no such key: the closest section that would hold it
    assert bare in parts[:-1], about


@pytest.mark.parametrize(("rule", "example", "fires"), [case for case in CASES if case.values[2]])
def test_findings_of_the_rules_examples(rule: type[Rule], example: Example, fires: bool, tmp_path: Path) -> None:
    findings, _ = check_example(rule, example, tmp_path)
    for finding in findings:
        assert_exact(finding)
        for span, _ in finding.related:
            assert selected(span), "a related place selects nothing"


@pytest.mark.parametrize("budget", [None, "16GB", "1GB"], ids=["no budget", "16 GB", "1 GB"])
@pytest.mark.parametrize("config", CONFIGS)
def test_findings_of_the_examples(config: str, budget: str | None) -> None:
    report = memlint.check(str(EXAMPLES / config), isolated=True, **({"budget": budget} if budget else {}))
    assert report.runs
    assert not report.crashed
    for finding in report.findings:
        assert_exact(finding)
        for span, message in finding.related:
            label = message.partition(":")[0]
            bare = selected(span).strip('"').lstrip("-")
            assert bare == label.lstrip("-") or label.rpartition(".")[2].isdigit() or label.isupper(), message


# -- by another way ----------------------------------------------------------------------------------------------


class Tree:
    """A copy of one example, changed text by text."""

    def __init__(self, system: str, folder: Path) -> None:
        self.folder = folder / system
        shutil.copytree(EXAMPLES / system, self.folder)

    def edit(self, name: str, *changes: tuple[str, str]) -> None:
        path = self.folder / name
        text = path.read_text(encoding="utf-8")
        for old, new in changes:
            assert text.count(old) == 1, f"{name} holds {old!r} {text.count(old)} times"
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def check(self, name: str, code: str, *overrides: str, **options: object) -> Finding:
        report: Report = memlint.check(
            str(self.folder / name), isolated=True, select=[code], override=list(overrides), **options
        )
        assert not report.crashed, [finding.message for finding in report.findings]
        findings = [finding for finding in report.findings if finding.code == code]
        assert len(findings) == 1, [f"{finding.message} {finding.span}" for finding in report.findings]
        return findings[0]

    def place(self, finding: Finding) -> tuple[str, str, str]:
        """(file, its line, what is selected of it)"""
        return self._place(finding.span.path), line_of(finding).strip(), selected(finding.span)

    def edits(self, finding: Finding, number: int = 0) -> list[tuple[str, str, str]]:
        """(file, old text, new text) of a fix"""
        return [(self._place(e.span.path), selected(e.span), e.text) for e in finding.fixes[number].edits]

    def _place(self, path: str) -> str:
        return os.path.relpath(path, self.folder)


# Hydra

LOADER = "dataloader:\n  batch_size: 128\n  num_workers: 8\n  shuffle: true\n  pin_memory: true\n"
ROOT = "uni3d+dp.yaml"


@pytest.fixture
def uni3d(tmp_path: Path) -> Tree:
    return Tree("uni3d_dp", tmp_path)


def test_a_value_of_a_hydra_group_is_found_in_the_group_file(uni3d: Tree) -> None:
    uni3d.write("dataloader/large.yaml", LOADER.partition("\n")[2].replace("\n  ", "\n").removeprefix("  "))
    uni3d.edit(ROOT, ("  - task: adroit_hammer\n", "  - task: adroit_hammer\n  - dataloader: large\n"))
    uni3d.edit(ROOT, ("\n" + LOADER + "  persistent_workers: false\n", "\n"))
    finding = uni3d.check(ROOT, "MEM201")
    assert uni3d.place(finding) == ("dataloader/large.yaml", "batch_size: 128", "batch_size")
    assert ("dataloader/large.yaml", "128", "64") in uni3d.edits(finding)


def test_a_value_that_a_group_sets_elsewhere_is_found_in_the_group_file(uni3d: Tree) -> None:
    text = "# @package _global_\n" + LOADER.replace("128", "256")
    uni3d.write("size/large.yaml", text)
    uni3d.edit(ROOT, ("  - task: adroit_hammer\n", "  - task: adroit_hammer\n  - _self_\n  - size: large\n"))
    finding = uni3d.check(ROOT, "MEM201")
    assert uni3d.place(finding) == ("size/large.yaml", "batch_size: 256", "batch_size")
    assert finding.message.startswith("batch_size 256 x ")


def test_a_key_of_a_task_file_is_related_with_its_own_place(uni3d: Tree) -> None:
    finding = uni3d.check(ROOT, "MEM801", "policy.pointcloud_encoder_cfg.group_size=1024")
    assert uni3d.place(finding) == (ROOT, "group_size: 32", "group_size")
    [(span, _)] = finding.related
    assert (os.path.basename(span.path), selected(span)) == ("adroit_hammer.yaml", "512")


def test_a_wrong_value_of_a_task_file_is_found_there(uni3d: Tree) -> None:
    uni3d.edit("task/adroit_hammer.yaml", ("  action:\n    shape: [26]", "  action:\n    shape: many"))
    finding = uni3d.check(ROOT, "MEM008")
    assert uni3d.place(finding) == ("task/adroit_hammer.yaml", "shape: many", "many")


def test_a_setting_behind_an_interpolation_is_found_at_its_key_and_changed_where_it_was_written(uni3d: Tree) -> None:
    uni3d.edit(ROOT, ("\ndataloader:\n  batch_size: 128", "\nbs: 128\ndataloader:\n  batch_size: ${bs}"))
    finding = uni3d.check(ROOT, "MEM201")
    assert uni3d.place(finding) == (ROOT, "batch_size: ${bs}", "batch_size")
    assert (ROOT, "128", "64") in uni3d.edits(finding)
    line = finding.fixes[0].edits[0].span.line
    assert Path(finding.span.path).read_text().splitlines()[line - 1] == "bs: 128"


def test_a_wrong_value_behind_an_interpolation_is_found_where_it_was_written(uni3d: Tree) -> None:
    uni3d.edit(ROOT, ("\ndataloader:\n  batch_size: 128", "\nbs: many\ndataloader:\n  batch_size: ${bs}"))
    assert uni3d.place(uni3d.check(ROOT, "MEM008")) == (ROOT, "bs: many", "many")


def test_an_absent_key_is_found_at_its_section(uni3d: Tree) -> None:
    finding = uni3d.check("uni3d+dp_after.yaml", "MEM305", budget="8GB")
    assert (finding.key, uni3d.place(finding)) == (
        "optimizer.fused",
        ("uni3d+dp_after.yaml", "optimizer:", "optimizer"),
    )


# Shell

SCRIPT = "train_lag_mode.sh"


@pytest.fixture
def lag(tmp_path: Path) -> Tree:
    return Tree("lag_mode", tmp_path)


BATCH = "BATCH_SIZE=32        # sets per step, over all devices together\n"
OPTION = "  --batch_size $BATCH_SIZE \\\n"
SHELL_WAYS = [
    pytest.param((), "--batch_size $BATCH_SIZE \\", id="a variable"),
    pytest.param(((OPTION, "  --batch_size=$BATCH_SIZE \\\n"),), "--batch_size=$BATCH_SIZE \\", id="after an equals"),
    pytest.param(((OPTION, '  --batch_size "${BATCH_SIZE}" \\\n'),), '--batch_size "${BATCH_SIZE}" \\', id="quoted"),
    pytest.param(
        ((BATCH, ""), (OPTION, "  --batch_size ${BATCH_SIZE:-32} \\\n")),
        "--batch_size ${BATCH_SIZE:-32} \\",
        id="a default within the expansion",
    ),
    pytest.param(
        ((BATCH, "FLAGS=(--batch_size 32 --lr 1e-4)\n"), (OPTION, '  "${FLAGS[@]}" \\\n')),
        "FLAGS=(--batch_size 32 --lr 1e-4)",
        id="an array",
    ),
    pytest.param(
        ((BATCH, 'FLAGS="--batch_size 32 --lr 1e-4"\n'), (OPTION, "  $FLAGS \\\n")),
        'FLAGS="--batch_size 32 --lr 1e-4"',
        id="a string of options",
    ),
    pytest.param(
        ((BATCH, "SETS=32\nBATCH_SIZE=$SETS\n"),), "--batch_size $BATCH_SIZE \\", id="a variable of a variable"
    ),
]


@pytest.mark.parametrize(("changes", "line"), SHELL_WAYS)
def test_an_option_is_found_at_its_name_and_changed_where_its_value_was_written(
    changes: tuple[tuple[str, str], ...], line: str, lag: Tree
) -> None:
    lag.edit(SCRIPT, *changes)
    finding = lag.check(SCRIPT, "MEM201")
    assert lag.place(finding) == (SCRIPT, line, "--batch_size")
    assert lag.edits(finding) == [(SCRIPT, "32", "16")]


WRONG = [
    pytest.param(((BATCH, "BATCH_SIZE=many\n"),), "BATCH_SIZE=many", id="a variable"),
    pytest.param(
        ((BATCH, ""), (OPTION, "  --batch_size ${BATCH_SIZE:-many} \\\n")),
        "--batch_size ${BATCH_SIZE:-many} \\",
        id="a default within the expansion",
    ),
    pytest.param(
        ((BATCH, "FLAGS=(--batch_size many)\n"), (OPTION, '  "${FLAGS[@]}" \\\n')),
        "FLAGS=(--batch_size many)",
        id="an array",
    ),
]


@pytest.mark.parametrize(("changes", "line"), WRONG)
def test_a_wrong_value_is_found_where_it_was_written(
    changes: tuple[tuple[str, str], ...], line: str, lag: Tree
) -> None:
    lag.edit(SCRIPT, *changes)
    assert lag.place(lag.check(SCRIPT, "MEM008")) == (SCRIPT, line, "many")


@pytest.mark.parametrize("code", ["MEM202", "MEM204", "MEM301"])
def test_what_a_command_does_not_state_is_found_at_its_program(code: str, lag: Tree) -> None:
    assert lag.place(lag.check(SCRIPT, code)) == (SCRIPT, "python main_jax.py \\", "main_jax.py")


def test_a_share_of_the_batch_is_related_as_it_is_written(lag: Tree) -> None:
    finding = lag.check("train_lag_mode_ultra_low_mem.sh", "MEM204", budget="4GB")
    assert [(selected(span), message) for span, message in finding.related] == [("--batch_size", "--batch_size: 4")]


def test_a_config_that_a_script_names_is_found_in_its_own_file(tmp_path: Path) -> None:
    tree = Tree("stdiff", tmp_path)
    finding = tree.check("train.sh", "MEM204")
    assert tree.place(finding) == ("kitti_range_train_config.yaml", "use_xformers: false", "use_xformers")
    assert tree.edits(finding) == [("kitti_range_train_config.yaml", "false", "true")]


# Python

MODULE = "config.py"
BIG = (('"DiT3D-Tiny/4"', '"DiT3D-XL/2"'), ("DIT_PATCH_SIZE = (4, 16, 16)", "DIT_PATCH_SIZE = 2"))
SHAPE = "INPUT_SHAPE = (3, 16, 64, 64)  # (channels, frames, height, width); was (3, 28, 128, 128)"


@pytest.fixture
def dit3d(tmp_path: Path) -> Tree:
    return Tree("dit3d", tmp_path)


def test_an_element_of_a_tuple_is_found_where_it_was_written(dit3d: Tree) -> None:
    # DIT_VIDEO_SIZE = (NUM_FRAMES, ...), NUM_FRAMES = INPUT_SHAPE[1], INPUT_SHAPE = (3, 16, 64, 64)
    dit3d.edit(MODULE, *BIG)
    finding = dit3d.check(MODULE, "MEM208")
    assert dit3d.place(finding) == (MODULE, SHAPE, "16")
    assert dit3d.edits(finding) == [(MODULE, "16", "8")]


def test_an_element_of_the_tuple_itself_is_found_in_it(dit3d: Tree) -> None:
    dit3d.edit(MODULE, *BIG, ("DIT_VIDEO_SIZE = (NUM_FRAMES, IMAGE_SIZE, IMAGE_SIZE)", "DIT_VIDEO_SIZE = (16, 64, 64)"))
    assert dit3d.place(dit3d.check(MODULE, "MEM208")) == (MODULE, "DIT_VIDEO_SIZE = (16, 64, 64)", "16")


def test_a_constant_that_names_another_is_found_at_its_name_and_changed_where_it_was_written(dit3d: Tree) -> None:
    dit3d.edit(
        "config_before.py",
        ("import torch\n", "import torch\n\nSETS = 2\n"),
        ("    BATCH_SIZE = 2\n", "    PER_CARD = SETS\n    BATCH_SIZE = PER_CARD\n"),
    )
    finding = dit3d.check("config_before.py", "MEM201")
    assert dit3d.place(finding) == ("config_before.py", "BATCH_SIZE = PER_CARD", "BATCH_SIZE")
    assert ("config_before.py", "2", "1") in dit3d.edits(finding)
    assert finding.fixes[0].edits[0].span.line == 5


def test_a_wrong_value_of_a_constant_is_found_where_it_was_written(dit3d: Tree) -> None:
    dit3d.edit(
        MODULE,
        ("import torch\n", 'import torch\n\nSETS = "many"\n'),
        ("    BATCH_SIZE = 1 ", "    BATCH_SIZE = SETS "),
    )
    assert dit3d.place(dit3d.check(MODULE, "MEM008")) == (MODULE, 'SETS = "many"', '"many"')


# Overrides

OVERRIDDEN = [
    pytest.param("uni3d_dp", ROOT, "dataloader.batch_size=130", "batch_size: 128", id="YAML"),
    pytest.param("lag_mode", SCRIPT, "batch_size=64", "--batch_size $BATCH_SIZE \\", id="shell"),
    pytest.param("dit3d", "config_before.py", "Config.BATCH_SIZE=8", "BATCH_SIZE = 2", id="Python"),
    pytest.param("video_llm", "config.yaml", "training.batch_size=3", "batch_size: 4", id="YAML without groups"),
]


@pytest.mark.parametrize(("system", "name", "override", "line"), OVERRIDDEN)
def test_an_overridden_setting_is_found_at_its_key_in_the_file(
    system: str, name: str, override: str, line: str, tmp_path: Path
) -> None:
    tree = Tree(system, tmp_path)
    finding = tree.check(name, "MEM201", override)
    assert tree.place(finding)[:2] == (name, line)
    assert_exact(finding)
    assert f"{override.partition('=')[2]} " in finding.message


def test_a_setting_that_only_an_override_states_has_no_place_of_its_own(uni3d: Tree) -> None:
    uni3d.edit("uni3d+dp_after.yaml", ("  use_ema: true", "  # use_ema: true"))
    finding = uni3d.check("uni3d+dp_after.yaml", "MEM306", "+training.use_ema=true", budget="8GB")
    assert finding.span.path == str(uni3d.folder / "uni3d+dp_after.yaml")
    assert selected(finding.span) == ""
    assert finding.notes == ("training.use_ema is set with -o",)
    assert finding.fixes == (), "there is nothing in the file to change"


def test_no_place_of_an_overridden_run_is_outside_of_its_files(uni3d: Tree) -> None:
    overrides = ["dataloader.batch_size=256", "training.use_ema=true", "+optimizer.fused=false", "n_obs_steps=3"]
    report = memlint.check(str(uni3d.folder / ROOT), isolated=True, budget="4GB", override=overrides)
    assert len(report.findings) >= 5
    for finding in report.findings:
        for span in (finding.span, *(span for span, _ in finding.related)):
            assert Path(span.path).is_file(), finding.message
        for edit in (edit for fix in finding.fixes for edit in fix.edits):
            assert Path(edit.span.path).is_file(), finding.message


@pytest.mark.parametrize(
    ("name", "text", "key"),
    [
        pytest.param(
            "c.yaml",
            "base_model: Qwen/Qwen2.5-0.5B\nsequence_len: 512\nmicro_batch_size: 1\nqat:\n  group_size: 32\n",
            "qat",
            id="a section that is not known",
        ),
        pytest.param(
            "c.yaml",
            "output_dir: out\nmodel_name_or_path: nobody/nothing\nper_device_train_batch_size: 2\nmax_length: 64\n",
            "model_name_or_path",
            id="a model that is not in the catalogue",
        ),
        pytest.param(
            "c.yaml",
            "output_dir: out\n"
            "tokenizer:\n  _component_: torchtune.models.llama3.llama3_tokenizer\n  max_seq_len: null\n"
            "model:\n  _component_: torchtune.models.llama3_2.llama3_2_1b\nbatch_size: 2\n"
            "optimizer:\n  _component_: torch.optim.AdamW\n",
            "max_seq_len",
            id="a length without a bound, within a section",
        ),
        pytest.param(
            "c.yaml",
            "output_dir: out\ntokenizer:\n  _component_: torchtune.models.llama3.llama3_tokenizer\n"
            "model:\n  _component_: torchtune.models.llama3_2.llama3_2_1b\nbatch_size: 2\n"
            "optimizer:\n  _component_: torch.optim.AdamW\n",
            "tokenizer",
            id="the section that lacks the key",
        ),
        pytest.param(
            "t.sh",
            "python pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 \\\n"
            "  --micro-batch-size 1 --tokenizer-type SentencePieceTokenizer --tokenizer-model a.model\n",
            "--tokenizer-model",
            id="an option of a command",
        ),
    ],
)
def test_no_estimate_stands_on_the_key_at_fault(name: str, text: str, key: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    (found,) = memlint.check(str(path), isolated=True, select=["MEM007"]).findings
    assert selected(found.span) == key, found.message
