"""Few-shot diffusion in JAX: a set encoder (sViT) conditions a DiT, through cross-attention ("lag") or adaLN ("film").

    sets of images -> encoder, once per left-out image -> context -> DiT on every noisy image -> squared error

Shapes: B sets per device, K images per set, P patch tokens per image, C encoder width, H DiT width. The encoder sees
(B, P + 2, C) K times over, the DiT (B*K, P, H). Everything is fp32 with plain attention, in one ``jax.pmap``: see
:mod:`memlint.meta.jaxpr` for how long an array lives there.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

from memlint.facts.spec import HYPER, OVERRIDE, TrainingSpec
from memlint.meta import jax_numpy as jnp
from memlint.meta.fold import Folded, fold
from memlint.meta.jaxpr import PLAIN, Array, Program, checkpoint, repeat
from memlint.meta.tape import Label, Tape
from memlint.meta.tensor import DTYPES, DType, float32
from memlint.models import Recording
from memlint.models.step import symbolic_spec

FREQUENCIES = 256  # TimestepEmbedder.frequency_embedding_size
# InceptionV3 without its classifier, as the FID function loads it: 21,785,568 weights, 34,432 running statistics.
INCEPTION_ELEMENTS = 21_785_568 + 34_432


class Dense:
    def __init__(self, p: Program, inputs: int, *outputs: int, bias: bool = True) -> None:
        self.kernel = p.parameter(inputs, *outputs, name="kernel")
        self.bias = p.parameter(*outputs, name="bias") if bias else None

    def __call__(self, x: Array) -> Array:
        return jnp.dense(x, self.kernel, self.bias)


class LayerNorm:
    def __init__(self, p: Program, width: int) -> None:
        self.scale = p.parameter(width, name="scale")
        self.bias = p.parameter(width, name="bias")

    def __call__(self, x: Array) -> Array:
        return jnp.layer_norm(x, self.scale, self.bias)


class TimeMLP:
    """Dense, SiLU, Dense."""

    def __init__(self, p: Program, inputs: int, width: int) -> None:
        self.first = Dense(p, inputs, width)
        self.second = Dense(p, width, width)

    def __call__(self, x: Array) -> Array:
        return self.second(jnp.silu(self.first(x)))


# -- the set encoder ---------------------------------------------------------------------------------------------


class SelfAttentionWithoutSelf:
    """ "LSA": a learned temperature, and no token sees itself. (B, T, C)"""

    def __init__(self, p: Program, run: Settings) -> None:
        self.heads, self.width, self.run = run.encoder_heads, run.encoder_head_width, run
        inner = self.heads * self.width
        self.temperature = p.parameter(name="temperature")
        self.qkv = Dense(p, run.encoder_width, 3 * inner, bias=False)
        self.out = Dense(p, inner, run.encoder_width)

    def __call__(self, x: Array) -> Array:
        batch, tokens, _ = x.shape
        heads = (batch, self.heads, tokens, self.width)
        temperature = jnp.cast(jnp.exp(self.temperature), x.dtype)
        q, k, v = (jnp.transpose(part, heads) for part in jnp.split(self.qkv(x), 3))
        if self.run.fused_attention:
            y = jnp.fused_attention(jnp.multiply(q, temperature), k, v)
        else:
            square = (batch, self.heads, tokens, tokens)
            scores = jnp.multiply(jnp.matmul(q, k, square), temperature)
            scores = jnp.select(jnp.diagonal_mask(x.program, square), scores)
            weights = jnp.dropout(jnp.softmax(scores), self.run.dropout)
            y = jnp.matmul(weights, v, heads)
        y = jnp.transpose(y, (batch, tokens, self.heads * self.width))
        return jnp.dropout(self.out(y), self.run.dropout)


class EncoderLayer:
    def __init__(self, p: Program, run: Settings) -> None:
        self.norm1 = LayerNorm(p, run.encoder_width)
        with p.scope("attention"):
            self.attention = SelfAttentionWithoutSelf(p, run)
        self.norm2 = LayerNorm(p, run.encoder_width)
        with p.scope("mlp"):
            self.expand = Dense(p, run.encoder_width, run.encoder_mlp)
            self.contract = Dense(p, run.encoder_mlp, run.encoder_width)
        self.dropout = run.dropout

    def __call__(self, x: Array) -> Array:
        p = x.program
        y = self.norm1(x)
        with p.scope("attention"):
            y = self.attention(y)
        x = jnp.add(x, y)
        y = self.norm2(x)
        with p.scope("mlp"):
            y = jnp.dropout(jnp.gelu(self.expand(y)), self.dropout)
            y = jnp.dropout(self.contract(y), self.dropout)
        return jnp.add(x, y)


class SetEncoder:
    def __init__(self, p: Program, run: Settings) -> None:
        self.run = run
        with p.scope("to_patch_embedding"):
            self.norm = LayerNorm(p, run.set_patch)
            self.proj = Dense(p, run.set_patch, run.encoder_width)
        self.pos_embedding = p.parameter(1, run.patches + 2, run.encoder_width, name="pos_embedding")
        self.cls_token = p.parameter(1, 1, run.encoder_width, name="cls_token")
        self.layers = []
        for index in range(run.encoder_depth):
            with p.scope(f"layer_{index}"):
                self.layers.append(EncoderLayer(p, run))
        self.mlp_norm = LayerNorm(p, run.encoder_width)
        self.mlp_dense = Dense(p, run.encoder_width, run.encoder_width)
        self.to_time_embedding = Dense(p, run.encoder_width, run.encoder_width)

    def __call__(self, time: Array, sets: int) -> tuple[Array, Array]:
        """One pass -> (pooled (B, C), patch tokens (B, P, C)). The images need no cotangent: only sizes matter."""
        run, p, width = self.run, time.program, self.run.encoder_width
        with p.scope("to_patch_embedding"):
            if run.stacked:
                tokens = self.proj(self.norm(jnp.constant(p, (sets, run.patches, run.set_patch))))
            else:
                images = jnp.constant(p, (sets * run.set_size, run.patches, run.set_patch))
                tokens = jnp.reshape(self.proj(self.norm(images)), sets, run.set_size, run.patches, width)
                tokens = jnp.mean(tokens, 1)
        repeated = jnp.repeat(time, (sets * run.set_size, width))
        times = jnp.reshape(self.to_time_embedding(repeated), sets, run.set_size, width)
        first = jnp.slice_(times, (sets, 1, width))
        x = jnp.concatenate([jnp.repeat(jnp.cast(self.cls_token, p.dtype), (sets, 1, width)), first, tokens], 1)
        x = jnp.dropout(jnp.add(x, jnp.cast(self.pos_embedding, x.dtype)), run.dropout)
        for index, layer in enumerate(self.layers):
            with p.scope(f"layer_{index}"):
                x = layer(x)
        pooled = self.mlp_dense(self.mlp_norm(jnp.slice_(x, (sets, width))))
        return pooled, jnp.slice_(x, (sets, run.patches, width))


# -- the denoiser ------------------------------------------------------------------------------------------------


class MultiHeadAttention:
    """flax.linen.MultiHeadDotProductAttention. (N, T, H) on (N, S, H)"""

    def __init__(self, p: Program, width: int, heads: int, fused: bool) -> None:
        self.heads, self.fused = heads, fused
        self.query, self.key, self.value = (Dense(p, width, heads, width // heads) for _ in range(3))
        self.out = Dense(p, width, width)

    def __call__(self, x: Array, context: Array) -> Array:
        batch, tokens, _ = x.shape
        query, key, value = self.query(x), self.key(context), self.value(context)
        if self.fused:
            y = jnp.fused_attention(jnp.scale(query), key, value)
        else:
            weights = jnp.softmax(jnp.matmul(jnp.scale(query), key, (batch, self.heads, tokens, context.shape[1])))
            y = jnp.transpose(jnp.matmul(weights, value, query.shape), query.shape)
        return self.out(jnp.reshape(y, *x.shape))


class DiTBlock:
    """adaLN-Zero from the time (and in film mode the pooled context); in lag mode cross-attention to its tokens."""

    def __init__(self, p: Program, run: Settings, crossing: bool) -> None:
        width = run.width
        self.run = run
        self.modulation = Dense(p, width, 6 * width)
        with p.scope("attention"):
            self.attention = MultiHeadAttention(p, width, run.heads, run.fused_attention)
        self.crossing = crossing
        if crossing:
            with p.scope("cross_attention"):
                self.context_proj = Dense(p, run.context_width, width)
                self.cross_attention = MultiHeadAttention(p, width, run.heads, run.fused_attention)
        with p.scope("mlp"):
            self.expand = Dense(p, width, run.mlp)
            self.contract = Dense(p, run.mlp, width)

    def __call__(self, x: Array, condition: Array, context: Array | None) -> Array:
        p, rate = x.program, self.run.dropout
        parts = jnp.split(self.modulation(jnp.silu(condition)), 6)
        shift1, scale1, gate1, shift2, scale2, gate2 = (
            jnp.reshape(part, part.shape[0], 1, self.run.width) for part in parts
        )
        with p.scope("attention"):
            y = modulate(jnp.layer_norm(x), shift1, scale1)
            y = jnp.multiply(gate1, self.attention(y, y))
            x = jnp.add(x, jnp.dropout(y, rate))
        if self.crossing and context is not None:
            with p.scope("cross_attention"):
                y = self.cross_attention(jnp.layer_norm(x), self.context_proj(context))
                x = jnp.add(x, jnp.dropout(y, rate))
        with p.scope("mlp"):
            y = modulate(jnp.layer_norm(x), shift2, scale2)
            y = self.contract(jnp.dropout(jnp.gelu(self.expand(y)), rate))
            return jnp.add(x, jnp.multiply(gate2, y))


def modulate(x: Array, shift: Array, scale: Array) -> Array:
    return jnp.add(jnp.multiply(x, jnp.add(scale, 1.0)), shift)


class DiT:
    def __init__(self, p: Program, run: Settings) -> None:
        self.run = run
        width = run.width
        # Fixed sinusoids, kept as a parameter behind stop_gradient: AdamW and the EMA treat it like any other.
        self.pos_embed = p.parameter(1, run.patches, width, name="pos_embed", trained=False)
        with p.scope("patch_embed"):
            self.patch_embed = Dense(p, run.patch * run.patch * run.channels, width)
        with p.scope("time_embed"):
            self.time_embed = TimeMLP(p, FREQUENCIES, width)
        self.context_proj = Dense(p, run.context_width, width) if not run.lag else None
        self.blocks = []
        for index in range(run.depth):
            with p.scope(f"block_{index}"):
                self.blocks.append(DiTBlock(p, run, index in run.crossing))
        with p.scope("final_layer"):
            self.modulation = Dense(p, width, 2 * width)
            self.linear = Dense(p, width, run.patch * run.patch * run.out_channels)

    def __call__(self, noisy: Array, context: Array) -> Array:
        run, p, count = self.run, noisy.program, noisy.shape[0]
        image = (count, run.image_size, run.image_size)
        with p.scope("patch_embed"):
            x = jnp.transpose(noisy, (*image, run.channels))
            x = self.patch_embed(jnp.reshape(x, count, run.patches, run.patch * run.patch * run.channels))
        x = jnp.add(x, jnp.cast(self.pos_embed, x.dtype))
        with p.scope("time_embed"):
            condition = self.time_embed(jnp.constant(p, (count, FREQUENCIES)))
        if self.context_proj is not None:
            condition = jnp.add(condition, self.context_proj(context))
        for index, block in enumerate(self.blocks):
            with p.scope(f"block_{index}"):
                arguments = (x, condition, context if run.lag else None)
                x = checkpoint(block, *arguments) if run.remat else block(*arguments)
        with p.scope("final_layer"):
            shift, scale = jnp.split(self.modulation(jnp.silu(condition)), 2)
            shift, scale = jnp.reshape(shift, count, 1, run.width), jnp.reshape(scale, count, 1, run.width)
            x = self.linear(modulate(jnp.layer_norm(x), shift, scale))
            x = jnp.transpose(x, (*image, run.out_channels))
            return jnp.transpose(x, (count, run.out_channels, run.image_size, run.image_size))


# -- one step ----------------------------------------------------------------------------------------------------


class FewShotDiffusion:
    def __init__(self, p: Program, run: Settings) -> None:
        self.run = run
        with p.scope("encoder"):
            self.encoder = SetEncoder(p, run)
        with p.scope("dit"):
            self.dit = DiT(p, run)
        with p.scope("time_embed"):
            self.time_embed = TimeMLP(p, run.encoder_width // 4, run.encoder_width)

    def context(self, p: Program, sets: int) -> Array:
        """Leave-one-out: every pass's arrays are kept until the backward pass has come back to it."""
        run, width = self.run, self.run.encoder_width
        with p.scope("time_embed"):
            time = self.time_embed(jnp.constant(p, (sets, width // 4)))
        with p.scope("encoder"):
            passes = repeat(p, run.passes, lambda: self.encoder(time, sets))
        if not run.lag:
            pooled = [jnp.reshape(pooled, sets, 1, width) for pooled, _ in passes]
            whole = jnp.concatenate(pooled, 1, run.set_size)
            return jnp.reshape(whole, sets * run.set_size, width)
        context = jnp.zeros(p, (sets, run.set_size, run.patches, width), p.dtype)
        for _, tokens in passes:
            context = jnp.put(context, tokens)
        images = sets * run.set_size
        context = jnp.reshape(context, images, run.patches, width)
        if 0 < run.pooled < run.patches:
            context = jnp.reshape(context, images, run.pooled, run.patches // run.pooled, width)
            context = jnp.mean(context, 2)
        return context

    def loss(self, images: Array) -> Array:
        """(B, K, channels, size, size) -> scalar"""
        run, p, sets = self.run, images.program, images.shape[0]
        context = self.context(p, sets)
        shape = (sets * run.set_size, run.channels, run.image_size, run.image_size)
        noise = jnp.random(p, shape)
        noisy = jnp.cast(jnp.add(jnp.scale(jnp.reshape(images, *shape)), jnp.scale(noise)), p.dtype)
        with p.scope("dit"):
            predicted = self.dit(noisy, context)
            if run.out_channels != run.channels:
                predicted = jnp.slice_(predicted, shape)
        return jnp.scale(jnp.sum_(jnp.square(jnp.subtract(noise, jnp.cast(predicted, float32))), range(4)))


# Passes of the set encoder that are written, where a set has more of them: set here, read where the step is written.
RECORDED_PASSES: Final = "recorded_passes"
# The first and the last passes differ from those between them; so many show that the rest is a loop.
SHORT = 8
# The recordings of SHORT passes and of one more cost as much as both together, and finding the loops.
WORTHWHILE = 24
WITHOUT_FORMULAS = 128


class Settings:
    """The facts of a run under the names that this file uses."""

    def __init__(self, spec: TrainingSpec) -> None:
        def value(name: str, default: Any = None) -> Any:
            return spec.get(HYPER + name, default)

        self.sets = micro_batch_size(spec)
        self.set_size = spec["sample_size"]
        # Passes that are written; all of them, but for a recording that is to be folded.
        self.passes = spec.get(RECORDED_PASSES, self.set_size)
        self.image_size = spec["image_size"]
        self.channels = value("in_channels", 3)
        self.out_channels = self.channels * (2 if value("learn_sigma", False) else 1)
        self.patch = spec["patch_size"]
        self.patches = max(1, self.image_size // self.patch) ** 2
        self.stacked = value("encoder_tokenize_mode", "stack") == "stack"
        self.set_patch = self.patch * self.patch * self.channels * (self.set_size if self.stacked else 1)
        self.encoder_width = value("hdim")
        self.encoder_depth = value("encoder_depth")
        self.encoder_heads = value("encoder_heads")
        self.encoder_head_width = value("encoder_dim_head")
        self.encoder_mlp = int(self.encoder_width * value("encoder_mlp_ratio"))
        self.width = value("hidden_size")
        self.depth = value("depth")
        self.heads = value("num_heads")
        self.mlp = int(self.width * value("mlp_ratio"))
        self.context_width = value("context_channels")
        self.lag = value("mode_conditioning") == "lag"
        self.crossing = crossing_blocks(value("cross_attn_layers", "all"), self.depth) if self.lag else frozenset()
        self.pooled = value("context_pool_size", 0)
        self.dropout = float(value("dropout", 0.0))
        self.remat = spec.get("checkpointing", "none") != "none"
        self.fused_attention = spec.get("attention", "eager") != "eager"
        self.dtype: DType = DTYPES[spec.get("compute_dtype", "float32")]


def crossing_blocks(listed: Any, depth: int) -> frozenset[int]:
    """``all`` or ``"2,3,4,5"``: the DiT blocks with cross-attention."""
    if str(listed) == "all":
        return frozenset(range(depth))
    return frozenset(int(part) for part in str(listed).split(",") if part.strip().isdigit())


def micro_batch_size(spec: TrainingSpec) -> int:
    """Sets per device. The script states the global batch: a changed one, or a changed number of devices, counts."""
    micro = spec.fact("micro_batch_size")
    changed = any(
        fact is not None and fact.origin == OVERRIDE
        for fact in (spec.fact("global_batch_size"), spec.fact("world_size"))
    )
    if micro is not None and (micro.origin == OVERRIDE or not changed):
        return micro.value  # type: ignore[no-any-return]
    return -(-spec["global_batch_size"] // spec.get("world_size", 1))  # type: ignore[no-any-return]


def record(spec: TrainingSpec, symbolic: bool = False) -> Recording:
    """The step as XLA fuses it."""
    return _record(spec, symbolic, fuse=True)


def upper(spec: TrainingSpec, folded: bool) -> Tape | Folded:
    """For the high end of the interval, the step with every array of the jaxpr in memory."""
    found = _record_folded(spec, fuse=False) if folded else None
    return (found or _record(spec, False, fuse=False)).whole


def record_folded(spec: TrainingSpec, symbolic: bool) -> Recording | None:
    """The recording of a step of many passes, which do all the same; None where it has to be recorded in full, as it
    has to be for formulas: these sum over storages, and of so many passes there are none."""
    if symbolic and spec["sample_size"] < WITHOUT_FORMULAS:
        return None
    return _record_folded(spec, fuse=True)


def _record_folded(spec: TrainingSpec, fuse: bool) -> Recording | None:
    passes = spec["sample_size"]
    if passes < WORTHWHILE:
        return None
    one, two = (_record(spec.replaced({RECORDED_PASSES: count}), False, fuse) for count in (SHORT, SHORT + 1))
    found = fold(one.tape, two.tape, passes - SHORT)
    return None if found is None else one._replace(folded=found)


def _record(spec: TrainingSpec, symbolic: bool, fuse: bool) -> Recording:
    """One step of the jitted training function on one device, then one evaluation batch.

    ``jax.pmap`` is called without ``donate_argnums``, so the new parameters, moments and EMA are written beside the
    old ones: 16 bytes per parameter, twice. XLA takes the buffers of all results when the step begins. Gradients need
    no room of their own: each is built in the buffer that later holds the parameter's new value (the buffer
    assignment of the compiled step says so; with a donated state they would need room).
    """
    if symbolic:
        spec = symbolic_spec(spec)
    run = Settings(spec)
    tape = Tape(symbolic)
    tape.mark("setup")

    program = Program(run.dtype, symbolic)
    program.numbered = RECORDED_PASSES in spec
    model = FewShotDiffusion(program, run)
    parameters = program.parameters
    count = sum(program.sizes[array.var] for array in parameters) // float32.itemsize
    if symbolic:
        tape.parameter_counts = _parameter_counts(program)
    placed = {array.var for array in parameters}
    old = [_allocate(tape, program, array) for array in parameters]
    for component, name in STATE:
        old += _copy(tape, program, component, name)
    if spec.get(HYPER + "compute_fid", False):
        tape.allocate(INCEPTION_ELEMENTS * float32.itemsize, Label("helper_models", "inception_v3", "weights"))
        if tape.shapes is not None:
            tape.shapes[-1] = ((INCEPTION_ELEMENTS,), float32.itemsize)

    tape.mark("forward")
    images = program.input((run.sets, run.set_size, run.channels, run.image_size, run.image_size))
    placed.add(images.var)
    old.append(_allocate(tape, program, images))
    _copy(tape, program, "gradients", "gradient, then new value")
    for component, name in STATE:
        _copy(tape, program, component, f"new {name}")
    program.backward(model.loss(images))
    update = len(program.written)
    for array in parameters:
        gradient = program.cotangents.get(array.var)
        if gradient is not None:
            program.write(PLAIN, -1, gradient)
            placed.add(gradient)
    tape.saved_bytes = program.residual_bytes()
    program.run(tape, [(program.forward_end, "backward"), (update, "optimizer_step")], placed, fuse)

    for number in old:
        tape.free(number)
    if spec.get("evaluation_batch_size"):
        tape.mark("evaluation")
        _evaluate(tape, spec, run, symbolic)
    return Recording(
        tape,
        parameters=count,
        trainable_parameters=count,
        framework="jax",
        has_matmul=True,
        has_convolution=True,
    )


def saved_bytes(spec: TrainingSpec) -> int:
    """What ``jax.vjp`` of the loss holds, without the rest of the step."""
    passes = spec["sample_size"]
    if passes >= WORTHWHILE and RECORDED_PASSES not in spec:
        one, two = [int(saved_bytes(spec.replaced({RECORDED_PASSES: count}))) for count in (SHORT, SHORT + 1)]
        return one + (int(passes) - SHORT) * (two - one)  # every pass between the first and the last keeps the same
    run = Settings(spec)
    program = Program(run.dtype)
    model = FewShotDiffusion(program, run)
    images = program.input((run.sets, run.set_size, run.channels, run.image_size, run.image_size))
    program.backward(model.loss(images))
    return program.residual_bytes()


# The training state beside the parameters: (component, what it is), a copy of every parameter each.
STATE = (("optimizer", "first moment"), ("optimizer", "second moment"), ("ema", "average"))


def _parameter_counts(program: Program) -> list[tuple[str, int, int]]:
    """Of every module down to the fourth level, all of them trained; numbered layers have the same counts again."""
    elements: dict[str, int] = {}
    for array in program.parameters:
        parts = program.labels[array.var].module.split(".")
        for depth in range(1, min(len(parts), 4) + 1):
            if parts[depth - 1][-1:].isdigit():
                break
            path = ".".join(parts[:depth])
            elements[path] = elements.get(path, 0) + program.sizes[array.var] // float32.itemsize
    return [(path, int(count), int(count)) for path, count in elements.items()]


def _allocate(tape: Tape, program: Program, array: Array) -> int:
    number = tape.allocate(program.sizes[array.var], program.labels[array.var])
    if tape.shapes is not None:
        tape.shapes[number] = (array.shape, array.dtype.itemsize)
    return number


def _copy(tape: Tape, program: Program, component: str, name: str) -> list[int]:
    """Another array for every parameter, module by module."""
    elements: dict[str, int] = {}
    for array in program.parameters:
        module = program.labels[array.var].module
        elements[module] = elements.get(module, 0) + prod(array.shape)
    numbers = []
    for module, count in elements.items():
        numbers.append(tape.allocate(int(count) * float32.itemsize, Label(component, module, name)))
        if tape.shapes is not None:
            tape.shapes[-1] = ((count,), float32.itemsize)
    return numbers


def _evaluate(tape: Tape, spec: TrainingSpec, run: Settings, symbolic: bool) -> None:
    """The loss of one evaluation batch, not split: the evaluation loop runs outside ``pmap``, on the first device."""
    program = Program(run.dtype, symbolic)
    program.tracking = False
    model = FewShotDiffusion(program, run)
    shape = (spec["evaluation_batch_size"], run.set_size, run.channels, run.image_size, run.image_size)
    images = program.input(shape)
    number = _allocate(tape, program, images)
    loss = model.loss(images)
    program.write(PLAIN, -1, loss.var)
    program.run(tape, [], program.inputs)
    tape.free(number)
