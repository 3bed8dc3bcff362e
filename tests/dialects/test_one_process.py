"""One process that sees several devices: what nn.DataParallel's copies return is gathered on the first of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint.check import check_paths
from memlint.settings import Settings

SCRIPT = "run_clm.py --model_name_or_path gpt2 --dataset_name wikitext --do_train --output_dir out"
LLAMA = SCRIPT.replace("gpt2", "meta-llama/Llama-3.2-1B") + " --block_size 1024"
LOGITS = 8 * 1024 * 50_257 * 4  # samples, tokens, words, bytes


@pytest.mark.parametrize(
    ("command", "gpu", "copies"),
    [
        pytest.param(f"python {SCRIPT}", "a100-40gb x8", 8, id="python alone"),
        pytest.param(f"CUDA_VISIBLE_DEVICES=0,1 python {SCRIPT}", "a100-40gb", 2, id="two that are visible"),
        pytest.param(f"python {SCRIPT}", "a100-40gb", 0, id="one device"),
        pytest.param(f"torchrun --nproc_per_node 8 {SCRIPT}", "a100-40gb x8", 0, id="a process of each device's own"),
        pytest.param(f"python {LLAMA} --use_liger_kernel", "a100-40gb x8", 0, id="a loss that makes no logits"),
    ],
)
def test_the_upper_end_holds_the_logits_of_all_copies(tmp_path: Path, command: str, gpu: str, copies: int) -> None:
    path = tmp_path / "train.sh"
    path.write_text(command + "\n", encoding="utf-8")
    (run,) = check_paths([str(path)], Settings(gpu=gpu)).runs
    assert run.estimate is not None, run.findings
    said = {name: reason for name, _, reason in run.estimate.assumptions}
    assert ("copies" in said) == bool(copies)
    if copies:
        assert f"{copies} devices" in said["copies"]
        beside = run.estimate.allocated_interval.high_bytes - run.estimate.allocated_bytes
        assert beside > copies * LOGITS
