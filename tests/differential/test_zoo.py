"""The programs that ship, against the libraries that they were recorded with: ten of them, drawn anew for each seed.

Each is recorded again, which has to give the same bytes, and is laid beside a fresh trace of the library's model at one
of the settings and modes that ``tools/zoo.py`` proves all of. Those that take long are left to the tool.
"""

from __future__ import annotations

import os
import random
from importlib.metadata import PackageNotFoundError, version

import pytest
import torch

from memlint.data import programs
from memlint.profiles import shipped
from tools import timm_names, zoo

SEED = os.environ.get("MEMLINT_ZOO_SEED", "2026")  # another one draws others
MOST_CALLS = 200
DRAWN = 10


def _drawn() -> list[str]:
    every = [f"{library}/{name}" for library in zoo.LIBRARIES for name in programs.names(library)]
    short = [name for name in every if zoo.calls(shipped.program(name)) <= MOST_CALLS]
    return random.Random(SEED).sample(short, DRAWN)


def _installed(library: str) -> str:
    try:
        return version(library).partition("+")[0]
    except PackageNotFoundError:
        return ""


@pytest.mark.parametrize("entry", _drawn())
def test_what_ships_is_what_is_recorded_again_and_what_the_library_does(entry: str) -> None:
    library, _, name = entry.partition("/")
    if _installed(library) != zoo.RELEASES[library]:
        pytest.skip(f"{library} {zoo.RELEASES[library]} is not installed")
    print(f"MEMLINT_ZOO_SEED={SEED}")
    zoo.declare_torchvision()
    recipe = zoo.LIBRARIES[library](name)
    text = (zoo.FOLDER / library / f"{name}.json").read_text(encoding="utf-8")
    assert zoo.text_of(zoo.made(library, name, recipe)) == text
    proofs = list(zoo.proofs(shipped.program(entry), recipe))
    mode, sizes, dtype = random.Random(f"{SEED} {entry}").choice(proofs)
    assert zoo.difference(shipped.program(entry), recipe, mode, sizes, dtype) == ""


def test_what_ships_is_wanted_and_what_is_left_out_does_not_ship() -> None:
    ships = {f"{library}/{name}" for library in zoo.LIBRARIES for name in programs.names(library)}
    assert ships <= {f"{library}/{name}" for library, names in zoo.NAMES.items() for name in names}
    assert not ships & zoo.WITHOUT.keys()


def test_what_ships_of_timm_holds_at_three_settings_beside_the_one_that_it_was_recorded_at() -> None:
    for name in programs.names("timm"):
        program = shipped.program(f"timm/{name}")
        assert len(zoo.settings(program, zoo.Recipe(torch.nn.Identity, program.sizes["H"]))) == 3, name


@pytest.mark.skipif(_installed("timm") != zoo.RELEASES["timm"], reason="timm is not installed at its release")
def test_what_timm_says_of_names_is_what_its_own_registry_says() -> None:
    zoo.declare_torchvision()
    assert (timm_names.DATA / "timm.json").read_text(encoding="utf-8") == timm_names.text()


@pytest.mark.skipif(_installed("timm") != zoo.RELEASES["timm"], reason="timm is not installed at its release")
@pytest.mark.parametrize("name", random.Random(SEED).sample(sorted(timm_names.SAME), 2))
def test_a_name_that_shares_a_program_is_recorded_as_that_program(name: str) -> None:
    zoo.declare_torchvision()
    found = zoo.made("timm", name, zoo.LIBRARIES["timm"](name))
    assert {**found, "name": f"timm/{timm_names.SAME[name]}"} == programs.value(f"timm/{timm_names.SAME[name]}")
