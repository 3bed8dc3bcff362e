"""Small configs of models whose code comes with their weights, one for each way in which it computes."""

from __future__ import annotations

from typing import Any

SIZES = {"vocab_size": 1000, "hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": 3}
GLM = {
    "model_type": "chatglm",
    **{name: SIZES[name] for name in ("hidden_size", "num_attention_heads")},
    **{"num_layers": 3, "kv_channels": 32, "multi_query_group_num": 2, "ffn_hidden_size": 200, "seq_length": 256},
    **{"add_qkv_bias": True, "add_bias_linear": False, "rmsnorm": True, "multi_query_attention": True},
}
FIRST_GLM = {
    "model_type": "chatglm",
    **{name: SIZES[name] for name in ("vocab_size", "hidden_size", "num_attention_heads")},
    **{"num_layers": 3, "inner_hidden_size": 512, "max_sequence_length": 256},
}
BAICHUAN = {"model_type": "baichuan", **SIZES, "intermediate_size": 200, "model_max_length": 256}
WIDE = {"hidden_size": 5120, "num_attention_heads": 40, "num_hidden_layers": 2}
OLDER = {**SIZES, "intermediate_size": 200, "max_position_embeddings": 256}
CONFIGS: dict[str, dict[str, Any]] = {
    "chatglm": FIRST_GLM,
    "chatglm2": {**GLM, "padded_vocab_size": 1000},
    "glm4": {**GLM, "padded_vocab_size": 1 << 17, "hidden_size": 64, "kv_channels": 16},
    "baichuan of 7B": BAICHUAN,
    "baichuan of 13B": {**BAICHUAN, **WIDE},
    "baichuan2 of 7B": {**BAICHUAN, "vocab_size": 100_001, "hidden_size": 64},
    "baichuan2 of 13B": {**BAICHUAN, **WIDE, "vocab_size": 100_001},
    "internlm": {"model_type": "internlm", **OLDER},
    "minicpm": {"model_type": "minicpm", **OLDER},
    "qwen": {"model_type": "qwen", **SIZES, "intermediate_size": 512, "kv_channels": 32, "seq_length": 256},
}
