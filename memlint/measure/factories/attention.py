"""FlashAttention's own kernel (``flash-attn``, fact ``attention: flash``), which only runs on a card, for transformers.

transformers lets a program register attention functions by name. Ours stands where the ``flash_attn`` package would:
it casts what transformers casts (``integrations/flash_attention.py``), and calls PyTorch's copy of the same kernel.
Both keep queries, keys, values, the output and one fp32 log-sum-exp per query for backward (flash-attn,
``flash_attn_interface.py``, ``FlashAttnFunc``), grouped heads as they are, and never see a mask of scores: windows and
caps are the kernel's arguments.
"""

from __future__ import annotations

from typing import Any

from memlint.measure.child import MeasureError

NAME = "memlint_fused"  # names with "flash" in them make transformers look for a package
NOTE = ("attention", "flash", "PyTorch's copy of the kernel stands for flash-attn's; both keep the same tensors")


def register() -> str:
    """Make the function known to transformers; the name to ask for it by."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask

    AttentionInterface.register(NAME, flash)
    AttentionMaskInterface.register(NAME, flash_attention_mask)
    return NAME


def flash(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[Any, None]:
    """query (B, h, S, d), key and value (B, kv, S, d) -> (B, S, h, d)."""
    import torch

    if query.dtype is torch.float32:
        device = query.device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        else:
            dtype = next(layer for layer in module.modules() if isinstance(layer, torch.nn.Linear)).weight.dtype
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if query.dtype not in (torch.float16, torch.bfloat16):
        raise MeasureError("attention: flash takes 16-bit queries, and the config computes in fp32: set sdpa with -o")
    causal = module.is_causal if is_causal is None else is_causal
    width = query.shape[-1]
    over = -width % 8
    if over:
        query, key, value = (torch.nn.functional.pad(x, (0, over)) for x in (query, key, value))
    scale = width**-0.5 if scaling is None else scaling
    out = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, dropout, causal, False, scale=scale)[0]
    return out[..., :width].transpose(1, 2), None
