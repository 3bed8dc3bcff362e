"""Family ultralytics: what its schema cannot say, and what yolov5's options say alike (:mod:`memlint.dialects.yolov5`).

A run names its net (``yolo11n.pt``) and its data, and both are files that are downloaded: nets are known by their
names, data by the library's own names or by a file that is there.

Source: ultralytics 8.4.190 (``cfg``, ``engine/trainer.py``, ``models/yolo``).
"""

from __future__ import annotations

import re
from math import ceil
from typing import Any

from memlint.architectures import sizes
from memlint.architectures.yolo import (
    CLASSIFY,
    DESCRIBED,
    DETECT,
    OBJECTS,
    OBJECTS_OF_MOSAIC,
    SEGMENT,
    TEN,
    beside,
    ten,
)
from memlint.dialects import key_facts, sharing, yolo_files
from memlint.dialects.accelerate import truth
from memlint.dialects.stated import gap, put
from memlint.documents.node import Document, Node
from memlint.facts.spec import ASSUMED, HYPER, Fact, Name, TrainingSpec, UnknownModel

ARCHITECTURE = "yolo"
spell = key_facts.spell

STRIDE = 32  # images are as large as a multiple of it (utils/checks.py: check_imgsz)
NOMINAL = 64  # images of an optimizer step (nbs)
LONG = 10_000  # steps, from which on `optimizer: auto` takes another one
EPOCHS = 100
SIDE = sizes.FACTS["image_size"]
CLASSIFIER_SIZE = 224  # models/yolo/classify/train.py
TASKS = {"": DETECT, "-seg": SEGMENT, "-cls": CLASSIFY}
_BESIDE = {"-pose": "Pose", "-obb": "OBB"}  # heads that detect, and say something besides
_NAME = re.compile(r"yolo(v8|11)([nsmlx]?)(-seg|-cls|-pose|-obb)?(?:\.(?:pt|ya?ml))?")
_YOLOV5 = re.compile(
    r"yolov5([nsmlx])u?(?:\.pt)?"
)  # a name without "u" is taken for the one with it (utils/downloads.py)
_YOLOV10 = re.compile(r"yolov10([nsmblx])(?:\.(?:pt|ya?ml))?")
NETS = "YOLOv8 and YOLO11 (n, s, m, l, x), to detect, to segment (-seg) and to classify (-cls), YOLOv5u and YOLOv10 are"

# The library's own data: images to train on, classes (cfg/datasets/*.yaml; classifiers' in its documentation).
DATA: dict[str, tuple[int, int]] = {
    **{"argoverse": (39_384, 8), "globalwheat2020": (3_422, 1), "homeobjects-3k": (2_285, 12)},
    **{"objects365": (1_742_289, 365), "sku-110k": (8_219, 1), "tt100k": (6_105, 221), "voc": (16_551, 20)},
    **{"visdrone": (6_471, 10), "african-wildlife": (1_052, 4), "brain-tumor": (893, 2), "kitti": (5_985, 8)},
    **{"carparts-seg": (3_156, 23), "crack-seg": (3_717, 1), "package-seg": (1_920, 1), "signature": (143, 1)},
    **{"construction-ppe": (1_132, 11), "lvis": (100_170, 1_203), "medical-pills": (92, 1)},
    **{"open-images-v7": (1_743_042, 601), "xview": (762, 60), "coco": (118_287, 80)},
    **dict.fromkeys(("coco8", "coco8-seg"), (4, 80)),
    **dict.fromkeys(("coco128", "coco128-seg"), (128, 80)),
    **{"imagenet": (1_281_167, 1_000), "imagenet10": (12, 10), "imagenette": (9_469, 10), "imagewoof": (9_025, 10)},
    **{"imagenette160": (9_469, 10), "imagenette320": (9_469, 10), "cifar10": (50_000, 10), "cifar100": (50_000, 100)},
    **{"mnist": (60_000, 10), "fashion-mnist": (60_000, 10)},
}
COCO_CLASSES, IMAGENET_CLASSES = 80, 1_000
# Objects of the fullest image: COCO's has 93 (instances_train2017.json), and a mosaic is of parts of four. Data may
# have a few in each, or, taken from above, hundreds.
FULLEST, FEWEST, MOST = 100, 10, 300
OPTIMIZERS = ("sgd", "adam", "adamw", "musgd")
# Keys that make another net or another loop -> the values that do not, and what is not known.
_OTHERWISE: dict[str, tuple[tuple[Any, ...], str]] = {
    "compile": ((None, False, "false", "False"), "a compiled net"),
    "distill_model": ((None, ""), "a teacher"),
    "quantize": ((None, "", 32, "fp32"), "training for eight bits"),
    "cfg": ((None, ""), "what a file of other settings says"),
    "mask_ratio": ((None, 4), "masks of another size than the prototypes'"),
    "overlap_mask": ((None, True), "masks that are apart"),
}


def recognise(document: Document, root: Node) -> bool:
    """A file of settings that leaves both net and data to whoever starts a run (the library's own ``cfg/default.yaml``,
    and copies of it) is none."""
    return any((node := root.get(key)) is None or node.value is not None for key in ("model", "data"))


def complete(spec: TrainingSpec) -> TrainingSpec:
    """Facts in the words of the vocabulary, and the net where its name is known."""
    spec = key_facts.complete(spec)
    if "model" not in spec:
        item = gap(spec, "model")
        spec.unknown_reason = spec.unknown_reason if item is None else f"model is not known: {item.reason}"
        return spec
    net, letter, task, reason, more = _net(spec)
    reason = reason or _unknown(spec)
    if not reason:
        put(spec, HYPER + "net", net, spec.fact("model"))
        put(spec, HYPER + "scale", letter, spec.fact("model"))
        put(spec, HYPER + "task", task, spec.fact("model"))
        mosaic = value(spec, "mosaic")
        reason = describe(spec, task, mosaic is None or bool(mosaic), devices(value(spec, "device")))
    reason = reason or _optimizer(spec)
    spec.unknown_reason = reason or more
    if more and not reason:
        put(spec, HYPER + "classes", 1, reason="the fewest that there may be")
        spec.architecture_at_least = ARCHITECTURE
    elif not reason:
        spec.architecture = ARCHITECTURE
    return spec


def value(spec: TrainingSpec, key: str) -> Any:
    """What a key says; None where it is absent, or says nothing."""
    node: Node | None = spec.root.get(key)
    found = None if node is None else node.plain()
    return None if found in ("None", "null") else found


def describe(spec: TrainingSpec, task: str, mosaic: bool, count: int) -> str:
    """Sizes, devices, batches and data, which a net's name does not say: why they are not known, or "". ``count``: of
    devices that the run's own keys name; 0 for none."""
    if not count:  # however many cards a what-if asks for
        return f"device {value(spec, 'device')}: no CUDA device"
    if "parameter_dtype" not in spec:
        put(spec, "parameter_dtype", "float32", reason="weights are in fp32")
    for step in (_size, _data):
        reason = step(spec, task)
        if reason:
            return reason
    _devices(spec, count)
    reason = _batch(spec) or _frozen(spec)
    if reason or task == CLASSIFY:
        return reason
    objects = OBJECTS_OF_MOSAIC if mosaic else OBJECTS
    name: Name
    for name, number in ((HYPER + "boxes", FULLEST), (HYPER + "objects", objects)):
        if name not in spec:
            what = "objects of the fullest image, to whose number a batch is filled up" if number == FULLEST else ""
            what = what or f"objects of an image on average, as of COCO's{' in mosaics of four' if mosaic else ''}"
            put(spec, name, number, Fact(name, None, ASSUMED), what)
    put(spec, HYPER + "boxes_between", (FEWEST, MOST), reason="of other data")
    return ""


def _wrong(name: str, stated: Any, kind: sizes.Kind) -> str:
    """Why a value is none that its key takes; "" for one that is."""
    try:
        sizes.check(name, stated, kind)
    except UnknownModel as error:
        return str(error)
    return ""


def _net(spec: TrainingSpec) -> tuple[str, str, str, str, str]:
    """Series, letter and task of a net by its name, or as a YAML describes it, why it is not known, or "", and what its
    head says beside boxes."""
    stated = spec["model"]
    found = _NAME.fullmatch(spec.model_name) if isinstance(stated, str) else None
    is_a_file = isinstance(stated, str) and stated.endswith((".yaml", ".yml"))
    if isinstance(stated, str) and (found is None or is_a_file):
        own = yolo_files.of(stated, spec.document.path)
        if own is not None:
            put(spec, HYPER + "net_layers", own.net, spec.fact("model"))
            put(spec, HYPER + "net_scale", own.scale, spec.fact("model"))
            return DESCRIBED, own.letter, own.task, own.reason, own.more
    if found is None and isinstance(stated, str) and (older := _YOLOV5.fullmatch(spec.model_name)) is not None:
        return "v5u", older[1], DETECT, "", ""
    if found is None and isinstance(stated, str) and (later := _YOLOV10.fullmatch(spec.model_name)) is not None:
        put(spec, HYPER + "net_layers", ten(later[1]), spec.fact("model"))
        put(spec, HYPER + "net_scale", TEN[later[1]], spec.fact("model"))
        return DESCRIBED, later[1], DETECT, "", ""
    if found is None:
        why = f"model {stated}: no net of Ultralytics that is known by its name; {NETS}: {key_facts.WAY_OUT}"
        return "", "", "", why, ""
    net, letter, suffix = found.groups()
    more = f"model {stated}: {beside(_BESIDE[suffix])}" if suffix in _BESIDE else ""
    return net, letter or "n", TASKS.get(suffix or "", DETECT), "", more


def _unknown(spec: TrainingSpec) -> str:
    """Why there is no estimate besides the net; "" where there may be one."""
    mode = value(spec, "mode")
    if mode not in (None, "train"):
        return f"mode {mode} trains nothing"
    for key in ("batch", "imgsz", "device", "freeze", "multi_scale", "nbs", "optimizer"):
        item = gap(spec, key)
        if item is not None:
            return f"{item.key} is not known: {item.reason}"
    for key, (without, what) in _OTHERWISE.items():
        stated = value(spec, key)
        if not any(stated is one or (stated == one and type(stated) is type(one)) for one in without):
            return f"{key} {stated}: {what} is not known"
    return ""


# ------------------------------------------------------------------------------------------------- sizes, data, devices


def _size(spec: TrainingSpec, task: str) -> str:
    """Images are squares, as large as the largest side that is stated, or as the largest of several scales."""
    stated = spec.fact("image_size")
    node = spec.root.get("imgsz")
    if stated is None:
        said = "" if node is None else str(node.plain())
        return f"imgsz {said[:40]} is no size of an image" if said else "imgsz is not stated"
    if spec.tried("image_size") is not None:
        return ""
    size = stated.value
    if task == CLASSIFY and stated.node is None:
        size = CLASSIFIER_SIZE
    side = max(size, default=0) if isinstance(size, list) else size
    if reason := _wrong(stated.label, side, SIDE):
        return reason
    reason = f"the next multiple of {STRIDE}" if side % STRIDE else stated.reason
    scale = value(spec, "multi_scale") or value(spec, "multi-scale")
    if scale is not None and task != CLASSIFY:
        share = 0.5 if truth(scale) and not isinstance(scale, float) else scale
        if share is False or share in (0, "false", "False"):
            share = 0
        if not isinstance(share, (int, float)) or not 0 <= share < 1:
            return f"multi_scale {scale} is no share of imgsz"
        if share:
            side, reason = int(side * (1 + share)), f"multi_scale: up to {share:.0%} larger"
    side = max(ceil(side / STRIDE), 1) * STRIDE
    if truth(value(spec, "rect")):
        reason = "rect: images of one shape together, which are no larger than squares"
    spec.facts["image_size"] = stated._replace(value=side, reason=reason)
    return ""


def _data(spec: TrainingSpec, task: str) -> str:
    """How many classes there are."""
    name: Name = HYPER + "classes"
    if truth(value(spec, "single_cls")) or truth(value(spec, "single-cls")):
        put(spec, name, 1, reason="single_cls: all classes as one")
        return ""
    stated, stem = _stem(spec)
    classes = _own_classes(spec)
    if classes is not None:
        if reason := _wrong("data: nc", classes, sizes.PARTS):
            return reason
        put(spec, name, classes, reason=f"{stated} has so many classes")
    elif stem in DATA:
        put(spec, name, DATA[stem][1], reason=f"{stem} has so many classes")
    else:
        whose, number = ("ImageNet's", IMAGENET_CLASSES) if task == CLASSIFY else ("COCO's", COCO_CLASSES)
        reason = f"as many as {whose}: {stated or 'the data'} is not there to be read"
        put(spec, name, number, Fact(name, None, ASSUMED), reason)
    return ""


def _stem(spec: TrainingSpec) -> tuple[str, str]:
    """The data as stated, and their name."""
    stated = value(spec, "data")
    text = stated if isinstance(stated, str) else ""
    last = text.rstrip("/").rpartition("/")[2]
    return text, re.sub(r"\.ya?ml$", "", last).lower()


def _own_classes(spec: TrainingSpec) -> int | None:
    """How many classes a data file of this repository lists; None where there is none, or it does not say."""
    from memlint.dialects import companions

    stated, _ = _stem(spec)
    if not stated.endswith((".yaml", ".yml")):
        return None
    document, _ = companions.read(stated, spec.document.path)
    if document is None:
        return None
    names, count = document.root.get("names"), document.root.get("nc")
    if names is not None and isinstance(names.value, (list, dict)) and names.value:
        return len(names.value)
    number = None if count is None else count.value
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def devices(stated: Any) -> int:
    """How many cards ``device`` names (utils/torch_utils.py: parse_device): numbers are cards' own, not how many there
    are. 0 for none of them: a processor, or a card that is no CUDA device."""
    if stated is None or stated == "" or isinstance(stated, int):
        return 1
    names = stated if isinstance(stated, (list, tuple)) else str(stated).strip("()[] ").split(",")
    names = [str(name).strip().removeprefix("cuda:") for name in names if str(name).strip()]
    if names and all(name.removeprefix("-").isdecimal() or name == "cuda" for name in names):
        return len(names)
    return 0


def _devices(spec: TrainingSpec, count: int) -> None:
    """Several cards that ``device`` names are as many processes, each with a part of the batch."""
    tried = spec.tried("device_count")
    if tried is not None:
        sharing.on_devices(spec)
        return
    if "device_count" in spec:
        return
    origin = spec.fact(HYPER + "device")
    if origin is None or origin.node is None:
        origin = None
    reason = "one card, where device names no others" if count == 1 else "the cards that device names"
    put(spec, "device_count", count, origin, reason)
    put(spec, "world_size", count, origin, reason)
    put(spec, "parallelism.strategy", "ddp" if count > 1 else "none", origin, reason)


def _batch(spec: TrainingSpec) -> str:
    """Images of a device, and how many batches an optimizer step is of; why they are not known, or ""."""
    whole = spec.fact("global_batch_size")
    stated = next(
        (found for key in ("batch", "batch-size", "batch_size") if (found := value(spec, key)) is not None), None
    )
    if whole is None:
        asks = stated == -1 or (isinstance(stated, float) and 0 < stated < 1)
        share = "60" if not isinstance(stated, float) else f"{stated:.0%}".rstrip("%")
        why = f"AutoBatch takes as many images as fill {share} % of the card" if asks else "no number of images"
        return f"batch {str(stated)[:40]}: {why}"
    count = spec["device_count"]
    if "micro_batch_size" not in spec:
        if whole.value % count:
            return f"{whole.label} {whole.value} is no multiple of {count} devices"
        put(spec, "micro_batch_size", whole.value // count, whole, f"{whole.label} {whole.value} over {count} devices")
    if spec.get(HYPER + "task") == CLASSIFY and spec.get(HYPER + "net") == "v5":
        return ""
    nominal = value(spec, "nbs")
    nominal = NOMINAL if nominal is None else nominal
    if reason := _wrong("nbs", nominal, sizes.SIZE):
        return reason
    every = spec["micro_batch_size"] * count
    steps = max(round(nominal / every), 1) if every else 1
    if "gradient_accumulation_steps" not in spec:
        put(
            spec,
            "gradient_accumulation_steps",
            steps,
            spec.fact(HYPER + "nominal_batch"),
            f"{nominal} / {every} images",
        )
    return ""


def _frozen(spec: TrainingSpec) -> str:
    """The numbers of the layers that do not train; why they are not known, or ""."""
    stated = value(spec, "freeze")
    if isinstance(stated, str) and re.fullmatch(r"[\d, \[\]]+", stated):
        stated = [int(one) for one in re.findall(r"\d{1,6}", stated)]
    if isinstance(stated, list):  # words of a command
        stated = [int(one) if isinstance(one, str) and re.fullmatch(r"\d{1,6}", one) else one for one in stated]
    if isinstance(stated, list) and len(stated) == 1 and isinstance(stated[0], int) and spec.family == "yolov5":
        stated = stated[0]
    if stated is None or stated is False or stated == []:
        return ""
    if isinstance(stated, int) and not isinstance(stated, bool):
        if reason := _wrong("freeze", stated, sizes.LAYER):
            return reason
        stated = list(range(stated))
    if not isinstance(stated, list) or not all(sizes.LAYER.accepts(one) for one in stated):
        return f"freeze {str(stated)[:40]}: layers are known by their numbers"
    put(spec, HYPER + "frozen_layers", stated, spec.fact(HYPER + "freeze"))
    return ""


def _optimizer(spec: TrainingSpec) -> str:
    """What ``auto`` takes: by the steps of the whole training (engine/trainer.py: build_optimizer)."""
    name = spec.get("optimizer", "auto")
    if name != "auto":
        return "" if name in OPTIMIZERS else f"optimizer {name} is not known"
    stated = spec.fact("optimizer")
    _, stem = _stem(spec)
    epochs = value(spec, "epochs")
    epochs = epochs if isinstance(epochs, int) else EPOCHS
    if stem not in DATA or _own_classes(spec) is not None:
        reason = f"auto: of no more than {LONG:,} steps, as the data are not there to be counted"
        put(spec, "optimizer", "adamw", Fact("optimizer", None, ASSUMED), reason)
        return ""
    whole = spec["micro_batch_size"] * spec["device_count"]
    nominal = value(spec, "nbs")
    steps = ceil(DATA[stem][0] / max(whole, nominal if isinstance(nominal, int) else NOMINAL)) * epochs
    chosen = "adamw"
    if steps > LONG:
        chosen = "musgd" if spec.does("ultralytics.auto_takes_musgd") else "sgd"
    put(spec, "optimizer", chosen, stated, f"auto: {steps:,} steps")
    return ""
