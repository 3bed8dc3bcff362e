"""Options of a program: those that it declares (argparse), the dataclasses that a parser fills, and what is given."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from memlint.documents.node import Keys, Node, Unresolved
from memlint.documents.programs import class_parsers
from memlint.documents.programs.call_nodes import target_of
from memlint.documents.programs.state import PLACED, State, typed
from memlint.documents.python import reader as python
from memlint.documents.python.scope import Scope

# Methods of parsers: of argparse's, and of those that fill dataclasses (transformers 5: hf_argparser.py; TRL 1.16:
# scripts/utils.py; and their kin), from the command or from the file that it names.
_FILLED = ("parse_args_into_dataclasses", "parse_args_and_config", "parse_yaml_file", "parse_yaml_and_args", "parse")

PARSED = ("parse_args", "parse_known_args", "parse_json_file", "parse_dict", *_FILLED)

GIVEN = "_given_"  # in a mapping of options: those that are not there were not given


class Options(python.Module):
    state: State

    def argument(self, node: ast.Call, scope: Scope) -> None:
        """An option of argparse's, whose default counts where it is not given."""
        named = [one for one in node.args if isinstance(one, (ast.Constant, ast.JoinedStr))]
        words = [self.value(one, "", scope, 0).value for one in named]
        names = [word for word in words if isinstance(word, str)]
        long = next((name for name in names if name.startswith("--")), names[0] if names else "")
        said = {keyword.arg: keyword.value for keyword in node.keywords}
        dest = said.get("dest")
        name = str(dest.value) if isinstance(dest, ast.Constant) else long.lstrip("-").replace("-", "_")
        action = said.get("action")
        if names and not long.startswith("-") and "nargs" not in said and name not in self.state.placed:
            self.state.placed.append(name)
        if "default" in said:
            self.state.arguments[name] = self.value(said["default"], name, scope, 0)
        elif isinstance(action, ast.Constant) and action.value in ("store_true", "store_false"):
            self.state.arguments[name] = Node(action.value == "store_false", self.span(action), None, name)
        elif "required" not in said and long.startswith("--"):
            self.state.arguments[name] = Node(None, self.span(node), None, name)

    def in_their_places(self) -> dict[str, Node]:
        """What a command gives arguments that have no dashes."""
        words = self.state.options.get(PLACED)
        listed = words.value if words is not None and isinstance(words.value, list) else []
        return {name: typed(word) for name, word in zip(self.state.placed, listed)}

    def parsed(self, call: ast.Call, function: ast.Attribute, keys: Keys, scope: Scope, depth: int) -> Node | None:
        """What a parser of options returns; None for another object's method."""
        parser = self.value(function.value, "", scope, depth)
        if not target_of(parser).endswith("Parser") or not isinstance(parser.value, dict):
            return None
        self.state.parses = True
        if function.attr in ("parse_args", "parse_known_args"):
            given = {**self.state.arguments, **self.in_their_places(), **self.state.options}
            given[GIVEN] = Node(True, parser.span)
            values = Node(given, parser.span, None, keys)
            return values if function.attr == "parse_args" else Node([values, Node([], parser.span)], parser.span)
        named = parser.value.get("_args_")
        kinds = parser.value.get("dataclass_types")
        if named is not None and isinstance(named.value, list) and named.value:
            kinds = named.value[0]
        if kinds is None:
            return None
        classes = kinds.value if isinstance(kinds.value, list) else [kinds]
        filled = [self.filled(one, keys) for one in classes]
        if any(keyword.arg == "return_remaining_strings" for keyword in call.keywords):
            filled.append(Node([], parser.span))  # words of the command that no class has a field for
        if len(filled) == 1 and function.attr in ("parse", "parse_args_and_config"):
            return filled[0]
        return Node(filled, parser.span, None, keys)

    def is_a_library_s(self, kind: Node) -> bool:
        """Whether a class of options is of a library's: what it is given, that library takes."""
        return self.state.bases_of.get(target_of(kind), "").endswith(("Arguments", "Config"))

    def filled(self, kind: Node, keys: Keys) -> Node:
        """A dataclass with the options in it; one of a library's has no more than these."""
        values = dict(kind.value) if isinstance(kind.value, dict) else {}
        name = kind.value.text if isinstance(kind.value, Unresolved) else target_of(kind)
        base = self.state.bases_of.get(name, name).rpartition(".")[2]
        given = class_parsers.filled(values, self.state.options)
        made = {**given, "_target_": Node(base, kind.span), GIVEN: Node(True, kind.span)}
        node = Node(made, kind.span, None, keys)
        self.state.made.append(node)
        return node

    def fields(self, node: ast.Call, keys: Keys, scope: Scope, depth: int) -> Node | None:
        """What ``dataclasses.fields`` tells of a class of the program's own: names and defaults."""
        kind = self.value(node.args[0], "", scope, depth + 1)
        if not isinstance(kind.value, dict) or not target_of(kind):
            return None
        place = self.span(node)
        told = [
            Node({"name": Node(name, place), "default": value}, place, None, (keys, name))
            for name, value in kind.value.items()
            if not name.startswith("_")
        ]
        return Node(told, place, None, keys)

    def item(self, owner: ast.expr, arguments: Sequence[ast.expr], keys: Keys, scope: Scope, depth: int) -> Node | None:
        """What ``.get`` of a mapping that is known returns; None where it is not."""
        mapping = self.value(owner, "", scope, depth + 1)
        if not isinstance(mapping.value, dict) or (target_of(mapping) and GIVEN not in mapping.value):
            return None
        name = self.known(arguments[0], scope)
        found = mapping.value.get(str(name))
        if found is not None:
            return self.moved(found, keys, None, (self.span(arguments[0]),))
        if len(arguments) == 2:
            return self.value(arguments[1], keys, scope, depth + 1)
        return Node(None, self.span(arguments[0]), None, keys)

    def is_data(self, name: str) -> bool:
        """Whether a class of its own is one of values (a dataclass), and no trainer, model or parser."""
        return not self.state.bases_of[name].endswith(("Trainer", "Model", "Module", "ForCausalLM", "Parser"))


_LISTED = re.compile(r"[\[(]([^\[\](){}]*)[\])]")


def fired(node: Node) -> Node:
    """An option as ``fire`` reads it: ``[q_proj,v_proj]`` is a list, and its words are texts (fire/parser.py)."""
    text = node.value[0].value if isinstance(node.value, list) and len(node.value) == 1 else node.value
    listed = _LISTED.fullmatch(text.strip()) if isinstance(text, str) else None
    if listed is None:
        return node
    words = [word.strip().strip("\"'") for word in listed[1].split(",")]
    items = [Node(word, node.span, None, (node.keys, str(at)), node.via) for at, word in enumerate(words) if word]
    return Node(items, node.span, node.key_span, node.keys, node.via)
