from __future__ import annotations

from collections.abc import Iterator

from memlint.plugin import INFO, Example, Finding, Rule, Run
from memlint.units import format_bytes

ORPO = """\
trl orpo --model_name_or_path meta-llama/Llama-3.2-1B --dataset_name trl-lib/ultrafeedback_binarized \\
    --dtype bfloat16 --load_in_4bit --use_peft --lora_r 16 --lora_target_modules all-linear \\
    --per_device_train_batch_size 1 --max_length 512 --bf16 --output_dir out
"""


class QuantizedUpcast(Rule):
    """quantized-upcast: what of a quantised model is not quantised is held in float32.

    ## What it does
    Fires where the trainer prepares the model for k-bit training. Tells what that takes beyond embeddings, head and
    norms in the dtype of their checkpoint.

    ## Why it matters
    `prepare_model_for_kbit_training` turns every parameter in 16 bits into float32, although it does not train. With
    vocabularies of a hundred thousand tokens that may be more than all weights in 4 bits, and hidden states become
    float32 as well.

    It is said where the run does not surely fit its budget.

    ## Example
    TRL's ORPO trainer with `load_in_4bit: true`

    ## Use instead
    A trainer that leaves them alone (TRL's SFT and DPO trainers, LLaMA-Factory, Axolotl with FlashAttention).

    ## Fix safety
    No fix: which trainer runs is not a setting.

    ## References
    PEFT 0.21, `utils/other.py`, `prepare_model_for_kbit_training`.
    """

    code = "MEM309"
    name = "quantized-upcast"
    severity = INFO
    facts = ("quantization.prepared", "quantization.bits")
    invalid = (Example("train.sh", ORPO, expect="--load_in_4bit", budget="1GB"),)
    valid = (
        Example("train.sh", ORPO.replace("trl orpo", "trl sft"), note="TRL's SFT trainer leaves them alone"),
        Example("train.sh", ORPO.replace("--load_in_4bit ", ""), note="nothing is quantised"),
        Example("language_models/lora_axolotl.yml"),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        if run.estimate is None or not run.value("quantization.prepared"):
            return
        if not run.is_short:
            return  # no setting changes it: it explains a peak that is too high
        plain = run.what_if({"quantization.prepared": False})
        more = run.estimate.device_bytes - plain.device_bytes
        bits, why = run.fact("quantization.bits"), run.fact("quantization.prepared")
        assert bits is not None
        assert why is not None
        if more > 0:
            yield self.finding(
                run,
                f"embeddings, head and norms are held in float32 ({why.reason}): {format_bytes(more)} of the peak",
                bits,
                size_bytes=more,
            )
