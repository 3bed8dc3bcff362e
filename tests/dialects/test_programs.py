"""Which commands may train: by the name of their program, and by the switches of transformers' examples."""

from __future__ import annotations

from pathlib import Path

import pytest

from memlint import check
from memlint.check import check_text
from memlint.dialects import programs, registry
from memlint.documents.load import load
from memlint.documents.shell import reader as shell
from tests.dialects.language_models import written

OPTIONS = "--model_name_or_path Qwen/Qwen2.5-0.5B --per_device_train_batch_size 2 --block_size 512 --output_dir out"


def command(line: str) -> programs.Command:
    (found,) = shell.read("run.sh", line + "\n").commands
    return found


@pytest.mark.parametrize(
    ("line", "trains"),
    [
        pytest.param("python examples/inference.py --a 1", False, id="inference"),
        pytest.param("python tools/run_text_generation_server.py --a 1", False, id="a server of generated text"),
        pytest.param("torchrun -m examples.inference.offline_inference --a 1", False, id="a module's last name counts"),
        pytest.param("python -m examples.inference.train --a 1", True, id="and not the package that it is in"),
        pytest.param("accelerate launch EvaluateModel.py --a 1", False, id="words of a name in capitals"),
        pytest.param("python merge_lora.py --a 1", False, id="merging adapters"),
        pytest.param("python train_and_evaluate.py --a 1", True, id="training, and evaluating besides"),
        pytest.param("python finetune_chat.py --a 1", True, id="training on chats"),
        pytest.param("python internvl_chat_mpo.py --a 1", False, id="a chat"),
        pytest.param("python chat_lora.py --base_model a", False, id="a chat with an adapter"),
        pytest.param("python -m scripts.chat_sft --a 1", True, id="a method that makes a model chat"),
        pytest.param("python internvl_chat_mpo.py --do_train True", True, id="a chat that is told to train"),
        pytest.param("python internvl_chat_mpo.py --do_train False", False, id="a chat that is told not to"),
        pytest.param("accelerate launch embed_datasets.py --a 1", False, id="embedding a data set"),
        pytest.param("python train_embeddings.py --a 1", True, id="training embeddings"),
        pytest.param("python app.py --a 1", False, id="an app"),
        pytest.param("python tools/test_net.py --config-file a.yaml", False, id="a test of a net"),
        pytest.param("python test_grpo.py --a 1", True, id="a test of a method that trains"),
        pytest.param("python onnx/test_onnxruntime.py --config-file a.yaml", False, id="a runtime of nets"),
        pytest.param("python grpo_demo.py --a 1", True, id="a demo of a method that trains"),
        pytest.param("python main.py --a 1", True, id="a name that says nothing may train"),
        pytest.param("python generator_gan.py --a 1", True, id="a generator is a model, not what a program does"),
        pytest.param("python retrained.py --a 1", True, id="words count, not letters"),
        pytest.param("python $PROGRAM --a 1", True, id="a program that is not known may train"),
        pytest.param("python run_clm.py --do_train --do_eval", True, id="an example that trains and evaluates"),
        pytest.param("python run_clm.py --do_eval", False, id="an example that only evaluates"),
        pytest.param("python run_clm.py --do_train False", False, id="an example told not to train"),
        pytest.param("python qlora.py --do_train False", False, id="any program told not to train"),
        pytest.param("python train.py --do_eval", True, id="another script need not read --do_train"),
        pytest.param(
            "python -m verl.trainer.main_ppo +trainer.val_only=true a=1", False, id="a loop that only validates"
        ),
        pytest.param("python -m verl.trainer.main_ppo trainer.val_only=False", True, id="a loop told to do more"),
        pytest.param("torchrun train.py --eval_only --lr 1e-4", False, id="a switch that leaves nothing to train"),
        pytest.param("python ./tasks/msdp/main.py --task MSDP-PROMPT", False, id="a task that prompts a model"),
        pytest.param("python tasks/main.py --task RACE --epochs 3", True, id="a task that finetunes one"),
        pytest.param("accelerate launch main.py --tasks mbpp --save_generations", False, id="a harness that scores"),
        pytest.param("python main.py --num_fewshot 5 --lr 1e-4", True, id="a loop that scores besides"),
        pytest.param("torchrun train.py --eval_only False", True, id="that switch, off"),
        pytest.param("python main.py --eval --cfg a.yaml --resume a.pth", False, id="it evaluates instead"),
        pytest.param("python train.py --evaluate --model resnet50 -b 8", False, id="in another word"),
        pytest.param("python train.py --test --model resnet50", False, id="it tests instead"),
        pytest.param("python train.py --eval --lr 1e-4 --epochs 3", True, id="it evaluates as it trains"),
        pytest.param("python train.py --eval steps --model gpt2", True, id="when it evaluates"),
        pytest.param("python train.py --do_train --eval --model gpt2", True, id="it does both"),
        pytest.param("python train.py --mode test --lr 1e-4", False, id="a mode that is no training"),
        pytest.param("python train.py --mode train --lr 1e-4", True, id="a mode that is"),
        pytest.param("python train.py --stage sft --model gpt2", True, id="a stage of training"),
    ],
)
def test_a_program_that_holds_no_gradients_is_no_training_run(line: str, trains: bool) -> None:
    assert programs.trains(command(line)) is trains


@pytest.mark.parametrize(
    ("program", "claimed"),
    [
        pytest.param("from transformers import pipeline\nprint(pipeline('x')(rows))\n", False, id="scores alone"),
        pytest.param("import os\nfrom ours import loop\nloop()\n", True, id="a module of its own trains"),
        pytest.param("import deepspeed_chat\ndeepspeed_chat.main()\n", True, id="a package that may train of itself"),
        pytest.param("loss.backward()\n", True, id="a loop"),
    ],
)
def test_a_program_that_says_nothing_of_training_is_no_run_for_its_launcher_s_sake(
    tmp_path: Path, program: str, claimed: bool
) -> None:
    """RLHFlow/Online-RLHF: run_loop.sh starts annotate_data/get_rewards.py by accelerate."""
    (tmp_path / "get_rewards.py").write_text(program, encoding="utf-8")
    (tmp_path / "ours.py").write_text("def loop():\n    optimizer.step()\n", encoding="utf-8")
    (tmp_path / "run.sh").write_text("accelerate launch get_rewards.py --output_dir out\n", encoding="utf-8")
    assert bool(check(str(tmp_path), isolated=True).runs) is claimed


@pytest.mark.parametrize("name", ["serve.py", "eval.py", "convert_checkpoint.py", "report_theoretical_memory.py"])
def test_a_program_with_a_trainers_options_that_does_not_train_has_no_estimate(name: str) -> None:
    assert check_text("run.sh", f"python {name} {OPTIONS}\n").runs == ()


def test_the_trainer_beside_it_has_one() -> None:
    (run,) = check_text("run.sh", f"python serve.py {OPTIONS}\npython run_clm.py --do_train {OPTIONS}\n").runs
    assert run.estimate is not None


@pytest.mark.parametrize(
    ("line", "claimed"),
    [
        pytest.param(
            "python train.py --model_name meta-llama/Llama-2-70b-hf", True, id="a name that says that it trains"
        ),
        pytest.param("python -m ours.trainer.main config=a.yaml", True, id="a package that says it"),
        pytest.param("torchrun --nproc_per_node 8 tools/finetune_chat.py", True, id="training on chats"),
        pytest.param("python my_dpo.py data/ configs/lora.yaml", True, id="a method"),
        pytest.param("python eval_dpo.py data/", False, id="that is evaluated"),
        pytest.param("python prepare_train_data.py", False, id="what is done to data before"),
        pytest.param("python -m pytest tests/test_training.py", False, id="a test of training"),
        pytest.param("python main.py --lr 1", False, id="a name that says nothing"),
        pytest.param("python -m train experiment=a", True, id="a module that says it"),
        pytest.param("./train --data a", False, id="a program that is not Python's"),
        pytest.param("python $PROGRAM", False, id="a program that is not known"),
        pytest.param("deepspeed $BASE/tools/train_it.py --a 1", True, id="a name in a folder that is not known"),
        pytest.param("python $BASE/eval_dpo.py --a 1", False, id="an evaluation in a folder that is not known"),
        pytest.param("python ${NAME}_train.py --a 1", False, id="a part of a name"),
        pytest.param("python main.py --lr 1 --epochs 2", True, id="a learning rate, and for how long"),
        pytest.param("python bert_squad.py --do_train --do_predict", True, id="an example that is told to train"),
        pytest.param("python bert_squad.py --do_train False --a 1", False, id="and one that is told not to"),
        pytest.param("python eval.py --lr 1 --epochs 2", False, id="an evaluation that takes the trainer's options"),
        pytest.param("python main_ppo_split.py actor.optim.lr=1e-6 trainer.total_epochs=15", True, id="overrides"),
        pytest.param("python main_ppo_split.py actor.optim.lr=1e-6", False, id="a rate alone"),
        pytest.param("python main_ppo_split.py lr=1e-6 total_epochs=15", False, id="words that are no keys of a tree"),
    ],
)
def test_a_training_program_that_nobody_knows_is_named(line: str, claimed: bool) -> None:
    specs = registry.specs(load("run.sh", line + "\n"))
    assert [spec.family for spec in specs] == ["program"] * claimed
    assert all(spec.unknown_reason.partition(" is a program")[0] in line for spec in specs)


def test_the_name_of_a_job_is_no_program() -> None:
    """alignment-handbook's README: the job is called after what its script trains."""
    line = "sbatch --job-name=my_sft --nodes=1 launch.slurm '--per_device_train_batch_size=2 --num_train_epochs=5'\n"
    assert shell.read("run.sh", line).commands == ()
    assert registry.specs(load("run.sh", line)) == []


def test_a_known_family_goes_before_it() -> None:
    (spec,) = registry.specs(load("run.sh", "accelerate launch train.py --lr 1\n"))
    assert spec.family == "accelerate"


RUN = "per_device_train_batch_size: 1\nmodel_name_or_path: gpt2\nmax_seq_length: 8\n"


@pytest.mark.parametrize(
    ("name", "text", "runs"),
    [
        pytest.param("gpt2-arc-easy--cpu.yaml", RUN, 0, id="a name that says so"),
        pytest.param("gpt2.yaml", RUN + "use_cpu: true\n", 0, id="a switch"),
        pytest.param("run.sh", f"accelerate launch --cpu run_clm.py {OPTIONS}\n", 0, id="accelerate's switch"),
        pytest.param("gpt2-cpu.yaml", RUN + "bf16: true\n", 1, id="a name, of a run in half precision"),
        pytest.param("zero3-cpu-offload.yaml", RUN, 1, id="a name of what helps a card"),
        pytest.param("gpt2-cpus.yaml", RUN, 1, id="another word"),
    ],
)
def test_a_run_on_the_cpu_is_none_where_a_walk_meets_it(tmp_path: Path, name: str, text: str, runs: int) -> None:
    """llm-foundry's gpt2-arc-easy--cpu.yaml, karpathy/nanochat's runcpu.sh."""
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert len(check(str(tmp_path), isolated=True).runs) == runs
    assert len(check(str(tmp_path / name), isolated=True).runs) == 1, "a file that is named is read as a run"


ASKS = "def main():\n    if training_args.do_train:\n        trainer.train()\n"


@pytest.mark.parametrize(
    ("name", "line", "program", "runs"),
    [
        # csebuetnlp/xl-sum at afcd803: seq2seq/evaluate.sh; THUDM/GLM at 4f61ed7: scripts/evaluate_lm.sh
        pytest.param("a.sh", "pipeline.py --model_name_or_path x --do_predict", ASKS, 0, id="it is not told to train"),
        pytest.param("a.sh", "pipeline.py --model_name_or_path x --do_predict", "x = 1\n", 1, id="it does not ask"),
        pytest.param("evaluate_lm.sh", "finetune.py --lr 1", "loss.backward()\n", 0, id="its script evaluates"),
        pytest.param("evaluate_sft.sh", "finetune.py --lr 1", "loss.backward()\n", 1, id="its script says both"),
    ],
)
def test_an_evaluation_by_a_program_that_trains_as_well_is_no_run(
    tmp_path: Path, name: str, line: str, program: str, runs: int
) -> None:
    options = "--per_device_train_batch_size 1 --max_seq_length 8" if "pipeline" in line else ""
    root = written(tmp_path, {name: f"python {line} {options}\n", line.split()[0]: program})
    assert len(registry.specs(load(str(root / name)))) == runs


ENGINE = """
def train_one_epoch(model, batches, optimizer):
    for batch in batches:
        loss = model(batch)
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("name", "options", "engine", "runs"),
    [
        pytest.param("main.py", "-c net.py --coco_path $1", ENGINE, 1, id="an entry to a loop"),
        pytest.param("main.py", "-c net.py --eval", ENGINE, 0, id="that evaluates"),
        pytest.param("main.py", "-c net.py", ENGINE.replace(".backward()", ".detach()"), 0, id="an entry to no loop"),
        pytest.param("report.py", "-c net.py", ENGINE, 0, id="a report that draws a loop in"),
    ],
)
def test_an_entry_to_modules_that_go_backward_is_a_run_of_nobody(
    name: str, options: str, engine: str, runs: int, tmp_path: Path
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "engine.py").write_text(engine, encoding="utf-8")
    (tmp_path / name).write_text("from engine import train_one_epoch\nimport models\n", encoding="utf-8")
    script = tmp_path / "go.sh"
    script.write_text(f"python {name} {options}\n", encoding="utf-8")
    found = registry.specs(load(str(script)))
    assert [spec.family for spec in found] == ["program"] * runs
