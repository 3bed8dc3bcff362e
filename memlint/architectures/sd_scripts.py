"""kohya's sd-scripts: what each of its training scripts trains, and which Stable Diffusion it is for.

The sizes of a model are in the scripts' own code, so a script and ``--v2`` say them, whatever the file of weights is
called. Source: ``kohya-ss/sd-scripts`` 48d368fa (a row has the name of its script).
"""

from __future__ import annotations

import math

from memlint.named_tuple import NamedTuple


class Model(NamedTuple):
    """A Stable Diffusion.

    unet   its program, without what follows from precision and attention
    text   the programs of its text encoders
    """

    title: str
    unet: str
    text: tuple[str, ...]
    vae: str = "kl-f8"
    downscale: int = 8


MODELS: dict[str, Model] = {
    "sd1": Model("Stable Diffusion 1", "sd1-unet", ("clip-l",)),
    "sd2": Model("Stable Diffusion 2", "sd2-unet", ("clip-h",)),
    "sdxl": Model("Stable Diffusion XL", "sdxl-unet", ("clip-l", "clip-g")),
}


class Script(NamedTuple):
    """A training script.

    kinds     the models that it is for
    network   it trains adapters beside frozen models; else the UNet itself
    text_off  the option without which text encoders train as well; "" where ``text_on`` is what they need
    full      the switches that bring what trains to 16 bits (the others of them change nothing)
    chunked   images are encoded ``--vae_batch_size`` at a time in each step; else all of the batch at once
    """

    kinds: tuple[str, ...]
    network: bool = False
    text_off: str = ""
    text_on: str = ""
    full: tuple[str, ...] = ("full_fp16",)
    chunked: bool = False


_BOTH = ("full_fp16", "full_bf16")

SCRIPTS: dict[str, Script] = {
    "train_network": Script(("sd1", "sd2"), True, "network_train_unet_only", full=_BOTH, chunked=True),
    "sdxl_train_network": Script(("sdxl",), True, "network_train_unet_only", full=_BOTH, chunked=True),
    "train_db": Script(("sd1", "sd2"), text_off="stop_text_encoder_training"),
    "fine_tune": Script(("sd1", "sd2"), text_on="train_text_encoder"),
    "sdxl_train": Script(("sdxl",), text_on="train_text_encoder", full=_BOTH),
}


def largest_bucket(resolution: tuple[int, int], least: int, most: int, steps: int) -> tuple[int, int]:
    """Of the sizes that images are brought to, the one of most pixels (``make_bucket_resolutions`` of
    library/model_util.py): as many as the resolution has, or a little fewer. Width and height."""
    area = resolution[0] * resolution[1]
    side = int(math.sqrt(area) // steps) * steps
    sizes = {(side, side)}
    for width in range(least, most + 1, steps):
        height = min(most, int((area // width) // steps) * steps)
        if height >= least:
            sizes.add((width, height))
    return max(sizes, key=lambda size: (size[0] * size[1], -abs(size[0] - size[1]), size == resolution, size))
