from __future__ import annotations

from collections.abc import Iterator

from memlint.facts.spec import HYPER, Name
from memlint.plugin import INFO, Example, Finding, Rule, Run

KOHYA = """\
pretrained_model_name_or_path = "stabilityai/stable-diffusion-xl-base-1.0"
network_module = "networks.lora"
network_dim = 32
train_batch_size = 4
resolution = "1024,1024"
mixed_precision = "bf16"
gradient_checkpointing = true
"""

# fact -> what stays on the card for it
HELPERS: dict[Name, str] = {HYPER + "cache_latents": "the VAE", HYPER + "cache_text": "the text encoders"}


class HelperModelsResident(Rule):
    """helper-models-resident: models that only prepare the data stay on the card.

    ## What it does
    Fires where a trainer of diffusion models could encode images or captions once, and a key says that it does not, or
    does not say that it does.

    ## Why it matters
    The VAE and the text encoders do not train. While they encode each batch anew, their weights stay on the card, and
    the VAE's activations at full resolution come and go.

    ## Example
    `cache_latents = false`

    ## Use instead
    `cache_latents = true`; captions as well where none is drawn at random in each step.

    ## Fix safety
    Unsafe: images and captions are no longer changed at random from step to step.

    ## References
    kohya-ss/sd-scripts, `library/train_util.py` (`cache_latents`, `cache_text_encoder_outputs`).
    """

    code = "MEM705"
    name = "helper-models-resident"
    severity = INFO
    facts = (HYPER + "cache_latents",)
    saves = True
    needs_estimate = False
    invalid = (
        Example("config.toml", KOHYA + "cache_latents = false\n", expect="cache_latents"),
        Example("config.toml", KOHYA, note="sd-scripts encode each batch anew unless they are told"),
    )
    valid = (Example("config.toml", KOHYA + "cache_latents = true\n"),)

    def check(self, run: Run) -> Iterator[Finding]:
        for name, what in HELPERS.items():
            stated = run.fact(name)
            if stated is None or stated.value is not False:
                continue
            if name != next(iter(HELPERS)) and stated.node is None:
                continue  # captions may be changed in each step: only who says no is told
            yield self.finding(
                run,
                f"{what} stay{'s' if name == next(iter(HELPERS)) else ''} on the card: {stated.label} keeps what is "
                "made of the data once, and lets go of it",
                stated,
                fixes=[run.fix(f"{stated.label}: true", "unsafe", {name: True})],
            )
