"""Family nanogpt: files of assignments that train.py runs over its own, and options of the same names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from memlint.architectures import gpt2
from memlint.dialects import companions, nanogpt_forks, native, own_code
from memlint.dialects import language_model as lm
from memlint.documents.node import Document, Edit, Node
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import ASSUMED, Fact, Name, TrainingSpec

# karpathy/nanoGPT at 3adf61e, model.py, and the releases before it (NewGELU): what its config states, and what its
# classes are made of.
_FIELDS = ("block_size", "vocab_size", "n_layer", "n_head", "n_embd", "dropout", "bias")
_LAYERS = (
    *("Linear", "Dropout", "Embedding", "Parameter", "ModuleDict", "ModuleList", "GELU", "NewGELU", "LayerNorm"),
    *("CausalSelfAttention", "MLP", "Block"),
)
_CHARACTERS = {"shakespeare_char": 65}  # data/*/prepare.py: what its meta.pkl says


def recognise(document: Document, root: Node) -> bool:
    """A file that only evaluates trains nothing."""
    only = root.get("eval_only")
    return only is None or only.value is not True


# What a train.py has that takes what its command says: nanoGPT's configurator.py, or anything else that does.
_READS_COMMANDS = re.compile(
    r"configurator|argv|argparse|ArgumentParser|import_module|\bexec\(|\bfire\b|[Hh]ydra|OmegaConf"
)


def _own_model(spec: TrainingSpec) -> str:
    """The model of this repository's own train.py, where that is not nanoGPT's: forks keep the trainer and its names,
    and change the model. The optimizer is another matter."""
    own = nanogpt_forks.trainer(spec)
    if own is not None and (name := nanogpt_forks.of_another(spec, own)):
        return f"{name}: {own.path} has no such name, and which program takes this file is not said"
    why = _another(spec, own)
    other = nanogpt_forks.other_optimizer(spec, own)
    if other or not why or own is None or not _is_made(own):
        return other or why
    length, unknown = nanogpt_forks.sizes(spec, own)
    if unknown:
        return f"{why}, and {unknown}"
    if length is not None:
        spec.facts["sequence_length"] = length
    rows = _CHARACTERS.get(str(lm.setting(spec, "dataset")))
    fact = Fact("own_model", nanogpt_forks.told(spec, own, rows), ASSUMED, reason=why)
    spec.facts["own_model"] = fact
    return ""


def _is_made(own: own_code.Module) -> bool:
    """Whether the program makes its model itself, at its top level, by names of its repository."""
    return "model_args" in own.text or "GPTConfig" in own.imported


_MAX_HOPS = 4


def _another(spec: TrainingSpec, own: own_code.Module | None) -> str:
    """What the model has that nanoGPT's has not; "" where it is nanoGPT's."""
    path = spec.document.path
    if own is None:
        beside = own_code.module(companions.find("model.py", path) or "")
        if beside is None or "GPTConfig" not in beside.classes:
            return ""
        why = _differs(beside)
        return f"{why}, and which program takes this file is not said" if why else ""
    if own.path != path and not own_code.matches(own.path, _READS_COMMANDS):
        return f"{own.path} reads no words of its command, and no file of assignments: what it trains is said elsewhere"
    if "GPTConfig" in own.classes:
        return _differs(own)
    module: own_code.Module | None = own
    for _ in range(_MAX_HOPS):  # a package may import it from where it is
        assert module is not None
        source, _ = module.imported.get("GPTConfig", ("", ""))
        if not source and module is own:
            return f"{own.path} makes no GPTConfig of nanoGPT's: its model is its own"
        there = own_code.imported(source, module.path)
        module = own_code.module(there[0]) if there is not None else None
        if module is None:
            return ""
        if "GPTConfig" in module.classes:
            return _differs(module)
    return ""


def _differs(made: own_code.Module) -> str:
    for name, part in sorted(made.classes.items(), key=lambda item: item[0] != "GPTConfig"):
        if name == "GPTConfig":
            fields = [
                at.target.id for at in part.body if isinstance(at, ast.AnnAssign) and isinstance(at.target, ast.Name)
            ]
            other = next((field for field in fields if field not in _FIELDS), "")
        else:
            other = next((layer for layer in _layers(part) if layer not in _LAYERS), "")
        if other:
            return f"{made.path}: {name} has {other}, which nanoGPT's has not: its model is its own"
    return ""


def _layers(part: ast.ClassDef) -> Iterator[str]:
    """The classes that an attribute of a class is made of, by their last names."""
    for node in ast.walk(part):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Attribute):
            continue
        for call in ast.walk(node.value):
            if isinstance(call, ast.Call):
                called = call.func
                name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
                if name[:1].isupper():
                    yield name


def _beside(spec: TrainingSpec) -> tuple[str, dict[str, Fact]]:
    """A fork's train.py has defaults of its own."""
    spec.facts.update(nanogpt_forks.defaults(spec))
    return "", {}


def _model(spec: TrainingSpec) -> str:
    if spec.get("own_model") is not None:
        spec.model_name = "a model of the repository's own"
        return ""
    start, length = spec.fact(lm.HYPER + "init_from"), spec.fact("sequence_length")
    dropout = lm.setting(spec, "dropout") or 0.0
    if length is None or start is None:
        return lm.not_stated(spec, "block_size" if length is None else "init_from")
    most: int | None = None
    if start.value in gpt2.PUBLISHED:
        layers, heads, width = gpt2.PUBLISHED[start.value]
        rows, bias, origin, most = gpt2.ROWS, True, start, gpt2.POSITIONS
        spec.model_name = str(start.value)
        lm.put(spec, "model", start.value, start)
        lm.put(spec, "pretrained", True, start)
    else:
        sizes = {name: spec.fact(lm.HYPER + name) for name in ("n_layer", "n_head", "n_embd")}
        for name, fact in sizes.items():
            if fact is None:
                return lm.not_stated(spec, name)
        layers, heads, width = (fact.value for fact in sizes.values() if fact is not None)
        if width % heads:
            return f"n_embd {width} is no multiple of n_head {heads}"
        origin, bias = sizes["n_layer"] or start, lm.switched(spec, "bias")
        rows = _CHARACTERS.get(str(lm.setting(spec, "dataset")), gpt2.PADDED)  # where the data has no meta.pkl
        spec.model_name = f"GPT, {layers} x {width}"
        lm.put(spec, "pretrained", start.value != "scratch", start)
    # Positions are cut to the rows that are trained on (crop_block_size).
    tokens = length.value
    positions = tokens if most is None else min(most, tokens) if isinstance(tokens, int) else most
    made = gpt2.gpt2(layers, heads, width, positions, rows, bias=bias, dropout=dropout)
    native.describe(spec, made, origin, "nanoGPT: model.py")
    return ""


def _precision(spec: TrainingSpec) -> None:
    """Weights are float32; torch.amp.autocast wherever dtype is not."""
    stated = spec.fact(lm.HYPER + "dtype")
    lm.put(spec, "parameter_dtype", "float32", reason="nanoGPT: weights are never cast")
    if stated is None:
        return
    lm.put(spec, "compute_dtype", stated.value, stated)
    products = spec["compute_dtype"]
    lm.put(spec, "autocast", products != "float32", stated)
    if products == "float16":
        lm.put(spec, "loss_scaling", "dynamic", stated)


def _processes(spec: TrainingSpec) -> None:
    """DDP under torchrun, which divides gradient_accumulation_steps by the number of processes."""
    count = native.replicated(spec)
    if spec.launch is None:
        lm.on_devices(spec)
    total = spec.fact(lm.HYPER + "total_accumulation")
    if total is not None and isinstance(total.value, int):
        reason = "" if count == 1 else "nanoGPT: divided by the number of processes"
        ranks = spec.get("device_count", count) if spec.launch is None else count
        lm.put(spec, "gradient_accumulation_steps", max(1, total.value // (ranks or 1)), total, reason)


def _evaluation(spec: TrainingSpec) -> None:
    """estimate_loss runs batches of training's size, without gradients."""
    batch, length = spec.fact("micro_batch_size"), spec.fact("sequence_length")
    if batch is None or length is None or not lm.setting(spec, "eval_iters"):
        return
    name: Name
    for name, fact in (("evaluation_batch_size", batch), ("evaluation_sequence_length", length)):
        spec.facts[name] = Fact(name, fact.value, ASSUMED, reason="nanoGPT: estimate_loss")
    spec.facts["evaluation_accumulates"] = Fact("evaluation_accumulates", False, ASSUMED, reason="nanoGPT: .item()")


def _on_cpu(spec: TrainingSpec) -> str:
    device = str(lm.setting(spec, "device"))
    return "" if device.startswith("cuda") else f"device {device}: the run is not on a CUDA device"


FAMILY = lm.Family(
    beside=_beside,
    follows=Graph(
        Step(_on_cpu),
        Step(_own_model, ("own_model", "sequence_length")),
        Step(_model, (*native.MODEL_FACTS, "model", "pretrained")),
        Step(_precision, ("parameter_dtype", "compute_dtype", "autocast", "loss_scaling")),
        Step(_processes, (*native.DEVICES, "gradient_accumulation_steps"), ("parallelism.",)),
        Step(_evaluation, lm.EVALUATION_FACTS),
    ),
    told=("on_cpu", "own_model", "model"),
    keys={"micro_batch_size": "batch_size", "sequence_length": "block_size"},
)


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """Assignments, or options, of train.py's names."""
    if fact == "gradient_accumulation_steps":
        if spec.get("parallelism.strategy") == "ddp" and "world_size" not in spec:
            return []
        return lm.write(spec, lm.HYPER + "total_accumulation", value * spec.get("world_size", 1))
    if fact == "compute_dtype":
        return lm.write(spec, lm.HYPER + "dtype", value) if value in ("float32", "bfloat16", "float16") else []
    if fact in ("evaluation_batch_size", "attention_tokens", "parameter_dtype", "autocast", "optimizer"):
        return []
    return None
