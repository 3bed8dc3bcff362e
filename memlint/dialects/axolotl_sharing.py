"""How Axolotl's runs are shared: the DeepSpeed configs that it ships, ``fsdp_config``, and whatever starts it."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from memlint.dialects import language_model as lm
from memlint.dialects import shipped
from memlint.dialects.accelerate import truth
from memlint.documents.node import Node
from memlint.facts.spec import WRITTEN, Fact, Name, TrainingSpec, named

VERSION = "Axolotl 0.19"


def _stated_by_file(spec: TrainingSpec) -> list[Name]:
    """The facts that the shipped file states: each points at the key that names it."""
    return [named(name) for name in spec if name.startswith("parallelism.") and spec.facts[name].origin == WRITTEN]


def inner(config: Any, name: str) -> Any:
    """A setting of fsdp_config, in either spelling."""
    if not isinstance(config, dict):
        return None
    return config.get("fsdp_" + name, config.get(name))


def fsdp(spec: TrainingSpec) -> None:
    """``fsdp_config`` turns FSDP on, in its first version unless something says the second."""
    config, version = spec.fact(lm.HYPER + "fsdp_config"), spec.fact(lm.HYPER + "fsdp_version")
    if config is None or config.node is None or not isinstance(config.node.value, dict) or not config.node.value:
        return
    switch = spec.fact(lm.HYPER + "fsdp")
    if switch is None or not switch.value:
        lm.put(spec, lm.HYPER + "fsdp", True, config)
    entries = dict(config.node.value)
    entries.pop("version", None)
    if version is not None and version.node is not None and version.value:
        entries["fsdp_version"] = version.node
    elif inner(config.value, "version"):
        entries["fsdp_version"] = config.node.value.get("fsdp_version") or config.node.value["version"]
    else:
        entries["fsdp_version"] = Node(1, config.node.span)
    node = Node(entries, config.node.span, config.node.key_span, config.node.keys, config.node.via)
    spec.facts[config.name] = config._replace(node=node)


def beside(spec: TrainingSpec) -> tuple[str, Mapping[str, Fact]]:
    """What the files beside the config state, and what of ``fsdp_config`` TrainingArguments has no name for."""
    file, config = shipped.settle(spec, shipped.AXOLOTL, VERSION), spec.fact(lm.HYPER + "fsdp_config")
    reason, overruling = lm.stated_sharing(spec)
    if file is not None and "parallelism.zero_stage" in spec:
        spec.facts.update((name, file._replace(name=name, value=spec[name])) for name in _stated_by_file(spec))
    if config is None or spec.get("parallelism.strategy") not in ("fsdp1", "fsdp2"):
        return reason, overruling
    smallest = inner(config.value, "min_num_params")
    if str(inner(config.value, "auto_wrap_policy")).upper() == "SIZE_BASED_WRAP" and smallest:
        lm.put(spec, "parallelism.wrap_elements", smallest, config)
    saved = inner(config.value, "state_dict_type")
    if saved:
        lm.put(spec, "saves_full_weights", saved == "FULL_STATE_DICT", config)
    return reason, overruling


# The sizes of a mesh, which make all devices of a run.
_MESH: tuple[Name, ...] = (
    "parallelism.shard",
    "parallelism.replicas",
    "parallelism.tensor",
    "parallelism.context",
)


def processes(spec: TrainingSpec) -> None:
    """Ray's workers, or what ``axolotl train`` hands to the launcher that it starts."""
    ray, count = spec.fact(lm.HYPER + "use_ray"), spec.fact(lm.HYPER + "ray_num_workers")
    if ray is not None and truth(ray.value) and count is not None and count.value:
        lm.put(spec, "device_count", count.value, count if count.node is not None else ray)
    options = spec.launch.options.value if spec.launch is not None else {}
    if not isinstance(options, dict) or "device_count" in spec:
        return
    for name in ("num_processes", "nproc_per_node"):
        node = options.get(name) or options.get(name.replace("_", "-"))
        text = str(node.value) if node is not None else ""
        if node is not None and text.isdigit() and int(text) > 0:
            spec.facts["device_count"] = Fact("device_count", int(text), WRITTEN, "--" + node.key_path, node)
            return
    shared = spec.fact("parallelism.shard")
    if shared is not None and shared.value:  # whose mesh is all of the run's devices (utils/distributed.py)
        sizes = [spec.get(name) or 1 for name in _MESH]
        lm.put(spec, "device_count", prod(sizes), shared, "the mesh that is stated")
