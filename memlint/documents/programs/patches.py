"""What a program puts in the place of a library's attention: ``LlamaAttention.forward = forward``.

Before transformers took fused kernels itself, programs replaced the method by one of their own that calls one (FastChat
0.2: llama_flash_attn_monkey_patch.py, which many copied).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from memlint.documents.node import Node, Span

# What a program makes by that, as a call: the class whose method is replaced, and the kernel of the one in its place.
TARGET = "patched_attention"
_METHOD = re.compile(r"(?:^|\.)([A-Z]\w*Attention)\.forward$")
# Calls by which attention is fused: flash-attn's functions and modules, xFormers' and torch's own.
_FLASH = re.compile(r"flash_?attn|flash_?attention", re.IGNORECASE)
_FUSED = ("memory_efficient_attention", "scaled_dot_product_attention")


def replaced(target: str) -> str:
    """The library's class of attention whose pass an assignment replaces; "" for any other one."""
    found = _METHOD.search(target)
    return "" if found is None else found[1]


def kernel(body: Iterable[ast.AST]) -> str:
    """The kernel that a pass calls, in the words of ``attn_implementation``; "" where it calls none that is known."""
    names = [_name(node.func) for node in body if isinstance(node, ast.Call)]
    if any(_FLASH.search(name) is not None for name in names):
        return "flash_attention_2"
    return "sdpa" if any(name in _FUSED for name in names) else ""


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def made(name: str, by: str, place: Span) -> Node:
    """The replacement as what a program makes."""
    return Node({"_target_": Node(TARGET, place), "name": Node(name, place), "kernel": Node(by, place)}, place)
