"""Facts of where a step is taken: what devices share, and what is on them and in their host beside it."""

from __future__ import annotations

from memlint.facts.vocabulary_entry import Entry
from memlint.releases import LIBRARIES

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
    Entry(
        "parallelism.buffered_outputs",
        "word",
        "the dtype of the logits that DeepSpeed's pipeline engine keeps of the last two micro-batches",
        absent="nothing is kept",
    ),
    Entry("parallelism.virtual_stages", "integer", "of one rank of a pipeline", "stages", "1"),
    Entry("parallelism.stage_layers", "any", "layers of each stage, where they are not as even as can be", "layers"),
    Entry(
        "parallelism.micro_batches",
        "integer",
        "that torch's schedules cut a batch into, and make room for at once",
        "micro batches",
    ),
    Entry(
        "parallelism.wrap",
        "any",
        "class names of the units, names of parts of the model, or `none`",
        absent="the layers",
    ),
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
    Entry("oldest_releases", "any", "library -> the release that the project asks for at least"),
    *(
        Entry(library.fact, "word", "of which `memlint/releases/` tells the behaviour (docs/releases.md)")
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
