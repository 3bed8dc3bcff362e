"""How far a run may grow in its budget, of runs whose peak is a formula: both ends of a bracket, to the byte."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from memlint.data.catalogue import gpu
from memlint.facts.spec import TrainingSpec, UnknownModel
from memlint.fixes.limits import Bracket, End, fewest_devices, largest_batch, longest_sequence, smallest_card
from memlint.tape.estimate import Estimate
from memlint.units import GiB
from tests.fixes.made_up import estimate_of, run_of

TOO_MUCH = "does not surely fit"
MOST = 2**24

Sizes = Callable[[TrainingSpec], Mapping[str, int]]


def of_batch(spec: TrainingSpec) -> Mapping[str, int]:
    """Ten bytes, and a hundred for each sample."""
    return {"parameters": 10, "activations": 100 * spec["micro_batch_size"]}


def values(bracket: Bracket | None) -> tuple[str | None, str | None]:
    assert bracket is not None
    return bracket.inside and bracket.inside.value, bracket.outside and bracket.outside.value


@pytest.mark.parametrize(
    ("batch", "largest", "budget"),
    [
        pytest.param(1, 1, 110, id="a batch of one to which none can be added"),
        pytest.param(1, 1, 209, id="one byte less than a batch of two takes"),
        pytest.param(1, 2, 210, id="exactly what a batch of two takes"),
        pytest.param(1, 3, 310, id="three, between one and its doublings"),
        pytest.param(1, 64, 6_410, id="a power of two"),
        pytest.param(4, 7, 710, id="less than one doubling more"),
        pytest.param(3, 95, 9_510, id="many doublings more"),
        pytest.param(8, 7, 710, id="one less than the config has"),
        pytest.param(8, 5, 510, id="more than half of what the config has"),
        pytest.param(8, 4, 410, id="half of what the config has"),
        pytest.param(9, 1, 110, id="a ninth of what the config has"),
        pytest.param(1000, 999, 99_910, id="one less than a thousand"),
        pytest.param(1, 1234, 123_410, id="figures of four digits are grouped"),
    ],
)
def test_one_sample_more_than_the_largest_batch_does_not_fit(batch: int, largest: int, budget: int) -> None:
    found = largest_batch(run_of(f"micro_batch_size: {batch}\n", of_batch, budget=budget))
    assert found is not None
    assert found.what == "micro batch"
    inside, outside = (estimate_of({"parameters": 10, "activations": 100 * n}) for n in (largest, largest + 1))
    assert found.inside == End(f"{largest:,}", inside)
    assert found.outside == End(f"{largest + 1:,}", outside, TOO_MUCH)


@pytest.mark.parametrize("batch", [1, 2, 3, 8, 9])
def test_where_not_even_one_sample_fits_only_the_outer_end_is_known(batch: int) -> None:
    found = largest_batch(run_of(f"micro_batch_size: {batch}\n", of_batch, budget=109))
    one = estimate_of({"parameters": 10, "activations": 100})
    assert found == Bracket("micro batch", None, End("1", one, TOO_MUCH))


@pytest.mark.parametrize(
    ("batch", "asked"),
    [
        pytest.param(1, MOST, id="the largest that is tried"),
        pytest.param(MOST, 2 * MOST, id="twice of a config's own that is as large"),
    ],
)
def test_what_takes_no_memory_has_no_outer_end(batch: int, asked: int) -> None:
    found = largest_batch(run_of(f"micro_batch_size: {batch}\n", 100, budget=100))
    assert found == Bracket("micro batch", End(f"{asked:,}", estimate_of({"activations": 100})), None)


def test_a_limit_above_all_that_is_tried_is_not_looked_for() -> None:
    tried: list[int] = []

    def sizes(spec: TrainingSpec) -> Mapping[str, int]:
        tried.append(spec["micro_batch_size"])
        return {"activations": 1}

    largest_batch(run_of("micro_batch_size: 1\n", sizes, budget=1))
    assert max(tried) == MOST


def test_no_size_is_estimated_twice() -> None:
    tried: list[int] = []

    def sizes(spec: TrainingSpec) -> Mapping[str, int]:
        tried.append(spec["micro_batch_size"])
        return of_batch(spec)

    run = run_of("micro_batch_size: 1\n", sizes, budget=4_310)
    tried.clear()
    assert values(largest_batch(run)) == ("43", "44")
    # Of what fits, what is live, the totals and the whole are asked; of what does not, the first and the last.
    assert all(tried.count(size) <= 3 for size in tried)


@pytest.mark.parametrize("ask", [largest_batch, longest_sequence, fewest_devices])
def test_without_a_budget_there_is_no_bracket(ask: Callable[..., Bracket | None]) -> None:
    assert ask(run_of("micro_batch_size: 1\nsequence_length: 128\n")) is None


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="is not stated"),
        pytest.param("micro_batch_size: auto\nsequence_length: auto\n", id="is a word"),
        pytest.param("micro_batch_size: 0\nsequence_length: 0\n", id="is none"),
        pytest.param("micro_batch_size: -4\nsequence_length: -1\n", id="is less than none"),
    ],
)
def test_there_is_no_bracket_of_a_size_that(text: str) -> None:
    run = run_of(text, budget=10_000)
    assert (largest_batch(run), longest_sequence(run)) == (None, None)


# -- samples


def of_length(spec: TrainingSpec) -> Mapping[str, int]:
    return {"activations": 10 * max(spec["sequence_length"], spec.get("evaluation_sequence_length", 0))}


@pytest.mark.parametrize(
    ("length", "longest"),
    [
        pytest.param(512, 700, id="is longer than the config's"),
        pytest.param(4096, 1000, id="is shorter than the config's"),
        pytest.param(1000, 1000, id="is the config's"),
    ],
)
def test_one_token_more_than_the_longest_sample_does_not_fit_where_it(length: int, longest: int) -> None:
    found = longest_sequence(run_of(f"sequence_length: {length}\n", of_length, budget=10 * longest + 9))
    assert found is not None
    assert found.what == "sequence length"
    assert found.inside == End(f"{longest:,}", estimate_of({"activations": 10 * longest}))
    assert found.outside == End(f"{longest + 1:,}", estimate_of({"activations": 10 * longest + 10}), TOO_MUCH)


def test_samples_of_evaluation_are_as_long_where_one_key_states_both() -> None:
    text = "sequence_length: 4096\n"
    spec = run_of(text).spec
    own = spec.facts["sequence_length"]
    same = own._replace(name="evaluation_sequence_length")
    run = run_of(text, of_length, stated={"evaluation_sequence_length": same}, budget=9_999)
    assert values(longest_sequence(run)) == ("999", "1,000")


def test_samples_of_evaluation_that_have_a_length_of_their_own_keep_it() -> None:
    text = "sequence_length: 4096\nevaluation_sequence_length: 2048\n"
    assert values(longest_sequence(run_of(text, of_length, budget=9_999))) == (None, "1")


# -- what has no model at some sizes


def up_to(most: int) -> Sizes:
    """A model that is known up to a size of the batch, and takes no more with it."""

    def sizes(spec: TrainingSpec) -> Mapping[str, int]:
        if spec["micro_batch_size"] > most:
            raise UnknownModel(f"no more than {most} samples were recorded")
        return {"activations": 100}

    return sizes


def test_a_size_that_the_model_does_not_take_is_the_outer_end_and_says_why() -> None:
    found = largest_batch(run_of("micro_batch_size: 2\n", up_to(12), budget=100))
    assert values(found) == ("12", "13")
    assert found is not None
    assert found.outside == End("13", None, "no more than 12 samples were recorded")


# -- cards


def shared_by(spec: TrainingSpec) -> Mapping[str, int]:
    """A thousand bytes, in as many parts as there are devices; the world is all of them."""
    assert spec["world_size"] == spec["device_count"]
    return {"optimizer": 1000 // spec["device_count"]}


@pytest.mark.parametrize(
    ("budget", "fewest", "next_fewer"),
    [
        pytest.param(1000, "1", None, id="one card has room for all"),
        pytest.param(999, "2", "1", id="one byte too much for one"),
        pytest.param(500, "2", "1", id="exactly a half"),
        pytest.param(499, "4", "2", id="less than a half"),
        pytest.param(125, "8", "4", id="an eighth"),
        pytest.param(1, "512", "256", id="many"),
        pytest.param(0, "1,024", "512", id="as many as are tried"),
    ],
)
def test_half_as_many_cards_as_the_fewest_do_not_fit(budget: int, fewest: str, next_fewer: str | None) -> None:
    run = run_of("micro_batch_size: 1\n", shared_by, stated={"device_count": 8, "world_size": 8}, budget=budget)
    found = fewest_devices(run)
    assert found is not None
    assert found.what == "cards"
    assert values(found) == (fewest, next_fewer)
    assert found.outside is None or found.outside.reason == TOO_MUCH


def test_what_the_devices_do_not_share_fits_on_no_number_of_them() -> None:
    found = fewest_devices(run_of("micro_batch_size: 1\n", 100, budget=99))
    assert found == Bracket("cards", None, End("1,024", estimate_of({"activations": 100}), TOO_MUCH))


def test_a_number_of_cards_that_the_model_does_not_divide_by_is_no_answer() -> None:
    def sizes(spec: TrainingSpec) -> Mapping[str, int]:
        if spec.get("device_count", 4) < 4:
            raise UnknownModel("layers are in four stages")
        return {"activations": 100}

    found = fewest_devices(run_of("micro_batch_size: 1\n", sizes, budget=100))
    assert values(found) == ("4", "2")
    assert found is not None
    assert found.outside == End("2", None, "layers are in four stages")


def on(size: int) -> Callable[[str], Estimate]:
    return lambda card: estimate_of({"activations": size})


@pytest.mark.parametrize(
    ("least", "smaller"),
    [
        pytest.param("l4", "a10", id="a card of 24 GB"),
        pytest.param("h200-141gb", "mi300a", id="a card of 141 GB"),
        pytest.param("rtx2060-6gb", "gtx1650", id="the second of all"),
    ],
)
def test_the_next_smaller_card_than_the_smallest_does_not_fit(least: str, smaller: str) -> None:
    size = gpu(least).usable_bytes
    found = smallest_card(run_of("micro_batch_size: 1\n", 1), on(size))
    assert found is not None
    assert found == Bracket("card", End(least, on(size)("")), End(smaller, on(size)(""), TOO_MUCH))
    found = smallest_card(run_of("micro_batch_size: 1\n", 1), on(size + 1))
    assert found is not None
    assert found.outside == End(least, on(size + 1)(""), TOO_MUCH)


def test_a_run_that_the_smallest_of_all_cards_takes_has_no_outer_end() -> None:
    found = smallest_card(run_of("micro_batch_size: 1\n", 1), on(GiB))
    assert found == Bracket("card", End("gtx1650", on(GiB)("")), None)


def test_a_run_that_no_card_takes_is_told_by_how_much_on_the_largest() -> None:
    found = smallest_card(run_of("micro_batch_size: 1\n", 1), on(1000 * GiB))
    assert found is not None
    assert found.inside is None
    assert found.outside is not None
    assert gpu(found.outside.value).usable_bytes == gpu("mi355x").usable_bytes
    assert (found.outside.estimate, found.outside.reason) == (on(1000 * GiB)(""), TOO_MUCH)


@pytest.mark.parametrize(
    ("live", "asked"),
    [
        pytest.param(gpu("h200-141gb").usable_bytes, "h200-141gb", id="exactly what is live"),
        pytest.param(gpu("h200-141gb").usable_bytes + 1, "gh200-144gb", id="one byte less than what is live"),
    ],
)
def test_the_first_card_that_is_asked_has(live: int, asked: str) -> None:
    tried: list[str] = []

    def told(card: str) -> Estimate:
        tried.append(card)
        return estimate_of({"activations": live})

    smallest_card(run_of("micro_batch_size: 1\n", live), told)
    assert tried[0] == asked


def test_a_run_without_an_estimate_here_is_asked_of_every_card() -> None:
    tried: list[str] = []

    def told(card: str) -> Estimate:
        tried.append(card)
        return estimate_of({"activations": GiB})

    found = smallest_card(run_of("micro_batch_size: 1\n", 1, estimated=False), told)
    assert tried == ["gtx1650"]
    assert values(found) == ("gtx1650", None)


def test_a_model_that_no_card_makes_known_says_why() -> None:
    def unknown(card: str) -> Estimate:
        raise UnknownModel("its sizes are not known")

    found = smallest_card(run_of("micro_batch_size: 1\n", 1), unknown)
    assert found == Bracket("card", None, End("gtx1650", None, "its sizes are not known"))
