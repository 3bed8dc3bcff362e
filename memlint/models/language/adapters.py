"""Fine-tuning put into a model: which layers get which adapter, and what else trains of it.

The adapters are in ``lora_layers.py``, ``vera_oft_ia3.py``, ``expert_adapters.py`` and ``prompts.py``; those that fewer
people use in ``peft_methods.py``, which is loaded for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.facts.spec import TrainingSpec
from memlint.meta.nn import Module, buffer
from memlint.meta.tensor import DTYPES, Tensor, default_dtype
from memlint.models import UnknownModel
from memlint.models.language.decoder import LanguageModel, replace_linears
from memlint.models.language.expert_adapters import adapt_experts, adapt_parameters, refuse_listed_experts
from memlint.models.language.lora_layers import (
    DoraLinear,
    JoinedLoraLinear,
    LoraEmbedding,
    LoraLinear,
    NamedDoraLinear,
    sizes_of,
)
from memlint.models.language.target_names import is_target
from memlint.models.language.trained_modules import thaw, train_in_full, unfreeze
from memlint.models.language.vera_oft_ia3 import RotatedLinear, ScaledLinear, VeraLinear, block_size

# The methods whose adapters stand beside linear layers.
LINEAR_METHODS = ("lora", "dora", "lora_fa", "ia3", "vera", "oft")

WITHOUT_EXPERTS = ("ia3", "vera", "oft")

# What a product whose result is queries, keys and values is called.
JOINED = (".qkv", ".query_key_value", ".qkv_proj")

PROMPT_METHODS = ("prompt", "p_tuning")


def adapt(model: LanguageModel, spec: TrainingSpec, config: Decoder) -> None:
    """Freeze the model and put its adapter into it.

    Facts: ``tuning``, ``lora.*``, ``adapter.virtual_tokens``. Raises UnknownModel for methods that are not known, and
    where no module has a name that is meant.
    """
    _adapt(model, spec, config)
    if spec.get("freeze.patterns") is not None:
        from memlint.models.language import patterns  # most runs do without

        patterns.train(model, spec, config)


def _adapt(model: LanguageModel, spec: TrainingSpec, config: Decoder) -> None:
    method = spec.get("tuning", "full")
    if method == "full":
        return
    if config.adapters.names:
        from memlint.models.language import remote  # other models have transformers' names

        spec = remote.by_our_names(spec, dict(config.adapters.names))
    saved = spec.get("lora.modules_to_save") or ()
    model.freeze()
    if method == "freeze":
        return thaw(model, spec)
    dtype = DTYPES[spec.get("lora.dtype") or "float32"]
    with default_dtype(dtype):
        if method in LINEAR_METHODS:
            _LinearLayers(model, spec, config, method).adapt()
        elif method in PROMPT_METHODS:
            tokens = spec.get("adapter.virtual_tokens")
            if tokens is None:
                raise UnknownModel("the number of virtual tokens is not known")
            options = spec.get("adapter.options") or {}
            if options.get("encoder_reparameterization_type", "MLP") != "MLP":
                raise UnknownModel("p-tuning's LSTM is not known")
            from memlint.models.language.prompts import PromptEncoder  # most runs do without

            hidden = options.get("encoder_hidden_size") or config.width
            model.prompt = PromptEncoder(tokens, config.width, method == "p_tuning", hidden)
        else:
            from memlint.models.language import peft_methods

            peft_methods.adapt(model, spec, config, method)
    for name in (saved,) if isinstance(saved, str) else saved:
        train_in_full(model, name)
    if spec.get("lora.unfrozen"):
        unfreeze(model, spec["lora.unfrozen"])


class _LinearLayers:
    """Linear layers of a model that get adapters: which ones, and what each becomes.

    every   all of them but the head's
    saved   modules of which a copy trains in full: within these none is adapted
    mixed   whether experts are adapted as well: by the names ``taken``, which mean their common weights then, and no
            longer the perceptrons beside them
    shared  VeRA's pair, of all layers
    found   where an adapter is
    """

    def __init__(self, model: LanguageModel, spec: TrainingSpec, config: Decoder, method: str) -> None:
        self.model, self.spec, self.config, self.method = model, spec, config, method
        self.defaults = config.adapters.ia3 if method == "ia3" else config.adapters.lora
        targets: Any = spec.get("oft.targets" if method == "oft" else "lora.targets")
        if targets is None:
            targets = self.defaults
            if not targets:
                raise UnknownModel(f"PEFT has no default modules for {config.adapters.name}, and none are stated")
        self.targets = targets
        self.every = targets == "all-linear" or list(targets) == ["all-linear"]
        refuse_listed_experts(model, self.every, targets)
        self.rank, self.dropout = spec.get("lora.r", 8), float(spec.get("lora.dropout") or 0.0)
        self.megatrons = spec.get("implementation") == "megatron"
        self.kind = self.lora_kind()
        saved = spec.get("lora.modules_to_save") or ()
        self.saved = [saved] if isinstance(saved, str) else list(saved)
        self.mixed = config.experts is not None and method not in WITHOUT_EXPERTS and not self.megatrons
        self.taken = config.adapters.experts if self.mixed else ()
        self.found: list[str] = []
        self.shared = self.random_pair() if method == "vera" else ()

    def lora_kind(self) -> type[LoraLinear]:
        """Whose LoRA, or DoRA, it is. Raises UnknownModel."""
        if self.megatrons:
            if self.method != "lora":
                raise UnknownModel(f"{self.method} beside Megatron's layers is not known")
            from memlint.models.language import megatron, megatron_adapters

            if unlike := megatron.refused(self.config):
                raise UnknownModel(f"LoRA over Megatron's layers with {unlike} is not known")
            return megatron_adapters.ParallelLora
        if self.method == "dora":
            return NamedDoraLinear if self.spec.get("implementation") == "torchtune" else DoraLinear
        return LoraLinear

    def is_meant(self, name: str) -> bool:
        return name != "lm_head" if self.every else is_target(name, self.targets)

    def random_pair(self) -> tuple[Tensor, ...]:
        """VeRA's A and B, as large as the largest layer; none where no layer is meant."""
        sizes: list[tuple[int, int]] = []

        def measure(name: str, base: Module) -> None:
            if self.is_meant(name):
                sizes.append(sizes_of(base))

        replace_linears(self.model, measure)
        if not sizes:
            return ()
        dtype = DTYPES[self.spec.get("lora.dtype") or "float32"]
        first = buffer(self.rank, max(inputs for inputs, _ in sizes), dtype=dtype)
        return first, buffer(max(outputs for _, outputs in sizes), self.rank, dtype=dtype)

    def replaced(self, name: str, base: Module) -> Module | None:
        """A layer with its adapter; None for one that stays as it is."""
        # litgpt's one product stands for three names.
        thirds = [f"{name.rpartition('.')[0]}.{third}" for third in ("q_proj", "k_proj", "v_proj")]
        adapted = tuple(self.every or is_target(third, self.targets) for third in thirds)
        joined = name.endswith(JOINED) and self.spec.get("implementation") == "litgpt"
        if not (any(adapted) if joined and not self.every else self.is_meant(name)):
            return None
        if name.startswith("sight.") and _is_frozen(name, self.spec.get("frozen_parts") or ()):
            return None
        if name.rpartition(".")[2] in self.taken or is_target(name, self.saved):
            return None
        if any(f".{kept}." in f".{name}" for kept in self.saved):  # within a module that trains in full
            return None
        self.found.append(name)
        if self.method == "oft":
            return RotatedLinear(base, block_size(self.spec, base))
        if self.method == "vera":
            return VeraLinear(base, self.shared[0], self.shared[1], self.dropout)
        if joined:
            return _joined(base, self.rank, self.dropout, self.config, adapted)
        if self.method == "ia3":
            fed = self.spec.get("ia3.feedforward") or (self.defaults or ("down_proj",))[-1:]
            return ScaledLinear(base, is_target(name, fed))
        return self.kind(base, self.rank, self.dropout, self.method == "lora_fa")

    def adapt(self) -> None:
        """Raises UnknownModel where nothing has a name that is meant."""
        model, rank, dropout = self.model, self.rank, self.dropout
        replace_linears(model, self.replaced)
        if not self.every and self.method not in WITHOUT_EXPERTS and is_target("embed_tokens", self.targets):
            self.found.append("embed_tokens")
            model.embed_tokens = LoraEmbedding(model.embed_tokens, rank)  # type: ignore[assignment]
        if self.mixed:
            self.found += adapt_experts(model, self.config, rank, self.every, self.targets, self.method, dropout)
        elif self.megatrons:
            from memlint.models.language import megatron_adapters

            wanted = lambda name: self.every or is_target(name, self.targets)  # noqa: E731
            self.found += megatron_adapters.adapt_experts(model.layers, rank, dropout, wanted)
        if self.spec.get("lora.parameters"):
            self.found += adapt_parameters(model, rank, self.spec["lora.parameters"], self.method, dropout)
        if not self.found:
            named = self.targets if isinstance(self.targets, str) else ", ".join(self.targets)
            raise UnknownModel(f"no linear layer of {self.config.adapters.name} is called {named}")


def _is_frozen(name: str, parts: Sequence[str]) -> bool:
    """Whether a module in front of a decoder belongs to a part that adapters leave alone."""
    projector = "multi_modal_projector" in name or ".merger" in name
    return ("projector" if projector else "vision_tower") in parts


def _joined(base: Module, rank: int, dropout: float, config: Decoder, adapted: tuple[bool, ...]) -> JoinedLoraLinear:
    sizes = tuple(heads * config.head_dim for heads in (config.heads, *(config.key_value_heads,) * 2))
    return JoinedLoraLinear(base, rank, dropout, sizes, adapted)  # type: ignore[arg-type]
