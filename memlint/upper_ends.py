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


READS_AHEAD = "transformers.reads_ahead_of_quantisation"


def read_ahead(spec: TrainingSpec, found: Estimate) -> Estimate:
    """With intervals that hold the whole model as it was before it was quantised, where that may be on the card."""
    from memlint import plausible
    from memlint.meta.tensor import DTYPES

    if not _is_quantised_on_the_card(spec) or not (spec.does(READS_AHEAD) or plausible.may_have_met(spec, READS_AHEAD)):
        return found
    dtype = DTYPES[spec.get("frozen_dtype") or spec.get("parameter_dtype", "float32")]
    size = (found.parameters - found.trainable_parameters) * dtype.itemsize
    if size <= found.allocated_interval.high_bytes:
        return found
    fixed = found.device_bytes - found.reserved_bytes
    why = "transformers 5.0 to 5.3 read ahead of quantisation, as far as their threads come: the high end is all of it"
    return found._replace(
        allocated_interval=_up_to(found.allocated_interval, size),
        reserved_interval=_up_to(found.reserved_interval, size),
        device_interval=_up_to(found.device_interval, size + fixed),
        assumptions=(*found.assumptions, ("loading", format_bytes(size), why)),
    )


LEAST_LENGTH = 64  # tokens: of shorter samples the blocks are those of the allocator's small pool, which are split


def lengths_vary(spec: TrainingSpec) -> bool:
    """Whether batches of a language model's samples, each filled up to its own longest, differ in length."""
    if spec.architecture != "language_model" or spec.get("packing") or spec.get("empty_cache_steps"):
        return False
    if spec.get(HYPER + "pad_to_max_length"):
        return False
    length = spec.get("sequence_length")
    return isinstance(length, int) and length >= LEAST_LENGTH


def with_lengths(found: Estimate, reserved: int) -> Estimate:
    """With upper ends that hold so many reserved bytes."""
    more = reserved - found.reserved_interval.high_bytes
    if more <= 0:
        return found
    why = (
        "batches that are longer than all before them find no free block that is large enough; the high end is after"
        " three shorter ones (expandable_segments:True avoids it)"
    )
    device = found.device_interval
    return found._replace(
        reserved_interval=_up_to(found.reserved_interval, reserved),
        device_interval=device._replace(high_bytes=device.high_bytes + more),
        assumptions=(*found.assumptions, ("lengths of batches", f"up to {format_bytes(reserved)} reserved", why)),
    )


def _up_to(interval: Interval, size: int) -> Interval:
    return interval._replace(high_bytes=max(interval.high_bytes, size))


def _is_quantised_on_the_card(spec: TrainingSpec) -> bool:
    """By bitsandbytes, as transformers loads a checkpoint of 16 bits."""
    if (spec.get("quantization.kind") or "nf4") not in ("nf4", "fp4", "int8"):
        return False
    if spec.get("implementation", "transformers") != "transformers":
        return False
    if spec.get("parallelism.strategy", "none") not in ("none", "ddp"):
        return False  # such loaders bring weights to the host
    config = spec.get("hyperparameters.config")
    quantised = isinstance(config, dict) and bool(config.get("quantization_config"))
    return not quantised and "bnb" not in str(spec.model_name).lower()
