"""The program, end to end on the CPU; and its processes where they die, hang, or are killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import measure, table, worker
from benchmarks.gpu.cases import SMALL_SCALE
from benchmarks.gpu.table import COLUMNS, PHASES, number
from tests.effort import wait_until

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu" / "measure.py"

# How far a trace, which shows what CUDA keeps, may be from what the CPU keeps (percent of the peak), and why.
CASES = {
    "uni3d+dp/after": 0.0,
    "uni3d+dp/after/probe": 0.0,
    "decoder/110m/fp32": 0.0,
    "decoder/110m/adamw-fused": 0.0,
    "decoder/110m/sgd-loop": 0.0,
    "decoder/110m/ema": 0.0,
    "decoder/110m/accumulation": 0.0,
    "decoder/110m/checkpointing-reentrant": 0.0,
    "decoder/110m/math": 0.0,
    "decoder/110m/flash": 0.1,  # CUDA's flash attention keeps the random state, 24 bytes a layer in two blocks
    "decoder/110m/autocast-bf16": 0.1,  # as above
    "encoder/base/fp32": 0.0,
    "vit/b16/checkpointing": 0.0,
    "unet/64px/fp32": 0.1,  # the CPU's mean squared error keeps a buffer of the images' size behind its scalar
    "dit/b2/fp32": 0.3,  # as above
    "resnet/50/fp32": 0.3,  # the CPU's backward passes of convolution and batch norm hold other tensors at once
    "layer/conv2d-fp32": 0.0,
}
OTHERS = ("context/lazy", "context/eager", "resnet/18/compiled")


def only(*names: str) -> str:
    return "^(" + "|".join(name.replace("+", r"\+") for name in names) + ")$"


def small(out: Path, *arguments: str) -> list[str]:
    return ["--device", "cpu", "--scale", "small", "--out", str(out), "--jobs", "1", "--quiet", *arguments]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, table.Row]:
    out = tmp_path_factory.mktemp("table") / "cpu.csv"
    assert measure.main(small(out, "--cases", only(*CASES, *OTHERS), "--time-limit", "300")) == 0
    found = table.read(out)
    assert len(found) == len(CASES) + len(OTHERS)
    return {row["case"]: row for row in found}


def test_every_case_has_a_line_with_every_column(rows: dict[str, table.Row]) -> None:
    assert set(rows) == {*CASES, *OTHERS}
    for row in rows.values():
        assert tuple(row) == COLUMNS
        assert (row["status"], row["error"]) == ("ok", ""), row
        assert (row["device"], row["scale"]) == ("cpu", "small")
        assert row["torch"] == torch.__version__
        assert row["machine"]
        assert row["measured_at"].endswith("Z")


@pytest.mark.parametrize("case", CASES)
def test_a_trace_is_as_far_from_the_cpu_as_the_kernels_are(case: str, rows: dict[str, table.Row]) -> None:
    row = rows[case]
    error = number(row, "trace_allocated_error_pct")
    assert error is not None
    assert abs(error) <= CASES[case], row
    assert float(row["traced_allocated_bytes"]) == pytest.approx(
        float(row["measured_allocated_bytes"]), rel=CASES[case] / 100
    )
    peaks = {phase: number(row, f"measured_{phase}_bytes") or 0 for phase in PHASES}
    assert float(row["measured_allocated_bytes"]) == max(peaks.values())
    assert row["measured_peak_phase"] == max(peaks, key=lambda phase: peaks[phase])
    assert row["measured_reserved_bytes"] == row["measured_device_bytes"] == row["context_bytes"] == ""
    assert float(row["measure_seconds"]) > 0


def test_settings_show_in_the_figures(rows: dict[str, table.Row]) -> None:
    def measured(case: str, column: str = "measured_allocated_bytes") -> float:
        return float(rows[f"decoder/110m/{case}"][column])

    weights = 4 * float(rows["decoder/110m/fp32"]["parameters"])
    step = "measured_optimizer_step_bytes"
    assert measured("fp32", step) - measured("adamw-fused", step) == pytest.approx(weights, rel=0.02)  # foreach's copy
    assert measured("ema") - measured("fp32") == pytest.approx(weights, rel=0.02)
    assert measured("fp32") - measured("sgd-loop") == pytest.approx(weights, rel=0.02)  # one moment less
    assert measured("accumulation") - measured("fp32") == pytest.approx(weights, rel=0.02)  # gradients stay
    assert measured("checkpointing-reentrant") < measured("fp32")
    assert measured("flash") < 0.65 * measured("fp32")  # bf16 throughout
    assert [rows[f"decoder/110m/{case}"]["precision"] for case in ("fp32", "flash", "autocast-bf16")] == [
        *("fp32", "bf16", "autocast-bf16"),
    ]


def test_a_system_has_its_static_estimate_beside_it(rows: dict[str, table.Row]) -> None:
    row = rows["uni3d+dp/after"]
    assert number(row, "static_allocated_error_pct") == pytest.approx(0, abs=0.02)
    assert float(row["static_device_low_bytes"]) <= float(row["static_device_bytes"])
    assert (row["optimizer"], row["ema"], row["batch"]) == ("adamw", "yes", "4")
    assert rows["decoder/110m/fp32"]["static_allocated_bytes"] == ""


def test_the_products_own_probe_measures_the_same(rows: dict[str, table.Row]) -> None:
    probed, counted = rows["uni3d+dp/after/probe"], rows["uni3d+dp/after"]
    assert probed["probed"] == "yes"
    assert probed["measured_allocated_bytes"] == counted["measured_allocated_bytes"]


def test_compiled_code_runs_and_a_context_has_no_figure_on_a_cpu(rows: dict[str, table.Row]) -> None:
    compiled = rows["resnet/18/compiled"]
    assert compiled["compiled"] == "yes"
    assert float(compiled["step_seconds"]) > 0
    assert compiled["measured_allocated_bytes"] == ""
    assert compiled["traced_allocated_bytes"]
    assert rows["context/eager"]["context_bytes"] == ""


def task(case: str, **others: Any) -> dict[str, Any]:
    return {"case": case, "scale": SMALL_SCALE, "device": "cpu", "gpu": "", **others}


def test_code_that_is_not_compiled_does_not_count_as_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda model, backend: model)
    torch._dynamo.utils.counters.clear()
    found = worker.measure(task("resnet/18/compiled"))
    assert found["status"] == "failed"
    assert "compiled nothing" in found["error"]


def test_a_jax_system_is_predicted_from_its_config_and_from_its_code() -> None:
    found = worker.predict(task("lag-mode/low-mem", gpu="h200-141gb"))
    assert found["prediction_error"] == ""
    assert found["traced_allocated_bytes"] == pytest.approx(found["static_allocated_bytes"], rel=0.01)


def test_running_out_of_memory_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any, measured: bool = False) -> None:
        self.at = "backward"
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(worker._Training, "step", fails)
    found = worker.measure(task("layer/linear-fp32"))
    assert found["status"] == "oom"
    assert found["error"].startswith("backward: OutOfMemoryError: CUDA out of memory")


def test_a_model_that_raises_is_a_line_that_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.gpu import models

    def broken(model: Any, batch: Any) -> Any:
        return model(torch.rand(3))

    monkeypatch.setattr(models, "training_loss", broken)
    found = worker.measure(task("layer/linear-fp32"))
    assert found["status"] == "failed"
    assert found["error"].startswith("forward: RuntimeError: ")


def test_a_trace_that_fails_leaves_the_static_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    from memlint.measure import trace

    def fails(request: Any) -> Any:
        raise ValueError("no such thing")

    monkeypatch.setattr(trace, "answer", fails)
    found = worker.predict(task("uni3d+dp/after"))
    assert found["prediction_error"] == "trace: no such thing"
    assert found["static_allocated_bytes"] > 0


# -- a card's counters


class Card:
    """torch.cuda's counters over a script of changes. ``memory`` is torch.cuda.memory's private half."""

    def __init__(self) -> None:
        self.allocated = self.reserved = self.allocated_peak = self.reserved_peak = 0
        self.entries: list[dict[str, Any]] = []
        self.memory = self

    def takes(self, allocated: int, reserved: int) -> None:
        self.allocated, self.reserved = allocated, reserved
        self.allocated_peak = max(self.allocated_peak, allocated)
        self.reserved_peak = max(self.reserved_peak, reserved)

    def reset_peak_memory_stats(self) -> None:
        self.allocated_peak, self.reserved_peak = self.allocated, self.reserved

    def empty_cache(self) -> None:
        self.takes(self.allocated, self.allocated)

    def init(self) -> None: ...
    def synchronize(self) -> None: ...
    def memory_allocated(self) -> int:
        return self.allocated

    def memory_reserved(self) -> int:
        return self.reserved

    def max_memory_allocated(self) -> int:
        return self.allocated_peak

    def max_memory_reserved(self) -> int:
        return self.reserved_peak

    def mem_get_info(self) -> tuple[int, int]:
        return (0, 0)

    def _record_memory_history(self, **options: Any) -> None: ...
    def _snapshot(self) -> dict[str, Any]:
        return {"device_traces": [self.entries]}


class Driver:
    source = "process"

    def read(self, free_and_total: tuple[int, int]) -> int:
        return 1500


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Card]:
    found, card = worker._CardCounters(Driver()), Card()
    found.cuda = card

    def clear() -> None:
        card.takes(card.allocated - 64, card.reserved)

    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", clear, raising=False)
    return found, card


def test_a_cards_peaks_are_those_of_the_measured_step_and_its_reserved_bytes_of_the_run(
    counters: tuple[Any, Card],
) -> None:
    found, card = counters
    script = {"forward": (700, 900), "backward": (800, 1000), "optimizer_step": (500, 1000)}
    card.takes(400, 1200)  # building took more than any step does
    found.built(None)
    assert card.reserved == 400
    for measured in (False, True):
        for phase, figures in script.items():
            with found.phase(phase, measured):
                card.takes(*figures if measured else (2 * figures[0], 2 * figures[1]))  # the first step takes more
                card.takes(300, figures[1])
    assert found.columns() == {
        "measured_forward_bytes": 700,
        "measured_backward_bytes": 800,
        "measured_optimizer_step_bytes": 500,
        "measured_allocated_bytes": 800,
        "measured_peak_phase": "backward",
        "measured_reserved_bytes": 2000,
        "measured_device_bytes": 1500,
        "device_source": "process",
        "context_bytes": 500,
        "cublas_workspace_bytes": 64,
    }
    settled = found.settled(lambda: card.takes(800, 950))
    assert settled == {"measured_reserved_settled_bytes": 950}
    assert found.peaks == [1600, 2000]


def test_a_run_that_died_early_tells_what_it_had(counters: tuple[Any, Card]) -> None:
    found, card = counters
    with found.phase("forward", False):
        card.takes(900, 1000)
    columns = found.columns()
    assert (columns["measured_allocated_bytes"], columns["measured_reserved_bytes"]) == (900, 1000)
    assert "measured_peak_phase" not in columns


def test_a_history_is_whole_and_written_beside_the_table(
    counters: tuple[Any, Card], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, card = counters
    with found.recording(True) as history:
        card.takes(512, 2 << 20)
        found.built(None)  # no empty_cache: a replay has none
        card.entries += [{"action": "segment_alloc", "size": 2 << 20}, {"action": "alloc", "addr": 1, "size": 100}]
        found.note()
    assert card.reserved == 2 << 20
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, 1 << 30))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "H")
    case = worker.cases.find("vit/b16/fp32", SMALL_SCALE)
    said = worker._history(history, case, {"histories": str(tmp_path)}, found)
    assert said == "agrees to the byte"
    assert (tmp_path / "vit-b16-fp32.history.json").read_text().startswith('{"conf":"","capacity":1073741824,"case"')
    assert worker._history([{"action": "free_completed", "addr": 9}], case, {"histories": ""}, found) == (
        "memory is freed that was allocated before recording began"
    )


# -- processes

STAND_IN = """
import json, os, sys, time
print("{}", flush=True)
for line in sys.stdin:
    task = json.loads(line)
    name = task.get("case", "")
    answer = {"status": "ok", "measured_allocated_bytes": 1000}
    if task["do"] == "machine":
        answer = {"torch": "2", "machine": "m"}
    elif task["do"] == "predict":
        if name in SLOW_TRACES:
            time.sleep(600)
        answer = {"traced_allocated_bytes": 990, "prediction_error": ""}
    elif name == "layer/linear-bf16":
        print("the driver is gone", file=sys.stderr)
        os._exit(7)
    elif name == "layer/conv1d-fp32":
        os.kill(os.getpid(), 9)
    elif name == "layer/conv2d-fp32":
        time.sleep(600)
    elif name == "layer/conv2d-bf16":
        answer = {"error": "ValueError: no"}
    print(json.dumps(answer), flush=True)
"""


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, slow_traces: tuple[str, ...] = ()) -> Path:
    """The program with processes that need no torch; the path of its table."""
    script = folder / "stand_in.py"
    script.write_text(STAND_IN.replace("SLOW_TRACES", repr(slow_traces)))
    monkeypatch.setattr(measure, "WORKER", script)
    monkeypatch.setattr(measure, "LEAST_S", 0.5)
    return folder / "t.csv"


def test_a_process_that_dies_or_hangs_is_a_line_and_the_next_case_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = stand_in(tmp_path, monkeypatch)
    assert measure.main(small(out, "--cases", "^layer/", "--case-timeout", "1")) == 0
    found = {row["case"].removeprefix("layer/"): row for row in table.read(out)}
    errors = {name: row["error"] for name, row in found.items() if row["status"] == "failed"}
    assert errors == {
        "linear-bf16": "the process ended with exit code 7: the driver is gone",
        "conv1d-fp32": "the process ended with signal 9",
        "conv2d-fp32": "no answer after 1 s",
        "conv2d-bf16": "ValueError: no",
    }
    good = {name: row["trace_allocated_error_pct"] for name, row in found.items() if row["status"] == "ok"}
    assert good == dict.fromkeys(("linear-fp32", "conv3d-fp32", "conv3d-bf16", "attention-bf16"), "-1.00")
    assert (found["linear-bf16"]["traced_allocated_bytes"], found["linear-bf16"]["trace_allocated_error_pct"]) == (
        "990",
        "",
    )


def test_time_that_is_up_leaves_a_table_that_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = stand_in(tmp_path, monkeypatch, slow_traces=("layer/linear-fp32",))
    chosen = only("layer/linear-fp32", "layer/conv2d-fp32", "layer/conv3d-fp32", "layer/conv3d-bf16")
    assert measure.main(small(out, "--cases", chosen, "--time-limit", "4")) == 0
    assert [(row["case"], row["status"]) for row in table.read(out)] == [("layer/linear-fp32", "untraced")]
    assert "3 cases were not reached within 4 s: --resume goes on" in capsys.readouterr().out

    stand_in(tmp_path, monkeypatch)
    assert measure.main(small(out, "--cases", chosen)) == 2  # the table is there
    assert "--resume goes on with it" in capsys.readouterr().err
    with open(out, "a") as file:
        file.write("layer/conv3d-bf16,lay")  # a line that was being written when somebody pulled the plug
    assert measure.main(small(out, "--cases", chosen, "--case-timeout", "1", "--resume")) == 0
    assert [(row["case"], row["status"]) for row in table.read(out)] == [
        ("layer/linear-fp32", "ok"),
        ("layer/conv2d-fp32", "failed"),
        ("layer/conv3d-fp32", "ok"),
        ("layer/conv3d-bf16", "ok"),
    ]
    before = out.read_text().splitlines()
    assert measure.main(small(out, "--cases", chosen, "--case-timeout", "1", "--resume")) == 0  # failed ones again
    after = out.read_text().splitlines()
    assert [line for line in before if "failed" not in line] == after[:-1]


def test_another_machines_table_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = stand_in(tmp_path, monkeypatch)
    table.append(out, {"case": "a", "torch": "1", "machine": "m", "device": "cpu", "scale": "small", "status": "ok"})
    assert measure.main(small(out, "--cases", "^layer/", "--resume")) == 2
    assert "is of another torch: 1, not 2" in capsys.readouterr().err


WRONG = {
    "no case of that name": (["--cases", "nothing"], "matches none"),
    "a pattern that is none": (["--cases", "("], "--cases '('"),
    "no time": (["--time-limit", "0"], "positive"),
    "a CPU without a file": (["--device", "cpu"], "--device cpu needs --out FILE"),
}


@pytest.mark.parametrize(("arguments", "said"), WRONG.values(), ids=WRONG)
def test_wrong_options_are_exit_2(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert measure.main(arguments) == 2
    assert said in capsys.readouterr().err


def test_the_list_names_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert measure.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.partition("\t")[0] for line in lines]
    assert len(set(names)) == len(names) >= 80
    assert any(
        line.startswith("stdiff/after-fp32\tstdiff/kitti_range_train_config_after.yaml Training.") for line in lines
    )


def test_without_a_card_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert measure.main(["--cases", "^layer/"]) == 2
    assert "found no GPU" in capsys.readouterr().err


def children(number: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with_parent = (entry / "stat").read_text().rpartition(")")[2].split() if (entry / "stat").exists() else []
            if len(with_parent) > 1 and with_parent[1] == str(number) and with_parent[0] != "Z":
                found.append(int(entry.name))
    return found


def alive(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_a_run_that_is_ended_leaves_its_lines_and_no_process(how: signal.Signals, tmp_path: Path) -> None:
    """The last case hangs; the table has the ones before it, and the processes end with the program."""
    out = tmp_path / "t.csv"
    script = tmp_path / "stand_in.py"
    script.write_text(
        STAND_IN.replace("SLOW_TRACES", "()").replace(
            "for line", "sys.path.insert(0, ROOT)\nfrom benchmarks.gpu.worker import _end_with\nimport threading\n"
            "threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()\nfor line", 1
        ).replace("ROOT", repr(str(ROOT)))
    )  # fmt: skip
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from benchmarks.gpu import measure; from pathlib import Path; "
    )
    code += f"measure.WORKER = Path({str(script)!r}); sys.exit(measure.main(sys.argv[1:]))"
    chosen = only("layer/linear-fp32", "layer/conv2d-fp32")
    process = subprocess.Popen(
        [sys.executable, "-c", code, *small(out, "--cases", chosen)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Tests that a shell runs in its background hand on that interrupts are ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        wait_until(lambda: out.exists() and table.read(out), "a line in the table")
        started = children(process.pid)
        assert started
        process.send_signal(how)
        process.wait(timeout=60)
        wait_until(lambda: not any(map(alive, started)), "the end of the processes that were started")
    finally:
        process.kill()
        process.wait()
    assert [row["case"] for row in table.read(out)] == ["layer/linear-fp32"]


def test_the_program_runs_as_a_script(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--list", "--cases", "^context"], cwd=tmp_path, capture_output=True
    )
    assert done.stdout.decode().split() == ["context/lazy", "context/eager"]
