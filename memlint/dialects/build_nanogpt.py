"""Family build-nanogpt: a train_gpt2.py whose settings are its own constants, as karpathy/build-nanogpt leaves it.

The program is read and never run: the assignments of its module, the sizes that its GPTConfig is made with, and the few
words by which the loop differs. Source: karpathy/build-nanogpt at 6104ab1; the model is nanoGPT's.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from memlint.architectures import gpt2
from memlint.dialects import companions, native, own_code
from memlint.dialects import language_model as lm
from memlint.documents.node import Document, Node
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import Name, TrainingSpec

_PROGRAM, _VERSION = "train_gpt2.py", "build-nanogpt"
_NAMED = ("B", "T", "total_batch_size", "use_compile")
# What its classes are made of, and what each does as nanoGPT's do.
_CLASSES = ("CausalSelfAttention", "MLP", "Block", "GPTConfig", "GPT")
_LAYERS = ("Linear", "Embedding", "ModuleDict", "ModuleList", "LayerNorm", "GELU", *_CLASSES)
_SAME = {
    "F.scaled_dot_product_attention(": "attention that writes its scores",
    "self.transformer.wte.weight = self.lm_head.weight": "a head of its own",
    "torch.autocast(": "no autocast",
    "dtype=torch.bfloat16": "another dtype of autocast",
    "loss = loss / grad_accum_steps": "a step of one micro-batch",
    "fused=use_fused": "an AdamW that is not fused",
}


def recognise(document: Document, root: Node) -> bool:
    """llm.c's train_gpt2.py takes options, and this one none: its constants say what it trains."""
    if isinstance(root.value, dict) and root.value:
        return False
    own = _own(document)
    if own is None or not {"GPT", "GPTConfig"} <= own.classes.keys() or "argparse" in own.text:
        return False
    return {"B", "T", "total_batch_size"} <= _constants(own).keys()


def _own(document: Document) -> own_code.Module | None:
    path = document.path if document.path.endswith(_PROGRAM) else companions.find(_PROGRAM, document.path)
    return own_code.module(path) if path is not None else None


def _assigned(own: own_code.Module) -> Iterator[tuple[str, ast.expr]]:
    for statement in ast.parse(own.text).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            yield statement.targets[0].id, statement.value


def _constants(own: own_code.Module) -> dict[str, Any]:
    """What the module's own names are given, where that is a number or a switch."""
    found = {name: _number(value) for name, value in _assigned(own) if name in _NAMED}
    return {name: value for name, value in found.items() if value is not None}


def _number(node: ast.expr) -> int | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Pow)):
        left, right = _number(node.left), _number(node.right)
        if left is not None and right is not None and (isinstance(node.op, ast.Mult) or right < 64):
            return int(left * right if isinstance(node.op, ast.Mult) else left**right)
    return None


def _stated(spec: TrainingSpec) -> None:
    own = _own(spec.document)
    constants = {} if own is None else _constants(own)
    reason = "" if own is None else f"{own.path}: a constant of the program"
    names: tuple[tuple[str, Name], ...] = (
        ("B", "micro_batch_size"),
        ("T", "sequence_length"),
        ("total_batch_size", lm.HYPER + "total_tokens"),
    )
    for constant, name in names:
        if constant in constants:
            lm.put(spec, name, constants[constant], reason=reason)
    lm.put(spec, "compile", bool(constants.get("use_compile", False)), reason=reason)


def _model(spec: TrainingSpec) -> str:
    own = _own(spec.document)
    if own is None:
        return "train_gpt2.py is not there"
    other = _other(own)
    if other:
        return f"{own.path}: {other}: what it trains is its own"
    made = [value for name, value in _assigned(own) if name == "model" and isinstance(value, ast.Call)]
    if not made:
        return f"{own.path}: no model is made by a line of its own"
    sizes, most = _sizes(own, made[0])
    if sizes is None:
        return f"{own.path}: the sizes of its model are not stated as numbers"
    layers, heads, width, positions, rows = sizes
    length = spec.get("sequence_length")
    if isinstance(length, int) and length > positions:
        return f"{own.path}: T {length:,} is more than block_size {positions:,}, which the model refuses"
    if not heads or width % heads:
        return f"{own.path}: n_embd {width} is no multiple of n_head {heads}"
    described = gpt2.gpt2(layers, heads, width, positions, rows)
    spec.model_name = most or f"GPT, {layers} x {width}"
    lm.put(spec, "pretrained", bool(most), reason=own.path)
    native.describe(spec, described, None, own.path)
    return ""


def _other(own: own_code.Module) -> str:
    for name, part in own.classes.items():
        if name not in _CLASSES and name != "DataLoaderLite":
            return f"a class {name}"
        for node in ast.walk(part):
            if isinstance(node, ast.Call) and name != "DataLoaderLite":
                called = node.func
                layer = called.attr if isinstance(called, ast.Attribute) else ""
                if (
                    isinstance(called, ast.Attribute)
                    and getattr(called.value, "id", "") == "nn"
                    and layer not in _LAYERS
                ):
                    return f"{name} has {layer}"
    return next((why for words, why in _SAME.items() if words not in own.text), "")


def _sizes(own: own_code.Module, made: ast.Call) -> tuple[tuple[int, ...] | None, str]:
    """(layers, heads, width, positions, rows) of ``GPT(GPTConfig(...))``, or of a published model by its name."""
    if isinstance(made.func, ast.Attribute) and made.func.attr == "from_pretrained" and made.args:
        name = made.args[0].value if isinstance(made.args[0], ast.Constant) else None
        if name not in gpt2.PUBLISHED:
            return None, ""
        return (*gpt2.PUBLISHED[str(name)], gpt2.POSITIONS, gpt2.ROWS), str(name)
    config = made.args[0] if made.args else None
    if not isinstance(config, ast.Call) or getattr(config.func, "id", "") != "GPTConfig" or config.args:
        return None, ""
    found: dict[str, int | None] = {}
    for node in own.classes["GPTConfig"].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found[node.target.id] = _number(node.value)
    found |= {str(word.arg): _number(word.value) for word in config.keywords}
    numbers = [found.get(name) for name in ("n_layer", "n_head", "n_embd", "block_size", "vocab_size")]
    known = [number for number in numbers if number is not None and number > 0]
    return (tuple(known), "") if len(known) == len(numbers) == len(found) else (None, "")


def _precision(spec: TrainingSpec) -> None:
    lm.put(spec, "parameter_dtype", "float32", reason=f"{_VERSION}: weights are never cast")
    lm.put(spec, "compute_dtype", "bfloat16", reason=f"{_VERSION}: torch.autocast")
    lm.put(spec, "autocast", True, reason=f"{_VERSION}: torch.autocast")


def _processes(spec: TrainingSpec) -> None:
    """DDP under torchrun; a step has so many tokens over all processes."""
    count = native.replicated(spec)
    rows, length, total = (
        spec.get(name) for name in ("micro_batch_size", "sequence_length", lm.HYPER + "total_tokens")
    )
    if isinstance(rows, int) and isinstance(length, int) and isinstance(total, int):
        steps = max(1, total // (rows * length * (count or 1)))
        lm.put(
            spec, "gradient_accumulation_steps", steps, reason=f"{_VERSION}: total_batch_size over B x T x processes"
        )


FAMILY = lm.Family(
    beside=None,
    stated=Graph(Step(_stated, ("micro_batch_size", "sequence_length", "compile", lm.HYPER + "total_tokens"))),
    follows=Graph(
        Step(_model, (*native.MODEL_FACTS, "pretrained")),
        Step(_precision, ("parameter_dtype", "compute_dtype", "autocast")),
        Step(_processes, (*native.DEVICES, "gradient_accumulation_steps"), ("parallelism.",)),
    ),
    told=("model",),
    keys={"micro_batch_size": "B", "sequence_length": "T"},
)


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Any] | None:
    """Constants of a program are nobody's to change from a command."""
    return []
