"""STDiff: the static step against the torch model of examples/stdiff, config text to bytes."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.differential.training import Comparison, adamw, compare, in_meta, in_torch, read, reference, report
from tests.draws import draws

SETTINGS = draws(26)
FIVE_LEVELS = ("", "Attn", "Attn", "Attn", "Attn")


class Setting(NamedTuple):
    videos: int = 2
    observed: int = 5
    predicted: int = 5
    drawn: int = 0  # frames drawn from the predicted ones; 0 takes all
    channels: int = 1
    size: tuple[int, int] = (64, 2048)
    widths: tuple[int, ...] = (128, 256, 256, 512, 512)
    levels: tuple[str, ...] = FIVE_LEVELS
    head_dim: int | None = 128
    layers: int = 2
    motion_width: int = 64
    downs: int = 2
    inner: int = 2
    sde: bool = True
    step: float = 0.5
    autoregressive: bool = True
    differences: bool = True
    half_fps: bool = False
    prediction: str = "epsilon"
    attention: str = "plain"
    checkpointing: str = "false"
    precision: str = "no"
    ema: bool = True
    accumulation: int = 1
    optimizer: str = "foreach"
    name: str = "KITTI_RANGE"

    def config(self) -> str:
        observed = (self.observed + 1) // 2 if self.half_fps and self.observed > 2 else self.observed
        inputs = self.channels * (2 if self.autoregressive else 1 + observed)
        down = [kind + "DownBlock2D" for kind in self.levels]
        up = [kind + "UpBlock2D" for kind in reversed(self.levels)]
        heads = "null" if self.head_dim is None else self.head_dim
        size = list(self.size)
        return f"""
Dataset: {{name: {self.name}, batch_size: {self.videos}, num_channels: {self.channels}, image_size: {size},
          num_observed_frames: {self.observed}, num_predict_frames: {self.predicted}, num_workers: 2,
          rand_Tp: {self.drawn or self.predicted}, rand_predict: {str(bool(self.drawn)).lower()},
          half_fps: {str(self.half_fps).lower()}}}
STDiff:
  Diffusion:
    prediction_type: {self.prediction}
    ddpm_num_steps: 1000
    unet_config:
      sample_size: {size}
      in_channels: {inputs}
      out_channels: {self.channels}
      m_channels: {self.motion_width * 2**self.downs}
      layers_per_block: {self.layers}
      block_out_channels: {list(self.widths)}
      down_block_types: [{", ".join(down)}]
      up_block_types: [{", ".join(up)}]
      attention_head_dim: [{", ".join([str(heads)] * len(self.widths))}]
  DiffNet:
    autoregressive: {str(self.autoregressive).lower()}
    super_res_training: false
    MotionEncoder: {{learn_diff_image: {str(self.differences).lower()}, image_size: {size},
                    in_channels: {self.channels}, model_channels: {self.motion_width}, n_downs: {self.downs}}}
    DiffUnet: {{n_layers: {self.inner}, nonlinear: tanh}}
    Int: {{sde: {str(self.sde).lower()}, method: euler_heun, sde_options: {{dt: {self.step}}},
          ode_options: {{step_size: {self.step}}}}}
Training:
  use_ema: {str(self.ema).lower()}
  gradient_accumulation_steps: {self.accumulation}
  mixed_precision: "{self.precision}"
  attention: {self.attention}
  gradient_checkpointing: {self.checkpointing}
"""


def run(model: Any, setting: Setting) -> Comparison:
    spec, config = read("drawn.yaml", setting.config())
    assert spec.conflicts == ()
    spec = spec.with_facts(optimizer_implementation=setting.optimizer)
    truth = in_torch(model, config, adamw(setting.optimizer), setting.accumulation, setting.ema, keeps_loss=True)
    return compare(str(setting), in_meta(spec), truth)


def one_of(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


SHAPES = one_of(
    ((32, 64), ("", "Attn")),
    ((32, 32), ("Attn", "")),
    ((64, 96, 128), ("", "Attn", "Attn")),
    ((32, 64, 64), ("", "", "Attn")),
)


@st.composite
def drawn(draw: st.DrawFn) -> Setting:
    widths, levels = draw(SHAPES)
    predicted = draw(st.integers(1, 3))
    return Setting(
        # Two videos at least: of a single image, fake tensors make a view's strides in another way than real ones.
        videos=draw(st.integers(2, 4)),
        observed=draw(st.integers(2, 5)),
        predicted=predicted,
        drawn=draw(st.integers(0, predicted)),
        channels=draw(one_of(1, 3)),
        size=draw(one_of((16, 16), (32, 64), (64, 128), (64, 512))),
        widths=widths,
        levels=levels,
        head_dim=draw(one_of(None, 16, 32)),
        layers=draw(st.integers(1, 2)),
        motion_width=draw(one_of(16, 32, 64)),
        downs=draw(st.integers(1, 2)),
        inner=draw(st.integers(0, 2)),
        sde=draw(one_of(True, True, False)),
        step=draw(one_of(0.5, 1.0, 1.0)),
        autoregressive=draw(one_of(True, True, False)),
        differences=draw(st.booleans()),
        half_fps=draw(one_of(False, False, True)),
        prediction=draw(one_of("epsilon", "epsilon", "sample")),
        attention=draw(one_of("plain", "sdpa", "xformers")),
        checkpointing=draw(one_of("false", "true", "all")),
        precision=draw(one_of("no", "fp16", "bf16")),
        ema=draw(st.booleans()),
        accumulation=draw(st.integers(1, 3)),
        optimizer=draw(one_of("foreach", "foreach", "loop")),
        name=draw(one_of("KITTI_RANGE", "SMMNIST")),
    )


def test_drawn_settings_agree_with_torch_within_a_hundredth() -> None:
    model = reference("stdiff")
    comparisons: list[Comparison] = []

    @settings(
        max_examples=SETTINGS,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn())
    def one(setting: Setting) -> None:
        comparison = run(model, setting)
        comparisons.append(comparison)
        assert comparison.worst <= 0.01, str(comparison)

    one()
    _, median = report(comparisons)
    assert len({comparison.label for comparison in comparisons}) >= SETTINGS - 1
    assert median <= 0.001


REAL = {
    "the config that ran out of memory": Setting(drawn=5, step=0.1, accumulation=2),
    "that config with xformers": Setting(drawn=5, attention="xformers"),
    "with xformers, bfloat16 and the fork's checkpointing": Setting(
        attention="xformers", precision="bf16", checkpointing="true", accumulation=2
    ),
    "plain attention under autocast": Setting(precision="bf16"),
    "every layer recomputed": Setting(attention="sdpa", precision="bf16", checkpointing="all"),
    "the fork's first config": Setting(
        predicted=3,
        observed=3,
        size=(64, 512),
        widths=(128, 256, 512, 768, 1024),
        head_dim=64,
        precision="bf16",
        attention="xformers",
    ),
}


@pytest.mark.parametrize("setting", REAL.values(), ids=REAL.keys())
def test_real_sizes_agree_with_torch_within_a_thousandth(setting: Setting) -> None:
    comparison = run(reference("stdiff"), setting)
    assert comparison.worst <= 0.001, str(comparison)
