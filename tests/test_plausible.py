"""Which other releases may run a config that pins none: how far back, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint import estimates, plausible, releases, work
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.facts.spec import TrainingSpec
from memlint.tape.estimate import Estimate

SFT = """\
model_name_or_path: {model}
dataset_name: x
output_dir: out
{length}: 512
per_device_train_batch_size: 2
"""
RECENT, QWEN = "Qwen/Qwen3-0.6B", "Qwen/Qwen2.5-0.5B"


def read(tmp_path: Path, pins: str = "", model: str = QWEN, keys: str = "", length: str = "max_length") -> TrainingSpec:
    (tmp_path / ".git").mkdir(exist_ok=True)
    config = tmp_path / "sft.yaml"
    config.write_text(SFT.format(model=model, length=length) + keys)
    (tmp_path / "requirements.txt").write_text(pins)
    [spec] = registry.specs(load(str(config)))
    return spec


def own(spec: TrainingSpec) -> Estimate:
    return estimates.EqualRuns().estimates(spec, "", ()).own()


def days(spec: TrainingSpec) -> list[str]:
    own(spec)  # which asks what models ask
    return [candidate.day for candidate in plausible._candidates(spec)]


@pytest.mark.parametrize(
    ("pins", "model", "keys", "first"),
    [
        pytest.param("", RECENT, "", "2025-03-28", id="the release before the first that knows the model"),
        pytest.param("", QWEN, "packing_strategy: bfd\n", "2025-06-15", id="the one before the first with a key"),
        pytest.param("transformers==4.57.6\n", QWEN, "", "2025-07-25", id="a release that is pinned"),
        pytest.param("trl>=0.19.1\n", QWEN, "", "2025-06-20", id="one that the project asks for at least"),
    ],
)
def test_no_candidate_is_older_than_what_the_run_states(
    tmp_path: Path, pins: str, model: str, keys: str, first: str
) -> None:
    spec = read(tmp_path, pins, model, keys)
    assert plausible.earliest(spec) == first
    assert min(days(spec)) > first
    assert plausible.earliest(read(tmp_path)) < first


def test_nothing_that_no_file_pins_is_older_than_some_years(tmp_path: Path) -> None:
    spec = read(tmp_path, model="openai-community/gpt2")
    newest = max(day for known in releases.DAYS.values() for day in known.values())
    assert int(newest[:4]) - int(plausible.earliest(spec)[:4]) == plausible.UNPINNED_YEARS
    assert min(days(spec)) > plausible.earliest(spec)


def test_no_candidate_is_younger_than_a_key_that_was_taken_away(tmp_path: Path) -> None:
    spec = read(tmp_path, length="max_seq_length")
    assert spec["release.trl"] == "0.19"
    own(spec)
    found = [releases.series(candidate.spec["release.trl"]) for candidate in plausible._candidates(spec)]
    assert found
    assert all(release <= (0, 19) for release in found if release is not None)


def test_the_assumed_release_is_named_with_what_older_ones_take(tmp_path: Path) -> None:
    found = own(read(tmp_path))
    [reason] = [reason for library, release, reason in found.assumptions if (library, release) == ("TRL", "1.16")]
    assert reason.startswith("no file pins it: ")
    assert "1.7: SFTTrainer takes the loss in chunks" in reason


def test_each_library_whose_behaviour_counts_is_named(tmp_path: Path) -> None:
    found = own(read(tmp_path, "torch==2.9.0\n", keys="use_peft: true\ndtype: bfloat16\n"))
    named = [release for what, release, _ in found.assumptions if what == "releases"]
    assert named == ["PEFT 0.21, transformers 5.23"]


def test_nothing_is_said_where_all_is_pinned(tmp_path: Path) -> None:
    found = own(read(tmp_path, "torch==2.9.0\ntransformers==5.23.0\ntrl==1.16.0\n"))
    assert not any("no file pins it" in reason for _, _, reason in found.assumptions)


def test_only_the_interval_is_wider(tmp_path: Path) -> None:
    spec = read(tmp_path)
    alone, spanning = estimates.estimate_spec(spec), own(spec)
    assert spanning.device_interval.high_bytes > alone.device_interval.high_bytes
    assert spanning._replace(
        allocated_interval=alone.allocated_interval,
        reserved_interval=alone.reserved_interval,
        device_interval=alone.device_interval,
        assumptions=alone.assumptions,
    ) == alone._replace(modules=spanning.modules)


def test_candidates_that_lie_between_others_are_not_recorded(tmp_path: Path) -> None:
    spec = read(tmp_path)
    own(spec)
    every, recorded = list(plausible._candidates(spec)), plausible.candidates(spec)
    assert len(every) > len(recorded) == 1
    assert recorded[0] == every[-1]._replace(spec=recorded[0].spec)


def test_where_work_runs_out_the_estimate_stays_and_says_so(tmp_path: Path) -> None:
    spec = read(tmp_path)
    with work.limited(1 << 40) as meter:
        alone = estimates.estimate_spec(spec)
    with work.limited(meter.used + 1000):
        found = own(read(tmp_path))
    assert found.device_interval == alone.device_interval
    assert ("releases", "newest", "what older ones take would be more work than is left") in found.assumptions


def test_the_interval_holds_the_kernel_that_an_activation_may_have(tmp_path: Path) -> None:
    """Apertus' xIELU: in plain torch it keeps several tensors of each layer, in a kernel its input at least."""
    (tmp_path / "run.yaml").write_text(
        "base_model: swiss-ai/Apertus-8B-2509\nadapter: qlora\nload_in_4bit: true\nlora_r: 8\nlora_alpha: 8\n"
        "lora_target_linear: true\ndatasets: [{path: x, type: alpaca}]\nsequence_len: 512\nmicro_batch_size: 1\n"
        "bf16: true\n"
    )
    [spec] = registry.specs(load(str(tmp_path / "run.yaml")))
    plain = own(spec)
    kernel = own(spec.with_facts({"fused_kernels": ["xielu"]}))
    assert kernel.device_bytes < plain.device_bytes
    assert plain.device_interval.low_bytes <= kernel.device_bytes


def test_the_interval_holds_the_run_without_the_images_that_are_assumed(tmp_path: Path) -> None:
    seen = read(tmp_path, "torch==2.13.0\ntransformers==5.23.0\ntrl==1.16.0\n", "Qwen/Qwen3-VL-2B-Instruct")
    low, high = own(seen).allocated_interval
    blind = own(seen.with_facts({"images_per_sample": 0}))
    assert low <= blind.allocated_bytes < own(seen).allocated_bytes <= high
