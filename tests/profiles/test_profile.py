"""Profiles: read, refused, written, found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlint.profiles.blocks import factored
from memlint.profiles.evaluate import OutsideGuards, evaluate, saved_bytes
from memlint.profiles.profile import Profile, ProfileError, dumps, find, load, loads, unroll
from memlint.tape.breakdown import break_down
from memlint.tape.phases import find_peak
from tests.effort import MOST_LINES, counted_lines
from tests.profiles.sample import sample

SCHEMA = Path(__file__).parent.parent.parent / "schemas" / "profile.schema.json"


def _profile(change: Callable[[dict[str, Any]], None] = lambda tree: None) -> Profile:
    tree = sample()
    change(tree)
    return loads(json.dumps(tree, indent=1), "p.json")


def test_the_tape_is_the_events_with_the_formulas_values() -> None:
    tape = evaluate(_profile(), {"B": 2, "S": 32, "A": 1})
    assert tape.sizes == [512, 512, 256, 256, 512, 512]
    assert tape.events == [0, 1, 2, 3, 4, ~3, 5, ~2, ~4, ~5]
    assert tape.marks == [(0, "setup"), (2, "forward"), (4, "backward"), (8, "optimizer_step")]
    assert tape.saved_bytes == saved_bytes(_profile(), {"B": 2, "S": 32, "A": 1}) == 512


def test_the_peak_is_worked_out_by_hand() -> None:
    # Two weights, two activations of 4*8*1024 bytes, and the first gradient.
    peak = find_peak(evaluate(_profile(), {"B": 8, "S": 1024, "A": 1}))
    assert (peak.peak_bytes, peak.phase) == (2 * 512 + 2 * 4 * 8 * 1024 + 512, "backward")


def test_a_breakdown_has_the_formula_and_the_facts_behind_it() -> None:
    tape = evaluate(_profile(), {"B": 8, "S": 1024, "A": 1}, symbolic=True)
    [part] = next(c for c in break_down(tape, find_peak(tape).event) if c.name == "activations").parts
    assert (part.name, part.formula) == ("layers", "2*B*S*4")
    assert part.symbols == (("B", "micro_batch_size"), ("S", "sequence_length"))


OUTSIDE = {
    "a length that is not divisible": ({"B": 4, "S": 100, "A": 1}, "S%16 == 0"),
    "a second micro-batch that was not recorded": ({"B": 4, "S": 256, "A": 2}, "A == 1"),
    "no sample at all": ({"B": 0, "S": 256, "A": 1}, "B >= 1"),
    "a length beyond all bounds": ({"B": 4, "S": 2**21, "A": 1}, "S <= 1048576"),
}


@pytest.mark.parametrize(("values", "guard"), OUTSIDE.values(), ids=OUTSIDE)
def test_outside_of_the_guards_there_is_no_tape_and_the_guard_is_named(values: dict[str, int], guard: str) -> None:
    with pytest.raises(OutsideGuards) as caught:
        evaluate(_profile(), values)
    assert caught.value.guard == guard
    assert guard in str(caught.value)


def test_one_of_several_lists_of_guards_is_enough() -> None:
    assert evaluate(_profile(), {"B": 1, "S": 100, "A": 1}).sizes[2] == 400


def test_a_guard_without_a_value_does_not_hold() -> None:
    profile = _profile(lambda tree: tree["regimes"][0].update(when=[["1//(B-4) >= 0"]]))
    with pytest.raises(OutsideGuards):
        evaluate(profile, {"B": 4, "S": 256, "A": 1})
    assert evaluate(profile, {"B": 5, "S": 256, "A": 1}).events


def _at(*keys: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(tree: dict[str, Any]) -> None:
        place: Any = tree
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = to

    return change


def _without(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda tree: tree.pop(key)


TAMPERED = {
    "another version": (_at("version", to=2), "version: is 2; this memlint reads version 1: record it again"),
    "no version": (_without("version"), "version: is None"),
    "no kinds": (_without("kinds"), "has no 'kinds'"),
    "no regimes": (_at("regimes", to=[]), "regimes: is empty"),
    "kinds that are no list": (_at("kinds", to={}), "kinds: a list is expected"),
    "a kind with a field too few": (_at("kinds", 0, to=[0]), "kinds[0]: a label's number and a formula"),
    "a kind of a label that is not there": (_at("kinds", 0, 0, to=3), "kinds[0][0]: there is no label 3"),
    "a kind of a label below zero": (_at("kinds", 0, 0, to=-1), "kinds[0][0]: there is no label -1"),
    "a kind whose label is true": (_at("kinds", 0, 0, to=True), "kinds[0][0]: a label's number"),
    "a label with a field too few": (_at("labels", 0, to=["parameters", "a"]), "labels[0]: component, module"),
    "a component that does not exist": (_at("labels", 1, 0, to="tensors"), "labels[1][0]: there is no component"),
    "a module that is no text": (_at("labels", 1, 1, to=7), "labels[1][1]: text is expected"),
    "a formula that is code": (_at("kinds", 1, 1, to="__import__('os')"), "kinds[1][1]"),
    "a formula that is not text": (_at("kinds", 1, 1, to=None), "kinds[1][1]: a formula is expected"),
    "a formula in a name that is no dimension": (_at("kinds", 1, 1, to="4*B*Q"), "'Q' is no dimension"),
    "a formula without end": (_at("kinds", 1, 1, to="B" + "+B" * 5000), "kinds[1][1]"),
    "settings at which was compared that are no list": (_at("checked", to=5), "checked: a list"),
    "blocks that are no list": (_at("blocks", to={}), "blocks: a list is expected"),
    "a block of a later block": (_at("blocks", to=[["@1"], ["+1"]]), "blocks[0]: there is no block 1 before this"),
    "a block of itself": (_at("blocks", to=[["@0"]]), "blocks[0]: there is no block 0 before this"),
    "a block that is not there": (_at("regimes", 0, "tape", 1, "events", to=["@0"]), "there is no block 0"),
    "a block of a kind that does not exist": (_at("blocks", to=[["+9"]]), "blocks[0]: there is no kind 9"),
    "blocks that double forty times": (
        _at("blocks", to=[["+1 +1"], *[[f"@{n} @{n}"] for n in range(40)]]),
        "more than 2,000,000 events",
    ),
    "how often in a name that is no dimension": (
        _at("regimes", 0, "tape", 1, "events", to=["(Q-1)x( +1 )"]),
        "'Q' is no dimension",
    ),
    "how often as code": (_at("regimes", 0, "tape", 1, "events", to=["exit()x( +1 )"]), "no function 'exit'"),
    "a depth that is code": (_at("regimes", 0, "tape", 1, "events", to=["-1.exit(0)"]), "no function 'exit'"),
    "a dimension whose value is text": (_at("dimensions", "B", "recorded", to="4"), "dimensions.B.recorded: a whole"),
    "a dimension of nothing": (_at("dimensions", "B", "recorded", to=0), "dimensions.B.recorded: is less than 1"),
    "a dimension without a key": (_at("dimensions", "B", to={"fact": "x", "recorded": 1}), "dimensions.B.key"),
    "a dimension whose name is no name": (_at("dimensions", "a b", to={}), "is not a name"),
    "events of a kind that does not exist": (
        _at("regimes", 0, "tape", 1, "events", to=["+7"]),
        "regimes[0].tape[1].events: there is no kind 7",
    ),
    "events that are no words": (_at("regimes", 0, "tape", 1, "events", to=["*1"]), "'*1' is no event"),
    "an event with half a number": (_at("regimes", 0, "tape", 1, "events", to=["+1e3"]), "'+1e3' is no event"),
    "a repetition without end": (_at("regimes", 0, "tape", 1, "events", to=["3x( +1"]), "'(' without ')'"),
    "an end without repetition": (_at("regimes", 0, "tape", 1, "events", to=["+1 )"]), "')' without '('"),
    "repetitions in repetitions": (_at("regimes", 0, "tape", 1, "events", to=["2x( " * 20]), "nested more than 8"),
    "guards that are no list": (_at("regimes", 0, "when", to=["B > 1"]), "regimes[0].when[0]: a list"),
    "a guard that is no formula": (_at("regimes", 0, "when", to=[["B >"]]), "regimes[0].when[0][0]"),
}


@pytest.mark.parametrize(("change", "said"), TAMPERED.values(), ids=TAMPERED)
def test_a_tampered_profile_is_refused_with_the_place(change: Callable[[dict[str, Any]], None], said: str) -> None:
    with pytest.raises(ProfileError) as caught:
        _profile(change)
    assert said in str(caught.value)
    assert str(caught.value).startswith("p.json")


def test_the_line_of_a_wrong_value_is_named() -> None:
    tree = sample()
    tree["kinds"][1][1] = "4*B*"
    text = json.dumps(tree, indent=1)
    with pytest.raises(ProfileError) as caught:
        loads(text, "p.json")
    assert text.splitlines()[caught.value.line - 1].strip() == '"4*B*"'


def test_the_line_of_a_fault_in_the_text_is_named() -> None:
    with pytest.raises(ProfileError, match=r"p\.json:2: not JSON"):
        loads('{"version": 1,\n nonsense}', "p.json")


@pytest.mark.parametrize("text", ["[" * 100_000, "null", "[]", '"profile"'], ids=["deep", "null", "list", "text"])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(ProfileError):
        loads(text, "p.json")


REPEATED = {
    "less than no repetitions": ["(B-9)x( +1 )"],
    "half a repetition": ["(B/8)x( +1 )"],
    "repetitions beyond all bounds": ["(B**60)x( +1 )"],
    "a power without end as a number": ["(9**9**9**9)x( +1 )"],
    "a division by zero as a number": ["(1//(B-4))x( +1 )"],
    "a depth below zero": ["+1 -1.(B-9)"],
    "a depth beyond what is there": ["+1 -1.B"],
    "frees what is not alive": ["-1"],
    "frees deeper than there are": ["+1 +1 -1.2"],
    "too many events": ["999999999x( +1 )"],
    "too many events in small steps": ["999x( 999x( 999x( +1 ) ) )"],
}


@pytest.mark.parametrize("events", REPEATED.values(), ids=REPEATED)
def test_events_that_cannot_be_are_an_error(events: list[str]) -> None:
    profile = _profile(_at("regimes", 0, "tape", 1, "events", to=events))
    with pytest.raises(ProfileError, match=r"p\.json"):
        evaluate(profile, {"B": 4, "S": 256, "A": 1})


def test_a_loop_over_a_size_comes_as_often_as_that() -> None:
    change = _at("regimes", 0, "tape", 1, "events", to=["+1 (B-1)x( +1 ) -1.(B-1) (B-1)x( -1 )"])
    profile = _profile(lambda tree: (change(tree), tree["regimes"][0].update(tape=tree["regimes"][0]["tape"][:2]))[1])
    for b in (1, 2, 5):
        tape = evaluate(profile, {"B": b, "S": 32, "A": 1})
        # Two weights; then the oldest of all activations goes first, and the newest next.
        assert tape.events == [0, 1, *range(2, 2 + b), ~2, *(~n for n in range(b + 1, 2, -1))]
    assert find_peak(tape).peak_bytes == 2 * 512 + 5 * 1024, "each of 4*5*32 bytes, rounded up"


def test_blocks_stand_for_their_words() -> None:
    def change(tree: dict[str, Any]) -> None:
        tree["blocks"] = [["+1"], ["@0", "@0"]]
        tree["regimes"][0]["tape"][1]["events"] = ["@1"]

    assert _profile(change).regimes == _profile().regimes


@given(st.lists(st.lists(st.sampled_from(("+0", "-0", "+1", "-1", "3x(", ")")), max_size=80), min_size=1, max_size=4))
def test_factored_and_put_together_again_courses_are_the_same(courses: list[list[str]]) -> None:
    blocks, short = factored(courses)
    whole: list[list[str]] = []
    for block in (*blocks, *short):
        words: list[str] = []
        for word in block:
            words += whole[int(word[1:])] if word.startswith("@") else [word]
        whole.append(words)
    assert whole[len(blocks) :] == courses
    assert not any(word.endswith("x(") or word == ")" for block in blocks for word in block)


def test_what_two_regimes_share_is_written_once() -> None:
    shared = [f"+{n}" for n in range(60)]
    blocks, (first, second) = factored([[*shared, "-1"], [*shared, "-2"]])
    assert len(first) == len(second) == 2
    assert len(blocks) == 1


HOSTILE: dict[str, Callable[[dict[str, Any]], None]] = {
    "many formulas": lambda tree: tree.update(kinds=[[0, f"{n}*B"] for n in range(60_000)]),
    "many guards": lambda tree: tree["regimes"][0].update(when=[[f"B != {n}" for n in range(60_000)]]),
    "many words": lambda tree: tree["regimes"][0]["tape"][1].update(events=["+1 " * 3_000_000]),
    "a file beyond bounds": lambda tree: tree.update(model="x" * 5_000_000),
    "deep loops around much": lambda tree: tree["regimes"][0]["tape"][1].update(
        events=["1000000x( " * 8 + "+1 " + ") " * 8]
    ),
    "empty loops around nothing": lambda tree: tree["regimes"][0]["tape"][1].update(
        events=["999999999x( " * 8 + ") " * 8]
    ),
    "a sum of towers": lambda tree: tree["kinds"].__setitem__(1, [1, "+".join(["9**9**9"] * 60)]),
    "a product without end": lambda tree: tree["kinds"].__setitem__(1, [1, "*".join(["B**9"] * 90)]),
    "a number of many digits": lambda tree: tree["kinds"].__setitem__(1, [1, "9" * 5000]),
    "a size of many bits": lambda tree: tree["dimensions"]["B"].update(recorded=10**4000),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_profile_costs_little_and_harms_nothing(
    change: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    tree = sample()
    change(tree)
    path = tmp_path / "train.yaml.memlint.json"
    path.write_text(json.dumps(tree), encoding="utf-8")
    said, events = "", 0
    with counted_lines(most=2 * MOST_LINES):
        try:
            events = len(evaluate(load(str(path)), {"B": 4, "S": 256, "A": 1}).events)
        except ProfileError as error:
            said = str(error)
    assert said.startswith(str(path)) or events in range(1, 20), "an error, or something small"
    assert len(said) < 1000


def test_many_phases_do_not_get_around_the_limit() -> None:
    part = {"phase": "forward", "events": ["1900000x( +1 )"]}
    with pytest.raises(ProfileError, match="more than 2,000,000 events"):
        evaluate(_profile(_at("regimes", 0, "tape", to=[part, part])), {"B": 4, "S": 256, "A": 1})


def test_a_size_below_zero_is_an_error_of_the_profile() -> None:
    with pytest.raises(ProfileError, match=r"kinds\[1\]: .* is no size"):
        evaluate(_profile(_at("kinds", 1, 1, to="B-100")), {"B": 4, "S": 256, "A": 1})


def test_written_and_read_it_is_the_same() -> None:
    profile = _profile()
    text = dumps(profile)
    assert loads(text, "p.json") == profile
    assert dumps(loads(text, "p.json")) == text


def test_the_schema_knows_what_is_written() -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert not list(validator.iter_errors(json.loads(dumps(_profile()))))
    assert list(validator.iter_errors({**sample(), "kinds": [["parameters", "a"]]}))
    assert list(validator.iter_errors({**sample(), "labels": [["tensors", "a", "b"]]}))


WORDS = st.recursive(
    st.lists(st.sampled_from(("+0", "+1", "-0", "-1.3", "<2")), min_size=1, max_size=6),
    lambda inner: st.tuples(st.integers(0, 3), inner).map(lambda x: [f"{x[0]}x(", *x[1], ")"]),
    max_leaves=4,
)


@given(st.lists(WORDS, max_size=4))
def test_repetitions_are_written_out(parts: list[list[str]]) -> None:
    def expand(words: list[str]) -> list[str]:
        out: list[list[str]] = [[]]
        times: list[int] = []
        for word in words:
            if word.endswith("x("):
                times.append(int(word[:-2]))
                out.append([])
            elif word == ")":
                body = out.pop()
                out[-1] += body * times.pop()
            else:
                out[-1].append(word)
        return out[0]

    flat = [word for part in parts for word in part]
    found = [f"{m}{k}" + (f".{d}" if d else "") for m, k, d in unroll(" ".join(flat))]
    assert found == expand(flat)


def test_a_profile_is_found_beside_its_config_or_in_a_folder_above(tmp_path: Path) -> None:
    config = tmp_path / "configs" / "train.yaml"
    config.parent.mkdir()
    config.write_text("a: 1\n", encoding="utf-8")
    assert find(str(config)) is None
    far = tmp_path / ".memlint" / "profiles" / "configs" / "train.yaml.memlint.json"
    far.parent.mkdir(parents=True)
    far.write_text("{}", encoding="utf-8")
    assert find(str(config)) == str(far)
    beside = tmp_path / "configs" / "train.yaml.memlint.json"
    beside.write_text("{}", encoding="utf-8")
    assert find(str(config)) == str(beside)
