"""What sbatch sets for a script with ``#SBATCH`` lines."""

from __future__ import annotations

import pytest

from memlint.dialects.launchers import processes
from memlint.documents.node import Unresolved
from memlint.documents.shell.reader import read
from memlint.documents.slurm import settings


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        pytest.param("#SBATCH --nodes=4", {"SLURM_NNODES": "4", "SLURM_JOB_NUM_NODES": "4"}, id="machines"),
        pytest.param("#SBATCH -N 2", {"SLURM_NNODES": "2", "SLURM_JOB_NUM_NODES": "2"}, id="their short name"),
        pytest.param("#SBATCH -N2", {"SLURM_NNODES": "2", "SLURM_JOB_NUM_NODES": "2"}, id="without a space"),
        pytest.param("#SBATCH --ntasks 16", {"SLURM_NTASKS": "16", "SLURM_NPROCS": "16"}, id="tasks"),
        pytest.param(
            "#SBATCH --gpus-per-node=a100:8",
            {"SLURM_GPUS_PER_NODE": "8", "SLURM_GPUS_ON_NODE": "8"},
            id="cards of a kind",
        ),
        pytest.param("#SBATCH --gres=gpu:4", {"SLURM_GPUS_ON_NODE": "4"}, id="cards as a resource"),
        pytest.param("#SBATCH --gres=disk:4", {}, id="another resource"),
        pytest.param("#SBATCH --nodes=2-4", {}, id="a range, of which only the cluster knows"),
        pytest.param(
            "#SBATCH --nodes=1\n#SBATCH --nodes=3", {"SLURM_NNODES": "3", "SLURM_JOB_NUM_NODES": "3"}, id="twice"
        ),
        pytest.param(
            "#SBATCH --nodes=2 # four of them", {"SLURM_NNODES": "2", "SLURM_JOB_NUM_NODES": "2"}, id="a comment"
        ),
        pytest.param("echo\n#SBATCH --nodes=2", {}, id="behind the first command"),
        pytest.param("##SBATCH --nodes=2", {}, id="commented out"),
        pytest.param("#SBATCH", {}, id="nothing"),
    ],
)
def test_header(header: str, expected: dict[str, str]) -> None:
    assert {one.name: one.value for one in settings(f"#!/bin/bash\n{header}\n\npython train.py\n")} == expected


@pytest.mark.parametrize(
    ("submission", "expected"),
    [
        pytest.param(("--nodes=3",), ("3", "24"), id="its own number of machines"),
        pytest.param(("-N", "2", "--job-name=x"), ("2", "16"), id="the short name"),
        pytest.param(("--job-name=x",), ("4", "32"), id="something else"),
        pytest.param(("--nodes",), ("4", "32"), id="nothing where a number should stand"),
    ],
)
def test_what_the_command_that_submits_a_script_says_goes_before_its_header(
    submission: tuple[str, ...], expected: tuple[str, str]
) -> None:
    found = {one.name: one.value for one in settings("#SBATCH --nodes=4 --ntasks-per-node=8\n", submission)}
    assert (found["SLURM_NNODES"], found["SLURM_NTASKS"]) == expected


def test_a_submitted_script_is_no_program_whatever_its_arguments_are_called() -> None:
    document = read("run.sh", "sbatch --nodes=1 train.slurm --model a --task sft --lr 1\n")
    assert not document.commands
    (call,) = document.calls
    assert (call.script, call.submission) == ("train.slurm", ("--nodes=1",))


def test_tasks_follow_from_machines_and_tasks_of_each() -> None:
    found = {one.name: one.value for one in settings("#SBATCH --nodes=4 --ntasks-per-node=8 --exclusive\n")}
    assert (found["SLURM_NTASKS"], found["SLURM_NPROCS"], found["SLURM_TASKS_PER_NODE"]) == ("32", "32", "8")


def test_a_value_stands_where_it_is_written() -> None:
    text = "#!/bin/bash\n#SBATCH --gres=gpu:a100:8\n"
    (one,) = settings(text)
    assert text[one.start : one.end] == "8"


@pytest.mark.parametrize(
    ("command", "devices"),
    [
        pytest.param(
            "srun torchrun --nnodes $SLURM_NNODES --nproc_per_node $SLURM_GPUS_ON_NODE train.py --b 1",
            32,
            id="torchrun",
        ),
        pytest.param("srun python train.py --b 1", 8, id="a task for each process"),
        pytest.param('srun --label bash -c "python train.py --b 1"', 8, id="in a shell of its own"),
        pytest.param("srun -n 4 python train.py --b 1", 4, id="srun's own number goes before"),
        pytest.param("python train.py --b 1", None, id="without srun there is one process"),
    ],
)
def test_processes_of_a_job(command: str, devices: int | None) -> None:
    text = f"#!/bin/bash\n#SBATCH -N 4\n#SBATCH --ntasks-per-node=2\n#SBATCH --gres=gpu:8\n{command}\n"
    (found,) = read("job.sh", text).commands
    total = processes(found).total
    assert (None if total is None else total.value) == devices


def test_the_span_is_that_of_the_header() -> None:
    text = "#!/bin/bash\n# schöne Karten\n#SBATCH --nodes=4\ntorchrun --nnodes=$SLURM_NNODES train.py --b 1\n"
    (found,) = read("job.sh", text).commands
    total = processes(found).total
    assert total is not None
    assert total.node is not None
    assert (total.value, total.node.span.line, total.node.span.column) == (4, 3, 17)


def test_what_no_line_states_stays_unknown() -> None:
    (found,) = read("job.sh", "#!/bin/bash\n#SBATCH --time=1\npython train.py --n $SLURM_NNODES\n").commands
    assert isinstance(found.options.value["n"].value, Unresolved)  # type: ignore[index, call-overload]


ARRAY = """\
#!/bin/bash
#SBATCH --array={}
MODELS=("gpt2" "gpt2-medium" "gpt2-large")
MODEL=${{MODELS[$((SLURM_ARRAY_TASK_ID / 2))]}}
if [ "$MODEL" = "gpt2" ]; then
    SIZE=8
else
    SIZE=1
fi
python train.py --model $MODEL --size $SIZE
"""


@pytest.mark.parametrize(
    ("tasks", "models"),
    [
        pytest.param("0-5%2", [("gpt2", "8"), ("gpt2-medium", "1"), ("gpt2-large", "1")], id="a range, some at once"),
        pytest.param("1,4", [("gpt2", "8"), ("gpt2-large", "1")], id="a list"),
        pytest.param("0-5:4", [("gpt2", "8"), ("gpt2-large", "1")], id="every fourth"),
    ],
)
def test_each_task_of_an_array_is_a_run(tasks: str, models: list[tuple[str, str]]) -> None:
    found = [command.options.plain() for command in read("job.sh", ARRAY.format(tasks)).commands]
    assert [(one["model"], one["size"]) for one in found] == models  # type: ignore[index, call-overload]


@pytest.mark.parametrize("tasks", ["0-99", "$N", "5-1", "0-x"])
def test_an_array_of_too_many_tasks_or_of_unknown_ones_has_an_unknown_number(tasks: str) -> None:
    found = read("job.sh", ARRAY.format(tasks)).commands
    assert all(isinstance(one.options.value["model"].value, Unresolved) for one in found)  # type: ignore[index, call-overload]
    assert found
