"""Family peft: the pair of files that PEFT's method comparison trains from.

``training_params.json`` overrides the script's ``default_training_params.json``, and ``adapter_config.json`` beside it
is a ``PeftConfig``; without one the whole model trains. (huggingface/peft, method_comparison/MetaMathQA.)
"""

from __future__ import annotations

import os
from typing import Any

from memlint.dialects import companions, registry
from memlint.dialects import language_model as lm
from memlint.dialects.accelerate import truth
from memlint.documents.node import Document, Edit, Node
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import DEFAULT, WRITTEN, Fact, Name, TrainingSpec, named
from memlint.named_tuple import NamedTuple
from memlint.trainers.table import AS_COMPUTED

TRAINING, ADAPTER, DEFAULTS = "training_params.json", "adapter_config.json", "default_training_params.json"
_VERSION = "PEFT 0.21"
_SCRIPT = "PEFT's method comparison"


class Method(NamedTuple):
    """A ``peft_type``.

    tuning   value of the fact
    rank     (key, default), where it has one
    dropout  key
    options  the other keys that decide sizes, with their defaults
    """

    tuning: str
    rank: tuple[str, Any] = ("", None)
    dropout: str = ""
    options: dict[str, Any] = {}  # noqa: RUF012  (never mutated)


# PEFT 0.21, tuners/*/config.py
METHODS = {
    "LORA": Method("lora", ("r", 8), "lora_dropout"),
    "ADALORA": Method("adalora", ("init_r", 12), "lora_dropout"),
    "IA3": Method("ia3"),
    "VERA": Method("vera", ("r", 256), "vera_dropout"),
    "DELORA": Method("delora", ("r", 8), "module_dropout"),
    "GRALORA": Method("gralora", ("r", 32), "gralora_dropout", {"gralora_k": 2, "hybrid_r": 0}),
    "LOHA": Method("loha", ("r", 8), "", {"rank_dropout": 0.0, "module_dropout": 0.0}),
    "LOKR": Method(
        "lokr",
        ("r", 8),
        "",
        {"rank_dropout": 0.0, "module_dropout": 0.0, "decompose_both": False, "decompose_factor": -1},
    ),
    "FOURIERFT": Method("fourierft", ("n_frequency", 1000)),
    "RANDLORA": Method("randlora", ("r", 32), "randlora_dropout", {"sparse": False, "very_sparse": False}),
    "OFT": Method(
        "oft_input",
        ("r", 0),
        "module_dropout",
        {
            "oft_block_size": 32,
            "coft": False,
            "block_share": False,
            "use_cayley_neumann": True,
            "num_cayley_neumann_terms": 5,
        },
    ),
    "BOFT": Method("boft", ("boft_block_size", 4), "boft_dropout", {"boft_block_num": 0, "boft_n_butterfly_factor": 1}),
    "PSOFT": Method(
        "psoft",
        ("r", 32),
        "psoft_dropout",
        {
            "psoft_orth": True,
            "psoft_mag_a": True,
            "psoft_mag_b": True,
            "use_cayley_neumann": False,
            "num_cayley_neumann_terms": 5,
            "cayley_neumann_eps": None,
            "psoft_svd": "full",
            "ab_svd_init": "psoft_init",
        },
    ),
    "LN_TUNING": Method("ln_tuning"),
    "TRAINABLE_TOKENS": Method("trainable_tokens"),
    "ADAPTION_PROMPT": Method("adaption_prompt", options={"adapter_len": None, "adapter_layers": None}),
    "PREFIX_TUNING": Method("prefix", options={"prefix_projection": False}),
    "PROMPT_TUNING": Method("prompt"),
    "P_TUNING": Method(
        "p_tuning",
        options={"encoder_reparameterization_type": "MLP", "encoder_hidden_size": None, "encoder_dropout": 0.0},
    ),
}
# Keys of a LoraConfig that put another computation in LoRA's place, or adapt some modules otherwise.
_OTHERWISE = (
    "rank_pattern",
    "layers_to_transform",
    "layer_replication",
    "trainable_token_indices",
    "use_bdlora",
    "velora_config",
    "monteclora_config",
    "arrow_config",
    "alora_invocation_tokens",
    "target_parameters",
    "exclude_modules",
)
_KEYS = frozenset((
    "model_id", "dtype", "max_seq_length", "batch_size", "batch_size_eval", "max_steps", "eval_steps",
    "compile", "use_gc", "query_template", "seed", "grad_norm_clip", "optimizer_type", "optimizer_kwargs",
    "lr_scheduler", "use_amp", "autocast_adapter_dtype", "generation_kwargs", "attn_implementation",
    "init_kv_cache_prefix",
))  # fmt: skip
_OPTIMIZERS = {
    "AdamW": "adamw", "Adam": "adam", "SGD": "sgd", "RMSprop": "rmsprop", "Adagrad": "adagrad", "lora+": "adamw",
    "lora-fa": "adamw", "Adafactor": "adafactor", "Muon": "muon",
}  # fmt: skip


def recognise(document: Document, root: Node) -> bool:
    """An adapter that is stored with its weights (``inference_mode``) trains nothing; a few overrides are known by the
    name of their file."""
    entries = root.value if isinstance(root.value, dict) else {}
    if "peft_type" in entries:
        stored = entries.get("inference_mode")
        return stored is None or not truth(stored.value)
    if os.path.basename(document.path) in (TRAINING, DEFAULTS):
        return bool(entries) and set(entries) <= _KEYS
    return {"model_id", "batch_size", "max_seq_length"} <= set(entries)


# ---------------------------------------------------------------------------------------------- the two files


def _pair(spec: TrainingSpec) -> tuple[str, dict[str, Fact]]:
    """Adds what the files beside this one say. (why there is no training, nothing)."""
    folder = os.path.dirname(spec.document.path)
    is_adapter = _is_adapter(spec)
    other = _beside(spec, os.path.join(folder, TRAINING if is_adapter else ADAPTER))
    defaults = _beside(spec, os.path.join(folder, "..", "..", "..", DEFAULTS)) if _is_experiment(folder) else None
    if is_adapter and other is None and defaults is None:
        # What trains the adapter is some other program's, and so are its defaults.
        for name in [name for name, fact in spec.facts.items() if fact.origin == DEFAULT]:
            del spec.facts[name]
        base = spec.root.get("base_model_name_or_path")
        named = f" for {base.value}" if base is not None and base.value else ""
        return f"batch_size is not stated: an adapter's config{named} without a {TRAINING} beside it", {}
    for document in (defaults, other):
        if document is not None:
            _take(spec, document)
    return "", {}


def _read(spec: TrainingSpec, *names: str) -> bool:
    """Whether one of the pair's files was found beside the config."""
    return any(os.path.basename(path) in names for path in spec.document.sources)


def _is_adapter(spec: TrainingSpec) -> bool:
    return spec.root.get("peft_type") is not None


def _adapted(spec: TrainingSpec) -> bool:
    return _is_adapter(spec) or _read(spec, ADAPTER)


def _model(spec: TrainingSpec) -> str:
    """What an adapter alone names is not what trains."""
    alone = _is_adapter(spec) and not _read(spec, TRAINING, DEFAULTS)
    return "" if alone else lm.model(spec, "model_id")


def _is_experiment(folder: str) -> bool:
    """``experiments/<method>/<name>``, as the script demands."""
    parts = os.path.normpath(os.path.abspath(folder)).split(os.sep)
    return len(parts) >= 3 and parts[-3] == "experiments"


def _beside(spec: TrainingSpec, path: str) -> Document | None:
    """The file at exactly this path."""
    path = os.path.normpath(path)
    if not os.path.isfile(path):
        return None
    document, reason = companions.read(os.path.basename(path), path)
    if document is None:
        from memlint.facts.spec import Missing

        spec.missing = (*spec.missing, Missing(os.path.basename(path), spec.root.span, reason))
    return document


def _take(spec: TrainingSpec, document: Document) -> None:
    """What another file writes, and this one does not."""
    facts, missing = registry.dialect(spec.family).facts_of(document.root)
    for name, fact in facts.items():
        own = spec.fact(named(name))
        if fact.origin == WRITTEN and (own is None or own.origin == DEFAULT or own.span is None
                                       or own.span.path != spec.document.path):  # fmt: skip
            spec.facts[name] = fact
    spec.missing = (*spec.missing, *missing)
    sources = spec.document.sources or {spec.document.path: spec.document.text}
    spec.document = spec.document._replace(sources={**sources, document.path: document.text})


# ---------------------------------------------------------------------------------------------- facts


def _precision(spec: TrainingSpec) -> str:
    """Weights in ``dtype``, adapters in float32 unless they are told to follow; autocast only with ``use_amp``."""
    stated = spec.fact(lm.HYPER + "dtype")
    if stated is None:
        return lm.not_stated(spec, "dtype")
    dtype = lm.dtype_of(stated.value)
    if not dtype:
        return f"dtype {stated.value}: in which dtype the other weights and the products are is the checkpoint's"
    lm.put(spec, "frozen_dtype", dtype, stated)
    lm.put(spec, "parameter_dtype", dtype, stated)
    lm.put(spec, "compute_dtype", dtype, stated)
    wide = spec.fact(lm.HYPER + "autocast_adapter_dtype")
    if _adapted(spec):
        if wide is None or truth(wide.value):
            reason = f"{_VERSION}: autocast_adapter_dtype"
            lm.put(spec, "lora.dtype", "float32", wide, reason)
            lm.put(spec, "parameter_dtype", "float32", wide, reason)
        else:
            lm.put(spec, "lora.dtype", dtype, wide)
    mixed = spec.fact(lm.HYPER + "use_amp")
    lm.put(spec, "autocast", False, mixed)
    if mixed is not None and truth(mixed.value):
        lm.put(spec, "compute_dtype", "float16", mixed, "torch.autocast's default on CUDA")
        lm.put(spec, "autocast", True, mixed)
        lm.put(spec, "loss_scaling", "dynamic", mixed)
    return ""


def _optimizer(spec: TrainingSpec) -> str:
    stated = spec.fact(lm.HYPER + "optimizer_type")
    if stated is None:
        return lm.not_stated(spec, "optimizer_type")
    kind = _OPTIMIZERS.get(str(stated.value))
    if kind is None:
        return f"optimizer_type {stated.value}: what it keeps is not known"
    lm.put(spec, "optimizer", kind, stated)
    if stated.value == "lora-fa":  # peft/optimizers/lorafa.py: a loop over parameters, and A does not train
        if spec.get("tuning") != "lora_fa":
            return "optimizer_type lora-fa: it trains the B of LoRA and nothing else"
        lm.put(spec, "optimizer_implementation", "loop", stated)
    return ""


def _tuning(spec: TrainingSpec) -> str:
    """What trains, which one of the optimizers has a say in."""
    why, optimizer = "", spec.fact(lm.HYPER + "optimizer_type")
    if _adapted(spec):
        why = _adapter(spec)
    else:
        lm.put(spec, "tuning", "full", reason=f"{_SCRIPT}: no {ADAPTER} beside it")
    if optimizer is not None and optimizer.value == "lora-fa" and spec.get("tuning") == "lora":
        lm.put(spec, "tuning", "lora_fa", optimizer)
    return why


def _adapter(spec: TrainingSpec) -> str:
    """From the keys of a PeftConfig to the facts of an adapter."""
    stated = spec.fact(lm.HYPER + "peft_type")
    if stated is None:
        return lm.not_stated(spec, "peft_type")
    method = METHODS.get(str(stated.value))
    if method is None:
        return f"peft_type {stated.value}: what it adds to a model is not known"
    lm.put(spec, "tuning", method.tuning, stated)
    spec.fact(lm.CONFIG)  # whose step names the model
    if spec.model_name:
        spec.model_name += f", {stated.value}"
    for key in _OTHERWISE:
        fact = spec.fact(lm.HYPER + key)
        if fact is not None and fact.value:
            return f"{key}: what it changes is not known"
    _method_facts(spec, method)
    dora = spec.fact(lm.HYPER + "use_dora")
    if method.tuning == "lora" and dora is not None and truth(dora.value):
        lm.put(spec, "tuning", "dora", dora)
    for name in ("lora.targets", "lora.modules_to_save", "ia3.feedforward"):
        fact = spec.fact(name)
        if fact is None:
            continue
        if fact.value in (None, [], ""):
            del spec.facts[name]
        elif isinstance(fact.value, str) and fact.value != "all-linear":
            if not is_bounded(fact.value):
                return f"{fact.key}: a pattern that cannot be matched in a time that is known"
            lm.put(spec, name, fact.value, fact)  # a regular expression
        else:
            lm.put(spec, name, fact.value if fact.value == "all-linear" else list(fact.value), fact)
    return ""


def is_bounded(pattern: str) -> bool:
    """Whether a pattern of a stranger's file may be matched against names: valid, short, without a repeated group or a
    reference back, and with so few repetitions that backtracking stays polynomial and small."""
    import re

    if len(pattern) > 400 or re.search(r"\)[*+{?]|\\[1-9]|\(\?", pattern) or len(re.findall(r"[*+{]", pattern)) > 3:
        return False
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _method_facts(spec: TrainingSpec, method: Method) -> None:
    key, default = method.rank
    fact: Name
    for fact, name, fallback in (("lora.r", key, default), ("lora.dropout", method.dropout, 0.0)):
        if not name:
            spec.facts.pop(fact, None)
            continue
        own = spec.fact(lm.HYPER + name)
        if own is not None and own.value is not None:
            lm.put(spec, fact, own.value, own)
        else:
            spec.facts[fact] = Fact(fact, fallback, DEFAULT, name, reason=f"{_VERSION}: {name}")
    options: dict[str, Any] = {}
    for name, fallback in method.options.items():
        own = spec.fact(lm.HYPER + name)
        options[name] = fallback if own is None or (own.value is None and own.node is None) else own.value
    if method.tuning == "boft":
        options["permutation_on_host"] = True  # the script puts the model on the card before PEFT adapts it
    for name in ("token_indices",):
        own = spec.fact(lm.HYPER + name)
        if own is not None:
            options[name] = own.value
    if options:
        spec.facts["adapter.options"] = Fact("adapter.options", options, DEFAULT, reason=f"{_VERSION}: of the method")


def _script(spec: TrainingSpec) -> None:
    """What run.py does whatever the files say."""
    lm.put(spec, "padding", True, reason=f"{_SCRIPT}: samples of a batch are padded to its longest")
    found = lm.trainer(spec)
    lm.put(spec, "empty_cache_steps", found.empties, reason=f"{_SCRIPT}: run.py")
    lm.put(
        spec,
        "outputs_kept",
        found.outputs == AS_COMPUTED,
        reason=f"{_SCRIPT}: run.py names them through the backward pass",
    )
    lm.put(spec, "method", "sft", reason=_SCRIPT)


_ADAPTER_FACTS: tuple[Name, ...] = (
    *("tuning", "lora.r", "lora.dropout", "lora.targets", "lora.modules_to_save", "ia3.feedforward", "adapter.options"),
)
FAMILY = lm.Family(
    beside=_pair,
    follows=Graph(
        Step(_model, lm.MODEL_FACTS),
        Step(_precision, lm.PRECISION_FACTS),
        Step(_tuning, _ADAPTER_FACTS),
        Step(_optimizer, ("optimizer", "optimizer_implementation")),
        Step(lm.compiled, ("compile",)),
        Step(_script, ("padding", "empty_cache_steps", "outputs_kept", "method")),
    ),
    told=("sharing", "model", "precision", "tuning", "optimizer"),
    keys={"micro_batch_size": "batch_size", "sequence_length": "max_seq_length"},
)


# ---------------------------------------------------------------------------------------------- spelling


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """The script's own words; [] for what it has no key for. Nothing is added to an adapter's config."""
    known = spec.fact(fact)
    if spec.root.get("peft_type") is not None and (known is None or known.node is None):
        return []
    if fact in ("parameter_dtype", "frozen_dtype"):
        stated = spec.fact(lm.HYPER + "dtype")
        if stated is None or (fact == "parameter_dtype" and "lora.dtype" in spec):
            return []
        return lm.write(spec, lm.HYPER + "dtype", value)
    if fact in ("compute_dtype", "autocast", "loss", "optimizer", "optimizer_implementation", "evaluation_batch_size"):
        return []
    if fact in ("gradient_accumulation_steps", "attention_tokens", "padding", "empty_cache_steps"):
        return []
    return None
