"""Models of mmdet3d as their own modules run, and what a training step of each takes: ``points.json``.

    python -m tests.models.openmmlab.points FOLDER   # where the libraries are unpacked

FOLDER has mmdet3d 1.4.0, mmdet 3.3.0, mmengine, mmcv-lite 2.1.0, and mmcv's ``ops`` of that release without its
compiled extension: its functions write into tensors that Python made, and write nothing here. What looks at values
does what it does up to there: a scene's voxels are a list of indices, as a mask becomes one. Losses that choose among
proposals by value are left out: the sum of what is predicted stands for them, here and over meta tensors
(``test_points.py``).
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

RESULTS = Path(__file__).with_name("points.json")
BENCHMARKS = Path(__file__).parents[3] / "benchmarks" / "accuracy" / "cases"
Config = dict[str, Any]
REACH = [0, -39.68, -3, 69.12, 39.68, 1]
BATCH, VOXELS, POINTS_OF_VOXEL = 2, 2000, 16  # voxels of a scene
BN2D = {"type": "BN2d", "eps": 1e-3, "momentum": 0.01}


class Trace(NamedTuple):
    """Bytes of the second of two steps, each storage rounded up to 512."""

    parameters: int
    peak: int
    held: int


def pillars(encoder: Config, norm: str, devices: int = 1) -> Config:
    """Parts of a detector, by their names in it."""
    return {
        "kind": "pillars",
        "devices": devices,
        "encoder": {"in_channels": 4, "voxel_size": [0.16, 0.16, 4], "point_cloud_range": REACH, **encoder},
        "scatter": {"type": "PointPillarsScatter", "in_channels": 64, "output_shape": [96, 64]},
        "backbone": {
            **{"type": "SECOND", "in_channels": 64, "layer_nums": [1, 2], "layer_strides": [2, 2]},
            **{"out_channels": [64, 128], "norm_cfg": {**BN2D, "type": f"{norm}2d"}},
        },
        "neck": {
            **{"type": "SECONDFPN", "in_channels": [64, 128], "upsample_strides": [1, 2], "out_channels": [64, 64]},
            **{"norm_cfg": {**BN2D, "type": f"{norm}2d"}},
        },
    }


def segmentor(backbone: Config, head: Config, channels: int, points: int = 2048, **more: Config) -> Config:
    common = {"channels": 128, "num_classes": 13, "dropout_ratio": 0.5, "conv_cfg": {"type": "Conv1d"}}
    common |= {"norm_cfg": {"type": "BN1d"}, "act_cfg": {"type": "ReLU"}, "ignore_index": 13}
    model = {"type": "EncoderDecoder3D", "backbone": {"in_channels": channels, **backbone}, **more}
    return {"kind": "segmentor", "points": points, "model": {**model, "decode_head": {**common, **head}}}


SSG: Config = {
    **{"type": "PointNet2SASSG", "num_points": (256, 64), "radius": (0.1, 0.2), "num_samples": (16, 16)},
    **{"sa_channels": ((32, 32, 64), (64, 64, 128)), "fp_channels": (), "norm_cfg": {"type": "BN2d"}},
    "sa_cfg": {"type": "PointSAModule", "pool_mod": "max", "use_xyz": True, "normalize_xyz": False},
}
MSG: Config = {
    **{"type": "PointNet2SAMSG", "num_points": (256, 64), "radii": ((0.05, 0.1), (0.1, 0.2))},
    **{
        "num_samples": ((8, 16), (8, 16)),
        "sa_channels": (((16, 16, 32), (32, 32, 64)), ((64, 64, 128), (64, 96, 128))),
    },
    **{"aggregation_channels": (None, None), "fps_mods": ("D-FPS", "D-FPS"), "fps_sample_range_lists": (-1, -1)},
    **{"dilated_group": (False, False), "out_indices": (0, 1)},
    "sa_cfg": {"type": "PointSAModuleMSG", "pool_mod": "max", "use_xyz": True, "normalize_xyz": False},
}
SCORES = {"mlp_channels": [8, 16, 16], "score_norm": "softmax", "temp_factor": 1.0, "last_bn": False}


def paconv(kind: str) -> Config:
    module = {"type": kind, "pool_mod": "max", "use_xyz": True, "normalize_xyz": False, "scorenet_cfg": SCORES}
    module |= {
        "paconv_num_kernels": [8, 8, 8],
        "paconv_kernel_input": "w_neighbor",
        "scorenet_input": "w_neighbor_dist",
    }
    return {**SSG, "radius": (None, None), "norm_cfg": {"type": "BN2d", "momentum": 0.1}, "sa_cfg": module}


DECODER = {
    "type": "BaseTransformerLayer",
    "attn_cfgs": {
        **{"type": "GroupFree3DMHA", "embed_dims": 64, "num_heads": 4, "attn_drop": 0.1},
        "dropout_layer": {"type": "Dropout", "drop_prob": 0.1},
    },
    "ffn_cfgs": {
        **{"embed_dims": 64, "feedforward_channels": 256, "ffn_drop": 0.1},
        "act_cfg": {"type": "ReLU", "inplace": True},
    },
    "operation_order": ("self_attn", "norm", "cross_attn", "norm", "ffn", "norm"),
}
LOSS = {"type": "mmdet.SmoothL1Loss", "reduction": "sum"}
GROUP_FREE: Config = {
    "kind": "group free",
    "points": 2048,
    "backbone": {**SSG, "in_channels": 3, "fp_channels": ((128, 128), (128, 64))},
    "head": {
        **{"type": "GroupFree3DHead", "num_classes": 18, "in_channels": 64, "num_decoder_layers": 2},
        **{"num_proposal": 32, "transformerlayers": DECODER, "size_cls_agnostic": False},
        "decoder_self_posembeds": {"type": "ConvBNPositionalEncoding", "input_channel": 6, "num_pos_feats": 64},
        "decoder_cross_posembeds": {"type": "ConvBNPositionalEncoding", "input_channel": 3, "num_pos_feats": 64},
        "pred_layer_cfg": {"in_channels": 64, "shared_conv_channels": (64, 64), "bias": True},
        "bbox_coder": {
            **{"type": "GroupFree3DBBoxCoder", "num_sizes": 18, "num_dir_bins": 1, "with_rot": False},
            **{"size_cls_agnostic": False, "mean_sizes": [[1.0, 1.0, 1.0]] * 18},
        },
        "train_cfg": {"sample_mode": "kps"},
    },
}
LOSSES = ("sampling_objectness", "objectness", "center", "dir_class", "dir_res", "size_class", "size_res", "semantic")


def centers(separate: Config) -> Config:
    names = [["car"], ["truck", "bus"]]
    heads = {"reg": (2, 2), "height": (1, 2), "dim": (3, 2), "rot": (2, 2), "vel": (2, 2)}
    head = {"type": "CenterHead", "in_channels": 96, "share_conv_channel": 64, "common_heads": heads}
    head["tasks"] = [{"num_class": len(one), "class_names": one} for one in names]
    return {"kind": "centers", "head": {**head, "separate_head": separate}, "size": (48, 40)}


DCN = {"type": "DCN", "in_channels": 64, "out_channels": 64, "kernel_size": 3, "padding": 1, "groups": 4}
GRAPH = {"type": "LeakyReLU", "negative_slope": 0.2}

CASES: dict[str, Config] = {
    "PillarFeatureNet": pillars({"type": "PillarFeatureNet", "feat_channels": [64]}, "BN"),
    "PillarFeatureNet, not legacy": pillars(
        {"type": "PillarFeatureNet", "feat_channels": [64], "legacy": False, "with_distance": True}, "BN"
    ),
    "HardVFE of two layers, on eight devices": pillars(
        {
            **{"type": "HardVFE", "feat_channels": [64, 64], "with_cluster_center": True, "with_voxel_center": True},
            "norm_cfg": {**BN2D, "type": "naiveSyncBN1d"},
        },
        "naiveSyncBN",
        devices=8,
    ),
    "CenterHead": centers({"type": "SeparateHead", "init_bias": -2.19, "final_kernel": 3}),
    "CenterHead, deformable": centers(
        {"type": "DCNSeparateHead", "dcn_config": DCN, "init_bias": -2.19, "final_kernel": 3}
    ),
    "PointNet++, one radius": segmentor(
        SSG, {"type": "PointNet2Head", "fp_channels": ((192, 128), (128, 128, 128))}, 9
    ),
    "PointNet++, places alone": segmentor(
        SSG, {"type": "PointNet2Head", "fp_channels": ((192, 128), (128, 128, 128))}, 3
    ),
    "PointNet++, several radii": segmentor(
        MSG, {"type": "PointNet2Head", "fp_channels": ((352, 128), (128, 128, 128))}, 9
    ),
    "DGCNN": segmentor(
        {
            **{"type": "DGCNNBackbone", "num_samples": (8, 8), "knn_modes": ("D-KNN", "F-KNN"), "radius": (None, None)},
            **{"gf_channels": ((32, 32), (32,)), "fa_channels": (128,), "act_cfg": GRAPH},
        },
        {"type": "DGCNNHead", "fp_channels": (192, 64), "act_cfg": GRAPH},
        9,
        512,
    ),
    "PAConv": segmentor(
        paconv("PAConvSAModule"),
        {"type": "PAConvHead", "fp_channels": ((192, 128), (134, 128, 128))},
        9,
        loss_regularization={"type": "PAConvRegularizationLoss", "reduction": "sum", "loss_weight": 10.0},
    ),
    "PAConv by a kernel": segmentor(
        paconv("PAConvCUDASAModule"), {"type": "PAConvHead", "fp_channels": ((192, 128), (134, 128, 128))}, 9
    ),
    "Group-Free-3D": GROUP_FREE,
}


def read() -> dict[str, Trace]:
    """What is written, by the name of its case."""
    written: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return {name: Trace(**numbers) for name, numbers in written["traces"].items()}


def counted() -> dict[str, int]:
    """Parameters of the models of published runs."""
    found: dict[str, int] = json.loads(RESULTS.read_text(encoding="utf-8"))["parameters"]
    return found


# --------------------------------------------------------------------------------------------- the library's own code


class Extension(ModuleType):
    """Of compiled functions, which do nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


@contextmanager
def library(folder: str) -> Iterator[Any]:
    """mmdet3d's registry of models, while its operators write nothing."""
    import torch

    from tests.models.openmmlab import libraries

    numba = ModuleType("numba")
    numba.jit = numba.njit = lambda *_, **__: lambda function: function  # type: ignore[attr-defined]
    extension = Extension("mmcv._ext")
    sys.modules.update({"numba": numba, "mmcv._ext": extension})
    known, absent = (
        libraries.ABSENT,
        ("nuscenes", "lyft_dataset_sdk", "open3d", "trimesh", "plyfile", "skimage", "terminaltables"),
    )
    libraries.ABSENT = (*[name for name in known if name != "mmcv.ops"], *absent, "shapely", "pyquaternion", "scipy")
    torch.cuda.IntTensor = lambda *size: torch.empty(size, dtype=torch.int32)  # type: ignore[misc, assignment]
    torch.cuda.FloatTensor = lambda *size: torch.empty(size)  # type: ignore[misc, assignment]
    torch.cuda.current_device = lambda: -1  # that of a tensor on the host
    with libraries.found_in(folder):
        import mmdet3d.models  # noqa: F401 - its classes enter their names
        from mmdet3d.registry import MODELS
        from mmengine.registry import init_default_scope

        init_default_scope("mmdet3d")
        yield MODELS


def _on_devices(count: int) -> None:
    import torch
    from mmdet3d.models.layers import norm

    norm.dist = SimpleNamespace(  # type: ignore[assignment]
        is_available=lambda: True,
        is_initialized=lambda: count > 1,
        get_world_size=lambda: count,
        all_gather=lambda *_, **__: None,
        all_reduce=lambda *_, **__: None,
    )
    assert torch


def trace(config: Config, models: Any) -> Trace:
    """A training step: the sum of what is predicted, or the library's loss."""
    import torch

    from tests.differential import training

    _on_devices(config.get("devices", 1))
    makers: dict[str, Callable[[Config, Any], tuple[Any, Any, Any]]] = {
        "pillars": _pillars,
        "centers": _centers,
        "segmentor": _segmentor,
        "group free": _group_free,
    }
    build_model, make_batch, training_loss = makers[config["kind"]](copy.deepcopy(config), models)
    module: Any = SimpleNamespace(build_model=build_model, make_batch=make_batch, training_loss=training_loss)

    def optimizer(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=5e-4, foreach=True)

    step = training.in_torch(module, {}, optimizer)
    return Trace(step.parameters, step.peak, step.held)


def _module(parts: dict[str, Any]) -> Any:
    import torch

    made = torch.nn.Module()
    for name, part in parts.items():
        made.add_module(name, part)
    return made.train()


def _built(models: Any, config: Config) -> Any:
    from mmengine.config import ConfigDict

    return models.build(ConfigDict(copy.deepcopy(config)))


def _pillars(config: Config, models: Any) -> tuple[Any, Any, Any]:
    import torch

    def build_model(_: Any) -> Any:
        names = ("encoder", "scatter", "backbone", "neck")
        return _module({name: _built(models, config[name]) for name in names})

    def make_batch(_: Any) -> Any:
        voxels = torch.empty(BATCH * VOXELS, POINTS_OF_VOXEL, 4)
        counts, places = (
            torch.empty(BATCH * VOXELS, dtype=torch.int32),
            torch.empty(BATCH * VOXELS, 4, dtype=torch.int32),
        )
        return voxels, counts, places

    def scattered(x: Any, scatter: Any) -> Any:
        """``PointPillarsScatter.forward_batch`` with the indices that its mask becomes."""
        canvases = []
        for _ in range(BATCH):
            canvas = torch.zeros(scatter.in_channels, scatter.nx * scatter.ny, dtype=x.dtype)
            rows, indices = torch.empty(VOXELS, dtype=torch.int64), torch.empty(VOXELS, dtype=torch.int64)
            canvas[:, indices] = x[rows, :].t()
            canvases.append(canvas)
            del canvas, rows, indices
        stacked = torch.stack(canvases, 0)
        del canvases
        return stacked.view(BATCH, scatter.in_channels, scatter.ny, scatter.nx)

    def training_loss(model: Any, batch: Any) -> Any:
        x = model.encoder(*batch)
        x = scattered(x.view(x.shape[0], -1), model.scatter)
        return model.neck(model.backbone(x))[0].sum()

    return build_model, make_batch, training_loss


def _centers(config: Config, models: Any) -> tuple[Any, Any, Any]:
    import torch

    head = {**config["head"], "train_cfg": {"max_objs": 500, "dense_reg": 1}, "bbox_coder": CENTER_CODER}

    def training_loss(model: Any, batch: Any) -> Any:
        return sum(x.sum() for (task,) in model.head([batch]) for x in task.values())

    def build_model(_: Any) -> Any:
        return _module({"head": _built(models, head)})

    return build_model, lambda _: torch.empty(BATCH, head["in_channels"], *config["size"]), training_loss


CENTER_CODER = {"type": "CenterPointBBoxCoder", "pc_range": [0, 0], "out_size_factor": 4, "voxel_size": [0.2, 0.2]}


def _segmentor(config: Config, models: Any) -> tuple[Any, Any, Any]:
    import torch

    points = config["points"]

    def make_batch(_: Any) -> Any:
        scenes = [torch.empty(points, config["model"]["backbone"]["in_channels"]) for _ in range(BATCH)]
        masks = [torch.empty(points, dtype=torch.int64) for _ in range(BATCH)]
        samples = [SimpleNamespace(gt_pts_seg=SimpleNamespace(pts_semantic_mask=mask)) for mask in masks]
        return {"points": scenes}, samples

    def training_loss(model: Any, batch: Any) -> Any:
        return sum(value.mean() for value in model.loss(*batch).values())

    return lambda _: _built(models, config["model"]).train(), make_batch, training_loss


def _group_free(config: Config, models: Any) -> tuple[Any, Any, Any]:
    import torch

    losses = {f"{name}_loss": LOSS for name in LOSSES}

    def build_model(_: Any) -> Any:
        made = _module(
            {"backbone": _built(models, config["backbone"]), "head": _built(models, {**config["head"], **losses})}
        )
        made.head.train_cfg = SimpleNamespace(sample_mode="kps")
        return made

    def training_loss(model: Any, batch: Any) -> Any:
        found: list[Any] = []
        head = model.head
        hooks = [
            one.register_forward_hook(lambda *given: found.extend(given[2]))
            for one in (head.conv_pred, *head.prediction_heads)
        ]
        levels = model.backbone(torch.stack(batch))
        scores = head(levels)["seeds_obj_cls_logits"]
        del levels
        for hook in hooks:
            hook.remove()
        return scores.sum() + sum(x.sum() for x in found)

    points = config["points"]
    return build_model, lambda _: [torch.empty(points, 3) for _ in range(BATCH)], training_loss


def configs() -> dict[str, Path]:
    """Those of published runs, by the names of their cases."""
    return {path.parent.name: path for path in sorted(BENCHMARKS.glob("mm3d-*/config.py"))}


def parameters(path: Path, models: Any) -> int:
    """Of the model of a config, which the library builds."""
    from mmengine.config import Config as Stated

    stated = Stated.fromfile(path).model
    stated["test_cfg"] = {"rpn": {}, "rcnn": {}, "pts": {}}
    return sum(one.numel() for one in models.build(stated).parameters())


def main(folder: str) -> None:
    from importlib.metadata import version

    with library(folder) as models:
        counts = {name: parameters(path, models) for name, path in configs().items()}
        traces = {name: trace(config, models)._asdict() for name, config in CASES.items()}
        releases = {name: version(name) for name in ("torch", "mmcv-lite", "mmdet", "mmdet3d", "mmengine")}
    written = {"releases": releases, "parameters": counts, "traces": traces}
    RESULTS.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
