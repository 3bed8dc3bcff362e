"""A probe of a run on several devices: torchrun, a process for each, a real process group (Gloo, on the CPU)."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from memlint.measure import child, ranks, trace
from memlint.measure.child import MeasureError, TimedOut, marked, measure
from memlint.measure.request import estimate_from
from tests.measure.test_child import runs, time_is_up_when
from tests.measure.training_runs import MODEL, plain_request

PARAMETERS = 64 * 256 + 256 + 256 * 64 + 64
WEIGHTS = 4 * PARAMETERS
GLOO_BYTES = 1024
STEP = "    return model(batch)"
ONLY_RANK_1 = "    if __import__('os').environ['RANK'] == '1':\n        {does}\n" + STEP


@pytest.fixture(autouse=True)
def marks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The marks of the measurements that a test starts; their scratch folders are its own."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    found: list[str] = []
    end = child.end
    monkeypatch.setattr(child, "end", lambda process, mark: (found.append(mark), end(process, mark)))
    return found


def spread(folder: Path, strategy: str, model: str = MODEL, **facts: Any) -> dict[str, Any]:
    """A request for two ranks."""
    stated = {"optimizer": "adamw", "optimizer_implementation": "foreach", "device_count": 2}
    request = plain_request(folder, {**stated, "parallelism.strategy": strategy, **facts}, model=model)
    return {**request, "kind": "probe", "device": "cpu"}


def nothing_left(marks: list[str], tmp_path: Path) -> None:
    assert len(marks) == 1
    assert marked(marks[0]) == []
    assert list((tmp_path / "scratch").iterdir()) == []


def test_ddp_takes_the_buckets_on_top(tmp_path: Path, marks: list[str]) -> None:
    lines: list[str] = []
    request = spread(tmp_path / "project", "ddp")
    answer = measure(request, timeout_s=120, progress=lines.append)
    found = estimate_from(answer["estimate"])
    assert found.parameters == PARAMETERS
    for component, copies in (("parameters", 1), ("gradients", 1), ("optimizer", 3), ("communication", 1)):
        assert found.component_bytes(component) == pytest.approx(copies * WEIGHTS, rel=0.01), component
    assert answer["notes"][0] in {f"rank {rank} of 2, all alike (gloo)" for rank in (0, 1)}
    assert lines == ["building the model", "warm-up step", "measured step"]  # of one rank
    nothing_left(marks, tmp_path)
    sys.modules.pop("memlint_model", None)
    traced = trace.answer({**request, "kind": "trace"})["estimate"]
    # But for what Gloo's threads let go of a moment later.
    assert found.phases == pytest.approx(traced.phases, abs=GLOO_BYTES)
    assert found.allocated_bytes == pytest.approx(traced.allocated_bytes, abs=GLOO_BYTES)


def test_fsdp2_keeps_half_of_the_states_on_each_of_two(tmp_path: Path, marks: list[str]) -> None:
    answer = measure(spread(tmp_path / "project", "fsdp2"), timeout_s=120)
    found = estimate_from(answer["estimate"])
    assert found.parameters == PARAMETERS  # of the whole model
    assert found.component_bytes("parameters") == pytest.approx(WEIGHTS / 2, rel=0.01)
    assert found.phases["forward"] >= WEIGHTS / 2 * 3 + WEIGHTS  # shard, two moments, and all weights gathered
    assert answer["notes"][0].startswith("rank ")
    nothing_left(marks, tmp_path)


def test_one_ranks_failure_ends_them_all(tmp_path: Path, marks: list[str]) -> None:
    """The other rank waits for it in the first all-reduce, and only loses it there."""
    model = MODEL.replace(STEP, ONLY_RANK_1.format(does="raise ValueError('no luck')"))
    with pytest.raises(MeasureError, match=r"rank 1 of 2: .*raised ValueError: no luck \(.*model.py:\d+"):
        measure(spread(tmp_path / "project", "ddp", model), timeout_s=120)
    nothing_left(marks, tmp_path)


def fine(device_bytes: int) -> dict[str, Any]:
    return {"estimate": [None] * 5 + [device_bytes], "notes": [], "ended": 1.0}


LOST = {"error": "connection reset", "ended": 2.0}
DIED = {**fine(3), "verdict": "OOM", "ended": 1.0}
JUDGED: dict[str, tuple[list[dict[str, Any] | None], dict[int, int], str]] = {
    # answers, exit codes -> which rank's word counts
    "all alike": ([fine(5), fine(5)], {}, "rank 0 of 2, all alike"),
    "a kilobyte apart": ([fine(778 * 2**10), fine(779 * 2**10)], {}, "rank 1 of 2, all alike"),
    "one is fuller": ([fine(5 * 2**20), fine(7 * 2**20)], {}, "rank 1 of 2, the fullest; the least took 5.00 MiB"),
    "one ran out, the other lost it": ([LOST, DIED], {0: 3, 1: 3}, "rank 1 of 2, the first without memory"),
    "one raised first": ([LOST, {"error": "no luck", "ended": 1.0}], {0: 3}, "rank 1 of 2: no luck"),
    "one was killed, the other lost it": ([LOST, None], {0: 3, 1: -9}, "rank 1 of 2: .*ended by SIGKILL.*said: so"),
    "one ended, the other was ended": ([None, None], {0: -15, 1: 7}, "rank 1 of 2: .* exit code 7"),
    "nobody said anything": ([fine(5), None], {}, "rank 1 of 2: the measuring process ended with exit code 0"),
}


@pytest.mark.parametrize(("answers", "codes", "said"), JUDGED.values(), ids=JUDGED)
def test_the_rank_that_matters_is_named(answers: list[Any], codes: dict[int, int], said: str) -> None:
    if ": " in said:
        with pytest.raises(MeasureError, match=said):
            ranks.judged(answers, codes, ["so"])
    else:
        assert ranks.judged(answers, codes, ["so"])["rank"] == said


def test_the_time_limit_ends_every_rank(tmp_path: Path, marks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    up = tmp_path / "up"
    up.mkdir()
    sleeping = f"    __import__('pathlib').Path({str(up)!r}, str(__import__('os').getpid())).touch()\n" + (
        "    __import__('time').sleep(600)\n" + STEP
    )
    time_is_up_when(lambda: len(list(up.iterdir())) == 2, monkeypatch)
    with pytest.raises(TimedOut, match="no answer after 600 s"):
        measure(spread(tmp_path / "project", "ddp", MODEL.replace(STEP, sleeping)), timeout_s=600)
    assert not any(runs(int(path.name)) for path in up.iterdir())
    nothing_left(marks, tmp_path)


def test_missing_devices_are_counted_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(MeasureError, match=r"over 8 devices, and this machine has 1; state fewer with -o"):
        ranks.launch({"device": "cuda", "folder": str(tmp_path)}, 8)
    assert list(tmp_path.glob("answer*")) == []
