"""Family latent-diffusion: whose classes its configs name."""

from __future__ import annotations

import pytest

from memlint.dialects import registry
from memlint.documents.load import load

CONFIG = """\
model:
  base_learning_rate: 1.0e-05
  target: {target}
  params:
    use_ema: false
    {part}:
      target: ldm.modules.diffusionmodules.openaimodel.UNetModel
      params: {{model_channels: 320, use_checkpoint: true}}
data:
  target: train.DataModuleFromConfig
  params: {{batch_size: 4, num_workers: 2}}
"""


@pytest.mark.parametrize("part", ["unet_config", "first_stage_config", "network_config", "ddconfig"])
def test_a_class_of_a_repository_s_own_over_their_parts(part: str) -> None:
    """custom-diffusion's configs name src.model.CustomDiffusion, and were of no known family."""
    [spec] = registry.specs(load("net.yaml", CONFIG.format(target="src.model.CustomDiffusion", part=part)))
    assert (spec.family, spec["micro_batch_size"], spec["ema"]) == ("latent-diffusion", 4, False)
    assert spec.architecture is None
    assert spec.unknown_reason.startswith("src.model.CustomDiffusion is a class of the program's own over parts of")


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("ldm.models.diffusion.ddpm.LatentDiffusion", "is made by the code of latent-diffusion"),
        ("taming.models.vqgan.VQModel", "trains an autoencoder against a discriminator"),
        ("src.autoencoder.Mine", "src.autoencoder.Mine is a class of the program's own"),
    ],
)
def test_why_there_is_no_estimate(target: str, reason: str) -> None:
    [spec] = registry.specs(load("net.yaml", CONFIG.format(target=target, part="unet_config")))
    assert reason in spec.unknown_reason


def test_another_program_s_class_with_parts_of_its_own_is_none_of_theirs() -> None:
    assert registry.specs(load("net.yaml", CONFIG.format(target="src.nets.Net", part="encoder"))) == []
