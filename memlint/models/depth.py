"""Deep models whose layers repeat: two shallow recordings in place of a long one (:mod:`memlint.meta.fold`).

The recordings are of the first and last layers of the model, with what depends on all layers as they are: the sizes of
shards and states. This is exact, not an approximation, where what lies between them comes again and again: where the
layers are equal, or take turns (a window and none, recurrence and attention), and nothing that a run decides reaches
further than the layers that are recorded. What may not be so (:func:`_reach`, ``stack`` of the model) is recorded in
full.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final

from memlint.architectures.decoder import OWN_LAYERS, Decoder
from memlint.facts.spec import TrainingSpec
from memlint.meta.fold import Folded, fold
from memlint.meta.tensor import Tensor
from memlint.models import Recording
from memlint.named_tuple import NamedTuple

if TYPE_CHECKING:
    from memlint.models.templates import Templates

# (layers that are recorded, layers that the model has, after how many they repeat): set here, read where the model is
# built.
RECORDED_LAYERS: Final = "recorded_layers"

# Layers at either end may differ from those between them; three turns of a loop show that it is one.
TURNS, ENDS = 2, 2
SHORT = TURNS + ENDS
# Longer turns would have to be recorded almost as often as models have them (six of Gemma 3: four to ten times).
MOST_PERIOD, MOST_LEAD = 4, 8
UNKNOWN = 1_000_000
# The recordings cost as much as their layers together, and finding the loops.
WORTHWHILE = 16


def shortened(spec: TrainingSpec, decoder: Decoder) -> Decoder:
    """The decoder with as many layers as this recording is to have."""
    recorded = spec.get(RECORDED_LAYERS)
    if recorded is None:
        return decoder
    return decoder._replace(layers=recorded[0], windows=decoder.windows[: recorded[0]])


class Stack(NamedTuple):
    """The layers of a model.

    layers  how many; 0 where they are not known to repeat
    period  after how many they repeat: 1 where they are equal
    lead    so many at the beginning are unlike those that repeat
    experts  whether some have experts
    """

    layers: int = 0
    period: int = 1
    lead: int = 0
    experts: bool = False

    @property
    def is_plain(self) -> bool:
        return self.period == 1 and not self.lead and not self.experts


def stack_of(decoder: Decoder) -> Stack:
    """How its layers repeat, by how they are built."""
    if decoder.code in OWN_LAYERS or decoder.unequal is not None:
        return Stack()
    layers, windows = decoder.layers, decoder.windows
    other = {*(decoder.linear.layers if decoder.linear else ())}
    other.update(decoder.convolution.layers if decoder.convolution else ())
    other.update(decoder.space.layers if decoder.space else ())
    kinds = [
        (
            windows[number] if windows else 0,
            number in decoder.unrotated,
            number in other,
            decoder.experts is not None and decoder.experts.stand_in(number),
        )
        for number in range(layers)
    ]
    for period in range(1, MOST_PERIOD + 1):
        lead = layers - period
        while lead > 0 and kinds[lead - 1] == kinds[lead - 1 + period]:
            lead -= 1
        if 0 <= lead <= MOST_LEAD:
            return Stack(layers, period, lead, decoder.experts is not None)
    return Stack()


def record(
    record_step: Callable[[TrainingSpec], Recording],
    spec: TrainingSpec,
    stack: Stack,
    templates: Templates | None = None,
    what: tuple[Hashable, ...] = (),
) -> Recording | None:
    """The recording of a run of layers that repeat; None where it has to be recorded in full. ``templates``: those of
    other runs, where ``what`` tells apart how they are recorded."""
    layers, period = stack.layers, stack.period
    short = _few(spec, stack)
    if not short:
        return None
    more = (layers - short) // period

    def both(run: TrainingSpec) -> tuple[Recording, Recording]:
        one, two = (
            record_step(run.replaced({RECORDED_LAYERS: (few, layers, period)})) for few in (short, short + period)
        )
        return one, two

    found: Folded | None = None
    if templates is None:
        one, two = both(spec)
    else:
        one, two, found = templates.shallow((*what, short, layers, period), both, spec, more)
    in_turn = two.parameters - one.parameters
    if stack.is_plain and SHORT + _reach(spec, in_turn) > short:
        return None
    found = found or fold(one.tape, two.tape, more)
    if found is None or one.loading is not None:
        return None
    return one._replace(
        parameters=one.parameters + more * in_turn,
        trainable_parameters=one.trainable_parameters + more * (two.trainable_parameters - one.trainable_parameters),
        host_bytes=one.host_bytes + more * (two.host_bytes - one.host_bytes),
        folded=found,
    )


def saved_bytes(record_forward: Callable[[TrainingSpec], int], spec: TrainingSpec, stack: Stack) -> int | None:
    """What autograd holds at the end of a forward pass through layers that repeat; None where that has to be recorded
    in full."""
    layers, period = stack.layers, stack.period
    short = _few(spec, stack)
    if not short:
        return None
    one = record_forward(spec.replaced({RECORDED_LAYERS: (short, layers, period)}))
    two = record_forward(spec.replaced({RECORDED_LAYERS: (short + period, layers, period)}))
    return one + (layers - short) // period * (two - one)


def _few(spec: TrainingSpec, stack: Stack) -> int:
    """How many layers are recorded in place of all, and once a turn more; 0 where that is not worth it."""
    layers, period = stack.layers, stack.period
    if layers < WORTHWHILE:
        return 0
    if _gathers(spec) and not stack.is_plain:
        return 0  # how far ahead is fetched goes by the size of each layer
    reach = _reach(spec, _elements(spec))
    # A turn may begin within a layer: of the first and the last one a part is left over.
    short = stack.lead + TURNS * period + ENDS + reach
    short += (layers - short) % period  # so that the last layer is the same in each
    return short if layers >= WORTHWHILE + 3 * (short - SHORT) else 0


def as_deep(spec: TrainingSpec, model: Any, updated: Sequence[Tensor]) -> Sequence[Tensor]:
    """Parameters of a model, those of a turn in the middle as often as the whole model has such turns: where states or
    buckets are cut out of all parameters together."""
    depth = spec.get(RECORDED_LAYERS)
    if depth is None:
        return updated
    recorded, layers, period = depth
    middle = (recorded - period + 1) // 2
    turn = model.layers[middle : middle + period]
    own = {id(parameter) for layer in turn for parameter in layer.parameters()}
    repeated = [parameter for parameter in updated if id(parameter) in own]
    if not repeated:
        return updated
    behind = 1 + max(place for place, parameter in enumerate(updated) if id(parameter) in own)
    return [*updated[:behind], *(repeated * ((layers - recorded) // period)), *updated[behind:]]


def _reach(spec: TrainingSpec, elements: int) -> int:
    """Layers beyond the next one that what happens at a layer may depend on, of ``elements`` parameters each.

    ZeRO 3 fetches layers ahead while they fit its bucket, and does not let go of the last ones, which are used again
    within its reuse distance (:class:`memlint.models.parallel.zero.ZeroParameters`). What is fetched and not used adds
    up from layer to layer until as much is alive as may be. Where one layer is as much, none fetches another one.
    """
    if not _gathers(spec):
        return 0
    from memlint.models.parallel import zero

    persistent = zero.stated(spec, "parallelism.persistence_elements", zero.PERSISTENCE)
    if elements < 64 * persistent:
        return UNKNOWN  # how much of a layer is gathered at all
    gathered = elements // 2
    ahead = zero.stated(spec, "parallelism.prefetch_bucket_elements", zero.PREFETCH_BUCKET)
    behind = zero.stated(spec, "parallelism.reuse_distance_elements", zero.REUSE_DISTANCE)
    alive = zero.stated(spec, "parallelism.live_parameter_elements", zero.LIVE_PARAMETERS)
    ahead = min(ahead, alive) if gathered < alive else 0
    unused = -(-alive // ahead) if ahead > 0 else 0
    kept = max(0, -(-behind // (2 * gathered)) - 1)  # besides the last one
    reach: int = 2 * (ahead // gathered) + kept + unused
    return reach


def _gathers(spec: TrainingSpec) -> bool:
    """Whether ZeRO shards the parameters."""
    return bool(spec.get("parallelism.strategy") == "zero" and spec.get("parallelism.zero_stage") == 3)


def _elements(spec: TrainingSpec) -> int:
    """About as many parameters as a layer has."""
    described, config = spec.get("decoder"), spec.get("hyperparameters.config") or {}
    width, inner = config.get("hidden_size"), config.get("intermediate_size")
    if described is not None:
        width, inner = described.width, described.intermediate
    if not isinstance(width, int) or not isinstance(inner, int):
        return 0
    return width * (2 * width + 3 * inner)
