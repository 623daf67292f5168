"""Which values pass a gate."""

from typing import Any

import pytest

from memalign_graph import Boolean, Categorical, InvalidInputError, Numeric, Pairwise
from memalign_graph.scales import PassRule

GRADES = Categorical(choices=("Poor", "Fair", "Good"), ordered=True)
NAMES = Categorical(choices=("Refund", "Sorry", "Rude"))
SCORE = Numeric(minimum=-1, maximum=1)
STARS = Numeric(minimum=1, maximum=5, integer=True)

CASES: dict[str, tuple[Any, Any, list[Any], list[Any]]] = {
    "boolean": (Boolean(), None, [True], [False]),
    "boolean-false": (Boolean(), False, [False], [True]),
    "boolean-set": (Boolean(), {"no"}, [False], [True]),
    "numeric": (SCORE, 0.5, [0.5, 1.0], [0.4999, -1.0, 0.0]),
    "numeric-text": (STARS, "4", [4, 5], [1, 2, 3]),
    "numeric-set": (STARS, {1, 5}, [1, 5], [2, 3, 4]),
    "numeric-range": (STARS, range(2, 4), [2, 3], [1, 4, 5]),
    "ordered": (GRADES, "fair", ["Fair", "Good"], ["Poor"]),
    "ordered-highest": (GRADES, "Good", ["Good"], ["Poor", "Fair"]),
    "ordered-set": (GRADES, ("fair",), ["Fair"], ["Poor", "Good"]),
    "names": (NAMES, "sorry", ["Sorry"], ["Refund", "Rude"]),
    "pairwise": (Pairwise(), "b", ["B"], ["A", "tie"]),
    "pairwise-set": (Pairwise(), {"A", "tie"}, ["A", "tie"], ["B"]),
}


@pytest.mark.parametrize("case", list(CASES))
def test_values_that_pass_and_those_that_do_not(case: str) -> None:
    scale, passes, good, bad = CASES[case]
    rule = PassRule.of(scale, passes)
    assert [rule.passes(value) for value in good] == [True] * len(good)
    assert [rule.passes(value) for value in bad] == [False] * len(bad)


def test_rule_says_true_or_false_whatever_its_function_returns() -> None:
    answers: dict[Any, Any] = {1: 1, 2: "yes", 3: ["x"]}
    rule = PassRule.of(STARS, answers.get)
    assert [rule.passes(value) for value in range(1, 5)] == [True, True, True, False]


class Later:
    """Called like a function, but awaited."""

    async def __call__(self, value: Any) -> bool:
        return False


async def later(value: Any) -> bool:
    return False


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize("passes", [later, Later(), lambda _: later(1)])
def test_answer_that_is_still_to_come_lets_nothing_pass(passes: Any) -> None:
    with pytest.raises(InvalidInputError, match="passes: "):
        assert not PassRule.of(STARS, passes).passes(3)


def test_what_is_given_later_changes_nothing() -> None:
    allowed = [4]
    rule = PassRule.of(STARS, allowed)
    allowed.append(1)
    assert not rule.passes(1)


WRONG: dict[str, tuple[Any, Any]] = {
    "boolean-text": (Boolean(), "maybe"),
    "numeric-nan": (SCORE, float("nan")),
    "numeric-set": (SCORE, {0, 9}),
    "grades-unknown": (GRADES, "great"),
    "pairwise-tie": (Pairwise(allow_tie=False), "tie"),
}


@pytest.mark.parametrize("case", list(WRONG))
def test_rule_that_is_not_on_the_scale_is_told(case: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^passes: ") as caught:
        PassRule.of(*WRONG[case])
    assert "\n" not in str(caught.value)
