"""Laws over all families that answer. Each says which figure it is about: what is live, or what is compared."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from memlint.estimates import allocated_bytes, estimate_spec
from memlint.facts.spec import TrainingSpec
from memlint.fixes.edits import apply_edits
from memlint.models import UnknownModel
from memlint.tape.estimate import Estimate
from tests.laws import runs
from tests.laws.runs import (
    FAMILIES,
    SIZES,
    TRAININGS,
    Family,
    Sizes,
    check_at,
    checked,
    folder_of,
    law,
    run_of,
    same_run,
    same_runs,
    specs,
)

FAMILY = st.sampled_from(FAMILIES)


# -- larger sizes never take less


def allocated(family: Family, sizes: Sizes) -> int:
    estimate = run_of(family.write(sizes)).estimate
    assert estimate is not None
    return estimate.allocated_bytes


GROWING = ("layers", "hidden", "vocabulary", "batch", "length", "accumulation")


@law
@given(family=FAMILY, sizes=SIZES, name=st.sampled_from(GROWING), times=st.integers(2, 3))
def test_what_is_live_never_falls_where_a_size_that_a_config_states_grows(
    family: Family, sizes: Sizes, name: str, times: int
) -> None:
    larger = sizes._replace(**{name: getattr(sizes, name) * times})
    assert allocated(family, larger) >= allocated(family, sizes)


# Facts that a what-if changes, of which more is more.
SIZED = (
    *("micro_batch_size", "sequence_length", "gradient_accumulation_steps", "evaluation_batch_size", "frames"),
    *("sample_size", "groups", "observation_steps", "predicted_frames"),
)


@st.composite
def changed_facts(draw: st.DrawFn) -> tuple[str, dict[str, int], dict[str, int]]:
    """A run, sizes of some of its facts, and the same with one of them larger."""
    name = draw(st.sampled_from(sorted(specs())))
    spec = specs()[name]
    sized = [fact for fact in SIZED if type(spec.get(fact)) is int]
    some = draw(st.lists(st.sampled_from(sized), min_size=1, max_size=3, unique=True))
    small = {fact: draw(st.integers(1, 2 * min(spec[fact], 16))) for fact in some}
    grown = draw(st.sampled_from(some))
    return name, small, {**small, grown: small[grown] * draw(st.integers(2, 4))}


def estimated(spec: TrainingSpec, changes: dict[str, int]) -> Estimate:
    try:
        return estimate_spec(spec.with_facts(**changes), detailed=False, templates=runs.templates())
    except UnknownModel as error:
        event(f"no model: {error}"[:80])
        assume(False)
        raise


@law
@given(change=changed_facts())
def test_what_is_live_and_what_is_compared_never_fall_where_a_what_if_grows(
    change: tuple[str, dict[str, int], dict[str, int]],
) -> None:
    name, small, large = change
    before, after = (estimated(specs()[name], changes) for changes in (small, large))
    assert after.allocated_bytes >= before.allocated_bytes
    assert after.comparable_bytes >= before.comparable_bytes
    assert after.saved_bytes >= before.saved_bytes or small.get("micro_batch_size") == large.get("micro_batch_size")


@law
@given(change=changed_facts())
def test_the_quick_figure_of_what_is_live_is_the_estimates(change: tuple[str, dict[str, int], dict[str, int]]) -> None:
    name, _, changes = change
    spec = specs()[name].with_facts(**changes)
    assert allocated_bytes(spec) == estimated(specs()[name], changes).allocated_bytes


# -- figures hang together


@law
@given(family=FAMILY, sizes=SIZES, gpu=st.sampled_from(["", "t4", "h100-80gb", "mi300x"]))
def test_components_and_parts_add_up_and_figures_lie_in_their_intervals(family: Family, sizes: Sizes, gpu: str) -> None:
    found = run_of(family.write(sizes), **({"gpu": gpu} if gpu else {})).estimate
    assert found is not None
    assert sum(component.size_bytes for component in found.components) == found.device_bytes
    for component in found.components:
        assert component.size_bytes > 0
        if component.parts:
            assert sum(part.size_bytes for part in component.parts) == component.size_bytes
    assert found.saved_bytes <= found.allocated_bytes <= found.reserved_bytes <= found.device_bytes
    for point, (low, high) in (
        (found.allocated_bytes, found.allocated_interval),
        (found.reserved_bytes, found.reserved_interval),
        (found.device_bytes, found.device_interval),
    ):
        assert low <= point <= high
    assert max(found.phases.values()) == found.allocated_bytes
    assert found.comparable_bytes == found.device_bytes - found.component_bytes("fragmentation")


# -- what does not matter does not matter


def shuffled(text: str, seed: int) -> str:
    """The same entries of a YAML mapping in another order."""
    lines = text.splitlines()
    random.Random(seed).shuffle(lines)
    return "\n".join(lines) + "\n"


COMMENTS = ("# why", "#", "# batch_size: 99", "# \u00e9 memlint", "")


def commented(text: str, seed: int, comment: str) -> str:
    """Comments between the lines and behind them."""
    chance = random.Random(seed)
    lines = []
    for line in text.splitlines():
        if chance.random() < 0.3 and not line.startswith(" "):
            lines.append(comment)
        lines.append(f"{line}  {comment}" if comment and chance.random() < 0.3 and not line.endswith("\\") else line)
    return "\n".join(lines) + "\n"


IN_YAML = tuple(family for family in FAMILIES if next(iter(family.write(Sizes()))).endswith(("yaml", "yml")))
NOT_JSON = tuple(family for family in FAMILIES if not next(iter(family.write(Sizes()))).endswith("json"))


@law
@given(family=st.sampled_from(IN_YAML), sizes=TRAININGS, seed=st.integers(0, 2**16))
def test_the_order_of_keys_does_not_matter(family: Family, sizes: Sizes, seed: int) -> None:
    files = family.write(sizes)
    name = next(iter(files))
    same_runs(files, {**files, name: shuffled(files[name], seed)})


@law
@given(family=FAMILY, sizes=TRAININGS, seed=st.integers(0, 2**16))
def test_the_order_of_keys_of_a_models_config_does_not_matter(family: Family, sizes: Sizes, seed: int) -> None:
    files = family.write(sizes)
    if "model/config.json" not in files:
        return
    entries = list(json.loads(files["model/config.json"]).items())
    random.Random(seed).shuffle(entries)
    same_runs(files, {**files, "model/config.json": json.dumps(dict(entries))})


@law
@given(family=st.sampled_from(NOT_JSON), sizes=TRAININGS, seed=st.integers(0, 2**16), comment=st.sampled_from(COMMENTS))
def test_comments_and_blank_lines_do_not_matter(family: Family, sizes: Sizes, seed: int, comment: str) -> None:
    files = family.write(sizes)
    name = next(iter(files))
    same_runs(files, {**files, name: commented(files[name], seed, comment)})


FORMATS: dict[str, tuple[Any, dict[str, str]]] = {
    # family -> its entries, and how a command of it begins
    "trl": (runs.trl, {"sh": "trl sft"}),
    "hf-trainer": (runs.transformers, {"sh": "python train.py"}),
    "llamafactory": (runs.llamafactory, {"sh": "llamafactory-cli train"}),
}


@law
@given(family=st.sampled_from(sorted(FORMATS)), sizes=TRAININGS)
def test_yaml_json_and_the_command_line_say_the_same(family: str, sizes: Sizes) -> None:
    make, programs = FORMATS[family]
    entries, model = make(sizes), {"model/config.json": runs.model_config(sizes)}
    written = {
        "args.yaml": runs.as_yaml(entries),
        "args.json": json.dumps(entries),
        "train.sh": f"{programs['sh']} {runs.as_options(entries)}\n",
    }
    same_runs(*[{name: text, **model} for name, text in written.items()])


@law
@given(
    sizes=TRAININGS,
    family=st.sampled_from(IN_YAML),
    quote=st.sampled_from(['"{}": {}', "'{}': {}", "{}:    {}", "? {}\n: {}"]),
)
def test_how_a_key_is_written_does_not_matter(sizes: Sizes, family: Family, quote: str) -> None:
    files = family.write(sizes)
    name = next(iter(files))
    entries = [line.partition(": ") for line in files[name].splitlines()]
    text = "".join(quote.format(key, value) + "\n" for key, _, value in entries)
    same_runs(files, {**files, name: text})


# -- an override is the edit that it stands for


OVERRIDES: dict[str, dict[str, tuple[Any, ...]]] = {
    "trl": {
        "per_device_train_batch_size": (1, 3, 8),
        "gradient_accumulation_steps": (1, 2, 5),
        "max_length": (16, 40, 128),
        "gradient_checkpointing": (True, False),
        "bf16": (True, False),
        "optim": ("adafactor", "sgd", "adamw_torch_fused"),
        "packing": (True, False),
    },
    "axolotl": {
        "micro_batch_size": (1, 3, 8),
        "gradient_accumulation_steps": (1, 2, 5),
        "sequence_len": (16, 40, 128),
        "gradient_checkpointing": (True, False),
        "optimizer": ("adafactor", "sgd", "adamw_torch_fused"),
        "bf16": (True, False),
    },
    "llamafactory": {
        "per_device_train_batch_size": (1, 3, 8),
        "cutoff_len": (16, 40, 128),
        "finetuning_type": ("lora", "full", "freeze"),
        "disable_gradient_checkpointing": (True, False),
        "pure_bf16": (True, False),
        "optim": ("adafactor", "adamw_torch"),
    },
    "gpt-neox": {"train_micro_batch_size_per_gpu": (1, 3, 8), "num_layers": (1, 3, 4), "seq_length": (16, 40, 128)},
}


@st.composite
def overridden(draw: st.DrawFn) -> tuple[Family, dict[str, Any]]:
    family = draw(st.sampled_from([family for family in FAMILIES if family.name in OVERRIDES]))
    known = OVERRIDES[family.name]
    names = draw(st.lists(st.sampled_from(sorted(known)), min_size=1, max_size=3, unique=True))
    return family, {name: draw(st.sampled_from(known[name])) for name in names}


def spelled(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@law
@given(change=overridden(), sizes=TRAININGS)
def test_an_override_is_the_edit_that_it_stands_for(change: tuple[Family, dict[str, Any]], sizes: Sizes) -> None:
    family, values = change
    files = family.write(sizes)
    name = next(iter(files))
    entries = dict(line.split(": ", 1) for line in files[name].splitlines())
    edited = runs.as_yaml({**{key: json.loads(text) for key, text in entries.items()}, **values})
    options = {"override": [f"{key}={spelled(value)}" for key, value in values.items()]}
    known = runs.equal_runs()
    one, other = (checked(text, known, **more) for text, more in (({**files, name: edited}, {}), (files, options)))
    assert sorted(finding.code for finding in one.findings) == sorted(finding.code for finding in other.findings)
    [first], [second] = one.runs, other.runs
    if first.estimate is None:
        assert second.estimate is None
    else:
        same_run(first, second)


# -- edits keep what they promise


@law
@given(family=FAMILY, sizes=TRAININGS, share=st.sampled_from([0, 0.3, 0.6, 0.9]), at=st.integers(0, 9))
def test_an_edit_that_is_applied_gives_the_peak_that_it_promised(
    family: Family, sizes: Sizes, share: float, at: int
) -> None:
    files = family.write(sizes._replace(length=64 * sizes.length))
    with folder_of(files) as folder:
        path = folder / next(iter(files))
        known = runs.equal_runs()
        options: dict[str, Any] = {}
        if share:
            plain = check_at(path, known, select=["MEM003"]).runs[0].estimate
            assert plain is not None
            options = {"budget": f"{int(share * plain.device_bytes) >> 20}MiB"}
        [run] = check_at(path, known, **options).runs
        fixes = [fix for finding in run.findings for fix in finding.fixes if fix.edits and fix.device_bytes_after]
        if not fixes:
            event("no fix")
            return
        fix = fixes[at % len(fixes)]
        event(fix.title.split(" ")[0])
        for name in {edit.span.path for edit in fix.edits}:
            text = (folder / name).read_text(encoding="utf-8")
            edits = [edit for edit in fix.edits if edit.span.path == name]
            (folder / name).write_text(apply_edits(text, edits), encoding="utf-8")
        [after] = check_at(path, select=["MEM003"]).runs
        assert after.estimate is not None
        assert after.estimate.device_bytes == fix.device_bytes_after, fix.title


# -- shards


def deepspeed(sizes: Sizes, stage: int) -> runs.Files:
    config = {
        "zero_optimization": {"stage": stage},
        "bf16": {"enabled": True},
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
    }
    entries = {**runs.transformers(sizes), "bf16": True, "deepspeed": "ds.json"}
    return {
        "args.json": json.dumps(entries),
        "ds.json": json.dumps(config),
        "model/config.json": runs.model_config(sizes),
    }


def states(files: runs.Files, devices: int) -> dict[str, int]:
    """Bytes of one rank that stay from step to step."""
    found = run_of(files, gpu=f"h100-80gb x{devices}").estimate
    assert found is not None
    return {name: found.component_bytes(name) for name in ("parameters", "optimizer")}


@law
@given(sizes=TRAININGS, stage=st.integers(0, 3), devices=st.sampled_from([2, 4, 8]), times=st.sampled_from([2, 4]))
def test_more_devices_never_raise_a_ranks_states(sizes: Sizes, stage: int, devices: int, times: int) -> None:
    few, many = (states(deepspeed(sizes, stage), number) for number in (devices, devices * times))
    for name, size in many.items():
        assert size <= few[name]


@law
@given(sizes=TRAININGS, stage=st.integers(1, 2), devices=st.sampled_from([2, 4, 8]))
def test_a_higher_stage_never_raises_a_ranks_states(sizes: Sizes, stage: int, devices: int) -> None:
    less, more = (states(deepspeed(sizes, each), devices) for each in (stage, stage + 1))
    assert more["optimizer"] <= less["optimizer"]


# -- the laws have something to hold of


def test_every_family_answers_in_every_size() -> None:
    for family in FAMILIES:
        assert run_of(family.write(Sizes())).family == family.name
    assert len(specs()) == len(FAMILIES) + len(runs.WHOLE)


@pytest.mark.parametrize("name", sorted(specs()))
def test_every_run_has_sizes_to_change(name: str) -> None:
    assert [fact for fact in SIZED if type(specs()[name].get(fact)) is int]
