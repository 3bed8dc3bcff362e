"""The trainers, by name: what each of them makes of a sample, of the logits and of dropout.

A family names its trainer in the header of its schema: one for all runs, a library whose trainers are named by their
methods, or one for each method::

    "trainer": "trl.sft"
    "trainer": "trl"
    "trainer": {"sft": "hf.trainer", "dpo": "trl.dpo"}

What a library does from one release on is a row of ``memlint.releases``, which fields here name.
"""

from __future__ import annotations

from collections.abc import Mapping

from memlint.named_tuple import NamedTuple

ALWAYS, AS_COMPUTED = "always", "as computed"
# What becomes of the logits.
LOSS, LOG_PROBABILITIES, SCORES = "loss", "log probabilities", "scores"


class Trainer(NamedTuple):
    """A loop of a library, for one method.

    title       whose it is, as reports call it
    source      where it stands in the library's code
    sequences   of one sample that go through the model together: 2 for a chosen and a rejected answer
    drops       False: it switches dropout off unless the config says otherwise
    builds      class of model (the fact ``model_class``) that it trains whatever the config says; "" for as stated
    labels      how many scores that class gives; 0 for what the config says
    takes       what it takes of the model's output: LOSS (of the model itself), LOG_PROBABILITIES, SCORES
    likelihood  whether the likelihood of the chosen answers is part of its loss: the key whose 0 leaves it out, ALWAYS,
                or ""
    reference   whether a second copy of the policy is asked: ALWAYS, the key whose 0 leaves it out, or ""
    scores      how it makes log-probabilities of logits, a key of ``models.language.log_probabilities.SCORES``,
                whatever is installed; "" where its library's release says so
    generates   whether it samples answers from the model that it trains
    tiled       row of releases since which its loss goes through the head in tiles and holds no logits; "" for never
    prepared    row of releases in which it brings what is not quantised to fp32; ALWAYS; "" for never
    outputs     the dtype in which it names the model's outputs through the backward pass, or AS_COMPUTED; "" where it
                does not
    empties     after how many steps it empties the allocator's cache; 0: never
    unknown     what it needs that no config says the size of
    steps       module of memlint.dialects whose steps derive a run of it, for a family that is a schema alone
    """

    title: str
    source: str
    sequences: int = 1
    drops: bool = True
    builds: str = ""
    labels: int = 0
    takes: str = LOSS
    likelihood: str = ""
    reference: str = ""
    scores: str = ""
    generates: bool = False
    tiled: str = ""
    prepared: str = ""
    outputs: str = ""
    empties: int = 0
    unknown: str = ""
    steps: str = ""

    @property
    def is_of_pairs(self) -> bool:
        return self.sequences > 1


NONE = Trainer("", "")  # of a method that no row is about

_TRL = "TRL 1.16: trl/trainer/"
# Trainers of TRL's (trl/experimental, 1.16) that are told apart from those below, and what each needs besides.
_TEACHER, _JUDGED = "its teacher is not known", "the model that judges its answers is not known"
_EXPERIMENTAL = {
    **dict.fromkeys(("distillation", "gkd", "gold", "iw_opd", "minillm", "server_distillation"), _TEACHER),
    **dict.fromkeys(("nash_md", "online_dpo", "xpo"), _JUDGED),
    **dict.fromkeys(("sdft", "sdpo"), "how it keeps its own teacher is not described"),
    "ppo": "its value and reward models are not known",
    "bco": "its loss over unpaired answers is not described",
    "ssd": "it samples its own training data, which is not described",
    "tpo": "its loss over three answers is not described",
}

TRAINERS: dict[str, Trainer] = {
    # ------------------------------------------------------------------------------------------ around transformers
    "hf.trainer": Trainer("transformers' Trainer", "transformers 5: trainer.py, Trainer", steps="hf_trainer"),
    "accelerate.loop": Trainer(
        "a plain loop around accelerate, which brings outputs to float32",
        "transformers 5: examples/pytorch/*_no_trainer.py; accelerate 1.15: utils/operations.py, ConvertOutputsToFp32",
        outputs="float32",
    ),
    "peft.method_comparison": Trainer(
        "PEFT's script", "PEFT 0.21: method_comparison/MetaMathQA/run.py", outputs=AS_COMPUTED, empties=10
    ),
    # ------------------------------------------------------------------------------------------ TRL
    "trl.sft": Trainer(
        "TRL's SFTTrainer",
        f"{_TRL}sft_trainer.py, sft_config.py",
        tiled="trl.sft_loss_in_chunks",
        prepared="trl.sft_prepares_quantised_models",
        steps="trl",
    ),
    "trl.dpo": Trainer(
        "TRL's DPOTrainer",
        f"{_TRL}dpo_trainer.py, dpo_config.py",
        sequences=2,
        drops=False,
        takes=LOG_PROBABILITIES,
        reference=ALWAYS,
        tiled="trl.dpo_loss_in_tiles",
        prepared="trl.dpo_prepares_quantised_models",
        steps="trl",
    ),
    "trl.orpo": Trainer(
        "TRL's ORPOTrainer",
        f"{_TRL}orpo_trainer.py, orpo_config.py",
        sequences=2,
        drops=False,
        takes=LOG_PROBABILITIES,
        likelihood=ALWAYS,
        prepared=ALWAYS,
        steps="trl",
    ),
    "trl.cpo": Trainer(
        "TRL's CPOTrainer",
        f"{_TRL}cpo_trainer.py, cpo_config.py",
        sequences=2,
        drops=False,
        takes=LOG_PROBABILITIES,
        likelihood="cpo_alpha",
        prepared=ALWAYS,
        steps="trl",
    ),
    "trl.kto": Trainer(
        "TRL's KTOTrainer",
        f"{_TRL}kto_trainer.py, kto_config.py",
        drops=False,
        takes=LOG_PROBABILITIES,
        reference=ALWAYS,
        tiled="trl.dpo_loss_in_tiles",
        steps="trl",
    ),
    "trl.grpo": Trainer(
        "TRL's GRPOTrainer",
        f"{_TRL}grpo_trainer.py, grpo_config.py",
        takes=LOG_PROBABILITIES,
        reference="beta",
        generates=True,
        tiled="trl.dpo_loss_in_tiles",
        steps="trl",
    ),
    "trl.rloo": Trainer(
        "TRL's RLOOTrainer",
        f"{_TRL}rloo_trainer.py, rloo_config.py",
        takes=LOG_PROBABILITIES,
        reference="beta",
        generates=True,
        tiled="trl.rloo_loss_in_tiles",
        steps="trl",
    ),
    "trl.reward": Trainer(
        "TRL's RewardTrainer",
        f"{_TRL}reward_trainer.py, reward_config.py",
        sequences=2,
        drops=False,
        builds="sequence_classification",
        labels=1,
        takes=SCORES,
        steps="trl",
    ),
    **{
        f"trl.{method}": Trainer(f"TRL's trainer for {method}", "TRL 1.16: trl/experimental", unknown=why, steps="trl")
        for method, why in _EXPERIMENTAL.items()
    },
    "trl.prm": Trainer(
        "TRL's trainer for prm",
        "TRL 1.16: trl/experimental",
        builds="token_classification",
        unknown="its model scores each token, which no recipe says",
        steps="trl",
    ),
    # ------------------------------------------------------------------------------------------ around TRL's
    "simpo.simpo": Trainer(
        "SimPO's SimPOTrainer",
        "princeton-nlp/SimPO at 1b3e8f3: scripts/simpo_trainer.py, simpo_config.py",
        sequences=2,
        drops=False,
        takes=LOG_PROBABILITIES,
        likelihood="sft_weight",
        scores="whole_first",
        prepared="trl.dpo_prepares_quantised_models",
        steps="trl",
    ),
    # ------------------------------------------------------------------------------------------ LLaMA-Factory's own
    "llamafactory.dpo": Trainer(
        "LLaMA-Factory's CustomDPOTrainer",
        "LLaMA-Factory 0.9: train/dpo/trainer.py",
        sequences=2,
        drops=False,
        takes=LOG_PROBABILITIES,
        reference=ALWAYS,
    ),
    "llamafactory.preference": Trainer(
        "LLaMA-Factory's CustomDPOTrainer without a reference",
        "LLaMA-Factory 0.9: train/dpo/trainer.py, odds_ratio_loss, simpo_loss",
        sequences=2,
        drops=False,
        takes=LOG_PROBABILITIES,
    ),
    "llamafactory.kto": Trainer(
        "LLaMA-Factory's CustomKTOTrainer",
        "LLaMA-Factory 0.9: train/kto/trainer.py",
        drops=False,
        takes=LOG_PROBABILITIES,
        reference=ALWAYS,
    ),
    "llamafactory.reward": Trainer(
        "LLaMA-Factory's PairwiseTrainer",
        "LLaMA-Factory 0.9: train/rm/trainer.py",
        sequences=2,
        builds="value_head",
        takes=SCORES,
    ),
    "llamafactory.ppo": Trainer(
        "LLaMA-Factory's CustomPPOTrainer",
        "LLaMA-Factory 0.9: train/ppo/trainer.py",
        takes=SCORES,
        unknown="its value head, its reward model and what generation holds are not known",
    ),
    # ------------------------------------------------------------------------------------------ loops of their own
    "own.loop": Trainer("a loop of the program's own", "the program"),
    "torchtune.recipe": Trainer("torchtune's recipes", "torchtune 0.6: recipes/*_finetune_*.py"),
    "torchtune.dpo": Trainer(
        "torchtune's DPO recipes", "torchtune 0.6: recipes/*_dpo_*.py", sequences=2, takes=LOG_PROBABILITIES
    ),
    "nemo.automodel": Trainer("NeMo AutoModel's recipe", "NeMo AutoModel: recipes/llm/train_ft.py"),
    "torchtitan": Trainer("torchtitan's Trainer", "torchtitan 0.2: train.py; 0.3: trainer.py"),
    "litgpt": Trainer("litgpt's loops on Lightning Fabric", "litgpt 0.5: finetune/*.py, pretrain.py"),
    "olmo": Trainer("OLMo's trainer", "OLMo 0.6: olmo/train.py"),
    "composer": Trainer("Composer's Trainer", "Composer 0.32: trainer/trainer.py"),
    "megatron": Trainer("Megatron-LM's loop", "Megatron-LM core 0.16: training/training.py, pipeline_parallel"),
    "nanotron": Trainer("nanotron's DistributedTrainer", "nanotron at 2411b02: trainer.py, parallel/pipeline_parallel"),
    "megatron.nemo": Trainer("NeMo's loop on Lightning", "NeMo 1.23: collections/nlp/models/language_modeling"),
    "deepspeed.engine": Trainer("DeepSpeed's engine", "DeepSpeed 0.19: runtime/engine.py, runtime/pipe/engine.py"),
    "verl.fsdp": Trainer("verl's workers on FSDP", "verl 0.9: trainer/sft_trainer.py, workers/fsdp_workers.py"),
    **{
        f"nemo_rl.{method}": Trainer(
            f"NeMo RL's {title}",
            f"NeMo RL at 7ea279a: algorithms/{method}.py, models/policy/workers/dtensor_policy_worker_v2.py",
            sequences=sequences,
            takes=LOG_PROBABILITIES,
        )
        for method, title, sequences in (("sft", "SFT", 1), ("dpo", "DPO", 2), ("grpo", "GRPO", 1))
    },
    "open_instruct.grpo": Trainer(
        "open-instruct's learners",
        "open-instruct at e6c3044: grpo_fast.py, grpo_utils.py",
        takes=LOG_PROBABILITIES,
        reference="load_ref_policy",
    ),
    "xtuner.runner": Trainer("XTuner's SupervisedFinetune on MMEngine's Runner", "XTuner 0.1: model/sft.py"),
    "llamafactory.v1": Trainer("LLaMA-Factory's v1 trainers", "LLaMA-Factory 0.9.4: v1/core, v1/trainers"),
    "deepspeed_chat": Trainer(
        "DeepSpeed-Chat's loop", "DeepSpeedExamples: applications/DeepSpeed-Chat", outputs=AS_COMPUTED
    ),
    "llama_cookbook": Trainer("Llama Cookbook's loop", "llama-cookbook 0.0.5: utils/train_utils.py, train"),
    "fsdp_qlora": Trainer("fsdp_qlora's loop", "fsdp_qlora 05ed9f2: train.py, fsdp_main"),
    "nanogpt": Trainer("nanoGPT's loop", "nanoGPT: train.py"),
    "build_nanogpt": Trainer("build-nanogpt's loop", "build-nanogpt 6104ab1: train_gpt2.py"),
    "nanochat": Trainer("nanochat's loop", "nanochat: scripts/base_train.py"),
    "timm": Trainer("timm's train.py", "timm 1.0.31: train.py"),
    "torchvision": Trainer("torchvision's train.py", "torchvision 0.28: references/classification/train.py"),
    "llm_c": Trainer("llm.c's loop", "llm.c: train_gpt2.cu, train_gpt2.py"),
}


def trainer(named: str | Mapping[str, str], method: str) -> Trainer:
    """The trainer of a method, as a schema's header names it; NONE where it names none."""
    name = named if isinstance(named, str) else named.get(method, "")
    return TRAINERS.get(name) or TRAINERS.get(f"{name}.{method}", NONE)


def steps_of(named: str) -> str:
    """The module whose steps derive a run of a trainer, or of any trainer of a library. Raises KeyError for a name that
    there is not."""
    found = TRAINERS[named] if named in TRAINERS else TRAINERS[f"{named}.sft"]
    return found.steps


def method_of(name: str) -> str:
    """What a trainer trains for, by its name: ``dpo`` of ``trl.dpo``."""
    return name.rpartition(".")[2]
