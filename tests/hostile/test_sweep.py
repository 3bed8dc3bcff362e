"""A sample of the number sweep (tests/hostile/sweep.py has the whole), and every case that ever failed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hostile import sweep

SAMPLE = 24
# (file, a text in the line, the number, what it is set to) of cases that ended in a fault of memlint, in a hang, in
# negative bytes or in silence.
FAILED = [
    ("dit3d/config.py", "INPUT_SHAPE", "16", "0"),
    ("dit3d/config.py", "INPUT_SHAPE", "64", "-1"),
    ("dit3d/config.py", "TEXT_MAX_LENGTH", "77", "1000000000"),
    ("lag_mode/train_lag_mode.sh", "SAMPLE_SIZE=", "6", "1000000000"),
    ("lag_mode/train_lag_mode.sh", "BATCH_SIZE=", "32", "1000000000000000000"),
    ("lag_mode/train_lag_mode.sh", "--depth", "6", "1000000000"),
    ("stdiff/kitti_range_train_config.yaml", "num_observed_frames", "5", "1000000000"),
    ("stdiff/kitti_range_train_config.yaml", "layers_per_block", "2", "1000000000000000000"),
    ("stdiff/kitti_range_train_config.yaml", "attention_head_dim", "128", "7"),
    ("stdiff/kitti_range_train_config.yaml", "n_downs", "2", "1000000000"),
    ("video_llm/config.yaml", "tokens_per_frame", "64", "0"),
    ("video_llm/config.yaml", "tokens_per_frame", "64", "1000000000000000000"),
    ("video_llm/config.yaml", "max_frames", "100", "1000000000"),
    ("video_llm/config.yaml", "batch_size", "4", "1000000000"),
    ("video_llm/config_before.yaml", "max_seq_length", "8192", "3"),
]


def everything() -> list[sweep.Case]:
    return [case for folder, path in sweep.configs() for case in sweep.cases(folder, path)]


@pytest.fixture(scope="module")
def place() -> Iterator[sweep.Sweep]:
    with sweep.Sweep() as found:
        yield found


def named(path: str, text: str, number: str, value: str) -> sweep.Case:
    """The first number of so many digits behind a text."""
    content = (sweep.FOLDERS[0] / path).read_text(encoding="utf-8")
    at = content.index(number, content.index(text) + len(text))
    return next(case for case in sweep.cases(0, path) if case.start == at and case.value == value)


# The seeds are ours to keep at nothing; time is the sweep's own to tell.
SEEDS = ("dit3d/", "lag_mode/", "stdiff/", "uni3d_dp/", "video_llm/")


@pytest.mark.parametrize(
    "case",
    [
        *(named(*one) for one in FAILED),
        *sweep.chosen([case for case in everything() if case.path.startswith(SEEDS)], SAMPLE),
    ],
    ids=lambda case: case.name,
)
def test_a_number_that_nobody_means_has_an_answer_or_a_place(place: sweep.Sweep, case: sweep.Case) -> None:
    problems = place.outcome(case).problems
    assert not [problem for problem in problems if not problem.startswith("took ")]


def test_each_format_has_its_own_spelling_of_what_is_no_number() -> None:
    for value in ("true", "x", "null", "nan"):
        for suffix in sweep.SUFFIXES:
            spelled = sweep.VALUES[value].get(suffix, value)
            assert spelled is None or spelled


def test_every_family_with_an_estimate_is_swept() -> None:
    from memlint.dialects import schema as schemas

    with sweep.Sweep() as place:
        found = {family for folder, path in sweep.configs() for family in place.families(folder, path)}
    beside = {"deepspeed", "accelerate"}  # of runs that name them
    assert found == {name for name in schemas.families() if "models" in schemas.header(name)} - beside
