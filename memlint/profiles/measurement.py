"""Measurements kept beside a config: what ``memlint probe --save`` saw, for later checks of the same config.

One small file per config (``train.yaml.memlint-measured.json``), meant to be committed and read in reviews. It holds
one entry per run, card, PyTorch version and set of facts; measuring the same again replaces the entry.
``schemas/measured.schema.json`` describes it to other readers. Sizes are bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from memlint.documents.node import Unresolved
from memlint.named_tuple import NamedTuple
from memlint.profiles import reading
from memlint.profiles.reading import FileError, Wrong, expect, text_of, texts, value_of
from memlint.profiles.runs import PROFILE

if TYPE_CHECKING:
    from memlint.facts.spec import TrainingSpec

VERSION = 1
SUFFIX = ".memlint-measured.json"
MAX_SIZE_BYTES = 1 << 50  # of a card or of a step's sum: a pebibyte
CUDA = "cuda"
CPU = "cpu"
DEVICES = (CUDA, CPU)
# Where files lie, and what the host keeps: no byte of a card depends on it.
ELSEWHERE = frozenset((PROFILE, "workers", "prefetch", "pin_memory", "dataset_in_memory", "sample_bytes"))
# As a run's framework is called here, and as its package is.
PACKAGES = {"torch": "torch", "jax": "jax"}


class MeasurementError(FileError):
    """A file of measurements that cannot be read."""


class Measurement(NamedTuple):
    """One measured run.

    device         cuda or cpu; figures of the CPU say nothing about a card's
    card           as the driver names it; "" on the CPU
    made_with      versions, by program
    facts          what the config stated then, by fact name: the figures hold for these
    digest         sha256 of the facts
    context_bytes  device less reserved, where the driver listed the process; None where it did not
    library_workspace_bytes  what cuBLAS keeps between calls; None where it was not told apart
    phases, components       peak allocated by phase; what was alive at the peak
    """

    run: str
    device: str
    card: str
    made_with: dict[str, str]
    facts: dict[str, Any]
    digest: str
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    context_bytes: int | None
    library_workspace_bytes: int | None
    peak_phase: str
    phases: dict[str, int]
    components: dict[str, int]

    @property
    def identity(self) -> tuple[Any, ...]:
        """Of two measurements with the same, the newer one counts."""
        versions = {name: version for name, version in self.made_with.items() if name in PACKAGES.values()}
        return self.run, self.device, self.card, self.digest, tuple(sorted(versions.items()))


def place(config: str) -> str:
    """Where the measurements of a config are kept."""
    return config + SUFFIX


def facts_of(spec: TrainingSpec) -> dict[str, Any]:
    """What a run states, as JSON holds it: two runs with the same facts take the same memory."""
    return plain_facts({name: fact.value for name, fact in spec.facts.items()})


def plain_facts(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _plain(values[name]) for name in sorted(values) if name not in ELSEWHERE}


def _plain(value: Any) -> Any:
    if isinstance(value, Unresolved):
        return value.text
    if isinstance(value, Mapping):
        return {str(key): _plain(value[key]) for key in value}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    return float(value) if isinstance(value, float) else str(value)


def digest_of(facts: Mapping[str, Any]) -> str:
    import hashlib

    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


# -- reading -----------------------------------------------------------------------------------------------------------


def load(path: str, bad: list[MeasurementError] | None = None) -> tuple[Measurement, ...]:
    """The measurements in a file, in its order. Raises MeasurementError.

    bad  takes what is wrong with an entry, which costs that entry alone; without it the whole file is refused
    """
    return loads(text_of(path, MeasurementError), path, bad)


def loads(
    text: str, path: str = "<measurements>", bad: list[MeasurementError] | None = None
) -> tuple[Measurement, ...]:
    """Measurements from their text. Raises MeasurementError, with the line where that is known."""

    def read(tree: Any) -> tuple[Measurement, ...]:
        found: list[Measurement] = []
        wrong: list[Wrong] = []
        for at, entry in enumerate(_listed(tree)):
            try:
                found.append(_entry(entry, at))
            except Wrong as error:
                if bad is None:
                    raise
                wrong.append(error)
        if wrong and bad is not None:
            first = reading.located(wrong[0], text, path, MeasurementError, "the file")
            more = f" (and {len(wrong) - 1} more entries are wrong)" if len(wrong) > 1 else ""
            bad.append(MeasurementError(path, f"{first.reason}{more}", first.line))
        return tuple(found)

    return reading.loads(text, path, read, MeasurementError, "the file")


def _listed(tree: Any) -> list[Any]:
    expect(tree, dict, "an object")
    if tree.get("version") != VERSION:
        raise Wrong(f"is {tree.get('version')!r}; this memlint reads version {VERSION}: measure again", "version")
    listed: list[Any] = value_of(tree, "measurements", list, "a list")
    return listed


def _entry(entry: Any, at: int) -> Measurement:
    above: tuple[str | int, ...] = ("measurements", at)
    expect(entry, dict, "an object", *above)
    device = value_of(entry, "device", str, "text", *above)
    if device not in DEVICES:
        raise Wrong(f"{' or '.join(DEVICES)} is expected", *above, "device")
    facts = value_of(entry, "facts", dict, "an object", *above)
    measured = Measurement(
        run=value_of(entry, "run", str, "text", *above),
        device=device,
        card=value_of(entry, "card", str, "text", *above),
        made_with=texts(entry, "made_with", *above),
        facts=facts,
        digest=value_of(entry, "digest", str, "text", *above),
        allocated_bytes=_size(entry, "allocated_bytes", above),
        reserved_bytes=_size(entry, "reserved_bytes", above),
        device_bytes=_size(entry, "device_bytes", above),
        context_bytes=_size_or_none(entry, "context_bytes", above),
        library_workspace_bytes=_size_or_none(entry, "library_workspace_bytes", above),
        peak_phase=value_of(entry, "peak_phase", str, "text", *above),
        phases=_sizes(entry, "phases", above),
        components=_sizes(entry, "components", above),
    )
    if not measured.allocated_bytes <= measured.reserved_bytes <= measured.device_bytes:
        raise Wrong("reserved lies between allocated and device", *above, "reserved_bytes")
    try:
        digest = digest_of(facts)
    except RecursionError:
        raise Wrong("are nested too deep", *above, "facts") from None
    if digest != measured.digest:
        raise Wrong("is not that of the facts: they were changed by hand; measure again", *above, "digest")
    return measured


def _size(tree: dict[str, Any], key: str, above: tuple[str | int, ...]) -> int:
    value: int = value_of(tree, key, int, "a number of bytes", *above)
    if not 0 <= value <= MAX_SIZE_BYTES:
        raise Wrong("a number of bytes is expected", *above, key)
    return value


def _size_or_none(tree: dict[str, Any], key: str, above: tuple[str | int, ...]) -> int | None:
    return None if key in tree and tree[key] is None else _size(tree, key, above)


def _sizes(tree: dict[str, Any], key: str, above: tuple[str | int, ...]) -> dict[str, int]:
    found = value_of(tree, key, dict, "an object", *above)
    return {name: _size(found, name, (*above, key)) for name in found}


# -- writing -----------------------------------------------------------------------------------------------------------


def merged(known: Iterable[Measurement], new: Measurement) -> tuple[Measurement, ...]:
    """A measurement in the place of the one that it repeats, or at the end."""
    kept = [entry for entry in known if entry.identity != new.identity]
    return (*kept, new)


def dumps(measurements: Iterable[Measurement]) -> str:
    """The file's text: a fact to a line, so that a change of one is a change of one line."""
    fields = Measurement._fields
    entries = [{name: getattr(entry, name) for name in fields} for entry in measurements]
    return json.dumps({"version": VERSION, "measurements": entries}, indent=2, ensure_ascii=True) + "\n"
