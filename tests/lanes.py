"""Which tests the quick lane leaves to the full one, which the full one leaves to the week, and why.

The quick lane is a cross-section that a newcomer runs in a few minutes: everything that changes often goes wrong there.
It runs all tests of the full lane but those that a line of :data:`LEFT` names, and of those the first one of each kind.
The full lane holds each mechanism to its oracle before a merge. What does so again, in further settings, is in
:data:`AGAIN`, and runs once a week.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

LANES = ("quick", "rest", "full", "week", "all")


# Files that come first where each is one worker's: one of them that begins last is waited for by all others.
LONGEST = (
    *("tests/test_style.py", "tests/test_lanes.py", "tests/mutation/", "tests/measure/"),
    *("tests/planning/", "tests/differential/", "tests/fixes/"),
)


class Left(NamedTuple):
    """``tests``: a pattern for the ids of tests that are left, from the start of the id on.

    ``kinds``: of each text that this pattern finds in their ids (its group, if it has one), the first test is kept.
    ``every``: of all of them each third one is, say. Without either, none is.
    """

    tests: str
    reason: str
    kinds: str = ""
    every: int = 0


_D, _M = "tests/differential/", "tests/measure/"
_FILE = r"(test_\w+)\.py"  # the first test of each file
_FUNCTION = r"::(\w+)"  # the first case of each test function
_WORD = r"\[(\w+)"  # the first of each first word of a case
_FUNCTION_AND_WORD = r"::(\w+\[?\w*)"  # of each test function and first word: a folder of examples, a rule's code

LEFT = (
    Left("tests/fixes/test_promises", "each family's fixes, re-checked", _FUNCTION),
    Left("tests/cli/test_closer.py::test_what_is_shown", "every example, with all of its fixes"),
    Left("tests/test_proven_families.py::test_a_config_s_model", "thirty models, counted", _FUNCTION),
    Left("tests/test_acceptance.py::test_parameters_in", "one of twenty models", _FUNCTION),
    Left(r"tests/test_rules.py::test_example\[MEM\d+ leaves", "one of what a rule leaves alone", r"\[(MEM\d+)"),
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
    Left("tests/test_(releases|bounds)", "each release and bound, on both of its sides", _FUNCTION),
    Left("tests/data/test_models", "a test for each of 377 models of the catalogue", _FUNCTION),
    Left("tests/dialects/test_key_facts", "fifty families, key by key", _FUNCTION),
    Left("tests/benchmarks/test_(measure|corpus|models|histories)", "programs that start processes"),
    Left("tests/benchmarks/test_accuracy", "92 published runs", _FUNCTION),
    Left("tests/test_(packaging|pre_commit)", "environments of their own, made by pip"),
    Left("tests/test_style.py::test_clean.mypy", "mypy over everything without its cache"),
    Left("tests/test_style.py::test_a_misspelt_fact", "mypy once more"),
    Left("tests/mutation/test_mutation.py::test_the_script_judges", "tests of a small project, run for each mutant"),
    Left("tests/test_lanes.py::test_(each_test_is_in_one|the_command_line_chooses)", "collects every test"),
)


# Each line saves the full lane between half a minute and five minutes of one core.
AGAIN = (
    Left(
        _D + r"test_programs.py::test_a_program_takes.*\[(?!a small).*-(fp32|checkpointed)", "beside autocast and LoRA"
    ),
    Left(_D + "test_language_models.py::test_each_model_type", "sixty decoders, each in several settings", every=4),
    Left(_D + "test_(multimodal|unseen).py", "towers of seven families, each in several settings", every=3),
    Left(
        _D + "test_(encoder_decoders|encoders|remote_code|vision).py::test_(each|a_model)_.*",
        "many settings of each",
        every=4,
    ),
    Left(_D + "test_(stdiff|uni3d_dp|dit3d|video_llm).py::test_real_sizes", "the published runs of a seed", _FUNCTION),
    Left(_D + "test_lag_mode.py::test_the_compiled_step", "XLA compiles the published runs", _FUNCTION),
    Left(_D + "test_training_loops.py::test_a_script_takes", "scripts that differ in a few lines", every=4),
    Left(_D + "test_(adapters|peft_methods).py::test_each_", "methods of peft in several settings", every=3),
    Left(_D + "test_(diffusion|sd_scripts).py::test_", "settings of a script, each a step of a whole UNet", every=3),
    Left(_D + "test_(ops|autograd).py::test_(memory_is_torchs|blocks_take)", "an op's dtypes and who trains", every=3),
    Left(
        _D + "test_(embeddings|internvl|llava|implementations|corners|preference_scores|fused_kernels|rows|outputs)",
        "settings of a library that differ in one thing",
        every=2,
    ),
    Left(_D + "test_(fsdp1|parallel).py::test_(what_pytorch|one_rank)", "ranks in several settings", every=2),
    Left(
        _M + "test_architectures.py::test_real_sizes.*(Gemma|Qwen|Mixtral|Flux|SD3|UNet|T5)", "whole models, once more"
    ),
    Left(_M + "test_architectures.py::test_a_library_class_trains", "a class of each kind", every=3),
    Left(_M + "test_architectures.py::test_(the_trace_agrees|checkpointing_keeps)", "beside the smallest", every=3),
    Left(_M + "test_record_libraries.py::test_a_model_of_the_hub", "one tells most", _FUNCTION),
    Left(_M + "test_(probe_examples|trace).py::test_(an_example_is|the_examples_trace)", "all examples", _FUNCTION),
    Left("tests/planning/test_plan.py::test_a_row_is_what_check_says", "models, methods, trainers, cards", every=3),
    Left("tests/planning/test_plan.py::test_(a_card_without|the_largest_batch)", "of each trainer and method", every=3),
    Left("tests/models/test_depth.py::test_a_deep_model_is_the_sum", "kinds of runs, each of many layers", every=4),
    Left("tests/models/test_templates.py::test_another_size", "kinds of runs, each recorded twice", every=4),
    Left("tests/data/test_models.py::test_parameters_are_those", "451 models, counted by their classes", every=4),
    Left("tests/fixes/test_families.py::test_(fixes_keep|a_plan_is)", "each family's, re-checked", every=3),
)


def chosen(lane: str, ids: Iterable[str]) -> set[str]:
    """The tests of a lane: ``rest`` is what ``quick`` leaves of ``full``, and ``week`` what ``full`` leaves of all, so
    that none is in no lane."""
    ids = list(ids)
    full = _kept(AGAIN, ids)
    if lane in ("quick", "rest"):
        quick = _kept(LEFT, [name for name in ids if name in full])
        return quick if lane == "quick" else full - quick
    return {"full": full, "week": set(ids) - full, "all": set(ids)}[lane]


def _kept(table: Iterable[Left], ids: Iterable[str]) -> set[str]:
    """The tests that no line names, and of those that one names the ones it keeps."""
    seen: dict[tuple[Left, str], int] = {}
    kept = set()
    for name in ids:
        left = _line(table, name)
        if left is None or _stays(left, name, seen):
            kept.add(name)
    return kept


def _line(table: Iterable[Left], name: str) -> Left | None:
    return next((left for left in table if re.match(left.tests, name)), None)


def _stays(left: Left, name: str, seen: dict[tuple[Left, str], int]) -> bool:
    """Whether a test is the first of its kind, or the next one in turn; ``seen`` counts those before it."""
    found = re.search(left.kinds, name) if left.kinds else None
    if found is None and not left.every:
        return False
    kind = (left, "" if found is None else found.group(found.lastindex or 0))
    before = seen[kind] = seen.get(kind, -1) + 1
    return before % left.every == 0 if left.every else before == 0


def left_whole(path: Path, root: Path) -> bool:
    """Whether the quick lane runs nothing of a module: the line that its name alone matches keeps none."""
    inside = path.is_relative_to(root) and path.is_file()
    left = _line(LEFT, path.relative_to(root).as_posix()) if inside else None
    return left is not None and not left.kinds
