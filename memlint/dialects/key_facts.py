"""What the families share whose models are built by code that no config states: facts in torch's names, the devices of
the run, and the way out of UNKNOWN.

Their schemas say all that a key can say; an estimate needs the model, which ``memlint record`` makes known.
"""

from __future__ import annotations

from typing import Any

from memlint.dialects import language_model as lm
from memlint.dialects import schema as schemas
from memlint.dialects.accelerate import truth
from memlint.dialects.native import number, optimizer_class
from memlint.documents.node import MAX_DIGITS, Edit, Node
from memlint.facts.spec import DEFAULT, Fact, Name, TrainingSpec

WAY_OUT = (
    "`memlint record`, with a [probe] model in the settings, traces it once into a profile; "
    "`memlint check --trace` runs one step of it under fake tensors"
)

# Names of optimizers in lower case, as frameworks spell them -> torch's, where that is more than lower case.
_OPTIMIZERS = {
    "adamw8bit": "adamw_8bit",
    "adam8bit": "adam_8bit",
    "lion8bit": "lion_8bit",
    "pagedadamw8bit": "adamw_8bit",
    "pagedadamw": "adamw",
    "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw",
    "adamw_optimi": "adamw",
    "adam_onecycle": "adam",
    "adam_pax": "adam",
    "fusedadam": "adam",
    "fused_adam": "adam",
    "momentum": "sgd",
    "lionw": "lion",
}
_PAGED = ("pagedadamw8bit", "pagedadamw")

# How a run states that it computes in 16 bits: switches beside each other, of which one may be on.
_SWITCHES = (("bf16", "bfloat16"), ("fp16", "float16"))

# open_clip and OLMo: the word -> dtype of the weights, dtype of the products.
_PRECISIONS = {
    "amp": ("float32", "float16"),
    "amp_fp16": ("float32", "float16"),
    "amp_bf16": ("float32", "bfloat16"),
    "amp_bfloat16": ("float32", "bfloat16"),
    "fp16": ("float16", "float16"),
    "bf16": ("bfloat16", "bfloat16"),
    "pure_fp16": ("float16", "float16"),
    "pure_bf16": ("bfloat16", "bfloat16"),
    "fp32": ("float32", "float32"),
}

# Families whose samples are images or videos of three channels, or rows of tokens, and nothing beside: what a sample
# takes in host memory follows from its size.
_IMAGES = frozenset(
    (
        "diffusers",
        "diffsynth",
        "finetrainers",
        "kohya",
        "latte",
        "animatediff",
        "timm",
        "open-clip",
        "swin",
        "torchvision",
        "image-loop",
    )
)
_TOKENS = frozenset(("lingua", "maxtext", "levanter", "opennmt"))

# Facts that count something: what is written for "decide it yourself" (-1, 0) is no number of anything.
_COUNTS: tuple[Name, ...] = (
    *("micro_batch_size", "global_batch_size", "gradient_accumulation_steps", "evaluation_batch_size", "device_count"),
    *("lora.r", "parallelism.shard", "parallelism.tensor", "parallelism.data", "parallelism.context", "machines"),
)


def foreign_option(spec: TrainingSpec, title: str) -> str:
    """Why a command is not the library's own: an option that its program does not have. Who has it has changed the
    program, and copies take other models by the same names; "" where there is none."""
    listed = schemas.load(spec.family)["properties"]
    own = {*listed, *(other for key in listed.values() for other in key.get("x-memlint", {}).get("aliases", ()))}
    written = spec.root.value if isinstance(spec.root.value, dict) else {}
    found = next((name for name in written if name not in own), "")
    return f"--{found} is no option of {title}'s own program: what it changes is not known" if found else ""


def complete(spec: TrainingSpec) -> TrainingSpec:
    """Facts in the words of the vocabulary, and why there is no estimate."""
    if any(fault.code == "MEM003" for fault in spec.document.faults):
        # A file that is not all there may state what it seems to leave out.
        spec.facts = {name: fact for name, fact in spec.facts.items() if fact.origin != DEFAULT or not fact.key}
    _counts(spec)
    _by_content(spec)
    _precision(spec)
    _optimizer(spec)
    _adapter(spec)
    _devices(spec)
    _size(spec)
    _batch(spec)
    model = spec.fact("model")
    if model is not None:
        if isinstance(model.value, str) and model.value:
            first = model.value.partition(",")[0].rstrip("/")  # DiffSynth lists the parts: organisation/name:file,...
            head, _, file = first.partition(":")
            name = head if "/" in head and file else first
            last = name.rsplit("/", 1)[-1] or model.value
            spec.model_name = name if last.isdigit() else last  # Latte-XL/2: patches of two
        else:
            del spec.facts["model"]
    spec.architecture = None
    spec.unknown_reason = _reason(spec)
    return spec


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """Where a key is absent nothing says that the program at hand takes it."""
    known = spec.fact(fact)
    if known is None or (known.node is None and known.origin != DEFAULT):
        return []
    return None


def is_given(spec: TrainingSpec, key: str) -> bool:
    """Whether an option has a value that is none of nothing: 0, empty, false."""
    node = spec.root.get(key) or spec.root.get(key.replace("_", "-"))
    if node is None or node.value in (None, "", 0, 0.0, "0", "0.0", "None"):
        return False
    if isinstance(node.value, (dict, list)):
        return bool(node.value)
    return not isinstance(node.value, bool) or truth(node.value)


# ---------------------------------------------------------------------------------------------- facts in torch's words


def _counts(spec: TrainingSpec) -> None:
    name: Name
    for name in _COUNTS:
        fact = spec.fact(name)
        if fact is None:
            continue
        value = fact.value
        if isinstance(value, list) and len(value) == 1:  # update_freq: [4]
            value = value[0]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        count = number(value) if isinstance(value, (int, str)) else None
        if count is not None:
            spec.facts[name] = fact._replace(value=count)
        elif name == "gradient_accumulation_steps" and value == 0:
            spec.facts[name] = fact._replace(value=1)
        elif not (isinstance(value, float) and value > 0 and name == "micro_batch_size"):
            del spec.facts[name]
    for name in ("workers", "image_size", "sequence_length"):
        fact = spec.fact(name)
        if fact is None:
            continue
        if isinstance(fact.value, str):  # "512,512", "0"
            parts = [part.strip() for part in fact.value.strip("()[] ").split(",") if part.strip()]
            if not parts or not all(part.isdecimal() and len(part) <= MAX_DIGITS for part in parts):
                del spec.facts[name]
                continue
            numbers = [int(part) for part in parts]
            spec.facts[name] = fact._replace(value=numbers[0] if len(numbers) == 1 else numbers)
        elif isinstance(fact.value, float):
            if fact.value.is_integer():
                spec.facts[name] = fact._replace(value=int(fact.value))
            else:
                del spec.facts[name]


def _by_content(spec: TrainingSpec) -> None:
    """Batches of so many tokens, frames or seconds: the number of samples is not what the batch size says."""
    kind, dynamic = spec.fact(lm.HYPER + "batch_type"), spec.fact(lm.HYPER + "dynamic_batching")
    if (kind is not None and kind.value in ("tokens", "dynamic", "bucket")) or (
        dynamic is not None and truth(dynamic.value)
    ):
        size = spec.facts.pop("micro_batch_size", None)
        if size is not None and kind is not None and kind.value == "tokens":
            lm.put(spec, lm.HYPER + "max_tokens", size.value, size)


def _precision(spec: TrainingSpec) -> None:
    mixed = spec.take("mixed_precision")  # accelerate's
    if mixed is not None and mixed.value in lm.HALF and "compute_dtype" not in spec:
        lm.put(spec, "compute_dtype", mixed.value, mixed)
    for name, dtype in _SWITCHES:
        switch = spec.fact(lm.HYPER + name)
        if switch is not None and truth(switch.value):
            lm.put(spec, "compute_dtype", dtype, switch)
    words = spec.fact(lm.HYPER + "precision")
    if words is not None and words.value in _PRECISIONS:
        weights, products = _PRECISIONS[words.value]
        lm.put(spec, "parameter_dtype", weights, words)
        lm.put(spec, "compute_dtype", products, words)
        lm.put(spec, "autocast", weights != products, words)
    switch, dtype_fact = spec.fact(lm.HYPER + "amp"), spec.fact(lm.HYPER + "amp_dtype")
    if switch is not None:
        half = lm.dtype_of(dtype_fact.value) if dtype_fact is not None else "float16"
        on = truth(switch.value)
        if half or not on:
            lm.put(spec, "compute_dtype", half if on else "float32", switch)
    wrapper = spec.fact(lm.HYPER + "optim_wrapper")
    if wrapper is not None and wrapper.value == "AmpOptimWrapper":
        half = lm.dtype_of(dtype_fact.value) if dtype_fact is not None else "float16"
        if half:
            lm.put(spec, "compute_dtype", half, wrapper)
            lm.put(spec, "autocast", True, wrapper)
    section = spec.fact(lm.HYPER + "fp16_section")
    if section is not None and section.value is not None:
        lm.put(spec, "compute_dtype", "float16", section)
    policy = spec.fact(lm.HYPER + "policy")
    if policy is not None and isinstance(policy.value, str):
        _policy(spec, policy)
    compute = spec.fact("compute_dtype")
    if compute is not None and isinstance(compute.written, str) and compute.node is not None:
        if compute.written.endswith("-true"):
            lm.put(spec, "parameter_dtype", compute.value, compute)
            lm.put(spec, "autocast", False, compute)
        elif compute.written.endswith("-mixed"):
            lm.put(spec, "parameter_dtype", "float32", compute)
            lm.put(spec, "autocast", True, compute)
    elif compute is not None and compute.node is not None and compute.key == "trainer.precision":
        lm.put(spec, "autocast", compute.written == 16, compute, "Lightning: 16 means 16-mixed")
    kept: Name
    for kept in ("compute_dtype", "parameter_dtype", "frozen_dtype", "gradient_dtype"):
        fact = spec.fact(kept)
        if fact is not None and not lm.dtype_of(fact.value):
            del spec.facts[kept]


def _policy(spec: TrainingSpec, stated: Fact) -> None:
    """jmp's policies: ``p=f32,c=bfloat16``; one word is for everything."""
    names = {"f32": "float32", "full": "float32", "f16": "float16", "half": "float16", "bf16": "bfloat16"}
    parts = [part.partition("=") for part in stated.value.split(",")]
    for key, equals, dtype in parts:
        dtype = dtype if equals else key
        dtype = lm.dtype_of(names.get(dtype.strip(), dtype.strip()))
        if not dtype:
            continue
        if not equals or key.strip() in ("p", "params"):
            lm.put(spec, "parameter_dtype", dtype, stated)
        if not equals or key.strip() in ("c", "compute"):
            lm.put(spec, "compute_dtype", dtype, stated)


def _optimizer(spec: TrainingSpec) -> None:
    switch = spec.fact(lm.HYPER + "use_8bit_adam")
    if switch is not None and truth(switch.value):
        lm.put(spec, "optimizer", "adamw_8bit", switch)
        lm.put(spec, "optimizer_library", "bitsandbytes", switch)
        return
    if spec.fact(lm.HYPER + "optim") is not None:
        lm.optimizer(spec)
        return
    stated = spec.fact("optimizer")
    if stated is None or stated.value is None:
        spec.facts.pop("optimizer", None)
        return
    if not isinstance(stated.value, str) or not stated.value:
        del spec.facts["optimizer"]
        return
    if "." in stated.value and not stated.value.startswith("big_vision."):
        optimizer_class(spec, stated)
        return
    name = stated.value.rsplit(".", 1)[-1].lower()
    spec.facts["optimizer"] = stated._replace(value=_OPTIMIZERS.get(name, name))
    if name in _PAGED:
        lm.put(spec, "optimizer_paged", True, stated)


def _adapter(spec: TrainingSpec) -> None:
    rank, tuning = spec.fact("lora.r"), spec.fact("tuning")
    if tuning is not None and isinstance(tuning.value, str):
        spec.facts["tuning"] = tuning._replace(value=tuning.value.lower())
    if tuning is None and rank is not None and rank.node is not None:
        lm.put(spec, "tuning", "lora", rank)
    if spec.get("tuning") == "full":
        for name in [name for name in spec.facts if name.startswith("lora.")]:
            del spec.facts[name]


# ---------------------------------------------------------------------------------------------- devices and batches


def _devices(spec: TrainingSpec) -> None:
    """The number of devices: from the config's own keys, else from the launcher."""
    zero = spec.fact("parallelism.zero_stage")
    if zero is not None and zero.value and "parallelism.strategy" not in spec:
        lm.put(spec, "parallelism.strategy", "zero", zero)
    own = spec.fact("device_count")
    if spec.launch is not None or lm.HYPER + "deepspeed" in spec:
        lm.parallelism(spec)
        if own is not None and own.node is not None:
            spec.facts["device_count"] = own
    per_machine, machines = spec.fact(lm.HYPER + "per_node"), spec.fact("machines")
    stated = spec.fact("device_count")
    if stated is None and per_machine is not None:
        count = number(per_machine.value)
        others = number(machines.value) if machines is not None else 1
        if count is not None and others is not None and spec.family != "kubernetes":
            stated = per_machine._replace(name="device_count", value=count * others)
    if stated is None and isinstance(spec.get(lm.HYPER + "devices"), int):
        fact = spec.facts[lm.HYPER + "devices"]
        others = number(machines.value) if machines is not None else 1
        if fact.value > 0 and others is not None:
            stated = fact._replace(name="device_count", value=fact.value * others)
    if stated is not None:
        spec.facts["device_count"] = stated
        spec.facts["world_size"] = stated._replace(name="world_size")


def _batch(spec: TrainingSpec) -> None:
    """The micro batch that a global batch, the devices and the accumulation steps leave."""
    whole, devices = spec.fact("global_batch_size"), spec.get("device_count")
    if "micro_batch_size" in spec or whole is None or not isinstance(devices, int):
        return
    if any(item.key.rsplit(".", 1)[-1].lstrip("-") in _names(spec, "micro_batch_size") for item in spec.missing):
        return
    steps = spec.get("gradient_accumulation_steps", 1)
    if isinstance(whole.value, int) and isinstance(steps, int) and whole.value % (devices * steps) == 0:
        reason = f"{whole.label} {whole.value} over {devices} devices"
        reason += f" and {steps} accumulation steps" if steps > 1 else ""
        lm.put(spec, "micro_batch_size", whole.value // (devices * steps), whole, reason)


def _names(spec: TrainingSpec, fact: str) -> tuple[str, ...]:
    from memlint.dialects import registry

    return tuple(name for key in registry.dialect(spec.family).keys_of(fact) for name in key.names)


def _size(spec: TrainingSpec) -> None:
    """Bytes of a sample in host memory, where it is an image, a video or a row of tokens."""
    height, width = spec.fact(lm.HYPER + "height"), spec.fact(lm.HYPER + "width")
    sides = [side.value for side in (height, width) if side is not None]
    if "image_size" not in spec and len(sides) == 2 and all(isinstance(side, int) for side in sides):
        lm.put(spec, "image_size", sides, height)
    size, length, frames = spec.get("image_size"), spec.get("sequence_length"), spec.get("frames", 1)
    sides = [size, size] if isinstance(size, int) else size if isinstance(size, list) else []
    whole = len(sides) == 2 and all(isinstance(side, int) and side > 0 for side in sides)
    if spec.family in _IMAGES and whole and isinstance(frames, int):
        reason = "float32 pixels of three channels"
        lm.put(spec, "sample_bytes", 3 * 4 * frames * sides[0] * sides[1], reason=reason)
    elif spec.family in _TOKENS and isinstance(length, int):
        lm.put(spec, "sample_bytes", 3 * 8 * length, reason="int64 token ids, attention mask and labels")


# ---------------------------------------------------------------------------------------------- UNKNOWN


def _reason(spec: TrainingSpec) -> str:
    """What the file does not state, and how it becomes known."""
    from memlint.dialects import registry

    dialect = registry.dialect(spec.family)
    title = dialect.header.get("title", spec.family)
    name = f"the model {spec.model_name}" if spec.model_name else "the model"
    own = _of_heirs(spec)
    first = f"{name} is made by the code of {title}, which memlint does not know"
    if own:
        first = f"{own} is made by code of the program's own, which has the options of {title} and is not known"
    if "micro_batch_size" not in spec and "global_batch_size" not in spec:
        first += _without_batch(spec)
    return f"{first}: {WAY_OUT}"


# Families whose options other programs took over with models of their own -> the key that says which model is made, and
# what it says in the family's own code (microsoft/Swin-Transformer f92123a, models/build.py).
_MODELS = {"swin": (("MODEL", "TYPE"), ("swin", "swinv2", "swin_moe", "swin_mlp"))}


def _of_heirs(spec: TrainingSpec) -> str:
    """What a config calls a model that the family's own code does not make; "" for one that it does."""
    path, known = _MODELS.get(spec.family, ((), ()))
    node: Node | None = spec.root
    for key in path:
        node = node.get(key) if node is not None and node.is_mapping else None
    stated = None if node is None or node is spec.root else node.value
    return f"{'.'.join(path)} {stated}" if isinstance(stated, str) and stated not in known else ""


def _without_batch(spec: TrainingSpec) -> str:
    keys = _names(spec, "micro_batch_size") or _names(spec, "global_batch_size")
    gap = lm.gap(spec, *keys) if keys else None
    if gap is not None:
        return f", and {gap.key} is not known ({gap.reason})"
    for name in ("max_tokens", "max_tokens_valid", "max_seconds", "max_frames_in_batch", "buckets"):
        fact = spec.fact(lm.HYPER + name)
        if fact is not None and fact.node is not None:
            return f", and a batch is as many samples as {fact.label.lstrip('-')} lets in"
    return ", and the batch size is not stated" if keys else ""
