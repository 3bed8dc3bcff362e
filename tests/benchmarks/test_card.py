"""The driver's figures: NVML through ctypes, here a library of our own behind the same calls."""

from __future__ import annotations

import os
from typing import Any

import pytest

from benchmarks.gpu.card import NOT_AVAILABLE, Meter, Nvml, NvmlError

GiB = 2**30


class Library:
    """One card with ``used`` bytes in use, and the processes that the driver lists."""

    def __init__(self, used: int = 0, processes: dict[int, int] | None = None, refuses: str = "") -> None:
        self.used, self.processes, self.refuses = used, processes or {}, refuses
        self.asked_for: Any = None

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name == object.__getattribute__(self, "refuses"):
            return lambda *arguments: 999
        return object.__getattribute__(self, name)

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        self.asked_for = uuid
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        self.asked_for = index
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        found = memory._obj
        found.total, found.free, found.used = 100 * GiB, 100 * GiB - self.used, self.used
        return 0

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, listed: Any) -> int:
        room, count._obj.value = count._obj.value, len(self.processes)
        if room < len(self.processes):
            return 7  # NVML_ERROR_INSUFFICIENT_SIZE
        for at, (number, used) in enumerate(self.processes.items()):
            listed[at].pid, listed[at].used = number, used
        return 0

    def nvmlSystemGetDriverVersion(self, text: Any, length: int) -> int:
        text.value = b"580.65.06"
        return 0


def test_the_card_is_found_by_its_uuid() -> None:
    library = Library(used=3 * GiB)
    card = Nvml("GPU-1", library)
    assert library.asked_for == b"GPU-1"
    assert card.used_bytes() == 3 * GiB
    assert card.driver_version() == "580.65.06"
    Nvml("", library)
    assert library.asked_for == 0


def test_without_the_library_there_is_an_answer() -> None:
    class Missing:
        def __getattr__(self, name: str) -> Any:
            return lambda *arguments: 12  # NVML_ERROR_LIBRARY_NOT_FOUND

    with pytest.raises(NvmlError, match="nvmlInit_v2 answers 12"):
        Nvml("", Missing())


PROCESSES: dict[str, tuple[dict[int, int], int | None]] = {
    "is listed": ({1: GiB, os.getpid(): 2 * GiB}, 2 * GiB),
    "is not listed, as in a container": ({1: GiB}, None),
    "is listed without a figure": ({os.getpid(): NOT_AVAILABLE}, None),
    "no process is": ({}, None),
}


@pytest.mark.parametrize(("processes", "expected"), PROCESSES.values(), ids=PROCESSES)
def test_this_process(processes: dict[int, int], expected: int | None) -> None:
    assert Nvml("", Library(processes=processes)).process_bytes(os.getpid()) == expected


def test_a_driver_without_that_call_lists_nobody() -> None:
    library = Library(processes={os.getpid(): GiB}, refuses="nvmlDeviceGetComputeRunningProcesses_v3")
    assert Nvml("", library).process_bytes(os.getpid()) is None


def test_the_meter_takes_the_processs_own_figure_before_the_cards() -> None:
    library = Library(used=GiB, processes={os.getpid(): 5 * GiB})
    meter = Meter("", Nvml("", library))
    library.used = 8 * GiB
    assert (meter.read((0, 0)), meter.source) == (5 * GiB, "process")


def test_the_meter_takes_what_the_card_has_gained_where_processes_are_hidden() -> None:
    library = Library(used=GiB)
    meter = Meter("", Nvml("", library))
    library.used = 8 * GiB
    assert (meter.read((0, 0)), meter.source) == (7 * GiB, "card")


def test_the_meter_takes_what_is_not_free_where_there_is_no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.gpu.card.LIBRARY", "libno-such-thing.so")
    meter = Meter("")
    assert (meter.read((90 * GiB, 100 * GiB)), meter.source) == (10 * GiB, "free memory")
