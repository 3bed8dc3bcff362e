"""What a process holds on its card, as the driver says, and how counters and components are brought together.

Nothing here knows a framework: PyTorch's probe and JAX's share it.
"""

from __future__ import annotations

import importlib
import os
import subprocess
from collections.abc import Iterable
from typing import Any

from memlint.meta.tape import COMPONENTS
from memlint.tape.estimate import Component
from memlint.units import MiB

CPU, CUDA = "cpu", "cuda"
SMI_TIMEOUT_S = 20


def process_bytes(uuid: str = "") -> tuple[int, str] | None:
    """(bytes that this process holds on a card, who says so), its context included.

    uuid  of the card, as the driver spells it (``GPU-...``); "" where the process has only one
    None where the driver does not list this process: inside a container it may know it by another number.
    """
    return _by_nvml(uuid) or _by_nvidia_smi()


def driver_version() -> str:
    """Of the NVIDIA driver; "" where it cannot be asked."""
    try:
        pynvml: Any = importlib.import_module("pynvml")
        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else str(version)
    except Exception:  # a missing library raises its own kinds
        return next(iter(_smi("--query-gpu=driver_version", "--format=csv,noheader")), "").strip()


def _by_nvml(uuid: str) -> tuple[int, str] | None:
    try:
        pynvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        if uuid:
            handles = [pynvml.nvmlDeviceGetHandleByUUID(uuid)]
        else:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(at) for at in range(pynvml.nvmlDeviceGetCount())]
        for handle in handles:
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                if process.pid == os.getpid() and process.usedGpuMemory:
                    return int(process.usedGpuMemory), "NVML, this process"
    except (pynvml.NVMLError, AttributeError):
        pass
    return None


def _by_nvidia_smi() -> tuple[int, str] | None:
    for line in _smi("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"):
        number, _, size = line.partition(",")
        if number.strip() == str(os.getpid()) and size.strip().isdigit():
            return int(size) * MiB, "nvidia-smi, this process"
    return None


def _smi(*arguments: str) -> list[str]:
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments], capture_output=True, text=True, timeout=SMI_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines()


def reconciled(live: Iterable[Component], allocated: int, reserved: int, device: int) -> tuple[Component, ...]:
    """Components of what was seen alive, and of what only the counters know: they add up to the device's bytes.

    Allocated beyond all that was seen is scratch memory of kernels (``workspace``); reserved beyond allocated is
    ``fragmentation``; what the process holds beyond that is its ``context``. Where more was seen than was allocated,
    because watching changes the order of things, the difference comes off the activations.
    """
    sizes = {component.name: component.size_bytes for component in live}
    parts = {component.name: component.parts for component in live}
    beyond = allocated - sum(sizes.values())
    if beyond >= 0:
        sizes["workspace"] = sizes.get("workspace", 0) + beyond
    else:
        sizes["activations"] = max(0, sizes.get("activations", 0) + beyond)
    if beyond:  # parts say whose a component is; what is left over is nobody's
        parts.pop("workspace" if beyond > 0 else "activations", None)
    sizes["fragmentation"] = reserved - allocated
    sizes["context"] = device - reserved
    return tuple(Component(name, sizes[name], parts.get(name, ())) for name in COMPONENTS if sizes.get(name))
