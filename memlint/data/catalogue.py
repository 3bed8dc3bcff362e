"""The cards that memlint knows: label, usable memory, capability. The figures and their sources are in gpus.json."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

from memlint.named_tuple import NamedTuple

# Major compute capabilities: FlashAttention, bfloat16 and TF32 begin with the first.
AMPERE, HOPPER = 8, 9


class Gpu(NamedTuple):
    """One card.

    name          catalogue name: lower case, no vendor, a memory suffix where variants exist
    label         name on the box
    vendor        nvidia or amd
    capability    compute capability (``8.0``), or the ISA of an AMD card (``gfx942``)
    bf16, fp8     the matrix units take the type
    memory_gib    memory on the label
    usable_bytes  what the device reports as its total: the budget of a run that has the card to itself
    usable_from   where that figure comes from: torch, nvidia-smi, or label if none was published
    source        address of the figure
    """

    name: str
    label: str
    vendor: str
    architecture: str
    capability: str
    bf16: bool
    fp8: bool
    memory_gib: int
    usable_bytes: int
    usable_from: str
    source: str

    @property
    def major(self) -> int:
        """Major compute capability; 0 on AMD cards, which have none."""
        return int(self.capability.partition(".")[0]) if self.vendor == "nvidia" else 0


class UnknownGpu(ValueError):
    """No card of that name. ``nearest`` holds catalogue names, best first."""

    def __init__(self, text: str, nearest: tuple[str, ...], reason: str) -> None:
        hint = f": did you mean {' or '.join(nearest)}?" if nearest else "; `memlint gpus` lists them all"
        super().__init__(f"{reason}{hint}")
        self.text = text
        self.nearest = nearest


MAX_COUNT = 1_000_000  # more devices than any cluster; a longer number is a typing error

# Words of a full product name that do not tell cards apart.
_NOISE = frozenset(
    (
        *("nvidia", "amd", "geforce", "tesla", "instinct", "radeon", "gpu", "graphics", "tensor", "core"),
        *("generation", "blackwell", "server", "workstation", "edition", "pcie", "oam", "gddr6", "gddr6x", "gddr7"),
        *("sxm", "sxm2", "sxm3", "sxm4", "sxm5", "sxm6", "hbm2", "hbm2e", "hbm3", "hbm3e"),
    )
)

_cards: tuple[Gpu, ...] = ()
_by_key: dict[str, list[Gpu]] = {}  # base name and aliases, without memory -> variants
_parsed: dict[str, tuple[Gpu, int]] = {}
_preferred: dict[str, Gpu] = {}  # aliases: the variant meant when no memory is given


def cards() -> tuple[Gpu, ...]:
    """Every card, in the catalogue's order."""
    _load()
    return _cards


def gpu(name: str) -> Gpu:
    """The card meant by a catalogue name or a looser spelling (``A100 80GB``, ``NVIDIA A100-SXM4-80GB``).

    Raises UnknownGpu, also where the name fits several variants and gives no memory (``a100``).
    """
    return _gpu(name, _nearest)


def _gpu(name: str, nearest: Callable[[str], tuple[str, ...]]) -> Gpu:
    _load()
    key, memory_gib = _key(name)
    variants = _by_key.get(key, [])
    fitting = [card for card in variants if memory_gib in (None, card.memory_gib)]
    if memory_gib is None and key in _preferred:
        return _preferred[key]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        names = tuple(card.name for card in fitting)
        raise UnknownGpu(name, names, f"{name.strip()} comes with different amounts of memory")
    if variants:
        names = tuple(card.name for card in variants)
        raise UnknownGpu(name, names, f"there is no {name.strip()} with {memory_gib} GB")
    shown = repr(name.strip()) if name.strip() else "an empty name"
    raise UnknownGpu(name, nearest(key), f"{shown} is not in the catalogue of GPUs")


def parse_gpu(text: str) -> tuple[Gpu, int]:
    """A card and how many: ``h100-80gb``, ``h100-80gb x8``, ``rtx4090x2``, ``8x a100-80gb``. Raises UnknownGpu."""
    known = _parsed.get(text)
    if known is None:
        known = _parsed[text] = _parse_gpu(text)
    return known


def says_how_many(text: str) -> bool:
    """Whether a number of cards is written: ``h100-80gb x1`` says that there is one, ``h100-80gb`` does not."""
    try:
        _gpu(text, lambda key: ())
    except UnknownGpu:
        words = text.strip().lower()
        return words[:1].isdigit() or (words[-1:].isdigit() and words.rstrip("0123456789")[-1:] in ("x", "*"))
    return False


def _parse_gpu(text: str) -> tuple[Gpu, int]:
    with contextlib.suppress(UnknownGpu):
        return _gpu(text, lambda key: ()), 1  # what it may have meant is looked for at the end
    words = text.strip().lower()
    head = words.rstrip("0123456789")
    count, head = words[len(head) :], head.rstrip()
    name = head[:-1]
    if not (count and name and head[-1] in "x*"):
        digits = len(words) - len(words.lstrip("0123456789"))
        count, rest = words[:digits], words[digits:].lstrip()
        name = rest[1:]
        if not (count and name and rest[0] in "x*"):
            return gpu(text), 1
    found = gpu(name)
    if len(count) > len(str(MAX_COUNT)) or not 1 <= int(count) <= MAX_COUNT:
        raise UnknownGpu(text, (found.name,), f"{count} is not a number of GPUs")
    return found, int(count)


def _key(text: str) -> tuple[str, int | None]:
    """The letters and digits that tell cards apart, and the GB of memory if the name has them."""
    words: list[str] = []
    memory_gib: int | None = None
    for word in "".join(c if c.isalnum() else " " for c in text.lower()).split():
        number = word.removesuffix("b").removesuffix("gi").removesuffix("g")
        if word in ("gb", "gib", "g") and words and _is_size(words[-1]):
            memory_gib = int(words.pop())
        elif number != word and word != number + "b" and _is_size(number):
            memory_gib = int(number)
        elif word not in _NOISE:
            words.append(word)
    return "".join(words), memory_gib


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4


def _nearest(key: str) -> tuple[str, ...]:
    from difflib import get_close_matches

    names: list[str] = []
    for near in get_close_matches(key[:64], _by_key, n=3, cutoff=0.6):
        for card in [_preferred[near]] if near in _preferred else _by_key[near]:
            if card.name not in names:
                names.append(card.name)
    return tuple(names[:4])


def _load() -> None:
    global _cards
    if _cards:
        return
    import json

    with open(os.path.join(os.path.dirname(__file__), "gpus.json"), encoding="utf-8") as file:
        catalogue: dict[str, Any] = json.load(file)
    shared = catalogue["sources"]
    found = []
    for entry in catalogue["cards"]:
        source = entry["sources"]["usable"]
        card = Gpu(
            entry["name"],
            entry["label"],
            entry["vendor"],
            entry["architecture"],
            entry["capability"],
            entry["bf16"],
            entry["fp8"],
            entry["memory_gib"],
            entry["usable_bytes"],
            entry["usable_from"],
            shared.get(source, source),
        )
        found.append(card)
        _by_key.setdefault(_key(card.name)[0], []).append(card)
        for alias in entry["aliases"]:
            _preferred[alias] = card
            variants = _by_key.setdefault(alias, [])
            if card not in variants:
                variants.append(card)
    _cards = tuple(found)
