"""Replay: a module's call that was simulated once is not simulated again.

A network repeats its blocks, and the what-ifs of one invocation repeat most of a network. What a call of a module
allocates, frees and leaves in the graph follows from the module's structure, from what its inputs look like, and from
the modes of the moment. So the first such call is simulated and leaves a :class:`Template`; every later one writes the
same events, and makes the same nodes, without running the module's code. The engine runs those nodes as any others.

A module class opts in with ``replay_after``. Its ``forward`` then must be a function of its attributes and
arguments: it keeps no tensor beyond what it returns. What a template cannot express (a symbolic recording, unusual
arguments, a backward formula that holds more than shapes) is simulated as if this file did not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappush
from itertools import count
from operator import itemgetter
from sys import getrefcount
from types import FunctionType
from typing import TYPE_CHECKING, Any

from memlint.meta import autograd
from memlint.meta.autograd import Node
from memlint.meta.tape import Label, Tape
from memlint.meta.tensor import DType, Storage, Tensor, is_dense, state
from memlint.named_tuple import NamedTuple

if TYPE_CHECKING:
    from memlint.meta.nn import Module

ENABLED = True  # tests switch it off to compare

# What one process remembers at most. A run with its what-ifs takes a few hundred; one template, some kilobytes.
TEMPLATES = 4096
RECORDS = 256


class _Structure:
    """A module instance's part of every key: a number for its structure, and its tensors in order of definition."""

    __slots__ = ("children", "labels", "number", "tensors")

    def __init__(self, module: Module) -> None:
        self.children: list[Module] = []  # without the module itself: no reference cycle
        self.labels: dict[Template | _Program, tuple[str, list[Label], list[Label]]] = {}
        found: list[Any] = []
        known: dict[int, Tensor] = {}
        # None: something in it has no place in a key.
        self.number: int | None = None
        if _describe(module, found, self.children, known):
            key = tuple(found)
            self.number = _structures.get(key)
            if self.number is None:
                self.number = _structures[key] = next(_numbers)
        self.tensors = list(known.values())


_structures: dict[tuple[Any, ...], int] = {}
_records: dict[int, tuple[Any, tuple[Any, ...]]] = {}  # id of a named tuple -> it, described
_numbers = count()  # never given twice: modules outlive what is forgotten
_PLAIN = frozenset((int, str, type(None)))


def _describe(module: Module, found: list[Any], children: list[Module], known: dict[int, Tensor]) -> bool:
    """Put into ``found`` all that tells a module from one that is built otherwise. ``known``: its tensors, by storage.
    False where that cannot be said."""
    found.append(type(module))
    for name, value in module.__dict__.items():
        kind = type(value)
        if kind is Tensor:
            storage = id(value.storage)
            if storage not in known and value.node is None:
                known[storage] = value
                found += name, value.shape, value.strides, value.dtype.name
            elif known.get(storage) is value:
                found += name, list(known).index(storage)
            else:
                return False
        elif kind is int:
            found += name, value
        elif hasattr(kind, "replay_after"):
            found.append(name)
            children.append(value)
            if not _describe(value, found, children, known):
                return False
        elif name != "path" and name != "training" and name != "unit" and kind is not _Structure:
            found.append(name)
            if not _describe_value(value, found, children, known):
                return False
    found.append(None)
    return True


def _describe_value(value: Any, found: list[Any], children: list[Module], known: dict[int, Tensor]) -> bool:
    kind = type(value)
    if kind in _PLAIN:
        found.append(value)
    elif hasattr(kind, "replay_after"):
        children.append(value)
        return _describe(value, found, children, known)
    elif isinstance(value, (tuple, list)):
        shared = _records.get(id(value))
        if shared is not None and shared[0] is value:
            found.append(shared[1])
            return True
        before = len(found), len(children), len(known)
        found += kind, len(value)
        for item in value:
            if not _describe_value(item, found, children, known):
                return False
        if hasattr(kind, "_fields") and before[1:] == (len(children), len(known)):
            # Settings, which all modules of a model share.
            described = tuple(found[before[0] :])
            if len(_records) >= RECORDS:
                _records.clear()
            _records[id(value)] = value, described
            found[before[0] :] = [described]
    elif kind is bool or kind is float or kind is FunctionType or kind is frozenset:
        if kind is FunctionType and value.__closure__ is not None:
            return False
        found += kind, value
    else:
        return False
    return True


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
        "alive", "arguments", "avoided", "casts", "dead", "events", "kept", "label_of", "labels", "leaves",
        "needs_casts", "nodes", "nodes_from", "outer", "outs", "own_saved", "packed", "plain_labels", "programs",
        "recomputed", "saved", "sequence", "single", "sizes",
    )  # fmt: skip

    def __init__(self) -> None:
        self.events: list[int] = []
        self.sizes: list[int] = []
        self.alive: list[tuple[int, int]] = []
        self.nodes: list[tuple[Any, ...]] = []
        self.nodes_from = 1
        self.outs: list[int | _Made] = []
        self.single = True
        self.casts: list[tuple[int, _Made]] = []
        self.needs_casts: list[int] = []
        self.labels: list[tuple[str, str, str]] = []  # component, module path after the prefix, name
        self.label_of: list[int] = []  # by own storage
        self.plain_labels: tuple[list[Label], list[Label]] | None = None
        self.sequence = 0
        self.packed = 0
        self.dead: list[int] = []  # slots of nodes that did not outlive the call
        self.recomputed: list[tuple[int, ...]] = []
        self.kept = self.avoided = 0
        # Where one node can stand for all: its edges, what it holds of others, the trained tensors it reaches.
        self.programs: dict[tuple[Any, ...], _Program | None] | None = None
        self.arguments = 0
        self.outer: list[int] = []
        self.saved: list[int] = []
        self.own_saved: list[tuple[int, int]] = []
        self.leaves: list[int] = []


_templates: dict[tuple[Any, ...], Template | None] = {}
_seen: dict[tuple[Any, ...], int] = {}
_capturing = False


def forget() -> None:
    """Start anew: no template is known."""
    _seen.clear()
    _templates.clear()
    _structures.clear()
    _records.clear()


_replays = 0


def statistics() -> dict[str, int]:
    """How many templates there are, and how many calls were written from one."""
    return {"templates": len(_templates), "replays": _replays}


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
        state.softmax_keeps_input,
        label.component,
        bool(module.path),
        bool(label.module),
        mode,
    )


def call(module: Module, args: tuple[Any, ...]) -> Any:
    """``module.forward(*args)``, or what it would have done."""
    global _capturing
    frame = state.frame
    if (
        _capturing
        or state.fusing
        or state.tape.shapes is not None
        or (frame is None and state.offload is not None)
        or (frame is not None and (frame.recomputing or frame.policy is not None))
    ):
        return module.forward(*args)
    if not _likely(module, args):
        return module.forward(*args)
    structure = _structure(module)
    tensors: list[Tensor] = []
    key = _key(module, structure, args, tensors, frame is not None)
    if key is None:
        return module.forward(*args)
    template = _templates.get(key, _MISSING)
    if type(template) is Template:
        return _replay(template, module, structure, tensors)
    if template is None:
        return module.forward(*args)
    return _capture(key, module, args, structure, tensors)


_MISSING: Any = object()
_NO_END = 1 << 62


# -- writing it down ---------------------------------------------------------------------------------------------


def _likely(module: Module, args: tuple[Any, ...]) -> bool:
    """Whether calls somewhat like this were seen often enough. The first ones are worth neither a key nor a template:
    a block that occurs once or twice in a step is simulated faster than it is written down."""
    rough = (
        type(module),
        state.grad_enabled,
        state.autocast is None,
        state.frame is None,
        *[value.shape if type(value) is Tensor else None for value in args],
    )
    sights = _seen.get(rough, 0)
    if module.replay_after is None or sights >= module.replay_after:
        return True
    if len(_seen) >= 4 * TEMPLATES:
        _seen.clear()
    _seen[rough] = sights + 1
    return False


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
    template.nodes_from = edges.count
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
    template.dead = sorted(set(range(template.packed)).difference(node[-1] for node in template.nodes))
    _join(template, tensors)
    return template


def _join(template: Template, tensors: list[Tensor]) -> None:
    """See whether one node can stand for all of the call's: where the call has one result and leaves nothing else."""
    out = template.outs[0]
    if (
        not template.single
        or type(out) is not _Made
        or out.node < 0
        or out.storage >= len(template.alive)
        or template.casts
        or template.needs_casts
        or (state.frame is not None and all(node[-1] < 0 for node in template.nodes))  # nothing holds the frame
        or any(x.requires_grad and x.node is None for x in tensors)
    ):
        return
    template.arguments = len(tensors)
    last = 1 + len(tensors)
    own = len(template.alive)
    saved: set[int] = set()
    leaves: dict[int, None] = {}
    for _, edges, held, *_ in template.nodes:
        for place in edges:
            if place and place < template.nodes_from:
                template.outer.append(place)
                if place >= last:
                    leaves[place] = None
        saved.update(held)
    template.own_saved = [template.alive[place] for place in sorted(saved) if place < own]
    template.saved = sorted(place for place in saved if place >= own or place == out.storage)
    template.leaves = list(leaves)
    template.programs = {}


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


_NUMBERS = frozenset((int, bool, float, str, type(None), DType))


def _pure(value: Any) -> bool:
    """Whether a backward formula remembers nothing but numbers, shapes and dtypes: then any call may use it."""
    kind = type(value)
    if kind in _NUMBERS:
        return True
    if isinstance(value, (tuple, list, frozenset)):
        return all(map(_pure, value))
    if kind is not FunctionType or value.__defaults__:
        return False
    for cell in value.__closure__ or ():
        try:
            inside = cell.cell_contents
        except ValueError:  # an empty cell
            return False
        if type(inside) not in _NUMBERS and not _pure(inside):
            return False
    return True


# -- doing it again ----------------------------------------------------------------------------------------------

_new_storage: Callable[[type[Storage]], Storage] = Storage.__new__
_new_node: Callable[[type[Any]], Any] = Node.__new__


def _labels(made: Template | _Program, structure: _Structure, prefix: str) -> tuple[list[Label], list[Label]]:
    """Its labels under a path: by own storage, and the distinct ones."""
    if not prefix:
        if made.plain_labels is None:
            distinct = [Label(*label) for label in made.labels]
            made.plain_labels = [distinct[number] for number in made.label_of], distinct
        return made.plain_labels
    known = structure.labels.get(made)
    if known is None or known[0] != prefix:
        distinct = [Label(component, prefix + rest, name) for component, rest, name in made.labels]
        known = prefix, [distinct[number] for number in made.label_of], distinct
        structure.labels[made] = known
    return known[1], known[2]


def _own_storages(template: Template, base: int, events: list[int]) -> list[Storage]:
    """Those that outlive the call, whose births are on the tape already."""
    pool = []
    for number, nbytes in template.alive:
        storage = _new_storage(Storage)
        storage.index = base + number
        storage.nbytes = nbytes
        storage.events = events
        pool.append(storage)
    return pool


def _write(template: Template, structure: _Structure) -> list[Label]:
    """Its events. Returns the distinct labels."""
    global _replays
    _replays += 1
    tape = state.tape
    base = len(tape.sizes)
    by_storage, distinct = _labels(template, structure, state.label.module)
    tape.sizes += template.sizes
    tape.labels += by_storage
    tape.events += [event + base if event >= 0 else event - base for event in template.events]
    tape.probabilities_kept_bytes += template.kept
    tape.probabilities_avoided_bytes += template.avoided
    return distinct


def _nodes(
    template: Template,
    pool: list[Storage],
    edges: list[Any],
    labels: list[Label],
    first: int,
    frame: Any,
    packed: int,
) -> list[Node]:
    """The nodes, oldest first. ``edges`` grows by theirs. ``frame``: whose slots they have, from ``packed`` on."""
    nodes: list[Node] = []
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
            node.slot = packed + slot
        nodes.append(node)
        edges.append((node, 0))
        if outputs > 1:
            edges += [(node, number) for number in range(1, outputs)]
    return nodes


def _replay(template: Template, module: Module, structure: _Structure, tensors: list[Tensor]) -> Any:
    tape, frame = state.tape, state.frame
    base = len(tape.sizes)
    labels = _write(template, structure)
    first = state.sequence
    state.sequence = first + template.sequence
    everything = tensors + structure.tensors
    if template.programs is not None and (frame is None or _fills(frame, module, tensors)):
        if frame is not None:
            frame.dead.update(template.dead)
            frame.count = template.packed
        return _joined(template, structure, tensors, everything, base, first)
    pool = _own_storages(template, base, tape.events)
    pool += [x.storage for x in everything]
    nodes: list[Node] = []
    if template.nodes:
        casts = [state.cast_cache[id(everything[place])][1] for place in template.needs_casts]
        pool += [x.storage for x in casts]
        edges: list[Any] = [None]
        edges += [x if x.node is None else (x.node, x.output_nr) for x in everything]
        edges += [(x.node, x.output_nr) for x in casts]
        packed = 0 if frame is None else frame.count
        nodes = _nodes(template, pool, edges, labels, first, frame, packed)
        if frame is not None:
            frame.dead.update([packed + slot for slot in template.dead])
            frame.count += template.packed
    for place, cast in template.casts:
        source = everything[place]
        state.cast_cache[id(source)] = source, cast.make(pool, nodes)
    outs = [tensors[out] if type(out) is int else out.make(pool, nodes) for out in template.outs]  # type: ignore[union-attr]
    return outs[0] if template.single else tuple(outs)


# -- one node for a call -----------------------------------------------------------------------------------------


def _fills(frame: Any, module: Module, tensors: list[Tensor]) -> bool:
    """Whether a checkpoint frame is this one call, on the frame's own arguments."""
    if frame.function is not module or frame.count or frame.offload is not None:
        return False
    given: list[Tensor] = []
    if not _arguments(frame.args, given, []) or len(given) != len(tensors):
        return False
    storages = [id(x.storage) for x in tensors]
    return storages == [id(x.storage) for x in given] and len(set(storages)) == len(storages)


class Joined(Node):
    """The node of a replayed call with one result. It runs the program of the call's backward pass; where that has
    none, it makes the call's own nodes and leaves the rest to the engine. In a checkpoint frame it is the whole
    frame's: then the program recomputes, too."""

    __slots__ = ("base", "prefix", "structure", "tape_events", "template")

    joined = True
    base: int
    prefix: str
    structure: _Structure
    tape_events: list[int]
    template: Template

    def own_saved(self) -> list[tuple[int, int]]:
        """(storage number, bytes) of what the call's nodes saved of its own."""
        return [(self.base + number, nbytes) for number, nbytes in self.template.own_saved]

    def split(self) -> tuple[Node, int]:
        """The call's own nodes; returns the one that made the result, and which of its outputs that is."""
        template = self.template
        out = template.outs[0]
        assert type(out) is _Made
        held = dict(zip(template.saved, self.saved))
        events = state.tape.events
        pool: list[Any] = _own_storages(template, self.base, events)
        pool[out.storage].events = []  # the result's is not made anew
        pool[out.storage] = held.get(out.storage)
        count_ = len(self.structure.tensors) + template.arguments
        pool += [held.get(place) for place in range(len(pool), len(pool) + count_)]
        edges: list[Any] = [None] * template.nodes_from
        for place, edge in zip(template.outer, self.edges):
            edges[place] = edge
        labels = _labels(template, self.structure, self.prefix)[1]
        self.saved = ()
        self.edges = []
        first = self.sequence - template.nodes[out.node][5]
        nodes = _nodes(template, pool, edges, labels, first, self.frame, 0)
        self.frame = None
        return nodes[out.node], out.output_nr

    def evaluate(self, dependencies: dict[Node, int], leaves: dict[int, Any], ready: list[Node]) -> None:
        again: _Again | None = None
        if self.frame is not None:
            again = self.again()
            if again is None:
                self.hand_over(dependencies, ready)
                return
        program = self.program(leaves, again)
        if program is None:
            self.hand_over(dependencies, ready)
        else:
            _run(program, self, again, dependencies, ready)

    def again(self) -> _Again | None:
        """How the frame is recomputed; None where that is not known, or the call turned out not to fill it."""
        template, frame = self.template, self.frame
        out = template.outs[0]
        assert type(out) is _Made
        if frame.count != template.packed or frame.recomputed is not None or not _recomputable(frame):
            return None
        # As the call's own node would have it.
        state.label = _labels(template, self.structure, self.prefix)[1][template.nodes[out.node][4]]
        module = frame.function
        label = Label(state.label.component, module.path) if module.path else state.label
        tensors: list[Tensor] = []
        saved, state.label = state.label, label
        key = _recompute_key(frame, self.structure, tensors)
        state.label = saved
        found = None if key is None else _templates.get(key)
        return None if found is None else _Again(found, label, tensors)

    def hand_over(self, dependencies: dict[Node, int], ready: list[Node]) -> None:
        buffer, self.buffer = self.buffer, None
        self.backward = None
        node, number = self.split()
        assert buffer is not None
        node.buffer = [None] * node.outputs
        node.buffer[number] = buffer.pop()
        dependencies[node] = 0
        stack = [node]
        first = self.sequence - self.template.nodes[-1][5]
        while stack:
            for edge in stack.pop().edges:
                if type(edge) is tuple and edge[0].sequence >= first:
                    child = edge[0]
                    if child in dependencies:
                        dependencies[child] += 1
                    else:
                        dependencies[child] = 1
                        stack.append(child)
        heappush(ready, node)

    def program(self, leaves: dict[int, Any], again: _Again | None) -> _Program | None:
        template = self.template
        buffer = self.buffer
        assert buffer is not None
        gradient = buffer[0]
        if gradient is None or state.updated is not None:
            return None
        first = template.arguments + 1
        tensors = self.structure.tensors
        trained = [tensors[place - first] for place in template.leaves]
        old = bool(trained) and trained[0].grad is not None
        for leaf in trained:
            if (leaf.grad is not None) is not old or id(leaf) in leaves:
                return None
        key = (
            gradient.shape,
            gradient.strides,
            gradient.dtype.name,
            gradient.is_view,
            getrefcount(buffer[0]) > 3,  # the buffer, the local name, the argument
            getrefcount(gradient.storage) > 2,  # the tensor, the argument
            old,
            autograd.ACCUMULATE_IN_PLACE,
            state.bucket is None,
            None if again is None else again.template,
        )
        programs = template.programs
        assert programs is not None
        if key in programs:
            return programs[key]
        try:
            combined = template if again is None else _combined(template, again.template)
            found = _rehearse(combined, tensors, gradient, key)
        except _Unusual:
            found = None
        programs[key] = found
        return found

    def __del__(self) -> None:
        # Nobody ran it: what it stands for goes as its own nodes would have gone.
        if self.backward is not None and self.buffer is None and state.tape.events is self.tape_events:
            self.backward = None
            self.split()


class _Again(NamedTuple):
    """A frame's recomputation: its template, the label it happens under, the frame's arguments."""

    template: Template
    label: Label
    tensors: list[Tensor]


def _combined(template: Template, again: Template) -> Template:
    """The call as if its nodes had saved what recomputation makes. Arguments are held by the frame."""
    combined = Template()
    combined.sizes, combined.alive = again.sizes, again.alive
    combined.labels, combined.outs = template.labels, template.outs
    combined.nodes_from, combined.arguments = template.nodes_from, template.arguments
    combined.outer, combined.leaves = template.outer, template.leaves
    combined.packed = template.packed
    for backward, edges, _, outputs, label, sequence, slot in template.nodes:
        held = again.recomputed[slot] if slot >= 0 else ()
        combined.nodes.append((backward, edges, held, outputs, label, sequence, slot))
    own = len(again.alive)
    combined.saved = list(range(own, own + template.arguments))
    return combined


def _joined(
    template: Template,
    structure: _Structure,
    tensors: list[Tensor],
    everything: list[Tensor],
    base: int,
    first: int,
) -> Tensor:
    made = template.outs[0]
    assert type(made) is _Made
    events = state.tape.events
    storage = _new_storage(Storage)
    number, storage.nbytes = template.alive[made.storage]
    storage.index = base + number
    storage.events = events
    node = _new_node(Joined)
    node.backward = _joined_backward
    edges: list[Any] = [None]
    edges += [x if x.node is None else (x.node, x.output_nr) for x in everything]
    node.edges = [edges[place] for place in template.outer]
    own = len(template.alive)
    node.saved = tuple([everything[place - own].storage if place >= own else storage for place in template.saved])
    node.outputs = 1
    node.label = state.label
    node.sequence = first + template.nodes[made.node][5]
    node.buffer = None
    node.frame = state.frame
    node.slot = 0
    node.base = base
    node.prefix = state.label.module
    node.structure = structure
    node.template = template
    node.tape_events = events
    out = Tensor(made.shape, made.dtype, storage, made.strides)
    out.is_view = made.is_view
    out.requires_grad = True
    out.node = node
    return out


def _joined_backward(gradient: Any) -> Sequence[Tensor | None]:
    raise RuntimeError("a joined node has no formula")


BUCKET = -1  # the storage that gradients are moved to, in place of a number
_LEAF = "\0"  # what a trained tensor's name begins with in a rehearsal, before its place


class _Program:
    """What a call's backward pass does, relative to where it happens. Storages are numbered: the forward pass's own,
    then new ones.

    steps     ("write", events, first, last): new storages of these numbers, and these events
              ("drop", place among what the node holds, or -1 for the gradient that came in)
              ("recompute",): the checkpoint frame's second forward pass
              ("hand", place of the edge, what, label): a gradient for an argument; ``what`` is None, the number of a
              tensor that was handed over or came in before, or (shape, dtype, strides, is_view, storage or -1)
    grads     (place of the trained tensor, shape, dtype, strides, is_view, storage)
    moved     (storage of a gradient that went to the bucket, place of the trained tensor)
    """

    __slots__ = ("grads", "label_of", "labels", "moved", "plain_labels", "sizes", "steps")

    def __init__(self) -> None:
        self.steps: list[tuple[Any, ...]] = []
        self.grads: list[tuple[Any, ...]] = []
        self.moved: list[tuple[int, int]] = []
        self.sizes: list[int] = []
        self.labels: list[tuple[str, str, str]] = []
        self.label_of: list[int] = []
        self.plain_labels: tuple[list[Label], list[Label]] | None = None


def _rehearse(template: Template, tensors: list[Tensor], gradient: Tensor, key: tuple[Any, ...]) -> _Program:
    """Run the call's own nodes on a tape of their own, and see what of it the outside can tell."""
    saved = state.tape, state.label, state.sequence
    state.tape, state.label = Tape(), Label("activations", "")
    state.tape.paid = _NO_END  # a part of what the call's own storages cost
    try:
        return _Rehearsal(template, tensors, gradient, key).run()
    finally:
        state.tape, state.label, state.sequence = saved


class _Rehearsal:
    def __init__(self, template: Template, tensors: list[Tensor], like: Tensor, key: tuple[Any, ...]) -> None:
        self.template = template
        self.tensor_shared, self.storage_shared, old = key[4:7]
        self.program = _Program()
        self.names: dict[Label, int] = {}
        tape = self.tape = state.tape
        own = len(template.alive)
        arguments = template.arguments
        pool = [Storage(nbytes, (), 1) for _, nbytes in template.alive]
        pool += [Storage(1, (), 1) for _ in range(arguments + len(tensors))]
        # By number on this tape: which place of what the node holds; -1 for others.
        places = {place: position for position, place in enumerate(template.saved)}
        self.place = [places.get(number, -1) for number in range(own + arguments)] + [-1] * len(tensors)
        self.own = own
        # The gradient that comes in, and what was handed over.
        self.seen = [Tensor(like.shape, like.dtype, Storage(1, (), 1), like.strides)]
        self.seen[0].is_view = like.is_view
        self.held = [True]
        self.handed = False
        self.first = len(tape.sizes)
        self.leaves: dict[int, Tensor] = {}
        plain = state.label
        for place in template.leaves:
            state.label = Label("parameters", "", f"{_LEAF}{place}")
            real = tensors[place - 1 - arguments]
            leaf = self.leaves[place] = Tensor(real.shape, real.dtype, Storage(1, (), 1), real.strides)
            self.first += 1
            if old:
                leaf.grad = leaf
        state.label = plain
        labels = [Label(*label) for label in template.labels]
        edges: list[Any] = list(range(template.nodes_from))
        # A frame's nodes hold it, and it holds the arguments.
        frame = tuple(pool[own : own + arguments]) if template.packed else None
        self.recomputed = frame is None
        self.nodes = _nodes(template, pool, edges, labels, 0, frame, 0)
        del pool, frame
        self.written = len(tape.events)
        self.storages = self.first

    def run(self) -> _Program:
        template, program = self.template, self.program
        out = template.outs[0]
        assert type(out) is _Made
        last = self.nodes[out.node]
        last.buffer = [None] * last.outputs
        last.buffer[out.output_nr] = self.seen[0]
        del last
        while self.nodes:
            node = self.nodes.pop()
            if node.buffer is None:
                raise _Unusual
            self.evaluate(node)
            del node
        self.write()
        if any(self.held):
            raise _Unusual
        for place, leaf in self.leaves.items():
            grad, leaf.grad = leaf.grad, None
            if grad is not None and grad is not leaf:
                number = grad.storage.index - self.first
                if grad.storage is state.bucket:
                    number = BUCKET
                elif number < 0:
                    raise _Unusual
                program.grads.append((place, grad.shape, grad.dtype, grad.strides, grad.is_view, number))
            del grad
        program.grads.sort(key=itemgetter(-1))
        handed = {step[2][-1] for step in program.steps if step[0] == "hand" and type(step[2]) is tuple} - {BUCKET}
        if not handed.isdisjoint(grad[-1] for grad in program.grads):
            raise _Unusual
        program.sizes = self.tape.sizes[self.first :]
        moved = {grad[0] for grad in program.grads if grad[-1] == BUCKET}
        for number, label in enumerate(self.tape.labels[self.first :]):
            if label.name.startswith(_LEAF):  # a leaf's gradient, before it went to the bucket
                place = int(label.name[len(_LEAF) :])
                label = Label(label.component, "")
                if place in moved:
                    program.moved.append((number, place))
            program.label_of.append(self.label(label))
        return program

    def label(self, label: Label) -> int:
        number = self.names.get(label)
        if number is None:
            number = self.names[label] = len(self.program.labels)
            self.program.labels.append(label)
        return number

    def evaluate(self, node: Node) -> None:
        state.label = node.label
        if node.frame is not None and not self.recomputed:
            self.write()
            self.recomputed = True
            self.program.steps.append(("recompute",))
        results = autograd._call(node)
        self.look()
        node.saved = ()
        node.frame = None
        edges: list[Any] = node.edges
        node.edges = []
        for position, edge in enumerate(edges):
            if type(edge) is int:
                leaf = self.leaves.get(edge)
                if edge == 0:
                    results[position] = None
                elif leaf is None:
                    self.hand(edge, results, position)
                elif results[position] is not None:
                    if any(results[position] is x for x in self.seen):
                        raise _Unusual
                    autograd._accumulate_leaf(leaf, results, position)
                    results[position] = None
            else:
                child, number = edge
                if child.buffer is None:
                    child.buffer = [None] * child.outputs
                result = results[position]
                results[position] = None
                if result is not None:
                    if child.buffer[number] is None:
                        child.buffer[number] = result
                    else:
                        self.merge(child.buffer, number)
                        self.look()  # the first gradient goes before the second
                    del result
                del child
            self.look()

    def merge(self, slots: list[Tensor | None], number: int) -> None:
        """``autograd._merge``, with what the rehearsal itself holds left out of the count."""
        held = slots[number]
        assert held is not None
        packed = held.strides is None or is_dense(held.shape, held.strides)
        if autograd.ACCUMULATE_IN_PLACE and packed and not held.is_view:
            known = [x for x in self.seen if x.storage is held.storage]
            if known and (self.handed or held is not self.seen[0]):
                raise _Unusual  # the outside decides
            ours = 1 if known else 0
            del known
            if (
                getrefcount(slots[number]) <= 3 + ours
                and getrefcount(held.storage) <= 2
                and not (ours and (self.tensor_shared or self.storage_shared))
            ):
                return
        slots[number] = Tensor(held.shape, held.dtype)

    def hand(self, place: int, results: list[Tensor | None], position: int) -> None:
        self.write()
        result = results[position]
        results[position] = None
        what: Any = None
        if result is not None:
            self.handed = True
            what = next((number for number, x in enumerate(self.seen) if x is result), None)
            if what is None:
                what = self.made(result)
                self.seen.append(result)
                self.held.append(True)
        del result
        self.program.steps.append(("hand", place, what, self.label(state.label)))

    def made(self, x: Tensor) -> tuple[Any, ...]:
        number = x.storage.index - self.first
        if x.storage is self.seen[0].storage:
            number = -1
        elif number < 0 or any(x.storage is other.storage for other in self.seen):
            raise _Unusual
        return x.shape, x.dtype, x.strides, x.is_view, number

    def look(self) -> None:
        """Has the call let go of a tensor that the outside knows?"""
        for number, held in enumerate(self.held):
            if held:
                x = self.seen[number]
                if getrefcount(self.seen[number]) <= 3:  # the list, the local name, the argument
                    others = sum(x.storage is other.storage for other in self.seen)
                    if getrefcount(x.storage) > others + 1:
                        continue
                    self.write()
                    self.held[number] = False
                    self.program.steps.append(("drop", -1 - number))

    def write(self) -> None:
        events: list[int] = []
        template, first, sizes = self.template, self.first, len(self.template.sizes)
        for event in self.tape.events[self.written :]:
            number = event if event >= 0 else ~event
            if number >= first:
                number += sizes - first
            elif number < len(self.place) and self.place[number] >= 0:
                self.flush(events)
                events = []
                self.program.steps.append(("drop", self.place[number]))
                continue
            elif number < self.own:
                number = template.alive[number][0]
            else:
                continue  # parameters stay
            events.append(number if event >= 0 else ~number)
        self.flush(events)
        self.written = len(self.tape.events)

    def flush(self, events: list[int]) -> None:
        if events:
            sizes = len(self.template.sizes) - self.first
            new = [event + 1 - sizes for event in events if event - sizes >= self.first]
            last = max(new, default=self.storages)
            self.program.steps.append(("write", events, self.storages - self.first, last - self.first))
            self.storages = last


def _run(
    program: _Program, node: Joined, again: _Again | None, dependencies: dict[Node, int], ready: list[Node]
) -> None:
    template, structure = node.template, node.structure
    base, forward = node.base, len(template.sizes)
    held: list[Any] = list(node.saved)
    if again is not None:
        forward = len(again.template.sizes)
        held = [x.storage for x in again.tensors]
        again.tensors.clear()
        node.frame = None
    tape = state.tape
    sizes, labels, events = tape.sizes, tape.labels, tape.events
    by_storage, distinct = _labels(program, structure, node.prefix)
    buffer = node.buffer
    assert buffer is not None
    seen: list[Any] = [buffer.pop()]
    targets: dict[int, Any] = dict(zip(template.outer, node.edges))
    node.buffer = None
    node.saved = ()
    node.edges = []
    node.backward = None
    ids = list(range(base, base + forward))
    for step in program.steps:
        kind = step[0]
        if kind == "write":
            _, own, first, last = step
            if last > first:
                start = len(sizes)
                ids += range(start, start + last - first)
                sizes += program.sizes[first:last]
                labels += by_storage[first:last]
            events += [ids[event] if event >= 0 else ~ids[~event] for event in own]
        elif kind == "drop":
            number = step[1]
            if number >= 0:
                held[number] = None
            else:
                seen[-1 - number] = None
        elif kind == "recompute":
            assert again is not None
            start = len(sizes)
            ids[:forward] = range(start, start + forward)
            state.label = again.label
            _write(again.template, structure)
            state.sequence += again.template.sequence
        else:
            _, place, what, label = step
            child, number = targets[place]
            if what is not None:
                if type(what) is int:
                    result = seen[what]
                else:
                    shape, dtype, strides, is_view, source = what
                    if source < 0:
                        storage = seen[0].storage
                    else:
                        storage = _new_storage(Storage)
                        storage.index = ids[forward + source]
                        storage.nbytes = sizes[storage.index]
                        storage.events = events
                    result = Tensor(shape, dtype, storage, strides)
                    del storage
                    result.is_view = is_view
                    seen.append(result)
                if child.buffer is None:
                    child.buffer = [None] * child.outputs
                if child.buffer[number] is None:
                    child.buffer[number] = result
                else:
                    state.label = distinct[label]
                    autograd._merge(child.buffer, number, result)
                del result
            dependencies[child] -= 1
            if dependencies[child] == 0:
                heappush(ready, child)
    first = template.arguments + 1
    known = -1
    for place, shape, dtype, strides, is_view, number in program.grads:
        leaf = structure.tensors[place - first]
        if number == BUCKET:
            assert state.bucket is not None
            leaf.grad = Tensor(shape, dtype, state.bucket, strides)
            continue
        if number != known:  # pieces of one gradient follow each other
            known = number
            storage = _new_storage(Storage)
            storage.index = index = ids[forward + number]
            storage.nbytes = sizes[index]
            storage.events = events
        grad = leaf.grad = Tensor(shape, dtype, storage, strides)
        grad.is_view = is_view
        old = labels[leaf.storage.index]
        if old.component in autograd.TRAINED:
            labels[index] = Label("gradients", old.module, old.name)
    for number, place in program.moved:
        old = labels[structure.tensors[place - first].storage.index]
        if old.component in autograd.TRAINED:
            labels[ids[forward + number]] = Label("gradients", old.module, old.name)


# -- activation checkpointing ------------------------------------------------------------------------------------


def _recomputable(frame: Any) -> bool:
    """Whether a frame's second forward pass can be a template's."""
    return not (
        _capturing
        or not ENABLED
        or getattr(frame.function, "replay_after", None) is None
        or frame.policy is not None
        or state.tape.shapes is not None
        or state.frame is not None
        or state.autocast is not None
        or state.cast_cache
    )


def _recompute_key(frame: Any, structure: _Structure, tensors: list[Tensor]) -> tuple[Any, ...] | None:
    mode = "recompute", None if frame.autocast is None else frame.autocast.name, frame.count
    return _key(frame.function, structure, frame.args, tensors, mode)


def recompute(frame: Any) -> None:
    """What a checkpoint frame's second forward pass leaves for backward. It is one module's call, up to the point
    where everything that was saved is there again."""
    global _capturing
    module = frame.function
    if not _recomputable(frame):
        frame.recompute()
        return
    saved = state.label
    if module.path:
        state.label = Label(saved.component, module.path)
    if not _likely(module, frame.args):
        state.label = saved
        frame.recompute()
        return
    structure = _structure(module)
    tensors: list[Tensor] = []
    key = _recompute_key(frame, structure, tensors)
    template = None if key is None else _templates.get(key, _MISSING)
    if type(template) is Template:
        base = len(state.tape.sizes)
        _write(template, structure)
        pool = _own_storages(template, base, state.tape.events)
        pool += [x.storage for x in tensors]
        pool += [x.storage for x in structure.tensors]
        state.sequence += template.sequence
        frame.recomputed = [tuple([pool[place] for place in saved_]) for saved_ in template.recomputed]
        state.label = saved
        return
    if key is None or template is None:
        state.label = saved
        frame.recompute()
        return
    watch = _Watch()
    state.label = saved
    _capturing = True
    try:
        frame.recompute()
    finally:
        _capturing = False
    try:
        _remember(key, _recomputed(watch, frame.recomputed, [*tensors, *structure.tensors]))
    except _Unusual:
        _remember(key, None)


def _recomputed(watch: _Watch, recomputed: list[tuple[Storage, ...]], everything: list[Tensor]) -> Template:
    template = Template()
    alive = watch.tape_of(template, {})
    pool = _pool_places(template, alive, everything, watch.storages)
    for saved in recomputed:
        if any(storage.index not in pool for storage in saved):
            raise _Unusual
        template.recomputed.append(tuple([pool[storage.index] for storage in saved]))
    if not alive <= {storage.index - watch.storages for saved in recomputed for storage in saved}:
        raise _Unusual
    return template
