"""Measurements kept beside a config: written, read, merged, and refused with the line that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from memlint.profiles import measurement
from memlint.profiles.measurement import Measurement, MeasurementError, digest_of, dumps, load, loads, merged
from memlint.units import GiB

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "measured.schema.json").read_text())
FACTS = {"micro_batch_size": 4, "framework": "torch", "image_size": [64, 64]}


def measured(**changes: Any) -> Measurement:
    """A run on a card; its digest fits its facts."""
    values: dict[str, Any] = {
        "run": "train",
        "device": "cuda",
        "card": "NVIDIA H200",
        "made_with": {"memlint": "0.1.0", "torch": "2.13.0+cu128", "cuda": "12.8", "driver": "570.1"},
        "facts": FACTS,
        "allocated_bytes": 10 * GiB,
        "reserved_bytes": 11 * GiB,
        "device_bytes": 12 * GiB,
        "context_bytes": 1 * GiB,
        "library_workspace_bytes": 64 * 2**20,
        "peak_phase": "backward",
        "phases": {"backward": 10 * GiB},
        "components": {"parameters": 10 * GiB, "fragmentation": GiB, "context": GiB},
        **changes,
    }
    return Measurement(**{"digest": digest_of(values["facts"]), **values})


def test_what_is_written_is_read_again_and_fits_its_schema() -> None:
    entries = (measured(), measured(device="cpu", card="", context_bytes=None, library_workspace_bytes=None))
    text = dumps(entries)
    Draft202012Validator.check_schema(SCHEMA)
    Draft202012Validator(SCHEMA).validate(json.loads(text))
    assert loads(text) == entries
    assert set(SCHEMA["$defs"]["measurement"]["required"]) == set(Measurement._fields)


@given(
    st.dictionaries(
        st.text(max_size=8),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
            max_leaves=6,
        ),
        max_size=6,
    )
)
def test_facts_survive_the_file_whatever_they_are(facts: dict[str, Any]) -> None:
    [read] = loads(dumps([measured(facts=measurement.plain_facts(facts))]))
    assert read.facts == measurement.plain_facts(facts)


def test_what_the_host_keeps_and_where_files_lie_is_no_fact_of_a_card() -> None:
    assert measurement.plain_facts({"workers": 4, "profile": "x.json", "micro_batch_size": 2}) == {
        "micro_batch_size": 2
    }


MERGED = {
    "the same again takes the old one's place": ({"device_bytes": 13 * GiB}, 1),
    "another driver is the same again": ({"made_with": {"torch": "2.13.0+cu128", "driver": "1"}}, 1),
    "other facts are another entry": ({"facts": {**FACTS, "micro_batch_size": 8}}, 2),
    "another card is another entry": ({"card": "NVIDIA L4"}, 2),
    "another PyTorch is another entry": ({"made_with": {"torch": "2.12.0"}}, 2),
    "another run is another entry": ({"run": "finetune"}, 2),
}


@pytest.mark.parametrize(("changes", "count"), MERGED.values(), ids=MERGED)
def test_a_measurement_replaces_the_one_that_it_repeats(changes: dict[str, Any], count: int) -> None:
    kept = merged([measured()], measured(**changes))
    assert len(kept) == count
    assert kept[-1] == measured(**changes)


def broken(*path: str | int, value: Any) -> str:
    tree = json.loads(dumps([measured()]))
    place: Any = tree
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return json.dumps(tree, indent=2)


FIRST = ("measurements", 0)
WRONG = {
    "no JSON": ("{", "not JSON", "{"),
    "a list": ("[]", "an object is expected", "[]"),
    "another version": (broken("version", value=2), "reads version 1: measure again", "version"),
    "a size that is text": (
        broken(*FIRST, "device_bytes", value="12"),
        "a number of bytes is expected",
        "device_bytes",
    ),
    "a size below nothing": (
        broken(*FIRST, "context_bytes", value=-1),
        "a number of bytes is expected",
        "context_bytes",
    ),
    "an unknown device": (broken(*FIRST, "device", value="tpu"), "cuda or cpu is expected", "device"),
    "a reserve smaller than what it holds": (
        broken(*FIRST, "reserved_bytes", value=1),
        "reserved lies between",
        "reserved_bytes",
    ),
    "facts that were changed by hand": (
        broken(*FIRST, "facts", "micro_batch_size", value=1),
        "measure again",
        "digest",
    ),
    "too deep": ("[" * 100_000, "nested too deep|not JSON", ""),
}


@pytest.mark.parametrize(("text", "said", "place"), WRONG.values(), ids=WRONG)
def test_a_file_that_cannot_be_used_names_its_line(text: str, said: str, place: str) -> None:
    with pytest.raises(MeasurementError, match=said) as caught:
        loads(text, "x.json")
    assert caught.value.path == "x.json"
    if place:
        key = f'"{place}":' if place.isidentifier() else place
        assert caught.value.line == 1 + next(at for at, line in enumerate(text.splitlines()) if key in line)


def test_an_entry_without_a_field_is_refused() -> None:
    tree = json.loads(dumps([measured()]))
    del tree["measurements"][0]["facts"]
    with pytest.raises(MeasurementError, match="has no 'facts'"):
        loads(json.dumps(tree))


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="cannot be read"):
        load(str(tmp_path / "none.json"))
