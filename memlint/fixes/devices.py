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
    if not run.fits_if(_shared(SHARED[-1])):
        return [*said, f"does not fit {SHARED[-1]} devices either, with all states shared (ZeRO 3)"]
    count = next(count for count in SHARED if run.fits_if(_shared(count)))
    peak = format_bytes(run.what_if(_shared(count)).device_bytes)
    return [*said, f"fits from {count} devices on, with all states shared (ZeRO 3): peak {peak} on each"]


def _shared(count: int) -> dict[Name, int | str]:
    sharding: dict[Name, int | str] = {"parallelism.strategy": "zero", "parallelism.zero_stage": 3}
    return {**sharding, "device_count": count, "world_size": count}


def _card(run: Run) -> str:
    """The card that --gpu names, or one that it could."""
    if not run.gpu:
        return "h100-80gb"
    from memlint.data.catalogue import parse_gpu

    return parse_gpu(run.gpu)[0].name
