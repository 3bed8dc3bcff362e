from __future__ import annotations

from collections.abc import Iterator

from memlint.facts.spec import Name
from memlint.fixes import levers
from memlint.plugin import Example, Finding, Rule, Run
from memlint.units import format_bytes

# A billion fp32 weights are 4 GB before anything else; from about there on checkpoints are published in 16 bits.
LARGE_PARAMETERS = 1_000_000_000


class WeightsLoadedFp32(Rule):
    """weights-loaded-fp32: a large pretrained model is loaded in fp32.

    ## What it does
    Fires when a model of a billion parameters or more is loaded with four bytes per weight, by a key that is written or
    by the default of a program that is named and has a key for it.

    ## Why it matters
    Four bytes per weight, and with AdamW sixteen per trainable one. Checkpoints of that size are published in 16 bits.

    ## Example
    `dtype: float32`

    ## Use instead
    `dtype: bfloat16`

    ## Fix safety
    Unsafe: numerics change, and pure bfloat16 training rounds small updates away.

    ## References
    The `dtype` argument of `from_pretrained` in transformers.
    """

    code = "MEM303"
    name = "weights-loaded-fp32"
    facts = ("parameter_dtype", "pretrained")
    saves = True
    invalid = (
        Example("video_llm/config_before.yaml", replace=(("max_frames: null ", "max_frames: 50 "),), expect="dtype"),
    )
    valid = (
        Example(
            "sft.json",
            '{"model_name_or_path": "meta-llama/Llama-3.2-3B", "max_seq_length": 128, "output_dir": "out",'
            ' "per_device_train_batch_size": 1, "gradient_checkpointing": true}\n',
            note="the program that reads it may load them otherwise",
        ),
        Example("language_models/lora_axolotl.yml", note="only the adapters are in fp32"),
        Example(
            "full.yaml",
            """\
# FORCE_TORCHRUN=1 NPROC_PER_NODE=8 llamafactory-cli train full.yaml
model_name_or_path: meta-llama/Llama-2-7b-hf
stage: sft
do_train: true
finetuning_type: full
dataset: alpaca_en_demo
template: default
cutoff_len: 1024
output_dir: out
per_device_train_batch_size: 1
bf16: true
""",
            note="LLaMA-Factory casts what trains, and keeps no checkpoint in fp16 as it is",
        ),
        Example("language_models/train_fsdp.sh", note="FSDP keeps fp32 copies of what was loaded in bf16"),
        Example("video_llm/config.yaml"),
        Example("uni3d_dp/uni3d+dp.yaml"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        if run.estimate is None or not run.value("pretrained", True):
            return
        place = self._loaded(run)
        if place is None or run.estimate.parameters < LARGE_PARAMETERS:
            return
        stated = run.fact(place)
        if stated is not None and stated.node is None and run.spec.launch is None:
            return  # a file of settings does not say how its program loads the weights
        if (stated is None or stated.node is None) and levers.half_weights(run) is None:
            return  # the program casts them, and no key keeps it from that
        taken, weights = run.estimate.component_bytes("parameters"), run.estimate.parameters
        if run.value("reference_model", "none") == "copy" and run.value("tuning", "full") == "full":
            weights = run.estimate.trainable_parameters  # a second copy of them is beside the model
        yield self.finding(
            run,
            f"{weights / 1e9:.2f} billion weights in fp32 take {format_bytes(taken)}",
            place,
            size_bytes=taken // 2,
            fixes=lambda: levers.fixes(run, levers.half_weights),
        )

    def _loaded(self, run: Run) -> Name | None:
        """The fact that says fp32 of weights as they were loaded: beside adapters, of the frozen ones. Shards under
        mixed precision are fp32 copies whatever was loaded."""
        sharded = run.value("parallelism.strategy") in ("fsdp1", "fsdp2", "zero")
        if sharded and run.value("compute_dtype") in levers.HALF:
            return None
        name: Name = "parameter_dtype" if run.value("tuning", "full") == "full" else "frozen_dtype"
        return name if run.value(name) == "float32" and run.value("quantization.bits") is None else None
