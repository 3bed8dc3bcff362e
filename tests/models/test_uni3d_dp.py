"""3D Diffusion Policy: parameters to the last one, and the memory that the analysis of these configs got wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.api import estimate as api_estimate
from memlint.tape.estimate import Estimate
from memlint.units import GiB

EXAMPLES = Path(__file__).parents[2] / "examples" / "uni3d_dp"
BEFORE = "uni3d+dp.yaml"

UNET = 255_153_306  # 26 actions, condition 2 x 128, levels 512, 1024, 2048, kernel 5
STATE_MLP = 24 * 64 + 64 + 64 * 64 + 64
POINTNET = 59_072
PROJECTION = 1024 * 64 + 64
TRANSFORMERS = {  # timm's counts of these models
    "eva02_tiny_patch14_224": 5_502_144,
    "eva02_small_patch14_224": 21_621_120,
    "eva02_base_patch14_448": 87_117_544,
    "eva02_large_patch14_448": 305_080_232,
    "eva_giant_patch14_560": 1_014_447_464,
}
WIDTHS = {"tiny": 192, "small": 384, "base": 768, "large": 1024, "giant": 1408}


def mini_pointnet_and_bridges(width: int) -> int:
    """Everything of Uni3D around the transformer, by hand: 512 group features, embedding 1024."""
    first = (6 * 128 + 128) + 2 * 128 + (128 * 256 + 256)
    second = (512 * 512 + 512) + 2 * 512 + (512 * 512 + 512)
    bridges = (512 * width + width) + (width * 1024 + 1024) + 2 * width
    position = (3 * 128 + 128) + (128 * width + width)
    return first + second + bridges + position


def estimate(config: str = BEFORE, *overrides: str) -> Estimate:
    return api_estimate(EXAMPLES / config, overrides, isolated=True)


def test_the_policy_with_the_tiny_uni3d_has_the_published_number_of_parameters() -> None:
    found = estimate()
    assert found.parameters == 261_609_114
    assert found.parameters == UNET + STATE_MLP + PROJECTION + 6_384_448
    assert TRANSFORMERS["eva02_tiny_patch14_224"] + mini_pointnet_and_bridges(192) == 6_384_448
    assert found.trainable_parameters == found.parameters


@pytest.mark.parametrize("model", TRANSFORMERS)
def test_every_transformer_has_timms_number_of_parameters(model: str) -> None:
    width = WIDTHS[model.split("_")[1]]
    encoder = "policy.pointcloud_encoder_cfg"
    found = estimate(BEFORE, f"{encoder}.pc_model={model}", f"{encoder}.pc_feat_dim={width}", "dataloader.batch_size=2")
    expected = TRANSFORMERS[model] + mini_pointnet_and_bridges(width)
    assert found.parameters == UNET + STATE_MLP + PROJECTION + expected


POINTNET_KEYS = (
    "policy.pointnet_type=pointnet",
    "policy.use_pc_color=false",
    "+policy.pointcloud_encoder_cfg.out_channels=64",
    "+policy.pointcloud_encoder_cfg.use_layernorm=true",
    "+policy.pointcloud_encoder_cfg.final_norm=layernorm",
)


def test_the_policy_with_pointnet_has_the_published_number_of_parameters() -> None:
    assert estimate(BEFORE, *POINTNET_KEYS).parameters == 255_218_138 == UNET + STATE_MLP + POINTNET


def test_a_frozen_encoder_trains_everything_but_itself() -> None:
    found = estimate("uni3d+dp_after.yaml")
    assert found.parameters - found.trainable_parameters == 6_384_448


def test_before_needs_under_12_gib_of_tensors_and_not_48() -> None:
    found = estimate()
    assert found.peak_phase == "backward"
    assert found.allocated_bytes / GiB == pytest.approx(11.4, rel=0.02)


def test_before_keeps_6_7_gib_for_backward_without_attention_probabilities() -> None:
    # 6.48 GiB of the encoder with plain attention, less its probabilities, and 0.33 GiB of the UNet
    assert estimate().saved_bytes / GiB == pytest.approx(6.48 - 0.145 + 0.33, rel=0.002)


@pytest.mark.parametrize("config", ["uni3d+dp_after.yaml", "uni3d+dp_ultra_low.yaml", "uni3d+dp_balanced.yaml"])
def test_what_fits_peaks_in_the_optimizer_whatever_its_activations_are(config: str) -> None:
    found = estimate(config)
    assert found.peak_phase == "optimizer_step"
    assert found.allocated_bytes / GiB == pytest.approx(5.75, abs=0.01)


# Saved by the encoder at 256 clouds, with plain attention, its probabilities, and 0.33 GiB of the UNet besides.
@pytest.mark.parametrize(
    ("groups", "group_size", "encoder", "probabilities"),
    [(64, 32, 6.48, 0.145), (128, 32, 13.2, 0.57), (256, 32, 27.5, 2.3), (512, 32, 59.4, 9.0), (512, 64, 87.5, 9.0)],
)
def test_saved_memory_grows_linearly_with_groups_and_points(
    groups: int, group_size: int, encoder: float, probabilities: float
) -> None:
    where = "policy.pointcloud_encoder_cfg"
    found = estimate(BEFORE, f"{where}.num_group={groups}", f"{where}.group_size={group_size}")
    assert found.saved_bytes / GiB == pytest.approx(encoder - probabilities + 0.33, rel=0.01)


def test_pointnet_on_a_thousand_points_keeps_more_than_its_parameters_tell() -> None:
    dense = "task.shape_meta.obs.point_cloud.shape=[1024,3]"
    assert estimate(BEFORE, *POINTNET_KEYS, dense).saved_bytes / GiB == pytest.approx(0.88 + 0.33, rel=0.005)


def test_a_frozen_encoder_keeps_nothing() -> None:
    trained, frozen = (
        estimate("uni3d+dp_after.yaml", f"policy.pointcloud_encoder_cfg.freeze_weights={value}").saved_bytes
        for value in ("false", "true")
    )
    assert trained / GiB == pytest.approx(0.80 - 0.009 + 0.08, rel=0.01)
    assert frozen / GiB == pytest.approx(0.08, abs=0.003)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("policy.pointcloud_encoder_cfg.use_checkpoint", "true"),
        ("policy.pointcloud_encoder_cfg.patch_dropout", "0.5"),
        ("training.mixed_precision", "bf16"),
        ("n_obs_steps", "1"),
        ("training.use_ema", "false"),
        ("policy.pointcloud_encoder_cfg.freeze_weights", "true"),
        ("dataloader.batch_size", "64"),
    ],
)
def test_each_lever_lowers_the_peak(key: str, value: str) -> None:
    assert estimate(BEFORE, f"{key}={value}").allocated_bytes < estimate().allocated_bytes


def test_accumulation_keeps_gradients_and_no_more() -> None:
    once, often = estimate(), estimate(BEFORE, "training.gradient_accumulate_every=8")
    gradients = 4 * (once.trainable_parameters - 162_624)  # the image stem of the transformer never gets one
    assert often.phases["forward"] - once.phases["forward"] == pytest.approx(gradients, rel=0.03)
    assert estimate(BEFORE, "training.gradient_accumulate_every=2").phases == often.phases


def test_a_fused_optimizer_has_no_temporaries() -> None:
    list_, fused, loop = (
        estimate("uni3d+dp_after.yaml", *keys)
        for keys in ((), ("+optimizer.fused=true",), ("+optimizer.foreach=false",))
    )
    step = {name: found.phases["optimizer_step"] for name, found in (("list", list_), ("fused", fused), ("loop", loop))}
    assert step["list"] - step["fused"] == pytest.approx(4 * list_.trainable_parameters, rel=0.001)
    assert step["fused"] < step["loop"] < step["list"]


def test_components_add_up_to_the_device_figure() -> None:
    found = estimate()
    assert sum(component.size_bytes for component in found.components) == found.device_bytes


def unknown(*overrides: str) -> str:
    with pytest.raises(ValueError, match=r".") as error:
        estimate(BEFORE, *overrides)
    return str(error.value)


@pytest.mark.parametrize(
    ("overrides", "word"),
    [
        (("policy.condition_type=cross_attention_film",), "condition_type"),
        (("policy._target_=my_policies.TwoHandedDP3",), "TwoHandedDP3"),
        (("policy.pointcloud_encoder_cfg.pc_model=vit_base_patch16_224",), "pc_model"),
        (("policy.obs_as_global_cond=false",), "obs_as_global_cond"),
    ],
)
def test_what_is_not_known_says_which_key_it_is(overrides: tuple[str, ...], word: str) -> None:
    assert word in unknown(*overrides)


def test_the_estimate_needs_no_gradient_accumulation_key() -> None:
    found: Any = estimate(BEFORE, "~training.gradient_accumulate_every")
    assert found.phases == estimate().phases
