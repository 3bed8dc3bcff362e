"""What a saved measurement does to an estimate, and what it leaves alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from memlint.check import check_paths
from memlint.data.catalogue import gpu
from memlint.estimates import estimate_spec
from memlint.profiles.measurement import Measurement, digest_of, dumps, facts_of, place
from memlint.reports import full
from memlint.reports import json as json_report
from memlint.settings import Resolver
from memlint.tape.calibration import choose
from memlint.tape.estimate import Estimate, Interval
from memlint.tape.overhead import device_overhead
from memlint.units import GiB, MiB
from tests.measure.training_runs import EXAMPLES, spec_of
from tests.profiles.test_measurement import FACTS, measured

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "schemas" / "report.schema.json").read_text())
H200 = gpu("h200-141gb")

# -- choosing

CHOSEN: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    # measured, facts now, stated version -> what the assumption says
    "the same run": ({}, FACTS, "", "12.0 GiB; measured on NVIDIA H200 (torch 2.13.0+cu128); the interval spans"),
    "the version that the config states": ({}, FACTS, "torch 2.13", "12.0 GiB; measured on"),
    "another batch": (
        {},
        {**FACTS, "micro_batch_size": 8},
        "",
        "context and workspaces only; measured on NVIDIA H200 (torch 2.13.0+cu128) with micro_batch_size = 4 (now 8)",
    ),
    "another card": ({"card": "NVIDIA L4"}, FACTS, "", "not used; measured on NVIDIA L4, and this is a check for h200"),
    "a card that nobody knows": (
        {"card": "NVIDIA Z1"},
        FACTS,
        "",
        "not used; measured on NVIDIA Z1, which the catalogue does not know",
    ),
    "another version than the config states": (
        {},
        FACTS,
        "torch 2.1",
        "not used; measured with torch 2.13.0+cu128, and the config states torch 2.1",
    ),
    "the CPU": ({"device": "cpu", "card": ""}, FACTS, "", "not used; measured on the CPU"),
    "a driver that did not list the process": (
        {"context_bytes": None, "library_workspace_bytes": None},
        FACTS,
        "",
        "11.0 GiB; measured on NVIDIA H200 (torch 2.13.0+cu128); the interval spans the prediction and the measurement"
        "; the driver did not list the process",
    ),
    "such a driver, and another batch": (
        {"context_bytes": None, "library_workspace_bytes": None},
        {**FACTS, "micro_batch_size": 8},
        "",
        "not used; measured on NVIDIA H200",
    ),
}


@pytest.mark.parametrize(("changes", "facts", "version", "said"), CHOSEN.values(), ids=CHOSEN)
def test_what_is_taken_from_a_measurement_is_said(
    changes: dict[str, Any], facts: dict[str, Any], version: str, said: str
) -> None:
    found = choose([measured(**changes)], "train", facts, H200, version)
    assert found is not None
    name, value, reason = found.assumption
    assert name == "measurement"
    assert f"{value}; {reason}".startswith(said)
    assert (found.same_run is not None) == (value not in ("not used", "context and workspaces only"))
    assert (found.fixed is None) == (value == "not used" or "did not list" in reason)


def test_without_a_card_the_measured_one_is_taken_and_said() -> None:
    found = choose([measured(card="NVIDIA L4")], "train", FACTS, None)
    assert found is not None
    assert found.same_run is not None
    assert "measured on NVIDIA L4, which is taken to be the card as none is given" in found.assumption[2]


def test_of_several_the_one_with_the_same_facts_counts_and_then_the_newest() -> None:
    other = {**FACTS, "micro_batch_size": 8}
    entries = [measured(), measured(facts=other, device_bytes=20 * GiB), measured(card="NVIDIA L4")]
    same = choose(entries, "train", FACTS, H200)
    newest = choose(entries, "train", {**FACTS, "micro_batch_size": 16}, H200)
    assert same is not None
    assert newest is not None
    assert same.same_run == entries[0]
    assert "micro_batch_size = 8 (now 16)" in newest.assumption[2]


def test_another_runs_measurement_is_nothing() -> None:
    assert choose([measured(run="finetune")], "train", FACTS, H200) is None


# -- the overhead


def test_measured_fixed_parts_stand_in_for_published_ones_and_are_not_scaled() -> None:
    calibration = choose([measured()], "train", {}, H200)
    assert calibration is not None
    found = device_overhead(H200, "torch", True, True, calibration.fixed)
    plain = device_overhead(H200, "torch", True, True)
    assert found.context_bytes == GiB
    assert found.context_interval == Interval(GiB, GiB)
    assert found.workspace_bytes == 64 * MiB
    # cuDNN chooses by shape: what it did not take at one size says nothing of another
    cudnn = (
        plain.workspace_interval.high_bytes - device_overhead(H200, "torch", True, False).workspace_interval.high_bytes
    )
    assert found.workspace_interval == Interval(64 * MiB, 64 * MiB + cudnn)
    assert cudnn > 0


# -- whole checks


@pytest.fixture
def config(tmp_path: Path) -> str:
    shutil.copy(EXAMPLES / "dit3d" / "config.py", tmp_path)
    return str(tmp_path / "config.py")


def keep(config: str, *entries: Measurement) -> None:
    Path(place(config)).write_text(dumps(entries))


def of_config(config: str, overrides: Sequence[str] = (), **changes: Any) -> Measurement:
    facts = facts_of(spec_of(Path(config), overrides))
    return measured(**{"facts": facts, "digest": digest_of(facts), **changes})


def check(config: str, **options: Any) -> Estimate:
    report = check_paths([config], Resolver({"gpu": "h200-141gb", **options}, isolated=True))
    assert not report.errors
    Draft202012Validator(SCHEMA).validate(json.loads(json_report.render(report)))
    [run] = report.runs
    assert run.estimate is not None
    assert ("narrowed by a measurement" in full.render(report)) == run.estimate.basis.endswith("+measured")
    return run.estimate


def said(estimate: Estimate) -> dict[str, str]:
    return {name: f"{value}; {reason}" for name, value, reason in estimate.assumptions}


def test_the_same_run_is_known_to_what_lies_between_prediction_and_measurement(config: str) -> None:
    plain = check(config)
    true = plain.reserved_bytes + 40 * MiB
    allocated = plain.allocated_bytes + MiB
    figures = {"allocated_bytes": allocated, "reserved_bytes": true, "device_bytes": true + 500 * MiB}
    keep(config, of_config(config, **figures, context_bytes=500 * MiB))
    found = check(config)
    assert (plain.basis, found.basis) == ("static", "static+measured")
    assert found.component_bytes("context") == 500 * MiB
    assert found.component_bytes("workspace") == 64 * MiB
    predicted = plain.reserved_bytes + (500 + 64) * MiB
    assert found.device_bytes == predicted
    assert found.device_interval == Interval(true + 500 * MiB, predicted)
    assert found.allocated_interval == Interval(plain.allocated_bytes, allocated)
    assert sum(component.size_bytes for component in found.components) == found.device_bytes
    width = plain.device_interval.high_bytes - plain.device_interval.low_bytes
    assert predicted - (true + 500 * MiB) < width / 10
    assert said(found)["cuda_context"].startswith("500 MiB; measured on NVIDIA H200")


def test_another_setting_gets_the_context_and_workspaces_alone(config: str) -> None:
    keep(config, of_config(config, context_bytes=500 * MiB))
    change = ["Config.BATCH_SIZE=2"]
    measured_now = check(config, override=change)
    plain = estimate_spec(spec_of(Path(config), change), "h200-141gb")
    assert measured_now.basis == "static+measured"
    assert measured_now.component_bytes("context") == 500 * MiB
    assert measured_now.allocated_interval == plain.allocated_interval
    assert measured_now.reserved_interval == plain.reserved_interval
    assert said(measured_now)["measurement"].startswith("context and workspaces only; measured on NVIDIA H200")
    assert "micro_batch_size = 1 (now 2)" in said(measured_now)["measurement"]


def test_a_measurement_of_another_card_changes_nothing_but_the_assumptions(config: str) -> None:
    plain = check(config)
    keep(config, of_config(config, card="NVIDIA L4"))
    found = check(config)
    assert found._replace(assumptions=()) == plain._replace(assumptions=())
    assert said(found)["measurement"].startswith("not used; measured on NVIDIA L4")


def test_what_ifs_stand_on_the_same_ground(config: str) -> None:
    """Fixes promise a peak: it counts the context that this one counts."""
    entries = [of_config(config, context_bytes=500 * MiB)]
    spec = spec_of(Path(config))
    changed = spec.with_facts(micro_batch_size=2)
    here, there = (estimate_spec(each, "h200-141gb", measurements=entries) for each in (spec, changed))
    assert here.component_bytes("context") == there.component_bytes("context") == 500 * MiB
    assert there.reserved_interval == estimate_spec(changed, "h200-141gb").reserved_interval


def test_a_broken_file_is_an_error_with_its_line_and_the_check_goes_on(config: str) -> None:
    Path(place(config)).write_text('{\n  "version": 7\n}\n')
    report = check_paths([config], Resolver(isolated=True))
    assert report.errors == ((f"{place(config)}:2", "version: is 7; this memlint reads version 1: measure again"),)
    assert report.exit_code() == 2
    assert report.runs[0].estimate is not None


def test_without_a_measurement_nothing_of_this_is_imported(config: str) -> None:
    code = (
        "import sys; from memlint.check import check_paths; check_paths([sys.argv[1]]);"
        "print([name for name in sys.modules if 'calibration' in name or 'measurement' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code, config], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


@given(
    allocated=st.integers(0, 2**40),
    fragmentation=st.integers(0, 2**38),
    context=st.integers(0, 2**32),
    workspace=st.none() | st.integers(0, 2**30),
)
def test_the_interval_always_holds_the_prediction_and_the_measurement(
    allocated: int, fragmentation: int, context: int, workspace: int | None
) -> None:
    spec = SPEC
    reserved = allocated + fragmentation
    facts = facts_of(spec)
    entry = measured(
        facts=facts,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        device_bytes=reserved + context,
        context_bytes=context,
        library_workspace_bytes=workspace,
    )
    found = estimate_spec(spec, "h200-141gb", measurements=[entry])
    for interval, predicted, seen in (
        (found.allocated_interval, found.allocated_bytes, allocated),
        (found.reserved_interval, found.reserved_bytes, reserved),
        (found.device_interval, found.device_bytes, reserved + context),
    ):
        assert {predicted, seen} == {interval.low_bytes, interval.high_bytes}


SPEC = spec_of(EXAMPLES / "dit3d" / "config.py")


def test_of_many_facts_that_changed_three_are_named() -> None:
    then = {f"size_{number}": number for number in range(1, 6)}
    found = choose([measured(facts=then)], "train", {**then, **dict.fromkeys(then, 9)}, H200)
    assert found is not None
    assert found.assumption[2].endswith(
        "with size_1 = 1 (now 9), size_2 = 2 (now 9), size_3 = 3 (now 9) and 2 more facts"
    )
    three = choose([measured(facts=then)], "train", {**then, "size_1": 9, "size_2": 9, "size_3": 9}, H200)
    assert three is not None
    assert three.assumption[2].endswith("size_3 = 3 (now 9)")


def test_a_build_that_the_config_states_is_the_release_that_was_measured() -> None:
    found = choose([measured()], "train", FACTS, H200, "torch 2.13.0+cu126")
    assert found is not None
    assert found.same_run is not None
