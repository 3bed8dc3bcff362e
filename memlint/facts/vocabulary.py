"""Every fact that more than one module speaks of: its name, type, unit and meaning, once.

``python docs/facts.py`` makes two files of it: docs/facts.md, and :mod:`memlint.facts.names`, the names as types, by
which mypy knows a misspelt fact and the value of a well spelt one. A check of a config imports neither.
"""

from __future__ import annotations

from memlint.named_tuple import NamedTuple
from memlint.releases import LIBRARIES

# Facts of one family or one architecture. Which there are is said by the schema that sets them: nobody but the family
# that names one and the model that it names reads it, so the word need not mean the same anywhere else.
NAMESPACE = "hyperparameters."

# The type of a value -> how a type checker spells it.
TYPES = {
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "word": "str",
    "dtype": "str",
    "list": "list[Any]",
    "mapping": "dict[str, Any]",
    "any": "Any",
}


class Entry(NamedTuple):
    """One fact.

    kind     one of ``TYPES``; ``any`` where several types occur, which the meaning names
    meaning  what its value says; for a word, which words there are
    unit     what a number counts
    absent   what a model goes by where the fact is not there; "" where it cannot do without
    """

    name: str
    kind: str
    meaning: str
    unit: str = ""
    absent: str = ""


MODEL = (
    Entry(
        "same_model_as",
        "word",
        "the model that a folder out of reach is taken for: it has its name, or a run near it makes it of that",
    ),
    Entry("model", "any", "how the config names it: a hub id, a path, the name of a size"),
    Entry(
        "hyperparameters.config",
        "mapping",
        "the names of the model's `config.json` (`model_type`, `hidden_size`, ...), from the catalogue, a local "
        "folder, the local hub cache, `memlint models add` or `--model-config`",
    ),
    Entry(
        "model_class",
        "word",
        "`causal_lm`, `sequence_classification`, `token_classification`, `question_answering`, `masked_lm`, "
        "`seq2seq_lm`, `image_classification`, `vision_language`, `value_head` (a decoder with a value for each "
        "token), `embeddings` (a model without a head, whose states become one vector)",
        absent="`causal_lm`",
    ),
    Entry("labels", "integer", "of the classification heads", "classes", "2"),
    Entry(
        "implementation",
        "word",
        "whose code runs: `transformers`, `torchtune`, `torchtitan`, `litgpt`, `nanogpt`, `llm_c`, `megatron`, `neox`, "
        "`llm_foundry`",
        absent="`transformers`",
    ),
    Entry(
        "decoder",
        "any",
        "the model as a `memlint.architectures.decoder.Decoder`, of families whose own terms describe it; else it "
        "is read from `hyperparameters.config`",
    ),
    Entry(
        "llava",
        "any",
        "what LLaVA's own training script makes of a language model and a tower, as a "
        "`memlint.architectures.vision_language.LlavaScript`; what InternVL's makes of them, as a "
        "`memlint.architectures.internvl.InternVl`",
    ),
    Entry(
        "implementation_version",
        "word",
        "release of that library, where the config tells it (`0.3` of torchtitan, whose configs are Python) or the "
        "project pins it (torchtune)",
    ),
    Entry("vocabulary_size", "integer", "of the embedding, padding of the vocabulary included", "rows"),
    Entry(
        "tower_dtype",
        "dtype",
        "of LLaVA's own code: of the tower, which runs without gradients",
        absent="the weights'",
    ),
    Entry("projector_dtype", "dtype", "of LLaVA's and InternVL's own code: of the projector", absent="the weights'"),
    Entry("encoder_frozen", "boolean", "the encoder of a policy does not train", absent="false"),
    Entry("pretrained", "boolean", "weights are loaded"),
    Entry(
        "frozen_parts",
        "list",
        "parts of a vision-language model that neither train nor get adapters: `vision_tower`, `projector`, "
        "`language_model`; of LLaVA's own code `embeddings`, `layers`, `head` as well; of an encoder `positions`",
        absent="none",
    ),
    Entry(
        "embeddings_resized", "boolean", "the loaded model's embeddings are made anew for more tokens", absent="false"
    ),
    Entry(
        "method",
        "word",
        "what is trained for: `sft`, `pretraining`, `dpo`, `orpo`, `cpo`, `kto`, `grpo`, `rloo`, `reward`, `rerank` (a "
        "score of each pair of a query and a passage), ...",
        absent="`sft`",
    ),
    Entry("profile", "any", "the recorded profile that stands for the model"),
)

SAMPLE = (
    Entry("micro_batch_size", "integer", "per device and forward pass", "samples"),
    Entry("gradient_accumulation_steps", "integer", "per optimizer step", "micro batches", "1"),
    Entry("global_batch_size", "integer", "per optimizer step over all devices", "samples"),
    Entry("device_count", "integer", "of the run", "devices", "1"),
    Entry("world_size", "integer", "of the run, each with a device", "processes", "1"),
    Entry(
        "compute_capability",
        "word",
        "of the card that `--gpu` names, of families whose kernels depend on it (`card` in the schema): before 8.0 "
        "there is no TF32, and convolutions in fp32 take workspaces for transformed tiles",
    ),
    Entry("machines", "integer", "that the devices are in", "machines", "1"),
    Entry("sequence_length", "integer", "of the longest sample", "tokens"),
    Entry(
        "sequence_bound",
        "boolean",
        "nothing but the model bounds the longest sample: the interval of the estimate begins with the shortest one",
        absent="false",
    ),
    Entry("target_length", "integer", "of the longest output, of an encoder-decoder", "tokens"),
    Entry("packing", "boolean", "rows are always full", absent="false"),
    Entry("padding", "boolean", "rows of a batch differ in length, so masks are made", absent="false"),
    Entry("padding_free", "boolean", "samples of a batch are concatenated to one row", absent="false"),
    Entry("sequences_per_sample", "integer", "in one forward pass: 2 for a preference pair", "sequences", "1"),
    Entry(
        "query_length",
        "integer",
        "of the longest query, where embeddings of queries and passages are compared",
        "tokens",
    ),
    Entry(
        "sub_batch_size",
        "integer",
        "that embeddings are made of at once, one piece of a batch after the other",
        "sequences",
        "all",
    ),
    Entry(
        "embedding_pooling",
        "word",
        "what of a text's states becomes its vector: `cls` (the first), `last` (of rows that are filled up from the "
        "left), `end` (the last before what fills a row up), `mean` (the states times the mask of padding), "
        "`masked_mean` (the states with zeros where that is)",
        absent="`cls`",
    ),
    Entry("embedding_normalized", "boolean", "vectors are brought to length 1", absent="false"),
    Entry("embedding_tempered", "boolean", "scores of vectors are divided by a temperature", absent="true"),
    Entry(
        "negatives",
        "word",
        "which passages a query's own is told from: `own` (those of its group), `in_batch`, `across_devices`",
        absent="`in_batch`",
    ),
    Entry(
        "row_output",
        "word",
        "what is asked of whole rows in place of their next tokens, all rows of a batch at once: `vector` (the last "
        "token's state, brought to length 1), `score` (of a head in place of that over the vocabulary), `choice` (how "
        "much likelier one of two words is)",
        absent="nothing",
    ),
    Entry(
        "row_loss",
        "word",
        "of these: of vectors `contrast`, `similarity`, `distance`; of scores `classes`, `numbers`, `labels` (several "
        "at once); of both kinds of scores `pairs` (each by itself), `group` (those of a sample against each other)",
        absent="as the number of labels has it",
    ),
    Entry(
        "distillation",
        "word",
        "what is learnt from a teacher's scores, which are data: `kl_div`, `m3_kd_loss`",
        absent="nothing",
    ),
    Entry("generated_rows", "integer", "that a device samples at once before it learns from them", "sequences"),
    Entry("completion_length", "integer", "of a completion, within `sequence_length`", "tokens"),
    Entry(
        "scored_length",
        "integer",
        "of a sample, from its end, whose log-probabilities are taken of a copy",
        "tokens",
        "all of it",
    ),
    Entry(
        "logits_to_keep",
        "integer",
        "of a sample, from its end, of which the head makes logits where log-probabilities are asked for",
        "tokens",
        "all of it",
    ),
    Entry("mismatched_completions", "boolean", "KTO asks for completions of other prompts as well", absent="true"),
    Entry("token_product", "any", "(unit, names of the facts whose product it is), for MEM201"),
    Entry("attention_tokens", "integer", "that attend to each other", "tokens"),
    Entry(
        "image_size",
        "any",
        "side of a square image, or [height, width]; a list of other length is of sizes that occur",
        "pixels",
    ),
    Entry(
        "images_per_sample",
        "integer",
        "in one sample of a vision-language model; 0 where its data are text alone",
        "images",
        "1",
    ),
    Entry(
        "fewest_images",
        "integer",
        "of a sample without any of its own, where only the data say what samples have",
        "images",
        "0",
    ),
    Entry(
        "most_images",
        "integer",
        "that a sample of several may have, where only the data say so",
        "images",
        "`images_per_sample`",
    ),
    Entry("channels", "integer", "of an image or frame", "channels"),
    Entry("frames", "integer", "of a video sample", "frames", "1"),
    Entry("longest_frames", "integer", "of the longest video, where lengths differ", "frames"),
    Entry("predicted_frames", "integer", "that a video model predicts at once", "frames"),
    Entry("frames_in_batch", "word", "the fact that multiplies a batch in the models that fold frames into it"),
    Entry("patch_size", "any", "side of a patch, or one number for each axis", "pixels"),
    Entry("points", "integer", "of a cloud", "points"),
    Entry("groups", "integer", "that a cloud is cut into", "groups"),
    Entry("group_size", "integer", "of a group", "points"),
    Entry("observation_steps", "integer", "that a policy sees at once", "steps"),
    Entry("sample_size", "integer", "that a set of images is drawn with, of a set-conditioned model", "images"),
    Entry("loop_passes", "word", "the fact that counts the passes of a loop over samples, for MEM213"),
    Entry(
        "auto_batch_size",
        "boolean",
        "the trainer halves the batch until it fits: `micro_batch_size` is where it starts",
        absent="false",
    ),
)

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
        "`torch`, `bitsandbytes`, `torchao`, `apex`, `deepspeed`, `megatron`, `transformers` (its own Adafactor)",
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
    Entry("attention", "word", "`eager`, `sdpa`, `flash`, `xformers`"),
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

_ZERO = {
    "reduce_bucket_elements": "of the buckets in which gradients are reduced",
    "gather_bucket_elements": "of the buckets in which parameters are gathered",
    "prefetch_bucket_elements": "that are fetched ahead",
    "live_parameter_elements": "that are gathered at once",
    "reuse_distance_elements": "within which what is used again stays gathered",
    "persistence_elements": "below which a parameter is not sharded",
    "sub_group_elements": "that the optimizer updates at once",
}

PARALLELISM = (
    Entry("parallelism.strategy", "word", "`none`, `ddp`, `fsdp1`, `fsdp2`, `zero`"),
    Entry("sharing_file", "word", "a config of DeepSpeed or accelerate that the run names and that is not there"),
    Entry("sharding", "word", "what is tried in that file's place: `ZeRO-3`, `offloaded ZeRO-2`, `FSDP`, `DDP`"),
    Entry("parallelism.zero_stage", "integer", "0 to 3"),
    Entry(
        "parallelism.shard",
        "integer",
        "data-parallel ranks over which states are sharded; ranks that share sequences (`parallelism.context`, "
        "`parallelism.ulysses`) share them as well",
        "ranks",
        "`parallelism.data` / `parallelism.replicas`",
    ),
    Entry("parallelism.data", "integer", "of data parallelism", "ranks", "what remains of `device_count`"),
    Entry("parallelism.tensor", "integer", "that share each layer", "ranks", "1"),
    Entry("parallelism.pipeline", "integer", "of the pipeline", "stages", "1"),
    Entry("parallelism.context", "integer", "that share each sequence", "ranks", "1"),
    Entry("parallelism.expert", "integer", "that share the experts", "ranks", "1"),
    Entry(
        "parallelism.expert_tensor",
        "integer",
        "that share each expert",
        "ranks",
        "those of `parallelism.tensor`, without `parallelism.expert`",
    ),
    Entry(
        "parallelism.zero_redundancy",
        "boolean",
        "DDP whose optimizer is torch's ZeroRedundancyOptimizer: states of whole parameters are on one rank each",
        absent="false",
    ),
    Entry("parallelism.ulysses", "integer", "that share each sequence by attention heads", "ranks", "1"),
    Entry("parallelism.replicas", "integer", "of devices that replicate each other (hybrid sharding)", "groups", "1"),
    Entry("parallelism.sequence", "boolean", "sequence parallelism beside tensor parallelism", absent="false"),
    Entry(
        "parallelism.loss",
        "boolean",
        "torch's `loss_parallel` compares the shares of the vocabulary that tensor parallel ranks have; false: the "
        "logits are gathered",
    ),
    Entry("parallelism.schedule", "word", "`1f1b`, `interleaved`, `gpipe`"),
    Entry("parallelism.virtual_stages", "integer", "of one rank of a pipeline", "stages", "1"),
    Entry("parallelism.stage_layers", "any", "layers of each stage, where they are not as even as can be", "layers"),
    Entry(
        "parallelism.micro_batches",
        "integer",
        "that torch's schedules cut a batch into, and make room for at once",
        "micro batches",
    ),
    Entry("parallelism.wrap", "any", "class names of the units, or `none` for one unit", absent="the layers"),
    Entry(
        "parallelism.wrap_ends",
        "boolean",
        "FSDP2: the embedding is a unit, and the last norm with the head is one that stays gathered",
        absent="false",
    ),
    Entry(
        "parallelism.last_stays", "boolean", "FSDP2: the last layer stays gathered until its backward", absent="false"
    ),
    Entry(
        "parallelism.as_stored",
        "boolean",
        "FSDP1: weights are gathered in the dtypes that they are stored in, and what goes into a unit is not cast",
        absent="false",
    ),
    Entry("parallelism.output_dtype", "dtype", "FSDP2: what each unit hands on is brought to it", absent="as computed"),
    Entry(
        "parallelism.wrap_elements",
        "integer",
        "from which on modules are units, where the policy goes by size",
        "parameters",
    ),
    Entry(
        "parallelism.mixed_units",
        "boolean",
        "FSDP1: frozen weights lie in one flat parameter with those that train, and get gradients as these do",
        absent="false",
    ),
    Entry("parallelism.backward_prefetch", "word", "FSDP1's: `BACKWARD_PRE` or `BACKWARD_POST`"),
    Entry("parallelism.forward_prefetch", "boolean", "FSDP1's"),
    Entry("parallelism.reshard_after_forward", "boolean", "gathered weights go after their forward", absent="true"),
    Entry("parallelism.reduce_dtype", "dtype", "of gradient reduction"),
    Entry(
        "parallelism.reduces_last_only",
        "boolean",
        "FSDP: gradients are reduced with the last micro-batch alone; until then each device keeps them whole",
        absent="false",
    ),
    Entry("parallelism.cpu_offload", "boolean", "parameters and optimizer live in host memory", absent="false"),
    Entry("parallelism.offload_optimizer", "any", "ZeRO's", absent="false"),
    Entry("parallelism.offload_parameters", "any", "ZeRO's", absent="false"),
    Entry(
        "parallelism.loaded_whole",
        "boolean",
        "ZeRO 3: the whole model stands on every card before it is sharded, as a quantised one does",
        absent="false",
    ),
    Entry("parallelism.bucket_mb", "number", "DDP's", "MiB", "25"),
    Entry("parallelism.gradient_as_bucket_view", "boolean", "DDP's", absent="false"),
    *(Entry(f"parallelism.{name}", "any", f"ZeRO's: {meaning}", "elements") for name, meaning in _ZERO.items()),
    Entry("parallelism.overlap", "boolean", "ZeRO's `overlap_comm`", absent="true in stage 3"),
    Entry("parallelism.contiguous_gradients", "boolean", "ZeRO's gradient buffer"),
    Entry("parallelism.secondary_shard", "integer", "of ZeRO++'s group", "ranks"),
    Entry("saves_full_weights", "boolean", "a checkpoint gathers the whole model on one rank", absent="false"),
)

SURROUNDINGS = (
    Entry("evaluation_batch_size", "integer", "per device", "samples", "no evaluation"),
    Entry("evaluation_sequence_length", "integer", "of the longest sample", "tokens"),
    Entry("evaluation_accumulates", "boolean", "outputs stay on the card"),
    Entry(
        "evaluation_loss",
        "word",
        "`as_trained`: an evaluation takes it as training does",
        absent="of whole logits",
    ),
    Entry("engine_share", "number", "of the whole card that a colocated inference engine takes", "share"),
    Entry(
        "engine_beside",
        "list",
        "the engine gives its share back while the model trains, and these components of the training are on the card "
        "while it generates: `parameters`, `optimizer`",
        absent="the engine keeps its share",
    ),
    Entry(
        "engine_gets_whole_model",
        "boolean",
        "all weights are gathered at once on each device, to send them to an inference engine (ZeRO 3)",
        absent="false",
    ),
    Entry(
        "processes_per_device",
        "integer",
        "that have a context on each card: the one that trains, and those of the models and engines beside it",
        "processes",
        absent="1",
    ),
    Entry("empty_cache_steps", "integer", "after which the cache is emptied", "steps"),
    Entry(
        "outputs_kept",
        "any",
        "the training loop names the model's outputs, logits and cached keys and values, through backward: `true`, or "
        "`float32` where accelerate widens the logits",
    ),
    Entry(
        "loop",
        "list",
        "what a turn of a hand-written training loop does with what the model returns, statement by statement "
        "(`memlint/models/language/loops.py`)",
        absent="the loop goes backward from the model's own loss, and names nothing else",
    ),
    Entry(
        "keys_cached",
        "boolean",
        "a model that such a loop calls keeps keys and values, as for sampling (`use_cache`)",
        absent="true",
    ),
    Entry("workers", "integer", "that load samples", "processes"),
    Entry("prefetch_factor", "integer", "that each worker has ready", "batches"),
    Entry("pin_memory", "boolean", "batches are copied to pinned memory"),
    Entry("sample_bytes", "integer", "of a sample in host memory", "bytes"),
    Entry("dataset_in_memory", "boolean", "the data set is in host memory"),
    Entry("allocator_conf", "word", "settings of torch's caching allocator, as its environment variable has them"),
    Entry("framework", "word", "`torch`, `jax`"),
    Entry(
        "framework_version",
        "word",
        "before torch 2.0 gradients are kept as zeros, before 1.13 the context holds every kernel, before 1.11 a "
        "softmax keeps its input",
    ),
    Entry(
        "transformers_version",
        "word",
        "where no file pins it, the last release that takes the keys that are written",
        absent="the newest known",
    ),
    *(
        Entry(library.fact, "word", "of which `memlint/releases.py` tells the behaviour (docs/releases.md)")
        for library in LIBRARIES.values()
        if library.fact.startswith("release.")
    ),
    Entry(
        "recorded_layers",
        "any",
        "(layers that are recorded, layers that there are, after how many they repeat), while a deep model is recorded",
    ),
    Entry("recorded_passes", "integer", "of a loop that are recorded, while a model is", "passes"),
)

SECTIONS = {
    "Model": MODEL,
    "Batch and sample": SAMPLE,
    "Precision": PRECISION,
    "Optimizer": OPTIMIZER,
    "Activations": ACTIVATIONS,
    "Adapters and quantisation": ADAPTERS,
    "Copies": COPIES,
    "Parallelism": PARALLELISM,
    "Evaluation, host, environment": SURROUNDINGS,
}
ENTRIES = {entry.name: entry for section in SECTIONS.values() for entry in section}


def known(name: str) -> bool:
    """Whether a fact is in the vocabulary, or in the namespace of a family's own."""
    return name in ENTRIES or name.startswith(NAMESPACE)
