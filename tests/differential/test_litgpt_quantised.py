"""litgpt's fine-tuning of a model that bitsandbytes quantises: the static step against torch's run of the same."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from memlint.models import record
from tests.differential.implementations import reference
from tests.differential.test_adapters import Thirds
from tests.differential.test_implementations import CONFIG, spec
from tests.differential.test_language_models import TOLERANCE, Setting, adamw
from tests.differential.test_mechanisms import FourBits
from tests.differential.training import compare, in_meta, in_torch

THIRDS = ("q_proj", "v_proj")
FACTS = {
    "tuning": "lora",
    "lora.r": 4,
    "lora.targets": THIRDS,
    "lora.dtype": "bfloat16",
    "frozen_dtype": "bfloat16",
    "quantization.bits": 4,
    "quantization.kind": "nf4",
}


class Packed(FourBits):
    """A linear layer in 4 bits alone. lightning quantises from float16, and so unpacks to it."""

    def __init__(self, base: torch.nn.Linear, double: bool) -> None:
        super().__init__(base, 1, double, torch.bfloat16)
        del self.lora_A, self.lora_B
        self.kept, self.out_features = torch.float16, self.sizes[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x)


class Stable(torch.nn.Embedding):
    """bitsandbytes' StableEmbedding, by its steps."""

    def __init__(self, old: torch.nn.Embedding) -> None:
        super().__init__(*old.weight.shape, dtype=old.weight.dtype)
        self.norm = torch.nn.LayerNorm(old.weight.shape[1], dtype=old.weight.dtype)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return self.norm(super().forward(index))  # type: ignore[no-any-return]


def quantised(model: Any, double: bool) -> Any:
    model.requires_grad_(False)
    torch.set_default_dtype(torch.bfloat16)
    for layer in model.layers:
        layer.attention.qkv = Thirds(tuple(layer.attention.sizes), (True, False, True), 0.0, CONFIG["hidden_size"])
    torch.set_default_dtype(torch.float32)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, torch.nn.Linear):
                setattr(parent, name, Packed(child, double))
    model.old = model.embedding
    model.embedding = Stable(model.embedding)
    return model


@pytest.mark.parametrize("every", [0, 1], ids=["", "checkpointed"])
@pytest.mark.parametrize("double", [False, True], ids=["NF4", "NF4 with nested scales"])
def test_all_linear_layers_are_packed_and_the_embedding_is_another_one(double: bool, every: int) -> None:
    setting = Setting(dtype="bfloat16", every=every, length=200, accumulation=2)
    ours = in_meta(spec("litgpt", setting, False, 2, **{**FACTS, "quantization.double": double}))
    base = reference("litgpt", CONFIG, setting, False, False, 2)
    new: list[Any] = []

    def build_model(given: Any) -> Any:
        model = quantised(base.build_model(given), double)
        new.extend(model.embedding.parameters())
        return model

    def optimizer(parameters: Sequence[Any]) -> torch.optim.Optimizer:
        return adamw(setting.optimizer)([p for p in parameters if not any(p is other for other in new)])

    model = SimpleNamespace(build_model=build_model, make_batch=base.make_batch, training_loss=base.training_loss)
    truth = in_torch(model, {}, optimizer, setting.accumulation)
    comparison = compare(f"{setting}", ours, truth._replace(parameters=ours.parameters), bool(every))
    assert ours.trainable == truth.trainable
    assert comparison.worst <= TOLERANCE, str(comparison)


def test_the_embedding_is_there_three_times() -> None:
    """The old one, the new one, and the gradient of the new one, which no optimizer lets go of."""
    found = record(spec("litgpt", Setting(dtype="bfloat16"), False, 2, **FACTS)).tape
    whole = CONFIG["vocab_size"] * CONFIG["hidden_size"] * 2
    alive = {event for event in found.events if event >= 0} - {~event for event in found.events if event < 0}
    kept = [found.labels[storage] for storage in alive if found.sizes[storage] == whole]
    assert sorted((label.component, label.module) for label in kept if label.component != "logits") == [
        ("gradients", "embed_tokens"),
        ("parameters", "embed_tokens"),
        ("parameters", "originals.0"),
    ]
