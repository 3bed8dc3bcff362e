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
# A part of the class's path -> what it trains.
_TRAINS = {
    ".autoencoder.": "an autoencoder against a discriminator",
    ".vqgan.": "an autoencoder against a discriminator",
}


def recognise(document: Document, root: Node) -> bool:
    """A class of theirs, which keys alone do not tell from another program's."""
    target = root.get("model.target")
    return target is not None and isinstance(target.value, str) and target.value.startswith(_PACKAGES)


def complete(spec: TrainingSpec) -> TrainingSpec:
    """Facts in the words of the vocabulary, and what there is no estimate of."""
    spec = key_facts.complete(spec)
    target = str(spec.get("model", ""))
    what = next((told for part, told in _TRAINS.items() if part in target), "")
    if what:
        spec.unknown_reason = f"{target} trains {what}, which is not known: {key_facts.WAY_OUT}"
    return spec
