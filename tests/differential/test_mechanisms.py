"""Mechanisms around a language model's step, against torch's run of them with CUDA's semantics: optimizers inside of
backward, quantised weights, offloaded activations, losses in tiles, reference models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from memlint.models import record
from tests.differential.test_language_models import (
    SIZES,
    TOLERANCE,
    Setting,
    adamw,
    in_transformers,
    spec_of,
    values_known,
)
from tests.differential.training import compare, in_meta, in_torch

LLAMA: dict[str, Any] = {"model_type": "llama", **SIZES}


class Updated:
    """An optimizer per parameter, called by the hook that runs once its gradient is there."""

    def __init__(self, parameters: Any, foreach: bool) -> None:
        self.state: dict[Any, Any] = {}
        self.defaults: dict[str, Any] = {}
        for parameter in parameters:
            own = torch.optim.AdamW([parameter], foreach=foreach)
            self.state[parameter] = own.state[parameter]
            parameter.register_post_accumulate_grad_hook(lambda _, own=own: own.step() or own.zero_grad())

    def step(self) -> None:
        """Every parameter is up to date."""

    def zero_grad(self) -> None:
        """No gradient is left."""


@pytest.mark.parametrize("every", [0, 1], ids=["in bfloat16", "checkpointed"])
@pytest.mark.parametrize("implementation", ["foreach", "loop"])
def test_an_optimizer_inside_of_backward_holds_one_gradient_at_a_time(implementation: str, every: int) -> None:
    setting = Setting(dtype="bfloat16", every=every, optimizer=implementation)
    facts = {**setting.facts(LLAMA), "optimizer_in_backward": True}
    with values_known(False):
        reference = in_transformers(LLAMA, setting)
        truth = in_torch(reference, {}, lambda parameters: Updated(parameters, implementation == "foreach"))  # type: ignore[return-value,arg-type]
    comparison = compare(f"{setting}", in_meta(spec_of(facts)), truth, bool(every))
    assert comparison.worst <= TOLERANCE, str(comparison)


class Tiled(torch.autograd.Function):
    """What TRL's log-probabilities allocate: Triton folds a tile's logits where they lie, and products of 16-bit tiles
    are added in fp32 in place."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, head: torch.Tensor, targets: torch.Tensor, tile: tuple[int, int]) -> Any:
        compute = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
        rows = x.shape[0]
        statistics = [torch.zeros(rows) for _ in range(7)]
        buffer = torch.empty((min(rows, tile[0]), tile[1]), dtype=compute)
        for first in range(0, rows, tile[0]):
            piece = x[first : first + tile[0]].to(compute)
            for entry in range(0, head.shape[0], tile[1]):
                weights = head[entry : entry + tile[1]].to(compute).t()
                torch.mm(piece, weights, out=buffer[: piece.shape[0], : weights.shape[1]])
                del weights
        found = [torch.zeros(rows) for _ in range(2)]
        entropy = torch.zeros(rows)
        del statistics, buffer
        ctx.save_for_backward(x, head, targets, found[1], entropy)
        ctx.tile, ctx.compute = tile, compute
        return found[0]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        x, head, *_ = ctx.saved_tensors
        tile, rows = ctx.tile, x.shape[0]
        of_x, of_head = torch.zeros(x.shape), torch.zeros(head.shape) if ctx.needs_input_grad[1] else None
        buffer = torch.empty((min(rows, tile[0]), tile[1]), dtype=ctx.compute)
        for first in range(0, rows, tile[0]):
            piece = x[first : first + tile[0]].to(ctx.compute)
            for entry in range(0, head.shape[0], tile[1]):
                weights = head[entry : entry + tile[1]].to(ctx.compute)
                torch.mm(piece, weights.t(), out=buffer[: piece.shape[0], : weights.shape[0]])
        return of_x.to(x.dtype), None if of_head is None else of_head.to(head.dtype), None, None


class Picked(torch.autograd.Function):
    """``x[mask]``, where fake tensors cannot know how many rows it has: all of them."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mask: torch.Tensor) -> Any:
        ctx.save_for_backward(mask)
        ctx.shape = x.shape
        places = torch.empty((mask.numel(), 2), dtype=torch.int64)
        del places
        return torch.empty((mask.numel(), x.shape[-1]), dtype=x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        places = torch.empty((gradient.shape[0], 2), dtype=torch.int64)
        del places
        return torch.zeros(ctx.shape, dtype=gradient.dtype), None


class Spread(torch.autograd.Function):
    """``zeros.masked_scatter(mask, x)``."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mask: torch.Tensor) -> Any:
        ctx.save_for_backward(mask)
        zeros = torch.zeros(mask.shape)
        return zeros.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return torch.empty(gradient.numel()), None


def tiled_log_probabilities(model: Any, batch: dict[str, torch.Tensor], tile: tuple[int, int]) -> torch.Tensor:
    x = model.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state[:, :-1]
    mask = batch["labels"][:, 1:] != -100
    targets = torch.empty(mask.numel(), dtype=torch.int64)
    return Spread.apply(Tiled.apply(Picked.apply(x, mask), model.lm_head.weight, targets, tile), mask)  # type: ignore[no-any-return,no-untyped-call]


@pytest.mark.parametrize("autocast", ["", "bfloat16"], ids=["in bfloat16", "under autocast"])
@pytest.mark.parametrize("tile", [(4096, 32768), (50, 300)], ids=["one tile", "many tiles"])
def test_a_loss_in_tiles_takes_the_memory_of_its_algorithm(tile: tuple[int, int], autocast: str) -> None:
    config = {**LLAMA, "vocab_size": 4000}
    setting = Setting(dtype="float32" if autocast else "bfloat16", autocast=autocast, rows=3, length=80)
    ours = in_meta(spec_of({**setting.facts(config), "loss": "chunked", "loss_tile": tile}))
    with values_known(False):
        reference = in_transformers(config, setting)
        reference.training_loss = lambda model, batch: -tiled_log_probabilities(model, batch, tile).sum() / 1.0
        truth = in_torch(reference, {}, adamw("foreach"), autocast=autocast or "float32")
    comparison = compare(f"{tile} {setting}", ours, truth)
    assert comparison.worst <= TOLERANCE, str(comparison)


def whole_log_probabilities(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.float()
    rows = logits[:, :-1].log_softmax(-1)
    return torch.gather(rows, -1, batch["labels"][:, 1:].contiguous().unsqueeze(-1)).squeeze(-1)


class Pair(torch.nn.Module):
    """A policy, and the copy of it that does not train."""

    def __init__(self, policy: torch.nn.Module, reference: torch.nn.Module | None) -> None:
        super().__init__()
        self.policy = policy
        self.reference = None if reference is None else reference.requires_grad_(False)


def preference_loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    own = whole_log_probabilities(model.policy, batch).sum(1)
    if model.reference is not None:
        with torch.no_grad():
            theirs = whole_log_probabilities(model.reference, batch).sum(1)
        own = own - theirs
    return -own.sigmoid().sum() / 1.0


@pytest.mark.parametrize("kind", ["copy", "precomputed"])
def test_a_preference_pair_takes_the_memory_of_two_models_log_probabilities(kind: str) -> None:
    setting = Setting(dtype="bfloat16", rows=4, length=80, every=1)
    facts = {**setting.facts(LLAMA), "micro_batch_size": 2, "sequences_per_sample": 2, "method": "dpo"}
    ours = in_meta(spec_of({**facts, "reference_model": kind}))
    with values_known(False):
        reference = in_transformers(LLAMA, setting)
        plain = in_transformers(LLAMA, setting._replace(every=0)) if kind == "copy" else None
        build = reference.build_model
        reference.build_model = lambda given: Pair(build(given), plain and plain.build_model(given))
        reference.training_loss = preference_loss
        truth = in_torch(reference, {}, adamw("foreach"))
    comparison = compare(f"{kind} {setting}", ours, truth, True)
    assert comparison.worst <= TOLERANCE, str(comparison)


class Unpacked(torch.autograd.Function):
    """bitsandbytes' 4-bit product (``MatMul4Bit``, ``_dequant_linear_fallback``), by what it allocates."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: FourBits) -> Any:
        ctx.layer, ctx.shape = layer, x.shape
        scales = None
        if layer.double:
            plain = torch.empty(layer.blocks)
            scales = plain + 1.0
            del plain
        weight = torch.empty(layer.sizes, dtype=x.dtype)
        out = torch.nn.functional.linear(x, weight)
        del scales, weight
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        layer = ctx.layer
        scales = torch.empty(layer.blocks) if layer.double else None
        weight = torch.empty(layer.sizes, dtype=layer.kept)
        del scales
        return torch.matmul(gradient, weight.to(gradient.dtype)), None


class FourBits(torch.nn.Module):
    """A frozen linear layer in 4 bits, with LoRA as ``peft/tuners/lora/bnb.py`` puts it beside."""

    def __init__(self, base: torch.nn.Linear, rank: int, double: bool, compute: torch.dtype) -> None:
        super().__init__()
        self.sizes, self.kept = tuple(base.weight.shape), base.weight.dtype
        self.double, self.compute = double, compute
        count = base.weight.numel()
        self.blocks = -(-count // 64)
        made = [((count + 1) // 2, torch.uint8), (16, torch.float32)]
        if double:
            made += [(self.blocks, torch.uint8), (1, torch.float32), (-(-self.blocks // 256), torch.float32)]
        else:
            made.append((self.blocks, torch.float32))
        for number, (size, dtype) in enumerate(made):
            self.register_buffer(f"part{number}", torch.empty(size, dtype=dtype))
        self.lora_A = torch.nn.Linear(self.sizes[1], rank, bias=False, dtype=torch.float32)
        self.lora_B = torch.nn.Linear(rank, self.sizes[0], bias=False, dtype=torch.float32)

    def base(self, x: torch.Tensor) -> torch.Tensor:
        dtype = x.dtype
        x = x.to(self.compute)
        return Unpacked.apply(x, self).to(dtype)  # type: ignore[no-any-return,no-untyped-call]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.base(x)
        result = result.clone()
        autocast = torch.is_autocast_enabled("cpu")
        dtype = result.dtype
        if not autocast:
            x = x.to(torch.float32)
        output = self.lora_B(self.lora_A(x)) * 2.0
        if not autocast:
            output = output.to(dtype)
        return result + output


def quantised(model: torch.nn.Module, rank: int, double: bool, prepared: bool) -> torch.nn.Module:
    model.requires_grad_(False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, torch.nn.Linear) and name != "lm_head" and not isinstance(parent, FourBits):
                setattr(parent, name, FourBits(child, rank, double, torch.bfloat16))
    if prepared:
        for module in model.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                if parameter.dtype == torch.bfloat16:
                    setattr(module, name, torch.nn.Parameter(torch.empty(parameter.shape), requires_grad=False))
    return model


@pytest.mark.parametrize("every", [0, 1], ids=["", "checkpointed"])
@pytest.mark.parametrize(
    ("double", "prepared", "autocast"),
    [(False, False, ""), (True, False, ""), (True, True, "bfloat16")],
    ids=["4 bits", "nested scales", "nested scales, prepared, under autocast"],
)
def test_weights_in_4_bits_are_unpacked_layer_by_layer(double: bool, prepared: bool, autocast: str, every: int) -> None:
    setting = Setting(dtype="bfloat16", autocast=autocast, every=every)
    facts = {**setting.facts(LLAMA), "tuning": "lora", "lora.r": 8, "lora.targets": "all-linear"}
    facts.update({"frozen_dtype": "bfloat16", "quantization.bits": 4, "quantization.kind": "nf4"})
    facts.update({"quantization.double": double, "quantization.prepared": prepared})
    ours = in_meta(spec_of(facts))
    with values_known(False):
        reference = in_transformers(LLAMA, setting)
        build = reference.build_model
        reference.build_model = lambda given: quantised(build(given), 8, double, prepared)
        truth = in_torch(reference, {}, adamw("foreach"), autocast=autocast or "float32")
        whole = sum(p.numel() for p in build(None).parameters())
    assert ours.parameters == whole + ours.trainable  # packed or not, a weight has as many elements
    comparison = compare(f"{setting}", ours, truth._replace(parameters=ours.parameters), bool(every))
    assert comparison.worst <= TOLERANCE, str(comparison)


class Offloaded(torch.autograd.graph.saved_tensors_hooks):
    """torchtune's and TRL's ``OffloadActivations``, by what is on the card: a saved tensor's original for five more,
    and a fetched one while its node runs."""

    def __init__(self, weights: list[torch.Tensor]) -> None:
        self.stash: dict[int, torch.Tensor] = {}
        self.count = 0
        own = {weight.untyped_storage()._cdata for weight in weights}

        def pack(x: torch.Tensor) -> Any:
            self.count += 1
            if x.untyped_storage().nbytes() < 1024 or x.untyped_storage()._cdata in own:
                return x
            for number in [number for number in self.stash if number <= self.count - 5]:
                del self.stash[number]
            self.stash[self.count] = x
            return self.count, x.shape, x.stride(), x.dtype

        def unpack(packed: Any) -> torch.Tensor:
            if isinstance(packed, torch.Tensor):
                return packed
            number, shape, strides, dtype = packed
            held = self.stash.pop(number, None)
            self.stash.clear()
            return torch.empty_strided(shape, strides, dtype=dtype) if held is None else held

        super().__init__(pack, unpack)


@pytest.mark.parametrize("every", [0, 1], ids=["", "checkpointed"])
def test_offloaded_activations_are_away_from_the_card(every: int) -> None:
    setting = Setting(dtype="bfloat16", every=every, rows=3)
    config = {**LLAMA, "num_hidden_layers": 6}
    ours = in_meta(spec_of({**setting.facts(config), "activation_offloading": True}))
    with values_known(False):
        reference = in_transformers(config, setting)
        plain = reference.training_loss

        def loss(model: Any, batch: Any) -> torch.Tensor:
            with Offloaded([*model.parameters(), *model.buffers()]):
                return plain(model, batch)  # type: ignore[no-any-return]

        reference.training_loss = loss
        truth = in_torch(reference, {}, adamw("foreach"))
    comparison = compare(f"{setting}", ours, truth, True)
    assert comparison.worst <= TOLERANCE, str(comparison)


def test_what_is_offloaded_is_counted_in_host_memory() -> None:
    setting = Setting(dtype="bfloat16", every=1, rows=3)
    facts = {**setting.facts(LLAMA), "activation_offloading": True}
    layers, hidden = LLAMA["num_hidden_layers"], setting.rows * setting.length * LLAMA["hidden_size"] * 2
    assert record(spec_of({**facts, "activation_offloading": False})).host_bytes == 0
    away = record(spec_of(facts)).host_bytes
    fewer = {"hyperparameters.config": {**LLAMA, "num_hidden_layers": layers - 1}}
    # What a layer was called with: hidden states; its tables stay, as an argument by name.
    assert away - record(spec_of({**facts, **fewer})).host_bytes == hidden


class Cut(torch.autograd.Function):
    """What cut cross entropy allocates: its kernels read hidden states and head, and write their gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, head: torch.Tensor, labels: torch.Tensor) -> Any:
        scored = x.shape[0] - labels.shape[0]
        asked = torch.empty(scored, dtype=torch.int32)
        kept = torch.empty(scored), torch.empty(head.shape[0])
        ctx.save_for_backward(x, head, kept[0], labels, asked, kept[1])
        return torch.empty(scored).mean()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        x, head, *_ = ctx.saved_tensors
        order = torch.empty(head.shape[0], dtype=torch.int64)
        found = torch.zeros_like(x), torch.zeros_like(head, dtype=x.dtype)
        del order
        return (*found, None)


def cut_loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    x = model.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    if torch.is_autocast_enabled("cpu"):
        x = x.to(torch.get_autocast_dtype("cpu"))
    return Cut.apply(x.flatten(0, -2), model.lm_head.weight, batch["labels"])  # type: ignore[no-any-return,no-untyped-call]


@pytest.mark.parametrize("autocast", ["", "bfloat16"], ids=["in bfloat16", "under autocast"])
def test_cut_cross_entropy_takes_the_memory_of_two_gradients(autocast: str) -> None:
    setting = Setting(dtype="float32" if autocast else "bfloat16", autocast=autocast, rows=3, length=80)
    ours = in_meta(spec_of({**setting.facts(LLAMA), "loss": "fused", "fused_kernels": ["cut_cross_entropy"]}))
    with values_known(False):
        reference = in_transformers(LLAMA, setting)
        reference.training_loss = cut_loss
        truth = in_torch(reference, {}, adamw("foreach"), autocast=autocast or "float32")
    comparison = compare(f"{setting}", ours, truth)
    assert comparison.worst <= TOLERANCE, str(comparison)


def test_norms_may_stay_in_float32_beside_weights_in_16_bits() -> None:
    setting = Setting(dtype="bfloat16", autocast="bfloat16", every=1)
    ours = in_meta(spec_of({**setting.facts(LLAMA), "autocast": True, "float32_parts": ["norms"]}))
    with values_known(False):
        reference = in_transformers(LLAMA, setting)
        build = reference.build_model

        def widened(given: Any) -> Any:
            model = build(given)
            for name, module in model.named_modules():
                if "norm" in name:
                    module.weight = torch.nn.Parameter(torch.empty(module.weight.shape))
            return model

        reference.build_model = widened
        truth = in_torch(reference, {}, adamw("foreach"), autocast="bfloat16")
    comparison = compare(f"{setting}", ours, truth, True)
    assert comparison.worst <= TOLERANCE, str(comparison)


PARTS = ("mlp", "self_attn", "input_layernorm", "post_attention_layernorm")


@pytest.mark.parametrize("autocast", ["", "bfloat16"], ids=["in bfloat16", "under autocast"])
def test_layers_whose_parts_are_recomputed_each_by_itself(autocast: str) -> None:
    """NeMo RL's ``_parallelize_model``: torch's ``checkpoint_wrapper`` around the parts of each layer."""
    setting = Setting(dtype="float32" if autocast else "bfloat16", autocast=autocast, rows=2, length=80)
    facts = {**setting.facts(LLAMA), "checkpointing": "full", "checkpointing_modules": list(PARTS)}
    ours, plain = in_meta(spec_of(facts)), in_meta(spec_of(setting.facts(LLAMA)))
    with values_known(False):
        reference = in_transformers(LLAMA, setting)
        build = reference.build_model

        def wrapped(given: Any) -> Any:
            model = build(given)
            for layer in model.model.layers:
                for name in PARTS:
                    setattr(layer, name, checkpoint_wrapper(getattr(layer, name)))
            return model

        reference.build_model = wrapped
        truth = in_torch(reference, {}, adamw("foreach"), autocast=autocast or "float32")
    comparison = compare(f"{PARTS} {setting}", ours, truth, True)
    assert comparison.worst <= TOLERANCE, str(comparison)
    assert ours.saved < plain.saved
