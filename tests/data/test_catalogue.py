"""The catalogue of cards: spellings, and the figures themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memlint.data
from memlint.data.catalogue import Gpu, UnknownGpu, cards, gpu, parse_gpu, says_how_many

GiB = 2**30
ENTRIES: list[dict[str, Any]] = json.loads((Path(memlint.data.__file__).parent / "gpus.json").read_text())["cards"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        pytest.param("a100-80gb", "a100-80gb", id="a catalogue name"),
        pytest.param("A100 80GB", "a100-80gb", id="capitals and a blank"),
        pytest.param("A100 80 GB", "a100-80gb", id="a blank before the unit"),
        pytest.param("a100-80g", "a100-80gb", id="a short unit"),
        pytest.param("NVIDIA A100-SXM4-80GB", "a100-80gb", id="as nvidia-smi writes it"),
        pytest.param("NVIDIA H100 80GB HBM3", "h100-80gb", id="with the kind of memory"),
        pytest.param("Tesla V100-SXM2-16GB", "v100-16gb", id="an old brand"),
        pytest.param("Tesla V100S-PCIE-32GB", "v100-32gb", id="an alias with its memory"),
        pytest.param("rtx 4090", "rtx4090", id="a blank in the name"),
        pytest.param("NVIDIA GeForce RTX 4070 Ti SUPER", "rtx4070tisuper", id="a long consumer name"),
        pytest.param("NVIDIA RTX 6000 Ada Generation", "rtx6000-ada", id="a workstation name"),
        pytest.param("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtxpro6000", id="an edition"),
        pytest.param("NVIDIA RTX A6000", "rtxa6000", id="a letter before the number"),
        pytest.param("Quadro RTX 8000", "quadro-rtx8000", id="a name of two words"),
        pytest.param("AMD Instinct MI300X", "mi300x", id="another vendor"),
        pytest.param("AMD Radeon RX 7900 XTX", "rx7900xtx", id="another vendor's consumer card"),
        pytest.param("t4 16GB", "t4", id="memory that the name does not need"),
        pytest.param("h100", "h100-80gb", id="the usual variant"),
        pytest.param("H100 NVL", "h100-94gb", id="a variant by its own name"),
        pytest.param("RTX 3060", "rtx3060-12gb", id="the usual variant of a consumer card"),
        pytest.param("rtx 4060 ti 16gb", "rtx4060ti-16gb", id="a variant by its memory"),
    ],
)
def test_spellings(text: str, name: str) -> None:
    assert gpu(text).name == name


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [
        pytest.param("h100-80gb", "h100-80gb", 1, id="one"),
        pytest.param("h100-80gb x8", "h100-80gb", 8, id="with a blank"),
        pytest.param("h100-80gbx8", "h100-80gb", 8, id="without"),
        pytest.param("V100-SXM2-16GB x 4", "v100-16gb", 4, id="with two blanks"),
        pytest.param("8x A100 80GB", "a100-80gb", 8, id="the count first"),
        pytest.param("8 x h100", "h100-80gb", 8, id="the count first, with blanks"),
        pytest.param("l40s*4", "l40s", 4, id="a star"),
        pytest.param("mi300x", "mi300x", 1, id="a name that ends in x"),
        pytest.param("mi300xx8", "mi300x", 8, id="several of it"),
        pytest.param("rtx4090x2", "rtx4090", 2, id="a name that ends in digits"),
        pytest.param("gtx1080", "gtx1080", 1, id="an x and digits within a name"),
    ],
)
def test_counts(text: str, name: str, count: int) -> None:
    card, found = parse_gpu(text)
    assert (card.name, found) == (name, count)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("h100-80gb", False, id="a card"),
        pytest.param("h100-80gb x1", True, id="one of it"),
        pytest.param("h100-80gb x8", True, id="several of it"),
        pytest.param("1x a100-80gb", True, id="a number before it"),
        pytest.param("mi300x", False, id="a name that ends like one"),
        pytest.param("mi300xx1", True, id="such a name and a number"),
        pytest.param("rtx4090", False, id="a name that ends in a number"),
    ],
)
def test_whether_a_number_of_cards_is_written(text: str, said: bool) -> None:
    assert says_how_many(text) == said


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        pytest.param("a100", ("a100-40gb", "a100-80gb"), id="a card of two sizes without its memory"),
        pytest.param("a100 x4", ("a100-40gb", "a100-80gb"), id="several of it"),
        pytest.param("t4-32gb", ("t4",), id="a memory that the card never had"),
        pytest.param("h10O", ("h100-80gb",), id="a letter for a digit"),
        pytest.param("h100x0", ("h100-80gb",), id="none of a card"),
        pytest.param("h100 x9999999999", ("h100-80gb",), id="more than there are"),
        pytest.param("banana", (), id="no card at all"),
        pytest.param("", (), id="nothing"),
        pytest.param("x8", (), id="a count alone"),
    ],
)
def test_what_is_not_a_card_names_the_nearest(text: str, nearest: tuple[str, ...]) -> None:
    with pytest.raises(UnknownGpu) as caught:
        parse_gpu(text)
    assert caught.value.nearest[: len(nearest)] == nearest
    assert bool(caught.value.nearest) == bool(nearest)
    assert all(name in str(caught.value) for name in nearest)


def test_a_laptop_card_is_not_taken_for_its_desktop_namesake() -> None:
    with pytest.raises(UnknownGpu):
        gpu("NVIDIA GeForce RTX 3060 Laptop GPU")


@given(text=st.text(max_size=40))
def test_any_text_is_a_card_or_an_unknown_card(text: str) -> None:
    try:
        card, count = parse_gpu(text)
    except UnknownGpu as error:
        message = str(error)
    else:
        message = card.name
        assert count >= 1
    assert message


@pytest.mark.parametrize("card", cards(), ids=lambda card: card.name)
def test_a_card_is_found_by_its_name_and_label_and_its_figures_hold(card: Gpu) -> None:
    assert gpu(card.name) == card
    assert gpu(card.label.partition(" (")[0]) == card
    assert card.name == card.name.lower()
    assert " " not in card.name
    assert card.source.startswith("https://")
    assert card.usable_from in ("torch", "nvidia-smi", "label")
    if card.usable_from == "label":
        assert card.usable_bytes == card.memory_gib * GiB
    else:  # what is reported is less than the label, by ECC's sixteenth and the driver's share at most
        assert 0.9 * card.memory_gib * GiB < card.usable_bytes < card.memory_gib * GiB
    if card.vendor == "nvidia":
        capability = tuple(map(int, card.capability.split(".")))
        assert card.major == capability[0]
        assert card.bf16 == (capability >= (8, 0))
        assert card.fp8 == (capability >= (8, 9))
    else:
        assert card.capability.startswith("gfx")
        assert card.major == 0


def test_the_catalogue_holds_the_names_that_the_documentation_promises() -> None:
    promised = "t4 v100-16gb a10g a100-40gb a100-80gb l40s rtx3060-12gb rtx4090 h100-80gb h200-141gb mi300x"
    assert set(promised.split()) <= {card.name for card in cards()}
    assert len(cards()) >= 60
    assert len({card.name for card in cards()}) == len(cards())


def test_a_name_has_its_memory_exactly_where_variants_exist_and_then_the_right_one() -> None:
    for card in cards():
        _, dash, suffix = card.name.rpartition("-")
        if dash and suffix.endswith("gb"):
            assert suffix == f"{card.memory_gib}gb"


def test_an_alias_means_one_card() -> None:
    aliases = [alias for entry in ENTRIES for alias in entry["aliases"]]
    assert len(set(aliases)) == len(aliases)
    assert all(entry["sources"][key] for entry in ENTRIES for key in ("memory", "capability", "usable"))


def test_published_totals() -> None:
    """Figures that their sources print to the byte, and in hundredths of a GiB: a process sees less than nvidia-smi."""
    assert gpu("rtx6000-ada").usable_bytes == 50_865_307_648
    assert 46_068 * 2**20 > gpu("l40s").usable_bytes == int(44.53 * GiB)
    assert 24_564 * 2**20 > gpu("rtx4090").usable_bytes == int(23.64 * GiB)
