"""A plan is what `check` says of the config that it writes, and that config is clean."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from benchmarks.plan import MODELS, OF_TORCHTUNE, unclean, written
from memlint.architectures.torchtune import BUILDERS
from memlint.check import check_paths
from memlint.cli.main import main
from memlint.cli.output import Stop, create_files
from memlint.data.catalogue import gpu
from memlint.planning import torchtune
from memlint.planning.rows import MOST, Planner, Row, most
from memlint.planning.starters import DEEPSPEED, METHODS, ONE, SHARDINGS, TRAINERS, Unplanned, Wanted, starter
from memlint.planning.text import as_dict, render
from memlint.reports.full import Style
from memlint.reports.report import RunReport
from memlint.settings import Resolver
from memlint.tape.estimate import FITS, Interval

pytestmark = pytest.mark.usefixtures("answers_kept")

ROOT = Path(__file__).parents[2]
SMALL = "Qwen/Qwen2.5-0.5B"
CARD = "h200-141gb"
CHEAP = "rtx4060"

SCHEMA = Draft202012Validator(json.loads((ROOT / "schemas" / "plan.schema.json").read_text(encoding="utf-8")))

HUB = [name for name in TRAINERS if name != "torchtune"]  # those that take any model of the hub
SUPPORTED = [(trainer, method) for trainer in TRAINERS for method in METHODS if trainer in HUB or "dpo" not in method]
# Each method with every other trainer, and each trainer with every other method.
IN_TURN = [pair for pair in SUPPORTED if (list(TRAINERS).index(pair[0]) + list(METHODS).index(pair[1])) % 2]


PLACES = {ONE: 1, **dict.fromkeys(SHARDINGS, 8)}  # sharding -> devices


def cases() -> list[object]:
    """Every model with every trainer. Methods and shardings take turns, so that each trainer has each method in each
    sharding once, and each model with each trainer another."""
    found: list[object] = []
    for turn, trainer in enumerate(TRAINERS):
        named = MODELS if trainer in HUB else OF_TORCHTUNE
        methods = [method for method in METHODS if (trainer, method) in SUPPORTED]
        places = [how for how in PLACES if how in (ONE, *TRAINERS[trainer].shardings)]
        turns = [(method, how) for how in places for method in methods]
        for at, model in enumerate(named):
            method, how = turns[(at + 7 * turn) % len(turns)]
            if (how, method) in TRAINERS[trainer].refused:
                how = ONE
            found.append(pytest.param(trainer, model, method, how, id=f"{trainer} {model} {method} {how}"))
    return found


@pytest.mark.parametrize(("trainer", "model", "method", "sharding"), cases())
def test_a_row_is_what_check_says_of_the_config(
    trainer: str, model: str, method: str, sharding: str, tmp_path: Path
) -> None:
    wanted = Wanted(model, method, 1024, 1, PLACES[sharding], sharding)
    (row,) = Planner(trainer).rows(wanted, ())
    run = written(tmp_path / "with a card", trainer, wanted, CARD)
    assert row.estimate is not None, row.why
    assert run.estimate is not None
    alone = written(tmp_path / "without", trainer, wanted)
    assert alone.estimate == row.estimate
    assert run.facts["method"].value == METHODS[method].stage
    assert run.facts["micro_batch_size"].value == 1
    assert (run.facts["device_count"].value if "device_count" in run.facts else 1) == wanted.devices
    assert shared(run) == sharding
    assert run.facts.get("checkpointing", run.facts["method"]).value == "full"
    assert unclean(run, wanted) == []


def shared(run: RunReport) -> str:
    """How the devices of a run share it, in a plan's words."""
    facts = {name: run.facts[name].value for name in run.facts if name.startswith("parallelism.")}
    strategy = facts.get("parallelism.strategy", "none")
    if strategy == "zero":
        return f"zero{facts['parallelism.zero_stage']}"
    return {"none": ONE, "ddp": "ddp", "fsdp2": "fsdp"}[strategy]


@pytest.mark.parametrize(("trainer", "method"), IN_TURN)
def test_the_largest_batch_fits_and_one_more_does_not(method: str, trainer: str, tmp_path: Path) -> None:
    wanted = Wanted(SMALL, method, 2048, 1, 1, ONE)
    (row,) = Planner(trainer).rows(wanted, [gpu("rtx4090")])
    assert row.batch
    assert row.newest_batch is not None
    assert row.batch <= row.newest_batch
    at = written(tmp_path / "at", trainer, wanted._replace(micro_batch=row.batch), "rtx4090")
    beyond = written(tmp_path / "beyond", trainer, wanted._replace(micro_batch=row.batch + 1), "rtx4090")
    assert at.estimate == row.filled
    assert at.verdict == FITS
    assert beyond.verdict != FITS
    assert row.tokens == row.batch * 2048


@given(st.integers(1, MOST + 100))
def test_the_search_is_exact(limit: int) -> None:
    asked: list[int] = []

    def fits(batch: int) -> bool:
        asked.append(batch)
        return batch <= limit

    assert most(fits) == min(limit, MOST)
    assert len(asked) <= 26
    assert all(batch <= 2 * MOST for batch in asked)


@pytest.mark.parametrize(("trainer", "method"), SUPPORTED)
def test_a_starter_says_what_is_asked_for(method: str, trainer: str) -> None:
    model = "llama-3.2-1b" if trainer == "torchtune" else "some/model-7b"
    how = "ddp" if trainer == "axolotl" else "fsdp"
    (text,) = starter(trainer, Wanted(model, method, 512, 3, 4, how), "mine.yaml").values()
    first, _, rest = text.partition("\n")
    assert first.startswith("# ")
    assert "mine.yaml" in first
    assert "4" in first
    values = yaml.safe_load(rest)
    sections = [value for value in values.values() if isinstance(value, dict)]
    flat = [value for part in (values, *sections) for value in part.values() if isinstance(value, (str, int))]
    assert {512, 3} <= set(flat)
    assert any(model in str(value) for value in flat)
    assert isinstance(values["optimizer"]["lr"] if trainer == "torchtune" else values["learning_rate"], float)


def plan(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, ["plan", *words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    folder = tmp_path / "here"
    (folder / ".git").mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("trainer", TRAINERS)
def test_what_is_written_is_the_row(trainer: str, here: Path) -> None:
    words = ("--method", "lora", "--gpu", CHEAP, "--devices", "1", "--write", trainer)
    code, said, note = plan(SMALL, *words, "--output-format", "json")
    assert code == 0
    SCHEMA.validate(json.loads(said))
    row = json.loads(said)["rows"][0]
    name = f"qwen2.5-0.5b-lora{TRAINERS[trainer].suffix}"
    assert f"memlint check {name} --gpu {CHEAP}" in note
    done = CliRunner().invoke(main, ["check", name, "--gpu", CHEAP, "--output-format", "json"])
    (file,) = json.loads(done.stdout)["files"]
    estimate = file["estimate"]
    assert {key: estimate[key] for key in ("device_bytes", "low_bytes", "high_bytes")} == row["filled"]
    assert [finding["message"] for finding in file["findings"] if finding["severity"] == "error"] == []
    assert estimate["verdict"] == row["verdict"] == FITS
    before = (here / name).read_bytes()
    code, _, note = plan(SMALL, "--method", "lora", "--devices", "1", "--write", trainer)
    assert code == 2
    assert "is not written over" in note
    assert (here / name).read_bytes() == before


ZERO3 = (SMALL, "--method", "lora", "--devices", "8", "--sharding", "zero3", "--write", "trl")


def test_a_config_and_deepspeeds_beside_it(here: Path) -> None:
    code, said, note = plan(*ZERO3, "--output-format", "json")
    assert code == 0
    name, beside = "qwen2.5-0.5b-lora.yaml", "qwen2.5-0.5b-lora.zero3.json"
    assert f"written to {name} and {beside}: memlint check {name}" in note
    assert json.loads((here / beside).read_text()) == DEEPSPEED["zero3"]
    (row,) = json.loads(said)["rows"]
    done = CliRunner().invoke(main, ["check", name, "--output-format", "json"])
    (file,) = json.loads(done.stdout)["files"]
    assert {key: file["estimate"][key] for key in row["one_sample"]} == row["one_sample"]
    (run,) = check_paths([name], Resolver({}, isolated=True)).runs
    assert run.facts["parallelism.zero_stage"].path.endswith(beside)


@pytest.mark.parametrize("there", ["qwen2.5-0.5b-lora.yaml", "qwen2.5-0.5b-lora.zero3.json"])
def test_both_files_are_written_or_none(there: str, here: Path) -> None:
    (here / there).write_text("mine")
    code, _, note = plan(*ZERO3)
    assert (code, f"{there} is there already" in note) == (2, True)
    assert sorted(path.name for path in here.iterdir()) == [".git", there]
    assert (here / there).read_text() == "mine"


def test_a_file_that_cannot_be_made_takes_the_other_with_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = os.open

    def failing(path: str, flags: int, mode: int) -> int:
        if path.endswith(".json"):
            raise OSError(28, "No space left on device")
        return made(path, flags, mode)

    monkeypatch.setattr("memlint.cli.output.os.open", failing)
    with pytest.raises(Stop, match=r"b.json: cannot be written: No space left"):
        create_files({"a.yaml": "a", "b.json": "b"})
    assert [path.name for path in here.iterdir()] == [".git"]


@pytest.mark.parametrize(
    ("trainer", "method", "how", "why"),
    [
        ("torchtune", "lora", "ddp", "torchtune is planned for fsdp on several devices, not for ddp"),
        ("axolotl", "dpo-qlora", "fsdp", "Axolotl refuses DPO over four bits with FSDP2"),
    ],
)
def test_a_sharding_that_a_trainer_does_not_take(trainer: str, method: str, how: str, why: str) -> None:
    with pytest.raises(Unplanned, match=why):
        starter(trainer, Wanted("meta-llama/Llama-3.2-1B", method, 512, 1, 8, how), "mine.yaml")


def test_shardings_stand_in_the_order_in_which_they_are_asked_for(here: Path) -> None:
    words = ("--sharding", "zero3", "--sharding", "ddp", "--trainer", "llamafactory")
    code, said, _ = plan(SMALL, "--method", "lora", *words)
    assert code == 0
    rows = [line.split()[:3] for line in said.splitlines() if line.startswith("  lora")]
    assert rows == [["lora", "1", "none"], ["lora", "8", "zero3"], ["lora", "8", "ddp"]]


def test_the_table_of_a_card_has_room_in_a_hundred_columns() -> None:
    """The methods and shardings that are shown where nobody says, of runs that fit and of some that do not."""
    (known,) = Planner("trl").rows(Wanted(SMALL, "lora", 2048, 1, 1, ONE), ())
    assert known.estimate is not None
    low, high = 1020 << 30, 2040 << 30
    large = known.estimate._replace(device_bytes=low, device_interval=Interval(low, high))
    runs = [
        Wanted(SMALL, method, 2048, 1, count, how)
        for method in ("full", "lora", "qlora")
        for count, how in ((1, ONE), (4096, "ddp"), (4096, "fsdp"))
    ]
    for batch in (0, MOST):
        rows = [Row(run, gpu(CARD), large, "", batch, large if batch else None, MOST) for run in runs]
        lines = render(rows, "trl", Style()).splitlines()
        assert max(map(len, lines)) <= 100, "\n".join(lines)


def test_a_table_without_a_card_names_cards_that_hold_it(here: Path) -> None:
    code, said, _ = plan(SMALL, "--method", "full", "--devices", "2", "--sharding", "fsdp")
    assert code == 0
    assert "smallest cards that hold it" in said
    (line,) = [line for line in said.splitlines() if line.startswith("  full")]
    name = line.split()[-1]
    (row,) = Planner("trl").rows(Wanted(SMALL, "full", 2048, 1, 2, "fsdp"), ())
    assert row.estimate is not None
    assert row.estimate.verdict(gpu(name).usable_bytes) == FITS


@pytest.mark.parametrize("trainer", HUB)
@pytest.mark.parametrize("method", ["lora", "qlora", "dpo-lora", "dpo-qlora"])
def test_a_card_without_bf16_gets_fp16(method: str, trainer: str, tmp_path: Path) -> None:
    (row,) = Planner(trainer).rows(Wanted(SMALL, method, 512, 1, 1, ONE), [gpu("t4")])
    run = written(tmp_path / "t4", trainer, row.wanted, "t4")
    assert (row.wanted.half, run.estimate, run.verdict) == ("fp16", row.estimate, FITS)
    assert "MEM310" not in {finding.code for finding in run.findings}
    assert run.facts["compute_dtype"].value == "float16"


@pytest.mark.parametrize(("trainer", "method"), [("trl", "full"), ("axolotl", "dpo"), ("torchtune", "lora")])
def test_what_needs_bf16_is_not_planned_for_a_card_without(trainer: str, method: str) -> None:
    (row,) = Planner(trainer).rows(Wanted(SMALL, method, 512, 1, 1, ONE), [gpu("t4")])
    assert row.estimate is None
    assert row.why


def test_what_a_trainer_does_not_have_is_unknown_and_says_why(here: Path) -> None:
    code, said, _ = plan("meta-llama/Llama-3.2-1B", "--trainer", "torchtune", "--method", "full", "--method", "dpo")
    assert code == 0
    assert "unknown: torchtune is planned for full, lora and qlora, not for dpo" in said
    code, _, note = plan("google/gemma-2b", "--trainer", "torchtune")
    assert code == 2
    assert "it is not known how torchtune builds google/gemma-2b" in note


def test_torchtune_has_the_builders() -> None:
    for found in torchtune.MODELS.values():
        assert found.builder in BUILDERS


def test_several_cards_and_several_of_one(here: Path) -> None:
    words = ("--method", "lora", "--gpu", "t4", "--gpu", "a100-80gb x4", "--devices", "1", "--sharding", "ddp")
    code, said, _ = plan(SMALL, *words)
    assert code == 0
    assert [line.split(",")[0] for line in said.splitlines() if line.endswith("GiB") and "," in line] == [
        "t4",
        "a100-80gb",
    ]
    rows = [line.split()[:2] for line in said.splitlines() if line.startswith("  lora")]
    assert rows == [["lora", "1"], ["lora", "4"]]


def test_a_config_of_ones_own_is_a_model(here: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 1000,
    }
    (here / "config.json").write_text(json.dumps(config))
    assert plan("nobody/mine")[0] == 2
    code, said, _ = plan("nobody/mine", "--model-config", "config.json", "--method", "full")
    assert code == 0
    assert "nobody/mine" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nobody/nothing-7b",), "nobody/nothing-7b"),
        (("../x",), "is no id of a model"),
        (("-x",), "No such option"),
        ((SMALL, "--gpu", "nosuch"), "is not in the catalogue"),
        ((SMALL, "--method", "magic"), "magic"),
        ((SMALL, "--output-file", "x"), "goes with --write"),
        ((SMALL, "--devices", "1", "--sharding", "ddp"), "--sharding is of several devices"),
        (
            ("NousResearch/Meta-Llama-3.1-8B", "--method", "full", "--gpu", CHEAP, "--devices", "1", "--write", "trl"),
            "lacks",
        ),
    ],
)
def test_what_cannot_be_planned_is_said(words: tuple[str, ...], said: str, here: Path) -> None:
    code, _, note = plan(*words)
    assert code == 2
    assert said in note
    assert [path.name for path in here.iterdir()] == [".git"]


def test_a_row_without_an_estimate_stands_in_the_table() -> None:
    rows = [Row(Wanted("a/b", "full", 10, 1, 1, ONE), gpu("t4"), None, "nobody knows\x1b[31m")]
    said = render(rows, "trl", Style())
    assert "UNKNOWN" in said
    assert "unknown: nobody knows\\x1b[31m" in said
    SCHEMA.validate(as_dict(rows, "trl"))
    assert as_dict(rows, "trl")["rows"][0]["reason"].startswith("nobody knows")


@pytest.mark.parametrize(("newest", "says"), [(2, False), (5, True)], ids=["alike", "more with the newest"])
def test_the_two_largest_batches_are_told_apart_where_they_differ(newest: int, says: bool) -> None:
    (known,) = Planner("trl").rows(Wanted(SMALL, "lora", 2048, 1, 1, ONE), ())
    row = Row(Wanted(SMALL, "lora", 2048, 1, 1, ONE), gpu(CARD), known.estimate, "", 2, known.estimate, newest)
    assert ("newest: with the newest alone" in render([row], "trl", Style())) is says
