"""A denoiser of diffusers, from its folder or a pipeline's, trained as diffusers' own examples train it.

Latents are noised, the denoiser is asked for the noise (or for the velocity, where the family is trained by flow
matching), and the answer is compared in fp32. The text encoders and the VAE are not there: what they give is the batch.
Source: ``diffusers`` 0.42, ``models/{unets,transformers}``, and its example scripts ``train_text_to_image.py``,
``train_dreambooth_{sd3,flux}.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
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
    stated_size,
    with_settings,
)
from memlint.named_tuple import NamedTuple

COMPONENTS = ("transformer", "unet", "prior")  # folders of pipelines that hold what is trained
CLIP_TOKENS = 77  # the longest text of CLIP's tokenizer
T5_TOKENS = {"SD3Transformer2DModel": 256, "FluxTransformer2DModel": 512, "PixArtTransformer2DModel": 300}
VAE_SCALE = 8  # pixels per latent of every VAE with four levels: Stable Diffusion's, SD3's, Flux's
WAY_OUT = "write [probe] batch and step in memlint.toml"

Notes = list[tuple[str, str, str]]


class Task(NamedTuple):
    """What a denoiser is given and asked for.

    argument    the name under which it takes the noised latents
    latents     their shape, batch first
    conditions  (device, dtype) -> its other arguments
    flow        whether it is trained by flow matching: asked for the velocity
    """

    argument: str
    latents: tuple[Any, ...]
    conditions: Callable[[str, Any], dict[str, Any]]
    flow: bool = False


class Setting(NamedTuple):
    """What recipes read: the denoiser's config, samples of a micro-batch, latents' height and width, text tokens."""

    config: Any
    samples: Any
    height: Any
    width: Any
    tokens: Any


def find(request: Request) -> Workload | None:
    named = hub.named(request)
    if named is None or named.library != "diffusers":
        return None
    diffusers = library("diffusers", f"{named.key} names {named.name}")
    folder, contents = _component(named)
    name = contents["_class_name"]
    recipe = RECIPES.get(name)
    if recipe is None or not hasattr(diffusers, name):
        raise MeasureError(
            f"{named.key}: {folder}/{hub.CONFIG} is a {name}; batches are known for {', '.join(RECIPES)}: {WAY_OUT}"
        )
    class_ = getattr(diffusers, name)
    try:
        config = _Config({**_defaults(class_), **contents})
    except TypeError as error:
        raise MeasureError(f"{named.key}: {folder}/{hub.CONFIG}: {said(error)}") from None
    notes: Notes = [("helper_models", "not traced", "what text encoders and the VAE give is the batch")]
    height, width = _latent_size(request, folder, name, config, notes)
    tokens = _text_tokens(request, name, notes)
    task = recipe(Setting(config, size(request, "micro_batch_size"), height, width, tokens))
    adapters, recomputing = lora.wanted(request), checkpointing_every(request)
    _check_attention(request)
    dtype = dtype_of(request, "parameter_dtype")

    def build() -> Any:
        try:
            model = class_.from_config({k: v for k, v in contents.items() if k != "_name_or_path"})
        except Exception as error:
            raise MeasureError(f"{named.key}: {name} raised {said(error)}") from None
        model = model.to(dtype)
        if request["facts"].get("attention") == "eager":
            _make_eager(model, name, request)
        if adapters:
            model.requires_grad_(False)
            model.add_adapter(_adapters(request, name))
        if recomputing:
            model.enable_gradient_checkpointing()
        return model

    inputs = dtype_of(request, "compute_dtype", "parameter_dtype")  # the scripts cast what the helpers give

    def batch(device: str) -> dict[str, Any]:
        import torch

        latents, noise = (torch.randn(task.latents, dtype=inputs, device=device) for _ in range(2))
        return {"latents": latents, "noise": noise, "conditions": task.conditions(device, inputs)}

    loss = _flow_loss if task.flow else _noise_loss
    work = Workload(build, batch, lambda model, batch: loss(model, batch, task), f"diffusers, {named.name}: {name}")
    return with_settings(request, work._replace(notes=tuple(notes)))


class _Config(dict[str, Any]):
    """A config.json over the defaults of the class: settings as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def _defaults(class_: Any) -> dict[str, Any]:
    import inspect

    parameters = inspect.signature(class_.__init__).parameters
    return {name: one.default for name, one in parameters.items() if one.default is not one.empty}


def _component(named: hub.Named) -> tuple[str, dict[str, Any]]:
    """The folder of what is trained, and its settings."""
    if not os.path.isfile(os.path.join(named.folder, hub.PIPELINE)):
        return named.folder, named.contents
    for part in COMPONENTS:
        folder = os.path.join(named.folder, part)
        if os.path.isfile(os.path.join(folder, hub.CONFIG)):
            contents = hub.contents(folder)
            if "_class_name" in contents:
                return folder, contents
    raise MeasureError(
        f"{named.key}: {named.folder} is a {named.contents['_class_name']} without a {hub.CONFIG} in any of "
        f"{', '.join(COMPONENTS)}"
    )


def _latent_size(request: Request, folder: str, name: str, config: _Config, notes: Notes) -> tuple[Any, Any]:
    """(height, width) of what is denoised: images of ``image_size`` through the VAE, else the denoiser's own size."""
    pixels = image_size(request)
    if pixels is None:
        own = config.get("sample_size")
        if isinstance(own, (list, tuple)) and len(own) == 2:
            return own[0], own[1]
        return (own, own) if isinstance(own, int) else (size(request, "image_size"),) * 2  # says that it is missing
    scale = 1
    vae = os.path.join(os.path.dirname(os.path.normpath(folder)), "vae")
    if os.path.isfile(os.path.join(vae, hub.CONFIG)):
        levels = hub.contents(vae).get("block_out_channels")
        scale = 2 ** (len(levels) - 1) if isinstance(levels, list) and levels else VAE_SCALE
    elif name != "UNet2DModel":  # that one denoises images themselves
        scale = VAE_SCALE
        notes.append(("image_size", f"1/{VAE_SCALE}", "pixels per latent: there is no VAE beside the denoiser"))
    return pixels[0] // scale, pixels[1] // scale


def _text_tokens(request: Request, name: str, notes: Notes) -> Any:
    """Tokens of text that the denoiser sees: stated, or the most that its pipeline makes."""
    stated = stated_size(request, "sequence_length")
    if stated is not None or name in ("UNet2DModel", "DiTTransformer2DModel"):
        return stated
    tokens = T5_TOKENS.get(name, CLIP_TOKENS)
    if name == "SD3Transformer2DModel":
        tokens += CLIP_TOKENS
    notes.append(("sequence_length", str(tokens), "the most text that the pipeline's tokenizers give"))
    return tokens


# -- kernels and adapters


def _check_attention(request: Request) -> None:
    """diffusers calls PyTorch's attention, which is FlashAttention's kernel where computing takes 16 bits."""
    kind = request["facts"].get("attention")
    compute = request["facts"].get("compute_dtype") or request["facts"].get("parameter_dtype") or "float32"
    if kind in (None, "", "sdpa", "eager") or (kind == "flash" and compute != "float32"):
        return
    raise MeasureError(
        f"{request['keys']['attention']}: {kind} is a kernel that only runs on a card; sdpa keeps as much: set it with "
        "-o to trace"
    )


def _make_eager(model: Any, name: str, request: Request) -> None:
    from diffusers.models.attention_processor import AttnProcessor, AttnProcessor2_0

    processors = getattr(model, "attn_processors", {})
    if not processors or not all(isinstance(one, (AttnProcessor, AttnProcessor2_0)) for one in processors.values()):
        raise MeasureError(f"{request['keys']['attention']}: {name} of diffusers has no eager attention, only sdpa")
    model.set_attn_processor(AttnProcessor())


def _adapters(request: Request, name: str) -> Any:
    config = lora.config(request, name)
    if config.target_modules is None:
        raise MeasureError(
            f"{request['keys']['tuning']}: which layers of {name} get adapters is not stated (target_modules)"
        )
    return config


# -- what each class is given


def _random(*shape: Any) -> Callable[[str, Any], Any]:
    import torch

    return lambda device, dtype: torch.randn(shape, dtype=dtype, device=device)


def _steps(samples: Any, device: str) -> Any:
    import torch

    return torch.zeros(samples, dtype=torch.long, device=device)


def _unet(setting: Setting) -> Task:
    """UNet2DModel: images or latents, classes where it has them."""

    def conditions(device: str, dtype: Any) -> dict[str, Any]:
        return {"timestep": _steps(setting.samples, device), **_classes(setting, device, dtype)}

    return Task("sample", _image(setting), conditions)


def _conditional_unet(setting: Setting) -> Task:
    """UNet2DConditionModel: the text's hidden states; SDXL's pooled text and sizes (``text_time``)."""
    config, samples = setting.config, setting.samples
    width = config.encoder_hid_dim or config.cross_attention_dim
    width = width[0] if isinstance(width, (list, tuple)) else width
    kind = config.addition_embed_type
    if kind not in (None, "text_time") or config.encoder_hid_dim_type not in (None, "text_proj"):
        raise MeasureError(f"UNet2DConditionModel with {kind or config.encoder_hid_dim_type} conditions: {WAY_OUT}")
    text = _random(samples, setting.tokens, width)

    def conditions(device: str, dtype: Any) -> dict[str, Any]:
        import torch

        found = {"timestep": _steps(samples, device), "encoder_hidden_states": text(device, dtype)}
        if kind == "text_time":
            # Original size, crop and target size, each embedded by itself; the rest of the width is the pooled text.
            pooled = config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim
            found["added_cond_kwargs"] = {
                "text_embeds": _random(samples, pooled)(device, dtype),
                "time_ids": torch.zeros(samples, 6, dtype=dtype, device=device),
            }
        return {**found, **_classes(setting, device, dtype)}

    return Task("sample", _image(setting), conditions)


def _classes(setting: Setting, device: str, dtype: Any) -> dict[str, Any]:
    config = setting.config
    if config.class_embed_type in ("projection", "simple_projection"):
        width = config.projection_class_embeddings_input_dim
        return {"class_labels": _random(setting.samples, width)(device, dtype)}
    if config.class_embed_type is not None or config.num_class_embeds is not None:
        return {"class_labels": _steps(setting.samples, device)}
    return {}


def _dit(setting: Setting) -> Task:
    """DiTTransformer2DModel: classes."""

    def conditions(device: str, dtype: Any) -> dict[str, Any]:
        return {"timestep": _steps(setting.samples, device), "class_labels": _steps(setting.samples, device)}

    return Task("hidden_states", _image(setting), conditions)


def _pixart(setting: Setting) -> Task:
    """PixArtTransformer2DModel: T5's hidden states with their mask; at 1024 pixels the image's size."""
    import torch

    config, samples = setting.config, setting.samples
    text = _random(samples, setting.tokens, config.caption_channels)
    sized = config.use_additional_conditions
    sized = config.sample_size == 128 if sized is None else sized

    def conditions(device: str, dtype: Any) -> dict[str, Any]:
        sizes = {"resolution": (samples, 2), "aspect_ratio": (samples, 1)}
        return {
            "timestep": _steps(samples, device),
            "encoder_hidden_states": text(device, dtype),
            "encoder_attention_mask": torch.ones(samples, setting.tokens, dtype=dtype, device=device),
            "added_cond_kwargs": {
                name: torch.zeros(shape, dtype=dtype, device=device) if sized else None for name, shape in sizes.items()
            },
        }

    return Task("hidden_states", _image(setting), conditions)


def _sd3(setting: Setting) -> Task:
    """SD3Transformer2DModel: hidden states of CLIP and T5 one after the other, CLIP's pooled text."""
    config, samples = setting.config, setting.samples
    text = _random(samples, setting.tokens, config.joint_attention_dim)
    pooled = _random(samples, config.pooled_projection_dim)

    def conditions(device: str, dtype: Any) -> dict[str, Any]:
        import torch

        return {
            "timestep": torch.zeros(samples, dtype=dtype, device=device),
            "encoder_hidden_states": text(device, dtype),
            "pooled_projections": pooled(device, dtype),
        }

    return Task("hidden_states", _image(setting), conditions, flow=True)


def _flux(setting: Setting) -> Task:
    """FluxTransformer2DModel: two by two latents are one token; T5's hidden states, CLIP's pooled text, positions."""
    config, samples = setting.config, setting.samples
    tokens = (setting.height // 2) * (setting.width // 2)
    text = _random(samples, setting.tokens, config.joint_attention_dim)
    pooled = _random(samples, config.pooled_projection_dim)

    def conditions(device: str, dtype: Any) -> dict[str, Any]:
        import torch

        found = {
            "timestep": torch.zeros(samples, dtype=dtype, device=device),
            "encoder_hidden_states": text(device, dtype),
            "pooled_projections": pooled(device, dtype),
            "img_ids": torch.zeros(tokens, 3, dtype=dtype, device=device),
            "txt_ids": torch.zeros(setting.tokens, 3, dtype=dtype, device=device),
        }
        if config.guidance_embeds:
            found["guidance"] = torch.ones(samples, dtype=torch.float32, device=device)
        return found

    return Task("hidden_states", (samples, tokens, config.in_channels), conditions, flow=True)


def _image(setting: Setting) -> tuple[Any, ...]:
    return setting.samples, setting.config.in_channels, setting.height, setting.width


RECIPES: dict[str, Callable[[Setting], Task]] = {
    "UNet2DModel": _unet,
    "UNet2DConditionModel": _conditional_unet,
    "DiTTransformer2DModel": _dit,
    "PixArtTransformer2DModel": _pixart,
    "SD3Transformer2DModel": _sd3,
    "FluxTransformer2DModel": _flux,
}


# -- losses


def _predict(model: Any, batch: dict[str, Any], task: Task, noised: Any) -> Any:
    return model(**{task.argument: noised}, **batch["conditions"], return_dict=False)[0]


def _share(batch: dict[str, Any]) -> Any:
    """One coefficient per sample, which broadcasts over its latents."""
    import torch

    latents = batch["latents"]
    shape = (latents.shape[0], *(1 for _ in latents.shape[1:]))
    return torch.rand(shape, dtype=latents.dtype, device=latents.device)


def _noise_loss(model: Any, batch: dict[str, Any], task: Task) -> Any:
    """Mean squared error of the noise; of a denoiser that also learns its variance, only the mean's half."""
    import torch

    noised = _share(batch) * batch["latents"] + _share(batch) * batch["noise"]
    predicted = _predict(model, batch, task, noised)
    if predicted.shape[1] == 2 * batch["noise"].shape[1]:
        predicted = predicted.chunk(2, dim=1)[0]
    return torch.nn.functional.mse_loss(predicted.float(), batch["noise"].float())


def _flow_loss(model: Any, batch: dict[str, Any], task: Task) -> Any:
    """Weighted squared error of the velocity, as flow matching trains it."""
    share = _share(batch)
    noised = (1.0 - share) * batch["latents"] + share * batch["noise"]
    predicted = _predict(model, batch, task, noised)
    target = batch["noise"] - batch["latents"]
    error = share.float() * (predicted.float() - target.float()) ** 2
    return error.reshape(target.shape[0], -1).mean(1).mean()
