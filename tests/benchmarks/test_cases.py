"""The cases: enough of them, all that has to be covered, and small ones that are the same."""

from __future__ import annotations

import re
from typing import Any

import pytest

from benchmarks.gpu import cases, table, worker
from benchmarks.gpu.cases import REAL, SMALL_SCALE, Case, settings_of
from benchmarks.gpu.summary import COVERED, MIN_CASES
from memlint.data.catalogue import gpu
from memlint.estimates import estimate_spec

CASES = cases.cases()
SYSTEMS = [case for case in CASES if case.kind == cases.SYSTEM and not case.probed]
TASK = {"scale": REAL, "device": "cuda", "gpu": "h200-141gb", "uuid": ""}


def settings(case: Case) -> dict[str, str]:
    request, _ = worker.request_of(case, TASK, "trace")
    found = {"family": case.family, "compiled": case.compiled, **settings_of(request["facts"])}
    return {key: table.cells({key: value})[key] for key, value in found.items()}


def test_there_are_enough_cases_each_once() -> None:
    names = [case.name for case in CASES if case.kind != cases.CONTEXT]
    assert len(names) >= MIN_CASES + 20  # a few may fail, or not be reached
    assert len(set(names)) == len(names)


def test_everything_that_has_to_be_covered_is() -> None:
    occurring: dict[str, set[str]] = {}
    for case in CASES:
        if case.kind != cases.CONTEXT:
            for column, value in settings(case).items():
                occurring.setdefault(column, set()).add(value)
    for column, wanted in COVERED.items():
        assert set(wanted) <= occurring[column], column


@pytest.mark.parametrize("architecture", cases.MODELS)
def test_each_architecture_has_several_sizes_and_every_precision(architecture: str) -> None:
    own = [case for case in CASES if case.family == architecture]
    assert len({case.name.split("/")[1] for case in own}) >= 2
    assert {settings(case)["precision"] for case in own} == {"fp32", "autocast-bf16", "bf16"}


@pytest.mark.parametrize("family", cases.SYSTEMS)
def test_each_system_has_several_settings(family: str) -> None:
    assert len({(case.path, case.overrides) for case in SYSTEMS if case.family == family}) >= 4


def test_small_cases_are_the_same_ones() -> None:
    small = cases.cases(SMALL_SCALE)
    assert [(case.name, case.kind, case.family) for case in small] == [(c.name, c.kind, c.family) for c in CASES]
    assert [case.facts.keys() for case in small] == [case.facts.keys() for case in CASES]


def test_a_run_that_is_cut_short_has_some_of_every_family() -> None:
    first = [case for case in CASES[:60] if case.kind in (cases.SYSTEM, cases.MODEL)]
    assert {case.family for case in first} == {*cases.SYSTEMS, *cases.MODELS}
    assert all(case.compiled for case in CASES[-6:])


@pytest.mark.parametrize("case", SYSTEMS, ids=lambda case: case.name)
def test_the_static_estimate_of_a_system_is_of_its_training_and_fits_the_card(case: Case) -> None:
    """Evaluation is not run here, so that no prediction may peak in it."""
    _, spec = worker.request_of(case, TASK, "trace")
    found = estimate_spec(spec, "h200-141gb")
    assert found.peak_phase in ("forward", "backward", "optimizer_step")
    assert found.device_interval.high_bytes < gpu("h200-141gb").usable_bytes


def test_overrides_are_the_configs_own_keys() -> None:
    """A misspelt key would be added, and change nothing."""
    plain: dict[str, Any] = {}
    for case in SYSTEMS:
        if not case.overrides:
            plain[case.path] = worker.request_of(case, TASK, "trace")[0]["facts"]
    for case in SYSTEMS:
        if case.overrides and case.path in plain:
            assert worker.request_of(case, TASK, "trace")[0]["facts"] != plain[case.path], case.name


def test_a_name_without_a_case_is_an_error() -> None:
    with pytest.raises(KeyError, match="decoder/none"):
        cases.find("decoder/none", REAL)


SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "nothing said": ({}, "fp32"),
    "mixed": ({"parameter_dtype": "float32", "compute_dtype": "bfloat16"}, "autocast-bf16"),
    "mixed in float16": ({"compute_dtype": "float16"}, "autocast-fp16"),
    "bf16 throughout": ({"parameter_dtype": "bfloat16", "compute_dtype": "bfloat16"}, "bf16"),
    "autocast over bf16 weights": (
        {"parameter_dtype": "bfloat16", "compute_dtype": "bfloat16", "autocast": True},
        "autocast-bf16",
    ),
}


@pytest.mark.parametrize(("facts", "precision"), SETTINGS.values(), ids=SETTINGS)
def test_precision_is_told_from_facts(facts: dict[str, Any], precision: str) -> None:
    assert settings_of(facts)["precision"] == precision


def test_nothing_here_knows_where_it_runs() -> None:
    """A benchmark that others can repeat: no path of a machine, and no name of a service that lends one."""
    folder = cases.ROOT / "benchmarks"
    for path in [*folder.rglob("*.py"), *folder.rglob("*.md")]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(?<![\w.])/(home|root|work|tmp|mnt|workspace)/", text), path
