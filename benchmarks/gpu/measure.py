"""Measures training steps on a GPU beside what memlint predicts for them, into one CSV.

    python benchmarks/gpu/measure.py                     # every case, on this machine's first card
    python benchmarks/gpu/measure.py --list
    python benchmarks/gpu/measure.py --cases '^decoder/.*bf16' --out decoder.csv
    python benchmarks/gpu/measure.py --resume            # what is not in the table yet
    python benchmarks/gpu/measure.py --device cpu --scale small --out cpu.csv    # the same path without a card

Each case is measured in a fresh process, so that its device bytes are those of a process of its own; the next
processes start and import meanwhile. Predictions (static, and traced under fake tensors) need no card and run beside
it, on the other cores. A line is on the disk as soon as both are known, so that an interrupted run loses nothing. A
case that fails has a line that says why. ``benchmarks/measured/README.md`` says what to do with the table.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.gpu import cases, table  # noqa: E402
from benchmarks.gpu.summary import summary  # noqa: E402
from memlint.measure.child import MARK, end  # noqa: E402

WORKER = Path(__file__).with_name("worker.py")
MEASURED = ROOT / "benchmarks" / "measured"
CPU, CUDA = "cpu", "cuda"

CASE_TIMEOUT_S, COMPILED_TIMEOUT_S, PREDICTION_TIMEOUT_S = 75.0, 180.0, 300.0
START_TIMEOUT_S = 120.0
LEAST_S = 5.0  # no case is begun with less time left
AHEAD = 3  # processes that start and import while the card is at work
SPARE_CORES = 4  # for the measuring process, and for those that start
PER_PROCESS = {CUDA: 1, CPU: 10_000}  # cases; the CPU has no context that the next case could inherit
OUTPUT_BYTES, OUTPUT_LINES = 4096, 2


class Lost(Exception):
    """A process that died or took too long; the text says which."""


class OutOfTime(Lost):
    """The whole run's time is up: the case was not at fault."""


class Child:
    """One process of ``worker.py``, which answers one task at a time."""

    def __init__(self, variables: dict[str, str]) -> None:
        self._mark = uuid.uuid4().hex
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  (read when the process is gone)
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            env={**os.environ, **variables, MARK: self._mark},
            start_new_session=True,
        )
        self.tasks = 0
        self._closed = False
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self._ready = False

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line.decode())
        self._answers.put("")

    def ask(self, task: dict[str, Any], timeout_s: float, deadline: float = math.inf) -> dict[str, Any]:
        """The answer to a task, for which the process has ``timeout_s`` once it has started.

        deadline  of ``time.monotonic()``, for the start as well
        Raises Lost (OutOfTime where the deadline was what it missed); the process is gone then.
        """
        assert self._process.stdin is not None
        if not self._ready:
            self._next(START_TIMEOUT_S, deadline)
            self._ready = True
        self.tasks += 1
        try:
            self._process.stdin.write(json.dumps(task).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise Lost(self._last_words()) from None
        answer: dict[str, Any] = json.loads(self._next(timeout_s, deadline))
        return answer

    def _next(self, timeout_s: float, deadline: float) -> str:
        left = max(deadline - time.monotonic(), 0.0)
        try:
            line = self._answers.get(timeout=min(timeout_s, left))
        except queue.Empty:
            self.close()
            if left < timeout_s:
                raise OutOfTime from None
            raise Lost(f"no answer after {timeout_s:.0f} s") from None
        if not line:
            raise Lost(self._last_words())
        return line

    def _last_words(self) -> str:
        status = self._process.wait()
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - OUTPUT_BYTES))
        lines = [line.strip() for line in self._output.read().decode("utf-8", "replace").splitlines() if line.strip()]
        said = f": {' / '.join(lines[-OUTPUT_LINES:])}" if lines else ""
        self.close()
        return f"the process ended with {'signal' if status < 0 else 'exit code'} {abs(status)}{said}"

    def close(self) -> None:
        """End it and whatever it started; the card's memory is free when this returns. May be called again."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        end(self._process, self._mark)


class Run:
    """One invocation: threads that ask processes, and the lines that come of it."""

    def __init__(self, options: argparse.Namespace, machine: dict[str, Any]) -> None:
        self.options = options
        self.card = machine.pop("uuid", "")
        self.machine = machine
        self.gpu = _catalogue_name(machine.get("gpu", ""))
        self.deadline: float = options.started + options.time_limit
        self.results: queue.Queue[tuple[str, cases.Case, dict[str, Any]] | None] = queue.Queue()
        self.stopped = threading.Event()
        self.children: list[Child] = []

    # -- processes

    def task(self, what: str, case: cases.Case) -> dict[str, Any]:
        options = self.options
        return {
            "do": what,
            "case": case.name,
            "scale": options.scale,
            "device": options.device,
            "gpu": self.gpu,
            "uuid": self.card,
            "histories": str(options.histories or ""),
        }

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def start(self, variables: dict[str, str]) -> Child:
        child = Child(variables)
        self.children.append(child)
        return child

    def measure(self, chosen: Sequence[cases.Case]) -> None:
        """The measuring thread: one case after another, in order."""
        variables = device_variables(self.options.device)
        limit = 1 if self.options.device == CUDA else PER_PROCESS[CPU]
        waiting: deque[Child] = deque()
        child: Child | None = None
        try:
            for at, case in enumerate(chosen):
                if self.stopped.is_set() or self.left() < LEAST_S:
                    break
                own = cases.CONTEXTS.get(case.family, {}) if case.kind == cases.CONTEXT else {}
                if own or child is None or child.tasks >= limit:
                    if child is not None:
                        child.close()
                    if own:
                        child = self.start({**variables, **own})
                    else:
                        ahead = min(AHEAD if limit == 1 else 0, len(chosen) - at - 1)
                        while len(waiting) < 1 + ahead:
                            waiting.append(self.start(variables))
                        child = waiting.popleft()
                try:
                    timeout_s = COMPILED_TIMEOUT_S if case.compiled else self.options.case_timeout
                    answer = child.ask(self.task("measure", case), timeout_s, self.deadline)
                except OutOfTime:
                    child = None
                    break
                except Lost as error:
                    answer, child = {"status": table.FAILED, "error": str(error)}, None
                if "status" not in answer:
                    answer = {**answer, "status": table.FAILED}
                self.results.put(("measured", case, answer))
                if own and child is not None:
                    child.close()
                    child = None
        finally:
            for one in (*waiting, *([child] if child is not None else [])):
                one.close()
            self.results.put(None)

    def predict(self, tasks: queue.SimpleQueue[cases.Case]) -> None:
        """A predicting thread: it and its like share the cases."""
        child: Child | None = None
        try:
            while not self.stopped.is_set() and self.left() >= LEAST_S:
                try:
                    case = tasks.get_nowait()
                except queue.Empty:
                    break
                child = child or self.start(device_variables(CPU))
                try:
                    answer = child.ask(self.task("predict", case), PREDICTION_TIMEOUT_S, self.deadline)
                except OutOfTime:
                    child = None
                    break
                except Lost as error:
                    answer, child = {"prediction_error": str(error)}, None
                if "error" in answer:
                    answer["prediction_error"] = answer.pop("error")
                self.results.put(("predicted", case, answer))
        finally:
            if child is not None:
                child.close()
            self.results.put(None)

    # -- lines

    def run(self, chosen: Sequence[cases.Case]) -> int:
        """Measure and predict; the number of lines written."""
        tasks: queue.SimpleQueue[cases.Case] = queue.SimpleQueue()
        predictable = [case for case in chosen if case.kind != cases.CONTEXT]
        for case in predictable:
            tasks.put(case)
        jobs = min(self.options.jobs, len(predictable))
        threads = [threading.Thread(target=self.measure, args=(chosen,))]
        threads += [threading.Thread(target=self.predict, args=(tasks,)) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        measured: dict[str, tuple[cases.Case, dict[str, Any]]] = {}
        predicted: dict[str, dict[str, Any]] = {case.name: {} for case in chosen if case.kind == cases.CONTEXT}
        written, running = 0, len(threads)
        try:
            while running:
                result = self.results.get()
                if result is None:
                    running -= 1
                    continue
                what, case, answer = result
                if what == "measured":
                    measured[case.name] = (case, answer)
                else:
                    predicted[case.name] = answer
                if case.name in measured and case.name in predicted:
                    written += 1
                    self.write(case, predicted[case.name], measured.pop(case.name)[1], f"{written}/{len(chosen)}")
        except BaseException:
            self.stopped.set()
            for child in self.children:
                child.close()
            raise
        finally:
            for thread in threads:
                thread.join()
        for case, answer in measured.values():  # time was up before their trace
            written += 1
            if answer.get("status") == table.OK:
                answer["status"] = table.UNTRACED
            self.write(case, {}, answer, f"{written}/{len(chosen)}")
        return written

    def write(self, case: cases.Case, predicted: dict[str, Any], measured: dict[str, Any], at: str) -> None:
        said = [text for text in (measured.get("error"), predicted.get("prediction_error")) if text]
        row: dict[str, Any] = {
            "case": case.name,
            "kind": case.kind,
            "family": case.family,
            "scale": self.options.scale,
            "device": self.options.device,
            "compiled": case.compiled,
            "probed": case.probed,
            "settings": cases.written(case),
            **{key: value for key, value in predicted.items() if key != "prediction_error"},
            **{key: value for key, value in measured.items() if key != "error"},
            **self.machine,
            "error": "; ".join(said),
            "measured_at": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ"),
        }
        row.update(table.errors(row))
        cells = table.append(self.options.out, row)
        if not self.options.quiet:
            print(f"[{at}] {_told(cells)}", file=sys.stderr, flush=True)


def _told(row: table.Row) -> str:
    parts = [row["case"], row["status"]]
    if row["measured_allocated_bytes"]:
        parts.append(f"{int(row['measured_allocated_bytes']) / 2**30:.3f} GiB allocated")
    for column, title in (("trace_allocated_error_pct", "trace"), ("static_device_error_pct", "static, device")):
        if row[column]:
            parts.append(f"{title} {float(row[column]):+.2f} %")
    if row["measure_seconds"]:
        parts.append(f"{float(row['measure_seconds']):.1f} s")
    if row["error"]:
        parts.append(row["error"][:200])
    return ", ".join(parts)


def device_variables(device: str) -> dict[str, str]:
    """The environment of a process that works on the card, or that must not see it."""
    if device == CUDA:
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}


def _catalogue_name(gpu: str) -> str:
    """The card as memlint's catalogue has it; "" for one that it does not know."""
    from memlint.data.catalogue import UnknownGpu, parse_gpu

    try:
        return parse_gpu(gpu)[0].name if gpu else ""
    except UnknownGpu:
        return ""


# -- the command


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="measure.py", description=(__doc__ or "").splitlines()[0])
    made.add_argument("--device", choices=(CUDA, CPU), default=CUDA)
    made.add_argument("--scale", choices=(cases.REAL, cases.SMALL_SCALE), default=cases.REAL, help="sizes of the cases")
    made.add_argument("--cases", metavar="REGEX", default="", help="only cases whose name it matches somewhere")
    made.add_argument("--out", type=Path, metavar="FILE", help="the table; by default benchmarks/measured/<card>.csv")
    made.add_argument("--resume", action="store_true", help="go on with a table: measure what it lacks or what failed")
    made.add_argument("--histories", type=Path, metavar="FOLDER", help="write allocator histories of some cases there")
    made.add_argument("--time-limit", type=float, default=540.0, metavar="SECONDS", help="of the whole run")
    made.add_argument("--case-timeout", type=float, default=CASE_TIMEOUT_S, metavar="SECONDS")
    cores = os.cpu_count() or 1
    made.add_argument("--jobs", type=int, default=max(1, cores - SPARE_CORES), help="processes that predict")
    made.add_argument("--list", action="store_true", help="print the cases and how they are set")
    made.add_argument("--quiet", action="store_true", help="no line per case")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 for a run, whatever its cases did; 2 for options that cannot be used, or where there is no card."""
    options = parser().parse_args(arguments)
    options.started = time.monotonic()
    try:
        chosen = [case for case in cases.cases(options.scale) if re.search(options.cases, case.name)]
    except re.error as error:
        return _refused(f"--cases {options.cases!r}: {error}")
    if options.list:
        for case in chosen:
            print(f"{case.name}\t{'compiled ' if case.compiled else ''}{cases.written(case)}")
        return 0
    if not chosen:
        return _refused(f"--cases {options.cases!r} matches none; --list shows them all")
    if options.time_limit <= 0 or options.case_timeout <= 0 or options.jobs < 1:
        return _refused("--time-limit, --case-timeout and --jobs are positive")
    if options.device == CPU and options.out is None:
        return _refused("--device cpu needs --out FILE: what a CPU counts has no place among the cards' tables")
    child = Child(device_variables(options.device))
    try:
        machine = child.ask({"do": "machine", "device": options.device}, START_TIMEOUT_S)
    except Lost as error:
        return _refused(str(error))
    finally:
        child.close()
    if "error" in machine:
        return _refused(str(machine["error"]))
    if options.out is None:
        options.out = MEASURED / f"{_catalogue_name(machine['gpu']) or _slug(machine['gpu'])}.csv"
    if options.histories is None and options.device == CUDA:
        options.histories = options.out.parent
    try:
        done = _resumed(options, machine)
    except (OSError, ValueError) as error:
        return _refused(str(error))
    wanted = [case for case in chosen if case.name not in done]
    run = Run(options, machine)
    written = run.run(wanted) if wanted else 0
    rows = table.read(options.out) if options.out.exists() else []
    print(summary(rows))
    missing = len(wanted) - written
    if missing:
        print(f"{missing} cases were not reached within {options.time_limit:g} s: --resume goes on with them")
    print(f"{time.monotonic() - options.started:.0f} s, {options.out}")
    return 0


def _resumed(options: argparse.Namespace, machine: dict[str, Any]) -> set[str]:
    """Names of the cases that the table has already; the others' lines are taken out of it. Raises ValueError."""
    out: Path = options.out
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        return set()
    if not options.resume:
        raise ValueError(f"{out} is there: --resume goes on with it, --out names another")
    rows = table.read(out)
    own = table.cells(
        {
            key: value
            for key, value in {**machine, "scale": options.scale, "device": options.device}.items()
            if key != "uuid"
        }
    )
    for column in table.SAME:
        theirs = {row[column] for row in rows} - {own[column]}
        if theirs:
            raise ValueError(f"{out} is of another {column}: {', '.join(sorted(theirs))}, not {own[column]}")
    kept = [row for row in rows if row["status"] in table.FINISHED]
    table.rewrite(out, kept)
    return {row["case"] for row in kept}


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _refused(message: str) -> int:
    print(f"measure.py: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
