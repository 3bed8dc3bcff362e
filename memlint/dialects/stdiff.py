"""Family stdiff: what its schema cannot say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memlint.documents.node import Edit, Node
from memlint.facts.spec import ASSUMED, DEFAULT, HYPER, WRITTEN, Conflict, Fact, Name, TrainingSpec

BLOCKS = ("DownBlock2D", "AttnDownBlock2D", "UpBlock2D", "AttnUpBlock2D")
_NEEDED = {
    "micro_batch_size": "Dataset.batch_size",
    "channels": "Dataset.num_channels",
    "observation_steps": "Dataset.num_observed_frames",
    HYPER + "prediction_span": "Dataset.num_predict_frames",
    "image_size": "STDiff.Diffusion.unet_config.sample_size",
    HYPER + "motion_image_size": "STDiff.DiffNet.MotionEncoder.image_size",
    HYPER + "motion_in_channels": "STDiff.DiffNet.MotionEncoder.in_channels",
    HYPER + "model_channels": "STDiff.DiffNet.MotionEncoder.model_channels",
    HYPER + "n_downs": "STDiff.DiffNet.MotionEncoder.n_downs",
    HYPER + "learn_diff_image": "STDiff.DiffNet.MotionEncoder.learn_diff_image",
    HYPER + "n_layers": "STDiff.DiffNet.DiffUnet.n_layers",
    HYPER + "sde": "STDiff.DiffNet.Int.sde",
    HYPER + "autoregressive": "STDiff.DiffNet.autoregressive",
}
# What the memory model has one value for.
_ONLY = {"norm_num_groups": 32, "time_embedding_type": "positional", "resnet_time_scale_shift": "default"}
# Keys that upstream's code does not read: changed where they stand, never added.
_ADDED_AS = {"attention": ("Training", "use_xformers"), "checkpointing": ("Training", "gradient_checkpointing")}


def complete(spec: TrainingSpec) -> TrainingSpec:
    """Architecture, name, and the facts that several keys make together."""
    spec.architecture = "stdiff"
    _launch(spec)
    for name in ("image_size", HYPER + "motion_image_size", HYPER + "dataset_image_size"):
        fact = spec.fact(name)
        if fact is not None:
            spec.facts[name] = fact._replace(value=_pair(fact.value))
    spec.unknown_reason = _unknown(spec)
    widths = spec.get(HYPER + "block_out_channels", ())
    spec.model_name = f"STDiff, UNet {'-'.join(map(str, widths))}"
    if spec.unknown_reason:
        spec.architecture = None
        return spec
    _frames(spec)
    compute = spec.fact("compute_dtype") or Fact(
        "compute_dtype", "float32", DEFAULT, "Training.mixed_precision", None, "Accelerator"
    )
    spec.facts["compute_dtype"] = compute
    spec.facts["autocast"] = compute._replace(name="autocast", value=compute.value != "float32")
    if compute.value == "float16":
        spec.facts["loss_scaling"] = compute._replace(name="loss_scaling", value="dynamic")
    _derived(spec)
    spec.conflicts = tuple(_conflicts(spec))
    return spec


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _unknown(spec: TrainingSpec) -> str:
    """Why there is no estimate; "" where there is one."""
    for name, key in _NEEDED.items():
        if name not in spec:
            gap = next((item for item in spec.missing if item.key == key), None)
            return f"{key} is not stated" if gap is None else f"{key} is not known: {gap.reason}"
    for name, value in _ONLY.items():
        if spec.get(HYPER + name) != value:
            return f"{name} {spec.get(HYPER + name)} is not known, only {value}"
    levels = len(spec[HYPER + "block_out_channels"])
    for name in ("down_block_types", "up_block_types"):
        for block in spec[HYPER + name]:
            if block not in BLOCKS:
                return f"block type {block} is not known; known are {', '.join(BLOCKS)}"
        if len(spec[HYPER + name]) != levels:
            return f"{name} has {len(spec[HYPER + name])} entries, block_out_channels has {levels}"
    heads = spec[HYPER + "attention_head_dim"]
    if isinstance(heads, list) and len(heads) != levels:
        return f"attention_head_dim has {len(heads)} entries, block_out_channels has {levels}"
    if any(channels % 32 for channels in spec[HYPER + "block_out_channels"]):
        return "block_out_channels must be multiples of 32, the groups of the group norms"
    for level, channels in enumerate(spec[HYPER + "block_out_channels"]):
        width = heads[level] if isinstance(heads, list) else heads
        if width is not None and channels % width:
            return f"attention_head_dim {width} does not divide the {channels} channels of its level"
    height, width = spec["image_size"]
    if height % 2 ** (levels - 1) or width % 2 ** (levels - 1):
        return f"sample_size {height} x {width} cannot be halved {levels - 1} times"
    return ""


def _frames(spec: TrainingSpec) -> None:
    """How many predicted frames one sample trains on, and under which key."""
    source = HYPER + ("rand_Tp" if spec.get(HYPER + "rand_predict") else "prediction_span")
    fact = spec.facts[source]
    observed, predicted = spec.facts["observation_steps"], fact.value
    if spec.get(HYPER + "half_fps"):
        predicted = (predicted + 1) // 2
        if observed.value > 2:
            spec.facts["observation_steps"] = observed._replace(value=(observed.value + 1) // 2)
    spec.facts["predicted_frames"] = fact._replace(name="predicted_frames", value=predicted)
    spec.facts["frames_in_batch"] = Fact("frames_in_batch", "predicted_frames", DEFAULT)
    product = ("images", ("micro_batch_size", "predicted_frames"))
    spec.facts["token_product"] = Fact("token_product", product, DEFAULT)


def _derived(spec: TrainingSpec) -> None:
    height, width = spec["image_size"]
    types = spec[HYPER + "down_block_types"]
    attending = [level for level, block in enumerate(types) if block.startswith("Attn")]
    level = min(attending, default=len(types) - 1)  # the middle block attends in any case
    tokens = (height >> level) * (width >> level)
    spec.facts["attention_tokens"] = spec.facts["image_size"]._replace(name="attention_tokens", value=tokens)

    layers = spec[HYPER + "layers_per_block"]
    plain = types.count("DownBlock2D") * layers
    plain += spec[HYPER + "up_block_types"].count("UpBlock2D") * (layers + 1)
    every = len(types) * (2 * layers + 1) + 2
    reached = {"none": 0, "blocks": plain, "full": every}.get(spec.get("checkpointing", "none"), 0)
    spec.facts["checkpointed_layers"] = Fact("checkpointed_layers", (reached, every), DEFAULT)

    masks = "RANGE" in str(spec.get(HYPER + "dataset", "")).upper()
    spec.facts[HYPER + "masks"] = Fact(
        HYPER + "masks", masks, ASSUMED, reason="range images come with masks, other data sets do not"
    )
    frames = spec["observation_steps"] + spec[HYPER + "prediction_span"]
    channels = spec["channels"] + int(masks)
    size = spec.get(HYPER + "dataset_image_size", spec["image_size"])
    spec.facts["sample_bytes"] = Fact(
        "sample_bytes", 4 * frames * channels * size[0] * size[1], DEFAULT, reason="float32 frames"
    )


def _launch(spec: TrainingSpec) -> None:
    """Processes and precision that ``accelerate launch`` states, on its command line or in its config file."""
    if spec.launch is None:
        return
    for launcher in spec.launch.launchers:
        options = launcher.options
        stated = _number(options.get("num_processes") or options.get("nproc_per_node"))
        precision = options.get("mixed_precision")
        named = options.get("config_file")
        if named is not None and isinstance(named.value, str):
            from memlint.dialects import companions

            other, _ = companions.read(named.value, spec.launch.span.path)
            if other is not None:
                stated = stated or _number(other.root.get("num_processes"))
                precision = precision or other.root.get("mixed_precision")
        if stated is not None:
            for name in ("world_size", "device_count"):
                spec.facts[name] = Fact(name, stated.value, WRITTEN, "--num_processes", stated)
        values = {"no": "float32", "fp16": "float16", "bf16": "bfloat16"}
        if precision is not None and precision.value in values and "compute_dtype" not in spec:
            value = values[str(precision.value)]
            spec.facts["compute_dtype"] = Fact("compute_dtype", value, WRITTEN, "mixed_precision", precision)


def _number(node: Node | None) -> Node | None:
    """A count, also one that a shell hands over as text."""
    if node is None or isinstance(node.value, bool):
        return None
    if isinstance(node.value, str) and node.value.isdigit():
        return Node(int(node.value), node.span, node.key_span, node.keys, node.via)
    return node if isinstance(node.value, int) else None


def _conflicts(spec: TrainingSpec) -> Iterator[Conflict]:
    def conflict(name: Name, message: str, *others: Name) -> Iterator[Conflict]:
        fact = spec.fact(name)
        if fact is not None and fact.span is not None:
            spans = (other.span for other in map(spec.fact, others) if other is not None)
            yield Conflict(fact.key, fact.span, message, tuple(span for span in spans if span is not None))

    def shape(size: tuple[int, int]) -> str:
        return f"{size[0]} x {size[1]}"

    large = spec["image_size"]
    small = spec[HYPER + "motion_image_size"]
    stored = spec.get(HYPER + "dataset_image_size", large)
    if not spec.get(HYPER + "super_res_training"):
        for name, size in ((HYPER + "motion_image_size", small), (HYPER + "dataset_image_size", stored)):
            if size != large:
                label = spec.facts[name].key.split(".", 1)[-1]
                message = f"{label} is {shape(size)}, sample_size is {shape(large)}: frames are resized"
                yield from conflict(name, message, "image_size")
    channels = spec["channels"]
    before = channels if spec[HYPER + "autoregressive"] else spec["observation_steps"] * channels
    expected = channels + before + int(bool(spec.get(HYPER + "predict_mask")))
    stated = spec[HYPER + "in_channels"]
    if stated != expected:
        message = f"in_channels is {stated}, but the UNet gets {expected}: the noisy frame and {before} before it"
        yield from conflict(HYPER + "in_channels", message, "channels", HYPER + "autoregressive")
    if spec[HYPER + "motion_in_channels"] != channels:
        message = f"MotionEncoder.in_channels is {spec[HYPER + 'motion_in_channels']}, frames have {channels} channels"
        yield from conflict(HYPER + "motion_in_channels", message, "channels")
    if spec.get(HYPER + "rand_predict") and spec[HYPER + "rand_Tp"] > spec[HYPER + "prediction_span"]:
        message = f"rand_Tp {spec[HYPER + 'rand_Tp']} cannot be drawn from {spec[HYPER + 'prediction_span']} frames"
        yield from conflict(HYPER + "rand_Tp", message, HYPER + "prediction_span")


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """A key that upstream's code does not read is not added, and ``gradient_checkpointing: all`` is not proposed:
    where the code knows only true and false, it would be the same as true."""
    known = spec.fact(fact)
    if fact == "checkpointing" and value == "full":
        return []
    if fact not in _ADDED_AS or (known is not None and known.node is not None):
        return None
    from memlint.dialects import registry
    from memlint.dialects.insertion import add

    written = {"xformers": True, "eager": False, "blocks": True, "none": False}.get(value)
    key = next(key for key in registry.dialect(spec.family).keys if key.path == _ADDED_AS[fact])
    return [] if written is None else add(spec, key, written)
