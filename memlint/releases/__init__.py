"""What a library does from one release on, and until another: one table, read wherever a run's memory depends on it.

A config rarely says which release will run it, and the same config takes different memory under different ones. The
rows stand in a module for each kind of library, what every library is called and its newest release here.
"""

from __future__ import annotations

from memlint.releases import frameworks, trainers, transformers, vision
from memlint.releases.behaviour import Behaviour, Library, Series
from memlint.releases.days import DAYS

BEHAVIOURS: dict[str, Behaviour] = {
    **frameworks.BEHAVIOURS,
    **transformers.BEHAVIOURS,
    **trainers.BEHAVIOURS,
    **vision.BEHAVIOURS,
}
LIBRARIES: dict[str, Library] = {
    "unsloth": Library("Unsloth", "2026.10.9", "release.unsloth", ("unsloth",)),
    "accelerate": Library("accelerate", "1.15", "release.accelerate", ("accelerate",)),
    "peft": Library("PEFT", "0.21", "release.peft", ("peft",)),
    "bitsandbytes": Library("bitsandbytes", "0.50", "release.bitsandbytes", ("bitsandbytes",)),
    "jax": Library("JAX", "0.11", "framework_version", ("jax",)),
    "litgpt": Library("litgpt", "0.5.13", "release.litgpt", ("litgpt",)),
    "timm": Library("timm", "1.0", "release.timm", ("timm",)),
    "torch": Library("torch", "2.13", "framework_version", ("torch", "pytorch")),
    "torchtune": Library("torchtune", "0.6", "implementation_version", ("torchtune",)),
    "torchvision": Library("torchvision", "0.28", "release.torchvision", ("torchvision",)),
    "transformers": Library("transformers", "5.23", "transformers_version", ("transformers",)),
    "trl": Library("TRL", "1.16", "release.trl", ("trl",)),
    "ultralytics": Library("Ultralytics", "8.4.190", "release.ultralytics", ("ultralytics",)),
    "verl": Library("verl", "0.9", "release.verl", ("verl",)),
}

# Releases of torch since which rms_norm is another one, the newest first: rows ``torch.rms_norm_...``
NORM_RELEASES = ("2.12", "2.9", "2.7", "2.5")


def does(behaviour: str, release: object) -> bool:
    """Whether a release (``1.7.0``, ``torch 2.6``; None for the newest) behaves so. Raises KeyError for no row."""
    row = BEHAVIOURS[behaviour]
    found = series(release) or series(LIBRARIES[row.library].newest) or ()
    return (row.since is None or found >= row.since) and (row.until is None or found < row.until)


def borders(behaviour: str) -> list[Series]:
    """The releases at which a behaviour comes and goes."""
    row = BEHAVIOURS[behaviour]
    return [border for border in (row.since, row.until) if border is not None]


def on(library: str, day: str, limit: object = None) -> str:
    """A release of a library that behaves as the newest one before a day did (``2026-06-25``), or as ``limit`` where
    that is older: what is newest at a border stands for all until the next one. ``0.0`` where there is none."""
    known = DAYS.get(library, {})
    most = series(limit)
    found = [border for border, since in known.items() if since < day and (most is None or border <= most)]
    return ".".join(map(str, max(found, default=(0, 0))))


MAX_DIGITS = 9  # of one number of a release: nightly builds count days


def series(release: object) -> Series | None:
    """The first numbers of a release, up to three; None where it has fewer than two."""
    text = str(release or "").rpartition(" ")[2]
    numbers: list[int] = []
    for part in text.split("+", 1)[0].split(".", 3)[:3]:
        if not (part.isascii() and part.isdigit() and len(part) < MAX_DIGITS):
            break
        numbers.append(int(part))
    return tuple(numbers) if len(numbers) > 1 else None
