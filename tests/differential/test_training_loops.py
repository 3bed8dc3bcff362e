"""Hand-written training loops: what memlint reads off a script, against the same script run on fake tensors with CUDA's
semantics, step for step."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from memlint.dialects import registry
from memlint.documents.load import load
from memlint.measure.tracker import StorageTracker
from tests.differential.test_language_models import values_known
from tests.differential.training import Step, fake_cuda, in_meta

CONFIG = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "architectures": ["LlamaForCausalLM"],
}
ROWS, LENGTH, TURNS = 3, 40, 6

HEAD = """\
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from contextlib import nullcontext
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.optim import AdamW
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("model")


def collate(rows):
    return tokenizer(rows, max_length=40, padding="max_length", truncation=True, return_tensors="pt")


loader = DataLoader(["a"] * 100, batch_size=3, collate_fn=collate)
model = AutoModelForCausalLM.from_pretrained("model", dtype={dtype}).to("cuda")
"""
WAYS = {
    "float32": HEAD.format(dtype="torch.float32"),
    "bfloat16": HEAD.format(dtype="torch.bfloat16"),
}
OPTIMIZER = "optimizer = AdamW(model.parameters(), lr=1e-4)\nmodel.train()\n"
NAMED = (
    OPTIMIZER
    + """\
for batch in loader:
    batch = {k: v.to("cuda") for k, v in batch.items()}
    outputs = model(**batch)
    loss = outputs.loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)
UNNAMED = (
    OPTIMIZER
    + """\
for step, batch in enumerate(loader):
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
"""
)
AUTOCAST = (
    OPTIMIZER
    + """\
for batch in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        outputs = model(**batch)
        loss = outputs.loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
)
OWN_LOSS = (
    OPTIMIZER
    + """\
criterion = nn.CrossEntropyLoss()
for batch in loader:
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    shift_logits = logits[..., :-1, :].contiguous()
    shift_labels = batch["labels"][..., 1:].contiguous()
    loss = criterion(shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)
UNSHIFTED = (
    OPTIMIZER
    + """\
for batch in loader:
    outputs = model(batch["input_ids"], attention_mask=batch["attention_mask"])
    loss = F.cross_entropy(outputs.logits.view(-1, 1000), batch["labels"].view(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)
IN_A_FUNCTION = (
    """\
def loss_of(model, batch):
    outputs = model(input_ids=batch["input_ids"])
    logits = outputs.logits.float()
    return F.cross_entropy(logits[:, :-1].reshape(-1, logits.size(-1)), batch["labels"][:, 1:].reshape(-1))


"""
    + OPTIMIZER
    + """\
for batch in loader:
    loss = loss_of(model, batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)
ACCUMULATED = (
    OPTIMIZER
    + """\
accumulate = 2
for step, batch in enumerate(loader):
    outputs = model(**batch)
    loss = outputs.loss / accumulate
    loss.backward()
    if (step + 1) % accumulate == 0:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
"""
)
DELETED = (
    OPTIMIZER
    + """\
for batch in loader:
    outputs = model(**batch)
    loss = outputs.loss
    del outputs
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)
ACCELERATED = """\
accelerator = Accelerator(mixed_precision="bf16")
optimizer = AdamW(model.parameters(), lr=1e-4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
model.train()
for batch in loader:
    outputs = model(**batch)
    loss = outputs.loss
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
"""
LORA = "model = get_peft_model(model, LoraConfig(r=8, target_modules=['q_proj', 'v_proj'], task_type='CAUSAL_LM'))\n"
CHECKPOINTED = "model.gradient_checkpointing_enable()\n"
NO_CACHE = "model.config.use_cache = False\n"
ZEROS = UNNAMED.replace("set_to_none=True", "set_to_none=False")
NEVER = UNNAMED.replace("    optimizer.zero_grad(set_to_none=True)\n", "")


class Truth(NamedTuple):
    peak: int
    trainable: int


class Loader:
    """A loader of fake batches; the last step's first one begins to count."""

    tracker: StorageTracker
    last = 1  # micro-batches of a step

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for number in range(TURNS):
            if number == TURNS - self.last:
                self.tracker.reset_peak()
            yield {
                name: torch.zeros(ROWS, LENGTH, dtype=torch.int64) for name in ("input_ids", "attention_mask", "labels")
            }


@contextmanager
def libraries(tracker: StorageTracker, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """The libraries' own code, but for what loads files and data."""
    import peft

    def from_pretrained(_: str, dtype: torch.dtype) -> Any:
        made = transformers.AutoConfig.for_model(**CONFIG)
        return transformers.AutoModelForCausalLM.from_config(made, dtype=dtype)

    def adapted(model: Any, config: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:  # fake tensors cannot be swapped nor deep-copied
            inner.setattr(torch.nn.Module, "to", lambda module, *_, **__: module)
            inner.setattr(FakeTensor, "__deepcopy__", lambda old, _: torch.nn.Parameter(torch.empty_like(old)))
            return whole(model, config)

    def forget(optimizer: Any, *_: Any) -> None:
        for state in optimizer.state.values():  # Adam counts its steps on the host
            if isinstance(state.get("step"), torch.Tensor):
                tracker.forget(state["step"])

    whole = peft.get_peft_model
    patch.setattr(peft, "get_peft_model", adapted)
    patch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", from_pretrained)
    patch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda _: None)
    patch.setitem(sys.modules, "loaders", SimpleNamespace(DataLoader=Loader))
    patch.setattr(torch.optim, "AdamW", partial(torch.optim.AdamW, foreach=True))  # the default on a card
    patch.setattr(torch.nn.Module, "to", lambda module, *_, **__: module)
    handle = register_optimizer_step_post_hook(forget)
    try:
        yield
    finally:
        handle.remove()


def in_torch(script: str, micro_batches: int) -> Truth:
    module = ModuleType("train")
    with pytest.MonkeyPatch.context() as patch, values_known(False), fake_cuda() as tracker:
        patch.setitem(sys.modules, "train", module)
        Loader.tracker, Loader.last = tracker, micro_batches
        with libraries(tracker, patch):
            script = script.replace('"cuda"', '"cpu"').replace("torch.utils.data import", "loaders import")
            exec(compile(script, "train.py", "exec"), module.__dict__)
        model = module.__dict__["model"]
        found = Truth(tracker.peak_bytes, sum(one.numel() for one in model.parameters() if one.requires_grad))
        module.__dict__.clear()
    return found


def in_memlint(tmp_path: Path, script: str) -> tuple[Any, Step]:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    [spec] = registry.specs(load(str(tmp_path / "train.py")))
    assert spec.unknown_reason == ""
    return spec, in_meta(spec)


CASES = {
    "outputs that are named, fp32": ("float32", NAMED, 1),
    "a loss alone, fp32": ("float32", UNNAMED, 1),
    "outputs that are named, bf16": ("bfloat16", NAMED, 1),
    "a loss alone, bf16": ("bfloat16", UNNAMED, 1),
    "without a cache": ("bfloat16", NO_CACHE + NAMED, 1),
    "under autocast, gradients let go after the forward pass": ("float32", AUTOCAST, 1),
    "zeros in the gradients' place": ("float32", ZEROS, 1),
    "gradients that nothing lets go": ("bfloat16", NEVER, 1),
    "adapters": ("bfloat16", LORA + NAMED, 1),
    "recomputed layers": ("bfloat16", CHECKPOINTED + NAMED, 1),
    "recomputed layers, adapters, a loss alone": ("bfloat16", CHECKPOINTED + LORA + UNNAMED, 1),
    "a loss of its own of a shifted copy": ("bfloat16", OWN_LOSS, 1),
    "a loss of its own of labels that are shifted already": ("bfloat16", LORA + UNSHIFTED, 1),
    "a loss of its own in a function": ("bfloat16", IN_A_FUNCTION, 1),
    "a loss of its own, adapters": ("float32", LORA + OWN_LOSS, 1),
    "accumulated": ("float32", ACCUMULATED, 2),
    "outputs that are deleted": ("bfloat16", DELETED, 1),
    "accelerate's mixed precision": ("float32", ACCELERATED, 1),
    "accelerate's mixed precision, adapters": ("bfloat16", LORA + ACCELERATED, 1),
}


# Bytes that are not there: the numbers of positions, which a recomputed layer of transformers keeps, and the quotient
# that accelerate goes backward from, which is gone before the optimizer steps.
ROUNDED = 512
APART = {"recomputed layers, adapters, a loss alone": -ROUNDED, "accelerate's mixed precision": ROUNDED}


@pytest.mark.parametrize(("way", "loop", "micro_batches"), list(CASES.values()), ids=list(CASES))
def test_a_script_takes_the_memory_that_it_takes_when_it_runs(
    tmp_path: Path, request: pytest.FixtureRequest, way: str, loop: str, micro_batches: int
) -> None:
    script = WAYS[way] + loop
    spec, ours = in_memlint(tmp_path, script)
    truth = in_torch(script, micro_batches)
    assert (spec["micro_batch_size"], spec["sequence_length"]) == (ROWS, LENGTH)
    assert ours.trainable == truth.trainable
    apart = APART.get(request.node.callspec.id, 0)
    assert ours.peak - truth.peak == apart, f"{(ours.peak - truth.peak) / truth.peak:+.3%} {ours.phases} {truth}"
