"""Images in the samples of verl's trainers: which parts of a model train, and what its pictures take of a sample.

A prompt is left out whose tokens, those of its images among them, are more than ``max_prompt_length``
(``utils/dataset/rl_dataset.py``: ``filter_overlong_prompts``; EasyR1's ``utils/dataset.py``: the same). Answers have
none. The models' own forward is replaced by one that does the same in that order (``models/transformers/qwen2_vl.py``).
"""

from __future__ import annotations

from math import isqrt

from memlint.architectures.huggingface_vision import PACKED
from memlint.dialects import language_model as lm
from memlint.facts.spec import ASSUMED, HYPER, Fact, OnTop, TrainingSpec


def parts(spec: TrainingSpec) -> str:
    """What of a model that sees trains; why its samples are not known."""
    config = spec.get(lm.CONFIG)
    if not lm.senses(config):
        return ""
    lm.put(spec, "model_class", "vision_language", spec.fact("model"))
    # gradient_checkpointing_enable; inputs get gradients where adapters train alone
    lm.put(spec, "tower_checkpointing", "trained", reason="verl: workers/fsdp_workers.py")
    if lm.switched(spec, "freeze_tower"):  # model.visual, whose merger makes the features
        lm.put(spec, "frozen_parts", ["vision_tower", "projector"], spec.fact(HYPER + "freeze_tower"))
    if config.get("model_type") not in PACKED:  # those that have as many features as an image is large
        return OnTop(f"{spec['model']}: what its images take of a sample is not known")
    return ""


def images(spec: TrainingSpec, most_pixels: int, title: str) -> None:
    """An image in each sample, as large as a prompt has room for, or as the run makes it; only the data say how many
    there are. A row that several samples fill has as many images.

    ``most_pixels``: of an image where nothing is written; 0 where none is made smaller.
    """
    if spec.get("model_class") != "vision_language" or spec.get("sequence_length") is None:
        return
    prompt, answer = spec.fact(HYPER + "max_prompt_length"), spec.fact(HYPER + "max_completion_length")
    length = spec["sequence_length"]
    sample = length
    if prompt is not None and answer is not None:
        lm.put(spec, "most_image_tokens", prompt.value, prompt, "longer prompts are left out")
        sample = prompt.value + answer.value
    stated = spec.fact(HYPER + "max_pixels")
    pixels = most_pixels if stated is None else stated.value
    if pixels:
        lm.put(spec, "image_size", isqrt(pixels), stated, "" if stated else title)
    count = max(1, length // sample)
    reason = "an image in each sample; the data may have none, or more"
    spec.facts["images_per_sample"] = Fact("images_per_sample", count, ASSUMED, "data.train_files", reason=reason)
