"""Deep models of equal layers: two shallow recordings in place of a long one (:mod:`memlint.meta.fold`).

The recordings are of the first and last layers of the model, with what depends on all layers as they are: the sizes of
shards and states. This is exact, not an approximation, where every layer between them does what its neighbours do:
where the layers are equal, and nothing that a run decides reaches further than the layers that are recorded. What may
not be so (:func:`_reach`, ``equal_layers`` of the model) is recorded in full.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final

from memlint.architectures.decoder import OWN_LAYERS, Decoder
from memlint.facts.spec import TrainingSpec
from memlint.meta.fold import Folded, fold
from memlint.meta.tensor import Tensor
from memlint.models import Recording

if TYPE_CHECKING:
    from memlint.models.templates import Templates

# (layers that are recorded, layers that the model has): set here, read where the model is built.
RECORDED_LAYERS: Final = "recorded_layers"

# Layers at either end may differ from those between them; three turns of a loop show that it is one.
SHORT = 4
UNKNOWN = 1_000_000
# The recordings cost as much as their layers together, and finding the loops.
WORTHWHILE = 16


def shortened(spec: TrainingSpec, decoder: Decoder) -> Decoder:
    """The decoder with as many layers as this recording is to have."""
    recorded = spec.get(RECORDED_LAYERS)
    if recorded is None:
        return decoder
    return decoder._replace(layers=recorded[0], windows=decoder.windows[: recorded[0]])


def equal_layers_of(decoder: Decoder) -> int:
    """How many layers it has, where all of them are built alike; else 0."""
    if decoder.code in OWN_LAYERS or decoder.unrotated or decoder.experts is not None or decoder.hybrid:
        return 0
    return decoder.layers if len(set(decoder.windows)) <= 1 else 0


def record(
    record_step: Callable[[TrainingSpec], Recording],
    spec: TrainingSpec,
    layers: int,
    templates: Templates | None = None,
    what: tuple[Hashable, ...] = (),
) -> Recording | None:
    """The recording of a run of ``layers`` equal layers; None where it has to be recorded in full. ``templates``: those
    of other runs, where ``what`` tells apart how they are recorded."""
    short = _few(spec, layers)
    if not short:
        return None
    more = layers - short

    def both(run: TrainingSpec) -> tuple[Recording, Recording]:
        one, two = (record_step(run.replaced({RECORDED_LAYERS: (few, layers)})) for few in (short, short + 1))
        return one, two

    found: Folded | None = None
    if templates is None:
        one, two = both(spec)
    else:
        one, two, found = templates.shallow((*what, short, layers), both, spec, more)
    in_layer = two.parameters - one.parameters
    if SHORT + _reach(spec, in_layer) > short:
        return None
    found = found or fold(one.tape, two.tape, more)
    if found is None or one.loading is not None:
        return None
    return one._replace(
        parameters=one.parameters + more * in_layer,
        trainable_parameters=one.trainable_parameters + more * (two.trainable_parameters - one.trainable_parameters),
        host_bytes=one.host_bytes + more * (two.host_bytes - one.host_bytes),
        folded=found,
    )


def saved_bytes(record_forward: Callable[[TrainingSpec], int], spec: TrainingSpec, layers: int) -> int | None:
    """What autograd holds at the end of a forward pass through ``layers`` equal layers; None where that has to be
    recorded in full."""
    short = _few(spec, layers)
    if not short:
        return None
    one = record_forward(spec.replaced({RECORDED_LAYERS: (short, layers)}))
    two = record_forward(spec.replaced({RECORDED_LAYERS: (short + 1, layers)}))
    return one + (layers - short) * (two - one)


def _few(spec: TrainingSpec, layers: int) -> int:
    """How many layers are recorded in place of so many, and once one more; 0 where that is not worth it."""
    if layers < WORTHWHILE:
        return 0
    short = SHORT + _reach(spec, _elements(spec))
    return short if layers >= WORTHWHILE + 3 * (short - SHORT) else 0


def as_deep(spec: TrainingSpec, model: Any, updated: Sequence[Tensor]) -> Sequence[Tensor]:
    """Parameters of a model, those of a layer in the middle as often as the whole model has such layers: where states
    or buckets are cut out of all parameters together."""
    depth = spec.get(RECORDED_LAYERS)
    if depth is None:
        return updated
    recorded, layers = depth
    own = {id(parameter) for parameter in model.layers[recorded // 2].parameters()}
    repeated = [parameter for parameter in updated if id(parameter) in own]
    if not repeated:
        return updated
    behind = 1 + max(place for place, parameter in enumerate(updated) if id(parameter) in own)
    return [*updated[:behind], *(repeated * (layers - recorded)), *updated[behind:]]


def _reach(spec: TrainingSpec, elements: int) -> int:
    """Layers beyond the next one that what happens at a layer may depend on, of ``elements`` parameters each.

    ZeRO 3 fetches layers ahead while they fit its bucket, and does not let go of the last ones, which are used again
    within its reuse distance (:class:`memlint.models.parallel.zero.ZeroParameters`). What is fetched and not used adds
    up from layer to layer until as much is alive as may be. Where one layer is as much, none fetches another one.
    """
    if spec.get("parallelism.strategy") != "zero" or spec.get("parallelism.zero_stage") != 3:
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


def _elements(spec: TrainingSpec) -> int:
    """About as many parameters as a layer has."""
    described, config = spec.get("decoder"), spec.get("hyperparameters.config") or {}
    width, inner = config.get("hidden_size"), config.get("intermediate_size")
    if described is not None:
        width, inner = described.width, described.intermediate
    if not isinstance(width, int) or not isinstance(inner, int):
        return 0
    return width * (2 * width + 3 * inner)
