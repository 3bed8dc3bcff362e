"""A plan is what `check` says of the config that it writes, and that config is clean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from memlint.architectures.torchtune import BUILDERS
from memlint.check import check_paths
from memlint.cli.main import main
from memlint.data.catalogue import gpu
from memlint.planning import torchtune
from memlint.planning.rows import MOST, Planner, Row, most
from memlint.planning.starters import METHODS, TRAINERS, Wanted, starter
from memlint.reports.report import RunReport
from memlint.settings import Resolver
from memlint.tape.estimate import FITS

pytestmark = pytest.mark.usefixtures("answers_kept")

MODELS = (
    "Qwen/Qwen2.5-0.5B Qwen/Qwen2.5-7B Qwen/Qwen3-8B Qwen/Qwen3-0.6B meta-llama/Llama-3.2-1B "
    "NousResearch/Meta-Llama-3.1-8B meta-llama/Llama-2-7b-hf mistralai/Mistral-7B-v0.1 google/gemma-2b "
    "google/gemma-2-9b google/gemma-3-1b-pt microsoft/phi-2 microsoft/Phi-3-mini-4k-instruct EleutherAI/pythia-1.4b "
    "EleutherAI/gpt-neox-20b facebook/opt-1.3b bigscience/bloom-1b7 tiiuae/falcon-7b gpt2 HuggingFaceTB/SmolLM2-1.7B "
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0 deepseek-ai/deepseek-llm-7b-base 01-ai/Yi-6B stabilityai/stablelm-2-1_6b "
    "bigcode/starcoder2-3b mistralai/Mixtral-8x7B-v0.1 Qwen/Qwen3-30B-A3B allenai/OLMo-2-1124-7B "
    "ibm-granite/granite-3.1-2b-base CohereForAI/c4ai-command-r7b-12-2024"
)
SMALL = "Qwen/Qwen2.5-0.5B"
CARD = "h200-141gb"
CHEAP = "rtx4060"


OF_TORCHTUNE = (
    "meta-llama/Llama-3.1-8B NousResearch/Meta-Llama-3.1-8B meta-llama/Llama-3.2-1B meta-llama/Llama-3.2-3B-Instruct "
    "Qwen/Qwen2.5-0.5B Qwen/Qwen2.5-1.5B-Instruct Qwen/Qwen2.5-3B Qwen/Qwen2.5-7B-Instruct"
)
HUB = [name for name in TRAINERS if name != "torchtune"]  # those that take any model of the hub
SUPPORTED = [(trainer, method) for trainer in TRAINERS for method in METHODS if trainer in HUB or "dpo" not in method]


def cases() -> list[object]:
    """Every model with every trainer. The methods take turns, so that each trainer has each of them five times, and so
    does one card with eight."""
    names, models = list(METHODS), MODELS.split()
    found = [(trainer, at + 2 * turn, model) for turn, trainer in enumerate(HUB) for at, model in enumerate(models)]
    found += [("torchtune", at, model) for at, model in enumerate(OF_TORCHTUNE.split())]
    return [
        pytest.param(
            trainer,
            model,
            method := names[at % (3 if trainer == "torchtune" else len(names))],
            devices := (1, 8)[at // len(names) % 2],
            id=f"{trainer} {model} {method} {devices}",
        )
        for trainer, at, model in found
    ]


def written(folder: Path, trainer: str, wanted: Wanted, card: str = "") -> RunReport:
    """What `check` says of a starter in a folder of its own."""
    folder.mkdir()
    (folder / ".git").mkdir()
    path = folder / f"mine{TRAINERS[trainer].suffix}"
    path.write_text(starter(trainer, wanted, path.name))
    report = check_paths([str(path)], Resolver({"gpu": card} if card else {}, isolated=True))
    assert report.errors == report.skipped == ()
    (run,) = report.runs
    return run


@pytest.mark.parametrize(("trainer", "model", "method", "devices"), cases())
def test_a_row_is_what_check_says_of_the_config(
    trainer: str, model: str, method: str, devices: int, tmp_path: Path
) -> None:
    wanted = Wanted(model, method, 1024, 1, devices)
    (row,) = Planner(trainer).rows(wanted, ())
    run = written(tmp_path / "with a card", trainer, wanted, CARD)
    assert row.estimate is not None, row.why
    assert run.estimate is not None
    alone = written(tmp_path / "without", trainer, wanted)
    assert alone.estimate == row.estimate
    assert run.facts["method"].value == METHODS[method].stage
    assert run.facts["micro_batch_size"].value == 1
    assert (run.facts["device_count"].value if "device_count" in run.facts else 1) == devices
    if run.verdict == FITS:
        assert [finding.message for finding in run.findings] == []


@pytest.mark.parametrize(("trainer", "method"), SUPPORTED)
def test_the_largest_batch_fits_and_one_more_does_not(method: str, trainer: str, tmp_path: Path) -> None:
    wanted = Wanted(SMALL, method, 2048, 1, 1)
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
    text = starter(trainer, Wanted(model, method, 512, 3, 4), "mine.yaml")
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
    code, said, note = plan(SMALL, "--method", "lora", "--gpu", CHEAP, "--write", trainer, "--output-format", "json")
    assert code == 0
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
    code, _, note = plan(SMALL, "--method", "lora", "--write", trainer)
    assert code == 2
    assert "is not written over" in note
    assert (here / name).read_bytes() == before


def test_a_table_without_a_card_names_cards_that_hold_it(here: Path) -> None:
    code, said, _ = plan(SMALL, "--method", "full", "--devices", "2")
    assert code == 0
    assert "smallest cards that hold it" in said
    (line,) = [line for line in said.splitlines() if line.startswith("  full")]
    name = line.split()[-1]
    (row,) = Planner("trl").rows(Wanted(SMALL, "full", 2048, 1, 2), ())
    assert row.estimate is not None
    assert row.estimate.verdict(gpu(name).usable_bytes) == FITS


@pytest.mark.parametrize("trainer", HUB)
@pytest.mark.parametrize("method", ["lora", "qlora", "dpo-lora", "dpo-qlora"])
def test_a_card_without_bf16_gets_fp16(method: str, trainer: str, tmp_path: Path) -> None:
    (row,) = Planner(trainer).rows(Wanted(SMALL, method, 512, 1, 1), [gpu("t4")])
    run = written(tmp_path / "t4", trainer, row.wanted, "t4")
    assert (row.wanted.half, run.estimate, run.verdict) == ("fp16", row.estimate, FITS)
    assert "MEM310" not in {finding.code for finding in run.findings}
    assert run.facts["compute_dtype"].value == "float16"


@pytest.mark.parametrize(("trainer", "method"), [("trl", "full"), ("axolotl", "dpo"), ("torchtune", "lora")])
def test_what_needs_bf16_is_not_planned_for_a_card_without(trainer: str, method: str) -> None:
    (row,) = Planner(trainer).rows(Wanted("Qwen/Qwen2.5-0.5B", method, 512, 1, 1), [gpu("t4")])
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
    code, said, _ = plan(SMALL, "--method", "lora", "--gpu", "t4", "--gpu", "a100-80gb x4", "--devices", "1")
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
    from memlint.planning.text import as_dict, render
    from memlint.reports.full import Style

    rows = [Row(Wanted("a/b", "full", 10, 1, 1), gpu("t4"), None, "nobody knows\x1b[31m")]
    said = render(rows, "trl", Style())
    assert "UNKNOWN" in said
    assert "unknown: nobody knows\\x1b[31m" in said
    assert as_dict(rows, "trl")["rows"][0]["reason"].startswith("nobody knows")
