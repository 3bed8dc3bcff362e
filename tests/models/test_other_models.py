"""Encoders, encoder-decoders and vision models: exact counts, published peaks, and what is not known."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from memlint.architectures.kinds import KINDS
from memlint.data import models as catalogue
from memlint.estimates import estimate_spec
from memlint.facts.spec import Fact, TrainingSpec
from memlint.meta.nn import count
from memlint.meta.tensor import float32, recording
from memlint.models import UnknownModel, record
from memlint.models.language import tasks

# The end of a class's name in ``architectures`` -> the fact ``model_class``.
HEADS = {
    "ForMaskedLM": "masked_lm",
    "ForSequenceClassification": "sequence_classification",
    "ForQuestionAnswering": "question_answering",
    "ForTokenClassification": "token_classification",
    "ForConditionalGeneration": "seq2seq_lm",
    "MTModel": "seq2seq_lm",
    "ForImageClassification": "image_classification",
}
# Of models that see, those whose towers are described: the others' are held against transformers in tests/differential.
SEEING = {"llava", "gemma3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"}
KNOWN = {name for kind in KINDS for name in kind.types if not {"causal_lm", "vision_language"} & {*kind.classes}}
KNOWN |= SEEING


def spec_of(**facts: Any) -> TrainingSpec:
    made = {name.replace("__", "."): Fact(name, value) for name, value in facts.items()}
    return TrainingSpec("test", None, None, made, "language_model")  # type: ignore[arg-type]


def model_class(config: dict[str, Any]) -> str | None:
    [name] = config.get("architectures") or [""]
    kind = next((kind for end, kind in HEADS.items() if name.endswith(end)), None)
    return "vision_language" if config["model_type"] in SEEING else kind


def entries() -> list[tuple[str, str]]:
    found = {}
    for name in catalogue.names():
        model = catalogue.find(name)
        assert model is not None
        if model.config["model_type"] in KNOWN and model_class(model.config) is not None:
            found[model.name] = model_class(model.config)
    return sorted(found.items())  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "kind"), entries())
def test_each_model_of_the_catalogue_has_the_parameters_of_its_class(name: str, kind: str) -> None:
    model = catalogue.find(name)
    assert model is not None
    facts = {"micro_batch_size": 1, "sequence_length": 8, "target_length": 8, "images_per_sample": 1}
    if "num_labels" in model.config:
        facts["labels"] = model.config["num_labels"]
    with recording():
        made = tasks.task(kind, spec_of(hyperparameters__config=model.config, **facts), float32, False)
        assert count(made.model.parameters()) == model.parameters


class Published(NamedTuple):
    """A run of the ablation in transformers' guide to one GPU: what NVML showed on a V100 of 16 GB in January 2022.

    https://github.com/huggingface/transformers/blob/0016acf7/docs/source/en/perf_train_gpu_one.mdx
    """

    rows: int
    optimizer: str
    half: bool
    checkpointing: bool
    accumulation: int
    mib: int


MIB = 2**20
CONTEXT_MIB = 1343  # what the guide's process took before any model, kernels included
ABLATION = {
    "vanilla": Published(4, "adamw", False, False, 1, 14949),
    "accumulation": Published(1, "adamw", False, False, 4, 8681),
    "checkpointing": Published(1, "adamw", False, True, 4, 6775),
    "half precision": Published(4, "adamw", True, False, 1, 13939),
    "all of these": Published(1, "adamw", True, True, 4, 7275),
    "Adafactor": Published(4, "adafactor", False, False, 1, 12295),
    "Adafactor with all of these": Published(1, "adafactor", True, True, 4, 4847),
    "8-bit Adam": Published(4, "adamw_8bit", False, False, 1, 13085),
    "8-bit Adam with all of these": Published(1, "adamw_8bit", True, True, 4, 5363),
}
BERT_LARGE = {
    "model_type": "bert", "vocab_size": 30522, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
    "intermediate_size": 4096,
}  # fmt: skip


def ablation(run: Published, **facts: Any) -> TrainingSpec:
    return spec_of(
        hyperparameters__config=BERT_LARGE,
        model_class="sequence_classification",
        labels=2,
        sequence_length=512,
        parameter_dtype="float32",
        compute_dtype="float16" if run.half else "float32",
        autocast=run.half,
        attention="eager",
        checkpointing="full" if run.checkpointing else "none",
        checkpointing_reentrant=True,
        optimizer=run.optimizer,
        optimizer_implementation="loop",
        micro_batch_size=run.rows,
        gradient_accumulation_steps=run.accumulation,
        **facts,
    )


@pytest.mark.parametrize("run", ABLATION.values(), ids=ABLATION)
def test_the_published_ablation_of_bert_large_is_met_within_four_percent(run: Published) -> None:
    spec = ablation(run, framework_version="1.10", transformers_version="4.17")
    estimate = estimate_spec(spec)
    assert estimate.reserved_bytes / MIB + CONTEXT_MIB == pytest.approx(run.mib, rel=0.04)


def allocated(**facts: Any) -> int:
    return estimate_spec(ablation(ABLATION["vanilla"], **facts)).allocated_bytes


def test_before_torch_2_gradients_of_zero_stay_through_the_forward_pass() -> None:
    gradients = 4 * record(ablation(ABLATION["vanilla"])).parameters
    assert allocated(framework_version="1.13") - allocated(framework_version="2.0") == pytest.approx(
        gradients, rel=0.02
    )


def test_the_trainer_lets_gradients_go_from_its_release_4_28_on_whatever_torch_does() -> None:
    newer = {"transformers_version": "4.28"}
    assert allocated(framework_version="1.13", **newer) == allocated(framework_version="2.0", **newer)


def test_before_torch_1_11_a_softmax_keeps_its_input_too() -> None:
    scores = 24 * 4 * 16 * 512 * 512 * 4
    assert allocated(framework_version="1.10") - allocated(framework_version="1.11") == pytest.approx(scores, rel=0.01)


UNKNOWN = {
    "an encoder without a size": ("masked_lm", {"model_type": "bert"}, "states no hidden_size"),
    "an encoder as a decoder": ("masked_lm", {**BERT_LARGE, "is_decoder": True}, "bert as a decoder"),
    "a task that the type does not have": ("image_classification", BERT_LARGE, "image_classification.*bert"),
    "a type that is not known": ("seq2seq_lm", {"model_type": "led"}, "led"),
    "ALBERT checkpointed": (
        "masked_lm", {**BERT_LARGE, "model_type": "albert"}, "cannot recompute the layers of albert",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "config", "message"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_not_known_says_so(kind: str, config: dict[str, Any], message: str) -> None:
    spec = spec_of(
        hyperparameters__config=config,
        model_class=kind,
        micro_batch_size=1,
        sequence_length=8,
        target_length=8,
        checkpointing="full",
    )
    with pytest.raises(UnknownModel, match=message):
        record(spec)


SIZES = {
    "none stated": (None, 24),
    "a side": (32, 32),
    "height and width": ([32, 40], 40),
    "several": ([24, 48, 32], 48),
}


@pytest.mark.parametrize(("size", "width"), SIZES.values(), ids=SIZES)
def test_the_largest_image_that_occurs_is_taken(size: Any, width: int) -> None:
    config = {
        "model_type": "dinov2", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 24,
        "patch_size": 8,
    }  # fmt: skip
    facts: dict[str, Any] = {"micro_batch_size": 1} if size is None else {"micro_batch_size": 1, "image_size": size}
    with recording():
        made = tasks.task("image_classification", spec_of(hyperparameters__config=config, **facts), float32, False)
        assert made.batch()[0].shape[-1] == width


def test_llava_without_images_trains_its_decoder_alone() -> None:
    model = catalogue.find("llava-hf/llava-1.5-7b-hf")
    assert model is not None
    text = {**model.config["text_config"], "num_hidden_layers": 1}
    facts = {"micro_batch_size": 1, "sequence_length": 600, "images_per_sample": 0}
    whole = {**model.config, "text_config": text}
    seeing = spec_of(hyperparameters__config=whole, model_class="vision_language", **facts)
    alone = spec_of(hyperparameters__config=text, **facts)
    beside = record(seeing).parameters - record(alone).parameters
    assert 300e6 < beside < 330e6  # CLIP's tower and the projector
    seen, plain = (estimate_spec(spec) for spec in (seeing, alone))
    assert seen.allocated_bytes - plain.allocated_bytes == pytest.approx(4 * beside, rel=1e-3)


SEEING = ("Qwen/Qwen3-VL-30B-A3B-Instruct", "Qwen/Qwen3-VL-8B-Instruct", "zai-org/GLM-4.1V-9B-Thinking")


@pytest.mark.parametrize("name", SEEING)
def test_a_model_that_sees_has_as_many_parameters_as_the_library_says(name: str) -> None:
    model = catalogue.find(name)
    assert model is not None
    facts = {"micro_batch_size": 1, "sequence_length": 64, "image_size": 64}
    with recording():
        spec = spec_of(hyperparameters__config=model.config, **facts)
        made = tasks.task("vision_language", spec, float32, False)
        assert sum(tensor.numel for tensor in made.model.parameters()) == model.parameters


QWEN = {
    "model_type": "qwen3_vl",
    "text_config": {
        "model_type": "qwen3_vl_text", "vocab_size": 1000, "hidden_size": 128, "intermediate_size": 352,
        "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32,
    },
    "vision_config": {
        "depth": 3, "hidden_size": 96, "intermediate_size": 200, "num_heads": 4, "out_hidden_size": 128,
        "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1],
    },
}  # fmt: skip


def of_qwen(**facts: Any) -> TrainingSpec:
    sizes = {"micro_batch_size": 1, "sequence_length": 64}
    return spec_of(hyperparameters__config=QWEN, model_class="vision_language", **{**sizes, **facts})


def test_a_reference_of_a_model_that_sees_looks_at_the_images_too() -> None:
    pairs = {"method": "dpo", "sequences_per_sample": 2, "images_per_sample": 1, "image_size": 128}
    alone, beside = (estimate_spec(of_qwen(**pairs, reference_model=kind)) for kind in ("none", "copy"))
    assert beside.parameters == 2 * alone.parameters
    assert beside.trainable_parameters == alone.trainable_parameters
    blind = estimate_spec(of_qwen(**{**pairs, "images_per_sample": 0}, reference_model="copy"))
    assert blind.saved_bytes < beside.saved_bytes


@pytest.mark.parametrize(
    ("size", "patches"),
    [
        pytest.param({}, 256, id="as many as the sample has tokens"),
        pytest.param({"image_size": 128}, 64, id="those of its size"),
        pytest.param({"image_size": 4096}, 256, id="no more than a sample has room for"),
        pytest.param({"image_size": [32, 96]}, 12, id="height and width"),
    ],
)
def test_an_image_has_as_many_patches_as_its_size_and_the_sample_let_it(size: dict[str, Any], patches: int) -> None:
    with recording():
        made = tasks.task("vision_language", of_qwen(**size), float32, False)
        assert made.batch().pixels.shape == (patches, 3 * 2 * 16 * 16)


def test_patches_are_made_by_a_convolution_that_gets_no_adapter() -> None:
    made = {"tuning": "lora", "lora.targets": "all-linear", "lora.r": 2, "image_size": 64}
    frozen, seeing = (of_qwen(**made, frozen_parts=parts) for parts in (["vision_tower", "projector"], []))
    width, inner, joined = 96, 200, 4 * 96
    block = 2 * (width + 3 * width + width + width + 2 * (width + inner))  # qkv, proj, and both of the perceptron
    merger = 2 * (joined + joined + joined + 128)
    added = record(seeing).trainable_parameters - record(frozen).trainable_parameters
    assert added == 3 * block + 3 * merger  # of the features, and of two layers of the decoder
