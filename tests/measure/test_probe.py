"""``--probe``: real steps, on the CPU here; the path is the same on a card."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonschema import Draft202012Validator

from memlint.measure import probe
from memlint.measure.child import MeasureError
from memlint.measure.request import estimate_from
from memlint.tape.estimate import Component, Estimate
from tests.measure.training_runs import EXAMPLES, MODEL, SMALL, plain_request, project, request, spec_of, static

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "schemas" / "report.schema.json").read_text())
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


@pytest.mark.parametrize("name", ["dit3d", "uni3d+dp"])
def test_an_example_takes_about_what_the_estimate_says(name: str, tmp_path: Path) -> None:
    """The CPU's kernels keep other things than a card's, hence the distance; states and weights are the same."""
    path, overrides = SMALL[name]
    spec = spec_of(EXAMPLES / path, overrides)
    answer = probe.answer(request(spec, "probe", device="cpu", folder=str(tmp_path)))
    found, expected = answer["estimate"], static(spec)
    assert (found.parameters, found.trainable_parameters) == (expected.parameters, expected.trainable_parameters)
    for component in ("parameters", "gradients", "optimizer", "ema", "helper_models"):
        assert found.component_bytes(component) == pytest.approx(expected.component_bytes(component), rel=0.01)
    assert found.allocated_bytes == pytest.approx(expected.allocated_bytes, rel=0.1)


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
    found = {c.name: c.size_bytes for c in probe._reconciled(live, allocated, reserved, device)}
    assert sum(found.values()) == device
    assert found["parameters"] == 300
    assert expected.items() <= found.items()


# -- the command


def memlint(*arguments: str, cwd: Path, memory_bytes: int | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "XDG_CONFIG_HOME": str(cwd)}
    for name in ("GITHUB_ACTIONS", "MEMLINT_CONFIG", "FORCE_COLOR"):
        env.pop(name, None)

    command = [sys.executable, "-m", "memlint", *arguments]
    if memory_bytes is not None:
        command = ["sh", "-c", f'ulimit -v {memory_bytes // 1024}; exec "$@"', "sh", *command]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)


def test_probe_prints_measured_beside_predicted(tmp_path: Path) -> None:
    path, overrides = SMALL["dit3d"]
    changes = [f"-o{override}" for override in overrides]
    done = memlint("probe", str(EXAMPLES / path), "--probe-device", "cpu", "--isolated", *changes, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "measured peak" in done.stdout
    assert "difference" in done.stdout
    assert "Measured, at the peak" in done.stdout
    assert "text_encoder" in done.stdout
    assert [line.rpartition(": ")[2] for line in done.stderr.splitlines()] == [
        "building the model",
        "warm-up step",
        "measured step",
    ]


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


def test_a_step_that_never_ends_is_ended(tmp_path: Path) -> None:
    project(tmp_path, model=MODEL.replace("    return model(batch)", "    while True: pass\n    return model(batch)"))
    done = memlint("probe", "train.yaml", "--probe-device", "cpu", "--probe-timeout", "6", cwd=tmp_path)
    assert done.returncode == 2
    assert "no answer after 6 s" in done.stderr
    assert "--probe-timeout" in done.stderr


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
