"""The program that makes a repository's own model, as far as to where it does: nanoGPT's train.py and its kin."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from memlint.models import UnknownModel
from memlint.models.own.interpreter import Interpreter, bound_by
from memlint.models.own.objects import OwnModule, Scope, Strange

# By which a train.py takes the words of its command: ``exec(open('configurator.py').read())``.
_TAKES = "exec"


def model_of(
    sources: Mapping[str, str], program: str, said: Mapping[str, Any], fixed: Mapping[str, Any]
) -> tuple[OwnModule, int | str]:
    """(the module that the program makes first, where in what it returns, or of it, the loss is).

    said   what the command, or the file that it names, sets over the program's own assignments
    fixed  names whose values the data would tell
    """
    interpreter = Interpreter(sources)
    tree = interpreter.parsed(program)
    scope, taken = Scope(), not said
    for node in tree.body:
        taken = _top(interpreter, node, scope, said) or taken
        scope.names.update(fixed)
        model = next((one for one in scope.names.values() if isinstance(one, OwnModule)), None)
        if model is not None:
            if not taken:
                raise UnknownModel("how the program takes the words of its command is not followed")
            return model, _loss(tree)
    missed = scope.names.get("model")
    why = missed.why if isinstance(missed, Strange) else "it makes no model at its top level"
    raise UnknownModel(f"the model of the program's own: {why}")


def _top(interpreter: Interpreter, node: ast.stmt, scope: Scope, said: Mapping[str, Any]) -> bool:
    """One statement of the program; whether it is the one by which it takes what its command says."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        if getattr(node.value.func, "id", "") == _TAKES:
            scope.names.update(said)
            return True
        return False  # what is called for its own sake makes no model
    try:
        if isinstance(node, ast.If):
            for one in node.body if interpreter.truth(node.test, scope) else node.orelse:
                _top(interpreter, one, scope, said)
        else:
            interpreter.statement(node, scope)
    except UnknownModel as error:
        for name in bound_by(node):
            if not isinstance(scope.names.get(name), Strange):  # the first reason is why
                scope.names[name] = Strange(str(error))
    return False


def _loss(tree: ast.Module) -> int | str:
    """``logits, loss = model(X, Y)``: 1; ``loss = model(X, Y)``: ""; ``loss = model.last_loss`` behind it: that."""
    attribute = ""
    plain = False
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Name) and target.id == "loss" and isinstance(value, ast.Attribute):
            attribute = value.attr
        if not isinstance(value, ast.Call) or getattr(value.func, "id", "") != "model":
            continue
        if len(value.args) != 2 or value.keywords:
            continue
        if isinstance(target, ast.Tuple):
            names = [getattr(one, "id", "") for one in target.elts]
            if "loss" in names:
                return names.index("loss")
        if isinstance(target, ast.Name) and target.id == "loss":
            return ""
        plain = True
    if plain and attribute:
        return attribute
    raise UnknownModel("what the program calls its model with is not followed")
