"""The measuring process: reads a request, runs it, leaves an answer. Started by :mod:`memlint.measure.child`."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, NoReturn


def main() -> None:
    """``sys.argv[1]`` is the folder of the request and of the answer. Exit code 0 whenever there is an answer."""
    import json

    folder = sys.argv[1]
    end_with_parent()
    with open(os.path.join(folder, "request.json"), encoding="utf-8") as file:
        request: dict[str, Any] = json.load(file)
    request["folder"] = folder
    leave(answered(request), os.path.join(folder, "answer.json"), 0)


def leave(answer: dict[str, Any], path: str, status: int) -> NoReturn:
    """Write an answer, whole or not at all, and end."""
    import json

    with open(path + ".tmp", "w", encoding="utf-8") as file:
        json.dump(answer, file)
    os.replace(path + ".tmp", path)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a user's threads and exit handlers have nothing to add


def answered(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request, errors included."""
    from memlint.measure.child import MeasureError

    # Compiled code runs eagerly: what inductor saves is not what a fake tensor run shows.
    os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    # Nothing is downloaded: a model that is not at hand is an answer.
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
        os.environ[name] = "1"
    try:
        name = request["kind"]
        if request["facts"].get("framework") == "jax":
            name += "_jax"
        else:
            require_torch()
        module = importlib.import_module(f"memlint.measure.{name}")
        answer: dict[str, Any] = module.answer(request)
        return answer
    except MeasureError as error:
        return {"error": str(error)}


def require_torch() -> None:
    """Raises MeasureError without PyTorch."""
    from memlint.measure.child import MeasureError

    try:
        importlib.import_module("torch")
    except ImportError as error:
        raise MeasureError(
            f"needs PyTorch, which {sys.executable} does not have ({error}); install it there, for example with "
            f"{sys.executable} -m pip install torch"
        ) from None


def end_with_parent() -> None:
    """Linux: be killed when the process that started us is (PR_SET_PDEATHSIG of prctl(2))."""
    if sys.platform != "linux":
        return
    import ctypes
    import signal

    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    except (OSError, AttributeError):
        return


def tell(request: dict[str, Any], line: str) -> None:
    """Report progress to whoever started us; of several ranks, only the first one has a folder to do so."""
    if not request["folder"]:
        return
    with open(os.path.join(request["folder"], "progress"), "a", encoding="utf-8") as file:
        file.write(" ".join(line.split()) + "\n")
