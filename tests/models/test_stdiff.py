"""STDiff: parameters to the last one, and the memory that the analysis of its configs got wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint.api import estimate as api_estimate
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.models.stdiff import build
from memlint.models.step import record_step
from memlint.tape.estimate import Estimate
from memlint.units import GiB

EXAMPLES = Path(__file__).parents[2] / "examples" / "stdiff"
BEFORE = "kitti_range_train_config.yaml"
AFTER = "kitti_range_train_config_after.yaml"

UNET, MOTION_ENCODER, DYNAMICS, GRU = 194_150_465, 1_812_480, 4_720_640, 3_539_712


def estimate(config: str = BEFORE, *overrides: str) -> Estimate:
    return api_estimate(EXAMPLES / config, overrides, isolated=True)


def parameters_by_part(config: str) -> dict[str, int]:
    """Elements of the first two levels of module names."""
    [spec] = registry.specs(load(str(EXAMPLES / config)))
    tape = record_step(build, spec).tape
    found: dict[str, int] = {}
    for size, label in zip(tape.sizes, tape.labels):
        if label.component == "parameters":
            parts = label.module.split(".")
            name = parts[0] if parts[0] == "diffusion_unet" else ".".join(parts[:2])
            found[name] = found.get(name, 0) + size // 4
    return found


def test_each_part_has_the_parameters_that_the_code_base_counts() -> None:
    assert parameters_by_part(BEFORE) == {
        "tde_model.motion_encoder": MOTION_ENCODER,
        "tde_model.dynamics": DYNAMICS,
        "tde_model.gru": GRU,
        "diffusion_unet": UNET,
    }
    found = estimate()
    assert found.parameters == found.trainable_parameters == 204_223_297


def test_the_first_version_of_the_config_has_533_million() -> None:
    unet = "STDiff.Diffusion.unet_config"
    found = estimate(
        BEFORE,
        f"{unet}.block_out_channels=[128,256,512,768,1024]",
        f"{unet}.attention_head_dim=[null,32,64,192,256]",
        "Dataset.batch_size=1",
    )
    assert found.parameters == 532_990_017


# Traces of the UNet alone. Ours keeps more in fp32: a group norm on CUDA copies the channels-last tensors that
# attention leaves behind, and keeps the copy (5.3 GiB); motion encoder, ConvGRU and loss keep another 1.4 GiB.
CHANNELS_LAST_COPIES = 5.25
MOTION = 1.37


@pytest.mark.parametrize(
    ("attention", "precision", "traced", "copies"),
    [
        ("plain", "no", 521.4, CHANNELS_LAST_COPIES),
        ("xformers", "no", 95.3, CHANNELS_LAST_COPIES),
        ("sdpa", "no", 93.1, CHANNELS_LAST_COPIES),
        # Under autocast the copy that is kept is the one that the cast to fp32 makes anyway.
        ("plain", "bf16", 710.5, 0.0),
        ("xformers", "bf16", 69.1, 0.0),
    ],
)
def test_saved_activations_are_the_traced_ones(attention: str, precision: str, traced: float, copies: float) -> None:
    found = estimate(BEFORE, f"+Training.attention={attention}", f"Training.mixed_precision='{precision}'")
    motion = MOTION if precision == "no" else 0.87
    assert found.saved_bytes / GiB == pytest.approx(traced + copies + motion, rel=0.002)


def test_the_forks_checkpointing_under_autocast_keeps_what_was_traced() -> None:
    found = estimate(
        BEFORE,
        "Training.use_xformers=true",
        "Training.mixed_precision=bf16",
        "Training.gradient_checkpointing=true",
    )
    assert found.saved_bytes / GiB == pytest.approx(37.8 + 0.87, rel=0.005)


def test_the_analysis_was_off_by_a_factor_of_hundreds() -> None:
    assert estimate().allocated_bytes > 400 * 1.5 * GiB  # it said 1.2 to 1.5 GB


def test_autocast_adds_memory_to_plain_attention() -> None:
    assert estimate(BEFORE, "Training.mixed_precision=bf16").saved_bytes > 1.3 * estimate().saved_bytes


def test_half_the_head_dimension_is_twice_the_plain_attention() -> None:
    heads = "STDiff.Diffusion.unet_config.attention_head_dim"
    before = estimate().saved_bytes
    after = estimate(BEFORE, f"{heads}=[null,64,64,64,64]").saved_bytes
    assert (after - before) / GiB == pytest.approx(428, rel=0.01)
    fused = estimate(BEFORE, "Training.use_xformers=true").saved_bytes
    halved = estimate(BEFORE, "Training.use_xformers=true", f"{heads}=[null,64,64,64,64]").saved_bytes
    assert halved == pytest.approx(fused, rel=0.001)


def test_the_forks_flag_reaches_5_of_27_residual_blocks() -> None:
    [spec] = registry.specs(load(str(EXAMPLES / AFTER)))
    assert spec["checkpointed_layers"] == (5, 27)
    on = estimate(BEFORE, "Training.use_xformers=true", "Training.gradient_checkpointing=true").saved_bytes
    off = estimate(BEFORE, "Training.use_xformers=true").saved_bytes
    every = estimate(BEFORE, "Training.use_xformers=true", "Training.gradient_checkpointing=all").saved_bytes
    assert every < 0.25 * on < 0.25 * off


def test_every_predicted_frame_is_an_image_of_its_own() -> None:
    fused = "Training.use_xformers=true"
    five, one = estimate(BEFORE, fused), estimate(BEFORE, fused, "Dataset.rand_Tp=1")
    assert five.saved_bytes == pytest.approx(5 * one.saved_bytes, rel=0.06)


def test_all_predicted_frames_count_where_none_are_drawn() -> None:
    drawn = estimate(BEFORE, "Dataset.rand_Tp=3").saved_bytes
    assert estimate(BEFORE, "Dataset.rand_predict=false", "Dataset.rand_Tp=3").saved_bytes > 1.6 * drawn


def test_ema_is_a_second_copy_of_the_weights() -> None:
    found = estimate(AFTER)
    assert found.component_bytes("ema") == pytest.approx(4 * found.parameters, rel=0.001)
    without = estimate(AFTER, "Training.use_ema=false")
    assert without.component_bytes("ema") == 0
    assert found.allocated_bytes - without.allocated_bytes == pytest.approx(4 * found.parameters, rel=0.001)


def test_accumulation_does_not_double_gradients() -> None:
    once = estimate(AFTER, "Training.gradient_accumulation_steps=1")
    often = estimate(AFTER, "Training.gradient_accumulation_steps=16")
    assert often.allocated_bytes == estimate(AFTER).allocated_bytes
    assert often.allocated_bytes - once.allocated_bytes <= 4 * once.parameters * 1.01


def test_what_was_tuned_fits_a_12_gib_card() -> None:
    assert estimate(AFTER).verdict(12 * GiB) == "FITS"


def test_the_script_is_the_run_that_its_config_states() -> None:
    assert estimate("train.sh").allocated_bytes == estimate().allocated_bytes


def test_components_add_up_to_the_device_figure() -> None:
    found = estimate(AFTER)
    assert sum(component.size_bytes for component in found.components) == found.device_bytes


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("STDiff.Diffusion.unet_config.down_block_types=[DownBlock2D,SkipDownBlock2D]", "SkipDownBlock2D"),
        ("STDiff.Diffusion.unet_config.sample_size=[60,2048]", "cannot be halved"),
        ("STDiff.Diffusion.unet_config.norm_num_groups=16", "norm_num_groups"),
    ],
    ids=["another kind of block", "an odd height", "other norms"],
)
def test_what_is_not_known_says_why(override: str, words: str) -> None:
    from memlint.models import UnknownModel

    with pytest.raises((UnknownModel, ValueError), match=words):
        estimate(BEFORE, override if "norm_num" not in override else "+" + override)
