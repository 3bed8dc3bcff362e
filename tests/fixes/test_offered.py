"""A fix is offered only where the text with it reads as one that has it: no new fault, and the promised peak."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memlint.check import check_paths, check_text
from memlint.fixes.edits import apply_edits
from memlint.plugin import Fix
from memlint.reports.report import RunReport
from memlint.settings import Resolver, Settings

LLAMA = (
    "base_model: HuggingFaceTB/SmolLM2-135M\nsequence_len: 4096\nmicro_batch_size: 4\nbf16: true\n"
    "datasets: [{path: x, type: alpaca}]\n"
)


def checked(name: str, text: str, **options: Any) -> RunReport:
    (run,) = check_text(name, text, Resolver(options, isolated=True) if options else Settings()).runs
    return run


def offered(run: RunReport, code: str = "") -> list[Fix]:
    return [fix for finding in run.findings if finding.code.startswith(code) for fix in finding.fixes]


# -- a word that is put right is written as the format writes words


@pytest.mark.parametrize(
    ("name", "text", "written"),
    [
        pytest.param(
            "args.json",
            '{"model_name_or_path": "t5", "per_device_train_batch_size": 2, "output_dir": "", "optim": "AdamW_Torch"}',
            '"adamw_torch"',
            id="JSON",
        ),
        pytest.param(
            "run.toml",
            '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nseq_len = 64\n'
            'mixed_precision_param = "BFloat16"\n',
            '"bfloat16"',
            id="TOML",
        ),
        pytest.param(
            "config/small.py",
            "batch_size = 2\nblock_size = 64\nn_layer = 2\nn_head = 2\nn_embd = 64\ndtype = 'BFloat16'\n",
            "'bfloat16'",
            id="Python",
        ),
        pytest.param(
            "sft.yaml",
            "model_name_or_path: gpt2\nper_device_train_batch_size: 2\noutput_dir: o\noptim: 'AdamW_Torch'\n",
            "'adamw_torch'",
            id="YAML, in the quotes that stand there",
        ),
        pytest.param(
            "train.sh",
            'python run_clm.py --model_name_or_path gpt2 --block_size 64 --output_dir o --optim "AdamW_Torch"\n',
            '"adamw_torch"',
            id="shell, in the quotes that stand there",
        ),
    ],
)
def test_a_word_that_is_put_right_is_quoted_as_its_format_asks(name: str, text: str, written: str) -> None:
    run = checked(name, text)
    [edit] = [edit for fix in offered(run, "MEM008") for edit in fix.edits]
    assert edit.text == written
    again = checked(name, apply_edits(text, [edit]))
    assert not [finding.message for finding in again.findings if finding.code in ("MEM003", "MEM008")]


VIDEO = (Path(__file__).parents[2] / "examples" / "video_llm" / "config.yaml").read_text(encoding="utf-8")


def edited(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def test_a_word_that_two_keys_have_from_one_place_is_put_right_where_it_is_wrong() -> None:
    """The other key takes it."""
    place, use = "features_dir: &word sdpaa", "attn_implementation: *word"
    text = edited(VIDEO, ("features_dir: data/clips/siglip_features", place), ("attn_implementation: sdpa", use))
    [edit] = [edit for fix in offered(checked("config.yaml", text), "MEM008") for edit in fix.edits]
    assert apply_edits(text, [edit]) == edited(text, (use, "attn_implementation: sdpa"))


def test_a_number_without_its_quotes_is_held_against_its_bounds() -> None:
    run = checked("config.yaml", edited(VIDEO, ("batch_size: 4", 'batch_size: "0"')))
    [refused] = [finding for finding in run.findings if finding.code == "MEM008"]
    assert refused.message == 'training.batch_size is the text "0", not an integer'
    assert not refused.fixes


# -- a key that is written makes others count


@pytest.mark.parametrize(
    "beside",
    [
        pytest.param("selective_checkpointing: 1e18\n", id="a value that its key does not take"),
        pytest.param("selective_checkpointing: true\n", id="another way of doing it"),
    ],
)
def test_a_switch_that_makes_another_key_count_is_no_promise_without_it(beside: str) -> None:
    """Full checkpointing lowers the peak; but what the switch turns on is what the key beside it says."""
    alone, both = (checked("axolotl.yml", LLAMA + more, budget="10GiB") for more in ("", beside))
    assert "add gradient_checkpointing: true" in [fix.title for fix in offered(alone, "MEM202")]
    for fix in offered(both):
        again = checked("axolotl.yml", apply_edits(LLAMA + beside, fix.edits), budget="10GiB")
        assert again.estimate is not None, fix.title
        assert again.estimate.device_bytes == fix.device_bytes_after, fix.title


def test_an_edit_of_a_file_that_the_config_names_is_read_there(tmp_path: Path) -> None:
    sizes = {"reduce_bucket_size": 200_000_000, "allgather_bucket_size": 200_000_000}
    zero = {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 2, **sizes}, "bf16": {"enabled": True}}
    (tmp_path / ".git").mkdir()
    (tmp_path / "ds.json").write_text(json.dumps(zero), encoding="utf-8")
    (tmp_path / "train.sh").write_text(
        "deepspeed --num_gpus 4 run_clm.py --deepspeed ds.json --model_name_or_path gpt2 --bf16 --output_dir out "
        "--per_device_train_batch_size 8 --block_size 128\n",
        encoding="utf-8",
    )
    (run,) = check_paths([str(tmp_path / "train.sh")], Settings(budget="1GB")).runs
    [fix] = [fix for fix in offered(run, "MEM405") if fix.edits]
    assert {Path(edit.span.path).name for edit in fix.edits} == {"ds.json"}


@pytest.mark.parametrize(
    ("text", "still"),
    [
        pytest.param(VIDEO, True, id="all values are known"),
        pytest.param(edited(VIDEO, ("num_workers: 4", "num_workers: x")), False, id="one is not"),
    ],
)
def test_a_fix_that_is_too_much_work_to_try_is_offered_where_all_values_are_known(
    text: str, still: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = offered(checked("config.yaml", text))
    assert any(fix.edits for fix in tried)
    monkeypatch.setattr("memlint.checking.judging.TRIED_SHARE", 1_000_000)
    run = checked("config.yaml", text)
    assert any(fix.edits for fix in offered(run)) is still
    assert "MEM011" not in {finding.code for finding in run.findings}
