"""DeiT: a vision transformer as a classifier, as its own program trains it.

Source: facebookresearch/deit 7e160fe (``models.py``, ``main.py``, ``engine.py``), timm's vision transformer, whose
attention is one kernel from 0.9 on.
"""

from __future__ import annotations

from memlint.architectures.deit import MODELS
from memlint.facts.spec import HYPER, TrainingSpec
from memlint.meta import optim
from memlint.meta.nn import Conv, LayerNorm, Linear, Module, parameter
from memlint.meta.tensor import DTYPES, DType, Tensor, empty, float32, int64
from memlint.models import dit, mae
from memlint.models.openmmlab.transformers import rates
from memlint.models.system import System


class Classifier(mae.Classifier):
    def __init__(self, spec: TrainingSpec) -> None:
        shape = MODELS[spec["model"]]
        patches = (int(spec["image_size"]) // shape.patch) ** 2
        self.pooled = False
        self.patch_embed = Conv(3, shape.width, (shape.patch, shape.patch), (shape.patch, shape.patch))
        self.cls_token, self.pos_embed = parameter(1, 1, shape.width), parameter(1, patches + 1, shape.width)
        path = float(spec.get(HYPER + "drop_path") or 0)
        self.blocks = [mae.Block(shape.width, shape.heads, rate) for rate in rates(path, shape.depth)]
        if spec.get("attention") != "eager":
            for block in self.blocks:
                block.attn = dit.Attention(shape.width, shape.heads, fused=True)
        self.norm, self.head = LayerNorm(shape.width), Linear(shape.width, int(spec[HYPER + "num_classes"]))


class Run:
    """One run of ``main.py``. Facts: those of ``schemas/deit.schema.json``."""

    def __init__(self, spec: TrainingSpec) -> None:
        self.spec = spec
        self.model: Module = Classifier(spec)
        self.rows, self.classes = int(spec["micro_batch_size"]), int(spec[HYPER + "num_classes"])
        compute = spec.get("compute_dtype", "float32")
        self.autocast: DType | None = None if compute == "float32" else DTYPES[compute]
        self.mixed = any((spec.get(HYPER + name) or 0) > 0 for name in ("mixup", "cutmix"))

    def batch(self) -> list[Tensor]:
        side = int(self.spec["image_size"])
        targets = empty((self.rows, self.classes), float32) if self.mixed else empty((self.rows,), int64)
        return [empty((self.rows, 3, side, side), float32), targets]

    def loss(self, batch: list[Tensor]) -> Tensor:
        """Names of the loop's body live until the next step gives them to others."""
        logits, targets = self.model(batch[0]), batch[1]
        batch.append(logits)
        return mae.classification(logits, targets, bool(self.spec.get(HYPER + "smoothing")))

    def system(self) -> System:
        spec = self.spec
        zeros = spec.does("torch.keeps_gradients_as_zeros")
        options = {"implementation": spec.get("optimizer_implementation", "foreach")}
        name = spec["optimizer"]
        if name == "sgd":
            options |= {"momentum": True, "weight_decay": True}
        return System(
            model=self.model,
            batch=self.batch,
            loss=self.loss,
            optimizer=optim.known(name, spec.get("optimizer_library", "torch")) or name,
            optimizer_options=options,
            groups=self.groups(),
            autocast=self.autocast,
            ema=(self.model,) if spec.get("ema", False) else (),
            keeps_gradients=zeros,
            clears_late=not zeros,
            uses=frozenset({"matmul", "convolution"}),
        )

    def groups(self) -> list[list[Tensor]]:
        """timm's create_optimizer: vectors, the token and the positions decay by no weight, and are a group."""
        model = self.model
        assert isinstance(model, Classifier)
        plain = {id(model.cls_token), id(model.pos_embed)}
        every = model.parameters()
        vectors = [one for one in every if one.ndim == 1 or id(one) in plain]
        alone = {id(one) for one in vectors}
        return [vectors, [one for one in every if id(one) not in alone]]


def build(spec: TrainingSpec) -> System:
    """The System of a run of DeiT's program."""
    return Run(spec).system()
