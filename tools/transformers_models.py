"""transformers' classes that see and hear, as its example scripts train them: recipes for ``tools/zoo.py``.

A model is made from its class and what its published ``config.json`` says beside the class's own defaults; nothing is
downloaded. A program holds for every config that says the same of everything but ``IGNORED``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Published(NamedTuple):
    """One architecture, and the ids under which checkpoints of it are published.

    kind        its ``model_type``
    task        what the class is made for
    side        of the images, as the checkpoint's image processor has it; 0 for sound
    config      what the published config says beside the class's own defaults
    ids         hub ids, the first of which ``parameters`` was published of
    """

    kind: str
    task: str
    side: int
    config: dict[str, Any]
    ids: tuple[str, ...]


class Segmenting(nn.Module):
    """Logits in the size of the labels, as the class brings them there for its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.whole = model

    def forward(self, pixel_values: Tensor) -> Tensor:
        logits = self.whole(pixel_values=pixel_values, return_dict=False)[0]
        return nn.functional.interpolate(logits, size=pixel_values.shape[-2:], mode="bilinear", align_corners=False)

    def gradient_checkpointing_enable(self) -> None:
        self.whole.gradient_checkpointing_enable()


class Hearing(nn.Module):
    """A model that takes sound. Its own ``forward`` has the base model hand over the states of all layers (5.23),
    and then drops them: each is what the next layer keeps, so that is left out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.whole = model

    def forward(self, input_values: Tensor) -> Tensor:
        states = self.whole.base_model(input_values=input_values).last_hidden_state
        states = self.whole.projector(states)
        pooled = states.mean(dim=1)
        logits: Tensor = self.whole.classifier(pooled)
        return logits

    def gradient_checkpointing_enable(self) -> None:
        self.whole.gradient_checkpointing_enable()


_CLASSES = {
    "image_classification": "AutoModelForImageClassification",
    "audio_classification": "AutoModelForAudioClassification",
    "semantic_segmentation": "AutoModelForSemanticSegmentation",
}
# What scripts set themselves, or what only a run of many steps has: no layer is left out at the peak.
_TASKS: dict[str, dict[str, Any]] = {
    "audio_classification": {"layerdrop": 0.0, "apply_spec_augment": False},
}
WITH_SEVERAL = ("mit-b0", "segformer-b0")  # whose tensors are others where a batch is of one
HEARING = ("wav2vec2", "hubert", "wavlm")  # whose input is a wave
SOUND = ({"B": 4, "S": 48_000}, {"B": 3, "S": 64_000}, {"B": 6, "S": 35_200}, {"B": 10, "S": 80_000})


def model(published: Published, classes: int) -> nn.Module:
    import transformers

    more = {} if published.kind == "audio-spectrogram-transformer" else _TASKS.get(published.task, {})
    config = transformers.AutoConfig.for_model(published.kind, num_labels=classes, **published.config, **more)
    made: nn.Module = getattr(transformers, _CLASSES[published.task]).from_config(config)
    if published.task == "semantic_segmentation":
        return Segmenting(made)
    if published.kind in HEARING:
        return Hearing(made)
    return made


def given(published: Published) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    if published.kind == "audio-spectrogram-transformer":
        return lambda s: {"input_values": torch.empty(s["B"], 1024, 128), "return_dict": False}
    if not published.side:
        return lambda s: {"input_values": torch.empty(s["B"], s["S"])}
    more = {} if published.task == "semantic_segmentation" else {"return_dict": False}
    return lambda s: {"pixel_values": torch.empty(s["B"], 3, s["H"], s["W"]), **more}


def _images(kind: str, side: int, *ids: str, **config: Any) -> Published:
    return Published(kind, "image_classification", side, config, ids)


def _pixels(*ids: str, **config: Any) -> Published:
    return Published("segformer", "semantic_segmentation", 512, config, ids)


_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
_STABLE = {"feat_extract_norm": "layer", "conv_bias": True, "do_stable_layer_norm": True}
_MIT = {
    "b0": {},
    "b1": {"hidden_sizes": [64, 128, 320, 512]},
    "b2": {"hidden_sizes": [64, 128, 320, 512], "depths": [3, 4, 6, 3], "decoder_hidden_size": 768},
    "b3": {"hidden_sizes": [64, 128, 320, 512], "depths": [3, 4, 18, 3], "decoder_hidden_size": 768},
    "b4": {"hidden_sizes": [64, 128, 320, 512], "depths": [3, 8, 27, 3], "decoder_hidden_size": 768},
    "b5": {"hidden_sizes": [64, 128, 320, 512], "depths": [3, 6, 40, 3], "decoder_hidden_size": 768},
}
_WIDTHS = {width: [width, 2 * width, 4 * width, 8 * width] for width in (40, 48, 64, 80, 96, 128, 192, 256)}
_BASIC = [64, 128, 256, 512]
_DEEP = [3, 3, 27, 3]

MODELS: dict[str, Published] = {
    "resnet-50": _images("resnet", 224, "microsoft/resnet-50"),
    "resnet-18": _images(
        "resnet", 224, "microsoft/resnet-18", hidden_sizes=_BASIC, depths=[2, 2, 2, 2], layer_type="basic"
    ),
    "swin-tiny": _images("swin", 224, "microsoft/swin-tiny-patch4-window7-224"),
    "convnext-tiny": _images("convnext", 224, "facebook/convnext-tiny-224"),
    "mit-b0": _images("segformer", 224, "nvidia/mit-b0", **_MIT["b0"]),
    "segformer-b0": _pixels("nvidia/mit-b0", "nvidia/segformer-b0-finetuned-ade-512-512", **_MIT["b0"]),
    "ast": Published("audio-spectrogram-transformer", "audio_classification", 0, {}, (
        "MIT/ast-finetuned-audioset-10-10-0.4593", "MIT/ast-finetuned-audioset-10-10-0.450",
        "MIT/ast-finetuned-audioset-10-10-0.448", "MIT/ast-finetuned-audioset-10-10-0.448-v2",
    )),
    "beit-base": _images(
        "beit", 224, "microsoft/beit-base-patch16-224-pt22k-ft22k", "microsoft/beit-base-patch16-224",
        "microsoft/beit-base-patch16-224-pt22k", use_relative_position_bias=True,
    ),
    "convnextv2-tiny": _images(
        "convnextv2", 224, "facebook/convnextv2-tiny-1k-224", "facebook/convnextv2-tiny-22k-224"
    ),
    "mit-b1": _images("segformer", 224, "nvidia/mit-b1", **_MIT["b1"]),
    "mit-b2": _images("segformer", 224, "nvidia/mit-b2", **_MIT["b2"]),
    "segformer-b1": _pixels("nvidia/mit-b1", "nvidia/segformer-b1-finetuned-ade-512-512", **_MIT["b1"]),
    "segformer-b2": _pixels("nvidia/mit-b2", "nvidia/segformer-b2-finetuned-ade-512-512", **_MIT["b2"]),
    "segformer-b3": _pixels("nvidia/mit-b3", "nvidia/segformer-b3-finetuned-ade-512-512", **_MIT["b3"]),
    "segformer-b4": _pixels("nvidia/mit-b4", "nvidia/segformer-b4-finetuned-ade-512-512", **_MIT["b4"]),
    "segformer-b5": _pixels("nvidia/mit-b5", **_MIT["b5"]),
    "resnet-34": _images("resnet", 224, "microsoft/resnet-34", hidden_sizes=_BASIC, layer_type="basic"),
    "resnet-26": _images("resnet", 224, "microsoft/resnet-26", depths=[2, 2, 2, 2]),
    "resnet-101": _images("resnet", 224, "microsoft/resnet-101", depths=[3, 4, 23, 3]),
    "resnet-152": _images("resnet", 224, "microsoft/resnet-152", depths=[3, 8, 36, 3]),
    "convnext-small": _images("convnext", 224, "facebook/convnext-small-224", depths=_DEEP),
    "convnext-base": _images(
        "convnext", 224, "facebook/convnext-base-224", "facebook/convnext-base-224-22k",
        "facebook/convnext-base-224-22k-1k", depths=_DEEP, hidden_sizes=_WIDTHS[128],
    ),
    "convnext-large": _images(
        "convnext", 224, "facebook/convnext-large-224", "facebook/convnext-large-224-22k", depths=_DEEP,
        hidden_sizes=_WIDTHS[192],
    ),
    "convnextv2-nano": _images(
        "convnextv2", 224, "facebook/convnextv2-nano-1k-224", "facebook/convnextv2-nano-22k-224",
        depths=[2, 2, 8, 2], hidden_sizes=_WIDTHS[80],
    ),
    "convnextv2-base": _images(
        "convnextv2", 224, "facebook/convnextv2-base-1k-224", "facebook/convnextv2-base-22k-224", depths=_DEEP,
        hidden_sizes=_WIDTHS[128],
    ),
    "convnextv2-atto": _images(
        "convnextv2", 224, "facebook/convnextv2-atto-1k-224", depths=[2, 2, 6, 2], hidden_sizes=_WIDTHS[40]
    ),
    "convnextv2-femto": _images(
        "convnextv2", 224, "facebook/convnextv2-femto-1k-224", depths=[2, 2, 6, 2], hidden_sizes=_WIDTHS[48]
    ),
    "convnextv2-pico": _images(
        "convnextv2", 224, "facebook/convnextv2-pico-1k-224", depths=[2, 2, 6, 2], hidden_sizes=_WIDTHS[64]
    ),
    "vit-msn-small": _images("vit_msn", 224, "facebook/vit-msn-small", hidden_size=384, num_attention_heads=6,
                             intermediate_size=1536),
    "vit-msn-base": _images("vit_msn", 224, "facebook/vit-msn-base"),
    "dinov2-small-registers": _images("dinov2_with_registers", 224, "facebook/dinov2-with-registers-small",
                                      hidden_size=384, num_attention_heads=6, image_size=518, patch_size=14),
    "dinov2-base-registers": _images("dinov2_with_registers", 224, "facebook/dinov2-with-registers-base",
                                     image_size=518, patch_size=14),
    "regnet-y-040": _images("regnet", 224, "facebook/regnet-y-040"),
    "mobilenet-v2": _images("mobilenet_v2", 224, "google/mobilenet_v2_1.0_224", hidden_act="relu6"),
    "mobilenet-v1": _images("mobilenet_v1", 224, "google/mobilenet_v1_1.0_224"),
    "efficientnet-b0": _images(
        "efficientnet", 224, "google/efficientnet-b0", width_coefficient=1.0, depth_coefficient=1.0, image_size=224,
        hidden_dim=1280, dropout_rate=0.2, depthwise_padding=[],
    ),
    "efficientnet-b1": _images(
        "efficientnet", 240, "google/efficientnet-b1", width_coefficient=1.0, depth_coefficient=1.1, image_size=240,
        hidden_dim=1280, dropout_rate=0.2, depthwise_padding=[16],
    ),
    "poolformer-s12": _images("poolformer", 224, "sail/poolformer_s12"),
    "levit-128s": _images("levit", 224, "facebook/levit-128S"),
    "cvt-13": _images("cvt", 224, "microsoft/cvt-13"),
    "pvt-tiny": _images("pvt", 224, "Zetatech/pvt-tiny-224"),
    "pvt-v2-b0": _images("pvt_v2", 224, "OpenGVLab/pvt_v2_b0"),
    "bit-50": _images("bit", 448, "google/bit-50"),
    "data2vec-vision-base": _images(
        "data2vec-vision", 224, "facebook/data2vec-vision-base", "facebook/data2vec-vision-base-ft1k",
        use_relative_position_bias=True,
    ),
    "beit-large": _images(
        "beit", 224, "microsoft/beit-large-patch16-224", "microsoft/beit-large-patch16-224-pt22k-ft22k",
        "microsoft/beit-large-patch16-224-pt22k", use_relative_position_bias=True, hidden_size=1024,
        num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, layer_scale_init_value=1e-5,
    ),
    "focalnet-tiny": _images("focalnet", 224, "microsoft/focalnet-tiny"),
    "swiftformer-xs": _images("swiftformer", 224, "MBZUAI/swiftformer-xs"),
    "mobilevit-small": _images("mobilevit", 256, "apple/mobilevit-small"),
    "swin-small": _images("swin", 224, "microsoft/swin-small-patch4-window7-224", depths=[2, 2, 18, 2]),
    "swin-base": _images(
        "swin", 224, "microsoft/swin-base-patch4-window7-224", "microsoft/swin-base-patch4-window7-224-in22k",
        depths=[2, 2, 18, 2], embed_dim=128, num_heads=[4, 8, 16, 32],
    ),
    "wav2vec2-base-audio": Published("wav2vec2", "audio_classification", 0, {}, ("facebook/wav2vec2-base",)),
    "hubert-base-audio": Published("hubert", "audio_classification", 0, {}, ("facebook/hubert-base-ls960",)),
    "wav2vec2-large-stable-audio": Published("wav2vec2", "audio_classification", 0, {**_LARGE, **_STABLE}, (
        "facebook/wav2vec2-large-xlsr-53", "facebook/wav2vec2-xls-r-300m", "facebook/mms-300m",
        "facebook/wav2vec2-large-robust",
    )),
    "wav2vec2-large-audio": Published("wav2vec2", "audio_classification", 0, {**_LARGE}, ("facebook/wav2vec2-large",)),
}  # fmt: skip


def index(names: Iterable[str]) -> str:
    """``memlint/data/recorded.json``: which program is for which id, of those that ship."""
    models: dict[str, dict[str, str]] = {}
    programs = {}
    for name in sorted(names):
        published = MODELS[name]
        programs[name] = {"side": published.side}
        if published.kind in HEARING:
            programs[name]["sound"] = 1
        for each in published.ids:
            models.setdefault(each.lower(), {})[published.task] = name
    return json.dumps({"models": dict(sorted(models.items())), "programs": programs}, separators=(",", ":")) + "\n"


def main() -> None:
    data = Path(__file__).parents[1] / "memlint" / "data"
    names = [path.stem for path in (data / "programs" / "transformers").glob("*.json")]
    (data / "recorded.json").write_text(index(names), encoding="utf-8")


if __name__ == "__main__":
    main()
