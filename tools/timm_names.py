"""What timm says of the names of its models, into ``memlint/data/timm.json``, for those whose programs ship.

    python -m tools.timm_names

names    a name -> that which it stands for: what it was called in older releases, and networks of the same layers under
         two names, of which one has a program (``SAME``)
sides    a name with the tag of its weights -> the side of their images, where the name's program is for another
classes  a name without a tag -> how many classes it is made with, where that is not a thousand; 0: no last layer
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "memlint" / "data"
CLASSES = 1000

# Of one program, to the byte, but for its name: tests/differential/test_zoo.py records them again.
SAME = {
    "beitv2_base_patch16_224": "beit_base_patch16_224",
    "deit_base_patch16_224": "vit_base_patch16_224",
    "deit_base_patch16_384": "vit_base_patch16_384",
    "deit_small_patch16_224": "vit_small_patch16_224",
    "deit_tiny_patch16_224": "vit_tiny_patch16_224",
    "efficientnet_el_pruned": "efficientnet_el",
    "efficientnet_es_pruned": "efficientnet_es",
}
# Today's timm makes resnext101_32x8d by these names, and the releases that had them made what they say.
MISTAKEN = ("ig_resnext101_32x16d", "ig_resnext101_32x32d", "ig_resnext101_32x48d")


def table(ships: Sequence[str]) -> dict[str, Any]:
    """The file's value, of the names that have programs."""
    import timm

    registry = timm.models.get_deprecated_models().items()
    former = {name: stands for name, stands in registry if stands and name not in MISTAKEN}
    names = {name: stands for name, stands in {**former, **SAME}.items() if stands.partition(".")[0] in ships}
    sides: dict[str, int] = {}
    classes: dict[str, int] = {}
    for name in sorted({*ships, *(names.keys() & SAME.keys())}):
        config = timm.get_pretrained_cfg(SAME.get(name, name), allow_unregistered=False)
        side = config.input_size[-1] if config else 224
        for full in [name, *timm.list_pretrained(f"{name}.*")]:
            own = timm.get_pretrained_cfg(full, allow_unregistered=False)
            if own is not None and own.input_size[-1] != side:
                sides[full] = own.input_size[-1]
        own = timm.get_pretrained_cfg(name, allow_unregistered=False)
        if own is not None and own.num_classes != CLASSES:
            classes[name] = own.num_classes
    return {"names": dict(sorted(names.items())), "sides": sides, "classes": classes}


def text() -> str:
    """The file, of the programs that lie there."""
    ships = sorted(path.stem for path in (DATA / "programs" / "timm").glob("*.json"))
    return json.dumps(table(ships), separators=(",", ":")) + "\n"


def main() -> None:
    from tools import zoo

    zoo.declare_torchvision()
    (DATA / "timm.json").write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
