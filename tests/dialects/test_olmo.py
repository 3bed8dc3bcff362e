"""OLMo's training YAML, and the scripts that start it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.architectures.olmo import decoder
from memlint.check import check_paths
from memlint.facts.spec import TrainingSpec, UnknownModel
from memlint.plugin import Run
from memlint.settings import Settings
from tests.dialects.language_models import run

SAMPLE = (Path(__file__).parents[1] / "hostile" / "samples" / "olmo" / "run.yaml").read_text(encoding="utf-8")
SHARED = SAMPLE.replace("distributed_strategy: ddp", "distributed_strategy: fsdp")
# allenai/OLMo at 0.6: configs/official-1124/OLMo2-7B-stage1.yaml, official-0425/OLMo2-1B-stage1.yaml; the weights that
# came of them say how many parameters there are.
SECOND: dict[str, Any] = {
    **{"rope": True, "include_bias": False, "layer_norm_type": "rms", "norm_after": True, "weight_tying": False},
    **{"attention_layer_norm": True, "vocab_size": 100278, "embedding_size": 100352, "max_sequence_length": 4096},
}
PUBLISHED = {
    "1B": ({"d_model": 2048, "n_heads": 16, "n_layers": 16, "mlp_hidden_size": 16384}, 1_484_916_736),
    "7B": ({"d_model": 4096, "n_heads": 32, "n_layers": 32, "mlp_hidden_size": 22016}, 7_298_617_344),
    "13B": ({"d_model": 5120, "n_heads": 40, "n_layers": 40, "mlp_hidden_size": 27648}, 13_716_198_400),
}


@pytest.mark.parametrize(("sizes", "parameters"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_sizes_have_the_parameters_of_the_published_weights(sizes: dict[str, int], parameters: int) -> None:
    from memlint.estimates import Estimates

    found = Estimates(spec(SAMPLE)).newest(spec(SAMPLE).with_facts({"decoder": decoder({**SECOND, **sizes})}))
    rows = 1024 * 2 - 2 * SECOND["embedding_size"]  # of both ends, which the sample has its own number of
    assert found.parameters == parameters + rows * sizes["d_model"]


def spec(text: str) -> TrainingSpec:
    return run(text, "run.yaml")


def started(tmp_path: Path, options: str, launcher: str = "torchrun --nproc_per_node 8") -> TrainingSpec:
    (tmp_path / ".git").mkdir(exist_ok=True)
    (tmp_path / "run.yaml").write_text(SHARED, encoding="utf-8")
    (tmp_path / "run.sh").write_text(f"{launcher} scripts/train.py run.yaml {options}\n", encoding="utf-8")
    found: list[TrainingSpec] = []
    check_paths([str(tmp_path / "run.sh")], Settings(), look=lambda run: found.append(run.spec))
    return found[0]


@pytest.mark.parametrize(
    ("old", "new", "facts"),
    [
        pytest.param("", "", {"implementation": "olmo", "optimizer": "adamw", "autocast": True}, id="as it stands"),
        pytest.param("flash_attention: true", "flash_attention: false", {"attention": "sdpa"}, id="torch's attention"),
        pytest.param("fused_loss: false", "fused_loss: true", {"fused_kernels": ["cross_entropy"]}, id="a fused loss"),
        pytest.param("compile: null", "compile: {fullgraph: false}", {"compile": True}, id="compiled blocks"),
        pytest.param(
            "activation_checkpointing: null",
            "activation_checkpointing: one_in_four",
            {"checkpointing": "every", "checkpointing_every": 4, "checkpointing_reentrant": False},
            id="every fourth block recomputed",
        ),
        pytest.param(
            "activation_checkpointing: null",
            "activation_checkpointing: true",
            {"checkpointing": "full", "checkpointing_every": None},
            id="all of them, as older configs say it",
        ),
        pytest.param("evaluators:\n  - label: ours", "evaluators: []", {"evaluation_batch_size": None}, id="no eval"),
        pytest.param("device_eval_batch_size: 4\n", "", {"evaluation_batch_size": 16}, id="its size unless stated"),
        pytest.param("precision: amp_bf16", "precision: fp32", {"autocast": False}, id="fp32"),
    ],
)
def test_what_a_config_says(old: str, new: str, facts: dict[str, Any]) -> None:
    found = spec(SAMPLE.replace(old, new, 1) if old else SAMPLE)
    assert {name: found.get(name) for name in facts} == facts
    assert not found.unknown_reason


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("optimizer:\n  name: adamw", "optimizer:\n  name: adagrad", "optimizer.name adagrad is not known"),
        ("activation_checkpointing: null", "activation_checkpointing: fine_grained", "fine_grained is not known"),
        ("precision: amp_bf16\n", "", "precision is not stated"),
        ("  rope: true", "  rope: true\n  alibi: true", "model.alibi True is not known in OLMo's code"),
        ("  rope: true", "  rope: true\n  block_type: llama", "model.block_type llama is not known in OLMo's code"),
        ("include_bias: false", "include_bias: true", "rms with bias_for_layer_norm true is not known"),
        ("n_heads: 8", "n_heads: 0", "n_heads"),
        ("n_heads: 8", "n_heads: 3", "model.d_model 256 is no multiple of n_heads 3"),
        ("mlp_hidden_size: 1024", "mlp_hidden_size: 1023", "model.mlp_hidden_size 1,023 has no halves"),
        ("residual_dropout: 0.0", "residual_dropout: null", "model.residual_dropout is null"),
    ],
)
def test_what_is_not_known_is_named(old: str, new: str, why: str) -> None:
    assert why in spec(SAMPLE.replace(old, new, 1)).unknown_reason


@pytest.mark.parametrize("change", [{"n_heads": "x"}, {"mlp_hidden_size": [1]}, {"d_model": -1}, {"mlp_ratio": "wide"}])
def test_a_size_that_cannot_be_is_named(change: dict[str, Any]) -> None:
    (name,) = change
    with pytest.raises(UnknownModel, match=name):
        decoder(change)


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        pytest.param(
            "",
            {
                **{"device_count": 8, "parallelism.strategy": "fsdp1", "parallelism.reduce_dtype": "float32"},
                **{"gradient_accumulation_steps": 1, "parallelism.wrap": None, "parallelism.shard": None},
            },
            id="FSDP of all devices",
        ),
        pytest.param(
            "--fsdp.precision=pure --device_train_microbatch_size=2 --fsdp.wrapping_strategy=by_block_and_size",
            {
                **{"parallelism.reduce_dtype": "bfloat16", "micro_batch_size": 2, "gradient_accumulation_steps": 4},
                **{"parallelism.wrap": ["Embedding", "OlmoLayer", "lm_head"]},
            },
            id="keys that the command states",
        ),
        pytest.param(
            "--fsdp.precision=null --fsdp.wrapping_strategy=null",
            {"parallelism.as_stored": True, "parallelism.reduce_dtype": None, "parallelism.wrap": "none"},
            id="as the weights are stored, in one unit",
        ),
        pytest.param(
            "--fsdp.sharding_strategy=SHARD_GRAD_OP --compile.fullgraph=false",
            {"parallelism.reshard_after_forward": False, "compile": True},
            id="what stays gathered; a section that the command begins",
        ),
        pytest.param(
            "--fsdp.sharding_strategy=HYBRID_SHARD --fsdp.hybrid_sharding_num_model_replicas=2",
            {"parallelism.shard": 4, "device_count": 8},
            id="two models on the devices",
        ),
    ],
)
def test_what_a_command_says(tmp_path: Path, options: str, facts: dict[str, Any]) -> None:
    found = started(tmp_path, options)
    assert {name: found.get(name) for name in facts} == facts
    assert not found.unknown_reason


def test_the_number_of_devices_that_the_command_line_states_says_how_often_gradients_accumulate(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(SHARED, encoding="utf-8")
    found: list[TrainingSpec] = []
    check_paths([str(tmp_path / "run.yaml")], Settings(gpu="a100-40gb x4"), look=lambda run: found.append(run.spec))
    assert (found[0]["device_count"], found[0]["gradient_accumulation_steps"]) == (4, 2)


def test_a_model_that_the_command_changes_is_named(tmp_path: Path) -> None:
    found = started(tmp_path, "--model.init_device=meta --model.n_layers=40")
    assert found.unknown_reason == "--model.n_layers changes the model that the file describes, which is not followed"
    assert not started(tmp_path, "--model.flash_attention=false --model.init_device=meta").unknown_reason


def test_where_each_machine_has_a_model_those_of_one_say_all(tmp_path: Path) -> None:
    launcher = 'torchrun --nnodes "${NODES}:${NODES}" --nproc-per-node 8'
    found = started(
        tmp_path, '--fsdp.sharding_strategy=HYBRID_SHARD --fsdp.hybrid_sharding_num_model_replicas="${NODES}"', launcher
    )
    assert (found["device_count"], found["parallelism.shard"]) == (8, 8)
    assert not found.unknown_reason
    assert "--nnodes" in str(started(tmp_path, "", launcher).missing)


def test_facts_are_written_in_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(SAMPLE.replace("flash_attention: true", "flash_attention: false"))
    found: list[Run] = []
    check_paths([str(tmp_path / "run.yaml")], Settings(), look=found.append)

    def written(**changes: Any) -> list[tuple[str, str]]:
        lines = SAMPLE.splitlines()
        return [(lines[edit.span.line - 1].split()[0], edit.text) for edit in found[0].edits(changes)]

    assert written(checkpointing="full") == [("activation_checkpointing:", "whole_layer")]
    assert written(attention="flash") == [("flash_attention:", "true")]
    assert written(micro_batch_size=4) == [("device_train_microbatch_size:", "4")]
    assert written(checkpointing="selective") == written(gradient_accumulation_steps=2) == []
