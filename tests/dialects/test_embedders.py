"""Programs that train embeddings of queries and passages: what their options, and what they leave out, mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memlint import estimates, plausible
from memlint.facts.spec import TrainingSpec
from memlint.trainers import embedders
from tests.dialects.language_models import run, written

COMMON = "--output_dir out --per_device_train_batch_size 4 --fp16"
EMBED = "FlagEmbedding.finetune.embedder"
RANK = "FlagEmbedding.finetune.reranker"
OLD = "FlagEmbedding.baai_general_embedding.finetune.run"
TEVATRON = "tevatron.retriever.driver.train"


def command(program: str, model: str = "BAAI/bge-base-en-v1.5", options: str = "", processes: int = 1) -> TrainingSpec:
    text = f"torchrun --nproc_per_node {processes} -m {program} --model_name_or_path {model} {COMMON} {options}\n"
    return run(text, "train.sh")


def facts(spec: TrainingSpec, *names: str) -> list[Any]:
    return [spec.get(name) for name in names]  # type: ignore[arg-type]


SHAPE = ("model_class", "sequences_per_sample", "query_length", "sequence_length")
HOW = ("embedding_pooling", "embedding_normalized", "negatives")


@pytest.mark.parametrize(
    ("program", "model", "options", "shape", "how"),
    [
        pytest.param(
            f"{EMBED}.encoder_only.base", "BAAI/bge-base-en-v1.5", "",
            ["embeddings", 8, 32, 128], ["cls", True, None], id="nothing is stated",
        ),
        pytest.param(
            f"{EMBED}.encoder_only.base", "BAAI/bge-m3",
            "--train_group_size 4 --query_max_len 100 --passage_max_len 500 --pad_to_multiple_of 8 "
            "--sentence_pooling_method mean --normalize_embeddings False --negatives_cross_device",
            ["embeddings", 4, 104, 504], ["mean", False, "across_devices"], id="everything is stated",
        ),
        pytest.param(
            OLD, "BAAI/bge-base-en-v1.5", "--normlized True --train_group_size 2 --use_inbatch_neg False",
            ["embeddings", 2, 32, 128], ["cls", True, "own"], id="FlagEmbedding 1.2",
        ),
        pytest.param(
            TEVATRON, "Qwen/Qwen2.5-7B", "--pooling eos --normalize --passage_max_len 156 --lora --bf16",
            ["embeddings", 8, 32, 160], ["end", True, "across_devices"], id="Tevatron",
        ),
        pytest.param(
            "tevatron.driver.train", "BAAI/bge-base-en-v1.5", "--q_max_len 16 --p_max_len 100 --train_n_passages 5",
            ["embeddings", 5, 16, 100], ["cls", False, None], id="Tevatron 0.1",
        ),
        pytest.param(
            f"{RANK}.encoder_only.base", "BAAI/bge-reranker-v2-m3", "--query_max_len 256 --passage_max_len 256",
            ["sequence_classification", 8, None, 512], [None, None, None], id="pairs",
        ),
        pytest.param(
            f"{RANK}.decoder_only.base", "Qwen/Qwen2.5-7B", "",
            ["causal_lm", 8, None, 160], [None, None, None], id="pairs of a decoder",
        ),
        pytest.param(
            "tevatron.reranker.driver.train", "Qwen/Qwen2.5-7B", "--rerank_max_len 196 --train_group_size 16 --lora",
            ["sequence_classification", 16, None, 208], [None, None, None], id="pairs of Tevatron",
        ),
        pytest.param(
            "FlagEmbedding.reranker.run", "BAAI/bge-reranker-v2-m3", "--max_len 300",
            ["sequence_classification", 8, None, 300], [None, None, None], id="pairs of FlagEmbedding 1.2",
        ),
    ],
)  # fmt: skip
def test_a_program_s_own_options_say_what_is_compared(
    program: str, model: str, options: str, shape: list[Any], how: list[Any]
) -> None:
    spec = command(program, model, options, processes=2)
    assert spec.architecture == "language_model", spec.unknown_reason
    assert (facts(spec, *SHAPE), facts(spec, *HOW)) == (shape, how)


@pytest.mark.parametrize("program", [TEVATRON, "tevatron.retriever.driver.train_splade", f"{EMBED}.encoder_only.m3"])
def test_the_name_of_a_data_set_makes_none_of_them_trl_s(program: str) -> None:
    options = "--dataset_name Tevatron/msmarco-passage --learning_rate 1e-5 --query_max_len 32"
    assert command(program, options=options).family == "hf-trainer"


def test_a_program_needs_no_options_to_be_known() -> None:
    given = "--model_name_or_path BAAI/bge-base-en-v1.5 --output_dir out --dataset_name a/b --learning_rate 1e-5"
    text = f"python -m {TEVATRON} {given}\n"
    spec = run(text, "t.sh")
    assert (spec.family, spec.get("model_class"), spec.get("micro_batch_size")) == ("hf-trainer", "embeddings", 8)


def test_decoders_get_adapters_unless_they_are_switched_off() -> None:
    spec = command(f"{EMBED}.decoder_only.base", "Qwen/Qwen2.5-7B", "--lora_rank 32")
    assert facts(spec, "tuning", "lora.r", "lora.alpha", "lora.dropout") == ["lora", 32, 16.0, 0.1]
    assert "down_proj" in spec["lora.targets"]
    saved = command(f"{EMBED}.decoder_only.base", "Qwen/Qwen2.5-7B", "--modules_to_save embed_tokens norm")
    assert saved["lora.modules_to_save"] == ["embed_tokens", "norm"]
    assert command(f"{EMBED}.decoder_only.base", "Qwen/Qwen2.5-7B", "--use_lora False").get("tuning", "full") == "full"
    assert command(TEVATRON, "Qwen/Qwen2.5-7B", "--bf16").get("tuning", "full") == "full"


@pytest.mark.parametrize(
    ("options", "dtype", "attention", "older"),
    [
        pytest.param("--bf16", "bfloat16", "flash", False, id="as it is now"),
        pytest.param("--bf16 --attn_implementation sdpa", "bfloat16", "sdpa", False, id="with an option of today's"),
        pytest.param("--fp16", "float32", "sdpa", True, id="of before it loaded halves, which could not be scaled"),
        pytest.param("", "float32", "sdpa", True, id="of before it asked for FlashAttention, which takes halves"),
    ],
)
def test_tevatron_loads_the_weights_in_the_half_that_it_computes_in(
    options: str, dtype: str, attention: str, older: bool
) -> None:
    text = f"python -m {TEVATRON} --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 4 {options}\n"
    spec = run(text, "t.sh")
    assert facts(spec, "parameter_dtype", "attention") == [dtype, attention]
    assert spec["hyperparameters.tevatron"].startswith("before" if older else "since")


def test_older_code_of_tevatron_is_within_the_interval() -> None:
    text = f"python -m {TEVATRON} --model_name_or_path BAAI/bge-base-en-v1.5 --per_device_train_batch_size 4 --bf16\n"
    spec = run(text, "t.sh")
    [older] = [one for one in plausible.candidates(spec) if one.spec["hyperparameters.tevatron"].startswith("before")]
    assert older.spec["parameter_dtype"] == "float32"
    most = max(estimates.estimate_spec(one).device_bytes for one in (spec, older.spec))
    assert estimates.estimate_spec(older.spec).device_bytes == most


def test_no_release_runs_a_program_that_is_older_than_what_it_asks_for() -> None:
    """FlagEmbedding 1.3 takes transformers 4.44.2 and later: BERT runs on SDPA there, as it may not in 1.2."""
    options = "--per_device_train_batch_size 4 --output_dir o --model_name_or_path BAAI/bge-base-en-v1.5"
    found = {
        program: {
            one.spec["attention"] for one in plausible.candidates(run(f"python -m {program} {options}\n", "t.sh"))
        }
        for program in (f"{EMBED}.encoder_only.base", OLD)
    }
    assert "eager" not in found[f"{EMBED}.encoder_only.base"]
    assert "eager" in found[OLD]


def test_a_copy_of_tevatron_in_the_repository_says_how_old_it_is(tmp_path: Path) -> None:
    command = (
        f"python -m {TEVATRON} --model_name_or_path BAAI/bge-base-en-v1.5 --per_device_train_batch_size 4 --bf16\n"
    )
    for text, dtype in (("model = DenseModel.build(args)\n", "float32"), ("torch_dtype = 1\n", "bfloat16")):
        root = written(tmp_path / dtype, {"train.sh": command, "tevatron/retriever/driver/train.py": text})
        spec = run(command, str(root / "train.sh"))
        assert spec["parameter_dtype"] == dtype
        assert spec["hyperparameters.tevatron"].startswith("before") == (dtype == "float32")


@pytest.mark.parametrize(
    ("program", "options", "reason"),
    [
        pytest.param(TEVATRON, "--grad_cache", "--grad_cache: gradients of cached vectors", id="GradCache"),
        pytest.param(f"{EMBED}.encoder_only.base", "--use_mrl", "--use_mrl: losses of vectors", id="Matryoshka"),
        pytest.param(f"{EMBED}.decoder_only.base", "--from_peft $OLD", "--from_peft", id="an adapter to go on with"),
        pytest.param("tevatron.driver.train", "--untie_encoder", "--untie_encoder: weights", id="two models"),
        pytest.param(f"{EMBED}.encoder_only.base", "--sentence_pooling_method max", "--sentence_pooling_method max",
                     id="another pooling"),
        pytest.param(f"{EMBED}.encoder_only.base", "--knowledge_distillation True --kd_loss_type mse",
                     "--kd_loss_type mse is not known", id="another loss of a teacher"),
        pytest.param(f"{EMBED}.encoder_only.base", "--train_group_size $N", "--train_group_size is not known",
                     id="a group that is not known"),
        pytest.param(f"{EMBED}.encoder_only.m3", "--unified_finetuning True", "--unified_finetuning: weights of words",
                     id="BGE-M3's other vectors"),
        pytest.param(f"{RANK}.decoder_only.layerwise", "--train_group_size 2",
                     "--train_group_size: FlagEmbedding.finetune.reranker.decoder_only.layerwise compares",
                     id="a program that is not described"),
    ],
)  # fmt: skip
def test_what_is_not_described_is_named(program: str, options: str, reason: str) -> None:
    spec = command(program, options=options)
    assert spec.architecture is None
    assert spec.unknown_reason.startswith(reason), spec.unknown_reason


def test_longer_texts_and_larger_groups_take_more(tmp_path: Path) -> None:
    small, longer, more, asked = (
        estimates.estimate_spec(command(f"{EMBED}.encoder_only.base", options=options)).device_bytes
        for options in (
            "--train_group_size 2",
            "--train_group_size 2 --passage_max_len 256",
            "--train_group_size 4",
            "--train_group_size 2 --query_max_len 128",
        )
    )
    assert small < min(longer, more, asked)


@pytest.mark.parametrize("known", embedders.PROGRAMS)
def test_each_program_is_known_by_its_module_and_by_its_path(known: str) -> None:
    made = embedders.PROGRAMS[known]
    assert embedders.embedder(known) is made
    assert embedders.embedder("src/" + known.replace(".", "/") + ".py") is made
    assert made.source.partition(":")[0] in (
        "FlagEmbedding 1.4",
        "FlagEmbedding 1.2",
        "Tevatron at dd06310",
        "Tevatron 0.1",
    )
