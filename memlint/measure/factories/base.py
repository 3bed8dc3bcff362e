"""What every source of a model shares: the Workload, imports with clear errors, sizes, and the loss."""

from __future__ import annotations

import copy
import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from memlint.measure.child import MeasureError
from memlint.named_tuple import NamedTuple

Request = dict[str, Any]


class Workload(NamedTuple):
    """What a measurement runs.

    build   () -> model
    batch   (device) -> one micro-batch
    loss    (model, batch) -> scalar
    source  where it comes from, for the report
    module  the module of ``build``, which may hold more (a JAX training step)
    notes   (fact, value, reason) of what was taken for granted on the way
    """

    build: Callable[[], Any]
    batch: Callable[[str], Any]
    loss: Callable[[Any, Any], Any]
    source: str
    module: ModuleType | None = None
    notes: tuple[tuple[str, str, str], ...] = ()


def with_settings(request: Request, work: Workload) -> Workload:
    """A workload in which ``[probe] batch`` and ``step``, where they are written, replace its own."""
    batch, step = setting(request, "batch"), setting(request, "step")
    if batch is not None:
        written = batch
        work = work._replace(batch=lambda device: written(copy.deepcopy(request["config"]), device))
    return work if step is None else work._replace(loss=step)


# -- functions that are named in the settings


def setting(request: Request, key: str) -> Callable[..., Any] | None:
    """The function that ``[probe] key`` names, if it is written."""
    return function(request, key) if key in request["settings"] else None


def function(request: Request, key: str) -> Callable[..., Any]:
    """The object that ``[probe] key = "package.module:name"`` stands for."""
    text = request["settings"][key]
    where = f"{request['settings_file'] or 'memlint.toml'}: [probe] {key} = {text!r}"
    name, colon, attribute = text.partition(":")
    if not (name and colon and attribute):
        raise MeasureError(f'{where}: write it as "package.module:function"')
    found: Any = _import(name, where)
    for part in attribute.split("."):
        if not hasattr(found, part):
            there = [other for other in vars(found) if not other.startswith("_") and callable(getattr(found, other))]
            near = _nearest(part, there)
            raise MeasureError(f"{where}: {name} has no {attribute!r}{near}")
        found = getattr(found, part)
    if not callable(found):
        raise MeasureError(f"{where}: {attribute} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def _nearest(name: str, there: list[str]) -> str:
    from memlint.rules_registry import nearest

    near = nearest(name, there, 1)
    return f", did you mean {near[0]!r}?" if near else ""


def _import(name: str, where: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            searched = ", ".join(entry or "." for entry in sys.path[:3])
            raise MeasureError(f"{where}: there is no module {error.name} (searched {searched} and the rest)") from None
        raise MeasureError(f"{where}: importing it needs {error.name}, which is not installed") from None
    except Exception as error:
        raise MeasureError(f"{where}: importing it raised {said(error)}") from None


def library(name: str, why: str) -> Any:
    """An installed library. Raises MeasureError that says ``why`` it is needed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MeasureError(
            f"{why}, which takes {name} to build, and that cannot be imported ({error}); install it, or write [probe] "
            "model, batch and step in memlint.toml"
        ) from None


# -- errors


def said(error: BaseException) -> str:
    """An exception in one line, with the last line of code outside this package and torch that it went through."""
    text = " ".join(str(error).split())
    text = f"{type(error).__name__}{': ' if text else ''}{text}"
    place = user_line(error)
    return f"{text[:600]}{f' ({place})' if place else ''}"


def user_line(error: BaseException) -> str:
    """``model.py:12, in forward``: the innermost frame that is the user's, or ""."""
    import memlint

    ours = os.path.dirname(os.path.abspath(memlint.__file__)) + os.sep
    place = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        path = code.co_filename
        theirs = os.path.isabs(path) and not path.startswith(ours) and f"{os.sep}site-packages{os.sep}" not in path
        if theirs and not path.startswith((sys.base_prefix + os.sep + "lib", sys.prefix + os.sep + "lib")):
            place = f"{os.path.relpath(path)}:{trace.tb_lineno}, in {code.co_name}"
        trace = trace.tb_next
    return place


# -- what the facts say


def size(request: Request, name: str) -> Any:
    """A size of the batch: the fact, or the config's own key of that name (so that ``-o name=8`` states it). An int, or
    a torch.SymInt while a profile is recorded. Raises MeasureError where neither is there."""
    found = stated_size(request, name)
    if found is None:
        raise MeasureError(
            f"the batch needs {name}, which the config does not state; set it with -o, or write [probe] batch in "
            "memlint.toml"
        )
    return found


def stated_size(request: Request, name: str) -> Any:
    """As :func:`size`; None where nothing states it."""
    import torch

    config = request["config"]
    for value in (request["facts"].get(name), config.get(name) if isinstance(config, dict) else None):
        if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
            return value
    return None


def image_size(request: Request) -> tuple[Any, Any] | None:
    """(height, width) where ``image_size`` is stated, as one number or as two."""
    value = request["facts"].get("image_size")
    if value is None and isinstance(request["config"], dict):
        value = request["config"].get("image_size")
    if isinstance(value, (list, tuple)) and len(value) == 2:
        return value[0], value[1]
    one = stated_size(request, "image_size")
    return None if one is None else (one, one)


def dtype_of(request: Request, *names: str) -> Any:
    """The torch dtype of the first of these facts that is stated; float32 where none is."""
    import torch

    for name in names:
        if request["facts"].get(name):
            return getattr(torch, request["facts"][name])
    return torch.float32


def checkpointing_every(request: Request) -> int:
    """Every how many blocks one is recomputed; 0 for none. Raises MeasureError for a kind that only the training code
    can set up."""
    kind = request["facts"].get("checkpointing")
    if kind in (None, False, "none", ""):
        return 0
    if kind in (True, "full"):
        return 1
    if kind == "every":
        return int(request["facts"].get("checkpointing_every") or 1)
    raise MeasureError(
        f"{request['keys']['checkpointing']}: {kind} checkpointing is the training code's to set up: write [probe] "
        "model, batch and step in memlint.toml, or set it to full or none with -o"
    )


# -- the loss


def default_loss(model: Any, batch: Any) -> Any:
    """Call the model, and find the loss in what it returns: itself, ``.loss``, ``["loss"]``, or the first entry."""
    if isinstance(batch, dict):
        output = model(**batch)
    elif isinstance(batch, (tuple, list)):
        output = model(*batch)
    else:
        output = model(batch)
    if getattr(output, "loss", None) is not None:
        return output.loss
    if isinstance(output, dict) and "loss" in output:
        return output["loss"]
    if isinstance(output, (tuple, list)) and output:
        return output[0]
    return output
