"""Family nanochat: its pretraining by depth, and the scripts that train its model further.

Releases differ in the model and in the optimizer, and nothing of that is an option. The repository's own
``nanochat/gpt.py`` says which one it is; where a script stands alone, the spelling of its options does. Sources:
karpathy/nanochat at 3a5e0bc, c6abcdf, 63bb583, 41bb2ea and 92d63d4 (2025-10 to 2026-07).
"""

from __future__ import annotations

import ast
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from memlint.architectures.sizes import ROWS, check
from memlint.dialects import companions, launchers, native, own_code
from memlint.dialects import language_model as lm
from memlint.documents.node import Command, Document, Edit, Node, Unresolved
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import ASSUMED, WRITTEN, Fact, Missing, Name, TrainingSpec, UnknownModel

_VERSION = "nanochat"
_BASE, _FURTHER = "base_train", ("mid_train", "chat_sft")
FIRST: tuple[str, ...] = ()
NEWEST = ("lambdas", "padded", "smear", "values")
# What classes of gpt.py have had, by when it is added: what is not here makes another model.
_CLASSES = ("GPTConfig", "Linear", "CausalSelfAttention", "MLP", "Block", "GPT")
_FIELDS = ("sequence_len", "vocab_size", "n_layer", "n_head", "n_kv_head", "n_embd", "window_pattern")
_ATTRIBUTES = {
    *("config", "window_sizes", "transformer", "lm_head", "rotary_seq_len", "cos", "sin"),
    *("layer_idx", "n_head", "n_kv_head", "n_embd", "head_dim", "c_q", "c_k", "c_v", "c_proj", "c_fc", "attn", "mlp"),
    *("resid_lambdas", "x0_lambdas", "value_embeds", "ve_gate_channels", "ve_gate"),
    *("smear_gate", "smear_lambda", "backout_lambda"),
}
_FEATURES = {
    "lambdas": "resid_lambdas",
    "values": "value_embeds",
    "smear": "smear_gate",
    "padded": "pad_vocab_size_to",
}
_EVERY_SECOND = "layer_idx % 2 == (n_layer - 1) % 2"
_SQUARED = "F.relu(x).square()"
# Options that trainers declare, or assign before configurator.py reads a command, with a number.
_DECLARED = (
    r"""add_argument\(\s{{0,99}}["']--{0}["'][^\n]{{0,200}}?default=(-?[\d*]{{1,40}})"""
    r"""|^{1}[ \t]{{0,9}}=[ \t]{{0,9}}(-?[\d*]{{1,40}})"""
)
_FIRST_BATCH = 1 << 19  # tokens: what 12 layers do best with (base_train.py: B_REF), and all took before 2026-02-05
_FIRST_DEPTH, _GROWTH = 12, 0.383
_ROWS = {True: 65536, False: 32768}  # of the tokenizer (tok_train.py): before 2026-01-07, and since


def recognise(document: Document, root: Node) -> bool:
    """Another repository may have a scripts/base_train.py: nanochat's is beside its gpt.py, or is told its options."""
    if companions.find("nanochat/gpt.py", document.path) is not None:
        return True
    spelled = ("device-batch-size", "device_batch_size")
    return root.get("depth") is not None and any(root.get(name) is not None for name in spelled)


def _program(command: Command | None) -> str:
    """``base_train`` of ``scripts.base_train`` and of ``scripts/base_train.py``."""
    called = command.called if command is not None else ""
    return re.split(r"[./]", called.removesuffix(".py"))[-1]


def _own(spec: TrainingSpec, path: str) -> own_code.Module | None:
    found = companions.find(path, spec.document.path)
    return own_code.module(found) if found is not None else None


def _text(spec: TrainingSpec, path: str) -> str:
    found = _own(spec, path)
    return found.text if found is not None else ""


def _is_first(spec: TrainingSpec) -> bool:
    """Whether options have the spelling of before 2026-01-13, which is all that a script alone says of its release."""
    return not any("-" in str(name).strip("-") for name in _written(spec)) and any(
        "_" in name for name in _written(spec)
    )


def _written(spec: TrainingSpec) -> list[str]:
    options = spec.launch.options.value if spec.launch is not None else None
    return [str(name) for name in options] if isinstance(options, dict) else []


# ----------------------------------------------------------------------------------------------------- what is stated


def _stated(spec: TrainingSpec) -> None:
    """What a command leaves out is what the program declares; a model that is trained further is that of the script's
    own ``base_train``, and so are its rows."""
    names: tuple[tuple[str, Name], ...] = (
        ("depth", lm.HYPER + "depth"),
        ("aspect-ratio", lm.HYPER + "aspect_ratio"),
        ("head-dim", lm.HYPER + "head_dim"),
        ("max-seq-len", "sequence_length"),
        ("device-batch-size", "micro_batch_size"),
        ("total-batch-size", lm.HYPER + "total_tokens"),
    )
    program = _program(spec.launch)
    base = _base_command(spec) if program in _FURTHER else None
    for option, name in names:
        fact = spec.fact(name)
        if fact is not None and fact.node is not None:
            continue
        if lm.gap(spec, option, option.replace("-", "_")) is not None:
            spec.facts.pop(name, None)
            continue
        if base is not None and (option in ("depth", "aspect-ratio", "head-dim") or program == "chat_sft"):
            node = _option(base, option)
            if node is not None:
                _put_node(spec, name, node, option)
                continue
        of = _BASE if option in ("depth", "aspect-ratio", "head-dim") or program == "chat_sft" else program
        found = _declared(_text(spec, f"scripts/{of}.py"), option)
        if found is not None:
            lm.put(spec, name, found, reason=f"{_VERSION}: scripts/{of}.py of this repository")
    if spec.get(lm.HYPER + "total_tokens") is None:
        text = _text(spec, f"scripts/{_BASE}.py")
        value = _FIRST_BATCH if program == "mid_train" or (not text and _is_first(spec)) else -1
        lm.put(spec, lm.HYPER + "total_tokens", value, reason=f"{_VERSION}: scripts/{program}.py")


def _put_node(spec: TrainingSpec, name: Name, node: Node, option: str) -> None:
    try:
        value = int(str(node.value))
    except ValueError:
        spec.facts.pop(name, None)
        return
    lm.put(spec, name, value, reason=f"{_VERSION}: --{option} of scripts.{_BASE} in this script")


def _base_command(spec: TrainingSpec) -> Command | None:
    """The one command of the script that makes the model, where one does."""
    found = [command for command in spec.document.commands if _program(command) == _BASE]
    depths = {str(node.value) if (node := _option(command, "depth")) is not None else "" for command in found}
    return found[0] if len(depths) == 1 else None


def _option(command: Command, name: str) -> Node | None:
    options = command.options.value
    if not isinstance(options, dict):
        return None
    node = options.get(name) or options.get(name.replace("-", "_"))
    return None if node is None or isinstance(node.value, Unresolved) else node


def _declared(text: str, option: str) -> int | None:
    spelled = option.replace("-", "[-_]")
    found = re.search(_DECLARED.format(spelled, option.replace("-", "_")), text, re.MULTILINE)
    if found is None:
        return None
    number = found.group(1) or found.group(2)
    try:
        return math.prod(int(part) for part in number.split("*"))
    except ValueError:
        return None


# -------------------------------------------------------------------------------------------------------- what follows


def _on_cpu(spec: TrainingSpec) -> str:
    device = str(lm.setting(spec, "device_type") or "cuda")
    return "" if device.startswith("cuda") else f"device-type {device}: the run is not on a CUDA device"


def _loop(spec: TrainingSpec) -> str:
    program = _program(spec.launch)
    if program == "chat_rl":
        return "scripts.chat_rl samples answers and learns from rows as long as these are: its memory is not known"
    if program == "chat_sft":
        text = _text(spec, "scripts/chat_sft.py")
        if not re.search(r"^model = torch\.compile\(", text, re.MULTILINE):
            return "scripts.chat_sft of this release takes each conversation as long as it is: how long is not stated"
    if program in _FURTHER and _base_command(spec) is None:
        return f"scripts.{program} trains a checkpoint whose depth this script does not state"
    return ""


def _features(spec: TrainingSpec) -> str:
    """Which release's model the repository has."""
    own = _own(spec, "nanochat/gpt.py")
    if own is None:
        found, reason = (FIRST, "options with underscores") if _is_first(spec) else (NEWEST, "options with dashes")
        _assume(
            spec, "features", list(found), f"{_VERSION} as its {reason} have it: no nanochat/gpt.py beside the script"
        )
        _assume(spec, "stacked", found != FIRST, f"{_VERSION}: {reason}")
        return ""
    other = _unknown_part(own)
    if other:
        return f"{own.path}: {other}, which nanochat's has not: its model is its own"
    features = [name for name, word in sorted(_FEATURES.items()) if word in own.text]
    lm.put(spec, lm.HYPER + "features", features, reason=f"{_VERSION}: nanochat/gpt.py of this repository")
    muon, both = _text(spec, "nanochat/muon.py"), _text(spec, "nanochat/optim.py")
    if "class MuonAdamW" not in both and "class Muon(" not in muon:
        return f"{own.path}: neither optim.py nor muon.py beside it has nanochat's optimizer"
    stacked = "torch.stack" in (both or muon)
    lm.put(
        spec, lm.HYPER + "stacked", stacked, reason=f"{_VERSION}: {'optim' if both else 'muon'}.py of this repository"
    )
    return ""


def _assume(spec: TrainingSpec, name: str, value: Any, reason: str) -> None:
    fact: Name = lm.HYPER + name
    spec.facts[fact] = Fact(fact, value, ASSUMED, reason=reason)


def _unknown_part(own: own_code.Module) -> str:
    """What the classes of this gpt.py have that no release of nanochat's has."""
    for name, part in own.classes.items():
        if name not in _CLASSES:
            return f"a class {name}"
        for node in ast.walk(part):
            if name == "GPTConfig" and isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                if node.target.id not in _FIELDS:
                    return f"GPTConfig has {node.target.id}"
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                owner = node.value
                if isinstance(owner, ast.Name) and owner.id == "self" and node.attr not in _ATTRIBUTES:
                    return f"{name} has {node.attr}"
    if "GPT" not in own.classes:
        return "no class GPT"
    if _SQUARED not in own.text:
        return "a perceptron without the square of relu"
    if "value_embeds" in own.text and _EVERY_SECOND not in own.text:
        return "value embeddings in other layers"
    return ""


def _model(spec: TrainingSpec) -> str:
    numbers: list[int] = []
    for key, name in (("depth", "depth"), ("aspect-ratio", "aspect_ratio"), ("head-dim", "head_dim")):
        fact = spec.fact(lm.HYPER + name)
        if fact is None or not isinstance(fact.value, int):
            return lm.not_stated(spec, key, key.replace("-", "_"))
        numbers.append(fact.value)
    depth, ratio, head = numbers
    width = depth * ratio
    text = _text(spec, f"scripts/{_BASE}.py")
    nudged = "base_dim" in text or (not text and not _is_first(spec))
    if nudged:  # to a multiple of a head (base_train.py since 2026-01-18)
        width = -(-width // head) * head
    elif width % -(-width // head):
        return f"depth {depth}: {width:,} channels are not divided by {-(-width // head)} heads in this release"
    made = width // -(-width // head)
    origin = spec.fact(lm.HYPER + "depth")
    lm.put(spec, lm.HYPER + "width", width, origin, f"{_VERSION}: depth x aspect ratio")
    lm.put(spec, lm.HYPER + "head_width", made, origin, f"{_VERSION}: scripts/base_train.py")
    spec.model_name = f"d{depth}, {depth} x {width}"
    return ""


def _vocabulary(spec: TrainingSpec) -> str:
    """That of the tokenizer which the script trains before, or which the repository's would be."""
    for command in spec.document.commands:
        node = _option(command, "vocab-size") if _program(command) == "tok_train" else None
        if node is not None:
            return _told_rows(spec, node)
    declared = _declared(_text(spec, "scripts/tok_train.py"), "vocab-size")
    told = re.search(r"scripts\.tok_train\b[^\n#;&|]{0,200}--vocab[-_]size[= ](\d{1,9})\b", spec.document.text)
    if told is not None:
        lm.put(spec, "vocabulary_size", int(told.group(1)), reason="--vocab-size of scripts.tok_train in this script")
    elif declared is not None:
        lm.put(spec, "vocabulary_size", declared, reason=f"{_VERSION}: scripts/tok_train.py of this repository")
    else:
        why = f"{_VERSION}: scripts/tok_train.py; the tokenizer's files say it"
        spec.facts["vocabulary_size"] = Fact("vocabulary_size", _ROWS[_is_first(spec)], ASSUMED, reason=why)
    return ""


def _told_rows(spec: TrainingSpec, node: Node) -> str:
    text = str(node.value)
    rows = int(text) if text.isdecimal() and len(text) < 20 else 0
    try:
        check("--vocab-size", rows, ROWS)
    except UnknownModel as error:
        spec.missing = (*spec.missing, Missing("--vocab-size", node.span, str(error), "vocabulary_size"))
        return str(error)
    spec.facts["vocabulary_size"] = Fact("vocabulary_size", rows, WRITTEN, "--vocab-size", node)
    return ""


def _precision(spec: TrainingSpec) -> str:
    """bfloat16 on an Ampere or newer card: by autocast, and since 2026-03-04 by layers that cast their weights."""
    dtype, reason = "bfloat16", f"{_VERSION}: on a GPU that has it"
    if spec.launch is not None and "NANOCHAT_DTYPE" in spec.launch.environment:
        dtype, reason = str(spec.launch.environment["NANOCHAT_DTYPE"].value), "NANOCHAT_DTYPE"
    stated = spec.fact(lm.HYPER + "dtype")
    if stated is not None and isinstance(stated.value, str):
        dtype = stated.value
    if lm.dtype_of(dtype) not in ("bfloat16", "float16", "float32"):
        return f"{reason} {dtype} is not known"
    lm.put(spec, "compute_dtype", lm.dtype_of(dtype), stated, reason)
    lm.put(spec, "parameter_dtype", "float32", reason=f"{_VERSION}: gpt.py, but embeddings")
    recipe = lm.setting(spec, "fp8_recipe")
    if lm.switched(spec, "fp8") and recipe not in (None, "tensorwise"):
        return f"fp8-recipe {recipe}: what it keeps is not known"
    return ""


def _processes(spec: TrainingSpec) -> str:
    """States are shared among ranks, which no wrapper does; a step has so many tokens over all of them."""
    found = launchers.processes(spec.launch)
    spec.missing = (*spec.missing, *found.missing)
    count = found.total.value if found.total is not None else None if found.distributed else 1
    reason = "" if found.total else "no torchrun"
    native.divided(spec, "zero", count, found.total, reason)
    if count != 1:
        lm.put(spec, "parallelism.zero_stage", 2, reason=f"{_VERSION}: optim.py shares gradients' sums and states")
    if spec.launch is None:
        lm.on_devices(spec)
    rows, length, total = (
        spec.fact(name) for name in ("micro_batch_size", "sequence_length", lm.HYPER + "total_tokens")
    )
    ranks = spec.get("world_size")
    if rows is None or length is None or total is None or not isinstance(ranks, int):
        return ""
    each = rows.value * length.value * ranks
    tokens = total.value if total.value > 0 else _best_batch(spec)
    if tokens % each and spec.tried("micro_batch_size") is None:
        return f"total-batch-size {tokens:,} is no multiple of {each:,} tokens, which base_train.py refuses"
    why = f"{_VERSION}: {tokens:,} tokens in steps of {each:,}"
    lm.put(spec, "gradient_accumulation_steps", max(1, tokens // each), total, why)
    return ""


def _best_batch(spec: TrainingSpec) -> int:
    """A power of 2 near what the model's size asks for (base_train.py since 2026-02-05)."""
    depth, ratio, head = (spec.get(lm.HYPER + name) or 1 for name in ("depth", "aspect_ratio", "head_dim"))
    rows = spec.get("vocabulary_size") or 0

    def scaling(layers: int) -> int:
        width = -(-layers * ratio // head) * head
        return 12 * layers * width * width + rows * width

    return 1 << round(math.log2(_FIRST_BATCH * (scaling(depth) / scaling(_FIRST_DEPTH)) ** _GROWTH))


def _finish(spec: TrainingSpec, reasons: Sequence[str], keys: Mapping[str, str]) -> TrainingSpec:
    lm.tokens(spec)
    given = [one for one in reasons if one]
    needed: tuple[Name, ...] = ("micro_batch_size", "sequence_length")
    for name in needed:
        if not given and not isinstance(spec.get(name), int):
            given.append(lm.not_stated(spec, name, *lm.spellings(spec, name)))
    spec.unknown_reason = given[0] if given else ""
    spec.architecture = None if given else "nanochat"
    if not given and spec.get("parallelism.strategy") == "zero" and "device_count" not in spec:
        spec.unknown_reason = "how many processes torchrun starts is not stated"
        spec.architecture_on_devices, spec.architecture = "nanochat", None
    return spec


FAMILY = lm.Family(
    beside=None,
    stated=Graph(
        Step(
            _stated,
            (
                *("micro_batch_size", "sequence_length"),
                *(lm.HYPER + name for name in ("depth", "aspect_ratio", "head_dim", "total_tokens")),
            ),
        )
    ),
    follows=Graph(
        Step(_on_cpu),
        Step(_loop),
        Step(_features, (lm.HYPER + "features", lm.HYPER + "stacked")),
        Step(_model, (lm.HYPER + "width", lm.HYPER + "head_width")),
        Step(_vocabulary, ("vocabulary_size",)),
        Step(_precision, ("compute_dtype", "parameter_dtype")),
        Step(_processes, (*native.DEVICES, "gradient_accumulation_steps"), ("parallelism.",)),
    ),
    told=("on_cpu", "loop", "features", "model", "vocabulary", "precision", "processes"),
    finish=_finish,
)


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """Options of this release's spelling; accumulation follows from the tokens of a step."""
    if fact in ("gradient_accumulation_steps", "compute_dtype", "parameter_dtype", "optimizer", "attention"):
        return []
    stated = spec.fact(fact)
    if (stated is None or stated.node is None) and (_is_first(spec) or _has_configurator(spec)):
        return []
    return None


def _has_configurator(spec: TrainingSpec) -> bool:
    found = companions.find("nanochat/configurator.py", spec.document.path)
    return found is not None and os.path.isfile(found)
