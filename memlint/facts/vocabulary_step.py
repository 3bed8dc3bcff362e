"""Facts of how a step is taken: precision, optimizer, activations, adapters, and copies of the weights."""

from __future__ import annotations

from memlint.facts.vocabulary_entry import Entry

PRECISION = (
    Entry("parameter_dtype", "dtype", "in which trained weights are stored"),
    Entry("frozen_dtype", "dtype", "of weights that do not train", absent="`parameter_dtype`"),
    Entry("compute_dtype", "dtype", "of matrix products"),
    Entry("autocast", "boolean", "`compute_dtype` comes from autocast over weights of another dtype", absent="false"),
    Entry(
        "master_weights",
        "boolean",
        "the optimizer keeps its own fp32 copy of 16-bit weights (DeepSpeed, Megatron)",
        absent="false",
    ),
    Entry("gradient_dtype", "dtype", "in which gradients are kept", absent="`parameter_dtype`"),
    Entry(
        "gradients_kept",
        "boolean",
        "gradients are written over with zeros after a step and not let go (a step captured as a CUDA graph)",
        absent="as the releases of torch and transformers have it",
    ),
    Entry("loss_scaling", "any", "`dynamic`, or a number", absent="none"),
    Entry(
        "float8",
        "boolean",
        "linear layers multiply in float8, and keep their inputs in `compute_dtype`; in Megatron's code (Transformer "
        "Engine) in one byte, beside two such copies of each weight",
        absent="false",
    ),
    Entry("float8_weights", "boolean", "weights are nothing but those copies", absent="false"),
    Entry(
        "float32_parts",
        "list",
        "what stays in float32 beside other weights in 16 bits: `norms`, `embeddings`, `head`",
        absent="none",
    ),
    Entry("mixed_precision", "any", "the half that accelerate is told, until `compute_dtype` is made of it"),
    Entry("deepspeed_dtype", "any", "the half that DeepSpeed's file states, until `parameter_dtype` is made of it"),
)

OPTIMIZER = (
    Entry(
        "optimizer",
        "word",
        "`adamw`, `adam`, `sgd`, `adafactor`, `lion`, `adamw_8bit`, `lion_8bit`, `adamw_4bit`, `adamw_fp8`, `muon`, "
        "`lamb`, `ademamix`, `galore_adamw`, `galore_adamw_8bit`, `galore_adafactor`, `apollo_adamw`, `lomo`, "
        "`adalomo`, `adam_mini`, `schedule_free_adamw`, `stable_adamw`, `optimi_adamw`, `came`, `grokadamw`, ...",
    ),
    Entry("optimizer_implementation", "word", "`foreach`, `fused`, `loop`"),
    Entry(
        "optimizer_library",
        "word",
        "`torch`, `bitsandbytes`, `torchao`, `apex`, `deepspeed`, `megatron`, `transformers` (its own Adafactor), "
        "`nanochat` (its own Muon, with AdamW)",
        absent="`torch`",
    ),
    Entry("optimizer_paged", "boolean", "states may move to host memory", absent="false"),
    Entry(
        "optimizer_in_backward",
        "boolean",
        "each parameter is updated, and its gradient freed, as soon as that is there",
        absent="false",
    ),
    Entry("optimizer_state_dtype", "dtype", "of its states", absent="the parameters'"),
    Entry(
        "optimizer_precision_aware",
        "boolean",
        "Megatron's: gradients are taken as they are, and of fp32 copies half is kept",
        absent="false",
    ),
    Entry("optimizer_rank", "integer", "of projected gradients: `galore_*`, `apollo_*`, `q_galore_*`"),
    Entry(
        "optimizer_targets",
        "any",
        "the modules whose gradients are projected: parts of their paths, patterns, `all-linear`, or `inner-linear` "
        "(without the head)",
    ),
)

ACTIVATIONS = (
    Entry(
        "checkpointing",
        "word",
        "`none`, `full` (every layer), `every` (every `checkpointing_every`-th layer), `selective` (per operator: "
        "fused attention and every other product are kept, torchtitan's and torchtune's policy), `blocks` (those "
        "of the family)",
    ),
    Entry("checkpointing_every", "integer", "the k of `every`", "layers"),
    Entry("checkpointing_chunk", "integer", "that Megatron recomputes together, with `full`", "layers", "1"),
    Entry(
        "checkpointing_layers", "any", "of a stage that Megatron recomputes, its first ones, with `blocks`", "layers"
    ),
    Entry("checkpointed_layers", "any", "(layers, of how many) that a family's own model recomputes"),
    Entry(
        "checkpointing_modules",
        "list",
        "parts of a layer that Megatron recomputes, with `selective`: `core_attn`, `mlp`, `moe`, `moe_act`, "
        "`layernorm`, `mla_up_proj`, `shared_experts`; with `full`, transformers' own names of parts, each of which is "
        "recomputed by itself",
    ),
    Entry("checkpointing_reentrant", "boolean", "torch's older kind", absent="false"),
    Entry(
        "tower_checkpointing",
        "word",
        "of a vision tower, where layers are recomputed: `as_decoder`, `none`, `trained` (only those that train)",
        absent="`as_decoder`",
    ),
    Entry("activation_offloading", "boolean", "what is saved for backward goes to host memory", absent="false"),
    Entry(
        "attention", "word", "`eager`, `sdpa`, `flash`, `xformers`, `flash_and_sdpa` (SDPA for heads that are too wide)"
    ),
    Entry(
        "loss",
        "word",
        "`full` (logits of all tokens at once), `chunked`, `fused` (the head's product is part of it), "
        "`in_forward` (so are the gradients, a piece of the tokens at a time), `outputs` (as "
        "full, but of logits in the dtype that the model hands them out in), `named` (by torch's own function, of "
        "logits that the loop names through backward), `shifted` (of a copy of these without each row's last token), "
        "`copied` (of a copy in float32 without each row's last token)",
        absent="`full`",
    ),
    Entry("loss_chunks", "integer", "of a chunked loss", "chunks"),
    Entry(
        "loss_rows", "integer", "of a piece whose gradient is written over its logits, of the loss `outputs`", "tokens"
    ),
    Entry(
        "head_in_loss",
        "boolean",
        "a chunked loss makes the logits of each chunk itself, and they live no longer than it takes (torchtune)",
        absent="false",
    ),
    Entry(
        "log_probabilities",
        "word",
        "how those of whole logits are made: `whole` (a log-softmax), `whole_first` (the same, before "
        "the likelihood of chosen answers), `rows` (one row's sum after the other), `copied` "
        "(the same of a copy), `kernel` (in one), `uncut` and `rolled` (a log-softmax, or flash-attn's kernel, of all "
        "tokens, with labels moved to them), `as_returned` (each row, in the dtype that the model hands logits out "
        "in), `in_place` (flash-attn's kernel in that dtype, its gradient written over the logits), `with_entropy` and "
        "`with_compiled_entropy` (the same beside the entropy of these logits, without writing over them), `of_copy` "
        "and `of_copy_with_entropy` (the kernel over a copy of padded logits, of the last `scored_length` tokens), "
        "`shared` (a log-softmax of each rank's share of the vocabulary, whose softmax is kept), `of_quotient`, "
        "`of_quotient_with_entropy` and `of_quotient_in_steps` (a compiled log-softmax of logits that are divided by a "
        "temperature, in the dtype that the model hands them out in; beside their entropy; and not compiled)",
        absent="`whole`",
    ),
    Entry(
        "likelihood_of_chosen",
        "boolean",
        "the cross entropy of a pair's chosen answer is part of the loss, in logits of its own",
        absent="false",
    ),
    Entry(
        "loss_tile",
        "any",
        "(tokens, rows of the vocabulary) of one tile, where the loss goes through the head in tiles and recomputes "
        "them in backward",
    ),
    Entry(
        "hyperparameters.label_smoothing",
        "number",
        "above 0: the Trainer takes the loss from whole logits itself (`LabelSmoother`)",
        absent="0",
    ),
    Entry(
        "fused_kernels",
        "list",
        "names of fused implementations: `rms_norm`, `swiglu` (or whichever gate the model has), `rotary`, "
        "`cross_entropy`, `linear_cross_entropy`, `cut_cross_entropy` (the head's product and the loss in tiles that "
        "never leave the chip), `layer_norm`, `gated_delta_rule` (flash-linear-attention's kernels for Qwen3-Next and "
        "Qwen3.5, where that package is installed), `xielu` (Apertus' activation, likewise); of adapters "
        "`lora_mlp`, `lora_qkv`, `lora_o`, `lora_embedding`, `lora_in_place` (gradients go where what they are of "
        "was kept); `head_norm` of queries and keys",
        absent="none",
    ),
    Entry(
        "compile",
        "boolean",
        "`torch.compile`: each layer is a graph of its own, also where the whole model is compiled",
        absent="false",
    ),
    Entry("compile_loss", "boolean", "the loss is compiled", absent="`compile`"),
)

ADAPTERS = (
    Entry(
        "tuning",
        "word",
        "`full`, `lora`, `dora`, `lora_fa`, `ia3`, `prompt`, `prefix`, `p_tuning`, `oft`, `vera`, `randlora`, "
        "`adalora`, `delora`, `gralora`, `loha`, `lokr`, `fourierft`, `oft_input` (PEFT's OFT), `boft`, `psoft`, "
        "`ln_tuning`, `trainable_tokens`, `adaption_prompt`, `adapter`, `freeze`",
        absent="`full`",
    ),
    Entry("lora.r", "integer", "of the adapters", "rank"),
    Entry("lora.alpha", "number", "what their product is multiplied by, times the rank"),
    Entry("lora.dropout", "number", "of their inputs", "share"),
    Entry("lora.targets", "any", "module names, or `all-linear`"),
    Entry("lora.modules_to_save", "any", "modules of which a copy trains in full beside the adapter"),
    Entry("lora.unfrozen", "any", "modules that train in full beside the adapter, as they are"),
    Entry("lora.dtype", "dtype", "of adapter weights", absent="`float32` in PEFT"),
    Entry("adapter.virtual_tokens", "integer", "for prompt, prefix and p-tuning", "tokens"),
    Entry(
        "adapter.options",
        "mapping",
        "the method's other settings, by PEFT's names (`gralora_k`, `token_indices`, ...)",
    ),
    Entry("ia3.feedforward", "list", "modules whose input is scaled instead of their result"),
    Entry("lora.parameters", "list", "weights of all experts that get adapters, by the last parts of their names"),
    Entry("freeze.layers", "integer", "that train: the last n, or the first n of a negative number", "layers"),
    Entry("freeze.modules", "any", "modules within those layers that train, or `all`"),
    Entry("freeze.extra_modules", "any", "modules beside them that train"),
    Entry("freeze.patterns", "list", "regular expressions; parameters train whose full names begin with what fits one"),
    Entry("oft.block_size", "integer", "size of the blocks; 0 where their number is stated"),
    Entry("oft.rank", "integer", "number of the blocks, where their size is 0"),
    Entry("oft.targets", "any", "modules that get them"),
    Entry("quantization.bits", "integer", "of frozen base weights: 4 or 8", "bits", "not quantised"),
    Entry("quantization.kind", "word", "`nf4`, `fp4`, `int8`, `gptq`, `awq`, `aqlm`, `hqq`, `eetq`"),
    Entry(
        "quantization.group_size",
        "integer",
        "that share a scale: `gptq`, `awq`, `hqq`; 0 for one scale per row",
        "weights",
    ),
    Entry("quantization.double", "boolean", "scales are quantised again", absent="false"),
    Entry("quantization.skipped", "list", "linear layers by their last names that stay as they are, beside the head"),
    Entry("quantization.experts", "boolean", "the common weights of experts are quantised as well", absent="false"),
    Entry(
        "quantization.prepared",
        "boolean",
        "`prepare_model_for_kbit_training` ran: what is not quantised is in fp32",
        absent="false",
    ),
    Entry(
        "quantization.prepared_and_back",
        "boolean",
        "it ran, and what is no norm went back to 16 bits before the first step",
        absent="false",
    ),
)

COPIES = (
    Entry("ema", "boolean", "a moving average of the weights is kept", absent="false"),
    Entry("reference_model", "word", "`none`, `copy`, `adapter_off`, `precomputed`", absent="`none`"),
    Entry("reference_dtype", "dtype", "of a copy", absent="the policy's"),
    Entry(
        "resident_models",
        "list",
        "(contents of a `config.json`, bytes for each parameter) of models whose states stay on the card, sharded as "
        "those of the trained model, while that trains; with `words` of one that ends in a vocabulary, with `whole` of "
        "one that is not sharded",
    ),
    Entry("helper_models", "list", "mappings with `model`, `dtype`, and `bits` where it is quantised"),
)
