"""Two outputs in the other order, and one verdict made of two."""

from typing import Any

import pytest

from memalign_graph import Example, InvalidInputError, Pairwise
from memalign_graph.pairwise import settle_orders, swap_outputs

TIES, NO_TIES = Pairwise(), Pairwise(allow_tie=False)


def example(outputs: Any) -> Example:
    return Example(inputs={"q": ["A", "B"]}, outputs=outputs, reference_outputs=["first", "then"])


@pytest.mark.parametrize(
    ("outputs", "swapped"),
    [
        (["a", "b"], ["b", "a"]),
        (["same", "same"], ["same", "same"]),
        ([["a", "a2"], {"b": 1}], [{"b": 1}, ["a", "a2"]]),
        ([None, "b"], ["b", None]),
        ({"A": "a", "B": "b"}, {"A": "b", "B": "a"}),
        ({"B": "b", "A": "a"}, {"B": "a", "A": "b"}),
        ({"x": {"A": 1}, "y": [1, 2]}, {"x": [1, 2], "y": {"A": 1}}),
        ({"": 0, "y": False}, {"": False, "y": 0}),
    ],
)
def test_outputs_change_places_and_nothing_else_does(outputs: Any, swapped: Any) -> None:
    given = example(outputs)
    before = given.to_json()
    other = swap_outputs(given)
    assert other.outputs == swapped
    assert [type(one) for one in values(other.outputs)] == [type(one) for one in values(swapped)]
    assert (other.inputs, other.reference_outputs) == (given.inputs, given.reference_outputs)
    assert given.to_json() == before
    assert swap_outputs(other) == given


def values(outputs: Any) -> list[Any]:
    return list(outputs.values() if isinstance(outputs, dict) else outputs)


def test_names_of_the_outputs_keep_their_order() -> None:
    swapped = swap_outputs(example({"second": 1, "first": 2})).outputs
    assert isinstance(swapped, dict)
    assert list(swapped.items()) == [("second", 2), ("first", 1)]


def test_swapped_example_has_an_id_of_its_own() -> None:
    given = example(["a", "b"])
    assert given.id  # worked out before it is copied
    other = swap_outputs(given)
    assert other.id != given.id
    assert other.id == example(["b", "a"]).id


@pytest.mark.parametrize(
    "outputs",
    ["ab", "a", 2, 1.5, True, ["a"], ["a", "b", "c"], {"A": "a"}, {"a": 1, "b": 2, "c": 3}],
)
def test_outputs_that_are_not_two_are_told(outputs: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^outputs: to be judged in both orders"):
        swap_outputs(example(outputs))


@pytest.mark.parametrize(("straight", "swapped"), [("A", "B"), ("B", "A"), ("tie", "tie")])
def test_verdict_both_lead_to(straight: str, swapped: str) -> None:
    settled = settle_orders(TIES, (straight, "One."), (swapped, "Two."))
    assert settled == (straight, "One.", None)


@pytest.mark.parametrize(
    ("straight", "swapped"),
    [("A", "A"), ("B", "B"), ("A", "tie"), ("B", "tie"), ("tie", "A"), ("tie", "B")],
)
def test_verdicts_that_differ_are_a_tie(straight: str, swapped: str) -> None:
    value, rationale, warning = settle_orders(TIES, (straight, "One."), (swapped, "Two."))
    assert value == "tie"
    assert "One." in rationale
    assert "Two." in rationale
    as_given = {"A": "B", "B": "A", "tie": "tie"}[swapped]
    assert warning == (
        f"The verdict depends on the order of the outputs: {straight} as they were given, "
        f"{as_given} when they were swapped, so that it is a tie."
    )
    assert f"({straight})" in rationale
    assert f"({as_given} as given)" in rationale


@pytest.mark.parametrize("both", ["A", "B"])
def test_first_verdict_stands_without_ties(both: str) -> None:
    value, rationale, warning = settle_orders(NO_TIES, (both, "One."), (both, "Two."))
    assert value == both
    assert "Two." in rationale
    assert warning is not None
    assert warning.endswith("and the scale has no tie: the first stands.")


@pytest.mark.parametrize(("straight", "swapped"), [("A", "B"), ("B", "A")])
def test_agreement_without_ties_needs_no_warning(straight: str, swapped: str) -> None:
    assert settle_orders(NO_TIES, (straight, "One."), (swapped, "")) == (straight, "One.", None)
