"""Diffusers' pipelines, and what its training scripts do with one: which models are on the card, which of them train.

Sources: ``diffusers`` 0.42.1, ``examples`` (a row has the name of its script), and ``memlint/data/pipelines.json``.
"""

from __future__ import annotations

import json
import os

import memlint.data
from memlint.named_tuple import NamedTuple


class Pipeline(NamedTuple):
    """A pipeline's models, by the names of their programs.

    denoiser    the UNet or transformer
    vae         the autoencoder, "" where no program stands for it
    text        the text encoders
    tokens      of a prompt
    channels    of a latent; 0 where the autoencoder gives numbers of a codebook
    downscale   pixels of a latent's side
    control     a ControlNet that is made of the denoiser
    controlled  the denoiser, called with a ControlNet's results
    edited      the denoiser that is given the latents of two images, one behind the other
    frames      of a video that one latent is of; 0 for images
    per_patch   latents that a patch is of in time: a video has as many times so many, its first one repeated
    before      parameters of text encoder and autoencoder, where no program stands for them
    """

    kind: str
    title: str
    denoiser: str
    vae: str
    text: tuple[str, ...]
    tokens: int
    channels: int
    downscale: int
    control: str = ""
    controlled: str = ""
    edited: str = ""
    frames: int = 0
    per_patch: int = 1
    before: int = 0


class Script(NamedTuple):
    """What a training script does.

    kinds       the pipelines that it is for
    trains      "denoiser", "control": a ControlNet beside it, or "tokens": rows of the text encoder's table, and what
                is in between passes gradients on
    text        what of the text encoder trains with ``--train_text_encoder``: "full", "adapters", or "" where its step
                is not known
    targets     the linear layers that adapters are put beside; () where all of what trains is trained
    edits       the denoiser is given what an image was before, too: the autoencoder encodes both
    encodes     the autoencoder is called in each step (else latents are made before the first)
    prompts     the text encoders are called in each step
    stays       the text encoders are called before the first step alone, and stay on the card: a list of them is left
    vae_dtype   of the autoencoder's weights; "" for that of all frozen weights
    full_dtype  of a denoiser that trains in full; "" for that of all frozen weights
    uncast      the denoiser is in float32 whatever trains of it, unless DeepSpeed casts it, and comes to the card once
                what is called before the first step has left it
    caches      the switch with which latents are made before the first step, and the autoencoder is deleted
    cached      what has to be stated for the script to train on latents and prompts that were made by another program
    prompted    what is stated where each image has a prompt of its own, and text encoders run in each step
    logits      the denoiser gives a number for each entry of a codebook, and the loss is a cross entropy
    fails       switches with which its own code fails under mixed precision
    prompt      T5's tokens of a prompt, where the script takes fewer than the pipeline
    own         the model that the script makes where a command names no config of one
    optimizer, batch, resolution, rank  what the script takes where a command does not say
    """

    kinds: tuple[str, ...]
    trains: str = "denoiser"
    text: str = ""
    targets: tuple[str, ...] = ()
    edits: bool = False
    encodes: bool = True
    prompts: bool = True
    stays: bool = False
    vae_dtype: str = ""
    full_dtype: str = "float32"
    uncast: bool = False
    caches: str = ""
    cached: str = ""
    logits: bool = False
    prompted: str = ""
    fails: tuple[str, ...] = ()
    prompt: int = 0
    own: str = ""
    optimizer: str = "adamw"
    batch: int = 4
    resolution: int = 512
    rank: int = 4


_STABLE = ("sd1", "sd2")
_SD3 = ("sd3-medium", "sd3.5-medium", "sd3.5-large")
_COGVIDEOX = ("cogvideox-2b", "cogvideox-5b")
SIMPLETUNER = "SimpleTuner"
COGVIDEO = (*_COGVIDEOX, "cogvideox1.5-5b")  # what THUDM's own program trains
_ATTENTION = ("to_k", "to_q", "to_v", "to_out.0")

# The script's name without .py -> what it does.
SCRIPTS: dict[str, Script] = {
    "train_text_to_image": Script(_STABLE, batch=16),
    "train_text_to_image_lora": Script(_STABLE, targets=_ATTENTION, batch=16),
    "train_dreambooth": Script(_STABLE, text="full"),
    "train_dreambooth_lora": Script(_STABLE, text="adapters", targets=(*_ATTENTION, "add_k_proj", "add_v_proj")),
    "textual_inversion": Script(_STABLE, trains="tokens", full_dtype="", batch=16),
    "train_controlnet": Script(("sd1",), trains="control"),
    # Its text encoders are called before the first step, and stay.
    "train_controlnet_sdxl": Script(("sdxl",), trains="control", vae_dtype="float32"),
    "train_instruct_pix2pix": Script(("sd1",), edits=True, batch=16, resolution=256),
    "train_instruct_pix2pix_sdxl": Script(("sdxl",), edits=True, vae_dtype="float32", batch=16, resolution=256),
    "train_unconditional": Script(("ddpm",), own="ddpm", encodes=False, prompts=False, batch=16, resolution=64),
    "train_text_to_image_sdxl": Script(("sdxl",), encodes=False, prompts=False, batch=16, resolution=1024),
    "train_text_to_image_lora_sdxl": Script(
        ("sdxl",), targets=_ATTENTION, vae_dtype="float32", batch=16, resolution=1024
    ),
    # Its text encoders are called once, and stay: what is deleted is a list of them.
    "train_dreambooth_lora_sdxl": Script(
        ("sdxl",), targets=_ATTENTION, vae_dtype="float32", resolution=1024
    ),
    "train_amused": Script(
        ("amused-256", "amused-512"), targets=("to_q", "to_k", "to_v"), vae_dtype="float32", logits=True, batch=16,
        rank=16,
    ),
    # One prompt for all images. Its text encoders are deleted by their names, but not the list that holds them, which
    # is asked again where images have prompts of their own. The autoencoder is deleted where it caches.
    "train_dreambooth_lora_flux": Script(
        ("flux-dev",),
        targets=(
            *("attn.to_k", "attn.to_q", "attn.to_v", "attn.to_out.0"),
            *("attn.add_k_proj", "attn.add_q_proj", "attn.add_v_proj", "attn.to_add_out"),
            *("ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2"),
        ),
        prompts=False, stays=True, caches="cache_latents", prompted="caption_column",
    ),
    # One prompt for all images: text encoders are deleted before the first step, and the list of them.
    "train_dreambooth_flux": Script(("flux-dev",), prompts=False, prompted="caption_column", prompt=77),
    # One prompt for all images, as with Flux in full; the autoencoder stays, in fp32.
    "train_dreambooth_lora_sd3": Script(
        _SD3,
        targets=(
            *("attn.to_k", "attn.to_q", "attn.to_v", "attn.to_out.0"),
            *("attn.add_k_proj", "attn.add_q_proj", "attn.add_v_proj", "attn.to_add_out"),
        ),
        prompts=False, vae_dtype="float32", prompted="caption_column", fails=("cache_latents",),
    ),
    "train_dreambooth_sd3": Script(_SD3, prompts=False, vae_dtype="float32", prompted="caption_column"),
    # a-r-r-o-w/cogvideox-factory 223add1, training/cogvideox
    "cogvideox_text_to_video_lora": Script(
        _COGVIDEOX, targets=_ATTENTION, encodes=False, prompts=False, cached="load_tensors", optimizer="adam", rank=64
    ),
    "cogvideox_text_to_video_sft": Script(
        _COGVIDEOX, encodes=False, prompts=False, full_dtype="", cached="load_tensors", optimizer="adam"
    ),
    # bghira/SimpleTuner bc8e6ab: one program for all of its models
    SIMPLETUNER: Script(
        (*_STABLE, "sdxl", *_SD3, "flux-dev"), targets=_ATTENTION, encodes=False, prompts=False, uncast=True, rank=16
    ),
    # THUDM/CogVideo e519ece, finetune: one program, whatever trains
    "CogVideo/lora": Script(COGVIDEO, targets=_ATTENTION, encodes=False, prompts=False, uncast=True, batch=1, rank=128),
    "CogVideo/sft": Script(COGVIDEO, encodes=False, prompts=False, uncast=True, batch=1),
}  # fmt: skip

_pipelines: dict[str, Pipeline] = {}
_copies: dict[str, Pipeline] = {}  # by the last part of an id, where all that have it are of one kind


def pipeline(name: str) -> Pipeline | None:
    """The pipeline of a hub id, in any case, or of a model of a script's own; None where it is not known. A folder, and
    another's repository, of an id's very name is a copy of it: ``models/stable-diffusion-2-1-base``."""
    if not _pipelines:
        path = os.path.join(os.path.dirname(memlint.data.__file__), "pipelines.json")
        with open(path, encoding="utf-8") as file:
            table = json.load(file)
        kinds = {kind: _made(kind, row) for kind, row in table["kinds"].items()}
        _pipelines.update((known.lower(), kinds[kind]) for known, kind in table["models"].items())
        _copies.update((known.rpartition("/")[2], one) for known, one in _pipelines.items() if "/" in known)
    wanted = name.strip("/").lower()
    return _pipelines.get(wanted) or _copies.get(wanted.replace("\\", "/").rpartition("/")[2])


def _made(kind: str, row: dict[str, object]) -> Pipeline:
    text = row["text"]
    assert isinstance(text, list)
    return Pipeline(kind=kind, **{**row, "text": tuple(text)})  # type: ignore[arg-type]
