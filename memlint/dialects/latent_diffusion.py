"""Family latent-diffusion: the YAML of its main.py, which Stable Diffusion's and many papers' repositories train by.

Source: CompVis/latent-diffusion a506df5 (``main.py``: instantiate_from_config).
"""

from __future__ import annotations

from memlint.dialects import key_facts
from memlint.documents.node import Document, Node
from memlint.facts.spec import TrainingSpec

spell = key_facts.spell

# Packages whose classes such a config names: latent-diffusion's own, taming's, which it is made from, and those of
# Stability's generative-models and ControlNet.
_PACKAGES = ("ldm.", "taming.", "sgm.", "cldm.")
# Arguments that name the parts of a model of theirs, whoever's class it is made of: a denoiser and what stands before
# it (ddpm.py), an autoencoder's halves (autoencoder.py), and the names that generative-models has for them.
_PARTS = ("unet_config", "first_stage_config", "network_config", "ddconfig")
# A part of the class's path -> what it trains.
_TRAINS = {
    ".autoencoder.": "an autoencoder against a discriminator",
    ".vqgan.": "an autoencoder against a discriminator",
}


def recognise(document: Document, root: Node) -> bool:
    """A class of theirs, or one of a repository's own with the parts of theirs: keys alone do not tell them from
    another program's."""
    target = root.get("model.target")
    if target is None or not isinstance(target.value, str):
        return False
    return _is_theirs(target.value) or any(root.get(f"model.params.{part}") is not None for part in _PARTS)


def _is_theirs(target: str) -> bool:
    return target.startswith(_PACKAGES)


def complete(spec: TrainingSpec) -> TrainingSpec:
    """Facts in the words of the vocabulary, and what there is no estimate of."""
    spec = key_facts.complete(spec)
    target = str(spec.get("model", ""))
    if target and not _is_theirs(target):
        why = f"{target} is a class of the program's own over parts of latent-diffusion's, which memlint does not know"
        spec.unknown_reason = f"{why}: {key_facts.WAY_OUT}"
        return spec
    what = next((told for part, told in _TRAINS.items() if part in target), "")
    if what:
        spec.unknown_reason = f"{target} trains {what}, which is not known: {key_facts.WAY_OUT}"
    return spec
