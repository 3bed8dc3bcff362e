"""Programs of JAX and TensorFlow are told from PyTorch's, whose options they take."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint.dialects import registry
from memlint.documents.load import load

OPTIONS = "--model_name_or_path gpt2 --per_device_train_batch_size 4 --do_train --output_dir out"
NAMED = "by its name a program of {}, whose step is not described"


@pytest.mark.parametrize("keys", ["--max_length 512", "--block_size 512"], ids=["TRL's keys", "the Trainer's keys"])
@pytest.mark.parametrize(
    ("program", "text", "why"),
    [
        pytest.param("run_clm_flax.py", None, f"run_clm_flax.py: {NAMED.format('JAX')}", id="Flax by its name"),
        pytest.param(
            "run_tf_clm.py", None, f"run_tf_clm.py: {NAMED.format('TensorFlow')}", id="TensorFlow by its name"
        ),
        pytest.param(
            "finetune.py",
            "import jax\nimport optax\n",
            "finetune.py imports jax: the step of a program of JAX is not described",
            id="JAX by what it imports",
        ),
        pytest.param("finetune.py", "import jax\nimport torch\n", "", id="PyTorch beside JAX"),
        pytest.param("finetune.py", None, "", id="a program that is not there"),
        pytest.param("run_platform.py", None, "", id="letters within a word"),
    ],
)
def test_programs_of_other_frameworks(program: str, text: str | None, why: str, keys: str, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    if text is not None:
        (tmp_path / program).write_text(text, encoding="utf-8")
    (tmp_path / "run.sh").write_text(f"python {program} {OPTIONS} {keys}\n", encoding="utf-8")
    (spec,) = registry.specs(load(str(tmp_path / "run.sh")))
    assert spec.unknown_reason == why
