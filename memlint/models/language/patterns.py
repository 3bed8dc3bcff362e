"""Parameters that train by their full names, as transformers and PEFT give them: those that one of several regular
expressions fits from their beginning on; all others are frozen.

Source: ``axolotl`` 0.18 ``utils/freeze.py`` (freeze_layers_except), ``train.py`` (setup_model_and_tokenizer): adapters
are there before; names are those of ``transformers`` 5.23.
"""

from __future__ import annotations

import re
from typing import Any

from memlint.architectures.huggingface_styles import MIXTURES_BEFORE, NAMED_OTHERWISE
from memlint.facts.spec import TrainingSpec
from memlint.models import UnknownModel
from memlint.models.language.decoder import LanguageModel

# Where images are seen, by the model.
_SIGHTS = ("model.visual.", "model.vision_tower.", "model.multi_modal_projector.")


def train(model: LanguageModel, spec: TrainingSpec, config: Any) -> None:
    """Raises UnknownModel for models whose parameters have other names than ours."""
    kind = config.adapters.name
    if not isinstance(model, LanguageModel) or model.config.code != "common" or kind in ("", *NAMED_OTHERWISE):
        raise UnknownModel(f"what the parameters of {kind or 'this model'} are called is not known")
    fits = [re.compile(pattern) for pattern in spec["freeze.patterns"]]
    before = "base_model.model." if spec.get("tuning", "full") != "full" else ""
    renamed = MIXTURES_BEFORE.get(kind, "mlp")
    if spec.does("transformers.experts_are_one_tensor"):
        renamed = "mlp"
    parameters = {id(tensor) for tensor in model.parameters()}
    whole = "model." if model.sight is None else "model.language_model."
    met: set[int] = set()
    for name, tensor in model.named_tensors():
        if id(tensor) not in parameters or id(tensor) in met:
            continue
        met.add(id(tensor))  # a tied one has its first name
        if name.startswith("sight."):
            names = [sight + name.removeprefix("sight.") for sight in _SIGHTS]
        else:
            name = name.replace(".mlp.", f".{renamed}.")
            names = [name if name.startswith("lm_head.") else whole + name]
        found = {any(one.match(before + own) for one in fits) for own in names}
        if len(found) > 1:
            raise UnknownModel(f"patterns over the parameters of what sees in {kind} are not known")
        tensor.requires_grad = found.pop()
    model.asks_inputs = any("lm_head" in one.pattern or "embed_tokens" in one.pattern for one in fits)
