"""Family megatron: options of Megatron-LM's scripts, from one command to the facts of a model."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.architectures.decoder import Decoder, Experts, Latent
from memlint.dialects import objections
from memlint.dialects.megatron import perceptron_width
from memlint.dialects.pretraining import padded
from memlint.dialects.spelling import spell
from memlint.documents.load import load
from memlint.facts.spec import ASSUMED, DEFAULT, TrainingSpec
from memlint.fixes.edits import apply_edits
from memlint.models import record
from tests.dialects.language_models import line_of, run, runs, written

SIZES = "--num-layers 4 --hidden-size 256 --num-attention-heads 8 --vocab-size 1000"
BATCH = "--micro-batch-size 2 --seq-length 512"
LLAMA = "--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear --hidden-dropout 0"
HYPER = "hyperparameters."

SCRIPT = """\
#!/bin/bash
# One machine of eight cards, two of which share each layer.
GPUS=8
TP=2
BATCH=$((GPUS * 16))

MODEL_ARGS=(
    --num-layers 32          # as deep as the 7B
    --hidden-size 4096
    --ffn-hidden-size 11008
    --num-attention-heads 32
    --seq-length 4096
    --max-position-embeddings 4096
    --swiglu
    --normalization RMSNorm
    --position-embedding-type rope
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0
    --hidden-dropout 0.0
)
TRAINING_ARGS="--micro-batch-size 4 --global-batch-size $BATCH --bf16 --use-distributed-optimizer"

torchrun --nproc_per_node $GPUS pretrain_gpt.py \\
    ${MODEL_ARGS[@]} \\
    $TRAINING_ARGS \\
    --tensor-model-parallel-size $TP \\
    --sequence-parallel \\
    --tokenizer-type Llama2Tokenizer \\
    --data-path $DATA
"""


def command(options: str, launcher: str = "torchrun --nproc_per_node 4") -> TrainingSpec:
    return run(f"{launcher} pretrain_gpt.py {SIZES} {BATCH} {options}\n", "train.sh")


def decoder(spec: TrainingSpec) -> dict[str, Any]:
    found: Decoder = spec["decoder"]
    return found._asdict()


# ------------------------------------------------------------------------------------------------ recognising


@pytest.mark.parametrize(
    ("text", "known"),
    [
        pytest.param("python pretrain_gpt.py --lr 1", True, id="Megatron's own script"),
        pytest.param("python $(pwd)/pretrain_gpt.py --lr 1", True, id="in a folder that is known only as it runs"),
        pytest.param("python train.py " + SIZES, True, id="the sizes of a model"),
        pytest.param("python train.py --micro-batch-size 1 --tensor-model-parallel-size 2", True, id="a degree"),
        pytest.param("python train.py --micro_batch_size 1 --num_layers 2", False, id="underscores are another's"),
        pytest.param("python train.py --hidden-size 64 --lr 1", False, id="a size alone says nothing"),
        pytest.param(
            f"python train.py {SIZES} --rollout-batch-size 8", False, id="reinforcement learning around Megatron"
        ),
        pytest.param("python pretrain_mae.py --lr 1", False, id="another project's pretraining"),
    ],
)
def test_recognition(text: str, known: bool) -> None:
    families = [spec.family for spec in runs(text + "\n", "a.sh") if spec.family != "program"]
    assert families == (["megatron"] if known else [])


# ------------------------------------------------------------------------------------------------ a whole script


def test_a_script_with_arrays_variables_and_arithmetic() -> None:
    spec = run(SCRIPT, "train.sh")
    expected = {
        "implementation": "megatron",
        "micro_batch_size": 4,
        "global_batch_size": 128,
        "gradient_accumulation_steps": 8,  # 128 / (4 x 4 data parallel devices)
        "sequence_length": 4096,
        "device_count": 8,
        "parallelism.tensor": 2,
        "parallelism.data": 4,
        "parallelism.strategy": "zero",
        "parallelism.zero_stage": 1,
        "parallelism.shard": 4,
        "parallelism.sequence": True,
        "parameter_dtype": "bfloat16",
        "gradient_dtype": "float32",
        "master_weights": True,
        "autocast": False,
        "optimizer": "adamw",
        "optimizer_library": "megatron",
        "attention": "flash",
        "checkpointing": "none",
        "fused_kernels": ["rms_norm", "swiglu", "rotary"],
        "packing": True,
        "vocabulary_size": 32000,
        "workers": 2,
    }
    assert {name: spec.get(name) for name in expected} == expected
    assert spec["decoder"] == Decoder(
        vocabulary=32000,
        width=4096,
        layers=32,
        heads=32,
        key_value_heads=32,
        head_dim=128,
        intermediate=11008,
        rotary_dim=128,
    )
    assert (spec.architecture, spec.unknown_reason) == ("language_model", "")
    assert spec.model_name == "32 layers of 4096"
    assert line_of(spec, HYPER + "num_layers") == "--num-layers 32"
    assert line_of(spec, "device_count").startswith("torchrun --nproc_per_node")
    assert line_of(spec, "global_batch_size").startswith("TRAINING_ARGS=")
    assert spec.facts["vocabulary_size"].origin == ASSUMED


def test_a_command_in_a_string_that_another_shell_runs() -> None:
    text = """\
    NHIDDEN=1024
    ARGS=" \\
        --num-layers 8 --hidden-size $NHIDDEN --num-attention-heads 8 \\
        --micro-batch-size 1 --seq-length 1024 --fp16 --vocab-file $ROOT/gpt2-vocab.json \\
        "
    export LAUNCHER="python -u -m torch.distributed.run --nproc_per_node 4 --nnodes 2"
    export CMD=" \\
        `pwd`/pretrain_gpt.py \\
        --pipeline-model-parallel-size 2 \\
        $ARGS \\
        --deepspeed --zero-stage 1 --checkpoint-activations \\
        "
    srun bash -c '$LAUNCHER --node_rank $SLURM_PROCID $CMD'
    """
    spec = run(text, "job.slurm")
    expected = {
        "device_count": 8,
        "parallelism.data": 4,
        "parallelism.pipeline": 2,
        "parallelism.schedule": "1f1b",
        "parallelism.strategy": "zero",
        "parallelism.zero_stage": 1,
        "optimizer_library": "deepspeed",
        "parameter_dtype": "float16",
        "gradient_dtype": "float16",
        "loss_scaling": "dynamic",
        "checkpointing": "full",
        "attention": "eager",
        "vocabulary_size": 50304,
    }
    assert {name: spec.get(name) for name in expected} == expected
    assert decoder(spec)["positions"] == 1024
    assert decoder(spec)["width"] == 1024
    assert spec.architecture == "language_model"
    assert spec.missing == ()  # the vocabulary is GPT-2's, wherever its file is


# ------------------------------------------------------------------------------------------------ key by key


@pytest.mark.parametrize(
    ("options", "fact", "value"),
    [
        pytest.param("--bf16", "compute_dtype", "bfloat16", id="bf16 is the dtype of products"),
        pytest.param("--bf16", "gradient_dtype", "float32", id="bf16 accumulates gradients in fp32"),
        pytest.param("--bf16 --grad-reduce-in-bf16", "gradient_dtype", "bfloat16", id="unless it is told not to"),
        pytest.param("--fp16", "gradient_dtype", "float16", id="fp16 keeps gradients in fp16"),
        pytest.param(
            "--fp16 --accumulate-allreduce-grads-in-fp32", "gradient_dtype", "float32", id="unless it is told to widen"
        ),
        pytest.param("--fp16 --loss-scale 1024", "loss_scaling", 1024.0, id="a fixed loss scale"),
        pytest.param("", "parameter_dtype", "float32", id="neither is fp32"),
        pytest.param("", "master_weights", False, id="fp32 has no copies"),
        pytest.param("--bf16", "parallelism.strategy", "ddp", id="gradients alone are exchanged"),
        pytest.param("--bf16 --use-distributed-optimizer", "parallelism.zero_stage", 1, id="divided optimizer states"),
        pytest.param(
            "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params",
            "parallelism.zero_stage",
            3,
            id="Megatron's FSDP divides all three",
        ),
        pytest.param("--use-torch-fsdp2", "parallelism.strategy", "fsdp2", id="torch's FSDP"),
        pytest.param("--tensor-model-parallel-size 2", "parallelism.data", 2, id="what tensor parallelism leaves"),
        pytest.param(
            "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2",
            "parallelism.strategy",
            "none",
            id="one data parallel device exchanges nothing",
        ),
        pytest.param("--context-parallel-size 2", "parallelism.context", 2, id="sequences over two devices"),
        pytest.param("--expert-model-parallel-size 4", "parallelism.expert", 4, id="experts over four devices"),
        pytest.param(
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1",
            "parallelism.virtual_stages",
            2,
            id="virtual stages",
        ),
        pytest.param(
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1",
            "parallelism.schedule",
            "interleaved",
            id="virtual stages interleave",
        ),
        pytest.param("--global-batch-size 32", "gradient_accumulation_steps", 4, id="micro batches of a global batch"),
        pytest.param("--recompute-activations", "checkpointing", "selective", id="attention's scores recomputed"),
        pytest.param(
            "--recompute-granularity selective --bf16", "checkpointing", "none", id="scores that flash does not keep"
        ),
        pytest.param(
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
            "checkpointing",
            "full",
            id="every layer recomputed",
        ),
        pytest.param(
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2",
            "checkpointing_chunk",
            2,
            id="chunks of two layers",
        ),
        pytest.param(
            "--recompute-granularity full --recompute-method block --recompute-num-layers 1",
            "checkpointing",
            "blocks",
            id="the first layers of a stage are blocks",
        ),
        pytest.param("--bf16", "attention", "flash", id="Transformer Engine's attention is fused in 16 bits"),
        pytest.param("", "attention", "eager", id="and in fp32 it is not"),
        pytest.param("--bf16 --transformer-impl local", "attention", "eager", id="Megatron's own attention"),
        pytest.param("--bf16 --transformer-impl local --use-flash-attn", "attention", "flash", id="with flash"),
        pytest.param("--bf16 --attention-backend unfused", "attention", "eager", id="an unfused backend"),
        pytest.param(
            "--cross-entropy-loss-fusion --no-rope-fusion",
            "fused_kernels",
            ["rms_norm", "swiglu", "cross_entropy"],
            id="fusions on and off",
        ),
        pytest.param("--num-workers 6", "workers", 6, id="loader processes"),
        pytest.param("--optimizer sgd", "optimizer", "sgd", id="another optimizer"),
        pytest.param("--optimizer-cpu-offload", "parallelism.offload_optimizer", True, id="states in host memory"),
        pytest.param("--cpu-offloading-num-layers 2", "activation_offloading", True, id="activations in host memory"),
        pytest.param("--make-vocab-size-divisible-by 256", "vocabulary_size", 1024, id="the padded vocabulary"),
        pytest.param(
            "--make-vocab-size-divisible-by 300 --tensor-model-parallel-size 2",
            "vocabulary_size",
            1200,
            id="padded for every tensor parallel device",
        ),
        pytest.param(
            "--tokenizer-type NullTokenizer --make-vocab-size-divisible-by 10",
            "vocabulary_size",
            1010,
            id="one row more",
        ),
        pytest.param("--pad-vocab-size-to 4096", "vocabulary_size", 4096, id="rows as they are stated"),
    ],
)
def test_keys(options: str, fact: str, value: Any) -> None:
    spec = command(options)
    assert spec[fact] == value
    assert spec.facts[fact].node is not None or spec.facts[fact].reason


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param(
            "",
            {"positions": 512, "norm": "layer", "intermediate": 1024, "residual_dropout": 0.1, "qkv_bias": True},
            id="the defaults are GPT-2",
        ),
        pytest.param(
            "--position-embedding-type rope",
            {"positions": 0, "rotary": "half", "embedding_dropout": 0.1},
            id="rotary positions and LayerNorm",
        ),
        pytest.param(
            "--position-embedding-type alibi", {"alibi": True, "positions": 0, "embedding_norm": False}, id="ALiBi"
        ),
        pytest.param(
            LLAMA, {"norm": "rms", "intermediate": 640, "perceptron_bias": False, "perceptron": "gated"}, id="Llama"
        ),
        pytest.param(
            LLAMA + " --add-qkv-bias", {"qkv_bias": True, "output_bias": False}, id="biases of attention alone"
        ),
        pytest.param(LLAMA + " --qk-layernorm --kv-channels 64", {"query_norm": "head", "head_dim": 64}, id="norms"),
        pytest.param(
            LLAMA + " --group-query-attention --num-query-groups 2", {"key_value_heads": 2}, id="grouped heads"
        ),
        pytest.param(LLAMA + " --group-query-attention", {"key_value_heads": 1}, id="one group by default"),
        pytest.param(LLAMA, {"tied": True}, id="tied by default"),
        pytest.param(LLAMA + " --untie-embeddings-and-output-weights", {"tied": False}, id="a head of its own"),
        pytest.param(
            LLAMA.replace("--hidden-dropout 0", ""),
            {"residual_dropout": 0.1, "embedding_dropout": 0.1, "attention_dropout": 0.1},
            id="Llama with dropout",
        ),
        pytest.param(
            LLAMA + " --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 512",
            {"experts": Experts(8, 2, 512)},
            id="Mixtral",
        ),
        pytest.param(
            LLAMA + " --num-experts 8 --qk-layernorm",
            {"experts": Experts(8, 2, 640), "query_norm": "head"},
            id="experts and norms of queries",
        ),
        pytest.param(
            "--position-embedding-type rope --group-query-attention --num-query-groups 4",
            {"norm": "layer", "perceptron_bias": True, "key_value_heads": 4},
            id="LayerNorm with grouped heads",
        ),
        pytest.param(
            "--position-embedding-type rope --swiglu --disable-bias-linear --rotary-percent 0.25",
            {"norm": "layer", "perceptron": "gated", "rotary": "partial", "rotary_dim": 8},
            id="LayerNorm with a gate",
        ),
        pytest.param(
            "--position-embedding-type alibi --embed-layernorm", {"alibi": True, "embedding_norm": True}, id="BLOOM"
        ),
        pytest.param("--squared-relu", {"activation": "squared_relu", "perceptron": "fc1 fc2"}, id="Nemotron"),
    ],
)
def test_models(options: str, expected: dict[str, Any]) -> None:
    spec = command(options)
    found = decoder(spec)
    assert {name: found.get(name) for name in expected} == expected
    assert spec.architecture == "language_model"


# Options that describe a model that is published, and how many weights it has.
PUBLISHED = {
    "Llama 2 7B": (
        "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 11008 --vocab-size 32000 "
        + LLAMA
        + " --untie-embeddings-and-output-weights",
        6_738_415_616,
    ),
    "Mixtral 8x7B": (
        "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 14336 --vocab-size 32000 "
        "--group-query-attention --num-query-groups 8 --num-experts 8 --moe-router-topk 2 "
        + LLAMA
        + " --untie-embeddings-and-output-weights",
        46_702_792_704,
    ),
    "Qwen3 8B": (
        "--num-layers 36 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 12288 --vocab-size 151936 "
        "--group-query-attention --num-query-groups 8 --kv-channels 128 --qk-layernorm "
        + LLAMA
        + " --untie-embeddings-and-output-weights",
        8_190_735_360,
    ),
    "GPT-2 of 1.5 billion": (
        "--num-layers 48 --hidden-size 1600 --num-attention-heads 25 --max-position-embeddings 1024 "
        "--padded-vocab-size 50257",
        1_557_611_200,
    ),
    "BLOOM without its embedding's norm": (
        "--num-layers 70 --hidden-size 14336 --num-attention-heads 112 --padded-vocab-size 250880 "
        "--position-embedding-type alibi",
        176_247_271_424 - 2 * 14336,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_options_of_a_published_model_describe_its_weights(name: str) -> None:
    options, published = PUBLISHED[name]
    spec = run(f"torchrun --nproc_per_node 1 pretrain_gpt.py {BATCH} {options} --bf16\n", "a.sh")
    assert record(spec).parameters == published


# ------------------------------------------------------------------------------------------------ what is not known


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(
            f"torchrun pretrain_gpt.py {SIZES} --seq-length 8 --bf16", "--micro-batch-size is not stated", id="batch"
        ),
        pytest.param(
            f"torchrun pretrain_gpt.py {SIZES} --micro-batch-size 8", "--seq-length is not stated", id="length"
        ),
        pytest.param(f"torchrun pretrain_gpt.py {BATCH} --num-layers 2", "--hidden-size is not stated", id="a width"),
        pytest.param(
            f"torchrun pretrain_gpt.py {SIZES} --seq-length 8 --micro-batch-size $MBS",
            "--micro-batch-size is not known: MBS is not set in the script",
            id="a variable of the environment",
        ),
        pytest.param(
            f"torchrun pretrain_gpt.py {BATCH} --num-layers $LAYERS --hidden-size 64 --num-attention-heads 2",
            "--num-layers is not known: LAYERS is not set in the script",
            id="a size from the environment",
        ),
        pytest.param(
            f"torchrun pretrain_gpt.py {BATCH} --num-layers 2 --hidden-size 64 --num-attention-heads 2 "
            "--tokenizer-type SentencePieceTokenizer --tokenizer-model t.model",
            "--tokenizer-model t.model: how many rows it has is in its file, and --vocab-size is not stated",
            id="a vocabulary that is in a file",
        ),
        pytest.param(
            f"torchrun --nproc_per_node 6 pretrain_gpt.py {SIZES} {BATCH} --tensor-model-parallel-size 4",
            "no multiple of 4, which share one copy of the model",
            id="degrees that do not fit the devices",
        ),
        pytest.param(
            f"torchrun --nproc_per_node 4 pretrain_gpt.py {SIZES} {BATCH} --global-batch-size 12",
            "--global-batch-size 12 is no multiple of --micro-batch-size 2 on each of 4 data parallel devices",
            id="a batch that does not fit the devices",
        ),
        pytest.param(
            f"torchrun pretrain_gpt.py {SIZES} {BATCH} --ffn-hidden-size $FFN",
            "--ffn-hidden-size is not known: FFN is not set in the script",
            id="a width from the environment takes no default",
        ),
        pytest.param(
            f"torchrun pretrain_gpt.py {SIZES} {BATCH} --tensor-model-parallel-size $TP",
            "--tensor-model-parallel-size is not known: TP is not set in the script",
            id="a degree from the environment takes no default",
        ),
        pytest.param(
            f"torchrun pretrain_gpt.py {SIZES} {BATCH} --bf16 --fp8-format hybrid --transformer-impl local",
            "without Transformer Engine there are no products in float8",
            id="float8 in modules that have none",
        ),
        pytest.param(
            f"torchrun pretrain_gpt.py {SIZES} {BATCH} {LLAMA} --num-experts 4 --moe-layer-freq '([0]*1+[1]*2)'",
            "--moe-layer-freq is about 3 layers, and there are 4",
            id="a pattern of another number of layers",
        ),
        pytest.param(
            f"torchrun pretrain_gpt.py {SIZES} {BATCH} {LLAMA} --num-experts 4 --moe-layer-freq some",
            "--moe-layer-freq some is not known",
            id="no pattern",
        ),
        pytest.param(
            f"torchrun pretrain_gpt.py {SIZES} {BATCH} --recompute-granularity selective --recompute-modules gate",
            "--recompute-granularity: recomputing gate is not known",
            id="a part that no layer has",
        ),
        pytest.param(
            f"torchrun pretrain_t5.py {SIZES} {BATCH} --decoder-seq-length 64", "trains T5, which is not known", id="T5"
        ),
        pytest.param(
            f"torchrun pretrain_gpt.py {SIZES} {BATCH} --use-precision-aware-optimizer --exp-avg-dtype fp8",
            "--exp-avg-dtype fp8",
            id="states of other dtypes",
        ),
        pytest.param(
            f"torchrun --nproc_per_node 8 --nnodes $N pretrain_gpt.py {SIZES} {BATCH} --use-distributed-optimizer",
            "the number of devices that share the model is not known (--nnodes: N is not set in the script); say --gpu",
            id="a number of machines that only the cluster knows",
        ),
    ],
)
def test_what_is_not_known_is_named(text: str, reason: str) -> None:
    spec = run(text + "\n", "a.sh")
    assert spec.architecture is None
    assert reason in spec.unknown_reason


@pytest.mark.parametrize(
    ("options", "kind", "key"),
    [
        pytest.param("--tensor-model-parallel-size two", "wrong-type", "tensor-model-parallel-size", id="no number"),
        pytest.param("--micro-batch-size 0", "unknown-value", "micro-batch-size", id="no samples"),
        pytest.param("--normalization RMSNrom", "unknown-value", "normalization", id="a misspelt norm"),
        pytest.param("--recompute-granularity some", "unknown-value", "recompute-granularity", id="an unknown word"),
        pytest.param("--use-distributed-optimiser", "unknown-key", "use-distributed-optimiser", id="a misspelt option"),
    ],
)
def test_wrong_values_are_found_where_they_stand(options: str, kind: str, key: str) -> None:
    spec = run(f"torchrun pretrain_gpt.py {SIZES} --seq-length 8 {options}\n", "a.sh")
    assert [(one.kind, one.node.key_path) for one in objections.violations(spec)] == [(kind, key)]


def test_options_that_say_nothing_of_memory_are_no_misspelt_ones() -> None:
    names = (
        *("--vocab-file a --merge-file b --vocab-extra-ids 2 --lr-decay-iters 5 --no-masked-softmax-fusion",),
        *("--no-bias-gelu-fusion --no-save-optim --no-load-optim --weight-decay-incr-style constant --split 9,1,0",),
        *("--decoder-first-pipeline-num-layers 1 --expert-tensor-parallel-size 1 --train-samples 8 --eval-interval 9",),
        *("--moe-router-pre-softmax --moe-token-dispatcher-type alltoall --ds-sequence-parallel-size 1 --min-lr 0",),
    )
    assert objections.violations(command(" ".join(names))) == []


def test_a_deepspeed_file_that_is_there_is_part_of_the_run(tmp_path: Any) -> None:
    text = f"torchrun --nproc_per_node 4 pretrain_gpt.py {SIZES} {BATCH} --deepspeed --deepspeed_config z.json\n"
    stage = '{"zero_optimization": {"stage": 3, "reduce_bucket_size": 1000}}'
    root = written(tmp_path, {"train.sh": text, "z.json": stage})
    from memlint.dialects import registry

    (spec,) = registry.specs(load(str(root / "train.sh")))
    assert spec["parallelism.zero_stage"] == 3
    assert spec["parallelism.reduce_bucket_elements"] == 1000
    assert str(root / "z.json") in spec.document.sources


def test_bloom_s_optimizer_divides_its_states_by_itself() -> None:
    spec = command("--bf16 --deepspeed --zero-stage 0")
    assert spec["parallelism.zero_stage"] == 1
    assert "BF16_Optimizer" in spec.facts["parallelism.zero_stage"].reason


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        pytest.param("--deepspeed --zero-stage 1", "float32", id="DeepSpeed's engine of pipelines keeps logits"),
        pytest.param("--deepspeed --zero-stage 1 --no-pipeline-parallel", None, id="unless the model is no pipeline"),
        pytest.param("--deepspeed --zero-stage 2", None, id="which ZeRO 2 takes for granted"),
        pytest.param("", None, id="Megatron's own schedules return losses"),
    ],
)
def test_what_the_last_stage_hands_out(options: str, dtype: str | None) -> None:
    assert command(f"--bf16 {options}").get("parallelism.buffered_outputs") == dtype


def test_defaults_say_whose_they_are() -> None:
    spec = command("--bf16")
    for name in ("workers", "optimizer", "parallelism.tensor", HYPER + "hidden_dropout"):
        fact = spec.facts[name]
        assert (fact.origin, fact.reason) == (DEFAULT, "Megatron-LM core 0.16")


@pytest.mark.parametrize(
    ("width", "gated", "inner"),
    [
        pytest.param(4096, False, 16384, id="four times the width"),
        pytest.param(4096, True, 10880, id="a gate: two thirds, down to a multiple of 64"),
    ],
)
def test_perceptron_width(width: int, gated: bool, inner: int) -> None:
    assert perceptron_width(width, gated) == inner


@pytest.mark.parametrize(
    ("rows", "multiple", "expected"),
    [
        pytest.param(50257, 128, 50304, id="GPT-2's"),
        pytest.param(50257, 1024, 51200, id="for eight devices"),
        pytest.param(32000, 128, 32000, id="a multiple stays"),
    ],
)
def test_padding(rows: int, multiple: int, expected: int) -> None:
    assert padded(rows, multiple) == expected


# ------------------------------------------------------------------------------------------------ fixes


def changed(text: str, fact: str, value: Any) -> tuple[str, TrainingSpec]:
    """The script after a fix, and what it then says."""
    spec = run(text, "train.sh")
    after = apply_edits(spec.document.text, spell(spec, fact, value))
    return after, run(after, "train.sh")


@pytest.mark.parametrize(
    ("fact", "value", "line"),
    [
        pytest.param("micro_batch_size", 1, "--micro-batch-size 1 --global-batch-size", id="a smaller micro batch"),
        pytest.param("sequence_length", 2048, "--seq-length 2048", id="shorter samples"),
        pytest.param(
            "checkpointing",
            "full",
            "--recompute-granularity full",
            id="recomputation needs three options",
        ),
        pytest.param("parallelism.tensor", 4, "TP=4", id="a degree that a variable holds"),
        pytest.param("workers", 1, "--num-workers 1", id="an option that is not there"),
    ],
)
def test_fixes_are_spelled_as_options(fact: str, value: Any, line: str) -> None:
    after, spec = changed(SCRIPT, fact, value)
    assert line in after
    assert spec[fact] == value
    assert spec.architecture == "language_model"


def test_a_smaller_micro_batch_takes_more_steps_by_itself() -> None:
    _, spec = changed(SCRIPT, "micro_batch_size", 1)
    assert spec["gradient_accumulation_steps"] == 32


@pytest.mark.parametrize(
    ("options", "fact", "value", "text"),
    [
        pytest.param("", "compute_dtype", "bfloat16", "--bf16", id="16 bits"),
        pytest.param(
            "--bf16 --transformer-impl local", "attention", "flash", "--use-flash-attn", id="attention in one kernel"
        ),
        pytest.param("--bf16", "parallelism.zero_stage", 1, "--use-distributed-optimizer", id="divided states"),
        pytest.param(
            "--recompute-granularity selective", "checkpointing", "full", "--recompute-granularity full", id="all of it"
        ),
    ],
)
def test_switches_are_added(options: str, fact: str, value: Any, text: str) -> None:
    after, spec = changed(f"torchrun --nproc_per_node 4 pretrain_gpt.py {SIZES} {BATCH} {options}\n", fact, value)
    assert text in after
    assert spec[fact] == value


@pytest.mark.parametrize(
    ("options", "fact", "value"),
    [
        pytest.param("", "attention", "flash", id="FlashAttention in fp32"),
        pytest.param("--recompute-activations", "checkpointing", "full", id="beside a switch that says otherwise"),
        pytest.param("--max-position-embeddings 512", "sequence_length", 1024, id="more tokens than positions"),
        pytest.param("", "optimizer_implementation", "loop", id="an optimizer that Megatron has not"),
        pytest.param("", "gradient_accumulation_steps", 4, id="steps follow from the global batch"),
    ],
)
def test_what_has_no_spelling(options: str, fact: str, value: Any) -> None:
    assert spell(command(options), fact, value) == []


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        pytest.param(
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2",
            {"checkpointing": "full", "checkpointing_chunk": 2},
            id="two layers are recomputed together",
        ),
        pytest.param(
            "--recompute-granularity full --recompute-method block --recompute-num-layers 1",
            {"checkpointing": "blocks", "checkpointing_layers": 1},
            id="the first layer of each stage is recomputed",
        ),
        pytest.param(
            "--recompute-granularity full --recompute-method block --recompute-num-layers 1 "
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1",
            {"checkpointing": "blocks", "checkpointing_layers": 2},
            id="the first layer of each virtual stage is recomputed",
        ),
        pytest.param(
            "--activations-checkpoint-method uniform", {"checkpointing": "full"}, id="whole layers, by the older name"
        ),
        pytest.param(
            "--recompute-activations --attention-backend unfused",
            {"checkpointing": "selective", "checkpointing_modules": ["core_attn"]},
            id="scores that no kernel hides are recomputed",
        ),
        pytest.param(
            "--recompute-granularity selective --recompute-modules core_attn mlp --bf16",
            {"checkpointing": "selective", "checkpointing_modules": ["mlp"]},
            id="a fused kernel has no scores to recompute, the perceptron has",
        ),
        pytest.param(
            "--bf16 --fp8-format hybrid --fp8-param-gather",
            {"float8": True, "float8_weights": True, "parameter_dtype": "bfloat16"},
            id="products and weights in float8",
        ),
        pytest.param(
            "--bf16 --use-distributed-optimizer --use-precision-aware-optimizer --main-grads-dtype bf16 "
            "--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
            {"gradient_dtype": "bfloat16", "optimizer_state_dtype": "bfloat16", "optimizer_precision_aware": True},
            id="states and gradients in 16 bits",
        ),
        pytest.param(
            f"--bf16 {LLAMA} --num-experts 4 --expert-model-parallel-size 2 --tensor-model-parallel-size 2",
            {"parallelism.expert_tensor": 2, "parallelism.expert": 2},
            id="each expert is divided as the layers are",
        ),
        pytest.param(
            f"--bf16 {LLAMA} --num-experts 4 --tensor-model-parallel-size 2 --expert-tensor-parallel-size 1",
            {"parallelism.expert_tensor": 1},
            id="experts are whole",
        ),
    ],
)
def test_options_become_facts(options: str, facts: dict[str, Any]) -> None:
    spec = command(options)
    assert spec.unknown_reason == ""
    assert {name: spec.get(name) for name in facts} == facts


@pytest.mark.parametrize(
    ("options", "attention", "fused"),
    [
        pytest.param("--bf16", "flash", ["rms_norm", "swiglu", "rotary"], id="Transformer Engine's modules"),
        pytest.param("--bf16 --no-bias-gelu-fusion", "flash", ["rms_norm", "rotary"], id="without one of the fusions"),
        pytest.param("--fp16 --data-impl mmap", "eager", [], id="a script of 2022"),
        pytest.param("--fp16 --activations-checkpoint-method uniform", "eager", [], id="and one of 2021"),
        pytest.param("--bf16 --data-impl mmap --use-flash-attn", "flash", [], id="with a fused kernel all the same"),
        pytest.param(
            "--bf16 --data-impl mmap --use-mcore-models", "flash", ["rms_norm", "swiglu", "rotary"], id="core's modules"
        ),
    ],
)
def test_kernels_by_the_age_of_a_script(options: str, attention: str, fused: list[str]) -> None:
    spec = command(options)
    assert (spec["attention"], spec["fused_kernels"]) == (attention, fused)


@pytest.mark.parametrize(
    ("options", "layers", "expected"),
    [
        pytest.param("", 16, None, id="even ones are not listed"),
        pytest.param(
            "--decoder-first-pipeline-num-layers 3 --decoder-last-pipeline-num-layers 3",
            14,
            [3, 4, 4, 3],
            id="both ends",
        ),
        pytest.param("--decoder-first-pipeline-num-layers 4", 13, [4, 3, 3, 3], id="the first alone"),
        pytest.param("--decoder-last-pipeline-num-layers 1", 13, [4, 4, 4, 1], id="the last alone"),
        pytest.param(
            "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
            14,
            [3, 4, 4, 3],
            id="both ends count",
        ),
        pytest.param("--account-for-loss-in-pipeline-split", 15, [4, 4, 4, 3], id="the loss counts"),
        pytest.param("--decoder-first-pipeline-num-layers 4", 14, None, id="numbers that do not fit"),
        pytest.param(
            "--account-for-embedding-in-pipeline-split --num-virtual-stages-per-pipeline-rank 2",
            31,
            [3, 4, 4, 4, 3, 4, 4, 4],
            id="virtual stages, of each round in turn",
        ),
    ],
)
def test_layers_of_an_uneven_pipeline(options: str, layers: int, expected: list[int] | None) -> None:
    sizes = SIZES.replace("--num-layers 4", f"--num-layers {layers}")
    run_of = "torchrun --nproc_per_node 8 pretrain_gpt.py"
    text = f"{run_of} {sizes} {BATCH} --bf16 --pipeline-model-parallel-size 4 {options}\n"
    assert run(text, "a.sh").get("parallelism.stage_layers") == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param("--moe-router-topk 2", {"experts": Experts(4, 2, 640)}, id="Mixtral's"),
        pytest.param("--moe-layer-freq 2", {"experts": Experts(4, 2, 640, dense=(1, 3))}, id="in every other layer"),
        pytest.param(
            "--moe-layer-freq '([0]*1+[1]*3)' --moe-ffn-hidden-size 64 --moe-shared-expert-intermediate-size 128",
            {"experts": Experts(4, 2, 64, shared=128, dense=(0,))},
            id="behind a plain layer, beside a shared one",
        ),
        pytest.param(
            "--multi-latent-attention --q-lora-rank 96 --kv-lora-rank 64 --qk-head-dim 32 --qk-pos-emb-head-dim 16 "
            "--v-head-dim 32",
            {"latent": Latent(96, 64, 32, 16, 32, False), "head_dim": 48, "rotary_dim": 16},
            id="with latent attention",
        ),
    ],
)
def test_experts_of_several_kinds(options: str, expected: dict[str, Any]) -> None:
    found = decoder(command(f"--bf16 {LLAMA} --num-experts 4 {options}"))
    assert {name: found[name] for name in expected} == expected


def test_a_fork_s_options_may_have_underscores() -> None:
    """epfLLM/Megatron-LM at 806a833: megatron/arguments.py declares --num_layers."""
    dashed = run(f"torchrun --nproc_per_node 4 pretrain_gpt.py {SIZES} {BATCH} --bf16\n", "train.sh")
    words = f"{SIZES} {BATCH} --bf16".split()
    underscored = " ".join("--" + word[2:].replace("-", "_") if word.startswith("--") else word for word in words)
    found = run(f"torchrun --nproc_per_node 4 pretrain_gpt.py {underscored}\n", "train.sh")
    assert not found.unknown_reason
    assert found.get("decoder") == dashed.get("decoder")
    assert found.get("micro_batch_size") == 2
    assert not [one for one in objections.violations(found) if one.kind == "unknown-key"]


def test_a_task_of_megatron_s_tasks_is_no_decoder() -> None:
    found = run(f"torchrun --nproc_per_node 4 ./tasks/main.py --task RET-FINETUNE-NQ {SIZES} {BATCH}\n", "train.sh")
    assert "RET-FINETUNE-NQ" in found.unknown_reason
