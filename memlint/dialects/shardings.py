"""How devices may share a run whose config of DeepSpeed or accelerate is named and not there.

A config is often read without the files that it names, or its author left them out. What such a file says is one of a
few things, and its name tells which: ``scripts/zero3.json``, ``ds_z2_offload_config.json``, ``fsdp_qlora.yaml``. Each
stands here as the shortest file that says it, everything else left to the trainer, and is read as any other file.
"""

from __future__ import annotations

import os
import re
from typing import Any

from memlint.dialects.stated import tree
from memlint.documents.node import Node, Span
from memlint.named_tuple import NamedTuple

DDP, FSDP = "DDP", "FSDP"
_OFFLOADED = "offloaded "
_STAGE = re.compile(r"(?:zero|stage|(?<![a-z])z|(?<![a-z])s|(?<![a-z])ds)[-_]?([123])(?![0-9])")
_DDP = re.compile(r"ddp|multi[-_]?gpu")


class Absent(NamedTuple):
    """A file that is named and not there.

    key   what names it; ``name`` the file, "" where that is not known either
    is_deepspeed  whether it is DeepSpeed's own, and not accelerate's
    """

    key: str
    name: str
    is_deepspeed: bool


def plausible(absent: Absent) -> tuple[str, ...]:
    """What such a file may say, by its name; where that says nothing, whatever its kind can."""
    name = os.path.basename(absent.name).lower()
    offloads = "offload" in name or "cpu" in name
    if not absent.is_deepspeed and "fsdp" in name:
        return (FSDP,)
    if not absent.is_deepspeed and _DDP.search(name):
        return (DDP,)
    said = _STAGE.search(name)
    stages = (said[1],) if said else ("2", "3")
    plain = tuple(f"ZeRO-{stage}" for stage in stages)
    offloaded = tuple(_OFFLOADED + one for one in plain)
    if offloads:
        return offloaded
    if said or absent.is_deepspeed:
        return (*plain, *offloaded)
    return (*plain, offloaded[-1]) if "deepspeed" in name else (DDP, *plain, FSDP)


def deepspeed(sharding: str, span: Span) -> Node:
    """The config of DeepSpeed that says so, as if it stood where it is named."""
    stage, offloaded = int(sharding[-1]), sharding.startswith(_OFFLOADED)
    zero: dict[str, Any] = {"stage": stage, **dict.fromkeys(_AUTOMATIC, "auto")}
    if offloaded:
        zero["offload_optimizer"] = {"device": "cpu"}
        if stage == 3:
            zero["offload_param"] = {"device": "cpu"}
    dtypes = {name: {"enabled": "auto"} for name in ("bf16", "fp16")}
    return tree({"zero_optimization": zero, **dtypes, **dict.fromkeys(_SIZES, "auto")}, span)


# transformers' documentation, DeepSpeed: what its configs leave to the trainer.
_AUTOMATIC = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
_SIZES = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size", "gradient_clipping")


def accelerate(sharding: str, span: Span) -> Node:
    """The config of accelerate that says so."""
    if sharding == DDP:
        return tree({"distributed_type": "MULTI_GPU"}, span)
    if sharding == FSDP:
        wrapping = {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
        return tree({"distributed_type": "FSDP", "fsdp_config": wrapping}, span)
    stage, offloaded = int(sharding[-1]), sharding.startswith(_OFFLOADED)
    config: dict[str, Any] = {"zero_stage": stage}
    if offloaded:
        config["offload_optimizer_device"] = "cpu"
        if stage == 3:
            config["offload_param_device"] = "cpu"
    return tree({"distributed_type": "DEEPSPEED", "deepspeed_config": config}, span)
