"""Linear layers whose weights are packed ahead of time: what they keep, and what a call and its gradient need."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from memlint.data import hub
from memlint.meta import tensor as meta
from memlint.meta.autograd import backward
from memlint.meta.nn import Linear
from memlint.models import record
from memlint.models.language.packed import PackedLinear
from tests.dialects.language_models import run
from tests.differential.oracle import live_and_peak
from tests.differential.test_language_models import SIZES, Setting, spec_of

ROWS, LENGTH, INPUTS, OUTPUTS = 6, 16, 256, 320
COUNT = INPUTS * OUTPUTS


class Bytes(NamedTuple):
    """Kept; the most while it is called, and held then; the most while its gradient is made."""

    kept: int
    call: int
    held: int
    gradient: int


def measured(kind: str, bits: int, group: int) -> Bytes:
    with meta.recording() as tape:
        with meta.default_dtype(meta.bfloat16):
            base = Linear(INPUTS, OUTPUTS, False)
            layer = PackedLinear(base, kind, bits, group)
            del base
        kept, _ = live_and_peak(tape, 0)
        x = meta.empty((ROWS, LENGTH, INPUTS), meta.bfloat16).requires_grad_()
        start, _ = live_and_peak(tape, 0)
        begin = len(tape.events)
        y = layer(x)
        held, call = live_and_peak(tape, begin)
        gradient = meta.empty_like(y)
        before, _ = live_and_peak(tape, 0)
        begin = len(tape.events)
        backward(y, gradient)
        return Bytes(kept, call - start, held - start, live_and_peak(tape, begin)[1] - before)


@pytest.mark.parametrize(
    ("bits", "theirs"),
    [
        pytest.param(4, Bytes(46080, 491520, 61440, 491520), id="4 bits"),
        pytest.param(2, Bytes(25600, 491520, 61440, 491520), id="2 bits"),
        pytest.param(8, Bytes(87040, 491520, 61440, 491520), id="8 bits"),
    ],
)
def test_hqq_takes_what_its_library_takes(bits: int, theirs: Bytes) -> None:
    """Read off ``HQQLinear`` of hqq 0.2.8 over fake tensors, with groups of 64, along either axis."""
    assert measured("hqq", bits, 64) == theirs


WEIGHT = COUNT * 2
OUT = ROWS * LENGTH * OUTPUTS * 2
IN = ROWS * LENGTH * INPUTS * 2
GROUPED = 2 * OUTPUTS * 4 // 8 + 2 * OUTPUTS * 2  # zeros in 4 bits, and scales: two groups of 128


@pytest.mark.parametrize(
    ("kind", "bits", "group", "expected"),
    [
        pytest.param(
            "gptq",
            4,
            128,
            Bytes(COUNT // 2 + GROUPED + INPUTS * 4, WEIGHT + OUT, WEIGHT + OUT, IN),
            id="GPTQ saves what it unpacked",
        ),
        pytest.param(
            "awq",
            4,
            128,
            Bytes(COUNT // 2 + GROUPED, WEIGHT + OUT, OUT, WEIGHT + ROWS * WEIGHT + IN),
            id="AWQ unpacks again, and once for every row",
        ),
        pytest.param(
            "aqlm",
            2,
            0,
            Bytes(COUNT // 4 + 65536 * 8 * 2 + OUTPUTS * 2, WEIGHT + OUT, OUT, WEIGHT + IN),
            id="AQLM has a table of codes for each layer",
        ),
        pytest.param(
            "eetq",
            8,
            0,
            Bytes(COUNT + OUTPUTS * 2, OUT, OUT, INPUTS * INPUTS * (4 + 2)),
            id="EETQ unpacks by way of an identity matrix",
        ),
    ],
)
def test_what_is_packed_and_unpacked(kind: str, bits: int, group: int, expected: Bytes) -> None:
    assert measured(kind, bits, group) == expected


@pytest.mark.parametrize("kind", ["gptq", "awq", "aqlm", "hqq", "eetq"])
def test_adapters_stand_beside_packed_weights(kind: str) -> None:
    config = {"model_type": "llama", **SIZES}
    bits = {"aqlm": 2, "eetq": 8}.get(kind, 4)
    facts: dict[str, Any] = {
        **Setting(dtype="bfloat16", every=1).facts(config),
        "frozen_dtype": "bfloat16",
        "tuning": "lora",
        "lora.r": 4,
        "lora.targets": "all-linear",
    }
    plain = record(spec_of(facts))
    packed = record(spec_of({**facts, "quantization.bits": bits, "quantization.kind": kind}))
    assert packed.parameters == plain.parameters
    assert packed.trainable_parameters == plain.trainable_parameters


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        pytest.param(
            "unsloth/Meta-Llama-3.1-8B-bnb-4bit",
            {"quantization.bits": 4, "quantization.kind": "nf4", "quantization.double": True},
            id="Unsloth's, with nested scales",
        ),
        pytest.param(
            "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8",
            {"quantization.bits": 8, "quantization.kind": "gptq", "quantization.group_size": 128},
            id="Qwen's GPTQ in 8 bits",
        ),
        pytest.param(
            "Qwen/Qwen2.5-7B-Instruct-AWQ", {"quantization.bits": 4, "quantization.kind": "awq"}, id="Qwen's AWQ"
        ),
        pytest.param(
            "TheBloke/Llama-2-7B-GPTQ",
            {"quantization.bits": 4, "quantization.kind": "gptq"},
            id="a single copy",
        ),
        pytest.param(
            "ISTA-DASLab/Meta-Llama-3-8B-Instruct-AQLM-2Bit-1x16",
            {"quantization.bits": 2, "quantization.kind": "aqlm"},
            id="AQLM",
        ),
    ],
)
@pytest.mark.parametrize("family", ["hf-trainer", "llamafactory"])
def test_a_copy_is_known_by_the_name_that_its_publisher_gives_it(name: str, facts: dict[str, Any], family: str) -> None:
    if family == "hf-trainer":
        text = "output_dir: out\nper_device_train_batch_size: 1\nmax_seq_length: 64\nuse_peft: true\nlora_r: 8\n"
        text += "lora_target_modules: q_proj\n"
    else:
        text = "stage: sft\ndo_train: true\nfinetuning_type: lora\ncutoff_len: 64\ndataset: a\noutput_dir: out\n"
    spec = run(f"model_name_or_path: {name}\n{text}")
    assert {fact: spec.get(fact) for fact in facts} == facts
    assert not spec.unknown_reason


def test_a_copy_of_an_unknown_model_stays_unknown() -> None:
    assert hub.resolve("unsloth/nothing-bnb-4bit") is None
    assert hub.resolve("somebody/Llama-2-7b-GPTQ") is None
