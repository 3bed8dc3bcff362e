"""What shorter batches leave in the allocator (memlint/tape/lengths.py), by hand and in whole runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint import estimates
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.meta.tape import Label, Tape
from memlint.tape import lengths
from memlint.tape.allocator import simulate
from memlint.tape.allocator_conf import DEFAULT, parse_conf
from memlint.tape.estimate import FITS, Estimate
from memlint.units import MiB

WEIGHT, STATE = 64 * MiB, 128 * MiB


def step(length: int, weight: int = WEIGHT) -> Tape:
    """A weight, an activation and a temporary of so many MiB, and the state of an optimizer that makes it late."""
    tape = Tape()
    tape.states_late = True
    tape.mark("setup")
    tape.allocate(weight, Label("parameters", "w"))
    tape.allocate(STATE, Label("optimizer", "w"))
    tape.mark("forward")
    activation = tape.allocate(length * MiB, Label("activations", "x"))
    temporary = tape.allocate(2 * length * MiB, Label("activations", "y"))
    tape.free(temporary)
    tape.free(activation)
    tape.mark("optimizer_step")
    return tape


def test_a_longer_batch_takes_segments_beside_the_free_ones_of_shorter_batches() -> None:
    run = lengths.in_turn([step(256), step(512)], step(1024))
    assert run is not None
    # By hand: blocks of 256 and 512 MiB; of the state and 512, for which the second is taken, and 1024; then 1024,
    # which is free, and 2048.
    assert simulate(run, DEFAULT).allocated_peak_bytes == (64 + 128 + 1024 + 2048) * MiB
    assert lengths.reserved(run, DEFAULT, None) == (64 + 256 + 512 + 1024 + 2048) * MiB
    alone = lengths.in_turn([], step(1024))
    assert alone is not None
    assert lengths.reserved(alone, DEFAULT, None) == (64 + 128 + 1024 + 2048) * MiB


def test_a_full_card_gives_back_what_is_free_and_segments_that_grow_leave_nothing() -> None:
    run = lengths.in_turn([step(256), step(512)], step(1024))
    assert run is not None
    assert lengths.reserved(run, DEFAULT, 3500 * MiB) <= 3500 * MiB
    whole = lengths.reserved(run, DEFAULT, None)
    assert lengths.reserved(run, DEFAULT, 3000 * MiB) == whole  # what is live is more than that
    assert lengths.reserved(run, parse_conf("expandable_segments:True"), None) <= (64 + 128 + 1024 + 2048 + 20) * MiB


def test_steps_in_between_are_made_of_half_a_step_and_a_whole_one() -> None:
    """What grows with the length, what does not, and what grows with its square."""
    sizes = {length: [7 * MiB, 4096 * length + MiB, length * length] for length in (1024, 1536, 1792, 2048)}
    steps = {}
    for length in (1024, 2048):
        steps[length] = Tape()
        for size in sizes[length]:
            steps[length].free(steps[length].allocate(size, Label("activations", "x")))
    made = lengths.between(steps[1024], steps[2048])
    assert [step.sizes for step in made] == [sizes[1024], sizes[1536], sizes[1792]]
    steps[1024].allocate(MiB, Label("activations", "x"))
    assert lengths.between(steps[1024], steps[2048]) == [steps[1024]]


def test_steps_of_other_models_are_no_run() -> None:
    assert lengths.in_turn([step(256, WEIGHT + 512)], step(1024)) is None


SFT = """\
model_name_or_path: Qwen/Qwen2.5-0.5B
dataset_name: x
output_dir: out
max_length: 2048
per_device_train_batch_size: 1
bf16: true
loss_type: nll
"""
PINS = "trl==0.20.0\ntransformers==4.55.0\ntorch==2.8.0\npeft==0.17.0\naccelerate==1.10.0\n"


def estimate(tmp_path: Path, keys: str = "", gpu: str = "") -> Estimate:
    (tmp_path / ".git").mkdir(exist_ok=True)
    (tmp_path / "requirements.txt").write_text(PINS)
    config = tmp_path / "sft.yaml"
    config.write_text(SFT + keys)
    [spec] = registry.specs(load(str(config)))
    return estimates.EqualRuns().estimates(spec, gpu, ()).own()


def test_the_upper_end_of_a_run_holds_shorter_batches_where_rows_differ_in_length_and_what_is_allocated_is_the_same(
    tmp_path: Path,
) -> None:
    varied, packed = (estimate(tmp_path, keys, "a100-80gb") for keys in ("", "packing: true\n"))
    assert "lengths of batches" in {name for name, _, _ in varied.assumptions}
    assert "lengths of batches" not in {name for name, _, _ in packed.assumptions}
    without = varied.device_interval.high_bytes - varied.reserved_interval.high_bytes
    assert varied.reserved_interval.high_bytes > 1.2 * varied.reserved_bytes
    assert varied.device_interval.high_bytes == varied.reserved_interval.high_bytes + without


@pytest.mark.parametrize("card", ["rtx4090", "a100-80gb"])
def test_a_run_that_a_card_serves_by_giving_back_still_fits_it(tmp_path: Path, card: str) -> None:
    from memlint.data.catalogue import parse_gpu

    found = estimate(tmp_path, gpu=card)
    assert found.verdict(parse_gpu(card)[0].usable_bytes) == FITS


UNSLOTH = """\
from trl import SFTConfig, SFTTrainer
from unsloth import FastLanguageModel

model, tokenizer = FastLanguageModel.from_pretrained("{model}", max_seq_length=2048, load_in_4bit={four})
model = FastLanguageModel.get_peft_model(model, r=16)
trainer = SFTTrainer(
    model=model, tokenizer=tokenizer, train_dataset=rows, packing=True, args=SFTConfig(output_dir="outputs")
)
trainer.train()
"""


@pytest.mark.parametrize(
    ("model", "four", "release", "more"),
    [
        pytest.param("unsloth/Phi-4", True, "2025.1.5", True, id="a model with such a copy"),
        pytest.param("unsloth/Phi-4", True, "2024.11.9", False, id="a release before there was any"),
        pytest.param("unsloth/Phi-4", False, "2025.1.5", False, id="16 bits"),
        pytest.param("unsloth/mistral-7b-v0.3", True, "2025.1.5", False, id="a model without such a copy"),
    ],
)
def test_the_upper_end_holds_layers_that_unsloths_copy_of_a_model_leaves_in_16_bits(
    tmp_path: Path, model: str, four: bool, release: str, more: bool
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "requirements.txt").write_text(f"unsloth=={release}\ntransformers==4.47.1\ntorch==2.5.1\n")
    (tmp_path / "train.py").write_text(UNSLOTH.format(model=model, four=four))
    [spec] = registry.specs(load(str(tmp_path / "train.py")))
    found = estimates.EqualRuns().estimates(spec, "", ()).own()
    assert ("dynamic quants" in {name for name, _, _ in found.assumptions}) == more
    if more:
        weights = found.component_bytes("parameters")
        assert found.allocated_interval.high_bytes > found.allocated_bytes + 0.3 * weights


def test_the_upper_end_holds_them_where_the_copy_itself_is_named_and_no_unsloth_loads_it(tmp_path: Path) -> None:
    script = """from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

model = AutoModelForCausalLM.from_pretrained("{model}")
args = SFTConfig(output_dir="outputs", max_length=512)
SFTTrainer(model=model, args=args, train_dataset=rows, peft_config=LoraConfig(r=8)).train()
"""
    shares = []
    for name in ("unsloth/Qwen3-0.6B-unsloth-bnb-4bit", "unsloth/Qwen3-0.6B-bnb-4bit"):
        (tmp_path / "train.py").write_text(script.format(model=name))
        [spec] = registry.specs(load(str(tmp_path / "train.py")))
        assert (spec.unknown_reason, spec["quantization.bits"]) == ("", 4)
        found = estimates.EqualRuns().estimates(spec, "", ()).own()
        shares.append("dynamic quants" in {name for name, _, _ in found.assumptions})
    assert shares == [True, False]


SCRIPT = """\
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-0.5B")


def tokenized(row):
    return tokenizer(row["text"], max_length=1024, truncation=True, padding={padding})


trainer = Trainer(model, TrainingArguments(output_dir="out"), train_dataset=rows.map(tokenized))
trainer.train()
"""


@pytest.mark.parametrize(
    ("padding", "varies"),
    [
        pytest.param('"max_length"', False, id="rows that a tokenizer fills up to the maximum"),
        pytest.param("True", True, id="rows that are filled up to the longest of a batch"),
    ],
)
def test_rows_of_one_length_are_no_run_of_several(tmp_path: Path, padding: str, varies: bool) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "requirements.txt").write_text("transformers==4.55.0\ntorch==2.8.0\n")
    (tmp_path / "train.py").write_text(SCRIPT.format(padding=padding))
    [spec] = registry.specs(load(str(tmp_path / "train.py")))
    found = estimates.EqualRuns().estimates(spec, "a100-80gb", ()).own()
    assert spec["sequence_length"] == 1024
    assert ("lengths of batches" in {name for name, _, _ in found.assumptions}) == varies
