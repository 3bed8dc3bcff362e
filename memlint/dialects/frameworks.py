"""Programs of JAX and TensorFlow that take the options of transformers' examples, whose step is another one."""

from __future__ import annotations

import re

from memlint.dialects import companions, own_code
from memlint.facts.spec import TrainingSpec

# Words of a program's name (run_clm_flax.py), and the package of what it imports, -> the framework.
_NAMED = {"flax": "JAX", "jax": "JAX", "tf": "TensorFlow", "tensorflow": "TensorFlow"}
_IMPORTED = {**dict.fromkeys(("flax", "jax", "optax", "haiku", "equinox"), "JAX"), "tensorflow": "TensorFlow"}
_WORD = re.compile(r"[a-z]+")


def other(spec: TrainingSpec) -> str:
    """Why a run is none of PyTorch's; "" where nothing says so. Raises OutOfWork."""
    program = "" if spec.launch is None else spec.launch.called
    name = program.rsplit("/", 1)[-1].removesuffix(".py")
    named = next((_NAMED[word] for word in _WORD.findall(name.lower()) if word in _NAMED), "")
    if named:
        return f"{program}: by its name a program of {named}, whose step is not described"
    path = companions.find(program, spec.document.path) if program.endswith(".py") else None
    made = own_code.module(path) if path is not None else None
    if made is None:
        return ""
    packages = {source.partition(".")[0] for source, _ in made.imported.values()}
    imported = sorted(packages & _IMPORTED.keys())
    if not imported or "torch" in packages:
        return ""
    return f"{program} imports {imported[0]}: the step of a program of {_IMPORTED[imported[0]]} is not described"
