"""What trains of a frozen model itself: some layers (freeze tuning), copies of modules, and modules as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memlint.facts.spec import TrainingSpec
from memlint.meta.nn import Linear, Module, parameter
from memlint.meta.tensor import DTYPES, DType, Tensor, default_dtype, state
from memlint.models import UnknownModel
from memlint.models.language.decoder import LanguageModel
from memlint.models.language.target_names import is_target

# What embeddings and heads are called in one model or another of transformers: where this one has none of that name,
# PEFT goes on without it (peft 0.21: utils/other.py, _set_trainable, strict_module_check).
ENDS = frozenset(
    (
        *("embed_tokens", "wte", "wpe", "word_embeddings", "tok_embeddings", "embed_in"),
        *("embed_out", "lm_head", "output_layer"),
    )
)


def train_in_full(model: LanguageModel, name: str) -> None:
    """``modules_to_save``: the module stays as it is, and a copy of it trains in its place."""
    if name in ("lm_head", "embed_tokens") and model.lm_head is None:
        # A copy is not tied: the other one keeps the old weight.
        with default_dtype(model.embed_tokens.weight.dtype):
            model.lm_head = Linear.__new__(Linear)
        model.lm_head.weight, model.lm_head.bias = model.embed_tokens.weight, model.head_bias
    kept = _replaced(model, name, "")
    if not kept and name not in ENDS:
        raise UnknownModel(f"no module is called {name!r}")
    model.originals = [*model.originals, *kept]


def _replaced(module: Module, name: str, path: str) -> list[Module]:
    kept: list[Module] = []
    for own, child in list(module.children()):
        full = f"{path}.{own}" if path else own
        if not full.endswith(name):
            kept += _replaced(child, name, full)
            continue
        kept.append(child)
        copy = copied(child)
        head, _, index = own.rpartition(".")
        if index.isdigit() and head:
            getattr(module, head)[int(index)] = copy
        else:
            setattr(module, own, copy)
    return kept


def copied(module: Module) -> Module:
    """``copy.deepcopy``, and everything in it trains."""
    copy: Module = object.__new__(type(module))
    for name, value in module.__dict__.items():
        if isinstance(value, Module):
            value = copied(value)
        elif isinstance(value, list) and value and isinstance(value[0], Module):
            value = [copied(item) for item in value]
        elif isinstance(value, Tensor):
            value = _copied_tensor(value)
        copy.__dict__[name] = value
    return copy


def _copied_tensor(x: Tensor) -> Tensor:
    label = state.tape.labels[x.storage.index]
    if label.component == "parameters":
        return parameter(*x.shape, dtype=x.dtype)
    return Tensor(x.shape, x.dtype)


def unfreeze(module: Module, names: Sequence[str]) -> None:
    """What trains as it is: a script made it, or gave it back its gradients, once the adapter was there."""
    for name, child in module.children():
        if name in names:
            for tensor in child.parameters():
                tensor.requires_grad = True
        else:
            unfreeze(child, names)


def thaw(model: LanguageModel, spec: TrainingSpec) -> None:
    """Freeze tuning: the last n layers train (the first of a negative n) or modules of them, and others beside.

    What trains is kept in ``parameter_dtype``.
    """
    count = spec.get("freeze.layers")
    if count is None:
        raise UnknownModel("which layers train is not stated")
    layers: Any = getattr(model, "layers", ())  # a model that is no decoder has its own elsewhere
    numbers = range(len(layers))
    chosen = numbers[-count:] if count > 0 else numbers[:-count]
    names = spec.get("freeze.modules") or ["all"]
    inside = [names] if isinstance(names, str) else list(names)
    beside = spec.get("freeze.extra_modules") or []
    dtype = DTYPES[spec.get("parameter_dtype", "float32")]
    for number in chosen:
        layer = layers[number]
        for path, module in _paths(layer, ""):
            if "all" in inside or any(part in inside for part in path.split(".")):
                _train(module, dtype)
    for path, module in _paths(model, ""):
        if path and is_target(path, [beside] if isinstance(beside, str) else list(beside)):
            for _, inner in _paths(module, ""):
                _train(inner, dtype)


def _paths(module: Module, path: str) -> list[tuple[str, Module]]:
    found = [(path, module)]
    for name, child in module.children():
        found += _paths(child, f"{path}.{name}" if path else name)
    return found


def _train(module: Module, dtype: DType) -> None:
    """The module's own parameters."""
    for name, value in list(module.__dict__.items()):
        if isinstance(value, Tensor) and state.tape.labels[value.storage.index].component == "parameters":
            module.__dict__[name] = value if value.dtype is dtype else parameter(*value.shape, dtype=dtype)
            module.__dict__[name].requires_grad = True
