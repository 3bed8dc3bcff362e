"""The DeepSpeed configs that a library has among its examples, where a run names one that is not there.

A config is often read away from the library's checkout, and what the file says is known all the same.
"""

from __future__ import annotations

from typing import Any

from memlint.dialects import companions
from memlint.dialects import language_model as lm
from memlint.dialects.stated import tree
from memlint.facts.spec import Fact, TrainingSpec

_AUTO = "auto"
_BUCKETS = {"allgather_bucket_size": 500_000_000, "reduce_bucket_size": 500_000_000}
_BY_WIDTH = dict.fromkeys(
    ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"), _AUTO
)
_ALIVE = ("stage3_max_live_parameters", "stage3_max_reuse_distance", "sub_group_size")
_ON_HOST = {"device": "cpu", "pin_memory": True}
_STATES, _WEIGHTS = {"offload_optimizer": _ON_HOST}, {"offload_param": _ON_HOST}
_COPIES = {"contiguous_gradients": True}


def _config(*parts: dict[str, Any], bf16: bool | str = _AUTO) -> dict[str, Any]:
    """A file, by what its ``zero_optimization`` says."""
    zero = {name: value for part in parts for name, value in part.items()}
    return {"zero_optimization": zero, "bf16": {"enabled": bf16}, "fp16": {"enabled": _AUTO}}


_WAITS, _OVERLAPS = {"overlap_comm": False}, {"overlap_comm": True}
_FACTORY_2 = {"stage": 2, **_BUCKETS, **_WAITS, **_COPIES, "round_robin_gradients": True}
_FACTORY_3 = {"stage": 3, **_BY_WIDTH, **dict.fromkeys(_ALIVE, 1_000_000_000), **_WAITS, **_COPIES}
# By what the path ends in. LLaMA-Factory 0.9.
LLAMA_FACTORY = {
    "examples/deepspeed/ds_z0_config.json": _config(_FACTORY_2, {"stage": 0}),
    "examples/deepspeed/ds_z2_config.json": _config(_FACTORY_2),
    "examples/deepspeed/ds_z2_offload_config.json": _config(_FACTORY_2, _STATES),
    "examples/deepspeed/ds_z3_config.json": _config(_FACTORY_3),
    "examples/deepspeed/ds_z3_offload_config.json": _config(_FACTORY_3, _STATES, _WEIGHTS),
}
_AXOLOTL_1, _AXOLOTL_2 = {"stage": 1, **_OVERLAPS}, {"stage": 2, **_OVERLAPS, **_COPIES, **_STATES}
_AXOLOTL_3 = {"stage": 3, **_BY_WIDTH, **dict.fromkeys(_ALIVE, 0), **_OVERLAPS, **_COPIES}
# Axolotl 0.19: ``axolotl fetch deepspeed_configs`` puts these beside a config.
AXOLOTL = {
    "deepspeed_configs/zero1.json": _config(_AXOLOTL_1),
    "deepspeed_configs/zero1_torch_compile.json": _config(_AXOLOTL_1),
    "deepspeed_configs/zero2.json": _config(_AXOLOTL_2),
    "deepspeed_configs/zero2_torch_compile.json": _config(_AXOLOTL_2),
    "deepspeed_configs/zero3.json": _config(_AXOLOTL_3),
    "deepspeed_configs/zero3_bf16.json": _config(_AXOLOTL_3, bf16=True),
    "deepspeed_configs/zero3_bf16_cpuoffload_all.json": _config(_AXOLOTL_3, _STATES, _WEIGHTS, bf16=True),
    "deepspeed_configs/zero3_bf16_cpuoffload_params.json": _config(_AXOLOTL_3, _WEIGHTS, bf16=True),
}


def named(spec: TrainingSpec, files: dict[str, dict[str, Any]]) -> tuple[Fact, str] | None:
    """The fact by which a run names one of a library's files that is not there, and the file."""
    stated = spec.fact(lm.HYPER + "deepspeed")
    if stated is None or not isinstance(stated.value, str) or stated.node is None or stated.span is None:
        return None
    file = next((name for name in files if ("/" + stated.value).endswith("/" + name)), None)
    if file is None or companions.find(stated.value, stated.span.path) is not None:
        return None
    return stated, file


def settle(spec: TrainingSpec, files: dict[str, dict[str, Any]], version: str) -> Fact | None:
    """What such a file says, as if it stood where it is named; the fact that names it."""
    found = named(spec, files)
    if found is None:
        return None
    stated, file = found
    assert stated.node is not None
    reason = f"as {version} ships {file}"
    node = tree(files[file], stated.node.span)
    spec.facts[stated.name] = stated._replace(value=files[file], node=node, reason=reason)
    return stated._replace(reason=reason)
