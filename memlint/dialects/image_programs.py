"""A program that trains an image classifier of a library in a loop of its own, read as the keys of ``image-loop``."""

from __future__ import annotations

from memlint.dialects import image_calls
from memlint.dialects.loop_scripts import Reader, dtype_of
from memlint.dialects.made import is_of_library, root, root_number
from memlint.documents.node import Node
from memlint.documents.programs.call_nodes import argument, name_of, target_of, values_of
from memlint.documents.programs.turn import FROZEN, ON, PART_OF, SET
from memlint.facts.spec import OnTop

# What makes the numbers of a batch that a program has no data for: its shape, as a list or one by one.
_MADE_UP = ("randn", "rand", "zeros", "ones", "empty")
_CHECKPOINTS = "set_grad_checkpointing"  # of timm's models
_IN_16_BITS = ("half", "bfloat16")
_MOVED = ("to", "type")


def _to(call: Node) -> str:
    """The dtype that ``to`` or ``type`` is told, in its first words."""
    return dtype_of(argument(call, "dtype", 0)) or dtype_of(argument(call, "dtype", 1))


class OfImages(Reader):
    """Where the model is one of images: what it returns is small, and its samples are as large as its transforms make
    them."""

    def said(self) -> tuple[dict[str, Node], str]:
        self.model()
        self.about_model()
        self.beside()
        self.optimizer()
        self.precision()
        self.batch()
        self.size()
        self.accumulation()
        self.gradients()
        self.put("loop_of_images", Node(True, self.place))
        return self.keys, self.why

    # ------------------------------------------------------------------------------------------ the model

    def model(self) -> None:
        for one in reversed(self.turn.model):
            call = values_of(one)[ON] if PART_OF in values_of(one) else one
            name = name_of(call)
            if is_of_library(call):
                self.loaded(call)
            elif name in ("DataParallel", "FullyShardedDataParallel", "FSDP", "fully_shard", "initialize"):
                self.stop(f"what {name} does with a classifier is not known", call)
            elif name in ("DistributedDataParallel", "DDP"):
                self.distributed(call)
            else:
                self.changed(name, call)

    def changed(self, name: str, call: Node) -> None:
        """What changes a model in its place, or another that is like it."""
        if name in _IN_16_BITS or (name in _MOVED and _to(call) not in ("", "float32")):
            self.stop("weights of a classifier in 16 bits are not known", call)
        elif name == "compile":
            self.stop("a compiled classifier is not known", call)
        elif name == "reset_classifier":
            self.head(argument(call, "num_classes", 0))

    def loaded(self, call: Node) -> None:
        found = image_calls.made(call)
        assert found is not None
        if not image_calls.is_the_librarys(found, call, self.program):
            self.stop(f"{target_of(call)} is none of a library's that is described", call)
        self.put("model", call, f"{found.library}/{found.name}")
        self.head(argument(call, "num_classes", 9))
        for odd in ("in_chans", "drop_path_rate", "global_pool", "features_only"):
            given = values_of(call).get(odd)
            if given is not None and given.value not in (None, 3, 0.0, False):
                self.stop(f"a model that is made with {odd} is not known", call)

    def head(self, classes: Node | None) -> None:
        if classes is not None and type(classes.value) is int:
            self.put("num_classes", classes)
        elif classes is not None and classes.value is not None:
            self.keys["num_classes"] = Node(None, classes.span, None, "num_classes")

    def about_model(self) -> None:
        number = root_number(self.turn.model[0])
        for call in self.before_the_loop():
            name, values = name_of(call), values_of(call)
            if target_of(call) == FROZEN:
                self.freezes(values["of"], values["value"], False)
                continue
            owner = values.get(ON)
            if owner is None or root_number(owner) != number:
                continue
            if name == _CHECKPOINTS:
                on = argument(call, "enable", 0)
                self.put("grad_checkpointing", call, on is None or on.value is not False)
            elif name == "requires_grad_":
                self.freezes(call, argument(call, "requires_grad", 0) or Node(True, call.span), False)
            elif target_of(call) == SET:
                self.sets(call)
            else:
                self.changed(name, call)

    def sets(self, call: Node) -> None:
        """An attribute of the model: a head of as many classes as the program has, or what is not known."""
        attribute = next((key for key in values_of(call) if not key.startswith("_")), "")
        if attribute == "training":
            return
        value = values_of(call).get(attribute)
        last = root(value)
        if attribute in image_calls.HEADS and name_of(last) == "Linear":
            classes = argument(last, "out_features", 1)
            if classes is not None and type(classes.value) is int:
                self.put("num_classes", classes)
        elif not (attribute in image_calls.HEADS and name_of(last) in ("Sequential", "Identity")):
            self.stop(f"what setting .{attribute} of the model changes is not described", call)

    # ------------------------------------------------------------------------------------------ a batch

    def batch(self) -> None:
        shape = self.made_up()
        if len(shape) == 4:
            self.put("batch_size", shape[0])
            self.keys["image_size"] = Node(shape[2:], shape[2].span, None, "image_size")
            return
        super().batch()

    def made_up(self) -> list[Node]:
        call = self.turn.batches
        given = root(call.given[0]) if call.given else None
        if name_of(given) not in _MADE_UP:
            return []
        listed = values_of(given).get("_args_")
        words = listed.value if listed is not None and isinstance(listed.value, list) else []
        if len(words) == 1 and isinstance(words[0].value, list):
            words = words[0].value
        return words if all(type(one.value) is int for one in words) else []

    def size(self) -> None:
        """The side of an image, where all transforms of the program leave the same; else the largest is a bound."""
        if "image_size" in self.keys:
            return
        found = image_calls.sides(self.before_the_loop())
        if not found:
            return
        largest = max(found, key=image_calls.pixels)
        self.keys["image_size"] = Node(largest.value, largest.span, None, "image_size")

    def optimizer(self) -> None:
        """Which of torch's it is; a part of the parameters is what trains where the rest is frozen."""
        super().optimizer()
        made = self.keys.get("optimizer")
        if made is None and not self.why:
            self.why = OnTop(f"{self.path}: which optimizer steps is not followed")
