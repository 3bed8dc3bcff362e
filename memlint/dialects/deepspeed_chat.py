"""Family deepspeed-chat: steps 1 and 2 of DeepSpeed-Chat, loops around DeepSpeed's engine.

Source: microsoft/DeepSpeedExamples, ``applications/DeepSpeed-Chat``: ``training/step{1,2}_*/main.py``,
``dschat/utils/ds_utils.py``, ``dschat/utils/model/{model_utils,reward_model}.py``, ``dschat/utils/module/lora.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memlint.dialects import language_model as lm
from memlint.dialects.sharing import stated_sharing
from memlint.dialects.stated import tree
from memlint.documents.node import Document, Edit, Node
from memlint.facts.derive import Graph, Step
from memlint.facts.spec import HYPER, Fact, Name, TrainingSpec

_SOURCE = "DeepSpeed-Chat"
_LAYERS = ("layers.", "h.", "blocks.")  # of which all linear layers are adapted
# What trains beside adapters unless the script is told otherwise: whatever is no adapted layer.
_BESIDE = (
    *("embed_tokens", "embed_positions", "norm", "final_layer_norm", "input_layernorm", "post_attention_layernorm"),
    *("self_attn_layer_norm", "lm_head"),
)


def recognise(document: Document, root: Node) -> bool:
    return not lm.is_of_another_family(document, root)


def _beside(spec: TrainingSpec) -> tuple[str, Mapping[str, Fact]]:
    """The config of DeepSpeed that ``get_train_ds_config`` makes of options."""
    stage, offload = spec.fact(HYPER + "stage"), lm.switched(spec, "offload")
    if stage is not None:
        device = {"device": "cpu" if offload else "none"}
        half = {"enabled": True}
        zero: dict[str, Any] = {
            "stage": stage.value,
            "overlap_comm": True,
            "offload_param": device,
            "offload_optimizer": device,
            "stage3_param_persistence_threshold": 10_000,
            "stage3_max_live_parameters": 30_000_000,
            "stage3_prefetch_bucket_size": 30_000_000,
        }
        made = {"zero_optimization": zero, lm.setting(spec, "half") or "fp16": half, "gradient_clipping": 1.0}
        node = tree(made, stage.span or spec.root.span)
        spec.facts[HYPER + "deepspeed"] = stage._replace(name=HYPER + "deepspeed", value=made, node=node)
    return stated_sharing(spec)


def _method(spec: TrainingSpec) -> str:
    """Step 1 trains on answers, step 2 a model that scores two of them; step 3 is known by its models."""
    actor, reward = spec.fact(HYPER + "actor"), spec.fact(HYPER + "reward")
    if actor is not None:
        return f"{actor.key}: an actor, a critic, a reference and a reward model on each device, and what they sample"
    if reward is None and "reward" not in spec.document.path.lower():
        lm.put(spec, "method", "sft", reason=f"{_SOURCE}: step 1")
        lm.put(spec, "model_class", "causal_lm", reason=f"{_SOURCE}: step 1")
        return ""
    lm.put(spec, "method", "reward", reward, f"{_SOURCE}: step 2")
    lm.put(spec, "model_class", "sequence_classification", reward, f"{_SOURCE}: RewardModel")
    lm.put(spec, "labels", 1, reward, f"{_SOURCE}: RewardModel")
    lm.put(spec, "sequences_per_sample", 2, reward, f"{_SOURCE}: DataCollatorReward")
    return ""


def _adapters(spec: TrainingSpec) -> str:
    """LoRA of its own, in the weights' dtype."""
    rank, scope = spec.fact(HYPER + "rank"), spec.fact(HYPER + "scope")
    if rank is None or not rank.value:
        lm.put(spec, "tuning", "full", rank)
        return ""
    if scope is not None and not str(scope.value).endswith(_LAYERS):
        return f"{scope.key} {scope.value}: which layers it means is not known"
    lm.put(spec, "tuning", "lora", rank)
    lm.put(spec, "lora.r", rank.value, rank)
    lm.put(spec, "lora.dropout", 0.0, reason=f"{_SOURCE}: LinearLayer_LoRA")
    lm.put(spec, "lora.targets", "all-linear", scope)
    if not lm.switched(spec, "only_adapters"):
        lm.put(spec, "lora.unfrozen", list(_BESIDE), reason=f"{_SOURCE}: without only_optimize_lora")
    return ""


def _outputs(spec: TrainingSpec) -> None:
    """The loop names what the model returns until the next one is there."""
    if spec.get("method") == "sft":
        lm.put(spec, "outputs_kept", True, reason=f"{_SOURCE}: main.py")


def _precision(spec: TrainingSpec) -> str:
    half = spec.fact(HYPER + "half")
    dtype = "bfloat16" if half is not None and half.value == "bf16" else "float16"
    lm.put(spec, "lora.dtype", dtype, half, f"{_SOURCE}: convert_linear_layer_to_lora")
    return lm.precision(spec, lm.weights(spec, half))


def _evaluation(spec: TrainingSpec) -> None:
    length = spec.fact("sequence_length")
    if length is not None:
        lm.put(spec, "evaluation_sequence_length", length.value, length)
    lm.put(spec, "evaluation_accumulates", False, reason=f"{_SOURCE}: evaluation")


FAMILY = lm.Family(
    beside=_beside,
    follows=Graph(
        Step(lm.model, lm.MODEL_FACTS),
        Step(_method, ("method", "model_class", "labels", "sequences_per_sample")),
        Step(lm.attention, ("attention",)),
        Step(_outputs, ("outputs_kept",)),
        Step(_adapters, lm.ADAPTER_FACTS),
        Step(lm.processes, lm.PROCESS_FACTS),
        Step(lm.checkpointing, lm.CHECKPOINTING_FACTS),
        Step(_precision, lm.PRECISION_FACTS),
        Step(_evaluation, lm.EVALUATION_FACTS),
    ),
    told=("method", "model", "sharing", "adapters", "precision"),
    keys={"micro_batch_size": "per_device_train_batch_size", "sequence_length": "max_seq_len"},
)


def spell(spec: TrainingSpec, fact: Name, value: Any) -> list[Edit] | None:
    """The script's own options; [] for what it has none for."""
    if fact == "parallelism.zero_stage":
        return lm.write(spec, HYPER + "stage", value)
    if fact in ("parameter_dtype", "compute_dtype", "autocast", "loss", "optimizer", "optimizer_implementation"):
        return []
    if fact in ("attention", "evaluation_sequence_length", "attention_tokens", "device_count", "padding", "packing"):
        return []
    return None
