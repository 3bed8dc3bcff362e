"""The programs of the models that diffusers' training scripts and kohya's sd-scripts train and call, into
``memlint/data/programs/diffusers/`` and ``memlint/data/programs/sd-scripts/``.

    python -m tools.diffusion_programs [NAME ...] [--to FOLDER] [--sd-scripts FOLDER]

Needs torch, diffusers and transformers; einops and a checkout of kohya-ss/sd-scripts for the names that begin with
``kohya-``. A model is made from its class and the keys of its published ``config.json`` that differ from the class's
own defaults; nothing is downloaded. Sizes in latents: B images, H, W, frames F, tokens L.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._dispatch.python import enable_python_dispatcher

FOLDER = Path(__file__).parents[1] / "memlint" / "data" / "programs"
SD_SCRIPTS = "sd-scripts 48d368fa"  # the commit of kohya-ss/sd-scripts that is recorded
Sizes = Mapping[str, Any]


_OF_ONE_ROW = ("1 < B", "B > 1", "B != 1")


class Recipe(NamedTuple):
    """A model: how it is made, what it is called with, and the setting that it is recorded at.

    parameters  as published, or as the class itself counts them with the published config
    open        conditions that the recording names and that no memory follows: where a tensor of one row is broadcast,
                it has the size of one that is not
    """

    build: Callable[[], nn.Module]
    inputs: Callable[[Sizes], dict[str, Any]]
    sizes: dict[str, int]
    parameters: int
    library: str = "diffusers"
    open: tuple[str, ...] = _OF_ONE_ROW


class Encoding(nn.Module):
    """The half of an autoencoder that training calls; the decoder is there as well."""

    def __init__(self, autoencoder: nn.Module) -> None:
        super().__init__()
        self.vae = autoencoder

    def forward(self, pixels: Tensor) -> Tensor:
        """``DiagonalGaussianDistribution`` and its sample (autoencoders/vae.py), with noise of sizes that stay open."""
        moments = self.vae.encode(pixels).latent_dist.parameters
        mean, logarithm = torch.chunk(moments, 2, dim=1)
        logarithm = logarithm * 1.0
        deviation, variance = torch.exp(0.5 * logarithm), torch.exp(logarithm)
        noise = torch.empty_like(mean)
        latents: Tensor = mean + deviation * noise
        del variance
        return latents


class Decoding(nn.Module):
    """The half of an autoencoder that draws images."""

    def __init__(self, autoencoder: nn.Module) -> None:
        super().__init__()
        self.vae = autoencoder

    def forward(self, latents: Tensor) -> Tensor:
        images: Tensor = self.vae.decode(latents, return_dict=False)[0]
        return images


class Tokens(nn.Module):
    """Pixels to the numbers of a codebook."""

    def __init__(self, autoencoder: nn.Module) -> None:
        super().__init__()
        self.vae = autoencoder

    def forward(self, pixels: Tensor) -> Tensor:
        """``VectorQuantizer`` (autoencoders/vae.py): of each place the nearest entry. ``cdist`` is a product and two
        changes in place (aten/src/ATen/native/Distance.cpp, ``_euclidean_dist``), and does not take open sizes."""
        latents = self.vae.quant_conv(self.vae.encoder(pixels))
        places = latents.permute(0, 2, 3, 1).contiguous().view(-1, 64)
        distances = torch.matmul(places, self.vae.quantize.embedding.weight.t())
        return distances.argmin(dim=1)


class WithResiduals(nn.Module):
    """A UNet between a ControlNet's results and the loss."""

    def __init__(self, unet: nn.Module) -> None:
        super().__init__()
        self.unet = unet

    def forward(
        self,
        sample: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        added_cond_kwargs: dict[str, Tensor] | None = None,
        **residuals: Tensor,
    ) -> Tensor:
        *down, mid = residuals.values()
        out: Tensor = self.unet(
            sample, timestep, encoder_hidden_states=encoder_hidden_states, down_block_additional_residuals=down,
            mid_block_additional_residual=mid, added_cond_kwargs=added_cond_kwargs, return_dict=False,
        )[0]  # fmt: skip
        return out


def _diffusers(kind: str, **config: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import diffusers

        model: nn.Module = getattr(diffusers, kind)(**config)
        return model.to(torch.float32)  # tables that numpy made, too

    return build


def _text(kind: str, config_kind: str, **config: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        model: nn.Module = getattr(transformers, kind)(getattr(transformers, config_kind)(**config))
        return model

    return build


def _around(wrapper: Callable[[nn.Module], nn.Module], build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: wrapper(build())


def _castings(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A model whose norms always cast to their weights' dtype: RMSNorm of diffusers asks whether these have 16 bits
    first, and what it casts is in fp32 where they have not."""
    from diffusers.models.normalization import RMSNorm

    class Casting(RMSNorm):  # type: ignore[misc]
        def forward(self, hidden_states: Tensor) -> Tensor:
            variance = hidden_states.to(torch.float32).pow(2).mean(-1, keepdim=True)
            hidden_states = hidden_states * torch.rsqrt(variance + self.eps)
            return hidden_states.to(self.weight.dtype) * self.weight

    def made() -> nn.Module:
        model = build()
        for module in model.modules():
            if type(module) is RMSNorm:
                assert module.bias is None
                module.__class__ = Casting
        return model

    return made


def _uncheckpointed(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A class whose own checkpointing fails: it hands its layers arguments by name to a function that takes none."""

    def made() -> nn.Module:
        model = build()
        model.enable_gradient_checkpointing = _refuse
        return model

    return made


def _refuse() -> None:
    raise ValueError


def _unet_inputs(width: int, channels: int = 4, **more: Callable[[Sizes], Any]) -> Callable[[Sizes], dict[str, Any]]:
    return lambda s: {
        "sample": torch.empty(s["B"], channels, s["H"], s["W"]),
        "timestep": torch.empty(s["B"], dtype=torch.int64),
        "encoder_hidden_states": torch.empty(s["B"], s["L"], width),
        "return_dict": False,
        **{name: made(s) for name, made in more.items()},
    }


def _unconditional(s: Sizes) -> dict[str, Any]:
    return {
        "sample": torch.empty(s["B"], 3, s["H"], s["W"]),
        "timestep": torch.empty(s["B"], dtype=torch.int64),
        "return_dict": False,
    }


def _xl(s: Sizes) -> dict[str, Tensor]:
    return {"text_embeds": torch.empty(s["B"], 1280), "time_ids": torch.empty(s["B"], 6)}


_SD1_LEVELS = [(320, 1)] * 3 + [(320, 2)] + [(640, 2)] * 2 + [(640, 4)] + [(1280, 4)] * 2 + [(1280, 8)] * 4
_SDXL_LEVELS = [(320, 1)] * 3 + [(320, 2)] + [(640, 2)] * 2 + [(640, 4)] + [(1280, 4)] * 3


def _residuals(s: Sizes, levels: Sequence[tuple[int, int]] = _SD1_LEVELS) -> dict[str, Tensor]:
    """Of a ControlNet: one for each result that the UNet's way down keeps, and one for the middle; channels, and how
    much smaller they are than a latent."""
    b, h, w = s["B"], s["H"], s["W"]
    return {f"r{n}": torch.empty(b, c, h // by, w // by) for n, (c, by) in enumerate(levels)}


def _pixels(s: Sizes) -> dict[str, Any]:
    return {"pixels": torch.empty(s["B"], 3, s["H"], s["W"])}


def _drawn(s: Sizes) -> dict[str, Any]:
    return {"latents": torch.empty(s["B"], 4, s["H"], s["W"])}


def _ids(s: Sizes) -> dict[str, Any]:
    return {"input_ids": torch.empty(s["B"], s["L"], dtype=torch.int64)}


def _tokens(s: Sizes) -> dict[str, Any]:
    return {
        "input_ids": torch.empty(s["B"], s["H"], s["W"], dtype=torch.int64),
        "encoder_hidden_states": torch.empty(s["B"], s["L"], 768),
        "pooled_text_emb": torch.empty(s["B"], 768),
        "micro_conds": torch.empty(s["B"], 5),
    }


def _video(rotary: bool, tokens: int = 226, per_patch: int = 1) -> Callable[[Sizes], dict[str, Any]]:
    """``per_patch``: latents of the frames that a patch is of."""

    def inputs(s: Sizes) -> dict[str, Any]:
        frames = s["F"] // per_patch if per_patch > 1 else s["F"]
        angles = (frames * (s["H"] // 2) * (s["W"] // 2), 64)
        return {
            "hidden_states": torch.empty(s["B"], s["F"], 16, s["H"], s["W"]),
            "encoder_hidden_states": torch.empty(s["B"], tokens, 4096),
            "timestep": torch.empty(s["B"], dtype=torch.int64),
            "image_rotary_emb": (torch.empty(angles), torch.empty(angles)) if rotary else None,
            "return_dict": False,
        }

    return inputs


def _sd3(s: Sizes) -> dict[str, Any]:
    return {
        "hidden_states": torch.empty(s["B"], 16, s["H"], s["W"]),
        "encoder_hidden_states": torch.empty(s["B"], s["L"], 4096),
        "pooled_projections": torch.empty(s["B"], 2048),
        "timestep": torch.empty(s["B"]),
        "return_dict": False,
    }


def _flux(s: Sizes) -> dict[str, Any]:
    return {
        "hidden_states": torch.empty(s["B"], (s["H"] // 2) * (s["W"] // 2), 64),
        "timestep": torch.empty(s["B"]),
        "guidance": torch.empty(s["B"]),
        "pooled_projections": torch.empty(s["B"], 768),
        "encoder_hidden_states": torch.empty(s["B"], s["L"], 4096),
        "txt_ids": torch.empty(s["L"], 3),
        "img_ids": torch.empty((s["H"] // 2) * (s["W"] // 2), 3),
        "return_dict": False,
    }


# -- kohya-ss/sd-scripts

# What checkpoints itself (``forward`` calls ``checkpoint(forward_body)``): the modules that run inside are no hint.
_CHECKPOINT_THEMSELVES = ("ResnetBlock2D", "Downsample2D", "Upsample2D", "BasicTransformerBlock")


def _sd_scripts(name: str) -> ModuleType:
    """A file of ``library``, without what it imports for its log alone."""
    stand_in = ModuleType("library.utils")
    stand_in.setup_logging = lambda *args, **kwargs: None  # type: ignore[attr-defined]
    sys.modules.setdefault("library.utils", stand_in)
    return importlib.import_module(f"library.{name}")


class _AlwaysBfloat16:
    """``torch`` for ``Upsample2D``, which goes through fp32 where its input is in bfloat16: every dtype is taken for
    that here, and ``made`` writes afterwards that it is so in bfloat16 alone."""

    class _Any:
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    bfloat16 = _Any()
    float32 = torch.float32
    Tensor = torch.Tensor
    FloatTensor = torch.FloatTensor

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _with_bfloat16(code: ModuleType) -> None:
    forward = getattr(code.Upsample2D, "forward_body", code.Upsample2D.forward)
    named = dict(forward.__globals__, torch=_AlwaysBfloat16())
    function = type(forward)(forward.__code__, named, forward.__name__, forward.__defaults__, forward.__closure__)
    setattr(code.Upsample2D, forward.__name__, function)


def _kohya(version_2: bool, sdpa: bool) -> Callable[[], nn.Module]:
    """``create_unet_diffusers_config`` (library/model_util.py): version 2 projects with convolutions as well."""

    def build() -> nn.Module:
        code = _sd_scripts("original_unet")
        _with_bfloat16(code)
        heads, width = ([5, 10, 20, 20], 1024) if version_2 else (8, 768)
        model: nn.Module = code.UNet2DConditionModel(64, attention_head_dim=heads, cross_attention_dim=width)
        model.set_use_sdpa(sdpa)
        return model

    return build


def _kohya_xl(sdpa: bool, whole: bool) -> Callable[[], nn.Module]:
    """``whole``: weights in fp32, for which ``GroupNorm32`` brings its input to fp32 and its result back."""

    def build() -> nn.Module:
        code = _sd_scripts("sdxl_original_unet")
        _with_bfloat16(code)
        if not hasattr(code, "as_published"):
            code.as_published = code.GroupNorm32.forward
        code.GroupNorm32.forward = code.as_published if whole else nn.GroupNorm.forward
        model: nn.Module = code.SdxlUNet2DConditionModel()
        model.set_use_sdpa(sdpa)
        return model

    return build


def _kohya_xl_inputs(s: Sizes) -> dict[str, Any]:
    return {
        "x": torch.empty(s["B"], 4, s["H"], s["W"]),
        "timesteps": torch.empty(s["B"], dtype=torch.int64),
        "context": torch.empty(s["B"], s["L"], 2048),
        "y": torch.empty(s["B"], 2816),
    }


def _upsampling_named(program: dict[str, Any]) -> None:
    """The way through fp32 is for bfloat16 alone."""
    for body in program["bodies"]:
        rows = body["rows"]
        for row, following in pairwise(rows):
            if following[0] == "interpolate" and row[0] == "to":
                assert row[2][1] == ":float32", row
                row[2][1] = ":upsampled"


_LATENTS = {"B": 2, "H": 64, "W": 80, "L": 77}
_SD1 = {"cross_attention_dim": 768}
_SD2 = {"cross_attention_dim": 1024, "attention_head_dim": [5, 10, 20, 20], "use_linear_projection": True}
_SDXL = {
    "block_out_channels": [320, 640, 1280],
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
    "transformer_layers_per_block": [1, 2, 10],
    "attention_head_dim": [5, 10, 20],
    "cross_attention_dim": 2048,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
    "use_linear_projection": True,
}
_CONTROL_XL = {key: value for key, value in _SDXL.items() if key != "up_block_types"}
_KL = {
    "block_out_channels": [128, 256, 512, 512],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "layers_per_block": 2,
}
_VQ = {
    "block_out_channels": [128, 256, 256, 512, 768],
    "down_block_types": ["DownEncoderBlock2D"] * 5,
    "up_block_types": ["UpDecoderBlock2D"] * 5,
    "layers_per_block": 2,
    "latent_channels": 64,
    "num_vq_embeddings": 8192,
    "vq_embed_dim": 64,
    "mid_block_add_attention": False,
    "lookup_from_codebook": True,
}
# Of the text encoders: CLIP ViT-L/14, OpenCLIP ViT-H/14 without its last layer, OpenCLIP ViT-bigG/14
_CLIP_L = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
           "projection_dim": 768}  # fmt: skip
_CLIP_H = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 23, "num_attention_heads": 16,
           "hidden_act": "gelu"}  # fmt: skip
_CLIP_G = {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 20,
           "hidden_act": "gelu", "projection_dim": 1280}  # fmt: skip

_PIXELS = {"B": 2, "H": 256, "W": 320}
_DRAWN = {"B": 2, "H": 32, "W": 40}
_TEXT = {"B": 2, "L": 77}

RECIPES: dict[str, Recipe] = {
    "sd1-unet": Recipe(_diffusers("UNet2DConditionModel", **_SD1), _unet_inputs(768), _LATENTS, 859_520_964),
    "kl-f8": Recipe(_around(Encoding, _diffusers("AutoencoderKL", **_KL)), _pixels, _PIXELS, 83_653_863),
    "kl-f8-decoder": Recipe(_around(Decoding, _diffusers("AutoencoderKL", **_KL)), _drawn, _DRAWN, 83_653_863),
    "clip-l": Recipe(
        _text("CLIPTextModel", "CLIPTextConfig", **_CLIP_L), _ids, _TEXT, 123_060_480, "transformers"
    ),
    "amused-256": Recipe(
        _uncheckpointed(_diffusers("UVit2DModel")), _tokens, {"B": 2, "H": 16, "W": 20, "L": 77}, 0
    ),
    "amused-512": Recipe(
        _uncheckpointed(_diffusers("UVit2DModel", downsample=True, upsample=True)), _tokens,
        {"B": 2, "H": 32, "W": 40, "L": 77}, 0,
    ),
    "vq-f16": Recipe(_around(Tokens, _diffusers("VQModel", **_VQ)), _pixels, _PIXELS, 0),
    "clip-l-projection": Recipe(
        _text("CLIPTextModelWithProjection", "CLIPTextConfig", **_CLIP_L), _ids, _TEXT, 123_650_304, "transformers"
    ),
    "cogvideox-2b": Recipe(
        _diffusers("CogVideoXTransformer3DModel"), _video(False), {"B": 2, "F": 13, "H": 60, "W": 90}, 0
    ),
    "cogvideox-5b": Recipe(
        _diffusers(
            "CogVideoXTransformer3DModel", num_attention_heads=48, num_layers=42, use_rotary_positional_embeddings=True
        ),
        _video(True), {"B": 2, "F": 13, "H": 60, "W": 90}, 0,
    ),
    "cogvideox1.5-5b": Recipe(
        _diffusers(
            "CogVideoXTransformer3DModel", num_attention_heads=48, num_layers=42, use_rotary_positional_embeddings=True,
            patch_size_t=2, patch_bias=False, max_text_seq_length=224,
        ),
        _video(True, 224, 2), {"B": 2, "F": 22, "H": 96, "W": 170}, 0, open=(*_OF_ONE_ROW, "2*(F//2) < B*F"),
    ),
    "sd1-controlnet": Recipe(
        _diffusers("ControlNetModel", **_SD1),
        _unet_inputs(768, controlnet_cond=lambda s: torch.empty(s["B"], 3, s["H"] * 8, s["W"] * 8)),
        _LATENTS, 361_279_120,
    ),
    "sd1-unet-controlled": Recipe(
        _around(WithResiduals, _diffusers("UNet2DConditionModel", **_SD1)),
        lambda s: {**{k: v for k, v in _unet_inputs(768)(s).items() if k != "return_dict"}, **_residuals(s)},
        _LATENTS, 859_520_964,
    ),
    "sd1-unet-edit": Recipe(
        _diffusers("UNet2DConditionModel", **{**_SD1, "in_channels": 8}), _unet_inputs(768, 8), _LATENTS, 859_532_484
    ),
    "sdxl-unet-edit": Recipe(
        _diffusers("UNet2DConditionModel", **{**_SDXL, "in_channels": 8}),
        _unet_inputs(2048, 8, added_cond_kwargs=_xl), _LATENTS, 2_567_475_204,
    ),
    "sdxl-controlnet": Recipe(
        _diffusers("ControlNetModel", **_CONTROL_XL),
        _unet_inputs(
            2048, controlnet_cond=lambda s: torch.empty(s["B"], 3, s["H"] * 8, s["W"] * 8), added_cond_kwargs=_xl
        ),
        _LATENTS, 1_251_014_160,
    ),
    "sdxl-unet-controlled": Recipe(
        _around(WithResiduals, _diffusers("UNet2DConditionModel", **_SDXL)),
        lambda s: {
            **{k: v for k, v in _unet_inputs(2048, added_cond_kwargs=_xl)(s).items() if k != "return_dict"},
            **_residuals(s, _SDXL_LEVELS),
        },
        _LATENTS, 2_567_463_684,
    ),
    "ddpm-unet": Recipe(
        _diffusers(
            "UNet2DModel", layers_per_block=2, block_out_channels=(128, 128, 256, 256, 512, 512),
            down_block_types=(*["DownBlock2D"] * 4, "AttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "AttnUpBlock2D", *["UpBlock2D"] * 4),
        ),
        _unconditional, {"B": 2, "H": 64, "W": 96}, 113_673_219,
    ),
    "sd2-unet": Recipe(_diffusers("UNet2DConditionModel", **_SD2), _unet_inputs(1024), _LATENTS, 865_910_724),
    "clip-h": Recipe(
        _text("CLIPTextModel", "CLIPTextConfig", **_CLIP_H), _ids, _TEXT, 340_387_840, "transformers"
    ),
    "sdxl-unet": Recipe(
        _diffusers("UNet2DConditionModel", **_SDXL), _unet_inputs(2048, added_cond_kwargs=_xl), _LATENTS, 2_567_463_684
    ),
    "clip-g": Recipe(
        _text("CLIPTextModelWithProjection", "CLIPTextConfig", **_CLIP_G), _ids, _TEXT, 694_659_840, "transformers"
    ),
    "sd3-medium": Recipe(
        _diffusers(
            "SD3Transformer2DModel", num_layers=24, num_attention_heads=24, caption_projection_dim=1536,
            pos_embed_max_size=192,
        ),
        _sd3, {"B": 2, "H": 64, "W": 80, "L": 333}, 0,
    ),
    "sd3.5-medium": Recipe(
        _castings(_diffusers(
            "SD3Transformer2DModel", num_layers=24, num_attention_heads=24, caption_projection_dim=1536,
            pos_embed_max_size=384, qk_norm="rms_norm", dual_attention_layers=tuple(range(13)),
        )),
        _sd3, {"B": 2, "H": 64, "W": 80, "L": 333}, 0,
    ),
    "sd3.5-large": Recipe(
        _castings(_diffusers(
            "SD3Transformer2DModel", num_layers=38, num_attention_heads=38, caption_projection_dim=2432,
            pos_embed_max_size=192, qk_norm="rms_norm",
        )),
        _sd3, {"B": 2, "H": 64, "W": 80, "L": 333}, 0,
    ),
    "kl-f8-16": Recipe(
        _around(
            Encoding,
            _diffusers("AutoencoderKL", latent_channels=16, use_quant_conv=False, use_post_quant_conv=False, **_KL),
        ),
        _pixels, _PIXELS, 83_819_683,
    ),
    "flux-dev": Recipe(
        _diffusers("FluxTransformer2DModel", guidance_embeds=True), _flux, {"B": 2, "H": 64, "W": 80, "L": 512},
        11_901_408_320,
    ),
    **{
        f"kohya-sd{number}-unet{'' if sdpa else '-eager'}": Recipe(
            _kohya(number == 2, sdpa), _unet_inputs(1024 if number == 2 else 768), _LATENTS, count, SD_SCRIPTS
        )
        for number, count in ((1, 859_520_964), (2, 865_910_724))
        for sdpa in (True, False)
    },
    **{
        f"kohya-sdxl-unet{'-fp32' if whole else ''}{'' if sdpa else '-eager'}": Recipe(
            _kohya_xl(sdpa, whole), _kohya_xl_inputs, _LATENTS, 2_567_463_684, SD_SCRIPTS
        )
        for whole in (False, True)
        for sdpa in (True, False)
    },
}  # fmt: skip


def made(name: str) -> dict[str, Any]:
    """The program of a model, as a JSON value."""
    from memlint.measure import forward

    recipe = RECIPES[name]
    kohya = recipe.library == SD_SCRIPTS
    library = recipe.library if kohya else f"{recipe.library} {version(recipe.library)}"
    source = f"{library}, torch {version('torch').partition('+')[0]}"
    with enable_python_dispatcher():  # else padding asks for sizes as numbers
        program = forward.program(
            recipe.build,
            recipe.inputs,
            recipe.sizes,
            name.removeprefix("kohya-"),
            source,
            low_autocast=kohya,
            low_inputs="kohya-sdxl" in name,
        )
    program["guards"] = [guard for guard in program["guards"] if guard not in recipe.open]
    if kohya:
        _upsampling_named(program)
        if "sdxl" in name:
            with torch.device("meta"):
                modules = recipe.build().named_modules()
            program["checkpoints"] = [path for path, one in modules if type(one).__name__ in _CHECKPOINT_THEMSELVES]
    return program


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*RECIPES, []], metavar="NAME")
    parser.add_argument("--to", type=Path, default=FOLDER)
    parser.add_argument("--sd-scripts", type=Path)
    asked = parser.parse_args()
    if asked.sd_scripts is not None:
        sys.path.insert(0, str(asked.sd_scripts))
    for name in asked.names or RECIPES:
        text = json.dumps(made(name), separators=(",", ":")) + "\n"
        folder = asked.to / ("sd-scripts" if name.startswith("kohya-") else "diffusers")
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".{name}.part"
        part.write_text(text, encoding="utf-8")
        os.replace(part, folder / f"{name.removeprefix('kohya-')}.json")
        print(f"{name}: {len(text):,} bytes")


if __name__ == "__main__":
    main()
