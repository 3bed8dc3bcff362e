"""Traced runs of transformers' models, by their configs, against the static estimate of the same configs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memlint.dialects import registry
from memlint.documents.load import load
from memlint.measure.request import request_for
from memlint.measure.trace import trace
from memlint.models import record
from memlint.settings import Allowance, Settings
from tests.differential.training import walk

HALVES = {"attention_heads": 4, "layers": 2, "ffn_dim": 300}
TRANSLATOR = {
    "vocab_size": 4000, "d_model": 128, "max_position_embeddings": 512, "pad_token_id": 1, "decoder_start_token_id": 2,
    **{f"{half}_{name}": value for half in ("encoder", "decoder") for name, value in HALVES.items()},
}  # fmt: skip
DECODER = {
    "vocab_size": 4000, "hidden_size": 256, "intermediate_size": 700, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 2, "max_position_embeddings": 2048,
}  # fmt: skip
ALL = "--per_device_train_batch_size 3 --bf16 --do_train --output_dir out --model_name_or_path ./model"

# A case -> config.json, class, command line
RUNS: dict[str, tuple[dict[str, Any], str, str]] = {
    "outputs have a length of their own, and no layer is passed over": (
        {"model_type": "m2m_100", **TRANSLATOR, "encoder_layerdrop": 0.5, "decoder_layerdrop": 0.5},
        "M2M100ForConditionalGeneration",
        f"python run_translation.py {ALL} --max_source_length 200 --max_target_length 150 --pad_to_max_length True",
    ),
    "smoothed labels are the Trainer's": (
        {"model_type": "llama", **DECODER},
        "LlamaForCausalLM",
        f"python run_clm.py {ALL} --block_size 300 --label_smoothing_factor 0.1",
    ),
    "an adapter in fp32 over weights in 16 bits": (
        {"model_type": "llama", **DECODER},
        "LlamaForCausalLM",
        f"trl sft {ALL} --max_length 300 --packing --use_peft --lora_r 8 --lora_target_modules q_proj v_proj "
        "--dtype bfloat16 --label_smoothing_factor 0.1",
    ),
}


@pytest.mark.parametrize("case", RUNS)
def test_a_traced_config_takes_what_its_static_estimate_says(case: str, tmp_path: Path) -> None:
    config, class_, line = RUNS[case]
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "architectures": [class_]}))
    script = tmp_path / "run.sh"
    script.write_text(line + "\n")
    [spec] = registry.specs(load(str(script)))
    ours = record(spec)
    truth = trace(request_for("trace", spec, Settings(), Allowance(None, "", None, None)))
    assert (ours.parameters, ours.trainable_parameters) == (truth.parameters, truth.trainable_parameters)
    static, traced = walk(ours.tape)[0], walk(truth.tape)[0]
    assert static["backward"] == pytest.approx(traced["backward"], rel=0.002)
    # the model's last hidden states are let go of before the Trainer's own loss, and not here
    assert static["forward"] == pytest.approx(traced["forward"], rel=0.01)
