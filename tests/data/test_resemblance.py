"""Models that a name is after."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint.data import hub, models, resemblance


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("me/zephyr-7b-sft-iter0", ["HuggingFaceH4/zephyr-7b-beta"], id="a family and a size"),
        pytest.param("/models/hf_llama_7b/", ["huggyllama/llama-7b"], id="a folder"),
        pytest.param("/llama_weights/7B_hf/", ["huggyllama/llama-7b"], id="a folder of a family's sizes"),
        pytest.param("out/Qwen2_5-7B-sft", ["Qwen/Qwen2.5-7B"], id="a version with a line for its point"),
        pytest.param("models/Qwen2.5-7B-Instruct_Qwen", ["Qwen/Qwen2.5-7B"], id="a family that is named twice"),
        pytest.param("hub/Qwen/Qwen2___5-7B-mine", ["Qwen/Qwen2.5-7B"], id="points as ModelScope's cache has them"),
        pytest.param("out/llama_3_8b", ["meta-llama/Llama-3-8B"], id="a version before a size"),
        pytest.param("gemma-2b-rm", ["google/gemma-2b", "google/gemma-2-2b"], id="no version is any"),
        pytest.param("me/MedLLaMA-13B", ["huggyllama/llama-13b"], id="a family behind a capital"),
        pytest.param("Llama-2-7b-ours", ["meta-llama/Llama-2-7b-hf"], id="a version is that one"),
        pytest.param("Qwen2.5-VL-7B-ours", ["Qwen/Qwen2.5-VL-7B-Instruct"], id="a model of images is after one"),
        pytest.param("ours-Mixtral-8x7B", ["mistralai/Mixtral-8x7B-v0.1"], id="experts are part of the size"),
        pytest.param(
            "mistral-7b-sft", ["mistralai/Mistral-7B-v0.1", "mistralai/Mistral-7B-v0.3"], id="nothing of other families"
        ),
        pytest.param(
            "DeepSeek-R1-Distill-Qwen-7B-x", ["deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"], id="as many words as any"
        ),
        pytest.param(
            "openbmb/MiniCPM3-4B",
            ["Qwen/Qwen1.5-4B", "nvidia/Minitron-4B-Base"],
            id="decoders of another version and size say nothing, those of its size do",
        ),
        pytest.param(
            "ours/MiniCPM_8b",
            ["mistralai/Ministral-8B-Instruct-2410", "nvidia/Minitron-8B-Base"],
            id="Qwen-1_8B has not 8 billion",
        ),
        pytest.param("ours/llava-9-7b", [], id="a family that sees is no decoder of its size"),
        pytest.param("internlm/internlm-xcomposer2-4khd-7b", [], id="a model that sees, called after its decoder"),
        pytest.param(
            "path/to/llama-2",
            ["meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-13b-hf", "meta-llama/Llama-2-70b-hf"],
            id="a version of few sizes is any of them",
        ),
        pytest.param("facebook/wav2vec2-xls-r-1b", [], id="a model that hears is no decoder of its size"),
        pytest.param("ours/hubert-1b-de", [], id="nor is one that hears, of another family"),
        pytest.param("out/Qwen2.5-7B-sft/checkpoint-500", ["Qwen/Qwen2.5-7B"], id="a run's folder of checkpoints"),
        pytest.param("path/to/hf/Qwen2.5-7B/dir/or/model_id", ["Qwen/Qwen2.5-7B"], id="what a template leaves open"),
        pytest.param(
            "out/Qwen2.5-7B-sft/global_step_20/actor/hf", ["Qwen/Qwen2.5-7B"], id="folders within one another"
        ),
        pytest.param("ZhipuAI/GLM-4.6V-Flash", [], id="a version that sees is no decoder"),
        pytest.param("out/llama-3-8b-lora/final", [], id="an adapter's checkpoint is no model"),
        pytest.param("your_llama_model", [], id="a family of many sizes is none"),
        pytest.param("llama-qwen-mine", [], id="two families and no size"),
        pytest.param("llama-3-8b-gptq", [], id="a quantised copy has another dtype"),
        pytest.param("llama-3-8b-lora", [], id="an adapter is no model"),
        pytest.param("ours/whisper-hindi-small", ["openai/whisper-small"], id="a size that is a word"),
        pytest.param("ours/whisper-large-v2-cv11-de", ["openai/whisper-large-v2"], id="a worded size and a version"),
        pytest.param("ours/whisper-large-fr", ["openai/whisper-large"], id="a worded size without a version"),
        pytest.param("ours/bert-base-cased-squad", ["google-bert/bert-base-cased"], id="every word of it"),
        pytest.param("ours/vit-base-beans", [], id="a worded size of many shapes"),
        pytest.param("ours/whisper-mine", [], id="no size of a family of many"),
        pytest.param("/path/to/model", [], id="a placeholder"),
    ],
)
def test_a_name_is_after_models(name: str, expected: list[str]) -> None:
    assert list(resemblance.resembling(name)) == expected


def test_a_size_alone_is_between_the_smallest_and_the_largest_decoder_of_it() -> None:
    found = [models.find(name) for name in resemblance.resembling("ours/LongAlign-7B-64k-base")]
    low, high = (model.parameters for model in found if model is not None)
    assert 6e9 < low < 7e9 < high < 9e9


def left_out(name: str) -> tuple[models.Model, list[models.Model], bool]:
    """A model, those that its name is after where the catalogue lacks it, and whether these are its size's ends."""
    catalogue = resemblance._catalogue()
    model = models.find(name)
    assert model is not None
    kept = catalogue.pop(name)
    resemblance._has_decoders_alone.cache_clear()
    try:
        found = resemblance.resembling(name)
        ends = bool(found) and found == resemblance._ends(resemblance._parsed(name))
    finally:
        catalogue[name] = kept
        resemblance._has_decoders_alone.cache_clear()
    return model, [other for other in map(models.find, found) if other is not None], ends


def test_of_models_that_are_left_out_nine_of_ten_are_found_by_their_names() -> None:
    answered = [(model, found) for model, found, ends in map(left_out, models.names()[::6]) if found and not ends]
    right = sum(model.parameters in [other.parameters for other in found] for model, found in answered)
    assert len(answered) > 80
    assert right >= 0.9 * len(answered)


def test_of_models_that_are_left_out_nine_of_ten_are_between_the_ends_of_their_size() -> None:
    """To a twentieth, where no name is after theirs."""
    answered = [(model, [o.parameters for o in found]) for model, found, ends in map(left_out, models.names()) if ends]
    within = sum(0.95 * min(sizes) <= model.parameters <= 1.05 * max(sizes) for model, sizes in answered)
    assert len(answered) > 80
    assert within >= 0.9 * len(answered)


def test_nothing_resembles_what_is_found() -> None:
    assert hub.resembling("ours/Qwen2.5-7B-sft") == ("Qwen/Qwen2.5-7B",)
    assert hub.resembling("Qwen/Qwen2.5-7B") == ()


def test_nothing_resembles_a_folder_whose_config_is_broken(tmp_path: Path) -> None:
    folder = tmp_path / "Qwen2.5-7B-sft"
    folder.mkdir()
    (folder / "config.json").write_text("{", encoding="utf-8")
    assert hub.resembling(str(folder)) == ()
