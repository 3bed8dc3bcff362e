"""Recognizers of mmaction2 as its own modules run, and what a training step of each takes: ``videos.json``.

    python -m tests.models.openmmlab.videos FOLDER   # where mmaction2 1.2.0 is unpacked

traces each model of :data:`CASES` under fake tensors with CUDA's semantics (``tests.differential.training``) and
writes the file anew. mmcv-lite 2.1.0 and mmengine are installed. The log's accuracy looks at values, which fake
tensors have none of: it is left out.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from tests.models.openmmlab.traces import Trace

RESULTS = Path(__file__).with_name("videos.json")
# Imported by the library for what no training step does.
ABSENT = ("decord", "mmaction.models.multimodal", "mmaction.models.similarity", "moviepy", "timm", "transformers")
Config = dict[str, Any]


class Case(NamedTuple):
    """A model's dictionary, and the batch that it is trained with. ``shape``: of a sample, up to its frames' size."""

    model: Config
    shape: tuple[int, ...]
    size: int = 64
    batch: int = 2
    autocast: str = "float32"


def recognizer(backbone: Config, head: Config, kind: str = "Recognizer3D", **more: Any) -> Config:
    head = {"num_classes": 40, "average_clips": "prob", **head}
    return {"type": kind, "backbone": backbone, "cls_head": head, **more}


def frames(backbone: Config, head: Config) -> Config:
    return recognizer(backbone, {"in_channels": 2048, **head}, "Recognizer2D")


I3D = {"type": "I3DHead", "in_channels": 2048}
NON_LOCAL: Config = {"sub_sample": True, "use_scale": False, "norm_cfg": {"type": "BN3d"}, "mode": "gaussian"}
PATHWAY: Config = {"type": "resnet3d", "pretrained": None, "norm_eval": False, "depth": 50}
SLOW: Config = {**PATHWAY, "lateral": True, "conv1_kernel": (1, 7, 7), "inflate": (0, 0, 1, 1)}
FAST: Config = {**PATHWAY, "lateral": False, "base_channels": 8, "conv1_kernel": (5, 7, 7)}
for path in (SLOW, FAST):
    path.update(conv1_stride_t=1, pool1_stride_t=1)
CSN: Config = {"type": "ResNet3dCSN", "depth": 50, "pretrained": None, "pretrained2d": False, "with_pool2": False}

SWIN: Config = {
    "type": "SwinTransformer3D",
    "arch": {"embed_dims": 48, "depths": [2, 2, 2], "num_heads": [2, 4, 8]},
    "out_indices": (2,),
    "drop_path_rate": 0.2,
}
TIMESFORMER: Config = {
    **{"type": "TimeSformer", "num_frames": 8, "img_size": 64, "patch_size": 16},
    **{"embed_dims": 192, "num_heads": 3, "num_transformer_layers": 3, "attention_type": "divided_space_time"},
}

CASES: dict[str, Case] = {
    "TSN, ResNet-18": Case(frames({"type": "ResNet", "depth": 18}, {"type": "TSNHead", "in_channels": 512}), (3, 3)),
    "TSN, part of the norms": Case(
        frames({"type": "ResNet", "depth": 50, "partial_bn": True}, {"type": "TSNHead"}), (3, 3)
    ),
    "TSM": Case(frames({"type": "ResNetTSM", "depth": 50}, {"type": "TSMHead"}), (8, 3)),
    "TSM, half precision": Case(
        frames({"type": "ResNetTSM", "depth": 50}, {"type": "TSMHead"}), (8, 3), autocast="float16"
    ),
    "TSM, non-local": Case(
        frames(
            {
                "type": "ResNetTSM",
                "depth": 50,
                "non_local": ((0, 0, 0), (1, 0, 1, 0), (1, 0, 0, 0, 0, 0), (0, 0, 0)),
                "non_local_cfg": NON_LOCAL,
            },
            {"type": "TSMHead"},
        ),
        (8, 3),
    ),
    "TSM, fewer frames": Case(
        frames({"type": "ResNetTSM", "depth": 50, "temporal_pool": True}, {"type": "TSMHead", "temporal_pool": True}),
        (8, 3),
    ),
    "TANet": Case(frames({"type": "TANet", "depth": 50, "num_segments": 8}, {"type": "TSMHead"}), (8, 3)),
    "TRN": Case(frames({"type": "ResNet", "depth": 50}, {"type": "TRNHead"}), (8, 3)),
    "C2D": Case(recognizer({"type": "C2D", "depth": 50}, I3D), (1, 3, 8)),
    "I3D": Case(
        recognizer(
            {
                "type": "ResNet3d",
                "depth": 50,
                "conv1_kernel": (5, 7, 7),
                "inflate": ((1, 1, 1), (1, 0, 1, 0), (1, 0, 1, 0, 1, 0), (0, 1, 0)),
            },
            I3D,
        ),
        (1, 3, 16),
    ),
    "I3D, non-local, recomputed": Case(
        recognizer(
            {
                "type": "ResNet3d",
                "depth": 50,
                "with_cp": True,
                "non_local": ((0, 0, 0), (0, 1, 0, 1), (0, 1, 0, 1, 0, 1), (0, 0, 0)),
                "non_local_cfg": {**NON_LOCAL, "mode": "dot_product"},
            },
            I3D,
        ),
        (1, 3, 16),
    ),
    "I3D, basic blocks": Case(
        recognizer({"type": "ResNet3d", "depth": 18, "frozen_stages": 1}, {**I3D, "in_channels": 512}), (1, 3, 16)
    ),
    "SlowOnly": Case(recognizer({"type": "ResNet3dSlowOnly", "depth": 50}, I3D), (1, 3, 4)),
    "SlowOnly, poses": Case(
        recognizer(
            {
                "type": "ResNet3dSlowOnly",
                "depth": 50,
                "in_channels": 17,
                "base_channels": 32,
                "num_stages": 3,
                "out_indices": (2,),
                "stage_blocks": (4, 6, 3),
                "conv1_stride_s": 1,
                "pool1_stride_s": 1,
                "inflate": (0, 1, 1),
                "spatial_strides": (2, 2, 2),
                "temporal_strides": (1, 1, 2),
                "dilations": (1, 1, 1),
            },
            {**I3D, "in_channels": 512},
        ),
        (1, 17, 16),
    ),
    "SlowFast": Case(
        recognizer(
            {"type": "ResNet3dSlowFast", "pretrained": None, "slow_pathway": SLOW, "fast_pathway": FAST},
            {"type": "SlowFastHead", "in_channels": 2304},
        ),
        (1, 3, 32),
    ),
    "R(2+1)D": Case(
        recognizer(
            {
                "type": "ResNet2Plus1d",
                "depth": 34,
                "pretrained2d": False,
                "conv1_kernel": (3, 7, 7),
                "conv1_stride_t": 1,
                "pool1_stride_t": 1,
                "inflate": (1, 1, 1, 1),
                "spatial_strides": (1, 2, 2, 2),
                "temporal_strides": (1, 2, 2, 2),
                "conv_cfg": {"type": "Conv2plus1d"},
            },
            {**I3D, "in_channels": 512},
        ),
        (1, 3, 8),
    ),
    "CSN": Case(recognizer(CSN, I3D), (1, 3, 16)),
    "CSN, norms frozen": Case(
        recognizer({**CSN, "norm_eval": True, "bn_frozen": True, "bottleneck_mode": "ip"}, I3D), (1, 3, 16)
    ),
    "C3D": Case(
        recognizer({"type": "C3D", "style": "pytorch"}, {**I3D, "in_channels": 4096, "spatial_type": None}),
        (1, 3, 16),
        size=112,
    ),
    "X3D": Case(
        recognizer(
            {"type": "X3D", "gamma_w": 1, "gamma_b": 2.25, "gamma_d": 2.2},
            {"type": "X3DHead", "in_channels": 432, "fc1_bias": False},
        ),
        (1, 3, 13),
    ),
    "Video Swin": Case(recognizer(SWIN, {**I3D, "in_channels": 192}), (1, 3, 32), size=112),
    "Video Swin, half precision": Case(
        recognizer(SWIN, {**I3D, "in_channels": 192}), (1, 3, 32), size=112, autocast="float16"
    ),
    "TimeSformer": Case(recognizer(TIMESFORMER, {"type": "TimeSformerHead", "in_channels": 192}), (1, 3, 8)),
    "TimeSformer, joint": Case(
        recognizer(
            {**TIMESFORMER, "attention_type": "joint_space_time"}, {"type": "TimeSformerHead", "in_channels": 192}
        ),
        (1, 3, 8),
    ),
    "TimeSformer, space alone": Case(
        recognizer({**TIMESFORMER, "attention_type": "space_only"}, {"type": "TimeSformerHead", "in_channels": 192}),
        (1, 3, 8),
        autocast="float16",
    ),
    "UniFormer": Case(
        recognizer(
            {"type": "UniFormer", "depth": [1, 2, 2, 1], "embed_dim": [64, 128, 320, 512], "drop_path_rate": 0.1},
            {**I3D, "in_channels": 512, "dropout_ratio": 0.0},
        ),
        (1, 3, 16),
    ),
    "ST-GCN": Case(
        recognizer(
            {"type": "STGCN", "graph_cfg": {"layout": "coco", "mode": "stgcn_spatial"}, "num_stages": 6},
            {"type": "GCNHead", "in_channels": 128},
            "RecognizerGCN",
        ),
        (1, 2, 32, 17, 3),
        size=0,
    ),
    "ST-GCN++": Case(
        recognizer(
            {
                "type": "STGCN",
                "graph_cfg": {"layout": "nturgb+d", "mode": "spatial"},
                "num_stages": 6,
                "gcn_adaptive": "init",
                "gcn_with_res": True,
                "tcn_type": "mstcn",
            },
            {"type": "GCNHead", "in_channels": 128},
            "RecognizerGCN",
        ),
        (1, 2, 32, 25, 3),
        size=0,
    ),
    "TPN": Case(
        recognizer(
            {"type": "ResNet3dSlowOnly", "depth": 50, "out_indices": (2, 3), "inflate": (0, 0, 1, 1)},
            {"type": "TPNHead", "in_channels": 2048},
            neck={
                "type": "TPN",
                "in_channels": (1024, 2048),
                "out_channels": 1024,
                "spatial_modulation_cfg": {"in_channels": (1024, 2048), "out_channels": 2048},
                "temporal_modulation_cfg": {"downsample_scales": (8, 8)},
                "upsample_cfg": {"scale_factor": (1, 1, 1)},
                "downsample_cfg": {"downsample_scale": (1, 1, 1)},
                "level_fusion_cfg": {
                    "in_channels": (1024, 1024),
                    "mid_channels": (1024, 1024),
                    "out_channels": 2048,
                    "downsample_scales": ((1, 1, 1), (1, 1, 1)),
                },
                "aux_head_cfg": {"out_channels": 40, "loss_weight": 0.5},
            },
        ),
        (1, 3, 8),
    ),
}


def trace(case: Case) -> Trace:
    """A training step of the library's model, as ``BaseRecognizer.loss`` has it."""
    import mmaction.models
    import torch
    from mmaction.registry import MODELS
    from mmengine.config import ConfigDict
    from mmengine.registry import init_default_scope

    from tests.differential import training

    mmaction.models.heads.base.top_k_accuracy = lambda *_: ()
    torch.Tensor.numpy = lambda *_: None  # type: ignore[method-assign, assignment]
    mmaction.models.backbones.swin.compute_mask.cache_clear()  # of another fake mode
    init_default_scope("mmaction")

    def build_model(_: Any) -> torch.nn.Module:
        model: torch.nn.Module = MODELS.build(ConfigDict(copy.deepcopy(case.model)))
        return model.train()

    def make_batch(_: Any) -> Any:
        samples = [SimpleNamespace(gt_label=torch.empty(1, dtype=torch.int64)) for _ in range(case.batch)]
        return torch.empty(case.batch, *case.shape, *([case.size] * 2 if case.size else ())), samples

    def training_loss(model: Any, batch: Any) -> Any:
        losses = model.loss(*batch)
        return sum(value.mean() for name, value in losses.items() if "loss" in name)

    def optimizer(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=5e-4, foreach=True)

    module: Any = SimpleNamespace(build_model=build_model, make_batch=make_batch, training_loss=training_loss)
    step = training.in_torch(module, {}, optimizer, autocast=case.autocast)
    return Trace(step.parameters, step.peak, step.held, step.saved)


def read() -> dict[str, Trace]:
    """What is written, by the name of its case."""
    written: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return {name: Trace(**numbers) for name, numbers in written["traces"].items()}


def main(folder: str, *names: str) -> None:
    """Of the cases of these names alone; the others' stay."""
    from importlib.metadata import version

    from tests.models.openmmlab import libraries

    libraries.ABSENT += ABSENT
    traces = {name: one._asdict() for name, one in read().items()} if names else {}
    with libraries.found_in(folder):
        traces |= {name: trace(CASES[name])._asdict() for name in names or CASES}
    releases = {name: version(name) for name in ("torch", "mmcv-lite", "mmengine")} | {"mmaction2": "1.2.0"}
    ordered = {name: traces[name] for name in CASES if name in traces}
    RESULTS.write_text(json.dumps({"releases": releases, "traces": ordered}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
