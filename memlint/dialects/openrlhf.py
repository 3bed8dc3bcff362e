"""Family openrlhf: the loops of OpenRLHF's ``train_sft``, ``train_dpo`` and ``train_rm`` around DeepSpeed's engine."""

from __future__ import annotations

from memlint.dialects import language_model as lm
from memlint.dialects import trainer_families as families
from memlint.facts.spec import TrainingSpec

_VERSION = "OpenRLHF 0.11"
# cli/train_*.py: the program -> method, samples per pass, tokens of a sample where no option says them
_PROGRAMS = {"train_sft": ("sft", 8, 2048), "train_dpo": ("dpo", 8, 512), "train_rm": ("reward", 1, 512)}


def complete(spec: TrainingSpec) -> TrainingSpec:
    """From OpenRLHF's options to the facts of a language model."""
    name = families.program(spec)
    method, samples, tokens = _PROGRAMS.get(name, ("", 0, 0))
    families.method(spec, method or name.removeprefix("train_"), None, f"{_VERSION}: {name}")
    if method:
        families.unless_stated(spec, "micro_batch_size", samples, f"{_VERSION}: {name}")
        families.unless_stated(spec, "sequence_length", tokens, f"{_VERSION}: {name}")
    found = lm.model(spec, "model.model_name_or_path")
    families.model_class(spec, "task_type", _VERSION)
    if spec.root.get("pretrain") is not None and not lm.switched(spec, "flash_attn"):
        lm.put(spec, "attention", "eager", reason="OpenRLHF, of flat options: eager without flash_attn")
    # models/actor.py hands no labels to the model, so Liger's loss is never asked: log-probabilities come from logits
    for loss in ("fused_linear_cross_entropy", "cross_entropy"):
        lm.put(spec, lm.HYPER + f"liger.{loss}", False, reason=f"{_VERSION}: models/actor.py")
    lm.kernels(spec)
    lm.put(spec, "log_probabilities", "rolled", reason=f"{_VERSION}: log_probs_from_logits, with flash-attn's kernel")
    if method == "sft":
        lm.put(spec, "outputs_kept", "float32", reason=f"{_VERSION}: sft_trainer.py names what the model returned")
    elif method == "reward":
        del spec.facts["log_probabilities"]
    adapted = families.adapted(spec, f"{_VERSION}: models/actor.py")
    lm.optimizer(spec)
    families.engine(spec, f"{_VERSION}: get_train_ds_config")
    families.micro_batches(spec, f"{_VERSION}: DeepspeedStrategy")
    lm.checkpointing(spec)
    half = spec.fact("compute_dtype")
    lm.put(spec, lm.HYPER + ("fp16" if half is not None and half.value == "float16" else "bf16"), True, half)
    dtyped = lm.precision(spec, lm.weights(spec, half))
    if method == "dpo":  # a second model, adapters or not
        lm.put(spec, "reference_model", "copy", spec.fact(lm.HYPER + "ref_model"), f"{_VERSION}: train_dpo.py")
        quantised = spec.fact("quantization.bits")
        found = found or ("" if quantised is None else f"{quantised.key}: a quantised reference is not known")
    other = "" if method else f"{name}: what shares a card with its rollouts is not known"
    return lm.finish(spec, (other, found, families.otherwise(spec), adapted, dtyped))
