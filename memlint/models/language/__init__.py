"""Language models by the contents of their ``config.json``, as Hugging Face transformers trains them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memlint.architectures import huggingface
from memlint.architectures.decoder import REMOTE, Decoder, checked
from memlint.architectures.sizes import ROWS, Sizes, check, in_its_words
from memlint.facts.spec import HYPER, Name, TrainingSpec
from memlint.meta import optim, optim_narrow
from memlint.meta.amp import to
from memlint.meta.autograd import no_grad
from memlint.meta.checkpoint import EVERY_OTHER_PRODUCT, recompute
from memlint.meta.nn import Module
from memlint.meta.tensor import DTYPES, DType, Tensor, default_dtype, float32, state
from memlint.models import UnknownModel, cards, split
from memlint.models.depth import Stack, shortened, stack_of
from memlint.models.language import (
    adapters,
    codes,
    experts,
    log_probabilities,
    losses,
    preference,
    quantisation,
)
from memlint.models.language.attention import WIDEST_GROUPED_HEAD
from memlint.models.language.decoder import LanguageModel, replace_linears
from memlint.models.language.parts import HYBRID_ATTENTION, HYBRID_PACKED
from memlint.models.system import System
from memlint.named_tuple import NamedTuple

LIBRARY = "the step of transformers, torchtune, torchtitan, litgpt, Megatron or DeepSpeed, of whichever release"

# More tokens in a sample than any model was made for, and more in a batch than 32 bits number: a slip of the keyboard.
MOST_TOKENS, MOST_NUMBERED = 1 << 24, 1 << 31


class Batch(NamedTuple):
    """What the data collator makes: (B, S) int64 each."""

    tokens: Tensor
    attention_mask: Tensor
    labels: Tensor


class Task(NamedTuple):
    """A model with what it is given and asked.

    evaluate  (rows, tokens) -> logits of a batch, without gradients
    heads     modules that are never quantised (``get_keys_to_not_convert``)
    saved     modules that train in full beside an adapter, whatever the config names
    unused    parameters that never get a gradient, or what finds them once adapters are there
    helpers   models that do not train (a reference)
    """

    model: Any
    config: Any
    batch: Callable[[], Any]
    loss: Callable[[Any], Tensor]
    evaluate: Callable[[int, int], Any]
    heads: tuple[str, ...] = ("lm_head",)
    saved: tuple[str, ...] = ()
    unused: Sequence[Tensor] | Callable[[], Sequence[Tensor]] = ()
    helpers: tuple[Module, ...] = ()

    def adapting(self, spec: TrainingSpec) -> TrainingSpec:
        """The run with the modules that PEFT saves for this task."""
        if not self.saved or spec.get("tuning", "full") == "full":
            return spec
        named = spec.get("lora.modules_to_save") or ()
        named = (named,) if isinstance(named, str) else tuple(named)
        return spec.replaced({"lora.modules_to_save": (*named, *(n for n in self.saved if n not in named))})


def build(spec: TrainingSpec) -> System:
    """The System of ``architecture = "language_model"``. Facts: ``docs/facts.md``.

    Raises UnknownModel where the model, a size, or a way of computing is not known.
    """
    compute, weights = spec.get("compute_dtype", "float32"), _stored_dtype(spec)
    autocast = compute in ("bfloat16", "float16") and (spec.get("autocast", False) or weights == "float32")
    optimizer = _optimizer(spec)
    state.softmax_keeps_input = spec.does("torch.softmax_keeps_its_input")
    state.without_flash = cards.without_flash(spec)
    task = _task(spec, DTYPES[weights], autocast)
    model = task.model
    whole_bytes = _whole_bytes(spec, model) if _is_quantised(spec) else 0
    let_go = _quantise(model, spec, DTYPES[compute], task.heads)
    for part in spec.get("float32_parts") or ():
        quantisation.widen_part(model, part)
    after_backward = _by_its_own_loop(spec, model)
    brought = None
    if getattr(task.config, "sinks", False):
        from memlint.models.language import loading  # GPT-OSS alone

        brought = loading.loading(spec, model)
    adapters.adapt(model, task.adapting(spec), task.config)
    if spec.get("fused_kernels"):
        from memlint.models.language import fused  # other runs do without

        fused.fuse(model, spec, task.config)
    unoptimised = task.unused() if callable(task.unused) else task.unused
    if _quantised_by_litgpt(spec) and spec.does("litgpt.stable_embedding"):
        from memlint.models.language import litgpt  # other runs do without

        unoptimised = litgpt.replace_embedding(model)
    return System(
        model=model,
        batch=task.batch,
        loss=task.loss,
        optimizer=optimizer,
        optimizer_options=_optimizer_options(spec),
        accumulation=spec.get("gradient_accumulation_steps", 1),
        autocast=DTYPES[compute] if autocast else None,
        offloads=bool(spec.get("activation_offloading", False)),
        master_weights=_has_masters(spec),
        optimizer_in_backward=bool(spec.get("optimizer_in_backward", False)) and not _spread(spec),
        ema=(model,) if spec.get("ema", False) else (),
        helpers=task.helpers,
        evaluate=_evaluation(spec, task, DTYPES[compute] if autocast else None),
        generate=_generation(spec, task, DTYPES[compute]),
        hand_over=_hand_over(spec, task.model),
        keeps_gradients=_keeps_gradients(spec),
        in_flight=split.in_flight(spec, ""),
        unused=unoptimised,
        loading=brought,
        let_go=let_go,
        warmed_bytes=_warmed_bytes(spec, whole_bytes),
        after_backward=after_backward,
    )


def _by_its_own_loop(spec: TrainingSpec, model: Any) -> Callable[[], None] | None:
    """A loop of the program's own, or one that keeps the model's outputs, in the place of the model's plain loss; what
    such a loop does behind its backward pass."""
    if spec.get("loop") and isinstance(model, LanguageModel) and not preference.applies(spec):
        from memlint.models.language import loops  # hand-written loops alone

        in_float32 = spec.get("outputs_kept") == "float32"
        return loops.follow(model, spec["loop"], in_float32, bool(spec.get("keys_cached", True))).after_backward
    if spec.get("outputs_kept", False) and isinstance(model, LanguageModel) and not preference.applies(spec):
        from memlint.models.language import outputs  # the Trainer's runs do without

        outputs.keep(model, spec["outputs_kept"] == "float32")
    return None


def _quantised_by_litgpt(spec: TrainingSpec) -> bool:
    return spec.get("implementation") == "litgpt" and spec.get("quantization.bits") is not None


def _keeps_gradients(spec: TrainingSpec) -> bool:
    """Whether gradients are written over with zeros rather than let go."""
    if spec.get("gradients_kept") is not None:
        return bool(spec["gradients_kept"])
    if not spec.does("torch.keeps_gradients_as_zeros"):
        return False
    return spec.get("transformers_version") is None or not spec.does("transformers.releases_gradients")


def uncompiled(spec: TrainingSpec) -> TrainingSpec:
    """The same run where the compiler fuses nothing: as much memory as it can take."""
    return spec.replaced({"compile": False, "compile_loss": False})


def _task(spec: TrainingSpec, dtype: DType, autocast: bool) -> Task:
    """The model with what it is given and asked. What would change most of the estimate, and is not known here, is
    better said than passed over."""
    kind = spec.get("model_class", "causal_lm")
    if kind != "causal_lm" or (spec.get("method") == "rerank" and not spec.get("row_output")):
        from memlint.models.language import tasks  # decoders do without

        return tasks.task(kind, spec, dtype, autocast)
    if spec.get("row_output"):
        from memlint.models.language import rows as of_rows  # most runs ask for tokens

        return of_rows.task(spec, described(spec), dtype, autocast)
    config = _config(spec)
    model = language_model(spec, config, dtype, autocast)
    model.smooths = smooths_labels(spec)
    rows = spec["micro_batch_size"] * spec.get("sequences_per_sample", 1)
    length = sequence_length(spec)
    made = lambda kept: language_model(spec, config, kept, autocast)  # noqa: E731
    loss, evaluate, helpers = asked(spec, model, made, dtype, _batch)
    return Task(model, config, lambda: _batch(rows, length), loss, evaluate, helpers=helpers)


Asked = tuple[Callable[[Any], Tensor], Callable[[int, int], Any], tuple[Module, ...]]


def asked(
    spec: TrainingSpec,
    model: LanguageModel,
    made: Callable[[DType], LanguageModel],
    dtype: DType,
    batch: Callable[[int, int], Any],
) -> Asked:
    """What a decoder's method makes of a batch that has tokens and labels: its loss, what evaluation asks for, and the
    models beside it.

    made   the model once more, with weights of a dtype: a reference
    batch  (rows, tokens) -> one to evaluate
    """

    def plainly(given: Any) -> Tensor:
        out: Tensor = model(given.tokens, given.labels)
        return out

    loss: Callable[[Any], Tensor] = plainly
    helpers: tuple[Module, ...] = ()
    if preference.applies(spec):
        copied = preference.reference(spec, made, dtype)
        for one in (model, *(() if copied is None else (copied,))):
            one.logits_to_keep = spec.get("logits_to_keep", 0)
        helpers = () if copied is None else (copied,)
        loss = preference.loss(spec, model, copied)

    if spec.get("resident_models"):
        from memlint.models.language import resident  # most runs have none

        helpers = (*helpers, resident.states(spec))

    def evaluate(rows: int, length: int) -> Tensor:
        given = batch(rows, length)
        way = spec.get("log_probabilities")
        # asked for once more before the model learns from them, or in evaluation as in training
        if way in log_probabilities.ASKED_AGAIN or (way is not None and spec.get("evaluation_loss") == "as_trained"):
            with no_grad():
                labels = preference.asked_for(spec, given.labels)
                scores: Tensor = model.log_probabilities(given.tokens, labels, way)
                return scores
        # the trainer does there as it does in training: in tiles (TRL's add_fused_lm_head), or by Liger's loss
        if model.tile is not None or spec.get("evaluation_loss") == "as_trained":
            with no_grad():
                loss: Tensor = model(given.tokens, given.labels)
                return loss
        _, logits = model.evaluate(given.tokens, given.labels)
        return logits

    return loss, evaluate, helpers


def smooths_labels(spec: TrainingSpec) -> bool:
    """Whether transformers' Trainer takes the loss from the model, and smooths its labels itself."""
    return spec.get("implementation", "transformers") == "transformers" and bool(
        spec.get("hyperparameters.label_smoothing")
    )


def _stored_dtype(spec: TrainingSpec) -> str:
    """Of the weights as they were loaded; those that an adapter trains have a dtype of their own."""
    weights: str = spec.get("parameter_dtype", "float32")
    if spec.get("tuning", "full") == "full" and spec.get("quantization.bits") is None:
        return weights
    return spec.get("frozen_dtype", weights)  # type: ignore[no-any-return]


def _is_quantised(spec: TrainingSpec) -> bool:
    return spec.get("quantization.bits") is not None


def _whole_bytes(spec: TrainingSpec, model: Module) -> int:
    """Of all weights of the model, deep as it is."""
    from memlint.models import depth

    return sum(parameter.nbytes for parameter in depth.as_deep(spec, model, model.parameters()))


def _warmed_bytes(spec: TrainingSpec, whole_bytes: int) -> int:
    """What transformers takes at once before it loads a model that it quantises, of which ``whole_bytes`` are the
    weights as they were: half of them (``get_accelerator_warm_up_factor``), whatever becomes of them."""
    if not whole_bytes or spec.get("implementation", "transformers") != "transformers":
        return 0
    if spec.get("parallelism.strategy", "none") not in ("none", "ddp"):
        return 0  # such loaders bring weights to the host
    if spec.get("quantization.experts", False):
        return 0  # Axolotl 0.18, monkeypatch/moe_quant.py: what takes it is switched off
    if (spec.get("quantization.kind") or "nf4") not in ("nf4", "fp4", "int8"):
        return 0  # other quantisers say their own factor
    return whole_bytes // 2 if spec.does("transformers.warms_half_of_a_quantised_model") else 0


def _quantise(model: Module, spec: TrainingSpec, compute: DType, heads: Sequence[str]) -> list[int]:
    """Every linear layer but the head, as transformers has it (``get_keys_to_not_convert``); of litgpt's, all. Returns
    the storages that are on the card while it loads, and leave gaps."""
    if not _is_quantised(spec):
        return []
    if spec.get("tuning", "full") == "full":
        raise UnknownModel("quantised weights cannot be trained without an adapter")
    made = quantisation.layer(spec, compute)
    if _quantised_by_litgpt(spec):
        heads = ()
    left = (*getattr(model, "unquantised", ()), *(spec.get("quantization.skipped") or ()))
    replace_linears(
        model,
        lambda name, base: None if name.partition(".")[0] in heads or name.rpartition(".")[2] in left else made(base),
    )
    _list_experts(model, spec, made)
    if spec.get("quantization.prepared", False) and not _cast_by_deepspeed(spec):
        return quantisation.widen(model)
    return quantisation.widen_and_narrow(model) if spec.get("quantization.prepared_and_back", False) else []


def _list_experts(model: Module, spec: TrainingSpec, made: Callable[[Any], Module]) -> None:
    """Experts that are linear layers before transformers 5 are quantised as such, later ones where a key says so."""
    mixtures = [mixture for layer in getattr(model, "layers", ()) if (mixture := experts.mixture_of(layer)) is not None]
    if spec.does("transformers.experts_are_one_tensor"):
        if spec.get("quantization.experts", False):
            from memlint.models.language import packed_experts  # most runs do without

            packed_experts.pack(mixtures, spec)
        return
    mixtures = [mixture for mixture in mixtures if getattr(mixture.experts, "apart", False)]
    if not mixtures:
        return
    from memlint.models.language import listed_experts  # most runs do without

    for mixture in mixtures:
        mixture.experts = listed_experts.listed(mixture.experts, made)


def _cast_by_deepspeed(spec: TrainingSpec) -> bool:
    """Whether its engine brings the whole module to 16 bits, whoever widened parts of it before (DeepSpeed 0.14.4,
    runtime/engine.py: _configure_distributed_model)."""
    zero = spec.get("parallelism.strategy") == "zero" and not spec.get("autocast", False)
    return zero and spec.get("compute_dtype") in ("bfloat16", "float16") and bool(spec.get("master_weights", False))


def attention(spec: TrainingSpec, dtype: DType, autocast: bool) -> str:
    """Which implementation computes it. Raises UnknownModel for one that is not known, or cannot take the dtype."""
    kind: str = spec.get("attention", "sdpa")
    if kind not in ("eager", "sdpa", "flash", "xformers", HYBRID_ATTENTION):
        raise UnknownModel(f"{spec.spelled('attention')} is {kind!r}, an implementation that is not known")
    if kind in ("flash", HYBRID_ATTENTION) and dtype.itemsize != 2 and not autocast:
        raise UnknownModel(f"FlashAttention takes bfloat16 and float16, not {dtype.name}")
    return kind


def language_model(spec: TrainingSpec, config: Decoder, dtype: DType, autocast: bool) -> LanguageModel:
    """The modules alone."""
    parts = spec.get("checkpointing_modules") if spec.get("checkpointing") == "full" else None
    if parts:
        model = language_model(spec.replaced({"checkpointing": "none"}), config, dtype, autocast)
        for layer in model.layers:
            for part in (getattr(layer, name, None) for name in parts):
                if isinstance(part, Module):
                    recompute(part)
        return model
    kind = attention(spec, dtype, autocast)
    if kind == "sdpa" and (config.score_cap or config.sinks):
        kind = "eager"  # SDPA has no place for a cap or a sink: transformers refuses it
    if kind == "sdpa" and kind not in config.kernels:
        kind = "eager"  # what transformers takes unless it is told to: it refuses the others
    implementation = spec.get("implementation", "transformers")
    if kind == "flash" and config.code in REMOTE and kind not in config.kernels:
        kind = "eager"  # such code does not ask
    if kind == HYBRID_ATTENTION:
        if config.code != "gemma4":
            raise UnknownModel(f"FlashAttention for some layers is not known for {config.adapters.name}")
        kind = HYBRID_PACKED if spec.get("padding_free") else kind
    if kind == "flash" and kind not in config.kernels and implementation == "transformers":
        raise UnknownModel(f"transformers has no FlashAttention for {config.adapters.name}")
    grouped = implementation == "transformers" and config.key_value_heads != config.heads
    if kind == "sdpa" and grouped and not spec.does("transformers.grouped_heads_in_sdpa"):
        kind = "sdpa_repeated"
    wide = config.unequal is not None and config.unequal.head_dim > WIDEST_GROUPED_HEAD
    if kind == "sdpa" and wide and not spec.does("transformers.repeats_wide_heads_for_sdpa"):
        kind = "sdpa_grouped"
    loss = spec.get("loss", "full")
    if loss not in ("full", "chunked", "fused", "in_forward", "outputs", "shifted", "named", "copied"):
        raise UnknownModel(f"the loss {loss!r} is not known")
    if loss == "fused" and "cut_cross_entropy" in (spec.get("fused_kernels") or ()):
        loss = "cut"
    options = {
        "checkpointed": checkpointed(spec),
        "reentrant": spec.get("checkpointing_reentrant", False),
        "padded": spec.get("padding", False),
        "loss": loss,
        "chunks": spec.get("loss_rows", 0) if loss == "outputs" else spec.get("loss_chunks") or losses.CHUNKS,
        "compile": bool(spec.get("compile", False)),
        "compile_loss": bool(spec.get("compile_loss", spec.get("compile", False))),
        "policy": EVERY_OTHER_PRODUCT if spec.get("checkpointing") == "selective" else None,
    }
    if spec.get("loss_tile") is not None:
        options["tile"] = tuple(spec["loss_tile"])
    with default_dtype(dtype):
        return codes.decoder(spec, config, kind, options)


def contents_of(spec: TrainingSpec) -> Sizes:
    """Of the model's ``config.json``."""
    stated = spec.fact("hyperparameters.config")
    config = None if stated is None else stated.value
    if stated is None or not isinstance(config, Mapping):
        name = spec.get("model")
        what = "the model" if name is None else f"the model {name!r}"
        raise UnknownModel(spec.unknown_reason or f"{what} is known neither by its config.json nor by the catalogue")
    return Sizes(config, stated.reason)


def described(spec: TrainingSpec) -> Decoder:
    """The whole model, as its trainer's dialect or its ``config.json`` describes it."""
    stated = spec.fact("decoder")
    return huggingface.decoder(contents_of(spec)) if stated is None else checked(stated.value, stated.reason)


def _config(spec: TrainingSpec) -> Decoder:
    """What one device computes of it."""
    stated = spec.fact("decoder") or spec.fact("hyperparameters.config")
    try:
        return fitted(spec, described(spec))
    except UnknownModel as error:
        raise UnknownModel(in_its_words(spec, str(error), "" if stated is None else stated.reason)) from None


def fitted(spec: TrainingSpec, found: Decoder) -> Decoder:
    """With the rows that the run's vocabulary has, divided as the run divides it, and as deep as it is recorded."""
    rows = spec.get("vocabulary_size")
    if rows is not None:
        check(spec.spelled("vocabulary_size"), rows, ROWS)
    found = split.divide(spec, found if rows is None else found._replace(vocabulary=rows))
    return shortened(spec, found)


# Facts under which all layers do the same: values that are known to leave it so, the first of which is what no fact
# means. Any other value, and whatever goes by the number of a layer, may not.
_EQUAL_WITH: dict[Name, tuple[Any, ...]] = {
    "model_class": ("causal_lm", "embeddings"),
    "implementation": ("transformers", *(name for name in codes.LIBRARIES if name != "llm_foundry")),
    "checkpointing": ("none", "full", "selective"),
    "checkpointing_chunk": (1,),
    "activation_offloading": (False,),
    "parallelism.strategy": ("none", "ddp", "zero", "fsdp1", "fsdp2"),
    "parallelism.zero_redundancy": (False,),
    "parallelism.wrap_elements": (0,),
    "parallelism.pipeline": (1,),
    "parallelism.expert": (1,),
}
# Tuning that goes by the numbers of layers, or has one tensor for all of them.
_UNEQUAL_TUNING = ("freeze", "prefix", "adaption_prompt")


def stack(spec: TrainingSpec) -> Stack:
    """How the model's layers repeat, where what a run does goes by how they are built alone."""
    for name, values in _EQUAL_WITH.items():
        value = spec.get(name)
        if value is not None and value not in values:
            return Stack()
    tuning = spec.get("tuning", "full")
    if tuning in _UNEQUAL_TUNING or (tuning != "full" and spec.get("parallelism.strategy") == "zero"):
        return Stack()
    if any(character.isdigit() for pattern in spec.get("freeze.patterns") or () for character in pattern):
        return Stack()
    if not all(_is_name(spec.get(name)) for name in ("lora.targets", "oft.targets", "lora.modules_to_save")):
        return Stack()
    if spec.get("model_class") == "embeddings":
        from memlint.architectures.kinds import described as described_as  # decoders with a head do without

        if not isinstance(described_as(contents_of(spec), "embeddings"), Decoder):
            return Stack()
    return stack_of(_config(spec))


def _is_name(targets: Any) -> bool:
    """Whether modules are meant by names that say nothing of a layer's number: not by paths or regular expressions."""
    if targets is None or targets == "all-linear":
        return True
    return not isinstance(targets, str) and all(name == "all-linear" or name.isidentifier() for name in targets)


def sequence_length(spec: TrainingSpec) -> int:
    length = spec.get("sequence_length")
    if length is None:
        raise UnknownModel("nothing bounds the length of a sample")
    rows = spec.get("micro_batch_size") or 1
    if length > MOST_TOKENS or rows * length > MOST_NUMBERED:
        batch, tokens = spec.spelled("micro_batch_size"), spec.spelled("sequence_length")
        raise UnknownModel(f"{tokens} {length:,} x {batch} {rows:,}: so many tokens at once are not built")
    return length  # type: ignore[no-any-return]


def checkpointed(spec: TrainingSpec) -> int:
    """Every how many layers one is recomputed; 0 for none."""
    kind = spec.get("checkpointing", "none")
    if kind == "none":
        return 0
    if kind in ("full", "selective") or (kind == "blocks" and spec.get("checkpointing_layers") is not None):
        return 1
    if kind == "every":
        return max(int(spec.get("checkpointing_every", 1)), 1)
    raise UnknownModel(f"checkpointing {kind!r} is not known for language models")


def _batch(rows: int, length: int) -> Batch:
    return Batch(*(losses.token_numbers(rows, length) for _ in range(3)))


def _evaluation(spec: TrainingSpec, task: Task, autocast: DType | None) -> Any:
    """One evaluation batch, as the Trainer runs it: in whole logits, of which accelerate makes fp32 under autocast."""
    rows = spec.get("evaluation_batch_size")
    if rows is None:
        return None
    rows *= spec.get("sequences_per_sample", 1)
    # 0: every input is of one size
    length = spec.get("evaluation_sequence_length") or spec.get("sequence_length") or 0

    def evaluate() -> Any:
        _set_training(task.model, False)
        logits = task.evaluate(rows, length)
        if autocast is None:
            return logits
        if isinstance(logits, Tensor):
            return to(logits, float32)
        return tuple(to(part, float32) for part in logits)

    return evaluate


def _generation(spec: TrainingSpec, task: Task, dtype: DType) -> Callable[[], None] | None:
    """What is sampled from a decoder before it learns from it."""
    if not spec.get("generated_rows"):
        return None
    from memlint.models.language import generation

    return generation.generation(spec, task.model, task.config, dtype)


def _hand_over(spec: TrainingSpec, model: Any) -> Callable[[], None] | None:
    """The weights on their way to an engine that generates, where ZeRO 3 shares them."""
    if not spec.get("engine_gets_whole_model", False) or spec.get("parallelism.zero_stage") != 3 or not _spread(spec):
        return None
    from memlint.models.language import generation

    return generation.hand_over(spec, model)


def _set_training(model: Module, training: bool) -> None:
    for module in model.modules():
        module.training = training


def _optimizer(spec: TrainingSpec) -> str:
    """The key of memlint.meta.optim.OPTIMIZERS. Raises UnknownModel."""
    name, library = spec.get("optimizer", "adamw"), spec.get("optimizer_library", "torch")
    found = optim.known(name, library)
    if not found:
        raise UnknownModel(f"the optimizer {name!r} is not known")
    if name.startswith(("galore", "apollo", "lomo", "adalomo", "grokadamw")) and _spread(spec):
        raise UnknownModel(f"the optimizer {name!r} over states that devices share is not known")
    return found


def _optimizer_options(spec: TrainingSpec) -> dict[str, Any]:
    name = spec.get("optimizer", "adamw")
    kind = optim.OPTIMIZERS[_optimizer(spec)]
    options: dict[str, Any] = {"implementation": spec.get("optimizer_implementation") or "foreach"}
    stated = spec.get("optimizer_state_dtype")
    if stated in DTYPES:
        options["state_dtype"] = DTYPES[stated]
    if name in ("adagrad", "rmsprop", "sgd") and kind in (optim.SGD, optim.Adagrad, optim.RootOfSquares):
        options["weight_decay"] = bool(spec.get(HYPER + "weight_decay", 0))
    if kind is optim.SGD:
        options["momentum"] = bool(spec.get(HYPER + "momentum", 0))
    if name.startswith(("galore", "apollo")):
        if not spec.get("optimizer_targets"):
            raise UnknownModel(f"optim_target_modules is not stated: {name} projects the gradients of these")
        options["targets"], options["rank"] = spec["optimizer_targets"], spec.get("optimizer_rank", 128)
    if name == "adam_mini":
        config = described(spec)
        options["head_numbers"] = config.width * config.width // config.heads
    if issubclass(kind, optim_narrow.BitsAndBytes):
        options["paged"] = bool(spec.get("optimizer_paged", False))
    return options


def _spread(spec: TrainingSpec) -> bool:
    """Whether states are sharded: then gradients, and copies in fp32, are memlint.models.parallel's."""
    return spec.get("parallelism.strategy", "none") not in ("none", "ddp")


def _has_masters(spec: TrainingSpec) -> bool:
    own = spec.get("optimizer_library") == "nanotron"  # (memlint.models.parallel.nanotron)
    return bool(spec.get("master_weights", False)) and not own and not _spread(spec)
