"""On how many devices a run would fit whose config names none."""

from __future__ import annotations

from memlint.facts.spec import Name
from memlint.plugin import Run
from memlint.units import format_bytes

# Devices that are tried where nothing says how many share the run, each with all states shared (ZeRO 3).
SHARED = (2, 4, 8, 16)


def alone(run: Run) -> list[str]:
    """What a reader of a config that names no devices has to know, and on how many of them it would fit."""
    assumed = () if run.estimate is None else run.estimate.assumptions
    why = next((why for name, _, why in assumed if name == "devices"), "")
    if not why:
        return []
    said = [f'one device, as {why} (`--gpu "{_card(run)} x8"` does)']
    if run.fact("parallelism.strategy") is not None:
        return said
    for count in SHARED:
        shared: dict[Name, int | str] = {"parallelism.strategy": "zero", "parallelism.zero_stage": 3}
        shared |= {"device_count": count, "world_size": count}
        if run.fits_if(shared):
            peak = format_bytes(run.what_if(shared).device_bytes)
            return [*said, f"fits from {count} devices on, with all states shared (ZeRO 3): peak {peak} on each"]
    return [*said, f"does not fit {SHARED[-1]} devices either, with all states shared (ZeRO 3)"]


def _card(run: Run) -> str:
    """The card that --gpu names, or one that it could."""
    if not run.gpu:
        return "h100-80gb"
    from memlint.data.catalogue import parse_gpu

    return parse_gpu(run.gpu)[0].name
