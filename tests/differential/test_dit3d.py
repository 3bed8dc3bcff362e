"""DiT3D: the static step against the torch model of examples/dit3d, config text to bytes."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from tests.differential.training import EXAMPLES, Comparison, adamw, compare, in_meta, in_torch, read, reference, report
from tests.draws import draws

SETTINGS = draws(26)  # different ones; hypothesis draws some twice


class Setting(NamedTuple):
    batch: int = 1
    size: str = "Tiny/4"
    video: tuple[int, int, int] = (16, 64, 64)
    patch: int | tuple[int, int, int] = (4, 16, 16)
    frozen: bool = False
    fused: bool = False
    checkpoint: bool = False
    learn_sigma: bool = False
    text_encoder: str | None = None
    text_width: int | None = 768
    text_frozen: bool = True
    amp: bool = False
    accumulation: int = 1
    optimizer: str = "foreach"

    def config(self) -> str:
        return f"""
class Config:
    BATCH_SIZE = {self.batch}
    INPUT_SHAPE = {(3, *self.video)}
    MODEL_ARCHITECTURE = "dit3d"
    DIT_MODEL_SIZE = "DiT3D-{self.size}"
    DIT_VIDEO_SIZE = {self.video}
    DIT_PATCH_SIZE = {self.patch}
    DIT_LEARN_SIGMA = {self.learn_sigma}
    DIT_FREEZE_BACKBONE = {self.frozen}
    DIT_FUSED_ATTENTION = {self.fused}
    DIT_GRADIENT_CHECKPOINTING = {self.checkpoint}
    TEXT_ENCODER_MODEL = {self.text_encoder!r}
    TEXT_EMBED_DIM = {self.text_width}
    TEXT_FREEZE_BACKBONE = {self.text_frozen}
    GRADIENT_ACCUMULATION_STEPS = {self.accumulation}
    USE_AMP = {self.amp}
"""


def run(model: Any, setting: Setting) -> Comparison:
    spec, config = read("drawn.py", setting.config())
    spec = spec.with_facts(optimizer_implementation=setting.optimizer)  # no key of the family says it
    autocast = "float16" if setting.amp else "float32"
    truth = in_torch(model, config, adamw(setting.optimizer), setting.accumulation, False, autocast, keeps_loss=True)
    return compare(str(setting), in_meta(spec), truth, setting.checkpoint)


def one_of(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


DRAWN = st.builds(
    Setting,
    batch=st.integers(1, 4),
    size=one_of("XS/2", "XS/4", "Tiny/2", "Tiny/4", "Tiny/4", "S/2"),
    video=one_of((16, 64, 64), (8, 32, 32), (28, 128, 128), (4, 64, 32), (1, 32, 32)),
    patch=one_of((4, 16, 16), (2, 16, 16), (1, 8, 8), (2, 8, 8), 4, 8, 16),
    frozen=one_of(False, False, True),
    fused=one_of(False, False, True),
    checkpoint=one_of(False, False, True),
    learn_sigma=st.booleans(),
    text_encoder=one_of(None, "distilbert-base-uncased"),
    text_width=one_of(768, 768, 512, None),
    text_frozen=one_of(True, True, False),
    amp=one_of(False, False, True),
    accumulation=st.integers(1, 3),
    optimizer=one_of("foreach", "foreach", "loop"),
)


def divides(setting: Setting) -> bool:
    if isinstance(setting.patch, int):
        return True
    return not any(size % part for size, part in zip(setting.video, setting.patch))


def test_drawn_settings_agree_with_torch_within_a_hundredth() -> None:
    model = reference("dit3d")
    comparisons: dict[Setting, Comparison] = {}

    @settings(
        max_examples=2 * SETTINGS,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(DRAWN)
    def one(setting: Setting) -> None:
        assume(divides(setting))
        if setting not in comparisons and len(comparisons) < SETTINGS:
            comparisons[setting] = comparison = run(model, setting)
            assert comparison.worst <= 0.01, str(comparison)

    one()
    _, median = report(list(comparisons.values()))
    assert len(comparisons) == SETTINGS
    assert median <= 0.001


REAL = {
    "XL/2 frame by frame, trained": Setting(size="XL/2", patch=2),
    "XL/2 frame by frame, frozen, on the old input": Setting(
        batch=2, size="XL/2", video=(28, 128, 128), patch=2, frozen=True
    ),
    "L/2 frame by frame in float16": Setting(size="L/2", patch=4, amp=True),
    "XL/2 with fused attention and checkpointing": Setting(size="XL/2", patch=2, fused=True, checkpoint=True),
}


@pytest.mark.parametrize("setting", REAL.values(), ids=REAL.keys())
def test_real_sizes_agree_with_torch_within_a_thousandth(setting: Setting) -> None:
    comparison = run(reference("dit3d"), setting)
    assert comparison.worst <= 0.001, str(comparison)


@pytest.mark.parametrize("name", ["config.py", "config_before.py"])
def test_the_shipped_configs_build_the_torch_model_and_agree_with_it(name: str) -> None:
    path = EXAMPLES / "dit3d" / name
    spec, config = read(str(path), path.read_text())
    truth = in_torch(reference("dit3d"), config, adamw("foreach"), spec["gradient_accumulation_steps"], keeps_loss=True)
    comparison = compare(name, in_meta(spec), truth)
    assert comparison.worst <= 0.001, str(comparison)
