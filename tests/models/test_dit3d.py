"""DiT3D: parameters to the last one, and the memory that the analysis of these configs got wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint.api import estimate as api_estimate
from memlint.tape.estimate import Estimate
from memlint.units import GiB

EXAMPLES = Path(__file__).parents[2] / "examples" / "dit3d"
NO_TEXT_ENCODER = "TEXT_ENCODER_MODEL=null"
DISTILBERT = 66_362_880


def estimate(*overrides: str, config: str = "config.py") -> Estimate:
    return api_estimate(EXAMPLES / config, overrides, isolated=True)


def per_frame(size: str, patch: int, *overrides: str) -> Estimate:
    once = ("GRADIENT_ACCUMULATION_STEPS=1", NO_TEXT_ENCODER)
    return estimate(f"DIT_MODEL_SIZE=DiT3D-{size}/{patch}", f"DIT_PATCH_SIZE={patch}", *once, *overrides)


# 4 channels, patches of 2 x 2, 1,000 classes, learned variance: the models of the DiT paper (its table 1 rounds them
# to 33 M, 130 M, 458 M and 675 M), without their fixed position tables.
PUBLISHED = {"S": 32_865_056, "B": 130_315_808, "L": 457_840_672, "XL": 674_834_720}


@pytest.mark.parametrize("size", PUBLISHED)
def test_native_form_has_the_published_number_of_parameters(size: str) -> None:
    found = estimate(
        f"DIT_MODEL_SIZE=DiT3D-{size}/2",
        "INPUT_SHAPE=[4,1,32,32]",
        "DIT_VIDEO_SIZE=[1,32,32]",
        "DIT_PATCH_SIZE=[1,2,2]",
        "DIT_LEARN_SIGMA=true",
        "TEXT_EMBED_DIM=null",
        NO_TEXT_ENCODER,
    )
    assert found.parameters == PUBLISHED[size]


@pytest.mark.parametrize(("size", "hidden", "depth"), [("XS", 192, 6), ("Tiny", 256, 6), ("XL", 1152, 28)])
def test_a_block_has_18_h_squared_and_15_h_parameters(size: str, hidden: int, depth: int) -> None:
    h = hidden
    patches = 4 * 16 * 16 * 3
    ends = (patches * h + h) + (256 * h + h + h * h + h) + (768 * h + h + h * h + h)
    final = (h * patches + patches) + (h * 2 * h + 2 * h)
    found = estimate(f"DIT_MODEL_SIZE=DiT3D-{size}/4", NO_TEXT_ENCODER)
    assert found.parameters == depth * (18 * h * h + 15 * h) + ends + final


def test_the_text_encoder_is_on_the_card_frozen_or_not() -> None:
    without, frozen = estimate(NO_TEXT_ENCODER), estimate()
    trained = estimate("TEXT_FREEZE_BACKBONE=false")
    assert frozen.parameters - without.parameters == DISTILBERT == trained.parameters - without.parameters
    assert frozen.trainable_parameters == without.trainable_parameters
    assert trained.trainable_parameters == trained.parameters
    assert frozen.component_bytes("helper_models") == pytest.approx(4 * DISTILBERT, rel=0.001)
    assert without.component_bytes("helper_models") == 0
    # gradients, two moments and the temporaries of the step
    growth = trained.phases["optimizer_step"] - frozen.phases["optimizer_step"]
    assert growth == pytest.approx(16 * DISTILBERT, rel=0.01)


def test_native_tokens_of_the_tiny_model_take_next_to_nothing() -> None:
    assert estimate(NO_TEXT_ENCODER).saved_bytes / GiB == pytest.approx(0.009, abs=0.003)


def test_native_xl_keeps_a_fifth_of_a_gib() -> None:
    found = estimate("DIT_MODEL_SIZE=DiT3D-XL/2", NO_TEXT_ENCODER)
    assert found.saved_bytes / GiB == pytest.approx(0.19, rel=0.04)
    assert found.peak_phase == "optimizer_step"


@pytest.mark.parametrize(("size", "patch", "gib"), [("Tiny", 4, 0.65), ("S", 2, 11.2), ("XL", 2, 75.2)])
def test_per_frame_tokens_keep_what_the_trace_says(size: str, patch: int, gib: float) -> None:
    # Besides the blocks: the temporal head, which the trace left out (0.02 GiB with the tiny model).
    assert per_frame(size, patch).saved_bytes / GiB == pytest.approx(gib, rel=0.01, abs=0.025)


def test_a_frozen_backbone_keeps_nothing_and_still_needs_room_to_run() -> None:
    found = per_frame("XL", 2, "DIT_FREEZE_BACKBONE=true")
    assert found.saved_bytes / GiB < 0.02
    assert found.phases["forward"] / GiB - 4 * found.parameters / GiB == pytest.approx(2.7, abs=0.3)


def test_a_frozen_backbone_on_the_old_input_needs_121_gib_for_one_forward_pass() -> None:
    old = ("INPUT_SHAPE=[3,28,128,128]", "DIT_VIDEO_SIZE=[28,128,128]", "BATCH_SIZE=2", "DIT_FREEZE_BACKBONE=true")
    found = per_frame("XL", 2, *old)
    assert found.phases["forward"] / GiB == pytest.approx(121.5, rel=0.01)
    assert found.allocated_bytes == found.phases["forward"]


def test_attention_probabilities_of_the_tiny_model_take_a_tenth_of_a_gib() -> None:
    plain, fused = per_frame("Tiny", 4), per_frame("Tiny", 4, "DIT_FUSED_ATTENTION=true")
    rows = 6 * 16 * 256  # blocks, frames, tokens
    probabilities = rows * 4 * 256 * 4  # 4 heads, 256 tokens, 4 bytes
    assert probabilities / GiB == pytest.approx(0.094, rel=0.005)
    # Instead of them, the fused kernel keeps its output and one number per row and head.
    output, sums = rows * 256 * 4, rows * 4 * 4
    assert plain.saved_bytes - fused.saved_bytes == probabilities - output - sums


def test_the_config_that_fits_fits_many_times_over() -> None:
    found = estimate()
    assert found.allocated_bytes / GiB < 0.5
    assert found.verdict(16 * GiB) == "FITS"


def test_the_config_before_it_does_not_fit() -> None:
    found = estimate(config="config_before.py")
    assert found.verdict(16 * GiB) == "OOM"
    assert found.verdict(24 * GiB) == "FITS"


@pytest.mark.parametrize(
    "override",
    ["USE_AMP=true", "DIT_GRADIENT_CHECKPOINTING=true", "DIT_FUSED_ATTENTION=true", "DIT_FREEZE_BACKBONE=true"],
)
def test_each_lever_lowers_the_peak_of_the_large_model(override: str) -> None:
    assert per_frame("XL", 2, override).allocated_bytes < per_frame("XL", 2).allocated_bytes


def test_learning_the_variance_is_no_lever() -> None:
    with_it, without = (per_frame("S", 2, f"DIT_LEARN_SIGMA={value}").allocated_bytes for value in ("true", "false"))
    assert with_it / without == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("name", ["DiT3D-XL/2", "DiT3D-XL-2", "DiT-XL/2"])
def test_spellings_of_one_size_are_one_model(name: str) -> None:
    assert estimate(f"DIT_MODEL_SIZE={name}").parameters == estimate("DIT_MODEL_SIZE=DiT3D-XL/2").parameters


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("MODEL_ARCHITECTURE=unet3d", "unet3d"),
        ("TEXT_ENCODER_MODEL=openai/clip-vit-base-patch32", "TEXT_ENCODER_MODEL"),
    ],
)
def test_what_is_not_known_says_which_key_it_is(override: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        estimate(override)


@pytest.mark.parametrize("patch", ["[4,128,128]", "[32,16,16]", "128"])
def test_a_patch_larger_than_the_video_still_has_an_answer(patch: str) -> None:
    assert estimate(f"DIT_PATCH_SIZE={patch}").allocated_bytes > 0
