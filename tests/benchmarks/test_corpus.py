"""benchmarks/corpus.py: what it counts, on a tiny corpus; no crash on real configs where there are some."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import corpus
from tests.material import corpus_folder

TRAINER = "model_name_or_path: gpt2\nper_device_train_batch_size: 1\nmax_seq_length: 32\noutput_dir: out\n"
FILES = {
    "trainer/complete.yaml": TRAINER,
    "trainer/no_model.yaml": TRAINER.replace("model_name_or_path: gpt2\n", ""),
    "trainer/also_no_model.yaml": TRAINER.replace("model_name_or_path: gpt2\n", "seed: 1\n"),
    "deepspeed/zero.json": '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1}\n',
    "other/notes.yaml": "title: a list of things\nthings: [1, 2]\n",
    "other/broken.yaml": "a: [1, 2\nb: 3\n",
    "alone.yaml": TRAINER,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def by_name(results: list[corpus.FileResult]) -> dict[str, corpus.Group]:
    return {group.name: group for group in corpus.summarise(results)}


def test_each_group_counts_what_became_of_its_files(folder: Path) -> None:
    groups = by_name(corpus.run(folder))
    assert list(groups) == ["(top)", "deepspeed", "other", "trainer"]
    trainer = groups["trainer"]
    assert (trainer.files, trainer.recognised, trainer.estimated, trainer.unknown) == (3, 3, 1, 2)
    assert trainer.families == {"hf-trainer": 3}
    (reason,) = trainer.reasons
    assert "model_name_or_path is not stated" in reason
    assert trainer.reasons[reason] == 2
    assert trainer.facts > 3
    other = groups["other"]
    assert (other.files, other.recognised, other.unparsed, other.crashed) == (2, 0, 1, 0)
    assert groups["deepspeed"].unknown == 1
    assert groups["(top)"].estimated == 1


def test_reasons_that_differ_in_a_name_alone_are_one() -> None:
    end = ": `memlint record`, with a [probe] model in the settings, traces it once"
    reasons = [f"no estimate: the model {name} is made by the code of X, which is not known{end}" for name in "ab"]
    assert {corpus.kind(reason) for reason in reasons} == {"the model is made by the code of X, which is not known"}
    assert corpus.kind("no estimate: model_name_or_path is not stated") == "model_name_or_path is not stated"


def test_an_index_says_which_group_a_file_belongs_to(folder: Path) -> None:
    (folder / "INDEX.csv").write_text("file,family,licence\nother/notes.yaml,prose,MIT\nalone.yaml,trainer,MIT\n")
    groups = by_name(corpus.run(folder))
    assert (groups["prose"].files, groups["other"].files, groups["trainer"].files) == (1, 1, 4)
    assert "(top)" not in groups


def test_a_run_of_another_file_says_whose_it_is(tmp_path: Path) -> None:
    """A Hydra fragment is checked through the config that composes it."""
    (tmp_path / "conf" / "task").mkdir(parents=True)
    (tmp_path / "conf" / "train.yaml").write_text(
        "defaults: [task: small, _self_]\n" + TRAINER.replace("model_name_or_path: gpt2\n", "")
    )
    (tmp_path / "conf" / "task" / "small.yaml").write_text("length: 5\n")
    results = {Path(result.path).name: result for result in corpus.run(tmp_path)}
    assert "model_name_or_path" in results["train.yaml"].reason
    assert "train.yaml" in results["small.yaml"].reason


def test_what_raises_is_a_crash_and_the_rest_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import memlint.check

    real = memlint.check.check_paths

    def sometimes(paths: list[str], *rest: Any) -> Any:
        if paths[0].endswith("zero.json"):
            raise RuntimeError("a fault of ours")
        return real(paths, *rest)

    monkeypatch.setattr(memlint.check, "check_paths", sometimes)
    results = corpus.run(folder)
    assert len(results) == len(FILES)
    assert [Path(result.path).name for result in results if result.crash] == ["zero.json"]
    assert "RuntimeError: a fault of ours" in corpus.as_text(results)
    assert corpus.main([str(folder)]) == 1


def test_an_internal_error_that_check_reports_is_a_crash_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from memlint import estimates

    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("in the estimate")

    monkeypatch.setattr(estimates, "estimate_spec", broken)
    crashed = {Path(result.path).name for result in corpus.run(folder) if result.crash}
    assert {"complete.yaml", "alone.yaml"} <= crashed


@pytest.mark.skipif(not hasattr(corpus.signal, "SIGALRM"), reason="this system has no alarms")
def test_a_file_that_takes_too_long_is_a_hang(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import memlint.check

    def endless(*_: Any) -> None:
        time.sleep(60)

    monkeypatch.setattr(memlint.check, "check_paths", endless)
    result = corpus.check_file(folder / "alone.yaml", "g", 0.05)
    assert result.crash == "Hang: more than 0.05 s"


def test_the_command_prints_a_table_and_writes_json(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "result.out"
    assert corpus.main([str(folder), "--json", str(out), "--files"]) == 0
    printed = capsys.readouterr().out
    data = json.loads(out.read_text())
    assert {group["name"] for group in data["groups"]} == {"(top)", "deepspeed", "other", "trainer"}
    assert len(data["files"]) == len(FILES)
    totals = next(line for line in printed.splitlines() if line.startswith("all "))
    assert totals.split()[1:3] == [str(len(FILES)), "5"]
    assert "2 x model_name_or_path is not stated" in printed
    assert f"{folder / 'other' / 'notes.yaml'}: -: not recognised" in printed


# ------------------------------------------------------------------------------------------------ what is asked


def result(group: str = "trl", families: tuple[str, ...] = ("trl",), **fields: Any) -> corpus.FileResult:
    given = {
        "runs": len(families),
        "facts": 1,
        "estimated": 0,
        "reason": "",
        "trouble": "",
        "crash": "",
        "seconds": 0.1,
    }
    return corpus.FileResult("a.yaml", group, families, **{**given, **fields})


@pytest.mark.parametrize(
    ("reason", "named"),
    [
        pytest.param("no estimate: model_name_or_path is not stated", True, id="a key that is not there"),
        pytest.param("no estimate: --nnodes is not known: N is not set in the script", True, id="an unset variable"),
        pytest.param("no estimate: a DeepSpeed config names no model; check the script", True, id="a companion"),
        pytest.param("no estimate: x/y: no file z.json in this repository", True, id="a file that is elsewhere"),
        pytest.param("no estimate: qat: what it copies is not known", False, id="what memlint does not know"),
        pytest.param("no estimate: the model is made by the code of X", False, id="a model of another library"),
        pytest.param("", False, id="nothing at all"),
    ],
)
def test_an_unknown_names_what_the_file_leaves_open_or_does_not(reason: str, named: bool) -> None:
    assert corpus.names_what_is_missing(reason) is named


def test_figures_count_the_trainers_files_alone() -> None:
    results = [
        result(estimated=1),
        result(reason="no estimate: the length is not stated"),
        result(reason="no estimate: something is odd"),
        result(families=()),
        result(families=("axolotl",)),  # recognised as what it is not
        result(group="kohya", families=("kohya",), reason="no estimate: the code of kohya"),
    ]
    crashes, recognised, told, claimed = corpus.figures(results)
    assert (crashes.count, crashes.passed) == (0, True)
    assert (recognised.count, recognised.total, recognised.passed) == (3, 5, False)
    assert (told.count, told.total, told.passed) == (2, 3, False)
    assert claimed.passed is None


@pytest.mark.parametrize(
    ("claims", "passed"), [pytest.param(1, True, id="one of a hundred"), pytest.param(2, False, id="two")]
)
def test_files_that_train_nothing_are_not_claimed(claims: int, passed: bool) -> None:
    others = [result("others", ()) for _ in range(100 - claims)] + [result("others", ("trl",)) for _ in range(claims)]
    figure = corpus.figures([result(estimated=1)], others)[3]
    assert (figure.count, figure.total, figure.passed) == (claims, 100, passed)


def test_a_crash_fails_wherever_it_is() -> None:
    assert corpus.figures([result(crash="KeyError: x")])[0].passed is False
    assert corpus.figures([result(estimated=1)], [result("others", (), crash="KeyError: x")])[0].passed is False


def test_four_lines_say_pass_or_fail(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "INDEX.csv").write_text("file,family\nalone.yaml,trl\nother/notes.yaml,trl\n")
    arguments = [str(folder), "--others", str(folder / "other"), "--accept"]
    assert corpus.main(arguments) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if "(asked: " in line]
    assert [line.partition(":")[0] for line in lines] == ["pass", "FAIL", "pass", "pass"]
    assert "2 of 3 = 66.7%" in lines[1]
    assert "0 of 2" in lines[3]


def test_of_many_others_evenly_many_are_read(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"{number}.json").write_text("{}")
    names = [Path(found.path).stem for found in corpus.run_others(tmp_path, most=4)]
    assert names == ["0", "3", "6", "9"]


def test_a_folder_that_is_not_there_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        corpus.main([str(tmp_path / "nowhere")])
    assert raised.value.code == 2
    assert "is not a folder" in capsys.readouterr().err


def test_no_real_config_crashes_or_hangs() -> None:
    results = corpus.run(corpus_folder())
    assert len(results) > 300
    assert [(result.path, result.crash) for result in results if result.crash] == []
    # A file of a known family has an estimate, or says why it has none.
    assert [result.path for result in results if result.reason == "no reason given"] == []
