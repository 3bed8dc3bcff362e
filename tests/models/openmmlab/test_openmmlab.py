"""OpenMMLab's classes over meta tensors against the libraries' own modules under fake tensors (``traces.json``)."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.dialects import registry
from memlint.documents.load import load
from memlint.facts.spec import TrainingSpec, UnknownModel
from memlint.models import record
from tests.differential.training import walk
from tests.models.openmmlab.traces import CASES, SWIN_MAPS, Case, head, read, resnet, segmentor

TRACES = read()
SMALL = 1e-4  # of the peak: losses of no dimension
SCALARS = 1e-6  # of what is saved: a few bytes per block


def written(case: Case, optimizer: str = "dict(type='SGD', momentum=0.9, weight_decay=5e-4)") -> str:
    """A config of mmengine's dialect that states this run."""
    wrapper = "OptimWrapper" if case.autocast == "float32" else "AmpOptimWrapper"
    return f"""
model = {case.model!r}
train_dataloader = dict(
    batch_size={case.batch},
    dataset=dict(type='Shapes', pipeline=[dict(type='RandomCrop', crop_size={case.size}), dict(type='PackSegInputs')]))
optim_wrapper = dict(type={wrapper!r}, optimizer={optimizer})
"""


def run_of(case: Case, **options: str) -> TrainingSpec:
    (spec,) = registry.specs(load("config.py", written(case, **options)))
    return spec


@pytest.mark.parametrize("name", CASES)
def test_a_model_takes_the_memory_that_the_library_s_own_takes(name: str) -> None:
    made = record(run_of(CASES[name]))
    phases, held = walk(made.tape)
    truth = TRACES[name]
    assert made.parameters == truth.parameters
    assert made.tape.saved_bytes == pytest.approx(truth.saved, rel=SCALARS)
    assert held == pytest.approx(truth.held, rel=SMALL)
    assert max(phases[phase] for phase in ("forward", "backward", "optimizer_step")) == pytest.approx(
        truth.peak, rel=SMALL
    )


def test_every_trace_is_of_a_case() -> None:
    assert list(TRACES) == list(CASES)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        pytest.param(
            segmentor(resnet(), head("MyHead", in_channels=2048, channels=512)),
            "model.decode_head.type MyHead is a class that memlint does not know",
            id="a class of one's own",
        ),
        pytest.param(
            segmentor(resnet(shortcut="none"), head("FCNHead", in_channels=2048, channels=512)),
            "model.backbone.shortcut is an argument of ResNetV1c that memlint does not know",
            id="an argument of one's own",
        ),
        pytest.param(
            segmentor(resnet(49), head("FCNHead", in_channels=2048, channels=512)),
            "model.backbone.depth 49 is none that ResNetV1c has",
            id="a depth that there is not",
        ),
        pytest.param(
            segmentor(resnet(norm_cfg={"type": "XBN"}), head("FCNHead", in_channels=2048, channels=512)),
            "norm_cfg.type XBN is a norm that memlint does not know",
            id="a norm of one's own",
        ),
        pytest.param(
            segmentor(resnet(), head("FCNHead", in_channels=[1, 2], channels=512)),
            r"model.* do not fit together",
            id="channels that are none",
        ),
        pytest.param({"type": "EncoderDecoder"}, r"model.* do not fit together", id="no backbone"),
    ],
)
def test_what_is_not_known_is_named(model: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnknownModel, match="^" + reason):
        record(run_of(Case(model)))


def test_a_card_without_tf32_takes_workspaces_for_its_convolutions() -> None:
    """PSPNet's last 3x3 convolution is over 4,096 channels: 36 numbers for each 16 of what goes in and comes out, and
    for each of its weights."""
    case = CASES["PSPNet, ResNet-50"]
    peaks = {}
    for capability in ("7.0", "8.0"):
        spec = run_of(case).with_facts(compute_capability=capability)
        phases, _ = walk(record(spec).tape)
        peaks[capability] = phases["backward"]
    tiles = case.batch * 64 // 4 * 96 // 4
    workspace = 36 * 4 * (tiles * (4096 + 512) + 4096 * 512)
    assert peaks["7.0"] - peaks["8.0"] == workspace


def test_gradients_of_mmcv_s_runs_outlive_the_step() -> None:
    """mmcv's hook lets them go before the backward pass, mmengine's wrapper after the step."""
    case = CASES["PSPNet, ResNet-50"]
    new = written(case)
    loader = "train_dataloader = dict(\n    batch_size=2,\n    dataset="
    old = new.replace(loader, "data = dict(samples_per_gpu=2, train=")
    old = old.replace("optim_wrapper = dict(type='OptimWrapper', optimizer=", "optimizer = (")
    held = {}
    for name, text in (("mmengine", new), ("mmcv", old)):
        (spec,) = registry.specs(load("config.py", text))
        assert spec["hyperparameters.dialect"] == name
        held[name] = walk(record(spec).tape)[1]
    parameters, labels = TRACES["PSPNet, ResNet-50"].parameters, 8 * case.batch * 512 * 768
    of_both_heads = 2 * labels  # put together from one sample's each, in mmengine's dialect
    assert held["mmcv"] - held["mmengine"] == pytest.approx(4 * parameters - of_both_heads, rel=1e-3)


# The modules of NVlabs/SegFormer 65fa8cf as their repository has them, traced like the cases above (BN for SyncBN):
# parameters, peak, held, saved.
@pytest.mark.parametrize(
    ("kind", "widths", "autocast", "truth"),
    [
        ("mit_b0", [32, 64, 160, 256], "float32", (3_721_478, 875_393_536, 782_201_856, 748_179_588)),
        ("mit_b0", [32, 64, 160, 256], "float16", (3_721_478, 806_928_384, 607_928_320, 567_613_188)),
        ("mit_b1", [64, 128, 320, 512], "float16", (13_684_582, 1_113_082_880, 905_930_752, 785_939_396)),
    ],
)
def test_segformer_of_its_authors(kind: str, widths: list[int], autocast: str, truth: tuple[int, ...]) -> None:
    decoder = head(
        "SegFormerHead",
        in_channels=widths,
        in_index=[0, 1, 2, 3],
        channels=128,
        feature_strides=[4, 8, 16, 32],
        decoder_params={"embed_dim": 256},
    )
    case = Case(segmentor({"type": kind, "style": "pytorch"}, decoder), autocast=autocast, size=(512, 512))
    made = record(run_of(case))
    phases, held = walk(made.tape)
    parameters, peak, truly_held, saved = truth
    assert made.parameters == parameters
    assert made.tape.saved_bytes == pytest.approx(saved, rel=SCALARS)
    assert held == pytest.approx(truly_held, rel=SMALL)
    assert max(phases[phase] for phase in ("forward", "backward", "optimizer_step")) == pytest.approx(peak, rel=0.006)


PLACED = {"ape": True, "patch_norm": False}


# The backbone of SwinTransformer/Swin-Transformer-Object-Detection c7b20110 as its repository has it, traced like the
# cases above: parameters, peak, held, saved.
@pytest.mark.parametrize(
    ("options", "size", "autocast", "truth"),
    [
        ({}, (256, 416), "float32", (21_504_989, 678_894_080, 648_223_232, 474_259_364)),
        ({}, (224, 224), "float16", (21_504_989, 370_027_520, 355_576_832, 181_300_324)),
        ({"use_checkpoint": True}, (256, 416), "float32", (21_504_989, 402_624_000, 305_544_192, 131_593_020)),
        (PLACED, (224, 224), "float32", (21_805_853, 411_057_664, 383_848_960, 208_374_500)),
        ({"frozen_stages": 2}, (256, 416), "float32", (21_504_989, 475_582_464, 444_911_616, 269_613_924)),
    ],
    ids=["plain", "autocast", "recomputed", "positions, and no first norm", "frozen"],
)
def test_swin_of_its_authors(
    options: dict[str, Any], size: tuple[int, int], autocast: str, truth: tuple[int, ...]
) -> None:
    backbone = {"type": "SwinTransformer", "embed_dim": 96, "depths": [2, 2, 2, 2], **options}
    case = Case(segmentor(backbone, head("UPerHead", **SWIN_MAPS, channels=64)), size=size, autocast=autocast)
    made = record(run_of(case))
    phases, held = walk(made.tape)
    parameters, peak, kept, saved = truth
    assert made.parameters == parameters
    assert made.tape.saved_bytes == pytest.approx(saved, rel=SCALARS)
    assert held == pytest.approx(kept, rel=SMALL)
    assert max(phases[phase] for phase in ("forward", "backward", "optimizer_step")) == pytest.approx(peak, rel=SMALL)
