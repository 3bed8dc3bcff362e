"""Adapters over frozen weights, as PEFT computes them: LoRA (rsLoRA is the same), DoRA, LoRA-FA, VeRA, IA3, prompt
tuning, p-tuning, modules that train in full beside them; and training of some layers only.

    LoRA    base(x) + B(A(dropout(x))) * scaling      A (r, in), B (out, r) in their own dtype
    DoRA    the same, times magnitude / |W + BA| by rows, for which each call makes W + BA
    IA3     the result, or a feed-forward layer's input, times a vector

Sources: ``peft`` 0.21.2, ``tuners/lora/{layer,dora,variants}.py``, ``tuners/ia3/layer.py``, ``tuners/prompt_tuning``,
``tuners/p_tuning``, ``peft_model.py``, ``tuners/tuners_utils.py`` (which modules a name means).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memlint.architectures.decoder import Decoder
from memlint.facts.spec import TrainingSpec
from memlint.meta import functional as F
from memlint.meta.amp import to
from memlint.meta.autograd import no_grad, record, tracked
from memlint.meta.nn import Embedding, Linear, Module, buffer, parameter
from memlint.meta.tensor import DTYPES, DType, Tensor, default_dtype, empty, int64, state
from memlint.models import UnknownModel
from memlint.models.language.decoder import LanguageModel, replace_linears
from memlint.models.language.experts import GroupedExperts, mixture_of
from memlint.models.language.listed_experts import ListedExperts
from memlint.models.language.parts import Conv1D
from memlint.models.language.quantisation import Linear4bit, Linear8bit, dequantised

# The methods whose adapters stand beside linear layers.
LINEAR_METHODS = ("lora", "dora", "lora_fa", "ia3", "vera", "oft")
WITHOUT_EXPERTS = ("ia3", "vera", "oft")
# What a product whose result is queries, keys and values is called.
JOINED = (".qkv", ".query_key_value", ".qkv_proj")
PROMPT_METHODS = ("prompt", "p_tuning")


def sizes_of(base: Module) -> tuple[int, int]:
    """(inputs, outputs) of a linear layer, however its weight is kept."""
    if hasattr(base, "sizes"):  # quantised
        outputs, inputs = base.sizes
        return inputs, outputs
    if isinstance(base, Conv1D):
        inputs, outputs = base.weight.shape
        return inputs, outputs
    outputs, inputs = base.weight.shape  # type: ignore[attr-defined]
    return inputs, outputs


class LoraLinear(Module):
    def __init__(self, base: Module, rank: int, dropout: float, frozen_a: bool = False) -> None:
        inputs, outputs = sizes_of(base)
        self.base_layer = base
        self.lora_A = Linear(inputs, rank, bias=False)
        self.lora_B = Linear(rank, outputs, bias=False)
        self.dropout = dropout
        if frozen_a:
            self.lora_A.freeze()

    @property
    def weight(self) -> Tensor:
        """Of the base layer: all that those see who multiply by it themselves."""
        return self.base_layer.weight  # type: ignore[attr-defined,no-any-return]

    @property
    def bias(self) -> Tensor | None:
        return self.base_layer.bias  # type: ignore[attr-defined,no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        result = self.base_layer(x)
        dtype = result.dtype
        if not isinstance(self.base_layer, (Linear4bit, Linear8bit)):
            x = to(x, self.lora_A.weight.dtype)
            return to(self.added(x, result), dtype)
        # tuners/lora/bnb.py: no cast under autocast, and a copy of what 4 bits give
        if isinstance(self.base_layer, Linear4bit):
            result = F.clone(result)
        if state.autocast is not None:
            return self.added(x, result)
        x = to(x, self.lora_A.weight.dtype)
        return self.added(x, result, dtype)

    def added(self, x: Tensor, result: Tensor, dtype: DType | None = None) -> Tensor:
        """``dtype``: the sum's second half is cast before it is added."""
        output = self.lora_B(self.lora_A(F.dropout(x, self.dropout, self.training))) * 1.0
        return result + (output if dtype is None else to(output, dtype))


class DoraLinear(LoraLinear):
    """The norm of the adapted weight is made anew in each call, by way of BA times the identity."""

    def __init__(self, base: Module, rank: int, dropout: float, frozen_a: bool = False) -> None:
        super().__init__(base, rank, dropout, frozen_a)
        self.magnitude = parameter(sizes_of(base)[1])

    def added(self, x: Tensor, result: Tensor, dtype: DType | None = None) -> Tensor:
        if self.dropout and self.training:
            x = F.dropout(x, self.dropout)
            result = result + self.scaled(x, None)
        else:
            result = result + self.scaled(x, result)
        return result if dtype is None else to(result, dtype)

    def scaled(self, x: Tensor, base: Tensor | None) -> Tensor:
        width = self.lora_A.weight.shape[1]
        identity = empty((width, width), self.lora_A.weight.dtype)
        product = self.lora_B(self.lora_A(identity)).transpose(0, 1)
        del identity
        product = to(product, x.dtype)
        weight = to(dequantised(self.base_layer), x.dtype)
        if isinstance(self.base_layer, Conv1D):
            weight = weight.transpose(0, 1)
        with no_grad():
            norm = self.norm(weight, product.detach())
        scale = (self.magnitude / norm).view(1, -1)
        adapted = self.lora_B(self.lora_A(x))
        if base is not None:
            bias = self.base_layer.bias  # type: ignore[attr-defined]
            if bias is not None:
                base = base - bias
        else:
            base = F.linear(x, weight)
        out: Tensor = (scale - 1.0) * base + scale * adapted * 1.0
        return out

    @staticmethod
    def norm(weight: Tensor, product: Tensor) -> Tensor:
        weight = weight + product * 1.0
        return to(empty((weight.shape[0],), weight.dtype), weight.dtype)


class NamedDoraLinear(DoraLinear):
    """torchtune's (``modules/peft/dora.py``): each thing has a name until the sum is there, and dropout leaves the
    frozen product as it is."""

    def added(self, x: Tensor, result: Tensor, dtype: DType | None = None) -> Tensor:
        x = F.dropout(x, self.dropout, self.training)
        adapted = self.lora_B(self.lora_A(x))
        width = self.lora_A.weight.shape[1]
        identity = empty((width, width), x.dtype)
        product = self.lora_B(self.lora_A(identity)).transpose(0, 1)
        weight = to(dequantised(self.base_layer), x.dtype)
        with no_grad():
            norm = self.norm(weight, product.detach())
        scale = (self.magnitude / norm).view(1, -1)
        moved = (scale - 1.0) * result + scale * adapted * 1.0
        out: Tensor = moved + result
        return out


class JoinedLoraLinear(Module):
    """litgpt's adapter of a product whose result is queries, keys and values: one A for those that are adapted, whose
    results go through a one-dimensional convolution each, and are put between zeros (``litgpt/lora.py``)."""

    def __init__(
        self, base: Linear, rank: int, dropout: float, sizes: tuple[int, ...], adapted: tuple[bool, ...]
    ) -> None:
        inputs, outputs = sizes_of(base)
        self.base_layer = base
        self.outputs = outputs
        self.parts = tuple(size for size, wanted in zip(sizes, adapted) if wanted)
        self.alike = len(set(sizes)) == 1
        self.padded = not all(adapted)
        self.lora_A = parameter(rank * len(self.parts), inputs)
        self.lora_B = parameter(sum(self.parts), rank)
        # litgpt keeps the places of what is adapted on the card.
        self.lora_ind = buffer(sum(self.parts), dtype=int64) if self.padded else None
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        result = self.base_layer(x)
        first = F.linear(F.dropout(x, self.dropout, self.training), self.lora_A)
        second = self.convolved(first.transpose(1, 2), self.lora_B.unsqueeze(-1)).transpose(1, 2)
        added = self.between_zeros(second) * 1.0
        out: Tensor = result + added
        return out

    def convolved(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.alike:
            return F.conv(x, weight, groups=len(self.parts))
        pieces = F.chunk(x, len(self.parts), 1)
        weights = F.split(weight, self.parts)
        return F.cat([F.conv(piece, own) for piece, own in zip(pieces, weights)], 1)

    def between_zeros(self, x: Tensor) -> Tensor:
        if not self.padded:
            return x
        out = empty((*x.shape[:-1], self.outputs), x.dtype)
        places = empty((x.shape[-1],), int64)  # a copy of what the module keeps
        if tracked(x):  # index_copy_ saves its source, too
            shape, dtype = x.shape, x.dtype
            record(out, (x,), (x, places), lambda g: (Tensor(shape, dtype),))
        return out


class LoraEmbedding(Module):
    def __init__(self, base: Embedding, rank: int) -> None:
        entries, width = base.weight.shape
        self.base_layer = base
        self.lora_embedding_A = parameter(rank, entries)
        self.lora_embedding_B = parameter(width, rank)

    @property
    def weight(self) -> Tensor:
        """Of the base layer: what a tied head multiplies by."""
        weight: Tensor = self.base_layer.weight
        return weight

    def forward(self, index: Tensor) -> Tensor:
        result = self.base_layer(index)
        dtype = result.dtype
        first = self.lora_embedding_A.transpose(0, 1)
        second = self.lora_embedding_B.transpose(0, 1)
        looked_up = F.embedding(index, first)
        result = result + F.matmul(looked_up, second) * 1.0
        return to(result, dtype)


class VeraLinear(Module):
    """VeRA: random A and B that all layers share and nobody trains, between two vectors that are trained."""

    def __init__(self, base: Module, first: Tensor, second: Tensor, dropout: float) -> None:
        self.inputs, self.outputs = sizes_of(base)
        self.base_layer = base
        self.vera_A, self.vera_B = first, second
        self.vera_lambda_d = parameter(first.shape[0])
        self.vera_lambda_b = parameter(self.outputs)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        result = self.base_layer(x)
        dtype = result.dtype
        first, second = self.vera_A[:, : self.inputs], self.vera_B[: self.outputs]
        x = to(x, self.vera_lambda_d.dtype)
        dropped = F.dropout(x, self.dropout, self.training)
        result = result + self.vera_lambda_b * F.linear(self.vera_lambda_d * F.linear(dropped, first), second)
        return to(result, dtype)


class RotatedLinear(Module):
    """OFT: the input is turned, block by block, by rotations that five terms of a series make of skew-symmetric
    matrices (``tuners/oft/layer.py``, ``_cayley_batch``)."""

    def __init__(self, base: Module, block: int) -> None:
        inputs, _ = sizes_of(base)
        if inputs % block:
            raise UnknownModel(f"OFT's blocks of {block} do not divide {inputs} inputs")
        self.base_layer = base
        self.block, self.blocks = block, inputs // block
        upper = block * (block - 1) // 2
        self.oft_R = parameter(self.blocks, upper)
        self.rows, self.cols = buffer(upper, dtype=int64), buffer(upper, dtype=int64)

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = to(x, self.oft_R.dtype)
        x = self.turned(x)
        result = self.base_layer(to(x, dtype))
        return to(result, dtype)

    def turned(self, x: Tensor) -> Tensor:
        rotation = self.rotation()
        shape = x.shape
        folded = x.reshape(*shape[:-1], self.blocks, self.block)
        rows = folded.numel // (self.blocks * self.block)
        ordered = folded.permute(folded.ndim - 2, *range(folded.ndim - 2), folded.ndim - 1)
        product = F.bmm(ordered.reshape(self.blocks, rows, self.block), rotation)
        product = product.view(self.blocks, *shape[:-1], self.block)
        product = product.permute(*range(1, folded.ndim - 1), 0, folded.ndim - 1)
        out: Tensor = product.reshape(*shape)
        return out

    def rotation(self) -> Tensor:
        """(blocks, block, block)."""
        skew = self.skew()
        identity = empty((self.block, self.block), skew.dtype)
        total = empty(skew.shape, skew.dtype)
        del identity
        total = F.add_(total, skew)
        power = F.bmm(skew, skew)
        total = F.add_(total, power)
        power = F.bmm(power, skew)
        total = F.add_(total, power)
        power = F.bmm(power, skew)
        return F.add_(total, power)

    def skew(self) -> Tensor:
        matrix = empty((self.blocks, self.block, self.block), self.oft_R.dtype)
        written = matrix.alias(matrix.shape, None)
        if tracked(self.oft_R):  # index_put_
            shape, dtype = self.oft_R.shape, self.oft_R.dtype
            record(written, (self.oft_R,), (self.rows, self.cols), lambda g: (Tensor(shape, dtype),))
        out: Tensor = written - written.transpose(-2, -1)
        return out


class AdaptedExperts(Module):
    """Experts whose weights lie in one tensor: each call adds ``B @ A`` of every expert to a copy of all of them, which
    is kept for backward, and gets a gradient as large. Gate and input are one weight, of twice the rank.

    (``ParamWrapper`` and ``_LoraFactorsProxy``; ``utils/transformers_weight_conversion.py`` says what is adapted.)
    """

    def __init__(self, base: GroupedExperts, entering: int, leaving: int) -> None:
        """``entering``, ``leaving``: ranks; 0 for none."""
        self.base_layer = base
        self.entering = _Factors(base.gate_up_proj, entering) if entering else None
        self.leaving = _Factors(base.down_proj, leaving) if leaving else None

    def forward(self, x: Tensor, numbers: Tensor, weights: Tensor) -> Tensor:
        merged: GroupedExperts = object.__new__(type(self.base_layer))
        merged.__dict__.update(self.base_layer.__dict__)
        if self.entering is not None:
            merged.gate_up_proj = self.entering(merged.gate_up_proj)
        if self.leaving is not None:
            merged.down_proj = self.leaving(merged.down_proj)
        return merged.forward(x, numbers, weights)


class _Factors(Module):
    """Of a weight (experts, out, in)."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        self.number, outputs, inputs = weight.shape
        self.lora_A = Linear(inputs, rank * self.number, bias=False)
        self.lora_B = Linear(rank * self.number, outputs, bias=False)

    def forward(self, weight: Tensor) -> Tensor:
        first = self.lora_A.weight.reshape(self.number, -1, weight.shape[2])
        second = self.lora_B.weight.reshape(weight.shape[1], -1, self.number).permute(2, 0, 1)
        left, right = to(second, weight.dtype), to(first, weight.dtype)
        out = Tensor(weight.shape, weight.dtype)
        if tracked(left, right):
            a, b, dtype = left.shape, right.shape, weight.dtype
            record(out, (left, right), (right, left), lambda g: (Tensor(a, dtype), Tensor(b, dtype)))
        return out


class AdaptedRouter(Module):
    """A router's weight with ``B @ A`` added in each call."""

    def __init__(self, base: Module, rank: int) -> None:
        outputs, inputs = base.weight.shape  # type: ignore[attr-defined]
        self.base_layer = base
        self.lora_A = Linear(inputs, rank, bias=False)
        self.lora_B = Linear(rank, outputs, bias=False)

    def forward(self, x: Tensor) -> Any:
        base: Any = self.base_layer
        merged: Any = object.__new__(type(base))
        merged.__dict__.update(base.__dict__)
        delta = F.mm(self.lora_B.weight, self.lora_A.weight) * 1.0
        merged.weight = base.weight + to(delta, base.weight.dtype)
        return merged.forward(x)


class ScaledLinear(Module):
    """IA3: the result times a vector, or the input where the layer is a feed-forward one."""

    def __init__(self, base: Module, feedforward: bool) -> None:
        inputs, outputs = sizes_of(base)
        self.base_layer = base
        self.feedforward = feedforward
        # (out, 1), or (1, in): either way it is flattened before it is used
        self.ia3_l = parameter(1, inputs) if feedforward else parameter(outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        scaling = self.ia3_l.flatten() * 1.0
        if self.feedforward:
            x = to(x, self.ia3_l.dtype)
            return self.base_layer(to(x * scaling, dtype))  # type: ignore[no-any-return]
        result = self.base_layer(x)
        dtype = result.dtype
        return to(result * scaling, dtype)


class PromptEncoder(Module):
    """Virtual tokens: rows of an embedding, which p-tuning puts through three linear layers of the model's width."""

    def __init__(self, tokens: int, width: int, reparameterised: bool, hidden: int = 0) -> None:
        hidden = hidden or width
        self.tokens = tokens
        self.embedding = Embedding(tokens, width)
        self.layers = [Linear(width, hidden), Linear(hidden, hidden), Linear(hidden, width)] if reparameterised else []

    def forward(self, rows: int, dtype: DType) -> Tensor:
        """(B, virtual tokens, W)."""
        numbers = empty((1, self.tokens), int64)
        made = self.embedding(numbers)
        del numbers
        for place, layer in enumerate(self.layers):
            made = layer(made)
            if place < 2:
                made = F.relu(made)
        made = F.repeat(made, rows, 1, 1)
        return to(made, dtype)


# -------------------------------------------------------------------------------------------------- which modules


# Where a decoder's modules are: as they are, within its model for a task, and within one that sees or hears as well
# (SmolVLM's own name for it; before transformers 4.52, and of Voxtral later, a model for a task within the whole).
PATHS = ("", "model.", "model.language_model.", "model.text_model.", "language_model.model.")


def is_target(name: str, targets: Sequence[str] | str) -> bool:
    """Whether a dotted module name is meant: by a regular expression that fits it whole, or by its last parts."""
    if isinstance(targets, str):
        import re

        return any(re.fullmatch(targets, before + name) for before in PATHS)
    return any(name == target or name.endswith(f".{target}") for target in targets)


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
        return _thaw(model, spec)
    dtype = DTYPES[spec.get("lora.dtype") or "float32"]
    with default_dtype(dtype):
        if method in LINEAR_METHODS:
            _adapt_linears(model, spec, config, method)
        elif method in PROMPT_METHODS:
            tokens = spec.get("adapter.virtual_tokens")
            if tokens is None:
                raise UnknownModel("the number of virtual tokens is not known")
            options = spec.get("adapter.options") or {}
            if options.get("encoder_reparameterization_type", "MLP") != "MLP":
                raise UnknownModel("p-tuning's LSTM is not known")
            hidden = options.get("encoder_hidden_size") or config.width
            model.prompt = PromptEncoder(tokens, config.width, method == "p_tuning", hidden)
        else:
            from memlint.models.language import peft_methods

            peft_methods.adapt(model, spec, config, method)
    for name in (saved,) if isinstance(saved, str) else saved:
        _train_in_full(model, name)
    if spec.get("lora.unfrozen"):
        _unfreeze(model, spec["lora.unfrozen"])


def _unfreeze(module: Module, names: Sequence[str]) -> None:
    """What trains as it is: a script made it, or gave it back its gradients, once the adapter was there."""
    for name, child in module.children():
        if name in names:
            for tensor in child.parameters():
                tensor.requires_grad = True
        else:
            _unfreeze(child, names)


def _adapt_linears(model: LanguageModel, spec: TrainingSpec, config: Decoder, method: str) -> None:
    defaults = config.adapters.ia3 if method == "ia3" else config.adapters.lora
    targets: Any = spec.get("oft.targets" if method == "oft" else "lora.targets")
    if targets is None:
        targets = defaults
        if not targets:
            raise UnknownModel(f"PEFT has no default modules for {config.adapters.name}, and none are stated")
    every = targets == "all-linear" or list(targets) == ["all-linear"]
    _refuse_listed_experts(model, every, targets)
    rank, dropout = spec.get("lora.r", 8), float(spec.get("lora.dropout") or 0.0)
    megatrons = spec.get("implementation") == "megatron"
    if megatrons and method != "lora":
        raise UnknownModel(f"{method} beside Megatron's layers is not known")
    kind = DoraLinear if method == "dora" else LoraLinear
    if megatrons:
        from memlint.models.language import megatron, megatron_adapters

        if unlike := megatron.refused(config):
            raise UnknownModel(f"LoRA over Megatron's layers with {unlike} is not known")
        kind = megatron_adapters.ParallelLora  # type: ignore[assignment]
    if method == "dora" and spec.get("implementation") == "torchtune":
        kind = NamedDoraLinear
    saved = spec.get("lora.modules_to_save") or ()
    saved = (saved,) if isinstance(saved, str) else saved
    found: list[str] = []
    # These names now mean the experts' common weights, and so no longer the perceptrons beside them.
    mixed = config.experts is not None and method not in WITHOUT_EXPERTS and not megatrons
    taken = config.adapters.experts if mixed else ()

    def replace(name: str, base: Module) -> Module | None:
        # litgpt's one product stands for three names.
        thirds = [f"{name.rpartition('.')[0]}.{third}" for third in ("q_proj", "k_proj", "v_proj")]
        adapted = tuple(every or is_target(third, targets) for third in thirds)
        joined = name.endswith(JOINED) and spec.get("implementation") == "litgpt"
        wanted = any(adapted) if joined else is_target(name, targets)
        if name == "lm_head" if every else not wanted:
            return None
        if name.startswith("sight.") and _is_frozen(name, spec.get("frozen_parts") or ()):
            return None
        if name.rpartition(".")[2] in taken or is_target(name, list(saved)):
            return None
        if any(f".{kept}." in f".{name}" for kept in saved):  # within a module that trains in full
            return None
        found.append(name)
        if method == "oft":
            return RotatedLinear(base, _block_size(spec, base))
        if method == "vera":
            return VeraLinear(base, shared[0], shared[1], dropout)
        if joined:
            return _joined(base, rank, dropout, config, adapted)
        if method == "ia3":
            fed = spec.get("ia3.feedforward") or (defaults or ("down_proj",))[-1:]
            return ScaledLinear(base, is_target(name, fed))
        return kind(base, rank, dropout, method == "lora_fa")

    shared: list[Tensor] = []
    if method == "vera":
        sizes: list[tuple[int, int]] = []

        def measure(name: str, base: Module) -> None:
            if name != "lm_head" if every else is_target(name, targets):
                sizes.append(sizes_of(base))

        replace_linears(model, measure)
        if sizes:
            dtype = DTYPES[spec.get("lora.dtype") or "float32"]
            shared.append(buffer(rank, max(inputs for inputs, _ in sizes), dtype=dtype))
            shared.append(buffer(max(outputs for _, outputs in sizes), rank, dtype=dtype))
    replace_linears(model, replace)
    if not every and method not in WITHOUT_EXPERTS and is_target("embed_tokens", targets):
        found.append("embed_tokens")
        model.embed_tokens = LoraEmbedding(model.embed_tokens, rank)  # type: ignore[assignment]
    if mixed:
        found += _adapt_experts(model, config, rank, every, targets, method, dropout)
    elif megatrons:
        wanted = lambda name: every or is_target(name, targets)  # noqa: E731
        found += megatron_adapters.adapt_experts(model.layers, rank, dropout, wanted)
    if spec.get("lora.parameters"):
        found += _adapt_parameters(model, rank, spec["lora.parameters"], method, dropout)
    if not found:
        raise UnknownModel(f"no linear layer of {config.adapters.name} is called {', '.join(targets)}")


def _is_frozen(name: str, parts: Sequence[str]) -> bool:
    """Whether a module in front of a decoder belongs to a part that adapters leave alone."""
    projector = "multi_modal_projector" in name or ".merger" in name
    return ("projector" if projector else "vision_tower") in parts


def _block_size(spec: TrainingSpec, base: Module) -> int:
    """PEFT's default is 32; a number of blocks stands in where it is 0."""
    stated = spec.get("oft.block_size")
    blocks = spec.get("oft.rank") or 0
    if not stated and blocks:
        return sizes_of(base)[0] // int(blocks)
    return int(32 if stated is None else stated)


# Of the layers of an expert that is a module of its own (``architectures/adapters.py``).
APART_NAMES = ("gate_proj", "up_proj", "down_proj", "w1", "w2", "w3")


def _refuse_listed_experts(model: LanguageModel, every: bool, targets: Any) -> None:
    for number, layer in enumerate(getattr(model, "layers", ())):  # models that are no decoders have none
        mixture = mixture_of(layer)
        if mixture is None or not isinstance(mixture.experts, ListedExperts):
            continue
        path = f"layers.{number}.mlp.experts.0"
        if every or any(is_target(f"{path}.{name}", targets) for name in APART_NAMES):
            raise UnknownModel("adapters of quantised experts, before transformers 5, are not known")


def _adapt_experts(
    model: LanguageModel, config: Decoder, rank: int, every: bool, targets: Any, method: str, dropout: float
) -> list[str]:
    names = config.adapters.experts
    found: list[str] = []
    for number, layer in enumerate(model.layers):
        mixture = mixture_of(layer)
        if mixture is None:
            continue
        path = f"layers.{number}.mlp"
        if isinstance(mixture.experts, ListedExperts) or not names:
            continue
        gate, up, down = names

        def named(name: str, path: str = path) -> bool:
            return every or is_target(f"{path}.experts.0.{name}", targets)

        entering, leaving = (named(gate), named(up)), named(down)
        routed = every or is_target(f"{path}.gate", targets)
        if any(entering) != all(entering):
            raise UnknownModel(f"PEFT adapts {gate} and {up} of experts together or not at all")
        if not (any(entering) or leaving or routed):
            continue
        if dropout or method == "dora":
            raise UnknownModel("PEFT adapts experts neither with dropout nor by DoRA")
        found.append(path)
        if any(entering) or leaving:
            ranks = 2 * rank if any(entering) else 0, rank if leaving else 0
            mixture.experts = AdaptedExperts(_whole(mixture.experts), *ranks)
        if routed:
            mixture.gate = AdaptedRouter(mixture.gate, rank)
    return found


def _whole(experts: Module) -> GroupedExperts:
    if not isinstance(experts, GroupedExperts):
        raise UnknownModel("adapters of experts in few bits are not known")
    return experts


def _adapt_parameters(model: LanguageModel, rank: int, names: Sequence[str], method: str, dropout: float) -> list[str]:
    """``target_parameters``: a weight of all experts, whichever names it had before transformers 5."""
    found: list[str] = []
    for number, layer in enumerate(model.layers):
        mixture = mixture_of(layer)
        if mixture is None:
            continue
        path = f"layers.{number}.{'mlp' if getattr(layer, 'mlp', None) else 'feed_forward'}.experts"
        entering, leaving = (is_target(f"{path}.{name}", names) for name in ("gate_up_proj", "down_proj"))
        if not (entering or leaving):
            continue
        if dropout or method != "lora":
            raise UnknownModel("PEFT adapts parameters neither with dropout nor by DoRA")
        found.append(path)
        if isinstance(mixture.experts, AdaptedExperts):
            raise UnknownModel("experts that are adapted by the names of modules and of parameters are not known")
        mixture.experts = AdaptedExperts(_whole(mixture.experts), rank if entering else 0, rank if leaving else 0)
    if not found:
        raise UnknownModel(f"no parameter of experts is called {', '.join(names)}")
    return found


def _joined(base: Module, rank: int, dropout: float, config: Decoder, adapted: tuple[bool, ...]) -> JoinedLoraLinear:
    sizes = tuple(heads * config.head_dim for heads in (config.heads, *(config.key_value_heads,) * 2))
    return JoinedLoraLinear(base, rank, dropout, sizes, adapted)  # type: ignore[arg-type]


def _train_in_full(model: LanguageModel, name: str) -> None:
    """``modules_to_save``: the module stays as it is, and a copy of it trains in its place."""
    if name in ("lm_head", "embed_tokens") and model.lm_head is None:
        # A copy is not tied: the other one keeps the old weight.
        with default_dtype(model.embed_tokens.weight.dtype):
            model.lm_head = Linear.__new__(Linear)
        model.lm_head.weight, model.lm_head.bias = model.embed_tokens.weight, model.head_bias
    kept = _replaced(model, name, "")
    if not kept:
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


def _thaw(model: LanguageModel, spec: TrainingSpec) -> None:
    """Freeze tuning: the last n layers train (the first of a negative n) or modules of them, and others beside.

    What trains is kept in ``parameter_dtype``.
    """
    count = spec.get("freeze.layers")
    if count is None:
        raise UnknownModel("which layers train is not stated")
    numbers = range(len(model.layers))
    chosen = numbers[-count:] if count > 0 else numbers[:-count]
    names = spec.get("freeze.modules") or ["all"]
    inside = [names] if isinstance(names, str) else list(names)
    beside = spec.get("freeze.extra_modules") or []
    dtype = DTYPES[spec.get("parameter_dtype", "float32")]
    for number in chosen:
        layer = model.layers[number]
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
