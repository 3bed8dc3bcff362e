"""A family of language models: the steps from what its files state to the facts that a model is built from.

A family keeps no order. Its steps say which facts they give, and a step that reads a fact waits for the one that gives
it (``memlint/facts/derive.py``). What is between keys and facts is in three parts, each of which starts from what the
one before it left: the family's own words, the files beside the config, and what follows from both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from memlint.dialects.sharing import stated_sharing
from memlint.dialects.stated import (
    ARCHITECTURE,
    CONFIG,
    DECODER,
    LLAVA,
    PLACED_WHOLE,
    TRANSFORMERS,
    gap,
    has_one_size,
    not_stated,
    put,
    spellings,
)
from memlint.facts.derive import Graph
from memlint.facts.spec import ASSUMED, HYPER, WRITTEN, Fact, Name, OnTop, TrainingSpec, named
from memlint.named_tuple import NamedTuple

NOTHING: Mapping[str, str] = {}
Beside = Callable[[TrainingSpec], tuple[str, Mapping[str, Fact]]]


def told(reasons: Mapping[str, str], first: Iterable[str]) -> list[str]:
    """The reasons of these steps, and then of others by their names."""
    order = dict.fromkeys((*first, *sorted(reasons)))
    return [reasons[name] for name in order if reasons.get(name)]


def tokens(spec: TrainingSpec) -> None:
    """What follows from the length of a sample."""
    length = spec.fact("sequence_length")
    if length is None or not isinstance(length.value, int):
        return
    put(spec, "attention_tokens", length.value, length)
    several = spec.get("sequences_per_sample", 1)
    names: tuple[str, ...] = ("micro_batch_size", "sequence_length")
    if several != 1:
        names = ("micro_batch_size", "sequences_per_sample", "sequence_length")
    put(spec, "token_product", ("tokens", names))
    size, reason = 3 * 8 * length.value * several, "int64 token ids, attention mask and labels"
    llava = spec.get(LLAVA)
    if llava is not None:  # images are loaded beside the words, in fp32
        images = spec.get("images_per_sample", 1)
        size += 4 * images * llava.tower.channels * llava.tower.image[0] * llava.tower.image[1]
        reason += ", and the image in float32" if images == 1 else f", and {images} images in float32"
    put(spec, "sample_bytes", size, reason=reason)


OWN_MODEL: Name = "own_model"  # the fact, and the architecture, of a model that a repository's own code says
_NEEDED: dict[str, str] = {
    "micro_batch_size": "per_device_train_batch_size",
    "sequence_length": "max_length",
    "compute_dtype": "bf16",
    "optimizer": "optim",
}

# What weights, gradients and states do without.
_OF_SAMPLES = ("micro_batch_size", "sequence_length")

# Facts without whose keys nothing can be said, where they are written but not known.
_DECISIVE = (
    *("checkpointing", "attention", "packing", "padding_free", "activation_offloading", "quantization.double"),
    *("lora.r", "lora.targets", "lora.modules_to_save", "parallelism.tensor", "parallelism.context"),
    *(HYPER + name for name in ("bf16", "fp16", "dtype", "optim", "use_peft", "load_in_4bit", "load_in_8bit", "bits")),
    *(HYPER + name for name in ("use_liger_kernel", "fsdp", "fsdp_config", "deepspeed", "beta", "use_dora")),
)


def _undecided(spec: TrainingSpec) -> str:
    """The first gap that leaves the estimate open."""
    if not spec.missing:
        return ""
    from memlint.dialects import registry

    dialect = registry.dialect(spec.family)
    names = {name for key in dialect.keys if key.annotation.get("fact") in _DECISIVE for name in key.names}
    item = gap(spec, *names)
    return f"{item.key} is not known: {item.reason}" if item is not None else ""


# Settings that would say how many devices there are; without a value they mean all.
_COUNTS = tuple(HYPER + name for name in ("num_processes", "num_gpus", "devices", "shards"))


def finish(spec: TrainingSpec, reasons: Iterable[str], keys: Mapping[str, str] = NOTHING) -> TrainingSpec:
    """The architecture, where everything that it needs is known; else the first reason why not.

    ``keys`` are the family's names of the facts that are needed. What is sharded over a number of devices that the
    config does not say is known as soon as that is: ``--gpu "h100-80gb x8"``.
    """
    tokens(spec)
    steps = gap(spec, "gradient_accumulation_steps")
    if steps is not None and "gradient_accumulation_steps" not in spec:
        why = f"{steps.key} is not known: {steps.reason}"
        spec.facts["gradient_accumulation_steps"] = Fact(
            "gradient_accumulation_steps", 1, ASSUMED, steps.key, None, why
        )
    for name in [name for name, fact in spec.facts.items() if fact.value is None and fact.node is None]:
        del spec.facts[name]
    given, needed = [one for one in reasons if one], {**_NEEDED, **keys}
    undecided = _undecided(spec)
    reason = next(iter(given), "") or undecided or _needed(spec, needed)
    if spec.get("parallelism.zero_stage") == 3:
        _loaded_whole(spec)
    architecture = OWN_MODEL if OWN_MODEL in spec else ARCHITECTURE
    spec.architecture = None if reason else architecture
    spec.unknown_reason = reason
    shares = spec.get("parallelism.strategy") in ("zero", "fsdp1", "fsdp2")
    if shares and not reason and "device_count" not in spec and "parallelism.shard" not in spec:
        spec.unknown_reason = _uncounted(spec)
        spec.architecture_on_devices, spec.architecture = architecture, None
    elif reason and not undecided and all(isinstance(one, OnTop) for one in given):
        of_states = {name: key for name, key in needed.items() if name not in _OF_SAMPLES}
        spec.architecture_at_least = "" if _needed(spec, of_states) else architecture
    return spec


def _loaded_whole(spec: TrainingSpec) -> None:
    """Whether ZeRO 3 shards a model that stands whole on each card."""
    placed = spec.root.get(PLACED_WHOLE)
    if "quantization.bits" in spec:
        # from_pretrained: zero.Init only where nothing is quantised (needs_zero3_init)
        why = f"{TRANSFORMERS}: a quantised model is loaded whole, and sharded by DeepSpeed's engine"
        put(spec, "parallelism.loaded_whole", True, spec.fact("quantization.bits"), why)
    elif placed is not None:
        why = "device_map puts the whole model on its card before the trainer's arguments say that DeepSpeed shards it"
        stated = Fact("parallelism.loaded_whole", True, WRITTEN, "device_map", placed)
        put(spec, "parallelism.loaded_whole", True, stated, why)


def _needed(spec: TrainingSpec, keys: Mapping[str, str]) -> str:
    """Why a model cannot be built: the first fact without which none can, by the family's name for it."""
    for name, key in keys.items():
        needed = named(name)
        if spec.get(needed) is None and not (name == "sequence_length" and has_one_size(spec)):
            written = spec.fact(needed)
            if written and written.reason:
                return f"{written.key}: {written.reason}"
            return f"{written.key} is null: no limit" if written else not_stated(spec, key, *spellings(spec, name))
    if spec.get("parallelism.strategy") == "zero" and "parallelism.zero_stage" not in spec:
        return not_stated(spec, "zero_stage", "stage")
    if CONFIG not in spec and DECODER not in spec and OWN_MODEL not in spec:
        return not_stated(spec, "model_name_or_path", *spellings(spec, "model"))
    return ""


def _uncounted(spec: TrainingSpec) -> str:
    """Why it is not known how many devices share the model."""
    item = gap(spec, "nproc_per_node", "nnodes", "num_processes", "num_machines", "num_gpus", "num_nodes", "ntasks")
    every = next((fact for fact in map(spec.fact, _COUNTS) if fact is not None and fact.value is None), None)
    why = "is not stated" if item is None else f"is not known ({item.key}: {item.reason})"
    stated = ""
    if item is None and every is not None:
        stated = f"{every.key} is {'null' if every.written is None else every.written}: "
    return f"{stated}the number of devices that share the model {why}; say --gpu 'NAME xN'"


class Family(NamedTuple):
    """How the runs of a family come from its files.

    follows  steps to the facts that the model is built from
    told     names of steps, in the order in which their reasons are told where several say why there is no estimate
    keys     the family's names of the facts that are needed
    stated   steps that say in the words of ``follows`` what keys and the program's own defaults state
    beside   what launchers and the files beside the config state: (why it is not known, or "", the facts that go before
             what a step would make of keys); None for a family whose own keys say all of it
    finish   puts facts and reasons together
    """

    follows: Graph
    told: tuple[str, ...] = ()
    keys: Mapping[str, str] = NOTHING
    stated: Graph = Graph()
    beside: Beside | None = stated_sharing
    finish: Callable[[TrainingSpec, list[str], Mapping[str, str]], TrainingSpec] = finish

    def complete(self, spec: TrainingSpec) -> TrainingSpec:
        """From the keys to the facts of a language model."""
        reasons = self.stated.derive(spec).reasons
        overruling: Mapping[str, Fact] = {}
        if self.beside is not None:
            spec.unknown_reason, overruling = self.beside(spec)
            reasons["sharing"] = spec.unknown_reason
        reasons |= self.follows.derive(spec, overruling).reasons
        return self.finish(spec, told(reasons, self.told), self.keys)
