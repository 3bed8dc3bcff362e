"""A model that is only known by its recording: :mod:`memlint.profiles` has the step, this asks it."""

from __future__ import annotations

from typing import Final

from memlint.facts.spec import OVERRIDE, TrainingSpec, named
from memlint.models import Recording, UnknownModel
from memlint.profiles.evaluate import OutsideGuards, evaluate
from memlint.profiles.evaluate import saved_bytes as saved_at
from memlint.profiles.expression import ExpressionError
from memlint.profiles.profile import Profile, ProfileError, load

PROFILE: Final = "profile"  # the fact that says where the recording is

# Facts that change nothing on the tape of one device.
BESIDE_THE_TAPE = frozenset(("allocator_conf", "device_count", "world_size", "global_batch_size", PROFILE))


def record(spec: TrainingSpec, symbolic: bool = False) -> Recording:
    """The recorded step at this run's sizes. Raises UnknownModel where the recording says nothing about it."""
    profile, values = _sizes(spec)
    try:
        tape = evaluate(profile, values, symbolic)
        parameters = profile.parameters.size(values)
        trainable = profile.trainable_parameters.size(values)
    except (OutsideGuards, ProfileError, ExpressionError) as error:
        raise UnknownModel(_unusable(profile, error)) from None
    return Recording(
        tape,
        parameters,
        trainable,
        has_matmul="matmul" in profile.uses,
        has_convolution="convolution" in profile.uses,
        basis="recorded",
    )


def saved_bytes(spec: TrainingSpec) -> int:
    """Bytes that autograd holds at the end of forward. Raises UnknownModel like :func:`record`."""
    profile, values = _sizes(spec)
    try:
        return saved_at(profile, values)
    except (OutsideGuards, ProfileError) as error:
        raise UnknownModel(_unusable(profile, error)) from None


def can_change(spec: TrainingSpec, fact: str) -> bool:
    """Whether the recording can say what another value of a fact would do."""
    try:
        return load(spec[PROFILE]).dimension(fact) is not None
    except ProfileError:
        return False


def _unusable(profile: Profile, error: Exception) -> str:
    if isinstance(error, ProfileError):
        return str(error)
    return f"{profile.path}: {error}; memlint record makes a recording that does"


def _sizes(spec: TrainingSpec) -> tuple[Profile, dict[str, int]]:
    """The profile, and the run's value for each of its dimensions."""
    if spec.unknown_reason:
        raise UnknownModel(spec.unknown_reason)
    try:
        profile = load(spec[PROFILE])
    except ProfileError as error:
        raise UnknownModel(str(error)) from None
    values = {}
    for dimension in profile.dimensions:
        value = spec.get(named(dimension.fact), dimension.recorded)
        if isinstance(value, bool) or not isinstance(value, int):
            raise UnknownModel(f"{dimension.key or dimension.fact} is {value!r}, where a whole number is needed")
        values[dimension.name] = int(value)
    for name, recorded in profile.training.items():
        if spec.get(named(name)) != recorded:
            raise UnknownModel(
                f"{profile.path} was recorded with {name} = {recorded}, not {spec.get(named(name))}; memlint "
                "record makes a new recording"
            )
    for name, fact in spec.facts.items():
        known = name in profile.training or profile.dimension(name) is not None or name in BESIDE_THE_TAPE
        if fact.origin == OVERRIDE and not known:
            raise UnknownModel(f"{profile.path} says nothing about other values of {name}")
    return profile, values
