"""What documents of a repository say of a model that only its owner has."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint.check import check_paths
from memlint.dialects import readmes
from memlint.settings import Settings

LLAMA = "meta-llama/Llama-3.1-8B"


def said(tmp_path: Path, text: str, name: str = "our-lab/Sage_o1-8B") -> tuple[str, ...]:
    (tmp_path / ".git").mkdir()
    (tmp_path / "scripts").mkdir()
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    return readmes.said_of(name, str(tmp_path / "scripts" / "run.sh"))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("| **Sage-o1-8B** | LLaMA-3.1-8B | English |\n", id="in a row of a table"),
        pytest.param("Sage-o1-8B is fine-tuned from Llama-3.1-8B on our answers.\n", id="in a sentence"),
        pytest.param("Sage-o1-8B 是基于 [Llama-3.1-8B](https://x.org) 训练得到的\n", id="in Chinese"),
        pytest.param("| Sage-o1-8B | Llama-3.1-8B |\n| Sage-o1-70B | Llama-3.1-70B |\n", id="beside other sizes"),
    ],
)
def test_a_line_that_names_both_says_what_a_model_was_made_from(tmp_path: Path, text: str) -> None:
    assert said(tmp_path, text) == (LLAMA,)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        pytest.param("Sage-o1-8B, unlike Llama-3.1-8B, thinks.\n", "a/Sage-o1-8B", id="a comparison"),
        pytest.param("| Sage-o1-8B | 81.0 |\n| Llama-3.1-8B | 70.1 |\n", "a/Sage-o1-8B", id="in lines of their own"),
        pytest.param("| Sage-o1-8B | Llama-3.1-8B | Qwen2.5-7B |\n", "a/Sage-o1-8B", id="two in one line"),
        pytest.param("| M-8B | Llama-3.1-8B |\n", "a/M-8B", id="a name of few letters"),
        pytest.param("| Sage-o1-8B-GGUF | Llama-3.1-8B |\n", "a/Sage-o1-8B", id="another one that begins so"),
    ],
)
def test_nothing_is_said_by_a_line_that(tmp_path: Path, text: str, name: str) -> None:
    assert said(tmp_path, text, name) == ()


def test_a_run_has_a_partial_answer_by_that(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "README.md").write_text("| SageMind | Llama-3.1-8B |\n", encoding="utf-8")
    options = "--per_device_train_batch_size 1 --bf16 --output_dir o --max_length 512 --gradient_checkpointing"
    (tmp_path / "run.sh").write_text(f"trl sft --model_name_or_path our-lab/SageMind {options}\n", encoding="utf-8")
    (run,) = check_paths([str(tmp_path / "run.sh")], Settings()).runs
    assert f"as {LLAMA}" in run.unknown
