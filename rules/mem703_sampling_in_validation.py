from __future__ import annotations

from collections.abc import Iterator

from memlint.facts.spec import HYPER
from memlint.plugin import INFO, Example, Finding, Rule, Run

DREAMBOOTH = (
    "accelerate launch train_dreambooth_lora.py --pretrained_model_name_or_path black-forest-labs/FLUX.1-dev"
    " --resolution 512 --train_batch_size 1"
)
KOHYA = """\
pretrained_model_name_or_path = "stabilityai/stable-diffusion-xl-base-1.0"
network_module = "networks.lora"
network_dim = 32
train_batch_size = 4
resolution = "1024,1024"
mixed_precision = "bf16"
cache_latents = true
"""


class SamplingInValidation(Rule):
    """sampling-in-validation: images or videos are drawn while the model trains, with all models on the card.

    ## What it does
    Fires where a trainer of diffusion models is given prompts to draw while it trains.

    ## Why it matters
    A pipeline with text encoders and the VAE comes to the card beside weights, gradients and optimizer states, and the
    VAE decodes at full resolution. The peak of the run may lie there, hours after it started well.

    ## Example
    `--validation_prompt "a photo of a dog" --num_validation_images 4`

    ## Use instead
    Draw from saved checkpoints in a process of its own; or fewer images at once, with the VAE's tiling.

    ## Fix safety
    No fix: whether samples are wanted is yours to say.

    ## References
    diffusers, `examples/dreambooth` (`log_validation`); kohya-ss/sd-scripts, `library/train_util.py` (`sample_images`).
    """

    code = "MEM703"
    name = "sampling-in-validation"
    severity = INFO
    facts = (HYPER + "validation_prompt",)
    saves = True
    needs_estimate = False
    invalid = (
        Example("train.sh", DREAMBOOTH + " --validation_prompt dog\n", expect="--validation_prompt"),
        Example("config.toml", KOHYA + 'sample_prompts = "prompts.txt"\n', expect="sample_prompts"),
    )
    valid = (
        Example("train.sh", DREAMBOOTH + "\n"),
        Example("train.sh", DREAMBOOTH + " --validation_prompt dog --num_validation_images 0\n", note="none is drawn"),
        Example("config.toml", KOHYA),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        stated, images = run.fact(HYPER + "validation_prompt"), run.value(HYPER + "validation_images")
        if stated is None or not stated.value or images == 0:
            return
        several = f"{images} samples at once" if isinstance(images, int) and images > 1 else "samples"
        yield self.finding(
            run,
            f"{several} at full resolution while the model trains: text encoders and the VAE come to the card, and "
            "the estimate, if there is one, does not have them",
            stated,
        )
