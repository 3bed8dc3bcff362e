"""The plan: the least intrusive levers that together fit the budget, nothing that they do not need, and its words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from memlint.documents.node import Edit, Span
from memlint.facts.spec import NOTHING, Fact, Name, TrainingSpec
from memlint.fixes import levers
from memlint.fixes.levers import Lever
from memlint.plugin import DISPLAY, SAFE, UNSAFE, Run
from tests.fixes.made_up import ANY, PATH, estimate_of, run_of, spec_of

STEPS = "gradient_accumulation_steps"
VIEWS = "parallelism.gradient_as_bucket_view"
STAGE = "parallelism.zero_stage"
REDUCE = "parallelism.reduce_bucket_elements"
PRECOMPUTED = "hyperparameters.precompute_ref_log_probs"

# A run that every lever applies to: what each of them changes, and what it is called.
EVERY = f"""\
optimizer: adamw
{VIEWS}: false
parallelism.strategy: ddp
{REDUCE}: 60000000
attention: eager
loss: full
checkpointing: none
reference_model: copy
{PRECOMPUTED}: false
compute_dtype: float32
parameter_dtype: float32
micro_batch_size: 2
ema: true
encoder_frozen: false
"""
SWITCH = {"optimizer_implementation": "foreach"}  # not written: no other optimizer would take it
RUNGS: list[tuple[dict[str, Any], str]] = [
    ({"optimizer_implementation": "fused"}, SAFE),
    ({VIEWS: True}, SAFE),
    ({REDUCE: 50_000_000}, SAFE),
    ({"attention": "sdpa"}, UNSAFE),
    ({"loss": "fused"}, UNSAFE),
    ({"checkpointing": "full"}, UNSAFE),
    ({PRECOMPUTED: True}, UNSAFE),
    ({"compute_dtype": "bfloat16"}, UNSAFE),
    ({"optimizer": "adamw_8bit"}, UNSAFE),
    ({"parameter_dtype": "bfloat16"}, UNSAFE),
    ({STAGE: 2}, UNSAFE),
    ({"micro_batch_size": 1}, DISPLAY),
    ({"ema": False}, DISPLAY),
    ({"encoder_frozen": True}, DISPLAY),
]
KEYS = [name for changes, _ in RUNGS for name in changes]


def each_takes_off(share: int, peak: int = 1000) -> Callable[[TrainingSpec], dict[str, int]]:
    """A peak that becomes smaller by the same share with every rung. With another optimizer torch's switch is lost."""

    def sizes(spec: TrainingSpec) -> dict[str, int]:
        pulled = sum(all(spec.get(name) == value for name, value in changes.items()) for changes, _ in RUNGS)
        return {"activations": peak - share * (pulled + (spec["optimizer"] == "adamw_8bit"))}

    return sizes


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The changes of every fix that is made."""
    made: list[dict[str, Any]] = []
    original = Run.fix

    def fix(self: Run, title: str, safety: str, changes: Mapping[Name, Any] = NOTHING, /, **more: Any) -> Any:
        made.append({**changes, **more})
        return original(self, title, safety, changes, **more)

    monkeypatch.setattr(Run, "fix", fix)
    return made


@pytest.mark.parametrize("number", range(1, len(RUNGS) + 1))
def test_rungs_are_climbed_from_the_least_to_the_most_intrusive(number: int, tried: list[dict[str, Any]]) -> None:
    run = run_of(EVERY, each_takes_off(20), stated=SWITCH, keys=KEYS, budget=1000 - 20 * number)
    plan = levers.plan(run)
    assert plan is not None
    wanted = {name: value for changes, _ in RUNGS[:number] for name, value in changes.items()}
    if "optimizer" in wanted:
        del wanted["optimizer_implementation"]
    if PRECOMPUTED in wanted:
        wanted["reference_model"] = "precomputed"
    if STAGE in wanted:
        wanted["parallelism.strategy"] = "zero"
    assert tried == [wanted]
    assert plan.safety == RUNGS[number - 1][1]
    assert plan.fits is True


def test_no_plan_where_the_last_rung_is_a_byte_short() -> None:
    assert (
        levers.plan(run_of(EVERY, each_takes_off(20), stated=SWITCH, keys=KEYS, budget=1000 - 20 * len(RUNGS) - 1))
        is None
    )


def test_a_plan_needs_a_budget_and_an_estimate() -> None:
    assert levers.plan(run_of("attention: eager\n", 100, keys=["attention"])) is None
    assert levers.plan(run_of("attention: eager\n", 100, keys=["attention"], budget=50, estimated=False)) is None


def saving(**savings: tuple[Any, int]) -> Callable[[TrainingSpec], dict[str, int]]:
    """A peak of 1000 that is so much less where a fact has a value."""

    def sizes(spec: TrainingSpec) -> dict[str, int]:
        return {"activations": 1000 - sum(size for name, (value, size) in savings.items() if spec.get(name) == value)}

    return sizes


def test_a_lever_that_lowers_nothing_is_left_out(tried: list[dict[str, Any]]) -> None:
    text = "attention: eager\ncheckpointing: none\n"
    run = run_of(text, saving(checkpointing=("full", 500)), keys=["attention", "checkpointing"], budget=600)
    assert levers.plan(run) is not None
    assert tried == [{"checkpointing": "full"}]


def test_a_lever_that_raises_the_peak_is_left_out(tried: list[dict[str, Any]]) -> None:
    text = "attention: eager\ncheckpointing: none\n"
    run = run_of(
        text,
        saving(attention=("sdpa", -100), checkpointing=("full", 400)),
        keys=["attention", "checkpointing"],
        budget=600,
    )
    assert levers.plan(run) is not None
    assert tried == [{"checkpointing": "full"}]


TWO = "attention: eager\ncheckpointing: none\n"


@pytest.mark.parametrize(
    ("little", "budget", "changes"),
    [
        pytest.param(9, 500, {"checkpointing": "full"}, id="less than a hundredth is left out where the rest fits"),
        pytest.param(9, 499, {"attention": "sdpa", "checkpointing": "full"}, id="less than a hundredth, but needed"),
        pytest.param(10, 500, {"checkpointing": "full"}, id="however much it saves, it is not needed"),
    ],
)
def test_what_saves_next_to_nothing(
    little: int, budget: int, changes: dict[str, Any], tried: list[dict[str, Any]]
) -> None:
    sizes = saving(attention=("sdpa", little), checkpointing=("full", 500))
    assert levers.plan(run_of(TWO, sizes, keys=["attention", "checkpointing"], budget=budget)) is not None
    assert tried == [changes]


def batch_and_copy(per_sample: int, copy: int) -> Callable[[TrainingSpec], dict[str, int]]:
    return lambda spec: {
        "activations": per_sample * spec["micro_batch_size"],
        "ema": copy if spec.get("ema") else 0,
    }


@pytest.mark.parametrize(
    ("per_sample", "budget", "changes"),
    [
        pytest.param(100, 900, {"micro_batch_size": 2}, id="the batch alone is enough"),
        pytest.param(60, 700, {"ema": False}, id="a later rung makes the smaller batch needless"),
        pytest.param(60, 480, {"ema": False}, id="needless by a byte"),
        pytest.param(100, 750, {"ema": False, "micro_batch_size": 4}, id="a later rung spares a part of it"),
        pytest.param(100, 400, {"ema": False, "micro_batch_size": 4}, id="exactly the budget is enough"),
        pytest.param(100, 399, {"ema": False, "micro_batch_size": 2}, id="and a byte less is not"),
        pytest.param(100, 100, {"ema": False, "micro_batch_size": 1}, id="all of it is needed"),
    ],
)
def test_a_batch_is_no_smaller_than_later_rungs_leave_it(
    per_sample: int, budget: int, changes: dict[str, Any], tried: list[dict[str, Any]]
) -> None:
    text = "micro_batch_size: 8\nema: true\n"
    run = run_of(text, batch_and_copy(per_sample, 700), keys=["micro_batch_size", "ema"], budget=budget)
    plan = levers.plan(run)
    assert plan is not None
    assert tried == [changes]
    assert plan.safety == DISPLAY
    assert plan.fits is True


def test_a_batch_that_lowers_nothing_is_left_as_it_is(tried: list[dict[str, Any]]) -> None:
    text = "micro_batch_size: 8\nema: true\n"
    run = run_of(text, saving(ema=(False, 500)), keys=["micro_batch_size", "ema"], budget=600)
    assert levers.plan(run) is not None
    assert tried == [{"ema": False}]


def test_a_batch_is_shrunk_on_top_of_what_came_before_it(tried: list[dict[str, Any]]) -> None:
    def sizes(spec: TrainingSpec) -> dict[str, int]:
        per_sample = 100 if spec["attention"] == "eager" else 50
        return {"activations": per_sample * spec["micro_batch_size"]}

    run = run_of("attention: eager\nmicro_batch_size: 8\n", sizes, keys=["attention", "micro_batch_size"], budget=200)
    plan = levers.plan(run)
    assert plan is not None
    assert tried == [{"attention": "sdpa", "micro_batch_size": 4}]
    assert (plan.safety, plan.device_bytes_after, plan.saved_bytes) == (DISPLAY, 200, 600)


def test_a_plan_is_as_intrusive_as_its_gravest_part() -> None:
    text = "optimizer_implementation: foreach\nattention: eager\n"
    sizes = saving(optimizer_implementation=("fused", 100), attention=("sdpa", 100))
    keys = ["optimizer_implementation", "attention"]
    plans = [levers.plan(run_of(text, sizes, keys=keys, budget=budget)) for budget in (900, 800)]
    assert [plan.safety for plan in plans if plan is not None] == [SAFE, UNSAFE]


def test_another_optimizer_leaves_torchs_switch_behind(tried: list[dict[str, Any]]) -> None:
    sizes = saving(optimizer_implementation=("fused", 100), optimizer=("adamw_8bit", 500))
    run = run_of(
        "optimizer: adamw\n",
        sizes,
        stated={"optimizer_implementation": "foreach"},
        keys=["optimizer", "optimizer_implementation"],
        budget=500,
    )
    assert levers.plan(run) is not None
    assert tried == [{"optimizer": "adamw_8bit"}]


def test_what_a_lever_implies_is_in_the_figures_and_not_in_the_words(tried: list[dict[str, Any]]) -> None:
    run = run_of(
        "parallelism.strategy: ddp\n",
        saving(**{"parallelism.strategy": ("zero", 500)}),
        keys=[STAGE, "parallelism.strategy"],
        budget=500,
    )
    plan = levers.plan(run)
    assert plan is not None
    assert plan.title == f"add {STAGE}: 2"
    assert tried == [{STAGE: 2, "parallelism.strategy": "zero"}]


# -- one key that states two facts


def two_facts_of_one_key(budget: int) -> Run:
    """``precision`` states both dtypes, so the family writes either change over the same value."""
    sizes = saving(compute_dtype=("bfloat16", 200), parameter_dtype=("bfloat16", 600))
    return run_of(
        "precision: 32-true\n",
        sizes,
        stated={"compute_dtype": "float32", "parameter_dtype": "float32"},
        keys=["compute_dtype", "parameter_dtype"],
        written_at={"compute_dtype": "precision", "parameter_dtype": "precision"},
        budget=budget,
        texts={"compute_dtype": "bf16-mixed", "parameter_dtype": "bf16-true"},
    )


def test_a_later_lever_that_writes_the_same_key_takes_the_place_of_an_earlier_one(tried: list[dict[str, Any]]) -> None:
    assert levers.plan(two_facts_of_one_key(800)) is not None
    assert levers.plan(two_facts_of_one_key(400)) is not None
    assert tried == [{"compute_dtype": "bfloat16"}, {"parameter_dtype": "bfloat16"}]


def test_changes_that_write_the_same_text_to_one_key_go_together() -> None:
    run = run_of(
        "precision: 32-true\n",
        stated={"compute_dtype": "float32", "parameter_dtype": "float32"},
        keys=["compute_dtype", "parameter_dtype"],
        written_at={"compute_dtype": "precision", "parameter_dtype": "precision"},
    )
    before = {"compute_dtype": "bfloat16"}
    assert levers._compatible(run, before, Lever(UNSAFE, {"parameter_dtype": "bfloat16"})) == before
    assert levers._compatible(run, before, Lever(UNSAFE, {"parameter_dtype": "float16"})) == {}


def test_two_keys_that_are_added_at_one_place_are_compatible() -> None:
    run = run_of(keys=["ema", "attention"])
    assert levers._compatible(run, {"ema": False}, Lever(UNSAFE, {"attention": "sdpa"})) == {"ema": False}


# -- a hopeless run is told before its rungs are tried one by one


def counted(sizes: Callable[[TrainingSpec], dict[str, int]]) -> tuple[list[TrainingSpec], Any]:
    asked: list[TrainingSpec] = []

    def counting(spec: TrainingSpec) -> dict[str, int]:
        asked.append(spec)
        return sizes(spec)

    return asked, counting


def states(parameters: int, more: Callable[[TrainingSpec], dict[str, int]] | None = None) -> Any:
    return lambda spec: {
        "parameters": parameters,
        "gradients": parameters,
        "optimizer": parameters if spec.get("optimizer") == "adamw_8bit" else 2 * parameters,
        **(more(spec) if more is not None else {"activations": 100 * spec.get("micro_batch_size", 1)}),
    }


HOPELESS = "optimizer: adamw\nmicro_batch_size: 4\n"


@pytest.mark.parametrize(
    ("budget", "hopeless"),
    [
        pytest.param(4000, False, id="states fit"),
        pytest.param(3999, False, id="states do not, but smaller ones do"),
        pytest.param(3100, False, id="all levers together are just enough"),
        pytest.param(3099, True, id="all levers together are a byte short"),
    ],
)
def test_hopeless(budget: int, hopeless: bool) -> None:
    run = run_of(HOPELESS, states(1000), keys=["optimizer", "micro_batch_size"], budget=budget)
    assert levers._hopeless(run) is hopeless
    assert (levers.plan(run) is None) is hopeless


def test_where_all_levers_together_do_not_fit_they_are_not_tried_one_by_one() -> None:
    asked, sizes = counted(states(1000))
    run = run_of(HOPELESS, sizes, keys=["optimizer", "micro_batch_size"], budget=3000)
    asked.clear()
    assert levers.plan(run) is None
    assert [{name: spec.get(name) for name in ("optimizer", "micro_batch_size")} for spec in asked] == [
        {"optimizer": "adamw_8bit", "micro_batch_size": 1}
    ]


def test_a_run_whose_states_fit_is_not_asked_beforehand() -> None:
    asked, sizes = counted(states(1000))
    run = run_of(HOPELESS, sizes, keys=["optimizer", "micro_batch_size"], budget=4000)
    asked.clear()
    assert not levers._hopeless(run)
    assert asked == []


def test_levers_that_exclude_each_other_are_tried_one_by_one() -> None:
    sizes = states(1000, saving(compute_dtype=("bfloat16", 1)))
    run = run_of(
        "precision: 32-true\n",
        sizes,
        stated={"compute_dtype": "float32", "parameter_dtype": "float32"},
        keys=["compute_dtype", "parameter_dtype"],
        written_at={"compute_dtype": "precision", "parameter_dtype": "precision"},
        texts={"compute_dtype": "bf16-mixed", "parameter_dtype": "bf16-true"},
        budget=1,
    )
    assert levers._hopeless(run) is False


def test_a_recording_that_does_not_cover_the_smallest_run_leaves_hope() -> None:
    def sizes(spec: TrainingSpec) -> dict[str, int]:
        if spec["micro_batch_size"] == 1:
            raise levers.UnknownModel("not recorded")
        return states(1000)(spec)  # type: ignore[no-any-return]

    run = run_of(HOPELESS, sizes, keys=["optimizer", "micro_batch_size"], budget=3000)
    assert levers._hopeless(run) is False


def test_another_optimizer_is_not_asked_about_with_torchs_switch() -> None:
    asked, sizes = counted(states(1000))
    run = run_of(
        HOPELESS,
        sizes,
        stated={"optimizer_implementation": "foreach"},
        keys=["optimizer", "optimizer_implementation", "micro_batch_size"],
        budget=10,
    )
    asked.clear()
    assert levers._hopeless(run) is True
    assert {spec.get("optimizer_implementation") for spec in asked} == {"foreach"}


LOSS = "optimizer: adamw\nloss: full\n"


@pytest.mark.parametrize(
    ("budget", "times"),
    [
        pytest.param(2999, 1, id="hopeless, whatever a fused loss spares"),
        pytest.param(3000, 2, id="all that a fused loss may spare is just enough"),
    ],
)
def test_a_fused_loss_is_asked_about_only_where_it_may_decide(budget: int, times: int) -> None:
    """3,400 with the smaller optimizer, of which 400 are activations and logits: all that a fused loss may spare."""
    asked, sizes = counted(states(1000, lambda spec: {"activations": 100, "logits": 300}))
    run = run_of(LOSS, sizes, keys=["optimizer", "loss"], budget=budget)
    asked.clear()
    assert levers._hopeless(run) is True
    assert len(asked) == times


def test_a_loss_in_chunks_spares_the_logits_alone() -> None:
    asked, sizes = counted(states(1000, lambda spec: {"activations": 100, "logits": 300}))
    run = run_of(LOSS, sizes, keys={"optimizer": ANY, "loss": ["chunked"]}, budget=3099)
    asked.clear()
    assert levers._hopeless(run) is True
    assert len(asked) == 1  # 3,400 - 300 are more than fit


def test_a_fused_loss_alone_is_asked_about_once() -> None:
    asked, sizes = counted(states(1000, lambda spec: {"logits": 300}))
    run = run_of("loss: full\n", sizes, keys=["loss"], budget=10)
    asked.clear()
    assert levers._hopeless(run) is True
    assert [spec.get("loss") for spec in asked] == ["fused"]


# -- words


def test_changes_are_told_in_the_configs_own_words() -> None:
    text = "micro_batch_size: 8\nema: true\nloss:\n"
    run = run_of(text, stated={"attention": "eager"}, keys=["micro_batch_size", "ema", "attention", "loss"])
    assert levers.describe(run, {"micro_batch_size": 4, "ema": False}) == "micro_batch_size 8 -> 4, ema true -> false"
    assert levers.describe(run, {"attention": "sdpa"}) == "add attention: sdpa"
    assert levers.describe(run, {"loss": "fused"}) == "loss null -> fused"
    assert levers.describe(run, {}) == ""


def test_what_has_no_key_is_told_by_the_name_of_its_fact() -> None:
    run = run_of("frames: 16\n", stated={"patch_size": 2})
    assert levers.describe(run, {"frames": 8}) == "frames 16 -> 8"
    assert levers.describe(run, {"patch_size": 4}) == "patch_size 2 -> 4"
    assert levers.describe(run, {"unheard_of": 4}) == "unheard_of None -> 4"


def test_accumulation_that_follows_is_told_last() -> None:
    run = run_of("micro_batch_size: 8\n", stated={STEPS: 2}, keys=["micro_batch_size"])
    changes = {STEPS: 4, "micro_batch_size": 4}
    assert levers.describe(run, changes) == "micro_batch_size 8 -> 4 (accumulation 2 -> 4 follows)"


def test_keys_whose_last_part_is_the_same_are_told_whole() -> None:
    text = "train.batch_size: 8\nval.batch_size: 16\nlength: 4\n"
    run = run_of(text, keys=["train.batch_size", "val.batch_size", "length"])
    changes = {"train.batch_size": 4, "val.batch_size": 4, "length": 2}
    assert levers.describe(run, changes) == "train.batch_size 8 -> 4, val.batch_size 16 -> 4, length 4 -> 2"
    assert levers.describe(run, {"train.batch_size": 4}) == "batch_size 8 -> 4"


def test_a_list_is_told_whole() -> None:
    run = run_of("image_size: [64, 64]\n", keys=["image_size"])
    assert levers.describe(run, {"image_size": (32, 32)}) == "image_size [64, 64] -> [32, 32]"
    assert levers.describe(run, {"image_size": [32, 32]}) == "image_size [64, 64] -> [32, 32]"


def test_a_change_of_another_key_is_told_by_that_key() -> None:
    run = run_of(
        "trainer.precision: 32-true\n",
        stated={"compute_dtype": "float32"},
        keys=["compute_dtype"],
        written_at={"compute_dtype": "trainer.precision"},
    )
    assert levers.describe(run, {"compute_dtype": "bfloat16"}) == "precision 32-true -> bfloat16"


def edit_at(line: int, column: int, end_column: int, text: str = "x") -> Edit:
    return Edit(Span(PATH, line, column, line, end_column), text)


def test_a_text_that_replaces_no_value_is_told_as_what_it_adds() -> None:
    run = run_of("a: 1\n")
    assert levers._described(run, edit_at(1, 2, 3, ": 2,")) == "add : 2"
    assert levers._described(run, edit_at(1, 4, 4, ", b: 2, ")) == "add b: 2"
    assert levers._described(run, edit_at(1, 4, 5, "2")) == "a 1 -> 2"


def test_an_edit_of_the_whole_config_is_no_change_of_a_key() -> None:
    run = run_of("a: 1\n")
    assert levers._described(run, Edit(run.spec.root.span, "b: 2")) == "add b: 2"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param("--a 1 \\\n    --b 2", "--a 1 --b 2", id="a command over two lines"),
        pytest.param("--a 1 \\\r\n  --b 2", "--a 1 --b 2", id="with Windows line ends"),
        pytest.param("\n  a:\n    b: 1\n", "a: b: 1", id="a section"),
        pytest.param('"C:\\\\temp"', '"C:\\\\temp"', id="a backslash within a line stays"),
    ],
)
def test_an_edit_is_told_on_one_line(text: str, line: str) -> None:
    assert levers._on_one_line(edit_at(1, 1, 1, text)) == line


def test_where_an_edit_of_a_value_stands() -> None:
    node = spec_of("ab: 12\n").fact("ab").node  # type: ignore[union-attr]
    assert node is not None
    assert levers._stands_at(edit_at(1, 5, 7), node), "it replaces the value"
    assert levers._stands_at(edit_at(1, 7, 7), node), "it is put behind the value"
    assert not levers._stands_at(edit_at(1, 5, 5), node), "it is put in front of it"
    assert not levers._stands_at(edit_at(2, 7, 7), node), "it is on another line"
    assert not levers._stands_at(edit_at(1, 6, 6), node)
    assert levers._replaces(Edit(Span(PATH, 1, 3, 2, 3), "")), "a line further on"


# -- fixes


def test_no_lever_is_no_fix() -> None:
    assert levers.fix(run_of(), None) == []


def test_a_fix_of_a_run_without_an_estimate_has_no_figures() -> None:
    run = run_of("ema: true\n", keys=["ema"], estimated=False)
    [fix] = levers.fix(run, Lever(DISPLAY, {"ema": False}))
    assert (fix.title, fix.safety) == ("ema true -> false", DISPLAY)
    assert (fix.device_bytes_after, fix.saved_bytes, fix.fits) == (None, None, None)


@pytest.mark.parametrize(
    ("before", "after", "budget", "worth"),
    [
        pytest.param(1000, 990, None, True, id="a hundredth"),
        pytest.param(1000, 991, None, False, id="less than a hundredth"),
        pytest.param(10_100, 10_000, None, False, id="less than a hundredth, of more"),
        pytest.param(99, 98, None, True, id="one byte of a few"),
        pytest.param(10, 10, None, False, id="nothing"),
        pytest.param(0, 0, None, False, id="nothing of nothing"),
        pytest.param(1000, 999, 999, True, id="what the budget lacks"),
        pytest.param(1000, 999, 998, False, id="less than the budget lacks"),
        pytest.param(1000, 999, 1000, False, id="nothing is lacking"),
    ],
)
def test_what_is_worth_a_change(before: int, after: int, budget: int | None, worth: bool) -> None:
    one, other = (estimate_of({"activations": size}) for size in (before, after))
    assert levers.worthwhile(run_of("", before, budget=budget), one, other) is worth


@pytest.mark.parametrize(
    ("before", "after", "lowers"),
    [
        pytest.param((1000, 100), (999, 100), True, id="a byte less is live"),
        pytest.param((1000, 100), (1000, 99), True, id="segments fall out better, and no more is live"),
        pytest.param((1000, 100), (1001, 50), False, id="segments fall out better, and more is live"),
        pytest.param((1000, 100), (1000, 100), False, id="nothing changes"),
        pytest.param((1000, 100), (900, 200), False, id="less is live, and segments take it back"),
    ],
)
def test_what_lowers_the_peak(before: tuple[int, int], after: tuple[int, int], lowers: bool) -> None:
    one, other = (estimate_of({"activations": live, "fragmentation": lost}) for live, lost in (before, after))
    assert levers.lower(one, other) is lowers


def test_a_fix_that_packs_better_and_keeps_more_is_none() -> None:
    def sizes(spec: TrainingSpec) -> dict[str, int]:
        return {"activations": 1000, "fragmentation": 500} if spec["ema"] else {"activations": 1001}

    run = run_of("ema: true\n", sizes, keys=["ema"], budget=1001)
    assert levers.fixes(run, levers.no_ema) == []
    assert levers.plan(run) is None


def test_fixes_are_those_of_the_levers_that_apply_in_their_order() -> None:
    sizes = saving(ema=(False, 100), attention=("sdpa", 200), loss=("fused", 1))
    text = "ema: true\nattention: eager\nloss: full\n"
    run = run_of(text, sizes, keys=["ema", "attention", "loss"])
    found = levers.fixes(run, levers.no_ema, levers.checkpointing, levers.fused_loss, levers.fused_attention)
    assert [(fix.title, fix.saved_bytes) for fix in found] == [
        ("ema true -> false", 100),
        ("attention eager -> sdpa", 200),
    ]


def test_a_fix_has_what_its_lever_implies() -> None:
    run = run_of("", saving(**{"parallelism.strategy": ("zero", 500)}), keys=[STAGE])
    [fix] = levers.fix(run, Lever(UNSAFE, {STAGE: 2}, {"parallelism.strategy": "zero"}))
    assert (fix.title, fix.safety, fix.saved_bytes) == (f"add {STAGE}: 2", UNSAFE, 500)


def test_a_fact_without_a_place_in_the_text_is_added() -> None:
    fact = Fact("ema", True, key="model.ema")
    run = run_of("a: 1\n", stated={"ema": fact}, keys=["ema"])
    assert levers.describe(run, {"ema": False}) == "add ema: false"


def test_of_several_edits_of_a_key_the_one_of_its_value_is_told() -> None:
    run = run_of("image_size: 64\nwidth: 64\n")
    both = [Edit(run.fact(name).node.span, text) for name, text in (("image_size", "32"), ("width", "16"))]  # type: ignore[union-attr]
    run._spell = lambda spec, changes: [(tuple(changes), both)]
    assert levers.describe(run, {"image_size": 32}) == "image_size 64 -> 32"
