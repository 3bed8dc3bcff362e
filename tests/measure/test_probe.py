"""``--probe``: real steps, on the CPU here; the path is the same on a card."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from jsonschema import Draft202012Validator

from memlint.check import check_paths
from memlint.measure import probe, probe_jax
from memlint.measure.child import MeasureError
from memlint.measure.device import reconciled
from memlint.measure.factory import workload
from memlint.measure.request import estimate_from
from memlint.measure.training import plan_of
from memlint.settings import Resolver
from memlint.tape.estimate import Component, Estimate
from tests.measure.training_runs import EXAMPLES, LAG, MODEL, plain_request, project

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "schemas" / "report.schema.json").read_text())
MEASURED_SCHEMA = json.loads((ROOT / "schemas" / "measured.schema.json").read_text())
GiB = 2**30


def run_probe(folder: Path, facts: dict[str, Any] | None = None, **parts: Any) -> tuple[Estimate, dict[str, Any]]:
    sys.modules.pop("memlint_model", None)
    (folder / "told").mkdir(parents=True)
    sent = {**plain_request(folder, facts, **parts), "kind": "probe", "device": "cpu", "folder": str(folder / "told")}
    answer = json.loads(json.dumps(probe.answer(sent)))
    return estimate_from(answer["estimate"]), answer


def test_a_linear_model_takes_what_arithmetic_says(tmp_path: Path) -> None:
    found, answer = run_probe(tmp_path, {"optimizer": "adamw", "optimizer_implementation": "foreach"})
    weights = 4 * (64 * 256 + 256 + 256 * 64 + 64)
    assert found.basis == "probe"
    assert found.parameters == weights // 4
    assert found.component_bytes("parameters") == pytest.approx(weights, rel=0.01)
    assert found.component_bytes("gradients") == pytest.approx(weights, rel=0.01)
    assert found.component_bytes("optimizer") == pytest.approx(3 * weights, rel=0.02)  # two moments and a temporary
    assert found.peak_phase == "optimizer_step"
    assert sum(component.size_bytes for component in found.components) == found.device_bytes
    assert "counted on the CPU" in answer["notes"][0]


def test_without_a_card_the_message_says_what_else_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MeasureError, match=r"found no GPU .*--trace needs none, and --probe-device cpu"):
        probe.answer({**plain_request(tmp_path), "device": "cuda"})


def test_a_snapshot_needs_a_card(tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match="a snapshot is the history of a card's allocator"):
        probe.answer({**plain_request(tmp_path), "device": "cpu", "snapshot": "x.pickle"})


def test_a_model_that_raises_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MeasureError, match=r"module 2 raised RuntimeError: .*\(model.py:\d+, in training_loss\)"):
        run_probe(tmp_path, model=MODEL.replace("nn.Linear(4 * width, width)", "nn.Linear(width, width)"))


OUT_OF_MEMORY: dict[str, tuple[Callable[[], BaseException], bool]] = {
    "a card": (lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
    "the host, as PyTorch says it": (
        lambda: RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to"),
        True,
    ),
    "the host, as Python says it": (MemoryError, True),
    "something else": (lambda: RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
}


@pytest.mark.parametrize(("make", "expected"), OUT_OF_MEMORY.values(), ids=OUT_OF_MEMORY)
def test_out_of_memory_is_told_from_other_errors(make: Callable[[], BaseException], expected: bool) -> None:
    assert probe.is_out_of_memory(make()) is expected


RECONCILED = {
    "kernels took more than tensors": (1000, 1500, 2000, {"workspace": 200, "fragmentation": 500, "context": 500}),
    "the tracker saw more": (700, 700, 900, {"activations": 400, "context": 200}),
    "nothing beyond": (800, 800, 800, {"activations": 500}),
}


@pytest.mark.parametrize(("allocated", "reserved", "device", "expected"), RECONCILED.values(), ids=RECONCILED)
def test_a_cards_counters_and_the_trackers_tape_add_up(
    allocated: int, reserved: int, device: int, expected: dict[str, int]
) -> None:
    live = (Component("parameters", 300), Component("activations", 500))
    found = {c.name: c.size_bytes for c in reconciled(live, allocated, reserved, device)}
    assert sum(found.values()) == device
    assert found["parameters"] == 300
    assert expected.items() <= found.items()


class Stand:
    """In the place of ``torch.cuda``: counters that give what they are told, and remember what they were asked."""

    def __init__(self, allocated: list[int]) -> None:
        self.allocated, self.asked = allocated, list[str]()
        self.history = {"segments": [], "device_traces": [[]]}

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        card = SimpleNamespace(uuid="0-0")
        for name, value in {
            "init": None, "synchronize": None, "empty_cache": None, "reset_peak_memory_stats": None,
            "mem_get_info": (90 * GiB, 100 * GiB), "memory_reserved": 9 * GiB, "max_memory_reserved": 9 * GiB,
            "get_device_name": "NVIDIA H200", "current_device": 0, "get_device_properties": card,
        }.items():  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, self.giving(name, value))
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: self.allocated.pop(0))
        kept = iter((7 * GiB, 7 * GiB - 64 * 2**20))
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: next(kept))
        monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", self.giving("clear", None), raising=False)
        memory = torch.cuda.memory
        monkeypatch.setattr(memory, "_snapshot", self.giving("snapshot", self.history))
        for name in ("_record_memory_history", "_dump_snapshot", "_set_memory_metadata"):
            monkeypatch.setattr(memory, name, self.giving(name, None))

    def giving(self, name: str, value: Any) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.asked.append(f"{name} {arguments[0]}" if name == "_set_memory_metadata" else name)
            return value

        return call


LISTED: dict[str, tuple[tuple[int, str] | None, int, int | None, str]] = {
    # what the driver says of the process -> device bytes, context bytes, its source
    "by the driver": (
        (10 * GiB, "NVML, this process"),
        10 * GiB,
        1 * GiB,
        "device bytes: NVML, this process; NVIDIA H200",
    ),
    "by nobody": (None, 9 * GiB, None, "without the CUDA context; NVIDIA H200"),
}


@pytest.mark.parametrize(("held", "device", "context", "said"), LISTED.values(), ids=LISTED)
def test_a_card_is_asked_in_order_and_its_answers_add_up(
    held: tuple[int, str] | None, device: int, context: int | None, said: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The card's half of the path, on a machine that has none: every counter is a stand-in, the model is real."""
    stand = Stand([2 * GiB, 8 * GiB, 5 * GiB])
    stand.install(monkeypatch)
    monkeypatch.setattr(probe, "process_bytes", lambda uuid: held)
    sys.modules.pop("memlint_model", None)
    (tmp_path / "told").mkdir()
    sent = {**plain_request(tmp_path), "device": "cuda", "folder": str(tmp_path / "told"), "snapshot": "x.pickle"}
    run = probe._Run(sent, workload(sent), plan_of(sent), "cpu")
    answer = probe._on_card(run)
    found = answer["estimate"]
    assert found.phases == {"forward": 2 * GiB, "backward": 8 * GiB, "optimizer_step": 5 * GiB}
    assert (found.allocated_bytes, found.reserved_bytes, found.device_bytes) == (8 * GiB, 9 * GiB, device)
    assert found.peak_phase == "backward"
    assert sum(component.size_bytes for component in found.components) == device
    assert found.component_bytes("context") == (context or 0)
    assert found.component_bytes("fragmentation") == GiB
    assert (answer["context_bytes"], answer["library_workspace_bytes"]) == (context, 64 * 2**20)
    assert said in answer["notes"][0]
    assert answer["notes"][1] == "x.pickle: the allocator's history, for https://pytorch.org/memory_viz"
    assert answer["notes"][2].startswith("breakdown: ")
    begin, end = stand.asked.index("_dump_snapshot"), stand.asked.index("clear")
    assert begin < end  # what the viewer shows is the step, with its workspaces
    assert "_set_memory_metadata 0" in stand.asked  # the first layer of the model
    assert stand.asked.count("_record_memory_history") == 2  # on, and off again


JAX_COUNTERS: dict[str, tuple[tuple[int, str] | None, tuple[int, int, int, bool]]] = {
    "by the driver": ((10 * GiB, "NVML, this process"), (6 * GiB, 8 * GiB, 10 * GiB, True)),
    "by nobody": (None, (6 * GiB, 8 * GiB, 8 * GiB, False)),
}


@pytest.mark.parametrize(("held", "expected"), JAX_COUNTERS.values(), ids=JAX_COUNTERS)
def test_a_cards_statistics_of_a_jax_step(
    held: tuple[int, str] | None, expected: tuple[int, int, int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_jax, "process_bytes", lambda: held)
    stats = {"peak_bytes_in_use": 6 * GiB, "bytes_in_use": GiB, "pool_bytes": 8 * GiB}
    allocated, reserved, device, source, complete = probe_jax._counters(SimpleNamespace(memory_stats=lambda: stats))
    assert (allocated, reserved, device, complete) == expected
    assert source.startswith("NVML" if held else "the allocator's pool")


# -- the command


def memlint(
    *arguments: str, cwd: Path, memory_bytes: int | None = None, terminal: bool = False, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A whole command. ``terminal``: its standard error is one, and comes back as ``stderr``."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "XDG_CONFIG_HOME": str(cwd), **variables}
    for name in ("GITHUB_ACTIONS", "MEMLINT_CONFIG", "FORCE_COLOR"):
        env.pop(name, None)
    command = [sys.executable, "-m", "memlint", *arguments]
    if memory_bytes is not None:
        command = ["sh", "-c", f'ulimit -v {memory_bytes // 1024}; exec "$@"', "sh", *command]
    if not terminal:
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    ours, theirs = os.openpty()
    process = subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(ours, 4096):
            shown += data
    except OSError:  # Linux: nobody writes any more
        pass
    os.close(ours)
    printed, _ = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, printed, shown.decode())


def processes_with(name: str, value: str) -> list[int]:
    """Processes whose environment has a variable: a command of ours, and whatever came of it."""
    wanted = f"{name}={value}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state = (folder / "stat").read_bytes().rpartition(b")")[2].split()[:1]
                if wanted in (folder / "environ").read_bytes().split(b"\0") and state != [b"Z"]:
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


PROBE = ("probe", "train.yaml", "--probe-device", "cpu")
SLEEPER = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
BAD: dict[str, tuple[str, tuple[str, ...], int, str]] = {
    # what the step does instead, more options -> exit code, what is said
    "a child that is killed": (
        "import os; os.kill(os.getpid(), 9)",
        (),
        2,
        "error: train.yaml: the measuring process was ended by SIGKILL, as the system does to a process when the "
        "host's memory runs out",
    ),
    "a model that raises": (
        "raise KeyError('missing')",
        (),
        2,
        "error: train.yaml: model.py: raised KeyError: 'missing' (model.py:",
    ),
    "a model that never ends": (
        "import time; time.sleep(600)",
        ("--probe-timeout", "5"),
        2,
        "error: train.yaml: no answer after 5 s, and was ended; give it longer with --probe-timeout",
    ),
    "a model that takes all memory": (
        "torch.empty(2**45)",
        ("--save",),
        1,
        "memlint: train.yaml: not saved, a step that ran out of memory says nothing of its peak",
    ),
}


@pytest.mark.parametrize(("does", "options", "code", "said"), BAD.values(), ids=BAD)
def test_what_goes_wrong_is_said_and_leaves_no_process_behind(
    does: str, options: tuple[str, ...], code: int, said: str, tmp_path: Path
) -> None:
    """The step also starts a process of its own, which would live for ten minutes."""
    step = "    return model(batch)"
    project(tmp_path, model=MODEL.replace(step, f"    {SLEEPER}\n    {does}\n{step}"))
    token = uuid.uuid4().hex
    done = memlint(*PROBE, *options, cwd=tmp_path, MEMLINT_TEST=token)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    if code == 1:
        assert "measured peak" in done.stdout
        assert ": OOM" in done.stdout
        assert "note: out of memory in forward: DefaultCPUAllocator: can't allocate memory" in done.stdout
    assert processes_with("MEMLINT_TEST", token) == []
    assert list(tmp_path.glob("*measured*")) == []


def test_progress_is_one_line_of_a_terminal_and_goes_in_the_end(tmp_path: Path) -> None:
    project(tmp_path)
    done = memlint(*PROBE, cwd=tmp_path, terminal=True, TERM="xterm")
    assert done.returncode == 0, done.stderr
    steps = [step for step in done.stderr.split("\r\x1b[K") if step]
    assert steps == [f"memlint: train.yaml: {step}" for step in ("building the model", "warm-up step", "measured step")]
    assert done.stderr.endswith("\r\x1b[K")
    assert "\n" not in done.stderr
    assert "measured peak" in done.stdout


def test_quiet_has_no_progress_on_a_terminal_either(tmp_path: Path) -> None:
    project(tmp_path)
    done = memlint(*PROBE, "-q", cwd=tmp_path, terminal=True, TERM="xterm")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_measurement_is_saved_beside_its_config_and_one_of_the_cpu_narrows_nothing(tmp_path: Path) -> None:
    config = tmp_path / "config.py"
    folder = EXAMPLES / "dit3d"
    for name in ("config.py", "model.py"):
        (tmp_path / name).write_text((folder / name).read_text())
    done = memlint("probe", "config.py", "--probe-device", "cpu", "--save", "--trace", "--isolated", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    header = next(line for line in done.stdout.splitlines() if "difference" in line)
    assert header.split() == ["measured", "traced", "difference", "static", "difference"]
    row = next(line for line in done.stdout.splitlines() if line.startswith("  ema") or line.startswith("  optimizer"))
    assert row.split()[0:2] == ["optimizer", "105"]
    assert row.count("105 MiB") == 3
    # Nothing of progress where nobody sees it.
    assert done.stderr == "memlint: config.py.memlint-measured.json: 1 measurement\n"
    for word in ("measured peak", "difference", "Measured, at the peak", "text_encoder"):
        assert word in done.stdout
    tree = json.loads((tmp_path / "config.py.memlint-measured.json").read_text())
    Draft202012Validator(MEASURED_SCHEMA).validate(tree)
    [entry] = tree["measurements"]
    assert (entry["device"], entry["card"], entry["context_bytes"]) == ("cpu", "", None)
    assert entry["made_with"]["torch"] == torch.__version__
    assert sum(entry["components"].values()) == entry["device_bytes"]
    report = check_paths([str(config)], Resolver(isolated=True))
    assert report.runs[0].estimate is not None
    assert report.runs[0].estimate.basis == "static"
    assert ("measurement", "not used") in [entry[:2] for entry in report.runs[0].estimate.assumptions]


def test_check_with_a_probe_fills_the_report(tmp_path: Path) -> None:
    project(tmp_path)
    arguments = ("check", "--probe", "--probe-device", "cpu", "-q", "train.yaml", "--output-format", "json")
    done = memlint(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    report = json.loads(done.stdout)
    Draft202012Validator(SCHEMA).validate(report)
    assert report["files"][0]["measured"]["basis"] == "probe"
    assert report["files"][0]["measured"]["notes"]


def test_running_out_of_memory_is_an_answer(tmp_path: Path) -> None:
    """A limited child: 8 GiB of addresses, and a batch of 20 GB."""
    project(tmp_path)
    done = memlint(
        "check", "--probe", "--probe-device", "cpu", "train.yaml", "-o", "batch=80000000", "--output-format", "json",
        cwd=tmp_path, memory_bytes=8 * GiB,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    [entry] = json.loads(done.stdout)["files"]
    measured = entry["measured"]
    assert measured["verdict"] == "OOM"
    assert measured["peak_phase"] == "forward"
    assert measured["notes"][0].startswith("out of memory in forward: DefaultCPUAllocator: can't allocate memory")
    assert "20480000000 bytes" in measured["notes"][0]
    assert [component["name"] for component in measured["components"]] == ["parameters"]


NO_CARD = {
    "PyTorch": ("train.yaml", "found no GPU (torch"),
    "JAX": (str(EXAMPLES / LAG[0]), "found no GPU (jax"),
}


@pytest.mark.parametrize(("config", "said"), NO_CARD.values(), ids=NO_CARD)
def test_a_machine_without_a_gpu_is_exit_2_and_told_what_else_there_is(config: str, said: str, tmp_path: Path) -> None:
    project(tmp_path)
    done = memlint("probe", config, "--isolated", cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert said in done.stderr
    assert "--trace needs none, and --probe-device cpu" in done.stderr
    assert "Traceback" not in done.stderr


WRONG = {
    "trace and probe": (("check", "train.yaml", "--trace", "--probe"), "not both"),
    "no time at all": (("probe", "train.yaml", "--probe-timeout", "0"), "--probe-timeout"),
    "an unknown device": (("probe", "train.yaml", "--probe-device", "tpu"), "tpu"),
    "a run that is not there": (("probe", "train.yaml", "--probe-device", "cpu", "--run", "x"), "no run named 'x'"),
    "no such file": (("probe", "none.yaml", "--probe-device", "cpu"), "no such file"),
}


@pytest.mark.parametrize(("arguments", "said"), WRONG.values(), ids=WRONG)
def test_wrong_options_are_exit_2(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    project(tmp_path)
    done = memlint(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
