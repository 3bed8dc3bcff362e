"""A family names its trainer in its schema, and what the trainer does is said once."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from memlint import estimates
from memlint.dialects import base, registry
from memlint.dialects import schema as schemas
from memlint.documents.load import load
from memlint.releases import BEHAVIOURS
from memlint.trainers.table import ALWAYS, LOG_PROBABILITIES, LOSS, NONE, SCORES, TRAINERS, trainer

SFT = "model_name_or_path: Qwen/Qwen2.5-0.5B\nper_device_train_batch_size: 4\nmax_length: 2048\n"


def headers() -> Iterator[tuple[str, Any]]:
    for name in schemas.families():
        yield name, schemas.header(name).get("trainer")


def named_by(named: Any) -> set[str]:
    """The rows of the table that a header names; a library stands for its trainers."""
    names = [named] if isinstance(named, str) else list(named.values())
    return {row for name in names for row in TRAINERS if row.startswith(name + ".")} | (set(names) - {"trl"})


NAMED = [(family, named) for family, named in headers() if named is not None]


@pytest.mark.parametrize(("family", "named"), NAMED, ids=[family for family, _ in NAMED])
def test_the_trainers_that_a_family_names_are_there(family: str, named: Any) -> None:
    assert named_by(named) <= set(TRAINERS)
    assert named_by(named)


def test_every_family_with_steps_names_its_trainer() -> None:
    with_steps = {family for family in schemas.families() if hasattr(registry.dialect(family).module, "FAMILY")}
    assert with_steps <= {family for family, _ in NAMED}


def test_every_trainer_is_of_some_family_or_asked_by_name() -> None:
    named = [named_by(one) for _, one in NAMED]
    assert set(TRAINERS).difference(*named) == {"accelerate.loop"}  # by the name of the script: dialects/hf_trainer.py


@pytest.mark.parametrize("name", TRAINERS)
def test_what_a_trainer_does_is_in_the_words_of_the_table(name: str) -> None:
    found = TRAINERS[name]
    assert found.title
    assert found.source
    assert found.takes in (LOSS, LOG_PROBABILITIES, SCORES)
    for row in (found.tiled, found.prepared):
        assert row in ("", ALWAYS, *BEHAVIOURS)


def test_a_family_with_trls_steps_that_names_no_trainer_has_no_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    trl = registry.dialect("trl")
    monkeypatch.setattr(trl, "header", {**trl.header, "trainer": {"dpo": "trl.dpo"}})
    [run] = registry.specs(load("sft/run.yaml", SFT))
    assert run.unknown_reason == "sft: trl names no trainer of TRL's for it"
    [run] = registry.specs(load("dpo/run.yaml", SFT))
    assert run.unknown_reason == ""


def test_a_method_without_a_trainer_has_none() -> None:
    assert trainer({"sft": "trl.sft"}, "kd") is NONE
    assert trainer("trl.dpo", "whatever") is TRAINERS["trl.dpo"]
    assert trainer("trl", "dpo") is TRAINERS["trl.dpo"]
    assert trainer("trl", "kd") is NONE


@pytest.fixture
def of_trl(request: pytest.FixtureRequest) -> Iterator[base.Dialect]:
    """A family of someone else's around one of TRL's trainers: TRL's keys, a signature, and one line."""
    schema = copy.deepcopy(schemas.load("trl"))
    header = {key: value for key, value in schema["x-memlint"].items() if key not in ("module", "trainer", "refines")}
    signature = {"all": ["per_device_train_batch_size", "a_key_of_ours"]}
    header |= {"family": "ours", "title": "Ours", "signature": signature, "trainer": request.param}
    schema["x-memlint"] = header
    schema["properties"]["a_key_of_ours"] = {"type": "boolean"}
    ours = base.Dialect(schema)
    registry.register(ours)
    yield ours
    del registry._dialects["ours"]


@pytest.mark.parametrize(
    ("of_trl", "program"), [("trl.sft", "sft"), ("trl.dpo", "dpo"), ("trl.kto", "kto")], indirect=["of_trl"]
)
def test_a_family_around_a_trainer_of_trls_is_a_schema_and_one_line(of_trl: base.Dialect, program: str) -> None:
    [ours] = registry.specs(load("run.yaml", SFT + "a_key_of_ours: true\n"))
    [trls] = registry.specs(load(f"{program}/run.yaml", SFT))
    assert (ours.family, trls.family) == ("ours", "trl")
    assert ours["method"] == program
    assert ours.unknown_reason == ""
    assert estimates.estimate_spec(ours).device_bytes == estimates.estimate_spec(trls).device_bytes
