"""A run that differs from an earlier one in sizes alone is not recorded: its step is the one that would be recorded."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memlint import models, work
from memlint.check import check_paths
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.estimates import Estimates, estimate_spec
from memlint.facts.spec import Fact, Name, TrainingSpec, UnknownModel, named
from memlint.meta.fold import Folded, fold
from memlint.meta.tape import Tape
from memlint.models import Recording, depth, step
from memlint.models.templates import Kind, Templates
from memlint.settings import Settings

EXAMPLES = Path(__file__).parents[2] / "examples"
CONFIGS = [
    "language_models/sft_trl.yaml",
    "language_models/dpo_trl.yaml",
    "language_models/grpo_trl.yaml",
    "language_models/lora_axolotl.yml",
    "language_models/full_llamafactory.yaml",
    "language_models/torchtune_llama3_1b.yaml",
    "language_models/torchtitan_llama3_8b.toml",
    "language_models/run_clm_ddp.sh",
    "language_models/train_fsdp.sh",
    "uni3d_dp/uni3d+dp.yaml",
    "video_llm/config.yaml",
    "stdiff/kitti_range_train_config.yaml",
]
SIZES: list[Name] = [
    named(name)
    for name in (
        "micro_batch_size",
        "sequence_length",
        "gradient_accumulation_steps",
        "evaluation_batch_size",
        "lora.r",
        "device_count",
        "frames",
        "groups",
        "group_size",
    )
]
LORA = EXAMPLES / "language_models/lora_axolotl.yml"


@cache
def run_of(name: str) -> TrainingSpec:
    return registry.specs(load(str(EXAMPLES / name)), ())[0]


@cache
def templates_of(name: str) -> Templates:
    """One for all examples of a config, as in an invocation: so that most of them are served."""
    return Templates()


def content(made: Any) -> Any:
    """A recording with all that is on its tapes, to be compared."""
    if isinstance(made, Tape):
        return {name: getattr(made, name) for name in Tape.__slots__}
    if isinstance(made, Folded):  # whose loops may begin at other layers
        whole = {name: getattr(made.unfold(), name) for name in Tape.__slots__ if name not in ("labels", "paid")}
        return {**whole, "whose": [(label.component, label.name) for label in made.unfold().labels]}
    return {name: content(part) for name, part in made._asdict().items()} if isinstance(made, Recording) else made


def recorded(spec: TrainingSpec, templates: Templates | None) -> tuple[Any, Any, Any]:
    """(the recording, what autograd saves, what it asked about libraries); the message of a run without a model."""
    if templates is not None:
        templates.begin()
    try:
        made = content(models.record(spec, folded=True, templates=templates))
        return made, models.saved_bytes(spec, templates), spec.asked
    except UnknownModel as error:
        return str(error), None, spec.asked


@settings(max_examples=15)
@given(st.data())
@pytest.mark.parametrize("name", CONFIGS)
def test_another_size_gives_the_step_that_would_be_recorded(name: str, data: st.DataObject) -> None:
    spec = run_of(name)
    sizes = [size for size in SIZES if type(spec.get(size)) is int]
    chosen = data.draw(st.lists(st.sampled_from(sizes), min_size=1, max_size=3, unique=True), label="sizes")
    factors = st.sampled_from([(2, 0), (1, 1), (1, 8), (3, 0), (1, -1), (4, 0)])
    changes: dict[Name, Any] = {}
    for size in chosen:
        times, more = data.draw(factors, label=size)
        value: Any = spec[size]
        changes[size] = max(1, value * times + more)
    served = recorded(spec.with_facts(changes), templates_of(name))
    assert served == recorded(spec.with_facts(changes), None)
    assert type(served[1]) in (int, type(None))


class Counted:
    """How many steps were recorded, and how many of them with their sizes followed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps = self.followed = 0
        record_step, follow = step.record_step, Templates._followed

        def count_step(*args: Any, **options: Any) -> Recording:
            self.steps += 1
            return record_step(*args, **options)

        def count_followed(*args: Any) -> Any:
            self.followed += 1
            return follow(*args)

        monkeypatch.setattr(step, "record_step", count_step)
        monkeypatch.setattr(Templates, "_followed", count_followed)


def lora(changes: Mapping[Name, Any]) -> TrainingSpec:
    return registry.specs(load(str(LORA)), ())[0].with_facts(changes)


def step_of(spec: TrainingSpec, templates: Templates) -> Recording:
    """Of another config."""
    templates.begin()
    return models.record(spec, folded=True, templates=templates)


def test_many_sizes_take_two_recordings_of_each_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where the loops are is looked for once, besides the first time."""
    counted, templates, looked = Counted(monkeypatch), Templates(), []

    def counted_fold(short: Tape, longer: Tape, more: int) -> Folded | None:
        looked.append(more)
        return fold(short, longer, more)

    monkeypatch.setattr(depth, "fold", counted_fold)
    for batch in (2, 3, 4, 8):
        for rank in (128, 129, 160, 256):
            for length in (512, 2048, 4000):
                step_of(lora({"micro_batch_size": batch, "lora.r": rank, "sequence_length": length}), templates)
    assert (counted.steps, counted.followed, len(looked)) == (4, 1, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("checkpointing", "none", id="a word"),
        pytest.param("lora.dropout", 0.5, id="a fraction"),
        pytest.param("micro_batch_size", 1, id="a size that decides"),
    ],
)
def test_what_decides_how_a_step_goes_is_recorded_anew(name: Name, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    templates = Templates()
    for batch in (4, 6):
        step_of(lora({"micro_batch_size": batch}), templates)
    counted = Counted(monkeypatch)
    step_of(lora({"micro_batch_size": 8}), templates)
    assert counted.steps == 0
    step_of(lora({"micro_batch_size": 8, name: value}), templates)
    assert counted.steps > 0


@pytest.mark.parametrize(("configs", "follows"), [(1, False), (2, True)], ids=["one config", "two configs"])
def test_sizes_are_followed_where_a_second_config_has_such_a_run(
    configs: int, follows: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Following takes twice as long as recording, which few what-ifs of one config are worth."""
    for number in range(configs):
        (tmp_path / f"{number}.yml").write_text(LORA.read_text().replace("lora_r: 16", f"lora_r: {128 + number}"))
    counted = Counted(monkeypatch)
    report = check_paths([str(tmp_path)], Settings())
    assert len(report.runs) == configs
    assert counted.steps > 0
    assert (counted.followed > 0) is follows


def test_a_fact_that_becomes_whole_or_is_gone_makes_another_kind() -> None:
    spec = lora({"micro_batch_size": 4})
    kind = Kind(spec, {"micro_batch_size", "lora.r", "ema"}, config=1)
    assert kind.holds(lora({"micro_batch_size": 5, "lora.r": 7}))
    assert not kind.holds(lora({"micro_batch_size": 4.0}))
    assert not kind.holds(lora({"micro_batch_size": True}))
    assert not kind.holds(lora({"ema": True}))
    gone = lora({})
    del gone.facts["lora.r"]
    assert not kind.holds(gone)


def test_a_release_that_is_stated_and_one_that_is_assumed_are_not_alike() -> None:
    """Only of the latter its behaviour is asked about, which widens the interval."""
    spec = lora({})
    for origin, holds in (("assumed", True), ("written", False)):
        spec.facts["framework_version"] = Fact("framework_version", "2.8", "assumed")
        kind = Kind(spec, {"framework_version"}, config=1)
        spec.facts["framework_version"] = Fact("framework_version", "2.8", origin)
        assert kind.holds(spec) is holds


def test_who_watches_a_run_hears_what_its_recording_would_ask_for() -> None:
    templates, heard = Templates(), []
    for batch in (4, 6, 8):
        asked: set[str] = set()
        step_of(lora({"micro_batch_size": batch}).watched(asked), templates)
        heard.append(asked)
    assert heard[0] == heard[1] == heard[2] > {"micro_batch_size", "lora.r"}


def test_a_run_costs_the_same_steps_of_work_whichever_were_before_it() -> None:
    templates, used = Templates(), []
    for _ in range(3):
        with work.limited(work.FILE_STEPS) as meter:
            step_of(lora({"micro_batch_size": 4}), templates)
        used.append(meter.used)
    assert used[0] == used[1] == used[2] > 0


def test_an_estimate_with_templates_is_the_one_without_them() -> None:
    templates = Templates()
    for batch in (4, 6, 8):
        templates.begin()
        estimates = Estimates(lora({"micro_batch_size": batch}), templates=templates)
        changed = lora({"micro_batch_size": batch}).with_facts(sequence_length=512)
        assert estimates.newest(changed) == estimate_spec(changed)
        assert estimates.own() == Estimates(lora({"micro_batch_size": batch})).own()


def answers(function: Any, *batches: int) -> list[Any]:
    """What is recorded of as many configs, and how often the function ran."""
    templates, ran = Templates(), []

    def counted(spec: TrainingSpec) -> Any:
        ran.append(spec)
        return function(spec)

    found: list[Any] = []
    for batch in batches:
        templates.begin()
        found.append(templates.record("test", counted, lora({"micro_batch_size": batch})))
    return [*found, len(ran)]


def test_what_cannot_be_followed_is_recorded_as_it_is_from_then_on() -> None:
    def own(spec: TrainingSpec) -> int:
        if type(spec["micro_batch_size"]) is not int:
            raise TypeError
        return 2 * spec["micro_batch_size"]

    assert answers(own, 2, 3, 4, 5) == [4, 6, 8, 10, 5]
    assert answers(lambda spec: 2 * spec["micro_batch_size"], 2, 3, 4, 5) == [4, 6, 8, 10, 2]


def test_a_way_that_asks_for_more_is_not_served_to_others() -> None:
    def more(spec: TrainingSpec) -> int:
        batch = spec["micro_batch_size"]
        return batch if batch < 3 else batch * spec["sequence_length"]

    assert answers(more, 2, 3) == [2, 3 * 2048, 2]
    # The second way is served from the third config on, and the first one is recorded anew.
    assert answers(more, 2, 3, 4, 5, 2, 6) == [2, 3 * 2048, 4 * 2048, 5 * 2048, 2, 6 * 2048, 4]


@pytest.mark.parametrize("other", [{"optimizer": "sgd"}, {"sequence_length": 512}], ids=["a word", "a number"])
def test_what_a_way_asks_for_besides_is_the_same_in_all_that_it_serves(other: dict[str, Any]) -> None:
    def more(spec: TrainingSpec) -> Any:
        batch = spec["micro_batch_size"]
        if batch < 3:
            return batch
        return batch * spec["sequence_length"] if spec["optimizer"] != "sgd" else 7 * batch

    templates = Templates()
    for changes in (
        {"micro_batch_size": 2},
        *({"micro_batch_size": batch, **more_of} for batch in (3, 4, 5) for more_of in ({}, other)),
    ):
        templates.begin()
        spec = lora({}).with_facts(changes)
        assert templates.record("test", more, spec) == more(spec)


def test_sizes_that_decide_too_much_are_given_up() -> None:
    most = 8
    found = answers(lambda spec: len(range(spec["micro_batch_size"])), *range(1, most + 5))
    assert found == [*range(1, most + 5), most + 4]
    again = [1, 2, 3, 2, 3, 2, 3]
    assert answers(lambda spec: len(range(spec["micro_batch_size"])), *again) == [*again, 3]


def test_a_run_without_a_model_asks_the_same_about_its_libraries() -> None:
    def asking(spec: TrainingSpec) -> int:
        spec.does("torch.softmax_keeps_its_input")
        raise UnknownModel("no model")

    templates = Templates()
    kinds: list[Kind] = []
    templates._kinds["test"] = kinds
    for _ in range(2):
        templates.begin()
        spec = lora({"micro_batch_size": 2})
        kinds[:] = kinds or [Kind(spec, {"micro_batch_size", "framework_version"}, config=0)]
        spec.asked.clear()
        with pytest.raises(UnknownModel):
            templates.record("test", asking, spec)
        assert list(spec.asked) == ["torch.softmax_keeps_its_input"]
        assert kinds[0].templates == []
