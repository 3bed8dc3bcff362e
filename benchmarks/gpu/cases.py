"""What is measured: the examples at several settings, and the models of ``models.py`` at several sizes and settings.

A case is either a config file of ``examples/`` with overrides, which memlint also has a static model for, or the dict
that ``models.py`` builds from, with the facts that a config family would have found. ``SMALL`` shrinks both, so that
the same cases run on a CPU. Nothing here imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memlint.named_tuple import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

SYSTEM, MODEL, LAYER, CONTEXT = "system", "model", "layer", "context"
REAL, SMALL_SCALE = "real", "small"

PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {"parameter_dtype": "float32", "compute_dtype": "float32", "autocast": False},
    "autocast-bf16": {"parameter_dtype": "float32", "compute_dtype": "bfloat16", "autocast": True},
    "autocast-fp16": {"parameter_dtype": "float32", "compute_dtype": "float16", "autocast": True},
    "bf16": {"parameter_dtype": "bfloat16", "compute_dtype": "bfloat16", "autocast": False},
}


class Case(NamedTuple):
    """One row of the table.

    kind       system (a config of examples/), model, layer (one kernel), or context (what a process takes by itself)
    family     the system, the architecture, or how a context comes about
    path       of a system's config, below examples/; ``overrides`` as after ``-o``
    config     what ``models.py`` builds from; ``facts`` how it is trained
    compiled   measured under torch.compile, traced without
    probed     measured by memlint's own probe instead
    history    the allocator's history is written down as well
    """

    name: str
    kind: str
    family: str
    path: str = ""
    overrides: tuple[str, ...] = ()
    config: dict[str, Any] = {}  # noqa: RUF012  (never changed)
    facts: dict[str, Any] = {}  # noqa: RUF012
    compiled: bool = False
    probed: bool = False
    history: bool = False


# -- the systems

# (name, config, overrides)
SYSTEMS: dict[str, tuple[tuple[str, str, tuple[str, ...]], ...]] = {
    "stdiff": (
        ("after", "kitti_range_train_config_after.yaml", ()),
        ("after-fp32", "kitti_range_train_config_after.yaml", ("Training.mixed_precision='no'",)),
        ("after-plain-attention", "kitti_range_train_config_after.yaml", ("Training.use_xformers=false",)),
        ("after-no-checkpointing", "kitti_range_train_config_after.yaml", ("Training.gradient_checkpointing=false",)),
        ("after-batch-2", "kitti_range_train_config_after.yaml", ("Dataset.batch_size=2",)),
    ),
    "uni3d+dp": (
        ("before", "uni3d+dp.yaml", ()),
        ("after", "uni3d+dp_after.yaml", ()),
        ("balanced", "uni3d+dp_balanced.yaml", ()),
        ("ultra-low", "uni3d+dp_ultra_low.yaml", ()),
        ("before-bf16", "uni3d+dp.yaml", ("training.mixed_precision=bf16",)),
        ("before-checkpointing", "uni3d+dp.yaml", ("policy.pointcloud_encoder_cfg.use_checkpoint=true",)),
    ),
    "dit3d": (
        ("after", "config.py", ()),
        ("after-batch-8", "config.py", ("BATCH_SIZE=8",)),
        ("before", "config_before.py", ()),
        ("before-fused-attention", "config_before.py", ("DIT_FUSED_ATTENTION=True",)),
        ("before-checkpointing", "config_before.py", ("DIT_GRADIENT_CHECKPOINTING=True",)),
        ("before-amp", "config_before.py", ("USE_AMP=True",)),
    ),
    "video-llm": (
        ("after", "config.yaml", ()),
        ("after-16-frames", "config.yaml", ("data.max_frames=16", "training.batch_size=2")),
        ("after-eager", "config.yaml", ("data.max_frames=16", "model.llm.attn_implementation=eager")),
        (
            "after-no-checkpointing",
            "config.yaml",
            ("data.max_frames=16", "training.batch_size=1", "model.llm.use_gradient_checkpointing=false"),
        ),
        ("before-8-frames", "config_before.yaml", ("data.max_frames=8", "training.batch_size=1")),
    ),
    "lag-mode": (
        ("before", "train_lag_mode.sh", ()),
        ("low-mem", "train_lag_mode_low_mem.sh", ()),
        ("low-mem-film", "train_lag_mode_low_mem.sh", ("mode_conditioning=film",)),
        ("low-mem-16-sets", "train_lag_mode_low_mem.sh", ("batch_size=16",)),
    ),
}
FOLDERS = {"uni3d+dp": "uni3d_dp", "video-llm": "video_llm", "lag-mode": "lag_mode"}

SMALL_SYSTEMS: dict[str, tuple[str, ...]] = {
    "stdiff": (
        "STDiff.Diffusion.unet_config.sample_size=[16,64]",
        "STDiff.Diffusion.unet_config.block_out_channels=[32,32,64,64,64]",
        "STDiff.Diffusion.unet_config.attention_head_dim=[null,32,32,32,32]",
        "STDiff.Diffusion.unet_config.m_channels=64",
        "STDiff.DiffNet.MotionEncoder.image_size=[16,64]",
        "STDiff.DiffNet.MotionEncoder.model_channels=16",
        "Dataset.image_size=[16,64]",
        "STDiff.DiffNet.Int.sde_options.dt=0.5",
    ),
    "uni3d+dp": (
        "dataloader.batch_size=4",
        "val_dataloader.batch_size=2",
        "policy.down_dims=[64,128]",
        "policy.pointcloud_encoder_cfg.num_group=8",
        "policy.pointcloud_encoder_cfg.group_size=8",
    ),
    "dit3d": (
        "BATCH_SIZE=1",
        "INPUT_SHAPE=[3,16,64,64]",
        "DIT_VIDEO_SIZE=[16,64,64]",
        "DIT_MODEL_SIZE=DiT3D-XS/4",
    ),
    "video-llm": ("data.max_frames=2", "training.batch_size=1"),
    "lag-mode": (
        *("batch_size=2", "sample_size=2", "depth=1", "encoder_depth=1", "hidden_size=72"),
        *("compute_fid=false", "num_eval_batches=0"),
    ),
}


# -- the models

MODELS: dict[str, dict[str, dict[str, Any]]] = {
    "decoder": {
        "110m": {
            "width": 768,
            "depth": 12,
            "heads": 12,
            "hidden": 2048,
            "vocabulary": 32000,
            "length": 1024,
            "batch": 8,
        },
        "350m": {
            **{"width": 1024, "depth": 24, "heads": 16, "key_value_heads": 4, "hidden": 2816},
            **{"vocabulary": 32000, "length": 2048, "batch": 4},
        },
        "1b": {
            **{"width": 2048, "depth": 16, "heads": 32, "key_value_heads": 8, "hidden": 8192},
            **{"vocabulary": 128256, "length": 2048, "batch": 2},
        },
    },
    "encoder": {
        "base": {"width": 768, "depth": 12, "heads": 12, "vocabulary": 30522, "length": 512, "batch": 16},
        "large": {"width": 1024, "depth": 24, "heads": 16, "vocabulary": 30522, "length": 512, "batch": 16},
    },
    "vit": {
        "b16": {"width": 768, "depth": 12, "heads": 12, "patch": 16, "size": 224, "classes": 1000, "batch": 64},
        "s16": {"width": 384, "depth": 12, "heads": 6, "patch": 16, "size": 224, "classes": 1000, "batch": 128},
        "l16": {"width": 1024, "depth": 24, "heads": 16, "patch": 16, "size": 384, "classes": 1000, "batch": 16},
    },
    "unet": {
        "64px": {"widths": [128, 256, 256], "attend_from": 2, "head_dim": 64, "size": 64, "channels": 3, "batch": 32},
        "128px": {
            **{"widths": [128, 256, 384, 512], "attend_from": 2, "head_dim": 64},
            **{"size": 128, "channels": 3, "batch": 16},
        },
    },
    "dit": {
        "b2": {
            **{"width": 768, "depth": 12, "heads": 12, "patch": 2},
            **{"size": 32, "channels": 4, "classes": 1000, "batch": 32},
        },
        "s2": {
            **{"width": 384, "depth": 12, "heads": 6, "patch": 2},
            **{"size": 32, "channels": 4, "classes": 1000, "batch": 64},
        },
        "xl2": {
            **{"width": 1152, "depth": 28, "heads": 16, "patch": 2},
            **{"size": 32, "channels": 4, "classes": 1000, "batch": 32},
        },
    },
    "resnet": {
        "50": {"width": 64, "depths": [3, 4, 6, 3], "bottleneck": True, "size": 224, "classes": 1000, "batch": 64},
        "18": {"width": 64, "depths": [2, 2, 2, 2], "bottleneck": False, "size": 224, "classes": 1000, "batch": 128},
        "101": {"width": 64, "depths": [3, 4, 23, 3], "bottleneck": True, "size": 224, "classes": 1000, "batch": 64},
    },
}
SMALL_MODELS: dict[str, dict[str, Any]] = {
    "decoder": {
        **{"width": 64, "depth": 2, "heads": 4, "key_value_heads": 2, "hidden": 176},
        **{"vocabulary": 512, "length": 64, "batch": 2},
    },
    "encoder": {"width": 64, "depth": 2, "heads": 4, "vocabulary": 512, "length": 64, "batch": 2},
    "vit": {"width": 64, "depth": 2, "heads": 4, "patch": 8, "size": 32, "classes": 10, "batch": 4},
    "unet": {"widths": [32, 64], "attend_from": 1, "head_dim": 32, "size": 16, "channels": 3, "batch": 2},
    "dit": {
        **{"width": 64, "depth": 2, "heads": 4, "patch": 2},
        **{"size": 16, "channels": 4, "classes": 10, "batch": 2},
    },
    "resnet": {"width": 16, "depths": [1, 1, 1, 1], "bottleneck": True, "size": 64, "classes": 10, "batch": 4},
}
COMPILED_DEPTH = {"decoder": {"depth": 4}, "encoder": {"depth": 4}, "vit": {"depth": 4}, "dit": {"depth": 4}}

# What differs from the plain setting: fp32, AdamW with foreach, one micro-batch, nothing recomputed.
SETTINGS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "autocast-bf16": {"precision": "autocast-bf16"},
    "bf16": {"precision": "bf16"},
    "adamw-loop": {"implementation": "loop"},
    "adamw-fused": {"implementation": "fused"},
    "sgd": {"optimizer": "sgd"},
    "sgd-loop": {"optimizer": "sgd", "implementation": "loop"},
    "checkpointing": {"checkpointing": "full"},
    "checkpointing-reentrant": {"checkpointing": "reentrant"},
    "checkpointing-autocast": {"checkpointing": "full", "precision": "autocast-bf16"},
    "accumulation": {"accumulation": 2},
    "ema": {"ema": True},
    "dropout": {"dropout": 0.1},
    "dropout-autocast": {"dropout": 0.1, "precision": "autocast-bf16"},
    "flash": {"attention": "flash", "precision": "bf16"},
    "efficient": {"attention": "efficient"},
    "efficient-bf16": {"attention": "efficient", "precision": "bf16"},
    "math": {"attention": "math"},
    "math-bf16": {"attention": "math", "precision": "bf16"},
    "eager": {"attention": "eager"},
    "eager-autocast": {"attention": "eager", "precision": "autocast-bf16"},
    "channels-last": {"channels_last": True},
    "channels-last-autocast": {"channels_last": True, "precision": "autocast-bf16"},
    "bf16-fused-checkpointing": {"precision": "bf16", "implementation": "fused", "checkpointing": "full"},
    "compiled": {"compiled": True},
    "compiled-bf16": {"compiled": True, "precision": "bf16"},
}
EVERYWHERE = ("fp32", "autocast-bf16", "bf16", "checkpointing", "accumulation")
# (architecture, size) -> settings, the base size of each architecture first
GRID: dict[tuple[str, str], tuple[str, ...]] = {
    ("decoder", "110m"): (
        *EVERYWHERE,
        *("adamw-loop", "adamw-fused", "sgd", "sgd-loop", "ema", "checkpointing-reentrant", "checkpointing-autocast"),
        *("flash", "efficient", "efficient-bf16", "math", "math-bf16", "eager", "eager-autocast"),
    ),
    ("decoder", "350m"): ("autocast-bf16", "bf16", "checkpointing-autocast"),
    ("decoder", "1b"): ("bf16-fused-checkpointing", "bf16"),
    ("encoder", "base"): (
        *EVERYWHERE,
        *("adamw-fused", "dropout", "dropout-autocast", "flash", "math", "eager-autocast"),
    ),
    ("encoder", "large"): ("autocast-bf16", "checkpointing"),
    ("vit", "b16"): (*EVERYWHERE, "adamw-loop", "flash", "efficient", "math-bf16"),
    ("vit", "s16"): ("autocast-bf16",),
    ("vit", "l16"): ("bf16",),
    ("unet", "64px"): (*EVERYWHERE, "adamw-fused", "ema", "channels-last-autocast", "eager"),
    ("unet", "128px"): ("autocast-bf16",),
    ("dit", "b2"): (*EVERYWHERE, "adamw-fused", "ema", "flash", "eager-autocast"),
    ("dit", "s2"): ("fp32",),
    ("dit", "xl2"): ("autocast-bf16", "checkpointing-autocast"),
    ("resnet", "50"): (*EVERYWHERE, "sgd", "sgd-loop", "adamw-fused", "channels-last", "channels-last-autocast"),
    ("resnet", "18"): ("fp32", "sgd"),
    ("resnet", "101"): ("autocast-bf16",),
}
COMPILED: dict[tuple[str, str], tuple[str, ...]] = {
    ("decoder", "110m"): ("compiled", "compiled-bf16"),
    ("encoder", "base"): ("compiled",),
    ("vit", "b16"): ("compiled",),
    ("dit", "b2"): ("compiled",),
    ("resnet", "18"): ("compiled",),
}
HISTORIES = {"decoder/110m/fp32", "decoder/110m/checkpointing", "unet/64px/fp32", "resnet/50/fp32", "dit/b2/bf16"}

# (name, op, precision, sizes): peaks show what a kernel takes beside its tensors
LAYERS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("linear-fp32", "linear", "fp32", {"width": 4096, "shape": [2048, 4096], "batch": 4}),
    ("linear-bf16", "linear", "bf16", {"width": 4096, "shape": [2048, 4096], "batch": 4}),
    ("conv1d-fp32", "conv1d", "fp32", {"width": 512, "shape": [512, 256], "batch": 64}),
    ("conv2d-fp32", "conv2d", "fp32", {"width": 256, "shape": [256, 64, 64], "batch": 32}),
    ("conv2d-bf16", "conv2d", "bf16", {"width": 256, "shape": [256, 64, 64], "batch": 32}),
    ("conv3d-fp32", "conv3d", "fp32", {"width": 128, "shape": [128, 16, 32, 32], "batch": 8}),
    ("conv3d-bf16", "conv3d", "bf16", {"width": 128, "shape": [128, 16, 32, 32], "batch": 8}),
    ("attention-bf16", "attention", "bf16", {"width": 1024, "heads": 16, "shape": [2048, 1024], "batch": 8}),
)
SMALL_LAYERS: dict[str, dict[str, Any]] = {
    "linear": {"width": 128, "shape": [64, 128], "batch": 2},
    "conv1d": {"width": 64, "shape": [64, 64], "batch": 2},
    "conv2d": {"width": 32, "shape": [32, 16, 16], "batch": 2},
    "conv3d": {"width": 16, "shape": [16, 8, 8, 8], "batch": 2},
    "attention": {"width": 64, "heads": 4, "shape": [64, 64], "batch": 2},
}

# Kernels load when they are first used; CUDA_MODULE_LOADING=EAGER loads them all at the start.
CONTEXTS = {"lazy": {}, "eager": {"CUDA_MODULE_LOADING": "EAGER"}}


def cases(scale: str = REAL) -> list[Case]:
    """Every case, those first that a run cut short should have; what is compiled comes last, as it takes longest."""
    found = [Case(f"context/{name}", CONTEXT, name) for name in CONTEXTS]
    found += _interleaved([list(_systems(scale)), list(_models(GRID, scale))])
    found += _layers(scale)
    found += _models(COMPILED, scale)
    return found


def _interleaved(lists: list[list[Case]]) -> list[Case]:
    """In proportion: a run that is cut short has some of each."""
    placed = [(at / len(cases), number, case) for number, cases in enumerate(lists) for at, case in enumerate(cases)]
    return [case for _, _, case in sorted(placed, key=lambda entry: entry[:2])]


def _systems(scale: str) -> Iterator[Case]:
    # The first setting of every system, then the next.
    rows = [(at, family, entry) for family, entries in SYSTEMS.items() for at, entry in enumerate(entries)]
    for _, family, (name, file, overrides) in sorted(rows, key=lambda row: row[0]):
        path = f"{FOLDERS.get(family, family)}/{file}"
        given = (*overrides, *(SMALL_SYSTEMS[family] if scale == SMALL_SCALE else ()))
        yield Case(f"{family}/{name}", SYSTEM, family, path, given)
        if name == "after" and family != "video-llm":
            yield Case(f"{family}/{name}/probe", SYSTEM, family, path, given, probed=True)


def _models(grid: dict[tuple[str, str], tuple[str, ...]], scale: str) -> Iterator[Case]:
    # By setting first: the plain ones of every architecture, then the next.
    rows = [(at, family, size, setting) for (family, size), names in grid.items() for at, setting in enumerate(names)]
    for _, family, size, setting in sorted(rows, key=lambda row: row[0]):
        name = f"{family}/{size}/{setting}"
        chosen = SETTINGS[setting]
        compiled = bool(chosen.get("compiled"))
        sizes = MODELS[family][size]
        if scale == SMALL_SCALE:
            sizes = SMALL_MODELS[family]
        elif compiled:
            sizes = {**sizes, **COMPILED_DEPTH.get(family, {})}
        yield Case(
            name,
            MODEL,
            family,
            config=_config(family, sizes, chosen),
            facts=_facts(chosen, sizes["batch"]),
            compiled=compiled,
            history=name in HISTORIES,
        )


def _layers(scale: str) -> Iterator[Case]:
    for name, op, precision, sizes in LAYERS:
        chosen = {"precision": precision, "optimizer": "sgd"}
        sizes = SMALL_LAYERS[op] if scale == SMALL_SCALE else sizes
        config = {**_config("layer", sizes, chosen), "op": op}
        yield Case(f"layer/{name}", LAYER, op, config=config, facts=_facts(chosen, sizes["batch"]))


def _config(architecture: str, sizes: dict[str, Any], chosen: dict[str, Any]) -> dict[str, Any]:
    return {
        "architecture": architecture,
        "dtype": PRECISIONS[chosen.get("precision", "fp32")]["parameter_dtype"],
        "attention": chosen.get("attention", "default"),
        "any_kernel": False,
        "checkpointing": chosen.get("checkpointing", "none"),
        "channels_last": chosen.get("channels_last", False),
        "dropout": chosen.get("dropout", 0.0),
        **sizes,
    }


def _facts(chosen: dict[str, Any], batch: int) -> dict[str, Any]:
    """As a config family would have found them (memlint/facts/spec.py has the names)."""
    return {
        **PRECISIONS[chosen.get("precision", "fp32")],
        "optimizer": chosen.get("optimizer", "adamw"),
        "optimizer_implementation": chosen.get("implementation", "foreach"),
        "hyperparameters.momentum": 0.9 if chosen.get("optimizer") == "sgd" else 0.0,
        "gradient_accumulation_steps": chosen.get("accumulation", 1),
        "checkpointing": chosen.get("checkpointing", "none"),
        "attention": chosen.get("attention", "default"),
        "ema": chosen.get("ema", False),
        "micro_batch_size": batch,
    }


def find(name: str, scale: str) -> Case:
    """Raises KeyError for a name that no case has."""
    for case in cases(scale):
        if case.name == name:
            return case
    raise KeyError(name)


# -- settings as columns


def settings_of(facts: dict[str, Any]) -> dict[str, Any]:
    """The columns that say how a case trains, from its facts."""
    parameters, compute = facts.get("parameter_dtype") or "float32", facts.get("compute_dtype") or "float32"
    mixed = compute != "float32" and facts.get("autocast", compute != parameters)
    pure = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
    short = pure.get(compute, compute) if mixed else pure.get(parameters, parameters)
    return {
        "precision": f"autocast-{short}" if mixed else short,
        "optimizer": facts.get("optimizer") or "adamw",
        "implementation": facts.get("optimizer_implementation") or "foreach",
        "accumulation": facts.get("gradient_accumulation_steps") or 1,
        "checkpointing": facts.get("checkpointing") or "none",
        "attention": facts.get("attention") or "default",
        "ema": facts.get("ema") not in (None, False, "none", "cpu"),
        "batch": facts.get("micro_batch_size") or "",
    }


def written(case: Case) -> str:
    """What makes the case, in one line: the config and its overrides, or the sizes."""
    if case.path:
        return " ".join((case.path, *case.overrides))
    return json.dumps(case.config, sort_keys=True) if case.config else ""
