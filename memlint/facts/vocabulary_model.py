"""Facts of what is trained, and on what: the model, and the samples of a batch."""

from __future__ import annotations

from memlint.facts.vocabulary_entry import Entry

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
        "own_model",
        "mapping",
        "a model of the repository's own code: the texts of the program that makes it and of the modules that it "
        "imports, and what its command sets",
    ),
    Entry(
        "implementation",
        "word",
        "whose code runs: `transformers`, `torchtune`, `torchtitan`, `litgpt`, `nanogpt`, `llm_c`, `megatron`, `neox`, "
        "`llm_foundry`, `nanotron`, `olmo`",
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
        "`language_model`; of LLaVA's and Qwen-VL's own code `embeddings`, `layers`, `head` as well; of an encoder "
        "`positions`",
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
        "forward_passes",
        "integer",
        "of a micro-batch before its backward pass, each of an equal part of its sequences",
        "passes",
        "1",
    ),
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
    Entry(
        "most_image_tokens",
        "integer",
        "of a sample that may stand for its images, where the longest sample has more that do not",
        "tokens",
        "all of them",
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
