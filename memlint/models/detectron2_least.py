"""What a run of detectron2's engine takes at least under heads, or in an architecture, of a program's own: its ResNet
over the images, and one number for each map that is taken."""

from __future__ import annotations

from memlint.facts.spec import HYPER, TrainingSpec
from memlint.meta import functional as F
from memlint.meta.autograd import no_grad
from memlint.meta.nn import Module
from memlint.meta.tensor import Tensor, empty, state
from memlint.models.cards import without_tf32
from memlint.models.detectron2 import system
from memlint.models.detectron2_backbones import ResNet, Settings
from memlint.models.system import System

LIBRARY = True


class UnderHeads(Module):
    """Images as they are loaded, (3, H, W) in bytes each -> the sum of the maps that a pyramid takes, or of all."""

    def __init__(self, s: Settings) -> None:
        self.backbone = ResNet(s)
        taken = [name for name in s["MODEL.FPN.IN_FEATURES"] if name in self.backbone.wanted]
        self.taken = taken or self.backbone.wanted

    def forward(self, given: list[Tensor]) -> Tensor:
        with no_grad():
            plain = [empty(x.shape) for x in given]
            images = empty((len(given), *given[0].shape))
            del plain
        maps = self.backbone(images)
        losses = [F.sum(maps[name]) for name in self.taken]
        total = losses.pop()
        while losses:
            total = total + losses.pop()
        return total


def build(spec: TrainingSpec) -> System:
    """Where nothing says how many devices share a batch, at least one image is each one's."""
    state.transforms_tiles = without_tf32(spec)
    between = spec.get(HYPER + "image_size_between")
    size = between[0] if between else spec["image_size"]
    return system(spec, UnderHeads(spec[HYPER + "detectron2"]), spec.get("micro_batch_size", 1), size)
