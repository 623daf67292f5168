"""Feedback read, gathered into cases, and divided: nothing is both learned from and judged."""

import math
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from memalign_graph import Boolean, Categorical, Criterion, Example, Feedback, Numeric
from memalign_graph.errors import InvalidInputError
from memalign_graph.evaluation.baselines import constant_value, nearest_value
from memalign_graph.evaluation.cases import (
    Fold,
    group_of,
    hold_out,
    labelled_cases,
    make_folds,
    read_all,
)
from memalign_graph.types import Episode, RecalledExample
from tests.conftest import CRITERION

START = datetime(2026, 1, 1, tzinfo=UTC)
STARS = Criterion(
    name="stars", instructions="How good?", scale=Numeric(minimum=1, maximum=5, integer=True)
)


def word(number: int, *, said: int = 0, **fields: Any) -> dict[str, Any]:
    """One expert's word on one case; two answers to each question."""
    return {
        "inputs": f"Question {number // 2}?",
        "outputs": f"Answer {number}.",
        "value": bool(number % 3),
        "author": "ann",
        "given_at": START + timedelta(minutes=number, seconds=said),
        **fields,
    }


def read(given: Any, criterion: Criterion = CRITERION) -> list[Feedback]:
    return read_all(given, criterion)


def folds_of(given: Any, **options: Any) -> list[Fold]:
    return make_folds(read(given), CRITERION, **{"folds": 3, **options})


GROUPINGS: list[Any] = ["example", "inputs", lambda example: str(len(example.inputs)) + "x"]


@pytest.mark.parametrize("group_by", GROUPINGS[:2])
@pytest.mark.parametrize("seed", range(5))
def test_no_item_is_learned_from_and_judged(group_by: Any, seed: int) -> None:
    given = [word(number) for number in range(14)]
    given += [word(number, author="bob", value=True) for number in range(0, 14, 3)]
    given += [word(number, author="cy", value=None, rationale="Hm.") for number in range(4)]
    made = folds_of(given, group_by=group_by, seed=seed)
    judged = Counter(case.example.id for fold in made for case in fold.test)
    assert set(judged.values()) == {1}
    assert len(judged) == 14
    for fold in made:
        items = {case.group for case in fold.test}
        assert items
        assert fold.train
        assert not items & {group_of(one.example, group_by) for one in fold.train}
        held = [one for case in fold.test for one in case.feedback]
        # All that is not on an item that is judged is learned from: nothing gets lost.
        assert len(fold.train) + len(held) == len(given)


def test_items_are_what_a_function_says() -> None:
    made = folds_of(
        [word(number) for number in range(12)],
        group_by=lambda example: example.inputs.split()[1],
    )
    questions = [{str(case.example.inputs) for case in fold.test} for fold in made]
    assert len(set.union(*questions)) == 6
    assert sum(map(len, questions)) == 6


def test_seed_shuffles_and_repeats() -> None:
    given = [word(number) for number in range(12)]
    assert folds_of(given, seed=1) == folds_of(given, seed=1)
    assert folds_of(given, seed=1) != folds_of(given, seed=2)


def test_words_without_a_value_are_learned_from_and_never_judged() -> None:
    given = [word(number) for number in range(6)]
    given += [word(number, value=None, rationale="Say why.") for number in (20, 21)]
    for fold in folds_of(given):
        told = [one.example.outputs for one in fold.train]
        assert {"Answer 20.", "Answer 21."} <= set(told)
        assert not {"Answer 20.", "Answer 21."} & {one.example.outputs for one in fold.test}


def test_words_on_an_item_that_is_judged_are_not_learned_from() -> None:
    """Not even those of an expert who gave no value."""
    given = [word(number) for number in range(6)]
    given.append(word(0, author="bob", value=None, rationale="This is the answer."))
    for fold in folds_of(given):
        judged = {one.example.outputs for one in fold.test}
        assert not judged & {one.example.outputs for one in fold.train}
        if "Answer 0." in judged:
            (case,) = [one for one in fold.test if one.example.outputs == "Answer 0."]
            assert [one.author for one in case.feedback] == ["ann", "bob"]


def test_most_experts_decide() -> None:
    given = [word(0, author=one, value=one != "b", said=said) for said, one in enumerate("abc")]
    (case,) = labelled_cases(read(given), CRITERION)
    assert case.expected is True
    assert [one.author for one in case.feedback] == ["a", "b", "c"]


def test_newest_decides_a_tie() -> None:
    given = [word(0, author="a", value=True, said=5), word(0, author="b", value=False, said=1)]
    for order in (given, given[::-1]):
        (case,) = labelled_cases(read(order), CRITERION)
        assert case.expected is True
        assert [one.author for one in case.feedback] == ["b", "a"]


@pytest.mark.parametrize("newest_first", [False, True])
def test_newer_word_of_one_expert_counts(newest_first: bool) -> None:  # noqa: FBT001
    given = [word(0, value=True, said=1), word(0, value=False, said=9)]
    (one,) = read(given[::-1] if newest_first else given)
    assert one.value is False


def test_same_word_twice_is_one() -> None:
    assert len(read([word(0), word(0), word(1)])) == 2


def test_order_given_is_kept() -> None:
    given = [word(number) for number in (5, 1, 3)]
    assert [one.example.outputs for one in read(given)] == ["Answer 5.", "Answer 1.", "Answer 3."]
    cases = labelled_cases(read(given), CRITERION)
    assert [one.example.outputs for one in cases] == ["Answer 5.", "Answer 1.", "Answer 3."]


def test_values_are_as_the_scale_writes_them() -> None:
    given = [word(0, value="yes"), word(1, value=0), word(2, value="TRUE")]
    assert [one.value for one in read(given)] == [True, False, True]
    tones = Criterion(name="t", instructions="?", scale=Categorical(choices=("Cold", "Warm")))
    assert [one.value for one in read([word(0, value=" warm ")], tones)] == ["Warm"]
    assert [one.value for one in read([word(0, value=4.0)], STARS)] == [4]
    assert type(read([word(0, value=4.0)], STARS)[0].value) is int


def test_generator_and_feedback_are_taken() -> None:
    given = [Feedback.model_validate(word(0)), word(1)]
    assert len(read(one for one in given)) == 2
    assert len(read(tuple(given))) == 2
    assert read([]) == []


def test_cells_that_are_missing_are_not_there() -> None:
    (one,) = read([word(0, rationale="Cold.", value=math.nan)])
    assert one.value is None
    with pytest.raises(InvalidInputError, match=r"^feedback\[0\]: .*value or a rationale"):
        read([word(0, value=math.nan)])


@pytest.mark.parametrize(
    "given", [{"inputs": "a"}, "text", None, 7, Feedback.model_validate(word(0))]
)
def test_what_is_no_list(given: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^feedback: give a list"):
        read(given)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (word(0, value="perhaps"), r"^feedback\[1\]\.value: 'perhaps' is not on the scale"),
        (word(0, value=2), r"^feedback\[1\]\.value: 2 is not on the scale"),
        ({"inputs": "a", "value": True}, r"^feedback\[1\]: .*outputs"),
        ({"inputs": "a", "outputs": "b"}, r"^feedback\[1\]: feedback needs a value or a rationale"),
        ("text", r"^feedback\[1\]: "),
        (None, r"^feedback\[1\]: "),
        ({**word(0), "note": 1}, r"^feedback\[1\]: .*note"),
    ],
)
def test_what_can_not_be_used_is_told_by_its_place(bad: Any, says: str) -> None:
    with pytest.raises(InvalidInputError, match=says) as caught:
        read([word(9), bad])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, 0, 6, 2.5, "many", True])
def test_numbers_off_the_scale(value: Any) -> None:
    given = Feedback.model_construct(
        example=Example(inputs="a", outputs="b"),
        value=value,
        rationale=None,
        author=None,
        id=None,
        judgment=None,
        thread_id=None,
        given_at=START,
    )
    with pytest.raises(InvalidInputError, match=r"^feedback\[0\]"):
        read([given], STARS)


@pytest.mark.parametrize("folds", [True, 1, 0, -2, 2.0, "3", None])
def test_number_of_folds(folds: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^folds: .* is not a whole number from 2 on"):
        folds_of([word(number) for number in range(9)], folds=folds)


@pytest.mark.parametrize(
    ("given", "there"),
    [
        ([], 0),
        ([word(0), word(1)], 2),
        ([word(0), word(0, author="b"), word(0, author="c")], 1),
        ([word(n, value=None, rationale="Hm.") for n in range(5)], 0),
    ],
)
def test_too_few_items(given: Any, there: int) -> None:
    says = f"^folds: 3 folds need at least as many items with a value, and there are {there}: give"
    with pytest.raises(InvalidInputError, match=says):
        folds_of(given)


def test_too_few_inputs() -> None:
    given = [word(0), word(1), word(0, outputs="x")]
    assert len(folds_of(given)) == 3
    with pytest.raises(InvalidInputError, match="there are 1"):
        folds_of(given, group_by="inputs")


@pytest.mark.parametrize("group_by", ["outputs", None, 3])
def test_unknown_grouping(group_by: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^group_by: .* is not known"):
        folds_of([word(number) for number in range(6)], group_by=group_by)


@pytest.mark.parametrize("group_by", GROUPINGS[:2])
@pytest.mark.parametrize("seed", range(5))
def test_share_held_out(group_by: Any, seed: int) -> None:
    given = [word(number) for number in range(20)]
    fold = hold_out(read(given), CRITERION, share=0.3, group_by=group_by, seed=seed)
    items = {case.group for case in fold.test}
    assert len(items) == (6 if group_by == "example" else 3)
    assert len(fold.test) == 6
    assert len(fold.train) == 14
    assert not items & {group_of(one.example, group_by) for one in fold.train}
    again = hold_out(read(given), CRITERION, share=0.3, group_by=group_by, seed=seed)
    assert again == fold


def test_held_out_feedback_is_in_random_order() -> None:
    given = read([word(number) for number in range(20)])
    orders = {
        tuple(one.example.outputs for one in hold_out(given, CRITERION, share=0.3, seed=seed).train)
        for seed in range(4)
    }
    assert len(orders) == 4


@pytest.mark.parametrize("share", [0, 1, -0.5, 1.5, math.nan, "0.3", None, True])
def test_share_that_is_none(share: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^test_share: "):
        hold_out(read([word(number) for number in range(9)]), CRITERION, share=share)


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_to_hold_out(count: int) -> None:
    with pytest.raises(InvalidInputError, match=r"^feedback: .* too few"):
        hold_out(read([word(number) for number in range(count)]), CRITERION, share=0.3)


CONSTANTS: list[tuple[Any, list[Any], Any]] = [
    (Boolean(), [True, False, True], True),
    (Boolean(), [False, True], False),
    (Boolean(), [], None),
    (Categorical(choices=("a", "b", "c")), ["c", "a", "c"], "c"),
    # Between the ends lies what is least far off, not what is most frequent.
    (Categorical(choices=("a", "b", "c"), ordered=True), ["a", "a", "b", "c", "c"], "b"),
    (Numeric(minimum=1, maximum=5, integer=True), [1, 1, 5, 4, 4], 4),
    (Numeric(minimum=1, maximum=5, integer=True), [1, 2], 1),
    (Numeric(minimum=0, maximum=1), [0.2, 0.4], pytest.approx(0.3)),
]


@pytest.mark.parametrize(("scale", "values", "wanted"), CONSTANTS)
def test_constant(scale: Any, values: list[Any], wanted: Any) -> None:
    found = constant_value(values, scale)
    assert found == wanted
    assert found is None or type(found) is type(values[0])


def test_constant_has_the_least_error() -> None:
    scale = Numeric(minimum=1, maximum=5, integer=True)
    values = [1, 2, 2, 5, 5, 5, 5]
    found = constant_value(values, scale)
    errors = {one: sum(abs(one - value) for value in values) for one in range(1, 6)}
    assert errors[int(found or 0)] == min(errors.values())


def recalled(*values: Any) -> list[RecalledExample]:
    """Similar examples, most similar first; a tuple is what several experts said on one."""
    found = []
    for place, given in enumerate(values):
        said = given if isinstance(given, tuple) else (given,)
        words = [
            Feedback.model_validate(
                word(place, author=str(n), value=value, rationale="Hm.", said=n)
            )
            for n, value in enumerate(said)
        ]
        episodes = [Episode.from_feedback(one) for one in words]
        found.append(
            RecalledExample(example=words[0].example, episodes=episodes, similarity=1 - place / 10)
        )
    return found


@pytest.mark.parametrize(
    ("scale", "given", "wanted"),
    [
        (Boolean(), [], None),
        (Boolean(), [None, None], None),
        (Boolean(), [False, True], False),
        (Boolean(), [False, True, True], True),
        (Boolean(), [(True, True, False), False, True], True),
        (Boolean(), [None, False], False),
        (Categorical(choices=("a", "b", "c"), ordered=True), ["a", "c", "b"], "b"),
        (Numeric(minimum=1, maximum=5, integer=True), [1, 5, 5], 4),
        (Numeric(minimum=0, maximum=1), [0.5, 1.0], 0.75),
        # What was said on an earlier scale does not count.
        (Numeric(minimum=1, maximum=5, integer=True), [9, 2], 2),
    ],
)
def test_nearest(scale: Any, given: list[Any], wanted: Any) -> None:
    assert nearest_value(recalled(*given), scale) == wanted
