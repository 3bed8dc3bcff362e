"""A saved measurement and an estimate: what of the one narrows the other, and why the rest does not.

Two things carry over, and nothing is scaled:

- For the same run (every fact as it was measured), the figures themselves. The interval then spans the prediction and
  the measurement, and nothing else: the uncertainty was about this very number.
- For other values of a fact, what does not depend on it: the context, and the workspaces that cuBLAS keeps, of that
  card and that version of the framework. Fragmentation is a matter of sizes, so it says nothing about other sizes.

A measurement of another card, of another version than the config states, or of the CPU is left aside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memlint.named_tuple import NamedTuple
from memlint.profiles.measurement import CPU, PACKAGES, Measurement
from memlint.tape.estimate import MEASURED, Estimate, Interval
from memlint.tape.overhead import Assumption, FixedParts
from memlint.units import format_bytes

if TYPE_CHECKING:
    from memlint.data.catalogue import Gpu

FACT = "measurement"  # under which the assumptions speak of it
FACTS_NAMED = 3


class Calibration(NamedTuple):
    """What is taken from a measurement.

    fixed       replaces published figures; None where nothing carries over
    same_run    the measured figures of this very run; None where its facts are others
    assumption  what was done with the measurement, for the report
    """

    fixed: FixedParts | None
    same_run: Measurement | None
    assumption: Assumption

    def narrow(self, estimate: Estimate, context_bytes: int, context: Interval) -> Estimate:
        """An estimate, its intervals narrowed by the measured figures.

        context_bytes, context  the context that the estimate counts, and its interval: one figure where it was measured
        """
        if self.fixed is None and self.same_run is None:
            return estimate
        estimate = estimate._replace(basis=estimate.basis + MEASURED)
        if self.same_run is None:
            return estimate
        # The counter of reserved bytes has cuBLAS's workspaces in it, which an estimate counts beside it.
        held = _span(estimate.device_bytes - context_bytes, self.same_run.reserved_bytes)
        return estimate._replace(
            allocated_interval=_span(estimate.allocated_bytes, self.same_run.allocated_bytes),
            reserved_interval=_span(estimate.reserved_bytes, self.same_run.reserved_bytes),
            device_interval=Interval(held.low_bytes + context.low_bytes, held.high_bytes + context.high_bytes),
        )


def _span(predicted: int, measured: int) -> Interval:
    return Interval(min(predicted, measured), max(predicted, measured))


def choose(
    measurements: Sequence[Measurement], run: str, facts: Mapping[str, Any], gpu: Gpu | None, version: str = ""
) -> Calibration | None:
    """What the measurements of a config say about one of its runs; None where none is of that run.

    facts    of the run, as :func:`memlint.profiles.measurement.facts_of` has them
    gpu      the card of the check; None for none in particular, and then it is taken to be the measured one
    version  of the framework, where the config itself states it: ``torch 2.13``
    """
    usable: list[Measurement] = []
    refused = ""
    for entry in measurements:
        if entry.run == run:
            why = _refusal(entry, gpu, version)
            refused = why or refused
            if not why:
                usable.append(entry)
    if not usable:
        return Calibration(None, None, (FACT, "not used", refused)) if refused else None
    same = [entry for entry in usable if entry.facts == facts]
    chosen = (same or usable)[-1]
    where = _where(chosen, gpu)
    fixed: FixedParts | None = FixedParts(chosen.context_bytes, chosen.library_workspace_bytes, where)
    if chosen.context_bytes is None and chosen.library_workspace_bytes is None:
        fixed = None
    unknown = "" if chosen.context_bytes is not None else "; the driver did not list the process: context unknown"
    if same:
        reason = f"{where}; the interval spans the prediction and the measurement{unknown}"
        size = chosen.reserved_bytes if unknown else chosen.device_bytes
        return Calibration(fixed, chosen, (FACT, format_bytes(size), reason))
    reason = f"{where} with {_differences(chosen.facts, facts)}{unknown}"
    return Calibration(fixed, None, (FACT, "not used" if fixed is None else "context and workspaces only", reason))


def _where(entry: Measurement, gpu: Gpu | None) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in entry.made_with.items() if name in PACKAGES.values())
    taken = "" if gpu is not None else ", which is taken to be the card as none is given"
    return f"measured on {entry.card}{taken}{f' ({versions})' if versions else ''}"


def _refusal(entry: Measurement, gpu: Gpu | None, version: str) -> str:
    """Why a measurement says nothing about a run on a card; "" where it does."""
    if entry.device == CPU:
        return "measured on the CPU, whose kernels and allocator are not a card's"
    if gpu is not None:
        from memlint.data.catalogue import UnknownGpu
        from memlint.data.catalogue import gpu as find

        try:
            card = find(entry.card)
        except UnknownGpu:
            return f"measured on {entry.card}, which the catalogue does not know, so not known to be a {gpu.name}"
        if card.name != gpu.name:
            return f"measured on {entry.card}, and this is a check for {gpu.name}"
    name, _, stated = version.partition(" ")
    made_with = entry.made_with.get(name, "")
    if stated and made_with and not _agree(stated, made_with):
        return f"measured with {name} {made_with}, and the config states {version}"
    return ""


def _agree(stated: str, made_with: str) -> bool:
    """``2.13`` stands for 2.13.0+cu128 as well, and not for 2.1."""
    wanted = stated.split("+")[0].split(".")
    return made_with.split("+")[0].split(".")[: len(wanted)] == wanted


def _differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """``micro_batch_size = 4 (now 8)``: the facts that changed, some of them."""
    names = [name for name in dict.fromkeys((*then, *now)) if then.get(name) != now.get(name)]
    said = [f"{name} = {then.get(name)} (now {now.get(name)})" for name in names[:FACTS_NAMED]]
    rest = len(names) - len(said)
    return ", ".join(said) + (f" and {rest} more facts" if rest else "")
