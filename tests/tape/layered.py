"""Tapes of made-up runs over equal layers, at any depth: what folded tapes are compared with."""

from __future__ import annotations

from typing import NamedTuple

from memlint.meta.tape import Label, Tape

KIB = 1024
MIB = 1024 * KIB


class Run(NamedTuple):
    """One layer, and how the step goes through them. Sizes in bytes.

    weights     of each parameter of a layer
    kept        what a layer keeps for its backward pass
    passing     what it makes and lets go, forward and backward; ``backward``: what besides, on the way back alone
    between     the tensor that layers hand on
    fetched     gathered one layer ahead, on a stream of its own; 0 for none
    gradients   whether they stay until the optimizer has stepped, layer by layer
    """

    weights: tuple[int, ...] = (3 * MIB, 5 * KIB)
    kept: tuple[int, ...] = (2 * MIB,)
    passing: tuple[int, ...] = (7 * MIB, 900 * KIB, 700)
    between: int = 2 * MIB
    fetched: int = 0
    gradients: bool = True
    micro_batches: int = 1
    backward: tuple[int, ...] = ()

    def tape(self, layers: int) -> Tape:
        return _Writer(self, layers).tape


class _Writer:
    def __init__(self, run: Run, layers: int) -> None:
        self.run, self.layers = run, layers
        self.tape = tape = Tape()
        self.gradients: list[list[int]] = []
        tape.mark("setup")
        tape.allocate(11 * MIB, Label("parameters", "embed", "weight"))
        for layer in range(layers):
            for size in run.weights:
                tape.allocate(size, Label("parameters", f"layers.{layer}.mlp", "weight"))
        for _ in range(run.micro_batches):
            self.step()
        tape.mark("optimizer_step")
        temporary = tape.allocate(MIB, Label("optimizer", "", "step temporaries"))
        for gradients in self.gradients:
            for gradient in gradients:
                tape.free(gradient)
        tape.free(temporary)

    def make(self, size: int, layer: int, name: str = "") -> int:
        return self.tape.allocate(size, Label("activations", f"layers.{layer}.mlp", name))

    def passing(self, layer: int, besides: tuple[int, ...] = ()) -> None:
        made = [self.make(size, layer) for size in (*self.run.passing, *besides)]
        for storage in made[::2] + made[1::2]:
            self.tape.free(storage)

    def fetch(self, layer: int) -> int | None:
        if not self.run.fetched or not 0 <= layer < self.layers:
            return None
        label = Label("communication", f"layers.{layer}", "all_gather")
        return self.tape.allocate(self.run.fetched, label, 1)

    def let_go(self, storage: int | None) -> None:
        if storage is not None:
            self.tape.free(storage)

    def step(self) -> None:
        run, tape = self.run, self.tape
        first = not self.gradients
        tape.mark("forward")
        x = tape.allocate(run.between, Label("activations", "embed"))
        kept: list[list[int]] = []
        fetched = self.fetch(0)
        for layer in range(self.layers):
            ahead = self.fetch(layer + 1)
            self.passing(layer)
            kept.append([self.make(size, layer, "kept") for size in run.kept])
            out = self.make(run.between, layer)
            tape.free(x)
            x = out
            self.let_go(fetched)
            fetched = ahead
        loss = tape.allocate(4, Label("logits", "head"))
        tape.mark("backward")
        tape.free(x)
        gradient = tape.allocate(run.between, Label("activations", "head"))
        for layer in reversed(range(self.layers)):
            self.passing(layer, run.backward)
            if run.gradients and first:
                labels = [Label("gradients", f"layers.{layer}.mlp", "weight") for _ in run.weights]
                self.gradients.append([tape.allocate(size, label) for size, label in zip(run.weights, labels)])
            for storage in kept.pop():
                tape.free(storage)
            before = self.make(run.between, layer)
            tape.free(gradient)
            gradient = before
        tape.free(gradient)
        tape.free(loss)
