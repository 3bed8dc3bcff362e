"""The memory of a compiled JAX program, without JAX.

Eager PyTorch frees a tensor when Python lets go of it. A jitted JAX function is compiled as a whole, and an array
lives from the equation that writes it to the last one that reads it. So ops here write equations first
(:mod:`memlint.meta.jax_numpy`), the backward pass is written behind them by transposing each one, and liveness
comes at the end. What reverse mode keeps is then what it keeps in ``jax.vjp``: every forward array that an
equation of the backward pass reads.

Not every array of the jaxpr becomes memory: XLA fuses elementwise equations into those that read them, and computes a
cheap one again for each of several readers. The rule is ``xla/service/instruction_fusion.cc``'s (``IsExpensive``,
``EffectivelyAtMostUnary``): no memory is a result that no matrix product reads and that has one reader, or is cheap and
has at most one operand of its own size. What ``jax.vjp`` lists is therefore more than what a device holds.
``tests/differential/test_lag_mode.py`` compares the one with JAX array by array, the other with ``memory_analysis()``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

from memlint import work
from memlint.meta.tape import Label, Tape
from memlint.meta.tensor import DType, Shape, float32

EQUATION = 2  # steps of work (memlint.work)

Rule = tuple[Label, tuple[int, ...], Callable[..., None], tuple[Any, ...]]


# What XLA may do with an equation's result.
PLAIN = 0  # memory (a reduction, a scatter, random bits)
CHEAP = 1  # can be computed inside a reader, and again inside each of several
COSTLY = 2  # can be computed inside its reader if it has only one (exp, tanh, a division)
PRODUCT = 3  # memory, and its operands are as well: a matrix product or convolution reads no fused values


class Array:
    """One value of a program. ``tracked``: it depends on a parameter, so it has a cotangent.

    Two arrays with the same ``var`` are the same bytes (a reshape, a broadcast dimension).
    """

    __slots__ = ("dtype", "program", "shape", "tracked", "var")

    def __init__(self, program: Program, var: int, shape: Shape, dtype: DType, tracked: bool) -> None:
        self.program = program
        self.var = var
        self.shape = shape
        self.dtype = dtype
        self.tracked = tracked

    def __repr__(self) -> str:
        return f"Array({'x'.join(str(int(d)) for d in self.shape)} {self.dtype.name})"


class Program:
    """Equations over numbered arrays.

    dtype                  of activations; parameters are float32 and cast where it differs
    sizes, labels, shapes  by array; ``shapes`` only in symbolic recordings
    written, reads, kinds  the equations: array written (or -1), arrays read, and PLAIN, CHEAP, COSTLY or PRODUCT
    inputs                 arrays that exist before the program runs: arguments, never freed inside
    virtual                arrays that are no memory (broadcast constants, iota masks), though ``jax.vjp`` lists them
    numbered               labels of what a turn of a loop makes tell which array of the turn it is
    """

    def __init__(self, dtype: DType = float32, symbolic: bool = False) -> None:
        self.dtype = dtype
        self.sizes: list[int] = []
        self.labels: list[Label] = []
        self.shapes: list[tuple[Shape, int]] | None = [] if symbolic else None
        self.written: list[int] = []
        self.reads: list[tuple[int, ...]] = []
        self.kinds: list[int] = []
        self.rules: list[Rule] = []
        self.inputs: set[int] = set()
        self.parameters: list[Array] = []
        self.virtual: set[int] = set()
        self.cotangents: dict[int, int] = {}
        self.tracking = True
        self.numbered = False
        self.label = Label("activations", "")
        self.forward_end = 0
        self.forward_arrays = 0

    # -- writing

    def new(self, shape: Shape, dtype: DType = float32) -> int:
        """A fresh array, to be written by an equation."""
        self.sizes.append(int(prod(shape)) * dtype.itemsize)
        self.labels.append(self.label)
        if self.shapes is not None:
            self.shapes.append((shape, dtype.itemsize))
        return len(self.sizes) - 1

    def like(self, var: int) -> int:
        """A fresh array of another one's size."""
        self.sizes.append(self.sizes[var])
        self.labels.append(self.label)
        if self.shapes is not None:
            self.shapes.append(self.shapes[var])
        return len(self.sizes) - 1

    def write(self, kind: int, out: int, *reads: int) -> None:
        """An equation that writes ``out`` (-1: something that is on the tape already)."""
        self.written.append(out)
        self.reads.append(reads)
        self.kinds.append(kind)

    def number(self, first: int) -> None:
        """Tell the arrays of a turn apart, from the one numbered ``first`` on."""
        if self.numbered:
            self.labels[first:] = [label._replace(name=str(at)) for at, label in enumerate(self.labels[first:])]

    def input(self, shape: Shape, dtype: DType = float32, label: Label | None = None) -> Array:
        var = self.new(shape, dtype)
        if label is not None:
            self.labels[var] = label
        self.inputs.add(var)
        return Array(self, var, shape, dtype, False)

    def parameter(self, *shape: int, name: str = "", trained: bool = True) -> Array:
        """``trained=False``: a parameter behind ``stop_gradient``; its gradient is zeros, but it has one."""
        array = self.input(shape, float32, Label("parameters", self.label.module, name))
        array.tracked = trained
        self.parameters.append(array)
        return array

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Arrays made inside belong to this module."""
        saved = self.label
        path = f"{saved.module}.{name}" if saved.module else name
        self.label = Label(saved.component, path)
        try:
            yield
        finally:
            self.label = saved

    # -- reverse mode

    def rule(self, outs: tuple[int, ...], transpose: Callable[..., None], *arguments: Any) -> None:
        """``transpose(program, cotangent of outs[0], ..., *arguments)`` gives cotangents to what went in."""
        self.rules.append((self.label, outs, transpose, arguments))

    def give(self, var: int, cotangent: int) -> None:
        """Add a cotangent to what an array already has."""
        held = self.cotangents.get(var)
        if held is None:
            self.cotangents[var] = cotangent
        else:
            total = self.like(var)
            self.write(CHEAP, total, held, cotangent)
            self.cotangents[var] = total

    def transpose(self, rules: Sequence[Rule]) -> None:
        saved = self.label
        take = self.cotangents.pop
        for label, outs, function, arguments in reversed(rules):
            found = [take(out, None) for out in outs]
            if any(cotangent is not None for cotangent in found):
                self.label = label
                function(self, *found, *arguments)
        self.label = saved

    def backward(self, loss: Array) -> None:
        """Write the backward pass of a scalar; the parameters' gradients are left in ``cotangents``."""
        work.spend(len(self.rules) * EQUATION, "writing the backward pass of a JAX program")
        self.forward_end = len(self.written)
        self.forward_arrays = len(self.sizes)
        rules, self.rules = self.rules, []
        seed = self.new(loss.shape)
        self.write(PLAIN, seed)
        self.cotangents[loss.var] = seed
        self.transpose(rules)

    def residual_bytes(self) -> int:
        """Distinct forward arrays that the backward pass reads, parameters excluded: the leaves of ``jax.vjp``'s
        function. Call after :meth:`backward`."""
        return sum(self.sizes[var] for var in self.residuals())

    def residuals(self) -> set[int]:
        """Their numbers."""
        read = {var for reads in self.reads[self.forward_end :] for var in reads}
        return {var for var in read - self.inputs if var < self.forward_arrays}

    # -- liveness

    def run(self, tape: Tape, phases: Sequence[tuple[int, str]], placed: Iterable[int], fuse: bool = True) -> None:
        """Run the program on a tape: allocate what each equation writes, free what it is the last to read.

        phases  (index of the first equation, phase name), in order
        placed  arrays with no memory of their own here: on the tape already, or inside another array that is
        fuse    False: every array of the jaxpr is memory, as if each equation were a kernel of its own
        """
        work.spend(len(self.written) * EQUATION, "running a JAX program")
        elsewhere = bytearray(len(self.sizes))
        for var in (*self.virtual, *placed):
            elsewhere[var] = 1
        alive, behind = self._fused(elsewhere, fuse)

        # What an equation allocates (-1: nothing), and what it is the last to read.
        plan: list[tuple[int, list[int]]] = []
        read = elsewhere[:]
        for index in range(len(alive) - 1, -1, -1):
            var = self.written[index]
            dying: list[int] = []
            if not alive[index] or (var >= 0 and behind[var] is not None):
                plan.append((-1, dying))
                continue
            for operand in self.reads[index]:
                for source in behind[operand] or (operand,):
                    if not read[source]:
                        read[source] = 1
                        dying.append(source)
            plan.append((-1 if var >= 0 and elsewhere[var] else var, dying))
        plan.reverse()

        number = [-1] * len(self.sizes)
        sizes, labels, shapes, events = tape.sizes, tape.labels, tape.shapes, tape.events
        begin = 0
        for end, name in (*phases, (len(plan), "")):
            for var, dying in plan[begin:end]:
                if var >= 0:
                    number[var] = index = len(sizes)
                    sizes.append(self.sizes[var])
                    labels.append(self.labels[var])
                    if shapes is not None and self.shapes is not None:
                        shapes.append(self.shapes[var])
                    events.append(index)
                for operand in dying:
                    events.append(~number[operand])
            begin = end
            if name:
                tape.mark(name)

    def _fused(self, elsewhere: bytearray, fuse: bool) -> tuple[bytearray, list[tuple[int, ...] | None]]:
        """Which equations are not dead code; by array, None where it is memory, else what its readers really read."""
        written, kinds, sizes = self.written, self.kinds, self.sizes
        alive = bytearray(len(written))
        readers = [0] * len(sizes)
        operand = bytearray(len(sizes))  # of a product
        for index in range(len(written) - 1, -1, -1):
            var = written[index]
            if var < 0 or readers[var]:
                alive[index] = 1
                for one in self.reads[index]:
                    readers[one] += 1
                if kinds[index] == PRODUCT:
                    for one in self.reads[index]:
                        operand[one] = 1

        behind: list[tuple[int, ...] | None] = [None] * len(sizes)
        if not fuse:
            return alive, behind
        for var, reads, kind, used in zip(written, self.reads, kinds, alive):
            if not used or kind in (PLAIN, PRODUCT) or operand[var] or elsewhere[var]:
                continue
            if readers[var] > 1:
                if kind == COSTLY:
                    continue
                if len(reads) > 1:
                    size = sizes[var]
                    if sum([sizes[one] >= size and not elsewhere[one] for one in reads]) > 1:
                        continue
            if len(reads) == 1:
                behind[var] = behind[reads[0]] or reads
            else:
                behind[var] = tuple({source: None for one in reads for source in behind[one] or (one,)})
        return alive, behind


def repeat(program: Program, count: int, function: Callable[[], tuple[Array, ...]]) -> list[tuple[Array, ...]]:
    """``function()`` for each of ``count`` independent turns of an unrolled loop. It is run once; the other turns
    (and their backward passes) are its equations with other numbers. Inside it, only ``program`` may be written."""
    sizes, shapes = program.sizes, program.shapes
    start, first, first_rule = len(program.written), len(sizes), len(program.rules)
    outs = function()
    width = len(sizes) - first
    # Forward, and about twice as much in the backward pass.
    work.spend(3 * (count - 1) * width * EQUATION, "repeating the passes of a JAX program")
    program.number(first)
    rules = program.rules[first_rule:]
    del program.rules[first_rule:]
    written, reads, kinds = program.written[start:], program.reads[start:], program.kinds[start:]
    virtual = [var for var in program.virtual if var >= first]
    turns = [outs]
    for shift in range(width, count * width, width):
        sizes.extend(sizes[first : first + width])
        program.labels.extend(program.labels[first : first + width])
        if shapes is not None:
            shapes.extend(shapes[first : first + width])
        program.written.extend([var + shift for var in written])
        program.reads.extend([tuple([var + shift if var >= first else var for var in one]) for one in reads])
        program.kinds.extend(kinds)
        program.virtual.update([var + shift for var in virtual])
        turns.append(tuple(Array(program, out.var + shift, out.shape, out.dtype, out.tracked) for out in outs))
    if rules:
        every = tuple(out.var for turn in turns for out in turn)
        program.rule(every, _turns_transpose, rules, [out.var for out in outs], first, width)
    return turns


def _turns_transpose(program: Program, *arguments: Any) -> None:
    """The turns' backward passes, the last turn's first; all but one are copies of the one that is written."""
    rules, outs, first, width = arguments[-4:]
    cotangents = arguments[:-4]
    written: dict[tuple[bool, ...], _Written] = {}
    for turn in reversed(range(len(cotangents) // len(outs))):
        incoming = cotangents[turn * len(outs) : (turn + 1) * len(outs)]
        wanted = tuple(one is not None for one in incoming)
        if not any(wanted):
            continue
        if wanted not in written:
            written[wanted] = _Written(program, rules, [out for out, want in zip(outs, wanted) if want], first, width)
        written[wanted].again(program, [one for one in incoming if one is not None], turn * width)


class _Written:
    """One turn's backward pass, taken off the program again to be put there once per turn."""

    def __init__(self, program: Program, rules: list[Rule], outs: list[int], first: int, width: int) -> None:
        kept, program.cotangents = program.cotangents, {}
        start, self.first, self.end = len(program.written), first, first + width
        self.base = len(program.sizes)
        self.incoming = len(outs)
        for out in outs:
            program.cotangents[out] = program.like(out)  # stands for the cotangent that comes in
        program.transpose(rules)
        self.given = [(var, one) for var, one in program.cotangents.items() if not first <= var < self.end]
        program.cotangents = kept
        self.written, self.reads, self.kinds = program.written[start:], program.reads[start:], program.kinds[start:]
        del program.written[start:], program.reads[start:], program.kinds[start:]
        inner = self.base + self.incoming
        program.number(inner)
        self.sizes, self.labels = program.sizes[inner:], program.labels[inner:]
        del program.sizes[self.base :], program.labels[self.base :]
        self.shapes = None
        if program.shapes is not None:
            self.shapes = program.shapes[inner:]
            del program.shapes[self.base :]
        self.used = {*self.written, *(var for one in self.reads for var in one), *(one for _, one in self.given)}
        self.virtual = [var for var in program.virtual if var >= self.base]
        self.used.update(self.virtual)
        program.virtual.difference_update(self.virtual)

    def again(self, program: Program, incoming: list[int], shift: int) -> None:
        # Old number -> new number: what lies outside the turn stays, the turn's own arrays and this pass's move.
        made = len(program.sizes) - self.base - self.incoming
        place = {
            var: var
            if var < self.first
            else var + shift
            if var < self.end
            else incoming[var - self.base]
            if var < self.base + self.incoming
            else var + made
            for var in self.used
        }.__getitem__
        program.sizes.extend(self.sizes)
        program.labels.extend(self.labels)
        if program.shapes is not None and self.shapes is not None:
            program.shapes.extend(self.shapes)
        program.virtual.update([place(var) for var in self.virtual])
        program.written.extend(map(place, self.written))
        program.reads.extend([tuple(map(place, one)) for one in self.reads])
        program.kinds.extend(self.kinds)
        for var, one in self.given:
            program.give(var, place(one))


def checkpoint(function: Callable[..., Array], *arguments: Any) -> Array:
    """``jax.checkpoint``: keep what went in, write the block's equations a second time in the backward pass."""
    program: Program = next(a for a in arguments if isinstance(a, Array)).program
    if not program.tracking:
        return function(*arguments)
    program.tracking = False
    try:
        out = function(*arguments)
    finally:
        program.tracking = True
    out = Array(program, out.var, out.shape, out.dtype, True)
    program.rule((out.var,), _recompute, function, arguments)
    return out


def _recompute(program: Program, cotangent: int, function: Callable[..., Array], arguments: Any) -> None:
    outer, program.rules = program.rules, []
    again = function(*arguments)
    inner, program.rules = program.rules, outer
    program.cotangents[again.var] = cotangent
    program.transpose(inner)
