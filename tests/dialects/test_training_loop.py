"""Family training-loop: what a program that trains in a loop of its own says, and what makes it UNKNOWN."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memlint import check, work
from memlint.dialects import registry
from memlint.documents.load import load
from memlint.documents.programs import training_loops
from memlint.facts.spec import OnTop, TrainingSpec

HEAD = """\
import bitsandbytes as bnb
import deepspeed
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from peft import LoraConfig, PrefixTuningConfig, get_peft_model, prepare_model_for_kbit_training
from torch import nn, optim
from torch.utils.data import DataLoader
from transformers import Adafactor, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer, BitsAndBytesConfig, GPT2LMHeadModel
tokenizer = AutoTokenizer.from_pretrained("gpt2")
def collate(rows):
    return tokenizer(rows, max_length=256, truncation=True, return_tensors="pt")
loader = DataLoader(["a"], batch_size=2, collate_fn=collate)
"""
MODEL = 'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype=torch.bfloat16)\n'
ADAMW = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)\n"
STEP = "    optimizer.step()\n    optimizer.zero_grad()\n"
LOOP = """\
for batch in loader:
    outputs = model(**batch)
    loss = outputs.loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def run(tmp_path: Path, script: str, command: str = "", **files: str) -> TrainingSpec:
    (tmp_path / ".git").mkdir(exist_ok=True)
    (tmp_path / "train.py").write_text(HEAD + script, encoding="utf-8")
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    path = tmp_path / "train.py"
    if command:
        path = tmp_path / "run.sh"
        path.write_text(command + "\n", encoding="utf-8")
    (spec,) = registry.specs(load(str(path)))
    return spec


def line_of(script: str, part: str) -> int:
    return next(at for at, line in enumerate((HEAD + script).splitlines(), 1) if part in line)


@pytest.mark.parametrize(
    ("script", "facts"),
    [
        pytest.param(
            MODEL + ADAMW + LOOP,
            {"model": "Qwen/Qwen2.5-0.5B", "micro_batch_size": 2, "sequence_length": 256, "outputs_kept": True}
            | {"optimizer": "adamw", "optimizer_implementation": "foreach", "gradients_kept": False, "tuning": None},
            id="a plain loop",
        ),
        pytest.param(
            MODEL + "model = get_peft_model(model, LoraConfig(r=4, target_modules=['q_proj']))\n" + ADAMW + LOOP,
            {"tuning": "lora", "lora.r": 4, "lora.dtype": "float32", "parameter_dtype": "float32"},
            id="adapters",
        ),
        pytest.param(
            "codes = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4')\n"
            + MODEL.replace(")\n", ", quantization_config=codes)\n")
            + "model = prepare_model_for_kbit_training(model)\n"
            + "model = get_peft_model(model, LoraConfig(r=4, target_modules=['q_proj']))\n"
            + "optimizer = bnb.optim.PagedAdamW8bit(model.parameters())\n"
            + LOOP,
            {"quantization.bits": 4, "quantization.prepared": True, "checkpointing": "full"}
            | {"optimizer": "adamw_8bit", "optimizer_library": "bitsandbytes", "optimizer_paged": True},
            id="codes of four bits, an optimizer of eight",
        ),
        pytest.param(
            MODEL + "optimizer = optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=False)\n" + LOOP,
            {"optimizer": "sgd", "optimizer_implementation": "loop", "hyperparameters.momentum": 0.9},
            id="an optimizer of a module that is imported by another name",
        ),
        pytest.param(
            MODEL + "optimizer = Adafactor(model.parameters())\n" + LOOP,
            {"optimizer": "adafactor", "optimizer_library": "transformers"},
            id="transformers' own optimizer",
        ),
        pytest.param(
            MODEL + "optimizer = optim.AdamW(model.parameters(), fused=True)\n" + LOOP,
            {"optimizer_implementation": "fused"},
            id="one kernel",
        ),
        pytest.param(
            MODEL + ADAMW + LOOP.replace("zero_grad()", "zero_grad(set_to_none=False)"),
            {"gradients_kept": True},
            id="zeros in the gradients' place",
        ),
        pytest.param(
            MODEL + ADAMW + LOOP.replace("    optimizer.zero_grad()\n", ""), {"gradients_kept": True}, id="none"
        ),
        pytest.param(
            MODEL
            + ADAMW
            + LOOP.replace("outputs = model(**batch)\n    loss = outputs.loss", "loss = model(**batch).loss"),
            {"outputs_kept": False},
            id="a loss alone has a name",
        ),
        pytest.param(
            MODEL + ADAMW + LOOP.replace("    loss.back", "    del outputs\n    loss.back"),
            {"outputs_kept": False},
            id="what is deleted has none",
        ),
        pytest.param(
            MODEL + ADAMW + "def step(batch):\n    outputs = model(**batch)\n    return outputs.loss\n"
            "for batch in loader:\n    loss = step(batch)\n    loss.backward()\n    optimizer.step()\n",
            {"outputs_kept": False},
            id="names of a function go when it returns",
        ),
        pytest.param(
            MODEL.replace(", torch_dtype=torch.bfloat16", "") + "model = model.bfloat16().cuda()\n" + ADAMW + LOOP,
            {"parameter_dtype": "bfloat16"},
            id="cast by a method",
        ),
        pytest.param(
            MODEL + "model.gradient_checkpointing_enable()\nmodel.config.use_cache = False\n" + ADAMW + LOOP,
            {"checkpointing": "full", "keys_cached": False},
            id="methods and attributes of the model",
        ),
        pytest.param(
            MODEL + ADAMW + "for batch in loader:\n    with torch.autocast('cuda', dtype=torch.bfloat16):\n"
            "        loss = model(**batch).loss\n    loss.backward()\n" + STEP,
            {"compute_dtype": "bfloat16", "autocast": True},
            id="under autocast",
        ),
        pytest.param(
            MODEL.replace("torch.bfloat16", "torch.float32") + ADAMW + "scaler = torch.cuda.amp.GradScaler()\n"
            "for batch in loader:\n    with torch.cuda.amp.autocast():\n        loss = model(**batch).loss\n"
            "    scaler.scale(loss).backward()\n    scaler.step(optimizer)\n    scaler.update()\n"
            "    optimizer.zero_grad()\n",
            {"compute_dtype": "float16", "autocast": True, "loss_scaling": "dynamic"},
            id="a scaler steps, in torch.cuda.amp's float16",
        ),
        pytest.param(
            "accelerator = Accelerator(mixed_precision='bf16', gradient_accumulation_steps=4)\n"
            + MODEL
            + ADAMW
            + "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n"
            "for batch in loader:\n    with accelerator.accumulate(model):\n        outputs = model(**batch)\n"
            "        accelerator.backward(outputs.loss)\n        optimizer.step()\n        optimizer.zero_grad()\n",
            {"compute_dtype": "bfloat16", "outputs_kept": "float32", "gradient_accumulation_steps": 4},
            id="accelerate",
        ),
        pytest.param(
            MODEL
            + ADAMW
            + "for step, batch in enumerate(loader):\n    loss = model(**batch).loss / 8\n    loss.backward()\n"
            "    if (step + 1) % 8 == 0:\n        optimizer.step()\n        optimizer.zero_grad()\n",
            {"gradient_accumulation_steps": 8},
            id="a step every so many turns",
        ),
        pytest.param(
            MODEL + ADAMW + "batches = iter(loader)\nfor step in range(100):\n    for micro in range(4):\n"
            "        loss = model(**next(batches)).loss\n        loss.backward()\n" + STEP,
            {"gradient_accumulation_steps": 4, "micro_batch_size": 2},
            id="a loop of micro-batches within each step",
        ),
        pytest.param(
            MODEL + ADAMW + "for step in range(9):\n    x = torch.randint(0, 9, (3, 128), device='cuda')\n"
            "    loss = model(input_ids=x, labels=x).loss\n    loss.backward()\n" + STEP,
            {"micro_batch_size": 3, "sequence_length": 128, "packing": True},
            id="tokens that are made up",
        ),
        pytest.param(
            "model = AutoModelForSequenceClassification.from_pretrained('bert-base-uncased', num_labels=3)\n"
            + ADAMW
            + LOOP,
            {"model_class": "sequence_classification", "labels": 3, "loop": None},
            id="a score of each class, which nobody counts",
        ),
        pytest.param(
            MODEL + "if torch.cuda.is_available():\n    model = torch.compile(model)\n" + ADAMW + LOOP,
            {"compile": True},
            id="compiled",
        ),
    ],
)
def test_what_a_loop_says(tmp_path: Path, script: str, facts: dict[str, Any]) -> None:
    spec = run(tmp_path, script)
    assert (spec.family, spec.unknown_reason) == ("training-loop", "")
    assert {name: spec.get(name) for name in facts} == facts  # type: ignore[arg-type]
    assert spec.architecture == "language_model"


OWN = "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.a = nn.Linear(2, 2)\n"


@pytest.mark.parametrize(
    ("script", "why", "bounded"),
    [
        pytest.param(
            MODEL + "for p in model.model.layers.parameters():\n    p.requires_grad = False\n" + ADAMW + LOOP,
            "which parameters train, requires_grad decides, and that is not followed",
            False,
            id="some parameters are frozen",
        ),
        pytest.param(
            MODEL + "optimizer = optim.LBFGS(model.parameters())\n" + LOOP,
            "the optimizer optim.LBFGS is not described",
            False,
            id="an optimizer of no table",
        ),
        pytest.param(
            MODEL + "optimizer = torch.optim.AdamW(model.lm_head.parameters())\n" + LOOP,
            "which parameters the optimizer is given is not followed",
            False,
            id="an optimizer of a part",
        ),
        pytest.param(
            MODEL + "model = get_peft_model(model, PrefixTuningConfig(num_virtual_tokens=4))\n" + ADAMW + LOOP,
            "get_peft_model is given PrefixTuningConfig, which is not described",
            False,
            id="adapters of another kind",
        ),
        pytest.param(
            MODEL + "if torch.cuda.device_count() > 1:\n    model = nn.DataParallel(model)\n" + ADAMW + LOOP,
            "what is done to the model depends on a condition that is not known",
            False,
            id="a wrapper under a condition",
        ),
        pytest.param(
            MODEL + ADAMW + "if torch.cuda.device_count() > 1:\n    loader = DataLoader(['a'], batch_size=9)\n" + LOOP,
            "how many samples the loop takes at once is not followed",
            True,
            id="a loader under a condition",
        ),
        pytest.param(
            MODEL + ADAMW + LOOP.replace("    outputs", "    batch = torch.cat([batch, batch])\n    outputs"),
            "makes another batch of it (cat)",
            True,
            id="batches that are put together",
        ),
        pytest.param(
            MODEL + ADAMW + LOOP.replace("model(**batch)", "model(batch['input_ids'][:, :99], labels=batch['labels'])"),
            "takes [:,:99] of the batch",
            True,
            id="rows that are cut",
        ),
        pytest.param(
            MODEL + "model.lm_head = nn.Linear(896, 10)\n" + ADAMW + LOOP,
            "what setting .lm_head of the model changes is not described",
            False,
            id="a head of one's own",
        ),
        pytest.param(
            "from transformers import AutoConfig\nconfig = AutoConfig.from_pretrained('gpt2', n_layer=2)\n"
            "model = AutoModelForCausalLM.from_pretrained('gpt2', config=config)\n" + ADAMW + LOOP,
            "the model's config is changed (n_layer), which is not described",
            False,
            id="fewer layers than the name says",
        ),
        pytest.param(
            MODEL + ADAMW + LOOP + LOOP.replace("outputs", "again"),
            "",
            False,
            id="the same loop again",
        ),
        pytest.param(
            MODEL + ADAMW + LOOP + "other = DataLoader(['a'], batch_size=64)\n" + LOOP.replace("in loader", "in other"),
            "trains in another loop, whose memory may be more",
            True,
            id="a second loop of larger batches",
        ),
        pytest.param(
            MODEL + "model = get_peft_model(model, LoraConfig(r=8, rank_pattern={'q_proj': 4}))\n" + ADAMW + LOOP,
            "what rank_pattern of LoraConfig changes is not described",
            False,
            id="ranks of their own",
        ),
        pytest.param(
            MODEL + ADAMW + "with model.disable_adapter():\n    pass\nfor batch in loader:\n    with patched(model):\n"
            "        loss = model(**batch).loss\n    loss.backward()\n" + STEP,
            "calls the model within patched",
            False,
            id="a context of one's own",
        ),
        pytest.param(
            MODEL + ADAMW + LOOP.replace("loss = outputs.loss", "loss = F.kl_div(outputs.logits, outputs.logits)"),
            "gives what the model returns to kl_div()",
            True,
            id="a loss that is not described",
        ),
        pytest.param(
            MODEL + ADAMW + LOOP.replace("    loss =", "    other = model(**batch)\n    loss ="),
            "the loop calls the model more than once",
            True,
            id="two calls in a turn",
        ),
        pytest.param(
            MODEL + ADAMW + "teacher = AutoModelForCausalLM.from_pretrained('gpt2')\n" + LOOP,
            "makes another model beside the one that trains",
            True,
            id="a model beside it",
        ),
        pytest.param(
            MODEL
            + ADAMW
            + LOOP.replace("    loss.back", "    shares = torch.softmax(outputs.logits, -1)\n    loss.back"),
            "",
            False,
            id="what is made beside the loss",
        ),
        pytest.param(
            "model = AutoModel.from_pretrained('gpt2')\n" + ADAMW + LOOP,
            "AutoModel is asked for what it computes before a head",
            False,
            id="a model without a head",
        ),
        pytest.param(
            MODEL
            + "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(model)\n"
            + ADAMW
            + LOOP,
            "FSDP: how FSDP wraps the model is not read from the call",
            False,
            id="FSDP by its call",
        ),
        pytest.param(
            "def ready():\n    return open('x').read()\nif ready():\n    get_peft_model(1, 2)\n" + MODEL + ADAMW + LOOP,
            "whether it calls get_peft_model depends on line",
            False,
            id="a condition that is not known",
        ),
        pytest.param(
            MODEL
            + ADAMW
            + LOOP.replace("    loss.backward()\n", "    if tokenizer.pad_token:\n        loss.backward()\n"),
            "what the loop does depends on line",
            False,
            id="a backward pass that depends",
        ),
        pytest.param(
            MODEL + ADAMW + LOOP.replace("in loader", "in my_batches()"),
            "how many samples the loop takes at once is not followed",
            True,
            id="batches of one's own",
        ),
        pytest.param(
            MODEL + ADAMW + LOOP.replace("    optimizer.step()\n", ""),
            "no step of an optimizer is found in the loop",
            False,
            id="nothing steps",
        ),
    ],
)
def test_what_is_not_described_is_named_with_its_line(tmp_path: Path, script: str, why: str, bounded: bool) -> None:
    spec = run(tmp_path, script)
    assert why in spec.unknown_reason
    if why:
        assert spec.architecture is None
        assert bool(spec.architecture_at_least) is bounded


def test_a_bound_is_said_where_the_rest_comes_on_top(tmp_path: Path) -> None:
    script = MODEL + ADAMW + LOOP.replace("loss = outputs.loss", "loss = F.kl_div(outputs.logits, outputs.logits)")
    run(tmp_path, script)
    (found,) = check(str(tmp_path / "train.py"), isolated=True).runs
    assert found.partial is not None
    assert found.partial.at_least
    assert f"line {line_of(script, 'kl_div')} " in found.findings[0].message
    assert isinstance(run(tmp_path, script).unknown_reason, OnTop)


@pytest.mark.parametrize(
    ("script", "files"),
    [
        pytest.param(MODEL + ADAMW, {}, id="nothing goes backward"),
        pytest.param("for x in y:\n    loss.backward()\n", {}, id="a loop over nothing that is known"),
        pytest.param("for x in\n    loss.backward()\n", {}, id="no Python"),
        pytest.param(
            "def f():\n    for x in f():\n        f().backward()\nf()\n", {}, id="a function that calls itself"
        ),
        pytest.param(
            "class A:\n    def __init__(self):\n        self.a = A()\nA().a.backward()\n", {}, id="an endless object"
        ),
    ],
)
def test_other_programs_are_no_runs_of_it(tmp_path: Path, script: str, files: dict[str, str]) -> None:
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text("from torch import nn\n" + text, encoding="utf-8")
    (tmp_path / "train.py").write_text(HEAD + script, encoding="utf-8")
    assert registry.specs(load(str(tmp_path / "train.py"))) == []


@pytest.mark.parametrize(
    ("script", "files"),
    [
        pytest.param(OWN + "model = Net()\n" + ADAMW + LOOP, {}, id="of the program's own"),
        pytest.param("from nets import Net\nmodel = Net()\n" + ADAMW + LOOP, {"nets": OWN}, id="of the repository's"),
    ],
)
def test_of_a_model_that_is_followed_what_trains_is_a_bound(tmp_path: Path, script: str, files: dict[str, str]) -> None:
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text("from torch import nn\n" + text, encoding="utf-8")
    (tmp_path / "train.py").write_text(HEAD + script, encoding="utf-8")
    (spec,) = registry.specs(load(str(tmp_path / "train.py")))
    assert isinstance(spec.unknown_reason, OnTop)


def test_options_of_a_command_reach_the_loop(tmp_path: Path) -> None:
    script = (
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--model', default='gpt2')\n"
        "parser.add_argument('--bs', type=int, default=8)\nargs = parser.parse_args()\n"
        "loader = DataLoader(['a'], batch_size=args.bs, collate_fn=collate)\n"
        "model = AutoModelForCausalLM.from_pretrained(args.model)\n" + ADAMW + LOOP
    )
    spec = run(tmp_path, script, "python train.py --model Qwen/Qwen2.5-0.5B --bs 4")
    assert (spec.family, spec["model"], spec["micro_batch_size"]) == ("training-loop", "Qwen/Qwen2.5-0.5B", 4)
    assert spec.facts["micro_batch_size"].key == "batch_size"  # an argument of a call, and no option of the program's
    spec = run(tmp_path, script)
    assert (spec["model"], spec["micro_batch_size"]) == ("gpt2", 8)


def test_a_loop_of_a_class_is_followed_with_its_object(tmp_path: Path) -> None:
    script = (
        "class Tuner:\n    def __init__(self, name, rows):\n"
        "        self.model = AutoModelForCausalLM.from_pretrained(name).to('cuda')\n"
        "        self.optimizer = torch.optim.AdamW(self.model.parameters())\n        self.loader = rows\n"
        "    def loss_of(self, batch):\n        return self.model(**batch).loss\n"
        "    def train(self):\n        for batch in self.loader:\n            loss = self.loss_of(batch)\n"
        "            loss.backward()\n            self.optimizer.step()\n            self.optimizer.zero_grad()\n"
        "Tuner('Qwen/Qwen2.5-0.5B', loader).train()\n"
    )
    spec = run(tmp_path, script)
    assert (spec.unknown_reason, spec["model"], spec["micro_batch_size"]) == ("", "Qwen/Qwen2.5-0.5B", 2)


def test_a_data_set_says_how_long_its_rows_are(tmp_path: Path) -> None:
    script = (
        "class Rows(torch.utils.data.Dataset):\n    def __init__(self, block_size):\n"
        "        self.block_size = block_size\n    def __getitem__(self, at):\n        return at\n"
        "loader = DataLoader(Rows(512), batch_size=2)\n"
    )
    assert run(tmp_path, script + MODEL + ADAMW + LOOP)["sequence_length"] == 512


def test_deepspeeds_engine_shares_as_its_config_says(tmp_path: Path) -> None:
    config = {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}
    (tmp_path / "ds.json").write_text(json.dumps(config), encoding="utf-8")
    script = (
        MODEL
        + ADAMW
        + "engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config='ds.json')\n"
        "for batch in loader:\n    loss = engine(**batch).loss\n    engine.backward(loss)\n    engine.step()\n"
    )
    spec = run(tmp_path, script, "deepspeed --num_gpus 4 train.py")
    found = [spec.get(name) for name in ("parallelism.strategy", "parallelism.zero_stage", "device_count")]
    assert (spec.unknown_reason, found) == ("", ["zero", 2, 4])


def test_deepspeeds_engine_accumulates_as_its_config_says(tmp_path: Path) -> None:
    """A loop that states no number of its own contradicts none: the engine steps when it is time."""
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "zero_optimization": {"stage": 2}}
    (tmp_path / "ds.json").write_text(json.dumps(config), encoding="utf-8")
    script = (
        MODEL
        + ADAMW
        + "engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config='ds.json')\n"
        "for batch in loader:\n    loss = engine(**batch).loss\n    engine.backward(loss)\n    engine.step()\n"
    )
    spec = run(tmp_path, script, "deepspeed --num_gpus 4 train.py")
    assert (spec["gradient_accumulation_steps"], spec.conflicts) == (4, ())


def test_a_program_with_the_names_of_a_config_is_no_config(tmp_path: Path) -> None:
    script = "train_dataloader = DataLoader([], batch_size=4)\noptimizer = {}\n".format(ADAMW.partition(" = ")[2])
    spec = run(tmp_path, MODEL + script + LOOP.replace("in loader", "in train_dataloader"))
    assert (spec.family, spec["micro_batch_size"]) == ("training-loop", 4)


def test_a_finding_points_into_the_script(tmp_path: Path) -> None:
    run(tmp_path, MODEL + ADAMW + LOOP)
    (found,) = check(str(tmp_path / "train.py"), isolated=True, budget="1GB").runs
    assert found.estimate is not None
    assert found.verdict == "OOM"


def test_a_walk_lists_a_loop_with_an_estimate_alone(tmp_path: Path) -> None:
    run(tmp_path, MODEL + ADAMW + LOOP)
    (tmp_path / "other.py").write_text(HEAD + MODEL + ADAMW + LOOP.replace("in loader", "in mine()"), encoding="utf-8")
    assert [Path(one.path).name for one in check(str(tmp_path), isolated=True).runs if one.estimate] == ["train.py"]


CUT = """\
def tokenize(rows, most):
    for row in rows:
        input_ids = tokenizer.encode(row)
        input_ids = input_ids[:most]
    return {"input_ids": input_ids}
loader = DataLoader(load().map(tokenize, fn_kwargs={"most": 320}), batch_size=2)
"""


def test_a_sample_is_cut_where_the_program_cuts_its_tokens(tmp_path: Path) -> None:
    assert run(tmp_path, CUT + MODEL + ADAMW + LOOP)["sequence_length"] == 320
    each = CUT.replace("input_ids = input_ids[:most]", "input_ids = [one[:most] for one in rows]")
    each = each.replace('{"most": 320}', "dict(most=321)")
    assert run(tmp_path, each + MODEL + ADAMW + LOOP)["sequence_length"] == 321
    another = CUT.replace("input_ids = input_ids[:most]", "shown = input_ids[:most]")
    assert run(tmp_path, another + MODEL + ADAMW + LOOP)["sequence_length"] == 256  # of the tokenizer's call


BY_HAND = """\
def tokenize(row):
    LONGEST = 320
    said, asked = tokenizer(row["answer"]), tokenizer(row["question"])
    input_ids = asked["input_ids"] + said["input_ids"] + [tokenizer.pad_token_id]
    if len(input_ids) > LONGEST:
        input_ids = input_ids[:LONGEST]
    return {"input_ids": input_ids}
rows = load().map(tokenize, remove_columns=[])
loader = DataLoader(rows, batch_size=2)
"""
_IF = BY_HAND[BY_HAND.index("    if len") : BY_HAND.index("    return")]


@pytest.mark.parametrize(
    ("script", "length"),
    [
        pytest.param(BY_HAND, 320, id="where they are too long"),
        pytest.param(
            BY_HAND.replace(_IF, "").replace(
                'asked["input_ids"] + said["input_ids"] + [tokenizer.pad_token_id]',
                '(asked["input_ids"] + said["input_ids"])[:LONGEST]',
            ),
            320,
            id="as they are added",
        ),
        pytest.param(
            BY_HAND.replace(_IF, "").replace(
                '{"input_ids": input_ids}', '{"input_ids": (asked["input_ids"] + said["input_ids"])[:LONGEST]}'
            ),
            320,
            id="as they are returned",
        ),
        pytest.param(BY_HAND.replace(_IF, ""), 256, id="not at all"),  # of the tokenizer's call
        pytest.param(
            BY_HAND.replace("len(input_ids) > LONGEST", "row.short"), 256, id="under a condition of something else"
        ),
    ],
)
def test_a_sample_is_cut_where_its_parts_are_put_together(script: str, length: int, tmp_path: Path) -> None:
    assert run(tmp_path, script + MODEL + ADAMW + LOOP)["sequence_length"] == length


AN_OBJECT = """\
class Ours:
    def __init__(self, model):
        self.model = model
        self.accelerator = Accelerator()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.model, self.optimizer, self.loader = self.accelerator.prepare(self.model, self.optimizer, loader)

    def train(self):
        for epoch in range(3):
            for batch in self.loader:
                loss = self.model(**batch).loss
                self.accelerator.backward(loss)
                self.optimizer.step()
                self.optimizer.zero_grad()
            if epoch == best():
                self.model = {}
Ours(AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype=torch.bfloat16)).train()
"""


def test_a_model_that_is_unwrapped_for_a_moment_is_still_the_model(tmp_path: Path) -> None:
    spec = run(tmp_path, AN_OBJECT.format("self.accelerator.unwrap_model(self.model)"), "python train.py")
    assert (spec["model"], spec["micro_batch_size"]) == ("Qwen/Qwen2.5-0.5B", 2)
    (tmp_path / "run.sh").unlink()
    other = AN_OBJECT.format("another()")
    (tmp_path / "train.py").write_text(HEAD + other, encoding="utf-8")
    assert all("model" not in spec for spec in registry.specs(load(str(tmp_path / "train.py"))))


HELD = """\
class Inner(nn.Module):
    def __init__(self, body):
        body.requires_grad_(False)
class Scorer(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.body = AutoModel.from_pretrained(name)
        {}
        self.head = nn.Linear(896, 1)
    def forward(self, **batch):
        return self.head(self.body(**batch).last_hidden_state)
model = Scorer("Qwen/Qwen2.5-0.5B")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for batch in loader:
    loss = F.logsigmoid(model(**batch)).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_modules_that_load_no_model_are_not_followed(tmp_path: Path) -> None:
    layers = "class Layer(nn.Module):\n    def __init__(self):\n        self.a = nn.Linear(1, 1)\n"
    nested = "class Body(nn.Module):\n    def __init__(self):\n        self.all = [Layer() for _ in range(900)]\n"
    with work.limited(200_000):
        run(
            tmp_path,
            layers + nested + "other = [Body() for _ in range(90)]\n" + MODEL + ADAMW + LOOP,
            "python train.py",
        )


def test_a_model_in_a_module_of_the_programs_own_is_a_bound(tmp_path: Path) -> None:
    spec = run(tmp_path, HELD.format("pass"), "python train.py")
    assert isinstance(spec.unknown_reason, OnTop)
    assert (spec["model"], spec["model_class"], spec.architecture_at_least) == (
        *("Qwen/Qwen2.5-0.5B", "sequence_classification", "language_model"),
    )


@pytest.mark.parametrize(
    "inner",
    [
        pytest.param("self.body.requires_grad_(False)", id="frozen"),
        pytest.param("self.body.layers = self.body.layers[:4]", id="shortened"),
        pytest.param("for one in self.body.parameters(): one.requires_grad = False", id="frozen one by one"),
        pytest.param("self.other = AutoModel.from_pretrained('gpt2')", id="two of them"),
        pytest.param("self.other = Inner(self.body)", id="given to another class"),
    ],
)
def test_a_model_that_its_module_changes_is_none(tmp_path: Path, inner: str) -> None:
    spec = run(tmp_path, HELD.format(inner), "accelerate launch train.py --learning_rate 1")
    assert spec.architecture_at_least == ""


MADE_BY_ITS_CLASS = """\
class Ranker(nn.Module):
    def __init__(self, body, head):
        super().__init__()
        self.body, self.head = body, head
        {}
    def forward(self, **batch):
        return self.head(self.body(**batch).last_hidden_state)
    @classmethod
    def from_pretrained(cls, name, width=1):
        body = {}(name)
        return cls(body, nn.Linear(body.config.hidden_size, width))
model = Ranker.from_pretrained("Qwen/Qwen2.5-0.5B", width=2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for batch in loader:
    loss = F.logsigmoid(model(**batch)).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("loader", ["AutoModel.from_pretrained", "SentenceTransformer"])
def test_a_model_that_a_class_method_hands_to_its_class_is_a_bound(tmp_path: Path, loader: str) -> None:
    spec = run(tmp_path, MADE_BY_ITS_CLASS.format("pass", loader), "python train.py")
    assert isinstance(spec.unknown_reason, OnTop)
    assert (spec["model"], spec["model_class"], spec.architecture_at_least) == (
        *("Qwen/Qwen2.5-0.5B", "sequence_classification", "language_model"),
    )
    spec = run(tmp_path, MADE_BY_ITS_CLASS.format("body.requires_grad_(False)", loader), "python train.py")
    assert spec.architecture_at_least == ""


def test_a_class_method_that_a_program_does_not_have_is_a_librarys(tmp_path: Path) -> None:
    script = MADE_BY_ITS_CLASS.format("pass", "AutoModel.from_pretrained").replace("    @classmethod\n", "")
    (tmp_path / "run.sh").write_text("python train.py --learning_rate 1 --epochs 2\n", encoding="utf-8")
    spec = run(tmp_path, script, "accelerate launch train.py --learning_rate 1")
    assert spec.architecture_at_least == ""


@pytest.mark.parametrize(
    ("text", "does"),
    [
        pytest.param("import torch\nclass A:\n    pass\ndef f():\n    g()\n", False, id="it only defines"),
        pytest.param("import logging\nlogger = logging.getLogger(__name__)\nX = [1]\n", False, id="a logger"),
        pytest.param("try:\n    import a\nexcept ImportError:\n    a = None\n", False, id="what may not be there"),
        pytest.param("def main():\n    pass\nif __name__ == '__main__':\n    main()\n", True, id="its own end"),
        pytest.param("def main():\n    pass\nresult = main()\n", True, id="what a function of its own makes"),
        pytest.param("for x in y:\n    pass\n", True, id="a loop"),
        pytest.param("with x:\n    pass\n", True, id="a with statement"),
        pytest.param("trainer.train()\n", True, id="a call"),
        pytest.param("x = (\n", False, id="no Python"),
    ],
)
def test_a_module_that_only_defines_is_not_followed(text: str, does: bool) -> None:
    assert training_loops.does_something("a.py", text) is does
