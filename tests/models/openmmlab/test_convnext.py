"""ConvNeXt of its authors, as projects that are laid over mmdetection and mmsegmentation have it."""

from __future__ import annotations

import pytest
import torch

from memlint.dialects import registry
from memlint.documents.load import load
from memlint.meta.tensor import empty, recording
from memlint.models import record
from memlint.models.openmmlab.convnext import WrittenOut

UPER = """
model = dict(
    type="EncoderDecoder",
    backbone=dict(type="ConvNeXt", in_chans=3, depths={depths}, dims={dims}, out_indices=[0, 1, 2, 3]),
    decode_head=dict(type="UPerHead", in_channels={dims}, in_index=[0, 1, 2, 3], pool_scales=(1, 2, 3, 6), channels=512,
                     dropout_ratio=0.1, num_classes=150, norm_cfg=dict(type="SyncBN")),
    auxiliary_head=dict(type="FCNHead", in_channels={third}, in_index=2, channels=256, num_convs=1, concat_input=False,
                        num_classes=150, norm_cfg=dict(type="SyncBN")))
train_pipeline = [dict(type="RandomCrop", crop_size=(512, 512))]
data = dict(samples_per_gpu=2, train=dict(type="ADE20KDataset", pipeline=train_pipeline))
optimizer = dict(type="AdamW", lr=0.0001, weight_decay=0.05)
runner = dict(type="IterBasedRunner", max_iters=160000)
"""


@pytest.mark.parametrize(
    ("depths", "dims", "millions"),
    [  # the README of facebookresearch/ConvNeXt 048efce, semantic_segmentation: "#params"
        pytest.param([3, 3, 9, 3], [96, 192, 384, 768], 60, id="tiny"),
        pytest.param([3, 3, 27, 3], [96, 192, 384, 768], 82, id="small"),
        pytest.param([3, 3, 27, 3], [128, 256, 512, 1024], 122, id="base"),
        pytest.param([3, 3, 27, 3], [192, 384, 768, 1536], 235, id="large"),
    ],
)
def test_it_has_the_parameters_that_its_authors_count(depths: list[int], dims: list[int], millions: int) -> None:
    (spec,) = registry.specs(load("net.py", UPER.format(depths=depths, dims=dims, third=dims[2])))
    assert spec.unknown_reason == ""
    assert round(record(spec).parameters / 1e6) == millions


def test_its_norm_keeps_a_map_for_each_sign_that_needs_one() -> None:
    """Oracle: torch, by the storages that autograd holds for the formula, without weights."""
    shape, kept = (2, 96, 32, 24), {}
    x = torch.empty(shape, requires_grad=True)
    weight, bias = (torch.empty(96, requires_grad=True) for _ in range(2))

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        mean = x.mean(1, keepdim=True)
        spread = (x - mean).pow(2).mean(1, keepdim=True)
        y = (x - mean) / torch.sqrt(spread + 1e-6)
        y = weight[:, None, None] * y + bias[:, None, None]
    held = sum(size for place, size in kept.items() if place not in (weight.data_ptr(), x.data_ptr()))
    with recording() as tape:
        norm = WrittenOut(96)
        given = empty(shape)
        given.requires_grad = True
        begin = len(tape.events)
        out = norm(given)
        own = sum(tape.sizes[at] if at >= 0 else -tape.sizes[~at] for at in tape.events[begin:])
    assert out.shape == shape
    assert own - 4 * 2 * 96 * 32 * 24 == held
