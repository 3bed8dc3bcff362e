"""What can be said of a run of which a size is not stated, or the model: its peak as a function of that.

The sizes are those that configs leave to the data or to the launcher: how long a sample may be, how many devices share
the model, and how many rows the vocabulary has where only the tokenizer's file says it. The config of DeepSpeed or
accelerate that a run names may not be there: then each way to share that it may say has its rows. A model that nobody
but its owner has may still be called after one of the catalogue (:mod:`memlint.data.resemblance`). Everything else is
stated, so each row is an estimate as any other; nothing is interpolated.

Where what is not known comes on top of weights, gradients and optimizer states (a loss of a script's own, what stands
beside the model), these are a bound: the run takes at least as much, and where that is more than the budget it does not
fit whatever the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, Final

from memlint.facts.spec import HYPER, Name, UnknownModel
from memlint.named_tuple import NamedTuple
from memlint.tape.estimate import FITS, OOM, UNKNOWN, Interval

if TYPE_CHECKING:
    from memlint.facts.spec import TrainingSpec
    from memlint.models.split import Kind
    from memlint.tape.estimate import Estimate

MODEL: Final = "model"
LENGTH: Final = "sequence_length"
DEVICES: Final = "device_count"
VOCABULARY: Final = "vocabulary_size"
SHARDING: Final = "sharding"

# What may be open, and what is tried of each then.
_LENGTHS, _FEWER_LENGTHS = (512, 2048, 8192, 32768), (2048, 8192)
_DEVICES, _FEWER_DEVICES, _SEVERAL = (
    (1, 2, 4, 8),
    (1, 8),
    (2, 8),
)  # as many copies of the model, each on as many devices as share one
_OPEN: tuple[dict[Name, tuple[int, ...]], ...] = (
    {DEVICES: _DEVICES},
    {LENGTH: _LENGTHS},
    {LENGTH: _FEWER_LENGTHS, DEVICES: _DEVICES},
    {VOCABULARY: ()},
    {VOCABULARY: (), DEVICES: _FEWER_DEVICES},
    {SHARDING: ()},
    {SHARDING: (), DEVICES: _SEVERAL},
    {SHARDING: (), LENGTH: _FEWER_LENGTHS},
    {SHARDING: (), LENGTH: _FEWER_LENGTHS, DEVICES: _SEVERAL},
    {MODEL: ()},
    {MODEL: (), DEVICES: _FEWER_DEVICES},
    {MODEL: (), LENGTH: _FEWER_LENGTHS},
    {MODEL: (), LENGTH: _FEWER_LENGTHS, DEVICES: _FEWER_DEVICES},
    {MODEL: (), SHARDING: ()},
    {MODEL: (), SHARDING: (), DEVICES: _SEVERAL},
)

# What the padded rows of a vocabulary are stated by, in each family that has such a key.
_ROWS_STATED: Final[Name] = HYPER + "padded_vocab_size"

# A step of the same model that has the least beside its weights, gradients and states. Whatever may decide what weights
# there are stays as it is: what is called attention in GPT-NeoX may be a gated perceptron.
_LEAST: dict[Name, Any] = {
    **{"micro_batch_size": 1, "sequence_length": 64, "target_length": 64},
    **{"sequences_per_sample": 1, "forward_passes": 1},
    **{"images_per_sample": 0, "packing": False, "padding": False, "padding_free": False},
    **{"method": "sft", "log_probabilities": None, "reference_model": "none", "resident_models": None},
    **{"generated_rows": None, "engine_share": None, "engine_beside": None, "evaluation_batch_size": None},
    **{"loss": "full", "loss_chunks": None, "loss_rows": None, "loss_tile": None, "outputs_kept": False},
    **{"loop": None},
    **{"checkpointing": "none", "checkpointing_every": None, "checkpointing_chunk": None, "checkpointing_layers": None},
    **{"activation_offloading": False, "compile": False, "compile_loss": False},
    **{HYPER + "label_smoothing": 0.0},
}

# Objects of the fullest image, and between which numbers they are where the data are not known.
_BOXES: Final[Name] = HYPER + "boxes"
_BOXES_BETWEEN: Final[Name] = HYPER + "boxes_between"

# What stands under an adapter of which nothing is known, or a part that nobody knows: weights that do not train.
_FROZEN: dict[Name, Any] = {"tuning": "freeze", "freeze.layers": 1, "freeze.modules": ("none",)}
_ADAPTED = ("lora", "dora")

# The architectures of which a bound can be found, and the one that it is found with: that of a step that holds nothing
# beside weights, gradients and states, or that of what is known of the model, whose whole step it is.
STATES: Final = "language_model"
_BOUNDED: Final = {
    STATES: STATES,
    "own_model": "own_states",
    "openmmlab": "openmmlab_least",
    "yolo": "yolo",
    "detectron2": "detectron2_least",
}
_SHARING = ("zero", "fsdp1", "fsdp2")

STEP = 256  # tokens: how finely the longest sample that fits is told
_UNITS = {
    LENGTH: ("token", "tokens"),
    DEVICES: ("device", "devices"),
    VOCABULARY: ("row of the vocabulary", "rows of the vocabulary"),
}


class Row(NamedTuple):
    """The estimate where what is open, in the order of :attr:`Partial.names`, has these values."""

    values: tuple[Any, ...]
    device_bytes: int
    device_interval: Interval
    verdict: str

    def told(self, names: Sequence[Name]) -> str:
        """``as Qwen/Qwen2.5-7B with 2,048 tokens and 8 devices``, ``under ZeRO-3 with 2 devices``"""
        known = dict(zip(names, self.values))
        model, sharding = known.pop(MODEL, None), known.pop(SHARDING, None)
        sizes = [f"{size:,} {_UNITS[name][size != 1]}" for name, size in known.items()]
        words = [f"as {model}"] if model else []
        words += [f"under {sharding}"] if sharding else []
        return " ".join([*words, *(["with " + " and ".join(sizes)] if sizes else [])])


class Partial(NamedTuple):
    """The peak as a function of what is open.

    names    facts that are open; ``keys``, how the config spells them
    at_least  each row is a bound: what weights, gradients and optimizer states take
    most     the largest size that fits the budget, in steps of ``STEP`` tokens, of a length that alone is open: 0 where
             none does, None where there is no budget or all sizes fit
    """

    names: tuple[Name, ...]
    keys: tuple[str, ...]
    rows: tuple[Row, ...]
    most: int | None = None
    at_least: bool = False

    @property
    def least_bytes(self) -> int | None:
        """What the run takes whatever the rest; None where that is not what is known of it, or the model is one that
        the run's may be."""
        sure = self.at_least and MODEL not in self.names
        return min(row.device_bytes for row in self.rows) if sure else None


def at_least(
    spec: TrainingSpec, states_bytes: Callable[[TrainingSpec], int], budget_bytes: int | None, ends: bool = False
) -> Partial | None:
    """The bound of a run without an estimate, for several numbers of devices where nothing says how many share the
    states, and for the models after which its own is called where nobody knows that one; None where its weights, or
    what trains of them, are not known, either. Raises OutOfWork.

    states_bytes  what weights, gradients and optimizer states of a run take at its peak; of a model that is known in
                  part, all that this part takes
    ends          of the numbers of devices, only the fewest and the most
    """
    if _is_bounded(spec):
        models: tuple[str, ...] = ()
    elif not (models := tuple(one for one in _candidates(spec) if _is_bounded(spec.stating({MODEL: one})))):
        return None
    copies = _at_ends(_DEVICES) if ends else _DEVICES
    found = [_bounds(spec.stating({MODEL: one}), (one,), copies, states_bytes, budget_bytes) for one in models]
    rows = [row for of_model in found for row in of_model] or _bounds(spec, (), copies, states_bytes, budget_bytes)
    first = spec.stating({MODEL: models[0]}) if models else spec
    names: tuple[Name, ...] = (*((MODEL,) if models else ()), *_of_bounds(first))
    return Partial(names, tuple(_key(spec, name) for name in names), tuple(rows), at_least=True) if rows else None


def _is_bounded(spec: TrainingSpec) -> bool:
    return (spec.architecture or spec.architecture_at_least) in _BOUNDED


def _of_bounds(spec: TrainingSpec) -> tuple[Name, ...]:
    """What bounds are told for several of: devices, where nothing says how many share the states."""
    is_open = spec.get("parallelism.strategy") in _SHARING and not {DEVICES, "parallelism.shard"} & {*spec}
    return (DEVICES,) if is_open else ()


def _at_ends(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The first and the last."""
    return tuple(dict.fromkeys((*values[:1], *values[-1:])))


def _bounds(
    spec: TrainingSpec,
    model: tuple[str, ...],
    several: tuple[int, ...],
    states_bytes: Callable[[TrainingSpec], int],
    budget_bytes: int | None,
) -> list[Row]:
    """The bounds of a run whose model is known, or is taken for one of the catalogue (``model``), for ``several``
    numbers of copies. Raises OutOfWork."""
    names, copy = _of_bounds(spec), _of_a_copy(spec)
    rows = []
    for values in product(*(tuple(copies * copy for copies in several) for _ in names)):
        known = spec if not names else spec.stating({DEVICES: values[0], "world_size": values[0]})
        every = _plausible(known)
        if not all(map(_is_bounded, every)):
            continue  # by an older release it may be made in a way that nobody knows
        try:
            found = min(states_bytes(_least(one)) for one in every)
        except UnknownModel:
            continue
        over = not names and not model and budget_bytes is not None and found > budget_bytes
        rows.append(Row((*model, *values), found, Interval(found, found), OOM if over else UNKNOWN))
    return rows


def _plausible(spec: TrainingSpec) -> list[TrainingSpec]:
    """The run under each set of releases that it may be made with."""
    from memlint import plausible

    return [spec, *plausible.others(spec)]


def _least(spec: TrainingSpec) -> TrainingSpec:
    known = _BOUNDED[spec.architecture or spec.architecture_at_least]
    if known != STATES:
        fewest = spec.get(_BOXES_BETWEEN)
        found = spec.replaced({_BOXES: fewest[0]} if fewest else {})
        found.architecture = known
        return found
    least = {**_LEAST, **(_FROZEN if _has_an_unknown_adapter(spec) else {})}
    found = spec.replaced({name: value for name, value in least.items() if value is not None})
    for name, value in least.items():
        if value is None:
            found.facts.pop(name, None)
    found.architecture, found.missing = STATES, ()
    return found


def _has_an_unknown_adapter(spec: TrainingSpec) -> bool:
    from memlint.dialects.unread import trains_a_part

    return (spec.get("tuning") in _ADAPTED and spec.get("lora.r") is None) or trains_a_part(spec)


def partial(
    spec: TrainingSpec, whole: Callable[[TrainingSpec], Estimate], budget_bytes: int | None, ends: bool = False
) -> Partial | None:
    """The table of a run without an estimate; None where more than this is unknown. Raises OutOfWork, and UnknownModel
    with what else is unknown where no size that is tried leaves an estimate.

    whole  the estimate of a run, with all that its interval is made of: a verdict is about that
    ends   of sizes only the smallest and the largest
    """
    if spec.architecture is not None:
        return None
    candidates, rows, copy, ways = _candidates(spec), _rows(spec), _of_a_copy(spec), _shardings(spec)
    for opened in _OPEN:
        tried: dict[Name, tuple[Any, ...]] = dict(opened)
        if SHARDING in opened:
            tried[SHARDING] = ways
        if MODEL in opened:
            tried[MODEL] = candidates
        if VOCABULARY in opened:
            tried[VOCABULARY] = rows if len(opened) == 1 else tuple(dict.fromkeys((*rows[:1], *rows[-1:])))
        if DEVICES in opened:
            tried[DEVICES] = tuple(copies * copy for copies in opened[DEVICES])
        if ends:
            tried |= {name: _at_ends(values) for name, values in tried.items() if name in (LENGTH, DEVICES, VOCABULARY)}
        if all(tried.values()) and _known(spec, _several(tried)) is not None:
            return _table(spec, tried, whole, budget_bytes)
    return None


def _several(tried: dict[Name, tuple[Any, ...]]) -> dict[Name, Any]:
    """One of what is tried: more copies than one, as a config that is spread is nothing for a single one, and what
    shards the model, for which it has to be known how many there are."""
    return {name: values[-1] if name in (DEVICES, SHARDING) else values[0] for name, values in tried.items()}


def _table(
    spec: TrainingSpec,
    tried: dict[Name, tuple[Any, ...]],
    whole: Callable[[TrainingSpec], Estimate],
    budget_bytes: int | None,
) -> Partial | None:
    """Raises UnknownModel."""
    names = tuple(tried)
    reasons: list[UnknownModel] = []

    def row(*values: Any) -> Row | None:
        known = _known(spec, dict(zip(names, values)))
        if known is None:
            return None
        try:
            found = whole(known)
        except UnknownModel as error:
            reasons.append(error)
            return None
        return Row(values, found.device_bytes, found.device_interval, found.verdict(budget_bytes))

    rows = tuple(found for values in _points(spec, tried) if (found := row(*values)) is not None)
    if not rows:
        if reasons:
            raise reasons[0]
        return None
    most = _most(rows, row) if names == (LENGTH,) and budget_bytes is not None else None
    return Partial(names, tuple(_key(spec, name) for name in names), rows, most)


def _points(spec: TrainingSpec, tried: dict[Name, tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """What is tried together: no sample is longer than the model takes."""
    if LENGTH not in tried:
        yield from product(*tried.values())
        return
    for model in tried.get(MODEL, ("",)):
        of_model: dict[Name, tuple[Any, ...]] = {MODEL: (model,)} if model else {}
        limit = _limit(spec.stating({MODEL: model}) if model else spec)
        yield from product(*{**tried, **of_model, LENGTH: _within(tried[LENGTH], limit)}.values())


def _candidates(spec: TrainingSpec) -> tuple[str, ...]:
    """Models after which the run's own is called, where nobody knows that one."""
    from memlint.data import hub

    stated = spec.fact(MODEL)
    if stated is None or not isinstance(stated.value, str):
        return ()
    beside = spec.document.path if stated.span is None else stated.span.path
    called = hub.resembling(stated.value, beside)
    if len(called) == 1:
        return called
    from memlint.dialects import readmes

    return readmes.said_of(stated.value, spec.document.path) or called


def _rows(spec: TrainingSpec) -> tuple[int, ...]:
    """How many rows the vocabulary may have, where a key would say it and a tokenizer's file does."""
    from memlint.dialects import pretraining

    return pretraining.plausible_rows(spec)


def _shardings(spec: TrainingSpec) -> tuple[str, ...]:
    """How devices may share the run, where the file that would say it is not there."""
    from memlint.dialects import shardings, sharing

    absent = sharing.absent(spec)
    return () if absent is None else shardings.plausible(absent)


def _known(spec: TrainingSpec, values: dict[Name, Any]) -> TrainingSpec | None:
    """The run with these facts stated; None where something else is unknown as well."""
    if DEVICES in values:
        values = {**values, "world_size": values[DEVICES]}
    if VOCABULARY in values:
        values = {_ROWS_STATED if name == VOCABULARY else name: value for name, value in values.items()}
    tried = spec.stating(values)
    if tried.architecture is None and DEVICES in values and tried.architecture_on_devices:
        tried.architecture = tried.architecture_on_devices
    return tried if tried.architecture is not None else None


def _of_a_copy(spec: TrainingSpec) -> int:
    """Devices that share one copy of the model."""
    from memlint.models.split import degree

    kinds: tuple[Kind, ...] = ("tensor", "pipeline", "context", "ulysses")
    return prod(degree(spec, kind) for kind in kinds)


def _limit(spec: TrainingSpec) -> int | None:
    from memlint.dialects.language_model import position_limit

    return position_limit(spec)


def _within(lengths: tuple[int, ...], limit: int | None) -> tuple[int, ...]:
    """No sample is longer than the model takes."""
    if limit is None or limit >= lengths[-1]:
        return lengths
    return (*(length for length in lengths if length < limit), limit)


def _most(rows: tuple[Row, ...], row: Callable[[int], Row | None]) -> int | None:
    """Where the verdict changes from FITS to another one, between two rows of which one fits."""
    if all(one.verdict == FITS for one in rows):
        return None
    low = max((one.values[0] for one in rows if one.verdict == FITS), default=0) // STEP
    high = -(-min(one.values[0] for one in rows if one.verdict != FITS) // STEP)
    while high - low > 1:
        middle = (low + high) // 2
        found = row(middle * STEP)
        if found is not None and found.verdict == FITS:
            low = middle
        else:
            high = middle
    return low * STEP


def _key(spec: TrainingSpec, name: Name) -> str:
    """How the config would state a size."""
    from memlint.dialects import registry

    written = spec.fact(name)
    if written is not None and written.key:
        return written.key
    if name == DEVICES:
        return "--gpu 'NAME xN'"
    if name == SHARDING:
        from memlint.dialects import sharing

        absent = sharing.absent(spec)
        return name if absent is None else absent.key
    key = registry.dialect(spec.family).key(_ROWS_STATED if name == VOCABULARY else name)
    return key.dotted if key is not None else name
