"""GPT-2 as llm.c trains it in CUDA: a few blocks of memory, all of them there from the first step to the last.

Sizes: B rows, T tokens, C channels, L layers, NH heads, V rows of the vocabulary, padded. Source: llm.c,
``train_gpt2.cu`` at its last release (``fill_in_parameter_sizes``, ``fill_in_activation_sizes``,
``gpt2_allocate_state``). There is no caching allocator and no autograd: what is kept for the backward pass, and what is
scratch, is one array.
"""

from __future__ import annotations

from memlint.architectures.decoder import Decoder
from memlint.facts.spec import HYPER, TrainingSpec
from memlint.meta.tape import Label, Tape
from memlint.models import Recording, UnknownModel

FP32_BYTES = TOKEN_BYTES = 4
RECOMPUTES_GELU, RECOMPUTES_NORMS = 1, 2  # values of -r
# cudnn's kernel of attention keeps a number per row; llm.c's own keeps all probabilities.
FUSED = "flash"


def record(spec: TrainingSpec, symbolic: bool = False) -> Recording:
    """A step of ``train_gpt2cu``. Raises UnknownModel where a size is not stated."""
    sizes = spec.get("decoder")
    if spec.unknown_reason or sizes is None:
        raise UnknownModel(spec.unknown_reason or "the model's sizes are not stated")
    tape = Tape(symbolic)
    tape.mark("setup")
    width = 4 if spec.get("parameter_dtype") == "float32" else 2
    count = parameters(sizes)
    devices = int(spec.get("device_count") or 1)
    shared = devices if spec.get("parallelism.zero_stage") else 1
    own = count // shared
    held = [
        tape.allocate(count * width, Label("parameters", "", "params_memory")),
        tape.allocate(count * width, Label("gradients", "", "grads_memory")),
        tape.allocate(own * FP32_BYTES, Label("optimizer", "", "m_memory")),
        tape.allocate(own * FP32_BYTES, Label("optimizer", "", "v_memory")),
    ]
    if spec.get("master_weights", True):
        held.append(tape.allocate(own * FP32_BYTES, Label("optimizer", "", "master_weights")))
    rows = spec["micro_batch_size"] * spec["sequence_length"]
    for name in ("inputs", "targets"):
        held.append(tape.allocate(rows * TOKEN_BYTES, Label("activations", "", name)))
    for name, elements, each in activations(spec, sizes):
        component = "logits" if name == "output" else "activations"
        held.append(tape.allocate(elements * (each or width), Label(component, "", name)))
    tape.saved_bytes = saved_bytes(spec)
    for phase in ("forward", "backward", "optimizer_step"):
        tape.mark(phase)
    groups = (("data", devices),) if devices > 1 else ()
    return Recording(tape, count, count, process_groups=groups)


def saved_bytes(spec: TrainingSpec) -> int:
    """All activations but the scratch of one layer."""
    width = 4 if spec.get("parameter_dtype") == "float32" else 2
    scratch = ("output", "scratch_bt4c", "scratch_btc")
    found = activations(spec, spec["decoder"])
    return sum(elements * (each or width) for name, elements, each in found if name not in scratch)


def parameters(sizes: Decoder) -> int:
    """Of both tables, twelve squares of C with their biases per layer, and the norms."""
    width, layers = sizes.width, sizes.layers
    tables = (sizes.vocabulary + sizes.positions) * width
    return int(tables + layers * (12 * width * width + 13 * width) + 2 * width)


def activations(spec: TrainingSpec, sizes: Decoder) -> list[tuple[str, int, int]]:
    """(name, elements, bytes of each or 0 for those of the weights) of every array, by llm.c's names."""
    rows, length = spec["micro_batch_size"] * spec["sequence_length"], spec["sequence_length"]
    width, layers, heads = sizes.width, sizes.layers, sizes.heads
    again = spec.get(HYPER + "recompute", RECOMPUTES_GELU)
    each = rows * width
    norms = 0 if again >= RECOMPUTES_NORMS else layers * each
    scores = (layers * rows * heads * length, 0)
    if spec.get("attention") == FUSED:
        scores = (layers * rows * heads, FP32_BYTES)
    found = [
        ("encoded", each, 0),
        ("ln1", norms, 0),
        ("ln1_mean", layers * rows, FP32_BYTES),
        ("ln1_rstd", layers * rows, FP32_BYTES),
        ("atty", layers * each, 0),
        ("att", *scores),
        ("residual2", layers * each, 0),
        ("ln2", norms, 0),
        ("ln2_mean", layers * rows, FP32_BYTES),
        ("ln2_rstd", layers * rows, FP32_BYTES),
        ("fch", layers * 4 * each, 0),
        ("fch_gelu", (1 if again >= RECOMPUTES_GELU else layers) * 4 * each, 0),
        ("residual3", layers * each, 0),
        ("lnf", each, 0),
        ("lnf_mean", rows, FP32_BYTES),
        ("lnf_rstd", rows, FP32_BYTES),
        ("losses", rows, FP32_BYTES),
        ("qkvr", layers * 3 * each, 0),
        ("output", rows * max(3 * width, heads * length, sizes.vocabulary), 0),
        ("scratch_bt4c", 4 * each, 0),
        ("scratch_btc", each, 0),
    ]
    return [(name, elements, size) for name, elements, size in found if elements]
