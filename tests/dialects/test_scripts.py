"""What a training script itself says, beside the options of the command that starts it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from memlint import check
from memlint.dialects import own_code, registry
from memlint.documents.load import load
from memlint.facts.spec import OnTop, TrainingSpec

HEAD = """\
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, HfArgumentParser, Trainer, TrainingArguments
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from trl import DPOTrainer, SFTConfig, SFTTrainer
"""
PARSED = "(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
MODEL = 'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype=torch.bfloat16)\n'
OPTIONS = "--output_dir out --per_device_train_batch_size 2 --bf16 true --max_seq_length 512"


def run(tmp_path: Path, script: str, command: str = "python train.py " + OPTIONS) -> TrainingSpec:
    (tmp_path / ".git").mkdir(exist_ok=True)
    (tmp_path / "train.py").write_text(HEAD + script, encoding="utf-8")
    (tmp_path / "run.sh").write_text(command + "\n", encoding="utf-8")
    (spec,) = registry.specs(load(str(tmp_path / "run.sh")))
    return spec


def test_the_model_and_its_adapters_are_the_scripts(tmp_path: Path) -> None:
    spec = run(
        tmp_path,
        PARSED + MODEL + "model = get_peft_model(model, LoraConfig(r=16, target_modules=['q_proj', 'v_proj']))\n"
        "Trainer(model=model, args=args)\n",
    )
    assert spec.family == "hf-trainer"
    assert (spec["model"], spec["tuning"], spec["lora.r"]) == ("Qwen/Qwen2.5-0.5B", "lora", 16)
    rank = spec.fact("lora.r")
    assert rank is not None
    assert rank.node is not None
    assert (Path(rank.node.span.path).name, rank.node.span.line) == ("train.py", 7)


def test_an_option_goes_before_what_the_script_says(tmp_path: Path) -> None:
    script = PARSED + MODEL + "Trainer(model=get_peft_model(model, LoraConfig(r=16)), args=args)\n"
    spec = run(tmp_path, script, f"python train.py {OPTIONS} --lora_r 4 --model_name_or_path gpt2")
    assert (spec["lora.r"], spec["model"]) == (4, "gpt2")


def test_a_trainer_that_loads_its_model_takes_its_quantisation(tmp_path: Path) -> None:
    script = (
        "from trl import SFTConfig, SFTTrainer\ncodes = BitsAndBytesConfig(load_in_4bit=True)\n"
        "args = SFTConfig(output_dir='o', per_device_train_batch_size=2, max_length=512)\n"
        "SFTTrainer(model={}, args=args, peft_config=LoraConfig(r=8), quantization_config=codes)\n"
    )
    assert run(tmp_path, script.format("'Qwen/Qwen2.5-0.5B'"), "python train.py")["quantization.bits"] == 4
    loaded = script.format("AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B')")
    assert run(tmp_path, loaded, "python train.py").get("quantization.bits") is None  # it is ignored then


def test_codes_of_four_bits_and_what_is_cast_beside_them(tmp_path: Path) -> None:
    script = (
        PARSED + "codes = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4')\n"
        "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B', quantization_config=codes)\n"
        "model = prepare_model_for_kbit_training(model)\n"
        "Trainer(model=get_peft_model(model, LoraConfig(r=8)), args=args)\n"
    )
    spec = run(tmp_path, script)
    found = [spec.get(name) for name in ("quantization.bits", "quantization.kind", "quantization.prepared")]
    assert found == [4, "nf4", True]
    assert spec["checkpointing"] == "full"


@pytest.mark.parametrize(
    ("trainer", "family", "method"),
    [
        pytest.param("SFTTrainer", "trl", "sft", id="SFT"),
        pytest.param("DPOTrainer", "trl", "dpo", id="DPO, which its options do not tell from SFT"),
        pytest.param("Trainer", "hf-trainer", None, id="the Trainer"),
    ],
)
def test_whose_run_it_is_is_said_by_the_trainer(tmp_path: Path, trainer: str, family: str, method: str | None) -> None:
    spec = run(tmp_path, PARSED + MODEL + f"{trainer}(model=model, args=args)\n")
    assert (spec.family, spec.get("method")) == (family, method)


def test_another_projects_trainer_of_that_name_is_not_taken_for_it(tmp_path: Path) -> None:
    spec = run(tmp_path, "from ours import DPOTrainer\n" + PARSED + MODEL + "DPOTrainer(model=model, args=args)\n")
    assert (spec.family, spec.get("model")) == ("hf-trainer", None)
    assert spec.unknown_reason == "DPOTrainer is of ours, whose trainers are not described"


OWN = """\
from transformers import Trainer

class Ours(Trainer):
    {}
"""
BY_ITS_OWN = "def compute_loss(self, model, inputs):\n        return model(**inputs).logits.mean()"
BY_ITS_BASE = "def compute_loss(self, model, inputs):\n        return super().compute_loss(model, inputs) * 2"
WITHOUT = "def save_model(self, folder):\n        pass"


@pytest.mark.parametrize(
    ("files", "imported", "why"),
    [
        pytest.param(
            {"trainer.py": OWN.format(BY_ITS_OWN)},
            "from trainer import Ours\n",
            "Ours has a loss of its own (trainer.py: Ours.compute_loss)",
            id="a module beside the program",
        ),
        pytest.param(
            {"parts/__init__.py": "from .trainer import Ours\n", "parts/trainer.py": OWN.format(BY_ITS_OWN)},
            "from parts import Ours\n",
            "Ours has a loss of its own (trainer.py: Ours.compute_loss)",
            id="a package that takes it from its module",
        ),
        pytest.param(
            {"base.py": OWN.format(BY_ITS_OWN).replace("Ours", "BaseTrainer")},
            "from base import BaseTrainer\nclass Ours(BaseTrainer):\n    pass\n",
            "Ours has a loss of its own (base.py: BaseTrainer.compute_loss)",
            id="a class of the program's that is of one of the repository's",
        ),
        pytest.param(
            {"trainer.py": OWN.format("def train(self):\n        self.model.train()")},
            "from trainer import Ours\n",
            "Ours has a loop of its own (trainer.py: Ours.train)",
            id="a loop of its own, as that of a PPO",
        ),
        pytest.param(
            {"trainer.py": OWN.format("def train(self):\n        return super().train()")},
            "from trainer import Ours\n",
            "",
            id="a loop that is the library's",
        ),
        pytest.param(
            {}, OWN.format(BY_ITS_OWN), "Ours has a loss of its own (train.py: Ours.compute_loss)", id="in the program"
        ),
        pytest.param({"trainer.py": OWN.format(BY_ITS_BASE)}, "from trainer import Ours\n", "", id="it asks its base"),
        pytest.param({"trainer.py": OWN.format(WITHOUT)}, "from trainer import Ours\n", "", id="it only saves"),
        pytest.param({"trainer.py": "from trainer import Ours\n"}, "from trainer import Ours\n", "", id="a circle"),
        pytest.param({"trainer.py": "class Ours(Trainer:\n"}, "from trainer import Ours\n", "", id="no Python"),
    ],
)
def test_a_trainer_with_a_loss_of_its_own_is_not_the_librarys(
    tmp_path: Path, files: dict[str, str], imported: str, why: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text.replace("Ours", "OurTrainer"), encoding="utf-8")
    script = (imported + PARSED + MODEL + "Ours(model=model, args=args)\n").replace("Ours", "OurTrainer")
    spec = run(tmp_path, script, f"python train.py {OPTIONS} --model_name_or_path gpt2")
    assert spec.unknown_reason == why.replace("Ours", "OurTrainer")


@pytest.mark.parametrize(
    ("option", "why"),
    [
        pytest.param(
            "--load_in_4_bit True", "load_in_4_bit is an option of", id="that a module of its repository declares"
        ),
        pytest.param("--load_in_4_bit False", "", id="switched off"),
        pytest.param("--load_in_4bi True", "", id="a slip, which no program has"),
    ],
)
def test_an_option_of_the_programs_own_is_not_the_librarys(tmp_path: Path, option: str, why: str) -> None:
    (tmp_path / "arguments.py").write_text("class Arguments:\n    load_in_4_bit: bool = False\n", encoding="utf-8")
    script = "from arguments import Arguments\n" + PARSED + MODEL + "Trainer(model=model, args=args)\n"
    spec = run(tmp_path, script, f"python train.py {OPTIONS} --model_name_or_path gpt2 {option}")
    assert (why in spec.unknown_reason) if why else spec.unknown_reason == ""


@pytest.mark.parametrize(
    ("option", "attention"),
    [
        pytest.param("use_flash_attention_2=True", "flash", id="as transformers had it before 5"),
        pytest.param("attn_implementation='flash_attention_2'", "flash", id="as it has it"),
        pytest.param("use_flash_attention_2=False", "sdpa", id="switched off"),
    ],
)
def test_the_attention_that_a_script_asks_for(tmp_path: Path, option: str, attention: str) -> None:
    model = f"model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B', {option})\n"
    spec = run(tmp_path, PARSED + model + "Trainer(model=model, args=args)\n")
    assert spec["attention"].startswith(attention)


def test_a_blank_behind_a_backslash_ends_the_command(tmp_path: Path) -> None:
    line = f"python away.py {OPTIONS} --model_name_or_path gpt2 --max_seq_length 64 \\ \n  --use_peft True\n"
    commented = line.replace("\\ \n", "\\ # where ours is\n")
    for text, why in (
        (line, "a blank behind this backslash"),
        (commented, "a blank behind this backslash"),
        (line.replace("\\ \n", "\\\n"), ""),
    ):
        (tmp_path / "go.sh").write_text(text, encoding="utf-8")
        (spec,) = registry.specs(load(str(tmp_path / "go.sh")))
        assert (why in spec.unknown_reason) if why else spec.unknown_reason == ""


@pytest.mark.parametrize(
    ("option", "why"),
    [
        pytest.param("--medusa_num_heads 3", "medusa_num_heads is an option of away.py's own", id="parts of a model"),
        pytest.param("--freeze_encoder True", "freeze_encoder is an option of away.py's own", id="what trains of it"),
        pytest.param("--freeze_encoder False", "", id="switched off"),
        pytest.param("--conv_template vicuna", "", id="what says nothing of a model"),
    ],
)
def test_an_option_about_a_models_parts_of_a_program_that_is_not_there(tmp_path: Path, option: str, why: str) -> None:
    line = f"python away.py {OPTIONS} --model_name_or_path gpt2 --max_seq_length 64 {option}"
    (tmp_path / "go.sh").write_text(line, encoding="utf-8")
    (spec,) = registry.specs(load(str(tmp_path / "go.sh")))
    assert (why in spec.unknown_reason) if why else spec.unknown_reason == ""


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        pytest.param("import pyreft\n", "uses pyreft: its interventions are not described", id="another library"),
        pytest.param("import tensor_parallel as tp\n", "uses tensor_parallel: its shards of the model", id="shards"),
        pytest.param(
            "if ready():\n  LoraConfig(r=8)\n", "whether it calls LoraConfig depends on line 5", id="what is in doubt"
        ),
    ],
)
def test_what_a_script_does_besides_is_named(tmp_path: Path, lines: str, why: str) -> None:
    spec = run(tmp_path, lines + PARSED + MODEL + "Trainer(model=model, args=args)\n")
    assert spec.architecture is None
    assert why in spec.unknown_reason


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param("Trainer(model=get_peft_model(model, IA3Config(task_type='CAUSAL_LM')), args=args)", id="inside"),
        pytest.param(
            "config = IA3Config()\nmodel = get_peft_model(model, config)\nTrainer(model=model, args=args)",
            id="by a name",
        ),
        pytest.param("SFTTrainer(model=model, args=args, peft_config=IA3Config())", id="of a trainer's"),
    ],
)
def test_adapters_that_are_not_described_leave_no_estimate(tmp_path: Path, lines: str) -> None:
    """All of the model's parameters were taken to train: of an 8B model 129 GiB."""
    spec = run(tmp_path, f"from peft import IA3Config\n{PARSED}{MODEL}{lines}\n")
    assert spec.architecture is None
    assert "is given IA3Config, which is not described" in spec.unknown_reason


@pytest.mark.parametrize("made", ["get_peft_config(args)", "LoraConfig.from_pretrained('a')", "config", "None"])
def test_what_may_make_the_config_of_lora_leaves_the_estimate(tmp_path: Path, made: str) -> None:
    lines = f"from trl import get_peft_config\n{PARSED}{MODEL}SFTTrainer(model=model, args=args, peft_config={made})\n"
    assert run(tmp_path, lines).unknown_reason == ""


def test_a_script_without_options_is_a_run_by_itself(tmp_path: Path) -> None:
    run(
        tmp_path,
        MODEL + "args = SFTConfig(output_dir='o', per_device_train_batch_size=2, max_length=512, bf16=True)\n"
        "SFTTrainer(model=model, args=args)\n",
    )
    (found,) = check(str(tmp_path / "train.py"), isolated=True).runs
    assert (found.family, found.model_name) == ("trl", "Qwen2.5-0.5B")
    assert found.estimate is not None


def test_one_that_reads_options_is_checked_by_its_command(tmp_path: Path) -> None:
    run(tmp_path, PARSED + MODEL + "Trainer(model=model, args=args)\n")
    (found,) = check(str(tmp_path / "train.py"), isolated=True).runs
    assert found.estimate is None
    assert "reads options, and none are given" in found.findings[0].message
    runs = check(str(tmp_path), isolated=True).runs
    assert [Path(one.path).name for one in runs] == ["run.sh"]


def test_a_script_with_a_trainer_of_its_own_is_named_where_its_model_is_not_known(tmp_path: Path) -> None:
    """2U1/Qwen2-VL-Finetune: train_grpo.py names its model by --model_id, and trains by a class of its own."""
    program = "from own import OwnTrainer\nargs = parse()\nOwnTrainer(model=args.model_id).train()\n"
    options = "--model_id gpt2 --max_length 512 --beta 0.1 --per_device_train_batch_size 1 --num_generations 4"
    (tmp_path / "train_own.py").write_text(program, encoding="utf-8")
    (tmp_path / "run.sh").write_text(f"python train_own.py {options}\n", encoding="utf-8")
    (spec,) = registry.specs(load(str(tmp_path / "run.sh")))
    assert spec.unknown_reason == "OwnTrainer is of own, whose trainers are not described"


def test_what_memlint_does_not_describe_is_no_value_that_is_left_open_and_a_readme_with_it_is_listed(
    tmp_path: Path,
) -> None:
    script = OWN.format(BY_ITS_OWN).replace("Ours", "OurTrainer") + PARSED + "OurTrainer(args=args)\n"
    run(tmp_path, script)
    (tmp_path / "run.sh").unlink()
    text = f"```bash\npython train.py {OPTIONS} --model_name_or_path openai-community/gpt2\n```\n"
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    (found,) = (one for one in check(str(tmp_path), isolated=True).runs if one.path.endswith("README.md"))
    assert found.unresolved == ()
    (said,) = found.findings
    assert said.code == "MEM007"
    assert "OurTrainer has a loss of its own" in said.message


SIMPO = """\
from transformers import Trainer

class SimPOTrainer(Trainer):
    def __init__(self, model=None, args=None):
        super().__init__(model=model, args=args)  # nothing else

    def simpo_loss(self, chosen, rejected):
        WHAT
        return chosen - rejected

    def compute_loss(self, model, inputs, return_outputs=False):
        return self.simpo_loss(model(inputs), model(inputs))

    def log(self, logs):
        return LOGS
"""


def test_peft_s_own_table_of_modules_is_what_it_takes_unless_it_is_told(tmp_path: Path) -> None:
    script = "from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING\n"
    adapted = "Trainer(model=get_peft_model(model, LoraConfig(r=8, {})), args=args)\n"
    told = "target_modules=TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING['gpt2']"
    found = run(tmp_path, script + PARSED + MODEL + adapted.format(told), f"python train.py {OPTIONS}")
    plain = run(tmp_path, PARSED + MODEL + adapted.format(""), f"python train.py {OPTIONS}")
    assert found.unknown_reason == plain.unknown_reason
    assert (found.get("lora.targets"), found.get("tuning")) == (plain.get("lora.targets"), "lora")


def test_a_field_of_options_has_its_default_in_transformers_own_word_as_well(tmp_path: Path) -> None:
    script = (
        "from dataclasses import dataclass\n"
        "from transformers import (AutoModelForCausalLM, AutoTokenizer, HfArgumentParser, Trainer, TrainingArguments)\n"
        "from transformers.hf_argparser import HfArg\n"
        "@dataclass\nclass Options(TrainingArguments):\n    model_max_length: int = HfArg(default=256, help='tokens')\n"
        "(args,) = HfArgumentParser(Options).parse_args_into_dataclasses()\n"
        "tokenizer = AutoTokenizer.from_pretrained('gpt2', model_max_length=args.model_max_length)\n"
        "model = AutoModelForCausalLM.from_pretrained('gpt2')\nTrainer(model=model, args=args)\n"
    )
    spec = run(tmp_path, script, "python train.py --output_dir out --per_device_train_batch_size 4")
    assert (spec.get("sequence_length"), spec.unknown_reason) == (256, "")


MADE = "args = TrainingArguments('out', per_device_train_batch_size=1, fp16=True, deepspeed='z3.json')\n"
PLACED = "model = AutoModelForCausalLM.from_pretrained('gpt2', device_map={})\n"


@pytest.mark.parametrize(
    ("script", "whole"),
    [
        pytest.param(PLACED.format("{'': 0}") + MADE, True, id="on its card before the arguments are made"),
        pytest.param(PLACED.format("'auto'") + MADE, True, id="by itself"),
        pytest.param(MADE + PLACED.format("{'': 0}"), False, id="behind them, where transformers refuses it"),
        pytest.param(PLACED.format("'cpu'") + MADE, False, id="in host memory"),
        pytest.param(PLACED.format("None") + MADE, False, id="nowhere in particular"),
    ],
)
def test_a_model_that_is_on_its_card_before_deepspeed_shards_it_stands_there_whole(
    tmp_path: Path, script: str, whole: bool
) -> None:
    (tmp_path / "z3.json").write_text('{"zero_optimization": {"stage": 3}}', encoding="utf-8")
    text = "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n" + script
    spec = run(tmp_path, text + "Trainer(model=model, args=args)\n", "deepspeed --num_gpus 4 train.py")
    assert spec.get("parallelism.zero_stage") == 3
    assert spec.get("parallelism.loaded_whole", False) is whole


@pytest.mark.parametrize(
    ("command", "devices"),
    [
        pytest.param("deepspeed --num_gpus 4 solve.py", 4, id="DeepSpeed's launcher"),
        pytest.param("torchrun --nproc_per_node 2 solve.py", 2, id="torchrun"),
        pytest.param("accelerate launch --num_processes 2 --multi_gpu solve.py", 2, id="accelerate"),
    ],
)
def test_a_program_of_any_name_that_makes_a_trainer_is_started_by_its_launcher(
    tmp_path: Path, command: str, devices: int
) -> None:
    made = "args = TrainingArguments('out', per_device_train_batch_size=1)\nTrainer(model=model, args=args)\n"
    head = "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
    model = "model = AutoModelForCausalLM.from_pretrained('gpt2')\n"
    (tmp_path / ".git").mkdir()
    (tmp_path / "solve.py").write_text(head + model + made, encoding="utf-8")
    (tmp_path / "other.py").write_text("print('no trainer')\n", encoding="utf-8")
    (tmp_path / "run.sh").write_text(f"{command}\ntorchrun --nproc_per_node 2 other.py\n", encoding="utf-8")
    (spec,) = registry.specs(load(str(tmp_path / "run.sh")))
    assert (spec.family, spec["device_count"], spec["model"]) == ("hf-trainer", devices, "gpt2")


def test_a_class_that_a_name_stands_for_makes_the_model(tmp_path: Path) -> None:
    script = PARSED + "Kind = AutoModelForCausalLM\nmodel = Kind.from_pretrained('gpt2')\n"
    spec = run(tmp_path, script + "Trainer(model=model, args=args)\n", f"python train.py {OPTIONS}")
    assert (spec.get("model"), spec.unknown_reason) == ("gpt2", "")


@pytest.mark.parametrize(
    ("name", "model"),
    [
        pytest.param("'{}2'.format('gpt')", "gpt2", id="in their order"),
        pytest.param("'{1}{0}'.format(2, 'gpt')", "gpt2", id="by their numbers"),
        pytest.param("'{kind}2'.format(kind='gpt')", "gpt2", id="by their names"),
        pytest.param("'{:>9}'.format('gpt2')", None, id="in a way that is not followed"),
        pytest.param("'{}{}'.format('gpt2')", None, id="too few"),
        pytest.param("'{'.format('gpt2')", None, id="a brace too few"),
    ],
)
def test_a_name_that_is_put_together(tmp_path: Path, name: str, model: str | None) -> None:
    script = PARSED + f"model = AutoModelForCausalLM.from_pretrained({name})\nTrainer(model=model, args=args)\n"
    assert run(tmp_path, script, f"python train.py {OPTIONS}").get("model") == model


DEFAULT_LOSS = "def compute_loss(self, model, inputs, return_outputs=False, **kwargs):\n        {}"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        pytest.param('return model(input_ids=inputs["input_ids"], labels=inputs["labels"]).loss', "", id="by names"),
        pytest.param(
            'outputs = model(**inputs)\n        loss = outputs["loss"] if isinstance(outputs, dict) else outputs[0]\n'
            "        return (loss, outputs) if return_outputs else loss",
            "",
            id="with its outputs",
        ),
        pytest.param("return model(**inputs)[0]", "", id="the first of what it returns"),
        pytest.param("return model(input_ids=inputs['input_ids']).loss", "a loss", id="without labels"),
        pytest.param("return model(**inputs).loss * 2", "a loss", id="times a number"),
        pytest.param("return model(**inputs).loss + self.reference(**inputs).loss", "a loss", id="and another model's"),
        pytest.param("return self.reference(**inputs).loss", "a loss", id="another model's"),
    ],
)
def test_a_trainer_that_returns_its_models_own_loss_has_the_librarys(tmp_path: Path, body: str, why: str) -> None:
    script = OWN.format(DEFAULT_LOSS.format(body)) + PARSED + MODEL + "Ours(model=model, args=args)\n"
    spec = run(tmp_path, script, f"python train.py {OPTIONS} --model_name_or_path gpt2")
    assert spec.unknown_reason == (why and f"Ours has {why} of its own (train.py: Ours.compute_loss)")


LOOP = "def _inner_training_loop(self, args):\n        {}"
MADE_WITHIN = """\
from dataclasses import dataclass
from transformers import HfArgumentParser, TrainingArguments
from trainer import Ours

class Framework:
    def __init__(self, args):
        self.args = args

    def train(self):
        Ours(model=self.load(), args=self.args).train()

(args,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
Framework(args).train()
"""


@pytest.mark.parametrize(
    ("text", "why", "bounded"),
    [
        pytest.param(OWN.format(LOOP.format("self.step()")), "a loop", False, id="a loop without gradients"),
        pytest.param(OWN.format(LOOP.format("self.loss().backward()")), "a loop", True, id="a loop with gradients"),
        pytest.param(OWN.format(BY_ITS_OWN), "a loss", True, id="a loss"),
        pytest.param(OWN.format(WITHOUT), "", False, id="the library's loop and loss"),
    ],
)
def test_a_trainer_that_is_made_out_of_sight_is_told_by_its_class(
    tmp_path: Path, text: str, why: str, bounded: bool
) -> None:
    """What trains is not the library's loop, though all options are the library's (MeZO trains without gradients)."""
    (tmp_path / "trainer.py").write_text(text, encoding="utf-8")
    spec = run(tmp_path, MADE_WITHIN, f"python train.py {OPTIONS} --model_name_or_path gpt2")
    assert spec.unknown_reason.startswith(why and f"Ours has {why} of its own (trainer.py: Ours.")
    assert isinstance(spec.unknown_reason, OnTop) is bounded


@pytest.mark.parametrize(
    ("what", "logs", "known"),
    [
        pytest.param("'The margin.'", "logs", True, id="what it logs, and what is said of it, is no part of its loss"),
        pytest.param("chosen = chosen.float()", "{}", False, id="another loss"),
    ],
)
def test_a_trainer_that_is_described_is_known_by_what_its_loss_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, logs: str, known: bool
) -> None:
    (one,) = (node for node in ast.parse(SIMPO.replace("WHAT", "")).body if isinstance(node, ast.ClassDef))
    monkeypatch.setattr(own_code, "DESCRIBED", {own_code.shape(one): "simpo"})
    (tmp_path / "simpo_trainer.py").write_text(SIMPO.replace("WHAT", what).replace("LOGS", logs), encoding="utf-8")
    script = "from simpo_trainer import SimPOTrainer\n" + PARSED + "SimPOTrainer(model='gpt2', args=args)\n"
    spec = run(tmp_path, script, f"python train.py {OPTIONS} --model_name_or_path gpt2 --gamma_beta_ratio 0.5")
    why = "" if known else "SimPOTrainer has a loss of its own (simpo_trainer.py: SimPOTrainer.compute_loss)"
    assert (spec.family, spec.get("method"), spec.unknown_reason) == (
        "simpo" if known else "hf-trainer",
        "simpo" if known else None,
        why,
    )


SCORES = """\
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments

class RewardTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
LOSS

args = TrainingArguments(output_dir="out", per_device_train_batch_size=2)
model = AutoModelForSequenceClassification.from_pretrained("Qwen/Qwen2.5-0.5B", num_labels=1)
trainer = RewardTrainer(model=model, args=args)
trainer.train()
"""
IN_TURN = """\
        rewards_j = model(input_ids=inputs["input_ids_j"], attention_mask=inputs["attention_mask_j"])[0]
        rewards_k = model(input_ids=inputs["input_ids_k"], attention_mask=inputs["attention_mask_k"])[0]
        loss = -nn.functional.logsigmoid(rewards_j - rewards_k).mean()
        return (loss, {"rewards_j": rewards_j}) if return_outputs else loss
"""
TOGETHER = """\
        rewards = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])[0]
        jidx = torch.arange(0, rewards.size(0), 2)
        return -nn.functional.logsigmoid(rewards[jidx] - rewards[jidx + 1]).mean()

def collate(features):
    return [one[name] for one in features for name in ("input_ids_j", "input_ids_k")]
"""
WEIGHED = """\
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss_fct = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]))
        loss = loss_fct(outputs.get("logits").view(-1, 2), labels.view(-1))
        return (loss, outputs) if return_outputs else loss
"""


@pytest.mark.parametrize(
    ("loss", "rows", "known"),
    [
        pytest.param(IN_TURN, (2, 2), True, id="a pair's answers, one pass each"),
        pytest.param(TOGETHER, (2, 1), True, id="a pair's answers, in one pass"),
        pytest.param(WEIGHED, (1, 1), True, id="classes with weights"),
        pytest.param(IN_TURN.replace("rewards_j - ", "self.head(rewards_j) - "), (1, 1), False, id="a head of its own"),
        pytest.param(
            WEIGHED.replace("        loss = ", "        for _ in range(2): model(**inputs)\n        loss = "),
            (1, 1),
            False,
            id="passes in a loop",
        ),
        pytest.param(WEIGHED.replace("model(**inputs)", "model(inputs, 2)"), (1, 1), False, id="other inputs"),
        pytest.param(WEIGHED.replace("labels.view(-1))", "self.loss(labels))"), (1, 1), False, id="a method's name"),
    ],
)
def test_a_loss_of_one_score_a_row_is_told_by_its_passes(
    tmp_path: Path, loss: str, rows: tuple[int, int], known: bool
) -> None:
    spec = run(tmp_path, SCORES.replace("LOSS", loss), "python train.py")
    assert spec["model_class"] == "sequence_classification"
    assert (spec.get("sequences_per_sample", 1), spec.get("forward_passes", 1)) == rows
    assert ("has a loss of its own" not in spec.unknown_reason) == known


def test_a_loss_of_scores_says_nothing_of_a_model_of_words(tmp_path: Path) -> None:
    words = SCORES.replace("ForSequenceClassification", "ForCausalLM").replace(", num_labels=1", "")
    spec = run(tmp_path, words.replace("LOSS", WEIGHED), "python train.py")
    assert "has a loss of its own" in spec.unknown_reason


def test_a_module_outside_of_the_repository_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text(OWN.format(BY_ITS_OWN).replace("Ours", "OurTrainer"), encoding="utf-8")
    inside = tmp_path / "repository"
    inside.mkdir()
    script = "from ..outside import OurTrainer\n" + PARSED + "OurTrainer(args=args)\n"
    spec = run(inside, script, f"python train.py {OPTIONS} --model_name_or_path gpt2")
    assert spec.unknown_reason == "OurTrainer is of ..outside, whose trainers are not described"


DECLARES = """\
import argparse, json
def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default="own.json")
    parser.add_argument("--model", default="small")
    return parser.parse_args()
args = arguments()
with open(args.config) as file:
    config = json.load(file)
MODELS = {"small": "Qwen/Qwen2.5-0.5B", "large": "Qwen/Qwen2.5-7B"}
model = AutoModelForCausalLM.from_pretrained(MODELS[args.model], torch_dtype=torch.bfloat16)
def cut(rows):
    return tokenizer(rows["text"], truncation=True, max_length=config["length"])
data = load_dataset("words").map(cut)
settings = TrainingArguments("out", per_device_train_batch_size=config.get("batch", 2), bf16=True)
"""
SETTINGS = '{"length": 700, "batch": 3}'


def test_options_that_a_script_declares_itself_mean_what_it_makes_of_them(tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text(SETTINGS, encoding="utf-8")
    spec = run(tmp_path, DECLARES + "Trainer(model=model, args=settings).train()\n", "python train.py --model large")
    assert spec.unknown_reason == ""
    assert spec["model"] == "Qwen/Qwen2.5-7B"
    assert (spec["sequence_length"], spec["micro_batch_size"]) == (700, 3)
    batch = spec.fact("micro_batch_size")
    assert batch is not None
    assert batch.node is not None
    assert Path(batch.node.span.path).name == "own.json"


def test_a_tokenizer_that_a_condition_chooses_cuts_at_its_length_all_the_same(tmp_path: Path) -> None:
    """LLM-Adapters': the class of the tokenizer goes by the model's type, and its length was not stated."""
    (tmp_path / "own.json").write_text(SETTINGS, encoding="utf-8")
    chosen = (
        'if model.config.model_type == "llama":\n    tokenizer = LlamaTokenizer.from_pretrained("a")\n'
        'else:\n    tokenizer = AutoTokenizer.from_pretrained("a")\n'
    )
    script = DECLARES.replace("def cut(", chosen + "def cut(") + "Trainer(model=model, args=settings).train()\n"
    assert run(tmp_path, script, "python train.py")["sequence_length"] == 700


def test_a_module_of_the_repository_may_make_the_trainer(tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text(SETTINGS, encoding="utf-8")
    body = "".join(f"    {line}\n" for line in (DECLARES + "Trainer(model=model, args=settings).train()").splitlines())
    (tmp_path / "work.py").write_text(HEAD + "def main():\n" + body, encoding="utf-8")
    spec = run(tmp_path, "from work import main\nmain()\n", "python train.py --model small")
    assert (spec["model"], spec["micro_batch_size"]) == ("Qwen/Qwen2.5-0.5B", 3)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        pytest.param(
            "class Own(torch.nn.Module):\n    pass\nmodel = Own(model)\n", "a class of its own, Own", id="a class"
        ),
        pytest.param(
            "model = PeftModel.from_pretrained(model, 'gone', is_trainable=True)\n",
            "the adapter gone that training goes on with is not there",
            id="an adapter that is not there",
        ),
        pytest.param(
            "model = PeftModel.from_pretrained(model, 'gone')\n",
            "the adapter gone beside the weights, and does not train it",
            id="an adapter that does not train",
        ),
        pytest.param("model = PeftModel.from_pretrained(model, 'gone').merge_and_unload()\n", "", id="one merged"),
    ],
)
def test_what_a_script_puts_around_the_model(tmp_path: Path, lines: str, why: str) -> None:
    (tmp_path / "own.json").write_text(SETTINGS, encoding="utf-8")
    spec = run(tmp_path, DECLARES + lines + "Trainer(model=model, args=settings).train()\n", "python train.py")
    assert why in spec.unknown_reason
    assert bool(spec.unknown_reason) is bool(why)


def test_an_adapter_that_is_there_states_its_rank(tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text(SETTINGS, encoding="utf-8")
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "adapter_config.json").write_text('{"r": 32, "target_modules": ["q_proj"]}', encoding="utf-8")
    lines = "model = PeftModel.from_pretrained(model, 'first', is_trainable=True)\n"
    spec = run(tmp_path, DECLARES + lines + "Trainer(model=model, args=settings).train()\n", "python train.py")
    assert (spec["tuning"], spec["lora.r"]) == ("lora", 32)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param("AutoModelForSequenceClassification", ("sequence_classification", 5), id="classification"),
        pytest.param("AutoModelForTokenClassification", ("token_classification", 5), id="of tokens"),
    ],
)
def test_the_head_is_that_of_the_class_that_loads_the_model(
    tmp_path: Path, lines: str, expected: tuple[str, int]
) -> None:
    text = (
        f"model = {lines}.from_pretrained('bert-base-uncased', num_labels=5)\n"
        "rows.map(lambda row: tokenizer(row, padding='max_length', max_length=128))\n"
        "Trainer(model=model, args=TrainingArguments('out', per_device_train_batch_size=8)).train()\n"
    )
    spec = run(tmp_path, text, "python train.py")
    assert (spec["model_class"], spec["labels"]) == expected


def test_what_a_trainer_of_trl_hands_to_from_pretrained_is_said(tmp_path: Path) -> None:
    text = (
        "from trl import GRPOConfig, GRPOTrainer\nimport torch\n"
        "kwargs = {'torch_dtype': torch.bfloat16, 'quantization_config': BitsAndBytesConfig(load_in_4bit=True)}\n"
        "args = GRPOConfig('out', num_generations=8, model_init_kwargs=kwargs)\n"
        "GRPOTrainer(model='Qwen/Qwen2.5-0.5B', args=args, peft_config=LoraConfig(r=8)).train()\n"
    )
    spec = run(tmp_path, text, "python train.py")
    assert (spec["frozen_dtype"], spec["quantization.bits"]) == ("bfloat16", 4)


def test_a_program_in_another_folder_than_its_command_says_is_found(tmp_path: Path) -> None:
    import subprocess

    (tmp_path / "own.json").write_text(SETTINGS, encoding="utf-8")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    folder = tmp_path / "tuning"
    folder.mkdir()
    (folder / "train_own.py").write_text(
        HEAD + DECLARES + "Trainer(model=model, args=settings).train()\n", encoding="utf-8"
    )
    (folder / "run.sh").write_text("python scripts/tuning/train_own.py --model small\n", encoding="utf-8")
    subprocess.run(["git", "-C", str(tmp_path), "add", "-A"], check=True)
    (spec,) = registry.specs(load(str(folder / "run.sh")))
    assert (spec.family, spec["model"]) == ("hf-trainer", "Qwen/Qwen2.5-0.5B")


def test_adapters_in_a_part_of_a_model_leave_the_rest_as_it_is(tmp_path: Path) -> None:
    script = PARSED + MODEL + "model.model = get_peft_model({}, LoraConfig(r=8))\nTrainer(model=model, args=args)\n"
    spec = run(tmp_path, script.format("model.model"))
    assert isinstance(spec.unknown_reason, OnTop)
    assert spec.unknown_reason.endswith("model.model, a part of the model: whether the rest trains is not known")
    assert run(tmp_path, script.format("model")).unknown_reason == ""


def test_a_field_that_the_script_sets_once_options_are_parsed_is_what_it_sets(tmp_path: Path) -> None:
    script = PARSED + "args.per_device_train_batch_size = 3\nargs.gradient_checkpointing = True\n"
    script += MODEL + "Trainer(model=model, args=args)\n"
    spec = run(tmp_path, script, f"python train.py {OPTIONS} --gradient_checkpointing false")
    assert (spec["micro_batch_size"], spec["checkpointing"]) == (3, "full")
    size = spec.fact("micro_batch_size")
    assert size is not None
    assert size.node is not None
    assert Path(size.node.span.path).name == "train.py"


def test_a_field_of_another_dataclass_may_be_what_it_is_set_to(tmp_path: Path) -> None:
    script = (
        "from dataclasses import dataclass\n@dataclass\nclass Own:\n    block_size: int = 4096\n"
        "own, args = HfArgumentParser((Own, SFTConfig)).parse_args_into_dataclasses()\n"
        "args.max_length = own.block_size\nSFTTrainer('gpt2', args=args)\n"
    )
    options = "--output_dir o --per_device_train_batch_size 1 --bf16 true"
    for more, length in (("", 4096), (" --block_size 512", 512)):
        assert run(tmp_path, script, f"python train.py {options}{more}")["sequence_length"] == length


def test_a_field_that_is_set_to_what_is_not_known_has_no_default(tmp_path: Path) -> None:
    script = PARSED + "args.per_device_train_batch_size = size_of(data)\n" + MODEL + "Trainer(model=model, args=args)\n"
    spec = run(tmp_path, script)
    assert spec.fact("micro_batch_size") is None
    assert spec.gap("micro_batch_size") is not None


TARGETS = (
    "from dataclasses import dataclass, field\n@dataclass\nclass Lora:\n"
    "    targets: list = field(default_factory=lambda: ['q_proj', 'o_proj'])\n"
    "lora, args = HfArgumentParser((Lora, TrainingArguments)).parse_args_into_dataclasses()\n{}"
    + MODEL
    + "Trainer(model=get_peft_model(model, LoraConfig(r=8, target_modules=lora.targets)), args=args)\n"
)


def test_a_list_is_not_none(tmp_path: Path) -> None:
    spec = run(tmp_path, TARGETS.format("if lora.targets is None:\n    lora.targets = every(one)\n"))
    assert spec["lora.targets"] == ["q_proj", "o_proj"]


def test_targets_that_are_not_known_are_not_peft_s_default(tmp_path: Path) -> None:
    spec = run(tmp_path, TARGETS.format("lora.targets = every(one)\n"))
    assert "lora.targets" not in spec
    assert isinstance(spec.unknown_reason, OnTop)
    assert "target_modules" in spec.unknown_reason


@pytest.mark.parametrize("given", ["'gpt2', args=args", "'gpt2', args", "model='gpt2', args=args"])
def test_a_trainer_of_trl_loads_the_model_that_it_is_given_by_name(tmp_path: Path, given: str) -> None:
    script = f"args = SFTConfig('o', max_length=64, per_device_train_batch_size=2)\nSFTTrainer({given})\n"
    spec = run(tmp_path, script, "python train.py")
    assert (spec.get("model"), spec.get("sequence_length"), spec.get("micro_batch_size")) == ("gpt2", 64, 2)


def test_a_notebook_that_colab_exported_as_a_script_is_read_without_its_lines_for_ipython(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    lines = "!pip install -q trl \\\n    peft\n%matplotlib inline\nfrom trl import SFTConfig, SFTTrainer\n"
    made = "args = SFTConfig('o', max_length=64, per_device_train_batch_size=2)\n"
    (tmp_path / "a.py").write_text(lines + made + "SFTTrainer(model='gpt2', args=args)\n", encoding="utf-8")
    (spec,) = registry.specs(load(str(tmp_path / "a.py")))
    assert (spec["model"], spec["micro_batch_size"], spec.unknown_reason) == ("gpt2", 2, "")
    size = spec.fact("micro_batch_size")
    assert size is not None
    assert size.node is not None
    assert size.node.span.line == 5


OWN_ATTENTION = """\
import transformers
import torch.nn.functional as F

def ours(self, hidden_states, **others):
    {}

def replace():
    transformers.models.{}.forward = ours

replace()
"""
SDPA = "return F.scaled_dot_product_attention(hidden_states, hidden_states, hidden_states, is_causal=True)"
FLASH = "return flash_attn_unpadded_qkvpacked_func(hidden_states, 0, 1)"


@pytest.mark.parametrize(
    ("body", "method", "attention"),
    [
        pytest.param(SDPA, "llama.modeling_llama.LlamaAttention", "sdpa", id="by torch's kernel"),
        pytest.param(FLASH, "llama.modeling_llama.LlamaAttention", "flash", id="by flash-attn's"),
        pytest.param(SDPA, "opt.modeling_opt.OPTAttention", "eager", id="another model's, which changes nothing"),
        pytest.param(SDPA, "llama.modeling_llama.LlamaMLP", "eager", id="no attention"),
        pytest.param("return hidden_states", "llama.modeling_llama.LlamaAttention", "eager", id="by no known kernel"),
    ],
)
def test_a_pass_of_its_own_in_the_place_of_attention_says_its_kernel(
    tmp_path: Path, body: str, method: str, attention: str
) -> None:
    (tmp_path / "requirements.txt").write_text("transformers==4.28.1\n", encoding="utf-8")
    (tmp_path / "patch.py").write_text(OWN_ATTENTION.format(body, method), encoding="utf-8")
    script = "import patch\n" + PARSED + MODEL.replace("Qwen/Qwen2.5-0.5B", "huggyllama/llama-7b")
    assert run(tmp_path, script + "Trainer(model=model, args=args)\n")["attention"] == attention


BY_CONFIG = """\
import argparse, json, sys
{}
model = AutoModelForCausalLM.from_pretrained(config["model"])
args = TrainingArguments(output_dir="o", per_device_train_batch_size=config["batch"], bf16=True)
Trainer(model=model, args=args)
"""


@pytest.mark.parametrize(
    ("reads", "command"),
    [
        pytest.param("config = json.load(open(sys.argv[1]))", "python train.py ours.json", id="a word of sys.argv"),
        pytest.param("config = json.load(open(sys.argv[2]))", "python train.py go ours.json", id="the second one"),
        pytest.param(
            "p = argparse.ArgumentParser()\np.add_argument('config')\np.add_argument('--seed', type=int)\n"
            "a = p.parse_args()\nconfig = json.load(open(a.config))",
            "python train.py ours.json --seed 1",
            id="an argument without dashes",
        ),
    ],
)
def test_a_config_that_a_program_is_given_by_its_place_is_read(tmp_path: Path, reads: str, command: str) -> None:
    (tmp_path / "ours.json").write_text('{"model": "Qwen/Qwen2.5-0.5B", "batch": 3}', encoding="utf-8")
    spec = run(tmp_path, BY_CONFIG.format(reads), command)
    assert (spec["model"], spec["micro_batch_size"]) == ("Qwen/Qwen2.5-0.5B", 3)
