"""Profiles and measurements that strangers wrote: an answer, or an error of their own."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memlint import work
from memlint.check import check_paths
from memlint.profiles import measurement
from memlint.profiles.evaluate import OutsideGuards, evaluate
from memlint.profiles.expression import ExpressionError, parse
from memlint.profiles.measurement import MeasurementError, digest_of
from memlint.profiles.profile import ProfileError, dumps, loads
from memlint.settings import Settings
from tests.profiles.sample import sample

VALUES = {"B": 8, "S": 1024, "A": 1}
FORMULAS = (
    *("B", "-S", "4*B*S", "0", "0.5", "x", "\u00b2", "B<S<2", "B and S", "not B", "min(B)", "((((B))))"),
    *("1/0", "S//0", "2**B**S", "9**99", "1e999", "1e308*1e308", "trunc(1e999)", "((((B**8)**8)**8)**8)**8"),
    *("floor(1e308)+floor(1e308)", "(floor(1e308)+floor(1e308))/0.5"),
    *("-" * 50 + "B", "B" + "-1" * 300, "B" + "*S" * 200),
)
SIGNS = (*"()+-*/%,<>=!1B", "**", "//", " and ", " or ", "not ", "min(")
WORDS = (
    *("+0", "-0", "-1", "<1", "-1.5", "-1.(S-2)", "-0.999999999", "+9", "+\u0661", "+" + "1" * 5000, "\u2028", ""),
    *("2x( +0 )", "0x( +0 -0 )", "(S)x( +1 -1 )", "999999999x( +0 )", "8x( 8x( 8x( 8x( +0 ) ) ) )", "x(", ")"),
    *("@0", "@1", "@"),
)
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([10**18, 10**40, 1e308, float("nan"), float("inf"), "", "x", "\ud800", "\n::error::x", [], {}]),
    st.sampled_from(FORMULAS),
    st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join),
    st.text(max_size=4),
)


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a tree."""
    found: list[tuple[Any, Any]] = []
    stack = [tree]
    while stack:
        node = stack.pop()
        for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
            found.append((node, key))
            if isinstance(value, (dict, list)):
                stack.append(value)
    return found


def mutated(tree: Any, draw: Any, most: int) -> Any:
    """A tree with a few of its values exchanged, doubled or left out."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, most))):
        every = places(tree)
        if not every:
            break
        node, key = every[draw(st.integers(0, len(every) - 1))]
        what = draw(st.sampled_from(["value", "value", "value", "gone", "twice", "formula", "words"]))
        if what == "gone":
            del node[key]
        elif what == "twice" and isinstance(node, list):
            node.insert(key, copy.deepcopy(node[key]))
        elif what == "formula":
            node[key] = draw(st.sampled_from(FORMULAS))
        elif what == "words":
            node[key] = draw(st.lists(st.sampled_from(WORDS), max_size=6))
        else:
            node[key] = draw(JUNK)
    return tree


def use(text: str) -> bool:
    """Read a profile and ask it for two runs. Whether there was an answer; anything else than its own errors raises."""
    try:
        profile = loads(text, "p.json")
    except ProfileError:
        return False
    answered = False
    for values in (VALUES, profile.recorded()):
        for symbolic in (False, True):
            try:
                evaluate(profile, values, symbolic)
                answered = True
            except (ProfileError, OutsideGuards):
                continue
    dumps(profile)
    return answered


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_a_mutant_of_a_profile_is_a_profile_or_a_profile_error(data: st.DataObject) -> None:
    with work.limited(work.FILE_STEPS):
        use(json.dumps(mutated(sample(), data.draw, 3)))


@settings(max_examples=300, deadline=None)
@given(text=st.lists(st.sampled_from(FORMULAS + SIGNS), max_size=12).map("".join))
def test_a_formula_has_a_value_or_an_error_of_its_own(text: str) -> None:
    try:
        found = parse(text)
    except ExpressionError:
        return
    for call in (lambda: found.value(VALUES), lambda: found.size(VALUES)):
        try:
            call()
        except ExpressionError:
            continue
    assert 1 <= len(found.factors()) <= 64


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("((((((B**8)**8)**8)**8)**8)**8)**8", id="powers of powers"),
        pytest.param("B" + "*B" * 300, id="a long product"),
        pytest.param("B" + "-1-B" * 120, id="a long sum"),
        pytest.param("(" * 39 + "B" + "-1)" * 39, id="as many brackets as there may be"),
    ],
)
def test_factors_are_few_and_mean_the_same(text: str) -> None:
    factors = parse(text).factors()
    assert len(factors) <= 64
    assert all(len(factor) < 4 * len(text) for factor in factors)


def profile(**changes: Any) -> str:
    tree = sample()
    tree.update(changes)
    return json.dumps(tree)


def tape(*events: str) -> list[Any]:
    return [{"when": [[]], "saved": "0", "tape": [{"phase": "forward", "events": list(events)}]}]


COSTLY = {
    "what is repeated and thrown away": profile(regimes=tape("0x( 1900000x( +0 ) ) " * 300)),
    "what waits in line": profile(regimes=tape("900000x( +0 ) 900000x( <0 )")),
    "formulas without end": profile(kinds=[[0, f"B*{number}+" + "S+" * 90 + "1"] for number in range(3_000)]),
    "guards without end": profile(regimes=[{"when": [["B>1" + "+0" * 300, "S<0"]] * 5_000, "saved": "0", "tape": []}]),
}
REFUSED = {
    "blocks of blocks": profile(blocks=[["+0 " * 1_000], *[[f"@{at} " * 12] for at in range(8)]], regimes=tape("@8")),
    "words on lines of their own": profile(blocks=[["+0\n" * 40_000]], regimes=tape("@0 " * 5_000)),
    "a message of a megabyte": profile(version="x" * 1_000_000),
    "a name of a megabyte": profile(kinds=[[0, "x" * 10_000]]),
}


@pytest.mark.parametrize("text", COSTLY.values(), ids=COSTLY)
def test_a_costly_profile_ends_where_its_steps_do(text: str) -> None:
    with work.limited(work.FILE_STEPS // 10), pytest.raises(work.OutOfWork, match=r"profile|recorded step|formula"):
        use(text)


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_a_profile_that_is_too_large_is_refused_before_it_is_written_out(text: str) -> None:
    with work.limited(work.FILE_STEPS // 10), pytest.raises(ProfileError) as caught:
        loads(text)
    assert len(str(caught.value)) < 400


def test_a_check_ends_such_a_profile_in_one_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "a.yaml").write_text("mine: 1\n")
    (tmp_path / "a.yaml.memlint.json").write_text(COSTLY["formulas without end"])
    (tmp_path / "b.yaml").write_text("a: [\n")
    monkeypatch.setattr(Settings, "file_steps", 300_000)
    report = check_paths([str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")], Settings())
    assert [finding.code for finding in report.findings] == ["MEM011", "MEM003"]


# -- measurements


def entry(**changes: Any) -> dict[str, Any]:
    facts = changes.get("facts", {"micro_batch_size": 4})
    return {
        "run": "train", "device": "cuda", "card": "NVIDIA H100", "made_with": {"torch": "2.6.0"}, "facts": facts,
        "digest": digest_of(facts), "allocated_bytes": 1, "reserved_bytes": 2, "device_bytes": 3, "context_bytes": 1,
        "library_workspace_bytes": 0, "peak_phase": "backward", "phases": {"backward": 1},
        "components": {"activations": 1}, **changes,
    }  # fmt: skip


def kept(*entries: Any) -> str:
    return json.dumps({"version": 1, "measurements": list(entries)})


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_mutant_of_measurements_is_measurements_or_an_error_of_theirs(data: st.DataObject) -> None:
    text = json.dumps(mutated(json.loads(kept(entry(), entry(run="other"))), data.draw, 3))
    bad: list[MeasurementError] = []
    try:
        found = measurement.loads(text, "m.json", bad)
    except MeasurementError:
        return
    assert len(bad) <= 1
    if not bad:
        assert measurement.loads(text) == found


def test_a_bad_measurement_costs_that_measurement() -> None:
    text = kept(entry(), entry(device_bytes=-1), entry(run="other"), entry(digest="x"))
    bad: list[MeasurementError] = []
    assert [one.run for one in measurement.loads(text, "m.json", bad)] == ["train", "other"]
    [error] = bad
    assert "measurements[1].device_bytes: a number of bytes is expected (and 1 more entries are wrong)" in str(error)
    with pytest.raises(MeasurementError):
        measurement.loads(text)


def test_a_check_goes_on_with_the_good_ones(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    config = "model_name_or_path: gpt2\noutput_dir: x\nper_device_train_batch_size: 4\nmax_length: 128\n"
    (tmp_path / "t.yaml").write_text(config)
    (tmp_path / "t.yaml.memlint-measured.json").write_text(kept(entry(device_bytes=10**40), entry()))
    report = check_paths([str(tmp_path / "t.yaml")], Settings())
    [(path, why)] = report.errors
    assert path.endswith("t.yaml.memlint-measured.json:1")
    assert "measurements[0].device_bytes" in why
    assert report.runs[0].estimate is not None
    assert report.exit_code() == 2


def test_facts_nested_without_end_are_an_error_of_the_file() -> None:
    deep = '{"a":' * 900 + "1" + "}" * 900
    text = kept(entry(facts={})).replace('"facts": {}', f'"facts": {deep}')
    with pytest.raises(MeasurementError):
        measurement.loads(text)
