"""Components, parts and closed forms of what is live."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memlint.meta.dims import Dim, symbol
from memlint.meta.tape import COMPONENTS, Label, Tape
from memlint.tape.breakdown import break_down, closed_form, factor_out, part_name
from memlint.tape.phases import live_storages, rounded_sizes


@pytest.mark.parametrize(
    ("module", "name"),
    [
        pytest.param("policy.obs_encoder.extractor.first_conv", "policy.obs_encoder.extractor.first_conv", id="kept"),
        pytest.param("policy.obs_encoder.extractor.first_conv.bn", "policy.obs_encoder.extractor.first_conv", id="cut"),
        pytest.param("model.layers.17.self_attn.q_proj", "model.layers.*.self_attn.q_proj", id="blocks share a name"),
        pytest.param("model.layers.17", "model.layers", id="a block by itself is its list"),
        pytest.param("0.1", "*", id="a list of lists"),
        pytest.param("", "(model)", id="no module"),
    ],
)
def test_part_name(module: str, name: str) -> None:
    assert part_name(module) == name


def test_components_come_in_the_order_of_the_report_and_parts_largest_first() -> None:
    tape = Tape()
    tape.allocate(1, Label("logits", "head"))
    tape.allocate(1000, Label("activations", "model.layers.0.mlp"))
    tape.allocate(4000, Label("activations", "model.embed"))
    tape.allocate(1000, Label("activations", "model.layers.1.mlp"))
    tape.allocate(7, Label("parameters", "model.embed"))
    tape.allocate(9, Label("of_a_plugin", "model"))
    tape.free(4)
    components = break_down(tape, len(tape.events) - 1)
    assert [(component.name, component.size_bytes) for component in components] == [
        ("activations", 6144),
        ("logits", 512),
        ("of_a_plugin", 512),
    ]
    assert [(part.name, part.size_bytes, part.formula) for part in components[0].parts] == [
        ("model.embed", 4096, ""),
        ("model.layers.*.mlp", 2048, ""),
    ]


def test_a_component_of_empty_storages_is_left_out() -> None:
    tape = Tape()
    tape.allocate(0, Label("buffers", "model"))
    assert break_down(tape, 0) == ()


B, T, G, H = (
    symbol(3, "B", "micro_batch_size"),
    symbol(5, "T", "frames"),
    symbol(64, "G", "groups"),
    symbol(33, "H", "image_size"),
)


def symbolic(*shapes: tuple[tuple[int, ...], int]) -> Tape:
    tape = Tape(symbolic=True)
    assert tape.shapes is not None
    for dimensions, element_bytes in shapes:
        storage = tape.allocate(int(prod(dimensions)) * element_bytes, Label("activations", "encoder"))
        tape.shapes[storage] = (dimensions, element_bytes)
    return tape


@pytest.mark.parametrize(
    ("shapes", "formula"),
    [
        pytest.param([((B, T, G + 1, 192), 4)] * 12, "12*B*T*(G+1)*192*4", id="equal storages are counted"),
        pytest.param([((B * T, 192), 4), ((192, T, B), 4)], "2*B*T*192*4", id="order and flattening do not matter"),
        pytest.param([((B, 12, G + 1, G + 1), 2)], "B*(G+1)**2*12*2", id="equal factors are a power"),
        pytest.param([((B, 10), 4), ((B, T, 10), 4)], "B*T*10*4 + B*10*4", id="the largest term comes first"),
        pytest.param([((768, 192), 4)], "589824", id="numbers alone are multiplied out"),
        pytest.param([((B, 1, 1), 1)], "B", id="ones are left out"),
        pytest.param([((B, H // 16, H // 16), 4)], "B*(H//16)**2*4", id="a division keeps its brackets"),
        pytest.param([((B, T * G + 1), 4)], "B*(T*G+1)*4", id="a sum keeps its brackets"),
        pytest.param([((0, B), 4)], "0", id="an empty storage adds nothing"),
        pytest.param([((B,), 4), ((7,), 1), ((8,), 1)], "15 + B*4", id="numbers are added up"),
    ],
)
def test_closed_form(shapes: list[tuple[tuple[int, ...], int]], formula: str) -> None:
    tape = symbolic(*shapes)
    assert closed_form(tape, range(len(shapes)))[0] == formula


def test_a_storage_that_its_shape_does_not_explain_enters_as_a_number() -> None:
    tape = symbolic(((B, 10), 4))
    assert tape.shapes is not None
    tape.allocate(1000, Label("workspace", "", "by hand"))  # no shape
    packed = tape.allocate(50, Label("parameters", "", "two values in a byte"))
    tape.shapes[packed] = ((B, 10), 4)
    assert closed_form(tape, range(3)) == ("1050 + B*10*4", (("B", "micro_batch_size"),))


def test_symbols_name_the_facts_behind_them() -> None:
    assert closed_form(symbolic(((B, G + 1), 4), ((T,), 4)), range(2))[1] == (
        ("B", "micro_batch_size"),
        ("G", "groups"),
        ("T", "frames"),
    )


@pytest.mark.parametrize(
    ("expr", "factors"),
    [
        pytest.param("B", ["B"], id="a name"),
        pytest.param("B*T*4", ["B", "T", "4"], id="a product"),
        pytest.param("B*(G+1)", ["B", "(G+1)"], id="a product with a bracket"),
        pytest.param("G+1", ["(G+1)"], id="a sum"),
        pytest.param("B*G+1", ["(B*G+1)"], id="a sum of products"),
        pytest.param("B*H//16", ["(B*H//16)"], id="a division of a product"),
        pytest.param("H**2*B", ["(H**2*B)"], id="a power is left as it is"),
    ],
)
def test_factor_out(expr: str, factors: list[str]) -> None:
    assert factor_out(expr) == factors


# -- the law: a formula is the bytes -----------------------------------------------------------------

SYMBOLS = {"B": 3, "T": 5, "G": 64, "H": 33}


def dims() -> st.SearchStrategy[int]:
    names = st.sampled_from([symbol(value, name, name.lower()) for name, value in SYMBOLS.items()])
    leaves = st.one_of(st.integers(1, 9), names, names)

    def combine(children: st.SearchStrategy[int]) -> st.SearchStrategy[int]:
        return st.one_of(
            st.builds(lambda a, b: a + b, children, children),
            st.builds(lambda a, b: a * b, children, children),
            st.builds(lambda a, b: a // b, children, st.integers(1, 4)),
            st.builds(lambda a, b: a % b, children, st.integers(1, 4)),
        )

    return st.recursive(leaves, combine, max_leaves=4)


SHAPES = st.tuples(st.lists(dims(), max_size=4).map(tuple), st.sampled_from([1, 2, 4, 8]))


@given(shapes=st.lists(SHAPES, max_size=12))
def test_a_formula_evaluates_to_the_bytes_asked_for(shapes: list[tuple[tuple[int, ...], int]]) -> None:
    tape = symbolic(*shapes)
    formula, symbols = closed_form(tape, range(len(shapes)))
    assert eval(formula, {"__builtins__": {}}, dict(SYMBOLS)) == sum(tape.sizes)
    used = {name for shape, _ in shapes for size in shape if isinstance(size, Dim) for name, _ in size.facts}
    assert {name for name, _ in symbols} <= used


@given(
    storages=st.lists(
        st.tuples(
            st.integers(0, 5000),
            st.sampled_from(COMPONENTS[:8]),
            st.text("ab.01", max_size=8),
            st.booleans(),
        )
    )
)
def test_parts_add_up_to_components_and_components_to_what_is_live(
    storages: list[tuple[int, str, str, bool]],
) -> None:
    tape = Tape()
    for size, component, module, freed in storages:
        storage = tape.allocate(size, Label(component, module))
        if freed:
            tape.free(storage)
    event = len(tape.events) - 1
    sizes = rounded_sizes(tape)
    components = break_down(tape, event)
    assert sum(component.size_bytes for component in components) == sum(
        sizes[storage] for storage in live_storages(tape, event)
    )
    for component in components:
        assert component.size_bytes == sum(part.size_bytes for part in component.parts)
        assert len({part.name for part in component.parts}) == len(component.parts)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        pytest.param("down_3.conv_1", "down_*.conv_*", id="numbers behind a name are left out"),
        pytest.param("a_1.b_2.c_3.d_4.e_5", "a_*.b_*.c_*.d_*", id="such names count as any other"),
        pytest.param("a.b.c.d.7.e.8", "a.b.c.d", id="what is deeper is left out with its numbers"),
        pytest.param("_3", "_3", id="a number without a name"),
    ],
)
def test_blocks_that_are_numbered_in_their_names(module: str, name: str) -> None:
    assert part_name(module) == name


def test_parts_come_largest_first_and_then_by_name() -> None:
    tape = Tape()
    for size, module in ((512, "c"), (512, "a"), (1024, "z"), (512, "b")):
        tape.allocate(size, Label("activations", module))
    [component] = break_down(tape, 3)
    assert [part.name for part in component.parts] == ["z", "a", "b", "c"]


def test_parts_of_a_symbolic_recording_have_formulas_and_titles() -> None:
    tape = symbolic(((B, 10), 4))
    tape.titles["encoder"] = "mini-PointNet"
    [component] = break_down(tape, 0)
    [part] = component.parts
    assert part == ("encoder", 512, "B*10*4", (("B", "micro_batch_size"),), "mini-PointNet")
