"""What a run takes at least, where what is not known of it comes on top of weights, gradients and optimizer states."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest

from memlint import estimates, partial
from memlint.check import check_text
from memlint.cli.checking import render
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.reports import full
from memlint.reports import json as as_json
from memlint.reports.report import Report, RunReport
from memlint.setting_values import FORMATS
from memlint.settings import Settings
from memlint.tape.estimate import OOM, UNKNOWN
from tests.test_partial import SCHEMA, TUNE

ROOT = Path(__file__).parents[1]
GRPO = ROOT / "examples/language_models/grpo_trl.yaml"
KNOWN = sorted(
    path
    for folder in ("examples/language_models", "tests/hostile/samples")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".yaml", ".yml", ".toml", ".json", ".sh", ".py")
)

# A loss of the script's own around transformers' Trainer
OWN = """\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

class WeightedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        return weigh(model(**inputs).logits, inputs["labels"])

model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype="bfloat16")
WeightedTrainer(model=model, args=TrainingArguments("out", per_device_train_batch_size=4, bf16=True)).train()
"""
PARAMETERS, EMBEDDING = 494_032_768, 151_936 * 896  # Qwen2.5-0.5B; bfloat16, and so AdamW's two states
QAT = TUNE.replace("batch_size: 4", "batch_size: 4\nquantizer:\n  _component_: torchtune.training.quantization.Int8Q")


def checked(folder: Path, text: str, budget: str = "", name: str = "train.py") -> Report:
    (folder / name).write_text(text, encoding="utf-8")
    return check_text(str(folder / name), text, Settings(budget=budget) if budget else Settings())


def bounded(folder: Path, text: str, budget: str = "", name: str = "train.py") -> tuple[RunReport, partial.Partial]:
    (run,) = checked(folder, text, budget, name).runs
    assert run.estimate is None
    assert run.partial is not None
    assert run.partial.at_least
    return run, run.partial


@pytest.mark.parametrize("path", KNOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_bound_is_no_more_than_the_estimate(path: Path) -> None:
    """For runs that have both: weights, gradients and states are less than the low end of what the run takes."""
    for spec in registry.specs(load(str(path))):
        asked = estimates.Estimates(spec)
        bound = partial.at_least(spec, asked.states_bytes, None)
        if spec.architecture == "language_model":
            assert bound is not None, spec.run
            assert 0 < bound.rows[0].device_bytes <= asked.own().device_interval.low_bytes, spec.run


def test_a_loss_of_the_scripts_own_leaves_what_its_model_takes(tmp_path: Path) -> None:
    run, found = bounded(tmp_path, OWN)
    (row,) = found.rows
    assert found.names == ()
    # the head is the embedding, whose gradient is there twice where backward ends
    assert 0 <= row.device_bytes - 2 * (4 * PARAMETERS + EMBEDDING) < 1 << 20
    (finding,) = (one for one in run.findings if one.code == "MEM007")
    assert finding.message.startswith("at least 3.93 GiB: WeightedTrainer has a loss of its own")
    assert (run.verdict, row.verdict) == (UNKNOWN, UNKNOWN)


def test_a_trainer_of_the_scripts_own_may_be_called_anything(tmp_path: Path) -> None:
    run, _ = bounded(tmp_path, OWN.replace("WeightedTrainer", "Weighted"))
    assert "Weighted has a loss of its own" in run.findings[0].message


def test_more_than_the_budget_does_not_fit_whatever_the_rest(tmp_path: Path) -> None:
    run, found = bounded(tmp_path, OWN, "2GB")
    assert (run.verdict, found.rows[0].verdict) == (OOM, OOM)
    (finding,) = (one for one in run.findings if one.code == "MEM101")
    assert "alone take 3.93 GiB of 2.00 GiB: 1.93 GiB too much, whatever else it holds" in finding.message
    first = full.render(checked(tmp_path, OWN, "2GB")).splitlines()[0]
    assert first.startswith(f"OOM {tmp_path}/train.py: peak unknown, at least 3.93 GiB: ")
    assert first.endswith("; budget 2.00 GiB: over by 1.93 GiB already")


def test_less_than_the_budget_says_nothing_of_whether_it_fits(tmp_path: Path) -> None:
    run, _ = bounded(tmp_path, OWN, "80GB")
    assert run.verdict == UNKNOWN
    assert not [one for one in run.findings if one.code == "MEM101"]


def test_a_number_of_devices_that_nobody_states_leaves_a_bound_for_each(tmp_path: Path) -> None:
    recipe = QAT.replace("lora_llama3_2_1b", "llama3_2_1b").replace("  lora_attn_modules: ['q_proj', 'v_proj']\n", "")
    for line in ("  apply_lora_to_mlp: true\n", "  lora_rank: 64\n", "  lora_alpha: 128\n"):
        recipe = recipe.replace(line, "")
    run, found = bounded(tmp_path, recipe + "fsdp_cpu_offload: false\n", "1GB", "qat.yaml")
    assert [row.values for row in found.rows] == [(1,), (2,), (4,), (8,)]
    sizes = [row.device_bytes for row in found.rows]
    assert sizes == sorted(sizes, reverse=True)
    assert run.verdict == UNKNOWN  # more devices may be enough


def test_rewarded_samples_of_a_model_that_sees_have_a_bound_whose_tower_need_not_train(tmp_path: Path) -> None:
    """om-ai-lab/VLM-R1: run_grpo_rec.sh, and TRL's own GRPO of such a model."""
    model = "Qwen/Qwen2.5-VL-3B-Instruct"
    text = re.sub(r"(model_name_or_path:).*", rf"\1 {model}", GRPO.read_text(encoding="utf-8"))
    run, found = bounded(tmp_path, text, name="grpo.yaml")
    (finding,) = (one for one in run.findings if one.code == "MEM007")
    assert "GRPO of a model that sees: what images take of its prompts is not known" in finding.message
    decoder, tower = 3_085_938_688, 668_684_288  # its index: 3,754,622,976 weights, in bfloat16
    states = found.rows[0].device_bytes
    assert 0 <= states - 2 * (4 * decoder + tower) < 2 * 2 * 151_936 * 2048 + (1 << 20)  # gradients of the embedding


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("AutoModelForCausalLM.from", "MyModel.from", id="a model of its own"),
        pytest.param("Qwen/Qwen2.5-0.5B", "nobody/knows-this", id="a model that nobody knows"),
        pytest.param("bf16=True", "optim=name", id="an optimizer that only the run knows"),
    ],
)
def test_there_is_no_bound_where_more_is_unknown_than_what_comes_on_top(tmp_path: Path, old: str, new: str) -> None:
    (run,) = checked(tmp_path, OWN.replace(old, new)).runs
    assert run.estimate is None
    assert run.partial is None


def test_there_is_no_bound_where_layers_are_of_another_kind(tmp_path: Path) -> None:
    path = ROOT / "tests/hostile/samples/gpt_neox"
    (sample,) = path.iterdir()
    text = sample.read_text(encoding="utf-8")
    gated = re.sub(r'("attention_config": \[\[\[)"\w+"', r'\1"gmlp"', text)
    (run,) = checked(tmp_path, gated, name=sample.name).runs
    assert "gmlp" in run.findings[0].message
    assert run.estimate is None
    assert run.partial is None


@pytest.mark.parametrize("budget", ["", "2GB"])
def test_a_bound_is_in_every_report(tmp_path: Path, budget: str) -> None:
    report = checked(tmp_path, OWN, budget)
    data = json.loads(as_json.render(report))
    jsonschema.validate(data, SCHEMA)
    (run,) = data["files"]
    assert (run["partial"]["open"], run["partial"]["at_least"]) == ([], True)
    assert run["partial"]["rows"][0]["verdict"] == ("OOM" if budget else None)
    for name in FORMATS:
        assert render(report, name, False, True, Settings())


def test_of_a_model_that_nobody_knows_the_bound_is_that_of_models_after_which_it_is_called(tmp_path: Path) -> None:
    run, found = bounded(tmp_path, OWN.replace("Qwen/Qwen2.5-0.5B", "./out/Qwen2.5-0.5B-mine"), budget="1GB")
    assert (found.names, [row.values for row in found.rows]) == (("model",), [("Qwen/Qwen2.5-0.5B",)])
    assert found.rows[0].device_bytes == bounded(tmp_path, OWN)[1].rows[0].device_bytes
    assert run.verdict == UNKNOWN  # it may be of another shape
    assert [one.code for one in run.findings] == ["MEM007"]  # and no error is sure
    (finding,) = (one for one in run.findings if one.code == "MEM007")
    assert finding.message.startswith("at least 3.93 GiB as Qwen/Qwen2.5-0.5B: WeightedTrainer has a loss of its own")


RESUMED = """\
from peft import PeftModel
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype="bfloat16")
model = PeftModel.from_pretrained(model, "out/adapter", is_trainable=True)
Trainer(model=model, args=TrainingArguments("out", per_device_train_batch_size=4, bf16=True)).train()
"""


def test_an_adapter_that_is_not_there_leaves_the_weights_under_it(tmp_path: Path) -> None:
    run, found = bounded(tmp_path, RESUMED)
    assert 0 <= found.rows[0].device_bytes - 2 * PARAMETERS < 1 << 20
    (finding,) = (one for one in run.findings if one.code == "MEM007")
    assert "out/adapter that training goes on with is not there to state its rank" in finding.message


OF_EXPERTS = """\
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from xtuner.model import SupervisedFinetune

codes = dict(type=BitsAndBytesConfig, load_in_4bit=True)
llm = dict(
    type=AutoModelForCausalLM.from_pretrained, pretrained_model_name_or_path="/ours/Mixtral-8x7B-chat",
    quantization_config=codes,
)
model = dict(type=SupervisedFinetune, llm=llm, lora=dict(type=LoraConfig, r=8, target_modules=["q_proj", "w1", "w2"]))
max_length = 64
train_dataloader = dict(batch_size=1, dataset=dict(max_length=max_length))
optim_wrapper = dict(optimizer=dict(type="AdamW"), dtype="float16")
"""


def test_there_is_no_bound_where_an_older_release_may_make_the_run_in_a_way_that_nobody_knows(tmp_path: Path) -> None:
    """Experts of 4 bits with adapters, of a model that is only called after one: known since transformers 5."""
    report = check_text(str(tmp_path / "run.py"), OF_EXPERTS, Settings())
    assert "internal-error" not in {finding.name for finding in report.findings}
    assert "at least" not in report.runs[0].unknown


def test_an_embedder_of_a_programs_own_has_the_bound_of_its_model(tmp_path: Path) -> None:
    options = "--train_group_size 8 --per_device_train_batch_size 4 --bf16 --output_dir o --learning_rate 1e-5"
    text = f"torchrun --nproc_per_node 8 -m ours.run --model_name_or_path mistralai/Mistral-7B-v0.1 {options}\n"
    report = check_text(str(tmp_path / "run.sh"), text, Settings())
    assert "at least" in report.runs[0].unknown
    assert "compares queries and passages" in report.runs[0].unknown
