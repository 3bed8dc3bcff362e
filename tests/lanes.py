"""Which tests the quick lane leaves to the full one, and why.

The quick lane is a cross-section that a newcomer runs in a few minutes: everything that changes often goes wrong there.
It runs all tests but those that a line of :data:`LEFT` names, and of those the first one of each kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

LANES = ("quick", "rest", "full")


# Files that come first where each is one worker's: one of them that begins last is waited for by all others.
LONGEST = (
    *("tests/test_style.py", "tests/test_lanes.py", "tests/mutation/", "tests/measure/"),
    *("tests/planning/", "tests/differential/", "tests/fixes/"),
)


class Left(NamedTuple):
    """``tests``: a pattern for the ids of tests that are left, from the start of the id on.

    ``kinds``: of each text that this pattern finds in their ids (its group, if it has one), the quick lane keeps the
    first test. Empty: it keeps none.
    """

    tests: str
    reason: str
    kinds: str = ""


_D, _M = "tests/differential/", "tests/measure/"
_FILE = r"(test_\w+)\.py"  # the first test of each file
_FUNCTION = r"::(\w+)"  # the first case of each test function
_WORD = r"\[(\w+)"  # the first of each first word of a case
_FUNCTION_AND_WORD = r"::(\w+\[?\w*)"  # of each test function and first word: a folder of examples, a rule's code

LEFT = (
    Left("tests/test_spans.py::test_findings_of_the_examples.*(no budget|1 GB)", "one budget of three tells most"),
    Left("tests/test_fixes.py::test_fixes_of_the_examples", "one of each family", r"\[(language_models/\w+|\w+)"),
    Left("tests/test_spans.py::test_findings_of_the_examples", "one of each family", r"\[(language_models/\w+|\w+)"),
    Left("tests/test_(spans|fixes).py::test_.*_option_.*value", "each option of a script, with what-ifs", _FUNCTION),
    Left("tests/test_at_least.py::test_a_bound_is_no_more", "one of many families", _FUNCTION),
    Left("tests/models/openmmlab/", "whole segmentors and detectors, each against its library's trace", _FILE),
    Left("tests/models/test_language_models.py::test_formulas", "whole models twice, as formulas too", _FUNCTION),
    Left("tests/models/test_symbolic_recordings.py", "one of each family, recorded twice", _FILE),
    Left("tests/profiles/test_profile.py::test_a_hostile.*many (formulas|guards)", "millions of counted lines"),
    Left(_D + "test_language_models.py::test_drawn", "25 drawn models, each built by transformers"),
    Left(_D + "test_ops", "an op's dtypes, autocast and who trains: thousands of cases", _WORD),
    Left(_D + "test_(autograd|optim|outputs|corners)", "oracles of a few ops each, in every combination", _FUNCTION),
    Left(_D + "test_language_models", "sixty decoders of transformers, each in several settings", _FUNCTION),
    Left(
        _D + "test_programs",
        "libraries' whole models, where a small one tells most",
        r"(\[a small model-\w+|::test_(?!a_program_takes)\w+)",
    ),
    Left(_D, "whole training steps in torch: seconds each"),
    Left("tests/examples/", "the reference models of the examples, run in torch"),
    Left(_M + "test_(tracker|cuda_semantics|loops|history)", "torch's allocations, op by op", _FUNCTION),
    Left(_M, "processes that import torch and train, seconds each"),
    Left("tests/meta/test_(jaxpr|compiled)", "drawn networks and JAX programs, each against its oracle", _FUNCTION),
    Left("tests/test_(spans|fixes)", "every example at several budgets, with all of its fixes", _FUNCTION_AND_WORD),
    Left("tests/fixes/test_(applied|search|families)", "configs of many families, changed and checked again", _FILE),
    Left("tests/cli/test_fix", "examples, written to and checked again", _FILE),
    Left(
        "tests/cli/test_known", "a folder of examples, checked several times", r"::(test_what_becomes_graver_is_told)"
    ),
    Left(
        "tests/comparison/",
        "git repositories, checked on both sides",
        r"/(test_(?!diff)\w+)\.py|::(test_a_damaged_report_is_said)",
    ),
    Left("tests/test_equal_runs", "folders that are checked in several ways", _FILE),
    Left("tests/test_cache", "each damage, and each thing around a config that changes", _FUNCTION),
    Left("tests/cli/test_jobs.py::test_(the_report|what_another|other_commands)", "several processes each"),
    Left("tests/fixes/test_(offered|unmade)", "fixes that are tried in what they are written into", _FUNCTION),
    Left("tests/planning/", "models, methods, cards and trainers, each checked as its config", _FILE),
    Left("tests/laws/", "the full lane draws hundreds of examples of each", _FILE),
    Left("tests/fuzz/test_fuzz", "a short run of each target", _FUNCTION),
    Left("tests/hostile/test_program_ends", "processes that end in every way", _FILE),
    Left("tests/test_seed_analyses", "the five systems before and after tuning, rule by rule", _FUNCTION),
    Left("tests/models/test_language_models", "decoders in every setting, up to 126 layers", _FUNCTION),
    Left("tests/models/test_depth.*whatever_a_run_does", "drawn deep models, each in full as well"),
    Left("tests/models/test_depth", "deep models in full beside few of their layers", _FUNCTION),
    Left("tests/models/test_(parallel|megatron)", "models on several devices in every setting", _FUNCTION),
    Left("tests/models/test_templates", "recordings that are followed, beside those of each size", _FUNCTION),
    Left(
        "tests/models/test_(stdiff|dit3d|diffusion|sd_scripts|lag_mode|many_passes|video_llm|uni3d_dp)",
        "whole models",
        _FILE,
    ),
    Left("tests/hostile/test_(sweep|shell|documents)", "what strangers may write, case by case", _FUNCTION),
    Left("tests/documents/test_shell_values", "a process of bash for each case", _FUNCTION),
    Left("tests/cli/test_cold_start", "a process for each example", _FUNCTION),
    Left("tests/fixes/test_promises", "each family's fixes, re-checked", _FUNCTION_AND_WORD),
    Left("tests/test_(releases|bounds)", "each release and bound, on both of its sides", _FUNCTION),
    Left("tests/data/test_models", "a test for each of 377 models of the catalogue", _FUNCTION),
    Left("tests/dialects/test_key_facts", "fifty families, key by key", _FUNCTION),
    Left("tests/benchmarks/test_(measure|corpus|models|histories)", "programs that start processes"),
    Left("tests/benchmarks/test_accuracy", "92 published runs", _FUNCTION),
    Left("tests/test_(packaging|pre_commit)", "environments of their own, made by pip"),
    Left("tests/test_style.py::test_clean.mypy", "mypy over everything without its cache"),
    Left("tests/test_style.py::test_a_misspelt_fact", "mypy once more"),
    Left("tests/mutation/test_mutation.py::test_the_script_judges", "tests of a small project, run for each mutant"),
    Left("tests/test_lanes.py::test_(no_test_is_in_neither|the_command_line_chooses)", "collects every test"),
)


def chosen(lane: str, ids: Iterable[str]) -> set[str]:
    """The tests of a lane. ``rest`` is what ``quick`` does not choose, so that none is in neither."""
    ids = list(ids)
    if lane == "full":
        return set(ids)
    seen: set[tuple[Left, str]] = set()
    quick = {name for name in ids if _is_quick(name, seen)}
    return quick if lane == "quick" else set(ids) - quick


def _line(name: str) -> Left | None:
    return next((left for left in LEFT if re.match(left.tests, name)), None)


def _is_quick(name: str, seen: set[tuple[Left, str]]) -> bool:
    left = _line(name)
    if left is None:
        return True
    found = re.search(left.kinds, name) if left.kinds else None
    if found is None:
        return False
    kind = (left, found.group(found.lastindex or 0))
    new = kind not in seen
    seen.add(kind)
    return new


def left_whole(path: Path, root: Path) -> bool:
    """Whether the quick lane runs nothing of a module: the line that its name alone matches keeps none."""
    left = _line(path.relative_to(root).as_posix()) if path.is_relative_to(root) and path.is_file() else None
    return left is not None and not left.kinds
