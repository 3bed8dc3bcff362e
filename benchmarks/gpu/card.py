"""What the driver says about a card: bytes in use, on the whole card and by this process, context included.

NVML is called through ctypes, so that nothing has to be installed; every driver brings it.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
SUCCESS, INSUFFICIENT_SIZE = 0, 7  # nvmlReturn_t
NOT_AVAILABLE = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE: the driver does not tell, as in many containers
TEXT_BYTES = 96


class Memory(ctypes.Structure):
    """nvmlMemory_t"""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Process(ctypes.Structure):
    """nvmlProcessInfo_t, since driver 470"""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class NvmlError(Exception):
    """NVML is not there, or refused a call; the text names the call."""


class Nvml:
    """One card. ``uuid`` as the driver spells it (``GPU-...``); "" for the first one. Raises NvmlError."""

    def __init__(self, uuid: str = "", library: Any = None) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY) if library is None else library
        except OSError as error:
            raise NvmlError(f"{LIBRARY}: {error}") from None
        self._call("nvmlInit_v2")
        self._handle = ctypes.c_void_p()
        if uuid:
            self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self._handle))
        else:
            self._call("nvmlDeviceGetHandleByIndex_v2", 0, ctypes.byref(self._handle))

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != SUCCESS:
            raise NvmlError(f"{name} answers {status}")

    def used_bytes(self) -> int:
        """In use on the whole card, by whomever."""
        memory = Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._handle, ctypes.byref(memory))
        return int(memory.used)

    def process_bytes(self, number: int) -> int | None:
        """Held by one process; None where the driver does not list it, or does not tell."""
        count = ctypes.c_uint(0)
        function = self._library.nvmlDeviceGetComputeRunningProcesses_v3
        status = function(self._handle, ctypes.byref(count), None)
        if status not in (SUCCESS, INSUFFICIENT_SIZE):
            return None
        listed = (Process * (count.value + 8))()  # others may have come meanwhile
        count = ctypes.c_uint(len(listed))
        if function(self._handle, ctypes.byref(count), listed) != SUCCESS:
            return None
        for process in listed[: count.value]:
            if process.pid == number and process.used != NOT_AVAILABLE:
                return int(process.used)
        return None

    def driver_version(self) -> str:
        text = ctypes.create_string_buffer(TEXT_BYTES)
        self._call("nvmlSystemGetDriverVersion", text, TEXT_BYTES)
        return text.value.decode()


class Meter:
    """Device bytes of this process. Made before CUDA starts, so that the context is among them.

    ``source`` says after a reading whose figure it is: ``process`` (the driver's own), ``card`` (what the card has in
    use beyond what it had before; true where nobody else works on it), or ``free memory`` (what CUDA says is not
    free; true where the card was empty). None where there is no card.
    """

    def __init__(self, uuid: str, nvml: Nvml | None = None) -> None:
        self.source = ""
        self._before = 0
        self._nvml: Nvml | None = None
        try:
            found = nvml or Nvml(uuid)
            self._before, self._nvml = found.used_bytes(), found
        except NvmlError:
            pass

    def read(self, free_and_total: tuple[int, int]) -> int:
        """Bytes. ``free_and_total`` is what ``torch.cuda.mem_get_info()`` says now."""
        if self._nvml is not None:
            held = self._nvml.process_bytes(os.getpid())
            if held:
                self.source = "process"
                return held
            self.source = "card"
            return max(self._nvml.used_bytes() - self._before, 0)
        self.source = "free memory"
        free, total = free_and_total
        return total - free
