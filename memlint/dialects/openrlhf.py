"""Family openrlhf: the loops of OpenRLHF's ``train_sft``, ``train_dpo`` and ``train_rm`` around DeepSpeed's engine, and
the policy that ``train_ppo_ray`` trains on cards of Ray's.

Each of the models of ``train_ppo_ray`` is a group of processes, one for each card. The estimate is that of a card that
trains the policy: its own step, and what the processes beside it hold meanwhile. Those run in turns and empty their
caches (trainer/ppo_utils/experience_maker.py: _dispatch_forward); what sleeps leaves its weights in 16 bits
(utils/deepspeed/deepspeed_utils.py: offload_deepspeed_states).
"""

from __future__ import annotations

from memlint.dialects import language_model as lm
from memlint.dialects import trainer_families as families
from memlint.documents.node import Edit
from memlint.facts.spec import HYPER, Name, OnTop, TrainingSpec

_VERSION = "OpenRLHF 0.11"
# cli/train_*.py: the program -> method, samples per pass, tokens of a sample where no option says them
_PROGRAMS = {
    "train_sft": ("sft", 8, 2048),
    "train_dpo": ("dpo", 8, 512),
    "train_rm": ("reward", 1, 512),
    "train_ppo_ray": ("grpo", 1, 2048),
}
_RAY = "train_ppo_ray"
# OpenRLHF 0.5 to 0.9, cli/train_ppo_ray.py: samples of a pass that learns and of one that is asked, tokens of a prompt
# and of its answer.
_FLAT, _FLAT_ASKED, _FLAT_PROMPT, _FLAT_ANSWER = 4, 8, 1024, 1024
_FLAT_SAYS = "OpenRLHF 0.5 to 0.9: train_ppo_ray"
_HALF = 2  # bytes of a weight in 16 bits


def spell(spec: TrainingSpec, fact: Name, value: object) -> list[Edit] | None:
    """Of flat options, older releases have a switch for attention and no word."""
    flat = spec.root.get("pretrain") is not None and spec.root.get("attn_implementation") is None
    return [] if fact == "attention" and value != "flash" and flat else None


def complete(spec: TrainingSpec) -> TrainingSpec:
    """From OpenRLHF's options to the facts of a language model."""
    name = families.program(spec)
    method, samples, tokens = _PROGRAMS.get(name, ("", 0, 0))
    ray = name == _RAY
    if ray and spec.root.get("pretrain") is not None:
        samples, tokens = _FLAT, _flat_length(spec)
        families.unless_stated(spec, HYPER + "rollout_micro", _FLAT_ASKED, _FLAT_SAYS)
    families.method(spec, method or name.removeprefix("train_"), None, f"{_VERSION}: {name}")
    if method:
        families.unless_stated(spec, "micro_batch_size", samples, f"{_VERSION}: {name}")
    if method and tokens:
        families.unless_stated(spec, "sequence_length", tokens, f"{_VERSION}: {name}")
    found = lm.model(spec, "model.model_name_or_path")
    families.model_class(spec, "task_type", _VERSION)
    dated = spec.root.get("attn_implementation") is None and spec.root.get("param_dtype") is None
    if spec.root.get("pretrain") is not None and dated and not lm.switched(spec, "flash_attn"):
        lm.put(spec, "attention", "eager", reason="OpenRLHF, of flat options: eager without flash_attn")
    # models/actor.py hands no labels to the model, so Liger's loss is never asked: log-probabilities come from logits
    for loss in ("fused_linear_cross_entropy", "cross_entropy"):
        lm.put(spec, lm.HYPER + f"liger.{loss}", False, reason=f"{_VERSION}: models/actor.py")
    lm.kernels(spec)
    lm.put(spec, "log_probabilities", "rolled", reason=f"{_VERSION}: log_probs_from_logits, with flash-attn's kernel")
    if method == "sft":
        lm.put(spec, "outputs_kept", "float32", reason=f"{_VERSION}: sft_trainer.py names what the model returned")
    elif ray:
        weight = spec.fact(HYPER + "entropy_coeff")
        way = "rolled_with_entropy" if weight is not None and weight.value else "rolled_named"
        lm.put(spec, "log_probabilities", way, weight, f"{_VERSION}: ppo_actor.py, training_step")
    elif method == "reward":
        del spec.facts["log_probabilities"]
    adapted = families.adapted(spec, f"{_VERSION}: models/actor.py")
    lm.optimizer(spec)
    families.engine(spec, f"{_VERSION}: get_train_ds_config")
    beside = _on_its_cards(spec) if ray else ""
    if not ray:
        spec.facts.pop("engine_share", None)
    families.micro_batches(spec, f"{_VERSION}: DeepspeedStrategy")
    lm.checkpointing(spec)
    half = spec.fact("compute_dtype")
    lm.put(spec, lm.HYPER + ("fp16" if half is not None and half.value == "float16" else "bf16"), True, half)
    dtyped = lm.precision(spec, lm.weights(spec, half))
    if method == "dpo":  # a second model, adapters or not
        lm.put(spec, "reference_model", "copy", spec.fact(lm.HYPER + "ref_model"), f"{_VERSION}: train_dpo.py")
        quantised = spec.fact("quantization.bits")
        found = found or ("" if quantised is None else f"{quantised.key}: a quantised reference is not known")
    other = beside if method else OnTop(f"{name}: what its trainer keeps of a pass is not known")
    return lm.finish(spec, (other, found, families.otherwise(spec), adapted, dtyped))


# ---------------------------------------------------------------------------------------------- Ray's cards


def _flat_length(spec: TrainingSpec) -> int:
    """Tokens of the longest prompt and the longest answer, which options of releases before 0.10 say one by one."""
    prompt, answer = spec.fact(HYPER + "max_prompt_length"), spec.fact(HYPER + "max_completion_length")
    whole = (_FLAT_PROMPT if prompt is None else prompt.value) + (_FLAT_ANSWER if answer is None else answer.value)
    known = lm.gap(spec, "prompt_max_len", "generate_max_len") is None
    if known and "sequence_length" not in spec and (prompt or answer) is not None:
        lm.put(spec, "sequence_length", whole, answer or prompt, "a prompt and its answer")
    return whole if known else 0


def _on_its_cards(spec: TrainingSpec) -> str:
    """How many cards train the policy, what a pass has, and what lies beside; why that is not known."""
    lm.put(spec, "reference_model", "none", spec.fact(HYPER + "beta"), f"{_VERSION}: a process of its own")
    nodes, each = spec.fact("machines"), spec.fact(HYPER + "per_node")
    if lm.gap(spec, "num_nodes", "num_gpus_per_node") is None:
        count = (1 if nodes is None else nodes.value) * (8 if each is None else each.value)
        spec.missing = tuple(one for one in spec.missing if one.fact not in ("device_count", "world_size"))
        lm.put(spec, "device_count", count, each or nodes, f"{_VERSION}: {_RAY}")
        lm.put(spec, "world_size", count, each or nodes, f"{_VERSION}: {_RAY}")
    frozen = spec.fact(HYPER + "frozen_names")
    names = lm.names_of(frozen.value) if frozen is not None and frozen.value else []
    if "vision_config" in (spec.get(lm.CONFIG) or {}):
        lm.put(spec, "model_class", "vision_language", spec.fact("model"))
        if not names:
            return OnTop(f"{spec['model']}: a model that sees, whose tower trains too")
        if all(name.startswith("visual") for name in names):
            lm.put(spec, "frozen_parts", ["vision_tower"], frozen)
            return OnTop(f"{spec['model']}: a model that sees: what images take of its samples is not known")
    if names:
        return f"{frozen.key if frozen else ''} {', '.join(names)}: what of the model trains is not known"
    why = _tokens(spec) or _residents(spec)
    if not why:
        _asked(spec)
        _engine(spec)
    return why


def _tokens(spec: TrainingSpec) -> str:
    """A pass that is filled up is one row of so many tokens, or of the longest sample where that is longer."""
    filled, most = spec.fact(HYPER + "dynamic_batch"), spec.fact(HYPER + "max_tokens")
    if spec.get("padding_free") and spec.get("sequence_length") is not None:
        lm.put(spec, "sequence_bound", True, spec.fact("sequence_length"), "samples are rarely as long")
    if filled is None or not filled.value or spec.get("sequence_length") is None:
        return ""
    spec.facts[filled.name] = filled._replace(node=None)  # which is known here
    if not spec.get("padding_free"):
        return OnTop(f"{filled.key}: how samples are padded that are batched by tokens is not known")
    sharing = spec.get("parallelism.context", 1)
    tokens = (16192 if most is None else most.value) * sharing  # cli/train_ppo_ray.py
    whole = spec.get("global_batch_size", 128) * sharing * spec["sequence_length"] // spec.get("device_count", 1)
    lm.put(spec, "gradient_accumulation_steps", max(1, -(-whole // tokens)), most or filled)
    lm.put(spec, "micro_batch_size", 1, filled, "one row of so many tokens")
    lm.put(spec, "sequence_length", max(tokens, spec["sequence_length"]), most or filled)
    return ""


def _residents(spec: TrainingSpec) -> str:
    """Weights of other processes on the card while the policy trains; why they are not known."""
    every, beside = spec.fact(HYPER + "colocated"), spec.fact(HYPER + "colocated_reference")
    all_share = every is not None and bool(every.value)
    how = () if spec.get("parallelism.zero_stage") == 3 else ("whole",)  # get_ds_eval_config
    weight, found, origin = spec.get(HYPER + "beta", 0.01), [], every if all_share else beside
    own = spec.get(lm.CONFIG)
    away = lm.switched(spec, "residents_offloaded") and spec.get("parallelism.zero_stage") == 3
    if own is not None and weight > 0 and (all_share or (beside is not None and beside.value)) and not away:
        found.append((own, _HALF, "words", *how))
    named, remote = spec.fact(HYPER + "reward_model_name"), spec.get(HYPER + "reward_url") or spec.get(HYPER + "agent")
    scores = named is not None and not remote
    learns = spec.get(HYPER + "adv_estimator", "gae") == "gae"
    if all_share and (scores or learns):
        assert every is not None
        if learns and not lm.switched(spec, "states_sleep"):
            why = "a model of values trains on the same cards meanwhile, and what it takes is not known"
            return OnTop(f"{every.key}: {why}")
        critic = spec.fact(HYPER + "critic.model") or (named if scores else None) or spec.fact("model")
        for one in (*((named,) if scores else ()), *((critic,) if learns else ())):
            if one is None or not isinstance(one.value, str):
                return f"{every.key}: which model tells values or rewards on the same cards is not stated"
            config, why = lm.resolved(spec, one.value, one.span.path if one.span else spec.document.path)
            if config is None:
                return f"{one.key} {one.value}: {why}"
            if _size(config) > _size(own or {}):
                return f"{one.key} {one.value}: larger than the policy, so that it may take more than that"
            found.append((config, _HALF, *how))
    if found:
        lm.put(spec, "resident_models", found, origin, f"{_VERSION}: {_RAY}")
    engine = all_share and bool(spec.get(HYPER + "engines")) and not lm.switched(spec, "asynchronous")
    lm.put(spec, "processes_per_device", 1 + len(found) + engine, origin, f"{_VERSION}: {_RAY}")
    return ""


def _size(config: dict[str, object]) -> int:
    inner = lm.text_config(config)
    width, layers = inner.get("hidden_size"), inner.get("num_hidden_layers")
    return width * width * layers if isinstance(width, int) and isinstance(layers, int) else 0


def _asked(spec: TrainingSpec) -> None:
    """The pass that asks the policy before it learns, where that has more tokens. While it sleeps, its optimizer's
    states are elsewhere then, so a pass without gradients has to have more than two thirds more."""
    if spec.get("micro_batch_size") is None:
        return
    rows, tokens = spec.fact(HYPER + "rollout_micro"), spec.fact(HYPER + "asked_tokens")
    count, length, origin = spec["micro_batch_size"], spec.get("sequence_length", 0), rows or tokens
    asked = tokens.value * spec.get("parallelism.context", 1) if tokens is not None and tokens.value else 0
    if asked:
        count, length = 1, asked
    elif rows is not None and not lm.switched(spec, "dynamic_batch"):
        count = rows.value
    least = spec["micro_batch_size"] * spec.get("sequence_length", 0)
    if origin is not None and 3 * count * length > (5 if lm.switched(spec, "states_sleep") else 3) * least:
        lm.put(spec, "evaluation_batch_size", count, origin, "log-probabilities are asked for before learning")
        lm.put(spec, "evaluation_sequence_length", length, origin)


def _engine(spec: TrainingSpec) -> None:
    """An engine that shares the card: while it generates, beside what stays there, or all the time."""
    share, sleeps = spec.facts.pop("engine_share", None), spec.fact(HYPER + "sleeps")
    shared = lm.switched(spec, "colocated") and bool(spec.get(HYPER + "engines"))
    if not shared or lm.switched(spec, "asynchronous"):
        return
    lm.put(spec, "engine_share", 0.95 if share is None else share.value, share, "" if share else f"{_VERSION}: {_RAY}")
    if sleeps is not None and sleeps.value:
        left = ["parameters", *(["helper_models"] if "resident_models" in spec else [])]
        left += [] if lm.switched(spec, "states_sleep") else ["optimizer", "gradients"]
        lm.put(spec, "engine_beside", left, sleeps, f"{_VERSION}: vllm_engine.py")
