"""The catalogue of models: its counts against transformers, its spellings, and where else a model is looked for."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

import memlint.data
from memlint.architectures.kinds import KINDS
from memlint.cli.main import main
from memlint.data import decoders, models
from memlint.data.models import Model
from tests.effort import counted_lines

PATH = Path(memlint.data.__file__).parent / "models.json"
CATALOGUE: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
COPIES: dict[str, Any] = json.loads(PATH.with_name("copies.json").read_text(encoding="utf-8"))
ENTRIES: dict[str, Any] = CATALOGUE["models"]
IDS = [name for name, entry in ENTRIES.items() if isinstance(entry, dict)]
ALIASES = {name: entry for name, entry in ENTRIES.items() if isinstance(entry, str)}

# The class that transformers has under another spelling than the model's own config.json.
SPELLED = {"MPTForCausalLM": "MptForCausalLM"}
# Architectures whose code is in the model's repository and not in transformers.
OWN_CODE = {
    "BaiChuanForCausalLM",
    "BaichuanForCausalLM",
    "ChatGLMForConditionalGeneration",
    "InternLM2ForCausalLM",
    "InternLMForCausalLM",
    "MiniCPMForCausalLM",
    "QWenLMHeadModel",
}

# Elements of the checkpoints on the hub, where their pages, papers or indices state them: an oracle that does not
# depend on how transformers builds a class today.
PUBLISHED = {
    "01-ai/Yi-34B": 34_388_917_248,
    "01-ai/Yi-6B": 6_061_035_520,
    "BAAI/bge-m3": 567_754_752,
    "BSC-LT/salamandra-2b": 2_253_490_176,
    "BSC-LT/salamandra-7b": 7_768_117_248,
    "ByteDance-Seed/Seed-OSS-36B-Instruct": 36_151_104_512,
    "CohereForAI/c4ai-command-r-v01": 34_980_831_232,
    "EleutherAI/gpt-j-6b": 6_050_882_784,
    "EleutherAI/gpt-neo-1.3B": 1_315_575_808,
    "EleutherAI/gpt-neox-20b": 20_554_567_680,
    "EleutherAI/polyglot-ko-1.3b": 1_331_810_304,
    "EleutherAI/polyglot-ko-3.8b": 3_809_974_272,
    "EleutherAI/polyglot-ko-5.8b": 5_885_059_072,
    "EleutherAI/pythia-12b": 11_846_072_320,
    "EleutherAI/pythia-1b": 1_011_781_632,
    "EleutherAI/pythia-6.9b": 6_857_302_016,
    "EleutherAI/pythia-70m": 70_426_624,
    "FacebookAI/xlm-roberta-large": 560_142_482,
    "HuggingFaceTB/SmolLM3-3B": 3_075_098_624,
    "HuggingFaceTB/SmolVLM-Instruct": 2_246_272_880,
    "LiquidAI/LFM2-1.2B": 1_170_340_608,
    "LiquidAI/LFM2-350M": 354_483_968,
    "LiquidAI/LFM2-700M": 742_489_344,
    "LiquidAI/LFM2-8B-A1B": 8_339_929_856,
    "LiquidAI/LFM2-VL-450M": 450_822_656,
    "Qwen/CodeQwen1.5-7B": 7_250_284_544,
    "Qwen/Qwen1.5-110B": 111_209_914_368,
    "Qwen/Qwen1.5-MoE-A2.7B": 14_315_784_192,
    "Qwen/Qwen2-VL-7B-Instruct": 8_291_375_616,
    "Qwen/Qwen2.5-14B": 14_770_033_664,
    "Qwen/Qwen2.5-32B": 32_763_876_352,
    "Qwen/Qwen2.5-72B": 72_706_203_648,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-VL-7B-Instruct": 8_292_166_656,
    "Qwen/Qwen3-235B-A22B": 235_093_634_560,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-Reranker-4B": 4_021_784_576,
    "Qwen/Qwen3-VL-8B-Instruct": 8_767_123_696,
    "THUDM/glm-4-9b-chat-hf": 9_399_951_360,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1_100_048_384,
    "allenai/OLMo-2-1124-13B": 13_716_198_400,
    "allenai/OLMoE-1B-7B-0924": 6_919_161_856,
    "bert-base-uncased": 109_514_298,
    "bigcode/starcoder2-3b": 3_030_371_328,
    "bigscience/bloom": 176_247_271_424,
    "bigscience/bloom-560m": 559_214_592,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
    "deepseek-ai/DeepSeek-V2-Lite": 15_706_484_224,
    "distilbert-base-uncased": 66_985_530,
    "facebook/bart-large-cnn": 406_290_432,
    "facebook/dinov2-giant": 1_136_480_768,
    "facebook/nllb-200-distilled-600M": 615_073_792,
    "facebook/opt-125m": 125_239_296,
    "facebook/opt-13b": 12_853_473_280,
    "facebook/opt-350m": 331_196_416,
    "google/flan-t5-base": 247_577_856,
    "google/flan-t5-xxl": 11_135_332_352,
    "google/gemma-2-27b": 27_227_128_320,
    "google/gemma-2-9b": 9_241_705_984,
    "google/gemma-3-1b-it": 999_885_952,
    "google/gemma-3-27b-it": 27_432_406_640,
    "google/gemma-3-4b-it": 4_300_079_472,
    "google/gemma-7b": 8_537_680_896,
    "google/mt5-small": 300_176_768,
    "google/paligemma-3b-pt-224": 2_923_466_480,
    "google/siglip-so400m-patch14-384": 877_960_498,
    "google/vit-base-patch16-224": 86_567_656,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "ibm-granite/granite-3.3-8b-instruct": 8_170_864_640,
    "ibm-granite/granite-3.0-1b-a400m-base": 1_334_628_352,
    "internlm/internlm2-7b": 7_737_708_544,
    "llava-hf/llava-1.5-7b-hf": 7_063_427_072,
    "meta-llama/Llama-2-70b-hf": 68_976_648_192,
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Llama-3.1-405B": 405_853_388_800,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.2-11B-Vision": 10_670_220_835,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "meta-llama/Llama-4-Scout-17B-16E": 108_641_793_536,
    "microsoft/Phi-3-mini-4k-instruct": 3_821_079_552,
    "microsoft/Phi-3.5-MoE-instruct": 41_873_153_344,
    "microsoft/Phi-4-mini-instruct": 3_836_021_760,
    "microsoft/phi-2": 2_779_683_840,
    "microsoft/phi-4": 14_659_507_200,
    "microsoft/swin-tiny-patch4-window7-224": 28_288_354,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "mistralai/Mistral-7B-v0.3": 7_248_023_552,
    "mistralai/Mistral-Nemo-Base-2407": 12_247_782_400,
    "mistralai/Mixtral-8x22B-Instruct-v0.1": 140_630_071_296,
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": 24_011_361_280,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "openai/clip-vit-large-patch14": 427_616_513,
    "openai/gpt-oss-120b": 116_829_156_672,
    "openai/gpt-oss-20b": 20_914_757_184,
    "openai/whisper-large-v3": 1_543_490_560,
    "roberta-large": 355_412_057,
    "sentence-transformers/all-MiniLM-L6-v2": 22_713_216,
    "t5-11b": 11_307_321_344,
    "t5-small": 60_506_624,
    "tiiuae/falcon-40b": 41_303_293_952,
    "tiiuae/falcon-7b": 6_921_720_704,
}

# Fields without which the shapes of a model type are not decided, whatever defaults a reader may have.
_DECODER = "vocab_size hidden_size num_hidden_layers num_attention_heads tie_word_embeddings "
_LLAMA = _DECODER + "intermediate_size num_key_value_heads hidden_act "
_ENCODER = _DECODER + "intermediate_size max_position_embeddings hidden_act hidden_dropout_prob "
_ROBERTA = _ENCODER + "attention_probs_dropout_prob type_vocab_size"
_SEQ2SEQ = (
    "vocab_size d_model encoder_layers decoder_layers encoder_ffn_dim decoder_ffn_dim encoder_attention_heads "
    "decoder_attention_heads activation_function dropout attention_dropout activation_dropout tie_word_embeddings "
)
_T5 = "vocab_size d_model d_kv d_ff num_layers num_decoder_layers num_heads feed_forward_proj tie_word_embeddings"
_GPT2 = "vocab_size n_embd n_layer n_head n_positions activation_function resid_pdrop embd_pdrop attn_pdrop"
_VIT = "hidden_size intermediate_size num_hidden_layers num_attention_heads image_size patch_size hidden_act"
_VISION_LANGUAGE = "text_config vision_config tie_word_embeddings"
_DEEPSEEK = (
    _LLAMA + "moe_intermediate_size n_routed_experts n_shared_experts num_experts_per_tok first_k_dense_replace "
    "q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim"
)
_OWN_CODE = "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
NEEDED = {
    "baichuan": _OWN_CODE + "tie_word_embeddings",
    "chatglm": "hidden_size num_layers num_attention_heads padded_vocab_size tie_word_embeddings",
    "internlm": _OWN_CODE + "bias",
    "minicpm": _LLAMA,
    "qwen": _OWN_CODE + "kv_channels seq_length",
    "albert": _ENCODER + "embedding_size num_hidden_groups inner_group_num",
    "bart": _SEQ2SEQ + "max_position_embeddings",
    "bert": _ROBERTA,
    "bloom": "vocab_size hidden_size n_layer n_head tie_word_embeddings",
    "clip": "text_config vision_config projection_dim",
    "cohere": _LLAMA + "use_qk_norm",
    "cohere2": _LLAMA + "head_dim sliding_window",
    "deberta-v2": _ENCODER + "relative_attention position_buckets pos_att_type share_att_key",
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "deit": _VIT,
    "dinov2": "hidden_size mlp_ratio num_hidden_layers num_attention_heads image_size patch_size use_swiglu_ffn",
    "distilbert": "vocab_size dim hidden_dim n_layers n_heads max_position_embeddings dropout attention_dropout",
    "electra": _ENCODER + "embedding_size",
    "ernie4_5": _LLAMA + "head_dim use_bias",
    "exaone4": _LLAMA + "head_dim sliding_window",
    "falcon": _DECODER + "multi_query parallel_attn new_decoder_architecture alibi bias",
    "gemma": _LLAMA + "head_dim",
    "gemma2": _DECODER + "intermediate_size num_key_value_heads head_dim hidden_activation sliding_window",
    "gemma3": _VISION_LANGUAGE,
    "nemotron": _DECODER + "intermediate_size num_key_value_heads head_dim partial_rotary_factor",
    "falcon_h1": _DECODER
    + "intermediate_size num_key_value_heads head_dim mamba_d_ssm mamba_n_heads mamba_d_state mamba_n_groups "
    + "mamba_chunk_size mamba_rms_norm mamba_norm_before_gate",
    "gemma4": _VISION_LANGUAGE,
    "gemma4_unified": _VISION_LANGUAGE,
    "gemma3_text": _DECODER + "intermediate_size num_key_value_heads head_dim hidden_activation sliding_window",
    "glm": _LLAMA + "head_dim attention_bias partial_rotary_factor",
    "glm4v": _VISION_LANGUAGE,
    "glm4": _LLAMA + "head_dim attention_bias partial_rotary_factor",
    "apertus": _LLAMA,
    "arcee": _LLAMA + "head_dim",
    "glm4_moe_lite": _LLAMA + "q_lora_rank kv_lora_rank qk_nope_head_dim moe_intermediate_size n_routed_experts",
    "seed_oss": _LLAMA + "head_dim attention_bias attention_out_bias attention_dropout residual_dropout",
    "glm4_moe": _LLAMA + "head_dim attention_bias moe_intermediate_size n_routed_experts n_shared_experts",
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2 + " n_inner multi_query",
    "gpt_neo": "vocab_size hidden_size num_layers num_heads attention_types window_size max_position_embeddings",
    "gpt_neox": _DECODER + "intermediate_size hidden_act rotary_pct use_parallel_residual",
    "gpt_oss": _LLAMA + "head_dim attention_bias num_local_experts num_experts_per_tok sliding_window",
    "codegen": _GPT2 + " rotary_dim",
    "gptj": _GPT2 + " rotary_dim",
    "granite": _LLAMA,
    "granitemoe": _LLAMA + "num_local_experts num_experts_per_tok",
    "granitemoehybrid": _LLAMA + "layer_types num_local_experts position_embedding_type shared_intermediate_size",
    "idefics3": _VISION_LANGUAGE + " scale_factor",
    "internlm2": _LLAMA + "bias",
    "internvl": _VISION_LANGUAGE + " downsample_ratio",
    "lfm2": _DECODER + "intermediate_size num_key_value_heads full_attn_idxs",
    "lfm2_vl": _VISION_LANGUAGE + " projector_hidden_size downsample_factor",
    "lfm2_moe": _DECODER + "layer_types num_dense_layers num_experts num_experts_per_tok moe_intermediate_size",
    "llama": _LLAMA,
    "llama4": _VISION_LANGUAGE,
    "llava": _VISION_LANGUAGE + " vision_feature_layer",
    "llava_next": _VISION_LANGUAGE + " vision_feature_layer image_grid_pinpoints",
    "m2m_100": _SEQ2SEQ,
    "marian": _SEQ2SEQ + "max_position_embeddings",
    "mbart": _SEQ2SEQ + "max_position_embeddings",
    "minimax_m2": _LLAMA + "head_dim rotary_dim num_local_experts num_experts_per_tok",
    "mistral": _LLAMA + "sliding_window",
    "mistral3": _VISION_LANGUAGE + " spatial_merge_size",
    "mixtral": _LLAMA + "num_local_experts num_experts_per_tok",
    "mllama": _VISION_LANGUAGE,
    "modernbert": _DECODER + "intermediate_size local_attention global_attn_every_n_layers",
    "mpnet": _ENCODER + "relative_attention_num_buckets",
    "mpt": "vocab_size d_model n_heads n_layers expansion_ratio max_seq_len no_bias attn_config",
    "mt5": _T5,
    "olmo": _LLAMA,
    "olmo2": _LLAMA,
    "olmo3": _LLAMA + "sliding_window",
    "olmoe": _LLAMA + "num_experts num_experts_per_tok",
    "opt": _DECODER + "ffn_dim word_embed_proj_dim do_layer_norm_before max_position_embeddings dropout",
    "paligemma": _VISION_LANGUAGE + " projection_dim",
    "pegasus": _SEQ2SEQ + "max_position_embeddings",
    "phi": _LLAMA + "partial_rotary_factor",
    "phi3": _LLAMA,
    "phimoe": _LLAMA + "num_local_experts num_experts_per_tok attention_bias lm_head_bias",
    "qwen2": _LLAMA,
    "qwen2_5_vl": _VISION_LANGUAGE,
    "qwen2_moe": _LLAMA + "num_experts num_experts_per_tok moe_intermediate_size shared_expert_intermediate_size",
    "qwen2_vl": _VISION_LANGUAGE,
    "qwen3": _LLAMA + "head_dim",
    "qwen3_5": _VISION_LANGUAGE,
    "qwen3_5_moe": _VISION_LANGUAGE,
    "qwen3_moe": _LLAMA + "head_dim num_experts num_experts_per_tok moe_intermediate_size",
    "qwen3_next": _LLAMA + "head_dim full_attention_interval linear_num_value_heads linear_num_key_heads num_experts",
    "qwen3_vl": _VISION_LANGUAGE,
    "qwen3_vl_moe": _VISION_LANGUAGE,
    "roberta": _ROBERTA,
    "siglip": "text_config vision_config",
    "smollm3": _LLAMA + "no_rope_layer_interval",
    "smolvlm": _VISION_LANGUAGE + " scale_factor",
    "stablelm": _LLAMA + "partial_rotary_factor use_qkv_bias qk_layernorm use_parallel_residual",
    "starcoder2": _LLAMA + "use_bias residual_dropout embedding_dropout attention_dropout",
    "swin": "embed_dim depths num_heads window_size mlp_ratio image_size patch_size",
    "t5": _T5,
    "vit": _VIT,
    "voxtral": "text_config audio_config tie_word_embeddings",
    "vit_mae": _VIT + " decoder_hidden_size decoder_intermediate_size decoder_num_hidden_layers",
    "whisper": _SEQ2SEQ + "num_mel_bins max_source_positions max_target_positions",
    "xlm-roberta": _ROBERTA,
}


def known(name: str) -> Model:
    model = models.find(name)
    assert model is not None, name
    return model


def class_of(config: dict[str, Any]) -> Any:
    (architecture,) = config["architectures"]
    return getattr(transformers, SPELLED.get(architecture, architecture))


def build(config: dict[str, Any]) -> Any:
    """The class that the config names, on the meta device: shapes without values."""
    kind = class_of(config)
    settings = json.loads(json.dumps({key: value for key, value in config.items() if key != "dtype"}))
    with torch.device("meta"):
        return kind(kind.config_class.from_dict(settings))


def count(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def keeps_its_own_head(config: dict[str, Any]) -> bool:
    """T5 v1.1 and its kin, whose class is built with a shared head that their checkpoints do not share: see the test
    of a checkpoint below."""
    return config["model_type"] in ("t5", "mt5") and not config["tie_word_embeddings"]


@pytest.fixture(scope="module", autouse=True)
def _no_cycles() -> Iterator[None]:
    """transformers leaves so many objects behind that looking for cycles takes longer than building the models."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


# -- counts


@pytest.mark.parametrize("name", [name for name in IDS if not OWN_CODE & set(known(name).config["architectures"])])
def test_parameters_are_those_of_the_class_in_transformers(name: str) -> None:
    model = known(name)
    expected = count(build(model.config))
    if keeps_its_own_head(model.config):
        expected += model.config["vocab_size"] * model.config["d_model"]
    assert model.parameters == expected


def test_only_architectures_with_code_of_their_own_are_not_held_against_transformers() -> None:
    architectures = {architecture for name in IDS for architecture in known(name).config["architectures"]}
    assert {a for a in architectures if not hasattr(transformers, SPELLED.get(a, a))} == OWN_CODE


@pytest.mark.parametrize("name", [name for name in IDS if known(name).config["model_type"] == "internlm2"])
def test_internlm2_counts_what_llama_counts_whose_matrices_it_joins(name: str) -> None:
    model = known(name)
    llama = {**model.config, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    assert model.parameters == count(build(llama))


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items(), ids=PUBLISHED)
def test_parameters_are_those_of_the_published_checkpoint(name: str, parameters: int) -> None:
    assert known(name).parameters == parameters


# Checkpoints that hold a layer for predicting several tokens at once, which transformers does not build.
MULTI_TOKEN = {
    "Qwen/Qwen3.5-0.8B": 873_438_784,
    "Qwen/Qwen3.5-27B": 27_781_427_952,
    "Qwen/Qwen3.5-35B-A3B": 35_951_822_704,
    "Qwen/Qwen3.5-4B": 4_659_865_088,
    "Qwen/Qwen3.5-9B": 9_653_104_368,
}


@pytest.mark.parametrize(("name", "published"), MULTI_TOKEN.items(), ids=MULTI_TOKEN)
def test_a_published_checkpoint_holds_one_layer_more_for_predicting_several_tokens(name: str, published: int) -> None:
    """That layer attends fully; beside it are three norms and a projection of hidden state and embedding."""
    model = known(name)
    width = model.config["text_config"]["hidden_size"]
    layers = build(model.config).model.language_model.layers
    (full,) = {count(layer) for layer in layers if hasattr(layer, "self_attn")}
    assert published == model.parameters + full + 3 * width + 2 * width * width


def test_a_checkpoint_of_t5_with_a_head_of_its_own_keeps_it(tmp_path: Path) -> None:
    """transformers 5 always builds T5 with a shared head, and on loading unties it where the file holds another."""
    settings = {**known("google/flan-t5-small").config, "vocab_size": 64, "d_model": 16, "d_ff": 32, "num_layers": 1}
    settings.update(num_decoder_layers=1, num_heads=2, d_kv=8)
    kind = class_of(settings)
    built = kind(kind.config_class.from_dict(dict(settings)))
    weights = {"shared.weight": built.shared.weight, "lm_head.weight": built.shared.weight + 1}
    weights.update((n, w) for n, w in built.state_dict().items() if "embed_tokens" not in n and n not in weights)
    save_file({n: w.detach().clone() for n, w in weights.items()}, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(settings))
    loaded = kind.from_pretrained(tmp_path)
    assert count(loaded) == count(built) + 64 * 16
    assert not torch.equal(loaded.lm_head.weight, loaded.shared.weight)


# -- the file


def test_the_catalogue_is_wide() -> None:
    assert len(IDS) >= 130
    assert len({known(name).config["model_type"] for name in IDS}) >= 50
    shapes = {
        json.dumps({k: v for k, v in known(name).config.items() if k not in ("dtype", "max_position_embeddings")})
        for name in IDS
    }
    assert len(shapes) >= 130


def test_ids_are_unique_in_any_case() -> None:
    assert len({name.lower() for name in ENTRIES}) == len(ENTRIES)


def test_the_file_is_sorted_and_compact() -> None:
    text = PATH.read_text(encoding="utf-8")
    lines = text.splitlines()
    for part in ("models", "sources", "types"):
        assert list(CATALOGUE[part]) == sorted(CATALOGUE[part])
        for name, entry in CATALOGUE[part].items():
            written = json.dumps({name: entry}, sort_keys=True, separators=(",", ":"))[1:-1]
            assert written in lines or written + "," in lines, name
    assert len(text) < 172 * 1024


def test_to_find_a_model_is_to_read_the_file_and_look_at_no_other_entry() -> None:
    models._models.clear()
    with counted_lines() as lines:
        models.find("gpt2")
    assert lines.ran < 200 < len(ENTRIES)


@pytest.mark.parametrize("kind", sorted({known(name).config["model_type"] for name in IDS}))
def test_entries_of_a_type_hold_what_decides_their_shapes(kind: str) -> None:
    for name in IDS:
        model = known(name)
        if model.config["model_type"] == kind:
            assert set(NEEDED[kind].split()) <= set(model.config), name
            assert "like" not in model.config
            assert "parameters" not in model.config
            for part in ("text_config", "vision_config"):
                assert isinstance(model.config.get(part, {"model_type": ""})["model_type"], str)


def test_a_dtype_is_one_of_torchs() -> None:
    for name in IDS:
        dtype = known(name).config.get("dtype")
        assert dtype in (None, "float32", "float16", "bfloat16"), name


def test_where_an_entry_was_read_is_said_once() -> None:
    named = [name for names in CATALOGUE["sources"].values() for name in names]
    assert set(named) <= set(ENTRIES)
    assert len(set(named)) == len(named)


def test_shared_fields_are_those_that_their_entries_would_repeat() -> None:
    for kind, shared in CATALOGUE["types"].items():
        entries = [e for e in ENTRIES.values() if isinstance(e, dict) and e.get("model_type") == kind]
        assert len(entries) > 1, kind
        for field, value in shared.items():
            assert all(field not in entry or entry[field] != value for entry in entries), (kind, field)


# -- spellings


def test_an_alias_names_an_entry_and_is_that_model() -> None:
    for alias, name in ALIASES.items():
        assert isinstance(ENTRIES[name], dict), alias
        assert known(alias) == known(name)
        assert known(alias).name == name


def test_a_variant_differs_from_what_it_is_like() -> None:
    for name in IDS:
        like = ENTRIES[name].get("like")
        if like is not None:
            assert known(name).config != known(like).config
            assert known(name).config["model_type"] == known(like).config["model_type"]


@pytest.mark.parametrize(
    ("mirrored", "name"),
    [
        pytest.param("LLM-Research/Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B", id="Llama"),
        pytest.param("AI-ModelScope/bert-base-chinese", "google-bert/bert-base-chinese", id="BERT"),
        pytest.param("01ai/Yi-1.5-6B", "01-ai/Yi-6B", id="Yi"),
        pytest.param("ZhipuAI/GLM-4-9B-0414", "THUDM/GLM-4-9B-0414", id="GLM"),
        pytest.param("unsloth/SmolLM2-360M", "HuggingFaceTB/SmolLM2-360M", id="SmolLM2, of Unsloth's"),
        pytest.param("NousResearch/Meta-Llama-3.1-405B", "meta-llama/Llama-3.1-405B", id="Llama, of Nous Research's"),
    ],
)
def test_mirrors_have_others_models_under_names_of_their_own(mirrored: str, name: str) -> None:
    found = models.find(mirrored)
    assert found is not None
    assert found.name == name
    assert mirrored not in models.names()


@pytest.mark.parametrize(
    "name", ["LLM-Research/none", "somebody/Meta-Llama-3.1-8B-Instruct", "LLM-Research/", "LLM-Research"]
)
def test_other_organisations_are_no_mirrors(name: str) -> None:
    assert models.find(name) is None


def test_what_a_mirror_holds_in_another_form_is_not_taken_for_the_original() -> None:
    assert models.find("microsoft/Phi-4-mini-instruct") is not None
    assert models.find("unsloth/Phi-4-mini-instruct") is None
    assert models.quantised("unsloth/Phi-4-mini-instruct-bnb-4bit") is None


@pytest.mark.parametrize(
    ("name", "original", "method", "bits"),
    [
        pytest.param(
            "unsloth/gemma-2-9b-bnb-4bit", "google/gemma-2-9b", "bitsandbytes", None, id="Unsloth's, in 4 bits"
        ),
        pytest.param(
            "unsloth/qwen3-14b-unsloth-bnb-4bit", "Qwen/Qwen3-14B", "bitsandbytes", None, id="Unsloth's dynamic one"
        ),
        pytest.param("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "Qwen/Qwen2-7B-Instruct", "gptq", 8, id="Qwen's, by GPTQ"),
        pytest.param(
            "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4", "meta-llama/Llama-3.1-8B", "awq", 4, id="a single one"
        ),
    ],
)
def test_a_quantised_copy_is_its_original_with_how_it_is_quantised(
    name: str, original: str, method: str, bits: int | None
) -> None:
    copy = models.quantised(name)
    assert copy is not None
    assert copy.name == original
    stated = copy.config["quantization_config"]
    assert (stated["quant_method"], stated.get("bits")) == (method, bits)
    assert {key for key in copy.config if copy.config[key] != known(original).config.get(key)} <= {
        "dtype",
        "quantization_config",
    }


def test_the_originals_of_single_copies_are_known() -> None:
    for name, copy in COPIES["copies"].items():
        assert name == name.lower()
        assert models.find(copy["of"]) is not None, name


def test_what_no_reader_describes_is_named_by_its_type_and_is_in_no_other_list() -> None:
    assert models.undescribed("ai21labs/Jamba-v0.1") == "jamba"
    assert models.undescribed("google/gemma-3-4b-it") == ""
    assert models.undescribed("tiiuae/Falcon-H1-3B-Base") == ""
    assert models.unlisted("tiiuae/Falcon-H1-3B-Base") == "falcon_h1"
    for begins in (*COPIES["undescribed"], *COPIES["unlisted"]):
        assert begins == begins.lower()
        assert not [name for name in ENTRIES if name.lower().startswith(begins)], begins


def test_a_type_that_transformers_has_is_spelled_as_it_spells_it() -> None:
    """Of the others the code comes with the weights, or they are no models of transformers."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    own = {"btlm", "deepseek_vl_v2", "hymba", "kimi_vl", "mimo", "minicpmv", "molmo"}
    own |= {"deepseek_ocr", "phi3_v", "qwen-audio", "qwen-vl", "qwen3_tts"}
    named = {kind for kind in COPIES["undescribed"].values() if " " not in kind}
    assert named - set(CONFIG_MAPPING_NAMES) == own
    described = {kind for one in KINDS if "causal_lm" in one.classes for kind in one.types}
    assert not named & described


@pytest.mark.parametrize(
    ("text", "name"),
    [
        pytest.param("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B", id="a tuned model of same shape"),
        pytest.param("unsloth/Meta-Llama-3.1-8B", "meta-llama/Llama-3.1-8B", id="a mirror"),
        pytest.param("meta-llama/Llama-2-7b", "meta-llama/Llama-2-7b-hf", id="the repository of the original weights"),
        pytest.param("gpt2", "openai-community/gpt2", id="a name without its organisation"),
        pytest.param("qwen/qwen3-0.6b", "Qwen/Qwen3-0.6B", id="small letters"),
        pytest.param("GPT2", "openai-community/gpt2", id="an alias in capitals"),
    ],
)
def test_spellings(text: str, name: str) -> None:
    assert known(text).name == name


@given(st.sampled_from(sorted(ENTRIES)), st.data())
def test_case_does_not_matter(name: str, data: st.DataObject) -> None:
    spelled = "".join(data.draw(st.sampled_from((c.lower(), c.upper()))) for c in name)
    assert models.find(spelled) == models.find(name)


@given(st.text(max_size=40))
def test_any_other_text_is_no_model(text: str) -> None:
    if text.lower() not in {name.lower() for name in ENTRIES}:
        assert models.find(text) is None


def test_the_config_of_one_caller_is_not_that_of_the_next() -> None:
    known("gpt2").config["n_layer"] = 1
    assert known("gpt2").config["n_layer"] == 12


def test_decoders_are_the_entries_of_their_types() -> None:
    assert "google/gemma-2b" in decoders.names()
    assert decoders.find("google/gemma-2b-it") == known("google/gemma-2b").config
    assert decoders.find("gpt2") is None
    assert "gpt2" not in decoders.names()


@pytest.mark.parametrize(
    ("config", "length"),
    [
        pytest.param({"max_position_embeddings": 4096}, 4096, id="rotary decoders and encoders"),
        pytest.param({"n_positions": 1024}, 1024, id="GPT-2"),
        pytest.param({"text_config": {"max_position_embeddings": 77}}, 77, id="a nested text model"),
        pytest.param({"max_position_embeddings": None, "max_seq_len": 8192}, 8192, id="a null before it"),
        pytest.param({"max_position_embeddings": "many", "text_config": []}, None, id="what is no number"),
        pytest.param({}, None, id="nothing"),
    ],
)
def test_context(config: dict[str, Any], length: int | None) -> None:
    assert models.context(config) == length


# -- memlint models


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, ("models", *arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_models_lists_every_id_with_its_type_parameters_context_and_source() -> None:
    lines = run().stdout.splitlines()
    assert lines[0].split() == ["id", "type", "parameters", "context", "source"]
    assert [line.split()[0] for line in lines[1:]] == models.names() == sorted(ENTRIES)
    listed = {line.split()[0]: line.split(maxsplit=4)[1:] for line in lines[1:]}
    assert listed["openai-community/gpt2"] == ["gpt2", "124,439,808", "1,024", "catalogue"]
    assert listed["gpt2"] == ["gpt2", "124,439,808", "1,024", "same as openai-community/gpt2"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        pytest.param("OPT-1", ["facebook/opt-1.3b", "facebook/opt-125m", "facebook/opt-13b"], id="a part, in any case"),
        pytest.param("openai/whisper-b*", ["openai/whisper-base", "openai/whisper-base.en"], id="a pattern"),
        pytest.param("pythia-1?b", ["EleutherAI/pythia-12b"], id="one letter, without the organisation"),
        pytest.param("openai-community/gpt2-x?", ["openai-community/gpt2-xl"], id="one letter, with it"),
    ],
)
def test_models_shows_those_that_fit(pattern: str, expected: list[str]) -> None:
    names = [line.split()[0] for line in run(pattern).stdout.splitlines()[1:]]
    assert names == expected


def test_models_as_json_holds_the_hyper_parameters() -> None:
    (entry,) = json.loads(run("openai-community/gpt2-xl", "--output-format", "json").stdout)
    assert entry["id"] == "openai-community/gpt2-xl"
    assert entry["parameters"] == 1_557_611_200
    assert entry["context"] == 1024
    assert entry["config"]["n_layer"] == 48


def test_models_looks_where_configs_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "none"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text('{"model_type": "llama", "max_position_embeddings": 77}')
    line = run("./mine").stdout.splitlines()[1]
    assert line.split() == ["./mine", "llama", "-", "77", "mine/config.json"]


def test_an_unknown_model_is_an_error_that_says_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    result = run("nobody/nothing")
    assert result.exit_code == 2
    assert "'nobody/nothing' is not in the catalogue" in result.stderr
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{\n  broken")
    result = run("broken")
    assert result.exit_code == 2
    assert "broken/config.json:2: not JSON" in result.stderr
