"""Ultralytics' YOLO nets by their names: YOLOv8 and YOLO11 of the package ultralytics, and the repository yolov5's,
which detect, segment or classify. Layers, losses and the loop around them.

How many objects an image has is the data's. ``boxes``: of the fullest image, to whose number those of a batch are
filled up; ``objects``: of an image on average.

Source: ultralytics 8.4.190, and 8.3.100 where releases differ (``nn/modules``, ``nn/tasks.py``, ``utils/loss.py``,
``utils/tal.py``, ``engine``); yolov5 5081342 (``models``, ``utils/loss.py``, ``utils/segment``, ``train.py``,
``val.py``).
Shapes: B images, A anchors (a place of any of three maps), N boxes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from memlint.architectures.yolo import CLASSIFY, DESCRIBED, OBJECTS, SCALES
from memlint.facts.spec import HYPER, TrainingSpec
from memlint.meta import functional as F
from memlint.meta import optim
from memlint.meta.amp import autocast, to
from memlint.meta.ops.formats import channels_last
from memlint.meta.tensor import DTYPES, DType, Tensor, empty, float16, float32, state, uint8
from memlint.models.cards import without_tf32
from memlint.models.system import System
from memlint.models.yolo.described import DescribedNet, fitting
from memlint.models.yolo.losses import Data, Habits, of_anchors, of_classes, of_points
from memlint.models.yolo.nets import Both, Chain, Net, answered

LIBRARY = True
CLEARED_OVER = 0.5  # of the card, before a validation (engine/trainer.py: _clear_memory)


def build(spec: TrainingSpec) -> System:
    """The System of ``architecture = "yolo"``. Facts: those of ``schemas/ultralytics.schema.json``, and yolov5's."""
    state.softmax_keeps_input = spec.does("torch.softmax_keeps_its_input")
    state.transforms_tiles = without_tf32(spec)
    task: str = spec[HYPER + "task"]
    size = spec["image_size"]
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    batch: int = spec["micro_batch_size"]
    own = spec[HYPER + "net"] != "v5"
    habits = Habits(
        spec.does("ultralytics.looks_at_each_side") if own else True,
        spec.does("ultralytics.lists_candidates") if own else True,
    )
    model = _net(spec, own)
    data = Data(spec.get(HYPER + "boxes", 1), spec.get(HYPER + "objects", 1), spec[HYPER + "classes"])

    losses = partial(_loss_of, task, own, habits)
    compute = spec.get("compute_dtype", "float32")

    def images(count: int = batch, kind: DType = float32) -> Tensor:
        if task == CLASSIFY:
            return to(empty((count, 3, height, width)), kind)
        loaded = empty((count, 3, height, width), uint8)
        made = to(loaded, kind)
        del loaded
        return F.div(made, 255)

    path = spec[HYPER + "net_layers"].path if spec[HYPER + "net"] == DESCRIBED else ""

    def loss(x: Tensor) -> Tensor:
        return fitting(lambda: losses(model(x), data), path) if path else losses(model(x), data)

    def evaluate() -> Any:
        """Between two epochs: twice as many images, none of them a mosaic, by weights in 16 bits where autocast trains
        in them, and the loss of them as well."""
        model.eval()
        with autocast(None):
            found = model(images(2 * batch, float16 if compute != "float32" else float32))
            answers = answered(found)
            losses(found, data._replace(objects=min(data.objects, OBJECTS)))
        return found, answers

    name: str = spec["optimizer"]
    optim.known(name)  # MuSGD's is a library's own
    return System(
        model=model,
        batch=images,
        loss=loss,
        optimizer=name,
        optimizer_options=_options(spec, name, own),
        accumulation=spec.get("gradient_accumulation_steps", 1),
        autocast=DTYPES[compute] if compute != "float32" else None,
        ema=[model] if spec.get("ema", True) else [],
        evaluate=evaluate,
        clears_over=CLEARED_OVER if own and spec.does("ultralytics.clears_before_validation") else 0.0,
        keeps_gradients=spec.does("torch.keeps_gradients_as_zeros"),
        uses=frozenset({"matmul", "convolution"}),
    )


def _loss_of(task: str, own: bool, habits: Habits, found: Any, data: Data) -> Tensor:
    if task == CLASSIFY:
        return of_classes(found)
    if isinstance(found, Both):
        return of_points(found.many, data, habits) + of_points(found.one, data, habits)
    return of_points(found, data, habits) if own else of_anchors(found, data)


def _net(spec: TrainingSpec, own: bool) -> Chain:
    """The net, with the layers frozen that are. ``own``: the package's, and not yolov5's."""
    net, letter = spec[HYPER + "net"], spec[HYPER + "scale"]
    if net == DESCRIBED:
        layers, scale = spec[HYPER + "net_layers"], spec[HYPER + "net_scale"]
        made = fitting(lambda: DescribedNet(layers, scale, letter, spec[HYPER + "classes"]), layers.path)
        model: Chain = made
    else:
        model = Net(net, SCALES[net.removesuffix("u")][letter], spec[HYPER + "task"], spec[HYPER + "classes"], letter)
    for number in spec.get(HYPER + "frozen_layers") or ():
        if number < len(model.layers):
            model.layers[number].freeze()
    if own and spec.does("ultralytics.keeps_channels_last"):
        for tensor in model.tensors():
            channels_last(tensor)
    return model


def _options(spec: TrainingSpec, name: str, own: bool) -> dict[str, Any]:
    if name in ("adam", "adamw"):
        fused = own and spec.does("ultralytics.fuses_adam")
        return {"implementation": "fused" if fused else "foreach"}
    if name == "sgd":
        return {"implementation": "foreach", "momentum": True, "weight_decay": True}
    return {}
