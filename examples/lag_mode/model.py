"""A few-shot diffusion model in plain JAX: a set encoder (sViT) that conditions a DiT, in "lag" or "film" mode.

The model behind ``train_lag_mode.sh``, with the layers, shapes and parameter layout that Flax's ``Dense``,
``Conv``, ``LayerNorm`` and ``MultiHeadDotProductAttention`` have, so that ``jax.grad`` keeps the same residuals:

* **encoder** (a vision transformer over a *set* of images): the images of a set are stacked on the channel axis
  and patchified together; a class token and a time token go in front. Conditioning is leave-one-out: the
  encoder runs once per image of the set, each time with that image removed and zeros in its place.
* **DiT** (the denoiser) sees every image of every set on its own, batch_size * sample_size of them. In *lag* mode
  its blocks cross-attend to the encoder's patch tokens; in *film* mode the class token joins the time embedding.

``config`` takes the flags of the script by name (``{"batch_size": 32, "sample_size": 6, ...}``) and fills the rest
from :data:`DEFAULTS`, the argument parser's defaults. ``device_count`` is how many devices share the batch.

    model = build_model(config)                      # parameters; under jax.eval_shape it allocates nothing
    batch = make_batch(config)                       # one device's share
    loss, gradients = jax.value_and_grad(training_loss)(model, batch)
    state = train_step(make_state(model), batch)     # with AdamW and the EMA copy
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

DEFAULTS: dict[str, Any] = {
    "batch_size": 16,
    "sample_size": 6,
    "image_size": 32,
    "in_channels": 3,
    "patch_size": 2,
    "hidden_size": 768,
    "depth": 12,
    "num_heads": 12,
    "mlp_ratio": 4.0,
    "encoder_depth": 6,
    "encoder_heads": 8,
    "encoder_dim_head": 56,
    "encoder_mlp_ratio": 1.0,
    "encoder_tokenize_mode": "stack",
    "hdim": 448,
    "context_channels": 448,
    "mode_conditioning": "film",
    "dropout": 0.0,
    "cross_attn_layers": "all",
    "context_pool_size": 0,
    "use_remat": False,
    "learn_sigma": False,
    "diffusion_steps": 1000,
    "lr": 1e-4,
    "weight_decay": 0.0,
    "ema_rate": 0.9999,
    # Not flags of the script: what JAX sees, and Flax's `dtype` (parameters stay in float32).
    "device_count": 1,
    "compute_dtype": "float32",
}

FREQUENCIES = 256  # width of the DiT's sinusoidal timestep embedding
LAYER_NORM_EPSILON = 1e-6  # Flax's default
ADAM_BETA1, ADAM_BETA2, ADAM_EPSILON = 0.9, 0.999, 1e-8  # optax.adamw's defaults

Array = jax.Array
Parameters = dict[str, Any]


@jax.tree_util.register_pytree_with_keys_class
class Model:
    """Parameters (a pytree of arrays) and the settings they were made with. Differentiable as a whole."""

    def __init__(self, parameters: Parameters, config: dict[str, Any]) -> None:
        self.parameters = parameters
        self.config = config

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        return [(jax.tree_util.GetAttrKey("parameters"), self.parameters)], tuple(sorted(self.config.items()))

    @classmethod
    def tree_unflatten(cls, settings: Any, children: Any) -> Model:
        return cls(children[0], dict(settings))


class TrainState(NamedTuple):
    """What every device holds a full copy of: 16 bytes per parameter in fp32."""

    model: Model
    first_moment: Model
    second_moment: Model
    ema: Model
    step: Array


# -- layers, as Flax computes them


def dense(p: Parameters, x: Array) -> Array:
    y = lax.dot_general(x, p["kernel"].astype(x.dtype), (((x.ndim - 1,), (0,)), ((), ())))
    return y + jnp.reshape(p["bias"].astype(x.dtype), (1,) * (y.ndim - 1) + (-1,)) if "bias" in p else y


def layer_norm(p: Parameters, x: Array) -> Array:
    """Flax's LayerNorm: float32 inside, with the fast variance E[x^2] - E[x]^2. Scale and bias where ``p`` has them."""
    dtype, x = x.dtype, x.astype(jnp.float32)
    mean = x.mean(-1, keepdims=True)
    mean_of_squares = lax.square(x).mean(-1, keepdims=True)
    variance = jnp.maximum(0.0, mean_of_squares - lax.square(mean))
    y = x - mean
    factor = lax.rsqrt(variance + LAYER_NORM_EPSILON)
    if "scale" in p:
        factor *= jnp.reshape(p["scale"], (1,) * (x.ndim - 1) + (-1,))
    y *= factor
    if "bias" in p:
        y = y + jnp.reshape(p["bias"], (1,) * (x.ndim - 1) + (-1,))
    return y.astype(dtype)


def dropout(x: Array, rate: float, key: Array) -> Array:
    """What reverse mode keeps of it is the mask: one byte per element."""
    if rate == 0:
        return x
    keep = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return lax.select(keep, x / (1.0 - rate), jnp.zeros_like(x))


def attention_heads(p: Parameters, x: Array) -> Array:
    """(b, n, c) -> (b, n, heads, head dim), with a kernel of shape (c, heads, head dim)."""
    y = lax.dot_general(x, p["kernel"].astype(x.dtype), (((2,), (0,)), ((), ())))
    return y + jnp.reshape(p["bias"].astype(x.dtype), (1, 1, *p["bias"].shape))


def multi_head_attention(p: Parameters, x: Array, context: Array) -> Array:
    """Flax's MultiHeadDotProductAttention: plain attention, the probabilities are a (b, heads, n, m) array."""
    query = attention_heads(p["query"], x)
    key, value = attention_heads(p["key"], context), attention_heads(p["value"], context)
    query = query / jnp.sqrt(query.shape[-1]).astype(query.dtype)
    scores = jnp.einsum("...qhd,...khd->...hqk", query, key)
    probabilities = jax.nn.softmax(scores)
    y = jnp.einsum("...hqk,...khd->...qhd", probabilities, value)
    y = lax.dot_general(y, p["out"]["kernel"].astype(y.dtype), (((2, 3), (0, 1)), ((), ())))
    return y + jnp.reshape(p["out"]["bias"].astype(y.dtype), (1, 1, -1))


def mlp(p: Parameters, x: Array) -> Array:
    return dense(p["Dense_1"], jax.nn.silu(dense(p["Dense_0"], x)))


def sinusoids(timesteps: Array, width: int) -> Array:
    """(b,) -> (b, width)"""
    half = width // 2
    frequencies = jnp.exp(-math.log(10000.0) * jnp.arange(half, dtype=jnp.float32) / half)
    angles = timesteps.astype(jnp.float32)[:, None] * frequencies[None]
    waves = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)
    return jnp.pad(waves, ((0, 0), (0, width % 2)))


# -- the set encoder


def self_attention_without_self(p: Parameters, x: Array, heads: int, rate: float, key: Array) -> Array:
    """ "Locality self-attention": a learned temperature, and no token attends to itself. (b, n, c) -> (b, n, c)"""
    b, n, _ = x.shape
    scale = jnp.exp(p["temperature"]).astype(x.dtype)
    qkv = jnp.split(dense(p["Dense_0"], x), 3, axis=-1)
    q, k, v = (jnp.transpose(part.reshape(b, n, heads, -1), (0, 2, 1, 3)) for part in qkv)
    scores = jnp.einsum("bhid,bhjd->bhij", q, k) * scale
    itself = jnp.eye(n, dtype=bool)[None, None]
    scores = jnp.where(itself, jnp.finfo(scores.dtype).min, scores)
    keys = jax.random.split(key)
    probabilities = dropout(jax.nn.softmax(scores, axis=-1), rate, keys[0])
    y = jnp.einsum("bhij,bhjd->bhid", probabilities, v)
    y = jnp.transpose(y, (0, 2, 1, 3)).reshape(b, n, -1)
    return dropout(dense(p["Dense_1"], y), rate, keys[1])


def encoder_layer(p: Parameters, x: Array, heads: int, rate: float, key: Array) -> Array:
    keys = jax.random.split(key, 3)
    x = x + self_attention_without_self(p["LSA_0"], layer_norm(p["LayerNorm_0"], x), heads, rate, keys[0])
    y = jax.nn.gelu(dense(p["FeedForward_0"]["Dense_0"], layer_norm(p["LayerNorm_1"], x)))
    y = dense(p["FeedForward_0"]["Dense_1"], dropout(y, rate, keys[1]))
    return x + dropout(y, rate, keys[2])


def patchify(x: Array, patch: int) -> Array:
    """(b, c, h, w) -> (b, patches, patch * patch * c)"""
    b, c, h, w = x.shape
    x = x.reshape(b, c, h // patch, patch, w // patch, patch)
    return jnp.transpose(x, (0, 2, 4, 3, 5, 1)).reshape(b, (h // patch) * (w // patch), patch * patch * c)


def patch_tokens(p: Parameters, images: Array, config: dict[str, Any]) -> Array:
    """(b, s, c, h, w) -> (b, patches, hdim): the set stacked on channels, or image by image and averaged."""
    b, s, c, h, w = images.shape
    if config["encoder_tokenize_mode"] == "stack":
        stacked = jnp.transpose(images, (0, 2, 1, 3, 4)).reshape(b, c * s, h, w)
        return dense(p["proj"], layer_norm(p["norm"], patchify(stacked, config["patch_size"])))
    x = patchify(images.reshape(b * s, c, h, w), config["patch_size"])
    x = dense(p["proj"], layer_norm(p["norm"], x))
    return x.reshape(b, s, *x.shape[1:]).mean(axis=1)


def encode(p: Parameters, images: Array, time: Array, config: dict[str, Any], key: Array) -> tuple[Array, Array]:
    """One pass over sets with one image missing -> (pooled (b, hdim), patch tokens (b, patches, hdim))."""
    b, s = images.shape[:2]
    tokens = patch_tokens(p["to_patch_embedding"], images, config)
    time_token = dense(p["to_time_embedding"], jnp.repeat(time, s, axis=0)).reshape(b, s, -1)[:, :1]
    x = jnp.concatenate([jnp.repeat(p["cls_token"].astype(tokens.dtype), b, axis=0), time_token, tokens], axis=1)
    x = x + p["pos_embedding"].astype(x.dtype)
    rate = config["dropout"]
    keys = jax.random.split(key, config["encoder_depth"] + 1)
    x = dropout(x, rate, keys[0])
    for index in range(config["encoder_depth"]):
        x = encoder_layer(p["transformer"][f"layer_{index}"], x, config["encoder_heads"], rate, keys[index + 1])
    return dense(p["mlp_dense"], layer_norm(p["mlp_norm"], x[:, 0])), x[:, 2:]


def leave_one_out(p: Parameters, images: Array, timesteps: Array, config: dict[str, Any], key: Array) -> Array:
    """The condition of each image, from the others of its set: sample_size encoder passes.

    lag: (b * s, patches, hdim) tokens; film: (b * s, hdim) vectors.
    """
    b, s = images.shape[:2]
    images = images.astype(config["compute_dtype"])
    time = mlp(p["time_embed"], sinusoids(timesteps, config["hdim"] // 4).astype(images.dtype))
    lag = config["mode_conditioning"] == "lag"
    patches = (config["image_size"] // config["patch_size"]) ** 2
    token_set = jnp.zeros((b, s, patches, config["hdim"]), images.dtype)
    pooled_set = []
    for index, one_key in enumerate(jax.random.split(key, s)):
        others = images[:, np.array([other for other in range(s) if other != index])]
        others = jnp.concatenate([others, jnp.zeros_like(images[:, :1])], axis=1)
        pooled, tokens = encode(p["encoder"], others, time, config, one_key)
        if lag:
            token_set = token_set.at[:, index].set(tokens)
        else:
            pooled_set.append(pooled[:, None])
    if not lag:
        return jnp.concatenate(pooled_set, axis=1).reshape(b * s, -1)
    context = token_set.reshape(b * s, patches, -1)
    pool = config["context_pool_size"]
    if 0 < pool < patches:
        context = context.reshape(b * s, pool, patches // pool, -1).mean(axis=2)
    return context


# -- the denoiser


def modulate(x: Array, shift: Array, scale: Array) -> Array:
    return x * (1 + scale[:, None]) + shift[:, None]


def dit_block(p: Parameters, x: Array, condition: Array, context: Array | None, key: Array, rate: float) -> Array:
    keys = jax.random.split(key, 3)
    modulation = jnp.split(dense(p["Dense_0"], jax.nn.silu(condition)), 6, axis=-1)
    shift_attention, scale_attention, gate_attention, shift_mlp, scale_mlp, gate_mlp = modulation
    y = modulate(layer_norm({}, x), shift_attention, scale_attention)
    y = gate_attention[:, None] * multi_head_attention(p["MultiHeadDotProductAttention_0"], y, y)
    x = x + dropout(y, rate, keys[0])
    if context is not None:
        y, projected = layer_norm({}, x), dense(p["Dense_1"], context)
        y = multi_head_attention(p["MultiHeadDotProductAttention_1"], y, projected)
        x = x + dropout(y, rate, keys[1])
    y = modulate(layer_norm({}, x), shift_mlp, scale_mlp)
    y = dropout(jax.nn.gelu(dense(p["MlpBlock_0"]["Dense_0"], y)), rate, keys[2])
    return x + gate_mlp[:, None] * dense(p["MlpBlock_0"]["Dense_1"], y)


def cross_attention_layers(config: dict[str, Any]) -> set[int]:
    """The DiT blocks that attend to the context: none in film mode, ``all`` or a comma list in lag mode."""
    if config["mode_conditioning"] != "lag":
        return set()
    listed = str(config["cross_attn_layers"])
    return set(range(config["depth"])) if listed == "all" else {int(i) for i in listed.split(",") if i.strip()}


def denoise(p: Parameters, noisy: Array, timesteps: Array, c: Array, config: dict[str, Any], key: Array) -> Array:
    """(n, channels, h, w) noisy images -> predicted noise, same shape (twice the channels with learn_sigma)."""
    x = jnp.transpose(noisy.astype(config["compute_dtype"]), (0, 2, 3, 1))
    n, side = x.shape[:2]
    patch = config["patch_size"]
    grid = side // patch
    kernel = p["PatchEmbed_0"]["kernel"].astype(x.dtype)
    layout = ("NHWC", "HWIO", "NHWC")
    x = lax.conv_general_dilated(x, kernel, (patch, patch), "VALID", dimension_numbers=layout)
    x = x + jnp.reshape(p["PatchEmbed_0"]["bias"].astype(x.dtype), (1, 1, 1, -1))
    x = x.reshape(n, grid * grid, -1) + lax.stop_gradient(p["pos_embed"]).astype(x.dtype)
    condition = mlp(p["TimestepEmbedder_0"], sinusoids(timesteps, FREQUENCIES).astype(x.dtype))
    if config["mode_conditioning"] == "film":
        condition = condition + dense(p["Dense_0"], c)
    crossing = cross_attention_layers(config)
    block = partial(dit_block, rate=config["dropout"])
    if config["use_remat"]:
        block = jax.checkpoint(block)
    keys = jax.random.split(key, config["depth"])
    for index in range(config["depth"]):
        x = block(p[f"DiTBlock_{index}"], x, condition, c if index in crossing else None, keys[index])
    shift, scale = jnp.split(dense(p["FinalLayer_0"]["Dense_0"], jax.nn.silu(condition)), 2, axis=-1)
    x = dense(p["FinalLayer_0"]["Dense_1"], modulate(layer_norm({}, x), shift, scale))
    x = x.reshape(n, grid, grid, patch, patch, -1)
    x = jnp.transpose(x, (0, 1, 3, 2, 4, 5)).reshape(n, side, side, -1)
    return jnp.transpose(x, (0, 3, 1, 2))


# -- parameters


def _dense(key: Array, fan_in: int, *out: int, bias: bool = True) -> Parameters:
    p: Parameters = {"kernel": jax.random.normal(key, (fan_in, *out)) / math.sqrt(fan_in)}
    if bias:
        p["bias"] = jnp.zeros(out)
    return p


def _norm(width: int) -> Parameters:
    return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}


def _attention(key: Array, width: int, heads: int) -> Parameters:
    keys = jax.random.split(key, 4)
    p = {name: _dense(keys[i], width, heads, width // heads) for i, name in enumerate(("query", "key", "value"))}
    kernel = jax.random.normal(keys[3], (heads, width // heads, width)) / math.sqrt(width)
    return {**p, "out": {"kernel": kernel, "bias": jnp.zeros(width)}}


def _encoder_parameters(config: dict[str, Any], key: Array) -> Parameters:
    width, patch = config["hdim"], config["patch_size"]
    inner = config["encoder_heads"] * config["encoder_dim_head"]
    feed_forward = int(width * config["encoder_mlp_ratio"])
    stacked = config["sample_size"] if config["encoder_tokenize_mode"] == "stack" else 1
    patch_width = patch * patch * config["in_channels"] * stacked
    patches = (config["image_size"] // patch) ** 2
    keys = iter(jax.random.split(key, 4 * config["encoder_depth"] + 5))
    layers = {
        f"layer_{index}": {
            "LayerNorm_0": _norm(width),
            "LSA_0": {
                "temperature": jnp.log(jnp.asarray(config["encoder_dim_head"] ** -0.5, jnp.float32)),
                "Dense_0": _dense(next(keys), width, 3 * inner, bias=False),
                "Dense_1": _dense(next(keys), inner, width),
            },
            "LayerNorm_1": _norm(width),
            "FeedForward_0": {
                "Dense_0": _dense(next(keys), width, feed_forward),
                "Dense_1": _dense(next(keys), feed_forward, width),
            },
        }
        for index in range(config["encoder_depth"])
    }
    return {
        "to_patch_embedding": {"norm": _norm(patch_width), "proj": _dense(next(keys), patch_width, width)},
        "pos_embedding": jax.random.normal(next(keys), (1, patches + 2, width)),
        "cls_token": jax.random.normal(next(keys), (1, 1, width)),
        "transformer": layers,
        "mlp_norm": _norm(width),
        "mlp_dense": _dense(next(keys), width, width),
        "to_time_embedding": _dense(next(keys), width, width),
    }


def _dit_parameters(config: dict[str, Any], key: Array) -> Parameters:
    width, patch, channels = config["hidden_size"], config["patch_size"], config["in_channels"]
    mlp_width = int(width * config["mlp_ratio"])
    patches = (config["image_size"] // patch) ** 2
    out = patch * patch * channels * (2 if config["learn_sigma"] else 1)
    keys = iter(jax.random.split(key, 6 * config["depth"] + 7))
    p: Parameters = {
        "pos_embed": jax.random.normal(next(keys), (1, patches, width)),
        "PatchEmbed_0": {
            "kernel": jax.random.normal(next(keys), (patch, patch, channels, width)),
            "bias": jnp.zeros(width),
        },
        "TimestepEmbedder_0": {
            "Dense_0": _dense(next(keys), FREQUENCIES, width),
            "Dense_1": _dense(next(keys), width, width),
        },
        "FinalLayer_0": {
            "Dense_0": _dense(next(keys), width, 2 * width),
            "Dense_1": _dense(next(keys), width, out),
        },
    }
    if config["mode_conditioning"] == "film":
        p["Dense_0"] = _dense(next(keys), config["context_channels"], width)
    crossing = cross_attention_layers(config)
    for index in range(config["depth"]):
        block = {
            "Dense_0": _dense(next(keys), width, 6 * width),
            "MultiHeadDotProductAttention_0": _attention(next(keys), width, config["num_heads"]),
            "MlpBlock_0": {
                "Dense_0": _dense(next(keys), width, mlp_width),
                "Dense_1": _dense(next(keys), mlp_width, width),
            },
        }
        if index in crossing:
            block["Dense_1"] = _dense(next(keys), config["context_channels"], width)
            block["MultiHeadDotProductAttention_1"] = _attention(next(keys), width, config["num_heads"])
        p[f"DiTBlock_{index}"] = block
    return p


# -- the four functions


def _complete(config: dict[str, Any]) -> dict[str, Any]:
    full = {**DEFAULTS, **{name: value for name, value in config.items() if name in DEFAULTS}}
    if full["batch_size"] % full["device_count"]:
        raise ValueError(f"batch_size {full['batch_size']} must be divisible by {full['device_count']} devices")
    if full["hidden_size"] % full["num_heads"]:
        raise ValueError(f"hidden_size {full['hidden_size']} must be divisible by num_heads {full['num_heads']}")
    if full["image_size"] % full["patch_size"]:
        raise ValueError(f"image_size {full['image_size']} must be divisible by patch_size {full['patch_size']}")
    return full


def build_model(config: dict[str, Any], key: Array | None = None) -> Model:
    """The model with fresh parameters. ``jax.eval_shape(lambda: build_model(config))`` makes only shapes."""
    full = _complete(config)
    keys = jax.random.split(jax.random.key(0) if key is None else key, 4)
    time_embed = {
        "Dense_0": _dense(keys[2], full["hdim"] // 4, full["hdim"]),
        "Dense_1": _dense(keys[3], full["hdim"], full["hdim"]),
    }
    parameters = {
        "encoder": _encoder_parameters(full, keys[0]),
        "dit": _dit_parameters(full, keys[1]),
        "time_embed": time_embed,
    }
    return Model(parameters, full)


def make_batch(config: dict[str, Any], device: str = "cpu", key: Array | None = None) -> dict[str, Array]:
    """One device's share: images (batch_size / device_count, sample_size, channels, size, size) in [-1, 1]."""
    full = _complete(config)
    keys = jax.random.split(jax.random.key(0) if key is None else key)
    shape = (full["batch_size"] // full["device_count"], full["sample_size"], full["in_channels"])
    with jax.default_device(jax.devices(device)[0]):
        images = jax.random.uniform(keys[0], (*shape, full["image_size"], full["image_size"]), minval=-1.0)
    return {"images": images, "key": keys[1]}


def training_loss(model: Model, batch: dict[str, Array]) -> Array:
    """Mean squared error of the predicted noise, one random timestep per set."""
    config, p, images = model.config, model.parameters, batch["images"]
    b, s = images.shape[:2]
    keys = jax.random.split(batch["key"], 4)
    timesteps = jax.random.randint(keys[0], (b,), 0, config["diffusion_steps"])
    condition = leave_one_out(p, images, timesteps, config, keys[1])

    images = images.reshape(b * s, *images.shape[2:])
    timesteps = jnp.repeat(timesteps, s, axis=0)
    noise = jax.random.normal(keys[2], images.shape)
    betas = jnp.linspace(0.1, 20.0, config["diffusion_steps"]) / config["diffusion_steps"]
    kept = jnp.cumprod(1.0 - betas)[timesteps][:, None, None, None]
    noisy = jnp.sqrt(kept) * images + jnp.sqrt(1.0 - kept) * noise
    predicted = denoise(p["dit"], noisy, timesteps, condition, config, keys[3])[:, : images.shape[1]]
    return jnp.mean((noise - predicted.astype(jnp.float32)) ** 2)


def make_state(model: Model) -> TrainState:
    zeros = jax.tree.map(jnp.zeros_like, model)
    return TrainState(model, zeros, zeros, model, jnp.zeros((), jnp.int32))


def train_step(state: TrainState, batch: dict[str, Array]) -> tuple[TrainState, Array]:
    """One step: AdamW, then the EMA copy. The old state is not donated, so old and new live side by side."""
    config = state.model.config
    loss, gradients = jax.value_and_grad(training_loss)(state.model, batch)
    step = state.step + 1
    first = jax.tree.map(lambda m, g: ADAM_BETA1 * m + (1 - ADAM_BETA1) * g, state.first_moment, gradients)
    second = jax.tree.map(lambda v, g: ADAM_BETA2 * v + (1 - ADAM_BETA2) * g * g, state.second_moment, gradients)

    def update(w: Array, m: Array, v: Array) -> Array:
        m = m / (1 - ADAM_BETA1**step)
        v = v / (1 - ADAM_BETA2**step)
        return w - config["lr"] * (m / (jnp.sqrt(v) + ADAM_EPSILON) + config["weight_decay"] * w)

    model = jax.tree.map(update, state.model, first, second)
    rate = config["ema_rate"]
    ema = jax.tree.map(lambda old, new: rate * old + (1 - rate) * new, state.ema, model)
    return TrainState(model, first, second, ema, step), loss
