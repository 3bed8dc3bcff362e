"""PYTORCH_ALLOC_CONF: what torch takes is taken, what it refuses is refused, and the message helps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from memlint.tape.allocator_conf import DEFAULT, KNOWN_KEYS, ConfError, parse_conf

MiB = 2**20
REAL: dict[str, Any] = json.loads((Path(__file__).parent / "fixtures" / "real_allocator.json").read_text())


@pytest.mark.parametrize("setting", REAL["settings"], ids=lambda setting: repr(setting["text"]))
def test_a_text_is_accepted_exactly_if_the_cuda_allocator_of_torch_accepted_it(setting: dict[str, str]) -> None:
    if setting["error"] is None:
        parse_conf(setting["text"])
    else:
        with pytest.raises(ConfError):
            parse_conf(setting["text"])


# Keys that the CPU build of torch reads as well: the installed torch is the oracle.
VALUES = (
    *("True", "False", "true", "0", "1", "10", "11", "20", "21", "64", "512", "-1", "+30", "64MB", "1e3", "x", ""),
    *("0.5", "0.5x", "1.0", "1e-1", ".5", "5.", "[]", "[4:2]", "[4:2,>:8]", "[>:4]", "[3:2]", "[4:3]", "[4:2"),
    *("[ 4 : 2 , > : 0 ]", "[4:2,1:8]", "[:]", "[1]", "99999999999999999999999"),
)
SHARED = (
    *("expandable_segments", "max_split_size_mb", "max_non_split_rounding_mb", "large_segment_size_mb"),
    *("garbage_collection_threshold", "roundup_power2_divisions", "pinned_use_background_threads"),
)
SETTING = st.builds(
    lambda key, colon, value: f"{key}{colon}{value}",
    st.sampled_from(SHARED),
    st.sampled_from([":", ":", ":", " : ", "=", ","]),
    st.sampled_from(VALUES),
)
TEXTS = st.builds(
    lambda parts, comma, end: comma.join(parts) + end,
    st.lists(SETTING, min_size=1, max_size=3),
    st.sampled_from([",", ",", ", ", ";", ":"]),
    st.sampled_from(["", "", ","]),
)


@settings(max_examples=600, deadline=None)
@given(text=TEXTS)
def test_a_text_is_accepted_exactly_if_the_installed_torch_accepts_it(text: str) -> None:
    assert torch.__version__.startswith("2.13."), "the rules of another torch may differ: compare, then move on"
    text = "large_segment_size_mb:20," + text  # torch keeps the last one from call to call
    said = ""
    try:
        torch._C._accelerator_setAllocatorSettings(text)
    except (RuntimeError, ValueError, IndexError) as error:
        said = str(error)
    refused = refusal(text)
    if refused is None:
        assert not said
    else:
        # A CPU build has no list of CUDA's keys to miss one from.
        assert said or refused.key not in KNOWN_KEYS


def refusal(text: str) -> ConfError | None:
    try:
        parse_conf(text)
    except ConfError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        pytest.param("", {}, id="nothing set is the default"),
        pytest.param("expandable_segments:True", {"expandable_segments": True}, id="a flag"),
        pytest.param("expandable_segments:False", {}, id="a flag that is not set"),
        pytest.param(" expandable_segments : True , ", {"expandable_segments": True}, id="blanks do not matter"),
        pytest.param("max_split_size_mb:128", {"max_split_bytes": 128 * MiB}, id="megabytes are MiB"),
        pytest.param("max_split_size_mb:64,max_split_size_mb:32", {"max_split_bytes": 32 * MiB}, id="the last wins"),
        pytest.param("large_segment_size_mb:12", {"large_segment_bytes": 12 * MiB}, id="the large segment"),
        pytest.param("roundup_power2_divisions:8", {"roundup_power2_divisions": (8,) * 16}, id="one for all sizes"),
        pytest.param(
            "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
            {"roundup_power2_divisions": (1,) * 9 + (2, 4) + (8,) * 5},
            id="a list, its first value for all below, the last for all above",
        ),
        pytest.param("roundup_power2_divisions:[>:1]", {}, id="divisions of one change nothing"),
        pytest.param("per_process_memory_fraction:0.9", {"per_process_memory_fraction": 0.9}, id="a share"),
        pytest.param("backend:cudaMallocAsync", {"backend": "cudaMallocAsync"}, id="the driver's pool"),
        pytest.param("pinned_use_background_threads:True", {}, id="host settings do not change the card's memory"),
    ],
)
def test_settings_that_are_read(text: str, changed: dict[str, Any]) -> None:
    assert parse_conf(text) == DEFAULT._replace(**changed)


@pytest.mark.parametrize(
    ("text", "key", "suggestion"),
    [
        pytest.param("expandable_segment:True", "expandable_segment", "expandable_segments", id="a misspelt key"),
        pytest.param("Expandable_Segments:True", "Expandable_Segments", "expandable_segments", id="a key in capitals"),
        pytest.param(
            "expandable_segments:true", "expandable_segments", "expandable_segments:True", id="a flag in small letters"
        ),
        pytest.param("expandable_segments:1", "expandable_segments", "expandable_segments:True", id="a number as flag"),
        pytest.param("expandable_segments:no", "expandable_segments", "expandable_segments:False", id="a word as flag"),
        pytest.param("expandable_segments:maybe", "expandable_segments", "", id="no guess where there is none"),
        pytest.param("max_split_size_mb=64", "max_split_size_mb=64", "max_split_size_mb:512", id="= for :"),
        pytest.param("max_split_size_mb:10", "max_split_size_mb", "max_split_size_mb:20", id="a size below the bound"),
        pytest.param(
            "max_split_size_mb:25,large_segment_size_mb:30",
            *("max_split_size_mb", "max_split_size_mb:30"),
            id="a bound that another setting moved",
        ),
        pytest.param(
            "garbage_collection_threshold:80",
            *("garbage_collection_threshold", "garbage_collection_threshold:0.8"),
            id="a share in percent",
        ),
        pytest.param(
            "per_process_memory_fraction:1.5",
            *("per_process_memory_fraction", "per_process_memory_fraction:0.015"),
            id="a share beyond the whole, taken for one in percent",
        ),
        pytest.param("per_process_memory_fraction:250", "per_process_memory_fraction", "", id="no share in percent"),
        pytest.param(
            *("roundup_power2_divisions:0", "roundup_power2_divisions", "roundup_power2_divisions:1"),
            id="no divisions at all",
        ),
        pytest.param(
            "roundup_power2_divisions:3",
            "roundup_power2_divisions",
            "roundup_power2_divisions:2",
            id="not a power of two",
        ),
        pytest.param("backend:cudamallocasync", "backend", "backend:cudaMallocAsync", id="a backend in small letters"),
        pytest.param("zzz:1", "zzz", "", id="a key like none"),
    ],
)
def test_a_refused_setting_names_its_key_and_what_to_write(text: str, key: str, suggestion: str) -> None:
    with pytest.raises(ConfError) as caught:
        parse_conf(text)
    assert (caught.value.key, caught.value.suggestion) == (key, suggestion)
    assert caught.value.message == str(caught.value) != ""


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        pytest.param("max_split_size_mb:64MB", ["max_split_size_mb"], id="letters after a number are dropped"),
        pytest.param("max_split_size_mb:-1", ["max_split_size_mb"], id="a negative size is no limit"),
        pytest.param(
            "garbage_collection_threshold:0.8", ["garbage_collection_threshold"], id="collection without a limit"
        ),
        pytest.param(
            "garbage_collection_threshold:0.8,per_process_memory_fraction:0.9", [], id="collection under a limit"
        ),
        pytest.param(
            "garbage_collection_threshold:0.8,per_process_memory_fraction:0.9,expandable_segments:True",
            ["garbage_collection_threshold"],
            id="collection of segments that are never idle",
        ),
        pytest.param(
            "max_non_split_rounding_mb:30", ["max_non_split_rounding_mb"], id="rounding without a split limit"
        ),
        pytest.param(
            "backend:cudaMallocAsync,expandable_segments:True,max_split_size_mb:64",
            ["expandable_segments", "max_split_size_mb"],
            id="settings of the native allocator beside another one",
        ),
        pytest.param("expandable_segments:True,max_split_size_mb:64", [], id="nothing to say of useful ones"),
    ],
)
def test_what_is_accepted_but_does_nothing_is_listed(text: str, keys: list[str]) -> None:
    assert [key for key, _ in parse_conf(text).ignored] == keys


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("max_split_size_mb:" + "9" * 100_000, id="a number of 100,000 digits"),
        pytest.param("garbage_collection_threshold:" + "1" * 100_000 + "x" * 100_000, id="a long word for a share"),
        pytest.param("x" * 100_000, id="a key of 100,000 letters"),
        pytest.param("roundup_power2_divisions:[" + "4:2," * 30_000, id="an endless list"),
        pytest.param("[" * 100_000, id="100,000 brackets"),
        pytest.param("expandable_segments:Tr\u00fce", id="letters beyond ASCII"),
        pytest.param("max_split_size_mb:\u0663\u0663", id="digits of another script"),
    ],
)
def test_hostile_text_ends_in_a_short_message(text: str) -> None:
    with pytest.raises(ConfError) as caught:
        parse_conf(text)
    assert len(caught.value.message) < 300


@given(text=st.text(alphabet="abm_:,[]0123.>= \n"))
def test_any_text_gives_a_conf_or_a_conf_error(text: str) -> None:
    refused = refusal(text)
    assert refused is None or refused.message


def test_blocks_that_are_not_split_are_rounded_by_20_mib() -> None:
    """c10/core/AllocatorConfig.h: max_non_split_rounding_size_, the size of a large segment by default."""
    assert DEFAULT.max_non_split_rounding_bytes == 20 * MiB
