"""A class of transformers, from a folder with a ``config.json`` or a hub id in the local cache.

The batch follows from the class's own signature and its config: every sample is as long as the longest one, unpadded.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

from memlint.measure.child import MeasureError
from memlint.measure.factories import attention, hub, lora
from memlint.measure.factories.base import (
    Request,
    Workload,
    checkpointing_every,
    default_loss,
    dtype_of,
    image_size,
    library,
    said,
    setting,
    size,
    stated_size,
    with_settings,
)

LANGUAGE = ("LMHead", "ForCausalLM", "ForConditionalGeneration", "ForMaskedLM")
WHOLE_SAMPLE = ("SequenceClassification", "ImageClassification", "AudioClassification")
WAY_OUT = "write [probe] batch in memlint.toml"
# Chances that a layer is passed over in a step: without, each step is as large as the largest.
LAYERDROP = ("encoder_layerdrop", "decoder_layerdrop", "layerdrop")


def find(request: Request) -> Workload | None:
    named = hub.named(request)
    if named is None or named.library not in ("", "transformers"):
        return None
    transformers = library("transformers", f"{named.key} names {named.name}")
    config = _config(transformers, request, named)
    class_ = _class(transformers, request, config, named.key)
    options, notes = _attention(request, class_)
    adapters, every = lora.wanted(request), checkpointing_every(request)
    reentrant = bool(request["facts"].get("checkpointing_reentrant", False))
    dtype = weights_dtype(request)

    def build() -> Any:
        copied = copy.deepcopy(config)
        copied.use_cache = False  # as Trainer sets it while it trains
        for name in LAYERDROP:
            if getattr(copied, name, None):
                setattr(copied, name, 0.0)
        if copied.is_encoder_decoder and getattr(copied, "decoder_start_token_id", None) is None:
            copied.decoder_start_token_id = 0  # labels cannot be shifted without one
        model = class_._from_config(copied, dtype=dtype, **options)
        if adapters:
            model = lora.wrapped(model, request)
        if every:
            _recompute(model, every, reentrant)
        return model

    own = setting(request, "batch") is not None
    inputs = None if own else Inputs(request, config, class_)

    def batch(device: str) -> Any:
        assert inputs is not None
        return inputs.tensors(device)

    loss = smoothed_loss if request["facts"].get("hyperparameters.label_smoothing") else default_loss
    return with_settings(request, Workload(build, batch, loss, f"transformers, {named.name}", notes=notes))


def weights_dtype(request: Request) -> Any:
    """Of the weights as they are loaded; those of an adapter have their own."""
    return dtype_of(request, *(("frozen_dtype",) if lora.wanted(request) else ()), "parameter_dtype")


def smoothed_loss(model: Any, batch: dict[str, Any]) -> Any:
    """Trainer's own with smoothed labels: outside of the model, whose logits accelerate hands out in fp32 where it
    opens autocast (``Trainer.compute_loss``, ``ConvertOutputsToFp32``)."""
    import torch
    from transformers.trainer_pt_utils import LabelSmoother

    inputs = dict(batch)
    labels = inputs.pop("labels", None)
    if labels is None:
        return default_loss(model, batch)
    inside = getattr(model, "base_model", model)
    whole = bool(getattr(inside.config, "is_encoder_decoder", False))
    if whole:  # of the collator: labels, moved one token to the right
        inputs["decoder_input_ids"] = torch.ones_like(labels)
    outputs = model(**inputs)
    device = labels.device.type
    if torch.is_autocast_enabled(device):
        outputs["logits"] = outputs["logits"].float()
    with torch.autocast(device, enabled=False):
        return LabelSmoother(epsilon=0.1)(outputs, labels, shift_labels=not whole and labels.dim() > 1)


def _attention(request: Request, class_: Any) -> tuple[dict[str, str], tuple[tuple[str, str, str], ...]]:
    kind = request["facts"].get("attention")
    if kind in (None, ""):
        return {}, ()
    if kind == "flash":
        if not getattr(class_, "_supports_flash_attn", False):
            raise MeasureError(
                f"{request['keys']['attention']}: {class_.__name__} of transformers has no flash attention; set sdpa "
                "or eager with -o"
            )
        if request["kind"] == "probe":  # real tensors take the real kernel
            return {"attn_implementation": "flash_attention_2"}, ()
        return {"attn_implementation": attention.register()}, (attention.NOTE,)
    if kind in ("eager", "sdpa"):
        return {"attn_implementation": kind}, ()
    raise MeasureError(
        f"{request['keys']['attention']}: {kind} is a kernel that only runs on a card; sdpa keeps as much: set it with "
        "-o to trace"
    )


def _config(transformers: Any, request: Request, named: hub.Named) -> Any:
    """The model's config, with the run's own number of classes and rows of the embedding."""
    facts = request["facts"]
    if not named.contents:
        raise MeasureError(
            f"{named.key}: {named.name} is no folder with a {hub.CONFIG}, and not in the local cache of the hub; "
            "nothing is downloaded"
        )
    if "llava" in facts:
        raise MeasureError(f"{named.key}: {named.name}: LLaVA's own code joins tower and model, and is not run here")
    try:
        if named.folder:
            config = transformers.AutoConfig.from_pretrained(named.folder, local_files_only=True)
        else:
            config = transformers.AutoConfig.for_model(**named.contents)
    except Exception as error:
        where = f"{named.folder}/{hub.CONFIG}" if named.folder else named.name
        raise MeasureError(f"{named.key}: {where}: {said(error)}") from None
    if isinstance(facts.get("labels"), int):
        config.num_labels = facts["labels"]
    if isinstance(facts.get("vocabulary_size"), int):
        config.get_text_config().vocab_size = facts["vocabulary_size"]
    return config


# The mapping from configs to classes, by the fact ``model_class``.
MAPPINGS = {
    "causal_lm": "MODEL_FOR_CAUSAL_LM_MAPPING",
    "sequence_classification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
    "token_classification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING",
    "question_answering": "MODEL_FOR_QUESTION_ANSWERING_MAPPING",
    "masked_lm": "MODEL_FOR_MASKED_LM_MAPPING",
    "seq2seq_lm": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
    "image_classification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
}


def _class(transformers: Any, request: Request, config: Any, key: str) -> Any:
    """The class that the run trains: as the facts say, else as config.json names it, else the one for text."""
    kind = request["facts"].get("model_class")
    if kind is None:
        for name in config.architectures or ():
            if hasattr(transformers, name):
                return getattr(transformers, name)
    mapping = getattr(transformers, MAPPINGS.get(kind or "causal_lm", ""), {})
    if type(config) in mapping:
        return mapping[type(config)]
    raise MeasureError(
        f"{key}: config.json names no class that transformers has (architectures: {config.architectures}"
        f"{f', wanted: {kind}' if kind else ''}); write [probe] model, batch and step in memlint.toml"
    )


def _recompute(model: Any, every: int, reentrant: bool) -> None:
    """Checkpointing, as Trainer turns it on."""
    how = {"use_reentrant": reentrant}
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=how, every_n_layers=every)
    elif every > 1:
        raise MeasureError("checkpointing: this transformers recomputes every layer or none: set full with -o")
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)


class Inputs:
    """Sizes of one micro-batch, read once, and its tensors."""

    def __init__(self, request: Request, config: Any, class_: Any) -> None:
        self.config, self.name = config, class_.__name__
        self.parameters = frozenset(inspect.signature(class_.forward).parameters)
        self.samples = size(request, "micro_batch_size")
        self.text_config = getattr(config, "text_config", config)
        self.dtype = weights_dtype(request)
        self.has_images = "pixel_values" in self.parameters
        self.has_sound = "input_features" in self.parameters
        self.has_text = "input_ids" in self.parameters
        if not (self.has_images or self.has_sound or self.has_text):
            raise MeasureError(f"{self.name} takes more than tokens, images or spectrograms: {WAY_OUT}")
        if self.has_images and self.has_text and "return_loss" not in self.parameters:
            raise MeasureError(
                f"{self.name} puts images between its tokens, and how many tokens an image takes is its processor's to "
                f"say: {WAY_OUT}"
            )
        if self.has_sound and not hasattr(config, "max_source_positions"):
            raise MeasureError(f"{self.name} does not say how long its spectrograms are: {WAY_OUT}")
        self.length = self._length(request)
        own = getattr(config, "is_encoder_decoder", False)
        self.target = stated_size(request, "target_length") if own else None  # tokens of an output
        self.pixels = self._pixels(request) if self.has_images else ()

    def _length(self, request: Request) -> Any:
        """Tokens of the longest sample; of the decoder, where the encoder hears sound."""
        if self.has_text and not self.has_images and not self.has_sound:
            length = size(request, "sequence_length")
            limit = None if _is_relative(self.text_config) else _positions(self.text_config)
            if limit is not None and isinstance(length, int) and length > limit:
                raise MeasureError(
                    f"{request['keys'].get('sequence_length', 'sequence_length')}: {length} tokens are more than the "
                    f"{limit} positions that {self.name} has (max_position_embeddings of its {hub.CONFIG})"
                )
            return length
        # What a processor cuts texts to, beside images or sound.
        limit = _positions(self.text_config) if self.has_text else getattr(self.config, "max_target_positions", None)
        stated = stated_size(request, "sequence_length")
        if limit is None:
            return size(request, "sequence_length") if self.has_text or self.has_sound else 0
        return limit if stated is None or (isinstance(stated, int) and stated > limit) else stated

    def _pixels(self, request: Request) -> tuple[Any, ...]:
        """(channels, height, width): the model's own size, which its processor brings images to."""
        config = getattr(self.config, "vision_config", self.config)
        channels = getattr(config, "num_channels", 3)
        own = getattr(config, "image_size", None)
        height, width = (own, own) if isinstance(own, int) else own or image_size(request) or (None, None)
        if height is None:
            size(request, "image_size")  # says that it is missing
        return channels, height, width

    def tensors(self, device: str) -> dict[str, Any]:
        """One micro-batch, by the names of the class's own arguments."""
        import torch

        def tokens(*shape: Any) -> Any:
            return torch.ones(self.samples, *shape, dtype=torch.long, device=device)

        batch: dict[str, Any] = {}
        if self.has_text:
            batch["input_ids"] = tokens(self.length)
            if "attention_mask" in self.parameters:
                batch["attention_mask"] = tokens(self.length)
            # Tokenizers of models that tell two segments apart number them.
            if "token_type_ids" in self.parameters and getattr(self.text_config, "type_vocab_size", 0) > 1:
                batch["token_type_ids"] = tokens(self.length)
        if self.has_images:
            batch["pixel_values"] = torch.rand(self.samples, *self.pixels, dtype=self.dtype, device=device)
        if self.has_sound:
            # Two frames of the spectrogram make one position of the encoder.
            frames = 2 * self.config.max_source_positions
            shape = self.samples, self.config.num_mel_bins, frames
            batch["input_features"] = torch.rand(shape, dtype=self.dtype, device=device)
        batch.update(self._labels(tokens, device))
        return batch

    def _labels(self, tokens: Any, device: str) -> dict[str, Any]:
        import torch

        if "return_loss" in self.parameters:
            return {"return_loss": True}
        if "QuestionAnswering" in self.name:
            return {"start_positions": tokens(), "end_positions": tokens()}
        if "labels" not in self.parameters:
            return {}
        if "SemanticSegmentation" in self.name:
            return {"labels": tokens(*self.pixels[1:])}
        if any(part in self.name for part in WHOLE_SAMPLE):
            if getattr(self.config, "num_labels", 2) == 1:  # a regression
                return {"labels": torch.ones(self.samples, dtype=self.dtype, device=device)}
            return {"labels": tokens()}
        if "TokenClassification" in self.name or any(part in self.name for part in LANGUAGE):
            return {"labels": tokens(self.length if self.target is None else self.target)}
        raise MeasureError(f"what {self.name} takes as labels is its training code's to say: {WAY_OUT}")


def _positions(config: Any) -> int | None:
    found = getattr(config, "max_position_embeddings", None)
    return found if isinstance(found, int) else None


def _is_relative(config: Any) -> bool:
    """Whether positions are rotations of queries and keys, which go on beyond what the config names."""
    return any(hasattr(config, name) for name in ("rope_parameters", "rope_theta", "rope_scaling"))
