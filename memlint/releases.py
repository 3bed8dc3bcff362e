"""What a library does from one release on, and until another: one table, read wherever a run's memory depends on it.

A config rarely says which release will run it, and the same config takes different memory under different ones. Each
row was read from the library's own code, as published in the releases on both sides of the border.
"""

from __future__ import annotations

from memlint.named_tuple import NamedTuple

Series = tuple[int, int]


class Behaviour(NamedTuple):
    """A habit of a library.

    since, until   the first release with it, and the first one without it any more; None: always had it, still has it
    what           in a sentence, as a report says it
    source         where it is in the library's code, or the change that made it
    """

    library: str
    since: Series | None
    until: Series | None
    what: str
    source: str


BEHAVIOURS: dict[str, Behaviour] = {
    "trl.sft_loss_in_chunks": Behaviour(
        "trl",
        (1, 7),
        None,
        "SFTTrainer takes the loss in chunks unless loss_type says otherwise, and never holds the logits",
        "trl/trainer/sft_config.py: loss_type; huggingface/trl#5846",
    ),
    "trl.sft_loss_in_tiles": Behaviour(
        "trl",
        (1, 15),
        None,
        "SFTTrainer takes the loss through the head in tiles, which loss_type nll is another name of",
        "trl/trainer/sft_trainer.py: add_fused_lm_head",
    ),
    "trl.dpo_loss_in_tiles": Behaviour(
        "trl",
        (1, 14),
        None,
        "DPOTrainer, KTOTrainer and GRPOTrainer take log-probabilities through the head in tiles",
        "trl/trainer/dpo_trainer.py, kto_trainer.py, grpo_trainer.py",
    ),
    "trl.rloo_loss_in_tiles": Behaviour(
        "trl",
        (1, 15),
        None,
        "RLOOTrainer takes log-probabilities through the head in tiles",
        "trl/trainer/rloo_trainer.py: add_fused_lm_head",
    ),
    "trl.log_probabilities_in_a_kernel": Behaviour(
        "trl", (1, 14), None, "log-probabilities of whole logits are one kernel's", "trl/kernels/logprob_entropy.py"
    ),
    "trl.log_probabilities_row_by_row": Behaviour(
        "trl",
        (0, 15),
        None,
        "log-probabilities are taken of one row after the other, and no log-softmax of all of them is kept",
        "trl/trainer/utils.py: selective_log_softmax",
    ),
    "trl.sft_prepares_quantised_models": Behaviour(
        "trl",
        (0, 7),
        (0, 26),
        "SFTTrainer brings what is not quantised to fp32",
        "trl/trainer/sft_trainer.py, trl/models/utils.py: prepare_peft_model",
    ),
    "trl.dpo_prepares_quantised_models": Behaviour(
        "trl",
        (0, 7),
        (0, 29),
        "DPOTrainer brings what is not quantised to fp32",
        "trl/trainer/dpo_trainer.py: _prepare_peft_model",
    ),
    "trl.adapters_of_quantised_models_in_bfloat16_early": Behaviour(
        "trl",
        None,
        (0, 9),
        "adapters of a model in 4 bits are brought to bfloat16",
        "trl/trainer/utils.py: peft_module_casting_to_bf16",
    ),
    "trl.checkpoints_by_default": Behaviour(
        "trl", (0, 20), None, "activations are recomputed unless the config says otherwise", "trl/trainer/*_config.py"
    ),
    "trl.grpo_asks_a_reference": Behaviour(
        "trl",
        None,
        (0, 19),
        "GRPO's beta is 0.04 unless the config says otherwise, so a reference model is asked",
        "trl/trainer/grpo_config.py: beta",
    ),
    "litgpt.stable_embedding": Behaviour(
        "litgpt",
        (0, 5),
        None,
        "a quantised model's embedding is bitsandbytes' StableEmbedding, in fp32 with a norm",
        "litgpt/finetune/lora.py: main",
    ),
}
# The releases that are taken where nothing says which one is installed.
NEWEST: dict[str, str] = {"litgpt": "0.5", "trl": "1.16"}


def does(behaviour: str, release: object) -> bool:
    """Whether a release (``1.7.0``, ``torch 2.6``; None for the newest) behaves so. Raises KeyError for no row."""
    row = BEHAVIOURS[behaviour]
    found = series(release)
    if found is None:
        return row.until is None
    return (row.since is None or found >= row.since) and (row.until is None or found < row.until)


MAX_DIGITS = 9  # of one number of a release: nightly builds count days


def series(release: object) -> Series | None:
    """The first two numbers of a release; None where it has none."""
    text = str(release or "").rpartition(" ")[2]
    parts = text.split("+", 1)[0].split(".", 2)[:2]
    numbers = [int(part) for part in parts if part.isascii() and part.isdigit() and len(part) < MAX_DIGITS]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else None
