"""The search for a plan, in runs whose peak is a formula: the least intrusive changes that fit, and no more of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pytest

from memlint import work
from memlint.documents.node import Edit
from memlint.facts.spec import DEFAULT, Fact, TrainingSpec, UnknownModel, named
from memlint.fixes.edits import apply_edits
from memlint.fixes.search import (
    COMPUTE,
    FREE,
    NUMERICS,
    OPTIMISATION,
    TIER_WORDS,
    Allowed,
    Plan,
    moves,
    plan,
    samples_per_step,
)
from memlint.plugin import Run
from tests.fixes.made_up import ANY, estimate_of, run_of, spec_of

WHOLE = 1000  # bytes of a run as it is

Reads = Callable[[TrainingSpec], bool]


def made(
    text: str,
    saved: Mapping[str, int] | Callable[[TrainingSpec], int],
    short_of: int = 1,
    *,
    keys: Mapping[str, Collection[Any]] | None = None,
    stated: Mapping[str, Any] = {},
    reads: Reads = lambda spec: True,
) -> Run:
    """A run of 1000 bytes, in a budget that is ``short_of`` bytes less.

    saved     bytes that a change takes off, by the line that states it, or a function of all facts
    keys      what can be written; whatever a line of ``saved`` states, where it is not given
    reads     whether a changed config can be read
    """

    def sizes(spec: TrainingSpec) -> Mapping[str, int]:
        if callable(saved):
            return {"activations": WHOLE - saved(spec)}
        lines = {f"{name}: {value}" for name, value in ((name, fact.value) for name, fact in spec.facts.items())}
        return {"activations": WHOLE - sum(size for line, size in saved.items() if line in lines)}

    def again(edits: Sequence[Edit]) -> TrainingSpec | None:
        spec = spec_of(apply_edits(text, edits), stated)
        return spec if reads(spec) else None

    if keys is None:
        names = [line.partition(":")[0] for line in saved] if not callable(saved) else []
        keys = dict.fromkeys(names, ANY)
    return run_of(text, sizes, stated=stated, keys=keys, budget=WHOLE - short_of, again=again)


def found(run: Run, allowed: Allowed = Allowed()) -> Plan:  # noqa: B008  (a tuple)
    """The plan of a run, once its edits are known to give the peak that it says."""
    result = plan(run, allowed)
    assert result is not None
    read = run.read_again(result.edits) if result.edits else run.spec
    assert read is not None
    assert result.estimate == run.estimate_as(read)
    assert run.budget_bytes is not None
    assert result.fits == (result.estimate.device_bytes <= run.budget_bytes)
    return result


def said(result: Plan) -> list[str]:
    return [step.said for step in result.steps]


# A change of each kind: its words, with its tier.
FUSED = "optimizer_implementation foreach -> fused"
KERNEL = "attention eager -> sdpa"
LOSS = "loss full -> fused"
CHECKPOINTS = "checkpointing none -> full"
OFFLOADED = "activation_offloading false -> true"
HALF = "compute_dtype float32 -> bfloat16"
NO_EMA = "ema true -> false"
FROZEN = "encoder_frozen false -> true"
TIER = {
    **dict.fromkeys((FUSED, KERNEL, LOSS), FREE),
    **dict.fromkeys((CHECKPOINTS, OFFLOADED), COMPUTE),
    HALF: NUMERICS,
    **dict.fromkeys((NO_EMA, FROZEN), OPTIMISATION),
}


def of(saved: Mapping[str, int], short_of: int) -> Run:
    """A run in which some of these changes can be made, each of which takes so many bytes off."""
    text, lines = "", {}
    for change, size in saved.items():
        name, before, _, after = change.split()
        text += f"{name}: {before}\n"
        lines[f"{name}: {after.capitalize() if after in ('true', 'false') else after}"] = size
    return made(text, lines, short_of)


@pytest.mark.parametrize(
    ("saved", "short_of", "expected"),
    [
        pytest.param({FUSED: 100, CHECKPOINTS: 100}, 100, [FUSED], id="what nobody notices before what takes time"),
        pytest.param({CHECKPOINTS: 100, HALF: 100}, 100, [CHECKPOINTS], id="what takes time before numerics"),
        pytest.param({HALF: 100, NO_EMA: 100}, 100, [HALF], id="numerics before what is optimised"),
        pytest.param({NO_EMA: 100}, 100, [NO_EMA], id="what is optimised where nothing else is left"),
        pytest.param({KERNEL: 100, LOSS: 100}, 100, [KERNEL], id="of two that are alike the one that is named first"),
        pytest.param({KERNEL: 99, LOSS: 100}, 100, [LOSS], id="of two the one that is enough"),
        pytest.param({FUSED: 50, KERNEL: 50, LOSS: 100}, 100, [LOSS], id="one change before two that are milder"),
        pytest.param({FUSED: 50, KERNEL: 50, LOSS: 50}, 100, [FUSED, KERNEL], id="the first two of three"),
        pytest.param({FUSED: 10, KERNEL: 50, LOSS: 50}, 100, [KERNEL, LOSS], id="the last two of three"),
        pytest.param(
            {FUSED: 50, KERNEL: 50, CHECKPOINTS: 100}, 100, [FUSED, KERNEL], id="two before one of a higher tier"
        ),
        pytest.param({FUSED: 10, CHECKPOINTS: 100}, 100, [CHECKPOINTS], id="none of a lower tier that are not needed"),
        pytest.param({FUSED: 10, CHECKPOINTS: 100}, 101, [FUSED, CHECKPOINTS], id="those of a lower tier that are"),
        pytest.param({FUSED: 10, KERNEL: 30, NO_EMA: 100}, 120, [KERNEL, NO_EMA], id="of a lower tier the one that is"),
        pytest.param(
            {FUSED: 10, CHECKPOINTS: 60, OFFLOADED: 70, HALF: 100},
            240,
            [FUSED, CHECKPOINTS, OFFLOADED, HALF],
            id="all there are",
        ),
        pytest.param(
            {KERNEL: 200, CHECKPOINTS: 50, HALF: 50, FROZEN: 100},
            300,
            [KERNEL, CHECKPOINTS, HALF],
            id="three tiers before the fourth",
        ),
        pytest.param(
            {KERNEL: 250, CHECKPOINTS: 20, HALF: 20, FROZEN: 100},
            350,
            [KERNEL, FROZEN],
            id="of the tiers in between none that is not needed",
        ),
        pytest.param({NO_EMA: 100, FROZEN: 100}, 100, [NO_EMA], id="one change of what is optimised before two"),
    ],
)
def test_a_plan_takes(saved: dict[str, int], short_of: int, expected: list[str]) -> None:
    run = of(saved, short_of)
    result = found(run)
    assert result.fits
    assert said(result) == expected
    assert [step.tier for step in result.steps] == [TIER[change] for change in expected]
    gone = sum(saved[change] for change in expected)
    assert result.estimate == estimate_of({"activations": WHOLE - gone})


BUCKETS = "parallelism.reduce_bucket_elements: 500000000\n"


@pytest.mark.parametrize(
    ("short_of", "left_out"),
    [
        pytest.param(300, "loss", id="three of four are enough, and the first three are taken"),
        pytest.param(301, "", id="four of four"),
    ],
)
def test_more_than_two_changes_of_a_tier_are_those_that_cannot_be_left_out(short_of: int, left_out: str) -> None:
    text = f"optimizer_implementation: foreach\n{BUCKETS}attention: eager\nloss: full\n"
    each = {
        "optimizer_implementation: fused": 100,
        "parallelism.reduce_bucket_elements: 50000000": 100,
        "attention: sdpa": 100,
        "loss: fused": 100,
    }
    result = found(made(text, each, short_of))
    named = ["optimizer_implementation", "parallelism.reduce_bucket_elements", "attention", "loss"]
    assert result.fits
    assert [edit.text for edit in result.edits] == [
        line.partition(": ")[2] for line, name in zip(each, named) if name != left_out
    ]
    assert len(result.steps) == len(result.edits)


# -- what is there to be asked


def test_a_run_that_fits_as_it_is_needs_no_change() -> None:
    run = made("ema: true\n", {"ema: False": 100}, 0)
    assert run.estimate is not None
    assert plan(run) == Plan((), (), run.estimate, True)


@pytest.mark.parametrize(
    ("budget", "estimated"), [pytest.param(None, True, id="a budget"), pytest.param(1, False, id="an estimate")]
)
def test_there_is_no_plan_without(budget: int | None, estimated: bool) -> None:
    assert plan(run_of("ema: true\n", 10, keys=["ema"], budget=budget, estimated=estimated)) is None


def test_each_tier_has_words_of_its_own() -> None:
    assert sorted({FREE, COMPUTE, NUMERICS, OPTIMISATION}) == list(range(len(TIER_WORDS)))
    words = [TIER_WORDS[tier] for tier in (FREE, COMPUTE, NUMERICS, OPTIMISATION)]
    assert words == ["free", "takes time", "changes numerics", "changes the optimisation"]


# -- where nothing fits


@pytest.mark.parametrize(
    ("saved", "expected", "peak"),
    [
        pytest.param({}, [], 1000, id="the run itself where nothing can be changed"),
        pytest.param({FUSED: 100, HALF: 200, NO_EMA: 300}, [FUSED, HALF, NO_EMA], 400, id="all that lower the peak"),
        pytest.param({FUSED: 100, HALF: 0, NO_EMA: 300}, [FUSED, NO_EMA], 600, id="none that leave it as it is"),
        pytest.param({FUSED: 100, CHECKPOINTS: -200, NO_EMA: 300}, [FUSED, NO_EMA], 600, id="none that raise it"),
    ],
)
def test_where_nothing_fits_the_nearest_plan_is(saved: dict[str, int], expected: list[str], peak: int) -> None:
    result = found(of(saved, 900))
    assert not result.fits
    assert said(result) == expected
    assert [step.tier for step in result.steps] == [TIER[change] for change in expected]
    assert result.estimate == estimate_of({"activations": peak})


def test_what_lowers_nothing_beside_the_others_is_not_in_the_nearest_plan() -> None:
    """The kernel keeps little of what checkpoints keep nothing of."""

    def saved(spec: TrainingSpec) -> int:
        return 300 if spec["checkpointing"] == "full" else 100 if spec["attention"] == "sdpa" else 0

    run = made("attention: eager\ncheckpointing: none\n", saved, 900, keys={"attention": ANY, "checkpointing": ANY})
    result = found(run)
    assert (result.fits, said(result)) == (False, [CHECKPOINTS])


def test_changes_that_fit_without_another_one_are_a_plan() -> None:
    """Offloading what is not there any more only costs buffers."""

    def saved(spec: TrainingSpec) -> int:
        checkpoints, offloaded = spec["checkpointing"] == "full", spec["activation_offloading"]
        return 300 * checkpoints + (-250 if checkpoints else 100) * offloaded

    text = "checkpointing: none\nactivation_offloading: false\n"
    keys = {"checkpointing": ANY, "activation_offloading": ANY}
    assert said(found(made(text, saved, 300, keys=keys))) == [CHECKPOINTS]
    assert said(found(made(text, saved, 100, keys=keys))) == [CHECKPOINTS]


@pytest.mark.parametrize("unknown", [HALF, NO_EMA])
def test_a_change_for_which_there_is_no_model_is_left_out(unknown: str) -> None:
    name, _, _, value = unknown.split()

    def saved(spec: TrainingSpec) -> int:
        if str(spec[named(name)]).lower() == value:
            raise UnknownModel("there is no such model")
        return 100 * (spec["compute_dtype"] == "bfloat16") + 100 * (not spec["ema"])

    run = made("compute_dtype: float32\nema: true\n", saved, 100, keys={"compute_dtype": ANY, "ema": ANY})
    result = found(run)
    assert said(result) == [NO_EMA if unknown == HALF else HALF]
    run = made("compute_dtype: float32\nema: true\n", saved, 101, keys={"compute_dtype": ANY, "ema": ANY})
    assert (found(run).fits, said(found(run))) == (False, said(result))


# -- changes that cannot be written


@pytest.mark.parametrize("value", [True, None], ids=["another key overrules it", "it is not read"])
def test_a_change_that_the_text_does_not_hold_is_none(value: bool | None) -> None:
    def saved(spec: TrainingSpec) -> int:
        return 200 * (not spec.get("ema")) + 100 * spec["encoder_frozen"]

    run = made("ema: true\nencoder_frozen: false\n", saved, 100, keys={"ema": ANY, "encoder_frozen": ANY})
    again = run._again
    assert again is not None

    def read(edits: Sequence[Edit]) -> TrainingSpec | None:
        spec = again(edits)
        if spec is not None and value is None:
            spec.facts.pop("ema")
        return spec if spec is None or value is None else spec.replaced({"ema": value})

    run._again = read
    assert said(found(run)) == [FROZEN]


def test_a_text_that_takes_too_long_to_read_is_none() -> None:
    def reads(spec: TrainingSpec) -> bool:
        if not spec["ema"]:
            raise work.OutOfWork("reading", 1)
        return True

    run = made("ema: true\nencoder_frozen: false\n", {"ema: False": 200, "encoder_frozen: True": 100}, 100, reads=reads)
    assert said(found(run)) == [FROZEN]


def either(*changes: str) -> Reads:
    """Of these changes a config takes one."""

    def reads(spec: TrainingSpec) -> bool:
        return sum(str(spec.get(named(name))).lower() == value for name, _, _, value in map(str.split, changes)) <= 1

    return reads


@pytest.mark.parametrize(
    ("saved", "short_of", "expected"),
    [
        pytest.param({KERNEL: 100, LOSS: 200}, 200, [LOSS], id="the second"),
        pytest.param({KERNEL: 200, LOSS: 100}, 200, [KERNEL], id="the first"),
        pytest.param({KERNEL: 100, LOSS: 100}, 100, [KERNEL], id="the first of equal ones"),
        pytest.param({FUSED: 50, KERNEL: 60, LOSS: 150}, 200, [FUSED, LOSS], id="the second, with a third one"),
        pytest.param({KERNEL: 100, LOSS: 150, CHECKPOINTS: 50}, 200, [LOSS, CHECKPOINTS], id="one, with a higher tier"),
    ],
)
def test_of_two_changes_that_exclude_each_other_the_plan_takes(
    saved: dict[str, int], short_of: int, expected: list[str]
) -> None:
    run = of(saved, short_of)
    _reading_only(run, either(KERNEL, LOSS))
    result = found(run)
    assert (result.fits, said(result)) == (True, expected)


def _reading_only(run: Run, reads: Reads) -> None:
    again = run._again
    assert again is not None

    def read(edits: Sequence[Edit]) -> TrainingSpec | None:
        spec = again(edits)
        return spec if spec is not None and reads(spec) else None

    run._again = read


def test_of_two_ways_that_fit_the_one_with_fewer_changes_is_taken() -> None:
    run = of({KERNEL: 60, LOSS: 100, CHECKPOINTS: 40, OFFLOADED: 20}, 120)
    _reading_only(run, either(KERNEL, LOSS))
    assert said(found(run)) == [LOSS, CHECKPOINTS]  # beside the kernel both were needed
    run = of({KERNEL: 100, LOSS: 60, CHECKPOINTS: 40, OFFLOADED: 20}, 120)
    _reading_only(run, either(KERNEL, LOSS))
    assert said(found(run)) == [KERNEL, CHECKPOINTS]


def test_the_nearest_plan_of_two_ways_is_the_lower_one() -> None:
    for first, second in ((100, 200), (200, 100)):
        run = of({KERNEL: first, LOSS: second}, 900)
        _reading_only(run, either(KERNEL, LOSS))
        result = found(run)
        assert (result.fits, said(result)) == (False, [LOSS if second > first else KERNEL])


# -- the micro batch


def of_batch(spec: TrainingSpec) -> int:
    """A thousand bytes are those of sixteen samples, with as many evaluated at once."""
    largest = max(spec["micro_batch_size"], spec.get("evaluation_batch_size", 0))
    return WHOLE - WHOLE * int(largest) // 16


BATCH = ["micro_batch_size", "gradient_accumulation_steps", "evaluation_batch_size"]


@pytest.mark.parametrize(
    ("short_of", "batch"),
    [
        pytest.param(1, 8, id="half of it"),
        pytest.param(500, 8, id="exactly half of it"),
        pytest.param(501, 4, id="a quarter"),
        pytest.param(800, 2, id="an eighth"),
        pytest.param(900, 1, id="one sample"),
    ],
)
def test_the_largest_half_of_a_batch_that_fits_is_taken_and_accumulated(short_of: int, batch: int) -> None:
    text = "micro_batch_size: 16\ngradient_accumulation_steps: 2\n"
    result = found(made(text, of_batch, short_of, keys=dict.fromkeys(BATCH, ANY)))
    assert result.fits
    assert said(result) == [
        f"micro_batch_size 16 -> {batch}, gradient_accumulation_steps 2 -> {32 // batch}",
    ]
    assert result.steps[0].tier == COMPUTE


def test_a_larger_batch_of_evaluation_goes_down_with_it() -> None:
    text = "micro_batch_size: 8\ngradient_accumulation_steps: 1\nevaluation_batch_size: 16\n"
    result = found(made(text, of_batch, 600, keys=dict.fromkeys(BATCH, ANY)))
    assert said(result) == [
        "micro_batch_size 8 -> 4, gradient_accumulation_steps 1 -> 2, evaluation_batch_size 16 -> 4"
    ]


def test_a_batch_of_evaluation_that_is_not_the_larger_one_any_more_may_be_gone() -> None:
    """A reader may leave out a pass that training outgrows."""
    text = "micro_batch_size: 8\ngradient_accumulation_steps: 1\nevaluation_batch_size: 16\n"
    run = made(text, of_batch, 600, keys=dict.fromkeys(BATCH, ANY))
    again = run._again
    assert again is not None

    def read(edits: Sequence[Edit]) -> TrainingSpec | None:
        spec = again(edits)
        if spec is not None and spec["evaluation_batch_size"] <= spec["micro_batch_size"]:
            spec.facts.pop("evaluation_batch_size")
        return spec

    run._again = read
    assert found(run).fits


def test_a_batch_is_not_taken_where_the_effective_one_would_be_another() -> None:
    run = made("micro_batch_size: 16\n", of_batch, 500, keys={"micro_batch_size": ANY})
    result = found(run)
    assert (result.fits, said(result)) == (False, [])
    result = found(run, Allowed(batch=True))
    assert said(result) == ["micro_batch_size 16 -> 8"]
    assert result.steps[0].tier == OPTIMISATION


def test_where_the_batch_may_change_it_does_so_alone_and_after_the_numerics() -> None:
    text = "micro_batch_size: 16\ngradient_accumulation_steps: 1\ncompute_dtype: float32\n"

    def saved(spec: TrainingSpec) -> int:
        return of_batch(spec) + 100 * (spec["compute_dtype"] == "bfloat16")

    keys = dict.fromkeys([*BATCH, "compute_dtype"], ANY)
    assert said(found(made(text, saved, 100, keys=keys), Allowed(batch=True))) == [HALF]
    result = found(made(text, saved, 800, keys=keys), Allowed(batch=True))
    assert said(result) == ["micro_batch_size 16 -> 2"]
    result = found(made(text, saved, 1000, keys=keys), Allowed(batch=True))
    assert said(result) == [HALF, "micro_batch_size 16 -> 1"]
    assert [step.tier for step in result.steps] == [NUMERICS, OPTIMISATION]


def test_a_batch_is_as_large_as_the_changes_around_it_allow() -> None:
    """Of 1000 bytes 320 are those of 16 samples."""
    text = "attention: eager\nmicro_batch_size: 16\ngradient_accumulation_steps: 1\ncompute_dtype: float32\nema: true\n"

    def saved(spec: TrainingSpec) -> int:
        others = (spec["attention"] == "sdpa", spec["compute_dtype"] == "bfloat16", not spec["ema"])
        return 100 * sum(others) + 320 - 20 * int(spec["micro_batch_size"])

    keys = dict.fromkeys([*BATCH, "attention", "compute_dtype", "ema"], ANY)
    result = found(made(text, saved, 530, keys=keys))
    batch = "micro_batch_size 16 -> 4, gradient_accumulation_steps 1 -> 4"
    assert (result.fits, said(result)) == (True, [KERNEL, batch, HALF, NO_EMA])


BOTH = ["micro_batch_size", "sequence_length"]


@pytest.mark.parametrize(
    ("short_of", "expected"),
    [
        pytest.param(500, ["micro_batch_size 16 -> 8"], id="the batch alone where that is enough"),
        pytest.param(937, ["micro_batch_size 16 -> 1"], id="the batch alone, down to one sample"),
        pytest.param(939, ["micro_batch_size 16 -> 4", "sequence_length 1024 -> 128"], id="both, the batch less"),
        pytest.param(992, ["micro_batch_size 16 -> 1", "sequence_length 1024 -> 128"], id="both, as far as they go"),
    ],
)
def test_of_a_batch_and_a_length_there_goes_down(short_of: int, expected: list[str]) -> None:
    text = "micro_batch_size: 16\nsequence_length: 1024\n"

    def saved(spec: TrainingSpec) -> int:
        return WHOLE - WHOLE * spec["micro_batch_size"] * spec["sequence_length"] // (16 * 1024)

    run = made(text, saved, short_of, keys=dict.fromkeys(BOTH, ANY), stated={"token_product": ("", tuple(BOTH))})
    result = found(run, Allowed(True, True))
    assert (result.fits, said(result)) == (True, expected)


# -- the length of samples


def of_length(name: str, whole: int) -> Callable[[TrainingSpec], int]:
    return lambda spec: WHOLE - WHOLE * int(spec[named(name)]) // whole


@pytest.mark.parametrize(
    ("name", "whole", "short_of", "expected"),
    [
        pytest.param("sequence_length", 4096, 500, 2048, id="half of the tokens"),
        pytest.param("sequence_length", 4096, 501, 1024, id="a quarter of the tokens"),
        pytest.param("sequence_length", 1024, 875, 128, id="the least tokens"),
        pytest.param("frames", 16, 800, 2, id="an eighth of the frames"),
        pytest.param("frames", 16, 900, 1, id="one frame"),
    ],
)
def test_samples_are_as_long_as_fits_where_they_may_be_cut(name: str, whole: int, short_of: int, expected: int) -> None:
    stated = {"token_product": ("", ("micro_batch_size", name))}
    run = made(f"{name}: {whole}\n", of_length(name, whole), short_of, keys={name: ANY}, stated=stated)
    result = found(run, Allowed(length=True))
    assert (result.fits, said(result)) == (True, [f"{name} {whole} -> {expected}"])
    assert result.steps[0].tier == OPTIMISATION
    result = found(run)
    assert (result.fits, said(result)) == (False, [])


@pytest.mark.parametrize(
    ("name", "whole", "lengths"),
    [
        pytest.param("sequence_length", 1024, [512, 256, 128], id="tokens, down to 128"),
        pytest.param("sequence_length", 600, [300, 150], id="tokens, to no less than 128"),
        pytest.param("sequence_length", 255, [], id="tokens of which half are less than 128"),
        pytest.param("sequence_length", 256, [128], id="tokens of which half are 128"),
        pytest.param("frames", 9, [4, 2, 1], id="frames, down to one"),
        pytest.param("frames", 1, [], id="one frame"),
    ],
)
def test_a_sample_may_be_cut_to(name: str, whole: int, lengths: list[int]) -> None:
    stated = {"token_product": ("", (name,))}
    run = made(f"{name}: {whole}\n", of_length(name, whole), keys={name: ANY}, stated=stated)
    grades = [
        lever.changes[named(name)] for move in moves(run, Allowed(length=True)) for lever in (*move.others, move.lever)
    ]
    assert grades == lengths
    assert moves(run, Allowed()) == []


@pytest.mark.parametrize(
    ("least", "lengths"),
    [
        pytest.param(4, [8, 4], id="a quarter of them"),
        pytest.param(5, [8], id="half of them"),
        pytest.param(9, [], id="more than half of them"),
    ],
)
def test_no_more_is_cut_than_a_model_takes_which_is(least: int, lengths: list[int]) -> None:
    def saved(spec: TrainingSpec) -> int:
        if spec["frames"] < least:
            raise UnknownModel("so few frames make no patch")
        return 1000 - spec["frames"]

    run = made("frames: 16\n", saved, keys={"frames": ANY}, stated={"token_product": ("", ("frames",))})
    grades = [
        lever.changes["frames"] for move in moves(run, Allowed(length=True)) for lever in (*move.others, move.lever)
    ]
    assert grades == lengths


# -- adapters


def trained(spec: TrainingSpec) -> int:
    """What adapters save beside all weights, and four bits beside adapters; half precision saves what is left of it."""
    half, four = int(spec.get("compute_dtype") == "bfloat16"), int(spec.get("quantization.bits") == 4)
    return 50 * half if spec["tuning"] == "full" else 500 + 200 * four + 30 * half


ADAPTERS: Mapping[str, Collection[Any]] = {"tuning": ["lora"], "quantization.bits": [4]}


@pytest.mark.parametrize(
    ("short_of", "expected"),
    [
        pytest.param(500, ["tuning full -> lora"], id="in the precision that the weights have"),
        pytest.param(530, [HALF, "tuning full -> lora"], id="with a change that is milder"),
        pytest.param(700, ["tuning full -> lora, add quantization.bits: 4"], id="beside weights of four bits"),
        pytest.param(730, [HALF, "tuning full -> lora, add quantization.bits: 4"], id="beside all that there is"),
    ],
)
def test_adapters_are_trained_where_nothing_else_fits(short_of: int, expected: list[str]) -> None:
    keys = {**ADAPTERS, "compute_dtype": ["bfloat16"]}
    result = found(made("tuning: full\ncompute_dtype: float32\n", trained, short_of, keys=keys))
    assert (result.fits, said(result)) == (True, expected)
    assert result.steps[-1].tier == OPTIMISATION


def test_adapters_are_not_trained_where_another_change_of_the_optimisation_fits() -> None:
    def saved(spec: TrainingSpec) -> int:
        return trained(spec) + 60 * (not spec["ema"])

    run = made("tuning: full\nema: true\n", saved, 60, keys={**ADAPTERS, "ema": ANY})
    assert said(found(run)) == [NO_EMA]


def test_the_nearest_plan_has_adapters_where_even_they_do_not_fit() -> None:
    result = found(made("tuning: full\n", trained, 701, keys=ADAPTERS))
    assert (result.fits, said(result)) == (False, ["tuning full -> lora, add quantization.bits: 4"])


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        pytest.param("tuning: lora\n", {"tuning": ["lora"]}, id="has them already"),
        pytest.param("tuning: oft\n", {"tuning": ["lora"]}, id="has some of another kind"),
        pytest.param("tuning: full\n", {"quantization.bits": [4]}, id="has no key for them"),
    ],
)
def test_no_adapters_are_added_where_a_run(text: str, keys: Mapping[str, Collection[Any]]) -> None:
    result = found(made(text, lambda spec: 500 * (spec["tuning"] == "lora" != text[8:-1]), 1, keys=keys))
    assert (result.fits, said(result)) == (False, [])


def test_where_adapters_cannot_be_read_the_rest_is_the_nearest_plan() -> None:
    def saved(spec: TrainingSpec) -> int:
        return trained(spec) + 60 * (not spec["ema"])

    run = made(
        "tuning: full\nema: true\n",
        saved,
        100,
        keys={**ADAPTERS, "ema": ANY},
        reads=lambda spec: spec["tuning"] == "full",
    )
    result = found(run)
    assert (result.fits, said(result)) == (False, [NO_EMA])


def test_adapters_go_without_a_change_that_excludes_them() -> None:
    def reads(spec: TrainingSpec) -> bool:
        return spec["tuning"] == "full" or spec["compute_dtype"] == "float32"

    text, keys = "tuning: full\ncompute_dtype: float32\n", {**ADAPTERS, "compute_dtype": ["bfloat16"]}
    assert said(found(made(text, trained, 500, keys=keys, reads=reads))) == ["tuning full -> lora"]


def test_frozen_weights_take_four_bits_where_adapters_are_trained() -> None:
    result = found(made("tuning: lora\n", trained, 0, keys=ADAPTERS))
    assert result.steps == ()
    run = made("tuning: lora\n", lambda spec: 300 * (spec.get("quantization.bits") == 4), 300, keys=ADAPTERS)
    result = found(run)
    assert said(result) == ["add quantization.bits: 4"]
    assert result.steps[0].tier == OPTIMISATION
    for text in ("tuning: full\n", "tuning: lora\nquantization.bits: 8\n"):
        assert moves(made(text, trained, keys=ADAPTERS), Allowed()) == []
    assert moves(made("tuning: lora\n", trained, keys={"quantization.bits": [8]}), Allowed()) == []


# -- changes that the search proposes by itself


@pytest.mark.parametrize(
    ("text", "writable", "changes"),
    [
        pytest.param("parallelism.strategy: ddp\n", [3], {"parallelism.zero_stage": 3}, id="of replicas"),
        pytest.param(
            "parallelism.strategy: zero\nparallelism.zero_stage: 2\n",
            [3],
            {"parallelism.zero_stage": 3},
            id="of stage 2",
        ),
        pytest.param("parallelism.strategy: zero\nparallelism.zero_stage: 3\n", [3], None, id="of stage 3: they are"),
        pytest.param("parallelism.strategy: fsdp2\n", [3], None, id="of another kind of shards"),
        pytest.param("", [3], None, id="of one device"),
        pytest.param("parallelism.strategy: ddp\n", [4], None, id="where no such stage can be written"),
    ],
)
def test_weights_are_put_in_shards(text: str, writable: list[int], changes: dict[str, Any] | None) -> None:
    run = made(text, lambda spec: 0, keys={"parallelism.zero_stage": writable})
    assert [move.lever.changes for move in moves(run, Allowed())] == ([] if changes is None else [changes])
    assert all(move.tier == COMPUTE for move in moves(run, Allowed()))


OFFLOADING = ["activation_offloading", "parallelism.offload_optimizer", "parallelism.cpu_offload"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param("", ["activation_offloading"], id="activations of one device"),
        pytest.param("activation_offloading: true\n", [], id="no activations that are there already"),
        pytest.param(
            "parallelism.strategy: fsdp2\n",
            ["activation_offloading", "parallelism.cpu_offload"],
            id="shards of FSDP, too",
        ),
        pytest.param("parallelism.strategy: zero\n", OFFLOADING, id="ZeRO's optimizer, too"),
    ],
)
def test_what_is_moved_to_the_host_is(text: str, names: list[str]) -> None:
    found = moves(made(text, lambda spec: 0, keys={name: [True] for name in OFFLOADING}), Allowed())
    assert [move.lever.changes for move in found] == [{name: True} for name in names]
    assert all(move.tier == COMPUTE for move in found)
    assert moves(made(text, lambda spec: 0, keys={name: [False] for name in OFFLOADING}), Allowed()) == []


def test_an_optimizer_that_has_no_such_switch_takes_none() -> None:
    """torch's own switch would be refused beside another optimizer: it is not written there."""
    text = "optimizer: adamw\n"

    def saved(spec: TrainingSpec) -> int:
        if spec["optimizer"] == "adamw_8bit":
            return 300
        return 100 * (spec["optimizer_implementation"] == "fused")

    stated = {"optimizer_implementation": Fact("optimizer_implementation", "foreach", DEFAULT)}
    run = made(
        text,
        saved,
        300,
        keys={"optimizer": ANY, "optimizer_implementation": ANY},
        stated=stated,
        reads=lambda spec: spec["optimizer"] == "adamw" or "optimizer_implementation: fused" not in spec.document.text,
    )
    run.spec.facts["optimizer_implementation"] = stated["optimizer_implementation"]
    result = found(run)
    assert (result.fits, said(result)) == (True, ["optimizer adamw -> adamw_8bit"])


# -- samples between two steps of the optimizer


@pytest.mark.parametrize(
    ("text", "stated", "samples"),
    [
        pytest.param("micro_batch_size: 4\n", {}, 4, id="a micro batch"),
        pytest.param("micro_batch_size: 4\ngradient_accumulation_steps: 8\n", {}, 32, id="several micro batches"),
        pytest.param("micro_batch_size: 4\nglobal_batch_size: 64\n", {}, 64, id="the batch of all devices, if stated"),
        pytest.param(
            "micro_batch_size: 4\ngradient_accumulation_steps: 8\nglobal_batch_size: 64\n",
            {},
            32,
            id="those of one device, where it is known how many",
        ),
        pytest.param("micro_batch_size: 4\n", {"global_batch_size": 64}, 4, id="a micro batch, not what is derived"),
        pytest.param("micro_batch_size: 4\nglobal_batch_size: auto\n", {}, 4, id="a micro batch beside a word"),
        pytest.param("global_batch_size: 64\n", {}, 64, id="the batch of all devices alone"),
        pytest.param("micro_batch_size: auto\n", {}, None, id="unknown, of a word"),
        pytest.param("micro_batch_size: 4\ngradient_accumulation_steps: auto\n", {}, None, id="unknown, times a word"),
        pytest.param("", {}, None, id="unknown, where nothing is stated"),
    ],
)
def test_samples_of_a_step_are(text: str, stated: dict[str, Any], samples: int | None) -> None:
    assert samples_per_step(spec_of(text, stated)) == samples
