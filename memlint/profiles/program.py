"""A recorded forward pass, as data: what it calls, with sizes as formulas (docs/programs.md). Read without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memlint import work
from memlint.named_tuple import NamedTuple
from memlint.profiles.expression import Expression, ExpressionError, parse

FORMAT = 1
MAX_ROWS = 20_000  # of all bodies together
MAX_MODULES = 20_000
MAX_CALLS_DEEP = 40


class ProgramError(ValueError):
    """A program that is not one, or that says nothing about a run; the message says why."""


class Program(NamedTuple):
    """One model's forward pass.

    name        what the library calls the model
    source      library and release that it was recorded with
    sizes       the dimensions that formulas are in, and the values that it was recorded with
    dtypes      those of the parameters for which it holds
    guards      conditions on the sizes under which it holds
    inputs      (name, shape, dtype) of what the model is called with
    constants   (shape, dtype) of tensors that the model keeps beside parameters and buffers
    modules     kinds of modules: parameters, buffers, and children by their place in this list; the model is the last
    checkpoints the modules that the library's own checkpointing keeps the inputs of
    bodies      what calls of modules do; that of the model is the last
    """

    name: str
    source: str
    sizes: dict[str, int]
    dtypes: tuple[str, ...]
    guards: tuple[Expression, ...]
    inputs: list[Any]
    constants: list[Any]
    modules: list[dict[str, Any]]
    checkpoints: tuple[str, ...]
    bodies: list[dict[str, Any]]

    def outside(self, values: Mapping[str, int]) -> str:
        """The first guard that these sizes break; "" where the program holds for them."""
        for guard in self.guards:
            try:
                if not guard.value(values):
                    return guard.text
            except ExpressionError as error:
                return f"{guard.text} ({error})"
        return ""


def read(data: Any) -> Program:
    """The program that a JSON value says. Raises ProgramError where it says none."""
    try:
        return _read(data)
    except (KeyError, TypeError, IndexError, AttributeError, ExpressionError) as error:
        raise ProgramError(f"no program: {type(error).__name__}: {error}") from None


def _read(data: Any) -> Program:
    if data["format"] != FORMAT:
        raise ProgramError(f"a program of format {data['format']!r}, where this release reads {FORMAT}")
    rows = sum(len(body["rows"]) for body in data["bodies"])
    if rows > MAX_ROWS or len(data["modules"]) > MAX_MODULES:
        raise ProgramError(f"a program of {rows:,} rows and {len(data['modules']):,} modules, which is too large")
    work.spend(rows * 4, "reading a program")
    for at, module in enumerate(data["modules"]):
        for name, place in module.get("children", ()):
            if not 0 <= place < at:
                raise ProgramError(f"the child {name!r} of module {at} is module {place}, which does not come before")
    for at, body in enumerate(data["bodies"]):
        for row in body["rows"]:
            if row[0].startswith(">") and not 0 <= row[1] < at:
                raise ProgramError(f"body {at} calls body {row[1]}, which does not come before it")
    return Program(
        data["name"],
        data["source"],
        dict(data["sizes"]),
        tuple(data["dtypes"]),
        tuple(parse(guard) for guard in data["guards"]),
        data["inputs"],
        data["constants"],
        data["modules"],
        tuple(data["checkpoints"]),
        data["bodies"],
    )
