from __future__ import annotations

from collections.abc import Iterator

from memlint.plugin import NOTABLE_SHARE, Example, Finding, Rule, Run
from memlint.units import format_bytes

# Model classes that give a row of the vocabulary, or of labels, for every token.
OF_TOKENS = ("causal_lm", "masked_lm", "seq2seq_lm", "vision_language")
FLOAT = 4

TRAIN = """\
model_name_or_path: Qwen/Qwen2.5-0.5B
output_dir: out
max_seq_length: 1024
per_device_train_batch_size: 4
per_device_eval_batch_size: 8
gradient_checkpointing: true
bf16: true
eval_strategy: epoch
metric_for_best_model: accuracy
"""


class EvalOutputsOnGpu(Rule):
    """eval-outputs-on-gpu: the predictions of a whole evaluation are gathered on the card.

    ## What it does
    Fires where a metric other than the loss is asked for, and nothing moves predictions to host memory. Tells what
    each evaluation batch adds.

    ## Why it matters
    The Trainer concatenates the logits of all batches, in float32, and hands them to the metric at the end. An
    evaluation that starts well runs out of memory after some batches.

    ## Example
    `metric_for_best_model: accuracy` without `eval_accumulation_steps`

    ## Use instead
    `eval_accumulation_steps`, after so many batches predictions go to host memory; or `prediction_loss_only`, or a
    `preprocess_logits_for_metrics` that keeps what the metric needs.

    ## Fix safety
    No fix: how many steps host memory has room for is yours to say.

    ## References
    transformers documentation, `TrainingArguments.eval_accumulation_steps`; `trainer.py`, `evaluation_loop`.
    """

    code = "MEM702"
    name = "eval-outputs-on-gpu"
    facts = ("evaluation_accumulates", "evaluation_batch_size")
    invalid = (Example("config.yaml", TRAIN, expect="metric_for_best_model"),)
    valid = (
        Example("config.yaml", TRAIN + "eval_accumulation_steps: 4\n"),
        Example("config.yaml", TRAIN + "prediction_loss_only: true\n"),
        Example("config.yaml", TRAIN.replace("accuracy", "eval_loss"), note="the loss is a number per batch"),
        Example("config.yaml", TRAIN.replace("eval_strategy: epoch\n", ""), note="no evaluation"),
        Example(
            "config.yaml", TRAIN.replace("Qwen/Qwen2.5-0.5B", "bert-base-uncased"), note="two numbers for each sample"
        ),
    )

    def check(self, run: Run) -> Iterator[Finding]:
        rows = run.value("evaluation_batch_size")
        length, vocabulary = run.value("evaluation_sequence_length"), run.value("vocabulary_size")
        if not run.value("evaluation_accumulates") or run.value("model_class", "causal_lm") not in OF_TOKENS:
            return
        if not all(isinstance(size, int) for size in (rows, length, vocabulary)):
            return
        batch = rows * length * vocabulary * FLOAT
        if not run.is_large(batch, NOTABLE_SHARE):
            return
        stated = run.fact("evaluation_accumulates")
        assert stated is not None
        yield self.finding(
            run,
            f"the predictions of the whole evaluation stay on the card: each batch adds {format_bytes(batch)} "
            f"({rows} x {length:,} tokens x {vocabulary:,} in float32)",
            stated,
            size_bytes=batch,
        )
