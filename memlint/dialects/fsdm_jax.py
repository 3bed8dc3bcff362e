"""Family fsdm-jax: what its schema cannot say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memlint.documents.node import Edit, Node
from memlint.facts.spec import ASSUMED, DEFAULT, HYPER, WRITTEN, Conflict, Fact, Missing, Name, TrainingSpec

DEVICES = "CUDA_VISIBLE_DEVICES"

# Values of these keys that build another model than the one that is known, and what is known instead.
_KNOWN = {
    "model": ("vfsddpm_jax",),
    "encoder_mode": ("vit_set",),
    "mode_context": ("deterministic",),
    "use_vae": (False,),
    "input_dependent": (False,),
}


def complete(spec: TrainingSpec) -> TrainingSpec:
    """The number of devices, each one's share of the batch, and the facts that several options make together."""
    spec.unknown_reason = _unknown(spec)
    spec.architecture = None if spec.unknown_reason else "fsdm_lag"
    mode = spec.get(HYPER + "mode_conditioning", "film")
    spec.model_name = f"set ViT + DiT, {mode} mode"

    _devices(spec)
    batch = spec.fact("global_batch_size")
    if batch is not None:
        # jax.pmap refuses a batch that does not divide (MEM404); the larger share is what it would need.
        share = -(-batch.value // spec["world_size"])
        reason = f"{batch.value} sets on {spec['world_size']} devices"
        spec.facts["micro_batch_size"] = batch._replace(name="micro_batch_size", value=share, reason=reason)
    if not spec.get(HYPER + "num_eval_batches") or not spec.get(HYPER + "save_interval"):
        spec.facts.pop("evaluation_batch_size", None)

    tokens = _tokens(spec)
    unit = f"images of {tokens} tokens" if tokens else "images"
    spec.facts["token_product"] = Fact("token_product", (unit, ("micro_batch_size", "sample_size")), DEFAULT)
    spec.facts["loop_passes"] = Fact("loop_passes", "sample_size", DEFAULT, reason="leave-one-out conditioning")
    if tokens:
        patch = spec.facts["patch_size"]
        spec.facts["attention_tokens"] = patch._replace(name="attention_tokens", value=tokens)
    if "image_size" in spec and "sample_size" in spec:
        size = 4 * spec["sample_size"] * spec.get(HYPER + "in_channels", 3) * spec["image_size"] ** 2
        spec.facts["sample_bytes"] = Fact("sample_bytes", size, DEFAULT, reason="a set of float32 images")
    spec.conflicts = tuple(_conflicts(spec))
    return spec


def _unknown(spec: TrainingSpec) -> str:
    """Why there is no estimate; "" where there is one."""
    for name, known in _KNOWN.items():
        fact = spec.fact(HYPER + name)
        if fact is not None and fact.value not in known:
            wanted = " or ".join(str(value).lower() for value in known)
            return f"{fact.label} {str(fact.value).lower()} is not known, only {wanted}"
    needed = ("global_batch_size", "sample_size", "image_size", "patch_size", "checkpointing")
    sizes = ("hidden_size", "depth", "num_heads", "mlp_ratio", "hdim", "context_channels", "mode_conditioning")
    encoder = ("encoder_depth", "encoder_heads", "encoder_dim_head", "encoder_mlp_ratio", "encoder_tokenize_mode")
    others = ("in_channels", "dropout", "cross_attn_layers", "context_pool_size", "learn_sigma")
    for name in (*needed, *(HYPER + name for name in (*_KNOWN, *sizes, *encoder, *others))):
        if name not in spec:
            key = {"global_batch_size": "batch_size", "checkpointing": "use_remat"}.get(name, name)
            key = "--" + key.removeprefix(HYPER)
            gap = next((item for item in spec.missing if item.key == key), None)
            return f"{key} is not known" + (f": {gap.reason}" if gap is not None else "")
    return next((conflict.message for conflict in _conflicts(spec)), "")


def _devices(spec: TrainingSpec) -> None:
    """``jax.local_device_count()``: the cards that the script lets JAX see, else one."""
    node = spec.launch.environment.get(DEVICES) if spec.launch is not None else None
    count = visible(node) if node is not None else None
    for name in ("world_size", "device_count"):
        if node is not None and count:
            spec.facts[name] = Fact(name, count, WRITTEN, DEVICES, node)
        else:
            reason = f"main_jax.py takes every device that JAX sees, and the script does not set {DEVICES}"
            spec.facts[name] = Fact(name, 1, ASSUMED, reason=reason)
    if node is not None and count is None:
        spec.missing = (
            *spec.missing,
            Missing(DEVICES, node.key_span or node.span, "the number of devices is not a plain list"),
        )


def visible(node: Node) -> int | None:
    """How many devices a CUDA_VISIBLE_DEVICES names: entries up to the first negative one. None where unknown."""
    value = node.value
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    count = 0
    for entry in str(value).split(","):
        if not entry.strip() or entry.strip().startswith("-"):
            break
        count += 1
    return count


def _tokens(spec: TrainingSpec) -> int:
    image, patch = spec.get("image_size"), spec.get("patch_size")
    return int((image // patch) ** 2) if image and patch else 0


def _conflicts(spec: TrainingSpec) -> Iterator[Conflict]:
    def conflict(message: str, *names: Name) -> Iterator[Conflict]:
        written = [fact for fact in map(spec.fact, names) if fact is not None and fact.span is not None]
        if written:
            spans = (fact.span for fact in written)
            first, *others = [span for span in spans if span is not None]
            yield Conflict(written[0].key, first, message, tuple(others))

    def divides(name: Name, by: Name) -> Iterator[Conflict]:
        whole, part = spec.fact(name), spec.fact(by)
        if whole is not None and part is not None and part.value and whole.value % part.value:
            message = f"{whole.label} {whole.value} does not divide by {part.label} {part.value}"
            yield from conflict(message.replace("--", ""), name, by)

    yield from divides("image_size", "patch_size")
    yield from divides(HYPER + "hidden_size", HYPER + "num_heads")
    width, context = spec.get(HYPER + "hdim"), spec.get(HYPER + "context_channels")
    if width is not None and context is not None and width != context:
        message = f"context_channels {context} is not hdim {width}: the DiT could not read the encoder's context"
        yield from conflict(message, HYPER + "context_channels", HYPER + "hdim")
    tokens, pool = _tokens(spec), spec.get(HYPER + "context_pool_size", 0)
    if tokens and pool and pool < tokens and tokens % pool:
        message = f"context_pool_size {pool} does not divide the {tokens} tokens of an image"
        yield from conflict(message, HYPER + "context_pool_size", "patch_size")


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """A device's share is written as the global batch."""
    if fact == "micro_batch_size":
        from memlint.dialects.spelling import spell as generic

        # Without the derived fact, which shares the option's value, a variable is changed where it is set.
        alone = spec.replaced({})
        del alone.facts["micro_batch_size"]
        return generic(alone, "global_batch_size", value * spec["world_size"])
    if fact == "global_batch_size" and "micro_batch_size" in spec:
        from memlint.dialects.spelling import spell as generic

        alone = spec.replaced({})
        del alone.facts["micro_batch_size"]
        return generic(alone, fact, value)
    return None
