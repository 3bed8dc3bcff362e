"""Writing a key that is absent: after the last entry of its nearest existing parent, in that file's own style."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memlint.dialects.rendering import (
    SourceText,
    json_value,
    python_value,
    rendered,
    shell_word,
    text_of,
    toml_value,
    yaml_value,
)
from memlint.dialects.schema import Key
from memlint.dialects.spec import TrainingSpec
from memlint.documents.lines import bounds, position
from memlint.documents.node import Edit, Node, Span


def add(spec: TrainingSpec, key: Key, value: Any) -> list[Edit]:
    """Write an absent key. The nearest parent that exists decides where, and in which file."""
    if isinstance(value, tuple):
        value = list(value)
    if spec.launch is not None and spec.document.format == "shell":
        return _add_option(spec, key, value)
    parent, missing = _nearest_parent(spec.root, key)
    if parent is None:
        return []
    if not missing:  # an empty value stands there: `key:`
        return _fill(spec, parent, value)
    place = _own_file(spec, parent)
    if place is None:
        return []
    text, anchor = place
    adders: dict[str, Callable[[SourceText, Node, Node | None, tuple[str, ...], Any], list[Edit]]] = {
        "yaml": _add_yaml,
        "json": _add_json,
        "toml": _add_toml,
        "python": _add_python,
    }
    adder = adders.get(text.format)
    return adder(text, parent, anchor, missing, value) if adder is not None else []


def _nearest_parent(root: Node, key: Key) -> tuple[Node | None, tuple[str, ...]]:
    """(the deepest mapping on the way to the key, the parts of the key that are missing below it)."""
    node = root
    for depth, part in enumerate(key.path):
        if not isinstance(node.value, dict):
            return None, ()
        names = key.names if depth == len(key.path) - 1 else (part,)
        found = next((node.value[name] for name in names if name in node.value), None)
        if found is None:
            return node, key.path[depth:]
        if found.value is None:
            rest = key.path[depth + 1 :]
            return (found, ()) if not rest else (None, ())
        node = found
    return None, ()


def _fill(spec: TrainingSpec, node: Node, value: Any) -> list[Edit]:
    text = text_of(spec, node.span.path)
    if text is None:
        return []
    new = rendered(text, node.span, text.at(node.span), value)
    return [Edit(node.span, new)] if new is not None else []


def _own_file(spec: TrainingSpec, parent: Node) -> tuple[SourceText, Node | None] | None:
    """The file that most of a mapping's keys stand in, and the key that stands last there.

    A composed mapping may hold keys of several files, and of places outside of it (merge keys).
    """
    assert isinstance(parent.value, dict)
    children = [node for node in parent.value.values() if node.key_span is not None]
    counts: dict[str, int] = {}
    for node in children:
        assert node.key_span is not None
        counts[node.key_span.path] = counts.get(node.key_span.path, 0) + 1
    for path in sorted(counts, key=lambda path: (-counts[path], path != spec.document.path)):
        text = text_of(spec, path)
        if text is not None:
            own = [node for node in children if node.key_span is not None and node.key_span.path == path]
            return text, max(own, key=lambda node: (node.key_span or node.span)[1:3])
    text = text_of(spec, parent.span.path)
    return (text, None) if text is not None else None


def _nested(parts: tuple[str, ...], value: Any) -> Any:
    for part in reversed(parts):
        value = {part: value}
    return value


def _block(parts: tuple[str, ...], value: Any, indent: str, step: str, newline: str) -> str:
    """``a:`` / ``  b: 1`` for the parts a, b: YAML block style."""
    lines = [indent + step * depth + yaml_value(part) + ":" for depth, part in enumerate(parts)]
    return newline.join(lines) + " " + yaml_value(value)


def _add_yaml(text: SourceText, parent: Node, anchor: Node | None, missing: tuple[str, ...], value: Any) -> list[Edit]:
    """After the last entry of the mapping that the anchor key stands in, as PyYAML sees the file."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        tree = yaml.compose(text.text, Loader=loader)
    except yaml.YAMLError:
        return []
    if tree is None:
        lead = "" if not text.text or text.text.endswith(("\n", "\r")) else text.newline
        return [text.insertion(len(text.text), lead + _block(missing, value, "", "  ", text.newline) + text.newline)]
    mapping = _yaml_mapping(tree, text, parent, anchor)
    if mapping is None:
        return []
    if mapping.flow_style:
        entry = ", ".join(f"{yaml_value(name)}: {yaml_value(item)}" for name, item in _nested(missing, value).items())
        if mapping.value:
            return [text.insertion(_yaml_end(text, mapping.value[-1][1]), ", " + entry)]
        start, _ = bounds(text.starts, _mark_span(text, mapping))
        return [text.insertion(start + 1, entry)]
    first = mapping.value[0][0].start_mark
    indent = text.text[text.starts[first.line] : text.starts[first.line] + first.column]
    indent = "".join(character if character == "\t" else " " for character in indent)
    block = _block(missing, value, indent, "  ", text.newline)
    # The entry after which to write: the last one, but never a `<<` with its anchor on a line of its own.
    end = _yaml_end(text, mapping.value[-1][1], mapping.value[-1][0])
    line, column = position(text.starts, end)
    if column == 1 and end == len(text.text):
        return [text.insertion(end, block + text.newline)]
    return [text.insertion(text.line_end(line), text.newline + block)]


def _mark_span(text: SourceText, node: Any) -> Span:
    start, end = node.start_mark, node.end_mark
    return Span(text.path, start.line + 1, start.column + 1, end.line + 1, end.column + 1)


def _yaml_mapping(tree: Any, text: SourceText, parent: Node, anchor: Node | None) -> Any:
    """The composed mapping node that holds the anchor key (or starts where an empty parent does)."""
    stack = [tree]
    seen: set[int] = set()
    while stack:
        node = stack.pop()
        if id(node) in seen or not isinstance(node.value, list):
            continue
        seen.add(id(node))
        is_mapping = node.id == "mapping"
        if is_mapping and anchor is not None and anchor.key_span is not None:
            for name, _ in node.value:
                mark = name.start_mark
                if (mark.line + 1, mark.column + 1) == anchor.key_span[1:3]:
                    return node
        elif is_mapping:
            mark = node.start_mark
            if (mark.line + 1, mark.column + 1) == parent.span[1:3]:
                return node
        for item in node.value:
            stack.extend(item if is_mapping else (item,))
    return None


def _yaml_end(text: SourceText, node: Any, key: Any = None) -> int:
    """Offset of the end of a node's own text: block collections end with their last entry, an alias where it
    stands, a block scalar with its last line."""
    if key is not None:
        mark = key.end_mark
        after = text.starts[mark.line] + mark.column
        line = text.text[after : text.line_end(mark.line + 1)]
        if line.lstrip(" \t:").startswith("*"):  # an alias: its node's marks are those of the anchor
            return text.line_end(mark.line + 1)
    if isinstance(node.value, list) and node.value and not node.flow_style:
        last = node.value[-1]
        return _yaml_end(text, last[1], last[0]) if node.id == "mapping" else _yaml_end(text, last)
    mark = node.end_mark
    end: int = text.starts[mark.line] + mark.column if mark.line < len(text.starts) else len(text.text)
    if node.id == "scalar" and node.style in ("|", ">"):
        stripped = len(text.text[:end].rstrip("\r\n \t"))
        return max(stripped, text.starts[node.start_mark.line] + node.start_mark.column)
    return min(end, len(text.text))


def _add_json(text: SourceText, parent: Node, anchor: Node | None, missing: tuple[str, ...], value: Any) -> list[Edit]:
    """After the last entry, with a comma; on a line of its own where the entries have theirs."""
    name, item = missing[0], _nested(missing[1:], value)
    entry = f"{json_value(name)}: {json_value(item)}"
    if anchor is None or anchor.key_span is None:
        start, end = bounds(text.starts, parent.span)
        if text.text[start : start + 1] != "{" or text.text[start + 1 : end - 1].strip():
            return []
        return [text.insertion(start + 1, entry)]
    key_start, _ = bounds(text.starts, anchor.key_span)
    _, end = bounds(text.starts, anchor.span)
    before = text.line_before(key_start)
    separator = text.newline + before if not before.strip() else " "
    return [text.insertion(end, "," + separator + entry)]


def _add_toml(text: SourceText, parent: Node, anchor: Node | None, missing: tuple[str, ...], value: Any) -> list[Edit]:
    """After the last key of the parent's own table; a table of its own where the parent is missing too."""
    assert isinstance(parent.value, dict)
    name, item = missing[0], _nested(missing[1:], value)
    plain = [node for node in parent.value.values() if node.key_span is not None and not _is_toml_table(node, text)]
    plain = [node for node in plain if node.key_span is not None and node.key_span.path == text.path]
    inline = not _is_toml_table(parent, text) and parent.key_path != ""
    if inline:
        start, _ = bounds(text.starts, parent.span)
        entry = f"{_toml_key(name)} = {toml_value(item)}"
        if not plain:
            return [text.insertion(start + 1, entry)]
        _, last_end = bounds(text.starts, max(plain, key=lambda node: node.span[3:5]).span)
        return [text.insertion(last_end, ", " + entry)]
    if len(missing) > 1 and not parent.key_path:
        header = ".".join(map(_toml_key, missing[:-1]))
        lead = "" if not text.text or text.text.endswith("\n") else text.newline
        body = f"[{header}]{text.newline}{_toml_key(missing[-1])} = {toml_value(value)}{text.newline}"
        return [text.insertion(len(text.text), lead + body)]
    if plain:
        last = max(plain, key=lambda node: node.span[3:5])
        assert last.key_span is not None
        start, _ = bounds(text.starts, last.key_span)
        prefix = text.line_before(start)  # indentation, or the front of a dotted key
        dotted = ".".join(map(_toml_key, missing))
        return [
            text.insertion(text.line_end(last.span.end_line), f"{text.newline}{prefix}{dotted} = {toml_value(value)}")
        ]
    dotted = ".".join(map(_toml_key, missing))
    if not parent.key_path:
        return [text.insertion(0, f"{dotted} = {toml_value(value)}{text.newline}")]
    return []


def _is_toml_table(node: Node, text: SourceText) -> bool:
    """A mapping that is not written inline."""
    if not isinstance(node.value, dict):
        return (
            isinstance(node.value, list)
            and any(item.is_mapping for item in node.value)
            and not (text.at(node.span).startswith("[") and "=" in text.at(node.span) and "{" in text.at(node.span))
        )
    return not text.at(node.span).startswith("{")


def _toml_key(name: str) -> str:
    bare = name and all(c.isascii() and (c.isalnum() or c in "_-") for c in name)
    return name if bare else json_value(name)


def _add_python(
    text: SourceText, parent: Node, anchor: Node | None, missing: tuple[str, ...], value: Any
) -> list[Edit]:
    """After the last statement of the class or module that the keys are assigned in."""
    import ast

    try:
        module = ast.parse(text.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    body: list[ast.stmt] = module.body
    if parent.key_path:
        classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
        if parent.key_path not in classes:
            return _add_python_entry(text, parent, anchor, missing, value)
        body = classes[parent.key_path].body
    name, item = missing[0], _nested(missing[1:], value)
    constants = [node for node in body if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign))]
    statement = f"{name} = {python_value(item)}"
    if not constants:
        if not body or body[0].lineno == 0:
            return []
        first = body[0]
        indent = text.text[text.starts[first.lineno - 1] :][: first.col_offset]
        return [text.insertion(text.starts[first.lineno - 1], indent + statement + text.newline)]
    last = constants[-1]
    line = last.end_lineno or last.lineno
    start = text.starts[last.lineno - 1]
    indent = text.text[start : start + last.col_offset]
    if indent.strip():  # several statements on one line
        return [text.insertion(text.line_end(line), "; " + statement)]
    return [text.insertion(text.line_end(line), text.newline + indent + statement)]


def _add_python_entry(
    text: SourceText, parent: Node, anchor: Node | None, missing: tuple[str, ...], value: Any
) -> list[Edit]:
    """Into a dict: ``{"a": 1}`` or ``dict(a=1)``, after its last entry."""
    if anchor is None or anchor.key_span is None:
        return []
    item = _nested(missing[1:], value)
    key_start, _ = bounds(text.starts, anchor.key_span)
    _, end = bounds(text.starts, anchor.span)
    quoted = text.text[key_start : key_start + 1] in ("'", '"')
    entry = f"{missing[0]!r}: {python_value(item)}" if quoted else f"{missing[0]}={python_value(item)}"
    if quoted and text.text[key_start] == '"':
        entry = f"{json_value(missing[0])}: {python_value(item)}"
    before = text.line_before(key_start)
    separator = text.newline + before if not before.strip() else " "
    return [text.insertion(end, "," + separator + entry)]


def _add_option(spec: TrainingSpec, key: Key, value: Any) -> list[Edit]:
    """After the command's last word, on a line of its own where the options have theirs."""
    command = spec.launch
    assert command is not None
    if len(key.path) != 1:
        return []
    last = command.words[-1] if command.words else command.program
    span = last.via[0] if last.via else last.span  # where the command uses it
    text = text_of(spec, span.path)
    if text is None:
        return []
    name = key.path[0]
    option = ("--" if len(name) > 1 else "-") + name
    if key.annotation.get("flag"):
        if value is not True:
            return []
        words = option
    else:
        word = shell_word(value)
        if word is None:
            return []
        words = f"{option} {word}"
    _, end = bounds(text.starts, span)
    before = text.line_before(bounds(text.starts, span)[0])
    indent = before[: len(before) - len(before.lstrip(" \t"))]
    first_line = command.span.line
    if span.line > first_line and _continued(text, span.line):
        return [text.insertion(end, f" \\{text.newline}{indent}{words}")]
    return [text.insertion(end, " " + words)]


def _continued(text: SourceText, line: int) -> bool:
    """Whether the line before a 1-based line ends in a continuation."""
    return line > 1 and text.text[text.starts[line - 2] : text.line_end(line - 1)].endswith("\\")
