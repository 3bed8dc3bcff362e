"""``PYTORCH_ALLOC_CONF``, read as torch 2.13 reads it.

Source: ``c10/core/AllocatorConfig.h``, ``c10/cuda/CUDAAllocatorConfig.h`` and the library built from them. In a
CUDA build ``PYTORCH_CUDA_ALLOC_CONF`` wins where both variables are set, although the newer name is documented
to have priority (tried with the allocator of torch 2.13.0+cu130).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from memlint.units import MiB

ENVIRONMENT_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # the first one that is set counts

LARGE_SEGMENT_BYTES = 20 * MiB  # large_segment_size_, the default
NON_SPLIT_ROUNDING_BYTES = 20 * MiB  # max_non_split_rounding_size_, the default
MIN_LARGE_BYTES = 10 * MiB  # kMinLargeAlloc: from here on a request has its own segment
POWER2_INTERVALS = 16  # kRoundUpPowerOfTwoIntervals: 1 MiB to 64 GiB
MAX_REGISTER_THREADS = 128  # pinned_max_register_threads

_SIZE_MAX = (1 << 64) - 1  # of size_t


class AllocatorConf(NamedTuple):
    """The settings of ``PYTORCH_ALLOC_CONF`` that change how much memory a run takes.

    max_split_bytes              blocks of this size and above are never split; None: all may be
    max_non_split_rounding_bytes how much larger than its request an unsplittable block may be
    garbage_collection_threshold share of the memory limit above which idle segments are returned; 0: never
    roundup_power2_divisions     divisions by interval (1 MiB, 2 MiB, ... 32 GiB and above); empty: off
    expandable_segments          one growing segment per pool instead of one per request
    large_segment_bytes          segment size of the large pool
    per_process_memory_fraction  share of the card that the allocator may take
    throw_before_driver          refuse what the limit forbids, without returning idle segments first
    backend                      "native", or "cudaMallocAsync" (the driver's own pool, not simulated here)
    ignored                      (key, why) of settings that torch accepts and that do nothing
    """

    max_split_bytes: int | None = None
    max_non_split_rounding_bytes: int = NON_SPLIT_ROUNDING_BYTES
    garbage_collection_threshold: float = 0.0
    roundup_power2_divisions: tuple[int, ...] = ()
    expandable_segments: bool = False
    large_segment_bytes: int = LARGE_SEGMENT_BYTES
    per_process_memory_fraction: float = 1.0
    throw_before_driver: bool = False
    backend: str = "native"
    ignored: tuple[tuple[str, str], ...] = ()


DEFAULT = AllocatorConf()


class ConfError(ValueError):
    """A setting that torch 2.13 refuses, which ends the program when CUDA starts.

    key         the setting, as written; "" if the text has none
    message     what is wrong, in a sentence
    suggestion  what to write instead, "" if that cannot be known
    """

    def __init__(self, key: str, message: str, suggestion: str = "") -> None:
        super().__init__(message)
        self.key = key
        self.message = message
        self.suggestion = suggestion


# AcceleratorAllocatorConfig (c10/core/AllocatorConfig.h) and CUDAAllocatorConfig::getKeys, torch 2.13.
KNOWN_KEYS = (
    "large_segment_size_mb",
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "garbage_collection_threshold",
    "roundup_power2_divisions",
    "expandable_segments",
    "pinned_use_background_threads",
    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
    "backend",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_free_catch_all",
    "graph_capture_record_stream_reuse",
    "per_process_memory_fraction",
    "throw_on_cudamalloc_oom",
)
BACKENDS = ("native", "cudaMallocAsync")


def parse_conf(text: str) -> AllocatorConf:
    """Read the value of ``PYTORCH_ALLOC_CONF`` as torch 2.13 does. Raises ConfError where torch refuses it.

    torch is lenient in ways that are kept: blanks are dropped wherever they stand, a later key wins, and a number
    ends where its digits end (``64MB`` is 64); what is dropped so is listed in ``ignored``.
    """
    tokens = _tokens(text)
    settings: dict[str, object] = {}
    ignored: list[tuple[str, str]] = []
    at = 0
    while at < len(tokens):
        key = tokens[at]
        if key not in KNOWN_KEYS:
            raise _unknown_key(key)
        # torch steps over what should be the colon without looking at it.
        value = tokens[at + 2] if at + 2 < len(tokens) else None
        if value is None:
            raise ConfError(key, f"{key} has no value", f"{key}:{_EXAMPLES[key]}")
        if key == "roundup_power2_divisions" and value == "[":
            settings[key], at = _divisions(tokens, at + 3)
        else:
            settings[key] = _READERS[key](key, value, ignored)
            at += 2
        at += 2  # the value, and what should be a comma
    return _conf(settings, ignored)


def _conf(settings: dict[str, object], ignored: list[tuple[str, str]]) -> AllocatorConf:
    large_mb = settings.get("large_segment_size_mb", LARGE_SEGMENT_BYTES // MiB)
    assert isinstance(large_mb, int)
    # Both are compared with the segment size of the same text, whichever comes first.
    for key in ("max_split_size_mb", "max_non_split_rounding_mb"):
        size_mb = settings.get(key)
        if isinstance(size_mb, int) and size_mb < large_mb:
            raise ConfError(key, f"{key}:{size_mb} is too small: torch takes {large_mb} or more", f"{key}:{large_mb}")
    split_mb = settings.get("max_split_size_mb")
    rounding_mb = settings.get("max_non_split_rounding_mb", NON_SPLIT_ROUNDING_BYTES // MiB)
    threshold = settings.get("garbage_collection_threshold", 0.0)
    divisions = settings.get("roundup_power2_divisions", ())
    fraction = settings.get("per_process_memory_fraction", 1.0)
    assert isinstance(rounding_mb, int)
    assert isinstance(threshold, float)
    assert isinstance(divisions, tuple)
    assert isinstance(fraction, float)
    expandable = bool(settings.get("expandable_segments", False))
    backend = str(settings.get("backend", "native"))

    if backend == "cudaMallocAsync":
        native = [key for key in settings if key in _NATIVE_KEYS]
        ignored += [(key, "backend:cudaMallocAsync has its own pool") for key in native]
    else:
        if threshold and fraction >= 1.0:
            reason = "nothing is collected unless per_process_memory_fraction is below 1"
            ignored.append(("garbage_collection_threshold", reason))
        elif threshold and expandable:
            ignored.append(("garbage_collection_threshold", "expandable segments are never collected"))
        if split_mb is not None and expandable:
            ignored.append(("max_split_size_mb", "expandable segments split every block"))
        if split_mb is None and "max_non_split_rounding_mb" in settings:
            ignored.append(("max_non_split_rounding_mb", "it applies only with max_split_size_mb"))
    return AllocatorConf(
        split_mb * MiB if isinstance(split_mb, int) else None,
        rounding_mb * MiB,
        threshold,
        divisions if any(count > 1 for count in divisions) else (),
        expandable,
        large_mb * MiB,
        fraction,
        bool(settings.get("throw_on_cudamalloc_oom", False)),
        backend,
        tuple(ignored),
    )


_NATIVE_KEYS = (
    "large_segment_size_mb",
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "garbage_collection_threshold",
    "roundup_power2_divisions",
    "expandable_segments",
)


def _tokens(text: str) -> list[str]:
    """``ConfigTokenizer``: words and the marks ``, : [ ]``; blanks vanish, even inside a word."""
    tokens: list[str] = []
    word = ""
    for character in text:
        if character in ",:[]":
            if word:
                tokens.append(word)
                word = ""
            tokens.append(character)
        elif character not in " \t\n\v\f\r":
            word += character
    if word:
        tokens.append(word)
    return tokens


def _unknown_key(key: str) -> ConfError:
    from difflib import get_close_matches

    for separator in "=;|":
        head = key.partition(separator)[0]
        if head != key and head in KNOWN_KEYS:
            message = f"{key!r}: torch separates a key from its value by ':' and settings by ','"
            return ConfError(key, message, f"{head}:{_EXAMPLES[head]}")
    near = get_close_matches(key.lower(), KNOWN_KEYS, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return ConfError(key, f"torch 2.13 knows no allocator setting {key!r}{hint}", near[0] if near else "")


def _flag(key: str, text: str, ignored: list[tuple[str, str]]) -> bool:
    if text not in ("True", "False"):
        meant = {"true": "True", "1": "True", "yes": "True", "on": "True"}
        meant |= {"false": "False", "0": "False", "no": "False", "off": "False"}
        wanted = meant.get(text.lower(), "")
        message = f"{key} is True or False, spelled exactly so, not {text!r}"
        raise ConfError(key, message, f"{key}:{wanted}" if wanted else "")
    return text == "True"


def _number(key: str, text: str, ignored: list[tuple[str, str]]) -> int:
    """``std::stoull``: an optional sign and digits; the rest of the word is dropped, a minus wraps around."""
    sign = text[:1] if text[:1] in ("+", "-") else ""
    digits = ""
    for character in text[len(sign) :]:
        if character not in "0123456789":
            break
        digits += character
    if not digits or int(digits) > _SIZE_MAX:
        raise ConfError(key, f"{key} needs a whole number, not {text!r}", f"{key}:{_EXAMPLES[key]}")
    if len(sign + digits) < len(text):
        ignored.append((key, f"torch reads {digits} and drops the rest of {text!r}"))
    value = int(digits)
    if sign == "-" and value:
        ignored.append((key, f"torch reads {text!r} as a number without bound"))
        value = _SIZE_MAX + 1 - value
    return value


def _megabytes(key: str, text: str, ignored: list[tuple[str, str]]) -> int:
    return min(_number(key, text, ignored), _SIZE_MAX // MiB)


def _large_segment(key: str, text: str, ignored: list[tuple[str, str]]) -> int:
    size_mb = _megabytes(key, text, ignored)
    if size_mb <= MIN_LARGE_BYTES // MiB:
        raise ConfError(key, f"{key}:{size_mb} is too small: torch takes more than 10", f"{key}:11")
    return size_mb


def _share(key: str, text: str, ignored: list[tuple[str, str]]) -> float:
    """``std::stod``: the longest number that the word begins with."""
    for end in range(len(text), 0, -1):
        try:
            value = float(text[:end]) if "_" not in text[:end] else None
        except ValueError:
            continue
        if value is None:
            continue
        inside = 0 < value < 1 if key == "garbage_collection_threshold" else 0 <= value <= 1
        if not inside:
            message = f"{key} is a share between 0 and 1, not {text}"
            raise ConfError(key, message, f"{key}:{value / 100:g}" if 1 < value < 100 else "")
        if end < len(text):
            ignored.append((key, f"torch reads {text[:end]} and drops the rest of {text!r}"))
        return value
    raise ConfError(key, f"{key} needs a number, not {text!r}", f"{key}:{_EXAMPLES[key]}")


def _backend(key: str, text: str, ignored: list[tuple[str, str]]) -> str:
    if text not in BACKENDS:
        from difflib import get_close_matches

        near = get_close_matches(text, BACKENDS, n=1, cutoff=0.4)
        message = f"backend is native or cudaMallocAsync, not {text!r}"
        raise ConfError(key, message, f"backend:{near[0]}" if near else "")
    return text


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _one_division(key: str, text: str, ignored: list[tuple[str, str]]) -> tuple[int, ...]:
    count = _number(key, text, ignored)
    if not _is_power_of_two(count):
        near = 1 << max(count.bit_length() - 1, 0)
        raise ConfError(key, f"{key} is a power of two, not {text!r}", f"{key}:{near}")
    return (count,) * POWER2_INTERVALS


def _divisions(tokens: list[str], at: int) -> tuple[tuple[int, ...], int]:
    """``[256:1,512:2,>:8]``: divisions by size in MiB. Returns them and where the closing bracket stands."""
    key = "roundup_power2_divisions"
    counts = [0] * POWER2_INTERVALS
    first, last = True, 0
    while at < len(tokens) and tokens[at] != "]":
        if at + 2 >= len(tokens):
            raise ConfError(key, f"{key} has an interval without divisions", f"{key}:{_EXAMPLES[key]}")
        boundary, count = tokens[at], _number(key, tokens[at + 2], [])
        if count and not _is_power_of_two(count):
            raise ConfError(key, f"the divisions of {key} are 0 or a power of two, not {count}")
        if boundary == ">":
            counts[last + 1 :] = [count] * (POWER2_INTERVALS - last - 1)
        else:
            size_mb = _number(key, boundary, [])
            if not _is_power_of_two(size_mb):
                raise ConfError(key, f"the intervals of {key} are powers of two (MiB) or '>', not {boundary}")
            last = min(size_mb.bit_length() - 1, POWER2_INTERVALS - 1)
            if first:
                counts[:last] = [count] * last
                first = False
            counts[last] = count
        at += 3
        if at < len(tokens) and tokens[at] != "]":
            at += 1  # what should be a comma
    if at >= len(tokens):
        raise ConfError(key, f"{key} has no closing ']'", f"{key}:{_EXAMPLES[key]}")
    return tuple(counts), at


def _threads(key: str, text: str, ignored: list[tuple[str, str]]) -> int:
    count = _number(key, text, ignored)
    if not _is_power_of_two(count) or count > MAX_REGISTER_THREADS:
        raise ConfError(key, f"{key} is a power of two up to {MAX_REGISTER_THREADS}, not {text!r}", f"{key}:8")
    return count


def _positive(key: str, text: str, ignored: list[tuple[str, str]]) -> int:
    count = _number(key, text, ignored)
    if not count:
        raise ConfError(key, f"{key} is greater than 0")
    return count


_Reader = Callable[[str, str, list[tuple[str, str]]], object]

_READERS: dict[str, _Reader] = {
    "large_segment_size_mb": _large_segment,
    "max_split_size_mb": _megabytes,
    "max_non_split_rounding_mb": _megabytes,
    "garbage_collection_threshold": _share,
    "roundup_power2_divisions": _one_division,
    "expandable_segments": _flag,
    "pinned_use_background_threads": _flag,
    "pinned_max_round_threshold_mb": _number,
    "pinned_max_cached_size_mb": _number,
    "backend": _backend,
    "release_lock_on_cudamalloc": _flag,
    "release_lock_on_hipmalloc": _flag,
    "pinned_use_cuda_host_register": _flag,
    "pinned_use_hip_host_register": _flag,
    "pinned_num_register_threads": _threads,
    "pinned_reserve_segment_size_mb": _positive,
    "pinned_free_catch_all": _flag,
    "graph_capture_record_stream_reuse": _flag,
    "per_process_memory_fraction": _share,
    "throw_on_cudamalloc_oom": _flag,
}

_EXAMPLES = {
    "large_segment_size_mb": "20",
    "max_split_size_mb": "512",
    "max_non_split_rounding_mb": "20",
    "garbage_collection_threshold": "0.8",
    "roundup_power2_divisions": "[256:1,512:2,1024:4,>:8]",
    "pinned_max_round_threshold_mb": "64",
    "pinned_max_cached_size_mb": "64",
    "backend": "native",
    "pinned_num_register_threads": "8",
    "pinned_reserve_segment_size_mb": "64",
    "per_process_memory_fraction": "0.9",
    **{key: "True" for key, reader in _READERS.items() if reader is _flag},
}
