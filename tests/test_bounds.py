"""What spares a rule a what-if: figures that are as good, and bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint.dialects import registry
from memlint.dialects.spelling import spell_each
from memlint.documents.load import load
from memlint.estimates import Estimates, allocated_bytes, estimate_spec, first_pass_bytes, packed_bytes
from memlint.facts.spec import Name, TrainingSpec
from memlint.fixes import levers
from memlint.models import record
from memlint.plugin import Run
from memlint.tape import summary
from memlint.tape.allocator import simulate
from memlint.tape.estimate import Estimate

EXAMPLES = Path(__file__).parent.parent / "examples"
CONFIGS = ("uni3d_dp/uni3d+dp.yaml", "uni3d_dp/uni3d+dp_after.yaml", "language_models/lora_axolotl.yml")


def spec_of(name: str) -> TrainingSpec:
    return registry.specs(load(str(EXAMPLES / name)), ())[0]


def run_of(spec: TrainingSpec, budget_bytes: int) -> Run:
    return Run(
        spec,
        estimate_spec(spec),
        budget_bytes,
        lambda changed: estimate_spec(changed),
        spell_each,
        allocated=allocated_bytes,
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_allocated_needs_no_allocator(name: str) -> None:
    spec = spec_of(name)
    run = run_of(spec, 1 << 40)
    changes = {"micro_batch_size": 1}
    assert run.allocated_if(**changes) == estimate_spec(spec.with_facts(**changes)).allocated_bytes
    known = run.what_if(**changes)
    assert run.allocated_if(**changes) == known.allocated_bytes


CHANGES: list[dict[Name, Any]] = [
    {"micro_batch_size": 1},
    {"micro_batch_size": 64},
    {"compute_dtype": "bfloat16"},
    {"optimizer": "adamw", "optimizer_library": "torch", "optimizer_paged": False},
    {"optimizer_implementation": "fused"},
    {"ema": False},
]


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: "-".join(map(str, changes.items())))
@pytest.mark.parametrize("name", CONFIGS)
def test_a_change_saves_what_its_estimate_says_and_no_more_than_its_bound(name: str, changes: dict[Name, Any]) -> None:
    run = run_of(spec_of(name), 1 << 40)
    assert run.estimate is not None
    after = run.what_if(changes).device_bytes
    assert run.least_if(changes) <= after
    saved = run.estimate.device_bytes - after
    for share in (1 / 100, 1 / 20, 1 / 3):
        expected = saved if saved >= share * run.estimate.device_bytes else 0
        assert run_of(spec_of(name), 1 << 40).saved_if(changes, share) == expected


def test_what_a_change_cannot_save_is_not_simulated() -> None:
    spec, asked = spec_of("uni3d_dp/uni3d+dp.yaml"), []

    def estimator(changed: TrainingSpec) -> Estimate:
        asked.append(changed)
        return estimate_spec(changed)

    run = Run(spec, estimate_spec(spec), None, estimator, spell_each, allocated=allocated_bytes)
    assert run.saved_if({"micro_batch_size": 4 * spec["micro_batch_size"]}, 1 / 20) == 0
    assert asked == []
    assert run.saved_if({"micro_batch_size": 1}, 1 / 20) > 0
    assert len(asked) == 1


@pytest.mark.parametrize("name", CONFIGS)
def test_no_setting_of_the_allocator_packs_more(name: str) -> None:
    spec = spec_of(name)
    estimate = estimate_spec(spec)
    least = packed_bytes(record(spec), estimate, "")
    assert estimate.allocated_bytes <= least <= estimate.reserved_bytes
    for conf in ("expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:8"):
        assert least <= estimate_spec(spec.with_facts(allocator_conf=conf)).reserved_bytes


def test_one_micro_batch_takes_what_the_first_of_two_takes() -> None:
    spec = spec_of("uni3d_dp/uni3d+dp.yaml").with_facts(gradient_accumulation_steps=2)
    first = first_pass_bytes(record(spec))
    assert 0 < first <= allocated_bytes(spec.with_facts(gradient_accumulation_steps=1))
    assert first_pass_bytes(record(spec.with_facts(gradient_accumulation_steps=1))) == 0


@pytest.mark.parametrize("budget_bytes", [1 << 30, 3 << 30, 6 << 30], ids=["1 GiB", "3 GiB", "6 GiB"])
def test_a_plan_that_is_given_up_early_would_not_have_been_found(
    budget_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of("uni3d_dp/uni3d+dp.yaml")
    found = levers.plan(run_of(spec, budget_bytes))
    monkeypatch.setattr(levers, "_hopeless", lambda run: False)
    assert levers.plan(run_of(spec, budget_bytes)) == found


@pytest.mark.parametrize("budget_bytes", [2 << 30, 4 << 30, 6 << 30, 10 << 30], ids=lambda size: f"{size >> 30} GiB")
def test_a_batch_that_fits_is_found_without_simulating_those_that_cannot(
    budget_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, asked = spec_of("uni3d_dp/uni3d+dp.yaml").with_facts(micro_batch_size=64), []

    def estimator(changed: TrainingSpec) -> Estimate:
        asked.append(changed["micro_batch_size"])
        return estimate_spec(changed)

    def shrunk() -> dict[Name, Any]:
        asked.clear()
        return levers._shrink(
            Run(spec, estimate_spec(spec), budget_bytes, estimator, spell_each, allocated=allocated_bytes), {}
        )

    found, few = shrunk(), list(asked)
    monkeypatch.setattr(levers, "_first_that_fits", lambda run, every: {})
    assert shrunk() == found
    fits = estimate_spec(spec.with_facts(found)).device_bytes <= budget_bytes
    assert len(few) < len(asked) if fits and found["micro_batch_size"] < 32 else len(few) == len(asked)


EXPANDABLE: dict[Name, Any] = {"allocator_conf": "expandable_segments:True"}


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("name", CONFIGS)
def test_settings_of_the_allocator_save_what_the_what_if_says_or_too_little(name: str, share: float) -> None:
    spec = spec_of(name)
    estimates = Estimates(spec)
    run = Run(spec, estimates.own(), None, estimates.newest, spell_each, within=estimates.newest_within)
    assert run.estimate is not None
    saved = run.saved_if(EXPANDABLE, share)
    plainly = run.estimate.device_bytes - estimate_spec(spec.with_facts(EXPANDABLE)).device_bytes
    assert saved == (plainly if plainly >= share * run.estimate.device_bytes else 0)


def test_what_saves_too_little_is_not_estimated_to_its_end_and_what_saves_enough_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = spec_of("language_models/lora_axolotl.yml")
    estimates = Estimates(spec)
    own = estimates.own()
    simulated: list[int | None] = []

    def counted(*arguments: Any, **options: Any) -> Any:
        simulated.append(options.get("most_bytes"))
        return simulate(*arguments, **options)

    monkeypatch.setattr(summary, "simulate", counted)
    assert estimates.newest_within(spec.with_facts(EXPANDABLE), own.reserved_bytes // 2) is None
    assert simulated == [own.reserved_bytes // 2]
    found = estimates.newest_within(spec.with_facts(EXPANDABLE), own.reserved_bytes)
    assert found == estimates.newest(spec.with_facts(EXPANDABLE))
    assert simulated[1:] == [own.reserved_bytes], "the totals are those of the run that was simulated"
