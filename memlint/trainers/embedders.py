"""Programs around transformers' Trainer that train embeddings of queries and passages, or scores of pairs of both.

What their own options are where a command leaves them out, what they make of the model, and which of their options ask
for something that is not described.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memlint.named_tuple import NamedTuple

EMBEDDINGS, PAIRS = "embeddings", "pairs"

_FLAG = "FlagEmbedding 1.4"
_FLAG_SINCE = "2024-08-22"  # FlagEmbedding 1.3: setup.py, transformers 4.44.2
_TEVATRON_SINCE = "2024-01-04"  # fcfe707
_OLD_FLAG = "FlagEmbedding 1.2"
_TEVATRON = "Tevatron at dd06310"
_OLD_TEVATRON = "Tevatron 0.1"


class Embedder(NamedTuple):
    """A program.

    title       whose it is
    source      where it stands in the library's code
    defaults    its own options, by the names that the schema of hf-trainer has for them
    refused     options that ask for what is not described -> what that is
    makes       EMBEDDINGS, or PAIRS
    builds      the fact ``model_class``
    length      what bounds a pair: options whose values add up
    mean, last  how it takes a mean of states, and the last one: values of the fact ``embedding_pooling``
    tempered    whether it divides scores
    gathers     it compares with the passages of all processes wherever there are several
    adapters    it makes adapters of PEFT's, with these options where none are stated; None: it makes none
    switch      option that switches adapters on, and its default
    halves      it loads the weights in the half that it computes in
    attention   what it asks for where nothing is stated; "": what transformers takes
    pads        rows are filled up to a multiple of so many tokens where nothing is stated
    names       what it calls options that the schema has under other names
    since       the day that nothing which runs it is older than: of its first release, or of the oldest transformers
                that it takes; "" for none
    """

    title: str
    source: str
    defaults: Mapping[str, Any]
    refused: Mapping[str, str]
    makes: str = EMBEDDINGS
    builds: str = "embeddings"
    length: tuple[str, ...] = ("passage_max_len",)
    mean: str = "mean"
    last: str = "end"
    tempered: bool = True
    gathers: bool = False
    adapters: Mapping[str, Any] | None = None
    switch: tuple[str, bool] = ("use_peft", False)
    halves: bool = False
    attention: str = ""
    pads: int = 0
    names: Mapping[str, str] = {}
    since: str = ""


_LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
_FLAG_DEFAULTS = {
    "train_group_size": 8,
    "query_max_len": 32,
    "passage_max_len": 128,
    "sentence_pooling_method": "cls",
    "normalize_embeddings": True,
    "negatives_cross_device": False,
    "knowledge_distillation": False,
    "kd_loss_type": "kl_div",
}
_FLAG_ADAPTERS = {"lora.r": 64, "lora.alpha": 16.0, "lora.dropout": 0.1, "lora.targets": _LINEARS}
_NO_RANK = "the adapter that training goes on with, whose rank no option states"
_FLAG_REFUSED = {"use_mrl": "losses of vectors of several widths"}
_DECODER_REFUSED = {"from_peft": _NO_RANK, "peft_model_path": _NO_RANK}
_PAIR_DEFAULTS = {
    "train_group_size": 8,
    "query_max_len": 32,
    "passage_max_len": 128,
    "knowledge_distillation": False,
}
_TEVATRON_NAMES = {"sentence_pooling_method": "pooling", "normalize_embeddings": "normalize"}
_CACHED = "gradients of cached vectors (GradCache)"

_EMBEDS = "FlagEmbedding.finetune.embedder."
_RANKS = "FlagEmbedding.finetune.reranker."
_OLD_EMBEDDER = Embedder(
    f"{_OLD_FLAG}'s embedders",
    f"{_OLD_FLAG}: baai_general_embedding/finetune/arguments.py, modeling.py",
    {**_FLAG_DEFAULTS, "use_inbatch_neg": True},
    {},
)
_OLD_RERANKER = Embedder(
    f"{_OLD_FLAG}'s rerankers",
    f"{_OLD_FLAG}: reranker/arguments.py, modeling.py",
    {"train_group_size": 8, "max_seq_length": 512},
    {},
    PAIRS,
    "sequence_classification",
    (),
)

# Packages whose programs these are, those included that are not described.
LIBRARIES = ("tevatron", "FlagEmbedding")
# The end of the name that a command calls a program by, in dots -> the program; the longest that fits.
PROGRAMS: dict[str, Embedder] = {
    _EMBEDS + "encoder_only.base": Embedder(
        f"{_FLAG}'s embedders",
        f"{_FLAG}: abc/finetune/embedder/AbsArguments.py",
        _FLAG_DEFAULTS,
        _FLAG_REFUSED,
        since=_FLAG_SINCE,
    ),
    _EMBEDS + "decoder_only.base": Embedder(
        f"{_FLAG}'s embedders of decoders",
        f"{_FLAG}: finetune/embedder/decoder_only/base/arguments.py, load_model.py",
        _FLAG_DEFAULTS,
        {**_FLAG_REFUSED, **_DECODER_REFUSED},
        last="last",  # it fills rows up from the left
        adapters=_FLAG_ADAPTERS,
        switch=("use_peft", True),
        since=_FLAG_SINCE,
    ),
    _EMBEDS + "decoder_only.icl": Embedder(
        f"{_FLAG}'s embedders that are shown examples",
        f"{_FLAG}: finetune/embedder/decoder_only/icl/arguments.py, load_model.py",
        _FLAG_DEFAULTS,
        {**_FLAG_REFUSED, **_DECODER_REFUSED},
        last="last",  # it fills rows up from the left
        adapters=_FLAG_ADAPTERS,
        switch=("use_peft", True),
        since=_FLAG_SINCE,
    ),
    _EMBEDS + "encoder_only.m3": Embedder(
        f"{_FLAG}'s embedders of BGE-M3",
        f"{_FLAG}: finetune/embedder/encoder_only/m3/arguments.py, modeling.py",
        _FLAG_DEFAULTS,
        {
            **_FLAG_REFUSED,
            "unified_finetuning": "weights of words and vectors of tokens, compared beside the vectors of texts",
            "fix_encoder": "an encoder that does not train",
        },
        since=_FLAG_SINCE,
    ),
    _RANKS + "encoder_only.base": Embedder(
        f"{_FLAG}'s rerankers",
        f"{_FLAG}: abc/finetune/reranker/AbsArguments.py, AbsDataset.py",
        _PAIR_DEFAULTS,
        {},
        PAIRS,
        "sequence_classification",
        ("query_max_len", "passage_max_len"),
        since=_FLAG_SINCE,
    ),
    _RANKS + "decoder_only.base": Embedder(
        f"{_FLAG}'s rerankers of decoders",
        f"{_FLAG}: finetune/reranker/decoder_only/base/arguments.py, modeling.py, load_model.py",
        _PAIR_DEFAULTS,
        _DECODER_REFUSED,
        PAIRS,
        "causal_lm",
        ("query_max_len", "passage_max_len"),
        adapters=_FLAG_ADAPTERS,
        switch=("use_peft", True),
        since=_FLAG_SINCE,
    ),
    "FlagEmbedding.baai_general_embedding.finetune.run": _OLD_EMBEDDER,
    "baai_general_embedding.finetune.run": _OLD_EMBEDDER,
    "finetune.run": _OLD_EMBEDDER,  # from within that folder, as its page has it
    "FlagEmbedding.reranker.run": _OLD_RERANKER,
    "tevatron.retriever.driver.train": Embedder(
        f"{_TEVATRON}: retrievers",
        f"{_TEVATRON}: retriever/arguments.py, retriever/modeling/dense.py, retriever/driver/train.py",
        {
            "train_group_size": 8,
            "query_max_len": 32,
            "passage_max_len": 128,
            "sentence_pooling_method": "cls",
            "normalize_embeddings": False,
        },
        {"grad_cache": _CACHED, "lora_name_or_path": _NO_RANK},
        mean="masked_mean",
        gathers=True,
        adapters={"lora.r": 16, "lora.alpha": 64.0, "lora.dropout": 0.1, "lora.targets": _LINEARS},
        switch=("lora", False),
        halves=True,
        attention="flash",
        pads=16,
        names=_TEVATRON_NAMES,
        since=_TEVATRON_SINCE,
    ),
    "tevatron.reranker.driver.train": Embedder(
        f"{_TEVATRON}: rerankers",
        f"{_TEVATRON}: reranker/arguments.py, reranker/modeling.py, reranker/driver/train.py",
        {"train_group_size": 8, "passage_max_len": 512},
        {"lora_name_or_path": _NO_RANK, "reranker_model_type": "a head of its own over a model without one"},
        PAIRS,
        "sequence_classification",
        ("passage_max_len",),
        adapters={"lora.r": 8, "lora.alpha": 64.0, "lora.dropout": 0.1, "lora.targets": _LINEARS},
        switch=("lora", False),
        halves=True,
        pads=16,
        names={"passage_max_len": "rerank_max_len"},
        since=_TEVATRON_SINCE,
    ),
    "tevatron.driver.train": Embedder(
        f"{_OLD_TEVATRON}: retrievers",
        f"{_OLD_TEVATRON}: arguments.py, modeling/dense.py",
        {
            "train_group_size": 8,
            "query_max_len": 32,
            "passage_max_len": 128,
            "sentence_pooling_method": "cls",
            "normalize_embeddings": False,
            "negatives_cross_device": False,
        },
        {
            "grad_cache": _CACHED,
            "untie_encoder": "weights of passages beside those of queries",
            "add_pooler": "the layer that makes vectors of states",
        },
        tempered=False,
        names={"normalize_embeddings": "normalize"},
    ),
}


def embedder(called: str) -> Embedder | None:
    """The program that a command calls: ``a.b`` of ``-m a.b``, or a path."""
    name = called.removesuffix(".py").removesuffix("/__main__").replace("/", ".").removesuffix(".__main__")
    fitting = [known for known in PROGRAMS if name == known or name.endswith("." + known)]
    return PROGRAMS[max(fitting, key=len)] if fitting else None
