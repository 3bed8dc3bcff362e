"""Family simpletuner: what a config.json states, what SimpleTuner does besides, why there is no estimate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memlint.dialects import registry
from memlint.documents.load import load
from memlint.estimates import estimate_spec
from memlint.facts.spec import ASSUMED, TrainingSpec

LORA = {
    **{"model_family": "sdxl", "model_type": "lora", "lora_rank": 8, "train_batch_size": 2, "mixed_precision": "bf16"},
    **{"optimizer": "adamw_bf16", "data_backend_config": "data.json", "resolution": 1024},
}


def read(folder: Path, sets: list[dict[str, Any]] | None = None, **changes: Any) -> TrainingSpec:
    words = {key: value for key, value in {**LORA, **changes}.items() if value is not None}
    path = folder / "config.json"
    path.write_text(json.dumps(words), encoding="utf-8")
    if sets is not None:
        (folder / "data.json").write_text(json.dumps(sets), encoding="utf-8")
    (spec,) = registry.specs(load(str(path)))
    assert spec.family == "simpletuner"
    return spec


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        pytest.param(
            {},
            {"micro_batch_size": 2, "lora.r": 8, "tuning": "lora", "parameter_dtype": "bfloat16"},
            id="what the file says",
        ),
        pytest.param(
            {"lora_rank": None, "train_batch_size": None, "optimizer": None, "mixed_precision": None},
            {
                **{"micro_batch_size": 4, "lora.r": 16, "lora.dropout": 0.1, "checkpointing": "full"},
                **{"optimizer": "adamw_compensated"},
            },
            id="what SimpleTuner takes where nothing is said",
        ),
        pytest.param(
            {"model_family": "flux", "flux_lora_target": "context"},
            {"lora.targets": ["add_k_proj", "add_q_proj", "add_v_proj", "to_add_out"]},
            id="the layers of Flux that are named",
        ),
        pytest.param(
            {"model_family": "sd3"},
            {"model": "stabilityai/stable-diffusion-3.5-medium", "hyperparameters.prompt_tokens": 231},
            id="Stable Diffusion 3.5 medium",
        ),
        pytest.param(
            {"model_family": "sd3", "model_flavour": "large"},
            {"model": "stabilityai/stable-diffusion-3.5-large"},
            id="and large",
        ),
        pytest.param(
            {"optimizer": "bnb-adamw8bit-paged"},
            {"optimizer": "adamw_8bit", "optimizer_library": "bitsandbytes", "optimizer_paged": True},
            id="an optimizer of another library",
        ),
        pytest.param({"resolution": 1.0, "resolution_type": "area"}, {"image_size": 1024}, id="megapixels"),
        pytest.param({"resolution": 768, "resolution_type": "pixel"}, {"image_size": 768}, id="a side in pixels"),
    ],
)
def test_what_a_run_is(tmp_path: Path, changes: dict[str, Any], facts: dict[str, Any]) -> None:
    spec = read(tmp_path, **changes)
    assert (spec.architecture, spec.unknown_reason) == ("diffusion", "")
    assert {name: spec.get(name) for name in facts} == facts  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sets", "size", "assumed"),
    [
        pytest.param(None, 1024, True, id="a file that is not there"),
        pytest.param([{"id": "a", "resolution": 512}], 512, False, id="the data set's own"),
        pytest.param([{"id": "a", "resolution": 512}, {"id": "b"}], 1024, False, id="one that takes the run's"),
        pytest.param(
            [{"id": "a", "resolution": 512}, {"id": "b", "resolution": 2048, "disabled": True}],
            *(512, False),
            id="one that is switched off",
        ),
        pytest.param(
            [{"id": "a", "resolution": 512}, {"id": "b", "dataset_type": "text_embeds"}],
            *(512, False),
            id="a place of prompts",
        ),
        pytest.param(
            [{"id": "a", "resolution": 0.5, "resolution_type": "area"}], 704, False, id="megapixels of a data set"
        ),
    ],
)
def test_the_largest_data_set_decides(
    tmp_path: Path, sets: list[dict[str, Any]] | None, size: int, assumed: bool
) -> None:
    fact = read(tmp_path, sets).fact("image_size")
    assert fact is not None
    assert (fact.value, fact.origin == ASSUMED) == (size, assumed)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        pytest.param({"lora_type": "lycoris"}, "LyCORIS", id="adapters of another library"),
        pytest.param({"base_model_precision": "int8-quanto"}, "quantised", id="a quantised base"),
        pytest.param({"keep_vae_loaded": True}, "an autoencoder that stays", id="an autoencoder that is not deleted"),
        pytest.param({"peft_lora_target_modules": "to_q"}, "layers that the file names", id="other layers"),
        pytest.param({"gradient_checkpointing_interval": 2}, "every other block", id="some blocks alone"),
        pytest.param({"controlnet": True}, "ControlNet", id="a ControlNet"),
        pytest.param({"model_family": "flux", "model_flavour": "schnell"}, "schnell", id="another model of a family"),
        pytest.param({"model_family": "pixart"}, "pixart", id="a family that nobody describes"),
        pytest.param({"optimizer": "optimi-lion"}, "optimi-lion", id="an optimizer that nobody describes"),
        pytest.param({"mixed_precision": "no"}, "bfloat16 alone", id="an optimizer of 16 bits for 32"),
        pytest.param({"resolution": "large"}, "resolution", id="a size that is none"),
    ],
)
def test_why_there_is_no_estimate(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    spec = read(tmp_path, **changes)
    assert spec.architecture is None
    assert why in spec.unknown_reason


def test_nothing_but_the_adapters_has_states(tmp_path: Path) -> None:
    found = estimate_spec(read(tmp_path, model_family="sd1x", resolution=512))
    whole = estimate_spec(read(tmp_path, model_family="sd1x", resolution=512, model_type="full"))
    assert whole.parameters == whole.trainable_parameters == 859_520_964
    assert found.component_bytes("optimizer") == 6 * found.trainable_parameters
    states = 6 * whole.trainable_parameters
    assert states < whole.component_bytes("optimizer") < 1.1 * states  # and what the step of one parameter holds
    assert found.component_bytes("parameters") == pytest.approx(2 * found.parameters, rel=1e-3)  # in whole blocks


# documentation/experimental/SEGMENTED_CHECKPOINTING.md at bc8e6ab, of one H100, in GiB, without what encodes before.
SD1, SD3 = {"model_family": "sd1x", "resolution": 512, "lora_rank": 16}, {"model_family": "sd3", "lora_rank": 128}
PUBLISHED = {
    "SD 1": ({**SD1, "train_batch_size": 1, "gradient_checkpointing": False}, 2.87),
    "SD 1, recomputed": ({**SD1, "train_batch_size": 1}, 1.98),
    "SD 3.5": ({**SD3, "train_batch_size": 3, "gradient_checkpointing": False}, 34.59),
    "SD 3.5, recomputed": ({**SD3, "train_batch_size": 3}, 7.67),
}


@pytest.mark.parametrize(("changes", "gib"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_peaks(tmp_path: Path, changes: dict[str, Any], gib: float) -> None:
    phases = estimate_spec(read(tmp_path, **changes)).phases
    assert max(phases[phase] for phase in ("forward", "backward")) / 2**30 == pytest.approx(gib, rel=0.1)
