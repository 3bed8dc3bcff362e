"""Family uni3d-dp: what its schema cannot say."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from memlint.documents.node import Edit
from memlint.facts.spec import ASSUMED, DEFAULT, HYPER, WRITTEN, Conflict, Fact, Name, TrainingSpec

# timm's name -> width of the transformer
WIDTHS = {
    "eva02_tiny_patch14_224": 192,
    "eva02_small_patch14_224": 384,
    "eva02_base_patch14_448": 768,
    "eva02_large_patch14_448": 1024,
    "eva_giant_patch14_560": 1408,
}
POLICIES = ("DP3", "SimpleDP3")
CONDITIONS = ("film", "mlp_film", "add")
_NEEDED = {
    "micro_batch_size": "dataloader.batch_size",
    "observation_steps": "n_obs_steps",
    "points": "shape_meta.obs.point_cloud.shape",
    HYPER + "horizon": "horizon",
    HYPER + "state_size": "shape_meta.obs.agent_pos.shape",
    HYPER + "action_shape": "shape_meta.action.shape",
}
# Keys that only forks read: changed where they stand, never added.
_FORKS_ONLY = ("checkpointing", "compute_dtype")
_FUSED_ATTENTION = "timm's EVA blocks call PyTorch's fused attention"


def complete(spec: TrainingSpec) -> TrainingSpec:
    """Architecture, name, and the facts that several keys make together."""
    uni3d = spec.get(HYPER + "pointnet_type") == "uni3d"
    spec.architecture = "uni3d_dp"
    spec.unknown_reason = _unknown(spec, uni3d)
    if spec.unknown_reason:
        spec.architecture = None
    _optimizer(spec)
    encoder = f"Uni3D {spec.get(HYPER + 'pc_model', '')}".removesuffix("_patch14_224") if uni3d else "PointNet"
    spec.model_name = f"{encoder.removesuffix('_patch14_448').removesuffix('_patch14_560')} + ConditionalUnet1D"

    shape = spec.get(HYPER + "action_shape")
    if shape:
        _derive(spec, HYPER + "action_size", prod(shape), HYPER + "action_shape")
    channels = spec.get(HYPER + "point_channels", 3)
    if spec.get(HYPER + "use_pc_color") and channels < 6:
        reason = "colours travel with the points"
        spec.facts[HYPER + "point_channels"] = Fact(HYPER + "point_channels", 6, ASSUMED, reason=reason)

    factors = ["micro_batch_size", "observation_steps"]
    if uni3d:
        factors += ["groups", "group_size"]
        if "groups" in spec:
            _derive(spec, "attention_tokens", spec["groups"] + 1, "groups")
        spec.facts["attention"] = Fact("attention", "sdpa", DEFAULT, reason=_FUSED_ATTENTION)
    else:
        factors.append("points")
        for name in ("groups", "group_size", "checkpointing", "encoder_frozen"):
            spec.facts.pop(name, None)  # Uni3D's keys: PointNet reads none of them
    spec.facts["token_product"] = Fact("token_product", ("points", tuple(factors)), DEFAULT)
    spec.facts["frames_in_batch"] = Fact("frames_in_batch", "observation_steps", DEFAULT)
    if spec.architecture is not None:
        per_step = spec["points"] * spec[HYPER + "point_channels"] + spec[HYPER + "state_size"]
        size = 4 * spec[HYPER + "horizon"] * (per_step + spec[HYPER + "action_size"])
        spec.facts["sample_bytes"] = Fact("sample_bytes", size, DEFAULT, reason="float32 observations and actions")
    spec.conflicts = tuple(_conflicts(spec, uni3d))
    return spec


def _derive(spec: TrainingSpec, name: Name, value: Any, source: Name) -> None:
    origin = spec.facts[source]
    spec.facts[name] = origin._replace(name=name, value=value)


def _unknown(spec: TrainingSpec, uni3d: bool) -> str:
    """Why there is no estimate; "" where there is one."""
    policy = spec.get(HYPER + "policy", "")
    if policy.rsplit(".", 1)[-1] not in POLICIES:
        return f"policy {policy.rsplit('.', 1)[-1]} is not known, only {' and '.join(POLICIES)}"
    if spec.get(HYPER + "condition_type") not in CONDITIONS:
        return f"condition_type {spec.get(HYPER + 'condition_type')} is not known, only {', '.join(CONDITIONS)}"
    if spec.get(HYPER + "obs_as_global_cond") is False:
        return "obs_as_global_cond: false is not known"
    needed = dict(_NEEDED)
    if uni3d:
        needed.update({HYPER + "pc_model": "policy.pointcloud_encoder_cfg.pc_model"})
        needed.update({"groups": "policy.pointcloud_encoder_cfg.num_group"})
        needed.update({"group_size": "policy.pointcloud_encoder_cfg.group_size"})
    for name, key in needed.items():
        if name not in spec:
            gap = next((item for item in spec.missing if item.key.endswith(key.rsplit(".", 1)[-1])), None)
            return f"{key} is not stated" if gap is None else f"{key} is not known: {gap.reason}"
    model = spec.get(HYPER + "pc_model")
    if uni3d and model not in WIDTHS:
        return f"pc_model {model} is not known; known are {', '.join(WIDTHS)}"
    return ""


def _optimizer(spec: TrainingSpec) -> None:
    """``fused`` goes before ``foreach``; with neither, or ``foreach: true``, the list."""
    fused, foreach = spec.root.get("optimizer.fused"), spec.root.get("optimizer.foreach")
    known = spec.fact("optimizer_implementation")
    if known is None or (fused is not None and fused.value is True):
        return
    if foreach is not None and isinstance(foreach.value, bool):
        value = "foreach" if foreach.value else "loop"
        fact = Fact("optimizer_implementation", value, WRITTEN, "optimizer.foreach", foreach)
        spec.facts["optimizer_implementation"] = fact


def _conflicts(spec: TrainingSpec, uni3d: bool) -> Iterator[Conflict]:
    def conflict(name: Name, message: str, *others: Name) -> Iterator[Conflict]:
        fact = spec.fact(name)
        if fact is not None and fact.span is not None:
            spans = (other.span for other in map(spec.fact, others) if other is not None)
            yield Conflict(fact.key, fact.span, message, tuple(span for span in spans if span is not None))

    horizon, levels = spec.get(HYPER + "horizon"), len(spec.get(HYPER + "down_dims") or ())
    if horizon and levels and horizon % 2 ** (levels - 1):
        message = f"horizon {horizon} cannot be halved {levels - 1} times: the UNet's skip connections would not fit"
        yield from conflict(HYPER + "horizon", message, HYPER + "down_dims")
    if not uni3d:
        return
    width, model = spec.get(HYPER + "pc_feat_dim"), spec.get(HYPER + "pc_model")
    if width is not None and model in WIDTHS and width != WIDTHS[model]:
        message = f"pc_feat_dim {width} is not the width of {model}, which is {WIDTHS[model]}"
        yield from conflict(HYPER + "pc_feat_dim", message, HYPER + "pc_model")
    points = spec.get("points", 0) + spec.get(HYPER + "robot_points", 0)
    for name in ("group_size", "groups"):
        if points and spec.get(name, 0) > points:
            fact = spec.facts[name]
            message = f"{fact.label} {fact.value} is more than the {points} points of a cloud"
            yield from conflict(name, message, "points")


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """Keys that upstream's code does not read are not added: a fix that nothing reads is none."""
    known = spec.fact(fact)
    if fact in _FORKS_ONLY and (known is None or known.node is None):
        return []
    return None
