"""What a tape amounts to on a card: the Estimate and its parts."""

from __future__ import annotations

from memlint.named_tuple import NamedTuple

FITS = "FITS"
TIGHT = "TIGHT"  # the interval straddles the budget
OOM = "OOM"
UNKNOWN = "UNKNOWN"
MEASURED = "+measured"  # at the end of a basis: a saved measurement narrowed the interval


class Interval(NamedTuple):
    low_bytes: int
    high_bytes: int


class Part(NamedTuple):
    """One module's share of a component at the peak.

    formula  closed form of ``requested_bytes`` in the names of the config; "" unless recorded symbolically
    symbols  name in the formula -> name of the fact behind it
    title    what papers call the module, where its name does not say it
    """

    name: str
    size_bytes: int
    formula: str = ""
    symbols: tuple[tuple[str, str], ...] = ()
    title: str = ""


class Component(NamedTuple):
    name: str
    size_bytes: int
    parts: tuple[Part, ...] = ()


class Estimate(NamedTuple):
    """Bytes of one run on its fullest device. ``components`` add up to ``device_bytes`` exactly.

    basis            where the tape came from: static, recorded, trace, probe; ``static+measured`` where a saved
                     measurement narrowed it
    allocated_bytes  peak of live tensors, each rounded up as the caching allocator rounds (512 B)
    reserved_bytes   peak of what the caching allocator took from the driver
    device_bytes     reserved + context + workspaces: what a budget is compared with
    saved_bytes      held by autograd at the end of the last micro-batch's forward
    probabilities_*  attention probabilities of one forward pass: saved for backward, and left to fused kernels
    phases           peak allocated bytes within each phase (forward, backward, optimizer_step, evaluation)
    """

    basis: str
    parameters: int
    trainable_parameters: int
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    saved_bytes: int
    peak_phase: str
    phases: dict[str, int]
    components: tuple[Component, ...]
    allocated_interval: Interval
    reserved_interval: Interval
    device_interval: Interval
    assumptions: tuple[tuple[str, str, str], ...] = ()  # (fact, value, reason)
    probabilities_kept_bytes: int = 0
    probabilities_avoided_bytes: int = 0
    modules: tuple[tuple[str, int, int], ...] = ()  # (path, parameters, of which trained), where asked for
    host_bytes: int = 0  # of states that this device's process keeps in host memory

    def component_bytes(self, name: str) -> int:
        return sum(component.size_bytes for component in self.components if component.name == name)

    @property
    def comparable_bytes(self) -> int:
        """What two runs are compared by: the device peak with a perfect packing of segments.

        Segments that fall out badly for one size and well for the next make ``device_bytes`` drop now and then, by
        less than a hundredth, where a batch grows. What is live never drops, nor does anything else in this figure.
        """
        return self.device_bytes - (self.reserved_bytes - self.allocated_bytes)

    def verdict(self, budget_bytes: int | None) -> str:
        """FITS, TIGHT (the interval straddles the budget) or OOM; UNKNOWN where there is no budget.

        A run that is OOM stays so with a larger batch, a longer sample or more accumulation: the low end of the
        interval is without packing, as in :attr:`comparable_bytes`. So none that FITS becomes OOM when it shrinks.
        """
        if budget_bytes is None:
            return UNKNOWN
        if self.device_interval.high_bytes <= budget_bytes:
            return FITS
        return OOM if self.device_interval.low_bytes > budget_bytes else TIGHT
