"""What to instantiate for a config: its model, a batch, and the loss of the two.

In this order:

1. ``[probe]`` of the settings: ``model = "package.module:factory"`` (config -> model), ``batch`` (config, device ->
   batch) and ``step`` (model, batch -> loss);
2. ``model.py`` beside the config, with ``build_model(config)``, ``make_batch(config, device)`` and
   ``training_loss(model, batch)``;
3. Hydra's ``_target_``, where one of the config's sections names an ``nn.Module``;
4. the transformers class of the model that the config names by a local folder, or by a hub id that is in the local
   cache.

Factories get the composed config as a plain dict, a new one at every call. An unresolved value is the text that the
file has for it. This module runs the user's code: only the measuring process imports it.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from memlint.measure.child import MeasureError
from memlint.named_tuple import NamedTuple

BESIDE = ("build_model", "make_batch", "training_loss")
# Sections of Hydra configs that hold the model, in the order in which they are asked.
SECTIONS = ("model", "policy", "network", "net", "module", "system")
# Keys under which configs name a model of the hub, or its folder.
HUB_KEYS = (
    "model_name_or_path",
    "pretrained_model_name_or_path",
    "model.pretrained_model_name_or_path",
    "model.model_name_or_path",
    "model.name_or_path",
    "model.name",
    "model.llm.name",
    "model_name",
    "base_model",
)


class Workload(NamedTuple):
    """What a measurement runs.

    build   () -> model
    batch   (device) -> one micro-batch
    loss    (model, batch) -> scalar
    source  where it comes from, for the report
    module  the module of ``build``, which may hold more (a JAX training step)
    """

    build: Callable[[], Any]
    batch: Callable[[str], Any]
    loss: Callable[[Any, Any], Any]
    source: str
    module: ModuleType | None = None


def workload(request: dict[str, Any]) -> Workload:
    """Import what a request names. Raises MeasureError that says what is missing and what to write."""
    for folder in reversed(request["folders"]):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    settings = request["settings"]
    if "model" in settings:
        return _from_settings(request)
    beside = _beside(request)
    if beside is not None:
        return beside
    batch = _setting(request, "batch")
    target = _hydra_target(request["config"])
    if target is not None:
        section, name = target
        if batch is None:
            raise MeasureError(
                f"{section}._target_ = {name} builds the model, but nothing says what it is fed: write [probe] batch = "
                '"package.module:function" in memlint.toml, a function (config, device) -> batch'
            )
        return _with_batch(request, lambda: _instantiate(request["config"], section), batch, f"{section}._target_")
    hub = _hub_name(request)
    if hub is not None:
        return _transformers(request, *hub)
    folder = os.path.dirname(os.path.abspath(request["path"]))
    raise MeasureError(
        "nothing says how to build the model: write [probe] model, batch and step in memlint.toml (each "
        f'"package.module:function"), or put a model.py with {", ".join(BESIDE)} into {folder}'
    )


# -- the settings


def _from_settings(request: dict[str, Any]) -> Workload:
    name = request["settings"]["model"]
    factory = _function(request, "model")
    module = sys.modules[name.partition(":")[0]]
    batch = _setting(request, "batch")
    if batch is None:
        batch = getattr(module, "make_batch", None)
    if batch is None:
        raise MeasureError(
            f'[probe] model = "{name}" has no batch to go with it: write batch = "package.module:function" beside it, '
            "a function (config, device) -> batch"
        )
    loss = getattr(module, "training_loss", None) if "step" not in request["settings"] else None
    return _with_batch(
        request, lambda: factory(copy.deepcopy(request["config"])), batch, f'[probe] model = "{name}"', module, loss
    )


def _with_batch(
    request: dict[str, Any],
    build: Callable[[], Any],
    batch: Callable[..., Any],
    source: str,
    module: ModuleType | None = None,
    loss: Callable[[Any, Any], Any] | None = None,
) -> Workload:
    loss = _setting(request, "step") or loss or default_loss
    return Workload(build, lambda device: batch(copy.deepcopy(request["config"]), device), loss, source, module)


def _setting(request: dict[str, Any], key: str) -> Callable[..., Any] | None:
    return _function(request, key) if key in request["settings"] else None


def _function(request: dict[str, Any], key: str) -> Callable[..., Any]:
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


# -- beside the config


def _beside(request: dict[str, Any]) -> Workload | None:
    """A ``model.py`` with the three functions; one that has none of them is some other module."""
    path = os.path.join(os.path.dirname(os.path.abspath(request["path"])), "model.py")
    if not os.path.isfile(path):
        return None
    shown = os.path.relpath(path)
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    if "def build_model" not in text:  # so that a module that is none of ours is not run
        return None
    spec = importlib.util.spec_from_file_location("memlint_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["memlint_model"] = module  # dataclasses and pickle look a class's module up there
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        raise MeasureError(f"{shown}: importing it needs {error.name}, which is not installed") from None
    except Exception as error:
        raise MeasureError(f"{shown}: importing it raised {said(error)}") from None
    lacking = [name for name in BESIDE if not callable(getattr(module, name, None))]
    if lacking:
        raise MeasureError(
            f"{shown}: lacks {' and '.join(lacking)}; it needs build_model(config), make_batch(config, device) and "
            "training_loss(model, batch)"
        )

    def batch(device: str) -> Any:
        return module.make_batch(copy.deepcopy(request["config"]), device)

    return Workload(
        lambda: module.build_model(copy.deepcopy(request["config"])), batch, module.training_loss, shown, module
    )


# -- Hydra


def _hydra_target(config: Any) -> tuple[str, str] | None:
    """(section, class) of the config's model: the first of the usual sections with a ``_target_``."""
    if not isinstance(config, dict):
        return None
    for section in SECTIONS:
        value = config.get(section)
        if isinstance(value, dict) and isinstance(value.get("_target_"), str):
            return section, value["_target_"]
    return None


def _instantiate(config: dict[str, Any], section: str) -> Any:
    try:
        from hydra.utils import instantiate
    except ImportError:
        raise MeasureError(
            f"{section}._target_ builds the model, but hydra-core is not installed; install it, or write [probe] model "
            "in memlint.toml"
        ) from None
    try:
        return instantiate(copy.deepcopy(config[section]))
    except Exception as error:
        cause = error.__cause__ or error
        raise MeasureError(f"{section}._target_ = {config[section]['_target_']} raised {said(cause)}") from None


# -- transformers


def _hub_name(request: dict[str, Any]) -> tuple[str, str] | None:
    """(key, name) of the hub model that a config names: what looks like one, under one of the usual keys."""
    for key in HUB_KEYS:
        value: Any = request["config"]
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, str) and value:
            folder = _local(request, value)
            if folder is not None or value.count("/") == 1:
                return key, folder or value
    return None


def _local(request: dict[str, Any], name: str) -> str | None:
    for base in (os.path.dirname(os.path.abspath(request["path"])), os.getcwd()):
        folder = os.path.join(base, name)
        if os.path.isfile(os.path.join(folder, "config.json")):
            return folder
    return None


def _transformers(request: dict[str, Any], key: str, name: str) -> Workload:
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise MeasureError(
            f"{key} names {name}, which takes transformers to build, and that cannot be imported ({error}); install "
            "it, or write [probe] model, batch and step in memlint.toml"
        ) from None
    try:
        config = transformers.AutoConfig.from_pretrained(name, local_files_only=True)
    except Exception as error:
        raise MeasureError(
            f"{key}: {name} is no folder with a config.json, and not in the local cache of the hub "
            f"({' '.join(str(error).split())[:160]}); nothing is downloaded"
        ) from None
    facts = request["facts"]
    options: dict[str, Any] = {}
    attention = {"eager": "eager", "sdpa": "sdpa", "math": "eager"}.get(facts.get("attention", ""))
    if attention:
        options["attn_implementation"] = attention
    elif facts.get("attention") not in (None, ""):
        raise MeasureError(
            f"{request['keys']['attention']}: {facts['attention']} is a kernel that only runs on a card; sdpa keeps as "
            "much: set it with -o to trace"
        )
    if facts.get("tuning", "full") not in ("full", None):
        raise MeasureError(
            f"{request['keys']['tuning']}: {facts['tuning']} wraps the model in a way that only the training code "
            "knows: write [probe] model, batch and step in memlint.toml"
        )

    def build() -> Any:
        import torch

        dtype = getattr(torch, facts.get("parameter_dtype") or "float32")
        class_ = _model_class(transformers, config, key)
        copied = copy.deepcopy(config)
        copied.use_cache = False  # as Trainer sets it while it trains
        model = class_._from_config(copied, dtype=dtype, **options)
        if facts.get("checkpointing") == "full":
            model.gradient_checkpointing_enable()
        return model

    def batch(device: str) -> Any:
        return _transformers_batch(request, config, key, device)

    chosen = _setting(request, "batch")
    if chosen is not None:
        return _with_batch(request, build, chosen, f"transformers, {name}")
    return Workload(build, batch, _setting(request, "step") or default_loss, f"transformers, {name}")


def _model_class(transformers: Any, config: Any, key: str) -> Any:
    for name in config.architectures or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)
    mapping = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) in mapping:
        return mapping[type(config)]
    raise MeasureError(
        f"{key}: config.json names no class that transformers has (architectures: {config.architectures}); write "
        "[probe] model, batch and step in memlint.toml"
    )


def _transformers_batch(request: dict[str, Any], config: Any, key: str, device: str) -> dict[str, Any]:
    """Token ids or images of the longest sample, with labels."""
    import torch

    facts = request["facts"]
    name = _model_class(importlib.import_module("transformers"), config, key).__name__

    def size(fact: str) -> int:
        value = facts.get(fact)
        if not isinstance(value, int) or isinstance(value, bool):
            raise MeasureError(
                f"the batch needs {fact}, which the config does not state; set it with -o, or write [probe] batch in "
                "memlint.toml"
            )
        return value

    samples = size("micro_batch_size")
    batch: dict[str, Any]
    if hasattr(config, "image_size") and hasattr(config, "num_channels") and not hasattr(config, "vocab_size"):
        height, width = (config.image_size,) * 2 if isinstance(config.image_size, int) else config.image_size
        batch = {"pixel_values": torch.rand(samples, config.num_channels, height, width, device=device)}
        if "Classification" in name:
            batch["labels"] = torch.zeros(samples, dtype=torch.long, device=device)
        return batch
    if not hasattr(config, "vocab_size"):
        raise MeasureError(f"{name} takes more than tokens or images: write [probe] batch in memlint.toml")
    tokens = torch.ones(samples, size("sequence_length"), dtype=torch.long, device=device)
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    if any(part in name for part in ("LMHead", "ForCausalLM", "ForConditionalGeneration", "ForMaskedLM")):
        batch["labels"] = tokens.clone()
    elif "SequenceClassification" in name:
        batch["labels"] = torch.zeros(samples, dtype=torch.long, device=device)
    return batch


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
