"""Swapped outputs, one verdict from two orders, and cases that are left out."""

from types import SimpleNamespace
from typing import Any

import pytest

from memalign_graph import Example, InvalidInputError, Pairwise
from memalign_graph.judging.again import _without_influence
from memalign_graph.judging.case import swap_outputs
from memalign_graph.judging.verdict import reconcile_orders


def example(outputs: Any) -> Example:
    return Example(inputs={"q": ["A", "B"]}, outputs=outputs, reference_outputs=["first", "then"])


@pytest.mark.parametrize(
    ("outputs", "swapped"),
    [
        (["a", "b"], ["b", "a"]),
        (["same", "same"], ["same", "same"]),
        ([["a", "a2"], {"b": 1}], [{"b": 1}, ["a", "a2"]]),
        ({"B": "b", "A": "a"}, {"B": "a", "A": "b"}),
        ({"x": {"A": 1}, "y": [1, 2]}, {"x": [1, 2], "y": {"A": 1}}),
        ({"": 0, "y": False}, {"": False, "y": 0}),
    ],
)
def test_only_the_outputs_are_swapped(outputs: Any, swapped: Any) -> None:
    original = example(outputs)
    before = original.to_json()
    other = swap_outputs(original)
    assert repr(other.outputs) == repr(swapped)
    assert (other.inputs, other.reference_outputs) == (original.inputs, original.reference_outputs)
    assert original.to_json() == before
    assert swap_outputs(other) == original
    assert other.id == example(swapped).id


@pytest.mark.parametrize("outputs", ["ab", 2, True, ["a"], ["a", "b", "c"], {"A": "a"}])
def test_outputs_other_than_a_pair_raise(outputs: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^outputs: to be judged in both orders"):
        swap_outputs(example(outputs))


@pytest.mark.parametrize("allow_tie", [True, False])
@pytest.mark.parametrize("straight", ["A", "B", "tie"])
@pytest.mark.parametrize("swapped", ["A", "B", "tie"])
def test_verdicts_that_differ_are_a_tie_or_the_first(
    straight: str, swapped: str, *, allow_tie: bool
) -> None:
    as_given = {"A": "B", "B": "A", "tie": "tie"}[swapped]
    scale = Pairwise(allow_tie=allow_tie)
    value, rationale, warning = reconcile_orders(scale, (straight, "One."), (swapped, "Two."))
    if straight == as_given:
        assert (value, rationale, warning) == (straight, "One.", None)
        return
    assert value == ("tie" if allow_tie else straight)
    for part in ("One.", "Two.", f"({straight})", f"({as_given} as given)"):
        assert part in rationale
    end = "so that it is a tie" if allow_tie else "and the scale has no tie: the first stands"
    assert warning == (
        f"The verdict depends on the order of the outputs: {straight} as they were given, "
        f"{as_given} when they were swapped, {end}."
    )


def test_case_with_feedback_of_another_expert_keeps_its_vote() -> None:
    rows: Any = [
        SimpleNamespace(id=key, example_id=case, vector_key=f"v-{case}")
        for key, case in (("ann-1", "one"), ("bob-1", "one"), ("ann-2", "two"), ("bob-3", "three"))
    ]
    assert _without_influence(rows, {"ann-1", "ann-2"}, "v-three") == {"two", "three"}
