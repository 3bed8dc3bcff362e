"""Family verl: its supervised trainers, and the policies of PPO and its kin beside an engine that generates, on FSDP;
and EasyR1, which grew out of it.

Programs of verl read one Hydra config each, and most of what memory depends on is a default of these. States are
sharded in the dtype that the model is loaded in, float32 unless a key says otherwise, and gathered in bfloat16.
"""

from __future__ import annotations

from typing import Any

from memlint.architectures import huggingface
from memlint.architectures.sizes import Sizes
from memlint.dialects import language_model as lm
from memlint.dialects import launchers, registry, verl_images, verl_programs
from memlint.dialects import trainer_families as families
from memlint.dialects.accelerate import truth
from memlint.documents.node import Document, Node
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import ASSUMED, HYPER, Fact, Name, OnTop, TrainingSpec, UnknownModel, named
from memlint.named_tuple import NamedTuple

_VERSION = "verl 0.9"


class Loop(NamedTuple):
    """What a program of verl takes where nothing is written.

    title     whose defaults they are
    method    what is trained for
    strategy  what shards
    fills     micro batches are filled up to a number of tokens
    tokens    that number
    rows      samples per device and pass, otherwise; 0: none
    pads      samples are padded to the longest length
    devices   of a machine, where the program starts its own workers; 0: torchrun starts it
    policy    what it trains generates, is asked for log-probabilities, and learns from a reward
    facts     what else holds where nothing is written
    optimizer (module, class), or the program's own name for one
    allocator its setting of the caching allocator; "": what verl's release sets
    estimator of advantages
    critic    whether the model of values that an estimator may ask for is described
    reference of the policy, whether it is on the card
    pixels    that an image is made to have at most; 0: it is as large as it comes
    """

    title: str
    method: str
    strategy: str
    fills: bool
    tokens: int
    rows: int
    pads: bool
    devices: int
    policy: bool = False
    facts: tuple[tuple[Name, Any], ...] = ()
    optimizer: tuple[str, str] = ("torch.optim", "AdamW")
    allocator: str = ""
    estimator: str = "grpo"
    critic: bool = True
    reference: bool = False
    pixels: int = 0


_OLDER_SFT = Loop("verl 0.7: sft_trainer.yaml", "sft", "fsdp2", False, 0, 4, True, 0)
_SFT = Loop(f"{_VERSION}: sft_trainer_engine.yaml", "sft", "fsdp", True, 8192, 4, False, 0)
_RL = Loop(*(f"{_VERSION}: ppo_trainer.yaml", "grpo", "fsdp", False, 16384, 0, False, 8), policy=True, estimator="gae")
# hiyouga/EasyR1 at b44b311: verl/workers/{actor,rollout}/config.py, fsdp_workers.py and trainer/main.py
_EASY = Loop(
    *("EasyR1: workers/actor/config.py", "grpo", "fsdp", False, 0, 4, False, 8),
    policy=True,
    facts=(
        (HYPER + "asked_rows", 16),
        ("lora.alpha", 64.0),
        ("lora.targets", "all-linear"),
        (HYPER + "offload_parameters", False),
        (HYPER + "offload_optimizer", False),
        ("engine_share", 0.6),
        ("optimizer_implementation", "fused"),
    ),
    optimizer=("", "adamw"),
    allocator="expandable_segments:False",
    critic=False,
    reference=True,
    pixels=4194304,  # trainer/config.py: DataConfig.max_pixels
)
_SHARDS = {"fsdp": "fsdp1", "fsdp2": "fsdp2"}
# verl/workers/config/optimizer.py: (module, class) -> the optimizer, and whose it is
_OPTIMIZERS = {
    ("torch.optim", "AdamW"): ("adamw", "torch"),
    ("torch.optim", "Adam"): ("adam", "torch"),
    ("torch.optim", "SGD"): ("sgd", "torch"),
    ("bitsandbytes.optim", "AdamW8bit"): ("adamw_8bit", "bitsandbytes"),
    # EasyR1's own names: workers/fsdp_workers.py
    ("", "adamw"): ("adamw", "torch"),
    ("", "adamw_bf16"): ("adamw_compensated", "EasyR1"),
}


def recognise(document: Document, root: Node) -> bool:
    """A policy that is only asked to answer trains nothing."""
    only = root.get("trainer.val_only")
    return only is None or not truth(only.value)


def loop(spec: TrainingSpec) -> Loop:
    """Which program runs, by its keys or its name."""
    if spec.root.get("worker") is not None:
        return _EASY
    if spec.root.get("actor_rollout_ref") is not None:
        return _RL
    model = spec.root.get("model")
    older = model is not None and model.get("partial_pretrain") is not None
    if older or families.program(spec) == "fsdp_sft_trainer":
        return _OLDER_SFT
    return _SFT._replace(devices=1) if families.program(spec).endswith("_ray") else _SFT


def _unwritten(spec: TrainingSpec) -> None:
    """What a program takes where nothing is written, in the words of the rest."""
    found = loop(spec)
    for name, value in found.facts:
        known = spec.fact(name)
        if known is None or known.node is None:
            lm.put(spec, name, value, known, found.title)


def _elsewhere(spec: TrainingSpec) -> str:
    """Why no GPU's memory is what matters, or the engine that trains is not known."""
    device = spec.fact(HYPER + "device")
    if device is not None and device.value not in ("cuda", None):
        return f"{device.key} {device.value}: the run is not on a GPU"
    for name in ("config_name", "model_engine", "strategy"):
        stated = spec.fact(HYPER + name)
        word = "" if stated is None else str(stated.value)
        for other in ("megatron", "veomni", "torchtitan", "mindspeed"):
            if stated is not None and other in word.lower():
                return f"{stated.key} {word}: verl's workers on {other} are not known"
    stated = spec.fact(HYPER + "config_name")
    if stated is not None and spec.document.format == "shell" and not _is_own(str(stated.value)):
        return f"{stated.key} {stated.value}: a file that is not found, and sets what no word of the command does"
    doubt = verl_images.parts(spec)
    if doubt:
        return doubt
    if lm.setting(spec, "engine") == "hf":
        return OnTop("actor_rollout_ref.rollout.name hf: what the model itself generates with is not known")
    return families.otherwise(spec) or (verl_programs.doubt(spec) if loop(spec) is _RL else "")


def _is_own(name: str) -> bool:
    return name.removesuffix(".yaml") in registry.dialect("verl").header["primary"]


def _method(spec: TrainingSpec) -> None:
    lm.put(spec, "method", loop(spec).method, spec.fact(HYPER + "adv_estimator"), loop(spec).title)
    lm.put(spec, "reference_model", "none", spec.fact(HYPER + "use_kl_loss"), "a reference is in host memory")
    own = verl_programs.own_policy(spec) if loop(spec) is _RL else ""
    if own:
        reason = f"{own}, a class of the program's own, is taken to update the policy as verl's worker does"
        spec.facts["method"] = spec.facts["method"]._replace(origin=ASSUMED, reason=reason)


def _devices(spec: TrainingSpec) -> str:
    """How many there are, and how many of them share the states; hybrid where one group does not have them all."""
    found = loop(spec)
    started = launchers.processes(spec.launch)
    if found.devices and (found.policy or not started.distributed):  # Ray starts its workers, whatever starts it
        nodes, each = spec.fact("machines"), spec.fact(HYPER + "per_node")
        if lm.gap(spec, "nnodes", "n_gpus_per_node") is None:
            count = (1 if nodes is None else nodes.value) * (found.devices if each is None else each.value)
            lm.put(spec, "device_count", count, each or nodes, "" if each or nodes else found.title)
            lm.put(spec, "world_size", count, each or nodes)
    else:
        lm.processes(spec)
    stated = spec.fact(HYPER + "strategy")
    older = found is _OLDER_SFT and not spec.does("verl.sft_shards_by_fsdp2")
    word = str(stated.value) if stated is not None else "fsdp" if older else found.strategy
    if word not in _SHARDS:
        return f"{stated.key if stated else 'strategy'} {word}: what shards the model is not known"
    lm.put(spec, "parallelism.strategy", _SHARDS[word], stated, "" if stated else found.title)
    lm.put(spec, "parallelism.reduce_dtype", "float32", reason=f"{_VERSION}: MixedPrecision, reduce_dtype")
    if word == "fsdp2" and not _tied(spec):
        lm.put(spec, "parallelism.wrap", ["layers", "Embedding"], stated, f"{_VERSION}: apply_fsdp2")
    size, count = spec.fact(HYPER + "fsdp_size"), spec.get("device_count", 1)
    if size is not None and 0 < size.value < count:
        if count % size.value:
            each = spec.fact("device_count")
            return f"{size.key} {size.value} does not divide {count} devices ({each.key if each else ''})"
        lm.put(spec, "parallelism.replicas", count // size.value, size)
    return ""


def _tied(spec: TrainingSpec) -> bool:
    try:
        return huggingface.decoder(Sizes(spec.get(lm.CONFIG) or {}, "")).tied
    except UnknownModel:
        return True


def _precision(spec: TrainingSpec) -> str:
    """One dtype for what trains and what does not: adapters are brought to that of their model."""
    stated, half = spec.fact(HYPER + "model_dtype"), spec.fact(HYPER + "dtype")
    dtype = "float32" if stated is None or stated.value is None else lm.dtype_of(stated.value)
    compute = "bfloat16" if half is None else lm.dtype_of(half.value)
    for fact, found in ((stated, dtype), (half, compute)):
        if fact is not None and not found:
            return f"{fact.key} {fact.value}: no dtype that is known"
    for name in ("parameter_dtype", "frozen_dtype", "lora.dtype"):
        lm.put(spec, named(name), dtype, stated, "" if stated else f"{_VERSION}: model_dtype")
    lm.put(spec, "compute_dtype", compute, half, f"{_VERSION}: torch.autocast")
    lm.put(spec, "autocast", True, reason=f"{_VERSION}: torch.autocast")
    return ""


def _adapters(spec: TrainingSpec) -> str:
    rank = spec.fact("lora.r")
    lm.put(spec, HYPER + "use_peft", rank is not None and bool(rank.value), rank)
    return lm.adapters(spec)


def _optimizer(spec: TrainingSpec) -> str:
    found, stated, module = loop(spec), spec.fact(HYPER + "optim"), spec.fact(HYPER + "optimizer_module")
    names = (
        found.optimizer[0] if module is None else module.value,
        found.optimizer[1] if stated is None else stated.value,
    )
    if names not in _OPTIMIZERS:
        return f"{'.'.join(str(name) for name in names if name)}: how many states it has is not known"
    for name, value in zip(("optimizer", "optimizer_library"), _OPTIMIZERS[names]):
        lm.put(spec, named(name), value, stated, "" if stated else found.title)
    return ""


def _checkpointing(spec: TrainingSpec) -> None:
    on = loop(spec) is not _OLDER_SFT or spec.does("verl.sft_checkpoints")
    families.unless_stated(spec, "checkpointing", "full" if on else "none", loop(spec).title)
    lm.put(spec, "checkpointing_reentrant", False, reason=f"{_VERSION}: use_reentrant")
    kind = spec.fact(HYPER + "attn_implementation")
    known = "flash" if kind is None or "flash" in str(kind.value) else str(kind.value)
    lm.put(spec, "attention", known, kind, f"{_VERSION}: flash_attention_2")


# ---------------------------------------------------------------------------------------------- tokens of a pass


_PASSES: tuple[Name, ...] = (
    *("micro_batch_size", "sequence_length", "sequence_bound", "padding_free"),
    *("gradient_accumulation_steps", "completion_length"),
)


def _unpadded(spec: TrainingSpec) -> bool:
    stated = spec.fact(HYPER + "removes_padding")
    if stated is not None and stated.value is not None:
        return bool(stated.value)
    found = loop(spec)
    return not found.pads and (found is not _RL or spec.does("verl.removes_padding"))


def _length(spec: TrainingSpec) -> None:
    """Tokens of the longest sample: as stated, or of the longest prompt and the longest answer."""
    prompt, answer = spec.fact(HYPER + "max_prompt_length"), spec.fact(HYPER + "max_completion_length")
    if not loop(spec).policy:
        families.unless_stated(spec, "sequence_length", 1024, loop(spec).title)
    elif prompt is not None and answer is not None and lm.gap(spec, "max_prompt_length", "max_response_length") is None:
        whole = prompt.value + answer.value
        lm.put(spec, "sequence_length", whole, answer if answer.node else prompt, "a prompt and its answer")
        lm.put(spec, "completion_length", answer.value, answer)


def _per_device(spec: TrainingSpec, samples: int) -> int:
    """Of samples of all devices; those that share a sequence count as one."""
    sharing: int = max(1, spec.get("device_count", 1) // spec.get("parallelism.ulysses", 1))
    return samples // sharing


def _rows(spec: TrainingSpec, each: Fact | None, of_all: Fact | None) -> Fact | None:
    """Samples of a pass on one device, by either of two keys."""
    if of_all is not None and of_all.value is not None:
        return of_all._replace(value=max(1, _per_device(spec, of_all.value)))
    return each if each is not None and each.value is not None else None


def _passes(spec: TrainingSpec) -> str:
    """Rows and tokens of a pass, and how many of them an update has. A pass that is filled up is one row of as many
    tokens as there may be, or as an update has."""
    _length(spec)
    found, length = loop(spec), spec.fact("sequence_length")
    rows = _rows(spec, spec.fact("micro_batch_size"), spec.fact(HYPER + "micro_of_all"))
    fills, most = spec.fact(HYPER + "dynamic"), spec.fact(HYPER + "max_tokens")
    whole = spec.fact(HYPER + ("mini_batch" if loop(spec).policy else "train_batch"))
    several = spec.get(HYPER + "num_generations", 1) if loop(spec).policy else 1
    samples = max(1, _per_device(spec, (256 if whole is None else whole.value) * several))
    if length is None:
        return lm.not_stated(spec, "data.max_length", "max_length", "max_prompt_length", "max_response_length")
    if _unpadded(spec):
        lm.put(spec, "padding_free", True, spec.fact(HYPER + "removes_padding"), found.title)
        lm.put(spec, "sequence_bound", True, length, "samples are rarely as long")
    if found.fills if fills is None else fills.value:
        tokens = (most.value if most is not None else found.tokens) * spec.get("parallelism.ulysses", 1)
        passes = -(-samples * length.value // tokens)
        lm.put(spec, "micro_batch_size", 1, fills or most, "one row of so many tokens")
        lm.put(spec, "sequence_length", min(tokens, samples * length.value), most or length)
    elif rows is not None or found.rows:
        count = found.rows if rows is None else rows.value
        lm.put(spec, "micro_batch_size", count, rows, "" if rows else found.title)
        passes = samples // count
    else:
        return ""
    lm.put(spec, "gradient_accumulation_steps", max(1, passes), whole, found.title)
    return ""


def _images(spec: TrainingSpec) -> None:
    verl_images.images(spec, loop(spec).pixels, loop(spec).title)


def _asked(spec: TrainingSpec) -> None:
    """A pass that asks the policy for log-probabilities before it learns, where that has more tokens than learning."""
    if not loop(spec).policy or spec.get("sequence_length") is None or spec.get("micro_batch_size") is None:
        return
    tried, stated = spec.tried("sequence_length"), spec.fact(HYPER + "asked_tokens")
    fills = spec.fact(HYPER + "asked_dynamic") or spec.fact(HYPER + "dynamic")
    rows = _rows(spec, spec.fact(HYPER + "asked_rows"), spec.fact(HYPER + "asked_of_all"))
    most = stated or spec.fact(HYPER + "max_tokens")
    length = spec[HYPER + "max_prompt_length"] + spec[HYPER + "max_completion_length"]
    if tried is not None:  # samples of both passes are of that length
        length = tried.value
    if fills is not None and fills.value and most is not None:
        whole = length if tried is not None and stated is None else most.value * spec.get("parallelism.ulysses", 1)
        count, length, origin = 1, whole, most
    elif rows is not None:
        count, origin = rows.value, rows
    else:
        return
    if count * length > spec["micro_batch_size"] * spec["sequence_length"]:
        lm.put(spec, "evaluation_batch_size", count, origin, "log-probabilities are asked for before learning")
        lm.put(spec, "evaluation_sequence_length", length, origin)


# ---------------------------------------------------------------------------------------------- losses, engine, critic


_LIGER = tuple(HYPER + f"liger.{name}" for name in ("fused_linear_cross_entropy", "cross_entropy"))


def _loss(spec: TrainingSpec) -> str:
    """Whole logits in the model's dtype; flash-attn's kernel, but for the older supervised trainer."""
    for kernel in _LIGER:
        lm.put(spec, kernel, False, reason=f"{_VERSION}: the model gets no labels")
    lm.kernels(spec)
    found = loop(spec)
    if found is _OLDER_SFT:
        shares = spec.get("parallelism.ulysses", 1) > 1
        lm.put(spec, "loss", "named" if shares else "shifted", reason=f"{found.title}: _compute_loss_and_backward")
        return ""
    weight, always = spec.fact(HYPER + "entropy_coeff"), spec.fact(HYPER + "calculate_entropy")
    older = found is _RL and not spec.does("verl.entropy_where_it_counts")
    asked = found is _RL and (older or bool(weight and weight.value) or bool(always and always.value))
    for name in ("chunks_entropy", "recomputes_entropy"):
        stated = spec.fact(HYPER + name)
        if asked and stated is not None and stated.value:
            return f"{stated.key}: what an entropy keeps that is made piece by piece, or twice, is not known"
    compiled = spec.get(HYPER + "use_torch_compile", True)
    way = "in_place" if not asked else "with_compiled_entropy" if compiled else "with_entropy"
    if not _unpadded(spec):
        way = "of_copy_with_entropy" if asked else "of_copy"
        if spec.does("verl.copies_answers_alone"):
            lm.put(spec, "scored_length", spec.get("completion_length"), spec.fact(HYPER + "max_completion_length"))
    origin = weight if asked and not older else None
    lm.put(spec, "log_probabilities", way, origin, f"{_VERSION}: logprobs_from_logits")
    return ""


def _scores_beside(spec: TrainingSpec) -> bool:
    """Whether an engine on the same cards runs a model of rewards; without one that model is in host memory."""
    if not lm.switched(spec, "reward_model") or lm.switched(spec, "reward_elsewhere"):
        return False
    stated = spec.fact(HYPER + "reward_loop")
    return bool(stated.value) if stated is not None else spec.does("verl.rewards_by_an_engine")


def _engine(spec: TrainingSpec) -> None:
    """Its share of the card: while it generates, beside what stays there, or all the time."""
    share, sleeps = spec.fact("engine_share"), spec.fact(HYPER + "sleeps")
    if not loop(spec).policy:
        spec.facts.pop("engine_share", None)
        return
    found = loop(spec)
    if found.allocator:
        lm.put(spec, "allocator_conf", found.allocator, reason=found.title)
    elif spec.does("verl.expands_segments"):
        lm.put(spec, "allocator_conf", "expandable_segments:True", reason=f"{_VERSION}: set_expandable_segments")
    if share is None or (sleeps is not None and not sleeps.value):
        return
    scoring = spec.fact(HYPER + "reward_share")
    if scoring is not None and _scores_beside(spec) and scoring.value > share.value:
        lm.put(spec, "engine_share", scoring.value, scoring, "the engine of rewards, while the other one sleeps")
    stays = {"parameters": "offload_parameters", "optimizer": "offload_optimizer"}
    left = ["helper_models"] if "resident_models" in spec else []
    left += [
        name for name, key in stays.items() if not lm.switched(spec, key) and "parallelism.cpu_offload" not in spec
    ]
    lm.put(spec, "engine_beside", left, sleeps, f"{_VERSION}: free_cache_engine")


def _critic(spec: TrainingSpec) -> str:
    """A model of values, of which what is not offloaded stays on the card while the policy learns."""
    estimator, switch = spec.fact(HYPER + "adv_estimator"), spec.fact(HYPER + "critic.enable")
    found = loop(spec)
    gae = found.policy and (found.estimator if estimator is None else estimator.value) == "gae"
    if found.reference:
        _reference(spec)
    if not found.critic:
        return OnTop("algorithm.adv_estimator gae: what EasyR1's critic takes is not known") if gae else ""
    needed = switch.value if switch is not None and switch.value is not None else gae
    if not needed:
        return ""
    named = spec.fact(HYPER + "critic.model")
    stays = {"critic.offload_parameters": 4, "critic.offload_optimizer": 8}  # bytes of fp32 weights, and of two moments
    each = sum(size for key, size in stays.items() if not lm.switched(spec, key))
    if not each:
        return ""
    if named is None or not isinstance(named.value, str):
        return lm.not_stated(spec, "critic.model.path", "path")
    config, why = lm.resolved(spec, named.value, named.span.path if named.span else spec.document.path)
    if config is None:
        return f"{named.key} {named.value}: {why}"
    lm.put(spec, "resident_models", [(config, each)], named, f"{_VERSION}: the critic's states, in fp32")
    return ""


def _reference(spec: TrainingSpec) -> None:
    """What the policy started from, in bf16 on the card unless it is kept in host memory."""
    away = [name for name in ("disable_kl", "reference_offloaded", "reference_away") if lm.switched(spec, name)]
    config = spec.get(lm.CONFIG)
    if not away and isinstance(config, dict):
        lm.put(spec, "resident_models", [(config, 2)], spec.fact("model"), "EasyR1: the reference, in bf16")


FAMILY = lm.Family(
    stated=Graph(Step(lm.model, lm.MODEL_FACTS), Step(_unwritten, (*dict(_EASY.facts),))),
    follows=Graph(
        Step(_elsewhere, ("model_class", "frozen_parts", "tower_checkpointing")),
        Step(_method, ("method", "reference_model")),
        Step(_devices, (*lm.PROCESS_FACTS, "parallelism.reduce_dtype", "parallelism.replicas")),
        Step(_precision, ("parameter_dtype", "frozen_dtype", "lora.dtype", "compute_dtype", "autocast")),
        Step(_adapters, (*lm.ADAPTER_FACTS, HYPER + "use_peft")),
        Step(_optimizer, ("optimizer", "optimizer_library")),
        Step(_checkpointing, ("checkpointing", "checkpointing_reentrant", "attention")),
        Step(_passes, _PASSES),
        Step(_images, ("images_per_sample", "image_size", "most_images", "most_image_tokens")),
        Step(_asked, ("evaluation_batch_size", "evaluation_sequence_length")),
        Step(_loss, ("loss", "log_probabilities", "scored_length", "fused_kernels", *_LIGER)),
        Step(_engine, ("engine_share", "engine_beside", "allocator_conf")),
        Step(_critic, ("resident_models",)),
    ),
    told=("elsewhere", "model", "sharing", "devices", "critic"),
)
