"""Deformable convolutions in the blocks of ResNets: their parameters, and what they keep and write out."""

from __future__ import annotations

from typing import Any

import pytest

from memlint.facts.spec import UnknownModel
from memlint.meta.nn import count
from memlint.meta.tensor import recording
from memlint.models import record
from memlint.models.openmmlab.registry import build
from tests.models.openmmlab.test_openmmlab import run_of
from tests.models.openmmlab.traces import Case, head, segmentor

C3_TO_C5 = {"stage_with_dcn": (False, True, True, True)}
# Of a ResNet-50's last three stages, how many blocks have a 3x3 convolution of so many channels.
BLOCKS = {128: 4, 256: 6, 512: 3}


def resnet(**options: Any) -> dict[str, Any]:
    return {"type": "ResNet", "depth": 50, **options}


def parameters(config: dict[str, Any]) -> int:
    with recording():
        return count(build(config, "model.backbone").parameters())


@pytest.mark.parametrize(("kind", "numbers"), [("DCN", 18), ("DCNv2", 27)])
def test_each_window_has_places_and_weights_of_its_own(kind: str, numbers: int) -> None:
    more = parameters(resnet(dcn={"type": kind, "deform_groups": 1}, **C3_TO_C5)) - parameters(resnet())
    assert more == sum(blocks * (width * 9 * numbers + numbers) for width, blocks in BLOCKS.items())


def saved(**options: Any) -> int:
    """Bytes that a step over two images of 128 x 128 keeps."""
    model = segmentor(resnet(**options), head("FCNHead", in_channels=2048, channels=16, in_index=3))
    return record(run_of(Case(model, size=(128, 128)))).tape.saved_bytes


# Places of an image's maps, of the blocks whose 3x3 convolutions are deformable: halved by the first one of a stage.
PLACES = sum(BLOCKS[width] * (128 // stride) ** 2 for width, stride in ((128, 8), (256, 16), (512, 32)))


def test_a_deformable_convolution_keeps_where_it_looks() -> None:
    assert saved(dcn={"type": "DCN"}, **C3_TO_C5) - saved() == 2 * 18 * PLACES * 4


def test_one_with_weights_keeps_them_and_where_they_come_from() -> None:
    """Two numbers of each place put together anew, and the weight of it behind its sigmoid."""
    assert saved(dcn={"type": "DCNv2"}, **C3_TO_C5) - saved() == 2 * 27 * PLACES * 4


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"depth": 18, "dcn": {"type": "DCN"}, **C3_TO_C5}, id="basic blocks"),
        pytest.param({"dcn": {"type": "DCNv3"}, **C3_TO_C5}, id="a kind"),
        pytest.param({"dcn": {"type": "DCN", "im2col_step": 1}, **C3_TO_C5}, id="an argument"),
    ],
)
def test_what_is_not_known_is_named(options: dict[str, Any]) -> None:
    with recording(), pytest.raises(UnknownModel, match="dcn"):
        build(resnet(**options), "model.backbone")
