"""A changed fact takes along what is made of it: the facts of a what-if are those of the config after its edits."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from memlint.dialects import language_model as lm
from memlint.dialects import registry
from memlint.dialects.companions import prepared
from memlint.dialects.insertion import together
from memlint.dialects.spelling import spell
from memlint.documents.load import load
from memlint.documents.node import Edit, Span
from memlint.facts.spec import TrainingSpec
from memlint.fixes.edits import apply_edits
from tests.dialects.language_models import written
from tests.fixes.test_promises import WRITTEN

CHANGES: tuple[dict[str, Any], ...] = (
    {"compute_dtype": "bfloat16"},
    {"compute_dtype": "float16"},
    {"parameter_dtype": "bfloat16"},
    {"checkpointing": "full"},
    {"attention": "sdpa"},
    {"loss": "fused"},
    {"loss": "chunked"},
    {"sequence_length": 256},
    {"micro_batch_size": 2, "gradient_accumulation_steps": 2},
)
# What is told apart by its absence, and facts that no estimate is made of.
ABSENT = {"loss_scaling": None, "fused_kernels": None, "float32_parts": [], "loss_chunks": None}
UNUSED = ("hyperparameters.", "optimizer_", "checkpointing_every")


EXAMPLES = Path(__file__).parents[2] / "examples"
CONFIGS = (
    *WRITTEN,
    *("language_models/sft_trl.yaml", "language_models/dpo_trl.yaml", "language_models/lora_axolotl.yml"),
    *("language_models/full_llamafactory.yaml", "language_models/run_clm.sh", "language_models/train_fsdp.sh"),
    *("language_models/torchtune_llama3_1b.yaml", "language_models/torchtitan_llama3_8b.toml"),
    *("uni3d_dp/uni3d+dp.yaml", "video_llm/config_before.yaml", "stdiff/kitti_range_train_config.yaml"),
    *("lag_mode/train_lag_mode.sh", "dit3d/config_before.py"),
)


def spec_of(folder: Path, name: str) -> TrainingSpec:
    if name in WRITTEN:
        main, files = WRITTEN[name]
        path = written(folder, files) / main
    else:
        shutil.copytree((EXAMPLES / name).parent, folder / "example")
        path = folder / "example" / Path(name).name
    return read(path)


def read(path: Path) -> TrainingSpec:
    document = load(str(path))
    defaults = document.root.get("defaults")
    [spec] = registry.specs(prepared(document) if defaults is not None else document, ())
    return spec


def estimated(spec: TrainingSpec) -> dict[str, Any]:
    """Values of the facts that estimates are made of."""
    found = {
        fact: value
        for fact in spec
        for value in (spec[fact],)
        if fact == lm.CONFIG or not fact.startswith(UNUSED) or value is None
    }
    return {fact: value for fact, value in found.items() if fact not in ABSENT or value not in (None, [])}


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: " ".join(f"{k}={v}" for k, v in changes.items()))
@pytest.mark.parametrize("name", CONFIGS)
def test_facts_of_a_what_if(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    spec = spec_of(tmp_path, name)
    if "micro_batch_size" in changes and "gradient_accumulation_steps" in spec:  # the samples of a step stay as many
        steps = max(1, spec["gradient_accumulation_steps"] * spec["micro_batch_size"] // changes["micro_batch_size"])
        changes = {**changes, "gradient_accumulation_steps": steps}
    first, value = next(iter(changes.items()))
    if spec.get(first) == value or (first.endswith("_dtype") and spec.get(first) != "float32"):
        return
    whole = spec.fact("global_batch_size")
    if first == "micro_batch_size" and (
        spec[first] <= value or (whole is not None and whole.key == spec.facts[first].key)
    ):
        return
    edits = [edit for fact, value in changes.items() for edit in spell(spec, fact, value)]
    if not spell(spec, first, value):
        return  # no fix can be made of it
    for path in {edit.span.path for edit in edits}:
        text = apply_edits(Path(path).read_bytes().decode(), [edit for edit in edits if edit.span.path == path])
        Path(path).write_bytes(text.encode())
    after = read(Path(spec.document.path))
    tried = estimated(spec.with_facts(**changes))
    found = estimated(after)
    differing = {fact: (tried.get(fact), found.get(fact)) for fact in {*tried, *found}}
    assert {fact: both for fact, both in differing.items() if both[0] != both[1]} == {}


def test_a_size_that_two_files_state_is_changed_in_both(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "transformers, sizes that DeepSpeed's config repeats")
    edits = spell(spec, "gradient_accumulation_steps", 4)
    assert {Path(edit.span.path).name: edit.text for edit in edits} == {"train.sh": "4", "ds.json": "4"}


def test_a_table_of_positions_shrinks_with_the_length_that_makes_it(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "nanogpt, as many positions as tokens")
    assert spec.with_facts(sequence_length=128)[lm.DECODER].positions == 128
    assert spec[lm.DECODER].positions == 512


@pytest.mark.parametrize(
    ("model", "kernels", "loss"),
    [
        pytest.param(
            "meta-llama/Llama-3.2-1B", ["rotary", "rms_norm", "swiglu", "linear_cross_entropy"], "fused", id="llama"
        ),
        pytest.param("openai-community/gpt2", None, None, id="GPT-2, which Liger has no kernels for"),
        pytest.param(
            "ibm-granite/granite-3.3-2b-base", ["rotary", "rms_norm", "swiglu", "cross_entropy"], None, id="granite"
        ),
    ],
)
def test_liger_knows_model_types(model: str, kernels: list[str] | None, loss: str | None, tmp_path: Path) -> None:
    text = f"model_name_or_path: {model}\nblock_size: 512\nper_device_train_batch_size: 1\noutput_dir: out\n"
    [on] = registry.specs(load(str(tmp_path / "a.yaml"), text + "use_liger_kernel: true\n"), ())
    assert (on.get("fused_kernels"), on.get("loss")) == (kernels, loss)
    [off] = registry.specs(load(str(tmp_path / "a.yaml"), text), ())
    assert bool(spell(off, "loss", "fused")) == (loss == "fused")


# -- edits that meet at one place


def added(text: str) -> Edit:
    return Edit(Span("a", 4, 9, 4, 9), text)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        pytest.param(["\na: 1", "\n  b: 2"], ["\n  b: 2", "\na: 1"], id="the section that is open goes on first"),
        pytest.param(["\na:\n  b: 1", "\na:\n  c: 2"], ["\na:\n  b: 1\n  c: 2"], id="a section is begun once"),
        pytest.param(["\na: 1", "\nb: 2"], ["\na: 1", "\nb: 2"], id="keys of one section keep their order"),
        pytest.param(["[a]\nb = 1\n", "[a]\nc = 2\n"], ["[a]\nb = 1\nc = 2\n"], id="a table is begun once"),
        pytest.param(["\n[a]\nb = 1", "\nc = 2"], ["\nc = 2", "\n[a]\nb = 1"], id="keys go before the next table"),
        pytest.param(["\r\na:\r\n  b: 1", "\r\na:\r\n  c: 2"], ["\r\na:\r\n  b: 1\r\n  c: 2"], id="Windows line ends"),
        pytest.param([', "a": 1', ', "b": 2'], [', "a": 1', ', "b": 2'], id="entries of JSON"),
        pytest.param([', "a": {"b": 1}', ', "a": {"c": 2}'], [], id="one mapping of JSON twice cannot be written"),
    ],
)
def test_edits_at_one_place(texts: list[str], expected: list[str]) -> None:
    assert [edit.text for edit in together([added(text) for text in texts])] == expected


def test_edits_at_other_places_stay_as_they_are() -> None:
    edits = (added("\na: 1"), Edit(Span("a", 1, 4, 1, 5), "2"), Edit(Span("a", 4, 5, 4, 9), "x"))
    assert together(edits) == edits


@pytest.mark.parametrize(
    ("path", "text", "strategy"),
    [
        pytest.param("a.yaml", "{trainer}", "ddp", id="a config, which a launcher starts on each device"),
        pytest.param("a.sh", "accelerate launch run_clm.py {options}", "ddp", id="a launcher without a number"),
        pytest.param("a.sh", "llamafactory-cli train {options}", "ddp", id="a program that starts them itself"),
        pytest.param("a.sh", "python run_clm.py {options}", None, id="not a script that python runs bare"),
        pytest.param("a.sh", "torchrun --nproc_per_node 1 run_clm.py {options}", None, id="not one process by name"),
    ],
)
def test_a_run_of_no_stated_number_of_devices_is_data_parallel_on_several(
    path: str, text: str, strategy: str | None
) -> None:
    options = "--model_name_or_path gpt2 --per_device_train_batch_size 2 --block_size 64 --output_dir out"
    if "llamafactory" in text:
        options = "--stage sft --do_train true --finetuning_type full --dataset d --template default " + options
    trainer = "model_name_or_path: gpt2\nper_device_train_batch_size: 2\nmax_length: 64\npacking: true\noutput_dir: o\n"
    (spec,) = registry.specs(load(path, text.format(trainer=trainer, options=options) + "\n"))
    assert spec.get("parallelism.strategy", "none") == "none"
    assert spec.with_facts(device_count=8, world_size=8).get("parallelism.strategy") == strategy


def test_a_replicated_run_that_is_sharded_is_what_the_switch_would_make_of_it() -> None:
    """MEM402 says what full sharding saves: accelerate keeps what trains in float32 then, and reduces in 16 bits."""
    text = (EXAMPLES / "language_models" / "run_clm_ddp.sh").read_text(encoding="utf-8")
    [spec] = registry.specs(load("run.sh", text))
    [written_so] = registry.specs(load("run.sh", text.replace("run_clm.py", "run_clm.py --fsdp full_shard", 1)))
    tried = estimated(spec.with_facts({"parallelism.strategy": "fsdp2"}))
    assert (spec["parameter_dtype"], tried["parameter_dtype"]) == ("bfloat16", "float32")
    assert tried == estimated(written_so)


def test_a_what_if_looks_for_no_model_once_more(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    config = tmp_path / "model" / "config.json"
    config.write_text('{"model_type": "llama", "hidden_size": 64}')
    script = tmp_path / "sft.yaml"
    script.write_text("model_name_or_path: ./model\ndataset_name: x\noutput_dir: o\nper_device_train_batch_size: 4\n")
    [spec] = registry.specs(load(str(script)))
    config.unlink()
    assert spec.with_facts(micro_batch_size=2)[lm.CONFIG]["hidden_size"] == 64
