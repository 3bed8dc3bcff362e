"""Family deepspeed, and DeepSpeed's config as a companion of other families' runs."""

from __future__ import annotations

from typing import Any

from memlint.dialects.companions import Companion
from memlint.documents.node import Edit, Node, Span
from memlint.facts.spec import DEFAULT, HYPER, WRITTEN, Fact, Missing, Name, TrainingSpec, UnknownModel

AUTO = "auto"  # the trainer around DeepSpeed fills the value in
# DeepSpeed's name of an optimizer, in lower case -> the fact
_OPTIMIZERS = {
    "adam": "adam",
    "adamw": "adamw",
    "lamb": "lamb",
    "lion": "lion",
    "sgd": "sgd",
    "adagrad": "adagrad",
    "muon": "muon",
    "onebitadam": "onebit_adam",
    "zerooneadam": "zero_one_adam",
    "onebitlamb": "onebit_lamb",
}
_HALVES = {"bf16": "bfloat16", "fp16": "float16"}


def deepspeed_facts(root: Node) -> Companion:
    """What a DeepSpeed config says, as facts. A value of ``"auto"`` is :data:`AUTO`: the trainer fills it in.

    ``deepspeed_dtype`` is the dtype that DeepSpeed casts the model to (or AUTO).
    Defaults are those of DeepSpeed 0.19 (runtime/zero/config.py, runtime/constants.py).
    Raises UnknownModel where it has another model trained than the program makes (``otherwise`` in the schema).
    """
    from memlint.dialects import registry

    dialect = registry.dialect("deepspeed")
    stated, missing = dialect.facts_of(root)
    for key in dialect.keys:
        switch = stated.get(key.annotation["fact"]) if "otherwise" in key.annotation else None
        if switch is not None and switch.value:
            raise UnknownModel(f"{switch.key} {switch.value}: {key.annotation['otherwise']}")
    return _companion(stated, missing, root)


def _companion(stated: dict[str, Fact], missing: list[Missing], root: Node) -> Companion:
    facts = {name: fact for name, fact in stated.items() if not name.startswith(HYPER)}
    for name, fact in facts.items():
        if isinstance(fact.value, float) and name != "gradient_dtype":
            facts[name] = fact._replace(value=int(fact.value))

    stage = facts.get("parallelism.zero_stage") or Fact(
        "parallelism.zero_stage", None, DEFAULT, reason="the stage is not known"
    )
    zero = root.get("zero_optimization")
    if zero is not None and zero.value is True:  # the oldest spelling
        stage = Fact("parallelism.zero_stage", 1, WRITTEN, "zero_optimization", zero)
        facts[stage.name] = stage
    new: Name
    for old, new in (
        ("cpu_offload", "parallelism.offload_optimizer"),
        ("cpu_offload_params", "parallelism.offload_parameters"),
    ):
        older = stated.get(HYPER + old)
        if older is not None and older.value is True and facts[new].node is None:
            facts[new] = older._replace(name=new)
    facts["parallelism.strategy"] = stage._replace(name="parallelism.strategy", value="zero")
    facts["deepspeed_dtype"] = _dtype(stated)
    scale = stated.get(HYPER + "loss_scale")
    if facts["deepspeed_dtype"].value == "float16":
        dynamic = scale is None or not scale.value or scale.value == AUTO
        origin = facts["deepspeed_dtype"] if scale is None else scale
        facts["loss_scaling"] = origin._replace(name="loss_scaling", value="dynamic" if dynamic else origin.value)
    kind = stated.get(HYPER + "optimizer_type")
    if kind is not None and kind.value != AUTO:
        _optimizer(facts, kind, stated)
    return Companion(facts, tuple(missing))


def _dtype(stated: dict[str, Fact]) -> Fact:
    """bfloat16 goes before float16; both are off by default."""
    for name, dtype in _HALVES.items():
        fact = stated.get(HYPER + name)
        if fact is not None and fact.value in (True, "true", "True"):
            return fact._replace(name="deepspeed_dtype", value=dtype)
    for name in _HALVES:
        fact = stated.get(HYPER + name)
        if fact is not None and fact.value == AUTO:
            return fact._replace(name="deepspeed_dtype", value=AUTO)
    found = (stated.get(HYPER + name) for name in _HALVES)  # without those whose value is none that the key takes
    written = next((fact for fact in found if fact is not None and fact.node is not None), None)
    if written is not None:
        return written._replace(name="deepspeed_dtype", value="float32")
    return Fact("deepspeed_dtype", "float32", DEFAULT, reason="DeepSpeed 0.19: neither bf16 nor fp16 is enabled")


def _optimizer(facts: dict[str, Fact], kind: Fact, stated: dict[str, Fact]) -> None:
    """DeepSpeed's own Adam is one fused kernel, or runs on the CPU where states are offloaded."""
    name = _OPTIMIZERS.get(str(kind.value).lower(), str(kind.value).lower())
    torch_adam = stated.get(HYPER + "torch_adam")
    facts["optimizer"] = kind._replace(name="optimizer", value=name)
    if name in ("adam", "adamw") and torch_adam is not None and torch_adam.value is True:
        library, implementation = "torch", "foreach"
    else:
        library, implementation = "deepspeed", "fused"
    facts["optimizer_library"] = kind._replace(name="optimizer_library", value=library)
    facts["optimizer_implementation"] = kind._replace(name="optimizer_implementation", value=implementation)


def defaults() -> dict[str, Fact]:
    """The facts of an empty DeepSpeed config."""
    return deepspeed_facts(Node({}, Span("", 1, 1, 1, 1))).facts


# ---------------------------------------------------------------------------------------------- as a family


def complete(spec: TrainingSpec) -> TrainingSpec:
    """A DeepSpeed config says how states are shared, and nothing of the model."""
    from memlint.dialects import registry

    companion = _companion(*registry.dialect("deepspeed").facts_of(spec.root), spec.root)
    spec.facts = {
        name: fact for name, fact in spec.facts.items() if not name.startswith(HYPER) and name not in companion.facts
    }
    spec.facts.update((name, fact) for name, fact in companion.facts.items() if fact.value != AUTO)
    dtype = companion.facts["deepspeed_dtype"].value
    spec.facts.pop("deepspeed_dtype", None)
    if dtype not in (AUTO, "float32"):
        name: Name
        for name, value in (("parameter_dtype", dtype), ("compute_dtype", dtype), ("master_weights", True)):
            spec.facts[name] = companion.facts["deepspeed_dtype"]._replace(name=name, value=value)
    spec.model_name = f"ZeRO stage {spec.get('parallelism.zero_stage', '?')}"
    spec.unknown_reason = "a DeepSpeed config names no model; check the script or the config that names this file"
    spec.architecture = None
    return spec


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """What ``auto`` stands for is written where the trainer states it."""
    return None
