"""Words that mean the same: dtypes, optimizers and attention kernels, as torch and the libraries around it call them.

A key says with ``"words": "dtype"`` that the code behind it takes any of them. Without it a word is what the key's
schema says, letter by letter, as in transformers' ``optim`` or a parser's ``choices``: there another one is MEM008.
"""

from __future__ import annotations

from collections.abc import Iterable

_DTYPES = (
    ("float64", "fp64", "double", "torch.float64", "torch.double"),
    ("float32", "fp32", "f32", "float", "torch.float32", "torch.float"),
    ("bfloat16", "bf16", "torch.bfloat16"),
    ("float16", "fp16", "f16", "half", "torch.float16", "torch.half"),
)
_OPTIMIZERS = (
    *((name, f"torch.optim.{name}", f"optim.{name}") for name in ("adamw", "adam", "sgd", "adagrad", "rmsprop")),
    ("adamw_fused", "adamw_torch_fused"),
    ("adamw_8bit", "adamw8bit", "adamw_bnb_8bit", "bitsandbytes.optim.adamw8bit", "bnb.optim.adamw8bit"),
    ("adafactor", "torch.optim.adafactor", "transformers.adafactor", "transformers.optimization.adafactor"),
    ("lion", "lion_pytorch.lion"),
)
_ATTENTION = (
    ("sdpa", "scaled_dot_product_attention"),
    ("eager", "plain"),
    ("flash_attention_2", "flash_attn_2", "flash_attn", "fa2"),
    ("xformers", "memory_efficient_attention"),
)
KINDS = {"dtype": _DTYPES, "optimizer": _OPTIMIZERS, "attention": _ATTENTION}


def meant(kind: str, word: str, known: Iterable[str]) -> str | None:
    """The one of the known words that a word stands for, whatever its case; None where it stands for none of them."""
    options = {option.lower(): option for option in known}
    word = word.strip().lower()
    same = next((group for group in KINDS[kind] if word in group), ())
    return next((options[other] for other in (word, *same) if other in options), None)
