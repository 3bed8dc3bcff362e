"""Replay: a module's call that was simulated once is not simulated again.

A network repeats its blocks, and the what-ifs of one invocation repeat most of a network. What a call of a module
allocates, frees and leaves in the graph follows from the module's structure, from what its inputs look like, and from
the modes of the moment. So the first such call is simulated and leaves a :class:`Template`; every later one writes the
same events, and makes the same nodes, without running the module's code. The engine runs those nodes as any others.

A module class opts in with ``replayable = True``. Its ``forward`` then must be a function of its attributes and
arguments: it keeps no tensor beyond what it returns. What a template cannot express (a symbolic recording, unusual
arguments, a backward formula that holds more than shapes) is simulated as if this file did not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from memlint.meta.autograd import Node
from memlint.meta.tape import Label
from memlint.meta.tensor import DType, Storage, Tensor, state

if TYPE_CHECKING:
    from memlint.meta.nn import Module

ENABLED = True  # tests switch it off to compare

# What one process remembers at most. A run with its what-ifs takes a few hundred; one template, some kilobytes.
TEMPLATES = 4096


class _Structure:
    """A module instance's part of every key: a number for its structure, and its tensors in order of definition."""

    __slots__ = ("children", "labels", "number", "tensors")

    def __init__(self, module: Module) -> None:
        self.tensors: list[Tensor] = []
        self.children: list[Module] = []  # without the module itself: no reference cycle
        self.labels: dict[int, tuple[str, list[Label], list[Label]]] = {}
        found: list[Any] = []
        # None: something in it has no place in a key.
        self.number: int | None = None
        if _describe(module, found, self.children, self.tensors):
            key = tuple(found)
            self.number = _structures.setdefault(key, len(_structures))


_structures: dict[tuple[Any, ...], int] = {}
_PLAIN = frozenset((int, str, type(None)))
_OWN = frozenset(("path", "training", "_structure"))


def _describe(module: Module, found: list[Any], children: list[Module], tensors: list[Tensor]) -> bool:
    found.append(type(module))
    for name, value in module.__dict__.items():
        if name not in _OWN:
            found.append(name)
            if not _describe_value(value, found, children, tensors):
                return False
    found.append(None)
    return True


def _describe_value(value: Any, found: list[Any], children: list[Module], tensors: list[Tensor]) -> bool:
    kind = type(value)
    if kind is Tensor:
        for position, known in enumerate(tensors):
            if known is value or known.storage is value.storage:
                if known is not value:
                    return False
                found.append(position)
                return True
        tensors.append(value)
        found.append((value.shape, value.strides, value.dtype.name))
        return value.node is None
    if kind in _PLAIN:
        found.append(value)
        return True
    if hasattr(value, "named_tensors"):
        children.append(value)
        return _describe(value, found, children, tensors)
    if isinstance(value, (tuple, list)):
        found.append((kind, len(value)))
        return all(_describe_value(item, found, children, tensors) for item in value)
    if kind in (bool, float) or (callable(value) and getattr(value, "__closure__", value) is None):
        found.append((kind, value))
        return True
    return False


class _Made:
    """A tensor that a template makes: what it looks like, the place of its storage in the pool, and its node."""

    __slots__ = ("dtype", "is_view", "node", "output_nr", "requires_grad", "shape", "storage", "strides")

    def __init__(self, x: Tensor, storage: int, node: int) -> None:
        self.shape, self.dtype, self.strides = x.shape, x.dtype, x.strides
        self.is_view, self.requires_grad = x.is_view, x.requires_grad
        self.storage = storage
        self.node, self.output_nr = node, x.output_nr

    def make(self, pool: list[Storage], nodes: list[Node]) -> Tensor:
        out = Tensor(self.shape, self.dtype, pool[self.storage], self.strides)
        out.is_view = self.is_view
        if self.requires_grad:
            out.requires_grad = True
            if self.node >= 0:
                out.node = nodes[self.node]
                out.output_nr = self.output_nr
        return out


class Template:
    """What one call does to the tape and to the graph, relative to where it happens.

    Storages have places in a pool: first the own ones that outlive the call, then those of the arguments, then those
    of the module's tensors, then those of casts that autocast's cache held before. Edges have places in a list:
    nothing, the arguments, the module's tensors, the casts, then one per output of each new node.

    events    ``k`` allocates the call's k-th storage, ``~k`` frees it
    alive     (k, bytes) of the own storages that outlive the call
    nodes     (backward, edges, saved, outputs, label, sequence, slot in the checkpoint frame or -1)
    outs      per result: a place among the arguments, or the tensor to make
    casts     (place of the tensor that autocast cast, the cast)
    """

    __slots__ = (
        "alive", "avoided", "casts", "events", "kept", "label_of", "labels", "needs_casts", "needs_tensors", "nodes",
        "outs", "packed", "plain_labels", "recomputed", "sequence", "single", "sizes",
    )  # fmt: skip

    def __init__(self) -> None:
        self.events: list[int] = []
        self.sizes: list[int] = []
        self.alive: list[tuple[int, int]] = []
        self.nodes: list[tuple[Any, ...]] = []
        self.outs: list[int | _Made] = []
        self.single = True
        self.casts: list[tuple[int, _Made]] = []
        self.needs_casts: list[int] = []
        self.labels: list[tuple[str, str, str]] = []  # component, module path after the prefix, name
        self.label_of: list[int] = []  # by own storage
        self.plain_labels: tuple[list[Label], list[Label]] | None = None
        self.sequence = 0
        self.packed = 0
        self.recomputed: list[tuple[int, ...]] = []
        self.kept = self.avoided = 0


_templates: dict[tuple[Any, ...], Template | None] = {}
_capturing = False


def forget() -> None:
    """Start anew: no template is known."""
    _templates.clear()
    _structures.clear()


class _Unusual(Exception):
    """What happened has no template."""


def _structure(module: Module) -> _Structure:
    found: _Structure | None = module.__dict__.get("_structure")
    if found is None:
        found = module.__dict__["_structure"] = _Structure(module)
    return found


def _arguments(args: Sequence[Any], tensors: list[Tensor], found: list[Any]) -> bool:
    """Put the tensors among arguments into one list, and into ``found`` what tells one call from another."""
    for value in args:
        kind = type(value)
        if kind is Tensor:
            same = shared = len(tensors)
            for position, known in enumerate(tensors):
                if known.storage is value.storage:
                    shared = min(position, shared)
                    if known is value:
                        same = position
                        break
            node = value.node
            found.append(
                (
                    value.shape,
                    value.strides,
                    value.dtype.name,
                    value.requires_grad,
                    value.is_view,
                    node is None,
                    same,
                    shared,
                )
            )
            tensors.append(value)
        elif kind in _PLAIN:
            found.append(value)
        elif kind is bool or kind is float:
            found.append((kind, value))
        elif kind is tuple:
            found.append(len(value))
            if not _arguments(value, tensors, found):
                return False
        else:
            return False
    return True


def _key(
    module: Module, structure: _Structure, args: Sequence[Any], tensors: list[Tensor], mode: Any
) -> tuple[Any, ...] | None:
    described: list[Any] = []
    if structure.number is None or not _arguments(args, tensors, described):
        return None
    own = structure.tensors
    autocast = state.autocast
    casts: tuple[bool, ...] | None = None
    if autocast is not None:
        cache = state.cast_cache
        casts = tuple([id(x) in cache for x in (*tensors, *own)]) if cache else ()
    label = state.label
    return (
        structure.number,
        tuple(described),
        tuple([x.requires_grad for x in own]),
        module.training,
        tuple([child.training for child in structure.children]),
        state.grad_enabled,
        None if autocast is None else autocast.name,
        casts,
        state.default_dtype.name,
        label.component,
        bool(module.path),
        bool(label.module),
        mode,
    )


def call(module: Module, args: tuple[Any, ...]) -> Any:
    """``module.forward(*args)``, or what it would have done."""
    global _capturing
    frame = state.frame
    if _capturing or state.tape.shapes is not None or (frame is not None and frame.recomputing):
        return module.forward(*args)
    structure = _structure(module)
    tensors: list[Tensor] = []
    key = _key(module, structure, args, tensors, frame is not None)
    if key is None:
        return module.forward(*args)
    template = _templates.get(key, _MISSING)
    if type(template) is Template:
        return _replay(template, structure, tensors)
    if template is None:
        return module.forward(*args)
    return _capture(key, module, args, structure, tensors)


_MISSING: Any = object()


# -- writing it down ---------------------------------------------------------------------------------------------


def _remember(key: tuple[Any, ...], template: Template | None) -> None:
    if len(_templates) >= TEMPLATES:
        forget()
    _templates[key] = template


class _Watch:
    """Where the tape and the graph stood before a call."""

    def __init__(self) -> None:
        tape = state.tape
        self.storages = len(tape.sizes)
        self.events = len(tape.events)
        self.sequence = state.sequence
        self.kept = tape.probabilities_kept_bytes
        self.avoided = tape.probabilities_avoided_bytes
        self.frame_count = 0 if state.frame is None else state.frame.count
        self.casts = dict.fromkeys(state.cast_cache)
        self.prefix = state.label.module

    def tape_of(self, template: Template, names: dict[Label, int]) -> set[int]:
        """What the tape got. Returns the own storages that are still alive."""
        tape, first = state.tape, self.storages
        alive: set[int] = set()
        for event in tape.events[self.events :]:
            if event >= first:
                alive.add(event - first)
                template.events.append(event - first)
            elif ~event >= first:
                alive.discard(~event - first)
                template.events.append(~(~event - first))
            else:
                raise _Unusual
        template.sizes = tape.sizes[first:]
        template.label_of = [self.label(label, template, names) for label in tape.labels[first:]]
        template.kept = tape.probabilities_kept_bytes - self.kept
        template.avoided = tape.probabilities_avoided_bytes - self.avoided
        template.sequence = state.sequence - self.sequence
        return alive

    def label(self, label: Label, template: Template, names: dict[Label, int]) -> int:
        number = names.get(label)
        if number is None:
            if not label.module.startswith(self.prefix):
                raise _Unusual
            number = names[label] = len(template.labels)
            template.labels.append((label.component, label.module[len(self.prefix) :], label.name))
        return number


def _capture(
    key: tuple[Any, ...], module: Module, args: tuple[Any, ...], structure: _Structure, tensors: list[Tensor]
) -> Any:
    global _capturing
    watch = _Watch()
    _capturing = True
    try:
        result = module.forward(*args)
    finally:
        _capturing = False
    try:
        _remember(key, _template(watch, result, structure, tensors))
    except _Unusual:
        _remember(key, None)
    return result


def _template(watch: _Watch, result: Any, structure: _Structure, tensors: list[Tensor]) -> Template:
    template = Template()
    names: dict[Label, int] = {}
    alive = watch.tape_of(template, names)
    everything = [*tensors, *structure.tensors]
    before, after = watch.casts, state.cast_cache
    template.needs_casts = [place for place, x in enumerate(everything) if id(x) in before]
    old = [after[id(everything[place])][1] for place in template.needs_casts]
    places = {id(x): place for place, x in reversed(list(enumerate(everything)))}
    made = [(source, cast) for number, (source, cast) in after.items() if number not in before]
    template.single = type(result) is Tensor
    if not template.single and type(result) is not tuple:
        raise _Unusual
    outs: tuple[Tensor, ...] = (result,) if template.single else result

    pool = _pool_places(template, alive, [*everything, *old], watch.storages)
    nodes = _own_nodes([x for x in (*outs, *(cast for _, cast in made)) if type(x) is Tensor], watch.sequence)
    edges = _Edges(everything, old)
    held: set[int] = set()

    def place_of(storage: Storage) -> int:
        place = pool.get(storage.index)
        if place is None:
            raise _Unusual
        held.add(storage.index - watch.storages)
        return place

    for node in nodes:
        slot = -1
        if node.frame is not None:
            if node.frame is not state.frame or node.saved:
                raise _Unusual
            slot = node.slot - watch.frame_count
        if node.backward is None or not _pure(node.backward):
            raise _Unusual
        template.nodes.append(
            (
                node.backward,
                [edges.place(edge) for edge in node.edges],
                tuple([place_of(storage) for storage in node.saved]),
                node.outputs,
                watch.label(node.label, template, names),
                node.sequence - watch.sequence,
                slot,
            )
        )
        edges.add(node)
    numbers = {id(node): number for number, node in enumerate(nodes)}

    def describe(x: Any) -> _Made:
        if type(x) is not Tensor or x.grad is not None or (x.node is not None and id(x.node) not in numbers):
            raise _Unusual
        return _Made(x, place_of(x.storage), -1 if x.node is None else numbers[id(x.node)])

    arguments = {id(x): place for place, x in reversed(list(enumerate(tensors)))}
    for out in outs:
        known = arguments.get(id(out))
        template.outs.append(describe(out) if known is None else known)
    if len({id(out) for out in outs}) != len(outs):
        raise _Unusual
    for source, cast in made:
        if id(source) not in places:
            raise _Unusual
        template.casts.append((places[id(source)], describe(cast)))
    if not alive <= held:
        raise _Unusual  # somebody else holds it
    template.packed = 0 if state.frame is None else state.frame.count - watch.frame_count
    return template


def _pool_places(template: Template, alive: set[int], tensors: list[Tensor], first: int) -> dict[int, int]:
    """By storage number: its place in the pool."""
    found: dict[int, int] = {}
    for number in sorted(alive):
        found[first + number] = len(template.alive)
        template.alive.append((number, template.sizes[number]))
    for place, x in enumerate(tensors, len(template.alive)):
        found.setdefault(x.storage.index, place)
    return found


class _Edges:
    """Where gradients go, as places in the list that :func:`_replay` makes."""

    def __init__(self, everything: list[Tensor], casts: list[Tensor]) -> None:
        self.places: dict[Any, int] = {}
        for place, x in enumerate([*everything, *casts], 1):
            self.places.setdefault(id(x) if x.node is None else (id(x.node), x.output_nr), place)
        self.count = 1 + len(everything) + len(casts)

    def place(self, edge: Any) -> int:
        if edge is None:
            return 0
        place = self.places.get((id(edge[0]), edge[1]) if type(edge) is tuple else id(edge))
        if place is None:
            raise _Unusual
        return place

    def add(self, node: Node) -> None:
        for number in range(node.outputs):
            self.places[(id(node), number)] = self.count
            self.count += 1


def _own_nodes(outs: Sequence[Tensor], first: int) -> list[Node]:
    """The nodes behind these that are not older than ``first``, oldest first."""
    found: dict[int, Node] = {}
    stack = [x.node for x in outs if x.node is not None and x.node.sequence >= first]
    while stack:
        node = stack.pop()
        if node.sequence not in found:
            found[node.sequence] = node
            stack += [edge[0] for edge in node.edges if type(edge) is tuple and edge[0].sequence >= first]
    return [found[number] for number in sorted(found)]


def _pure(value: Any) -> bool:
    """Whether a backward formula remembers nothing but numbers, shapes and dtypes: then any call may use it."""
    kind = type(value)
    if kind in _PLAIN or kind is bool or kind is float or kind is DType:
        return True
    if kind is tuple or kind is list:
        return all(map(_pure, value))
    if callable(value):
        if getattr(value, "__defaults__", None):
            return False
        try:
            return all(_pure(cell.cell_contents) for cell in getattr(value, "__closure__", None) or ())
        except ValueError:  # an empty cell
            return False
    return False


# -- doing it again ----------------------------------------------------------------------------------------------

_new_storage: Callable[[type[Storage]], Storage] = Storage.__new__
_new_node: Callable[[type[Node]], Node] = Node.__new__


def _labels(template: Template, structure: _Structure) -> tuple[list[Label], list[Label]]:
    """The template's labels under the path of this moment: by own storage, and the distinct ones."""
    prefix = state.label.module
    if not prefix:
        if template.plain_labels is None:
            distinct = [Label(*label) for label in template.labels]
            template.plain_labels = [distinct[number] for number in template.label_of], distinct
        return template.plain_labels
    known = structure.labels.get(id(template))
    if known is None or known[0] != prefix:
        distinct = [Label(component, prefix + rest, name) for component, rest, name in template.labels]
        known = prefix, [distinct[number] for number in template.label_of], distinct
        structure.labels[id(template)] = known
    return known[1], known[2]


def _write(template: Template, structure: _Structure) -> tuple[list[Storage], list[Label]]:
    """Its events. Returns the own storages that outlive them, and the distinct labels."""
    tape = state.tape
    base, events = len(tape.sizes), tape.events
    by_storage, distinct = _labels(template, structure)
    tape.sizes += template.sizes
    tape.labels += by_storage
    events += [event + base if event >= 0 else event - base for event in template.events]
    tape.probabilities_kept_bytes += template.kept
    tape.probabilities_avoided_bytes += template.avoided
    pool = []
    for number, nbytes in template.alive:
        storage = _new_storage(Storage)
        storage.index = base + number
        storage.nbytes = nbytes
        storage.events = events
        pool.append(storage)
    return pool, distinct


def _replay(template: Template, structure: _Structure, tensors: list[Tensor]) -> Any:
    pool, labels = _write(template, structure)
    nodes: list[Node] = []
    everything = tensors + structure.tensors
    first = state.sequence
    state.sequence = first + template.sequence
    pool += [x.storage for x in everything]
    if template.needs_casts or template.nodes:
        casts = [state.cast_cache[id(everything[place])][1] for place in template.needs_casts]
        pool += [x.storage for x in casts]
        edges: list[Any] = [None]
        edges += [x if x.node is None else (x.node, x.output_nr) for x in everything]
        edges += [(x.node, x.output_nr) for x in casts]
        frame = state.frame
        for backward, targets, saved, outputs, label, sequence, slot in template.nodes:
            node = _new_node(Node)
            node.backward = backward
            node.edges = [edges[place] for place in targets]
            node.saved = tuple([pool[place] for place in saved])
            node.outputs = outputs
            node.label = labels[label]
            node.sequence = first + sequence
            node.buffer = None
            node.frame = None
            node.slot = 0
            if slot >= 0:
                node.frame = frame
                node.slot = frame.count + slot
            nodes.append(node)
            edges.append((node, 0))
            if outputs > 1:
                edges += [(node, number) for number in range(1, outputs)]
        if frame is not None:
            frame.count += template.packed
    for place, cast in template.casts:
        source = everything[place]
        state.cast_cache[id(source)] = source, cast.make(pool, nodes)
    outs = [tensors[out] if type(out) is int else out.make(pool, nodes) for out in template.outs]  # type: ignore[union-attr]
    return outs[0] if template.single else tuple(outs)


# -- activation checkpointing ------------------------------------------------------------------------------------
