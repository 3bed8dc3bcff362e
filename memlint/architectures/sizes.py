"""What the sizes of a run and of its model may be: checked before anything is built of them.

``check_facts`` is for the numbers that a run is counted by, in whatever family. ``Sizes`` is the contents of a
``config.json``, or of a family's own keys under the same names: whoever reads a value that the table knows gets one
that is of its type and in its range, or UnknownModel, which names the key and the value. What transformers'
configuration classes and modules refuse is refused; what they take is not. ``Agreement`` is for sizes that have to
agree with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Any

from memlint.facts.spec import TrainingSpec, UnknownModel
from memlint.named_tuple import NamedTuple

MOST = 1 << 31  # of one dimension: the longest contexts have 2^24 places
MOST_ROWS = 1 << 24  # of a batch, of a vocabulary (the largest have 2^18), and tokens of a sample
MOST_WIDTH = 1 << 20  # the widest published perceptrons have 2^16 numbers
MOST_PARTS = 1 << 14  # heads and what each of them has, experts; rows of an adapter
# What a slip of the keyboard asks for is said to be one, not built layer by layer.
MOST_LAYERS = 2_000


class Kind(NamedTuple):
    """What a value has to be, in words, and the test of one that is there."""

    words: str
    accepts: Callable[[Any], bool]


def _whole(least: int, most: int = MOST) -> Kind:
    return Kind(f"a whole number from {least:,} to {most:,}", lambda value: _is_whole(value) and least <= value <= most)


def _number(least: float, most: float) -> Kind:
    def accepts(value: Any) -> bool:
        return (_is_whole(value) or isinstance(value, float)) and isfinite(value) and least <= value <= most

    return Kind(f"a number from {least:g} to {most:g}", accepts)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _sides(most: int) -> Kind:
    side = _whole(1, most)

    def accepts(value: Any) -> bool:
        sides = value if isinstance(value, (list, tuple)) and len(value) == 2 else (value,)
        return all(side.accepts(one) for one in sides)

    return Kind(f"one whole number, or two, from 1 to {most:,}", accepts)


def _is_list(value: Any, accepts: Callable[[Any], bool]) -> bool:
    return isinstance(value, (list, tuple)) and len(value) <= MOST_LAYERS and all(map(accepts, value))


SIZE = _whole(1)
COUNT = _whole(0)
ROWS = _whole(1, MOST_ROWS)
ROWS_OR_NONE = _whole(0, MOST_ROWS)
WIDTH = _whole(1, MOST_WIDTH)
WIDTH_OR_NONE = _whole(0, MOST_WIDTH)
PARTS = _whole(1, MOST_PARTS)
PARTS_OR_NONE = _whole(0, MOST_PARTS)
LAYERS = _whole(1, MOST_LAYERS)
LAYER = _whole(0, MOST_LAYERS)
CHANCE = _number(0, 1)
FACTOR = _number(1e-3, 1e3)
SWITCH = Kind("true or false", lambda value: isinstance(value, bool) or (_is_whole(value) and value in (0, 1)))
WORD = Kind("a word", lambda value: isinstance(value, str))
PAIR = _sides(MOST)
# Distances that are not limited are -1 (DeBERTa, MPT).
DISTANCE = Kind(f"-1, or a whole number from 0 to {MOST:,}", lambda value: _is_whole(value) and -1 <= value <= MOST)
PATTERN = Kind("a word, or a whole number of layers", lambda value: WORD.accepts(value) or LAYER.accepts(value))
WORDS = Kind("words for at most as many layers as there may be", lambda value: _is_list(value, WORD.accepts))
NUMBERS = Kind("a list of layers", lambda value: _is_list(value, LAYER.accepts))
MAPPING = Kind("a mapping", lambda value: isinstance(value, Mapping))
NAMES = Kind("a word, or a list of words", lambda value: WORD.accepts(value) or _is_list(value, WORD.accepts))

_BY_KIND: tuple[tuple[Kind, str], ...] = (
    (ROWS, "vocab_size decoder_vocab_size padded_vocab_size"),
    (ROWS_OR_NONE, "num_labels"),
    (
        WIDTH,
        "hidden_size n_embd d_model intermediate_size n_inner ffn_dim ffn_hidden_size d_ff intermediate_size_mlp "
        "moe_intermediate_size block_ff_dim block_multiple_of word_embed_proj_dim embedding_size encoder_ffn_dim "
        "decoder_ffn_dim dim hidden_dim embed_dim out_hidden_size vision_output_dim projector_input_dim "
        "projector_output_dim intermediate_dim padding_multiple mlp_hidden_size",
    ),
    (WIDTH_OR_NONE, "shared_expert_intermediate_size shared_intermediate_size"),
    (
        PARTS,
        "num_attention_heads n_head n_heads num_heads num_key_value_heads num_kv_heads kv_n_heads head_dim d_kv "
        "encoder_attention_heads decoder_attention_heads kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim "
        "linear_num_key_heads linear_num_value_heads linear_key_head_dim linear_value_head_dim linear_conv_kernel_dim "
        "conv_L_cache num_experts_per_tok relative_attention_num_buckets conv_groups num_mel_bins num_channels "
        "in_channels in_chans temporal_patch_size spatial_merge_size head_size n_query_groups n_kv_heads",
    ),
    (
        PARTS_OR_NONE,
        "num_experts num_local_experts n_routed_experts n_shared_experts n_expert n_expert_per_token n_shared_expert "
        "n_expert_groups q_lora_rank rotary_dim conv_kernel_size",
    ),
    (
        SIZE,
        "max_position_embeddings n_positions max_seq_len max_source_positions max_target_positions local_attention "
        "mm_tokens_per_image num_position_embeddings window_size block_size max_sequence_length",
    ),
    (COUNT, "sliding_window attention_chunk_size type_vocab_size"),
    (
        LAYERS,
        "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_decoder_layers depth "
        "num_hidden_groups inner_group_num full_attention_interval no_rope_layer_interval interleave_moe_layer_step "
        "decoder_sparse_step global_attn_every_n_layers projector_layers",
    ),
    (LAYER, "first_k_dense_replace max_window_layers"),
    (
        CHANCE,
        "attention_dropout attn_dropout attn_pdrop resid_pdrop embd_pdrop emb_pdrop dropout dropout_rate "
        "hidden_dropout resid_dropout embed_dropout residual_dropout embedding_dropout activation_dropout mlp_dropout "
        "hidden_dropout_prob attention_probs_dropout_prob classifier_dropout classifier_dropout_prob "
        "seq_classif_dropout qa_dropout pooler_dropout drop_path_rate partial_rotary_factor rotary_pct "
        "rotary_percentage",
    ),
    (FACTOR, "expansion_ratio mlp_ratio block_ffn_dim_multiplier"),
    (
        SWITCH,
        "tie_word_embeddings tie_embedding attention_bias attention_out_bias mlp_bias use_bias bias qkv_bias "
        "use_qkv_bias enable_bias lm_head_bias norm_bias decoder_bias classifier_bias conv_bias no_bias "
        "qk_ln qk_gn rope "
        "multimodal_projector_bias use_sliding_window use_parallel_residual qk_layernorm use_qk_norm "
        "attn_temperature_tuning block_auto_adjust_ff_dim reorder_and_upcast_attn add_cross_attention "
        "do_layer_norm_before _remove_final_layer_norm multi_query new_decoder_architecture parallel_attn alibi "
        "rope_interleave norm_topk_prob relative_attention position_biased_input share_att_key is_decoder "
        "share_encoder_decoder_embeddings scale_embedding use_swiglu_ffn learned_pos_emb "
        "apply_residual_connection_post_layernorm norm_qk post_attention_norm post_mlp_norm parallel_residual "
        "shared_attention_norm attn_bias rope_interleave scale_embeddings norm_1 norm_2 weight_tying include_bias "
        "norm_after attention_layer_norm layer_norm_with_affine attention_layer_norm_with_affine rope_full_precision "
        "scale_logits multi_query_attention bias_for_layer_norm",
    ),
    (
        WORD,
        "model_type hidden_act activation_function hidden_activation activation conv_act projector_hidden_act "
        "feed_forward_proj position_embedding_type topk_method attn_type ffn_type norm_type norm_rel_ebd "
        "classifier_pooling vision_feature_select_strategy tower_attention norm_class_name mlp_class_name norm_qk_type "
        "layer_norm_type activation_type block_type",
    ),
    (PAIR, "image_size patch_size"),
    (DISTANCE, "position_buckets max_relative_positions sliding_window_size"),
    (PATTERN, "sliding_window_pattern _sliding_window_pattern"),
    (WORDS, "layer_types layers_block_type"),
    (
        NUMBERS,
        "full_attn_idxs no_rope_layers moe_layers mlp_only_layers fullatt_block_indexes deepstack_visual_indexes "
        "sliding_window_indices",
    ),
    (NAMES, "pos_att_type"),
    (MAPPING, "attn_config ffn_config"),
)
KINDS: dict[str, Kind] = {name: kind for kind, names in _BY_KIND for name in names.split()}
# Keys whose null is a value of its own: no window, all of a head. Any other null is as good as a key that is not there.
_NULL_COUNTS = frozenset(
    ("attention_chunk_size", "block_ffn_dim_multiplier", "rotary_dim", "sliding_window", "sliding_window_pattern")
)


class Sizes(Mapping[str, Any]):
    """The contents of a ``config.json``, checked as they are read; so are those of the mappings in it.

    ``source`` says in a message where they are from. Reading raises UnknownModel for a value that is of the wrong type
    or out of range.
    """

    __slots__ = ("contents", "source")

    def __init__(self, contents: Mapping[str, Any], source: str = "") -> None:
        self.contents: Mapping[str, Any] = contents
        self.source = source
        if isinstance(contents, Sizes):
            self.contents, self.source = contents.contents, source or contents.source

    def __getitem__(self, name: str) -> Any:
        value = self.contents[name]
        kind = KINDS.get(name)
        if kind is not None:
            if value is None and name not in _NULL_COUNTS:
                raise KeyError(name)
            if value is not None:
                check(f"{self.source or 'config.json'}: {name}", value, kind)
        return Sizes(value, self.source) if isinstance(value, Mapping) else value

    def number(self, name: str) -> int:
        """A size that there has to be."""
        found = self.get(name)
        if found is None:
            raise UnknownModel(f"config.json of model type {self.get('model_type')!r} states no {name}")
        return int(found)

    def __iter__(self) -> Iterator[str]:
        return iter(self.contents)

    def __len__(self) -> int:
        return len(self.contents)


def _shown(value: Any) -> str:
    text = f"{value:,}" if _is_whole(value) and abs(value) < 1 << 63 else ascii(value) if not _is_whole(value) else ""
    text = text or f"a number of {value.bit_length():,} bits"
    return text if len(text) <= 40 else f"{text[:37]}..."


def layer_types(sizes: Mapping[str, Any], layers: int) -> tuple[str, ...] | None:
    """What each layer is; None where the config does not say. (Before transformers 5 there might be more of them.)"""
    stated = sizes.get("layer_types")
    if stated is None:
        return None
    if len(stated) < layers:
        raise UnknownModel(f"layer_types says what {len(stated):,} layers are, of {layers:,}")
    return tuple(stated[:layers])


# ------------------------------------------------------------------------------------------------ the facts of a run

DEVICES = _whole(1, 1 << 20)  # no cluster has a million
ELEMENTS = _whole(0, 1 << 38)  # of a buffer: more are on no device

_FACTS: tuple[tuple[Kind, str], ...] = (
    (
        ROWS,
        "micro_batch_size sequence_length query_length target_length evaluation_sequence_length labels "
        "completion_length sub_batch_size",
    ),
    (ROWS_OR_NONE, "evaluation_batch_size"),
    (_sides(MOST_WIDTH), "image_size"),
    (SIZE, "gradient_accumulation_steps"),
    (PARTS, "sequences_per_sample forward_passes optimizer_rank adapter.virtual_tokens"),
    (PARTS_OR_NONE, "images_per_sample fewest_images most_images loss_chunks lora.r oft.block_size oft.rank"),
    (COUNT, "generated_rows"),
    (LAYER, "checkpointing_every checkpointing_chunk"),
    (ELEMENTS, "parallelism.reduce_bucket_elements"),
    (
        DEVICES,
        # what several of them make together comes last, so that the one that is wrong is named
        "parallelism.data parallelism.shard parallelism.replicas parallelism.tensor parallelism.pipeline "
        "parallelism.context parallelism.ulysses parallelism.expert parallelism.expert_tensor "
        "parallelism.virtual_stages parallelism.micro_batches device_count world_size",
    ),
)
FACTS: dict[str, Kind] = {name: kind for kind, names in _FACTS for name in names.split()}


def check_facts(spec: TrainingSpec) -> None:
    """Raises UnknownModel for a number that no run is counted by."""
    for name, kind in FACTS.items():
        fact = spec.facts.get(name)
        if fact is not None and fact.value is not None:
            check(fact.key or name, fact.value, kind)


def check(name: str, value: Any, kind: Kind) -> None:
    """Raises UnknownModel for a value that is not of its kind."""
    if not kind.accepts(value):
        raise UnknownModel(f"{name} is {_shown(value)}, not {kind.words}")


# Names of one size, in config.json and as trainers with models of their own spell it.
_SPELLINGS = (
    ("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
    ("hidden_size", "n_embd", "d_model", "embed_dim", "dim"),
    ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    ("num_key_value_heads", "num_query_groups", "n_query_groups", "num_kv_heads", "kv_n_heads"),
    ("head_dim", "head_size", "kv_channels"),
    ("intermediate_size", "n_inner", "ffn_hidden_size", "intermediate_dim", "hidden_dim"),
    ("max_position_embeddings", "n_positions", "block_size", "max_seq_len"),
    ("vocab_size", "padded_vocab_size"),
    ("num_local_experts", "num_experts", "n_routed_experts", "n_expert"),
    ("num_experts_per_tok", "moe_router_topk", "n_expert_per_token"),
)


def in_its_words(spec: TrainingSpec, message: str, source: str = "") -> str:
    """A message about sizes, with the names by which the config itself states them.

    ``source`` is what the message says the sizes are from. Where that is the config itself, the message begins with
    the key.
    """
    model = spec.fact("model")
    config = spec.fact("hyperparameters.config")
    if spec.root is None or (model is not None and config is not None and model.node is config.node is not None):
        return message  # they are those of a file, or of the catalogue
    import re

    command = spec.launch is not None and spec.document.format == "shell"
    written = {}
    for node in spec.root.walk():
        name = node.key_path.rpartition(".")[2].replace("-", "_")
        written[name] = f"--{node.shown_path}" if command else node.shown_path
    words: dict[str, str] = {}
    for names in _SPELLINGS:
        known = next((name for name in names if name in written), "")
        if known:
            words.update((name, written.get(name, written[known])) for name in names)
    message = re.sub(r"\w+", lambda word: words.get(word[0], word[0]), message)
    stated = message.removeprefix(f"{source}: ")
    return stated if stated.partition(" ")[0] in written.values() else message


# ------------------------------------------------------------------------------------------------- what has to agree


class Agreement(NamedTuple):
    """Sizes that have to agree: the message, filled with them, where they do not."""

    holds: Callable[[Any], bool]
    message: str


def agree(sizes: Any, agreements: tuple[Agreement, ...]) -> None:
    """Raises UnknownModel where some sizes do not agree."""
    for agreement in agreements:
        if not agreement.holds(sizes):
            raise UnknownModel(agreement.message.format(sizes))


# Of every model whose heads share its width among them.
HEADS_SHARE_WIDTH = Agreement(
    lambda sizes: sizes.width % sizes.heads == 0,
    "hidden_size {0.width:,} cannot be divided among num_attention_heads {0.heads:,}",
)


# The same thing by other names (``attribute_map`` of the configuration classes).
_OTHER_NAMES = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size"),
    "max_position_embeddings": ("n_positions", "max_seq_len"),
    "hidden_act": ("activation_function", "hidden_activation", "activation"),
}


def value_of(config: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """What a ``config.json`` states under a name or its other ones."""
    for key in (name, *_OTHER_NAMES.get(name, ())):
        if config.get(key) is not None:
            return config[key]
    return default


def number_of(config: Mapping[str, Any], name: str) -> int:
    """The same, of a number that has to be there. Raises UnknownModel."""
    found = value_of(config, name)
    if found is None:
        raise UnknownModel(f"config.json of model type {config.get('model_type')!r} states no {name}")
    return int(found)
