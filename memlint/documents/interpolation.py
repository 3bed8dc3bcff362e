"""OmegaConf's ``${...}``, followed over a tree of nodes.

A whole value ``${a.b}`` becomes the value it names: the node keeps its key, its span is where the value was
written, and the place of the ``${...}`` goes first into ``via``. Text around it makes text. Resolvers never run:
``${oc.env:X}`` and all others are :class:`Unresolved`, except that plain arithmetic is computed: in ``${eval:...}``,
and of two numbers by the names in :data:`OPERATIONS`, which programs register for it.
"""

from __future__ import annotations

import re

from memlint import work
from memlint.documents.node import Keys, Node, Span, Unresolved, Value, shown
from memlint.documents.unknown import Unknown

MAX_CHAIN = 50  # values that name values that name values
MAX_NODES = 100_000
MAX_TEXT = 10_000
MISSING = "???"
# Resolvers of two numbers, by the names that programs register (NeMo RL: utils/config.py) -> what they mean. Some mean
# whole division by ``div``: a quotient with a rest is none that is known.
OPERATIONS = {"add": "+", "sub": "-", "mul": "*", "multiply": "*", "div": "/", "max": "max", "min": "min"}
_LONG_CHAIN = f"a chain of more than {MAX_CHAIN} interpolations"
_NUMBER = re.compile(r"[+-]?(0|[1-9][0-9]{0,39})(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?")
CONTAINER_IN_TEXT = "a mapping or a list inside text"


def has_interpolation(value: object) -> bool:
    return isinstance(value, str) and "${" in value


def resolve(root: Node) -> Node:
    """The tree with every ``${...}`` followed. What cannot be is Unresolved, never an error."""
    if not any(has_interpolation(node.value) for node in root.walk()):
        return root
    return _Resolver(root).node(root)


def select(root: Node, node: Node) -> Node | None:
    """What the value of ``node`` (one of ``root``'s tree), a whole ``${...}``, names; None where that is unknown."""
    found = _Resolver(root).node(node)
    return None if found.is_unresolved else found


class _Resolver:
    def __init__(self, root: Node) -> None:
        self.root = root
        self.parents: dict[int, Node] = {}
        # By identity: a node, kept alive by being here, and its resolved form (which is its own resolved form).
        self.done: dict[int, tuple[Node, Node]] = {}
        self.active: set[int] = set()
        self.nodes = 0
        self.spend = work.meter().spend
        for node in root.walk():
            self.spend(1, "following interpolations")
            if isinstance(node.value, dict):
                for child in node.value.values():
                    self.parents[id(child)] = node
            elif isinstance(node.value, list):
                for child in node.value:
                    self.parents[id(child)] = node

    def node(self, node: Node) -> Node:
        """The resolved form of a node of the original tree, at its own place."""
        done = self.done.get(id(node))
        if done is not None:
            return done[1]
        value = node.value
        if isinstance(value, str):
            if "${" not in value:
                return node
            result = self.text(node, value)
        elif isinstance(value, (dict, list)):
            if id(node) in self.active:
                return _unknown(node, "an interpolation that contains itself")
            self.active.add(id(node))
            resolved: Value
            if isinstance(value, dict):
                resolved = {name: self.node(child) for name, child in value.items()}
            else:
                resolved = [self.node(child) for child in value]
            self.active.discard(id(node))
            result = Node(resolved, node.span, node.key_span, node.keys, node.via)
        else:
            return node
        self.remember(node, result)
        return result

    def remember(self, node: Node, result: Node) -> None:
        self.done[id(node)] = node, result
        self.done[id(result)] = result, result

    def text(self, node: Node, text: str) -> Node:
        if id(node) in self.active:
            return _unknown(node, "an interpolation that leads back to itself")
        if len(self.active) > 2 * MAX_CHAIN:
            return _unknown(node, _LONG_CHAIN)
        self.spend(work.NODE + (work.KILOBYTE * len(text) >> 10), "following interpolations")
        self.active.add(id(node))
        try:
            parts = _parse(text)
            if len(parts) == 1 and isinstance(parts[0], _Use):
                return self.whole(node, parts[0])
            return Node(self.joined(node, parts), node.span, node.key_span, node.keys, node.via)
        except Unknown as unknown:
            return _unknown(node, str(unknown))
        finally:
            self.active.discard(id(node))

    def whole(self, node: Node, use: _Use) -> Node:
        """A value that is one ``${...}`` and nothing else keeps the type of what it names."""
        name, content = self.named(node, use)
        if name is not None:
            return Node(self.computed(name, content), node.span, node.key_span, node.keys, node.via)
        target = self.target(node, content)
        if len(target.via) + len(node.via) > MAX_CHAIN:
            raise Unknown(_LONG_CHAIN)
        return self.copy(target, node.keys, node.key_span, (node.span, *node.via))

    def named(self, node: Node, use: _Use) -> tuple[str | None, str]:
        """The resolver's name, if one is called, and the rest with what is nested in it filled in."""
        if use.resolver and use.resolver != "eval" and use.resolver not in OPERATIONS:
            raise Unknown(_not_run(use.resolver))
        return use.resolver or None, self.joined(node, use.parts)

    def joined(self, node: Node, parts: list[str | _Use]) -> str:
        pieces: list[str] = []
        size = 0
        for part in parts:
            if isinstance(part, str):
                piece = part
            else:
                name, content = self.named(node, part)
                value = self.computed(name, content) if name is not None else self.target(node, content).value
                if isinstance(value, (dict, list)):
                    raise Unknown(CONTAINER_IN_TEXT)
                piece = str(value)
            size += len(piece)
            if size > MAX_TEXT:
                raise Unknown(f"text of more than {MAX_TEXT:,} characters")
            pieces.append(piece)
        self.spend(size >> 3, "putting interpolations together")  # for the memory that the text takes
        return "".join(pieces)

    def computed(self, name: str, content: str) -> Value:
        if name in OPERATIONS:
            return _operation(name, content)
        content = content.strip()
        if len(content) >= 2 and content[0] == content[-1] and content[0] in "'\"":
            content = content[1:-1]
        from memlint.documents.arithmetic import evaluate  # brings Python's own parser along

        try:
            return evaluate(content)
        except Unknown as unknown:
            raise Unknown(f"the resolver eval is not run: {unknown}") from None

    def target(self, node: Node, path: str) -> Node:
        """The resolved node at an absolute (``a.b[0]``) or relative (``.b``, ``..b``) path."""
        path = path.strip()
        keys = path.lstrip(".")
        current = self.root
        if len(keys) < len(path):
            for level in range(len(path) - len(keys)):
                parent = self.parents.get(id(node if level == 0 else current))
                if parent is None:
                    raise Unknown(f"${{{shown(path)}}} leads above the root")
                current = parent
        for key in _keys(keys):
            current = self.step(current, key, path)
        above = self.parents.get(id(node))
        while above is not None:
            if above is current:
                raise Unknown("an interpolation that leads back to itself")
            above = self.parents.get(id(above))
        found = self.node(current)
        value = found.value
        if isinstance(value, Unresolved):
            raise Unknown(value.reason)
        if value == MISSING:
            raise Unknown(f"${{{shown(path)}}} is ???, a value to be given when the run is started")
        return found

    def step(self, current: Node, key: str, path: str) -> Node:
        if has_interpolation(current.value):
            current = self.node(current)
        value = current.value
        if isinstance(value, Unresolved):
            raise Unknown(value.reason)
        child: Node | None = None
        if isinstance(value, dict):
            child = value.get(key)
        elif isinstance(value, list):
            try:
                child = value[int(key)]
            except (ValueError, IndexError):
                child = None
        if child is None:
            raise Unknown(f"there is no {shown(path)} in this config")
        return child

    def copy(self, node: Node, keys: Keys, key_span: Span | None, via: tuple[Span, ...]) -> Node:
        self.nodes += 1
        self.spend(work.NODE, "expanding interpolations")
        if self.nodes > MAX_NODES:
            raise Unknown(f"interpolations expand to more than {MAX_NODES:,} values")
        value = node.value
        if isinstance(value, dict):
            value = {n: self.copy(child, (keys, n), child.key_span, via) for n, child in value.items()}
        elif isinstance(value, list):
            value = [self.copy(child, (keys, index), None, via) for index, child in enumerate(value)]
        copied = Node(value, node.span, key_span, keys, via + node.via)
        self.remember(copied, copied)
        return copied


class _Use:
    """One ``${...}``: the resolver it calls (or "") and its content, in which others may be nested."""

    __slots__ = ("parts", "resolver")

    def __init__(self, resolver: str, parts: list[str | _Use]) -> None:
        self.resolver = resolver
        self.parts = parts


def _parse(text: str) -> list[str | _Use]:
    parts, end = _scan(text, 0, 0)
    if end < len(text):
        raise Unknown("an interpolation that is not well formed")
    return parts


def _scan(text: str, offset: int, depth: int) -> tuple[list[str | _Use], int]:
    """Parts up to the ``}`` that closes this level (depth > 0) or the end of the text."""
    if depth > MAX_CHAIN:
        raise Unknown(f"interpolations nested deeper than {MAX_CHAIN}")
    parts: list[str | _Use] = []
    pending: list[str] = []
    while offset < len(text):
        if depth and text[offset] == "}":
            break
        if text.startswith("${", offset):
            slashes = _trailing_slashes(pending)
            if slashes:  # half of them escape each other; an odd one escapes this
                _drop_slashes(pending, slashes - slashes // 2)
            if slashes % 2:
                pending.append("${")
                offset += 2
                continue
            inner, offset = _scan(text, offset + 2, depth + 1)
            if not text.startswith("}", offset):
                raise Unknown("an interpolation without its closing brace")
            offset += 1
            if pending:
                parts.append("".join(pending))
                pending = []
            parts.append(_use(inner))
        else:
            pending.append(text[offset])
            offset += 1
    if pending:
        parts.append("".join(pending))
    return parts, offset


def _use(parts: list[str | _Use]) -> _Use:
    first = parts[0] if parts else ""
    if isinstance(first, str) and ":" in first:
        name, rest = first.split(":", 1)
        return _Use(name.strip(), [rest, *parts[1:]])
    if any(isinstance(part, str) and ":" in part for part in parts):
        return _Use("?", parts)  # a resolver whose very name is interpolated
    return _Use("", parts)


def _operation(name: str, content: str) -> Value:
    """What :data:`OPERATIONS` has for two numbers, ``a, b``."""
    from memlint.documents.arithmetic import evaluate

    numbers = [part.strip() for part in content.split(",")]
    if len(numbers) != 2 or not all(_NUMBER.fullmatch(part) for part in numbers):
        raise Unknown(f"the resolver {name} is not run: it is not of two numbers")
    left, right = map(_number, numbers)
    operation = OPERATIONS[name]
    try:
        if operation in ("max", "min"):
            return max(left, right) if operation == "max" else min(left, right)
        found = evaluate(f"({left!r}) {operation} ({right!r})")
    except (Unknown, ValueError) as error:
        raise Unknown(f"the resolver {name} is not run: {error}") from None
    if operation == "/" and not (isinstance(found, float) and found.is_integer()):
        raise Unknown(f"the resolver {name} is not run: a quotient with a rest")
    return found


def _number(text: str) -> int | float:
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def _trailing_slashes(pending: list[str]) -> int:
    count = 0
    while count < len(pending) and pending[-1 - count] == "\\":
        count += 1
    return count


def _drop_slashes(pending: list[str], count: int) -> None:
    del pending[len(pending) - count :]


def _keys(path: str) -> list[str]:
    """``a.b[0][c]`` as ``a``, ``b``, ``0``, ``c``."""
    keys: list[str] = []
    for part in path.replace("]", "").replace("[", ".").split("."):
        if part:
            keys.append(part.strip())
    return keys


def _not_run(name: str) -> str:
    if name in ("oc.env", "env"):
        return "an environment variable, which memlint does not read"
    return f"the resolver {shown(name)} is not run"


def _unknown(node: Node, reason: str) -> Node:
    text = str(node.value) if isinstance(node.value, str) else ""
    unresolved = Unresolved(reason, text, text.rpartition("}")[2])
    return Node(unresolved, node.span, node.key_span, node.keys, node.via)
