"""The libraries' own code as the oracle: each library in a virtual environment of its own.

    python -m tests.libraries [--only trl] [--keep FOLDER]

makes the environments (in the user's cache folder; they are kept for the next time), runs
``tests/libraries/with_<library>.py`` in each, and prints what ran, what failed, and what cannot be installed or
imported here, with the reason. A library that cannot run is no failure: docs/testing.md says where each one runs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
# First, and with the version that the project is tested with: what a library asks for must not replace it.
TORCH = "torch==2.13.0"
# What reading a config and running a test takes; the project itself is on the path.
OURS = ("click", "PyYAML", "tomli", "jsonschema", "tree-sitter", "tree-sitter-bash", "pytest", "numpy")


class Library(NamedTuple):
    """``pins``: the library and what it needs beside its own dependencies, as pip is told. ``imports``: what its
    module needs of it, tried first: a failure here is the reason why it cannot run."""

    pins: tuple[str, ...]
    imports: str


LIBRARIES = {
    "trl": Library(
        ("trl==1.16.0", "transformers>=5.23,<5.24", "peft>=0.21,<0.22", "accelerate>=1.15,<1.16"), "import trl"
    ),
    "torchtune": Library(
        # torchtune 0.6 reads torchao.dtypes, which later releases of torchao do not have.
        ("torchtune==0.6.1", "torchao==0.13.0"),
        "import torchtune.models.llama3_2",
    ),
    # Its mixture of experts imports triton, for any model.
    "torchtitan": Library(("torchtitan==0.2.1", "triton"), "import torchtitan.models.llama3"),
    "litgpt": Library(("litgpt==0.5.13",), "import litgpt.lora"),
    "torchao": Library(("torchao==0.18.0", "numpy"), "import torchao.optim"),
    "bitsandbytes": Library(("bitsandbytes==0.50.2",), "import bitsandbytes.optim"),
    "deepspeed": Library(("deepspeed==0.19.8",), "import deepspeed.runtime.zero.config"),
    "axolotl": Library(("axolotl==0.19.0",), "import axolotl.utils.schemas.config"),
}


class Outcome(NamedTuple):
    status: str  # ran, failed, cannot run
    said: str


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memlint" / "libraries"


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "nothing was said"


def tried(command: list[str | Path], **environment: str) -> tuple[bool, str]:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    return done.returncode == 0, done.stdout


def run(name: str, folder: Path) -> Outcome:
    library = LIBRARIES[name]
    home = folder / name
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    made = home / "memlint-pins.txt"
    wanted = "\n".join((TORCH, *library.pins, *OURS, sys.version))
    if not made.exists() or made.read_text() != wanted:
        venv.create(home, clear=True, with_pip=True)
        for pins in ((TORCH,), (TORCH, *library.pins), OURS):
            installed, said = tried([python, "-m", "pip", "install", "--quiet", *pins])
            if not installed:
                return Outcome("cannot run", "pip: " + last_line(said))
        made.write_text(wanted)
    imported, said = tried([python, "-c", library.imports])
    if not imported:
        return Outcome("cannot run", f"{library.imports}: {last_line(said)}")
    module = f"tests/libraries/with_{name}.py"
    passed, said = tried([python, "-m", "pytest", "-p", "no:cacheprovider", module], PYTHONPATH=str(ROOT))
    if not passed:
        print(said, file=sys.stderr)
    return Outcome("ran" if passed else "failed", last_line(said))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.libraries", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", choices=LIBRARIES, metavar="LIBRARY", help=", ".join(LIBRARIES))
    parser.add_argument("--keep", type=Path, default=cache_folder(), metavar="FOLDER", help="of the environments")
    options = parser.parse_args()
    outcomes = {}
    for name in options.only or LIBRARIES:
        outcomes[name] = run(name, options.keep.resolve())
        print(f"{name:14} {outcomes[name].status:11} {outcomes[name].said}", flush=True)
    return int(any(outcome.status == "failed" for outcome in outcomes.values()))


if __name__ == "__main__":
    raise SystemExit(main())
