"""A probe of a run on several devices: one process for each, started by ``torchrun``, the worst of them reported.

The measuring process (:mod:`memlint.measure.worker`) becomes the launcher. Each rank takes the steps of
:mod:`memlint.measure.probe` with a real process group (NCCL on cards, Gloo on the CPU) and PyTorch's own wrapper
around the model, and leaves an answer of its own beside the launcher's request. A rank that fails ends with an exit
code, upon which torchrun ends the others; what outlives torchrun, :mod:`memlint.measure.child` ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from memlint.measure import distributed
from memlint.measure.child import START, MeasureError, last_words, tail
from memlint.measure.device import CPU, CUDA
from memlint.meta.tape import Label
from memlint.tape.estimate import OOM
from memlint.units import format_bytes

OUTPUT = "ranks.output"
BACKENDS = {CUDA: "nccl", CPU: "gloo"}
# torchrun, which ends when we do, and says how its ranks ended
AGENT = (
    "import sys; sys.path = [p for p in sys.path if p] + [{root!r}]; from memlint.measure.ranks import agent; agent()"
)
FAILURES = "failures.json"
# Ranks that differ by less than this share hold the same: Gloo's threads let go of a kilobyte a moment later in one.
ALIKE = 0.005
FAILED = 3  # exit code of a rank that leaves an answer that ends the run: an error, or out of memory


def launch(request: dict[str, Any], ranks: int) -> dict[str, Any]:
    """The answer of the rank that took most. Raises MeasureError where a rank fails, or devices are missing."""
    if request["device"] == CUDA and torch.cuda.device_count() < ranks:
        here = torch.cuda.device_count()
        raise MeasureError(
            f"the config spreads over {ranks} devices, and this machine has {here}; state fewer with -o, or run it "
            "where they are (--trace needs none, and --probe-device cpu starts the ranks on the CPU)"
        )
    folder = request["folder"]
    command = [
        *(sys.executable, "-c", AGENT.format(root=_root()), folder),
        *("--standalone", "--nproc-per-node", str(ranks)),
        *("--no-python", sys.executable, "-c", START.format(root=_root(), module="ranks"), folder),
    ]
    environment = {**os.environ}
    if request["device"] == CPU:  # else torchrun says so on its own, in a warning
        environment.setdefault("OMP_NUM_THREADS", "1")
    with open(os.path.join(folder, OUTPUT), "wb") as output:
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)
    answers = [_read(_place(folder, rank)) for rank in range(ranks)]
    failures = _read(os.path.join(folder, FAILURES)) or {}
    answer = judged(answers, {int(rank): code for rank, code in failures.items()}, tail(os.path.join(folder, OUTPUT)))
    answer["notes"].insert(0, f"{answer.pop('rank')} ({BACKENDS[request['device']]})")
    return answer


def judged(answers: Sequence[dict[str, Any] | None], failures: dict[int, int], output: list[str]) -> dict[str, Any]:
    """The answer for all ranks: that of the fullest; of one that failed, the first one's, for the others only lost it.

    failures  exit codes by rank, of those that torchrun saw end before it ended the others
    output    the end of what torchrun and the ranks printed, for a rank that ended without a word
    """
    count = len(answers)
    silent = [rank for rank, code in failures.items() if answers[rank] is None and code != -signal.SIGTERM]
    if silent:
        rank = min(silent)
        raise MeasureError(f"rank {rank} of {count}: {last_words(failures[rank], output)}")
    left = {rank: answer for rank, answer in enumerate(answers) if answer is not None}
    ended = [rank for rank, answer in left.items() if "error" in answer or answer.get("verdict") == OOM]
    if ended:
        first = min(ended, key=lambda rank: left[rank]["ended"])
        if "error" in left[first]:
            raise MeasureError(f"rank {first} of {count}: {left[first]['error']}")
        return {**left[first], "rank": f"rank {first} of {count}, the first without memory"}
    if len(left) < count:
        lost = next(rank for rank, answer in enumerate(answers) if answer is None)
        raise MeasureError(f"rank {lost} of {count}: {last_words(0, output)}")
    held = {rank: answer["estimate"][5] for rank, answer in left.items()}  # Estimate.device_bytes
    worst, least = max(held, key=lambda rank: held[rank]), min(held.values())
    alike = held[worst] - least <= ALIKE * held[worst]
    others = "all alike" if alike else f"the fullest; the least took {format_bytes(least)}"
    return {**left[worst], "rank": f"rank {worst} of {count}, {others}"}


def agent() -> None:
    """torchrun. ``sys.argv[1]`` is the folder of the request, the rest torchrun's own arguments."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    from memlint.measure.worker import end_with_parent

    end_with_parent()
    folder = sys.argv.pop(1)
    try:
        torchrun()
    except ChildFailedError as error:
        codes = {str(rank): failure.exitcode for rank, failure in error.failures.items()}
        with open(os.path.join(folder, FAILURES), "w", encoding="utf-8") as file:
            json.dump(codes, file)
        sys.exit(FAILED)


def _root() -> str:
    import memlint

    return os.path.dirname(os.path.dirname(os.path.abspath(memlint.__file__)))


def _place(folder: str, rank: int) -> str:
    return os.path.join(folder, f"answer.{rank}.json")


def _read(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            answer: dict[str, Any] = json.load(file)
    except (OSError, ValueError):
        return None
    return answer


def main() -> None:
    """One rank. ``sys.argv[1]`` is the folder of the request."""
    from memlint.measure.worker import answered, end_with_parent, leave

    folder = sys.argv[1]
    end_with_parent()
    with open(os.path.join(folder, "request.json"), encoding="utf-8") as file:
        request: dict[str, Any] = json.load(file)
    rank = int(os.environ["RANK"])
    request.update(folder=folder if rank == 0 else "", rank=rank)  # one of them tells how far they are
    answer = answered(request)
    answer["ended"] = time.time()
    leave(answer, _place(folder, rank), FAILED if "error" in answer or answer.get("verdict") == OOM else 0)


@contextmanager
def process_group(sharding: distributed.Sharding | None, device: str) -> Iterator[Any]:
    """The mesh of a rank's run while the block lasts; None for one process."""
    if sharding is None:
        yield None
        return
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    if device == CUDA:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(BACKENDS[device])
    shape: tuple[int, ...] = (sharding.ranks,)
    if sharding.shard != sharding.ranks:
        shape = sharding.ranks // sharding.shard, sharding.shard
    yield init_device_mesh(device, shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    # No farewell: a rank that failed would wait for those that did not.


def spread(
    sharding: distributed.Sharding, mesh: Any, model: nn.Module, loss: Callable[[Any, Any], Any], recorder: Any
) -> distributed.Parallel:
    """Wrap a rank's model as its config says. Its parameters are this rank's from now on."""
    if sharding.strategy != "ddp":
        return distributed.spread(sharding, mesh, model, loss, recorder)
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.nn.parallel import DistributedDataParallel

    wrapped = DistributedDataParallel(
        distributed.Step(model, loss),
        bucket_cap_mb=sharding.bucket_mib,
        gradient_as_bucket_view=sharding.gradient_as_bucket_view,
    )
    buckets: list[Tensor] = []

    def reduced(group: Any, bucket: Any) -> Any:
        buckets.append(bucket.buffer())
        return allreduce_hook(group, bucket)

    wrapped.register_comm_hook(None, lambda group, bucket: reduced(group, bucket))  # DDP reads annotations
    component = "gradients" if sharding.gradient_as_bucket_view else "communication"

    def label() -> None:
        for buffer in buckets:
            recorder.label(buffer, Label(component, "", "bucket"))
        buckets.clear()

    return distributed.Parallel(lambda _, batch: wrapped(batch), lambda: iter(()), label, lambda: None)
