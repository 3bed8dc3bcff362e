"""Family dit3d: what its schema cannot say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memlint.documents.node import Edit, Node
from memlint.facts.spec import DEFAULT, HYPER, Conflict, Fact, Name, TrainingSpec

SIZES = ("XS", "TINY", "S", "B", "L", "XL")
TEXT_ENCODERS = ("distilbert-base-uncased", "distilbert-base-cased", "distilbert-base-multilingual-cased")
# Keys that text2sign's own code does not read: changed where they stand, never added.
_REFERENCE_ONLY = {"checkpointing": "DIT_GRADIENT_CHECKPOINTING", "attention": "DIT_FUSED_ATTENTION"}
DEFAULT_PATCH = 2
PRETRAINED = ("XL",)  # sizes with published weights: facebook/DiT-XL-2-256


def complete(spec: TrainingSpec) -> TrainingSpec:
    """Architecture, name, the facts that several keys make together, and shapes that contradict each other."""
    size, patch = _model_size(spec)
    if size is not None:
        spec.facts[HYPER + "size"] = spec.facts[HYPER + "model_size"]._replace(name=HYPER + "size", value=size)
    _video(spec)
    if "patch_size" not in spec:
        source = spec.fact(HYPER + "model_size")
        if patch is not None and source is not None:
            spec.facts["patch_size"] = source._replace(name="patch_size", value=patch)
        else:
            reason = "text2sign's DiT3D cuts every frame by itself"
            spec.facts["patch_size"] = Fact("patch_size", DEFAULT_PATCH, DEFAULT, "DIT_PATCH_SIZE", reason=reason)
    spec.unknown_reason = _unknown(spec, size)
    spec.architecture = None if spec.unknown_reason else "dit3d"
    if spec.architecture is None:
        return spec
    frozen = spec.fact("encoder_frozen")
    if size not in PRETRAINED and frozen is not None:
        del spec.facts["encoder_frozen"]  # freezing what was never trained is no lever
        spec.facts[HYPER + "backbone_frozen"] = frozen._replace(name=HYPER + "backbone_frozen")
    native = not isinstance(spec["patch_size"], int)
    form = "native 3-D tokens" if native else f"per frame, patch {spec['patch_size']}"
    spec.model_name = f"DiT3D-{'Tiny' if size == 'TINY' else size} ({form})"
    spec.facts["attention_tokens"] = spec.facts["patch_size"]._replace(name="attention_tokens", value=_tokens(spec))
    spec.facts["token_product"] = Fact("token_product", ("frames", ("micro_batch_size", "frames")), DEFAULT)
    if not native:
        spec.facts["frames_in_batch"] = Fact("frames_in_batch", "frames", DEFAULT)
    frames, (height, width) = spec["frames"], spec["image_size"]
    elements = spec[HYPER + "channels"] * frames * height * width
    spec.facts["sample_bytes"] = Fact("sample_bytes", 4 * elements, DEFAULT, reason="a float32 video")
    spec.conflicts = tuple(_conflicts(spec))
    return spec


def _model_size(spec: TrainingSpec) -> tuple[str | None, int | None]:
    """``DiT3D-XL/2`` -> ("XL", 2)."""
    name = spec.get(HYPER + "model_size")
    if not isinstance(name, str):
        return None, None
    words = name.replace("/", "-").split("-")
    if len(words) < 2 or words[1].upper() not in SIZES:
        return None, None
    patch = int(words[2]) if len(words) > 2 and words[2].isdigit() else None
    return words[1].upper(), patch or None


def _video(spec: TrainingSpec) -> None:
    """Frames and image size: DIT_VIDEO_SIZE, or INPUT_SHAPE where the former is absent."""
    names: dict[Name, str] = {
        "frames": "input_frames",
        HYPER + "height": "input_height",
        HYPER + "width": "input_width",
    }
    for name, other in names.items():
        given = spec.take(HYPER + other)
        if given is not None and spec.gap(name) is None and name not in spec:
            spec.facts[name] = given._replace(name=name)
    height, width = spec.fact(HYPER + "height"), spec.fact(HYPER + "width")
    if height is not None and width is not None:
        node = spec.root.get("DIT_VIDEO_SIZE") or spec.root.get("INPUT_SHAPE")
        key = "DIT_VIDEO_SIZE" if spec.root.get("DIT_VIDEO_SIZE") is not None else "INPUT_SHAPE"
        spec.facts["image_size"] = Fact("image_size", [height.value, width.value], height.origin, key, node)


def _tokens(spec: TrainingSpec) -> int:
    """Tokens that attend to each other."""
    patch, (height, width) = spec["patch_size"], spec["image_size"]
    if isinstance(patch, int):
        side = int(max(height, width)) // patch
        return max(side * side, 1)
    tokens: int = int(spec["frames"]) // patch[0] * (int(height) // patch[1]) * (int(width) // patch[2])
    return max(tokens, 1)


def _unknown(spec: TrainingSpec, size: str | None) -> str:
    """Why there is no estimate; "" where there is one."""
    architecture = spec.get(HYPER + "architecture")
    if architecture != "dit3d":
        return f"MODEL_ARCHITECTURE {architecture or 'unresolved'} is not known, only dit3d"
    if size is None:
        stated = spec.get(HYPER + "model_size")
        return "DIT_MODEL_SIZE is not stated" if stated is None else f"DIT_MODEL_SIZE {stated} is not known"
    needed = {
        "micro_batch_size": "BATCH_SIZE",
        "frames": "DIT_VIDEO_SIZE",
        HYPER + "height": "DIT_VIDEO_SIZE",
        HYPER + "width": "DIT_VIDEO_SIZE",
        HYPER + "channels": "INPUT_SHAPE",
        HYPER + "text_encoder": "TEXT_ENCODER_MODEL",
        HYPER + "text_width": "TEXT_EMBED_DIM",
    }
    for name, key in needed.items():
        if name not in spec:
            gap = next((item for item in spec.missing if item.key.startswith(key)), None)
            return f"{key} is not stated" if gap is None else f"{key} is not known: {gap.reason}"
    if any(item.key.startswith("DIT_PATCH_SIZE") for item in spec.missing):
        return "DIT_PATCH_SIZE is not known"
    encoder = spec[HYPER + "text_encoder"]
    if encoder != "none" and spec[HYPER + "text_width"] and encoder not in TEXT_ENCODERS:
        return f"TEXT_ENCODER_MODEL {encoder} is not known; known are {', '.join(TEXT_ENCODERS)}"
    return ""


def _conflicts(spec: TrainingSpec) -> Iterator[Conflict]:
    """INPUT_SHAPE, DIT_VIDEO_SIZE, NUM_FRAMES and IMAGE_SIZE describe one tensor; patches divide it."""
    root = spec.root
    video, shape = root.get("DIT_VIDEO_SIZE"), root.get("INPUT_SHAPE")
    stated = _numbers(video)
    given = _numbers(shape)
    if video is not None and shape is not None and len(stated) == 3 and len(given) == 4 and given[1:] != stated:
        message = f"INPUT_SHAPE has (frames, height, width) {_show(given[1:])}, DIT_VIDEO_SIZE {_show(stated)}"
        yield _conflict("INPUT_SHAPE", shape, message, video)
    reference = video if len(stated) == 3 else shape
    known = stated if len(stated) == 3 else given[1:]
    if reference is not None and len(known) == 3:
        name = "DIT_VIDEO_SIZE" if reference is video else "INPUT_SHAPE"
        frames, side = root.get("NUM_FRAMES"), root.get("IMAGE_SIZE")
        if frames is not None and isinstance(frames.value, int) and frames.value != known[0]:
            yield _conflict("NUM_FRAMES", frames, f"NUM_FRAMES {frames.value}, but {name} has {known[0]}", reference)
        if side is not None and isinstance(side.value, int) and (side.value,) * 2 != known[1:]:
            message = f"IMAGE_SIZE {side.value}, but {name} has {known[1]} x {known[2]}"
            yield _conflict("IMAGE_SIZE", side, message, reference)
    yield from _patch_conflicts(spec)


def _patch_conflicts(spec: TrainingSpec) -> Iterator[Conflict]:
    patch = spec.facts["patch_size"]
    if patch.node is None:
        return
    frames, (height, width) = spec["frames"], spec["image_size"]
    if isinstance(patch.value, int):
        side = max(height, width)
        if side % patch.value:
            message = f"{patch.label}: patches of {patch.value} do not divide frames of {side} x {side}"
            yield _conflict(patch.key, patch.node, message)
        return
    names = ("frames", "height", "width")
    for name, size, part in zip(names, (frames, height, width), patch.value):
        if size % part:
            message = f"DIT_PATCH_SIZE: {part} does not divide the {name} of DIT_VIDEO_SIZE, {size}"
            yield _conflict(patch.key, patch.node, message)


def _conflict(key: str, node: Node, message: str, other: Node | None = None) -> Conflict:
    related = () if other is None else (other.key_span or other.span,)
    return Conflict(key, node.key_span or node.span, message, related)


def _numbers(node: Node | None) -> tuple[int, ...]:
    if node is None or not isinstance(node.value, list):
        return ()
    values = tuple(item.value for item in node.value)
    return tuple(v for v in values if isinstance(v, int)) if all(isinstance(v, int) for v in values) else ()


def _show(numbers: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, numbers))})"


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """A fix that nothing reads is none; a patch from the model's name becomes a key of its own."""
    known = spec.fact(fact)
    if fact in _REFERENCE_ONLY and spec.root.get(_REFERENCE_ONLY[fact]) is None:
        return []
    if fact == "patch_size" and known is not None and known.key == "DIT_MODEL_SIZE":
        from memlint.dialects import insertion, registry

        key = registry.dialect(spec.family).key("patch_size")
        return list(insertion.add(spec, key, value)) if key is not None else []
    if fact == "frames":
        return _frames(spec, value)
    if fact == "image_size":
        from memlint.dialects import spelling

        parts = (spelling.spell(spec, HYPER + name, part) for name, part in zip(("height", "width"), value))
        return sorted({edit for edits in parts for edit in edits})
    return None


def _frames(spec: TrainingSpec, value: int) -> list[Edit] | None:
    """Every number that states the frames; None where one of them states something else too."""
    known = spec.facts["frames"]
    stated = [spec.root.get(key) for key in ("DIT_VIDEO_SIZE.0", "INPUT_SHAPE.1", "NUM_FRAMES")]
    spans = {node.span for node in stated if node is not None and node.value == known.value}
    sides = [spec.root.get(f"DIT_VIDEO_SIZE.{part}") for part in (1, 2)]
    if known.node is None or known.node.span not in spans or any(n is not None and n.span in spans for n in sides):
        return None
    return [Edit(span, str(value)) for span in sorted(spans)]
