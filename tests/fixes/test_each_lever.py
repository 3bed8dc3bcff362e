"""Each lever by itself: when it is offered, which facts it changes, and how intrusive it says that it is."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.facts.spec import WRITTEN, Fact
from memlint.fixes import levers
from memlint.fixes.levers import Lever
from memlint.plugin import DISPLAY, SAFE, UNSAFE
from tests.fixes.made_up import ANY, run_of, spec_of

MILLION = 10**6


def case(id: str, lever: Any, text: str, keys: Any, expected: Lever | None, **stated: Any) -> Any:
    return pytest.param(lever, text, keys, {name.replace("__", "."): stated[name] for name in stated}, expected, id=id)


DDP = "parallelism.strategy: ddp\n"
VIEWS = "parallelism.gradient_as_bucket_view"
STAGE = "parallelism.zero_stage"
REDUCE, PREFETCH, GATHER = (f"parallelism.{name}_bucket_elements" for name in ("reduce", "prefetch", "gather"))
PRECOMPUTED = "hyperparameters.precompute_ref_log_probs"


@pytest.mark.parametrize(
    ("lever", "text", "keys", "stated", "expected"),
    [
        # one kernel for the optimizer's step
        case(
            "a list of temporaries becomes one kernel",
            levers.fused_optimizer,
            "optimizer_implementation: foreach\n",
            {"optimizer_implementation": ["fused"]},
            Lever(SAFE, {"optimizer_implementation": "fused"}),
        ),
        case(
            "a loop over parameters becomes one kernel",
            levers.fused_optimizer,
            "optimizer_implementation: loop\n",
            ["optimizer_implementation"],
            Lever(SAFE, {"optimizer_implementation": "fused"}),
        ),
        case(
            "one kernel stays",
            levers.fused_optimizer,
            "optimizer_implementation: fused\n",
            ["optimizer_implementation"],
            None,
        ),
        case("no key for the kernel, no lever", levers.fused_optimizer, "optimizer_implementation: loop\n", [], None),
        # attention
        case(
            "of several kernels torch's own comes first",
            levers.fused_attention,
            "attention: eager\n",
            {"attention": ["xformers", "flash", "sdpa"]},
            Lever(UNSAFE, {"attention": "sdpa"}),
        ),
        case(
            "flash attention where the family has no name for torch's",
            levers.fused_attention,
            "attention: eager\n",
            {"attention": ["xformers", "flash"]},
            Lever(UNSAFE, {"attention": "flash"}),
        ),
        case(
            "xformers where it is all that the family knows",
            levers.fused_attention,
            "attention: eager\n",
            {"attention": ["xformers"]},
            Lever(UNSAFE, {"attention": "xformers"}),
        ),
        case("attention that is fused stays", levers.fused_attention, "attention: sdpa\n", ["attention"], None),
        case("attention without a key stays", levers.fused_attention, "attention: eager\n", [], None),
        # the loss
        case(
            "a full loss is fused",
            levers.fused_loss,
            "loss: full\n",
            {"loss": ["chunked", "fused"]},
            Lever(UNSAFE, {"loss": "fused"}),
        ),
        case(
            "a loss that nothing is said of is a full one",
            levers.fused_loss,
            "",
            {"loss": ["chunked"]},
            Lever(UNSAFE, {"loss": "chunked"}),
        ),
        case("a loss in chunks stays", levers.fused_loss, "loss: chunked\n", ["loss"], None),
        case("a full loss without a key stays", levers.fused_loss, "loss: full\n", [], None),
        *[
            case(
                f"{name} needs the logits",
                levers.fused_loss,
                "loss: full\n",
                ["loss"],
                None,
                **{f"hyperparameters__{name}": value},
            )
            for name, value in (
                ("label_smoothing", 0.1),
                ("use_dft_loss", True),
                ("use_asft_loss", True),
                ("use_eaft_loss", True),
            )
        ],
        case(
            "labels that are not smoothed need no logits",
            levers.fused_loss,
            "loss: full\n",
            ["loss"],
            Lever(UNSAFE, {"loss": "fused"}),
            hyperparameters__label_smoothing=0.0,
        ),
        # checkpointing
        case(
            "nothing is checkpointed: all of it",
            levers.checkpointing,
            "checkpointing: none\n",
            {"checkpointing": ["full", "blocks"]},
            Lever(UNSAFE, {"checkpointing": "full"}),
        ),
        case(
            "nothing is checkpointed: at least blocks",
            levers.checkpointing,
            "checkpointing: none\n",
            {"checkpointing": ["blocks"]},
            Lever(UNSAFE, {"checkpointing": "blocks"}),
        ),
        case(
            "some of it is checkpointed: all of it",
            levers.checkpointing,
            "checkpointing: selective\n",
            ["checkpointing"],
            Lever(UNSAFE, {"checkpointing": "full"}),
        ),
        case(
            "blocks stay where there is nothing beyond them",
            levers.checkpointing,
            "checkpointing: blocks\n",
            {"checkpointing": ["blocks"]},
            None,
        ),
        case("all is checkpointed already", levers.checkpointing, "checkpointing: full\n", ["checkpointing"], None),
        case("of checkpointing nothing is known", levers.checkpointing, "", ["checkpointing"], None),
        case("checkpointing has no key", levers.checkpointing, "checkpointing: none\n", [], None),
        # 16 bits
        case(
            "fp32 is tried in bfloat16 first",
            levers.mixed_precision,
            "compute_dtype: float32\n",
            {"compute_dtype": ["float16", "bfloat16"]},
            Lever(UNSAFE, {"compute_dtype": "bfloat16"}),
        ),
        case(
            "fp32 in float16 where that is all that can be written",
            levers.mixed_precision,
            "compute_dtype: float32\n",
            {"compute_dtype": ["float16"]},
            Lever(UNSAFE, {"compute_dtype": "float16"}),
        ),
        case("16 bits stay", levers.mixed_precision, "compute_dtype: bfloat16\n", ["compute_dtype"], None),
        case(
            "weights in 16 bits are not autocast",
            levers.mixed_precision,
            "compute_dtype: float32\nparameter_dtype: float16\n",
            ["compute_dtype"],
            None,
        ),
        case(
            "weights in fp32 are autocast",
            levers.mixed_precision,
            "compute_dtype: float32\nparameter_dtype: float32\n",
            ["compute_dtype"],
            Lever(UNSAFE, {"compute_dtype": "bfloat16"}),
        ),
        case("products without a key stay", levers.mixed_precision, "compute_dtype: float32\n", [], None),
        case(
            "weights in fp32 become bfloat16",
            levers.half_weights,
            "parameter_dtype: float32\n",
            {"parameter_dtype": ["bfloat16"]},
            Lever(UNSAFE, {"parameter_dtype": "bfloat16"}),
        ),
        case("weights never become float16", levers.half_weights, "parameter_dtype: float32\n",
             {"parameter_dtype": ["float16"]}, None),
        case("weights in bfloat16 stay", levers.half_weights, "parameter_dtype: bfloat16\n", ["parameter_dtype"], None),
        case(
            "frozen weights beside adapters become bfloat16",
            levers.half_weights,
            "tuning: lora\nfrozen_dtype: float32\nparameter_dtype: float32\n",
            ["frozen_dtype", "parameter_dtype"],
            Lever(UNSAFE, {"frozen_dtype": "bfloat16"}),
        ),
        case(
            "frozen weights without a key stay",
            levers.half_weights,
            "tuning: lora\nfrozen_dtype: float32\nparameter_dtype: float32\n",
            ["parameter_dtype"],
            None,
        ),
        case(
            "frozen weights in bfloat16 stay",
            levers.half_weights,
            "tuning: lora\nfrozen_dtype: bfloat16\n",
            ["frozen_dtype"],
            None,
        ),
        case(
            "frozen weights that are packed stay",
            levers.half_weights,
            "tuning: qlora\nfrozen_dtype: float32\nquantization.bits: 4\n",
            ["frozen_dtype"],
            None,
        ),
        case(
            "where all is trained what is frozen says nothing",
            levers.half_weights,
            "tuning: full\nfrozen_dtype: float32\nparameter_dtype: bfloat16\n",
            ["frozen_dtype"],
            None,
        ),
        # the optimizer
        case(
            "AdamW keeps its states in one byte each",
            levers.small_optimizer,
            "optimizer: adamw\n",
            {"optimizer": ["adafactor", "adamw_8bit"]},
            Lever(UNSAFE, {"optimizer": "adamw_8bit"}),
        ),
        case(
            "Adam's states are factored where nothing packs them",
            levers.small_optimizer,
            "optimizer: adam\n",
            {"optimizer": ["adafactor"]},
            Lever(UNSAFE, {"optimizer": "adafactor"}),
        ),
        case("another optimizer stays", levers.small_optimizer, "optimizer: sgd\n", ["optimizer"], None),
        case("AdamW without a key stays", levers.small_optimizer, "optimizer: adamw\n", [], None),
        *[
            case(
                f"{library}'s own AdamW stays",
                levers.small_optimizer,
                f"optimizer: adamw\noptimizer_library: {library}\n",
                ["optimizer"],
                None,
            )
            for library in ("deepspeed", "megatron")
        ],
        case(
            "torch's AdamW, named so, becomes another",
            levers.small_optimizer,
            "optimizer: adamw\noptimizer_library: torch\n",
            ["optimizer"],
            Lever(UNSAFE, {"optimizer": "adamw_8bit"}),
        ),
        case(
            "a switch of torch's beside its name keeps AdamW",
            levers.small_optimizer,
            "optimizer: adamw\noptimizer_implementation: fused\n",
            ["optimizer"],
            None,
        ),
        case(
            "a switch that is written keeps an AdamW that no key names",
            levers.small_optimizer,
            "optimizer_implementation: fused\n",
            ["optimizer"],
            None,
            optimizer=Fact("optimizer", "adamw"),
        ),
        case(
            "a switch that nobody wrote is no argument of the other optimizer",
            levers.small_optimizer,
            "optimizer: adamw\n",
            ["optimizer"],
            Lever(UNSAFE, {"optimizer": "adamw_8bit"}),
            optimizer_implementation="foreach",
        ),
        # several devices
        case("gradients become views of their buckets", levers.bucket_views, DDP, [VIEWS], Lever(SAFE, {VIEWS: True})),
        case("gradients that are views stay", levers.bucket_views, DDP + f"{VIEWS}: true\n", [VIEWS], None),
        case(
            "gradients that are copies become views",
            levers.bucket_views,
            DDP + f"{VIEWS}: false\n",
            [VIEWS],
            Lever(SAFE, {VIEWS: True}),
        ),
        case("views are DDP's", levers.bucket_views, "parallelism.strategy: zero\n", [VIEWS], None),
        case("views have no key", levers.bucket_views, DDP, [], None),
        case(
            "gradients and states in shards",
            levers.sharded_states,
            DDP,
            {STAGE: [1, 2, 3]},
            Lever(UNSAFE, {STAGE: 2}, {"parallelism.strategy": "zero"}),
        ),
        case(
            "at least states in shards",
            levers.sharded_states,
            DDP,
            {STAGE: [1, 3]},
            Lever(UNSAFE, {STAGE: 1}, {"parallelism.strategy": "zero"}),
        ),
        case("a stage that cannot be written shards nothing", levers.sharded_states, DDP, {STAGE: [3, 0]}, None),
        case(
            "what is not replicated is not sharded anew",
            levers.sharded_states,
            "parallelism.strategy: fsdp2\n",
            [STAGE],
            None,
        ),
        # ZeRO's buckets
        case(
            "a reduce bucket that nothing is said of has DeepSpeed's size",
            levers.smaller_buckets,
            "parallelism.zero_stage: 2\n",
            [REDUCE, GATHER],
            Lever(SAFE, {REDUCE: 50 * MILLION}),
        ),
        case(
            "both buckets of stage 2",
            levers.smaller_buckets,
            f"parallelism.zero_stage: 2\n{REDUCE}: 200000000\n{GATHER}: 60000000\n{PREFETCH}: 60000000\n",
            [REDUCE, GATHER, PREFETCH],
            Lever(SAFE, {REDUCE: 50 * MILLION, GATHER: 50 * MILLION}),
        ),
        case(
            "both buckets of stage 3",
            levers.smaller_buckets,
            f"parallelism.zero_stage: 3\n{REDUCE}: 2e8\n{GATHER}: 60000000\n{PREFETCH}: 60000000\n",
            [REDUCE, GATHER, PREFETCH],
            Lever(SAFE, {REDUCE: 50 * MILLION, PREFETCH: 50 * MILLION}),
            **{REDUCE.replace(".", "__"): 2e8},
        ),
        case(
            "a bucket of the small size stays",
            levers.smaller_buckets,
            f"{REDUCE}: 50000000\n{GATHER}: 50000001\n",
            [REDUCE, GATHER],
            Lever(SAFE, {GATHER: 50 * MILLION}),
        ),
        case(
            "buckets that are small stay",
            levers.smaller_buckets,
            f"{REDUCE}: 50000000\n{GATHER}: 1\n",
            [REDUCE, GATHER],
            None,
        ),
        case(
            "a bucket whose size is chosen later stays",
            levers.smaller_buckets,
            f"{REDUCE}: auto\n{GATHER}: 60000000\n",
            [REDUCE, GATHER],
            Lever(SAFE, {GATHER: 50 * MILLION}),
        ),
        case("buckets without a key stay", levers.smaller_buckets, f"{REDUCE}: 60000000\n", [], None),
        # a reference model
        case(
            "log-probabilities of a copied reference come first",
            levers.precomputed_reference,
            "reference_model: copy\nmethod: dpo\n",
            [PRECOMPUTED],
            Lever(UNSAFE, {PRECOMPUTED: True}, {"reference_model": "precomputed"}),
        ),
        *[
            case(
                f"{method} asks a reference about what is not written yet",
                levers.precomputed_reference,
                f"reference_model: copy\nmethod: {method}\n",
                [PRECOMPUTED],
                None,
            )
            for method in ("grpo", "rloo", "ppo")
        ],
        case(
            "a reference that is no copy costs nothing",
            levers.precomputed_reference,
            "reference_model: adapters_off\nmethod: dpo\n",
            [PRECOMPUTED],
            None,
        ),
        case(
            "no switch computes the reference first",
            levers.precomputed_reference,
            "reference_model: copy\nmethod: dpo\n",
            {PRECOMPUTED: [False]},
            None,
        ),
        # what is learned changes
        case("a copy of the weights goes", levers.no_ema, "ema: true\n", ["ema"], Lever(DISPLAY, {"ema": False})),
        case("there is no copy", levers.no_ema, "ema: false\n", ["ema"], None),
        case("a copy without a key stays", levers.no_ema, "ema: true\n", {"ema": [True]}, None),
        case(
            "an encoder that trains is frozen",
            levers.frozen_encoder,
            "encoder_frozen: false\n",
            ["encoder_frozen"],
            Lever(DISPLAY, {"encoder_frozen": True}),
        ),
        case("an encoder is frozen already", levers.frozen_encoder, "encoder_frozen: true\n", ["encoder_frozen"], None),
        case("there is no encoder", levers.frozen_encoder, "", ["encoder_frozen"], None),
        case(
            "an encoder without a key trains on",
            levers.frozen_encoder,
            "encoder_frozen: false\n",
            {"encoder_frozen": [False]},
            None,
        ),
    ],
)  # fmt: skip
def test_lever(lever: Any, text: str, keys: Any, stated: dict[str, Any], expected: Lever | None) -> None:
    assert lever(run_of(text, keys=keys, stated=stated)) == expected


def test_a_switch_within_the_optimizers_own_key_goes_with_it() -> None:
    spec = spec_of("optimizer: adamw\n")
    node = spec.fact("optimizer").node  # type: ignore[union-attr]
    switch = Fact("optimizer_implementation", "fused", WRITTEN, "optimizer", node)
    run = run_of("optimizer: adamw\n", keys=["optimizer"], stated={"optimizer_implementation": switch})
    run.spec.facts["optimizer_implementation"] = switch._replace(node=run.fact("optimizer").node)  # type: ignore[union-attr]
    assert levers.small_optimizer(run) == Lever(UNSAFE, {"optimizer": "adamw_8bit"})


def test_buckets_that_have_no_key_are_told_where_that_is_asked_for() -> None:
    run = run_of(f"{REDUCE}: 60000000\n{GATHER}: 60000000\n", keys=[GATHER])
    assert levers.smaller_buckets(run) == Lever(SAFE, {GATHER: 50 * MILLION})
    assert levers.smaller_buckets(run, settable=False) == Lever(SAFE, {REDUCE: 50 * MILLION, GATHER: 50 * MILLION})


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        pytest.param({"dtype": "bfloat16"}, "bfloat16", id="transformers 5 says dtype"),
        pytest.param({"torch_dtype": "float16"}, "float16", id="transformers 4 said torch_dtype"),
        pytest.param({"dtype": "float32", "torch_dtype": "float16"}, "float32", id="the newer key is the one in force"),
        pytest.param({"text_config": {"torch_dtype": "bfloat16"}}, "bfloat16", id="a part states it for the language"),
        pytest.param({"dtype": "float32", "text_config": {"dtype": "bfloat16"}}, "float32", id="the whole comes first"),
        pytest.param({"dtype": None, "text_config": {"dtype": "float16"}}, "float16", id="nothing is no dtype"),
        pytest.param({"text_config": "none"}, "", id="a part that is no config"),
        pytest.param({}, "", id="a config without one"),
        pytest.param("gpt2", "", id="a name in place of a config"),
        pytest.param(None, "", id="no config"),
    ],
)
def test_the_dtype_of_a_checkpoint(config: Any, dtype: str) -> None:
    assert levers.checkpoint_dtype(run_of(stated={"hyperparameters.config": config})) == dtype


@pytest.mark.parametrize(
    ("gpu", "stated", "usable"),
    [
        pytest.param("", {}, ("bfloat16", "float16"), id="no card in particular"),
        pytest.param("a100-80gb", {}, ("bfloat16", "float16"), id="a card with both"),
        pytest.param("t4", {}, ("float16",), id="a card without bfloat16"),
        pytest.param("", {"hyperparameters.config": {"dtype": "bfloat16"}}, ("bfloat16",), id="trained in bfloat16"),
        pytest.param("t4", {"hyperparameters.config": {"dtype": "bfloat16"}}, (), id="trained in what the card lacks"),
        pytest.param(
            "",
            {"hyperparameters.config": {"dtype": "bfloat16"}, "pretrained": False},
            ("bfloat16", "float16"),
            id="a config of bfloat16 without its weights",
        ),
        pytest.param(
            "", {"hyperparameters.config": {"dtype": "float16"}}, ("bfloat16", "float16"), id="trained in float16"
        ),
    ],
)
def test_the_16_bit_dtypes_of_a_run(gpu: str, stated: dict[str, Any], usable: tuple[str, ...]) -> None:
    assert levers.halves(run_of(gpu=gpu, stated=stated)) == usable


def test_weights_stay_in_fp32_on_a_card_without_bfloat16() -> None:
    text = "parameter_dtype: float32\n"
    assert levers.half_weights(run_of(text, keys=["parameter_dtype"], gpu="t4")) is None
    assert levers.half_weights(run_of(text, keys=["parameter_dtype"], gpu="a100-80gb")) is not None


# -- sizes of the input


def test_a_shorter_sequence_takes_evaluation_along_where_one_key_states_both() -> None:
    text = "sequence_length: 4096\n"
    shared = spec_of(text).fact("sequence_length")
    assert shared is not None
    run = run_of(text, stated={"evaluation_sequence_length": shared._replace(name="evaluation_sequence_length")})
    assert levers.fewer(run, "sequence_length", 2048) == Lever(
        DISPLAY, {"sequence_length": 2048}, {"evaluation_sequence_length": 2048}
    )


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        pytest.param("sequence_length", "eval_length", 4096, id="evaluation has a key of its own"),
        pytest.param("sequence_length", "sequence_length", 4000, id="evaluation is cut to another length"),
        pytest.param("frames", "sequence_length", 4096, id="something else becomes smaller"),
        pytest.param("frames", "frames", 4096, id="something else of the same key becomes smaller"),
    ],
)
def test_evaluation_keeps_a_length_that_is_not_the_one_of_training(name: str, key: str, value: int) -> None:
    other = Fact("evaluation_sequence_length", value, WRITTEN, key)
    run = run_of("sequence_length: 4096\nframes: 4096\n", stated={"evaluation_sequence_length": other})
    assert levers.fewer(run, name, 2048) == Lever(DISPLAY, {name: 2048}, {})


def test_a_size_that_nothing_states_is_made_smaller_alone() -> None:
    run = run_of(stated={"evaluation_sequence_length": Fact("evaluation_sequence_length", 4096)})
    assert levers.fewer(run, "sequence_length", 2048) == Lever(DISPLAY, {"sequence_length": 2048}, {})
    assert levers.fewer(run_of("sequence_length: 8\n"), "sequence_length", 4).implied == {}


# -- batches


STEPS = "gradient_accumulation_steps"


@pytest.mark.parametrize(
    ("text", "batch", "keys", "changes"),
    [
        pytest.param(
            "micro_batch_size: 8\ngradient_accumulation_steps: 3\n",
            2,
            [STEPS],
            {"micro_batch_size": 2, STEPS: 12},
            id="as many samples per step as before",
        ),
        pytest.param(
            "micro_batch_size: 8\ngradient_accumulation_steps: 3\n",
            3,
            [STEPS],
            {"micro_batch_size": 3},
            id="a batch that does not divide leaves accumulation alone",
        ),
        pytest.param(
            "micro_batch_size: 8\ngradient_accumulation_steps: 3\n",
            4,
            {STEPS: [5, 7]},
            {"micro_batch_size": 4},
            id="accumulation that cannot be written",
        ),
        pytest.param("micro_batch_size: 8\n", 4, [STEPS], {"micro_batch_size": 4}, id="accumulation is not known"),
        pytest.param(
            "micro_batch_size: 8\ngradient_accumulation_steps: auto\n",
            4,
            [STEPS],
            {"micro_batch_size": 4},
            id="accumulation is chosen later",
        ),
    ],
)
def test_a_smaller_batch_with_more_accumulation(text: str, batch: int, keys: Any, changes: dict[str, Any]) -> None:
    assert levers.batch_changes(run_of(text, keys=keys), batch) == changes


@pytest.mark.parametrize(
    ("whole", "counted", "follows"),
    [
        pytest.param(("global_batch_size", "whole"), (STEPS, "whole"), True, id="from the key of the whole batch"),
        pytest.param(("global_batch_size", "whole"), (STEPS, "steps"), False, id="it has a key of its own"),
        pytest.param(("global_batch_size", ""), (STEPS, ""), False, id="neither is written anywhere"),
        pytest.param(None, (STEPS, ""), False, id="no whole batch is stated"),
        pytest.param(("global_batch_size", "whole"), None, False, id="accumulation is not known"),
    ],
)
def test_accumulation_that_follows_needs_no_key(
    whole: tuple[str, str] | None, counted: tuple[str, str] | None, follows: bool
) -> None:
    facts = {part[0]: Fact(part[0], 4, key=part[1]) for part in (whole, counted) if part is not None}
    assert levers._can_accumulate(run_of(stated=facts), 8) is follows
    assert levers._can_accumulate(run_of(stated=facts, keys=[STEPS]), 8) is True


@pytest.mark.parametrize(
    ("text", "keys", "batch", "changed"),
    [
        pytest.param("evaluation_batch_size: 8\n", ["evaluation_batch_size"], 4, True, id="a larger one goes down"),
        pytest.param(
            "evaluation_batch_size: 4\n", ["evaluation_batch_size"], 4, False, id="one that is as small stays"
        ),
        pytest.param("evaluation_batch_size: 2\n", ["evaluation_batch_size"], 4, False, id="a smaller one stays"),
        pytest.param("evaluation_batch_size: auto\n", ["evaluation_batch_size"], 4, False, id="one that is no number"),
        pytest.param("evaluation_batch_size: 8\n", [], 4, False, id="one that cannot be written so small"),
        pytest.param("", ["evaluation_batch_size"], 4, False, id="none at all"),
    ],
)
def test_the_batch_of_evaluation(text: str, keys: Any, batch: int, changed: bool) -> None:
    changes = {"micro_batch_size": batch, "loss": "fused"}
    wanted = {**changes, "evaluation_batch_size": batch} if changed else changes
    assert levers.with_evaluation(run_of(text, keys=keys), changes) == wanted


def test_a_batch_of_evaluation_that_nobody_wrote_follows_by_itself() -> None:
    run = run_of(keys=["evaluation_batch_size"], stated={"evaluation_batch_size": 8})
    assert levers.with_evaluation(run, {"micro_batch_size": 4}) == {"micro_batch_size": 4}


def per_sample(size: int) -> Any:
    return lambda spec: {"activations": size * spec["micro_batch_size"]}


@pytest.mark.parametrize(
    ("text", "budget", "changes"),
    [
        pytest.param("micro_batch_size: 2\n", 1600, {"micro_batch_size": 16}, id="the largest that fits"),
        pytest.param("micro_batch_size: 2\n", 1599, {"micro_batch_size": 8}, id="a byte less"),
        pytest.param("micro_batch_size: 2\n", 400, {"micro_batch_size": 4}, id="once"),
        pytest.param("micro_batch_size: 2\n", 399, {}, id="not even twice as many"),
        pytest.param(
            f"micro_batch_size: 2\n{STEPS}: 4\n",
            100_000,
            {"micro_batch_size": 8, STEPS: 1},
            id="until nothing is accumulated, and then no further where steps would grow",
        ),
        pytest.param(
            f"micro_batch_size: 2\n{STEPS}: 2\n", 100_000, {"micro_batch_size": 4, STEPS: 1}, id="one of two steps less"
        ),
        pytest.param(
            f"micro_batch_size: 2\n{STEPS}: 6\n", 100_000, {"micro_batch_size": 4, STEPS: 3}, id="as far as it divides"
        ),
        pytest.param(f"micro_batch_size: 2\n{STEPS}: 3\n", 100_000, {}, id="accumulation that does not divide"),
        pytest.param(f"micro_batch_size: 2\n{STEPS}: 1\n", 800, {"micro_batch_size": 8}, id="nothing to take less of"),
    ],
)
def test_a_larger_batch(text: str, budget: int, changes: dict[str, Any]) -> None:
    assert levers.larger_batch(run_of(text, per_sample(100), keys=[STEPS], budget=budget)) == changes


def test_a_larger_batch_needs_accumulation_that_can_be_written() -> None:
    text = f"micro_batch_size: 2\n{STEPS}: 4\n"
    assert levers.larger_batch(run_of(text, per_sample(1), keys={STEPS: [2]}, budget=1000)) == {
        "micro_batch_size": 4,
        STEPS: 2,
    }
    assert levers.larger_batch(run_of(text, per_sample(1), keys=[], budget=1000)) == {}


BATCH = ["micro_batch_size"]


@pytest.mark.parametrize(
    ("text", "budget", "expected"),
    [
        pytest.param("micro_batch_size: 8\n", None, {"micro_batch_size": 4}, id="half without a budget"),
        pytest.param("micro_batch_size: 8\n", 800, {"micro_batch_size": 4}, id="half within a budget"),
        pytest.param("micro_batch_size: 8\n", 799, {"micro_batch_size": 4}, id="half, over the budget by a byte"),
        pytest.param("micro_batch_size: 8\n", 399, {"micro_batch_size": 2}, id="as far down as the budget asks"),
        pytest.param("micro_batch_size: 8\n", 200, {"micro_batch_size": 2}, id="exactly the budget is enough"),
        pytest.param("micro_batch_size: 8\n", 99, {"micro_batch_size": 1}, id="the lowest where none fits"),
        pytest.param("micro_batch_size: 7\n", 399, {"micro_batch_size": 3}, id="an odd batch"),
        pytest.param("micro_batch_size: 2\n", None, {"micro_batch_size": 1}, id="two become one"),
    ],
)
def test_a_smaller_batch(text: str, budget: int | None, expected: dict[str, Any]) -> None:
    run = run_of(text, per_sample(100), keys=BATCH, budget=budget)
    assert levers.smaller_batch(run) == Lever(DISPLAY, expected)


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        pytest.param("micro_batch_size: 1\n", ANY, id="one sample is the least"),
        pytest.param("micro_batch_size: auto\n", ANY, id="a batch that is no number"),
        pytest.param("micro_batch_size: 8\n", [8, 5, 2], id="half of it cannot be written"),
        pytest.param("", ANY, id="no batch is known"),
    ],
)
def test_no_smaller_batch(text: str, keys: Any) -> None:
    run = run_of(text, 100, keys={"micro_batch_size": keys}, budget=1)
    assert levers.smaller_batch(run) is None


def test_of_batches_that_do_not_fit_the_largest_with_the_lowest_peak() -> None:
    lower = {8: 900, 4: 500, 2: 400, 1: 400}
    run = run_of(
        "micro_batch_size: 8\n", lambda spec: {"activations": lower[spec["micro_batch_size"]]}, keys=BATCH, budget=300
    )
    assert levers.smaller_batch(run) == Lever(DISPLAY, {"micro_batch_size": 2})


def test_a_batch_that_fits_by_better_packing_alone_is_not_preferred() -> None:
    """Two samples leave more alive than four, which segments happen to hold better: that is no smaller batch."""
    alive, slack = {8: 90, 4: 50, 2: 55, 1: 56}, {8: 90, 4: 60, 2: 5, 1: 60}

    def sizes(spec: Any) -> dict[str, int]:
        return {"activations": alive[spec["micro_batch_size"]], "fragmentation": slack[spec["micro_batch_size"]]}

    run = run_of("micro_batch_size: 8\n", sizes, keys=BATCH, budget=100)
    assert levers.smaller_batch(run) == Lever(DISPLAY, {"micro_batch_size": 4})


def test_a_batch_that_is_not_recorded_is_passed_over() -> None:
    def sizes(spec: Any) -> dict[str, int]:
        if spec["micro_batch_size"] == 4:
            raise levers.UnknownModel("not recorded")
        return {"activations": 100 * spec["micro_batch_size"]}

    run = run_of("micro_batch_size: 8\n", sizes, keys=BATCH, budget=700)
    assert levers.smaller_batch(run) == Lever(DISPLAY, {"micro_batch_size": 2})


def test_where_no_batch_is_recorded_there_is_nothing_to_shrink_to() -> None:
    def sizes(spec: Any) -> dict[str, int]:
        if spec["micro_batch_size"] < 8:
            raise levers.UnknownModel("not recorded")
        return {"activations": 800}

    run = run_of("micro_batch_size: 8\n", sizes, keys=BATCH, budget=700)
    assert levers.smaller_batch(run) is None


def test_a_smaller_batch_takes_accumulation_and_evaluation_along() -> None:
    text = f"micro_batch_size: 8\n{STEPS}: 2\nevaluation_batch_size: 6\n"
    keys = [*BATCH, STEPS, "evaluation_batch_size"]
    sizes = per_sample(100)
    wanted = {"micro_batch_size": 4, STEPS: 4, "evaluation_batch_size": 4}
    assert levers.smaller_batch(run_of(text, sizes, keys=keys)) == Lever(DISPLAY, wanted)
    assert levers.smaller_batch(run_of(text, sizes, keys=keys, budget=500)) == Lever(DISPLAY, wanted)


# -- a global batch that is stated, from which accumulation follows


def of_a_global_batch(batch: int, steps: int, budget: int | None = None) -> Any:
    whole = Fact("global_batch_size", batch * steps, WRITTEN, "whole")
    counted = Fact(STEPS, steps, WRITTEN, "whole")
    return run_of(
        f"micro_batch_size: {batch}\n",
        per_sample(100),
        stated={"global_batch_size": whole, STEPS: counted},
        keys=BATCH,
        budget=budget,
    )


@pytest.mark.parametrize(
    ("batch", "steps", "budget", "changes"),
    [
        pytest.param(8, 3, None, {"micro_batch_size": 4, STEPS: 6}, id="half of an even batch"),
        pytest.param(9, 1, None, {"micro_batch_size": 1, STEPS: 9}, id="a ninth: neither four nor two divide nine"),
        pytest.param(12, 1, 200, {"micro_batch_size": 1, STEPS: 12}, id="a twelfth: two is no halving that is left"),
        pytest.param(12, 1, 300, {"micro_batch_size": 3, STEPS: 4}, id="a quarter"),
    ],
)
def test_a_smaller_batch_divides_the_global_one(
    batch: int, steps: int, budget: int | None, changes: dict[str, Any]
) -> None:
    assert levers.smaller_batch(of_a_global_batch(batch, steps, budget)) == Lever(DISPLAY, changes)


def test_a_larger_batch_is_no_larger_than_the_global_one() -> None:
    assert levers.larger_batch(of_a_global_batch(2, 4, 100_000)) == {"micro_batch_size": 8, STEPS: 1}
    assert levers.larger_batch(of_a_global_batch(2, 1, 100_000)) == {}
    assert levers.larger_batch(of_a_global_batch(2, 3, 100_000)) == {}


def test_a_plan_keeps_to_the_global_batch() -> None:
    plan = levers.plan(of_a_global_batch(9, 1, 500))
    assert plan is not None
    assert plan.title == "micro_batch_size 9 -> 1 (accumulation 1 -> 9 follows)"


@pytest.mark.parametrize(
    ("text", "keys", "largest"),
    [
        pytest.param("frames: 8\nchannels: 3\n", {"frames": [4], "channels": [1]}, "frames", id="the largest"),
        pytest.param("frames: 8\nchannels: 3\n", {"frames": [8], "channels": [1]}, "channels", id="one to be halved"),
        pytest.param("frames: 8\nchannels: 3\n", {"frames": [8]}, "", id="none, if no half can be written"),
        pytest.param("frames: 2\n", {"frames": [1]}, "frames", id="one of two"),
        pytest.param("frames: 1\n", {"frames": ANY}, "", id="none, if it is one"),
        pytest.param("frames: auto\nchannels: 4\n", {"frames": ANY, "channels": ANY}, "channels", id="a number"),
        pytest.param(
            "micro_batch_size: 8\nframes: 2\n", {"micro_batch_size": ANY, "frames": ANY}, "frames", id="no batch"
        ),
        pytest.param("observation_steps: 8\n", {"observation_steps": ANY}, "", id="none, if nobody can choose it"),
        pytest.param("points: 8\n", {"points": ANY}, "", id="none, if it is no factor of the tokens"),
    ],
)
def test_the_size_of_a_sample_that_goes_down_is(text: str, keys: Any, largest: str) -> None:
    product = ("", ("micro_batch_size", "observation_steps", "channels", "frames"))
    found = levers.largest_size(run_of(text, keys=keys, stated={"token_product": product}))
    assert ("" if found is None else found.name) == largest
    assert levers.largest_size(run_of(text, keys=keys)) is None
