"""What the upper ends of an estimate hold beside its releases: what may be on the card by what the run is, and whose
size no file of the run says.
"""

from __future__ import annotations

from memlint import releases
from memlint.dialects import one_process
from memlint.facts.spec import ASSUMED, HYPER, TrainingSpec
from memlint.tape.estimate import Estimate, Interval
from memlint.tape.overhead import dynamic_share
from memlint.trainers import unsloth
from memlint.units import format_bytes


def held(spec: TrainingSpec, found: Estimate) -> Estimate:
    return _with_copies(spec, _with_dynamic_quants(spec, found))


def _with_copies(spec: TrainingSpec, found: Estimate) -> Estimate:
    """With upper ends that hold what copies of the model on other devices return on the first, in one process."""
    more = one_process.gathered_bytes(spec)
    if not more:
        return found
    copies = one_process.devices(spec)
    why = f"python starts one process for {copies} devices: nn.DataParallel gathers their logits on the first"
    return _higher(found, more, ("copies", f"up to {format_bytes(more)} more", why))


def _with_dynamic_quants(spec: TrainingSpec, found: Estimate) -> Estimate:
    """With upper ends that hold the layers which Unsloth's copy of a quantised model leaves in 16 bits: which those are
    is in that copy's config.json, and no file of the run says it."""
    name = spec.get("model") or spec.model_name
    if spec.get("quantization.bits") != 4:
        return found
    stated = unsloth.is_dynamic_copy(str(name))
    if not stated and not (spec.get(HYPER + "use_unsloth") and unsloth.is_dynamic(str(name))):
        return found
    release = spec.facts.get(releases.LIBRARIES["unsloth"].fact)
    if not stated and release is not None and release.origin != ASSUMED:
        pinned = releases.series(release.value)
        if pinned is not None and pinned < unsloth.DYNAMIC_SINCE:
            return found
    more = int(dynamic_share() * found.component_bytes("parameters"))
    why = f"Unsloth's copy of {name} leaves some layers in 16 bits: at most a third more was published of any"
    return _higher(found, more, ("dynamic quants", f"up to {format_bytes(more)} more", why))


def _higher(found: Estimate, more: int, assumption: tuple[str, str, str]) -> Estimate:
    return found._replace(
        allocated_interval=_raised(found.allocated_interval, more),
        reserved_interval=_raised(found.reserved_interval, more),
        device_interval=_raised(found.device_interval, more),
        assumptions=(*found.assumptions, assumption),
    )


def _raised(interval: Interval, more: int) -> Interval:
    return interval._replace(high_bytes=interval.high_bytes + more)
