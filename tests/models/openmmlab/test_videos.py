"""mmaction2's classes over meta tensors against the library's own modules under fake tensors (``videos.json``), and
its nets against the numbers of parameters that its metafiles publish."""

from __future__ import annotations

import pytest

from memlint.dialects import registry
from memlint.documents.load import load
from memlint.facts.spec import TrainingSpec
from memlint.models import record
from tests.differential.training import walk
from tests.models.openmmlab.videos import CASES, Case, read

TRACES = read()
CLOSE = 5e-4  # of small maps' peaks: each norm's counter of batches is a tensor of its own
PEAK = 3e-3  # with what lives for a moment beside the most
SCALARS = 1e-6  # of what is saved: a few bytes per block


def written(case: Case) -> str:
    """A config of mmengine's dialect that states this run."""
    wrapper = "OptimWrapper" if case.autocast == "float32" else "AmpOptimWrapper"
    over_time = len(case.shape) == 3
    clips, length = (case.shape[0], case.shape[2]) if over_time else (case.shape[0], 1)
    form = "NCTHW" if over_time else "NCHW"
    length = length if case.size else case.shape[2]
    sized = f"dict(type='Resize', scale=({case.size}, {case.size}), keep_ratio=False)"
    packed = f"{sized}, dict(type='FormatShape', input_format={form!r})"
    packed = packed if case.size else f"dict(type='FormatGCNInput', num_person={case.shape[1]})"
    return f"""
model = {case.model!r}
train_pipeline = [
    dict(type='SampleFrames', clip_len={length}, frame_interval=1, num_clips={clips}),
    {packed},
]
train_dataloader = dict(batch_size={case.batch}, dataset=dict(type='VideoDataset', pipeline=train_pipeline))
optim_wrapper = dict(type={wrapper!r}, optimizer=dict(type='SGD', momentum=0.9, weight_decay=5e-4))
"""


def run_of(case: Case) -> TrainingSpec:
    (spec,) = registry.specs(load("config.py", written(case)))
    return spec


@pytest.mark.parametrize("name", CASES)
def test_a_recognizer_takes_the_memory_that_the_library_s_own_takes(name: str) -> None:
    made = record(run_of(CASES[name]))
    phases, held = walk(made.tape)
    truth = TRACES[name]
    assert made.parameters == truth.parameters
    assert made.tape.saved_bytes == pytest.approx(truth.saved, rel=SCALARS)
    assert held == pytest.approx(truth.held, rel=CLOSE)
    assert max(phases[phase] for phase in ("forward", "backward", "optimizer_step")) == pytest.approx(
        truth.peak, rel=PEAK
    )


def test_every_trace_is_of_a_case() -> None:
    assert list(TRACES) == list(CASES)


# A case with this many classes -> parameters (mmaction2 0.24.1, ``configs/recognition/*/metafile.yml``).
PUBLISHED = {
    ("TSM", 400): ("tsm_r50_1x1x8_50e_kinetics400_rgb", 24327632),
    ("TANet", 400): ("tanet_r50_dense_1x1x8_100e_kinetics400_rgb", 25590320),
    ("TRN", 174): ("trn_r50_1x1x8_50e_sthv1_rgb", 26641154),
    ("I3D", 400): ("i3d_r50_32x2x1_100e_kinetics400_rgb", 28043472),
    ("SlowOnly", 400): ("slowonly_r50_4x16x1_256e_kinetics400_rgb", 32454096),
    ("SlowFast", 400): ("slowfast_r50_4x16x1_256e_kinetics400_rgb", 34479288),
    ("R(2+1)D", 400): ("r2plus1d_r34_8x8x1_180e_kinetics400_rgb", 63759281),
    ("CSN", 400): ("ircsn_bnfrozen_r50_32x2x1_180e_kinetics400_rgb", 13131152),
    ("C3D", 101): ("c3d_sports1m_16x1x1_45e_ucf101_rgb", 78409573),
}


@pytest.mark.parametrize(("name", "classes"), PUBLISHED)
def test_a_net_has_as_many_parameters_as_its_metafile_says(name: str, classes: int) -> None:
    case = CASES[name]
    model = {**case.model, "cls_head": {**case.model["cls_head"], "num_classes": classes}}
    made = record(run_of(case._replace(model=model)))
    assert made.parameters == PUBLISHED[name, classes][1]
