"""An image model by a name that timm knows, or a folder of one. Only where timm is installed."""

from __future__ import annotations

import importlib
from typing import Any

from memlint.measure.child import MeasureError
from memlint.measure.factories import hub, lora
from memlint.measure.factories.base import (
    Request,
    Workload,
    checkpointing_every,
    dtype_of,
    image_size,
    library,
    said,
    size,
    with_settings,
)

# Keys under which configs name an architecture.
KEYS = ("model", "model_name", "arch", "architecture", "model.name", "model.arch", "model.model_name", "backbone")
CLASSES = ("num_classes", "model.num_classes", "nb_classes", "data.num_classes")


def find(request: Request) -> Workload | None:
    """``timm.create_model`` with random weights, images of the model's own size, and a cross entropy."""
    found = _named(request)
    if found is None:
        return None
    timm, key, name, own = found
    if lora.wanted(request):
        raise MeasureError(
            f"{request['keys']['tuning']}: which layers of {name} get adapters is the training code's to say: write "
            "[probe] model, batch and step in memlint.toml"
        )
    samples, recomputing = size(request, "micro_batch_size"), checkpointing_every(request)
    options = {
        key.rpartition(".")[2]: value for key in CLASSES if _count(value := hub.value_at(request["config"], key))
    }
    options = {"num_classes": next(iter(options.values()))} if options else {}
    if _count(own.get("num_classes")):
        options.setdefault("num_classes", own["num_classes"])
    channels, height, width = _input_size(timm, name, own)
    stated = image_size(request)
    if stated is not None:
        height, width = stated
    if height is None:
        size(request, "image_size")  # says that it is missing

    def build() -> Any:
        kind = request["facts"].get("attention")
        if kind not in (None, "", "sdpa", "eager"):
            raise MeasureError(
                f"{request['keys']['attention']}: timm has no {kind}; sdpa keeps as much: set it with -o"
            )
        if kind:
            timm.layers.set_fused_attn(kind == "sdpa")
        model = _create(timm, name, options, key, height, width)
        model = model.to(dtype_of(request, "parameter_dtype"))
        if recomputing:
            try:
                model.set_grad_checkpointing(True)
            except (AttributeError, AssertionError) as error:
                raise MeasureError(f"{request['keys']['checkpointing']}: {name} cannot: {said(error)}") from None
        return model

    def batch(device: str) -> Any:
        import torch

        dtype = dtype_of(request, "parameter_dtype")
        images = torch.rand(samples, channels, height, width, dtype=dtype, device=device)
        return images, torch.zeros(samples, dtype=torch.long, device=device)

    return with_settings(request, Workload(build, batch, classification_loss, f"timm, {name}"))


def classification_loss(model: Any, batch: Any) -> Any:
    """Images (B, C, H, W) and classes (B) -> mean cross entropy."""
    import torch

    images, classes = batch
    return torch.nn.functional.cross_entropy(model(images), classes)


def _named(request: Request) -> tuple[Any, str, str, dict[str, Any]] | None:
    """(timm, key, name, settings of its folder) of a model that timm has."""
    named = hub.named(request)
    if named is not None and named.library == "timm":
        timm = library("timm", f"{named.key} names {named.name}")
        return timm, named.key, named.contents["architecture"], named.contents
    names = [(key, hub.value_at(request["config"], key)) for key in KEYS]
    names = [(key, name.removeprefix("timm/")) for key, name in names if isinstance(name, str) and name]
    if not names:
        return None
    try:
        installed = importlib.import_module("timm")
    except ImportError:
        return None
    for key, name in names:
        if installed.is_model(name.partition(".")[0]):
            return installed, key, name, {}
    return None


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _input_size(timm: Any, name: str, own: dict[str, Any]) -> tuple[Any, Any, Any]:
    """(channels, height, width) that the model was made for."""
    found = own.get("pretrained_cfg", {}).get("input_size")
    if found is None:
        settings = timm.get_pretrained_cfg(name)
        found = getattr(settings, "input_size", None)
    return tuple(found) if found else (3, None, None)


def _create(timm: Any, name: str, options: dict[str, Any], key: str, height: Any, width: Any) -> Any:
    """Transformers of timm are told the size of images; convolutional networks take no such argument."""
    try:
        try:
            return timm.create_model(name, pretrained=False, img_size=(height, width), **options)
        except TypeError:
            return timm.create_model(name, pretrained=False, **options)
    except Exception as error:
        raise MeasureError(f"{key}: timm.create_model({name!r}) raised {said(error)}") from None
