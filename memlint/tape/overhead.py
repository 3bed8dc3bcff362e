"""What the device holds besides the allocator's segments: the CUDA context, the libraries' workspaces, and the
buffers of NCCL's communicators.

The figures, and where each was published, are in ``memlint/data/overhead.json``. None is scaled: not with the card,
not with the model. Where nothing was published for a card, the interval spans all that was published.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import memlint.data
from memlint.named_tuple import NamedTuple
from memlint.tape.estimate import Interval
from memlint.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memlint.data.catalogue import Gpu

JAX = "jax"
EXPERT = "expert"  # the group whose members send tokens to each other, all to all
ProcessGroup = tuple[str, int]  # what its members share, and how many they are
Assumption = tuple[str, str, str]  # (fact, value, reason)


class FixedParts(NamedTuple):
    """Overhead as it was measured; None for what was not told apart. ``where`` says on what, for the report."""

    context_bytes: int | None
    workspace_bytes: int | None
    where: str


class Overhead(NamedTuple):
    """Bytes on one device. ``assumptions`` name each figure's basis, for the report.

    context    the driver's and the framework's: kernels, stacks, bookkeeping
    workspace  cuBLAS; convolutions only widen its interval, as cuDNN chooses its algorithm at run time
    communication  one NCCL communicator per process group
    """

    context_bytes: int
    context_interval: Interval
    workspace_bytes: int
    workspace_interval: Interval
    assumptions: tuple[Assumption, ...]
    communication_bytes: int
    communication_interval: Interval


def device_overhead(
    gpu: Gpu | None,
    framework: str,
    has_matmul: bool,
    has_convolution: bool,
    measured: FixedParts | None = None,
    process_groups: Sequence[ProcessGroup] = (),
    version: str = "",
) -> Overhead:
    """The overhead of one process on ``gpu`` (None: no card in particular). ``framework``: torch or jax.

    ``version`` is the framework's release, where the config states it (``torch 1.10.1``). ``measured`` figures stand
    in for published ones. ``process_groups`` are those that this process talks in.
    """
    figures = _figures()
    if measured is not None and measured.context_bytes is not None:
        context_bytes = measured.context_bytes
        context_interval = Interval(context_bytes, context_bytes)
        assumption: Assumption = ("cuda_context", format_bytes(context_bytes), measured.where)
    else:
        context_bytes, context_interval, assumption = _context(figures["context"], gpu, version)
    assumptions = [assumption]
    workspace_bytes, low, high = 0, 0, 0
    if measured is not None and measured.workspace_bytes is not None:
        workspace_bytes = low = high = measured.workspace_bytes
    elif has_matmul:
        workspace_bytes, low, high = _matmul_workspace(figures["cublas"], gpu, framework)
    if has_convolution:
        high += figures["cudnn"]["high_bytes"]
        reason = "cuDNN picks its algorithms at run time and torch sets no bound; counted in the high end only"
        assumptions.append(("cudnn_workspace", f"0 to {format_bytes(figures['cudnn']['high_bytes'])}", reason))
    if framework == JAX:
        share = figures["jax"]["preallocated_share"]
        reason = (
            f"the figures are what the program needs; by default JAX takes {share:.0%} of the card at start"
            " (XLA_PYTHON_CLIENT_PREALLOCATE), and fails if it needs more"
        )
        assumptions.append(("preallocation", f"{share:.0%}", reason))
    interval = Interval(low, high)
    groups = [group for group in process_groups if group[1] > 1]
    talk_bytes, talk_high = 0, 0
    if groups:
        talk_bytes, talk_high, where = _communication(figures["communication"], gpu, groups)
        named = ", ".join(f"{name} ({size})" for name, size in groups)
        reason = f"published for {where}; beside PyTorch's counters, and anything from 0 to {format_bytes(talk_high)}"
        assumptions.append(("communicators", f"{named}: {format_bytes(talk_bytes)}", reason))
    return Overhead(
        context_bytes,
        context_interval,
        workspace_bytes,
        interval,
        tuple(assumptions),
        talk_bytes,
        Interval(0, talk_high),
    )


def dynamic_share() -> float:
    """By which share at most weights in Unsloth's dynamic 4 bits are larger than in bitsandbytes' 4 bits."""
    return float(_figures()["libraries"]["dynamic_4bit"]["high_share"])


def unexplained(has_card: bool) -> tuple[float, float]:
    """(below, above): as shares of all but the states, how far published runs of libraries lie outside of what
    releases, the allocator and contexts explain. With a card that is named, or with any.

    Weights, gradients and optimizer states are the same in all of them; activations, temporary tensors and the
    allocator's slack are not: kernels that a card picks, mechanisms that are missing here.
    """
    figures = _figures()["libraries"]["unexplained"]
    return figures["low_share"], figures["high_share" if has_card else "high_share_without_card"]


def _communication(table: dict[str, Any], gpu: Gpu | None, groups: list[ProcessGroup]) -> tuple[int, int, str]:
    """(point, high, where it was measured) of all communicators together."""
    if gpu is not None and gpu.vendor == "amd":
        rccl = table["rccl"]
        point = int(rccl["first"]["bytes"]) + (len(groups) - 1) * int(rccl["further"]["bytes"])
        return point, point, str(rccl["where"])
    nccl = table["nccl"]
    sizes = [int(nccl["pair" if size == 2 else "group"]["bytes"]) for _, size in groups]
    high = [
        int(table["nccl_all_to_all"]["bytes"]) if name == EXPERT else size for (name, _), size in zip(groups, sizes)
    ]
    return sum(sizes), sum(high), str(nccl["where"])


def _figures() -> dict[str, Any]:
    import json

    path = os.path.join(os.path.dirname(memlint.data.__file__), "overhead.json")
    with open(path, encoding="utf-8") as file:
        figures: dict[str, Any] = json.load(file)
    return figures


def least_context_bytes() -> int:
    """What CUDA alone takes on any card, before a program has made anything."""
    return min(int(figure["bytes"]) for figure in _figures()["context"]["figures"])


def _context(table: dict[str, Any], gpu: Gpu | None, version: str) -> tuple[int, Interval, Assumption]:
    from memlint import releases

    early = table["every_kernel_at_start"]
    at_start = version.startswith("torch ") and releases.does("torch.loads_every_kernel_at_start", version)
    known: list[dict[str, Any]] = early["figures"] if at_start else table["figures"]
    figures = sorted(known, key=lambda figure: int(figure["bytes"]))
    lowest, highest = figures[0]["bytes"], figures[-1]["bytes"]
    if not at_start:
        highest = max(highest, table["every_kernel_loaded"]["bytes"])
    same_card = [figure for figure in figures if gpu is not None and figure["card"] == gpu.name]
    if same_card:
        chosen = same_card[0]
        lowest = chosen["bytes"]
        reason = f"published for this card (torch {chosen['torch']}, {chosen['source']})"
    else:
        same_chip = [figure for figure in figures if gpu is not None and _capability(figure) == gpu.capability]
        where = "no card is given" if gpu is None else f"not measured on {gpu.name}"
        if same_chip:
            chosen = same_chip[0]
            reason = f"{where}; published for {chosen['card']}, of the same compute capability ({chosen['source']})"
        else:
            chosen = figures[len(figures) // 2]
            span = f"{format_bytes(lowest)} to {format_bytes(figures[-1]['bytes'])}"
            reason = f"{where}; the median of {len(figures)} published figures, {span}"
            if gpu is not None and gpu.vendor != "nvidia":
                reason += ", all of NVIDIA cards"
    if at_start:
        reason += f"; {version} loads every kernel at start"
    point = int(chosen["bytes"])
    value = format_bytes(point)
    return point, Interval(lowest, max(highest, point)), ("cuda_context", value, reason)


def _capability(figure: dict[str, Any]) -> str:
    from memlint.data.catalogue import gpu

    return gpu(figure["card"]).capability if figure["card"] else ""


def _matmul_workspace(table: dict[str, Any], gpu: Gpu | None, framework: str) -> tuple[int, int, int]:
    """(point, low, high): cuBLAS keeps one workspace per handle and stream until the process ends."""
    sizes = table[JAX if framework == JAX else "torch"]
    if gpu is None:
        size, largest = sizes["default"]["bytes"], sizes["capability_9_10_12"]["bytes"]
    else:
        kind = "default"
        if gpu.vendor == "amd" and "rocm" in sizes:
            kind = "rocm_gfx94_gfx95" if gpu.capability.startswith(("gfx94", "gfx95")) else "rocm"
        elif gpu.major in (9, 10, 12):
            kind = "capability_9_10_12"
        size = largest = sizes[kind]["bytes"]
    # The forward pass needs one; the backward pass may run entirely in cuBLASLt kernels of the same workspace.
    return sizes["handles"] * size, size, sizes["handles"] * largest
