"""Families llm-c and rwkv: options of trainers with kernels of their own, and of llm.c's twin in PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.dialects import registry
from memlint.dialects.spelling import spell
from memlint.documents.load import load
from memlint.fixes.edits import apply_edits
from memlint.models import record, saved_bytes
from tests.dialects.language_models import line_of, run, runs
from tests.material import corpus_folder

TWIN = """\
torchrun --standalone --nproc_per_node=4 train_gpt2.py \\
    --input_bin "data/ours_*.bin" \\
    --model d24 \\
    --batch_size 8 \\
    --sequence_length 512 \\
    --total_batch_size 65536 \\
    --dtype bfloat16 \\
    --compile 1 \\
    --flash 1
"""
CUDA = "mpirun -np 4 ./train_gpt2cu -i data/ours.bin -b 16 -t 512 -d 131072 -r 0 -z 1 -e d12 -x 100\n"
RWKV = """\
BSZ=8
python train.py --my_testing x070 --ctx_len 1024 --micro_bsz $BSZ --n_layer 24 --n_embd 2048 --vocab_size 65536 \\
    --precision bf16 --strategy deepspeed_stage_2 --devices 4 --grad_cp 1
"""


@pytest.mark.parametrize(
    ("text", "families"),
    [
        pytest.param(TWIN, ["llm-c"], id="the twin in PyTorch"),
        pytest.param(CUDA, ["llm-c"], id="the program in CUDA"),
        pytest.param(
            "python train_gpt2.py --batch_size 4 --sequence_length 64 --total_batch_size 256",
            ["llm-c"],
            id="the twin, on the data that it comes with",
        ),
        pytest.param(RWKV, ["rwkv"], id="RWKV"),
        pytest.param("python train.py --batch_size 4 --sequence_length 8", ["program"], id="options that say nothing"),
        pytest.param("make train_gpt2cu USE_CUDNN=1", [], id="building it trains nothing"),
    ],
)
def test_recognition(text: str, families: list[str]) -> None:
    assert [spec.family for spec in runs(text, "go.sh")] == families


@pytest.mark.parametrize(
    ("fact", "value", "line"),
    [
        pytest.param("micro_batch_size", 8, "--batch_size 8 \\", id="the micro batch"),
        pytest.param("sequence_length", 512, "--sequence_length 512 \\", id="the length of a row"),
        pytest.param("gradient_accumulation_steps", 4, "--total_batch_size 65536 \\", id="accumulation, of tokens"),
        pytest.param("compute_dtype", "bfloat16", "--dtype bfloat16 \\", id="products"),
        pytest.param("compile", True, "--compile 1 \\", id="compile"),
        pytest.param("attention", "sdpa", "--flash 1", id="attention"),
        pytest.param("parallelism.strategy", "ddp", None, id="DDP"),
        pytest.param("device_count", 4, None, id="processes"),
    ],
)
def test_options_of_the_twin(fact: str, value: Any, line: str | None) -> None:
    spec = run(TWIN, "go.sh")
    assert spec.architecture == "language_model"
    assert spec["decoder"].layers == 24
    assert spec[fact] == value
    if line is not None:
        assert line_of(spec, fact) == line


def test_a_fix_is_written_as_an_option() -> None:
    after = apply_edits(TWIN, spell(run(TWIN, "go.sh"), "micro_batch_size", 2))
    assert "--batch_size 2 \\\n" in after
    assert run(after, "go.sh")["gradient_accumulation_steps"] == 16
    assert spell(run(TWIN, "go.sh"), "checkpointing", "full") == []


@pytest.mark.parametrize(
    ("text", "facts", "reason"),
    [
        pytest.param(
            CUDA.replace("-e d12", "-e my.bin"),
            {"micro_batch_size": 16, "sequence_length": 512, "gradient_accumulation_steps": 4, "master_weights": True},
            "-e my.bin: the sizes of the model are in that file",
            id="a file of weights that says no size",
        ),
        pytest.param(TWIN.replace("--flash", "--zero_stage 2 --flash"), {"device_count": 4}, "zero_stage 2", id="ZeRO"),
        pytest.param(TWIN.replace("d24", "d13"), {}, "--model d13", id="a size that is not there"),
        pytest.param(RWKV.replace("x070", "x051"), {}, "x051: what its time mixing keeps", id="another RWKV"),
        pytest.param(RWKV.replace("--my_testing x070 ", ""), {}, "my_testing is not stated", id="no version"),
        pytest.param(RWKV.replace("deepspeed_stage_2", "ddp"), {}, "without DeepSpeed", id="another strategy"),
        pytest.param(RWKV.replace("bf16", "fp16"), {}, "take bfloat16", id="another precision"),
        pytest.param(RWKV.replace("$BSZ", "$M_BSZ"), {}, "--micro_bsz is not known", id="a batch of the environment"),
    ],
)
def test_what_is_not_known_is_named(text: str, facts: dict[str, Any], reason: str) -> None:
    spec = run(text, "go.sh")
    assert spec.architecture is None
    assert reason in spec.unknown_reason
    assert {name: spec[name] for name in facts} == facts


def test_states_of_the_twin_are_on_the_rank_of_their_parameter() -> None:
    """GPT-2 on four devices: the embedding is more than a quarter of all, so one rank has its states alone."""
    text = TWIN.replace("d24", "d12").replace("--flash", "--zero_stage 1 --flash")
    tape = record(run(text, "go.sh")).tape
    start = next(at for at, phase in tape.marks if phase == "forward")
    states = [event for event in tape.events[:start] if tape.labels[event].component == "optimizer"]
    assert sum(tape.sizes[event] for event in states) == pytest.approx(2 * 4 * 50257 * 768, rel=0.001)


# ------------------------------------------------------------------------------------------------ llm.c in CUDA


@pytest.mark.parametrize(
    ("name", "layers", "width", "positions"),
    [
        pytest.param("d48", 48, 1600, 1024, id="by its depth"),
        pytest.param("gpt2:d36", 36, 1280, 1024, id="by its kind and depth"),
        pytest.param("gpt3:c2048", 24, 2048, 2048, id="GPT-3's, by its width"),
        pytest.param("gpt2_355M_bf16.bin", 24, 1024, 1024, id="a file that says its size"),
    ],
)
def test_sizes_of_the_program_in_cuda(name: str, layers: int, width: int, positions: int) -> None:
    spec = run(CUDA.replace("-e d12", f"-e {name}"), "go.sh")
    assert spec.architecture == "llm_c"
    model = spec["decoder"]
    assert (model.layers, model.width, model.positions) == (layers, width, positions)


def bytes_of(text: str) -> dict[str, int]:
    tape = record(run(text, "go.sh")).tape
    found: dict[str, int] = {}
    for size, label in zip(tape.sizes, tape.labels):
        found[label.component] = found.get(label.component, 0) + size
    return found


GPT2 = 124_475_904  # GPT-2's 124,439,808 parameters, and 47 rows more of 768


def test_states_of_the_program_in_cuda() -> None:
    """Weights and gradients in bfloat16; two states and master weights in fp32, over four devices (-z 1)."""
    found = bytes_of(CUDA)
    assert (found["parameters"], found["gradients"]) == (2 * GPT2, 2 * GPT2)
    assert found["optimizer"] == 3 * 4 * GPT2 // 4
    assert bytes_of(CUDA.replace("-z 1", "-z 0"))["optimizer"] == 12 * GPT2
    assert bytes_of(CUDA.replace("-z 1", "-z 0 -w 0"))["optimizer"] == 8 * GPT2


@pytest.mark.parametrize(
    ("options", "per_layer"),
    [
        pytest.param("-r 0", 2 * (5 + 4 + 4 + 3), id="all"),
        pytest.param("-r 1", 2 * (5 + 4 + 3), id="without GELU's results"),
        pytest.param("-r 2", 2 * (3 + 4 + 3), id="without those of norms"),
    ],
)
@pytest.mark.parametrize("built", [True, False], ids=["with cuDNN", "without"])
def test_activations_of_the_program_in_cuda(options: str, per_layer: int, built: bool) -> None:
    """Per layer and token so many bytes times the width, four statistics, and attention's: a number per head or all of
    its probabilities. What does not grow with the layers cancels out."""
    text = CUDA.replace("-r 0", options)
    text = f"make train_gpt2cu USE_CUDNN=1\n{text}" if built else text
    tokens, length = 16 * 512, 512
    deep, shallow = (bytes_of(text.replace("-e d12", f"-e {name}"))["activations"] for name in ("d24", "d12"))
    scores = {n: 4 * n if built else 2 * n * length for n in (16, 12)}
    each = {
        layers: layers * tokens * (per_layer * width + 4 * 4 + scores[n])
        for layers, width, n in ((24, 1024, 16), (12, 768, 12))
    }
    once = 2 * tokens * (1 + 1 + 4 + 1) + (0 if options == "-r 0" else 2 * tokens * 4)  # bytes per unit of width
    assert deep - shallow == each[24] - each[12] + once * (1024 - 768)


def test_logits_share_a_buffer_with_scratch() -> None:
    assert bytes_of(CUDA)["logits"] == 2 * 16 * 512 * 50304


# ------------------------------------------------------------------------------------------------ RWKV


def test_options_of_rwkv() -> None:
    spec = run(RWKV, "go.sh")
    expected = {
        "micro_batch_size": 8, "checkpointing": "full", "parallelism.zero_stage": 2, "device_count": 4,
        "compute_dtype": "bfloat16", "parameter_dtype": "bfloat16", "master_weights": True,
        "parallelism.reduce_bucket_elements": 200_000_000, "vocabulary_size": 65536,
    }  # fmt: skip
    assert spec.architecture == "rwkv"
    assert {name: spec.get(name) for name in expected} == expected


def rwkv(version: str, layers: int = 2, width: int = 128, **options: Any) -> str:
    stated = {"ctx_len": 64, "micro_bsz": 2, "vocab_size": 1024, "precision": "bf16", "strategy": "deepspeed_stage_2",
              "devices": 1, "grad_cp": 0, "ds_bucket_mb": 2, **options}  # fmt: skip
    words = " ".join(f"--{name} {value}" for name, value in stated.items())
    return f"python train.py --my_testing {version} --n_layer {layers} --n_embd {width} {words}\n"


C, V, HEADS = 128, 1024, 2
PER_LAYER = {
    # four mixtures and two of the perceptron, decay and bonus; five products, three of the perceptron; three norms
    "x052": 6 * C + 2 * C + 5 * C * C + 2 * C * 448 + C * C + 3 * 2 * C,
    # eight mixtures, decay and bonus; narrow products of the mixtures (5 x 32) and of the decay (64); the same others
    "x060": 8 * C + 2 * C + 2 * C * 160 + 2 * C * 64 + 5 * C * C + 2 * C * 448 + C * C + 3 * 2 * C,
    # seven mixtures; w, a and v with ranks of 32 each, g of 64, k_k, k_a and r_k; four products, two; three norms
    "x070": 7 * C + 3 * (C + 2 * C * 32) + 2 * C * 64 + 3 * C + 4 * C * C + 2 * C * 512 + 3 * 2 * C,
}


@pytest.mark.parametrize("version", PER_LAYER)
def test_parameters_of_rwkv(version: str) -> None:
    first = 2 * C - (C + 2 * C * 32) * (version == "x070")  # a norm more; no values to remember
    found = record(run(rwkv(version), "go.sh")).parameters
    assert found == 2 * PER_LAYER[version] + first + 2 * V * C + 2 * C


def saved(text: str) -> int:
    return saved_bytes(run(text, "go.sh"))


def test_a_recomputed_block_keeps_its_inputs_alone() -> None:
    """And in x070 the first layer's values, once for all layers."""
    tokens = 2 * 64
    for version in ("x060", "x070"):
        two, three = (saved(rwkv(version, layers, grad_cp=1)) for layers in (2, 3))
        assert three - two == 2 * tokens * C, version


def test_the_kernel_of_x070_keeps_states_and_corrections() -> None:
    """A state of N x N for every 16 tokens and a correction per number, in fp32: 4 N / 16 + 4 bytes for each of the
    channels. With twice the tokens everything else doubles, too, so that the share is seen between head widths."""
    tokens = 2 * 64
    narrow, wide = (
        saved(rwkv("x070", 3, head_size_a=size)) - saved(rwkv("x070", 2, head_size_a=size)) for size in (32, 64)
    )
    heads = C // 32 - C // 64  # one norm of directions, one of the groups and one sum for each head
    assert wide - narrow == tokens * C * 4 * (64 - 32) // 16 - tokens * heads * (2 + 2 + 2 + 1 + 1)


def test_logits_of_rwkv_stay_in_16_bits() -> None:
    """They, their log-softmax, and in backward the gradients of both and of what pulls them to zero."""
    tape = record(run(rwkv("x060", vocab_size=65536, grad_cp=1), "go.sh")).tape
    alive = most = 0
    for event in tape.events:
        number = event if event >= 0 else ~event
        if tape.labels[number].component == "logits":
            alive += tape.sizes[number] if event >= 0 else -tape.sizes[number]
            most = max(most, alive)
    assert most == pytest.approx(8 * 2 * 64 * 65536, rel=0.01)


def test_one_device_has_deepspeed_s_copies_too() -> None:
    recording = record(run(rwkv("x060"), "go.sh"))
    tape = recording.tape
    states = sum(size for size, label in zip(tape.sizes, tape.labels) if label.component == "optimizer")
    assert states == pytest.approx(12 * recording.parameters, rel=0.001)


def test_real_scripts_are_recognised() -> None:
    folder = corpus_folder()
    families = {
        path.name: {spec.family for spec in registry.specs(load(str(path)))}
        for path in sorted((folder / "nanogpt").iterdir())
        if "TinyLlama" not in path.name
    }
    assert all(found and found <= {"llm-c", "rwkv"} for found in families.values()), families


def test_a_program_with_the_twin_s_options_and_a_name_of_its_own_makes_its_own_model() -> None:
    """jgcb00/nanoGPT: main.py --model dragon --d_model 1280, whose batch_size is that of all devices and steps."""
    text = (
        "torchrun --nproc_per_node 4 main.py --d_model 1280 --batch_size 64 --sequence_length 4736 --input_bin a.bin\n"
    )
    (found,) = registry.specs(load("train.sh", text))
    assert found.architecture is None
    assert "main.py" in found.unknown_reason
