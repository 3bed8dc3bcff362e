"""Which command trains, through which launchers, with which of their options: one command at a time."""

from __future__ import annotations

import pytest

from memlint.documents.node import Node
from tests.documents.test_shell_scripts import line, lines, read

# A command, and the run that it starts ("": none): variables, launchers with their own options, program and words.
COMMANDS = {
    "python": ("python a.py --b 1", "a.py --b 1"),
    "a version": ("python3.11 a.py --b 1", "a.py --b 1"),
    "a path": ("/venv/bin/python3 a.py --b 1", "a.py --b 1"),
    "a program that begins with python": ("pythonic a.py --b 1", ""),
    "python and a letter": ("pythonw a.py --b 1", ""),
    "a variable of that name": ("$MY_PYTHON a.py --b 1", "a.py --b 1"),
    "another variable": ("$X a.py --b 1", "?() a.py --b 1"),
    "another variable without a script": ("$X a --b 1", ""),
    "switches": ("python -u -O -OO a.py --b 1", "a.py --b 1"),
    "options with values": ("python -X dev -W ignore a.py --b 1", "a.py --b 1"),
    "an option with a value and no more": ("python -X", ""),
    "an unknown option": ("python --x a.py --b 1", "a.py --b 1"),
    "a module": ("python -m pkg.x --b 1", "pkg.x --b 1"),
    "a module behind a switch": ("python -u -m pkg.x --b 1", "pkg.x --b 1"),
    "a long module": ("python --module pkg.x --b 1", "pkg.x --b 1"),
    "no module": ("python -m", ""),
    "a command": ("python -c 'x' a.py --b 1", ""),
    "the standard input": ("python - a.py --b 1", ""),
    "the end of options": ("python -- a.py --b 1", "a.py --b 1"),
    "two modules": ("python -m cProfile -o x a.py --b 1", "a.py --b 1"),
    "a debugger": ("python -m debugpy --listen 1 a.py --b 1", "a.py --b 1"),
    "a debugger of a module": ("python -m pdb -m pkg.x --b 1", "pkg.x --b 1"),
    "torch's launcher": (
        "python -m torch.distributed.run --nproc_per_node 2 a.py --b 1",
        "torchrun(nproc_per_node=2) a.py --b 1",
    ),
    "accelerate's launcher": (
        "python -m accelerate.commands.launch --num_processes 2 a.py --b 1",
        "accelerate launch(num_processes=2) a.py --b 1",
    ),
    "deepspeed's launcher": (
        "python -m deepspeed.launcher.runner --num_gpus 2 a.py --b 1",
        "deepspeed(num_gpus=2) a.py --b 1",
    ),
    "a launcher without a script": ("python -m torch.distributed.run --nproc_per_node 2", ""),
    "torchrun": (
        "torchrun --nproc_per_node=2 --standalone a.py --b 1",
        "torchrun(nproc_per_node=2,standalone=True) a.py --b 1",
    ),
    "a switch in front of the script": ("torchrun --standalone a.py --b 1", "torchrun(standalone=True) a.py --b 1"),
    "an option in front of the script": ("torchrun --rdzv_id 3 a.py --b 1", "torchrun(rdzv_id=3) a.py --b 1"),
    "an unknown switch in front of the script": ("torchrun --unheard a.py --b 1", "torchrun(unheard=True) a.py --b 1"),
    "an unknown option in front of a module": ("torchrun --unheard x pkg --b 1", "torchrun(unheard=x) pkg --b 1"),
    "torchrun of a module": ("torchrun -m pkg.x --b 1", "torchrun() pkg.x --b 1"),
    "torchrun of a module that comes later": (
        "torchrun -m --nnodes 2 pkg.x --b 1",
        "torchrun(m=True,nnodes=2) pkg.x --b 1",
    ),
    "torchrun of a module that comes later still": (
        "torchrun --module --nnodes=2 pkg.x --b 1",
        "torchrun(module=True,nnodes=2) pkg.x --b 1",
    ),
    "torchrun in a path": ("/x/torchrun --nnodes 2 a.py --b 1", "torchrun(nnodes=2) a.py --b 1"),
    "a launcher without any word": ("torchrun", ""),
    "a launcher with options alone": ("torchrun --nnodes 2", ""),
    "a launcher that ends in a module": ("torchrun -m", ""),
    "accelerate": (
        "accelerate launch --multi_gpu --num_processes 2 a.py --b 1",
        "accelerate launch(multi_gpu=True,num_processes=2) a.py --b 1",
    ),
    "accelerate without a script": ("accelerate launch", ""),
    "accelerate of something else": ("accelerate test a.py --b 1", ""),
    "accelerate in a path": ("/x/accelerate launch a.py --b 1", "accelerate launch() a.py --b 1"),
    "accelerate as one word": (
        "accelerate-launch --num_processes 2 a.py --b 1",
        "accelerate-launch(num_processes=2) a.py --b 1",
    ),
    "accelerate of a module": ("accelerate launch -m pkg.x --b 1", "accelerate launch() pkg.x --b 1"),
    "deepspeed": ("deepspeed --num_gpus 2 --no_ssh a.py --b 1", "deepspeed(num_gpus=2,no_ssh=True) a.py --b 1"),
    "colossalai": ("colossalai run --nproc_per_node 2 a.py --b 1", "colossalai(nproc_per_node=2) a.py --b 1"),
    "ft_launcher": (
        "ft_launcher --nproc_per_node 2 --max-restarts=3 a.py --b 1",
        "ft_launcher(nproc_per_node=2,max-restarts=3) a.py --b 1",
    ),
    "lightning": (
        "lightning run model --devices=8 --num-nodes=2 a.py --b 1",
        "lightning(devices=8,num-nodes=2) a.py --b 1",
    ),
    "fabric": ("fabric run --devices 2 a.py --b 1", "fabric(devices=2) a.py --b 1"),
    "colossalai without run": ("colossalai --nproc_per_node 2 a.py --b 1", "colossalai(nproc_per_node=2) a.py --b 1"),
    "a script behind --": ("torchrun --nnodes 2 -- a.py --b 1", "torchrun(nnodes=2) a.py --b 1"),
    "ipython": ("ipython a.py --b 1", "a.py --b 1"),
    "srun": ("srun -N 2 --gpus=8 python a.py --b 1", "srun(N=2,gpus=8) a.py --b 1"),
    "srun of a launcher": ("srun -N 2 torchrun --nnodes 2 a.py --b 1", "srun(N=2) torchrun(nnodes=2) a.py --b 1"),
    "srun of env": ("srun -N 2 env A=1 python a.py --b 1", "A=1 srun(N=2) env() a.py --b 1"),
    "srun of a name that is a wrapper": ("srun -n env python a.py --b 1", "srun(n=env) a.py --b 1"),
    "wrappers within wrappers": ("nohup time nice -n 5 python a.py --b 1", "nohup() time(n=5) a.py --b 1"),
    "seventeen wrappers": ("env env env env env env env env env env env env env env env env env python a.py --b 1", ""),
    "sixteen wrappers": (
        "env env env env env env env env env env env env env env env python a.py --b 1",
        "env() env() env() env() env() env() env() env() env() env() env() env() env() env() env() a.py --b 1",
    ),
    "a wrapper of a script": ("nohup ./a.py --b 1", "nohup() ./a.py --b 1"),
    "a wrapper of a trainer": ("nohup ./train --b 1", "nohup() ./train --b 1"),
    "a wrapper of a trainer's option": ("nohup --train x", ""),
    "a wrapper of nothing": ("nohup", ""),
    "a wrapper of something else": ("nohup ls -la", ""),
    "an unknown program of a script": ("something a.py --b 1", ""),
    "an unknown variable of a launcher": ("$LAUNCHER --x 1 torchrun a.py --b 1", "?(x=1) torchrun() a.py --b 1"),
    "env": ("env A=1 B=2 python a.py --b 1", "A=1 B=2 env() a.py --b 1"),
    "assignments in a word": ('X="A=1 B=2"\n$X python a.py --b 1', "A=1 B=2 a.py --b 1"),
    "a launcher's script of commands": ("python mason.py --x 1 -- python a.py --b 1", "mason.py(x=1) a.py --b 1"),
    "the last of several": ("python mason.py --x 1 -- cd x '&&' python a.py --b 1", "mason.py(x=1) a.py --b 1"),
    "a file of the hub": ("hf download o/n train.py --b 1", ""),
    "a job of the hub": (
        "hf jobs uv run --flavor a100 https://x/dpo.py --b 1",
        "hf(flavor=a100) https://x/dpo.py --b 1",
    ),
    "a job of the hub's in an image": ("hf jobs run --flavor a100 img python a.py --b 1", "hf(flavor=a100) a.py --b 1"),
    "a launcher's script in a wrapper": ("uv run mason.py --x 1 -- python a.py --b 1", "uv() mason.py(x=1) a.py --b 1"),
    "a joint without a space": ("python mason.py -- cd x '&&' cd y '&&python' a.py --b 1", "mason.py() a.py --b 1"),
    "a joint of something else": ("python mason.py -- python a.py --b 1 '&&ls' c", "mason.py() a.py --b 1 &&ls c"),
    "another kind of joint": ("python mason.py -- cd x ';' torchrun a.py --b 1", "mason.py() torchrun() a.py --b 1"),
    "a wrapper behind --": ("python mason.py -- nohup ./train --b 1", "mason.py() nohup() ./train --b 1"),
    "words behind -- that start nothing": ("python a.py --b 1 -- x y", "a.py --b 1 -- x y"),
    "-- at the end": ("python a.py --b 1 --", "a.py --b 1 --"),
    "a command behind a command": (
        "python mason.py -- python inner.py --x 2 -- python a.py --b 1",
        "mason.py(x=2) a.py --b 1",
    ),
    "a script that is executable": ("./a.py --b 1", "./a.py --b 1"),
    "a script in an unknown folder": ("$X/a.py --b 1", "<X is not set in the script> --b 1"),
    "a compiled script": ("python a.pyc --b 1", "a.pyc --b 1"),
    "a trainer of its own": ("axolotl train x.yml", "axolotl train x.yml"),
    "a trainer in a path": ("/x/axolotl --b 1", "/x/axolotl --b 1"),
    "a name that says train": ("./pretrain_gpt --b 1", "./pretrain_gpt --b 1"),
    "a name that says train, alone": ("./pretrain_gpt", ""),
    "a name that says train in capitals": ("./TRAIN x", "./TRAIN x"),
    "a file that says train": ("train.sh --b 1", ""),
    "a folder that says train": ("train/ --b 1", ""),
    "a program that does not": ("./eval --b 1", ""),
    "an option that is a script": ("--x.py --b 1", ""),
    "no words": ("python a.py", ""),
    "no words and a name": ("python train.py", "train.py"),
    "a word": ("python a.py x", ""),
    "a word and a name": ("python finetune.py x", "finetune.py x"),
    "an override": ("python a.py b.c=1", "a.py b.c=1"),
    "an override that adds": ("python a.py +b=1", "a.py +b=1"),
    "an override that removes": ("python a.py ~b=1", "a.py ~b=1"),
    "an override with a slash": ("python a.py b/c@d-e_f=1", "a.py b/c@d-e_f=1"),
    "no override: a blank": ("python a.py 'b c=1'", ""),
    "no override: no name": ("python a.py =1", ""),
    "no override: no value": ("python a.py b=", "a.py b="),
    "no override: no equals sign": ("python a.py b.c", ""),
    "a config": ("python a.py x.yaml", "a.py x.yaml"),
    "a config of another kind": ("python a.py x.txt", ""),
    "an option that is one": ("python a.py --b", "a.py --b"),
    "run_train.sh alone": ("./run_train.sh", "./run_train.sh"),
    "setup": ("python setup.py install --b 1", ""),
    "pip": ("python -m pip install --b 1", ""),
    "a server": ("python -m http.server --b 1", ""),
    "an environment": ("python -m venv --b 1", ""),
    "a shell's text": ("bash -c 'python a.py --b 1'", "a.py --b 1"),
    "a shell's text behind a switch": ("bash -x -c 'python a.py --b 1'", "a.py --b 1"),
    "a shell's text behind two": ("bash -x -e -c 'python a.py --b 1'", "a.py --b 1"),
    "a shell's text behind three": ("bash -x -e -u -c 'python a.py --b 1'", "a.py --b 1"),
    "a shell's text in one switch": ("bash -xec 'python a.py --b 1'", "a.py --b 1"),
    "a shell's long option": ("bash --norc -c 'python a.py --b 1'", "a.py --b 1"),
    "a shell's long option that ends alike": ("bash --rc 'python a.py --b 1'", ""),
    "a shell's script": ("bash x.sh -c 'python a.py --b 1'", ""),
    "a shell in a path": ("/bin/bash -c 'python a.py --b 1'", "a.py --b 1"),
    "a shell without text": ("bash -c", ""),
    "a shell of a wrapper": ("srun -N 2 bash -c 'python a.py --b 1'", "srun(N=2) a.py --b 1"),
    "a shell of another shell's words": ("ls bash -c 'python a.py --b 1'", ""),
    "a shell behind an assignment": ('X=A=1\n$X bash -c "python a.py --b 1"', "a.py --b 1"),
    "a shell of an unknown text": ("bash -c $X", ""),
    "a wrapped job": ("sbatch --wrap 'python a.py --b 1'", "a.py --b 1"),
    "a wrapped job behind an option": ("sbatch -N 2 --wrap='python a.py --b 1' x", "a.py --b 1"),
    "a wrap without text": ("sbatch --wrap", ""),
    "a wrap of something else": ("srun --wrap 'python a.py --b 1'", ""),
    "a job of a script": ("sbatch x.sh --b 1", ""),
    "a job in a path": ("/x/sbatch --wrap 'python a.py --b 1'", "a.py --b 1"),
}


@pytest.mark.parametrize(("script", "expected"), COMMANDS.values(), ids=COMMANDS.keys())
def test_what_a_command_starts(script: str, expected: str) -> None:
    assert "".join(lines(script)) == expected


def place(node: Node) -> tuple[int, int, int, int]:
    span = node.span
    return span.line, span.column, span.end_line, span.end_column


def test_variables_in_front_of_a_command_stand_where_they_were_written() -> None:
    (command,) = read("env A=1 python train.py --b 1\n").commands
    (node,) = command.environment.values()
    assert (node.value, node.key_path, place(node), node.key_span) == ("1", "A", (1, 5, 1, 8), node.span)


def test_options_of_launchers_stand_where_they_were_written() -> None:
    (command,) = read("srun -N 2 python -m torch.distributed.run --nnodes 3 train.py --b 1\n").commands
    srun, torchrun = command.launchers
    assert (place(srun.options), place(torchrun.options)) == ((1, 1, 1, 5), (1, 21, 1, 42))
    nodes = [one.options.get(name) for one, name in ((srun, "N"), (torchrun, "nnodes"))]
    assert [node and place(node) for node in nodes] == [(1, 9, 1, 10), (1, 52, 1, 53)]
    assert (place(command.program), place(command.options)) == ((1, 54, 1, 62), (1, 1, 1, 68))


def test_a_command_keeps_its_words_and_what_is_no_option() -> None:
    (command,) = read("python train.py sft --b 1 -c x.yaml y").commands
    assert [word.value for word in command.words] == ["sft", "--b", "1", "-c", "x.yaml", "y"]
    assert [word.value for word in command.arguments] == ["sft", "y"]
    assert command.options.plain() == {"b": "1", "c": "x.yaml"}
    assert line(command) == "train.py sft --b 1 -c x.yaml y"
