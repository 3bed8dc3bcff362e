"""Diffusion transformers by their names.

Sources: Peebles and Xie, arXiv 2212.09748, table 1; ``models.py`` of facebookresearch/DiT and willisma/SiT.
"""

from __future__ import annotations

from memlint.named_tuple import NamedTuple


class Size(NamedTuple):
    hidden: int
    depth: int
    heads: int


SIZES = {
    "S": Size(384, 12, 6),
    "B": Size(768, 12, 12),
    "L": Size(1024, 24, 16),
    "XL": Size(1152, 28, 16),
}
PATCHES = (2, 4, 8)
DOWNSCALE = 8  # pixels of a latent's side
CHANNELS = 4  # of a latent
DIT, SIT = "DiT", "SiT"


class Named(NamedTuple):
    """interpolates: its loss is of a straight path (SiT), and not a denoiser's; patch: latents of a side."""

    interpolates: bool
    size: Size
    patch: int


MODELS = {
    f"{kind}-{size}/{patch}": Named(kind == SIT, shape, patch)
    for kind in (DIT, SIT)
    for size, shape in SIZES.items()
    for patch in PATCHES
}
