"""A word in another case, or by its library's other name, means the same; an unknown one is told with the nearest."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint.check import check_text
from memlint.dialects import registry, words
from memlint.dialects import schema as schemas
from memlint.reports.report import RunReport
from memlint.settings import Settings

EXAMPLES = Path(__file__).parents[2] / "examples"
SAMPLES = Path(__file__).parent / "samples"
VIDEO = EXAMPLES / "video_llm" / "config.yaml"
SIGN = EXAMPLES / "dit3d" / "config.py"
RANGE = EXAMPLES / "stdiff" / "kitti_range_train_config.yaml"
TRL = EXAMPLES / "language_models" / "sft_trl.yaml"


def checked(path: Path, old: str = "", new: str = "") -> RunReport:
    text = path.read_text(encoding="utf-8")
    assert old in text
    (run,) = check_text(str(path), text.replace(old, new, 1), Settings()).runs
    return run


def messages(run: RunReport, code: str) -> list[str]:
    return [finding.message for finding in run.findings if finding.code == code]


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        pytest.param(VIDEO, "optimizer: adamw", "optimizer: AdamW", id="a class's name"),
        pytest.param(VIDEO, "optimizer: adamw", "optimizer: torch.optim.AdamW", id="a class with its module"),
        pytest.param(VIDEO, "dtype: bfloat16", "dtype: BF16", id="a short dtype in capitals"),
        pytest.param(VIDEO, "dtype: bfloat16", "dtype: torch.bfloat16", id="a dtype with its module"),
        pytest.param(VIDEO, "attn_implementation: sdpa", "attn_implementation: SDPA", id="a kernel in capitals"),
        pytest.param(SIGN, 'OPTIMIZER_TYPE = "adamw"', 'OPTIMIZER_TYPE = "AdamW"', id="in a Python module"),
    ],
)
def test_another_spelling_means_the_same(path: Path, old: str, new: str) -> None:
    one, other = checked(path), checked(path, old, new)
    assert one.estimate is not None
    assert other.estimate == one.estimate
    assert not messages(other, "MEM008")


@pytest.mark.parametrize(
    ("path", "old", "new", "nearest"),
    [
        pytest.param(VIDEO, "optimizer: adamw", "optimizer: adamww", "adamw", id="an optimizer"),
        pytest.param(VIDEO, "dtype: bfloat16", "dtype: bfloat61", "bfloat16", id="a dtype"),
        pytest.param(
            RANGE, 'mixed_precision: "no"', "mixed_precision: BF16", "bf16", id="accelerate takes no capitals"
        ),
    ],
)
def test_an_unknown_word_is_told_with_the_nearest(path: Path, old: str, new: str, nearest: str) -> None:
    run = checked(path, old, new)
    (finding,) = (finding for finding in run.findings if finding.code == "MEM008")
    assert [edit.text for fix in finding.fixes for edit in fix.edits] == [nearest]
    assert not messages(run, "MEM001")
    assert run.estimate is None


@pytest.mark.parametrize(
    ("path", "old", "new", "key"),
    [
        pytest.param(
            RANGE, "use_xformers: false", "use_xformers: false\n  attention: spda", "attention", id="of two keys"
        ),
        pytest.param(TRL, "dtype: bfloat16", "dtype: bfloat61", "dtype", id="weights of a dtype that is none"),
        pytest.param(
            EXAMPLES / "uni3d_dp" / "uni3d+dp.yaml", "torch.optim.AdamW", "AdamW", "optimizer._target_", id="no module"
        ),
        pytest.param(SAMPLES / "gpt_neox" / "run.yml", '"Adam"', '"Adma"', "optimizer", id="an unknown optimizer"),
    ],
)
def test_no_default_stands_for_an_unknown_word(path: Path, old: str, new: str, key: str) -> None:
    run = checked(path, old, new)
    assert run.estimate is None
    (reason,) = messages(run, "MEM007")
    assert key in reason
    assert not messages(run, "MEM001")


def test_words_of_one_kind_do_not_stand_for_two_things() -> None:
    for groups in words.KINDS.values():
        every = [word for group in groups for word in group]
        assert len(every) == len(set(every))
        assert all(word == word.lower() for word in every)


def test_a_key_that_takes_words_has_words_to_take() -> None:
    for family in schemas.families():
        for key in registry.dialect(family).keys:
            kind = key.annotation.get("words")
            if kind is not None:
                assert kind in words.KINDS
                known = [word for group in words.KINDS[kind] for word in group]
                assert set(key.schema["enum"]) <= set(known), (family, key.dotted)


def test_a_name_that_transformers_compares_letter_by_letter_is_refused_with_the_one_that_is_meant() -> None:
    config = "model_name_or_path: Qwen/Qwen2.5-0.5B\nper_device_train_batch_size: 1\nmax_length: 64\noutput_dir: x\n"
    (run,) = check_text("t.yaml", config + "optim: AdamW_Torch\n", Settings()).runs
    (refused,) = [finding for finding in run.findings if finding.code == "MEM008"]
    assert refused.span.line == 5
    assert refused.message.endswith("and 23 more")
    assert [edit.text for fix in refused.fixes for edit in fix.edits] == ["adamw_torch"]
    assert run.estimate is None
