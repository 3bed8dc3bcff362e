"""Whose memory it is: the storages that are live at one event, by component and by module."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from memlint.meta.dims import Dim, Symbols
from memlint.meta.tape import COMPONENTS, Shape, Tape
from memlint.named_tuple import NamedTuple
from memlint.tape.estimate import Component, Part
from memlint.tape.phases import live_storages, rounded_sizes

MODULE_DEPTH = 4  # ``policy.obs_encoder.extractor.first_conv``: deep enough to name a place, short enough to read
ROOT = "(model)"  # storages that no module claims


def part_name(module: str, depth: int = MODULE_DEPTH) -> str:
    """The first ``depth`` names of a module path. Repeated blocks share one:
    ``layers.3.mlp`` is ``layers.*.mlp``, ``layer_3.mlp`` is ``layer_*.mlp``."""
    names: list[str] = []
    left = depth
    for name in module.split("."):
        stem, _, number = name.rpartition("_")
        if name.isdigit():
            names.append("*")
        elif left and stem and number.isdigit():
            names.append(f"{stem}_*")
            left -= 1
        elif left:
            names.append(name)
            left -= 1
        else:
            break
    while len(names) > 1 and names[-1] == "*":
        names.pop()
    return ".".join(names) or ROOT


def break_down(tape: Tape, event: int, depth: int = MODULE_DEPTH) -> tuple[Component, ...]:
    """Components of what is live right after ``tape.events[event]``, in the order of ``COMPONENTS``.

    Parts add up to their component and come largest first. Sizes are rounded up to 512 bytes storage by storage;
    formulas, in symbolic recordings only, give the bytes asked for.
    """
    sizes = rounded_sizes(tape)
    labels = tape.labels
    names: dict[str, str] = {}  # thousands of storages, few modules
    grouped: dict[str, dict[str, list[int]]] = {}
    for storage in live_storages(tape, event):
        component, module, _ = labels[storage]
        name = names.get(module)
        if name is None:
            name = names[module] = part_name(module, depth)
        grouped.setdefault(component, {}).setdefault(name, []).append(storage)

    components = []
    for component in sorted(grouped, key=rank):
        parts = [_part(tape, name, held, sizes) for name, held in grouped[component].items()]
        parts.sort(key=lambda part: (-part.size_bytes, part.name))
        total = sum(part.size_bytes for part in parts)
        if total:
            components.append(Component(component, total, tuple(parts)))
    return tuple(components)


def rank(component: str) -> tuple[int, str]:
    """Place in the report; a component that only a plugin knows comes last."""
    rank = COMPONENTS.index(component) if component in COMPONENTS else len(COMPONENTS)
    return rank, component


def _part(tape: Tape, name: str, storages: list[int], sizes: list[int]) -> Part:
    size_bytes = sum(sizes[storage] for storage in storages)
    title = tape.titles.get(name, "")
    if tape.shapes is None:
        return Part(name, size_bytes, title=title)
    return Part(name, size_bytes, *closed_form(tape, storages), title)


def closed_form(tape: Tape, storages: Sequence[int]) -> tuple[str, Symbols]:
    """The bytes asked for by ``storages``, as a sum of products of the config's names; and what the names stand for.

    Equal products are counted (``12*B*T*192*4``: twelve times B*T*192 elements of 4 bytes), the largest come
    first. A storage without a shape, or whose size is not that of its shape, enters as a plain number.
    """
    terms = Terms()
    for storage in storages:
        terms.add(tape.shapes[storage] if tape.shapes is not None else None, tape.sizes[storage], 1)
    return terms.written()


class Terms:
    """Storages of one part, as they add up to its closed form."""

    def __init__(self) -> None:
        self.counts: dict[_Product, int] = {}
        self.symbols: dict[_Product, Symbols] = {}
        self.constant = 0

    def add(self, shape: Shape | None, size_bytes: int, times: int) -> None:
        if not size_bytes:
            return
        product = _product(shape, size_bytes) if shape is not None else None
        if shape is None or product is None:
            self.constant += times * size_bytes
            return
        self.counts[product] = self.counts.get(product, 0) + times
        self.symbols[product] = tuple(fact for one in shape[0] if isinstance(one, Dim) for fact in one.facts)

    def written(self) -> tuple[str, Symbols]:
        counts = {product: count for product, count in self.counts.items() if count}
        terms = [(count * product.size_bytes, _written(product, count)) for product, count in counts.items()]
        if self.constant or not terms:
            terms.append((self.constant, str(self.constant)))
        terms.sort(key=lambda term: (-term[0], term[1]))
        symbols = dict(fact for product in counts for fact in self.symbols[product])
        return " + ".join(text for _, text in terms), tuple(symbols.items())


class _Product(NamedTuple):
    """Factors in an order of their own: transposes of a shape are one product."""

    factors: tuple[str, ...]
    numbers: tuple[int, ...]
    element_bytes: int
    size_bytes: int


def _product(shape: tuple[tuple[int, ...], int], size_bytes: int) -> _Product | None:
    """None if no dimension is symbolic, or if the shape does not account for the size."""
    dimensions, element_bytes = shape
    # As plain ints: a Dim writes an expression for every multiplication.
    if prod(map(int, dimensions)) * element_bytes != size_bytes:
        return None
    factors: list[str] = []
    numbers: list[int] = []
    for dimension in dimensions:
        for factor in factor_out(dimension.expr) if isinstance(dimension, Dim) else [str(int(dimension))]:
            if factor.isdigit():
                numbers.append(int(factor))
            else:
                factors.append(factor)
    if not factors:
        return None
    factors.sort(key=lambda factor: (factor.startswith("("), factor))  # names before brackets
    numbers = sorted((number for number in numbers if number != 1), reverse=True)
    return _Product(tuple(factors), tuple(numbers), element_bytes, size_bytes)


def _written(product: _Product, count: int) -> str:
    words = [str(count)] if count > 1 else []
    for factor in dict.fromkeys(product.factors):
        power = product.factors.count(factor)
        words.append(f"{factor}**{power}" if power > 1 else factor)
    words += map(str, product.numbers)
    if product.element_bytes != 1:
        words.append(str(product.element_bytes))
    return "*".join(words)


def factor_out(expr: str) -> list[str]:
    """The factors of a product, each safe to multiply: ``B*T`` gives B and T, ``G+1`` gives ``(G+1)``."""
    factors: list[str] = []
    depth = begin = 0
    for index, character in enumerate(expr):
        depth += (character == "(") - (character == ")")
        if depth:
            continue
        if character in "+-/%":
            return [f"({expr})"]
        if character == "*":
            if expr[index - 1] == "*":
                return [f"({expr})"]  # a power
            factors.append(expr[begin:index])
            begin = index + 1
    factors.append(expr[begin:])
    return factors
