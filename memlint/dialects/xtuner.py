"""Family xtuner: mmengine's Python configs of XTuner 0.1 around ``SupervisedFinetune``, and ``xtuner train``."""

from __future__ import annotations

from typing import Any

from memlint.dialects import language_model as lm
from memlint.dialects import trainer_families as families
from memlint.dialects.stated import tree
from memlint.documents.node import Unresolved
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import HYPER, Fact, TrainingSpec

_VERSION = "XTuner 0.1"
_MODEL = f"{_VERSION}: model/sft.py"
# model/sft.py: _prepare_for_flash_attn, SUPPORT_FLASH_ATTN2
_FLASH = (
    *("internlm3", "internlm2", "llama", "gemma", "mistral", "mixtral", "qwen2", "qwen2_moe", "starcoder2", "phi3"),
    "deepseek_v2",
)
# configs/deepspeed/: the name of a file that the package has -> stage, where states are
_SHIPPED: dict[str, dict[str, Any]] = {
    "deepspeed_zero1": {"stage": 1, "overlap_comm": True},
    "deepspeed_zero2": {"stage": 2, "overlap_comm": True},
    "deepspeed_zero2_offload": {"stage": 2, "overlap_comm": True, "offload_optimizer": {"device": "cpu"}},
    "deepspeed_zero3": {"stage": 3, "overlap_comm": True},
    "deepspeed_zero3_offload": {
        **{"stage": 3, "overlap_comm": True},
        **{"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
    },
}
_OPTIMIZERS = {"AdamW": "adamw_torch", "PagedAdamW32bit": "paged_adamw_32bit", "PagedAdamW8bit": "paged_adamw_8bit"}


def word(spec: TrainingSpec, path: str) -> str:
    """The last part of a name that a module imports, at a path of the config: ``float16`` of ``torch.float16``."""
    node = spec.root.get(path)
    value = None if node is None else node.value
    text = value.text if isinstance(value, Unresolved) else value
    return text.rpartition(".")[2] if isinstance(text, str) else ""


def _kind(spec: TrainingSpec) -> str:
    kind = word(spec, "model.type")
    lm.put(spec, "method", "sft", reason=_MODEL)
    return "" if kind == "SupervisedFinetune" else f"model.type {kind or 'is not stated'}: its loss is not known"


def _deepspeed(spec: TrainingSpec) -> None:
    """``--deepspeed``: the name of a file that the package has, or a file. What is left open there is bf16."""
    stated = spec.fact(HYPER + "deepspeed")
    if stated is None or stated.node is None or stated.value not in _SHIPPED:
        return
    value = {"zero_optimization": _SHIPPED[stated.value], "bf16": {"enabled": True}}
    spec.facts[HYPER + "deepspeed"] = stated._replace(value=value, node=tree(value, stated.node.span))


def _attention(spec: TrainingSpec) -> None:
    stated = spec.fact("attention")
    flash = lm.model_type(spec) in _FLASH if stated is None else "flash" in str(stated.value)
    other = "sdpa" if stated is None else str(stated.value)
    lm.put(spec, "attention", "flash" if flash else other, stated, f"{_MODEL}, _prepare_for_flash_attn")


def _optimizer(spec: TrainingSpec) -> str:
    name = word(spec, "optim_wrapper.optimizer.type")
    if name not in _OPTIMIZERS:
        return f"optim_wrapper.optimizer.type {name}: how many states it has is not known"
    lm.put(spec, HYPER + "optim", _OPTIMIZERS[name], reason="the config's class")
    lm.optimizer(spec)
    return ""


def _adapters(spec: TrainingSpec) -> str:
    """All linear layers but the head have adapters unless the config names them."""
    rank = spec.fact("lora.r")
    lm.put(spec, HYPER + "use_peft", rank is not None, rank)
    if rank is not None and spec.fact("lora.targets") is None:
        lm.put(spec, "lora.targets", lm.LISTED, reason=f"{_MODEL}, find_all_linear_names")
    return lm.adapters(spec)


def _quantization(spec: TrainingSpec) -> None:
    lm.quantization(spec)
    if "quantization.bits" in spec:
        lm.put(spec, "quantization.prepared", True, reason=f"{_MODEL}, prepare_model_for_kbit_training")


def _precision(spec: TrainingSpec) -> str:
    """FlashAttention brings a model to bf16, and an adapter's preparation what is not quantised to fp32."""
    dtype = lm.dtype_of(word(spec, "model.llm.torch_dtype"))
    loaded = Fact(HYPER + "dtype", dtype or "float32", reason=f"{_MODEL}, from_pretrained")
    if spec.get("attention") == "flash":
        loaded = loaded._replace(value="bfloat16", reason=f"{_MODEL}, _prepare_for_flash_attn")
    half = "float16" if word(spec, "optim_wrapper.dtype") == "float16" else "bfloat16"
    if word(spec, "optim_wrapper.type") == "AmpOptimWrapper":
        lm.put(spec, HYPER + ("fp16" if half == "float16" else "bf16"), True, reason="AmpOptimWrapper")
    if spec.get("tuning", "full") != "full" and "quantization.bits" not in spec:
        loaded = loaded._replace(value="float32", reason=f"{_MODEL}, prepare_model_for_kbit_training")
    return lm.precision(spec, lm.weights(spec, loaded))


def _checkpointing(spec: TrainingSpec) -> None:
    lm.checkpointing(spec)
    older = spec.does("transformers.checkpoints_reentrantly")
    families.reentrant(spec, older, "transformers: gradient_checkpointing_enable")


def _length(spec: TrainingSpec) -> None:
    """Packed rows are full; of other samples the longest is meant."""
    if not lm.switched(spec, "pack_to_max_length"):
        lm.put(spec, "sequence_bound", True, spec.fact("sequence_length"), "samples are rarely as long")
    else:
        lm.put(spec, "packing", True, spec.fact(HYPER + "pack_to_max_length"))


def _sequences(spec: TrainingSpec) -> None:
    stated = spec.fact(HYPER + "sequence_parallel_size")
    if stated is not None and stated.value > 1:
        lm.put(spec, "parallelism.ulysses", stated.value, stated, f"{_VERSION}: parallel/sequence")


def _processes(spec: TrainingSpec) -> str:
    reason = families.own_processes(spec, "NPROC_PER_NODE", "NNODES")
    lm.processes(spec)
    return reason


FAMILY = lm.Family(
    stated=Graph(Step(lm.model, lm.MODEL_FACTS), Step(_deepspeed, (HYPER + "deepspeed",))),
    follows=Graph(
        Step(_kind, ("method",)),
        Step(_attention, ("attention",)),
        Step(_optimizer, (*lm.OPTIMIZER_FACTS, HYPER + "optim")),
        Step(_adapters, (*lm.ADAPTER_FACTS, HYPER + "use_peft")),
        Step(_quantization, (*lm.QUANTIZATION_FACTS, "quantization.prepared")),
        Step(_processes, lm.PROCESS_FACTS),
        Step(_precision, (*lm.PRECISION_FACTS, HYPER + "fp16", HYPER + "bf16")),
        Step(_checkpointing, lm.CHECKPOINTING_FACTS),
        Step(_length, ("sequence_bound", "packing")),
        Step(_sequences, ("parallelism.ulysses",)),
    ),
    told=("kind", "model", "sharing", "adapters", "precision"),
    keys={"micro_batch_size": "train_dataloader.batch_size", "sequence_length": "max_length"},
)
