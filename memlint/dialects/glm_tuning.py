"""ChatGLM-Efficient-Tuning, an ancestor of LLaMA-Factory: the same ``src/train_bash.py`` and most of the same keys, for
ChatGLM alone, with other defaults. Source: hiyouga/ChatGLM-Efficient-Tuning at 3c12daa, ``src/glmtuner``: ``hparams``,
``extras/misc.py`` (``prepare_model_for_training``), ``dsets/preprocess.py``.
"""

from __future__ import annotations

from typing import Any

from memlint.dialects import language_model as lm
from memlint.dialects.native import number
from memlint.documents.node import Node, Unresolved
from memlint.facts.spec import DEFAULT, WRITTEN, Fact, Missing, Name, TrainingSpec

_VERSION = "ChatGLM-Efficient-Tuning 0.1.5"
_PROGRAM = "train_bash"
# Without one of these LLaMA-Factory trains nothing, or not ChatGLM.
_OF_LLAMA_FACTORY = ("template", "prompt_template", "cutoff_len")
_LENGTHS = ("max_source_length", "max_target_length")
_TOKENS = 512  # that each of the two is where nothing states it
_ADAPTERS: dict[Name, Any] = {
    "lora.r": 8,
    "lora.alpha": 32.0,
    "lora.dropout": 0.1,
    "lora.targets": ["query_key_value"],
}
# What a fix may write: the other keys of LLaMA-Factory are none of its.
_SPELLED = ("micro_batch_size", "gradient_accumulation_steps", "lora.r", "lora.targets")

FACTS: tuple[Name, ...] = ("sequence_length", *_ADAPTERS, lm.HYPER + "upcast_layernorm", "checkpointing")


def is_meant(spec: TrainingSpec) -> bool:
    """Whether a command is of this program: ChatGLM, and nothing that LLaMA-Factory cannot do without."""
    program = spec.launch.called if spec.launch is not None else ""
    if program.rsplit("/", 1)[-1].removesuffix(".py") != _PROGRAM:
        return False
    config = spec.get(lm.CONFIG)
    kind = config.get("model_type") if isinstance(config, dict) else None
    return kind == "chatglm" and all(spec.root.get(name) is None for name in _OF_LLAMA_FACTORY)


def prepare(spec: TrainingSpec) -> None:
    """Its own defaults. Call once the model is known."""
    if not is_meant(spec):
        return
    _length(spec)
    for name, value in _ADAPTERS.items():
        known = spec.fact(name)
        if known is None or known.node is None:
            lm.put(spec, name, value, reason=f"{_VERSION}: finetuning_args.py")
    lm.put(spec, lm.HYPER + "upcast_layernorm", True, reason=f"{_VERSION}: prepare_model_for_training")
    lm.put(spec, "checkpointing", "full", reason=f"{_VERSION}: prepare_model_for_training")


def _length(spec: TrainingSpec) -> None:
    """A source and its target are cut apart, and then joined."""
    tokens = 0
    written: Node | None = None
    spec.facts.pop("sequence_length", None)
    for name in _LENGTHS:
        node = spec.root.get(name)
        count = _TOKENS if node is None else number(node.value)
        if node is not None and count is None:
            why = node.value.reason if isinstance(node.value, Unresolved) else f"{node.value} is no number of tokens"
            spec.missing = (*spec.missing, Missing(f"--{name}", node.key_span or node.span, why))
            return
        tokens += count or 0
        written = written or node
    reason = f"{_VERSION}: a source and its target, cut apart"
    key = f"--{_LENGTHS[0] if written is None else written.name}"
    origin = DEFAULT if written is None else WRITTEN
    spec.facts["sequence_length"] = Fact("sequence_length", tokens, origin, key, written, reason)


def gap(spec: TrainingSpec) -> str:
    """What it trains that is not known; "" where it is."""
    stated = spec.root.get("finetuning_type")
    if stated is None or stated.is_unresolved or stated.value in ("lora", "full") or not is_meant(spec):
        return ""
    why = {
        "p_tuning": "the prefixes of ChatGLM's own P-Tuning v2 are not described",
        "freeze": "modules of the last layers, by ChatGLM's own names, are not described",
    }
    return f"--finetuning_type {stated.value}: {why.get(str(stated.value), 'what trains is not known')}"


def may_spell(spec: TrainingSpec, fact: Name) -> bool:
    """Whether a fact has a key of LLaMA-Factory's that this program has as well."""
    return fact in _SPELLED or not is_meant(spec)
