"""What a library does from one release on, and until another: one table, read wherever a run's memory depends on it.

A config rarely says which release will run it, and the same config takes different memory under different ones. Each
row was read from the library's own code, as published in the releases on both sides of the border.
"""

from __future__ import annotations

from memlint.named_tuple import NamedTuple

Series = tuple[int, ...]


class Library(NamedTuple):
    """A library whose behaviour is dated.

    title          as reports call it
    newest         the release that is taken where nothing says which one is installed
    fact           the fact that its release is
    distributions  what it is installed under
    """

    title: str
    newest: str
    fact: str
    distributions: tuple[str, ...]


MORE, LESS, EITHER, LITTLE = "more", "less", "either", "a little"


class Behaviour(NamedTuple):
    """A habit of a library.

    since, until   the first release with it, and the first one without it any more; None: always had it, still has it
    takes          whether a run that it concerns takes MORE or LESS memory with it, or EITHER, as the run is; LITTLE
                   where that is not worth telling
    what           in a sentence, as a report says it
    source         where it is in the library's code, or the change that made it
    brief          it was gone after weeks: of runs that nothing pins, those may have met it that are no older than it
    """

    library: str
    since: Series | None
    until: Series | None
    takes: str
    what: str
    source: str
    brief: bool = False


BEHAVIOURS: dict[str, Behaviour] = {
    "unsloth.cuts_cross_entropy": Behaviour(
        "unsloth",
        (2024, 11, 9),
        (2025, 8, 5),
        LESS,
        "the logits of more than 1,024 tokens never leave the chip",
        "unsloth/models/llama.py: CausalLM_fast_forward, fused_linear_cross_entropy",
    ),
    "unsloth.makes_gradients_of_the_loss_in_forward": Behaviour(
        "unsloth",
        (2025, 8, 5),
        None,
        EITHER,
        "logits are made in pieces, each of which its gradient is written over",
        "unsloth/models/llama.py: CausalLM_fast_forward, unsloth_fused_ce_loss",
    ),
    "unsloth.bounds_pieces_of_the_loss": Behaviour(
        "unsloth",
        (2026, 7),
        None,
        LESS,
        "a piece of the logits has at most 4 GiB, however much is free",
        "unsloth_zoo/fused_losses/cross_entropy_loss.py: _get_chunk_multiplier",
    ),
    "unsloth.counts_what_the_loss_makes": Behaviour(
        "unsloth",
        (2026, 9, 3),
        None,
        LESS,
        "16 bytes are reckoned for each logit of a piece where 4 were",
        "unsloth_zoo/fused_losses/cross_entropy_loss.py: _CE_BYTES_PER_LOGIT, get_chunk_size",
    ),
    "accelerate.fsdp2_widens_frozen_weights": Behaviour(
        "accelerate",
        None,
        (1, 13),
        MORE,
        "FSDP2 with mixed precision brings a whole model in 16 bits to float32, frozen weights included",
        "accelerate/utils/fsdp_utils.py: fsdp2_prepare_model",
    ),
    "accelerate.fsdp2_leaves_what_trains": Behaviour(
        "accelerate",
        (1, 13),
        (1, 14),
        LESS,
        "FSDP2 leaves what trains in 16 bits, though it says otherwise: the float32 copy is thrown away",
        "accelerate/utils/fsdp_utils.py: fsdp2_prepare_model, upcasted_params",
    ),
    "accelerate.fsdp2_reduces_the_last_micro_batch": Behaviour(
        "accelerate",
        (1, 11),
        None,
        MORE,
        "FSDP2 reduces gradients with the last micro-batch of a step alone, as FSDP1 does: until then they are whole",
        "accelerate/accelerator.py: no_sync, set_requires_gradient_sync",
    ),
    "accelerate.fsdp1_trains_in_float32": Behaviour(
        "accelerate",
        (0, 30),
        None,
        MORE,
        "under FSDP1 with mixed precision, what trains is brought to fp32 whatever it was loaded in",
        "accelerate/accelerator.py: prepare_model, upcasted_log",
    ),
    "bitsandbytes.keeps_inputs_of_4_bit_products": Behaviour(
        "bitsandbytes",
        None,
        (0, 43, 2),
        MORE,
        "a product with a 4-bit weight keeps its input, as an attribute that no checkpointing knows of",
        "bitsandbytes/autograd/_functions.py: MatMul4Bit; bitsandbytes-foundation/bitsandbytes#1270",
    ),
    "bitsandbytes.unpacks_in_the_stored_dtype": Behaviour(
        "bitsandbytes",
        None,
        (0, 50),
        MORE,
        "forward, too, unpacks a 4-bit weight in the dtype that it was quantised from, and casts it",
        "bitsandbytes/autograd/_functions.py: MatMul4Bit",
    ),
    "torch.softmax_keeps_its_input": Behaviour(
        "torch", None, (1, 11), MORE, "a softmax keeps its input as well as its output", "pytorch/pytorch#65242"
    ),
    "torch.loads_every_kernel_at_start": Behaviour(
        "torch", None, (1, 13), MORE, "all kernels are loaded with the context", "pytorch/pytorch#86509"
    ),
    "torch.adds_gradients_in_place": Behaviour(
        "torch",
        (2, 0),
        None,
        LESS,
        "the second gradient of a tensor is added to the first one in place, where it made a third one",
        "pytorch/pytorch#88339",
    ),
    "torch.keeps_gradients_as_zeros": Behaviour(
        "torch", None, (2, 0), MORE, "zero_grad writes zeros instead of letting gradients go", "pytorch/pytorch#92731"
    ),
    "torch.foreach_is_a_default": Behaviour(
        "torch",
        (2, 0),
        None,
        MORE,
        "optimizers take the step of all parameters at once, with a list as large as these",
        "torch/optim/optimizer.py: _default_to_fused_or_foreach",
    ),
    "torch.foreach_adam_keeps_roots": Behaviour(
        "torch",
        None,
        (2, 1),
        MORE,
        "a step of foreach Adam or AdamW holds two lists as large as all parameters, of roots and of denominators",
        "torch/optim/adam.py and adamw.py: denom = torch._foreach_add(exp_avg_sq_sqrt, eps)",
    ),
    "torch.rms_norm_2.5": Behaviour(
        "torch", (2, 5), None, MORE, "rms_norm computes in fp32, and keeps what it widened", "pytorch/pytorch#134106"
    ),
    "torch.rms_norm_2.7": Behaviour(
        "torch",
        (2, 7),
        None,
        MORE,
        "rms_norm goes back to its input's dtype once, at its end",
        "pytorch/pytorch#147203",
    ),
    "torch.rms_norm_2.9": Behaviour("torch", (2, 9), None, LESS, "rms_norm is one kernel", "pytorch/pytorch#153666"),
    "torch.rms_norm_2.12": Behaviour(
        "torch",
        (2, 12),
        None,
        EITHER,
        "under autocast rms_norm is computed in fp32, in one kernel whatever its weight's dtype",
        "pytorch/pytorch#174824; ATen/autocast_mode.h: AT_FORALL_FP32",
    ),
    "torch.fused_adamw_is_a_default": Behaviour(
        "torch",
        (2, 8),
        None,
        LESS,
        "transformers' default optimizer is fused from this release of torch on",
        "transformers/training_args.py: default_optim",
    ),
    "torch.sdpa_is_taken": Behaviour(
        "torch",
        (2, 1, 1),
        None,
        LESS,
        "transformers takes SDPA by itself",
        "transformers/utils/import_utils.py: is_torch_sdpa_available",
    ),
    "torchtune.norm_is_torchs": Behaviour(
        "torchtune",
        (0, 5),
        (0, 7),
        MORE,
        "RMSNorm leaves the norm to torch's function",
        "torchtune/modules/rms_norm.py: RMSNorm.forward",
    ),
    "transformers.releases_gradients": Behaviour(
        "transformers",
        (4, 28),
        None,
        LESS,
        "Trainer lets gradients go whatever zero_grad does by itself",
        "transformers/trainer.py: _inner_training_loop; huggingface/transformers#22136",
    ),
    "transformers.optimizer_is_torchs": Behaviour(
        "transformers",
        (4, 32),
        None,
        MORE,
        "the default optimizer is torch's AdamW, no more transformers' own",
        "transformers/training_args.py: default_optim; huggingface/transformers#25109",
    ),
    "transformers.sdpa_4.36": Behaviour(
        "transformers",
        (4, 36),
        None,
        LESS,
        "LLaMA, Falcon, BART, Whisper and GPTBigCode run on SDPA unless they are told otherwise",
        "transformers/models/llama/modeling_llama.py, falcon, bart, whisper, gpt_bigcode: _supports_sdpa",
    ),
    "transformers.sdpa_4.37": Behaviour(
        "transformers",
        (4, 37),
        None,
        LESS,
        "Mistral and Mixtral run on SDPA unless they are told otherwise",
        "transformers/models/mistral/modeling_mistral.py, mixtral: _supports_sdpa",
    ),
    "transformers.sdpa_4.39": Behaviour(
        "transformers",
        (4, 39),
        None,
        LESS,
        "Phi and StableLM run on SDPA unless they are told otherwise",
        "transformers/models/phi/modeling_phi.py, stablelm: _supports_sdpa",
    ),
    "transformers.sdpa_4.41": Behaviour(
        "transformers",
        (4, 41),
        None,
        LESS,
        "BERT and ViT run on SDPA unless they are told otherwise",
        "transformers/models/bert/modeling_bert.py, vit: _supports_sdpa",
    ),
    "transformers.sdpa_4.42": Behaviour(
        "transformers",
        (4, 42),
        None,
        LESS,
        "GPT-2 and GPT-NeoX run on SDPA unless they are told otherwise",
        "transformers/models/gpt2/modeling_gpt2.py, gpt_neox: _supports_sdpa",
    ),
    "transformers.sdpa_4.45": Behaviour(
        "transformers",
        (4, 45),
        None,
        LESS,
        "RoBERTa, ALBERT, mBART and Phi-3 run on SDPA unless they are told otherwise",
        "transformers/models/roberta/modeling_roberta.py, xlm_roberta, camembert, albert, mbart, phi3: _supports_sdpa",
    ),
    "transformers.sdpa_4.46": Behaviour(
        "transformers",
        (4, 46),
        None,
        LESS,
        "OPT and DistilBERT run on SDPA unless they are told otherwise",
        "transformers/models/opt/modeling_opt.py, distilbert: _supports_sdpa",
    ),
    "transformers.sdpa_5.0": Behaviour(
        "transformers",
        (5, 0),
        None,
        LESS,
        "ELECTRA runs on SDPA unless it is told otherwise",
        "transformers/models/electra/modeling_electra.py: _supports_sdpa",
    ),
    "transformers.clip_has_sdpa": Behaviour(
        "transformers",
        (4, 43),
        None,
        LESS,
        "CLIP's tower runs on SDPA",
        "transformers/models/clip/modeling_clip.py: _supports_sdpa; huggingface/transformers#31940",
    ),
    "transformers.optimizer_is_fused": Behaviour(
        "transformers",
        (4, 54),
        None,
        LESS,
        "the default optimizer is torch's fused AdamW",
        "transformers/training_args.py: default_optim; huggingface/transformers#37358",
    ),
    "transformers.grouped_heads_in_sdpa": Behaviour(
        "transformers",
        (4, 54),
        None,
        LESS,
        "SDPA is given grouped heads of keys and values as they are, and no copies for each head",
        "transformers/integrations/sdpa_attention.py; huggingface/transformers#39412",
    ),
    "transformers.parts_are_the_classes_own": Behaviour(
        "transformers",
        None,
        (5, 0),
        LESS,
        "the tower of a vision-language model answers to its name without the model's before it, by which it is frozen",
        "transformers/models/llava/modeling_llava.py: LlavaForConditionalGeneration.vision_tower",
    ),
    "transformers.keeps_the_checkpoints_dtype": Behaviour(
        "transformers",
        (5, 0),
        None,
        LESS,
        "from_pretrained keeps the checkpoint's dtype unless another one is stated, and makes float32 of none",
        "transformers/modeling_utils.py: from_pretrained",
    ),
    "transformers.experts_are_one_tensor": Behaviour(
        "transformers",
        (5, 0),
        None,
        MORE,
        "the experts of a layer are one tensor, which stays in 16 bits where linear layers are quantised",
        "transformers/models/mixtral/modeling_mixtral.py: MixtralExperts, MixtralSparseMoeBlock",
    ),
    "transformers.warms_half_of_a_quantised_model": Behaviour(
        "transformers",
        (4, 51),
        (5, 0),
        MORE,
        "half of a model as it was before it is quantised is taken at once, which the allocator keeps",
        "transformers/modeling_utils.py: caching_allocator_warmup; quantizers/base.py: get_accelerator_warm_up_factor",
    ),
    "transformers.reads_ahead_of_quantisation": Behaviour(
        "transformers",
        (5, 0),
        (5, 4),
        MORE,
        "while weights are quantised one by one, threads bring the next ones to the card, up to the whole model",
        "transformers/core_model_loading.py: convert_and_load_state_dict_in_model, has_on_the_fly_quantization",
        brief=True,
    ),
    "transformers.unpacks_mxfp4_by_64_bit_indices": Behaviour(
        "transformers",
        None,
        (5, 1),
        MORE,
        "experts in MXFP4 are unpacked through 64-bit indices of both halves at a time",
        "transformers/integrations/mxfp4.py: convert_moe_packed_tensors",
    ),
    "transformers.fsdp_is_version_2": Behaviour(
        "transformers",
        (5, 10),
        None,
        EITHER,
        "fsdp_config's version is 2 where it is not stated",
        "transformers/training_args.py: _process_fsdp_args",
    ),
    "transformers.checkpoints_reentrantly": Behaviour(
        "transformers",
        None,
        (5, 0),
        LITTLE,
        "gradient_checkpointing_enable recomputes by the reentrant kind unless it is told otherwise",
        "transformers/modeling_utils.py: gradient_checkpointing_enable",
    ),
    "transformers.masks_encoders": Behaviour(
        "transformers",
        None,
        (5, 0),
        MORE,
        "eager attention of encoders is given a mask where nothing is padded",
        "transformers/masking_utils.py; huggingface/transformers#41265",
    ),
    "transformers.towers_inputs_get_gradients": Behaviour(
        "transformers",
        (5, 0),
        None,
        MORE,
        "recomputation asks for gradients of a vision tower's patches, too, and so keeps a graph of one that is frozen",
        "transformers/modeling_utils.py: enable_input_require_grads",
    ),
    "transformers.t5_has_sdpa": Behaviour(
        "transformers",
        (5, 15),
        None,
        LESS,
        "T5 runs on SDPA",
        "transformers/models/t5/modeling_t5.py; huggingface/transformers#47014",
    ),
    "transformers.evaluates_by_ligers_loss": Behaviour(
        "transformers",
        (5, 15),
        None,
        LESS,
        "with Liger's kernels and no metrics, the Trainer evaluates without logits",
        "transformers/trainer.py: prediction_step, skip_logits",
    ),
    "trl.sft_loss_in_chunks": Behaviour(
        "trl",
        (1, 7),
        None,
        LESS,
        "SFTTrainer takes the loss in chunks unless loss_type says otherwise, and never holds the logits",
        "trl/trainer/sft_config.py: loss_type; huggingface/trl#5846",
    ),
    "trl.sft_loss_in_tiles": Behaviour(
        "trl",
        (1, 15),
        None,
        LESS,
        "SFTTrainer takes the loss through the head in tiles, which loss_type nll is another name of",
        "trl/trainer/sft_trainer.py: add_fused_lm_head",
    ),
    "trl.dpo_loss_in_tiles": Behaviour(
        "trl",
        (1, 14),
        None,
        LESS,
        "DPOTrainer, KTOTrainer and GRPOTrainer take log-probabilities through the head in tiles",
        "trl/trainer/dpo_trainer.py, kto_trainer.py, grpo_trainer.py",
    ),
    "trl.rloo_loss_in_tiles": Behaviour(
        "trl",
        (1, 15),
        None,
        LESS,
        "RLOOTrainer takes log-probabilities through the head in tiles",
        "trl/trainer/rloo_trainer.py: add_fused_lm_head",
    ),
    "trl.log_probabilities_in_a_kernel": Behaviour(
        "trl",
        (1, 14),
        None,
        LESS,
        "log-probabilities of whole logits are one kernel's",
        "trl/kernels/logprob_entropy.py",
    ),
    "trl.log_probabilities_row_by_row": Behaviour(
        "trl",
        (0, 15),
        None,
        LESS,
        "log-probabilities are taken of one row after the other, and no log-softmax of all of them is kept",
        "trl/trainer/utils.py: selective_log_softmax",
    ),
    "trl.dpo_copies_logits": Behaviour(
        "trl",
        (0, 29),
        (1, 6),
        MORE,
        "DPOTrainer takes log-probabilities of a copy of the logits, and names both until the reference was asked",
        "trl/trainer/dpo_trainer.py: _compute_loss, shift_logits",
    ),
    "trl.sft_prepares_quantised_models": Behaviour(
        "trl",
        (0, 7),
        (0, 26),
        EITHER,
        "SFTTrainer brings what is not quantised to fp32",
        "trl/trainer/sft_trainer.py, trl/models/utils.py: prepare_peft_model",
    ),
    "trl.dpo_prepares_quantised_models": Behaviour(
        "trl",
        (0, 7),
        (0, 29),
        EITHER,
        "DPOTrainer brings what is not quantised to fp32",
        "trl/trainer/dpo_trainer.py: _prepare_peft_model",
    ),
    "trl.adapters_of_quantised_models_in_bfloat16_early": Behaviour(
        "trl",
        None,
        (0, 9),
        LESS,
        "adapters of a model in 4 bits are brought to bfloat16",
        "trl/trainer/utils.py: peft_module_casting_to_bf16",
    ),
    "trl.checkpoints_without_reentry": Behaviour(
        "trl",
        (0, 28),
        None,
        LITTLE,
        "trainers have transformers recompute activations without reentry, unless the config says otherwise",
        "trl/trainer/sft_trainer.py, dpo_trainer.py, grpo_trainer.py: gradient_checkpointing_kwargs",
    ),
    "trl.checkpoints_by_default": Behaviour(
        "trl",
        (0, 20),
        None,
        LESS,
        "activations are recomputed unless the config says otherwise",
        "trl/trainer/base_config.py: gradient_checkpointing",
    ),
    "trl.grpo_asks_a_reference": Behaviour(
        "trl",
        None,
        (0, 19),
        MORE,
        "GRPO's beta is 0.04 unless the config says otherwise, so a reference model is asked",
        "trl/trainer/grpo_config.py: beta",
    ),
    "litgpt.lora_wraps_blocks": Behaviour(
        "litgpt",
        None,
        (0, 5, 8),
        MORE,
        "finetune_lora shards whole blocks, whose frozen weights get gradients beside the adapters",
        "litgpt/finetune/lora.py: setup, auto_wrap_policy",
    ),
    "litgpt.lora_on_fsdp2": Behaviour(
        "litgpt",
        (0, 5, 11),
        None,
        EITHER,
        "finetune_lora shards with FSDP2, no more each linear layer alone with FSDP1",
        "litgpt/finetune/lora.py: setup, ModelParallelStrategy",
    ),
    "peft.adapters_in_float32": Behaviour(
        "peft",
        (0, 12),
        None,
        MORE,
        "adapters of a model in 16 bits are float32",
        "peft/mapping_func.py: get_peft_model, autocast_adapter_dtype",
    ),
    "litgpt.stable_embedding": Behaviour(
        "litgpt",
        (0, 5),
        None,
        MORE,
        "a quantised model's embedding is bitsandbytes' StableEmbedding, in fp32 with a norm",
        "litgpt/finetune/lora.py: main",
    ),
    "verl.sft_shards_by_fsdp2": Behaviour(
        "verl",
        (0, 4),
        None,
        EITHER,
        "the supervised trainer shards by FSDP2, where it had FSDP1 alone before",
        "verl/trainer/fsdp_sft_trainer.py: _build_model_optimizer; config/sft_trainer.yaml",
    ),
    "verl.sft_checkpoints": Behaviour(
        "verl",
        (0, 4, 1),
        None,
        LESS,
        "the supervised trainer recomputes activations unless it is told otherwise",
        "verl/trainer/config/sft_trainer.yaml: enable_gradient_checkpointing",
    ),
    "verl.entropy_where_it_counts": Behaviour(
        "verl",
        (0, 4),
        None,
        LESS,
        "an update computes the entropy only where the loss has a weight for it",
        "verl/workers/actor/dp_actor.py: update_policy, calculate_entropy",
    ),
    "verl.rewards_by_an_engine": Behaviour(
        "verl",
        (0, 7),
        None,
        EITHER,
        "an engine with a share of the card runs a model of rewards, which was in host memory before",
        "verl/trainer/config/reward_model/dp_reward_loop.yaml: use_reward_loop",
    ),
    "verl.expands_segments": Behaviour(
        "verl",
        (0, 6),
        None,
        LESS,
        "the policy's memory is in expandable segments, except while its engine generates",
        "verl/workers/fsdp_workers.py: rollout_mode; workers/engine_workers.py: update_weights",
    ),
    "verl.copies_answers_alone": Behaviour(
        "verl",
        None,
        (0, 8),
        LESS,
        "of padded samples the logits of answers alone are copied and scored",
        "verl/workers/actor/dp_actor.py: _forward_micro_batch; workers/engine/fsdp/transformer_impl.py",
    ),
    "verl.removes_padding": Behaviour(
        "verl",
        (0, 7),
        None,
        LESS,
        "policies learn from rows without padding unless they are told otherwise",
        "verl/trainer/config/model/hf_model.yaml: use_remove_padding",
    ),
    "ultralytics.looks_at_each_side": Behaviour(
        "ultralytics",
        (8, 4, 105),
        None,
        LESS,
        "whether an anchor lies within a box is asked one side after the other, not of eight numbers for each pair",
        "ultralytics/utils/tal.py: select_candidates_in_gts, get_targets",
    ),
    "ultralytics.lists_candidates": Behaviour(
        "ultralytics",
        (8, 4, 134),
        None,
        LESS,
        "boxes and anchors that may belong together are a list, and marks of all pairs are bytes",
        "ultralytics/utils/tal.py: get_box_metrics, select_topk_candidates",
    ),
    "ultralytics.keeps_channels_last": Behaviour(
        "ultralytics",
        (8, 4, 105),
        None,
        LITTLE,
        "weights and maps on a card are in channels-last format",
        "ultralytics/engine/trainer.py: _setup_train",
    ),
    "ultralytics.auto_takes_musgd": Behaviour(
        "ultralytics",
        (8, 4, 8),
        None,
        MORE,
        "`optimizer: auto` takes MuSGD for long runs, which keeps two momenta, where it took SGD",
        "ultralytics/engine/trainer.py: build_optimizer",
    ),
    "ultralytics.fuses_adam": Behaviour(
        "ultralytics",
        (8, 4, 154),
        None,
        LESS,
        "Adam and AdamW are one kernel",
        "ultralytics/engine/trainer.py: build_optimizer",
    ),
    "torchvision.detectors_start_from_a_trained_backbone": Behaviour(
        "torchvision",
        None,
        (0, 13),
        LESS,
        "a detector of references/detection starts from a trained backbone, of which three parts train",
        "references/detection/train.py: --weights-backbone; models/detection/faster_rcnn.py: pretrained_backbone",
    ),
}
# The day of each release at which something changes: of the newest file within its wheel, or as its notes have it.
DAYS: dict[str, dict[Series, str]] = {
    "unsloth": {
        (2024, 11, 9): "2024-11-21",
        (2025, 8, 5): "2025-08-13",
        (2026, 7): "2026-07-07",
        (2026, 9, 3): "2026-09-09",
    },
    "bitsandbytes": {(0, 43, 2): "2024-07-23", (0, 50): "2026-07-24"},
    "accelerate": {(0, 30): "2024-05-03", (1, 11): "2025-10-20", (1, 13): "2026-03-04", (1, 14): "2026-06-11"},
    "litgpt": {(0, 5): "2024-10-04", (0, 5, 8): "2025-05-06", (0, 5, 11): "2025-09-09"},
    "peft": {(0, 12): "2024-07-24"},
    "torch": {
        (1, 11): "2022-03-10",
        (1, 13): "2022-10-28",
        (2, 0): "2023-03-15",
        (2, 1): "2023-10-04",
        (2, 1, 1): "2023-11-15",
        (2, 5): "2024-10-17",
        (2, 7): "2025-04-23",
        (2, 8): "2025-08-06",
        (2, 9): "2025-10-15",
    },
    "torchtune": {(0, 5): "2024-12-20"},
    "torchvision": {(0, 13): "2022-06-28"},
    "transformers": {
        (4, 28): "2023-04-13",
        (4, 32): "2023-08-22",
        (4, 36): "2023-12-11",
        (4, 37): "2024-01-22",
        (4, 39): "2024-03-20",
        (4, 41): "2024-05-17",
        (4, 42): "2024-06-27",
        (4, 43): "2024-07-23",
        (4, 45): "2024-09-25",
        (4, 46): "2024-10-24",
        (4, 54): "2025-07-25",
        (5, 0): "2026-01-26",
        (5, 1): "2026-02-05",
        (5, 4): "2026-03-27",
        (5, 10): "2026-06-03",
        (5, 15): "2026-08-10",
    },
    "trl": {
        (0, 7): "2023-08-30",
        (0, 9): "2024-06-05",
        (0, 15): "2025-02-13",
        (0, 19): "2025-06-20",
        (0, 20): "2025-07-29",
        (0, 26): "2025-12-09",
        (0, 28): "2026-02-10",
        (0, 29): "2026-02-25",
        (1, 6): "2026-06-11",
        (1, 7): "2026-06-25",
        (1, 14): "2026-09-25",
        (1, 15): "2026-10-08",
    },
    "ultralytics": {
        (8, 4, 8): "2026-01-27",
        (8, 4, 105): "2026-07-24",
        (8, 4, 134): "2026-08-29",
        (8, 4, 154): "2026-09-16",
    },
    "verl": {
        (0, 4): "2025-06-08",
        (0, 4, 1): "2025-06-27",
        (0, 6): "2025-10-16",
        (0, 7): "2026-01-05",
        (0, 8): "2026-06-01",
    },
}
LIBRARIES: dict[str, Library] = {
    "unsloth": Library("Unsloth", "2026.10.9", "release.unsloth", ("unsloth",)),
    "accelerate": Library("accelerate", "1.15", "release.accelerate", ("accelerate",)),
    "peft": Library("PEFT", "0.21", "release.peft", ("peft",)),
    "bitsandbytes": Library("bitsandbytes", "0.50", "release.bitsandbytes", ("bitsandbytes",)),
    "jax": Library("JAX", "0.11", "framework_version", ("jax",)),
    "litgpt": Library("litgpt", "0.5.13", "release.litgpt", ("litgpt",)),
    "torch": Library("torch", "2.13", "framework_version", ("torch", "pytorch")),
    "torchtune": Library("torchtune", "0.6", "implementation_version", ("torchtune",)),
    "torchvision": Library("torchvision", "0.28", "release.torchvision", ("torchvision",)),
    "transformers": Library("transformers", "5.23", "transformers_version", ("transformers",)),
    "trl": Library("TRL", "1.16", "release.trl", ("trl",)),
    "ultralytics": Library("Ultralytics", "8.4.190", "release.ultralytics", ("ultralytics",)),
    "verl": Library("verl", "0.9", "release.verl", ("verl",)),
}


# Releases of torch since which rms_norm is another one, the newest first: rows ``torch.rms_norm_...``
NORM_RELEASES = ("2.12", "2.9", "2.7", "2.5")


def does(behaviour: str, release: object) -> bool:
    """Whether a release (``1.7.0``, ``torch 2.6``; None for the newest) behaves so. Raises KeyError for no row."""
    row = BEHAVIOURS[behaviour]
    found = series(release) or series(LIBRARIES[row.library].newest) or ()
    return (row.since is None or found >= row.since) and (row.until is None or found < row.until)


def borders(behaviour: str) -> list[Series]:
    """The releases at which a behaviour comes and goes."""
    row = BEHAVIOURS[behaviour]
    return [border for border in (row.since, row.until) if border is not None]


def on(library: str, day: str, limit: object = None) -> str:
    """A release of a library that behaves as the newest one before a day did (``2026-06-25``), or as ``limit`` where
    that is older: what is newest at a border stands for all until the next one. ``0.0`` where there is none."""
    known = DAYS.get(library, {})
    most = series(limit)
    found = [border for border, since in known.items() if since < day and (most is None or border <= most)]
    return ".".join(map(str, max(found, default=(0, 0))))


MAX_DIGITS = 9  # of one number of a release: nightly builds count days


def series(release: object) -> Series | None:
    """The first numbers of a release, up to three; None where it has fewer than two."""
    text = str(release or "").rpartition(" ")[2]
    numbers: list[int] = []
    for part in text.split("+", 1)[0].split(".", 3)[:3]:
        if not (part.isascii() and part.isdigit() and len(part) < MAX_DIGITS):
            break
        numbers.append(int(part))
    return tuple(numbers) if len(numbers) > 1 else None
