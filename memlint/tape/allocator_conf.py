"""``PYTORCH_ALLOC_CONF``, read as torch 2.13 reads it.

Source: ``c10/core/AllocatorConfig.h``, ``c10/cuda/CUDAAllocatorConfig.h`` and the library built from them. In
a CUDA build ``PYTORCH_CUDA_ALLOC_CONF`` wins where both variables are set, although a comment of the header
gives the newer name priority (tried with the allocator of torch 2.13.0+cu130).
"""

from __future__ import annotations

from memlint.named_tuple import NamedTuple
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


BACKENDS = ("native", "cudaMallocAsync")


def parse_conf(text: str) -> AllocatorConf:
    """Read the value of ``PYTORCH_ALLOC_CONF`` as torch 2.13 does. Raises ConfError where torch refuses it.

    torch is lenient in ways that are kept: blanks are dropped wherever they stand, a later key wins, and a
    number ends where its digits end (``64MB`` is 64); what is dropped so is listed in ``ignored``.
    """
    tokens = _tokens(text)
    flags: dict[str, bool] = {}
    shares: dict[str, float] = {}
    numbers: dict[str, int] = {}
    sizes_mb: list[tuple[str, int]] = []  # those that are compared with the segment size
    divisions: tuple[int, ...] = ()
    backend = BACKENDS[0]
    ignored: list[tuple[str, str]] = []
    keys: list[str] = []
    at = 0
    while at < len(tokens):
        key = tokens[at]
        if key not in _EXAMPLES:
            raise _unknown_key(key)
        if at + 2 >= len(tokens):
            raise ConfError(key, f"{key} has no value", f"{key}:{_EXAMPLES[key]}")
        keys.append(key)
        value = tokens[at + 2]  # torch steps over what should be the colon without looking at it
        at += 2
        if key in _FLAGS:
            flags[key] = _flag(key, value)
        elif key in _SHARES:
            shares[key] = _share(key, value, ignored)
        elif key == "backend":
            backend = _backend(key, value)
        elif key == "roundup_power2_divisions":
            if value == "[":
                divisions, at = _divisions(key, tokens, at, divisions)
            else:
                divisions = _one_division(key, value, ignored)
        else:
            numbers[key] = _whole_number(key, value, ignored)
            if key in ("max_split_size_mb", "max_non_split_rounding_mb"):
                sizes_mb.append((key, numbers[key]))
        at += 2  # the value, and what should be a comma

    large_mb = numbers.get("large_segment_size_mb", LARGE_SEGMENT_BYTES // MiB)
    for key, size_mb in sizes_mb:  # whichever of the two stands first
        if size_mb < large_mb:
            message = f"{key}:{size_mb} is too small: torch takes {large_mb} or more"
            raise ConfError(key, message, f"{key}:{large_mb}")
    split_mb = numbers.get("max_split_size_mb")
    conf = AllocatorConf(
        None if split_mb is None else split_mb * MiB,
        numbers.get("max_non_split_rounding_mb", NON_SPLIT_ROUNDING_BYTES // MiB) * MiB,
        shares.get("garbage_collection_threshold", 0.0),
        divisions if any(count > 1 for count in divisions) else (),
        flags.get("expandable_segments", False),
        large_mb * MiB,
        shares.get("per_process_memory_fraction", 1.0),
        flags.get("throw_on_cudamalloc_oom", False),
        backend,
    )
    return conf._replace(ignored=(*ignored, *_idle_settings(conf, keys)))


def _idle_settings(conf: AllocatorConf, keys: list[str]) -> list[tuple[str, str]]:
    """(key, why) of the settings that another one makes pointless."""
    if conf.backend != "native":
        return [(key, f"backend:{conf.backend} has a pool of its own") for key in keys if key in _NATIVE_KEYS]
    idle = []
    if conf.garbage_collection_threshold and conf.per_process_memory_fraction >= 1.0:
        reason = "nothing is collected unless per_process_memory_fraction is below 1"
        idle.append(("garbage_collection_threshold", reason))
    elif conf.garbage_collection_threshold and conf.expandable_segments:
        idle.append(("garbage_collection_threshold", "expandable segments are never collected"))
    if conf.max_split_bytes is None and "max_non_split_rounding_mb" in keys:
        idle.append(("max_non_split_rounding_mb", "it applies only with max_split_size_mb"))
    return idle


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
            message = f"{_shown(key)}: torch separates a key from its value by ':' and settings by ','"
            return ConfError(key, message, f"{head}:{_EXAMPLES[head]}")
    near = get_close_matches(key[:64].lower(), KNOWN_KEYS, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return ConfError(key, f"torch 2.13 knows no allocator setting {_shown(key)}{hint}", near[0] if near else "")


def _flag(key: str, text: str) -> bool:
    if text not in ("True", "False"):
        meant = {"true": "True", "1": "True", "yes": "True", "on": "True"}
        meant |= {"false": "False", "0": "False", "no": "False", "off": "False"}
        wanted = meant.get(text.lower(), "")
        message = f"{key} is True or False, spelled exactly so, not {_shown(text)}"
        raise ConfError(key, message, f"{key}:{wanted}" if wanted else "")
    return text == "True"


def _whole_number(key: str, text: str, ignored: list[tuple[str, str]]) -> int:
    """A number, within the bounds of its key. Keys in megabytes stop where bytes would not fit a size_t."""
    number = _number(key, text, ignored)
    if key == "pinned_num_register_threads" and not (_is_power_of_two(number) and number <= MAX_REGISTER_THREADS):
        message = f"{key} is a power of two up to {MAX_REGISTER_THREADS}, not {_shown(text)}"
        raise ConfError(key, message, f"{key}:8")
    if key == "pinned_reserve_segment_size_mb" and not number:
        raise ConfError(key, f"{key} is greater than 0", f"{key}:{_EXAMPLES[key]}")
    if key == "large_segment_size_mb" and number <= MIN_LARGE_BYTES // MiB:
        raise ConfError(key, f"{key}:{number} is too small: torch takes more than 10", f"{key}:11")
    return min(number, _SIZE_MAX // MiB)


def _number(key: str, text: str, ignored: list[tuple[str, str]]) -> int:
    """``std::stoull``: an optional sign and digits; the rest of the word is dropped, a minus wraps around."""
    sign = text[:1] if text[:1] in ("+", "-") else ""
    digits = _leading_digits(text, len(sign))
    significant = digits.lstrip("0") or digits[:1]
    if not digits or len(significant) > 20 or int(significant) > _SIZE_MAX:
        raise ConfError(key, f"{key} needs a whole number, not {_shown(text)}", f"{key}:{_EXAMPLES[key]}")
    if len(sign + digits) < len(text):
        ignored.append((key, f"torch reads {_shown(sign + digits)} and drops the rest of {_shown(text)}"))
    value = int(significant)
    if sign == "-" and value:
        ignored.append((key, f"torch reads {_shown(text)} as a number without bound"))
        value = _SIZE_MAX + 1 - value
    return value


def _leading_digits(text: str, begin: int) -> str:
    end = begin
    while end < len(text) and text[end] in "0123456789":
        end += 1
    return text[begin:end]


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")


def _share(key: str, text: str, ignored: list[tuple[str, str]]) -> float:
    """``std::stod``: the longest decimal number that the word begins with."""
    number = text[:1] if text[:1] in ("+", "-") else ""
    number += _leading_digits(text, len(number))
    if text[len(number) : len(number) + 1] == ".":
        number += "." + _leading_digits(text, len(number) + 1)
    if not any(character.isdigit() for character in number):
        raise ConfError(key, f"{key} needs a number, not {_shown(text)}", f"{key}:{_EXAMPLES[key]}")
    if text[len(number) : len(number) + 1] in ("e", "E"):
        sign = text[len(number) + 1 : len(number) + 2]
        begin = len(number) + (2 if sign in ("+", "-") else 1)
        exponent = _leading_digits(text, begin)
        if exponent:
            number = text[: begin + len(exponent)]
    value = float(number)
    inside = 0 < value < 1 if key == "garbage_collection_threshold" else 0 <= value <= 1
    if not inside:
        wanted = f"{key}:{value / 100:g}" if 1 < value < 100 else ""
        raise ConfError(key, f"{key} is a share between 0 and 1, not {_shown(number)}", wanted)
    if len(number) < len(text):
        ignored.append((key, f"torch reads {_shown(number)} and drops the rest of {_shown(text)}"))
    return value


def _backend(key: str, text: str) -> str:
    if text not in BACKENDS:
        from difflib import get_close_matches

        near = get_close_matches(text[:64], BACKENDS, n=1, cutoff=0.4)
        message = f"backend is native or cudaMallocAsync, not {_shown(text)}"
        raise ConfError(key, message, f"backend:{near[0]}" if near else "")
    return text


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _one_division(key: str, text: str, ignored: list[tuple[str, str]]) -> tuple[int, ...]:
    count = _number(key, text, ignored)
    if not _is_power_of_two(count):
        near = 1 << max(count.bit_length() - 1, 0)
        raise ConfError(key, f"{key} is a power of two, not {_shown(text)}", f"{key}:{near}")
    return (count,) * POWER2_INTERVALS


def _divisions(key: str, tokens: list[str], at: int, before: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """``[256:1,512:2,>:8]``: divisions by size in MiB, from the bracket at ``at``; and where it is closed.

    Intervals that the list passes over keep what an earlier setting gave them.
    """
    at += 1
    counts = list(before) or [0] * POWER2_INTERVALS
    first, last = True, 0
    while at < len(tokens) and tokens[at] != "]":
        if at + 2 >= len(tokens):
            raise ConfError(key, f"{key} has an interval without divisions", f"{key}:{_EXAMPLES[key]}")
        boundary, count = tokens[at], _number(key, tokens[at + 2], [])
        if count and not _is_power_of_two(count):
            raise ConfError(key, f"the divisions of {key} are 0 or a power of two, not {_shown(tokens[at + 2])}")
        if boundary == ">":
            counts[last + 1 :] = [count] * (POWER2_INTERVALS - last - 1)
        else:
            size_mb = _number(key, boundary, [])
            if not _is_power_of_two(size_mb):
                raise ConfError(key, f"the intervals of {key} are powers of two (MiB) or '>', not {_shown(boundary)}")
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


# The keys, and what may stand after each.
_FLAGS = (
    "expandable_segments",
    "pinned_use_background_threads",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_free_catch_all",
    "graph_capture_record_stream_reuse",
    "throw_on_cudamalloc_oom",
)
_SHARES = ("garbage_collection_threshold", "per_process_memory_fraction")
_EXAMPLES = {
    "max_split_size_mb": "512",
    "garbage_collection_threshold": "0.8",
    "roundup_power2_divisions": "[256:1,512:2,1024:4,>:8]",
    "large_segment_size_mb": "20",
    "max_non_split_rounding_mb": "20",
    "per_process_memory_fraction": "0.9",
    "backend": "native",
    "pinned_max_round_threshold_mb": "64",
    "pinned_max_cached_size_mb": "64",
    "pinned_num_register_threads": "8",
    "pinned_reserve_segment_size_mb": "64",
    **dict.fromkeys(_FLAGS, "True"),
}
KNOWN_KEYS = tuple(_EXAMPLES)  # of torch 2.13: AcceleratorAllocatorConfig's, and CUDAAllocatorConfig::getKeys
